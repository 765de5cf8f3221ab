"""The experiment about twins: real draws, rows with both yardsticks, the floor with its range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_powerflow_paper import twin
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.run import Written
from dp_powerflow_paper.twin import surrogate


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The experiment on IEEE 13 alone, two draws of one kind: so few are made in this process."""
    kinds = {kind: (1.0,) for kind in twin.KINDS if kind.words == "Laplace on lengths"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twin, "KINDS", kinds)
        patch.setattr(twin, "_QUICK", twin._Size(2, 0, 3))
        patch.setattr(twin, "settings_of", lambda options: [surrogate("ieee13")])
        return twin.run(ExperimentOptions(out=tmp_path_factory.mktemp("twin"), quick=True))


def test_every_row_has_both_yardsticks_and_both_distances(written: Written) -> None:
    assert "| Laplace on lengths | 1 / 8.31 | 0 | 0.393 / 0.984 |" in written.text
    content = json.loads(Path(written.files[2]).read_text())
    (row,) = content["rows"]["ieee13"]
    assert 0.0 < row["pooled"][0] < row["worst_node"][0]
    assert (row["draws"], row["failed"]) == (2, 0)


def test_the_floor_is_that_of_the_line_that_matters_most_and_states_its_range(written: Written) -> None:
    chains = json.loads(Path(written.files[2]).read_text())["floors"]["ieee13"]
    assert [chain["element"].split()[0] for chain in chains] == ["line", "capacitor"]
    assert "times its size | 1 | 1e-06 |" in written.text
    assert all(0.0 < chain["pooled"] < chain["node"] for chain in chains)


def test_results_are_kept_as_text_table_data_and_picture(written: Written) -> None:
    assert [path.name for path in written.files] == [
        "twin.md",
        "twin.csv",
        "twin.json",
        "twin.svg",
        "twin.png",
    ]
    assert all(path.stat().st_size for path in written.files)
    assert (written.files[0].parent / "twin" / "table-ieee13.json").is_file()
