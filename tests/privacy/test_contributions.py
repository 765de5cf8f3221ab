from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dp_powerflow import StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import PrivacyUnit
from dp_powerflow.privacy.budget import QueryCost
from dp_powerflow.privacy.queries import (
    GRID_RADIUS,
    MAX_DIMENSION,
    Query,
    QuerySession,
    Region,
    exact_sum,
    quantise,
    sensitivity_squared,
)


def query(region: Region, dimension: int, radius: float = 1.0, rho: float = 0.5) -> Query:
    return Query("test", dimension, radius, region, rho)


def cost_of(asked: Query) -> QueryCost:
    return asked.cost(PrivacyUnit.LOAD_POINT, None)


def largest_change(grid: np.ndarray) -> int:
    """Largest ‖z − z′‖² over all pairs of records, in exact integers."""
    rows = [[int(value) for value in row] for row in grid]
    return max(
        sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) for first in rows for second in rows
    )


# every float there is: subnormal, huge, infinite, not a number
any_float = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=150, deadline=None)
@given(
    npst.arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 8)), elements=any_float),
    st.sampled_from([Region.BALL, Region.ORTHANT]),
    st.floats(1e-6, 1e6),
)
def test_no_input_whatever_exceeds_the_claimed_sensitivity(
    values: np.ndarray, region: Region, radius: float
) -> None:
    asked = query(region, values.shape[1], radius)
    grid = quantise(values, asked)
    assert all(sum(int(v) ** 2 for v in row) <= GRID_RADIUS**2 for row in grid)
    assert largest_change(grid) <= cost_of(asked).sensitivity_squared


