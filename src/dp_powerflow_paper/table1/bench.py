"""What the rows of the table share on one data set: true days, targets, fits of the paper's mechanism;
and one release of a composition, with the loads and the network behind its voltages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from zlib import crc32

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.lowlevel import Levels, Network, Rebuilder, scaled
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import Setting, Target, solve_loads
from dp_powerflow_paper.run import Store
from dp_powerflow_paper.sources import UnusableDrawError
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.table1.measures import Truth
from dp_powerflow_paper.wasserstein import lab as wasserstein
from dp_powerflow_paper.wasserstein.lab import Lab

MATCHED = Target(1.0, 1e-5)
"""Of every row: (ε, δ) for one customer-day and for one line."""
LINE_CHANGE = 0.05
"""Of one line: the network's neighbours in the matched unit."""
NETWORK_TARGET = 25.0
"""ε of one step at which DP-Powerflow's formula can be met at all: the smallest of the paper's grid."""
P_MAX = 1.5
"""Public factor on the largest load: declared to DP-Powerflow's fits, and what their draws are cut to."""
TEST_CHANGE = 1.5
"""Factor on the line that is changed to see whether a release depends on the network."""


@dataclass(frozen=True)
class Scale:
    """Size of a run.

    Attributes
    ----------
    days : that are compared.
    runs : releases of every row.
    trainings : models that are trained for a row that needs an extra; its runs are shared out among them.
    calibration_days : of the Monte Carlo calibration behind DP-Powerflow's formula.
    audits : releases under each of two neighbours.
    quick : whether models with a quicker training take it.
    """

    days: int
    runs: int
    trainings: int
    calibration_days: int
    audits: int
    quick: bool = False


@dataclass(frozen=True, eq=False)
class Bench:
    """One data set.

    Attributes
    ----------
    store : of fits and of the calibration.
    """

    data: Dataset
    scale: Scale
    seed: int
    store: Store

    @cached_property
    def truth(self) -> Truth:
        """The true days."""
        return Truth(self.data, self.data.spread_days(min(self.scale.days, self.data.n_days)))

    @cached_property
    def lab(self) -> Lab:
        """Fits and settings as in the Wasserstein experiment."""
        scale = wasserstein.Scale(
            runs=self.scale.runs,
            days=len(self.truth.days),
            epsilons=(NETWORK_TARGET,),
            epsilons_load=(MATCHED.epsilon,),
            p_max_factors=(P_MAX,),
            radii_of_y_noise=(),
            calibration_days=self.scale.calibration_days,
        )
        return Lab(self.data, scale, self.seed, self.store)

    @property
    def setting(self) -> Setting:
        """The true days with the calibrated operating set."""
        return self.lab.setting

    def occasion(self, fit: int, target: Target = MATCHED) -> Occasion:
        """What a part of the registry is made from, for one of several fits."""
        return Occasion(self.data, self.truth.days, target, seed=self.seed + 1000 * fit)

    def generator(self, name: str, run: int) -> np.random.Generator:
        """A stream of its own for every row and run."""
        words = np.random.SeedSequence(self.seed, spawn_key=(crc32(name.encode()), run))
        return np.random.default_rng(words)

    def on(self, feeder: Feeder) -> Bench:
        """The same loads and fits on another network."""
        return replace(self, data=replace(self.data, feeder=feeder, network=Network(feeder)))

    @cached_property
    def line_radius(self) -> float:
        """Largest ‖ΔY_full‖_F of one line whose admittance changes by 5 % [p.u.]: r of the matched unit."""
        lines = [line for line in self.data.feeder.lines if not line.is_switch]
        return max(float(np.linalg.norm(scaled(line, LINE_CHANGE).change)) for line in lines)

    def with_line_radius(self) -> Bench:
        """The same with the r of the matched unit."""
        return replace(self, data=replace(self.data, radius=self.line_radius))

    @cached_property
    def rebuilt(self) -> tuple[Feeder, Feeder]:
        """The network built from its own figures, and with one line changed: the pair of the test of Y."""
        source = Rebuilder(self.data.feeder, self.data.protected)
        levels = source.parameters().levels
        line = self.tested_line
        return source.build(levels), source.build(with_line(levels, line, TEST_CHANGE))

    @cached_property
    def tested_line(self) -> str:
        """Name of the line that is changed: the first, next to the source, which carries the whole load."""
        levels = Rebuilder(self.data.feeder, self.data.protected).parameters().levels
        named = {key.element for key in levels}
        return next(line.name for line in self.data.feeder.lines if line.name in named and not line.is_switch)


def with_line(levels: Levels, element: str, factor: float) -> Levels:
    """All figures of one line times a factor."""
    return {key: level * factor if key.element == element else level for key, level in levels.items()}


@dataclass(frozen=True, eq=False)
class Released:
    """One release.

    Attributes
    ----------
    load, voltages : complex (day, step, node) [p.u.]; voltages are NaN where power flow failed.
    feeder : network that was solved on; None if the noise left none.
    """

    load: ComplexArray
    voltages: ComplexArray
    feeder: Feeder | None


def release(made: Composition, generator: np.random.Generator, days: int) -> Released:
    """The voltages of `Composition.release`, bit for bit."""
    try:
        feeder = made.network.draw(generator)
        solver = made.network.solver(feeder, made.setting)
    except UnusableDrawError:
        load = made.loads.draw(generator, days)
        return Released(load, np.full_like(load, np.nan + 1j * np.nan), None)
    load = made.loads.draw(generator, days)
    voltages = solve_loads(solver, load, made.setting.generation)
    if made.noise is not None:
        voltages = made.noise.add(voltages, generator)
    return Released(load, voltages, feeder)
