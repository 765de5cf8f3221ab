"""The comparison: rows, files and resumption on a small network; marks; columns with planted mistakes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import Feeder, TwinDesign
from dp_powerflow.errors import ConfigError, MissingExtraError
from dp_powerflow.lowlevel import Solver
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions
from dp_powerflow_paper.mechanisms import Setting
from dp_powerflow_paper.sources import (
    BY_RADIUS,
    ONE_CUSTOMER_DAY,
    SAME_MANIFOLD,
    Guarantee,
    LoadMechanism,
    NetworkMechanism,
    Noiseless,
)
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import OtherEntry
from dp_powerflow_paper.sources.iid import LaplaceLoads
from dp_powerflow_paper.sources.loads import TrueLoads
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters
from dp_powerflow_paper.sources.networks import TrueNetwork, Twin
from dp_powerflow_paper.sources.registry import LOADS, NETWORKS, OTHERS
from dp_powerflow_paper.table1 import experiment, rows
from dp_powerflow_paper.table1.auditing import audit_row, lower_bound, small_bench, small_data
from dp_powerflow_paper.table1.bench import Bench, Scale, release
from dp_powerflow_paper.table1.measures import daily_peak, lag1, w1_per_node
from dp_powerflow_paper.table1.measuring import probe_days, probe_network
from dp_powerflow_paper.table1.printed import PRINTED, Column, Mark
from dp_powerflow_paper.table1.results import Claim, Measured, Probe
from dp_powerflow_paper.table1.rows import Gives, Made, Row, all_rows, printed_row
from dp_powerflow_paper.table1.tables import EXPLAINED
from dp_powerflow_paper.table1.ticks import MOST_LAG1, MOST_W1, Tick, tick, together
from support.tables import tables_of

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
    for adjacency, topology in ((BY_RADIUS, found.mark), (SAME_MANIFOLD, Mark.NO)):
        network = claim and replace(claim, guarantee=replace(claim.guarantee, adjacency=adjacency))
        assert tick(Column.TOPOLOGY_DP, measured(network=network)).mark is topology


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


def test_marks_without_figures_of_tests_and_of_several_data_sets() -> None:
    assert tick(Column.FIDELITY, measured(figures={"failed": (1.0, 0.0)})).mark is Mark.NO
    assert tick(Column.FIDELITY, measured(other={"cost gap": (0.1, 0.0)})).mark is Mark.NOT_APPLICABLE
    for passed, mark in ((True, Mark.YES), (False, Mark.NO), (None, Mark.NOT_APPLICABLE)):
        probe = Probe(passed, "seen")
        assert tick(Column.UNLIMITED, measured(unlimited=probe)) == Tick(mark, "seen")
        assert tick(Column.TRUE_Y, measured(true_y=probe)) == Tick(mark, "seen")
    yes, no, unknown = Tick(Mark.YES, "fine"), Tick(Mark.NO, "far"), Tick(Mark.UNKNOWN, "absent")
    assert together({"a": yes, "b": yes}) == together({"a": yes, "b": unknown}) == yes
    assert together({"a": yes, "b": no}) == Tick(Mark.NO, "b: far")
    assert together({"a": unknown, "b": unknown}).mark is Mark.UNKNOWN


def test_an_explanation_is_of_a_mark_that_the_paper_does_not_have() -> None:
    for printed, marks in EXPLAINED.items():
        for cell in marks:
            name, ours = cell.split()
            assert PRINTED[printed].mark(Column[name]) is not Mark[ours]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return small_bench(small_data())


def test_distances_are_of_each_node_and_lag1_tells_a_slow_course_from_noise(bench: Bench) -> None:
    true = np.random.default_rng(0).random((3, 8, 2))
    assert w1_per_node(true + np.array([0.1, 0.3]), true) == pytest.approx(0.2)
    assert w1_per_node(np.tile(true, (5, 1, 1)), true) == pytest.approx(0.0, abs=0.02)
    slow = np.broadcast_to(2.0 + np.sin(np.linspace(0.0, 2.0 * np.pi, 96))[None, :, None], (2, 96, 3))
    assert lag1(slow) == pytest.approx(1.0, abs=0.02)
    assert abs(lag1(np.random.default_rng(1).random((20, 96, 3))) or 0.0) < 0.05
    assert lag1(np.ones((2, 96, 3))) is lag1(np.full((2, 96, 3), np.nan)) is None
    # The true data are at no distance and obey their own physics.
    figures, voltages = bench.truth.figures, bench.truth.voltages
    at_no_distance = (figures.w1_load, figures.w1_pooled, figures.w1_per_node, figures.failed)
    assert (*at_no_distance, figures.peak_error) == (0.0,) * 5
    assert figures.residual is not None
    noisy = voltages + 1e-3 * np.random.default_rng(2).standard_normal(voltages.shape)
    assert (bench.truth.residual(noisy) or 0.0) > 5.0 * figures.residual
    assert bench.truth.residual(np.full_like(noisy, np.nan)) is None
    assert daily_peak(2.0 * bench.truth.load) == pytest.approx(2.0 * daily_peak(bench.truth.load))


# -------------------------------------------------------------------------- columns that are tested


def laplace(bench: Bench) -> LaplaceLoads:
    return LaplaceLoads(Meters.of(bench.data, bench.truth.days), 1.0, DAY)


@dataclass(frozen=True, eq=False)
class Drawn(Noiseless):
    """Days drawn around the true load; `repeated` gives the same day again and again."""

    load: ComplexArray
    guarantee: Guarantee = PROVED
    repeated: bool = False
    name: str = "drawn"
    unlimited: bool = True

    def draw(self, generator: np.random.Generator, days: int) -> ComplexArray:
        factors = generator.random(1 if self.repeated else days)[:, None, None]
        around = self.load[:1] * (0.9 + 0.1 * factors)
        return np.asarray(np.broadcast_to(around, (days, *self.load.shape[1:])))


def made_of(bench: Bench, loads: LoadMechanism, network: NetworkMechanism | None = None) -> Composition:
    return Composition(bench.setting, loads, network or TrueNetwork(bench.data.feeder))


def test_ten_times_the_days_are_asked_for_and_must_differ_at_the_same_epsilon(bench: Bench) -> None:
    load, daily = bench.truth.load, replace(PROVED, unit="day", composes="per day")
    for loads, passed, words in (
        (Drawn(load), True, ""),
        (Drawn(load, repeated=True), False, ""),
        (Drawn(load, daily), False, "ε 1 → 10"),
        (laplace(bench), False, "reads a true day"),
    ):
        probe = probe_days(made_of(bench, loads), bench)
        assert probe.passed is passed
        assert words in probe.words


def test_loads_that_stay_when_a_line_changes_have_no_mark_and_those_that_follow_it_are_found(
    bench: Bench,
) -> None:
    def honest(bench: Bench, fit: int) -> Made:
        return made_of(bench, laplace(bench))

    def peeking(bench: Bench, fit: int) -> Made:
        size = float(np.abs(bench.data.feeder.y.data).sum())
        return made_of(bench, TrueLoads(bench.truth.load * (1.0 + 1e-6 * size)))

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
    for network, passed, words in (
        (TrueNetwork, True, ""),
        (lambda feeder: Twin(feeder, TwinDesign(1.0)), False, "network with noise"),
        (Frozen, False, "bit for bit"),
    ):

        def make(bench: Bench, fit: int, network: Any = network) -> Composition:
            return made_of(bench, TrueLoads(bench.truth.load), network(bench.data.feeder))

        made = make(bench, 0)
        parts = release(made, bench.generator("x", 0), 1)
        assert np.array_equal(parts.voltages, made.release(bench.generator("x", 0), 1))
        probe = probe_network(bench, make, made, only_loads=False)
        assert probe.passed is passed
        assert words in probe.words


# ------------------------------------------------------------------------------------------- audits


def test_the_lower_bound_is_below_the_epsilon_of_laplace_noise_and_near_it() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.laplace(0.0, 1.0, (1, 20_000)), rng.laplace(1.0, 1.0, (1, 20_000))
    assert 0.8 < lower_bound(first, second, 0.0) <= 1.0
    assert lower_bound(first, second, 0.5) < 0.2
    assert lower_bound(first, first[:, ::-1], 0.0) < 0.05


@dataclass(frozen=True, eq=False)
class Weak(LaplaceLoads):
    """The planted bug: a share of the noise that the claim needs."""

    share: float = 1.0

    @property
    def scale(self) -> FloatArray:
        return self.share * super().scale


@pytest.mark.slow
@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.25, False)])
def test_an_audit_stays_below_a_true_claim_and_refutes_noise_of_a_quarter(share: float, holds: bool) -> None:
    """Laplace noise per slot that claims ε = 1 and has a share of the noise it needs."""

    def make(bench: Bench, fit: int) -> Made:
        return made_of(bench, Weak(Meters.of(bench.data, bench.truth.days), 1.0, SLOT, share=share))

    found = audit_row(Row("laplace", "Laplace", "iid-noise", Gives.LOADS, make=make), 1500)["loads"]
    assert found > 0.3
    assert (found <= 1.0) is holds


MARKS = tables_of(__file__)["MARKS"]
"""Row, column and mark of some that are certain."""
TINY = Scale(days=2, runs=2, trainings=1, calibration_days=20, audits=4, quick=True)
PAGE = Path(__file__).parents[2] / "docs" / "results" / "comparison.md"


def tiny_data(options: ExperimentOptions) -> Dataset:
    """IEEE 13 under two days of four steps."""
    data = small_data()
    relative = np.random.default_rng(5).uniform(*data.margins, data.relative.shape)
    return replace(data, name="tiny", relative=relative, history=replace(data.history, load_kw=relative))


class Dispatch:
    """A release of something else than voltages."""

    name, kind = "a dispatch", "a dispatch"
    guarantees = (Guarantee(1.0, 0.1, "any number of days", ONE_CUSTOMER_DAY, True, jointly=False),)

    def measure(self, generator: np.random.Generator) -> dict[str, float]:
        return {"cost gap [%]": 8.0 + float(generator.random())}


OTHER = OtherEntry(key="opf", title="a dispatch", paper="dvorkin2020", make=lambda occasion: Dispatch())


def no_extra(bench: Bench, fit: int) -> Made:
    raise MissingExtraError("torch", "ml")


@pytest.mark.slow
def test_every_row_is_in_every_file_and_a_second_run_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny network for every data set; models that take a training are not installed; one more entry."""
    monkeypatch.setattr(experiment, "open_dataset", tiny_data)
    monkeypatch.setattr(experiment, "QUICK", TINY)
    monkeypatch.setattr(rows, "OTHERS", (OTHER,))
    built = tuple(row if row.extra is None else replace(row, make=no_extra) for row in all_rows())
    monkeypatch.setattr(experiment, "all_rows", lambda: built)
    seen: list[tuple[int, int]] = []
    options = ExperimentOptions(
        tmp_path, data="simbench", quick=True, progress=lambda done, of: seen.append((done, of))
    )
    written = experiment.run(options, workers=1)
    files = {path.name: path.read_bytes() for path in written.files}
    assert set(files) == {f"table1-quick.{form}" for form in ("json", "md", "png", "svg")}
    content = json.loads(files["table1-quick.json"])
    assert [line["key"] for line in content["rows"]] == [row.key for row in built]
    assert all(f"| {row.title} |" in written.text for row in built)
    assert seen[-1][0] == seen[-1][1] > 0

    # What is not installed, not built, or refuses the data says so.
    by_key = {line["key"]: line["measured"]["simbench"] for line in content["rows"]}
    assert "dp-powerflow[ml]" in by_key["loads-wgan"]["absent"]
    assert by_key["not-built-dvorkin2023differentially"]["absent"] == "not built yet"
    assert "needs at least 14 days" in by_key["loads-history"]["absent"]
    # A release of something else has cells of its own, and takes the place of the row that was not built.
    assert "not-built-dvorkin2020differentially" not in by_key
    assert "not a voltage release" in written.text
    assert "cost gap [%] 8." in written.text
    # Numbers and marks of some rows that are certain.
    assert by_key["loads-true"]["figures"]["w1_pooled"][0] == 0.0
    ticks = {line["key"]: line["ticks"] for line in content["rows"]}
    for key, column, mark in MARKS:
        assert ticks[key][column]["mark"] == mark, (key, column)
    disagreements = {(one["row"], one["column"]) for one in content["disagreements"]}
    assert ("dp-powerflow-literal", "topology DP") in disagreements

    def refusing(original: Any) -> Any:
        def call(*given: object) -> Any:
            # A row that is not installed is asked for again, which costs nothing and finds it once it is.
            assert any(isinstance(each, Row) and each.extra is not None for each in given)
            return original(*given)

        return call

    for name in ("measure_chunk", "audit_row"):
        monkeypatch.setattr(experiment, name, refusing(getattr(experiment, name)))
    second = experiment.run(options, workers=1)
    assert second.text == written.text
    # Identifiers within an SVG are drawn anew.
    assert all(path.read_bytes() == files[path.name] for path in second.files if path.suffix != ".svg")


