"""Algorithm 1 as a product, as one path.

    read and check → charge the customers → fit → network to solve → report → draw and solve → publish

How the network is treated, and when it is charged, is the mode's business (`modes/`). Everything random comes
from the key in the private state directory, bound to the release, the model and the network, so a run that
was killed at any moment resumes to the same bits and draws nothing twice.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Engine, engine_of
from dp_powerflow.config import Config
from dp_powerflow.corpus.extras import MENDED
from dp_powerflow.corpus.extras_reader import ExtrasReader
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.schema import NodeTable
from dp_powerflow.corpus.storage import Location, location
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.almanac import Almanac
from dp_powerflow.pipeline.fitting import MeterDays, budget_of, fit_options_of
from dp_powerflow.pipeline.inputs import NetworkInputs, ReleaseInputs, class_names
from dp_powerflow.pipeline.looks import changed_settings
from dp_powerflow.pipeline.manifest.card import card_bytes
from dp_powerflow.pipeline.manifest.croissant import croissant_bytes
from dp_powerflow.pipeline.manifest.documents import certificate_html, registry_bytes
from dp_powerflow.pipeline.manifest.facts import ManifestInputs, make_statement
from dp_powerflow.pipeline.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    seal,
)
from dp_powerflow.pipeline.modes.base import (
    INTERNAL,
    OWNER_FILE,
    InternalReport,
    NetworkMode,
    Progress,
    Scene,
)
from dp_powerflow.pipeline.parts import PartJob, Written, layout_of, make_parts
from dp_powerflow.pipeline.plan import Charged, Plan, charge_loads, charge_network, kept_model
from dp_powerflow.pipeline.quality import quality_of
from dp_powerflow.pipeline.ready import make_ready, open_state
from dp_powerflow.pipeline.receipts import keep_derived_model
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import IntArray

REPORT_FILE = "report.json"
COMMITMENT = "internal report"
"""What the manifest commits to, as the commitment names it."""

Say = Callable[[str], None]


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


def run_release(
    config: Config,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    say: Say = lambda _: None,
    progress: Progress | None = None,
    history: LoadHistory | None = None,
) -> ReleaseResult:
    """Make the release, or finish one that was interrupted.

    Parameters
    ----------
    workers : parts made at once on this machine, None for one per core.
    engine : where the parts are made instead, such as a Dask cluster.
    say, progress : told what is being done, and how much of it.
    history : PRIVATE. The meter data of the config, if somebody has read them already.

    Raises
    ------
    DpPowerflowError : the release is refused, in one sentence that says what to do.
    """
    engine = engine or engine_of(workers, None)
    engine.check()  # a cluster that does not answer is found out before anything is spent
    state = open_state(config)
    with only_process(state.internal_directory(config.release.id)):
        ready = make_ready(config, state, history=history, say=say)
        changed = changed_settings(config, state)
        result = _Run(ready.inputs, ready.mode, ready.structure, changed, engine, say, progress).release()
    return replace(result, warnings=(*result.warnings, *ready.feasibility.warnings))


@dataclass(frozen=True, eq=False, repr=False)
class _Run:
    """One run of a release; PRIVATE.

    Attributes
    ----------
    structure : has the nodes, loads and controls of the network that will be solved.
    changed : settings that differ from those under which something INTERNAL was shown.
    """

    inputs: ReleaseInputs
    mode: NetworkMode[Any]
    structure: Feeder
    changed: tuple[str, ...]
    engine: Engine
    say: Say
    progress: Progress | None

    def release(self) -> ReleaseResult:
        """Make the release; whatever refuses it leaves nothing beside the target that is of no use."""
        writer = self._writer()
        if not writer.finished:
            writer.prepare()  # what is bound to fail later fails before anything is spent
        try:
            return self._make(writer)
        except (ConfigError, PowerFlowError, PrivacyError) as error:
            # Refused for good: nothing stays beside the target but parts that a resumed run can use.
            untouched = len(writer.missing_parts()) == writer.layout.n_parts
            if not writer.finished and (untouched or isinstance(error, PowerFlowError)):
                writer.discard()
            raise

    def _writer(self) -> CorpusWriter:
        # Of the twin: what its rounded frame does not have would be missed when it is paid for.
        release, feeder = self.inputs.config.release, self.structure
        released, loaded = len(self.mode.released_nodes(feeder)), self.mode.drawn(feeder)
        layout = layout_of(release.days, self.inputs.history.n_steps, released, loaded)
        extras = self.mode.extras(feeder, self.inputs.solar_on(feeder))
        return CorpusWriter(location(release.output), layout, release.id, extras)

    def _make(self, writer: CorpusWriter) -> ReleaseResult:
        inputs, mode = self.inputs, self.mode
        inputs.keep_ingest()
        charged = charge_loads(inputs, mode, self.say)
        self.say("fitting the load model")
        model = fitted_model(
            inputs.config, inputs.state, inputs.history, charged.plan, inputs.key, inputs.almanac
        )
        paid = charge_network(charged) if mode.charged_first else None
        network = mode.network_to_solve(inputs, charged.network.dataset)
        scene = mode.scene(inputs, network, model)
        self.say("network evidence (INTERNAL)")
        report = self._report(scene)
        internal = inputs.state.internal_directory(inputs.config.release.id)
        mode.accept(report, internal / REPORT_FILE)
        self.say("drawing loads and solving")
        written = None if writer.finished else self._write(writer, scene, report, charged, paid)
        worst = None if written is None else written.mismatch
        warned = (*mode.warnings, *model.notes, *self._mended_words(written))
        return ReleaseResult(writer.target, model, report.met, worst, internal, warned, inputs.ingest)

    def _mended_words(self, written: Written | None) -> tuple[str, ...]:
        """PUBLIC. That snapshots were mended, which the manifest says too."""
        if written is None or not written.mended:
            return ()
        total = self.inputs.config.release.days * self.inputs.history.n_steps
        return (
            f"{written.mended:,} of {total:,} snapshots had no power-flow solution: their loads and PV were "
            "multiplied by 0.95 until they had one, and they are marked (corpus.mended()); with a larger "
            "nodes.kw_per_customer there are fewer",
        )

    def _report(self, scene: Scene) -> InternalReport:
        """The internal report that the manifest commits to: the one already made, or a fresh one."""
        state, release_id = self.inputs.state, self.inputs.config.release.id
        stored = state.read_internal(release_id, REPORT_FILE)
        if stored is not None:
            return InternalReport.read(stored)
        report = self.mode.report(self.inputs, scene, self.progress)
        state.write_internal(release_id, REPORT_FILE, report.content)
        known = self.mode.for_the_owner(self.inputs, scene)
        if known:
            content = json.dumps({"marking": INTERNAL, **known}, indent=1, sort_keys=True) + "\n"
            state.write_internal(release_id, OWNER_FILE, content.encode())
        return report

    def _write(
        self,
        writer: CorpusWriter,
        scene: Scene,
        report: InternalReport,
        charged: Charged,
        paid: tuple[Account, Spend] | None,
    ) -> Written:
        """Make the parts, charge the network if that is still to be done, and publish."""
        key = draw_key(self.inputs, scene)
        job = part_job(self.mode, scene, key, writer)
        if writer.remote is not None:
            # A store has readers of its own: paid for before the first part is there.
            paid = paid or charge_network(charged)
        mended = _mended_before(writer)
        written = make_parts(job, self.engine, self.progress)
        mended += written.mended
        try:
            paid = paid or charge_network(charged)
        except PrivacyError:
            writer.discard()  # another release was faster: voltages that nobody paid for do not stay
            raise
        facts = replace(
            manifest_inputs(self.inputs, scene.model, writer, report, (charged, paid)),
            left_out=self.mode.left_out(scene.network),
            absent=scene.network.absent,
            customers=scene.nodes.customers,
            mended=mended,
            looked_at=self.changed,
            connections=self.mode.connections(self.inputs, scene.network, job.released, key),
        )
        self.say("looking at the corpus")
        publish(writer, facts, written.hashes, self.progress)
        return replace(written, mended=mended)


def _mended_before(writer: CorpusWriter) -> int:
    """Snapshots that were mended in the parts that an interrupted run has left."""
    if not writer.extras.mended:
        return 0
    missing = set(writer.missing_parts())
    there = [part for part in range(writer.layout.n_parts) if part not in missing]
    reader = ExtrasReader(writer.root, writer.layout, writer.release_id, writer.extras)
    days = np.array([day for part in there for day in writer.layout.days_of(part)], dtype=np.int64)
    return int(np.count_nonzero(reader.day_values(MENDED, days)))


def fitted_model(
    config: Config, state: PrivateState, history: LoadHistory, plan: Plan, key: StreamKey, almanac: Almanac
) -> LoadModel:
    """The load model of the release: the one already fitted, or a fresh fit kept for the next attempt.

    Parameters
    ----------
    almanac : public holidays and weather of the days of the history.
    """
    kept = kept_model(config, state)
    if kept is not None:
        keep_derived_model(state, config.release.id, config.model.reuse, kept)
        return kept
    if config.model.reuse is not None:
        raise PrivacyError(f"release '{config.model.reuse}' has fitted no load model yet; run it first")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # the result carries the notes of the model
        meters = MeterDays(history.days, almanac)
        options = fit_options_of(config, class_names(config, history), meters)
        model = fit(history, budget=budget_of(config), options=options, key=key)
    if model.rho > plan.loads_cost.rho * (1.0 + 1e-9):
        raise PrivacyError(
            "the fit spent more than was paid, so nothing is released; this is a bug, report it"
        )
    state.write_internal(config.release.id, MODEL_FILE, model.to_json().encode())
    return model


def draw_key(inputs: NetworkInputs, scene: Scene) -> StreamKey:
    """The key of the draws and of the order of the nodes; the sampler binds the model and the block.

    It is bound to the network that is solved, and to nothing else of the inputs: on a twin the released bytes
    are a function of key, config, model and twin, whatever the true network and the meters were.
    """
    return inputs.key.bind("network", scene.network.identity)


def part_job(mode: NetworkMode[Any], scene: Scene, key: StreamKey, writer: CorpusWriter) -> PartJob:
    """The job of the workers, with a key from `draw_key`."""
    feeder, source = scene.network.feeder, mode.source(scene, key, writer.layout.days)
    chosen = mode.released_nodes(feeder)
    released = chosen[secret_order(key, len(chosen))]
    graph = mode.tables(writer.root, feeder, released)
    solver = mode.solver(writer.layout.steps)
    return PartJob(feeder, source, writer, released, scene.network.solar, graph, solver, mode.mends)


def secret_order(key: StreamKey, count: int) -> IntArray:
    """A uniformly random order of the nodes, from the secret."""
    return np.asarray(key.stream("order of the nodes").generator.permutation(count), dtype=np.int64)


def manifest_inputs(
    inputs: ReleaseInputs,
    model: LoadModel,
    writer: CorpusWriter,
    report: InternalReport,
    charges: tuple[Charged, tuple[Account, Spend]],
) -> ManifestInputs:
    """What the manifest is made of: balances just after the charges of this release, commitment, shape."""
    charged, network = charges
    return ManifestInputs(
        config=inputs.config,
        model=model,
        layout=writer.layout,
        extras=writer.extras,
        loads=charged.ledger.remaining(charged.loads[0], as_of=charged.loads[1]),
        network=charged.ledger.remaining(network[0], as_of=network[1]),
        commitment_sha256=inputs.state.commit(inputs.config.release.id, COMMITMENT, report.content).sha256,
        insecure_seed=inputs.state.insecure_seed,
        sun=inputs.sun,
        days=inputs.almanac.released,
    )


def publish(
    writer: CorpusWriter,
    inputs: ManifestInputs,
    written: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Write everything beside the voltages, then give the release its name.

    Parameters
    ----------
    written : SHA-256 of the files that this run has written; what an earlier run left is read once.
    progress : told how many days of how many are on the page of the quality.
    """
    write_documents(writer, inputs, written, progress)
    writer.finish()


