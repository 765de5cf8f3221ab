"""Hosting capacities against plain power flow, a closed form, and each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from dp_powerflow import BatchSolver, Feeder, OperatedSolution, OperatedSolver, open_feeder
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import GROUND, Line, PVSystem, Tap
from dp_powerflow.lowlevel import Study, solve_days
from dp_powerflow.model.sample import SolvedDays
from dp_powerflow.studies.hosting import HostingCapacity
from dp_powerflow.studies.study import GivenDays, GivenLaw, sentences_of
from support.small_feeders import one_line
from support.studies import SOLVED_TO, random_days, study_of

CASES = json.loads(Path(__file__).with_name("settings.json").read_bytes())
STEPS = 24
Z = complex(0.03, 0.05)
V0 = 1.01


def base_days(study: Study) -> SolvedDays:
    """All days of a study without new PV, as one block."""
    source = study.source
    assert isinstance(source, GivenDays)
    return solve_days(study.make_solver(1), replace(source, block_days=source.n_days), nodes="all")


def power_pu(study: Study, kw: np.ndarray, row: int) -> np.ndarray:
    sun = study.irradiance
    assert sun is not None
    return np.asarray(kw * sun[row // STEPS, row % STEPS] / (1000.0 * study.feeder.base_mva))


def within(v: np.ndarray, base: np.ndarray, v_min: float, v_max: float, worse: float) -> np.ndarray:
    """The rule in other words: (solution,) whether all is well, given the voltages of the step without PV."""
    size, before = np.abs(v), np.abs(base)
    if before.min() >= v_min and before.max() <= v_max:
        good = (size >= v_min) & (size <= v_max)
    else:
        good = (size >= np.minimum(v_min, before - worse)) & (size <= np.maximum(v_max, before + worse))
    return np.asarray(good.all(axis=1))


def two_nodes(z: complex = Z, v0: float = V0) -> Feeder:
    """A source, one line, one load."""
    line = Line("only", (1, 0), np.array([[1.0, -1.0], [-1.0, 1.0]]) / z, 100.0, False)
    feeder, v = one_line(z, 0.1), np.array([v0 + 0j])
    nodes = ("b.1", "emf(a).1")
    return replace(feeder, nodes=nodes, base_kv=np.array([2.4, 2.4]), v_slack=v, lines=(line,))


def constant(feeder: Feeder, kw: float, days: int = 1) -> GivenDays:
    load = np.full((len(feeder.retained), days, STEPS), kw)
    return GivenDays(GivenLaw(STEPS, feeder.base_mva), load, 0.0 * load)


def square_of_voltage(net: float, z: complex = Z, v0: float = V0) -> float:
    """|v|² of the two-node feeder with so much power injected [p.u.]."""
    b = v0**2 + 2 * z.real * net
    return float((b + np.sqrt(b * b - 4 * abs(z) ** 2 * net * net)) / 2)


@pytest.mark.parametrize(
    ("operated", "kind"),
    [
        (False, HostingCapacity(v_max_pu=1.08, v_min_pu=0.9, grid_kw=10.0, most_kw=800.0, worsening_pu=0.01)),
        (False, HostingCapacity(v_max_pu=1.05, v_min_pu=0.9, grid_kw=10.0, most_kw=800.0, worsening_pu=0.01)),
        pytest.param(True, HostingCapacity(grid_kw=25.0, most_kw=2000.0), marks=pytest.mark.slow),
    ],
    ids=["fixed frame", "fixed frame, broken days", "taps as drawn"],
)
def test_capacities_are_those_of_a_scan_of_the_whole_grid(operated: bool, kind: HostingCapacity) -> None:
    feeder = open_feeder("ieee13")
    days = random_days(feeder, 2, STEPS, 0.5 if operated else 0.6, operated=operated)
    study = study_of(feeder, days, "day" if operated else "fixed")
    found = kind.capacities(study, workers=1)
    base, grid = base_days(study), np.arange(kind.top + 1)
    nodes = study.released[found.places].tolist()
    if not operated:
        assert (kind.v_max_pu == 1.05) == any(block.broken.any() for block in found.blocks)
    new = tuple(PVSystem(f"x{k}", ((k, GROUND),), 1e4, 1e4) for k in nodes)
    good = np.ones((2, len(nodes), len(grid)), dtype=bool)
    for row in range(2 * STEPS):
        power = power_pu(study, kind.grid_kw * grid, row)
        if not power.any():
            continue
        load = np.repeat(base.load[row : row + 1], len(grid), axis=0)
        solver: BatchSolver | OperatedSolver = BatchSolver(feeder, tolerance=SOLVED_TO)
        columns, width = np.searchsorted(feeder.retained, nodes), len(feeder.retained)
        if isinstance(base.solution, OperatedSolution):
            regulators = zip(feeder.as_operated.regulators, base.solution.taps[row], strict=True)
            taps = tuple(
                Tap(each.transformer, each.winding, 1.0 + int(tap) * each.step) for each, tap in regulators
            )
            held = replace(feeder, taps=taps, pv=new)
            solver = OperatedSolver(held, controls="frozen", tolerance=SOLVED_TO, threads=1)
            columns, width = np.arange(len(nodes)), len(nodes)
        for place, column in enumerate(columns.tolist()):
            injected = np.zeros((len(grid), width), dtype=complex)
            injected[:, column] = power
            v = solver.solve(load, injected, nodes="all").v
            good[row // STEPS, place] &= within(
                v, base.solution.v[row], kind.v_min_pu, kind.v_max_pu, kind.worsening_pu
            )
    assert good[:, :, 0].all()
    first_bad = np.where(good.all(axis=2), len(grid), good.argmin(axis=2))
    np.testing.assert_array_equal(found.steps, first_bad - 1)


def test_capacity_of_a_two_node_feeder_is_the_closed_form() -> None:
    feeder = two_nodes()
    study = study_of(feeder, constant(feeder, 30.0), "fixed", np.full((1, STEPS), 0.8))
    found = HostingCapacity(v_max_pu=1.03).capacities(study, workers=1)
    u = 1.03**2
    r, z2 = Z.real, abs(Z) ** 2
    net = (r * u - np.sqrt(r * r * u * u - z2 * (u * u - V0**2 * u))) / z2
    expected = (1000.0 * net + 30.0) / 0.8
    assert square_of_voltage(net) == pytest.approx(u, abs=1e-12)
    assert found.kw(found.steps).item() == pytest.approx(np.floor(expected * 10) / 10, abs=1e-9)
    assert found.binds.item() == 1


@pytest.mark.parametrize("declared", [{"ampacity_a": 60.0}, {"ampacities_a": {"A-B": 60.0}}])
def test_a_declared_ampacity_binds(declared: dict[str, object]) -> None:
    feeder = two_nodes()
    study = study_of(feeder, constant(feeder, 30.0), "fixed", np.full((1, STEPS), 1.0))
    kind = HostingCapacity.model_validate({"v_max_pu": 1.2, "v_min_pu": 0.8, **declared})
    found = kind.capacities(study, workers=1)
    assert found.binds.item() == 3
    kw = found.kw(found.steps).item()
    amperes = [
        1000.0 / 2.4 * (each - 30.0) / 1000.0 / np.sqrt(square_of_voltage((each - 30.0) / 1000.0))
        for each in (kw, kw + 0.1)
    ]
    assert amperes[0] <= 60.0 < amperes[1]


def test_a_step_broken_without_pv_may_get_worse_by_the_tolerance_only() -> None:
    feeder = two_nodes(v0=1.06)
    study = study_of(feeder, constant(feeder, 10.0), "fixed", np.full((1, STEPS), 1.0))
    kind = HostingCapacity(worsening_pu=0.002, per_day=True)
    findings = kind.find(study, workers=1)
    kw = findings.tables["days/part-00000.parquet"].column("capacity_kw").to_pylist()[0]
    before = np.sqrt(square_of_voltage(-0.01, v0=1.06))
    after, beyond = (np.sqrt(square_of_voltage((each - 10.0) / 1000.0, v0=1.06)) for each in (kw, kw + 0.1))
    assert before > 1.05
    assert after <= before + 0.002 < beyond
    assert findings.figures["days_broken_before"] == 1
    assert findings.tables["hosting.parquet"].column("broken_before_percent").to_pylist() == [100.0]
    assert any("without new PV" in sentence for sentence in sentences_of(kind, findings.figures, 1))


def test_a_day_without_sun_is_cut_at_the_largest_capacity() -> None:
    feeder = two_nodes()
    study = study_of(feeder, constant(feeder, 30.0), "fixed", np.zeros((1, STEPS)))
    findings = HostingCapacity(most_kw=100.0, per_day=True).find(study, workers=1)
    days = findings.tables["days/part-00000.parquet"]
    assert days.column("capacity_kw").to_pylist() == [100.0]
    assert days.column("limit").to_pylist() == ["most_kw"]
    assert days.column("minute").to_pylist() == [None]


def test_any_number_of_workers_and_any_blocks_give_the_same_findings() -> None:
    feeder = open_feeder("ieee13")
    source = random_days(feeder, 4, STEPS, 0.5)
    kind = HostingCapacity(per_day=True)
    told: list[tuple[int, int]] = []
    one = kind.find(study_of(feeder, source), workers=1, progress=lambda done, of: told.append((done, of)))
    two = kind.find(study_of(feeder, source), workers=2)
    whole = kind.find(study_of(feeder, replace(source, block_days=3)), workers=1)
    assert told == [(1, 2), (2, 2)]
    for other in two, whole:
        assert other.figures == one.figures
        assert {name: table.to_pydict() for name, table in other.tables.items()} == {
            name: table.to_pydict() for name, table in one.tables.items()
        }


def test_tables_agree_with_each_other() -> None:
    feeder = open_feeder("ieee13")
    study = study_of(feeder, random_days(feeder, 3, STEPS, 0.5))
    findings = HostingCapacity(per_day=True).find(study, workers=1)
    nodes, binding = (findings.tables[name].to_pydict() for name in ("hosting.parquet", "binding.parquet"))
    days = findings.tables["days/part-00000.parquet"].to_pydict()
    assert len(days["day"]) == 3 * len(nodes["node_id"]) == 3 * findings.figures["nodes"]
    for k, name in enumerate(nodes["node_id"]):
        own = sorted(
            kw for kw, other in zip(days["capacity_kw"], days["node_id"], strict=True) if other == name
        )
        assert [nodes[f"q{level:03d}_kw"][k] for level in (0, 50, 100)] == own
        counted = sum(
            n for n, other in zip(binding["days"], binding["node_id"], strict=True) if other == name
        )
        assert counted == 3
        assert 1 <= nodes["phase"][k] <= 3
    assert all(round(kw * 10) == pytest.approx(kw * 10, abs=1e-6) for kw in days["capacity_kw"])
    assert [item.kind for item in findings.items] == ["figure", "figure"]


@pytest.mark.parametrize(("settings", "words"), CASES["hosting that makes no sense"])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        HostingCapacity.model_validate(settings)


def test_studies_that_cannot_be_looked_at_are_refused() -> None:
    feeder = two_nodes()
    study = study_of(feeder, constant(feeder, 30.0), "fixed")
    with pytest.raises(ConfigError, match="irradiance"):
        HostingCapacity().check(replace(study, irradiance=None))
    with pytest.raises(ConfigError, match="24 steps"):
        HostingCapacity().check(replace(study, irradiance=np.ones((1, 96))))
    with pytest.raises(ConfigError, match="no line of the network"):
        HostingCapacity(ampacities_a={"b001-b002": 10.0}).check(study)
    with pytest.raises(ConfigError, match="no released node"):
        HostingCapacity().check(replace(study, feeder=replace(feeder, loads=())))
