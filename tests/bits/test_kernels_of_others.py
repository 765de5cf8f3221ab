"""Compiled code is code: none is taken from a folder or a file that somebody else could have written."""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_powerflow._bits import kept
from dp_powerflow._bits.kept import CACHE_NAME, Archive, Folder

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid"), reason="Windows has no owners and modes like these"
)
KEY = "dp_powerflow.module.function-0123"


class Attack:
    """Runs whatever its author likes when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.getpid, ())


def planted(path: Path) -> Path:
    """An entry with the right name and the right hash, as anybody can make one."""
    data = pickle.dumps(Attack())
    path.write_bytes(hashlib.sha256(data).digest() + data)
    return path


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that everybody may write to, and one of the user's own to go to instead."""
    folder = tmp_path / "of-many"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(folder))
    monkeypatch.setattr(kept, "_PACKAGE", Path("/dev/null/no-such-folder"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    Folder.of_user.cache_clear()
    yield folder
    Folder.of_user.cache_clear()


def test_a_new_folder_in_a_shared_one_is_the_users_alone(shared: Path) -> None:
    before = os.umask(0)
    try:
        Folder.of_user().keep(KEY, b"code")
    finally:
        os.umask(before)
    own = shared / CACHE_NAME
    assert Folder.of_user().path == own
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert stat.S_IMODE((own / f"{KEY}.kernel").stat().st_mode) == 0o600
    assert Folder.of_user().find(KEY) == b"code"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_passed_over(shared: Path, mode: int, tmp_path: Path) -> None:
    (shared / CACHE_NAME).mkdir()
    planted(shared / CACHE_NAME / f"{KEY}.kernel")
    (shared / CACHE_NAME).chmod(mode)
    folder = Folder.of_user()
    assert folder.path == tmp_path / "home" / "dp_powerflow" / "kernels"
    assert folder.find(KEY) is None


def test_a_folder_of_somebody_else_is_passed_over(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / CACHE_NAME).mkdir(0o755)
    planted(shared / CACHE_NAME / f"{KEY}.kernel")
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert Folder.of_user().path is None  # the other places are not this user's either
    assert Folder.of_user().find(KEY) is None


def test_a_link_is_passed_over(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (shared / CACHE_NAME).symlink_to(tmp_path / "elsewhere")
    assert Folder.of_user().path == tmp_path / "home" / "dp_powerflow" / "kernels"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_others_own_or_may_write_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    entry = planted(tmp_path / f"{KEY}.kernel")
    entry.chmod(0o600)
    assert folder.find(KEY) is not None
    for mode in (0o620, 0o602, 0o666):
        entry.chmod(mode)
        assert folder.find(KEY) is None
    entry.chmod(0o600)
    (tmp_path / "link-1.kernel").symlink_to(entry)
    assert folder.find("link-1") is None
    os.mkfifo(tmp_path / "pipe-1.kernel", 0o600)
    assert folder.find("pipe-1") is None
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert folder.find(KEY) is None


def test_what_an_archive_is_unpacked_to_can_be_used_under_any_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Folder(tmp_path).keep(KEY, b"code")
        Archive.write(tmp_path / "shipped" / "all", tmp_path, [KEY])
        Archive.read(tmp_path / "shipped" / "all").unpack(tmp_path / "to")
    finally:
        os.umask(before)
    assert kept._only_user_writes(tmp_path / "to")
    assert Folder(tmp_path / "to").find(KEY) == b"code"
