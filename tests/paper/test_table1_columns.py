"""Columns of Table II that are measured, tested or audited, on a small network with planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dp_powerflow import Feeder, TwinDesign
from dp_powerflow.lowlevel import Solver
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.mechanisms import Setting
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee, LoadMechanism
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.iid import LaplaceLoads
from dp_powerflow_paper.sources.loads import TrueLoads
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters
from dp_powerflow_paper.sources.networks import TrueNetwork, Twin
from dp_powerflow_paper.table1.auditing import audit_row, lower_bound, small_bench, small_data
from dp_powerflow_paper.table1.bench import Bench, release
from dp_powerflow_paper.table1.measures import daily_peak, lag1, w1_per_node
from dp_powerflow_paper.table1.measuring import epsilon_after, probe_days, probe_network
from dp_powerflow_paper.table1.rows import Kind, Made, Row


@pytest.fixture(scope="module")
def bench() -> Bench:
    return small_bench(small_data())


# ------------------------------------------------------------------------------------------ figures


def test_distance_of_loads_is_that_of_each_node_by_itself() -> None:
    true = np.random.default_rng(0).random((3, 8, 2))
    moved = true + np.array([0.1, 0.3])
    assert w1_per_node(moved, true) == pytest.approx(0.2)
    assert w1_per_node(np.tile(true, (5, 1, 1)), true) == pytest.approx(0.0, abs=0.02)


def test_lag1_is_near_one_of_a_slow_course_near_zero_of_noise_and_missing_of_a_constant() -> None:
    at = np.linspace(0.0, 2.0 * np.pi, 96)
    slow = np.broadcast_to(2.0 + np.sin(at)[None, :, None], (2, 96, 3))
    noise = np.random.default_rng(1).random((20, 96, 3))
    assert lag1(slow) == pytest.approx(1.0, abs=0.02)
    assert abs(lag1(noise) or 0.0) < 0.05
    assert lag1(np.ones((2, 96, 3))) is None
    assert lag1(np.full((2, 96, 3), np.nan)) is None


def test_the_true_data_are_at_no_distance_and_obey_their_own_physics(bench: Bench) -> None:
    figures = bench.truth.figures
    assert (figures.w1_load, figures.w1_pooled, figures.w1_per_node, figures.failed) == (0.0, 0.0, 0.0, 0.0)
    assert figures.peak_error == 0.0
    assert figures.residual is not None
    noisy = bench.truth.voltages + 1e-3 * np.random.default_rng(2).standard_normal(bench.truth.voltages.shape)
    assert (bench.truth.residual(noisy) or 0.0) > 5.0 * figures.residual
    assert bench.truth.residual(np.full_like(noisy, np.nan)) is None
    assert daily_peak(2.0 * bench.truth.load) == pytest.approx(2.0 * daily_peak(bench.truth.load))


def test_a_release_with_its_parts_is_the_release_of_the_composition(bench: Bench) -> None:
    made = Composition(bench.setting, laplace(bench), Twin(bench.data.feeder, TwinDesign(1.0)))
    parts = release(made, bench.generator("x", 0), 1)
    assert np.array_equal(parts.voltages, made.release(bench.generator("x", 0), 1))


# -------------------------------------------------------------------------- columns that are tested


def laplace(bench: Bench, *, slot: bool = False) -> LaplaceLoads:
    return LaplaceLoads(Meters.of(bench.data, bench.truth.days), 1.0, SLOT if slot else DAY)


CLAIM = Guarantee(1.0, 0.0, "any number of days", ONE_CUSTOMER_DAY, True)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Days drawn around the true load; `repeated` gives the same day again and again."""

    load: ComplexArray
    guarantee: Guarantee = CLAIM
    repeated: bool = False
    name: str = "drawn"
    unlimited: bool = True

    @property
    def noise_std(self) -> dict[str, float]:
        return {}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        factors = generator.random(1 if self.repeated else days)[:, None, None]
        around = self.load[:1] * (0.9 + 0.1 * factors)
        return np.asarray(np.broadcast_to(around, (days, *self.load.shape[1:])))


def on_true(bench: Bench, loads: LoadMechanism) -> Composition:
    return Composition(bench.setting, loads, TrueNetwork(bench.data.feeder))


