"""Power records of a plant under differential privacy: wind (as published) or PV of a feeder.

Records, weights and loss are three Laplace queries of ε/3 each; what follows is post-processing
(`records_restored`), so that the records have about the loss that their regression really has. Plain Laplace
noise on the records with all of ε is the comparison.

Power records of a plant, and the regression that they are for.

Records are pairs of public weather x and private power y in [0, 1]; neighbours differ in the power of one
record by at most α. With features X (record, feature) and a ridge λ the weights are w = M·y and the loss is
‖X·w − y‖² = ‖A·y‖², A = X·M − I. Weights and loss are released beside the records, since they are what the
records are used for, and each has a sensitivity that follows from the public X alone:

    weights, in ‖·‖₁:  α·max_j ‖M e_j‖₁
    loss:              max_j 2α·max(Σ_i G_ij⁺, Σ_i G_ij⁻) + α²·G_jj,   G = AᵀA

since a change of y_j by t moves the loss by 2t·(G y)_j + t²·G_jj and y lies in [0, 1]ⁿ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.restored import NoisyRecords, restore_records
from dp_powerflow_paper.sources import ANY_NUMBER_OF_DAYS, Guarantee

FEATURES, WIDTH, RIDGE = 5, 0.5, 1e-3
"""k, γ and λ of the published experiment."""


def radial_features(x: FloatArray, count: int = FEATURES, width: float = WIDTH) -> FloatArray:
    """(record, feature) exp(−(γ·(x − μ_i))²), the centres μ_i evenly over the range of the public weather."""
    centres = np.linspace(x.min(), x.max(), count)
    return np.asarray(np.exp(-((width * (x[:, None] - centres)) ** 2)))


@dataclass(frozen=True, eq=False)
class Regression:
    """Ridge regression of power on public features.

    Attributes
    ----------
    features : (record, feature) X.
    ridge : λ.
    """

    features: FloatArray
    ridge: float = RIDGE

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or not self.ridge > 0.0:
            raise PrivacyError("a regression needs a matrix of features and a positive ridge")

    @cached_property
    def gram(self) -> FloatArray:
        """(feature, feature) XᵀX + λI."""
        return np.asarray(self.features.T @ self.features + self.ridge * np.eye(self.features.shape[1]))

    @cached_property
    def to_weights(self) -> FloatArray:
        """(feature, record) M: weights are M·y."""
        return np.asarray(np.linalg.solve(self.gram, self.features.T))

    @cached_property
    def curvature(self) -> FloatArray:
        """(record, record) G = AᵀA: the loss is yᵀ·G·y."""
        residual = self.features @ self.to_weights - np.eye(len(self.features))
        return np.asarray(residual.T @ residual)

    def weights(self, power: FloatArray) -> FloatArray:
        """(feature,) w = M·y."""
        return np.asarray(self.to_weights @ power)

    def loss(self, power: FloatArray) -> float:
        """‖X·w − y‖²."""
        return float(np.sum((self.features @ self.weights(power) - power) ** 2))

    def weight_sensitivity(self, change: float) -> float:
        """Largest change of the weights in ‖·‖₁ if one record's power changes by at most `change`."""
        return float(change * np.abs(self.to_weights).sum(axis=0).max())

    def loss_sensitivity(self, change: float) -> float:
        """Largest change of the loss if one record's power in [0, 1] changes by at most `change`."""
        rising, falling = (np.maximum(side, 0.0).sum(axis=0) for side in (self.curvature, -self.curvature))
        slope = np.maximum(rising, falling)
        return float(np.max(2.0 * change * slope + change**2 * np.diag(self.curvature)))

    def published_loss_sensitivity(self, change: float) -> float:
        """What the authors' public code takes for it: the second-order term alone. No bound."""
        return float(change**2 * np.diag(self.curvature).max())


QUERIES = 3
ONE_RECORD = "data sets in which the power of one record differs by at most α"


