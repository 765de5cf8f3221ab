"""What the data owner learns of a twin: how far its voltages are from the true ones. INTERNAL."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.gridfm.writer import GridfmWriter
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.days import solve_days
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import LoadSampler
from dp_powerflow.pipeline.assembly import NodePlan
from dp_powerflow.pipeline.parts import with_slack
from dp_powerflow.pipeline.solar import solar_of
from dp_powerflow.pipeline.twin import guarantee_of
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.utility import voltage_distance
from dp_powerflow.units import FloatArray

COMPARED_DAYS = 8
COMPARISON = "comparison of the twin"


def twin_report(
    config: Config, state: PrivateState, feeder: Feeder, twin: Feeder, model: LoadModel, nodes: NodePlan
) -> dict[str, Any]:
    """Guarantee of the twin, and its voltages against the true network's under loads that no release uses."""
    key = state.stream_key().bind("release", config.release.id).bind("purpose", COMPARISON)
    sampler = LoadSampler(nodes.law(model, feeder), key, COMPARED_DAYS)
    compared = min(COMPARED_DAYS, sampler.days_per_block)
    content: dict[str, Any] = {"guarantee": asdict(guarantee_of(config)), "days compared": compared}
    try:
        distance = voltage_distance(_magnitudes(config, feeder, sampler), _magnitudes(config, twin, sampler))
    except PowerFlowError as error:
        return content | {"distance to the true network [p.u.]": f"none: {error}"}
    return content | {"distance to the true network [p.u.]": asdict(distance)}


def _magnitudes(config: Config, feeder: Feeder, sampler: LoadSampler) -> FloatArray:
    solar = solar_of(config, feeder, sampler.law.steps)
    solver = BatchSolver(feeder, voltvar=solar.voltvar)
    solution = solve_days(solver, sampler, generation=solar.generation).solution
    solution.raise_if_failed()
    return np.asarray(np.abs(solution.v))


def write_empty_graph(graph: GridfmWriter, feeder: Feeder) -> None:
    """The twin's network alone: one scenario without load or generation."""
    load = np.zeros((1, len(feeder.retained)), dtype=np.complex128)
    solution = BatchSolver(feeder).solve(load, nodes="all")
    solution.raise_if_failed()
    graph.write_block(0, load, None, with_slack(feeder, solution.v))
