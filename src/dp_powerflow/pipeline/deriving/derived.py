"""A derived release: what it states, its files, its pages, and its check by a stranger.

The manifest holds figures, settings, names and hashes; sentences are in templates. What follows from the
release, the settings and the tables (`determined`) is made again by `verify`. The guarantees are the
release's own, entry by entry. Parsing is strict. docs/derived.schema.json is generated from the models.

Files are computed in memory, then written as a folder. Certificate and card follow from its manifest and from
the manifest of the release; `derived.html` shows the findings. All are self-contained.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Generic, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, JsonValue

from dp_powerflow import page
from dp_powerflow._names import __version__
from dp_powerflow.corpus.storage import Listed, put, refuse_taken, whole_folder
from dp_powerflow.corpus.tables import PARQUET
from dp_powerflow.errors import CorpusError, DpPowerflowError, PrivacyError, require
from dp_powerflow.manifest import model as form
from dp_powerflow.manifest import render, verify
from dp_powerflow.manifest.build import codes_of
from dp_powerflow.manifest.model import Name as Sentence
from dp_powerflow.pipeline.deriving.source import (
    FROM_FILES,
    Basis,
    Origin,
    StudySettings,
    basis_of_release,
    sky_in_words,
)
from dp_powerflow.studies.study import Findings, Kind, Progress, kind_of, sentences_of

PAGE_FILE = "derived.html"
SOURCE_FILE = "source/manifest.json"
"""The manifest of the release that it came from, as it was."""
REQUIRED = (form.CERTIFICATE_FILE, form.CARD_FILE, PAGE_FILE, SOURCE_FILE)
"""Files besides the manifest and the tables."""
ROWS_PER_GROUP = 1 << 17
PACKAGES = (
    *("dp-powerflow", "dp-accounting", "dss-python", "jinja2", "numba", "numpy", "pyarrow", "pydantic"),
    *("pyyaml", "randomgen", "scipy"),
)
"""Whose versions a derived release names: it is computed again, and other versions may give other bytes."""
Say = Callable[[str], None]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*$")]


# --- what it states ---------------------------------------------------------------------------------------
class Origins(form.Section):
    """The release that it came from.

    Attributes
    ----------
    manifest_sha256 : of its file `manifest.json`, which is `source/manifest.json` here.
    derived_from : what the computation read.
    """

    id: form.ReleaseId
    manifest_sha256: form.Sha256
    derived_from: Origin


class Study(form.Section):
    """What was computed and studied: sizes, and the public sun of new PV.

    Attributes
    ----------
    name : of the kind, as in `dp-powerflow derive NAME`.
    loads : loads of the feeder, or loaded nodes where it was read from released files.
    irradiance : where the irradiance of new PV comes from.
    """

    name: Name
    days: form.Count
    steps_per_day: form.Count
    nodes: form.Count
    loads: form.Count
    latitude_deg: Annotated[float, Field(ge=-90.0, le=90.0)]
    irradiance: Sentence


class Column(form.Section):
    """A column of a table; unit and meaning where the kind states them."""

    name: Sentence
    type: Sentence
    unit: str | None
    means: str | None


class TableSection(form.Section):
    """A table: its file, or one of several parts."""

    file: FileName
    rows: Annotated[int, Field(ge=0)]
    columns: Annotated[list[Column], Field(min_length=1)]


class DerivedManifest(form.Section, Generic[form.Network]):
    """`manifest.json`: what a derived release states, and the SHA-256 of every file."""

    format: Literal["dp-powerflow manifest, version 1"]
    kind: Literal["study"]
    source: Origins
    guarantee: form.Guarantee[form.Network]
    study: Study
    settings: dict[str, JsonValue]
    figures: dict[str, JsonValue]
    tables: list[TableSection]
    software: dict[str, form.Version]
    files: dict[FileName, form.Sha256]
    manifest_sha256: form.Sha256


def determined(
    source: form.Manifest[Any],
    content: bytes,
    derived_from: Origin,
    kind: Kind,
    tables: Sequence[TableSection],
) -> dict[str, Any]:
    """The entries that follow from the release, the settings and the tables.

    Parameters
    ----------
    source, content : manifest of the release, and its file.
    """
    of_release = {"id": source.release.id, "manifest_sha256": form.sha256_of(content)}
    return {
        "format": form.FORMAT,
        "kind": verify.STUDY,
        "source": {**of_release, "derived_from": derived_from},
        "guarantee": source.guarantee.model_dump(),
        "settings": kind.model_dump(mode="json"),
        "tables": [table.model_dump() for table in tables],
    }


def parse(content: Mapping[str, Any]) -> DerivedManifest[Any]:
    """The manifest in a JSON object; raises as `manifest.model.parse`."""
    found: DerivedManifest[Any] = form.parse(content, verify.STUDY, DerivedManifest)
    return found


def described(name: str, content: bytes) -> TableSection:
    """A Parquet file as the manifest describes it; units and meanings are metadata of its columns."""
    file = pq.ParquetFile(pa.BufferReader(content))
    columns = []
    for column in file.schema_arrow:
        said = {key.decode(): words.decode() for key, words in (column.metadata or {}).items()}
        columns.append(
            Column(name=column.name, type=str(column.type), unit=said.get("unit"), means=said.get("means"))
        )
    return TableSection(file=name, rows=file.metadata.num_rows, columns=columns)


def derived_schema() -> dict[str, Any]:
    """The JSON schema of `manifest.json` of a derived release, in every mode that one is derived from."""
    title = "manifest.json of a derived release of dp-powerflow, version 1"
    return form.schema_of(DerivedManifest, title, (own for own in form.all_policies() if own.derivable))


def named_tables(tables: Sequence[TableSection]) -> dict[str, TableSection]:
    """Tables by name, those in parts as one with the pattern of their files.

    `dispatch/part-00000.parquet` is part of `dispatch`, and a file in a folder `key=value` of what is above.
    """
    found: dict[str, TableSection] = {}
    for table in tables:
        pattern = re.sub(r"/part-[^/]*$", "/*.parquet", table.file)
        pattern = re.sub(r"/[^/]*=[^/]*/[^/]*$", "/*/*.parquet", pattern)
        name = _table_of(table.file)
        rows = table.rows + (found[name].rows if name in found else 0)
        found[name] = table.model_copy(update={"file": pattern, "rows": rows})
    return found


def _table_of(file: str) -> str:
    """Name of the table that a file is, or is part of."""
    return re.sub(r"/(part-[^/]*|[^/]*=[^/]*/[^/]*)$", "", file).removesuffix(".parquet")


# --- pages ------------------------------------------------------------------------------------------------
_MOST_FIGURES = 60
"""Rows of figures on a page; the manifest has all."""


def certificate_html(manifest: DerivedManifest[Any], source: form.Manifest[Any]) -> bytes:
    """The page that a privacy officer reads; hashes do not enter."""
    return render.rendered("study.html", words_of(manifest), _shown(manifest, source))


def card_bytes(manifest: DerivedManifest[Any], source: form.Manifest[Any]) -> bytes:
    """`README.md`, the card that dataset hubs show; hashes do not enter."""
    tables, title = named_tables(manifest.tables), _title(manifest)
    head = {
        "pretty_name": title,
        **render.license_of(source.publication),
        "tags": ["distribution-grid", "energy", "synthetic", "differential-privacy", "dp-powerflow"],
        "configs": [
            {"config_name": name.replace("/", "-"), "data_files": table.file}
            for name, table in tables.items()
        ],
    }
    shown = {
        **_shown(manifest, source),
        "title": title,
        "tables": list(tables.values()),
        "publication": source.publication,
        "not_stated": render.NOT_STATED,
        "citation": render.cited_as(source.publication, source.release.id),
    }
    return render.card(head, render.rendered("study.md", words_of(manifest), shown))


def derived_html(
    manifest: DerivedManifest[Any], source: form.Manifest[Any], items: Sequence[page.Item]
) -> bytes:
    """The page of what was found."""
    promise, words = render.promise_of(source), words_of(manifest)
    promised: list[page.Item] = [
        page.Callout(of.title, of.sentences, "good" if of.holds else "warning")
        for of in (promise.loads, promise.network)
    ]
    if promise.warnings:
        promised.insert(0, page.Callout("Read this first", promise.warnings, "warning", wide=True))
    figures, settings = list(flat(manifest.figures)), tuple(flat(manifest.settings))
    rows = tuple(figures[:_MOST_FIGURES])
    more = f" The manifest has {len(figures) - len(rows)} more." if len(figures) > len(rows) else ""
    found: list[page.Item] = list(items)
    if rows:
        found.append(page.Table(("figure", "value"), rows, f"Figures of the manifest.{more}", frozenset({1})))
    shown = (page.Table(("setting", "value"), settings, "Public settings."),) if settings else ()
    return page.Page(
        title=_title(manifest),
        marking=None,
        lead=(words.text("lead"),),
        sections=(
            page.Section("found", "What was found", tuple(to_know(manifest)), tuple(found)),
            page.Section("privacy", "What is protected", (words.text("because"),), tuple(promised)),
            page.Section("settings", "Settings", (words.text("about"),), shown),
        ),
        footer=(words.text("follows"),),
    ).to_html()


def to_know(manifest: DerivedManifest[Any]) -> list[str]:
    """What a reader must know, from settings and figures."""
    study = manifest.study
    return sentences_of(kind_of(study.name, manifest.settings), manifest.figures, study.days)


def words_of(manifest: DerivedManifest[Any]) -> render.Words:
    """The sentences of any derived release."""
    origin = manifest.source
    return render.Words(
        "study.txt", {"derived_from": origin.derived_from, "release": origin, "study": manifest.study}
    )


def flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested figures, as texts."""
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if isinstance(value, dict) and value:
            yield from flat(value, path)
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _title(manifest: DerivedManifest[Any]) -> str:
    return f"{manifest.study.name} of release {manifest.source.id}"


