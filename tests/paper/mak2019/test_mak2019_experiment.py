"""The experiment of obfuscated loads: rows are resumed, tables say what was measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.mak2019 import experiment
from dp_powerflow_paper.mak2019.experiment import Scale, measure_feeder, run

TINY = Scale(cases=(), feeder=(0.005,), draws=2)


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory of the reference cases."""
    path = Path(os.environ.get("DP_POWERFLOW_REFERENCE", "reference"))
    if not path.is_dir():
        pytest.skip("the reference cases are not here: set DP_POWERFLOW_REFERENCE to their directory")
    return path


def test_distances_on_the_feeder_are_ordered(reference: Path) -> None:
    row = measure_feeder(reference, 0.005, 4, 0)
    assert row.relaxed_far <= row.exact_far + 1e-9
    assert row.exact_far <= row.far + 1e-9
    assert row.kept == row.exact_kept == 1.0


def test_the_experiment_writes_its_tables_and_resumes(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "QUICK", TINY)
    monkeypatch.setattr(
        experiment, "measure_leak", lambda name: {"loads": 11, "worst": 1e-9, "smallest load": 0.1}
    )
    options = ExperimentOptions(out=tmp_path, quick=True, reference=reference)
    first = run(options)
    content = json.loads((tmp_path / "mak2019.json").read_text(encoding="utf-8"))
    assert content["feeder"][0]["draws"] == TINY.draws
    assert "| 0.005 | 2 |" in (tmp_path / "mak2019.md").read_text(encoding="utf-8")
    monkeypatch.setattr(experiment, "measure_feeder", lambda *_: pytest.fail("a stored row was made again"))
    assert run(options) == first
