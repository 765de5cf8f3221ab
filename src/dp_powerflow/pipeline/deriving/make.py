"""Make a derived release: study → findings → files, all in memory, then a folder; open it and check it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_powerflow import page
from dp_powerflow._names import __version__
from dp_powerflow.corpus.storage import Listed, put, refuse_taken, whole_folder
from dp_powerflow.corpus.tables import PARQUET
from dp_powerflow.errors import CorpusError, DpPowerflowError, PrivacyError, require
from dp_powerflow.manifest.build import codes_of
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    DIGEST,
    MALFORMED,
    MANIFEST_FILE,
    UNREADABLE,
    Check,
    Manifest,
    ReleaseError,
    canonical_json,
    check,
    differences,
    digest_of,
    form_problems,
    json_object,
    parse_manifest,
    sha256_of,
)
from dp_powerflow.manifest.render import Words
from dp_powerflow.manifest.verify import (
    SEED,
    VerifyReport,
    check_files,
    check_form,
    check_seed,
    checks_of,
    files_below,
    manifest_content,
    no_manifest,
    parsed_manifest,
    query_problems,
    verify_release,
)
from dp_powerflow.pipeline.deriving.manifest import (
    FROM_FILES,
    FROM_STATE,
    PAGE_FILE,
    REQUIRED,
    SETTINGS_PUBLIC,
    SOURCE_FILE,
    DerivedManifest,
    TableSection,
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
from dp_powerflow.pipeline.deriving.source import Basis, StudySettings, basis_of_release, in_words
from dp_powerflow.studies.study import Findings, Kind, Progress, kind_of

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


# --- the check --------------------------------------------------------------------------------------------
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
    source_raw: dict[str, Any] | None
    source: Manifest[Any] | None

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file but the manifest; words where there is none."""
        return {
            name: "unreadable" if content is None else sha256_of(content)
            for name, content in self.files.items()
        }

    def readable(self) -> tuple[DerivedManifest[Any], Manifest[Any], dict[str, Any]]:
        """Both manifests, and that of the release as JSON; ReleaseError if there are none."""
        if self.manifest is None or self.source is None or self.source_raw is None:
            raise ReleaseError(UNREADABLE)
        return self.manifest, self.source, self.source_raw


def open_files(directory: Path) -> OpenedDerived:
    """Read a derived release; ValueError or RecursionError if its manifest is no JSON."""
    content = manifest_content(directory)
    raw = json_object(content)
    manifest, problem, source_raw, source = None, "", None, None
    try:
        manifest = parse(raw)
    except MALFORMED as error:
        problem = str(error)
    files: dict[str, bytes | None] = {}
    for name, plain in files_below(directory).items():
        try:
            files[name] = (directory / name).read_bytes() if plain else None
        except OSError:
            files[name] = None
    files.pop(MANIFEST_FILE, None)
    try:
        source_raw = json_object(files.get(SOURCE_FILE) or b"")
        source = parse_manifest(source_raw)
    except (RecursionError, *MALFORMED):
        pass
    return OpenedDerived(content, raw, files, manifest, problem, source_raw, source)


def _tables(opened: OpenedDerived) -> Iterator[TableSection]:
    """Every table, in the order of their names; what cannot be read is none."""
    for name, content in sorted(opened.files.items()):
        if name.endswith(".parquet") and content is not None:
            try:
                yield described(name, content)
            except (pa.ArrowException, OSError, UnicodeDecodeError, *MALFORMED):
                continue


NOT_COMPUTED = (
    f"That tables, figures and {PAGE_FILE} follow from the release and the settings: the "
    "author of a manifest can change or leave out any of them; they were compared with their SHA-256 only."
)
OF_THE_RELEASE = (
    f"Whatever {SOURCE_FILE} says of its release, such as the hashes of its files and the charges of the "
    "ledger."
)
BY_WHAT = "Which versions of which software computed it."
DERIVATION = "derivation"

Remake = Callable[[StudySettings], Basis]


