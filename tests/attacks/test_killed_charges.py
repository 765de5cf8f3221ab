"""Killed just after the ledger has committed: nothing but the ledger knows of the charge then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._spending import NOTHING_SPENT, STAYS_SPENT
from dp_powerflow.errors import CorpusError
from dp_powerflow.fleet import run as fleet_run
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline import plan, release
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import fleet_config, write_feeders
from support.here import Here
from support.small import TWIN, small_config


def killed_when_kept(patch: pytest.MonkeyPatch, module: Any, begun: bool) -> None:
    """The run ends just before, or just after, it keeps that the release is begun."""
    keep = module.keep_begun

    def killed(*arguments: Any) -> None:
        if begun:
            keep(*arguments)
        raise KeyboardInterrupt

    patch.setattr(module, "keep_begun", killed)


def no_room(*_: object) -> None:
    raise CorpusError(f"the disk is full; free some space; {NOTHING_SPENT}")


@pytest.mark.parametrize(("begun", "reuse"), [(False, False), (True, True)])
def test_the_next_run_does_not_say_that_nothing_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, reuse: bool
) -> None:
    """Who believes the sentence begins anew, and pays twice; with a used model only the twin is charged."""
    network = {**TWIN, "controls": "frozen"}
    asked: dict[str, Any] = {"days": 3, "network_epsilon_cap": 100.0}
    config = small_config(tmp_path, network=network, release=asked)
    if reuse:
        first = run_release(config, workers=1).internal.name
        asked, network = {**asked, "id": "later", "output": "later"}, {**network, "id": "another"}
        config = small_config(tmp_path, network=network, model={"reuse": first}, release=asked)

    def refused(sentence: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(plan, "check_room", no_room)
            with pytest.raises(CorpusError, match=sentence):
                run_release(config, workers=1)

    refused(NOTHING_SPENT)
    with monkeypatch.context() as patch:
        killed_when_kept(patch, release, begun)
        with pytest.raises(KeyboardInterrupt):
            run_release(config, workers=1)
    refused(STAYS_SPENT)
    before = Ledger.inspect(tmp_path / "state").spends()
    run_release(config, workers=1)
    assert Ledger.inspect(tmp_path / "state").spends() == before


def test_nor_does_that_of_a_fleet_and_of_its_feeders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_feeders(tmp_path)
    config = fleet_config(tmp_path, fleet={"feeders": ["feeders/alder*.dss"], "same_frame": None})
    with monkeypatch.context() as patch:
        killed_when_kept(patch, fleet_run, False)
        with pytest.raises(KeyboardInterrupt):
            run_fleet(config, engine=Here())
    with monkeypatch.context() as patch:
        patch.setattr(plan, "check_room", no_room)
        [failed] = run_fleet(config, engine=Here()).failed
    assert STAYS_SPENT in (failed.problem or "")
    with monkeypatch.context() as patch:
        patch.setattr(fleet_run._Run, "make_missing", no_room)
        with pytest.raises(CorpusError, match=STAYS_SPENT):
            run_fleet(config, engine=Here())
