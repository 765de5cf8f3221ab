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


def fleet(feeders: int) -> list[FeederEntry]:
    """So many different feeders, always the same ones."""
    drawn = random.Random(feeders)
    return [
        entry(number, nodes=drawn.randint(5, 900), epsilon=drawn.choice([2.0, 4.0, 6.0]))
        for number in range(1, feeders + 1)
    ]
