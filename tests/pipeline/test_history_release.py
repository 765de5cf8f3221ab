"""A release whose customers persist and whose days follow one another: from the config to the reader."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import ConfigError, LoadDataError, PrivacyError
from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.manifest.build import contradictions
from dp_powerflow.manifest.verify import SEED, manifest_content, open_release, verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import FitOptions
from dp_powerflow.pipeline.audit import audit_release
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, on_twins, write_feeders
from support.here import Here
from support.made import HISTORY, Released, history_config, write_weather
from support.manifest_releases import said
from support.small import small_config, tree_hash
from support.tampering import manifest_of

pytestmark = pytest.mark.slow

TWIN, FIRST = HISTORY["network"], HISTORY["release"]["first_day"]


@pytest.fixture(scope="module")
def released(history_release: Released) -> Path:
    return history_release.folder


@pytest.fixture(scope="module")
def continued(history_release: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests that add a release to its state."""
    folder = tmp_path_factory.mktemp("continued")
    return Path(shutil.copytree(history_release.folder, folder, dirs_exist_ok=True))


def spends(folder: Path) -> int:
    return len(Ledger.open(PrivateState.inspect(folder / "state"), create=False).spends())


# --------------------------------------------------------------------------------- what is released
def test_it_verifies_and_epsilon_is_recomputed_from_its_queries(released: Path) -> None:
    report = verify_release(released / "out")
    assert [check.name for check in report.checks if not check.ok] == [SEED]
    [privacy] = [check for check in report.checks if check.name == "load privacy"]
    assert "epsilon at most 10000 at delta 1e-5, recomputed" in privacy.sentence
    model = LoadModel.load(released / "out" / "model.json")
    assert model.is_history
    assert model.spent_epsilon == pytest.approx(1e4, rel=1e-3)
    audit = audit_release(released / "out", history_config(released), released / "state")
    assert [check.name for check in audit.checks if not check.ok] == [SEED]


def test_the_manifest_says_that_days_follow_one_another_and_what_of_the_meters_is_dated(
    released: Path,
) -> None:
    manifest = manifest_of(released / "out")
    assert "days follow one another" in said(manifest, "rows")
    after = said(manifest, "after_noise")
    assert "persist through all days" in after
    assert "weather moves the common factor" in after
    assert "independently" not in after
    unprotected = said(manifest, "unprotected")
    assert "28 days of the meters, from 2023-01-01 to 2023-01-28" in unprotected
    assert "cold days on their dates" in unprotected
    page = (released / "out" / "certificate.html").read_text()
    assert "from 2023-01-01 to 2023-01-28" in page
    assert "independent draws" not in page


def test_days_that_are_independent_say_so(tmp_path: Path) -> None:
    run_release(small_config(tmp_path, network=TWIN, release={"days": 2}), workers=1)
    manifest = manifest_of(tmp_path / "out")
    assert "days are independent draws" in said(manifest, "rows")
    assert "2023-01-06" not in said(manifest, "unprotected")  # the last day of the meters


def test_a_model_of_histories_contradicts_a_release_without_its_weather(released: Path) -> None:
    facts = open_release(released / "out", manifest_content(released / "out")).facts
    assert facts is not None
    assert contradictions(facts) == []
    assert facts.days is not None
    bare = type(facts.days)(facts.days.calendar)
    wrong = contradictions(type(facts)(**{**vars(facts), "days": bare}))
    assert any("fitted with weather that the released days do not have" in sentence for sentence in wrong)


# --------------------------------------------------------------------------------- what moves the draws
def loads_of(corpus: Corpus) -> float:
    return float(corpus.loads().real.sum())


def test_a_colder_release_has_more_load_from_the_same_model(released: Path, tmp_path: Path) -> None:
    energy = []
    for name, temperature in (("cold", -5.0), ("mild", 9.0)):
        folder = tmp_path / name
        write_weather(folder, released_c=temperature)
        run_release(history_config(folder), workers=1)
        assert (folder / "out" / "model.json").read_bytes() == (released / "out" / "model.json").read_bytes()
        energy.append(loads_of(open_corpus(folder / "out")))
    cold, mild = energy
    assert cold > 1.05 * mild


def test_two_processes_and_a_run_that_was_killed_end_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(folder: Path) -> Config:
        loads = {"days": 14, "load_points": 60}
        return small_config(folder, network=TWIN, loads=loads, release={"days": 300})

    whole, two, killed = (tmp_path / name for name in ("whole", "two", "killed"))
    for folder in (whole, two, killed):
        folder.mkdir()
    run_release(asked(whole), workers=1)
    assert LoadModel.load(whole / "out" / "model.json").is_history
    assert len(list((whole / "out" / "data").iterdir())) > 1
    run_release(asked(two), workers=2)
    assert tree_hash(two / "out") == tree_hash(whole / "out")
    write = CorpusWriter.write_files

    def dying(writer: Any, files: dict[str, memoryview]) -> dict[str, str]:
        if "data/part-00001.parquet" in files:
            raise KeyboardInterrupt
        return write(writer, files)

    monkeypatch.setattr(CorpusWriter, "write_files", dying)
    with pytest.raises(KeyboardInterrupt):
        run_release(asked(killed), workers=1)
    monkeypatch.undo()
    run_release(asked(killed), workers=1)
    assert tree_hash(killed / "out") == tree_hash(whole / "out")
    assert spends(killed) == 2


