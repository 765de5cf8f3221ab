"""Run an experiment by name, keep its results for the next run, write them for a reader.

To add an experiment, write a module whose `run` takes `ExperimentOptions` and returns what it has `Written`,
and add it to `EXPERIMENTS`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dp_powerflow.errors import ConfigError
from dp_powerflow.paper.datasets import ExperimentOptions

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "theorem": "theorem",
        "wasserstein": "wasserstein.experiment",
        "recovery": "recovery.experiment",
        "lines": "lines",
        "twin": "twin",
    }
)
"""Name → module of this package; only the one that is run is imported."""


def run_experiment(name: str, options: ExperimentOptions) -> Written:
    """Run one experiment of `EXPERIMENTS`."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; there is {', '.join(EXPERIMENTS)}")
    run: Callable[[ExperimentOptions], Written] = import_module(f"{__package__}.{EXPERIMENTS[name]}").run
    return run(options)


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

    def get_or(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
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
        text = json.dumps({"fingerprint": self.fingerprint, "result": result}, indent=1, allow_nan=False)
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


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
    """Write files by name into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return Written(text, tuple(folder / name for name in contents))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file with a header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()
