"""`verify` for a fleet: every feeder's release, and `fleet.json` made again from their manifests."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dp_powerflow._parallel import run_on_pool
from dp_powerflow._threads import cores, in_order
from dp_powerflow.corpus.storage import KEPT_BYTES, Location, RemotePath, loading, location, one_reading
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.checked import FeederChecks, FleetReport
from dp_powerflow.fleet.manifest import (
    ONE_MODEL,
    PER_FEEDER,
    FeederEntry,
    contradictions,
    fleet_file,
    fleet_manifest,
    fleet_words,
    sharing,
)
from dp_powerflow.fleet.names import FLEET_FILE, PAGE_FILE, feeder_of, partition
from dp_powerflow.fleet.overview import Summary, fleet_page, summary_at
from dp_powerflow.manifest.model import (
    DIGEST,
    MALFORMED,
    Check,
    ReleaseError,
    at_most,
    check,
    differences,
    form_problems,
    in_digits,
    json_object,
    refuse_other_format,
)
from dp_powerflow.manifest.verify import SEED, VerifyReport, manifest_content, parsed_manifest, verify_release
from dp_powerflow.pipeline.audit import verify_private

Progress = Callable[[int, int], None]

WORTH_PROCESSES = 32
"""Feeders per core from which processes pay for their start."""
_AT_ONCE = 4
"""Feeders of a store that a process looks at at the same time; each keeps its share in memory."""


@dataclass(frozen=True, eq=False)
class _Feeder:
    """What was found of one feeder.

    Attributes
    ----------
    directory : its name in the corpus.
    summary : key figures of its page; None if it has none.
    page_is_readable : whether a page that is there could be read.
    entry : what the fleet's manifest says of it; None if its own cannot be read.
    """

    directory: str
    report: VerifyReport
    summary: Summary | None
    page_is_readable: bool = True
    entry: FeederEntry | None = None


def verify_fleet(
    path: str | os.PathLike[str] | RemotePath,
    state_path: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> FleetReport:
    """Check all of a fleet; with the private state directory also commitments and ledger (INTERNAL).

    Several feeders are looked at at the same time, and of a URL nothing is copied to a disk.

    Raises
    ------
    ReleaseError : there is no `fleet.json`.
    CorpusError : a store does not answer, or changes meanwhile.
    """
    place = location(path)
    try:
        content = fleet_file(place)
    except OSError as error:
        raise ReleaseError(
            f"{place} has no {FLEET_FILE} that can be read; run the fleet again to finish it"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    try:
        manifest = json_object(content)
    except (ValueError, RecursionError):
        return FleetReport(None, digest, (Check("fleet", False, f"{FLEET_FILE} is not JSON."),), ())
    there = _contents(place)
    feeders = _look_at_all(_look_of(place, there, state_path), progress)
    readable = [feeder.entry for feeder in feeders if feeder.entry is not None]
    entries = readable if len(readable) == len(feeders) else []
    reports = [feeder.report for feeder in feeders]
    checks = (
        _check_fleet_file(content, manifest),
        _check_directory(there, manifest),
        _check_statement(manifest, entries),
        _check_page(place, manifest, entries, feeders),
        *(_check_feeder(feeder.directory, feeder.report) for feeder in feeders),
        _check_customers(manifest, entries),
        _check_seed(reports),
    )
    fleet_id = manifest["fleet"].get("id") if isinstance(manifest.get("fleet"), dict) else None
    warned = [text for report in reports for text in report.warnings]
    return FleetReport(
        fleet_id,
        digest,
        checks,
        _attested(manifest, reports),
        tuple(dict.fromkeys(warned)),
        kinds_of(reports),
    )


def kinds_of(reports: Iterable[VerifyReport]) -> tuple[FeederChecks, ...]:
    """How many feeders passed which check; the seed is none, it makes all of the fleet a demonstration."""
    made, failed = Counter[str](), Counter[str]()
    for report in reports:
        failures = {item.name for item in report.failures}
        for name in dict.fromkeys(item.name for item in report.checks if item.name != SEED):
            made[name] += 1
            failed[name] += name in failures
    return tuple(FeederChecks(name, count, failed[name]) for name, count in made.items())


def _contents(place: Location) -> dict[str, bool]:
    """Names at a place, sorted, and whether each is a folder and no link."""
    with loading(place):
        if isinstance(place, RemotePath):
            return place.children()
        with os.scandir(place) as items:
            return dict(sorted((item.name, item.is_dir(follow_symlinks=False)) for item in items))


_Seen = tuple[int, _Feeder, bytes | None]


@dataclass(frozen=True, eq=False)
class _Look:
    """How the feeders of a fleet are looked at, here or in other processes of this machine.

    Attributes
    ----------
    directories : of the feeders, by number.
    state_path : private state directory; None without.
    processes, at_once : of this machine, and feeders that each looks at at the same time.
    """

    place: Location
    directories: tuple[str, ...]
    state_path: str | os.PathLike[str] | None
    processes: int
    at_once: int

    def start(self, threads: int | None) -> Callable[[int], _Seen]:
        """Nothing to prepare."""
        return self.numbered

    def numbered(self, number: int) -> _Seen:
        """What is found of one feeder, with its number and its `manifest.json`."""
        directory = self.directories[number]
        room = KEPT_BYTES // (self.processes * self.at_once)
        with one_reading(self.place / directory, room) as release:
            content = None
            with suppress(OSError, DpPowerflowError):
                content = manifest_content(release)
            return number, self._found(directory, release), content

    def _found(self, directory: str, release: Location) -> _Feeder:
        try:
            if self.state_path is None:
                report = verify_release(release)
            else:
                report = verify_private(release, self.state_path)
        except (ReleaseError, CorpusError) as error:
            report = VerifyReport(None, None, (Check("manifest", False, f"{error}."),), ())
        summary, page_is_readable = None, True
        try:
            summary = summary_at(release)
        except (OSError, *MALFORMED):
            page_is_readable = False
        return _Feeder(directory, report, summary, page_is_readable)

    def entry(self, number: int, content: bytes | None) -> FeederEntry | None:
        """What the fleet's manifest says of a feeder whose own is given."""
        directory = self.directories[number]
        try:
            parsed = None if content is None else parsed_manifest(self.place / directory, content)
        except DpPowerflowError:
            return None
        return None if parsed is None else FeederEntry(feeder_of(directory) or "", *parsed)