def _shown(manifest: DerivedManifest[Any], source: form.Manifest[Any]) -> dict[str, Any]:
    of_release = render.Words.of(source)
    return {
        "kind": manifest.study.name,
        "release": source.release,
        "derived_from": manifest.source.derived_from,
        "loads": source.guarantee.loads,
        "promised": render.promise_of(source).network,
        "unit": of_release.text("unit"),
        "warnings": of_release["warnings"],
        "study": manifest.study,
        "settings": list(flat(manifest.settings)),
        "figures": list(flat(manifest.figures)),
        "sentences": to_know(manifest),
        "software": manifest.software,
    }


# --- made -------------------------------------------------------------------------------------------------
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
    study, source = basis.study, basis.source
    kind.check(study)
    found = kind.find(study, workers=workers, progress=progress)
    if basis.derived_from != FROM_FILES:
        _refuse_private_names(basis, found)
    files = {name: encode(table) for name, table in sorted(found.tables.items())}
    tables = [described(name, content) for name, content in files.items()]
    content = determined(source, basis.content, basis.derived_from, kind, tables) | {
        "study": {
            "name": kind.name,
            "days": study.days,
            "steps_per_day": study.steps,
            "nodes": len(study.released),
            "loads": len(study.feeder.loads),
            "latitude_deg": basis.settings.latitude_deg,
            "irradiance": basis.irradiance,
        },
        "figures": dict(found.figures),
        "software": software_versions() if software is None else dict(software),
        "files": {},
        form.DIGEST: "0" * 64,
    }
    # In the order of the file, as pages have it.
    manifest = parse(form.json_object(form.canonical_json(content)))
    files |= {
        SOURCE_FILE: basis.content,
        PAGE_FILE: derived_html(manifest, source, found.items),
        form.CERTIFICATE_FILE: certificate_html(manifest, source),
        form.CARD_FILE: card_bytes(manifest, source),
    }
    content["files"] = {name: form.sha256_of(each) for name, each in files.items()}
    return files | {form.MANIFEST_FILE: form.canonical_json(content | {form.DIGEST: form.digest_of(content)})}


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
    shown = ((form.MANIFEST_FILE, found.figures, words), (PAGE_FILE, found.items, words))
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


