"""What `verify` found of a fleet; apart from how it looks, so that a renderer need not import that."""

from __future__ import annotations

from dataclasses import dataclass

from dp_powerflow.manifest.verify import VerifyReport


@dataclass(frozen=True)
class FeederChecks:
    """How many feeders passed one kind of check.

    Attributes
    ----------
    name : of the check, as in the report of a release.
    feeders : that it was made of.
    failed : of these.
    """

    name: str
    feeders: int
    failed: int


@dataclass(frozen=True, repr=False)
class FleetReport(VerifyReport):
    """All checks of a fleet: what is said of the whole, and one check per feeder.

    Attributes
    ----------
    feeder_checks : the kinds of checks that its feeders had, in the order of first appearance.
    """

    feeder_checks: tuple[FeederChecks, ...] = ()
