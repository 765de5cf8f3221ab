"""Loads that are true, or drawn from a released model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import LoadLaw, LoadSampler, placed_load
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.mechanisms import Setting, key_from
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.sources import Guarantee, Noiseless


def first_days(load: ComplexArray, days: int) -> ComplexArray:
    """Complex (day, step, node) true load of the first days."""
    if not 1 <= days <= len(load):
        raise PrivacyError(f"{days} days were asked of a setting that has {len(load)}")
    return load[:days]


@dataclass(frozen=True, eq=False)
class TrueLoads(Noiseless):
    """The true loads, in order.

    Attributes
    ----------
    load : complex (day, step, loaded node) [p.u.].
    """

    load: ComplexArray
    name: str = "true loads"
    guarantee: None = None
    unlimited: bool = False

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """The first days; the generator is not asked."""
        return first_days(self.load, days)


def true_loads(setting: Setting) -> TrueLoads:
    """Those of a setting."""
    return TrueLoads(setting.true_load)


@dataclass(frozen=True, eq=False)
class PublicLoads:
    """What is public of the loads that noise is put on.

    Attributes
    ----------
    low, high : (loaded node,) or one number, range of the active load [p.u.].
    tan_theta : (loaded node,) tangent of the power-factor angle.
    nominal : (loaded node,) nominal active load [p.u.], by which a total is split among the nodes.
    """

    low: FloatArray
    high: FloatArray
    tan_theta: FloatArray
    nominal: FloatArray

    def __post_init__(self) -> None:
        if not (np.all(np.isfinite(self.range)) and np.all(self.range > 0.0)):
            raise PrivacyError("noise on loads needs a finite public range with low < high at every node")

    @classmethod
    def of(cls, setting: Setting, low: FloatArray | float, high: FloatArray | float) -> PublicLoads:
        """With the feeder's power factors and nominal loads."""
        feeder = setting.network.feeder
        nominal = -feeder.nominal_injection[feeder.retained[setting.loaded]].real
        low, high = (
            np.broadcast_to(np.asarray(edge, dtype=np.float64), nominal.shape) for edge in (low, high)
        )
        return cls(low, high, setting.tangents, np.asarray(nominal))

    @property
    def range(self) -> FloatArray:
        """(loaded node,) by how much one active load may change [p.u.]."""
        return np.asarray(self.high - self.low)

    def clip(self, active: FloatArray) -> FloatArray:
        """Active loads (..., node) within the range [p.u.]."""
        return np.clip(active, self.low, self.high)

    def complex(self, active: FloatArray) -> ComplexArray:
        """Loads with the reactive part at the public power factor [p.u.]."""
        return np.asarray(active * (1.0 + 1j * self.tan_theta))


@dataclass(frozen=True, eq=False)
class GaussianLoads:
    """True active loads with Gaussian noise, clipped to the public range before and after.

    Attributes
    ----------
    load : complex (day, step, loaded node) true loads [p.u.].
    noise : on every active load [p.u.].
    adjacency : that the noise was made for.
    """

    load: ComplexArray
    public: PublicLoads
    noise: GaussianNoise
    adjacency: str
    name: str = "Gaussian noise on loads"
    unlimited: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """Proved by the range; every further true day is a record of its own."""
        return replace(self.noise.claim(self.adjacency), unit="day", composes="per day")

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of every active load [p.u.]."""
        return {"load_noise": self.noise.sigma}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """The first days; q follows p at the node's public power factor."""
        true = self.public.clip(first_days(self.load, days).real)
        return self.public.complex(self.public.clip(self.noise.on_real(true, generator)))


@dataclass(frozen=True, eq=False)
class LawLoads(Noiseless):
    """Days drawn from a law: of a DP-GMM, plain or structured, or of DP K-means.

    Attributes
    ----------
    law : at the loaded nodes.
    guarantee : what the fit claims; None for a law that was not fitted under differential privacy.
    """

    law: LoadLaw
    guarantee: Guarantee | None
    name: str = "DP-GMM"
    unlimited: bool = True

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Days of AES streams whose key the generator gives."""
        drawn = LoadSampler(self.law, key_from(generator), days, block_days=days).block(0)
        positions = np.arange(self.law.n) if self.law.positions is None else self.law.positions
        placed = placed_load(self.law, drawn, int(positions.max()) + 1)
        return np.asarray(placed[:, positions].reshape(days, self.law.steps, -1))
