"""A corpus in the containers of other libraries: pandas, polars, xarray and Zarr."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_powerflow.corpus.errors import CorpusError, writing
from dp_powerflow.corpus.schema import VA_GRID, VM_GRID
from dp_powerflow.errors import require
from dp_powerflow.units import IntArray

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus

_ATTRIBUTES = {
    "vm_pu": {"long_name": "voltage magnitude", "units": "p.u.", "grid": VM_GRID},
    "va_deg": {"long_name": "voltage angle", "units": "degree", "grid": VA_GRID},
}
_DIMENSIONS = ("day", "step", "node")


def pandas_frame(corpus: Corpus, days: IntArray, nodes: IntArray) -> Any:
    """One row per (day, node, step)."""
    return require("pandas", "pandas").DataFrame(_columns(corpus, days, nodes))


def polars_frame(corpus: Corpus, days: IntArray, nodes: IntArray) -> Any:
    """One row per (day, node, step)."""
    return require("polars", "polars").DataFrame(_columns(corpus, days, nodes))


def xarray_dataset(corpus: Corpus, days: IntArray, nodes: IntArray) -> Any:
    """Arrays over (day, step, node), with the ids of the nodes as a coordinate."""
    xarray = require("xarray", "xarray")
    phasors = corpus.phasors(days, nodes)
    return xarray.Dataset(
        {
            "vm_pu": (_DIMENSIONS, phasors.vm_pu, _ATTRIBUTES["vm_pu"]),
            "va_deg": (_DIMENSIONS, phasors.va_deg, _ATTRIBUTES["va_deg"]),
        },
        coords={
            "day": days,
            "step": np.arange(corpus.layout.steps),
            "node": nodes,
            "node_id": ("node", [corpus.nodes.ids[k] for k in nodes]),
        },
        attrs={"release_id": corpus.release_id},
    )


def export_zarr(corpus: Corpus, directory: Path) -> Path:
    """Write a Zarr store that xarray opens, one chunk of days at a time; there whole or not at all."""
    zarr = require("zarr", "xarray")
    if os.path.lexists(directory):
        raise CorpusError(f"{directory} exists already; choose another directory or remove it first")
    partial = directory.with_name(f"{directory.name}.partial")
    with writing(directory):
        if partial.exists():
            shutil.rmtree(partial)
        group = zarr.open_group(partial, mode="w", zarr_format=3)
        group.attrs.update({"release_id": corpus.release_id, "node_id": list(corpus.nodes.ids)})
        shape = (corpus.layout.days, corpus.layout.steps, corpus.layout.nodes)
        for name, size in zip(_DIMENSIONS, shape, strict=True):
            axis = group.create_array(name, shape=(size,), dtype="int64", dimension_names=(name,))
            axis[:] = np.arange(size)
        width = min(corpus.layout.days_per_group, corpus.layout.days)
        arrays = {
            name: group.create_array(
                name,
                shape=shape,
                dtype="float32",
                chunks=(width, *shape[1:]),
                dimension_names=_DIMENSIONS,
                attributes=attributes,
            )
            for name, attributes in _ATTRIBUTES.items()
        }
        for batch in corpus.batches(width):
            arrays["vm_pu"][batch.days.start : batch.days.stop] = batch.phasors.vm_pu
            arrays["va_deg"][batch.days.start : batch.days.stop] = batch.phasors.va_deg
        partial.rename(directory)
    return directory


def _columns(corpus: Corpus, days: IntArray, nodes: IntArray) -> dict[str, Any]:
    phasors = corpus.phasors(days, nodes)
    steps = corpus.layout.steps
    per_day = len(nodes) * steps
    return {
        "day": np.repeat(days.astype(np.int32), per_day),
        "node": np.tile(np.repeat(nodes.astype(np.int32), steps), len(days)),
        "step": np.tile(np.arange(steps, dtype=np.int32), len(days) * len(nodes)),
        "vm_pu": phasors.vm_pu.transpose(0, 2, 1).ravel(),
        "va_deg": phasors.va_deg.transpose(0, 2, 1).ravel(),
    }
