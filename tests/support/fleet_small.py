"""A fleet small enough for tests: six feeders of two lines, one of them broken, and simulated load points."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from dp_powerflow.fleet.feeders import FleetConfig, parse_fleet_config
from dp_powerflow.loads.simulate import simulate_load_history
from support.own_config import write_meters as write_long
from support.small import RAW as RELEASE
from support.small import other_section, raw_config, toml_text
from support.small_circuits import script

KEYS = ("alder-lane", "birch-lane", "cedar-lane", "elm-lane", "fir-lane", "hazel-lane")
BROKEN = "cedar-lane"
SCALE_KW = 3.0
RAW = {**raw_config("fleet"), **{section: RELEASE[section] for section in ("model", "network")}}
"""A feeder's own model is of sixteen load points: the noise must not reach the limit of power flow."""
TWIN: dict[str, Any] = {"mode": "twin-network", **{"epsilon": 4.0, "delta": 1e-5, "change": 0.05}}


def circuit(km: float) -> str:
    """OpenDSS script of a source, two lines and a load at either end."""
    return script("tiny", km=km)


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
    write_long(folder / "meters.csv", [f"c{i}" for i in range(points)], load_kw, history.days[0])
    with (folder / "services.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "load_point", "class", "scale_kw", "feeder"])
        rows = ([f"c{i}", f"p{i}", "residential", SCALE_KW, KEYS[i % len(KEYS)]] for i in range(points))
        writer.writerows(rows)
    return {
        "kind": "long",
        "path": "meters.csv",
        "services": "services.csv",
        "first_day": history.days[0],
        "last_day": history.days[-1],
    }


def toml_of(raw: dict[str, Any] = RAW) -> str:
    """The config of a small fleet as a file."""
    return toml_text(raw)
