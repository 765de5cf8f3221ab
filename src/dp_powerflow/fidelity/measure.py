"""INTERNAL. All of a release against all that is true: customers, network, attacks. Spends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import ConfigError, CorpusError, LoadDataError
from dp_powerflow.fidelity import comparison
from dp_powerflow.fidelity.attacks import attack_line, attack_membership, attack_planted, design_of
from dp_powerflow.fidelity.metrics import FEWEST_DAYS, HOURS, Setting
from dp_powerflow.fidelity.report import Attacks, Facts, FidelityReport
from dp_powerflow.fidelity.verdicts import Effort
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.manifest.model import MODEL_FILE, NodeScales, at_most
from dp_powerflow.manifest.verify import manifest_content, open_release, read_manifest
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import draw_node_classes
from dp_powerflow.pipeline.customers import CustomerPlan, NodePlan, draw_customers
from dp_powerflow.pipeline.inputs import Almanac, ReleaseInputs, Solar, read_inputs
from dp_powerflow.pipeline.metered import Ground, ground_of
from dp_powerflow.pipeline.modes.base import NetworkMode, Scene, Solvable, mode_of
from dp_powerflow.pipeline.parts import OperatedMaker, SolverMaker, batch_solver
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.release import draw_key, secret_order
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.units import IntArray

FEWEST_CUSTOMERS = 8
Say = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class Sides:
    """PRIVATE. A release, and what is true.

    Attributes
    ----------
    corpus, model : what was released.
    history : the meters.
    true : the true feeder; words why it is not compared, where it is not.
    """

    corpus: Corpus
    model: LoadModel
    history: LoadHistory
    true: comparison.TrueSide | str


@dataclass(frozen=True)
class Watch:
    """Who is told what is being done, and how much of it."""

    say: Say = lambda _: None
    progress: Progress = lambda done, total: None


def measure(sides: Sides, effort: Effort, key: StreamKey, watch: Watch | None = None) -> FidelityReport:
    """INTERNAL. Compare and attack; nothing is released, and nothing is charged.

    Parameters
    ----------
    key : secret of draws and of the noise of fits that are attacked, bound to this purpose.

    Raises
    ------
    LoadDataError : the meters are too few, too short, or not those of the release.
    """
    watch = watch or Watch()
    model, history = sides.model, sides.history
    check_meters(model, history)
    facts, customers = _customers(sides, effort, key, watch)
    network: comparison.NetworkComparison | str = "not compared"
    if isinstance(sides.true, str):
        network = sides.true
    else:
        watch.say("solving the meters on the true feeder")
        network = comparison.compare_network(sides.corpus, sides.true, effort, on_split=watch.progress)
    rng = key.stream("attacked").generator
    many = design_of(model, history, (2 * effort.customers, effort.attacked_days), rng, one_class=False)
    watch.say("attack: who was among the customers")
    membership = attack_membership(many, effort, key, watch.progress)
    few = design_of(model, history, (effort.attacked, effort.attacked_days), rng, one_class=True)
    watch.say("attack: planted customers")
    planted = attack_planted(few, effort, key, watch.progress)
    twin = design_stated(sides.corpus)
    line = None if twin is None else attack_line(twin, key)
    attacks = Attacks(many.allowed, membership, planted, line, promise_of(sides.corpus))
    return FidelityReport(facts, customers, network, attacks, effort)


def check_meters(model: LoadModel, history: LoadHistory) -> None:
    """Refuse meters that are too few or too short, or that the model cannot have been fitted to."""
    if history.n_days < FEWEST_DAYS or history.n_load_points < FEWEST_CUSTOMERS:
        raise LoadDataError(
            f"a comparison needs meters of at least {FEWEST_CUSTOMERS} customers and {FEWEST_DAYS} days; "
            "give more of them",
            code="too-few-customers",
        )
    if history.n_steps % HOURS:
        raise LoadDataError(
            "a comparison needs meter data with steps that divide an hour; give finer readings"
        )
    same = (model.n_load_points, model.n_days, model.step_minutes)
    if same != (history.n_load_points, history.n_days, history.step_minutes):
        raise LoadDataError(
            "the load model of the release was fitted to another number of load points, days or steps than "
            "these meters have; give the meters that the release was made from"
        )


def _customers(
    sides: Sides, effort: Effort, key: StreamKey, watch: Watch
) -> tuple[Facts, comparison.CustomerComparison]:
    model, history = sides.model, sides.history
    watch.say("drawing customers from the released model")
    chosen = comparison.some_customers(
        model, history, (2 * effort.customers, effort.days), key.stream("customers").generator
    )
    drawn = draw_customers(model, chosen.history, key.bind("purpose", "drawn customers"))
    quantum = comparison.quantum_of(chosen.history)
    setting = Setting(chosen.off, float(chosen.floor_kw.min()), quantum)
    watch.say("comparing customers")
    lowest = chosen.floor_kw[:, None, None]
    found = comparison.compare_customers(
        np.maximum(drawn, lowest), chosen.load_kw, setting, effort, on_split=watch.progress
    )
    facts = Facts(
        sides.corpus.release_id,
        model.estimator,
        model.is_history,
        chosen.history.n_load_points,
        chosen.history.n_days,
        history.step_minutes,
        quantum,
        history.simulated,
    )
    return facts, found


# --- fidelity RELEASE CONFIG ------------------------------------------------------------------------------
# INTERNAL. The release of a config against its own meters and feeder.
# What is found is kept in the private state directory.


PAGE_FILE, JSON_FILE = "fidelity.html", "fidelity.json"
PURPOSE = "fidelity"


@dataclass(frozen=True, eq=False, repr=False)
class Kept:
    """INTERNAL. What was found, and the private files that hold it."""

    report: FidelityReport
    page: Path
    content: Path


def fidelity_of_release(
    release: Location, config: Config, effort: Effort, watch: Watch | None = None
) -> Kept:
    """INTERNAL. Compare a release with the meters and the feeder of its config, and keep what is found.

    Parameters
    ----------
    release : directory of the release, or the place of one at a URL.
    config : what it was made from.

    Raises
    ------
    DpPowerflowError : there is no such release, it is that of another config, or its meters are too few.
    """
    watch = watch or Watch()
    corpus = open_corpus(release)
    state = PrivateState.open(config.release.state, create=False, insecure_seed=config.release.insecure_seed)
    model = _model_of(release, corpus, config, state)
    watch.say("reading meters and feeder")
    inputs, mode = read_inputs(config, state), mode_of(config)
    check_meters(model, inputs.readings)
    true = true_side(corpus, inputs, mode, model)
    sides = Sides(corpus, model, inputs.readings, true)
    report = measure(sides, effort, inputs.key.bind("purpose", PURPOSE), watch)
    page = state.write_internal(config.release.id, PAGE_FILE, report.to_html())
    content = state.write_internal(config.release.id, JSON_FILE, report.to_json().encode())
    return Kept(report, page, content)


def promise_of(corpus: Corpus) -> str:
    """PUBLIC. What a release promises of the network, in words."""
    network = read_manifest(corpus.path)[0].guarantee.network
    advantage = getattr(network, "advantage", None)
    if advantage is None:
        return (
            "The release is solved on the true network. No change of a line is hidden: one snapshot rules a "
            "changed line out, so the best test has an advantage of 1"
        )
    return (
        f"The release is solved on a twin. For one element changed by factors up to {1 + network.change:g}, "
        f"the best test has an advantage of at most {at_most(advantage)} over guessing (epsilon at most "
        f"{at_most(network.epsilon)}), whatever it does with the corpus"
    )


def design_stated(corpus: Corpus) -> TwinDesign | None:
    """PUBLIC. The design of the twin that a release states; None on the true network."""
    facts = open_release(corpus.path, manifest_content(corpus.path)).facts
    design = None if facts is None else getattr(facts.policy, "design", None)
    return design if isinstance(design, TwinDesign) else None


def _model_of(release: Location, corpus: Corpus, config: Config, state: PrivateState) -> LoadModel:
    """The published model, if the release is the one that the config makes."""
    other = ConfigError(
        "the release is not the one that this config makes: its id or its load model is another; give the "
        "config that it was made from"
    )
    if corpus.release_id != config.release.id:
        raise other
    kept = kept_model(config, state)
    if kept is None:
        raise ConfigError(
            "the private state directory has no load model of this release; run 'dp-powerflow release' first"
        )
    model = LoadModel.from_json((release / MODEL_FILE).read_bytes().decode("utf-8", errors="replace"))
    if model.sha256 != kept.sha256:
        raise other
    return model


def true_side(
    corpus: Corpus, inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel
) -> comparison.TrueSide:
    """The true network, its nodes in the secret order of the release."""
    network = mode.network_to_solve(inputs, mode.identity(inputs))
    scene = mode.scene(inputs, network, model)
    chosen = mode.released_nodes(network.feeder)
    if len(chosen) != corpus.layout.nodes:
        raise ConfigError(
            "the release has other nodes than this config gives; give the config that it was made from"
        )
    released = chosen[secret_order(draw_key(inputs, scene), len(chosen))]
    place = {name: k for k, name in enumerate(inputs.feeder.nodes)}
    at = np.array([place.get(network.feeder.nodes[k], -1) for k in released], dtype=np.int64)
    solved = np.isin(at, inputs.feeder.energised)
    ground = ground_of(inputs, mode, model)
    columns = np.flatnonzero(solved)
    return comparison.TrueSide(
        Ground(ground.scene, ground.solver, at[columns]), inputs.readings, columns, known=True
    )


# --- dpf.fidelity(corpus, history, feeder) ----------------------------------------------------------------
# INTERNAL. The same without a config, and so without the key. What the release says of itself takes the place
# of the config: how many customers a load has, whether controls act. The order of the nodes is secret, so
# nodes are matched by the rank of their means.


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
    return measure(Sides(corpus, model, history, true), effort, own, watch)


def _true_side(
    corpus: Corpus,
    history: LoadHistory,
    feeder: Feeder,
    stated: tuple[LoadModel, Any, Any],
    key: StreamKey,
) -> comparison.TrueSide | str:
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
    return comparison.TrueSide(Ground(scene, solver, nodes), history, np.arange(len(nodes)), known=False)


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
