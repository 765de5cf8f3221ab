"""Photovoltaics under public irradiance: what every PV system of a feeder produces, day by day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import cos, exp, sin
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray, kw_to_pu

MOST_IRRADIANCE = 1.5
"""Share of peak irradiance above which a figure is taken for a wrong unit."""
_DAYS_AT_ONCE = 32
DAYS_OF_YEAR = 365
"""Days of a clear-sky year."""
_PEAK = 1000.0
"""Irradiance at which a PV system is rated [W/m²]."""
_RADIANS = 0.017453292519943295
_TURN = 6.283185307179586
_DECLINATION = ((0.399912, 0.070257), (0.006758, 0.000907), (0.002697, 0.00148))
"""Spencer's series: what cosine (subtracted) and sine of one, two and three turns a year count [rad]."""


@dataclass(frozen=True, eq=False)
class Generation:
    """Public generation over a horizon; day d of a corpus has day d modulo the horizon.

    Attributes
    ----------
    power : complex (day, step, source) before volt-var [p.u.].
    shares : sparse (retained, source), what of each source goes to each node.
    as_filed : complex (day, step, source) at the power factors of the feeder's file; None where all are 1.
    """

    power: ComplexArray
    shares: sp.csr_array
    as_filed: ComplexArray | None = None

    def __post_init__(self) -> None:
        if self.power.ndim != 3 or not self.power.shape[0] or self.power.shape[2] != self.shares.shape[1]:
            raise PowerFlowError(
                f"generation has shape {self.power.shape}; it must be (day, step, source), one day or more"
            )

    @classmethod
    def from_irradiance(cls, feeder: Feeder, irradiance: FloatArray) -> Generation:
        """All PV systems of a feeder at unit power factor.

        Parameters
        ----------
        irradiance : (day, step), or (day, step, PV system), public, 1 at peak.
        """
        shares = feeder.pv_shares.tocsr()[feeder.retained]
        power = _pv_power(feeder, irradiance).astype(np.complex128)
        return cls(power, sp.csr_array(shares), _with_factors(feeder, irradiance, power))

    @classmethod
    def every_day(cls, power: ComplexArray) -> Generation:
        """The same every day: complex (step, retained) [p.u.]."""
        return cls(np.asarray(power, dtype=np.complex128)[None], sp.eye_array(power.shape[1], format="csr"))

    @property
    def n_days(self) -> int:
        """Days of the horizon."""
        return len(self.power)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.power.shape[1])

    @cached_property
    def peak(self) -> FloatArray:
        """(retained,) largest |s^g| of each node over the horizon [p.u.]: γ_k·h_max."""
        found = np.zeros(self.shares.shape[0])
        for first in range(0, self.n_days, _DAYS_AT_ONCE):
            days = np.arange(first, min(first + _DAYS_AT_ONCE, self.n_days))
            found = np.maximum(found, np.abs(self.of(days)).max(axis=0))
        return found

    def of(self, days: IntArray) -> ComplexArray:
        """Complex (day·step, retained) of some days [p.u.]."""
        chosen = self.power[np.asarray(days) % self.n_days].reshape(-1, self.power.shape[2])
        return np.ascontiguousarray((self.shares @ chosen.T).T)

    def by_system(self, days: IntArray) -> ComplexArray:
        """Complex (day·step, PV system) of some days [p.u.], at the power factors of the feeder's file."""
        power = self.power if self.as_filed is None else self.as_filed
        return power[np.asarray(days) % self.n_days].reshape(-1, power.shape[2])

    def select(self, days: IntArray) -> Generation:
        """A horizon of these days, in this order."""
        chosen = np.asarray(days) % self.n_days
        as_filed = None if self.as_filed is None else self.as_filed[chosen]
        return replace(self, power=self.power[chosen], as_filed=as_filed)

    def drawn(self, generator: np.random.Generator, count: int) -> Generation:
        """A horizon of days drawn at random, with replacement."""
        return self.select(generator.integers(self.n_days, size=count))


