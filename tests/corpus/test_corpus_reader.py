"""Every reader gives the voltages that were written, to the public grid."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dp_powerflow.corpus.grid import Phasors, round_to_grid
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import CorpusLayout, part_name
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.errors import CorpusError, MissingExtraError
from support.corpora import LAYOUT, RELEASE_ID, voltages, write_corpus

WIDE = CorpusLayout(days=7, steps=96, nodes=500, days_per_part=5)
"""Large enough for several row groups per part."""
NODES = NodeTable(("e", "c", "a", "f", "b", "d", "g"), phase=(1, 2, 3, 1, 2, 3, 1), bus=tuple("xxxyyyz"))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("reader") / "release", nodes=NODES)


@pytest.fixture(scope="module")
def corpus(release: Path) -> Corpus:
    return open_corpus(release)


@pytest.fixture(scope="module")
def written() -> Phasors:
    return round_to_grid(voltages(LAYOUT, range(LAYOUT.days)))


def test_voltages_are_those_written_to_half_a_grid_step(corpus: Corpus) -> None:
    assert (corpus.layout, corpus.release_id, corpus.nodes) == (LAYOUT, RELEASE_ID, NODES)
    v = voltages(LAYOUT, range(LAYOUT.days))
    read = corpus.voltages()
    assert read.shape == (11, 24, 7)
    assert read.dtype == np.complex128
    # Half a step of the magnitude, and half a step of the angle (twice as wide beyond 128 degrees).
    assert np.max(np.abs(read - v)) < 0.5e-6 + 1.1 * np.deg2rad(1e-5)
    assert np.max(np.abs(np.abs(read) - np.abs(v))) < 0.5e-6 + 1e-12


def test_days_and_nodes_come_in_the_order_asked_for(corpus: Corpus, written: Phasors) -> None:
    read = corpus.phasors(days=[9, 0, 5, 4, 4], nodes=["c", 6, "e"])
    np.testing.assert_array_equal(read.vm_pu, written.vm_pu[[9, 0, 5, 4, 4]][:, :, [1, 6, 0]])
    np.testing.assert_array_equal(read.va_deg, written.va_deg[[9, 0, 5, 4, 4]][:, :, [1, 6, 0]])
    assert corpus.phasors(days=[]).vm_pu.shape == (0, 24, 7)


def test_several_row_groups_per_part_are_put_together(tmp_path: Path) -> None:
    corpus = open_corpus(write_corpus(tmp_path / "wide", WIDE))
    assert validate_corpus(tmp_path / "wide").n_phasors == WIDE.n_phasors
    assert len(WIDE.groups_of(0)) == 3
    expected = round_to_grid(voltages(WIDE, range(7)))
    np.testing.assert_array_equal(corpus.phasors().vm_pu, expected.vm_pu)
    np.testing.assert_array_equal(corpus.phasors(days=[6, 2, 3]).va_deg, expected.va_deg[[6, 2, 3]])


@pytest.mark.parametrize("width", [None, 1, 3, 100])
def test_batches_cover_every_day_once_in_order(corpus: Corpus, written: Phasors, width: int) -> None:
    batches = list(corpus.batches(width))
    assert [day for batch in batches for day in batch.days] == list(range(11))
    np.testing.assert_array_equal(np.concatenate([b.phasors.vm_pu for b in batches]), written.vm_pu)


def test_the_dataset_has_one_row_per_day_and_node(corpus: Corpus, written: Phasors) -> None:
    dataset = corpus.dataset()
    assert dataset.count_rows() == 77
    table = dataset.to_table(filter=(pc.field("day") == 5) & (pc.field("node") == 2))
    np.testing.assert_array_equal(table["vm_pu"][0].values.to_numpy(), written.vm_pu[5, :, 2])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_one_row_per_day_node_and_step(corpus: Corpus, written: Phasors, library: str) -> None:
    pytest.importorskip(library)
    frame = getattr(corpus, f"to_{library}")(days=[3, 8], nodes=["a", "g"])
    assert list(frame.columns) == ["day", "node", "step", "vm_pu", "va_deg"]
    assert len(frame) == 2 * 2 * 24
    day, node, step = (frame[name].to_numpy() for name in ("day", "node", "step"))
    assert len(set(zip(day, node, step, strict=True))) == len(frame)
    assert set(day) == {3, 8}
    assert set(node) == {2, 6}
    np.testing.assert_array_equal(frame["vm_pu"].to_numpy(), written.vm_pu[day, step, node])
    np.testing.assert_array_equal(frame["va_deg"].to_numpy(), written.va_deg[day, step, node])


def test_xarray_has_the_three_dimensions_and_units(corpus: Corpus, written: Phasors) -> None:
    pytest.importorskip("xarray")
    data = corpus.to_xarray(days=range(2, 5))
    assert data["vm_pu"].dims == ("day", "step", "node")
    assert data["va_deg"].attrs["units"] == "degree"
    chosen = data["vm_pu"].sel(day=3).where(data["node_id"] == "f", drop=True)
    np.testing.assert_array_equal(chosen.values[:, 0], written.vm_pu[3, :, 3])


@pytest.mark.parametrize(
    "asked",
    [
        *("to_pandas pandas pandas", "to_polars polars polars", "to_xarray xarray xarray"),
        *("to_zarr zarr xarray", "windows torch ml", "to_pyg torch_geometric pyg"),
    ],
)
def test_a_missing_extra_is_named(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    method, package, extra = asked.split()
    given = {"to_zarr": (tmp_path / "z",), "windows": (4,)}.get(method, ())
    import_module = importlib.import_module

    def without(name: str) -> Any:
        if name == package:
            raise ModuleNotFoundError(name=package)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*dp-powerflow\[{extra}\]"):
        getattr(corpus, method)(*given)
    assert list(tmp_path.iterdir()) == []


ODD_DAYS = np.arange(11) % 2 == 1
NO_DAYS = ([0.5], [np.nan], 3, np.zeros((2, 2), dtype=int), [[1], [2, 3]], ["1"], [None], {1, 2})
THREE_NODES = [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("days", "nodes"),
    [
        (ODD_DAYS, np.array(THREE_NODES)),
        (ODD_DAYS.tolist(), THREE_NODES),
        (tuple(ODD_DAYS.tolist()), np.array(THREE_NODES, dtype=object)),
        (range(1, 11, 2), np.array([0, 3, 6], dtype=np.uint8)),
        (np.flatnonzero(ODD_DAYS).astype(np.int16), np.array(["e", "f", "g"])),
    ],
    ids=["masks", "lists of bool", "other containers", "positions", "ids"],
)
def test_a_mask_chooses_the_days_and_nodes_that_are_true_of_it_in_every_reader(
    corpus: Corpus, written: Phasors, days: Any, nodes: Any
) -> None:
    expected = written.vm_pu[1::2][:, :, [0, 3, 6]]
    np.testing.assert_array_equal(corpus.phasors(days, nodes).vm_pu, expected)
    assert corpus.voltages(days, nodes).shape == expected.shape
    np.testing.assert_array_equal(next(corpus.batches(11, nodes)).phasors.vm_pu[1::2], expected)
    for library in ("pandas", "xarray", "torch"):
        pytest.importorskip(library)
    np.testing.assert_array_equal(corpus.to_pandas(days, nodes)["vm_pu"], expected.transpose(0, 2, 1).ravel())
    data = corpus.to_xarray(days, nodes)
    np.testing.assert_array_equal(data["vm_pu"].values, expected)
    assert data["node_id"].values.tolist() == ["e", "f", "g"]
    assert corpus.voltages(np.zeros(11, dtype=bool), [False] * 7).shape == (0, 24, 0)
    windows = corpus.windows(24, days=days, nodes=nodes)
    np.testing.assert_array_equal(np.stack([window.vm_pu.numpy() for window in windows]), expected)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        *(((days, None), "days 0 to 10") for days in ([11], [-1], [10**30])),
        *(((days, None), "whole numbers") for days in NO_DAYS),
        *(((days, None), "11 days, and a mask") for days in ([True], np.ones(12, dtype=bool))),
        *(((None, nodes), f"no node {nodes[0]!r}") for nodes in ([7], [-1], ["z"])),
        *(
            ((None, nodes), "sequence of positions or ids")
            for nodes in ("ab", b"ab", [0.0, 1.0], [b"a"], [None], {"a", "b"})
        ),
        *(((None, nodes), "7 nodes, and a mask") for nodes in ([True, False], ["a", True])),
        *((asked, "ask for none twice") for asked in (([4, 4], None), (None, ["a", 2]))),
    ],
)
def test_what_is_no_id_no_position_and_no_mask_is_refused(
    corpus: Corpus, asked: tuple[Any, Any], says: str
) -> None:
    tables = [corpus.to_pandas, corpus.to_xarray]
    for read in tables if "twice" in says else [corpus.phasors, corpus.voltages, *tables]:
        with pytest.raises(CorpusError, match=says):
            read(*asked)


def test_what_is_not_a_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is not a directory"):
        open_corpus(tmp_path / "nothing")
    with pytest.raises(CorpusError, match=r"nodes\.parquet is missing"):
        open_corpus(tmp_path)
    (tmp_path / "nodes.parquet").write_bytes(b"not Parquet")
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        open_corpus(tmp_path)
    pq.write_table(
        pq.read_table(write_corpus(tmp_path / "r") / "nodes.parquet").replace_schema_metadata(),
        tmp_path / "nodes.parquet",
    )
    with pytest.raises(CorpusError, match="cannot be read as part of a corpus"):
        open_corpus(tmp_path)


def test_another_version_of_the_format_is_named(tmp_path: Path) -> None:
    release = write_corpus(tmp_path / "r")
    table = pq.read_table(release / "nodes.parquet")
    changed = table.schema.metadata | {b"dp_powerflow.format": b"1"}
    pq.write_table(table.replace_schema_metadata(changed), release / "nodes.parquet")
    with pytest.raises(CorpusError, match=r"version 1.*0\.5\.0 is the last"):
        open_corpus(release)


def test_a_part_of_another_release_is_not_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    release = write_corpus(tmp_path / "r")
    other = write_corpus(tmp_path / "other", release_id="other", seed=1)
    (other / "data" / part_name(1)).replace(release / "data" / part_name(1))
    corpus = open_corpus(release)
    corpus.voltages(days=range(4))
    with pytest.raises(CorpusError, match=r"part-00001\.parquet cannot be read"):
        corpus.voltages(days=range(4, 8))
    (release / "data" / part_name(1)).unlink()
    with pytest.raises(CorpusError, match=r"part-00001\.parquet is missing"):
        open_corpus(release).voltages()
