"""Fleets: what is made was paid for, nothing is paid twice, near copies share a budget, no feeder is lost.

Workers are lost after every step, files change in between, the process of the data owner ends at every point.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow._parallel.local import Job
from dp_powerflow.corpus.storage import RemotePath
from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.fleet import publishing
from dp_powerflow.fleet import run as fleet_run
from dp_powerflow.fleet.feeders import FleetConfig, feeders_of
from dp_powerflow.fleet.run import Examined, Task, plan_fleet, run_fleet
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.pipeline.inputs import frame_chunks, meters_of
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import CHANGED_MEANWHILE, keep_begun, run_release
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap, PureCost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.privacy.state import CarriedState, PrivateState
from support import ledgers
from support.fleet_small import circuit, fleet_config, on_twins
from support.here import Here
from support.small import CORNERS, READING, small_config, tree_hash

Before = Callable[[Task], None]
Done = Callable[[Any], None]
Lost = Callable[[Any], Any] | None
FEW = ("alder", "birch", "cedar")
BAD = circuit(1.0).replace("New Line.second", "New Lnie.second")


class LossyKept:
    """A new worker for every feeder, the newest first; `before` is called before every request."""

    def __init__(self, before: Before = lambda _: None) -> None:
        self._before = before

    def map(self, job: Job[Any, Any], items: Iterable[Any], on_done: Done, on_lost: Lost = None) -> None:
        for task in reversed(list(items)):
            self._before(task)
            on_done(job.start(None)(task))


def write(folder: Path, text: str, key: str = "alder") -> None:
    (folder / "feeders").mkdir(exist_ok=True)
    (folder / "feeders" / f"{key}.dss").write_text(text)


def one(folder: Path, mode: str = "true", **fleet: Any) -> FleetConfig:
    """A fleet of one feeder."""
    make = fleet_config if mode == "true" else on_twins
    return make(folder, fleet={"same_frame": None, **fleet})


def three(folder: Path, **fleet: Any) -> FleetConfig:
    """Three feeders on twins; the file of one is not usable."""
    for number, key in enumerate(FEW):
        write(folder, BAD if number == 1 else circuit(1.0 + 0.25 * number), key)
    alike = {"feeders": [*FEW], "reason": "a standard design"}
    return on_twins(folder, fleet={"same_frame": alike, **fleet})


def spends(folder: Path) -> dict[str, list[str]]:
    accounts = Ledger.inspect(folder / "state").summary().accounts
    return {account.name: [spend.release_id for spend in account.spends] for account in accounts}


def out_of(folder: Path) -> dict[str, str]:
    return tree_hash(folder / "out") if (folder / "out").exists() else {}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three feeders give where nothing happens."""
    folder = tmp_path_factory.mktemp("made")
    assert len(run_fleet(three(folder), engine=Here()).failed) == 1
    return folder


@pytest.mark.parametrize(
    ("mode", "other"),
    [
        ("true", circuit(1.7)),
        ("twin", circuit(1.7)),
        # What decides the release is more than what the account of the network is about.
        ("twin", circuit(1.0).replace("kw=200 ", "kw=220 ")),
    ],
)
def test_a_file_that_changes_after_it_was_examined_is_not_released(
    tmp_path: Path, mode: str, other: str
) -> None:
    """Else a network would be published that nobody was charged for."""
    write(tmp_path, circuit(1.0))

    def change(task: Task) -> None:
        if task.paid is not None:
            write(tmp_path, other)

    [outcome] = run_fleet(one(tmp_path, mode), engine=Here(LossyKept(change))).outcomes
    assert outcome.problem == CHANGED_MEANWHILE
    assert out_of(tmp_path) == {}
    paid = spends(tmp_path)
    assert paid["network-instance-1" if mode == "true" else "network-twin-1"] == ["north_feeder-0001"]
    [outcome] = run_fleet(one(tmp_path, mode), engine=Here()).outcomes
    assert "was begun with another file" in str(outcome.problem)
    write(tmp_path, circuit(1.0))
    assert not run_fleet(one(tmp_path, mode), engine=Here()).failed
    assert spends(tmp_path) == paid


