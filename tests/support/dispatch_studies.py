"""Studies for optimal dispatch: a public feeder with loads drawn from a law of hand-made figures."""

from __future__ import annotations

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import ClassModel, GaussianComponent, LoadNodes, ReactiveModel
from dp_powerflow.model.sample import LoadSampler
from dp_powerflow.pipeline.modes.twin import released_connections
from dp_powerflow.powerflow.batch import BatchSolver, Solver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.powerflow.sun import clear_sky
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.studies.study import Study

KEY = StreamKey.from_insecure_seed(11)


def load_model(steps: int, level: float = 0.6) -> LoadModel:
    """One class, a share of the nominal load that swings over the day, 20 % spread."""
    mean = np.log(level) + 0.3 * np.sin(np.arange(steps) * 2.0 * np.pi / steps)
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    component = GaussianComponent(1.0, mean, 0.04 * (0.8 * 0.9**lag + 0.2 * np.eye(steps)))
    home = ClassModel("home", 1.0, (component,), (0.05, 1.5), ReactiveModel(0.3, 0.0, level, None))
    return LoadModel(
        classes=(home,),
        step_minutes=1440 // steps,
        scaled=True,
        unit=PrivacyUnit.LOAD_POINT,
        epsilon=1.0,
        delta=1e-5,
        costs=(),
        n_load_points=10,
        n_days=10,
        public_labels=True,
        estimator="none",
        insecure_seed=True,
        simulated=True,
    )


def study_of(
    feeder: Feeder, *, days: int = 2, steps: int = 6, operated: bool = False, level: float = 0.6
) -> Study:
    """A study whose released nodes are all energised nodes, the last one first."""
    positions, nominal_kw = feeder.drawn_loads() if operated else feeder.loaded_nodes()
    nodes = LoadNodes(("home",) * len(positions), nominal_kw, feeder.base_mva, positions)
    source = LoadSampler(load_model(steps, level).at(nodes), KEY.bind("release", "test"), days, block_days=2)
    released = feeder.energised[::-1].copy()

    def solver(threads: int | None) -> Solver:
        if operated:
            return OperatedSolver(feeder, controls="day", steps=steps, threads=threads)
        return BatchSolver(feeder, threads=threads)

    return Study(
        feeder=feeder,
        source=source,
        make_solver=solver,
        released=released,
        node_ids=tuple(f"n{k:03d}" for k in range(len(released))),
        connections=released_connections(feeder, released, KEY),
        irradiance=clear_sky(45.0, 2, steps, 172),
    )
