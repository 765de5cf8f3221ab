"""Laplace noise on the admittances of branches: what neighbours are, what is asked, what it costs.

Neighbours differ in one branch: its conductance by at most α, its susceptance by at most ρ·α. Figures are
rounded to a grid of α/2²⁰ (ρα/2²⁰ for b), so that noise is exact integers, and the sensitivity of an integer
is at most 2²⁰ + 1. Four sets of queries share ε, each of one branch's figures and so of parallel cost:

    g of every branch with losses   ε/3     scale 3α/ε, as published
    b of every branch               ε/3     scale 3ρα/ε
    sum of g over every group       ε/6     its mean has scale 6α/(n·ε)
    sum of b over every group       ε/6     its mean has scale 6ρα/(n·ε)

Published, and not followed: b̃ = (b/g)·g̃ releases the exact ratio, and no branch with g = 0 has noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import discrete_laplace
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.fioretto2019.acopf import Admittances, NoisyFigures
from dp_powerflow_paper.fioretto2019.cases import TrueCase
from dp_powerflow_paper.sources import ANY_NUMBER_OF_DAYS, Guarantee

GRID = 2**20
"""Grid units in α."""
_BRANCH_SHARE, _MEAN_SHARE = 1.0 / 3.0, 1.0 / 6.0
_CLAIM = (
    "networks of the same branches, loads, limits and costs, in which one branch has another conductance, by "
    "at most α, and another susceptance, by at most ρ·α"
)


@dataclass(frozen=True)
class BranchPrivacy:
    """How much of one branch is hidden.

    Attributes
    ----------
    alpha : α, change of a conductance [p.u.].
    epsilon : of one network, however much is computed from it.
    reach : ρ, change of a susceptance over that of a conductance. 10 covers a line whose length changes, up
        to an x/r of 10.
    """

    alpha: float
    epsilon: float = 1.0
    reach: float = 10.0

    def __post_init__(self) -> None:
        if not (self.alpha > 0.0 and self.epsilon > 0.0 and self.reach > 0.0):
            raise PrivacyError("noise on branches needs a positive α, ε and ρ")

    @property
    def guarantee(self) -> Guarantee:
        """Of noisy figures and of whatever is restored from them and public figures."""
        return Guarantee(
            self.epsilon,
            0.0,
            ANY_NUMBER_OF_DAYS,
            _CLAIM,
            proved=True,
            metric=f"α = {self.alpha:g} p.u., ρ = {self.reach:g}",
        )

    def scale(self, share: float) -> int:
        """Of the noise of a set of queries with a share of ε [grid units]."""
        return math.ceil((GRID + 1) / (share * self.epsilon))

    @property
    def units(self) -> tuple[float, float]:
        """Grid of g and of b [p.u.]."""
        return self.alpha / GRID, self.reach * self.alpha / GRID


def obfuscate(case: TrueCase, privacy: BranchPrivacy, key: StreamKey) -> NoisyFigures:
    """Noisy figures of a network; the only function here that reads the true ones."""
    branches = case.public.branches
    unit_g, unit_b = privacy.units
    g, b = (
        np.rint(each / unit).astype(np.int64) for each, unit in ((case.true.g, unit_g), (case.true.b, unit_b))
    )
    branch, mean = privacy.scale(_BRANCH_SHARE), privacy.scale(_MEAN_SHARE)
    lossy, sizes = ~branches.lossless, branches.sizes

    def noisy(purpose: str, figures: IntArray, scale: int) -> FloatArray:
        return (figures + discrete_laplace(key.stream(purpose), scale, len(figures))).astype(np.float64)

    def sums(figures: IntArray) -> IntArray:
        total = np.zeros(branches.levels, dtype=np.int64)
        np.add.at(total, branches.level, figures)
        return total

    with_losses = np.zeros(branches.levels, dtype=np.bool_)
    with_losses[branches.level[lossy]] = True
    return NoisyFigures(
        branches=Admittances(
            g=np.where(lossy, unit_g * noisy("conductances", g, branch), 0.0),
            b=unit_b * noisy("susceptances", b, branch),
        ),
        mean_g=np.where(with_losses, unit_g / sizes * noisy("sums of g", sums(g), mean), 0.0),
        mean_b=unit_b / sizes * noisy("sums of b", sums(b), mean),
        scale_g=unit_g * branch,
        scale_b=unit_b * branch,
        mean_scale_g=unit_g * mean / sizes,
        mean_scale_b=unit_b * mean / sizes,
    )


def as_published(case: TrueCase, privacy: BranchPrivacy, key: StreamKey) -> Admittances:
    """g̃ with noise, b̃ = (b/g)·g̃, nothing on branches with g = 0. For comparison: the ratio is exact."""
    g, b = case.true.g, case.true.b
    noise = privacy.units[0] * discrete_laplace(
        key.stream("conductances"), privacy.scale(_BRANCH_SHARE), len(g)
    )
    lossless = case.public.branches.lossless
    noisy = np.where(lossless, 0.0, g + noise)
    ratio = np.divide(b, g, out=np.zeros_like(b), where=~lossless)
    return Admittances(noisy, np.where(lossless, b, ratio * noisy))
