"""What `plan` proves and says before anything is spent, and that nothing private decides it."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dp_powerflow as dpf
from dp_powerflow import errors
from dp_powerflow.cli import app
from dp_powerflow.cli.release import internal_lines, render_plan
from dp_powerflow.config import Config, parse_config
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.fit import WeakBudgetWarning, fit, history_facts
from dp_powerflow.model.history.estimate import History, PredictedError
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.model.single_days import Plain, Structured
from dp_powerflow.pipeline import feasibility
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline.customers import draw_customers
from dp_powerflow.pipeline.inputs import chosen_estimator, read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import PlannedRelease, stand_in_errors
from dp_powerflow.privacy.budget import (
    Budget,
    PrivacyUnit,
    epsilon_to_rho,
    gdp_epsilon,
    gdp_mu,
    rho_to_epsilon,
)
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import parameters_of
from support.histories import BOUNDS, customers, history_of
from support.manifest_releases import said
from support.own_meters import OwnMeters, good_readings
from support.small import raw_config, small_config
from support.small_circuits import script
from support.tampering import manifest_of

RAW = raw_config("plan")
TRUE: dict[str, Any] = {
    **{"mode": "true-network", "bound": "full-support", "radius": 1e-13, "epsilon": 2.0, "delta": 0.5},
    **{"calibration_days": 2000, "require_evidence": True},
}


def config_in(folder: Path, **sections: dict[str, Any]) -> Config:
    raw = {name: {**values, **sections.pop(name, {})} for name, values in RAW.items()}
    if raw["network"]["mode"] == "true-network":
        raw["nodes"] = {"load_class": "residential", "scale_factor": 0.5}
        raw["network"] = {key: value for key, value in raw["network"].items() if key not in ("id", "change")}
    return parse_config({**raw, **sections}, base=folder)


def refused_by_both(config: Config, error: type[errors.DpPowerflowError], says: str) -> str:
    """What `plan` and `release` say, which is the same; nothing is spent and nothing is left."""
    told = []
    for attempt in (dpf.plan, lambda asked: dpf.release(asked, workers=1)):
        with pytest.raises(error, match=says) as caught:
            attempt(config)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert not (Path(config.release.state) / "ledger.sqlite").exists()
    assert not Path(config.release.output).exists()
    return told[0]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedRelease:
    return dpf.plan(config_in(tmp_path_factory.mktemp("planned")))


def test_public_customers_keep_usual_voltages_on_networks_like_the_one_they_stand_for(
    planned: PlannedRelease,
) -> None:
    """A stand-in is built with lines as long as nominal load allows, as the planners of a feeder did."""
    look, internal = planned.feasibility.public, planned.feasibility.internal
    assert look is not None
    assert internal is not None
    assert (look.networks, look.snapshots, look.unsolved) == (2, 2 * 2 * 24, 0)
    assert look.lowest is not None
    assert look.highest is not None
    assert 0.9 < look.lowest < look.highest < 1.1
    assert look.idle
    assert planned.feasibility.warnings == ()
    assert (look.lowest, look.highest) == pytest.approx((internal.lowest, internal.highest), abs=0.05)


def test_plan_shows_all_of_it_in_text_and_json(planned: PlannedRelease) -> None:
    shown = render_plan(planned)
    text, content = "\n".join(shown.lines), json.loads(shown.json_text)
    assert "0 % of 96 snapshots would be scaled down" in text
    assert "| 10 | ε = " in text
    assert "INTERNAL" not in text
    assert content["feasibility"]["unsolved_share"] == 0.0
    assert content["internal"]["marking"].startswith("INTERNAL")
    assert content["internal"]["feasibility"]["networks"] == 1
    assert [year["releases"] for year in content["yearly"]] == [1, 5, 10]
    assert content["affordable"]
    assert content["corpus_bytes"] > 0
    owner = internal_lines(planned)
    assert owner[0].startswith("INTERNAL")
    assert "0 of 48 snapshots" in owner[1]


def test_a_wrong_feeder_is_refused_before_a_meter_is_read(tmp_path: Path) -> None:
    island = "New Line.i bus1=p bus2=q length=1\n"
    meters = {"kind": "long", "path": "gone.csv", "services": "services.csv"}
    meters |= {"first_day": "2024-01-01", "last_day": "2024-01-02"}
    (tmp_path / "services.csv").write_text("customer,load_point,class\na,a,residential\nb,b,residential\n")
    own = config_in(tmp_path, feeder={"source": "c.dss"}, loads=meters)
    (tmp_path / "c.dss").write_text(script("two_loads", length=0.5, more=island))
    with pytest.raises(errors.DpPowerflowError, match="islanded"):
        dpf.plan(own)
    (tmp_path / "c.dss").write_text(script("two_loads", length=0.5))
    with pytest.raises(errors.DpPowerflowError, match=r"gone\.csv"):
        dpf.plan(own)


# --- refusals ---------------------------------------------------------------------------------------------
def test_too_many_customers_are_refused_with_advice_that_works(tmp_path: Path) -> None:
    heavy = config_in(tmp_path, nodes={"kw_per_customer": 0.01})
    told = refused_by_both(heavy, errors.ConfigError, r"set nodes\.kw_per_customer = .*nothing was spent$")
    advised = float(told.split("nodes.kw_per_customer = ")[1].split(" ")[0])
    found = dpf.plan(config_in(tmp_path, nodes={"kw_per_customer": advised}))
    assert found.feasibility.warnings == ()


def test_a_share_between_one_and_ten_per_cent_is_a_warning() -> None:
    look = feasibility.Look(2, 100, 3, 0, 0, 0.95, 1.02, 0.9)
    assert "3 % of the snapshots have no power-flow solution" in feasibility.Feasibility(look).warnings[0]
    assert "= 3 (" in feasibility.Feasibility(look, kw_per_customer=3.0).warnings[0]
    assert feasibility.Feasibility(replace(look, unsolved=1)).warnings == ()


def test_an_unaffordable_plan_says_so_and_its_release_is_refused_before_it_spends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dpf.release(config_in(tmp_path), workers=1)
    # Other data of the same customers, charged to the same account, which has nothing left.
    release = {"id": "r2", "output": "out2", "continues_loads": "loads-1"}
    again = config_in(tmp_path, release=release, loads={"seed": 1})
    planned = dpf.plan(again)
    assert not planned.affordable
    assert not planned.loads.affordable
    monkeypatch.setattr("dp_powerflow.read_config", lambda _: again)
    shown = CliRunner().invoke(app, ["plan", "again.toml"])
    assert shown.exit_code == 3
    assert "Not affordable" in " ".join(shown.stdout.split())
    assert "set model.reuse" in " ".join(shown.stdout.split())
    assert "INTERNAL" in shown.stderr
    spent = dpf.Ledger.inspect(tmp_path / "state").spends()
    with pytest.raises(errors.PrivacyError):
        dpf.release(again, workers=1)
    assert dpf.Ledger.inspect(tmp_path / "state").spends() == spent
    assert not (tmp_path / "out2").exists()


def test_a_full_disk_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 10_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    config = config_in(tmp_path, release={"days": 700})
    refused_by_both(config, errors.CorpusError, r"takes about \d\.\d MB .* has 0\.0 MB left")


@pytest.mark.parametrize(
    ("closed", "says"), [("state", "private state directory"), ("here", "this user cannot write to")]
)
def test_places_that_cannot_be_written_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, says: str
) -> None:
    """By asking, since the tests may run as a user who may write everywhere."""
    (tmp_path / "here").mkdir()
    config = config_in(tmp_path, release={"output": "here/new/out"})
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != closed)
    refused_by_both(config, errors.DpPowerflowError, says)
    assert not (tmp_path / "here" / "new").exists()


# --- privacy ----------------------------------------------------------------------------------------------
def test_what_is_said_in_public_does_not_depend_on_the_length_of_a_line(tmp_path: Path) -> None:
    def public_part(length: float) -> str:
        (tmp_path / "c.dss").write_text(script("two_loads", length=length))
        found = dpf.plan(
            config_in(tmp_path, feeder={"source": "c.dss"}, release={"state": f"state {length}"})
        )
        content = json.loads(render_plan(found).json_text)
        content.pop("internal"), content.pop("request_sha256")
        return "\n".join(render_plan(found).lines) + json.dumps(content)

    assert public_part(0.5) == public_part(7.3)


def test_no_level_of_a_stand_in_is_that_of_the_network(tmp_path: Path, ieee13: Feeder) -> None:
    mode: Any = mode_of(config_in(tmp_path, network={"transformers": True, "capacitors": True}))
    source = Rebuilder(ieee13, mode.section.protected)
    private = parameters_of(source, mode.section.design)
    public = feasibility.public_parameters(ieee13, private, mode.section.protected)
    assert public.levels.keys() == private.levels.keys()
    assert not set(public.levels.values()) & set(private.levels.values())
    assert len(set(public.levels.values())) < len(public.levels) / 2  # one table, whatever the line
    assert source.build(public.levels).nodes == ieee13.nodes
    assert feasibility.LENGTH_KM[True] < feasibility.LENGTH_KM[False]


def test_without_load_the_network_itself_must_have_a_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    network = read_network(config, PrivateState.open(tmp_path / "state", insecure_seed=7), 24)
    mode = mode_of(config)
    structure = mode.check(network)
    real = feasibility.Trial.look

    def look(trial: feasibility.Trial, networks: Any, other: Any = None) -> feasibility.Look:
        found = real(trial, networks, other)
        return found if found.networks > 1 else replace(found, idle=False)

    monkeypatch.setattr(feasibility.Trial, "look", look)
    with pytest.raises(errors.ConfigError, match="no power-flow solution without load"):
        mode.feasibility(network, structure)


# --- the true network, money ------------------------------------------------------------------------------
def test_on_the_true_network_plan_states_what_is_known_of_a_refusal(tmp_path: Path) -> None:
    found = dpf.plan(config_in(tmp_path, network=TRUE))
    text = "\n".join(render_plan(found).lines)
    assert "Chance of refusal" in text
    assert "% of δ* whatever it finds" in text
    assert "no figure can be given before the charge" in text
    assert "no power is scaled down on the true network" in text
    assert found.feasibility.public is None
    assert "with 95 % confidence at most 6.2 % of them" in internal_lines(found)[1]
    assert [year.network.epsilon for year in found.yearly] == pytest.approx([2.0, 10.0, 20.0])
    assert all(year.kept_network is None for year in found.yearly)


PAPER = TRUE | {"bound": "paper", "calibration_days": 20, "require_evidence": False}


@pytest.mark.parametrize("factor", [1.5, 1.0], ids=["all loads up", "two phases up, one phase low"])
def test_loads_at_their_bounds_without_solution_are_refused_before_anything_is_spent(
    tmp_path: Path, factor: float
) -> None:
    """The bounds end at 2, so at a factor of 1 a node may draw twice its nominal load.

    With all loads there the feeder has a solution, with those of two phases alone it has none.
    """
    config = config_in(tmp_path, network=PAPER)

    def scaled(by: float) -> Config:
        return config.model_copy(update={"nodes": config.nodes.model_copy(update={"scale_factor": by})})

    told = refused_by_both(scaled(factor), errors.ConfigError, r"^INTERNAL: .* nothing was spent$")
    largest = float(told.split("nodes.scale_factor at which all have one is ")[1].split(",")[0])
    assert 0.9 < largest < 1.0
    dpf.release(scaled(0.995 * largest), workers=1)
    assert dpf.verify(tmp_path / "out").intact


@pytest.mark.parametrize(("kw", "refused"), [(300, False), (300_000, True)])
def test_pv_at_full_power_must_have_a_solution_before_anything_is_spent(
    tmp_path: Path, kw: int, refused: bool
) -> None:
    roof = f"New PVSystem.roof bus1=y phases=3 kv=4.16 kva={kw} pmpp={kw} irradiance=1\n"
    (tmp_path / "c.dss").write_text(script("two_loads", length=0.5, more=roof))
    config = config_in(tmp_path, feeder={"source": "c.dss"}, network=PAPER, pv={"latitude": 40.0})
    if refused:
        refused_by_both(config, errors.ConfigError, "nor have far lower loads")
    else:
        assert dpf.plan(config).affordable


def test_evidence_that_is_not_required_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its days pass the bounds, so they may have no solution where every day of the release has one."""

    def no_solution(*_: Any, **__: Any) -> Any:
        raise errors.PowerFlowError("power flow finds no solution")

    monkeypatch.setattr("dp_powerflow.pipeline.modes.true.collect_evidence", no_solution)
    dpf.release(config_in(tmp_path, network=TRUE | {"require_evidence": False}), workers=1)
    assert dpf.verify(tmp_path / "out").intact


