"""Whom loads are drawn for, with what is declared public of each: nodes, or customers one by one.

On the true network a node is one draw, times its nominal load. On a twin a load is a sum of customers: how
many comes from the load table (column `customers`), else from the service map (column `node`), else from its
nominal kW over a public figure per customer. Classes are declared or drawn from the released weights; scales
are those of the service map. No reading plays a part.

`draw_customers` draws one customer for every meter of a history, so that both sides can be compared: anybody
who has the release can do it, given the declared classes and scales of the meters.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import scipy.sparse as sp

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, LoadDataError, PrivacyError, ServiceMapError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import read_loads
from dp_powerflow.loads.declared import ServiceMap
from dp_powerflow.loads.history import SATURDAY, LoadHistory, MeterFacts
from dp_powerflow.loads.ingest import read_load_classes
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.sample import HistorySampler, path_of, population_of
from dp_powerflow.model.law import LoadLaw, LoadNodes
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.model.sample import CustomerLaw, CustomerSampler, LoadSource, draw_node_classes
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.pipeline.inputs import Almanac


@dataclass(frozen=True, eq=False)
class NodePlan:
    """Declared-public facts of the nodes that synthetic loads are drawn for.

    Attributes
    ----------
    nodes : (loaded,) positions among `feeder.retained` of the nodes with their own load.
    classes : class of each.
    scale_kw : (loaded,) [kW].
    tan_theta : (loaded,) of nodes with their own power factor; NaN where the factor of the class holds.
    """

    nodes: IntArray
    classes: tuple[str, ...]
    scale_kw: FloatArray
    tan_theta: FloatArray

    def law(self, model: LoadModel, feeder: Feeder, *, truncated: bool = False) -> LoadLaw:
        """The law of the loads at these nodes: drawn from by the release, and what the evidence is about."""
        scale_kw = self.scale_kw if model.scaled else None
        law = model.at(LoadNodes(self.classes, scale_kw, feeder.base_mva, self.nodes), truncated=truncated)
        return _with_own_factors(law, self.tan_theta)


def _with_own_factors(law: LoadLaw, tan_theta: FloatArray) -> LoadLaw:
    """The law with these power factors; NaN leaves the factor of the class."""
    own = np.isfinite(tan_theta)
    return replace(law, tan_theta=np.where(own, tan_theta, law.tan_theta)) if own.any() else law


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
            model.find(label)
    else:
        classes = draw_node_classes(model, len(nodes), key)
    factors = declared_factors(config, feeder, nodes)
    return NodePlan(nodes, classes, nominal_kw * config.nodes.scale_factor, factors)


def some_loaded_nodes(feeder: Feeder) -> tuple[IntArray, FloatArray]:
    """Positions among `feeder.retained` of nodes with nominal load, and that load [kW]; refuses none."""
    nodes, nominal_kw = feeder.loaded_nodes()
    if not len(nodes):
        raise ConfigError("no node of the feeder has a nominal active load; the release would be empty")
    return nodes, nominal_kw


def declared_classes(config: Config, feeder: Feeder, nodes: IntArray, first: str) -> tuple[str, ...]:
    """Class of every loaded node, the first one where none is declared; refuses two classes at one node."""
    declared, default = classes_by_load(config, feeder), config.nodes.load_class or first
    labels = [declared.get(load.name.lower(), default) for load in feeder.loads]
    says = "node {0} carries loads of the classes {1}; declare one class for both"
    return tuple(_at_nodes(feeder, nodes, labels, says))


def classes_by_load(config: Config, feeder: Feeder) -> dict[str, str]:
    """Load, in lower case → class: of its load shape, unless nodes.class_of_load says otherwise."""
    own = config.nodes.class_of_load
    _check_load_names("nodes.class_of_load", own, feeder)
    return classes_of_shapes(config) | {name.lower(): label for name, label in own.items()}


def factors_by_load(config: Config, feeder: Feeder) -> FloatArray:
    """(load,) tan θ of the loads of a feeder that have their own power factor, else NaN."""
    own = config.nodes.power_factor_of_load
    _check_load_names("nodes.power_factor_of_load", own, feeder)
    tangents = {name.lower(): tan_theta_of(factor) for name, factor in own.items()}
    return np.array([tangents.get(load.name.lower(), np.nan) for load in feeder.loads])


def declared_factors(config: Config, feeder: Feeder, nodes: IntArray) -> FloatArray:
    """(loaded,) tan θ of nodes with their own power factor, else NaN; refuses two factors at a node."""
    tangents = factors_by_load(config, feeder)
    if not config.nodes.power_factor_of_load:
        return np.full(len(nodes), np.nan)
    own = [None if np.isnan(tangent) else tangent for tangent in tangents.tolist()]
    says = (
        "node {0} carries loads of different power factors; declare one for all its loads in "
        "nodes.power_factor_of_load"
    )
    return np.array(_at_nodes(feeder, nodes, own, says), dtype=np.float64)


_Value = TypeVar("_Value")


def _at_nodes(feeder: Feeder, nodes: IntArray, of_load: Sequence[_Value], says: str) -> list[_Value]:
    """What the loads of every loaded node have; refused where two loads of a node differ."""
    shares, found = feeder.load_shares.tocsr(), []
    for k in feeder.retained[nodes]:
        values = {of_load[j] for j in shares[[k], :].indices}
        if len(values) > 1:
            raise ConfigError(says.format(feeder.nodes[k], ", ".join(sorted(map(str, values)))))
        found.append(values.pop())
    return found


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


MOST_CUSTOMERS = 1_000_000
"""Of one feeder; more is a slip in nodes.kw_per_customer."""


@dataclass(frozen=True, eq=False)
class Services:
    """PUBLIC. What the data owner declares of the load points; by default nothing.

    Attributes
    ----------
    node_of : load or node of the feeder that each load point is on, None where none is declared.
    class_of : class of each, None where none is declared.
    scale_kw : (load point,) public scale [kW]; None if there is none.
    customers_of_load : load of the feeder, in lower case → its customers, as the load table counts them.
    """

    node_of: tuple[str | None, ...] = ()
    class_of: tuple[str | None, ...] = ()
    scale_kw: FloatArray | None = None
    customers_of_load: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, history: LoadHistory | MeterFacts) -> Services:
        """The public part of a history, no reading, and of the load table."""
        return cls(history.node_of, history.class_label, history.scale_kw, customers_of_loads(config))

    @classmethod
    def listed(cls, found: ServiceMap, customers_of_load: Mapping[str, int] | None = None) -> Services:
        """What a service map says, in the order of its load points."""
        points = found.load_points
        nodes, classes = (tuple(map(of.get, points)) for of in (found.node_of, found.class_of))
        return cls(nodes, classes, found.scale_kw(points), customers_of_load or {})


def customers_of_loads(config: Config) -> Mapping[str, int]:
    """Load of the feeder, in lower case → its customers, as the load table of the config counts them."""
    return {} if config.feeder.loads is None else read_loads(config.feeder.loads).customers


@dataclass(frozen=True, eq=False)
class Counted:
    """PUBLIC. The customers of every load of a feeder that has any.

    Attributes
    ----------
    positions : (load,) among `feeder.loads`, ascending.
    customers : (load,) how many customers the load has, at least 1.
    services : (load,) the load points of the service map that they are; empty where counted otherwise.
    """

    positions: IntArray
    customers: IntArray
    services: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Customers of the feeder."""
        return int(self.customers.sum())

    def of_all(self, feeder: Feeder) -> IntArray:
        """(load of the feeder,) customers, 0 for a load without any."""
        found = np.zeros(len(feeder.loads), dtype=np.int64)
        found[self.positions] = self.customers
        return found


