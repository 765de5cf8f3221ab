"""One TOML file that says everything about a release; unknown keys are errors that name the nearest key.

Nothing in it is secret, and nothing in it may be tuned on the private data: what the data owner writes here
is declared public, and the manifest repeats it.
"""

from __future__ import annotations

import datetime as dt
import os
import tomllib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationError

from dp_powerflow._names import RELEASE_RULE, TWIN_RULE, NameRule, refuse_unusable
from dp_powerflow._texts import LicenseId, PublicLine, PublicText, WebAddress
from dp_powerflow.almanac.calendar import zone_of
from dp_powerflow.config.mistakes import Forbidden, Rule, mistakes_in
from dp_powerflow.config.mistakes import Section as Section
from dp_powerflow.config.mistakes import sentence_of as one_message
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.grid.quantities import Protect, Protected
from dp_powerflow.privacy.budget import LEAST_DELTA, LEAST_EPSILON, MOST_EPSILON
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.twin.design import TwinDesign


def _refused(problem: Callable[[Any], str | None]) -> AfterValidator:
    """The check of a value; `problem` says what is wrong with it, or None."""

    def check(value: Any) -> Any:
        if (said := problem(value)) is not None:
            raise ValueError(said)
        return value

    return AfterValidator(check)


def _between(least: float, most: float) -> AfterValidator:
    """The check of a figure that would overflow or vanish beyond in what is computed from it."""
    says = f"it should lie between {least:g} and {most:g}"
    return _refused(lambda figure: None if least <= figure <= most else says)


Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False), _between(1e-30, 1e15)]
Epsilon = Annotated[float, Field(gt=0.0, allow_inf_nan=False), _between(LEAST_EPSILON, MOST_EPSILON)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0), _between(LEAST_DELTA, 1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


def named_by(rule: NameRule) -> AfterValidator:
    """The check of an id; what is refused comes with an id that would do."""
    return _refused(rule.problem)


TwinId = Annotated[str, named_by(TWIN_RULE)]
ReleaseId = Annotated[str, named_by(RELEASE_RULE)]

_LEAST_POWER_FACTOR = 0.01
_NO_ACTIVE_LOAD = (
    f"a power factor of 0, or less than {_LEAST_POWER_FACTOR}, has no active load to speak of; give "
    "cos θ, negative where it is leading"
)
PowerFactor = Annotated[
    float,
    Field(ge=-1.0, le=1.0),
    _refused(lambda factor: _NO_ACTIVE_LOAD if abs(factor) < _LEAST_POWER_FACTOR else None),
]
"""cos θ of a load, as OpenDSS writes it: positive where it is lagging (inductive), negative where leading."""
_NOT_ASCENDING = "the bounds [p_min, p_max] must satisfy 0 < p_min < p_max; swap or correct them"
Margins = Annotated[
    tuple[Positive, Positive], _refused(lambda pair: None if pair[0] < pair[1] else _NOT_ASCENDING)
]
TimeZone = Annotated[str, AfterValidator(lambda name: zone_of(name, ValueError).key)]


class StorageUrl(str):
    """URL of a folder in an object store, such as 's3://bucket/release'; kept as written."""

    __slots__ = ()

    def __truediv__(self, name: str) -> StorageUrl:
        return StorageUrl(f"{self.rstrip('/')}/{name}")


def path_or_url(value: object) -> Path | StorageUrl:
    """A path, or a URL as written."""
    if isinstance(value, str) and "://" in value:
        return StorageUrl(value)
    if isinstance(value, str | Path):
        return Path(value)
    raise ValueError("give a path, or a URL such as s3://bucket/release")


def dates_or_path(value: object) -> tuple[dt.date, ...] | Path:
    """Dates in order, each once, or the path of a file of them."""
    if isinstance(value, str | Path):
        return Path(value)
    if not isinstance(value, list | tuple):
        raise ValueError("give a list of dates, such as [2024-12-25], or a text file with one date per line")
    return tuple(sorted({_a_date(item) for item in value}))


def _a_date(item: object) -> dt.date:
    try:
        if type(item) is dt.date:
            return item
        return dt.date.fromisoformat(item if isinstance(item, str) else "")
    except ValueError:
        raise ValueError(f"'{item}' is not a date; write dates such as 2024-12-25") from None


def _unrelated(value: object) -> Unrelated | None:
    if value is None or isinstance(value, Unrelated):  # a fleet makes its own
        return value
    try:
        return Unrelated.from_table(value)
    except PrivacyError as error:
        raise ValueError(str(error)) from None


# Not part of any request: it decides which account is charged, not what is released.
Reason = Annotated[Unrelated | None, PlainValidator(_unrelated), Field(exclude=True)]


_MINUTES_PER_DAY = 1440


class FeederSection(Section):
    """The network; PRIVATE but for what is named in `declared public` of the manifest.

    Attributes
    ----------
    source : `ieee13`, `ieee123`, an OpenDSS `.dss` file, a pandapower `.json` file, or `simbench:CODE`.
    taps : CSV file of regulator taps that are declared public. A twin solves its own without it; the true
        network needs it where there are regulators.
    loads : CSV file of nominal loads that are declared public, columns name, kw, kvar, and optionally
        customers, how many a load has; without it the loads of the feeder.
    base_mva : power base per phase [MVA].
    drop_islanded : leave out nodes that no source feeds, instead of refusing the feeder.
    accept_difference : largest difference of a voltage [p.u.] between the feeder as read and OpenDSS on its
        file that is accepted, which the manifest states; without it 1e-5, and more is refused.
    """

    source: str
    taps: Path | None = None
    loads: Path | None = None
    base_mva: Positive = 1.0
    drop_islanded: bool = False
    accept_difference: Positive | None = None


class LoadsSection(Section):
    """Where the meter data are, and the declared facts about them.

    Nothing is spent where too many load points lack readings or lie outside the bounds, or where readings
    look like another unit.

    Attributes
    ----------
    kind : `long`: a row per customer and interval; `wide`: a row per interval, a column per customer;
        `opendss-shapes`: a folder of load shapes; `simulated`: made-up customers, for demonstrations.
    path : file of the readings, CSV or Parquet, or a folder of Parquet files; folder of load shapes.
    services : CSV file, the public list of customers: columns customer, load_point; optional node, class,
        scale_kw [kW]. Needed for `long` and `wide`.
    classes : CSV file with the public class of every load, columns load, class; for `opendss-shapes`.
    unit : of the readings: `kW` or `W` are means over the interval.
    interval_label : whether a stamp names the start or the end of its interval.
    time_zone : IANA name; days are cut in it, and stamps without an offset are its wall-clock times.
    step_minutes : length of an interval [min].
    first_day : first local day that is read. Needed for `long` and `wide`, and for `opendss-shapes`.
    last_day : last local day that is read. Needed for `long` and `wide`.
    customer_column : column that says whose reading a row is, of a `long` file.
    time_column : column of the stamps: ISO 8601 text, or timestamps.
    active_column : column of the readings, of a `long` file.
    reactive_column : reactive readings in the matching unit, kvar or kvarh.
    most_placeholders : share of load points that may be replaced for their gaps; above it nothing is spent.
    most_clipped : share of load points that may lie mostly outside `model.bounds`; above it the same.
    typical_kw : public mean load of a typical customer [kW], such as its yearly energy over 8,760 h; with it
        a factor of 4 in the whole file is seen.
    on_suspect_unit : whether readings that look like another unit stop a release or are only reported.
    floor_kw : loads at or below zero that are small, and all below this, are raised to it [kW]: the model
        takes logs.
    most_export : energy that all load points may feed in, as a share of what they draw; loads within ±
        `floor_kw` do not count.
    on_export : whether more of it stops the release, as with panels behind many meters, or what is fed in is
        dropped (`floor`), which the manifest states.
    load_points : how many load points are simulated.
    homes_only : simulate homes, instead of homes, shops and works.
    homes_per_point : homes behind a simulated load point, which is their sum; with `homes_only`.
    days : how many days are simulated.
    seed : of the simulated loads.
    """

    kind: Literal["simulated", "long", "wide", "opendss-shapes"]
    path: Path | None = None
    services: Path | None = None
    classes: Path | None = None
    unit: Literal["kW", "W", "kWh per interval", "Wh per interval"] = "kW"
    interval_label: Literal["start", "end"] = "start"
    time_zone: TimeZone = "UTC"
    step_minutes: Annotated[int, Field(gt=0)] = 15
    first_day: dt.date | None = None
    last_day: dt.date | None = None
    customer_column: str = "customer"
    time_column: str = "time"
    active_column: str = "active"
    reactive_column: str | None = None
    most_placeholders: Share = 0.05
    most_clipped: Share = 0.05
    typical_kw: Positive | None = None
    on_suspect_unit: Literal["error", "keep"] = "error"
    floor_kw: Positive = 0.01
    most_export: Share = 0.01
    on_export: Literal["error", "floor"] = "error"
    load_points: Annotated[int, Field(ge=2, le=10_000_000)] = 1000
    homes_only: bool = False
    homes_per_point: Count = 1
    days: Count = 365
    seed: Annotated[int, Field(ge=0)] = 0

    rules = (
        Forbidden(
            lambda loads: loads.kind != "simulated" and loads.path is None,
            "loads of kind '{0.kind}' need a path",
        ),
        Forbidden(
            lambda loads: loads.kind != "opendss-shapes" and loads.classes is not None,
            "loads.classes is for loads of kind 'opendss-shapes', not '{0.kind}'; meter data have "
            "their classes in the column 'class' of loads.services, simulated loads have their own",
        ),
        Forbidden(
            lambda loads: None not in (loads.first_day, loads.last_day) and loads.first_day > loads.last_day,
            "loads.last_day is before loads.first_day; swap them",
        ),
        Forbidden(
            lambda loads: _MINUTES_PER_DAY % loads.step_minutes != 0,
            "{0.step_minutes} min do not divide a day; set loads.step_minutes to 5, 10, 15, 30 or 60",
        ),
        Forbidden(
            lambda loads: loads.homes_per_point != 1 and not loads.homes_only,
            "loads.homes_per_point is about homes; set loads.homes_only = true, or leave it out",
        ),
    )

    @property
    def declared_days(self) -> int | None:
        """How many days the meters have, as far as it is declared; None where only the readings tell."""
        if self.kind == "simulated":
            return self.days
        if self.kind == "opendss-shapes" or self.first_day is None or self.last_day is None:
            return None
        return (self.last_day - self.first_day).days + 1


class ModelSection(Section):
    """Budget and public choices of the load model.

    Attributes
    ----------
    epsilon : ε of the customers, for all that a release asks of the meters.
    delta : δ of the customers; well below one over their number.
    unit : what the budget protects: all days of a service, or one day of one (the paper's).
    estimator : `history`: customers persist and days follow one another, weather and holidays count; for mode
        `twin-network`, from 14 days of meters on, whose dates it publishes. `structured` and `plain`: days
        are independent draws; `structured` needs fewer customers, `plain` is the paper's. Without it
        `history` where it can be, else `structured`.
    private_classes : 0 takes the public labels; 2 or more classes are found privately, from the budget.
    use_scale : fit loads relative to the public scale of their load point, which all must have.
    bounds : declared [p_min, p_max] of a load point [kW, or relative to the scale]; readings and draws are
        cut to them.
    bounds_of_class : bounds of some classes, instead of `bounds`; private classes are `class 1`, ….
    variance_floor : public floor of the variance of the log load, of `structured` and `plain`.
    power_factor : declared cos of the angle; negative: leading, as in OpenDSS.
    power_factor_of_class : power factor of some classes, instead of `power_factor`.
    reactive_spread : random part of the reactive load, as a share of the mean load.
    reactive_correlation_minutes : how long that part remembers [min].
    reuse : id of an earlier release whose load model is taken; it costs the customers nothing more.
    """

    epsilon: Epsilon
    delta: Probability = 1e-5
    unit: Literal["load-point", "load-point-day"] = "load-point"
    estimator: Literal["history", "structured", "plain"] | None = None
    private_classes: Annotated[int, Field(ge=0, le=1000)] = 0
    use_scale: bool = True
    bounds: Margins = (1e-3, 3.0)
    bounds_of_class: dict[str, Margins] = Field(default_factory=dict)
    variance_floor: Annotated[Positive, Field(le=100.0)] = 1e-3
    power_factor: PowerFactor = 0.95
    power_factor_of_class: dict[str, PowerFactor] = Field(default_factory=dict)
    reactive_spread: Annotated[Positive, Field(le=10.0)] = 0.15
    reactive_correlation_minutes: Positive = 120.0
    reuse: str | None = None

    rules = (
        Forbidden(
            lambda model: model.estimator == "history" and model.unit != "load-point",
            "model.estimator = 'history' fits whole histories of load points, so a single day cannot be a "
            "record; set model.unit to 'load-point', or model.estimator to 'structured'",
        ),
    )


class NodesSection(Section):
    """Declared-public facts of the nodes: class, customers, scale and power factor of what is drawn there.

    On a twin a load is the sum of as many customers as its nominal kW holds `kw_per_customer`, unless the
    service map or the load table counts them. On the true network it is one draw times `scale_factor`.

    Attributes
    ----------
    load_class : class of every load; without it the first class of the model.
    kw_per_customer : nominal kW of a load that stand for one customer, on a twin [kW].
    kw_per_customer_of_class : `kw_per_customer` of some classes [kW].
    class_of_load : class of some loads, by their names.
    power_factor_of_load : power factor of some loads, instead of the power factor of their class.
    scale : what a node's public scale is: its nominal load.
    scale_factor : how many times the model's relative load a node draws, on the true network.
    """

    load_class: str | None = None
    kw_per_customer: Positive = 1.5
    kw_per_customer_of_class: dict[str, Positive] = Field(default_factory=dict)
    class_of_load: dict[str, str] = Field(default_factory=dict)
    power_factor_of_load: dict[str, PowerFactor] = Field(default_factory=dict)
    scale: Literal["nominal"] = "nominal"
    scale_factor: Positive = 1.0


class PVSection(Section):
    """Public irradiance and control of the feeder's PV systems; without this section they are idle.

    Attributes
    ----------
    irradiance : file or folder of shares of peak irradiance, a line per step, one day or many.
    latitude : of a year without clouds instead [degrees, south negative].
    first_day_of_year : first day of the clear sky, 1 is the first of January; without it the day
        of `release.first_day`.
    volt_var : control of all systems: none, a category of IEEE 1547-2018, or the curves of the feeder's file.
    """

    irradiance: Path | None = None
    latitude: Annotated[float, Field(ge=-90.0, le=90.0)] | None = None
    first_day_of_year: Annotated[int, Field(ge=1, le=366)] | None = None
    volt_var: Literal["none", "category A", "category B", "file"] = "none"

    rules = (
        Forbidden(
            lambda pv: (pv.irradiance is None) == (pv.latitude is None),
            "the sun of [pv] is either a file (irradiance) or a clear sky (latitude); give one of the two",
        ),
        Forbidden(
            lambda pv: pv.irradiance is not None and pv.first_day_of_year not in (None, 1),
            "first_day_of_year is for a clear sky; a file of irradiance starts with its first line: "
            "remove it",
        ),
    )


class CalendarSection(Section):
    """Public days off, of the days of the meters and of the release; Saturdays and Sundays are days off too.

    Attributes
    ----------
    holidays : dates, or a text file with one date a line.
    """

    holidays: Annotated[tuple[dt.date, ...] | Path, BeforeValidator(dates_or_path)] = ()


class WeatherSection(Section):
    """Public weather at the feeder, for the days of the meters and of the release.

    The daily figures of the released days are published. Weather tells where and when it was measured: leave
    the section out if that is not public.

    Attributes
    ----------
    path : file of readings, CSV or Parquet, a row each, in order of time: sub-hourly to daily.
    time : column of the stamps: ISO 8601 text, or timestamps; dates where there is a row a day.
    temperature : column of the temperature [°C].
    irradiance : column of the irradiance [W/m²]; without it there is none.
    time_zone : IANA name, of stamps without an offset; without it the time zone of the meters.
    """

    path: Path
    time: str = "time"
    temperature: str = "temperature"
    irradiance: str | None = None
    time_zone: TimeZone | None = None


def _keeps_the_state_apart(release: Any) -> str | None:
    output, state = release.output, Path(release.state)
    if isinstance(output, StorageUrl) or "://" in str(output):
        return None
    if Path(output) != state and Path(output) not in state.parents:
        return None
    return (
        "its state must not be its output or lie within it, because the output is published and the state "
        "never is; choose another directory"
    )


STATE_RULES = (
    _keeps_the_state_apart,
    Forbidden(
        lambda release: ":/" in str(release.state),
        "its state is private and cannot be a URL; name a directory of this machine",
    ),
)
"""Of a release, and of a fleet."""


class WrittenSection(Section):
    """What a release and a fleet say of what they write."""

    id: str
    days: Count
    first_day: dt.date | None = None
    output: Annotated[Path | StorageUrl, PlainValidator(path_or_url)]
    state: Path
    epsilon_cap: Positive | None = None
    network_epsilon_cap: Positive | None = None
    network_delta_cap: Probability | None = None
    continues_loads: str | None = None
    unrelated_loads: Reason = None
    keys: Literal["destroy", "keep"] = "destroy"
    insecure_seed: int | None = None

    rules: ClassVar[tuple[Rule, ...]] = STATE_RULES


class ReleaseSection(WrittenSection):
    """What is written, and where.

    Attributes
    ----------
    id : name of the release: 1 to 64 letters, digits, '-' or '_'.
    days : days of the corpus.
    first_day : date of the first day of the corpus, in mode `twin-network`; the days follow one another. It
        need not be a day of the meters, whose dates only the estimator `history` publishes. Without it the
        first of January 2023, or the day of that year that `pv.first_day_of_year` says.
    output : directory or URL of the release, such as `s3://bucket/release`.
    state : private directory of keys, ledger and internal reports; never publish it.
    epsilon_cap : most that all releases from these customers may cost; without it what this one costs.
    network_epsilon_cap : the same for ε of the network.
    network_delta_cap : the same for δ of the network.
    continues_loads : account of the ledger that these meter data are a new version of.
    continues_network : account of the ledger that this network is a new version of.
    unrelated_loads : accounts that these meter data share nobody with, and why:
        `{ accounts = ["loads-1"], reason = "another town" }`.
    unrelated_network : accounts that this network shares no line with, and why.
    keys : "destroy" seals the release: the keys of noise and draws are destroyed, each when its product is
        complete. "keep" is for owners who must repeat draws or draw later versions of a twin; the
        certificate says so.
    insecure_seed : for demonstrations and tests only; the result says so and is not a release.
    """

    id: ReleaseId
    continues_network: str | None = None
    unrelated_network: Reason = None


class PublicationSection(Section):
    """What the data owner says of the publication: card and metadata repeat it, nothing checks it.

    Attributes
    ----------
    publisher : person or organisation that publishes the release.
    license : identifier of the SPDX list, such as `CC-BY-4.0`; without it the release says "not stated".
    citation : how to cite the release; without it one that names the release id.
    date : day of publication. It is declared, never taken from the clock.
    url : where the release is published.
    require_signatures : how many keys, in different roles, must have signed before `verify` calls it intact.
    """

    publisher: PublicLine | None = None
    license: LicenseId | None = None
    citation: PublicText | None = None
    date: dt.date | None = None
    url: WebAddress | None = None
    require_signatures: Annotated[int, Field(ge=0, le=20)] = 0


class NetworkSection(Section):
    """What the network is promised: the mode is named, never a default.

    Every mode has a section below; `Network` is their union, told apart by `mode`.
    """

    mode: str
    epsilon: Positive
    delta: Probability

    random_reactive: ClassVar[bool] = True
    """Whether reactive load is drawn at random; without it a load has a fixed power factor."""
    dated: ClassVar[bool] = False
    """Whether the days of a release follow one another on a calendar."""


class TrueNetwork(NetworkSection):
    """Power flow on the true network, and internal evidence for a policy about it: not differential privacy.

    Attributes
    ----------
    mode : the paper's Algorithm 1.
    epsilon : ε of the policy for the whole corpus.
    delta : δ of the policy for the whole corpus.
    bound : form of Theorem 1 that the evidence is by.
    radius : neighbours are changes of existing lines up to this Frobenius norm [p.u.].
    calibration_days : days of the Monte Carlo calibration.
    line_change : exact losses per line are for one line's admittance times 1 ± this.
    line_draws : days drawn for these losses (INTERNAL); 0: none, 300 or more to say anything.
    require_evidence : refuse the release where the evidence does not support the policy.
    """

    mode: Literal["true-network"]
    bound: Literal["paper", "corrected", "full-support"]
    radius: Positive
    calibration_days: Annotated[int, Field(ge=20, le=10_000_000)] = 1000
    line_change: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    line_draws: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    require_evidence: bool = True

    @property
    def random_reactive(self) -> bool:  # type: ignore[override]
        """The paper's bound, printed or corrected, is for fixed power factors."""
        return self.bound == "full-support"


AlsoPublished = Annotated[
    tuple[Literal["loads", "head", "states", "connections"], ...],
    AfterValidator(lambda chosen: tuple(sorted(set(chosen)))),
]
"""What a release on a twin holds with its voltages, in whatever order it is written: power drawn and
injected at the released nodes, power of the sources, taps and states of capacitors, buses and what joins
them."""


_OF_PROTECTED = ("lines", "transformers", "capacitors", "pv", "x_ohm_per_km", "c_nf_per_km")
_OF_DESIGN = ("epsilon", "change", "noise", "delta", "charging_epsilon", "code_epsilon")


def _can_be_drawn(network: TwinNetwork) -> str | None:
    try:
        _ = network.design
    except PrivacyError as error:
        return str(error)
    return None


class TwinNetwork(NetworkSection):
    """Power flow on a differentially private twin: what its noise covers, and what of it is published.

    Figures that the noise does not cover are declared public.

    Attributes
    ----------
    mode : power flow on a twin.
    epsilon : ε of one element of the network, for any number of days.
    delta : δ of one element; Laplace noise needs none.
    id : name of the twin. The same twin serves every release; a new id is a new twin and is paid for.
    change : neighbours differ in one element, its figures changed by factors up to 1 + this.
    noise : `laplace`, or `gaussian` with a delta: for many twins or many changed lines.
    lines : what of every line is protected: R and X, or its length where conductor codes are public.
    transformers : whether impedances of transformers are protected too.
    capacitors : whether sizes of capacitors are protected too.
    pv : whether capacities of PV systems are protected too.
    protect : `all`: a network without what is protected above is refused; `if present`: it is protected where
        the network has it, and the manifest says what the network lacks. The default of a fleet.
    charging_epsilon : share of epsilon for a line's charging; without it charging follows the length.
    code_epsilon : share of epsilon for conductor codes, with `lines` = `length`; without it they are public.
    x_ohm_per_km : public reactance of lines without a conductor code [Ω/km].
    c_nf_per_km : public charging of lines without a conductor code [nF/km].
    publish : what is published of the network: nothing, or tables for graph models in `twin/`.
    graph_days : days of the corpus in those tables; without it all.
    released : nodes whose voltages are released: nodes with their own load, or all.
    controls : `day`: regulators and capacitors act through a day; `snapshot`: each step for itself; `frozen`:
        fixed taps, every load constant power at its node.
    also_publish : what is released with the voltages: P and Q per node, power of the source, taps and
        states of capacitors, connections: buses, phases and what joins them.
    coordinates : `public`: coordinates of the buses are released too, and lengths of lines NOT protected.
    """

    dated: ClassVar[bool] = True

    mode: Literal["twin-network"]
    id: TwinId
    change: Positive = 0.05
    delta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    noise: Literal["laplace", "gaussian"] = "laplace"
    lines: Literal["impedance", "length"] = "impedance"
    transformers: bool = False
    capacitors: bool = False
    pv: bool = False
    protect: Protect = "all"
    charging_epsilon: Positive | None = None
    code_epsilon: Positive | None = None
    x_ohm_per_km: Positive = 0.4
    c_nf_per_km: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 10.0
    publish: Literal["voltages", "network", "network and loads"] = "voltages"
    graph_days: Count | None = None
    released: Literal["loaded", "all"] = "loaded"
    controls: Literal["frozen", "snapshot", "day"] = "day"
    also_publish: AlsoPublished = ("loads", "head", "states", "connections")
    coordinates: Literal["private", "public"] = "private"

    rules = (
        Forbidden(
            lambda network: network.publish != "voltages" and network.controls != "frozen",
            "tables for graph models hold one admittance matrix, and taps that act change it from step "
            'to step; set network.controls = "frozen", or network.publish = "voltages"',
        ),
        Forbidden(
            lambda network: network.coordinates != "private" and "connections" not in network.also_publish,
            'coordinates are those of published buses; add "connections" to network.also_publish, or set '
            'network.coordinates = "private"',
        ),
        _can_be_drawn,
    )

    @property
    def protected(self) -> Protected:
        """The figures that the noise covers."""
        same = {name: getattr(self, name) for name in _OF_PROTECTED}
        charging, codes = self.charging_epsilon is not None, self.code_epsilon is not None
        return Protected(charging=charging, codes=codes, **same)

    @cached_property
    def design(self) -> TwinDesign:
        """The public constants of the twin."""
        return TwinDesign(protected=self.protected, **{name: getattr(self, name) for name in _OF_DESIGN})


Network = Annotated[TrueNetwork | TwinNetwork, Field(discriminator="mode")]
"""The modes of a release. A new mode is a section here and a file in `pipeline/modes/`."""


Checked = TypeVar("Checked", bound=BaseModel)


def _customers_are_of_a_twin(config: Config) -> str | None:
    stated = config.nodes.model_fields_set & {"kw_per_customer", "kw_per_customer_of_class"}
    if isinstance(config.network, TwinNetwork) or not stated:
        return None
    return (
        f"nodes.{min(stated)} belongs to mode 'twin-network'; on the true network a node is one draw "
        "times its nominal load and nodes.scale_factor: remove it"
    )


def _dates_are_of_a_twin(config: Config) -> str | None:
    stated = {
        "release.first_day": config.release.first_day is not None,
        "[calendar]": bool(config.calendar.model_fields_set),
        "[weather]": config.weather is not None,
    }
    if config.network.dated or not any(stated.values()):
        return None
    name = next(name for name, there in stated.items() if there)
    return (
        f"{name} belongs to mode 'twin-network'; the days of mode '{config.network.mode}' are independent "
        "draws and have no dates: remove it"
    )


def history_obstacle(config: Config, n_days: int | None = None) -> str | None:
    """PUBLIC. Why the meters are no histories for the estimator `history`; None if they are, or may be.

    Parameters
    ----------
    n_days : days of the meters; None for what the config declares, which may be nothing.
    """
    days = config.loads.declared_days if n_days is None else n_days
    step = config.loads.step_minutes
    if step > LONGEST_STEP_MINUTES:
        return (
            f"the estimator 'history' needs steps of {LONGEST_STEP_MINUTES} minutes or less, but "
            f"loads.step_minutes is {step}; read shorter steps, or set model.estimator to 'structured'"
        )
    if days is not None and days < FEWEST_DAYS:
        return (
            f"the estimator 'history' needs {FEWEST_DAYS} days of meters or more, but there are {days}; give "
            "more days, or set model.estimator to 'structured'"
        )
    return None


def _has_one_first_day(config: Config) -> str | None:
    first, sun = config.release.first_day, None if config.pv is None else config.pv.first_day_of_year
    if first is None or sun is None or sun == first.timetuple().tm_yday:
        return None
    return (
        f"release.first_day = {first} is day {first.timetuple().tm_yday} of its year, but "
        f"pv.first_day_of_year = {sun} says otherwise; remove pv.first_day_of_year"
    )


FEWEST_DAYS = 14
LONGEST_STEP_MINUTES = 180
"""What the estimator `history` needs of the meters: two weeks, and eight steps a day."""
FIRST_DAY = dt.date(2023, 1, 1)
"""Of a release whose config names none, whatever the dates of the meters are."""


class Config(Section):
    """Everything about one release."""

    feeder: FeederSection
    loads: LoadsSection
    model: ModelSection
    nodes: NodesSection = NodesSection()
    pv: PVSection | None = None
    calendar: CalendarSection = CalendarSection()
    weather: WeatherSection | None = None
    network: Network
    release: ReleaseSection
    publication: PublicationSection = PublicationSection()

    rules = (
        Forbidden(
            lambda config: (
                isinstance(config.network, TwinNetwork) and "scale_factor" in config.nodes.model_fields_set
            ),
            "nodes.scale_factor belongs to mode 'true-network'; on a twin a load is a sum of customers: "
            "remove it, and set nodes.kw_per_customer, the nominal kW per customer",
        ),
        _customers_are_of_a_twin,
        Forbidden(
            lambda config: config.loads.classes is not None and config.model.private_classes,
            "loads.classes declares the classes public, but model.private_classes finds them privately; "
            "remove one of the two",
        ),
        _dates_are_of_a_twin,
        _has_one_first_day,
        Forbidden(
            lambda config: config.model.estimator == "history" and not config.network.dated,
            "model.estimator = 'history' draws days that follow one another, but the evidence of mode "
            "'{0.network.mode}' is about independent nodes and days; set model.estimator to 'structured', "
            "or network.mode to 'twin-network'",
        ),
        lambda config: None if config.model.estimator != "history" else history_obstacle(config),
    )

    @property
    def first_day(self) -> dt.date | None:
        """Date of the first day of the release; None where days have no dates."""
        if not self.network.dated:
            return None
        sun = None if self.pv is None else self.pv.first_day_of_year
        return self.release.first_day or FIRST_DAY + dt.timedelta(days=(sun or 1) - 1)

    @property
    def first_day_of_sun(self) -> int:
        """Day of the year on which a clear sky begins, 1 is the first of January."""
        stated = None if self.pv is None else self.pv.first_day_of_year
        return stated or (1 if self.first_day is None else self.first_day.timetuple().tm_yday)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_config(path: Path) -> Config:
    """Read a TOML file; paths in it are relative to it, and what it reads must exist."""
    raw = read_toml(path, "config file", "write one with 'dp-powerflow init'")
    return parse_config(raw, base=path.resolve().parent, files_must_exist=True)


def read_toml(path: Path, what: str, otherwise: str) -> dict[str, Any]:
    """The content of a TOML file; `what` it is and what to do `otherwise`, for the errors."""
    refuse_unusable(path.absolute(), ConfigError)
    if not path.is_file():
        problem = f"is a folder; name the {what} in it" if path.is_dir() else f"does not exist; {otherwise}"
        raise ConfigError(f"{what} {path} {problem}", code="config-not-found")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not text in UTF-8; save it again in that encoding") from None
    except RecursionError:
        raise ConfigError(f"{what} {path} nests tables too deeply; {otherwise}") from None
    except ValueError as error:  # of TOML, or of a number that is too long
        raise ConfigError(f"{what} {path} is not valid TOML: {error}") from None


def parse_config(raw: dict[str, Any], base: Path = Path(), *, files_must_exist: bool = False) -> Config:
    """Check a config given as a dictionary.

    Parameters
    ----------
    raw : its sections.
    base : folder that paths in it are relative to.
    files_must_exist : refuse it also where a file that it reads is not there.

    Raises
    ------
    ConfigError : all its mistakes at once.
    """
    return _with_absolute_paths(checked(raw, Config, base if files_must_exist else None), base)


def checked(raw: dict[str, Any], model: type[Checked], base: Path | None) -> Checked:
    """A config of the given kind, whose files are there if a `base` is given; ConfigError of all mistakes."""
    gone = () if base is None else tuple(absent_files(raw, base))
    try:
        config = model.model_validate(raw)
    except ValidationError:
        raise ConfigError(sentence_of(raw, model, gone)) from None
    if gone:
        raise ConfigError(sentence_of(raw, model, gone))
    return config


_FILES_READ = {
    "feeder": ("source", "taps", "loads"),
    "loads": ("path", "services", "classes"),
    "pv": ("irradiance",),
    "calendar": ("holidays",),
    "weather": ("path",),
}
_FEEDER_FILES = (".dss", ".json")


def absent_files(raw: dict[str, Any], base: Path) -> Iterator[str]:
    """Which of the files that a config reads do not exist, a sentence each."""
    for section, keys in _FILES_READ.items():
        table = _mapping(raw.get(section))
        for key in keys:
            name = table.get(key)
            a_file = isinstance(name, str) and (key != "source" or name.lower().endswith(_FEEDER_FILES))
            where = base / str(name)
            if a_file and not os.path.exists(where):
                yield f"the config's '{section}.{key}' is {where}, which does not exist; correct the path"


def _with_absolute_paths(config: Config, base: Path) -> Config:
    sections = absolute_sections(config, base)
    source = config.feeder.source
    if source.lower().endswith(_FEEDER_FILES):
        sections["feeder"] = sections["feeder"].model_copy(update={"source": str(base / source)})
    return config.model_copy(update=sections)


def absolute_sections(config: Section, base: Path) -> dict[str, Section]:
    """The sections of a config, by their names; paths in them are relative to `base` no more."""
    return {
        name: section.model_copy(update={key: base / path for key, path in section if isinstance(path, Path)})
        for name, section in config
        if isinstance(section, Section)
    }


def sentence_of(raw: dict[str, Any], model: type[BaseModel] = Config, more: tuple[str, ...] = ()) -> str:
    """All mistakes of a config of the given kind, and `more` of them, in one message."""
    return one_message((*mistakes_in(raw, model), *more))
