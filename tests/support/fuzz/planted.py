"""Inputs that must be refused, or reported, made by rule; none may be accepted."""

from __future__ import annotations

import copy
import datetime as dt
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import dp_powerflow as dpf
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.model import canonical_json, digest_of
from dp_powerflow.pipeline.plan import open_ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import circuit
from support.fuzz.changes import WORDS
from support.fuzz.doors import FORMAT
from support.fuzz.world import CUSTOMERS, SEED, World, copied, swapped, without_warnings
from support.small import RAW, toml_text
from support.tampering import leaves, with_leaf

Refused = Callable[[], bool]
"""Tries one planted input; whether it was refused, or reported."""
Inputs = Iterator[tuple[str, Refused]]
"""What was planted, in words, and how to try it."""


def raises(do: Callable[[], object]) -> Refused:
    """Refused means that an error of ours is raised."""

    def refused() -> bool:
        try:
            do()
        except DpPowerflowError:
            return True
        return False

    return refused


# -------------------------------------------------------------------------------------------------- meters
def wrong_meters(world: World, rng: random.Random) -> Inputs:
    """Units off by a thousand, and readings that are no numbers."""
    path = world.folder("planted-meters") / "meters.csv"

    def read(content: bytes) -> Refused:
        def do() -> None:
            path.write_bytes(content)
            dpf.read_meters(path, FORMAT, dpf.LongColumns())

        return raises(do)

    for factor in (1000.0, 500.0, 2000.0, 0.001, 0.0005, 0.0008):
        yield f"x {factor}", read(world.long_csv(factor))
    for word in ("many", "1,5", "--", "0x10", "1e", "five", "1.2.3", "1 2", "#N/A", "?"):
        yield word, read(world.long_csv().replace(b"2.5000", word.encode(), 1))
    text = world.long_csv().decode()
    for share in (0.5, 0.7, 0.9):
        for word in ("inf", "-inf", "nan", ""):
            lines = text.splitlines()
            for k in range(1, len(lines)):
                if rng.random() < share:
                    lines[k] = lines[k].rsplit(",", 1)[0] + f",{word}"
            yield f"{share:.0%} {word or 'empty'}", read("\n".join(lines).encode() + b"\n")
    negative = "\n".join(
        line.replace(",", ",", 1) if not k else _negated(line) for k, line in enumerate(text.splitlines())
    )
    yield "all fed in", read(negative.encode() + b"\n")


def _negated(line: str) -> str:
    head, _, value = line.rpartition(",")
    return f"{head},-{value}"


def near_customers(world: World, rng: random.Random) -> Inputs:
    """A customer twice in the list, or twice but for case, blanks or signs that nobody sees."""
    path = world.folder("planted-services") / "services.csv"
    text = world.services_csv().decode()

    def read(content: str) -> Refused:
        def do() -> None:
            from dp_powerflow.loads.declared import read_service_map

            path.write_text(content, encoding="utf-8")
            read_service_map(path)

        return raises(do)

    for customer in CUSTOMERS:
        for other in (
            customer,
            customer.upper(),
            f" {customer}",
            f"{customer}\u200b",
            f"\ufeff{customer}",
            customer.title(),
        ):
            yield ascii(other), read(text + f"{other},p9,n9.1,homes,5.0,alder\n")
        yield "scale", read(text.replace("5.0", rng.choice(("nan", "inf", "-1", "0", "x")), 1))


# ------------------------------------------------------------------------------------------------- configs
def bad_configs(world: World, rng: random.Random) -> Inputs:
    """Figures that promise nothing, and keys that do not go together."""
    folder = world.folder("planted-configs")

    def read(section: str, key: str, value: Any) -> Refused:
        raw = {name: dict(values) for name, values in RAW.items()}
        raw.setdefault(section, {})[key] = value

        def do() -> None:
            (folder / "release.toml").write_text(toml_text(raw))
            dpf.read_config(folder / "release.toml")

        return raises(do)

    infinite = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, -0.0, -1e-300, "much", [1.0], True)
    for section, key in (("model", "epsilon"), ("network", "epsilon"), ("network", "radius")):
        for value in infinite[:-1]:
            yield f"{section}.{key} = {value}", read(section, key, value)
    for value in (*infinite[:4], 1.0, 1.5, 2, "tiny"):
        yield f"model.delta = {value}", read("model", "delta", value)
    for key in ("epsilon_cap", "network_epsilon_cap"):
        for value in infinite[:5]:
            yield f"release.{key} = {value}", read("release", key, value)
    for name in ("../out", "a/b", "", ".", "a.b", "a b", "x" * 65, "a\nb", "é", "-a", "_a", "a\u202e"):
        yield f"release.id = {name!r}", read("release", "id", name)
    for value in (0, -1, 1.5, "ten", float("inf")):
        yield f"release.days = {value}", read("release", "days", value)
    yield "state within output", read("release", "state", "out/state")
    yield "state at a URL", read("release", "state", "s3://bucket/state")
    together: tuple[tuple[str, str, Any], ...] = (
        *(("network", "change", 0.05), ("network", "id", "tw"), ("model", "estimator", "history")),
        *(("release", "first_day", dt.date(2024, 1, 1)), ("calendar", "holidays", [dt.date(2024, 1, 1)])),
        *(("nodes", "kw_per_customer", 1.0), ("loads", "step_minutes", 7), ("loads", "unit", "kWh")),
        *(("model", "bounds", [2.0, 0.01]), ("model", "bounds", [0.0, 1.0]), ("model", "epsilom", 1.0)),
    )
    for section, key, other in together:
        yield f"{section}.{key}", read(section, key, other)