@pytest.mark.parametrize("noise", [{}, {"noise": "gaussian", "delta": 1e-6}])
def test_yearly_costs_compose_as_the_accounts_do(tmp_path: Path, noise: dict[str, Any]) -> None:
    found = dpf.plan(config_in(tmp_path, network={"epsilon": 2.0, **noise}))
    one, _, ten = found.yearly
    rho = epsilon_to_rho(4.0, 1e-5)
    assert ten.customers.epsilon == pytest.approx(rho_to_epsilon(10 * rho, 1e-5))
    assert ten.kept_network == one.network
    composed = gdp_epsilon(np.sqrt(10.0) * gdp_mu(2.0, 1e-6), 1e-6) if noise else 20.0
    assert ten.network.epsilon == pytest.approx(composed, rel=1e-6)


# --- which load model, and why ----------------------------------------------------------------------------
OFF = ["mean load of a customer", "energy of all customers", "99th percentile of the loads"]
BY_NOISE = ["shape of the mean day", "shared factor of a day"]


def twin(folder: Path, days: int = 14, **sections: dict[str, Any]) -> Config:
    network = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
    given: dict[str, dict[str, Any]] = {"network": network, "loads": {"days": days}, "release": {"days": 2}}
    return small_config(folder, **(given | sections))


@pytest.mark.parametrize(
    ("sections", "name", "why"),
    [
        (
            {"loads": {"days": 13}},
            "structured",
            "the meters have 13 days and steps of 60 min, and 'history' needs 14 days",
        ),
        ({"loads": {"days": 14, "step_minutes": 240}}, "structured", "14 days and steps of 240 min"),
        ({"model": {"unit": "load-point-day"}}, "structured", "model.unit is 'load-point-day'"),
        ({"network": {}, "loads": {"days": 30}}, "structured", "mode 'true-network'"),
        (
            {"loads": {"kind": "opendss-shapes", "path": "shapes", "first_day": dt.date(2024, 1, 1)}},
            *("structured", "does not declare how many days"),
        ),
        ({"model": {"estimator": "plain"}}, "plain", "model.estimator says so"),
        ({}, "history", "the meters have 14 days, 14 or more"),
    ],
)
def test_two_weeks_of_whole_histories_on_a_twin_get_the_estimator_history(
    tmp_path: Path, sections: dict[str, Any], name: str, why: str
) -> None:
    found = chosen_estimator(twin(tmp_path, **sections))
    assert found.name == name
    assert why in found.why


