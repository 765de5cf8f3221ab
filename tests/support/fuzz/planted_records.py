"""Planted releases and private states: what promises less noise, or forgets a charge."""

from __future__ import annotations

import copy
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dp_powerflow as dpf
from dp_powerflow.manifest.model import canonical_json, digest_of
from dp_powerflow.pipeline.plan import open_ledger
from dp_powerflow.privacy.state import PrivateState
from support.fuzz.planting import Inputs, Refused, raises
from support.fuzz.world import SEED, World, copied, swapped
from support.tampering import leaves, with_leaf


# ------------------------------------------------------------------------------------------------ releases
def _not_intact(release: Path, name: str, content: bytes, private: Path | None = None) -> Refused:
    def refused() -> bool:
        with swapped(release / name, content):
            return not dpf.verify(release, private=private).intact

    return refused


def changed_manifests(world: World, rng: random.Random) -> Inputs:
    """One entry of a manifest changed, its own digest made to fit."""
    for made in (world.release, world.true_release):
        manifest = json.loads((made.path / "manifest.json").read_bytes())
        paths = [path for path in leaves(manifest) if path[0] != "manifest_sha256"]
        for path in rng.sample(paths, min(150, len(paths))):
            changed = with_leaf(manifest, path)
            changed["manifest_sha256"] = digest_of(changed)
            # A commitment says nothing to a stranger; whoever has the private state opens it.
            private = made.state if path[0] == "internal_report" else None
            refused = _not_intact(made.path, "manifest.json", canonical_json(changed), private)
            yield ".".join(map(str, path)), refused


def lower_epsilons(world: World, rng: random.Random) -> Inputs:
    """Every epsilon and rho of a manifest, smaller by a share."""
    for made in (world.release, world.true_release):
        manifest = json.loads((made.path / "manifest.json").read_bytes())
        for path in leaves(manifest):
            if path[-1] in ("epsilon", "rho", "delta") and "cap" not in path:
                for factor in (0.1, 0.9, 0.999):
                    changed = copy.deepcopy(manifest)
                    holder = _at(changed, path[:-1])
                    if not isinstance(holder[path[-1]], float) or not holder[path[-1]]:
                        continue
                    holder[path[-1]] *= factor
                    changed["manifest_sha256"] = digest_of(changed)
                    what = f"{'.'.join(map(str, path))} x {factor}"
                    yield what, _not_intact(made.path, "manifest.json", canonical_json(changed))


