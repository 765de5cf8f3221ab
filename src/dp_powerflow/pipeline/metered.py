"""The meters themselves on the true network: what a release is compared with. PRIVATE, INTERNAL.

Only where meters and network are public, as in the demonstration, may anything of it be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import LoadBlock, PlacedLaw, solve_days
from dp_powerflow.pipeline.customers import CustomerPlan
from dp_powerflow.pipeline.inputs import ReleaseInputs
from dp_powerflow.pipeline.modes.base import NetworkMode, Scene, Solvable
from dp_powerflow.pipeline.parts import SolverMaker, with_slack
from dp_powerflow.powerflow.operated import OperatedSolution, OperatedSolver
from dp_powerflow.units import KW_PER_MW, FloatArray, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class MeteredLoads:
    """PRIVATE. Days of the meters in the places of a law; one block.

    Attributes
    ----------
    law : where the loads belong.
    load_kw, load_kvar : (load, day, step) [kW], [kvar].
    """

    law: PlacedLaw
    load_kw: FloatArray
    load_kvar: FloatArray

    @property
    def n_days(self) -> int:
        """Days of the block."""
        return int(self.load_kw.shape[1])

    @property
    def n_blocks(self) -> int:
        """One."""
        return 1

    def block(self, index: int) -> LoadBlock:
        """All days."""
        return LoadBlock(0, self.load_kw, self.load_kvar)


@dataclass(frozen=True, eq=False)
class _Place:
    """Where the loads of customers belong, whatever they are drawn from; see `PlacedLaw`."""

    steps: int
    base_mva: float
    positions: IntArray
    shares: sp.csr_array | None


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
    mended : snapshots without solution, whose powers were lowered as those of a release are.
    """

    magnitude: FloatArray
    feeder_kw: FloatArray
    load_kw: FloatArray
    head_kw: FloatArray
    mended: int


def ground_of(inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel) -> Ground:
    """PRIVATE. The true network of a config, in the places and with the solver of its mode."""
    feeder, solar = inputs.feeder, inputs.solar
    scene = mode.scene(inputs, Solvable(feeder, solar, ""), model)
    return Ground(scene, mode.solver(inputs.history.n_steps), mode.released_nodes(feeder))


def days_on(ground: Ground, history: LoadHistory, days: IntArray, *, mend: bool = True) -> MeteredDays:
    """INTERNAL. Some days of the meters on the true network.

    Every draw of the release is replaced by a meter of the same class, one after the other, and again from
    the first one where there are more draws than meters.

    Parameters
    ----------
    days : numbers of days of the history.
    mend : whether snapshots without solution are mended; otherwise refused.

    Raises
    ------
    PowerFlowError : a snapshot of the meters has no solution.
    """
    scene = ground.scene
    feeder, solar = scene.network.feeder, scene.network.solar
    solver = ground.solver(feeder, solar, None)
    source = _of_scene(scene, history, days)
    made = solve_days(solver, source, generation=solar.generation, nodes="all", mend=mend)
    made.solution.raise_if_failed()
    shape, at = (made.days, made.steps, -1), np.searchsorted(feeder.energised, ground.nodes)
    kw = feeder.base_mva * KW_PER_MW
    full = np.zeros((len(made.load), len(feeder.nodes)))
    if isinstance(solver, OperatedSolver) and isinstance(made.solution, OperatedSolution):
        full[:, feeder.energised] = solver.powers(made.load, made.generation, made.solution)[0].real
    else:
        full[:, feeder.retained] = made.load.real
    v = with_slack(feeder, made.solution.v)
    head = v[:, feeder.slack] * np.conj(v @ feeder.y[feeder.slack].T)
    return MeteredDays(
        modulus(made.v[:, :, at]),
        source.load_kw.sum(axis=0),
        (full[:, ground.nodes] * kw).reshape(shape),
        (head.real.sum(axis=1) * kw).reshape(made.days, made.steps),
        int(np.count_nonzero(made.mended)),
    )


def metered_days(inputs: ReleaseInputs, mode: NetworkMode[Any], model: LoadModel, days: int) -> MeteredDays:
    """INTERNAL. So many days of the meters, spread over the history, on the true network as the mode solves.

    Nodes are the released ones, in the order of the feeder.

    Raises
    ------
    PowerFlowError : a snapshot of the meters has no solution.
    """
    chosen = np.linspace(0, len(inputs.history.days) - 1, days).round().astype(np.int64)
    return days_on(ground_of(inputs, mode, model), inputs.readings, chosen, mend=False)


def _of_scene(scene: Scene, history: LoadHistory, days: IntArray) -> MeteredLoads:
    """The meters in the places of the draws."""
    plan, model, feeder = scene.nodes, scene.model, scene.network.feeder
    meters = _meter_of(plan.classes, history)
    load_kw = history.load_kw[meters][:, days]
    if isinstance(plan, CustomerPlan):
        place = _Place(history.n_steps, feeder.base_mva, plan.positions, plan.shares(feeder))
        factor, tangent = np.ones(len(meters)), plan.tangents(model)
    else:
        nodes = plan.law(model, feeder)
        factor, tangent = nodes.scale_kw / _scales(history, meters, scaled=model.scaled), nodes.tan_theta
    load_kvar = tangent[:, None, None] * load_kw
    if history.load_kvar is not None:
        load_kvar = history.load_kvar[meters][:, days]
    load_kw, load_kvar = (power * factor[:, None, None] for power in (load_kw, load_kvar))
    if not isinstance(plan, CustomerPlan):
        return MeteredLoads(nodes, load_kw, load_kvar)
    first = np.flatnonzero(np.diff(plan.load_of, prepend=-1))
    return MeteredLoads(place, np.add.reduceat(load_kw, first), np.add.reduceat(load_kvar, first))


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
