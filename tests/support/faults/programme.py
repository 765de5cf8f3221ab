"""Which commands a campaign tries, and how often each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path

from support.faults import subjects
from support.faults.bench import Bench
from support.faults.campaign import Cases, Item, Stream, in_turn
from support.faults.results import CLOCKS, DISKS, KILLS
from support.faults.store import Store

_EVERY = {
    **{"release of a twin": 1, "release of the true network": 1},
    **{"release to a store": 6, "certify": 30},
}
_OTHERS, _FLEETS, _CLOCKS, _FLEETS_ON_DISKS, _PROCESSES = 2, 8, 12, 24, 60
"""In which rounds a command has a turn: what takes long comes seldom."""
_SHORT = {
    "release of a twin": 14,
    "quality --out": 2,
    "init": 3,
    "ledger --account": 3,
    "plan": 2,
}
"""Cases of `make test`: every kind of call on a release, a few of the other commands."""


def warm_up(root: Path, *, short: bool) -> None:
    """Make releases in this process: what it imports and compiles, its children have."""
    kinds = (subjects.TWIN_RELEASE,) if short else (subjects.TWIN_RELEASE, subjects.TRUE_RELEASE)
    for number, sections in enumerate(kinds):
        folder = root / f"warm-{number}"
        folder.mkdir()
        subjects.released(folder, sections)


def long_items(bench: Bench, seed: int, store: Store | None, *, small_disks: bool) -> Iterator[Item]:
    """Everything, in turn."""
    cases = Cases(bench, seed)
    streams: list[tuple[int, Stream]] = []
    single = [*subjects.releases(), *([subjects.to_store(store)] if store else []), *subjects.commands()]
    streams += [(_EVERY.get(subject.name, _OTHERS), partial(cases.kills, subject)) for subject in single]
    twin, true = subjects.releases()[:2]
    for subject in (twin, true):
        streams += [(_OTHERS, partial(cases.disks, subject)), (_CLOCKS, partial(cases.clocks, subject))]
        if small_disks:
            streams.append((_OTHERS, partial(cases.sizes, subject)))
    streams += [(_FLEETS, partial(cases.kills, subject)) for subject in subjects.fleets()]
    on_disks = subjects.fleets_of_charges()
    streams += [(_FLEETS_ON_DISKS, partial(cases.disks, subject)) for subject in on_disks]
    streams += [(_PROCESSES, partial(cases.kills, subject)) for subject in subjects.processes()]
    return in_turn(streams)


def process_items(bench: Bench, seed: int) -> Iterator[Item]:
    """Kills where workers are other processes, in turn."""
    cases = Cases(bench, seed)
    return in_turn([(1, partial(cases.kills, subject)) for subject in subjects.processes()])


def short_items(bench: Bench, seed: int, part: str, *, small_disks: bool) -> Iterator[Item]:
    """The few cases of `make test`."""
    cases = Cases(bench, seed)
    twin = subjects.releases()[0]
    everything = {subject.name: subject for subject in (*subjects.releases(), *subjects.commands())}
    chosen: dict[str, Callable[[], list[Iterator[Item]]]] = {
        KILLS: lambda: [islice(cases.kills(everything[name]), n) for name, n in _SHORT.items()],
        DISKS: lambda: [islice(cases.disks(twin), 7), islice(cases.sizes(twin), 3 * small_disks)],
        CLOCKS: lambda: [islice(cases.clocks(twin), 2)],
    }
    return chain.from_iterable(chosen[part]())
