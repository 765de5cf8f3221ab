"""Synthetic feeders of any size, as OpenDSS scripts: for tests and benchmarks, never for a release.

A substation with a bank of regulators feeds a three-phase trunk with a second bank half way and capacitors;
single-phase laterals leave the trunk, phases in turn; every bus of a lateral has a centre-tapped
service transformer, from which triplex lines reach houses with loads of 120 V on either leg and of 240 V
across. The figures are of ordinary North American practice; no real network is behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dp_powerflow.errors import FeederError
from support.small_circuits import script

SMALLEST = 30
"""Nodes of the smallest feeder that has every kind of element."""

_HEAD_NODES = 9
_TRUNK_KM = 6.0
_LATERAL_BUSES = 5
_HOUSES = 3
_FEEDER_KW = 4500.0
_HOUSE_KW = 2.0
_CAPACITORS = 3

_TAIL = """Set VoltageBases=(115 12.47 0.208)
CalcVoltageBases
"""


def synthetic_script(nodes: int, *, seed: int = 0, whole_houses: bool = False) -> str:
    """OpenDSS script of a feeder with at least `nodes` nodes, and at most five more.

    The same arguments give the same text. The trunk has one length and the feeder one total load whatever its
    size, so that feeders of all sizes have comparable voltages.

    Parameters
    ----------
    whole_houses : whether a house is one load of 240 V, which a customer can stand for, instead of three.
    """
    if nodes < SMALLEST:
        raise FeederError(f"a synthetic feeder has at least {SMALLEST} nodes")
    return _Builder(nodes, seed, whole_houses).script()


def write_synthetic(path: Path, nodes: int, *, seed: int = 0, whole_houses: bool = False) -> Path:
    """Write `synthetic_script` to a file."""
    path.write_text(synthetic_script(nodes, seed=seed, whole_houses=whole_houses), encoding="utf-8")
    return path


@dataclass
class _Builder:
    """Adds elements until there are enough nodes."""

    nodes: int
    seed: int
    whole_houses: bool = False
    count: int = 0
    lines: list[str] = field(default_factory=list)

    def script(self) -> str:
        self._random = np.random.default_rng(self.seed)
        sections = max(1, (self.nodes - _HEAD_NODES) // (3 + _LATERAL_BUSES * (3 + 2 * _HOUSES)))
        houses = max(1, sections * _LATERAL_BUSES * _HOUSES)
        self._house_kw = min(_HOUSE_KW, _FEEDER_KW / houses)
        self.count = _HEAD_NODES  # source, head and the bus behind the first regulators
        self._regulators("head", "t0")
        bus, section = "t0", 0
        while self.count < self.nodes:
            section += 1
            bus = self._trunk(bus, section, sections)
            self._lateral(bus, section)
        return script("synthetic_head") + "\n".join(self.lines) + "\n" + _TAIL

    def _trunk(self, before: str, section: int, sections: int) -> str:
        """One three-phase section; half way, with regulators at its end; some with a capacitor."""
        bus = f"t{section}"
        km = _TRUNK_KM / sections * self._random.uniform(0.5, 1.5)
        self.lines.append(f"New Line.{bus} bus1={before} bus2={bus} linecode=trunk length={km:.5f} units=km")
        self.count += 3
        if section == sections // 2 + 1:
            self._regulators(bus, f"{bus}r")
            self.count += 3
            bus = f"{bus}r"
        if section % max(1, sections // _CAPACITORS) == 0:
            self.lines.append(f"New Capacitor.c{section} bus1={bus} phases=3 kv=12.47 kvar=200")
        return bus

    def _regulators(self, before: str, after: str) -> None:
        for phase in (1, 2, 3):
            name = f"reg_{after}_{phase}"
            self.lines += [
                f"New Transformer.{name} phases=1 windings=2 buses=({before}.{phase} {after}.{phase}) "
                "kvs=(7.2 7.2) kvas=(3333 3333) xhl=0.5 %loadloss=0.01",
                f"New RegControl.{name} transformer={name} winding=2 vreg=122 band=2 ptratio=60",
            ]

    def _lateral(self, trunk: str, section: int) -> None:
        phase, before = section % 3 + 1, trunk
        for step in range(1, _LATERAL_BUSES + 1):
            if self.count >= self.nodes:
                return
            bus = f"l{section}_{step}"
            km = self._random.uniform(0.04, 0.12)
            self.lines.append(
                f"New Line.{bus} bus1={before}.{phase} bus2={bus}.{phase} linecode=lateral length={km:.5f} "
                "units=km"
            )
            self.count += 1
            self._service(bus, phase)
            before = bus

    def _service(self, bus: str, phase: int) -> None:
        """A centre-tapped transformer and the houses behind it."""
        low = f"s{bus}"
        self.lines += [
            f"New Transformer.x{bus} phases=1 windings=3 xhl=2.04 xht=2.04 xlt=1.36",
            "~ %noloadloss=0.2 %imag=0.5",
            f"~ wdg=1 bus={bus}.{phase} kv=7.2 kva=25 %r=0.6",
            f"~ wdg=2 bus={low}.1.0 kv=0.12 kva=25 %r=1.2",
            f"~ wdg=3 bus={low}.0.2 kv=0.12 kva=25 %r=1.2",
        ]
        self.count += 2
        for number in range(1, _HOUSES + 1):
            house = f"h{bus}_{number}"
            km = self._random.uniform(0.015, 0.045)
            kw = self._house_kw * self._random.uniform(0.6, 1.4)
            self.lines += [
                f"New Line.{house} bus1={low}.1.2 bus2={house}.1.2 linecode=triplex length={km:.5f} units=km",
                *self._loads(house, kw),
            ]
            self.count += 2
            if self.count >= self.nodes:
                return

    def _loads(self, house: str, kw: float) -> list[str]:
        """A house: one load across the legs, or one on each leg and one across."""
        across = f"bus1={house}.1.2 phases=1 conn=delta kv=0.24"
        if self.whole_houses:
            return [f"New Load.{house} {across} kw={kw:.5f} pf=0.97 model=1"]
        return [
            f"New Load.{house}_1 bus1={house}.1 phases=1 kv=0.12 kw={0.3 * kw:.5f} pf=0.97 model=1",
            f"New Load.{house}_2 bus1={house}.2 phases=1 kv=0.12 kw={0.2 * kw:.5f} pf=0.97 model=1",
            f"New Load.{house}_12 {across} kw={0.5 * kw:.5f} pf=0.95 model=1",
        ]
