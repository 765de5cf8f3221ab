"""Theorem 1 on IEEE 123 with the OEDI profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_powerflow.errors import ConfigError, LoadDataError
from dp_powerflow_paper import theorem
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset
from dp_powerflow_paper.run import run_experiment
from dp_powerflow_paper.theorem import FLOORS, run_theorem, to_json, to_markdown


@pytest.mark.slow
def test_formula_falls_with_the_floor_through_the_papers_range(oedi: Path, tmp_path: Path) -> None:
    data = open_dataset(ExperimentOptions(tmp_path, oedi=oedi))
    rows = run_theorem(data, calibration_days=40)
    assert [row.floor for row in rows] == list(FLOORS)
    found = [row.formula for row in rows]
    sums = [samples.median.formula for samples in found]
    assert sums == sorted(sums, reverse=True)
    # Beyond the paper's 200: docs/results/network.md says what explains it and what does not.
    assert 200 < sums[0] < 600
    assert 25 < sums[-1] < 100
    for row, samples in zip(rows, found, strict=True):
        assert samples.least.formula <= samples.median.formula <= samples.most.formula < samples.day.formula
        # None of it is claimed: at r = 1e-4 no mode has a bound on this feeder.
        assert all(mode.day.epsilon is None for mode in row.evidence.rows)
        assert row.evidence.amplification.exact == pytest.approx(7.575, rel=1e-3)
        assert (row.evidence.n, row.evidence.hidden) == (96, 12)
    text = to_markdown(data.words, rows)
    assert "Formula as printed, with the exact κ, not a bound here" in text
    assert "9 PV systems under volt-var control" in text
    json.dumps(to_json(rows), allow_nan=False)


@pytest.mark.slow
def test_a_quick_run_on_diverse_customers_leaves_out_what_has_no_power_flow(tmp_path: Path) -> None:
    written = run_experiment("theorem", ExperimentOptions(tmp_path, data="simulated", quick=True))
    assert [path.name for path in written.files] == ["theorem-quick.md", "theorem-quick.json"]
    content = json.loads(written.files[1].read_text(encoding="utf-8"))
    assert [row["floor"] for row in content] == [FLOORS[0], FLOORS[-1]]
    assert content[0]["evidence"]["policy"]["calibration_days"] == theorem.QUICK_DAYS
    assert "| corrected |" in written.text
    assert "Full support has no number" in written.text


def test_wrong_names_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no experiment 'nope'"):
        run_experiment("nope", ExperimentOptions(tmp_path, calibration_days=20))
    with pytest.raises(ConfigError, match="--oedi"):
        run_experiment("theorem", ExperimentOptions(tmp_path, calibration_days=20))
    with pytest.raises(LoadDataError, match="not the OEDI folder"):
        run_experiment("theorem", ExperimentOptions(tmp_path, oedi=tmp_path, calibration_days=20))
