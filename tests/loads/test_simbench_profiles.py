from __future__ import annotations

import datetime as dt
import importlib.util
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError, MissingExtraError
from dp_powerflow.loads import profiles
from dp_powerflow.loads.profiles import CUSTOMER_FAMILIES, read_simbench
from support.meter_files import intervals, median_pairwise_correlation


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    """Two days in SimBench's layout, through the end of summer time in 2016; made-up values."""
    berlin = ZoneInfo("Europe/Berlin")
    spans = intervals("Europe/Berlin", dt.date(2016, 10, 29), dt.date(2016, 10, 30), 15)
    names = ["H0-A_pload", "H0-A_qload", "G3-H_qload", "G3-H_pload", "mv_rural_pload", "mv_rural_qload"]
    cells = np.random.default_rng(4).uniform(0.1, 0.9, (len(spans), len(names))).round(6)
    lines = ["time;" + ";".join(names)]
    for span, row in zip(spans, cells, strict=True):
        lines.append(";".join([f"{span.begin.astimezone(berlin):%d.%m.%Y %H:%M}", *map(str, row)]))
    path = tmp_path / "LoadProfile.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_profiles_are_relative_and_labelled_by_family(profile_file: Path) -> None:
    relative = read_simbench(file=profile_file).history
    assert relative.load_points == ("H0-A", "G3-H", "mv_rural")
    assert relative.class_label == ("household", "commercial", "medium voltage grid")
    assert relative.load_kvar is not None
    np.testing.assert_array_equal(relative.scale_kw, np.ones(3))
    assert relative.load_kvar.max() < 0.395


def test_the_doubled_hour_is_averaged(profile_file: Path) -> None:
    report = read_simbench(file=profile_file).report
    assert report.columns[0].readings.doubled_hour == 3 * 4
    assert report.columns[0].readings.duplicated == 0
    assert report.columns[0].missing == 0


def test_families_can_be_chosen(profile_file: Path) -> None:
    result = read_simbench(file=profile_file, families=CUSTOMER_FAMILIES)
    assert result.history.load_points == ("H0-A", "G3-H")
    assert result.report.ids.unlisted == 1
    with pytest.raises(LoadDataError, match="no family 'houses'; choose from agricultural"):
        read_simbench(file=profile_file, families=("houses",))
    with pytest.raises(LoadDataError, match="no profile of the families"):
        read_simbench(file=profile_file, families=("heat pump",))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"dp-powerflow\[pandapower\]"):
        read_simbench()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("simbench") is None, reason="simbench is not installed")
def test_the_installed_package_has_96_profiles_with_a_median_correlation_of_014() -> None:
    result = read_simbench()
    assert result.history.load_kw.shape == (96, 366, 96)
    assert result.report.columns[0].missing == 0
    assert result.report.columns[0].readings.doubled_hour == 96 * 4
    assert median_pairwise_correlation(result.history) == pytest.approx(0.14, abs=0.01)
