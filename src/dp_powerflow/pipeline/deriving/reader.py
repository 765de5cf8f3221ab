"""Opens a derived release: its tables, checked against their hashes, and what the manifest says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.corpus.storage import Listed
from dp_powerflow.errors import CorpusError, require
from dp_powerflow.pipeline.deriving.manifest import DerivedManifest, parse
from dp_powerflow.pipeline.deriving.opened import is_derived
from dp_powerflow.pipeline.deriving.pages import table_name
from dp_powerflow.pipeline.manifest.model import DIGEST, ReleaseError, digest_of, json_object
from dp_powerflow.pipeline.opened import manifest_content


@dataclass(frozen=True, eq=False, repr=False)
class Derived:
    """A derived release: tables and figures computed from the twin and the loads of a release.

    Attributes
    ----------
    path : its folder.
    manifest : what it says, as a model.
    """

    path: Path
    manifest: DerivedManifest[Any] = field(repr=False)

    @property
    def kind(self) -> str:
        """What was computed, such as ``"opf"``."""
        return self.manifest.derived.kind

    @property
    def release_id(self) -> str:
        """Name of the release that it came from."""
        return self.manifest.source.id

    @property
    def settings(self) -> Mapping[str, Any]:
        """All public settings."""
        return self.manifest.settings

    @property
    def figures(self) -> Mapping[str, Any]:
        """Figures that were found."""
        return self.manifest.figures

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a reader must know."""
        return tuple(self.manifest.sentences)

    @property
    def guarantee(self) -> Mapping[str, Any]:
        """``loads`` and ``network``: both guarantees of the release, as its manifest states them."""
        return self.manifest.guarantee.model_dump()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(dict.fromkeys(table_name(table.file) for table in self.manifest.tables))

    def table(self, name: str) -> pa.Table:
        """A table with all its parts, each compared with its SHA-256.

        Raises
        ------
        errors.CorpusError : there is no such table, or a file of it is damaged.
        """
        files = [table.file for table in self.manifest.tables if table_name(table.file) == name]
        if not files:
            raise CorpusError(f"{self.path} has no table '{name}'; it has {', '.join(self.tables) or 'none'}")
        listed = Listed(self.path, self.manifest.files)
        return pa.concat_tables([pq.read_table(listed.source(file)) for file in sorted(files)])

    def to_pandas(self, name: str) -> Any:
        """The same as a pandas data frame (extra ``pandas``)."""
        require("pandas", "pandas")
        return self.table(name).to_pandas()

    def __repr__(self) -> str:
        return (
            f"Derived({self.kind!r} of release {self.release_id!r}: {', '.join(self.tables) or 'no table'})"
        )


def open_derived(path: Path) -> Derived:
    """A derived release in a folder.

    Raises
    ------
    ReleaseError : there is none, or its manifest was changed.
    """
    content = manifest_content(path)
    if not is_derived(path):
        raise ReleaseError(f"{path} is not a derived release; open a release with open_corpus")
    raw = json_object(content)
    if raw.get(DIGEST) != digest_of(raw):
        raise ReleaseError(f"the manifest of {path} was changed; fetch it again")
    return Derived(path, parse(raw))
