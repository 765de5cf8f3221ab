"""Write the config of a feeder and its meters, and the service map where there is none; all or nothing."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Protocol

from dp_powerflow._files import write_named
from dp_powerflow._names import RELEASE_RULE
from dp_powerflow.config import Config, TwinNetwork, parse_config
from dp_powerflow.errors import ConfigError, FeederError, LoadDataError, ServiceMapError
from dp_powerflow.grid.sources import BUILT_IN, SIMBENCH
from dp_powerflow.loads.declared import ServiceMap, one_service_each, read_service_map
from dp_powerflow.pipeline.customers import Services, count_customers
from dp_powerflow.pipeline.inputs import require_declared_taps
from dp_powerflow.pipeline.nodes import some_loaded_nodes
from dp_powerflow.pipeline.setup.meters import (
    BOUNDS_OF_SCALE,
    DAYS,
    FIRST_DAY_OF_YEAR,
    VARIANCE_FLOOR,
    CustomerKind,
    DeclaredFormat,
    FeederFacts,
    MeterFacts,
    class_of_nodes,
    delta_for,
    feeder_facts,
    internal_list,
    kind_of,
    meter_facts,
    twin_problems,
)

_COMMENTS_AT = 32

Value = str | int | float | bool | dt.date | list[str] | tuple[float, float]


class SetupMode(Protocol):
    """What of a config depends on how the network is treated."""

    @property
    def acting(self) -> bool:
        """Whether controls act, so that volt-var curves of the file do."""

    def taps(self) -> Iterable[str]:
        """Lines where no taps are declared."""

    def bounds(self, facts: PublicFacts, kind: CustomerKind) -> tuple[float, float]:
        """Public bounds of a kind of customers [kW, or relative to the scale]."""

    def nodes(self, facts: PublicFacts) -> Iterable[str]:
        """Lines of [nodes] that say what a node draws."""

    def network(self) -> Iterable[str]:
        """Lines of [network]."""


@dataclass(frozen=True)
class PublicFacts:
    """All that a config is written from; paths are relative to it.

    Attributes
    ----------
    source, taps : of the feeder; taps are declared public.
    islanded, pv, curves : structure of the feeder.
    meters : facts of format of the meter file.
    path, services : of the meter file and its service map.
    classes : public class of every load point of the map, () if it has none.
    scale_kw : mean public scale of the map [kW], None if it has none.
    written_scale_kw : public scale that `init` writes into its own map [kW], None if none.
    load_points : how many there are in the map.
    mode : what a config of the network mode says.
    latitude, days, release_id, output, published : as asked for.
    """

    source: str
    path: str
    services: str
    meters: MeterFacts = field(repr=False)
    load_points: int
    mode: SetupMode
    release_id: str
    output: str
    days: int
    published: dt.date
    taps: str | None = None
    islanded: bool = False
    pv: bool = False
    curves: bool = False
    latitude: float | None = None
    classes: tuple[str, ...] = field(default=(), repr=False)
    scale_kw: float | None = None
    written_scale_kw: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Different classes, in order."""
        return tuple(sorted(set(self.classes)))

    @property
    def other_labels(self) -> tuple[str, ...]:
        """Classes with other public figures than those of the nodes."""
        return tuple(label for label in self.labels if kind_of(label) is not self.kind)

    @property
    def load_class(self) -> str | None:
        """Class of all nodes."""
        return class_of_nodes(self.classes) if self.classes else None

    @property
    def kind(self) -> CustomerKind:
        """Customers at the nodes."""
        return kind_of(self.load_class)

    @property
    def any_scale_kw(self) -> float:
        """Mean public scale of a load point, declared or written [kW]."""
        return self.scale_kw or self.written_scale_kw or self.kind.kw_per_customer

    @property
    def scaled(self) -> bool:
        """Whether loads are relative to a scale: where one is declared, and on the true network."""
        return self.scale_kw is not None or self.written_scale_kw is not None


def config_text(facts: PublicFacts) -> str:
    """The config file."""
    blocks = [
        _head(),
        _feeder(facts),
        _loads(facts),
        _model(facts),
        _nodes(facts),
        _pv(facts),
        facts.mode.network(),
        _release(facts),
        _publication(facts),
    ]
    return "\n".join("\n".join(lines) + "\n" for lines in blocks)


