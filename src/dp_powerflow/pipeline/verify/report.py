"""What `verify` found, check by check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["release", "demonstration", "not intact"]

SEED = "random source"
"""Name of the check that a demonstration fails."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and a sentence about it."""

    name: str
    ok: bool
    sentence: str


@dataclass(frozen=True)
class VerifyReport:
    """All checks of a release.

    Attributes
    ----------
    release_id : name of the release, None if that cannot be read.
    manifest_sha256 : SHA-256 of the file `manifest.json`, to compare with what the data owner says elsewhere.
    checks : in the order they were made.
    attested : statements that nobody can check without the network or the ledger.
    """

    release_id: str | None
    manifest_sha256: str | None
    checks: tuple[Check, ...]
    attested: tuple[str, ...]

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
        return {"verdict": self.verdict, **asdict(self)}


def check(name: str, problems: Iterable[str], good: str) -> Check:
    """A check that lists its first problems, or says what was found good."""
    found = list(problems)
    if not found:
        return Check(name, True, good)
    more = f" And {len(found) - 3} more." if len(found) > 3 else ""
    return Check(name, False, " ".join(found[:3]) + more)
