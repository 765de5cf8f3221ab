"""Ticks of the measured comparison follow from numbers, and from nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dp_powerflow_paper.sources import BY_RADIUS, ONE_CUSTOMER_DAY, SAME_MANIFOLD, Guarantee
from dp_powerflow_paper.table1 import output
from dp_powerflow_paper.table1.printed import PRINTED, Column, Mark
from dp_powerflow_paper.table1.results import Claim, Measured, Probe, summary
from dp_powerflow_paper.table1.rows import Kind, Row
from dp_powerflow_paper.table1.tables import EXPLAINED
from dp_powerflow_paper.table1.ticks import MOST_LAG1, MOST_W1, RULES, Tick, tick, together

PROVED = Guarantee(1.0, 1e-5, "any number of days", ONE_CUSTOMER_DAY, True)
claims = st.builds(
    lambda epsilon, proved, jointly, audited: Claim(
        replace(PROVED, epsilon=epsilon, proved=proved, jointly=jointly, remark="a claim"), audited
    ),
    st.one_of(st.floats(0.0, 100.0), st.just(math.inf)),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.floats(0.0, 10.0)),
)


def measured(**more: object) -> Measured:
    return Measured("row", "data", **more)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.none(), claims))
def test_load_dp_is_ticked_if_and_only_if_the_claim_is_finite_proved_joint_and_not_refuted(
    claim: Claim | None,
) -> None:
    holds = (
        claim is not None
        and math.isfinite(claim.guarantee.epsilon)
        and claim.guarantee.proved
        and claim.guarantee.jointly
        and (claim.audited is None or claim.audited <= claim.guarantee.epsilon)
    )
    found = tick(Column.LOAD_DP, measured(loads=claim))
    assert found.mark is (Mark.YES if holds else Mark.NO)
    assert found.because
    network = (
        None if claim is None else replace(claim, guarantee=replace(claim.guarantee, adjacency=BY_RADIUS))
    )
    assert tick(Column.TOPOLOGY_DP, measured(network=network)).mark is found.mark


def test_neighbours_on_one_manifold_are_no_topology() -> None:
    claim = Claim(replace(PROVED, adjacency=SAME_MANIFOLD))
    assert tick(Column.TOPOLOGY_DP, measured(network=claim)).mark is Mark.NO


@settings(max_examples=300, deadline=None)
@given(st.floats(0.0, 0.01), st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.booleans())
def test_fidelity_is_ticked_if_and_only_if_distance_and_correlation_are_within_the_rule(
    w1: float, own: float, true: float, noisy: bool
) -> None:
    # Where noise is on the voltages the loads' correlation must not count, and the other way round.
    name, other = ("lag1_voltage", "lag1_load") if noisy else ("lag1_load", "lag1_voltage")
    found = measured(
        figures={"w1_pooled": (w1, 0.0), name: (own, 0.0), other: (-5.0, 0.0)},
        true={name: true, other: 5.0},
        noisy_voltages=noisy,
    )
    faithful = w1 <= MOST_W1 and abs(own - true) <= MOST_LAG1
    assert tick(Column.FIDELITY, found).mark is (Mark.YES if faithful else Mark.NO)


def test_rules_are_those_of_the_specification() -> None:
    assert (MOST_W1, MOST_LAG1) == (0.002, 0.2)
    assert set(RULES) == set(Column)


def test_a_release_without_any_solution_is_not_faithful_and_another_release_has_no_mark() -> None:
    assert tick(Column.FIDELITY, measured(figures={"failed": (1.0, 0.0)})).mark is Mark.NO
    assert tick(Column.FIDELITY, measured(other={"cost gap": (0.1, 0.0)})).mark is Mark.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("passed", "mark"), [(True, Mark.YES), (False, Mark.NO), (None, Mark.NOT_APPLICABLE)]
)
def test_tested_columns_show_what_the_test_found(passed: bool | None, mark: Mark) -> None:
    probe = Probe(passed, "seen")
    assert tick(Column.UNLIMITED, measured(unlimited=probe)) == Tick(mark, "seen")
    assert tick(Column.TRUE_Y, measured(true_y=probe)) == Tick(mark, "seen")


def test_an_absent_row_has_no_marks_and_says_why() -> None:
    found = measured(absent="not built yet")
    assert all(tick(column, found) == Tick(Mark.UNKNOWN, "not built yet") for column in Column)


def test_a_mark_of_several_data_sets_needs_all_of_them() -> None:
    yes, no, unknown = Tick(Mark.YES, "fine"), Tick(Mark.NO, "far"), Tick(Mark.UNKNOWN, "absent")
    assert together({"a": yes, "b": yes}) == yes
    assert together({"a": yes, "b": unknown}) == yes
    assert together({"a": yes, "b": no}) == Tick(Mark.NO, "b: far")
    assert together({"a": unknown, "b": unknown}).mark is Mark.UNKNOWN


def test_the_printed_table_is_the_papers() -> None:
    marks = {key: "".join(mark.value for mark in row.marks) for key, row in PRINTED.items()}
    assert marks == {
        "iid-noise": "✓✗✗✗n/a",
        "federated": "✓✗✗✗n/a",
        "dpwgan": "✓✗✗✓n/a",
        "y-noise": "✗✓✗✗✗",
        "opf-noise": "✗✗✗✗✓",
        "bilevel": "✓✗✗✗✓",
        "k-means": "✓✗✗✓n/a",
        "dp-gmm": "✓✗✓✓n/a",
        "grid-datasets": "✗✗✓✗✗",
        "dp-powerflow": "✓✓✓✓✓",
    }


def test_an_explanation_is_of_a_mark_that_the_paper_does_not_have() -> None:
    cells = [(printed, *cell.split()) for printed, marks in EXPLAINED.items() for cell in marks]
    for printed, column, mark in ((row, Column[name], Mark[ours]) for row, name, ours in cells):
        assert PRINTED[printed].mark(column) is not mark


def test_figures_that_a_run_lacks_are_left_out_of_the_mean() -> None:
    found = summary([{"w1": 1.0, "lag": None}, {"w1": 3.0, "lag": None}, {"w1": None, "lag": None}])
    assert found["w1"] == pytest.approx((2.0, 1.0))
    assert "lag" not in found


def test_marks_of_one_epsilon_stand_in_one_band_that_is_labelled_with_it() -> None:
    axes = Figure().subplots()
    rows = [Row(str(k), f"row {k}", None, Kind.LOADS) for k in range(5)]
    epsilons = (1.0, 1.0, 96.0, 1.0, 25.0)
    drawn = [
        output.Mark(row, epsilon, (0.001 * (1 + k), 0.0), keeps_time=True)
        for k, (row, epsilon) in enumerate(zip(rows, epsilons, strict=True))
    ]
    handles = output.draw_panel(axes, drawn, {row.key: k for k, row in enumerate(rows)})
    assert axes.get_xscale() == "linear"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "25", "96"]
    borders = [0.0, 3.0, 4.0, 5.0]
    for mark in drawn:
        (at,) = handles[mark.row.key].lines[0].get_xdata()
        band = np.searchsorted(borders, at) - 1
        assert (1.0, 25.0, 96.0)[band] == mark.epsilon
