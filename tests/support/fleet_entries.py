"""Feeders of a large fleet, made up: what their manifests and pages say, without a release behind it."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from dp_powerflow.fleet.manifest import FeederEntry
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import REQUIRED, Manifest, seal
from support.manifest_releases import load_model, make_inputs, twin_config

STEPS = 24


@cache
def _manifest() -> Manifest[Any]:
    with tempfile.TemporaryDirectory() as folder:
        inputs, _ = make_inputs(Path(folder), twin_config(), load_model())
        return seal(make_statement(inputs), dict.fromkeys(REQUIRED, "0" * 64))


def entry(
    number: int, *, days: int = 365, nodes: int = 100, epsilon: float = 4.0, warnings: tuple[str, ...] = ()
) -> FeederEntry:
    """A feeder that is released, with these figures in its manifest."""
    stated = _manifest()
    network = stated.guarantee.network.model_copy(update={"epsilon": epsilon})
    manifest = stated.model_copy(
        update={
            "data": stated.data.model_copy(
                update={"days": days, "nodes": nodes, "phasors": days * nodes * STEPS}
            ),
            "guarantee": stated.guarantee.model_copy(update={"network": network}),
            "release": stated.release.model_copy(update={"warnings": list(warnings)}),
        }
    )
    return FeederEntry(f"feeder-{number:04d}", manifest, "0" * 64)


def summary(
    *, lowest: float = 0.97, highest: float = 1.02, inside_a: float = 1.0, phasors: int = 1000
) -> dict[str, Any]:
    """Key figures of a feeder's page."""
    return {
        **{"inside_a": inside_a, "phasors": phasors, "lowest_pu": lowest, "highest_pu": highest},
        **{"peak_kw": 812.5, "scaled_down": 3},
    }


def fleet(feeders: int) -> tuple[list[FeederEntry], dict[str, dict[str, Any]]]:
    """So many different feeders, always the same ones."""
    drawn = random.Random(feeders)
    entries, summaries = [], {}
    for number in range(1, feeders + 1):
        each = entry(number, nodes=drawn.randint(5, 900), epsilon=drawn.choice([2.0, 4.0, 6.0]))
        lowest, highest = round(drawn.gauss(0.955, 0.012), 6), round(drawn.gauss(1.03, 0.008), 6)
        inside = min(1.0, 1.0 - 3.0 * max(0.0, 0.95 - lowest))
        entries.append(each)
        summaries[each.name] = summary(
            lowest=lowest, highest=highest, inside_a=inside, phasors=each.manifest.data.phasors
        )
    return entries, summaries
