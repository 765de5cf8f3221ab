"""A fleet: many feeders and one meter source become one corpus.

    check all → charge all in one transaction → fit → make each, publish each as it is done → fleet.json

    out/fleet.json               what is promised of the whole, and the SHA-256 of every feeder's manifest
    out/feeder=<public name>/…   a complete release, which can be verified by itself

Workers check and make whole feeders (`making`); this process charges, keeps and publishes. A feeder that
fails is reported to the data owner and does not stop the rest: that it failed may be a function of its
network, so nothing in `out` says so. Run again, a fleet continues with what is missing.

Feeders are charged in the order of their public names: a new account gets the next number, and the noise of a
twin is bound to it. So the released bytes do not depend on workers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Engine, Kept, Needs, engine_of
from dp_powerflow._spending import of_one_feeder, true_words
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import ChangedRequestError, ConfigError, DpPowerflowError, PrivacyError
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.customers import (
    Customers,
    customers_charge,
    keep_own_model,
    keep_shared_model,
    plan_customers,
    refuse_unfitted,
    refuse_without_model,
    services_of,
)
from dp_powerflow.fleet.feeders import FleetFeeder, feeders_of, source_files, write_register
from dp_powerflow.fleet.internal_page import (
    INTERNAL_PAGE,
    AccountRecord,
    FeederRecord,
    FleetRecord,
    internal_page,
)
from dp_powerflow.fleet.making import UNEXPECTED, Examined, FeederJob, Stage, Task
from dp_powerflow.fleet.names import ENDS, FeederEvent, FeederState, OnEvent, hear_nothing
from dp_powerflow.fleet.publishing import Shelf, shelf_of
from dp_powerflow.loads.history import LoadHistory, MeterFacts
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.manifest.model import MODEL_FILE, registered
from dp_powerflow.pipeline.inputs import keep_ingest, loads_chunks, meters_of, read_network
from dp_powerflow.pipeline.modes.base import INTERNAL, OWNER_FILE, NetworkFacts, mode_of, promise_warnings
from dp_powerflow.pipeline.plan import (
    REQUEST_FILE,
    Plan,
    Say,
    committed,
    is_begun,
    is_receipt,
    never_charged,
    open_ledger,
    plan_release,
    preview_network,
)
from dp_powerflow.pipeline.release import (
    CHANGED_MEANWHILE,
    Made,
    Paid,
    keep_begun,
    mended_words,
    network_charge,
    network_data,
    refuse_unpayable,
)
from dp_powerflow.privacy.ledger.accounts import Balance
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger, price
from dp_powerflow.privacy.ledger.records import Preview, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState

AHEAD = "dp_powerflow.fleet.making"
"""What a worker imports while the meters are read."""
FEEDERS_PER_PROCESS = 200
"""Feeders, examined or made, after which a worker process is replaced: an engine of dss-python keeps about
2 MB for ever, so that a process that opens thousands of feeders runs out of memory."""
MOST_BYTES = 512 * 2**20
"""Of networks that are kept between their check and their release."""
DRAWS_PER_NODE = 20
"""Customers that are drawn in the time in which a node is solved and written, about."""
LOST = (
    "its worker ended unexpectedly, perhaps for want of memory or because the feeder crashes OpenDSS; run "
    "the fleet again to resume"
)
CONFIG_FILE, FAILURES_FILE = "fleet-config.sha256", "failures.json"
_MAY_CHANGE = {
    "fleet": {
        *("feeders", "names", "output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"),
        *("unrelated", "same_frame", "unrelated_loads", "continues_loads"),
    },
    "feeder": {"taps"},
    "loads": {"path", "services"},
    "pv": {"irradiance"},
    "weather": {"path"},
}
"""What of a config may change between two runs of a fleet; the releases themselves check their inputs."""


@dataclass(frozen=True)
class Outcome:
    """INTERNAL. What became of one feeder.

    `problem` is a sentence, None if it is released; `code` is the kind of refusal.
    """

    key: str
    name: str
    problem: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class FleetResult:
    """INTERNAL. Where the corpus is, and what became of every feeder, in the order of public names.

    `warnings` are public: why releases protect, or say, less than their owner may expect.
    `ingest` is what reading the meters found; None for simulated loads, and where nothing was left to read.
    """

    path: Location
    outcomes: tuple[Outcome, ...]
    internal: Path
    warnings: tuple[str, ...] = ()
    ingest: IngestReport | None = None

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.problem is not None)

    def __repr__(self) -> str:
        failed, all_of = len(self.failed), len(self.outcomes)
        return (
            f"FleetResult({str(self.path)!r}: {all_of - failed:,} of {all_of:,} feeders released, "
            f"{failed:,} failed)"
        )


OnOutcome = Callable[[Outcome], None]


def run_fleet(
    config: FleetConfig,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    say: Say = lambda _: None,
    on_event: OnEvent = hear_nothing,
    on_outcome: OnOutcome = lambda _: None,
) -> FleetResult:
    """Make the releases of a fleet, or those that are missing.

    Parameters
    ----------
    workers : feeders made at once on this machine, None for one per core.
    engine : where the feeders are made instead, such as a Dask cluster.
    say : told what is being done for all feeders.
    on_event : hears where every feeder is.
    on_outcome : called after every feeder (INTERNAL).

    Raises
    ------
    DpPowerflowError : the config, the meter data, the ledger or the workers, which all feeders share, are
        not usable.
    """
    engine = engine or engine_of(workers, None)
    engine.check(Needs(config.fleet.output, source_files(config)))
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    internal = state.internal_directory(config.fleet.id)
    with true_words(begun=_is_begun(state, config.fleet.id)), only_process(internal):
        shelf = shelf_of(config.fleet.output, config.fleet.id)
        run = _Run(_Fleet(config, state, open_ledger(state)), engine, shelf, say, on_event, on_outcome)
        outcomes = run.all()
    return FleetResult(shelf.place, outcomes, internal, run.warned.sentences(), run.ingest)


# ------------------------------------------------------------------------------------- what is asked and paid


@dataclass(eq=False, repr=False)
class _Fleet:
    """PRIVATE. The data owner's side of a fleet: state, ledger, and once they are read the meters."""

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    history: LoadHistory | None = None
    feeders: tuple[FleetFeeder, ...] = ()

    @cached_property
    def meters(self) -> MeterFacts:
        """PUBLIC facts of the meters, under the keyed hash of the readings."""
        assert self.history is not None
        return self.history.facts(self.state.identity("loads", loads_chunks(self.history)))

    def customers(self) -> Customers:
        """What the load models cost."""
        assert self.history is not None
        some = self.feeders[0].config
        return plan_customers(self.config, some, self.state, self.history, self.meters.identity)

    def job(self) -> FeederJob:
        """What all workers get; the load model once it is there."""
        where = self.config.charged_under
        model = self.state.read_internal(where, MODEL_FILE)
        files = {} if model is None else {(where, MODEL_FILE): model}
        return FeederJob(self.state.stream_key(), self.state.root, self.meters, files)

    def task(
        self,
        feeder: FleetFeeder,
        paid: Paid | None = None,
        read: bytes | None = None,
        *,
        only_draws: bool = False,
    ) -> Task:
        """One feeder, with what the private state keeps of it but for receipts."""
        files: dict[tuple[str, str], bytes] = {}
        for where in filter(None, (feeder.release_id, mode_of(feeder.config).kept_under)):
            for _, names in self.state.internal_files(where):
                for name in names:
                    content = None if is_receipt(name) else self.state.read_internal(where, name)
                    if content is not None:
                        files[where, name] = content
        return Task(feeder.name, feeder.config, files, self._places(feeder), paid, read, only_draws)

    def examine(
        self,
        workers: Kept,
        feeders: Sequence[FleetFeeder],
        on_event: OnEvent,
        on_done: Callable[[Stage], None],
    ) -> None:
        """Have feeders examined; nothing is spent."""

        def tasks() -> Iterator[Task]:
            for feeder in feeders:
                on_event(FeederEvent(feeder.name, "checking"))
                yield self.task(feeder)

        workers.map(self.job(), tasks(), on_done, _lost)

    def plan(self, feeder: FleetFeeder, examined: Examined) -> tuple[Plan, NetworkFacts]:
        """What a feeder that has passed all checks costs, and what the ledger is asked about."""
        config, mode = feeder.config, mode_of(feeder.config)

        def figures(key: StreamKey) -> Mapping[str, str]:
            """Of a later version of a network, which is opened here once more: there are few of them."""
            network = read_network(config, self.state, self.meters.n_steps)
            now = mode.facts(network)
            if now.dataset != examined.dataset:
                raise PrivacyError(CHANGED_MEANWHILE)
            return now.figures(key)

        facts = NetworkFacts(examined.dataset, examined.frame, figures)
        plan = plan_release(config, self.meters, examined.inputs)
        asked = mode.charge_of(plan.network, facts, self.state, self.ledger)
        return replace(plan, network=asked), facts

    def refuse(self, feeder: FleetFeeder, plan: Plan, facts: NetworkFacts) -> None:
        """Refuse a feeder that was begun otherwise, or whose network cannot pay."""
        try:
            refuse_unpayable(plan, facts, mode_of(feeder.config), self.state, self.ledger)
        except ChangedRequestError:
            raise ChangedRequestError(
                f"release '{feeder.release_id}' was begun with another file of the feeder, other settings or "
                "another version of the program; restore them to finish it, or list the feeder in a fleet of "
                f"a new id, with fleet.continues and model.reuse = '{self.config.fleet.id}'"
            ) from None

    def problem_of(self, stage: Stage) -> tuple[str, str]:
        """Why a feeder failed; the text of a defect may quote private values, and stays with the owner."""
        if stage.defect is None:
            return stage.problem or LOST, stage.code
        name = f"{stage.name}-traceback.txt"
        kept = self.state.write_internal(self.config.fleet.id, name, stage.defect.encode())
        return f"a defect of the program; report it, the details are in {kept}", stage.code

    @cached_property
    def _services(self) -> Mapping[str, frozenset[str]] | None:
        assert self.history is not None
        return services_of(self.config, self.feeders, self.history)

    def _places(self, feeder: FleetFeeder) -> dict[int, str] | None:
        """The nodes of this feeder's load points alone: others may have nodes of the same name."""
        if self._services is None:
            return None
        assert self.history is not None
        own, history = self._services[feeder.name], self.history
        placed = enumerate(zip(history.load_points, history.node_of, strict=True))
        return {k: node for k, (point, node) in placed if node is not None and point in own}


