"""A fleet: many feeders and one meter source become one corpus.

    check all → charge all in one transaction → fit → make each, publish each as it is done → fleet.json

    out/fleet.json               what is promised of the whole, and the SHA-256 of every feeder's manifest
    out/feeder=<public name>/…   a complete release, which can be verified by itself
    state/internal/<fleet>/failures.json   INTERNAL, which feeders failed and why

Workers check and make whole feeders (`making`); this process charges, keeps and publishes. A feeder that
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dp_powerflow._files import only_process
from dp_powerflow._names import __version__
from dp_powerflow._parallel import Engine, Kept, Needs, engine_of
from dp_powerflow._spending import of_one_feeder, true_words
from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import (
    ChangedRequestError,
    ConfigError,
    DpPowerflowError,
    PrivacyError,
    ServiceMapError,
)
from dp_powerflow.fleet.feeders import FleetConfig, FleetFeeder, feeders_of, source_files, write_register
from dp_powerflow.fleet.making import UNEXPECTED, Examined, FeederJob, Stage, Task
from dp_powerflow.fleet.publishing import Shelf
from dp_powerflow.loads.declared import read_service_rows
from dp_powerflow.loads.history import MeterFacts, refuse_alike
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.manifest.model import MODEL_FILE, registered
from dp_powerflow.pipeline.inputs import (
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
    open_ledger,
    plan_release,
    preview_network,
    refuse_unpaid_model,
    was_charged,
)
from dp_powerflow.pipeline.release import (
    CHANGED_MEANWHILE,
    Made,
    Paid,
    fitted_model,
    keep_begun,
    network_charge,
    refuse_another_request,
    refuse_unpayable,
    reused_charge,
    scaled_down_words,
)
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger
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
_MAY_CHANGE: dict[str, Any] = {
    "fleet": {
        *("feeders", "names", "output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"),
        *("unrelated", "same_frame", "unrelated_loads", "continues_loads"),
    },
    "feeder": {"taps"},
    "loads": {"path", "services"},
    "pv": {"irradiance"},
    "weather": {"path"},
    "overrides": True,
}
"""What of a config may change between two runs of a fleet; the releases themselves check their inputs."""
_NOT_PART_OF_THE_REQUEST = {"path", "services", "classes"}
_FIGURE = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")


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
    progress: Progress | None = None,
    on_outcome: OnOutcome = lambda _: None,
) -> FleetResult:
    """Make the releases of a fleet, or those that are missing.

    Parameters
    ----------
    workers : feeders made at once on this machine, None for one per core.
    engine : where the feeders are made instead, such as a Dask cluster.
    say, progress : told what is being done, and how many feeders are released or failed.
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
    with true_words(begun=_is_begun(state, config)), only_process(internal):
        run = _Run.open(config, state)
        run.say, run.progress, run.on_outcome = say, progress or run.progress, on_outcome
        run.make_missing(engine)
    outcomes = tuple(way.outcome for way in run.ways.values())
    return FleetResult(run.shelf.place, outcomes, internal, run.warned.sentences(), run.ingest)


def _is_begun(state: PrivateState, config: FleetConfig) -> bool:
    """Whether an earlier run has charged the customers or a feeder."""
    twins = getattr(config.network, "id", None) or config.fleet.id

    def own(charged: str) -> bool:
        return charged.partition("_")[0] in (config.fleet.id, twins)

    begun = (kept for kept, names in state.internal_files() if REQUEST_FILE in names)
    return any(kept.partition("_")[0] == config.fleet.id for kept in begun) or was_charged(state, own)


def read_failures(state: PrivateState, fleet_id: str) -> list[dict[str, str | None]]:
    """Feeders that failed in the last run: key, public name, code and why; none if the file is damaged."""
    try:
        failed = json.loads(state.read_internal(fleet_id, FAILURES_FILE) or b"")["failed"]
        whole = all(isinstance(item[key], str) for item in failed for key in ("feeder", "name"))
        return [dict(item) for item in failed] if whole else []
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


class Warned:
    """What the feeders of a fleet were warned of, in the order in which it came up.

    Sentences that differ in figures only are one.
    """

    def __init__(self) -> None:
        self._of_all: dict[str, None] = {}
        self._of_feeders: dict[str, list[tuple[str, str]]] = {}

    def of_all(self, *sentences: str) -> None:
        """What holds for the whole fleet, or for all feeders alike."""
        self._of_all.update(dict.fromkeys(sentences))

    def of_feeder(self, name: str, *sentences: str) -> None:
        """What holds for one feeder, by its public name."""
        for sentence in sentences:
            self._of_feeders.setdefault(_FIGURE.sub("#", sentence), []).append((name, sentence))

    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        told = []
        for alike in self._of_feeders.values():
            name, sentence = min(alike)
            others = f" and {len(alike) - 1:,} more, with other figures" if len(alike) > 1 else ""
            told.append(f"{name}{others}: {sentence}")
        return (*told, *self._of_all)


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
    def work(self) -> int:
        """What making it takes, about, in node-days; to draw a customer takes less than to solve a node."""
        if self.examined is None:
            return 0
        return (self.examined.nodes + self.examined.draws // DRAWS_PER_NODE) * self.feeder.config.release.days

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.feeder.key, self.feeder.name, self.problem, self.code)


