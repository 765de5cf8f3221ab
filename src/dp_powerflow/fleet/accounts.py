"""The networks of a fleet and the ledger: every feeder is a secret of its own, with an account of its own.

The ledger asks of every new network whether it continues an account or is unrelated to all others. Within a
fleet the list of feeders answers: they are different networks. It says nothing about networks that are not in
it: those charged outside the fleet, and those of feeders that it used to list, whose files may have been
exported again under other names. About them only the data owner can answer, in the config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import (
    FleetFeeder,
    feeder_config,
    find_sources,
    public_names,
    read_register,
)
from dp_powerflow.pipeline.modes.base import mode_type
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import AccountSummary, Unrelated, spelled, unrelated_line
from dp_powerflow.privacy.state import PrivateState


def feeders_of(config: FleetConfig, state: PrivateState, ledger: Ledger) -> tuple[FleetFeeder, ...]:
    """All feeders of the fleet in the order of their public names; opens none of them.

    Raises
    ------
    ConfigError : a glob matches nothing, or what the config says of a feeder is not usable.
    PrivacyError : the ledger has networks that the config does not relate to this fleet.
    """
    sources = find_sources(config)
    names = public_names(config, state, sources)
    accounts = _network_accounts(config, ledger)
    known = _known_networks(config, state, accounts)
    _refuse_unexplained(config, sources, accounts, known)
    unrelated = _unrelated(config, sources, known)
    feeders = [
        FleetFeeder(
            key,
            names[key],
            feeder_config(config, key, source, names[key], known.continued.get(key, unrelated)),
        )
        for key, source in sources.items()
    ]
    return tuple(sorted(feeders, key=lambda feeder: feeder.name))


@dataclass(frozen=True)
class _Known:
    """PRIVATE. Key of a feeder, listed or not → account of its network.

    Attributes
    ----------
    continued : what an earlier fleet charged for it, or what the config says it continues.
    charged : all of that, and what this fleet charged for it.
    """

    continued: Mapping[str, str]
    charged: Mapping[str, str]

    def of(self, keys: Iterable[str]) -> set[str]:
        """Accounts of those feeders that have one."""
        return {self.charged[key] for key in keys if key in self.charged}


def _network_accounts(config: FleetConfig, ledger: Ledger) -> list[AccountSummary]:
    kind = mode_type(config.network).account_kind
    return [account for account in ledger.summary().accounts if account.kind is kind]


def _known_networks(config: FleetConfig, state: PrivateState, accounts: list[AccountSummary]) -> _Known:
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
    earlier = {} if fleet.continues is None else _charged_by(fleet.continues, state, accounts)
    continued = earlier | declared
    # Twins of another fleet may have the same ids; what this fleet pays is in its own accounts or in these.
    mine = [item for item in accounts if item.fleet == fleet.id or item.name in continued.values()]
    return _Known(continued, _charged_by(fleet.id, state, mine) | continued)


def _charged_by(fleet_id: str, state: PrivateState, accounts: list[AccountSummary]) -> dict[str, str]:
    """Key → account that a fleet charged for the feeder of that key."""
    ordered = sorted(accounts, key=lambda account: account.fleet == fleet_id)  # its own accounts win
    account_of = {spend.release_id: account.name for account in ordered for spend in account.spends}
    return {
        key: account_of[charged]
        for key, entry in read_register(state, fleet_id).items()
        for charged in entry.charged_under
        if charged in account_of
    }


def _refuse_unexplained(
    config: FleetConfig, keys: Collection[str], accounts: list[AccountSummary], known: _Known
) -> None:
    """A re-export of a network that was charged before must not start with a full budget."""
    fleet = config.fleet
    new = sorted(set(keys) - known.charged.keys())
    if not new:
        return
    named = frozenset() if fleet.unrelated is None else fleet.unrelated.accounts
    unknown = named - {account.name for account in accounts}
    if unknown:
        raise PrivacyError(
            f"fleet.unrelated names {spelled(unknown)}, and the ledger has {_list_of(accounts)} of that "
            "kind; name accounts that are there"
        )
    explained = known.of(keys) | named
    former = {account: key for key, account in known.charged.items() if account not in explained}
    # An account that this fleet opened and never charged has nothing to be used twice.
    others = {item.name for item in accounts if item.fleet != fleet.id or item.spends}
    outside = others - explained - former.keys()
    wanted = unrelated_line("unrelated", named | former.keys() | outside)
    if former:
        account, key = min(former.items())
        raise PrivacyError(
            f"feeder '{key}' was charged to account {account} and is no longer listed, while '{new[0]}' is "
            f"new; list it again, set continues_network = '{account}' under overrides of its new version, "
            f"or, if no feeder is a version of it, write under [fleet] {wanted}"
        )
    if outside:
        raise PrivacyError(
            f"the ledger has accounts of networks not of fleet '{fleet.id}': {spelled(outside)}; set "
            "fleet.continues to the earlier fleet whose feeders these are, continues_network under overrides "
            f"of a feeder, or, if no feeder is a version of those networks, write under [fleet] {wanted}"
        )


def _unrelated(config: FleetConfig, keys: Collection[str], known: _Known) -> Unrelated:
    """What the ledger records when the account of a feeder's network is opened."""
    fleet, also = config.fleet, config.fleet.unrelated
    reason = f"another feeder of fleet '{fleet.id}'"
    listed = frozenset(known.of(keys))
    if also is None:
        return Unrelated(listed, reason, fleet.id)
    return Unrelated(listed | also.accounts, f"{reason}; {also.reason}", fleet.id)


def _list_of(accounts: list[AccountSummary]) -> str:
    return spelled(account.name for account in accounts) or "none"