def _head() -> Iterable[str]:
    return (
        "# A release of dp-powerflow, written by 'dp-powerflow init'. Everything here is declared PUBLIC.",
        "# From the meters and the feeder it takes facts of format only: columns, stamps, names, structure.",
        "# All figures are public ones. Change them on public grounds, never by what private data show.",
        "# Paths are relative to this file. 'dp-powerflow init other.toml' writes an example of every key.",
    )


def _feeder(facts: PublicFacts) -> Iterable[str]:
    yield "[feeder]"
    yield entry("source", facts.source, "the network: PRIVATE but for its structure and nominal loads")
    if facts.taps is not None:
        yield entry("taps", facts.taps, "regulator taps, declared public")
    else:
        yield from facts.mode.taps()
    why = (
        "some nodes have no path to a source: they are left out" if facts.islanded else "no node is islanded"
    )
    yield entry("drop_islanded", facts.islanded, why)
    yield entry("base_mva", 1.0, "power base per phase")


def _loads(facts: PublicFacts) -> Iterable[str]:
    meters = facts.meters
    columns = meters.columns
    yield "[loads]"
    layout = "a row per customer and interval" if columns.kind == "long" else "a column per customer"
    yield entry("kind", columns.kind, layout)
    yield entry("path", facts.path, "the readings: PRIVATE")
    yield entry(
        "services", facts.services, f"declared public: who is a customer ({facts.load_points} services)"
    )
    yield entry("unit", meters.unit, "as declared: kW | W | kWh per interval | Wh per interval")
    yield entry("interval_label", meters.interval_label, "a stamp names the start | end of its interval")
    yield entry("time_zone", meters.time_zone, "days are cut in it")
    yield entry("step_minutes", meters.step_minutes, "of the stamps that most customers share")
    yield entry("first_day", meters.first_day, "--first-day and --last-day, declared public")
    yield entry("last_day", meters.last_day)
    yield entry("time_column", columns.time)
    if columns.customer is not None and columns.active is not None:
        yield entry("customer_column", columns.customer)
        yield entry("active_column", columns.active)
    if columns.reactive is not None:
        line = entry("reactive_column", columns.reactive, "not needed: reactive load follows power_factor")
        yield f"# {line}"
    yield entry("most_placeholders", 0.05, "share of services with too many gaps; above it nothing is spent")
    yield "# typical_kw = 0.5              # public mean load of a typical customer: catches a unit off by 4"
    yield entry("most_clipped", 0.05, "share of services mostly outside the bounds; above it the same")


def _model(facts: PublicFacts) -> Iterable[str]:
    bounds, unit = facts.mode.bounds(facts, facts.kind), "relative to scale_kw" if facts.scaled else "kW"
    yield "[model]"
    yield entry("epsilon", 1.0, "budget of the customers: all days of one service")
    yield entry("delta", delta_for(facts.load_points), "well below one over the number of services")
    yield entry(
        "unit", "load-point", "load-point: all days of a service | load-point-day: one day (the paper's)"
    )
    yield '# estimator = "structured"      # independent days; without it, on a twin with 14 days of meters,'
    yield "#                               # days follow one another, and the meters' dates are published"
    why = "fit loads over scale_kw of the service map" if facts.scaled else "fit kW: no scale is declared"
    yield entry("use_scale", facts.scaled, why)
    yield entry("bounds", bounds, f"[{unit}] of a {facts.kind.name}: a public figure; what is beyond is cut")
    yield entry("variance_floor", VARIANCE_FLOOR, "of the log load; public")
    yield entry("power_factor", facts.kind.power_factor, f"of a {facts.kind.name}; public, lagging")
    if others := facts.other_labels:
        yield "[model.bounds_of_class]"
        yield from (
            entry(
                quoted(label),
                facts.mode.bounds(facts, kind_of(label)),
                f"[{unit}] of a {kind_of(label).name}",
            )
            for label in others
        )
        yield "[model.power_factor_of_class]"
        yield from (entry(quoted(label), kind_of(label).power_factor) for label in others)


def _nodes(facts: PublicFacts) -> Iterable[str]:
    yield "[nodes]"
    if facts.load_class is not None:
        yield entry("load_class", facts.load_class, f"of every load; there are {', '.join(facts.labels)}")
    yield from facts.mode.nodes(facts)
    if facts.labels:
        yield "# [nodes.class_of_load]         # class of single loads of the feeder"
        yield f"# load_1 = {json.dumps(facts.labels[-1], ensure_ascii=False)}"


