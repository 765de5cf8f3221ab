"""Demo customers: no meter ever read these loads, and the history says so (`simulated=True`).

Homes are sums of appliances that are switched on and off (`households`). Shops and works are smooth
(`Business`): the log of their load is a sum of level, shape, season, weather, day and residual. All share one
weather, so their daily energies move together.

Every customer has its own stream, so adding customers does not change the others.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter

from dp_powerflow._bits.elementary import cos, exp, exp1, kernel, log, log1, sin
from dp_powerflow._bits.linear import cholesky, product, solve_lower, solve_upper, standard_normal
from dp_powerflow._threads import in_order, slices
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import SATURDAY, LoadHistory, steps_per_day
from dp_powerflow.units import BoolArray, FloatArray

# ----------------------------------------------------------------------------------------------------------
# What all simulated customers share: the calendar and the outdoor temperature.
#
# Temperatures are of a temperate climate of the northern hemisphere: a mean of 9 °C, 9 K of season, and
# spells of warm and cold days about it.


_DAYS_PER_YEAR = 365.25
_COLDEST_DAY = 20  # of the year
_MEAN_C, _SEASON_C, _SPELLS_C = 9.0, 9.0, 5.0  # [°C] mean, half the swing over the year, spread of a day
_MEMORY = 0.75  # correlation of weather from day to day


@dataclass(frozen=True, eq=False)
class Outdoors:
    """Days that follow one another, common to all customers.

    Parameters
    ----------
    weekend
        (day,) Saturday or Sunday.
    season
        (day,) cosine over the year, 1 on the coldest day.
    weather
        (day,) of unit variance, positive on days warmer than the season.
    temperature
        (day,) mean outdoors [°C].
    """

    weekend: BoolArray
    season: FloatArray
    weather: FloatArray
    temperature: FloatArray


def calendar_of(days: tuple[dt.date, ...], seed: int) -> Outdoors:
    """The weather of a seed; more days do not change the first ones."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    of_year = np.array([day.timetuple().tm_yday for day in days])
    turn = 2 * np.pi / _DAYS_PER_YEAR
    season = cos(turn * (of_year - _COLDEST_DAY))
    weather = autoregressive(rng, len(days), _MEMORY)
    return Outdoors(
        weekend=np.array([day.weekday() >= SATURDAY for day in days]),
        season=season,
        weather=weather,
        temperature=_MEAN_C - _SEASON_C * season + _SPELLS_C * weather,
    )


def autoregressive(rng: np.random.Generator, n: int, memory: float) -> FloatArray:
    """(n,) stationary first-order process of unit variance."""
    process = standard_normal(rng, (n,))
    remember(process, memory)
    return process


@kernel
def remember(process: FloatArray, memory: float) -> None:
    """White noise of unit variance → the process, in place."""
    new = np.sqrt(1 - memory * memory)
    for i in range(1, process.size):
        process[i] = new * process[i] + memory * process[i - 1]


_DAY = 1440.0  # [min]
_USUAL_KW = 20.0  # connection of a home of size 1
_AWAY_DAYS = 7.0  # mean length of an absence
_LEVEL_MEMORY = 0.6  # of a home's own level from day to day
_COMPRESSOR = 1 / 3  # share of the time that fridge and freezer run
_LOW_TARIFF = 22.0  # beginning of the night [h]
_MOST_MINUTES = 480.0  # that a boiler heats in a night
_AWAY_WATER = 0.2  # of the hot water, lost in an empty home
_LIMIT_C, _DESIGN_C = 12.0, -8.0  # homes are heated below the one, all day at the other [°C]
_COLDER = 0.03  # more power that a heat pump needs for the same heat, per degree colder
_AWAY_HEATING = 0.6  # of the heating goes on in an empty home
_STORAGE_MINUTES = 480.0  # of charging, on the design day
_INVERTERS = 0.25  # share of heat pumps that vary their power instead of resting
_SWITCHED = 0.7  # share of boilers and heat pumps that the utility switches
_LOCKED = (17.0, 21.0)  # when it locks heat pumps out [h], a group a quarter of an hour after the other
_GROUPS, _LOCK_MINUTES = 4, 60.0
_LONGEST_REST = 240.0  # of a heat pump [min]
_TIMER = 2.5  # most that a timer adds to a heat pump's running time, over what it is without
_UNIFORM = 1.7320508075688772  # √3: ±it is the range of a uniform law of unit variance
_OWN = 24  # draws of a home for good
_COLD, _USES, _PUMP = slice(3, 27), slice(27, 123), slice(123, 187)  # draws for a day; used again if few
_PER_DAY = 187  # with the draws of presence, hot water and level, which come first


