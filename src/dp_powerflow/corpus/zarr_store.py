"""Copies a corpus into a Zarr store with consolidated metadata, for xarray and other readers of arrays.

The store is of Zarr format 2, where consolidated metadata and names are part of what every reader knows.
Chunks hold some days of some nodes, so that neither a day nor the series of a node touches all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dp_powerflow.almanac.weather import MEANS, UNITS
from dp_powerflow.corpus.extras import PAIRS, POWER_GRID
from dp_powerflow.corpus.schema import VA_GRID, VM_GRID
from dp_powerflow.corpus.storage import storing
from dp_powerflow.errors import OutputTakenError, require

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus

DIMENSIONS = ("day", "step", "node")
ATTRIBUTES = {
    "vm_pu": {"long_name": "voltage magnitude", "units": "p.u.", "grid": VM_GRID},
    "va_deg": {"long_name": "voltage angle", "units": "degree", "grid": VA_GRID},
    "p_kw": {"long_name": "active power drawn", "units": "kW", "grid": POWER_GRID},
    "q_kvar": {"long_name": "reactive power drawn", "units": "kvar", "grid": POWER_GRID},
    "g_kw": {"long_name": "active power injected", "units": "kW", "grid": POWER_GRID},
    "g_kvar": {"long_name": "reactive power injected", "units": "kvar", "grid": POWER_GRID},
}
"""Of the arrays over (day, step, node)."""

_NODES_PER_CHUNK = 32
_CHUNK_VALUES = 1 << 17
"""Half a megabyte of float32."""
_BATCH_VALUES = 1 << 24
"""Values per array that are in memory at a time."""


@dataclass(frozen=True)
class _Array:
    """An array of the store over (day, step) and what else it has.

    Attributes
    ----------
    name, dtype, attributes : as in the store.
    of : what of the corpus it comes from.
    last : name and length of its third dimension; None without.
    """

    name: str
    of: str
    dtype: str
    attributes: dict[str, str]
    last: tuple[str, int] | None


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
    arrays, layout = list(_arrays(corpus)), corpus.layout
    width, steps, nodes = _chunks(corpus)
    stores = {}
    for array in arrays:
        names, sizes = ((array.last[0],), (array.last[1],)) if array.last else ((), ())
        named = {"_ARRAY_DIMENSIONS": [*DIMENSIONS[:2], *names], **array.attributes}
        chunks = (width, steps, *(min(size, nodes) for size in sizes))
        sized = {"shape": (layout.days, steps, *sizes), "dtype": array.dtype, "chunks": chunks}
        stores[array.name] = _create(group, array.name, named, sized)
    for first in range(0, layout.days, width):
        days = range(first, min(first + width, layout.days))
        for of in dict.fromkeys(array.of for array in arrays):
            values = _values(corpus, of, days)
            for array in arrays:
                if array.of == of:
                    stores[array.name][days.start : days.stop] = values[array.name]


def _arrays(corpus: Corpus) -> Iterator[_Array]:
    """What is stored of a corpus."""
    node, extras = ("node", corpus.layout.nodes), corpus.extras
    names = {"voltages": ("vm_pu", "va_deg")} | {of: PAIRS[of] for of in PAIRS if of in extras.holds}
    for of, pair in names.items():
        for name in pair:
            yield _Array(name, of, "float32", ATTRIBUTES[name], node)
    if extras.sources:
        source = ("source_phase", extras.sources)
        for name, means, unit in (("head_p_kw", "active", "kW"), ("head_q_kvar", "reactive", "kvar")):
            attributes = {"long_name": f"{means} power that the sources feed in", "units": unit}
            yield _Array(name, "head", "float32", attributes, source)
    for name, of, dtype, means, last in (
        ("tap", "taps", "int16", "tap steps away from neutral", ("regulator", extras.regulators)),
        ("closed", "capacitors", "bool", "whether it is closed", ("capacitor", extras.capacitors)),
        ("locked", "locked", "bool", "whether a control was locked because it hunted", None),
        ("mended", "mended", "int16", "how often all loads and PV were multiplied by 0.95", None),
    ):
        if of in extras.holds:
            yield _Array(name, of, dtype, {"long_name": means}, last)


def _values(corpus: Corpus, of: str, days: range) -> dict[str, NDArray[Any]]:
    """Values of some days, by name of the array."""
    if of == "voltages":
        phasors = corpus.phasors(days)
        return {"vm_pu": phasors.vm_pu, "va_deg": phasors.va_deg}
    read: dict[str, tuple[str, Callable[[range], NDArray[Any]]]]
    read = {"taps": ("tap", corpus.taps), "capacitors": ("closed", corpus.capacitors)}
    read |= {"locked": ("locked", corpus.locked), "mended": ("mended", corpus.mended)}
    if of in read:
        name, reader = read[of]
        return {name: reader(days)}
    power = corpus.head(days) if of == "head" else getattr(corpus, of)(days)
    active, reactive = ("head_p_kw", "head_q_kvar") if of == "head" else PAIRS[of]
    return {active: power.real, reactive: power.imag}


def _create(group: Any, name: str, attributes: dict[str, Any], sized: dict[str, Any]) -> Any:
    """An array without a fill value: xarray would take a zero for a hole."""
    blosc = require("numcodecs", "xarray").Blosc(cname="zstd", clevel=3, shuffle=1)
    return group.create_array(name, fill_value=None, compressors=blosc, attributes=attributes, **sized)
