"""The SQLite file of the ledger: its table, its connections, and SQLite's errors in sentences.

Durability: journal_mode=DELETE with synchronous=EXTRA. A spend that was answered must survive a loss of
power, or the same budget could be used twice; EXTRA also flushes the directory after the journal is gone,
without which a committed spend could be rolled back. WAL would be faster, but needs shared memory and two
more files beside the database.

Each operation opens a connection of its own: no connection is shared between threads or across a fork. The
file itself is never opened other than by SQLite, since closing such a descriptor would drop SQLite's locks;
but when it is made, and other threads wait then (`undisturbed`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from dp_powerflow._files import check_private, undisturbed, whole_file
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.chain import COLUMNS, Entry

FORMAT = 2
_FIRST_FORMAT = 1  # of versions up to 0.2: the anchor has no keyed hash
BUSY_SECONDS = 60.0
_APPLICATION_ID = 0x64707066  # "dppf"
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


class Database:
    """The file at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self, first: Entry) -> None:
        """Make the file with its first entry; of several processes that race, one does."""
        try:
            with undisturbed(), whole_file(self._path, private=True, once=True) as file:
                file.write(self._new(first))
        except OSError as error:
            raise self.error(
                f"cannot be created ({error.strerror})", "free disk space or check the mode of the directory"
            ) from error

    def _new(self, first: Entry) -> bytes:
        """The bytes of a ledger with one entry; made in memory, so that SQLite leaves no file of its own."""
        with (
            self._translated(),
            contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made,
        ):
            made.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                made.execute(statement)
            made.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            made.execute(f"PRAGMA user_version = {FORMAT}")
            insert(made, [first])
            made.execute("COMMIT")
            return made.serialize()

    def check_tables(self, connection: sqlite3.Connection) -> int:
        """The format of the ledger, if it is one and has the tables of one."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise self.corrupt()
        if version not in (_FIRST_FORMAT, FORMAT):
            raise self.error(
                f"has format {version}, and this version of dp-powerflow reads formats 1 and {FORMAT}",
                "use the version that wrote it; nothing was spent",
            )
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if {sql for (sql,) in tables} != set(_SCHEMA):
            raise self.changed_tables()
        return int(version)

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
        """A connection of its own, whose errors are sentences."""
        with self._translated(), self._connection() as connection:
            yield connection

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with undisturbed():
                check_private(self._path, self._path.lstat())
        except OSError as error:
            raise self.error(f"cannot be found ({error.strerror})", "restore it from a backup") from error
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
            raise self.error(problem, remedy) from error
        except UnicodeDecodeError as error:  # SQLite quotes the damaged bytes in its own message
            raise self.corrupt() from error

    def changed_tables(self) -> PrivacyError:
        return self.error("had its tables changed", "restore it from a backup; nothing was spent")

    def corrupt(self) -> PrivacyError:
        return self.error(*_FAILURES[sqlite3.SQLITE_CORRUPT])

    def error(self, problem: str, remedy: str) -> PrivacyError:
        return PrivacyError(f"the ledger {self._path} {problem}; {remedy}")


def insert(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    """Add entries, within a transaction."""
    places = ", ".join("?" * len(Entry._fields))  # of constants, as the columns
    connection.executemany(f"INSERT INTO entry ({COLUMNS}) VALUES ({places})", entries)  # nosec B608


def roll_back(connection: sqlite3.Connection) -> None:
    """End what has not been committed; a disk that fails here leaves a journal that undoes it later."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
