"""From a config to the objects it names: feeder, history, options of the fit, public facts of the nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.config import Config, TrueNetwork, TwinNetwork
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import TAPS_SOLVED, Feeder
from dp_powerflow.grid.ieee import BUILT_IN
from dp_powerflow.grid.sources import open_feeder, read_taps
from dp_powerflow.loads.checks import IngestRules
from dp_powerflow.loads.declared import LongColumns, MeterFormat, WideColumns, read_service_map
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.loads.opendss_shapes import read_opendss_shapes
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.estimators import Plain, Structured
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import LoadLaw, LoadNodes
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.reactive import FixedPowerFactor, PublicSpread, ReactiveChoice
from dp_powerflow.privacy.budget import PrivacyBudget, PrivacyUnit
from dp_powerflow.units import FloatArray, IntArray

KEEP_RECORDS = IngestRules(on_rejected="placeholder")
"""The number of records is public, so a load point with too many gaps is replaced, never dropped."""


def feeder_of(config: Config) -> Feeder:
    """The network of the config."""
    section = config.feeder
    taps = None if section.taps is None else read_taps(section.taps)
    return open_feeder(
        section.source, taps=taps, base_mva=section.base_mva, drop_islanded=section.drop_islanded
    )


def require_declared_taps(config: Config, feeder: Feeder) -> None:
    """Refuse taps solved on a private network: they are a function of it (paper corrections 11, 17)."""
    solved = feeder.taps_from == TAPS_SOLVED
    if solved and config.feeder.source.lower() not in BUILT_IN:
        raise ConfigError(
            "the feeder has regulators, whose taps a release takes as declared public: write them with "
            "'dp-powerflow inspect FEEDER --save-taps taps.csv' and set feeder.taps"
        )


def check_before_spending(config: Config, feeder: Feeder, history: LoadHistory) -> None:
    """Everything in the config that can be known to be wrong before a budget is touched."""
    require_declared_taps(config, feeder)
    fit_options_of(config).bounds_of("")
    network = config.network
    if config.model.components > 1 and isinstance(network, TrueNetwork) and network.require_evidence:
        raise ConfigError(
            "the network evidence is for one Gaussian per class; set model.components = 1, or "
            "network.require_evidence = false"
        )
    count = config.model.private_classes
    labels = {label for label in history.class_label if label is not None}
    known = {f"class {k}" for k in range(1, count + 1)} if count else labels or {ONE_CLASS}
    declared = set(config.nodes.class_of_load.values())
    if config.nodes.load_class is not None:
        declared.add(config.nodes.load_class)
    if count and declared:
        raise ConfigError("private classes are drawn for the nodes, not declared; remove nodes.load_class")
    strangers = sorted(declared - known)
    if strangers:
        raise ConfigError(
            f"the config names the load class '{strangers[0]}'; there are {', '.join(sorted(known))}"
        )
    _check_load_names(config, feeder)


def _check_load_names(config: Config, feeder: Feeder) -> None:
    known = {load.name for load in feeder.loads}
    unknown = sorted({name.lower() for name in config.nodes.class_of_load} - known)
    if unknown:
        raise ConfigError(f"nodes.class_of_load names '{unknown[0]}', a load which the feeder does not have")


def history_of(config: Config, feeder: Feeder | None) -> LoadHistory:
    """PRIVATE. The meter data of the config; load shapes go with a feeder, other kinds need none."""
    section = config.loads
    if section.kind == "simulated":
        return simulate_load_history(
            section.load_points, n_days=section.days, step_minutes=section.step_minutes, seed=section.seed
        )
    path = section.path or Path()
    if section.kind == "opendss-shapes":
        if section.first_day is None:
            raise ConfigError(
                "load shapes carry no dates; set loads.first_day to the day of their first value"
            )
        if feeder is None:
            raise ConfigError("load shapes belong to the loads of one feeder, and there is none")
        nominal = {load.name: load.kw for load in feeder.loads}
        shapes = read_opendss_shapes(
            path, first_day=section.first_day, nominal_kw=nominal, step_minutes=section.step_minutes
        )
        return shapes.history
    if section.services is None or section.first_day is None or section.last_day is None:
        raise ConfigError(
            "the records of a release are declared public, not read off the meters: set loads.services, "
            "loads.first_day and loads.last_day"
        )
    services = read_service_map(section.services)
    days = (section.first_day, section.last_day)
    declared = MeterFormat(section.unit, section.interval_label, section.time_zone, section.step_minutes)
    if section.kind == "wide":
        wide = WideColumns(time=section.time_column)
        return read_wide(path, declared, wide, services=services, days=days, rules=KEEP_RECORDS).history
    columns = LongColumns(
        customer=section.customer_column,
        time=section.time_column,
        active=section.active_column,
        reactive=section.reactive_column,
    )
    return read_long(path, declared, columns, services=services, days=days, rules=KEEP_RECORDS).history


def budget_of(config: Config) -> PrivacyBudget:
    """What the fit may spend of the customers' privacy."""
    return PrivacyBudget(config.model.epsilon, config.model.delta, PrivacyUnit(config.model.unit))


