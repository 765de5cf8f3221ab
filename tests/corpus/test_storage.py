"""A corpus at a URL: the bytes of one in a directory, whole or not at all, one sentence when it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dp_powerflow._parallel import Engine, Local, Processes
from dp_powerflow.cli import app
from dp_powerflow.config import StorageUrl
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.storage import RemotePath, file_hashes, location
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, MissingExtraError, PowerFlowError
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from support.corpora import EXTRAS, LAYOUT, RELEASE_ID, beside, voltages, write_corpus, write_parts
from support.made import Released, twin_config
from support.small import CORNERS, RAW, small_config, tree_hash
from support.stores import s3_server

PART, FEEDER = "data/part-00001.parquet", "feeder/part-00001.parquet"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["memory", "s3"])
def target(request: pytest.FixtureRequest) -> RemotePath:
    """A URL of its own for every test."""
    pytest.importorskip("fsspec")
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    root = "memory://store" if request.param == "memory" else request.getfixturevalue("server")
    return RemotePath(f"{root}/{name}/release")


def writer_of(
    target: RemotePath, layout: CorpusLayout = LAYOUT, release_id: str = RELEASE_ID
) -> CorpusWriter:
    return CorpusWriter(target, layout, release_id, EXTRAS)


def test_a_corpus_at_a_url_has_the_bytes_of_one_in_a_directory(target: RemotePath, tmp_path: Path) -> None:
    write_corpus(target, extras=EXTRAS)
    assert file_hashes(target) == file_hashes(write_corpus(tmp_path / "release", extras=EXTRAS))
    assert not [name for name in target.with_name("").below() if "partial" in name]


def test_a_corpus_at_a_url_is_read_in_place(target: RemotePath) -> None:
    write_corpus(target, extras=EXTRAS)
    corpus = open_corpus(str(target))
    assert corpus.holds == ("voltages", *EXTRAS.holds)
    assert np.abs(corpus.head([10]) - beside(LAYOUT, range(10, 11))["head"]).max() < 1e-3
    wanted = voltages(LAYOUT, range(LAYOUT.days))
    assert np.abs(corpus.voltages() - wanted).max() < 2e-6
    assert corpus.dataset().count_rows() == LAYOUT.days * LAYOUT.nodes
    assert corpus.hashes() == file_hashes(target)
    report = validate_corpus(str(target))
    assert report.ok
    assert report.n_phasors == LAYOUT.n_phasors
    (target / PART).write_bytes((target / PART).read_bytes()[:-20])
    (target / FEEDER).unlink()
    (target / "extra.bin").write_bytes(b"x")
    found = " ".join(validate_corpus(target).problems)
    for problem in ("extra.bin does not belong", f"{PART} is damaged", "1 of 3 parts are missing in feeder/"):
        assert problem in found


def test_what_is_in_the_making_is_no_release_and_is_continued(target: RemotePath) -> None:
    begun = writer_of(target)
    begun.prepare()
    begun.write_part(0, voltages(LAYOUT, LAYOUT.days_of(0)), beside(LAYOUT, LAYOUT.days_of(0)))
    with pytest.raises(CorpusError, match="finished release"):
        open_corpus(str(target))
    before = target.below()["data/part-00000.parquet"]
    again = writer_of(target)
    again.prepare()
    assert again.missing_parts() == tuple(range(1, LAYOUT.n_parts))
    write_corpus(target, extras=EXTRAS)
    assert target.below()["data/part-00000.parquet"] == before
    assert writer_of(target).finished
    assert again.remote is not None
    assert not again.remote.marker.exists()


def test_a_run_killed_after_the_manifest_is_finished_by_the_next(target: RemotePath) -> None:
    writer = writer_of(target)
    writer.prepare()
    write_parts(writer)
    writer.write_nodes(NodeTable.opaque(LAYOUT.nodes))
    writer.add_file("manifest.json", b"{}\n")
    assert not writer.finished
    write_corpus(target, extras=EXTRAS)
    assert writer_of(target).finished
    assert writer.remote is not None
    assert not writer.remote.marker.exists()


def test_the_manifest_is_refused_before_everything_else_is_there(target: RemotePath) -> None:
    writer = writer_of(target)
    writer.prepare()
    with pytest.raises(CorpusError, match="3 of 3 parts"):
        writer.add_file("manifest.json", b"{}\n")
    write_parts(writer)
    with pytest.raises(CorpusError, match=r"nodes\.parquet"):
        writer.add_file("manifest.json", b"{}\n")
    writer.write_nodes(NodeTable.opaque(LAYOUT.nodes))
    with pytest.raises(CorpusError, match=r"manifest\.json"):
        writer.finish()
    assert "manifest.json" not in target.below()


def test_a_taken_url_is_refused_and_left_as_it_is(target: RemotePath) -> None:
    write_corpus(target, extras=EXTRAS)
    before = target.below()
    with pytest.raises(CorpusError, match="exists already"):
        writer_of(target).prepare()
    with pytest.raises(CorpusError, match="exists already"):
        writer_of(target, release_id="other").prepare()
    assert target.below() == before
    stranger = writer_of(target, release_id="other").remote
    assert stranger is not None
    assert not stranger.marker.exists()
    other = target.with_name("other")
    (other / "notes.txt").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="exists already"):
        writer_of(other).prepare()
    # A neighbour with the same beginning is another release.
    writer_of(target.with_name("rel")).prepare()


def test_parts_of_another_shape_or_cut_short_are_not_continued_and_discarded_to_nothing(
    target: RemotePath,
) -> None:
    writer = writer_of(target)
    writer.prepare()
    write_parts(writer)
    with pytest.raises(CorpusError, match="another corpus"):
        writer_of(target, CorpusLayout(days=11, steps=24, nodes=6, days_per_part=4)).prepare()
    with pytest.raises(CorpusError, match="another corpus"):
        writer_of(target, CorpusLayout(days=4, steps=24, nodes=7, days_per_part=4)).prepare()
    (target / PART).write_bytes((target / PART).read_bytes()[:-20])
    assert writer.missing_parts() == writer_of(target).missing_parts() == (1,)  # cut short: written again
    writer.discard()
    assert target.with_name("").below() == {}


def test_a_worker_that_does_not_see_the_target_says_so(target: RemotePath, tmp_path: Path) -> None:
    for place in (target, tmp_path / "release"):
        writer = CorpusWriter(place, LAYOUT, RELEASE_ID)
        with pytest.raises(CorpusError, match="does not see"):
            writer.refuse_unseen()
        writer.prepare()
        writer.refuse_unseen()


def test_a_missing_bucket_is_one_sentence(server: str) -> None:
    with pytest.raises(CorpusError, match="no such bucket"):
        writer_of(RemotePath("s3://nowhere/release")).prepare()
    with pytest.raises(CorpusError, match="finished release"):
        open_corpus("s3://nowhere/release")
    with pytest.raises(CorpusError, match="whole bucket"):
        writer_of(RemotePath(server)).prepare()


def test_a_store_that_forbids_or_does_not_answer_is_one_sentence(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError

    target = RemotePath(f"{server}/forbidden/release")
    store, _ = target.store()
    failures = {
        "no permission": PermissionError("Access Denied for account 1234"),
        "check credentials": NoCredentialsError(),
        "does not answer": EndpointConnectionError(endpoint_url="http://secret-host"),
    }
    for says, failure in failures.items():

        def fail(*_: object, failure: Exception = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr(store, "pipe_file", fail)
        with pytest.raises(CorpusError, match=says) as caught:
            writer_of(target).prepare()
        assert "1234" not in str(caught.value)
        assert "secret-host" not in str(caught.value)


def test_paths_and_urls_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert location("release") == tmp_path / "release"
    assert location(Path("a://b")) == tmp_path / "a:" / "b"
    assert location((tmp_path / "with space").as_uri()) == tmp_path / "with space"
    assert location(StorageUrl("s3://bucket/release/")) == RemotePath("s3://bucket/release")
    assert str(RemotePath("s3://b/x") / "data" / "p") == "s3://b/x/data/p"
    with pytest.raises(CorpusError, match="absolute path"):
        location("file://release")
    with pytest.raises(CorpusError, match="environment") as caught:
        location("ftp://user:hunter2@host/release")
    assert "hunter2" not in str(caught.value)


def test_missing_packages_and_unknown_stores_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="no nonsense:// storage"):
        open_corpus("nonsense://bucket/release")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"dp-powerflow\[storage\]"):
        open_corpus("s3://bucket/release")


# --- a whole release to an S3-compatible server ---
def spends(folder: Path) -> int:
    return len(Ledger.inspect(folder / "state").spends())


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Processes(2), Local(3)])
def test_a_release_to_s3_killed_in_the_middle_resumes_to_the_bytes_of_a_local_one(
    engine: Engine, server: str, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    run_release(small_config(tmp_path / "local"), engine=Processes(1))
    expected = tree_hash(tmp_path / "local" / "out")

    target, folder = RemotePath(f"{server}/killed/{type(engine).__name__.lower()}/out"), tmp_path / "remote"
    folder.mkdir()
    config = small_config(folder, release={"output": str(target)})

    def killed_after_the_first_part(done: int, total: int) -> None:
        if done == 1 and total < RAW["network"]["calibration_days"]:  # parts, not the days of the calibration
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_release(config, engine=Processes(1), progress=killed_after_the_first_part)
    assert list(target.below()) == ["data/part-00000.parquet"]
    # Whoever reads the store sees that part: the network is paid for already.
    assert spends(folder) == 2
    with pytest.raises(CorpusError, match="finished release"):
        open_corpus(str(target))

    # Processes, or threads, each with a connection of its own.
    result = run_release(config, engine=engine)
    assert result.path == target
    assert file_hashes(target) == expected
    assert spends(folder) == 2
    assert [path.name for path in folder.iterdir()] == ["state"]
    assert validate_corpus(str(target)).ok
    assert verify_release(target).intact
    run_release(config, engine=Processes(1))  # finished: nothing happens
    assert file_hashes(target) == expected


def test_a_release_without_solution_leaves_nothing_in_the_store(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CORNERS, lambda *_: None)
    target = RemotePath(f"{server}/failed/out")
    config = small_config(tmp_path, release={"output": str(target)}, nodes={"scale_factor": 60.0})
    with pytest.raises(PowerFlowError, match=r"no (power-flow )?solution"):
        run_release(config, engine=Processes(1))
    assert RemotePath(f"{server}/failed").below() == {}


def test_a_twin_with_its_tables_at_a_url_has_the_bytes_of_a_local_one(
    server: str, tmp_path: Path, twin_release: Released
) -> None:
    target = RemotePath(f"{server}/twin/out")
    run_release(twin_config(tmp_path, release={"output": str(target)}), engine=Processes(1))
    assert file_hashes(target) == tree_hash(twin_release.path)
    assert validate_corpus(target, other_files=file_hashes(target)).ok
    verified = CliRunner().invoke(app, ["verify", str(target)])
    assert verified.exit_code == 0
    assert "FAIL" not in verified.stdout
    assert "verdict: demonstration: intact" in verified.stdout
