"""`LoadHistory`: the meter data of a release, PRIVATE.

Only `loads/`, `model/fit.py` and the non-private baselines may touch a `LoadHistory`; everything else
sees the meters through the released `LoadModel`. Its `repr` prints shapes, never values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dp_powerflow._names import LONGEST_ID, alike, is_absent, odd
from dp_powerflow._threads import in_order, slices
from dp_powerflow.errors import LoadDataError, ServiceMapError
from dp_powerflow.units import BoolArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# PRIVATE. What goes over readings once, on all cores: counts and levels.


_PARTS = 64


def per_customer(values: FloatArray, figures: Callable[[FloatArray], Iterable[Any]]) -> Any:
    """(figure, customer): figures (customer,) of readings (customer, day, step), found on all cores."""
    found = in_order(lambda part: np.array([*figures(values[part])]), slices(len(values), _PARTS))
    return np.concatenate(list(found), axis=1)


class CustomerCounts(NamedTuple):
    """INTERNAL. (customer,) steps that exist without a reading, readings below zero, at zero, and all."""

    missing: IntArray
    negative: IntArray
    zero: IntArray
    read: IntArray


def count_readings(values: FloatArray, exists: BoolArray) -> CustomerCounts:
    """Of readings (customer, day, step), NaN where there is none; `exists` (day · step,) by the clock."""
    there = exists.reshape(values.shape[1:])

    def counts(own: FloatArray) -> Iterable[IntArray]:
        absent = np.isnan(own)
        return (np.count_nonzero(of, axis=(1, 2)) for of in (absent & there, own < 0, own == 0, ~absent))

    return CustomerCounts(*per_customer(values, counts))


def levels(values: FloatArray) -> FloatArray:
    """(customer,) medians over days of the mean load: one wild reading, or a month away, does not move them.

    Only days without a gap count; of a customer without any, all readings are one day. NaN without a load.
    """

    def level(own: FloatArray) -> float:
        there = ~np.isnan(own)
        whole = there.all(axis=1)
        days = own[whole] if whole.any() else own[there][None]
        found = float(np.median(days.mean(axis=1))) if days.size else 0.0
        return found if found > 0 else np.nan

    found: FloatArray = per_customer(values, lambda some: [[level(own) for own in some]])[0]
    return found


def raise_to_floor(load: FloatArray, floor_kw: float) -> IntArray:
    """Raise loads to a floor [kW], in place; (load point,) how many."""
    raised: IntArray = per_customer(load, lambda own: [np.count_nonzero(own < floor_kw, axis=(1, 2))])[0]
    np.maximum(load, floor_kw, out=load)
    return raised


MINUTES_PER_DAY = 24 * 60
SATURDAY = 5


def steps_per_day(step_minutes: int) -> int:
    """T of a step [min] that divides a day."""
    if step_minutes <= 0 or MINUTES_PER_DAY % step_minutes != 0:
        raise LoadDataError(f"a step of {step_minutes} min does not divide a day; use 15, 30 or 60")
    return MINUTES_PER_DAY // step_minutes


def refuse_alike(ids: Iterable[str], what: str) -> None:
    """Refuse ids that differ only in blanks, case or invisible characters: one service, two records."""
    ids = tuple(ids)
    count, blank = alike(ids), sum(name != name.strip() or is_absent(name) for name in ids)
    if blank:
        raise LoadDataError(
            f"{blank} {what} have no id (empty, NaN, None) or blanks around it; correct them",
            code="customer-ids",
        )
    if count:
        raise LoadDataError(
            f"{count} {what} have ids that differ from another only in blanks, case or invisible characters; "
            "write one id for one service, and clearly different ids for different ones",
            code="customer-ids",
        )
    strange = odd(ids)
    if strange:
        raise LoadDataError(
            f"{strange} {what} have ids with invisible characters (line ends, tabs, escapes) or more than "
            f"{LONGEST_ID} characters; correct the ids"
        )


@dataclass(frozen=True, eq=False)
class MeterFacts:
    """PUBLIC. What is declared of the load points of a history, in their order: no reading.

    Attributes
    ----------
    identity : keyed hash of the readings, in place of them.
    days, step_minutes, node_of, class_label, scale_kw : as of a `LoadHistory`.
    """

    identity: str
    days: tuple[dt.date, ...]
    step_minutes: int
    node_of: tuple[str | None, ...]
    class_label: tuple[str | None, ...]
    scale_kw: FloatArray | None

    @property
    def n_days(self) -> int:
        return len(self.days)

    @property
    def n_steps(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes


@dataclass(frozen=True, eq=False, repr=False)
class LoadHistory:
    """PRIVATE. Meter data of load points: one record per service ("load point").

    Parameters
    ----------
    load_kw
        Active load (load point, day, step) [kW]; consumption is positive. Finite. The readers of
        `loads.ingest` raise non-positive readings to a declared floor, because the model takes logs.
    load_kvar
        Reactive load (load point, day, step) [kvar], inductive consumption positive, or None.
    load_points
        Unique names.
    days
        Local calendar days, strictly increasing, not necessarily without holes.
    step_minutes
        Length of a step [min]; 15 means 96 steps per day.
    node_of
        Feeder node or load each load point feeds; None if it is not on this feeder.
    class_label
        PUBLIC class of each load point, None where there is none.
    scale_kw
        PUBLIC scale (load point,) [kW], such as connected kVA or contracted power, or None.
    simulated
        True if no meter ever read these values.
    days_mixed
        True if a day of a load point depends on readings of other days: a gap was filled from them, or a load
        point was rejected for its gaps. A guarantee for single days is then refused.
    """

    load_kw: FloatArray
    load_kvar: FloatArray | None
    load_points: tuple[str, ...]
    days: tuple[dt.date, ...]
    step_minutes: int
    node_of: tuple[str | None, ...]
    class_label: tuple[str | None, ...]
    scale_kw: FloatArray | None
    simulated: bool = False
    days_mixed: bool = False

    def __post_init__(self) -> None:
        steps = steps_per_day(self.step_minutes)
        for name in ("load_points", "days", "node_of", "class_label"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        shape = (len(self.load_points), len(self.days), steps)
        object.__setattr__(self, "load_kw", _checked("load_kw", self.load_kw, shape))
        if self.load_kvar is not None:
            object.__setattr__(self, "load_kvar", _checked("load_kvar", self.load_kvar, shape))
        if self.scale_kw is not None:
            scale = _checked("scale_kw", self.scale_kw, shape[:1])
            if np.any(scale <= 0):
                raise ServiceMapError(
                    "scale_kw must be positive for every load point; correct the public scales"
                )
            object.__setattr__(self, "scale_kw", scale)
        self._check_names()

    def _check_names(self) -> None:
        n = len(self.load_points)
        if n == 0 or not self.days:
            raise LoadDataError("a load history needs at least one load point and one day; check the input")
        if len(set(self.load_points)) != n:
            raise LoadDataError("two load points have the same name; sum their customers or rename one")
        refuse_alike(self.load_points, "load points")
        if any(later <= earlier for earlier, later in zip(self.days, self.days[1:], strict=False)):
            raise LoadDataError("the days of a load history must be strictly increasing; sort them")
        for name in ("node_of", "class_label"):
            if len(getattr(self, name)) != n:
                raise LoadDataError(
                    f"{name} has {len(getattr(self, name))} entries for {n} load points; give one for each"
                )

    def __repr__(self) -> str:
        kind = "simulated" if self.simulated else "PRIVATE"
        size = f"{self.n_load_points} load points × {self.n_days} days × {self.n_steps} steps"
        return f"LoadHistory({size}, {kind})"

    @property
    def n_load_points(self) -> int:
        return len(self.load_points)

    @property
    def n_days(self) -> int:
        return len(self.days)

    @property
    def n_steps(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes

    def facts(self, identity: str) -> MeterFacts:
        """PUBLIC. What is declared, under a keyed hash that stands for the readings."""
        return MeterFacts(
            identity, self.days, self.step_minutes, self.node_of, self.class_label, self.scale_kw
        )

    def select(
        self, load_points: Sequence[str] | None = None, days: Sequence[dt.date] | None = None
    ) -> LoadHistory:
        """The part of the history for some load points (in the given order) and some days.

        Choose them by public facts only (a calendar, a list of services), never by looking at the loads.
        """
        rows = _positions(self.load_points, load_points, "load points")
        columns = _positions(self.days, None if days is None else sorted(days), "days")
        grid = np.ix_(rows, columns)
        return replace(
            self,
            load_kw=self.load_kw[grid],
            load_kvar=None if self.load_kvar is None else self.load_kvar[grid],
            load_points=tuple(self.load_points[i] for i in rows),
            days=tuple(self.days[j] for j in columns),
            node_of=tuple(self.node_of[i] for i in rows),
            class_label=tuple(self.class_label[i] for i in rows),
            scale_kw=None if self.scale_kw is None else self.scale_kw[rows],
        )

    def coarsen(self, step_minutes: int) -> LoadHistory:
        """Average to a longer step [min], a multiple of the present one.

        There is no way back: interpolating to a shorter step would make the day covariance singular.
        """
        if step_minutes % self.step_minutes != 0 or MINUTES_PER_DAY % step_minutes != 0:
            raise LoadDataError(
                f"cannot average steps of {self.step_minutes} min to {step_minutes} min; "
                "choose a multiple that divides a day"
            )
        shape = (self.n_load_points, self.n_days, MINUTES_PER_DAY // step_minutes, -1)
        kvar = self.load_kvar
        return replace(
            self,
            load_kw=self.load_kw.reshape(shape).mean(axis=3),
            load_kvar=None if kvar is None else kvar.reshape(shape).mean(axis=3),
            step_minutes=step_minutes,
        )


def _checked(name: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Read-only float64 view of `values` with the expected shape and finite entries."""
    array = np.asarray(values, dtype=np.float64).view()
    if array.shape != shape:
        raise LoadDataError(f"{name} has shape {array.shape} but the names, days and step say {shape}")
    # min and max catch NaN and infinity without a temporary of the size of the history
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        raise LoadDataError(
            f"{name} has missing or infinite entries; fill or reject gaps before building a history"
        )
    array.flags.writeable = False
    return array


