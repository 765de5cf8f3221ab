"""The twin of a release: its cost from public constants; paid for once, drawn once, kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.parameters import NetworkParameters
from dp_powerflow.privacy.ledger.accounts import GdpCap, GdpCost
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import FORMAT, Twin, draw_twin, parameters_of, rebuilder_of
from dp_powerflow.twin.guarantee import TwinGuarantee, neighbours_in_words, twin_guarantee
from dp_powerflow.twin.spread import LOG_GRID, Spread


def twin_section(config: Config) -> TwinNetwork:
    """The section [network] of mode 'twin-network'."""
    if not isinstance(config.network, TwinNetwork):
        raise ConfigError("the config has no twin; network.mode = 'twin-network' needs one")
    return config.network


def spread_of(config: Config) -> Spread:
    """The public noise of the twin."""
    section = twin_section(config)
    return Spread(
        length=section.length,
        resistance=section.resistance,
        reactance=section.reactance,
        transformer=section.transformer,
        capacitor=section.capacitor,
        pv=section.pv,
        code_epsilon=section.code_epsilon,
    )


def guarantee_of(config: Config) -> TwinGuarantee:
    """What the twin promises; refused if that is more than the policy of the network allows."""
    section, network = twin_section(config), config.network
    promised = twin_guarantee(spread_of(config), section.change, network.delta)
    if promised.epsilon > network.epsilon:
        raise ConfigError(
            f"the twin's spread gives ε = {promised.epsilon:.4g} at δ = {network.delta:g} for a change by a "
            f"factor of {1.0 + section.change:g}, above network.epsilon = {network.epsilon:g}; raise the "
            "spreads, or the policy"
        )
    return promised


def neighbours_of(config: Config) -> str:
    """Whom the twin hides the difference of, in words of public constants."""
    return neighbours_in_words(spread_of(config), twin_section(config).change)


def twin_cost(config: Config) -> GdpCost:
    """What drawing the twin costs the network."""
    return GdpCost(guarantee_of(config).mu, neighbours_of(config))


def twin_cap(config: Config) -> GdpCap:
    """The most that all twins of the network may cost."""
    epsilon = config.release.network_epsilon_cap or config.network.epsilon
    return GdpCap.from_epsilon(epsilon, config.network.delta, neighbours_of(config))


def twin_request(config: Config) -> str:
    """Hash of all the public choices that decide the twin: a release with others under its id is refused."""
    section = twin_section(config)
    content = {
        "format": FORMAT,
        "id": section.id,
        "change": section.change,
        "delta": config.network.delta,
        "spread": asdict(spread_of(config)),
        "grid": LOG_GRID,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parameter_chunks(parameters: NetworkParameters) -> Iterator[bytes]:
    """The bytes that identify what a twin is drawn from, for a keyed hash."""
    for key, level in sorted(parameters.levels.items()):
        yield repr((key.quantity.value, key.element, level)).encode()
    yield repr(parameters.coded).encode()


def twin_feeder(config: Config, state: PrivateState, feeder: Feeder, dataset: str) -> Feeder:
    """The network of the twin: the one already drawn for this network, or a fresh draw. Pay first.

    Parameters
    ----------
    dataset : identity of the network's account, which the draws are bound to.
    """
    twin = stored_twin(config, state, dataset)
    if twin is None:
        section, spread = twin_section(config), spread_of(config)
        key = twin_key(config, state, dataset)
        twin = draw_twin(parameters_of(rebuilder_of(feeder, spread), spread), spread, key)
        state.write_internal(_directory(section), _file(dataset), twin.to_json().encode())
    return twin.feeder(rebuilder_of(feeder, twin.spread, drop_islanded=config.feeder.drop_islanded))


def twin_key(config: Config, state: PrivateState, dataset: str) -> StreamKey:
    """The key of the twin's noise, bound to the twin, to the network and to every public choice."""
    key = state.stream_key().bind("twin", twin_section(config).id).bind("network", dataset)
    return key.bind("request", twin_request(config))


def stored_twin(config: Config, state: PrivateState, dataset: str) -> Twin | None:
    """The twin kept in the private state; None if it was never drawn."""
    stored = state.read_internal(_directory(twin_section(config)), _file(dataset))
    twin = None if stored is None else Twin.from_json(stored.decode())
    if twin is not None and twin.spread != spread_of(config):
        raise PrivacyError(
            f"the kept twin '{twin_section(config).id}' has other spreads than the config; restore "
            "them, or choose a new twin id"
        )
    return twin


def _directory(section: TwinNetwork) -> str:
    return f"twin-{section.id}"


def _file(dataset: str) -> str:
    return f"twin-{dataset[:16]}.json"
