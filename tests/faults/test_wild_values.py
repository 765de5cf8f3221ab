"""Values that no customer draws do not fool the unit check: many are refused, few are counted and cut."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules, one_service_each
from dp_powerflow.loads.report import IngestResult, Quantity, RawHistory, check_history
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import FloatArray

CUSTOMERS, DAYS, STEPS = 30, 14, 24
KEEP = IngestRules(on_suspect_unit="keep", on_export="floor")


def readings() -> FloatArray:
    found: FloatArray = np.random.default_rng(4).gamma(2.0, 0.3, (CUSTOMERS, DAYS, STEPS)) + 0.05
    return found


def check(values: FloatArray, rules: IngestRules | None = None) -> IngestResult:
    names = tuple(f"secret{k}" for k in range(CUSTOMERS))
    days = tuple(dt.date(2024, 1, 1) + dt.timedelta(days=k) for k in range(DAYS))
    quantity = Quantity("active", values.copy(), ReadingCounts(accepted=values.size))
    none = np.empty(0, dtype=np.int64)
    raw = RawHistory((quantity,), names, one_service_each(names), days, 60, none)
    return check_history(raw, rules or IngestRules(on_export="floor"))


def cancelling(size: float) -> Callable[[FloatArray], None]:
    """As many huge values of either sign on every day: the mean of a day tells nothing."""

    def change(values: FloatArray) -> None:
        values[:, :, 0:4], values[:, :, 4:8] = size, -size

    return change


def extremes(values: FloatArray) -> None:
    values[:, :, 3], values[:, :, 4] = 2.0**63 - 1, -(2.0**63)


def some_customers(values: FloatArray) -> None:
    values[:3, :, 5], values[:3, :, 6] = 1e300, -1e300


WILD: dict[str, Callable[[FloatArray], None]] = {
    "cancelling 1e300": cancelling(1e300),
    "cancelling 1e308": cancelling(1.7e308),
    "cancelling 1e18": cancelling(1e18),
    "cancelling 1e6": cancelling(1e6),
    "int64": extremes,
    "three customers": some_customers,
    "far below": lambda values: values.__setitem__((slice(None), slice(None), 2), -1e18),
}


@pytest.mark.parametrize("kind", WILD)
def test_many_wild_readings_are_refused(kind: str) -> None:
    values = 1000.0 * readings()  # and all of it in watts, which the unit check must not overlook
    WILD[kind](values)
    with pytest.raises(LoadDataError, match=r"readings are 1000 times or more what") as refused:
        check(values)
    assert "secret" not in str(refused.value)
    assert "e+" not in str(refused.value)


def test_a_wrong_unit_behind_few_wild_readings_is_still_seen() -> None:
    """One huge value of either sign on most days, in so few customers that they are not many."""
    values = 1000.0 * readings()
    values[0, :5, 0] = -1e12
    with pytest.raises(LoadDataError, match="as if the unit were off by a factor of"):
        check(values)


def test_few_wild_readings_are_counted_and_change_no_other_figure() -> None:
    values = readings()
    plain = check(values)
    values[2, 3, 4], values[5, 6, 7] = 1e300, -1e18
    found = check(values)
    assert found.report.units.wild == 2
    assert plain.report.units.wild == 0
    assert any("2 readings beyond what any customer draws" in line for line in found.report.summary())
    assert found.report.units.above == plain.report.units.above == 0
    assert found.history.load_kw.max() == 1e300  # the bounds of the model cut it, as for every record


@pytest.mark.filterwarnings("error")
def test_whoever_keeps_them_has_them_counted() -> None:
    values = readings()
    cancelling(1e18)(values)
    assert check(values, KEEP).report.units.wild == 8 * CUSTOMERS * DAYS
