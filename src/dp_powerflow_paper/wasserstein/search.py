"""The points of the Wasserstein experiment, and the mechanism of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dp_powerflow import TwinDesign
from dp_powerflow_paper.mechanisms import FittedLoads, Target
from dp_powerflow_paper.mechanisms.dp_powerflow import (
    DpPowerflow,
    full_support_variant,
    literal_variant,
    on_twin,
    paper_variant,
)
from dp_powerflow_paper.mechanisms.gaussian import (
    NetworkTarget,
    admittance_noise,
    joint_voltage_noise,
    noisy_loads,
    voltage_noise,
)
from dp_powerflow_paper.mechanisms.noise import PAPER_STEP, STEP, UNITS, NoiseUnit
from dp_powerflow_paper.sources import LoadMechanism
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import Occasion
from dp_powerflow_paper.sources.loads import LawLoads
from dp_powerflow_paper.sources.models import (
    HEADROOM,
    class_law,
    class_loads,
    margins_of,
    mixture_loads,
    spread_kmeans_loads,
)
from dp_powerflow_paper.wasserstein.lab import DELTA_LOAD, DELTA_TAIL, Lab, Scale, load_claim, needed


@dataclass(frozen=True)
class Configuration:
    """One point of the search.

    Attributes
    ----------
    mechanism : key of `VARIANTS`.
    epsilon : target for the network; None where it is an outcome.
    epsilon_load : for the loads, None where they are not protected.
    p_max : factor on the public upper margin that drawn loads are cut to, None where it does not matter.
    unit : what Gaussian noise covers.
    radius : r, None for the data set's.
    bounds : factor on the upper margin that is declared to the fit.
    """

    mechanism: str
    epsilon: float | None
    epsilon_load: float | None = None
    p_max: float | None = None
    unit: NoiseUnit = STEP
    radius: float | None = None
    bounds: float = 1.0

    @property
    def variant(self) -> Variant:
        """Its mechanism."""
        return VARIANTS[self.mechanism]

    @property
    def target(self) -> float:
        """ε that it is made for."""
        return needed(self.epsilon)

    @property
    def loads_name(self) -> str:
        """Of its loads."""
        parts = [] if self.epsilon_load is None else [f"l{self.epsilon_load:g}"]
        parts += [] if self.p_max is None else [f"p{self.p_max:g}"]
        parts += [] if self.bounds == 1.0 else [f"b{self.bounds:g}"]
        return "-".join(parts)

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [self.mechanism]
        parts += [] if self.epsilon is None else [f"e{self.epsilon:g}"]
        parts += [self.loads_name] if self.loads_name else []
        parts += [] if self.radius is None else [f"r{self.radius:g}"]
        return "-".join([*parts, self.unit.key])

    @property
    def voltages_name(self) -> str | None:
        """Of the voltages before noise that it shares with others; None if it shares none."""
        kind = self.variant.shares
        return None if kind is None else kind(self)


@dataclass(frozen=True)
class Variant:
    """A mechanism of the comparison.

    Attributes
    ----------
    label : in tables and figures.
    build : the mechanism at one configuration in one run.
    units : in which its noise differs.
    has_margins : whether the upper margin of the loads matters to it.
    shares : name of the voltages before noise, which configurations share; None if it shares none.
    fitted : whether it draws loads from a fitted model.
    """

    label: str
    build: Callable[[Lab, Configuration, int], Composition]
    units: tuple[NoiseUnit, ...] = (STEP,)
    has_margins: bool = False
    shares: Callable[[Configuration], str] | None = None
    fitted: bool = True

    def own(self, unit: NoiseUnit) -> NoiseUnit:
        """The unit whose noise it has in a column: the column's, or the nearest that matters to it."""
        if unit in self.units:
            return unit
        return next((own for own in self.units if own.calibration == unit.calibration), self.units[0])


def _literal(lab: Lab, config: Configuration, run: int) -> DpPowerflow:
    loads = lab.loads(config.epsilon_load, run, config.bounds)
    return literal_variant(lab.setting, lab.facts, loads, lab.margins(config.p_max), DELTA_TAIL)


def paper_mechanism(lab: Lab, config: Configuration, run: int) -> DpPowerflow:
    """DP-Powerflow with our floor."""
    return paper_variant(
        lab.setting,
        lab.facts,
        lab.loads(config.epsilon_load, run, config.bounds),
        lab.margins(config.p_max),
        Target(config.target, DELTA_TAIL),
        lab.generator(f"mean of {config.name}", run),
    )


def _full_support(lab: Lab, config: Configuration, run: int) -> Composition:
    loads, target = lab.loads(config.epsilon_load, run), Target(config.target, DELTA_TAIL)
    return full_support_variant(lab.setting, lab.facts, loads, lab.data.margins[0], target, lab.q_covariance)


