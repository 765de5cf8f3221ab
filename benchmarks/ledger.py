"""What a charge costs in the ledger, after 10, 100, 1,000 and 5,000 accounts.

    python benchmarks/ledger.py [--large] [--against COMMIT] [--folder DIR]

Every network of a fleet gets an account and a charge, in four ways:

- account, charge: the ledger is opened once, then an account and a charge per network, two transactions;
- as a fleet: the same, but every network opens the ledger again, and asks what `release` asks;
- one by one: account and charge of a network in one transaction (`charge_all`);
- batch: all accounts and charges in one transaction;

and then one further charge in a process of its own, which checks the whole chain first. Figures are seconds
per charge: wall time, which includes waiting for the disk, and processor time, which other programs on the
machine disturb less. A transaction waits for about seven flushes of the disk, so what a flush takes here and
now is printed first. The exponent is that of the total processor time in the number of accounts: 1 is linear.

`--against COMMIT` runs the first two ways on that commit too (from `git archive`, in this repository), and
prints how many times longer it takes. Its totals grow with the square, so it stops at 1,000 accounts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workloads

SIZES = (10, 100, 1_000)
LARGE = 5_000
LIMIT_SECONDS = 60.0
REQUEST = "a" * 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--large", action="store_true", help=f"also {LARGE:,} accounts")
    parser.add_argument("--against", metavar="COMMIT", help="also that commit, up to 1,000 accounts")
    parser.add_argument("--folder", type=Path, help="where the ledgers lie while they are measured")
    parser.add_argument("--child", nargs=3, metavar=("WAY", "N", "STATE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, number, place = arguments.child
        print(json.dumps(WAYS[way](int(number), Path(place))))
        return
    sizes = (*SIZES, LARGE) if arguments.large else SIZES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(f"one flush to the disk takes {1e3 * flush_seconds(Path(folder)):.2f} ms here and now\n")
        sources = {"here": workloads.REPOSITORY / "src"}
        if arguments.against:
            sources["there"] = workloads.archived(arguments.against, Path(folder) / "commit")
        report(sizes, sources, Path(folder))


def report(sizes: tuple[int, ...], sources: dict[str, Path], folder: Path) -> None:
    """One line per way and size, the exponent per way, and the ratio to the other commit."""
    print("way | accounts | wall ms per charge | processor ms per charge | total s | there / here, processor")
    for way in WAYS:
        totals: dict[int, float] = {}
        for size in sizes:
            runs = {}
            for name, source in sources.items():
                if name == "here" or (way in COMPARED and size < LARGE):
                    runs[name] = in_a_process(
                        way, size, source, folder / f"{name}-{way}-{size}".replace(" ", "-")
                    )
            here = runs["here"]
            totals[size] = here["processor"]
            ratio = f"{runs['there']['processor'] / here['processor']:.1f}" if "there" in runs else ""
            each = 1e3 / here["charges"]
            print(
                f"{way} | {size:,} | {each * here['wall']:.2f} | {each * here['processor']:.2f} | "
                f"{here['wall']:.2f} | {ratio}",
                flush=True,
            )
            if size == 1_000 and way != "new process":
                verdict = "under" if here["wall"] < LIMIT_SECONDS else "OVER"
                print(f"  1,000 accounts in {here['wall']:.1f} s: {verdict} the limit of {LIMIT_SECONDS:g} s")
        if way != "new process":
            low, high = sorted(totals)[-2:]
            exponent = math.log(totals[high] / totals[low]) / math.log(high / low)
            print(f"  total ~ accounts^{exponent:.2f} from {low:,} to {high:,}")


def in_a_process(way: str, size: int, source: Path, place: Path) -> dict[str, float]:
    """Run one way with the package of `source`."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, __file__, "--child", way, str(size), str(place)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} with {size} accounts failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def flush_seconds(folder: Path) -> float:
    """Median time of a small write that is on the disk afterwards."""
    times = []
    with (folder / "flush").open("wb") as file:
        for _ in range(30):
            began = time.perf_counter()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def opened(place: Path) -> tuple[Any, Any]:
    from dp_powerflow import Ledger, PrivateState

    state = PrivateState.open(place, insecure_seed=1)
    return state, Ledger.open(state)


