"""A fleet: many feeders and one meter source become one corpus.

    out/fleet.json               what is promised of the whole, and the SHA-256 of every feeder's manifest
    out/feeder=<public name>/…   a complete release, which can be verified by itself

A feeder is the unit of work: workers make whole feeders at once (`dispatch`, `worker`), this process charges,
keeps and publishes. A feeder that fails is reported to the data owner and does not stop the rest: that it
failed may be a function of its network, so nothing in `out` says so. Run again, a fleet continues with what
is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Engine, Needs, engine_of
from dp_powerflow._spending import of_one_feeder, true_words
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import ConfigError, DpPowerflowError
from dp_powerflow.fleet.accounts import feeders_of
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.dispatch import Dispatcher, Progressing
from dp_powerflow.fleet.events import FeederEvent, FeederState, OnEvent, hear_nothing
from dp_powerflow.fleet.feeders import FleetFeeder, source_files, write_register
from dp_powerflow.fleet.internal_page import (
    INTERNAL_PAGE,
    AccountRecord,
    FeederRecord,
    FleetRecord,
    internal_page,
)
from dp_powerflow.fleet.large import make_here
from dp_powerflow.fleet.names import release_id_of
from dp_powerflow.fleet.owner import FleetOwner, record_of
from dp_powerflow.fleet.publishing import Shelf, shelf_of
from dp_powerflow.fleet.repair import (
    AS_IT_IS,
    Repair,
    keep_failures,
    read_failures,
    read_names,
    remove_withdrawn,
    restore,
    withdraw,
)
from dp_powerflow.fleet.warned import Warned
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.pipeline.inputs import keep_ingest, meters_of
from dp_powerflow.pipeline.modes.base import OWNER_FILE, mode_of
from dp_powerflow.pipeline.ready import Say
from dp_powerflow.pipeline.receipts import REQUEST_FILE, committed, is_begun, open_ledger
from dp_powerflow.pipeline.run import mended_words
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState

FEEDERS_PER_PROCESS = 100
"""Feeders after which a worker process is replaced: an engine of dss-python keeps about 2 MB for ever, so
that a process that opens thousands of feeders runs out of memory."""
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
    repair: Repair = AS_IT_IS,
) -> FleetResult:
    """Make the releases of a fleet, or those that are missing.

    Parameters
    ----------
    workers : feeders made at once on this machine, None for one per core.
    engine : where the feeders are made instead, such as a Dask cluster.
    say : told what is being done for all feeders.
    on_event : hears where every feeder is.
    on_outcome : called after every feeder (INTERNAL).
    repair : which feeders may begin a new attempt, and which are to be made again.

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
        run = _Run(config, state, open_ledger(state), engine, shelf, say, on_event, on_outcome)
        outcomes = run.all(repair)
    return FleetResult(shelf.place, outcomes, internal, run.warned.sentences(), run.ingest)


