"""Reads the columns of a corpus that the figures need: magnitudes, active powers, states; rarely the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dp_powerflow.corpus.extras import FEEDER, LOADS, day_columns, file_schema
from dp_powerflow.corpus.parquet import numbers
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.schema import DATA, Float32Array, list_values, part_name, part_schema, rows_in_order
from dp_powerflow.corpus.storage import loading, open_parquet


def magnitudes(corpus: Corpus, part: int) -> Iterator[tuple[range, Float32Array]]:
    """Row groups of a part: their days, and magnitudes (day, node, step) [p.u.]."""
    schema = part_schema(corpus.layout, corpus.release_id, part)
    for days, values in _column(corpus, DATA, part, schema, ("vm_pu",)):
        yield days, values[0]


def active_powers(corpus: Corpus, part: int) -> Iterator[tuple[range, tuple[Float32Array, ...]]]:
    """Row groups of a part: their days, and powers (day, node, step) drawn and, if there, injected [kW]."""
    schema = file_schema(LOADS, corpus.extras, corpus.layout, corpus.release_id, part)
    names = ("p_kw", *("g_kw",) * corpus.extras.generation)
    yield from _column(corpus, LOADS, part, schema, names)


def of_feeder(corpus: Corpus, part: int) -> dict[str, list[NDArray[Any]]]:
    """What a part says of the feeder as a whole: name of `Corpus.holds` → arrays (day, step).

    One array per source phase (active power [kW]), regulator or capacitor.
    """
    wanted = [column for column in day_columns(corpus.extras) if column.unit != "kvar"]
    found: dict[str, list[NDArray[Any]]] = {}
    if not wanted:
        return found
    layout, days = corpus.layout, corpus.layout.days_of(part)
    schema = file_schema(FEEDER, corpus.extras, layout, corpus.release_id, part)
    path = corpus.path / FEEDER / part_name(part)
    content = corpus.source(f"{FEEDER}/{part_name(part)}")
    with loading(path), open_parquet(content) as file:
        if not file.schema_arrow.equals(schema, check_metadata=True):
            raise ValueError("not a part of this corpus")
        names = ["day", *(column.name for column in wanted)]
        table = file.read_row_group(0, columns=names, use_threads=False)
        if not np.array_equal(numbers(table.column("day")), np.arange(days.start, days.stop)):
            raise ValueError("rows out of order")
        for column in wanted:
            values = list_values(table, column.name).reshape(len(days), layout.steps)
            found.setdefault(column.of, []).append(values)
    return found


def _column(
    corpus: Corpus, folder: str, part: int, schema: pa.Schema, names: tuple[str, ...]
) -> Iterator[tuple[range, tuple[Float32Array, ...]]]:
    layout, path = corpus.layout, corpus.path / folder / part_name(part)
    content = corpus.source(f"{folder}/{part_name(part)}")
    with loading(path), open_parquet(content) as file:
        if not file.schema_arrow.equals(schema, check_metadata=True):
            raise ValueError("not a part of this corpus")
        for number, days in enumerate(layout.groups_of(part)):
            table = file.read_row_group(number, columns=["day", "node", *names], use_threads=False)
            if not rows_in_order(table, days, layout.nodes):
                raise ValueError("rows out of order")
            shape = (len(days), layout.nodes, layout.steps)
            yield days, tuple(list_values(table, name).reshape(shape) for name in names)
