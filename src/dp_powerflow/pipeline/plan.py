"""Everything that is asked before anything is spent, in one path that `plan` and `release` share.

    state → feeder, sun, days, weather → controls → disk, permissions → the feeder's own file
          → power flow on public loads → meters → ledger → cost

What takes long comes last. What `plan` refuses, `release` refuses with the same sentence.

**Receipts.** The ledger and its anchor guard each other, but an old ledger with its old anchor, put back
from a backup, looks right. So every release keeps in the private state which entries of the ledger paid for
it, and `open_ledger` looks for all of them. What an older copy of the *whole* directory hides, only releases
outside can tell: see `fleet.verify`.

**Outlook.** How wrong noise makes the loads is found out with public stand-ins, never with a meter:
simulated homes from a public seed, with the spread of levels that homes of a place have. The estimator of
the release is fitted to them again and again, with the noise that is due to the public number of customers,
and once without. The relative noise of an average goes with 1/(n·√ρ), so a few stand-ins with a larger
budget have the noise of many.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dp_powerflow._bits.elementary import exp, log1
from dp_powerflow._names import DRAWS, __version__
from dp_powerflow._threads import in_order
from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import RemotePath, in_time, location
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, OutputTakenError, PrivacyError, PrivateStateError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory, MeterFacts, steps_per_day
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.manifest.build import delta_problem
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.manifest.twin import version_of
from dp_powerflow.manifest.verify import release_at
from dp_powerflow.model.derive import FitOutcome, planned_queries
from dp_powerflow.model.fit import WeakBudgetWarning, fit, history_facts
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import PredictedError, predicted_errors
from dp_powerflow.model.history.numbers import ndtri
from dp_powerflow.model.options import DayFacts, FitOptions, FixedPowerFactor, HistoryFacts, PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline.customers import Services, draw_customers
from dp_powerflow.pipeline.feasibility import Feasibility
from dp_powerflow.pipeline.modes.base import NetworkCharge, NetworkFacts, NetworkMode, mode_of
from dp_powerflow.pipeline.parts import layout_of
from dp_powerflow.powerflow.comparison import check_reading
from dp_powerflow.privacy.budget import (
    Budget,
    PrivacyUnit,
    QueryCost,
    epsilon_to_rho,
    rho_to_epsilon,
    total_rho,
)
from dp_powerflow.privacy.ledger.accounts import LoadsCap, LoadsCost, Promised
from dp_powerflow.privacy.ledger.book import ChargedData, Ledger
from dp_powerflow.privacy.ledger.records import Preview, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import RECEIPT, PrivateState
from dp_powerflow.units import FloatArray

BYTES_PER_PHASOR = 5
"""Of a voltage in the files of a corpus; a power takes about as much."""
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False, repr=False)
class Ready:
    """PRIVATE. A release that nothing speaks against but its price.

    Attributes
    ----------
    mode : how the network is treated.
    structure : has the nodes, loads and controls of the network that will be solved.
    feasibility : what public loads do on it; not checked once the release is begun and paid for.
    corpus_bytes : PUBLIC. How large the corpus will be, about.
    """

    inputs: assembly.ReleaseInputs
    mode: NetworkMode[Any]
    structure: Feeder
    feasibility: Feasibility
    corpus_bytes: int


def open_state(config: Config) -> PrivateState:
    """The private state directory of a config; refused if this user cannot write there."""
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    if not os.access(state.root, os.W_OK | os.X_OK):
        raise PrivateStateError(
            f"the private state directory {state.root} cannot be written by this user, and a release keeps "
            "its ledger there; run as its owner, or correct its permissions; nothing was spent"
        )
    return state


def make_ready(
    config: Config,
    state: PrivateState,
    *,
    history: LoadHistory | MeterFacts | None = None,
    say: Say = lambda _: None,
) -> Ready:
    """Read and check what a release is made from; nothing is spent, and nothing is written.

    Parameters
    ----------
    history : PRIVATE. The meter data of the config, or their facts, if they were read already.
    say : told what is being done.

    Raises
    ------
    DpPowerflowError : the release would be refused.
    """
    mode = mode_of(config)
    say("reading the feeder")
    declared = assembly.declared_services(config) if history is None else Services.of(config, history)
    network = assembly.read_network(config, state, steps_per_day(config.loads.step_minutes), declared)
    say("checking feeder, controls and sun")
    network.almanac.check_meters(assembly.declared_days(config))
    if declared is not None:
        assembly.check_declared(config, network.feeder, declared)
    structure = mode.check(network)
    size = check_room(mode, network, structure)
    feasibility = Feasibility()
    if not is_begun(state, config.release.id):  # what is paid for is finished
        say("comparing the feeder with its file")
        check_reading(network.feeder, config.feeder.accept_difference, acting=mode.solver(1).acts)
        say("power flow on public loads")
        feasibility = mode.feasibility(network, structure)
    inputs = assembly.read_inputs(config, state, network=network, history=history, say=say)
    if declared is None:
        structure = mode.check(inputs)  # now that it is known which loads the meter data are of
    return Ready(inputs, mode, structure, feasibility, size)


def check_room(mode: NetworkMode[Any], inputs: assembly.NetworkInputs, structure: Feeder) -> int:
    """Bytes of the corpus, about; refuses a place that cannot hold it. Nothing stays there.

    Raises
    ------
    CorpusError : the output exists, cannot be made there, or would not fit on the disk; or the store does
        not answer.
    """
    release = inputs.config.release
    steps = steps_per_day(inputs.config.loads.step_minutes)
    writer = writer_of(mode, structure, inputs.solar_on(structure), steps)
    layout, extras, target = writer.layout, writer.extras, writer.target
    per_node = BYTES_PER_PHASOR * (1 + extras.loads + extras.generation)
    per_day = layout.steps * layout.nodes * per_node
    if isinstance(target, RemotePath):  # a store has no size
        in_time(partial(_check_store, writer, inputs.state), target)
        return release.days * per_day
    if seems_made(writer, inputs.state):
        return release.days * per_day
    if os.path.lexists(target):
        raise OutputTakenError(f"{target} exists already; choose another directory or remove it first")
    for stage in writer.stages():  # one, or it is refused once it is known which is one's own
        if not is_begun(inputs.state, release.id):
            writer.refuse_other_stages()
        writer = replace(writer, stage=stage)
    place = next(folder for folder in target.parents if os.path.lexists(folder))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise CorpusError(
            f"{target} cannot be made: this user cannot write to {place}; correct its permissions, or choose "
            "another release.output; nothing was spent",
            code="output-unwritable",
        )
    needed = sum(len(layout.days_of(part)) for part in writer.missing_parts()) * per_day
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CorpusError(
            f"the corpus takes about {needed / 1e6:,.1f} MB and the disk of {target} has "
            f"{free / 1e6:,.1f} MB left; free some space, choose another release.output or release fewer "
            "days; nothing was spent",
            code="disk-full",
        )
    return release.days * per_day


def writer_of(mode: NetworkMode[Any], feeder: Feeder, solar: assembly.Solar, steps: int) -> CorpusWriter:
    """Where the corpus of a release goes, and its shape.

    Parameters
    ----------
    feeder : has the nodes, loads and controls of the network that is solved.
    steps : of a day.
    """
    release = mode.config.release
    layout = layout_of(release.days, steps, len(mode.released_nodes(feeder)), mode.drawn(feeder))
    return CorpusWriter(location(release.output), layout, release.id, mode.extras(feeder, solar))


def is_made(writer: CorpusWriter, state: PrivateState) -> bool:
    """Whether this very release is finished: its manifest commits to the report that the state keeps."""
    own = writer.release_id, committed(state, writer.release_id)
    return writer.finished and release_at(writer.target) == own


def seems_made(writer: CorpusWriter, state: PrivateState) -> bool:
    """Whether this very release is finished, or one of its id that was begun here and left no report.

    In a fleet a worker finishes a release, and its report is kept afterwards: a run that is killed in between
    finds both again. Whether they agree is known once the report is made again (`make`).
    """
    if is_made(writer, state):
        return True
    unreported = committed(state, writer.release_id) is None and is_begun(state, writer.release_id)
    if not (unreported and writer.finished):
        return False
    found = release_at(writer.target)
    return found is not None and found[0] == writer.release_id


def _check_store(writer: CorpusWriter, state: PrivateState) -> None:
    """Refuse a URL at which a release cannot be made, unless it is made already."""
    if writer.remote is not None and not seems_made(writer, state):
        writer.remote.check(begun=is_begun(state, writer.release_id))


REQUEST_FILE = assembly.REQUEST_FILE
REPORT_FILE = "report.json"
COMMITMENT = "internal report"
"""What the manifest commits to, as the commitment names it."""
_PREFIX, _SUFFIX = RECEIPT, ".json"
_TWIN_DIGITS = 16
_TWIN_FILE = re.compile(rf"twin-([0-9a-f]{{{_TWIN_DIGITS}}})\.json")
_DERIVED_FILE = re.compile(r"model-from-(.+)\.json")


def open_ledger(state: PrivateState) -> Ledger:
    """The ledger, to plan or make a release with: every charge that a release remembers must be in it.

    Raises
    ------
    PrivacyError : the ledger does not pass its own check, or lacks a charge.
    """
    ledger = Ledger.open(state)
    spends = ledger.spends()
    entries = {(s.account, s.entry, s.release_id, s.request_sha256) for s in spends}
    requests = {(s.release_id, s.request_sha256) for s in spends}
    of_data: dict[str, set[str]] = {}  # first digits of the identity of data → ids that were charged for them
    for spend in spends:
        of_data.setdefault(spend.dataset[:_TWIN_DIGITS], set()).add(spend.release_id)
    for release_id, names in state.internal_files():
        for receipt in _receipts(state, release_id, names):
            if receipt not in entries:
                raise _lacks(release_id, f"entry {receipt[1]}, which paid for it from account {receipt[0]}")
        # Below: what versions without receipts left, too.
        own_model = {REQUEST_FILE, MODEL_FILE} <= names and "_" not in release_id
        if own_model:  # a fleet pays for models of feeders
            begun = (state.read_internal(release_id, REQUEST_FILE) or b"").decode(errors="replace")
            if (release_id, begun) not in requests:
                raise _lacks(release_id, "the one that paid for its load model")
        twin_id = release_id.removeprefix("twin-")
        for kept in (found[1] for found in map(_TWIN_FILE.fullmatch, sorted(names)) if found):
            if not any(version_of(charged, twin_id) for charged in of_data.get(kept, ())):
                raise _lacks(twin_id, "the one that paid for the twin")
    return ledger


def is_begun(state: PrivateState, release_id: str) -> bool:
    """Whether this private state has begun a release, and paid for its load model."""
    return state.read_internal(release_id, REQUEST_FILE) is not None


def was_charged(state: PrivateState, charged: Callable[[str], bool]) -> bool:
    """Whether the ledger has a charge under such an id without a receipt: a run was killed just after it.

    Parameters
    ----------
    charged : whether an id is meant; the id of a twin serves many releases.
    """
    if not state.ledger_path.exists():
        return False
    receipts = {name for _, names in state.internal_files() for name in names if is_receipt(name)}
    try:
        spends = Ledger.open(state, create=False).spends()
    except PrivacyError:
        return False  # which is refused where it is opened
    return any(charged(spend.release_id) and _receipt_of(spend) not in receipts for spend in spends)


def committed(state: PrivateState, release_id: str) -> str | None:
    """What the manifest of a release made with this private state commits to; None if it has no report."""
    report = state.read_internal(release_id, REPORT_FILE)
    return None if report is None else state.commit(release_id, COMMITMENT, report)


def keep_receipt(state: PrivateState, release_id: str, spend: Spend) -> None:
    """Remember, under a release, an entry of the ledger that paid for it."""
    content = {"account": spend.account, "charged under": spend.release_id, "request": spend.request_sha256}
    state.write_internal(release_id, _receipt_of(spend), json.dumps(content, sort_keys=True).encode() + b"\n")


def _receipt_of(spend: Spend) -> str:
    return f"{_PREFIX}{spend.entry}{_SUFFIX}"


def is_receipt(name: str) -> bool:
    """Whether an internal file of this name is a receipt."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _receipts(state: PrivateState, release_id: str, names: Set[str]) -> Iterator[tuple[str, int, str, str]]:
    """Account, entry, id that was charged, and request, of every receipt of a release."""
    for name in filter(is_receipt, sorted(names)):
        fields = _fields(state, release_id, name)
        entry = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        yield str(fields["account"]), entry, str(fields["charged under"]), str(fields["request"])


