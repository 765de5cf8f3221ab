"""The examples that learn: they run, print their table, and beat what needs no learning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Table = dict[str, list[float | None]]


def printed(name: str, folder: Path) -> Table:
    """Rows of the table that a quick run of an example ends with; None for a cell without a number."""
    sources = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--quick"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []  # nothing is left behind
    rows = [
        re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if re.search(r"\d$|-$", line)
    ]
    return {name: [None if cell == "-" else float(cell) for cell in cells] for name, *cells in rows if cells}


@pytest.mark.campaign
def test_forecasts_learned_from_a_release_beat_those_without_learning_on_the_true_feeder(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    table = printed("next_day_voltage.py", tmp_path)
    assert list(table) == ["yesterday again", "mean of the last week", "linear", "neural network"]
    released = {name: cells[0] for name, cells in table.items()}
    simplest = min(released["yesterday again"] or 0.0, released["mean of the last week"] or 0.0)
    for learned in ("linear", "neural network"):
        assert 0.0 < (released[learned] or 0.0) < 0.95 * simplest


@pytest.mark.slow
def test_a_graph_network_learns_power_flow_of_networks_it_never_saw(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    table = printed("train_surrogate.py", tmp_path)
    assert len(table) == 6
    assert table["regression on the loads"][2] is None  # it knows buses by number: useless on another feeder
    for test in (1, 2):  # networks and a feeder that were not trained on
        for learned, without in (
            ("graph network", "no load at all"),
            ("linearised, then graph network", "linearised power flow"),
        ):
            assert 0.0 < (table[learned][test] or 0.0) < 0.9 * (table[without][test] or 0.0)