def _look_at_all(look: _Look, progress: Progress | None) -> list[_Feeder]:
    """All feeders, in the order of their names.

    Most of a small feeder is Python, which one process does on one core: many are shared out to processes.
    """
    numbers = range(len(look.directories))
    found: dict[int, _Feeder] = {}
    first: list[FeederEntry] = []

    def keep(seen: _Seen) -> None:
        number, feeder, content = seen
        entry = look.entry(number, content)
        if entry is not None and first:
            entry = sharing(entry, first[0])
        first.extend([entry] if entry is not None and not first else [])
        found[number] = replace(feeder, entry=entry)
        if progress is not None:
            progress(len(found), len(numbers))

    if look.processes > 1:
        run_on_pool(look.processes, look, numbers, keep, threads=look.at_once)
    else:
        for seen in in_order(look.numbered, numbers, look.at_once):
            keep(seen)
    return [found[number] for number in numbers]


def _look_of(place: Location, there: Mapping[str, bool], state_path: str | os.PathLike[str] | None) -> _Look:
    directories = [name for name, is_folder in there.items() if is_folder and feeder_of(name) is not None]
    shared = not str(place).startswith("memory:") and len(directories) >= WORTH_PROCESSES * cores()
    processes = cores() if shared else 1
    at_once = _AT_ONCE if isinstance(place, RemotePath) else cores() // processes
    return _Look(place, tuple(directories), state_path, processes, at_once)


def _check_fleet_file(content: bytes, manifest: dict[str, Any]) -> Check:
    problems = []
    try:
        refuse_other_format(manifest, "fleet", FLEET_FILE)
    except ReleaseError as error:
        problems.append(f"{error}.")
    problems += form_problems(content, manifest, FLEET_FILE)
    return check("fleet", problems, f"{FLEET_FILE} is in canonical form and matches its own SHA-256.")


