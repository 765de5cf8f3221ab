"""A fleet: many feeders and one meter source become one corpus.

    check all → charge all in one transaction → fit → make each, publish each as it is done → fleet.json

    out/fleet.json               what is promised of the whole, and the SHA-256 of every feeder's manifest
    out/feeder=<public name>/…   a complete release, which can be verified by itself
    state/internal/<fleet>/failures.json   INTERNAL, which feeders failed and why

Workers check and make whole feeders (`FeederJob`); this process charges, keeps and publishes. A feeder that
fails is reported to the data owner and does not stop the rest: that it failed may be a function of its
network, so nothing in `out` says so. Run again, a fleet continues with what is missing.

The customers have one load model and one charge, whatever the number of feeders: every feeder's release
reuses the model. Feeders are charged in the order of their public names: a new account gets the next number,
and the noise of a twin is bound to it. So the released bytes do not depend on workers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dp_powerflow._ending import NO_MEMORY
from dp_powerflow._files import only_process
from dp_powerflow._names import __version__
from dp_powerflow._parallel import Engine, Kept, Threads
from dp_powerflow._spending import of_one_feeder, true_words
from dp_powerflow._threads import cores
from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import (
    ChangedRequestError,
    ConfigError,
    DpPowerflowError,
    PrivacyError,
    ServiceMapError,
)
from dp_powerflow.fleet.feeders import FleetConfig, FleetFeeder, feeders_of, write_register
from dp_powerflow.fleet.publishing import Shelf
from dp_powerflow.loads.declared import read_service_rows
from dp_powerflow.loads.history import MeterFacts, refuse_alike
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.manifest.model import MODEL_FILE, registered
from dp_powerflow.pipeline.inputs import (
    DRAWS,
    FIT,
    Almanac,
    Meters,
    almanac_of,
    keep_ingest,
    loads_chunks,
    meters_of,
    read_network,
)
from dp_powerflow.pipeline.modes.base import INTERNAL, NetworkFacts, Progress, mode_of, promise_warnings
from dp_powerflow.pipeline.plan import (
    REQUEST_FILE,
    Plan,
    Say,
    committed,
    is_begun,
    is_receipt,
    keep_derived_model,
    kept_model,
    make_ready,
    open_ledger,
    plan_release,
    preview_network,
    refuse_another_model,
    refuse_unpaid_model,
    was_charged,
)
from dp_powerflow.pipeline.release import (
    CHANGED_MEANWHILE,
    Made,
    Paid,
    draw,
    end_key,
    fitted_model,
    is_new,
    keep_begun,
    make,
    make_keys,
    network_charge,
    place_kept,
    ready_writer,
    refuse_another_request,
    refuse_unpayable,
    reused_charge,
    scaled_down_words,
)
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger
from dp_powerflow.privacy.ledger.records import Preview, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import CarriedState, Files, PrivateState

UNEXPECTED = "unexpected"
"""Code of what is no refusal: a defect, a lost worker, a file that cannot be read."""
TRACEBACK = "traceback.txt"
"""Where the private state keeps what is known of a defect; it may quote private values."""
FEEDERS_PER_PROCESS = 200
"""Feeders, examined or made, after which a worker process is replaced: an engine of dss-python keeps about
2 MB for ever, so that a process that opens thousands of feeders runs out of memory."""
LOST = DpPowerflowError(
    "its worker ended unexpectedly, perhaps for want of memory or because the feeder crashes OpenDSS; run "
    "the fleet again to resume",
    code=UNEXPECTED,
)
CONFIG_FILE, FAILURES_FILE = "fleet-config.sha256", "failures.json"
_FIXED = ("feeder", "model", "nodes", "calendar", "publication", "network")
"""Sections that do not change between two runs of a fleet; the releases themselves check their inputs."""
_NOT_PART_OF_THE_REQUEST = {"path", "services", "classes"}
_FIGURE = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Outcome:
    """INTERNAL. What became of one feeder, or what a plan finds of it.

    Attributes
    ----------
    problem : why it is not, or would not be, released; None if it is.
    code : the kind of refusal.
    released : whether it is in the corpus.
    network : of a plan, what its network would be charged.
    """

    key: str
    name: str
    problem: str | None = None
    code: str | None = None
    released: bool = False
    network: Preview | None = None


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


def run_fleet(
    config: FleetConfig, *, engine: Engine, say: Say = lambda _: None, progress: Progress | None = None
) -> FleetResult:
    """Make the releases of a fleet, or those that are missing.

    Parameters
    ----------
    engine : where the feeders are made, such as a Dask cluster.
    say, progress : told what is being done, and how many feeders are released or failed.

    Raises
    ------
    DpPowerflowError : the config, the meter data, the ledger or the workers, which all feeders share, are
        not usable.
    """
    engine.check(config.fleet.output)
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    internal = state.internal_directory(config.fleet.id)
    with true_words(begun=_is_begun(state, config)), only_process(internal):
        run = _Run.open(config, state)
        run.say, run.progress = say, progress or run.progress
        run.make_missing(engine)
    outcomes = tuple(way.outcome for way in run.ways.values())
    return FleetResult(run.shelf.place, outcomes, internal, tuple(run.warnings()), run.ingest)


def _is_begun(state: PrivateState, config: FleetConfig) -> bool:
    """Whether an earlier run has charged the customers or a feeder."""
    twins = getattr(config.network, "id", None) or config.fleet.id

    def own(charged: str) -> bool:
        return charged.partition("_")[0] in (config.fleet.id, twins)

    begun = (kept for kept, names in state.internal_files() if REQUEST_FILE in names)
    return any(kept.partition("_")[0] == config.fleet.id for kept in begun) or was_charged(state, own)


def read_feeder_map(path: Path) -> dict[str, tuple[str, ...]]:
    """Key of a feeder → its load points, from the PUBLIC column `feeder` of a service map.

    Load points without a feeder belong to none; a load point on two feeders is refused.
    """
    rows = read_service_rows(path, ("load_point", "feeder"), ", which the column 'node' needs in a fleet")
    feeder_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        point, feeder = row.get("load_point", ""), row.get("feeder", "")
        if feeder_of.setdefault(point, feeder) != feeder:
            raise ServiceMapError(
                f"row {number} of the service map {path} puts a load point on a second feeder; name one "
                "feeder per load point"
            )
    refuse_alike(feeder_of, "load points of the service map")
    refuse_alike(set(feeder_of.values()) - {""}, "feeders of the service map")
    points: dict[str, list[str]] = {}
    for point, feeder in feeder_of.items():
        if feeder:
            points.setdefault(feeder, []).append(point)
    return {feeder: tuple(members) for feeder, members in points.items()}


# ---------------------------------------------------------------------------------------------- the workers
#
# A worker opens, checks, twins, solves, writes and hashes. It has the key, the load model, what the private
# state keeps of its feeder and what was paid for it; ledger, meters and the directory of the state stay with
# the data owner. What a worker writes to the private state goes back to the owner with its answer. Everything
# random comes from the key, so a feeder whose worker is lost is made again by another one, to the same bits.


@dataclass(frozen=True, eq=False, repr=False)
class Examined:
    """PRIVATE. All checks of a feeder are passed.

    Attributes
    ----------
    dataset, frame : what a charge asks of the network (`NetworkFacts`).
    inputs : keyed hash of everything but the config that decides the release.
    nodes : PUBLIC. Released nodes.
    warnings : PUBLIC. What public loads do.
    """

    dataset: str
    frame: str
    inputs: str
    nodes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """PRIVATE. One feeder.

    Attributes
    ----------
    name : its public name.
    config : of its release.
    files : what the private state keeps of it.
    places : PUBLIC. Number of a load point on this feeder → its node; None where all feeders share them.
    paid : what was paid for it; None if it is only to be examined.
    only_draws : whether it is drawn and reported, and nothing published yet: at a store the private state
        keeps both before anybody sees the first part.
    """

    name: str
    config: Config
    files: Files
    places: Mapping[int, str] | None = None
    paid: Paid | None = None
    only_draws: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """PRIVATE. How far a feeder has come.

    Attributes
    ----------
    name : its public name.
    examined, made : what was found, or made.
    files : to be kept in the private state.
    ended : products that are complete, whose keys are to be destroyed then.
    error : why it failed.
    """

    name: str
    examined: Examined | None = None
    made: Made | None = None
    files: Files = field(default_factory=dict)
    ended: Set[tuple[str, str]] = frozenset()
    error: DpPowerflowError | None = None


@dataclass(frozen=True, eq=False, repr=False)
class FeederJob:
    """PRIVATE. What all feeders of a fleet have in common.

    Attributes
    ----------
    key : secret of the private state.
    root : where the state is, for messages; no worker looks there.
    meters : PUBLIC facts of the meters.
    files : what the state keeps for all feeders: the load model, once it is fitted.
    """

    key: StreamKey
    root: Path
    meters: MeterFacts
    files: Files = field(default_factory=dict)

    def start(self, threads: int | None) -> Callable[[Task], Stage]:
        """A worker with this many threads, None for all cores."""
        return lambda task: self._stage(task, threads or cores())

    def _stage(self, task: Task, threads: int) -> Stage:
        """What is found or made, or why not: nothing is raised, for other feeders go on."""
        state = CarriedState(self.root, self.key, {**self.files, **task.files})
        try:
            stage = self._done(task, state, threads)
        except DpPowerflowError as error:
            stage = Stage(task.name, error=error)
        except OSError as error:
            stage = Stage(task.name, error=DpPowerflowError(str(error), code=UNEXPECTED))
        except MemoryError:
            stage = Stage(task.name, error=DpPowerflowError(NO_MEMORY, code=UNEXPECTED))
        except Exception:
            kept = state.write_internal(task.config.release.id, TRACEBACK, traceback.format_exc().encode())
            told = f"a defect of the program; report it, the details are in {kept}"
            stage = Stage(task.name, error=DpPowerflowError(told, code=UNEXPECTED))
        return replace(stage, files=state.taken(), ended=state.ended)

    def _done(self, task: Task, state: CarriedState, threads: int) -> Stage:
        meters, places = self.meters, task.places
        if places is not None:  # the nodes of this feeder alone
            meters = replace(meters, node_of=tuple(map(places.get, range(len(meters.node_of)))))
        ready = make_ready(task.config, state, history=meters)
        inputs = ready.inputs
        refuse_another_model(inputs)
        if task.paid is None:
            facts, nodes = ready.mode.facts(inputs), ready_writer(ready).layout.nodes
            warned = ready.feasibility.warnings
            return Stage(task.name, Examined(facts.dataset, facts.frame, inputs.identity, nodes, warned))
        config, model = inputs.config, kept_model(inputs.config, state)
        if model is None:
            raise PrivacyError(
                f"release '{config.model.reuse}' has fitted no load model yet; run it first",
                code="model-reuse",
            )
        keep_derived_model(state, config.release.id, config.model.reuse, model)
        if task.only_draws:
            draw(ready, task.paid, model)
            return Stage(task.name)
        with place_kept(ready):
            made = make(ready, task.paid, draw(ready, task.paid, model), Threads(threads))
        return Stage(task.name, made=made)


# ------------------------------------------------------------------------------------------------- the run


@dataclass(eq=False, repr=False)
class Way:
    """PRIVATE. One feeder on its way.

    Attributes
    ----------
    released : whether it is in the corpus.
    examined, paid : what its check found, and what was paid for it; None before.
    problem, code : why it failed.
    """

    feeder: FleetFeeder
    released: bool
    examined: Examined | None = None
    paid: Paid | None = None
    problem: str | None = None
    code: str | None = None

    @property
    def ended(self) -> bool:
        return self.released or self.problem is not None

    @property
    def outcome(self) -> Outcome:
        feeder = self.feeder
        return Outcome(feeder.key, feeder.name, self.problem, self.code, self.released)


@dataclass(eq=False, repr=False)
class _Run:
    """PRIVATE. One run of a fleet, or one plan: the data owner's side.

    Attributes
    ----------
    ways : every feeder by its public name, in the order of these.
    loads : the charge of the customers, to be made or made already; None before they are asked.
    ended : how many feeders are released or have failed.
    warned_of_all, warned : PUBLIC. Sentences on the whole fleet, and public names of feeders with sentences.
    """

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    shelf: Shelf
    ways: dict[str, Way]
    say: Say = lambda _: None
    progress: Progress = lambda *_: None
    warned_of_all: list[str] = field(default_factory=list)
    warned: list[tuple[str, str]] = field(default_factory=list)
    ingest: IngestReport | None = None
    loads: Charge | Spend | None = None
    ended: int = 0

    @classmethod
    def open(cls, config: FleetConfig, state: PrivateState) -> _Run:
        ledger, shelf = open_ledger(state), Shelf(config.fleet.output, config.fleet.id)
        feeders = feeders_of(config, state, ledger)
        ways = {feeder.name: Way(feeder, shelf.has(feeder.name)) for feeder in feeders}
        return cls(config, state, ledger, shelf, ways)

    @cached_property
    def some(self) -> Config:
        """The config of some feeder, for what all share."""
        return next(iter(self.ways.values())).feeder.config

    @cached_property
    def source(self) -> Meters:
        """PRIVATE. The meter data, read once for all feeders."""
        return meters_of(self.some, None)

    @cached_property
    def meters(self) -> MeterFacts:
        """PUBLIC facts of the meters, under the keyed hash of the readings."""
        history = self.source.history
        return history.facts(self.state.identity("loads", loads_chunks(history)))

    @cached_property
    def fitted(self) -> Config:
        """What the load model is fitted with; nothing of a feeder decides it."""
        release = self.some.release.model_copy(update={"id": self.config.fleet.id})
        return self.some.model_copy(update={"model": self.config.model, "release": release})

    @cached_property
    def almanac(self) -> Almanac:
        """PUBLIC. Holidays and weather of the days of the meters: a model knows nothing of released days."""
        public = replace(almanac_of(self.fitted), calendar=None)
        public.check_meters(self.source.history.days)
        return public

    @cached_property
    def cost(self) -> Plan:
        """What the load model costs, and the hash of everything that decides it."""
        config, history = self.config, self.source.history
        chunks = itertools.chain(self.almanac.chunks(), loads_chunks(history))
        inputs = self.state.identity("inputs", chunks)
        content = {
            "model": config.model.model_dump(mode="json"),
            "loads": config.loads.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST),
            "random reactive load": config.network.random_reactive,
            "inputs": inputs,
            "version": __version__,
        }
        request = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return replace(plan_release(self.fitted, history, inputs, self.almanac), request_sha256=request)

    def _ask_customers(self) -> Charge | Spend:
        """What the customers are charged, or the charge of an earlier fleet whose model is reused.

        Raises
        ------
        PrivacyError : the customers cannot pay, or were charged for something else; nothing is recorded.
        """
        fleet, plan, ledger = self.config.fleet, self.cost, self.ledger
        data = ChargedData(self.meters.identity, plan.loads_cap, fleet.continues_loads, fleet.unrelated_loads)
        if self.config.model.reuse is not None:
            earlier = reused_charge(ledger, data, self.config.model.reuse)
            refuse_unpaid_model(self.some, self.state, paid=earlier is not None)
            assert earlier is not None  # else refused
            return earlier
        refuse_another_request(fleet.id, plan.request_sha256, self.state, ledger)
        ledger.account(data)  # asks now how these customers relate to other accounts
        asked = Charge(data, fleet.id, plan.request_sha256, plan.loads_cost)
        affordable = ledger.preview(data, plan.loads_cost, fleet.id).affordable
        return asked if affordable else ledger.charge_all([asked])[0]  # which says why not

    def _fit(self) -> None:
        """Fit the model that was paid for, if it is not there yet."""
        if self.config.model.reuse is None:
            fitted_model(self.fitted, self.state, self.source.history, self.cost, self.almanac)
        else:
            end_key(self.some, self.state, FIT)

    def map(self, workers: Kept, tasks: Iterator[Task], on_done: Callable[[Stage], object]) -> None:
        """Have feeders examined or made; workers get the load model too, once it is there."""
        where = self.config.charged_under
        model = self.state.read_internal(where, MODEL_FILE)
        files = {} if model is None else {(where, MODEL_FILE): model}
        job = FeederJob(self.state.stream_key(), self.state.root, self.meters, files)

        def kept(stage: Stage) -> None:
            self._keep(stage)
            on_done(stage)

        workers.map(job, tasks, kept, lambda task: Stage(task.name, error=LOST))

    def _keep(self, stage: Stage) -> None:
        """Keep what a worker wrote for the private state."""
        for (where, name), content in stage.files.items():
            self.state.write_internal(where, name, content)
        for where, product in sorted(stage.ended):
            self.state.destroy_key(where, product)

    def task(self, way: Way, *, only_draws: bool = False) -> Task:
        """What is to be done of one feeder, with what the private state keeps of it but for receipts."""
        feeder = way.feeder
        files: dict[tuple[str, str], bytes] = {}
        for where in filter(None, (feeder.release_id, mode_of(feeder.config).kept_under)):
            for _, names in self.state.internal_files(where):
                for name in names:
                    content = None if is_receipt(name) else self.state.read_internal(where, name)
                    if content is not None:
                        files[where, name] = content
        return Task(feeder.name, feeder.config, files, self._places(feeder), way.paid, only_draws)

    def bill(self, way: Way) -> tuple[Plan, Charge]:
        """What a feeder that has passed all checks costs, and what the ledger is asked.

        Raises
        ------
        PrivacyError : the feeder was begun otherwise, or its network cannot pay.
        """
        feeder, examined = way.feeder, way.examined
        assert examined is not None
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
        plan = replace(plan, network=mode.charge_of(plan.network, facts, self.state, self.ledger))
        try:
            if not way.released:
                refuse_unpayable(plan, facts, mode, self.state, self.ledger)
        except ChangedRequestError:
            raise ChangedRequestError(
                f"release '{feeder.release_id}' was begun with another file of the feeder, other settings or "
                "another version of the program; restore them to finish it, or list the feeder in a fleet of "
                f"a new id, with fleet.continues and model.reuse = '{self.config.fleet.id}'"
            ) from None
        return plan, network_charge(config, plan, facts)

    def account_of(self, way: Way) -> str:
        """What tells whether two feeders share an account."""
        config, dataset = way.feeder.config, "" if way.examined is None else way.examined.dataset
        account = self.ledger.find(registered(config.network.mode).account_kind, dataset)
        return account.name if account is not None else config.release.continues_network or dataset

    @cached_property
    def _services(self) -> Mapping[str, tuple[str, ...]] | None:
        """PUBLIC. Key of a feeder → its load points; None if no load point has a node, or no mode asks."""
        path = self.config.loads.services
        counted = mode_of(self.some).counts_customers
        return read_feeder_map(path) if path and counted and any(self.source.history.node_of) else None

    def _places(self, feeder: FleetFeeder) -> dict[int, str] | None:
        """The nodes of this feeder's load points alone: others may have nodes of the same name."""
        if self._services is None:
            return None
        own, history = frozenset(self._services.get(feeder.key, ())), self.source.history
        placed = enumerate(zip(history.load_points, history.node_of, strict=True))
        return {k: node for k, (point, node) in placed if node is not None and point in own}

    def make_missing(self, engine: Engine) -> None:
        """Make what is missing; whatever ends the run, `fleet.json` says what is there."""
        config, state, shelf = self.config, self.state, self.shelf
        shelf.refuse_other_contents()
        shelf.refuse_other_states(partial(committed, state), partial(is_begun, state))
        missing = [way for way in self.ways.values() if not way.released]
        for way in self.ways.values():
            if way.released:  # by a run that was killed before it knew
                end_key(way.feeder.config, state, DRAWS)
        if missing:
            _refuse_another_config(config, state)
            shelf.prepare()
        write_register(state, config.fleet.id, [way.feeder for way in self.ways.values()])
        self.ended = len(self.ways) - len(missing)
        self.progress(self.ended, len(self.ways))
        try:
            if missing:
                with engine.kept(len(missing), FEEDERS_PER_PROCESS) as workers:
                    self._make(missing, workers)
        finally:
            self.say("what is said of the whole")
            shelf.discard_staging(keep={way.feeder.name for way in missing})
            shelf.write_manifest()
            self._tell_the_owner()

    def _make(self, missing: Sequence[Way], workers: Kept) -> None:
        """What all feeders share stops the run; what belongs to one feeder does not.

        A fleet that cannot release anything costs nothing.
        """
        config, state = self.config, self.state
        self.say("reading the meter data")
        self.ingest = self.source.ingest
        if self.ingest is not None:
            keep_ingest(state, config.fleet.id, self.ingest)
        for warning in self.cost.warnings:
            self.say(warning)
        self.warned_of_all += [*self.cost.warnings, *self.cost.notes]

        self.say("checking all feeders")
        self.map(workers, map(self.task, missing), self._examined)
        good = [way for way in missing if way.examined is not None]
        if good:
            self.say("charging customers and networks")
            self.loads = self._ask_customers()
            self._charge_all(good)
        paid = [way for way in good if way.paid is not None]
        if paid:
            self.say("fitting the load model")
            self._fit()
            self.say("making the feeders")
            if self.shelf.staging is None:
                self.map(workers, self._tasks(paid, only_draws=True), self._failed)
            self.map(workers, self._tasks(paid), self._made)
        for way in missing:  # none is left without a word, whatever the workers did
            if not way.ended:
                self._fail(way, LOST)

    def _failed(self, stage: Stage) -> bool:
        """Whether a feeder failed at its worker."""
        if stage.error is not None:
            self._fail(self.ways[stage.name], stage.error)
        return stage.error is not None

    def _examined(self, stage: Stage) -> None:
        if not self._failed(stage):
            self.ways[stage.name].examined = stage.examined

    def _charge_all(self, ways: Sequence[Way]) -> None:
        """Charge customers and feeders that have passed all checks together.

        A feeder that shares an account with one before it is charged alone afterwards: its cost depends on
        what was charged before. If the ledger refuses the whole, each is charged alone, to find out whom it
        is about. A feeder that is refused costs nothing and does not keep the others from being charged.
        """
        together: dict[str, Way] = {}
        for way in ways:
            together.setdefault(self.account_of(way), way)
        self._charge([*together.values()])
        for way in ways:
            if way.paid is None and way.problem is None:
                self._charge([way])

    def _charge(self, ways: Sequence[Way]) -> None:
        """Charge some feeders, and the customers if they were not charged yet, in one transaction."""
        state, ledger, bills = self.state, self.ledger, list[tuple[Way, Plan, Charge]]()
        for way in ways:
            try:
                bills.append((way, *self.bill(way)))
            except DpPowerflowError as error:
                self._fail(way, error)
        own, fleet_id = [self.loads] if isinstance(self.loads, Charge) else [], self.config.fleet.id
        if own and is_new(state, ledger, fleet_id, self.cost.request_sha256):
            state.make_key(fleet_id, FIT, self.cost.request_sha256)
        for way, plan, charge in bills:
            make_keys(mode_of(way.feeder.config), state, ledger, plan, charge.data.dataset, (DRAWS,))
        try:
            spends = ledger.charge_all([*own, *(charge for *_, charge in bills)]) if bills else []
        except PrivacyError as error:
            if len(ways) == 1:
                self._fail(ways[0], error)
            return
        if own and spends:
            self.loads = spends[0]
            keep_begun(state, fleet_id, self.cost.request_sha256, self.loads)
        for (way, plan, _), spend in zip(bills, spends[len(own) :], strict=True):
            assert isinstance(self.loads, Spend)
            assert way.examined is not None
            keep_begun(state, way.feeder.release_id, plan.request_sha256, self.loads, spend)
            balances = ledger.balance_after(self.loads), ledger.balance_after(spend)
            way.paid = Paid(way.examined.dataset, way.examined.inputs, *balances, spend)

    def _tasks(self, paid: Sequence[Way], *, only_draws: bool = False) -> Iterator[Task]:
        """What is paid, the largest first."""
        for way in sorted(paid, key=lambda way: -way.examined.nodes if way.examined else 0):
            if way.problem is None:
                yield self.task(way, only_draws=only_draws)

    def _made(self, stage: Stage) -> None:
        """Put a feeder that is made into the corpus."""
        way, made = self.ways[stage.name], stage.made
        if self._failed(stage) or made is None:
            return
        try:
            self.shelf.publish(stage.name)
        except DpPowerflowError as error:
            self._fail(way, error)
            return
        config = way.feeder.config
        self.warned_of_all += [*promise_warnings(config), *made.notes]
        scaled_down = scaled_down_words(made, config.release.days * self.meters.n_steps)
        told = (*scaled_down, *(way.examined.warnings if way.examined else ()))
        self.warned += [(stage.name, sentence) for sentence in told]
        fleet_id = self.config.fleet.id
        if self.state.read_internal(fleet_id, CONFIG_FILE) is None:  # from now on the config stays
            self.state.write_internal(fleet_id, CONFIG_FILE, _config_sha256(self.config).encode())
        way.released = True
        self._end(way)

    def _fail(self, way: Way, error: DpPowerflowError) -> None:
        """A feeder has failed; where others may read, nothing of it stays."""
        begun = way.paid is not None or is_begun(self.state, way.feeder.release_id)
        paid = begun or bool(self.ledger.spends(release_id=way.feeder.charged_under))
        way.problem, way.code = of_one_feeder(str(error), paid=paid), error.code
        if begun:
            try:
                self.shelf.abandon(way.feeder.name, way.feeder.release_id)
            except DpPowerflowError as left:
                way.problem = f"{way.problem}; and what it left cannot be removed: {left}"
        self._end(way)

    def warnings(self) -> Iterator[str]:
        """What was warned of; sentences on feeders that differ in figures only are one."""
        alike: dict[str, list[tuple[str, str]]] = {}
        for name, sentence in self.warned:
            alike.setdefault(_FIGURE.sub("#", sentence), []).append((name, sentence))
        for told in alike.values():
            name, sentence = min(told)
            others = f" and {len(told) - 1:,} more, with other figures" if len(told) > 1 else ""
            yield f"{name}{others}: {sentence}"
        yield from dict.fromkeys(self.warned_of_all)

    def _end(self, way: Way) -> None:
        self.ended += 1
        self.progress(self.ended, len(self.ways))

    def _tell_the_owner(self) -> None:
        """Keep which feeders failed; a run that did not examine all leaves what the last run said."""
        failed = [
            {"feeder": way.feeder.key, "name": name, "code": way.code, "problem": way.problem}
            for name, way in self.ways.items()
            if way.problem is not None
        ]
        if all(way.ended or way.examined for way in self.ways.values()):
            content = {"marking": INTERNAL, "fleet": self.config.fleet.id, "failed": failed}
            text = json.dumps(content, indent=1, ensure_ascii=False)
            self.state.write_internal(self.config.fleet.id, FAILURES_FILE, text.encode())


