"""Readers compile nothing, and work where nothing can be written: containers, accounts without a home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import dp_powerflow as dpf
from support.fleet_small import circuit
from support.made import Released
from support.reading import everything

FINISHED = ("true_release", "twin_release", "operated_release", "history_release", "fleet_release")


@pytest.mark.slow
def test_readers_do_without_compiling(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In a process where nothing is compiled and compiling raises."""
    releases = [request.getfixturevalue(name).folder for name in FINISHED]
    command = [sys.executable, "-W", "error", "-m", "support.reading", *map(str, releases)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for folder in releases:
        assert found[str(folder)] == json.loads(json.dumps(everything(folder)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def commands(release: Path, own: Path) -> list[list[str]]:
    """All that a consumer runs; results go to a folder of its own."""
    out = str(release)
    return [
        ["verify", out],
        ["quality", out, "--json"],
        ["quality", out, "--out", str(own / "page.html")],
        ["export", "gridfm", out, str(own / "graphs")],
        ["verify", str(own / "nothing")],
    ]


def run(release: Path, own: Path) -> list[tuple[int, str]]:
    """Results of all commands; notes say that it compiles and keeps nothing."""
    nowhere = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "XDG_CACHE_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-m", "support.unwritable", str(own)],
        input=json.dumps(commands(release, own)),
        env={**os.environ, **nowhere, "NUMBA_CACHE_DIR": "/nonexistent"},
        cwd=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Where results are and how long it takes so far is progress, no notice.
    said = [line for line in done.stderr.splitlines() if not re.search(r"^written: |: \d+ s$", line)]
    *notes, last = said
    assert last.startswith("error: ")
    # Kernels that an earlier run has left beside the package are used; else it compiles, and says so once.
    if notes:
        assert [line.partition(":")[0] for line in notes] == ["note", "note"], done.stderr[-3000:]
        assert any(line.startswith("note: compiled kernels cannot be kept") for line in notes)
    return [(code, printed) for code, printed in json.loads(done.stdout)]


@pytest.mark.slow
def test_where_nothing_can_be_written_consumers_work_and_get_one_notice(
    twin_release: Released, tmp_path: Path
) -> None:
    release = twin_release.path
    codes, (verified, figures, *_) = zip(*run(release, tmp_path), strict=True)
    assert codes == (0, 0, 0, 0, 2)
    assert "verdict: demonstration" in verified
    assert figures == dpf.quality(dpf.open_corpus(release)).to_json()
    assert (tmp_path / "page.html").read_bytes() == (release / "quality.html").read_bytes()
    assert (tmp_path / "graphs" / "graphkit.yaml").exists()


def test_a_feeder_is_read_where_there_is_no_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    (tmp_path / "tiny.dss").write_text(circuit(1.0))
    monkeypatch.setattr(tempfile, "gettempdir", nothing)
    assert len(dpf.open_feeder(tmp_path / "tiny.dss").retained) == 6
