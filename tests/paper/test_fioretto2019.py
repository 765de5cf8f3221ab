"""Noise on branches with restoration: costs, feasibility, purity, and what the published form gives away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey
from dp_powerflow.errors import ConfigError, MissingExtraError, PrivacyError
from dp_powerflow.lowlevel import discrete_laplace
from dp_powerflow.privacy.random import Stream
from dp_powerflow.units import IntArray
from dp_powerflow_paper.fioretto2019 import feeder, noise
from dp_powerflow_paper.fioretto2019.acopf import Admittances, CostBand, NoisyFigures, optimal_power_flow
from dp_powerflow_paper.fioretto2019.cases import TrueCase, read_case, reference_cost
from dp_powerflow_paper.fioretto2019.feeder import LengthPrivacy, NoisyLines, obfuscate_lengths
from dp_powerflow_paper.fioretto2019.noise import BranchPrivacy, as_published, obfuscate
from dp_powerflow_paper.fioretto2019.release import RestoredCase, measure_draw
from dp_powerflow_paper.fioretto2019.restoration import Restored, bands_of, restore, restore_lengths

pytest.importorskip("casadi", reason="needs the extra nlp")
pytest.importorskip("pandapower", reason="needs the extra pandapower")

KEY = StreamKey.from_insecure_seed(5)
Draws = Callable[[Stream, int, int], IntArray]


@cache
def case_of(name: str) -> TrueCase:
    return read_case(name)


@cache
def cost_of(name: str) -> float:
    case = case_of(name)
    found = optimal_power_flow(case.public, case.true)
    assert found.feasible
    return found.cost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "known", "draws"),
    [
        ("case14", 8081.527, 20),
        ("case39", 41872.302, 6),
        pytest.param("case118", None, 2, marks=pytest.mark.campaign),
    ],
)
def test_base_cost_is_that_of_pandapower_and_restored_networks_have_a_power_flow(
    name: str, known: float | None, draws: int
) -> None:
    """Nearly every draw has one, and conductances are no farther from the truth than with noise."""
    if known is not None:
        assert cost_of(name) == pytest.approx(known, rel=1e-4)
        assert cost_of(name) == pytest.approx(reference_cost(name), rel=1e-4)
    for alpha in (0.1, 1.0):
        found = [
            measure_draw(case_of(name), BranchPrivacy(alpha), cost_of(name), KEY.bind("draw", str(draw)))
            for draw in range(draws)
        ]
        assert np.mean([each.feasible for each in found]) >= 0.95
        apart, noisy = (
            np.mean([getattr(each, of) for each in found]) for of in ("distance", "noisy_distance")
        )
        assert apart <= 1.01 * noisy


@pytest.mark.parametrize(("name", "lossless"), [("case14", 0.25), ("case39", 0.09), ("case118", 0.05)])
def test_every_branch_has_noise_and_published_noise_leaves_some_out(name: str, lossless: float) -> None:
    case, privacy = case_of(name), BranchPrivacy(0.1)
    unit = max(privacy.units)
    noisy = obfuscate(case, privacy, KEY).branches
    resistive = ~case.public.branches.lossless
    assert (np.abs(noisy.b - case.true.b) > unit).all()
    assert (np.abs(noisy.g - case.true.g)[resistive] > privacy.units[0]).all()
    published = as_published(case, privacy, KEY)
    untouched = (published.b == case.true.b) & (published.g == case.true.g)
    assert np.array_equal(untouched, ~resistive)
    assert untouched.mean() == pytest.approx(lossless, abs=0.01)


def test_published_noise_gives_the_ratio_of_every_line_away() -> None:
    case, privacy = case_of("case39"), BranchPrivacy(1.0)
    at = ~case.public.branches.lossless
    true = case.true.b[at] / case.true.g[at]
    published = as_published(case, privacy, KEY)
    assert np.allclose(published.b[at] / published.g[at], true, rtol=1e-12)
    ours = obfuscate(case, privacy, KEY).branches
    assert (np.abs(ours.b[at] / ours.g[at] / true - 1.0) > 1e-3).mean() > 0.95


def test_a_cost_in_the_clear_tells_neighbours_apart() -> None:
    """Noisy figures are the same, and only O* differs: the cost of the restored dispatch gives it back."""
    case, privacy = case_of("case14"), BranchPrivacy(1.0)
    g = case.true.g.copy()
    g[0] -= privacy.alpha
    costs = [cost_of("case14"), optimal_power_flow(case.public, Admittances(g, case.true.b)).cost]
    assert abs(costs[1] / costs[0] - 1.0) > 1e-5
    noisy = obfuscate(case, privacy, KEY)
    seen = [restore(noisy, case.public, CostBand(cost)).solution.cost for cost in costs]
    for cost, found in zip(costs, seen, strict=True):
        assert min(abs(found / edge / cost - 1.0) for edge in (0.99, 1.01)) < 1e-6
    assert abs(seen[1] - seen[0]) > 0.5 * abs(costs[1] - costs[0])


def as_bytes(restored: Restored) -> bytes:
    figures = restored.admittances
    return figures.g.tobytes() + figures.b.tobytes() + restored.solution.v.tobytes()


def less(draws: Draws, taken: list[IntArray]) -> Draws:
    """Noise as drawn, less what another network has more, query by query."""
    left = iter(taken)
    return lambda stream, scale, size: draws(stream, scale, size) - next(left)


def test_another_true_network_with_the_same_noisy_figures_gives_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, privacy = case_of("case39"), BranchPrivacy(1.0)
    branches = case.public.branches
    shift_g = np.where(branches.lossless, 0, 3 * 2**17)
    shift_b = np.full(len(branches.start), -(2**18))
    other = TrueCase(
        case.public,
        Admittances(case.true.g + shift_g * privacy.units[0], case.true.b + shift_b * privacy.units[1]),
    )
    noisy = obfuscate(case, privacy, KEY)

    def sums(shift: IntArray) -> IntArray:
        return np.bincount(branches.level, weights=shift, minlength=branches.levels).astype(np.int64)

    taken = [shift_g, shift_b, sums(shift_g), sums(shift_b)]
    monkeypatch.setattr(noise, "discrete_laplace", less(discrete_laplace, taken))
    same = obfuscate(other, privacy, KEY)
    costs = CostBand(cost_of("case39"))
    first, again = restore(noisy, case.public, costs), restore(same, other.public, costs)
    assert as_bytes(first) == as_bytes(again)
    assert np.abs(other.true.g - case.true.g).max() > 0.3
    moved = replace(noisy, branches=Admittances(noisy.branches.g + 0.1, noisy.branches.b))
    assert as_bytes(restore(moved, case.public, costs)) != as_bytes(first)

    lengths, unit = LengthPrivacy(), LengthPrivacy().alpha / feeder.GRID
    true, shift = np.array([0.1, 0.2, 0.05]), np.array([2**18, -(2**17), 0])
    restored = restore_lengths(obfuscate_lengths(true, lengths, KEY))
    monkeypatch.setattr(feeder, "discrete_laplace", less(discrete_laplace, [shift, np.array([shift.sum()])]))
    moved_lengths = 1.0 / (unit * (np.rint(1.0 / true / unit) + shift))
    assert restore_lengths(obfuscate_lengths(moved_lengths, lengths, KEY)).tobytes() == restored.tobytes()


def test_restored_figures_are_within_their_bands_and_dispatch_within_costs() -> None:
    case = case_of("case39")
    noisy = obfuscate(case, BranchPrivacy(1.0), KEY)
    restored = restore(noisy, case.public, CostBand(cost_of("case39")))
    bands = bands_of(noisy, case.public.branches)
    g, b = restored.admittances.g, restored.admittances.b
    assert ((g >= bands.g_low) & (g <= bands.g_high)).all()
    assert ((-b >= bands.b_low) & (-b <= bands.b_high)).all()
    assert (g[case.public.branches.lossless] == 0.0).all()
    assert restored.solution.cost == pytest.approx(cost_of("case39"), rel=0.0101)


def test_a_mean_lost_in_noise_still_leaves_a_band() -> None:
    case = case_of("case14")
    noisy = obfuscate(case, BranchPrivacy(1.0), KEY)
    lost: NoisyFigures = replace(noisy, mean_g=-np.ones_like(noisy.mean_g), mean_b=np.ones_like(noisy.mean_b))
    bands = bands_of(lost, case.public.branches)
    assert (bands.b_low > 0.0).all()
    assert (bands.g_high[~case.public.branches.lossless] > 0.0).all()


def test_lengths_keep_their_band_and_the_claim_names_the_change(ieee13: Feeder) -> None:
    part = NoisyLines(ieee13, LengthPrivacy(1.0, 0.05, 0.05))
    drawn = part.draw(np.random.default_rng(0))
    assert drawn.nodes == ieee13.nodes
    lengths = np.array([line.length_m for line in drawn.lines if not line.is_switch])
    assert lengths.max() / lengths.min() <= 100.0 * (1.0 + 1e-6)
    claim = part.guarantee
    assert (claim.proved, claim.delta) == (True, 0.0)
    assert "±5 %" in claim.adjacency
    change = 1.0 / (0.05 * 0.95) - 1.0 / 0.05
    assert part.privacy.alpha == pytest.approx(change)


def test_a_restored_case_states_figures_and_its_claim() -> None:
    release = RestoredCase(case_of("case14"), BranchPrivacy(0.1), cost_of("case14"))
    (claim,) = release.guarantees
    assert (claim.proved, claim.epsilon) == (True, 1.0)
    found = release.measure(np.random.default_rng(0))
    assert found["restored network has a power flow [share]"] == 1.0
    assert found == release.measure(np.random.default_rng(0))


def test_what_cannot_be_done_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("case14")
    noisy = obfuscate(case, BranchPrivacy(1.0), KEY)
    monkeypatch.setitem(sys.modules, "casadi", None)
    for error, sentence, refused in (
        (ConfigError, "there is no case", lambda: read_case("case15")),
        (PrivacyError, "positive α", lambda: BranchPrivacy(0.0)),
        (PrivacyError, "lengths", lambda: LengthPrivacy(change=1.0)),
        (ConfigError, "band of costs", lambda: CostBand(0.0)),
        (ConfigError, "factor above 1", lambda: bands_of(noisy, case.public.branches, 1.0)),
        (MissingExtraError, "nlp", lambda: optimal_power_flow(case.public, case.true)),
    ):
        with pytest.raises(error, match=sentence):
            refused()
