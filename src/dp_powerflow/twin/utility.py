"""How far the voltages of a twin are from those of its source, under the same loads.

On a true network the answer is INTERNAL. On public feeders it predicts, from the design alone, what noise
costs in accuracy, so that it is chosen without a look at the secret.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray, FloatArray

_SNAPSHOTS = 96
_LOAD_SPREAD = 0.3
_SEED = 0


@dataclass(frozen=True)
class VoltageDistance:
    """Distances between the magnitudes of two networks' voltages [p.u.].

    Attributes
    ----------
    pooled : W1 between all magnitudes of all retained nodes.
    worst_node, median_node : W1 between the magnitudes of one node, over the nodes.
    rms : root mean square difference, snapshot by snapshot.
    """

    pooled: float
    worst_node: float
    median_node: float
    rms: float


def voltage_distance(true: FloatArray, twin: FloatArray) -> VoltageDistance:
    """Distances between magnitudes (snapshot, node) of the same snapshots.

    The W1 distance of two samples of equal size is the mean distance of their order statistics.
    """
    by_node = np.mean(np.abs(np.sort(true, axis=0) - np.sort(twin, axis=0)), axis=0)
    return VoltageDistance(
        pooled=float(np.mean(np.abs(np.sort(true, axis=None) - np.sort(twin, axis=None)))),
        worst_node=float(np.max(by_node)),
        median_node=float(np.median(by_node)),
        rms=float(np.sqrt(np.mean((true - twin) ** 2))),
    )


def magnitudes(feeder: Feeder, load: ComplexArray) -> FloatArray:
    """|v| (snapshot, retained) [p.u.] under given loads; refuses snapshots without a solution."""
    solution = BatchSolver(feeder).solve(load)
    solution.raise_if_failed()
    return modulus(solution.v)


def surrogate_load(feeder: Feeder, snapshots: int = _SNAPSHOTS) -> ComplexArray:
    """Public loads (snapshot, retained) [p.u.]: a day between 0.3 and 1 of nominal, scattered by node."""
    nominal = -feeder.nominal_injection[feeder.retained]
    day = 0.65 - 0.35 * np.cos(2.0 * np.pi * np.arange(snapshots) / snapshots)
    noise = np.random.default_rng(_SEED).normal(
        -0.5 * _LOAD_SPREAD**2, _LOAD_SPREAD, (snapshots, len(nominal))
    )
    return np.asarray(nominal * day[:, None] * np.exp(noise))