def test_a_data_set_that_is_not_here_is_named_and_one_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    this = experiment.Run(ExperimentOptions(tmp_path, quick=True), TINY, ())
    benches, left_out = experiment.open_benches(this)
    assert (set(benches), set(left_out)) == ({"simbench"}, {"oedi", "swiss"})
    with pytest.raises(ConfigError, match="--swiss"):
        experiment.open_benches(replace(this, options=replace(this.options, data="swiss")))
    assert experiment.tasks_of(this, benches) == []


def test_every_entry_of_the_registry_and_every_citation_of_the_paper_has_a_row_also_on_the_page() -> None:
    built = all_rows()
    keys = [row.key for row in built]
    assert len(set(keys)) == len(keys)
    entries = {"loads": LOADS, "network": NETWORKS, "other": OTHERS}
    expected = {f"{kind}-{entry.key}" for kind, of_kind in entries.items() for entry in of_kind}
    assert expected - {"network-true"} <= set(keys)
    assert printed_row(OTHER) == "opf-noise"
    assert set(PRINTED) <= {row.printed for row in built}
    page = PAGE.read_text(encoding="utf-8")
    block = page[page.index("<!-- table1:begin -->") : page.index("<!-- table1:end -->")]
    for row in built:
        assert (row.make is None) == row.key.startswith("not-built-")
        assert f"| {row.title} |" in block, row.title