Bill = tuple[Way, Plan, Charge]
"""PRIVATE. What the network of one feeder is charged."""


@dataclass(eq=False, repr=False)
class _Run:
    """PRIVATE. One run of a fleet, or one plan: the data owner's side.

    Attributes
    ----------
    feeders : in the order of public names.
    loads : the charge of the customers, to be made or made already; None before they are asked.
    ended : how many feeders are released or have failed.
    room : bytes left for networks that are kept between their check and their release.
    """

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    shelf: Shelf
    feeders: tuple[FleetFeeder, ...]
    say: Say = lambda _: None
    progress: Progress = lambda *_: None
    on_outcome: OnOutcome = lambda _: None
    warned: Warned = field(default_factory=Warned)
    ingest: IngestReport | None = None
    loads: Charge | Spend | None = None
    ended: int = 0
    room: int = MOST_BYTES

    @classmethod
    def open(cls, config: FleetConfig, state: PrivateState) -> _Run:
        ledger, shelf = open_ledger(state), Shelf(config.fleet.output, config.fleet.id)
        return cls(config, state, ledger, shelf, feeders_of(config, state, ledger))

    @cached_property
    def ways(self) -> dict[str, Way]:
        """Every feeder by its public name, in the order of these."""
        return {feeder.name: Way(feeder, self.shelf.has(feeder.name)) for feeder in self.feeders}

    @cached_property
    def source(self) -> Meters:
        """PRIVATE. The meter data, read once for all feeders."""
        return meters_of(self.feeders[0].config, None)

    @cached_property
    def meters(self) -> MeterFacts:
        """PUBLIC facts of the meters, under the keyed hash of the readings."""
        history = self.source.history
        return history.facts(self.state.identity("loads", loads_chunks(history)))

    @cached_property
    def fitted(self) -> Config:
        """What the load model is fitted with; nothing of a feeder decides it."""
        some = self.feeders[0].config
        release = some.release.model_copy(update={"id": self.config.fleet.id})
        return some.model_copy(update={"model": self.config.model, "release": release})

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
            refuse_unpaid_model(self.feeders[0].config, self.state, paid=earlier is not None)
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
            key = self.state.stream_key().bind("release", self.config.fleet.id)
            fitted_model(self.fitted, self.state, self.source.history, self.cost, key, self.almanac)

    def map(self, workers: Kept, tasks: Iterator[Task], on_done: Callable[[Stage], None]) -> None:
        """Have feeders examined or made; workers get the load model too, once it is there."""
        where = self.config.charged_under
        model = self.state.read_internal(where, MODEL_FILE)
        files = {} if model is None else {(where, MODEL_FILE): model}
        job = FeederJob(self.state.stream_key(), self.state.root, self.meters, files)
        workers.map(job, tasks, on_done, lambda task: Stage(task.name, problem=LOST))

    def task(self, way: Way, *, only_draws: bool = False) -> Task:
        """What is to be done of one feeder, with what the private state keeps of it but for receipts."""
        feeder = way.feeder
        read = None if way.examined is None else way.examined.feeder
        files: dict[tuple[str, str], bytes] = {}
        for where in filter(None, (feeder.release_id, mode_of(feeder.config).kept_under)):
            for _, names in self.state.internal_files(where):
                for name in names:
                    content = None if is_receipt(name) else self.state.read_internal(where, name)
                    if content is not None:
                        files[where, name] = content
        return Task(feeder.name, feeder.config, files, self._places(feeder), way.paid, read, only_draws)

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

    def account_of(self, feeder: FleetFeeder, examined: Examined) -> str:
        """What tells whether two feeders share an account."""
        kind = registered(feeder.config.network.mode).account_kind
        account = self.ledger.find(kind, examined.dataset)
        if account is not None:
            return account.name
        return feeder.config.release.continues_network or examined.dataset

    def problem_of(self, stage: Stage) -> tuple[str, str]:
        """Why a feeder failed; the text of a defect may quote private values, and stays with the owner."""
        if stage.defect is None:
            return stage.problem or LOST, stage.code
        name = f"{stage.name}-traceback.txt"
        kept = self.state.write_internal(self.config.fleet.id, name, stage.defect.encode())
        return f"a defect of the program; report it, the details are in {kept}", stage.code

    @cached_property
    def _services(self) -> Mapping[str, tuple[str, ...]] | None:
        """PUBLIC. Key of a feeder → its load points; None if no load point has a node, or no mode asks."""
        path = self.config.loads.services
        counted = any(mode_of(feeder.config).counts_customers for feeder in self.feeders)
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
        if missing:
            _refuse_another_config(config, state)
            shelf.prepare()
        write_register(state, config.fleet.id, self.feeders)
        self.ended = len(self.ways) - len(missing)
        self.progress(self.ended, len(self.ways))
        try:
            if missing:
                with engine.kept(AHEAD, len(missing), FEEDERS_PER_PROCESS) as workers:
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
        self.warned.of_all(*self.cost.warnings, *self.cost.notes)

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
            if self.shelf.in_place:
                self.map(workers, self._tasks(paid, only_draws=True), self._drawn)
            self.map(workers, self._tasks(paid), self._made)
        for way in missing:  # none is left without a word, whatever the workers did
            if not way.ended:
                self._fail(way, LOST, UNEXPECTED)

    def _examined(self, stage: Stage) -> None:
        way = self.ways[stage.name]
        if not isinstance(stage.said, Examined):
            self._fail(way, *self.problem_of(stage))
            return
        way.examined = stage.said
        self.room -= len(stage.said.feeder or b"")
        if self.room < 0:  # it is read again
            way.examined = replace(stage.said, feeder=None)

    def _charge_all(self, left: Sequence[Way]) -> None:
        """Charge customers and feeders that have passed all checks, in this order.

        Of feeders that share an account the first is charged with the rest, the others in transactions that
        follow: what they cost depends on what was charged before. A feeder that is refused costs nothing and
        does not keep the others from being charged.
        """
        while left:
            accounts, together, later = set[str](), list[Bill](), list[Way]()
            for way in left:
                feeder, examined = way.feeder, way.examined
                assert examined is not None
                account = self.account_of(feeder, examined)
                if account in accounts:
                    later.append(way)
                    continue
                accounts.add(account)
                try:
                    plan, facts = self.plan(feeder, examined)
                    self.refuse(feeder, plan, facts)
                    charge = network_charge(feeder.config, plan, facts)
                    together.append((way, plan, charge))
                except DpPowerflowError as error:
                    self._fail(way, str(error), error.code)
            self._charge(together)
            left = later

    def _charge(self, bills: Sequence[Bill]) -> None:
        """All together; if that is refused, one by one, to find out whom it is about."""
        if not bills:
            return
        state, ledger = self.state, self.ledger
        own = [self.loads] if isinstance(self.loads, Charge) else []
        try:
            spends = ledger.charge_all([*own, *(charge for _, _, charge in bills)])
        except PrivacyError as error:
            if len(bills) == 1:
                self._fail(bills[0][0], str(error), error.code)
            else:
                for bill in bills:
                    self._charge([bill])
            return
        if own:
            self.loads = spends[0]
            keep_begun(state, self.config.fleet.id, self.cost.request_sha256, self.loads)
        assert isinstance(self.loads, Spend)
        customers = ledger.balance_after(self.loads)
        for (way, plan, _), spend in zip(bills, spends[len(own) :], strict=True):
            keep_begun(state, way.feeder.release_id, plan.request_sha256, self.loads, spend)
            assert way.examined is not None
            found, network = way.examined, ledger.balance_after(spend)
            way.paid = Paid(found.dataset, found.inputs, customers, network, spend)

    def _tasks(self, paid: Sequence[Way], *, only_draws: bool = False) -> Iterator[Task]:
        """What is paid, the largest first."""
        for way in sorted(paid, key=lambda way: -way.work):
            if way.problem is None:
                yield self.task(way, only_draws=only_draws)
                if way.examined is not None and not only_draws:
                    way.examined = replace(way.examined, feeder=None)

    def _drawn(self, stage: Stage) -> None:
        """Keep what a worker wrote for the private state."""
        way = self.ways[stage.name]
        for (where, name), content in stage.files.items():
            self.state.write_internal(where, name, content)
        if stage.problem is not None or stage.defect is not None:
            self._fail(way, *self.problem_of(stage))

    def _made(self, stage: Stage) -> None:
        """Keep what a worker wrote, then put the feeder into the corpus."""
        self._drawn(stage)
        way, made = self.ways[stage.name], stage.said
        if way.problem is not None:
            return
        if not isinstance(made, Made):
            self._fail(way, *self.problem_of(stage))
            return
        try:
            self.shelf.publish(way.feeder.name)
        except DpPowerflowError as error:
            self._fail(way, str(error), error.code)
            return
        config = way.feeder.config
        self.warned.of_all(*promise_warnings(config), *made.notes)
        scaled_down = scaled_down_words(made, config.release.days * self.meters.n_steps)
        self.warned.of_feeder(way.feeder.name, *scaled_down, *(way.examined.warnings if way.examined else ()))
        fleet_id = self.config.fleet.id
        if self.state.read_internal(fleet_id, CONFIG_FILE) is None:  # from now on the config stays
            self.state.write_internal(fleet_id, CONFIG_FILE, _config_sha256(self.config).encode())
        way.released = True
        self._end(way)

    def _fail(self, way: Way, problem: str, code: str) -> None:
        """A feeder has failed; where others may read, nothing of it stays."""
        begun = way.paid is not None or is_begun(self.state, way.feeder.release_id)
        paid = begun or bool(self.ledger.spends(release_id=way.feeder.charged_under))
        way.problem, way.code = of_one_feeder(problem, paid=paid), code
        if begun:
            try:
                self.shelf.abandon(way.feeder.name, way.feeder.release_id)
            except DpPowerflowError as error:
                way.problem = f"{way.problem}; and what it left cannot be removed: {error}"
        self._end(way)

    def _end(self, way: Way) -> None:
        self.ended += 1
        self.progress(self.ended, len(self.ways))
        self.on_outcome(way.outcome)

    def _tell_the_owner(self) -> None:
        """Keep which feeders failed; a run that did not come to one says what the last run said."""
        ways, fleet_id = self.ways.values(), self.config.fleet.id
        failed = [
            {"feeder": way.feeder.key, "name": way.feeder.name, "code": way.code, "problem": way.problem}
            for way in ways
            if way.problem is not None
        ]
        waiting = {way.feeder.name for way in ways if not (way.ended or way.examined or way.paid)}
        failed += [item for item in read_failures(self.state, fleet_id) if item.get("name") in waiting]
        content = {"marking": INTERNAL, "fleet": fleet_id, "failed": failed}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        self.state.write_internal(fleet_id, FAILURES_FILE, text.encode())


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
    public = config.model_dump(mode="json", exclude=_MAY_CHANGE, exclude_defaults=True)
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


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
    feeders: tuple[FeederPlan, ...]
    ingest: IngestReport | None = None

    @property
    def possible(self) -> bool:
        """Whether every feeder would be released: none is refused, and all accounts have enough left."""
        networks = [plan.network for plan in self.feeders if plan.network is not None]
        affordable = self.loads.affordable and all(network.affordable for network in networks)
        return affordable and all(plan.problem is None for plan in self.feeders)


