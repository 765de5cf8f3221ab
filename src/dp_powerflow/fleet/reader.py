"""Reads the corpus of a fleet: one data set of all feeders, or one feeder at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pd

from dp_powerflow.corpus.errors import CorpusError, reading
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import DATA, part_name
from dp_powerflow.fleet.feeders import partition
from dp_powerflow.fleet.manifest import FLEET_FILE, FORMAT
from dp_powerflow.pipeline.verify.files import MALFORMED, parse_manifest


@dataclass(frozen=True)
class Fleet:
    """The corpus of a fleet on disk; `open_fleet` makes it.

    Attributes
    ----------
    path : its directory.
    manifest : `fleet.json`, unchecked.
    names : public names of the feeders.
    """

    path: Path
    manifest: dict[str, Any]
    names: tuple[str, ...]

    def feeder(self, name: str) -> Corpus:
        """The corpus of one feeder."""
        if name not in self.names:
            raise CorpusError(f"the fleet has no feeder {name!r}; its feeders are listed in {FLEET_FILE}")
        return open_corpus(self.path / partition(name))

    def files(self) -> list[str]:
        """Paths of all files with voltages, feeder by feeder."""
        found = []
        for name in self.names:
            corpus = self.feeder(name)
            found += [
                str(self.path / partition(name) / DATA / part_name(part))
                for part in range(corpus.layout.n_parts)
            ]
        return found

    def dataset(self) -> pd.Dataset:
        """The rows of all feeders as they are stored, with a column `feeder` from the directories.

        A filter on the feeder reads the files of that feeder only.
        """
        partitioning = pd.HivePartitioning.discover(infer_dictionary=True)
        with reading(self.path):
            return pd.dataset(self.files(), format="parquet", partitioning=partitioning)


def open_fleet(path: str | os.PathLike[str]) -> Fleet:
    """Open the corpus of a fleet.

    Raises
    ------
    CorpusError : the directory is not the corpus of a fleet, or one of another version.
    """
    directory = Path(path)
    try:
        manifest = parse_manifest((directory / FLEET_FILE).read_bytes())
        names = tuple(str(item["name"]) for item in manifest["feeders"])
    except (OSError, RecursionError, *MALFORMED) as error:
        raise CorpusError(
            f"{directory} has no {FLEET_FILE} that can be read; give the directory of a finished fleet"
        ) from error
    if manifest.get("format") != FORMAT:
        raise CorpusError(
            f"{directory / FLEET_FILE} has another format than '{FORMAT}'; use the program that made it"
        )
    return Fleet(directory, manifest, names)
