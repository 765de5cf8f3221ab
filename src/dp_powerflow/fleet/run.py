"""A fleet: many feeders and one meter source become one corpus, feeder by feeder.

    out/fleet.json               what is promised of the whole, and the SHA-256 of every feeder's manifest
    out/feeder=<public name>/…   a complete release, which can be verified by itself

Releases are made in a staging directory beside `out` that other users cannot read, and moved when they are
finished. A feeder that fails is reported to the data owner and does not stop the rest: that it failed may be
a function of its network, so nothing in `out` says so. Run again, a fleet continues with what is missing.

Releases are made in this process, or in one of its own that is replaced now and then, for two reasons. An
engine of dss-python keeps about 2 MB for ever, so a process that opens thousands of feeders runs out of
memory. And a feeder that crashes the process that reads it must not stop the rest: here it is one failed
feeder, and the next one gets a new process.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol

from dp_powerflow._files import is_temporary, only_process, sync_directory, write_whole
from dp_powerflow._parallel import Engine, engine_of
from dp_powerflow._parallel.server import DEFECTS, ServerProcess
from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import storing
from dp_powerflow.errors import ChangedRequestError, ConfigError, DpPowerflowError
from dp_powerflow.fleet.accounts import (
    Customers,
    charge_customers,
    feeders_of,
    keep_own_model,
    keep_shared_model,
    plan_customers,
    services_of,
)
from dp_powerflow.fleet.attempts import changed_words, next_attempt
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import FleetFeeder, staging_of, write_register
from dp_powerflow.fleet.manifest import fleet_manifest, read_entries, release_at
from dp_powerflow.fleet.names import FLEET_FILE, attempt_of, first_id_of, partition
from dp_powerflow.fleet.overview import fleet_page, read_summaries
from dp_powerflow.fleet.repair import (
    Repair,
    clear_staging,
    keep_failures,
    remove_released,
    remove_withdrawn,
    restore,
    withdraw,
)
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.pipeline.inputs import keep_ingest, loads_chunks, meters_of
from dp_powerflow.pipeline.manifest.model import QUALITY_FILE, canonical_json
from dp_powerflow.pipeline.modes.base import Progress, mode_of
from dp_powerflow.pipeline.plan import Plan, preview_network
from dp_powerflow.pipeline.ready import make_ready, open_state
from dp_powerflow.pipeline.receipts import open_ledger
from dp_powerflow.pipeline.run import Say, run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.state import PrivateState

FEEDERS_PER_PROCESS = 100
"""What the command line takes: memory that OpenDSS never gives back stays well under a gigabyte."""
CONFIG_FILE = "fleet-config.sha256"
_MAY_CHANGE = {
    "fleet": {
        "feeders",
        "names",
        "output",
        "state",
        "epsilon_cap",
        "network_epsilon_cap",
        "network_delta_cap",
        "unrelated",
        "same_frame",
        "unrelated_loads",
        "continues_loads",
    },
    "feeder": {"taps"},
    "loads": {"path", "services"},
    "pv": {"irradiance"},
    "weather": {"path"},
}
"""What of a config may change between two runs of a fleet; the releases themselves check their inputs."""

_LOST = (
    "its process ended unexpectedly, perhaps for want of memory or because the feeder crashes OpenDSS; "
    "run the fleet again to resume"
)

_CHANGED = "changed request"

P = ParamSpec("P")


class Maker(Protocol):
    """Makes the releases of one fleet, one at a time."""

    def examine(self, config: Config) -> tuple[str, str]:
        """Identity and frame of a feeder's network; refuses what can be known to be wrong before a charge."""

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release, or finish it."""


@dataclass(frozen=True, eq=False, repr=False)
class HereMaker:
    """PRIVATE. In this process.

    Attributes
    ----------
    services : release id of a feeder → load points on it, where their nodes count; None where they do not.
    """

    engine: Engine
    history: LoadHistory
    services: Mapping[str, Collection[str]] | None = None

    def examine(self, config: Config) -> tuple[str, str]:
        """Open the feeder and look at it."""
        ready = make_ready(config, open_state(config), history=self._of(config))
        return ready.mode.identity(ready.inputs), ready.mode.frame(ready.inputs)

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release."""
        run_release(config, engine=self.engine, history=self._of(config), say=say, progress=progress)

    def _of(self, config: Config) -> LoadHistory:
        """The meter data, with the nodes of this feeder alone: others may have nodes of the same name."""
        if self.services is None:
            return self.history
        own, history = self.services[first_id_of(config.release.id)], self.history
        places = zip(history.load_points, history.node_of, strict=True)
        return replace(history, node_of=tuple(node if point in own else None for point, node in places))

    def __call__(self, request: tuple[str, Config], tell: Callable[[object], None]) -> tuple[str, str]:
        """Answer a request of `ProcessMaker`, in its process."""
        what, config = request
        if what == "examine":
            return self.examine(config)
        try:
            self.release(config, tell, lambda done, total: tell((done, total)))
        except ChangedRequestError as error:
            return _CHANGED, str(error)
        return "", ""


