"""A release of a stranger: whatever its manifest and files say, nothing outside of it is read or written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dp_powerflow as dpf
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.manifest.model import FORMAT
from support.corpora import EXTRAS
from support.manifest_releases import make_release, twin_config

SECRET = "top-secret-7f3a"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("made"), twin_config(), extras=EXTRAS).path


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text(SECRET)
    return Path(shutil.copytree(made, tmp_path / "place" / "release"))


def sealed(release: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest, or replace it by a text."""
    path = release / "manifest.json"
    manifest = json.loads(path.read_text())
    made = change(manifest)
    path.write_text(made if isinstance(made, str) else json.dumps(manifest))


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
    "not a number": lambda manifest: json.dumps(manifest).replace('"days": ', '"days": NaN, "x": ', 1),
    "deep": lambda manifest: "[" * 100_000,
    "long number": lambda manifest: json.dumps(manifest)[:-1] + ', "x": ' + "9" * 100_000 + "}",
    "files as a list": lambda manifest: manifest.update(files=["a"]),
    "numbers for hashes": lambda manifest: manifest.update(files=dict.fromkeys(manifest["files"], 3)),
    "nothing": lambda manifest: "null",
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_no_manifest_leads_out_of_its_release(kind: str, release: Path) -> None:
    before = sorted(path for path in release.parents[1].rglob("*") if path.is_file())
    sealed(release, MANIFESTS[kind])
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
    metadata = dict(table.schema.metadata) | {
        f"dp_powerflow.{name}".encode(): value for name, value in entries.items()
    }
    pq.write_table(table.replace_schema_metadata(metadata), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sealed(release, lambda manifest: manifest["files"].update({"nodes.parquet": digest}))


SHAPES: dict[str, dict[str, bytes]] = {
    "a million years": {"days": b"1000000000"},
    "more than memory": {"days": b"4000000000000000000"},
    "no number": {"days": b"NaN"},
    "negative": {"days": b"-3"},
    "endless": {"days": b"9" * 5_000},
    "no text": {"days": b"\xff"},
    "no days in a part": {"days_per_part": b"0"},
    "all days in a part": {"days": b"1000000000", "days_per_part": b"1000000000"},
    "nodes": {"nodes": b"1000000000"},
    "a name that leads out": {"release_id": b"../../evil"},
    "a name with a line end": {"release_id": b"evil\n"},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_no_declared_shape_takes_memory_or_a_traceback(kind: str, release: Path) -> None:
    shaped(release, **SHAPES[kind])
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
