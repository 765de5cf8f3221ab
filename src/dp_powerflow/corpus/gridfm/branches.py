"""Every pair of coupled nodes as a two-port branch, the only element that the gridfm-datakit layout knows.

The layout derives a branch from r, x, b, tap and shift,

    y_s = 1/(r + jx),  t = tap·e^(j·shift),
    Yff = (y_s + jb/2)/|t|²,  Yft = −y_s/conj(t),  Ytf = −y_s/t,  Ytt = y_s + jb/2,

so Yft = Y_ij and Ytf = Y_ji fix y_s and shift up to tap; whatever the diagonal of Y then lacks is the shunt
GS + j·BS of the bus.

Where voltages are turned back, a coupling of two phases has Y_ij ≠ Y_ji. It is no line and has r = x = 0; its
two-port is Yff = −Yft and Ytt = −Ytf. Two buses at nominal voltage then exchange nothing through it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import degrees, divide, joined, modulus, multiply, unit
from dp_powerflow.errors import CorpusError
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

_SAME = 1e-12
"""Relative difference up to which two admittances are the same but for rounding."""
_TAP_DEVIATES = 1e-3
"""A ratio nearer to one than this is no tap."""
_TAP_AGREES = 0.1
"""How far the two ends of a branch may disagree on its tap, as a share of the tap's deviation from one."""


@dataclass(frozen=True, eq=False)
class GridfmBranches:
    """Branches, sorted by (from_bus, to_bus); all arrays (branch,), admittances [p.u. of sn_mva].

    Attributes
    ----------
    r, x : series impedance [p.u.]; zero of a coupling of two phases that is turned back.
    tap : ratio, from side.
    shift_deg : phase shift, from side [degrees].
    yff, yft, ytf, ytt : complex two-port admittances; b is zero, charging is in the shunts of the buses.
    """

    from_bus: IntArray
    to_bus: IntArray
    r: FloatArray
    x: FloatArray
    tap: FloatArray
    shift_deg: FloatArray
    yff: ComplexArray
    yft: ComplexArray
    ytf: ComplexArray
    ytt: ComplexArray

    @property
    def count(self) -> int:
        """Number of branches."""
        return len(self.r)

    def at(self, which: IntArray) -> GridfmBranches:
        """Some of the branches."""
        return GridfmBranches(**{column.name: getattr(self, column.name)[which] for column in fields(self)})

    @cached_property
    def magnitude(self) -> FloatArray:
        """(branch,) |Yft| [p.u.]."""
        return modulus(self.yft)


def branches_of(y: sp.csr_array, turn_deg: FloatArray) -> GridfmBranches:
    """The branches of a network.

    Parameters
    ----------
    y : sparse complex (bus, bus) [p.u.].
    turn_deg : (bus,) angle that each voltage is turned back by; zeros for phasors as they are.
    """
    from_bus, to_bus, yft, ytf = _split_pairs(*_pairs(y), turn_deg)
    unlike = modulus(yft - ytf) > _SAME * np.maximum(modulus(yft), modulus(ytf))
    coupling = unlike & (turn_deg[from_bus] != turn_deg[to_bus])
    line = ~coupling
    shift, tap = np.zeros(len(yft)), np.ones(len(yft))
    shift[line] = _shift_deg(yft[line], ytf[line])
    yff = multiply(-yft, unit(-shift))
    ytt = np.where(coupling, -ytf, yff)
    lacking = y.diagonal() - _at_buses(y.shape[0], from_bus, to_bus, yff, ytt)
    tap[line] = _taps(lacking[from_bus[line]], lacking[to_bus[line]], yff[line])
    impedance = np.zeros_like(yff)
    impedance[line] = divide(np.ones_like(yff[line]), tap[line] * yff[line])
    return GridfmBranches(
        from_bus=from_bus,
        to_bus=to_bus,
        r=impedance.real.copy(),
        x=impedance.imag.copy(),
        tap=tap,
        shift_deg=shift,
        yff=joined(yff.real / tap, yff.imag / tap),
        yft=yft,
        ytf=ytf,
        ytt=np.asarray(ytt * tap, dtype=np.complex128),
    )


def shunts_of(y: sp.csr_array, branches: GridfmBranches) -> ComplexArray:
    """Complex (bus,) what the diagonal of Y has beyond its branches [p.u.]."""
    through = _at_buses(y.shape[0], branches.from_bus, branches.to_bus, branches.yff, branches.ytt)
    return np.asarray(y.diagonal() - through)


