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


def feeder(shown: Shown, hidden: Hidden) -> Feeder:
    lengths, below = hidden.factors(len(shown.lines) + 2, 0.4), hidden.factors(4, 4e-6)
    commands = [
        "New Circuit.c basekv=12.47 bus1=b0 pu=1.02 r1=0.5 x1=1.5 r0=0.5 x0=1.5",
        "New Linecode.one nphases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 units=km",
        "New Linecode.two nphases=3 r1=0.2 x1=0.5 r0=0.7 x0=1.6 c1=11 c0=5 units=km",
    ]
    for k, (kind, factor) in enumerate(zip(shown.lines, lengths, strict=False)):
        ends, length = f"bus1=b{k} bus2=b{k + 1}", 1.5 * factor
        figures = {
            "code": f"linecode=one length={length!r} units=km",
            "unitless": f"r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 length={length!r}",
            "matrices": f"{MATRICES.format(r=0.4, m=0.15, x=0.9)} length={length!r} units=km",
            "coupled": f"{MATRICES.format(r=0.3, m=0.28, x=0.3)} length={length!r} units=mi",
        }[kind]
        commands.append(f"New Line.l{k} {ends} {figures}")
    last = f"b{len(shown.lines)}"
    commands += [f"New Line.twin{k} bus1={last} bus2=t{k} linecode=one length=1 units=km" for k in range(2)]
    if shown.regulated:
        xhl = lengths[-1]
        commands += [
            "New Transformer.reg phases=3 windings=2 kvs=[12.47 12.47] kvas=[5000 5000] "
            f"buses=[{last} r] xhl={xhl!r} %rs=[{0.2 * xhl!r} {0.2 * xhl!r}] "
            f"taps=[1 {1.0 + 0.00625 * hidden.tap!r}]",
            "New RegControl.creg transformer=reg winding=2 vreg=122 band=2 ptratio=60 ctprim=500",
            "New Load.behind bus1=r phases=3 kv=12.47 kw=100 kvar=30",
        ]
    if shown.switched:
        commands += [
            f"New Capacitor.bank bus1={last} phases=3 kv=12.47 kvar={300 * lengths[-2]!r} "
            f"states=[{int(hidden.closed)}]",
            "New CapControl.cc element=line.l0 capacitor=bank type=kvar onsetting=200 offsetting=-100",
        ]
    commands += [
        f"New Load.end bus1={last} phases=3 kv={12.47 * below[0]!r} kw={shown.load_kw * below[1]!r} "
        f"kvar={90 * below[2]!r} vminpu={0.9 * below[3]!r}",
        f"New PVSystem.roof bus1={last} phases=3 kv=12.47 kva={50 * lengths[0]!r} pmpp={40 * lengths[0]!r}",
        "Set VoltageBases=[12.47]",
        "CalcVoltageBases",
        *(f"SetBusXY bus=b{k} x={1000 * lengths[k]!r} y=0" for k in range(2)),
    ]
    return read_dss(DssOrigin(tuple(commands)), name="c")


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