class ProcessMaker:
    """In a process of its own, which is replaced after some feeders and whenever it ends."""

    def __init__(self, process: ServerProcess[tuple[str, Config], tuple[str, str]]) -> None:
        self._process = process

    def examine(self, config: Config) -> tuple[str, str]:
        """Open the feeder and look at it."""
        return self._process.ask(("examine", config), lambda _: None)

    def release(self, config: Config, say: Say, progress: Progress | None) -> None:
        """Make one release."""

        def on_told(told: Any) -> None:
            if isinstance(told, str):
                say(told)
            elif progress is not None:
                progress(*told)

        what, problem = self._process.ask(("release", config), on_told)
        if what == _CHANGED:
            raise ChangedRequestError(problem)


@contextmanager
def maker_of(here: HereMaker, feeders_per_process: int | None) -> Iterator[Maker]:
    """What makes the releases; None makes them in this process."""
    if feeders_per_process is None:
        yield here
        return
    process = ServerProcess(here, feeders_per_process, _LOST)
    try:
        yield ProcessMaker(process)
    finally:
        process.stop()


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


def plan_fleet(
    config: FleetConfig, progress: Progress | None = None, feeders_per_process: int | None = None
) -> FleetPlan:
    """Plan a fleet; every feeder is opened, the ledger is looked at, nothing is recorded.

    Parameters
    ----------
    feeders_per_process : as of `run_fleet`.
    """
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    ledger = open_ledger(state)
    feeders = feeders_of(config, state, ledger)
    meters = meters_of(feeders[0].config, None)
    history = meters.history
    plans, alike = [], _Alike(config)
    here = HereMaker(engine_of(1, None), history, services_of(config, feeders, history))
    with maker_of(here, feeders_per_process) as maker:
        for done, feeder in enumerate(feeders, start=1):
            network, problem = None, None
            try:
                dataset, frame = maker.examine(feeder.config)
                asked = mode_of(feeder.config).charge("")
                network = preview_network(ledger, feeder.config, asked, dataset)
                problem = None if network.account is not None else alike.problem(feeder, dataset, frame)
                alike.add(feeder, dataset, frame)
            except (DpPowerflowError, OSError) as error:
                problem = str(error)
            released = (config.fleet.output / feeder.directory).exists()
            plans.append(FeederPlan(feeder.key, feeder.name, released, problem, network))
            if progress is not None:
                progress(done, len(feeders))
    cost = plan_customers(config, feeders[0].config, state, history).plan
    loads = ledger.preview(
        state.identity("loads", loads_chunks(history)),
        cost.loads_cap,
        cost.loads_cost,
        continues=config.fleet.continues_loads,
        release_id=config.charged_under,
    )
    return FleetPlan(config, cost, loads, tuple(plans), meters.ingest)


