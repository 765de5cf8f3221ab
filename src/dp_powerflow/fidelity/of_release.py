"""INTERNAL. `fidelity RELEASE CONFIG`: the release of a config against its own meters and feeder.

What is found is kept in the private state directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.measure import Sides, Watch, check_meters, measure
from dp_powerflow.fidelity.network import TrueSide
from dp_powerflow.fidelity.report import FidelityReport
from dp_powerflow.manifest.model import MODEL_FILE, at_most
from dp_powerflow.manifest.verify import manifest_content, open_release, read_manifest
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import ReleaseInputs, read_inputs
from dp_powerflow.pipeline.metered import Ground, ground_of
from dp_powerflow.pipeline.modes.base import NetworkMode, mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.release import draw_key, secret_order
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.design import TwinDesign

PAGE_FILE, JSON_FILE = "fidelity.html", "fidelity.json"
PURPOSE = "fidelity"


@dataclass(frozen=True, eq=False, repr=False)
class Kept:
    """INTERNAL. What was found, and the private files that hold it."""

    report: FidelityReport
    page: Path
    content: Path


def fidelity_of_release(release: Path, config: Config, effort: Effort, watch: Watch | None = None) -> Kept:
    """INTERNAL. Compare a release with the meters and the feeder of its config, and keep what is found.

    Parameters
    ----------
    release : directory of the release.
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
    stated = promise_of(release), design_stated(release)
    sides = Sides(corpus, model, inputs.readings, true, *stated)
    report = measure(sides, effort, inputs.key.bind("purpose", PURPOSE), watch)
    page = state.write_internal(config.release.id, PAGE_FILE, report.to_html())
    content = state.write_internal(config.release.id, JSON_FILE, report.to_json().encode())
    return Kept(report, page, content)


def promise_of(release: Path) -> str:
    """PUBLIC. What a release promises of the network, in words."""
    network = read_manifest(release)[0].guarantee.network
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


def design_stated(release: Path) -> TwinDesign | None:
    """PUBLIC. The design of the twin that a release states; None on the true network."""
    facts = open_release(release, manifest_content(release)).facts
    design = None if facts is None else getattr(facts.policy, "design", None)
    return design if isinstance(design, TwinDesign) else None


def _model_of(release: Path, corpus: Corpus, config: Config, state: PrivateState) -> LoadModel:
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
    model = LoadModel.load(release / MODEL_FILE)
    if model.sha256 != kept.sha256:
        raise other
    return model


def true_side(corpus: Corpus, inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel) -> TrueSide:
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
    return TrueSide(Ground(ground.scene, ground.solver, at[columns]), inputs.readings, columns, known=True)
