"""Public PV generation of a day, and the volt-var control of the inverters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.voltvar import CATEGORY_A, CATEGORY_B, VoltVar, pv_generation
from dp_powerflow.units import ComplexArray, FloatArray

_CURVES = {"category A": CATEGORY_A, "category B": CATEGORY_B}


@dataclass(frozen=True, eq=False)
class Solar:
    """Generation of a day, the same every day.

    Attributes
    ----------
    generation : complex (step, retained) [p.u.], before volt-var; None without PV.
    voltvar : None without control.
    """

    generation: ComplexArray | None = None
    voltvar: VoltVar | None = None


def solar_of(config: Config, feeder: Feeder, steps: int) -> Solar:
    """What the config says of the feeder's PV systems; without a section they are idle."""
    if config.pv is None:
        return Solar()
    if not feeder.pv:
        raise ConfigError("the config has a [pv] section, but the feeder has no PV system; remove it")
    generation = pv_generation(feeder, read_irradiance(config.pv.irradiance, steps))
    curve = _CURVES.get(config.pv.volt_var)
    return Solar(generation, None if curve is None else VoltVar.for_feeder(feeder, curve))


def read_irradiance(path: Path, steps: int) -> FloatArray:
    """One value per line, a share of peak irradiance: one day of it."""
    if not path.is_file():
        raise ConfigError(f"irradiance file {path} does not exist")
    try:
        values = np.loadtxt(path, dtype=np.float64, ndmin=1)
    except ValueError:
        raise ConfigError(f"irradiance file {path} must hold one number per line") from None
    if values.shape != (steps,):
        raise ConfigError(f"irradiance file {path} must hold {steps} lines, one per step of a day")
    if not (np.all(np.isfinite(values)) and np.all((values >= 0.0) & (values <= 1.5))):
        raise ConfigError(f"irradiance file {path} must hold shares of peak irradiance between 0 and 1.5")
    return values
