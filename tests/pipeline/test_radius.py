"""A radius that the evidence does not support can be lowered: the message says how, and that works."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.manifest.true import account_neighbours
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.modes.true import refuse_another_radius, restate_radius
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.accounts import InstanceCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.small import small_config

CAP = {"days": 2, "network_epsilon_cap": 300.0, "network_delta_cap": 0.9}


def config(folder: Path, name: str, radius: float, **other: Any) -> Config:
    """A release of two days on the true network that requires evidence."""
    network = {"radius": radius, "epsilon": 100.0, "delta": 0.3, "calibration_days": 200}
    model = {} if name == "first" else {"reuse": "first"}
    return small_config(
        folder,
        network={**network, "require_evidence": True, **other.pop("network", {})},
        model=model,
        release={**CAP, "id": name, "output": name, **other},
    )


def type_what_is_printed(message: str) -> None:
    """Run the command that a message shows between back quotes."""
    found = re.search("`(dp-powerflow .*)`", message)
    assert found is not None, message
    command = shlex.split(found[1])
    done = CliRunner().invoke(app, command[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_a_refused_radius_is_lowered_by_what_the_messages_say(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"under a new release id and with model.reuse = 'first'"):
        run_release(config(tmp_path, "first", 1e-7), workers=1)
    second = config(tmp_path, "second", 1e-13)
    for attempt in (plan, lambda chosen: run_release(chosen, workers=1)):
        with pytest.raises(PrivacyError, match="counts in full for smaller ones") as refused:
            attempt(second)
    type_what_is_printed(str(refused.value))
    assert run_release(second, workers=1).evidence_met
    lower = config(tmp_path, "third", 1e-14)
    with pytest.raises(PrivacyError, match="counts in full for smaller ones") as refused:
        plan(lower)
    type_what_is_printed(str(refused.value))
    assert run_release(lower, workers=1).evidence_met
    # All charges, that of the refused release too, count at the smallest radius, and both releases that were
    # made still say what the ledger says.
    account = Ledger.inspect(tmp_path / "state").summary().accounts[-1]
    assert account.balance.spent["epsilon"] == 300.0
    assert "r = 1e-14 p.u." in str(account.cap.unit)
    for name, radius in {"second": "1e-13", "third": "1e-14"}.items():
        assert verify_private(tmp_path / name, tmp_path / "state").intact
        stated = json.loads((tmp_path / name / "manifest.json").read_text())["composition"]["network"]
        assert f"r = {radius} p.u." in stated["unit"]
    assert stated["promise"]["epsilon"] == 300.0


def test_an_account_that_was_never_charged_is_restated_to_any_radius(tmp_path: Path) -> None:
    ledger = Ledger.open(PrivateState.open(tmp_path / "state"))
    cap = InstanceCap(300.0, 0.9, unit=account_neighbours(1e-12, 1.0))
    ledgers.account(ledger, "0" * 64, cap)
    for radius in (1e-13, 1e-11):
        asked = replace(cap, unit=account_neighbours(radius, 1.0))
        with pytest.raises(PrivacyError, match="nothing was charged to it yet") as refused:
            refuse_another_radius(ledger, config(tmp_path, "first", radius), "0" * 64, asked)
        type_what_is_printed(str(refused.value))
        refuse_another_radius(ledger, config(tmp_path, "first", radius), "0" * 64, asked)


def test_a_larger_radius_is_refused_once_something_was_charged(tmp_path: Path) -> None:
    relaxed = {"require_evidence": False}
    run_release(config(tmp_path, "first", 1e-13, network=relaxed), workers=1)
    larger = config(tmp_path, "second", 1e-12, network=relaxed)
    with pytest.raises(PrivacyError, match=r"no bound for larger ones; set network.radius = 1e-13; nothing"):
        plan(larger)
    ledger = Ledger.inspect(tmp_path / "state")
    with pytest.raises(PrivacyError, match="no bound for larger ones"):
        restate_radius(ledger, "network-instance-1", 1e-12, "why not")
    with pytest.raises(PrivacyError, match="needs a reason"):
        restate_radius(ledger, "network-instance-1", 1e-14, " ")
    with pytest.raises(PrivacyError, match="positive number"):
        restate_radius(ledger, "network-instance-1", float("nan"), "why not")
    with pytest.raises(PrivacyError, match="'loads-1' is not an account of a true network"):
        restate_radius(ledger, "loads-1", 1e-14, "why not")


def test_the_command_takes_other_figures_of_the_cap_with_it(tmp_path: Path) -> None:
    relaxed = {"require_evidence": False}
    run_release(config(tmp_path, "first", 1e-13, network=relaxed), workers=1)
    other = config(tmp_path, "second", 1e-14, network=relaxed, network_epsilon_cap=250.0)
    with pytest.raises(PrivacyError, match=r"--epsilon 250.0") as refused:
        plan(other)
    type_what_is_printed(str(refused.value))
    assert plan(other).network.affordable
