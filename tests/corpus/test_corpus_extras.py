"""Powers and states beside the voltages: written, read back, resumed after a kill, checked value by value."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus import writer as writing
from dp_powerflow.corpus.grid import POWER_MAX_KW, power_on_grid, round_power
from dp_powerflow.corpus.parts import PartExtras
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import NOTHING, ExtrasLayout
from dp_powerflow.corpus.storage import Location, RemotePath, file_hashes, put
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import EXTRAS, LAYOUT, RELEASE_ID, beside, voltages, write_corpus, write_parts

CHILD = Path(__file__).parents[1] / "support" / "corpus_child.py"
HALF_A_STEP = 0.5 / 1024
LOADS, FEEDER = "loads/part-00001.parquet", "feeder/part-00001.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("extras") / "release", extras=EXTRAS)


@pytest.fixture
def release(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "release"))


@pytest.fixture
def writer(tmp_path: Path) -> CorpusWriter:
    made = CorpusWriter(tmp_path / "release", LAYOUT, RELEASE_ID, EXTRAS)
    made.prepare()
    return made


# ------------------------------------------------------------------------------------- written and read back
def read(corpus: Corpus, name: str, **which: Any) -> np.ndarray:
    found: np.ndarray = getattr(corpus, name)(**which)
    return found


@pytest.mark.parametrize("name", EXTRAS.holds)
def test_what_was_written_is_read_back_up_to_the_grid(sound: Path, name: str) -> None:
    corpus, wanted = open_corpus(sound), beside(LAYOUT, range(LAYOUT.days)).given[name]
    found = read(corpus, name)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    difference = np.asarray(found.astype(complex) - wanted)
    if found.dtype.kind == "c":
        assert max(np.abs(difference.real).max(), np.abs(difference.imag).max()) <= HALF_A_STEP
        assert np.array_equal(np.rint(found.real * 1024), found.real * 1024)
    else:
        assert not difference.any()
    assert np.array_equal(read(corpus, name, days=[9, 0, 4]), found[[9, 0, 4]])


def test_nodes_are_chosen_by_position_or_id(sound: Path) -> None:
    corpus = open_corpus(sound)
    assert np.array_equal(corpus.loads([3], ["n5", "n0"]), corpus.loads([3])[:, :, [5, 0]])
    assert np.array_equal(corpus.generation([3], [6]), corpus.generation([3])[:, :, [6]])


def test_a_corpus_says_what_it_holds(sound: Path) -> None:
    corpus = open_corpus(sound)
    assert corpus.holds == ("voltages", *EXTRAS.holds)
    assert EXTRAS.holds == ("loads", "generation", "head", "taps", "capacitors", "locked", "mended")
    assert corpus.extras == EXTRAS


def test_a_corpus_of_voltages_says_so_and_is_read_as_before(sound: Path, tmp_path: Path) -> None:
    plain = open_corpus(write_corpus(tmp_path / "plain"))
    assert plain.holds == ("voltages",)
    assert np.array_equal(plain.voltages(), open_corpus(sound).voltages())
    for name in EXTRAS.holds:
        with pytest.raises(CorpusError, match=r"publishes voltages only; .*network\.also_publish"):
            read(plain, name)


def test_what_a_release_lacks_is_named(tmp_path: Path) -> None:
    corpus = open_corpus(write_corpus(tmp_path / "release", extras=ExtrasLayout(sources=3)))
    assert corpus.holds == ("voltages", "head")
    assert not (tmp_path / "release" / "loads").exists()
    with pytest.raises(CorpusError, match="publishes voltages and head; "):
        corpus.taps()


@pytest.mark.parametrize(
    "extras",
    [
        ExtrasLayout(loads=True),
        ExtrasLayout(loads=True, generation=True),
        ExtrasLayout(sources=1),
        ExtrasLayout(regulators=3),
        ExtrasLayout(capacitors=1),
        ExtrasLayout(loads=True, sources=6, capacitors=100),
    ],
    ids=lambda extras: "-".join(extras.holds),
)
def test_every_choice_of_what_is_published_is_found_again(tmp_path: Path, extras: ExtrasLayout) -> None:
    path = write_corpus(tmp_path / "release", extras=extras)
    report = validate_corpus(path)
    assert report.ok
    assert report.extras.layout == open_corpus(path).extras == extras
    for name in extras.holds:
        assert read(open_corpus(path), name).shape == extras.shape_of(name, LAYOUT.days, LAYOUT)


def test_tables_take_the_loads_as_columns(sound: Path) -> None:
    pytest.importorskip("pandas")
    corpus = open_corpus(sound)
    assert list(corpus.to_pandas([2]).columns) == ["day", "node", "step", "vm_pu", "va_deg"]
    table = corpus.to_pandas([2], ["n4"], with_loads=True)
    assert list(table.columns)[-4:] == ["p_kw", "q_kvar", "g_kw", "g_kvar"]
    power = table["p_kw"].to_numpy(np.float64) + 1j * table["q_kvar"].to_numpy(np.float64)
    assert np.abs(power - corpus.loads([2], [4]).ravel()).max() < 1e-4


def test_other_containers_take_the_loads_too(sound: Path) -> None:
    pytest.importorskip("polars")
    pytest.importorskip("xarray")
    corpus = open_corpus(sound)
    frame, dataset = corpus.to_polars([1], with_loads=True), corpus.to_xarray([1], with_loads=True)
    assert np.array_equal(
        frame["g_kvar"].to_numpy(), dataset["g_kvar"].transpose("day", "node", "step").to_numpy().ravel()
    )
    assert dataset["p_kw"].attrs["units"] == "kW"


# --------------------------------------------------------------------------------------------- the grid
def test_every_stored_power_names_one_grid_point() -> None:
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-4, np.log10(POWER_MAX_KW), 200_000)
    near = np.array([16_384.0, 16_383.9994, 16_383.9996, 16_384.0008, POWER_MAX_KW])
    power = np.concatenate([sizes, -sizes, near, [0.0, -0.0, -1e-9]])
    stored = round_power(power)
    assert power_on_grid(stored).all()
    error = np.abs(stored.astype(np.float64) - power)
    assert np.all(
        error <= np.where(np.abs(power) < 16_384, HALF_A_STEP, 2.0**-24 * np.abs(power) + HALF_A_STEP)
    )
    assert np.array_equal(round_power(stored.astype(np.float64)), stored)
    assert not np.signbit(stored[stored == 0]).any()


def test_grid_points_are_stored_exactly_below_16384_kw() -> None:
    for first in (0.0, 0.5, 1.0, 1000.0, 16_383.0):
        points = first + np.arange(1024) / 1024
        assert np.array_equal(round_power(points).astype(np.float64), points)


@pytest.mark.parametrize("power", [np.nan, np.inf, -np.inf, 1_073_741_825.0, -2e9])
def test_a_power_that_is_none_is_refused(power: float) -> None:
    with pytest.raises(CorpusError, match="not a finite number of at most 1,073,741,824 kW"):
        round_power(np.array([1.0, power]))


@pytest.mark.parametrize("power", [0.0005, 1.0004, -0.0, np.nan, np.inf, 100.001, 2e9])
def test_numbers_off_the_grid_are_told(power: float) -> None:
    assert power_on_grid(np.array([power, 1.0], dtype=np.float32)).tolist() == [False, True]


# ------------------------------------------------------------------------------------------- the writer
def test_equal_powers_give_equal_bytes_and_low_order_bits_are_not_released(
    writer: CorpusWriter, tmp_path: Path
) -> None:
    days = LAYOUT.days_of(0)
    v, extras = voltages(LAYOUT, days), beside(LAYOUT, days)
    written = writer.write_part(0, v, extras)
    assert list(written) == [f"{folder}/part-00000.parquet" for folder in ("loads", "feeder", "data")]
    assert written == file_hashes(writer.partial)
    loads, head = extras.loads, extras.head
    assert isinstance(loads, np.ndarray)
    assert head is not None
    on_grid = np.round(head)
    nudged = replace(extras, loads=loads * (1 + 1e-15), head=on_grid + 1e-7)
    assert writer.write_part(0, v, replace(extras, head=on_grid)) == writer.write_part(0, v, nudged)


def test_only_what_the_writer_was_made_for_is_written(writer: CorpusWriter, tmp_path: Path) -> None:
    days = LAYOUT.days_of(0)
    v, extras = voltages(LAYOUT, days), beside(LAYOUT, days)
    taps, capacitors = extras.taps, extras.capacitors
    assert taps is not None
    assert capacitors is not None
    wrong: dict[str, PartExtras | None] = {
        "needs loads, generation, head, taps, capacitors, locked, mended, and got nothing": None,
        "and got loads, generation, taps": replace(extras, head=None),
        "needs taps of shape": replace(extras, taps=taps[:, :-1]),
        "a tap is not a whole number": replace(extras, taps=taps + 40_000),
        "the capacitors of a corpus are 1 or 0": replace(extras, capacitors=capacitors + 1),
    }
    for words, given in wrong.items():
        with pytest.raises(CorpusError, match=words):
            writer.write_part(0, v, given)
    assert not file_hashes(writer.partial)
    plain = CorpusWriter(tmp_path / "plain", LAYOUT, RELEASE_ID)
    plain.prepare()
    with pytest.raises(CorpusError, match="needs nothing, and got loads"):
        plain.write_part(0, v, extras)


@pytest.mark.parametrize("folder", ["loads", "feeder", "data"])
def test_no_other_file_gets_into_the_folders_of_the_parts(writer: CorpusWriter, folder: str) -> None:
    with pytest.raises(CorpusError, match="relative path outside"):
        writer.add_file(f"{folder}/note.txt", b"")


@pytest.mark.parametrize("survived", range(9))
def test_a_run_killed_between_the_files_of_a_part_resumes_to_the_same_bytes(
    writer: CorpusWriter, sound: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    left = survived

    def killed(place: Location, content: bytes, **options: Any) -> str:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return put(place, content, **options)

    monkeypatch.setattr(writing, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        write_parts(writer)
    monkeypatch.setattr(writing, "put", put)
    assert writer.missing_parts() == tuple(range(survived // 3, LAYOUT.n_parts))
    assert not writer.finished
    write_corpus(writer.target, extras=EXTRAS)  # type: ignore[type-var]
    assert file_hashes(writer.target) == file_hashes(sound)


@pytest.mark.slow
def test_a_process_killed_at_any_operation_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    environment = os.environ | {"CORPUS_CHILD_EXTRAS": "1"}

    def run(target: Path, *kill_at: object) -> int:
        command = [sys.executable, str(CHILD), str(target), *map(str, kill_at)]
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode

    reference, target = tmp_path / "reference", tmp_path / "release"
    assert run(reference) == 0
    kills = 0
    for operation in range(4, 400, 13):
        if run(target, operation) == 0:
            break
        kills += 1
        assert not target.exists() or file_hashes(target) == file_hashes(reference)
        shutil.rmtree(target, ignore_errors=True)
    assert kills >= 3
    assert file_hashes(target) == file_hashes(reference)
    assert run(tmp_path / "never", 10) == -signal.SIGKILL


def test_a_part_that_lost_a_file_is_written_again(writer: CorpusWriter) -> None:
    write_parts(writer)
    assert writer.missing_parts() == ()
    (writer.partial / "loads/part-00000.parquet").unlink()
    (writer.partial / "feeder/part-00002.parquet").write_bytes(b"")
    assert writer.missing_parts() == (0, 2)
    with pytest.raises(CorpusError, match="not complete, missing: 2 of 3 parts"):
        writer.finish()


@pytest.mark.parametrize("other", [NOTHING, ExtrasLayout(loads=True), replace(EXTRAS, regulators=3)])
def test_another_choice_under_the_same_id_is_refused(writer: CorpusWriter, other: ExtrasLayout) -> None:
    write_parts(writer)
    with pytest.raises(CorpusError, match="parts of another corpus under the same release id"):
        CorpusWriter(writer.target, LAYOUT, RELEASE_ID, other).prepare()


def test_a_finished_corpus_with_other_extras_is_not_this_one(sound: Path) -> None:
    assert CorpusWriter(sound, LAYOUT, RELEASE_ID, EXTRAS).finished
    assert not CorpusWriter(sound, LAYOUT, RELEASE_ID, NOTHING).finished


def test_a_corpus_at_a_url_has_the_same_bytes_and_resumes(sound: Path) -> None:
    pytest.importorskip("fsspec")
    target = RemotePath("memory://extras/release")
    begun = CorpusWriter(target, LAYOUT, RELEASE_ID, EXTRAS)
    begun.prepare()
    write_parts(begun)
    (target / LOADS).unlink()
    again = CorpusWriter(target, LAYOUT, RELEASE_ID, EXTRAS)
    again.prepare()
    assert again.missing_parts() == (1,)
    write_corpus(target, extras=EXTRAS)
    assert file_hashes(target) == file_hashes(sound)
    corpus = open_corpus(str(target))
    assert corpus.holds == open_corpus(sound).holds
    assert np.array_equal(corpus.head([10]), open_corpus(sound).head([10]))
    assert validate_corpus(target).ok
    (target / FEEDER).unlink()
    assert validate_corpus(target).problems == ("1 of 3 parts are missing in feeder/.",)


# ------------------------------------------------------------------------------------------- validation
def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=max(1, len(table)), compression="zstd")


def with_value(column: str, value: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index, field = table.schema.get_field_index(column), table.schema.field(column)
        values = table.column(column).combine_chunks().flatten().to_numpy(zero_copy_only=False).copy()
        values[17] = value
        made = pa.FixedSizeListArray.from_arrays(pa.array(values), type=field.type)
        return table.set_column(index, field, made)

    return change


def problem(release: Path) -> str:
    (found,) = validate_corpus(release).problems
    return found


def test_a_sound_corpus_has_no_problems(sound: Path) -> None:
    report = validate_corpus(sound)
    assert report.ok
    assert report.extras.layout == EXTRAS
    assert report.extras.n_powers == LAYOUT.days * LAYOUT.steps * (2 * LAYOUT.nodes + 3)
    assert {LOADS, FEEDER} <= set(report.hashes)


@pytest.mark.parametrize("name", [LOADS, FEEDER])
def test_rewriting_alone_changes_nothing(release: Path, name: str) -> None:
    rewrite(release / name, lambda table: table)
    assert validate_corpus(release).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 1.0005, 2e9])
@pytest.mark.parametrize(("name", "column"), [(LOADS, "p_kw"), (LOADS, "g_kvar"), (FEEDER, "s1_q_kvar")])
def test_one_value_off_the_grid_is_found(release: Path, name: str, column: str, value: float) -> None:
    rewrite(release / name, with_value(column, value))
    assert problem(release) == f"{name}: 1 values of days 4 to 7 are not on the public grid."


CHANGES: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    "rows exchanged": (LOADS, lambda t: t.take([1, 0, *range(2, len(t))]), "every node exactly once"),
    "days exchanged": (FEEDER, lambda t: t.take([1, 0, *range(2, len(t))]), "not there exactly once"),
    "row missing": (LOADS, lambda t: t.slice(1), "rows or row groups are missing"),
    "day missing": (FEEDER, lambda t: t.slice(1), "rows or row groups are missing"),
    "column missing": (FEEDER, lambda t: t.drop_columns(["r1_tap"]), "columns, types or metadata"),
    "column more": (LOADS, lambda t: t.append_column("x", t.column("node")), "columns, types or metadata"),
    "hidden words": (FEEDER, lambda t: t.replace_schema_metadata({"a": "b"}), "columns, types or metadata"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_part_of_another_shape_is_found(release: Path, kind: str) -> None:
    name, change, words = CHANGES[kind]
    rewrite(release / name, change)
    found = problem(release)
    assert found.startswith(f"{name}: ")
    assert words in found


def test_damage_foreign_and_missing_files_are_found(release: Path) -> None:
    content = (release / LOADS).read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"PAR1" * 50):
        (release / LOADS).write_bytes(damaged)
        assert problem(release) == f"{LOADS} is damaged or not a Parquet file."
    shutil.copy(release / "loads/part-00000.parquet", release / LOADS)
    assert "columns, types or metadata are not those of this part" in problem(release)
    (release / LOADS).unlink()
    assert problem(release) == "1 of 3 parts are missing in loads/."
    (release / LOADS).write_bytes(content)
    (release / "feeder" / "notes.txt").write_text("x")
    assert problem(release) == "feeder/notes.txt does not belong to the corpus."


def test_a_folder_without_its_first_part_is_found(release: Path) -> None:
    (release / "feeder/part-00000.parquet").unlink()
    assert problem(release) == "feeder/ does not hold its first part."


def test_a_damaged_first_part_is_one_sentence(release: Path) -> None:
    (release / "loads/part-00000.parquet").write_bytes(b"PAR1")
    assert "cannot be read as part of a corpus" in problem(release)
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        open_corpus(release).loads()
    assert open_corpus(release).voltages([0]).shape == (1, LAYOUT.steps, LAYOUT.nodes)
