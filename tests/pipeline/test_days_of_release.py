"""Dates, days off and weather of a release: from the config to the reader, and what `verify` finds."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import DAYS_FILE
from dp_powerflow.corpus.tables import DayTable, encode_days
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, PrivacyError
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import ReleaseError, parse_manifest
from dp_powerflow.manifest.render import published_tables
from dp_powerflow.manifest.verify import SEED, verify_release
from dp_powerflow.pipeline.inputs import almanac_of
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.manifest_releases import LAYOUT, config, load_model, make_inputs, make_release, said, twin_config
from support.small import small_config
from support.tampering import failed, manifest_of

FOUND = {"voltages", "statement"}
TWIN: dict[str, Any] = {
    "mode": "twin-network",
    "epsilon": 8.0,
    "id": "t1",
    "change": 0.05,
    "controls": "frozen",
}
FIRST = dt.date(2024, 12, 24)  # a Tuesday
HOLIDAYS = ["2024-12-25", "2024-12-26", "2019-12-25"]


def weather_file(folder: Path, first: str = "2022-12-31", days: int = 800, shift: float = 0.0) -> Path:
    """A row a day, from before the simulated meters until after the release."""
    start = dt.date.fromisoformat(first)
    rows = [f"{start + dt.timedelta(days=k)},{k % 30 - 5 + shift},{k % 7 * 30}" for k in range(days)]
    path = folder / "weather.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["date,air,ghi", *rows]) + "\n")
    return path


def released_config(folder: Path, **sections: dict[str, Any]) -> Config:
    weather_file(folder)
    given: dict[str, dict[str, Any]] = {
        "network": TWIN,
        "release": {"days": 5, "first_day": FIRST},
        "calendar": {"holidays": HOLIDAYS},
        "weather": {"path": "weather.csv", "time": "date", "temperature": "air", "irradiance": "ghi"},
    }
    return small_config(folder, **(given | sections))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    run_release(released_config(folder), workers=1)
    return folder / "out"


@pytest.fixture
def copied(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "copy"))


# --------------------------------------------------------------------------------- what a reader gets
def test_a_corpus_has_dates_times_days_off_and_weather(released: Path) -> None:
    corpus = open_corpus(released)
    assert corpus.dates is not None
    assert corpus.dates.dtype == np.dtype("datetime64[D]")
    assert [str(day) for day in corpus.dates] == [f"2024-12-{day}" for day in range(24, 29)]
    assert corpus.calendar is not None
    assert corpus.calendar.off.tolist() == [False, True, True, False, True]
    assert sorted(map(str, corpus.calendar.holidays)) == ["2024-12-25", "2024-12-26"]
    times = corpus.times(days=[1])
    assert times is not None
    assert times.shape == (1, 24)
    assert str(times[0, 23]) == "2024-12-25T23:00"
    assert corpus.weather is not None
    assert corpus.weather.names == FEATURES
    row = (FIRST - dt.date(2022, 12, 31)).days
    mean, before = row % 30 - 5.0, (row - 1) % 30 - 5.0
    expected = [mean, before, max(15.0 - mean, 0.0), max(mean - 22.0, 0.0), row % 7 * 30.0]
    assert corpus.weather.features([FIRST]).tolist() == [expected]
    assert corpus.weather.days == corpus.calendar.days


def test_data_frames_have_the_time_of_every_row(released: Path) -> None:
    corpus = open_corpus(released)
    frame = corpus.to_pandas(days=[0, 3], nodes=[0, 1])
    rows = frame[(frame.day == 3) & (frame.node == 1)]
    assert [str(time) for time in rows.time[:2]] == ["2024-12-27 00:00:00", "2024-12-27 01:00:00"]
    assert rows.step.tolist() == list(range(24))
    array = corpus.to_xarray(days=[2])
    assert str(array.date.values[0])[:10] == "2024-12-26"


def test_the_manifest_states_the_calendar_and_not_the_dates_of_the_meters(released: Path) -> None:
    manifest = manifest_of(released)
    assert manifest["data"]["calendar"] == {
        "first_day": "2024-12-24",
        "holidays": ["2024-12-25", "2024-12-26"],
        "weather": list(FEATURES),
    }
    assert "which may tell where the feeder is" in said(manifest, "unprotected")
    everything = b"".join(
        path.read_bytes() for path in released.rglob("*") if path.suffix in (".json", ".html")
    )
    assert b"2023-01" not in everything  # the first day of the simulated meters
    assert b"2019-12-25" not in everything  # a holiday of no released day
    named = {
        table.name: [column.name for column in table.columns]
        for table in published_tables(parse_manifest(manifest))
    }
    assert named["days"] == ["day", "date", "holiday", "off", *FEATURES]
    croissant = json.loads((released / "croissant.json").read_text())
    (records,) = [item for item in croissant["recordSet"] if item["name"] == "days"]
    assert {field["dataType"] for field in records["field"]} == {
        *("sc:Integer", "sc:Date", "sc:Boolean", "sc:Float"),
    }
    assert "from 2024-12-24 on, 2 declared holidays" in (released / "certificate.html").read_text()


def test_without_calendar_and_weather_there_are_dates_of_a_public_rule(tmp_path: Path) -> None:
    made = make_release(tmp_path, twin_config(), load_model())
    corpus = open_corpus(made.path)
    assert corpus.dates is not None
    assert str(corpus.dates[0]) == "2023-01-01"
    assert corpus.weather is None
    assert manifest_of(made.path)["data"]["calendar"]["weather"] == []
    assert verify_release(made.path).verdict == "release"


def test_days_of_the_true_network_have_no_dates(tmp_path: Path) -> None:
    made = make_release(tmp_path, config(), load_model()).path
    corpus = open_corpus(made)
    assert (corpus.dates, corpus.times(), corpus.weather, corpus.calendar) == (None, None, None, None)
    assert "time" not in corpus.to_pandas(days=[0]).columns
    assert not failed(made)
    assert manifest_of(tmp_path / "release")["data"]["calendar"] is None


# ------------------------------------------------------------------------------------ what is refused
def test_weather_that_changed_under_a_release_is_refused(tmp_path: Path) -> None:
    run_release(released_config(tmp_path), workers=1)
    weather_file(tmp_path, shift=0.5)
    with pytest.raises(PrivacyError, match="another request or other data"):
        run_release(small_config(tmp_path, **_sections(tmp_path)), workers=1)


def _sections(folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of the release, without writing its weather again."""
    chosen = released_config(folder / "other")
    shown = {name: section.model_dump() for name, section in chosen if name in ("calendar", "weather")}
    shown["weather"]["path"] = "weather.csv"
    return {"network": TWIN, "release": {"days": 5, "first_day": FIRST}, **shown}


