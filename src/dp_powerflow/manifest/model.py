"""`manifest.json` as a model: the machine-readable certificate of a release, format 7.

It holds policy constants, declared-public inputs, the costs of the load queries and, of a twin, the guarantee
that follows from its public noise; nothing that was computed from the network or from the meter data without
being paid for. It names no path, host, user or time, so that a release that was interrupted comes out bit by
bit as it would have.

Parsing is strict: no value is converted, no unknown key is accepted. What is said of the network depends on
the mode: the section of each mode is a model of its own, which its policy registers (`policy.NetworkPolicy`).
docs/reference/manifest.md describes every entry; docs/manifest.schema.json is generated from the models.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_UP, Context
from functools import cache
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dp_powerflow._texts import LicenseId, PublicLine, PublicText, WebAddress
from dp_powerflow.corpus.schema import DATA, FEEDER, LOADS, NODES_FILE
from dp_powerflow.errors import DpPowerflowError, printable

FORMAT: Literal["dp-powerflow manifest, version 7"] = "dp-powerflow manifest, version 7"
"""Fixes form and wording: any change of either is another version."""
LAST_READER = "0.5.0"
"""Last version of this program that reads manifests of earlier formats, 2 to 6."""
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.json"
CERTIFICATE_FILE = "certificate.html"
CROISSANT_FILE = "croissant.json"
REGISTRY_FILE = "registry.yaml"
CARD_FILE = "README.md"
QUALITY_FILE = "quality.html"
NOT_STATED = "not stated"
REQUIRED = {
    *(NODES_FILE, MODEL_FILE, CERTIFICATE_FILE, CROISSANT_FILE, REGISTRY_FILE),
    *(CARD_FILE, QUALITY_FILE),
}
"""Files beside the manifest and the voltages."""
DIGEST = "manifest_sha256"
_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""How JSON writes half of a surrogate pair."""
RELATIVE = 1e-9
"""Figures that are computed again may differ by this share: other versions of scipy, other last digits."""