# ------------------------------------------------------------------------------------------------- feeders
def hostile_scripts(world: World, rng: random.Random) -> Inputs:
    """OpenDSS commands that write, run or load something, in many spellings."""
    folder = world.folder("planted-dss")
    # What has no effect on the circuit may be left out, with a note; nothing may be written or run.
    spellings: tuple[Callable[[str], str], ...] = (
        str,
        str.upper,
        str.swapcase,
        lambda text: text.replace(" ", "\t", 1),
    )
    for line in WORDS["hostile OpenDSS"]:
        for spell in spellings:
            yield line, _harmless(folder, circuit(1.0) + spell(line) + "\n")


def _harmless(folder: Path, text: str) -> Refused:
    """Whether a script is refused, or leaves nothing behind and says what it left out, or does not matter."""

    def refused() -> bool:
        path = folder / "feeder.dss"
        path.write_text(text)
        before = open_feeder_or_none(folder / "plain.dss", circuit(1.0))
        try:
            feeder = open_feeder(path)
        except DpPowerflowError:
            return {item.name for item in folder.iterdir()} <= {"feeder.dss", "plain.dss"}
        same = (
            before is not None and feeder.y.shape == before.y.shape and not (abs(feeder.y - before.y) > 0).nnz
        )
        loads = [(load.kw, load.kvar) for load in feeder.loads]
        untouched = {item.name for item in folder.iterdir()} <= {"feeder.dss", "plain.dss"}
        return untouched and (same or len(loads) != 2)

    return refused


def open_feeder_or_none(path: Path, text: str) -> Any:
    """The feeder without the hostile line."""
    path.write_text(text)
    return open_feeder(path)


def foreign_nets(world: World, rng: random.Random) -> Inputs:
    """pandapower files that name classes, modules or files of others."""
    folder = world.folder("planted-nets")
    flag = folder / "ran"
    tree = json.loads(world.net)
    foreign: tuple[dict[str, Any], ...] = (
        {"_module": "os", "_class": "system", "_object": f"touch {flag}"},
        {"_module": "subprocess", "_class": "Popen", "_object": json.dumps(["touch", str(flag)])},
        {"_module": "builtins", "_class": "exec", "_object": f"open({str(flag)!r}, 'w')"},
        {"_module": "builtins", "_class": "eval", "_object": f"open({str(flag)!r}, 'w')"},
        {"_module": "pathlib", "_class": "Path", "_object": str(flag)},
        {"_module": "importlib", "_class": "import_module", "_object": "antigravity"},
        {"_module": "pickle", "_class": "loads", "_object": "cos\nsystem\n(S'true'\ntR."},
        {"_module": "support.fuzz.world", "_class": "World", "_object": "x"},
    )

    def read(content: dict[str, Any]) -> Refused:
        def refused() -> bool:
            path = folder / "net.json"
            path.write_text(json.dumps(content))
            refused = raises(lambda: open_feeder(path))()
            return refused and not flag.exists()

        return refused

    for extra in foreign:
        for place in ("controller", "note", "bus", "line"):
            changed = copy.deepcopy(tree)
            changed["_object"][place] = extra
            yield f"{extra['_module']}.{extra['_class']} as {place}", read(changed)
        yield f"{extra['_module']} alone", read(extra)


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


@dataclass
class Planted:
    """How many inputs of each kind were planted, and how many were accepted.

    Attributes
    ----------
    counts : kind → (planted, accepted).
    missed : kind and number of what was accepted.
    """

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """Planted inputs that were accepted, of all kinds."""
        return sum(accepted for _, accepted in self.counts.values())

    def table(self) -> str:
        """Kind, planted, refused, accepted."""
        lines = ["| planted | inputs | refused | accepted |", "|---|--:|--:|--:|"]
        lines += [f"| {kind} | {n:,} | {n - bad:,} | {bad:,} |" for kind, (n, bad) in self.counts.items()]
        total = sum(n for n, _ in self.counts.values())
        lines.append(f"| all | {total:,} | {total - self.accepted:,} | {self.accepted:,} |")
        return "\n".join([*lines, *(f"- accepted: {text}" for text in self.missed), ""])


def run_planted(seed: int, most: int | None = None) -> Planted:
    """Try all of them, or at most so many of each kind."""
    found = Planted()
    with tempfile.TemporaryDirectory() as folder, without_warnings():
        world = World(Path(folder))
        kinds = {name: make(world, random.Random(f"{name}/{seed}")) for name, make in KINDS.items()}
        for kind, inputs in kinds.items():
            planted = accepted = 0
            for what, refused in inputs:
                if most is not None and planted >= most:
                    break
                planted += 1
                if not refused():
                    accepted += 1
                    found.missed.append(f"{kind}: {what}")
            found.counts[kind] = (planted, accepted)
    return found


KINDS: dict[str, Callable[[World, random.Random], Inputs]] = {
    "manifest, one entry changed": changed_manifests,
    "manifest, epsilon lowered": lower_epsilons,
    "release, one bit flipped": changed_bytes,
    "part, one voltage changed": one_voltage,
    "model.json, cost understated": understated_models,
    "ledger edited or cut": edited_ledgers,
    "anchor lost, old or made up": other_anchors,
    "meters, unit or values wrong": wrong_meters,
    "customers alike or twice": near_customers,
    "config that promises nothing": bad_configs,
    "OpenDSS commands that write or run": hostile_scripts,
    "pandapower, foreign classes": foreign_nets,
}