def shown(config: Config) -> tuple[str, dict[str, Any]]:
    """What `plan` says, as text and as JSON."""
    rendered = render_plan(dpf.plan(config))
    return "\n".join(rendered.lines), json.loads(rendered.json_text)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_plan_says_which_estimator_it_is_what_it_asks_and_how_wrong_noise_makes_it(tmp_path: Path) -> None:
    text, content = shown(twin(tmp_path))
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
    text, content = shown(twin(tmp_path, days=6))
    assert "Load model: **structured**" in text
    assert "days are independent draws: " in text
    assert [error["what"] for error in content["predicted_errors"]] == OFF


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_plan_and_release_warn_before_anything_is_spent_if_there_are_too_few_load_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"days": 14, "load_points": 12}
    few = twin(tmp_path, loads=points, model={"epsilon": 0.1})
    content = shown(few)[1]
    assert any(error["too_large"] for error in content["predicted_errors"])
    loud = [words for words in content["warnings"] if "too few for this epsilon" in words]
    assert any("mean load of a customer" in warning for warning in loud)
    many = shown(twin(tmp_path, loads=points, model={"epsilon": 1e6}))[1]
    assert not any("too few" in warning for warning in many["warnings"])
    told: list[str] = []

    def charge_all(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(Ledger, "charge_all", charge_all)
    with pytest.raises(InterruptedError):
        dpf.release(few, workers=1, on_stage=told.append)
    assert any("too few for this epsilon" in line for line in told)


@pytest.mark.usefixtures("stand_ins")
def test_no_reading_has_a_part_in_the_predicted_errors(tmp_path: Path) -> None:
    predicted = []
    for folder, factor in (("one", 1.0), ("other", 3.0)):
        (tmp_path / folder).mkdir()
        config = OwnMeters(readings=factor * good_readings()).config(tmp_path / folder)
        predicted.append(shown(config)[1]["predicted_errors"])
    assert predicted[0] == predicted[1]
    assert len(predicted[0]) >= len(OFF)


# --- net loads below zero ---------------------------------------------------------------------------------
def exporting() -> np.ndarray:
    readings = good_readings()
    readings[3:9, :, 10:14] = -2.5
    return readings


def test_load_points_that_feed_in_stop_the_release_before_anything_is_spent(tmp_path: Path) -> None:
    config = OwnMeters(readings=exporting()).config(tmp_path)
    says = r"feed in more than 0.01 .*6 of .* load points.* give consumption without"
    told = refused_by_both(config, errors.LoadDataError, says)
    assert "secret" not in told
    assert "2.5" not in told


def test_export_that_is_dropped_by_choice_is_stated_in_the_manifest(tmp_path: Path) -> None:
    dropped = {"on_export": "floor", "floor_kw": 0.02}
    found = dpf.release(OwnMeters(readings=exporting()).config(tmp_path, loads=dropped), workers=1)
    assert found.ingest is not None
    assert found.ingest.exporting == 6
    manifest = manifest_of(tmp_path / "out")
    assert manifest["declared_public"]["net_loads"] == {**dropped, "most_export": 0.01}
    assert "However much load points feed in, it is dropped" in said(manifest, "before_noise")


# --- how wrong noise will make the loads, by public stand-ins ---------------------------------------------
ONE = Budget(1.0, 1e-5)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the number of fits of every prediction."""
    return lambda runs: monkeypatch.setattr(planning, "RUNS", runs)


def predicted(n: int, options: FitOptions, budget: Budget = ONE, labels: int = 1) -> list[PredictedError]:
    """For n customers in so many classes, on 14 days of 8 steps."""
    history = history_of(np.ones((n, 14, 8)), labels=[f"class {k % labels}" for k in range(n)])
    return list(stand_in_errors(history_facts(history, options, budget.unit), options, budget))


@pytest.mark.slow
def test_the_prediction_for_400_homes_covers_what_repeated_fits_do() -> None:
    """Homes of another kind than the stand-ins, with another spread and place of their levels."""
    rng = np.random.default_rng(1)
    load = customers(400, 14, 8) * np.exp(np.sqrt(1.0 - 0.5**2) * rng.standard_normal((400, 1, 1)))
    history, options = history_of(np.clip(load, *BOUNDS)), FitOptions(BOUNDS, History())
    mean, *_ = stand_in_errors(history_facts(history, options, ONE.unit), options, ONE)
    off = np.array([_mean_load_off(history, options, seed) for seed in range(24)])
    measured = float(np.sqrt(np.mean(off * off)))
    assert min(mean.by_spread) / 1.5 < measured < max(mean.by_spread) * 1.5
    assert mean.between is not None
    assert np.mean((off > mean.between[0]) & (off < mean.between[1])) > 0.7


def _mean_load_off(history: LoadHistory, options: FitOptions, seed: int) -> float:
    key = StreamKey.from_insecure_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        model = fit(history, budget=ONE, options=options, key=key)
    return float(draw_customers(model, history, key).mean() / history.load_kw.mean() - 1.0)


@pytest.mark.parametrize(
    "estimator", [Structured(), Plain(), pytest.param(History(), marks=pytest.mark.slow)]
)
def test_predicted_errors_fall_with_customers_and_budget(
    estimator: Estimator, fits: Callable[[int], None]
) -> None:
    fits(6)
    options = FitOptions(BOUNDS, estimator)
    by_size = [predicted(n, options)[0].error for n in (30, 500, 20_000)]
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[0] > 0.3
    assert by_size[-1] < 0.15
    by_budget = [predicted(500, options, Budget(epsilon, 1e-5))[0].error for epsilon in (0.1, 1.0, 30.0)]
    assert by_budget == sorted(by_budget, reverse=True)


def test_what_an_estimator_gets_wrong_without_noise_is_predicted_and_not_blamed_on_the_budget() -> None:
    """Days that are normal in the log have too long a tail for homes, however many there are."""
    facts = history_facts(history_of(np.ones((2, 14, 96))), FitOptions(BOUNDS), ONE.unit)
    many = replace(facts, load_points_of_class=(("all", 10**7),))
    *_, tail = stand_in_errors(many, FitOptions(BOUNDS), ONE)
    assert max(tail.by_spread) > tail.usual
    assert not tail.too_large


def test_what_is_predicted_is_the_same_every_time_and_knows_classes_and_units(
    fits: Callable[[int], None],
) -> None:
    mean, energy, _ = predicted(3000, FitOptions(BOUNDS), labels=3)
    assert energy.error < mean.error  # of many classes it is known better than of the smallest of them
    fits(4)
    options = FitOptions(BOUNDS)
    assert predicted(300, options) == predicted(300, options)
    of_days = Budget(1.0, 1e-5, PrivacyUnit.LOAD_POINT_DAY)
    assert predicted(300, options, of_days)[0].error < predicted(300, options)[0].error
    assert len(predicted(300, replace(options, classes=PrivateClasses(2)))) == 3
