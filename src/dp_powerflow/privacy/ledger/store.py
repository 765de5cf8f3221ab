"""Where the ledger lies: an append-only SQLite table whose entries are chained by a keyed hash.

Every entry carries the keyed hash of the one before and of its own fields, so a changed, removed, inserted
or reordered entry is noticed, and cannot be made to look right without the secret key. What a chain cannot
notice by itself, the loss of its last entries (an old backup put back, a deleted file), the anchor does: a
small file beside the database that says where the chain stood last, written after every commit, with a keyed
hash of its own. A ledger without its anchor is refused. An old ledger that is put back *with* its old anchor
is found out by what later releases left: see `pipeline.plan`.

`Ledger.open` checks the whole chain. What is opened then reads from its last entry on: that entry must be
there unchanged, and what other processes appended must continue the chain. An edit of older entries in the
meantime cannot mislead it, because it goes by what it remembers (`Books`); the next one who opens the ledger
notices it.

Durability: journal_mode=DELETE with synchronous=EXTRA. A spend that was answered must survive a loss of
power, or the same budget could be used twice; EXTRA also flushes the directory after the journal is gone,
without which a committed spend could be rolled back. WAL would be faster, but needs shared memory and two
more files beside the database.

Each operation opens a new connection: no connection is shared across a fork, and threads of one
process take turns. The file itself is never opened other than by SQLite, since closing such a descriptor
would drop SQLite's locks; but when it is made, and other threads wait then (`undisturbed`).
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from dp_powerflow._files import (
    check_private,
    is_temporary,
    read_private,
    undisturbed,
    whole_file,
    write_private,
)
from dp_powerflow._names import LAST_READER
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.records import COLUMNS, FIRST, Books, Entry, HashChain
from dp_powerflow.privacy.state import PrivateState

_VERSION = 1
BUSY_SECONDS = 60.0
_APPLICATION_ID = 0x6470706C  # "dppl"
_EARLIER_ID = 0x64707066  # "dppf", of ledgers up to 0.5.0
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

_SPENT = "nothing was spent"
_AGAIN = "run again, which never charges twice"
_BACKUP = f"restore it from a backup; {_SPENT}"
_FAILURES = {
    sqlite3.SQLITE_PERM: ("may not be opened by this user", "run as the owner of the state directory"),
    sqlite3.SQLITE_BUSY: ("is locked by another process", "wait until it has finished and run again"),
    sqlite3.SQLITE_READONLY: ("cannot be written", f"make the private state directory writable; {_SPENT}"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", f"check the disk and {_AGAIN}"),
    sqlite3.SQLITE_CORRUPT: ("is corrupt", _BACKUP),
    sqlite3.SQLITE_FULL: ("cannot be written, the disk is full", f"free some space and run again; {_SPENT}"),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", f"check the private state directory; {_SPENT}"),
    sqlite3.SQLITE_NOTADB: ("is corrupt", _BACKUP),
}
"""What SQLite's primary result codes mean for the person who runs the command: problem and remedy."""


class Database:
    """The file at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self, first: Entry) -> None:
        """Make the file with its first entry; of several processes that race, one does.

        Its bytes are made in memory, so that SQLite leaves no other file.
        """
        memory = sqlite3.connect(":memory:", isolation_level=None)
        with self._translated(), contextlib.closing(memory) as made:
            made.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                made.execute(statement)
            made.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            made.execute(f"PRAGMA user_version = {_VERSION}")
            insert(made, [first])
            made.execute("COMMIT")
            content = made.serialize()
        try:
            with undisturbed(), whole_file(self._path, private=True, once=True) as file:
                file.write(content)
        except OSError as error:
            raise self.error(
                f"cannot be created ({error.strerror})", "free disk space or check the mode of the directory"
            ) from error

    def check_tables(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that lacks the tables of a ledger."""
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if {sql for (sql,) in tables} != set(_SCHEMA):
            raise self.error("had its tables changed", _BACKUP)

    def entries(self, connection: sqlite3.Connection, since: int | None) -> list[Entry]:
        """Entries from a number on, or all of a file that SQLite finds to be whole; not checked here."""
        if since is None and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise self.corrupt()
        where, numbers = ("", ()) if since is None else ("WHERE seq >= ?", (since,))
        # Text is put together from constants only.
        rows = connection.execute(f"SELECT {COLUMNS} FROM entry {where} ORDER BY seq", numbers)  # nosec B608
        return [Entry._make(row) for row in rows]

    @contextlib.contextmanager
    def session(self) -> Iterator[sqlite3.Connection]:
        """A new connection, whose errors are sentences."""
        try:
            with undisturbed():
                check_private(self._path, self._path.lstat())
        except OSError as error:
            raise self.error(f"cannot be found ({error.strerror})", "restore it from a backup") from error
        # mode=rw: never create. SQLite itself falls back to reading if the file cannot be written.
        address = f"file:{quote(os.fsencode(self._path))}?mode=rw"
        with (
            self._translated(),
            contextlib.closing(
                sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            ) as connection,
        ):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA trusted_schema = OFF")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application == _EARLIER_ID:
                remedy = f"use dp-powerflow {LAST_READER}, the last version that reads it; {_SPENT}"
                raise self.error("is of an earlier version of dp-powerflow", remedy, "format-not-read")
            if application != _APPLICATION_ID:
                raise self.corrupt()
            if version != _VERSION:
                problem = f"has format {version}, and this version of dp-powerflow reads format {_VERSION}"
                remedy = f"use the version that wrote it; {_SPENT}"
                raise self.error(problem, remedy, "format-not-read")
            yield connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors in one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 1) & 0xFF
            problem, remedy = _FAILURES.get(code, ("cannot be used", "restore it from a backup"))
            raise self.error(problem, remedy) from error
        except UnicodeDecodeError as error:  # SQLite quotes the damaged bytes in its own message
            raise self.corrupt() from error

    def corrupt(self) -> PrivacyError:
        return self.error(*_FAILURES[sqlite3.SQLITE_CORRUPT])

    def error(self, problem: str, remedy: str, code: str = "ledger-damaged") -> PrivacyError:
        return PrivacyError(f"the ledger {self._path} {problem}; {remedy}", code=code)


