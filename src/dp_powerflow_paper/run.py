"""Run an experiment by name, keep its results for the next run, write them for a reader.

To add an experiment, write a module whose `run` takes `ExperimentOptions` and returns what it has `Written`,
and add it to `EXPERIMENTS`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dp_powerflow import PrivateState
from dp_powerflow.errors import ConfigError
from dp_powerflow.lowlevel import INTERNAL, marked_figures, write_private
from dp_powerflow_paper.datasets import ExperimentOptions, Progress

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "theorem": "theorem",
        "wasserstein": "wasserstein.experiment",
        "recovery": "recovery.experiment",
        "lines": "lines",
        "twin": "twin",
        "manifold": "manifold",
        "y-noise": "admittance",
        "comparison": "table1.experiment",
        "table1": "table1.experiment",
        "derived": "derived.experiment",
        "dvorkin2020": "dvorkin2020.experiment",
        "dvorkin2023": "dvorkin2023.experiment",
        "fioretto2019": "fioretto2019.experiment",
        "mak2019": "mak2019.experiment",
    }
)
"""Name → module of this package; only the one that is run is imported. `table1` is what `comparison`, the
paper's Table II, was called up to 0.5.0."""


ON_A_CONFIG = ("theorem", "wasserstein", "recovery", "twin")
"""Experiments that can be run on the feeder and the meters of a config."""
LEAK = (
    "A score against true data is a function of them: to choose settings, a mechanism or days by it, or to "
    "publish it, is a leak that nobody has paid for. A producer fixes settings beforehand, from public "
    "figures or on a public feeder. An experiment charges nothing and publishes nothing."
)
NOTICE_FILE = "INTERNAL.txt"
"""Whatever an experiment writes into a folder that holds this file, or below it, is marked."""
DEFAULT_FOLDER = Path("experiment-output")
_ONLY_OWNER = 0o077


def check_name(name: str, *, on_a_config: bool) -> None:
    """Refuse a name that is no experiment, or none that runs on a config."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; choose from {', '.join(EXPERIMENTS)}")
    if on_a_config and name not in ON_A_CONFIG:
        raise ConfigError(
            f"experiment '{name}' is on public data only; on a config there are {', '.join(ON_A_CONFIG)}, "
            "and 'dp-powerflow certify' for its lines"
        )


def run_experiment(name: str, options: ExperimentOptions) -> Written:
    """Run one experiment of `EXPERIMENTS`; on private data only in a folder that `results_folder` gave."""
    check_name(name, on_a_config=options.config is not None)
    if options.is_private and not is_internal(options.out):
        raise ConfigError("an experiment on private data writes into the private state directory only")
    run: Callable[[ExperimentOptions], Written] = import_module(f"{__package__}.{EXPERIMENTS[name]}").run
    if not options.is_private:
        return run(options)
    with _only_for_the_owner(), marked_figures(INTERNAL):
        return run(options)


def results_folder(options: ExperimentOptions, asked: Path | None) -> Path:
    """Where results go: on public data where they are asked for, on private data into the private state.

    Raises
    ------
    ConfigError : results on private data are asked for somewhere else.
    """
    if not options.is_private or options.config is None:
        return asked or DEFAULT_FOLDER
    if asked is not None:
        raise ConfigError(
            "feeder or meters of this config are private, so all that the experiment writes is INTERNAL and "
            "goes to the private state directory; remove --out"
        )
    release = options.config.release
    state = PrivateState.open(release.state, insecure_seed=release.insecure_seed)
    folder = state.experiments_directory(release.id)
    write_private(folder / NOTICE_FILE, f"{INTERNAL}\n\n{LEAK}\n".encode())
    return folder


def is_internal(folder: Path) -> bool:
    """Whether what is written to a folder is marked."""
    folder = folder.absolute()
    return any((place / NOTICE_FILE).is_file() for place in (folder, *folder.parents))


@contextmanager
def _only_for_the_owner() -> Iterator[None]:
    """New files, also those of worker processes, are for this user alone."""
    before = os.umask(_ONLY_OWNER)
    try:
        yield
    finally:
        os.umask(before)


@dataclass(frozen=True)
class Store:
    """Results of one experiment, a JSON file each: an interrupted run goes on where it stopped.

    Attributes
    ----------
    folder : of the files.
    fingerprint : everything but the configuration that a result depends on; files with another are
        computed again.
    """

    folder: Path
    fingerprint: str

    def get(self, name: str) -> dict[str, Any] | None:
        """The stored result of a configuration, None if there is none of this fingerprint."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            raise ConfigError(f"{path} is not a result of this experiment; remove it and run again") from None
        if not isinstance(found, dict) or found.get("fingerprint") != self.fingerprint:
            return None
        result: dict[str, Any] = found["result"]
        return result

    def get_or(self, name: str, compute: Job) -> dict[str, Any]:
        """The stored result, or the one computed now, which is stored."""
        stored = self.get(name)
        if stored is None:
            stored = compute()
            self.put(name, stored)
        return stored

    def put(self, name: str, result: dict[str, Any]) -> None:
        """Store a result; a crash leaves the old file or the new one, never half of one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        content = {"fingerprint": self.fingerprint, "result": result}
        if is_internal(self.folder):
            content = {"marking": INTERNAL, **content}
        text = json.dumps(content, indent=1, allow_nan=False)
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def store_of(options: ExperimentOptions, name: str, **facts: Any) -> Store:
    """The store of an experiment below the folder of its results, for these facts and the seed."""
    return Store(options.out / name, fingerprint_of({**facts, "seed": options.seed}))


Job = Callable[[], dict[str, Any]]
"""What makes a result of plain values."""


def row(measure: Callable[..., Any], *arguments: Any) -> Job:
    """The job of measuring one row, a frozen dataclass."""
    return lambda: asdict(measure(*arguments))


def computed(store: Store, jobs: Mapping[str, Job], progress: Progress) -> dict[str, dict[str, Any]]:
    """The result of every job by its name, stored or computed now."""
    found = {}
    for done, (name, job) in enumerate(jobs.items()):
        progress(done, len(jobs))
        found[name] = store.get_or(name, job)
    progress(len(jobs), len(jobs))
    return found


def fingerprint_of(facts: dict[str, Any]) -> str:
    """Hash of plain values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Written:
    """The result of an experiment.

    Attributes
    ----------
    text : str
        Markdown.
    files : tuple of Path
        Files it was written to.
    """

    text: str
    files: tuple[Path, ...]


