"""Noise on the network itself, drawn once: all that follows is post-processing, for any number of days.

`AdmittanceNoise` adds it to the entries of Y_full, as is: no structure is restored, failures stay visible.
`TwinNetwork` adds it to the lines' own parameters, so sparsity, symmetry and signs stay and power flow has a
solution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.paper.mechanisms.gaussian import Calibration, GaussianNoise
from dp_powerflow.paper.mechanisms.interface import (
    BY_RADIUS,
    SEED_BITS,
    Cost,
    Guarantee,
    Setting,
    solve_drawn,
)
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.reference import ReferenceSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.draw import draw_twin, parameters_of, rebuilder_of
from dp_powerflow.twin.guarantee import Spread, twin_guarantee, twin_neighbours
from dp_powerflow.units import ComplexArray

_MAX_ITERATIONS = 100
"""Of the fixed point on the noisy, dense matrix; what has not converged by then has failed."""


@dataclass(frozen=True, eq=False)
class AdmittanceNoise:
    """True loads on a network each of whose matrix entries is noisy: sparsity and symmetry are lost."""

    setting: Setting
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"
    name: str = "noise on entries of Y"
    protects: str = "network"

    @property
    def noise(self) -> GaussianNoise:
        """What is added to every entry of Y_full [p.u.]; its sensitivity is r by definition."""
        return GaussianNoise(self.setting.radius, self.epsilon, self.delta, self.calibration)

    @property
    def noise_std(self) -> dict[str, float]:
        """Of every entry of Y_full [p.u.]."""
        return {"noise": self.noise.sigma}

    def cost(self) -> Cost:
        """One noisy matrix, any number of days; the loads are not protected."""
        noise = self.noise
        network = Guarantee(
            noise.epsilon, noise.delta, "any number of days", BY_RADIUS, noise.holds, noise.remark
        )
        return Cost(network=network, loads=None)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages on one noisy network; NaN where power flow fails, everywhere if it cannot be set up."""
        load = self.setting.first_days(days)
        flat = np.ascontiguousarray(load.reshape(-1, load.shape[-1]))
        try:
            solver = ReferenceSolver(self.noisy_feeder(generator), max_iterations=_MAX_ITERATIONS)
        except (FeederError, PowerFlowError):
            return np.full(load.shape, np.nan + 1j * np.nan)
        return np.asarray(solver.solve(flat).v.reshape(load.shape))

    def noisy_feeder(self, generator: np.random.Generator) -> Feeder:
        """The feeder with one draw of the noise on every entry."""
        feeder = self.setting.network.feeder
        noisy = self.noise.on_complex(feeder.y.toarray(), generator)
        return replace(feeder, y=sp.csc_array(noisy), origin=None)


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
    law: LoadLaw | None = None
    loads: Guarantee | None = None
    name: str = "twin network"

    @property
    def protects(self) -> str:
        """The network, and the loads where they come from a model."""
        return "network" if self.law is None else "network and loads"

    @property
    def noise_std(self) -> dict[str, float]:
        """η of a line's length, if lengths are noisy."""
        return {} if self.spread.length is None else {"log_length": self.spread.length}

    def cost(self) -> Cost:
        """Differential privacy of one element of the network, in closed form."""
        promised = twin_guarantee(self.spread, self.change, self.delta)
        words = twin_neighbours(self.spread, self.change).words
        network = Guarantee(promised.epsilon, self.delta, "any number of days", words, True)
        return Cost(network=network, loads=self.loads)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages on one freshly drawn twin; NaN where power flow fails."""
        setting = self.setting
        source = rebuilder_of(setting.network.feeder, self.spread)
        key = StreamKey.from_insecure_seed(int(generator.integers(2**SEED_BITS)))
        twin = draw_twin(parameters_of(source, self.spread), self.spread, key).feeder(source)
        solver = BatchSolver(twin)
        if self.law is not None:
            return solve_drawn(solver, self.law, days, generator)
        load = setting.first_days(days)
        flat = np.ascontiguousarray(load.reshape(-1, load.shape[-1]))
        return np.asarray(solver.solve(flat).v.reshape(load.shape))
