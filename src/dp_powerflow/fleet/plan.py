"""What a fleet would cost, and which feeders would be refused: every feeder is examined, nothing is spent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dp_powerflow._parallel import Engine, engine_of
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fleet.accounts import feeders_of, plan_customers
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.dispatch import Dispatcher, Progressing
from dp_powerflow.fleet.events import OnEvent, hear_nothing
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.owner import FleetOwner
from dp_powerflow.fleet.publishing import shelf_of
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.pipeline.charging import refuse_unpayable
from dp_powerflow.pipeline.conversation import Examined
from dp_powerflow.pipeline.inputs import meters_of
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import Plan, never_charged, preview_network
from dp_powerflow.pipeline.receipts import open_ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.state import PrivateState

FEEDERS_PER_PROCESS = 100


@dataclass(frozen=True)
class FeederPlan:
    """INTERNAL. One feeder: what its network would be charged, or why it cannot be released."""

    key: str
    name: str
    released: bool
    problem: str | None
    network: Preview | None


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """INTERNAL. What a fleet would cost.

    Attributes
    ----------
    config : the fleet.
    cost : of one load model.
    loads : the account of the customers, before and after.
    feeders : in the order of public names.
    ingest : what reading the meters found; None for simulated loads.
    """

    config: FleetConfig
    cost: Plan
    loads: Preview
    feeders: tuple[FeederPlan, ...]
    ingest: IngestReport | None = None

    @property
    def possible(self) -> bool:
        """Whether every feeder would be released: none is refused, and all accounts have enough left."""
        networks = [plan.network for plan in self.feeders if plan.network is not None]
        affordable = self.loads.affordable and all(network.affordable for network in networks)
        return affordable and all(plan.problem is None for plan in self.feeders)

    def __repr__(self) -> str:
        released = sum(plan.released for plan in self.feeders)
        refused = sum(plan.problem is not None for plan in self.feeders)
        return (
            f"FleetPlan({self.config.fleet.id!r}: {len(self.feeders):,} feeders, {released:,} of them "
            f"released, {refused:,} that cannot be)"
        )


def plan_fleet(
    config: FleetConfig, *, engine: Engine | None = None, on_event: OnEvent = hear_nothing
) -> FleetPlan:
    """Plan a fleet; every feeder is opened, the ledger is looked at, nothing is recorded.

    Parameters
    ----------
    engine : where feeders are opened; by default on all cores.
    on_event : hears where every feeder is.
    """
    engine = engine or engine_of(None, None)
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    ledger, shelf = open_ledger(state), shelf_of(config.fleet.output, config.fleet.id)
    feeders = feeders_of(config, state, ledger)
    meters = meters_of(feeders[0].config, None)
    owner = FleetOwner(config, state, ledger, shelf, meters.history, feeders, lambda _: None, lambda _: None)
    dispatcher = Dispatcher(owner, feeders, on_event)
    with engine.crew(dispatcher.told, FEEDERS_PER_PROCESS) as crew:
        crew.give(owner.job(elsewhere=engine.splits))
        dispatcher.examine_all(crew)
    customers = plan_customers(config, feeders[0].config, state, meters.history)
    cost = customers.plan
    loads = ledger.preview(
        owner.meters.identity,
        cost.loads_cap,
        cost.loads_cost,
        continues=config.fleet.continues_loads,
        release_id=config.charged_under,
    )
    if config.model.reuse is not None and not loads.already_charged:
        raise never_charged(config.model.reuse)
    return FleetPlan(config, cost, loads, _feeder_plans(config, owner, dispatcher.ways), meters.ingest)


def _feeder_plans(
    config: FleetConfig, owner: FleetOwner, ways: Sequence[Progressing]
) -> tuple[FeederPlan, ...]:
    plans, alike = [], _Alike(config)
    for way in ways:
        feeder, network, problem = way.feeder, None, way.problem
        if way.examined is not None:
            try:
                network = _preview(owner, feeder, way.examined)
                if network.account is None:
                    problem = alike.problem(feeder, way.examined)
            except DpPowerflowError as error:
                problem = str(error)
            alike.add(feeder, way.examined)
        released = owner.shelf.has(feeder.name)
        plans.append(FeederPlan(feeder.key, feeder.name, released, problem, network))
    return tuple(plans)


def _preview(owner: FleetOwner, feeder: FleetFeeder, examined: Examined) -> Preview:
    """What the network would be charged; refused where it was begun otherwise."""
    mode = mode_of(feeder.config)
    planned, facts = owner.planned(feeder, examined)
    if not owner.shelf.has(feeder.name):
        refuse_unpayable(planned, facts, mode, owner.state, owner.ledger)
    return preview_network(owner.ledger, feeder.config, planned.network, examined.dataset)


class _Alike:
    """PRIVATE. Feeders of the same frame, as they are looked at."""

    def __init__(self, config: FleetConfig) -> None:
        named = config.fleet.same_frame
        self._named = frozenset() if named is None else frozenset(named.feeders)
        self._seen: dict[str, dict[str, str]] = {}  # frame → data set → key of the first feeder with it

    def add(self, feeder: FleetFeeder, examined: Examined) -> None:
        self._seen.setdefault(examined.frame, {}).setdefault(examined.dataset, feeder.key)

    def problem(self, feeder: FleetFeeder, examined: Examined) -> str | None:
        """Why a new feeder would be refused: another one has its frame, and nobody says that they differ."""
        others = self._seen.get(examined.frame, {})
        if examined.dataset in others or feeder.config.release.continues_network is not None:
            return None
        unnamed = [key for key in others.values() if {key, feeder.key} - self._named]
        if not unnamed:
            return None
        keys = sorted({feeder.key, *others.values(), *self._named})
        return (
            f"it has the nodes and connections of feeder '{unnamed[0]}'; list one of them if they are "
            "versions of one network, or else write under [fleet] same_frame = "
            f'{{ feeders = {json.dumps(keys)}, reason = "<why>" }}'
        )
