"""PUBLIC power-factor angles per class: never per node, never from that node's own meter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.units import FloatArray

# cos 0.95 inductive, a common contractual limit; public because it is a constant of this package
DEFAULT_ANGLE_DEG = 18.194872338766785


@dataclass(frozen=True)
class PowerFactors:
    """Declared angle θ [deg] of each class, q = p·tan θ; inductive is positive.

    Parameters
    ----------
    angle_deg_of
        Class → angle [deg].
    default_angle_deg
        Angle of load points without a class, or of a class not listed [deg].
    """

    angle_deg_of: Mapping[str, float] = field(default_factory=dict)
    default_angle_deg: float = DEFAULT_ANGLE_DEG

    def __post_init__(self) -> None:
        for angle in (*self.angle_deg_of.values(), self.default_angle_deg):
            if not -90.0 < angle < 90.0:
                raise LoadDataError("a power-factor angle must lie between −90 and 90 degrees; correct it")

    def tan_theta(self, class_label: Iterable[str | None]) -> FloatArray:
        """(load point,) tan θ of each load point by its PUBLIC class."""
        angles = [
            self.default_angle_deg if label is None else self.angle_deg_of.get(label, self.default_angle_deg)
            for label in class_label
        ]
        return np.tan(np.deg2rad(np.array(angles, dtype=np.float64)))


def inductive(power_factor_of: Mapping[str, float], default: float = 0.95) -> PowerFactors:
    """Angles from inductive (lagging) power factors in (0, 1]."""
    for power_factor in (*power_factor_of.values(), default):
        if not 0.0 < power_factor <= 1.0:
            raise LoadDataError("a power factor must lie above 0 and at most 1; correct it")
    return PowerFactors(
        {label: math.degrees(math.acos(pf)) for label, pf in power_factor_of.items()},
        math.degrees(math.acos(default)),
    )
