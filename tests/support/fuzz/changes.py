"""Words that programs stumble over, and other inputs made of valid ones, of whatever kind of file."""

from __future__ import annotations

import copy
import io
import json
import math
import random
import sqlite3
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.small import toml_text, toml_value

Mutate = Callable[[random.Random, bytes], bytes]
"""Another input made from a valid one; the same generator gives the same input."""

WORDS: dict[str, tuple[str, ...]] = {
    kind: tuple(word if isinstance(word, str) else word[0] * word[1] for word in words)
    for kind, words in json.loads(Path(__file__).with_name("words.json").read_bytes()).items()
}
"""Words by what they are for; a pair in the file is a sign and how often it comes."""
NASTY_TEXTS = WORDS["nasty texts"]
NASTY_BYTES = tuple(word.encode("latin-1") for word in WORDS["nasty bytes"])


def nasty_text(rng: random.Random) -> str:
    """A text that some program stumbles over."""
    return rng.choice(NASTY_TEXTS)


def edited(rng: random.Random, text: str) -> str:
    """A text with a small change: a sign more, less or other, case, blanks, or another text in it."""
    where = rng.randrange(len(text) + 1)
    choice = rng.randrange(8)
    if choice == 0:
        return text[:where] + nasty_text(rng)[:200] + text[where:]
    if choice == 1:
        return text[:where] + text[where + 1 :]
    if choice == 2:
        return (
            text[:where]
            + chr(rng.choice((0, 9, 10, 27, 32, 34, 39, 44, 46, 59, 0x202E, 0xD800)))
            + text[where:]
        )
    if choice == 3:
        return text.swapcase()
    if choice == 4:
        return f" {text} "
    if choice == 5:
        return text[::-1]
    if choice == 6:
        return text * rng.choice((0, 2, 50))
    return nasty_text(rng)


