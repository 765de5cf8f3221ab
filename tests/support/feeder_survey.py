"""Feeders that other people wrote, and what a first release on a twin of each makes of it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.grid.feeder import TAPS_DECLARED
from dp_powerflow.grid.sources import feeder_problems, open_feeder, write_taps
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.pandapower_nets import quiet
from support.small import raw_config

RAW = raw_config("survey")


def twin_config(folder: Path, feeder: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """The small release on a twin, with some keys of some sections replaced."""
    raw = {name: {**values, **sections.get(name, {})} for name, values in RAW.items()}
    return parse_config({"feeder": dict(feeder), **raw}, base=folder)


def refusal(config: Config, *, release: bool = False) -> str | None:
    """The sentence that refuses a release, planned or made; None where there is none."""
    try:
        plan(config)
        if release:
            run_release(config, workers=1)
    except DpPowerflowError as error:
        return str(error)
    return None


# -------------------------------------------------------------------------------------- remedies


@dataclass
class Remedied:
    """A feeder file, and what its refusals ask for.

    Attributes
    ----------
    feeder, network : sections of the config, as far as a remedy states them.
    applied : what was done, in words.
    """

    folder: Path
    source: Path | str
    feeder: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)

    def follow(self, reasons: tuple[str, ...]) -> None:
        """Do what the sentences say, and nothing else."""
        for reason in reasons:
            done = [words for words, act in self._acts(reason).items() if words in reason and act()]
            assert done, f"no remedy is known for: {reason}"
            self.applied += [words for words in done if words not in self.applied]

    def config(self) -> Config:
        return twin_config(self.folder, {"source": str(self.source), **self.feeder}, network=self.network)

    def _acts(self, reason: str) -> dict[str, Any]:
        return {
            "feeder.drop_islanded = true": lambda: self.feeder.update(drop_islanded=True) is None,
            "network.charging_epsilon": lambda: self.network.update(charging_epsilon=0.5) is None,
            "set feeder.taps to FILE": self._declare_taps,
            "set its tap_pos to tap_neutral": self._neutral_angles,
            "set its shift_degree to a multiple of 30": self._vector_groups,
            "with step = max_step": lambda: self._edit("shunt", "max_step", "step"),
            "state its set point vm_pu": lambda: self._round("ext_grid", "vm_pu"),
            "state va_degree as multiples of 30": self._angles_of_sources,
            "add or enable loads": lambda: self._append("BatchEdit Load..* enabled=yes"),
            "whose figures would stay as they are; disable it": lambda: self._append(
                "Disable Fault.SLGFault"
            ),
            "Error in Open Command: Circuit Element not found": lambda: self._without_line(reason),
        }

    def _declare_taps(self) -> bool:
        path = self.folder / "taps.csv"
        taps = open_feeder(str(self.source), drop_islanded=True).taps
        write_taps(path, taps, origin=f"{TAPS_DECLARED}the author of the net")
        self.feeder["taps"] = str(path)
        return True

    def _neutral_angles(self) -> bool:
        def change(net: Any) -> None:
            for kind in ("trafo", "trafo3w"):
                by_ratio = net[kind]["tap_step_degree"].fillna(0.0) == 0.0
                net[kind]["tap_pos"] = net[kind]["tap_pos"].where(by_ratio, net[kind]["tap_neutral"])

        return self._changed(change)

    def _vector_groups(self) -> bool:
        def change(net: Any) -> None:
            net.trafo["shift_degree"] = (net.trafo["shift_degree"] / 30.0).round() * 30.0

        return self._changed(change)

    def _angles_of_sources(self) -> bool:
        def change(net: Any) -> None:
            for kind in ("ext_grid", "gen"):
                if "va_degree" in net[kind]:
                    net[kind]["va_degree"] = (net[kind]["va_degree"] / 30.0).round() * 30.0

        return self._changed(change)

    def _edit(self, kind: str, column: str, like: str) -> bool:
        return self._changed(lambda net: net[kind].__setitem__(column, net[kind][like]))

    def _round(self, kind: str, column: str) -> bool:
        return self._changed(lambda net: net[kind].__setitem__(column, net[kind][column].round(4)))

    def _changed(self, change: Any) -> bool:
        with quiet() as pp:
            net = pp.from_json(str(self.source))
            change(net)
            pp.to_json(net, str(self.source))
        return True

    def _append(self, command: str) -> bool:
        self._rewrite([*self._lines(), command])
        return True

    def _without_line(self, reason: str) -> bool:
        (number,) = re.findall(r"rejects line (\d+) of", reason)
        lines = self._lines()
        lines[int(number) - 1] = "! removed"
        self._rewrite(lines)
        return True

    def _lines(self) -> list[str]:
        return Path(self.source).read_text(encoding="latin-1").splitlines()

    def _rewrite(self, lines: list[str]) -> None:
        """In place: the file is a copy, and so are those that it names."""
        Path(self.source).write_text("\n".join(lines) + "\n", encoding="latin-1")


def remedied(folder: Path, source: Path | str) -> Remedied:
    """The feeder with everything done that `feeder_problems` asks for at once."""
    found = Remedied(folder, source)
    reasons = feeder_problems(source)
    assert len(set(reasons)) == len(reasons)
    found.follow(reasons)
    return found


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


def pandapower_makers() -> list[str]:
    """Functions of `pandapower.networks` that make a net."""
    with quiet():
        networks = importlib.import_module("pandapower.networks")
    return sorted(
        name for name, made in vars(networks).items() if inspect.isfunction(made) and name.startswith(_NETS)
    )


def save_pandapower_net(name: str, path: Path) -> None:
    """Save one of pandapower's own nets."""
    with quiet() as pp:
        made = getattr(importlib.import_module("pandapower.networks"), name)()
        pp.to_json(made[0] if isinstance(made, list | tuple) else made, str(path))


def simbench_codes() -> Iterator[str]:
    """Codes of SimBench: all scenarios of one level, today's of several; none with every grid of a level."""
    with quiet():
        codes = importlib.import_module("simbench").collect_all_simbench_codes()
    one_level = ("1-LV-", "1-MV-", "1-HV-", "1-EHV-")
    return (
        code
        for code in codes
        if code.startswith(one_level) or (code.endswith("-0-sw") and "-all-" not in code)
    )