def _fields(state: PrivateState, release_id: str, name: str) -> dict[str, Any]:
    """What a receipt says, all of it."""
    try:
        fields = json.loads(state.read_internal(release_id, name) or b"")
        int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        if {"account", "charged under", "request"} <= fields.keys():
            return dict(fields)
    except (ValueError, AttributeError, RecursionError):
        pass
    raise PrivacyError(
        f"the receipt {name} of release '{release_id}' in the private state is damaged; restore it from a "
        "backup; nothing was spent",
        code="ledger-damaged",
    )


def keep_derived_model(state: PrivateState, release_id: str, reused: str | None, model: LoadModel) -> None:
    """Remember, under a release, a model that it draws from and that is not the one another release keeps.

    Parameters
    ----------
    reused : the release whose noisy answers it is derived from, and which has paid for them.
    """
    content = model.to_json().encode()
    if reused is not None and content != state.read_internal(reused, MODEL_FILE):
        state.write_internal(release_id, f"model-from-{reused}.json", content)


def kept_models(state: PrivateState) -> Iterator[tuple[str, bytes]]:
    """Release that paid, and content, of every load model that is kept."""
    for release_id, names in state.internal_files():
        for name in sorted(names):
            derived = _DERIVED_FILE.fullmatch(name)
            if name == MODEL_FILE or derived:
                paid_by = derived[1] if derived else release_id
                yield paid_by, state.read_internal(release_id, name) or b""


