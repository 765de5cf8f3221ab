"""Bad input on the command line: one sentence on stderr, exit code 2, no traceback, stdout empty."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dp_powerflow.errors import ConfigError, Lines, MissingExtraError, PrivacyError

CIRCUIT = "Clear\nNew Circuit.c basekv=4.16 bus1=s\nNew Line.a bus1=s bus2=x length=1 units=km\n"
LOAD = "New Load.l bus1=x.1 phases=1 kv=2.4 kW=10 kvar=3\n"
BASES = "Set VoltageBases=[4.16]\nCalcVoltageBases\n"


def dp_powerflow(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dp_powerflow.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("content", "says", "code"),
    [
        (None, "does not exist", "feeder-not-found"),
        (CIRCUIT + LOAD + "New Lnie.b bus1=x bus2=y\n" + BASES, "OpenDSS rejects", "feeder-rejected"),
        (CIRCUIT + LOAD + "Disable Vsource.source\n" + BASES, "no voltage source", "feeder-without-source"),
        (CIRCUIT + LOAD + "New Line.i bus1=p bus2=q length=1\n" + BASES, "islanded", "feeder-islanded"),
        (
            CIRCUIT + LOAD + "New Load.m bus1=gone.1 phases=1 kv=2.4 kW=10\n" + BASES,
            "which no line or transformer reaches",
            "feeder-unknown-bus",
        ),
        (
            CIRCUIT
            + LOAD
            + "New Line.z1 bus1=x bus2=y r1=0 x1=0 r0=0 x0=0 c1=0 c0=0 length=1\n"
            + "New Line.z2 bus1=x bus2=y r1=0 x1=0 r0=0 x0=0 c1=0 c0=0 length=1\n"
            + BASES,
            "impedance",
            "feeder-rejected",
        ),
    ],
    ids=["missing file", "rejected", "no source", "islanded", "unknown node", "zero-impedance loop"],
)
def test_bad_feeders_end_with_one_sentence_and_exit_code_2(
    tmp_path: Path, content: str | None, says: str, code: str
) -> None:
    if content is not None:
        (tmp_path / "f.dss").write_text(content)
    result = dp_powerflow("inspect", "f.dss", "--json", cwd=tmp_path)
    assert result.returncode == 2
    told = json.loads(result.stdout)
    assert told["code"] == code
    assert told["error"].endswith(told["fix"])
    assert result.stderr.endswith(f"error: {told['error']}\n")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_command_or_option_ends_with_exit_code_2(tmp_path: Path) -> None:
    for arguments in (["inspekt"], ["inspect"], ["inspect", "ieee13", "--jsno"]):
        result = dp_powerflow(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


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