@dataclass(frozen=True)
class Use:
    """A kind of appliance that is switched on by hand.

    Parameters
    ----------
    kw, minutes
        Power and duration, mean; a single use has half to one and a half of the duration.
    per_day
        Uses per day in a home of size 1, mean over homes.
    """

    kw: float
    minutes: float
    per_day: float


@dataclass(frozen=True)
class Homes:
    """What the homes of a class have in them. Kilowatts are for a home of size 1.

    Parameters
    ----------
    size_std
        Of the log size of a home, beyond what its connection says.
    day_std
        Of the log of uses and heating from day to day, beyond the weather.
    habit_std
        Of the log of standby and of each kind of use, across homes.
    standby_kw, cold_kw
        Always on; compressor of fridge and freezer while it runs.
    uses
        What is switched by hand.
    working_day, weekend
        24 hourly weights of the times of uses.
    shift_hours
        Standard deviation of a home's shift of these times [h].
    boiler_share, boiler_kw, boiler_kwh
        Share of homes with an electric boiler, its power, and what it heats with in a day.
    pump_share, pump_kw
        Share of homes with a heat pump and its power while it runs.
    storage_share, storage_kw
        Share of homes with storage heaters and their power while they are charged.
    absence_share
        Share of days away.
    """

    size_std: float
    day_std: float
    habit_std: float
    standby_kw: float
    cold_kw: float
    uses: tuple[Use, ...]
    working_day: tuple[float, ...]
    weekend: tuple[float, ...]
    shift_hours: float
    boiler_share: float
    boiler_kw: float
    boiler_kwh: float
    pump_share: float
    pump_kw: float
    storage_share: float
    storage_kw: float
    absence_share: float

    def load(self, scale_kw: float, calendar: Outdoors, n_steps: int, rng: np.random.Generator) -> FloatArray:
        """(day, step) load of one home [kW]."""
        size = scale_kw / _USUAL_KW * exp(self.size_std * standard_normal(rng, (1,)))[0]
        standby, water, *often = size * exp(self.habit_std * standard_normal(rng, (2 + len(self.uses),)))
        own = rng.random(_OWN)
        days = _Days.drawn(self, calendar, rng)
        load = np.full(len(days.draws) * n_steps, self.standby_kw * standby)
        meter = _Meter(load, _DAY / n_steps)
        _cold(meter, self.cold_kw * (0.5 + own[0]), 40.0 + 40.0 * own[1], days.draws[:, _COLD])
        self._use(meter, np.array(often), 2.0 * own[2] - 1.0, days)
        self._heat_water(meter, water, own[3:7], days)
        self._heat_rooms(meter, size, own[7:], days)
        return load.reshape(-1, n_steps)

    def _use(self, meter: _Meter, often: FloatArray, later: float, days: _Days) -> None:
        """What is switched on by hand."""
        kinds = np.array([(use.kw, use.minutes, use.per_day) for use in self.uses]).reshape(-1, 3)
        kinds[:, 2] *= often
        shift = 60.0 * self.shift_hours * _UNIFORM * later
        times = np.array([_before(self.working_day), _before(self.weekend)])
        _uses(
            meter, kinds, times, shift, days.level * days.at_home, days.calendar.weekend, days.draws[:, _USES]
        )

    def _heat_water(self, meter: _Meter, size: float, own: FloatArray, days: _Days) -> None:
        """A boiler heats from the time of the home, or of its group, for as long as it needs."""
        has, start, switched, power = own
        if has >= self.boiler_share:
            return
        hour = _LOW_TARIFF + 1.0 + 5.0 * start
        if switched < _SWITCHED:
            hour = np.floor(4.0 * hour) / 4.0
        kw = self.boiler_kw * size * (0.75 + 0.5 * power)
        used = np.where(days.at_home, 0.7 + 0.6 * days.draws[:, 1], _AWAY_WATER)
        lasts = 60.0 * self.boiler_kwh * size / kw * used
        _nightly(meter, kw, 60.0 * hour, np.minimum(lasts, _MOST_MINUTES))

    def _heat_rooms(self, meter: _Meter, size: float, own: FloatArray, days: _Days) -> None:
        """A heat pump, storage heaters, or neither."""
        has, keeps, power, lasts, group, switched, large, inverter = own[:8]
        if has >= self.pump_share + self.storage_share:
            return
        celsius = days.calendar.temperature
        need = np.maximum(_LIMIT_C - celsius, 0.0) / (_LIMIT_C - _DESIGN_C) * days.level
        need *= np.where(days.at_home, 1.0, _AWAY_HEATING)
        _smooth(need, 0.2 + 0.3 * keeps)
        if has >= self.pump_share:
            kw = self.storage_kw * size * (0.75 + 0.5 * power)
            _nightly(meter, kw, 60.0 * (_LOW_TARIFF + 4.0 * lasts), _STORAGE_MINUTES * need)
            return
        share = need * (0.3 + 0.5 * large) * np.maximum(1.0 - _COLDER * celsius, 0.5)
        pump = _Pump(
            kw=self.pump_kw * size * (0.75 + 0.5 * power),
            lasts=15.0 + 105.0 * lasts * lasts,
            group=int(_GROUPS * group) if switched < _SWITCHED else -1,
            inverter=bool(inverter < _INVERTERS),
        )
        _pump(meter, pump, share, *_timer(own[8:13]), days.draws[:, _PUMP])


