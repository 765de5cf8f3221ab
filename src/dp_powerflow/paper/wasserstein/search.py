"""The points of the Wasserstein experiment, the mechanism of each, and its distance over all runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import wasserstein_distance

from dp_powerflow._names import __version__
from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.collect import plain
from dp_powerflow.grid.feeder import Protected
from dp_powerflow.paper.datasets import Dataset, ExperimentOptions
from dp_powerflow.paper.mechanisms import Mechanism, Target
from dp_powerflow.paper.mechanisms.dp_powerflow import (
    DpPowerflow,
    TwinNetwork,
    full_support_variant,
    paper_variant,
)
from dp_powerflow.paper.mechanisms.gaussian import (
    AdmittanceNoise,
    GmmVoltageNoise,
    JointVoltageNoise,
    NoisyLoads,
)
from dp_powerflow.paper.run import Store, fingerprint_of
from dp_powerflow.paper.wasserstein.lab import DELTA_LOAD, DELTA_TAIL, Lab, Scale, needed
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.units import ComplexArray, FloatArray

STEP, TABLE = "step", "table"
"""What Gaussian noise on voltages covers: one step like DP-Powerflow's formula, or a day (√T) as in the
paper's table of sensitivities."""


@dataclass(frozen=True)
class Configuration:
    """One point of the search.

    Attributes
    ----------
    mechanism : key of `VARIANTS`.
    epsilon : target for the network.
    epsilon_load : for the loads, None where they are not protected.
    p_max : factor on the public upper margin of the loads, None where it does not matter.
    unit : `STEP` or `TABLE`.
    radius : r, None for the data set's.
    """

    mechanism: str
    epsilon: float
    epsilon_load: float | None = None
    p_max: float | None = None
    unit: str = STEP
    radius: float | None = None

    @property
    def variant(self) -> Variant:
        """Its mechanism."""
        return VARIANTS[self.mechanism]

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [self.mechanism, f"e{self.epsilon:g}"]
        parts += [] if self.epsilon_load is None else [f"l{self.epsilon_load:g}"]
        parts += [] if self.p_max is None else [f"p{self.p_max:g}"]
        parts += [] if self.radius is None else [f"r{self.radius:g}"]
        return "-".join([*parts, self.unit])


@dataclass(frozen=True)
class Variant:
    """A mechanism of the comparison.

    Attributes
    ----------
    label : in tables and figures.
    build : the mechanism at one configuration in one run.
    by_unit : whether its noise depends on the unit; if not, it is the same for `STEP` and `TABLE`.
    has_margins : whether the upper margin of the loads matters to it.
    shares_law : whether configurations with the same loads draw from one law, found once per process.
    """

    label: str
    build: Callable[[Lab, Configuration, int], Mechanism]
    by_unit: bool = False
    has_margins: bool = False
    shares_law: bool = False


def paper_mechanism(lab: Lab, config: Configuration, run: int) -> DpPowerflow:
    """DP-Powerflow, paper's variant."""
    return paper_variant(
        lab.setting,
        lab.facts,
        lab.loads(config.epsilon_load, run),
        lab.margins(config.p_max),
        Target(config.epsilon, DELTA_TAIL),
        lab.generator(f"mean of {config.name}", run),
    )


def _full_support(lab: Lab, config: Configuration, run: int) -> Mechanism:
    loads, target = lab.loads(config.epsilon_load, run), Target(config.epsilon, DELTA_TAIL)
    return full_support_variant(lab.setting, lab.facts, loads, lab.data.margins[0], target, lab.q_covariance)


def _gmm_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    loads = lab.restored_loads(config.epsilon_load, config.p_max, run)
    covered = _covered(lab, config)
    return GmmVoltageNoise(
        lab.setting, loads.law, loads.claim, lab.sensitivities, config.epsilon, lab.delta, covered
    )


def _joint_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    epsilon_load, covered = needed(config.epsilon_load), _covered(lab, config)
    return JointVoltageNoise(lab.setting, lab.sensitivities, config.epsilon, epsilon_load, lab.delta, covered)


