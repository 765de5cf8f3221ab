"""DP-FedAvg: many clients train one model, and no client can be told to have taken part (fernandez2022).

In every round each of N clients takes part with probability q, by itself (Poisson sampling). It trains the
model on its own data and sends the change Δ_i of the weights. The server cuts every Δ_i to norm C and moves
the model by

    w ← w + (Σ_i Δ_i + N(0, z²C²·I)) / (qN).

Two things are as they must be for the guarantee. All clients have the same weight: weights by number of
readings would make the sensitivity depend on data. The divisor is the *expected* number of clients: the
actual one of a Poisson sample is private. The record is a client with all its data ("user level").

With z = 0 and C = ∞ this is FedAvg; with q = 1 it is the average over all clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import PrivacyError, require
from dp_powerflow_paper.learned.accounting import SampledGaussian

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
