"""Copies a corpus into a Zarr store with consolidated metadata, for xarray and other readers of arrays.

The store is of Zarr format 2, where consolidated metadata and names are part of what every reader knows.
Chunks hold some days of some nodes, so that neither a day nor the series of a node touches all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.almanac.weather import MEANS, UNITS
from dp_powerflow.corpus.schema import Column, ExtrasLayout, power_columns, voltage_columns
from dp_powerflow.corpus.storage import storing
from dp_powerflow.errors import OutputTakenError, require

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus

DIMENSIONS = ("day", "step", "node")


def attributes_of(extras: ExtrasLayout) -> dict[str, dict[str, str]]:
    """What is said of the arrays over (day, step, node), by name."""
    return {column.name: _said(column) for column in (*voltage_columns(1), *power_columns(extras, 1))}


def _said(column: Column) -> dict[str, str]:
    said = {"long_name": column.means, "units": column.unit, "grid": column.grid}
    return {key: words for key, words in said.items() if words}


_NODES_PER_CHUNK = 32
_CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32."""
_BATCH_VALUES = 1 << 24
"""Values per array that are in memory at a time."""


@dataclass(frozen=True)
class _Arrays:
    """Arrays of the store over (day, step) that come from one array of the corpus.

    Attributes
    ----------
    of : name in `Corpus.holds`.
    names : in the store, each with what is said of it.
    last : name and length of a third dimension; None without.
    dtype : of their values.
    """

    of: str
    names: dict[str, dict[str, str]]
    last: tuple[str, int] | None
    dtype: str = "float32"

    def values(self, corpus: Corpus, days: range) -> tuple[NDArray[Any], ...]:
        """Of some days, one array per name."""
        if self.of == "voltages":
            phasors = corpus.phasors(days)
            return phasors.vm_pu, phasors.va_deg
        found = getattr(corpus, self.of)(days)
        return (found.real, found.imag) if np.iscomplexobj(found) else (found,)


def export_zarr(corpus: Corpus, directory: Path) -> Path:
    """Write the store, some days at a time; there whole or not at all."""
    zarr = require("zarr", "xarray")
    if os.path.lexists(directory):
        raise OutputTakenError(f"{directory} exists already; choose another directory or remove it first")
    partial = directory.with_name(f"{directory.name}.partial")
    with storing(directory):
        if partial.exists():
            shutil.rmtree(partial)
        group = zarr.open_group(partial, mode="w", zarr_format=2)
        coordinates = _coordinates(corpus)
        beside = " ".join(name for name in coordinates if name not in DIMENSIONS)
        group.attrs.update({"release_id": corpus.release_id, "coordinates": beside})
        chunks = dict(zip(DIMENSIONS, _chunks(corpus), strict=True))
        for name, (values, attributes) in coordinates.items():
            along = {"node_id": "node"}.get(name, name if name in DIMENSIONS else "day")
            named = {"_ARRAY_DIMENSIONS": [along], **attributes}
            sized = {"shape": values.shape, "dtype": values.dtype, "chunks": (chunks[along],)}
            _create(group, name, named, sized)[:] = values
        _fill(corpus, group)
        zarr.consolidate_metadata(partial, zarr_format=2)
        partial.rename(directory)
    return directory


def _coordinates(corpus: Corpus) -> dict[str, tuple[NDArray[Any], dict[str, str]]]:
    """Coordinates, each along one dimension."""
    shape = (corpus.layout.days, corpus.layout.steps, corpus.layout.nodes)
    found: dict[str, tuple[NDArray[Any], dict[str, str]]] = {
        name: (np.arange(size), {}) for name, size in zip(DIMENSIONS, shape, strict=True)
    }
    found["node_id"] = np.array(corpus.nodes.ids), {"long_name": "opaque name of the node"}
    if corpus.dates is not None and corpus.calendar is not None:
        since = {"units": "days since 1970-01-01", "calendar": "proleptic_gregorian"}
        found["date"] = corpus.dates.astype(np.int64), since
        found["off"] = np.asarray(corpus.calendar.off), {"long_name": "Saturday, Sunday or holiday"}
    if corpus.weather is not None:
        for name, values in zip(corpus.weather.names, corpus.weather.values.T, strict=True):
            found[name] = values, {"long_name": MEANS[name], "units": UNITS[name]}
    return found


def _chunks(corpus: Corpus) -> tuple[int, int, int]:
    """Days, steps and nodes of a chunk; the same for all arrays."""
    layout = corpus.layout
    nodes = min(layout.nodes, _NODES_PER_CHUNK)
    in_chunk, in_batch = _CHUNK_VALUES // nodes, _BATCH_VALUES // layout.nodes
    return min(max(1, min(in_chunk, in_batch) // layout.steps), layout.days), layout.steps, nodes


def _fill(corpus: Corpus, group: Any) -> None:
    layout = corpus.layout
    width, steps, nodes = _chunks(corpus)
    stores = {}
    for arrays in _arrays(corpus):
        names, sizes = ((arrays.last[0],), (arrays.last[1],)) if arrays.last else ((), ())
        chunks = (width, steps, *(min(size, nodes) for size in sizes))
        sized = {"shape": (layout.days, steps, *sizes), "dtype": arrays.dtype, "chunks": chunks}
        for name, said in arrays.names.items():
            named = {"_ARRAY_DIMENSIONS": [*DIMENSIONS[:2], *names], **said}
            stores[name] = _create(group, name, named, sized)
    for first in range(0, layout.days, width):
        days = range(first, min(first + width, layout.days))
        for arrays in _arrays(corpus):
            for name, values in zip(arrays.names, arrays.values(corpus, days), strict=True):
                stores[name][days.start : days.stop] = values


def _arrays(corpus: Corpus) -> Iterator[_Arrays]:
    """What is stored of a corpus."""
    extras = corpus.extras
    columns = [*voltage_columns(1), *power_columns(extras, 1)]
    for of, own in groupby(columns, lambda column: column.of):
        said = {column.name: _said(column) for column in own}
        yield _Arrays(of or "voltages", said, ("node", corpus.layout.nodes))
    means = "{} power that the sources feed in"
    head = {
        "head_p_kw": {"long_name": means.format("active"), "units": "kW"},
        "head_q_kvar": {"long_name": means.format("reactive"), "units": "kvar"},
    }
    if "head" in extras.holds:
        yield _Arrays("head", head, ("source_phase", extras.sources))
    for of, name, dtype, means, last in (
        ("taps", "tap", "int16", "tap steps away from neutral", ("regulator", extras.regulators)),
        ("capacitors", "closed", "bool", "whether it is closed", ("capacitor", extras.capacitors)),
        ("locked", "locked", "bool", "whether a control was locked because it hunted", None),
        ("mended", "mended", "int16", "how often all loads and PV were multiplied by 0.95", None),
    ):
        if of in extras.holds:
            yield _Arrays(of, {name: {"long_name": means}}, last, dtype)


def _create(group: Any, name: str, attributes: dict[str, Any], sized: dict[str, Any]) -> Any:
    """An array without a fill value: xarray would take a zero for a hole."""
    blosc = require("numcodecs", "xarray").Blosc(cname="zstd", clevel=3, shuffle=1)
    return group.create_array(name, fill_value=None, compressors=blosc, attributes=attributes, **sized)
