"""Studies made by hand: a public feeder, loads that are given or drawn from hand-made figures, a sun."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from dp_powerflow.grid.feeder import BusGraph, Feeder
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import ClassModel, GaussianComponent, LoadNodes, ReactiveModel
from dp_powerflow.model.sample import LoadSampler, LoadSource
from dp_powerflow.pipeline.modes.twin import released_connections
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.powerflow.sun import clear_sky
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.studies.study import GivenDays, GivenLaw, Study
from dp_powerflow.units import FloatArray, IntArray
from support.laws import load_model

SOLVED_TO = 1e-12
KEY = StreamKey.from_insecure_seed(11)


def random_days(feeder: Feeder, days: int, steps: int, share: float, *, operated: bool = True) -> GivenDays:
    """Days of random loads about a share of the nominal ones, low at night; one per load, or per node."""
    generator = np.random.default_rng(7)
    nominal = (
        feeder.nominal_load if operated else -feeder.nominal_injection[feeder.retained]
    ) * feeder.base_mva
    nominal = 1000.0 * np.maximum(nominal.real, 0.0) + 1000.0j * nominal.imag
    hour = (np.arange(steps) + 0.5) / steps
    shape = share * (1.0 - 0.4 * np.cos(2 * np.pi * (hour - 0.1)))
    factor = shape * generator.uniform(0.7, 1.3, size=(len(nominal), days, steps))
    law = GivenLaw(steps, feeder.base_mva)
    return GivenDays(law, factor * nominal.real[:, None, None], factor * nominal.imag[:, None, None])


def home_model(steps: int, level: float) -> LoadModel:
    """One class, a share of the nominal load that swings over the day, 20 % spread."""
    mean = np.log(level) + 0.3 * np.sin(np.arange(steps) * 2.0 * np.pi / steps)
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    component = GaussianComponent(1.0, mean, 0.04 * (0.8 * 0.9**lag + 0.2 * np.eye(steps)))
    home = ClassModel("home", 1.0, (component,), (0.05, 1.5), ReactiveModel(0.3, 0.0, level, None))
    return load_model(home, steps=steps)


def study_of(
    feeder: Feeder,
    source: LoadSource,
    controls: Literal["fixed", "day"] = "day",
    irradiance: FloatArray | None = None,
    released: IntArray | None = None,
) -> Study:
    """A study of all energised nodes, bus by bus unless told, as operated or in the fixed frame."""
    steps = source.law.steps
    if released is None:
        released = feeder.energised[np.argsort(BusGraph.of(feeder).bus_of[feeder.energised], kind="stable")]

    def make(threads: int | None) -> BatchSolver | OperatedSolver:
        if controls == "fixed":
            return BatchSolver(feeder, tolerance=SOLVED_TO, threads=threads)
        return OperatedSolver(feeder, controls="day", steps=steps, tolerance=SOLVED_TO, threads=threads)

    return Study(
        feeder,
        source,
        make,
        released=released,
        node_ids=tuple(f"n{k:03d}" for k in range(len(released))),
        connections=released_connections(feeder, released, KEY),
        irradiance=clear_sky(40.0, 365, steps, 170) if irradiance is None else irradiance,
    )


def drawn_study(
    feeder: Feeder, *, days: int = 2, steps: int = 6, operated: bool = False, level: float = 0.6
) -> Study:
    """A study of days that are drawn; its nodes are all energised ones, the last one first."""
    positions, nominal_kw = feeder.drawn_loads() if operated else feeder.loaded_nodes()
    nodes = LoadNodes(("home",) * len(positions), nominal_kw, feeder.base_mva, positions)
    law = home_model(steps, level).at(nodes)
    source = LoadSampler(law, KEY.bind("release", "test"), days, block_days=2)
    sun = clear_sky(45.0, 2, steps, 172)
    return study_of(feeder, source, "day" if operated else "fixed", sun, feeder.energised[::-1].copy())


def given_study(feeder: Feeder, shape: FloatArray | None = None, *, by_load: bool = False) -> Study:
    """Nominal loads of a feeder times a shape (day, step); 1 by default, three days of four steps.

    Parameters
    ----------
    by_load : whether columns are the loads of the feeder, solved as operated, not nodes.
    """
    of_day = np.ones((3, 4)) if shape is None else shape
    positions, nominal_kw = feeder.drawn_loads() if by_load else feeder.loaded_nodes()
    law = GivenLaw(of_day.shape[1], feeder.base_mva, positions)
    load_kw = nominal_kw[:, None, None] * of_day
    source = GivenDays(law, load_kw, 0.3 * load_kw)
    study = study_of(feeder, source, "day" if by_load else "fixed", released=feeder.energised)
    return replace(study, connections=None)


def stretched(feeder: Feeder, factor: float) -> Feeder:
    """The same feeder with all lengths times a factor; its impedances stay."""
    lines = tuple(
        line if line.length_m is None else replace(line, length_m=factor * line.length_m)
        for line in feeder.lines
    )
    return replace(feeder, lines=lines)
