"""A release with everything beside its voltages: whatever is changed in its files is found."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.almanac.weather import FEATURES
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import CorpusError
from dp_powerflow.manifest.verify import verify_release
from pipeline.test_days_of_release import FIRST, HOLIDAYS, weather_file
from support.corpora import EXTRAS, ring
from support.manifest_releases import Made, load_model, make_release, twin_config
from support.tampering import failed, leaves, manifest_of, rewrite, sealed, with_leaf

FOUND = {"voltages", "statement"}
LOADS, FEEDER = "loads/part-00001.parquet", "feeder/part-00000.parquet"
NODES, BUSES, CONNECTIONS, DAYS = (f"{name}.parquet" for name in ("nodes", "buses", "connections", "days"))
TABLES = (LOADS, FEEDER, NODES, BUSES, CONNECTIONS, DAYS)


def everything(root: Path, release_id: str = "r-1") -> Made:
    """Powers, states, connections with coordinates, dates with weather."""
    root.mkdir(parents=True, exist_ok=True)
    weather_file(root)
    weather = {"path": root / "weather.csv", "time": "date", "temperature": "air", "irradiance": "ghi"}
    chosen = twin_config(
        network={"coordinates": "public"},
        calendar={"holidays": HOLIDAYS},
        weather=weather,
        release={"id": release_id, "first_day": FIRST},
    )
    found = ring(4, coordinates=True)
    return make_release(root, chosen, load_model(), connections=found, extras=EXTRAS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return everything(tmp_path_factory.mktemp("made"))


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def test_it_verifies(made: Made) -> None:
    report = verify_release(made.path)
    assert report.verdict == "release", report.failures


def test_a_changed_byte_of_any_file_is_found(copied: Path) -> None:
    files = sorted(path for path in copied.rglob("*.*") if path.is_file())
    assert len(files) > 14
    rng = np.random.default_rng(len(files))
    for path in files:
        original = path.read_bytes()
        places = {0, len(original) // 2, len(original) - 1, *rng.integers(0, len(original), 3).tolist()}
        flipped = [original[:k] + bytes([original[k] ^ 1]) + original[k + 1 :] for k in sorted(places)]
        for content in (*flipped, original[:-1], original + b"\n", b""):
            path.write_bytes(content)
            assert verify_release(copied).verdict == "not intact", path
        path.unlink()
        assert path.name == "manifest.json" or "files" in failed(copied), path
        path.write_bytes(original)
    assert not failed(copied)


def cell(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Another value in a row; of a day, at its fourth step."""

    def change(table: pa.Table) -> pa.Table:
        field, values = table.schema.field(column), table.column(column).to_pylist()
        values[row] = [*values[row][:3], value, *values[row][4:]] if isinstance(values[row], list) else value
        return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))

    return change


def exchanged(table: pa.Table) -> pa.Table:
    return table.take([1, 0, *range(2, len(table))])


def hiding_words(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"of": "the network"})


