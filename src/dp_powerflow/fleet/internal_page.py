"""`fleet-internal.html`: INTERNAL, what the data owner wants to know of a fleet, in the private state.

It names the feeders as their owner does and says which failed, so it is never published. `fleet.html` is the
page for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from dp_powerflow.fleet.events import FeederState

INTERNAL_PAGE = "fleet-internal.html"


@dataclass(frozen=True)
class AccountRecord:
    """INTERNAL. What one account of the ledger was charged, and what is left of it.

    Attributes
    ----------
    account : its name.
    epsilon, delta : of the charge; None where it is not known.
    left_epsilon : ε that a further charge could have; None where it is not known.
    already_charged : whether an earlier run or fleet paid, and this one cost nothing.
    """

    account: str
    epsilon: float | None = None
    delta: float | None = None
    left_epsilon: float | None = None
    already_charged: bool = False


@dataclass(frozen=True, eq=False)
class FeederRecord:
    """INTERNAL. One feeder of a fleet; None where something is not known (yet).

    Attributes
    ----------
    key, name : what its owner calls it, and its public name.
    state : where it is, at the time of the page.
    problem : why it failed, a sentence.
    attempt : how often it was begun, from 1.
    release_id : of its release.
    seconds, worker : how long its worker took, and which it was.
    network : the account of its network.
    nodes, days, corpus_bytes : of its release.
    owner : content of its `owner.json`, which holds the distance of the twin to the true network.
    warnings : of its release.
    """

    key: str
    name: str
    state: FeederState
    problem: str | None = None
    attempt: int | None = None
    release_id: str | None = None
    seconds: float | None = None
    worker: str | None = None
    network: AccountRecord | None = None
    nodes: int | None = None
    days: int | None = None
    corpus_bytes: int | None = None
    owner: bytes | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FleetRecord:
    """INTERNAL. A fleet as its owner sees it.

    Attributes
    ----------
    fleet_id : its name.
    feeders : in the order of public names.
    customers : the account of the meters.
    warnings : of the whole.
    """

    fleet_id: str
    feeders: tuple[FeederRecord, ...]
    customers: AccountRecord | None = None
    warnings: tuple[str, ...] = ()