class _Alike:
    """PRIVATE. Feeders of the same frame, as they are looked at."""

    def __init__(self, config: FleetConfig) -> None:
        named = config.fleet.same_frame
        self._named = frozenset() if named is None else frozenset(named.feeders)
        self._seen: dict[str, dict[str, str]] = {}  # frame → data set → key of the first feeder with it

    def add(self, feeder: FleetFeeder, dataset: str, frame: str) -> None:
        self._seen.setdefault(frame, {}).setdefault(dataset, feeder.key)

    def problem(self, feeder: FleetFeeder, dataset: str, frame: str) -> str | None:
        """Why a new feeder would be refused: another one has its frame, and nobody says that they differ."""
        others = self._seen.get(frame, {})
        if dataset in others or feeder.config.release.continues_network is not None:
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


@dataclass(frozen=True)
class Outcome:
    """INTERNAL. What became of one feeder; `problem` is a sentence, None if it is released."""

    key: str
    name: str
    problem: str | None = None


@dataclass(frozen=True)
class FleetResult:
    """INTERNAL. Where the corpus is, and what became of every feeder, in the order of public names.

    `warnings` are public: why releases protect, or say, less than their owner may expect.
    `ingest` is what reading the meters found; None for simulated loads, and where nothing was left to read.
    """

    path: Path
    outcomes: tuple[Outcome, ...]
    internal: Path
    warnings: tuple[str, ...] = ()
    ingest: IngestReport | None = None

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.problem is not None)


OnOutcome = Callable[[Outcome], None]


def run_fleet(
    config: FleetConfig,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    feeders_per_process: int | None = None,
    repair: Repair = Repair(),  # noqa: B008
    say: Say = lambda _: None,
    progress: Progress | None = None,
    on_outcome: OnOutcome = lambda _: None,
) -> FleetResult:
    """Make the releases of a fleet, or those that are missing.

    Parameters
    ----------
    workers : parts of a feeder made at once on this machine, None for one per core.
    engine : where the feeders are solved instead, such as a Dask cluster.
    feeders_per_process : make the releases in a process of its own that is replaced after so many feeders: a
        feeder that crashes it is one failed feeder. None makes them in this process.
    repair : which feeders may begin a new attempt, and which are to be made again.
    say, progress : what is being done, and how much of it.
    on_outcome : called after every feeder (INTERNAL).

    Raises
    ------
    DpPowerflowError : the config, the meter data or the ledger, which all feeders share, is not usable.
    """
    engine = engine or engine_of(workers, None)
    engine.check()
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    internal = state.internal_directory(config.fleet.id)
    with only_process(internal):
        ledger = open_ledger(state)
        run = _Run(config, state, ledger, engine, feeders_per_process, repair, say, progress, on_outcome)
        outcomes = run.all()
    ingest = next(iter(run.ingest), None)
    return FleetResult(config.fleet.output, outcomes, internal, tuple(dict.fromkeys(run.warned)), ingest)


