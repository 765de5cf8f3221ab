"""A release small enough for tests: IEEE 13, hourly steps, some hundred simulated load points.

No draw of it may lack a power-flow solution, whatever the key: there are enough load points for the noise of
the fit, and the nodes carry half of their nominal load. Over 200 keys of 700 days no node falls below 0.93
p.u., and with all loads doubled every snapshot still solves.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config

CONFIGS = Path(__file__).with_name("configs")


def raw_config(name: str) -> dict[str, Any]:
    """The sections of a config of the folder `configs`."""
    return tomllib.loads((CONFIGS / f"{name}.toml").read_text(encoding="utf-8"))


RAW = raw_config("small")
CORNERS = "dp_powerflow.pipeline.modes.true.refuse_unsolved_corners"
"""Refuses loads without solution beforehand; days of bound 'full-support' may pass the bounds it solves."""
READING = "dp_powerflow.pipeline.plan.check_reading"
"""Refuses a feeder that OpenDSS cannot solve, or solves otherwise."""


TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "id": "t1", "epsilon": 4.0, "delta": 1e-5, "change": 0.05},
    "released": "all",
}
"""A section [network]: a twin as operated."""
TABLES: dict[str, Any] = {**TWIN, "controls": "frozen", "publish": "network and loads", "graph_days": 3}
"""Another: a frozen twin that is published with its loads."""


def small_raw(**sections: dict[str, Any]) -> dict[str, Any]:
    """The sections of the small release, with some keys of some of them replaced.

    On a twin a load is the sum of a few customers, next to nothing for its lines.
    """
    base = RAW
    if sections.get("network", {}).get("mode") == "twin-network":
        base = RAW | {"nodes": {"load_class": "residential", "kw_per_customer": 10.0}}
    raw = {name: other_section(values, sections.get(name, {})) for name, values in base.items()}
    return {**raw, **{name: values for name, values in sections.items() if values and name not in raw}}


def small_config(folder: Path, **sections: dict[str, Any]) -> Config:
    """The small release in a folder, with some keys of some sections replaced."""
    return parse_config(small_raw(**sections), base=folder)


def other_section(values: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A section with some keys replaced; one of another network mode stands for itself."""
    return own if own.get("mode", values.get("mode")) != values.get("mode") else {**values, **own}


def repeated(text: Any) -> str:
    """A text of a JSON file, which may be a pair: a sign, and how often it comes."""
    return text if isinstance(text, str) else str(text[0] * text[1])


def tree_hash(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def toml_text(tree: Any) -> str:
    """A config as TOML; what has no place in TOML is written as text."""
    lines = [
        f"{_key(key)} = {toml_value(value)}" for key, value in tree.items() if not isinstance(value, dict)
    ]
    for name, table in tree.items():
        if isinstance(table, dict):
            lines.append(f"[{_key(name)}]")
            lines += [f"{_key(key)} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return json.dumps("none" if value is None else value)


def _key(key: Any) -> str:
    text = str(key)
    return text if text.isascii() and text.replace("_", "").isalnum() else json.dumps(text)


def write_toml(path: Path, raw: dict[str, Any]) -> Path:
    """A config file."""
    path.write_text(toml_text(raw), encoding="utf-8")
    return path
