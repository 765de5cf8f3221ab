"""The nodes that loads are drawn for, with what is declared public of each: class, scale, power factor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.profiles import read_load_classes
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import LoadLaw, LoadNodes
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.model.sample import draw_node_classes
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class NodePlan:
    """Declared-public facts of the nodes that synthetic loads are drawn for.

    Attributes
    ----------
    nodes : (loaded,) positions among `feeder.retained` of the nodes with a load of their own.
    classes : class of each.
    scale_kw : (loaded,) [kW].
    tan_theta : (loaded,) of nodes with a power factor of their own; NaN where that of the class holds.
    """

    nodes: IntArray
    classes: tuple[str, ...]
    scale_kw: FloatArray
    tan_theta: FloatArray

    @property
    def customers(self) -> None:
        """A node is one draw, however many customers it has."""
        return

    def law(self, model: LoadModel, feeder: Feeder, *, truncated: bool = False) -> LoadLaw:
        """The law of the loads at these nodes: drawn from by the release, and what the evidence is about."""
        scale_kw = self.scale_kw if model.scaled else None
        law = model.at(LoadNodes(self.classes, scale_kw, feeder.base_mva, self.nodes), truncated=truncated)
        own = np.isfinite(self.tan_theta)
        return replace(law, tan_theta=np.where(own, self.tan_theta, law.tan_theta)) if own.any() else law


def loaded_nodes(feeder: Feeder) -> tuple[IntArray, FloatArray]:
    """Positions among `feeder.retained` of nodes with nominal load, and that load [kW]."""
    return feeder.loaded_nodes()


def node_plan(config: Config, feeder: Feeder, model: LoadModel, key: StreamKey) -> NodePlan:
    """Class and scale of every loaded node; private classes are drawn from the released weights.

    Parameters
    ----------
    key : the secret, bound to the release.
    """
    nodes, nominal_kw = some_loaded_nodes(feeder)
    if model.public_labels:
        classes = declared_classes(config, feeder, nodes, model.class_names[0])
        for label in set(classes):
            model.find(label, model.classes[0].day_type)
    else:
        classes = draw_node_classes(model, len(nodes), key)
    factors = declared_factors(config, feeder, nodes)
    return NodePlan(nodes, classes, nominal_kw * config.nodes.scale_factor, factors)


def some_loaded_nodes(feeder: Feeder) -> tuple[IntArray, FloatArray]:
    """As `loaded_nodes`; refuses a feeder that has none."""
    nodes, nominal_kw = loaded_nodes(feeder)
    if not len(nodes):
        raise ConfigError("no node of the feeder has a nominal active load; the release would be empty")
    return nodes, nominal_kw


def declared_classes(config: Config, feeder: Feeder, nodes: IntArray, first: str) -> tuple[str, ...]:
    """Class of every loaded node, the first one where none is declared; refuses two classes at one node."""
    section = config.nodes
    default = section.load_class or first
    declared = classes_by_load(config, feeder)
    classes = []
    for node, labels in _of_loads(feeder, nodes, lambda name: declared.get(name, default)):
        if len(labels) > 1:
            raise ConfigError(
                f"node {node} carries loads of the classes {', '.join(sorted(labels))}; "
                "declare one class for both"
            )
        classes.append(labels.pop())
    return tuple(classes)


def classes_by_load(config: Config, feeder: Feeder) -> dict[str, str]:
    """Load, in lower case → class: of its load shape, unless nodes.class_of_load says otherwise."""
    own = config.nodes.class_of_load
    _check_load_names("nodes.class_of_load", own, feeder)
    return classes_of_shapes(config) | {name.lower(): label for name, label in own.items()}


def factors_by_load(config: Config, feeder: Feeder) -> FloatArray:
    """(load,) tan θ of the loads of a feeder that have a power factor of their own, else NaN."""
    own = config.nodes.power_factor_of_load
    _check_load_names("nodes.power_factor_of_load", own, feeder)
    tangents = {name.lower(): tan_theta_of(factor) for name, factor in own.items()}
    return np.array([tangents.get(load.name.lower(), np.nan) for load in feeder.loads])


def declared_factors(config: Config, feeder: Feeder, nodes: IntArray) -> FloatArray:
    """(loaded,) tan θ of nodes with a power factor of their own, else NaN; refuses two factors at a node."""
    own = config.nodes.power_factor_of_load
    _check_load_names("nodes.power_factor_of_load", own, feeder)
    if not own:
        return np.full(len(nodes), np.nan)
    declared = {name.lower(): tan_theta_of(factor) for name, factor in own.items()}
    tangents = []
    for node, found in _of_loads(feeder, nodes, declared.get):
        if len(found) > 1:
            raise ConfigError(
                f"node {node} carries loads of different power factors; declare one for all its loads in "
                "nodes.power_factor_of_load"
            )
        tangents.append(found.pop())
    return np.array([np.nan if tangent is None else tangent for tangent in tangents])


_Value = TypeVar("_Value")


def _of_loads(
    feeder: Feeder, nodes: IntArray, value_of: Callable[[str], _Value]
) -> Iterator[tuple[str, set[_Value]]]:
    """Name of every loaded node, with the different values of the loads that it carries."""
    shares = feeder.load_shares.tocsr()
    for k in feeder.retained[nodes]:
        loads = [feeder.loads[j].name for j in shares[[k], :].indices]
        yield feeder.nodes[k], {value_of(name) for name in loads}


def classes_of_shapes(config: Config) -> dict[str, str]:
    """PUBLIC. Load, in lower case → class, as `loads.classes` declares it."""
    return {} if config.loads.classes is None else read_load_classes(config.loads.classes)


def _check_load_names(key: str, names: Iterable[str], feeder: Feeder) -> None:
    known, lowered = {load.name for load in feeder.loads}, [name.lower() for name in names]
    if len(set(lowered)) < len(lowered):
        raise ConfigError(f"{key} names a load twice, in upper and lower case; remove one of the two")
    unknown = sorted(set(lowered) - known)
    if unknown:
        raise ConfigError(f"{key} names '{unknown[0]}', a load that the feeder does not have; correct it")
