"""Mistakes in meter files: each is refused in one sentence that says what to do, and nothing is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Mistake:
    """What is done to good files, the config beside them, and what the refusal says."""

    name: str
    plant: Planted
    says: str
    loads: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


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


def numbers(meters: OwnMeters) -> None:
    """A spreadsheet has made floating-point numbers of numeric ids."""
    meters.in_file = [str(1000 + i) for i in range(CUSTOMERS)]
    meters.listed = [f"{name}.0" for name in meters.in_file]


def zeros(meters: OwnMeters) -> None:
    meters.in_file = [f"{i:08d}" for i in range(CUSTOMERS)]
    meters.listed = [str(i) for i in range(CUSTOMERS)]


def typed_again(meters: OwnMeters) -> None:
    """The first digit of every id is read as a letter."""
    meters.listed = [name.replace("-1", "-l", 1) for name in meters.listed]


def elsewhere(meters: OwnMeters) -> None:
    meters.listed = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(CUSTOMERS)]


def gaps(meters: OwnMeters) -> None:
    meters.readings[:10, :2] = np.nan


def absent(meters: OwnMeters) -> None:
    meters.readings[:10] = np.nan


MISTAKES = (
    Mistake("one character too many", ids(lambda name: name + "x"), "95 ids by a prefix or suffix"),
    Mistake("prefix", ids(lambda name: "CH" + name), "95 ids by a prefix or suffix"),
    Mistake("other letters", ids(lambda name: name.replace("secret-", "meter ")), "around the same number"),
    Mistake("wrong character", typed_again, "100 ids by one character"),
    Mistake("case", ids(str.upper), "95 ids by upper or lower case"),
    Mistake(
        "invisible characters", ids(lambda name: name.replace("-", "-\u200b")), "95 customers .* invisible"
    ),
    Mistake("leading zeros", zeros, "100 ids by leading zeros"),
    Mistake("decimals", numbers, "100 ids by decimals"),
    Mistake("another file", elsewhere, "none of the 100 customers .* belong together"),
    Mistake("gaps", gaps, r"10 of 100 load points .* \(0 listed .* repair or unlist"),
    Mistake("no readings", absent, r"10 of 100 load points .* \(10 listed customers are not in the file\)"),
    Mistake("W for kW", times(1000.0), "factor of 1000"),
    Mistake("kW for W", times(0.001), "factor of 1000"),
    Mistake("W for kW, no scale", times(1000.0, scales=False), "factor of 1000"),
    Mistake("kW for W, no scale", times(0.001, scales=False), "factor of 1000"),
    Mistake(
        "30 in W", times(1000.0, SOME), "30 load points differ from the others by a factor of about 1000"
    ),
    Mistake(
        "30 in MW", times(0.001, SOME), "30 load points differ from the others by a factor of about 1000"
    ),
    Mistake(
        "30 in W, no scale",
        times(1000.0, SOME, scales=False),
        "30 customers differ from the others by a factor of about 1000",
    ),
    Mistake(
        "30 in kW for kWh per quarter",
        times(4.0, SOME),
        "30 load points differ from the others by a factor of about 4",
    ),
    Mistake(
        "kW for kWh per quarter",
        times(4.0),
        "2.5 times above the declared typical load",
        {"typical_kw": 0.45},
    ),
    Mistake(
        "kWh per quarter for kW",
        times(0.25, scales=False),
        "2.5 times below the declared typical load",
        {"typical_kw": 0.6},
    ),
    Mistake(
        "bounds in kW beside a scale",
        lambda _: None,
        r"100 of 100 load points .* outside the bounds of the model \(100 below, 0 above\)",
        model={"bounds": (0.2, 9.0)},
    ),
    Mistake(
        "some far above the bounds",
        times(60.0, slice(0, 8)),
        r"8 of 100 load points .* \(0 below, 8 above\).* model.bounds",
        model={"bounds": (0.001, 1.0)},
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_meter_files_is_one_sentence_and_spends_nothing(
    tmp_path: Path, mistake: Mistake
) -> None:
    meters = OwnMeters()
    mistake.plant(meters)
    config = meters.config(tmp_path, loads=mistake.loads, model=mistake.model)
    sentences = []
    for attempt in (dpf.plan, lambda config: run_release(config, workers=1)):
        with pytest.raises(LoadDataError, match=mistake.says) as caught:
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
        (times(4.0), {}),  # nobody can see it without a public reference
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
