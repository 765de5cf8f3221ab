"""One simulated home: appliances that are switched, each as blocks of power over minutes.

    standby    of the home, always on
    cold       fridge and freezer, a compressor that cycles
    uses       cooking, light, washing, ...: drawn by the time of day, none while nobody is at home
    boiler     hot water, heated at night at the home's own time for as long as the day's water needs
    heat pump  cycles; the share of time it runs grows as the outdoor air gets colder
    storage    heaters charged at night, for longer as it gets colder

Every block is laid over the steps it touches with the share of the step that it fills. So the draws do not
depend on the length of a step, and a history of 60 minutes is the mean of that of 15 minutes. A home has a
row of draws for every day, so more days do not change the first ones.

The constants are round numbers of what such appliances draw. They are not fitted to any meter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.elementary import exp, kernel
from dp_powerflow._bits.linear import standard_normal
from dp_powerflow.loads.weather import Calendar, remember
from dp_powerflow.units import BoolArray, FloatArray

_DAY = 1440.0  # [min]
_USUAL_KW = 20.0  # connection of a home of size 1
_AWAY_DAYS = 7.0  # mean length of an absence
_LEVEL_MEMORY = 0.6  # of a home's own level from day to day
_COMPRESSOR = 1 / 3  # share of the time that fridge and freezer run
_LOW_TARIFF = 22.0  # beginning of the night [h]
_MOST_MINUTES = 480.0  # that a boiler heats in a night
_AWAY_WATER = 0.2  # of the hot water, lost while nobody is at home
_LIMIT_C, _DESIGN_C = 12.0, -8.0  # homes are heated below the one, all day at the other [°C]
_COLDER = 0.03  # more power that a heat pump needs for the same heat, per degree colder
_AWAY_HEATING = 0.6  # of the heating goes on while nobody is at home
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
_PER_DAY = 187  # with those of presence, hot water and level, which come first


@dataclass(frozen=True)
class Use:
    """A kind of appliance that somebody switches on.

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
    """What the homes of a class have in them. Kilowatts are those of a home of size 1.

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

    def load(self, scale_kw: float, calendar: Calendar, n_steps: int, rng: np.random.Generator) -> FloatArray:
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
        """Whatever somebody switches on."""
        kinds = np.array([(use.kw, use.minutes, use.per_day) for use in self.uses]).reshape(-1, 3)
        kinds[:, 2] *= often
        shift = 60.0 * self.shift_hours * _UNIFORM * later
        times = np.array([_before(self.working_day), _before(self.weekend)])
        _uses(
            meter, kinds, times, shift, days.level * days.at_home, days.calendar.weekend, days.draws[:, _USES]
        )

    def _heat_water(self, meter: _Meter, size: float, own: FloatArray, days: _Days) -> None:
        """A boiler heats from the home's own time, or that of its group, for as long as it needs."""
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
    """Of one home, by day: the common calendar, whether somebody is there, own level about 1, draws."""

    calendar: Calendar
    at_home: BoolArray
    level: FloatArray
    draws: FloatArray

    @classmethod
    def drawn(cls, homes: Homes, calendar: Calendar, rng: np.random.Generator) -> _Days:
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
    """(day,) whether somebody is at home; absences last a week in the mean."""
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
    slots = (draws.shape[1] - kinds.shape[0]) // 3  # after them come those of how often
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
    meter: _Meter,
    pump: _Pump,
    share: FloatArray,
    weight: FloatArray,
    starts: FloatArray,
    draws: FloatArray,
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
