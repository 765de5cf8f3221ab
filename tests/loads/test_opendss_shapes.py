from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.ingest import read_opendss_shapes
from support.meter_files import median_pairwise_correlation

FIRST = dt.date(2017, 1, 1)


def write_shapes(folder: Path, **shapes: np.ndarray) -> Path:
    for name, values in shapes.items():
        (folder / f"loadshape_{name}.csv").write_text("\n".join(str(x) for x in values) + "\n")
    return folder


def test_multipliers_are_scaled_by_the_nominal_power_whatever_the_case_of_names(tmp_path: Path) -> None:
    shape = np.linspace(0.2, 1.0, 48)
    write_shapes(tmp_path, S1a=shape, s2B=shape[::-1])
    result = read_opendss_shapes(
        tmp_path,
        first_day=FIRST,
        nominal_kw={"s1a": 40.0, "S2b": 20.0, "unused": 1.0},
        class_of={"S1a": "residential"},
        step_minutes=60,
    )
    history = result.history
    assert history.load_points == history.node_of == ("S1a", "s2B")
    assert history.class_label == ("residential", None)
    assert history.days == (FIRST, dt.date(2017, 1, 2))
    assert history.scale_kw is not None
    np.testing.assert_allclose(history.load_kw[0].ravel(), 40 * shape)
    np.testing.assert_array_equal(history.scale_kw, [40.0, 20.0])


def test_actual_kw_need_no_nominal_power(tmp_path: Path) -> None:
    write_shapes(tmp_path, S1=np.full(24, 12.5))
    history = read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw=None, step_minutes=60).history
    np.testing.assert_array_equal(history.load_kw, 12.5)
    assert history.scale_kw is None


def test_actual_kw_declared_as_multipliers_are_caught(tmp_path: Path) -> None:
    write_shapes(tmp_path, S1=np.full(24, 12.5))
    with pytest.raises(LoadDataError, match="above its public scale"):
        read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw={"S1": 40.0}, step_minutes=60)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.5\n" * 23, "23 values, not a whole number of days"),
        ("", "not one number per line"),
        ("7.654321\n" * 23 + "word7.654321\n", "not one number per line"),
        ("7.654321,1\n" * 24, "not one number per line"),
        ("0.5\n" * 48, "48 values where others have 24"),
    ],
)
def test_a_broken_shape_is_refused_without_quoting_it(tmp_path: Path, text: str, says: str) -> None:
    write_shapes(tmp_path, a=np.full(24, 0.5))
    (tmp_path / "loadshape_b.csv").write_text(text)
    with pytest.raises(LoadDataError, match=says) as caught:
        read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw={"a": 1.0, "b": 1.0}, step_minutes=60)
    assert "7.65" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_missing_declarations_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadDataError, match="holds no file named loadshape_"):
        read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw={})
    write_shapes(tmp_path, a=np.full(24, 0.5))
    with pytest.raises(LoadDataError, match="1 of 1 load shapes have no nominal kW"):
        read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw={}, step_minutes=60)
    with pytest.raises(LoadDataError, match="does not divide"):
        read_opendss_shapes(tmp_path, first_day=FIRST, nominal_kw=None, step_minutes=7)


def test_the_oedi_profiles_are_91_multipliers_of_one_year(oedi: Path) -> None:
    folder = oedi / "profiles" / "load_profiles"
    nominal = {path.stem.removeprefix("loadshape_"): 20.0 for path in folder.glob("*.csv")}
    result = read_opendss_shapes(folder, first_day=FIRST, nominal_kw=nominal)
    history = result.history
    assert history.load_kw.shape == (91, 365, 96)
    assert history.load_kw.max() == pytest.approx(20.0)  # so the files hold multipliers that peak at 1
    assert result.report.columns[0].missing == 0
    # Paper correction 15: hardly any diversity
    assert median_pairwise_correlation(history) > 0.94