def plan_fleet(
    config: FleetConfig, *, engine: Engine | None = None, progress: Progress | None = None
) -> FleetPlan:
    """Plan a fleet; every feeder is opened, the ledger is read, nothing is recorded.

    Parameters
    ----------
    engine : where feeders are opened; by default on all cores.
    progress : told how many feeders are checked.
    """
    engine = engine or engine_of(None, None)
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    run = _Run.open(config, state)
    found: dict[str, Stage] = {}

    def examined(stage: Stage) -> None:
        found[stage.name] = stage
        if progress is not None:
            progress(len(found), len(run.feeders))

    with engine.kept(AHEAD, len(run.feeders), FEEDERS_PER_PROCESS) as workers:
        cost = run.cost
        run.map(workers, map(run.task, run.ways.values()), examined)
    data = ChargedData(run.meters.identity, cost.loads_cap, config.fleet.continues_loads)
    loads = run.ledger.preview(data, cost.loads_cost, config.charged_under)
    if config.model.reuse is not None:
        refuse_unpaid_model(run.feeders[0].config, state, paid=loads.already_charged)
    seen: dict[str, dict[str, str]] = {}
    plans = tuple(_feeder_plan(run, seen, feeder, found[feeder.name]) for feeder in run.feeders)
    return FleetPlan(config, cost, loads, plans, run.source.ingest)


def _feeder_plan(run: _Run, seen: dict[str, dict[str, str]], feeder: FleetFeeder, stage: Stage) -> FeederPlan:
    """What the network would be charged; refused where it was begun otherwise.

    Parameters
    ----------
    seen : of the feeders before this one, frame → data set → key of the first feeder with it.
    """
    released, examined, network = run.ways[feeder.name].released, stage.said, None
    if not isinstance(examined, Examined):
        problem, code = run.problem_of(stage)
        return FeederPlan(feeder.key, feeder.name, released, problem, None, code)
    alike = seen.setdefault(examined.frame, {})
    try:
        plan, facts = run.plan(feeder, examined)
        if not released:
            run.refuse(feeder, plan, facts)
        network = preview_network(run.ledger, feeder.config, plan.network, examined.dataset)
        if network.account is None and examined.dataset not in alike:
            _refuse_unnamed(run.config, feeder, alike.values())
    except DpPowerflowError as error:
        return FeederPlan(feeder.key, feeder.name, released, str(error), network, error.code)
    finally:
        alike.setdefault(examined.dataset, feeder.key)
    return FeederPlan(feeder.key, feeder.name, released, None, network)


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