CONTENT: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "load off the grid": (LOADS, cell("q_kvar", 0, 0.00049)),
    "load that is no number": (LOADS, cell("p_kw", 0, np.nan)),
    "generation off the grid": (LOADS, cell("g_kw", 0, -0.0)),
    "head off the grid": (FEEDER, cell("s2_p_kw", 0, 1.0001)),
    "head that is infinite": (FEEDER, cell("s0_q_kvar", 0, np.inf)),
    "nodes exchanged": (LOADS, exchanged),
    "days exchanged": (FEEDER, exchanged),
    "a node less": (LOADS, lambda table: table.slice(1)),
    "a regulator less": (FEEDER, lambda table: table.drop_columns(["r1_tap"])),
    "words beside the loads": (LOADS, hiding_words),
    "pair with itself": (CONNECTIONS, cell("to_bus", 0, 0)),
    "kind that is none": (CONNECTIONS, cell("kind", 0, "rope")),
    "pairs out of order": (CONNECTIONS, exchanged),
    "pair of no bus": (CONNECTIONS, cell("to_bus", 0, 7)),
    "bus cut off": (CONNECTIONS, lambda table: table.slice(2)),
    "bus renamed": (BUSES, cell("bus", 0, "b7")),
    "no source": (BUSES, lambda table: cell("source", 0, False)(table.take([0, 1, 1]))),
    "node at no bus": (NODES, cell("bus", 0, "b9")),
    "phase twice at a bus": (NODES, cell("phase", 0, 2)),
    "words beside the buses": (BUSES, hiding_words),
    "coordinates that are none": (BUSES, cell("x", 0, np.nan)),
    "base voltages beside the buses": (
        NODES,
        lambda table: table.append_column("base_kv", pa.array([2.4] * len(table))),
    ),
    "a temperature that the next day remembers otherwise": (DAYS, cell("temperature_c", 1, 3.25)),
    "fewer degree hours than the mean allows": (DAYS, cell("heating_k", 2, 0.0)),
    "irradiance below zero": (DAYS, cell("irradiance_w_m2", 0, -1.0)),
    "weather that is no number": (DAYS, cell("cooling_k", 0, np.nan)),
    "a date that does not follow": (DAYS, lambda table: table.take([0, 1, 2, 4, 3])),
    "a day off is not marked": (DAYS, cell("off", 0, True)),
    "a day out of order": (DAYS, cell("day", 0, 1)),
    "a holiday that is left out": (
        DAYS,
        lambda table: cell("off", 1, False)(cell("holiday", 1, False)(table)),
    ),
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


@pytest.mark.parametrize("section", ["extras", "connections", "calendar"])
def test_what_is_there_and_the_manifest_does_not_state_is_found(copied: Path, section: str) -> None:
    manifest = manifest_of(copied)
    manifest["data"][section] = None
    assert "statement" in sealed(copied, manifest)


def test_tables_of_another_release_are_found(copied: Path, tmp_path: Path) -> None:
    other = everything(tmp_path / "other", "r-2")
    for names in (("data", NODES), ("loads", "feeder"), (BUSES, CONNECTIONS), (DAYS,)):
        again = Path(shutil.copytree(copied, tmp_path / names[0].removesuffix(".parquet")))
        for name in names:
            place = other.path / name
            if place.is_dir():
                shutil.copytree(place, again / name, dirs_exist_ok=True)
            else:
                shutil.copy(place, again / name)
        assert FOUND & sealed(again), names


def test_any_entry_that_is_changed_is_found_though_the_digest_was_made_to_fit(copied: Path) -> None:
    manifest = manifest_of(copied)
    parts = {("data", name) for name in ("extras", "connections", "calendar")}
    paths = [path for path in leaves(manifest) if path[:2] in parts]
    assert len(paths) > 15 + len(FEATURES)
    for path in (*paths, ("guarantee", "network", "coordinates")):
        rewrite(copied, with_leaf(manifest, path), sealed=True)
        assert failed(copied), path


VALUES: tuple[Any, ...] = (None, [], {}, "loads", 0)


def test_values_of_any_kind_in_what_is_stated_of_tables_raise_nothing(copied: Path) -> None:
    manifest = manifest_of(copied)
    places = [("extras", "holds"), *(("connections", name) for name in ("buses", "kinds", "pairs"))]
    for section, name in places:
        for value in VALUES:
            changed = copy.deepcopy(manifest)
            changed["data"][section][name] = value
            rewrite(copied, changed, sealed=True)
            assert failed(copied), (section, name, value)
    assert json.loads(json.dumps(manifest)) == manifest


@pytest.mark.parametrize("name", ["feeder/notes.txt", "loads.parquet", "data/notes.txt", "notes/loads.csv"])
def test_a_file_that_does_not_belong_there_is_found(copied: Path, name: str) -> None:
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).write_text("the network")
    assert {"voltages", "files", "manifest"} & sealed(copied)
