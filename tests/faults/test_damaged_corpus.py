"""A damaged corpus is not read in silence: the first read of a file compares it with the manifest."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import dp_powerflow as dpf
from dp_powerflow.corpus import storage
from dp_powerflow.errors import CorpusError
from dp_powerflow.fleet.manifest import partition
from dp_powerflow.manifest.model import FORMAT
from support.corpora import EXTRAS
from support.manifest_releases import make_release, twin_config

DATA = "data/part-00000.parquet"


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    storage._sound.clear()
    storage._fetched.clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("made"), twin_config(), extras=EXTRAS).path


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "release"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was hashed."""
    found: list[int] = []
    real = hashlib.sha256

    def counting(content: bytes = b"") -> Any:
        if len(content) > 200:  # not the words of a mark
            found.append(len(content))
        return real(content)

    monkeypatch.setattr("dp_powerflow.corpus.storage.hashlib.sha256", counting)
    return found


def another_value(path: Path) -> None:
    """A file that any reader opens, with the schema of the first and one value changed: valid, but wrong."""
    table = pq.read_table(path)
    column = table.schema.get_field_index("vm_pu")
    lists = table.column(column).combine_chunks()
    values = np.array(lists.flatten())
    values[0] = np.float32(1.25)
    changed = type(lists).from_arrays(values, type=lists.type)
    table = table.set_column(column, table.schema.field(column), changed)
    pq.write_table(table.replace_schema_metadata(pq.read_schema(path).metadata), path)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "another value": another_value,
    "a bit": flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_told_by_every_way_to_read_it(damage: str, release: Path) -> None:
    DAMAGE[damage](release / DATA)
    corpus = dpf.open_corpus(release)
    reads: list[Callable[[], Any]] = [
        lambda: corpus.voltages(range(1)),
        corpus.dataset,
        lambda: next(corpus.batches()),
        lambda: dpf.quality(corpus),
    ]
    for read in reads:
        with pytest.raises(CorpusError, match=r"part-00000\.parquet is damaged: .*; fetch it again"):
            read()


def test_windows_and_graphs_tell_it_too(release: Path) -> None:
    pytest.importorskip("torch")
    flipped(release / DATA)
    with pytest.raises(CorpusError, match="fetch it again"):
        dpf.open_corpus(release).windows(4)[0]


@pytest.mark.parametrize(
    "name", ["nodes.parquet", "days.parquet", "loads/part-00000.parquet", "manifest.json"]
)
def test_other_damaged_files_are_told(name: str, release: Path) -> None:
    if not (release / name).exists():
        pytest.skip("the old release has none")
    if name == "manifest.json":
        (release / name).write_bytes((release / name).read_bytes()[:-9])
    else:
        flipped(release / name)
    with pytest.raises(CorpusError, match=r"damaged.*fetch it again"):
        _read_all(dpf.open_corpus(release))


def _read_all(corpus: dpf.Corpus) -> None:
    assert corpus.dates is not None or corpus.dates is None
    for name in corpus.holds:
        getattr(corpus, name)(range(1))
    assert corpus.connections is not None or corpus.connections is None


def test_a_listed_file_that_is_gone_is_missed(release: Path) -> None:
    files = json.loads((release / "manifest.json").read_text())["files"]
    gone = [
        name for name in files if name.endswith(".parquet") and name != "nodes.parquet" and "/" not in name
    ]
    for name in [*gone, DATA]:
        copied = Path(shutil.copytree(release, release.with_name(f"without-{Path(name).name}")))
        (copied / name).unlink()
        with pytest.raises(CorpusError, match="is missing"):
            _read_all(dpf.open_corpus(copied))


def test_a_file_is_hashed_once_until_it_changes(release: Path, hashed: list[int]) -> None:
    first = dpf.open_corpus(release)
    whole = first.voltages()
    once = len(hashed)
    assert once >= 2  # nodes and the part
    for corpus in (first, dpf.open_corpus(release)):
        assert np.array_equal(corpus.voltages(), whole)
    assert len(hashed) == once
    flipped(release / DATA)
    with pytest.raises(CorpusError, match="fetch it again"):
        first.voltages(range(1))


def test_nothing_is_hashed_if_that_is_not_wanted(release: Path, hashed: list[int]) -> None:
    another_value(release / DATA)
    with pytest.raises(CorpusError, match="fetch it again"):
        dpf.open_corpus(release).voltages()
    hashed.clear()
    corpus = dpf.open_corpus(release, check=False)
    assert corpus.listed is None or corpus.listed.hashes is None
    assert not hashed


def test_processes_that_share_windows_hash_a_part_once(release: Path, hashed: list[int]) -> None:
    pytest.importorskip("torch")
    windows = dpf.open_corpus(release).windows(4, cache_mb=1e-6)
    windows[0]
    hashed.clear()
    storage._sound.clear()  # as in a process that was spawned
    spawned = pickle.loads(pickle.dumps(windows))
    spawned[0]
    assert not hashed
    flipped(release / DATA)
    storage._sound.clear()
    with pytest.raises(CorpusError, match="fetch it again"):
        pickle.loads(pickle.dumps(windows))[0]


def test_a_corpus_without_a_list_is_not_checked(release: Path, hashed: list[int]) -> None:
    (release / "manifest.json").unlink()
    assert dpf.open_corpus(release).voltages(range(1)).size
    assert not hashed


def test_a_file_that_the_manifest_does_not_list_is_none_of_the_release(release: Path) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"][DATA]
    path.write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match="does not list it"):
        dpf.open_corpus(release).voltages()


def test_a_damaged_object_of_a_store_is_told_and_a_sound_one_is_fetched_once(release: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store, url = fsspec.filesystem("memory"), "memory://damaged/release"
    for path in release.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/damaged/release/{path.relative_to(release).as_posix()}", path.read_bytes())
    whole = dpf.open_corpus(release).voltages()
    corpus = dpf.open_corpus(url)
    assert np.array_equal(corpus.voltages(), whole)
    assert f"{url}/{DATA}" in storage._fetched
    content = bytearray((release / DATA).read_bytes())
    content[len(content) // 2] ^= 1
    store.pipe_file(f"/damaged/release/{DATA}", bytes(content))
    with pytest.raises(CorpusError, match=r"memory://.* is damaged"):
        corpus.voltages()
    store.rm("/damaged", recursive=True)


def test_a_fleet_is_checked_feeder_by_feeder(release: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    digest = hashlib.sha256((release / "manifest.json").read_bytes()).hexdigest()
    entries = [{"name": name, "manifest_file_sha256": digest} for name in ("sound", "part", "manifest")]
    for entry in entries:
        shutil.copytree(release, fleet / partition(entry["name"]))
    (fleet / "fleet.json").write_text(json.dumps({"format": FORMAT, "kind": "fleet", "feeders": entries}))
    flipped(fleet / partition("part") / DATA)
    with (fleet / partition("manifest") / "manifest.json").open("a") as file:
        file.write(" ")
    opened = dpf.open_fleet(fleet)
    assert opened.feeder("sound").voltages().size
    with pytest.raises(CorpusError, match=r"part-00000\.parquet is damaged"):
        opened.feeder("part").voltages()
    with pytest.raises(CorpusError, match=r"manifest\.json is damaged"):
        opened.feeder("manifest")
    with pytest.raises(CorpusError, match="fetch it again"):
        opened.dataset()
    assert dpf.open_fleet(fleet, check=False).feeder("manifest").voltages().size
