"""Days, days off and holidays; daily weather from files of readings, and files that are no weather."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.almanac.calendar import Calendar, WeatherFormat, read_holidays
from dp_powerflow.almanac.weather import FEATURES, Weather
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


MONDAY = dt.date(2024, 1, 1)
BERLIN = "Europe/Berlin"


def days(count: int, first: dt.date = MONDAY) -> list[dt.date]:
    return [first + dt.timedelta(days=k) for k in range(count)]


def csv(path: Path, rows: Iterable[tuple[object, ...]], header: str = "time,temperature") -> Path:
    file = path / "weather.csv"
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return file


def hours(count: int, first: dt.date = MONDAY, minutes: int = 60) -> list[str]:
    start = dt.datetime.combine(first, dt.time())
    return [(start + dt.timedelta(minutes=minutes * k)).isoformat() for k in range(count)]


def covers(weather: Weather, wanted: list[dt.date]) -> bool:
    return set(wanted) <= set(weather.days)


def test_hourly_readings_become_daily_covariates(tmp_path: Path) -> None:
    temperature = [10.0] * 12 + [20.0] * 12 + [26.0] * 24
    irradiance = [-2.0] * 12 + [400.0] * 12 + [0.0] * 24
    rows = zip(hours(48), temperature, irradiance, strict=True)
    file = csv(tmp_path, rows, "time,temperature,ghi")
    weather = Weather.read(file, fmt=WeatherFormat(irradiance="ghi"))
    assert weather.names == FEATURES
    assert weather.features(days(2)).tolist() == [[15.0, 15.0, 2.5, 0.0, 200.0], [26.0, 15.0, 0.0, 4.0, 0.0]]


@pytest.mark.parametrize("minutes", [15, 60, 180])
def test_the_step_of_the_file_does_not_matter(tmp_path: Path, minutes: int) -> None:
    count = 2 * 24 * 60 // minutes
    weather = Weather.read(csv(tmp_path, ((stamp, 5.0) for stamp in hours(count, minutes=minutes))))
    assert weather.features(days(2)).tolist() == [[5.0, 5.0, 10.0, 0.0]] * 2


def test_a_row_a_day_is_weather_too(tmp_path: Path) -> None:
    file = csv(tmp_path, ((day, k) for k, day in enumerate(days(3))))
    assert Weather.read(file, BERLIN).features(days(3))[:, :2].tolist() == [[0, 0], [1, 0], [2, 1]]
    table = {"time": pa.array(days(3), pa.date32()), "temperature": pa.array([0, 1, 2])}
    pq.write_table(pa.table(table), tmp_path / "weather.parquet")
    assert Weather.read(tmp_path / "weather.parquet").features(days(3))[:, 0].tolist() == [0, 1, 2]


def test_stamps_with_an_offset_are_put_on_local_days(tmp_path: Path) -> None:
    start = dt.datetime(2023, 12, 31, 23, tzinfo=dt.UTC)  # midnight in Berlin
    stamps = [start + dt.timedelta(hours=k) for k in range(48)]
    temperature = [1.0] * 24 + [2.0] * 24
    table = {"time": pa.array(stamps, pa.timestamp("s", "UTC")), "temperature": pa.array(temperature)}
    pq.write_table(pa.table(table), tmp_path / "weather.parquet")
    from_parquet = Weather.read(tmp_path / "weather.parquet", BERLIN)
    table["time"] = table["time"].cast(pa.timestamp("ns", "America/New_York"))
    pq.write_table(pa.table(table), tmp_path / "weather.parquet")
    elsewhere = Weather.read(tmp_path / "weather.parquet", BERLIN)
    rows = zip((stamp.isoformat() for stamp in stamps), temperature, strict=True)
    from_csv = Weather.read(csv(tmp_path, rows), BERLIN)
    naive = zip((stamp.replace(tzinfo=None) for stamp in stamps), temperature, strict=True)
    declared = Weather.read(csv(tmp_path, naive), BERLIN, WeatherFormat(time_zone="UTC"))
    for weather in (from_parquet, elsewhere, from_csv, declared):
        assert weather.days == tuple(days(2))
        assert weather.values[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("change", "length", "minutes"),
    [(dt.date(2024, 3, 31), 23, 60), (dt.date(2024, 10, 27), 25, 60), (dt.date(2024, 10, 27), 25, 30)],
)
def test_days_of_clock_changes_have_their_own_length(
    tmp_path: Path, change: dt.date, length: int, minutes: int
) -> None:
    start = dt.datetime.combine(change, dt.time(), ZoneInfo(BERLIN)).astimezone(dt.UTC)
    moments = [start + dt.timedelta(minutes=minutes * k) for k in range((length + 24) * 60 // minutes)]
    clock = [moment.astimezone(ZoneInfo(BERLIN)).replace(tzinfo=None) for moment in moments]
    rows = [(stamp, 1.0 if stamp.date() == change else 3.0) for stamp in clock]
    weather = Weather.read(csv(tmp_path, rows), BERLIN)
    assert weather.features(days(2, change))[:, 0].tolist() == [1.0, 3.0]


def test_a_gap_is_refused_with_its_date(tmp_path: Path) -> None:
    rows = [(stamp, 5.0) for stamp in hours(5 * 24)]
    few = [row for k, row in enumerate(rows) if not 24 <= k < 24 + 3]  # 21 of 24 readings
    weather = Weather.read(csv(tmp_path, few))
    assert not covers(weather, days(5))
    with pytest.raises(ConfigError, match="lacks 2024-01-02"):
        weather.features(days(5))
    assert covers(weather, days(2, dt.date(2024, 1, 4)))
    # the day after the gap has no day before
    with pytest.raises(ConfigError, match="lacks 2024-01-03"):
        weather.features([dt.date(2024, 1, 3)])
    enough = [row for k, row in enumerate(rows) if not 24 <= k < 24 + 2]
    assert covers(Weather.read(csv(tmp_path, enough)), days(5))
    empty = [(stamp, "" if 24 <= k < 24 + 3 else value) for k, (stamp, value) in enumerate(rows)]
    assert not covers(Weather.read(csv(tmp_path, empty)), days(5))
    with pytest.raises(ConfigError, match="one of the days of the release"):
        weather.require(days(6), "days of the release")


def test_a_gap_of_irradiance_is_a_gap(tmp_path: Path) -> None:
    rows = [(stamp, 5.0, "NaN" if 24 <= k < 30 else 100.0) for k, stamp in enumerate(hours(72))]
    file = csv(tmp_path, rows, "time,temperature,ghi")
    assert covers(Weather.read(file), days(3))
    assert not covers(Weather.read(file, fmt=WeatherFormat(irradiance="ghi")), days(3))


WRONG: dict[str, tuple[list[tuple[object, ...]], str]] = {
    "fahrenheit": ([(s, 68.0 + k % 24) for k, s in enumerate(hours(48))], "as if in °F, kelvin or tenths"),
    "kelvin": ([(s, 280.0) for s in hours(48)], "give them in °C"),
    "tenths": ([(s, 215.0 - 5 * k) for k, s in enumerate(hours(48))], "give them in °C"),
    "huge": ([(s, 1.7e308) for s in hours(48)], "give them in °C"),
    "twice": ([(s, 5.0) for s in sorted(hours(48) + hours(1))], "2024-01-01 00:00 .* is there twice"),
    "unsorted": ([(s, 5.0) for s in hours(48)[::-1]], "not in order of time; sort the file"),
    "no stamps": ([("31.1.2024 12:00", 5.0)] * 3, "31.1.2024 12:00"),
    "some offsets": ([("2024-01-01T00:00Z", 5.0), ("2024-01-01T01:00", 5.0)], "only some stamps"),
    "words": ([(s, "warm") for s in hours(48)], "holds string, not numbers"),
    "empty stamp": ([("", 5.0), *((s, 5.0) for s in hours(48))], "1 rows of .* have no 'time'"),
    "one row": ([(hours(1)[0], 5.0)], "fewer than two readings"),
    "no values": ([(s, "") for s in hours(48)], "holds null, not numbers"),
    "few readings": ([(s, 5.0) for s in hours(12)], "no day of the weather"),
    "ragged": ([(s, 5.0, 7.0) for s in hours(4)], "cannot be read"),
    "noon": ([(f"{day}T12:00", 5.0) for day in days(4)], "write the dates alone"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_weather_is_refused(tmp_path: Path, name: str) -> None:
    rows, sentence = WRONG[name]
    with pytest.raises(ConfigError, match=sentence):
        Weather.read(csv(tmp_path, rows))


def test_local_stamps_that_the_clock_never_showed_point_to_the_time_zone(tmp_path: Path) -> None:
    file = csv(tmp_path, ((stamp, 5.0) for stamp in hours(48, dt.date(2024, 3, 30))))
    with pytest.raises(ConfigError, match=r"2024-03-31 02:00, which the clock .* weather.time_zone"):
        Weather.read(file, BERLIN)
    assert covers(Weather.read(file, BERLIN, WeatherFormat(time_zone="UTC")), [dt.date(2024, 3, 30)])
    with pytest.raises(ConfigError, match="IANA"):
        Weather.read(file, "Berlin")


def test_wrong_columns_are_named_with_those_that_there_are(tmp_path: Path) -> None:
    file = csv(tmp_path, ((stamp, 5.0) for stamp in hours(48)), "date,temp")
    with pytest.raises(
        ConfigError,
        match=r"needs one column 'time', for one purpose, and has 'date', 'temp'; name its columns",
    ):
        Weather.read(file)
    with pytest.raises(ConfigError, match="one purpose"):
        Weather.read(file, fmt=WeatherFormat("date", "temp", "temp"))
    assert covers(Weather.read(file, fmt=WeatherFormat("date", "temp")), days(2))


@pytest.mark.parametrize(("top", "fine"), [(0.9, False), (900.0, True), (3.6e6, False), (0.0, True)])
def test_irradiance_is_in_watts(tmp_path: Path, top: float, fine: bool) -> None:
    file = csv(tmp_path, ((s, 5.0, top * (k % 2)) for k, s in enumerate(hours(48))), "time,temperature,ghi")
    if fine:
        assert covers(Weather.read(file, fmt=WeatherFormat(irradiance="ghi")), days(2))
        return
    with pytest.raises(ConfigError, match="no irradiance in W/m²"):
        Weather.read(file, fmt=WeatherFormat(irradiance="ghi"))


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as CSV or Parquet"):
        Weather.read(tmp_path / "none.csv")
    (tmp_path / "weather.xlsx").write_text("")
    with pytest.raises(ConfigError, match="cannot be read as CSV or Parquet"):
        Weather.read(tmp_path / "weather.xlsx")
    (tmp_path / "weather.parquet").write_text("time")
    with pytest.raises(ConfigError, match="cannot be read"):
        Weather.read(tmp_path / "weather.parquet")
    numbers = pa.table({"time": pa.array([1, 2]), "temperature": pa.array([5.0, 5.0])})
    pq.write_table(numbers, tmp_path / "weather.parquet")
    with pytest.raises(ConfigError, match="does not hold ISO 8601 stamps alone"):
        Weather.read(tmp_path / "weather.parquet")


def test_weather_is_checked_when_it_is_made() -> None:
    for names, values in (
        (("temperature",), np.zeros((1, 1))),
        (FEATURES, np.zeros((1, 4))),
        (FEATURES, np.full((1, 5), np.nan)),
    ):
        with pytest.raises(ConfigError, match="weather"):
            Weather((MONDAY,), names, values)
    with pytest.raises(ConfigError, match="strictly increasing"):
        Weather((MONDAY, MONDAY), FEATURES, np.zeros((2, 5)))
