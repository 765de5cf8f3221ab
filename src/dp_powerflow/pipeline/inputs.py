"""What a release is made from: read once, checked before anything is spent, kept in one frozen object.

Also public days, holidays and weather (`Almanac`), and what the load model is fitted with: budget, estimator
and every other public choice of a config (`fit_options_of`).

`NetworkInputs` is what a network mode sees: no meter reading. `ReleaseInputs` adds the meter data.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from dp_powerflow.almanac.calendar import Calendar, WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import Weather
from dp_powerflow.config import FEWEST_DAYS, LONGEST_STEP_MINUTES, Config, LoadsSection, history_obstacle
from dp_powerflow.corpus.tables import DayTable
from dp_powerflow.errors import ConfigError, LoadDataError
from dp_powerflow.grid.feeder import TAPS_DECLARED, TAPS_INTERNAL, TAPS_SOLVED, Feeder
from dp_powerflow.grid.sources import BUILT_IN, open_feeder, read_loads, read_taps
from dp_powerflow.loads.declared import IngestRules, LongColumns, MeterFormat, WideColumns, read_service_map
from dp_powerflow.loads.history import LoadHistory, MeterFacts, steps_per_day
from dp_powerflow.loads.ingest import read_long, read_opendss_shapes, read_wide
from dp_powerflow.loads.report import IngestReport, IngestResult, count_clipped, refuse_many_clipped
from dp_powerflow.loads.simulate import (
    DEMO_CLASSES,
    CustomerClass,
    simulate_load_history,
    simulated_services,
    summed,
)
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import (
    DayFacts,
    FitOptions,
    FixedPowerFactor,
    PublicSpread,
    ReactiveChoice,
    tan_theta_of,
)
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.single_days import Plain, Structured
from dp_powerflow.pipeline.customers import Services, classes_of_shapes, customers_of_loads, some_loaded_nodes
from dp_powerflow.powerflow.devices import CATEGORY_A, CATEGORY_B, VoltVar, VoltVarCurve
from dp_powerflow.powerflow.sun import DAYS_OF_YEAR, Generation, clear_sky, read_irradiance
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import FloatArray

_CURVES = {"category A": CATEGORY_A, "category B": CATEGORY_B}
INGEST_FILE, REQUEST_FILE = "ingest.json", "request.sha256"
FIT, DRAWS = "fit", "draws"
"""Products of a release that have a key; see `privacy.state`."""
KEY_GONE = (
    "the key of {what} is gone, which is paid for and unfinished; nothing is drawn twice for one charge: "
    "restore it, or choose a new release id (of a twin also a new twin id), with model.reuse if one is there"
)


@dataclass(frozen=True, eq=False)
class Solar:
    """Public generation of every day, and its control.

    Attributes
    ----------
    generation : None without PV.
    voltvar : the control, node by node, of the frozen frame; None without control.
    curve : the control of every PV system that the config names; None without one, and for the file's own.
    use_file_curves : whether PV systems have the curves of the feeder's file.
    """

    generation: Generation | None = None
    voltvar: VoltVar | None = None
    curve: VoltVarCurve | None = None
    use_file_curves: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class NetworkInputs:
    """PRIVATE. The network, its public sun, and the state that keeps what was paid for.

    Attributes
    ----------
    config : public choices.
    state : private state directory: key, ledger, what is kept.
    feeder : the true network.
    services : PUBLIC, what is declared of the load points.
    irradiance : (day, step, PV system) public share of peak irradiance; None without PV.
    almanac : PUBLIC, calendar of the release, holidays and weather.
    """

    config: Config
    state: PrivateState
    feeder: Feeder
    services: Services
    irradiance: FloatArray | None
    almanac: Almanac

    @cached_property
    def solar(self) -> Solar:
        """Generation on the true network."""
        return self.solar_on(self.feeder)

    @property
    def sun(self) -> tuple[int, bool]:
        """PUBLIC. Days of irradiance, and whether PV systems have different ones; one day without PV."""
        if self.irradiance is None:
            return 1, False
        return len(self.irradiance), bool(np.any(self.irradiance != self.irradiance[..., :1]))

    @property
    def own_key(self) -> StreamKey:
        """For draws that nothing published depends on: evidence, comparisons, classes of nodes."""
        return self.state.stream_key().bind("release", self.config.release.id)

    @property
    def key(self) -> StreamKey | None:
        """Of the draws of the release, from its charge until it is complete; None if there is none."""
        release_id = self.config.release.id
        request = self.state.read_internal(release_id, REQUEST_FILE)
        if request is None:
            return None
        found = self.state.key_of(release_id, DRAWS, request.decode(errors="replace"))
        return None if found is None else found.bind("release", release_id)

    def solar_on(self, feeder: Feeder) -> Solar:
        """What the config says of a feeder's PV systems; without a section they are idle."""
        return solar_of(self.config, feeder, self.irradiance)