def _refuse_another_config(config: FleetConfig, state: PrivateState) -> None:
    kept = state.read_internal(config.fleet.id, CONFIG_FILE)
    if kept is not None and kept.decode(errors="replace") != _config_sha256(config):
        raise ConfigError(
            f"feeders of fleet '{config.fleet.id}' were released with another config; restore it, put "
            "what one feeder needs under overrides, or choose a new fleet id and set model.reuse to the "
            "old one",
            code="request-changed",
        )


def _config_sha256(config: FleetConfig) -> str:
    """Hash of the public choices that all feeders of a fleet share."""
    # Without what is left at its default: a key that a later version adds is no change of this config.
    kept: dict[str, Any] = {"fleet": {"days", "first_day"}, **dict.fromkeys(_FIXED, True)}
    public = config.model_dump(mode="json", include=kept, exclude_defaults=True)
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, eq=False, repr=False)
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
    feeders: tuple[Outcome, ...]
    ingest: IngestReport | None = None

    @property
    def possible(self) -> bool:
        """Whether every feeder would be released: none is refused, and all accounts have enough left."""
        networks = [plan.network for plan in self.feeders if plan.network is not None]
        affordable = self.loads.affordable and all(network.affordable for network in networks)
        return affordable and all(plan.problem is None for plan in self.feeders)