def count_customers(config: Config, feeder: Feeder, services: Services) -> Counted:
    """How many customers every load has; refuses names that the feeder does not have."""
    some_loaded_nodes(feeder)
    stated, on_load = services.customers_of_load, _services_on_loads(feeder, services)
    labels = declared_labels(config, feeder, services)
    positions, customers, own = [], [], []
    for k, load in enumerate(feeder.loads):
        points = tuple(on_load.get(k, ()))
        count = stated.get(load.name.lower(), len(points) or None)
        if load.kw <= 0.0:
            if count:
                raise ConfigError(
                    f"load '{load.name}' has customers but no nominal active power; give it nominal kW, or "
                    "no customers in the load table and the service map",
                    code="loads-without-customers",
                )
            continue
        if count is None:
            per = config.nodes.kw_per_customer_of_class.get(labels[k] or "", config.nodes.kw_per_customer)
            count = max(1, round(min(load.kw / per, MOST_CUSTOMERS + 1.0)))
        if count:
            positions.append(k)
            customers.append(count)
            own.append(points if count == len(points) else ())
    if sum(customers) > MOST_CUSTOMERS:
        raise ConfigError(
            f"the loads of the feeder would have more than {MOST_CUSTOMERS:,} customers; raise "
            "nodes.kw_per_customer, the nominal kW per customer",
            code="loads-without-customers",
        )
    if not customers:
        raise ConfigError(
            "no load of the feeder has a customer; the release would be empty", code="loads-without-customers"
        )
    return Counted(np.array(positions, dtype=np.int64), np.array(customers, dtype=np.int64), tuple(own))


