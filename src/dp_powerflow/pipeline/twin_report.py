"""What the data owner learns of a twin: how far its voltages are from the true ones. INTERNAL."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.gridfm.writer import GridfmWriter
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import LoadSampler
from dp_powerflow.pipeline.assembly import NodePlan
from dp_powerflow.pipeline.parts import with_slack
from dp_powerflow.pipeline.solar import solar_of
from dp_powerflow.pipeline.twin import guarantee_of
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.utility import voltage_distance
from dp_powerflow.units import ComplexArray, FloatArray, kw_to_pu

COMPARED_DAYS = 8
COMPARISON = "comparison of the twin"


def twin_report(
    config: Config, state: PrivateState, feeder: Feeder, twin: Feeder, model: LoadModel, nodes: NodePlan
) -> dict[str, Any]:
    """Guarantee of the twin, and its voltages against the true network's under loads that no release uses."""
    key = state.stream_key().bind("release", config.release.id).bind("purpose", COMPARISON)
    sampler = LoadSampler(
        model, nodes.classes, key, COMPARED_DAYS, scale_kw=nodes.scale_kw if model.scaled else None
    )
    block = sampler.block(0)
    drawn = kw_to_pu(block.load_kw, feeder.base_mva) + 1j * kw_to_pu(block.load_kvar, feeder.base_mva)
    snapshots = drawn.shape[1] * drawn.shape[2]
    load = np.zeros((snapshots, len(feeder.retained)), dtype=np.complex128)
    load[:, nodes.nodes] = drawn.reshape(len(nodes.nodes), snapshots).T
    content: dict[str, Any] = {"guarantee": asdict(guarantee_of(config)), "days compared": drawn.shape[1]}
    try:
        distance = voltage_distance(
            _magnitudes(config, feeder, model, load), _magnitudes(config, twin, model, load)
        )
    except PowerFlowError as error:
        return content | {"distance to the true network [p.u.]": f"none: {error}"}
    return content | {"distance to the true network [p.u.]": asdict(distance)}


def _magnitudes(config: Config, feeder: Feeder, model: LoadModel, load: ComplexArray) -> FloatArray:
    solar = solar_of(config, feeder, model.n_steps)
    generation = solar.generation
    if generation is not None:
        generation = np.tile(generation, (len(load) // len(generation), 1))
    solution = BatchSolver(feeder, voltvar=solar.voltvar).solve(load, generation)
    solution.raise_if_failed()
    return np.asarray(np.abs(solution.v))


def write_empty_graph(graph: GridfmWriter, feeder: Feeder) -> None:
    """The twin's network alone: one scenario without load or generation."""
    load = np.zeros((1, len(feeder.retained)), dtype=np.complex128)
    solution = BatchSolver(feeder).solve(load, nodes="all")
    solution.raise_if_failed()
    graph.write_block(0, load, None, with_slack(feeder, solution.v))
