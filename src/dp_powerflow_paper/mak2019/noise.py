"""Laplace noise on every load of a grid: what neighbours are, what is asked, what it costs.

Neighbours differ in one active load by at most α; power factors are public. The noise alone is private. The
least cost O* that the restored loads must have is a function of the private loads, too, and the paper takes
it as it is: whoever knows all loads but one finds that one from O*, and restored loads often lie at an end of
the band, which gives O* back. So restored loads have the claim only for a reader who knows O* anyway.
`feeder` has the form that pays for its total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow import StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import discrete_laplace
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.cases import TrueCase
from dp_powerflow_paper.mak2019.restoration import AcGrid
from dp_powerflow_paper.sources import Guarantee

GRID = 2**20
"""Grid units in α."""
_CLAIM = "loads of a grid of which one active power differs by at most α"
_UNPAID = "proved for the noisy loads; the least cost O* of the true ones goes into the restored ones unpaid"


@dataclass(frozen=True)
class LoadPrivacy:
    """How much of one load is hidden.

    Attributes
    ----------
    alpha : α [p.u.].
    epsilon : of one snapshot.
    """

    alpha: float
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        if not (self.alpha > 0.0 and self.epsilon > 0.0):
            raise PrivacyError("noise on loads needs a positive α and ε")

    @property
    def guarantee(self) -> Guarantee:
        """Of noisy loads, and of what is restored from them and figures that are public indeed."""
        return Guarantee(
            self.epsilon, 0.0, "step", _CLAIM, proved=True, composes="per snapshot", metric=self.alpha
        )

    @property
    def guarantee_at_cost(self) -> Guarantee:
        """Of loads restored at the true least cost, as published: not proved."""
        return replace(self.guarantee, proved=False, remark=_UNPAID)

    @property
    def scale(self) -> int:
        """Of the noise [grid units]: figures are rounded, so one may move by a unit more than α."""
        return math.ceil((GRID + 1) / self.epsilon)

    @property
    def unit(self) -> float:
        """Grid of a load [p.u.]."""
        return self.alpha / GRID


def served_grid(case: TrueCase) -> AcGrid:
    """What is public of a case whose loads are private: everything else, and power factors."""
    public = case.public
    loaded = public.load_p > 0.0
    tan = np.divide(public.load_q, public.load_p, out=np.zeros_like(public.load_q), where=loaded)
    empty = np.zeros(public.buses)
    return AcGrid(
        replace(public, load_p=empty, load_q=empty),
        case.true,
        loaded,
        tan,
        np.where(loaded, 0.0, public.load_p),
        np.where(loaded, 0.0, public.load_q),
    )


def true_loads(case: TrueCase) -> FloatArray:
    """PRIVATE (load,) active powers [p.u.]."""
    return np.asarray(case.public.load_p[case.public.load_p > 0.0])


def obfuscate(active: FloatArray, privacy: LoadPrivacy, key: StreamKey) -> FloatArray:
    """(load,) active powers with exact discrete Laplace noise [p.u.]; may be negative."""
    figures = np.rint(active / privacy.unit).astype(np.int64)
    noise = discrete_laplace(key.stream("loads"), privacy.scale, len(figures))
    return np.asarray(privacy.unit * (figures + noise))
