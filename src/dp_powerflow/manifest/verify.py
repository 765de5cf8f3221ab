"""Checks a release without anything private: what it says is recomputed, what cannot be is named as attested.

Any byte and any figure that is changed by itself is found: files against their hashes, the manifest against
its own digest and, entry by entry, against the manifest that the files and the declared constants determine;
the pages against what the manifest determines. A forger who makes all of it anew makes another release. That
it is the data owner's is known from the digest of the manifest, given by another way, or from an auditor
(`verify_private`).

Each file is read and hashed once. A file may have been changed: whatever is in it, no exception escapes
but those that are named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from dp_powerflow._names import __version__
from dp_powerflow.corpus.gridfm.schema import CLOSE_PU
from dp_powerflow.corpus.schema import BESIDE, DATA
from dp_powerflow.corpus.storage import Location, RemotePath, file_hash, loading
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import CorpusReport, validate_corpus
from dp_powerflow.manifest import model as form
from dp_powerflow.manifest import render
from dp_powerflow.manifest.build import Facts, assemble, contradictions, read_facts
from dp_powerflow.manifest.model import check
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.budget import QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Region, sensitivity_squared

Verdict = Literal["release", "demonstration", "not intact"]
STUDY: Literal["study"] = "study"
"""Kind of the manifest of a derived release."""
SEED = "random source"
"""Name of the check that a demonstration fails."""
PAGES = (form.CERTIFICATE_FILE, form.CROISSANT_FILE, form.REGISTRY_FILE, form.CARD_FILE)
"""What is made again from the manifest alone."""


@dataclass(frozen=True)
class VerifyReport:
    """All checks of a release.

    Attributes
    ----------
    release_id : name of the release, None if that cannot be read.
    manifest_sha256 : SHA-256 of the file `manifest.json`, to compare with what the data owner says elsewhere.
    checks : in the order they were made.
    attested : statements that nobody can check without the network or the ledger.
    warnings : why an intact release may promise less than a reader expects; worst first.
    demanded : how many signatures the manifest demands.
    """

    release_id: str | None
    manifest_sha256: str | None
    checks: tuple[form.Check, ...]
    attested: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    demanded: int = 0

    @property
    def failures(self) -> tuple[form.Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    @property
    def intact(self) -> bool:
        """Whether everything agrees, in a release or a demonstration."""
        return all(check.ok for check in self.checks if check.name != SEED)

    @property
    def verdict(self) -> Verdict:
        """A release, or a demonstration made with a seed, or something that was changed or damaged."""
        if not self.intact:
            return "not intact"
        return "demonstration" if self.failures else "release"

    @property
    def ok(self) -> bool:
        """Whether this may be called a release."""
        return self.verdict == "release"

    def __repr__(self) -> str:
        made = "1 check" if len(self.checks) == 1 else f"{len(self.checks):,} checks"
        failed = [check.name for check in self.failures if check.name != SEED]
        more = f" and {len(failed) - 3:,} more" if len(failed) > 3 else ""
        names = f", failed: {', '.join(failed[:3])}{more}" if failed else ""
        return f"{type(self).__name__}({self.release_id!r}: {self.verdict}, {made}{names})"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"verdict": self.verdict, "intact": self.intact, **asdict(self)}


def verify_release(path: str | os.PathLike[str] | RemotePath) -> VerifyReport:
    """Check a release in a directory, or at a URL (`corpus.storage.one_reading`); needs nothing private.

    Raises
    ------
    ReleaseError : there is no directory, or no `manifest.json` in it.
    """
    place = path if isinstance(path, RemotePath) else Path(path)
    content = manifest_content(place)
    try:
        return check_release(open_release(place, content, partial(render.look_at, content)))
    except (ValueError, RecursionError):
        return no_manifest(content)


def no_manifest(content: bytes) -> VerifyReport:
    """The report of a release whose `manifest.json` cannot be read."""
    broken = form.Check("manifest", False, f"{form.MANIFEST_FILE} is not JSON.")
    return VerifyReport(None, form.sha256_of(content), (broken,), ())


# ------------------------------------------------------------------------ a release, read from disk


@dataclass(frozen=True, eq=False)
class Opened:
    """A release that was read from disk.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    manifest : the same as a model; None if an entry is missing, unknown, of another type or out of range.
    problem : why there is no manifest.
    hashes : SHA-256 of every file; what is no plain file gets a name instead.
    small : content of the files that are made again.
    facts : what the release says without sentences; None if manifest or files do not tell.
    """

    directory: Location
    content: bytes
    raw: dict[str, Any]
    manifest: form.Manifest[Any] | None
    problem: str
    corpus: CorpusReport
    hashes: dict[str, str]
    small: dict[str, bytes]
    model: LoadModel | None
    facts: Facts | None

    def readable(self) -> tuple[form.Manifest[Any], Facts]:
        """Manifest and facts; ReleaseError if there are none."""
        if self.manifest is None or self.facts is None:
            raise form.ReleaseError(form.UNREADABLE)
        return self.manifest, self.facts


def manifest_content(directory: Location) -> bytes:
    """Bytes of `manifest.json`; ReleaseError if there is none."""
    if isinstance(directory, RemotePath):
        with loading(directory / form.MANIFEST_FILE):
            return (directory / form.MANIFEST_FILE).read_bytes()
    if not directory.is_dir():
        raise form.ReleaseError(
            f"{directory} is not a directory; give the directory of a release", code="release-not-found"
        )
    try:
        return (directory / form.MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise form.ReleaseError(
            f"{directory} has no {form.MANIFEST_FILE}; give the directory of a finished release",
            code="release-not-found",
        ) from error
    except OSError as error:
        raise form.ReleaseError(
            f"{directory / form.MANIFEST_FILE} cannot be read: {error.strerror}"
        ) from error


def release_at(place: Location) -> tuple[str, str] | None:
    """Id of the release at a place and what it commits to, unchecked; None if there is none."""
    try:
        content = (place / form.MANIFEST_FILE).read_bytes()
    except OSError as error:
        if isinstance(place, Path) or isinstance(error, FileNotFoundError):
            return None
        with loading(place):
            raise
    try:
        raw = form.json_object(content)
        return str(raw["release"]["id"]), str(raw["internal_report"]["sha256"])
    except (RecursionError, *form.MALFORMED):
        return None


def kind_at(place: Location) -> str | None:
    """What the manifest at a place is of, unchecked: "release", "study"; None if none can be read."""
    try:
        return str(form.json_object((place / form.MANIFEST_FILE).read_bytes()).get("kind"))
    except (OSError, ValueError, RecursionError):
        return None


def read_manifest(directory: Location) -> tuple[form.Manifest[Any], str]:
    """The manifest of a release, compared with nothing, and the SHA-256 of its file; ReleaseError if none."""
    return parsed_manifest(directory, manifest_content(directory))


def parsed_manifest(directory: Location, content: bytes) -> tuple[form.Manifest[Any], str]:
    """The same of bytes that were read there."""
    try:
        return form.parse_manifest(form.json_object(content)), form.sha256_of(content)
    except (ValueError, RecursionError):
        raise form.ReleaseError(
            f"{directory / form.MANIFEST_FILE} is not JSON; this is not a release", code="release-not-found"
        ) from None


Meanwhile = Callable[[Location, CorpusReport, Mapping[str, str]], None]
"""Told directory, corpus and hashes of a release once its files were read; see `Opened`."""


def open_release(directory: Location, content: bytes, meanwhile: Meanwhile | None = None) -> Opened:
    """Read a release, given its `manifest.json`; ValueError or RecursionError if that is no JSON.

    Parameters
    ----------
    meanwhile : called as soon as all files were read; the load model may still be being derived.
    """
    listed = form.json_object(content).get("files")
    model = begin(directory)
    stated = (*(listed if isinstance(listed, dict) else ()), form.MANIFEST_FILE)
    others = {name for name in stated if name.split("/")[0] not in (DATA, *BESIDE)}
    corpus = validate_corpus(directory, other_files=others | signature_files(directory))
    known = dict(corpus.hashes) | {form.MANIFEST_FILE: form.sha256_of(content)}
    hashes, small = _read_files(directory, known, {} if model is None else {form.MODEL_FILE: model})
    if meanwhile is not None:
        meanwhile(directory, corpus, hashes)
    return understand(directory, content, corpus, hashes, small)


def understand(
    directory: Location, content: bytes, corpus: CorpusReport, hashes: dict[str, str], small: dict[str, bytes]
) -> Opened:
    """What was read from disk, parsed; parameters as in `Opened`. ValueError or RecursionError if no JSON."""
    raw = form.json_object(content)
    model = model_of(small.get(form.MODEL_FILE, b""))
    manifest, problem, facts = None, "", None
    try:
        manifest = form.parse_manifest(raw)
        if model is not None and corpus.layout is not None:
            facts = read_facts(manifest, model, corpus)
            assemble(facts)  # raises if its constants promise nothing that can be stated
    except form.MALFORMED as error:
        problem, facts = str(error) if manifest is None else "", None
    return Opened(directory, content, raw, manifest, problem, corpus, hashes, small, model, facts)


def _read_files(
    directory: Location, known: dict[str, str], read: dict[str, bytes]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """SHA-256 of everything below the directory, and the content of what is made again.

    Parameters
    ----------
    known, read : hashes, and contents, of files that were read already.
    """
    hashes: dict[str, str] = {}
    small: dict[str, bytes] = {}
    for name, plain in files_below(directory).items():
        if not plain:
            hashes[name] = "not a plain file"
        elif name in known:
            hashes[name] = known[name]
        else:
            try:
                if name in (form.MODEL_FILE, form.QUALITY_FILE, *PAGES):
                    small[name] = read[name] if name in read else (directory / name).read_bytes()
                    hashes[name] = form.sha256_of(small[name])
                else:
                    hashes[name] = file_hash(directory / name)
            except OSError:
                hashes[name] = "unreadable"
    return hashes, small


def files_below(directory: Location) -> dict[str, bool]:
    """Relative names, sorted, of all but folders and signatures, and whether each is a plain file."""
    own = signature_files(directory)  # of the manifest, which cannot list them; see `with_signatures`
    if isinstance(directory, RemotePath):
        return {name: True for name in directory.below() if name not in own}
    below = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
    found = {name: path for name, path in below.items() if name not in own}
    plain = {name: path.is_file() and not path.is_symlink() for name, path in found.items()}
    return {name: plain[name] for name, path in found.items() if path.is_symlink() or not path.is_dir()}


# ------------------------------------------------------------------- the load model, derived again
#
# That takes longer than any other step of a check, so it runs in another thread.


def begin(directory: Location) -> bytes | None:
    """Begin to derive the model of a release; gives the bytes of its file, None if there is no plain file."""
    path = directory / form.MODEL_FILE
    try:
        plain = not isinstance(path, Path) or (path.is_file() and not path.is_symlink())
        content = path.read_bytes() if plain else None
    except OSError:
        return None
    if content is not None:
        _begun(content)
    return content


def model_of(content: bytes) -> LoadModel | None:
    """The load model, None if the content of `model.json` is none whose cost can be stated."""
    return _begun(content).result()


@lru_cache(maxsize=16)  # feeders of a fleet are checked at the same time
def _begun(content: bytes) -> Future[LoadModel | None]:
    """What is derived is kept, so that it is there when all is put together; a fleet may share one model."""
    thread = ThreadPoolExecutor(1)
    found = thread.submit(_derived, content)
    thread.shutdown(wait=False)
    return found


def _derived(content: bytes) -> LoadModel | None:
    try:
        with np.errstate(all="ignore"):  # made-up figures may overflow
            model = LoadModel.from_json(content.decode("utf-8"))
        return model if model.n_steps and math.isfinite(model.spent_epsilon) else None
    except (RecursionError, *form.MALFORMED):
        return None


# ------------------------------------------------------------------------------------------ the checks


def check_release(opened: Opened) -> VerifyReport:
    """All checks that need nothing private."""
    checks = [check_form(opened.problem, opened.content, opened.raw)]
    checks += [_check_files(opened), _check_corpus(opened)]
    looks: dict[str, Callable[[Opened], Iterable[form.Check]]] = {
        "load privacy": check_queries,
        "network privacy": _check_network,
        "twin tables": _check_tables,
        "statement": _check_statement,
        "pages": check_pages,
    }
    checks += checks_of(looks, opened)
    checks.append(check_seed(insecure=opened.manifest is None or opened.manifest.release.insecure_seed))
    # What this version says of the figures that follow from files and constants.
    found = None if opened.facts is None else render.Words.of(assemble(opened.facts))
    return VerifyReport(
        None if opened.facts is None else opened.facts.release_id,
        form.sha256_of(opened.content),
        tuple(checks),
        () if found is None else tuple(found["attested"]),
        () if found is None else (*_not_compared(opened), *found["warnings"]),
        0 if opened.manifest is None else opened.manifest.publication.require_signatures,
    )


def with_signatures(
    report: VerifyReport, place: Location, required: int, signers: Sequence[str] = ()
) -> VerifyReport:
    """A report with what is found of the signatures, if there are any or some are demanded.

    Parameters
    ----------
    required, signers : as of `check_signatures`.
    """
    if not (signature_files(place) or required or signers):
        return report
    from dp_powerflow.manifest.signatures import check_signatures  # few releases are signed

    found = check_signatures(place, report.manifest_sha256, required, signers)
    return replace(report, checks=(*report.checks, *found))


def signature_files(place: Location) -> set[str]:
    """Names of what lies beside a manifest as its signatures."""
    folder = place / form.SIGNATURES
    if isinstance(folder, RemotePath):
        names = set(folder.below())
    else:
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {f"{form.SIGNATURES}/{name}" for name in names}


def _not_compared(opened: Opened) -> Iterator[str]:
    """Pages of another version are not compared, so nobody may trust them."""
    manifest = opened.manifest
    if manifest is not None and manifest.release.software != f"dp-powerflow {__version__}":
        yield (
            f"THE PAGES WERE NOT COMPARED with the manifest: {manifest.release.software} is said to have "
            f"made them, and this is dp-powerflow {__version__}. Trust what this check says, not the pages."
        )


def found_good(part: str, **figures: Any) -> str:
    """What is said of a check that finds nothing wrong."""
    return render.Words("checks.txt", figures).text(part)


Read = TypeVar("Read")
"""A release of some kind that was read."""


def checks_of(
    looks: Mapping[str, Callable[[Read], Iterable[form.Check]]], opened: Read
) -> Iterator[form.Check]:
    """Checks by name; one whose entries cannot be read fails."""
    for name, look in looks.items():
        try:
            yield from [*look(opened)]
        except form.MALFORMED:
            yield form.Check(name, False, form.UNREADABLE)


def check_form(problem: str, content: bytes, raw: dict[str, Any]) -> form.Check:
    """The form of a manifest of any kind, and why it cannot be parsed, if it cannot."""
    problems = [f"{problem[:1].upper()}{problem[1:]}."] if problem else []
    problems += form.form_problems(content, raw)
    return check(
        "manifest", problems, f"{form.MANIFEST_FILE} is in canonical form and matches its own SHA-256."
    )


def _check_files(opened: Opened) -> form.Check:
    stated = opened.raw.get("files")
    if not isinstance(stated, dict):
        return form.Check("files", False, "The manifest does not list the files of the release.")
    found = {name: digest for name, digest in opened.hashes.items() if name != form.MANIFEST_FILE}
    described = None
    if opened.manifest is not None:
        data = opened.manifest.data
        described = {DATA} if data.network_tables is None else {DATA, form.TWIN}
        described |= set() if data.extras is None else set(opened.corpus.extras.folders)

    return check_files(stated, found, described)


def check_files(
    stated: Mapping[str, str], found: Mapping[str, str], folders: set[str] | None = None
) -> form.Check:
    """Files of a release of any kind against the list of its manifest.

    Parameters
    ----------
    stated, found : SHA-256 by relative path.
    folders : those that the manifest describes; None for any.
    """

    def problems() -> Iterator[str]:
        for name in sorted(stated.keys() | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in stated:
                yield f"{name} is not listed in the manifest."
            elif found[name] != stated[name]:
                yield f"{name} was changed: its SHA-256 is not the one in the manifest."
            elif folders is not None and "/" in name and name.split("/")[0] not in folders:
                yield f"{name} is in a directory that the manifest does not describe."

    good = f"All {len(found)} files are present, no others, with the stated SHA-256."
    return check("files", problems(), good)


def _check_corpus(opened: Opened) -> form.Check:
    report, manifest = opened.corpus, opened.manifest

    def problems() -> Iterator[str]:
        yield from report.problems
        stated = None if manifest is None else manifest.release.id
        if None not in (report.release_id, stated) and report.release_id != stated:
            yield "The voltages belong to another release than the manifest."
        declared = manifest is not None and manifest.data.connections is not None
        if report.nodes is not None and report.nodes.connected and not declared:
            yield "The node table says more about the nodes than the manifest declares public."
        if report.nodes is not None and report.nodes.ids != NodeTable.opaque(len(report.nodes.ids)).ids:
            yield "The names of the nodes say more than their position."

    return check("voltages", problems(), found_good("voltages", report=report))


def costs_of(manifest: form.Manifest[Any]) -> tuple[QueryCost, ...]:
    """The stated costs of the load queries."""
    return tuple(QueryCost.from_dict(query.model_dump()) for query in manifest.load_queries)


def query_problems(manifest: form.Manifest[Any], stated: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the costs of the loads, from regions, dimensions and noise scales alone.

    Parameters
    ----------
    stated : the queries of the file.
    """
    loads, costs = manifest.guarantee.loads, costs_of(manifest)
    for number, (query, cost) in enumerate(zip(stated, costs, strict=True), start=1):
        if cost.sensitivity_squared != sensitivity_squared(Region(cost.region), cost.dimension):
            yield f"The sensitivity of query {number} does not follow from its region and dimension."
        if any(form.differences(query, cost.to_dict())):
            yield f"The stated cost of query {number} does not follow from sensitivity and noise scale."
    rho = total_rho(costs)
    found = (("rho", loads.rho, rho), ("epsilon", loads.epsilon, rho_to_epsilon(rho, loads.delta)))
    for name, value, expected in found:
        if not math.isclose(value, expected, rel_tol=form.RELATIVE):
            yield f"The stated {name} of the loads is not what the queries cost."


