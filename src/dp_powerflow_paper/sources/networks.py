"""Networks to solve on: the true one, one with noise on every entry of Y, a twin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Feeder, TwinDesign
from dp_powerflow.errors import FeederError, PowerFlowError
from dp_powerflow.lowlevel import (
    LOG_GRID,
    Rebuilder,
    Solver,
    draw_twin,
    parameters_of,
    twin_guarantee,
    twin_neighbours,
)
from dp_powerflow_paper.dense import DenseSolver
from dp_powerflow_paper.mechanisms import Setting, key_from
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.sources import ANY_NUMBER_OF_DAYS, BY_RADIUS, Guarantee, Noiseless, UnusableDrawError

_MAX_ITERATIONS = 100
"""Of the fixed point on a noisy, dense matrix; what has not converged by then has failed."""


@dataclass(frozen=True, eq=False)
class TrueNetwork(Noiseless):
    """The true network.

    Attributes
    ----------
    guarantee : what the randomness of the loads claims for it (the paper's formula); None for nothing.
    """

    feeder: Feeder
    guarantee: Guarantee | None = None
    name: str = "true network"
    uses_true_network: bool = True

    def draw(self, generator: np.random.Generator) -> Feeder:
        """The network itself; the generator is not asked."""
        return self.feeder

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        """The setting's own."""
        return setting.solver_of(feeder)


def true_network(setting: Setting, claim: Guarantee | None = None) -> TrueNetwork:
    """That of a setting."""
    return TrueNetwork(setting.network.feeder, claim)


@dataclass(frozen=True, eq=False)
class EntriesOfY:
    """The network with noise on every entry of Y_full; no structure is restored.

    Attributes
    ----------
    noise : on real and imaginary part of every entry [p.u.]; its sensitivity is r by definition.
    """

    feeder: Feeder
    noise: GaussianNoise
    name: str = "noise on entries of Y"
    uses_true_network: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """One noisy matrix serves any number of days."""
        return self.noise.claim(BY_RADIUS)

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of every entry [p.u.]."""
        return {"noise": self.noise.sigma}

    def draw(self, generator: np.random.Generator) -> Feeder:
        """The feeder with one draw of the noise on every entry."""
        noisy = self.noise.on_complex(self.feeder.y.toarray(), generator)
        try:
            return replace(self.feeder, y=sp.csc_array(noisy), origin=None)
        except FeederError as error:
            raise UnusableDrawError(str(error)) from None

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        """A fixed point on the dense matrix: factors of sparse ones have no use here."""
        try:
            return DenseSolver(feeder, max_iterations=_MAX_ITERATIONS, voltvar=setting.voltvar)
        except (FeederError, PowerFlowError) as error:
            raise UnusableDrawError(str(error)) from None


@dataclass(frozen=True, eq=False)
class Twin:
    """A twin drawn once: noise on the lines' own figures, so sparsity, symmetry and signs stay.

    Attributes
    ----------
    design : which figures get noise, and how much.
    """

    feeder: Feeder
    design: TwinDesign
    name: str = "twin network"
    uses_true_network: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """Differential privacy of one element of the network, in closed form."""
        promised = twin_guarantee(self.design)
        words = twin_neighbours(self.design.protected, self.design.change).words
        metric = f"one element by a factor up to {1.0 + self.design.change:g}"
        return Guarantee(
            promised.epsilon, promised.delta, ANY_NUMBER_OF_DAYS, words, proved=True, metric=metric
        )

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of the logarithm of a figure of a line.

        Laplace noise of scale b has variance 2b²; one of the pair of an impedance has E[r²]·(1/2 + 1/6) with
        r² of mean 6b², so 4b².
        """
        lines = self.design.protected.lines
        part = self.design.parts[lines]
        b = part.scale * LOG_GRID
        std = b if self.design.noise == "gaussian" else b * float(np.sqrt(2.0 * part.dimension))
        return {f"log_{lines}": std}

    def draw(self, generator: np.random.Generator) -> Feeder:
        """One twin, from AES streams whose key the generator gives."""
        source = Rebuilder(self.feeder, self.design.protected)
        parameters = parameters_of(source, self.design)
        return draw_twin(parameters, self.design, key_from(generator)).feeder(source)

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        """That of another network."""
        return setting.solver_of(feeder)
