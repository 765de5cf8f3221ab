"""Training with differential privacy for one window: per-sample clipping and Gaussian noise, by Opacus.

Works with Opacus 1.6.0 and torch 2.13.0. How much noise protects the *network* is in `dp_sgd_budget`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow._extras import require
from dp_powerflow.errors import PrivacyError
from dp_powerflow.paper.recovery.mlp import (
    Curves,
    Schedule,
    Tensors,
    follow,
    make_mlp,
    mse,
    one_thread,
    sample_losses,
    to_tensors,
)
from dp_powerflow.paper.recovery.windows import Samples


@dataclass(frozen=True)
class Privacy:
    """Noise and clipping of DP-SGD.

    Attributes
    ----------
    noise_multiplier : standard deviation of the noise on a sum of gradients, over `clip`.
    clip : largest norm of one sample's gradient.
    poisson : every sample is in a batch with probability batch/N by itself, as the accounting of the sampled
        Gaussian needs it; otherwise batches have exactly the size asked for, as `whole_batch` needs it.
    """

    noise_multiplier: float
    clip: float
    poisson: bool = True

    def __post_init__(self) -> None:
        if not (self.noise_multiplier >= 0 and self.clip > 0):
            raise PrivacyError("DP-SGD needs a noise multiplier of 0 or more and a positive clip norm")


class PrivateSteps:
    """Steps of SGD on a model: clip every sample's gradient, add noise to the sum, divide by the batch size.

    The divisor is the *expected* batch size: the actual one of a Poisson batch is private.
    """

    def __init__(self, model: Any, privacy: Privacy, schedule: Schedule, generator: Any) -> None:
        torch, opacus = require("torch", "ml"), require("opacus", "ml")
        self._model = opacus.GradSampleModule(model)
        self._optimizer = require("opacus.optimizers", "ml").DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=schedule.learning_rate),
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.clip,
            expected_batch_size=schedule.batch,
            loss_reduction="mean",
            generator=generator,
        )

    def step(self, batch: Tensors) -> None:
        """One step on a batch, which may be empty: then the step is noise alone."""
        if len(batch) == 0:
            torch = require("torch", "ml")
            inputs, values = (torch.zeros(1, part.shape[1]) for part in (batch.inputs, batch.values))
            batch = Tensors(inputs, values, torch.zeros_like(values))  # nothing hidden: no loss, no gradient
        self._optimizer.zero_grad()
        # Without a gradient for the inputs, torch warns about the hooks Opacus takes sample gradients with.
        seen = Tensors(batch.inputs.detach().requires_grad_(), batch.values, batch.hidden)
        sample_losses(self._model, seen).mean().backward()
        self._optimizer.step()


def train_dp_sgd(
    train: Samples,
    evaluation: Samples,
    test: Samples,
    schedule: Schedule,
    privacy: Privacy,
    seed: int,
) -> Curves:
    """DP-SGD for the epochs of the schedule, ⌈N/batch⌉ steps each."""
    torch = require("torch", "ml")
    generator = torch.Generator().manual_seed(seed)
    with one_thread():
        model, data = make_mlp(generator), to_tensors(train)
        steps = PrivateSteps(model, privacy, schedule, generator)

        def epoch() -> None:
            for _ in range(steps_per_epoch(len(data), schedule.batch)):
                steps.step(data.take(draw_batch(len(data), schedule.batch, privacy.poisson, generator)))

        sets = (data, to_tensors(evaluation), to_tensors(test))
        return follow(epoch, lambda: np.array([[mse(model, part) for part in sets]]), schedule)[0]


def steps_per_epoch(samples: int, batch: int) -> int:
    """Steps after which every sample has been used once, on average or a little more."""
    return -(-samples // batch)


def draw_batch(samples: int, batch: int, poisson: bool, generator: Any) -> Any:
    """Indices of a batch: each sample with probability batch/samples, or exactly `batch` different ones."""
    torch = require("torch", "ml")
    if poisson:
        return torch.nonzero(torch.rand(samples, generator=generator) < batch / samples).flatten()
    return torch.randperm(samples, generator=generator)[:batch]
