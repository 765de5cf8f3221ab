"""Public facts of the days that meters were read on: dates, days off, and covariates such as the weather."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray

_LARGEST = 1e100  # whose squares can still be added up
_NEW_INFORMATION = 0.01  # of a covariate's variance that those before it must leave


@dataclass(frozen=True)
class DayFacts:
    """PUBLIC. The days of a history: dates, days off, and covariates such as the weather.

    Parameters
    ----------
    dates
        Of the days, ISO 8601.
    off
        Whether each is a day off.
    covariates
        Names with one value for every day; empty without any.
    """

    dates: tuple[str, ...]
    off: tuple[bool, ...]
    covariates: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.dates), len(self.off), *(len(values) for _, values in self.covariates)}
        if len(lengths) > 1 or not self.dates:
            raise PrivacyError(
                "facts of days need one date, one kind and one of each covariate for every day"
            )
        try:
            days = [dt.date.fromisoformat(date) for date in self.dates]
        except ValueError:
            days = []
        if not days or any(later <= earlier for earlier, later in pairwise(days)):
            raise PrivacyError(
                "the dates of a history must be ISO dates such as 2024-01-31, in order, each once"
            )
        names = [name for name, _ in self.covariates]
        numbers = np.array([values for _, values in self.covariates], dtype=np.float64)
        if len(set(names)) < len(names) or not np.all(np.abs(numbers) < _LARGEST):
            raise PrivacyError(
                f"covariates of days need a name each and finite values below {_LARGEST:g}; fill the gaps, "
                "or leave the covariate out"
            )

    @cached_property
    def _basis(self) -> list[tuple[int, float, FloatArray, float]]:
        """Covariates made orthogonal in their order: number, mean, shares of those before, size."""
        found: list[tuple[int, float, FloatArray, float]] = []
        columns: list[FloatArray] = []
        for index, (_, values) in enumerate(self.covariates):
            column = np.array(values)
            mean = float(column.mean())
            column = column - mean
            before = np.array([float(np.mean(column * other)) for other in columns])
            whole = float(np.mean(column * column))
            for share, other in zip(before.tolist(), columns, strict=True):
                column = column - share * other
            size = float(np.sqrt(np.mean(column * column)))
            if size * size > _NEW_INFORMATION * max(whole, 1e-12):
                found.append((index, mean, before, size))
                columns.append(column / size)
        return found

    @cached_property
    def orthonormal(self) -> FloatArray:
        """(day, covariate) with mean zero, mean square one and no correlation; repetitions are left out."""
        return self.orthonormal_at({name: np.array(v) for name, v in self.covariates}, len(self.dates))

    def orthonormal_at(self, values: Mapping[str, FloatArray], n_days: int) -> FloatArray:
        """The same combinations of values on other days; each is cut to what the history has seen, and half
        as much again."""
        columns: list[FloatArray] = []
        for index, mean, before, size in self._basis:
            name, seen = self.covariates[index]
            if name not in values:
                raise PrivacyError(
                    f"the load model follows '{name}', which is not given for the days to be drawn"
                )
            low, high = min(seen), max(seen)
            reach = (high - low) / 2
            column = np.clip(np.asarray(values[name], dtype=np.float64), low - reach, high + reach) - mean
            for share, other in zip(before.tolist(), columns, strict=True):
                column = column - share * other
            columns.append(column / size)
        return np.column_stack(columns) if columns else np.empty((n_days, 0))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> DayFacts:
        """From plain values."""
        return cls(
            tuple(str(date) for date in fields["dates"]),
            tuple(bool(off) for off in fields["off"]),
            tuple(
                (str(name), tuple(float(value) for value in values)) for name, values in fields["covariates"]
            ),
        )
