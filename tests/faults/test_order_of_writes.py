"""What is written first, so that a run that is killed in between loses nothing and hides nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.pipeline.modes.base import OWNER_FILE
from dp_powerflow.pipeline.plan import REPORT_FILE
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.state import PrivateState
from support.faults.subjects import TWIN_RELEASE
from support.small import small_config


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """End the run just after the first of these internal files is written."""
    write = PrivateState.write_internal

    def kill(self: PrivateState, release_id: str, name: str, data: bytes) -> Path:
        path = write(self, release_id, name, data)
        if name in names:
            raise Killed
        return path

    monkeypatch.setattr(PrivateState, "write_internal", kill)


def test_a_run_killed_between_the_report_and_the_file_of_the_owner_makes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, **{**TWIN_RELEASE, "release": {"days": 4}})
    with monkeypatch.context() as patch:
        killed_after(patch, (REPORT_FILE, OWNER_FILE))
        with pytest.raises(Killed):
            run_release(config, workers=1)
    run_release(config, workers=1)
    assert {REPORT_FILE, OWNER_FILE} <= set(os.listdir(tmp_path / "state" / "internal" / "small"))


def test_init_removes_what_a_killed_one_left_of_its_own_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml.tmp-0123456789abcdef", "mine.toml.tmp-notes", "other.toml.tmp-0123456789abcdef"):
        (tmp_path / name).write_text("half")
    assert CliRunner().invoke(app, ["init", "mine.toml"]).exit_code == 0
    assert sorted(os.listdir(tmp_path)) == [
        "mine.toml",
        "mine.toml.tmp-notes",
        "other.toml.tmp-0123456789abcdef",
    ]