def test_ten_times_the_days_are_asked_for_and_must_differ_at_the_same_epsilon(bench: Bench) -> None:
    assert probe_days(on_true(bench, Drawn(bench.truth.load)), bench).passed is True
    assert probe_days(on_true(bench, Drawn(bench.truth.load, repeated=True)), bench).passed is False
    daily = replace(CLAIM, unit="day", composes="per day")
    spent = probe_days(on_true(bench, Drawn(bench.truth.load, daily)), bench)
    assert spent.passed is False
    assert "ε 1 → 10" in spent.words
    noisy = probe_days(on_true(bench, laplace(bench)), bench)
    assert noisy.passed is False
    assert "reads a true day" in noisy.words


def test_epsilon_adds_up_over_what_a_claim_covers() -> None:
    daily = replace(CLAIM, unit="day", composes="per day")
    step = replace(CLAIM, unit="step", composes="per snapshot")
    assert [epsilon_after(claim, 10, 96) for claim in (CLAIM, daily, step)] == [1.0, 10.0, 960.0]


def test_loads_that_stay_when_a_line_changes_have_no_mark_and_those_that_follow_it_are_found(
    bench: Bench,
) -> None:
    def honest(bench: Bench, fit: int) -> Made:
        return on_true(bench, laplace(bench))

    def peeking(bench: Bench, fit: int) -> Made:
        size = float(np.abs(bench.data.feeder.y.data).sum())
        return on_true(bench, TrueLoads(bench.truth.load * (1.0 + 1e-6 * size)))

    for make, passed in ((honest, None), (peeking, True)):
        made = make(bench, 0)
        assert isinstance(made, Composition)
        assert probe_network(bench, make, made, only_loads=True).passed is passed


@dataclass(frozen=True, eq=False)
class Frozen(TrueNetwork):
    """The same network whatever the true one is."""

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        return small_data().solver()


@pytest.mark.slow
def test_the_true_network_is_told_from_a_twin_and_from_a_network_that_never_changes(bench: Bench) -> None:
    def true(bench: Bench, fit: int) -> Made:
        return on_true(bench, TrueLoads(bench.truth.load))

    def twin(bench: Bench, fit: int) -> Made:
        network = Twin(bench.data.feeder, TwinDesign(1.0))
        return Composition(bench.setting, TrueLoads(bench.truth.load), network)

    def frozen(bench: Bench, fit: int) -> Made:
        return Composition(bench.setting, TrueLoads(bench.truth.load), Frozen(bench.data.feeder))

    found = {}
    for make in (true, twin, frozen):
        made = make(bench, 0)
        assert isinstance(made, Composition)
        found[make.__name__] = probe_network(bench, make, made, only_loads=False)
    assert {name: probe.passed for name, probe in found.items()} == {
        "true": True,
        "twin": False,
        "frozen": False,
    }
    assert "network with noise" in found["twin"].words
    assert "bit for bit" in found["frozen"].words


# ------------------------------------------------------------------------------------------- audits


def test_the_lower_bound_is_below_the_epsilon_of_laplace_noise_and_near_it() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.laplace(0.0, 1.0, (1, 20_000)), rng.laplace(1.0, 1.0, (1, 20_000))
    found = lower_bound(first, second, 0.0)
    assert 0.8 < found <= 1.0
    assert lower_bound(first, second, 0.5) < 0.2
    assert lower_bound(first, first[:, ::-1], 0.0) < 0.05


def audited(make_scale: float) -> float:
    """Of Laplace noise per slot that claims ε = 1 and has a share of the noise it needs."""

    def make(bench: Bench, fit: int) -> Made:
        loads = laplace(bench, slot=True)
        weak = replace(loads, epsilon=loads.epsilon / make_scale, name="weak")
        stated = _Stated(weak, loads.guarantee)
        return on_true(bench, stated)

    row = Row("laplace", "Laplace", "iid-noise", Kind.LOADS, make=make)
    found: float = audit_row(row, 1500)["loads"]
    return found


@dataclass(frozen=True, eq=False)
class _Stated:
    """Loads of one mechanism with the claim of another."""

    loads: LaplaceLoads
    guarantee: Guarantee
    name: str = "planted"
    unlimited: bool = False

    @property
    def noise_std(self) -> dict[str, float]:
        return {}

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        return self.loads.draw(generator, days)


@pytest.mark.slow
def test_an_audit_stays_below_a_true_claim_and_refutes_noise_of_a_quarter() -> None:
    assert 0.3 < audited(1.0) <= 1.0
    assert audited(0.25) > 1.0