@dataclass(frozen=True, eq=False, repr=False)
class ReleaseInputs(NetworkInputs):
    """PRIVATE. Everything that a release is made from.

    Attributes
    ----------
    history : the meter data; only their public facts where everything drawn from them is paid for already.
    ingest : INTERNAL. What reading them found; None if they are simulated or were read before.
    """

    history: LoadHistory | MeterFacts
    ingest: IngestReport | None = None

    @cached_property
    def loads_identity(self) -> str:
        """Keyed hash of the meter data: the account that the customers are charged to."""
        if isinstance(self.history, MeterFacts):
            return self.history.identity
        return self.state.identity("loads", loads_chunks(self.history))

    @property
    def readings(self) -> LoadHistory:
        """PRIVATE. The meter data themselves."""
        assert isinstance(self.history, LoadHistory)
        return self.history

    @cached_property
    def identity(self) -> str:
        """Keyed hash of everything besides the config that decides the release.

        The request of the ledger holds it: a file that changes under the same release id is refused.
        """
        return self.state.identity("inputs", self._chunks())

    @property
    def meter_days(self) -> DayFacts:
        """PUBLIC. The days of the meters, with holidays and weather."""
        return self.almanac.facts_of(self.history.days)

    def _chunks(self) -> Iterator[bytes]:
        feeder, sun = self.feeder, self.irradiance
        moving = feeder.as_operated
        yield from network_chunks(feeder)
        yield repr((feeder.loads, feeder.pv, feeder.taps)).encode()
        yield repr((moving.regulators, moving.capacitors, moving.generators)).encode()
        yield np.ascontiguousarray(feeder.nominal_angle_deg).tobytes()
        yield b"" if sun is None else np.ascontiguousarray(sun).tobytes()
        yield repr(self.history.node_of).encode()
        if self.services.customers_of_load:
            yield repr(sorted(self.services.customers_of_load.items())).encode()
        yield from self.almanac.chunks()
        yield self.loads_identity.encode()


