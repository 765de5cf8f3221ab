from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp_powerflow import LoadHistory
from dp_powerflow.errors import LoadDataError

DAYS = (dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 5))


def history(n: int = 3, **changes: object) -> LoadHistory:
    rng = np.random.default_rng(1)
    base = LoadHistory(
        load_kw=rng.gamma(2.0, 1.0, (n, 3, 24)),
        load_kvar=rng.normal(size=(n, 3, 24)),
        load_points=tuple(f"service{i}" for i in range(n)),
        days=DAYS,
        step_minutes=60,
        node_of=("n1",) * n,
        class_label=("residential",) * n,
        scale_kw=np.arange(1.0, n + 1),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_repr_prints_shapes_and_neither_values_nor_names() -> None:
    own = history(load_kw=np.full((3, 3, 24), 7.654321))
    assert "3 load points × 3 days × 24 steps" in repr(own)
    assert "PRIVATE" in repr(own)
    assert "7.65" not in repr(own)
    assert "service" not in repr(own)
    assert "simulated" in repr(history(simulated=True))


def test_arrays_cannot_be_written_through_the_history() -> None:
    own = history()
    with pytest.raises(ValueError, match="read-only"):
        own.load_kw[0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_minutes": 7}, "does not divide a day"),
        ({"step_minutes": 30}, "shape"),
        ({"load_points": ("a", "b", "a")}, "same name"),
        ({"days": DAYS[::-1]}, "increasing"),
        ({"node_of": ("n1",)}, "node_of has 1 entries for 3"),
        ({"class_label": ()}, "class_label has 0 entries"),
        ({"scale_kw": np.array([1.0, 0.0, 2.0])}, "positive"),
        ({"scale_kw": np.ones(2)}, "shape"),
        ({"load_kw": np.full((3, 3, 24), np.nan)}, "missing or infinite"),
        ({"load_kvar": np.full((3, 3, 24), np.inf)}, "missing or infinite"),
        ({"days": ()}, "shape"),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadDataError, match=message):
        history(**changes)


def test_an_empty_history_is_refused() -> None:
    with pytest.raises(LoadDataError, match="at least one"):
        LoadHistory(np.empty((0, 3, 24)), None, (), DAYS, 60, (), (), None)


def test_select_keeps_the_order_asked_for_and_everything_that_belongs_to_a_load_point() -> None:
    own = history()
    part = own.select(["service2", "service0"], [DAYS[2], DAYS[0]])
    assert part.load_points == ("service2", "service0")
    assert part.days == (DAYS[0], DAYS[2])
    assert own.load_kvar is not None
    assert part.load_kvar is not None
    assert part.scale_kw is not None
    np.testing.assert_array_equal(part.load_kw, own.load_kw[[2, 0]][:, [0, 2]])
    np.testing.assert_array_equal(part.load_kvar, own.load_kvar[[2, 0]][:, [0, 2]])
    np.testing.assert_array_equal(part.scale_kw, [3.0, 1.0])


def test_selecting_something_unknown_counts_it_without_naming_it() -> None:
    with pytest.raises(LoadDataError, match="1 of the 2 selected load points") as caught:
        history().select(["service0", "secret-meter"])
    assert "secret" not in str(caught.value)


def test_coarsening_averages_and_never_refines() -> None:
    own = history()
    np.testing.assert_allclose(own.coarsen(120).load_kw[1, 1, 3], own.load_kw[1, 1, 6:8].mean())
    assert own.coarsen(120).n_steps == 12
    for minutes in (15, 90, 7 * 60):
        with pytest.raises(LoadDataError, match="cannot average"):
            own.coarsen(minutes)
