"""The experiment about derived figures: real fits and twins, errors against the true network, resumable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.derived import experiment
from dp_powerflow_paper.derived.studies import CASES, TRUE, Bench, Compared, Measure, figure, reliability
from dp_powerflow_paper.derived.tables import row_of
from dp_powerflow_paper.run import Store, Written


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
    assert [path.suffix for path in written.files] == [".md", ".csv", ".json", ".svg", ".png"]
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
