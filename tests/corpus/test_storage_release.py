"""A whole release to an S3-compatible server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_powerflow._parallel import Engine, Local, Processes
from dp_powerflow.cli import app
from dp_powerflow.config import StorageUrl, parse_config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.storage import RemotePath, file_hashes
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.errors import ConfigError, CorpusError, PowerFlowError
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from support.small import CORNERS, RAW, small_config, tree_hash
from support.stores import s3_server

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


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
    command = [sys.executable, str(TESTS / "support" / "storage_child.py"), str(folder), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert list(target.below()) == ["data/part-00000.parquet"]
    # Whoever reads the store sees that part: the network is paid for already.
    assert spends(folder) == 2
    with pytest.raises(CorpusError, match="finished release"):
        open_corpus(str(target))

    config = small_config(folder, release={"output": str(target)})
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


def test_a_url_in_a_config_is_kept_as_it_is_written(tmp_path: Path) -> None:
    def output(text: str) -> object:
        return small_config(tmp_path, release={"output": text}).release.output

    assert output("s3://bucket/a/release") == StorageUrl("s3://bucket/a/release")
    assert isinstance(output("s3://bucket/release"), StorageUrl)
    assert output("out") == tmp_path / "out"
    assert output("/elsewhere/out") == Path("/elsewhere/out")
    with pytest.raises(ConfigError, match=r"release\.output"):
        small_config(tmp_path, release={"output": 3})


def test_a_file_url_is_a_local_release(tmp_path: Path) -> None:
    url = (tmp_path / "out").as_uri()
    run_release(small_config(tmp_path, release={"days": 5, "output": url}), engine=Processes(1))
    assert verify_release(tmp_path / "out").intact


def test_a_twin_with_its_tables_at_a_url_has_the_bytes_of_a_local_one(server: str, tmp_path: Path) -> None:
    raw = {
        **{name: RAW[name] for name in ("feeder", "loads", "model")},
        "nodes": {"load_class": "residential"},
        "network": {"mode": "twin-network", "epsilon": 4.0, "delta": 1e-5}
        | {"id": "t", "change": 0.05, "controls": "frozen", "publish": "network and loads", "graph_days": 3}
        | {"transformers": True, "capacitors": True},
        "release": {**RAW["release"], "days": 40},
    }
    (tmp_path / "local").mkdir()
    run_release(parse_config(raw, base=tmp_path / "local"), engine=Processes(1))
    target = RemotePath(f"{server}/twin/out")
    raw["release"]["output"] = str(target)
    (tmp_path / "remote").mkdir()
    run_release(parse_config(raw, base=tmp_path / "remote"), engine=Processes(1))
    assert file_hashes(target) == tree_hash(tmp_path / "local" / "out")
    found, expected = (open_corpus(place).connections for place in (target, tmp_path / "local" / "out"))
    assert found is not None
    assert expected is not None
    assert (found.bus_ids, found.kinds) == (expected.bus_ids, expected.kinds)
    assert validate_corpus(target, other_files=file_hashes(target)).connections is not None
    verified = CliRunner().invoke(app, ["verify", str(target)])
    assert verified.exit_code == 0
    assert "FAIL" not in verified.stdout
    assert "verdict: demonstration: intact" in verified.stdout
