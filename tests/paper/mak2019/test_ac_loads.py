"""Loads of transmission cases by AC optimal power flow: restored ones are served at the true cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow.errors import ConfigError
from dp_powerflow_paper.fioretto2019.acopf import CostBand
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case
from dp_powerflow_paper.mak2019.noise import LoadPrivacy, obfuscate, served_grid, true_loads
from dp_powerflow_paper.mak2019.release import Draw, kept, measure_draw
from dp_powerflow_paper.mak2019.restoration import restore

pytest.importorskip("casadi")
pytest.importorskip("pandapower")


@pytest.fixture(scope="module")
def small() -> TrueCase:
    return read_case("case14")


def measured(case: TrueCase, alpha: float, draws: range) -> tuple[list[Draw], CostBand]:
    served, true = served_grid(case), true_loads(case)
    band = CostBand(served.dispatch(true).cost)
    key = StreamKey.from_insecure_seed(0)
    found = []
    for draw in draws:
        noisy = obfuscate(true, LoadPrivacy(alpha), key.bind("draw", str(draw)))
        found.append(measure_draw(true, noisy, served, band))
    return found, band


def test_the_public_part_with_the_true_loads_is_the_case(small: TrueCase) -> None:
    public = served_grid(small).with_loads(true_loads(small))
    assert np.allclose(public.load_p, small.public.load_p, atol=1e-15)
    assert np.allclose(public.load_q, small.public.load_q, atol=1e-15)
    with pytest.raises(ConfigError, match="set them to zero"):
        replace(served_grid(small), grid=small.public)


@pytest.mark.slow
def test_restored_loads_cost_what_the_true_ones_do_while_the_relaxation_is_too_cheap(small: TrueCase) -> None:
    """20 of 20 draws on case14."""
    found, band = measured(small, 0.1, range(20))
    assert all(kept(each.gap, band) for each in found)
    off = [each.relaxed_gap for each in found if not kept(each.relaxed_gap, band)]
    assert len(off) >= 3
    assert max(off) < 0.0
    assert min(off) < -0.05
    assert np.mean([each.distance / each.noisy_distance for each in found]) < 1.01


@pytest.mark.slow
def test_loads_of_a_loaded_grid_are_served_after_restoration_only() -> None:
    """Three draws on case39 at α = 1; the campaign has twenty."""
    found, band = measured(read_case("case39"), 1.0, range(3))
    assert all(each.feasible and kept(each.gap, band) for each in found)
    assert not all(each.noisy_feasible for each in found)


@pytest.mark.campaign
def test_noise_alone_leaves_few_draws_of_case39_that_can_be_served_and_restoration_all() -> None:
    found, band = measured(read_case("case39"), 1.0, range(20))
    assert np.mean([each.noisy_feasible for each in found]) <= 0.4
    assert all(each.feasible and kept(each.gap, band) for each in found)


@pytest.mark.slow
def test_restored_loads_follow_from_noisy_ones_and_public_figures_alone(small: TrueCase) -> None:
    """A case with twice the loads, the same noisy ones and the same band: the same bytes."""
    other = replace(
        small,
        public=replace(small.public, load_p=2.0 * small.public.load_p, load_q=2.0 * small.public.load_q),
    )
    noisy = obfuscate(true_loads(small), LoadPrivacy(0.1), StreamKey.from_insecure_seed(1))
    band = CostBand(8081.5)
    first, second = (restore(noisy, served_grid(case), band).active for case in (small, other))
    assert first.tobytes() == second.tobytes()
