"""The recovery task: its samples, its network, and the training with Adam or with DP-SGD.

A sample is a window of one node's voltage magnitude with a hidden block. Windows lie within one day: two
synthetic days are independent draws, so a window across midnight would have a jump in it that no true window
has. A day of 96 steps holds two windows, at steps 0 and 36; its last 12 steps are in none.

The network has three layers, hidden size 32, ReLU. It is fed 96 numbers: the 48 values of the window, zero
where hidden, and the 48 marks of what is hidden (without them a hidden step and a step at 1 p.u. would look
alike). It answers with all 48 values. Values enter as (v − 1)/0.05, public constants, so that nothing about
scaling is learned from private data. Losses are reported in p.u.².

DP-SGD gives differential privacy for one window: it clips per sample and adds Gaussian noise, by Opacus 1.6.0
with torch 2.13.0. How much noise protects the *network* is in `budget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow.errors import LoadDataError, PrivacyError, require
from dp_powerflow.units import BoolArray, FloatArray

LENGTH = 48
"""12 hours of 15 minutes."""
STRIDE = 36
"""A window shares 12 steps, 3 hours, with the next one."""
HIDDEN = 24
"""⌊√0.25 · 48⌋."""


@dataclass(frozen=True)
class Samples:
    """Windows and what is hidden of each.

    Attributes
    ----------
    values : array (sample, 48) [p.u.]
        Voltage magnitude of one node over one window.
    hidden : bool array (sample, 48)
        True in one contiguous block of 24 steps per sample.
    """

    values: FloatArray
    hidden: BoolArray

    def __len__(self) -> int:
        return len(self.values)


def windows_per_day(steps: int) -> int:
    """Windows of one node in a day of so many steps."""
    if steps < LENGTH:
        raise LoadDataError(
            f"the recovery task has windows of {LENGTH} steps, and a day of the data has {steps}; "
            "use data of 15 minutes"
        )
    return (steps - LENGTH) // STRIDE + 1


def cut_windows(vm_pu: FloatArray) -> FloatArray:
    """All windows of voltage magnitudes (day, step, node) → (day × window × node, 48), in that order."""
    starts = [STRIDE * number for number in range(windows_per_day(vm_pu.shape[1]))]
    parts = np.stack([vm_pu[:, start : start + LENGTH] for start in starts], axis=1)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 2).reshape(-1, LENGTH))


def hide_blocks(count: int, generator: np.random.Generator) -> BoolArray:
    """(sample, 48) with one block of 24 steps per sample, every position as likely as any other."""
    first = generator.integers(0, LENGTH - HIDDEN + 1, size=count)
    step = np.arange(LENGTH)
    return np.asarray((step >= first[:, None]) & (step < first[:, None] + HIDDEN))


def draw_samples(vm_pu: FloatArray, count: int, generator: np.random.Generator) -> Samples:
    """`count` different windows of the days, each with a block of its own; vm_pu: (day, step, node)."""
    windows = cut_windows(vm_pu)
    if count > len(windows):
        raise LoadDataError(
            f"{len(vm_pu)} days hold {len(windows)} windows, and {count} are needed; use more days"
        )
    chosen = generator.choice(len(windows), size=count, replace=False)
    return Samples(windows[chosen], hide_blocks(count, generator))


def hidden_mse(guess: FloatArray, samples: Samples) -> float:
    """Mean squared error over the hidden entries [p.u.²]; guess: (sample, 48) [p.u.]."""
    return float(np.mean((guess - samples.values)[samples.hidden] ** 2))


def observed_mean(samples: Samples) -> FloatArray:
    """Guess without learning: the mean of what is seen, at every step. (sample, 48) [p.u.]"""
    seen = np.where(samples.hidden, 0.0, samples.values).sum(axis=1) / (LENGTH - HIDDEN)
    return np.repeat(seen[:, None], LENGTH, axis=1)


def interpolated(samples: Samples) -> FloatArray:
    """Guess without learning: a straight line across the block, its near edge held if it has one only."""
    step = np.arange(LENGTH)
    rows = zip(samples.values, samples.hidden, strict=True)
    return np.stack([np.interp(step, step[~hidden], values[~hidden]) for values, hidden in rows])


CENTRE, SCALE = 1.0, 0.05
"""Public: nominal voltage, and the width of the usual band."""
WIDTH = 32
_FIELDS = ("inputs", "values", "hidden")


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


def losses_of(answers: Any, data: Tensors) -> Any:
    """(…, sample) mean squared error of the hidden entries of every sample, in scaled units."""
    return (((answers - data.values) * data.hidden) ** 2).sum(dim=-1) / HIDDEN


def sample_losses(model: Any, data: Tensors) -> Any:
    """(sample,) mean squared error of the hidden entries of every sample, in scaled units."""
    return losses_of(model(data.inputs), data)


def mse(model: Any, data: Tensors) -> float:
    """Mean squared error of hidden entries [p.u.²]."""
    torch = require("torch", "ml")
    with torch.no_grad():
        return float(sample_losses(model, data).mean()) * SCALE**2


def train_adam(
    trains: Sequence[Samples], evaluation: Samples, test: Samples, schedule: Schedule, seeds: Sequence[int]
) -> list[Curves]:
    """Adam on shuffled batches, for several runs of one method at once.

    The runs' weights lie in one tensor per layer (run, input, output), so that a step of all costs little
    more than a step of one. Adam works entry by entry and the runs share no entry, so each is trained as if
    alone; every run has its own generator. All runs must have the same number of samples.
    """
    torch = require("torch", "ml")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with one_thread():
        weights = stack([make_mlp(generator) for generator in generators])
        parts = [to_tensors(train) for train in trains]
        data = Tensors(*(torch.stack([getattr(part, name) for part in parts]) for name in _FIELDS))
        shared = [to_tensors(samples) for samples in (evaluation, test)]
        adam = torch.optim.Adam(weights, lr=schedule.learning_rate)
        rows = torch.arange(len(parts))[:, None]

        def epoch() -> None:
            orders = [torch.randperm(len(parts[0]), generator=generator) for generator in generators]
            for index in torch.stack(orders).split(schedule.batch, dim=1):
                adam.zero_grad()
                batch = data.take((rows, index))
                losses_of(stacked(weights, batch.inputs), batch).mean(dim=1).sum().backward()
                adam.step()

        def errors() -> FloatArray:
            # Run by run: what one network makes of a set fits into the cache, what all make does not.
            found = [
                [float(losses_of(stacked(own, part.inputs), part).mean()) for part in (mine, *shared)]
                for mine, *own in zip(parts, *weights, strict=True)
            ]
            return np.array(found) * SCALE**2

        return follow(epoch, torch.no_grad()(errors), schedule)


def stack(models: Sequence[Any]) -> list[Any]:
    """Weights (run, input, output) and biases (run, 1, output) of the layers of equal networks, in turn."""
    torch = require("torch", "ml")
    layers = zip(*([layer for layer in model if hasattr(layer, "weight")] for model in models), strict=True)
    tensors = []
    for same in layers:
        tensors.append(torch.stack([layer.weight.detach().T for layer in same]))
        tensors.append(torch.stack([layer.bias.detach()[None] for layer in same]))
    return [tensor.contiguous().requires_grad_() for tensor in tensors]


def stacked(tensors: Sequence[Any], inputs: Any) -> Any:
    """Answers (run, sample, 48) of all networks; inputs: (run, sample, 96), or (sample, 96) for all alike.

    With the tensors of one run, which have no axis of runs, answers (sample, 48) of that one.
    """
    *hidden, last = zip(tensors[::2], tensors[1::2], strict=True)
    values = inputs
    for weight, bias in hidden:
        values = (values @ weight + bias).relu()
    return values @ last[0] + last[1]


def follow(epoch: Callable[[], None], errors: Callable[[], FloatArray], schedule: Schedule) -> list[Curves]:
    """Train by epochs until the evaluation of no run has become better for `patience` epochs.

    Parameters
    ----------
    errors : mean squared errors (run, set) [p.u.²] of the training, evaluation and test set.
    """
    rows: list[FloatArray] = []
    for _ in range(schedule.epochs):
        epoch()
        rows.append(errors())
        ends = [best_and_last(run, schedule.patience) for run in np.array(rows)[:, :, 1].T]
        if all(last - best >= schedule.patience for best, last in ends):
            break
    return [_curves(run, schedule) for run in np.array(rows).transpose(1, 0, 2)]


def best_and_last(evaluation: FloatArray, patience: int) -> tuple[int, int]:
    """Best epoch of a run, and the last before it stops or of all; counted from 0."""
    best = last = 0
    for last, value in enumerate(evaluation):
        # A run that diverges has NaN errors: they are never better, so it ends by patience and stays visible.
        if value < evaluation[best]:
            best = last
        if last - best >= patience:
            break
    return best, last


def _curves(errors: FloatArray, schedule: Schedule) -> Curves:
    """Curves of a run with errors (epoch, set): cut where it stops, held at its best from there on."""
    best, last = best_and_last(errors[:, 1], schedule.patience)
    held = np.repeat(errors[best][None], schedule.epochs - last - 1, axis=0)
    train, evaluation, test = np.concatenate([errors[: last + 1], held]).T
    return Curves(train, evaluation, test, best, last)


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
    train: Samples, evaluation: Samples, test: Samples, schedule: Schedule, privacy: Privacy, seed: int
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