def verify_derived(path: Path, *, release: Path | None = None) -> VerifyReport:
    """Check a derived release; needs nothing private.

    Parameters
    ----------
    release : directory of the release that it came from, which is verified too; where its twin is published
        every byte is computed again.

    Raises
    ------
    ReleaseError : there is no derived release, or no release.
    """
    try:
        opened = open_files(path)
        report = check_derived(opened)
    except (ValueError, RecursionError):
        return no_manifest(manifest_content(path))
    if release is None:
        return report
    report = _with_release(report, opened, release)
    if opened.manifest is None or opened.manifest.source.derived_from != FROM_FILES:
        return report
    return with_derivation(report, opened, lambda settings: basis_of_release(release, settings))


def _with_release(report: VerifyReport, opened: OpenedDerived, release: Path) -> VerifyReport:
    """Add what is found of the release itself."""
    found = verify_release(release)
    stated = None if opened.manifest is None else opened.manifest.source.manifest_sha256

    def problems() -> Iterator[str]:
        if found.manifest_sha256 != stated:
            yield "It is another release than the one this was derived from."
        for failed in found.failures:
            if failed.name != SEED:
                yield f"{failed.name}: {failed.sentence}"

    good = f"The release that it came from is intact: {len(found.checks)} checks."
    attested = tuple(words for words in report.attested if words != OF_THE_RELEASE)
    return replace(
        report,
        checks=(*report.checks, check("release", problems(), good)),
        attested=(*attested, *found.attested),
    )


def with_derivation(report: VerifyReport, opened: OpenedDerived, remake: Remake) -> VerifyReport:
    """Add whether every byte, computed again from a study, is the one that is there.

    Parameters
    ----------
    remake : the study, given the settings that the manifest states.
    """
    if opened.manifest is None:
        return report
    try:
        made = check(DERIVATION, _bytes_that_differ(opened, opened.manifest, remake), _ALL_AGAIN)
    except DpPowerflowError as error:
        made = Check(DERIVATION, False, f"It cannot be computed again: {error}.")
    attested = (
        tuple(words for words in report.attested if words != NOT_COMPUTED) if made.ok else report.attested
    )
    return replace(report, checks=(*report.checks, made), attested=attested)


_ALL_AGAIN = "Every table, figure and page, computed again from the same study and settings, is the same."


def _bytes_that_differ(
    opened: OpenedDerived, manifest: DerivedManifest[Any], remake: Remake
) -> Iterator[str]:
    kind = kind_of(manifest.study.name, manifest.settings)
    basis = remake(StudySettings(latitude_deg=manifest.study.latitude_deg))
    if sha256_of(basis.content) != manifest.source.manifest_sha256:
        yield "It was derived from another release than this one."
        return
    files = files_of(basis, kind, software=manifest.software)
    found = opened.hashes | {MANIFEST_FILE: sha256_of(opened.content)}
    for name in sorted(files.keys() | found.keys()):
        if name not in files:
            yield f"{name} is not among the files that are computed."
        elif name not in found:
            yield f"{name} is missing."
        elif sha256_of(files[name]) != found[name]:
            yield f"{name} is not what is computed again{_other_versions(manifest)}."


def _other_versions(manifest: DerivedManifest[Any]) -> str:
    """That other software computed it, which may write other bytes."""
    here = software_versions()
    others = [
        f"{name} {version}"
        for name, version in manifest.software.items()
        if here.get(name, version) != version
    ]
    return f"; it was made with {', '.join(others)}" if others else ""


def check_derived(opened: OpenedDerived) -> VerifyReport:
    """All checks that need nothing but the folder."""
    stated, source, manifest = opened.raw.get("files"), opened.source, opened.manifest
    checks = [check_form(opened.problem, opened.content, opened.raw)]
    if isinstance(stated, dict):
        required = {name for name in REQUIRED if name not in opened.hashes}
        checks.append(check_files(stated | dict.fromkeys(required, ""), opened.hashes))
    else:
        checks.append(Check("files", False, "The manifest does not list the files."))
    looks = {"source": _check_source, "statement": _check_statement, "pages": _check_pages}
    checks += checks_of(looks, opened)
    checks.append(check_seed(insecure=source is None or source.release.insecure_seed))
    return VerifyReport(
        None if manifest is None else f"{manifest.source.id}: {manifest.study.name}",
        sha256_of(opened.content),
        tuple(checks),
        () if manifest is None else (NOT_COMPUTED, OF_THE_RELEASE, BY_WHAT, SETTINGS_PUBLIC),
        () if opened.source is None else _warnings(opened.source),
    )