def _check_directory(there: Mapping[str, bool], manifest: dict[str, Any]) -> Check:
    """The feeders that are there against those that are listed."""
    try:
        listed = {partition(str(item["name"])) for item in manifest["feeders"]}
    except MALFORMED:
        return Check("feeders", False, f"{FLEET_FILE} does not list the feeders.")
    beside = {FLEET_FILE, PAGE_FILE}
    found = {name: is_folder for name, is_folder in there.items() if name not in beside}

    def problems() -> Iterator[str]:
        for name in sorted(listed | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in listed:
                yield f"{name} is not listed in {FLEET_FILE}; run the fleet again if it was interrupted."
            elif not found[name]:
                yield f"{name} is not a directory."

    return check("feeders", problems(), f"All {len(listed)} feeders are present and nothing else.")


def _check_statement(manifest: dict[str, Any], entries: list[FeederEntry]) -> Check:
    """The whole file against the one that the feeders' manifests determine."""
    name = "statement"
    try:
        fleet_id, models = manifest["fleet"]["id"], manifest["customers"]["models"]
        problems = contradictions(fleet_id, models, entries)
        if not problems:
            expected = fleet_manifest(fleet_id, models, entries, manifest["page_sha256"])
            del expected[DIGEST]
            stated = {key: value for key, value in manifest.items() if key != DIGEST}
            problems = [f"The entry {where} is wrong." for where in differences(stated, expected)]
    except MALFORMED:
        return Check(name, False, f"{FLEET_FILE} or a feeder's manifest cannot be read.")
    good = f"Every entry of {FLEET_FILE} follows from the manifests of the feeders."
    return check(name, problems, good)


def _check_page(
    place: Location, manifest: dict[str, Any], entries: list[FeederEntry], feeders: Sequence[_Feeder]
) -> Check:
    """The page against its hash, and against the one that the feeders' manifests and pages determine."""
    problems = []
    try:
        content = (place / PAGE_FILE).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["page_sha256"]:
            problems.append(f"{PAGE_FILE} was changed: its SHA-256 is not the one in {FLEET_FILE}.")
        if _made_again(manifest, entries, feeders) != content:
            problems.append(f"{PAGE_FILE} does not say what the feeders say.")
    except (OSError, *MALFORMED):
        problems = [f"{PAGE_FILE} or what it follows from cannot be read."]
    return check("page", problems, f"{PAGE_FILE} says what the manifests and pages of the feeders say.")


def _made_again(manifest: dict[str, Any], entries: list[FeederEntry], feeders: Sequence[_Feeder]) -> bytes:
    if not all(feeder.page_is_readable for feeder in feeders):
        raise ReleaseError("the page of a feeder cannot be read")
    found = {feeder_of(feeder.directory): feeder.summary for feeder in feeders}
    summaries = {entry.name: summary for entry in entries if (summary := found.get(entry.name)) is not None}
    return fleet_page(manifest["fleet"]["id"], entries, summaries).to_html()


def _check_feeder(name: str, report: VerifyReport) -> Check:
    problems = [f"{failed.name}: {failed.sentence}" for failed in report.failures if failed.name != SEED]
    made = sum(item.name != SEED for item in report.checks)
    return check(name, problems, f"Its release is intact: {made} checks.")


def _check_customers(manifest: dict[str, Any], entries: list[FeederEntry]) -> Check:
    """What the feeders together cost one load point, from their verified manifests."""
    name = "customers"
    try:
        customers = manifest["customers"]
        dearest = max(item.manifest.guarantee.loads.rho for item in entries)
        figures = f"epsilon at most {at_most(customers['epsilon'])} at delta {in_digits(customers['delta'])}"
        if customers["rho"] != dearest:
            return Check(name, False, "The stated rho of the customers is not that of the dearest model.")
        how = {PER_FEEDER: "the dearest of the feeders' models"}.get(
            customers["models"], "one model for all feeders"
        )
    except MALFORMED:
        return Check(name, False, "The promise to the customers cannot be read.")
    return Check(name, True, f"All feeders together cost a load point {figures}, the cost of {how}.")


def _check_seed(reports: list[VerifyReport]) -> Check:
    seeded = [item for report in reports for item in report.failures if item.name == SEED]
    if seeded:
        return seeded[0]
    return Check(
        SEED, bool(reports), "The noise is stated to come from a secret key of the operating system."
    )


def _attested(manifest: dict[str, Any], reports: list[VerifyReport]) -> tuple[str, ...]:
    """What a third party cannot check; of the feeders each sentence once."""
    customers = manifest.get("customers")
    models = customers.get("models") if isinstance(customers, dict) else None
    words = fleet_words(str(models))
    of_fleet = [*(words["customers"] if models in (ONE_MODEL, PER_FEEDER) else ()), *words["networks"]]
    return tuple(dict.fromkeys([*of_fleet, *(text for report in reports for text in report.attested)]))