def test_a_price_is_of_the_file_that_was_examined(tmp_path: Path) -> None:
    """Figures of a later version are read where it is charged: of another file they could cost nothing."""
    write(tmp_path, circuit(1.0))
    assert not run_fleet(one(tmp_path, "twin"), engine=Here()).failed
    config = one(tmp_path, "twin", id="south", continues="north", output="south")
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    run = fleet_run._Run.open(config, state)
    [way] = run.ways.values()
    way.examined = Examined("0" * 64, "1" * 64, "2" * 64, 6, ())
    with pytest.raises(PrivacyError, match="changed while the release was being made"):
        run.bill(way)


@pytest.mark.parametrize("output", ["out", "memory://red-fleet/out"])
def test_a_plan_and_a_run_that_cannot_charge_leave_nothing_where_the_corpus_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """Whoever sees that place would see which feeders cannot be released."""

    def refuse(*_: object) -> None:
        raise PrivacyError("not today")

    monkeypatch.setattr(fleet_run._Run, "_ask_customers", refuse)
    plan = plan_fleet(three(tmp_path, output=output), engine=Here())
    assert [item.problem is None for item in plan.feeders].count(False) == 1
    with pytest.raises(PrivacyError, match="not today"):
        run_fleet(three(tmp_path, output=output), engine=Here())
    assert {path.name for path in tmp_path.iterdir()} == {"feeders", "state"}
    assert "://" not in output or RemotePath(output).with_name("").below() == {}


def test_a_staging_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    staging = tmp_path / "out.partial-north"
    staging.mkdir(mode=0o755)
    publishing.Shelf(tmp_path / "out", "north").prepare()
    assert stat.S_IMODE(staging.stat().st_mode) == 0o700


def test_a_run_that_does_not_come_to_a_feeder_does_not_forget_that_it_failed(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(made, tmp_path / "copy"))

    def refuse(*_: object) -> None:
        raise LoadDataError("no meters")

    monkeypatch.setattr(fleet_run, "meters_of", refuse)
    with pytest.raises(LoadDataError):
        run_fleet(three(copied), engine=Here())
    kept = json.loads((copied / "state" / "internal" / "north" / "failures.json").read_text())
    assert [item["feeder"] for item in kept["failed"]] == ["birch"]


class Losing(LossyKept):
    """Workers that end early, or with the first feeder, in one of the two phases."""

    def __init__(self, paid: bool, *, early: bool) -> None:
        super().__init__()
        self._paid, self._early = paid, early

    def map(self, job: Job[Any, Any], items: Iterable[Any], on_done: Done, on_lost: Lost = None) -> None:
        tasks = list(items)
        if (tasks[0].paid is not None) is self._paid:
            lost, *tasks = tasks
            assert on_lost is not None
            if not self._early:
                on_done(on_lost(lost))
        super().map(job, tasks, on_done)


@pytest.mark.parametrize(("paid", "early"), [(False, True), (True, False)])
def test_a_feeder_that_is_lost_has_failed_and_keeps_nobody_from_being_made(
    tmp_path: Path, made: Path, paid: bool, early: bool
) -> None:
    result = run_fleet(three(tmp_path), engine=Here(Losing(paid, early=early)))
    failed = {outcome.key: outcome.problem for outcome in result.failed}
    assert str(fleet_run.LOST) in failed.values()
    released = {outcome.name for outcome in result.outcomes if outcome.problem is None}
    assert {f"feeder={name}" for name in released} == {
        path.name for path in (tmp_path / "out").glob("feeder=*")
    }
    assert released
    run_fleet(three(tmp_path), engine=Here())
    assert spends(tmp_path).keys() == spends(made).keys()
    assert [len(charges) for charges in spends(tmp_path).values()] == [1, 1, 1]


