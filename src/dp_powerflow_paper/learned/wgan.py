"""DPWGAN: a generator of customer-days whose critic is trained by DP-SGD (huang2022).

A critic tells true days from drawn ones; a generator learns to please the critic. Only the critic sees true
days, so only its steps need privacy; the generator, and any number of days drawn with it, are
post-processing. A step of the critic takes a Poisson sample of the records, cuts every record's gradient to
norm C, adds N(0, z²C²·I) to the sum and divides by the *expected* size of the sample. Noise on the gradient
of a batch whose records are not cut one by one, as some public code has it, protects nobody: one record can
move it by any amount.

The critic's Lipschitz bound comes from cutting its weights: a gradient penalty would mix true days with each
other or with drawn ones, and batch normalisation would let one record into the gradients of others. Loads are
scaled by public margins. The settings are fixed for all data sets, the number of steps too, and the last
generator is kept, an average over the last steps: none is chosen by a look at true days. The settings were
chosen on simulated customers.

The record is one customer-day. A customer with a year of days is a group of 365 records, for whom nothing of
use is promised.

The critic has one hidden layer, so the gradient of a record is known in closed form and so is its norm:
sums of cut gradients cost two products of matrices, and no gradient of a record is ever written down. A test
compares them with those of torch.func.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dp_powerflow.errors import PrivacyError, require
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.learned.accounting import SampledGaussian, noise_for
from dp_powerflow_paper.recovery.training import one_thread

SLOPE = 0.2
"""Of the critic's leaky ReLU below zero."""


@dataclass(frozen=True)
class WganSettings:
    """All that training is told; public, and fixed before any data are seen.

    Attributes
    ----------
    steps : of the critic; a generator step follows every `per_generator` of them.
    batch : B, expected size of a Poisson sample.
    clip : C, largest norm of one record's gradient.
    hidden, generator_hidden, latent : sizes of the critic's layer, the generator's two layers and its input.
    weight_limit : the critic's weights stay within ± this.
    critic_rate, generator_rate : learning rates of Adam without momentum.
    per_generator : steps of the critic per step of the generator.
    average : share of the generator's last steps whose weights are averaged.
    """

    steps: int = 3000
    batch: int = 256
    clip: float = 1.0
    hidden: int = 64
    generator_hidden: int = 96
    latent: int = 16
    weight_limit: float = 0.05
    critic_rate: float = 2e-3
    generator_rate: float = 1e-3
    per_generator: int = 2
    average: float = 0.25

    def spent(self, records: int, noise_multiplier: float) -> SampledGaussian:
        """What training spends for one record."""
        return SampledGaussian(self.rate(records), noise_multiplier, self.steps)

    def rate(self, records: int) -> float:
        """q, probability of a record to be in a step's sample."""
        if records < self.batch:
            raise PrivacyError(
                f"batches of {self.batch} customer-days need at least as many records; use more days"
            )
        return self.batch / records

    def noise(self, records: int, epsilon: float, delta: float) -> float:
        """Noise multiplier at which one replaced record has (ε, δ); 0 for ε = ∞."""
        return noise_for(epsilon, delta, self.rate(records), self.steps)


@dataclass(eq=False)
class Critic:
    """One hidden layer: f(x) = w₂ᵀ·φ(W₁x + b₁); a last bias would cancel between true and drawn days.

    Attributes
    ----------
    first : tensor (step + 1, hidden), W₁ with b₁ as its last row.
    last : tensor (hidden,), w₂.
    """

    first: Any
    last: Any

    def score(self, days: Any) -> Any:
        """(day,) the higher, the more like true days."""
        torch = require("torch", "ml")
        return torch.nn.functional.leaky_relu(days @ self.first[:-1] + self.first[-1], SLOPE) @ self.last

    def clipped_sum(self, days: Any, clip: float) -> tuple[Any, Any]:
        """Sum over days (day, step) of the gradients of their scores, each cut to norm `clip`.

        With h = φ(a) and s = w₂·φ′(a) a day's gradient is (x, 1)·sᵀ for the first layer and h for the last,
        so its squared norm is (‖x‖² + 1)·‖s‖² + ‖h‖².
        """
        torch = require("torch", "ml")
        before = days @ self.first[:-1] + self.first[-1]
        hidden = torch.nn.functional.leaky_relu(before, SLOPE)
        slopes = torch.where(before > 0, self.last, SLOPE * self.last)
        squared = ((days**2).sum(dim=1) + 1.0) * (slopes**2).sum(dim=1) + (hidden**2).sum(dim=1)
        factor = clip / squared.sqrt().clamp(min=clip)
        kept = slopes * factor[:, None]
        first = torch.cat([days.T @ kept, kept.sum(dim=0, keepdim=True)])
        return first, factor @ hidden


