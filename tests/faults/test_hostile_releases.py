"""A release that is damaged, or a stranger's: nothing is read in silence, nothing outside is touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import dp_powerflow as dpf
from dp_powerflow.corpus import storage
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.manifest import partition
from dp_powerflow.manifest.model import FORMAT
from support.corpora import EXTRAS
from support.manifest_releases import make_release, twin_config
from support.small import repeated
from support.tampering import manifest_of

SECRET = "top-secret-7f3a"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("made"), twin_config(), extras=EXTRAS).path


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text(SECRET)
    return Path(shutil.copytree(made, tmp_path / "place" / "release"))


def changed(release: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest, or replace it by a text."""
    manifest = manifest_of(release)
    made = change(manifest)
    (release / "manifest.json").write_text(made if isinstance(made, str) else json.dumps(manifest))


def everything(release: Path) -> list[Callable[[], Any]]:
    out = release.parent / "exported"
    return [
        lambda: dpf.open_corpus(release).voltages(range(1)),
        lambda: dpf.open_corpus(release).voltages(),
        lambda: dpf.open_corpus(release, check=False).voltages(),
        lambda: dpf.quality(dpf.open_corpus(release)),
        lambda: dpf.export_gridfm(release, out),
    ]


def listing(*names: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["files"].update(dict.fromkeys(names, "0" * 64))


def refusal(read: Callable[[], Any]) -> str:
    """What an error says, if there is one."""
    try:
        read()
    except DpPowerflowError as error:
        return str(error)
    return ""


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "above": listing("../../outside.txt", "../../../../../../etc/passwd"),
    "absolute": listing("/etc/passwd"),
    "odd names": listing("a\0b", "\udcff", "x/" * 3_000 + "y", "\x1b[2J"),
    "numbers for hashes": lambda manifest: manifest.update(files=dict.fromkeys(manifest["files"], 3)),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_no_manifest_leads_out_of_its_release(kind: str, release: Path) -> None:
    before = sorted(path for path in release.parents[1].rglob("*") if path.is_file())
    changed(release, MANIFESTS[kind])
    assert dpf.verify(release).verdict == "not intact"
    for read in everything(release):
        said = refusal(read)
        assert SECRET not in said
        assert "root:" not in said
    assert sorted(path for path in release.parents[1].rglob("*") if path.is_file()) == before


def shaped(release: Path, **entries: bytes) -> None:
    """Another shape in the nodes, and a manifest that lists them so."""
    path = release / "nodes.parquet"
    table = pq.read_table(path)
    own = {f"dp_powerflow.{name}".encode(): value for name, value in entries.items()}
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **own}), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    changed(release, lambda manifest: manifest["files"].update({"nodes.parquet": digest}))


SHAPES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_bytes())
"""What the metadata of the nodes declare; a pair is a sign and how often it comes."""


@pytest.mark.parametrize("kind", SHAPES)
def test_no_declared_shape_takes_memory_or_a_traceback(kind: str, release: Path) -> None:
    shaped(release, **{name: repeated(text).encode("latin-1") for name, text in SHAPES[kind].items()})
    assert dpf.verify(release).verdict == "not intact"
    for read in everything(release):
        with pytest.raises(DpPowerflowError) as refused:
            read()
        assert "\n" not in str(refused.value)
    assert not (release.parents[1] / "evil").exists()


def test_links_and_devices_are_no_part_of_a_release(release: Path) -> None:
    part = release / "data" / "part-00000.parquet"
    moved = part.rename(release.parent / "moved.parquet")
    part.symlink_to(moved)
    (release / "data" / "round").symlink_to(release / "data")
    os.mkfifo(release / "data" / "pipe")
    report = dpf.verify(release)
    assert report.verdict == "not intact"
    assert dpf.open_corpus(release).voltages().size  # what counts is the SHA-256: caches of hubs hold links
    part.unlink()
    part.symlink_to(release.parents[1] / "outside.txt")
    with pytest.raises(CorpusError, match="is damaged") as refused:
        dpf.open_corpus(release).voltages()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../../outside", "/etc", "a/b", "..", "", "a\nb", "a_b", "\x1b[2J", "x" * 500]
)
def test_names_of_a_fleet_do_not_lead_out_of_it(name: str, release: Path) -> None:
    fleet = release.parent
    (fleet / "feeder=..").mkdir()
    entry = {"name": name, "manifest_file_sha256": "0" * 64}
    (fleet / "fleet.json").write_text(json.dumps({"format": FORMAT, "feeders": [entry]}))
    with pytest.raises(CorpusError, match="has a name that no feeder of a fleet has") as refused:
        dpf.open_fleet(fleet)
    assert "\x1b" not in str(refused.value)
    with pytest.raises(DpPowerflowError):
        dpf.export_gridfm(fleet, fleet / "exported")
    assert not dpf.verify(fleet).intact


DATA = "data/part-00000.parquet"


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    storage._sound.clear()
    storage._fetched.clear()


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
        *([lambda: corpus.windows(4)[0]] if find_spec("torch") else []),
    ]
    for read in reads:
        with pytest.raises(CorpusError, match=r"part-00000\.parquet is damaged: .*; fetch it again"):
            read()


@pytest.mark.parametrize(
    "name", ["nodes.parquet", "days.parquet", "loads/part-00000.parquet", "manifest.json"]
)
def test_other_damaged_files_are_told(name: str, release: Path) -> None:
    DAMAGE["cut" if name == "manifest.json" else "a bit"](release / name)
    with pytest.raises(CorpusError, match=r"damaged.*fetch it again"):
        _read_all(dpf.open_corpus(release))


def _read_all(corpus: dpf.Corpus) -> None:
    repr((corpus.dates, corpus.connections))
    for name in corpus.holds:
        getattr(corpus, name)(range(1))


def test_a_listed_file_that_is_gone_is_missed(release: Path) -> None:
    files = manifest_of(release)["files"]
    tables = (name for name in files if name.endswith(".parquet") and "/" not in name)
    for name in {*tables, DATA} - {"nodes.parquet"}:
        copied = Path(shutil.copytree(release, release.with_name(f"without-{Path(name).name}")))
        (copied / name).unlink()
        with pytest.raises(CorpusError, match="is missing"):
            _read_all(dpf.open_corpus(copied))


def test_a_file_is_hashed_once_until_it_changes_and_never_without_a_list_or_if_that_is_not_wanted(
    release: Path, hashed: list[int]
) -> None:
    listed = release / "manifest.json"
    aside = listed.rename(release.parent / "aside.json")
    assert dpf.open_corpus(release).voltages(range(1)).size
    aside.rename(listed)
    unchecked = dpf.open_corpus(release, check=False)
    assert unchecked.voltages().size
    assert not hashed
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


def test_a_file_that_the_manifest_does_not_list_is_none_of_the_release(release: Path) -> None:
    changed(release, lambda manifest: manifest["files"].pop(DATA) and None)
    with pytest.raises(CorpusError, match="does not list it"):
        dpf.open_corpus(release).voltages()


def test_a_damaged_object_of_a_store_is_told_and_a_sound_one_is_fetched_once(release: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store, url = fsspec.filesystem("memory"), "memory://damaged/release"
    store.put(str(release), "/damaged/release", recursive=True)
    whole = dpf.open_corpus(release).voltages()
    corpus = dpf.open_corpus(url)
    assert np.array_equal(corpus.voltages(), whole)
    assert f"{url}/{DATA}" in storage._fetched
    flipped(release / DATA)
    store.pipe_file(f"/damaged/release/{DATA}", (release / DATA).read_bytes())
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
