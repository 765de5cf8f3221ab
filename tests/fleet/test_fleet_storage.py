"""A fleet at a URL: the bytes of a local one, read and verified in place; what fails leaves nothing there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import dp_powerflow as dpf
from dp_powerflow._parallel import Local
from dp_powerflow.cli import main
from dp_powerflow.corpus.storage import RemotePath, Snapshot, file_hashes, one_reading
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fleet.feeders import FleetConfig
from dp_powerflow.fleet.manifest import read_entries, release_paths
from dp_powerflow.fleet.publishing import Shelf, output_of
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import BROKEN, KEYS, on_twins, toml_of, write_feeders
from support.here import Here
from support.small import tree_hash
from support.stores import s3_server

FEW = KEYS[:3]
"""Two feeders and the broken one."""


def few_feeders(folder: Path, output: str = "out") -> FleetConfig:
    folder.mkdir()
    write_feeders(folder)
    for key in KEYS[3:]:
        (folder / "feeders" / f"{key}.dss").unlink()
    alike = {"feeders": [*FEW], "reason": "a standard design"}
    return on_twins(folder, fleet={"output": output, "same_frame": alike})


@dataclass(frozen=True)
class Both:
    """The same fleet in a folder and in a store, whose run was interrupted and resumed."""

    local: Path
    remote: RemotePath
    state: Path
    in_between: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with s3_server() as server:
        folder, target = tmp_path_factory.mktemp("fleet"), RemotePath(f"{server}/a/out")
        config = few_feeders(folder / "remote", str(target))

        def interrupt(done: int, total: int) -> None:
            if done == 2:  # the broken one failed before
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_fleet(config, engine=Local(1), progress=interrupt)  # another process writes
        in_between = list(dpf.open_fleet(str(target)).names)
        result = run_fleet(config, engine=Here())
        assert result.path == target
        assert [outcome.key for outcome in result.failed] == [BROKEN]
        run_fleet(few_feeders(folder / "local"), engine=Here())
        yield Both(folder / "local" / "out", target, folder / "remote" / "state", in_between)


def test_a_fleet_at_a_url_has_the_bytes_of_a_local_one(made: Both) -> None:
    assert len(made.in_between) == 1
    assert file_hashes(made.remote) == tree_hash(made.local)
    # No marker, nothing of the feeder that failed, and nothing private.
    there = made.remote.with_name("").below()
    assert {name.split("/")[1] for name in there} == {path.name for path in made.local.iterdir()}
    assert {path.name for path in made.state.parent.iterdir()} == {"feeders", "state"}


def test_a_fleet_at_a_url_is_read_in_place(made: Both) -> None:
    here, there = dpf.open_fleet(made.local), dpf.open_fleet(str(made.remote))
    assert there.names == here.names
    assert there.manifest == here.manifest
    assert there.files() == [f"{made.remote}/feeder={name}/data/part-00000.parquet" for name in there.names]
    assert there.dataset().to_table().equals(here.dataset().to_table())
    corpora = [fleet.feeder(there.names[0]) for fleet in (here, there)]
    assert (corpora[0].voltages() == corpora[1].voltages()).all()
    assert repr(there) == f"Fleet('north', 2 feeders, 6 feeder-days, '{made.remote}')"
    assert [entry.sha256 for entry in read_entries(made.remote)] == [
        entry.sha256 for entry in read_entries(made.local)
    ]
    with pytest.raises(CorpusError, match="read from a folder; copy s3://"):
        release_paths(str(made.remote))


def test_verify_reads_a_url_in_place_and_finds_a_changed_byte(
    made: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: pytest.fail("a copy was made"))
    told: list[tuple[int, int]] = []
    url = str(made.remote)
    found = dpf.verify(url, on_progress=lambda *done: told.append(done))
    assert found == dpf.verify(made.local)
    assert found.verdict == "demonstration"
    assert told == [(1, 2), (2, 2)]
    assert dpf.verify(url, private=made.state).verdict == "demonstration"
    name = sorted(made.local.glob("feeder=*"))[1].name
    one = dpf.verify(f"{url}/{name}")
    assert one == dpf.verify(made.local / name)

    place = made.remote / name / "data/part-00000.parquet"
    whole = place.read_bytes()
    place.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (made.remote / "notes.txt").write_bytes(b"mine")
    said = {check.name: check.sentence for check in dpf.verify(url).failures}
    assert "part-00000.parquet was changed" in said[name]
    assert "notes.txt is not listed" in said["feeders"]
    assert [item for item in said if item.startswith("feeder=")] == [name]
    assert dpf.verify(f"{url}/{name}").verdict == "not intact"
    place.write_bytes(whole)
    (made.remote / "notes.txt").unlink()


def test_processes_find_what_one_process_finds(made: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify_fleet(made.local)
    monkeypatch.setattr("dp_powerflow.fleet.verify.WORTH_PROCESSES", 1)
    monkeypatch.setattr("dp_powerflow.fleet.verify.cores", lambda: 2)
    assert verify_fleet(made.remote) == found


def test_a_store_that_changes_or_fails_meanwhile_gets_no_verdict(
    made: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = made.remote / sorted(made.local.glob("feeder=*"))[0].name

    def read_while_somebody_writes() -> None:
        with one_reading(release) as read:
            assert isinstance(read / "model.json", Snapshot)
            (release / "more.txt").write_bytes(b"")
            assert not (read / "more.txt").exists()

    with pytest.raises(CorpusError, match="changed while it was read"):
        read_while_somebody_writes()
    (release / "more.txt").unlink()

    read_bytes = RemotePath.read_bytes

    def forbidden(place: RemotePath) -> bytes:
        if place.name == "nodes.parquet":
            raise PermissionError("account 1234")
        return read_bytes(place)

    monkeypatch.setattr(RemotePath, "read_bytes", forbidden)
    with pytest.raises(CorpusError, match="no permission to read") as caught:
        dpf.verify(str(made.remote))
    assert "1234" not in str(caught.value)


def test_what_does_not_fit_into_memory_is_fetched_again(made: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sorted(made.local.glob("feeder=*"))[0].name
    monkeypatch.setattr("dp_powerflow.corpus.storage.KEPT_BYTES", 0)
    with one_reading(made.remote / name) as read:
        assert isinstance(read, RemotePath)
        assert file_hashes(read) == tree_hash(made.local / name)
        with (read / "model.json").open() as file:
            assert file.read(10) == (made.local / name / "model.json").read_bytes()[:10]
        with pytest.raises(FileNotFoundError):
            (read / "nothing").read_bytes()


def test_a_url_that_cannot_be_used_is_one_sentence_and_exit_code_2(
    made: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which sentence is for which fault of a store: tests/corpus/test_storage.py."""
    write_feeders(tmp_path)
    text = toml_of().replace('output = "out"', 'output = "s3://nowhere/out"')
    (tmp_path / "fleet.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["dp-powerflow", "fleet", "fleet.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "there is no such bucket; make it first" in " ".join(capsys.readouterr().err.split())
    assert not Ledger.inspect(tmp_path / "state").spends()


# ------------------------------------------------------------------------------- the shelf, without releases
def manifest_of(release_id: str) -> str:
    return json.dumps({"release": {"id": release_id}, "internal_report": {"sha256": "0" * 64}})


def put_feeder(place: RemotePath, name: str, release_id: str) -> None:
    release = place / f"feeder={name}"
    (release / "data/part-00000.parquet").write_bytes(b"part")
    (release / "manifest.json").write_bytes(manifest_of(release_id).encode())


@pytest.fixture
def place(request: pytest.FixtureRequest) -> RemotePath:
    pytest.importorskip("fsspec")
    found = RemotePath(f"memory://fleets/{request.node.name}/out")
    put_feeder(found, "one", "north_one")
    return found


def test_a_store_is_listed_once_and_knows_what_is_in_the_making(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_feeder(place, "two", "north_two")
    (place / "feeder=two.partial-north_two").write_bytes(b"")
    listed: list[str] = []
    children = RemotePath.children

    def counted(where: RemotePath) -> dict[str, bool]:
        listed.append(str(where))
        return children(where)

    monkeypatch.setattr(RemotePath, "children", counted)
    shelf = Shelf(place, "north")
    shelf.refuse_other_contents()
    assert shelf.has("one")
    assert not shelf.has("two")
    assert str(output_of(str(place), "north", "two")) == f"{place}/feeder=two"
    shelf.publish("three")
    assert shelf.has("three")
    assert listed == [str(place)]
    # A feeder that the fleet no longer lists is not left half-made; one that it does is.
    shelf.discard_staging(keep=["two"])
    assert (place / "feeder=two/manifest.json").exists()
    shelf.discard_staging(keep=[])
    assert list(place.children()) == ["feeder=one"]


def test_other_contents_of_a_store_are_refused_and_what_a_killed_run_tried_is_removed(
    place: RemotePath,
) -> None:
    (place / "feeder=two.probe-north_two").write_bytes(b"")
    Shelf(place, "north").refuse_other_contents()
    assert list(place.children()) == ["feeder=one"]
    for name in ("notes.txt", "feeder=two/data/part", "feeder=two.partial-south_two"):
        (place / name).write_bytes(b"mine")
        with pytest.raises(ConfigError, match="which is not of fleet 'north'"):
            Shelf(place, "north").refuse_other_contents()
        (place / name).unlink()
    put_feeder(place, "two", "south_two")
    with pytest.raises(ConfigError, match="holds feeder=two"):
        Shelf(place, "north").refuse_other_contents()


def test_a_feeder_that_failed_leaves_nothing_in_a_store(place: RemotePath) -> None:
    shelf = Shelf(place, "north")
    shelf.prepare()
    put_feeder(place, "two", "north_two")
    (place / "feeder=two.partial-north_two").write_bytes(b"")
    shelf.abandon("two", "north_two")
    assert list(place.children()) == ["feeder=one"]