def private_gradient(
    critic: Critic, days: Any, settings: WganSettings, noise_multiplier: float, generator: Any
) -> tuple[Any, Any]:
    """The critic's mean gradient over a Poisson sample of true days, which may be empty, with its noise."""
    torch = require("torch", "ml")
    scale = noise_multiplier * settings.clip
    first, last = (
        (total + scale * torch.randn(total.shape, generator=generator)) / settings.batch
        for total in critic.clipped_sum(days, settings.clip)
    )
    return first, last


@dataclass(frozen=True, eq=False)
class DayGenerator:
    """Releasable: the trained generator.

    Attributes
    ----------
    layers : weights with the bias as last row, (input + 1, output) each.
    latent : numbers that a day is made from.
    """

    layers: tuple[FloatArray, ...]
    latent: int

    def days(self, count: int, generator: np.random.Generator) -> FloatArray:
        """Scaled days (day, step), from −1 to 1."""
        values = generator.standard_normal((count, self.latent))
        for weight in self.layers[:-1]:
            values = np.maximum(values @ weight[:-1] + weight[-1], 0.0)
        return np.asarray(np.tanh(values @ self.layers[-1][:-1] + self.layers[-1][-1]))


def train_wgan(
    scaled: FloatArray, settings: WganSettings, noise_multiplier: float, seed: int
) -> DayGenerator:
    """The generator after all steps.

    Parameters
    ----------
    scaled : PRIVATE (record, step) customer-days, from −1 to 1.
    noise_multiplier : z; 0 trains without privacy.
    """
    torch = require("torch", "ml")
    generator = torch.Generator().manual_seed(seed)
    data = torch.from_numpy(np.ascontiguousarray(scaled, dtype=np.float32))
    rate, steps = settings.rate(len(data)), data.shape[1]
    with one_thread():
        critic = Critic(
            settings.weight_limit * (2 * torch.rand(steps + 1, settings.hidden, generator=generator) - 1),
            settings.weight_limit * (2 * torch.rand(settings.hidden, generator=generator) - 1),
        )
        sizes = (settings.latent, settings.generator_hidden, settings.generator_hidden, steps)
        layers = [_layer(a, b, generator) for a, b in pairwise(sizes)]
        averaged, counted = [torch.zeros_like(layer) for layer in layers], 0
        begin = int((1.0 - settings.average) * settings.steps)
        critic_adam = torch.optim.Adam([critic.first, critic.last], settings.critic_rate, betas=(0.0, 0.99))
        own_adam = torch.optim.Adam(layers, settings.generator_rate, betas=(0.0, 0.99))
        for step in range(settings.steps):
            chosen = torch.nonzero(torch.rand(len(data), generator=generator) < rate).flatten()
            true = private_gradient(critic, data[chosen], settings, noise_multiplier, generator)
            with torch.no_grad():
                drawn = _generated(layers, torch.randn(settings.batch, settings.latent, generator=generator))
            false = critic.clipped_sum(drawn, settings.clip)
            for weight, up, down in zip((critic.first, critic.last), true, false, strict=True):
                weight.grad = down / settings.batch - up  # Adam goes down: the score of true days goes up
            critic_adam.step()
            for weight in (critic.first, critic.last):
                weight.clamp_(-settings.weight_limit, settings.weight_limit)
            if (step + 1) % settings.per_generator == 0:
                own_adam.zero_grad()
                made = _generated(layers, torch.randn(settings.batch, settings.latent, generator=generator))
                (-critic.score(made).mean()).backward()
                own_adam.step()
                if step >= begin:
                    counted += 1
                    for total, layer in zip(averaged, layers, strict=True):
                        total += layer.detach()
    return DayGenerator(
        tuple((total / max(counted, 1)).numpy().astype(np.float64) for total in averaged), settings.latent
    )


def _layer(inputs: int, outputs: int, generator: Any) -> Any:
    """(input + 1, output) weights of variance 2/inputs, biases zero."""
    torch = require("torch", "ml")
    weight = torch.zeros(inputs + 1, outputs)
    weight[:-1].normal_(0.0, (2.0 / inputs) ** 0.5, generator=generator)
    return weight.requires_grad_()


def _generated(layers: list[Any], values: Any) -> Any:
    """Scaled days (day, step) from latent numbers (day, latent)."""
    for weight in layers[:-1]:
        values = (values @ weight[:-1] + weight[-1]).relu()
    return (values @ layers[-1][:-1] + layers[-1][-1]).tanh()