def _pv(facts: PublicFacts) -> Iterable[str]:
    if not facts.pv:
        return ("# No [pv]: the feeder has no PV system.",)
    if facts.latitude is None:
        return (
            "# The feeder has PV systems. They are idle without a sun; --latitude writes these lines:",
            "# [pv]",
            "# latitude = 37.8               # a year of clear sky",
        )
    file_curves = facts.curves and facts.mode.acting
    return (
        "[pv]",
        entry("latitude", facts.latitude, "a year of clear sky; the feeder has PV systems"),
        entry("first_day_of_year", FIRST_DAY_OF_YEAR, "from the equinox on"),
        entry("volt_var", "file" if file_curves else "none", "none | category A | category B | file"),
    )


def _release(facts: PublicFacts) -> Iterable[str]:
    return (
        "[release]",
        entry("id", facts.release_id, "a new one for every release"),
        entry("days", facts.days, "days of the corpus; on a twin more days cost nothing"),
        entry("output", facts.output, "what is published"),
        entry("state", "private-state", "keys, ledger, internal reports: never publish this directory"),
        "# epsilon_cap = 4.0             # over all releases from these customers; else what this one costs",
    )


def _publication(facts: PublicFacts) -> Iterable[str]:
    return (
        "# What card and metadata of the release say; nothing else depends on it.",
        "[publication]",
        entry("date", facts.published, "day of publication, as you declare it"),
        '# publisher = "…"',
        '# license = "CC-BY-4.0"         # identifier of the SPDX list; without it "not stated"',
        '# citation = "…"',
        '# url = "https://…"',
    )


def entry(key: str, value: Value, comment: str = "") -> str:
    """A line of a config."""
    text, said = f"{key} = {_toml(value)}", " ".join(comment.split())  # a comment ends with its line
    return f"{text:<{_COMMENTS_AT - 1}} # {said}" if said else text


def quoted(label: str) -> str:
    """A class label as a key."""
    return json.dumps(label, ensure_ascii=False)