# --- opened -----------------------------------------------------------------------------------------------
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
        return tuple(to_know(self.manifest))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the release promises less than a reader may expect; worst first."""
        place = (self.path / SOURCE_FILE).parent
        content = verify.manifest_content(place)
        if form.sha256_of(content) != self.manifest.source.manifest_sha256:
            raise CorpusError(f"{self.path / SOURCE_FILE} is damaged; fetch it again")
        return tuple(render.Words.of(verify.parsed_manifest(place, content)[0])["warnings"])

    @property
    def guarantee(self) -> Mapping[str, Any]:
        """``loads`` and ``network``: both guarantees of the release, as its manifest states them."""
        return self.manifest.guarantee.model_dump()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(named_tables(self.manifest.tables))

    def table(self, name: str) -> pa.Table:
        """A table with all its parts, each compared with its SHA-256.

        Raises
        ------
        errors.CorpusError : there is no such table, or a file of it is damaged.
        """
        files = [table.file for table in self.manifest.tables if _table_of(table.file) == name]
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
    content = verify.manifest_content(path)
    try:
        raw = form.json_object(content)
    except (ValueError, RecursionError):
        raw = {}
    if raw.get("kind") != verify.STUDY:
        raise form.ReleaseError(f"{path} is not a derived release; open a release with open_corpus")
    if raw.get(form.DIGEST) != form.digest_of(raw):
        raise form.ReleaseError(f"the manifest of {path} was changed; fetch it again")
    return Derived(path, parse(raw))


# --- checked ----------------------------------------------------------------------------------------------
# Files are compared with their hashes, the manifest with its own digest and, entry by entry, with the one
# that tables, settings and the manifest of the release determine. Figures, tables and `derived.html` follow
# from the study: from a release that publishes its twin, or from the private state, all are made again.
@dataclass(frozen=True, eq=False)
class OpenedDerived:
    """A derived release that was read; any file may have been changed.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    files : content of every other file; None of what is no plain file or cannot be read.
    manifest : as a model; None if an entry cannot be used, for which `problem` says why.
    source_raw, source : the manifest of the release as JSON and as a model; None if it is none.
    """

    content: bytes
    raw: dict[str, Any]
    files: dict[str, bytes | None]
    manifest: DerivedManifest[Any] | None
    problem: str
    source_raw: dict[str, Any]
    source: form.Manifest[Any] | None

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file but the manifest; words where there is none."""
        return {
            name: "unreadable" if content is None else form.sha256_of(content)
            for name, content in self.files.items()
        }

    def readable(self) -> tuple[DerivedManifest[Any], form.Manifest[Any]]:
        """Both manifests; ReleaseError if there are none."""
        if self.manifest is None or self.source is None:
            raise form.ReleaseError(form.UNREADABLE)
        return self.manifest, self.source


