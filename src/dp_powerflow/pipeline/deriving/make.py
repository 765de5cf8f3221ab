"""Make a derived release: study → findings → files, all in memory, then a folder that is there or is not."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_powerflow import page
from dp_powerflow._names import __version__
from dp_powerflow.corpus.parquet import PARQUET
from dp_powerflow.corpus.storage import Listed, put, refuse_taken, whole_folder
from dp_powerflow.errors import CorpusError, PrivacyError, require
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    DIGEST,
    MANIFEST_FILE,
    ReleaseError,
    canonical_json,
    digest_of,
    json_object,
    sha256_of,
)
from dp_powerflow.manifest.render import Words
from dp_powerflow.manifest.verify import manifest_content, parsed_manifest
from dp_powerflow.pipeline.deriving.manifest import (
    FROM_STATE,
    PAGE_FILE,
    SOURCE_FILE,
    DerivedManifest,
    card_bytes,
    certificate_html,
    derived_html,
    described,
    determined,
    is_derived,
    parse,
    table_name,
    words_of,
)
from dp_powerflow.pipeline.deriving.source import Basis
from dp_powerflow.studies.study import Findings, Kind, Progress

ROWS_PER_GROUP = 1 << 17
PACKAGES = (
    *("dp-powerflow", "dp-accounting", "dss-python", "jinja2", "numba", "numpy", "pyarrow", "pydantic"),
    *("pyyaml", "randomgen", "scipy"),
)
"""Whose versions a derived release names: it is computed again, and other versions may give other bytes."""
Say = Callable[[str], None]


def prepare(target: Path) -> None:
    """Refuse a target that is bound to fail, before anything is computed.

    Raises
    ------
    CorpusError : it exists, or this user cannot write there.
    """
    refuse_taken(target)
    place = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise CorpusError(f"{target} cannot be made: this user cannot write to {place}; choose another")


def files_of(
    basis: Basis,
    kind: Kind,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    software: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Every file of a derived release, by relative path: a function of study and settings.

    Parameters
    ----------
    software : versions to state, where a release is made again; None for those that are installed.

    Raises
    ------
    DpPowerflowError : the kind refuses the study.
    """
    kind.check(basis.study)
    found = kind.find(basis.study, workers=workers, progress=progress)
    if basis.derived_from == FROM_STATE:
        _refuse_private_names(basis, found)
    files = {name: encode(table) for name, table in sorted(found.tables.items())}
    tables = [described(name, content) for name, content in files.items()]
    follows = determined(basis.source, basis.content, basis.derived_from, kind, tables)
    content = follows | {
        "study": basis.described(kind.name).model_dump(),
        "figures": dict(found.figures),
        "software": software_versions() if software is None else dict(software),
        "files": {},
        DIGEST: "0" * 64,
    }
    manifest = parse(json_object(canonical_json(content)))  # in the order of the file, as pages have it
    files |= dict(found.files) | {
        SOURCE_FILE: basis.content,
        PAGE_FILE: derived_html(manifest, basis.source, found.items),
        CERTIFICATE_FILE: certificate_html(manifest, basis.source),
        CARD_FILE: card_bytes(manifest, basis.source),
    }
    content["files"] = {name: sha256_of(each) for name, each in files.items()}
    return files | {MANIFEST_FILE: canonical_json(content | {DIGEST: digest_of(content)})}


def encode(table: pa.Table) -> bytes:
    """Parquet bytes of a table: equal input, equal bytes with one version of pyarrow."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, row_group_size=ROWS_PER_GROUP, **PARQUET)
    return bytes(sink.getvalue())


def make_derived(
    basis: Basis, kind: Kind, target: Path, workers: int | None, say: Say, progress: Progress | None
) -> None:
    """Compute a derived release and write it, whole or not at all.

    Parameters
    ----------
    workers : None for one per core.
    say, progress : told what is being done, and how much of it.
    """
    say(f"computing {kind.name}")
    files = files_of(basis, kind, workers=workers, progress=progress)
    say("writing")
    with whole_folder(target) as working:
        for name, content in files.items():
            put(working / name, content, make_folder=True)


def software_versions() -> dict[str, str]:
    """Versions of what computed, drew, wrote or stated anything of a release."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found, "dp-powerflow": __version__}


def _refuse_private_names(basis: Basis, found: Findings) -> None:
    """Names of the feeder's file are the owner's: a release calls nodes and buses otherwise.

    Raises
    ------
    PrivacyError : a table holds one; the kind has a bug.
    """
    feeder, study = basis.study.feeder, basis.study
    public = {*study.node_ids, *(() if study.connections is None else study.connections.bus_ids)}
    private = {*feeder.nodes, *(load.name for load in feeder.loads), *(line.name for line in feeder.lines)}
    private |= {node.rsplit(".", 1)[0] for node in feeder.nodes}
    private -= public
    # Figures are texts on a page: a bus that is called 12 is no reason to refuse twelve of anything.
    words = {name for name in private if not name.replace(".", "").isdigit()}
    shown = ((MANIFEST_FILE, found.figures, words), (PAGE_FILE, found.items, words))
    for name, content, forbidden in (*((*table, private) for table in found.tables.items()), *shown):
        if any(text in forbidden for text in _texts(content)):
            raise PrivacyError(
                f"{name} would hold a name of the feeder's file, so nothing was written; this is a bug, "
                "report it"
            )


def _texts(content: Any) -> Iterator[str]:
    """Every text of figures and their keys, of the tables of a page, and of a table, also within lists."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        yield from _texts((*content.keys(), *content.values()))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, page.Table):
        yield from _texts(content.rows)
    elif isinstance(content, pa.Table):
        for column in content.columns:
            while isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
                column = pc.list_flatten(column)
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                yield from _texts(column.unique().to_pylist())
            elif pa.types.is_dictionary(column.type):
                yield from _texts(column.combine_chunks().dictionary.to_pylist())


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
        return self.manifest.study.name

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
        return tuple(words_of(self.manifest))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the release promises less than a reader may expect; worst first."""
        place = (self.path / SOURCE_FILE).parent
        content = manifest_content(place)
        if sha256_of(content) != self.manifest.source.manifest_sha256:
            raise CorpusError(f"{self.path / SOURCE_FILE} is damaged; fetch it again")
        return tuple(Words.of(parsed_manifest(place, content)[0])["warnings"])

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
