"""The meters themselves on the true network: what a release is compared with. PRIVATE, INTERNAL.

Only where meters and network are public, as in the demonstration, may anything of it be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import solve_days
from dp_powerflow.pipeline.customers import CustomerPlan
from dp_powerflow.pipeline.inputs import ReleaseInputs
from dp_powerflow.pipeline.modes.base import NetworkMode, Scene, Solvable
from dp_powerflow.pipeline.parts import SolverMaker, with_slack
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver
from dp_powerflow.studies.study import GivenDays, GivenLaw
from dp_powerflow.units import KW_PER_MW, FloatArray, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Ground:
    """PRIVATE. The true network as a release would solve it.

    Attributes
    ----------
    scene : the network with the places of the draws.
    solver : what solves the power flow.
    nodes : (node,) indices in `feeder.nodes` whose voltages and loads are compared.
    """

    scene: Scene
    solver: SolverMaker
    nodes: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class MeteredDays:
    """INTERNAL. Days of the meters on the true network.

    Attributes
    ----------
    magnitude : |v| (day, step, node) [p.u.], of the nodes and in the order that were asked for.
    feeder_kw : (day, step) all loads together, as metered [kW].
    load_kw : (day, step, node) active power that the loads draw [kW].
    head_kw : (day, step) active power that the sources feed in [kW].
    scaled_down : snapshots without solution, whose powers were scaled down as in a release.
    """

    magnitude: FloatArray
    feeder_kw: FloatArray
    load_kw: FloatArray
    head_kw: FloatArray
    scaled_down: int


def ground_of(inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel) -> Ground:
    """PRIVATE. The true network of a config, in the places and with the solver of its mode."""
    feeder, solar = inputs.feeder, inputs.solar
    scene = mode.scene(inputs, Solvable(feeder, solar, ""), model)
    return Ground(scene, mode.solver(inputs.history.n_steps), mode.released_nodes(feeder))


def days_on(ground: Ground, history: LoadHistory, days: IntArray, *, scale_down: bool = True) -> MeteredDays:
    """INTERNAL. Some days of the meters on the true network.

    Every draw of the release is replaced by a meter of the same class, one after the other, and again from
    the first one where there are more draws than meters.

    Parameters
    ----------
    days : numbers of days of the history.
    scale_down : whether snapshots without solution are scaled down; otherwise refused.

    Raises
    ------
    PowerFlowError : a snapshot of the meters has no solution.
    """
    scene = ground.scene
    feeder, solar = scene.network.feeder, scene.network.solar
    solver = ground.solver(feeder, solar, None)
    source = _of_scene(scene, history, days)
    made = solve_days(solver, source, generation=solar.generation, nodes="all", scale_down=scale_down)
    made.solution.raise_if_failed()
    shape, at = (made.days, made.steps, -1), np.searchsorted(feeder.energised, ground.nodes)
    kw = feeder.base_mva * KW_PER_MW
    full = np.zeros((len(made.load), len(feeder.nodes)))
    if isinstance(solver, OperatedSolver) and isinstance(made.solution, OperatedSolution):
        (nodes, drawn), _ = solver.device_powers(made.load, made.generation, made.solution)
        full[:, nodes] = drawn.real
    else:
        full[:, feeder.retained] = made.load.real
    v = with_slack(feeder, made.solution.v)
    head = v[:, feeder.slack] * np.conj(v @ feeder.y[feeder.slack].T)
    return MeteredDays(
        modulus(made.v[:, :, at]),
        source.load_kw.sum(axis=0),
        (full[:, ground.nodes] * kw).reshape(shape),
        (head.real.sum(axis=1) * kw).reshape(made.days, made.steps),
        int(np.count_nonzero(made.scaled_down)),
    )


def metered_days(inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel, days: int) -> MeteredDays:
    """INTERNAL. Some days of the meters, spread over the history, on the true network as the mode solves.

    Nodes are the released ones, in the order of the feeder.

    Raises
    ------
    PowerFlowError : a snapshot of the meters has no solution.
    """
    chosen = np.linspace(0, len(inputs.history.days) - 1, days).round().astype(np.int64)
    return days_on(ground_of(inputs, mode, model), inputs.readings, chosen, scale_down=False)


def _of_scene(scene: Scene, history: LoadHistory, days: IntArray) -> GivenDays:
    """The meters in the places of the draws, as one block."""
    plan, model, feeder = scene.nodes, scene.model, scene.network.feeder
    meters = _meter_of(plan.classes, history)
    load_kw = history.load_kw[meters][:, days]
    if isinstance(plan, CustomerPlan):
        law = GivenLaw(history.n_steps, feeder.base_mva, plan.positions, plan.shares(feeder))
        factor, tangent = np.ones(len(meters)), plan.tangents(model)
    else:
        nodes = plan.law(model, feeder)
        law = GivenLaw(nodes.steps, nodes.base_mva, nodes.positions, nodes.shares)
        factor, tangent = nodes.scale_kw / _scales(history, meters, scaled=model.scaled), nodes.tan_theta
    load_kvar = tangent[:, None, None] * load_kw
    if history.load_kvar is not None:
        load_kvar = history.load_kvar[meters][:, days]
    load_kw, load_kvar = (power * factor[:, None, None] for power in (load_kw, load_kvar))
    if isinstance(plan, CustomerPlan):
        first = np.flatnonzero(np.diff(plan.load_of, prepend=-1))
        load_kw, load_kvar = (np.add.reduceat(power, first) for power in (load_kw, load_kvar))
    return GivenDays(law, load_kw, load_kvar, len(days))


def _meter_of(classes: tuple[str, ...], history: LoadHistory) -> IntArray:
    """(draw,) a meter of the class of every draw."""
    wanted, labels = np.array(classes), np.array([label or "" for label in history.class_label])
    meters = np.empty(len(wanted), dtype=np.int64)
    for label in sorted(set(classes)):
        places = np.flatnonzero(wanted == label)
        members = np.flatnonzero(labels == label) if np.any(labels == label) else np.arange(len(labels))
        meters[places] = members[np.arange(len(places)) % len(members)]
    return meters


def _scales(history: LoadHistory, meters: IntArray, *, scaled: bool) -> FloatArray:
    """(draw,) what a meter is divided by before it is multiplied by the scale of the node [kW]."""
    if not scaled or history.scale_kw is None:
        return np.ones(len(meters))
    return np.asarray(history.scale_kw[meters])