def fit_options_of(config: Config) -> FitOptions:
    """Public choices of the fit."""
    section = config.model
    factor = FixedPowerFactor(default=math.tan(math.acos(section.power_factor)))
    reactive: ReactiveChoice = factor
    if config.network.random_reactive:
        reactive = PublicSpread(factor, section.reactive_spread, section.reactive_correlation_minutes)
    return FitOptions(
        bounds=section.bounds,
        estimator=Plain() if section.estimator == "plain" else Structured(),
        classes=PrivateClasses(section.private_classes) if section.private_classes else PublicLabels(),
        use_scale=section.use_scale,
        n_components=section.components,
        reactive=reactive,
        variance_floor=section.variance_floor,
    )


@dataclass(frozen=True, eq=False)
class NodePlan:
    """Declared-public facts of the nodes that synthetic loads are drawn for.

    Attributes
    ----------
    nodes : (loaded,) positions among `feeder.retained` of the nodes with a load of their own.
    classes : class of each.
    scale_kw : (loaded,) [kW].
    """

    nodes: IntArray
    classes: tuple[str, ...]
    scale_kw: FloatArray

    def law(self, model: LoadModel, feeder: Feeder, *, truncated: bool = False) -> LoadLaw:
        """The law of the loads at these nodes: drawn from by the release, and what the evidence is about."""
        scale_kw = self.scale_kw if model.scaled else None
        return model.at(LoadNodes(self.classes, scale_kw, feeder.base_mva, self.nodes), truncated=truncated)


def loaded_nodes(feeder: Feeder) -> tuple[IntArray, FloatArray]:
    """Positions among `feeder.retained` of nodes with nominal load, and that load [kW]."""
    nominal_kw = -feeder.nominal_injection[feeder.retained].real * feeder.base_mva * 1000.0
    nodes = np.flatnonzero(nominal_kw > 0.0)
    return nodes, nominal_kw[nodes]


def released_nodes(config: Config, feeder: Feeder) -> IntArray:
    """Indices of the nodes whose voltages are released: those with a load, or all but the sources."""
    if isinstance(config.network, TwinNetwork) and config.network.released == "all":
        return np.asarray(feeder.energised, dtype=np.int64)
    return np.asarray(feeder.retained[loaded_nodes(feeder)[0]], dtype=np.int64)


def node_plan(
    config: Config, feeder: Feeder, model: LoadModel, drawn: Sequence[str] | None = None
) -> NodePlan:
    """Class and scale of every loaded node.

    Parameters
    ----------
    drawn : classes drawn from the released weights, for a model whose classes are private; None uses what
        the config declares.
    """
    section = config.nodes
    nodes, nominal_kw = loaded_nodes(feeder)
    if not len(nodes):
        raise ConfigError("no node of the feeder has a nominal active load; the release would be empty")
    classes = tuple(drawn) if drawn is not None else _declared_classes(config, feeder, nodes, model)
    return NodePlan(nodes, classes, nominal_kw * section.scale_factor)


def _declared_classes(config: Config, feeder: Feeder, nodes: IntArray, model: LoadModel) -> tuple[str, ...]:
    section = config.nodes
    default = section.load_class or model.class_names[0]
    declared = {name.lower(): label for name, label in section.class_of_load.items()}
    known = {load.name for load in feeder.loads}
    unknown = sorted(set(declared) - known)
    if unknown:
        raise ConfigError(f"nodes.class_of_load names '{unknown[0]}', a load which the feeder does not have")
    shares = feeder.load_shares.tocsr()
    classes = []
    for k in feeder.retained[nodes]:
        loads = [feeder.loads[j] for j in shares[[k], :].indices]
        labels = {declared.get(load.name, default) for load in loads}
        if len(labels) > 1:
            raise ConfigError(
                f"node {feeder.nodes[k]} carries loads of the classes {', '.join(sorted(labels))}; "
                "declare one class for both"
            )
        classes.append(labels.pop())
    for label in set(classes):
        model.find(label, model.classes[0].day_type)
    return tuple(classes)
