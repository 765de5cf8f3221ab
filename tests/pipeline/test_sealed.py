"""Sealed releases: keys end, a killed run resumes or is sealed, nothing that was drawn can be drawn again."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dp_powerflow as dpf
from dp_powerflow._parallel import Local
from dp_powerflow.config import Config
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import PrivacyError, PrivateStateError
from dp_powerflow.pipeline import release as path
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import KEYS_VARIABLE, PrivateState
from support.small import TWIN, small_config, tree_hash


class Killed(BaseException):
    """Stands for `kill -9`: nothing catches it but `finally`."""


def on_twin(folder: Path, **release: Any) -> Config:
    return small_config(folder, network=TWIN, release={"days": 1, "insecure_seed": None, **release})


def second(folder: Path, network: Any = TWIN) -> Config:
    """Another release of the same model, by default on the same twin, for which nothing more is charged."""
    again = {"id": "second", "output": str(folder / "out2"), "days": 3, "insecure_seed": None}
    return small_config(folder, network=network, model={"reuse": "small"}, release=again)


def on_true(folder: Path, **release: Any) -> Config:
    return small_config(folder, release={"days": 1, "insecure_seed": None, **release})


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every secret that the state makes, as it is made."""
    made: list[bytes] = []
    write = dpf.privacy.state._write_secret  # type: ignore[attr-defined]

    def noted(place: Path, secret: bytes, **facts: str) -> None:
        if place.name != "secret.key":
            made.append(secret)
        write(place, secret, **facts)

    monkeypatch.setattr("dp_powerflow.privacy.state._write_secret", noted)
    return made


def holders(folder: Path, secrets: list[bytes]) -> list[str]:
    """Files that hold one of the secrets, as bytes or as digits."""
    forms = [form for secret in secrets for form in (secret, secret.hex().encode())]
    files = [place for place in folder.rglob("*") if place.is_file()]
    return [str(place) for place in files if any(form in place.read_bytes() for form in forms)]


def keys_of(folder: Path) -> set[str]:
    return {place.name for place in (folder / "state").rglob("*.key")} - {"secret.key"}


@pytest.mark.slow
@pytest.mark.parametrize(("config_of", "products"), [(on_twin, 3), (on_true, 2)], ids=["twin", "true"])
def test_no_file_holds_a_key_of_a_sealed_release(
    tmp_path: Path, secrets: list[bytes], config_of: Any, products: int
) -> None:
    config = config_of(tmp_path)
    result = run_release(config, engine=Local(1))
    assert len(secrets) == products
    assert not holders(tmp_path, secrets)
    assert not keys_of(tmp_path)
    for place in (tmp_path / "state").rglob(
        "figures-*.json"
    ):  # whose hashes all figures can be tried against
        assert not any(json.loads(place.read_text()).values())
    report = verify_private(result.path, tmp_path / "state", config)
    assert report.verdict == "release", [check.sentence for check in report.failures]
    assert "Sealed: no key exists" in (tmp_path / "out/certificate.html").read_text()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["release"]["keys"] == "destroyed"


@pytest.mark.slow
def test_keys_that_are_kept_are_stated_and_repeat_the_draws(tmp_path: Path, secrets: list[bytes]) -> None:
    config = on_twin(tmp_path, keys="keep")
    result = run_release(config, engine=Local(1))
    assert {name.split("-")[0] for name in keys_of(tmp_path)} == {"fit", "draws", "twin"}
    assert "Not sealed" in (tmp_path / "out/certificate.html").read_text()
    report = verify_private(result.path, tmp_path / "state", config)
    assert {"twin", "days solved again"} <= {check.name for check in report.checks}
    assert report.verdict == "release", [check.sentence for check in report.failures]