def write_results(folder: Path, text: str, contents: Mapping[str, str | bytes]) -> Written:
    """Write files by name into a folder, which is made if it is missing; texts are marked where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    internal = is_internal(folder)
    for name, content in contents.items():
        if isinstance(content, str):
            content = (_marked(name, content) if internal else content).encode()
        (folder / name).write_bytes(content)
    return Written(_marked("text.md", text) if internal else text, tuple(folder / name for name in contents))


def write_report(
    folder: Path,
    stem: str,
    text: str,
    content: object,
    figures: Mapping[str, Callable[[str], bytes]] = MappingProxyType({}),
) -> Written:
    """Write a text as Markdown, everything behind it as JSON, and figures."""
    contents: dict[str, str | bytes] = {f"{stem}.md": text}
    contents[f"{stem}.json"] = json.dumps(content, indent=1, allow_nan=False)
    contents |= {f"{name}.{form}": draw(form) for name, draw in figures.items() for form in ("svg", "png")}
    return write_results(folder, text, contents)


Cells = str | Sequence[str]
"""Cells of a row, one by one or with ' | ' between them."""


def table(header: Cells, rows: Iterable[Cells]) -> list[str]:
    """A table in Markdown."""
    head, *lines = (cells if isinstance(cells, str) else " | ".join(cells) for cells in (header, *rows))
    return [f"| {head} |", "|---" * (head.count(" | ") + 1) + "|", *(f"| {line} |" for line in lines)]


def block(words: str, header: Cells, rows: Iterable[Cells]) -> list[str]:
    """A paragraph, a table and a blank line."""
    return [words, "", *table(header, rows), ""]


def mean_of(values: Iterable[float]) -> float | None:
    """Over the values that are there; None if none is."""
    there = [value for value in values if math.isfinite(value)]
    return math.fsum(there) / len(there) if there else None


def _marked(name: str, content: str) -> str:
    """A text file with its marking; figures have theirs already."""
    if name.endswith(".json"):
        found = json.loads(content)
        found = found if isinstance(found, dict) else {"content": found}
        return json.dumps({"marking": INTERNAL, "leak": LEAK, **found}, indent=1)
    return f"**{INTERNAL}**\n\n{LEAK}\n\n{content}"
