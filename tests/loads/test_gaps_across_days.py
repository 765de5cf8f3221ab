"""Whether a filled gap makes a day depend on other days."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from dp_powerflow.loads.declared import GapRule
from dp_powerflow.loads.report import fill_gaps

DAYS = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=k) for k in range(14))
STEPS = 24


@pytest.mark.parametrize(
    ("gap", "across"),
    [
        (slice(5 * STEPS + 3, 5 * STEPS + 4), 0),
        (slice(5 * STEPS, 5 * STEPS + 1), 1),
        (slice(5 * STEPS + 23, 5 * STEPS + 24), 1),
        (slice(5 * STEPS + 3, 5 * STEPS + 9), 6),
        (slice(0, 0), 0),
    ],
    ids=["within a day", "first step", "last step", "long gap", "no gap"],
)
def test_entries_filled_from_other_days_are_counted(gap: slice, across: int) -> None:
    values = np.random.default_rng(0).uniform(1.0, 2.0, (len(DAYS), STEPS))
    values.reshape(-1)[gap] = np.nan
    counts = fill_gaps(values, DAYS, np.zeros(0, dtype=np.int64), GapRule())
    assert counts.across_days == across
    assert not np.isnan(values).any()
