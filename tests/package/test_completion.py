"""Completion in the shell: the words are the program's own, and bash, zsh and fish get them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from dp_powerflow import _completion as completion
from dp_powerflow.cli import app
from dp_powerflow.config import LoadsSection
from dp_powerflow.grid.ieee import BUILT_IN
from dp_powerflow.pipeline.setup.write import MODES
from dp_powerflow.powerflow.operated import ControlMode
from dp_powerflow.studies.study import KINDS
from dp_powerflow_paper.datasets import DATASETS
from dp_powerflow_paper.run import EXPERIMENTS

VARIABLE = "_DP_POWERFLOW_COMPLETE"
NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"


def completed(shell: str, line: str, **settings: str) -> str:
    """What the program answers to a shell that completes a line."""
    setting = {VARIABLE: f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, **settings}
    return CliRunner().invoke(app, prog_name="dp-powerflow", env=setting).output.strip()


def test_the_words_are_those_that_the_program_knows() -> None:
    labels = get_args(LoadsSection.model_fields["interval_label"].annotation)
    known = (BUILT_IN, MODES, EXPERIMENTS, DATASETS, labels, get_args(ControlMode), KINDS)
    assert tuple(map(tuple, known)) == (
        *(completion.FEEDERS, completion.MODES, completion.EXPERIMENTS),
        *(completion.DATA_SETS, completion.INTERVAL_LABELS, completion.CONTROLS),
        completion.DERIVED,
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of this checkout."""
    path = tmp_path_factory.mktemp("bin") / "dp-powerflow"
    path.write_text(f"#!{sys.executable}\nfrom dp_powerflow.cli import main\nmain()\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_feeders_and_leaves_files_to_itself(program: Path, tmp_path: Path) -> None:
    script = """
eval "$(dp-powerflow --show-completion bash)"
complete -p dp-powerflow
for line in "dp-powerflow ver" "dp-powerflow inspect ieee1" "dp-powerflow release rel"; do
    COMP_WORDS=($line)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _dp_powerflow_completion dp-powerflow
    echo "${COMPREPLY[*]}"
done
"""
    settings = os.environ | {NO_DETECTION: "1", "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "release.toml").touch()
    bash = ["bash", "--norc", "-c", script]
    done = subprocess.run(bash, capture_output=True, text=True, env=settings, cwd=tmp_path, check=True)
    declared, *words = done.stdout.splitlines()
    assert declared == "complete -o default -F _dp_powerflow_completion dp-powerflow"  # files by default
    assert words == ["verify", "ieee13 ieee123 ieee123-pv", ""]


def test_zsh_gets_words_with_their_meaning_or_completes_files() -> None:
    assert '"verify":"Recompute all that a third party can' in completed("zsh", "dp-powerflow ver")
    assert completed("zsh", "dp-powerflow init --mode tw") == """_arguments '*: :(("twin-network"))'"""
    assert completed("zsh", "dp-powerflow release rel") == "_files"


def test_fish_gets_words_or_completes_files() -> None:
    action = "_TYPER_COMPLETE_FISH_ACTION"
    words = completed("fish", "dp-powerflow experiment ", **{action: "get-args"})
    assert words.splitlines() == list(EXPERIMENTS)
    setting = {VARIABLE: "complete_fish", "_TYPER_COMPLETE_ARGS": "dp-powerflow plan rel", action: "is-args"}
    assert CliRunner().invoke(app, prog_name="dp-powerflow", env=setting).exit_code == 1  # files


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_into_the_home_of_the_user(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(NO_DETECTION, "1")
    done = CliRunner().invoke(app, ["--install-completion", shell], prog_name="dp-powerflow")
    assert done.exit_code == 0, done.output
    written = [path for path in tmp_path.rglob("*dp-powerflow*") if path.is_file()]
    assert len(written) == 1
    assert VARIABLE in written[0].read_text(encoding="utf-8")
