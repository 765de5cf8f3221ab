"""What a release would cost, before anything is spent, from public quantities only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dp_powerflow import __version__
from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import PlannedFit, planned_queries
from dp_powerflow.model.fit import history_facts
from dp_powerflow.pipeline.assembly import budget_of, fit_options_of
from dp_powerflow.pipeline.solar import Solar
from dp_powerflow.pipeline.twin import neighbours_of, twin_cap, twin_cost, twin_request, twin_section
from dp_powerflow.privacy.accounting import rho_to_epsilon, total_rho
from dp_powerflow.privacy.budget import QueryCost
from dp_powerflow.privacy.ledger.accounts import (
    GdpCap,
    GdpCost,
    InstanceCap,
    InstanceCost,
    LoadsCap,
    LoadsCost,
)

_NOT_PART_OF_THE_REQUEST = {
    "release": {"output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"},
    "feeder": {"source", "taps"},
    "loads": {"path", "services"},
    "pv": {"irradiance"},
}


@dataclass(frozen=True)
class NetworkCharge:
    """What the ledger is asked of the network.

    Attributes
    ----------
    paid_by : what the charge is recorded under: the release, or the twin that several releases share.
    request_sha256 : hash of everything that decides what is paid for.
    """

    cost: InstanceCost | GdpCost
    cap: InstanceCap | GdpCap
    paid_by: str
    request_sha256: str


@dataclass(frozen=True)
class Plan:
    """The cost of a release.

    Attributes
    ----------
    queries : every query of the fit, with its sensitivity, noise scale and cost; of second-round queries a
        typical scale.
    epsilon, delta, rho : what they add up to.
    loads_cost, loads_cap : what the ledger is asked of the customers.
    network : what it is asked of the network.
    request_sha256 : hash of everything public that decides the outcome.
    notes : public remarks, such as a budget too small to be useful.
    """

    queries: tuple[QueryCost, ...]
    rho: float
    epsilon: float
    delta: float
    loads_cost: LoadsCost
    loads_cap: LoadsCap
    network: NetworkCharge
    request_sha256: str
    notes: tuple[str, ...]


def plan_release(config: Config, history: LoadHistory, inputs: str) -> Plan:
    """Plan from the public facts of the history: its size, labels and scales; no reading is looked at.

    Which queries are asked and what they cost in ρ is public; the natural scale of second-round queries
    follows the released answers of the first round, so those scales are typical ones. The ledger is charged
    all that the budget allows.

    Parameters
    ----------
    inputs : keyed hash of everything private or in other files that decides the outcome (`input_chunks`).
    """
    reused = config.model.reuse is not None  # a model that is paid for: nothing is asked of the customers
    asked = PlannedFit((), ()) if reused else _planned_fit(config, history)
    rho = total_rho(asked.queries)
    request = _request(config, inputs)
    loads_cap = LoadsCap(
        config.release.epsilon_cap or config.model.epsilon, config.model.delta, budget_of(config).unit
    )
    return Plan(
        queries=asked.queries,
        rho=rho,
        epsilon=rho_to_epsilon(rho, config.model.delta),
        delta=config.model.delta,
        loads_cost=LoadsCost.reserve(budget_of(config)),
        loads_cap=loads_cap,
        network=network_charge(config, request),
        request_sha256=request,
        notes=asked.notes,
    )


def network_charge(config: Config, request_sha256: str) -> NetworkCharge:
    """The policy of a release on the true network, or the cost of its twin."""
    section = config.network
    if isinstance(section, TwinNetwork):
        return NetworkCharge(
            twin_cost(config), twin_cap(config), twin_section(config).id, twin_request(config)
        )
    unit = neighbours_in_words(config)
    cap = InstanceCap(
        config.release.network_epsilon_cap or section.epsilon,
        config.release.network_delta_cap or section.delta,
        unit,
    )
    return NetworkCharge(
        InstanceCost(section.epsilon, section.delta, unit), cap, config.release.id, request_sha256
    )


def neighbours_in_words(config: Config) -> str:
    """The neighbours of the network policy; constants only."""
    if isinstance(config.network, TwinNetwork):
        return neighbours_of(config)
    return f"changes of existing lines with Frobenius norm of at most r = {config.network.radius:g} p.u."


def network_chunks(feeder: Feeder) -> Iterator[bytes]:
    """The bytes that identify a network, for a keyed hash."""
    yield repr((feeder.nodes, feeder.base_mva)).encode()
    for array in (feeder.y.data, feeder.y.indices, feeder.y.indptr, feeder.v_slack):
        yield np.ascontiguousarray(array).tobytes()


def input_chunks(feeder: Feeder, history: LoadHistory, solar: Solar) -> Iterator[bytes]:
    """Everything beside the config that decides a release, for a keyed hash.

    The request of the ledger and the streams of the draws are bound to it: a file that changes under the same
    release id is refused, and the same draws never meet two inputs.
    """
    yield from network_chunks(feeder)
    yield repr((feeder.loads, feeder.pv, feeder.taps)).encode()
    yield np.ascontiguousarray(feeder.nominal_angle_deg).tobytes()
    yield b"" if solar.generation is None else np.ascontiguousarray(solar.generation).tobytes()
    yield repr(history.node_of).encode()
    yield from loads_chunks(history)


def loads_chunks(history: LoadHistory) -> Iterator[bytes]:
    """The bytes that identify meter data, for a keyed hash."""
    yield repr((history.load_points, history.days, history.step_minutes, history.class_label)).encode()
    yield b"" if history.scale_kw is None else np.ascontiguousarray(history.scale_kw).tobytes()
    for row in history.load_kw:
        yield np.ascontiguousarray(row).tobytes()
    for row in history.load_kvar if history.load_kvar is not None else ():
        yield np.ascontiguousarray(row).tobytes()


def _planned_fit(config: Config, history: LoadHistory) -> PlannedFit:
    options, budget = fit_options_of(config), budget_of(config)
    return planned_queries(history_facts(history, options, budget.unit), options, budget)


def _request(config: Config, inputs: str) -> str:
    public = config.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST)
    content = {"config": public, "inputs": inputs, "version": __version__}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
