"""What a record is, and that noise is never reused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import Budget, FitOptions, StreamKey
from dp_powerflow.errors import LoadDataError
from dp_powerflow.lowlevel import PrivacyUnit, simulate_load_history
from dp_powerflow.model.fit import fit
from dp_powerflow.model.partition import PrivateClasses

OPTIONS = FitOptions(bounds=(0.01, 3.0), use_scale=True)
KEY = StreamKey.from_insecure_seed(3)


def test_days_that_depend_on_each_other_are_no_records_of_their_own() -> None:
    history = replace(simulate_load_history(60, n_days=3, step_minutes=60), days_mixed=True)
    with pytest.raises(LoadDataError, match="not a record of its own"):
        fit(
            history,
            budget=Budget(2.0, unit=PrivacyUnit.LOAD_POINT_DAY),
            options=OPTIONS,
            key=KEY,
        )


def test_noise_is_bound_to_labels_too() -> None:
    """One relabelled load point, same readings: other noise, or the difference would show it."""
    pooled = replace(OPTIONS, classes=PrivateClasses(2))  # sums that do not depend on the labels
    history = simulate_load_history(60, n_days=3, step_minutes=60)
    labels = list(history.class_label)
    labels[0] = "commercial" if labels[0] != "commercial" else "residential"
    other = replace(history, class_label=tuple(labels))
    first, second = (fit(h, budget=Budget(50.0), options=pooled, key=KEY).origin for h in (history, other))
    assert first is not None
    assert second is not None
    assert not np.array_equal(first.integers[0], second.integers[0])
    assert np.array_equal(history.load_kw, other.load_kw)