def _lacks(release_id: str, what: str) -> PrivacyError:
    return PrivacyError(
        f"the ledger lacks a charge of release '{release_id}' ({what}), so an older copy of the ledger was "
        "put back; restore the newest backup of the private state directory; nothing was spent",
        code="ledger-damaged",
    )


_NOT_PART_OF_THE_REQUEST = {
    "release": {
        *("output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"),
        *("continues_loads", "continues_network"),  # which account is charged, not what is released
    },
    "feeder": {"source", "taps", "loads"},
    "loads": {"path", "services", "classes"},
    "pv": {"irradiance"},
    "calendar": {"holidays"},
    "weather": {"path"},
}


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
    estimator : of the load model, and why; None where an earlier model is taken.
    predicted : how wrong noise will make the load model, from public figures.
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
    estimator: assembly.ChosenEstimator | None = None
    predicted: tuple[PredictedError, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """PUBLIC. Why the load model would be worth little; said before anything is spent."""
        large = [error for error in self.predicted if error.too_large]
        if not large:
            return ()
        listed = "; ".join(error_in_words(error) for error in large)
        return (
            "Load points are too few for this epsilon, at least in the smallest class. Noise will do this: "
            f"{listed}. Raise model.epsilon, give more load points, or pool classes.",
        )


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    """What a release would cost and what it would leave.

    Attributes
    ----------
    mode : how the network is treated.
    loads, network : both accounts of the ledger, before and after.
    yearly : what releases like this one cost if they are made every year.
    feasibility : what public loads do on public stand-ins, and INTERNAL on the network itself.
    corpus_bytes : how large the corpus would be, about.
    ingest : INTERNAL. What reading the meters found; None for simulated loads.
    """

    mode: NetworkMode[Any]
    plan: Plan
    loads: Preview
    network: Preview
    yearly: tuple[YearlyCost, ...]
    feasibility: Feasibility
    corpus_bytes: int
    ingest: IngestReport | None = None

    @property
    def affordable(self) -> bool:
        """Whether both accounts have enough left."""
        return self.loads.affordable and self.network.affordable


def plan(config: Config, say: Callable[[str], None] = lambda _: None) -> PlannedRelease:
    """Read and check what a release is made from, and read the ledger; nothing is spent.

    Parameters
    ----------
    say : told what is being done.

    Raises
    ------
    DpPowerflowError : the release would be refused.
    """
    state = open_state(config)
    ready = make_ready(config, state, say=say)
    inputs, mode = ready.inputs, ready.mode
    found, facts, ledger = decided(ready, say)
    customers = ChargedData(inputs.loads_identity, found.loads_cap, config.release.continues_loads)
    loads = ledger.preview(customers, found.loads_cost, config.model.reuse or config.release.id)
    refuse_unpaid_model(config, state, paid=loads.already_charged)
    network = preview_network(ledger, config, found.network, facts.dataset)
    whole = mode.charge(found.request_sha256)
    cap: Any = whole.cap
    kept = None if mode.kept_under is None else cap.promised([whole.cost])
    yearly = tuple(
        YearlyCost(n, found.loads_cap.promised([found.loads_cost] * n), cap.promised([whole.cost] * n), kept)
        for n in YEARS
    )
    size, ingest = ready.corpus_bytes, inputs.ingest
    return PlannedRelease(mode, found, loads, network, yearly, ready.feasibility, size, ingest)


def preview_network(ledger: Ledger, config: Config, asked: NetworkCharge, dataset: str) -> Preview:
    """What the charge of the network would do to the account of a data set."""
    data = ChargedData(dataset, asked.cap, config.release.continues_network)
    return ledger.preview(data, asked.cost, asked.paid_by)


def error_in_words(error: PredictedError) -> str:
    """An error in a phrase: mean load −26 to +42 % (RMS 20 to 45 %), shape of the mean day ± 5 %."""
    if error.between is None:
        return f"{error.what} ± {100.0 * error.error:.2g} %"
    low, high = (f"{100.0 * end:+.0f}".replace("-", "−") for end in error.between)
    rms = " to ".join(f"{100.0 * own:.0f}" for own in sorted(error.by_spread))
    return f"{error.what} {low} to {high} % (RMS {rms} %)"


def decided(ready: Ready, say: Callable[[str], None]) -> tuple[Plan, NetworkFacts, Ledger]:
    """What a release costs, by its inputs, the ledger and what was paid before; nothing is recorded.

    `plan` shows it and `release` charges it: what one refuses the other refuses.
    """
    inputs, mode = ready.inputs, ready.mode
    refuse_another_model(inputs)
    ledger, facts = open_ledger(inputs.state), mode.facts(inputs)
    found = plan_release(inputs.config, inputs.history, inputs.identity, inputs.almanac, say)
    return replace(found, network=mode.charge_of(found.network, facts, inputs.state, ledger)), facts, ledger


def plan_release(
    config: Config,
    history: LoadHistory | MeterFacts,
    inputs: str,
    almanac: assembly.Almanac | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan from the public facts of the history: its size, labels and scales; no reading plays a part.

    Which queries are asked and what they cost in ρ is public; the natural scale of second-round queries
    follows the released answers of the first round, so those scales are typical ones. The ledger is charged
    the whole budget.

    Parameters
    ----------
    inputs : keyed hash of everything else that decides the outcome (`ReleaseInputs.identity`).
    almanac : public holidays and weather of the days of the history; not needed for a model that is reused.
    say : told how far the fits to public stand-ins are, if they take long.
    """
    problem = delta_problem(config.model.delta, len(history.node_of))
    if problem is not None:
        raise PrivacyError(
            f"{problem}; choose model.delta well below it; nothing was spent", code="delta-limit"
        )
    asked, chosen = FitOutcome(), None
    predicted: tuple[PredictedError, ...] = ()
    if config.model.reuse is None:  # else a model that is paid for: nothing is asked of the customers
        assert isinstance(history, LoadHistory)
        assert almanac is not None
        chosen = assembly.chosen_estimator(config, history.n_days)
        days, budget = almanac.facts_of(history.days), assembly.budget_of(config)
        options = assembly.fit_options_of(config, assembly.class_names(config, history.class_label), days)
        facts = history_facts(history, options, budget.unit)
        asked = planned_queries(facts, options, budget)  # refuses what cannot be fitted
        predicted = stand_in_errors(facts, options, budget, say)
        if options.estimator.name == assembly.HISTORY:
            predicted += predicted_errors(facts, options, budget)
    rho = total_rho(asked.queries)
    request, granted = request_of(config, inputs), assembly.budget_of(config)
    return Plan(
        queries=asked.queries,
        rho=rho,
        epsilon=rho_to_epsilon(rho, config.model.delta),
        delta=config.model.delta,
        loads_cost=LoadsCost.reserve(granted),
        loads_cap=LoadsCap(config.release.epsilon_cap or granted.epsilon, granted.delta, granted.unit),
        network=mode_of(config).charge(request),
        request_sha256=request,
        notes=asked.notes,
        estimator=chosen,
        predicted=predicted,
    )


def kept_model(config: Config, state: PrivateState) -> LoadModel | None:
    """The load model already fitted for this release, or for the one whose model it reuses; None if none.

    Whether reactive load is random is public and asks the customers nothing, so a model that is reused in
    another network mode is derived again from its noisy answers, as that mode draws it.
    """
    stored = state.read_internal(config.release.id, MODEL_FILE)
    if stored is None and config.model.reuse is not None:
        stored = state.read_internal(config.model.reuse, MODEL_FILE)
    section = config.model
    spread = (section.reactive_spread, section.reactive_correlation_minutes)
    return None if stored is None else _parsed(stored, spread if config.network.random_reactive else None)


@lru_cache(maxsize=2)
def _parsed(content: bytes, spread: tuple[float, float] | None) -> LoadModel:
    """A model, with its own power factors; deriving it from its noisy answers takes time.

    Parameters
    ----------
    spread : of random reactive load, its size and correlation [min], where the model has none; None fixes it.
    """
    model = LoadModel.from_json(content.decode(errors="replace"))  # what is no text is no model
    fitted = None if model.origin is None else model.origin.options.reactive
    if isinstance(fitted, FixedPowerFactor) and spread is not None:
        return model.with_reactive(PublicSpread(fitted, *spread))
    if isinstance(fitted, PublicSpread) and spread is None:
        return model.with_reactive(fitted.power_factor)
    return model


def refuse_unpaid_model(config: Config, state: PrivateState, *, paid: bool) -> None:
    """Refuse to reuse a load model that these customers never paid for, or that was never fitted."""
    if config.model.reuse is None:
        return
    if not paid:
        raise PrivacyError(
            f"model.reuse names '{config.model.reuse}', which these customers were never charged for; name a "
            "release or fleet of the same meter data, or remove the key to fit anew",
            code="model-reuse",
        )
    if kept_model(config, state) is None:
        raise PrivacyError(
            f"release '{config.model.reuse}' has fitted no load model yet; run it first", code="model-reuse"
        )
    state.keys_folder(config.model.reuse)  # its key ends with this release


def refuse_another_model(inputs: assembly.ReleaseInputs) -> LoadModel | None:
    """The model that a release would reuse; refused if the config says anything of it that is not so.

    The manifest states the constants of the model that the loads are drawn from. A config that names others
    is a mistake that would otherwise be published.
    """
    config = inputs.config
    model = None if config.model.reuse is None else kept_model(config, inputs.state)
    if model is None:
        return None
    if model.origin is None:
        raise PrivacyError(
            f"the load model of release '{config.model.reuse}' was made by version 0.1.0 and holds no noisy "
            "answers, so nobody could check it; remove model.reuse to fit anew, which is charged",
            code="model-reuse",
        )
    if model.is_history and not config.network.dated:
        raise PrivacyError(
            f"the load model of release '{config.model.reuse}' draws days that follow one another, which "
            f"mode '{config.network.mode}' cannot certify; reuse a model of the estimator 'structured', or "
            "remove model.reuse to fit anew, which is charged",
            code="model-reuse",
        )
    # A config that names no estimator takes the one of the model.
    options = assembly.fit_options_of(
        config, model.class_names, inputs.meter_days, config.model.estimator or model.estimator
    )
    budget = Budget(model.epsilon, model.delta, model.unit)
    asked = _choices(options, assembly.budget_of(config), inputs.history.step_minutes)
    asked |= _days_of(options.days)
    fitted = _choices(model.origin.options, budget, model.step_minutes) | _days_of(model.origin.facts.days)
    other = [name for name, value in asked.items() if fitted[name] != value]
    if other:
        raise PrivacyError(
            f"model.reuse takes the load model of release '{config.model.reuse}', which was fitted with "
            f"other values of {', '.join(other)}; state the same, or remove model.reuse to fit anew, which "
            "is charged",
            code="model-reuse",
        )
    mode_of(config).nodes(inputs, inputs.feeder, model)  # it knows the classes of the nodes, or says so
    return model


def _choices(options: FitOptions, budget: Budget, step_minutes: int) -> dict[str, Any]:
    """What decides a load model, by the keys of the config that state it."""
    fields = options.to_dict()
    reactive = fields["reactive"]
    random = reactive.pop("kind") == PublicSpread.__name__
    return {
        "model.epsilon": budget.epsilon,
        "model.delta": budget.delta,
        "model.unit": budget.unit,
        "model.estimator": fields["estimator"],
        "model.private_classes": fields["private_classes"],
        "model.use_scale": fields["use_scale"],
        "model.bounds or model.bounds_of_class": fields["bounds"],
        "model.variance_floor": fields["variance_floor"],
        "model.power_factor or model.power_factor_of_class": reactive["power_factor"] if random else reactive,
        "model.reactive_spread": reactive["spread"] if random else None,
        "model.reactive_correlation_minutes": reactive["correlation_minutes"] if random else None,
        "network.mode or network.bound, which say whether reactive load is random": random,
        "loads.step_minutes": step_minutes,
    }


def _days_of(facts: DayFacts | None) -> dict[str, Any]:
    """What a model of histories knows of its days, by the keys that state it."""
    return {
        "loads.first_day or loads.last_day": None if facts is None else facts.dates,
        "calendar.holidays": None if facts is None else facts.off,
        "[weather], of the days of the meters": None if facts is None else facts.covariates,
    }


def request_of(config: Config, inputs: str) -> str:
    """Hash of everything that decides a release; `inputs` as of `plan_release`."""
    public = config.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST)
    content = {"config": public, "inputs": inputs, "version": __version__, "draws": DRAWS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


YEARS = (1, 5, 10)
SPREADS = ((0.6, 0.65), (1.1, 0.4))
"""Of the log levels of stand-ins: a public range for homes, from homes of like size to homes of all kinds.
With each, where the median lies between the logs of the declared bounds: off the middle, to which the prior
of a level pulls."""
RUNS = 12
"""Fits for each spread; half as many of every class where there are several."""
CUSTOMERS, DAYS = 200, 14
"""Stand-ins for a class, and the most days of each."""
_SEED, _DELTA, _PATIENCE, _TAIL = 40, 1e-12, 2.0, 0.99
_MANY = 10**9  # customers: noise plays no part
_RHO = (1e-7, 1e5)  # budgets of stand-ins: beyond these nothing changes


@dataclass(frozen=True)
class YearlyCost:
    """What has been spent after some yearly releases, the first of which is this one.

    Attributes
    ----------
    releases : how many, of the same customers and the same network.
    customers : (ε, δ) of one record, composed; a new load model every year.
    network : of the network, if it is charged every year.
    kept_network : of the network, if what it was charged for once is used again; None where that cannot be.
    """

    releases: int
    customers: Promised
    network: Promised
    kept_network: Promised | None


def stand_in_errors(
    facts: HistoryFacts, options: FitOptions, budget: Budget, say: Callable[[str], None] = lambda _: None
) -> tuple[PredictedError, ...]:
    """Of mean load, energy and upper tail, by fits to public stand-ins; `plan` and `release` warn by it.

    Mean load and upper tail are of the class that is worst off, the energy is of all classes together.

    Parameters
    ----------
    facts : public size of the history.
    options, budget : of the fit.
    say : told how far it is, if it takes long.
    """
    classes = facts.load_points_of_class
    people = [(*_stand_ins(facts, options, name, place), n) for place in SPREADS for name, n in classes]
    runs = 1 + (RUNS if len(classes) == 1 else RUNS // 2)  # the last one without noise
    jobs = range(runs * len(people))

    def drawn(job: int) -> FloatArray:
        key, (history, own, n) = StreamKey.from_insecure_seed(job), people[job % len(people)]
        count = n if job < jobs.stop - len(people) else _MANY
        model = fit(history, budget=_as_noisy(budget, count, facts.n_days, history), options=own, key=key)
        return _figures(draw_customers(model, history, key))

    found, said = [], time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # how weak it is, these fits find out
        for figures in in_order(drawn, jobs):
            found.append(figures)
            if time.monotonic() - said > _PATIENCE:
                said = time.monotonic()
                say(f"public stand-ins for the customers: {len(found)} of {len(jobs)} fits are made")
    kw = np.array(found).reshape(runs, len(SPREADS), len(classes), 2)
    real = np.array([_figures(history.load_kw) for history, *_ in people]).reshape(kw.shape[1:])
    count = np.array([n for _, n in classes])
    energy = np.sum(kw[..., 0] * count, axis=2) / np.sum(real[..., 0] * count, axis=1) - 1.0
    off = kw / real - 1.0
    mean, tail = (off[:, :, np.argmax(np.mean(off[..., k] ** 2, axis=(0, 1))), k] for k in range(2))
    return (
        _error("mean load of a customer", mean, 0.2),
        _error("energy of all customers", energy, 0.2),
        _error("99th percentile of the loads", tail, 0.4),
    )


def _figures(load_kw: FloatArray) -> FloatArray:
    return np.array([load_kw.mean(), np.quantile(load_kw, _TAIL)])


def _error(what: str, off: FloatArray, usual: float) -> PredictedError:
    """Of relative errors (run, spread), the last run without noise. Few runs: their logs count as normal."""
    (*_, calm), off, runs = off, off[:-1], len(off) - 1
    noise, rms = (np.sqrt(np.mean(part * part, axis=0)) for part in (off - calm, off))
    logs = np.log1p(off)
    reach = stdtrit(runs - 1, 0.9) * np.sqrt(1 + 1 / runs) * np.std(logs, axis=0, ddof=1)
    low, high = np.expm1(logs.mean(axis=0) - reach), np.expm1(logs.mean(axis=0) + reach)
    between = float(low.min()), float(high.max())
    return PredictedError(what, float(noise.max()), usual, between, tuple(rms.tolist()))


def _as_noisy(budget: Budget, n: int, n_days: int, stand_ins: LoadHistory) -> Budget:
    """The budget that leaves as much noise in averages over stand-ins as averages over n customers have."""
    more = n / stand_ins.n_load_points
    if budget.unit is PrivacyUnit.LOAD_POINT_DAY:
        more *= n_days / stand_ins.n_days
    rho = epsilon_to_rho(budget.epsilon, budget.delta) * more * more
    return replace(budget, epsilon=rho_to_epsilon(min(max(rho, _RHO[0]), _RHO[1]), _DELTA), delta=_DELTA)


def _stand_ins(
    facts: HistoryFacts, options: FitOptions, name: str, place: tuple[float, float]
) -> tuple[LoadHistory, FitOptions]:
    """Homes with levels of a spread in the place of a class, on its first days, and how they are fitted."""
    choice, of_days, n_days = options.classes, facts.days, min(DAYS, facts.n_days)
    bounds = options.widest(choice.names) if isinstance(choice, PrivateClasses) else options.bounds_of(name)
    low, high = (log1(bound) for bound in bounds)
    homes = simulate_load_history(
        CUSTOMERS, n_days=n_days, step_minutes=facts.step_minutes, seed=_SEED, classes=DEMO_CLASSES[:1]
    )
    rank = (np.random.default_rng(_SEED).permutation(CUSTOMERS) + 0.5) / CUSTOMERS
    level = exp(low + place[1] * (high - low) + place[0] * ndtri(rank))[:, None, None]
    load_kw = np.clip(level * homes.load_kw / homes.load_kw.mean(axis=(1, 2), keepdims=True), *bounds)
    if of_days is not None:
        covariates = tuple((key, values[:n_days]) for key, values in of_days.covariates)
        of_days = DayFacts(of_days.dates[:n_days], of_days.off[:n_days], covariates)
        homes = replace(homes, days=tuple(dt.date.fromisoformat(date) for date in of_days.dates))
    labels, one = (name,) * CUSTOMERS, np.ones(CUSTOMERS)
    history = replace(homes, load_kw=load_kw, load_kvar=load_kw, class_label=labels, scale_kw=one)
    return history, replace(options, days=of_days)
