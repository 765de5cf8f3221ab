"""Which load model a config gets, and what `plan` says of it before anything is spent."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.cli.release import render_plan
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, LoadDataError
from dp_powerflow.pipeline.inputs import chosen_estimator, refuse_short_history
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import said
from support.own_meters import OwnMeters, good_readings
from support.small import small_config

OFF = ["mean load of a customer", "energy of all customers", "99th percentile of the loads"]
BY_NOISE = ["shape of the mean day", "shared factor of a day"]
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}


def twin(folder: Path, days: int = 14, **sections: dict[str, Any]) -> Config:
    given = {"network": TWIN, "loads": {"days": days}, "release": {"days": 2}}
    return small_config(folder, **(given | sections))


def shapes(folder: Path, **sections: dict[str, Any]) -> Config:
    loads = {"kind": "opendss-shapes", "path": "shapes", "first_day": dt.date(2024, 1, 1)}
    return small_config(folder, network=TWIN, loads=loads, **sections)


# --------------------------------------------------------------------------------- which one, and why
@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"loads": {"days": 13}}, "the meters have 13 days and steps of 60 min, and 'history' needs 14 days"),
        ({"loads": {"days": 14, "step_minutes": 240}}, "14 days and steps of 240 min"),
        ({"model": {"unit": "load-point-day"}}, "model.unit is 'load-point-day'"),
        ({"model": {"components": 2}}, "model.components is 2"),
    ],
)
def test_without_two_weeks_of_whole_histories_days_are_independent(
    tmp_path: Path, sections: dict[str, Any], why: str
) -> None:
    found = chosen_estimator(twin(tmp_path, **sections))
    assert found.name == "structured"
    assert why in found.why


def test_a_twin_with_two_weeks_of_meters_gets_histories(tmp_path: Path) -> None:
    assert chosen_estimator(twin(tmp_path)).name == "history"
    stated = chosen_estimator(twin(tmp_path, model={"estimator": "plain"}))
    assert (stated.name, stated.why) == ("plain", "model.estimator says so")


def test_the_true_network_keeps_independent_days(tmp_path: Path) -> None:
    found = chosen_estimator(small_config(tmp_path, loads={"days": 30}))
    assert found.name == "structured"
    assert "mode 'true-network'" in found.why


def test_load_shapes_tell_how_many_days_they_have_when_they_are_read(tmp_path: Path) -> None:
    assert chosen_estimator(shapes(tmp_path)).name == "structured"
    assert chosen_estimator(shapes(tmp_path), 13).name == "structured"
    assert chosen_estimator(shapes(tmp_path), 14).name == "history"
    asked = shapes(tmp_path, model={"estimator": "history"})
    refuse_short_history(asked, 14)
    with pytest.raises(ConfigError, match="needs 14 days of meters or more, but there are 13"):
        refuse_short_history(asked, 13)


# --------------------------------------------------------------------------------- what plan says
@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_plan_says_which_estimator_it_is_what_it_asks_and_how_wrong_noise_makes_it(tmp_path: Path) -> None:
    rendered = render_plan(plan(twin(tmp_path)))
    text, content = "\n".join(rendered.lines), json.loads(rendered.json_text)
    assert "Load model: **history**, because the meters have 14 days, 14 or more." in text
    assert content["estimator"]["name"] == "history"
    assert len(content["queries"]) > 5
    assert sum(query["rho"] for query in content["queries"]) > 0.0
    assert "It publishes the dates of the meters' days" in text
    for error in content["predicted_errors"]:
        assert f"{error['what']} " in text
    assert [error["what"] for error in content["predicted_errors"]] == [*OFF, *BY_NOISE]
    for error in content["predicted_errors"][: len(OFF)]:
        low, high = error["between"]
        assert -1.0 < low < high
        assert min(error["by_spread"]) > 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_plan_and_release_warn_before_anything_is_spent_if_there_are_too_few_load_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = twin(tmp_path, loads={"days": 14, "load_points": 12}, model={"epsilon": 0.1})
    content = json.loads(render_plan(plan(few)).json_text)
    assert any(error["too_large"] for error in content["predicted_errors"])
    assert any(
        "too few for this epsilon" in warning and "mean load of a customer" in warning
        for warning in content["warnings"]
    )
    many = twin(tmp_path, loads={"days": 14, "load_points": 12}, model={"epsilon": 1e6})
    assert not any(
        "too few" in warning for warning in json.loads(render_plan(plan(many)).json_text)["warnings"]
    )
    said: list[str] = []

    def charge_all(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(Ledger, "charge_all", charge_all)
    with pytest.raises(InterruptedError):
        run_release(few, workers=1, say=said.append)
    assert any("too few for this epsilon" in line for line in said)


@pytest.mark.usefixtures("stand_ins")
def test_plan_says_why_days_are_independent(tmp_path: Path) -> None:
    rendered = render_plan(plan(twin(tmp_path, days=6)))
    assert any("Load model: **structured**, because days are independent draws" in x for x in rendered.lines)
    assert [error["what"] for error in json.loads(rendered.json_text)["predicted_errors"]] == OFF


@pytest.mark.usefixtures("stand_ins")
def test_no_reading_has_a_part_in_the_predicted_errors(tmp_path: Path) -> None:
    predicted = []
    for folder, factor in (("one", 1.0), ("other", 3.0)):
        (tmp_path / folder).mkdir()
        config = OwnMeters(readings=factor * good_readings()).config(tmp_path / folder)
        predicted.append(json.loads(render_plan(plan(config)).json_text)["predicted_errors"])
    assert predicted[0] == predicted[1]
    assert len(predicted[0]) >= len(OFF)


# --------------------------------------------------------------------------------- net loads below zero
def test_load_points_that_feed_in_stop_the_release_before_anything_is_spent(tmp_path: Path) -> None:
    readings = good_readings()
    readings[3:9, :, 10:14] = -2.5
    config = OwnMeters(readings=readings).config(tmp_path)
    with pytest.raises(
        LoadDataError,
        match=r"feed in more than 0.01 .*6 of .* load points.* give consumption without",
    ) as error:
        run_release(config, workers=1)
    assert "secret" not in str(error.value)
    assert "2.5" not in str(error.value)
    state = PrivateState.inspect(tmp_path / "state")
    assert not (tmp_path / "out").exists()
    assert not (state.root / "ledger").exists() or not Ledger.open(state, create=False).spends()


def test_export_that_is_dropped_by_choice_is_stated_in_the_manifest(tmp_path: Path) -> None:
    readings = good_readings()
    readings[3:9, :, 10:14] = -2.5
    config = OwnMeters(readings=readings).config(tmp_path, loads={"on_export": "floor", "floor_kw": 0.02})
    found = run_release(config, workers=1)
    assert found.ingest is not None
    assert found.ingest.exporting == 6
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    stated = manifest["declared_public"]["net_loads"]
    assert stated == {"floor_kw": 0.02, "most_export": 0.01, "on_export": "floor"}
    assert any(
        "However much load points feed in, it is dropped" in line for line in [said(manifest, "before_noise")]
    )
