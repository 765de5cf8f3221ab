"""What released fleets show: `verify` of a fleet, and `ledger --witness`.

**verify** checks every feeder's release, and makes `fleet.json` again from their manifests.

**Witnesses** (PRIVATE). A copy of the whole private state directory, put back from a backup, is consistent:
nothing inside can tell that later charges are gone. Releases outside can. A manifest states which accounts
paid for the release and where they stood just after. A ledger that lacks such a charge, or says something
else of it, is an older copy, or the release was made with another private state directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dp_powerflow._parallel import run_on_pool
from dp_powerflow._threads import cores, in_order
from dp_powerflow.corpus.storage import Location, RemotePath, location, one_reading
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.manifest import (
    FLEET_FILE,
    PAGE_FILE,
    FeederEntry,
    contents,
    contradictions,
    feeder_of,
    fleet_file,
    fleet_manifest,
    fleet_page,
    fleet_words,
    is_fleet,
    partition,
    read_entries,
    shared,
)
from dp_powerflow.manifest.build import account_of
from dp_powerflow.manifest.model import (
    DIGEST,
    MODEL_FILE,
    SIGNATURES,
    Check,
    Manifest,
    ReleaseError,
    at_most,
    check,
    differences,
    form_problems,
    in_digits,
    json_object,
    refuse_other_format,
)
from dp_powerflow.manifest.verify import (
    SEED,
    VerifyReport,
    check_seed,
    checks_of,
    manifest_content,
    parsed_manifest,
    read_manifest,
    verify_release,
    with_signatures,
)
from dp_powerflow.pipeline.audit import balances_after, verify_private
from dp_powerflow.pipeline.plan import committed, kept_models
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account
from dp_powerflow.privacy.state import PrivateState

Progress = Callable[[int, int], None]

WORTH_PROCESSES = 32
"""Feeders per core from which processes pay for their start."""
_AT_ONCE = 4
"""Feeders of a store that one process reads at the same time; each keeps its share in memory."""


def verify_fleet(
    path: str | os.PathLike[str] | RemotePath,
    state_path: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check all of a fleet; with the private state directory also commitments and ledger (INTERNAL).

    Several feeders are read at the same time, and of a URL nothing is copied to a disk.

    Raises
    ------
    CorpusError : there is no `fleet.json`, or a store does not answer or changes meanwhile.
    """
    place = location(path)
    content = fleet_file(place)
    digest = hashlib.sha256(content).hexdigest()
    try:
        manifest = json_object(content)
    except (ValueError, RecursionError):
        return VerifyReport(None, digest, (Check("fleet", False, f"{FLEET_FILE} is not JSON."),), ())
    there = contents(place)
    directories = [name for name, is_folder in there.items() if is_folder and feeder_of(name) is not None]
    reports, entries = _read_all(place, directories, state_path, progress)
    seeded = any(item.name == SEED for report in reports.values() for item in report.failures)
    looks: dict[str, Callable[[dict[str, Any]], Iterable[Check]]] = {
        "feeders": partial(_check_directory, there),
        "statement": partial(_check_statement, entries),
        "page": partial(_check_page, place, entries),
    }
    checks = (
        _check_fleet_file(content, manifest),
        *checks_of(looks, manifest),
        *(_check_feeder(name, report) for name, report in reports.items()),
        check_seed(insecure=seeded or not reports),
    )
    fleet_id = manifest["fleet"].get("id") if isinstance(manifest.get("fleet"), dict) else None
    warned = [text for report in reports.values() for text in report.warnings]
    attested = [*fleet_words()["customers"], *fleet_words()["networks"]]
    attested += [text for report in reports.values() for text in report.attested]
    demanded = max((report.demanded for report in reports.values()), default=0)
    told = tuple(dict.fromkeys(attested)), tuple(dict.fromkeys(warned))
    return VerifyReport(fleet_id, digest, checks, *told, demanded)


