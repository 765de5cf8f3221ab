"""A sentence says that nothing was spent only if nothing was, and a failed run leaves nothing of no use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Local
from dp_powerflow._parallel.cluster import refuse_unfit_workers
from dp_powerflow._spending import of_one_feeder
from dp_powerflow.errors import (
    ConfigError,
    CorpusError,
    DpPowerflowError,
    FeederError,
    LoadDataError,
    PowerFlowError,
    PrivacyError,
    PrivateStateError,
)
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline.inputs import history_of
from dp_powerflow.pipeline.plan import refuse_another_model
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger import book as entries
from dp_powerflow.privacy.ledger.accounts import Cost, InstanceCap, InstanceCost, to_plain
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.store import AnchorFile, Database, LedgerStore
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.small import small_config

LINE = Neighbours("one line, admittance scaled by up to 1 %")
REQUEST = "0" * 64


@contextmanager
def full_ledger(spare: int) -> Iterator[None]:
    """SQLite may make the file of a ledger larger by so many pages and no more, as on a full disk."""
    real = Database._connection

    @contextmanager
    def connection(self: Database) -> Iterator[sqlite3.Connection]:
        with real(self) as opened:
            (pages,) = opened.execute("PRAGMA page_count").fetchone()
            opened.execute(f"PRAGMA max_page_count = {pages + spare}")
            yield opened

    Database._connection = connection  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database._connection = real  # type: ignore[method-assign]


def spends(folder: Path) -> int:
    return len(Ledger.inspect(folder / "state").spends())


@pytest.mark.slow
@pytest.mark.parametrize("large", [1, 2], ids=["customers", "network"])
def test_a_full_disk_at_a_charge_says_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """Both are charged in one transaction: whichever of them has no room, neither is charged."""
    config = small_config(tmp_path, release={"days": 20})
    real, costs = Ledger.charge_all, 0

    def noted(record: Any) -> dict[str, Any]:
        nonlocal costs
        costs += isinstance(record, Cost)
        note = {"note": "x" * 100_000} if isinstance(record, Cost) and costs == large else {}
        return to_plain(record) | note

    def charge_all(self: Ledger, charges: Any) -> Any:
        with full_ledger(spare=8):  # enough for all entries but the large one
            return real(self, charges)

    monkeypatch.setattr(entries, "to_plain", noted)
    monkeypatch.setattr(Ledger, "charge_all", charge_all)
    with pytest.raises(PrivacyError, match="disk is full") as caught:
        run_release(config, engine=Local(1))
    assert costs == 2
    assert "nothing was spent" in str(caught.value)
    assert "which never charges twice" not in str(caught.value)
    assert spends(tmp_path) == 0
    run_release(config, engine=Local(1))  # the large entry was one of the first two
    assert spends(tmp_path) == 2


@pytest.mark.slow
def test_a_full_disk_after_a_charge_says_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has both charges, and then there is no room for its anchor."""
    config = small_config(tmp_path, release={"days": 20})
    real = AnchorFile.write

    def write(self: AnchorFile, number: int, mac: str) -> None:
        if number > 0:
            raise PrivateStateError("the disk is full")
        real(self, number, mac)

    monkeypatch.setattr(AnchorFile, "write", write)
    with pytest.raises(PrivacyError, match="which never charges twice") as caught:
        run_release(config, engine=Local(1))
    assert "nothing was spent" not in str(caught.value)
    monkeypatch.undo()
    assert spends(tmp_path) == 2
    run_release(config, engine=Local(1))
    assert spends(tmp_path) == 2


def test_a_fault_after_the_commit_does_not_say_that_nothing_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(PrivateState.open(tmp_path / "state", insecure_seed=1))
    account = ledgers.account(ledger, "1" * 64, InstanceCap(10.0, 0.0, LINE))
    real = LedgerStore._move_on

    def after_commit(self: LedgerStore, connection: sqlite3.Connection, *arguments: Any) -> None:
        os.truncate(self._path, 4096)  # the disk has lost most of it since
        real(self, connection, *arguments)

    monkeypatch.setattr(LedgerStore, "_move_on", after_commit)
    with pytest.raises(PrivacyError) as caught:
        ledgers.spend(ledger, account, "r1", REQUEST, InstanceCost(1.0, 0.0, LINE))
    assert "nothing was spent" not in str(caught.value)
    assert "which never charges twice" in str(caught.value)