def _services_on_loads(feeder: Feeder, services: Services) -> dict[int, list[int]]:
    """Load of the feeder → the load points that the service map puts there."""
    found: dict[int, list[int]] = {}
    if not any(services.node_of):
        return found
    places = _places(feeder)
    for point, name in enumerate(services.node_of):
        if name is None:
            continue
        loads = places.get(name.lower(), set())
        if not loads:
            near = difflib.get_close_matches(name.lower(), places, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"the service map names the node '{name}', which is neither a load of the feeder nor a node "
                f"or bus with a load{hint}",
                code="service-map",
            )
        if len(loads) > 1:
            raise ConfigError(
                f"the service map names the node '{name}', which carries {len(loads)} loads; "
                "name one of them",
                code="service-map",
            )
        found.setdefault(min(loads), []).append(point)
    return found


def _places(feeder: Feeder) -> dict[str, set[int]]:
    """What a service map may call the loads of a feeder, in lower case: load, node, or bus."""
    names = {load.name.lower(): {k} for k, load in enumerate(feeder.loads)}
    nodes: dict[str, set[int]] = {}
    shares = feeder.load_shares.tocoo()
    for node, k in zip(*shares.coords, strict=True):
        name = feeder.nodes[node].lower()
        for place in {name, name.rsplit(".", 1)[0]}:
            nodes.setdefault(place, set()).add(int(k))
    return nodes | names


def declared_labels(config: Config, feeder: Feeder, services: Services) -> tuple[str | None, ...]:
    """Class of every load as far as it is declared; None where it is drawn, or where there is one class."""
    if config.model.private_classes:
        return (None,) * len(feeder.loads)
    first = next((label for label in services.class_of if label is not None), None)
    declared, default = classes_by_load(config, feeder), config.nodes.load_class or first
    return tuple(declared.get(load.name.lower(), default) for load in feeder.loads)


