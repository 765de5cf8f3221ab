"""Changes of Parquet files and SQLite databases that know what is in them."""

from __future__ import annotations

import io
import math
import random
import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.fuzz.texts import damaged, edited, nasty_text
from support.fuzz.trees import nasty_value

_TYPES = (
    *(
        pa.string(),
        pa.large_string(),
        pa.int64(),
        pa.int8(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
    ),
    *(pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.binary(), pa.decimal128(20, 3)),
    pa.dictionary(pa.int32(), pa.string()),
)


def parquet_changed(rng: random.Random, content: bytes) -> bytes:
    """A Parquet file with bytes changed, or written again with other columns, types, values or settings."""
    if rng.random() < 0.45:
        return damaged(rng, content)
    table = pq.read_table(io.BytesIO(content))
    for _ in range(rng.choice((1, 1, 2))):
        try:
            table = _change_table(rng, table)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            continue  # this change makes no table
    return _written(rng, table) or damaged(rng, content)


def _written(rng: random.Random, table: pa.Table) -> bytes:
    sink = io.BytesIO()
    try:
        pq.write_table(
            table,
            sink,
            compression=rng.choice(("snappy", "none", "zstd", "gzip")),
            use_dictionary=rng.random() < 0.5,
            row_group_size=rng.choice((1, 7, 1000, 10**6)) if table.num_rows < 2000 else 10**6,
            data_page_version=rng.choice(("1.0", "2.0")),
            store_schema=rng.random() < 0.8,
            write_page_checksum=rng.random() < 0.5,
        )
    except (pa.ArrowException, ValueError, OverflowError, UnicodeError):
        return b""
    return sink.getvalue()


def _change_table(rng: random.Random, table: pa.Table) -> pa.Table:
    names = table.column_names
    if not names:
        return pa.table({"a": pa.array([1])})
    where = rng.randrange(len(names))
    name, column, choice = names[where], table.column(where), rng.randrange(11)
    if choice == 0:
        return table.remove_column(where)
    if choice == 1:
        return table.append_column(rng.choice((name, edited(rng, name), nasty_text(rng)[:99])), column)
    if choice == 2:
        return table.rename_columns([edited(rng, old) if old == name else old for old in names])
    if choice == 3:
        return table.set_column(where, name, column.cast(rng.choice(_TYPES), safe=False))
    if choice <= 6:
        return table.set_column(where, name, _other_values(rng, column))
    if choice == 7:
        return table.slice(rng.randrange(table.num_rows + 1), rng.choice((0, 1, table.num_rows)))
    if choice == 8:
        return pa.concat_tables([table, table.slice(0, rng.choice((1, table.num_rows)))])
    if choice == 9:
        return table.replace_schema_metadata(_other_metadata(rng, table.schema.metadata))
    order = list(range(table.num_rows))
    rng.shuffle(order)
    return table.take(order[: rng.choice((len(order), 5))])


def _other_values(rng: random.Random, column: Any) -> Any:
    values = column.to_pylist()
    for _ in range(rng.choice((1, 3, len(values)))):
        if values:
            where = rng.randrange(len(values))
            values[where] = _other_value(rng, values[where])
    return pa.array(values, column.type, from_pandas=False)


def _other_value(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list):
        changed = [_other_value(rng, item) if rng.random() < 0.3 else item for item in value]
        return rng.choice((changed, changed[:-1], [*changed, *changed[:1]], [], None))
    if isinstance(value, float):
        return rng.choice((math.nan, math.inf, -value, value * 1000.0, 1e300, 0.0, None, value + 1e-9))
    if isinstance(value, int):
        return rng.choice((value + 1, -value, 0, 2**31 - 1, None))
    if isinstance(value, str):
        return rng.choice((edited(rng, value)[:5000], nasty_text(rng)[:5000], None))
    return None


def _other_metadata(rng: random.Random, metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    changed = dict(metadata or {b"a": b"1"})
    key = rng.choice(sorted(changed))
    choice = rng.randrange(4)
    if choice == 0:
        del changed[key]
    elif choice == 1:
        changed[key] = damaged(rng, changed[key])[:9000]
    elif choice == 2:
        changed[key] = str(nasty_value(rng)).encode("utf-8", "replace")[:9000]
    else:
        return None
    return changed


def sqlite_changed(rng: random.Random, content: bytes) -> bytes:
    """A SQLite file with bytes changed, or with other rows, tables or settings."""
    if rng.random() < 0.4:
        return damaged(rng, content)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(content)
        try:
            triggers = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall()
            for name, _ in triggers:
                connection.execute(f'DROP TRIGGER "{name}"')
            for _ in range(rng.choice((1, 1, 2))):
                _change_database(rng, connection)
            if rng.random() < 0.9:
                for _, sql in triggers:
                    connection.execute(sql)
            connection.commit()
        except (sqlite3.Error, UnicodeError, OverflowError):
            return damaged(rng, content)
        return bytes(connection.serialize())


def _change_database(rng: random.Random, connection: sqlite3.Connection) -> None:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = rng.choice([name for name in tables if not name.startswith("sqlite_")] or ["none"])
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, other = rng.choice(columns), rng.choice(columns)
    row = rng.choice([found[0] for found in connection.execute(f'SELECT rowid FROM "{table}"')] or [0])
    choice = rng.randrange(9)
    if choice <= 2:
        value = nasty_value(rng)
        value = value if isinstance(value, str | int | float | None) else str(value)
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (value, row))
    elif choice == 3:
        connection.execute(f'DELETE FROM "{table}" WHERE rowid >= ?', (row,))
    elif choice == 4:
        connection.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))
    elif choice == 5:
        connection.execute(f'UPDATE "{table}" SET "{column}" = "{other}" WHERE rowid = ?', (row,))
    elif choice == 6:
        found = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (row,)).fetchone()
        text = edited(rng, str(found[0]) if found else "")
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (text, row))
    elif choice == 7:
        connection.execute(f"PRAGMA user_version = {rng.choice((0, 1, 2, 3, 99, -1))}")
    else:
        connection.execute(
            rng.choice((f'DROP TABLE "{table}"', "CREATE TABLE other (a)", "CREATE VIEW v AS SELECT 1"))
        )