@dataclass(frozen=True, eq=False)
class _Run:
    """One run of a fleet; PRIVATE."""

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    engine: Engine
    feeders_per_process: int | None
    repair: Repair
    say: Say
    progress: Progress | None
    on_outcome: OnOutcome
    warned: list[str] = field(default_factory=list)
    ingest: list[IngestReport] = field(default_factory=list)

    def all(self) -> tuple[Outcome, ...]:
        """Make what is missing; whatever ends the run, `fleet.json` says what is there."""
        fleet = self.config.fleet
        restore(self.config, self.state, self.repair.restore)
        feeders = feeders_of(self.config, self.state, self.ledger)
        retried = self.repair.retried(self.config, self.state, feeders)
        _refuse_other_contents(fleet.output, fleet.id)
        missing = [feeder for feeder in feeders if not self._target(feeder).exists()]
        if missing:
            self._refuse_another_config()
        write_register(self.state, fleet.id, feeders)
        remove_withdrawn(self.config, self.state, partial(remove_released, self.config))
        outcomes = {feeder.name: Outcome(feeder.key, feeder.name) for feeder in feeders}
        try:
            for outcome in self._make(missing, retried):
                outcomes[outcome.name] = outcome
                self.on_outcome(outcome)
        finally:
            publish_manifest(self.config)
        self._keep_failures([outcome for outcome in outcomes.values() if outcome.problem is not None])
        return tuple(outcomes.values())

    def _make(self, missing: Sequence[FleetFeeder], retried: Collection[str]) -> Iterator[Outcome]:
        """One feeder after the other. What all share stops the run; what belongs to one feeder does not.

        The customers are charged when the first feeder has turned out usable: a fleet that cannot release
        anything costs nothing.
        """
        if not missing:
            return
        self.say("reading the meter data")
        history = self._read_meters(missing[0])
        customers: Customers | None = None
        here = HereMaker(self.engine, history, services_of(self.config, missing, history))
        with maker_of(here, self.feeders_per_process) as maker:
            for number, feeder in enumerate(missing, start=1):
                prefix, problem = f"{number}/{len(missing)} {feeder.name}", None
                self.say(f"{prefix}: reading the feeder")
                if customers is None:
                    problem = self._try(feeder, maker.examine, feeder.config)
                    customers = None if problem is not None else self._pay(feeder, history)
                if customers is not None:
                    release = partial(self._release, customers=customers, maker=maker, prefix=prefix)
                    problem = self._try(feeder, self._attempt, feeder, release, feeder.key in retried)
                yield Outcome(feeder.key, feeder.name, problem)

    def _read_meters(self, feeder: FleetFeeder) -> LoadHistory:
        """PRIVATE. The meter data, read once for all feeders; what was found is kept and told."""
        meters = meters_of(feeder.config, None)
        if meters.ingest is not None:
            keep_ingest(self.state, self.config.fleet.id, meters.ingest)
            self.ingest.append(meters.ingest)
        return meters.history

    def _pay(self, feeder: FleetFeeder, history: LoadHistory) -> Customers:
        """Charge the customers, and fit the model that all feeders share."""
        self.say("fitting the load model" if self.config.fleet.models == "one" else "charging the customers")
        customers = plan_customers(self.config, feeder.config, self.state, history)
        for warning in customers.plan.warnings:
            self.say(warning)
        charge_customers(self.config, self.state, self.ledger, customers)
        keep_shared_model(self.config, feeder.config, self.state, customers)
        self.warned.extend((*customers.plan.warnings, *customers.plan.notes))
        return customers

    def _attempt(self, feeder: FleetFeeder, release: Callable[[FleetFeeder], None], retried: bool) -> None:
        """One feeder: the attempt that has begun, or the next one where that was begun otherwise."""
        try:
            release(feeder)
        except ChangedRequestError:
            if not retried:
                raise ChangedRequestError(changed_words(feeder)) from None
            clear_staging(self.config, feeder.name)
            release(next_attempt(feeder, self.state, self.ledger))

    def _release(self, feeder: FleetFeeder, customers: Customers, maker: Maker, prefix: str) -> None:
        """One feeder: its model, its release in the staging directory, and the move."""
        keep_own_model(self.config, feeder, self.state, customers)
        with storing(staging_of(self.config)):
            staging_of(self.config).mkdir(mode=0o700, parents=True, exist_ok=True)
        maker.release(feeder.config, lambda text: self.say(f"{prefix}: {text}"), self.progress)
        self.warned.extend(mode_of(feeder.config).warnings)
        self.state.write_internal(self.config.fleet.id, CONFIG_FILE, _config_sha256(self.config).encode())
        target = self._target(feeder)
        with storing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            (staging_of(self.config) / feeder.directory).rename(target)
            sync_directory(target.parent)

    def _try(
        self, feeder: FleetFeeder, action: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> str | None:
        """Do something with one feeder; a sentence on why it failed, None if it did not."""
        try:
            action(*args, **kwargs)
        except (DpPowerflowError, OSError) as error:
            return str(error)
        except DEFECTS:
            # The text of such an error may quote private values; the file does not leave the data owner.
            kept = self.state.write_internal(
                self.config.fleet.id, f"{feeder.name}-traceback.txt", traceback.format_exc().encode()
            )
            return f"a defect of the program; report it, the details are in {kept}"
        return None

    def _target(self, feeder: FleetFeeder) -> Path:
        return self.config.fleet.output / feeder.directory

    def _refuse_another_config(self) -> None:
        kept = self.state.read_internal(self.config.fleet.id, CONFIG_FILE)
        if kept is not None and kept.decode() != _config_sha256(self.config):
            raise ConfigError(
                f"feeders of fleet '{self.config.fleet.id}' were released with another config; restore it, "
                "put what one feeder needs under overrides, or choose a new fleet id and set model.reuse to "
                "the old one"
            )

    def _keep_failures(self, failed: Sequence[Outcome]) -> None:
        found = [{"feeder": item.key, "name": item.name, "problem": str(item.problem)} for item in failed]
        keep_failures(self.state, self.config.fleet.id, found)


def withdraw_feeders(config: FleetConfig, wanted: Collection[str]) -> tuple[str, ...]:
    """Take feeders out of a fleet and of its corpus; makes nothing. Public names of all that were taken out.

    Parameters
    ----------
    wanted : keys or public names.

    Raises
    ------
    DpPowerflowError : a feeder was never part of the fleet, or the corpus cannot be written.
    """
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    with only_process(state.internal_directory(config.fleet.id)):
        _refuse_other_contents(config.fleet.output, config.fleet.id)
        names = withdraw(config, state, wanted, partial(remove_released, config))
        publish_manifest(config)
    return names


def publish_manifest(config: FleetConfig) -> None:
    """The page and `fleet.json` from what is there; functions of the published feeders alone."""
    fleet, staging = config.fleet, staging_of(config)
    with storing(fleet.output):
        if staging.is_dir() and not any(staging.iterdir()):
            staging.rmdir()
        if not fleet.output.is_dir():
            return
    entries = read_entries(fleet.output)
    with storing(fleet.output):
        if not entries:
            for name in (FLEET_FILE, QUALITY_FILE):
                (fleet.output / name).unlink(missing_ok=True)
            return
        page = fleet_page(fleet.id, entries, read_summaries(fleet.output, entries)).to_html()
    digest = hashlib.sha256(page).hexdigest()
    content = canonical_json(fleet_manifest(fleet.id, fleet.models, entries, digest))
    with storing(fleet.output):
        write_whole(fleet.output / QUALITY_FILE, page)
        write_whole(fleet.output / FLEET_FILE, content)


def _config_sha256(config: FleetConfig) -> str:
    """Hash of the public choices that all feeders of a fleet share."""
    # Without what is left at its default: a key that a later version adds is no change of this config.
    public = config.model_dump(mode="json", exclude=_MAY_CHANGE, exclude_defaults=True)
    public.pop("overrides", None)
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _refuse_other_contents(output: Path, fleet_id: str) -> None:
    """A directory that holds anything but this fleet is left alone."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"{output} is not a directory; choose another fleet.output")
    for path in output.iterdir():
        if path.name.startswith((FLEET_FILE, QUALITY_FILE)) and is_temporary(path.name):
            path.unlink(missing_ok=True)
        elif path.name not in (FLEET_FILE, QUALITY_FILE) and not _is_of(fleet_id, path):
            raise ConfigError(
                f"{output} holds {path.name}, which is not of fleet '{fleet_id}'; choose another fleet.output"
            )


def _is_of(fleet_id: str, path: Path) -> bool:
    found = release_at(path)
    return (
        found is not None and attempt_of(found, fleet_id, path.name.removeprefix(partition(""))) is not None
    )
