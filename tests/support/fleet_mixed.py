"""A fleet whose feeders have little in common: with transformers, capacitors and PV systems, and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dp_powerflow.fleet.feeders import FleetConfig, parse_fleet_config
from support.small import raw_config

HEAD = "Clear\nNew Circuit.tiny basekv=12.47 pu=1.0 R1=0.01 X1=0.05 R0=0.01 X0=0.05\n"
TAIL = "Set VoltageBases=[12.47 0.48]\nCalcVoltageBases\n"
LINE = "phases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 units=km"
PARTS = {
    "transformer": "New Transformer.step phases=3 windings=2 buses=[b c] conns=[wye wye] kvs=[12.47 0.48] "
    "kvas=[500 500] xhl=4 %rs=[0.6 0.6]\nNew Load.lc bus1=c phases=3 kv=0.48 kw=90 kvar=20\n",
    "capacitor": "New Capacitor.bank bus1=b phases=3 kvar=60 kv=12.47\n",
    "pv": "New PVSystem.roof bus1=b phases=3 kv=12.47 kva=50 pmpp=40 irradiance=1\n",
}
MIXED = {
    "bare": (),
    "with-bank": ("capacitor",),
    "with-all": ("transformer", "capacitor", "pv"),
}


def circuit(parts: tuple[str, ...], *, more: str = "", laterals: int = 0) -> str:
    """OpenDSS script of a source, two lines, a load at either end, and some of `PARTS`.

    Parameters
    ----------
    laterals : further lines with a load; feeders with different numbers have different frames.
    """
    lines = (
        f"New Line.first bus1=sourcebus bus2=a length=1.0 {LINE}\n"
        f"New Line.second bus1=a bus2=b length=1.5 {LINE}\n"
        "New Load.la bus1=a phases=3 kv=12.47 kw=300 kvar=90\n"
        "New Load.lb bus1=b phases=3 kv=12.47 kw=200 kvar=60\n"
    )
    for k in range(laterals):
        lines += f"New Line.side{k} bus1=a bus2=s{k} length=0.4 {LINE}\n"
        lines += f"New Load.ls{k} bus1=s{k} phases=3 kv=12.47 kw=60 kvar=20\n"
    return HEAD + lines + "".join(PARTS[part] for part in parts) + more + TAIL


def mixed_scripts() -> dict[str, str]:
    """Key → script of feeders with different frames."""
    return {key: circuit(parts, laterals=k) for k, (key, parts) in enumerate(MIXED.items())}


def write_feeders(folder: Path, scripts: dict[str, str]) -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    for key, script in scripts.items():
        (folder / "feeders" / f"{key}.dss").write_text(script)


def raw(**sections: dict[str, Any]) -> dict[str, Any]:
    """The config of the fleet, on twins that protect all kinds of figures."""
    content = raw_config("mixed")
    return content | {name: {**content.get(name, {}), **values} for name, values in sections.items()}


def mixed_config(folder: Path, **sections: dict[str, Any]) -> FleetConfig:
    return parse_fleet_config(raw(**sections), base=folder)
