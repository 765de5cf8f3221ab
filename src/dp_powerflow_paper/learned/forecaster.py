"""A small load forecaster: its inputs, its network, a customer's own training, and days drawn with it.

The forecaster tells the next step of a customer's load from the four steps before, two steps of the day
before, the time of day and whether it is a weekend: the mean of the scaled log load (`LogMargins`), and its
spread, the mean absolute error. It starts from "as one step before". Its 226 weights fit one hidden layer of
16: in DP-FedAvg the noise grows with the root of their number.

All customers of a round train at once: their weights lie in one tensor (customer, weight), and a step of all
costs little more than a step of one.

Days are drawn by rolling the forecaster forward. The first day is public, flat at the middle of the margins;
what follows is its own forecast with Laplace noise of the spread that it was trained to tell, so no residual
of a customer is used again. A week is thrown away until the first day is forgotten.

DP-FedAvg: many clients train one model, and no client can be told to have taken part (fernandez2022).

In every round each of N clients takes part with probability q, by itself (Poisson sampling). It trains the
model on its own data and sends the change Δ_i of the weights. The server cuts every Δ_i to norm C and moves
the model by

    w ← w + (Σ_i Δ_i + N(0, z²C²·I)) / (qN).

Two things are as they must be for the guarantee. All clients have the same weight: weights by number of
readings would make the sensitivity depend on data. The divisor is the *expected* number of clients: the
actual one of a Poisson sample is private. The record is a client with all its data ("user level").

With z = 0 and C = ∞ this is FedAvg; with q = 1 it is the average over all clients.

Public scaling of loads for a network: logs, so that −1 and 1 are the public margins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError, PrivacyError, require
from dp_powerflow.units import BoolArray, FloatArray, IntArray
from dp_powerflow_paper.learned.accounting import SampledGaussian


@dataclass(frozen=True)
class LogMargins:
    """Margins of a relative load, known without looking at a reading.

    Attributes
    ----------
    low, high : of load over the public scale of its customer; loads outside are cut to them.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0.0 < self.low < self.high and math.isfinite(self.high)):
            raise LoadDataError("margins must be positive and finite, the lower one first")

    @property
    def _centre(self) -> float:
        return (math.log(self.high) + math.log(self.low)) / 2

    @property
    def _half(self) -> float:
        return (math.log(self.high) - math.log(self.low)) / 2

    def scaled(self, relative: FloatArray) -> FloatArray:
        """Relative loads as numbers from −1 to 1."""
        return np.asarray((np.log(np.clip(relative, self.low, self.high)) - self._centre) / self._half)

    def relative(self, scaled: FloatArray) -> FloatArray:
        """The way back."""
        return np.exp(np.clip(scaled, -1.0, 1.0) * self._half + self._centre)


RECENT = 4
"""Steps before the one that is told."""
STRETCH = 2.0
"""On changes of the scaled load, a public guess."""
INPUTS = RECENT + 2 + 4 + 1
HIDDEN = 16
SHAPES = ((INPUTS, HIDDEN), (1, HIDDEN), (HIDDEN, 2), (1, 2))
"""Weights and biases of the two layers."""
WEIGHTS = sum(rows * columns for rows, columns in SHAPES)
BURN_IN_DAYS = 7
_SPREAD = 0.1
"""Spread of the start, a public guess."""


@dataclass(frozen=True)
class Local:
    """A customer's own training in a round: whole-batch gradient steps.

    Attributes
    ----------
    steps : gradient steps.
    learning_rate : of them.
    """

    steps: int = 2
    learning_rate: float = 0.3


@dataclass(frozen=True, eq=False)
class Clients:
    """PRIVATE. What customers train on.

    Attributes
    ----------
    inputs : tensor (customer, sample, input).
    targets : tensor (customer, sample), the scaled load that is to be told.
    """

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return len(self.targets)


