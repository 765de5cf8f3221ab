"""The text of a config that fits, every choice with a comment; a function of public facts alone."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dp_powerflow.pipeline.setup.meters import MeterFacts
from dp_powerflow.pipeline.setup.public import (
    FIRST_DAY_OF_YEAR,
    VARIANCE_FLOOR,
    CustomerKind,
    class_of_nodes,
    delta_for,
    kind_of,
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
