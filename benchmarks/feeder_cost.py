"""What one small feeder of a fleet costs: processor milliseconds per stage, in a process that is warm.

    python benchmarks/feeder_cost.py [--days 28 365] [--kinds dss30 lv15] [--feeders 4] [--hashes FILE]

Feeders of four kinds are released one after the other in this process, on a twin, by default settings, from
a load model that is paid for already (`model.reuse`), as a fleet releases them. The files of one kind differ
in the lengths of their lines, so that nothing is known of a feeder that was not read. The first feeder of a
kind is not counted: it imports and compiles. The figures are means of the others.

A stage's time is that of its own functions, without the stages they call. `--hashes` writes the SHA-256 of
every released file: the same command on another commit must give the same file.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_powerflow import LoadHistory, read_config
from dp_powerflow.pipeline.inputs import meters_of
from dp_powerflow.pipeline.release import run_release

CONFIG = """
[feeder]
source = "{source}"
[loads]
kind = "simulated"
homes_only = true
load_points = 300
days = 56
step_minutes = 15
[model]
epsilon = 1.0
delta = 1e-5
bounds = [0.005, 1.0]
power_factor = 0.97
estimator = "history"
{reuse}
[nodes]
load_class = "residential"
kw_per_customer = {kw_per_customer}
[network]
mode = "twin-network"
epsilon = 1.0
change = 0.05
id = "{id}"
[release]
id = "{id}"
days = {days}
output = "{id}"
state = "state"
epsilon_cap = 2.0
insecure_seed = 1
"""
PIPELINE = "dp_powerflow.pipeline"
MODE = f"{PIPELINE}.modes.twin:TwinMode"
STAGES = {
    "read": [f"{PIPELINE}.inputs:feeder_of"],
    "meters: identity": [f"{PIPELINE}.inputs:loads_chunks"],
    "check, structure": [f"{MODE}.check"],
    "feasibility": [f"{MODE}.feasibility"],
    "identity, frame": [f"{MODE}.identity", f"{MODE}.frame"],
    "plan, charge": [f"{PIPELINE}.run:charge_loads", f"{PIPELINE}.run:charge_network"],
    "model": [f"{PIPELINE}.run:fitted_model", f"{PIPELINE}.plan:kept_model"],
    "draw twin": [f"{MODE}.network_to_solve"],
    "population": [f"{MODE}.scene", f"{MODE}.source", f"{MODE}.nodes"],
    "draw, solve, write": [f"{PIPELINE}.run:make_parts"],
    "statement": [f"{PIPELINE}.run:make_statement", f"{PIPELINE}.run:manifest_inputs"],
    "quality: measure": [f"{PIPELINE}.quality:measure"],
    "quality: page": ["dp_powerflow.quality:Quality.to_html"],
    "documents": [
        f"{PIPELINE}.run:{name}"
        for name in ("registry_bytes", "certificate_html", "card_bytes", "croissant_bytes", "seal")
    ]
    + ["dp_powerflow.model.gaussian:LoadModel.to_json"],
    "files": [
        "dp_powerflow.corpus.writer:CorpusWriter." + name
        for name in ("write_nodes", "write_days", "write_connections", "add_file", "hashes", "finish")
    ]
    + ["dp_powerflow.privacy.state:PrivateState.write_internal"],
}
REST = "rest"


class Stages:
    """Processor seconds of each stage, without what the stages inside it take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = [REST]
        self._since = time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        self._turn()
        self._open.append(stage)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def start(self) -> None:
        """Forget what was measured."""
        self._since = time.process_time()
        self.seconds = {}

    def wrap(self, stage: str, place: str) -> None:
        """Count the time in a function or method, given as module:name."""
        module, _, name = place.partition(":")
        owner: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, self._counted(stage, getattr(owner, last)))

    def _counted(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.of(stage):
                found = function(*args, **kwargs)
                # A generator does its work while it is read.
                return list(found) if isinstance(found, Iterator) else found

        return counted


# ------------------------------------------------------------------------------------------ feeders


def dss_feeder(path: Path, buses: int, seed: int) -> None:
    """A tree of so many buses of three phases, some of them on low voltage behind a transformer."""
    chance = random.Random(seed)
    lines = [
        "Clear",
        "New Circuit.small basekv=12.47 pu=1.02 R1=0.01 X1=0.05 R0=0.01 X0=0.05",
        "New Linecode.main nphases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 units=km",
        "New Linecode.side nphases=3 r1=0.6 x1=0.7 r0=1.2 x0=2.0 c1=7 c0=3 units=km",
    ]
    tree = random.Random(buses)
    for number in range(1, buses):
        before = "sourcebus" if number == 1 else f"b{tree.randrange(max(1, number - 4), number)}"
        code, km = tree.choice(("main", "side")), round(chance.uniform(0.05, 0.4), 4)
        lines.append(
            f"New Line.l{number} phases=3 bus1={before} bus2=b{number} linecode={code} length={km} units=km"
        )
        if tree.random() < 0.7 or number == buses - 1:
            kw = tree.choice((15, 25, 40))
            lines.append(
                f"New Load.s{number} bus1=b{number} phases=3 kv=12.47 kw={kw} kvar={kw / 4} vminpu=0.7"
            )
    lines += ["Set VoltageBases=[12.47]", "CalcVoltageBases", ""]
    path.write_text("\n".join(lines))


def lv_net(path: Path, code: str, seed: int) -> None:
    """A low-voltage net of SimBench with other lengths, as a pandapower JSON file."""
    import pandapower
    import simbench

    net, chance = simbench.get_simbench_net(code), random.Random(seed)
    net.line["length_km"] *= [chance.uniform(0.8, 1.2) for _ in range(len(net.line))]
    pandapower.to_json(net, str(path))


KINDS: dict[str, tuple[Callable[[Path, int], str], float]] = {}


def kind(name: str, kw_per_customer: float) -> Callable[[Any], Any]:
    def keep(make: Callable[[Path, int], str]) -> Callable[[Path, int], str]:
        KINDS[name] = make, kw_per_customer
        return make

    return keep


@kind("dss30", 2.0)
def _dss30(folder: Path, number: int) -> str:
    dss_feeder(folder / f"small-{number}.dss", 10, number)
    return str(folder / f"small-{number}.dss")


@kind("dss100", 2.0)
def _dss100(folder: Path, number: int) -> str:
    dss_feeder(folder / f"middle-{number}.dss", 34, number)
    return str(folder / f"middle-{number}.dss")


@kind("lv15", 1.745)
def _lv15(folder: Path, number: int) -> str:
    lv_net(folder / f"lv-{number}.json", "1-LV-rural1--0-sw", number)
    return str(folder / f"lv-{number}.json")


@kind("lv59", 1.745)
def _lv59(folder: Path, number: int) -> str:
    lv_net(folder / f"urban-{number}.json", "1-LV-urban6--0-sw", number)
    return str(folder / f"urban-{number}.json")


@kind("ieee13", 1.745)
def _ieee13(folder: Path, number: int) -> str:
    del folder, number
    return "ieee13"


# ------------------------------------------------------------------------------------------ runs


def fitted(root: Path) -> LoadHistory:
    """A private state with a load model that is paid for; returns its meter data."""
    (root / "fitted").mkdir()
    source = root / "fitted" / "other.dss"
    dss_feeder(source, 5, 0)
    text = CONFIG.format(source=source, id="model", days=4, kw_per_customer=2.0, reuse="")
    (root / "fitted" / "release.toml").write_text(text)
    config = read_config(root / "fitted" / "release.toml")
    history = meters_of(config, None).history
    run_release(config, workers=1, history=history)
    return history


def release(root: Path, name: str, number: int, days: int, history: LoadHistory) -> Path:
    """One feeder of a kind in a copy of the private state, which knows no other network of its frame."""
    make, kw_per_customer = KINDS[name]
    folder = root / f"{name}-{days}-{number}"
    shutil.copytree(root / "fitted" / "state", folder / "state")
    text = CONFIG.format(
        source=make(folder, number),
        id=f"feeder-{number}",
        days=days,
        kw_per_customer=kw_per_customer,
        reuse='reuse = "model"',
    )
    named = '[release]\nunrelated_network = { accounts = ["network-twin-1"], reason = "another place" }'
    (folder / "release.toml").write_text(text.replace("[release]", named))
    return folder


def measured(asked: argparse.Namespace, root: Path) -> dict[str, str]:
    """Print the tables; SHA-256 of every released file."""
    history, stages, hashes = fitted(root), Stages(), {}
    for stage, places in STAGES.items():
        for place in places:
            stages.wrap(stage, place)
    columns: dict[str, dict[str, float]] = {}
    for days in asked.days:
        for name in asked.kinds:
            found: list[dict[str, float]] = []
            for number in range(asked.feeders + 1):
                folder = release(root, name, number, days, history)
                config = read_config(folder / "release.toml")
                stages.start()
                with stages.of(REST):
                    run_release(config, workers=1, history=history)
                found.append(stages.seconds)
                out = folder / f"feeder-{number}"
                for path in sorted(out.rglob("*")):
                    if path.is_file():
                        digest = hashlib.sha256(path.read_bytes()).hexdigest()
                        hashes[f"{name}-{days}/{path.relative_to(folder)}"] = digest
                shutil.rmtree(folder)
            columns[f"{name} {days}d"] = {
                stage: 1e3 * sum(one.get(stage, 0.0) for one in found[1:]) / asked.feeders
                for stage in (*STAGES, REST)
            }
    print(f"{'processor ms':20}" + "".join(f"{name:>14}" for name in columns))
    for stage in (*STAGES, REST):
        print(f"{stage:20}" + "".join(f"{column[stage]:14.1f}" for column in columns.values()))
    print(f"{'all':20}" + "".join(f"{sum(column.values()):14.1f}" for column in columns.values()))
    return hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, nargs="+", default=[28, 365])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--feeders", type=int, default=4, help="of each kind, beside the first")
    parser.add_argument("--hashes", type=Path, help="file for the SHA-256 of every released file")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="dp-powerflow-bench-"))
    try:
        hashes = measured(asked, root)
    finally:
        shutil.rmtree(root)
    if asked.hashes:
        asked.hashes.write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
