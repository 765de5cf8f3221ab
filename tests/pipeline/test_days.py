"""Dates, days off and weather of a release, and customers who persist: from the config to the reader."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.tables import DayTable, encode_days
from dp_powerflow.errors import ConfigError, CorpusError, LoadDataError, PrivacyError
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.manifest.build import contradictions
from dp_powerflow.manifest.verify import SEED, manifest_content, open_release, verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import FitOptions
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.inputs import almanac_of
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.ledger.book import Ledger
from support import manifest_releases as by_hand
from support.made import HISTORY, Released, history_config, write_weather
from support.small import small_config, tree_hash
from support.tampering import failed, manifest_of

TWIN: dict[str, Any] = HISTORY["network"]
START: dt.date = HISTORY["release"]["first_day"]


def dated(folder: Path, **sections: dict[str, Any]) -> Config:
    """Independent days with holidays and weather."""
    if not (folder / "weather.csv").exists():
        by_hand.weather_file(folder)
    given: dict[str, dict[str, Any]] = {
        "network": TWIN,
        "release": {"days": 5, "first_day": by_hand.FIRST},
        "calendar": {"holidays": by_hand.HOLIDAYS},
        "weather": by_hand.WEATHER,
    }
    return small_config(folder, **(given | sections))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    run_release(dated(folder), workers=1)
    return folder / "out"


# --- what a reader gets -----------------------------------------------------------------------------------
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
    row = (by_hand.FIRST - dt.date(2022, 12, 31)).days
    mean, before = row % 30 - 5.0, (row - 1) % 30 - 5.0
    expected = [mean, before, max(15.0 - mean, 0.0), max(mean - 22.0, 0.0), row % 7 * 30.0]
    assert corpus.weather.features([by_hand.FIRST]).tolist() == [expected]
    assert corpus.weather.days == corpus.calendar.days
    frame = corpus.to_pandas(days=[0, 3], nodes=[0, 1])
    rows = frame[(frame.day == 3) & (frame.node == 1)]
    assert [str(time) for time in rows.time[:2]] == ["2024-12-27 00:00:00", "2024-12-27 01:00:00"]
    assert rows.step.tolist() == list(range(24))
    assert str(corpus.to_xarray(days=[2]).date.values[0])[:10] == "2024-12-26"


def test_the_manifest_states_the_calendar_and_not_the_dates_of_the_meters(released: Path) -> None:
    manifest, report = manifest_of(released), verify_release(released)
    stated = {"first_day": "2024-12-24", "holidays": ["2024-12-25", "2024-12-26"], "weather": list(FEATURES)}
    assert manifest["data"]["calendar"] == stated
    assert "days are independent draws" in by_hand.said(manifest, "rows")
    assert "which may tell where the feeder is" in by_hand.said(manifest, "unprotected")
    everything = b"".join(
        path.read_bytes() for path in released.rglob("*") if path.suffix in (".json", ".html")
    )
    assert b"2023-01" not in everything  # the first day of the simulated meters
    assert b"2019-12-25" not in everything  # a holiday of no released day
    assert "from 2024-12-24 on, 2 declared holidays" in (released / "certificate.html").read_text()
    assert {check.name for check in report.failures} == {SEED}
    (sentence,) = [check.sentence for check in report.checks if check.name == "voltages"]
    assert "The days follow one another from 2024-12-24 on, with public weather" in sentence


def test_without_a_calendar_a_twin_has_dates_of_a_public_rule_and_the_true_network_none(
    tmp_path: Path,
) -> None:
    made = by_hand.make_release(tmp_path / "twin", by_hand.twin_config(), by_hand.load_model())
    corpus = open_corpus(made.path)
    assert corpus.dates is not None
    assert str(corpus.dates[0]) == "2023-01-01"
    assert corpus.weather is None
    assert manifest_of(made.path)["data"]["calendar"]["weather"] == []
    true = by_hand.make_release(tmp_path / "true", by_hand.config(), by_hand.load_model()).path
    corpus = open_corpus(true)
    assert (corpus.dates, corpus.times(), corpus.weather, corpus.calendar) == (None, None, None, None)
    assert "time" not in corpus.to_pandas(days=[0]).columns
    assert not failed(true)
    assert manifest_of(true)["data"]["calendar"] is None


# --- what is refused --------------------------------------------------------------------------------------
def test_weather_that_changed_under_a_release_is_refused(released: Path, tmp_path: Path) -> None:
    shutil.copytree(released.parent, tmp_path, dirs_exist_ok=True)
    by_hand.weather_file(tmp_path, shift=0.5)
    with pytest.raises(PrivacyError, match="another request or other data"):
        run_release(dated(tmp_path), workers=1)


def test_the_days_of_the_meters_need_weather_too_before_a_meter_is_read(tmp_path: Path) -> None:
    by_hand.weather_file(tmp_path, first="2023-01-03", days=790)  # the simulated meters start on 2023-01-01
    with pytest.raises(ConfigError, match="lacks 2023-01-01, one of the days of the meters"):
        plan(dated(tmp_path))
    rows = "".join(f"c{k},p{k},residential,2\n" for k in range(9))
    (tmp_path / "services.csv").write_text("customer,load_point,class,scale_kw\n" + rows)
    loads = {"kind": "long", "path": "gone.csv", "services": "services.csv", "step_minutes": 60}
    loads |= {"first_day": dt.date(2020, 1, 1), "last_day": dt.date(2020, 1, 9)}
    with pytest.raises(ConfigError, match=r"lacks 2020-01-01, one of the days of the meters \(9 missing\)"):
        plan(dated(tmp_path, loads=loads))
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


def test_the_file_of_days_is_a_function_of_its_content_and_of_whole_days(tmp_path: Path) -> None:
    days = almanac_of(dated(tmp_path)).released
    assert days is not None
    assert encode_days(by_hand.LAYOUT, "r-1", days) == encode_days(by_hand.LAYOUT, "r-1", days)
    with pytest.raises(CorpusError, match="the calendar 3"):
        encode_days(by_hand.LAYOUT, "r-1", DayTable(Calendar.starting(by_hand.FIRST, 3)))
    with pytest.raises(CorpusError, match="follow one another"):
        DayTable(Calendar((by_hand.FIRST, by_hand.FIRST + dt.timedelta(days=2))))
    with pytest.raises(CorpusError, match="covers exactly its days"):
        DayTable(Calendar.starting(by_hand.FIRST, 3), days.weather)


# --- customers who persist --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def continued(history_release: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests that add a release to its state."""
    folder = tmp_path_factory.mktemp("continued")
    return Path(shutil.copytree(history_release.folder, folder, dirs_exist_ok=True))


