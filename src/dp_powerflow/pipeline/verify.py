"""Checks a release without anything private: what it says is recomputed, what cannot be is named as attested.

Any byte and any figure that is changed by itself is found: files against their hashes, the manifest against
its own digest and, entry by entry, against the manifest that the files and the declared constants determine;
the certificate and the two metadata files against what the manifest determines. A forger who makes all of it
anew makes another release. That it is the data owner's is known from the digest of the manifest, given by
another way, or from an auditor (`verify_private`).

Each file is read and hashed once; the page of the quality is made from sound files, which are read again.
Somebody may have changed a file: whatever is in it, no exception escapes.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_powerflow.corpus.connections import FILES as CONNECTION_FILES
from dp_powerflow.corpus.connections import NODE_COLUMNS
from dp_powerflow.corpus.days import DAYS_FILE
from dp_powerflow.corpus.extras import FOLDERS
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.schema import DATA, VM_MAX_PU, NodeTable
from dp_powerflow.corpus.validate import CorpusReport, validate_corpus
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.beside import described_days
from dp_powerflow.pipeline.manifest.card import card_bytes
from dp_powerflow.pipeline.manifest.croissant import croissant_bytes
from dp_powerflow.pipeline.manifest.documents import certificate_html, registry_bytes
from dp_powerflow.pipeline.manifest.facts import Facts, assemble, contradictions, read_facts
from dp_powerflow.pipeline.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    DIGEST,
    FORMAT,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    RELATIVE,
    UNDECLARED,
    Manifest,
    ReleaseError,
    Statement,
    canonical_json,
    differences,
    digest_of,
    json_object,
)
from dp_powerflow.pipeline.manifest.policy import (
    Check,
    at_most,
    check,
    in_digits,
    parse_manifest,
)
from dp_powerflow.pipeline.manifest.versions import MAKER_OF, VERSION_2, WITH_DAYS, in_this_version
from dp_powerflow.pipeline.quality import promise_of
from dp_powerflow.privacy.budget import QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Region, sensitivity_squared
from dp_powerflow.quality import Promise, Quality, measure

Verdict = Literal["release", "demonstration", "not intact"]

SEED = "random source"
"""Name of the check that a demonstration fails."""
MALFORMED = (DpPowerflowError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading an entry of a file that somebody changed may raise."""
UNREADABLE = "The entries of the manifest cannot be read together with the files."
ONLY_FIGURES = (
    "This is a manifest of an earlier version. Files, voltages and every figure that follows from others "
    "were checked; its sentences and declared constants, certificate.html, croissant.json and "
    "registry.yaml only against their SHA-256. The version of dp-powerflow that made it makes these again "
    "and compares."
)
UNCHECKED = (
    "The manifest is of an earlier version: its sentences and certificate.html were NOT checked and may say "
    "anything."
)
NO_ANSWERS = (
    f"{MODEL_FILE} is of version 1 and holds no noisy answers: that its parameters follow from the queries "
    "is what the data owner says."
)
PUBLISHED = "Publisher, license, citation, date and URL, where stated, are what the data owner says."
_PAGES = (CERTIFICATE_FILE, CROISSANT_FILE, REGISTRY_FILE, CARD_FILE)


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
    """

    release_id: str | None
    manifest_sha256: str | None
    checks: tuple[Check, ...]
    attested: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    @property
    def intact(self) -> bool:
        """Whether everything agrees, be it a release or a demonstration."""
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

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"verdict": self.verdict, "intact": self.intact, **asdict(self)}


@dataclass(frozen=True, eq=False)
class Opened:
    """A release that was read from disk.

    Attributes
    ----------
    content, raw : the file `manifest.json`, and the object in it.
    stated : the same in the form of the current version.
    manifest : the same as a model; None if an entry is missing, unknown, of another type or out of range.
    problem : why there is no manifest.
    hashes : SHA-256 of every file; what is no plain file gets a name instead.
    small : content of the files that are made again.
    facts : what the release says without sentences; None if manifest or files do not tell.
    """

    directory: Path
    content: bytes
    raw: dict[str, Any]
    stated: dict[str, Any]
    manifest: Manifest[Any] | None
    problem: str
    corpus: CorpusReport
    hashes: dict[str, str]
    small: dict[str, bytes]
    model: LoadModel | None
    facts: Facts | None

    def readable(self) -> tuple[Manifest[Any], Facts]:
        """Manifest and facts; ReleaseError if there are none."""
        if self.manifest is None or self.facts is None:
            raise ReleaseError(UNREADABLE)
        return self.manifest, self.facts


def verify_release(path: str | os.PathLike[str]) -> VerifyReport:
    """Check a release; needs nothing private.

    Raises
    ------
    ReleaseError : there is no directory, or no `manifest.json` in it.
    """
    content = manifest_content(Path(path))
    try:
        return check_release(open_release(Path(path), content))
    except (ValueError, RecursionError):
        broken = Check("manifest", False, f"{MANIFEST_FILE} is not JSON.")
        return VerifyReport(None, hashlib.sha256(content).hexdigest(), (broken,), ())


def manifest_content(directory: Path) -> bytes:
    """Bytes of `manifest.json`; ReleaseError if there is none."""
    if not directory.is_dir():
        raise ReleaseError(f"{directory} is not a directory; give the directory of a release")
    try:
        return (directory / MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{directory} has no {MANIFEST_FILE}; give the directory of a finished release"
        ) from error
    except OSError as error:
        raise ReleaseError(f"{directory / MANIFEST_FILE} cannot be read: {error.strerror}") from error


def open_release(directory: Path, content: bytes) -> Opened:
    """Read a release, given its `manifest.json`; ValueError or RecursionError if that is no JSON."""
    listed = json_object(content).get("files")
    corpus = validate_corpus(
        directory,
        other_files={
            name
            for name in (*(listed if isinstance(listed, dict) else ()), MANIFEST_FILE)
            if name.split("/")[0] not in (DATA, *FOLDERS)
        },
        vm_range_pu=(0.0, VM_MAX_PU),
    )
    hashes, small = _read_files(directory, dict(corpus.hashes) | {MANIFEST_FILE: _sha256(content)})
    return understand(directory, content, corpus, hashes, small)


def understand(
    directory: Path, content: bytes, corpus: CorpusReport, hashes: dict[str, str], small: dict[str, bytes]
) -> Opened:
    """What was read from disk, parsed; parameters as in `Opened`. ValueError or RecursionError if no JSON."""
    raw = json_object(content)
    stated = in_this_version(raw)
    model = _read_model(small.get(MODEL_FILE, b""))
    manifest, problem, facts = None, "", None
    try:
        manifest = parse_manifest(stated)
        if model is not None and corpus.layout is not None:
            facts = read_facts(manifest, model, corpus)
            assemble(facts)  # raises if its constants promise nothing that can be stated
    except MALFORMED as error:
        problem, facts = str(error) if manifest is None else "", None
    return Opened(directory, content, raw, stated, manifest, problem, corpus, hashes, small, model, facts)


def check_release(opened: Opened) -> VerifyReport:
    """All checks that need nothing private."""
    checks = [_check_manifest(opened), _check_files(opened), _check_corpus(opened)]
    checks += [*_check_extras(opened), *_check_days(opened), *_check_connections(opened)]
    current = opened.stated is opened.raw
    looks: dict[str, Callable[[Opened], Iterable[Check]]] = {
        "load privacy": _check_queries,
        "network privacy": _check_network,
        "statement": _check_statement,
    }
    for name, look in (looks | ({"pages": _check_pages} if current else {})).items():
        try:
            checks += look(opened)
        except MALFORMED:
            checks.append(Check(name, False, UNREADABLE))
    checks.append(_check_seed(opened))
    facts = opened.facts
    words = None if facts is None else facts.policy.words(facts)
    attested = () if words is None else words.attested
    if opened.model is not None and opened.model.origin is None:
        attested = (*attested, NO_ANSWERS)
    if opened.manifest is not None and opened.manifest.publication != UNDECLARED:
        attested = (*attested, PUBLISHED)
    return VerifyReport(
        None if facts is None else facts.release_id,
        _sha256(opened.content),
        tuple(checks),
        attested if current else (*attested, ONLY_FIGURES),
        (*(() if words is None else words.warnings), *(() if current else (UNCHECKED,))),
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_files(directory: Path, known: dict[str, str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """SHA-256 of everything below the directory, and the content of what is made again."""
    hashes, small = {}, {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            hashes[name] = "not a plain file"
        elif name in known:
            hashes[name] = known[name]
        elif path.is_file():
            try:
                if name in (MODEL_FILE, QUALITY_FILE, *_PAGES):
                    small[name] = path.read_bytes()
                    hashes[name] = _sha256(small[name])
                else:
                    with path.open("rb") as file:
                        hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                hashes[name] = "unreadable"
    return hashes, small


@lru_cache(maxsize=2)
def _read_model(content: bytes) -> LoadModel | None:
    """The load model, None if `model.json` holds none whose cost can be stated.

    A model is derived again from its noisy answers, which takes time; the feeders of a fleet may share one.
    """
    try:
        with np.errstate(all="ignore"):  # figures that somebody made up may overflow
            model = LoadModel.from_json(content.decode("utf-8"))
        return model if model.n_steps and math.isfinite(model.spent_epsilon) else None
    except (RecursionError, *MALFORMED):
        return None


def read_manifest(directory: Path) -> tuple[Manifest[Any], str]:
    """The manifest of a release, compared with nothing, and the SHA-256 of its file; ReleaseError if none."""
    content = manifest_content(directory)
    try:
        return parse_manifest(in_this_version(json_object(content))), _sha256(content)
    except (ValueError, RecursionError):
        raise ReleaseError(f"{directory / MANIFEST_FILE} is not JSON; this is not a release") from None


def _figures(content: Any) -> Any:
    """All but the sentences of a manifest, whose wording belongs to its version."""
    if isinstance(content, dict):
        return {name: _figures(value) for name, value in content.items()}
    if isinstance(content, list) and not all(isinstance(item, str) for item in content):
        return [_figures(item) for item in content]
    return "" if isinstance(content, list) or (isinstance(content, str) and " " in content) else content


def _check_manifest(opened: Opened) -> Check:
    def problems() -> Iterator[str]:
        if opened.stated.get("format") != FORMAT:
            yield f"{MANIFEST_FILE} has another format than '{FORMAT}'; use the program that made it."
        elif opened.problem:
            yield f"{opened.problem[:1].upper()}{opened.problem[1:]}."
        elif opened.stated is not opened.raw and _is_newer(opened):
            yield f"{MANIFEST_FILE} is of an earlier version, and its release was made by a later program."
        elif opened.stated is opened.raw and opened.facts and opened.facts.policy.of_earlier_versions:
            yield f"{MANIFEST_FILE} is of this version, which makes no release in the mode that it states."
        if canonical_json(opened.raw) != opened.content:
            yield f"{MANIFEST_FILE} is not in its canonical form, so it was changed after the release."
        if opened.raw.get(DIGEST) != digest_of(opened.raw):
            yield f"{MANIFEST_FILE} does not match its own SHA-256, so it was changed after the release."

    return check("manifest", problems(), f"{MANIFEST_FILE} is in canonical form and matches its own SHA-256.")


def _is_newer(opened: Opened) -> bool:
    """Whether a manifest of an earlier version, whose sentences nobody checks, is about a later release."""
    software = opened.raw.get("software")
    made_by = software.get("dp-powerflow") if isinstance(software, dict) else None
    version = str(opened.raw.get("format"))
    with_answers = opened.model is not None and opened.model.origin is not None
    return made_by != MAKER_OF.get(version) or (version == VERSION_2 and with_answers)


def _check_files(opened: Opened) -> Check:
    stated = opened.raw.get("files")
    if not isinstance(stated, dict):
        return Check("files", False, "The manifest does not list the files of the release.")
    found = {name: digest for name, digest in opened.hashes.items() if name != MANIFEST_FILE}
    described = None
    if opened.manifest is not None:
        data = opened.manifest.data
        described = {DATA} if data.network_tables is None else {DATA, data.network_tables.directory}
        described |= set() if data.extras is None else set(opened.corpus.extras.layout.folders)

    def problems() -> Iterator[str]:
        for name in sorted(stated.keys() | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in stated:
                yield f"{name} is not listed in the manifest."
            elif found[name] != stated[name]:
                yield f"{name} was changed: its SHA-256 is not the one in the manifest."
            elif described is not None and "/" in name and name.split("/")[0] not in described:
                yield f"{name} is in a directory that the manifest does not describe."

    return check("files", problems(), f"All {len(found)} files are there, no other, with the stated SHA-256.")


def _check_corpus(opened: Opened) -> Check:
    report, manifest = opened.corpus, opened.manifest

    def problems() -> Iterator[str]:
        yield from (words for words in report.problems if words not in report.extras.problems)
        if (
            report.release_id is not None
            and manifest is not None
            and report.release_id != manifest.release.id
        ):
            yield "The voltages belong to another release than the manifest."
        declared = NODE_COLUMNS if manifest is not None and manifest.data.connections is not None else ()
        if report.nodes is not None and not report.nodes.public_columns().keys() <= set(declared):
            yield "The node table says more of the nodes than the manifest declares public."
        if report.nodes is not None and report.nodes.ids != NodeTable.opaque(len(report.nodes.ids)).ids:
            yield "The names of the nodes say more than their position."

    span = report.vm_range_pu
    magnitudes = "" if span is None else f", magnitudes from {span[0]:.4f} to {span[1]:.4f} p.u."
    return check(
        "voltages", problems(), f"All {report.n_phasors:,} phasors lie on the public grid{magnitudes}"
    )


def _check_extras(opened: Opened) -> Iterator[Check]:
    """Powers and states beside the voltages, where there are any or the manifest says so."""
    found = opened.corpus.extras
    stated = None if opened.manifest is None else opened.manifest.data.extras
    if not found.layout.holds and not found.problems and stated is None:
        return

    def problems() -> Iterator[str]:
        yield from found.problems
        if (
            opened.manifest is not None
            and (() if stated is None else tuple(stated.holds)) != found.layout.holds
        ):
            yield "The manifest states other powers and states than the files hold."

    holds = ", ".join(found.layout.holds)
    good = f"Beside the voltages there are {holds}: {found.n_powers:,} powers, all on the public grid."
    yield check("powers and states", problems(), good)


def _check_days(opened: Opened) -> Iterator[Check]:
    """Dates and weather of the days, where there are any or there should be."""
    days, stated = opened.corpus.days, None if opened.manifest is None else opened.manifest.data.calendar
    known = opened.raw.get("format") in WITH_DAYS
    dated = known and opened.facts is not None and opened.facts.policy.dated
    if days is None and stated is None and not dated:
        return
    problems = []
    if days is None:
        problems.append(f"{DAYS_FILE}, which has the dates of the days, is missing or cannot be read.")
    elif opened.manifest is not None and (stated is None or stated.model_dump() != described_days(days)):
        problems.append(f"The manifest states another calendar than {DAYS_FILE} holds.")
    first = "" if days is None else days.calendar.first_day
    weather = "" if days is None or not days.names else f", with public weather ({', '.join(days.names)})"
    yield check("days", problems, f"The days follow one another from {first} on{weather}.")


def _check_connections(opened: Opened) -> Iterator[Check]:
    """Buses and what joins them, where there are any or the manifest says so."""
    found, there = opened.corpus.connections, set(CONNECTION_FILES) & opened.hashes.keys()
    stated = None if opened.manifest is None else opened.manifest.data.connections
    if not there and stated is None:
        return
    problems = []
    if found is None:
        problems.append(
            f"{' and '.join(CONNECTION_FILES)} are missing or cannot be read, or contradict each other "
            "or the nodes."
        )
    elif opened.manifest is not None and stated is None:
        problems.append("There are connections of the network that the manifest does not state.")
    elif stated is not None and (
        (stated.buses, stated.pairs, stated.sources, stated.coordinates)
        != (found.n_buses, found.n_pairs, int(found.source.sum()), found.coordinates is not None)
    ):
        problems.append("The manifest states other connections of the network than the files hold.")
    good = ""
    if found is not None:
        places = "with" if found.coordinates is not None else "without"
        good = (
            f"All {found.n_buses:,} buses are connected to a source by {found.n_pairs:,} joined pairs, "
            f"{places} coordinates; every node has a bus and a phase."
        )
    yield check("connections", problems, good)


def _check_queries(opened: Opened) -> Iterator[Check]:
    """Every sensitivity, ρ and ε of the loads, from regions, dimensions and noise scales."""
    if opened.manifest is None:
        raise ReleaseError(UNREADABLE)
    loads = opened.manifest.guarantee.loads
    costs = tuple(QueryCost.from_dict(query.model_dump()) for query in opened.manifest.load_queries)
    rho = total_rho(costs)
    epsilon = rho_to_epsilon(rho, loads.delta)

    def problems() -> Iterator[str]:
        for number, (query, cost) in enumerate(
            zip(opened.stated["load_queries"], costs, strict=True), start=1
        ):
            if cost.sensitivity_squared != sensitivity_squared(Region(cost.region), cost.dimension):
                yield f"The sensitivity of query {number} does not follow from its region and dimension."
            if any(differences(query, cost.to_dict())):
                yield f"The stated cost of query {number} does not follow from sensitivity and noise scale."
        for name, stated, value in (("rho", loads.rho, rho), ("epsilon", loads.epsilon, epsilon)):
            if not math.isclose(stated, value, rel_tol=RELATIVE):
                yield f"The stated {name} of the loads is not what the queries cost."
        if opened.model is None:
            yield f"{MODEL_FILE} is not a load model, or does not follow from the answers in it."
        elif opened.model.costs != costs:
            yield f"{MODEL_FILE} carries other costs than the manifest."
        elif opened.model.origin is None and opened.raw.get("format") in WITH_DAYS:
            yield f"{MODEL_FILE} holds no noisy answers, so its costs follow from nothing."

    good = (
        f"{len(costs)} queries cost rho = {at_most(rho)} together, epsilon at most {at_most(epsilon)} at "
        f"delta {in_digits(loads.delta)}, recomputed from sensitivities and noise scales; the load model "
        "carries the same."
    )
    yield check("load privacy", problems(), good)


def _check_network(opened: Opened) -> Iterator[Check]:
    """What the release's mode recomputes of the network."""
    manifest, facts = opened.readable()
    yield from facts.policy.checks(manifest, facts, opened.directory, opened.hashes)


