"""What a release promises of the network, in one mode: the interface, and the register of the modes.

Nothing in a policy is computed from the network: its fields are public constants, which the config gives and
the manifest states. A mode is added by a subclass with a `mode` of its own; nothing else in this package or
in `verify` knows which modes there are.

The sentences of the manifest: what is promised and what is not, in words, from public facts alone.

The wording belongs to the format of the manifest: `verify` makes it again and compares. Change a sentence and
the format's version changes with it (`model.FORMAT`). What is said of the network depends on the mode and is
with its policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import TypeAdapter, ValidationError

from dp_powerflow.corpus.storage import Location
from dp_powerflow.manifest.beside import public_days
from dp_powerflow.manifest.histories import public_dates
from dp_powerflow.manifest.model import (
    FORMAT,
    LAST_READER,
    MANIFEST_FILE,
    Check,
    Manifest,
    NetworkSection,
    ReleaseError,
    Statement,
    Tables,
    all_digits,
    at_most,
    in_digits,
    in_mode,
)
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.ledger.accounts import AccountKind

if TYPE_CHECKING:
    from dp_powerflow.config import Config
    from dp_powerflow.grid.feeder import Figure
    from dp_powerflow.manifest.build import Facts


@dataclass(frozen=True)
class NetworkWords:
    """All that a manifest says of the network, in one mode.

    Attributes
    ----------
    section : the section `guarantee.network`.
    composition : statement about this and earlier releases.
    declared : what of the network is declared public.
    after_noise, unprotected, not_claimed, warnings : sentences of the sections of these names.
    bound_to : what the streams of noise and draws are bound to.
    commitment : what the commitment is to.
    attested : what a third party cannot check, for `verify`.
    taps : where the positions of regulator taps come from.
    noise : the noise that buys privacy, of loads and network.
    """

    section: NetworkSection
    composition: str
    declared: list[str]
    after_noise: list[str]
    unprotected: list[str]
    not_claimed: list[str]
    warnings: list[str]
    bound_to: str
    commitment: str
    attested: tuple[str, ...]
    taps: str = "frozen: an input, the same for every network compared"
    noise: str = "exact discrete Gaussian on integers, in integer arithmetic"


class NetworkPolicy(ABC):
    """The promise of one mode: constants, the words for them, and what `verify` recomputes.

    Attributes
    ----------
    mode : name of the mode in config and manifest.
    section : model of `guarantee.network`.
    account_kind : kind of the ledger's account that the network is charged to.
    template : page of the certificate; the common one says what every mode has.
    extras_follow_from : what powers and states beside the voltages follow from; None publishes none.
    connections_follow_from : the same of buses and what joins them.
    dated : whether the days of a release have dates.
    derivable : whether anything computed from the loads and the network that was solved keeps the promise.
    """

    mode: ClassVar[str]
    section: ClassVar[type[NetworkSection]]
    account_kind: ClassVar[AccountKind]
    template: ClassVar[str] = "certificate.html"
    extras_follow_from: ClassVar[str | None] = None
    connections_follow_from: ClassVar[str | None] = None
    dated: ClassVar[bool] = False
    derivable: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _REGISTERED[cls.mode] = cls

    @classmethod
    @abstractmethod
    def of(cls, config: Config) -> Self:
        """The constants that a config states."""

    @classmethod
    @abstractmethod
    def read(cls, statement: Statement[Any]) -> Self:
        """The constants that a manifest states; what it computes from them is not read."""

    def on_network(self, absent: tuple[Figure, ...] | None) -> Self:
        """The policy for a network.

        Parameters
        ----------
        absent : figures that are protected if present, and are not; None where all must be there.
        """
        return self

    @property
    def codes_known(self) -> bool:
        """Whether conductor codes of the network that is solved are public, or drawn with noise."""
        return False

    @property
    @abstractmethod
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random."""

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """Why its constants protect the network from nothing that matters, in one sentence each; mostly none.

        From policy constants and public yardsticks alone: the true network is not looked at.
        """
        return ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What certificate, manifest, `plan`, `release` and `verify` say before all else; mostly nothing."""
        return (f"{NO_PROTECTION}: {' '.join(self.weaknesses)}",) if self.weaknesses else ()

    @abstractmethod
    def words(self, facts: Facts) -> NetworkWords:
        """All that the manifest says of the network."""

    @abstractmethod
    def contradictions(self, facts: Facts) -> Iterable[str]:
        """What cannot be true of a release in this mode, one sentence each."""

    def paid_by(self, release_id: str) -> str:
        """The id that the network was charged under."""
        return release_id

    def is_paid_by(self, charged_as: str, release_id: str) -> bool:
        """Whether a charge of that name paid for the network of a release."""
        return charged_as == self.paid_by(release_id)

    def figures(self) -> dict[str, Any]:
        """Entries of `guarantee.network` that follow from the constants alone; none unless a mode says so."""
        return {}

    def tables(self, facts: Facts) -> Tables | None:
        """Tables published beside the voltages."""
        return None

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Location, files: Iterable[str]
    ) -> Iterable[Check]:
        """What `verify` looks at in this mode only.

        Parameters
        ----------
        statement, facts : what the release says, and the facts read from it.
        directory, files : of the release; the files that are there.
        """
        return ()


_REGISTERED: dict[str, type[NetworkPolicy]] = {}


def kinds_of_shared_accounts() -> set[AccountKind]:
    """Kinds of accounts that are not charged under the id of a release, which ids of their own may repeat."""
    policies = _REGISTERED.values()
    return {policy.account_kind for policy in policies if policy.paid_by is not NetworkPolicy.paid_by}


def all_policies() -> tuple[type[NetworkPolicy], ...]:
    """The policies of all modes, by name."""
    return tuple(policy for _, policy in sorted(_REGISTERED.items()))


def modes() -> frozenset[str]:
    """Names of the modes that there are."""
    return frozenset(_REGISTERED)


def policy_of(config: Config) -> NetworkPolicy:
    """The policy of a config."""
    return registered(config.network.mode).of(config)


def registered(mode: object) -> type[NetworkPolicy]:
    """The policy of a mode; ReleaseError if there is none of that name."""
    if not isinstance(mode, str) or mode not in _REGISTERED:
        raise ReleaseError("the manifest's guarantee.network.mode is unknown")
    return _REGISTERED[mode]


def parse_manifest(content: Mapping[str, Any]) -> Manifest[Any]:
    """The manifest in a JSON object.

    Raises
    ------
    ReleaseError : it has another format, or an entry is missing, unknown, of another type or out of range.
    """
    if content.get("format") != FORMAT:
        raise ReleaseError(
            f"{MANIFEST_FILE} has another format than '{FORMAT}'; dp-powerflow {LAST_READER} is the last "
            "version that reads versions 2 to 6",
            code="format-not-read",
        )
    try:
        mode = content["guarantee"]["network"]["mode"]
    except (LookupError, TypeError):
        raise ReleaseError("the manifest has no entry guarantee.network.mode") from None
    model = in_mode(Manifest, registered(mode).section)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReleaseError(f"the manifest's {where} is not usable: {first['msg']}") from None


def manifest_schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json` in every registered mode."""
    models = [in_mode(Manifest, policy.section) for policy in all_policies()]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manifest.json of a dp-powerflow release, version 7",
    } | schema


