"""The Zarr copy of a corpus holds what the corpus holds, and xarray opens it as it is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.corpus.grid import round_to_grid
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.tables import DayTable, NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError
from support.corpora import EXTRAS, LAYOUT, voltages, write_corpus, write_parts

xarray: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")


def test_the_store_holds_the_same_numbers_and_opens_in_xarray(tmp_path: Path) -> None:
    nodes = NodeTable(tuple("ecafbdg"))
    corpus = open_corpus(write_corpus(tmp_path / "r", nodes=nodes))
    written = round_to_grid(voltages(LAYOUT, range(LAYOUT.days)))
    (tmp_path / "z").mkdir()
    store = corpus.to_zarr(tmp_path / "z" / "corpus.zarr")
    with xarray.open_zarr(store, consolidated=True) as data:
        assert data["vm_pu"].dims == ("day", "step", "node")
        assert data["node_id"].values.tolist() == list("ecafbdg")
        assert set(data.coords) == {"day", "step", "node", "node_id"}
        np.testing.assert_array_equal(data["vm_pu"].values, written.vm_pu)
        np.testing.assert_array_equal(data["va_deg"].values, written.va_deg)
        assert data["va_deg"].attrs["units"] == "degree"
    assert [p.name for p in store.parent.iterdir()] == ["corpus.zarr"]
    with pytest.raises(CorpusError, match="exists already"):
        corpus.to_zarr(store)


def test_powers_states_and_dates_are_there_where_they_are_published(tmp_path: Path) -> None:
    layout = CorpusLayout(days=9, steps=24, nodes=70, days_per_part=4)
    writer = CorpusWriter(tmp_path / "r", layout, "r", EXTRAS)
    writer.prepare()
    write_parts(writer)
    writer.write_nodes(NodeTable.opaque(70))
    writer.write_days(DayTable(Calendar.starting(dt.date(2031, 5, 1), 9)))
    writer.add_file("manifest.json", b"{}")
    corpus = open_corpus(str(writer.finish()))
    with xarray.open_zarr(corpus.to_zarr(tmp_path / "z")) as data:
        np.testing.assert_array_equal(data["p_kw"].values + 1j * data["q_kvar"].values, corpus.loads())
        np.testing.assert_array_equal(data["g_kw"].values + 1j * data["g_kvar"].values, corpus.generation())
        np.testing.assert_array_equal(
            data["head_p_kw"].values + 1j * data["head_q_kvar"].values, corpus.head()
        )
        # Zeros stay zeros, of the type that they had: no value stands for a hole.
        assert data["tap"].dtype == np.int16
        for name, values in (
            ("tap", corpus.taps()),
            ("closed", corpus.capacitors()),
            ("locked", corpus.locked()),
            ("mended", corpus.mended()),
        ):
            np.testing.assert_array_equal(data[name].values, values)
        assert data["off"].values[2]  # a Saturday
        np.testing.assert_array_equal(data["date"].values.astype("datetime64[D]"), corpus.dates)


def test_neither_a_day_nor_a_node_touches_all_chunks(tmp_path: Path) -> None:
    layout = CorpusLayout(days=50, steps=96, nodes=70, days_per_part=25)
    store = open_corpus(write_corpus(tmp_path / "r", layout)).to_zarr(tmp_path / "z")
    with xarray.open_zarr(store, chunks={}) as data:
        days, steps, nodes = data["vm_pu"].chunksizes.values()
        assert (days, steps, nodes) == ((42, 8), (96,), (32, 32, 6))
