"""The engine of fleets: what is made was paid for, nothing is paid twice, and no feeder is lost on the way.

Workers are lost after every step, files change in between, the data owner's process ends at every point.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Job, Kept
from dp_powerflow.corpus.storage import RemotePath
from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.fleet import making, publishing
from dp_powerflow.fleet import run as fleet_run
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import feeders_of
from dp_powerflow.fleet.making import Examined, Task
from dp_powerflow.fleet.owner import read_failures
from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.pipeline.inputs import meters_of
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import CHANGED_MEANWHILE, keep_begun
from dp_powerflow.privacy.ledger.accounts import PureCost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import CarriedState, PrivateState
from support.fleet_small import circuit, fleet_config, on_twins
from support.here import Here
from support.small import small_config, tree_hash

Before = Callable[[Task], None]
FEW = ("alder", "birch", "cedar")
BAD = circuit(1.0).replace("New Line.second", "New Lnie.second")


class LossyKept:
    """A new worker for every feeder, the newest first."""

    def __init__(self, before: Before) -> None:
        self._before = before

    def map(
        self,
        job: Job[Any, Any],
        items: Iterable[Any],
        on_done: Callable[[Any], None],
        on_lost: Callable[[Any], Any] | None = None,
    ) -> None:
        for task in reversed(list(items)):
            self._before(task)
            on_done(job.start(None)(task))


class Lossy(Here):
    """An engine of such workers; `before` is called before every request."""

    def __init__(self, before: Before = lambda _: None) -> None:
        super().__init__()
        self._before = before

    @contextmanager
    def kept(self, ahead: str, items: int, most_items: int) -> Iterator[Kept]:
        yield LossyKept(self._before)


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


@pytest.mark.parametrize("mode", ["true", "twin"])
def test_a_file_that_changes_after_it_was_examined_is_not_released(tmp_path: Path, mode: str) -> None:
    """Else a network would be published that nobody was charged for."""
    write(tmp_path, circuit(1.0))

    def change(task: Task) -> None:
        if task.paid is not None:
            write(tmp_path, circuit(1.7))

    [outcome] = run_fleet(one(tmp_path, mode), engine=Lossy(change)).outcomes
    assert outcome.problem == CHANGED_MEANWHILE
    assert out_of(tmp_path) == {}
    network = "network-instance-1" if mode == "true" else "network-twin-1"
    paid = spends(tmp_path)
    assert paid[network] == ["north_feeder-0001"]
    [outcome] = run_fleet(one(tmp_path, mode), engine=Here()).outcomes
    assert "was begun with another file" in str(outcome.problem)
    write(tmp_path, circuit(1.0))
    assert not run_fleet(one(tmp_path, mode), engine=Here()).failed
    assert spends(tmp_path) == paid


def test_other_loads_of_the_same_network_are_not_released_either(tmp_path: Path) -> None:
    """What decides the release is more than what the account of the network is about."""
    write(tmp_path, circuit(1.0))

    def change(task: Task) -> None:
        if task.paid is not None:
            write(tmp_path, circuit(1.0).replace("kw=200 ", "kw=220 "))

    [outcome] = run_fleet(one(tmp_path, "twin"), engine=Lossy(change)).outcomes
    assert outcome.problem == CHANGED_MEANWHILE


def test_a_price_is_of_the_file_that_was_examined(tmp_path: Path) -> None:
    """Figures of a later version are read where it is charged: of another file they could cost nothing."""
    write(tmp_path, circuit(1.0))
    config = one(tmp_path, "twin")
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    ledger = Ledger.open(state)
    [feeder] = feeders_of(config, state, ledger)
    fleet = fleet_run._Fleet.open(config, state)
    _, facts = fleet.plan(feeder, Examined("0" * 64, "1" * 64, "2" * 64, 6, 1, ()))
    with pytest.raises(PrivacyError, match="changed while the release was being made"):
        facts.figures(state.stream_key())


@pytest.mark.parametrize("output", ["out", "memory://red-fleet-plan/out"])
def test_a_plan_leaves_nothing_where_the_corpus_will_be(tmp_path: Path, output: str) -> None:
    """Whoever sees that place would see which feeders cannot be released."""
    plan = plan_fleet(three(tmp_path, output=output), engine=Here())
    assert [item.problem is None for item in plan.feeders].count(False) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"feeders", "state"}
    if "://" in output:
        assert RemotePath(output).with_name("").below() == {}


def test_a_run_that_cannot_charge_leaves_nothing_where_the_corpus_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PrivacyError("not today")

    monkeypatch.setattr(fleet_run, "customers_charge", refuse)
    place = "memory://red-fleet-refused/out"
    with pytest.raises(PrivacyError, match="not today"):
        run_fleet(three(tmp_path, output=place), engine=Here())
    assert RemotePath(place).with_name("").below() == {}
    with pytest.raises(PrivacyError, match="not today"):
        run_fleet(three(tmp_path), engine=Here())
    assert {path.name for path in tmp_path.iterdir()} == {"feeders", "state"}


def test_a_staging_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    staging = tmp_path / "out.partial-north"
    staging.mkdir(mode=0o755)
    publishing.shelf_of(tmp_path / "out", "north").prepare()
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
    state = PrivateState.inspect(copied / "state")
    assert [item["feeder"] for item in read_failures(state, "north")] == ["birch"]


def test_feeders_that_fail_first_do_not_keep_the_others_from_being_made(tmp_path: Path) -> None:
    keys = [f"feeder-{number}" for number in range(7)]
    for key in keys:
        write(tmp_path, BAD, key)
    config = on_twins(tmp_path, fleet={"same_frame": None})
    state = PrivateState.open(config.fleet.state, insecure_seed=config.fleet.insecure_seed)
    last = feeders_of(config, state, Ledger.open(state))[-1]
    write(tmp_path, circuit(1.0), last.key)
    result = run_fleet(config, engine=Here())
    assert [outcome.key for outcome in result.outcomes if outcome.problem is None] == [last.key]
    assert [path.name for path in (tmp_path / "out").glob("feeder=*")] == [f"feeder={last.name}"]


class Losing(LossyKept):
    """Workers that end early, or with the first feeder, in one of the two phases."""

    def __init__(self, paid: bool, *, early: bool) -> None:
        super().__init__(lambda _: None)
        self._paid, self._early = paid, early

    def map(
        self,
        job: Job[Any, Any],
        items: Iterable[Any],
        on_done: Callable[[Any], None],
        on_lost: Callable[[Any], Any] | None = None,
    ) -> None:
        tasks = list(items)
        if (tasks[0].paid is not None) is self._paid:
            lost, *tasks = tasks
            assert on_lost is not None
            if not self._early:
                on_done(on_lost(lost))
        super().map(job, tasks, on_done)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("paid", [True, False])
def test_a_feeder_that_is_lost_has_failed_and_keeps_nobody_from_being_made(
    tmp_path: Path, made: Path, paid: bool, early: bool
) -> None:
    class LosingEngine(Here):
        @contextmanager
        def kept(self, ahead: str, items: int, most_items: int) -> Iterator[Kept]:
            yield Losing(paid, early=early)

    result = run_fleet(three(tmp_path), engine=LosingEngine())
    failed = {outcome.key: outcome.problem for outcome in result.failed}
    assert fleet_run.LOST in failed.values()
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
        run_fleet(three(tmp_path), engine=Lossy())
    assert out_of(tmp_path) == {}
    victims.clear()
    assert len(run_fleet(three(tmp_path), engine=Here()).failed) == 1
    assert out_of(tmp_path) == out_of(made)
    assert spends(tmp_path) == spends(made)


def test_bytes_and_charges_do_not_depend_on_workers_or_the_order_of_answers(
    tmp_path: Path, made: Path
) -> None:
    result = run_fleet(three(tmp_path), engine=Lossy())
    assert len(result.failed) == 1
    assert out_of(tmp_path) == out_of(made)
    assert spends(tmp_path) == spends(made)


def test_feeders_of_one_account_are_priced_one_after_the_other_in_one_run(tmp_path: Path) -> None:
    """A line that another feeder's twin has seen is no added line; else that twin would be forgotten."""
    caps = {"network_epsilon_cap": 40.0, "network_delta_cap": 1e-3}
    write(tmp_path, circuit(1.0))
    assert not run_fleet(one(tmp_path, "twin", **caps), engine=Here()).failed
    third = "New Line.third phases=3 bus1=b bus2=c r1=0.3 x1=0.6 r0=0.9 x0=1.8 length=1 units=km\n"
    write(tmp_path, circuit(1.0) + third)
    write(tmp_path, circuit(1.1) + third, "aspen")
    alike = {"feeders": ["alder", "aspen"], "reason": "versions of one network"}
    ids = {"id": "south", "continues": "north", "output": "south", "names": {"aspen": "a-first"}}
    config = on_twins(
        tmp_path,
        fleet={**ids, **caps, "same_frame": alike},
        network={"id": "north"},
        model={"reuse": "north"},
        overrides={"aspen": {"continues_network": "network-twin-1"}},
    )
    assert not run_fleet(config, engine=Lossy()).failed  # both are examined before any is charged
    [account] = [
        item for item in Ledger.inspect(tmp_path / "state").summary().accounts if "twin" in item.name
    ]
    costs = [spend.cost for spend in account.spends]
    assert [spend.release_id for spend in account.spends][1] == "north_a-first"
    assert [cost.scope.replaced for cost in costs if isinstance(cost, PureCost)] == [(), (), ("line third",)]