@dataclass(frozen=True, eq=False, repr=False)
class _Bill:
    """PRIVATE. What one feeder is charged."""

    feeder: FleetFeeder
    examined: Examined
    plan: Plan
    facts: NetworkFacts

    @property
    def charge(self) -> Charge:
        return network_charge(network_data(self.feeder.config, self.plan, self.facts), self.plan)


@dataclass(eq=False, repr=False)
class _Till:
    """PRIVATE. Charges the customers of a fleet and all networks that are examined, in one transaction.

    Attributes
    ----------
    loads : the charge of the customers, to be made or made already.
    refused : public name → why a feeder is not charged; it costs nothing and does not keep the others from
        being charged.
    """

    fleet: _Fleet
    customers: Customers
    loads: Charge | Spend
    paid: dict[str, Paid] = field(default_factory=dict)
    refused: dict[str, DpPowerflowError] = field(default_factory=dict)

    def charge(self, examined: Sequence[tuple[FleetFeeder, Examined]]) -> None:
        """Charge feeders that have passed all checks, in this order.

        Of feeders that share an account the first is charged with the rest, the others in transactions that
        follow: what they cost depends on what was charged before.
        """
        left = list(examined)
        while left:
            accounts, together, later = set[str](), list[_Bill](), list[tuple[FleetFeeder, Examined]]()
            for feeder, found in left:
                account = self._account_of(feeder, found)
                if account in accounts:
                    later.append((feeder, found))
                    continue
                accounts.add(account)
                try:
                    refuse_without_model(self.fleet.config, feeder, self.fleet.state, self.customers)
                    plan, facts = self.fleet.plan(feeder, found)
                    self.fleet.refuse(feeder, plan, facts)
                    together.append(_Bill(feeder, found, plan, facts))
                except DpPowerflowError as error:
                    self.refused[feeder.name] = error
            self._charge(together)
            left = later

    def _account_of(self, feeder: FleetFeeder, examined: Examined) -> str:
        """What tells whether two feeders share an account."""
        kind = registered(feeder.config.network.mode).account_kind
        account = self.fleet.ledger.find(kind, examined.dataset)
        if account is not None:
            return account.name
        return feeder.config.release.continues_network or examined.dataset

    def _charge(self, bills: Sequence[_Bill]) -> None:
        """All together; if that is refused, one by one, to find out whom it is about."""
        own = [self.loads] if isinstance(self.loads, Charge) else []
        try:
            spends = self.fleet.ledger.charge_all([*own, *(bill.charge for bill in bills)]) if bills else ()
        except PrivacyError as error:
            if len(bills) == 1:
                self.refused[bills[0].feeder.name] = error
            else:
                for bill in bills:
                    self._charge([bill])
            return
        state, ledger = self.fleet.state, self.fleet.ledger
        if own and bills:
            self.loads = spends[0]
            keep_begun(state, self.fleet.config.fleet.id, self.customers.request_sha256, self.loads)
        for bill, spend in zip(bills, spends[len(own) :], strict=True):
            assert isinstance(self.loads, Spend)
            keep_begun(state, bill.feeder.release_id, bill.plan.request_sha256, self.loads, spend)
            network = ledger.balance_after(spend)
            found = bill.examined
            paid = Paid(found.dataset, found.inputs, self.loads_balance, network, spend)
            self.paid[bill.feeder.name] = paid

    @cached_property
    def loads_balance(self) -> Balance:
        """How the account of the customers stood just after the charge."""
        assert isinstance(self.loads, Spend)
        return self.fleet.ledger.balance_after(self.loads)

    def record(self) -> AccountRecord | None:
        """INTERNAL. The account of the customers, if they were charged."""
        return _account_record(self.loads, self.loads_balance) if isinstance(self.loads, Spend) else None


