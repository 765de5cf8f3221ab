"""Checks a derived release: its own statement by a stranger, its bytes by who has the release or the state.

Files are compared with their hashes, the manifest with its own digest and, entry by entry, with the one that
tables, settings and the manifest of the release determine. Figures, tables and `derived.html` follow from the
study: who has a release that publishes its twin, or the private state, makes all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dp_powerflow.errors import DpPowerflowError
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
    json_object,
    parse_manifest,
    sha256_of,
)
from dp_powerflow.manifest.render import Words
from dp_powerflow.manifest.verify import (
    SEED,
    VerifyReport,
    files_below,
    manifest_content,
    no_manifest,
    query_problems,
    verify_release,
)
from dp_powerflow.pipeline.deriving.make import Watch, files_of, software_versions
from dp_powerflow.pipeline.deriving.manifest import (
    FORMAT,
    FROM_FILES,
    PAGE_FILE,
    REQUIRED,
    SOURCE_FILE,
    DerivedManifest,
    TableSection,
    assemble,
    described,
    parse,
    read_facts,
)
from dp_powerflow.pipeline.deriving.pages import card_bytes, certificate_html
from dp_powerflow.pipeline.deriving.source import Basis, StudySettings, basis_of_release, in_words
from dp_powerflow.studies.study import kind_of, settings_of

_SMALL = (CERTIFICATE_FILE, CARD_FILE, SOURCE_FILE)


@dataclass(frozen=True, eq=False)
class OpenedDerived:
    """A derived release that was read.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    manifest : the same as a model; None if an entry cannot be used, for which `problem` says why.
    hashes : SHA-256 of every other file; what is no plain file gets a name instead.
    small : content of the files that are made again.
    source_raw, source : the manifest of the release as JSON and as a model; None if it is none.
    tables : schemas of the tables; None of one that cannot be read.
    """

    directory: Path
    content: bytes
    raw: dict[str, Any]
    manifest: DerivedManifest[Any] | None
    problem: str
    hashes: dict[str, str]
    small: dict[str, bytes]
    source_raw: dict[str, Any] | None
    source: Manifest[Any] | None
    tables: dict[str, TableSection | None]


def open_files(directory: Path) -> OpenedDerived:
    """Read a derived release; ValueError or RecursionError if its manifest is no JSON."""
    content = manifest_content(directory)
    raw = json_object(content)
    manifest, problem = None, ""
    try:
        manifest = parse(raw)
    except MALFORMED as error:
        problem = str(error)
    hashes, small, tables = _read(directory)
    source_raw, source = _source(small.get(SOURCE_FILE))
    return OpenedDerived(
        directory, content, raw, manifest, problem, hashes, small, source_raw, source, tables
    )


def _read(directory: Path) -> tuple[dict[str, str], dict[str, bytes], dict[str, TableSection | None]]:
    """Each file is read once: hashed, and kept or parsed."""
    hashes: dict[str, str] = {}
    small: dict[str, bytes] = {}
    tables: dict[str, TableSection | None] = {}
    for name, plain in files_below(directory).items():
        if name == MANIFEST_FILE:
            continue
        if not plain:
            hashes[name] = "not a plain file"
            continue
        try:
            content = (directory / name).read_bytes()
        except OSError:
            hashes[name] = "unreadable"
            continue
        hashes[name] = sha256_of(content)
        if name in _SMALL:
            small[name] = content
        elif name.endswith(".parquet"):
            tables[name] = _table(name, content)
    return hashes, small, tables


def _table(name: str, content: bytes) -> TableSection | None:
    try:
        return described(name, content)
    except (pa.ArrowException, OSError, UnicodeDecodeError, *MALFORMED):
        return None


def _source(content: bytes | None) -> tuple[dict[str, Any] | None, Manifest[Any] | None]:
    if content is None:
        return None, None
    try:
        raw = json_object(content)
    except (ValueError, RecursionError):
        return None, None
    try:
        return raw, parse_manifest(raw)
    except MALFORMED:
        return raw, None


NOT_COMPUTED = (
    f"That tables, figures, sentences and {PAGE_FILE} follow from the release and the settings: whoever "
    "writes a manifest can change or leave out any of them; they were compared with their SHA-256 only."
)
OF_THE_RELEASE = (
    f"Whatever {SOURCE_FILE} says of its release, such as the hashes of its files and the charges of the "
    "ledger."
)
BY_WHAT = "Which versions of which software computed it."
DERIVATION = "derivation"

Remake = Callable[[StudySettings], Basis]


def verify_derived(path: Path, *, release: Path | None = None, workers: int | None = None) -> VerifyReport:
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
    return with_derivation(report, opened, lambda settings: basis_of_release(release, settings), workers)


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


def with_derivation(
    report: VerifyReport, opened: OpenedDerived, remake: Remake, workers: int | None
) -> VerifyReport:
    """Add whether every byte, computed again from a study, is the one that is there.

    Parameters
    ----------
    remake : the study, given the settings that the manifest states.
    """
    if opened.manifest is None:
        return report
    try:
        made = check(DERIVATION, _bytes_that_differ(opened, opened.manifest, remake, workers), _ALL_AGAIN)
    except DpPowerflowError as error:
        made = Check(DERIVATION, False, f"It cannot be computed again: {error}.")
    attested = (
        tuple(words for words in report.attested if words != NOT_COMPUTED) if made.ok else report.attested
    )
    return replace(report, checks=(*report.checks, made), attested=attested)


_ALL_AGAIN = "Every table, figure and page, computed again from the same study and settings, is the same."


def _bytes_that_differ(
    opened: OpenedDerived, manifest: DerivedManifest[Any], remake: Remake, workers: int | None
) -> Iterator[str]:
    kind = kind_of(manifest.derived.kind, manifest.settings)
    basis = remake(StudySettings(latitude_deg=manifest.study.latitude_deg))
    if sha256_of(basis.content) != manifest.source.manifest_sha256:
        yield "It was derived from another release than this one."
        return
    files = files_of(basis, kind, Watch(workers), software=manifest.software)
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
    checks = [_check_manifest(opened), _check_files(opened)]
    looks: dict[str, Callable[[OpenedDerived], Check]] = {
        "source": _check_source,
        "guarantee": _check_guarantee,
        "settings": _check_settings,
        "tables": _check_tables,
        "statement": _check_statement,
        "pages": _check_pages,
    }
    for name, look in looks.items():
        try:
            checks.append(look(opened))
        except MALFORMED:
            checks.append(Check(name, False, UNREADABLE))
    checks.append(_check_seed(opened))
    manifest = opened.manifest
    return VerifyReport(
        None if manifest is None else f"{manifest.source.id}: {manifest.derived.kind}",
        sha256_of(opened.content),
        tuple(checks),
        () if manifest is None else (NOT_COMPUTED, OF_THE_RELEASE, BY_WHAT, manifest.cost.settings),
        () if opened.source is None else tuple(Words.of(opened.source)["warnings"]),
    )


def _check_manifest(opened: OpenedDerived) -> Check:
    def problems() -> Iterator[str]:
        if opened.raw.get("format") != FORMAT:
            yield f"{MANIFEST_FILE} has another format than '{FORMAT}'; use the program that made it."
        elif opened.problem:
            yield f"{opened.problem[:1].upper()}{opened.problem[1:]}."
        if canonical_json(opened.raw) != opened.content:
            yield f"{MANIFEST_FILE} is not in its canonical form, so it was changed."
        if opened.raw.get(DIGEST) != digest_of(opened.raw):
            yield f"{MANIFEST_FILE} does not match its own SHA-256, so it was changed."

    return check("manifest", problems(), f"{MANIFEST_FILE} is in canonical form and matches its own SHA-256.")


def _check_files(opened: OpenedDerived) -> Check:
    stated = opened.raw.get("files")
    if not isinstance(stated, dict):
        return Check("files", False, "The manifest does not list the files.")

    def problems() -> Iterator[str]:
        for name in sorted({*stated, *opened.hashes, *REQUIRED}):
            if name not in opened.hashes:
                yield f"{name} is missing."
            elif name not in stated:
                yield f"{name} is not listed in the manifest."
            elif opened.hashes[name] != stated[name]:
                yield f"{name} was changed: its SHA-256 is not the one in the manifest."

    good = f"All {len(opened.hashes)} files are present, no others, with the stated SHA-256."
    return check("files", problems(), good)


def _manifests(opened: OpenedDerived) -> tuple[DerivedManifest[Any], Manifest[Any], dict[str, Any]]:
    if opened.manifest is None or opened.source is None or opened.source_raw is None:
        raise ReleaseError(UNREADABLE)
    return opened.manifest, opened.source, opened.source_raw


def _check_source(opened: OpenedDerived) -> Check:
    """The manifest of the release by itself: form, digest, and every cost that follows from its figures."""
    manifest, source, raw = _manifests(opened)

    def problems() -> Iterator[str]:
        content = opened.small[SOURCE_FILE]
        if sha256_of(content) != manifest.source.manifest_sha256:
            yield f"{SOURCE_FILE} is not the manifest that this was derived from."
        if canonical_json(raw) != content or raw.get(DIGEST) != digest_of(raw):
            yield f"{SOURCE_FILE} does not match its own SHA-256, so it was changed after the release."
        if source.release.id != manifest.source.id:
            yield f"{SOURCE_FILE} is of another release than the manifest says."
        yield from query_problems(source, raw["load_queries"])
        policy = source.guarantee.network
        if not policy.derivable:
            yield "Its network is not a twin, and nothing may be derived from it."
            return
        for where in differences(policy.model_dump(), policy.recomputed().model_dump()):
            yield f"The stated {where} of the network does not follow from its constants."

    good = (
        f"{SOURCE_FILE} is the manifest of release '{source.release.id}'; the costs that it states of "
        "customers and network follow from its constants."
    )
    return check("source", problems(), good)


def _check_guarantee(opened: OpenedDerived) -> Check:
    manifest, source, _ = _manifests(opened)
    wrong = differences(manifest.guarantee.model_dump(), source.guarantee.model_dump())
    good = "Both guarantees are those of the release, entry by entry; it spends nothing."
    return check(
        "guarantee", (f"The guarantee's {where} is not that of the release." for where in wrong), good
    )


def _check_settings(opened: OpenedDerived) -> Check:
    manifest = _manifests(opened)[0]
    all_of_them = settings_of(kind_of(manifest.derived.kind, manifest.settings))
    wrong = differences(dict(manifest.settings), all_of_them)
    good = f"All {len(all_of_them)} settings of '{manifest.derived.kind}' are stated, and can be used."
    return check("settings", (f"Setting {where} is not stated as it is used." for where in wrong), good)


def _check_tables(opened: OpenedDerived) -> Check:
    manifest = _manifests(opened)[0]
    stated = {table.file: table for table in manifest.tables}

    def problems() -> Iterator[str]:
        for name in sorted(stated.keys() | opened.tables.keys()):
            if name not in stated:
                yield f"{name} is a table that the manifest does not describe."
            elif opened.tables.get(name) is None:
                yield f"{name} is missing, or is not a table that can be read."
            elif opened.tables[name] != stated[name]:
                yield f"{name} has other columns, or another number of rows, than the manifest says."

    rows = sum(table.rows for table in manifest.tables)
    good = f"{len(stated)} tables with {rows:,} rows have the columns that the manifest describes."
    return check("tables", problems(), good)


def _check_statement(opened: OpenedDerived) -> Check:
    """The manifest against the one that the source, the tables and what it declares determine."""
    manifest, source, _ = _manifests(opened)
    tables = [table for _, table in sorted(opened.tables.items()) if table is not None]
    facts = read_facts(manifest, source, sha256_of(opened.small[SOURCE_FILE]), tables)
    stated = {key: value for key, value in opened.raw.items() if key not in (DIGEST, "files")}
    wrong = [
        f"The manifest's {where} is wrong." for where in differences(stated, assemble(facts).model_dump())
    ]
    wrong += [
        f"The manifest's {what} is not that of the release." for what in _of_another_study(manifest, source)
    ]
    good = "Every sentence and entry of the manifest follows from the release, the tables and the settings."
    return check("statement", wrong, good)


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


def _check_pages(opened: OpenedDerived) -> Check:
    manifest, source, _ = _manifests(opened)
    made = {CERTIFICATE_FILE: certificate_html(manifest, source), CARD_FILE: card_bytes(manifest, source)}
    wrong = [name for name, content in made.items() if opened.small.get(name) != content]
    good = f"{' and '.join(made)} say what the manifest says."
    return check("pages", (f"{name} does not say what the manifest says." for name in wrong), good)


def _check_seed(opened: OpenedDerived) -> Check:
    if opened.source is not None and not opened.source.release.insecure_seed:
        return Check(SEED, True, "The noise of the release is stated to come from a secret key.")
    return Check(
        SEED,
        False,
        "The noise of the release came from an insecure seed: this is a demonstration, not a release.",
    )