def open_files(directory: Path) -> OpenedDerived:
    """Read a derived release; ValueError or RecursionError if its manifest is no JSON."""
    content = verify.manifest_content(directory)
    raw = form.json_object(content)
    manifest, problem, source_raw, source = None, "", {}, None
    try:
        manifest = parse(raw)
    except form.MALFORMED as error:
        problem = str(error)
    files: dict[str, bytes | None] = {}
    for name, plain in verify.files_below(directory).items():
        try:
            files[name] = (directory / name).read_bytes() if plain else None
        except OSError:
            files[name] = None
    files.pop(form.MANIFEST_FILE, None)
    try:
        source_raw = form.json_object(files.get(SOURCE_FILE) or b"")
        source = form.parse_manifest(source_raw)
    except (RecursionError, *form.MALFORMED):
        pass
    return OpenedDerived(content, raw, files, manifest, problem, source_raw, source)


def _tables(opened: OpenedDerived) -> Iterator[TableSection]:
    """Every table, in the order of their names; what cannot be read is none."""
    for name, content in sorted(opened.files.items()):
        if name.endswith(".parquet") and content is not None:
            try:
                yield described(name, content)
            except (pa.ArrowException, OSError, UnicodeDecodeError, *form.MALFORMED):
                continue


DERIVATION = "derivation"
ATTESTED = ("not_computed", "of_the_release", "by_what", "settings_public")
"""Parts of the words that say what nobody can check without more than the folder."""
Remake = Callable[[StudySettings], Basis]


