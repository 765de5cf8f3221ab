"""The network of the recovery task and the loop that trains it; `dp_sgd` has the private step.

Three layers, hidden size 32, ReLU. It is fed 96 numbers: the 48 values of the window, zero where hidden, and
the 48 marks of what is hidden (without them a hidden step and a step at 1 p.u. would look alike). It answers
with all 48 values. Values enter as (v − 1)/0.05, public constants, so that nothing about scaling is learned
from private data. Losses are reported in p.u.².
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow.corpus.extras import require
from dp_powerflow.experiments.windows_of_days import HIDDEN, LENGTH, Samples
from dp_powerflow.units import FloatArray

CENTRE, SCALE = 1.0, 0.05
"""Public: nominal voltage, and the width of the usual band."""
WIDTH = 32


@dataclass(frozen=True)
class Schedule:
    """How long a model is trained.

    Attributes
    ----------
    epochs : most of them; a private method is calibrated to all, so stopping early only spends less.
    patience : epochs without a better evaluation after which training stops.
    batch : samples of a step, on average.
    learning_rate : of Adam or SGD.
    """

    epochs: int
    patience: int
    batch: int
    learning_rate: float


@dataclass(frozen=True)
class Curves:
    """Mean squared error of hidden entries [p.u.²] at the end of every epoch of one run.

    Attributes
    ----------
    train, evaluation, test : arrays (epoch,)
        Of the method's own training samples, and of the shared true samples. From the epoch after training
        stopped on, all three are those of the best epoch, which is the model that is kept.
    best, stopped : int
        Epochs, counted from 0.
    """

    train: FloatArray
    evaluation: FloatArray
    test: FloatArray
    best: int
    stopped: int


@dataclass(frozen=True)
class Tensors:
    """Samples as the network sees them: inputs (sample, 96), values and hidden (sample, 48)."""

    inputs: Any
    values: Any
    hidden: Any

    def __len__(self) -> int:
        return len(self.values)

    def take(self, index: Any) -> Tensors:
        """Some of the samples."""
        return Tensors(self.inputs[index], self.values[index], self.hidden[index])


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: the matrices are so small that a second one only costs."""
    torch = require("torch", "ml")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_tensors(samples: Samples) -> Tensors:
    """Scale by the public constants, blank what is hidden and add the marks."""
    torch = require("torch", "ml")
    values = torch.from_numpy(np.asarray((samples.values - CENTRE) / SCALE, dtype=np.float32))
    hidden = torch.from_numpy(samples.hidden.astype(np.float32))
    return Tensors(torch.cat([values * (1 - hidden), hidden], dim=1), values, hidden)


def make_mlp(generator: Any) -> Any:
    """A network with weights and biases uniform within ±1/√(inputs), as torch does, but of this generator."""
    torch = require("torch", "ml")
    layers = [torch.nn.Linear(a, b) for a, b in ((2 * LENGTH, WIDTH), (WIDTH, WIDTH), (WIDTH, LENGTH))]
    with torch.no_grad():
        for layer in layers:
            bound = layer.in_features**-0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.uniform_(-bound, bound, generator=generator)
    relu = torch.nn.ReLU
    return torch.nn.Sequential(layers[0], relu(), layers[1], relu(), layers[2])


def sample_losses(model: Any, data: Tensors) -> Any:
    """(sample,) mean squared error of the hidden entries of every sample, in scaled units."""
    return (((model(data.inputs) - data.values) * data.hidden) ** 2).sum(dim=1) / HIDDEN


def mse(model: Any, data: Tensors) -> float:
    """Mean squared error of hidden entries [p.u.²]."""
    torch = require("torch", "ml")
    with torch.no_grad():
        return float(sample_losses(model, data).mean()) * SCALE**2


def train_adam(train: Samples, evaluation: Samples, test: Samples, schedule: Schedule, seed: int) -> Curves:
    """Adam on shuffled batches."""
    torch = require("torch", "ml")
    generator = torch.Generator().manual_seed(seed)
    with one_thread():
        model, data = make_mlp(generator), to_tensors(train)
        adam = torch.optim.Adam(model.parameters(), lr=schedule.learning_rate)

        def epoch() -> None:
            for index in torch.randperm(len(data), generator=generator).split(schedule.batch):
                adam.zero_grad()
                sample_losses(model, data.take(index)).mean().backward()
                adam.step()

        return follow(model, epoch, (data, to_tensors(evaluation), to_tensors(test)), schedule)


def follow(
    model: Any, epoch: Callable[[], None], sets: tuple[Tensors, Tensors, Tensors], schedule: Schedule
) -> Curves:
    """Train by epochs until the evaluation has not become better for `patience` epochs; keep the best."""
    rows: list[tuple[float, ...]] = []
    best, kept = 0, copy.deepcopy(model.state_dict())
    for number in range(schedule.epochs):
        epoch()
        rows.append(tuple(mse(model, data) for data in sets))
        # A run that diverges has NaN errors: they are never better, so it ends by patience and stays visible.
        if number == 0 or rows[number][1] < rows[best][1]:
            best, kept = number, copy.deepcopy(model.state_dict())
        if number - best >= schedule.patience:
            break
    stopped = len(rows) - 1
    model.load_state_dict(kept)
    rows += [rows[best]] * (schedule.epochs - len(rows))
    curves = np.array(rows)
    return Curves(curves[:, 0], curves[:, 1], curves[:, 2], best, stopped)
