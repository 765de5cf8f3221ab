"""The entries of the ledger, and the chain of keyed hashes that binds each to all before it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dp_powerflow.privacy.state import PrivateState

ANCHORED, UNANCHORED = "anchored", "unanchored"
"""Entries about the ledger itself: its anchor has a keyed hash from now on; its lost anchor was replaced."""
FIRST = "ledger"
OF_THE_LEDGER = (FIRST, ANCHORED, UNANCHORED)
"""Entries that belong to no account."""
COLUMNS = "seq, at, event, account, release_id, request_sha256, body, mac"
_GENESIS = "0" * 64


class Entry(NamedTuple):
    """One line of the ledger; a tuple, since a check makes one of every line."""

    seq: int
    at: str
    event: str
    account: str
    release_id: str
    request_sha256: str
    body: str
    mac: str

    @property
    def fields(self) -> dict[str, Any]:
        """The body as plain values."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields


class Chain:
    """How entries follow one another under the key of a private state directory.

    The keyed hash of an entry is one of its fields and of the keyed hash of the entry before, so it vouches
    for all entries up to there.
    """

    def __init__(self, state: PrivateState) -> None:
        # Entries are chained as they always were, whatever the format.
        self._keyed_hash = state.stream_key().bind("ledger", "format 1").keyed_hasher()

    def follows(self, before: Entry | None, entry: Entry) -> bool:
        """Whether an entry is the genuine next one after another, or the first one."""
        number, mac = (0, _GENESIS) if before is None else (before.seq + 1, before.mac)
        return entry.seq == number and entry.mac == self.mac(mac, entry)

    def next(
        self,
        before: Entry | None,
        event: str,
        account: str,
        fields: dict[str, Any],
        *,
        release_id: str = "",
        request_sha256: str = "",
    ) -> Entry:
        """The next entry after another, or the first one."""
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        number, mac = (0, _GENESIS) if before is None else (before.seq + 1, before.mac)
        entry = Entry(number, at, event, account, release_id, request_sha256, body, "")
        return entry._replace(mac=self.mac(mac, entry))

    def mac(self, previous: str, entry: Entry) -> str:
        """The keyed hash of an entry after the one with the keyed hash `previous`."""
        # Types are part of what is hashed: SQLite would compare 1 and '1' as the same in places.
        signed = [f"{type(value).__name__}:{value}".encode() for value in entry[:-1]]
        return self._keyed_hash([previous.encode(), *signed])


def says_anchored(entry: Entry) -> bool:
    """Whether an entry says that the anchor has a keyed hash: the first one, or an upgrade."""
    return entry.event in (ANCHORED, UNANCHORED) or (entry.event == FIRST and "anchor" in entry.fields)
