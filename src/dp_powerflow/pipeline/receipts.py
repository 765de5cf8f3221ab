"""Receipts: what a release leaves beside its files in the private state, so that a lost charge is found.

The ledger and its anchor guard each other, but an old ledger with its old anchor, put back from a backup,
looks right. The files of later releases then lie in `internal/` without a charge. So every release keeps
which entries of the ledger paid for it, and whoever plans or makes a release first looks for all of them.
What an older copy of the *whole* directory hides, only releases outside can tell: see `fleet.witness`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.manifest.twin.figures import version_of
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import PrivateState

REQUEST_FILE = "request.sha256"
_PREFIX, _SUFFIX = "paid-", ".json"
_TWIN_FILE = re.compile(r"twin-([0-9a-f]{16})\.json")
_DERIVED_FILE = re.compile(r"model-from-(.+)\.json")


def open_ledger(state: PrivateState, *, only: str | None = None) -> Ledger:
    """The ledger, to plan or make a release with: every charge that a release remembers must be in it.

    Parameters
    ----------
    only : look at this release alone; a feeder of a fleet, which has looked at all of them once.

    Raises
    ------
    PrivacyError : the ledger does not pass its own check, or lacks a charge.
    """
    ledger = Ledger.open(state)
    charges = _Charges.of(ledger.spends())
    for release_id, names in state.internal_files(only):
        _check(state, release_id, names, charges)
    return ledger


def keep_receipt(state: PrivateState, release_id: str, spend: Spend) -> None:
    """Remember, under a release, an entry of the ledger that paid for it."""
    content = {
        "account": spend.account,
        "charged under": spend.release_id,
        "request": spend.request_sha256,
    }
    name = f"{_PREFIX}{spend.entry}{_SUFFIX}"
    state.write_internal(release_id, name, json.dumps(content, sort_keys=True).encode() + b"\n")


@dataclass(frozen=True)
class _Charges:
    """What the ledger has, to look things up in.

    Attributes
    ----------
    entries : account, number, id that was charged, and request, of every charge.
    requests, datasets : id that was charged, with its request or its data.
    """

    entries: Set[tuple[str, int, str, str]]
    requests: Set[tuple[str, str]]
    datasets: Set[tuple[str, str]]

    @classmethod
    def of(cls, spends: Iterable[Spend]) -> _Charges:
        spends = tuple(spends)
        return cls(
            {(s.account, s.entry, s.release_id, s.request_sha256) for s in spends},
            {(s.release_id, s.request_sha256) for s in spends},
            {(s.release_id, s.dataset) for s in spends},
        )


def _check(state: PrivateState, release_id: str, names: Set[str], charges: _Charges) -> None:
    for receipt in _receipts(state, release_id, names):
        if receipt not in charges.entries:
            raise _lacks(release_id, f"entry {receipt[1]}, which paid for it from account {receipt[0]}")
    # Below: what versions without receipts left, too.
    if {REQUEST_FILE, MODEL_FILE} <= names and "_" not in release_id:  # a fleet pays for models of feeders
        begun = (state.read_internal(release_id, REQUEST_FILE) or b"").decode()
        if (release_id, begun) not in charges.requests:
            raise _lacks(release_id, "the one that paid for its load model")
    twin_id = release_id.removeprefix("twin-")
    for kept in (found[1] for found in map(_TWIN_FILE.fullmatch, sorted(names)) if found):
        drawn = {dataset for charged, dataset in charges.datasets if version_of(charged, twin_id)}
        if not any(dataset.startswith(kept) for dataset in drawn):
            raise _lacks(twin_id, "the one that paid for the twin")


def _receipts(state: PrivateState, release_id: str, names: Set[str]) -> Iterator[tuple[str, int, str, str]]:
    """Account, entry, id that was charged, and request, of every receipt of a release."""
    for name in sorted(names):
        if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            continue
        try:
            fields = json.loads(state.read_internal(release_id, name) or b"")
            entry = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            yield str(fields["account"]), entry, str(fields["charged under"]), str(fields["request"])
        except (ValueError, KeyError, TypeError):
            raise PrivacyError(
                f"the receipt {name} of release '{release_id}' in the private state is damaged; restore it "
                "from a backup; nothing was spent"
            ) from None


def keep_derived_model(state: PrivateState, release_id: str, reused: str | None, model: LoadModel) -> None:
    """Remember, under a release, a model that it draws from and that is not the one another release keeps.

    Parameters
    ----------
    reused : the release whose noisy answers it is derived from, and which has paid for them.
    """
    content = model.to_json().encode()
    if reused is not None and content != state.read_internal(reused, MODEL_FILE):
        state.write_internal(release_id, f"model-from-{reused}.json", content)


def kept_models(state: PrivateState) -> Iterator[tuple[str, bytes]]:
    """Release that paid, and content, of every load model that is kept."""
    for release_id, names in state.internal_files():
        for name in sorted(names):
            derived = _DERIVED_FILE.fullmatch(name)
            if name == MODEL_FILE or derived:
                paid_by = derived[1] if derived else release_id
                yield paid_by, state.read_internal(release_id, name) or b""


def _lacks(release_id: str, what: str) -> PrivacyError:
    return PrivacyError(
        f"the ledger lacks a charge of release '{release_id}' ({what}), so an older copy of the ledger was "
        "put back; restore the newest backup of the private state directory; nothing was spent"
    )
