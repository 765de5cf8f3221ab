"""Keys of products: made before the charge, found by a killed run, gone when the product is complete."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from dp_powerflow.errors import PrivateStateError
from dp_powerflow.privacy.state import KEYS_VARIABLE, PrivateState

REQUEST, OTHER = "a" * 64, "b" * 64


def secret_of(state: PrivateState, request: str = REQUEST) -> bytes:
    key = state.key_of("r1", "fit", request)
    assert key is not None
    return key.secret


@pytest.fixture(params=["in the state", "elsewhere"])
def state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateState:
    if request.param == "elsewhere":
        (tmp_path / "memory").mkdir(mode=0o700)
        monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "memory"))
    return PrivateState.open(tmp_path / "state")


def holders(folder: Path, secret: bytes) -> list[Path]:
    """Files that hold a secret, as bytes or as digits."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path for path in files if any(form in path.read_bytes() for form in (secret, secret.hex().encode()))
    ]


def test_every_product_has_its_own_key_which_later_runs_find(state: PrivateState) -> None:
    for product in ("fit", "draws"):
        state.make_key("r1", product, REQUEST)
    state.make_key("r2", "fit", REQUEST)
    first = secret_of(state)
    state.make_key("r1", "fit", REQUEST)
    assert secret_of(PrivateState.open(state.root)) == first
    others = [state.key_of("r1", "draws", REQUEST), state.key_of("r2", "fit", REQUEST)]
    assert len({first, state.stream_key().secret, *(key.secret for key in others if key)}) == 4


def test_a_key_serves_no_other_request(state: PrivateState) -> None:
    state.make_key("r1", "fit", REQUEST)
    first = secret_of(state)
    assert state.key_of("r1", "fit", OTHER) is None
    state.make_key("r1", "fit", OTHER)
    assert secret_of(state, OTHER) != first
    assert secret_of(state) == first  # perhaps of another process, which has paid for its own request
    state.destroy_key("r1", "fit")
    assert state.key_of("r1", "fit", REQUEST) is state.key_of("r1", "fit", OTHER) is None


def test_a_destroyed_key_is_nowhere_below_the_state(state: PrivateState, tmp_path: Path) -> None:
    state.make_key("r1", "fit", REQUEST)
    secret = secret_of(state)
    [held] = holders(tmp_path, secret)
    assert held.stat().st_mode & 0o077 == 0
    linked = tmp_path / "seen"  # another name of the same blocks: overwritten, not only removed
    os.link(held, linked)
    state.destroy_key("r1", "fit")
    assert not holders(tmp_path, secret)
    assert set(linked.read_bytes()) == {0}
    assert state.key_of("r1", "fit", REQUEST) is None
    state.destroy_key("r1", "fit")  # once more does no harm


def test_a_seed_makes_no_files_and_gives_the_same_key_again(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state", insecure_seed=7)
    state.make_key("r1", "fit", REQUEST)
    assert secret_of(state) == state.stream_key().secret
    assert [path.name for path in (tmp_path / "state").rglob("*.key")] == ["secret.key"]


def test_a_damaged_key_is_not_taken_for_none(state: PrivateState, tmp_path: Path) -> None:
    state.make_key("r1", "fit", REQUEST)
    [held] = holders(tmp_path, secret_of(state))
    held.write_bytes(held.read_bytes()[:-40])
    with pytest.raises(PrivateStateError, match="damaged"):
        state.key_of("r1", "fit", REQUEST)


def test_a_kill_between_overwriting_and_removing_a_key_leaves_none(
    state: PrivateState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.make_key("r1", "fit", REQUEST)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            state.destroy_key("r1", "fit")
    assert len(list(tmp_path.rglob("fit*.key"))) == 1
    assert PrivateState.open(state.root).key_of("r1", "fit", REQUEST) is None
    state.make_key("r1", "fit", REQUEST)
    assert secret_of(state)
    state.destroy_key("r1", "fit")
    assert not list(tmp_path.rglob("fit*.key"))


def test_keys_are_looked_for_where_they_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, state = tmp_path / "memory", PrivateState.open(tmp_path / "state")
    memory.mkdir(mode=0o700)
    monkeypatch.setenv(KEYS_VARIABLE, str(memory))
    state.make_key("r1", "fit", REQUEST)
    first = secret_of(state)
    monkeypatch.delenv(KEYS_VARIABLE)
    assert secret_of(state) == first
    memory.rename(tmp_path / "unmounted")
    for look in (partial(state.destroy_key, "r1", "fit"), partial(state.keys_folder, "r1")):
        with pytest.raises(PrivateStateError, match="mount it"):
            look()
    (tmp_path / "unmounted").rename(memory)
    state.destroy_key("r1", "fit")
    assert not holders(tmp_path, first)
    memory.rename(tmp_path / "unmounted")
    state.keys_folder("r1")  # nobody asks for the folder of keys that have ended
