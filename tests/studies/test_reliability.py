"""Reliability against computations by hand on IEEE 13, and the simulation against the closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dp_powerflow import Feeder, StreamKey, open_feeder
from dp_powerflow.errors import ConfigError, FeederError
from dp_powerflow.lowlevel import Study
from dp_powerflow.pipeline.modes.twin import released_connections
from dp_powerflow.studies.reliability import Reliability
from dp_powerflow.studies.study import Findings
from support.studies import given_study, stretched

KM = 0.3048e-3  # of a foot
CUT = 1.0  # switching time [h]


def exponential(mean: float) -> float:
    """E[min(R, 1 h)] of an exponential repair time."""
    return mean * (1.0 - math.exp(-CUT / mean))


@pytest.fixture(scope="module")
def ieee13() -> Feeder:
    return open_feeder("ieee13")


@pytest.fixture(scope="module")
def study(ieee13: Feeder) -> Study:
    return given_study(ieee13)


@pytest.fixture(scope="module")
def named(study: Study) -> Study:
    """The same with connections as a release has them."""
    key = StreamKey.from_insecure_seed(3)
    return replace(study, connections=released_connections(study.feeder, study.released, key))


def test_saifi_and_saidi_of_ieee13_equal_a_computation_by_hand(study: Study) -> None:
    # Customers, one for every 5 kW of a load, rounded up:
    at_671, at_634, at_645, at_646 = 231, 32 + 24 + 24, 34, 46
    at_692, at_675, at_611, at_652, at_670 = 34, 97 + 14 + 58, 34, 26, 4 + 14 + 24
    behind_switch = at_692 + at_675
    every = at_671 + at_634 + at_645 + at_646 + behind_switch + at_611 + at_652 + at_670
    assert every == 696
    # The main section: eight lines (rg60-632, 632-670, 670-671, 671-680, 632-633, 632-645, 645-646, 671-684),
    # the substation transformer, the regulator and the switch 671-692. Its faults take everyone to the end.
    main_lines = 0.065 * (2000 + 667 + 1333 + 1000 + 500 + 500 + 300 + 300) * KM
    # Behind the switch: line 692-675. The breaker trips, the switch isolates within an hour.
    behind = 0.065 * 500 * KM
    # Fused: the transformer 633-634, and the single-phase laterals 684-611 and 684-652.
    to_611, to_652 = 0.065 * 300 * KM, 0.065 * 800 * KM
    saifi = (
        (main_lines + 0.015 + 0.015 + 0.006) * every
        + behind * every
        + 0.015 * at_634
        + to_611 * at_611
        + to_652 * at_652
    ) / every
    saidi = (
        (main_lines * 5.0 + 0.015 * 10.0 + 0.015 * 10.0 + 0.006 * 4.0) * every
        + behind * (5.0 * behind_switch + exponential(5.0) * (every - behind_switch))
        + 0.015 * 10.0 * at_634
        + to_611 * 5.0 * at_611
        + to_652 * 5.0 * at_652
    ) / every
    found = Reliability().find(study).figures
    assert found["customers"] == 696
    assert found["saifi"] == pytest.approx(saifi, abs=1e-6)
    assert found["saidi_hours"] == pytest.approx(saidi, abs=1e-6)
    assert found["caidi_hours"] == pytest.approx(saidi / saifi, abs=1e-5)
    assert found["asai"] == pytest.approx(1.0 - saidi / 8760.0, abs=1e-9)


@pytest.mark.parametrize("by_load", [False, True])
def test_energy_not_served_is_the_drawn_load_times_its_hours(ieee13: Feeder, by_load: bool) -> None:
    # 1.5 times the nominal loads on average; without fuses and switches all 3466 kW share every fault.
    shape = np.array([[1.0, 2.0, 1.0, 2.0], [2.0, 1.0, 1.0, 2.0]])
    kind = Reliability(lateral_fuses="none", transformer_fuses=False, sectionalise=False, years=100)
    lines = 0.065 * (2000 + 667 + 1333 + 1000 + 500 + 500 + 300 + 300 + 500 + 300 + 800) * KM
    hours = lines * 5.0 + 2 * 0.015 * 10.0 + 0.015 * 10.0 + 0.006 * 4.0
    found = kind.find(given_study(ieee13, shape, by_load=by_load)).figures
    assert found["saidi_hours"] == pytest.approx(hours, abs=1e-6)
    assert found["ens_kwh"] == pytest.approx(1.5 * 3466.0 * hours, abs=2e-3)
    assert found["aens_kwh"] == pytest.approx(1.5 * 3466.0 * hours / 696, abs=1e-5)


def test_a_recloser_and_a_tie_restore_what_a_hand_computation_says(study: Study) -> None:
    # A recloser at 632-670, and a tie from 633 to 675: a fault in 670, 671, 680, 684 leaves 634, 645 and 646
    # alone, and 692 and 675 come back over the tie once the switch 671-692 is open.
    kind = Reliability(devices=(("632", "670"),), more_ties=(("633", "675"),), repair_law="fixed", years=100)
    head = (80 + 34 + 46, 0.065 * (2000 + 500 + 500 + 300) * KM)
    middle = 231 + 42
    below = middle + 203 + 34 + 26
    in_middle = 0.065 * (667 + 1333 + 1000 + 300) * KM
    behind, to_611, to_652 = 0.065 * 500 * KM, 0.065 * 300 * KM, 0.065 * 800 * KM
    saidi = (
        # At the head: the tie's end 633 is without voltage too, so that all wait for the repair.
        (head[1] * 5.0 + 2 * 0.015 * 10.0) * 696
        + (in_middle * 5.0 + 0.006 * 4.0) * (middle + 34 + 26)
        + (in_middle + 0.006) * 1.0 * 203
        + behind * (5.0 * 203 + 1.0 * (below - 203))
        + 0.015 * 10.0 * 80
        + to_611 * 5.0 * 34
        + to_652 * 5.0 * 26
    ) / 696
    assert kind.find(study).figures["saidi_hours"] == pytest.approx(saidi, abs=1e-6)
    too_few_phases = kind.model_copy(update={"more_ties": (("646", "675"),)})
    assert too_few_phases.find(study).figures["saidi_hours"] > saidi + 1e-3


@pytest.mark.parametrize("law", ["exponential", "fixed"])
def test_simulation_agrees_with_the_closed_form(ieee13: Feeder, law: Any) -> None:
    shape = np.tile([0.2, 1.0, 3.0, 0.8], (2, 1))
    kind = Reliability(repair_law=law, years=100_000, seed=5, switching_hours=2.0)
    found = kind.compute(given_study(ieee13, shape))
    system, years = found.expected.system, found.simulated
    for exact, values in (
        (system.saifi, years.saifi),
        (system.saidi_hours, years.saidi_hours),
        (system.ens_kwh, years.ens_kwh),
    ):
        error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - exact) < 3.5 * error
        assert error < 0.02 * exact


def test_contributions_add_up_and_name_public_buses(study: Study, named: Study) -> None:
    assert "elements.parquet" not in Reliability(years=100).find(study).tables
    found = Reliability(years=100).find(named)
    table, figures = found.tables["elements.parquet"].to_pydict(), found.figures
    assert None not in table["from_bus"] + table["to_bus"]
    assert set(table["kind"]) == {"line", "switch", "transformer"}
    for column in ("saifi", "saidi_hours"):
        assert sum(table[column]) == pytest.approx(figures[column], abs=1e-4)
        assert sum(part[column] for part in figures["by_part"].values()) == pytest.approx(
            figures[column], abs=1e-4
        )
    nodes = found.tables["nodes.parquet"].to_pydict()
    assert sum(nodes["ens_kwh_per_year"]) == pytest.approx(figures["ens_kwh"], abs=0.05)
    assert {item.id for item in found.items if hasattr(item, "id")} == {"contribution", "years", "map"}


def test_longer_lines_fail_more_often_and_nothing_else_of_the_network_matters(study: Study) -> None:
    kind = Reliability(switch_per_year=0.0, transformer_per_year=0.0, regulator_per_year=0.0, years=100)
    once = kind.find(study).figures["saidi_hours"]
    twice = kind.find(replace(study, feeder=stretched(study.feeder, 2.0))).figures["saidi_hours"]
    assert twice == pytest.approx(2.0 * once, abs=2e-6)
    other = replace(study.feeder, y=2.0 * study.feeder.y)
    assert _same(kind.find(study), kind.find(replace(study, feeder=other)))


def test_workers_do_not_change_a_bit(ieee13: Feeder) -> None:
    shape = np.linspace(0.1, 1.7, 5 * 4).reshape(5, 4)
    kind, study = Reliability(years=200), given_study(ieee13, shape)
    assert _same(kind.find(study, workers=1), kind.find(study, workers=2))


def test_declared_customers_are_counted(study: Study) -> None:
    customers = np.zeros(len(study.feeder.loads), dtype=np.int64)
    customers[0] = 7  # all at bus 671, which every fault of the main section and behind the switch reaches
    found = Reliability(years=100).find(replace(study, customers=customers)).figures
    assert (found["customers"], found["customers_declared"]) == (7, True)
    main = 0.065 * (2000 + 667 + 1333 + 1000 + 500 + 500 + 300 + 300 + 500) * KM + 0.015 + 0.015 + 0.006
    assert found["saifi"] == pytest.approx(main, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"repair_law": "weekly"}, "exponential"), ({"devices": [["632", "632"]]}, "one bus twice")],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Reliability.model_validate(settings)


def test_unfit_studies_are_refused_in_one_sentence(study: Study) -> None:
    lines = tuple(replace(line, length_m=None) for line in study.feeder.lines)
    with pytest.raises(FeederError, match="length of every line"):
        Reliability().check(replace(study, feeder=replace(study.feeder, lines=lines)))
    with pytest.raises(ConfigError, match="one per load"):
        Reliability().check(replace(study, customers=np.zeros(2, dtype=np.int64)))
    with pytest.raises(ConfigError, match="joined by no line"):
        Reliability(devices=(("632", "675"),)).check(study)
    with pytest.raises(ConfigError, match="two voltages"):
        Reliability(more_ties=(("634", "675"),)).check(study)
    with pytest.raises(FeederError, match="loop"):
        Reliability().check(replace(study, feeder=_with_loop(study.feeder)))


def test_open_switches_of_ieee123_are_ties() -> None:
    study = given_study(open_feeder("ieee123"))
    kind = Reliability(years=100)
    with_ties, without = kind.find(study).figures, kind.model_copy(update={"ties": False}).find(study).figures
    assert (with_ties["ties"], without["ties"]) == (2, 0)
    assert with_ties["saifi"] == without["saifi"]
    assert with_ties["saidi_hours"] < without["saidi_hours"]


def _with_loop(feeder: Feeder) -> Feeder:
    """A line between 680 and 675."""
    y = feeder.y.tolil()
    index = feeder.node_index
    nodes = tuple(index[f"{bus}.1"] for bus in ("680", "675"))
    block = np.array([[1.0, -1.0], [-1.0, 1.0]]) * (1.0 - 2.0j)
    for i, row in enumerate(nodes):
        for j, column in enumerate(nodes):
            y[row, column] += block[i, j]
    line = next(line for line in feeder.lines if line.name == "692675")
    new = replace(line, name="loop", nodes=nodes, primitive=block)
    return replace(feeder, y=y.tocsc(), lines=(*feeder.lines, new))


def _same(one: Findings, other: Findings) -> bool:
    return one.figures == other.figures and all(
        table.equals(other.tables[name]) for name, table in one.tables.items()
    )