def write_documents(
    writer: CorpusWriter,
    inputs: ManifestInputs,
    written: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Everything beside the voltages; the manifest, which lists all other files, comes last."""
    statement, nodes = make_statement(inputs), NodeTable.opaque(writer.layout.nodes)
    if inputs.connections is not None:
        nodes = inputs.connections.of_nodes(nodes)
    tables = {
        **writer.write_nodes(nodes),
        **writer.write_connections(inputs.connections),
        **writer.write_days(inputs.days),
    }
    # From the files as they are, so that anybody can make the page again.
    corpus = Corpus(writer.root, writer.layout, nodes, writer.release_id)
    page = quality_of(corpus, statement, progress=progress).to_html()
    known = {
        **written,
        **tables,
        **writer.add_file(QUALITY_FILE, page),
        **writer.add_file(MODEL_FILE, inputs.model.to_json().encode()),
        **writer.add_file(REGISTRY_FILE, registry_bytes(statement)),
        **writer.add_file(CERTIFICATE_FILE, certificate_html(statement)),
        **writer.add_file(CARD_FILE, card_bytes(statement)),
    }
    # What a killed run left of the last two files is about to be replaced.
    hashes = writer.hashes(known | {CROISSANT_FILE: "", MANIFEST_FILE: ""})
    listed = {name: digest for name, digest in hashes.items() if digest}
    listed |= writer.add_file(CROISSANT_FILE, croissant_bytes(statement, listed))
    writer.add_file(MANIFEST_FILE, seal(statement, listed).to_bytes())
