"""Attempts at a feeder: one that was corrected after its release was begun goes on under another id.

One release id, one request: draws, report and parts that are kept under an id belong to what was asked for
with it. A feeder whose file or overrides were corrected afterwards therefore gets the next id, `north_f_2`
after `north_f`, if the data owner asks for it. Nothing else begins anew:

- the load model is that of the fleet, or the one fitted under the id of the first attempt;
- the network belongs to the account it had, whatever the correction was. What a release of the true network
  costs is charged for every attempt that gets so far; of a twin only what has changed is charged;
- the twin keeps its id as long as its design is the same. Another design is another draw: it gets an id of
  its own, again with the next number, and is paid for as a whole.

An attempt has begun when its request is in the private state, so there is no list of attempts to be kept. An
interrupted one is gone on with, and one with the same request is never followed by another: from one request
there is one draw.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace

from dp_powerflow.config import Config
from dp_powerflow.errors import Lines, PrivacyError, printable
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.names import first_id_of, release_id_of
from dp_powerflow.manifest.model import registered
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.receipts import REQUEST_FILE, network_account
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import AccountSummary, spelled
from dp_powerflow.privacy.state import PrivateState


@dataclass(frozen=True)
class Again:
    """An answer: this feeder is to be examined and charged instead."""

    feeder: FleetFeeder


def last_attempt(state: PrivateState, fleet_id: str, name: str) -> int:
    """The last attempt at a feeder that has begun; 1 if none has."""
    return next(
        attempt - 1
        for attempt in itertools.count(2)
        if state.read_internal(release_id_of(fleet_id, name, attempt), REQUEST_FILE) is None
    )


def release_ids(fleet_id: str, name: str, attempts: int) -> list[str]:
    """Ids of the first so many attempts at a feeder."""
    return [release_id_of(fleet_id, name, attempt) for attempt in range(1, attempts + 1)]


def at_attempt(feeder: FleetFeeder, attempt: int, account: AccountSummary | None) -> FleetFeeder:
    """The feeder as a certain attempt releases it.

    Parameters
    ----------
    feeder : as any attempt releases it.
    account : of its network; None if it has none.
    """
    release = feeder.config.release
    changes: dict[str, object] = {"id": release_id_of(_fleet_of(feeder), feeder.name, attempt)}
    if attempt > 1 and account is not None:
        changes |= {"continues_network": account.name, "unrelated_network": None}
    config = feeder.config.model_copy(update={"release": release.model_copy(update=changes)})
    name = None if account is None else account.name
    return replace(feeder, config=_on_its_twin(config, attempt, account), attempt=attempt, account=name)


def next_attempt(feeder: FleetFeeder, state: PrivateState, ledger: Ledger) -> FleetFeeder:
    """The feeder under the id of a further attempt, after its file or its config was corrected.

    Raises
    ------
    PrivacyError : which account its network belongs to is not known.
    """
    name = (
        feeder.account
        or feeder.config.release.continues_network
        or opened_account(feeder, state, feeder.attempt)
    )
    account = None if name is None else ledger.named(name)
    if account is None:
        _refuse_unknown(feeder, ledger)
    return at_attempt(feeder, feeder.attempt + 1, account)


def changed_words(feeder: FleetFeeder) -> str:
    """Why a feeder cannot go on, and the command that begins a new attempt."""
    return (
        f"release '{feeder.release_id}' was begun with another file of the feeder, other settings or another "
        "version of the program; restore them to finish it, or begin a new attempt: dp-powerflow fleet "
        f"<fleet file> --retry {feeder.name}"
    )


def _fleet_of(feeder: FleetFeeder) -> str:
    return feeder.release_id.partition("_")[0]


def opened_account(feeder: FleetFeeder, state: PrivateState, attempts: int) -> str | None:
    """The account that the first so many attempts have opened for its network, charged or not."""
    ids = release_ids(_fleet_of(feeder), feeder.name, attempts)
    return next(filter(None, (network_account(state, release_id) for release_id in ids)), None)


def _refuse_unknown(feeder: FleetFeeder, ledger: Ledger) -> None:
    """A version before receipts named accounts may have opened one: the correction belongs to the same."""
    fleet_id, kind = _fleet_of(feeder), registered(feeder.config.network.mode).account_kind
    empty = [
        account.name
        for account in ledger.summary().accounts
        if account.kind is kind and account.fleet == fleet_id and not account.spends
    ]
    if empty:
        raise PrivacyError(
            Lines(
                f"an earlier attempt at feeder '{printable(feeder.key)}' may have opened one of the accounts "
                f"{spelled(empty)}, and the private state does not say which; name it, or any of them if it "
                f"was none, by pasting\n    [overrides.{json.dumps(feeder.key)}]\n    "
                f"continues_network = {json.dumps(empty[0])}"
            )
        )


def _on_its_twin(config: Config, attempt: int, account: AccountSummary | None) -> Config:
    """The config with the id of the twin that was paid for with its design.

    A design that was never paid for gets an id of its own, if there have been as many attempts.
    """
    mode = mode_of(config)
    if account is None or not mode.kept_for_later:
        return config
    first = first_id_of(mode.paid_by)
    paid = {spend.release_id: spend.request_sha256 for spend in account.spends}
    fleet_id, _, name = first.partition("_")
    ids = (release_id_of(fleet_id, name, number) for number in itertools.count(2))
    known = [first, *itertools.takewhile(paid.__contains__, ids)]
    if len(known) > 1 or attempt > 1:  # else there is one, and its price takes time
        for twin_id in known:
            other = _with_twin(config, twin_id)
            if paid.get(twin_id) in (None, mode_of(other).charge("").request_sha256):
                return other
    further = len(known) < attempt
    return _with_twin(config, release_id_of(fleet_id, name, len(known) + 1) if further else known[0])


def _with_twin(config: Config, twin_id: str) -> Config:
    return config.model_copy(update={"network": config.network.model_copy(update={"id": twin_id})})