def _warnings(source: Manifest[Any]) -> tuple[str, ...]:
    try:
        return tuple(Words.of(source)["warnings"])
    except MALFORMED:
        return ()  # and the pages cannot be made again


def _check_source(opened: OpenedDerived) -> Iterator[Check]:
    """The manifest of the release by itself: form, digest, and every cost that follows from its figures."""
    manifest, source, raw = opened.readable()

    def problems() -> Iterator[str]:
        content = opened.files[SOURCE_FILE] or b""
        if sha256_of(content) != manifest.source.manifest_sha256:
            yield f"{SOURCE_FILE} is not the manifest that this was derived from."
        yield from form_problems(content, raw, SOURCE_FILE)
        if source.release.id != manifest.source.id:
            yield f"{SOURCE_FILE} is of another release than the manifest says."
        yield from query_problems(source, raw["load_queries"])
        policy = source.guarantee.network
        if not policy.derivable:
            yield "Its network is not a twin, and nothing may be derived from it."
            return
        for where in differences(policy.model_dump(), policy.recomputed().model_dump()):
            yield f"The stated {where} of the network does not follow from its constants."
        stated, account = source.release, source.composition.network
        seed, simulated = stated.insecure_seed, stated.simulated_loads
        if stated.warnings != codes_of(policy, account, source.guarantee.loads.delta, seed, simulated):
            yield f"The warnings of {SOURCE_FILE} are not those that its figures call for."

    good = (
        f"{SOURCE_FILE} is the manifest of release '{source.release.id}'; the costs that it states of "
        "customers and network follow from its constants."
    )
    yield check("source", problems(), good)


def _check_statement(opened: OpenedDerived) -> Iterator[Check]:
    """Every entry that follows from the release, the settings and the tables, made again."""
    manifest, source, _ = opened.readable()
    kind = kind_of(manifest.study.name, manifest.settings)
    content, tables = opened.files[SOURCE_FILE] or b"", tuple(_tables(opened))
    follows = determined(source, content, manifest.source.derived_from, kind, tables)
    wrong = [
        f"The manifest's {where} is wrong." for where in differences(opened.raw, dict(opened.raw) | follows)
    ]
    described_ones = {table.file for table in tables}
    wrong += [
        f"{name} is not a table that can be read."
        for name in sorted(opened.files)
        if name.endswith(".parquet") and name not in described_ones
    ]
    wrong += [
        f"The manifest's {what} is not that of the release." for what in _of_another_study(manifest, source)
    ]
    rows = sum(table.rows for table in tables)
    good = (
        f"Both guarantees are those of the release, all settings of '{kind.name}' are stated, and "
        f"{len(tables)} tables with {rows:,} rows have the columns that the manifest describes."
    )
    yield check("statement", wrong, good)


def _of_another_study(manifest: DerivedManifest[Any], source: Manifest[Any]) -> Iterator[str]:
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
    if settings.latitude_deg != study.latitude_deg or (study.irradiance == in_words(settings)) is own_sun:
        yield "sun of new PV"


def _check_pages(opened: OpenedDerived) -> Iterator[Check]:
    manifest, source, _ = opened.readable()
    made = {CERTIFICATE_FILE: certificate_html(manifest, source), CARD_FILE: card_bytes(manifest, source)}
    wrong = [name for name, content in made.items() if opened.files.get(name) != content]
    good = f"{' and '.join(made)} say what the manifest says."
    yield check("pages", (f"{name} does not say what the manifest says." for name in wrong), good)
