"""Checks a release without anything private: what it says is recomputed, what cannot be is named as attested.

Any byte and any figure that is changed by itself is found: files against their hashes, the manifest against
its own digest and, entry by entry, against the manifest that the files and the declared constants determine;
the certificate and the two metadata files against what the manifest determines. A forger who makes all of it
anew makes another release. That it is the data owner's is known from the digest of the manifest, given by
another way, or from an auditor (`verify_private`).

Somebody may have changed a file: whatever is in it, no exception escapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dp_powerflow.corpus.storage import RemotePath
from dp_powerflow.manifest import checks as checks_of
from dp_powerflow.manifest.checks import SEED as SEED
from dp_powerflow.manifest.checks import check_manifest as check_manifest
from dp_powerflow.manifest.checks import query_problems as query_problems
from dp_powerflow.manifest.model import MALFORMED, MANIFEST_FILE, UNDECLARED, UNREADABLE, Check
from dp_powerflow.manifest.model_again import begin as begin
from dp_powerflow.manifest.opened import Opened as Opened
from dp_powerflow.manifest.opened import files_below as files_below
from dp_powerflow.manifest.opened import manifest_content as manifest_content
from dp_powerflow.manifest.opened import open_release as open_release
from dp_powerflow.manifest.opened import parsed_manifest as parsed_manifest
from dp_powerflow.manifest.opened import read_manifest as read_manifest
from dp_powerflow.manifest.opened import release_at as release_at
from dp_powerflow.manifest.opened import sha256_of as sha256_of
from dp_powerflow.manifest.opened import understand as understand
from dp_powerflow.manifest.release import look_at

Verdict = Literal["release", "demonstration", "not intact"]

PUBLISHED = "Publisher, license, citation, date and URL, where stated, are what the data owner says."


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
        return check_release(open_release(place, content, partial(look_at, content)))
    except (ValueError, RecursionError):
        return no_manifest(content)


def no_manifest(content: bytes) -> VerifyReport:
    """The report of a release whose `manifest.json` cannot be read."""
    broken = Check("manifest", False, f"{MANIFEST_FILE} is not JSON.")
    return VerifyReport(None, sha256_of(content), (broken,), ())


def check_release(opened: Opened) -> VerifyReport:
    """All checks that need nothing private."""
    checks = [checks_of.check_manifest(opened), checks_of.check_files(opened), checks_of.check_corpus(opened)]
    checks += [
        *checks_of.check_extras(opened),
        *checks_of.check_days(opened),
        *checks_of.check_connections(opened),
    ]
    looks: dict[str, Callable[[Opened], Iterable[Check]]] = {
        "load privacy": checks_of.check_queries,
        "network privacy": checks_of.check_network,
        "statement": checks_of.check_statement,
        "pages": checks_of.check_pages,
    }
    for name, look in looks.items():
        try:
            checks += look(opened)
        except MALFORMED:
            checks.append(Check(name, False, UNREADABLE))
    checks.append(checks_of.check_seed(opened))
    facts = opened.facts
    words = None if facts is None else facts.policy.words(facts)
    attested = () if words is None else words.attested
    if opened.manifest is not None and opened.manifest.publication != UNDECLARED:
        attested = (*attested, PUBLISHED)
    return VerifyReport(
        None if facts is None else facts.release_id,
        sha256_of(opened.content),
        tuple(checks),
        attested,
        () if words is None else tuple(words.warnings),
    )