def _gmm_noise(lab: Lab, config: Configuration, run: int) -> Composition:
    loads = lab.restored_loads(*_loads_of(config, run))
    return _noisy_model(lab, config, LawLoads(loads.law, loads.claim))


def _literal_noise(lab: Lab, config: Configuration, run: int) -> Composition:
    loads = lab.literal_loads(*_loads_of(config, run))
    return _noisy_model(lab, config, LawLoads(loads.law, loads.claim))


def _loads_of(config: Configuration, run: int) -> tuple[float | None, float | None, int, float]:
    return config.epsilon_load, config.p_max, run, config.bounds


def _network_target(lab: Lab, config: Configuration) -> NetworkTarget:
    return NetworkTarget(lab.sensitivities, config.target, lab.delta, config.unit)


def _noisy_model(lab: Lab, config: Configuration, loads: LoadMechanism) -> Composition:
    return voltage_noise(lab.setting, _network_target(lab, config), loads, "DP-GMM + voltage noise")


def class_mechanism(lab: Lab, epsilon_load: float | None, run: int) -> DpPowerflow:
    """Algorithm 1 as printed with L classes by private PARTITION."""
    law = lab.made(class_law, epsilon_load, run)
    loads = FittedLoads(law, load_claim(needed(epsilon_load), lab.data.unit))
    return literal_variant(lab.setting, lab.facts, loads, margins_of(lab.data), DELTA_TAIL)


def _literal_classes(lab: Lab, config: Configuration, run: int) -> DpPowerflow:
    return class_mechanism(lab, config.epsilon_load, run)


def _with_noise(label: str, make: Callable[[Occasion], LoadMechanism]) -> Variant:
    """A model of the registry, with noise on the voltages; it makes its own fits."""

    def build(lab: Lab, config: Configuration, run: int) -> Composition:
        return _noisy_model(lab, config, lab.made(make, config.epsilon_load, run))

    def shares(config: Configuration) -> str:
        return f"voltages of {label}-{config.loads_name}"

    return Variant(f"{label} + voltage noise", build, UNITS, shares=shares, fitted=False)


def _gaussian_voltages(lab: Lab, config: Configuration, run: int) -> Composition:
    return voltage_noise(lab.setting, _network_target(lab, config))


def _joint_noise(lab: Lab, config: Configuration, run: int) -> Composition:
    return joint_voltage_noise(lab.setting, _network_target(lab, config), needed(config.epsilon_load))


def _noisy_loads(lab: Lab, config: Configuration, run: int) -> Composition:
    target, load = _network_target(lab, config), needed(config.epsilon_load)
    return noisy_loads(lab.setting, target, lab.data.load_range[0], load, DELTA_LOAD)


def _admittance_noise(lab: Lab, config: Configuration, run: int) -> Composition:
    setting = lab.setting if config.radius is None else replace(lab.setting, radius=config.radius)
    return admittance_noise(setting, config.target, lab.delta, config.unit)


def _twin_network(lab: Lab, config: Configuration, run: int) -> Composition:
    loads = lab.restored_loads(*_loads_of(config, run))
    design = TwinDesign(config.target, TWIN_CHANGE, lab.data.protected, noise="gaussian", delta=lab.delta)
    return on_twin(lab.setting, design, LawLoads(loads.law, loads.claim))


def _of_literal(config: Configuration) -> str:
    return f"voltages of literal-{config.loads_name}"


def _of_restored(config: Configuration) -> str:
    return f"voltages of restored-{config.loads_name}"


def _of_true_loads(config: Configuration) -> str:
    return "voltages of true loads"


