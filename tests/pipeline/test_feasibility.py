"""What `plan` proves before anything is spent, with public loads, and that nothing private decides it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dp_powerflow as dpf
from dp_powerflow.cli import app
from dp_powerflow.cli.release import internal_lines, render_plan
from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError, PowerFlowError, PrivacyError
from dp_powerflow.grid.sources import Rebuilder, open_feeder
from dp_powerflow.pipeline.feasibility import (
    LENGTH_KM,
    NO_LOAD,
    NOMINAL,
    UPPER,
    Corner,
    Feasibility,
    Look,
    Trial,
    public_parameters,
)
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import PlannedRelease
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import parameters_of

RAW: dict[str, dict[str, Any]] = {
    "feeder": {"source": "ieee13"},
    "loads": {"kind": "simulated", "load_points": 60, "days": 4, "step_minutes": 60},
    "model": {"epsilon": 4.0, "bounds": [0.01, 2.0], "variance_floor": 0.01},
    "nodes": {"load_class": "residential", "kw_per_customer": 2.0},
    "network": {"mode": "twin-network", "id": "t1", "epsilon": 8.0, "change": 0.05},
    "release": {"id": "r1", "days": 3, "output": "out", "state": "state", "insecure_seed": 7},
}
TRUE: dict[str, Any] = {
    **{"mode": "true-network", "bound": "full-support", "radius": 1e-13, "epsilon": 2.0, "delta": 0.5},
    **{"calibration_days": 2000, "require_evidence": True},
}
CIRCUIT = """
Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length={length} units=km
New Line.b bus1=x bus2=y r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length=0.5 units=km
New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30
New Load.two bus1=y.1 phases=1 kv=2.4 kW=80 kvar=20
Set VoltageBases=[4.16]
CalcVoltageBases
"""


def config_in(folder: Path, **sections: dict[str, Any]) -> Config:
    raw = {name: {**values, **sections.pop(name, {})} for name, values in RAW.items()}
    if raw["network"]["mode"] == "true-network":
        raw["nodes"] = {"load_class": "residential", "scale_factor": 0.5}
        raw["network"] = {key: value for key, value in raw["network"].items() if key not in ("id", "change")}
    return parse_config({**raw, **sections}, base=folder)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedRelease:
    return dpf.plan(config_in(tmp_path_factory.mktemp("planned")))


def test_public_customers_keep_usual_voltages_on_public_networks(planned: PlannedRelease) -> None:
    look = planned.feasibility.public
    assert look is not None
    assert (look.networks, look.snapshots, look.unsolved) == (2, 2 * 2 * 24, 0)
    assert look.lowest is not None
    assert look.highest is not None
    assert 0.9 < look.lowest < look.highest < 1.1
    assert look.corners[NO_LOAD].solved
    assert look.corners[NOMINAL].solved
    assert UPPER in look.corners
    assert planned.feasibility.warnings == ()


def test_the_stand_ins_are_like_the_network_they_stand_for(planned: PlannedRelease) -> None:
    """A stand-in is built with lines as long as nominal load allows, as the planners of a feeder did."""
    public, internal = planned.feasibility.public, planned.feasibility.internal
    assert public is not None
    assert internal is not None
    for one, other in ((public.lowest, internal.lowest), (public.highest, internal.highest)):
        assert one == pytest.approx(other, abs=0.05)


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


def test_stages_are_told_feeder_first_and_meters_last(tmp_path: Path) -> None:
    told: list[str] = []
    dpf.plan(config_in(tmp_path), on_stage=told.append)
    assert told == [
        "reading the feeder",
        "checking feeder, controls and sun",
        "comparing the feeder with its file",
        "power flow on public loads",
        "reading the meter data",
    ]


def test_a_wrong_feeder_is_refused_before_a_meter_is_read(tmp_path: Path) -> None:
    island = "New Line.i bus1=p bus2=q length=1\nSet "
    meters = {"kind": "long", "path": "gone.csv", "services": "services.csv"}
    meters |= {"first_day": "2024-01-01", "last_day": "2024-01-02"}
    (tmp_path / "services.csv").write_text("customer,load_point,class\na,a,residential\nb,b,residential\n")
    (tmp_path / "c.dss").write_text(island.join(CIRCUIT.format(length=0.5).split("Set ")))
    with pytest.raises(DpPowerflowError, match="islanded"):
        dpf.plan(config_in(tmp_path, feeder={"source": "c.dss"}, loads=meters))
    (tmp_path / "c.dss").write_text(CIRCUIT.format(length=0.5))
    with pytest.raises(DpPowerflowError, match=r"gone\.csv"):
        dpf.plan(config_in(tmp_path, feeder={"source": "c.dss"}, loads=meters))


# ------------------------------------------------------------------------------------------- refusals


def test_too_many_customers_are_refused_alike_by_plan_and_release(tmp_path: Path) -> None:
    config = config_in(tmp_path, nodes={"kw_per_customer": 0.01})
    said = []
    for attempt in (dpf.plan, lambda asked: dpf.release(asked, workers=1)):
        with pytest.raises(ConfigError, match=r"set nodes\.kw_per_customer = ") as caught:
            attempt(config)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].endswith("nothing was spent")
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()
    # What is suggested works.
    advised = float(said[0].split("nodes.kw_per_customer = ")[1].split(" ")[0])
    found = dpf.plan(config_in(tmp_path, nodes={"kw_per_customer": advised}))
    assert found.feasibility.warnings == ()


def test_a_share_between_one_and_ten_per_cent_is_a_warning() -> None:
    look = Look(2, 100, 3, 0, 0, 0.95, 1.02, 0.9)
    assert "3 % of the snapshots have no power-flow solution" in Feasibility(look).warnings[0]
    assert "= 3 (" in Feasibility(look, kw_per_customer=3.0).warnings[0]
    assert Feasibility(replace(look, unsolved=1)).warnings == ()


def test_an_unaffordable_plan_says_so_and_its_release_is_refused_before_it_spends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dpf.release(config_in(tmp_path), workers=1)
    # Other data of the same customers, charged to the same account, which has nothing left.
    again = config_in(
        tmp_path, release={"id": "r2", "output": "out2", "continues_loads": "loads-1"}, loads={"seed": 1}
    )
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
    with pytest.raises(PrivacyError):
        dpf.release(again, workers=1)
    assert dpf.Ledger.inspect(tmp_path / "state").spends() == spent
    assert not (tmp_path / "out2").exists()


def test_a_full_disk_is_found_out_by_plan_and_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 10_000

    config = config_in(tmp_path, release={"days": 700})
    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    said = []
    for attempt in (dpf.plan, lambda asked: dpf.release(asked, workers=1)):
        with pytest.raises(CorpusError, match=r"takes about \d\.\d MB .* has 0\.0 MB left") as caught:
            attempt(config)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not list(tmp_path.glob("out*"))


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
    for attempt in (dpf.plan, lambda asked: dpf.release(asked, workers=1)):
        with pytest.raises(DpPowerflowError, match=says):
            attempt(config)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "here" / "new").exists()


def test_an_output_that_is_there_is_refused_by_plan(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CorpusError, match="exists already"):
        dpf.plan(config_in(tmp_path))


# -------------------------------------------------------------------------------------------- privacy


def public_part(folder: Path, length: float) -> str:
    (folder / "c.dss").write_text(CIRCUIT.format(length=length))
    config = config_in(folder, feeder={"source": "c.dss"}, release={"state": f"state {length}"})
    found = dpf.plan(config)
    content = json.loads(render_plan(found).json_text)
    content.pop("internal"), content.pop("request_sha256")
    return "\n".join(render_plan(found).lines) + json.dumps(content)


def test_what_is_said_in_public_does_not_depend_on_the_length_of_a_line(tmp_path: Path) -> None:
    assert public_part(tmp_path, 0.5) == public_part(tmp_path, 7.3)


def test_no_level_of_a_stand_in_is_that_of_the_network(tmp_path: Path) -> None:
    config = config_in(tmp_path, network={"transformers": True, "capacitors": True})
    mode: Any = mode_of(config)
    feeder = open_feeder("ieee13")
    source = Rebuilder(feeder, mode.section.protected)
    private = parameters_of(source, mode.section.design)
    public = public_parameters(feeder, private, mode.section.protected)
    assert public.levels.keys() == private.levels.keys()
    assert not set(public.levels.values()) & set(private.levels.values())
    assert len(set(public.levels.values())) < len(public.levels) / 2  # one table, whatever the line
    assert source.build(public.levels).nodes == feeder.nodes
    assert LENGTH_KM[True] < LENGTH_KM[False]


def test_without_load_the_network_itself_must_have_a_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    network = read_network(config, PrivateState.open(tmp_path / "state", insecure_seed=7), 24)
    mode = mode_of(config)
    structure = mode.check(network)
    dark = dict.fromkeys((NO_LOAD, NOMINAL, UPPER), Corner(False, None, None))

    real = Trial.look

    def look(trial: Trial, networks: Any, other: Any = None) -> Look:
        found = real(trial, networks, other)
        return found if found.networks > 1 else replace(found, corners=dark)

    monkeypatch.setattr(Trial, "look", look)
    with pytest.raises(ConfigError, match="no power-flow solution without load"):
        mode.feasibility(network, structure)


# ---------------------------------------------------------------------------------- the true network, money


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
SUNNY = """New PVSystem.roof bus1=y phases=3 kv=4.16 kva={kw} pmpp={kw} irradiance=1
Set """


@pytest.mark.parametrize("factor", [1.5, 1.0], ids=["all loads up", "two phases up, one phase low"])
def test_loads_at_their_bounds_without_solution_are_refused_before_anything_is_spent(
    tmp_path: Path, factor: float
) -> None:
    """The bounds end at 2, so at a factor of 1 a node may draw twice its nominal load.

    With all loads there the feeder has a solution, with those of two phases alone it has none.
    """
    config = config_in(tmp_path, network=PAPER)
    heavy = config.model_copy(update={"nodes": config.nodes.model_copy(update={"scale_factor": factor})})
    said = []
    for attempt in (dpf.plan, lambda asked: dpf.release(asked, workers=1)):
        with pytest.raises(ConfigError, match=r"^INTERNAL: .* nothing was spent$") as caught:
            attempt(heavy)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    largest = float(said[0].split("nodes.scale_factor at which all have one is ")[1].split(",")[0])
    assert 0.9 < largest < 1.0
    nodes = config.nodes.model_copy(update={"scale_factor": 0.995 * largest})
    dpf.release(config.model_copy(update={"nodes": nodes}), workers=1)
    assert dpf.verify(tmp_path / "out").intact


@pytest.mark.parametrize(("kw", "refused"), [(300, False), (300_000, True)])
def test_pv_at_full_power_must_have_a_solution_before_anything_is_spent(
    tmp_path: Path, kw: int, refused: bool
) -> None:
    circuit = CIRCUIT.format(length=0.5).replace("Set ", SUNNY.format(kw=kw), 1)
    (tmp_path / "c.dss").write_text(circuit)
    config = config_in(tmp_path, feeder={"source": "c.dss"}, network=PAPER, pv={"latitude": 40.0})
    if not refused:
        assert dpf.plan(config).affordable
        return
    with pytest.raises(ConfigError, match="nor have far lower loads"):
        dpf.plan(config)


def test_evidence_that_is_not_required_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its days pass the bounds, so they may have no solution where every day of the release has one."""

    def no_solution(*_: Any, **__: Any) -> Any:
        raise PowerFlowError("power flow finds no solution")

    monkeypatch.setattr("dp_powerflow.pipeline.modes.true.collect_evidence", no_solution)
    dpf.release(config_in(tmp_path, network=TRUE | {"require_evidence": False}), workers=1)
    assert dpf.verify(tmp_path / "out").intact


@pytest.mark.parametrize("noise", [{}, {"noise": "gaussian", "delta": 1e-6}])
def test_yearly_costs_compose_as_the_accounts_do(tmp_path: Path, noise: dict[str, Any]) -> None:
    from dp_powerflow.privacy.budget import epsilon_to_rho, gdp_epsilon, gdp_mu, rho_to_epsilon

    config = config_in(tmp_path, network={"epsilon": 2.0, **noise})
    found = dpf.plan(config)
    one, _, ten = found.yearly
    rho = epsilon_to_rho(4.0, 1e-5)
    assert ten.customers.epsilon == pytest.approx(rho_to_epsilon(10 * rho, 1e-5))
    assert ten.kept_network == one.network
    composed = gdp_epsilon(np.sqrt(10.0) * gdp_mu(2.0, 1e-6), 1e-6) if noise else 20.0
    assert ten.network.epsilon == pytest.approx(composed, rel=1e-6)
