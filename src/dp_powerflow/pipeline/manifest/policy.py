"""What a release promises of the network, in one mode: the interface, and the register of the modes.

Nothing in a policy is computed from the network: its fields are public constants, which the config gives and
the manifest states. A mode is added by a subclass with a `mode` of its own; nothing else in this package or
in `verify` knows which modes there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

from dp_powerflow.config import Config
from dp_powerflow.pipeline.manifest.model import (
    Manifest,
    NetworkSection,
    ReleaseError,
    Statement,
    Tables,
    in_mode,
)
from dp_powerflow.privacy.ledger.accounts import AccountKind

if TYPE_CHECKING:
    from dp_powerflow.pipeline.manifest.facts import Facts


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


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and a sentence about it."""

    name: str
    ok: bool
    sentence: str


def check(name: str, problems: Iterable[str], good: str) -> Check:
    """A check that lists its first problems, or says what was found good."""
    found = list(problems)
    if not found:
        return Check(name, True, good)
    more = f" And {len(found) - 3} more." if len(found) > 3 else ""
    return Check(name, False, " ".join(found[:3]) + more)


class NetworkPolicy(ABC):
    """The promise of one mode: constants, the words for them, and what `verify` recomputes.

    Attributes
    ----------
    mode : name of the mode in config and manifest.
    section : model of `guarantee.network`.
    account_kind : kind of the ledger's account that the network is charged to.
    template : page of the certificate; the common one says what every mode has.
    """

    mode: ClassVar[str]
    section: ClassVar[type[NetworkSection]]
    account_kind: ClassVar[AccountKind]
    template: ClassVar[str] = "certificate.html"

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

    @property
    @abstractmethod
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random."""

    @abstractmethod
    def words(self, facts: Facts) -> NetworkWords:
        """All that the manifest says of the network."""

    @abstractmethod
    def contradictions(self, facts: Facts) -> Iterable[str]:
        """What cannot be true of a release in this mode, one sentence each."""

    def paid_by(self, release_id: str) -> str:
        """The id that the network was charged under."""
        return release_id

    def tables(self, facts: Facts) -> Tables | None:
        """Tables published beside the voltages."""
        return None

    def checks(
        self, statement: Statement[Any], facts: Facts, directory: Path, files: Iterable[str]
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
    ReleaseError : an entry is missing, unknown, of another type or out of range.
    """
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
    models = [in_mode(Manifest, _REGISTERED[mode].section) for mode in sorted(_REGISTERED)]
    schema = TypeAdapter(reduce(or_, models)).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manifest.json of a dp-powerflow release, version 3",
    } | schema