def test_a_defect_is_one_failed_feeder_and_no_value_in_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("line 17.25 Ohm")

    monkeypatch.setattr(making, "make", fail)
    result = run_fleet(three(tmp_path), engine=Here())
    assert len(result.failed) == 3
    assert "17.25" not in repr([outcome.problem for outcome in result.failed])
    assert len(list(result.internal.glob("*-traceback.txt"))) == 2


class Killed(BaseException):
    """The process of the data owner ends, and nothing of it is done afterwards."""


POINTS: dict[str, tuple[Any, str, bool, int]] = {
    "customers and networks charged, nothing kept": (Ledger, "charge_all", True, 1),
    "receipt of the customers kept": (fleet_run, "keep_begun", True, 1),
    "one of the networks kept": (fleet_run, "keep_begun", True, 2),
    "all charged": (fleet_run._Run, "_charge_all", True, 1),
    "model fitted": (fleet_run, "keep_shared_model", True, 1),
    "made, nothing of it kept": (fleet_run._Run, "_drawn", False, 1),
    "one of the drawn files kept": (PrivateState, "write_internal", True, 12),
    "drawn, kept": (fleet_run._Run, "_drawn", True, 1),
    "published, not in the corpus": (publishing.Folder, "publish", False, 1),
    "in the corpus, not in its manifest": (publishing.Folder, "publish", True, 1),
}