@dataclass(frozen=True, eq=False)
class CustomerPlan:
    """Declared-public facts of the customers that are drawn.

    Attributes
    ----------
    positions : (load,) among `feeder.loads`.
    load_of : (customer,) number of the load that the customer is part of, ascending.
    classes : class of every customer.
    scale_kw : (customer,) [kW]; None if the model is relative to no scale.
    tan_theta : (customer,) of loads with their own power factor; NaN where the factor of the class holds.
    by_node : whether power flow is solved node by node, in the frozen frame, or load by load.
    """

    positions: IntArray
    load_of: IntArray
    classes: tuple[str, ...]
    scale_kw: FloatArray | None
    tan_theta: FloatArray
    by_node: bool

    def law(self, model: LoadModel, feeder: Feeder) -> CustomerLaw:
        """The law of the loads."""
        each = model.at(LoadNodes(self.classes, self.scale_kw, feeder.base_mva))
        each = _with_own_factors(each, self.tan_theta)
        return CustomerLaw(each, self.load_of, self.positions, self.shares(feeder))

    def shares(self, feeder: Feeder) -> sp.csr_array | None:
        """Complex (retained node, load) by which loads are spread; None where they are solved one by one."""
        return feeder.load_shares.tocsr()[feeder.retained] if self.by_node else None

    def tangents(self, model: LoadModel) -> FloatArray:
        """(customer,) tan θ of the load, else of the class."""
        of_class = {name: model.find(name).reactive.tan_theta for name in set(self.classes)}
        return np.where(
            np.isfinite(self.tan_theta), self.tan_theta, [of_class[name] for name in self.classes]
        )

    def source(
        self, model: LoadModel, feeder: Feeder, key: StreamKey, days: int, block_days: int, almanac: Almanac
    ) -> LoadSource:
        """What draws the loads: customers who persist where the model knows them, else days by themselves.

        Parameters
        ----------
        days, block_days : from the first day of the release on; of one block.
        almanac : calendar and weather of the days, where customers persist.
        """
        if not model.is_history:
            return CustomerSampler(self.law(model, feeder), key, days, block_days=block_days)
        if model.scaled != (self.scale_kw is not None):
            raise PrivacyError("give a public scale for every customer if, and only if, the model is scaled")
        calendar = almanac.first(days)
        known = calendar.days, calendar.off, almanac.figures_of(calendar.days)
        source = _persisting(model, self.classes, (self.load_of, self.scale_kw, self.tan_theta), known, key)
        placed = replace(
            source.law, base_mva=feeder.base_mva, positions=self.positions, shares=self.shares(feeder)
        )
        return replace(source, law=placed, block_days=block_days)


def _persisting(
    model: LoadModel,
    names: tuple[str, ...],
    places: tuple[IntArray, FloatArray | None, FloatArray],
    known: tuple[tuple[dt.date, ...], BoolArray, Mapping[str, FloatArray]],
    key: StreamKey,
) -> HistorySampler:
    """Customers who persist, of classes with these names, through days of known date, rest and weather.

    Parameters
    ----------
    places : of every customer: number of its load, scale [kW], tan θ.
    """
    facts = None if model.origin is None else model.origin.facts.days
    assert facts is not None  # no model of histories is fitted without the facts of its days
    people = population_of(model.histories, model.sha256, names, *places, key)
    classes = [part for part in model.histories if part.name in set(names)]
    off, factor = path_of(classes, facts, *known, key.bind("model", model.sha256))
    return HistorySampler(people, key, len(known[0]), off, factor)


def customer_plan(
    config: Config, feeder: Feeder, services: Services, model: LoadModel, key: StreamKey
) -> CustomerPlan:
    """Class, scale and power factor of every customer.

    A customer that the service map puts on a load has the class and scale declared there. Of the others the
    class follows the load, or is drawn from the released weights; the scale is drawn from the declared ones
    of the class.

    Parameters
    ----------
    key : the secret, bound to the release.
    """
    counted = count_customers(config, feeder, services)
    load_of = np.repeat(np.arange(len(counted.positions)), counted.customers)
    if model.public_labels:
        classes = _classes(config, feeder, services, counted, model)
    else:
        classes = draw_node_classes(model, len(load_of), key)
    for label in set(classes):
        model.find(label)
    factors = factors_by_load(config, feeder)[counted.positions]
    frozen = getattr(config.network, "controls", "frozen") == "frozen"
    scale_kw = _scales(services, counted, classes, model, key) if model.scaled else None
    return CustomerPlan(counted.positions, load_of, classes, scale_kw, factors[load_of], frozen)


