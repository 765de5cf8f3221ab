"""Studies made by hand: a feeder, loads of days, a sun."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dp_powerflow.corpus.tables import Connections, opaque_buses
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.powerflow.sun import clear_sky
from dp_powerflow.studies.study import GivenDays, GivenLaw, Study
from dp_powerflow.units import FloatArray, IntArray

SOLVED_TO = 1e-12


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


def study_of(
    feeder: Feeder,
    source: GivenDays,
    controls: Literal["fixed", "day"] = "day",
    irradiance: FloatArray | None = None,
) -> Study:
    """A study of all energised nodes, as operated or in the fixed frame, under a clear sky."""
    steps = source.law.steps

    def make(threads: int | None) -> BatchSolver | OperatedSolver:
        if controls == "fixed":
            return BatchSolver(feeder, tolerance=SOLVED_TO, threads=threads)
        return OperatedSolver(feeder, controls="day", steps=steps, tolerance=SOLVED_TO, threads=threads)

    released, connections = _connections(feeder)
    return Study(
        feeder,
        source,
        make,
        released=released,
        node_ids=tuple(f"n{k:03d}" for k in range(len(released))),
        connections=connections,
        irradiance=clear_sky(40.0, 365, steps, 170) if irradiance is None else irradiance,
    )


def _connections(feeder: Feeder) -> tuple[IntArray, Connections]:
    """Every energised node, bus by bus, and what joins the buses."""
    graph = BusGraph.of(feeder)
    released = feeder.energised[np.argsort(graph.bus_of[feeder.energised], kind="stable")]
    own = np.unique(graph.bus_of[released])
    buses = np.concatenate([own, np.setdiff1d(np.arange(len(graph.names)), own)])
    row = {int(bus): k for k, bus in enumerate(buses)}
    joined = sorted(((*sorted((row[a], row[b])),), kind) for (a, b), kind in graph.kind_of.items())
    return released, Connections(
        opaque_buses(len(buses)),
        np.array([row[int(bus)] for bus in graph.bus_of[released]], dtype=np.int64),
        graph.phase[released],
        np.array([pair for pair, _ in joined], dtype=np.int64).reshape(-1, 2),
        tuple(kind for _, kind in joined),
        graph.source[buses],
    )
