"""Where the ledger lies: an append-only SQLite table whose entries are chained by a keyed hash.

Every entry carries the keyed hash of the one before and of its own fields, so a changed, removed, inserted
or reordered entry is noticed, and cannot be made to look right without the secret key. What a chain cannot
notice by itself, the loss of its last entries (an old backup put back, a deleted file), the anchor does: a
small file beside the database that says where the chain stood last, written after every commit, with a keyed
hash of its own. A ledger without its anchor is refused. Who puts back an old ledger *with* its old anchor is
found out by what later releases left: see `pipeline.witness`.

Ledgers of versions up to 0.2 (format 1) have an anchor without a keyed hash. The first transaction of this
version records an entry `anchored` in the chain; from then on the anchor must have one. New ledgers say so in
their first entry.

Durability: journal_mode=DELETE with synchronous=EXTRA. A spend that was answered must survive a loss of
power, or the same budget could be used twice; EXTRA also flushes the directory after the journal is gone,
without which a committed spend could be rolled back. WAL would be faster, but needs shared memory and two
more files beside the database; here one spend per release is written and speed does not matter.

Each operation opens a connection of its own: no connection is shared between threads or across a fork. The
file itself is never opened other than by SQLite, since closing such a descriptor would drop SQLite's locks.

A `Store` checks the whole chain once and remembers it. Later it reads from its last entry on: that entry must
be there unchanged, and what other processes appended must continue the chain. An edit of older entries in the
meantime cannot mislead it, because it goes by what it remembers; whoever opens the ledger next notices it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from dp_powerflow._files import (
    check_private,
    create_private,
    publish_once,
    temporary_name,
)
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.anchor import Anchor, AnchorFile
from dp_powerflow.privacy.state import PrivateState

FORMAT = 2
_FIRST_FORMAT = 1  # of versions up to 0.2: the anchor has no keyed hash
BUSY_SECONDS = 60.0
_APPLICATION_ID = 0x64707066  # "dppf"
_GENESIS = "0" * 64
_SCHEMA = (
    "CREATE TABLE entry (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL, "
    "account TEXT NOT NULL, release_id TEXT NOT NULL, request_sha256 TEXT NOT NULL, body TEXT NOT NULL, "
    "mac TEXT NOT NULL)",
    "CREATE UNIQUE INDEX one_spend ON entry (account, release_id) WHERE event = 'spend'",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entry "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entry "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER in_order BEFORE INSERT ON entry "
    "WHEN NEW.seq <> (SELECT coalesce(max(seq), -1) + 1 FROM entry) "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_COLUMNS = "seq, at, event, account, release_id, request_sha256, body, mac"

ANCHORED, UNANCHORED = "anchored", "unanchored"
"""Entries about the ledger itself: its anchor has a keyed hash from now on; its lost anchor was replaced."""
OF_THE_LEDGER = ("ledger", ANCHORED, UNANCHORED)
"""Entries that belong to no account."""

# What SQLite's primary result codes mean for whoever runs the command.
_FAILURES = {
    sqlite3.SQLITE_PERM: (
        "may not be opened by this user",
        "run as the owner of the private state directory",
    ),
    sqlite3.SQLITE_BUSY: (
        "is locked by another process",
        "wait until it has finished and run the command again",
    ),
    sqlite3.SQLITE_READONLY: (
        "cannot be written",
        "make the private state directory writable; nothing was spent",
    ),
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written",
        "check the disk and run again, which never charges twice",
    ),
    sqlite3.SQLITE_CORRUPT: ("is corrupt", "restore it from a backup; nothing was spent"),
    sqlite3.SQLITE_FULL: (
        "cannot be written because the disk is full",
        "free some space and run again; nothing was spent",
    ),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check the private state directory; nothing was spent"),
    sqlite3.SQLITE_NOTADB: ("is corrupt", "restore it from a backup; nothing was spent"),
}


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

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


class Store:
    """The database and its anchor in one private state directory."""

    def __init__(self, state: PrivateState) -> None:
        self._state = state
        self._path = state.ledger_path
        self._key = state.stream_key().bind("ledger", "format 1")  # entries are chained as they always were
        self._anchors = AnchorFile(state)
        self._seen: tuple[Entry, ...] = ()  # checked; replaced as a whole, so that threads may share it

    def create(self) -> None:
        """Make an empty ledger unless there is one; of several processes that race, one does."""
        anchored = self._state.anchor_path.exists()  # first: the anchor is only ever made after the ledger
        if self._path.exists():
            return
        if anchored:
            raise self._error("is missing although it was in use", "restore it from a backup")
        temporary = temporary_name(self._path)
        try:
            os.close(create_private(temporary))
            fields = {"insecure_seed": self._state.insecure_seed, "anchor": FORMAT}
            first = self._entry((), "ledger", "", "", "", fields)
            connection = sqlite3.connect(temporary, isolation_level=None)
            with self._translated(), contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                _insert(connection, first)
                connection.execute("COMMIT")
            publish_once(temporary, self._path)
        except OSError as error:
            raise self._error(
                f"cannot be created ({error.strerror})", "free disk space or check the mode of the directory"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        with self._translated(), self._connection() as connection:
            self._move_anchor(connection)

    def read(self) -> tuple[Entry, ...]:
        """All entries, checked: the first time all of them, then those that are new."""
        anchor = self._anchors.read()  # first: the database only ever moves on from there
        with self._translated(), self._connection() as connection:
            connection.execute("BEGIN")
            try:
                return self._checked(connection, anchor)
            finally:
                _roll_back(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Exclusive right to read and append; all of the block's entries are kept, or none."""
        with self._translated(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                anchor = self._anchors.read()
                transaction = Transaction(self, connection, self._checked(connection, anchor))
                if anchor is None or anchor.tag is None:  # killed when it was made, or an earlier version
                    head = transaction.entries[-1]
                    self._anchors.write(head.seq, head.mac)  # first: who is killed now finds both right
                if not _is_anchored(transaction.entries):
                    transaction.append(ANCHORED, "", {"anchor": FORMAT})
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                yield transaction
                connection.execute("COMMIT")
            finally:
                _roll_back(connection)
            if transaction.appended:
                self._seen = transaction.entries
                self._move_anchor(connection)

    def accept_unanchored(self, reason: str) -> None:
        """Go on with a ledger whose anchor is lost; the reason stays in the ledger for ever.

        Raises
        ------
        PrivacyError : there is an anchor, there is no reason, or the ledger does not pass the check.
        """
        if not reason.strip():
            raise PrivacyError("a ledger without its anchor needs a reason; say how the anchor was lost")
        with self._translated(), self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._anchors.read() is not None:
                    raise PrivacyError("the ledger has its anchor; leave out --accept-unanchored")
                entries = self._checked(connection, None, may_lack_anchor=True)
                transaction = Transaction(self, connection, entries)
                transaction.append(UNANCHORED, "", {"anchor": FORMAT, "reason": reason})
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                connection.execute("COMMIT")
            finally:
                _roll_back(connection)
            self._seen = transaction.entries
            self._move_anchor(connection)

    def _entry(
        self,
        before: tuple[Entry, ...],
        event: str,
        account: str,
        release_id: str,
        request_sha256: str,
        fields: dict[str, Any],
    ) -> Entry:
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Entry(len(before), at, event, account, release_id, request_sha256, body, "")
        return replace(entry, mac=self._mac(before[-1].mac if before else _GENESIS, entry))

    def _mac(self, previous: str, entry: Entry) -> str:
        # Types are part of what is hashed: SQLite would compare 1 and '1' as the same in places.
        e = entry
        signed = (e.seq, e.at, e.event, e.account, e.release_id, e.request_sha256, e.body)
        chunks = [previous, *(f"{type(value).__name__}:{value}" for value in signed)]
        return self._key.keyed_hash(chunk.encode() for chunk in chunks)

    def _checked(
        self, connection: sqlite3.Connection, anchor: Anchor | None, *, may_lack_anchor: bool = False
    ) -> tuple[Entry, ...]:
        """The entries: `_seen`, and after it what the database has since."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise self._error(*_FAILURES[sqlite3.SQLITE_CORRUPT])
        if version not in (_FIRST_FORMAT, FORMAT):
            raise self._error(
                f"has format {version}, and this version of dp-powerflow reads formats 1 and {FORMAT}",
                "use the version that wrote it; nothing was spent",
            )
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if {sql for (sql,) in tables} != set(_SCHEMA):
            raise self._error("had its tables changed", "restore it from a backup; nothing was spent")
        seen = self._seen
        if not seen and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise self._error(*_FAILURES[sqlite3.SQLITE_CORRUPT])
        since = f"WHERE seq >= {seen[-1].seq}" if seen else ""
        rows = connection.execute(f"SELECT {_COLUMNS} FROM entry {since} ORDER BY seq")
        found = tuple(Entry(*row) for row in rows)
        self._check_start(seen, found)
        for before, entry in itertools.pairwise(found):
            if entry.seq != before.seq + 1 or entry.mac != self._mac(before.mac, entry):
                raise self._error(
                    f"was changed by hand at or before entry {before.seq + 1}",
                    "restore it from a backup; nothing was spent",
                )
        entries = (*seen[:-1], *found)
        self._check_anchor(entries, anchor, may_lack_anchor)
        if _is_anchored(entries) != (version == FORMAT):
            raise self._error("had its tables changed", "restore it from a backup; nothing was spent")
        self._seen = entries
        return entries

    def _check_anchor(self, entries: tuple[Entry, ...], anchor: Anchor | None, may_lack: bool) -> None:
        if anchor is None:
            # One entry: it was just made. Nothing is spent yet.
            if len(entries) > 1 and not may_lack:
                raise self._error(
                    "has lost its anchor, so nobody can tell whether an older copy was put back",
                    f"restore {self._state.anchor_path.name} from the newest backup, or record why it is "
                    "gone with 'dp-powerflow ledger STATE --accept-unanchored REASON'; nothing was spent",
                )
            return
        unsigned = anchor.tag is None and _is_anchored(entries)
        if unsigned or not self._anchors.is_genuine(anchor):
            raise self._error(
                "has an anchor that was not written with its key",
                f"restore {self._state.anchor_path.name} from the newest backup; nothing was spent",
            )
        if anchor.number >= len(entries) or entries[anchor.number].mac != anchor.mac:
            raise self._lacks_entries(anchor.number)

    def _check_start(self, seen: tuple[Entry, ...], found: tuple[Entry, ...]) -> None:
        if seen:
            if found[:1] != seen[-1:]:
                raise self._lacks_entries(seen[-1].seq)
        elif not found or found[0].event != "ledger" or found[0].mac != self._mac(_GENESIS, found[0]):
            raise self._error(
                "was written with another key, or its first entry was changed",
                "restore secret.key and the ledger from the same backup; nothing was spent",
            )

    def _lacks_entries(self, number: int) -> PrivacyError:
        return self._error(
            f"lacks entries it had before (up to {number})", "restore the newest backup; nothing was spent"
        )

    def _move_anchor(self, connection: sqlite3.Connection) -> None:
        """Record where the chain stands, one process at a time, so that it never moves back."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            head = connection.execute("SELECT seq, mac FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
            self._anchors.write(*head)
        except PrivacyError as error:
            raise self._error(
                "was written, but its anchor was not",
                "free disk space and run again, which never charges twice",
            ) from error
        finally:
            _roll_back(connection)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            check_private(self._path, self._path.lstat())
        except OSError as error:
            raise self._error(f"cannot be found ({error.strerror})", "restore it from a backup") from error
        # mode=rw: never create. SQLite itself falls back to reading if the file cannot be written.
        address = f"file:{quote(os.fsencode(self._path))}?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors in one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 1) & 0xFF
            problem, remedy = _FAILURES.get(code, ("cannot be used", "restore it from a backup"))
            raise self._error(problem, remedy) from error
        except UnicodeDecodeError as error:  # SQLite quotes the damaged bytes in its own message
            raise self._error(*_FAILURES[sqlite3.SQLITE_CORRUPT]) from error

    def _error(self, problem: str, remedy: str) -> PrivacyError:
        return PrivacyError(f"the ledger {self._path} {problem}; {remedy}")


class Transaction:
    """What has been entered so far, and the right to append; made by `Store.transaction`."""

    def __init__(self, store: Store, connection: sqlite3.Connection, entries: tuple[Entry, ...]) -> None:
        self._store = store
        self._connection = connection
        self._start = len(entries)
        self.entries = entries

    @property
    def appended(self) -> bool:
        return len(self.entries) > self._start

    def append(
        self,
        event: str,
        account: str,
        fields: dict[str, Any],
        *,
        release_id: str = "",
        request_sha256: str = "",
    ) -> Entry:
        """Add one entry; it counts once the transaction has ended without an error."""
        entry = self._store._entry(self.entries, event, account, release_id, request_sha256, fields)
        _insert(self._connection, entry)
        self.entries = (*self.entries, entry)
        return entry


def _is_anchored(entries: tuple[Entry, ...]) -> bool:
    """Whether the chain says that its anchor has a keyed hash: in its first entry, or from an upgrade on."""
    return "anchor" in entries[0].fields or any(e.event in (ANCHORED, UNANCHORED) for e in entries)


def _insert(connection: sqlite3.Connection, entry: Entry) -> None:
    connection.execute(f"INSERT INTO entry ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(entry))


def _roll_back(connection: sqlite3.Connection) -> None:
    """End what has not been committed; a disk that fails here leaves a journal that undoes it later."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
