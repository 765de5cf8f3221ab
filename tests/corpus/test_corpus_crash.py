"""Full disks, read-only and forbidden directories: whole or nothing, the same bytes in the end."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import LAYOUT, RELEASE_ID, write_corpus, write_parts

CHILD = Path(__file__).parents[1] / "support" / "corpus_child.py"
AS_NOBODY = {"CORPUS_CHILD_USER": "65534"} if os.getuid() == 0 else {}
"""The superuser may write anywhere, so the child becomes somebody else."""


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def hashes_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    hashes: dict[str, str] = json.loads(done.stdout)
    return hashes


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return hashes_of(run(tmp_path_factory.mktemp("reference") / "release"))


def check_refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def in_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts of its own, which vanish with it."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs Linux and unshare")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a user mount a file system")
    return subprocess.run([*command, script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("size", ["4k", "20k"])
def test_a_full_disk_ends_in_one_sentence_and_the_run_goes_on_with_more_space(
    tmp_path: Path, reference: dict[str, str], size: str
) -> None:
    child = f"{sys.executable} {CHILD} {tmp_path}/disk/release"
    disk = tmp_path / "disk"
    disk.mkdir()
    done = in_namespace(
        f"mount -t tmpfs -o size={size} none {disk}\n"
        f"{child} >/dev/null && exit 1\n"
        f"test ! -e {disk}/release\n"
        f"test -z \"$(find {disk} -name '*.tmp-*')\"\n"
        f"mount -o remount,size=10m {disk}\n"
        f"{child}\n"
    )
    says = "MB left" if size == "4k" else "the disk is full"
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert hashes_of(done) == reference


def test_a_read_only_file_system_ends_in_one_sentence(tmp_path: Path) -> None:
    done = in_namespace(
        f"mount -t tmpfs -o ro none {tmp_path}\n{sys.executable} {CHILD} {tmp_path}/release\n"
    )
    check_refused(done, "read-only file system; choose a directory that can be written")


def test_a_file_system_that_turns_read_only_during_the_run_ends_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CorpusWriter(tmp_path / "release", LAYOUT, RELEASE_ID)
    writer.prepare()

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CorpusError, match="read-only file system"):
        write_parts(writer)
    assert list((writer.partial / "data").iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_directory_without_permission_ends_in_one_sentence() -> None:
    # Not tmp_path: another user may not enter the directories above it.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        check_refused(run(f"{directory}/release", env=os.environ | AS_NOBODY), "no permission to write")
        assert os.listdir(directory) == []


def test_a_limit_on_the_size_of_files_ends_in_one_sentence(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = run(tmp_path / "release", preexec_fn=limit)
    check_refused(done, "the disk is full or a quota is reached")
    assert not (tmp_path / "release").exists()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_corpus_that_cannot_fit_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    huge = CorpusLayout(days=10**9, steps=96, nodes=10**4, days_per_part=10**9)
    with pytest.raises(
        CorpusError, match=r"takes at least [\d.,]+ MB and the disk of .* has [\d.,]+ MB left"
    ):
        CorpusWriter(tmp_path / "release", huge, RELEASE_ID).prepare()


def test_a_target_that_cannot_be_ends_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CorpusError, match="cannot be written: "):
        write_corpus(tmp_path / "file" / "release")
    with pytest.raises(CorpusError, match="cannot be written: File name too long"):
        write_corpus(tmp_path / ("x" * 250))
