"""Table II as the paper prints it: approaches, columns and marks, nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Mark(Enum):
    """A cell of the table of ticks."""

    YES = "✓"
    NO = "✗"
    NOT_APPLICABLE = "n/a"
    UNKNOWN = "—"


class Column(Enum):
    """A column of the paper's table."""

    LOAD_DP = "load DP"
    TOPOLOGY_DP = "topology DP"
    FIDELITY = "distribution fidelity"
    UNLIMITED = "unlimited load samples"
    TRUE_Y = "true Y in power flow"


@dataclass(frozen=True)
class PrintedRow:
    """A row of the paper's table.

    Attributes
    ----------
    approach : the paper's words.
    cited : keys of its bibliography.
    marks : (column,) in the order of `Column`.
    notes : of its footnotes, by column.
    """

    approach: str
    cited: tuple[str, ...]
    marks: tuple[Mark, ...]
    notes: Mapping[Column, str]

    def mark(self, column: Column) -> Mark:
        """The paper's cell."""
        return self.marks[tuple(Column).index(column)]


_SIGNS = {"y": Mark.YES, "n": Mark.NO, "-": Mark.NOT_APPLICABLE}
_NO_BOUND = "fidelity is implicit in adversarial training, not bounded in closed form"
_METRIC = "per-parameter metric DP, not the paper's r-adjacency"
_CAPACITIES = "DP of line capacities; the matrix of the network is released in the clear"


def _row(approach: str, cited: str, signs: str, notes: Mapping[Column, str] | None = None) -> PrintedRow:
    marks = tuple(_SIGNS[sign] for sign in signs)
    return PrintedRow(approach, tuple(cited.split()), marks, MappingProxyType(dict(notes or {})))


PRINTED: Mapping[str, PrintedRow] = MappingProxyType(
    {
        "iid-noise": _row(
            "i.i.d. noise on loads", "gergelyDream eibl2017differential barbosa2014lightweight", "ynnn-"
        ),
        "federated": _row("DP federated learning", "fernandez2022privacy", "ynnn-"),
        "dpwgan": _row("DP-SGD GAN (DPWGAN)", "huang2022dpwgan", "ynny-", {Column.FIDELITY: _NO_BOUND}),
        "y-noise": _row(
            "noise on Y entries",
            "fioretto2019differential smith2021realistic",
            "nynnn",
            {Column.TOPOLOGY_DP: _METRIC},
        ),
        "opf-noise": _row("noise on OPF outputs", "dvorkin2020differentially", "nnnny"),
        "bilevel": _row("bilevel obfuscation", "mak2019privacy", "ynnny"),
        "k-means": _row("DP K-means clustering", "ravi2022differentially", "ynny-"),
        "dp-gmm": _row("DP-GMM (KL-optimal)", "liu2025differentially", "ynyy-"),
        "grid-datasets": _row(
            "DP synthetic grid datasets",
            "dvorkin2023differentially",
            "nnynn",
            {Column.TOPOLOGY_DP: _CAPACITIES},
        ),
        "dp-powerflow": _row("this work (DP-Powerflow)", "", "yyyyy"),
    }
)
"""By a key of ours, in the paper's order."""
