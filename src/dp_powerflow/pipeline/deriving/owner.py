"""A study from the private state: the twin and the load model that a finished release paid for. PRIVATE.

Nothing is drawn that the release did not draw and nothing is charged: the ledger is not opened. What the
study gives is a function of the twin, the load model, the secret order and public choices, as the release is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import RemotePath, location
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.errors import ConfigError, CorpusError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.manifest.build import declared_by, loads_guarantee
from dp_powerflow.manifest.model import Manifest, ReleaseError, differences, policy_of, registered, sha256_of
from dp_powerflow.manifest.verify import manifest_content
from dp_powerflow.pipeline.customers import count_customers
from dp_powerflow.pipeline.deriving.source import (
    FROM_STATE,
    ON_NEW_DAYS,
    ON_THE_TRUE_NETWORK,
    Basis,
    StudySettings,
    clear_sky_year,
    derivable_manifest,
    refuse_another_scene,
)
from dp_powerflow.pipeline.inputs import NetworkInputs, network_again
from dp_powerflow.pipeline.modes.base import NetworkMode, Scene, left_out, mode_of
from dp_powerflow.pipeline.plan import COMMITMENT, REPORT_FILE, kept_model, writer_of
from dp_powerflow.pipeline.release import draw_key, part_job, released_order
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.studies.study import Study
from dp_powerflow.units import FloatArray


def basis_of_config(config: Config, settings: StudySettings, *, state_path: Path | None = None) -> Basis:
    """PRIVATE. The study of the finished release of a config.

    Parameters
    ----------
    state_path : private state directory, if it lies elsewhere than the config says.

    Raises
    ------
    PrivacyError : the release was not solved on a twin, or its twin and model are not in the state.
    ReleaseError : the release is not finished, or is not the one that config and state would make.
    """
    release_id = config.release.id
    if not registered(config.network.mode).derivable:
        raise PrivacyError(ON_THE_TRUE_NETWORK.format(id=release_id))
    content, source = _released(config)
    state = _state(config, state_path)
    model = kept_model(config, state)
    if model is None:
        raise PrivacyError(_run_first(release_id))
    inputs, mode = network_again(config, state, model.n_steps), mode_of(config)
    network = mode.kept_network(inputs)
    if network is None:
        raise PrivacyError(_run_first(release_id))
    scene = mode.scene(inputs, network, model)
    _refuse_another_release(mode, inputs, scene, source)
    _refuse_another_promise(mode, inputs, scene, source)
    sun, words = _sun(inputs, settings, model.n_steps)
    corpus, sealed = open_corpus(config.release.output), inputs.key is None
    # Law and twin are paid for, so no draw of days need be secret: a public seed draws as well as a key.
    key = (
        StreamKey.from_insecure_seed(int(sha256_of(content)[:15], 16)) if sealed else draw_key(inputs, scene)
    )
    study = replace(_study(mode, inputs, scene, key, corpus if sealed else None), irradiance=sun)
    refuse_another_scene(study, corpus, same_days=not sealed)
    return Basis(content, source, ON_NEW_DAYS if sealed else FROM_STATE, settings, words, study)


def _run_first(release_id: str) -> str:
    return (
        f"release '{release_id}' is not finished, and nothing is drawn or charged for what is derived from "
        "it; run the release first"
    )


def _released(config: Config) -> tuple[bytes, Manifest[Any]]:
    """The manifest of the finished release."""
    release_id, place = config.release.id, location(config.release.output)
    try:
        content = manifest_content(place)
    except (ReleaseError, CorpusError):
        if isinstance(place, RemotePath):
            raise
        raise ReleaseError(_run_first(release_id)) from None
    source = derivable_manifest(place, content)
    if source.release.id != release_id:
        raise ReleaseError(
            f"{place} is release '{source.release.id}', and the config names '{release_id}'; correct "
            "release.output or release.id"
        )
    return content, source


def _state(config: Config, state_path: Path | None) -> PrivateState:
    """The private state; one that does not exist is not made."""
    if state_path is not None:
        return PrivateState.inspect(state_path)
    if not Path(config.release.state).is_dir():
        raise PrivacyError(_run_first(config.release.id))
    return PrivateState.open(config.release.state, create=False, insecure_seed=config.release.insecure_seed)


def _refuse_another_release(
    mode: NetworkMode[Any], inputs: NetworkInputs, scene: Scene, source: Manifest[Any]
) -> None:
    """The release must commit to the report of the twin that is kept, under this key."""
    release_id = inputs.config.release.id
    stored = inputs.state.read_internal(release_id, REPORT_FILE)
    if stored is None:
        raise PrivacyError(_run_first(release_id))
    same = inputs.state.commit(release_id, COMMITMENT, stored) == source.internal_report.sha256
    if not same or mode.report(inputs, scene).content != stored:
        raise ReleaseError(
            f"release '{release_id}' was made with another twin or key than the private state keeps; give "
            "the config and the private state that it was made with"
        )


def _refuse_another_promise(
    mode: NetworkMode[Any], inputs: NetworkInputs, scene: Scene, source: Manifest[Any]
) -> None:
    """What the release promises and declares must follow from config and load model, as for this study."""
    config = mode.config
    policy = policy_of(config, scene.network.absent)
    loads = differences(source.guarantee.loads.model_dump(), loads_guarantee(scene.model))
    network = differences(source.guarantee.network.model_dump(), policy.model_dump())
    chosen = mode.tables(location("."), scene.network.feeder, mode.released_nodes(scene.network.feeder))
    tables = None if chosen is None else chosen.stated(scene.model.n_steps)
    same_tables = source.data.network_tables == tables
    same_days = source.data.days == config.release.days
    now = declared_by(
        config, scene.model, left_out(mode, scene.network), inputs.sun, sums_customers=mode.counts_customers
    )
    declared = differences(source.declared_public.model_dump(), now.model_dump())
    if any(loads) or any(network) or any(declared) or not same_days or not same_tables:
        raise ReleaseError(
            f"release '{config.release.id}' was made with other settings than the config has now, or its "
            "manifest was changed; restore both as they were when it was made"
        )


def _study(
    mode: NetworkMode[Any], inputs: NetworkInputs, scene: Scene, key: StreamKey, sealed: Corpus | None
) -> Study:
    """The scene of the release, as its parts were made.

    Parameters
    ----------
    sealed : the release, if the key of its draws is gone: other buses have the order that it states.
    """
    config, feeder, solar = inputs.config, scene.network.feeder, scene.network.solar
    writer = writer_of(mode, feeder, solar, scene.model.n_steps)  # only its shape: nothing is written there
    order = released_order(inputs.state, config.release.id, None, writer.layout.nodes)
    job = part_job(mode, scene, key, writer, order)
    made = mode.connections(inputs, scene.network, job.released, key)
    return Study(
        feeder=_without_the_file(job.feeder, keep_codes=policy_of(config).codes_known),
        source=job.source,
        make_solver=partial(job.solver, job.feeder, job.solar),
        released=job.released,
        node_ids=NodeTable.opaque(writer.layout.nodes).ids,
        generation=job.solar.generation,
        connections=made if sealed is None or made is None else sealed.connections,
        customers=count_customers(config, feeder, inputs.services).of_all(feeder),
        scales_down=job.scales_down,
        file_names=False,
    )


def _without_the_file(feeder: Feeder, *, keep_codes: bool) -> Feeder:
    """The twin without what it still has of the owner's file and the noise does not cover.

    Parameters
    ----------
    keep_codes : whether conductor codes are public, or drawn.
    """
    lines = feeder.lines if keep_codes else tuple(replace(line, code=None) for line in feeder.lines)
    return replace(feeder, name="twin", coordinates={}, notes=(), origin=None, lines=lines)


def _sun(inputs: NetworkInputs, settings: StudySettings, steps: int) -> tuple[FloatArray, str]:
    """PUBLIC. Irradiance of new PV: what the release declares, else a clear sky."""
    if inputs.irradiance is None:
        return clear_sky_year(settings, steps, inputs.config.first_day_of_sun)
    if settings != StudySettings():
        raise ConfigError(
            "the config declares the irradiance of its PV systems, which new PV has too; remove "
            "study.latitude_deg"
        )
    by_system = np.moveaxis(inputs.irradiance, 2, 0)
    if np.all(by_system == by_system[0]):
        return np.ascontiguousarray(by_system[0]), "that of the PV systems of the release, declared public"
    total = np.zeros(by_system.shape[1:])
    for sun in by_system:  # one after the other: the same bits everywhere
        total += sun
    return total / len(by_system), "the mean over the PV systems of the release, declared public"