@dataclass(eq=False, repr=False)
class _Run:
    """One run of a fleet; PRIVATE."""

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    engine: Engine
    shelf: Shelf
    say: Say
    on_event: OnEvent
    on_outcome: OnOutcome
    warned: Warned = field(default_factory=Warned)
    ingest: IngestReport | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    records: dict[str, FeederRecord] = field(default_factory=dict)
    customers: AccountRecord | None = None
    steps: int = 0
    config_kept: bool = False
    retried: set[str] = field(default_factory=set)

    def all(self, repair: Repair) -> tuple[Outcome, ...]:
        """Make what is missing; whatever ends the run, `fleet.json` says what is there."""
        fleet = self.config.fleet
        restore(self.config, self.state, repair.restore)
        feeders = feeders_of(self.config, self.state, self.ledger)
        _refuse_others(self.shelf, self.state)
        self.retried = repair.retried(self.config, self.state, feeders, self.shelf)
        remove_withdrawn(self.config, self.state, self.shelf.remove)
        missing = [feeder for feeder in feeders if not self.shelf.has(feeder.name)]
        if missing:
            self._refuse_another_config()
            self.shelf.prepare()
        write_register(self.state, fleet.id, feeders)
        self.outcomes = {feeder.name: Outcome(feeder.key, feeder.name) for feeder in feeders}
        waiting = {feeder.name for feeder in missing}
        for feeder in feeders:
            state: FeederState = "waiting" if feeder.name in waiting else "released"
            self.records[feeder.name] = FeederRecord(
                feeder.key, feeder.name, state, release_id=feeder.release_id
            )
            self.on_event(FeederEvent(feeder.name, state))
        try:
            if missing:
                self._make(missing)
        finally:
            self.say("what is said of the whole")
            self.shelf.discard_staging(keep=waiting)
            self.shelf.write_manifest(fleet.models)
            self._write_internal()
        return tuple(self.outcomes.values())

    def _write_internal(self) -> None:
        """INTERNAL. What became of every feeder: for programs, and as a page."""
        fleet_id, warned = self.config.fleet.id, self.warned.sentences()
        failed = [
            {"feeder": o.key, "name": o.name, "problem": o.problem}
            for o in self.outcomes.values()
            if o.problem is not None
        ]
        waiting = {record.name for record in self.records.values() if record.state == "waiting"}
        before = read_failures(self.state, fleet_id)  # of those that this run did not come to
        keep_failures(self.state, fleet_id, [*failed, *(item for item in before if item["name"] in waiting)])
        records = tuple(self.records[name] for name in sorted(self.records))
        page = internal_page(FleetRecord(fleet_id, records, self.customers, warned)).to_html()
        self.state.write_internal(fleet_id, INTERNAL_PAGE, page)

    def _make(self, missing: Sequence[FleetFeeder]) -> None:
        """What all feeders share stops the run; what belongs to one feeder does not.

        The customers are charged when a feeder has turned out usable: a fleet that cannot release anything
        costs nothing.
        """
        self.say("reading the meter data")
        history = self._read_meters(missing[0])
        owner = FleetOwner(
            self.config,
            self.state,
            self.ledger,
            self.shelf,
            history,
            missing,
            self.say,
            self._end,
            self.retried,
        )
        self.steps = owner.meters.n_steps
        dispatcher = Dispatcher(owner, missing, self.on_event)
        with (
            self._unpaid_is_forgotten(dispatcher),  # once no worker is left
            self.engine.crew(dispatcher.told, FEEDERS_PER_PROCESS) as crew,
        ):

            def give() -> None:
                self.warned.of_all(*owner.warned)
                crew.give(owner.job(elsewhere=self.engine.splits))

            owner.on_model = give
            give()
            if owner.paid_before:
                owner.usable()
            dispatcher.run(crew, splits=self.engine.splits)
        self.customers = owner.account_record()
        for way in dispatcher.large:
            make_here(way, owner, self.engine, self.on_event)

    @contextmanager
    def _unpaid_is_forgotten(self, dispatcher: Dispatcher) -> Iterator[None]:
        """Of feeders that a run leaves unpaid, nothing stays where the corpus will be.

        But what an earlier run has paid for stays: this one had not come to it yet.
        """
        try:
            yield
        finally:
            for way in dispatcher.unpaid():
                if not is_begun(self.state, way.feeder.release_id):
                    with suppress(DpPowerflowError):
                        self.shelf.forget(way.feeder.name, way.feeder.release_id)

    def _end(self, way: Progressing) -> None:
        """One feeder is at its end."""
        if way.problem is not None:
            paid = way.paid is not None and way.paid.spend is not None
            begun = is_begun(self.state, way.feeder.release_id)
            way.problem = of_one_feeder(way.problem, paid=paid or begun)
        outcome = Outcome(way.feeder.key, way.feeder.name, way.problem)
        self.outcomes[outcome.name] = outcome
        owner = self.state.read_internal(way.feeder.release_id, OWNER_FILE)
        self.records[outcome.name] = record_of(way, owner)
        if way.problem is None and way.made is not None:
            mode = mode_of(way.feeder.config)
            self.warned.of_all(*mode.warnings, *way.made.notes)
            mended = mended_words(way.made, mode.config.release.days * self.steps)
            self.warned.of_feeder(outcome.name, *mended, *(way.examined.warnings if way.examined else ()))
            if not self.config_kept:  # from the first released feeder on, the config of the fleet stays
                content = _config_sha256(self.config).encode()
                self.state.write_internal(self.config.fleet.id, CONFIG_FILE, content)
                self.config_kept = True
        self.on_outcome(outcome)

    def _read_meters(self, feeder: FleetFeeder) -> LoadHistory:
        """PRIVATE. The meter data, read once for all feeders; what was found is kept and told."""
        meters = meters_of(feeder.config, None)
        if meters.ingest is not None:
            keep_ingest(self.state, self.config.fleet.id, meters.ingest)
            self.ingest = meters.ingest
        return meters.history

    def _refuse_another_config(self) -> None:
        kept = self.state.read_internal(self.config.fleet.id, CONFIG_FILE)
        if kept is not None and kept.decode(errors="replace") != _config_sha256(self.config):
            raise ConfigError(
                f"feeders of fleet '{self.config.fleet.id}' were released with another config; restore it, "
                "put what one feeder needs under overrides, or choose a new fleet id and set model.reuse to "
                "the old one"
            )


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
        shelf = shelf_of(config.fleet.output, config.fleet.id)
        _refuse_others(shelf, state)
        names = withdraw(config, state, wanted, shelf.remove)
        for name in names:
            shelf.forget(name, release_id_of(config.fleet.id, name))
        shelf.discard_staging(keep=read_names(state, config.fleet.id) - set(names))
        shelf.write_manifest(config.fleet.models)
    return names


def _refuse_others(shelf: Shelf, state: PrivateState) -> None:
    """Leave alone a place that holds anything but this fleet, as this private state made it."""
    shelf.refuse_other_contents()
    shelf.refuse_other_states(partial(committed, state), partial(is_begun, state))


def _is_begun(state: PrivateState, fleet_id: str) -> bool:
    """Whether an earlier run has charged the customers or a feeder."""
    every = ((kept, names) for kept, names in state.internal_files() if kept.partition("_")[0] == fleet_id)
    return any(REQUEST_FILE in names for _, names in every)


def _config_sha256(config: FleetConfig) -> str:
    """Hash of the public choices that all feeders of a fleet share."""
    # Without what is left at its default: a key that a later version adds is no change of this config.
    public = config.model_dump(mode="json", exclude=_MAY_CHANGE, exclude_defaults=True)
    public.pop("overrides", None)
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()
