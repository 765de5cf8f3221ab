"""The networks of a fleet and the ledger: which account is whose.

Every feeder is a secret of its own, with an account of its own. The ledger asks of every new
network whether it continues an account or is unrelated to all others. Within a fleet the list of feeders
answers: they are different networks. That is not enough for feeders of the same frame (the same nodes and
connections), which are most likely versions of one network: the config must name them in `same_frame`. The
list says nothing about networks that are not in it: those charged outside the fleet, and those of feeders
that it used to list, whose files may have been exported again under other names. About them only the data
owner can answer, in the config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from dp_powerflow.errors import Lines, PrivacyError, printable
from dp_powerflow.fleet.attempts import last_attempt, release_ids
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import Registered, Registers
from dp_powerflow.manifest.model import registered
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import AccountSummary, Unrelated, spelled, unrelated_line
from dp_powerflow.privacy.state import PrivateState


@dataclass(frozen=True)
class Known:
    """PRIVATE. Key of a feeder, listed or not → account of its network.

    Attributes
    ----------
    continued : what an earlier fleet charged for it, or what the config says it continues.
    charged : all of that, and what this fleet charged for it.
    withdrawn : feeders that are not made, though their networks keep their accounts.
    """

    continued: Mapping[str, str]
    charged: Mapping[str, str]
    withdrawn: frozenset[str]

    def new(self, keys: Iterable[str]) -> list[str]:
        """Those feeders that will be made and have no account."""
        return sorted(key for key in keys if key not in self.charged and key not in self.withdrawn)

    def of(self, keys: Iterable[str]) -> set[str]:
        """Accounts of those feeders that have one."""
        return {self.charged[key] for key in keys if key in self.charged}


def network_accounts(config: FleetConfig, ledger: Ledger) -> list[AccountSummary]:
    kind = registered(config.network.mode).account_kind
    return [account for account in ledger.summary().accounts if account.kind is kind]


def known_networks(
    config: FleetConfig, state: PrivateState, accounts: list[AccountSummary], registers: Registers
) -> Known:
    fleet = config.fleet
    declared = {
        key: own.continues_network
        for key, own in config.overrides.items()
        if own.continues_network is not None
    }
    unknown = set(declared.values()) - {account.name for account in accounts}
    if unknown:
        raise PrivacyError(
            f"overrides let a feeder continue the account '{min(unknown)}', and the ledger has "
            f"{_list_of(accounts)} of that kind; name one of them"
        )
    earlier = (
        {}
        if fleet.continues is None
        else _charged_by(fleet.continues, _charged_ids(state, fleet.continues, registers.earlier), accounts)
    )
    continued = earlier | declared
    # Twins of another fleet may have the same ids; what this fleet pays is in its own accounts or in these.
    mine = [item for item in accounts if item.fleet == fleet.id or item.name in continued.values()]
    charged = _charged_by(fleet.id, _charged_ids(state, fleet.id, registers.own), mine)
    withdrawn = frozenset(key for key, entry in registers.own.items() if entry.withdrawn)
    return Known(continued, charged | continued, withdrawn)


def _charged_ids(
    state: PrivateState, fleet_id: str, register: Mapping[str, Registered]
) -> dict[str, set[str]]:
    """Key → ids that the network of the feeder may be charged under; the register may lack the last."""
    return {
        key: {
            *entry.charged_under,
            *release_ids(fleet_id, entry.name, last_attempt(state, fleet_id, entry.name)),
        }
        for key, entry in register.items()
    }


def _charged_by(
    fleet_id: str, charged_ids: Mapping[str, Collection[str]], accounts: list[AccountSummary]
) -> dict[str, str]:
    """Key → account that a fleet charged for the feeder of that key."""
    ordered = sorted(accounts, key=lambda account: account.fleet == fleet_id)  # its own accounts win
    account_of = {spend.release_id: account.name for account in ordered for spend in account.spends}
    return {
        key: account_of[charged]
        for key, ids in charged_ids.items()
        for charged in sorted(ids)
        if charged in account_of
    }


def refuse_unexplained(
    config: FleetConfig,
    keys: Collection[str],
    accounts: list[AccountSummary],
    known: Known,
) -> None:
    """A re-export of a network that was charged before must not start with a full budget."""
    fleet = config.fleet
    new = known.new(keys)
    if not new:
        return
    named = frozenset() if fleet.unrelated is None else fleet.unrelated.accounts
    unknown = named - {account.name for account in accounts}
    if unknown:
        raise PrivacyError(
            f"fleet.unrelated names {spelled(unknown)}, but the ledger has {_list_of(accounts)} of that "
            "kind; name existing accounts"
        )
    explained = known.of(keys) | named
    former = {account: key for key, account in known.charged.items() if account not in explained}
    # An account that this fleet opened and never charged has nothing to be used twice.
    others = {item.name for item in accounts if item.fleet != fleet.id or item.spends}
    outside = others - explained - former.keys()
    wanted = unrelated_line("unrelated", named | former.keys() | outside)
    if former:
        account, key = min(former.items())
        shown = printable(new[0])
        raise PrivacyError(
            Lines(
                f"feeder '{printable(key)}' was charged to account {account} and is no longer listed, while "
                f"'{shown}' is new; list it again, or say what became of it. If '{shown}' is its new "
                f"version, paste\n    [overrides.{json.dumps(new[0])}]\n    "
                f"continues_network = {json.dumps(account)}\n"
                f"and if no feeder is a version of it, paste under [fleet], with the reason,\n    {wanted}"
            )
        )
    if outside:
        raise PrivacyError(
            Lines(
                f"the ledger has accounts of networks not of fleet '{fleet.id}': {spelled(outside)}; set "
                "fleet.continues to the earlier fleet whose feeders these are, continues_network under "
                "overrides of a feeder, or, if no feeder is a version of those networks, paste under "
                f"[fleet], with the reason,\n    {wanted}"
            )
        )


def unrelated_of(
    config: FleetConfig, keys: Collection[str], known: Known, own: frozenset[str]
) -> Callable[[str], Unrelated]:
    """What the ledger records when the account of a feeder's network is opened, by key.

    Accounts that this fleet opened need no names. Naming all of them for every feeder would take words and
    time that grow with the square of the fleet.

    Parameters
    ----------
    own : accounts that this fleet opened.
    """
    fleet, also, alike = config.fleet, config.fleet.unrelated, config.fleet.same_frame
    declared = frozenset() if also is None else also.accounts
    listed = frozenset(known.of(keys))
    reasons = [f"another feeder of fleet '{fleet.id}'"] + ([] if also is None else [also.reason])
    outside = listed - own
    other = Unrelated(outside | declared, "; ".join(reasons), fleet.id, outside - declared)
    if alike is None:
        return lambda _: other
    explained = frozenset(known.of(alike.feeders))
    named = outside | (listed & explained)
    unnamed = named - declared - explained
    reasons.append(f"same frame: {alike.reason}")
    same = Unrelated(named | declared, "; ".join(reasons), fleet.id, unnamed, same_frame=True)
    keys_alike = frozenset(alike.feeders)
    return lambda key: same if key in keys_alike else other


def _list_of(accounts: list[AccountSummary]) -> str:
    return spelled(account.name for account in accounts) or "none"