def _of_noisy_loads(config: Configuration) -> str:
    return f"voltages of noisy-{config.loads_name}-{config.unit.key}"


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "literal": Variant("DP-Powerflow (literal)", _literal, has_margins=True, shares=_of_literal),
        "dp-powerflow": Variant(
            "DP-Powerflow (floor and restored mean: ours)", paper_mechanism, has_margins=True
        ),
        "full-support": Variant("DP-Powerflow (full support: ours)", _full_support),
        "literal-noise": Variant(
            "DP-GMM + voltage noise (literal loads)", _literal_noise, UNITS, True, _of_literal
        ),
        "gmm-noise": Variant(
            "DP-GMM + voltage noise (restored mean: ours)", _gmm_noise, UNITS, True, _of_restored
        ),
        "literal-classes": Variant(
            "DP-Powerflow (literal, 4 private classes)", _literal_classes, fitted=False
        ),
        "classes-noise": _with_noise("DP-GMM, 4 private classes", class_loads),
        "mixture-noise": _with_noise("DP-GMM, mixture of 4", mixture_loads),
        "kmeans-noise": _with_noise("DP K-means with its spread", spread_kmeans_loads),
        "gaussian-voltages": Variant(
            "Gaussian on voltages (loads not protected)",
            _gaussian_voltages,
            UNITS,
            shares=_of_true_loads,
            fitted=False,
        ),
        "joint-noise": Variant(
            "joint voltage noise", _joint_noise, UNITS, shares=_of_true_loads, fitted=False
        ),
        "noisy-loads": Variant(
            "noisy loads + voltage noise", _noisy_loads, UNITS, shares=_of_noisy_loads, fitted=False
        ),
        "y-noise": Variant(
            "noise on entries of Y (loads not protected)", _admittance_noise, (STEP, PAPER_STEP), fitted=False
        ),
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
    """Every point of the search, those that share voltages together."""
    return (
        *_literal_points(scale),
        *_our_points(scale),
        *_model_points(scale),
        *_true_load_points(scale),
        *_twin_points(scale),
    )


def _margins(scale: Scale) -> list[tuple[float, float]]:
    """(p_max, bounds): upper margins of draws and of the fit, the same, and the fit's narrower one."""
    factors = scale.p_max_factors
    return [(factor, factor) for factor in factors] + [(factor, 1.0) for factor in factors if factor != 1.0]


def _literal_points(scale: Scale) -> list[Configuration]:
    """The paper's recipe: ε_load is searched over, and ε is what it gives."""
    found = []
    for load in scale.literal_loads:
        for p_max, bounds in _margins(scale):
            point = Configuration("literal", None, load, p_max, bounds=bounds)
            noisy = replace(point, mechanism="literal-noise")
            found.append(point)
            found += [
                replace(noisy, epsilon=epsilon, unit=unit) for unit in UNITS for epsilon in scale.epsilons
            ]
    return found


def _our_points(scale: Scale) -> list[Configuration]:
    """Mechanisms that read a model or the loads, at every ε_load."""
    found = []
    for load in scale.epsilons_load:
        for p_max, bounds in _margins(scale):
            point = Configuration("gmm-noise", None, load, p_max, bounds=bounds)
            found += [
                replace(point, epsilon=epsilon, unit=unit) for unit in UNITS for epsilon in scale.epsilons
            ]
            # Draws within margins at the very extremes of the data are looked at for one ε_load only.
            if p_max == scale.p_max_factors[-1] or load == max(scale.epsilons_load):
                ours = replace(point, mechanism="dp-powerflow")
                found += [replace(ours, epsilon=epsilon) for epsilon in scale.epsilons]
        found += [Configuration("full-support", epsilon, load) for epsilon in scale.epsilons]
        found += [
            Configuration("noisy-loads", epsilon, load, unit=unit)
            for unit in UNITS
            for epsilon in scale.epsilons
        ]
    return found


def _model_points(scale: Scale) -> list[Configuration]:
    """Models with classes, mixtures or centroids; with noise at the largest ε_load only."""
    found = [Configuration("literal-classes", None, load, HEADROOM) for load in scale.literal_loads]
    return found + [
        Configuration(mechanism, epsilon, max(scale.epsilons_load), HEADROOM, unit)
        for mechanism in ("classes-noise", "mixture-noise", "kmeans-noise")
        for unit in UNITS
        for epsilon in scale.epsilons
    ]


def _true_load_points(scale: Scale) -> list[Configuration]:
    # The joint noise is calibrated to min(ε_load, ε): only ε_load = ε and smaller ones differ.
    budgets = sorted({*scale.epsilons, *(load for load in scale.epsilons_load if load < min(scale.epsilons))})
    found = [
        Configuration("gaussian-voltages", epsilon, unit=unit) for unit in UNITS for epsilon in scale.epsilons
    ]
    found += [Configuration("joint-noise", budget, budget, unit=unit) for unit in UNITS for budget in budgets]
    units = VARIANTS["y-noise"].units
    found += [Configuration("y-noise", epsilon, unit=unit) for unit in units for epsilon in scale.epsilons]
    found += [Configuration("y-noise", SWEEP_EPSILON, radius=r) for r in scale.radii_of_y_noise]
    return found


def _twin_points(scale: Scale) -> list[Configuration]:
    most, widest = max(scale.epsilons_load), scale.p_max_factors[-1]
    small = tuple(epsilon for epsilon in TWIN_EPSILONS if epsilon < min(scale.epsilons))
    return [
        Configuration("twin-network", epsilon, most, widest, bounds=widest)
        for epsilon in (*small, *scale.epsilons)
    ]