def _toml(value: Value) -> str:
    """A value of TOML; strings of JSON are strings of TOML."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class TwinSetup:
    """Power flow on a twin; a load is a sum of customers.

    Attributes
    ----------
    needs_scale : whether every load point must have a public scale.
    note : what the producer must know of the mode.
    """

    acting: bool = True
    needs_scale: bool = False
    note: str | None = None

    def taps(self) -> Iterable[str]:
        return ('# taps = "taps.csv"             # regulator taps, declared public; a twin solves its own',)

    def bounds(self, facts: PublicFacts, kind: CustomerKind) -> tuple[float, float]:
        return BOUNDS_OF_SCALE if facts.scaled else kind.bounds_kw

    def nodes(self, facts: PublicFacts) -> Iterable[str]:
        """Customers of a load."""
        why = "nominal kW of a load per customer: 3 to 4 with electric heating"
        yield entry("kw_per_customer", facts.kind.kw_per_customer, why)
        if others := facts.other_labels:
            yield "[nodes.kw_per_customer_of_class]"
            yield from (entry(quoted(label), kind_of(label).kw_per_customer) for label in others)

    def network(self) -> Iterable[str]:
        """Differential privacy worth having: ε = 1 for a change of 5 % of a line."""
        return (
            "[network]",
            entry("mode", "twin-network", "power flow on a differentially private twin of the feeder"),
            entry("epsilon", 1.0, "differential privacy of one line, for any number of days"),
            entry("change", 0.05, "neighbours: R and X of one line changed by factors up to 1.05"),
            entry(
                "id", "twin-1", "the same twin serves every release; a new id is a new twin and is paid for"
            ),
            entry("noise", "laplace", "laplace: no delta | gaussian: with a delta, for many twins"),
            entry("lines", "impedance", "R and X of every line | length, where conductor codes are public"),
            entry("transformers", False, "true: their impedances are protected too; false: they are public"),
            entry("capacitors", False, "true: their sizes too"),
            entry("pv", False, "true: capacities of PV systems too"),
            entry("released", "all", "voltages of every node | loaded: of those with a load"),
            entry("controls", "day", "regulators and capacitors act through a day"),
            entry(
                "also_publish",
                ["loads", "head", "states", "connections"],
                "P and Q, head, taps, buses and what joins them",
            ),
            entry("coordinates", "private", "public: of the buses; lengths of lines are then NOT protected"),
        )

    def problems(self, config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
        """Why no twin can be drawn of the feeder, and which nodes of the service map it lacks; INTERNAL."""
        assert isinstance(config.network, TwinNetwork)
        found = twin_problems(facts, config.network.design)
        try:
            count_customers(config, facts.feeder, services)
        except ConfigError as error:
            return (*found, str(error))
        return found


@dataclass(frozen=True)
class TrueSetup:
    """Power flow on the true network, the paper's Algorithm 1; a node is one load point scaled up.

    Attributes
    ----------
    needs_scale, note : as of a twin.
    """

    acting: bool = False
    needs_scale: bool = True
    note: str | None = (
        "mode true-network is per-instance evidence, not differential privacy, and covers next to nothing"
    )

    def taps(self) -> Iterable[str]:
        return ()

    def bounds(self, facts: PublicFacts, kind: CustomerKind) -> tuple[float, float]:
        return kind.bounds_of_one(facts.any_scale_kw)

    def nodes(self, facts: PublicFacts) -> Iterable[str]:
        """The upper bound of a node is its nominal load, which feeders are built for: a public rule."""
        factor = float(f"{1.0 / self.bounds(facts, facts.kind)[1]:.2g}")
        yield entry("scale_factor", factor, "at its upper bound a node draws its nominal load, no more")
        yield "#                               # a load point of several customers has lower peaks: more load"

    def network(self) -> Iterable[str]:
        """A policy that says of itself that it protects nothing much."""
        return (
            "# The paper's Algorithm 1 as printed: fixed power factors, days cut to the bounds, r = 1e-4.",
            "# Per-instance evidence, NOT differential privacy. It covers no change of a line: one snapshot",
            "# tells a changed line from the true one. Mode twin-network protects lines.",
            "[network]",
            entry("mode", "true-network", "power flow on the true network"),
            entry("bound", "paper", "paper: formula as printed | corrected: repaired | full-support"),
            entry("radius", 1e-4, "neighbours: changes of existing lines up to this Frobenius norm [p.u.]"),
            "# The corrected variant instead: reactive load is random too and days pass the bounds, so that",
            "# changes of a line are covered, far below what anybody could measure.",
            '# bound = "full-support"',
            "# radius = 1e-12",
            entry("epsilon", 100.0, "policy for the whole corpus: no meaningful protection, and it says so"),
            entry("delta", 0.2),
            entry("calibration_days", 1000, "of the Monte Carlo calibration"),
            entry("require_evidence", False, "true: refuse a release that its evidence does not support"),
        )

    def problems(self, config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
        """Why the feeder cannot be solved with fixed taps; INTERNAL."""
        try:
            some_loaded_nodes(facts.feeder)
            require_declared_taps(config, facts.feeder)
        except ConfigError as error:
            return (str(error),)
        return ()


MODES: Mapping[str, TwinSetup | TrueSetup] = {"twin-network": TwinSetup(), "true-network": TrueSetup()}
DEFAULT_MODE = next(iter(MODES))


def mode_named(word: str) -> TwinSetup | TrueSetup:
    """The mode of the network that is asked for."""
    if word not in MODES:
        raise ConfigError(f"--mode is one of {', '.join(MODES)}, not '{word}'")
    return MODES[word]


_TOP = """\
# A release of dp-powerflow. Everything here is declared PUBLIC: never tune it on the private data.
# Paths are relative to this file. 'dp-powerflow init --feeder F --meters M' writes one for your own data.

[feeder]
source = "ieee123"            # ieee13, ieee123, an OpenDSS .dss file, a pandapower .json file, simbench:CODE
# taps = "taps.csv"           # regulator taps, declared public; without it a twin solves its own
# loads = "loads.csv"         # nominal loads, declared public: name, kw, kvar (customers); else the feeder's
base_mva = 1.0                # power base per phase
drop_islanded = false         # leave out nodes that no source feeds
# accept_difference = 1e-4    # voltages may differ from OpenDSS on the file by this [p.u.]; it is stated