if TYPE_CHECKING:
    from dp_powerflow.manifest.build import Facts
    from dp_powerflow.manifest.policy import NetworkWords

LARGEST_EPSILON, LARGEST_DELTA = 10.0, 1e-3
"""Beyond these a promise protects a network from nothing that matters."""
NO_PROTECTION: Literal["NO MEANINGFUL PROTECTION OF THE NETWORK"] = "NO MEANINGFUL PROTECTION OF THE NETWORK"
NO_PROTECTION_OF_CUSTOMERS = "NO MEANINGFUL PROTECTION OF THE CUSTOMERS"
DEFINITION = "(epsilon, delta)-differential privacy"
LOADS_ACCOUNTING = (
    "exact discrete Gaussian noise on integer sums, rho = sensitivity^2 / (2 sigma^2) of zero-concentrated "
    "differential privacy; queries on every record add up, of queries on public classes the dearest class "
    "counts; stated as (epsilon, delta) by Proposition 12 of Canonne, Kamath and Steinke (arXiv 2004.00010v4)"
)
COMPOSITION = (
    "What the releases from the same customers, and from the same network, add up to by the data owner's "
    "ledger, each account as of the charge that paid for this release (for its load model, if that was made "
    "for an earlier one). The data owner attests it; later charges add to it."
)
HIDDEN_ORDER = "The released nodes are put in a secret random order under names that say nothing."
ROUNDED = "Voltages are rounded to the public grid."
SHOWN = (
    "quality.html shows figures of the released files, computed from these files alone; whoever has them can "
    "make it again."
)
ABOUT_RECORDS = (
    "Differential privacy hides one record at a time. It does not hide what is common to many customers, "
    "and the guarantee weakens for a person behind several load points."
)
ABOUT_QUALITY = (
    "Nothing is claimed about how well the corpus resembles the true data: such figures are computed "
    "from private data and stay internal."
)
ABOUT_OTHERS = "Releases made without the data owner's ledger are not counted."


def unit_in_words(unit: PrivacyUnit) -> str:
    """What one record is."""
    if unit is PrivacyUnit.LOAD_POINT:
        return (
            "All days of one load point. A load point is the sum of the customers behind one service, so "
            "whatever one of them does changes one load point: the guarantee covers every customer behind it."
        )
    return (
        "One day of one load point. A load point is the sum of the customers behind one service, so the "
        "guarantee covers one day of every customer behind it. A customer with d days is d records: the "
        "whole history of a customer is protected d^2 times less in rho."
    )


