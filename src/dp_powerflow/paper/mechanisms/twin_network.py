"""The twin network: power flow on a network whose lines' own parameters carry the noise.

The twin is drawn once; whatever is computed from it is post-processing, for any number of days and all nodes.
Unlike noise on the entries of Y it keeps sparsity, symmetry and signs, so power flow has a solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.margins import draw_days
from dp_powerflow.paper.mechanisms.interface import Cost, Guarantee, Setting
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.draw import draw_twin, parameters_of, rebuilder_of
from dp_powerflow.twin.guarantee import neighbours_in_words, twin_guarantee
from dp_powerflow.twin.spread import Spread
from dp_powerflow.units import ComplexArray

_SEED_BITS = 63


@dataclass(frozen=True, eq=False)
class TwinNetwork:
    """Loads of a released model, or the true ones, on a twin.

    Attributes
    ----------
    spread : η of every quantity.
    change : x of the neighbours.
    delta : where the guarantee is stated.
    law, loads : of the synthetic loads and what is claimed for them; None takes the true loads, unprotected.
    """

    setting: Setting
    spread: Spread
    change: float
    delta: float
    law: NodeLaw | None = None
    loads: Guarantee | None = None
    name: str = "twin network"

    @property
    def protects(self) -> str:
        """The network, and the loads where they come from a model."""
        return "network" if self.law is None else "network and loads"

    def cost(self) -> Cost:
        """Differential privacy of one element of the network, in closed form."""
        promised = twin_guarantee(self.spread, self.change, self.delta)
        words = neighbours_in_words(self.spread, self.change)
        network = Guarantee(promised.epsilon, self.delta, "any number of days", words, True)
        return Cost(network=network, loads=self.loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages on one freshly drawn twin; NaN where power flow fails."""
        setting = self.setting
        load = setting.first_days(days) if self.law is None else draw_days(self.law, days, generator)
        source = rebuilder_of(setting.network.feeder, self.spread)
        key = StreamKey.from_insecure_seed(int(generator.integers(2**_SEED_BITS)))
        twin = draw_twin(parameters_of(source, self.spread), self.spread, key).feeder(source)
        flat = np.ascontiguousarray(load.reshape(-1, load.shape[-1]))
        return np.asarray(BatchSolver(twin).solve(flat).v.reshape(load.shape))