def read_inputs(
    config: Config,
    state: PrivateState,
    *,
    network: NetworkInputs | None = None,
    history: LoadHistory | MeterFacts | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ReleaseInputs:
    """Open the feeder, read meter data and irradiance, and refuse what can be known to be wrong.

    Parameters
    ----------
    network : the network side, if it was read already.
    history : PRIVATE. The meter data of the config, or their facts, if they were read already.
    say : told what takes long.

    Raises
    ------
    DpPowerflowError : a file cannot be used, or the config contradicts it; nothing was spent.
    """
    network = network or read_network(config, state, steps_per_day(config.loads.step_minutes))
    feeder, sun, ingest = network.feeder, network.irradiance, None
    if history is None:
        say("reading the meter data")
        meters = meters_of(config, feeder)
        history, ingest = meters.history, meters.ingest
    if sun is not None and sun.shape[1] != history.n_steps:
        sun = irradiance_of(config, feeder, history.n_steps)
    services, almanac = Services.of(config, history), network.almanac
    check_declared(config, feeder, services)
    almanac.check_meters(history.days)
    obstacle = None if config.model.estimator != HISTORY else history_obstacle(config, history.n_days)
    if obstacle is not None:  # where only reading them tells how long they are
        raise ConfigError(obstacle)
    return ReleaseInputs(config, state, feeder, services, sun, almanac, history, ingest)


def read_network(
    config: Config, state: PrivateState, steps: int, services: Services | None = None
) -> NetworkInputs:
    """The network side alone, for audits and certificates of a load model with these steps per day.

    Parameters
    ----------
    services : what is declared of the load points; None for nothing.
    """
    almanac, feeder = almanac_of(config), feeder_of(config)
    sun = irradiance_of(config, feeder, steps)
    return NetworkInputs(config, state, feeder, services or Services(), sun, almanac)


def network_again(config: Config, state: PrivateState, steps: int) -> NetworkInputs:
    """The network side of a release that is made, with what is declared of the load points."""
    services = declared_services(config)
    if services is None:  # load shapes say which loads they are of only when they are read
        services = Services.of(config, meters_of(config, feeder_of(config)).history)
    return read_network(config, state, steps, services)


def _classes_of(section: LoadsSection) -> tuple[CustomerClass, ...]:
    return DEMO_CLASSES[:1] if section.homes_only else DEMO_CLASSES


def declared_services(config: Config) -> Services | None:
    """PUBLIC. What the config declares of the load points, without a look at a meter; None where it does not.

    Load shapes say which loads they are of only when they are read.
    """
    section = config.loads
    if section.kind == "simulated":
        classes, homes = _classes_of(section), section.homes_per_point
        labels, scale_kw = simulated_services(
            section.load_points, seed=section.seed, classes=classes, customers=homes
        )
        return Services((None,) * len(labels), labels, scale_kw, customers_of_loads(config))
    if section.kind == "opendss-shapes" or section.services is None:
        return None
    return Services.listed(read_service_map(section.services), customers_of_loads(config))


def network_chunks(feeder: Feeder) -> Iterator[bytes]:
    """The bytes that identify a network, for a keyed hash."""
    yield repr((feeder.nodes, feeder.base_mva)).encode()
    for array in (feeder.y.data, feeder.y.indices, feeder.y.indptr, feeder.v_slack):
        yield np.ascontiguousarray(array).tobytes()


_FRAME_ROUNDS = 16
"""How many nodes away a difference in structure is seen."""
_ROUND_OFF = 1e-12
"""Entries of Y below this share of their nodes' own are what elements without coupling leave."""


def frame_chunks(feeder: Feeder) -> Iterator[bytes]:
    """The bytes that identify what a network has in common with its near copies, for a keyed hash.

    Which nodes are connected, how far from the source, and their base voltages (three digits), whatever they
    are called and in whatever order: the colours of a Weisfeiler-Lehman refinement of the graph of Y.
    Impedances, lengths, taps and loads play no part, nor whether the phases of a line are coupled: a copy
    1e-9 off symmetry would have another structure. Networks of the same structure have the same bytes;
    networks of different structure may, if their graphs are very regular.
    """
    pattern = _connections(feeder)
    rows, columns = pattern.nonzero()
    away = dijkstra(pattern, indices=feeder.slack, unweighted=True, min_only=True)
    kinds = [f"{kv:.3g} {steps:g}" for kv, steps in zip(feeder.base_kv, away, strict=True)]
    colour = np.array([_scrambled_word(kind) for kind in kinds], dtype=np.uint64)
    for _ in range(_FRAME_ROUNDS):
        around = np.zeros_like(colour)
        np.add.at(around, rows, _scrambled(colour)[columns])  # a sum modulo 2⁶⁴ does not know the order
        colour = _scrambled(colour * np.uint64(3) + around)
    yield np.sort(colour).tobytes()


def _connections(feeder: Feeder) -> sp.csr_array:
    """(node, node) 1 where Y has more than round-off, and between all nodes of a line."""
    y = sp.coo_array(feeder.y)
    own = np.sqrt(np.abs(feeder.y.diagonal()))
    seen = np.abs(y.data) > _ROUND_OFF * own[y.coords[0]] * own[y.coords[1]]
    ends = [(y.coords[0][seen], y.coords[1][seen])]
    for line in feeder.lines:
        nodes = np.asarray(line.nodes, dtype=np.int64)
        ends.append((np.repeat(nodes, len(nodes)), np.tile(nodes, len(nodes))))
    rows, columns = (np.concatenate(side) for side in zip(*ends, strict=True))
    apart = rows != columns
    found = sp.csr_array((np.ones(apart.sum()), (rows[apart], columns[apart])), shape=feeder.y.shape)
    found.data[:] = 1.0
    return found


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection without visible structure."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@cache
def _scrambled_word(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def loads_chunks(history: LoadHistory) -> Iterator[bytes]:
    """The bytes that identify meter data, for a keyed hash."""
    yield repr((history.load_points, history.days, history.step_minutes, history.class_label)).encode()
    yield b"" if history.scale_kw is None else np.ascontiguousarray(history.scale_kw).tobytes()
    for row in history.load_kw:
        yield np.ascontiguousarray(row).tobytes()
    for row in history.load_kvar if history.load_kvar is not None else ():
        yield np.ascontiguousarray(row).tobytes()


def feeder_of(config: Config) -> Feeder:
    """The network of the config."""
    section = config.feeder
    return open_feeder(
        section.source,
        taps=None if section.taps is None else read_taps(section.taps),
        loads=None if section.loads is None else read_loads(section.loads),
        base_mva=section.base_mva,
        drop_islanded=section.drop_islanded,
    )


def require_declared_taps(config: Config, feeder: Feeder) -> None:
    """Refuse taps solved on a private network: they are a function of it (paper corrections 11, 17)."""
    solved = feeder.taps_from in (TAPS_SOLVED, TAPS_INTERNAL)
    if solved and config.feeder.source.lower() not in BUILT_IN:
        raise ConfigError(
            "the feeder has regulators, whose taps a release on the true network takes as declared public; "
            "what 'dp-powerflow inspect' solves on it is not: set feeder.taps to a tap file whose first line "
            f"is '# {TAPS_DECLARED}' and who set them, with taps that are known without the network",
            code="taps",
        )


def check_declared(config: Config, feeder: Feeder, services: Services) -> None:
    """Everything in the config that can be known to be wrong before a budget is touched, in any mode."""
    known = class_names(config, services.class_of)
    options, private = fit_options_of(config, known), config.model.private_classes > 0
    for name in known:
        options.bounds_of(name)
    declared = dict.fromkeys(config.nodes.class_of_load.values(), "nodes")
    if config.nodes.load_class is not None:
        declared[config.nodes.load_class] = "nodes"
    if private and declared:
        raise ConfigError("private classes are drawn for the nodes, not declared; remove nodes.load_class")
    declared |= dict.fromkeys(config.model.bounds_of_class, "model.bounds_of_class")
    declared |= dict.fromkeys(config.model.power_factor_of_class, "model.power_factor_of_class")
    declared |= dict.fromkeys(config.nodes.kw_per_customer_of_class, "nodes.kw_per_customer_of_class")
    strangers = sorted(declared.keys() - set(known))
    if strangers:
        raise ConfigError(
            f"the config names an unknown load class '{strangers[0]}' in {declared[strangers[0]]}; use one "
            f"of {', '.join(sorted(known))}"
        )
    some_loaded_nodes(feeder)


def class_names(config: Config, class_of: Iterable[str | None]) -> tuple[str, ...]:
    """PUBLIC. Names of the classes that the load model will have, given the labels of the load points."""
    if config.model.private_classes:
        return tuple(f"class {k}" for k in range(1, config.model.private_classes + 1))
    return tuple(dict.fromkeys(label for label in class_of if label is not None)) or (ONE_CLASS,)


@dataclass(frozen=True, eq=False)
class Meters:
    """Meter data (PRIVATE) and what reading them found (INTERNAL); None for simulated loads."""

    history: LoadHistory
    ingest: IngestReport | None


def meters_of(config: Config, feeder: Feeder | None) -> Meters:
    """PRIVATE. The meter data of the config; load shapes go with a feeder, other kinds need none.

    Raises
    ------
    DpPowerflowError : a file cannot be used, its customers are others than the service map's, or more load
        points than `loads.most_placeholders` and `loads.most_clipped` allow are of no use; nothing was spent.
    """
    section = config.loads
    if section.kind == "simulated":
        homes = simulate_load_history(
            section.load_points * section.homes_per_point,
            n_days=section.days,
            step_minutes=section.step_minutes,
            seed=section.seed,
            classes=_classes_of(section),
        )
        return Meters(summed(homes, section.homes_per_point), None)
    found = _shapes(config, feeder) if section.kind == "opendss-shapes" else _meter_file(config)
    report, bounds = found.report, _bounds_kw(config, found.history)
    if bounds is not None:
        stand_in = set(found.rejected)
        placeholder = np.array([point in stand_in for point in found.history.load_points])
        clipped = count_clipped(found.history, bounds, placeholder)
        refuse_many_clipped(clipped, section.most_clipped)
        report = replace(report, clipped=clipped)
    return Meters(found.history, report)


def keep_ingest(state: PrivateState, release_id: str, ingest: IngestReport | None) -> None:
    """Keep what reading the meters found, if anything, in the private state, marked INTERNAL."""
    if ingest is not None:
        content = json.dumps(ingest.to_json(), indent=1, sort_keys=True) + "\n"
        state.write_internal(release_id, INGEST_FILE, content.encode())


def _shapes(config: Config, feeder: Feeder | None) -> IngestResult:
    section = config.loads
    if section.first_day is None:
        raise ConfigError("load shapes carry no dates; set loads.first_day to the day of their first value")
    if feeder is None:
        raise ConfigError("load shapes belong to the loads of one feeder, and there is none")
    shapes = read_opendss_shapes(
        section.path or Path(),
        first_day=section.first_day,
        nominal_kw={load.name: load.kw for load in feeder.loads},
        class_of=classes_of_shapes(config),
        step_minutes=section.step_minutes,
        rules=_rules(config),
    )
    _check_class_file(config, shapes.history)
    return shapes


def _rules(config: Config) -> IngestRules:
    """The limits that a config declares.

    The number of records is public, so a load point with too many gaps is replaced, never dropped.
    """
    declared = {"most_placeholders", "typical_kw", "on_suspect_unit", "floor_kw", "most_export", "on_export"}
    return IngestRules(on_rejected="placeholder", **config.loads.model_dump(include=declared))


def _meter_file(config: Config) -> IngestResult:
    section, path = config.loads, config.loads.path or Path()
    if section.services is None or section.first_day is None or section.last_day is None:
        raise ConfigError(
            "the records of a release are declared public, not read off the meters: set loads.services, "
            "loads.first_day and loads.last_day"
        )
    services = read_service_map(section.services)
    days = (section.first_day, section.last_day)
    declared = MeterFormat(section.unit, section.interval_label, section.time_zone, section.step_minutes)
    rules = _rules(config)
    if section.kind == "wide":
        wide = WideColumns(time=section.time_column)
        return read_wide(path, declared, wide, services=services, days=days, rules=rules)
    readings = section.active_column, section.reactive_column
    columns = LongColumns(section.customer_column, section.time_column, *readings)
    return read_long(path, declared, columns, services=services, days=days, rules=rules)


def _bounds_kw(config: Config, history: LoadHistory) -> tuple[FloatArray, FloatArray] | None:
    """(load point,) loads [kW] that the fit will cut at; None if it lacks scales or labels."""
    partly_labelled = None in history.class_label and any(history.class_label)
    if partly_labelled or (config.model.use_scale and history.scale_kw is None):
        return None  # the plan says so, before anything is spent
    names = class_names(config, history.class_label)
    options = fit_options_of(config, names)
    if config.model.private_classes:
        bounds = [options.widest(names)] * history.n_load_points
    else:
        bounds = [options.bounds_of(label or ONE_CLASS) for label in history.class_label]
    low, high = np.array(bounds).T
    scale = history.scale_kw if config.model.use_scale and history.scale_kw is not None else 1.0
    return low * scale, high * scale


def _check_class_file(config: Config, history: LoadHistory) -> None:
    """Refuse a class file that is not about exactly the load shapes."""
    if config.loads.classes is None:
        return
    shapes, declared = {name.casefold() for name in history.load_points}, classes_of_shapes(config).keys()
    missing, strange = sorted(shapes - declared), sorted(declared - shapes)
    if missing:
        raise LoadDataError(f"the class file lacks the load shape '{missing[0]}'; it must state all of them")
    if strange:
        raise LoadDataError(f"the class file names '{strange[0]}', a load without a load shape; remove it")


def solar_of(config: Config, feeder: Feeder, irradiance: FloatArray | None) -> Solar:
    if irradiance is None or config.pv is None:
        return Solar()
    curve = _CURVES.get(config.pv.volt_var)
    voltvar = None if curve is None else VoltVar.for_feeder(feeder, curve)
    generation = Generation.from_irradiance(feeder, irradiance)
    return Solar(generation, voltvar, curve, use_file_curves=config.pv.volt_var == "file")


def irradiance_of(config: Config, feeder: Feeder, steps: int) -> FloatArray | None:
    if config.pv is None:
        return None
    if not feeder.pv:
        raise ConfigError("the config has a [pv] section, but the feeder has no PV system; remove it")
    frozen = getattr(config.network, "controls", "frozen") == "frozen"
    if config.pv.volt_var == "file" and frozen and any(pv.curve for pv in feeder.pv):
        raise ConfigError(
            "pv.volt_var = 'file' needs controls that act, and those of this release are frozen; set it to "
            "'none', 'category A' or 'category B'"
        )
    if config.pv.irradiance is not None:
        return read_irradiance(config.pv.irradiance, steps, [pv.name for pv in feeder.pv])
    sun = clear_sky(config.pv.latitude or 0.0, DAYS_OF_YEAR, steps, config.first_day_of_sun)
    return np.repeat(sun[:, :, None], len(feeder.pv), axis=2)


@dataclass(frozen=True, eq=False)
class Almanac:
    """PUBLIC. Days of the release, holidays and weather.

    Attributes
    ----------
    calendar : consecutive days of the release; None where its days have no dates.
    holidays : days off besides Saturdays and Sundays, of any year.
    weather : of the days of the meters and of the release, perhaps of more; None without.
    """

    calendar: Calendar | None = None
    holidays: frozenset[dt.date] = frozenset()
    weather: Weather | None = None

    @property
    def released(self) -> DayTable | None:
        """What is published: dates, holidays and weather of the released days alone."""
        if self.calendar is None:
            return None
        days = self.calendar.days
        return DayTable(self.calendar, None if self.weather is None else self.weather.on(days))

    def of(self, days: Sequence[dt.date]) -> Calendar:
        """The calendar of other days, such as the days of the meters."""
        return Calendar(tuple(days), self.holidays)

    def check_meters(self, days: Sequence[dt.date]) -> None:
        """Refuse weather that does not cover the days of the meters."""
        if self.weather is not None:
            self.weather.require(days, "days of the meters")

    def facts_of(self, days: Sequence[dt.date]) -> DayFacts:
        """What a model of histories knows of its days, all of it published with the model."""
        return DayFacts(
            dates=tuple(day.isoformat() for day in days),
            off=tuple(self.of(days).off.tolist()),
            covariates=tuple((name, tuple(of.tolist())) for name, of in self.figures_of(days).items()),
        )

    def first(self, days: int) -> Calendar:
        """The calendar of the first days of the release."""
        assert self.calendar is not None  # days without dates are independent draws
        return Calendar(self.calendar.days[:days], self.holidays)

    def figures_of(self, days: Sequence[dt.date]) -> dict[str, FloatArray]:
        """Name → (day,) figures of the weather of these days; none without weather."""
        if self.weather is None:
            return {}
        return dict(zip(self.weather.names, self.weather.features(days).T, strict=True))

    def chunks(self) -> Iterator[bytes]:
        """The bytes that identify it, for a hash."""
        days = () if self.calendar is None else self.calendar.days
        yield repr((days, sorted(self.holidays))).encode()
        if self.weather is not None:
            yield repr((self.weather.days, self.weather.names)).encode()
            yield np.ascontiguousarray(self.weather.values).tobytes()


def almanac_of(config: Config) -> Almanac:
    """Calendar and weather of a config, which cover the days of the release.

    Raises
    ------
    ConfigError : a file cannot be used, or the weather lacks a day of the release; nothing was spent.
    """
    declared, first_day = config.calendar.holidays, config.first_day
    holidays = read_holidays(declared) if isinstance(declared, Path) else frozenset(declared)
    calendar = None if first_day is None else Calendar.starting(first_day, config.release.days, holidays)
    weather, section = None, config.weather
    if section is not None:
        fmt = WeatherFormat(section.time, section.temperature, section.irradiance, section.time_zone)
        weather = Weather.read(section.path, config.loads.time_zone, fmt)
    if weather is not None and calendar is not None:
        hint = "" if config.release.first_day else " (it starts there unless release.first_day is set)"
        weather.require(calendar.days, f"days of the release from {first_day} on{hint}")
    return Almanac(calendar, holidays, weather)


def declared_days(config: Config) -> tuple[dt.date, ...]:
    """PUBLIC. The days of the meters, as far as the config declares them; none where it does not."""
    first, last = config.loads.first_day, config.loads.last_day
    if first is None or last is None:
        return ()
    return Calendar.starting(first, (last - first).days + 1).days


HISTORY, STRUCTURED, PLAIN = "history", "structured", "plain"


@dataclass(frozen=True)
class ChosenEstimator:
    """PUBLIC. The estimator of a load model, and why it is that one.

    Attributes
    ----------
    name : as the config would state it.
    why : what decided, in words.
    """

    name: str
    why: str


def chosen_estimator(config: Config, n_days: int | None = None) -> ChosenEstimator:
    """The estimator that a config names, or the one it gets where it names none.

    Parameters
    ----------
    n_days : public number of days of the meters; None for what the config declares.
    """
    if config.model.estimator is not None:
        return ChosenEstimator(config.model.estimator, "model.estimator says so")
    days = config.loads.declared_days if n_days is None else n_days
    obstacle = _no_histories(config, days)
    if obstacle is not None:
        return ChosenEstimator(STRUCTURED, f"days are independent draws: {obstacle}")
    return ChosenEstimator(HISTORY, f"the meters have {days} days, {FEWEST_DAYS} or more")


def _no_histories(config: Config, days: int | None) -> str | None:
    """Why the estimator 'history' is not chosen, in words; None if it is."""
    if not config.network.dated:
        return f"the evidence of mode '{config.network.mode}' is about such days"
    if config.model.unit != "load-point":
        return f"model.unit is '{config.model.unit}', and a history is no single day"
    if days is None:
        return "the config does not declare how many days the meters have"
    if history_obstacle(config, days) is None:
        return None
    return (
        f"the meters have {days} days and steps of {config.loads.step_minutes} min, and 'history' needs "
        f"{FEWEST_DAYS} days and steps of {LONGEST_STEP_MINUTES} min or less"
    )


def budget_of(config: Config) -> Budget:
    """What the fit may spend of the customers' privacy."""
    return Budget(config.model.epsilon, config.model.delta, PrivacyUnit(config.model.unit))


def fit_options_of(
    config: Config, classes: Iterable[str] = (), days: DayFacts | None = None, estimator: str | None = None
) -> FitOptions:
    """Public choices of the fit.

    Parameters
    ----------
    classes : names of all classes; needed where some have their own margins.
    days : days of the meters; without them only what the config declares of days is known.
    estimator : name of the estimator, where it is not the config that decides.
    """
    section, own = config.model, config.model.bounds_of_class
    factor = FixedPowerFactor(
        {name: tan_theta_of(factor) for name, factor in sorted(section.power_factor_of_class.items())},
        tan_theta_of(section.power_factor),
    )
    reactive: ReactiveChoice = factor
    if config.network.random_reactive:
        reactive = PublicSpread(factor, section.reactive_spread, section.reactive_correlation_minutes)
    name = estimator or chosen_estimator(config, None if days is None else len(days.dates)).name
    whole = name == HISTORY
    return FitOptions(
        bounds={name: own.get(name, section.bounds) for name in classes} if own else section.bounds,
        estimator=History() if whole else Plain() if name == PLAIN else Structured(),
        classes=PrivateClasses(section.private_classes) if section.private_classes else PublicLabels(),
        use_scale=section.use_scale,
        reactive=reactive,
        variance_floor=section.variance_floor,
        days=days if whole else None,
    )
