"""Restoration: from noisy figures and what is public to a network that admits power flow.

Pure functions of their arguments. They cannot import the true network, so another true network with the
same noisy figures gives the same bytes, and whatever they return has the guarantee of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import ConfigError, require
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import (
    Admittances,
    Branches,
    CostBand,
    NoisyFigures,
    NoisyLengths,
    PowerFlowProgram,
    PublicGrid,
    Solution,
)

WIDTH = 10.0
"""λ: by which factor a restored figure may differ from the noisy mean of its group."""


@dataclass(frozen=True, eq=False)
class Restored:
    """A restored network.

    Attributes
    ----------
    admittances : within their bands, even where no dispatch was found.
    solution : the dispatch that shows that it admits power flow.
    """

    admittances: Admittances
    solution: Solution


@dataclass(frozen=True, eq=False)
class Bands:
    """Limits of restored figures, each (branch,) [p.u.]; b stands for −b, so all are positive."""

    g_low: FloatArray
    g_high: FloatArray
    b_low: FloatArray
    b_high: FloatArray


def bands_of(noisy: NoisyFigures, branches: Branches, width: float = WIDTH) -> Bands:
    """Within a factor of the noisy mean of the group.

    A mean below the scale of its own noise cannot be told from it and counts as that scale: a band round
    zero would leave no network.
    """
    if not width > 1.0:
        raise ConfigError("the width of restored figures is a factor above 1")
    g = np.maximum(noisy.mean_g, noisy.mean_scale_g)[branches.level]
    b = np.maximum(-noisy.mean_b, noisy.mean_scale_b)[branches.level]
    g = np.where(branches.lossless, 0.0, g)
    return Bands(np.asarray(g / width), np.asarray(g * width), np.asarray(b / width), np.asarray(b * width))


def restore(noisy: NoisyFigures, grid: PublicGrid, costs: CostBand | None, width: float = WIDTH) -> Restored:
    """The network nearest to the noisy figures that admits power flow at a cost within a band.

    Distances count in scales of the noise: min Σ((ġ − g̃)/s_g)² + Σ((ḃ − b̃)/s_b)².

    Parameters
    ----------
    costs : None for no condition on the cost.

    Raises
    ------
    MissingExtraError : casadi is not installed.
    """
    casadi = require("casadi", "nlp")
    bands = bands_of(noisy, grid.branches, width)
    lossy = np.flatnonzero(~grid.branches.lossless)
    near = clipped(noisy.branches, bands)
    opti = casadi.Opti()
    g_lossy, b_all = opti.variable(len(lossy)), opti.variable(len(near.b))
    opti.set_initial(g_lossy, near.g[lossy])
    opti.set_initial(b_all, near.b)
    opti.subject_to(opti.bounded(bands.g_low[lossy], g_lossy, bands.g_high[lossy]))
    opti.subject_to(opti.bounded(-bands.b_high, b_all, -bands.b_low))
    place = casadi.DM.triplet(
        lossy.tolist(), list(range(len(lossy))), casadi.DM.ones(len(lossy)), len(near.b), len(lossy)
    )
    program = PowerFlowProgram(casadi, grid, opti, place @ g_lossy, b_all)
    if costs is not None:
        opti.subject_to(opti.bounded(1.0 - costs.share, program.cost / costs.centre, 1.0 + costs.share))
    far_g = (g_lossy - casadi.DM(noisy.branches.g[lossy])) / noisy.scale_g
    far_b = (b_all - casadi.DM(noisy.branches.b)) / noisy.scale_b
    solution, read = program.minimise(casadi.sumsqr(far_g) + casadi.sumsqr(far_b))
    g = np.zeros_like(near.g)
    g[lossy] = read(g_lossy)
    # Interior points pass a limit by the solver's tolerance; the released figures do not.
    return Restored(clipped(Admittances(g, read(b_all)), bands), solution)


def clipped(figures: Admittances, bands: Bands) -> Admittances:
    """Figures within their bands."""
    return Admittances(
        np.clip(figures.g, bands.g_low, bands.g_high), np.clip(figures.b, -bands.b_high, -bands.b_low)
    )


def restore_lengths(noisy: NoisyLengths, width: float = WIDTH) -> FloatArray:
    """(line,) lengths [km] within a factor of their noisy mean: restoration of a radial feeder.

    Lengths are positive, and no further from their mean than the band. Whether the loads can be served is
    not asked: with much noise some snapshots have no power flow.
    """
    centre = max(noisy.mean, noisy.mean_scale)
    return np.asarray(1.0 / np.clip(noisy.inverse, centre / width, centre * width))
