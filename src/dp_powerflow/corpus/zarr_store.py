"""A corpus as an xarray.Dataset, and copied into a Zarr store with consolidated metadata.

The store is of Zarr format 2, where consolidated metadata and names are part of what every reader knows.
Chunks hold some days of some nodes, so that neither a day nor the series of a node touches all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.almanac.weather import MEANS, UNITS
from dp_powerflow.corpus.schema import power_columns, voltage_columns
from dp_powerflow.corpus.storage import whole_folder
from dp_powerflow.errors import require
from dp_powerflow.units import IntArray

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus

_NODES_PER_CHUNK = 32
_CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32."""
_BATCH_VALUES = 1 << 24
"""Values per array that are in memory at a time."""

Array = tuple[tuple[str, ...] | str, NDArray[Any], dict[str, str]]
"""Dimensions, values, and what is said of them."""


def dataset_of(corpus: Corpus, days: IntArray, nodes: IntArray, *, with_loads: bool) -> Any:
    """`xarray.Dataset` of voltages, if asked with powers of the nodes, over (day, step, node)."""
    said = {
        column.name: {"long_name": column.means, "units": column.unit, "grid": column.grid}
        for column in (*voltage_columns(1), *power_columns(corpus.extras, 1))
    }
    series = corpus.node_series(days, nodes, with_loads=with_loads)
    coordinates: dict[str, Any] = {
        "day": days,
        "step": np.arange(corpus.layout.steps),
        "node": nodes,
        "node_id": ("node", [corpus.nodes.ids[k] for k in nodes]),
    }
    if corpus.dates is not None:
        coordinates["date"] = ("day", corpus.dates[days].astype("datetime64[s]"))
    return require("xarray", "xarray").Dataset(
        {name: (("day", "step", "node"), values, said[name]) for name, values in series.items()},
        coords=coordinates,
        attrs={"release_id": corpus.release_id},
    )


def export_zarr(corpus: Corpus, directory: Path) -> Path:
    """Write the store, some days at a time; there whole or not at all."""
    require("zarr", "xarray")
    width, nodes = _chunks(corpus)
    with whole_folder(directory) as partial:
        for first in range(0, corpus.layout.days, width):
            days = np.arange(first, min(first + width, corpus.layout.days))
            found = dataset_of(corpus, days, corpus.node_numbers(None), with_loads=corpus.extras.loads)
            found = found.assign(dict(_of_feeder(corpus, days))).assign_coords(dict(_of_days(corpus, days)))
            if first:
                found.to_zarr(partial, append_dim="day", consolidated=True)
            else:
                sizes = {"day": width, "step": corpus.layout.steps, "node": nodes}
                found.to_zarr(
                    partial, mode="w", zarr_format=2, consolidated=True, encoding=_encoding(found, sizes)
                )
    return directory


def _chunks(corpus: Corpus) -> tuple[int, int]:
    """Days and nodes of a chunk; the same for all arrays."""
    layout = corpus.layout
    nodes = min(layout.nodes, _NODES_PER_CHUNK)
    in_chunk, in_batch = _CHUNK_VALUES // nodes, _BATCH_VALUES // layout.nodes
    return min(max(1, min(in_chunk, in_batch) // layout.steps), layout.days), nodes


def _encoding(found: Any, sizes: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Chunks and compression; no fill value, for xarray would take a zero for a hole."""
    blosc = require("numcodecs", "xarray").Blosc(cname="zstd", clevel=3, shuffle=1)
    since = {"units": "days since 1970-01-01", "calendar": "proleptic_gregorian", "dtype": "int64"}
    return {
        name: {
            "chunks": tuple(sizes.get(dimension, found.sizes[dimension]) for dimension in array.dims),
            "compressors": (blosc,),
            "_FillValue": None,
            **(since if name == "date" else {}),
        }
        for name, array in found.variables.items()
    }


def _of_days(corpus: Corpus, days: IntArray) -> Iterator[tuple[str, Array]]:
    """Coordinates of days beside their dates."""
    if corpus.calendar is not None:
        off = np.asarray(corpus.calendar.off)[days]
        yield "off", ("day", off, {"long_name": "Saturday, Sunday or holiday"})
    if corpus.weather is not None:
        for name, values in zip(corpus.weather.names, corpus.weather.values.T, strict=True):
            yield name, ("day", values[days], {"long_name": MEANS[name], "units": UNITS[name]})


def _of_feeder(corpus: Corpus, days: IntArray) -> Iterator[tuple[str, Array]]:
    """Arrays that are not per node."""
    holds = corpus.holds
    if "head" in holds:
        power, along = corpus.head(days), ("day", "step", "source_phase")
        for name, unit, word, values in (
            ("head_p_kw", "kW", "active", power.real),
            ("head_q_kvar", "kvar", "reactive", power.imag),
        ):
            said = {"long_name": f"{word} power that the sources feed in", "units": unit}
            yield name, (along, values.astype(np.float32), said)
    for of, name, dtype, means, last in (
        ("taps", "tap", "int16", "tap steps away from neutral", ("regulator",)),
        ("capacitors", "closed", "bool", "whether it is closed", ("capacitor",)),
        ("locked", "locked", "bool", "whether a control was locked because it hunted", ()),
        ("mended", "mended", "int16", "how often all loads and PV were multiplied by 0.95", ()),
    ):
        if of in holds:
            values = getattr(corpus, of)(days).astype(dtype)
            yield name, (("day", "step", *last), values, {"long_name": means})