def _lost(task: Task) -> Stage:
    return Stage(task.name, problem=LOST)


def _account_record(spend: Spend, balance: Balance) -> AccountRecord:
    cost = price(balance.cap, spend.cost)
    return AccountRecord(spend.account, cost.epsilon, cost.delta, balance.available.epsilon)


# -------------------------------------------------------------------------------------------------- the run


@dataclass(eq=False, repr=False)
class _Way:
    """PRIVATE. One feeder on its way."""

    feeder: FleetFeeder
    state: FeederState
    examined: Examined | None = None
    paid: Paid | None = None
    made: Made | None = None
    problem: str | None = None
    code: str | None = None
    seconds: float = 0.0

    @property
    def work(self) -> int:
        """What making it takes, about, in node-days; to draw a customer takes less than to solve a node."""
        if self.examined is None:
            return 0
        return (self.examined.nodes + self.examined.draws // DRAWS_PER_NODE) * self.feeder.config.release.days


@dataclass(eq=False, repr=False)
class _Run:
    """One run of a fleet; PRIVATE."""

    fleet: _Fleet
    engine: Engine
    shelf: Shelf
    say: Say
    on_event: OnEvent
    on_outcome: OnOutcome
    warned: Warned = field(default_factory=lambda: Warned())
    ingest: IngestReport | None = None
    ways: dict[str, _Way] = field(default_factory=dict)
    till: _Till | None = None
    config_kept: bool = False
    room: int = MOST_BYTES

    def all(self) -> tuple[Outcome, ...]:
        """Make what is missing; whatever ends the run, `fleet.json` says what is there."""
        fleet, config, state = self.fleet, self.fleet.config, self.fleet.state
        fleet.feeders = feeders_of(config, state, fleet.ledger)
        self.shelf.refuse_other_contents()
        self.shelf.refuse_other_states(partial(committed, state), partial(is_begun, state))
        missing = [feeder for feeder in fleet.feeders if not self.shelf.has(feeder.name)]
        if missing:
            self._refuse_another_config()
            self.shelf.prepare()
        write_register(state, config.fleet.id, fleet.feeders)
        waiting = {feeder.name for feeder in missing}
        for feeder in fleet.feeders:
            self.ways[feeder.name] = _Way(feeder, "waiting" if feeder.name in waiting else "released")
            self._event(self.ways[feeder.name], self.ways[feeder.name].state)
        try:
            if missing:
                with self.engine.kept(AHEAD, len(missing), FEEDERS_PER_PROCESS) as workers:
                    self._make([self.ways[feeder.name] for feeder in missing], workers)
        finally:
            self.say("what is said of the whole")
            self.shelf.discard_staging(keep=waiting)
            self.shelf.write_manifest(config.fleet.models)
            self._write_internal()
        return tuple(map(_outcome, self.ways.values()))

    def _make(self, missing: Sequence[_Way], workers: Kept) -> None:
        """What all feeders share stops the run; what belongs to one feeder does not.

        A fleet that cannot release anything costs nothing.
        """
        fleet, config, state = self.fleet, self.fleet.config, self.fleet.state
        self.say("reading the meter data")
        self._read_meters(missing[0].feeder)
        customers = fleet.customers()
        for warning in customers.plan.warnings:
            self.say(warning)
        self.warned.of_all(*customers.plan.warnings, *customers.plan.notes)

        self.say("checking all feeders")
        fleet.examine(workers, [way.feeder for way in missing], self.on_event, self._examined)
        for way in missing:
            if way.examined is None and way.problem is None:
                self._fail(way, LOST, UNEXPECTED)
        good = [(way.feeder, way.examined) for way in missing if way.examined is not None]
        if not good:
            return

        self.say("charging customers and networks")
        loads = customers_charge(config, state, fleet.ledger, customers)
        self.till = _Till(fleet, customers, loads)
        self.till.charge(good)
        for name, error in self.till.refused.items():
            self._fail(self.ways[name], str(error), error.code)
        paid = [self.ways[name] for name in self.till.paid]
        if not paid:
            return
        for way in paid:
            way.paid = self.till.paid[way.feeder.name]
            self._event(way, "paid")

        self.say("fitting the load model")
        keep_shared_model(config, missing[0].feeder.config, state, customers)

        self.say("making the feeders")
        if self.shelf.in_place:
            workers.map(fleet.job(), self._tasks(paid, customers, only_draws=True), self._drawn, _lost)
        workers.map(fleet.job(), self._tasks(paid, customers), self._made, _lost)
        for way in missing:  # none is left without a word, whatever the workers did
            if way.state not in ENDS:
                self._fail(way, LOST, UNEXPECTED)

    def _tasks(
        self, paid: Sequence[_Way], customers: Customers, *, only_draws: bool = False
    ) -> Iterator[Task]:
        """What is paid, the largest first; a model of its own is fitted before."""
        for way in sorted(paid, key=lambda way: -way.work):
            if way.problem is not None:
                continue
            try:
                keep_own_model(self.fleet.config, way.feeder, self.fleet.state, customers)
            except DpPowerflowError as error:
                self._fail(way, str(error), error.code)
                continue
            if not only_draws:
                self._event(way, "solving")
            read = None if way.examined is None else way.examined.feeder
            yield self.fleet.task(way.feeder, way.paid, read, only_draws=only_draws)
            if way.examined is not None and not only_draws:
                way.examined = replace(way.examined, feeder=None)

    def _examined(self, stage: Stage) -> None:
        way = self.ways[stage.name]
        if isinstance(stage.said, Examined):
            way.examined, way.seconds = stage.said, stage.seconds
            self.room -= len(stage.said.feeder or b"")
            if self.room < 0:  # it is read again
                way.examined = replace(stage.said, feeder=None)
            self._event(way, "checked")
        else:
            self._fail(way, *self.fleet.problem_of(stage))

    def _drawn(self, stage: Stage) -> None:
        self._keep(stage)

    def _keep(self, stage: Stage) -> _Way:
        """Keep what a worker wrote for the private state."""
        way = self.ways[stage.name]
        way.seconds += stage.seconds
        for (where, name), content in stage.files.items():
            self.fleet.state.write_internal(where, name, content)
        if stage.problem is not None or stage.defect is not None:
            self._fail(way, *self.fleet.problem_of(stage))
        return way

    def _made(self, stage: Stage) -> None:
        """Keep what a worker wrote, then put the feeder into the corpus."""
        way = self._keep(stage)
        if way.problem is None and not isinstance(stage.said, Made):
            self._fail(way, *self.fleet.problem_of(stage))
        if way.problem is not None or not isinstance(stage.said, Made):
            return
        try:
            self.shelf.publish(way.feeder.name)
        except DpPowerflowError as error:
            self._fail(way, str(error), error.code)
            return
        way.made = stage.said
        config, name = way.feeder.config, way.feeder.name
        self.warned.of_all(*promise_warnings(config), *way.made.notes)
        mended = mended_words(way.made, config.release.days * self.fleet.meters.n_steps)
        self.warned.of_feeder(name, *mended, *(way.examined.warnings if way.examined else ()))
        if not self.config_kept:  # from the first released feeder on, the config of the fleet stays
            whole = self.fleet.config
            self.fleet.state.write_internal(whole.fleet.id, CONFIG_FILE, _config_sha256(whole).encode())
            self.config_kept = True
        self._end(way, "released")

    def _fail(self, way: _Way, problem: str, code: str) -> None:
        """A feeder has failed; where others may read, nothing of it stays."""
        begun = way.paid is not None or is_begun(self.fleet.state, way.feeder.release_id)
        way.problem, way.code = of_one_feeder(problem, paid=begun), code
        if begun:
            try:
                self.shelf.abandon(way.feeder.name, way.feeder.release_id)
            except DpPowerflowError as error:
                way.problem = f"{way.problem}; and what it left cannot be removed: {error}"
        self._end(way, "failed")

    def _end(self, way: _Way, state: FeederState) -> None:
        self._event(way, state)
        self.on_outcome(_outcome(way))

    def _event(self, way: _Way, state: FeederState) -> None:
        way.state = state
        self.on_event(FeederEvent(way.feeder.name, state))

    def _read_meters(self, feeder: FleetFeeder) -> None:
        """PRIVATE. The meter data, read once for all feeders; what was found is kept and told."""
        meters = meters_of(feeder.config, None)
        if meters.ingest is not None:
            keep_ingest(self.fleet.state, self.fleet.config.fleet.id, meters.ingest)
            self.ingest = meters.ingest
        self.fleet.history = meters.history

    def _write_internal(self) -> None:
        """INTERNAL. What became of every feeder: for programs, and as a page."""
        fleet_id, state = self.fleet.config.fleet.id, self.fleet.state
        failed = [
            {"feeder": way.feeder.key, "name": name, "code": way.code, "problem": way.problem}
            for name, way in self.ways.items()
            if way.problem is not None
        ]
        waiting = {name for name, way in self.ways.items() if way.state == "waiting"}  # not come to them
        failed += [item for item in read_failures(state, fleet_id) if item.get("name") in waiting]
        content = {"marking": INTERNAL, "fleet": fleet_id, "failed": failed}
        state.write_internal(
            fleet_id, FAILURES_FILE, json.dumps(content, indent=1, ensure_ascii=False).encode()
        )
        records = tuple(self._record(self.ways[name]) for name in sorted(self.ways))
        customers = None if self.till is None else self.till.record()
        page = internal_page(FleetRecord(fleet_id, records, customers, self.warned.sentences())).to_html()
        state.write_internal(fleet_id, INTERNAL_PAGE, page)

    def _record(self, way: _Way) -> FeederRecord:
        feeder, found, paid = way.feeder, way.examined, way.paid
        return FeederRecord(
            feeder.key,
            feeder.name,
            way.state,
            problem=way.problem,
            release_id=feeder.release_id,
            seconds=way.seconds or None,
            network=None if paid is None else _account_record(paid.spend, paid.network),
            nodes=None if found is None else found.nodes,
            days=None if found is None else feeder.config.release.days,
            corpus_bytes=None if found is None else found.corpus_bytes,
            owner=self.fleet.state.read_internal(feeder.release_id, OWNER_FILE),
            warnings=() if found is None else found.warnings,
        )

    def _refuse_another_config(self) -> None:
        config = self.fleet.config
        kept = self.fleet.state.read_internal(config.fleet.id, CONFIG_FILE)
        if kept is not None and kept.decode(errors="replace") != _config_sha256(config):
            raise ConfigError(
                f"feeders of fleet '{config.fleet.id}' were released with another config; restore it, put "
                "what one feeder needs under overrides, or choose a new fleet id and set model.reuse to the "
                "old one",
                code="request-changed",
            )


def _outcome(way: _Way) -> Outcome:
    return Outcome(way.feeder.key, way.feeder.name, way.problem, way.code)


def _is_begun(state: PrivateState, fleet_id: str) -> bool:
    """Whether an earlier run has charged the customers or a feeder."""
    every = ((kept, names) for kept, names in state.internal_files() if kept.partition("_")[0] == fleet_id)
    return any(REQUEST_FILE in names for _, names in every)


def read_failures(state: PrivateState, fleet_id: str) -> list[dict[str, str | None]]:
    """INTERNAL. Feeders that failed in the last run: key, public name, code and why; none if damaged."""
    try:
        failed = json.loads(state.read_internal(fleet_id, FAILURES_FILE) or b"")["failed"]
        whole = all(isinstance(item[key], str) for item in failed for key in ("feeder", "name"))
        return [dict(item) for item in failed] if whole else []
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _config_sha256(config: FleetConfig) -> str:
    """Hash of the public choices that all feeders of a fleet share."""
    # Without what is left at its default: a key that a later version adds is no change of this config.
    public = config.model_dump(mode="json", exclude=_MAY_CHANGE, exclude_defaults=True)
    public.pop("overrides", None)
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


_FIGURE = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")


@dataclass(eq=False)
class Warned:
    """What the feeders of a fleet were warned of, in the order in which it came up.

    Sentences that differ in figures only are one.
    """

    _of_all: dict[str, None] = field(default_factory=dict)
    _of_feeders: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def of_all(self, *sentences: str) -> None:
        """What holds for the whole fleet, or for all feeders alike."""
        self._of_all.update(dict.fromkeys(sentences))

    def of_feeder(self, name: str, *sentences: str) -> None:
        """What holds for one feeder, by its public name."""
        for sentence in sentences:
            self._of_feeders.setdefault(_FIGURE.sub("#", sentence), []).append((name, sentence))

    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        return (*map(_in_one, self._of_feeders.values()), *self._of_all)


def _in_one(told: list[tuple[str, str]]) -> str:
    name, sentence = min(told)
    others = f" and {len(told) - 1:,} more, with figures of their own" if len(told) > 1 else ""
    return f"{name}{others}: {sentence}"


# ------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class FeederPlan:
    """INTERNAL. One feeder: what its network would be charged, or why it cannot be released."""

    key: str
    name: str
    released: bool
    problem: str | None
    network: Preview | None
    code: str | None = None


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
    fleet = _Fleet(config, state, open_ledger(state))
    fleet.feeders = feeders_of(config, state, fleet.ledger)
    found: dict[str, Stage] = {}

    def examined(stage: Stage) -> None:
        found[stage.name] = stage
        on_event(FeederEvent(stage.name, "failed" if stage.said is None else "released"))

    with engine.kept(AHEAD, len(fleet.feeders), FEEDERS_PER_PROCESS) as workers:
        meters = meters_of(fleet.feeders[0].config, None)
        fleet.history = meters.history
        customers = fleet.customers()
        fleet.examine(workers, fleet.feeders, on_event, examined)
    cost = customers.plan
    data = ChargedData(fleet.meters.identity, cost.loads_cap, config.fleet.continues_loads)
    loads = fleet.ledger.preview(data, cost.loads_cost, config.charged_under)
    if config.model.reuse is not None and not loads.already_charged:
        raise never_charged(config.model.reuse)
    refuse_unfitted(config, state)
    shelf, alike = shelf_of(config.fleet.output, config.fleet.id), _Alike(config)
    plans = tuple(_feeder_plan(fleet, shelf, alike, feeder, found[feeder.name]) for feeder in fleet.feeders)
    return FleetPlan(config, cost, loads, plans, meters.ingest)


def _feeder_plan(fleet: _Fleet, shelf: Shelf, alike: _Alike, feeder: FleetFeeder, stage: Stage) -> FeederPlan:
    """What the network would be charged; refused where it was begun otherwise."""
    released, examined = shelf.has(feeder.name), stage.said
    problem: str | None = None
    network, code = None, UNEXPECTED
    if examined is None:
        problem, code = fleet.problem_of(stage)
    if isinstance(examined, Examined):
        try:
            plan, facts = fleet.plan(feeder, examined)
            if not released:
                fleet.refuse(feeder, plan, facts)
            network = preview_network(fleet.ledger, feeder.config, plan.network, examined.dataset)
            if network.account is None:
                alike.refuse(feeder, examined)
        except DpPowerflowError as error:
            problem, code = str(error), error.code
        alike.add(feeder, examined)
    return FeederPlan(feeder.key, feeder.name, released, problem, network, code if problem else None)


class _Alike:
    """PRIVATE. Feeders of the same frame, as they are looked at."""

    def __init__(self, config: FleetConfig) -> None:
        named = config.fleet.same_frame
        self._named = frozenset() if named is None else frozenset(named.feeders)
        self._seen: dict[str, dict[str, str]] = {}  # frame → data set → key of the first feeder with it

    def add(self, feeder: FleetFeeder, examined: Examined) -> None:
        self._seen.setdefault(examined.frame, {}).setdefault(examined.dataset, feeder.key)

    def refuse(self, feeder: FleetFeeder, examined: Examined) -> None:
        """Refuse a new feeder with the frame of another one, if nobody says that they differ."""
        others = self._seen.get(examined.frame, {})
        if examined.dataset in others or feeder.config.release.continues_network is not None:
            return
        unnamed = [key for key in others.values() if {key, feeder.key} - self._named]
        if unnamed:
            keys = sorted({feeder.key, *others.values(), *self._named})
            raise PrivacyError(
                f"it has the nodes and connections of feeder '{unnamed[0]}'; list one of them if they are "
                "versions of one network, or else write under [fleet] same_frame = "
                f'{{ feeders = {json.dumps(keys)}, reason = "<why>" }}'
            )


@dataclass(frozen=True)
class Refusal:
    """INTERNAL. One kind of refusal, and the feeders that it holds for.

    Attributes
    ----------
    code : the kind.
    feeders : key of each, and the sentence that refuses it.
    """

    code: str
    feeders: tuple[tuple[str, str], ...]


def refusals(plans: Sequence[FeederPlan]) -> list[Refusal]:
    """Feeders that cannot be released, by the kind of refusal, those of most feeders first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for plan in plans:
        if plan.problem is not None:
            groups.setdefault(plan.code or UNEXPECTED, []).append((plan.key, plan.problem))
    found = [Refusal(code, tuple(feeders)) for code, feeders in groups.items()]
    return sorted(found, key=lambda refusal: -len(refusal.feeders))
