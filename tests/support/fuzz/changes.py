"""Words that programs stumble over, and other inputs made of valid ones, of whatever kind of file.

Every change is one of `spliced`, of bytes, signs, lines, words or entries, or another value in a place.
"""

from __future__ import annotations

import io
import json
import math
import random
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.small import repeated, toml_text, toml_value

Mutate = Callable[[random.Random, bytes], bytes]
"""Another input made from a valid one; the same generator gives the same input."""

WORDS: dict[str, tuple[str, ...]] = {
    kind: tuple(map(repeated, words))
    for kind, words in json.loads(Path(__file__).with_name("words.json").read_bytes()).items()
}
"""Words by what they are for; a pair in the file is a sign and how often it comes."""
NASTY_TEXTS = WORDS["nasty texts"]


def spliced(rng: random.Random, whole: Any, *others: Any) -> Any:
    """Bytes, a text or a list, a piece of which is dropped, doubled, turned, moved or another, or the end."""
    start, other = rng.randrange(len(whole) + 1), rng.randrange(len(whole) + 1)
    if len(whole) > 40 and rng.random() < 0.3:  # ends of files hold their directories
        start = rng.choice((rng.randrange(20), len(whole) - 1 - rng.randrange(20)))
    width = rng.choice((1, 1, 2, 4, 16, 200))
    piece, tail = whole[start : start + width], whole[start + width :]
    own = (piece[:0], piece + piece, piece[::-1], whole[other : other + width])
    new = rng.choice((*own, *others, *(given + piece for given in others)))
    return whole[:start] + new + (tail if rng.random() < 0.93 else tail[:0])


def edited(rng: random.Random, text: str) -> str:
    """A text with a small change, or another text in its place."""
    other = rng.choice(NASTY_TEXTS)
    inside = spliced(rng, text, other[:200], rng.choice("\0\t\n\x1b \"',.;\u202e\ud800"))
    return rng.choice((inside, inside, text.swapcase(), f" {text} ", text * rng.choice((0, 2, 50)), other))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """A file with some bytes changed, cut out, doubled, moved or cut off, or in another encoding."""
    if rng.random() < 0.1:
        text = content.decode("utf-8", "replace")
        ends = [content.replace(b"\n", end) for end in (b"\r\n", b"\r")]
        marked = (b"\xef\xbb\xbf" + content, text.encode("latin-1", "replace") + b"\xe9\n")
        return rng.choice((text.encode("utf-16"), text.encode("utf-32"), *marked, *ends))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        word = rng.choice(WORDS["nasty bytes"]).encode("latin-1")
        nasty = rng.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass")[:5000]
        content = spliced(rng, content, rng.randbytes(1), rng.randbytes(8), word, nasty)
    return content


def often(change: Mutate) -> Mutate:
    """What changes a text; now and then its bytes are changed instead."""
    return lambda rng, content: (damaged if rng.random() < 0.15 else change)(rng, content)


def words_changed(tokens: Sequence[str], between: str = " ") -> Mutate:
    """A way to change a text of words or cells: they, lines, columns moved, doubled, replaced, scaled."""

    def change(rng: random.Random, content: bytes) -> bytes:
        rows = [line.split(between) for line in content.decode("utf-8", "replace").split("\n")]
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            choice, at = rng.randrange(4), rng.choice((0, rng.randrange(len(rows))))
            column, token = rng.randrange(len(rows[at]) + 1), [rng.choice(tokens)]
            if choice == 0:
                rows = spliced(rng, rows, [token]) or [token]
            elif choice == 1:
                rows[at] = spliced(rng, rows[at], token)
            else:  # a word, or a column
                for row in rows[1:] if choice == 2 else [rows[at]]:
                    row[column : column + 1] = [_other_word(rng, word, tokens) for word in row[column:][:1]]
        text = (between if rng.random() < 0.98 else rng.choice(",;\t|")).join
        return "\n".join(map(text, rows)).encode("utf-8", "surrogatepass")

    return often(change)


def _other_word(rng: random.Random, word: str, tokens: Sequence[str]) -> str:
    """Another word, cell, or value behind the sign of equality."""
    name, sign, value = word.rpartition("=")
    try:
        number = float(value)
        others = [f"{number * 1000:.6g}", f"{-number:.6g}", f"{number:.3f}".replace(".", ","), "nan", "1e300"]
    except ValueError:
        others = [edited(rng, value), f'"{value}"', f'"{value}', f"{value}\n"]
    return name + sign + rng.choice((*others, rng.choice(tokens), rng.choice(NASTY_TEXTS)[:400]))