def _check_statement(opened: Opened) -> Iterator[Check]:
    """The manifest against the one that files and declared constants determine, entry by entry."""
    facts = opened.readable()[1]
    expected = assemble(facts).model_dump()
    stated = {key: value for key, value in opened.stated.items() if key not in (DIGEST, "files")}
    if opened.stated is not opened.raw:
        stated, expected = _figures(stated), _figures(expected)
    problems = [f"The manifest's {where} is wrong." for where in differences(stated, expected)]
    what = "entry" if opened.stated is opened.raw else "figure"
    good = (
        f"Every {what} of the manifest follows from the files and the declared constants, and what was spent "
        "on this and earlier releases adds up within the caps."
    )
    yield check("statement", problems + contradictions(facts), good)


def _check_pages(opened: Opened) -> Iterator[Check]:
    """Certificate, registry record, card and metadata, made again from the manifest; quality from files."""
    manifest = opened.readable()[0]
    made = {
        CERTIFICATE_FILE: certificate_html(manifest),
        CROISSANT_FILE: croissant_bytes(manifest, manifest.files),
        REGISTRY_FILE: registry_bytes(manifest),
        CARD_FILE: card_bytes(manifest),
    }
    wrong = [name for name in _PAGES if opened.small.get(name) != made[name]]
    problems = [f"{name} does not say what the manifest says." for name in wrong]
    shown = opened.small.get(QUALITY_FILE)
    # What is wrong with the voltages is found by another check; then they are not looked at again.
    sound = opened.corpus.ok
    if sound and (
        shown is None or shown != quality_page(opened.directory, opened.corpus, opened.hashes, manifest)
    ):
        problems.append(f"{QUALITY_FILE} does not show what is in the files of the release.")
    good = f"{', '.join(_PAGES)} say what the manifest says, {QUALITY_FILE} shows what is in the files."
    yield check("pages", problems, good)