[loads]
kind = "simulated"            # simulated | long | wide | opendss-shapes
# path = "meters.parquet"     # where the readings are (long, wide: CSV or Parquet)
# services = "services.csv"   # public list of customers and the load points they are behind
# classes = "classes.csv"     # of opendss-shapes: public class of every load, columns load, class
# unit = "kWh per interval"   # kW | W | kWh per interval | Wh per interval
# interval_label = "start"    # start | end
# time_zone = "Europe/Berlin" # IANA name; days are cut in it
# first_day = 2024-01-01
# last_day = 2024-12-31
# customer_column = "customer"
# time_column = "time"
# active_column = "active"
# reactive_column = "reactive"
# most_placeholders = 0.05    # share of load points with too many gaps; above it nothing is spent
# most_clipped = 0.05         # share of load points that are mostly outside the bounds; above it the same
# typical_kw = 0.5            # public mean load of a typical customer: with it a factor of 4 is seen
# on_suspect_unit = "error"   # readings that look like another unit: error | keep (only reported)
# floor_kw = 0.01             # small loads, zero and below, are raised to it
# most_export = 0.01          # energy that all load points may feed in, as a share of what they draw
# on_export = "error"         # if they feed in more: error | floor (what is fed in is dropped)
step_minutes = 15
load_points = 1000            # of simulated loads
homes_only = false            # true: homes alone, else homes, shops and works
# homes_per_point = 20        # with homes_only: homes behind a load point, which is their sum
days = 120                    # of simulated loads
seed = 0                      # of simulated loads

[model]
epsilon = 1.0                 # budget of the customers
delta = 1e-5
unit = "load-point"           # load-point (all days of a service) | load-point-day (the paper's)
# estimator = "history"       # history: customers persist, days follow one another (a twin, 14 days of meters
#                             # or more); structured | plain: independent days; without it as the days allow
private_classes = 0           # 0: public labels; 2 or more: found by private K-means, paid from the budget
components = 1                # Gaussians per class (the closed-form certificate needs 1)
variance_floor = 1e-2
power_factor = 0.97           # declared public, cos of the angle; negative: leading, as in OpenDSS
reactive_spread = 0.15        # full support: random part of q, as a share of the mean load
reactive_correlation_minutes = 120.0
use_scale = true              # loads relative to the public scale of their load point
bounds = [0.005, 1.0]         # declared p_min, p_max, relative to the scale (or kW without one)
# reuse = "demo-0"            # take the load model of this earlier release: costs the customers nothing more
# [model.bounds_of_class]     # margins of some classes, instead of bounds; private ones are "class 1", ...
# commercial = [0.05, 3.0]
# [model.power_factor_of_class]
# commercial = 0.9

[nodes]
load_class = "residential"    # class of every load; without it the model's first
"""

_NODES_OF: dict[str, str] = {
    "twin-network": """\
kw_per_customer = 1.5         # public: nominal kW of a load that stand for one customer
# scale_factor = 2.0          # of mode true-network instead: a node is one customer scaled up
""",
    "true-network": """\
scale_factor = 2.0            # public: times the model's relative load; at its upper bound a node draws twice
#                             # its nominal load, for which the feeder still has a solution
# kw_per_customer = 1.5       # of mode twin-network instead: a load is a sum of customers
""",
}

_NODES = """\
scale = "nominal"             # a node's public scale is its nominal load
# [nodes.kw_per_customer_of_class]  # of mode twin-network
# commercial = 10.0
# [nodes.class_of_load]
# s76a = "commercial"
# [nodes.power_factor_of_load] # of single loads, instead of that of their class; public
# s76a = -0.98

# [pv]
# latitude = 37.8             # a year of clear sky at this latitude, from release.first_day on; or instead
# first_day_of_year = 1       # of the clear sky, where release.first_day is not set
# irradiance = "irradiance.csv"  # public shares of peak, a line per step: one day or many, a column or a
#                             # file (folder) per PV system; day d of the corpus has day d modulo the days
# volt_var = "category B"     # none | category A | category B (IEEE 1547-2018) | file: its own curves

# [calendar]                  # of mode twin-network
# holidays = [2024-12-25, 2024-12-26]  # public days off beside weekends; or a text file, one date a line

# [weather]                   # of mode twin-network: public, of the meters' days and of the release's
# path = "weather.csv"        # a row per reading, sub-hourly to daily; its daily figures are published
# time = "time"
# temperature = "temperature" # column [°C]
# irradiance = "ghi"          # column [W/m²], if there is one
# time_zone = "UTC"           # of stamps without an offset; without it that of the meters
"""

_NETWORK_OF: dict[str, tuple[str, str]] = {
    "twin-network": (
        "Differential privacy of the network: power flow on a twin whose lines carry noise, drawn once.",
        """\
