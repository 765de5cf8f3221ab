"""Too little memory: one sentence with what is needed and what there is, and exit code 2."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dp_powerflow import _memory, cli
from dp_powerflow._memory import check_memory
from dp_powerflow._parallel.processes import attempted
from dp_powerflow.errors import ConfigError
from support.interrupted_child import config_text

MIB = 2**20


def limited(mib: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with so many addresses."""
    command = [sys.executable, "-m", "dp_powerflow", *arguments]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=600)


def one_sentence(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a command was refused, or ended for want of memory, in a sentence."""
    said = done.stderr.splitlines()[-1]
    return done.returncode == 2 and said.startswith("error: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize("mib", [300, 1300])
def test_a_release_that_cannot_have_enough_addresses_is_refused_before_anything_is_loaded(
    tmp_path: Path, mib: int
) -> None:
    """With 300 MiB LLVM cannot be loaded; with 1,300 it ends the process in the middle."""
    (tmp_path / "release.toml").write_text(config_text(20))
    done = limited(mib, "release", str(tmp_path / "release.toml"))
    assert one_sentence(done), done.stderr
    assert f"may have {mib:,} MiB (ulimit -v)" in done.stderr
    assert done.stderr.endswith("nothing was spent\n")
    assert os.listdir(tmp_path) == ["release.toml"]


def test_commands_that_solve_nothing_need_little() -> None:
    assert limited(300, "--version").returncode == 0


@pytest.mark.campaign
@pytest.mark.parametrize("mib", [*range(200, 1700, 250), 1700, 1800, 2000, 2500])
def test_at_any_limit_a_release_succeeds_or_ends_in_a_sentence(tmp_path: Path, mib: int) -> None:
    (tmp_path / "release.toml").write_text(config_text(300))
    done = limited(mib, "release", str(tmp_path / "release.toml"))
    assert done.returncode == 0 or one_sentence(done), done.stderr[-2000:]


GROUPS = {
    "version 2": ("0::/job/step\n", "", ("memory.max", "memory.current", "inactive_file")),
    "version 1": (
        "7:cpu,memory:/job/step\n",
        "memory",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ),
}


@pytest.mark.parametrize("version", GROUPS)
@pytest.mark.parametrize(("allowed", "fits"), [(300, False), (2000, True)])
def test_the_limit_of_a_container_counts_wherever_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, allowed: int, fits: bool
) -> None:
    line, below, (limit, used, cached) = GROUPS[version]
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8000000 kB\nSwapFree: 0 kB\n")
    (proc / "self" / "cgroup").write_text(line)
    inner = groups / below / "job" / "step"
    inner.mkdir(parents=True)
    for folder, size in (
        (inner, "max" if version == "version 2" else str(2**62)),
        (inner.parent, allowed * MIB),
    ):
        (folder / limit).write_text(f"{size}\n")
        (folder / used).write_text(f"{200 * MIB}\n")
        (folder / "memory.stat").write_text(f"anon {MIB}\n{cached} {100 * MIB}\n")
    monkeypatch.setattr(_memory, "_PROC", proc)
    monkeypatch.setattr(_memory, "_CGROUPS", groups)
    if fits:
        check_memory()
        return
    with pytest.raises(ConfigError, match=r"about 360 MiB of memory, and there are 200 MiB left"):
        check_memory()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_no_memory_in_the_middle_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory; ")


def test_no_memory_in_a_worker_is_a_sentence() -> None:
    def fail() -> None:
        raise MemoryError

    answer = attempted(1, "there", fail, lambda _: "a defect")
    assert answer.problem is not None
    assert answer.defect is None
