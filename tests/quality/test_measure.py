"""Every figure agrees with an independent computation; planted cases, and what a result may depend on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.quality import Guarantee, Promise, Quality, measure
from dp_powerflow.quality.tally import LEVELS
from dp_powerflow.units import FloatArray
from support.quality_corpora import Feeder3

FEEDER = Feeder3()


# --- every figure, computed once more by NumPy and SciPy ---
@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return FEEDER.write(tmp_path_factory.mktemp("quality") / "corpus")


@pytest.fixture(scope="module")
def found(corpus: Corpus) -> Quality:
    return measure(corpus)


@pytest.fixture(scope="module")
def vm(corpus: Corpus) -> FloatArray:
    """(day, step, node) [p.u.]"""
    return corpus.phasors().exact()[0]


def quantiles(values: FloatArray, axis: int | tuple[int, ...]) -> FloatArray:
    """The definition of order statistics that NumPy calls the inverted distribution function."""
    return np.asarray(np.quantile(values, np.array(LEVELS) / 100, axis=axis, method="inverted_cdf"))


def test_shares_and_extremes_are_those_of_all_voltages(found: Quality, vm: FloatArray) -> None:
    voltages = found.voltages
    assert voltages.count == vm.size
    assert voltages.inside_a == pytest.approx(np.mean((vm >= 0.95) & (vm <= 1.05)), abs=1e-12)
    assert voltages.inside_b == pytest.approx(np.mean((vm >= 0.917) & (vm <= 1.058)), abs=1e-12)
    for extreme, at in ((voltages.lowest, vm.argmin()), (voltages.highest, vm.argmax())):
        day, step, node = (int(k) for k in np.unravel_index(at, vm.shape))
        assert (extreme.day, extreme.step, extreme.node) == (day, step, f"n{node:02d}")
        assert extreme.value_pu == vm[day, step, node]


def test_figures_of_nodes_are_those_of_each_node(found: Quality, vm: FloatArray) -> None:
    nodes = found.voltages.nodes
    np.testing.assert_array_equal(nodes.lowest_pu, vm.min(axis=(0, 1)))
    np.testing.assert_array_equal(nodes.highest_pu, vm.max(axis=(0, 1)))
    np.testing.assert_allclose(nodes.mean_pu, vm.mean(axis=(0, 1)), atol=0.5001e-6)
    np.testing.assert_allclose(nodes.inside_a, np.mean((vm >= 0.95) & (vm <= 1.05), axis=(0, 1)), atol=1e-12)


def test_the_histogram_counts_every_voltage_by_phase(found: Quality, vm: FloatArray) -> None:
    voltages = found.voltages
    rounded = (np.rint(vm * 1_000_000).astype(np.int64) + 50) // 100 / 10_000
    for phase in range(3):
        expected, _ = np.histogram(rounded[:, :, phase::3], voltages.edges_pu)
        np.testing.assert_array_equal(voltages.counts[phase], expected)
    assert voltages.counts.sum() == vm.size
    assert voltages.groups == ("phase 1", "phase 2", "phase 3")


def test_bands_are_quantiles_by_time_of_day_and_phase(found: Quality, vm: FloatArray) -> None:
    band = found.voltages.band_pu
    np.testing.assert_allclose(band[0], quantiles(vm, (0, 2)), atol=0.51e-4)
    for phase in range(3):
        np.testing.assert_allclose(band[1 + phase], quantiles(vm[:, :, phase::3], (0, 2)), atol=0.51e-4)


def test_the_correlation_is_pearsons(found: Quality, vm: FloatArray) -> None:
    of = found.voltages.correlation
    expected = np.asarray(np.corrcoef(vm.reshape(-1, vm.shape[2]).T))
    np.testing.assert_allclose(of.values, expected[np.ix_(of.nodes, of.nodes)], atol=0.51e-4)
    # By phase, then from the source along the feeder.
    assert of.nodes.tolist() == [*range(0, 15, 3), *range(1, 15, 3), *range(2, 15, 3)]


def test_sample_days_are_the_days_of_the_rule(found: Quality, corpus: Corpus, vm: FloatArray) -> None:
    samples = found.voltages.samples
    assert samples.days[:2] == (0, FEEDER.days // 2)
    assert {found.voltages.lowest.day, found.voltages.highest.day} <= set(samples.days)
    shown = vm[np.ix_(samples.days, range(FEEDER.steps), samples.nodes)].transpose(0, 2, 1)
    np.testing.assert_allclose(samples.vm_pu, shown, atol=0.51e-5)
    means = vm.mean(axis=(0, 1))
    for phase in range(3):
        own = means[phase::3]
        assert {3 * own.argmin() + phase, 3 * own.argmax() + phase} <= set(samples.nodes)


def test_unbalance_is_negative_over_positive_sequence(found: Quality, corpus: Corpus) -> None:
    assert found.unbalance is not None
    v = corpus.voltages().reshape(FEEDER.days, FEEDER.steps, FEEDER.buses, 3)
    a = np.exp(2j * np.pi / 3)
    positive, negative = v @ np.array([1, a, a**2]), v @ np.array([1, a**2, a])
    percent = 100 * np.abs(negative) / np.abs(positive)
    np.testing.assert_allclose(found.unbalance.largest_percent, percent.max(axis=(0, 1)), atol=1e-4)
    np.testing.assert_allclose(found.unbalance.band_percent, quantiles(percent, (0, 2)), atol=1e-4)
    assert found.unbalance.above_two == pytest.approx(np.mean(percent > 2.0), abs=1e-12)


def test_powers_are_sums_over_the_feeder(found: Quality, corpus: Corpus) -> None:
    expected = {
        "feeder head": corpus.head().real.sum(axis=2),
        "loads": corpus.loads().real.sum(axis=2),
        "generation": corpus.generation().real.sum(axis=2),
    }
    assert [power.name for power in found.powers] == list(expected)
    for power in found.powers:
        kw = expected[power.name]
        np.testing.assert_allclose(power.band_kw, quantiles(kw, 0), atol=0.51e-3)
        np.testing.assert_allclose(power.energy_mwh, kw.sum(axis=1) * 24 / FEEDER.steps / 1000, atol=0.51e-4)
        np.testing.assert_allclose(power.peak_kw, kw.max(axis=1), atol=0.51e-3)
        np.testing.assert_allclose(power.carpet_kw, kw.T, atol=0.051)
        assert power.largest_kw == pytest.approx(kw.max(), abs=0.51e-3)
        assert power.mean_kw == pytest.approx(kw.mean(), abs=0.51e-3)
        # At least as large for that share of the time.
        share = 100 * stats.percentileofscore(kw.ravel(), power.duration_kw[100], kind="strict") / 100
        assert share == pytest.approx(50.0, abs=1.0)
        assert np.all(np.diff(power.duration_kw) <= 0)


def test_states_are_counted_by_time_of_day(found: Quality, corpus: Corpus) -> None:
    assert found.controls is not None
    assert found.scaled_down is not None
    taps, capacitors, scaled_down = corpus.taps(), corpus.capacitors(), corpus.scaled_down()
    np.testing.assert_array_equal(found.controls.taps[:, 0], taps.min(axis=0).T)
    np.testing.assert_array_equal(found.controls.taps[:, 2], taps.max(axis=0).T)
    median = np.quantile(taps, 0.5, axis=0, method="inverted_cdf").T
    np.testing.assert_array_equal(found.controls.taps[:, 1], median)
    moves = np.abs(np.diff(taps, axis=1)).sum(axis=(0, 1)) / FEEDER.days
    np.testing.assert_allclose(found.controls.tap_moves, moves, atol=0.51e-3)
    np.testing.assert_allclose(found.controls.closed, capacitors.mean(axis=(0, 1)), atol=1e-12)
    switched = np.abs(np.diff(capacitors, axis=1)).sum(axis=(0, 1)) / FEEDER.days
    np.testing.assert_allclose(found.controls.switchings, switched, atol=0.51e-3)
    assert found.controls.locked == pytest.approx(corpus.locked().mean(), abs=1e-12)
    assert (found.scaled_down.snapshots, found.scaled_down.most) == (
        int(np.count_nonzero(scaled_down)),
        int(scaled_down.max()),
    )


def test_the_network_shows_its_buses_at_their_voltage(found: Quality, vm: FloatArray) -> None:
    network = found.network
    assert network is not None
    assert network.pairs.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert network.source == (True, False, False, False, False)
    shown = vm[list(network.days)].reshape(len(network.days), FEEDER.steps, FEEDER.buses, 3)
    np.testing.assert_allclose(network.vm / 10_000, np.moveaxis(shown, -1, 1), atol=0.51e-4)


# --- planted cases, and what a result may depend on ---
def test_workers_and_parts_change_nothing(tmp_path: Path) -> None:
    one = measure(FEEDER.write(tmp_path / "one"), workers=1)
    many = measure(Feeder3(days_per_part=1).write(tmp_path / "many"), workers=4)
    assert one.to_json() == many.to_json()
    assert one.to_html() == many.to_html()


def test_without_connections_nodes_are_grouped_by_angle(tmp_path: Path) -> None:
    found = measure(FEEDER.write(tmp_path / "corpus", connections=False, extras=False))
    assert found.voltages.grouped_by == "angle"
    assert found.voltages.groups == ("near 0°", "near 120°", "near −120°")
    assert found.voltages.nodes.group.tolist() == [0, 2, 1] * FEEDER.buses
    assert (found.network, found.controls, found.scaled_down, found.powers) == (None, None, None, ())
    assert found.unbalance is None
    assert b"The release does not say the phases" in found.to_html()


def test_balanced_voltages_have_no_unbalance_and_a_rotated_feeder_neither(tmp_path: Path) -> None:
    for name, turns in (("abc", (0, -120, 120)), ("acb", (0, 120, -120))):
        v = np.ones((FEEDER.days, FEEDER.steps, 1)) * np.exp(1j * np.deg2rad(np.tile(turns, FEEDER.buses)))
        found = measure(FEEDER.write(tmp_path / name, v)).unbalance
        assert found is not None
        assert found.largest_percent.max() <= 1e-3


def test_a_planted_low_voltage_is_found_where_it_is(tmp_path: Path) -> None:
    v = FEEDER.voltages()
    v[7, 13, 4] *= 0.6
    found = measure(FEEDER.write(tmp_path / "corpus", v))
    lowest = found.voltages.lowest
    assert (lowest.day, lowest.step, lowest.node) == (7, 13, "n04")
    assert 7 in found.voltages.samples.days
    assert found.network is not None
    assert 7 in found.network.days
    assert b"node n04, day 7 at 13:00" in found.to_html()


def test_voltages_beyond_the_bins_are_counted_at_their_ends(tmp_path: Path) -> None:
    v = FEEDER.voltages()
    v[0, 0, 0], v[0, 0, 1], v[:, :, 5] = 0.2, 3.0, 1.0
    told: list[tuple[int, int]] = []
    voltages = measure(FEEDER.write(tmp_path / "c", v), progress=lambda *days: told.append(days)).voltages
    assert told[-1] == (FEEDER.days, FEEDER.days)
    moves = voltages.correlation.nodes != 5  # a voltage that never moves has no correlation
    assert np.array_equal(np.isnan(voltages.correlation.values), ~np.outer(moves, moves))
    assert voltages.counts.sum() == v.size
    assert (voltages.lowest.value_pu, voltages.highest.value_pu) == (0.2, 3.0)
    assert voltages.counts.shape[1] <= 101


def test_many_steps_are_shown_at_96_times_of_day(tmp_path: Path) -> None:
    feeder = Feeder3(days=2, steps=288)
    found = measure(feeder.write(tmp_path / "corpus"))
    assert found.voltages.slots_minutes.tolist() == list(range(0, 1440, 15))
    assert found.voltages.band_pu.shape == (4, 7, 96)


def test_json_holds_every_figure_and_the_promise(tmp_path: Path) -> None:
    words = Guarantee("The customers", "ε ≤ 1", "per load point", ("<b>It holds.</b>",), True)
    found = measure(FEEDER.write(tmp_path / "corpus"), Promise(words, words, ("Beware.",)))
    parsed = json.loads(found.to_json())
    assert parsed["promise"]["loads"]["figure"] == "ε ≤ 1"
    assert parsed["voltages"]["lowest"]["value_pu"] == found.voltages.lowest.value_pu
    assert len(parsed["voltages"]["nodes"]["mean_pu"]) == found.nodes
    page = found.to_html()
    assert b"&lt;b&gt;It holds.&lt;/b&gt;" in page
    assert b"Beware." in page
    assert found._repr_html_().startswith("<iframe")


def test_coordinates_are_used_and_the_page_says_what_that_means(tmp_path: Path) -> None:
    found = measure(FEEDER.write(tmp_path / "corpus", coordinates=True))
    assert found.network is not None
    assert found.network.coordinates is not None
    assert b"lengths of lines are not protected" in found.to_html()
    laid = measure(FEEDER.write(tmp_path / "laid"))
    assert b"lengths and directions mean nothing" in laid.to_html()


@pytest.mark.slow
def test_the_page_of_a_feeder_with_ten_thousand_nodes_stays_below_3_mb(tmp_path: Path) -> None:
    feeder = Feeder3(buses=3400, days=2, steps=24, days_per_part=1)
    found = measure(feeder.write(tmp_path / "corpus", coordinates=True))
    assert found.nodes == 10_200
    assert len(found.voltages.correlation.nodes) == 150
    assert len(found.to_html()) < 3_000_000