def _pv_power(feeder: Feeder, irradiance: FloatArray) -> FloatArray:
    """(day, step, PV system) [p.u.]: never above the inverter's rating, nothing below its cut-in."""
    h = np.asarray(irradiance, dtype=np.float64)
    if h.ndim == 2:
        h = np.repeat(h[:, :, None], len(feeder.pv), axis=2)
    if h.ndim != 3 or h.shape[2] != len(feeder.pv):
        raise PowerFlowError(
            f"irradiance has shape {h.shape[1:]}; "
            f"it must be (snapshot,) or (snapshot, {len(feeder.pv)} PV systems)"
        )
    if not (np.isfinite(h).all() and (h >= 0.0).all()):
        raise PowerFlowError("irradiance must be finite and not negative; 0 at night, 1 at peak")
    peak = np.array([pv.kw_peak for pv in feeder.pv])
    kva = np.array([pv.kva for pv in feeder.pv])
    cut_in = np.array([pv.cut_in_fraction for pv in feeder.pv])
    kw = np.minimum(h * peak, kva)
    return np.asarray(kw_to_pu(np.where(kw < cut_in * kva, 0.0, kw), feeder.base_mva))


def _with_factors(feeder: Feeder, irradiance: FloatArray, power: ComplexArray) -> ComplexArray | None:
    """The same at the power factors of the file; None where all are 1.

    As in OpenDSS, reactive power goes with what the panel gives, and active power gives way where the rating
    does not hold both.
    """
    tangent = np.array([pv.tan_theta for pv in feeder.pv])
    if not tangent.any():
        return None
    h = np.asarray(irradiance, dtype=np.float64)
    h = h[:, :, None] if h.ndim == 2 else h
    rated, panel = (
        kw_to_pu(np.array(figures), feeder.base_mva)
        for figures in ([pv.kva for pv in feeder.pv], [pv.kw_peak for pv in feeder.pv])
    )
    on = power.real > 0.0
    q = np.clip(np.where(on, tangent * (h * panel), 0.0), -rated, rated)
    found = np.empty(power.shape, dtype=np.complex128)
    found.real = np.minimum(power.real, np.sqrt(rated * rated - q * q))
    found.imag = q
    return found


def clear_sky(latitude_deg: float, days: int, steps: int, first_day_of_year: int = 1) -> FloatArray:
    """Irradiance of days without a cloud, (day, step), a share of the standard peak of 1000 W/m².

    Global irradiance on a horizontal plane by the model of Haurwitz, G = 1098·c·exp(−0.059/c) [W/m²], with c
    the cosine of the sun's zenith angle, sin φ·sin δ + cos φ·cos δ·cos ω. The declination δ is Spencer's
    series. The hour angle ω is taken in the middle of a step in solar time: noon is 12:00. There is no
    refraction, and no equation of time. The bits are the same on every processor.

    Parameters
    ----------
    latitude_deg : φ [degrees], negative in the south.
    days, steps : number of days, and of steps in each.
    first_day_of_year : of the first day, 1 for the first of January; after day 365 comes day 1.

    References
    ----------
    B. Haurwitz, "Insolation in relation to cloudiness and cloud density", J. Meteorology 2 (1945) 154-166;
    constants as in pvlib. J. W. Spencer, "Fourier series representation of the position of the sun",
    Search 2 (1971) 172.
    """
    if not -90.0 <= latitude_deg <= 90.0:
        raise PowerFlowError("a latitude lies between -90 and 90 degrees")
    if days < 1 or steps < 1 or not 1 <= first_day_of_year <= DAYS_OF_YEAR + 1:
        raise PowerFlowError("a clear sky needs a day and a step, and a first day of the year from 1 to 366")
    day: FloatArray = (np.arange(days, dtype=np.float64) + (first_day_of_year - 1)) % DAYS_OF_YEAR
    declination = _declination(day * (_TURN / DAYS_OF_YEAR))[:, None]
    hour_angle: FloatArray = (np.arange(steps, dtype=np.float64) + 0.5) * (_TURN / steps) - _TURN / 2.0
    latitude: FloatArray = np.array([latitude_deg * _RADIANS])
    cosine = sin(latitude) * sin(declination) + cos(latitude) * cos(declination) * cos(hour_angle)
    up = np.maximum(cosine, 1e-3)  # below, the exponential leaves nothing
    share = np.where(cosine > 0.0, 1098.0 / _PEAK * up * exp(-0.059 / up), 0.0)
    return np.minimum(share, MOST_IRRADIANCE)


