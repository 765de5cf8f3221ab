"""verify: an untouched release passes, and whatever is changed in it is found."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dp_powerflow.manifest.render as rendering
from dp_powerflow._names import LAST_READER, __version__
from dp_powerflow.corpus.gridfm.schema import COUNT_FILE
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.errors import CorpusError, PrivacyError
from dp_powerflow.manifest.build import assemble, read_facts
from dp_powerflow.manifest.model import ReleaseError, parse_manifest, seal
from dp_powerflow.manifest.twin import TwinPolicy
from dp_powerflow.manifest.verify import SEED, read_manifest, verify_release
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.quality import Quality, measure
from support.forgery import Forger
from support.made import Released
from support.manifest_releases import REPORT, TWIN, Made, everything, load_model, make_release, twin_config
from support.tampering import failed, manifest_of, rewrite, sealed

FOUND = {"voltages", "statement"}
LOADS, FEEDER = "loads/part-00001.parquet", "feeder/part-00000.parquet"
NODES, BUSES, CONNECTIONS, DAYS = (f"{name}.parquet" for name in ("nodes", "buses", "connections", "days"))
TABLES = (LOADS, FEEDER, NODES, BUSES, CONNECTIONS, DAYS)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """On the true network; on a twin; with all that may be beside the voltages."""
    root = tmp_path_factory.mktemp("releases")
    return {
        "true": make_release(root / "true", earlier=1),
        "twin": make_release(root / "twin", twin_config(), load_model(), earlier=1),
        "everything": everything(root / "everything"),
    }


@pytest.fixture(scope="module")
def made(releases: dict[str, Made]) -> Made:
    return releases["true"]


@pytest.fixture(scope="module")
def forgers(releases: dict[str, Made]) -> dict[str, Forger]:
    """Each changes the manifest and its digest, and leaves pages and other files alone."""
    return {name: replace(Forger.of(made.path), pages=False) for name, made in releases.items()}


@pytest.fixture
def copied(releases: dict[str, Made], tmp_path: Path) -> Path:
    """Everything, to be changed."""
    return Path(shutil.copytree(releases["everything"].path, tmp_path / "copy"))


def sentence_of(path: Path, name: str) -> str:
    return next(check.sentence for check in verify_release(path).checks if check.name == name)


@pytest.mark.parametrize("kind", ["true", "twin", "everything"])
def test_an_untouched_release_passes_every_check(releases: dict[str, Made], kind: str) -> None:
    report = verify_release(releases[kind].path)
    assert (report.verdict, report.release_id) == ("release", "r-1")
    assert all(check.ok and check.sentence.endswith(".") for check in report.checks)
    assert {"files", "voltages", "load privacy", "statement"} <= {check.name for check in report.checks}
    attested = " ".join(report.attested)
    assert ("not differential privacy" in attested) == (kind == "true")
    assert ("recomputed, not attested" in attested) == (kind != "true")
    assert json.loads(json.dumps(report.to_json()))["verdict"] == "release"


def test_the_epsilon_of_the_network_is_recomputed(releases: dict[str, Made]) -> None:
    sentence = sentence_of(releases["twin"].path, "network privacy")
    assert "epsilon at most 4 at delta 0" in sentence
    assert "changed by 5 %: epsilon at most 4, advantage of the best test at most 0.865" in sentence
    assert "changed by 50 %: epsilon at most 33.3, advantage of the best test at most 1" in sentence
    assert "Not protected: which elements there are" in sentence


# --- files ------------------------------------------------------------------------------------------------
NOT_THERE = ("loads.parquet", "data/part-00002.parquet", "data/notes.txt", "feeder/notes.txt", "twin/a.csv")


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_file_that_does_not_belong_there_is_found(copied: Path, name: str) -> None:
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).write_bytes(b"loads")
    assert "files" in failed(copied)
    assert {"voltages", "files", "manifest", "twin tables"} & sealed(copied)


def test_a_link_in_place_of_a_file_is_found(copied: Path) -> None:
    (copied / "model.json").rename(copied.parent / "elsewhere.json")
    os.symlink(copied.parent / "elsewhere.json", copied / "model.json")
    assert "files" in failed(copied)


def test_a_changed_byte_of_any_file_is_found(copied: Path) -> None:
    files = sorted(path for path in copied.rglob("*.*") if path.is_file())
    assert len(files) > 14
    rng = np.random.default_rng(len(files))
    for path in files:
        original = path.read_bytes()
        places = {0, len(original) - 1, *rng.integers(0, len(original), 2).tolist()}
        flipped = [original[:k] + bytes([original[k] ^ 1]) + original[k + 1 :] for k in sorted(places)]
        for content in (*flipped, original[:-1], original + b"\n", b""):
            path.write_bytes(content)
            assert verify_release(copied).verdict == "not intact", path
        path.unlink()
        assert path.name == "manifest.json" or "files" in failed(copied), path
        path.write_bytes(original)
    assert not failed(copied)


def test_another_quality_page_is_found_though_its_hash_fits(copied: Path) -> None:
    page = copied / "quality.html"
    page.write_bytes(page.read_bytes().replace(b"</h1>", b", and perfect</h1>", 1))
    assert "pages" in sealed(copied)
    assert "quality.html" in sentence_of(copied, "pages")


def test_every_file_is_read_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    read_bytes, parquet = Path.read_bytes, pq.ParquetFile

    def reading(path: Path) -> bytes:
        seen.append(path.relative_to(made.path).as_posix())
        return read_bytes(path)

    looked: list[Any] = []

    def parsing(source: Any, **options: Any) -> Any:
        assert looked or not isinstance(source, str | Path)
        return parquet(source, **options)

    def looking(corpus: Corpus) -> Quality:
        looked.append(corpus.path)  # the figures of the page need files that are known to be sound
        return measure(corpus)

    monkeypatch.setattr(rendering, "measure", looking)
    monkeypatch.setattr(Path, "read_bytes", reading)
    monkeypatch.setattr(pq, "ParquetFile", parsing)
    assert verify_release(made.path).ok
    monkeypatch.undo()
    assert sorted(seen) == sorted(p.relative_to(made.path).as_posix() for p in made.path.rglob("*.*"))


# --- the manifest -----------------------------------------------------------------------------------------


def test_more_noise_than_was_paid_for_is_found_by_the_pages(forgers: dict[str, Forger]) -> None:
    """All of the guarantee made to fit more noise; pages and charge of the ledger stay what they were."""
    manifest = forgers["twin"].manifest
    louder = TwinPolicy.of(twin_config(network={"epsilon": 0.5 * TWIN["epsilon"]}))
    manifest["guarantee"]["network"] = louder.model_dump()
    found = forgers["twin"].found(manifest)
    assert "network privacy" not in found
    assert "pages" in found


def test_no_section_or_entry_can_be_added_or_taken_away(forgers: dict[str, Forger]) -> None:
    for kind, forger in forgers.items():
        for section in forger.manifest:
            if section not in ("manifest_sha256", "files"):
                assert forger.found({k: v for k, v in forger.manifest.items() if k != section}), section
        for places in ((), ("guarantee", "network"), ("data",)):
            manifest = holder = forger.manifest
            for name in places:
                holder = holder[name]
            holder["kappa"] = 7.77
            assert "statement" in forger.found(manifest), (kind, places)
        for name in ("extras", "connections", "calendar"):
            if forger.manifest["data"][name] is not None:
                manifest = forger.manifest
                manifest["data"][name] = None
                assert "statement" in forger.found(manifest)


OUT_OF_RANGE = [
    (("load_queries", 0, "region"), "sphere"),
    (("load_queries", 0, "dimension"), 1.0),
    (("declared_public", "power_factor"), 1.5),
    (("internal_report", "sha256"), "G" * 64),
    (("files", "model.json"), "0" * 63),
    (("release", "id"), "../other"),
    (("guarantee", "loads", "delta"), 1.0),
    (("data", "days"), "5"),
]


def test_an_entry_out_of_range_or_of_another_type_is_named(forgers: dict[str, Forger]) -> None:
    for path, value in OUT_OF_RANGE:
        manifest = forgers["true"].manifest
        holder: Any = manifest
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        with pytest.raises(ReleaseError, match=str(path[-1])):
            parse_manifest(manifest)
        assert "manifest" in forgers["true"].found(manifest)


@pytest.mark.parametrize("version", [2, 7])
def test_a_manifest_of_another_format_is_refused_in_one_sentence_that_names_its_reader(
    copied: Path, version: int
) -> None:
    """Nothing of it is checked, so no sentence of it can pass for one that was."""
    manifest = manifest_of(copied) | {"format": f"dp-powerflow manifest, version {version}"}
    rewrite(copied, manifest, sealed=True)
    assert "dp-powerflow 0.5.0 is the last version that reads earlier formats." in sentence_of(
        copied, "manifest"
    )
    assert verify_release(copied).verdict == "not intact"
    with pytest.raises(ReleaseError, match=r"dp-powerflow 0\.5\.0 is the last version"):
        read_manifest(copied)
    assert __version__ != LAST_READER


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"\xff\xfe", b"{", b'{"format": NaN}', b"[" * 100_000, b'{"files": 3}'],
    ids=["empty", "list", "null", "bytes", "half", "not a number", "deep", "other object"],
)
def test_what_is_no_manifest_is_not_intact_and_raises_nothing(copied: Path, content: bytes) -> None:
    (copied / "manifest.json").write_bytes(content)
    assert verify_release(copied).verdict == "not intact"


def test_assembled_manifests_hold_nothing_but_facts(made: Made) -> None:
    manifest = manifest_of(made.path)
    facts = read_facts(parse_manifest(manifest), made.inputs.model, validate_corpus(made.path))
    assert seal(assemble(facts), manifest["files"]).model_dump() == manifest


def test_a_demonstration_is_intact_and_not_a_release(tmp_path: Path) -> None:
    made = make_release(tmp_path, model=load_model(insecure_seed=True), seed=4)
    report = verify_release(made.path)
    assert report.intact
    assert not report.ok
    assert report.verdict == "demonstration"
    assert [check.name for check in report.failures] == [SEED]


def test_a_directory_that_is_no_release_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="not a directory"):
        verify_release(tmp_path / "nothing")
    with pytest.raises(ReleaseError, match="finished release"):
        verify_release(tmp_path)


# --- the load model, and a forger who makes every page fit ------------------------------------------------


# --- what is beside the voltages --------------------------------------------------------------------------
Change = Callable[[pa.Table], pa.Table]


def cell(column: str, row: int, value: Any) -> Change:
    """Another value in a row; of a day, at its fourth step."""

    def change(table: pa.Table) -> pa.Table:
        field, values = table.schema.field(column), table.column(column).to_pylist()
        values[row] = [*values[row][:3], value, *values[row][4:]] if isinstance(values[row], list) else value
        return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))

    return change


CONTENT: dict[str, tuple[str, Change]] = {
    "generation off the grid": (LOADS, cell("g_kw", 0, -0.0)),
    "a regulator less": (FEEDER, lambda table: table.drop_columns(["r1_tap"])),
    "a pair less, sound in itself": (CONNECTIONS, lambda table: table.slice(1)),
    "no source": (BUSES, lambda table: cell("source", 0, False)(table.take([0, 1, 1]))),
    "no coordinates": (BUSES, lambda table: table.drop_columns(["x", "y"])),
    "phase twice at a bus": (NODES, cell("phase", 0, 2)),
    "base voltages beside the buses": (NODES, lambda t: t.append_column("base_kv", pa.array([2.4] * len(t)))),
    "a temperature that the next day remembers otherwise": (DAYS, cell("temperature_c", 1, 3.25)),
    "fewer degree hours than the mean allows": (DAYS, cell("heating_k", 2, 0.0)),
    "irradiance below zero": (DAYS, cell("irradiance_w_m2", 0, -1.0)),
    "weather that is no number": (DAYS, cell("cooling_k", 0, np.nan)),
    "a date that does not follow": (DAYS, lambda table: table.take([0, 1, 2, 4, 3])),
    "a day off is not marked": (DAYS, cell("off", 0, True)),
    "a day out of order": (DAYS, cell("day", 0, 1)),
    "a holiday that is left out": (DAYS, lambda t: cell("off", 1, False)(cell("holiday", 1, False)(t))),
}


@pytest.mark.parametrize("kind", CONTENT)
def test_content_that_cannot_be_is_found(copied: Path, kind: str) -> None:
    name, change = CONTENT[kind]
    table = change(pq.read_table(copied / name))
    pq.write_table(table, copied / name, row_group_size=len(table), compression="zstd")
    assert FOUND & sealed(copied)
    if name == DAYS and kind != "a holiday that is left out":
        with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
            _ = open_corpus(copied).dates


def test_rewriting_alone_changes_nothing(copied: Path) -> None:
    for name in TABLES:
        table = pq.read_table(copied / name)
        pq.write_table(table, copied / name, row_group_size=len(table), compression="zstd")
    assert sealed(copied) <= {"pages"}  # the croissant repeats hashes


@pytest.mark.parametrize(
    "gone",
    [("loads",), ("feeder",), (LOADS,), (FEEDER,), (BUSES, CONNECTIONS), (BUSES,), (CONNECTIONS,), (DAYS,)],
    ids=" and ".join,
)
def test_what_the_manifest_states_and_is_not_there_is_found(copied: Path, gone: tuple[str, ...]) -> None:
    for name in gone:
        path = copied / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert FOUND & sealed(copied)


def test_coordinates_that_nobody_declared_are_found(copied: Path, tmp_path: Path) -> None:
    """In the files alone, and in the manifest too."""
    hidden = Path(shutil.copytree(everything(tmp_path / "b", coordinates=False).path, tmp_path / "hidden"))
    for name in (BUSES, NODES):
        shutil.copy(copied / name, hidden / name)
    assert "statement" in sealed(hidden)
    manifest = manifest_of(hidden)
    manifest["data"]["connections"]["coordinates"] = True
    assert "statement" in sealed(hidden, manifest)
    manifest = manifest_of(copied)
    manifest["guarantee"]["network"]["coordinates"] = "private"
    assert "statement" in sealed(copied, manifest)


# --- a published twin -------------------------------------------------------------------------------------
@pytest.fixture
def graph(twin_release: Released, tmp_path: Path) -> Path:
    return twin_release.copied(tmp_path)


def test_a_published_twin_is_checked_against_power_flow_and_corpus(graph: Path) -> None:
    assert failed(graph) == {SEED}
    assert "72 scenarios" in sentence_of(graph, "twin tables")
    assert "with the voltages of the corpus" in sentence_of(graph, "twin tables")
    assert sealed(graph) == {SEED}


def scaled_column(table: str, column: str) -> Callable[[Path], None]:
    def change(graph: Path) -> None:
        file = next((graph / "twin" / f"{table}.parquet" / "scenario_partition=0").iterdir())
        content = pq.ParquetFile(file).read()
        values = pa.array(content[column].to_numpy() * 1.001)
        pq.write_table(content.set_column(content.schema.get_field_index(column), column, values), file)

    return change


NOT_TOGETHER: dict[str, Callable[[Path], object]] = {
    "a table less": lambda graph: shutil.rmtree(graph / "twin" / "y_bus_data.parquet"),
    "no tables": lambda graph: shutil.rmtree(graph / "twin"),
    "fewer scenarios": lambda graph: (graph / "twin" / COUNT_FILE).write_text("20"),
    "a count that is none": lambda graph: (graph / "twin" / COUNT_FILE).write_text("many"),
    "other loads": scaled_column("bus_data", "Pd"),
    "another branch": scaled_column("branch_data", "Yff_i"),
    "another admittance": scaled_column("y_bus_data", "G"),
    "other voltages": scaled_column("bus_data", "Vm"),
}


@pytest.mark.parametrize("change", NOT_TOGETHER)
def test_tables_that_do_not_hold_together_are_found(graph: Path, change: str) -> None:
    NOT_TOGETHER[change](graph)
    assert "twin tables" in sealed(graph)


# --- verify --private -------------------------------------------------------------------------------------
def change_entry(made: Made, section: str, name: str, value: object) -> None:
    manifest = holder = manifest_of(made.path)
    for key in section.split("."):
        holder = holder[key]
    holder[name] = value
    rewrite(made.path, manifest, sealed=True)


def another_report(made: Made) -> None:
    PrivateState.inspect(made.state).write_internal("r-1", "report.json", REPORT + b" ")


def no_ledger(made: Made) -> None:
    for name in ("ledger.sqlite", "ledger.anchor"):
        (made.state / name).unlink()


OPENED: dict[str, tuple[Callable[[Made], object], str]] = {
    "another report": (another_report, "commitment"),
    "no report": (lambda made: (made.state / "internal/r-1/report.json").unlink(), "commitment"),
    "another commitment": (
        lambda made: change_entry(made, "internal_report", "sha256", "0" * 64),
        "commitment",
    ),
    "a composition that the ledger does not know": (
        lambda made: change_entry(made, "composition.loads.spent", "rho", 1e9),
        "ledger",
    ),
    "no ledger": (no_ledger, "ledger"),
    "no release id": (lambda made: change_entry(made, "release", "id", 3), "commitment"),
}


@pytest.mark.parametrize("kind", OPENED)
def test_what_contradicts_the_private_state_is_found(tmp_path: Path, kind: str) -> None:
    made, (change, found) = make_release(tmp_path, earlier=1), OPENED[kind]
    change(made)
    assert found in {check.name for check in verify_private(made.path, made.state).failures}


def test_an_auditor_opens_the_commitment_and_asks_the_ledger(
    made: Made, releases: dict[str, Made], tmp_path: Path
) -> None:
    """The evidence is made again too, given the config: `test_twin_release`."""
    report = verify_private(made.path, made.state)
    assert report.ok
    assert {"commitment", "ledger"} <= {check.name for check in report.checks}
    elsewhere = verify_private(made.path, make_release(tmp_path / "other").state)
    assert {"commitment", "ledger"} <= {check.name for check in elsewhere.failures}
    other_twin = make_release(tmp_path / "twin", twin_config(network={"id": "tw-2"}), load_model(), earlier=1)
    assert "ledger" in {c.name for c in verify_private(other_twin.path, releases["twin"].state).failures}
    assert verify_private(other_twin.path, other_twin.state).ok
    with pytest.raises(PrivacyError):
        verify_private(made.path, tmp_path / "nothing")