# --------------------------------------------------------------------------------- reuse
def again(folder: Path, **sections: dict[str, Any]) -> Config:
    """Another release of the same meters that takes the model of the first."""
    release = {"id": "again", "output": "again", **sections.pop("release", {})}
    model = {"reuse": "small", **sections.pop("model", {})}
    return history_config(folder, release=release, model=model, **sections)


def test_a_kept_model_serves_another_release_at_no_cost(continued: Path) -> None:
    before = spends(continued)
    days = {"days": 3, "first_day": FIRST + dt.timedelta(days=2)}
    run_release(again(continued, release=days), workers=1)
    assert spends(continued) == before
    model = (continued / "again" / "model.json").read_bytes()
    assert model == (continued / "out" / "model.json").read_bytes()
    assert [c.name for c in verify_release(continued / "again").checks if not c.ok] == [SEED]


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


def test_the_true_network_does_not_take_a_model_of_histories(continued: Path) -> None:
    config = small_config(
        continued,
        loads=HISTORY["loads"],
        model={"epsilon": 1e4, "reuse": "small"},
        release={"id": "true", "days": 2, "output": "true"},
    )
    with pytest.raises(PrivacyError, match="follow one another, which mode 'true-network' cannot certify"):
        plan(config)


# --------------------------------------------------------------------------------- fleets
def test_one_model_of_histories_serves_a_fleet(tmp_path: Path) -> None:
    write_feeders(tmp_path, repaired=True)
    config = on_twins(tmp_path, loads={"days": 14}, network={"controls": "frozen"})
    planned = plan_fleet(config, engine=Here())
    assert planned.cost.estimator is not None
    assert planned.cost.estimator.name == "history"
    result = run_fleet(config, engine=Here())
    assert not result.failed
    assert len(result.outcomes) == len(KEYS)
    models = {path.read_bytes() for path in (tmp_path / "out").glob("feeder=*/model.json")}
    [content] = models
    assert LoadModel.from_json(content.decode()).is_history
    assert verify_fleet(tmp_path / "out", tmp_path / "state").verdict == "demonstration"


# --------------------------------------------------------------------------------- from Python
def fitted() -> LoadModel:
    history = dpf.simulate_meters(60, days=14, step_minutes=60)
    options = FitOptions(bounds=(1e-3, 3.0), use_scale=True, estimator=History())
    key = dpf.StreamKey.from_insecure_seed(1)
    with pytest.warns(UserWarning, match="too few"):
        return dpf.fit(history, dpf.Budget(2.0, 1e-6, unit=PrivacyUnit.LOAD_POINT), key=key, options=options)


def test_sample_draws_one_customer_per_node_or_load_through_all_days() -> None:
    model, feeder, key = fitted(), dpf.open_feeder("ieee13"), dpf.StreamKey.from_insecure_seed(2)
    loads = dpf.sample(model, feeder, days=9, key=key, per="load")
    assert loads.shape == (9 * 24, len(feeder.loads))
    assert loads.real.min() >= 0.0
    nodes = dpf.sample(model, feeder, days=2, key=key)
    assert nodes.shape == (48, len(feeder.retained))
    assert np.count_nonzero(nodes.any(axis=0)) == len(feeder.loaded_nodes()[0])
    monday, saturday = (
        dpf.sample(model, feeder, days=2, key=key, first_day=dt.date(2024, 1, day)) for day in (1, 6)
    )
    assert np.abs(monday - saturday).max() > 0.0
    np.testing.assert_array_equal(
        dpf.sample(model, feeder, days=2, key=key, first_day=dt.date(2024, 1, 6)), saturday
    )


def test_sample_of_a_model_with_weather_needs_the_weather_of_its_days(released: Path) -> None:
    model, corpus = LoadModel.load(released / "out" / "model.json"), open_corpus(released / "out")
    feeder, key = dpf.open_feeder("ieee13"), dpf.StreamKey.from_insecure_seed(2)
    with pytest.raises(PrivacyError, match="follows 'temperature_c', which is not given"):
        dpf.sample(model, feeder, days=2, key=key, first_day=FIRST)
    drawn = dpf.sample(model, feeder, days=2, key=key, first_day=FIRST, weather=corpus.weather)
    assert drawn.shape == (48, len(feeder.retained))
    with pytest.raises(ConfigError, match="the weather lacks"):
        dpf.sample(model, feeder, days=9, key=key, first_day=FIRST, weather=corpus.weather)


def test_fit_refuses_load_points_that_feed_in() -> None:
    history = simulate_load_history(20, n_days=3, step_minutes=60, seed=1)
    noon = np.where(np.arange(24) // 4 == 3, 20.0, 0.0)
    history = replace(history, load_kw=history.load_kw - noon)
    key = dpf.StreamKey.from_insecure_seed(1)
    with pytest.raises(LoadDataError, match=r"load points feed in .* give consumption without generation"):
        dpf.fit(history, dpf.Budget(2.0, 1e-6, unit=PrivacyUnit.LOAD_POINT), key=key)


def test_the_owner_compares_no_more_days_than_the_release_has(released: Path) -> None:
    known = json.loads((released / "state" / "internal" / "small" / "owner.json").read_text())
    assert known["days compared"] == 4
