"""Errors as programs read them: JSON, a code, a fix. Mistakes of people: `report/test_mistakes.py`."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from dp_powerflow.cli import main
from dp_powerflow.errors import ConfigError, Lines, MissingExtraError, PrivacyError
from support.small_circuits import script


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (None, "feeder-not-found"),
        ("New Lnie.b bus1=x bus2=y\n", "feeder-rejected"),
        ("Disable Vsource.source\n", "feeder-without-source"),
        ("New Line.i bus1=p bus2=q length=1\n", "feeder-islanded"),
        ("New Load.m bus1=gone.1 phases=1 kv=2.4 kW=10\n", "feeder-unknown-bus"),
    ],
)
def test_an_error_is_json_too_with_its_code_and_its_fix(
    more: str | None,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if more is not None:
        (tmp_path / "f.dss").write_text(script("two_loads", length=1, more=more))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dp-powerflow", "inspect", "f.dss", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["code"] == code
    assert told["error"].endswith(told["fix"])
    assert shown.err == f"error: {told['error']}\n"


def test_the_fix_is_what_stands_last_but_for_what_was_spent() -> None:
    assert ConfigError("this is wrong; do that").fix == "do that"
    assert ConfigError("this is wrong; do that; nothing was spent").fix == "do that"
    assert ConfigError("this is wrong; nothing was spent").fix is None
    told = ConfigError("this is wrong", fix="do that", code="of-its-own")
    assert (str(told), told.fix, told.code) == ("this is wrong; do that", "do that", "of-its-own")
    assert PrivacyError("this is wrong").code == "privacy"
    assert ConfigError(Lines("2 mistakes:\n  1. one; do this\n  2. two; do that")).fix is None


def test_an_error_survives_a_pipe_with_its_code() -> None:
    for error in (ConfigError("a; b", code="of-its-own"), MissingExtraError("torch", "ml")):
        again = pickle.loads(pickle.dumps(error))
        assert again.to_dict() == error.to_dict()
        assert again.each == (again,)
