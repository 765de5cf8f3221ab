"""Planted cases, and what a result may depend on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import CorpusError
from dp_powerflow.quality import Guarantee, Promise, measure
from support.quality_corpora import Feeder3

FEEDER = Feeder3()


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


def test_a_damaged_part_is_one_sentence(tmp_path: Path) -> None:
    corpus = FEEDER.write(tmp_path / "corpus")
    (tmp_path / "corpus" / "data" / "part-00001.parquet").write_bytes(b"not Parquet")
    with pytest.raises(CorpusError, match="part-00001"):
        measure(corpus)


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