@settings(max_examples=100, deadline=None)
@given(
    npst.arrays(
        np.float64, st.tuples(st.just(5), st.integers(1, 4), st.integers(2, 5)), elements=st.floats(-1e3, 1e3)
    ),
    st.floats(1e-2, 1e4),
)
def test_second_moments_stay_within_the_psd_bound(vectors: np.ndarray, radius: float) -> None:
    size = vectors.shape[2]
    rows, columns = np.triu_indices(size)
    moment = np.einsum("ndk,ndl->nkl", vectors, vectors) / vectors.shape[1]
    flat = moment[:, rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
    asked = query(Region.PSD, flat.shape[1], radius)
    assert largest_change(quantise(flat, asked)) <= cost_of(asked).sensitivity_squared


@pytest.mark.parametrize(
    ("region", "pair"),
    [
        (Region.BALL, [[1.0, 0.0], [-1.0, 0.0]]),
        (Region.ORTHANT, [[1.0, 0.0], [0.0, 1.0]]),
        (Region.PSD, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
def test_the_claim_is_attained_so_it_is_not_loose(region: Region, pair: list[list[float]]) -> None:
    asked = query(region, len(pair[0]))
    attained = largest_change(quantise(np.array(pair), asked))
    claimed = cost_of(asked).sensitivity_squared
    assert 0.999998 * claimed < attained <= claimed


def test_rounding_up_would_break_the_ball_and_is_undone_in_integers() -> None:
    """A direction whose floating-point norm can exceed R after scaling still obeys the integer bound."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2000, 7)) * 10.0 ** rng.integers(-3, 9, (2000, 1))
    grid = quantise(values, query(Region.BALL, 7, radius=1 / 3))
    norms = [sum(int(v) ** 2 for v in row) for row in grid]
    assert max(norms) <= GRID_RADIUS**2
    assert max(norms) > 0.999 * GRID_RADIUS**2


def test_a_contribution_is_kept_to_the_grid_cut_to_its_region_and_nothing_if_it_is_not_finite() -> None:
    values = np.array([[np.nan, 1.0], [np.inf, 1.0], [1e308, 1e308], [0.5, 0.0], [0.25, -0.125]])
    units = [[0, 0]] * 3 + [[GRID_RADIUS // 2, 0], [GRID_RADIUS // 4, -GRID_RADIUS // 8]]
    assert quantise(values, query(Region.BALL, 2)).tolist() == units
    assert quantise(np.array([[-0.5, 0.5]]), query(Region.ORTHANT, 2)).min() == 0


def test_sums_do_not_depend_on_chunks() -> None:
    values = np.random.default_rng(1).standard_normal((101, 5))
    asked = query(Region.BALL, 5)
    whole = exact_sum([values], asked)
    assert np.array_equal(whole, exact_sum(np.array_split(values, 7), asked))
    assert np.array_equal(whole, exact_sum([values[::-1]], asked))


def test_cost_never_exceeds_the_budget() -> None:
    for rho in np.geomspace(1e-6, 5, 40):
        for region in Region:
            cost = cost_of(query(region, 10, rho=rho))
            assert cost.rho <= rho
            assert cost.rho > 0.999 * rho


def test_released_sum_is_near_the_true_one() -> None:
    values = np.random.default_rng(2).uniform(-0.3, 0.3, (500, 4))
    asked = query(Region.BALL, 4, rho=2.0)
    cost = cost_of(asked)
    [released] = session(2.0).ask(asked, [[values]])
    assert np.all(np.abs(released - values.sum(axis=0)) < 6 * cost.noise_std)
    assert cost.noise_std == pytest.approx(2 / np.sqrt(2 * 2.0), rel=1e-3)


def test_queries_out_of_range_are_refused() -> None:
    with pytest.raises(PrivacyError, match="at most"):
        query(Region.BALL, MAX_DIMENSION + 1)
    with pytest.raises(PrivacyError, match="positive"):
        query(Region.BALL, 1, radius=0.0)
    with pytest.raises(PrivacyError, match="raise epsilon"):
        cost_of(query(Region.BALL, 1, rho=1e-20))


def session(rho: float = 1.0) -> QuerySession:
    return QuerySession(StreamKey.from_insecure_seed(0), PrivacyUnit.LOAD_POINT, "a", rho)


def ask(to: QuerySession, name: str, rho: float, blocks: int = 1) -> list[np.ndarray]:
    data = [[np.full((10, 2), 0.1)]] * blocks
    return to.ask(Query(name, 2, 1.0, Region.BALL, rho), data)


def test_no_two_cohorts_share_their_noise() -> None:
    key = StreamKey.from_insecure_seed(0)
    answers = [
        ask(QuerySession(key, PrivacyUnit.LOAD_POINT, cohort, 1.0), "first", 0.25)[0].tolist()
        for cohort in ("", "*", "a")
    ]
    assert len({tuple(answer) for answer in answers}) == 3


def test_session_records_what_it_spends() -> None:
    asked = session()
    ask(asked, "first", 0.25)
    ask(asked, "second", 0.5)
    assert [cost.query for cost in asked.costs] == ["first", "second"]
    assert asked.rho_left == pytest.approx(0.25, rel=1e-3)


def test_session_refuses_to_overspend_and_releases_nothing() -> None:
    asked = session()
    ask(asked, "first", 0.75)
    with pytest.raises(PrivacyError, match="exceed the budget"):
        ask(asked, "second", 0.5)
    assert len(asked.costs) == 1


def test_session_never_uses_a_noise_stream_twice() -> None:
    asked = session()
    ask(asked, "first", 0.1)
    with pytest.raises(PrivacyError, match="already answered"):
        ask(asked, "first", 0.1)


def test_blocks_of_private_classes_have_noise_of_their_own_for_one_charge() -> None:
    asked = session()
    first, second = ask(asked, "blocks", 0.5, blocks=2)
    assert not np.array_equal(first, second)
    assert len(asked.costs) == 1


def test_sensitivity_of_a_psd_matrix_charges_the_rounding() -> None:
    assert sensitivity_squared(Region.PSD, 100, 1000) > 2 * 1000**2