def verify_derived(
    path: Path, *, release: Path | None = None, remake: Remake | None = None
) -> verify.VerifyReport:
    """Check a derived release; needs nothing private.

    Parameters
    ----------
    release : directory of the release that it came from, which is verified too; where its twin is published
        every byte is computed again.
    remake : the study that the private state gives, of the settings of the manifest; all is computed again.

    Raises
    ------
    ReleaseError : there is no derived release, or no release; or it was derived from released files, and the
        private state is to compute it.
    """
    try:
        opened = open_files(path)
        report = check_derived(opened)
    except (ValueError, RecursionError):
        return verify.no_manifest(verify.manifest_content(path))
    manifest, settled = opened.manifest, set[str]()
    from_files = manifest is not None and manifest.source.derived_from == FROM_FILES
    if remake is not None and from_files:
        raise form.ReleaseError(
            f"{path} was derived from released files, so its {DERIVATION} needs nothing private; give the "
            "directory of the release with --release instead"
        )
    more, attested = list[form.Check](), list[str]()
    if release is not None:
        found = verify.verify_release(release)
        found = verify.with_signatures(found, release, found.demanded)
        more.append(_check_release(found, manifest))
        attested += found.attested
        settled.add("of_the_release")
        if from_files:
            remake = partial(basis_of_release, release)
    if remake is not None and manifest is not None:
        more.append(_check_derivation(opened, manifest, remake))
        settled |= {"not_computed"} if more[-1].ok else set()
    own = [] if manifest is None else [words_of(manifest).text(p) for p in ATTESTED if p not in settled]
    return replace(report, checks=(*report.checks, *more), attested=(*own, *attested))


def _check_release(found: verify.VerifyReport, manifest: DerivedManifest[Any] | None) -> form.Check:
    """The release itself: the one that is named, and intact."""
    problems = [
        f"{failed.name}: {failed.sentence}" for failed in found.failures if failed.name != verify.SEED
    ]
    if manifest is None or found.manifest_sha256 != manifest.source.manifest_sha256:
        problems.insert(0, "It is another release than the one this was derived from.")
    return form.check(
        "release", problems, f"The release that it came from is intact: {len(found.checks)} checks."
    )


def _check_derivation(opened: OpenedDerived, manifest: DerivedManifest[Any], remake: Remake) -> form.Check:
    """Whether every byte, computed again from a study, is the one that is there."""
    good = "Every table, figure and page, computed again from the same study and settings, is the same."
    try:
        return form.check(DERIVATION, _bytes_that_differ(opened, manifest, remake), good)
    except DpPowerflowError as error:
        return form.Check(DERIVATION, False, f"It cannot be computed again: {error}.")


def _bytes_that_differ(
    opened: OpenedDerived, manifest: DerivedManifest[Any], remake: Remake
) -> Iterator[str]:
    kind = kind_of(manifest.study.name, manifest.settings)
    basis = remake(StudySettings(latitude_deg=manifest.study.latitude_deg))
    if form.sha256_of(basis.content) != manifest.source.manifest_sha256:
        yield "It was derived from another release than this one."
        return
    files = files_of(basis, kind, software=manifest.software)
    found = opened.hashes | {form.MANIFEST_FILE: form.sha256_of(opened.content)}
    here, stated = software_versions(), manifest.software.items()
    others = [f"{name} {version}" for name, version in stated if here.get(name, version) != version]
    made_with = f"; it was made with {', '.join(others)}" if others else ""  # which may write other bytes
    for name in sorted(files.keys() | found.keys()):
        if name not in files:
            yield f"{name} is not among the files that are computed."
        elif name not in found:
            yield f"{name} is missing."
        elif form.sha256_of(files[name]) != found[name]:
            yield f"{name} is not what is computed again{made_with}."


def check_derived(opened: OpenedDerived) -> verify.VerifyReport:
    """All checks that need nothing but the folder."""
    stated, source, manifest = opened.raw.get("files"), opened.source, opened.manifest
    checks = [verify.check_form(opened.problem, opened.content, opened.raw)]
    if isinstance(stated, dict):
        required = {name for name in REQUIRED if name not in opened.hashes}
        checks.append(verify.check_files(stated | dict.fromkeys(required, ""), opened.hashes))
    else:
        checks.append(form.Check("files", False, "The manifest does not list the files."))
    looks = {"source": _check_source, "statement": _check_statement, "pages": _check_pages}
    checks += verify.checks_of(looks, opened)
    checks.append(verify.check_seed(insecure=source is None or source.release.insecure_seed))
    try:
        warnings = () if source is None else tuple(render.Words.of(source)["warnings"])
    except form.MALFORMED:
        warnings = ()  # and the pages cannot be made again
    name = None if manifest is None else f"{manifest.source.id}: {manifest.study.name}"
    demanded = 0 if source is None else source.publication.require_signatures  # of what is made from it too
    return verify.VerifyReport(name, form.sha256_of(opened.content), tuple(checks), (), warnings, demanded)