def _positions(known: tuple[Hashable, ...], wanted: Sequence[Hashable] | None, what: str) -> list[int]:
    if wanted is None:
        return list(range(len(known)))
    index = {item: i for i, item in enumerate(known)}
    missing = sum(item not in index for item in wanted)
    if missing:
        raise LoadDataError(
            f"{missing} of the {len(wanted)} selected {what} are not in this history",
            code="meters-not-listed",
        )
    return [index[item] for item in wanted]


FLOOR_KW = 0.01
"""Loads below it are raised to it, and loads above minus it are not fed in [kW]."""
MOST_EXPORT = 0.01
"""Energy that all load points may feed in, as a share of what they draw."""


@dataclass(frozen=True)
class Export:
    """INTERNAL. What load points feed in.

    Parameters
    ----------
    share
        Energy fed in by all load points over the energy that they draw.
    load_points
        Load points that feed in more than the declared share of what they draw themselves.
    of
        Load points checked.
    """

    share: float
    load_points: int
    of: int


def find_export(
    load_kw: FloatArray,
    floor_kw: float = FLOOR_KW,
    most: float = MOST_EXPORT,
    judged: BoolArray | None = None,
) -> Export:
    """What load points feed in.

    Parameters
    ----------
    load_kw
        Net loads (load point, day, step) [kW].
    floor_kw
        A load is fed in if it is below minus this [kW].
    most
        The declared share.
    judged
        (load point,) false for what no meter read; None for all true.
    """

    def drawn_and_fed_in(load: FloatArray) -> Iterable[FloatArray]:
        for wanted, size in ((load > 0.0, load), (load < -floor_kw, -load)):
            yield np.where(wanted, size, 0.0).sum(axis=(1, 2))

    with np.errstate(over="ignore"):  # of wild readings
        sums = per_customer(load_kw, drawn_and_fed_in)
    drawn, fed_in = sums if judged is None else sums[:, judged]
    share = float(fed_in.sum() / max(float(drawn.sum()), 1e-300))
    return Export(share, int(np.count_nonzero(fed_in > most * drawn)), drawn.size)


def refuse_export(found: Export, most: float, otherwise: str) -> None:
    """Refuse a history of which more than a share is fed in.

    Parameters
    ----------
    most
        The declared share.
    otherwise
        What else can be done.
    """
    if found.share > most:
        raise LoadDataError(
            f"load points feed in more than {most:g} of the energy that they draw, as with panels or "
            f"batteries behind the meter ({found.load_points} of {found.of} load points do), but the load "
            "model only knows loads above zero; give consumption without generation, or remove these load "
            "points from the list of services if it is public who they are"
            f"{otherwise}; nothing was spent"
        )
