"""Powers and states beside the voltages: written, read back, resumed after a kill, checked value by value."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES
from dp_powerflow.corpus import storage
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import NOTHING, ExtrasLayout, released_columns
from dp_powerflow.corpus.storage import Location, file_hashes, put
from dp_powerflow.corpus.tables import DayTable
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import EXTRAS, LAYOUT, RELEASE_ID, beside, voltages, write_corpus, write_parts

HALF_A_STEP = 0.5 / 1024
LOADS, FEEDER = "loads/part-00001.parquet", "feeder/part-00001.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("extras") / "release", extras=EXTRAS)


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
    corpus, wanted = open_corpus(sound), beside(LAYOUT, range(LAYOUT.days))[name]
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


def test_a_corpus_of_voltages_says_so_and_is_read_as_before(sound: Path, tmp_path: Path) -> None:
    corpus = open_corpus(sound)
    assert corpus.holds == ("voltages", *EXTRAS.holds)
    assert np.array_equal(corpus.loads([3], ["n5", "n0"]), corpus.loads([3])[:, :, [5, 0]])
    plain = open_corpus(write_corpus(tmp_path / "plain"))
    assert plain.holds == ("voltages",)
    assert np.array_equal(plain.voltages(), open_corpus(sound).voltages())
    for name in EXTRAS.holds:
        with pytest.raises(CorpusError, match=r"publishes voltages only; .*network\.also_publish"):
            read(plain, name)


@pytest.mark.parametrize(
    "extras",
    [
        ExtrasLayout(loads=True),
        ExtrasLayout(loads=True, generation=True),
        ExtrasLayout(source_phases=1),
        ExtrasLayout(capacitors=1),
        ExtrasLayout(loads=True, source_phases=6, capacitors=100),
    ],
    ids=lambda extras: "-".join(extras.holds),
)
def test_every_choice_of_what_is_published_is_found_again(tmp_path: Path, extras: ExtrasLayout) -> None:
    path = write_corpus(tmp_path / "release", extras=extras)
    report = validate_corpus(path)
    assert report.ok
    assert report.extras == open_corpus(path).extras == extras
    for name in extras.holds:
        assert read(open_corpus(path), name).shape == extras.shape_of(name, LAYOUT.days, LAYOUT)
    absent = next(name for name in EXTRAS.holds if name not in extras.holds)
    with pytest.raises(CorpusError, match=f"publishes voltages and {', '.join(extras.holds)}; "):
        read(open_corpus(path), absent)
    assert not CorpusWriter(path, LAYOUT, RELEASE_ID, NOTHING).finished


def test_tables_take_the_loads_as_columns(sound: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    corpus = open_corpus(sound)
    assert list(corpus.to_pandas([2]).columns) == ["day", "node", "step", "vm_pu", "va_deg"]
    table = corpus.to_pandas([2], ["n4"], with_loads=True)
    assert list(table.columns)[-4:] == ["p_kw", "q_kvar", "g_kw", "g_kvar"]
    power = table["p_kw"].to_numpy(np.float64) + 1j * table["q_kvar"].to_numpy(np.float64)
    assert np.abs(power - corpus.loads([2], [4]).ravel()).max() < 1e-4
    dataset = corpus.to_xarray([2], ["n4"], with_loads=True)
    assert np.array_equal(table["g_kvar"].to_numpy(), dataset["g_kvar"].to_numpy().ravel())
    assert dataset["p_kw"].attrs["units"] == "kW"


def test_the_zarr_store_holds_all_that_is_published(tmp_path: Path) -> None:
    xarray: Any = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    days = DayTable(Calendar.starting(dt.date(2031, 5, 1), LAYOUT.days))
    corpus = open_corpus(write_corpus(tmp_path / "r", extras=EXTRAS, days=days))
    store = corpus.to_zarr(tmp_path / "z" / "corpus.zarr")
    with pytest.raises(CorpusError, match="exists already"):
        corpus.to_zarr(store)
    assert [path.name for path in store.parent.iterdir()] == ["corpus.zarr"]
    with xarray.open_zarr(store, consolidated=True) as data:
        # Zeros stay zeros, of the type that they had: no value stands for a hole.
        types = (data["tap"].dtype, data["closed"].dtype, data["va_deg"].attrs["units"])
        assert types == ("i2", "?", "degree")
        for name, values in {
            "vm_pu": corpus.phasors().vm_pu,
            "q_kvar": corpus.loads().imag,
            "g_kw": corpus.generation().real,
            "head_p_kw": corpus.head().real,
            "tap": corpus.taps(),
            "closed": corpus.capacitors(),
            "locked": corpus.locked(),
            "scaled_down": corpus.scaled_down(),
            "date": corpus.dates,
            "off": days.calendar.off,
        }.items():
            np.testing.assert_array_equal(data[name].values, values)


# ------------------------------------------------------------------------------------------- the writer
def test_equal_powers_give_equal_bytes_and_low_order_bits_are_not_released(
    writer: CorpusWriter, tmp_path: Path
) -> None:
    days = LAYOUT.days_of(0)
    v, extras = voltages(LAYOUT, days), beside(LAYOUT, days)
    written = writer.write_part(0, v, extras)
    assert list(written) == [f"{folder}/part-00000.parquet" for folder in ("loads", "feeder", "data")]
    assert written == file_hashes(writer.partial)
    on_grid = np.round(extras["head"])
    nudged = extras | {"loads": extras["loads"] * (1 + 1e-15), "head": on_grid + 1e-7}
    assert writer.write_part(0, v, extras | {"head": on_grid}) == writer.write_part(0, v, nudged)


def test_only_what_the_writer_was_made_for_is_written(writer: CorpusWriter, tmp_path: Path) -> None:
    days = LAYOUT.days_of(0)
    v, extras = voltages(LAYOUT, days), beside(LAYOUT, days)
    wrong: dict[str, dict[str, np.ndarray]] = {
        "needs loads, generation, head, taps, capacitors, locked, scaled_down, and got nothing": {},
        "and got loads, generation, taps": {name: extras[name] for name in extras if name != "head"},
        "needs taps of shape": extras | {"taps": extras["taps"][:, :-1]},
        "a tap is not a whole number": extras | {"taps": extras["taps"] + 40_000},
        "the capacitors of a corpus are 1 or 0": extras | {"capacitors": extras["capacitors"] + 1},
    }
    for words, given in wrong.items():
        with pytest.raises(CorpusError, match=words):
            writer.write_part(0, v, given)
    assert not file_hashes(writer.partial)
    plain = CorpusWriter(tmp_path / "plain", LAYOUT, RELEASE_ID)
    plain.prepare()
    with pytest.raises(CorpusError, match="needs nothing, and got loads"):
        plain.write_part(0, v, extras)


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

    monkeypatch.setattr(storage, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        write_parts(writer)
    monkeypatch.setattr(storage, "put", put)
    assert writer.missing_parts() == tuple(range(survived // 3, LAYOUT.n_parts))
    assert not writer.finished
    write_corpus(writer.target, extras=EXTRAS)  # type: ignore[type-var]
    assert file_hashes(writer.target) == file_hashes(sound)


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


# ---------------------------------------------------------------------------------------- the documentation
def test_the_page_of_the_corpus_has_every_column_and_no_other() -> None:
    extras = ExtrasLayout(
        loads=True, generation=True, source_phases=1, regulators=1, capacitors=1, scaled_down=True
    )
    columns = [*released_columns(LAYOUT, extras, weather=FEATURES, coordinates=True)]
    page = (Path(__file__).parents[2] / "docs" / "reference" / "corpus.md").read_text(encoding="utf-8")
    stated: dict[str, str] = {}
    for row in page[: page.index("## The public grid")].splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 5 and cells[1].startswith("`") and cells[2] != "file":
            names = re.findall(r"`([a-z0-9_]+)`", cells[1])
            kinds = (cells[2].split(", ") * len(names))[: len(names)]
            stated |= dict(zip(names, kinds, strict=True))
    words = {"string": "text", "double": "float64"}
    types = {c.name: f"list of T {c.value}" if c.steps else words.get(c.value, c.value) for c in columns}
    assert stated == {name: kind for name, kind in types.items() if name not in ("id", "phase")}
    assert "`id` (text" in page
    assert "`phase` (int32)" in page
