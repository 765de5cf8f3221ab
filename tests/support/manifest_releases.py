"""Small releases for the tests: real load model, ledger and corpus, made-up voltages."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config, parse_config
from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.manifest.model import Statement, Tables, parse_manifest, seal
from dp_powerflow.manifest.render import Words, write_documents
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import almanac_of, budget_of, fit_options_of
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.privacy.ledger.accounts import LoadsCap, LoadsCost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.corpora import EXTRAS, beside, ring
from support.small import other_section, raw_config

LAYOUT = CorpusLayout(days=5, steps=24, nodes=4, days_per_part=3)
REPORT = b'{"evidence": "a function of the secret network"}\n'
CANARY = "canary_7f3a"


TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 4.0, "id": "tw-1", "change": 0.05},
    **{"transformers": True, "capacitors": True},
}


def twin_config(**sections: Any) -> Config:
    """The same release on a twin."""
    release = {"network_delta_cap": 1e-3, **sections.pop("release", {})}
    return config(network=TWIN | sections.pop("network", {}), release=release, **sections)


def config(bound: str = "full-support", **sections: Any) -> Config:
    """A config whose private names and paths carry a canary."""
    raw = raw_config("manifest")
    raw["network"]["bound"] = bound
    for name, values in sections.items():
        raw[name] = other_section(raw.get(name, {}), values)
    return parse_config(raw, base=Path("/home") / CANARY)


@cache
def _fitted(bound: str, unit: str, classes: int, simulated: bool) -> LoadModel:
    history = simulate_load_history(60, n_days=4, step_minutes=60, seed=3)
    chosen = config(bound, model={"unit": unit, "private_classes": classes})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)
        return fit(
            replace(history, simulated=simulated),
            budget=budget_of(chosen),
            options=fit_options_of(chosen),
            key=StreamKey.from_insecure_seed(1),
        )


def load_model(
    bound: str = "full-support",
    unit: str = "load-point",
    classes: int = 0,
    *,
    simulated: bool = False,
    insecure_seed: bool = False,
) -> LoadModel:
    """A fitted load model, as if by a secret key unless told otherwise."""
    return replace(_fitted(bound, unit, classes, simulated), insecure_seed=insecure_seed)


@dataclass(frozen=True, eq=False)
class Made:
    """A finished release and what it was made from."""

    path: Path
    state: Path
    inputs: ManifestInputs


def tables_of(chosen: Config) -> Tables | None:
    """Tables that a config publishes."""
    network: Any = chosen.network
    if getattr(network, "publish", "voltages") == "voltages":
        return None
    days = min(network.graph_days or LAYOUT.days, LAYOUT.days) if "loads" in network.publish else 0
    scenarios = max(days * LAYOUT.steps, 1)
    return Tables(days=days, scenarios=scenarios, frame="rotated", switches_merged=True)


def make_inputs(
    root: Path,
    chosen: Config,
    model: LoadModel,
    *,
    earlier: int = 0,
    seed: int | None = None,
    extras: ExtrasLayout = NOTHING,
) -> tuple[ManifestInputs, PrivateState]:
    """Inputs of the manifest after a real spend, and after as many earlier ones."""
    root.mkdir(parents=True, exist_ok=True)
    state = PrivateState.open(root / "state", insecure_seed=seed)
    ledger = Ledger.open(state)
    release, asked = chosen.release, mode_of(chosen).charge("")
    cost, loads_cap = asked.cost, LoadsCap(release.epsilon_cap or 9.0, 1e-5, model.unit)
    loads = ledgers.account(ledger, state.identity("loads", [b"meters"]), loads_cap)
    network = ledgers.account(ledger, state.identity("network", [b"feeder"]), asked.cap)
    for k in range(earlier):
        before = LoadsCost.reserve(replace(budget_of(chosen), epsilon=0.5))
        ledgers.spend(ledger, loads, f"r-0{k}", f"{k:064x}", before)
        ledgers.spend(ledger, network, f"r-0{k}", f"{k:064x}", cost)
    spends = (
        ledgers.spend(ledger, loads, release.id, "f" * 64, LoadsCost.of(model.costs)),
        ledgers.spend(ledger, network, asked.paid_by, "e" * 64, cost),
    )
    state.write_internal(release.id, "report.json", REPORT)
    inputs = ManifestInputs(
        config=chosen,
        model=model,
        layout=LAYOUT,
        loads=ledgers.remaining(ledger, loads, as_of=spends[0]),
        network=ledgers.remaining(ledger, network, as_of=spends[1]),
        commitment_sha256=state.commit(release.id, "internal report", REPORT),
        insecure_seed=state.insecure_seed,
        keys="destroyed",
        extras=extras,
        sums_customers=extras.scaled_down,
        scaled_down=int((beside(LAYOUT, range(LAYOUT.days), extras)["scaled_down"] > 0).sum())
        if extras.scaled_down
        else 0,
        days=almanac_of(chosen).released,
        tables=tables_of(chosen),
    )
    return inputs, state


def write_release(target: Path, inputs: ManifestInputs) -> Path:
    """The release directory, in the order of calls of the pipeline."""
    writer = CorpusWriter(target, inputs.layout, inputs.config.release.id, inputs.extras)
    writer.prepare()
    rng = np.random.default_rng(0)
    for part in range(inputs.layout.n_parts):
        shape = (len(inputs.layout.days_of(part)), inputs.layout.steps, inputs.layout.nodes)
        angle = np.deg2rad(rng.choice([0.0, -120.0, 120.0], shape[-1]) + rng.normal(0, 1, shape))
        v = (rng.normal(1.0, 0.01, shape) * np.exp(1j * angle)).astype(np.complex128)
        days, extras = inputs.layout.days_of(part), inputs.extras
        writer.write_part(part, v, beside(inputs.layout, days, extras) if extras.holds else None)
    write_documents(writer, inputs, {})
    writer.finish()
    return target


def build_manifest(inputs: ManifestInputs, hashes: dict[str, str]) -> dict[str, Any]:
    """The manifest as plain JSON values."""
    found: dict[str, Any] = json.loads(seal(make_statement(inputs), hashes).to_bytes())
    return found


def said(manifest: dict[str, Any] | Statement[Any], part: str) -> str:
    """What the pages say in one part of the words."""
    statement = parse_manifest(manifest) if isinstance(manifest, dict) else manifest
    return Words.of(statement).text(part)


def make_release(
    root: Path,
    chosen: Config | None = None,
    model: LoadModel | None = None,
    *,
    connections: Connections | None = None,
    **kinds: Any,
) -> Made:
    """A whole release below `root`."""
    inputs, state = make_inputs(root, chosen or config(), model or load_model(), **kinds)
    inputs = replace(inputs, connections=connections)
    return Made(write_release(root / "release", inputs), state.root, inputs)


FIRST = dt.date(2024, 12, 24)  # a Tuesday
HOLIDAYS = ["2024-12-25", "2024-12-26", "2019-12-25"]
WEATHER = {"path": "weather.csv", "time": "date", "temperature": "air", "irradiance": "ghi"}


def weather_file(folder: Path, first: str = "2022-12-31", days: int = 800, shift: float = 0.0) -> Path:
    """A row a day, from before the simulated meters until after the release."""
    start = dt.date.fromisoformat(first)
    rows = [f"{start + dt.timedelta(days=k)},{k % 30 - 5 + shift},{k % 7 * 30}" for k in range(days)]
    path = folder / "weather.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["date,air,ghi", *rows]) + "\n")
    return path


def everything(root: Path, release_id: str = "r-1", *, coordinates: bool = True) -> Made:
    """A release on a twin with powers, states, connections with coordinates, dates with weather."""
    weather = WEATHER | {"path": weather_file(root)}
    chosen = twin_config(
        network={"coordinates": "public" if coordinates else "private"},
        calendar={"holidays": HOLIDAYS},
        weather=weather,
        release={"id": release_id, "first_day": FIRST},
    )
    found = ring(LAYOUT.nodes, coordinates=coordinates)
    return make_release(root, chosen, load_model(), connections=found, extras=EXTRAS)