def _split_pairs(
    i: IntArray, j: IntArray, forward: ComplexArray, backward: ComplexArray, turn_deg: FloatArray
) -> tuple[IntArray, IntArray, ComplexArray, ComplexArray]:
    """One branch per pair, or two: from, to, Yft and Ytf, sorted."""
    there_and_back = modulus(forward), modulus(backward)
    larger = np.maximum(*there_and_back)
    one = np.abs(there_and_back[0] - there_and_back[1]) <= _SAME * larger
    one |= turn_deg[i] != turn_deg[j]
    # Two-ports with |Yft| ≠ |Ytf| have no r, x, tap and shift. Such a pair is written as two parallel
    # branches: the mean of both directions (no shift), and half their difference, whose sign the direction
    # turns (a shift of 90°).
    two = ~one
    mean, half = 0.5 * (forward[two] + backward[two]), 0.5 * (forward[two] - backward[two])
    from_bus, to_bus = np.concatenate([i[one], i[two], i[two]]), np.concatenate([j[one], j[two], j[two]])
    yft = np.concatenate([forward[one], mean, half])
    ytf = np.concatenate([backward[one], mean, -half])
    size = np.maximum(modulus(yft), modulus(ytf))
    there = size > _SAME * np.concatenate([larger[one], larger[two], larger[two]])
    sequence = np.lexsort((to_bus, from_bus))
    sequence = sequence[there[sequence]]
    return from_bus[sequence], to_bus[sequence], yft[sequence], ytf[sequence]


def _pairs(y: sp.csr_array) -> tuple[IntArray, IntArray, ComplexArray, ComplexArray]:
    """Every coupled pair i < j with Y_ij and Y_ji."""
    entries = sp.coo_array(y)
    upper = sp.csr_array(sp.triu(entries, 1))
    lower = sp.csr_array(sp.tril(entries, -1).T)
    pattern = sp.coo_array(abs(upper) + abs(lower))
    sequence = np.lexsort((pattern.col, pattern.row))
    i, j = pattern.row[sequence].astype(np.int64), pattern.col[sequence].astype(np.int64)
    if len(i) == 0:
        raise CorpusError("the feeder has no two nodes that are coupled, so there is no branch to write")
    return i, j, np.asarray(upper[i, j]), np.asarray(lower[i, j])


def _shift_deg(yft: ComplexArray, ytf: ComplexArray) -> FloatArray:
    """Phase shift of branches with |Yft| = |Ytf|; half a turn more makes x positive, as in a transformer."""
    half = 0.5 * degrees(divide(yft, ytf))
    symmetric = modulus(yft - ytf) <= _SAME * modulus(yft)
    reactance_is_positive = multiply(-yft, unit(-half)).imag < 0.0
    turned = np.where(reactance_is_positive, half, half - np.copysign(180.0, half))
    return np.asarray(np.where(symmetric, 0.0, turned))


def _taps(at_from: ComplexArray, at_to: ComplexArray, series: ComplexArray) -> FloatArray:
    """Ratios that explain shunts of opposite sign at the two ends of a branch.

    With ratio one everywhere, a transformer of ratio t leaves the shunts y/t − y at its from side and
    y·t − y at its to side: the two ends agree on t. Any ratio gives the same Y, since shunts make up for it;
    the right one spares the buses at a regulator shunts thousands of times their lines.
    """
    first, second = (1.0 + divide(shunt, series) for shunt in (at_from, at_to))
    positive = (first.real > 0.0) & (second.real > 0.0)
    ratio = np.sqrt(np.where(positive, second.real, 1.0) / np.where(positive, first.real, 1.0))
    deviation = np.abs(ratio - 1.0)
    agree = modulus(multiply(first, second) - 1.0) <= _TAP_AGREES * deviation
    return np.asarray(np.where(positive & agree & (deviation > _TAP_DEVIATES), ratio, np.ones(len(series))))


def _at_buses(
    n: int, from_bus: IntArray, to_bus: IntArray, at_from: ComplexArray, at_to: ComplexArray
) -> ComplexArray:
    """Complex (bus,) sums over the branch ends at each bus."""
    sums = np.zeros(n, dtype=np.complex128)
    np.add.at(sums, from_bus, at_from)
    np.add.at(sums, to_bus, at_to)
    return sums
