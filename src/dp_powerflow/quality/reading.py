"""Reads one column of a corpus at a time: the figures need magnitudes and active powers, rarely the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dp_powerflow.corpus.extras import LOADS, file_schema
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


def _column(
    corpus: Corpus, folder: str, part: int, schema: pa.Schema, names: tuple[str, ...]
) -> Iterator[tuple[range, tuple[Float32Array, ...]]]:
    layout, path = corpus.layout, corpus.path / folder / part_name(part)
    with loading(path), open_parquet(path) as file:
        if not file.schema_arrow.equals(schema, check_metadata=True):
            raise ValueError("not a part of this corpus")
        for number, days in enumerate(layout.groups_of(part)):
            table = file.read_row_group(number, columns=["day", "node", *names], use_threads=False)
            if not rows_in_order(table, days, layout.nodes):
                raise ValueError("rows out of order")
            shape = (len(days), layout.nodes, layout.steps)
            yield days, tuple(list_values(table, name).reshape(shape) for name in names)