class _Meter(NamedTuple):
    """Load of all steps in a row [kW], to add to, and the length of a step [min]."""

    load: FloatArray
    minutes: float


class _Pump(NamedTuple):
    """Power while it runs [kW], how long it runs at a time [min], its group of lock-outs or −1, its kind."""

    kw: float
    lasts: float
    group: int
    inverter: bool


@dataclass(frozen=True, eq=False)
class _Days:
    """Of one home, by day: the common calendar, whether anyone is there, own level about 1, draws."""

    calendar: Outdoors
    at_home: BoolArray
    level: FloatArray
    draws: FloatArray

    @classmethod
    def drawn(cls, homes: Homes, calendar: Outdoors, rng: np.random.Generator) -> _Days:
        draws = rng.random((len(calendar.weekend), _PER_DAY))
        level = _UNIFORM * (2.0 * draws[:, 2] - 1.0)
        remember(level, _LEVEL_MEMORY)
        return cls(calendar, _presence(homes.absence_share, draws[:, 0]), exp(homes.day_std * level), draws)


def _timer(own: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights by quarter of an hour, 1 in the mean, of the time that a heat pump runs by its timer, and the
    quarters at which they rise."""
    starts = np.floor(96.0 * own[1:3])
    weight = np.ones(96)
    for start, longer in zip(starts, own[3:5], strict=True):
        quarters = np.mod(start + np.arange(12 + np.floor(16.0 * longer)), 96.0)
        weight[quarters.astype(np.int64)] += _TIMER * own[0]
    return weight / weight.mean(), starts


@cache
def _before(hourly: tuple[float, ...]) -> FloatArray:
    """(25,) share of the uses of a day before each hour."""
    total = np.concatenate([[0.0], np.cumsum(np.array(hourly))])
    share: FloatArray = total / total[-1]
    return share


def _presence(share: float, draws: FloatArray) -> BoolArray:
    """(day,) whether anyone is at home; absences last a week in the mean."""
    at_home = np.ones(draws.size, dtype=np.bool_)
    _leave(at_home, draws, share / (1 - share) / _AWAY_DAYS, 1 / _AWAY_DAYS)
    return at_home


@kernel
def _leave(at_home: BoolArray, draws: FloatArray, goes: float, returns: float) -> None:
    for d in range(1, draws.size):
        at_home[d] = draws[d] >= goes if at_home[d - 1] else draws[d] < returns


@kernel
def _smooth(need: FloatArray, keeps: float) -> None:
    """A building keeps a share of yesterday's need."""
    for d in range(1, need.size):
        need[d] = (1 - keeps) * need[d] + keeps * need[d - 1]


@kernel
def _block(meter: _Meter, start: float, lasts: float, kw: float) -> None:
    """Add a power over a time [min], to each step by the share of it that is filled."""
    load, minutes = meter.load, meter.minutes
    stop = start + lasts
    first, last = int(start / minutes), int(stop / minutes)
    if first >= load.size or stop <= start:
        return
    if first == last:
        load[first] += kw * ((stop - start) / minutes)
        return
    load[first] += kw * ((first + 1) - start / minutes)
    for k in range(first + 1, min(last, load.size)):
        load[k] += kw
    if last < load.size:
        load[last] += kw * (stop / minutes - last)


@kernel
def _cold(meter: _Meter, kw: float, period: float, draws: FloatArray) -> None:
    """A compressor that cycles."""
    t = period * draws[0, 0]
    for d in range(draws.shape[0]):
        k = 0
        while t < (d + 1) * _DAY:
            cycle = period * (0.8 + 0.4 * draws[d, k % draws.shape[1]])
            _block(meter, t, cycle * _COMPRESSOR, kw)
            t += cycle
            k += 1


@kernel
def _uses(
    meter: _Meter,
    kinds: FloatArray,
    times: FloatArray,
    shift: float,
    level: FloatArray,
    weekend: BoolArray,
    draws: FloatArray,
) -> None:
    """Each kind (kW, minutes, per day) so often, at times of day drawn by their weights."""
    slots = (draws.shape[1] - kinds.shape[0]) // 3  # after them come the draws of how often
    for d in range(level.size):
        before = times[int(weekend[d])]
        k = 0
        for j in range(kinds.shape[0]):
            kw, lasts, often = kinds[j]
            for _ in range(int(often * level[d] + draws[d, 3 * slots + j])):
                when, longer, more = draws[d, 3 * k : 3 * k + 3]
                k = (k + 1) % slots
                hour = 0
                while before[hour + 1] <= when:
                    hour += 1
                at = hour + (when - before[hour]) / (before[hour + 1] - before[hour])
                start = d * _DAY + (60.0 * at + shift) % _DAY
                _block(meter, start, lasts * (0.5 + longer), kw * (0.6 + 0.8 * more))


@kernel
def _nightly(meter: _Meter, kw: float, start: float, lasts: FloatArray) -> None:
    """One block a day at the same time, `start` minutes after midnight."""
    for d in range(lasts.size):
        _block(meter, d * _DAY + start, lasts[d], kw)


@kernel
def _to_lock(group: int, minute: float) -> float:
    """Minutes until a group is locked out; not positive while it is, by as long as it has been."""
    to = 2 * _DAY
    if group >= 0:
        for start in _LOCKED:
            at = 60.0 * start + 15.0 * group
            if minute < at + _LOCK_MINUTES:
                to = min(to, at - minute)
    return to


@kernel
def _pump(
    meter: _Meter, pump: _Pump, share: FloatArray, weight: FloatArray, starts: FloatArray, draws: FloatArray
) -> None:
    """A heat pump runs and rests so that it runs a share of the time; it runs longer after a lock-out.

    One with an inverter does not rest but runs at that share of its power.
    """
    t = 60.0 * draws[0, 0]
    after = 1.0
    for d in range(share.size):
        k = 0
        while t < (d + 1) * _DAY:
            minute = t - d * _DAY
            free = _to_lock(pump.group, minute)
            if free <= 0.0:
                t += _LOCK_MINUTES + free
                after = 2.0
                continue
            runs = min(share[d] * weight[int(minute / 15.0)], 0.97)
            u = draws[d, k % draws.shape[1]]
            k += 1
            if runs < 0.03:
                t += 60.0 + 60.0 * u
                continue
            on = min(pump.lasts * (0.9 + 0.2 * u) * after, free)
            after = 1.0
            if pump.inverter:
                _block(meter, t, on, pump.kw * runs * (0.8 + 0.4 * u))
                t += on
                continue
            _block(meter, t, on, pump.kw)
            rest = min(on * (1.0 - runs) / runs, _LONGEST_REST)
            for start in starts:  # its timer does not wait for the end of a rest
                to = (15.0 * start - minute - on) % _DAY
                if to > 0.0:
                    rest = min(rest, to)
            t += on + rest


_FIRST_DAY = dt.date(2023, 1, 1)
_HOURS_PER_DAY = 24
_DAY_MEMORY = 0.7  # correlation of a business's own level from day to day
_BENDS = 4  # harmonics by which a business's shape differs from its class


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

    def load(self, scale_kw: float, calendar: Outdoors, n_steps: int, rng: np.random.Generator) -> FloatArray:
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
    kind
        Homes or businesses.
    """

    name: str
    share: float
    scales_kw: tuple[float, ...]
    kind: Homes | Business


DEMO_CLASSES = TypeAdapter(tuple[CustomerClass, ...]).validate_python(
    tomllib.loads(files(__package__).joinpath("demo_classes.toml").read_text("utf-8"))["classes"]
)
"""Homes, businesses and industry."""


def simulate_load_history(
    n_load_points: int = 1000,
    *,
    n_days: int = 365,
    step_minutes: int = 15,
    seed: int = 0,
    classes: Sequence[CustomerClass] = DEMO_CLASSES,
) -> LoadHistory:
    """Simulate demo customers, each its own load point.

    Parameters
    ----------
    n_load_points, n_days, step_minutes
        Size of the history; its first day is 1 January 2023.
    seed
        Not secret: the same seed gives the same loads.
    classes
        What to draw from; classes alternate along the load points in proportion to their shares.
    """
    if n_load_points < 1 or n_days < 1:
        raise LoadDataError(f"{n_load_points} load points over {n_days} days are no history; ask for more")
    n_steps = steps_per_day(step_minutes)
    # from the evening before, so that what runs past midnight is there on the first day too
    days = tuple(_FIRST_DAY + dt.timedelta(days=i) for i in range(-1, n_days))
    calendar = calendar_of(days, seed)
    members = _members(classes, n_load_points)
    load_kw = np.empty((n_load_points, n_days, n_steps))
    scale_kw = np.empty(n_load_points)

    def draw_some(part: slice) -> None:
        for i in range(part.start, part.stop):
            scale_kw[i], rng = _scale_and_rng(members[i], seed, i)
            load_kw[i] = members[i].kind.load(scale_kw[i], calendar, n_steps, rng)[1:]

    list(in_order(draw_some, slices(n_load_points)))
    return LoadHistory(
        load_kw=load_kw,
        load_kvar=None,
        load_points=tuple(f"demo{i:06d}" for i in range(n_load_points)),
        days=days[1:],
        step_minutes=step_minutes,
        node_of=(None,) * n_load_points,
        class_label=tuple(own.name for own in members),
        scale_kw=scale_kw,
        simulated=True,
    )


def summed(history: LoadHistory, customers: int) -> LoadHistory:
    """Load points that are sums of this many customers each, one after the other, of one class."""
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
