"""Receipts: what a release leaves beside its files in the private state, so that a lost charge is found.

The ledger and its anchor guard each other, but an old ledger with its old anchor, put back from a backup,
looks right. The files of later releases then lie in `internal/` without a charge. So every release keeps
which entries of the ledger paid for it, and whoever plans or makes a release first looks for all of them.
What an older copy of the *whole* directory hides, only releases outside can tell: see `fleet.verify`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.manifest.twin import version_of
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import RECEIPT, PrivateState

REQUEST_FILE = "request.sha256"
REPORT_FILE = "report.json"
COMMITMENT = "internal report"
"""What the manifest commits to, as the commitment names it."""
_PREFIX, _SUFFIX = RECEIPT, ".json"
_TWIN_DIGITS = 16
_TWIN_FILE = re.compile(rf"twin-([0-9a-f]{{{_TWIN_DIGITS}}})\.json")
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
    charges = _Charges(ledger, all_at_once=only is None)
    for release_id, names in state.internal_files(only):
        _check(state, release_id, names, charges)
    return ledger


def is_begun(state: PrivateState, release_id: str) -> bool:
    """Whether this private state has begun a release, and paid for its load model."""
    return state.read_internal(release_id, REQUEST_FILE) is not None


def committed(state: PrivateState, release_id: str) -> str | None:
    """What the manifest of a release made with this private state commits to; None if it has no report."""
    report = state.read_internal(release_id, REPORT_FILE)
    return None if report is None else state.commit(release_id, COMMITMENT, report)


def keep_receipt(state: PrivateState, release_id: str, spend: Spend) -> None:
    """Remember, under a release, an entry of the ledger that paid for it."""
    content = {
        "account": spend.account,
        "charged under": spend.release_id,
        "request": spend.request_sha256,
    }
    name = f"{_PREFIX}{spend.entry}{_SUFFIX}"
    state.write_internal(release_id, name, json.dumps(content, sort_keys=True).encode() + b"\n")


def is_receipt(name: str) -> bool:
    """Whether an internal file of this name is a receipt."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


class _Charges:
    """What the ledger has, to look things up in.

    Parameters
    ----------
    all_at_once : whether everything will be asked about, or little.
    """

    def __init__(self, ledger: Ledger, *, all_at_once: bool) -> None:
        self._ledger = ledger
        self._all = all_at_once
        self._of: dict[str, list[Spend]] = {}
        for spend in ledger.spends() if all_at_once else ():
            self._of.setdefault(spend.release_id, []).append(spend)

    def of(self, charged: str) -> Sequence[Spend]:
        """The charges under an id."""
        return self._of.get(charged, ()) if self._all else self._ledger.spends(release_id=charged)

    def has(self, receipt: tuple[str, int, str, str]) -> bool:
        """Whether there is a charge with this account, number, id that was charged, and request."""
        return receipt in {(s.account, s.entry, s.release_id, s.request_sha256) for s in self.of(receipt[2])}

    def has_request(self, release_id: str, request: str) -> bool:
        """Whether an id was charged for a request."""
        return any(spend.request_sha256 == request for spend in self.of(release_id))

    def has_twin(self, twin_id: str, dataset: str) -> bool:
        """Whether some version of a twin was charged for data whose identity begins like this."""
        return any(version_of(charged, twin_id) for charged in self._charged_for.get(dataset, ()))

    @cached_property
    def _charged_for(self) -> dict[str, set[str]]:
        """First digits of the identity of data → ids that were charged for them."""
        found: dict[str, set[str]] = {}
        for spend in self._ledger.spends():
            found.setdefault(spend.dataset[:_TWIN_DIGITS], set()).add(spend.release_id)
        return found


def _check(state: PrivateState, release_id: str, names: Set[str], charges: _Charges) -> None:
    for receipt in _receipts(state, release_id, names):
        if not charges.has(receipt):
            raise _lacks(release_id, f"entry {receipt[1]}, which paid for it from account {receipt[0]}")
    # Below: what versions without receipts left, too.
    if {REQUEST_FILE, MODEL_FILE} <= names and "_" not in release_id:  # a fleet pays for models of feeders
        begun = (state.read_internal(release_id, REQUEST_FILE) or b"").decode(errors="replace")
        if not charges.has_request(release_id, begun):
            raise _lacks(release_id, "the one that paid for its load model")
    twin_id = release_id.removeprefix("twin-")
    for kept in (found[1] for found in map(_TWIN_FILE.fullmatch, sorted(names)) if found):
        if not charges.has_twin(twin_id, kept):
            raise _lacks(twin_id, "the one that paid for the twin")


def _receipts(state: PrivateState, release_id: str, names: Set[str]) -> Iterator[tuple[str, int, str, str]]:
    """Account, entry, id that was charged, and request, of every receipt of a release."""
    for name in filter(is_receipt, sorted(names)):
        fields = _fields(state, release_id, name)
        entry = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        yield str(fields["account"]), entry, str(fields["charged under"]), str(fields["request"])


def _fields(state: PrivateState, release_id: str, name: str) -> dict[str, Any]:
    """What a receipt says, all of it."""
    try:
        fields = json.loads(state.read_internal(release_id, name) or b"")
        int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        if {"account", "charged under", "request"} <= fields.keys():
            return dict(fields)
    except (ValueError, AttributeError, RecursionError):
        pass
    raise PrivacyError(
        f"the receipt {name} of release '{release_id}' in the private state is damaged; restore it from a "
        "backup; nothing was spent",
        code="ledger-damaged",
    )


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
        "put back; restore the newest backup of the private state directory; nothing was spent",
        code="ledger-damaged",
    )
