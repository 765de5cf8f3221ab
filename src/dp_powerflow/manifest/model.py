"""`manifest.json` as a model: the machine-readable certificate, version 1.

It holds figures, constants, enumerations and hashes, and no sentence: sentences are in `templates/`, and
`render` makes them from the figures. Policy constants, declared-public inputs, the costs of the load queries
and, of a twin, the guarantee that follows from its public noise are here; nothing that was computed from the
network or from the meter data without being paid for. It names no path, host, user or time, so that a
release that was interrupted comes out bit by bit as it would have.

Parsing is strict: no value is converted, no unknown key is accepted. What is said of the network depends on
the mode: `NetworkPolicy` is the section `guarantee.network`, and each mode is a subclass of it.
docs/reference/manifest.md describes every entry; docs/manifest.schema.json is generated from the models.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_UP, Context
from fractions import Fraction
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dp_powerflow._names import LAST_READER
from dp_powerflow._texts import LicenseId, PublicLine, PublicText, WebAddress
from dp_powerflow.corpus.schema import EXTRAS, NODES_FILE
from dp_powerflow.errors import DpPowerflowError, printable
from dp_powerflow.privacy.budget import Neighbours, PrivacyUnit
from dp_powerflow.privacy.ledger.accounts import AccountKind, ComposedCosts, InstanceCap, LoadsCap, TwinCap

if TYPE_CHECKING:
    from dp_powerflow.config import Config
    from dp_powerflow.grid.quantities import Figure
    from dp_powerflow.manifest.build import Facts

FORMAT: Literal["dp-powerflow manifest, version 1"] = "dp-powerflow manifest, version 1"
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.json"
CERTIFICATE_FILE = "certificate.html"
CROISSANT_FILE = "croissant.json"
REGISTRY_FILE = "registry.yaml"
CARD_FILE = "README.md"
QUALITY_FILE = "quality.html"
TWIN, SIGNATURES = "twin", "signatures"
"""Folders of the published twin, and of signatures, which the manifest does not list."""
REQUIRED = {
    *(NODES_FILE, MODEL_FILE, CERTIFICATE_FILE, CROISSANT_FILE, REGISTRY_FILE),
    *(CARD_FILE, QUALITY_FILE),
}
"""Files besides the manifest and the voltages."""
DIGEST = "manifest_sha256"
RELATIVE = 1e-9
"""Figures that are computed again may differ by this share: other versions of scipy, other last digits."""
LARGEST_EPSILON, LARGEST_DELTA = 10.0, 1e-3
"""Beyond these a promise protects from nothing that matters."""
NO_PROTECTION = "NO MEANINGFUL PROTECTION OF THE NETWORK"
NO_PROTECTION_OF_CUSTOMERS = "NO MEANINGFUL PROTECTION OF THE CUSTOMERS"
UNREADABLE = "The entries of the manifest cannot be read together with the files."
_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""How JSON writes half of a surrogate pair."""
MALFORMED = (DpPowerflowError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading an entry of a changed file may raise."""


class ReleaseError(DpPowerflowError):
    """A release cannot be described, or a directory is not a release."""


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
Number = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Version = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!-]*$")]
IsoDate = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
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
Software = Literal["dp-powerflow 0.6.0"]
"""What writes manifests of this form; a later version that does is added, so that no other can be named."""
_OfFigures = Literal["network", "network-sum", "coordinates", "customers"]
WarningCode = Literal[_OfFigures, "insecure-seed", "simulated-loads", "evidence-not-required"]
"""Why a release promises less than a reader expects; the worst first, in the order of the pages."""


class Section(BaseModel):
    """A part of the manifest: every key is required, no other is allowed, no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Release(Section):
    """Whose statement this is, and why it may not be a release at all."""

    id: ReleaseId
    software: Software
    insecure_seed: bool
    keys: Literal["destroyed", "kept"]
    simulated_loads: bool
    warnings: list[WarningCode]


class LoadsGuarantee(Section):
    """Differential privacy of the customers."""

    definition: Literal["(epsilon, delta)-differential privacy"]
    unit: Unit
    adjacency: Literal["replace-one, public number of load points"]
    epsilon: Positive
    delta: Probability
    rho: Positive
    epsilon_granted: Positive


class Tables(Section):
    """Tables for graph models that are published besides the voltages.

    Attributes
    ----------
    days : whose loads are in them.
    frame : voltages are turned back by their nominal angles.
    switches_merged : nodes joined by a switch of next to no impedance are one bus.
    """

    days: Number
    scenarios: Count
    frame: Literal["rotated"]
    switches_merged: Literal[True]


@dataclass(frozen=True)
class Check:
    """One thing that was checked, and a sentence about it."""

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


class NetworkPolicy(Section):
    """`guarantee.network`: what a release promises of its network, in one mode.

    Nothing in it is computed from the network: its entries are public constants, and figures that follow from
    them. A mode is a subclass whose `mode` is a literal; nothing else in this package or in `verify` knows
    which modes there are.

    Attributes
    ----------
    mode : name of the mode in config and manifest.
    kind : differential privacy, or what else it is.
    weak : which constants protect the network from nothing that matters; mostly none.
    account_kind : kind of the ledger's account that the network is charged to.
    template : its sentences: the name of a file in `templates/`, or the text of such a template.
    dated : whether the days of a release have dates.
    derivable : whether anything computed from the loads and the network that was solved keeps the promise, so
        that powers, states and connections may be released, and studies of them.
    full_support : whether reactive load is drawn at random.
    codes_known : whether conductor codes of the network that is solved are public, or drawn with noise.
    """

    account_kind: ClassVar[AccountKind]
    template: ClassVar[str] = "words.txt"
    dated: ClassVar[bool] = False
    derivable: ClassVar[bool] = False

    mode: Name
    kind: Name
    epsilon: NotNegative
    delta: Share

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        super().__pydantic_init_subclass__(**keywords)
        _REGISTERED[get_args(cls.model_fields["mode"].annotation)[0]] = cls

    @classmethod
    @abstractmethod
    def of(cls, config: Config, absent: tuple[Figure, ...] | None = None) -> Self:
        """The policy that a config states.

        Parameters
        ----------
        absent : figures that are protected if present, and are not in the network; None where all must be.
        """

    @abstractmethod
    def recomputed(self) -> Self:
        """The same constants, with every figure that follows from them computed again."""

    @abstractmethod
    def contradictions(self, facts: Facts) -> Iterable[str]:
        """What cannot be true of a release in this mode, one sentence each."""

    @property
    def full_support(self) -> bool:
        return True

    @property
    def codes_known(self) -> bool:
        return False

    @property
    def holds(self) -> bool:
        """Whether it is differential privacy."""
        return self.kind == "differential privacy"

    @property
    def sign(self) -> str:
        """ε, or ε* where it is no differential privacy."""
        return "ε" if self.holds else "ε*"

    @property
    def figure(self) -> str:
        """Its main figure: a promise is rounded up, a policy is shown as it was chosen."""
        return f"ε ≤ {at_most(self.epsilon)}" if self.holds else f"ε* = {in_digits(self.epsilon)}"

    @property
    def warnings(self) -> tuple[WarningCode, ...]:
        """Why it promises less than a reader expects, from constants alone."""
        return ()

    def paid_by(self, release_id: str) -> str:
        """The id that the network was charged under."""
        return release_id

    def is_paid_by(self, charged_as: str, release_id: str) -> bool:
        """Whether a charge of that name paid for the network of a release."""
        return charged_as == self.paid_by(release_id)


_REGISTERED: dict[str, type[NetworkPolicy]] = {}


def kinds_of_shared_accounts() -> set[AccountKind]:
    """Kinds of accounts that are not charged under the id of a release, which their ids may repeat."""
    policies = _REGISTERED.values()
    return {policy.account_kind for policy in policies if policy.paid_by is not NetworkPolicy.paid_by}


def all_policies() -> tuple[type[NetworkPolicy], ...]:
    """The policies of all modes, by name."""
    return tuple(policy for _, policy in sorted(_REGISTERED.items()))


def policy_of(config: Config, absent: tuple[Figure, ...] | None = None) -> NetworkPolicy:
    """The policy of a config; parameters as of `NetworkPolicy.of`."""
    return registered(config.network.mode).of(config, absent)


def registered(mode: object) -> type[NetworkPolicy]:
    """The policy of a mode; ReleaseError if there is none of that name."""
    if not isinstance(mode, str) or mode not in _REGISTERED:
        raise ReleaseError("the manifest's guarantee.network.mode is unknown")
    return _REGISTERED[mode]


Network = TypeVar("Network", bound=NetworkPolicy)


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


class AccountSection(Section):
    """An account of the ledger just after the charge that paid for this release.

    Attributes
    ----------
    unit : the record, or the neighbours of a network, in the words that the ledger keeps.
    """

    unit: Name
    promise: Promise
    spent: Any

    @property
    @abstractmethod
    def law(self) -> Any:
        """Cap of its kind, unit and δ; how large it is plays no part."""

    @property
    def amounts(self) -> Any:
        """What was spent, as the arithmetic of the ledger adds it up."""
        return {name: Fraction(value) for name, value in self.spent}

    def recomputed(self) -> Self:
        """The same, with what all spends together promise computed from what was spent."""
        promised = self.law.statement(self.amounts)
        return self.model_copy(update={"promise": Promise(epsilon=promised.epsilon, delta=promised.delta)})

    @property
    def is_weak(self) -> bool:
        """Whether promises that are strong one by one add up to a weak one."""
        promise = self.recomputed().promise
        return promise.epsilon > LARGEST_EPSILON or promise.delta > LARGEST_DELTA


class LoadsAccount(AccountSection):
    """The customers' account."""

    unit: Unit
    spent: Rho

    @property
    def law(self) -> LoadsCap:
        return LoadsCap(1.0, self.promise.delta, PrivacyUnit(self.unit))


class InstanceAccount(AccountSection):
    """A network's account of per-instance evidence."""

    spent: EpsilonDelta

    @property
    def law(self) -> InstanceCap:
        return InstanceCap(1.0, 0.0, Neighbours(self.unit))


class TwinAccount(AccountSection):
    """A network's account of twins, stated for the worst element; pure costs need no δ."""

    spent: TwinSpent

    @property
    def law(self) -> TwinCap:
        if self.promise.delta == 0 and self.spent.mu_squared > 0:
            raise ReleaseError("an account of twins with Gaussian noise is stated at delta 0")
        return TwinCap(1.0, self.promise.delta if self.spent.mu_squared else 0.0, Neighbours(self.unit))

    @property
    def amounts(self) -> ComposedCosts:
        return ComposedCosts(tuple(self.spent.pure_epsilons), Fraction(self.spent.mu_squared))


ACCOUNTS: dict[AccountKind, type[AccountSection]] = {
    AccountKind.LOADS: LoadsAccount,
    AccountKind.NETWORK_INSTANCE: InstanceAccount,
    AccountKind.NETWORK_TWIN: TwinAccount,
}


class Composition(Section):
    """This and earlier releases together."""

    loads: LoadsAccount
    network: InstanceAccount | TwinAccount


class LoadQuery(Section):
    """One noisy answer from the meter data, and what it cost (`privacy.budget.QueryCost`)."""

    query: Name
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
    """The load of a node is one draw times its nominal load and a factor."""

    rule: Literal["nominal load"]
    factor: Positive


class NodeCustomers(Section):
    """A load is a sum of customers, as the load table or the service map counts them, else by nominal kW.

    Attributes
    ----------
    kw_per_customer, kw_per_customer_of_class : nominal kW that stand for one customer, and of classes with
        another figure.
    """

    rule: Literal["sum of customers"]
    kw_per_customer: Positive
    kw_per_customer_of_class: dict[str, Positive]


class LoadClass(Section):
    """A class of customers; bounds are per public scale, or in kW, as `load_scales` says."""

    name: Name
    bounds: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    power_factor: PowerFactor


class LoadFactor(Section):
    """A power factor that some loads of the feeder have for themselves, and how many."""

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
    """Generators on public irradiance: its days, and one series for all systems or one for each.

    Day d of the corpus has the irradiance of day d modulo these.
    """

    days: Count
    per_system: bool
    volt_var: Literal["none", "category A", "category B", "file"]


class Meters(Section):
    """Dates of the days that meters were read on, where the load model knows them, and their weather."""

    days: Count
    first_day: IsoDate
    last_day: IsoDate
    weather: list[Name]


class DeclaredPublic(Section):
    """What the data owner declared public.

    Attributes
    ----------
    left_out : elements of the feeder that the power flow is solved without.
    meters : None where the days of the meters are independent records.
    """

    load_points: Count
    days: Count
    step_minutes: Count
    power_factor: PowerFactor
    load_power_factors: list[LoadFactor]
    reactive: Reactive
    load_scales: Literal["public scale", "kW"]
    node_scales: NodeScales | NodeCustomers
    node_classes: Literal["declared", "drawn"]
    classes: Annotated[list[LoadClass], Field(min_length=1)]
    variance_floor: Positive
    estimator: Name
    generation: Generation | None
    left_out: list[Name]
    net_loads: NetLoads | None
    meters: Meters | None


if TYPE_CHECKING:
    ExtraName = str
else:
    ExtraName = Literal[tuple(array.name for array in EXTRAS)]


class Extras(Section):
    """What is released besides the voltages, for all days: powers [kW, kvar], taps, states of capacitors."""

    holds: Annotated[list[ExtraName], Field(min_length=1)]
    source_phases: Number
    regulators: Number
    capacitors: Number
    scaled_down_snapshots: Number | None


class CalendarOfDays(Section):
    """Dates of the days, and what is declared public of them; they follow one another from the first on.

    Attributes
    ----------
    holidays : those among the days, in order.
    weather : public figures of every day that the file holds; none if the release was made without.
    """

    first_day: IsoDate
    holidays: list[IsoDate]
    weather: list[Name]


class ConnectionsOfNodes(Section):
    """Which nodes form a bus, their phases, and which buses are joined; no figure of what joins them.

    Attributes
    ----------
    coordinates : whether coordinates of the buses are published too.
    """

    buses: Count
    sources: Count
    pairs: Number
    kinds: list[Literal["line", "switch", "transformer"]]
    coordinates: bool


class Data(Section):
    """Shape of the corpus, and what there is besides the voltages."""

    days: Count
    steps_per_day: Count
    step_minutes: Count
    nodes: Count
    phasors: Count
    days_per_part: Count
    parts: Count
    network_tables: Tables | None
    extras: Extras | None
    calendar: CalendarOfDays | None
    connections: ConnectionsOfNodes | None


class Publication(Section):
    """What the data owner declares of the publication; None for what the owner does not state.

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
    require_signatures: Number

    @property
    def license_url(self) -> str | None:
        """Page of the license in the SPDX list; None for a license that is not in it, or not stated."""
        if self.license is None or self.license.startswith("LicenseRef-"):
            return None
        return f"https://spdx.org/licenses/{self.license}"


UNDECLARED = Publication(
    publisher=None, license=None, citation=None, date=None, url=None, require_signatures=0
)
"""Of a release whose owner states nothing."""


class InternalReport(Section):
    """Salted commitment to the report that stays with the data owner."""

    sha256: Sha256


class Statement(Section, Generic[Network]):
    """What a release says, without the hashes of its files; every page is made from it."""

    format: Literal["dp-powerflow manifest, version 1"]
    kind: Literal["release"]
    release: Release
    guarantee: Guarantee[Network]
    composition: Composition
    load_queries: Annotated[list[LoadQuery], Field(min_length=1)]
    declared_public: DeclaredPublic
    data: Data
    publication: Publication
    internal_report: InternalReport


class Manifest(Statement[Network], Generic[Network]):
    """`manifest.json`: the statement, the SHA-256 of every other file, and the SHA-256 of all of this."""

    files: Files
    manifest_sha256: Sha256

    def to_bytes(self) -> bytes:
        """The file `manifest.json`."""
        return canonical_json(self.model_dump())


@cache
def in_mode(model: Any, policy: Any) -> Any:
    """A model whose section on the network is for one mode; kept, else each release makes it anew."""
    return model[policy]


def seal(statement: Statement[Any], hashes: Mapping[str, str]) -> Manifest[Any]:
    """The manifest of a release.

    Parameters
    ----------
    hashes : SHA-256 of every released file by relative path; the manifest itself is left out.
    """
    files = {name: digest for name, digest in sorted(hashes.items()) if name != MANIFEST_FILE}
    content = statement.model_dump() | {"files": files}
    whole: Any = Manifest
    policy: Any = type(statement.guarantee.network)
    sealed: Manifest[Any] = in_mode(whole, policy).model_validate(content | {DIGEST: digest_of(content)})
    return sealed


def refuse_other_format(content: Mapping[str, Any], kind: str, file: str) -> None:
    """Refuse what is not of this format and kind, in one sentence that names the last reader."""
    if content.get("format") != FORMAT or content.get("kind") != kind:
        raise ReleaseError(
            f"{file} has another format than '{FORMAT}' of a {kind}; dp-powerflow {LAST_READER} is the last "
            "version that reads earlier formats",
            code="format-not-read",
        )


def parse(content: Mapping[str, Any], kind: str, manifest: Any) -> Any:
    """The manifest of a kind in a JSON object; `manifest` is generic in the policy of the network.

    Raises
    ------
    ReleaseError : it has another format, or an entry is missing, unknown, of another type or out of range.
    """
    refuse_other_format(content, kind, MANIFEST_FILE)
    try:
        mode = content["guarantee"]["network"]["mode"]
    except (LookupError, TypeError):
        raise ReleaseError("the manifest has no entry guarantee.network.mode") from None
    try:
        return in_mode(manifest, registered(mode)).model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReleaseError(f"the manifest's {where} is not usable: {first['msg']}") from None


def parse_manifest(content: Mapping[str, Any]) -> Manifest[Any]:
    """The manifest of a release in a JSON object; raises as `parse`."""
    found: Manifest[Any] = parse(content, "release", Manifest)
    return found


def manifest_schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json` in every registered mode."""
    return schema_of(Manifest, "manifest.json of a dp-powerflow release, version 1", all_policies())


def schema_of(manifest: Any, title: str, policies: Iterable[type[NetworkPolicy]]) -> dict[str, Any]:
    """The JSON schema of a kind of manifest, in some modes."""
    models: list[Any] = [in_mode(manifest, policy) for policy in policies]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | schema


def canonical_json(content: Mapping[str, Any]) -> bytes:
    """Canonical JSON: equal content, equal bytes."""
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a manifest without the entry that holds it.

    It finds accidents and careless edits. It is no signature: a reader who must be sure of the author
    compares the digest with one that the data owner gave in another way.
    """
    rest = {name: value for name, value in content.items() if name != DIGEST}
    return hashlib.sha256(canonical_json(rest)).hexdigest()


def sha256_of(content: bytes) -> str:
    """SHA-256 as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def form_problems(content: bytes, raw: Mapping[str, Any], file: str = MANIFEST_FILE) -> Iterator[str]:
    """What is wrong with the form of a manifest of any kind: canonical JSON, its own digest."""
    try:
        canonical, digest = canonical_json(raw), digest_of(raw)
    except ValueError:
        yield f"{file} holds a number that is none, so it was changed after the release."
        return
    if canonical != content:
        yield f"{file} is not in its canonical form, so it was changed after the release."
    if raw.get(DIGEST) != digest:
        yield f"{file} does not match its own SHA-256, so it was changed after the release."


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


def at_most(value: float) -> str:
    """A figure in three digits, rounded up: a promise is never shown better than it is."""
    return in_digits(float(Context(prec=3, rounding=ROUND_UP).create_decimal(repr(value))))


def at_least(value: float, digits: int = 3) -> str:
    """A figure that protects the more the larger it is, such as noise, rounded down."""
    return in_digits(float(Context(prec=digits, rounding=ROUND_DOWN).create_decimal(repr(value))))


def in_digits(value: float) -> str:
    """A declared constant as a person writes it: 1e-5, not 1e-05."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.12g}").replace("e+", "e")


def all_digits(value: float) -> str:
    """A constant to the last digit that it has, as a person writes it."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(float(value)).removesuffix(".0")).replace("e+", "e")