MALFORMED = (DpPowerflowError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading an entry of a file that somebody changed may raise."""
UNREADABLE = "The entries of the manifest cannot be read together with the files."


class ReleaseError(DpPowerflowError):
    """A release cannot be described, or a directory is not a release."""

    code = "release"


def _all_files(hashes: dict[str, str]) -> dict[str, str]:
    if not hashes.keys() >= REQUIRED:
        raise ValueError("does not list all files of a release")
    return hashes


Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Chance = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Sentence = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Version = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!-]*$")]
FilePath = Annotated[
    str,
    Field(
        pattern=r"^((nodes|buses|connections|days)\.parquet|model\.json|croissant\.json|registry\.yaml"
        r"|certificate\.html|quality\.html|README\.md|[A-Za-z0-9_-]+(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)+)$"
    ),
]
Files = Annotated[
    dict[FilePath, Sha256],
    AfterValidator(_all_files),
    Field(json_schema_extra={"required": sorted(REQUIRED)}),
]
Unit = Literal["load-point", "load-point-day"]
PowerFactor = Annotated[float, Field(ge=-1.0, le=1.0)]
"""cos θ, negative where it is leading."""
Solver = Literal[
    "batched fixed point, the same bits on every x86-64 processor",
    "OpenDSS, whose last bits may differ between processors",
]
Software = Literal["dp-powerflow 0.6.0"]
"""What writes manifests of this form; a later version that does is added, so that no other can be named."""
SOLVERS: Mapping[str, Solver] = dict(zip(("batch", "opendss"), get_args(Solver), strict=True))
"""What the manifest says of `release.solver`."""


class Section(BaseModel):
    """A part of the manifest: every key is required, no other is allowed, no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Release(Section):
    """Whose statement this is, and why it may not be a release at all."""

    id: ReleaseId
    software: Software
    insecure_seed: bool
    simulated_loads: bool
    warnings: list[Sentence]


class LoadsGuarantee(Section):
    """Differential privacy of the customers."""

    definition: Literal["(epsilon, delta)-differential privacy"]
    unit: Unit
    unit_in_words: Sentence
    adjacency: Literal["replace-one, public number of load points"]
    epsilon: Positive
    delta: Probability
    rho: Positive
    epsilon_granted: Positive
    accounting: Sentence


class InWords(NamedTuple):
    """A guarantee for people.

    Attributes
    ----------
    figure, means : its main figure, and what that is.
    sentences : what it promises, and what not.
    holds : whether it is differential privacy.
    """

    figure: str
    means: str
    sentences: tuple[str, ...]
    holds: bool


class NetworkSection(Section):
    """What a release says of its network in any mode; each mode adds its own entries.

    Attributes
    ----------
    kind : differential privacy, or what else it is.
    days : of the release, or `any number` if the statement does not depend on them.
    """

    mode: Sentence
    kind: Sentence
    neighbours: Sentence
    epsilon: NotNegative
    delta: Probability
    days: Count | Literal["any number"]
    scope: Sentence
    attestation: Sentence

    def in_one_sentence(self) -> str:
        """For dataset hubs."""
        return f"The network is covered by {self.kind}."

    def in_words(self) -> InWords:
        """For the page of the release's quality."""
        said = f"{self.kind[:1].upper()}{self.kind[1:]}. Neighbours: {self.neighbours}."
        holds = self.kind == "differential privacy"
        return InWords(f"ε = {self.epsilon:.12g}", self.kind, (said, self.scope), holds)

    def in_full(self) -> str:
        """For the registry of deployments."""
        return (
            f"The network: {self.kind}. Neighbours: {self.neighbours}. Epsilon {self.epsilon:.12g} at delta "
            f"{self.delta:.12g}. {self.scope}"
        )


Network = TypeVar("Network", bound=NetworkSection)


class Guarantee(Section, Generic[Network]):
    """Both statements of privacy."""

    loads: LoadsGuarantee
    network: Network


class EpsilonDelta(Section):
    """A pair of sums."""

    epsilon: Positive
    delta: Probability


class Rho(Section):
    """What adds up on the customers' account."""

    rho: Positive


class TwinSpent(Section):
    """Everything that touched the worst element: pure epsilons, and the mu^2 of Gaussian noise."""

    pure_epsilons: list[Positive]
    mu_squared: NotNegative


class Promise(Section):
    """What all spends of an account promise together."""

    epsilon: NotNegative
    delta: Share
    definition: Sentence


class AccountSection(Section):
    """An account of the ledger just after the charge that paid for this release."""

    unit: Sentence
    promise: Promise


class LoadsAccount(AccountSection):
    """The customers' account."""

    unit: Unit
    spent: Rho


class InstanceAccount(AccountSection):
    """A network's account of per-instance evidence."""

    spent: EpsilonDelta


class TwinAccount(AccountSection):
    """A network's account of twins, stated for the worst element."""

    spent: TwinSpent


class Composition(Section):
    """This and earlier releases together."""

    statement: Sentence
    loads: LoadsAccount
    network: InstanceAccount | TwinAccount


class LoadQuery(Section):
    """One noisy answer from the meter data, and what it cost (`privacy.budget.QueryCost`)."""

    query: Sentence
    unit: Unit
    cohort: str | None
    dimension: Count
    region: Literal["ball", "orthant", "psd"]
    sensitivity_squared: Count
    grid_step: Positive
    natural_unit: str
    sigma: Count
    sensitivity_grid: Positive
    sensitivity: Positive
    noise_std: Positive
    rho: Positive


class Reactive(Section):
    """Randomness of reactive load."""

    spread: NotNegative
    correlation_minutes: Positive | None


class NodeScales(Section):
    """How the load of a node is scaled: one draw for every node."""

    rule: Literal["nominal load of the node's loads"]
    factor: Positive


ByCustomers = Literal[
    "sum of customers, as the load table or the service map counts them, else by nominal kW"
]
BY_CUSTOMERS: ByCustomers = (
    "sum of customers, as the load table or the service map counts them, else by nominal kW"
)


class NodeCustomers(Section):
    """How many customers are drawn for every load, and added up."""

    rule: ByCustomers
    kw_per_customer: Positive
    kw_per_customer_of_class: dict[str, Positive]


class LoadClass(Section):
    """A class of customers."""

    name: Sentence
    day_type: str | None
    bounds: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    bounds_unit: Literal["per public scale", "kW"]
    power_factor: PowerFactor


class LoadFactor(Section):
    """A power factor that some loads of the feeder have of their own, and how many."""

    power_factor: PowerFactor
    loads: Count


class NetLoads(Section):
    """What happens to loads of load points that are not above zero.

    Below the floor they are raised to it. If load points feed in more than a share of the energy that they
    draw, the release is refused (`error`), or what they feed in is dropped (`floor`).
    """

    floor_kw: Positive
    most_export: Chance
    on_export: Literal["error", "floor"]


class Generation(Section):
    """Generators on public irradiance: so many days of it, one series for all systems or one for each.

    Day d of the corpus has the irradiance of day d modulo these.
    """

    irradiance: Literal["declared public"]
    days: Count
    per_system: bool
    volt_var: Literal["none", "category A", "category B", "file"]


class DeclaredPublic(Section):
    """What the data owner declared public."""

    load_points: Count
    days: Count
    step_minutes: Count
    power_factor: PowerFactor
    load_power_factors: list[LoadFactor]
    reactive: Reactive
    load_scales: Literal["public scale of every load point", "none, loads are in kW"]
    node_scales: NodeScales | NodeCustomers
    node_classes: Literal["declared", "drawn from the released weights"]
    classes: Annotated[list[LoadClass], Field(min_length=1)]
    variance_floor: Positive
    estimator: Sentence
    generation: Generation | None
    regulator_taps: Literal[
        "frozen: an input, the same for every network compared",
        "declared, or solved once on the twin; then frozen",
        "as operated: regulators and capacitors act on the twin, every snapshot for itself",
        "as operated: regulators and capacitors act on the twin, step after step through a day",
    ]
    left_out: list[Sentence]
    net_loads: NetLoads | None
    network: list[Sentence]


class Processing(Section):
    """What happens before the noise and after it, and what solved the power flow."""

    solver: Solver
    before_noise: list[Sentence]
    after_noise: list[Sentence]


class RandomSource(Section):
    """Where noise and draws come from."""

    generator: Sentence
    key: Sentence
    noise: Sentence
    bound_to: Sentence


class Column(Section):
    """A column of the released tables."""

    file: Literal[
        "data/part-*.parquet",
        "nodes.parquet",
        "buses.parquet",
        "connections.parquet",
        "days.parquet",
        "loads/part-*.parquet",
        "feeder/part-*.parquet",
    ]
    name: Sentence
    type: Sentence
    unit: str | None
    means: Sentence


class Grid(Section):
    """Public grid that voltages are rounded to."""

    vm_pu: Sentence
    va_deg: Sentence


class Ranges(Section):
    """Where voltages lie."""

    vm_pu: Annotated[list[float], Field(min_length=2, max_length=2)]
    va_deg: Annotated[list[float], Field(min_length=2, max_length=2)]


class Tables(Section):
    """Tables for graph models that are published beside the voltages."""

    directory: Sentence
    layout: Sentence
    tables: list[Sentence]
    holds: Sentence
    days: Annotated[int, Field(ge=0)]
    scenarios: Count
    order: Sentence
    frame: Literal["rotated", "phasors"]
    switches_merged: bool


class Extras(Section):
    """What is released beside the voltages, for all days: powers [kW, kvar], taps, states of capacitors."""

    holds: Annotated[
        list[Literal["loads", "generation", "head", "taps", "capacitors", "locked", "mended"]],
        Field(min_length=1),
    ]
    source_phases: Annotated[int, Field(ge=0)]
    regulators: Annotated[int, Field(ge=0)]
    capacitors: Annotated[int, Field(ge=0)]
    mended_snapshots: Annotated[int, Field(ge=0)] | None
    grid: Sentence
    range_kw: Annotated[list[float], Field(min_length=2, max_length=2)]
    follows_from: Sentence


IsoDate = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class CalendarOfDays(Section):
    """Dates of the days, and what is declared public of them; they follow one another from the first on.

    Attributes
    ----------
    holidays : those among the days, in order.
    weather : public figures of every day that the file holds; none if the release was made without.
    """

    file: Literal["days.parquet"]
    first_day: IsoDate
    holidays: list[IsoDate]
    weather: list[Sentence]


class ConnectionsOfNodes(Section):
    """Which nodes form a bus, their phases, and which buses are joined; no figure of what joins them.

    Attributes
    ----------
    coordinates : whether those of the buses are published too.
    """

    files: Annotated[list[Literal["buses.parquet", "connections.parquet"]], Field(min_length=2, max_length=2)]
    buses: Count
    sources: Count
    pairs: Annotated[int, Field(ge=0)]
    kinds: list[Literal["line", "switch", "transformer"]]
    coordinates: bool
    order: Sentence
    follows_from: Sentence


class Data(Section):
    """Shape, columns and units of the corpus."""

    days: Count
    steps_per_day: Count
    step_minutes: Count
    nodes: Count
    phasors: Count
    days_per_part: Count
    parts: Count
    rows: Sentence
    columns: list[Column]
    grid: Grid
    ranges: Ranges
    network_tables: Tables | None
    extras: Extras | None
    calendar: CalendarOfDays | None
    connections: ConnectionsOfNodes | None


class Publication(Section):
    """What the data owner declares of the publication; None for what he does not state.

    The card repeats it beside the guarantees, so nothing is accepted that a config could not declare.

    Attributes
    ----------
    license : identifier of the SPDX list.
    """

    publisher: PublicLine | None
    license: LicenseId | None
    citation: PublicText | None
    date: IsoDate | None
    url: WebAddress | None

    @property
    def license_url(self) -> str | None:
        """Page of the license in the SPDX list; None for a license that is not in it, or not stated."""
        if self.license is None or self.license.startswith("LicenseRef-"):
            return None
        return f"https://spdx.org/licenses/{self.license}"

    def cited_as(self, release_id: str) -> str:
        """How to cite the release: as declared, else by what is known of it."""
        if self.citation is not None:
            return self.citation
        who = f"{self.publisher}. " if self.publisher is not None else ""
        when = f" ({self.date[:4]})" if self.date is not None else ""
        where = f" {self.url}" if self.url is not None else ""
        return (
            f"{who}Synthetic voltage phasors of a distribution feeder, dp-powerflow release "
            f"{release_id}{when}.{where}"
        )


UNDECLARED = Publication(publisher=None, license=None, citation=None, date=None, url=None)
"""Of a release whose owner states nothing."""


class InternalReport(Section):
    """Salted commitment to the report that stays with the data owner."""

    commitment: Sentence
    sha256: Sha256


class Statement(Section, Generic[Network]):
    """All that a release says but for the hashes of its files; certificate and metadata are made from it."""

    format: Literal["dp-powerflow manifest, version 7"]
    release: Release
    guarantee: Guarantee[Network]
    composition: Composition
    load_queries: Annotated[list[LoadQuery], Field(min_length=1)]
    declared_public: DeclaredPublic
    processing: Processing
    random_source: RandomSource
    unprotected: list[Sentence]
    not_claimed: list[Sentence]
    data: Data
    publication: Publication
    internal_report: InternalReport


class Manifest(Statement[Network], Generic[Network]):
    """`manifest.json`: the statement, the SHA-256 of every other file, and that of all of this."""

    files: Files
    manifest_sha256: Sha256

    def to_bytes(self) -> bytes:
        """The file `manifest.json`."""
        return canonical_json(self.model_dump())


Whole = TypeVar("Whole", bound=Statement[Any])


def in_mode(model: type[Whole], section: type[NetworkSection]) -> type[Whole]:
    """Statement or manifest whose section on the network is that of one mode."""
    return cast("type[Whole]", _in_mode(model, section))


@cache
def _in_mode(model: Any, section: Any) -> Any:
    return model.__class_getitem__(section)  # kept: else it is made anew for every release


def seal(statement: Statement[Any], hashes: Mapping[str, str]) -> Manifest[Any]:
    """The manifest of a release.

    Parameters
    ----------
    hashes : SHA-256 of every released file by relative path; that of the manifest itself is left out.
    """
    files = {name: digest for name, digest in sorted(hashes.items()) if name != MANIFEST_FILE}
    content = statement.model_dump() | {"files": files}
    model = in_mode(Manifest, type(statement.guarantee.network))
    return model.model_validate(content | {DIGEST: digest_of(content)})


def canonical_json(content: Mapping[str, Any]) -> bytes:
    """Canonical JSON: equal content, equal bytes."""
    return (
        json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    ).encode()


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a manifest without the entry that holds it.

    It finds accidents and careless edits. It is no signature: who wants to be sure of the author compares the
    digest with one the data owner gave him by another way.
    """
    rest = {name: value for name, value in content.items() if name != DIGEST}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


def json_object(content: bytes) -> dict[str, Any]:
    """The object in JSON bytes, unchecked.

    Raises
    ------
    ValueError, RecursionError : there is none, or a number is none.
    """

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number of JSON")

    text = content.decode("utf-8")
    parsed = json.loads(text, parse_constant=refuse)
    if not isinstance(parsed, dict):
        raise ValueError("not an object")
    if _HALF.search(text):
        json.dumps(parsed, ensure_ascii=False).encode()  # raises: half of a pair is no text
    return parsed


def differences(stated: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Paths of the entries that differ; recomputed numbers may differ in the last digits."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        for key in sorted(stated.keys() | expected.keys()):
            path = f"{where}.{key}" if where else key
            if key not in stated or key not in expected:
                yield path
            else:
                yield from differences(stated[key], expected[key], path)
    elif isinstance(stated, list) and isinstance(expected, list):
        if len(stated) != len(expected):
            yield where
        for k, (one, other) in enumerate(zip(stated, expected, strict=False)):
            yield from differences(one, other, f"{where}[{k}]")
    elif type(stated) is float and type(expected) is float:
        if not math.isclose(stated, expected, rel_tol=RELATIVE):
            yield where
    elif type(stated) is not type(expected) or stated != expected:
        yield where


PARTS, LOADS_PARTS, FEEDER_PARTS = (f"{folder}/part-*.parquet" for folder in (DATA, LOADS, FEEDER))
"""The files with voltages, and those beside them, in the columns of the manifest."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and a sentence about it."""

    name: str
    ok: bool
    sentence: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sentence", printable(self.sentence))  # it may quote a file


def check(name: str, problems: Iterable[str], good: str) -> Check:
    """A check that lists its first problems, or says what was found good."""
    found = list(problems)
    if not found:
        return Check(name, True, good)
    more = f" And {len(found) - 3} more." if len(found) > 3 else ""
    return Check(name, False, " ".join(found[:3]) + more)


def at_most(value: float) -> str:
    """A figure in three digits, rounded up: a promise is never shown better than it is."""
    return in_digits(float(Context(prec=3, rounding=ROUND_UP).create_decimal(repr(value))))


def in_digits(value: float) -> str:
    """A declared constant as a person writes it: 1e-5, not 1e-05."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.12g}").replace("e+", "e")


def all_digits(value: float) -> str:
    """A constant to the last digit that it has, as a person writes it."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(float(value)).removesuffix(".0")).replace("e+", "e")
