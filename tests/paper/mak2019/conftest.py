"""Grids whose loads are obfuscated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.mak2019.restoration import LinearGrid, LinearLimits
from dp_powerflow_paper.radial import RadialNetwork

NODES = 15


@dataclass(frozen=True, eq=False)
class Feeder:
    """A feeder, its true loads, and the band round their least cost."""

    served: LinearGrid
    active: FloatArray
    band: CostBand


@pytest.fixture(scope="session")
def feeder() -> Feeder:
    """Fifteen nodes with four generators of different prices, and lines that bind."""
    generator = np.random.default_rng(0)
    start = np.array([generator.integers(max(0, k - 3), k + 1) for k in range(NODES - 1)])
    ends = np.arange(1, NODES)
    network = RadialNetwork(start, ends, np.full(NODES - 1, 0.01), np.full(NODES - 1, 0.01))
    active = generator.uniform(0.02, 0.1, NODES - 1)
    drawn = np.concatenate([[0.0], active])
    served = LinearGrid(
        network=network,
        limits=LinearLimits(
            0.75 * network.flows(drawn) + 0.03, np.full(NODES, 0.9**2), np.full(NODES, 1.1**2)
        ),
        generators=np.array([0, 4, 8, 12]),
        price=np.array([1.0, 0.6, 1.6, 2.0]),
        most=np.array([10.0, 0.2, 0.2, 0.2]),
        places=ends,
        tan_theta=np.full(NODES - 1, 0.4),
    )
    return Feeder(served, active, CostBand(served.dispatch(active).cost))
