"""Releases of versions 2, 4 and 5, made by 0.1.0, 0.3.0 and 0.4.0, still verify; a change is found."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._names import __version__
from dp_powerflow.corpus.connections import encode_buses, encode_connections
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import encode_nodes
from dp_powerflow.pipeline.manifest.model import FORMAT
from dp_powerflow.pipeline.manifest.versions import MAKER_OF
from dp_powerflow.pipeline.release_checks import SEED
from dp_powerflow.pipeline.verify import ONLY_FIGURES, verify_release
from support.corpora import ring
from support.tampering import failed, leaves, manifest_of, rewrite, with_leaf

OLD = Path(__file__).parents[1] / "data" / "format2"
VERDICTS = {"true": "demonstration", "twin": "release"}
"""What version 0.1.0 said of them; the first was made with a seed."""
DECLARED = {"factor", "variance_floor", "correlation_minutes", "charges"}


@pytest.fixture(params=sorted(VERDICTS))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copied(mode: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / mode, tmp_path / mode))


def sealed(path: Path, manifest: dict[str, Any]) -> set[str]:
    rewrite(path, manifest, sealed=True)
    return failed(path) - {SEED}


def test_the_verdict_is_that_of_the_program_that_made_it(mode: str) -> None:
    report = verify_release(OLD / mode)
    assert report.verdict == VERDICTS[mode]
    assert report.release_id == f"old-{mode}"
    assert ONLY_FIGURES in report.attested
    names = {check.name for check in report.checks}
    assert {"manifest", "files", "voltages", "load privacy", "statement", SEED} <= names
    assert ({"network privacy", "twin tables"} <= names) == (mode == "twin")
    assert "pages" not in names


def test_a_changed_byte_is_found_wherever_it_is(copied: Path) -> None:
    for path in sorted(path for path in copied.rglob("*") if path.is_file()):
        original = path.read_bytes()
        changed = bytearray(original)
        changed[len(original) // 2] ^= 1
        path.write_bytes(changed)
        assert verify_release(copied).verdict == "not intact", path
        path.write_bytes(original)


def test_a_change_of_any_figure_is_found_though_the_digest_was_made_to_fit(copied: Path) -> None:
    """Declared constants that only sentences and certificate repeat are covered by the digest alone."""
    manifest = manifest_of(copied)
    figures = [
        path
        for path in leaves(manifest)
        if path[0] not in ("manifest_sha256", "files")
        and (path[0] != "load_queries" or path[1] in (0, 7))
        and isinstance(value_at(manifest, path), int | float | bool)
    ]
    assert len(figures) > 60
    unnoticed = [path for path in figures if not sealed(copied, with_leaf(manifest, path))]
    assert {path[-1] for path in unnoticed} == DECLARED | {
        "true": {"evidence_required"},
        "twin": {"all_nodes"},
    }[copied.name]


def value_at(manifest: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        manifest = manifest[key]
    return manifest


def test_data_that_were_exchanged_are_found_though_the_hashes_were_made_to_fit(copied: Path) -> None:
    part = copied / "data" / "part-00000.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    manifest = manifest_of(copied)
    manifest["files"]["data/part-00000.parquet"] = hashlib.sha256(content).hexdigest()
    assert "voltages" in sealed(copied, manifest)


def test_another_version_names_the_program_to_use(copied: Path) -> None:
    manifest = manifest_of(copied)
    manifest["format"] = "dp-powerflow manifest, version 1"
    assert "manifest" in sealed(copied, manifest)
    sentence = next(check.sentence for check in verify_release(copied).checks if check.name == "manifest")
    assert "use the program that made it" in sentence


# ------------------------------------------------------------------------------------- versions 4 and 5

NEWER_OLD = [OLD.parent / "format4", OLD.parent / "format5"]
FIGURES = {
    "true": {"power_factor", "bounds", "epsilon", "radius", "spread"},
    "twin": {"power_factor", "epsilon", "change", "step_minutes"},
}


@pytest.fixture(params=NEWER_OLD, ids=lambda path: path.name)
def newer_old(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_a_release_of_version_4_or_5_still_verifies_and_a_changed_figure_is_found(
    mode: str, newer_old: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(newer_old / mode, tmp_path / mode))
    report = verify_release(path)
    assert report.verdict == "release"
    assert ONLY_FIGURES in report.attested
    manifest = manifest_of(path)
    wanted = [
        where
        for where in leaves(manifest)
        if where[0] in ("declared_public", "guarantee") and set(where) & FIGURES[mode]
    ]
    assert len(wanted) > 5
    unnoticed = [where for where in wanted if not sealed(path, with_leaf(manifest, where))]
    assert {where[-1] for where in unnoticed} <= {"epsilon_granted"} | (
        {"epsilon"} if mode == "true" else set()
    )


def test_a_release_cannot_be_dressed_up_as_one_of_version_4_or_5(newer_old: Path, tmp_path: Path) -> None:
    """Its sentences would not be checked: the program that made it is not that of the version."""
    path = Path(shutil.copytree(newer_old / "true", tmp_path / "true"))
    manifest = manifest_of(path)
    manifest["software"]["dp-powerflow"] = __version__
    assert "manifest" in sealed(path, manifest)
    assert MAKER_OF.keys() & {FORMAT} == set()
    assert __version__ not in MAKER_OF.values()


def test_a_manifest_of_version_5_says_nothing_that_its_version_does_not_know(tmp_path: Path) -> None:
    path = Path(shutil.copytree(NEWER_OLD[1] / "twin", tmp_path / "twin"))
    manifest = manifest_of(path)
    assert sealed(path, manifest) == set()
    for section, entry in (
        (manifest["data"], {"connections": None}),
        (manifest["guarantee"]["network"], {"coordinates": "private"}),
    ):
        section |= entry
        assert "manifest" in sealed(path, manifest)
        del section[next(iter(entry))]
    assert sealed(path, manifest) == set()


def test_a_twin_of_version_5_has_dates(tmp_path: Path) -> None:
    path = Path(shutil.copytree(NEWER_OLD[1] / "twin", tmp_path / "twin"))
    manifest = manifest_of(path)
    (path / "days.parquet").unlink()
    del manifest["files"]["days.parquet"]
    manifest["data"] |= {
        "calendar": None,
        "columns": [column for column in manifest["data"]["columns"] if column["file"] != "days.parquet"],
    }
    assert sealed(path, manifest) == {"days"}


def test_connections_put_beside_an_old_release_are_found(tmp_path: Path) -> None:
    path = Path(shutil.copytree(NEWER_OLD[1] / "twin", tmp_path / "twin"))
    corpus = open_corpus(path)
    small, of = ring(corpus.layout.nodes), (corpus.layout, corpus.release_id)
    files = {
        "nodes.parquet": encode_nodes(*of, small.of_nodes(corpus.nodes)),
        "buses.parquet": encode_buses(*of, small),
        "connections.parquet": encode_connections(*of, small),
    }
    manifest = manifest_of(path)
    for name, content in files.items():
        (path / name).write_bytes(content)
        manifest["files"][name] = hashlib.sha256(content).hexdigest()
    assert {"voltages", "connections", "statement"} <= sealed(path, manifest)
