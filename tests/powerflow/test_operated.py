"""Feeders as operated, against OpenDSS with the models and the controls of the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, OperatedSolution, OperatedSolver
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.operation import CONSTANT_POWER
from dp_powerflow.powerflow.operated import LEVELS, PER_NOMINAL
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from support.engine_controls import (
    ControlledEngine,
    EngineRun,
    agreement,
    random_days,
    random_loads,
    starts_of,
    states_of,
)
from support.opened import opened_once
from support.operated import solved
from support.small_circuits import BANK, REGULATOR, small_circuit
from support.small_feeders import one_line
from support.tables import tables_of

TABLES = tables_of(__file__)

CLOSE = 1e-6
"""Largest |ΔV| where taps are equal [p.u.]."""
SAME = 0.999
"""Share of the snapshots whose taps are equal, at least."""
SMALL = TABLES["SMALL"]
SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in SMALL[1:]]
LARGE = ("smartds_small/opendss/Master.dss", "9500-primary-network/Master.dss")
FLOATING = "ieee9500_dss/Master-unbal-initial-config.dss"
STEPS = 96


def opened(name: str, request: pytest.FixtureRequest) -> Feeder:
    if "/" not in name:
        return opened_once(name)
    cases: Path = request.getfixturevalue("foreign_cases")
    return opened_once(cases / name, drop_islanded=True)


def neutral(feeder: Feeder) -> IntArray:
    """(1, control) every regulator at neutral, capacitors as the file has them."""
    operation = feeder.as_operated
    states = [0] * len(operation.regulators) + [int(bank.closed) for bank in operation.capacitors]
    return np.array([states], dtype=np.int64)


def from_neutral(feeder: Feeder) -> OperatedSolver:
    """A solver of snapshots whose table of taps is neutral at all levels, so that controls have far to go."""
    solver = OperatedSolver(feeder)
    solver.first_states = neutral(feeder)
    return solver


def check_snapshots(solver: OperatedSolver, n: int, seed: int = 0, high: float = 1.6) -> None:
    load = random_loads(solver.feeder, n, seed, high=high)
    check_agreement(solver, load, ControlledEngine(solver.feeder).run(load, starts_of(solver, load)))


def check_agreement(solver: OperatedSolver, load: ComplexArray, engine: EngineRun) -> None:
    """Every snapshot settles, and all but a few have equal taps and then equal voltages."""
    found = agreement(solver.solve(load, nodes="all"), engine)
    assert found.settled == len(load)
    assert found.same >= SAME * len(load)
    assert found.largest <= CLOSE


def check_days(solver: OperatedSolver, days: int, seed: int = 0, *, step_min: int | None = None) -> IntArray:
    """Compare whole days; the states of the engine."""
    load = random_days(solver.feeder, days, STEPS, seed)
    starts = starts_of(solver, load[::STEPS])
    engine = ControlledEngine(solver.feeder, step_min=step_min).run(load, starts, steps=STEPS)
    check_agreement(solver, load, engine)
    return engine.states


# ------------------------------------------------------------------------------- published feeders


@pytest.mark.parametrize("name", SMALL)
def test_snapshots_from_neutral_and_from_the_table_of_taps_end_where_opendss_ends(
    name: str, request: pytest.FixtureRequest
) -> None:
    feeder = opened(name, request)
    check_snapshots(from_neutral(feeder), 150)
    check_snapshots(OperatedSolver(feeder), 60, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_feeders_end_where_opendss_ends(name: str, request: pytest.FixtureRequest) -> None:
    check_snapshots(from_neutral(opened(name, request)), 8)


@pytest.mark.slow
def test_a_feeder_with_floating_buses_ends_where_opendss_ends(request: pytest.FixtureRequest) -> None:
    """Buses of generators without ground: OpenDSS finds their voltage to ground within 1e-4 only."""
    solver = OperatedSolver(opened(FLOATING, request))
    load = random_loads(solver.feeder, 3, low=0.3, high=0.9)
    engine = ControlledEngine(solver.feeder, tolerance=1e-5).run(load, starts_of(solver, load))
    solution = solver.solve(load, nodes="all")
    found = agreement(solution, engine)
    assert (found.settled, found.same) == (3, 3)
    assert found.largest <= 1e-4
    assert np.quantile(abs(solution.v - engine.v), 0.98) <= CLOSE


def test_the_table_of_taps_is_what_opendss_finds_from_neutral(ieee123: Feeder) -> None:
    level = (np.arange(LEVELS) + 0.5) / PER_NOMINAL
    load = level[:, None] * ieee123.nominal_load
    engine = ControlledEngine(ieee123).run(load, np.repeat(neutral(ieee123), LEVELS, axis=0))
    assert engine.settled.all()
    np.testing.assert_array_equal(OperatedSolver(ieee123).first_states, engine.states)


@pytest.mark.parametrize("name", ["ieee13", *SLOWER])
def test_a_day_with_memory_is_that_of_opendss(name: str, request: pytest.FixtureRequest) -> None:
    states = check_days(OperatedSolver(opened(name, request), controls="day", steps=STEPS), 1)
    assert (np.diff(states, axis=0) != 0).any()


@pytest.mark.campaign
def test_a_chained_year_of_ieee123_is_that_of_opendss(ieee123: Feeder) -> None:
    """One day of 35,040 steps, so that nothing starts anew."""
    load = random_days(ieee123, 365, STEPS, 4)
    solver = OperatedSolver(ieee123, controls="day", steps=len(load))
    engine = ControlledEngine(ieee123).run(load, starts_of(solver, load[:1]), steps=len(load))
    check_agreement(solver, load, engine)


@pytest.mark.parametrize("name", SMALL)
def test_every_load_up_to_twice_the_nominal_one_is_solved(name: str, request: pytest.FixtureRequest) -> None:
    feeder = opened(name, request)
    rng = np.random.default_rng(5)
    level = np.linspace(0.05, 2.0, 400)[:, None]
    spread = rng.uniform(0.9, 1.1, (400, len(feeder.loads)))
    solution = OperatedSolver(feeder).solve(feeder.nominal_load * level * spread)
    assert solution.n_failed == 0


# -------------------------------------------------------------------------------- capacitor controls


@pytest.mark.parametrize("settings", TABLES["capacitors_are_switched_as_opendss_switches_them"])
def test_capacitors_are_switched_as_opendss_switches_them(settings: str, tmp_path: Path) -> None:
    # A regulator beside it would work against the override.
    regulator = "" if "override" in settings else REGULATOR
    feeder = small_circuit(tmp_path, regulator=regulator, more=BANK.format(settings=settings))
    solver = OperatedSolver(feeder, controls="day", steps=STEPS)
    states = check_days(solver, 3, step_min=15)
    assert (np.diff(states[:, -1]) != 0).any()


# ----------------------------------------------------------------------------- loads and generators

MODELS = TABLES["MODELS"]
SOURCES = TABLES["SOURCES"]


@pytest.mark.parametrize("pu", np.round(np.linspace(0.3, 1.3, 11), 2).tolist())
def test_loads_answer_to_any_voltage_as_the_file_says(pu: float, tmp_path: Path) -> None:
    """Every model of a load, in wye and delta, beyond its limits too."""
    more = MODELS.format(limits="vminpu=0.9 vmaxpu=1.06 vlowpu=0.5", shares="0.2 0.3 0.5 0.5 0.2 0.3 0.0")
    feeder = small_circuit(tmp_path, pu=pu, regulator="", more=more + SOURCES)
    found = OperatedSolver(feeder, tolerance=1e-10).solve(feeder.nominal_load[None, :], nodes="all")
    assert found.converged.all()
    expected = solved(feeder).v[feeder.energised]
    np.testing.assert_allclose(found.v[0], expected, rtol=0, atol=1e-8)


def test_taps_move_among_loads_of_all_models(tmp_path: Path) -> None:
    more = MODELS.format(limits="vminpu=0.7 vmaxpu=1.2", shares="0.2 0.3 0.5 0.5 0.2 0.3 0.0")
    check_snapshots(from_neutral(small_circuit(tmp_path, more=more + SOURCES)), 100, high=0.9)


RESTLESS = "New Load.fed bus1=b phases=3 kv=12.47 kw=100 kvar=-2500 model=4 cvrwatts=0.8 cvrvars=3"
CVR = "".join(TABLES["CVR"].format(k=k) for k in range(4))


@pytest.mark.parametrize("regulator", ["", REGULATOR], ids=["none", "regulator"])
def test_of_two_solutions_at_a_jump_the_one_of_opendss_is_taken(regulator: str, tmp_path: Path) -> None:
    """At its limits the current of a load of model 4 jumps, so that both sides may have a solution."""
    check_snapshots(from_neutral(small_circuit(tmp_path, regulator=regulator, more=CVR)), 150)


def test_controls_pass_taps_at_which_loads_jump_to_and_fro(tmp_path: Path) -> None:
    """Above its limit a load feeds less reactive power, and comes back below: nothing rests there."""
    feeder = small_circuit(tmp_path, more=CVR + RESTLESS)
    load = random_loads(feeder, 150)
    states = np.repeat(neutral(feeder), 150, axis=0)
    held = OperatedSolver(feeder, controls="frozen").solve_from(states, load)
    unsolved = np.isnan(held).any(axis=1)
    assert unsolved.any()
    solution = from_neutral(feeder).solve(load, nodes="all")
    assert solution.converged[unsolved].any()
    engine = ControlledEngine(feeder).run(load, states)
    found = agreement(solution, engine)
    assert found.same == found.settled < 150
    assert found.largest <= CLOSE


# ------------------------------------------------------------------------------------------- volt-var

INVERTERS = TABLES["INVERTERS"]


@pytest.mark.parametrize("pu", [0.97, 1.0, 1.05])
@pytest.mark.parametrize(
    ("reference", "limit"), [("varaval", 1.0), ("varmax", 0.44), ("varmax", 0.8)], ids=str
)
def test_inverters_end_on_the_curve_of_the_file(
    reference: str, limit: float, pu: float, tmp_path: Path
) -> None:
    """Reactive power beside active power, or before it: then active power gives way."""
    more = INVERTERS.format(reference=reference, large=1500.0 * limit, small=400.0 * limit)
    feeder = small_circuit(tmp_path, pu=pu, regulator="", more=more)
    load = random_loads(feeder, 20, low=0.2, high=1.2)
    irradiance = np.linspace(0.05, 0.95, 20)
    engine = ControlledEngine(feeder, solar=True, tolerance=1e-11).run(
        load, np.repeat(neutral(feeder), 20, axis=0), irradiance=irradiance
    )
    solution = OperatedSolver(feeder).solve(load, generation_of(feeder, irradiance), nodes="all")
    assert engine.settled.all()
    assert solution.converged.all()
    np.testing.assert_allclose(solution.v, engine.v, rtol=0, atol=CLOSE)


def generation_of(feeder: Feeder, irradiance: FloatArray) -> np.ndarray:
    """Complex (snapshot, PV system) power of the panels [p.u.]."""
    peak = np.array([min(pv.kw_peak, pv.kva) for pv in feeder.pv]) / (1000.0 * feeder.base_mva)
    return (irradiance[:, None] * peak).astype(np.complex128)


# ------------------------------------------------------------------------------- what it depends on


@pytest.fixture(scope="module")
def days(ieee123: Feeder) -> tuple[OperatedSolver, np.ndarray]:
    return OperatedSolver(ieee123, controls="day", steps=24), random_days(ieee123, 40, 24)


def same_bits(one: OperatedSolution, other: OperatedSolution, rows: IntArray | None = None) -> None:
    chosen = slice(None) if rows is None else rows
    np.testing.assert_array_equal(one.v[chosen].view(np.int64), other.v.view(np.int64))
    np.testing.assert_array_equal(states_of(one)[chosen], states_of(other))
    for name in ("converged", "iterations", "mismatch", "rounds", "locked", "reversed"):
        np.testing.assert_array_equal(getattr(one, name)[chosen], getattr(other, name))


def test_days_do_not_depend_on_threads_order_or_batch(
    ieee123: Feeder, days: tuple[OperatedSolver, np.ndarray]
) -> None:
    solver, load = days
    whole = solver.solve(load)
    for threads in (1, 2):
        same_bits(whole, OperatedSolver(ieee123, controls="day", steps=24, threads=threads).solve(load))
    order = np.random.default_rng(1).permutation(40)
    rows = (24 * order[:, None] + np.arange(24)).ravel()
    same_bits(whole, solver.solve(load[rows]), rows)
    for first, last in ((0, 1), (7, 24), (39, 40)):
        part = np.arange(24 * first, 24 * last)
        same_bits(whole, solver.solve(load[part]), part)


def test_snapshots_do_not_depend_on_their_batch(ieee123: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, load = OperatedSolver(ieee123), random_loads(ieee123, 200)
    load[11] *= 6.0
    whole = solver.solve(load)
    for k in (0, 11, 150):
        same_bits(whole, solver.solve(load[k : k + 1]), np.array([k]))
    monkeypatch.setattr("dp_powerflow.powerflow.operated._TASK", 7)
    same_bits(whole, OperatedSolver(ieee123, threads=2).solve(load))


def test_hunting_is_locked_and_reported(tmp_path: Path) -> None:
    """A band of less than one tap holds no tap: OpenDSS reaches its limit, here the control is locked."""
    feeder = small_circuit(tmp_path, regulator=REGULATOR.replace("band=2", "band=0.3"))
    solver, load = OperatedSolver(feeder), random_loads(feeder, 300)
    solution = solver.solve(load)
    assert solution.converged.all()
    assert 0 < solution.locked.sum() < 300
    engine = ControlledEngine(feeder).run(load, starts_of(solver, load))
    np.testing.assert_array_equal(solution.locked, ~engine.settled)
    order = np.random.default_rng(2).permutation(300)
    same_bits(solution, solver.solve(load[order]), order)


# ------------------------------------------------------------------ without solution, without sense


TIE = TABLES["TIE"]


@pytest.mark.parametrize(("ohm", "bus"), [(1e-8, "end"), (2e-13, "end"), (1e-8, "t"), (2e-13, "t")])
def test_converged_means_the_tolerance_or_a_tiny_impedance_is_refused_by_name(
    ohm: float, bus: str, tmp_path: Path
) -> None:
    """Between two loads, or beside which Y loses the other elements, it is refused; else its ends are one."""
    feeder = small_circuit(tmp_path, regulator="", more=TIE.format(ohm=ohm, bus=bus))
    if bus == "t" or ohm < 1e-9:
        for kind in (OperatedSolver, BatchSolver):
            with pytest.raises(PowerFlowError, match=r"nodes .*'(b|t)\.\d'.* so small an impedance"):
                kind(feeder)
        return
    load = random_loads(feeder, 40, high=1.0)
    nodal = np.linspace(0.1, 1.0, 40)[:, None] * -feeder.nominal_injection[feeder.retained]
    for solution in (
        OperatedSolver(feeder).solve(load, nodes="all"),
        BatchSolver(feeder).solve(nodal, nodes="all"),
    ):
        assert solution.converged.all()
        assert solution.mismatch.max() <= 1e-8


def test_a_day_goes_on_after_a_snapshot_without_solution(ieee123: Feeder) -> None:
    rigid = tuple(replace(load, response=CONSTANT_POWER) for load in ieee123.loads)
    solver = OperatedSolver(replace(ieee123, loads=rigid), controls="day", steps=24)
    load = random_days(ieee123, 2, 24)
    load[10] = 30.0 * ieee123.nominal_load
    solution = solver.solve(load)
    np.testing.assert_array_equal(np.flatnonzero(~solution.converged), [10])


def test_a_batch_of_days_is_a_whole_number_of_days() -> None:
    with pytest.raises(PowerFlowError, match="7 snapshots are no whole number of days of 3 steps"):
        OperatedSolver(one_line(), controls="day", steps=3).solve(np.zeros((7, 1), dtype=complex))
