"""Windows with a hidden block, and guesses whose error is known."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow_paper.recovery.training import (
    Samples,
    cut_windows,
    draw_samples,
    hidden_mse,
    hide_blocks,
    interpolated,
    observed_mean,
    windows_per_day,
)


def block_at(first: int, count: int = 1) -> np.ndarray:
    hidden = np.zeros((count, 48), dtype=bool)
    hidden[:, first : first + 24] = True
    return hidden


def test_a_day_of_96_steps_has_two_windows_that_share_three_hours() -> None:
    assert windows_per_day(96) == 2
    assert windows_per_day(48) == 1
    assert windows_per_day(120) == 3
    vm = np.arange(3 * 96 * 5, dtype=float).reshape(3, 96, 5)
    windows = cut_windows(vm)
    assert windows.shape == (3 * 2 * 5, 48)
    for day in range(3):
        for node in range(5):
            early, late = windows[(day * 2 + 0) * 5 + node], windows[(day * 2 + 1) * 5 + node]
            np.testing.assert_array_equal(early, vm[day, :48, node])
            np.testing.assert_array_equal(late, vm[day, 36:84, node])
            np.testing.assert_array_equal(early[36:], late[:12])


def test_a_day_too_short_for_a_window_is_refused() -> None:
    with pytest.raises(LoadDataError, match="has 24; use data of 15 minutes"):
        cut_windows(np.ones((2, 24, 3)))


def test_hidden_blocks_are_contiguous_24_long_and_equally_likely() -> None:
    hidden = hide_blocks(20_000, np.random.default_rng(0))
    assert (hidden.sum(axis=1) == 24).all()
    edges = np.abs(np.diff(hidden.astype(int), axis=1, prepend=0, append=0)).sum(axis=1)
    assert (edges == 2).all()  # one beginning and one end: one block
    counts = np.bincount(hidden.argmax(axis=1), minlength=25)
    assert len(counts) == 25
    assert np.abs(counts - 800).max() < 5 * np.sqrt(800)


def test_samples_are_different_windows_and_too_many_are_refused() -> None:
    vm = np.random.default_rng(1).normal(1.0, 0.01, (2, 96, 4))
    samples = draw_samples(vm, 16, np.random.default_rng(2))
    assert len(np.unique(samples.values, axis=0)) == len(samples) == 16
    with pytest.raises(LoadDataError, match="2 days hold 16 windows, and 17 are needed"):
        draw_samples(vm, 17, np.random.default_rng(2))


def test_error_counts_hidden_entries_only() -> None:
    values = np.full((3, 48), 1.02)
    samples = Samples(values, block_at(7, 3))
    guess = np.where(samples.hidden, values, 99.0)
    assert hidden_mse(guess, samples) == 0.0
    assert hidden_mse(np.where(samples.hidden, values + 0.01, values), samples) == pytest.approx(1e-4)


def test_a_constant_signal_is_recovered_without_error() -> None:
    samples = Samples(np.full((5, 48), 0.98), hide_blocks(5, np.random.default_rng(3)))
    assert hidden_mse(observed_mean(samples), samples) == pytest.approx(0.0, abs=1e-30)
    assert hidden_mse(interpolated(samples), samples) == pytest.approx(0.0, abs=1e-30)


def test_errors_of_a_straight_line_are_those_worked_out_by_hand() -> None:
    slope = 0.001
    line = 1.0 + slope * np.arange(48, dtype=np.float64)[None]
    inside, edge = Samples(line, block_at(12)), Samples(line, block_at(24))
    assert hidden_mse(interpolated(inside), inside) == pytest.approx(0.0, abs=1e-30)
    # Held from step 23 on, the error of the k-th hidden step is k·slope: Σk²/24 = 25·49/6.
    assert hidden_mse(interpolated(edge), edge) == pytest.approx(slope**2 * 25 * 49 / 6)
    # The mean of steps 0…23 is that of step 11.5; hidden steps are 12.5 … 35.5 away: 24² + (24² − 1)/12.
    assert hidden_mse(observed_mean(edge), edge) == pytest.approx(slope**2 * (24**2 + (24**2 - 1) / 12))
