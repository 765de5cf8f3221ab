"""Mistakes in meter files: each is refused in one sentence that says what to do, and nothing is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow.errors import LoadDataError
from dp_powerflow.pipeline.release import run_release
from support.own_meters import CUSTOMERS, OwnMeters

Planted = Callable[[OwnMeters], None]
SOME = slice(0, 30)


def ids(change: Callable[[str], str], count: int = 95) -> Planted:
    """The service map writes the first ids in another way."""

    def plant(meters: OwnMeters) -> None:
        meters.listed[:count] = [change(name) for name in meters.listed[:count]]

    return plant


def times(factor: float, which: slice = slice(None), scales: bool = True) -> Planted:
    """Readings of some customers in another unit."""

    def plant(meters: OwnMeters) -> None:
        meters.readings[which] *= factor
        meters.scales = scales

    return plant


def elsewhere(meters: OwnMeters) -> None:
    meters.listed = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(CUSTOMERS)]


def gaps(meters: OwnMeters) -> None:
    meters.readings[:10, :2] = np.nan


def absent(meters: OwnMeters) -> None:
    meters.readings[:10] = np.nan


TYPICAL = "the declared typical load"
BOUNDS = r"of 100 load points .* outside the bounds of the model"
# what is done to good files, what the refusal says, and the sections of the config beside them
MISTAKES: dict[str, tuple[Planted, str, dict[str, Any]]] = {
    "prefix": (ids(lambda name: "CH" + name), "95 listed customers .* write each id alike", {}),
    "case": (ids(str.upper), "190 customers .* blanks, case or invisible", {}),
    "invisible signs": (ids(lambda name: name.replace("-", "-\u200b")), "95 customers .* invisible", {}),
    "another file": (elsewhere, "none of the 100 customers .* write each id alike", {}),
    "gaps": (gaps, r"10 of 100 load points .* \(0 listed .* repair or unlist", {}),
    "no readings": (absent, r"10 of 100 load points .* \(10 listed customers are not in the file\)", {}),
    "W for kW": (times(1000.0), "factor of 1000", {}),
    "kW for W": (times(0.001), "factor of 1000", {}),
    "W for kW, no scale": (times(1000.0, scales=False), "factor of 1000", {}),
    "kW for W, no scale": (times(0.001, scales=False), "factor of 1000", {}),
    "30 in W": (times(1000.0, SOME), "30 of 100 load points have a load far above", {}),
    "30 in MW": (times(0.001, SOME), "30 of 100 load points draw next to nothing", {}),
    "30 in W, no scale": (times(1000.0, SOME, scales=False), rf"30 {BOUNDS} \(0 below, 30", {}),
    "kW for kWh": (times(4.0), f"2.5 times above {TYPICAL}", {"loads": {"typical_kw": 0.45}}),
    "kWh for kW": (times(0.25, scales=False), f"times below {TYPICAL}", {"loads": {"typical_kw": 0.6}}),
    "bounds in kW": (times(1.0), rf"100 {BOUNDS} \(100 below, 0", {"model": {"bounds": (0.2, 9.0)}}),
    "low bounds": (times(60.0, slice(8)), rf"8 {BOUNDS} \(0 below, 8", {"model": {"bounds": (0.001, 1.0)}}),
}


@pytest.mark.parametrize(("plant", "says", "sections"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_meter_files_is_one_sentence_and_spends_nothing(
    tmp_path: Path, plant: Planted, says: str, sections: dict[str, Any]
) -> None:
    meters = OwnMeters()
    plant(meters)
    config = meters.config(tmp_path, **sections)
    sentences = []
    for attempt in (dpf.plan, lambda config: run_release(config, workers=1)):
        with pytest.raises(LoadDataError, match=says) as caught:
            attempt(config)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "\n" not in sentences[0]
    assert "secret" not in sentences[0]
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("plant", "loads"),
    [
        (times(1.0), {}),
        (times(1.0), {"typical_kw": 0.3}),
        (times(4.0, SOME), {}),  # nobody can see it without a public reference
        (times(1000.0, SOME), {"on_suspect_unit": "keep", "most_clipped": 0.3}),
        (gaps, {"most_placeholders": 0.1}),
        (times(60.0, slice(0, 5)), {}),
    ],
    ids=["good", "typical", "factor 4 unseen", "kept units", "allowed gaps", "few above the bounds"],
)
def test_what_is_good_or_allowed_is_planned(tmp_path: Path, plant: Planted, loads: dict[str, Any]) -> None:
    meters = OwnMeters()
    plant(meters)
    planned = dpf.plan(meters.config(tmp_path, loads=loads))
    assert planned.ingest is not None
    assert planned.ingest.n_load_points == CUSTOMERS
