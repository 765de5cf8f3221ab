"""The recovery experiment as a whole, on made-up voltages."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import ConfigError, LoadDataError, PowerFlowError
from dp_powerflow.paper.recovery import methods as recovery_methods
from dp_powerflow.paper.recovery.experiment import (
    Part,
    kept,
    mean_curve,
    to_csv,
    to_json,
    to_markdown,
    write_all,
)
from dp_powerflow.paper.recovery.methods import (
    DP_SGD,
    NOISE_FREE,
    Plan,
    Recovery,
    Run,
    Shared,
    Source,
    run_all,
    run_recovery,
    split_days,
)
from dp_powerflow.paper.recovery.training import Curves, Samples, Schedule, hide_blocks

pytest.importorskip("torch", reason="torch is not installed: pip install 'dp-powerflow[ml]'")
pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dp-powerflow[ml]'")

SHORT = Schedule(epochs=3, patience=3, batch=32, learning_rate=3e-3)
SMALL = Plan(
    runs=2,
    samples=128,
    batch=32,
    held_out_days=4,
    held_out_samples=20,
    adam=SHORT,
    dp_sgd=SHORT,
    rates=(0.01, 0.05),
    clips=(0.1,),
    searched_runs=1,
)
CLAIMS = {"released": {"words": "ε = 50", "proved": False, "epsilon_load": 3.0, "pooled_w1": 0.001}}


def voltages(days: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    wave = np.sin(np.arange(96) / 96 * 2 * np.pi)[None, :, None]
    return 1.0 + generator.normal(0.0, 0.01, (days, 1, 5)) + 0.02 * wave


def source() -> Source:
    return Source(
        voltages(24, 0),
        split_days(24, 4, np.random.default_rng(0)),
        {"released": lambda run, generator, days: voltages(days, int(generator.integers(1 << 30)))},
        epsilon_step=50.0,
        delta=1e-5,
    )


def quiet(done: int, total: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Recovery:
    return run_recovery(source(), SMALL, tmp_path_factory.mktemp("runs"), seed=0, workers=1, progress=quiet)


def test_days_held_out_are_nobodys_training_days() -> None:
    split = split_days(365, 60, np.random.default_rng(0))
    together = np.concatenate([split.train, split.evaluation, split.test])
    assert sorted(together) == list(range(365))
    assert (len(split.evaluation), len(split.test)) == (60, 60)
    with pytest.raises(LoadDataError, match="give at least 180"):
        split_days(179, 60, np.random.default_rng(0))


def test_training_days_are_the_fewest_that_hold_the_windows() -> None:
    assert Plan().days(96, 96) == 6  # 192 windows a day: 5 days hold 960
    assert replace(Plan(), samples=960).days(96, 96) == 5


def test_every_method_has_all_runs_and_the_budget_is_that_of_all_days(found: Recovery) -> None:
    assert list(found.curves) == [NOISE_FREE, "released", DP_SGD]
    assert all(len(runs) == 2 for runs in found.curves.values())
    assert found.days == 13  # 10 windows a day
    assert found.calibration.epsilon == 50.0 * 96 * 13
    assert found.calibration.steps == 3 * 4
    assert found.dp_sgd[1].noise_multiplier == found.calibration.leading_order
    assert set(found.searched) == {(0.1, 0.01), (0.1, 0.05)}
    best = min(found.searched, key=lambda pair: found.searched[pair])
    assert found.dp_sgd[0].learning_rate == pytest.approx(best[1] / best[0])


def test_mean_and_standard_error_are_over_runs() -> None:
    runs = tuple(
        Curves(np.array([v, 2 * v]), np.array([1.0, 0.5]), np.array([v, 3 * v]), best=1, stopped=1)
        for v in (1.0, 2.0, 6.0)
    )
    curve = mean_curve(runs, "test")
    np.testing.assert_allclose(curve.mean, [3.0, 9.0])
    # Deviations −2, −1, 3: variance 7, standard error √(7/3).
    np.testing.assert_allclose(curve.error, [np.sqrt(7 / 3), 3 * np.sqrt(7 / 3)])
    assert kept(runs, "train") == pytest.approx((6.0, 2 * np.sqrt(7 / 3)))


def test_tables_and_figures_say_what_was_found(found: Recovery, tmp_path: Path) -> None:
    written = write_all("made up", [Part(50.0, found, CLAIMS)], tmp_path / "new")
    text, paths = written.text, written.files
    assert [path.suffix for path in paths] == [".md", ".csv", ".json", ".png", ".svg"]
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[4].read_bytes()
    assert f"{1e6 * kept(found.curves[DP_SGD], 'test')[0]:.3g}" in text
    assert "| released | ε = 50 | no | 3 | 0.001 |" in text
    rows = list(csv.DictReader(io.StringIO(to_csv([Part(50.0, found, CLAIMS)]))))
    assert len(rows) == 3 * 3
    assert float(rows[0]["test_mse_mean"]) == pytest.approx(
        mean_curve(found.curves[NOISE_FREE], "test").mean[0], rel=1e-8
    )
    stored = json.loads(paths[2].read_text(encoding="utf-8"))
    assert stored["insecure_seed"] is True
    part = stored["epsilons"][0]
    assert part["claims"]["released"]["proved"] is False
    assert part["methods"][NOISE_FREE]["best_epoch"] == [run.best + 1 for run in found.curves[NOISE_FREE]]


def test_a_run_that_diverged_is_null_in_json_and_not_hidden(found: Recovery) -> None:
    nan = np.full(3, np.nan)
    broken = replace(found, curves={**found.curves, DP_SGD: (Curves(nan, nan, nan, 0, 2),)})
    parts = [Part(50.0, broken, CLAIMS)]
    stored = to_json("made up", parts)
    json.dumps(stored, allow_nan=False)
    assert stored["epsilons"][0]["methods"][DP_SGD]["test_mse"] == [None]
    assert "| DP-SGD | nan" in to_markdown("made up", parts)


def test_a_run_is_not_trained_twice_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []
    real = recovery_methods.execute

    def counted(runs: Sequence[Run], shared: Shared) -> list[Curves]:
        trained.extend((run.method, run.seed) for run in runs)
        return real(runs, shared)

    monkeypatch.setattr(recovery_methods, "execute", counted)
    told: list[tuple[int, int]] = []

    def go(given: Source, plan: Plan = SMALL) -> Recovery:
        trained.clear()
        told.clear()
        return run_recovery(
            given,
            plan,
            tmp_path,
            seed=0,
            workers=1,
            progress=lambda done, total: told.append((done, total)),
        )

    first = go(source())
    assert len(trained) == 2 + 3 * 2
    assert told[-1] == (8, 8)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    second = go(source())
    assert trained == []
    for name, runs in first.curves.items():
        for one, other in zip(runs, second.curves[name], strict=True):
            np.testing.assert_array_equal(one.test, other.test)
    (tmp_path / "released-e50-1.json").write_text("{ half a fi", encoding="utf-8")
    go(source())
    assert trained == [("released e50", 1)]
    go(source(), replace(SMALL, adam=replace(SHORT, learning_rate=1e-3)))
    assert {name for name, _ in trained} == {NOISE_FREE, "released e50"}
    go(replace(source(), epsilon_step=25.0), replace(SMALL, adam=replace(SHORT, learning_rate=1e-3)))
    assert {name for name, _ in trained} >= {"DP-SGD e25"}  # other noise
    assert NOISE_FREE not in {name for name, _ in trained}


@pytest.mark.slow
def test_processes_find_what_one_process_finds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        return Samples(generator.normal(1.0, 0.01, (count, 48)), hide_blocks(count, generator))

    shared = Shared(samples(20), samples(20))
    runs = [Run(f"adam {seed}", seed, samples(64), SHORT) for seed in range(2)]
    alone = run_all(runs, shared, tmp_path / "alone", workers=1, progress=quiet)
    together = run_all(runs, shared, tmp_path / "together", workers=2, progress=quiet)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.test, other.test)


def test_failed_power_flow_and_bad_folders_are_one_sentence(tmp_path: Path) -> None:
    holes = replace(
        source(), releases={"broken": lambda run, generator, days: np.full((days, 96, 5), np.nan)}
    )
    with pytest.raises(PowerFlowError, match="power flow failed on days of 'broken'"):
        run_recovery(holes, SMALL, tmp_path / "a", seed=0, workers=1, progress=quiet)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be made"):
        run_all([], Shared(None, None), tmp_path / "file" / "runs", workers=1, progress=quiet)  # type: ignore[arg-type]