QUICK = (
    "customers and networks charged, nothing kept",
    "made, nothing of it kept",
    "one of the drawn files kept",
)


@pytest.mark.parametrize(
    "point", [pytest.param(name, marks=() if name in QUICK else pytest.mark.campaign) for name in POINTS]
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
        for gone, what in ((publishing.Shelf, "write_manifest"), (publishing.Folder, "discard_staging")):
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
    """The earlier fleet was killed after its charge, or has models per feeder."""
    write(tmp_path, circuit(1.0))

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(fleet_run, "keep_shared_model", die)
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
    assert not run_fleet(one(tmp_path, mode, output=place), engine=Lossy()).failed
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


def test_a_worker_has_neither_ledger_nor_meters_nor_receipts(tmp_path: Path) -> None:
    """What is sent holds keyed hashes and public facts of the meters; the state is not looked at there."""
    config, sent, readings = one(tmp_path, "twin"), list[Any](), list[bytes]()
    write(tmp_path, circuit(1.0))

    class Watched(Here):
        @contextmanager
        def kept(self, ahead: str, items: int, most_items: int) -> Iterator[Kept]:
            class Watching(LossyKept):
                def map(self, job: Job[Any, Any], items: Iterable[Any], *how: Any) -> None:
                    tasks = list(items)
                    sent.append((job, tasks))
                    super().map(job, tasks, *how)

            yield Watching(lambda _: None)

    with pytest.MonkeyPatch.context() as patch:
        read = meters_of

        def noted(*arguments: Any) -> Any:
            found = read(*arguments)
            readings.append(found.history.load_kw[0, 0].tobytes())
            return found

        patch.setattr(fleet_run, "meters_of", noted)
        assert not run_fleet(config, engine=Watched()).failed
    assert len(sent) == 2
    assert readings
    for job, tasks in sent:
        content = pickle.dumps((job, tasks))
        assert not any(reading in content for reading in readings)
        assert not any(name.startswith("paid-") for task in tasks for _, name in task.files)
        carried = CarriedState(job.root, job.key, dict(job.files))
        with pytest.raises(PrivacyError, match="no ledger"):
            Ledger.open(carried)


@pytest.mark.campaign
def test_nothing_of_a_feeder_is_in_arguments_or_environment_of_a_worker(tmp_path: Path) -> None:
    write(tmp_path, circuit(1.0))
    seen: set[bytes] = set()

    def look(_: object) -> None:
        for task in Path(f"/proc/{os.getpid()}/task").iterdir():
            with suppress(OSError):  # a thread or a child that has ended
                for child in (task / "children").read_text().split():
                    seen.add(Path(f"/proc/{child}/cmdline").read_bytes())
                    seen.add(Path(f"/proc/{child}/environ").read_bytes())

    assert not run_fleet(one(tmp_path), workers=1, say=look, on_outcome=look).failed
    assert any(b"dp-powerflow worker" in text for text in seen)
    assert not any(b"alder" in text or str(tmp_path).encode() in text for text in seen)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