mode = "twin-network"
epsilon = 1.0                 # differential privacy of one element of the network, for any number of days
change = 0.05                 # neighbours: one element, its figures changed by factors up to 1.05
id = "twin-1"                 # the same twin serves every release; a new id is a new twin and is paid for
noise = "laplace"             # laplace (no delta), or gaussian with a delta: for many twins or changed lines
lines = "impedance"           # R and X of every line; or length, where conductor codes are public
transformers = false          # true: their impedances are protected too; what is not protected is public
capacitors = false            # true: their sizes
pv = false                    # true: capacities of PV systems
# protect = "if present"      # what a network has not is no reason to refuse it; the manifest says so
# charging_epsilon = 0.2      # share of epsilon for a line's charging; without it charging follows its length
# code_epsilon = 0.5          # share of epsilon for conductor codes (lines = "length"); else they are public
# x_ohm_per_km = 0.4          # public reactance and charging of lines without a conductor code
# c_nf_per_km = 10.0
released = "all"              # loaded: nodes with a load of their own; all: every node of the twin
controls = "day"              # regulators and capacitors act through a day; snapshot: each step for itself;
#                             # frozen: fixed taps, every load constant power at its node
also_publish = ["loads", "head", "states", "connections"]  # P and Q per node, power of the source, taps and
#                             # capacitors, buses and what joins them
coordinates = "private"       # public: those of the buses too; lengths of lines are then NOT protected
publish = "voltages"          # voltages | network | network and loads: tables for graph models in twin/,
#                             # with controls = "frozen" only
# graph_days = 7              # days of the corpus in those tables; without it all
# graph_frame = "rotated"     # voltages turned back by nominal angles, all near 1; "phasors": as they are
# graph_merges_switches = true  # nodes joined by a switch of next to no impedance are one bus of the tables
""",
    ),
    "true-network": (
        "The paper's Algorithm 1 as printed: per-instance evidence, NOT differential privacy of a line.",
        """\
mode = "true-network"
bound = "paper"               # paper: fixed power factors, days truncated to the bounds, formula as printed
#                             # corrected: the same with a repaired bound; full-support: reactive load is
#                             # random too, days pass the bounds, lines are covered at radius = 1e-12
radius = 1e-4                 # neighbours: changes of existing lines up to this Frobenius norm [p.u.]
epsilon = 100.0               # policy for the whole corpus
delta = 0.2
calibration_days = 1000
line_change = 0.01            # exact losses per line: neighbours scale one line's admittance by 1 ± this
line_draws = 0                # days drawn for them (INTERNAL); 0: none, 300 or more to say anything
require_evidence = false      # true: refuse the release where the evidence does not support the policy
""",
    ),
}

_BOTTOM = """\
[release]
id = "demo-1"
days = 28
# first_day = 2024-01-01      # date of the first day, of mode twin-network; without it 2023-01-01
output = "release"
state = "private-state"       # keys, ledger, internal reports: never publish this directory
# epsilon_cap = 4.0           # over all releases from these customers; default: this release's epsilon
# network_epsilon_cap = 400.0
# network_delta_cap = 0.5
# continues_loads = "loads-1" # these meter data are a new version of that account's
# continues_network = "network-instance-1"
# These meter data share nobody with those accounts, this network no line; every account is named.
# unrelated_loads = { accounts = ["loads-1"], reason = "another town" }
# unrelated_network = { accounts = ["network-instance-1 to network-instance-3"], reason = "another town" }
# insecure_seed = 0           # demos and tests only: the result says so and is not a release