def test_the_days_of_the_meters_need_weather_too_and_plan_says_so(tmp_path: Path) -> None:
    chosen = released_config(tmp_path)
    weather_file(tmp_path, first="2023-01-03", days=790)  # the simulated meters start on 2023-01-01
    with pytest.raises(Exception, match="lacks 2023-01-01, one of the days of the meters"):
        plan(chosen)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


def test_declared_days_are_checked_before_a_meter_is_read(tmp_path: Path) -> None:
    services = tmp_path / "services.csv"
    services.write_text(
        "customer,load_point,class,scale_kw\n" + "".join(f"c{k},p{k},residential,2\n" for k in range(9))
    )
    loads = {"kind": "long", "path": "gone.csv", "services": "services.csv", "step_minutes": 60}
    chosen = released_config(
        tmp_path, loads=loads | {"first_day": dt.date(2020, 1, 1), "last_day": dt.date(2020, 1, 9)}
    )
    with pytest.raises(Exception, match=r"lacks 2020-01-01, one of the days of the meters \(9 missing\)"):
        plan(chosen)


# ---------------------------------------------------------------------------------- what verify finds
def test_a_release_with_weather_verifies(released: Path) -> None:
    report = verify_release(released)
    assert {check.name for check in report.failures} == {SEED}
    (sentence,) = [check.sentence for check in report.checks if check.name == "voltages"]
    assert "The days follow one another from 2024-12-24 on, with public weather" in sentence


def test_dates_of_the_true_network_are_found(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, config(), load_model())
    object.__setattr__(inputs, "days", DayTable(Calendar.starting(FIRST, LAYOUT.days)))
    with pytest.raises(ReleaseError, match="its mode draws days that have none"):
        make_statement(inputs)


def test_a_twin_without_dates_is_no_release(tmp_path: Path) -> None:
    inputs, _ = make_inputs(tmp_path, twin_config(), load_model())
    object.__setattr__(inputs, "days", None)
    with pytest.raises(ReleaseError, match="none are given"):
        make_statement(inputs)


# ------------------------------------------------------------------------------------------- the file
def test_the_file_of_days_is_a_function_of_its_content(tmp_path: Path) -> None:
    days = almanac_of(released_config(tmp_path)).released
    assert days is not None
    assert encode_days(LAYOUT, "r-1", days) == encode_days(LAYOUT, "r-1", days)
    with pytest.raises(CorpusError, match="the calendar 3"):
        encode_days(LAYOUT, "r-1", DayTable(Calendar.starting(FIRST, 3)))
    with pytest.raises(CorpusError, match="follow one another"):
        DayTable(Calendar((FIRST, FIRST + dt.timedelta(days=2))))
    with pytest.raises(CorpusError, match="that of its days"):
        DayTable(Calendar.starting(FIRST, 3), days.weather)


def test_the_file_of_days_belongs_to_its_corpus(tmp_path: Path) -> None:
    made = make_release(tmp_path, twin_config(), load_model())
    days = DayTable(Calendar.starting(FIRST, LAYOUT.days))
    (made.path / DAYS_FILE).write_bytes(encode_days(LAYOUT, "r-2", days))
    assert any(DAYS_FILE in problem for problem in validate_corpus(made.path).problems)
    writer = CorpusWriter(tmp_path / "other", LAYOUT, "r-1")
    with pytest.raises(CorpusError, match="outside data/"):
        writer.add_file(DAYS_FILE, b"")