def spends(folder: Path) -> int:
    return len(Ledger.inspect(folder / "state").spends())


@pytest.mark.slow
def test_epsilon_is_recomputed_and_what_of_the_meters_is_dated_is_said(history_release: Released) -> None:
    path = history_release.path
    report = verify_release(path)
    assert [check.name for check in report.failures] == [SEED]
    [privacy] = [check for check in report.checks if check.name == "load privacy"]
    assert "epsilon at most 10000 at delta 1e-5, recomputed" in privacy.sentence
    model = LoadModel.load(path / "model.json")
    assert model.is_history
    assert model.spent_epsilon == pytest.approx(1e4, rel=1e-3)
    audit = verify_private(path, history_release.state, history_release.config)
    assert [check.name for check in audit.failures] == [SEED]
    manifest = manifest_of(path)
    assert "days follow one another" in by_hand.said(manifest, "rows")
    after, unprotected = by_hand.said(manifest, "after_noise"), by_hand.said(manifest, "unprotected")
    assert "persist through all days" in after
    assert "weather moves the common factor" in after
    assert "independently" not in after
    assert "28 days of the meters, from 2023-01-01 to 2023-01-28" in unprotected
    assert "cold days on their dates" in unprotected
    page = (path / "certificate.html").read_text()
    assert "from 2023-01-01 to 2023-01-28" in page
    assert "independent draws" not in page


@pytest.mark.slow
def test_a_model_of_histories_contradicts_a_release_without_its_weather(history_release: Released) -> None:
    facts = open_release(history_release.path, manifest_content(history_release.path)).facts
    assert facts is not None
    assert contradictions(facts) == []
    assert facts.days is not None
    wrong = contradictions(replace(facts, days=DayTable(facts.days.calendar)))
    assert any("fitted with weather that the released days do not have" in sentence for sentence in wrong)


@pytest.mark.slow
def test_a_colder_release_has_more_load_from_the_same_model(
    history_release: Released, tmp_path: Path
) -> None:
    energy = []
    for name, temperature in (("cold", -5.0), ("mild", 9.0)):
        folder = tmp_path / name
        write_weather(folder, released_c=temperature)
        run_release(history_config(folder), workers=1)
        model = (folder / "out" / "model.json").read_bytes()
        assert model == (history_release.path / "model.json").read_bytes()
        energy.append(float(open_corpus(folder / "out").loads().real.sum()))
    assert energy[0] > 1.05 * energy[1]


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(tmp_path: Path) -> None:
    def made(name: str, workers: int) -> Path:
        (tmp_path / name).mkdir()
        loads, release = {"days": 14, "load_points": 60}, {"days": 300}
        config = small_config(tmp_path / name, network=TWIN, loads=loads, release=release)
        return Path(str(run_release(config, workers=workers).path))

    whole = made("whole", 1)
    assert LoadModel.load(whole / "model.json").is_history
    assert len(list((whole / "data").iterdir())) > 1
    assert tree_hash(made("two", 2)) == tree_hash(whole)


