"""Algorithm 1 as a product: plan → charge loads → fit → certify → sample → solve → charge network → publish.

In mode 'twin-network' the network is charged first, its twin drawn, and all that follows sees the twin only.

Everything random comes from the key in the private state directory, bound to the release, the model and the
network, so a run that was killed at any moment resumes to the same bits and draws nothing twice.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Engine, engine_of
from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.corpus.gridfm.writer import GridfmWriter
from dp_powerflow.corpus.storage import Location, location
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, PowerFlowError, PrivacyError
from dp_powerflow.evidence.collect import Evidence, plain
from dp_powerflow.evidence.lines.collect import LineReport
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import LoadSampler, draw_node_classes
from dp_powerflow.pipeline.assembly import (
    NodePlan,
    budget_of,
    check_before_spending,
    feeder_of,
    fit_options_of,
    history_of,
    loaded_nodes,
    node_plan,
    released_nodes,
)
from dp_powerflow.pipeline.charge import Charged, charge_loads, charge_network
from dp_powerflow.pipeline.network import evidence_of, lines_of, true_section
from dp_powerflow.pipeline.parts import PartJob, layout_of, make_parts
from dp_powerflow.pipeline.plan import Plan
from dp_powerflow.pipeline.publish import publish
from dp_powerflow.pipeline.solar import solar_of
from dp_powerflow.pipeline.twin import twin_feeder
from dp_powerflow.pipeline.twin_report import twin_report, write_empty_graph
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import IntArray

MODEL_FILE = "model.json"
REPORT_FILE = "report.json"
TWIN_TABLES = "twin"
POLICY_MET = "policy met"
INTERNAL = "INTERNAL: computed from private data; not for publication"

Report = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ReleaseResult:
    """Where the release is, and what its owner may want to know (INTERNAL).

    `worst_mismatch` [p.u.] is of the parts written by this run, None if there was nothing left to write.
    """

    path: Location
    model: LoadModel
    evidence_met: bool
    worst_mismatch: float | None
    internal: Path


def run_release(
    config: Config,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    say: Report = lambda _: None,
    progress: Progress | None = None,
    history: LoadHistory | None = None,
) -> ReleaseResult:
    """Make the release, or finish one that was interrupted.

    Parameters
    ----------
    workers : processes of this machine, None for one per core.
    engine : where the parts are made instead, such as a Dask cluster.
    history : PRIVATE. The meter data of the config, if somebody has read them already.
    """
    engine = engine or engine_of(workers, None)
    engine.check()  # a cluster that does not answer is found out before anything is spent
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    with only_process(state.internal_directory(config.release.id)):
        return _run(config, state, engine, say, progress, history)


def _run(
    config: Config,
    state: PrivateState,
    engine: Engine,
    say: Report,
    progress: Progress | None,
    history: LoadHistory | None,
) -> ReleaseResult:
    feeder = feeder_of(config)
    if history is None:
        say("reading the meter data")
        history = history_of(config, feeder)
    check_before_spending(config, feeder, history)
    released, loaded = len(released_nodes(config, feeder)), len(loaded_nodes(feeder)[0])
    layout = layout_of(config.release.days, history.n_steps, released, loaded)
    writer = CorpusWriter(location(config.release.output), layout, config.release.id)
    if not writer.finished:
        writer.prepare()  # what is bound to fail later fails before anything is spent
    try:
        return _make(config, state, feeder, history, writer, engine, say, progress)
    except (ConfigError, PowerFlowError, PrivacyError) as error:
        # Refused for good: nothing stays beside the target but parts that a resumed run can use.
        untouched = len(writer.missing_parts()) == writer.layout.n_parts
        if not writer.finished and (untouched or isinstance(error, PowerFlowError)):
            writer.discard()
        raise


def _make(
    config: Config,
    state: PrivateState,
    feeder: Feeder,
    history: LoadHistory,
    writer: CorpusWriter,
    engine: Engine,
    say: Report,
    progress: Progress | None,
) -> ReleaseResult:
    charged = charge_loads(config, state, feeder, history)
    key = state.stream_key().bind("release", config.release.id)
    say("fitting the load model")
    model = fitted_model(config, state, history, charged.plan, key)
    solved, network = network_to_solve(config, state, feeder, charged)
    nodes = nodes_of(config, solved, model, key)
    say("network evidence (INTERNAL)")
    report = network_report(config, state, feeder, solved, model, nodes, progress)
    met = bool(json.loads(report)[POLICY_MET])
    if not met and true_section(config).require_evidence:
        raise PrivacyError(
            "the network evidence does not support the policy, so nothing was released; read "
            f"{state.internal_directory(config.release.id) / REPORT_FILE}, then lower the radius or the "
            "days, or set network.require_evidence = false under a new release id (the manifest says so)"
        )
    say("drawing loads and solving")
    worst = None
    if not writer.finished:
        job = part_job(config, solved, model, nodes, key.bind("inputs", charged.inputs), writer)
        if writer.remote is not None:
            # A store has readers of its own: paid for before the first part is there.
            network = network or charge_network(charged)
        worst = make_parts(job, engine, progress)
        if job.graph is not None:
            finish_graph(config, job)
        network = network or charge_network(charged)
        publish(config, state, writer, model, charged.ledger, charged.loads, network, report)
    return ReleaseResult(writer.target, model, met, worst, state.internal_directory(config.release.id))


def network_to_solve(
    config: Config, state: PrivateState, feeder: Feeder, charged: Charged
) -> tuple[Feeder, tuple[Account, Spend] | None]:
    """The network that voltages are solved on, and the charge if there was one already: that of its twin."""
    if not isinstance(config.network, TwinNetwork):
        return feeder, None
    account, spend = charge_network(charged)
    return twin_feeder(config, state, feeder, account.dataset), (account, spend)


def fitted_model(
    config: Config, state: PrivateState, history: LoadHistory, plan: Plan, key: StreamKey
) -> LoadModel:
    """The load model of the release: the one already fitted, or a fresh fit kept for the next attempt."""
    stored = state.read_internal(config.release.id, MODEL_FILE)
    if stored is None and config.model.reuse is not None:
        stored = state.read_internal(config.model.reuse, MODEL_FILE)
    if stored is not None:
        return LoadModel.from_json(stored.decode())
    if config.model.reuse is not None:
        raise PrivacyError(f"release '{config.model.reuse}' has fitted no load model yet; run it first")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # the plan has said it already
        model = fit(history, budget=budget_of(config), options=fit_options_of(config), key=key)
    if model.rho > plan.loads_cost.rho * (1.0 + 1e-9):
        raise PrivacyError(
            "the fit spent more than was paid, so nothing is released; this is a bug, report it"
        )
    state.write_internal(config.release.id, MODEL_FILE, model.to_json().encode())
    return model


def nodes_of(config: Config, feeder: Feeder, model: LoadModel, key: StreamKey) -> NodePlan:
    """Class and scale of the nodes; private classes are drawn from the released weights."""
    drawn = None
    if not model.public_labels:
        drawn = draw_node_classes(model, len(loaded_nodes(feeder)[0]), key)
    return node_plan(config, feeder, model, drawn)


def network_report(
    config: Config,
    state: PrivateState,
    feeder: Feeder,
    solved: Feeder,
    model: LoadModel,
    nodes: NodePlan,
    progress: Progress | None,
) -> bytes:
    """The internal report that the manifest commits to: the one already made, or a fresh one."""
    stored = state.read_internal(config.release.id, REPORT_FILE)
    if stored is not None:
        return stored
    if isinstance(config.network, TwinNetwork):
        report = internal_report(config, True, twin_report(config, state, feeder, solved, model, nodes))
        state.write_internal(config.release.id, REPORT_FILE, report)
        return report
    evidence: Evidence | str
    try:
        evidence = evidence_of(
            config, feeder, model, nodes, state.stream_key(), progress=progress, curves=False
        )
    except PrivacyError as error:
        if true_section(config).require_evidence:
            raise
        evidence = f"none: {error}"
    lines = lines_of(config, feeder, model, nodes, state.stream_key(), progress=progress)
    report = report_bytes(config, evidence, lines)
    state.write_internal(config.release.id, REPORT_FILE, report)
    return report


def report_bytes(config: Config, evidence: Evidence | str, lines: LineReport | str | None = None) -> bytes:
    """The internal report of a true network; words where there is no evidence."""
    met = isinstance(evidence, Evidence) and evidence_meets_policy(config, evidence)
    return internal_report(config, met, plain(evidence), None if lines is None else plain(lines))


def internal_report(config: Config, met: bool, evidence: object, lines: object = None) -> bytes:
    """The internal report as canonical JSON; `lines` only where losses per line were asked for."""
    content = {
        "marking": INTERNAL,
        "release": config.release.id,
        POLICY_MET: met,
        "evidence": evidence,
    }
    if lines is not None:
        content["lines"] = lines
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def evidence_meets_policy(config: Config, evidence: Evidence) -> bool:
    """Whether the bound that the config names holds for the whole corpus within the policy."""
    mode = "full-support" if config.network.random_reactive else "corrected"
    row = next(row for row in evidence.rows if row.mode == mode)
    epsilon, delta = row.corpus.epsilon, row.corpus.delta
    return epsilon is not None and epsilon <= config.network.epsilon and delta <= config.network.delta


def part_job(
    config: Config,
    feeder: Feeder,
    model: LoadModel,
    nodes: NodePlan,
    key: StreamKey,
    writer: CorpusWriter,
) -> PartJob:
    """The job of the workers; `key` is bound to the release and its inputs, the sampler binds the model."""
    law = nodes.law(model, feeder, truncated=not config.network.random_reactive)
    sampler = LoadSampler(law, key, config.release.days)
    chosen = released_nodes(config, feeder)
    released = chosen[secret_order(key, len(chosen))]
    graph = None
    if isinstance(config.network, TwinNetwork) and config.network.publish != "voltages":
        order = np.concatenate([released, np.setdiff1d(np.arange(len(feeder.nodes)), released)])
        graph = GridfmWriter(writer.root / TWIN_TABLES, feeder, order=order)
    return PartJob(
        feeder,
        sampler,
        writer,
        released,
        solar_of(config, feeder, model.n_steps),
        graph,
        graph_days(config),
    )


def graph_days(config: Config) -> int:
    """Days of the corpus whose loads are published beside the voltages."""
    twin = config.network
    if not isinstance(twin, TwinNetwork) or twin.publish != "network and loads":
        return 0
    return min(twin.graph_days or config.release.days, config.release.days)


def finish_graph(config: Config, job: PartJob) -> None:
    """The rest of the twin's tables: without loads, one scenario that has none."""
    assert job.graph is not None
    scenarios = graph_days(config) * job.writer.layout.steps
    if not scenarios:
        write_empty_graph(job.graph, job.feeder)
    job.graph.write_index(scenarios or 1)


def secret_order(key: StreamKey, count: int) -> IntArray:
    """A uniformly random order of the nodes, from the secret."""
    return np.asarray(key.stream("order of the nodes").generator.permutation(count), dtype=np.int64)
