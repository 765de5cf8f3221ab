"""The configurations of the Wasserstein experiment, and the mechanism of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dp_powerflow.paper.mechanisms.admittance_noise import AdmittanceNoise
from dp_powerflow.paper.mechanisms.dp_powerflow import DpPowerflow, full_support_variant, paper_variant
from dp_powerflow.paper.mechanisms.gmm_noise import GmmVoltageNoise
from dp_powerflow.paper.mechanisms.interface import Mechanism
from dp_powerflow.paper.mechanisms.joint_noise import JointVoltageNoise
from dp_powerflow.paper.mechanisms.noisy_loads import NoisyLoads
from dp_powerflow.paper.mechanisms.twin_network import TwinNetwork
from dp_powerflow.paper.wasserstein.lab import DELTA_LOAD, DELTA_TAIL, Lab, Scale, with_radius
from dp_powerflow.twin.guarantee import spread_for

STEP, TABLE = "step", "table"
"""What Gaussian noise on voltages covers: one step like DP-Powerflow's formula, or a day (√T) as in the
paper's table of sensitivities."""


@dataclass(frozen=True)
class Configuration:
    """One point of the search.

    Attributes
    ----------
    mechanism : key of `MECHANISMS`.
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
    def name(self) -> str:
        """Of its file."""
        parts = [self.mechanism, f"e{self.epsilon:g}"]
        parts += [] if self.epsilon_load is None else [f"l{self.epsilon_load:g}"]
        parts += [] if self.p_max is None else [f"p{self.p_max:g}"]
        parts += [] if self.radius is None else [f"r{self.radius:g}"]
        return "-".join([*parts, self.unit])


def _covered(lab: Lab, config: Configuration) -> int:
    return 1 if config.unit == STEP else lab.setting.steps


def paper_mechanism(lab: Lab, config: Configuration, run: int) -> DpPowerflow:
    """DP-Powerflow, paper's variant."""
    assert config.epsilon_load is not None
    assert config.p_max is not None
    return paper_variant(
        lab.setting,
        lab.facts,
        lab.law(config.epsilon_load, run),
        lab.margins(config.p_max),
        config.epsilon,
        DELTA_TAIL,
        lab.load_claim(config.epsilon_load),
        lab.generator(f"mean of {config.name}", run),
    )


def _full_support(lab: Lab, config: Configuration, run: int) -> Mechanism:
    assert config.epsilon_load is not None
    return full_support_variant(
        lab.setting,
        lab.facts,
        lab.law(config.epsilon_load, run),
        lab.data.margins[0],
        config.epsilon,
        DELTA_TAIL,
        lab.load_claim(config.epsilon_load),
        lab.q_covariance,
    )


def _gmm_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    assert config.epsilon_load is not None
    assert config.p_max is not None
    return GmmVoltageNoise(
        lab.setting,
        lab.restored_law(config.epsilon_load, config.p_max, run),
        lab.load_claim(config.epsilon_load),
        lab.sensitivities,
        config.epsilon,
        lab.delta,
        covered=_covered(lab, config),
    )


def _joint_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    assert config.epsilon_load is not None
    return JointVoltageNoise(
        lab.setting,
        lab.sensitivities,
        config.epsilon,
        config.epsilon_load,
        lab.delta,
        covered=_covered(lab, config),
    )


def _noisy_loads(lab: Lab, config: Configuration, run: int) -> Mechanism:
    assert config.epsilon_load is not None
    return NoisyLoads(
        lab.setting,
        lab.sensitivities,
        lab.data.load_range[0],
        config.epsilon,
        config.epsilon_load,
        lab.delta,
        DELTA_LOAD,
        all_loads=config.unit == TABLE,
        covered=_covered(lab, config),
    )


def _admittance_noise(lab: Lab, config: Configuration, run: int) -> Mechanism:
    return AdmittanceNoise(with_radius(lab.setting, config.radius), config.epsilon, lab.delta)


def _twin_network(lab: Lab, config: Configuration, run: int) -> Mechanism:
    assert config.epsilon_load is not None
    assert config.p_max is not None
    return TwinNetwork(
        lab.setting,
        spread_for(TWIN_CHANGE, config.epsilon, lab.delta),
        TWIN_CHANGE,
        lab.delta,
        lab.restored_law(config.epsilon_load, config.p_max, run),
        lab.load_claim(config.epsilon_load),
    )


MECHANISMS: Mapping[str, Callable[[Lab, Configuration, int], Mechanism]] = MappingProxyType(
    {
        "dp-powerflow": paper_mechanism,
        "full-support": _full_support,
        "gmm-noise": _gmm_noise,
        "joint-noise": _joint_noise,
        "noisy-loads": _noisy_loads,
        "y-noise": _admittance_noise,
        "twin-network": _twin_network,
    }
)
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