def again(folder: Path, **sections: dict[str, Any]) -> Config:
    """Another release of the same meters that takes the model of the first."""
    release = {"id": "again", "output": "again", **sections.pop("release", {})}
    model = {"reuse": "small", **sections.pop("model", {})}
    return history_config(folder, release=release, model=model, **sections)


@pytest.mark.slow
def test_a_kept_model_serves_another_release_at_no_cost(continued: Path) -> None:
    before = spends(continued)
    run_release(again(continued, release={"days": 3, "first_day": START + dt.timedelta(days=2)}), workers=1)
    assert spends(continued) == before
    model = (continued / "again" / "model.json").read_bytes()
    assert model == (continued / "out" / "model.json").read_bytes()
    assert failed(continued / "again") == {SEED}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"estimator": "structured"}}, "other values of model.estimator"),
        ({"calendar": {"holidays": ["2023-01-03"]}}, "other values of calendar.holidays"),
        ({"weather": {"path": "other.csv"}}, r"other values of \[weather\], of the days of the meters"),
    ],
)
def test_a_model_that_was_fitted_to_other_days_is_not_reused(
    continued: Path, sections: dict[str, Any], says: str
) -> None:
    write_weather(continued / "elsewhere", metered_shift=1.0)
    (continued / "elsewhere" / "weather.csv").rename(continued / "other.csv")
    with pytest.raises(PrivacyError, match=says):
        plan(again(continued, release={"id": "third", "output": "third"}, **sections))


@pytest.mark.slow
def test_the_true_network_does_not_take_a_model_of_histories(continued: Path) -> None:
    release = {"id": "true", "days": 2, "output": "true"}
    model = {"epsilon": 1e4, "reuse": "small"}
    asked = small_config(continued, loads=HISTORY["loads"], model=model, release=release)
    with pytest.raises(PrivacyError, match="follow one another, which mode 'true-network' cannot certify"):
        plan(asked)


# --- from Python ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_sample_draws_one_customer_per_node_or_load_through_all_days() -> None:
    history = dpf.simulate_meters(60, days=14, step_minutes=60)
    options = FitOptions(bounds=(1e-3, 3.0), use_scale=True, estimator=History())
    budget = dpf.Budget(2.0, 1e-6, unit=PrivacyUnit.LOAD_POINT)
    with pytest.warns(UserWarning, match="too few"):
        model = dpf.fit(history, budget, key=dpf.StreamKey.from_insecure_seed(1), options=options)
    feeder, key = dpf.open_feeder("ieee13"), dpf.StreamKey.from_insecure_seed(2)
    loads = dpf.sample(model, feeder, days=9, key=key, per="load")
    assert loads.shape == (9 * 24, len(feeder.loads))
    assert loads.real.min() >= 0.0
    nodes = dpf.sample(model, feeder, days=2, key=key)
    assert nodes.shape == (48, len(feeder.retained))
    assert np.count_nonzero(nodes.any(axis=0)) == len(feeder.loaded_nodes()[0])
    monday, saturday, same = (
        dpf.sample(model, feeder, days=2, key=key, first_day=dt.date(2024, 1, day)) for day in (1, 6, 6)
    )
    assert np.abs(monday - saturday).max() > 0.0
    np.testing.assert_array_equal(same, saturday)


@pytest.mark.slow
def test_sample_of_a_model_with_weather_needs_the_weather_of_its_days(history_release: Released) -> None:
    model, corpus = LoadModel.load(history_release.path / "model.json"), open_corpus(history_release.path)
    feeder, key = dpf.open_feeder("ieee13"), dpf.StreamKey.from_insecure_seed(2)
    with pytest.raises(PrivacyError, match="follows 'temperature_c', which is not given"):
        dpf.sample(model, feeder, days=2, key=key, first_day=START)
    drawn = dpf.sample(model, feeder, days=2, key=key, first_day=START, weather=corpus.weather)
    assert drawn.shape == (48, len(feeder.retained))
    with pytest.raises(ConfigError, match="the weather lacks"):
        dpf.sample(model, feeder, days=9, key=key, first_day=START, weather=corpus.weather)


def test_fit_refuses_load_points_that_feed_in() -> None:
    history = simulate_load_history(20, n_days=3, step_minutes=60, seed=1)
    noon = np.where(np.arange(24) // 4 == 3, 20.0, 0.0)
    history = replace(history, load_kw=history.load_kw - noon)
    key = dpf.StreamKey.from_insecure_seed(1)
    with pytest.raises(LoadDataError, match=r"load points feed in .* give consumption without generation"):
        dpf.fit(history, dpf.Budget(2.0, 1e-6, unit=PrivacyUnit.LOAD_POINT), key=key)