def insert(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    """Add entries, within a transaction."""
    places = ", ".join("?" * len(Entry._fields))  # of constants, as the columns
    connection.executemany(f"INSERT INTO entry ({COLUMNS}) VALUES ({places})", entries)  # nosec B608


_ANCHOR = "dp-powerflow-anchor-1"


class Anchor(NamedTuple):
    """Where the chain stood: number and keyed hash of an entry, and whether that was written with the key.

    The number only grows, so that the tag of number and hash needs no further counter.
    """

    number: int
    mac: str
    genuine: bool


class AnchorFile:
    """The anchor of one private state directory."""

    def __init__(self, state: PrivateState) -> None:
        self._path = state.anchor_path
        self._key = state.stream_key().bind("ledger", "anchor")

    def read(self) -> Anchor | None:
        """The anchor, genuine or not; None if there is none."""
        content = read_private(self._path)
        if content is None:
            return None
        words = content.decode(errors="replace").split()
        if len(words) != 4 or words[0] != _ANCHOR or not (words[1].isascii() and words[1].isdigit()):
            raise PrivacyError(
                f"the ledger has a damaged anchor; restore {self._path} from the newest backup; {_SPENT}",
                code="ledger-damaged",
            )
        number, mac, tag = int(words[1]), words[2], words[3]
        return Anchor(number, mac, hmac.compare_digest(tag.encode(), self._tag(number, mac).encode()))

    def write(self, number: int, mac: str) -> None:
        """Replace the anchor; the caller holds the lock of the ledger."""
        write_private(self._path, f"{_ANCHOR} {number} {mac} {self._tag(number, mac)}\n".encode())
        # Under the lock any other temporary anchor is of a process that was killed.
        for stale in self._path.parent.glob(f"{self._path.name}*"):
            if is_temporary(stale.name):
                with contextlib.suppress(OSError):
                    stale.unlink()

    def _tag(self, number: int, mac: str) -> str:
        return self._key.keyed_hash([str(number).encode(), b" ", mac.encode()])


_alone = threading.Lock()


def _after_fork() -> None:
    global _alone
    _alone = threading.Lock()  # another thread may have had it


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


class LedgerStore:
    """The database and its anchor in one private state directory; one thread at a time uses a ledger.

    What was checked is remembered as `Books`. Whoever works on them takes them away and puts them back when
    all is well: after an interrupt, a refusal or a fork in between, everything is read and checked anew.
    """

    def __init__(self, state: PrivateState) -> None:
        self._state = state
        self._path = state.ledger_path
        self._database = Database(self._path)
        self._chain = HashChain(state)
        self._anchors = AnchorFile(state)
        self._books = Books()
        self._seen: Entry | None = None  # the last entry that was ever checked or committed here

    def create(self) -> None:
        """Make an empty ledger unless there is one; of several processes that race, one does."""
        anchored = self._state.anchor_path.exists()  # first: the anchor is only ever made after the ledger
        if self._path.exists():
            return
        if anchored:
            raise self._database.error("is missing although it was in use", "restore it from a backup")
        first = Transaction(self._chain, Books())
        self._database.make(first.append(FIRST, "", {"insecure_seed": self._state.insecure_seed}))
        with self.transaction():
            pass  # which makes the anchor

    @contextlib.contextmanager
    def reading(self) -> Iterator[Books]:
        """The accounts by all entries, which are checked."""
        with _alone:
            with self._begun("BEGIN") as connection:
                anchor = self._anchors.read()  # before the first row: the database only moves on from there
                books = self._caught_up(connection, anchor)
            yield books

    @contextlib.contextmanager
    def transaction(self, *, may_lack_anchor: bool = False) -> Iterator[Transaction]:
        """Exclusive right to read and append; all of the block's entries are kept, or none.

        Parameters
        ----------
        may_lack_anchor : the anchor is lost, and an entry says why.
        """
        with _alone, self._begun("BEGIN IMMEDIATE") as connection:
            anchor = self._anchors.read()
            if may_lack_anchor and anchor is not None:
                raise PrivacyError("the ledger has its anchor; leave out --accept-unanchored")
            books = self._caught_up(connection, anchor, may_lack_anchor=may_lack_anchor)
            head, self._books = books.entries[-1], Books()  # what is not committed is forgotten
            if not may_lack_anchor and (anchor is None or anchor.number < head.seq):
                # Killed before it was made or moved. First: who is killed now finds both right.
                self._anchors.write(head.seq, head.mac)
            yield Transaction(self._chain, books)
            appended = books.entries[head.seq + 1 :]
            insert(connection, appended)
            connection.execute("COMMIT")
            self._seen = books.entries[-1]
            if appended:
                self._move_on(connection, books)
            self._books = books

    @contextlib.contextmanager
    def _begun(self, how: str) -> Iterator[sqlite3.Connection]:
        """A new connection with a transaction, which ends here."""
        with self._database.session() as connection:
            connection.execute(how)
            try:
                yield connection
            finally:  # a disk that fails here leaves a journal that undoes it later
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    def _caught_up(
        self, connection: sqlite3.Connection, anchor: Anchor | None, *, may_lack_anchor: bool = False
    ) -> Books:
        """What is known, with all that the database has, or with what follows the last known entry."""
        books = self._books
        last = books.entries[-1] if books.entries else None
        self._database.check_tables(connection)
        found = self._found(connection, last)
        if anchor is None and found[-1].seq > 0:
            # Another process may have made it since: it does before it adds a second entry. Nobody commits
            # while this connection reads, so it is not ahead of what was found.
            anchor = self._anchors.read()
        macs = {entry.seq: entry.mac for entry in found}

        def has(number: int, mac: str) -> bool:
            return macs.get(number) == mac or books.has(number, mac)

        if self._seen is not None and not has(self._seen.seq, self._seen.mac):
            raise self._lacks_entries(self._seen.seq)
        if anchor is not None:
            if not anchor.genuine:
                remedy = f"restore {self._state.anchor_path.name} from the newest backup; {_SPENT}"
                raise self._database.error("has an anchor that was not written with its key", remedy)
            if not has(anchor.number, anchor.mac):
                raise self._lacks_entries(anchor.number)
        elif found[-1].seq > 0 and not may_lack_anchor:  # one entry: it was just made, nothing is spent yet
            raise self._database.error(
                "has lost its anchor, so nobody can tell whether an older copy was put back",
                f"restore {self._state.anchor_path.name} from the newest backup, or record why it is "
                f"gone with 'dp-powerflow ledger STATE --accept-unanchored REASON'; {_SPENT}",
            )
        self._books = Books()  # if anything interrupts what follows
        for entry in found[last is not None :]:
            books.take(entry)
        self._books, self._seen = books, books.entries[-1]
        return books

    def _found(self, connection: sqlite3.Connection, last: Entry | None) -> list[Entry]:
        """All entries, or the last known one and what follows, checked."""
        found = self._database.entries(connection, None if last is None else last.seq)
        if last is not None and found[:1] != [last]:
            raise self._lacks_entries(last.seq)
        if last is None and not (found and found[0].event == FIRST and self._chain.follows(None, found[0])):
            raise self._database.error(
                "was written with another key, or its first entry was changed",
                f"restore secret.key and the ledger from the same backup; {_SPENT}",
            )
        for before, entry in itertools.pairwise(found):
            if not self._chain.follows(before, entry):
                problem = f"was changed by hand at or before entry {before.seq + 1}"
                raise self._database.error(problem, _BACKUP)
        return found

    def _lacks_entries(self, number: int) -> PrivacyError:
        problem = f"lacks entries it had before (up to {number})"
        return self._database.error(problem, f"restore the newest backup; {_SPENT}")

    def _move_on(self, connection: sqlite3.Connection, books: Books) -> None:
        """Move the anchor to what was committed, one process at a time: it never goes back."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            for entry in self._found(connection, books.entries[-1])[1:]:  # of another process, since
                books.take(entry)
            self._anchors.write(books.entries[-1].seq, books.entries[-1].mac)
        except (PrivacyError, sqlite3.Error) as error:
            raise self._database.error(
                "was written, but its anchor was not", f"free disk space and {_AGAIN}"
            ) from error


class Transaction:
    """The right to append; made by `LedgerStore.transaction`.

    Attributes
    ----------
    books : the accounts by all entries, those appended here included.
    """

    def __init__(self, chain: HashChain, books: Books) -> None:
        self._chain = chain
        self.books = books

    def append(
        self, event: str, account: str, fields: dict[str, Any], release_id: str = "", request_sha256: str = ""
    ) -> Entry:
        """Add one entry, which counts once the transaction has ended without an error."""
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        number, before = self._chain.place(self.books.entries[-1] if self.books.entries else None)
        entry = Entry(number, at, event, account, release_id, request_sha256, body, "")
        entry = entry._replace(mac=self._chain.mac(before, entry))
        self.books.take(entry)
        return entry
