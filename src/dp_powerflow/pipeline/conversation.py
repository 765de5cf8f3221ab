"""A release as a conversation between who makes it and who owns the data.

    read and check → *examined* → network to solve, report → *drawn* → parts → *solved* → documents

Making a release needs the network and keys, but neither ledger nor meters. Where it needs something of the
data owner it stops and asks: to be paid for, or that files be kept. So it can be made by a worker elsewhere,
and `run_release` and fleets share one path. Everything random comes from the key, bound to the release, the
model and the network: a conversation that was lost is held again with the same answers, to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow._parallel import Runner
from dp_powerflow.corpus.parts import PartReader
from dp_powerflow.corpus.storage import Listed
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.manifest.build import ManifestInputs
from dp_powerflow.manifest.release import publish
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import NetworkInputs, ReleaseInputs
from dp_powerflow.pipeline.modes.base import (
    INTERNAL,
    OWNER_FILE,
    InternalReport,
    NetworkMode,
    Progress,
    Scene,
)
from dp_powerflow.pipeline.parts import PartJob, Written, make_parts
from dp_powerflow.pipeline.plan import kept_model, refuse_another_model, request_of
from dp_powerflow.pipeline.ready import Ready, Say, is_made, writer_of
from dp_powerflow.pipeline.receipts import COMMITMENT, REPORT_FILE, is_begun
from dp_powerflow.privacy.ledger.records import Balance, Spend
from dp_powerflow.privacy.random import StreamKey, canonical_bytes
from dp_powerflow.units import IntArray

CHANGED_MEANWHILE = (
    "an input file changed while the release was being made, so nothing was released; restore the file and "
    "run the same command again, which costs nothing more"
)


@dataclass(frozen=True, eq=False, repr=False)
class Examined:
    """PRIVATE. All checks are passed: charge the customers, fit, and charge the network if that comes first.

    Answered with `Paid`.

    Attributes
    ----------
    dataset, frame : what a charge asks of the network (`NetworkFacts`).
    inputs : keyed hash of everything beside the config that decides the release.
    nodes : PUBLIC. Released nodes.
    corpus_bytes : PUBLIC. How large the corpus will be, about.
    warnings : PUBLIC. What public loads do.
    draws : PUBLIC. What is drawn for every step: nodes, or customers.
    """

    dataset: str
    frame: str
    inputs: str
    nodes: int
    corpus_bytes: int
    warnings: tuple[str, ...]
    draws: int = 0


@dataclass(frozen=True)
class Drawn:
    """What is in the private state must be kept before anything is published; answered with None."""


@dataclass(frozen=True)
class Solved:
    """The network is to be charged now, if it was not before; answered with `Paid`."""


@dataclass(frozen=True, eq=False, repr=False)
class Paid:
    """PRIVATE. What was paid, and how the accounts stand just after it.

    Attributes
    ----------
    dataset, inputs : of what was examined and is paid for.
    loads, network : balances; None for a network that is charged later.
    spend : of the network; None for one that is charged later.
    model : the load model; None where the private state has it.
    """

    dataset: str
    inputs: str
    loads: Balance
    network: Balance | None = None
    spend: Spend | None = None
    model: LoadModel | None = None


@dataclass(frozen=True)
class Made:
    """A release that is made.

    Attributes
    ----------
    met : INTERNAL. Whether the evidence supports the policy.
    worst_mismatch : [p.u.] of the parts written now, None if there was nothing left to write.
    mended : snapshots whose powers were lowered.
    notes : PUBLIC. Remarks on the load model.
    """

    met: bool
    worst_mismatch: float | None
    mended: int
    notes: tuple[str, ...]


Ask = Examined | Drawn | Solved
Conversation = Generator[Ask, Any, Made]


@dataclass(frozen=True, eq=False, repr=False)
class Maker:
    """PRIVATE. Makes one release.

    Attributes
    ----------
    ready : what it is made from; all checks are passed.
    """

    ready: Ready
    engine: Runner
    say: Say
    progress: Progress | None

    @property
    def inputs(self) -> ReleaseInputs:
        """PRIVATE. What the release is made from."""
        return self.ready.inputs

    @property
    def mode(self) -> NetworkMode[Any]:
        """How the network is treated."""
        return self.ready.mode

    @property
    def structure(self) -> Feeder:
        """Has the nodes, loads and controls of the network that will be solved."""
        return self.ready.structure

    def steps(self, *, only_looks: bool = False) -> Conversation:
        """Make the release; whatever refuses it leaves nothing beside the target that is of no use.

        Parameters
        ----------
        only_looks : nobody will answer: nothing is prepared at the target.
        """
        writer, state = self._writer(), self.inputs.state
        try:
            if not only_looks and not is_made(writer, state):
                # What is bound to fail later fails before anything is spent.
                writer.check(begun=is_begun(state, writer.release_id))
            return (yield from self._make(writer))
        except GeneratorExit:
            raise  # nobody goes on with this conversation; another worker may hold it again
        except BaseException:  # also an interrupt
            if not only_looks and writer.remote is not None:
                with suppress(CorpusError):
                    writer.remote.leave()
            raise

    def _writer(self) -> CorpusWriter:
        # Of the twin: what its rounded frame does not have would be missed when it is paid for.
        feeder = self.structure
        return writer_of(self.mode, feeder, self.inputs.solar_on(feeder), self.inputs.history.n_steps)

    def _make(self, writer: CorpusWriter) -> Conversation:
        inputs, mode = self.inputs, self.mode
        refuse_another_model(inputs)
        dataset = mode.identity(inputs)
        paid: Paid = yield Examined(
            dataset,
            mode.frame(inputs),
            inputs.identity,
            writer.layout.nodes,
            self.ready.corpus_bytes,
            self.ready.feasibility.warnings,
            mode.draws(inputs, self.structure),
        )
        if (paid.dataset, paid.inputs) != (dataset, inputs.identity):
            # Held again elsewhere, from files that are other ones now: nobody paid for what they say.
            raise PrivacyError(CHANGED_MEANWHILE)
        model = paid.model or kept_model(inputs.config, inputs.state)
        if model is None:
            raise PrivacyError(
                f"release '{inputs.config.model.reuse}' has fitted no load model yet; run it first"
            )
        network = mode.network_to_solve(inputs, dataset, paid.spend)
        scene = mode.scene(inputs, network, model)
        self.say("network evidence (INTERNAL)")
        report = self._report(scene)
        internal = inputs.state.internal_directory(inputs.config.release.id)
        mode.accept(report, internal / REPORT_FILE)
        yield Drawn()
        if is_made(writer, inputs.state):
            return Made(report.met, None, 0, model.notes)
        self.say("drawing loads and solving")
        staged = replace(writer, stage=self._stage(writer, scene))
        try:
            staged.prepare()
            written = yield from self._write(staged, scene, report, paid)
        except GeneratorExit:
            raise  # as in `steps`
        except BaseException as error:  # also an interrupt: nothing stays that a resumed run cannot use
            _clear_up(staged, for_good=isinstance(error, PowerFlowError))
            raise
        return Made(report.met, written.mismatch, written.mended, model.notes)

    def _stage(self, writer: CorpusWriter, scene: Scene) -> str:
        """Keyed digest of everything that decides the bytes of the release; it tells nothing without the key.

        Key and network are in the key of the draws, version and files in the request.
        """
        request = request_of(self.inputs.config, self.inputs.identity)
        shape = canonical_bytes((writer.layout, writer.extras))
        key = draw_key(self.inputs, scene).bind("purpose", "stage")
        return key.keyed_hash([request.encode(), scene.model.to_json().encode(), shape])[:32]

    def _report(self, scene: Scene) -> InternalReport:
        """The internal report that the manifest commits to: the one already made, or a fresh one."""
        state, release_id = self.inputs.state, self.inputs.config.release.id
        stored = state.read_internal(release_id, REPORT_FILE)
        if stored is not None:
            return InternalReport.read(stored)
        report = self.mode.report(self.inputs, scene, self.progress)
        known = self.mode.for_the_owner(self.inputs, scene)
        if known:
            content = json.dumps({"marking": INTERNAL, **known}, indent=1, sort_keys=True) + "\n"
            state.write_internal(release_id, OWNER_FILE, content.encode())
        # Last: a run that finds it is done here.
        state.write_internal(release_id, REPORT_FILE, report.content)
        return report

    def _write(
        self, writer: CorpusWriter, scene: Scene, report: InternalReport, paid: Paid
    ) -> Generator[Ask, Any, Written]:
        """Make the parts, have the network charged if that is still to be done, and publish."""
        key = draw_key(self.inputs, scene)
        job = part_job(self.mode, scene, key, writer)
        if writer.remote is not None and paid.network is None:
            # A store has readers of its own: paid for before the first part is there.
            paid = yield Solved()
        mended = _mended_before(writer)
        written = make_parts(job, self.engine, self.progress)
        mended += written.mended
        if paid.network is None:
            try:
                paid = yield Solved()
            except PrivacyError:
                writer.discard()  # another release was faster: voltages that nobody paid for do not stay
                raise
        facts = replace(
            manifest_inputs(self.inputs, scene.model, writer, report, paid),
            left_out=self.mode.left_out(scene.network),
            absent=scene.network.absent,
            sums_customers=scene.nodes.customers is not None,
            mended=mended,
            connections=self.mode.connections(self.inputs, scene.network, job.released, key),
        )
        self.say("looking at the corpus")
        publish(writer, facts, written.hashes, self.progress)
        return replace(written, mended=mended)


def _clear_up(writer: CorpusWriter, *, for_good: bool) -> None:
    """Leave nothing beside the target but parts that a resumed run can use; none if refused for good.

    A URL that is taken is refused before the release begins there: all that it has is of others.
    """
    with suppress(CorpusError, OSError):  # what is there is of another release, or the disk fails
        if writer.remote is not None:
            writer.refuse_unseen()
        untouched = len(writer.missing_parts()) == writer.layout.n_parts
        if untouched or for_good:
            writer.discard()


def _mended_before(writer: CorpusWriter) -> int:
    """Snapshots that were mended in the parts that an interrupted run has left."""
    if not writer.extras.mended:
        return 0
    missing = set(writer.missing_parts())
    there = [part for part in range(writer.layout.n_parts) if part not in missing]
    unchecked = Listed(writer.root)
    reader = PartReader(writer.root, writer.layout, writer.release_id, writer.extras, unchecked)
    days = np.array([day for part in there for day in writer.layout.days_of(part)], dtype=np.int64)
    return int(np.count_nonzero(reader.day_values("mended", days)))


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
    inputs: ReleaseInputs, model: LoadModel, writer: CorpusWriter, report: InternalReport, paid: Paid
) -> ManifestInputs:
    """What the manifest is made of: balances just after the charges of this release, commitment, shape."""
    assert paid.network is not None
    return ManifestInputs(
        config=inputs.config,
        model=model,
        layout=writer.layout,
        extras=writer.extras,
        loads=paid.loads,
        network=paid.network,
        commitment_sha256=inputs.state.commit(inputs.config.release.id, COMMITMENT, report.content).sha256,
        insecure_seed=inputs.state.insecure_seed,
        sun=inputs.sun,
        days=inputs.almanac.released,
    )