def quality_page(
    directory: Path, corpus: CorpusReport, hashes: Mapping[str, str], statement: Statement[Any]
) -> bytes | None:
    """The page that sound files and a statement determine; None if the files cannot be read.

    Parameters
    ----------
    directory, corpus, hashes : as of `Opened`.
    """
    tables = frozenset((name, digest) for name, digest in hashes.items() if name.endswith(".parquet"))
    try:
        if corpus.layout is None or corpus.nodes is None or corpus.release_id is None:
            raise ReleaseError(UNREADABLE)
        shown = Corpus(directory, corpus.layout, corpus.nodes, corpus.release_id)
        return _page(shown, tables, promise_of(statement))
    except (OSError, *MALFORMED):
        return None


@lru_cache(maxsize=2)
def _page(corpus: Corpus, hashes: frozenset[tuple[str, str]], promise: Promise) -> bytes:
    return replace(_measured(corpus, hashes), promise=promise).to_html()


@lru_cache(maxsize=1)
def _measured(corpus: Corpus, hashes: frozenset[tuple[str, str]]) -> Quality:
    """Figures of files with these hashes, looked at once."""
    return measure(corpus)


def _check_seed(opened: Opened) -> Check:
    if opened.manifest is not None and not opened.manifest.release.insecure_seed:
        return Check(SEED, True, "The noise is stated to come from a secret key of the operating system.")
    sentence = "The noise came from an insecure seed: this is a demonstration, not a release."
    return Check(SEED, False, sentence)
