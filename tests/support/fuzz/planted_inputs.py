"""Planted meters, lists, configs and feeders: wrong, useless or hostile."""

from __future__ import annotations

import copy
import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_powerflow as dpf
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.grid.sources import open_feeder
from support.fleet_small import circuit
from support.fuzz.owned import FORMAT
from support.fuzz.planting import Inputs, Refused, raises
from support.fuzz.trees import toml_text
from support.fuzz.world import CUSTOMERS, World
from support.small import RAW


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
    lines = (
        *("Export voltages x.csv", "Show voltages", "Save circuit dir=x", "Plot circuit", "Dump debug"),
        *(
            "FileEdit x",
            "Set editor=/bin/true",
            "cd /",
            "Set DataPath=/",
            "Visualize currents element=Line.first",
        ),
        *("Compile /etc/passwd", "Redirect ../../../../etc/passwd", "Redirect gone.dss", "Sample", "CloseDI"),
        *(
            "New Generator.g bus1=b kw=1 model=6 usermodel=x.so",
            "New VCCS.v bus1=b",
            "New Monitor.m element=Line.first",
        ),
        *(
            "New PVSystem.p bus1=b usermodel=x.dll",
            "New Load.l bus1=b daily=s yearly=(file=/etc/passwd)",
            "Exit",
            "Quit",
        ),
        *(
            "New Loadshape.s npts=2 mult=(file=/etc/passwd)",
            "New Loadshape.s npts=2 csvfile=/etc/passwd",
            "DI_plot",
        ),
        *(
            "New CapControl.c capacitor=x usermodel=x.so",
            "New Storage.s bus1=b dynadll=x.so",
            "ClosedI",
            "Connect",
        ),
        *(
            "New Loadshape.s npts=2 action=dblsave",
            "New Loadshape.s npts=2 mult=[1 2] action=sngsave",
            "Set Log=yes",
        ),
    )
    # What has no effect on the circuit may be left out, with a note; nothing may be written or run.
    spellings: tuple[Callable[[str], str], ...] = (
        str,
        str.upper,
        str.swapcase,
        lambda text: text.replace(" ", "\t", 1),
    )
    for line in lines:
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