def clients_of(scaled: FloatArray, weekend: BoolArray, stride: int = 1) -> Clients:
    """Samples of customers from scaled loads (customer, day, step); the first day is an input only.

    Parameters
    ----------
    stride : every so many steps one is a sample.
    """
    torch = require("torch", "ml")
    customers, days, steps = scaled.shape
    if days < 2 or steps <= RECENT:
        raise LoadDataError(f"a forecaster needs two days of more than {RECENT} steps; use more days")
    series = np.moveaxis(scaled.reshape(customers, -1), 1, 0)
    at = np.arange(steps + 1, days * steps, stride)
    inputs = inputs_of(series, at, steps, weekend[at // steps])
    targets = series[at]
    return Clients(
        *(torch.from_numpy(np.moveaxis(part, 1, 0).astype(np.float32)) for part in (inputs, targets))
    )


def inputs_of(series: FloatArray, at: IntArray, steps: int, weekend: BoolArray) -> FloatArray:
    """(sample, customer, input) for the steps `at` of series (step, customer).

    The last load, the changes before it, how far it is above that of a day before, and what the load did a
    day before at this time. Changes are small, so they are stretched by public factors.
    """
    last, *before = (series[at - back] for back in range(1, RECENT + 1))
    changes = [STRETCH * (after - ago) for after, ago in pairwise((last, *before))]
    yesterday = series[at - steps - 1]
    loads = [last, *changes, last - yesterday, STRETCH * (series[at - steps] - yesterday)]
    clock = np.broadcast_to(clock_of(at % steps, steps, weekend)[:, None], (*last.shape, 5))
    return np.concatenate([np.stack(loads, axis=-1), clock], axis=-1)


def clock_of(step: Any, steps: int, weekend: Any) -> FloatArray:
    """(sample, 5) two harmonics of the time of day, and 1 on weekends."""
    angle = 2 * np.pi * np.asarray(step) / steps
    waves = [np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)]
    return np.stack([*waves, np.asarray(weekend, dtype=np.float64)], axis=-1)


def start_weights(generator: Any) -> Any:
    """Weights (d,) of "as one step before", with a random hidden layer."""
    torch = require("torch", "ml")
    weights = torch.zeros(WEIGHTS, dtype=torch.float32)
    first = INPUTS * HIDDEN
    weights[:first].normal_(0.0, INPUTS**-0.5, generator=generator)
    return weights


def predict(weights: Any, inputs: Any) -> tuple[Any, Any]:
    """Mean and spread (…, sample) of weights (…, d) for inputs (…, sample, input)."""
    torch = require("torch", "ml")
    layers, begin = [], 0
    for rows, columns in SHAPES:
        end = begin + rows * columns
        layers.append(weights[..., begin:end].reshape(*weights.shape[:-1], rows, columns))
        begin = end
    hidden = torch.tanh(inputs @ layers[0] + layers[1])
    answer = hidden @ layers[2] + layers[3]
    return inputs[..., 0] + answer[..., 0], (_SPREAD + answer[..., 1]).abs()


def losses(weights: Any, clients: Clients) -> Any:
    """(customer,) mean squared error, and that of the spread as a forecast of the absolute error.

    A likelihood would let a single customer with a small spread move the model without bound.
    """
    mean, spread = predict(weights, clients.inputs)
    error = clients.targets - mean
    return (error**2 + (error.detach().abs() - spread) ** 2).mean(dim=-1)


def trained_alone(weights: Any, clients: Clients, local: Local) -> Any:
    """Weights (customer, d) after every customer has trained alone, starting from weights (customer, d)."""
    torch = require("torch", "ml")
    own = weights.clone()
    for _ in range(local.steps):
        own.requires_grad_()
        (gradient,) = torch.autograd.grad(losses(own, clients).sum(), own)
        own = own.detach() - local.learning_rate * gradient
    return own.detach()


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """The `LocalUpdate` of a federation of customers."""

    clients: Clients
    local: Local

    def __call__(self, weights: Any, chosen: Any) -> Any:
        """Changes (chosen, d) of the weights."""
        mine = Clients(self.clients.inputs[chosen], self.clients.targets[chosen])
        before = weights.to(mine.inputs.dtype).expand(len(chosen), -1)
        return (trained_alone(before, mine, self.local) - before).to(weights.dtype)


def mean_absolute_error(weights: Any, clients: Clients, margins: LogMargins) -> float:
    """Of the forecast, in relative load; weights (d,) of all customers or (customer, d) of each."""
    torch = require("torch", "ml")
    with torch.no_grad():
        mean, _ = predict(weights.to(clients.inputs.dtype), clients.inputs)
    guess, truth = (margins.relative(part.numpy().astype(np.float64)) for part in (mean, clients.targets))
    return float(np.abs(guess - truth).mean())


def roll_forward(
    weights: Any, weekend: BoolArray, steps: int, nodes: int, generator: np.random.Generator
) -> FloatArray:
    """Scaled loads (day, step, node) of days after the burn-in; every node is a customer of its own.

    Parameters
    ----------
    weekend : (day,) of the days asked for; the burn-in has working days and weekends in turn.
    """
    layers, begin = [], 0
    flat = weights.numpy().astype(np.float64)
    for rows, columns in SHAPES:
        layers.append(flat[begin : begin + rows * columns].reshape(rows, columns))
        begin += rows * columns
    kinds = np.concatenate([np.arange(BURN_IN_DAYS) >= BURN_IN_DAYS - 2, weekend])
    series = np.zeros(((1 + len(kinds)) * steps, nodes))
    for at in range(steps + 1, len(series)):
        seen = inputs_of(series, np.array([at]), steps, kinds[[at // steps - 1]])[0]
        answer = np.tanh(seen @ layers[0] + layers[1]) @ layers[2] + layers[3]
        drawn = seen[:, 0] + answer[:, 0] + np.abs(_SPREAD + answer[:, 1]) * generator.laplace(size=nodes)
        series[at] = np.clip(drawn, -1.0, 1.0)
    return series[(1 + BURN_IN_DAYS) * steps :].reshape(len(weekend), steps, nodes)


LocalUpdate = Callable[[Any, Any], Any]
"""Weights (d,) and indices (k,) of the clients of a round → their changes of the weights (k, d)."""


@dataclass(frozen=True)
class Federation:
    """Rounds of DP-FedAvg; all of it is public and fixed beforehand.

    Attributes
    ----------
    clients : N.
    rate : q.
    clip : C, largest norm of one client's change of the weights; inf cuts nothing and allows no noise.
    noise_multiplier : z.
    rounds : T.
    """

    clients: int
    rate: float
    clip: float
    noise_multiplier: float
    rounds: int

    def __post_init__(self) -> None:
        if self.clients < 1 or not self.clip > 0.0:
            raise PrivacyError("a federation needs a client or more and a positive clip norm")
        if math.isinf(self.clip) and self.noise_multiplier > 0.0:
            raise PrivacyError("without a clip norm no noise is enough; give a clip norm, or no noise")
        self.spent()  # refuses a wrong rate, noise or number of rounds

    def spent(self) -> SampledGaussian:
        """What the rounds spend for one client."""
        return SampledGaussian(self.rate, self.noise_multiplier, self.rounds)

    @property
    def expected(self) -> float:
        """qN, clients of a round on average."""
        return self.rate * self.clients


def train_federated(federation: Federation, start: Any, local_update: LocalUpdate, generator: Any) -> Any:
    """Weights (d,) after the last round; none is left out and none is chosen by a score."""
    weights = start.clone()
    for _ in range(federation.rounds):
        chosen = draw_clients(federation, generator)
        weights = aggregate(weights, local_update(weights, chosen), federation, generator)
    return weights


def draw_clients(federation: Federation, generator: Any) -> Any:
    """Indices of a round's clients; there may be none."""
    torch = require("torch", "ml")
    drawn = torch.rand(federation.clients, generator=generator, dtype=torch.float64)
    return torch.nonzero(drawn < federation.rate).flatten()


def aggregate(weights: Any, updates: Any, federation: Federation, generator: Any) -> Any:
    """Weights after a round with these changes (client, d)."""
    torch = require("torch", "ml")
    moved = clipped(updates, federation.clip).sum(dim=0)
    if federation.noise_multiplier > 0.0:
        noise = torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
        moved = moved + federation.noise_multiplier * federation.clip * noise
    return weights + moved / federation.expected


def clipped(updates: Any, clip: float) -> Any:
    """Changes (client, d), each cut to norm C; one that is not finite counts as none."""
    torch = require("torch", "ml")
    finite = torch.isfinite(updates).all(dim=1, keepdim=True)
    kept = torch.where(finite, updates, torch.zeros_like(updates))
    if math.isinf(clip):
        return kept
    norm = kept.norm(dim=1, keepdim=True)
    return kept * (clip / norm.clamp(min=clip))
