from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Ledger, PrivateState, StreamKey
from dp_powerflow._files import private_writer
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=["umask 000", "umask 022", "umask 777"])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("any_umask")
def test_everything_in_the_state_is_private_whatever_the_umask(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    Ledger.open(state)
    state.write_internal("r1", "evidence.json", b"{}")
    found = sorted(path.relative_to(state.root).as_posix() for path in state.root.rglob("*"))
    internal = ["internal", "internal/r1", "internal/r1/evidence.json"]
    assert found == [*internal, "ledger.anchor", "ledger.sqlite", "secret.key"]
    for path in [state.root, *state.root.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_the_same_directory_gives_the_same_key_and_another_gives_another(tmp_path: Path) -> None:
    first = PrivateState.open(tmp_path / "a")
    again = PrivateState.open(tmp_path / "a", create=False)
    other = PrivateState.open(tmp_path / "b")
    assert first.stream_key() == again.stream_key()
    assert not first.insecure_seed
    words = [state.stream_key().stream("noise").words(8) for state in (first, again, other)]
    assert np.array_equal(words[0], words[1])
    assert not np.intersect1d(words[0], words[2]).size


def key_elsewhere(root: Path) -> None:
    (root / "secret.key").rename(root.parent / "elsewhere")
    (root / "secret.key").symlink_to(root.parent / "elsewhere")


def linked(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.symlink_to(root.with_name("elsewhere"))


def file_in_its_place(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.write_text("")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        *((partial(Path.chmod, mode=bits), "chmod 700") for bits in (0o710, 0o701, 0o740, 0o704, 0o755)),
        (lambda root: (root / "secret.key").chmod(0o640), "chmod 600"),
        (lambda root: (root / "secret.key").chmod(0o604), "chmod 600"),
        (key_elsewhere, "cannot be read"),
        (linked, "symbolic link"),
        (file_in_its_place, "not a directory"),
        (shutil.rmtree, "there is no private state directory"),
    ],
)
def test_a_directory_or_key_that_others_may_reach_is_refused_with_the_command_that_helps(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    root = tmp_path / "state"
    PrivateState.open(root)
    damage(root)
    with pytest.raises(PrivacyError, match=says):
        PrivateState.open(root, create=False)
    with pytest.raises(PrivacyError, match=says):
        PrivateState.inspect(root)


def test_a_directory_or_key_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PrivateState.open(tmp_path / "state")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PrivacyError, match="belongs to another user"):
        PrivateState.open(state.root)


def test_any_damage_to_the_key_is_noticed_and_not_quoted(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    path = state.root / "secret.key"
    good = path.read_bytes()
    secret = json.loads(good)["secret"]
    start = good.index(secret.encode())
    damaged = [good[:40], b"", b"\xff" * 200, b"[]", b"{}", good.replace(b"operating system", b"dice")]
    for position in (start, start + 17, start + 63):  # a flipped digit of the secret
        digit = b"0" if good[position : position + 1] != b"0" else b"1"
        damaged.append(good[:position] + digit + good[position + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(PrivacyError, match="damaged") as caught:
            PrivateState.open(state.root)
        shown = "".join(traceback.format_exception(caught.value))
        assert secret[:8] not in shown


def test_a_lost_key_is_not_replaced_beside_a_ledger(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    Ledger.open(state)
    (state.root / "secret.key").unlink()
    with pytest.raises(PrivacyError, match="restore the key"):
        PrivateState.open(state.root)
    assert not (state.root / "secret.key").exists()


def test_a_seeded_directory_marks_itself_and_is_never_mixed_with_a_real_one(tmp_path: Path) -> None:
    seeded = PrivateState.open(tmp_path / "demo", insecure_seed=7)
    assert seeded.insecure_seed
    assert seeded.stream_key() == StreamKey.from_insecure_seed(7)
    assert Ledger.open(seeded).summary().insecure_seed
    assert PrivateState.open(tmp_path / "demo", insecure_seed=7) == seeded
    assert PrivateState.inspect(tmp_path / "demo").insecure_seed
    with pytest.raises(PrivacyError, match="insecure seed"):
        PrivateState.open(tmp_path / "demo")
    with pytest.raises(PrivacyError, match="another key"):
        PrivateState.open(tmp_path / "demo", insecure_seed=8)
    PrivateState.open(tmp_path / "real")
    with pytest.raises(PrivacyError, match="another key"):
        PrivateState.open(tmp_path / "real", insecure_seed=7)


def test_identity_depends_on_key_purpose_and_every_chunk(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "a", insecure_seed=1)
    other = PrivateState.open(tmp_path / "b", insecure_seed=2)
    identity = state.identity("loads", [b"12", b"3"])
    assert len(identity) == 64
    assert identity == state.identity("loads", iter([b"12", b"3"]))
    others = (("network", [b"12", b"3"]), ("loads", [b"1", b"23"]), ("loads", [b"12", b"4"]))
    different = {state.identity(*asked) for asked in others}
    assert len(different | {identity, other.identity("loads", [b"12", b"3"])}) == 5


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    secret = json.loads((state.root / "secret.key").read_text())["secret"]
    for shown in (repr(state), str(state), repr(state.stream_key()), repr(Ledger.open(state))):
        assert secret not in shown
        assert str(bytes.fromhex(secret)) not in shown


def test_a_resumed_release_commits_to_the_same_digest_and_no_other_does(tmp_path: Path) -> None:
    states = [PrivateState.open(tmp_path / "state") for _ in range(2)]
    first, again = (state.commit("r1", "report", b"evidence") for state in states)
    assert first == again
    other = PrivateState.open(tmp_path / "other").commit("r1", "report", b"evidence")
    rest = {states[0].commit(*asked) for asked in (("r1", "report", b""), ("r1", "a", b""), ("r2", "a", b""))}
    assert len({first, other, *rest, hashlib.sha256(b"evidence").hexdigest()}) == 6


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../x", "a\n", "ä", "-x", "x" * 101])
def test_names_that_could_leave_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    state = PrivateState.open(tmp_path / "state")
    with pytest.raises(PrivacyError, match="release id"):
        state.write_internal(name, "x.json", b"")
    with pytest.raises(PrivacyError, match="internal file"):
        state.write_internal("r1", name, b"")


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "report"
    write_private(path, b"old")
    with pytest.raises(KeyboardInterrupt), private_writer(path) as file:  # noqa: PT012
        file.write(b"half of the n")
        raise KeyboardInterrupt
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["report"])
    write_private(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["report"])
