"""What the configurations of the Wasserstein experiment share: setting, calibration, fitted load models."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from dp_powerflow import Budget, FitOptions, StreamKey, fit
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.calibration import load_box_set
from dp_powerflow.evidence.collect import remark_calibration
from dp_powerflow.lowlevel import (
    ClassLaw,
    DaySolver,
    LoadLaw,
    LoadSampler,
    NetworkFacts,
    OperatingSet,
    PrivacyUnit,
    PublicSpread,
    Solver,
    WeakBudgetWarning,
    monte_carlo,
    network_facts,
)
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import FittedLoads, Setting, Target
from dp_powerflow_paper.mechanisms.dp_powerflow import with_restored_mean
from dp_powerflow_paper.mechanisms.gaussian import Sensitivities, printed_sensitivities, proved_sensitivities
from dp_powerflow_paper.run import Store
from dp_powerflow_paper.sources import ONE_CUSTOMER, ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.entries import Occasion

Made = TypeVar("Made")
DELTA_TAIL = 1e-5
"""Of the χ² tail in the paper's formula."""
DELTA_LOAD = 1e-5
"""Of every fit and of noise on loads."""


@dataclass(frozen=True)
class Scale:
    """Size of a run of the experiment.

    Attributes
    ----------
    epsilons, epsilons_load : targets for the network, and budgets of the fits.
    p_max_factors : on the upper margin of the loads that are drawn.
    literal_loads : budgets of the fits of the literal recipe; empty leaves it out.
    """

    runs: int
    days: int
    epsilons: tuple[float, ...]
    epsilons_load: tuple[float, ...]
    p_max_factors: tuple[float, ...]
    radii_of_y_noise: tuple[float, ...]
    calibration_days: int
    literal_loads: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Lab:
    """Everything that is computed once; fits are kept, one per ε_load, declared upper bound and run."""

    data: Dataset
    scale: Scale
    seed: int
    store: Store
    _fits: dict[tuple[float, float, int], LoadLaw] = field(default_factory=dict)
    _laws: dict[tuple[str, float, float, float, int], LoadLaw] = field(default_factory=dict)
    _voltages: dict[tuple[str, int], ComplexArray] = field(default_factory=dict)
    _made: dict[tuple[object, float, int], Any] = field(default_factory=dict)

    @cached_property
    def facts(self) -> NetworkFacts:
        """κ and the like of the network."""
        data = self.data
        return network_facts(
            data.network, volt_var=data.voltvar is not None, released=data.loaded, generation=data.generation
        )

    @cached_property
    def setting(self) -> Setting:
        """The true days of the comparison, with the calibrated operating set."""
        low, high = self.data.load_range
        days = self.data.spread_days(self.scale.days)
        return Setting(
            network=self.data.network,
            solver=self._solver,
            true_load=self.data.true_load(days),
            load_range=high - low,
            n_loads=len(self.data.loaded),
            radius=self.data.radius,
            operating=self.operating,
            generation=self.data.sun(days),
            voltvar=self.data.voltvar,
            make_solver=self.data.solver,
            tan_theta=self.data.nominal.imag / self.data.nominal.real,
        )

    @cached_property
    def operating(self) -> OperatingSet:
        """Remark mc_calibration, as written: μ₀, and the δ_M of the share of days above μ₀′.

        It is made on a law wider than all that are drawn from, and uses no draw of theirs.
        """
        return OperatingSet(**self.store.get_or("calibration", self._calibrate))

    @property
    def delta(self) -> float:
        """The common δ: that of the calibration and of the tail."""
        return self.operating.delta + DELTA_TAIL

    @cached_property
    def sensitivities(self) -> Sensitivities:
        """As printed, with the exact κ."""
        return printed_sensitivities(self.setting, self.facts)

    @cached_property
    def proved(self) -> Sensitivities | None:
        """Bounds over the load box, for comparison; None where there are none."""
        data = self.data
        largest = np.zeros(data.network.n) if data.generation is None else data.generation.peak.copy()
        largest[data.loaded] += data.margins[1] * np.abs(data.nominal)
        box = load_box_set(data.network, largest, voltvar=data.voltvar, generation=data.generation)
        if box is None:
            return None
        tangent = float(np.abs(data.nominal.imag / data.nominal.real).max())
        try:
            return proved_sensitivities(replace(self.setting, operating=box), tangent, self.facts)
        except PrivacyError:
            return None

    @cached_property
    def true_voltages(self) -> ComplexArray:
        """Complex (day, step, node) [p.u.]."""
        return self.setting.solve(self.setting.true_load)

    @cached_property
    def q_covariance(self) -> FloatArray:
        """(step, step) of the random reactive load, unit variance."""
        return PublicSpread().covariance(self.data.n_steps, self.data.history.step_minutes)

    @cached_property
    def _solver(self) -> Solver:
        return self.data.solver()

    def margins(self, p_max: float | None) -> tuple[float, float]:
        """p_min, p_max of the relative loads, with p_max widened by a factor."""
        return self.data.margins[0], self.data.margins[1] * needed(p_max)

    def generator(self, name: str, run: int) -> np.random.Generator:
        """A stream of its own for every configuration and run."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(crc32(name.encode()), run)))

    def fit_name(self, epsilon_load: float, run: int, bounds: float = 1.0) -> str:
        """Of the fit's file."""
        declared = "" if bounds == 1.0 else f"-b{bounds:g}"
        return f"fit-{epsilon_load:g}{declared}-{run}"

    def law(self, epsilon_load: float, run: int, bounds: float = 1.0) -> LoadLaw:
        """The law fitted at ε_load in one run, untruncated, with the nodes' own power factors.

        Parameters
        ----------
        bounds : factor on the upper margin that is declared to the fit.
        """
        key = (epsilon_load, bounds, run)
        if key not in self._fits:
            name = self.fit_name(epsilon_load, run, bounds)
            stored = self.store.get_or(name, lambda: self._fit(*key))
            mean, covariance = np.array(stored["mean"]), np.array(json.loads(stored["covariance"]))
            self._fits[key] = self.data.law(ClassLaw.gaussian(mean, covariance))
        return self._fits[key]

    def loads(self, epsilon_load: float | None, run: int, bounds: float = 1.0) -> FittedLoads:
        """The law fitted in one run, and what the fit promises the customers."""
        epsilon = needed(epsilon_load)
        return FittedLoads(self.law(epsilon, run, bounds), load_claim(epsilon, self.data.unit))

    def literal_loads(
        self, epsilon_load: float | None, p_max: float | None, run: int, bounds: float = 1.0
    ) -> FittedLoads:
        """The same with the law truncated to the margins, as the paper writes it."""
        epsilon, factor = needed(epsilon_load), needed(p_max)
        key = ("literal", epsilon, factor, bounds, run)
        if key not in self._laws:
            self._laws[key] = self.law(epsilon, run, bounds).within(self.margins(factor))
        return FittedLoads(self._laws[key], load_claim(epsilon, self.data.unit))

    def restored_loads(
        self, epsilon_load: float | None, p_max: float | None, run: int, bounds: float = 1.0
    ) -> FittedLoads:
        """The same with the law truncated to the margins, its mean load kept as far as it may."""
        epsilon, factor = needed(epsilon_load), needed(p_max)
        key = ("restored", epsilon, factor, bounds, run)
        if key not in self._laws:
            margins = self.margins(factor)
            generator = self.generator(f"restored {epsilon:g} {factor:g} {bounds:g}", run)
            law = with_restored_mean(self.law(epsilon, run, bounds), 0.0, margins, generator)
            self._laws[key] = law.within(margins)
        return FittedLoads(self._laws[key], load_claim(epsilon, self.data.unit))

    def made(self, make: Callable[[Occasion], Made], epsilon_load: float | None, run: int) -> Made:
        """What a model of the registry gives at ε_load, fitted in one run; its margins are its own."""
        key = (make, needed(epsilon_load), run)
        if key not in self._made:
            days = self.data.spread_days(self.scale.days)
            self._made[key] = make(
                Occasion(self.data, days, Target(key[1], DELTA_LOAD), self.seed + 1000 * run)
            )
        found: Made = self._made[key]
        return found

    def voltages(
        self, name: str, run: int, draw: Callable[[np.random.Generator], ComplexArray]
    ) -> ComplexArray:
        """Voltages that several configurations share, drawn once; those of another name are let go."""
        if self._voltages and next(iter(self._voltages))[0] != name:
            self._voltages.clear()
        if (name, run) not in self._voltages:
            self._voltages[name, run] = draw(self.generator(name, run))
        return self._voltages[name, run]

    def _calibrate(self) -> dict[str, Any]:
        generator = self.generator("calibration", 0)
        key = StreamKey.from_insecure_seed(int(generator.integers(2**31)))
        law = self.law(max(self.scale.epsilons_load), 0).with_floor(self.data.calibration_floor)
        within = law.within(self.margins(max(self.scale.p_max_factors)))
        count, sun = self.scale.calibration_days, self.data.generation
        sunny = None if sun is None else sun.drawn(generator, count)
        solver = DaySolver(self.data.network, self.data.voltvar)
        measured = monte_carlo(solver, LoadSampler(within, key, count), sunny)
        range_ = measured.operating
        c = symbols.c_star_printed(self.facts.n, range_.v_min, range_.v_max)
        kappa_r = self.facts.amplification.exact * self.data.radius
        found = remark_calibration(measured.worst_mu, c, kappa_r)
        source = f"Remark mc_calibration, {count} days, {found.exceeding} of {found.days} above μ₀′"
        return asdict(replace(range_, mu=found.mu_0, delta=found.delta, source=source))

    def _fit(self, epsilon_load: float, bounds: float, run: int) -> dict[str, Any]:
        budget = Budget(epsilon_load, DELTA_LOAD, self.data.unit)
        options = FitOptions(
            bounds=self.margins(bounds),
            use_scale=True,
            estimator=self.data.estimator,
            variance_floor=self.data.variance_floor,
        )
        key = StreamKey.from_insecure_seed(int(self.generator("fit", run).integers(2**31)))
        with warnings.catch_warnings():
            # A weak budget is part of the search; its W1 says what it is worth.
            warnings.simplefilter("ignore", WeakBudgetWarning)
            model = fit(self.data.history, budget=budget, options=options, key=key)
        part = model.days[0].components[0]
        # A string keeps the file at one line per fit rather than ten thousand.
        return {"mean": part.mean.tolist(), "covariance": json.dumps(part.covariance.tolist())}


def needed(value: float | None) -> float:
    """A figure that a configuration of this mechanism always has."""
    assert value is not None
    return value


def load_claim(epsilon_load: float, unit: PrivacyUnit) -> Guarantee:
    """What a fit claims for the customers."""
    adjacency = ONE_CUSTOMER_DAY if unit is PrivacyUnit.LOAD_POINT_DAY else ONE_CUSTOMER
    return Guarantee(epsilon_load, DELTA_LOAD, "any number of days", adjacency, True, "zCDP")
