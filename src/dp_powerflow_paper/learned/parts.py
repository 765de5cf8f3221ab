"""Loads of trained networks as parts of a release, and their entries in the registry.

Both are trained once, when they are made, and then give any number of days. Torch is asked for at that time:
a row whose extra is missing says so.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError, require
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.learned.accounting import SampledGaussian, noise_for
from dp_powerflow_paper.learned.forecaster import (
    Federation,
    Local,
    LocalTraining,
    LogMargins,
    clients_of,
    roll_forward,
    start_weights,
    train_federated,
)
from dp_powerflow_paper.learned.wgan import DayGenerator, WganSettings, train_wgan
from dp_powerflow_paper.mechanisms import Target
from dp_powerflow_paper.recovery.training import one_thread
from dp_powerflow_paper.sources import (
    ANY_NUMBER_OF_DAYS,
    ONE_CUSTOMER,
    ONE_CUSTOMER_DAY,
    Guarantee,
    Noiseless,
)
from dp_powerflow_paper.sources.entries import LoadEntry, Occasion
from dp_powerflow_paper.sources.meters import Meters

_SATURDAY = 5
QUICK_WGAN = WganSettings(steps=200, batch=64)
SAMPLES = 3000
"""Of a customer that the forecaster is trained on, at the most; every so many steps one is taken."""


def claim(spent: SampledGaussian, target: Target, adjacency: str, remark: str) -> Guarantee:
    """What training claims: everything drawn later is post-processing."""
    private = spent.noise_multiplier > 0.0
    added = spent.epsilon(target.delta)
    noise = f"sampled Gaussian, z = {spent.noise_multiplier:.3g}, {spent.steps} steps"
    words = f"{noise}, ε = {added:.3g} for a record added or removed; {remark}" if private else "no noise"
    epsilon = spent.replaced_epsilon(target.delta)
    return Guarantee(epsilon, target.delta, ANY_NUMBER_OF_DAYS, adjacency, private, words)


@dataclass(frozen=True, eq=False)
class WganLoads(Noiseless):
    """Every meter's day is drawn by itself from the trained generator.

    Attributes
    ----------
    meters : their places; no reading is used.
    generator : trained once.
    margins : public.
    """

    meters: Meters
    generator: DayGenerator
    margins: LogMargins
    guarantee: Guarantee
    name: str = "DPWGAN"
    unlimited: bool = True

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Synthetic days."""
        scaled = self.generator.days(self.meters.n * days, generator)
        return self.meters.nodal(self.margins.relative(scaled).reshape(self.meters.n, days, -1))


def records_of(occasion: Occasion) -> tuple[LogMargins, FloatArray]:
    """Public margins, and PRIVATE scaled loads (customer, day, step) of the whole history."""
    margins = LogMargins(*occasion.data.margins)
    return margins, margins.scaled(occasion.data.history.load_kw)


def wgan_loads(occasion: Occasion, settings: WganSettings | None = None) -> WganLoads:
    """Trained on all customer-days of the history at the target; ε = ∞ trains without noise."""
    require("torch", "ml")
    settings = settings or WganSettings()
    margins, scaled = records_of(occasion)
    records, target = scaled.reshape(-1, scaled.shape[2]), occasion.target
    noise = settings.noise(len(records), target.epsilon, target.delta)
    trained = train_wgan(records, settings, noise, int(occasion.generator("DPWGAN").integers(2**62)))
    remark = "a customer with all days is a group of records"
    promised = claim(settings.spent(len(records), noise), target, ONE_CUSTOMER_DAY, remark)
    return WganLoads(Meters.of(occasion.data, occasion.days), trained, margins, promised)


@dataclass(frozen=True)
class FederatedSettings:
    """Public settings of DP-FedAvg for the forecaster, fixed before any data are seen.

    Attributes
    ----------
    rate, clip, rounds : of the federation.
    local : a customer's own training in a round.
    """

    rate: float = 0.1
    clip: float = 0.1
    rounds: int = 100
    local: Local = field(default_factory=Local)

    def federation(self, clients: int, noise_multiplier: float) -> Federation:
        """Of so many customers; without noise nothing is cut either."""
        clip = self.clip if noise_multiplier > 0.0 else math.inf
        return Federation(clients, self.rate, clip, noise_multiplier, self.rounds)


@dataclass(frozen=True, eq=False)
class ForecastLoads(Noiseless):
    """Every meter is a customer of its own, rolled forward from a public day.

    Attributes
    ----------
    meters : their places; no reading is used.
    weights : tensor (d,), trained once.
    margins : public.
    first_day : public date of the first day; the others follow it.
    """

    meters: Meters
    weights: Any
    margins: LogMargins
    first_day: dt.date
    guarantee: Guarantee
    name: str = "DP-FedAvg forecaster"
    unlimited: bool = True

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        """Synthetic days, one after the other."""
        weekend = _weekend(self.first_day + dt.timedelta(days=day) for day in range(days))
        scaled = roll_forward(self.weights, weekend, self.meters.steps, self.meters.n, generator)
        return self.meters.nodal(self.margins.relative(np.moveaxis(scaled, 2, 0)))


def forecast_loads(occasion: Occasion, settings: FederatedSettings | None = None) -> ForecastLoads:
    """A forecaster trained by the customers of the history; the target is for a customer with all days."""
    torch = require("torch", "ml")
    settings = settings or FederatedSettings()
    data, target = occasion.data, occasion.target
    margins, scaled = records_of(occasion)
    if (data.history.days[-1] - data.history.days[0]).days + 1 != len(data.history.days):
        raise LoadDataError("a forecaster needs days without holes; fill them or take a shorter history")
    noise = noise_for(target.epsilon, target.delta, settings.rate, settings.rounds)
    federation = settings.federation(len(scaled), noise)
    seeded = torch.Generator().manual_seed(int(occasion.generator("DP-FedAvg").integers(2**62)))
    clients = clients_of(scaled, _weekend(data.history.days), stride_of(scaled.shape[1], scaled.shape[2]))
    with one_thread():
        start = start_weights(seeded).double()
        weights = train_federated(federation, start, LocalTraining(clients, settings.local), seeded)
    remark = f"{len(scaled)} customers; some thousands are needed for a use"
    return ForecastLoads(
        Meters.of(data, occasion.days),
        weights,
        margins,
        data.history.days[0],
        claim(federation.spent(), target, ONE_CUSTOMER, remark),
    )


def stride_of(days: int, steps: int) -> int:
    """Every so many steps one sample is taken; all times of the day are met."""
    stride = max(1, days * steps // SAMPLES)
    while math.gcd(stride, steps) > 1:
        stride += 1
    return stride


def _weekend(days: Any) -> Any:
    return np.array([day.weekday() >= _SATURDAY for day in days])


_AUDIT = "tests/paper/test_learned.py"

LOADS = (
    LoadEntry(
        key="federated",
        title="DP-FedAvg forecaster, per customer",
        paper="fernandez2022",
        matched=False,
        extra="ml",
        make=forecast_loads,
        quick=partial(forecast_loads, settings=FederatedSettings(rounds=20)),
        audited_by=_AUDIT,
    ),
    LoadEntry(
        key="wgan",
        title="DPWGAN",
        paper="huang2022",
        extra="ml",
        make=wgan_loads,
        quick=partial(wgan_loads, settings=QUICK_WGAN),
        audited_by=_AUDIT,
    ),
)
