"""Words that the shell completes after Tab.

They are written down here, not asked of the modules that know them: a key press may not import a solver. The
tests compare them. Where nothing fits, the shell completes names of files.
"""

from __future__ import annotations

from collections.abc import Callable

FEEDERS = ("ieee13", "ieee123", "ieee123-pv")
MODES = ("twin-network", "true-network")
INTERVAL_LABELS = ("start", "end")
EXPERIMENTS = (
    "theorem",
    "wasserstein",
    "recovery",
    "lines",
    "twin",
    "manifold",
    "y-noise",
    "comparison",
    "table1",
    "derived",
    "dvorkin2020",
    "dvorkin2023",
    "fioretto2019",
    "mak2019",
)
DATA_SETS = ("oedi", "simbench", "swiss", "simulated")
DERIVED = ("opf", "hosting-capacity", "reliability")
CONTROLS = ("frozen", "snapshot", "day")


def one_of(words: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Completes to the words that begin with what has been typed."""

    def beginning_with(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return beginning_with
