"""A release as a composition: a network, loads, power flow, and noise on the voltages if there is any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.mechanisms import Setting, solve_loads
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.sources import Cost, Guarantee, LoadMechanism, NetworkMechanism, UnusableDrawError


@dataclass(frozen=True)
class GaussianOnVoltages:
    """Independent noise on real and imaginary part of every voltage.

    Attributes
    ----------
    noise : its size [p.u.].
    guarantee, for_loads : what it claims for network and loads, given the sensitivity it was made for.
    on : key of its standard deviation.
    """

    noise: GaussianNoise
    guarantee: Guarantee
    for_loads: Guarantee | None = None
    on: str = "noise"
    name: str = "Gaussian noise on voltages"

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of real and imaginary part [p.u.]."""
        return {self.on: self.noise.sigma}

    def add(self, v: ComplexArray, generator: np.random.Generator) -> ComplexArray:
        """Noisy copy; NaN stays."""
        return self.noise.on_complex(v, generator)


@dataclass(frozen=True, eq=False)
class Composition:
    """A mechanism: draws a network, then loads, solves, adds noise.

    Attributes
    ----------
    setting : generation, volt-var and how another network is solved.
    title : name in tables; None joins those of the parts.
    """

    setting: Setting
    loads: LoadMechanism
    network: NetworkMechanism
    noise: GaussianOnVoltages | None = None
    title: str | None = None

    @property
    def name(self) -> str:
        """As in tables and figures."""
        parts = (self.loads, self.network, self.noise)
        return self.title or ", ".join(part.name for part in parts if part is not None)

    @property
    def protects(self) -> str:
        """ "nothing", "network", "loads" or "network and loads"."""
        return self.cost().protects

    @property
    def unlimited(self) -> bool:
        """Whether any number of days costs the same, for both secrets."""
        cost = self.cost()
        claims = [claim for claim in (cost.network, cost.loads) if claim is not None]
        return self.loads.unlimited and all(claim.composes == "once" for claim in claims)

    @property
    def noise_std(self) -> dict[str, float]:
        """Standard deviation of every noise of the parts, by what it is on."""
        parts = (self.loads, self.network, self.noise)
        return {on: std for part in parts if part is not None for on, std in part.noise_std.items()}

    @property
    def true_delta(self) -> dict[str, float]:
        """δ that every Gaussian noise of the parts really gives at its ε, by what it is on."""
        parts = [part for part in (self.loads, self.network, self.noise) if part is not None]
        noises = [(part, getattr(part, "noise", None)) for part in parts]
        return {
            on: noise.true_delta
            for part, noise in noises
            if isinstance(noise, GaussianNoise)
            for on in part.noise_std
        }

    def cost(self) -> Cost:
        """What the parts claim.

        A part's own claim survives all that comes after it. Noise on voltages stands in where a part claims
        nothing.
        """
        network, loads = self.network.guarantee, self.loads.guarantee
        if self.noise is not None:
            network, loads = network or self.noise.guarantee, loads or self.noise.for_loads
        return Cost(network=network, loads=loads)

    def clean(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Voltages before the noise; NaN where power flow fails, everywhere if it cannot be set up."""
        try:
            solver = self.network.solver(self.network.draw(generator), self.setting)
        except UnusableDrawError:
            return np.full_like(self.loads.draw(generator, days), np.nan + 1j * np.nan)
        return solve_loads(solver, self.loads.draw(generator, days), self.setting.generation)

    def release(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Complex (day, step, node) voltages [p.u.]; NaN where power flow fails."""
        clean = self.clean(generator, days)
        return clean if self.noise is None else self.noise.add(clean, generator)