def _noisy_loads(lab: Lab, config: Configuration, run: int) -> Mechanism:
    return NoisyLoads(
        lab.setting,
        lab.sensitivities,
        lab.data.load_range[0],
        config.epsilon,
        needed(config.epsilon_load),
        lab.delta,
        DELTA_LOAD,
        all_loads=config.unit == TABLE,
        covered=_covered(lab, config),
    )


def _admittance_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    setting = lab.setting if config.radius is None else replace(lab.setting, radius=config.radius)
    return AdmittanceNoise(setting, config.epsilon, lab.delta)


def _twin_network(lab: Lab, config: Configuration, run: int) -> Mechanism:
    loads = lab.restored_loads(config.epsilon_load, config.p_max, run)
    protected = Protected(transformers=True, capacitors=True)
    design = TwinDesign(config.epsilon, TWIN_CHANGE, protected, noise="gaussian", delta=lab.delta)
    return TwinNetwork(lab.setting, design, loads.law, loads.claim)


def _covered(lab: Lab, config: Configuration) -> int:
    return 1 if config.unit == STEP else lab.setting.steps


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "dp-powerflow": Variant("DP-Powerflow (paper)", paper_mechanism, has_margins=True),
        "full-support": Variant("DP-Powerflow (full support)", _full_support),
        "gmm-noise": Variant(
            "DP-GMM + voltage noise", _gmm_noise, by_unit=True, has_margins=True, shares_law=True
        ),
        "joint-noise": Variant("joint voltage noise", _joint_noise, by_unit=True),
        "noisy-loads": Variant("noisy loads + voltage noise", _noisy_loads, by_unit=True),
        "y-noise": Variant("noise on entries of Y (loads not protected)", _admittance_noise),
        "twin-network": Variant(
            "twin network (one line by 5 %, any number of days)", _twin_network, has_margins=True
        ),
    }
)
"""The mechanisms that are compared, in the order of the tables. To add one, add one entry."""
TWIN_CHANGE = 0.05
"""x of the twin's neighbours: one line, its figures changed by factors up to 1 + x."""
TWIN_EPSILONS = (1.0, 4.0)
"""Below the paper's grid, because the twin reaches them."""
SWEEP_EPSILON = 100.0
"""Of the sweep of r for noise on the entries of Y, as in the paper's remark."""


def configurations(scale: Scale) -> tuple[Configuration, ...]:
    """Every point of the search, those that share a fit together."""
    found: list[Configuration] = []
    for load in scale.epsilons_load:
        for epsilon in scale.epsilons:
            # Margins at the very extremes of the data are looked at for one ε_load only.
            factors = scale.p_max_factors if load == max(scale.epsilons_load) else scale.p_max_factors[-1:]
            found += [Configuration("dp-powerflow", epsilon, load, p) for p in factors]
            found.append(Configuration("full-support", epsilon, load))
            found += [Configuration("gmm-noise", epsilon, load, p) for p in scale.p_max_factors]
            # √T of noise drowns what the margins do.
            found.append(Configuration("gmm-noise", epsilon, load, scale.p_max_factors[0], TABLE))
            found += [Configuration("noisy-loads", epsilon, load, unit=unit) for unit in (STEP, TABLE)]
    # The joint noise is calibrated to min(ε_load, ε): only ε_load = ε and smaller ones differ.
    budgets = sorted({*scale.epsilons, *(load for load in scale.epsilons_load if load < min(scale.epsilons))})
    found += [
        Configuration("joint-noise", budget, budget, unit=unit)
        for unit in (STEP, TABLE)
        for budget in budgets
    ]
    found += [Configuration("y-noise", epsilon) for epsilon in scale.epsilons]
    found += [Configuration("y-noise", SWEEP_EPSILON, radius=r) for r in scale.radii_of_y_noise]
    most, widest = max(scale.epsilons_load), scale.p_max_factors[-1]
    small = tuple(epsilon for epsilon in TWIN_EPSILONS if epsilon < min(scale.epsilons))
    found += [Configuration("twin-network", epsilon, most, widest) for epsilon in (*small, *scale.epsilons)]
    return tuple(found)


@dataclass(frozen=True)
class Distance:
    """W1 of one release [p.u.].

    Attributes
    ----------
    pooled : of all nodes, days and steps flattened; NaN if no snapshot was solved.
    per_node : (node,) of each node by itself.
    failed : share of snapshots without a power-flow solution; they are left out of the distance.
    """

    pooled: float
    per_node: FloatArray
    failed: float