def damaged(rng: random.Random, content: bytes) -> bytes:
    """A file with some bytes changed, cut out, doubled, moved or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _damage(rng, data)
    return bytes(data)


def _damage(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data) + 1)
    if len(data) > 40 and rng.random() < 0.3:  # ends of files hold their directories
        start = rng.choice((rng.randrange(20), len(data) - 1 - rng.randrange(20)))
    stop = min(len(data), start + rng.choice((1, 2, 4, 16, 200)))
    choice = rng.randrange(9)
    if choice == 0 and start < len(data):
        data[start] ^= 1 << rng.randrange(8)
    elif choice == 1 and start < len(data):
        data[start] = rng.choice((0, 1, 9, 10, 13, 34, 44, 127, 128, 255, rng.randrange(256)))
    elif choice == 2:
        del data[start:]
    elif choice == 3:
        del data[start:stop]
    elif choice == 4:
        data[start:start] = data[start:stop]
    elif choice == 5:
        data[start:start] = rng.choice(NASTY_BYTES)
    elif choice == 6:
        other = rng.randrange(len(data) + 1)
        data[start:stop] = data[other : other + stop - start]
    elif choice == 7:
        data[start:stop] = rng.randbytes(stop - start)
    else:
        data[start:stop] = nasty_text(rng).encode("utf-8", "surrogatepass")[:5000]


def recoded(rng: random.Random, content: bytes) -> bytes:
    """A text file in another encoding, or with other ends of lines."""
    text = content.decode("utf-8", "replace")
    choice = rng.randrange(6)
    if choice == 0:
        return text.encode("utf-16")
    if choice == 1:
        return b"\xef\xbb\xbf" + content
    if choice == 2:
        return text.encode("latin-1", "replace") + b"\xe9\n"
    if choice == 3:
        return content.replace(b"\n", b"\r\n")
    if choice == 4:
        return content.replace(b"\n", b"\r")
    return text.encode("utf-32")


def words_changed(tokens: Sequence[str]) -> Mutate:
    """A way to change a text of words: lines and words moved, doubled or replaced, by `tokens` too."""

    def mutate(rng: random.Random, content: bytes) -> bytes:
        if rng.random() < 0.15:
            return damaged(rng, content)
        if rng.random() < 0.03:
            return recoded(rng, content)
        lines = content.decode("utf-8", "replace").split("\n")
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            _change_line(rng, lines, tokens)
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    return mutate


def _change_line(rng: random.Random, lines: list[str], tokens: Sequence[str]) -> None:
    where = rng.randrange(len(lines)) if lines else 0
    choice = rng.randrange(7)
    if not lines or choice == 0:
        lines.insert(where, rng.choice(tokens))
    elif choice == 1:
        del lines[where]
    elif choice == 2:
        lines.insert(rng.randrange(len(lines)), lines[where])
    elif choice == 3:
        other = rng.randrange(len(lines))
        lines[where], lines[other] = lines[other], lines[where]
    else:
        words = lines[where].split(" ")
        spot = rng.randrange(len(words))
        name, sign, value = words[spot].partition("=")
        given = rng.choice((rng.choice(tokens), nasty_text(rng)[:400], edited(rng, value or name)))
        words[spot] = f"{name}{sign}{given}" if sign and rng.random() < 0.7 else given
        if rng.random() < 0.2:
            words.insert(rng.randrange(len(words) + 1), rng.choice(tokens))
        lines[where] = " ".join(words)


def csv_changed(rng: random.Random, content: bytes) -> bytes:
    """A CSV file with cells, rows, columns, signs or bytes changed."""
    if rng.random() < 0.12:
        return damaged(rng, content)
    if rng.random() < 0.06:
        return recoded(rng, content)
    rows = [line.split(",") for line in content.decode("utf-8", "replace").splitlines()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, rows)
    separator = rng.choice(",;\t|") if rng.random() < 0.04 else ","
    text = "\n".join(separator.join(row) for row in rows) + rng.choice(("\n", "\n", "\n", "", "\n\n", '"'))
    return text.encode("utf-8", "surrogatepass")


def _change(rng: random.Random, rows: list[list[str]]) -> None:
    if not rows:
        rows.append([nasty_text(rng)])
        return
    where = rng.choice((0, rng.randrange(len(rows)), rng.randrange(len(rows))))
    row, choice = rows[where], rng.randrange(12)
    column = rng.randrange(len(row)) if row else 0
    if choice <= 3 and row:
        row[column] = rng.choice((nasty_text(rng), edited(rng, row[column]), _number(rng, row[column])))
    elif choice == 4:
        del rows[where]
    elif choice == 5:
        rows.insert(rng.randrange(len(rows) + 1), list(row))
    elif choice == 6:
        other = rng.randrange(len(rows))
        rows[where], rows[other] = rows[other], rows[where]
    elif choice == 7:
        _change_column(rng, rows, column)
    elif choice == 8 and row:
        row[column] = f'"{row[column]}' + rng.choice(('"', "", '""', '"x', "\n"))
    elif choice == 9:
        row.append(nasty_text(rng))
    elif choice == 10 and row:
        del row[column]
    else:
        del rows[rng.randrange(len(rows)) :]


def _change_column(rng: random.Random, rows: list[list[str]], column: int) -> None:
    choice = rng.randrange(4)
    for number, row in enumerate(rows):
        if column >= len(row):
            continue
        if choice == 0:
            del row[column]
        elif choice == 1:
            row.append(row[column])
        elif choice == 2:
            row[column], row[0] = row[0], row[column]
        elif number:
            row[column] = _number(rng, row[column]) if rng.random() < 0.9 else row[column]


def _number(rng: random.Random, cell: str) -> str:
    try:
        value = float(cell)
    except ValueError:
        return edited(rng, cell)
    return rng.choice(
        (
            f"{value * 1000:.6g}",
            f"{-value:.6g}",
            "",
            "nan",
            "inf",
            "1e300",
            f"{value:.3f}".replace(".", ","),
            "0",
        )
    )


_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 100, 1440, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-300, 5e-324, 1e308, -1e308, 1e-9, 0.999999, math.inf, -math.inf, math.nan),
)
_RAW = "@raw-{}@"
_RAW_TEXTS = (
    "9" * 5000,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 2000 + "1" + "}" * 2000,
    "1e99999",
    "-",
    "1.",
    "tru",
)


def nasty_value(rng: random.Random) -> Any:
    """A value of any kind."""
    choice = rng.randrange(10)
    if choice < 4:
        return rng.choice(_NUMBERS)
    if choice < 7:
        return nasty_text(rng)
    return rng.choice((None, True, False, [], {}, [[]], [None], {"": 0}, [1, "a", None], _RAW, _RAW))


def changed_tree(rng: random.Random, tree: Any) -> Any:
    """The same tree with one thing in it changed."""
    tree = copy.deepcopy(tree)
    holder, key = _place(rng, tree)
    if holder is None:
        return nasty_value(rng)
    choice = rng.randrange(10)
    if choice <= 2:
        holder[key] = nasty_value(rng)
    elif choice == 3:
        del holder[key]
    elif choice == 4:
        other, its_key = _place(rng, tree)
        if other is not None:
            holder[key] = copy.deepcopy(other[its_key])
    elif choice == 5:
        _add(rng, holder, key)
    else:
        holder[key] = _other(rng, holder[key])
    return tree


def _place(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    """A dictionary or list somewhere in the tree, and a key of it; None for a tree without any."""
    holder, key = None, None
    while isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        holder, key = tree, rng.choice(keys)
        tree = tree[key]
        if rng.random() < 0.15:
            break
    return holder, key


def _add(rng: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    elif rng.random() < 0.5:
        holder[edited(rng, str(key))] = holder[key]
    else:
        holder[edited(rng, str(key))] = holder.pop(key)


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return rng.choice((not value, int(value), str(value).lower()))
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > 10**300:
            return rng.choice((-value, 10**30))
        finite = math.isfinite(value)
        scaled = value * rng.choice((-1, 1000, 0.001, 1.000001, 0.5, 2)) if abs(value) < 1e300 else 0
        return rng.choice(
            (value + 1 if finite else 0, scaled, str(value), [value], float(value) if finite else 1)
        )
    if isinstance(value, str):
        return rng.choice((edited(rng, value), edited(rng, value), [value], {value: value}, len(value)))
    if isinstance(value, list):
        return rng.choice((value[::-1], value[:1], value * 2, [], value[0] if value else None, [value]))
    if isinstance(value, dict):
        return rng.choice(([value], list(value.values()), {}, dict(reversed(value.items())), list(value)))
    return nasty_value(rng)


def _with_raw(rng: random.Random, text: str) -> str:
    return text.replace(f'"{_RAW}"', rng.choice(_RAW_TEXTS)).replace(_RAW, "raw")


def json_changed(rng: random.Random, content: bytes) -> bytes:
    """JSON with values, keys or bytes changed; keys may be there twice, and numbers be none."""
    if rng.random() < 0.12:
        return damaged(rng, content)
    if rng.random() < 0.02:
        return recoded(rng, content)
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = changed_tree(rng, tree)
    text = _with_raw(rng, json.dumps(tree, ensure_ascii=rng.random() < 0.8))
    if rng.random() < 0.05:  # the first key of the object, a second time
        text = text.replace("{", '{"' + rng.choice(("format", "files", "epsilon", "")) + '":1,', 1)
    return text.encode("utf-8", "surrogatepass")


def toml_changed(rng: random.Random, content: bytes) -> bytes:
    """TOML with values, keys or bytes changed."""
    if rng.random() < 0.12:
        return damaged(rng, content)
    if rng.random() < 0.02:
        return recoded(rng, content)
    tree = tomllib.loads(content.decode())
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        tree = changed_tree(rng, tree)
    text = toml_text(tree) if isinstance(tree, dict) else toml_value(tree)
    return _with_raw(rng, text).encode("utf-8", "surrogatepass")


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