def network(state: Any, number: int) -> tuple[Any, str, Any]:
    """What the ledger is told of one feeder: data, release id, cost."""
    from dp_powerflow.privacy.budget import Neighbours
    from dp_powerflow.privacy.ledger.accounts import PureCost, TwinCap
    from dp_powerflow.privacy.ledger.book import ChargedData
    from dp_powerflow.privacy.ledger.records import Unrelated

    unit = Neighbours("one line, length changed by a factor up to 1.05")
    name = str(number).encode()
    related = {
        "unrelated": Unrelated(frozenset(), "another feeder of fleet 'north'", "north"),
        "frame": state.identity("frame", [name]),
    }
    identity = state.identity("network", [name])
    data = ChargedData(identity, TwinCap(1.0, 0.0, unit), **related)
    return data, f"north_feeder-{number:04d}", PureCost(0.5, unit)


def timed(work: Callable[[], None], charges: int) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "charges": charges,
    }


def account_and_charge(size: int, place: Path) -> dict[str, float]:
    from dp_powerflow.privacy.ledger.book import Charge

    state, ledger = opened(place)

    def work() -> None:
        for number in range(size):
            data, release_id, cost = network(state, number)
            ledger.account(data)
            ledger.charge_all([Charge(data, release_id, REQUEST, cost)])

    return timed(work, size)


def as_a_fleet(size: int, place: Path) -> dict[str, float]:
    from dp_powerflow.privacy.ledger.book import Charge

    opened(place)

    def work() -> None:
        for number in range(size):
            state, ledger = opened(place)
            data, release_id, cost = network(state, number)
            ledger.preview(data, cost, release_id)
            ledger.account(data)
            (spend,) = ledger.charge_all([Charge(data, release_id, REQUEST, cost)])
            ledger.balance_after(spend)

    return timed(work, size)


def one_by_one(size: int, place: Path) -> dict[str, float]:
    from dp_powerflow.privacy.ledger.book import Charge

    state, ledger = opened(place)

    def work() -> None:
        for number in range(size):
            data, release_id, cost = network(state, number)
            ledger.charge_all([Charge(data, release_id, REQUEST, cost)])

    return timed(work, size)


def batch(size: int, place: Path) -> dict[str, float]:
    from dp_powerflow.privacy.ledger.book import Charge

    state, ledger = opened(place)

    def work() -> None:
        charges = []
        for number in range(size):
            data, release_id, cost = network(state, number)
            charges.append(Charge(data, release_id, REQUEST, cost))
        ledger.charge_all(charges)

    return timed(work, size)


def new_process(size: int, place: Path) -> dict[str, float]:
    """Of a ledger with so many accounts: check everything, then charge one more network."""
    batch(size, place)
    script = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import ledger; from pathlib import Path; "
        "print(json.dumps(ledger.one_more(int(sys.argv[2]), Path(sys.argv[3]))))"
    )
    runs = []
    for number in range(3):
        command = [sys.executable, "-c", script, str(Path(__file__).parent), str(size + number), str(place)]
        runs.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    best: dict[str, float] = min(runs, key=lambda run: float(run["processor"]))
    return best


def one_more(number: int, place: Path) -> dict[str, float]:
    from dp_powerflow.privacy.ledger.book import Charge  # what is imported is not measured

    def work() -> None:
        state, ledger = opened(place)
        data, release_id, cost = network(state, number)
        ledger.charge_all([Charge(data, release_id, REQUEST, cost)])

    return timed(work, 1)


WAYS = {
    "account, charge": account_and_charge,
    "as a fleet": as_a_fleet,
    "one by one": one_by_one,
    "batch": batch,
    "new process": new_process,
}
COMPARED = ("account, charge", "as a fleet")


if __name__ == "__main__":
    main()
