"""PRIVATE. The meter data as records of the chosen unit; used by `model.fit` only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.options import Bounds, FitOptions
from dp_powerflow.model.reactive import FittedReactive
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

ONE_CLASS = "all"


def check_history(history: LoadHistory, options: FitOptions, unit: PrivacyUnit) -> None:
    """Refuse a history that lacks what the options ask for, or whose days are no records of their own."""
    if unit is PrivacyUnit.LOAD_POINT_DAY and history.days_mixed:
        raise LoadDataError(
            "gaps were filled from other days or load points rejected for them, so a day is not a record of "
            "its own; use the unit load-point, or give meter data without gaps"
        )
    if options.use_scale and history.scale_kw is None:
        raise LoadDataError("the fit divides by a public scale but the history has none; add scale_kw to it")
    if options.day_types is not None and len(options.day_types) != history.n_days:
        raise LoadDataError(
            f"{len(options.day_types)} day types are given for {history.n_days} days; give one per day"
        )
    if isinstance(options.reactive, FittedReactive) and history.load_kvar is None:
        raise LoadDataError("fitting reactive load needs kvar readings; declare power factors instead")


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """PRIVATE. The history as records of the chosen unit."""

    history: LoadHistory
    options: FitOptions
    unit: PrivacyUnit

    def keyed_hash(self, key: StreamKey) -> str:
        history = self.history
        public = repr((history.load_points, history.class_label, history.days)).encode()
        arrays = [history.load_kw, history.load_kvar, history.scale_kw]
        rows = (np.ascontiguousarray(row).tobytes() for array in arrays if array is not None for row in array)
        return key.keyed_hash(chain([public], rows))

    def labels(self) -> tuple[str, ...]:
        """Public class of every load point."""
        labels = self.history.class_label
        if all(label is None for label in labels):
            return (ONE_CLASS,) * len(labels)
        known = tuple(label for label in labels if label is not None)
        if len(known) < len(labels):
            raise LoadDataError(
                f"{len(labels) - len(known)} load points have no class label; label them all or none"
            )
        return known

    def day_types(self) -> dict[str | None, IntArray]:
        """Days (indices) of each public type."""
        if self.options.day_types is None:
            return {None: np.arange(self.history.n_days)}
        types = np.array(self.options.day_types)
        return {str(label): np.flatnonzero(types == label) for label in dict.fromkeys(types.tolist())}

    def log_load(self, points: IntArray, days: IntArray, bounds: Bounds) -> FloatArray:
        """Log loads (record, day, step) within the bounds."""
        return self._as_records(np.log(np.clip(self._kw(self.history.load_kw, points, days), *bounds)))

    def pairs(self, points: IntArray, days: IntArray) -> FloatArray:
        """p and q side by side (record, day, 2·step)."""
        assert self.history.load_kvar is not None  # see `check_history`
        both = [self._kw(array, points, days) for array in (self.history.load_kw, self.history.load_kvar)]
        return self._as_records(np.concatenate(both, axis=2))

    def _kw(self, array: FloatArray, points: IntArray, days: IntArray) -> FloatArray:
        chosen: FloatArray = array[np.ix_(points, days)]
        if self.options.use_scale and self.history.scale_kw is not None:
            chosen = chosen / self.history.scale_kw[points, None, None]
        return chosen

    def _as_records(self, values: FloatArray) -> FloatArray:
        if self.unit is PrivacyUnit.LOAD_POINT:
            return values
        return values.reshape(-1, 1, values.shape[2])

    def slots(self) -> IntArray:
        """Public day type (index) of every record, all load points and days; 0 if a record has many days."""
        if self.unit is PrivacyUnit.LOAD_POINT:
            return np.zeros(self.history.n_load_points, dtype=np.int64)
        of_day = np.empty(self.history.n_days, dtype=np.int64)
        for index, days in enumerate(self.day_types().values()):
            of_day[days] = index
        return np.tile(of_day, self.history.n_load_points)
