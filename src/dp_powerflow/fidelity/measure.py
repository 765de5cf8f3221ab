"""INTERNAL. A release against the truth: customers, network, attacks. Spends nothing.

What is found is kept in the private state directory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import ConfigError, LoadDataError, MissingExtraError
from dp_powerflow.fidelity.attacks import attack_membership, attack_planted, design_of
from dp_powerflow.fidelity.comparison import (
    TrueSide,
    compare_customers,
    compare_network,
    quantum_of,
    some_customers,
)
from dp_powerflow.fidelity.metered import Ground, ground_of
from dp_powerflow.fidelity.metrics import FEWEST_DAYS, HOURS, Setting
from dp_powerflow.fidelity.report import Attacks, Facts, FidelityReport
from dp_powerflow.fidelity.verdicts import Effort
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.customers import draw_customers
from dp_powerflow.pipeline.inputs import ReleaseInputs, read_inputs
from dp_powerflow.pipeline.modes.base import NetworkMode, mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.release import released_order
from dp_powerflow.privacy.state import PrivateState

FEWEST_CUSTOMERS = 8
PAGE_FILE, JSON_FILE = "fidelity.html", "fidelity.json"
Say = Callable[[str], None]
Progress = Callable[[int, int], None]


def fidelity_of_release(
    release: Location,
    config: Config,
    effort: Effort,
    say: Say = lambda _: None,
    progress: Progress = lambda done, total: None,
) -> tuple[FidelityReport, Path]:
    """INTERNAL. Compare a release with the meters and the feeder of its config, attack it, keep the report.

    Nothing is released, and nothing is charged.

    Parameters
    ----------
    release : directory of the release, or its URL.
    config : what it was made from.
    say, progress : told what is being done, and how much of how much.

    Returns
    -------
    The report, and the private file that holds its page.

    Raises
    ------
    DpPowerflowError : there is no such release, another config made it, or its meters are too few.
    """
    if find_spec("sklearn") is None:
        raise MissingExtraError("scikit-learn", "fidelity")  # the classifier of the report
    corpus = open_corpus(release)
    state = PrivateState.open(config.release.state, create=False, insecure_seed=config.release.insecure_seed)
    model = _model_of(release, corpus, config, state)
    say("reading meters and feeder")
    inputs, mode = read_inputs(config, state), mode_of(config)
    history, key = inputs.readings, inputs.own_key.bind("purpose", "fidelity")
    check_meters(model, history)
    true = true_side(corpus, inputs, mode, model)
    say("drawing customers from the released model")
    chosen = some_customers(
        model, history, (2 * effort.customers, effort.days), key.stream("customers").generator
    )
    drawn = draw_customers(model, chosen.history, key.bind("purpose", "drawn customers"))
    quantum = quantum_of(chosen.history)
    say("comparing customers")
    customers = compare_customers(
        np.maximum(drawn, chosen.floor_kw[:, None, None]),
        chosen.load_kw,
        Setting(chosen.off, float(chosen.floor_kw.min()), quantum),
        effort,
        on_split=progress,
    )
    say("solving the meters on the true feeder")
    network = compare_network(corpus, true, effort, on_split=progress)
    rng = key.stream("attacked").generator
    many = design_of(model, history, (2 * effort.customers, effort.attacked_days), rng, one_class=False)
    say("attack: who was among the customers")
    membership = attack_membership(many, effort, key, progress)
    few = design_of(model, history, (effort.attacked, effort.attacked_days), rng, one_class=True)
    say("attack: planted customers")
    planted = attack_planted(few, effort, key, progress)
    facts = Facts(
        corpus.release_id,
        model.estimator,
        model.is_history,
        chosen.history.n_load_points,
        chosen.history.n_days,
        history.step_minutes,
        quantum,
        history.simulated,
    )
    report = FidelityReport(facts, customers, network, Attacks(many.allowed, membership, planted), effort)
    state.write_internal(config.release.id, JSON_FILE, report.to_json().encode())
    return report, state.write_internal(config.release.id, PAGE_FILE, report.to_html())


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


def true_side(corpus: Corpus, inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel) -> TrueSide:
    """The true network, its nodes in the secret order of the release."""
    network = mode.network_to_solve(inputs, mode.identity(inputs))
    chosen = mode.released_nodes(network.feeder)
    if len(chosen) != corpus.layout.nodes:
        raise ConfigError(
            "the release has other nodes than this config gives; give the config that it was made from"
        )
    released = chosen[released_order(inputs.state, inputs.config.release.id, None, len(chosen))]
    place = {name: k for k, name in enumerate(inputs.feeder.nodes)}
    at = np.array([place.get(network.feeder.nodes[k], -1) for k in released], dtype=np.int64)
    solved = np.isin(at, inputs.feeder.energised)
    ground = ground_of(inputs, mode, model)
    columns = np.flatnonzero(solved)
    return TrueSide(Ground(ground.scene, ground.solver, at[columns]), inputs.readings, columns)
