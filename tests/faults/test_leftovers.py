"""What killed processes leave: nothing that the next start does not remove, and never a copy of the key."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_powerflow import _files
from dp_powerflow._files import create_once, is_temporary, remove_temporaries, whole_file, write_private
from dp_powerflow._parallel import cluster
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="makes processes and kills them")


def killed(prepare: Callable[[], None], do: Callable[[], object]) -> None:
    """Do something in a process that `prepare` has arranged to be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            do()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def kill_at(name: str, nth: int = 1, *, after: bool = False) -> Callable[[], None]:
    """Arrange that a function of `os` kills the process, before or after it does its work."""

    def prepare() -> None:
        real, calls = getattr(os, name), 0

        def function(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == nth and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            if calls == nth and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, function)

    return prepare


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


KEY_MOMENTS = {
    "made": kill_at("fchmod"),
    "empty": kill_at("ftruncate", after=True),
    "written": kill_at("fsync"),
    "flushed": kill_at("link"),
    "named": kill_at("link", after=True),
}


@pytest.mark.parametrize("moment", KEY_MOMENTS)
def test_a_kill_while_the_key_is_made_leaves_at_most_one_known_file(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "state"
    killed(KEY_MOMENTS[moment], lambda: PrivateState.open(root))
    assert set(os.listdir(root)) <= {"secret.key.new", "secret.key"}
    kept = (root / "secret.key").read_bytes() if moment == "named" else None
    state = PrivateState.open(root)
    assert os.listdir(root) == ["secret.key"]
    assert kept in (None, (root / "secret.key").read_bytes())
    assert PrivateState.open(root) == state


def test_a_key_that_is_being_made_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """Whoever comes meanwhile waits for the lock and then finds the key."""
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "secret.key"
    new = tmp_path / "secret.key.new"
    handle = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    _files.remove_new(path)
    assert new.exists()
    pid = os.fork()
    if pid == 0:
        os.close(handle)  # a fork shares the lock
        create_once(path, b"second")
        os._exit(0)
    os.write(handle, b"first")
    os.link(new, path)
    new.unlink()
    os.close(handle)
    assert os.waitpid(pid, 0)[1] == 0
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["secret.key"]


def test_the_next_start_removes_what_killed_processes_left_anywhere_in_the_state(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    Ledger.open(state)
    state.write_internal("r1", "report.json", b"{}")
    before = names_below(state.root)
    places = ["ledger.anchor", "internal/r1/report.json", "parsed/x.bin", "experiments/r1/table.json"]
    for name in places:
        path = state.root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        killed(kill_at("fsync"), lambda path=path: write_private(path, b"private"))  # type: ignore[misc]
    assert len(names_below(state.root)) == len(before) + len(places)
    (state.root / "secret.key.new").write_bytes((state.root / "secret.key").read_bytes())
    PrivateState.open(state.root)
    assert names_below(state.root) == before


def test_a_ledger_that_was_not_finished_is_removed_and_made_again(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    for moment in (kill_at("fsync"), kill_at("link"), kill_at("link", after=True)):
        killed(moment, lambda: Ledger.open(state))
        Ledger.open(PrivateState.open(state.root))
        assert set(names_below(state.root)) - {"ledger.anchor"} == {"ledger.sqlite", "secret.key"}
        for name in ("ledger.anchor", "ledger.sqlite"):
            (state.root / name).unlink(missing_ok=True)  # the anchor comes with the first transaction


def test_what_a_process_writes_now_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with whole_file(path) as file:
        file.write(b"half")
        remove_temporaries(tmp_path)
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(tmp_path) == ["report"]


def test_a_writer_whose_file_was_taken_for_a_leftover_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making it and locking it there is a moment."""
    real, calls = _files._locked, 0

    def late(handle: int, *, wait: bool) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            remove_temporaries(tmp_path)
        return real(handle, wait=wait)

    monkeypatch.setattr(_files, "_locked", late)
    write_private(tmp_path / "report", b"whole")
    assert calls > 2
    assert (tmp_path / "report").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["report"]


def test_journals_of_the_ledger_are_no_temporary_files() -> None:
    """SQLite undoes with them what a killed process began."""
    assert not is_temporary("ledger.sqlite-journal")


def test_a_probe_for_workers_that_was_left_beside_the_output_is_removed_by_the_next(tmp_path: Path) -> None:
    output = tmp_path / "out"
    killed(lambda: None, lambda: _probed(output, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert len(os.listdir(tmp_path)) == 1
    seen: list[int] = []
    # One that another run looks for now stays.
    _probed(output, lambda: _probed(output, lambda: seen.append(len(os.listdir(tmp_path)))))
    assert seen == [2]
    assert os.listdir(tmp_path) == []


def _probed(output: Path, do: Callable[[], object]) -> None:
    with cluster._probe_beside(output):
        do()
