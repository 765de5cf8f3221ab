"""`ledger --witness`: earlier releases as witnesses against a ledger that was put back. PRIVATE.

A copy of the whole private state directory, put back from a backup, is consistent: nothing inside can tell
that later charges are gone. Releases outside can. A manifest states which accounts paid for the release and
where they stood just after. A ledger that lacks such a charge, or says something else of it, is an older
copy, or the release was made with another private state directory.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.storage import Location, loading, location, readers_of
from dp_powerflow.fleet.names import FLEET_FILE, partition
from dp_powerflow.manifest.build import account_of
from dp_powerflow.manifest.model import (
    MANIFEST_FILE,
    MODEL_FILE,
    ReleaseError,
    differences,
    json_object,
)
from dp_powerflow.manifest.twin import version_of
from dp_powerflow.pipeline.plan import committed, kept_models
from dp_powerflow.privacy.ledger.accounts import Balance
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account
from dp_powerflow.privacy.state import PrivateState, check_release_id

_FIGURES = ("unit", "spent")
_OLDER = "an older copy of the private state was put back, or the release was made with another one"


@dataclass(frozen=True)
class Testimony:
    """What earlier releases say of a ledger.

    Attributes
    ----------
    releases : number of manifests that were compared.
    contradictions : one sentence each; empty if the ledger has every charge that they state.
    """

    releases: int
    contradictions: tuple[str, ...]


def hear_witnesses(state_path: Path | str, places: Iterable[str]) -> Testimony:
    """Compare the ledger of a private state directory with earlier releases and fleets.

    Parameters
    ----------
    places : directories or URLs of releases or fleets; check them with `verify` first.

    Raises
    ------
    DpPowerflowError : the ledger does not pass its own check, or a place is no release.
    """
    state = PrivateState.inspect(state_path)
    court = _Court(state, Ledger.open(state, create=False).summary().accounts, _payers(state))
    manifests = [manifest for place in places for manifest in _manifests(location(place))]
    return Testimony(len(manifests), tuple(itertools.chain(*map(court.contradictions, manifests))))


def _manifests(place: Location) -> Iterator[dict[str, Any]]:
    """The manifest of a release, or those of all feeders of a fleet."""
    fleet = place / FLEET_FILE
    with loading(place):
        is_fleet = fleet.exists()
    if not is_fleet:
        yield _read(place / MANIFEST_FILE)
        return
    try:
        names = [str(feeder["name"]) for feeder in _read(fleet)["feeders"]]
    except (KeyError, TypeError):
        raise ReleaseError(f"{fleet} lists no feeders; check the fleet with 'dp-powerflow verify'") from None
    places = [place / partition(name) / MANIFEST_FILE for name in names]
    yield from in_order(_read, places, readers_of(place))


def _read(place: Location) -> dict[str, Any]:
    with loading(place):
        content = place.read_bytes()
    try:
        return json_object(content)
    except (ValueError, RecursionError):
        raise ReleaseError(f"{place} is not of a release; check it with 'dp-powerflow verify'") from None


def _payers(state: PrivateState) -> dict[str, set[str]]:
    """SHA-256 of every kept load model → ids that its charge may be under: its release, or its fleet."""
    payers: dict[str, set[str]] = {}
    for release_id, content in kept_models(state):
        ids = {release_id, release_id.partition("_")[0]}
        payers.setdefault(hashlib.sha256(content).hexdigest(), set()).update(ids)
    return payers


@dataclass(frozen=True, eq=False)
class _Court:
    """PRIVATE. What the private state has to say."""

    state: PrivateState
    accounts: Sequence[Account]
    payers: Mapping[str, set[str]]

    def contradictions(self, manifest: Mapping[str, Any]) -> Iterator[str]:
        """One sentence for each thing that a release states and the private state does not know."""
        try:
            release_id = check_release_id(str(manifest["release"]["id"]))
            stated = {what: dict(manifest["composition"][what]) for what in ("loads", "network")}
            twin = manifest["guarantee"]["network"].get("twin")
            model, commitment = str(manifest["files"][MODEL_FILE]), manifest["internal_report"]["sha256"]
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ReleaseError(
                "a witness is not the manifest of a release; check it with 'dp-powerflow verify'"
            ) from None
        payers, network = self._paid_for(model, release_id), str(twin or release_id)
        for what, name, counts in (
            ("loads", "customers", payers.__contains__),
            ("network", "network", lambda charged: version_of(charged, network) is not None),
        ):
            balances = self._balances(what, counts)
            if not balances:
                yield f"The ledger lacks the charge of release '{release_id}' to the {name}: {_OLDER}."
            elif not any(_agree(account_of(balance).model_dump(), stated[what]) for balance in balances):
                yield (
                    f"The ledger disagrees with release '{release_id}' on what had been spent on the {name}: "
                    f"{_OLDER}."
                )
        if committed(self.state, release_id) not in (None, commitment):
            yield f"Release '{release_id}' commits to another internal report than the one kept: {_OLDER}."

    def _paid_for(self, model: str, release_id: str) -> set[str]:
        """Ids whose charge may have paid for a load model, by the models that are kept."""
        kept = any(release_id in ids for ids in self.payers.values())
        return self.payers.get(model, set()) | (set() if kept else {release_id})

    def _balances(self, what: str, counts: Callable[[str], bool]) -> list[Balance]:
        """Balances just after the charges whose ids count, on accounts of the loads or of networks."""
        return [
            account.as_of(spend.entry).balance
            for account in self.accounts
            if account.kind.stem.startswith(what)
            for spend in account.spends
            if counts(spend.release_id)
        ]


def _agree(own: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Whether the figures agree; sentences belong to the version that wrote them."""
    here, there = ({name: account.get(name) for name in _FIGURES} for account in (own, stated))
    return not any(True for _ in differences(there, here))