def _declination(angle: FloatArray) -> FloatArray:
    """Of the sun [rad], by the share of the year that has passed [rad]."""
    total = np.full(angle.shape, 0.006918)
    for turns, (cosine, sine) in enumerate(_DECLINATION, start=1):
        total = total - cosine * cos(turns * angle) + sine * sin(turns * angle)
    return total


def read_irradiance(path: Path, steps: int, systems: Sequence[str]) -> FloatArray:
    """Public irradiance of a horizon: (day, step, PV system), a share of its peak.

    Parameters
    ----------
    path : a file of one number per line, for all systems; a CSV file with a header of PV systems, one column
        each; or a folder with a file of one number per line for every system, `pvshape_NAME.csv` or
        `NAME.csv`. The lines are the steps of one day or of several.
    systems : names of the feeder's PV systems.

    Raises
    ------
    ConfigError
        If a file is missing or cannot be used.
    """
    if path.is_dir():
        series = [_series(_file_of(path, name), (name,))[:, 0] for name in systems]
        if len({len(values) for values in series}) > 1:
            raise ConfigError(f"the irradiance files in {path} must have the same number of lines")
        values = np.stack(series, axis=1)
    elif path.is_file():
        values = _series(path, systems)
    else:
        raise ConfigError(f"irradiance file {path} does not exist; name a file, or a folder of files")
    if not len(values) or len(values) % steps:
        raise ConfigError(
            f"irradiance of {path} must hold {steps} lines for one day, or a multiple of it for several"
        )
    if not (np.all(np.isfinite(values)) and np.all((values >= 0.0) & (values <= MOST_IRRADIANCE))):
        raise ConfigError(f"irradiance of {path} must be shares of the peak, between 0 and {MOST_IRRADIANCE}")
    return np.ascontiguousarray(values.reshape(-1, steps, len(systems)))


def _file_of(folder: Path, system: str) -> Path:
    """The file of a system, whatever the case of its name."""
    wanted = {f"pvshape_{system}.csv".lower(), f"{system}.csv".lower()}
    found = sorted(file for file in folder.iterdir() if file.name.lower() in wanted and file.is_file())
    if len(found) != 1:
        raise ConfigError(
            f"the irradiance folder {folder} must hold one file for the PV system '{system}', named "
            f"pvshape_{system}.csv or {system}.csv; it holds {len(found)}"
        )
    return found[0]


def _series(path: Path, systems: Sequence[str]) -> FloatArray:
    """(line, system) of a file of numbers, or of one with a header and a column for every system."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    rows = [line.split(",") for line in lines if line.strip()]
    wanted, what = [0] * len(systems), "hold one number per line, or a header of PV systems"
    if rows and not _are_numbers(rows[0]):
        header = [name.strip().lower() for name in rows.pop(0)]
        missing = [name for name in systems if header.count(name.lower()) != 1]
        if missing:
            raise ConfigError(
                f"irradiance file {path} needs one number per line, or a header with one column for every PV "
                f"system; there is none, or more than one, for '{missing[0]}'"
            )
        wanted, what = [header.index(name.lower()) for name in systems], "hold numbers below its header"
    elif any(len(row) > 1 for row in rows):
        raise ConfigError(f"irradiance file {path} must {what}")
    try:
        found = [[float(row[column]) for column in wanted] for row in rows]
    except (ValueError, IndexError):
        raise ConfigError(f"irradiance file {path} must {what}") from None
    return np.array(found, dtype=np.float64).reshape(-1, len(systems))


def _are_numbers(words: list[str]) -> bool:
    try:
        [float(word) for word in words]
    except ValueError:
        return False
    return True
