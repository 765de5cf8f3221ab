"""Demo customers: no meter ever read these loads, and the history says so (`simulated=True`).

Homes are sums of appliances that are switched on and off (`households`). Shops and works are smooth
(`Business`): the log of their load is a sum of level, shape, season, weather, day and residual. All share one
weather (`weather`), so their daily energies move together. Panels behind the meter are an option of a class.

Every customer has a stream of its own, so adding customers does not change the others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np

from dp_powerflow._bits.elementary import cos, exp, exp1, log, log1, sin
from dp_powerflow._bits.linear import cholesky, product, solve_lower, solve_upper, standard_normal
from dp_powerflow._threads import in_order, slices
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import PowerFactors, inductive
from dp_powerflow.loads.history import LoadHistory, steps_per_day
from dp_powerflow.loads.households import Homes, Use
from dp_powerflow.loads.weather import Calendar, Photovoltaics, autoregressive, calendar_of
from dp_powerflow.units import FloatArray

_FIRST_DAY = dt.date(2023, 1, 1)
_HOURS_PER_DAY = 24
_DAY_MEMORY = 0.7  # correlation of a business's own level from day to day
_BENDS = 4  # harmonics by which a business's shape differs from its class
_REACTIVE_SPREAD = 0.1  # of q about p·tan θ, as a share of the mean load


class Kind(Protocol):
    """How the load of one customer is made."""

    def load(self, scale_kw: float, calendar: Calendar, n_steps: int, rng: np.random.Generator) -> FloatArray:
        """(day, step) load [kW]; the first day of the calendar is cut off afterwards."""


@dataclass(frozen=True)
class CustomerClass:
    """A class of demo customers.

    Parameters
    ----------
    name
        Public label.
    share
        Of all customers.
    scales_kw
        Sizes of connection [kW], drawn with equal probability; the public scale.
    power_factor
        Inductive.
    kind
        Homes or businesses.
    panels
        Photovoltaics behind the meter; the load is then net and may be negative. None: no customer has any.
    """

    name: str
    share: float
    scales_kw: tuple[float, ...]
    power_factor: float
    kind: Kind
    panels: Photovoltaics | None = None


@dataclass(frozen=True)
class Business:
    """Customers without single appliances to see. The log of their load is a sum of

        level      log of public scale × load factor, lognormal across customers
        shape      of the class, by working day or weekend, stretched, shifted and bent per customer
        season     a cosine over the year, with a strength per customer
        weather    one process of days, common to all customers, with a strength per customer
        day        of the customer, autocorrelated from day to day
        residual   of the customer, autocorrelated within the day, plus white noise

    Parameters
    ----------
    load_factor
        Median of mean load / scale.
    level_std
        Of the log level across customers.
    working_day, weekend
        24 hourly values of the shape (relative load), interpolated periodically.
    shape_std
        Of the log shape across customers: stretch (relative) and bends.
    shift_hours
        Standard deviation of a customer's shift of the shape [h].
    season, weather
        Mean strength in log load; strengths vary across customers with half of it. Cold raises the load.
    day_std, residual_std, white_std
        Standard deviations in log load.
    residual_hours
        Correlation time of the residual [h].
    """

    load_factor: float
    level_std: float
    working_day: tuple[float, ...]
    weekend: tuple[float, ...]
    shape_std: float
    shift_hours: float
    season: float
    weather: float
    day_std: float
    residual_std: float
    residual_hours: float
    white_std: float

    def load(self, scale_kw: float, calendar: Calendar, n_steps: int, rng: np.random.Generator) -> FloatArray:
        """(day, step) load of one customer [kW]."""
        n_days = calendar.season.size
        own_level, own_season, own_weather = standard_normal(rng, (3,))
        level = log1(scale_kw * self.load_factor) + self.level_std * own_level
        season = self.season * (1 + 0.5 * own_season) * calendar.season
        weather = self.weather * (1 + 0.5 * own_weather) * calendar.weather
        per_day = level + season - weather + self.day_std * autoregressive(rng, n_days, _DAY_MEMORY)
        memory = exp1(-_HOURS_PER_DAY / n_steps / self.residual_hours)
        residual = self.residual_std * autoregressive(rng, n_days * n_steps, memory)
        residual += self.white_std * standard_normal(rng, residual.shape)
        shape = _shapes(self, n_steps, rng)[calendar.weekend.astype(np.int64)]
        # the mean of a lognormal exceeds its median: keep the level the mean load
        bias = sum(std * std for std in (self.day_std, self.residual_std, self.white_std)) / 2
        return exp(residual.reshape(n_days, n_steps) + shape + (per_day - bias)[:, None])


# fmt: off
DEMO_CLASSES = (
    CustomerClass(
        name="residential", share=0.8, scales_kw=(9.0, 12.0, 17.0), power_factor=0.97,
        kind=Homes(
            size_std=0.35, day_std=0.15, habit_std=0.5, standby_kw=0.1, cold_kw=0.15,
            uses=(
                Use(kw=0.2, minutes=120.0, per_day=6.0),  # light, screens
                Use(kw=1.5, minutes=6.0, per_day=8.0),  # kettle, iron, vacuum cleaner
                Use(kw=1.8, minutes=30.0, per_day=1.5),  # stove and oven
                Use(kw=2.0, minutes=40.0, per_day=0.8),  # dishes and laundry, while they heat
            ),
            working_day=(0.10, 0.05, 0.03, 0.02, 0.05, 0.30, 0.90, 1.00, 0.70, 0.60, 0.70, 1.20,
                         1.20, 0.80, 0.60, 0.70, 1.10, 1.90, 2.40, 2.30, 1.90, 1.40, 0.80, 0.30),
            weekend=(0.20, 0.10, 0.05, 0.02, 0.03, 0.10, 0.30, 0.70, 1.10, 1.30, 1.40, 1.70,
                     1.60, 1.20, 1.00, 1.10, 1.40, 1.90, 2.20, 2.10, 1.80, 1.40, 0.90, 0.40),
            shift_hours=1.0, boiler_share=0.5, boiler_kw=5.0, boiler_kwh=8.0,
            pump_share=0.7, pump_kw=3.0, storage_share=0.15, storage_kw=6.0, absence_share=0.04,
        ),
    ),
    CustomerClass(
        name="commercial", share=0.15, scales_kw=(25.0, 50.0, 100.0), power_factor=0.92,
        kind=Business(
            load_factor=0.11, level_std=0.4,
            working_day=(0.40, 0.38, 0.37, 0.37, 0.40, 0.48, 0.65, 0.95, 1.30, 1.50, 1.58, 1.60,
                         1.55, 1.55, 1.52, 1.48, 1.42, 1.35, 1.20, 0.95, 0.72, 0.58, 0.48, 0.43),
            weekend=(0.40, 0.38, 0.37, 0.36, 0.37, 0.38, 0.42, 0.50, 0.62, 0.70, 0.74, 0.75,
                     0.72, 0.70, 0.66, 0.62, 0.58, 0.55, 0.52, 0.50, 0.48, 0.45, 0.43, 0.41),
            shape_std=0.25, shift_hours=1.0, season=0.10, weather=0.05, day_std=0.10,
            residual_std=0.25, residual_hours=3.0, white_std=0.12,
        ),
    ),
    CustomerClass(
        name="industrial", share=0.05, scales_kw=(200.0, 400.0), power_factor=0.88,
        kind=Business(
            load_factor=0.22, level_std=0.3,
            working_day=(0.75, 0.74, 0.74, 0.75, 0.80, 0.92, 1.12, 1.22, 1.26, 1.28, 1.26, 1.22,
                         1.15, 1.20, 1.20, 1.16, 1.10, 1.04, 0.98, 0.94, 0.90, 0.86, 0.82, 0.78),
            weekend=(0.50, 0.49, 0.48, 0.48, 0.49, 0.51, 0.54, 0.56, 0.58, 0.59, 0.59, 0.58,
                     0.57, 0.57, 0.56, 0.55, 0.54, 0.53, 0.52, 0.52, 0.51, 0.51, 0.50, 0.50),
            shape_std=0.15, shift_hours=1.0, season=0.03, weather=0.02, day_std=0.12,
            residual_std=0.15, residual_hours=6.0, white_std=0.05,
        ),
    ),
)
# fmt: on


def simulate_load_history(
    n_load_points: int = 1000,
    *,
    n_days: int = 365,
    step_minutes: int = 15,
    seed: int = 0,
    classes: Sequence[CustomerClass] = DEMO_CLASSES,
    reactive: bool = False,
    quantum_kwh: float | None = None,
) -> LoadHistory:
    """Simulate demo customers, each a load point of its own.

    Parameters
    ----------
    n_load_points, n_days, step_minutes
        Size of the history; its first day is 1 January 2023.
    seed
        Not secret: the same seed gives the same loads.
    classes
        What to draw from; classes alternate along the load points in proportion to their shares.
    reactive
        Also simulate reactive load [kvar].
    quantum_kwh
        What a meter counts in, such as 0.01 kWh: energies of steps are counted in it and the rest is carried
        over to the next step, so a small load reads zero at times. None: energies as they are, above zero.
    """
    if n_load_points < 1 or n_days < 1:
        raise LoadDataError(f"{n_load_points} load points over {n_days} days are no history; ask for more")
    if quantum_kwh is not None and not 0.0 < quantum_kwh <= 1.0:
        raise LoadDataError("quantum_kwh must be above 0 and at most 1 kWh; meters count in 0.001 to 0.1 kWh")
    n_steps = steps_per_day(step_minutes)
    # from the evening before, so that what runs past midnight is there on the first day too
    days = tuple(_FIRST_DAY + dt.timedelta(days=i) for i in range(-1, n_days))
    calendar = calendar_of(days, seed)
    members = _members(classes, n_load_points)
    load_kw = np.empty((n_load_points, n_days, n_steps))
    load_kvar = np.empty_like(load_kw) if reactive else None
    scale_kw = np.empty(n_load_points)

    def draw(i: int) -> None:
        own = members[i]
        scale_kw[i], rng = _scale_and_rng(own, seed, i)
        load = own.kind.load(scale_kw[i], calendar, n_steps, rng)
        load_kw[i] = load[1:]
        if load_kvar is not None:
            tan_theta = demo_power_factors((own,)).tan_theta((own.name,))[0]
            noise = autoregressive(rng, load_kw[i].size, 0.9).reshape(load_kw[i].shape)
            load_kvar[i] = load_kw[i] * tan_theta + _REACTIVE_SPREAD * load_kw[i].mean() * noise
        if own.panels is not None:
            load_kw[i] -= own.panels.output(scale_kw[i], calendar, n_steps, rng)[1:]

    def draw_some(part: slice) -> None:
        for i in range(part.start, part.stop):
            draw(i)

    for _ in in_order(draw_some, slices(n_load_points)):
        pass
    if quantum_kwh is not None:
        load_kw = _counted(load_kw, quantum_kwh * n_steps / _HOURS_PER_DAY)
    return LoadHistory(
        load_kw=load_kw,
        load_kvar=load_kvar,
        load_points=tuple(f"demo{i:06d}" for i in range(n_load_points)),
        days=days[1:],
        step_minutes=step_minutes,
        node_of=(None,) * n_load_points,
        class_label=tuple(own.name for own in members),
        scale_kw=scale_kw,
        simulated=True,
    )


def summed(history: LoadHistory, customers: int) -> LoadHistory:
    """Load points that are sums of so many customers each, one after the other, of one class."""
    if customers == 1:
        return history
    kw, scale_kw = history.load_kw, history.scale_kw
    return replace(
        history,
        load_kw=kw.reshape(-1, customers, *kw.shape[1:]).sum(axis=1),
        load_points=history.load_points[::customers],
        node_of=history.node_of[::customers],
        class_label=history.class_label[::customers],
        scale_kw=None if scale_kw is None else scale_kw.reshape(-1, customers).sum(axis=1),
    )


def simulated_services(
    n_load_points: int, *, seed: int = 0, classes: Sequence[CustomerClass] = DEMO_CLASSES, customers: int = 1
) -> tuple[tuple[str, ...], FloatArray]:
    """PUBLIC. Classes and scales (load point,) [kW] of the load points of `simulate_load_history`; no load.

    Parameters
    ----------
    customers
        Of a load point, as of `summed`.
    """
    members = _members(classes, n_load_points * customers)
    scales = np.array([_scale_and_rng(own, seed, i)[0] for i, own in enumerate(members)])
    return tuple(own.name for own in members[::customers]), scales.reshape(-1, customers).sum(axis=1)


def _members(classes: Sequence[CustomerClass], n_load_points: int) -> list[CustomerClass]:
    """The class of every load point."""
    return [classes[i] for i in _alternate([own.share for own in classes], n_load_points)]


def _scale_and_rng(own: CustomerClass, seed: int, i: int) -> tuple[float, np.random.Generator]:
    """Public scale of a customer [kW], and the stream that its loads come from."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, i)))
    return float(rng.choice(own.scales_kw)), rng


