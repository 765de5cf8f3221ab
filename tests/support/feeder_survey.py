"""Feeders that other people wrote, and what a first release on a twin of each makes of it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.run import run_release
from support.pandapower_nets import quiet

STEP_MINUTES = 240
_LARGE = ("complete_data", "EHVHVMVLV")

RAW: dict[str, dict[str, Any]] = {
    "loads": {"kind": "simulated", "load_points": 400, "days": 6, "step_minutes": STEP_MINUTES},
    "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
    "nodes": {"load_class": "residential"},
    "network": {"mode": "twin-network", "id": "twin", "epsilon": 1.0},
    "release": {"id": "first", "days": 2, "output": "out", "state": "state", "insecure_seed": 7},
}
"""A release of two days of four-hour steps; the feeder is missing."""


@dataclass(frozen=True)
class Outcome:
    """What became of a release.

    Attributes
    ----------
    refusal : the sentence that refused it; None where it was made.
    spent : whether it was refused after something was charged.
    """

    refusal: str | None
    spent: bool = False

    @property
    def works(self) -> bool:
        return self.refusal is None


def twin_config(folder: Path, feeder: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """The small release on a twin, with some keys of some sections replaced."""
    raw = {name: {**values, **sections.get(name, {})} for name, values in RAW.items()}
    return parse_config({"feeder": dict(feeder), **raw}, base=folder)


def planned(config: Config) -> Outcome:
    """Whether the release would be refused; nothing is spent."""
    try:
        plan(config)
    except DpPowerflowError as error:
        return Outcome(str(error))
    return Outcome(None)


def released(config: Config) -> Outcome:
    """Plan the release, then make it."""
    found = planned(config)
    if not found.works:
        return found
    try:
        run_release(config, workers=1)
    except DpPowerflowError as error:
        return Outcome(str(error), spent=True)
    return Outcome(None)


# ------------------------------------------------------------------------------------------ feeders


def opendss_masters(cases: Path) -> list[Path]:
    """Files below a folder that define a circuit."""
    files = sorted(path for path in cases.rglob("*") if path.suffix.lower() == ".dss")
    return [path for path in files if _defines_a_circuit(path)]


def _defines_a_circuit(path: Path) -> bool:
    lines = (line.strip().lower() for line in path.read_text(encoding="latin-1").splitlines())
    return any(line.startswith("new") and "circuit." in line.split("!")[0] for line in lines)


_NETS = (
    *("create_cigre_network", "create_kerber", "kb_extrem", "create_dickert_lv_network"),
    *("create_synthetic_voltage_control_lv_network", "case", "example_", "simple_", "panda_four"),
    *("four_loads", "iceland", "GB", "ieee_european", "lv_schutterwald", "mv_oberrhein"),
)


def pandapower_makers() -> dict[str, dict[str, Any]]:
    """Functions of `pandapower.networks` that make a net → a variant of their arguments, by a name."""
    with quiet():
        networks = importlib.import_module("pandapower.networks")
    found = {
        name: {}
        for name, made in vars(networks).items()
        if inspect.isfunction(made) and name.startswith(_NETS)
    }
    return dict(sorted(found.items()))


def pandapower_net(name: str, **arguments: Any) -> Any:
    """One of pandapower's own nets."""
    with quiet():
        return getattr(importlib.import_module("pandapower.networks"), name)(**arguments)


def simbench_codes() -> Iterator[str]:
    """Codes of SimBench, but for the whole of Germany's levels at once."""
    with quiet():
        codes = importlib.import_module("simbench").collect_all_simbench_codes()
    return (code for code in codes if not any(word in code for word in _LARGE))
