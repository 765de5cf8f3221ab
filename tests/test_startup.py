"""What short commands import: a verification needs neither solver nor fit, and `--help` hardly anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dp_powerflow.pipeline.release import run_release
from support.small import small_config

PROGRAM = """
import sys
sys.argv = ["dp-powerflow", *sys.argv[1:]]
from dp_powerflow.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
print("\\n" + " ".join(sys.modules))
"""
NOT_FOR_HELP = ("numpy", "scipy", "numba", "pyarrow", "pandas", "pydantic", "jinja2", "yaml", "matplotlib")
NOT_TO_VERIFY = (
    *("pandas", "pyarrow.dataset", "scipy.stats"),
    *("dp_accounting", "absl", "matplotlib", "dss", "dp_powerflow.config", "dp_powerflow.loads"),
    *("dp_powerflow.powerflow", "dp_powerflow.grid.feeder", "dp_powerflow.model.fit"),
    *("dp_powerflow.pipeline.modes", "dp_powerflow.pipeline.release", "dp_powerflow.fleet.verify"),
)
TWIN = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05, "released": "all"}


def imported(*arguments: str) -> set[str]:
    """Modules of a process that has run a command."""
    printed = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    return set(printed.stdout.splitlines()[-1].split())


def test_help_imports_no_numbers() -> None:
    modules = imported("--help")
    assert not modules & set(NOT_FOR_HELP)
    assert len(modules) <= 350, sorted(modules)


@pytest.mark.slow
@pytest.mark.parametrize("network", [pytest.param({}, id="true network"), pytest.param(TWIN, id="twin")])
def test_verify_imports_neither_solver_nor_fit(tmp_path: Path, network: dict[str, object]) -> None:
    config = small_config(tmp_path, release={"days": 3}, network=network)
    run_release(config, workers=1)
    modules = imported("verify", str(tmp_path / "out"))
    assert not modules & set(NOT_TO_VERIFY)
    own = [name for name in modules if name.startswith("dp_powerflow")]
    assert len(own) <= 100, sorted(own)