class Unfit:
    """A cluster with one worker that does not answer."""

    def wait_for_workers(self, count: int, timeout: float) -> None:
        """It is there."""

    def run(self, function: object, on_error: str) -> dict[str, object]:
        return {"tcp://there": OSError()}


@pytest.mark.parametrize(("first", "said"), [(True, "nothing was spent"), (False, "never charges twice")])
def test_a_cluster_that_is_unfit_in_the_middle_says_how_to_resume(first: bool, said: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="not fit for this run") as caught:
        refuse_unfit_workers(Unfit(), first=first)
    assert said in str(caught.value)
    assert ("nothing was spent" in str(caught.value)) == first


def test_a_refused_feeder_of_a_fleet_speaks_for_itself_alone() -> None:
    refused = "choose another scale; nothing was spent"
    assert of_one_feeder(refused, paid=False) == "choose another scale; nothing was spent on its network"
    assert "nothing was spent" not in of_one_feeder(refused, paid=True)


FAILURES = [
    FeederError("x"),
    LoadDataError("x"),
    CorpusError("x"),
    PowerFlowError("x"),
    PrivacyError("x"),
    MemoryError(),
    OSError(5, "x"),
    KeyboardInterrupt(),
    ZeroDivisionError(),
]


@pytest.mark.slow
def test_whatever_ends_a_run_before_its_first_part_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, release={"days": 20})
    real, history = refuse_another_model, history_of(config, None)
    cases = [(error, False) for error in FAILURES] + [
        (error, True) for error in (OSError(5), KeyboardInterrupt())
    ]
    for error, at_owner in cases:

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(planning, "refuse_another_model", real if at_owner else fail)
        monkeypatch.setattr(planning, "open_ledger", fail)
        with pytest.raises(type(error)):
            run_release(config, engine=Local(1), history=history)
        assert os.listdir(tmp_path) == ["state"], error


@pytest.mark.slow
def test_whatever_ends_a_run_later_keeps_the_parts_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, release={"days": 300})
    for error in (CorpusError("x"), KeyboardInterrupt()):  # a part is made before each

        def fail(done: int, total: int, error: BaseException = error) -> None:
            if done and total == 3:
                raise error

        with pytest.raises(type(error)):
            run_release(config, engine=Local(1), progress=fail)
        assert list(tmp_path.glob("out.partial-small.*/data/*.parquet"))
    assert run_release(config, engine=Local(1)).path == tmp_path / "out"


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_disk_that_is_full_for_the_ledger_says_what_is_true(tmp_path: Path) -> None:
    """A state on a file system of its own, with less and less room."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        said = [interrupted_by_a_full_disk(tmp_path, small, spare) for spare in range(0, 160_000, 8192)]
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert any(charged for charged, _ in said)
    assert any(sentence and not charged for charged, sentence in said)
    assert [sentence for charged, sentence in said if charged and "nothing was spent" in sentence] == []


def interrupted_by_a_full_disk(folder: Path, small: Path, spare: int) -> tuple[int, str]:
    """Make a release whose state has so many bytes left, then again; charges of the first, what it said."""
    for path in (small / "state", folder / "out", *folder.glob("out.partial-small.*")):
        shutil.rmtree(path, ignore_errors=True)
    filler = small / "filler"
    filler.write_bytes(b"x" * (256 * 1024 - 4096 - spare))
    config = small_config(folder, release={"days": 20, "state": str(small / "state")})
    sentence = ""
    try:
        run_release(config, engine=Local(1))
    except DpPowerflowError as error:
        sentence = str(error)
    filler.unlink()
    kept = small / "state" / "ledger.sqlite"
    charged = len(Ledger.inspect(small / "state").spends()) if kept.exists() else 0
    run_release(config, engine=Local(1))
    assert len(Ledger.inspect(small / "state").spends()) == 2
    return charged, sentence
