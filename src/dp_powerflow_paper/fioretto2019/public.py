"""What restoration may know: the public part of a network, and figures that already have noise.

Nothing here can reach true figures of branches; an import contract keeps it so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import ConfigError
from dp_powerflow.units import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Generators:
    """Generators of a network; limits per unit.

    Attributes
    ----------
    bus : (generator,).
    p_min, p_max, q_min, q_max : (generator,) limits [p.u.].
    cost : (generator, 3) of active power in MW: square, linear and constant term.
    """

    bus: IntArray
    p_min: FloatArray
    p_max: FloatArray
    q_min: FloatArray
    q_max: FloatArray
    cost: FloatArray


@dataclass(frozen=True, eq=False)
class Branches:
    """Public figures of branches.

    Attributes
    ----------
    start, end : (branch,) buses.
    charging : (branch,) total line charging [p.u.].
    ratio, shift : (branch,) of an ideal transformer at the start; 1 and 0 without [rad].
    rating : (branch,) apparent power [p.u.], infinite without a limit.
    level : (branch,) number of its group: voltage level, line or transformer, with losses or without.
    lossless : (branch,) whether it is modelled without resistance, a choice of the model as its type is.
    """

    start: IntArray
    end: IntArray
    charging: FloatArray
    ratio: FloatArray
    shift: FloatArray
    rating: FloatArray
    level: IntArray
    lossless: BoolArray

    @property
    def levels(self) -> int:
        """Number of groups."""
        return int(self.level.max()) + 1

    @property
    def sizes(self) -> IntArray:
        """(level,) branches of every group."""
        return np.bincount(self.level, minlength=self.levels)


@dataclass(frozen=True, eq=False)
class PublicGrid:
    """A network without the series admittances of its branches.

    Attributes
    ----------
    base_mva : power base.
    load_p, load_q : (bus,) [p.u.].
    shunt_g, shunt_b : (bus,) [p.u.].
    v_min, v_max : (bus,) [p.u.].
    reference : bus whose angle is zero.
    """

    name: str
    base_mva: float
    load_p: FloatArray
    load_q: FloatArray
    shunt_g: FloatArray
    shunt_b: FloatArray
    v_min: FloatArray
    v_max: FloatArray
    reference: int
    generators: Generators
    branches: Branches

    @property
    def buses(self) -> int:
        """Number of buses."""
        return len(self.load_p)


@dataclass(frozen=True, eq=False)
class Admittances:
    """Series admittances g + jb of branches, each (branch,) [p.u.]; b is negative for an inductance."""

    g: FloatArray
    b: FloatArray


@dataclass(frozen=True, eq=False)
class NoisyFigures:
    """What noise leaves of a network. Publishable.

    Attributes
    ----------
    branches : noisy admittances.
    mean_g, mean_b : (level,) noisy means over a group; that of g of a lossless group is 0.
    scale_g, scale_b : of the Laplace noise of a branch [p.u.]; public.
    mean_scale_g, mean_scale_b : (level,) of the means [p.u.]; public.
    """

    branches: Admittances
    mean_g: FloatArray
    mean_b: FloatArray
    scale_g: float
    scale_b: float
    mean_scale_g: FloatArray
    mean_scale_b: FloatArray


@dataclass(frozen=True)
class CostBand:
    """Costs that a restored network must admit: centre·(1 ± share). The centre is public, or paid for."""

    centre: float
    share: float = 0.01

    def __post_init__(self) -> None:
        if not (self.centre > 0.0 and 0.0 < self.share < 1.0):
            raise ConfigError("a band of costs needs a positive centre and a share between 0 and 1")


@dataclass(frozen=True, eq=False)
class NoisyLengths:
    """What noise leaves of the lengths of a feeder's lines. Publishable.

    Attributes
    ----------
    inverse : (line,) noisy inverse lengths [1/km].
    mean : noisy mean of them.
    mean_scale : of the mean's noise; public.
    """

    inverse: FloatArray
    mean: float
    mean_scale: float