def before_noise(facts: Facts) -> list[str]:
    """What happens to the meter data before the noise."""
    model = facts.model
    relative = " Loads are divided by the public scale of their load point." if model.scaled else ""
    return [
        f"Readings are summed to load points and cut into days of {model.n_steps} steps of "
        f"{model.step_minutes} minutes.{relative}",
        "Gaps are filled from other readings of the same customer; a load point with too many gaps is "
        "replaced by a constant, so that the number of records does not depend on the readings.",
        *_net_loads(facts),
        "Loads are cut to the declared bounds before the logarithm is taken.",
        "What one record contributes to a query is clipped to a public radius and rounded to integers; the "
        "clipping is checked in integers.",
        "Splits of the budget, clip radii and block sizes come from public figures or from answers already "
        "paid for; nothing was tuned on the meter data.",
    ]


def _net_loads(facts: Facts) -> list[str]:
    """What happens to loads that are not above zero; nothing where that is not stated."""
    net = facts.declared.net_loads
    if net is None:
        return []
    most = in_digits(net.most_export)
    fed_in = (
        f"If load points feed in more than {most} of the energy that they draw, the release is refused."
        if net.on_export == "error"
        else "However much load points feed in, it is dropped in that way."
    )
    floor = f"Loads below {in_digits(net.floor_kw)} kW, zero and negative ones too, are raised to it."
    return [f"{floor} {fed_in}"]


def public_sizes(facts: Facts) -> list[str]:
    """What every reader learns of the history and of the files."""
    model, net = facts.model, facts.declared.net_loads
    no_export = ", load points feed in no more than said" if net and net.on_export == "error" else ""
    outcomes = [
        f"That the history holds {model.n_load_points} load points and {model.n_days} days: declared public.",
        "That the meter data passed the checks before anything was spent: their ids match the service map, "
        f"their sign and unit are plausible{no_export}, not too many load points lack readings or are cut to "
        "the bounds, and where the unit is a day, no gap was filled from another day.",
        "When the files were written and how long it took.",
        *public_days(facts.days),
        *public_dates(model),
    ]
    if len(model.class_names) > 1 and model.public_labels:
        outcomes.append("The classes of the load points and the share of each: declared public.")
    return outcomes


def delta_problem(delta: float, load_points: int) -> str | None:
    """Why no release may state this δ of its customers; None if it may.

    At δ = 1/n a release that publishes one load point whole, taken at random, would keep the promise. The
    number n of load points is public: neighbours replace one and never add one.
    """
    if delta * load_points < 1.0:
        return None
    return (
        f"delta = {all_digits(delta)} of the customers is not below one over the number of load points, "
        f"{load_points}: publishing one of them whole would keep such a promise"
    )


def weak_delta(delta: float) -> list[str]:
    """What certificate, manifest, `plan`, `release` and `verify` say of a large δ of the customers."""
    if delta <= LARGEST_DELTA:
        return []
    limit = all_digits(LARGEST_DELTA)
    return [f"{NO_PROTECTION_OF_CUSTOMERS}: delta = {all_digits(delta)} is above {limit}."]


def warnings(facts: Facts) -> list[str]:
    """Why this may not be a release at all; shown before everything else."""
    found = weak_delta(facts.model.delta)
    if facts.insecure_seed:
        found.append(
            "The noise came from an insecure seed, so anybody can take it off: nothing is protected. This is "
            "a demonstration, not a release."
        )
    if facts.model.simulated:
        found.append("The loads are simulated: no customer's readings were used, and none are protected.")
    return found


def composed_weakness(facts: Facts) -> list[str]:
    """Promises that are strong one by one add up; said where the sum is weak."""
    promise, composed = facts.network.promise, facts.network.composed
    pure = composed is not None and not composed.mu_squared  # such a sum needs no delta
    delta = 0.0 if pure else promise.delta
    if promise.epsilon <= LARGEST_EPSILON and delta <= LARGEST_DELTA:
        return []
    sums = f"epsilon adds up to {at_most(promise.epsilon)} and delta to {at_most(delta)}"
    return [f"{NO_PROTECTION}: over this and earlier releases {sums}."]


def random_source(facts: Facts, words: NetworkWords) -> dict[str, str]:
    """Where noise and draws come from."""
    return {
        "generator": "AES-128 in counter mode, one stream per purpose and block",
        "key": (
            "insecure seed, for demonstrations and tests"
            if facts.insecure_seed
            else "256 bits from the operating system, kept in the data owner's private state directory"
        ),
        "noise": words.noise,
        "bound_to": words.bound_to,
    }


def attested_composition(facts: Facts, sign: str) -> str:
    """What the ledger says of this and earlier releases; `sign` goes between epsilon and its figure."""
    loads, network = facts.loads, facts.network
    return (
        f"This and earlier releases, by the ledger: customers, epsilon at most "
        f"{at_most(loads.promise.epsilon)} at delta {in_digits(loads.promise.delta)}; network, {sign} "
        f"{at_most(network.promise.epsilon)}."
    )
