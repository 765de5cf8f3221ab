"""A folder to run subjects in: what they do undisturbed, and one of them with something done to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from support.faults.looking import (
    ALIVE,
    BITS,
    LEFT,
    LOST,
    TRACEBACK,
    Ended,
    Reference,
    Snapshot,
    Wrong,
    in_child,
    looked_at,
    snapshot,
)
from support.faults.shim import Event, Shim, Strike
from support.faults.subjects import Subject

OF_ALL = ("out/fleet.json", "out/fleet.html")
"""Files that list all feeders, and grow with them."""


@dataclass(frozen=True)
class Undisturbed:
    """A subject and what it does when nobody disturbs it.

    Attributes
    ----------
    template : the folder before the command; every case begins with a copy.
    events : the calls that change files, in their order.
    whole : names that are never half written.
    """

    subject: Subject
    template: Path
    reference: Reference
    events: tuple[Event, ...]
    whole: tuple[str, ...]


@dataclass
class Case:
    """One folder in which a command is disturbed and then run to its end; collects what is wrong.

    Attributes
    ----------
    published : files below `out` when it was looked at last; they may not change any more.
    """

    known: Undisturbed
    folder: Path
    wrong: list[Wrong] = field(default_factory=list)
    published: dict[str, str] = field(default_factory=dict)

    def blame(self, kind: str, words: str) -> None:
        """Note what must not be."""
        self.wrong.append(Wrong(kind, words))

    def look(self) -> Snapshot | None:
        """The folder as it is; None, and a wrong, if its ledger cannot be opened."""
        try:
            return snapshot(self.folder, self.known.subject.store)
        except AssertionError as error:
            self.blame(LOST, str(error).strip().splitlines()[-1])
            return None


class Bench:
    """Runs subjects in folders below a root, one at a time."""

    def __init__(self, root: Path, shim: Shim) -> None:
        self.root, self.shim = root, shim
        self._log = root / "log"
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
        ended = self._run(case.known.subject.run, case.folder)
        struck = self.shim.disarm()
        self._check(case, ended)
        return ended, struck

    def finish(self, case: Case) -> Ended:
        """Run the command to its end; what is then there must be what an undisturbed run makes."""
        subject, reference = case.known.subject, case.known.reference
        ended = self._run(subject.run, case.folder)
        self._check(case, ended)
        found = case.look()
        wrong = [] if found is None else reference.at_end(found, subject.order)
        was_done = subject.once and ended.code == 2 and not wrong  # killed when all was there
        if ended.code != subject.code and not was_done:
            said = (ended.errors or ended.text.strip().splitlines() or ["nothing"])[-1]
            case.blame(LOST, f"the last run ended with code {ended.code} and said: {said[-300:]}")
        case.wrong += wrong
        if found is not None and not case.published.items() <= found.files.items():
            case.blame(BITS, "what was published before the last run is not what it was")
        return ended

    def between(self, case: Case, *, killed: bool) -> Snapshot | None:
        """Look at what a disturbed command left; only a killed one may leave temporary files."""
        found = case.look()
        if found is None:
            return None
        known = case.known
        case.wrong += known.reference.between(found, known.whole)
        case.published = {name: of for name, of in found.below("out").items() if name not in OF_ALL}
        left = sorted(name for name in found.files if ".tmp-" in name)
        if left and not killed:
            case.blame(LEFT, f"left over after an error: {left[:3]}")
        return found

    def _check(self, case: Case, ended: Ended) -> None:
        if ended.survivors:
            case.blame(ALIVE, f"{ended.survivors} processes went on")
        if ended.traceback and not ended.killed:  # else it is of workers of Dask that lost their client
            case.blame(TRACEBACK, ended.text.strip().splitlines()[-1][-300:])

    def _run(self, do: Callable[[Path], object], folder: Path) -> Ended:
        return in_child(lambda: do(folder), self._log)

    def _measured(self, subject: Subject) -> Undisturbed:
        template = self._prepared(subject)
        before, after = snapshot(template), []
        events: tuple[Event, ...] = ()
        for number in range(2):
            folder = self._fresh(subject, template)
            self.shim.arm(folder, Strike(kinds=subject.kinds))
            ended = self._run(subject.run, folder)
            self.shim.disarm()
            self._expect(ended, subject.code, f"{subject.name}, run {number}")
            after.append(snapshot(folder, subject.store))
            events = tuple(self.shim.events())
        reference = Reference.of(before, after[0], after[1], subject.order)
        return Undisturbed(subject, template, reference, events, _expanded(subject.whole, after))

    def _prepared(self, subject: Subject) -> Path:
        """The folder before the command; subjects that are prepared alike share it."""
        if subject.prepare not in self._templates:
            template = self.root / f"before-{len(self._templates)}"
            template.mkdir()
            self._expect(self._run(subject.prepare, template), 0, f"to prepare {subject.name}")
            self._templates[subject.prepare] = template
        return self._templates[subject.prepare]

    @staticmethod
    def _expect(ended: Ended, code: int, what: str) -> None:
        if ended.code != code:
            raise AssertionError(f"{what}: code {ended.code}\n{ended.text[-3000:]}")


def _expanded(patterns: Sequence[str], found: Sequence[Snapshot]) -> tuple[str, ...]:
    """Names for patterns such as out/feeder=*."""
    folders = {"/".join(name.split("/")[:depth]) for name in found[0].files for depth in (1, 2)}
    names = [name for name in patterns if "*" not in name]
    return (*names, *sorted(f for f in folders for p in patterns if "*" in p and fnmatch(f, p)))
