"""A fleet small enough for tests: six feeders of two lines, one of them broken, and simulated load points."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

from dp_powerflow.fleet.feeders import FleetConfig, parse_fleet_config
from dp_powerflow.loads.simulate import simulate_load_history
from support.small import RAW as RELEASE
from support.small import other_section, toml_text

KEYS = ("alder-lane", "birch-lane", "cedar-lane", "elm-lane", "fir-lane", "hazel-lane")
BROKEN = "cedar-lane"
SCALE_KW = 3.0
RAW: dict[str, Any] = {
    "fleet": {
        "id": "north",
        "feeders": ["feeders/*.dss"],
        "days": 3,
        "output": "out",
        "state": "state",
        "same_frame": {"feeders": [*KEYS], "reason": "a standard design"},
        "insecure_seed": 7,
    },
    "loads": {"kind": "simulated", "load_points": 60, "days": 6, "step_minutes": 60},
    # A feeder's own model is of sixteen load points: the noise must not reach the limit of power flow.
    "nodes": {"load_class": "residential", "scale_factor": 0.05},
    **{section: RELEASE[section] for section in ("model", "network")},
}
TWIN: dict[str, Any] = {
    "mode": "twin-network",
    **{"epsilon": 4.0, "delta": 1e-5, "change": 0.05},
}


def circuit(km: float) -> str:
    """OpenDSS script of a source, two lines and a load at either end."""
    return (
        "Clear\n"
        "New Circuit.tiny basekv=12.47 pu=1.0 R1=0.01 X1=0.05 R0=0.01 X0=0.05\n"
        f"New Line.first phases=3 bus1=sourcebus bus2=a r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length={km} "
        "units=km\n"
        "New Line.second phases=3 bus1=a bus2=b r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length=1.5 units=km\n"
        "New Load.la bus1=a phases=3 kv=12.47 kw=300 kvar=90\n"
        "New Load.lb bus1=b phases=3 kv=12.47 kw=200 kvar=60\n"
        "Set VoltageBases=[12.47]\nCalcVoltageBases\n"
    )


def write_feeders(folder: Path, *, repaired: bool = False) -> None:
    """The files of the six feeders; the broken one names a kind of element that does not exist."""
    (folder / "feeders").mkdir(exist_ok=True)
    for number, key in enumerate(KEYS):
        good = circuit(1.0 + 0.25 * number)
        bad = good.replace("New Line.second", "New Lnie.second")
        text = bad if key == BROKEN and not repaired else good
        (folder / "feeders" / f"{key}.dss").write_text(text)


def fleet_config(folder: Path, **sections: dict[str, Any]) -> FleetConfig:
    """The small fleet in a folder, with some keys of some sections replaced; None removes a key."""
    raw = {name: other_section(values, sections.pop(name, {})) for name, values in RAW.items()}
    raw |= sections
    kept = {name: {key: v for key, v in values.items() if v is not None} for name, values in raw.items()}
    return parse_fleet_config(kept, base=folder)


def on_twins(folder: Path, **sections: dict[str, Any]) -> FleetConfig:
    """The small fleet in mode 'twin-network'."""
    network = {**TWIN, **sections.pop("network", {})}
    nodes = {"scale_factor": None, "kw_per_customer": 20.0, **sections.pop("nodes", {})}
    return fleet_config(folder, network=network, nodes=nodes, **sections)


def write_meters(folder: Path, *, points: int = 96) -> dict[str, Any]:
    """Meter readings of simulated load points, shared out among the feeders; returns the section [loads]."""
    history = simulate_load_history(points, n_days=4, step_minutes=60, seed=3)
    assert history.scale_kw is not None
    load_kw = history.load_kw / history.scale_kw[:, None, None] * SCALE_KW
    with (folder / "meters.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "time", "active"])
        for i, days in enumerate(load_kw):
            for day, values in zip(history.days, days, strict=True):
                for hour, value in enumerate(values):
                    stamp = dt.datetime.combine(day, dt.time(hour), tzinfo=dt.UTC).isoformat()
                    writer.writerow([f"c{i}", stamp, f"{value:.5f}"])
    write_services(folder, [KEYS[i % len(KEYS)] for i in range(points)])
    return {
        "kind": "long",
        "path": "meters.csv",
        "services": "services.csv",
        "first_day": history.days[0],
        "last_day": history.days[-1],
    }


def write_services(folder: Path, feeders: list[str]) -> None:
    """A service map: one customer per load point, and the feeder of each."""
    with (folder / "services.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "load_point", "class", "scale_kw", "feeder"])
        writer.writerows(
            [f"c{i}", f"p{i}", "residential", SCALE_KW, feeder] for i, feeder in enumerate(feeders)
        )


def toml_of(raw: dict[str, Any] = RAW) -> str:
    """The config of a small fleet as a file."""
    return toml_text(raw)
