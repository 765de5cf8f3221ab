"""The comparison from start to end on a small network: rows, files, resumption, what is absent."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import ConfigError, MissingExtraError
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions
from dp_powerflow_paper.sources import ONE_CUSTOMER_DAY, Guarantee
from dp_powerflow_paper.sources.entries import OtherEntry
from dp_powerflow_paper.sources.registry import LOADS, NETWORKS, OTHERS
from dp_powerflow_paper.table1 import experiment, rows
from dp_powerflow_paper.table1.auditing import small_data
from dp_powerflow_paper.table1.bench import Bench, Scale
from dp_powerflow_paper.table1.experiment import open_benches, run, tasks_of
from dp_powerflow_paper.table1.printed import PRINTED
from dp_powerflow_paper.table1.results import Check
from dp_powerflow_paper.table1.rows import Kind, Made, Row, all_rows, printed_row

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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Row, ...]:
    """The tiny network for every data set; models that take a training are not installed; one more entry."""
    monkeypatch.setattr(experiment, "open_dataset", tiny_data)
    monkeypatch.setattr(experiment, "QUICK", TINY)
    monkeypatch.setattr(rows, "OTHERS", (OTHER,))
    built = tuple(row if row.extra is None else replace(row, make=no_extra) for row in all_rows())
    monkeypatch.setattr(experiment, "all_rows", lambda: built)
    return built


@pytest.mark.slow
def test_every_row_is_in_every_file_and_a_second_run_computes_nothing(
    small: tuple[Row, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    options = ExperimentOptions(
        tmp_path, data="simbench", quick=True, progress=lambda done, of: seen.append((done, of))
    )
    written = run(options, workers=1)
    files = {path.name: path.read_bytes() for path in written.files}
    assert set(files) == {f"table1-quick.{form}" for form in ("csv", "json", "md", "html", "png", "svg")}
    lines = list(csv.DictReader(io.StringIO(files["table1-quick.csv"].decode())))
    assert [line["row"] for line in lines] == [row.key for row in small]
    for row in small:
        assert f"| {row.title} |" in written.text
        assert row.title.replace("'", "&#39;") in files["table1-quick.html"].decode()
    by_key = {line["row"]: line for line in lines}

    # What is not installed, not built, or refuses the data says so.
    assert "dp-powerflow[ml]" in by_key["loads-wgan"]["absent"]
    assert by_key["not-built-dvorkin2023differentially"]["absent"] == "not built yet"
    assert "needs at least 14 days" in by_key["loads-history"]["absent"]

    # A release of something else has cells of its own, and takes the place of the row that was not built.
    assert "not-built-dvorkin2020differentially" not in by_key
    assert "not a voltage release" in written.text
    assert "cost gap [%] 8." in written.text
    assert by_key["other-opf"]["load_DP"] == "✗"  # single numbers only
    assert by_key["other-opf"]["distribution_fidelity"] == "n/a"

    # Numbers and marks of some rows that are certain.
    assert float(by_key["loads-true"]["w1_pooled"]) == 0.0
    assert by_key["loads-laplace-day"]["unlimited_load_samples"] == "✗"
    assert by_key["loads-gmm-plain"]["unlimited_load_samples"] == "✓"
    assert by_key["dp-powerflow-literal"]["true_Y_in_power_flow"] == "✓"
    assert by_key["dp-powerflow-literal"]["topology_DP"] == "✗"
    assert by_key["dp-powerflow-twin"]["true_Y_in_power_flow"] == "✗"
    assert by_key["dp-powerflow-twin"]["topology_DP"] == "✓"
    content = json.loads(files["table1-quick.json"])
    assert {check["row"] for check in content["checks"]} >= {
        "loads-true",
        "network-twin",
        "dp-powerflow-literal",
    }
    assert any(
        one["row"] == "dp-powerflow-literal" and one["column"] == "topology DP"
        for one in content["disagreements"]
    )
    assert seen[-1][0] == seen[-1][1] > 0

    def again(*_: object) -> None:
        raise AssertionError("computed again")

    for name in ("measure_chunk", "audit_row"):
        original = getattr(experiment, name)
        monkeypatch.setattr(
            experiment, name, lambda *a, original=original: original(*a) if no_make(a) else again()
        )
    second = run(options, workers=1)
    assert second.text == written.text
    again_bytes = {path.name: path.read_bytes() for path in second.files}
    # Identifiers within an SVG are drawn anew.
    assert all(again_bytes[name] == files[name] for name in files if not name.endswith(".svg"))


def no_make(arguments: tuple[object, ...]) -> bool:
    """Whether a row is not installed, so that asking for it again costs nothing and finds it once it is."""
    return any(isinstance(a, Row) and a.extra is not None for a in arguments)


def test_a_data_set_that_is_not_here_is_named_and_one_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    this = experiment.Run(ExperimentOptions(tmp_path, quick=True), TINY, ())
    benches, left_out = open_benches(this)
    assert set(benches) == {"simbench"}
    assert set(left_out) == {"oedi", "swiss"}
    asked = replace(this, options=replace(this.options, data="swiss"))
    with pytest.raises(ConfigError, match="--swiss"):
        open_benches(asked)
    assert tasks_of(this, benches) == []


def test_every_entry_of_the_registry_and_every_citation_of_the_paper_has_a_row() -> None:
    keys = [row.key for row in all_rows()]
    assert len(set(keys)) == len(keys)
    assert {f"loads-{entry.key}" for entry in LOADS} <= set(keys)
    assert {f"network-{entry.key}" for entry in NETWORKS if entry.key != "true"} <= set(keys)
    assert {f"other-{entry.key}" for entry in OTHERS} <= set(keys)
    assert printed_row(OTHER) == "opf-noise"
    for key in PRINTED:
        assert any(row.printed == key for row in all_rows())
    for row in all_rows():
        assert (row.make is None) == row.key.startswith("not-built-")
        assert row.kind in Kind


def test_two_figures_agree_within_their_errors_and_not_beyond() -> None:
    near = Check("data", "row", "twin", (1.0, 0.1), (1.2, 0.1), 20)
    assert near.agrees is True
    assert replace(near, there=(1.6, 0.1)).agrees is False
    assert replace(near, there=(1.6, 0.1), runs=2).agrees is True  # two runs say little of the error
    assert replace(near, here=(0.0, 0.0), there=(0.0, 0.0)).agrees is True
    assert replace(near, here=(1.0, float("nan"))).agrees is None


def test_the_results_page_has_every_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    block = page[page.index("<!-- table1:begin -->") : page.index("<!-- table1:end -->")]
    for row in all_rows():
        assert f"| {row.title} |" in block, row.title