_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 100, 1440, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-300, 5e-324, 1e308, -1e308, 1e-9, 0.999999, math.inf, -math.inf, math.nan),
)
_RAW = "@raw@"
"""In its place something is written that is no value."""


def _other_value(rng: random.Random, value: Any) -> Any:
    """What may stand in the place of a value by mistake, or any other value."""
    odd: Any = rng.choice((None, True, False, [], {}, [[]], [None], {"": 0}, [1, "a", None], _RAW))
    others = [rng.choice(_NUMBERS), rng.choice(NASTY_TEXTS), odd, [value], str(value)]
    if isinstance(value, int | float) and abs(value) < 1e300:
        others += [value + 1, value * rng.choice((-1, 1000, 0.001, 1.000001, 0.5, 2)), float(value)] * 2
    elif isinstance(value, str):
        others += [edited(rng, value)] * 4
    elif isinstance(value, dict | list):
        others += [list(value), dict.fromkeys(map(str, value)), [*value][:1]]
    return rng.choice(others)


def _other_tree(rng: random.Random, tree: Any) -> Any:
    """The same tree with one thing in it changed."""
    if not (isinstance(tree, dict | list) and tree) or rng.random() < 0.07:
        return _other_value(rng, tree)
    items: list[tuple[Any, Any]] = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    at = rng.randrange(len(items))
    name, value = items[at]
    if rng.random() < 0.15:
        items = spliced(rng, items, [(rng.choice(NASTY_TEXTS), _other_value(rng, value))])
    elif rng.random() < 0.05:
        items[at] = edited(rng, str(name)), value
    else:
        items[at] = name, _other_tree(rng, value)
    return dict(items) if isinstance(tree, dict) else [value for _, value in items]


def _values_changed(rng: random.Random, content: bytes, read: Callable[[str], Any], write: Any) -> bytes:
    tree = read(content.decode())
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = _other_tree(rng, tree)
    text: str = write(tree).replace(f'"{_RAW}"', rng.choice(WORDS["no values"]))
    if rng.random() < 0.05:  # the first key of an object, a second time
        text = text.replace("{", '{"' + rng.choice(("format", "files", "epsilon", "")) + '":1,', 1)
    return text.encode("utf-8", "surrogatepass")


csv_changed = words_changed(NASTY_TEXTS, ",")
json_changed = often(partial(_values_changed, read=json.loads, write=json.dumps))
"""JSON with values, keys or bytes changed; keys may be there twice, and numbers be none."""
toml_changed = often(
    partial(
        _values_changed,
        read=tomllib.loads,
        write=lambda tree: (toml_text if isinstance(tree, dict) else toml_value)(tree),
    )
)
_TYPES = (
    *(pa.string(), pa.large_string(), pa.int64(), pa.int8(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.binary(), pa.decimal128(20, 3)),
    *(pa.date32(), pa.dictionary(pa.int32(), pa.string())),
)


def parquet_changed(rng: random.Random, content: bytes) -> bytes:
    """A Parquet file with bytes changed, or written again with other columns, types, values or settings."""
    sink = io.BytesIO()
    try:
        if rng.random() < 0.45:
            return damaged(rng, content)
        pq.write_table(
            _other_table(rng, pq.read_table(io.BytesIO(content))),
            sink,
            compression=rng.choice(("snappy", "none", "zstd", "gzip")),
            use_dictionary=rng.random() < 0.5,
            row_group_size=rng.choice((100, 1000, 10**6)),
            data_page_version=rng.choice(("1.0", "2.0")),
            store_schema=rng.random() < 0.8,
        )
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return damaged(rng, content)  # this change makes no table
    return sink.getvalue()


def _other_table(rng: random.Random, table: pa.Table) -> pa.Table:
    names, choice = table.column_names, rng.randrange(7)
    where = rng.randrange(len(names))
    column, values = table.column(where), table.column(where).to_pylist()
    if choice == 0:
        return table.select(spliced(rng, list(range(len(names)))))
    if choice == 1:
        return table.rename_columns([edited(rng, name) if name == names[where] else name for name in names])
    if choice == 2:
        return table.take(spliced(rng, list(range(table.num_rows))))
    if choice == 3:
        return table.set_column(where, names[where], column.cast(rng.choice(_TYPES), safe=False))
    if choice == 4:
        metadata = dict(table.schema.metadata or {b"a": b"1"})
        key = rng.choice(sorted(metadata))
        return table.replace_schema_metadata(metadata | {key: damaged(rng, metadata[key])[:9000]})
    for at in rng.choices(range(len(values)), k=rng.choice((1, 3, len(values)))):
        other = _other_tree(rng, values[at])
        values[at] = other if isinstance(other, type(values[at])) else None
    return table.set_column(where, names[where], pa.array(values, column.type, from_pandas=False))
