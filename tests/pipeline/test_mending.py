"""A release on a twin cannot fail for physics: a snapshot without solution is mended by a public rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import MENDING, LoadBlock, LoadSource, solve_days
from dp_powerflow.pipeline import release as pipeline
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import Scene, mode_of
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.operated import OperatedSolver
from dp_powerflow.privacy.state import PrivateState
from support.small import CORNERS, small_config, tree_hash

TWIN: dict[str, Any] = {"mode": "twin-network", "id": "t1", "epsilon": 8.0, "released": "all"}
# Far more load than the lines bear: thousands of customers where there is room for hundreds.
HEAVY: dict[str, Any] = {"kw_per_customer": 0.7}
WEAK = """
Clear
New Circuit.weak basekv=4.16 bus1=s pu=1.0 R1=0.05 X1=0.1 R0=0.05 X0=0.1
New Line.a bus1=s bus2=x r1=0.4 x1=0.8 r0=0.8 x0=1.6 c1=0 c0=0 length=3 units=km
New Load.one bus1=x phases=3 kv=4.16 kW=900 kvar=300 vminpu=0.01 vlowpu=0.005
Set VoltageBases=[4.16]
CalcVoltageBases
"""


def heavy(folder: Path, **network: Any) -> Any:
    (folder / "weak.dss").write_text(WEAK)
    return small_config(
        folder,
        feeder={"source": "weak.dss"},
        nodes=HEAVY,
        network=TWIN | network,
        release={"days": 30},
    )


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mended")
    run_release(heavy(folder), workers=1)
    return folder


def published(folder: Path) -> Corpus:
    return open_corpus(folder / "out")


def drawn_again(folder: Path) -> tuple[Scene, LoadSource]:
    """The twin and the loads of the release, from its key."""
    config = heavy(folder)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    inputs, mode = read_inputs(config, state), mode_of(config)
    model = LoadModel.load(folder / "out" / "model.json")
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    return scene, mode.source(scene, pipeline.draw_key(inputs, scene), config.release.days)


def test_snapshots_without_solution_are_released_marked_and_counted(mended: Path) -> None:
    corpus = published(mended)
    count = int(np.count_nonzero(corpus.mended()))
    assert 0 < count < corpus.mended().size
    report = verify_release(mended / "out")
    assert report.intact, report.failures
    stated = (mended / "out" / "manifest.json").read_text()
    assert f'"mended_snapshots": {count}' in stated
    assert np.isfinite(corpus.voltages()).all()


def test_powers_are_what_was_drawn_times_a_power_of_the_rule(mended: Path) -> None:
    """Draw again from the key: the released load of a mended snapshot is the drawn one times 0.95^k."""
    _, source = drawn_again(mended)
    drawn_kw = source.block(0).load_kw.sum(axis=0)
    corpus = published(mended)
    released_kw = corpus.loads().real.sum(axis=2)
    assert released_kw == pytest.approx(drawn_kw * MENDING ** corpus.mended(), rel=1e-4)


def test_a_mended_snapshot_is_the_first_that_solves(mended: Path) -> None:
    """One multiplication less, and there is no solution: no more is taken than the rule says."""
    scene, source = drawn_again(mended)
    solver = OperatedSolver(scene.network.feeder, controls="snapshot", tolerance=1e-12)
    made = solve_days(solver, source, mend=True)
    touched = np.flatnonzero(made.mended)
    assert made.solution.converged.all()
    assert touched.size
    before = solver.solve(made.load[touched] / MENDING)
    assert not before.converged.any()


def test_mending_gives_the_same_bytes_in_two_processes_and_after_a_resume(
    mended: Path, tmp_path: Path
) -> None:
    run_release(heavy(tmp_path), workers=2)
    assert tree_hash(tmp_path / "out") == tree_hash(mended / "out")


def test_the_frozen_frame_is_mended_too(tmp_path: Path) -> None:
    run_release(heavy(tmp_path, controls="frozen"), workers=1)
    assert np.count_nonzero(published(tmp_path).mended())
    assert verify_release(tmp_path / "out").intact


class Endless:
    """Loads that no network bears, nor a ten-thousandth of them."""

    def __init__(self, law: Any) -> None:
        self.law, self.n_days, self.n_blocks = law, 1, 1

    def block(self, index: int) -> LoadBlock:
        """One day."""
        load = np.full((len(self.law.positions), 1, self.law.steps), 1e18)
        return LoadBlock(0, load, load)


def test_a_network_that_bears_nothing_at_all_ends_in_a_sentence(mended: Path) -> None:
    scene, source = drawn_again(mended)
    solver = OperatedSolver(scene.network.feeder, controls="snapshot")
    with pytest.raises(PowerFlowError, match="next to no power"):
        solve_days(solver, Endless(source.law), mend=True)


def test_the_true_network_is_not_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CORNERS, lambda *_: None)
    (tmp_path / "weak.dss").write_text(WEAK)
    config = small_config(
        tmp_path,
        feeder={"source": "weak.dss"},
        nodes={"load_class": "residential", "scale_factor": 60.0},
        release={"days": 5},
    )
    with pytest.raises(PowerFlowError, match=r"no solution for a day|no power-flow solution"):
        run_release(config, workers=1)