def demo_power_factors(classes: Sequence[CustomerClass] = DEMO_CLASSES) -> PowerFactors:
    """The power factors of the demo classes, as a producer would declare them."""
    return inductive({own.name: own.power_factor for own in classes})


def _counted(load: FloatArray, quantum_kw: float) -> FloatArray:
    """Loads as a counter shows them: differences of whole quanta of its reading."""
    reading = np.floor(np.cumsum(load.reshape(len(load), -1) / quantum_kw, axis=1))
    counted: FloatArray = quantum_kw * np.diff(reading, axis=1, prepend=0.0)
    return counted.reshape(load.shape)


def _shapes(own: Business, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """(kind of day, step) log shape of one customer, working day and weekend."""
    own_shift, own_stretch = standard_normal(rng, (2,))
    hours = np.arange(n_steps) * (_HOURS_PER_DAY / n_steps)
    at = np.mod(hours - own.shift_hours * own_shift, _HOURS_PER_DAY)
    stretch = exp1(own.shape_std * own_stretch)
    size = own.shape_std / np.sqrt(np.tile(np.arange(1, _BENDS + 1), 2))
    bend = product(_harmonics(n_steps), size * standard_normal(rng, (2 * _BENDS,)))
    return np.array([stretch * _course(day, at) + bend for day in (own.working_day, own.weekend)])


@cache
def _harmonics(n_steps: int) -> FloatArray:
    """(step, 2·bends) cosines, then sines, of the lowest harmonics of the day."""
    phase = 2 * np.pi * np.outer(np.arange(n_steps), np.arange(1, _BENDS + 1)) / n_steps
    return np.hstack([cos(phase), sin(phase)])


@cache
def _spline(hourly: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """Logs of hourly values and second derivatives of the periodic cubic spline through them."""
    values = log(np.array(hourly))
    shifted = np.roll(np.eye(values.size), 1, axis=0)
    factor = cholesky(4 * np.eye(values.size) + shifted + shifted.T)
    right = 6 * (np.roll(values, -1) - 2 * values + np.roll(values, 1))
    return values, solve_upper(factor, solve_lower(factor, right))


def _course(hourly: tuple[float, ...], at: FloatArray) -> FloatArray:
    """Periodic cubic spline through the logs of hourly values, at hours of the day."""
    values, second = _spline(hourly)
    here = np.floor(at).astype(np.int64) % values.size
    after = (here + 1) % values.size
    u = at - np.floor(at)
    v = 1 - u
    course: FloatArray = v * values[here] + u * values[after]
    course += ((v * v * v - v) * second[here] + (u * u * u - u) * second[after]) / 6
    return course


def _alternate(shares: Sequence[float], n: int) -> list[int]:
    """n class indices, evenly mixed: any first m of them are in proportion to the shares too."""
    total = sum(shares)
    if total <= 0 or min(shares) < 0:
        raise LoadDataError("the shares of the classes must not be negative and not all zero; correct them")
    due = np.zeros(len(shares))
    chosen = []
    for _ in range(n):
        due += np.array(shares) / total
        pick = int(np.argmax(due))
        due[pick] -= 1
        chosen.append(pick)
    return chosen
