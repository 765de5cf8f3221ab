"""The networks of a fleet and the ledger: every feeder is a secret of its own, with an account of its own.

The ledger asks of every new network whether it continues an account or is unrelated to all others. Within a
fleet the list of feeders answers: they are different networks. About networks charged outside the fleet only
the data owner can answer, once, in the config.
"""

from __future__ import annotations

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet_config import FleetConfig
from dp_powerflow.privacy.ledger import Ledger
from dp_powerflow.privacy.ledger_kinds import AccountKind
from dp_powerflow.privacy.ledger_records import AccountSummary
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.release.fleet_feeders import (
    FleetFeeder,
    feeder_config,
    find_sources,
    own_reason,
    public_names,
    read_register,
)


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
    continued = _continued(config, state, accounts)
    _refuse_unexplained(config, accounts, set(continued.values()))
    feeders = [
        FleetFeeder(key, names[key], feeder_config(config, key, source, names[key], continued.get(key)))
        for key, source in sources.items()
    ]
    return tuple(sorted(feeders, key=lambda feeder: feeder.name))


def _network_accounts(config: FleetConfig, ledger: Ledger) -> list[AccountSummary]:
    on_twin = config.network.mode == "twin-network"
    kind = AccountKind.NETWORK_GDP if on_twin else AccountKind.NETWORK_INSTANCE
    return [account for account in ledger.summary().accounts if account.kind is kind]


def _continued(config: FleetConfig, state: PrivateState, accounts: list[AccountSummary]) -> dict[str, str]:
    """Key → account that the earlier fleet charged for the feeder of that key."""
    if config.fleet.continues is None:
        return {}
    account_of = {spend.release_id: account.name for account in accounts for spend in account.spends}
    return {
        key: account_of[charged]
        for key, entry in read_register(state, config.fleet.continues).items()
        for charged in entry.charged_under
        if charged in account_of
    }


def _refuse_unexplained(config: FleetConfig, accounts: list[AccountSummary], continued: set[str]) -> None:
    """A re-export of a network that was charged before must not start with a full budget."""
    if config.fleet.unrelated:
        return
    own = own_reason(config.fleet.id)
    outside = [
        account.name
        for account in accounts
        if account.name not in continued and not account.changes[0].reason.startswith(own)
    ]
    if outside:
        raise PrivacyError(
            f"the ledger has accounts of networks from outside fleet '{config.fleet.id}', such as "
            f"{outside[0]}; set fleet.continues to the earlier fleet whose feeders these are, or "
            "fleet.unrelated to the reason why none of these feeders is a version of those networks"
        )
