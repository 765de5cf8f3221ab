"""Algorithm 1 as a product, as one path.

    read and check → charge customers and network → fit → network to solve → report → draw and solve → publish

Everything is paid for before anything is drawn from the data: customers and network in one transaction of
the ledger. From then on nothing but the key is random, so a run that was killed at any moment resumes to the
same bits and draws nothing twice. A release that its evidence or its power flow refuses afterwards keeps the
charge: whether it is refused may depend on the network. How the network is treated is the business of the
mode (`modes/`). `draw` and `make`, which follow charge and fit, need the key, the model and what was paid,
but neither ledger nor meters: in a fleet, workers call them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Runner, engine_of
from dp_powerflow._spending import true_words
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.storage import Location, location
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ChangedRequestError, CorpusError, PowerFlowError, PrivacyError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.manifest.build import ManifestInputs
from dp_powerflow.manifest.model import (
    MANIFEST_FILE,
    MODEL_FILE,
    kinds_of_shared_accounts,
    policy_of,
    sha256_of,
)
from dp_powerflow.manifest.render import write_documents
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline.modes import base
from dp_powerflow.pipeline.parts import PartJob, make_parts
from dp_powerflow.privacy.ledger.accounts import Balance
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.random import StreamKey, canonical_bytes
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import IntArray

ORDER_FILE, SEALED_FILE = "order.json", "sealed.json"
"""INTERNAL. The order of the released nodes, and what is complete but for its name."""
CHARGED_OTHERWISE = (
    "release '{id}' was already charged for another request or other data; choose a new release id, or "
    "restore the configuration and the files to resume that one"
)
CHANGED_MEANWHILE = (
    "an input file changed while the release was being made, so nothing was released; restore the file and "
    "run the same command again, which costs nothing more"
)


@dataclass(frozen=True)
class ReleaseResult:
    """Where the release is, and what its owner may want to know (INTERNAL).

    `worst_mismatch` [p.u.] is of the parts written by this run, None if there was nothing left to write.
    `warnings` are public: why the release protects, or says, less than its owner may expect.
    `ingest` is what reading the meters found (INTERNAL), None for simulated loads.
    """

    path: Location
    model: LoadModel
    evidence_met: bool
    worst_mismatch: float | None
    internal: Path
    warnings: tuple[str, ...] = ()
    ingest: IngestReport | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Paid:
    """PRIVATE. What was paid, and how the accounts stood just after it.

    Attributes
    ----------
    dataset, inputs : keyed hashes of the network and of all inputs that were paid for.
    loads, network : balances.
    spend : of the network.
    """

    dataset: str
    inputs: str
    loads: Balance
    network: Balance
    spend: Spend


@dataclass(frozen=True)
class Made:
    """A release that is made.

    Attributes
    ----------
    met : INTERNAL. Whether the evidence supports the policy.
    worst_mismatch : [p.u.] of the parts written now, None if there was nothing left to write.
    scaled_down : snapshots whose powers were lowered.
    notes : PUBLIC. Remarks on the load model.
    """

    met: bool
    worst_mismatch: float | None
    scaled_down: int
    notes: tuple[str, ...]


def run_release(
    config: Config,
    *,
    workers: int | None = None,
    engine: Runner | None = None,
    say: planning.Say = lambda _: None,
    progress: base.Progress | None = None,
    history: LoadHistory | None = None,
) -> ReleaseResult:
    """Make the release, or finish one that was interrupted.

    Parameters
    ----------
    workers : parts made at once on this machine, None for one per core.
    engine : where the parts are made instead, such as a Dask cluster.
    say, progress : told what is being done, and how much of it.
    history : PRIVATE. The meter data of the config, if they were read already.

    Raises
    ------
    DpPowerflowError : the release is refused, in one sentence that says what to do.
    """
    engine = engine or engine_of(workers, None)
    engine.check()  # a cluster that does not answer is found out before anything is spent
    state = planning.open_state(config)
    internal = state.internal_directory(config.release.id)
    begun = planning.is_begun(state, config.release.id) or planning.was_charged(
        state, partial(_pays_for, config)
    )
    with true_words(begun=begun), only_process(internal):
        ready = planning.make_ready(config, state, history=history, say=say)
        inputs = ready.inputs
        with place_kept(ready):
            plan, paid = charge(ready, say)
            say("fitting the load model")
            model = fitted_model(config, state, inputs.readings, plan, inputs.almanac)
            drawn = draw(ready, paid, model, say, progress)
            made = make(ready, paid, drawn, engine, say, progress)
        snapshots = config.release.days * inputs.history.n_steps
        told = (*base.promise_warnings(config), *made.notes, *scaled_down_words(made, snapshots))
        place, warned = location(config.release.output), (*told, *ready.feasibility.warnings)
        return ReleaseResult(place, model, made.met, made.worst_mismatch, internal, warned, inputs.ingest)


def _pays_for(config: Config, charged: str) -> bool:
    """Whether a charge under this id is of the customers or of the network of a release."""
    release_id = config.release.id
    return charged == release_id or policy_of(config).is_paid_by(charged, release_id)


def scaled_down_words(made: Made, snapshots: int) -> tuple[str, ...]:
    """PUBLIC. That some snapshots were scaled down, if any were."""
    if not made.scaled_down:
        return ()
    return (
        f"{made.scaled_down:,} of {snapshots:,} snapshots had no power-flow solution: their loads and PV "
        "were multiplied by 0.95 until they had one, and they are marked (corpus.scaled_down()); with a "
        "larger nodes.kw_per_customer there are fewer",
    )


@contextmanager
def place_kept(ready: planning.Ready) -> Iterator[None]:
    """Refuse a place that is taken or cannot be written, and give it back if the release is refused."""
    writer, state = ready_writer(ready), ready.inputs.state
    try:
        if not planning.seems_made(writer, state):
            # What is bound to fail later fails before anything is spent.
            writer.check(begun=planning.is_begun(state, writer.release_id))
        yield
    except BaseException:  # also an interrupt
        if writer.remote is not None:
            with suppress(CorpusError):
                writer.remote.leave()
        raise


def ready_writer(ready: planning.Ready) -> CorpusWriter:
    """Where the corpus of a release goes; of a twin by its rounded frame, which is what is published."""
    feeder, inputs = ready.structure, ready.inputs
    return planning.writer_of(ready.mode, feeder, inputs.solar_on(feeder), inputs.history.n_steps)


# ----------------------------------------------------------------------------------------------- charge


def charge(ready: planning.Ready, say: planning.Say = lambda _: None) -> tuple[planning.Plan, Paid]:
    """Charge customers and network in one transaction, or find the charges of an earlier run.

    What cannot be paid, or was begun otherwise, is refused before the ledger records anything.

    Parameters
    ----------
    say : told why the load model would be worth little, before anything is spent.
    """
    inputs, mode = ready.inputs, ready.mode
    config, state = inputs.config, inputs.state
    assembly.keep_ingest(state, config.release.id, inputs.ingest)
    plan, facts, ledger = planning.decided(ready, say)
    for warning in plan.warnings:
        say(warning)
    release = config.release
    customers = ChargedData(
        inputs.loads_identity, plan.loads_cap, release.continues_loads, release.unrelated_loads
    )
    reused = reused_charge(ledger, customers, config.model.reuse)
    planning.refuse_unpaid_model(config, state, paid=reused is not None)
    refuse_unpayable(plan, facts, mode, state, ledger)
    charges = [network_charge(config, plan, facts)]
    if reused is None:
        charges.insert(0, Charge(customers, config.release.id, plan.request_sha256, plan.loads_cost))
    products = (assembly.DRAWS,) if reused else (assembly.FIT, assembly.DRAWS)
    make_keys(mode, state, ledger, plan, facts.dataset, products)
    *own, network = ledger.charge_all(charges)
    loads = reused or own[0]
    keep_begun(state, config.release.id, plan.request_sha256, loads, network)
    balances = ledger.balance_after(loads), ledger.balance_after(network)
    return plan, Paid(facts.dataset, inputs.identity, *balances, network)


def make_keys(
    mode: base.NetworkMode[Any],
    state: PrivateState,
    ledger: Ledger,
    plan: planning.Plan,
    dataset: str,
    products: Iterable[str],
) -> None:
    """Make the keys of everything that a release will draw, just before it is charged.

    None is made for what is charged or begun: whatever was drawn for a charge, nothing else is drawn for it.
    """
    release_id = mode.config.release.id
    if is_new(state, ledger, release_id, plan.request_sha256):
        for product in products:
            state.make_key(release_id, product, plan.request_sha256)
    if all(spend.dataset != dataset for spend in ledger.spends(release_id=plan.network.paid_by)):
        mode.make_keys(state, dataset)


def is_new(state: PrivateState, ledger: Ledger, release_id: str, request: str) -> bool:
    """Whether nothing is begun or charged under this id for the request."""
    charged = {spend.request_sha256 for spend in ledger.spends(release_id=release_id)}
    return not planning.is_begun(state, release_id) and request not in charged


def network_charge(config: Config, plan: planning.Plan, facts: base.NetworkFacts) -> Charge:
    """What the network is charged."""
    release, asked = config.release, plan.network
    data = ChargedData(
        facts.dataset, asked.cap, release.continues_network, release.unrelated_network, facts.frame
    )
    return Charge(data, asked.paid_by, asked.request_sha256, asked.cost)


def reused_charge(ledger: Ledger, customers: ChargedData, reused: str | None) -> Spend | None:
    """The charge of an earlier release, or fleet, to these customers; None if there is none."""
    # No account is opened unless one is there to look in, or to be asked about.
    known = customers.continues is not None or ledger.find(customers.cap.kind, customers.dataset) is not None
    if reused is None or not (known or (customers.unrelated is None and ledger.spends(release_id=reused))):
        return None
    spends = ledger.account(customers).spends
    return next((spend for spend in spends if spend.release_id == reused), None)


def keep_begun(state: PrivateState, release_id: str, request: str, *spends: Spend) -> None:
    """Remember that a release is begun, of which request, and what paid for it."""
    state.write_internal(release_id, planning.REQUEST_FILE, request.encode())
    for spend in spends:
        planning.keep_receipt(state, release_id, spend)


def refuse_unpayable(
    plan: planning.Plan,
    facts: base.NetworkFacts,
    mode: base.NetworkMode[Any],
    state: PrivateState,
    ledger: Ledger,
) -> None:
    """Refuse a release that was begun otherwise, and one whose network cannot pay.

    Raises
    ------
    PrivacyError : says what to do; nothing was spent.
    """
    config = mode.config
    preview = planning.preview_network(ledger, config, plan.network, facts.dataset)
    refuse_another_request(config.release.id, plan.request_sha256, state, ledger)
    # One id, one thing that is paid for: found out before the customers are charged.
    paid_for = plan.network.request_sha256, facts.dataset
    for spend in ledger.spends(release_id=plan.network.paid_by):
        if spend.account == preview.account and (spend.request_sha256, spend.dataset) != paid_for:
            raise PrivacyError(plan.network.otherwise or CHARGED_OTHERWISE.format(id=plan.network.paid_by))
    if not preview.affordable:
        left, needed = preview.before.available, plan.network.cap.promised([plan.network.cost])
        raise PrivacyError(
            f"release '{config.release.id}' needs ε = {needed.epsilon:.4g} of the network, which has "
            f"{left.epsilon:.4g} left; ask for less, or raise the cap with a recorded reason; nothing was "
            "spent",
            code="cap-exceeded",
        )


def refuse_another_request(release_id: str, request_sha256: str, state: PrivateState, ledger: Ledger) -> None:
    """One release id, one request: draws, model and evidence kept under the id belong to it alone."""
    begun = state.read_internal(release_id, planning.REQUEST_FILE)
    # A twin is charged under its own id, which may be the id of a release.
    shared = kinds_of_shared_accounts()
    charged = {
        spend.request_sha256 for spend in ledger.spends(release_id=release_id) if spend.kind not in shared
    }
    known = charged | ({begun.decode(errors="replace")} if begun is not None else set())
    if known - {request_sha256}:
        raise ChangedRequestError(CHARGED_OTHERWISE.format(id=release_id))


# -------------------------------------------------------------------------------------------------- fit


def fitted_model(
    config: Config, state: PrivateState, history: LoadHistory, plan: planning.Plan, almanac: assembly.Almanac
) -> LoadModel:
    """The load model of the release: the one already fitted, or a fresh fit kept for the next attempt.

    Parameters
    ----------
    almanac : public holidays and weather of the days of the history.
    """
    release_id, kept = config.release.id, planning.kept_model(config, state)
    if kept is not None:
        planning.keep_derived_model(state, release_id, config.model.reuse, kept)
        end_key(config, state, assembly.FIT)
        return kept
    key = state.key_of(release_id, assembly.FIT, plan.request_sha256)
    if key is None:
        raise PrivacyError(
            assembly.KEY_GONE.format(what=f"the load model of '{release_id}'"), code="key-gone"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # the result carries the notes of the model
        days = almanac.facts_of(history.days)
        options = assembly.fit_options_of(config, assembly.class_names(config, history.class_label), days)
        bound = key.bind("release", release_id)
        model = fit(history, budget=assembly.budget_of(config), options=options, key=bound)
    if model.rho > plan.loads_cost.rho * (1.0 + 1e-9):
        raise PrivacyError(
            "the fit spent more than was paid, so nothing is released; this is a bug, report it"
        )
    state.write_internal(release_id, MODEL_FILE, model.to_json().encode())
    end_key(config, state, assembly.FIT)
    return model


def end_key(config: Config, state: PrivateState, product: str) -> None:
    """Destroy the key of a product that is complete, unless the owner keeps it.

    Of a model that is reused too, even if the release that has fitted it keeps its keys.
    """
    if config.release.keys == "destroy":
        reused = config.model.reuse if product == assembly.FIT else None
        for owner in filter(None, (config.release.id, reused)):
            state.destroy_key(owner, product)


# ----------------------------------------------------------------------------------------------- network


def draw(
    ready: planning.Ready,
    paid: Paid,
    model: LoadModel,
    say: planning.Say = lambda _: None,
    progress: base.Progress | None = None,
) -> tuple[base.Scene, base.InternalReport]:
    """The network to solve, with the model on it, and the report; both are kept in the private state.

    Raises
    ------
    PrivacyError : an input is no longer the one that was paid for, or the report does not support the policy.
    """
    inputs, mode = ready.inputs, ready.mode
    if (mode.identity(inputs), inputs.identity) != (paid.dataset, paid.inputs):
        raise PrivacyError(CHANGED_MEANWHILE)  # nobody paid for what the files say now
    scene = mode.scene(inputs, mode.network_to_solve(inputs, paid.dataset, paid.spend), model)
    say("network evidence (INTERNAL)")
    state, release_id = inputs.state, inputs.config.release.id
    stored = state.read_internal(release_id, planning.REPORT_FILE)
    if stored is not None:
        report = base.InternalReport.read(stored)
    else:
        report = mode.report(inputs, scene, progress)
        state.write_internal(release_id, planning.REPORT_FILE, report.content)
    mode.accept(report, state.internal_directory(release_id) / planning.REPORT_FILE)
    return scene, report


# ------------------------------------------------------------------------------------------------- make


def make(
    ready: planning.Ready,
    paid: Paid,
    drawn: tuple[base.Scene, base.InternalReport],
    engine: Runner,
    say: planning.Say = lambda _: None,
    progress: base.Progress | None = None,
) -> Made:
    """Make a release that is paid for and drawn: parts, documents, its final name.

    The key of the draws ends just before: no release with a name has a key. A run that is killed between the
    two finds what it has sealed.
    """
    inputs, mode, writer = ready.inputs, ready.mode, ready_writer(ready)
    state, release_id = inputs.state, inputs.config.release.id
    scene, report = drawn
    model, network = scene.model, scene.network
    if planning.is_made(writer, state):
        end_key(inputs.config, state, assembly.DRAWS)
        return Made(report.met, None, 0, model.notes)
    if inputs.key is None:
        end_key(inputs.config, state, assembly.DRAWS)  # what a kill has left of it
        return Made(report.met, None, finish_sealed(writer, state), model.notes)
    say("drawing loads and solving")
    key = draw_key(inputs, scene)
    staged = replace(writer, stage=stage_of(inputs, scene, writer, key))
    try:
        staged.prepare()
        scaled_down = _scaled_down_before(staged)
        order = released_order(state, release_id, key, len(mode.released_nodes(network.feeder)))
        state.write_internal(release_id, ORDER_FILE, json.dumps(order.tolist()).encode())
        job = part_job(mode, scene, key, staged, order)
        written = make_parts(job, engine, progress)
        facts = ManifestInputs(
            config=inputs.config,
            model=model,
            layout=staged.layout,
            extras=staged.extras,
            loads=paid.loads,
            network=paid.network,
            commitment_sha256=state.commit(release_id, planning.COMMITMENT, report.content),
            insecure_seed=state.insecure_seed,
            # A seed is known for ever.
            keys="kept" if state.insecure_seed or inputs.config.release.keys == "keep" else "destroyed",
            sun=inputs.sun,
            tables=None if job.graph is None else job.graph.stated(staged.layout.steps),
            days=inputs.almanac.released,
            left_out=base.left_out(mode, network),
            absent=network.absent,
            sums_customers=mode.counts_customers,
            scaled_down=scaled_down + written.scaled_down,
            connections=mode.connections(inputs, network, job.released, key),
        )
        say("measuring the corpus")
        manifest = write_documents(staged, facts, written.hashes, progress)
        staged.settle()  # a key that is gone after a loss of power leaves what it has drawn
        sealed = {"stage": staged.stage, "manifest": manifest, "scaled down": facts.scaled_down}
        state.write_internal(release_id, SEALED_FILE, json.dumps(sealed).encode())
        end_key(inputs.config, state, assembly.DRAWS)
        staged.finish()
    except BaseException as error:  # also an interrupt: nothing stays that a resumed run cannot use
        _clear_up(staged, for_good=isinstance(error, PowerFlowError))
        raise
    return Made(report.met, written.mismatch, scaled_down + written.scaled_down, model.notes)


def finish_sealed(writer: CorpusWriter, state: PrivateState) -> int:
    """Give what a killed run has sealed its name; the snapshots that were scaled down in it.

    Raises
    ------
    PrivacyError : the key is gone, and what it has drawn is not complete.
    """
    stored = state.read_internal(writer.release_id, SEALED_FILE)
    sealed = {} if stored is None else json.loads(stored)
    staged = replace(writer, stage=sealed.get("stage", ""))
    manifest = staged.root / MANIFEST_FILE
    if sealed and not staged.root.exists():
        raise PrivacyError(
            f"release '{writer.release_id}' is complete and sealed, but is not at {writer.target}; put it "
            "back, or choose a new release id, with model.reuse for its load model",
            code="key-gone",
        )
    if not sealed or not manifest.exists() or sha256_of(manifest.read_bytes()) != sealed["manifest"]:
        raise PrivacyError(assembly.KEY_GONE.format(what=f"release '{writer.release_id}'"), code="key-gone")
    staged.finish()
    return int(sealed["scaled down"])


def stage_of(inputs: assembly.ReleaseInputs, scene: base.Scene, writer: CorpusWriter, key: StreamKey) -> str:
    """Keyed digest of everything that decides the bytes of the release; it tells nothing without the key.

    Key and network are in the key of the draws, version and files in the request.
    """
    request = planning.request_of(inputs.config, inputs.identity)
    shape = canonical_bytes((writer.layout, writer.extras))
    bound = key.bind("purpose", "stage")
    return bound.keyed_hash([request.encode(), scene.model.to_json().encode(), shape])[:32]


def _clear_up(writer: CorpusWriter, *, for_good: bool) -> None:
    """Leave nothing beside the target but parts that a resumed run can use; none if refused for good.

    A URL that is taken is refused before the release begins there, so nothing there is of this release.
    """
    with suppress(CorpusError, OSError):  # what is there is of another release, or the disk fails
        if writer.remote is not None:
            writer.refuse_unseen()
        untouched = len(writer.missing_parts()) == writer.layout.n_parts
        if untouched or for_good:
            writer.discard()


def _scaled_down_before(writer: CorpusWriter) -> int:
    """Snapshots that were scaled down in the parts that an interrupted run has left."""
    if not writer.extras.scaled_down:
        return 0
    missing = set(writer.missing_parts())
    there = [part for part in range(writer.layout.n_parts) if part not in missing]
    nodes = NodeTable.opaque(writer.layout.nodes)
    corpus = Corpus(writer.root, writer.layout, nodes, writer.release_id, known=writer.extras)
    days = [day for part in there for day in writer.layout.days_of(part)]
    return int(np.count_nonzero(corpus.array("scaled_down", days)))


def draw_key(inputs: assembly.NetworkInputs, scene: base.Scene) -> StreamKey:
    """The key of the draws and of the order of the nodes; the sampler binds the model and the block.

    It is bound to the network that is solved, and to nothing else of the inputs: on a twin the released bytes
    are a function of key, config, model and twin, whatever the true network and the meters were.
    """
    key = inputs.key
    if key is None:
        raise PrivacyError(
            assembly.KEY_GONE.format(what=f"release '{inputs.config.release.id}'"), code="key-gone"
        )
    return key.bind("network", scene.network.identity)


def part_job(
    mode: base.NetworkMode[Any], scene: base.Scene, key: StreamKey, writer: CorpusWriter, order: IntArray
) -> PartJob:
    """The job of the workers, with a key from `draw_key` and the `released_order`."""
    feeder, source = scene.network.feeder, mode.source(scene, key, writer.layout.days)
    released = mode.released_nodes(feeder)[order]
    graph = mode.tables(writer.root, feeder, released)
    solver = mode.solver(writer.layout.steps)
    return PartJob(
        feeder, source, writer, released, scene.network.solar, graph, solver, mode.counts_customers
    )


def released_order(state: PrivateState, release_id: str, key: StreamKey | None, count: int) -> IntArray:
    """A uniformly random order of the nodes, which the private state keeps: the key ends.

    Parameters
    ----------
    key : from `draw_key`, where the order may have to be drawn.
    """
    stored = state.read_internal(release_id, ORDER_FILE)
    if stored is not None:
        found = np.asarray(json.loads(stored), dtype=np.int64)
        if np.array_equal(np.sort(found), np.arange(count)):
            return found
    if key is None:
        raise PrivacyError(
            f"{ORDER_FILE} of release '{release_id}' is not in the private state, or is damaged; restore it "
            "from a backup"
        )
    return np.asarray(key.stream("order of the nodes").generator.permutation(count), dtype=np.int64)
