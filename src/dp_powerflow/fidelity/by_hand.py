"""INTERNAL. `dpf.fidelity(corpus, history, feeder)`: the same without a config, and so without the key.

What the release says of itself takes the place of the config: how many customers a load has, whether controls
act. The order of the nodes is secret, so nodes are matched by the rank of their means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.measure import Sides, Watch, check_meters, measure
from dp_powerflow.fidelity.network import TrueSide
from dp_powerflow.fidelity.of_release import design_stated, promise_of
from dp_powerflow.fidelity.report import FidelityReport
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.manifest.model import MODEL_FILE, NodeScales
from dp_powerflow.manifest.verify import read_manifest
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import draw_node_classes
from dp_powerflow.pipeline.almanac import Almanac
from dp_powerflow.pipeline.customers import CustomerPlan, NodePlan
from dp_powerflow.pipeline.inputs import Solar
from dp_powerflow.pipeline.metered import Ground
from dp_powerflow.pipeline.modes.base import Scene, Solvable
from dp_powerflow.pipeline.parts import OperatedMaker, SolverMaker, batch_solver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import IntArray


def fidelity_by_hand(
    corpus: Corpus,
    history: LoadHistory,
    feeder: Feeder,
    effort: Effort,
    key: StreamKey,
    watch: Watch | None = None,
) -> FidelityReport:
    """INTERNAL. A corpus against meters and feeder."""
    if not isinstance(corpus.path, Path):
        raise CorpusError("the comparison reads a release of this machine; copy it here first")
    model = LoadModel.load(corpus.path / MODEL_FILE)
    check_meters(model, history)
    manifest = read_manifest(corpus.path)[0]
    stated = model, manifest.declared_public, manifest.guarantee.network
    true = _true_side(corpus, history, feeder, stated, key)
    own = key.bind("purpose", "fidelity")
    said = promise_of(corpus.path), design_stated(corpus.path)
    return measure(Sides(corpus, model, history, true, *said), effort, own, watch)


def _true_side(
    corpus: Corpus,
    history: LoadHistory,
    feeder: Feeder,
    stated: tuple[LoadModel, Any, Any],
    key: StreamKey,
) -> TrueSide | str:
    """The true network as the manifest says that the release was solved."""
    model, declared, network = stated
    if declared.generation is not None:
        return (
            "not compared: the release has PV, whose irradiance only the config knows; use the command line"
        )
    controls: Any = getattr(network, "controls", "frozen")
    solver: SolverMaker = batch_solver if controls == "frozen" else OperatedMaker(controls, history.n_steps)
    plan = _places(model, declared.node_scales, feeder, controls == "frozen", (history, key))
    scene = Scene(Solvable(feeder, Solar(), ""), model, plan, Almanac())
    nodes = _released(corpus, feeder)
    return TrueSide(Ground(scene, solver, nodes), history, np.arange(len(nodes)), known=False)


def _released(corpus: Corpus, feeder: Feeder) -> IntArray:
    """Nodes with a load of their own, or all but the sources: as many as the corpus has."""
    loaded = np.asarray(feeder.retained[feeder.loaded_nodes()[0]], dtype=np.int64)
    for nodes in (loaded, np.asarray(feeder.energised, dtype=np.int64)):
        if len(nodes) == corpus.layout.nodes:
            return nodes
    raise ConfigError(
        "the corpus has another number of nodes than this feeder; give the feeder that the release was made "
        "from"
    )


def _places(
    model: LoadModel, rule: Any, feeder: Feeder, frozen: bool, drawn: tuple[LoadHistory, StreamKey]
) -> NodePlan | CustomerPlan:
    """Whom loads are drawn for, by the public rule of the manifest; classes are drawn."""
    history, key = drawn
    if isinstance(rule, NodeScales):
        nodes, nominal_kw = feeder.loaded_nodes()
        classes = draw_node_classes(model, len(nodes), key)
        return NodePlan(nodes, classes, nominal_kw * rule.factor, np.full(len(nodes), np.nan))
    positions, nominal_kw = feeder.drawn_loads()
    customers = np.maximum(1, np.round(nominal_kw / rule.kw_per_customer)).astype(np.int64)
    load_of = np.repeat(np.arange(len(positions)), customers)
    classes = draw_node_classes(model, len(load_of), key)
    scale_kw = None if history.scale_kw is None else np.resize(history.scale_kw, len(load_of))
    return CustomerPlan(positions, load_of, classes, scale_kw, np.full(len(load_of), np.nan), frozen)