Found = tuple[str, VerifyReport, bytes | None]
"""Directory of a feeder, what is found of it, and its `manifest.json`; None if that cannot be read."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """Reads feeders of a fleet, here or in other processes of this machine.

    Attributes
    ----------
    state_path : private state directory; None without.
    """

    place: Location
    state_path: str | os.PathLike[str] | None

    def start(self, threads: int | None) -> Callable[[str], Found]:
        """Nothing to prepare."""
        return self.feeder

    def feeder(self, directory: str) -> Found:
        """What is found of one feeder."""
        with one_reading(self.place / directory) as release:
            content = None
            with suppress(OSError, DpPowerflowError):
                content = manifest_content(release)
            try:
                if self.state_path is None:
                    report = verify_release(release)
                else:
                    report = verify_private(release, self.state_path)
                return directory, with_signatures(report, release, 0), content
            except (ReleaseError, CorpusError) as error:
                report = VerifyReport(None, None, (Check("manifest", False, f"{error}."),), ())
                return directory, report, content


def _read_all(
    place: Location,
    directories: Sequence[str],
    state_path: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> tuple[dict[str, VerifyReport], list[FeederEntry]]:
    """All feeders in the order of their names, and their manifests; none of these if one cannot be read.

    Most of a small feeder is Python, which one process does on one core: many are shared out to processes.
    """
    many = 1 < cores() <= len(directories) // WORTH_PROCESSES and not str(place).startswith("memory:")
    at_once = cores() if many or isinstance(place, Path) else _AT_ONCE
    reading = _Reading(place, state_path)
    reports: dict[str, VerifyReport] = {}
    entries: dict[str, FeederEntry] = {}

    def keep(found: Found) -> None:
        name, reports[name], content = found
        with suppress(DpPowerflowError):
            if content is not None:
                manifest, sha256 = parsed_manifest(place / name, content)
                first = next(iter(entries.values()), None)
                manifest = shared(manifest, None if first is None else first.manifest)
                entries[name] = FeederEntry(feeder_of(name) or "", manifest, sha256)
        if progress is not None:
            progress(len(reports), len(directories))

    if many:
        run_on_pool(cores(), reading, directories, keep)
    else:
        for found in in_order(reading.feeder, directories, at_once):
            keep(found)
    whole = len(entries) == len(directories)
    return {name: reports[name] for name in directories}, [entries[name] for name in directories if whole]


def _check_fleet_file(content: bytes, manifest: dict[str, Any]) -> Check:
    problems = []
    try:
        refuse_other_format(manifest, "fleet", FLEET_FILE)
    except ReleaseError as error:
        problems = [f"{error}."]
    problems += form_problems(content, manifest, FLEET_FILE)
    return check("fleet", problems, f"{FLEET_FILE} is in canonical form and matches its own SHA-256.")


def _check_directory(there: Mapping[str, bool], manifest: dict[str, Any]) -> Iterator[Check]:
    """The feeders that are there against those that are listed."""
    listed = {partition(str(item["name"])) for item in manifest["feeders"]}
    found = {
        name: is_folder
        for name, is_folder in there.items()
        if name not in (FLEET_FILE, PAGE_FILE, SIGNATURES)
    }

    def problems() -> Iterator[str]:
        for name in sorted(listed | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in listed:
                yield f"{name} is not listed in {FLEET_FILE}; run the fleet again if it was interrupted."
            elif not found[name]:
                yield f"{name} is not a directory."

    yield check("feeders", problems(), f"All {len(listed)} feeders are present and nothing else.")


def _check_statement(entries: list[FeederEntry], manifest: dict[str, Any]) -> Iterator[Check]:
    """The whole file against the one that the feeders' manifests determine."""
    fleet_id, customers = manifest["fleet"]["id"], manifest["customers"]
    problems = contradictions(fleet_id, entries)
    if not problems:
        expected = fleet_manifest(fleet_id, entries, manifest["page_sha256"])
        differ = differences(manifest, expected | {DIGEST: manifest.get(DIGEST)})
        problems = [f"The entry {where} is wrong." for where in differ]
    good = (
        f"Every entry of {FLEET_FILE} follows from the manifests of the feeders. All feeders together cost a "
        f"load point epsilon at most {at_most(customers['epsilon'])} at delta "
        f"{in_digits(customers['delta'])}, the cost of one model for all."
    )
    yield check("statement", problems, good)