def check_queries(opened: Opened) -> Iterator[form.Check]:
    """Every sensitivity, ρ and ε of the loads, from regions, dimensions and noise scales."""
    if opened.manifest is None:
        raise form.ReleaseError(form.UNREADABLE)
    manifest, loads = opened.manifest, opened.manifest.guarantee.loads
    costs = costs_of(manifest)
    rho = total_rho(costs)

    def problems() -> Iterator[str]:
        yield from query_problems(manifest, opened.raw["load_queries"])
        if opened.model is None:
            yield f"{form.MODEL_FILE} is not a load model, or does not follow from the answers in it."
        elif opened.model.costs != costs:
            yield f"{form.MODEL_FILE} carries other costs than the manifest."
        elif opened.model.origin is None:
            yield f"{form.MODEL_FILE} holds no noisy answers, so its costs cannot be recomputed."

    epsilon = rho_to_epsilon(rho, loads.delta)
    good = found_good("load_privacy", count=len(costs), rho=rho, epsilon=epsilon, delta=loads.delta)
    yield check("load privacy", problems(), good)


def _check_network(opened: Opened) -> Iterator[form.Check]:
    """Every figure of the network that follows from constants."""
    manifest, facts = opened.readable()
    stated, expected = manifest.guarantee.network.model_dump(), facts.policy.model_dump()
    wrong = form.differences(stated, expected)
    good = render.Words.of(manifest).text("network_checked")
    if good:
        problems = (
            f"The stated {where} of the network does not follow from its constants." for where in wrong
        )
        yield check("network privacy", problems, good)


