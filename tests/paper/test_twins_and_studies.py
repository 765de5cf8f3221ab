"""Experiments on twins and derived releases: rows, errors against the true network, stored and taken up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dp_powerflow_paper import twin
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.derived import experiment
from dp_powerflow_paper.derived.studies import CASES, TRUE, Bench, Compared, Measure, figure, reliability
from dp_powerflow_paper.derived.tables import row_of
from dp_powerflow_paper.run import Store, Written
from dp_powerflow_paper.twin import surrogate


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The experiment on IEEE 13 alone, two draws of one kind: so few are made in this process."""
    kinds = {kind: (1.0,) for kind in twin.KINDS if kind.words == "Laplace on lengths"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin, "KINDS", kinds)
        patch.setattr(twin, "_QUICK", twin._Size(2, 0, 3))
        patch.setattr(twin, "settings_of", lambda options: [surrogate("ieee13")])
        return twin.run(ExperimentOptions(out=tmp_path_factory.mktemp("twin"), quick=True))


def test_every_row_has_both_yardsticks_and_both_distances(twins: Written) -> None:
    assert "| Laplace on lengths | 1 / 8.31 | 0 | 0.393 / 0.984 |" in twins.text
    content = json.loads(Path(twins.files[1]).read_text())
    (row,) = content["rows"]["ieee13"]
    assert 0.0 < row["pooled"][0] < row["worst_node"][0]
    assert (row["draws"], row["failed"]) == (2, 0)


def test_the_floor_is_that_of_the_line_that_matters_most_and_states_its_range(twins: Written) -> None:
    chains = json.loads(Path(twins.files[1]).read_text())["floors"]["ieee13"]
    assert [chain["element"].split()[0] for chain in chains] == ["line", "capacitor"]
    assert "times its size | 1 | 1e-06 |" in twins.text
    assert all(0.0 < chain["pooled"] < chain["node"] for chain in chains)


def test_twins_are_kept_as_text_table_data_and_picture(twins: Written) -> None:
    assert [path.name for path in twins.files] == ["twin.md", "twin.json", "twin.svg", "twin.png"]
    assert all(path.stat().st_size for path in twins.files)
    assert (twins.files[0].parent / "twin" / "table-ieee13.json").is_file()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ExperimentOptions:
    return ExperimentOptions(out=tmp_path_factory.mktemp("derived"), data="simulated", quick=True)


@pytest.fixture(scope="module")
def written(options: ExperimentOptions) -> Written:
    """Reliability alone, one run of every case in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "QUICK", experiment.Size(1, 2))
        patch.setattr(experiment, "compared", lambda: (reliability(),))
        return experiment.run(options, workers=1)


@pytest.mark.slow
def test_loads_alone_leave_saifi_and_a_twin_alone_leaves_the_load(written: Written) -> None:
    content = json.loads(next(path for path in written.files if path.suffix == ".json").read_text())
    rows = {(row["case"], row["figure"]): row for row in content["rows"]}
    _, loads, twin, both, _ = (case.words for case in CASES)
    assert rows[loads, "SAIFI"]["median"] == 0.0
    assert rows[loads, "energy not served"]["median"] != 0.0
    assert rows[twin, "SAIFI"]["median"] == rows[both, "SAIFI"]["median"] != 0.0
    assert abs(rows[both, "SAIFI"]["median"]) < 0.1
    assert all(row["failed"] == 0 for row in rows.values())


@pytest.mark.slow
def test_a_second_run_takes_up_what_is_stored(written: Written, options: ExperimentOptions) -> None:
    folder = next(path for path in options.out.iterdir() if path.is_dir()) / "reliability"
    stored = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(stored) == {"true-0.json", "other-days-0.json", *(f"{case.name}-0.json" for case in CASES)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "QUICK", experiment.Size(1, 2))
        patch.setattr(experiment, "compared", lambda: (reliability(),))
        patch.setattr(Bench, "study", None)
        again = experiment.run(options, workers=1)
    assert again.text == written.text
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == stored


@pytest.mark.slow
def test_results_are_kept_as_text_table_data_and_picture(written: Written) -> None:
    assert [path.suffix for path in written.files] == [".md", ".json", ".svg", ".png"]
    assert all(path.stat().st_size for path in map(Path, written.files))


def test_a_row_has_median_and_range_of_relative_errors_and_counts_failures() -> None:
    compared = Compared("", "", reliability().kind, (Measure("SAIFI", "1/yr", figure("saifi")),))
    true = {"SAIFI": np.array([2.0, 0.0])}
    found = [{"SAIFI": np.array([value, 5.0])} for value in (1.0, 2.0, 4.0)]
    row = row_of(compared, compared.measures[0], TRUE, true, [*found, None])
    assert (row.median, row.runs, row.failed, row.left_out) == (0.0, 4, 1, 1)
    assert (row.low, row.high, row.size) == pytest.approx((-0.475, 0.95, 0.5))


def test_a_figure_that_is_not_there_is_stored_as_null_and_read_back(tmp_path: Path) -> None:
    compared = Compared(
        "one", "", reliability().kind, (Measure("x", "1", lambda _: np.array([1.5, np.nan])),)
    )
    store = Store(tmp_path, "fingerprint")

    class Nothing:
        """A kind that finds nothing, on a bench without a study."""

        study = find = lambda *_, **__: None

    kinds = (replace(compared, kind=cast(Any, Nothing())),)
    for _ in range(2):
        found = experiment.computed(cast(Any, Nothing()), kinds, {"one": store}, (TRUE, 0))["one"]
        assert found is not None
        np.testing.assert_array_equal(found["x"], [1.5, np.nan])
    assert json.loads(next(tmp_path.iterdir()).read_text())["result"] == {"x": [1.5, None]}
