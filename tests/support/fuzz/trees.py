"""Changes of JSON and TOML that know what a value, a key and a table is."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
import random
import tomllib
from typing import Any

from support.fuzz.texts import damaged, edited, nasty_text, recoded

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
    return _with_raw(rng, toml_text(tree)).encode("utf-8", "surrogatepass")


def toml_text(tree: Any) -> str:
    """A tree as TOML; what has no place in TOML is left out or written as text."""
    if not isinstance(tree, dict):
        return toml_value(tree)
    lines = [
        f"{_key(key)} = {toml_value(value)}" for key, value in tree.items() if not isinstance(value, dict)
    ]
    for name, table in tree.items():
        if isinstance(table, dict):
            lines.append(f"[{_key(name)}]")
            lines += [f"{_key(key)} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return json.dumps("none" if value is None else value)


def _key(key: Any) -> str:
    text = str(key)
    return text if text.isascii() and text.replace("_", "").isalnum() else json.dumps(text)