def _classes(
    config: Config, feeder: Feeder, services: Services, counted: Counted, model: LoadModel
) -> tuple[str, ...]:
    labels, found = declared_labels(config, feeder, services), []
    for k, count, points in zip(counted.positions, counted.customers, counted.services, strict=True):
        of_load = labels[k] or model.class_names[0]
        of_points = [services.class_of[point] or of_load for point in points]
        found += of_points or [of_load] * int(count)
    return tuple(found)


def _scales(
    services: Services, counted: Counted, classes: tuple[str, ...], model: LoadModel, key: StreamKey
) -> FloatArray:
    """(customer,) public scale [kW]."""
    assert services.scale_kw is not None  # a model is scaled by the scales of its history
    generator = key.bind("model", model.sha256).stream("customer scales").generator
    labels, scales = np.array([label or "" for label in services.class_of]), services.scale_kw
    wanted = np.array(classes)
    scale_kw = np.empty(len(wanted))
    for label in sorted(set(classes)):
        declared = scales[labels == label] if np.any(labels == label) else scales
        chosen = np.flatnonzero(wanted == label)
        scale_kw[chosen] = np.sort(declared)[generator.integers(len(declared), size=len(chosen))]
    first = np.cumsum(counted.customers) - counted.customers
    for start, points in zip(first, counted.services, strict=True):
        scale_kw[start : start + len(points)] = scales[list(points)]
    return scale_kw


def days_off(model: LoadModel, history: LoadHistory) -> BoolArray:
    """(day,) days off: those that the model publishes, else weekends."""
    facts = None if model.origin is None else model.origin.facts.days
    known = {} if facts is None else dict(zip(facts.dates, facts.off, strict=True))
    return np.array([known.get(day.isoformat(), day.weekday() >= SATURDAY) for day in history.days])


def draw_customers(model: LoadModel, history: LoadHistory, key: StreamKey) -> FloatArray:
    """(customer, day, step) [kW]: one customer for every meter, with its class and scale, on its days.

    Raises
    ------
    LoadDataError
        The model was not fitted to meters of this kind.
    """
    classes = classes_of(model, history, key)
    scale_kw = history.scale_kw if model.scaled else None
    if model.scaled and scale_kw is None:
        raise ServiceMapError(
            "the model of the release divides by public scales, which this history does not have; give the "
            "history that the release was made from"
        )
    count = history.n_load_points
    source: LoadSource
    if model.is_history:
        known = history.days, days_off(model, history), _covariates(model, history.days)
        source = _persisting(model, classes, (np.arange(count), scale_kw, np.zeros(count)), known, key)
    else:
        each = model.at(LoadNodes(classes, scale_kw, 1.0))
        law = CustomerLaw(replace(each, q_size=None), np.arange(count), np.arange(count))
        source = CustomerSampler(law, key, history.n_days)
    return np.concatenate([source.block(k).load_kw for k in range(source.n_blocks)], axis=1)


def classes_of(model: LoadModel, history: LoadHistory, key: StreamKey) -> tuple[str, ...]:
    """Class of every customer: its label, or drawn from the released weights where classes are private."""
    if not model.public_labels:
        return draw_node_classes(model, history.n_load_points, key)
    labels = tuple(label or ONE_CLASS for label in history.class_label)
    strange = sorted(set(labels) - set(model.class_names))
    if strange:
        raise LoadDataError(
            "the meters have a class that the load model of the release does not know; give the history that "
            "the release was made from"
        )
    return labels


def _covariates(model: LoadModel, days: tuple[dt.date, ...]) -> dict[str, FloatArray]:
    """Name → (day,) covariates that the model publishes of days of its meters."""
    facts = None if model.origin is None else model.origin.facts.days
    if facts is None or not facts.covariates:
        return {}
    place = {date: k for k, date in enumerate(facts.dates)}
    wanted = [place.get(day.isoformat(), -1) for day in days]
    if min(wanted) < 0:
        raise LoadDataError(
            "the load model of the release knows the weather of other days than these meters have; give the "
            "history that the release was made from"
        )
    return {name: np.array(values)[wanted] for name, values in facts.covariates}