def _at(tree: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def changed_bytes(world: World, rng: random.Random) -> Inputs:
    """One bit of a released file flipped."""
    release = world.release.path
    names = sorted(str(path.relative_to(release)) for path in release.rglob("*") if path.is_file())
    for name in names:
        content = (release / name).read_bytes()
        for _ in range(6):
            other = bytearray(content)
            other[rng.randrange(len(other))] ^= 1 << rng.randrange(8)
            yield name, _not_intact(release, name, bytes(other))


def one_voltage(world: World, rng: random.Random) -> Inputs:
    """One voltage of a part changed, the file written again as the program writes it."""
    release = world.release.path
    for name in ("data/part-00000.parquet", "data/part-00001.parquet"):
        table = pq.read_table(release / name)
        for _ in range(10):
            values = table.column("vm_pu").to_pylist()
            row = rng.randrange(len(values))
            values[row] = [*values[row]]
            values[row][rng.randrange(len(values[row]))] += 1e-4
            where = table.column_names.index("vm_pu")
            changed = table.set_column(
                where, table.schema.field(where), pa.array(values, table.schema.field(where).type)
            )
            sink = pa.BufferOutputStream()
            pq.write_table(changed, sink)
            yield name, _not_intact(release, name, sink.getvalue().to_pybytes())


def understated_models(world: World, rng: random.Random) -> Inputs:
    """A load model that says it cost less than its noise did."""
    for made in (world.release, world.true_release):
        model = json.loads((made.path / "model.json").read_bytes())
        for path in leaves(model):
            value = _at(model, path)
            said = (
                isinstance(value, float)
                and value
                and path[-1] in ("epsilon", "delta", "rho", "sensitivity", "share")
            )
            for factor in (0.5, 0.99) if said else ():
                changed = copy.deepcopy(model)
                _at(changed, path[:-1])[path[-1]] = value * factor
                text = json.dumps(changed, sort_keys=True, separators=(",", ":")) + "\n"
                yield ".".join(map(str, path)), _cheaper_is_refused(world, made.path, text)


def _cheaper_is_refused(world: World, release: Path, text: str) -> Refused:
    def refused() -> bool:
        # What follows from its own integers may be said of it; as the model of this release it is found.
        return _not_intact(release, "model.json", text.encode())()

    return refused


# ------------------------------------------------------------------------------------------- private state
def _state_refused(world: World, change: Callable[[Path], None], number: int) -> Refused:
    def refused() -> bool:
        root = copied(world.state, world.folder("planted-states") / str(number % 16))
        change(root)
        return raises(
            lambda: open_ledger(PrivateState.open(root, create=False, insecure_seed=SEED)).summary()
        )()

    return refused


def edited_ledgers(world: World, rng: random.Random) -> Inputs:
    """An entry of the ledger edited, removed or doubled; a cap raised; triggers put back."""
    with closing(sqlite3.connect(world.state / "ledger.sqlite")) as connection:
        rows = connection.execute("SELECT seq, event, body FROM entry ORDER BY seq").fetchall()
    number = 0
    for seq, event, body in rows:
        edits: dict[str, tuple[str, tuple[Any, ...]] | None] = {
            "removed": ("DELETE FROM entry WHERE seq = ?", (seq,)),
            "cut off": ("DELETE FROM entry WHERE seq >= ?", (seq,)) if seq else None,
            "other release": ("UPDATE entry SET release_id = 'other' WHERE seq = ?", (seq,)),
            "other account": ("UPDATE entry SET account = 'loads-9' WHERE seq = ?", (seq,)),
            "other request": ("UPDATE entry SET request_sha256 = ? WHERE seq = ?", ("1" * 64, seq)),
            "other day": ("UPDATE entry SET at = '2001-01-01T00:00:00+00:00' WHERE seq = ?", (seq,)),
        }
        for name, figure in _figures(json.loads(body)):
            changed = json.loads(body)
            _at(changed, name[:-1])[name[-1]] = figure * 0.5
            text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
            edits[f"{event} {name[-1]} halved"] = ("UPDATE entry SET body = ? WHERE seq = ?", (text, seq))
            _at(changed, name[:-1])[name[-1]] = figure * 100.0
            text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
            edits[f"{event} {name[-1]} raised"] = ("UPDATE entry SET body = ? WHERE seq = ?", (text, seq))
        for what, edit in edits.items():
            if edit is not None:
                number += 1
                yield f"entry {seq} {what}", _state_refused(world, partial(_edit, *edit), number)


def _figures(body: Any) -> list[tuple[tuple[str | int, ...], float]]:
    return [(path, value) for path in leaves(body) if isinstance(value := _at(body, path), float) and value]


def _edit(sql: str, values: tuple[Any, ...], root: Path) -> None:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(sql, values)
        for _, made in triggers:
            connection.execute(made)
        connection.commit()


def other_anchors(world: World, rng: random.Random) -> Inputs:
    """No anchor, one of an earlier entry, a made-up one, and one of the old form."""
    words = (world.state / "ledger.anchor").read_text().split()

    def write(text: str) -> Callable[[Path], None]:
        def change(root: Path) -> None:
            (root / "ledger.anchor").write_text(text)

        return change

    yield "removed", _state_refused(world, lambda root: (root / "ledger.anchor").unlink(), 0)
    for k in range(40):
        changed = list(words)
        spot = rng.randrange(1, len(words))
        changed[spot] = str(max(0, int(words[1]) - 1 - k)) if spot == 1 else words[spot][::-1]
        yield f"word {spot}", _state_refused(world, write(" ".join(changed) + "\n"), k)
    for k in range(int(words[1])):
        yield f"plain, entry {k}", _state_refused(world, write(f"{k} {words[2]}\n"), k)
