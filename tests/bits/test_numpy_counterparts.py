"""Kernels and their counterparts in NumPy: the same bits, whatever the numbers."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow
from dp_powerflow._bits import elementary, linear
from dp_powerflow.corpus import grid
from dp_powerflow.model.history import ask_traits, calibrate, individuals, ladder, numbers, one_pass
from dp_powerflow.privacy import budget
from dp_powerflow.quality import counting
from dp_powerflow.units import FloatArray

PACKAGE = Path(dp_powerflow.__file__).parent
SPECIAL = np.array(
    [
        *(0.0, 5e-324, 2.2250738585072014e-308, 2.2250738585072009e-308, 1e-300, 1e-20, 0.4375, 0.5),
        *(0.6875, 1.0, 1.1875, 2.4375, 8.5, 26.5, 37.5, 40.0, 56.6, 180.0, 360.0, 709.8, 745.2, 1e5, 1e8),
        *(1e300, 1.7976931348623157e308, np.inf, np.nan),
    ]
)  # fmt: skip


def hard(n: int, seed: int, *, log10: tuple[int, int] = (-320, 308)) -> FloatArray:
    """Special numbers of either sign, then random ones of all sizes."""
    draw = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        sizes = 10.0 ** draw.uniform(*log10, n)
    near = draw.normal(0.0, 3.0, n)
    return np.concatenate([SPECIAL, -SPECIAL, sizes, -sizes, near, draw.uniform(0.0, 1.0, n)])


def counterpart_of(kernel: Callable[..., Any]) -> Callable[..., Any]:
    counterpart = kernel._cache.counterpart  # type: ignore[attr-defined]
    assert counterpart is not None
    found: Callable[..., Any] = counterpart
    return found


def check(kernel: Callable[..., Any], *arguments: Any) -> None:
    """Results and arrays written into, as bits; a NaN is a NaN."""
    ours = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    theirs = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    results = kernel(*ours), counterpart_of(kernel)(*theirs)
    assert type(results[0]) is type(results[1])
    for a, b in zip([results[0], *ours], [results[1], *theirs], strict=True):
        if not isinstance(a, tuple | type(None)) or a == results[0]:
            same_bits(a, b)


def same_bits(a: Any, b: Any) -> None:
    if a is None or isinstance(a, tuple):
        assert a == b
        return
    first, second = np.atleast_1d(a), np.atleast_1d(b)
    assert first.dtype == second.dtype
    if first.dtype.kind in "fc":
        first, second = (
            np.ascontiguousarray(x).view(np.float64 if x.itemsize > 4 else x.dtype) for x in (first, second)
        )
        assert np.array_equal(np.isnan(first), np.isnan(second))
        first, second = (np.where(np.isnan(x), 0.0, x) for x in (first, second))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("which", range(6))
def test_elementary_functions(which: int) -> None:
    values = hard(20_000, which)
    if which in (2, 3, 4):
        values = values[~(np.abs(values) > 1e6)]  # as far as angles go
    check(elementary._fill, which, values, np.empty_like(values))


@pytest.mark.parametrize("kernel", [elementary.exp1, elementary.log1, elementary.expm11, linear.log_ndtr1])
def test_functions_of_one_number(kernel: Callable[[float], float]) -> None:
    for x in hard(60, 1).tolist():
        check(kernel, x)


def test_angles() -> None:
    angles = hard(20_000, 2)
    angles = np.concatenate([angles[~(np.abs(angles) > 1e6)], np.arange(-720.0, 721.0, 7.5)])
    check(elementary._unit, angles, np.empty(angles.size, dtype=np.complex128))
    parts = hard(20_000, 3)
    draw = np.random.default_rng(4)
    values = np.empty(parts.size, dtype=np.complex128)
    values.real, values.imag = parts, draw.permutation(parts)
    values[::5].imag = values[::5].real
    check(elementary._degrees, values, np.empty(values.size))


def test_the_normal_law() -> None:
    values = hard(20_000, 5)
    check(numbers._ndtr, values, np.empty_like(values))
    check(numbers._ndtri, values, np.empty_like(values))
    words = np.random.default_rng(6).integers(0, 2**64, 20_000, dtype=np.uint64)
    words[:4] = 0, 2**64 - 1, 1, 2**63
    check(linear._from_words, words, np.empty(words.size))


@pytest.mark.parametrize("size", [1, 2, 7, 24])
def test_matrices(size: int) -> None:
    draw = np.random.default_rng(size)
    matrix = draw.normal(size=(size, size)) * 10.0 ** draw.integers(-3, 4, (size, 1))
    definite = linear.gram(matrix[None])[0] + np.eye(size)
    factor, right = linear.cholesky(definite), draw.normal(size=(size, 3))
    check(linear._product, matrix, right, np.zeros((size, 3)))
    check(linear._norms, matrix, np.empty(size))
    check(linear._cholesky, definite)
    check(linear._solve_lower, factor, right)
    check(linear._solve_upper, factor, right)
    check(linear._jacobi, matrix + matrix.T, np.eye(size))
    check(numbers._descend, draw.normal(size=(size + 3, size)), draw.normal(size=size + 3), np.zeros(size))


def test_what_is_not_definite_has_no_factor() -> None:
    for matrix in (-np.eye(3), np.full((2, 2), np.nan), np.array([[1.0, 2.0], [2.0, 1.0]])):
        assert not counterpart_of(linear._cholesky)(matrix)
        assert not linear._cholesky(matrix)


def test_numbers_of_the_grid() -> None:
    draw = np.random.default_rng(7)
    near = np.concatenate([hard(5_000, 8, log10=(-40, 38)), draw.uniform(-200, 200, 5_000)])
    with np.errstate(over="ignore"):
        stored = near.astype(np.float32)
    exact = grid.round_to_grid(draw.normal(size=5_000) + 1j * draw.normal(size=5_000))
    for vm, va in ((stored, draw.permutation(stored)), (exact.vm_pu, exact.va_deg)):
        check(grid._on_grid, vm, va, np.empty(vm.size, dtype=np.bool_))
        check(grid._power_on_grid, vm, np.empty(vm.size, dtype=np.bool_))
        plain = va[np.abs(va) <= 360.0]
        check(grid._vm_counts, plain, np.empty(plain.size, dtype=np.int64))
        check(grid._va_counts, plain, np.empty(plain.size, dtype=np.int64))
    days = draw.normal(size=(4, 20, 24)).astype(np.float32)
    rows, nodes = np.array([2, 0, 3]), draw.permutation(20)[:18]
    check(grid._turn_days, days, np.array([3, 1, 1]), nodes, np.zeros((4, 24, 18), dtype=np.float32), rows)


def test_counters() -> None:
    draw = np.random.default_rng(9)
    vm = (1.0 + 0.05 * draw.normal(size=(3, 11, 24))).astype(np.float32)
    vm[0, 0, :6] = np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30
    figures = np.zeros((11, 5), dtype=np.int64)
    figures[:, 0] = 2**40
    counts = np.zeros((3, 4, counting.BINS), dtype=np.int64)
    ranges = np.array([950_000, 1_050_000, 917_000, 1_058_000])
    check(counting.count_voltages, vm, draw.integers(0, 3, 11), np.arange(24) // 6, ranges, counts, figures)
    wanted = counting._count(vm[2, 4, 7])
    for number in (wanted, -5):
        check(counting.find, vm, 4, number)
    moved = np.empty((72, 5))
    check(counting.deviations, vm, np.array([0, 3, 4, 9, 10]), moved)
    counting.deviations(vm, np.array([0, 3, 4, 9, 10]), moved)
    check(counting.add_products, moved[:67], np.ones(5), np.ones((5, 5)))
    check(
        counting.add_powers,
        draw.normal(size=(3, 11, 24)).astype(np.float32),
        np.ones((3, 24), dtype=np.int64),
    )


def test_interpolation() -> None:
    draw = np.random.default_rng(10)
    at = np.sort(np.repeat(draw.normal(size=20), 2))
    x = np.concatenate([hard(2_000, 11), at])
    check(numbers._interpolate, x, at, draw.normal(size=40), np.empty(x.size))
    check(numbers._interpolate, x[x == x], at[:1], at[:1], np.empty(int((x == x).sum())))


def test_costs() -> None:
    draw = np.random.default_rng(12)
    for rho, delta, log_order in zip(
        10 ** draw.uniform(-8, 3, 50), 10 ** draw.uniform(-12, -1, 50), draw.uniform(-30, 30, 50), strict=True
    ):
        check(budget._epsilon_at, float(rho), float(delta), float(log_order))
    check(budget._epsilon_at, 1.0, 1e-5, -800.0)


@pytest.mark.parametrize("steps", [24, 96])
def test_customers_who_persist(steps: int) -> None:
    draw = np.random.default_rng(steps)
    people, score = 12, individuals.score_grid()
    table = np.sort(np.exp(0.8 * score + 0.1 * draw.normal(size=score.size)))
    mean, std = 0.5 * draw.normal(size=(people, steps)), draw.uniform(0.2, 1.5, (people, steps))
    nodes, weights = individuals._normal_nodes()
    check(individuals._offsets, table, mean, std, nodes, weights, draw.normal(size=people))
    check(individuals._offsets, table[::-1].copy(), mean, std, nodes, weights, np.zeros(people))
    peaks, bases = draw.normal(1.0, 0.5, people), draw.normal(-2.0, 0.7, people)
    out = np.empty((people, score.size))
    ours, theirs = out.copy(), out.copy()
    for call, into in ((individuals._bend, ours), (counterpart_of(individuals._bend), theirs)):
        call(table, mean, std, peaks, bases, 16.0, (nodes, weights), into)
    same_bits(ours, theirs)
    check(calibrate._add_below, score, mean, std, np.zeros(score.size))
    scores = 3.0 * draw.normal(size=(people, 50))
    scores[0, :4] = np.nan, np.inf, -np.inf, 7.0
    check(calibrate._through, np.sort(draw.normal(size=(people, score.size))), scores)


def test_what_histories_are_asked() -> None:
    draw = np.random.default_rng(13)
    for place, size in draw.uniform(-1.0, 1.0, (3, 2)).tolist():
        check(ask_traits._unclipped, place, abs(size))
    shares, edges = np.abs(draw.normal(size=12)), np.linspace(-1.0, 2.0, 13)
    check(numbers.best_normal, shares / shares.sum(), edges, 0.01, 0.3, 0.4)
    check(numbers.best_normal, shares * np.nan, edges, 0.01, 0.3, 0.4)
    for size in (1, 7, 8, 200, 1024):
        check(ladder._fill_autocovariance, draw.normal(size=size), 4, np.empty(size))


def test_ranks() -> None:
    draw = np.random.default_rng(14)
    tables = np.sort(np.round(draw.normal(size=(4, 30)), 1), axis=1)
    cells = low, per_unit, before = one_pass.cells_of_tables(tables)
    check(one_pass._entries_before, tables, low, per_unit, np.empty_like(before))
    load = np.round(2.0 * draw.normal(size=(5, 3, 24)), 1)
    basis, of_step = draw.normal(size=(65, 6)), np.arange(24) * 4 // 24
    ours, theirs = np.zeros((5, 6, 24)), np.zeros((5, 6, 24))
    for call, into in ((one_pass.ranks, ours), (counterpart_of(one_pass.ranks), theirs)):
        call(load, tables, cells, np.linspace(0.02, 0.98, 30), basis, of_step, into)
    same_bits(ours, theirs)


def test_every_counterpart_has_a_kernel_with_as_many_parameters() -> None:
    """A kernel that was renamed would be compiled without a word; a helper of its name would be called."""
    found = 0
    for path in sorted(PACKAGE.rglob("_numpy/*.py")):
        if path.stem in ("__init__", "vectors"):
            continue
        room = ".".join(("dp_powerflow", *path.parents[1].relative_to(PACKAGE).parts))
        others = vars(importlib.import_module(f"{room}._numpy.{path.stem}"))
        for name, kernel in vars(importlib.import_module(f"{room}.{path.stem}")).items():
            if hasattr(kernel, "py_func") and kernel.__module__ == f"{room}.{path.stem}" and name in others:
                expected = inspect.signature(kernel.py_func).parameters
                assert len(inspect.signature(others[name]).parameters) == len(expected), name
                found += 1
    assert found == 38
