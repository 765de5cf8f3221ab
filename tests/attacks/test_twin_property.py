"""The privacy argument of a twin, as a property.

Two true feeders with the same rounded frame and the same levels give the same twin, bit by bit.

Whatever a file holds beyond its frame (lengths, digits below the public steps, sizes with levels of their
own, taps and states that controls left, coordinates, columns that no twin reads) differs between the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_powerflow import Feeder, Protected
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.parameters import frame_and_parameters
from dp_powerflow.grid.opendss.reader import read_dss
from support.attacks import assert_twins_agree
from support.small_circuits import script

COVERED = Protected(transformers=True, capacitors=True, pv=True)
CHOICES = [
    COVERED,
    replace(COVERED, charging=True),
    replace(COVERED, lines="length"),
    replace(COVERED, lines="length", codes=True),
]
MATRICES = "rmatrix=[{r}|{m} {r}|{m} {m} {r}] xmatrix=[{x}|{m} {x}|{m} {m} {x}] cmatrix=[9|-1 9|-1 -1 9]"


@dataclass(frozen=True)
class Hidden:
    """What of a feeder is not in the frame of its twins."""

    seed: int
    tap: int
    closed: bool

    def factors(self, n: int, spread: float) -> list[float]:
        drawn = np.random.default_rng(self.seed).uniform(-spread, spread, n)
        return [float(factor) for factor in np.exp(drawn)]


@dataclass(frozen=True)
class Shown:
    """What is: which elements there are, and their public figures."""

    lines: tuple[str, ...]
    load_kw: int
    regulated: bool
    switched: bool


LINES = {
    "code": "linecode=one length={length!r} units=km",
    "unitless": "r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 length={length!r}",
    "matrices": MATRICES.format(r=0.4, m=0.15, x=0.9) + " length={length!r} units=km",
    "coupled": MATRICES.format(r=0.3, m=0.28, x=0.3) + " length={length!r} units=mi",
}


def feeder(shown: Shown, hidden: Hidden) -> Feeder:
    lengths, factors = hidden.factors(len(shown.lines) + 2, 0.4), hidden.factors(4, 4e-6)
    last, xhl, bank, regulator = f"b{len(shown.lines)}", lengths[-1], "", ""
    lines = [
        f"New Line.l{k} bus1=b{k} bus2=b{k + 1} {LINES[kind].format(length=1.5 * factor)}"
        for k, (kind, factor) in enumerate(zip(shown.lines, lengths, strict=False))
    ]
    if shown.regulated:
        tap = 1.0 + 0.00625 * hidden.tap
        regulator = script("property_regulator", last=last, xhl=xhl, rs=0.2 * xhl, tap=tap)
    if shown.switched:
        bank = script("property_bank", last=last, kvar=300 * lengths[-2], closed=int(hidden.closed))
    text = script(
        "property",
        lines="\n".join(lines),
        last=last,
        regulator=regulator,
        bank=bank,
        below=[figure * k for figure, k in zip((12.47, shown.load_kw, 90, 0.9), factors, strict=True)],
        kva=50 * lengths[0],
        pmpp=40 * lengths[0],
        x=[1000 * length for length in lengths[:2]],
    )
    return read_dss(DssOrigin(tuple(text.splitlines())), name="c")


lines = st.lists(st.sampled_from(["code", "unitless", "matrices", "coupled"]), min_size=1, max_size=4)
shown = st.builds(Shown, lines.map(tuple), st.integers(50, 900), st.booleans(), st.booleans())
hidden = st.builds(Hidden, st.integers(0, 2**32 - 1), st.integers(-8, 8), st.booleans())


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(shown, hidden, hidden, st.sampled_from(CHOICES))
def test_the_same_frame_and_levels_give_the_same_twin(
    shown: Shown, one: Hidden, other: Hidden, protected: Protected
) -> None:
    first, second = feeder(shown, one), feeder(shown, other)
    frames = []
    for each in (first, second):
        assert isinstance(each.origin, DssOrigin)
        frames.append(frame_and_parameters(each.origin, protected)[0])
    assert frames[0] == frames[1]
    if one.seed != other.seed:
        assert_twins_agree(first, second, protected)
