"""The same key gives the same days for ever, or the number of the draws says that it gives others.

A release is paid for once and may be made again for nothing, because it is the same release. If the same key
gave other days, whoever has both would know twice as much of the true network as was paid for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import StreamKey
from dp_powerflow._names import DRAWS
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import ClassLaw, LoadLaw, LoadSampler
from dp_powerflow.model.history.numbers import Ladder
from dp_powerflow.model.history.sample import Process
from dp_powerflow.model.sample import CustomerLaw, CustomerSampler
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline.release import run_release
from support.laws import alike
from support.populations import courses
from support.small import small_config

KEY = StreamKey.from_insecure_seed(5)
STEPS, NODES, DAYS = 5, 3, 11


def law() -> LoadLaw:
    part = ClassLaw.gaussian(
        np.linspace(-1.0, 1.0, STEPS), np.eye(STEPS) + 0.25, margins=(1e-3, 1e3), q_covariance=np.eye(STEPS)
    )
    return alike(part, NODES, tan_theta=0.25, q=0.5)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[
        :16
    ]


def drawn() -> dict[str, str]:
    """Hashes of a few days of every sampler."""
    loads = LoadSampler(law(), KEY, DAYS, block_days=4)
    people = CustomerSampler(CustomerLaw(law(), np.arange(NODES), np.arange(NODES)), KEY, DAYS, block_days=4)
    blocks = {name: source.block(2) for name, source in (("loads", loads), ("customers", people))}
    ladder = Ladder.of(STEPS, 4)
    process = Process(ladder, np.linspace(1.0, 0.25, len(ladder.spacings)), KEY, "customers/homes")
    return {name: digest(block.load_kw, block.load_kvar) for name, block in blocks.items()} | {
        "histories": digest(courses(process, 20, 3, 2))
    }


def test_draws_are_those_of_their_number() -> None:
    """If this fails and the change is meant, `DRAWS` needs a new number, with these hashes."""
    hashes = {"loads": "ec32e8bbc27971fc", "customers": "9bae31c27f16a449", "histories": "836644c9ef306ae5"}
    assert (DRAWS, drawn()) == (2, hashes)


def test_other_draws_are_another_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(tmp_path)
    run_release(config, workers=1)
    (tmp_path / "out").rename(tmp_path / "published")
    with monkeypatch.context() as other:
        other.setattr(planning, "DRAWS", DRAWS + 1)
        with pytest.raises(PrivacyError, match="request"):
            run_release(config, workers=1)
    run_release(config, workers=1)  # the same draws cost nothing