def _check_page(place: Location, entries: list[FeederEntry], manifest: dict[str, Any]) -> Iterator[Check]:
    """The page against its hash, and against the one that the feeders' manifests determine."""
    content, problems = b"", []
    with suppress(OSError):
        content = (place / PAGE_FILE).read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["page_sha256"]:
        problems.append(f"{PAGE_FILE} was changed: its SHA-256 is not the one in {FLEET_FILE}.")
    if fleet_page(manifest["fleet"]["id"], entries).to_html() != content:
        problems.append(f"{PAGE_FILE} does not say what the feeders say.")
    yield check("page", problems, f"{PAGE_FILE} says what the manifests of the feeders say.")


def _check_feeder(name: str, report: VerifyReport) -> Check:
    problems = [f"{failed.name}: {failed.sentence}" for failed in report.failures if failed.name != SEED]
    made = sum(item.name != SEED for item in report.checks)
    return check(name, problems, f"Its release is intact: {made} checks.")


# ------------------------------------------------------------------------------------------- witnesses

_FIGURES = {"unit", "spent"}
"""Of an account; sentences belong to the version that wrote them."""
_OLDER = "an older copy of the private state was put back, or the release was made with another one"


@dataclass(frozen=True)
class Testimony:
    """What earlier releases say of a ledger.

    Attributes
    ----------
    releases : number of manifests that were compared.
    contradictions : one sentence each; empty if the ledger has every charge that they state.
    """

    releases: int
    contradictions: tuple[str, ...]


def hear_witnesses(state_path: Path | str, places: Iterable[str]) -> Testimony:
    """Compare the ledger of a private state directory with earlier releases and fleets.

    Parameters
    ----------
    places : directories or URLs of releases or fleets; check them with `verify` first.

    Raises
    ------
    DpPowerflowError : the ledger does not pass its own check, or a place is no release.
    """
    state = PrivateState.inspect(state_path)
    accounts = Ledger.open(state, create=False).summary().accounts
    payers: dict[str, set[str]] = {}  # SHA-256 of a load model → ids that its charge may be under
    for release_id, content in kept_models(state):
        ids = {release_id, release_id.partition("_")[0]}  # its release, or its fleet
        payers.setdefault(hashlib.sha256(content).hexdigest(), set()).update(ids)
    manifests = [manifest for place in map(location, places) for manifest in _witnesses(place)]
    told = [text for manifest in manifests for text in _contradictions(manifest, state, accounts, payers)]
    return Testimony(len(manifests), tuple(told))


def _witnesses(place: Location) -> list[Manifest[Any]]:
    """The manifest of a release, or of every feeder of a fleet."""
    if is_fleet(place):
        return [entry.manifest for entry in read_entries(place)]
    return [read_manifest(place)[0]]


def _contradictions(
    manifest: Manifest[Any], state: PrivateState, accounts: Sequence[Account], payers: Mapping[str, set[str]]
) -> Iterator[str]:
    """One sentence for each thing that a release states and the private state does not know."""
    release_id, stated = manifest.release.id, manifest.composition
    kept = any(release_id in ids for ids in payers.values())
    paid = payers.get(manifest.files[MODEL_FILE], set()) | (set() if kept else {release_id})
    of_network = partial(manifest.guarantee.network.is_paid_by, release_id=release_id)
    for stem, name, said, counts in (
        ("loads", "customers", stated.loads, paid.__contains__),
        ("network", "network", stated.network, of_network),
    ):
        balances = balances_after([own for own in accounts if own.kind.stem.startswith(stem)], counts)
        figures = [account_of(balance).model_dump(include=_FIGURES) for balance in balances]
        if not balances:
            yield f"The ledger lacks the charge of release '{release_id}' to the {name}: {_OLDER}."
        elif all(any(differences(said.model_dump(include=_FIGURES), own)) for own in figures):
            yield (
                f"The ledger disagrees with release '{release_id}' on what had been spent on the {name}: "
                f"{_OLDER}."
            )
    if committed(state, release_id) not in (None, manifest.internal_report.sha256):
        yield f"Release '{release_id}' commits to another internal report than the one kept: {_OLDER}."