@pytest.mark.slow
def test_a_key_that_is_left_beside_a_sealed_release_is_found_and_ended(tmp_path: Path) -> None:
    config = on_twin(tmp_path)
    result = run_release(config, engine=Local(1))
    state = PrivateState.open(tmp_path / "state")
    state.make_key("small", "draws", "0" * 64)
    assert [check.name for check in verify_private(result.path, state.root).failures] == ["keys"]
    run_release(config, engine=Local(1))
    assert verify_private(result.path, state.root).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        *("charge_all", "keep_begun", "fit", "write_documents", "end_key", "finish"),
        *("fit elsewhere", "finish elsewhere"),
    ],
)
def test_a_killed_run_resumes_to_the_same_draws_with_one_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, secrets: list[bytes]
) -> None:
    """With keys in the state, or in a folder elsewhere."""
    moment, _, elsewhere = moment.partition(" ")
    if elsewhere:
        (tmp_path / "memory").mkdir(mode=0o700)
        monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "memory"))
    config = on_twin(tmp_path)
    owner: Any = {"charge_all": Ledger, "finish": CorpusWriter}.get(moment, path)
    drawn: list[dict[str, str]] = []

    def killed(*given: Any, **named: Any) -> Any:
        if moment == "end_key" and given[2] != "draws":
            return original(*given, **named)
        if moment in ("end_key", "finish"):  # everything is in the stage
            [stage] = tmp_path.glob("out.partial-*")
            drawn.append(tree_hash(stage))
        raise Killed

    original = getattr(owner, moment)
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, killed)
        with pytest.raises(Killed):
            run_release(config, engine=Local(1))
    before = len(secrets)
    result = run_release(config, engine=Local(1))
    assert len(secrets) == before == 3  # the keys of the killed run
    assert len(Ledger.open(PrivateState.open(tmp_path / "state")).spends()) == 2
    assert not holders(tmp_path, secrets)
    assert not drawn or drawn[0] == tree_hash(tmp_path / "out")
    assert verify_private(result.path, tmp_path / "state", config).ok


@pytest.mark.slow
@pytest.mark.parametrize("product", ["fit", "draws", "twin"])
def test_nothing_is_drawn_twice_for_one_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str
) -> None:
    config = on_twin(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(path, "fit", lambda *_, **__: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run_release(config, engine=Local(1))
    [lost] = (place for place in (tmp_path / "state").rglob(f"{product}*.key"))
    lost.unlink()
    with pytest.raises(PrivacyError, match=r"key of .* is gone.*nothing is drawn twice"):
        run_release(config, engine=Local(1))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_state_that_has_lost_files_draws_nothing_again(tmp_path: Path) -> None:
    """A model and a twin were drawn a second time for one charge once their files were gone."""
    run_release(on_twin(tmp_path), engine=Local(1))
    internal = tmp_path / "state/internal"
    shutil.rmtree(tmp_path / "out")
    internal.joinpath("small").rename(tmp_path / "lost")
    with pytest.raises(PrivacyError, match="nothing is drawn twice"):
        run_release(on_twin(tmp_path), engine=Local(1))
    shutil.rmtree(internal / "small")
    (tmp_path / "lost").rename(internal / "small")
    shutil.rmtree(internal / "twin-t1")
    with pytest.raises(PrivacyError, match="key of twin 't1' is gone"):
        run_release(second(tmp_path), engine=Local(1))


@pytest.mark.slow
def test_a_sealed_release_ends_the_keys_of_what_it_is_made_from(tmp_path: Path) -> None:
    """Keys that the first release kept opened the model and the twin of the second, which said sealed."""
    run_release(on_twin(tmp_path, keys="keep"), engine=Local(1))
    with pytest.raises(PrivacyError, match="all keep their keys, or none"):
        run_release(second(tmp_path), engine=Local(1))
    run_release(second(tmp_path, network={}), engine=Local(1))
    assert {name.partition("-")[0] for name in keys_of(tmp_path)} == {"draws", "twin"}  # of the first alone


@pytest.mark.slow
def test_a_sealed_release_that_was_moved_is_said_to_be_complete(tmp_path: Path) -> None:
    run_release(on_twin(tmp_path), engine=Local(1))
    (tmp_path / "out").rename(tmp_path / "published")
    with pytest.raises(PrivacyError, match="is complete and sealed, but is not at"):
        run_release(on_twin(tmp_path), engine=Local(1))


@pytest.mark.slow
def test_a_seed_seals_nothing(tmp_path: Path) -> None:
    run_release(on_twin(tmp_path, insecure_seed=7), engine=Local(1))
    assert "Not sealed: a seed" in " ".join((tmp_path / "out/certificate.html").read_text().split())


@pytest.mark.slow
def test_keys_that_cannot_be_looked_for_are_found_missing_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that reuses the model of one that failed was charged, then refused for want of the folder."""
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setenv(KEYS_VARIABLE, str(memory))
        patch.setattr(path, "draw", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run_release(on_twin(tmp_path), engine=Local(1))
    memory.rename(tmp_path / "unmounted")
    ledger = Ledger.open(PrivateState.open(tmp_path / "state"))
    before = ledger.spends()
    for do in (dpf.plan, partial(run_release, engine=Local(1))):
        with pytest.raises(PrivateStateError, match="mount it"):
            do(second(tmp_path, network={}))
    assert ledger.spends() == before
