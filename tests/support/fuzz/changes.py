"""Words that programs stumble over, and other inputs made of valid ones, of whatever kind of file."""

from __future__ import annotations

import copy
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
NASTY_BYTES = tuple(word.encode("latin-1") for word in WORDS["nasty bytes"])
_SIGNS = "\0\t\n\x1b \"',.;\u202e\ud800"


def edited(rng: random.Random, text: str) -> str:
    """A text with a small change: a sign more, less or other, case, blanks, or another text in it."""
    where = rng.randrange(len(text) + 1)
    head, tail, other = text[:where], text[where:], rng.choice(NASTY_TEXTS)
    few = (head + other[:200] + tail, head + tail[1:], head + rng.choice(_SIGNS) + tail, text.swapcase())
    return rng.choice((*few, f" {text} ", text[::-1], text * rng.choice((0, 2, 50)), other))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """A file with some bytes changed, cut out, doubled, moved or cut off."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        start = rng.randrange(len(content) + 1)
        if len(content) > 40 and rng.random() < 0.3:  # ends of files hold their directories
            start = rng.choice((rng.randrange(20), len(content) - 1 - rng.randrange(20)))
        width, other = rng.choice((1, 2, 4, 16, 200)), rng.randrange(len(content) + 1)
        head, own, tail = content[:start], content[start : start + width], content[start + width :]
        pieces = (
            bytes([own[0] ^ 1 << rng.randrange(8)]) + own[1:] if own else b"",
            rng.choice(b'\0\1\t\n\r",\x7f\x80\xff'.decode("latin-1")).encode("latin-1") + own[1:],
            *(b"", own + own, rng.choice(NASTY_BYTES) + own, content[other : other + width]),
            *(rng.randbytes(len(own)), rng.choice(NASTY_TEXTS).encode("utf-8", "surrogatepass")[:5000]),
        )
        content = head if rng.random() < 0.1 else head + rng.choice(pieces) + tail
    return content


def recoded(rng: random.Random, content: bytes) -> bytes:
    """A text file in another encoding, or with other ends of lines."""
    text = content.decode("utf-8", "replace")
    ends = [content.replace(b"\n", end) for end in (b"\r\n", b"\r")]
    marked = (b"\xef\xbb\xbf" + content, text.encode("latin-1", "replace") + b"\xe9\n")
    return rng.choice((text.encode("utf-16"), text.encode("utf-32"), *marked, *ends))


def _often(change: Mutate) -> Mutate:
    """What changes a text; now and then its bytes or its encoding are changed instead."""

    def mutate(rng: random.Random, content: bytes) -> bytes:
        chance = rng.random()
        if chance < 0.15:
            return damaged(rng, content) if chance < 0.12 else recoded(rng, content)
        return change(rng, content)

    return mutate


# ------------------------------------------------------------------------------------------ words and cells
def words_changed(tokens: Sequence[str], between: str = " ") -> Mutate:
    """A way to change a text of words or cells: they, lines, columns moved, doubled, replaced, scaled."""
    return _often(partial(_changed_text, tokens=tokens, between=between))


def _changed_text(rng: random.Random, content: bytes, tokens: Sequence[str], between: str) -> bytes:
    rows = [line.split(between) for line in content.decode("utf-8", "replace").split("\n")]
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        _change_rows(rng, rows, tokens)
    if rng.random() < 0.02:
        between = rng.choice(",;\t|")
    return "\n".join(between.join(row) for row in rows).encode("utf-8", "surrogatepass")


def _change_rows(rng: random.Random, rows: list[list[str]], tokens: Sequence[str]) -> None:
    where, other, choice = rng.randrange(len(rows)), rng.randrange(len(rows)), rng.randrange(14)
    row = rows[rng.choice((0, where))]
    spot = rng.randrange(len(row) + 1)
    if choice == 0:
        rows.insert(where, [rng.choice(tokens)])
    elif choice == 1 and where:
        del rows[where : len(rows) if rng.random() < 0.3 else where + 1]
    elif choice == 2:
        rows.insert(other, list(rows[where]))
    elif choice == 3:
        rows[where], rows[other] = rows[other], rows[where]
    elif choice == 4:
        for each in rows[1:]:
            if spot < len(each):
                each[spot] = _other_word(rng, each[spot], tokens)
    elif choice == 5:
        for each in rows:
            each[spot : spot + 1] = [each[0]] * rng.randrange(3)
    elif choice == 6:
        row.insert(spot, rng.choice(tokens))
    elif choice == 7:
        del row[spot:]
    elif spot < len(row):
        row[spot] = _other_word(rng, row[spot], tokens)
    rows[:] = [each or [""] for each in rows]


def _other_word(rng: random.Random, word: str, tokens: Sequence[str]) -> str:
    """Another word, cell, or value behind the sign of equality."""
    name, sign, value = word.rpartition("=")
    try:
        number = float(value)
        others = [
            f"{number * 1000:.6g}",
            f"{-number:.6g}",
            f"{number:.3f}".replace(".", ","),
            "nan",
            "1e300",
            "",
        ]
    except ValueError:
        others = [edited(rng, value), f'"{value}"', f'"{value}', f"{value}\n"]
    return name + sign + rng.choice((*others, rng.choice(tokens), rng.choice(NASTY_TEXTS)[:400]))


csv_changed = words_changed(NASTY_TEXTS, ",")


# --------------------------------------------------------------------------------------------------- trees
_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 100, 1440, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1e-300, 5e-324, 1e308, -1e308, 1e-9, 0.999999, math.inf, -math.inf, math.nan),
)
_RAW = "@raw@"
"""In its place something is written that is no value."""


def nasty_value(rng: random.Random) -> Any:
    """A value of any kind."""
    odd: Any = rng.choice((None, True, False, [], {}, [[]], [None], {"": 0}, [1, "a", None], _RAW, _RAW))
    return rng.choice((rng.choice(_NUMBERS), rng.choice(NASTY_TEXTS), odd))


def _changed_tree(rng: random.Random, tree: Any) -> Any:
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
        holder[key] = copy.deepcopy(other[its_key])
    elif choice == 5 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    elif choice == 5:
        holder[edited(rng, str(key))] = holder[key] if rng.random() < 0.5 else holder.pop(key)
    else:
        holder[key] = rng.choice(_likely(rng, holder[key]))
    return tree


def _place(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    """A dictionary or list somewhere in the tree, and a key of it; None for a tree without any."""
    holder, key = None, None
    while isinstance(tree, dict | list) and tree and (holder is None or rng.random() < 0.85):
        holder, key = tree, rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        tree = tree[key]
    return holder, key


def _likely(rng: random.Random, value: Any) -> tuple[Any, ...]:
    """Values in whose place a value may stand by mistake."""
    if isinstance(value, bool):
        return not value, int(value), str(value).lower()
    if isinstance(value, int | float):
        if not (math.isfinite(value) if isinstance(value, float) else abs(value) < 10**300):
            return 0, 1.0, 10**30
        scaled = value * rng.choice((-1, 1000, 0.001, 1.000001, 0.5, 2)) if abs(value) < 1e300 else 0
        return value + 1, scaled, str(value), [value], float(value)
    if isinstance(value, str):
        return edited(rng, value), edited(rng, value), [value], {value: value}, len(value)
    if isinstance(value, list):
        return value[::-1], value[:1], value * 2, [], [value], value[0] if value else None
    if isinstance(value, dict):
        return [value], list(value.values()), {}, dict(reversed(value.items())), list(value)
    return (nasty_value(rng),)


def _changed_values(rng: random.Random, content: bytes, read: Callable[[str], Any], write: Any) -> bytes:
    tree = read(content.decode())
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = _changed_tree(rng, tree)
    text: str = write(tree).replace(f'"{_RAW}"', rng.choice(WORDS["no values"]))
    if rng.random() < 0.05:  # the first key of an object, a second time
        text = text.replace("{", '{"' + rng.choice(("format", "files", "epsilon", "")) + '":1,', 1)
    return text.encode("utf-8", "surrogatepass")


def _toml(tree: Any) -> str:
    return toml_text(tree) if isinstance(tree, dict) else toml_value(tree)


json_changed = _often(partial(_changed_values, read=json.loads, write=json.dumps))
"""JSON with values, keys or bytes changed; keys may be there twice, and numbers be none."""
toml_changed = _often(partial(_changed_values, read=tomllib.loads, write=_toml))


# ------------------------------------------------------------------------------------------------- Parquet
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
    sink = io.BytesIO()
    try:
        table = _changed_table(rng, pq.read_table(io.BytesIO(content)))
        pq.write_table(
            table,
            sink,
            compression=rng.choice(("snappy", "none", "zstd", "gzip")),
            use_dictionary=rng.random() < 0.5,
            row_group_size=rng.choice((1, 7, 1000, 10**6)) if table.num_rows < 2000 else 10**6,
            data_page_version=rng.choice(("1.0", "2.0")),
            store_schema=rng.random() < 0.8,
        )
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return damaged(rng, content)  # this change makes no table
    return sink.getvalue()


def _changed_table(rng: random.Random, table: pa.Table) -> pa.Table:
    names, choice = table.column_names, rng.randrange(10)
    where = rng.randrange(len(names))
    name, column = names[where], table.column(where)
    if choice == 0:
        return table.remove_column(where)
    if choice == 1:
        return table.append_column(edited(rng, name)[:99] if rng.random() < 0.5 else name, column)
    if choice == 2:
        return table.rename_columns([edited(rng, old) if old == name else old for old in names])
    if choice == 3:
        return table.set_column(where, name, column.cast(rng.choice(_TYPES), safe=False))
    if choice == 4:
        return table.slice(rng.randrange(table.num_rows + 1), rng.choice((0, 1, table.num_rows)))
    if choice == 5:
        return pa.concat_tables([table, table.slice(0, rng.choice((1, table.num_rows)))])
    if choice == 6:
        metadata = dict(table.schema.metadata or {b"a": b"1"})
        key = rng.choice(sorted(metadata))
        metadata[key] = damaged(rng, metadata[key])[:9000]
        return table.replace_schema_metadata(rng.choice((metadata, None)))
    if choice == 7:
        return table.take(rng.sample(range(table.num_rows), table.num_rows))
    values = column.to_pylist()
    for _ in range(rng.choice((1, 3, len(values)))):
        at = rng.randrange(len(values))
        values[at] = _other_cell(rng, values[at])
    return table.set_column(where, name, pa.array(values, column.type, from_pandas=False))


def _other_cell(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list):
        changed = [_other_cell(rng, item) if rng.random() < 0.3 else item for item in value]
        return rng.choice((changed, changed[:-1], [*changed, *changed[:1]], [], None))
    if isinstance(value, float):
        return rng.choice((math.nan, math.inf, -value, value * 1000.0, 1e300, 0.0, None, value + 1e-9))
    if isinstance(value, int):
        return rng.choice((value + 1, -value, 0, 2**31 - 1, None))
    return edited(rng, value)[:5000] if isinstance(value, str) else None