def plan_fleet(config: FleetConfig, *, engine: Engine, progress: Progress = lambda *_: None) -> FleetPlan:
    """Plan a fleet; every feeder is opened, the ledger is read, nothing is recorded.

    Parameters
    ----------
    engine : where feeders are opened.
    progress : told how many feeders are checked.
    """
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    run, found = _Run.open(config, state), dict[str, Stage]()

    def examined(stage: Stage) -> None:
        found[stage.name], run.ways[stage.name].examined = stage, stage.examined
        progress(len(found), len(run.ways))

    with engine.kept(len(run.ways), FEEDERS_PER_PROCESS) as workers:
        cost = run.cost
        run.map(workers, map(run.task, run.ways.values()), examined)
    data = ChargedData(run.meters.identity, cost.loads_cap, config.fleet.continues_loads)
    loads = run.ledger.preview(data, cost.loads_cost, config.charged_under)
    if config.model.reuse is not None:
        refuse_unpaid_model(run.some, state, paid=loads.already_charged)
    seen: dict[str, dict[str, str]] = {}
    plans = tuple(_feeder_plan(run, seen, way, found[name].error or LOST) for name, way in run.ways.items())
    return FleetPlan(config, cost, loads, plans, run.source.ingest)


def _feeder_plan(run: _Run, seen: dict[str, dict[str, str]], way: Way, failure: DpPowerflowError) -> Outcome:
    """What the network would be charged; refused where it was begun otherwise.

    Parameters
    ----------
    seen : of the feeders before this one, frame → data set → key of the first feeder with it.
    failure : why it was not examined, if it was not.
    """
    feeder, examined = way.feeder, way.examined
    if examined is None:
        return replace(way.outcome, problem=str(failure), code=failure.code)
    alike, planned = seen.setdefault(examined.frame, {}), way.outcome
    try:
        plan, _ = run.bill(way)
        network = preview_network(run.ledger, feeder.config, plan.network, examined.dataset)
        planned = replace(planned, network=network)
        if network.account is None and examined.dataset not in alike:
            _refuse_unnamed(run.config, feeder, alike.values())
    except DpPowerflowError as error:
        return replace(planned, problem=str(error), code=error.code)
    finally:
        alike.setdefault(examined.dataset, feeder.key)
    return planned


def _refuse_unnamed(config: FleetConfig, feeder: FleetFeeder, others: Collection[str]) -> None:
    """Refuse a new feeder with the frame of others, if nobody says that they differ."""
    if feeder.config.release.continues_network is not None:
        return
    named = frozenset(() if config.fleet.same_frame is None else config.fleet.same_frame.feeders)
    unnamed = [key for key in others if {key, feeder.key} - named]
    if unnamed:
        keys = sorted({feeder.key, *others, *named})
        raise PrivacyError(
            f"it has the nodes and connections of feeder '{unnamed[0]}'; list one of them if they are "
            "versions of one network, or else write under [fleet] same_frame = "
            f'{{ feeders = {json.dumps(keys)}, reason = "<why>" }}'
        )
