"""The commands that are killed: each prepares a folder, runs in it, and says what must stay whole."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dp_powerflow._parallel import Local, Processes, Runner
from dp_powerflow.cli import main
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy import state
from dp_powerflow.privacy.ledger.book import Ledger
from support.faults.looking import Snapshot
from support.faults.shim import FILES, Kind, Victim
from support.fleet_small import fleet_config, on_twins, write_feeders
from support.here import Here
from support.small import TABLES, TWIN, small_config, small_raw, write_toml
from support.stores import Store

DAYS = 140
"""Two parts: a kill before, between and after them."""
CONFIG = "release.toml"
FEEDERS = ("out/feeder=*",)
Sections = dict[str, dict[str, Any]]
TRUE_RELEASE: Sections = {"release": {"days": DAYS}}
TWIN_RELEASE: Sections = {"release": {"days": DAYS}, "network": TWIN}
TABLES_RELEASE: Sections = {"release": {"days": 4}, "network": TABLES}


def in_order(found: Snapshot, after: Snapshot) -> bool:
    """The entries of a ledger are those of an undisturbed run."""
    return found.entries == after.entries


def in_any_order(found: Snapshot, after: Snapshot) -> bool:
    """Workers race: accounts are numbered as they come."""
    return found.unordered == after.unordered


def repeated(found: Snapshot, after: Snapshot) -> bool:
    """A command enters again what it has entered before."""
    return found.entries[: len(after.entries)] == after.entries


@dataclass(frozen=True)
class Subject:
    """A command in a folder.

    Attributes
    ----------
    run : the command, in a child whose working directory is the folder.
    prepare : what is in the folder before.
    whole : names that are as before or finished, never half.
    code : exit code of a run that nobody disturbs.
    same : how its entries in the ledger compare.
    once : it refuses to make what is there.
    kinds : calls at which it is struck.
    victims : who is killed.
    store : an object store to which it writes.
    """

    name: str
    run: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    whole: tuple[str, ...] = ("out",)
    code: int = 0
    same: Callable[[Snapshot, Snapshot], bool] = in_order
    once: bool = False
    kinds: tuple[Kind, ...] = FILES
    victims: tuple[Victim, ...] = (Victim.SELF,)
    store: Store | None = None


def command(*arguments: str) -> Callable[[Path], object]:
    """A command of the command line, run in this process."""

    def run(folder: Path) -> None:
        os.chdir(folder)
        sys.argv = ["dp-powerflow", *arguments]
        main()

    return run


def write_config(folder: Path, sections: Sections, name: str = CONFIG) -> None:
    """The small release as a file."""
    write_toml(folder / name, small_raw(**sections))


def in_words(do: Callable[[Path], object]) -> Callable[[Path], object]:
    """Errors as the command line shows them."""

    def run(folder: Path) -> None:
        try:
            do(folder)
        except DpPowerflowError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)

    return run


def released(folder: Path, sections: Sections) -> None:
    """Make the small release in a folder, with its config."""
    write_config(folder, sections)
    run_release(small_config(folder, **sections), workers=1)


def _on_engine(folder: Path, sections: Sections, engine: Callable[[], Runner]) -> None:
    run_release(small_config(folder, **sections), engine=engine())


REUSE: Sections = {
    "release": {"days": DAYS, "id": "second", "output": "out2"},
    "model": {"reuse": "small"},
    "network": TWIN,
}
_EXPORT = command("export", "gridfm", "out", "graphs")
PREPARE_TWIN = partial(write_config, sections=TWIN_RELEASE)
RELEASE = command("release", CONFIG, "--workers", "1")


def _before_reuse(folder: Path) -> None:
    released(folder, TWIN_RELEASE)
    write_config(folder, REUSE)


def _change_cap(folder: Path) -> None:
    account = next(item for item in Ledger.inspect(folder / "state").summary().accounts)
    run = command("ledger", "state", "--account", account.name, "--epsilon", "9", "--reason", "a decision")
    run(folder)


def _fleet(folder: Path, engine: Callable[[], Runner], *, twins: bool = True) -> None:
    config = on_twins(folder) if twins else fleet_config(folder)
    run_fleet(config, engine=engine())  # type: ignore[arg-type]


def _feeders(folder: Path) -> None:
    write_feeders(folder, repaired=True)


def _prepare_sealed(folder: Path) -> None:
    raw = small_raw(**TWIN_RELEASE)
    del raw["release"]["insecure_seed"]
    write_toml(folder / CONFIG, raw)


def _sealed(folder: Path) -> None:
    """A release with keys in files, whose secrets follow from their names: killed runs have the same bits."""
    write = state._write_secret

    def named(path: Path, secret: bytes, **facts: str) -> None:
        write(path, hashlib.sha256(path.name.encode()).digest(), **facts)

    state._write_secret = named
    RELEASE(folder)


def releases() -> list[Subject]:
    """Releases of every kind that takes about a second."""
    threads = partial(_on_engine, sections={"release": {"days": 700}}, engine=lambda: Local(2))
    return [
        Subject("release of a twin", RELEASE, PREPARE_TWIN),
        Subject("sealed release of a twin", _sealed, _prepare_sealed),
        Subject("release of the true network", RELEASE, partial(write_config, sections=TRUE_RELEASE)),
        Subject("release that reuses a model", RELEASE, _before_reuse, ("out", "out2")),
        Subject("release on two threads", in_words(threads)),
    ]


def to_store(store: Store) -> Subject:
    """A release to a URL, killed whenever it sends something too."""
    prepare = partial(write_config, sections={"release": {"days": DAYS, "output": f"{store.url}/out"}})
    kinds = (*FILES, Kind.SEND)
    return Subject("release to a store", RELEASE, prepare, ("store/out",), kinds=kinds, store=store)


def processes() -> list[Subject]:
    """Releases and fleets whose workers are processes: either side is killed, or both."""
    everyone = (Victim.SELF, Victim.GROUP)
    pool = partial(_on_engine, sections={"release": {"days": 300}}, engine=lambda: Processes(2))
    workers = partial(_fleet, engine=lambda: Local(2))
    racing: dict[str, Any] = {"same": in_any_order, "victims": everyone}
    return [
        Subject("release on two processes", in_words(pool), victims=everyone),
        replace(fleets()[0], name="fleet on two processes", run=in_words(workers), **racing),
    ]


def fleets() -> list[Subject]:
    """Fleets whose client and worker are one process."""
    twins, true = (partial(_fleet, engine=Here, twins=twins) for twins in (True, False))
    return [
        Subject("fleet of twins", in_words(twins), _feeders, whole=FEEDERS),
        Subject("fleet of true networks", in_words(true), _feeders, whole=FEEDERS),
    ]


def commands() -> list[Subject]:
    """Commands that look at a release, or prepare one."""
    twin, true = partial(released, sections=TWIN_RELEASE), partial(released, sections=TRUE_RELEASE)
    tables = partial(released, sections=TABLES_RELEASE)
    kept = ("out", "state/internal", "state/secret.key")
    return [
        Subject("verify", command("verify", "out"), twin, kept),
        Subject("verify --private", command("verify", "out", "--private", "state"), true, kept),
        Subject("quality --out", command("quality", "out", "--out", "q.html"), twin, (*kept, "q.html")),
        Subject("export gridfm", _EXPORT, tables, (*kept, "graphs"), once=True),
        Subject("init", command("init", "mine.toml"), whole=("mine.toml",), once=True),
        Subject("ledger --account", _change_cap, twin, kept, same=repeated),
        Subject("plan", command("plan", CONFIG), PREPARE_TWIN),
        Subject("certify", command("certify", CONFIG, "--line-draws", "0"), true, ("out",)),
    ]