def _check_source(opened: OpenedDerived) -> Iterator[form.Check]:
    """The manifest of the release by itself: form, digest, and every cost that follows from its figures."""
    manifest, source = opened.readable()

    def problems() -> Iterator[str]:
        content = opened.files[SOURCE_FILE] or b""
        if form.sha256_of(content) != manifest.source.manifest_sha256:
            yield f"{SOURCE_FILE} is not the manifest that this was derived from."
        yield from form.form_problems(content, opened.source_raw, SOURCE_FILE)
        if source.release.id != manifest.source.id:
            yield f"{SOURCE_FILE} is of another release than the manifest says."
        yield from verify.query_problems(source, opened.source_raw["load_queries"])
        policy = source.guarantee.network
        if not policy.derivable:
            yield "Its network is not a twin, and nothing may be derived from it."
            return
        for where in form.differences(policy.model_dump(), policy.recomputed().model_dump()):
            yield f"The stated {where} of the network does not follow from its constants."
        stated, account = source.release, source.composition.network
        seed, simulated = stated.insecure_seed, stated.simulated_loads
        if stated.warnings != codes_of(policy, account, source.guarantee.loads.delta, seed, simulated):
            yield f"The warnings of {SOURCE_FILE} are not those that its figures call for."

    yield form.check("source", problems(), verify.found_good("derived_source", release=source.release))


def _check_statement(opened: OpenedDerived) -> Iterator[form.Check]:
    """Every entry that follows from the release, the settings and the tables, made again."""
    manifest, source = opened.readable()
    kind = kind_of(manifest.study.name, manifest.settings)
    content, tables = opened.files[SOURCE_FILE] or b"", tuple(_tables(opened))
    follows = determined(source, content, manifest.source.derived_from, kind, tables)
    readable = {table.file for table in tables}

    def problems() -> Iterator[str]:
        for where in form.differences(opened.raw, dict(opened.raw) | follows):
            yield f"The manifest's {where} is wrong."
        for name in sorted(opened.files):
            if name.endswith(".parquet") and name not in readable:
                yield f"{name} is not a table that can be read."
        for what in _of_another_study(manifest, source):
            yield f"The manifest's {what} is not that of the release."

    yield form.check(
        "statement", problems(), verify.found_good("derived_statement", kind=kind, tables=tables)
    )


def _of_another_study(manifest: DerivedManifest[Any], source: form.Manifest[Any]) -> Iterator[str]:
    """Entries on the study that contradict the release: its shape and sun are stated there."""
    study, data, declared = manifest.study, source.data, source.declared_public
    from_files = manifest.source.derived_from == FROM_FILES
    tables = data.network_tables
    if (study.steps_per_day, study.nodes) != (data.steps_per_day, data.nodes):
        yield "number of steps or nodes"
    if study.days != (data.days if not from_files else 0 if tables is None else tables.days):
        yield "number of days"
    own_sun = not from_files and declared.generation is not None
    settings = StudySettings() if own_sun else StudySettings(latitude_deg=study.latitude_deg)
    if settings.latitude_deg != study.latitude_deg or (study.irradiance == sky_in_words(settings)) is own_sun:
        yield "sun of new PV"


def _check_pages(opened: OpenedDerived) -> Iterator[form.Check]:
    made = {name: make(*opened.readable()) for name, make in _PAGES.items()}
    wrong = [name for name, content in made.items() if opened.files.get(name) != content]
    good = f"{' and '.join(made)} say what the manifest says."
    yield form.check("pages", (f"{name} does not say what the manifest says." for name in wrong), good)


_PAGES = {form.CERTIFICATE_FILE: certificate_html, form.CARD_FILE: card_bytes}
"""What follows from both manifests alone."""
