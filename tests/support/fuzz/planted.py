"""Inputs that must be refused, or reported, made by rule; none may be accepted."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.fuzz import planted_inputs as inputs_of
from support.fuzz import planted_records as records
from support.fuzz.planting import Inputs
from support.fuzz.world import World, without_warnings


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
    "manifest, one entry changed": records.changed_manifests,
    "manifest, epsilon lowered": records.lower_epsilons,
    "release, one bit flipped": records.changed_bytes,
    "part, one voltage changed": records.one_voltage,
    "model.json, cost understated": records.understated_models,
    "ledger edited or cut": records.edited_ledgers,
    "anchor lost, old or made up": records.other_anchors,
    "meters, unit or values wrong": inputs_of.wrong_meters,
    "customers alike or twice": inputs_of.near_customers,
    "config that promises nothing": inputs_of.bad_configs,
    "OpenDSS commands that write or run": inputs_of.hostile_scripts,
    "pandapower, foreign classes": inputs_of.foreign_nets,
}