def test_a_private_state_that_cannot_be_written_after_a_charge_ends_the_run_and_the_next_one_resumes(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, victims = keep_begun, ["north_feeder-0001"]

    def full(state: PrivateState, release_id: str, *others: Any) -> None:
        if release_id in victims:
            raise PrivacyError("the disk is full")
        keep(state, release_id, *others)

    monkeypatch.setattr(fleet_run, "keep_begun", full)
    with pytest.raises(PrivacyError, match="the disk is full"):
        run_fleet(three(tmp_path), engine=Here(LossyKept()))
    assert out_of(tmp_path) == {}
    victims.clear()  # bytes and charges depend neither on workers nor on the order of their answers
    assert len(run_fleet(three(tmp_path), engine=Here(LossyKept())).failed) == 1
    assert out_of(tmp_path) == out_of(made)
    assert spends(tmp_path) == spends(made)


def test_feeders_of_one_account_are_priced_one_after_the_other_in_one_run(tmp_path: Path) -> None:
    """A line that another feeder's twin has seen is no added line; else that twin would be forgotten."""
    alike = {"feeders": ["alder", "aspen"], "reason": "versions of one network"}
    fleet = {"network_epsilon_cap": 40.0, "network_delta_cap": 1e-3, "same_frame": alike}
    for key in ("alder", "aspen"):
        write(tmp_path, BAD, key)
    config = on_twins(tmp_path, fleet=fleet)
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    other, key = (feeder.key for feeder in feeders_of(config, state, Ledger.open(state)))
    write(tmp_path, circuit(1.0), key)
    assert [item.key for item in run_fleet(config, engine=Here()).failed] == [other]
    write(tmp_path, LONGER, key)
    write(tmp_path, circuit(1.1) + THIRD, other)
    config = on_twins(
        tmp_path,
        fleet={**fleet, "id": "south", "continues": "north", "output": "south"},
        network={"id": "north"},
        model={"reuse": "north"},
        overrides={other: {"continues_network": "network-twin-1"}},
    )
    # Both are examined before any is charged, and nobody can price what follows a twin that is not drawn.
    [late] = run_fleet(config, engine=Here(LossyKept())).failed
    assert "will draw, is not known" in str(late.problem)
    assert not run_fleet(config, engine=Here()).failed
    [account] = [
        item for item in Ledger.inspect(tmp_path / "state").summary().accounts if "twin" in item.name
    ]
    costs = [spend.cost for spend in account.spends]
    assert [spend.release_id for spend in account.spends][1] == "north_feeder-0001"
    assert [cost.scope.replaced for cost in costs if isinstance(cost, PureCost)] == [(), (), ("line third",)]


class Killed(BaseException):
    """The process of the data owner ends, and nothing of it is done afterwards."""


POINTS: dict[str, tuple[Any, str, bool, int]] = {
    "customers and networks charged, nothing kept": (Ledger, "charge_all", True, 1),
    "one of the networks kept": (fleet_run, "keep_begun", True, 2),
    "model fitted": (fleet_run._Run, "_fit", True, 1),
    "made, nothing of it kept": (fleet_run._Run, "_keep", False, 4),
    "one of the drawn files kept": (PrivateState, "write_internal", True, 12),
    "published, not in the corpus": (publishing.Shelf, "publish", False, 1),
    "in the corpus, not in its manifest": (publishing.Shelf, "publish", True, 1),
}


@pytest.mark.parametrize(
    "point",
    [pytest.param(name, marks=[pytest.mark.campaign] * (number % 2)) for number, name in enumerate(POINTS)],
)
def test_whenever_the_process_of_the_owner_ends_the_next_run_costs_nothing_more(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    place, name, after, times = POINTS[point]
    original, calls = getattr(place, name), []

    def die(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) < times:
            return original(*arguments, **options)
        if after:
            original(*arguments, **options)
        for gone, what in ((publishing.Shelf, "write_manifest"), (publishing.Shelf, "discard_staging")):
            monkeypatch.setattr(gone, what, lambda *_, **__: None)
        monkeypatch.setattr(fleet_run._Run, "_tell_the_owner", lambda _: None)
        raise Killed

    monkeypatch.setattr(place, name, die)
    with pytest.raises(Killed):
        run_fleet(three(tmp_path), engine=Here())
    monkeypatch.undo()
    assert len(run_fleet(three(tmp_path), engine=Here()).failed) == 1
    assert out_of(tmp_path) == out_of(made)
    assert spends(tmp_path) == spends(made)
    assert {path.name for path in tmp_path.iterdir()} == {"feeders", "out", "state"}


def test_a_model_that_was_never_fitted_is_asked_for_before_any_network_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier fleet was killed after its charge."""
    write(tmp_path, circuit(1.0))

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(fleet_run._Run, "_fit", die)
    with pytest.raises(Killed):
        run_fleet(one(tmp_path), engine=Here())
    monkeypatch.undo()
    caps = {"network_epsilon_cap": 1e6, "network_delta_cap": 0.9}
    before = spends(tmp_path)
    south = {"same_frame": None, "id": "south", "continues": "north", "output": "south", **caps}
    config = fleet_config(tmp_path, fleet=south, model={"reuse": "north"})
    Ledger.inspect(tmp_path / "state").change_figures("network-instance-1", 1e6, 0.9, "a second release")
    for act in (lambda: plan_fleet(config, engine=Here()), lambda: run_fleet(config, engine=Here())):
        with pytest.raises(PrivacyError, match="'north' has fitted no load model"):
            act()
    assert spends(tmp_path) == before


def test_a_model_that_was_fitted_otherwise_is_found_before_a_network_is_charged(tmp_path: Path) -> None:
    write(tmp_path, circuit(1.0))
    assert not run_fleet(one(tmp_path, "twin"), engine=Here()).failed
    before = spends(tmp_path)
    south = {"same_frame": None, "id": "south", "continues": "north", "output": "south"}
    again = on_twins(tmp_path, fleet=south, model={"reuse": "north", "bounds": [0.01, 3.0]})
    assert not plan_fleet(again, engine=Here()).possible
    assert len(run_fleet(again, engine=Here()).failed) == 1
    assert spends(tmp_path) == before


@pytest.mark.parametrize("mode", ["true", "twin"])
def test_at_a_url_nothing_of_a_network_is_there_before_it_is_paid_and_its_twin_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    write(tmp_path, circuit(1.0))
    place = f"memory://red-fleet-{mode}/out"
    put, seen = RemotePath.write_bytes, []

    def watched(self: RemotePath, content: Any) -> Any:
        if "/feeder=" in str(self) and ".partial-" not in str(self):
            kind = "instance" if mode == "true" else "twin"
            assert spends(tmp_path)[f"network-{kind}-1"] == ["north_feeder-0001"]
            kept = tree_hash(tmp_path / "state" / "internal")
            assert mode == "true" or any("/figures-" in name for name in kept)
            assert mode == "true" or any("/twin-" in name for name in kept)
            assert "north_feeder-0001/report.json" in kept
            seen.append(str(self))
        return put(self, content)

    monkeypatch.setattr(RemotePath, "write_bytes", watched)
    assert not run_fleet(one(tmp_path, mode, output=place), engine=Here(LossyKept())).failed
    assert any("/data/" in name for name in seen)


class _Touch:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (Path(self._path),)


def test_no_pickle_in_the_private_state_is_loaded(tmp_path: Path) -> None:
    """Feeders that were read used to be kept there, and somebody could put a file in their place."""
    config, loaded = small_config(tmp_path), tmp_path / "loaded"
    folder = tmp_path / "state" / "parsed"
    folder.mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    (folder / f"{'0' * 64}.bin").write_bytes(pickle.dumps(_Touch(loaded)))
    plan(config)
    assert not loaded.exists()


def test_a_worker_has_neither_ledger_nor_meters_nor_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent holds keyed hashes and public facts of the meters; the state is not looked at there."""
    config, sent, readings = one(tmp_path, "twin"), list[Any](), list[bytes]()
    write(tmp_path, circuit(1.0))

    class Watching(LossyKept):
        def map(self, job: Job[Any, Any], items: Iterable[Any], *how: Any) -> None:
            tasks = list(items)
            sent.append((job, tasks))
            super().map(job, tasks, *how)

    def noted(*arguments: Any) -> Any:
        found = meters_of(*arguments)
        readings.append(found.history.load_kw[0, 0].tobytes())
        return found

    monkeypatch.setattr(fleet_run, "meters_of", noted)
    assert not run_fleet(config, engine=Here(Watching())).failed
    assert len(sent) == 2
    assert readings
    for job, tasks in sent:
        content = pickle.dumps((job, tasks))
        assert not any(reading in content for reading in readings)
        assert not any(name.startswith("paid-") for task in tasks for _, name in task.files)
        with pytest.raises(PrivacyError, match="no ledger"):
            Ledger.open(CarriedState(job.root, job.key, dict(job.files)))


ENDLESS = circuit(1.0).replace("kw=300 ", "kw=3e7 ")
THIRD = "New Line.third phases=3 bus1=b bus2=c r1=0.3 x1=0.6 r0=0.9 x0=1.8 length=1 units=km\n"
LONGER = circuit(1.0) + THIRD
"""The same feeder with one line more: another structure."""


def on_true(folder: Path, fleet_id: str = "north") -> FleetConfig:
    """A fleet, or a later one of its feeders with their accounts and load model; the cap is that of two."""
    fleet: dict[str, Any] = {"same_frame": None, "network_epsilon_cap": 2e5, "network_delta_cap": 0.4}
    network, model = {"epsilon": 1e5, "delta": 0.2}, {}
    if fleet_id != "north":
        fleet |= {"id": fleet_id, "continues": "north", "output": fleet_id}
        model = {"reuse": "north"}
    return fleet_config(folder, network=network, fleet=fleet, model=model)


def charged(folder: Path) -> dict[str, list[str]]:
    """Account of a network → what it was charged for."""
    return {name: found for name, found in spends(folder).items() if name.startswith("network")}


@pytest.fixture(scope="module")
def late() -> Iterator[None]:
    """Loads without solution are found out when they are drawn, after the charge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CORNERS, lambda *_: None)
        patch.setattr(READING, lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def failed(late: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A true network that was charged and has no solution."""
    folder = tmp_path_factory.mktemp("attempts")
    write(folder, ENDLESS)
    [outcome] = run_fleet(on_true(folder), engine=Here()).failed
    assert "no power-flow solution" in str(outcome.problem)
    return folder


@pytest.fixture
def copied(failed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(failed, tmp_path / "copy"))


def test_what_failed_stays_charged_and_is_not_gone_on_with_under_another_file(copied: Path) -> None:
    """Though the structure is another one, which as a new feeder would get an account without a question."""
    paid = {"network-instance-1": ["north_feeder-0001"]}
    assert charged(copied) == paid
    write(copied, LONGER)
    [outcome] = run_fleet(on_true(copied), engine=Here()).failed
    assert "was begun with another file of the feeder" in str(outcome.problem)
    assert charged(copied) == paid
    assert not (copied / "out").exists()


def test_every_further_draw_of_a_true_network_is_paid_for(copied: Path) -> None:
    write(copied, LONGER)
    paid = ["north_feeder-0001", "south_feeder-0001"]
    assert not run_fleet(on_true(copied, "south"), engine=Here()).failed
    assert charged(copied) == {"network-instance-1": paid}
    assert (copied / "south" / "fleet.json").is_file()
    [refused] = run_fleet(on_true(copied, "west"), engine=Here()).failed
    assert "needs ε = 1e+05 of the network, which has 0 left" in str(refused.problem)
    assert charged(copied) == {"network-instance-1": paid}
    assert not (copied / "west").exists()


def test_the_version_that_failed_has_no_budget_of_its_own(copied: Path) -> None:
    """A near copy of it under another key is asked about."""
    write(copied, circuit(1.0001), "birch")
    failed = {item.key: str(item.problem) for item in run_fleet(on_true(copied), engine=Here()).failed}
    assert "no power-flow solution" in failed["alder"]
    assert "has the nodes and connections of account network-instance-1" in failed["birch"]
    assert charged(copied) == {"network-instance-1": ["north_feeder-0001"]}


CAP = InstanceCap(2.0, 0.0, Neighbours("one line, admittance scaled by up to 1 %"))
LINE = re.compile(r"New Line\.second.*\n")


def frame(feeder: Feeder) -> bytes:
    return b"".join(frame_chunks(feeder))


def refused(folder: Path, **fleet: Any) -> list[str]:
    """What a plan says of the feeders that have no budget of their own."""
    plan = plan_fleet(fleet_config(folder, fleet={"same_frame": None, **fleet}), engine=Here())
    return [str(feeder.problem) for feeder in plan.feeders if feeder.problem is not None]


def keep(folder: Path, copies: int) -> None:
    for number in range(copies, 8):
        (folder / "feeders" / f"copy-{number}.dss").unlink()


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Eight near copies, half of them with other names of buses, and a feeder of another structure."""
    for number in range(8):
        text = circuit(1.0 + 1e-9 * number)
        other = text.replace("bus2=a", f"bus2=x{number}").replace("bus1=a", f"bus1=x{number}")
        write(tmp_path, other if number % 2 else text, f"copy-{number}")
    stump = LINE.sub("", circuit(1.0)).replace("New Load.lb bus1=b", "New Load.lb bus1=a")
    write(tmp_path, stump, "stump")
    return tmp_path


def test_near_copies_in_a_fleet_get_one_budget(copies: Path) -> None:
    sentences = refused(copies)
    assert len(sentences) == 7
    assert all("has the nodes and connections of feeder 'copy-" in sentence for sentence in sentences)
    assert all("under [fleet] same_frame = {" in sentence for sentence in sentences)
    keep(copies, 2)
    for _ in range(2):  # nor do they in a second run
        [failed] = run_fleet(fleet_config(copies, fleet={"same_frame": None}), engine=Here()).failed
        assert "has the nodes and connections of" in str(failed.problem)
        assert len(charged(copies)) == 2


@pytest.mark.parametrize(("place", "others"), [(-1, 1), (0, 3)])
def test_only_feeders_that_are_named_are_different_networks(copies: Path, place: int, others: int) -> None:
    """A fifth copy, which nobody named, comes last and gets none, or first and then the others get none."""
    keep(copies, 4)
    config = fleet_config(copies, fleet={"same_frame": None})
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    order = [feeder.key for feeder in feeders_of(config, state, Ledger.open(state)) if feeder.key != "stump"]
    unnamed = order.pop(place)
    named: dict[str, Any] = {"feeders": order, "reason": "a standard design"}
    fleet = {"same_frame": named}
    assert len(refused(copies, **fleet)) == others
    assert len(run_fleet(fleet_config(copies, fleet=fleet), engine=Here()).failed) == others
    accounts = Ledger.inspect(copies / "state").summary().accounts
    same = "another feeder of fleet 'north'; same frame: a standard design"
    assert [item.changes[0].reason for item in accounts].count(same) == (3 if others == 1 else 0)
    # What is named later counts for an account that is there.
    named["feeders"] = [*order, unnamed]
    assert refused(copies, **fleet) == []


@pytest.fixture
def open_account(tmp_path: Path) -> Callable[..., ledgers.Opened]:
    """Opens the account of a network by its name, in one ledger."""
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)

    def open_one(name: bytes, **relation: Any) -> ledgers.Opened:
        return ledgers.account(ledger, state.identity("network", [name]), CAP, **relation)

    return open_one


FIRST, SECOND = (Unrelated(frozenset(), name, "north") for name in ("first", "second"))
SHAPE = "f" * 64


def test_a_reason_of_the_list_does_not_explain_the_same_frame_and_one_by_name_does(
    open_account: Callable[..., ledgers.Opened], tmp_path: Path
) -> None:
    opened = open_account(b"1", frame=SHAPE, unrelated=FIRST)
    names = frozenset({opened.name})
    listed = Unrelated(names, "another feeder", "north", listed=names)
    with pytest.raises(PrivacyError, match=f"connections of account {opened.name}"):
        open_account(b"2", frame=SHAPE, unrelated=listed)
    with pytest.raises(PrivacyError, match=r"\(network-instance-1 with the same nodes and connections\)"):
        open_account(b"2", frame=SHAPE)
    assert open_account(b"2", frame="e" * 64, unrelated=listed).name == "network-instance-2"
    named = Unrelated.to(["network-instance-1", "network-instance-2"], "another valley")
    assert open_account(b"3", frame=SHAPE, unrelated=named).name == "network-instance-3"
    assert open_account(b"4", frame=SHAPE, continues=opened.name).name == opened.name
    assert len(Ledger.inspect(tmp_path / "state").summary().accounts) == 3


def test_the_frame_knows_structure_and_nothing_else() -> None:
    """Names, order, impedances and loads do not count; a node, a connection or a voltage level does."""
    feeder = open_feeder("ieee13")
    rng = np.random.default_rng(3)
    order = rng.permutation(len(feeder.nodes))
    place = np.argsort(order)
    noisy = feeder.y.copy()
    noisy.data = noisy.data * (1 + 1e-9 * rng.normal(size=noisy.data.shape))
    shuffled = replace(
        feeder,
        nodes=tuple(f"n{k}" for k in range(len(feeder.nodes))),
        base_kv=feeder.base_kv[order],
        y=noisy[order][:, order].tocsc(),
        lines=tuple(replace(line, nodes=tuple(map(int, place[list(line.nodes)]))) for line in feeder.lines),
        slack=np.sort(place[feeder.slack]),
    )
    assert frame(shuffled) == frame(feeder)
    kv = feeder.base_kv.copy()
    kv[3] *= 2.0
    assert frame(replace(feeder, base_kv=kv)) != frame(feeder)
    cut, line = feeder.y.tolil(), feeder.lines[4]
    one, other = line.nodes[0], line.nodes[-1]
    cut[one, other] = cut[other, one] = 0.0
    rest = tuple(item for item in feeder.lines if item is not line)
    assert frame(replace(feeder, y=cut.tocsc(), lines=rest)) != frame(feeder)
    assert frame(open_feeder("ieee123")) != frame(feeder)


def test_frames_of_ten_thousand_nodes_are_told_apart() -> None:
    """A line of nodes with a branch one node further on is another frame, far from both ends."""
    assert len({frame(_chain_with_branch(10_000, at)) for at in (5, 3_000, 3_001)}) == 3


def _chain_with_branch(count: int, at: int) -> Feeder:
    ends = [(k, k + 1) for k in range(count - 2)] + [(at, count - 1)]
    rows = np.array([*ends, *(pair[::-1] for pair in ends)])
    y = sp.csc_array((np.ones(len(rows)), (rows[:, 0], rows[:, 1])), shape=(count, count))
    small = open_feeder("ieee13")
    return replace(
        small,
        nodes=tuple(map(str, range(count))),
        base_kv=np.full(count, 7.2),
        y=y.astype(complex),
        slack=np.array([0]),
    )


@pytest.mark.parametrize("fleet", [False, True])
def test_what_names_no_model_of_its_customers_opens_no_account(tmp_path: Path, fleet: bool) -> None:
    write(tmp_path, circuit(1.0))
    reuse = {"reuse": "never"}

    def make() -> object:
        if fleet:
            config = fleet_config(tmp_path, fleet={"same_frame": None}, model=reuse)
            return run_fleet(config, engine=Here())
        return run_release(small_config(tmp_path, model=reuse), workers=1)

    with pytest.raises(PrivacyError, match="were never charged for"):
        make()
    assert Ledger.inspect(tmp_path / "state").summary().accounts == ()
