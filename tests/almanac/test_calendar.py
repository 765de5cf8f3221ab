"""Days, days off, and the file of holidays."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.almanac.calendar import Calendar, read_holidays
from dp_powerflow.errors import ConfigError

CHRISTMAS = dt.date(2024, 12, 25)  # a Wednesday


def test_days_off_are_weekends_and_holidays() -> None:
    week = Calendar.starting(dt.date(2024, 12, 23), 7, [CHRISTMAS])
    assert week.days[0] == dt.date(2024, 12, 23)
    assert week.days[-1] == dt.date(2024, 12, 29)
    assert week.off.tolist() == [False, False, True, False, False, True, True]
    assert week.holidays_within == (CHRISTMAS,)
    assert week.dates.dtype == np.dtype("datetime64[D]")
    assert str(week.dates[2]) == "2024-12-25"


def test_a_history_may_have_holes_and_no_day_twice() -> None:
    day = dt.date(2024, 2, 28)
    assert Calendar.starting(day, 3).days[2] == dt.date(2024, 3, 1)
    assert Calendar.starting(day, 3).is_consecutive
    assert not Calendar((day, dt.date(2024, 3, 1))).is_consecutive
    for days in ((day, day), (dt.date(2024, 3, 1), day), ()):
        with pytest.raises(ConfigError, match="calendar"):
            Calendar(days)


def test_days_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(ConfigError, match="year 9999"):
        Calendar.starting(dt.date(9999, 12, 31), 2)
    assert Calendar.starting(dt.date(9999, 12, 31), 1).n_days == 1


def test_holidays_are_read_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "holidays.txt"
    file.write_text("# public holidays\n2024-12-25\n\n 2024-12-26  # second day\n")
    assert read_holidays(file) == {CHRISTMAS, dt.date(2024, 12, 26)}
    file.write_text("2024-12-25\n26.12.2024\n")
    with pytest.raises(ConfigError, match=r"line 2 of the holidays .* is '26.12.2024', which is not a date"):
        read_holidays(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="text file"):
        read_holidays(file)