@dataclass(frozen=True, eq=False)
class PowerRecords:
    """PRIVATE power against public weather.

    Attributes
    ----------
    weather : (record,) public: wind speed [m/s], or share of peak irradiance.
    power : (record,) share of the rating, in [0, 1].
    width : γ of the radial features, in the unit of the weather.
    """

    weather: FloatArray
    power: FloatArray
    width: float = WIDTH

    def __post_init__(self) -> None:
        if self.weather.shape != self.power.shape or self.power.ndim != 1 or len(self.power) <= FEATURES:
            raise PrivacyError(
                "power records need one weather and one power each, and more than five records"
            )
        if not np.all((self.power >= 0.0) & (self.power <= 1.0)):
            raise PrivacyError("power records are shares of the rating; clip them to 0 … 1 beforehand")

    @property
    def regression(self) -> Regression:
        """Of power on radial features of the weather; it reads no power."""
        return Regression(radial_features(self.weather, FEATURES, self.width), RIDGE)


def wind_records(folder: Path, count: int = 1000, seed: int = 1) -> PowerRecords:
    """Records of the published turbine, drawn with replacement from its power curve.

    Parameters
    ----------
    folder : holds `wind/ge_2_75_103.csv` with columns speed [m/s] and power [share of the rating].
    """
    path = folder / "wind" / "ge_2_75_103.csv"
    if not path.is_file():
        raise LoadDataError(f"{path} does not exist; give the folder of the reference cases")
    speed, power = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
    chosen = np.random.default_rng(seed).integers(0, len(speed), count)
    return PowerRecords(speed[chosen], np.clip(power[chosen], 0.0, 1.0))


def solar_records(irradiance: FloatArray, *, oversized: float = 1.2, seed: int = 1) -> PowerRecords:
    """Records of a PV system of a feeder: its inverter clips, and dirt and heat take a random share.

    Parameters
    ----------
    irradiance : public shares of peak irradiance; nights are left out.
    oversized : peak power of the panels over the rating of the inverter.
    """
    bright = irradiance[irradiance > 0.0].ravel()
    lost = np.random.default_rng(seed).beta(2.0, 18.0, len(bright))
    return PowerRecords(bright, np.minimum(oversized * bright * (1.0 - lost), 1.0), width=4.0)


@dataclass(frozen=True)
class RecordMechanism:
    """Synthetic records whose regression is that of the true ones, as nearly as ε lets it.

    Attributes
    ----------
    epsilon : of all queries together.
    change : α, share of the rating by which neighbours differ.
    """

    epsilon: float
    change: float

    @property
    def guarantee(self) -> Guarantee:
        """Of the records, and whatever is computed from them."""
        return Guarantee(self.epsilon, 0.0, ANY_NUMBER_OF_DAYS, ONE_RECORD, proved=True, metric=self.change)

    def scales(self, regression: Regression) -> tuple[float, float, float]:
        """Laplace scales of records, weights and loss; they depend on public weather alone."""
        share = self.epsilon / QUERIES
        changes = (
            self.change,
            regression.weight_sensitivity(self.change),
            regression.loss_sensitivity(self.change),
        )
        return changes[0] / share, changes[1] / share, changes[2] / share

    def noisy(self, records: PowerRecords, generator: np.random.Generator) -> NoisyRecords:
        """The three queries."""
        regression = records.regression
        on_power, on_weights, on_loss = self.scales(regression)
        weights = regression.weights(records.power)
        return NoisyRecords(
            records.power + generator.laplace(0.0, on_power, len(records.power)),
            weights + generator.laplace(0.0, on_weights, len(weights)),
            regression.loss(records.power) + float(generator.laplace(0.0, on_loss)),
        )

    def release(self, records: PowerRecords, generator: np.random.Generator) -> FloatArray:
        """(record,) synthetic power."""
        regression = records.regression
        return restore_records(self.noisy(records, generator), regression.features, regression.ridge)

    def laplace(self, records: PowerRecords, generator: np.random.Generator) -> FloatArray:
        """(record,) power with Laplace noise of all of ε, clipped: what the repair is compared with."""
        noise = generator.laplace(0.0, self.change / self.epsilon, len(records.power))
        return np.asarray(np.clip(records.power + noise, 0.0, 1.0))
