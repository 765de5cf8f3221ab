"""Public loads of a feeder: simulated customers within the declared bounds, summed load by load.

Nothing here sees a meter. The customers are those of `loads.simulate`, from a public seed. How many there are
at a load, their class, scale, bounds and power factor are what the data owner declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import steps_per_day
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.model.sample import MENDING, MOST_MENDINGS
from dp_powerflow.pipeline.customers import Services, count_customers
from dp_powerflow.pipeline.nodes import (
    classes_of_shapes,
    declared_classes,
    declared_factors,
    some_loaded_nodes,
)
from dp_powerflow.units import ComplexArray, FloatArray, IntArray, kw_to_pu

DAYS = 2
"""A weekend and a working day of winter."""
_MOST_STEPS = 24
_POOL = 200
"""Simulated customers of a class; a load has some of them, again and again if need be."""
_SEED = 18


@dataclass(frozen=True)
class Course:
    """The steps of a day that are looked at: at most one an hour.

    Attributes
    ----------
    stride : steps of the release from one to the next.
    steps : how many there are.
    """

    stride: int
    steps: int

    @classmethod
    def of(cls, config: Config) -> Course:
        """Of the steps that a config declares."""
        steps = steps_per_day(config.loads.step_minutes)
        stride = steps // _MOST_STEPS if steps % _MOST_STEPS == 0 else 1
        return cls(stride, steps // stride)


@dataclass(frozen=True, eq=False)
class PublicLoads:
    """PUBLIC. Power that the loads of a feeder draw.

    Attributes
    ----------
    drawn : complex (snapshot, load) [p.u.], `DAYS` whole days.
    nominal : complex (load,) at nominal size [p.u.].
    upper : complex (load,) with every customer at the upper bound [p.u.].
    """

    drawn: ComplexArray
    nominal: ComplexArray
    upper: ComplexArray


def summed_customers(config: Config, feeder: Feeder, services: Services) -> PublicLoads:
    """PUBLIC. Loads that are sums of customers, as on a twin."""
    counted = count_customers(config, feeder, services)
    sizes = np.zeros(len(feeder.loads), dtype=np.int64)
    sizes[counted.positions] = counted.customers
    return _public_loads(config, feeder, services, sizes)


def refuse_endless(config: Config, feeder: Feeder, services: Services) -> None:
    """Refuse bounds so wide that mending could not lower the loads they allow to the nominal ones.

    Raises
    ------
    ConfigError : it would fail once everything is paid for. Nothing was spent.
    """
    scales = services.scale_kw if config.model.use_scale and services.scale_kw is not None else np.ones(1)
    bounds = (config.model.bounds, *config.model.bounds_of_class.values())
    customers = count_customers(config, feeder, services).total
    most = customers * max(high for _, high in bounds) * float(scales.max())
    if most * MENDING**MOST_MENDINGS > max(sum(max(load.kw, 0.0) for load in feeder.loads), 1.0):
        raise ConfigError(
            f"with every customer at the upper bound the feeder has a load of {most:.3g} kW, from which no "
            "snapshot could be lowered to a load that has a power-flow solution; lower the upper bound of "
            "model.bounds or the public scales; nothing was spent"
        )


def scaled_draws(config: Config, feeder: Feeder, services: Services) -> PublicLoads:
    """PUBLIC. Loads that are one customer each, times their nominal size, as on the true network."""
    sizes = np.array([int(load.kw > 0.0) for load in feeder.loads], dtype=np.int64)
    nominal = np.array([max(load.kw, 0.0) for load in feeder.loads]) * config.nodes.scale_factor
    return _public_loads(config, feeder, services, sizes, nominal)


def corner_loads(config: Config, feeder: Feeder, services: Services) -> ComplexArray:
    """PUBLIC. Complex (corner, retained) [p.u.]: each phase at the upper bounds of its nodes, or the lower.

    On the true network, a node draws its scale times a figure within the bounds of its class. Classes that
    are drawn after the fit may be any, so their nodes have the widest bounds and the lowest power factor.
    """
    model, (nodes, nominal_kw) = config.model, some_loaded_nodes(feeder)
    if model.private_classes:
        labels = [("", *model.bounds_of_class, *model.power_factor_of_class)] * len(nodes)
    else:
        first = next((label for label in services.class_of if label is not None), ONE_CLASS)
        labels = [(label,) for label in declared_classes(config, feeder, nodes, first)]
    pairs = [[model.bounds_of_class.get(label, model.bounds) for label in own] for own in labels]
    factors = [
        [model.power_factor_of_class.get(label, model.power_factor) for label in own] for own in labels
    ]
    own, tangent = declared_factors(config, feeder, nodes), [max(map(tan_theta_of, each)) for each in factors]
    scale = nominal_kw * config.nodes.scale_factor if model.use_scale else np.ones(len(nodes))
    low, high = (
        kw_to_pu(scale * [best(pair[end] for pair in each) for each in pairs], feeder.base_mva)
        for end, best in enumerate((min, max))
    )
    # Multiples of 30 degrees, each well inside a third of the circle.
    phase = ((feeder.nominal_angle_deg[feeder.retained[nodes]] + 45.0) % 360.0 // 120.0).astype(np.int64)
    up = (np.arange(8)[:, None] >> phase) & 1
    loads = np.zeros((len(up), len(feeder.retained)), dtype=np.complex128)
    loads[:, nodes] = np.where(up, high, low) * (1.0 + 1j * np.where(np.isfinite(own), own, tangent))
    return loads


def _public_loads(
    config: Config,
    feeder: Feeder,
    services: Services,
    sizes: IntArray,
    nominal_kw: FloatArray | None = None,
) -> PublicLoads:
    """Loads of so many customers; where `nominal_kw` is given, it is their scale if the model has scales."""
    labels = _labels(config, feeder, services)
    scaled = config.model.use_scale and services.scale_kw is not None
    course, generator = Course.of(config), np.random.default_rng(_SEED)
    kw, upper = np.zeros((DAYS * course.steps, len(sizes))), np.zeros(len(sizes))
    for label in sorted(set(labels)):
        chosen = np.array([k for k, own in enumerate(labels) if own == label and sizes[k]], dtype=np.int64)
        low, high = config.model.bounds_of_class.get(label, config.model.bounds)
        each, own_kw = _pool(label, course)
        scale = np.ones(_POOL)
        if scaled:
            each = each / own_kw[:, None]
            scale = _declared_scales(services, label, generator) if nominal_kw is None else scale
        pool = scale[:, None] * np.clip(each, low, high)
        size = nominal_kw[chosen] if scaled and nominal_kw is not None else np.ones(len(chosen))
        picked = generator.multinomial(sizes[chosen], np.full(_POOL, 1.0 / _POOL))
        kw[:, chosen] = (picked @ pool).T * size
        upper[chosen] = (picked @ scale) * high * size
    tangent = _tangents(config, feeder, labels)
    drawn, most = (kw_to_pu(power, feeder.base_mva) * (1.0 + 1j * tangent) for power in (kw, upper))
    nominal = np.where(sizes > 0, feeder.nominal_load, 0.0)  # what has no customer draws nothing
    return PublicLoads(drawn, nominal, most)


@lru_cache(maxsize=8)
def _pool(label: str, course: Course) -> tuple[FloatArray, FloatArray]:
    """(customer, snapshot) [kW] of simulated customers, and their scales [kW]."""
    own = next((kind for kind in DEMO_CLASSES if kind.name == label), DEMO_CLASSES[0])
    history = simulate_load_history(
        _POOL, n_days=DAYS, step_minutes=24 * 60 // course.steps, seed=_SEED, classes=(own,)
    )
    assert history.scale_kw is not None
    each, scale_kw = np.asarray(history.load_kw).reshape(_POOL, -1), history.scale_kw
    for kept in (each, scale_kw):  # for all feeders
        kept.flags.writeable = False
    return each, scale_kw


def _declared_scales(services: Services, label: str, generator: np.random.Generator) -> FloatArray:
    """(customer,) scales [kW] drawn from those that are declared for a class, or for all."""
    assert services.scale_kw is not None
    of_class = np.array([own == label for own in services.class_of], dtype=bool)
    declared = services.scale_kw[of_class] if of_class.any() else services.scale_kw
    return np.asarray(generator.choice(np.sort(declared), size=_POOL))


def _labels(config: Config, feeder: Feeder, services: Services) -> tuple[str, ...]:
    """Class of every load, as far as it is declared; classes that are drawn count as the first one."""
    known = [label for label in services.class_of if label is not None]
    default = config.nodes.load_class or (known[0] if known else DEMO_CLASSES[0].name)
    own = {name.lower(): label for name, label in config.nodes.class_of_load.items()}
    declared = classes_of_shapes(config) | own
    return tuple(declared.get(load.name.lower(), default) for load in feeder.loads)


def _tangents(config: Config, feeder: Feeder, labels: Sequence[str]) -> FloatArray:
    """(load,) tan θ that the config declares."""
    section = config.model
    own = {name.lower(): factor for name, factor in config.nodes.power_factor_of_load.items()}
    factors = (
        own.get(load.name.lower(), section.power_factor_of_class.get(label, section.power_factor))
        for load, label in zip(feeder.loads, labels, strict=True)
    )
    return np.array([tan_theta_of(factor) for factor in factors])
