"""The path of a release: how many modules it runs through, and what it asks before and after it has paid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from dp_powerflow.pipeline.release import run_release
from support.raise_sites import AGAIN, BEFORE, OTHER, WHEN, site_of
from support.small import small_config

TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 8.0, "delta": 1e-5, "id": "t1", "change": 0.05},
    **{"transformers": True, "capacitors": True},
    **{"released": "all", "controls": "frozen", "publish": "network and loads", "graph_days": 2},
}


SPEND = "privacy.ledger.book:Ledger.spend"


@dataclass(frozen=True)
class Watched:
    """Functions of the package that began, `module:function`, in order: all, and from the first spend on."""

    functions: dict[str, None] = field(default_factory=dict)
    after_the_spend: dict[str, None] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(name.split(":")[0] for name in self.functions))


@contextmanager
def watching() -> Iterator[Watched]:
    """What is called within the block."""
    found, known = Watched(), dict[CodeType, str | None]()

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        name = known[code] if code in known else known.setdefault(code, site_of(frame))
        if name is None:
            return
        found.functions.setdefault(name)
        if SPEND in found.functions:
            found.after_the_spend.setdefault(name)

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "most"),
    [
        # Of these, four are for the dates of the days: a rule of the config, calendar, file, what joins them.
        # Three simulate the customers; a release of real meters does without. Three know of two kinds of load
        # model: the choice of the estimator, the words of the manifest, a class of either kind. Four publish
        # connections: buses of a feeder, their secret order, the files, the words of the manifest. A dozen
        # make the page of figures and what it is written with, two the card and the list of tables. Three
        # make the bytes of a part: what it publishes, the public grid, the Parquet file. Six keep the ledger:
        # the chain of entries, the SQLite file, how that looks from outside, what a process has checked of
        # it, the accounts, a charge. Two draw: keys of AES, the law of a day as its kernel reads it. Two
        # stand for what is slow to import: Brent's methods for accounts, columns of Arrow as arrays. Four
        # make threads useful: threads, jobs, records in parts, blocks that are solved together. Two say
        # which of the protected figures a network has. Four let somebody else make a release: what is asked
        # and answered, the charges, the documents, feeders that were read before. Three came with faults:
        # what is true of charges, the hashes that a corpus is read against, who may compile kernels.
        pytest.param(TWIN | {"publish": "voltages", "controls": "day", "graph_days": None}, 146, id="twin"),
        pytest.param(TWIN, 145, id="twin with its tables"),
        # Theorem 1 and the Jacobians beside what a twin needs: more than the aim of 50.
        pytest.param({}, 136, id="true network"),
    ],
)
def test_a_release_visits_few_modules_and_checks_its_inputs_before_it_spends(
    tmp_path: Path, network: dict[str, Any], most: int
) -> None:
    # Once unwatched: compiling kernels under a profiler takes minutes.
    run_release(small_config(tmp_path / "first", release={"days": 3}, network=network), workers=1)
    config = small_config(tmp_path, release={"days": 3}, network=network)
    with watching() as seen:
        run_release(config, workers=1)
    listed = "\n".join(f"{k:3} {name}" for k, name in enumerate(seen.modules, start=1))
    assert "pipeline.release" in seen.modules
    assert len(seen.modules) <= most, (
        f"{len(seen.modules)} modules, in the order of the first call:\n{listed}"
    )
    # What refuses a config or a feeder is not asked, or not for the first time, when somebody has paid.
    assert SPEND in seen.functions
    assert not seen.after_the_spend.keys() & (WHEN[BEFORE].keys() | WHEN[OTHER].keys())
    first_asked = seen.after_the_spend.keys() - set(list(seen.functions)[: list(seen.functions).index(SPEND)])
    assert not first_asked & WHEN[AGAIN].keys()