# What card and metadata of the release say; nothing else depends on it.
# [publication]
# publisher = "Utility of Town"
# license = "CC-BY-4.0"       # identifier of the SPDX list; without it "not stated"
# citation = "Utility of Town. Voltages of a feeder, 2024."
# date = 2024-12-01           # day of publication; declared, never the clock
# url = "https://data.example.org/voltages"
"""


def example(mode: str = "twin-network") -> str:
    """The commented example of a mode; the keys of the other one are comments."""
    (other,) = _NETWORK_OF.keys() - {mode}
    (words, keys), (other_words, other_keys) = _NETWORK_OF[mode], _NETWORK_OF[other]
    network = f"[network]\n# {words}\n{keys}"
    instead = f"# Instead, mode {other}. {other_words}\n{_commented(other_keys)}"
    return "\n".join((_TOP + _NODES_OF[mode] + _NODES, network, instead, _BOTTOM))


def _commented(lines: str) -> str:
    return "".join(line if line.startswith("#") else f"# {line}" for line in lines.splitlines(keepends=True))


_FEWEST = 2


@dataclass(frozen=True)
class SetupRequest:
    """What somebody asks of `init`.

    Attributes
    ----------
    config : file to write.
    feeder : as `open_feeder` takes it; a path is relative to the working directory.
    meters, services, taps : files.
    declared : what is declared of the meter file.
    mode : of the network.
    days : of the corpus, None for the usual number.
    release_id : None for one that follows from the name of the config.
    latitude : of the sun, None without one [degrees].
    published : day of publication that the config declares, by default today.
    """

    config: Path
    feeder: str
    meters: Path
    services: Path | None = None
    taps: Path | None = None
    declared: DeclaredFormat = field(default_factory=DeclaredFormat)
    mode: str = DEFAULT_MODE
    days: int | None = None
    release_id: str | None = None
    latitude: float | None = None
    published: dt.date = field(default_factory=dt.date.today)


@dataclass(frozen=True)
class Written:
    """What `init` has written, and what the producer should know (INTERNAL)."""

    config: Path
    services: Path | None
    notes: tuple[str, ...]


def set_up(request: SetupRequest, say: Callable[[str], None] = lambda _: None) -> Written:
    """Write a config that fits a feeder and its meters; nothing private is in it.

    Parameters
    ----------
    say : told what takes long.

    Raises
    ------
    DpPowerflowError
        Nothing was written; says what to declare, or what in the feeder is not supported.
    """
    mode = mode_named(request.mode)
    refuse_overwriting(request.config)  # a folder too, which may have no name
    stem = _name(request.config.stem)
    own_map = request.config.with_name(f"{stem}-services.csv")
    say("reading the feeder")
    feeder = feeder_facts(_known_feeder(request.feeder), request.taps)
    say("reading the stamps of the meters")
    meters = meter_facts(request.meters, request.declared)
    services = (
        one_service_each(meters.customers) if request.services is None else read_service_map(request.services)
    )
    _check_services(services)
    scale_kw = _written_scale(request, services)
    writes_map = request.services is None or scale_kw is not None
    map_text = _map_text(services, scale_kw) if writes_map else ""
    map_is_there = writes_map and _has(own_map, map_text)  # a killed run wrote it, and no config
    if writes_map and not map_is_there:
        refuse_overwriting(own_map)
    facts = _public(request, feeder, meters, services, own_map if writes_map else request.services or own_map)
    text = config_text(facts)
    say("checking the feeder")
    config = parse_config(tomllib.loads(text), base=request.config.resolve().parent)
    problems = mode.problems(config, feeder, _declared(services))
    if problems:
        raise FeederError(internal_list(problems))
    if writes_map and not map_is_there:
        write_new(own_map, map_text)
    write_new(request.config, text)
    return Written(request.config, own_map if writes_map else None, _notes(request, facts, feeder, services))


def write_example(path: Path, mode: str) -> Written:
    """Write the example of a mode: every key, on public data."""
    mode_named(mode)
    text = example(mode)
    refuse_overwriting(path)
    write_new(path, text)
    return Written(path, None, ())


def refuse_overwriting(path: Path) -> None:
    """Refuse to write where something is."""
    if path.exists():
        raise ConfigError(f"{path} exists already; give another name, or move it away", code="output-taken")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist; make it first", code="config-not-found")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there, whole or not at all."""
    write_named(path, text.encode())