def _check_tables(opened: Opened) -> Iterator[form.Check]:
    """Tables of a network are there, and in order, if and only if they are published."""
    tables, name = opened.readable()[1].tables, "twin tables"
    if tables is not None:
        from dp_powerflow.corpus.gridfm.tables import check_tables  # few releases have tables

        close = CLOSE_PU if tables.days > 0 else None
        problems = check_tables(opened.directory, form.TWIN, tables.scenarios, close_pu=close)
        yield check(name, problems, found_good("twin_tables", tables=tables))
    elif any(file.startswith(f"{form.TWIN}/") for file in opened.hashes):
        yield form.Check(name, False, f"There are files in {form.TWIN}/ though no twin is published.")


def _check_statement(opened: Opened) -> Iterator[form.Check]:
    """The manifest against the one that files and declared constants determine, entry by entry."""
    facts = opened.readable()[1]
    expected = assemble(facts).model_dump()
    stated = {key: value for key, value in opened.raw.items() if key not in (form.DIGEST, "files")}
    problems = [f"The manifest's {where} is wrong." for where in form.differences(stated, expected)]
    yield check("statement", problems + contradictions(facts), found_good("statement"))


def check_pages(opened: Opened) -> Iterator[form.Check]:
    """Certificate, registry record, card and metadata, made again from the manifest; quality from files.

    Another version may say the same in other words: then nothing is compared, and this version speaks.
    """
    manifest = opened.readable()[0]
    if manifest.release.software != f"dp-powerflow {__version__}":
        words = render.Words.of(manifest)
        own = " ".join((*words["customers_guarantee"], *words["network_guarantee"]))
        said = f"Not compared: {manifest.release.software} made the pages, in its own words"
        yield form.Check("pages", True, f"{said}. dp-powerflow {__version__} says: {own}")
        return
    made = {
        form.CERTIFICATE_FILE: render.certificate_html(manifest),
        form.CROISSANT_FILE: render.croissant_bytes(manifest, manifest.files),
        form.REGISTRY_FILE: render.registry_bytes(manifest),
        form.CARD_FILE: render.card_bytes(manifest),
    }
    wrong = [name for name in PAGES if opened.small.get(name) != made[name]]
    problems = [f"{name} does not say what the manifest says." for name in wrong]
    shown = opened.small.get(form.QUALITY_FILE)
    # What is wrong with the voltages is found by another check; then they are not measured again.
    page = opened.directory, opened.corpus, opened.hashes, manifest
    if opened.corpus.ok and (shown is None or shown != render.quality_page(*page)):
        problems.append(f"{form.QUALITY_FILE} does not show what is in the files of the release.")
    good = f"{', '.join(PAGES)} say what the manifest says, {form.QUALITY_FILE} shows what is in the files."
    yield check("pages", problems, good)


def check_seed(*, insecure: bool) -> form.Check:
    """Whether it is a demonstration."""
    if not insecure:
        return form.Check(
            SEED, True, "The noise is stated to come from a secret key of the operating system."
        )
    sentence = "The noise came from an insecure seed: this is a demonstration, not a release."
    return form.Check(SEED, False, sentence)