@dataclass(frozen=True)
class Outcome:
    """One configuration over all runs.

    Attributes
    ----------
    pooled, per_node : mean W1 over the runs [p.u.] and its standard error; `per_node` is the mean over nodes.
    failed : mean share of snapshots without a solution.
    claim : what the mechanism claims, or None with `refused` saying why it could not be built.
    noise : standard deviations of the Gaussian noise by what it is on, first run.
    floor : variance added to the log loads, mean over the runs.
    """

    configuration: Configuration
    pooled: tuple[float, float]
    per_node: tuple[float, float]
    failed: float
    claim: dict[str, Any] | None
    noise: dict[str, float]
    floor: float | None
    refused: str | None
    runs: dict[str, list[float]]


def distance(released: ComplexArray, true: ComplexArray) -> Distance:
    """W1 between |v| of two sets of snapshots, complex (day, step, node)."""
    n = true.shape[-1]
    found = np.abs(released).reshape(-1, n)
    solved = np.isfinite(found).all(axis=1)
    found, wanted = found[solved], np.abs(true).reshape(-1, n)
    failed = 1.0 - float(solved.mean())
    if not len(found):
        return Distance(math.nan, np.full(n, math.nan), failed)
    if len(found) == len(wanted):
        # Of samples of one size W1 is the mean distance of the sorted values; a fifth of scipy's time.
        per_node = np.abs(np.sort(found, axis=0) - np.sort(wanted, axis=0)).mean(axis=0)
        pooled = float(np.abs(np.sort(found, axis=None) - np.sort(wanted, axis=None)).mean())
        return Distance(pooled, np.asarray(per_node), failed)
    per_node = np.array([wasserstein_distance(found[:, k], wanted[:, k]) for k in range(n)])
    return Distance(float(wasserstein_distance(found.ravel(), wanted.ravel())), per_node, failed)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error over the runs; runs without a value are left out."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return math.nan, math.nan
    error = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return float(known.mean()), error


_CODE = 1
"""Raised whenever a change of the code makes stored results worthless."""


def new_lab(options: ExperimentOptions, scale: Scale, data: Dataset) -> Lab:
    """The lab with a store that knows what its results depend on."""
    facts = {
        "version": __version__,
        "code": _CODE,
        "data": data.identity,
        "seed": options.seed,
        "scale": asdict(scale),
    }
    folder = options.out / f"wasserstein-{data.name}{'-quick' if options.quick else ''}"
    return Lab(data, scale, options.seed, Store(folder, fingerprint_of(facts)))


def evaluate(lab: Lab, config: Configuration) -> Outcome:
    """The outcome of one configuration, stored or computed."""
    stored = lab.store.get_or(config.name, lambda: _compute(lab, config))
    runs = {
        name: [math.nan if value is None else value for value in values]
        for name, values in stored["runs"].items()
    }
    return Outcome(
        config,
        mean_and_error(runs["pooled"]),
        mean_and_error(runs["per_node"]),
        float(np.mean(runs["failed"])) if runs["failed"] else math.nan,
        stored["claim"],
        stored["noise"],
        stored["floor"],
        stored["refused"],
        runs,
    )


def _compute(lab: Lab, config: Configuration) -> dict[str, Any]:
    runs: dict[str, list[float]] = {"pooled": [], "per_node": [], "failed": []}
    claim, refused = None, None
    noise: dict[str, float] = {}
    floors: list[float] = []
    for run in range(lab.scale.runs):
        try:
            mechanism = config.variant.build(lab, config, run)
            claim = claim or plain(mechanism.cost())
        except PrivacyError as error:
            refused = str(error)
            break
        noise = noise or mechanism.noise_std
        if isinstance(mechanism, DpPowerflow):
            floors.append(mechanism.floor)
        released = mechanism.release(lab.generator(config.name, run), lab.scale.days)
        found = distance(released, lab.true_voltages)
        runs["pooled"].append(found.pooled)
        runs["per_node"].append(float(found.per_node.mean()))
        runs["failed"].append(found.failed)
    floor = float(np.mean(floors)) if floors else None
    return {"runs": plain(runs), "claim": claim, "noise": noise, "floor": floor, "refused": refused}
