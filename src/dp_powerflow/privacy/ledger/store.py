"""Where the ledger lies: an append-only SQLite table whose entries are chained by a keyed hash.

Every entry carries the keyed hash of the one before and of its own fields, so a changed, removed, inserted
or reordered entry is noticed, and cannot be made to look right without the secret key. What a chain cannot
notice by itself, the loss of its last entries (an old backup put back, a deleted file), the anchor does: a
small file beside the database that says where the chain stood last, written after every commit, with a keyed
hash of its own. A ledger without its anchor is refused. Who puts back an old ledger *with* its old anchor is
found out by what later releases left: see `pipeline.receipts`.

Ledgers of versions up to 0.2 (format 1) have an anchor without a keyed hash. The first transaction of this
version records an entry `anchored` in the chain; from then on the anchor must have one. New ledgers say so in
their first entry.

A process checks the whole chain once (`memory`). Later it reads from its last entry on: that entry must be
there unchanged, and what other processes appended must continue the chain. An edit of older entries in the
meantime cannot mislead it, because it goes by what it remembers; whoever opens the ledger next notices it.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.ledger.anchor import Anchor, AnchorFile
from dp_powerflow.privacy.ledger.books import Books
from dp_powerflow.privacy.ledger.chain import ANCHORED, FIRST, UNANCHORED, Chain, Entry, says_anchored
from dp_powerflow.privacy.ledger.database import FORMAT, Database, insert, roll_back
from dp_powerflow.privacy.ledger.mark import Mark
from dp_powerflow.privacy.ledger.memory import Memory, remember, remembered
from dp_powerflow.privacy.state import PrivateState


class Store:
    """The database and its anchor in one private state directory."""

    def __init__(self, state: PrivateState) -> None:
        self._state = state
        self._path = state.ledger_path
        self._database = Database(self._path)
        self._chain = Chain(state)
        self._anchors = AnchorFile(state)
        self._key_name = state.stream_key().bind("ledger", "memory").keyed_hash([])
        self._memory = Memory()

    def create(self) -> None:
        """Make an empty ledger unless there is one; of several processes that race, one does."""
        anchored = self._state.anchor_path.exists()  # first: the anchor is only ever made after the ledger
        if self._path.exists():
            return
        if anchored:
            raise self._database.error("is missing although it was in use", "restore it from a backup")
        fields = {"insecure_seed": self._state.insecure_seed, "anchor": FORMAT}
        self._database.make(self._chain.next(None, FIRST, "", fields))
        with self.transaction():
            pass  # which makes the anchor

    def open(self) -> None:
        """Check all entries, unless this process has done so and nobody has written since."""
        anchor = self._anchors.read()  # first: the database only ever moves on from there
        with self._database.session() as connection:
            connection.execute("BEGIN")
            try:
                # First, since SQLite undoes what a killed process began: that is a write like any other.
                self._database.check_tables(connection)
                self._memory = remembered(self._path, self._key_name) or Memory()
                self._caught_up(connection, anchor)
            finally:
                roll_back(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[Books, int]]:
        """The accounts by all entries, which are checked, and how many entries there are."""
        anchor = self._anchors.read()
        with self._database.session() as connection:
            connection.execute("BEGIN")
            try:
                memory = self._caught_up(connection, anchor)
            finally:
                roll_back(connection)
        with memory.books() as found:
            yield found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Exclusive right to read and append; all of the block's entries are kept, or none."""
        with self._database.session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                anchor = self._anchors.read()
                memory = self._caught_up(connection, anchor)
                before = self._mark_of(memory)
                transaction = Transaction(self._chain, memory)
                head = transaction.head
                # Killed before it was made or moved, or written by an earlier version.
                if anchor is None or anchor.tag is None or anchor.number < head.seq:
                    self._anchors.write(head.seq, head.mac)  # first: who is killed now finds both right
                if not memory.anchored:
                    transaction.append(ANCHORED, "", {"anchor": FORMAT})
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                yield transaction
                insert(connection, transaction.appended)
                connection.execute("COMMIT")
            finally:
                roll_back(connection)
            if transaction.appended:
                self._move_on(connection, memory, transaction.appended, before)

    def accept_unanchored(self, reason: str) -> None:
        """Go on with a ledger whose anchor is lost; the reason stays in the ledger for ever.

        Raises
        ------
        PrivacyError : there is an anchor, there is no reason, or the ledger does not pass the check.
        """
        if not reason.strip():
            raise PrivacyError("a ledger without its anchor needs a reason; say how the anchor was lost")
        with self._database.session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._anchors.read() is not None:
                    raise PrivacyError("the ledger has its anchor; leave out --accept-unanchored")
                memory = self._caught_up(connection, None, may_lack_anchor=True)
                before = self._mark_of(memory)
                transaction = Transaction(self._chain, memory)
                transaction.append(UNANCHORED, "", {"anchor": FORMAT, "reason": reason})
                insert(connection, transaction.appended)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                connection.execute("COMMIT")
            finally:
                roll_back(connection)
            self._move_on(connection, memory, transaction.appended, before)

    def _caught_up(
        self, connection: sqlite3.Connection, anchor: Anchor | None, *, may_lack_anchor: bool = False
    ) -> Memory:
        """What is known, with all that the database has, or with what follows the last known entry."""
        old, memory = self._memory.last, self._memory if self._memory.usable else Memory()
        last = memory.last
        version = self._database.check_tables(connection)
        mark = Mark.settled(self._path) if last is None else None  # before the entries are read
        found = self._found(connection, last)
        if anchor is None and found[-1].seq > 0:
            # Another process may have made it since: it does before it adds a second entry. Nobody commits
            # while this connection reads, so it is not ahead of what was found.
            anchor = self._anchors.read()
        macs = {entry.seq: entry.mac for entry in found}
        if last is None and old is not None and macs.get(old.seq) != old.mac:  # it was forked
            raise self._lacks_entries(old.seq)
        anchored = memory.anchored or any(map(says_anchored, found))
        if anchor is not None:
            self._check_anchor(anchor, anchored)
            if macs.get(anchor.number) != anchor.mac and not memory.has(anchor.number, anchor.mac):
                raise self._lacks_entries(anchor.number)
        elif found[-1].seq > 0 and not may_lack_anchor:  # one entry: it was just made, nothing is spent yet
            raise self._database.error(
                "has lost its anchor, so nobody can tell whether an older copy was put back",
                f"restore {self._state.anchor_path.name} from the newest backup, or record why it is "
                "gone with 'dp-powerflow ledger STATE --accept-unanchored REASON'; nothing was spent",
            )
        if anchored != (version == FORMAT):
            raise self._database.changed_tables()
        if not memory.take(found):
            raise self._lacks_entries(found[-1].seq)
        if last is None:
            memory.mark = mark if mark == Mark.of(self._path) else None
            self._memory = memory
            remember(self._path, self._key_name, memory)
        return memory

    def _found(self, connection: sqlite3.Connection, last: Entry | None) -> list[Entry]:
        """All entries, or the last known one and what follows, checked."""
        found = self._database.entries(connection, None if last is None else last.seq)
        if last is not None and found[:1] != [last]:
            raise self._lacks_entries(last.seq)
        if last is None and not (found and found[0].event == FIRST and self._chain.follows(None, found[0])):
            raise self._database.error(
                "was written with another key, or its first entry was changed",
                "restore secret.key and the ledger from the same backup; nothing was spent",
            )
        for before, entry in itertools.pairwise(found):
            if not self._chain.follows(before, entry):
                raise self._database.error(
                    f"was changed by hand at or before entry {before.seq + 1}",
                    "restore it from a backup; nothing was spent",
                )
        return found

    def _check_anchor(self, anchor: Anchor, must_be_signed: bool) -> None:
        if (anchor.tag is None and must_be_signed) or not self._anchors.is_genuine(anchor):
            raise self._database.error(
                "has an anchor that was not written with its key",
                f"restore {self._state.anchor_path.name} from the newest backup; nothing was spent",
            )

    def _lacks_entries(self, number: int) -> PrivacyError:
        return self._database.error(
            f"lacks entries it had before (up to {number})", "restore the newest backup; nothing was spent"
        )

    def _mark_of(self, memory: Memory) -> Mark | None:
        """The mark of the file, if that is how it was when all of it was checked."""
        return memory.mark if memory.mark == Mark.of(self._path) else None

    def _move_on(
        self, connection: sqlite3.Connection, memory: Memory, appended: Sequence[Entry], before: Mark | None
    ) -> None:
        """Remember what was committed and move the anchor, one process at a time, so that it never goes back.

        Parameters
        ----------
        before : of the file when it was known to be as checked; None if that was not known.
        """
        try:
            connection.execute("BEGIN IMMEDIATE")
            memory.take(appended)
            found = self._found(connection, memory.last)  # another process may have appended since
            memory.take(found)
            self._anchors.write(found[-1].seq, found[-1].mac)
            alone = found == [appended[-1]]
            memory.mark = self._planted(before) if alone and before is not None else None
        except (PrivacyError, sqlite3.Error) as error:
            raise self._database.error(
                "was written, but its anchor was not",
                "free disk space and run again, which never charges twice",
            ) from error
        finally:
            roll_back(connection)

    def _planted(self, before: Mark) -> Mark | None:
        """A new mark of the same file, after a write of our own."""
        mark = Mark.planted(self._path)
        return mark if mark is not None and mark.same_file(before) else None


class Transaction:
    """What has been entered so far, and the right to append; made by `Store.transaction`.

    Attributes
    ----------
    books : the accounts by all entries, those appended here included.
    appended : entries that count once the transaction has ended without an error.
    """

    def __init__(self, chain: Chain, memory: Memory) -> None:
        assert memory.last is not None
        self._chain = chain
        self.head = memory.last
        self.books = memory.draft()
        self.appended: list[Entry] = []

    def append(
        self,
        event: str,
        account: str,
        fields: dict[str, Any],
        *,
        release_id: str = "",
        request_sha256: str = "",
    ) -> Entry:
        """Add one entry."""
        entry = self._chain.next(
            self.head, event, account, fields, release_id=release_id, request_sha256=request_sha256
        )
        self.books.take(entry)
        self.appended.append(entry)
        self.head = entry
        return entry
