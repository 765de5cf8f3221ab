"""A folder to run subjects in: what they do undisturbed, and one of them with something done to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from support.faults.looking import NUMBERED, Ended, Snapshot, in_child, looked_at, snapshot
from support.faults.shim import Event, Shim, Strike
from support.faults.subjects import Subject, in_order

OF_ALL = ("out/fleet.json", "out/fleet.html")
"""Files that list all feeders, and grow with them."""


@dataclass(frozen=True)
class Line:
    """What came of one case.

    Attributes
    ----------
    part : kills, disks or clocks.
    group : the command that was killed, how the disk failed, or how the clock was wrong.
    wrong : what must not be.
    call : the kind of system call at which a command was killed first.
    kills : how often it was killed.
    noticed : whether it ended otherwise than undisturbed.
    """

    part: str
    name: str
    group: str
    wrong: tuple[str, ...]
    call: str = ""
    kills: int = 0
    noticed: bool = False


@dataclass(frozen=True)
class Undisturbed:
    """A subject and what it does when nobody disturbs it.

    Attributes
    ----------
    template : the folder before the command; every case begins with a copy.
    events : the calls that change files, in their order.
    before, after : the folder before and after a run.
    stable : files that two runs wrote with the same bytes.
    """

    subject: Subject
    template: Path
    events: tuple[Event, ...]
    before: Snapshot
    after: Snapshot
    stable: frozenset[str]


@dataclass
class Case:
    """One folder in which a command is disturbed and then run to its end; collects what is wrong.

    Attributes
    ----------
    published : files below `out` when it was looked at last; they may not change any more.
    """

    known: Undisturbed
    folder: Path
    wrong: list[str] = field(default_factory=list)
    published: dict[str, str] = field(default_factory=dict)

    def expect(self, holds: object, words: str) -> None:
        """Note what must not be."""
        if not holds:
            self.wrong.append(words)

    def look(self) -> Snapshot | None:
        """The folder as it is; None, and a wrong, if its ledger cannot be opened."""
        try:
            found = snapshot(self.folder, self.known.subject.store)
        except AssertionError as error:
            self.wrong.append(str(error).strip().splitlines()[-1])
            return None
        more = found.spends - self.known.after.spends
        self.expect(not more, f"charged twice: {dict(more)}")
        return found

    def between(self, *, killed: bool) -> Snapshot | None:
        """Look at what a disturbed command left; only a killed one may leave temporary files."""
        found = self.look()
        if found is None:
            return None
        for name in self.whole(found):
            allowed = (self.known.before.below(name), self.known.after.below(name))
            self.expect(found.below(name) in allowed, f"{name} is neither as before nor whole")
        public = sorted(name for name, mode in found.modes.items() if mode & 0o077)
        self.expect(not public, f"others can read {public[:3]}")
        self.published = {name: of for name, of in found.below("out").items() if name not in OF_ALL}
        left = sorted(name for name in found.files if ".tmp-" in name)
        self.expect(killed or not left, f"left over after an error: {left[:3]}")
        return found

    def whole(self, found: Snapshot) -> list[str]:
        """Names that are as they were or as they will be, in full.

        A store has no renaming: there, what is in the making lies where it will be.
        """
        folders = {"/".join(name.split("/")[:depth]) for name in self.known.after.files for depth in (1, 2)}
        names = [name for of in self.known.subject.whole for name in {of, *folders} if fnmatch(name, of)]
        making = {name.partition(".partial-")[0] for name in found.files if ".partial-" in name}
        return [name for name in names if name not in making]

    def check_end(self) -> bool:
        """Whether what is there is what an undisturbed run makes; notes what is not."""
        found, known, before = self.look(), self.known, len(self.wrong)
        if found is None:
            return False
        after = known.after
        self.expect(known.subject.same(found, after), "the ledger has other entries than after such a run")
        other = sorted(name for name in known.stable if found.files.get(name, "") != after.files[name])
        self.expect(not other, f"other bits: {other[:3]}")
        self.expect(found.names == after.names, f"left over or lost: {sorted(found.names ^ after.names)[:3]}")
        modes = sorted(name for name, mode in after.modes.items() if found.modes.get(name, mode) != mode)
        self.expect(not modes, f"other modes: {modes[:3]}")
        same = self.published.items() <= found.files.items()
        self.expect(same, "what was published before the last run is not what it was")
        return len(self.wrong) == before


class Bench:
    """Runs subjects in folders below a root, one at a time."""

    def __init__(self, root: Path, shim: Shim) -> None:
        self.root, self.shim = root, shim
        self._known: dict[str, Undisturbed] = {}
        self._templates: dict[Callable[[Path], object], Path] = {}

    def undisturbed(self, subject: Subject) -> Undisturbed:
        """What a subject does when nobody disturbs it; found out once, twice over."""
        if subject.name not in self._known:
            self._known[subject.name] = self._measured(subject)
        return self._known[subject.name]

    def case(self, subject: Subject) -> Case:
        """A fresh copy of the folder in which a subject begins."""
        known = self.undisturbed(subject)
        return Case(known, self._fresh(subject, known.template))

    def _fresh(self, subject: Subject, template: Path) -> Path:
        # Always under one path: some bytes hold it.
        folder = self.root / "case"
        if subject.store is not None:
            looked_at(subject.store.clear)
        shutil.rmtree(folder, ignore_errors=True)
        return Path(shutil.copytree(template, folder))

    def disturb(self, case: Case, strike: Strike) -> tuple[Ended, bool]:
        """Run the command with something done to it: how it ended, and whether it was reached."""
        self.shim.arm(case.folder, strike)
        ended = self.run(case, case.known.subject.run)
        return ended, self.shim.disarm()

    def finish(self, case: Case) -> None:
        """Run the command to its end; what is then there must be what an undisturbed run makes."""
        subject = case.known.subject
        ended = self.run(case, subject.run)
        was_done = case.check_end() and subject.once and ended.code == 2  # killed when all was there
        words = f"the last run ended with code {ended.code} and said: {ended.last}"
        case.expect(ended.code == subject.code or was_done, words)

    def run(self, case: Case, do: Callable[[Path], object]) -> Ended:
        """Run something in the folder of a case."""
        ended = in_child(lambda: do(case.folder), self.root / "log")
        case.expect(not ended.survivors, f"{ended.survivors} processes went on")
        # Of a killed command it is of workers of Dask that lost their client.
        case.expect(ended.killed or "Traceback (most recent call last)" not in ended.text, ended.last)
        return ended

    def _measured(self, subject: Subject) -> Undisturbed:
        if subject.prepare not in self._templates:  # subjects that are prepared alike share it
            template = self.root / f"before-{len(self._templates)}"
            template.mkdir()
            self._must_end(subject.prepare, template, 0)
            self._templates[subject.prepare] = template
        template, after = self._templates[subject.prepare], []
        for _ in range(2):
            folder = self._fresh(subject, template)
            self.shim.arm(folder, Strike(kinds=subject.kinds))
            self._must_end(subject.run, folder, subject.code)
            self.shim.disarm()
            after.append(snapshot(folder, subject.store))
        first, second = after
        other = [*sorted(first.names ^ second.names), *(first.unordered ^ second.unordered)]
        if other:
            raise AssertionError(f"two undisturbed runs differ, so nothing compares with them: {other[:5]}")
        stable = {name for name, digest in first.files.items() if second.files.get(name) == digest}
        if subject.same is not in_order:
            stable = {name for name in stable if NUMBERED.search(name) is None}
        events = tuple(self.shim.events())
        return Undisturbed(subject, template, events, snapshot(template), first, frozenset(stable))

    def _must_end(self, do: Callable[[Path], object], folder: Path, code: int) -> None:
        ended = in_child(lambda: do(folder), self.root / "log")
        if ended.code != code:
            raise AssertionError(f"{do}: code {ended.code}\n{ended.text[-3000:]}")
