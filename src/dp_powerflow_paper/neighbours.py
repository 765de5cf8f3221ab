"""The networks that share the true network's manifold of voltages: what Def. dual_adjacency covers.

With fixed power factors the voltages satisfy Im{e^{−jθ_k}·load_k} = 0 at every node. A change of row k of
(Y, b) keeps that for *all* loads only along two real directions: the row times a real number, and a shunt
t·e^{−jθ_k} of the node's own power factor (paper correction 4). Everything here is linear in the change but
the loss itself, which `losses.manifold_loss` gives exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.sparse.csgraph import connected_components

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.reduction import NONZERO_ABOVE
from dp_powerflow.lowlevel import LoadLaw, Network
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.losses import Admittance, implied_load, jacobian_real

LINE_CHANGE = 0.01
_HALF_MAGNITUDE = 0.5e-6
_HALF_ANGLE = float(np.deg2rad(1e-5))
"""Half of the grid of a release; its steps of the angle are 2e-5 degrees at most."""
_RANK_BELOW = 1e-12
"""Singular values below this share of the largest count as zero; the tables show the gap."""


@dataclass(frozen=True, eq=False)
class Move:
    """A change that keeps the manifold.

    Attributes
    ----------
    name : in words.
    scaling : (node,) c, row k becomes (1 + c_k) times itself.
    shunt : (node,) t [p.u.], t_k·e^{−jθ_k} is added to Y_kk.
    """

    name: str
    scaling: FloatArray
    shunt: FloatArray

    def times(self, factor: float) -> Move:
        """The same direction, longer or shorter."""
        return Move(self.name, factor * self.scaling, factor * self.shunt)


@dataclass(frozen=True, eq=False)
class Manifold:
    """A reduced network and the power factors of its loads.

    Attributes
    ----------
    network : the true network; every retained node carries a load, none has generation.
    tan_theta : (node,) tangent of the power-factor angle.
    """

    network: Network
    tan_theta: FloatArray

    def __post_init__(self) -> None:
        if len(self.tan_theta) != self.network.n:
            raise PrivacyError("a manifold of voltages needs one power factor per retained node")

    @cached_property
    def true(self) -> Admittance:
        """Y and b."""
        return Admittance(self.network.y, self.network.b)

    @cached_property
    def turn(self) -> ComplexArray:
        """(node,) e^{−jθ}."""
        return np.asarray((1.0 - 1j * self.tan_theta) / np.hypot(1.0, self.tan_theta))

    def neighbour(self, move: Move) -> Admittance:
        """The changed network."""
        kept = 1.0 + move.scaling
        y = kept[:, None] * self.true.y + np.diag(move.shunt * self.turn)
        return Admittance(y, kept * self.true.b)

    @cached_property
    def metric(self) -> FloatArray:
        """(2n, 2n): ‖ΔY_K‖_F² of a move as a quadratic form of (scaling, shunt), slack columns counted."""
        return _metric(self.network.y_reduced, np.arange(self.network.n), self.turn)

    @cached_property
    def full_metric(self) -> FloatArray:
        """(2n, 2n): ‖ΔY_full‖_F² of the same move, made at the retained rows of the full matrix."""
        rows = sp.csr_array(self.network.feeder.y)[self.network.retained].toarray()
        return _metric(rows, self.network.retained, self.turn)

    def unit(self, move: Move, metric: FloatArray) -> Move:
        """The direction with length 1."""
        x = np.concatenate([move.scaling, move.shunt])
        return move.times(1.0 / float(np.sqrt(x @ metric @ x)))


def _metric(rows: ComplexArray, diagonal: IntArray, turn: ComplexArray) -> FloatArray:
    """Blocks of ‖c_k·row_k + t_k·e^{−jθ_k}·e_k‖²."""
    cross = np.real(np.conj(rows[np.arange(len(turn)), diagonal]) * turn)
    lengths = np.sum(np.abs(rows) ** 2, axis=1)
    return np.block([[np.diag(lengths), np.diag(cross)], [np.diag(cross), np.eye(len(turn))]])


@dataclass(frozen=True)
class Dimensions:
    """How many real directions keep the manifold.

    Attributes
    ----------
    claimed : n² − n, as the paper counts.
    fewest, most : directions of a row (Y_k, b_k), over all rows.
    symmetric : of all moves together if Y′ must be symmetric like Y.
    smallest_kept, largest_dropped : singular values beside the gap, as shares of the largest: of constraints,
        and of the directions that satisfy all of them.
    states : of the network that the constraints were taken at.
    """

    claimed: int
    fewest: int
    most: int
    symmetric: int
    smallest_kept: float
    largest_dropped: float
    states: int


def count_dimensions(manifold: Manifold, v: ComplexArray) -> Dimensions:
    """SVD over random states: a direction x of row k is kept if Im{e^{−jθ_k}v_k·conj(x·(v, 1))} = 0 at all.

    Parameters
    ----------
    v : complex (state, node), more states than 2(n + 1).
    """
    n, states = manifold.network.n, len(v)
    if states < 3 * (n + 1):
        raise PrivacyError(f"counting directions needs at least {3 * (n + 1)} states, not {states}")
    # Unknowns by deviation from the mean state: another basis, same kernel, far better conditioned.
    deviation = v - v.mean(axis=0)
    basis = np.concatenate([deviation / np.abs(deviation).std(axis=0), np.ones((states, 1))], axis=1)
    dropped, kept, gone = [], 1.0, 0.0
    for k in range(n):
        product = (manifold.turn[k] * v[:, k])[:, None] * np.conj(basis)
        values = np.linalg.svd(np.concatenate([product.imag, -product.real], axis=1), compute_uv=False)
        values /= values[0]
        zero = values < _RANK_BELOW
        dropped.append(int(zero.sum()))
        kept, gone = min(kept, float(values[~zero].min())), max(gone, float(values[zero].max(initial=0.0)))
    return Dimensions(
        n**2 - n, min(dropped), max(dropped), _symmetric(manifold.network.y), kept, gone, states
    )


def _symmetric(y: ComplexArray) -> int:
    """Shunts, and one scaling per connected part: c_k·Y_kj = c_j·Y_jk ties the rows together."""
    coupled = np.abs(y) > NONZERO_ABOVE * np.abs(y).max()
    return len(y) + int(connected_components(coupled, directed=False, return_labels=False))


def scores(manifold: Manifold, law: LoadLaw, v: ComplexArray) -> FloatArray:
    """(day, 2n) derivative of the loss Λ by (scaling, shunt) at no move, for v complex (day, step, node)."""
    true, tan = manifold.true, manifold.tan_theta
    p = implied_load(true, v).real
    cosine = 1.0 / np.hypot(1.0, tan)
    slope = np.empty_like(p)
    for ell, (mean, covariance) in enumerate(zip(law.mean, law.covariance, strict=True)):
        of = law.class_of == ell
        z = np.log(p[:, :, of] / law.scale[of]) - mean[:, None]
        slope[:, :, of] = np.einsum("st,dtk->dsk", np.linalg.inv(covariance), z) + 1.0
    by_scaling = slope.sum(axis=1)
    by_shunt = -np.sum(slope * np.abs(v) ** 2 * cosine / p, axis=1)
    total = np.concatenate([by_scaling, by_shunt], axis=1)
    for day, voltages in enumerate(v):
        total[day] += _volume_scores(manifold, voltages).sum(axis=0)
    return total


def _volume_scores(manifold: Manifold, v: ComplexArray) -> FloatArray:
    """(step, 2n) derivative of ½·log det(DGᵀDG) at v (step, node): −tr(P·J⁻¹·dJ), P the projector on DG."""
    n, tan = manifold.network.n, manifold.tan_theta
    jacobian = jacobian_real(manifold.true.y, manifold.true.b, v)
    inverse = np.linalg.inv(jacobian)
    derivative = inverse @ np.concatenate([np.eye(n), np.diag(tan)])
    gram = np.swapaxes(derivative, 1, 2) @ derivative
    weight = derivative @ np.linalg.solve(gram, np.swapaxes(derivative, 1, 2) @ inverse)
    k = np.arange(n)
    back = np.einsum("sij,sji->si", jacobian, weight)
    re, im = v.real, v.imag
    cosine = 1.0 / np.hypot(1.0, tan)
    by_cosine = re * weight[:, k, k] + im * weight[:, n + k, k]
    by_sine = re * weight[:, k, n + k] + im * weight[:, n + k, n + k]
    shunt = 2.0 * cosine * (by_cosine + tan * by_sine)
    return np.asarray(-np.concatenate([back[:, :n] + back[:, n:], shunt], axis=1))


def most_informative(manifold: Manifold, found: FloatArray, metric: FloatArray) -> Move:
    """The unit direction along which the loss varies most: top of E[score·scoreᵀ] in the metric of ΔY."""
    n = manifold.network.n
    _, vectors = eigh(found.T @ found / len(found), metric, subset_by_index=[2 * n - 1, 2 * n - 1])
    best = vectors[:, 0]
    largest = int(np.argmax(np.abs(best)))
    best = best * np.sign(best[largest])
    return manifold.unit(Move("most informative", best[:n], best[n:]), metric)


def towards_margin(manifold: Manifold, law: LoadLaw, metric: FloatArray, sign: float) -> Move:
    """Shunts that move every load alike relative to its size: most loads cross a margin (+1: the lower)."""
    n = manifold.network.n
    name = "all loads towards " + ("p_min" if sign > 0.0 else "p_max")
    return manifold.unit(Move(name, np.zeros(n), sign / law.scale), metric)


def off_manifold(manifold: Manifold, other: Admittance, v: ComplexArray) -> FloatArray:
    """(..., node) reactive power beyond the power factor, of the loads another network implies [p.u.]."""
    load = implied_load(other, v)
    return np.asarray(load.imag - manifold.tan_theta * load.real)


@dataclass(frozen=True)
class LineCase:
    """One snapshot under networks with one line changed by 1 %: reactive power off the manifold [kvar].

    Attributes
    ----------
    lines : how many.
    least, middle, most : largest residual of a node, over the lines.
    own : under the true network itself: rounding.
    hidden : lines that one snapshot, rounded to the grid of a release, does not rule out for certain.
    """

    lines: int
    least: float
    middle: float
    most: float
    own: float
    hidden: int


def changed_lines(manifold: Manifold, v: ComplexArray) -> LineCase | None:
    """Residuals of one snapshot (node,), line by line; None for a feeder without lines."""
    network, true = manifold.network, manifold.true
    feeder = network.feeder
    to_kvar = 1000.0 * feeder.base_mva
    found = []
    for line in feeder.lines:
        if line.is_switch:
            continue
        change = network.line_change(line, LINE_CHANGE * line.primitive)
        other = Admittance(true.y + change.change_of_y(), true.b + change.change_of_b(feeder.v_slack))
        found.append(np.abs(off_manifold(manifold, other, v)) * to_kvar)
    if not found:
        return None
    most = np.array([residual.max() for residual in found])
    # Two roundings, one under either network, must not reach from one manifold to the other.
    rounding = 2.0 * _rounding(manifold, v) * to_kvar
    return LineCase(
        lines=len(found),
        least=float(most.min()),
        middle=float(np.median(most)),
        most=float(most.max()),
        own=float(np.abs(off_manifold(manifold, true, v)).max()) * to_kvar,
        hidden=sum(not np.any(residual > rounding) for residual in found),
    )


def _rounding(manifold: Manifold, v: ComplexArray) -> FloatArray:
    """(node,) most that rounding to the grid of a release can move the residual [p.u.]."""
    error = np.hypot(_HALF_MAGNITUDE, _HALF_ANGLE * np.abs(v))
    current = np.abs(manifold.true.y @ v + manifold.true.b)
    moved = np.abs(v) * (np.abs(manifold.true.y) @ error) + error * current
    return np.asarray(moved * np.hypot(1.0, manifold.tan_theta))