def _has(path: Path, text: str) -> bool:
    """Whether a file is there with this very text."""
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _name(stem: str) -> str:
    """The name of a config file as ids and names of files begin with it."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in stem)
    return plain.strip("-_")[:40].strip("-_") or "release"


def _known_feeder(feeder: str) -> str:
    """The feeder, its file looked for first."""
    lowered = feeder.lower()
    if lowered in BUILT_IN or lowered.startswith(SIMBENCH) or Path(feeder).is_file():
        return feeder
    if lowered.endswith((".dss", ".json")):
        raise FeederError(f"{feeder} does not exist; check the path of --feeder", code="feeder-not-found")
    return feeder


def _check_services(services: ServiceMap) -> None:
    points, labelled = len(services.load_points), len(services.class_of)
    if points < _FEWEST:
        raise LoadDataError(
            "there is only one load point, but differential privacy hides one customer among many; add "
            "customers",
            code="too-few-customers",
        )
    if 0 < labelled < points:
        raise ServiceMapError(
            f"{points - labelled} of {points} load points of the service map have no class; give one to all "
            "or to none"
        )


def _written_scale(request: SetupRequest, services: ServiceMap) -> float | None:
    """The public scale that the map lacks and the true network needs: a node is one customer scaled up."""
    if not mode_named(request.mode).needs_scale or services.scale_kw_of:
        return None
    labels = tuple(services.class_of.values())
    return kind_of(class_of_nodes(labels) if labels else None).kw_per_customer


def _public(
    request: SetupRequest, feeder: FeederFacts, meters: MeterFacts, services: ServiceMap, map_path: Path
) -> PublicFacts:
    folder, stem = request.config.resolve().parent, _name(request.config.stem)
    release_id = f"{stem}-1" if request.release_id is None else request.release_id
    problem = RELEASE_RULE.problem(release_id)
    if problem is not None:
        raise ConfigError(f"--id '{release_id}' is not usable: {problem}")
    is_file = request.feeder.lower().endswith((".dss", ".json"))
    scales = tuple(services.scale_kw_of.values())
    return PublicFacts(
        source=_relative(Path(request.feeder), folder) if is_file else request.feeder,
        taps=None if request.taps is None else _relative(request.taps, folder),
        path=_relative(request.meters, folder),
        services=_relative(map_path, folder),
        meters=meters,
        load_points=len(services.load_points),
        mode=mode_named(request.mode),
        release_id=release_id,
        output=stem,
        days=DAYS if request.days is None else request.days,
        published=request.published,
        islanded=feeder.islanded,
        pv=feeder.pv,
        curves=feeder.curves,
        latitude=request.latitude,
        classes=tuple(services.class_of[point] for point in services.load_points)
        if services.class_of
        else (),
        scale_kw=fmean(scales) if scales else None,
        written_scale_kw=_written_scale(request, services),
    )


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder)).as_posix()


def _declared(services: ServiceMap) -> Services:
    points = services.load_points
    nodes, classes = (
        tuple(of.get(point) for point in points) for of in (services.node_of, services.class_of)
    )
    return Services(nodes, classes)


def _map_text(services: ServiceMap, scale_kw: float | None) -> str:
    """A service map in the order of the ids."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    extra = [("node", services.node_of), ("class", services.class_of)]
    shown = [(name, values) for name, values in extra if values]
    writer.writerow(
        ["customer", "load_point", *(name for name, _ in shown), *(["scale_kw"] if scale_kw else [])]
    )
    for customer, point in sorted(services.load_point_of.items()):
        row = [customer, point, *(values.get(point, "") for _, values in shown)]
        writer.writerow([*row, *([scale_kw] if scale_kw else [])])
    return file.getvalue()


def _notes(
    request: SetupRequest, facts: PublicFacts, feeder: FeederFacts, services: ServiceMap
) -> tuple[str, ...]:
    meters = facts.meters
    absent = len(set(services.customers) - set(meters.customers))
    unlisted = len(set(meters.customers) - set(services.customers))
    days = (meters.last_day - meters.first_day).days + 1
    notes = [
        f"{len(meters.customers)} customers, {days} days from {meters.first_day} to {meters.last_day}, every "
        f"{meters.step_minutes} min, read as {meters.unit}",
        *meters.notes,
    ]
    if request.services is None:
        notes.append(
            f"the customers in {facts.services}, one service each, are declared public with their number; "
            "check that the list follows from contracts, not from who has readings"
        )
    if absent or unlisted:
        notes.append(
            f"{absent} customers of the service map are not in the meter file, and {unlisted} of the meter "
            "file are not in the map; correct the ids before a release"
        )
    if feeder.islanded:
        notes.append("nodes of the feeder that no source feeds are left out (feeder.drop_islanded)")
    if facts.pv and request.latitude is None:
        notes.append("the feeder has PV systems; they are idle unless --latitude gives them a sun")
    if not facts.pv and request.latitude is not None:
        notes.append("the feeder has no PV system; --latitude is not used")
    if (note := mode_named(request.mode).note) is not None:
        notes.append(note)
    return tuple(notes)
