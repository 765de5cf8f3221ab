"""From exact losses to evidence with confidence: per line, the least ε of a fixed grid at some δ.

Probabilistic DP: Pr[Λ > ε] ≤ δ. Hockey stick: E[(1 − exp(ε − Λ))₊] ≤ δ. Both are upper confidence bounds from
independent draws, all of them true together with the stated confidence (union bound over lines, changes,
directions, grid and both statistics). INTERNAL (paper correction 5).

**Other networks.** The two networks a loss compares: the true one, and a neighbour with one line changed.

A change is a matrix added to the line's primitive admittance, so its effect on the reduced network has the
rank of the line's conductors, whatever its size. A `Side` is one of the two made ready: its power flow, its
Jacobian, its branch. Retained nodes with their own random load are *released*; the others (PV only) are
*hidden*: a reader of the released voltages computes theirs from the network he supposes (paper
correction 12).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.special import betainccinv

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.theorem import CONFIDENCE
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.reduction import DENSE_UP_TO, Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler, LoadSource, SolvedDays, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

_ROUNDING = 1e-12
SOLVER_TOLERANCE = 1e-11
_SAME_VOLTAGE = 1e-6
_HIDDEN_TOLERANCE = 1e-12
_HIDDEN_ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class Neighbour:
    """One line, changed.

    Attributes
    ----------
    what : in words, such as "admittance × 1.01".
    change : complex (node of the line, node of the line) [p.u.], added to the line's primitive.
    """

    line: Line
    what: str
    change: ComplexArray


def scaled(line: Line, x: float) -> Neighbour:
    """All of the line's admittance, shunts included, times (1 + x)."""
    if not (np.isfinite(x) and x > -1.0 and x != 0.0):
        raise PrivacyError("a line can be scaled by 1 + x with x above −1 and not 0")
    return Neighbour(line, f"admittance × {1.0 + x:g}", np.asarray(x * line.primitive))


def scaled_both_ways(lines: Iterable[Line], x: float) -> tuple[Neighbour, ...]:
    """Every line times (1 + x) and times (1 − x), line by line."""
    return tuple(scaled(line, sign * x) for line in lines for sign in (1.0, -1.0))


def with_change(feeder: Feeder, neighbour: Neighbour) -> Feeder:
    """The feeder of the neighbour."""
    nodes = np.asarray(neighbour.line.nodes)
    at = np.ix_(nodes, nodes)
    y = sp.lil_array(feeder.y)
    block = y[at].toarray() + neighbour.change
    # What an opened line leaves behind in its own entries is rounding, not an admittance.
    block[np.abs(block) <= _ROUNDING * np.abs(neighbour.change)] = 0.0
    y[at] = block
    y = sp.csc_array(y)
    y.eliminate_zeros()
    lines = tuple(
        replace(line, primitive=line.primitive + neighbour.change) if line is neighbour.line else line
        for line in feeder.lines
    )
    return replace(feeder, y=y, lines=lines, origin=None)


@dataclass(frozen=True, eq=False)
class Seen:
    """What released voltages imply on a network: all voltages and injections of the retained nodes.

    Attributes
    ----------
    v, s : complex (snapshot, retained) [p.u.].
    on_branch : (snapshot,) whether v is certified to be what the solver finds for s.
    """

    v: ComplexArray
    s: ComplexArray
    on_branch: BoolArray


class Side:
    """A network made ready for many snapshots.

    On a large network nothing dense is made: currents come from sparse solves, and every branch is certified
    by the solver itself. Hidden nodes are not supported there.

    Parameters
    ----------
    released : positions, among the retained nodes, of those whose voltages are released.
    """

    def __init__(self, feeder: Feeder, released: IntArray, *, dense_up_to: int = DENSE_UP_TO) -> None:
        network = Network(feeder, dense_up_to=dense_up_to)
        self._network = network
        self.b = network.b
        self.v_slack = feeder.v_slack
        self.released = released
        self.hidden: IntArray = np.setdiff1d(np.arange(network.n), released)
        # One thread each: lines, not snapshots, are shared out among threads.
        self.solver = BatchSolver(feeder, tolerance=SOLVER_TOLERANCE, threads=1)
        self._jacobian = JacobianBatch(feeder, threads=1, factors=self.solver.plans.factors)
        if network.large and len(self.hidden):
            raise PrivacyError(
                "losses per line are not there for large feeders with nodes that carry generation but no load"
            )
        self._reach: FloatArray | None = None
        if not network.large:
            impedance = np.linalg.inv(self.y)
            self._reach = np.abs(impedance)
            self._idle = -impedance @ self.b
            self._hidden_impedance = np.linalg.inv(self.y[np.ix_(self.hidden, self.hidden)])

    @property
    def y(self) -> ComplexArray:
        """Y: complex (retained, retained), dense; of a network that is not large."""
        return self._network.y

    def current(self, v: ComplexArray) -> ComplexArray:
        """Y·v + b for v (snapshot, retained)."""
        return np.asarray(self._network.apply(np.ascontiguousarray(v.T)).T + self.b)

    def solve(self, load: ComplexArray, generation: ComplexArray) -> Seen:
        """Power flow of loads and generation, complex (snapshot, retained) [p.u.]."""
        solution = self.solver.solve(load, generation if generation.any() else None)
        return Seen(solution.v, np.asarray(generation - load), solution.converged)

    def log_volume(self, seen: Seen) -> FloatArray:
        """log|det ∂S/∂v| of the released nodes, but for Π|v|² of these: (snapshot,).

        |det J|/|det J_PP| with P the hidden nodes; the factors |v|² of the hidden nodes cancel.
        """
        value = self._jacobian.log_abs_det(seen.v, seen.s)
        if len(self.hidden):
            a, c = diagonal_terms(seen.v[:, self.hidden], seen.s[:, self.hidden])
            own = real_form(self.y[np.ix_(self.hidden, self.hidden)], a, c)
            value = value - np.linalg.slogdet(own)[1]
        return value

    def on_branch(self, v: ComplexArray, s: ComplexArray, generation: ComplexArray) -> BoolArray:
        """Whether the solver is certified to find v for the injections s = generation − load: (snapshot,).

        Where the fixed point is proved to converge to v nothing is solved. With d = max|x_k − v_k|/|v_k|
        an iterate x moves to distance at most ξ·d/(1 − d) of its fixed point v,
        ξ = max_j Σ_k|Z_jk|·|s_k|/(|v_j|·|v_k|): nearer while ξ < 1 − d. The start is the no-load voltage.
        Elsewhere the solver itself is asked.
        """
        certified = np.zeros(len(v), dtype=np.bool_)
        if self._reach is not None:
            size = np.abs(v)
            xi = ((np.abs(s) / size) @ self._reach.T / size).max(axis=1)
            start = (np.abs(self._idle - v) / size).max(axis=1)
            certified = np.asarray(xi < 1.0 - start)
        load = generation - s
        ask = np.flatnonzero(~certified & np.isfinite(load).all(axis=1) & (load.real >= 0.0).all(axis=1))
        if len(ask):
            found = self.solve(load[ask], generation[ask])
            certified[ask] = found.on_branch & (np.abs(found.v - v[ask]).max(axis=1) < _SAME_VOLTAGE)
        return certified

    def explain(self, v: ComplexArray, generation: ComplexArray) -> Seen:
        """What the released voltages in `v` imply here; voltages of hidden nodes are computed anew."""
        if not len(self.hidden):
            s = v * np.conj(self.current(v))
            return Seen(v, s, self.on_branch(v, s, generation))
        v = v.copy()
        found = self._hidden_voltages(v, generation[:, self.hidden])
        s = v * np.conj(self.current(v))
        s[:, self.hidden] = generation[:, self.hidden]
        return Seen(v, s, np.asarray(found & self.on_branch(v, s, generation)))

    def _hidden_voltages(self, v: ComplexArray, s: ComplexArray) -> BoolArray:
        """Solve the hidden nodes' own equations in place; whether that is proved to have one answer nearby.

        The fixed point u ↦ w + Z_PP·conj(s/u), w the voltages without generation: with
        ξ = max_j Σ_k|Z_jk|·|s_k|/(|w_j||w_k|) < 1/4 it contracts on |u_k − w_k| ≤ |w_k|/2.
        """
        hidden, z = self.hidden, self._hidden_impedance
        others = v.copy()
        others[:, hidden] = 0.0
        idle = -(others @ self.y[hidden].T + self.b[hidden]) @ z.T
        xi = ((np.abs(s) / np.abs(idle)) @ np.abs(z).T / np.abs(idle)).max(axis=1)
        u = idle
        moved = np.inf
        for _ in range(_HIDDEN_ITERATIONS):
            following = idle + np.conj(s / u) @ z.T
            moved = np.abs(following - u).max(axis=1)
            u = following
            if np.all(moved < _HIDDEN_TOLERANCE):
                break
        v[:, hidden] = u
        return np.asarray((xi < 0.25) & (moved < _HIDDEN_TOLERANCE))


Progress = Callable[[int, int], None]

_NO_CHANGE = 1e-13
"""Row sum [p.u.] of Y′ − Y below which a node's implied load is the same: 1e-13 p.u. of power."""
_SNAPSHOTS_AT_A_TIME = 2688
_VALUES_IN_MEMORY = 2**23
"""Loads, and voltages, kept at once: 128 MB each."""


class LoadDensity:
    """log f_pq node by node, up to constants: log p ~ N(μ, Σ) and q given p, over the steps of a day."""

    def __init__(self, law: LoadLaw) -> None:
        if law.q_sigma is None or law.q_covariance is None:
            raise PrivacyError(
                "with a fixed power factor one snapshot tells every change of a line, almost surely; losses "
                "per line exist for random reactive load only (network.bound = 'full-support')"
            )
        if law.truncated:
            raise PrivacyError("losses per line are for untruncated loads; take the law without margins")
        self._law, self._q_sigma = law, law.q_sigma
        self._white_p = [_whitening(covariance) for covariance in law.covariance]
        self._white_q = _whitening(law.q_covariance)

    def __call__(self, load: ComplexArray, nodes: IntArray) -> FloatArray:
        """(day, node) for loads (day, step, node) of some nodes; −∞ where an active load is not positive."""
        law = self._law
        positive = load.real > 0.0
        xi = np.log(np.where(positive, load.real, law.scale[nodes]) / law.scale[nodes])
        value = -xi.sum(axis=1)
        of_class = law.class_of[nodes]
        for ell in np.unique(of_class):
            members = np.flatnonzero(of_class == ell)
            part = xi if len(members) == len(nodes) else xi[:, :, members]
            value[:, members] -= 0.5 * _squares(self._white_p[ell], part - law.mean[ell][:, None])
        zeta = (load.imag - law.tan_theta[nodes] * load.real) / self._q_sigma[nodes]
        value -= 0.5 * _squares(self._white_q, zeta)
        return np.where(positive.all(axis=1), value, -np.inf)


@dataclass(frozen=True, eq=False)
class LineLosses:
    """Λ of every neighbour on independent days; +∞ where an implied active load is not positive, the branch
    is not certified, or a day's power flow was not solved.

    Attributes
    ----------
    by_direction : (neighbour, direction, day). Forward, of days drawn on the true network, log p(v|Y) −
        log p(v|Y′); reverse, of days drawn on the neighbour, log p(v|Y′) − log p(v|Y).
    """

    neighbours: tuple[Neighbour, ...]
    by_direction: FloatArray


@dataclass(frozen=True, eq=False)
class _Days:
    """Days solved on one network."""

    load: ComplexArray  # (day, step, released)
    density: FloatArray  # (day, released)
    v: ComplexArray  # (day, step, retained)
    solved: BoolArray  # (day,)
    volume: FloatArray  # (day,)


class LineLoss:
    """Losses against neighbours of one feeder.

    Parameters
    ----------
    law : law of the loads of the released nodes.
    generation : complex (step, retained) [p.u.], public and constant over days.
    threads : None for one per core.
    dense_up_to : retained nodes up to which matrices of the network may be dense.
    """

    def __init__(
        self,
        feeder: Feeder,
        law: LoadLaw,
        *,
        generation: ComplexArray | None = None,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
    ) -> None:
        n = len(feeder.retained)
        self._dense_up_to = dense_up_to
        self.feeder, self.law = feeder, law
        self.released: IntArray = np.arange(law.n) if law.positions is None else law.positions
        if law.positions is None and law.n != n:
            raise PrivacyError(
                f"the load law is of {law.n} nodes, but {n} are retained; give every node that carries "
                "generation but no load a place among the hidden ones"
            )
        self.density = LoadDensity(law)
        self.generation = np.zeros((law.steps, n), dtype=np.complex128) if generation is None else generation
        self.true = Side(feeder, self.released, dense_up_to=dense_up_to)
        self._network = Network(feeder)
        self.threads = threads or len(os.sched_getaffinity(0))

    def draws(self, key: StreamKey, days: int) -> LoadSampler:
        """Days of the law in blocks that fit memory; `key` is one that no release uses."""
        at_once = max(1, _VALUES_IN_MEMORY // (self.law.steps * len(self.feeder.retained)))
        return LoadSampler(self.law, key, days, block_days=min(days, at_once))

    def losses(
        self, neighbours: Sequence[Neighbour], days: LoadSource, progress: Progress | None = None
    ) -> LineLosses:
        """Both directions on all days of a source, which `draws` makes.

        All neighbours see the same loads; days are independent of each other.
        """
        found = np.empty((len(neighbours), 2, days.n_days))
        done = 0
        for number in range(days.n_blocks):
            made = solve_days(self.true.solver, days, number, generation=self._injected)
            block = self._on_true_network(made)
            rows = slice(made.first_day, made.first_day + made.days)
            with ThreadPoolExecutor(self.threads) as pool:
                both = pool.map(lambda item, block=block: self._both(item, block), neighbours)
                for index, row in enumerate(both):
                    found[index, :, rows] = row
                    done += made.days
                    if progress is not None:
                        progress(done, days.n_days * len(neighbours))
        return LineLosses(tuple(neighbours), found)

    @property
    def _injected(self) -> Generation | None:
        return Generation.every_day(self.generation) if self.generation.any() else None

    def _on_true_network(self, made: SolvedDays) -> _Days:
        load, steps = made.drawn, made.steps
        every = np.arange(self.law.n)
        density, volume = np.empty((made.days, self.law.n)), np.empty(made.days)
        s = -made.load if made.generation is None else made.generation - made.load
        for rows in self._pieces(made.days):
            at = slice(rows.start * steps, rows.stop * steps)
            seen = Seen(made.solution.v[at], s[at], made.solution.converged[at])
            volume[rows] = self.true.log_volume(seen).reshape(-1, steps).sum(axis=1)
            density[rows] = self.density(load[rows], every)
        return _Days(load, density, made.v, _all_steps(made.solution.converged, steps), volume)

    def _both(self, neighbour: Neighbour, block: _Days) -> FloatArray:
        """(direction, day)."""
        changed = with_change(self.feeder, neighbour)
        other = Side(changed, self.released, dense_up_to=self._dense_up_to)
        moved = _Moved.of(self._network, neighbour, self.released)
        out = np.empty((2, len(block.load)))
        for rows in self._pieces(len(block.load)):
            days = _Days(*(getattr(block, field.name)[rows] for field in fields(block)))
            out[0, rows] = self._loss(days, other, moved, -1.0)
            out[1, rows] = self._loss(self._solved_again(days, other), self.true, moved, 1.0)
        return out

    def _solved_again(self, days: _Days, other: Side) -> _Days:
        """The same loads on the other network."""
        count, steps, _ = days.load.shape
        everywhere = np.zeros((count * steps, len(self.feeder.retained)), dtype=np.complex128)
        everywhere[:, self.released] = days.load.reshape(count * steps, -1)
        seen = other.solve(everywhere, np.tile(self.generation, (count, 1)))
        volume = other.log_volume(seen).reshape(-1, steps).sum(axis=1)
        return replace(
            days, v=seen.v.reshape(days.v.shape), solved=_all_steps(seen.on_branch, steps), volume=volume
        )

    def _loss(self, own: _Days, against: Side, moved: _Moved, sign: float) -> FloatArray:
        """Λ (day,) of days solved on one network against the other; `sign` is −1 from Y to Y′."""
        days, steps, _ = own.load.shape
        v = own.v.reshape(days * steps, -1)
        if not own.solved.all():
            v = np.where(np.repeat(own.solved, steps)[:, None], v, 1.0)  # any voltage: the loss is +∞
        generation = np.tile(self.generation, (days, 1))
        if len(against.hidden):
            nodes = np.arange(self.law.n)
            seen = against.explain(v, generation)
            implied = (generation - seen.s)[:, self.released].reshape(days, steps, -1)
        else:
            nodes = moved.nodes
            flow = moved.power(v, against.v_slack)
            implied = own.load[:, :, nodes] + sign * flow.reshape(days, steps, -1)
            s = generation.copy()
            s[:, self.released] -= own.load.reshape(days * steps, -1)
            s[:, self.released[nodes]] -= sign * flow
            seen = Seen(v, s, against.on_branch(v, s, generation))
        term_i = (own.density[:, nodes] - self.density(implied, nodes)).sum(axis=1)
        other_volume = against.log_volume(seen).reshape(days, steps).sum(axis=1)
        total = term_i + own.volume - other_volume
        certified = own.solved & _all_steps(seen.on_branch, steps) & ~np.isnan(total)
        return np.where(certified, total, np.inf)

    def _pieces(self, days: int) -> list[slice]:
        each = max(1, _SNAPSHOTS_AT_A_TIME // self.law.steps)
        return [slice(start, min(days, start + each)) for start in range(0, days, each)]


@dataclass(frozen=True, eq=False)
class _Moved:
    """Where a change of one line moves the implied loads: low rank, and few nodes.

    Attributes
    ----------
    nodes : positions among the released nodes.
    left : complex (node, m)
    right : complex (m, retained + slack)
    retained : positions of the same nodes among the retained ones.
    """

    nodes: IntArray
    left: ComplexArray
    right: ComplexArray
    retained: IntArray

    @classmethod
    def of(cls, network: Network, neighbour: Neighbour, released: IntArray) -> _Moved:
        change = network.line_change(neighbour.line, neighbour.change)
        right = change.core @ change.right
        left = change.left[released]
        reached = np.abs(left @ right).sum(axis=1) > _NO_CHANGE
        nodes = np.flatnonzero(reached)
        return cls(nodes, left[nodes], right, released[nodes])

    def power(self, v: ComplexArray, v_slack: ComplexArray) -> ComplexArray:
        """v∘conj((Y′ − Y)·v_K) at the moved nodes: complex (snapshot, node) [p.u.]."""
        n = v.shape[1]
        through = v @ self.right[:, :n].T + self.right[:, n:] @ v_slack
        return np.asarray(v[:, self.retained] * np.conj(through @ self.left.T))


def _whitening(covariance: FloatArray) -> FloatArray:
    """W with WᵀW = Σ⁻¹."""
    try:
        return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))
    except np.linalg.LinAlgError:
        raise PrivacyError(
            "a covariance of the load law is singular, so voltages tell the network without any doubt; raise "
            "model.variance_floor"
        ) from None


def _squares(white: FloatArray, deviation: FloatArray) -> FloatArray:
    """‖W·x‖² over steps: (day, node) for x (day, step, node)."""
    whitened = np.matmul(white, deviation)
    return np.asarray(np.einsum("dtk,dtk->dk", whitened, whitened))


def _all_steps(flags: BoolArray, steps: int) -> BoolArray:
    """(day,) whether a flag holds at every step of a day."""
    return np.asarray(flags.reshape(-1, steps).all(axis=1))


GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0)
"""ε that are tried; fixed before anything is drawn."""
_STATISTICS = 2
_BISECTIONS = 60


def upper_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is larger with probability at most α."""
    k = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(k >= trials, 1.0, betainccinv(k + 1.0, trials - k, alpha))


def lower_share(hits: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Clopper–Pearson: the share is smaller with probability at most α."""
    return np.asarray(1.0 - upper_share(trials - np.asarray(hits, dtype=np.float64), trials, alpha))


def upper_mean(mean: ArrayLike, trials: int, alpha: float) -> FloatArray:
    """Upper bound of an expectation from the mean of independent values in [0, 1].

    Hoeffding (1963), Theorem 1: Pr[mean ≤ m] ≤ exp(−trials·kl(m, μ)) for m ≤ μ, with kl of two coins. The
    bound is the largest μ with trials·kl(mean, μ) ≤ log(1/α), rounded up.
    """
    m = np.clip(np.asarray(mean, dtype=np.float64), 0.0, 1.0)
    limit = -np.log(alpha) / trials
    low, high = m.copy(), np.ones_like(m)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        inside = _divergence(m, middle) <= limit
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(high)


def smallest_share(trials: int, alpha: float) -> float:
    """Upper bound of a share that never showed: no smaller δ can be claimed from these trials."""
    return float(-np.expm1(np.log(alpha) / trials))


def _divergence(a: FloatArray, b: FloatArray) -> FloatArray:
    """kl(a, b) of two coins, b ≥ a."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heads = np.where(a > 0.0, a * np.log(a / b), 0.0)
        tails = np.where(a < 1.0, (1.0 - a) * np.log((1.0 - a) / (1.0 - b)), 0.0)
    return np.asarray(heads + tails)


@dataclass(frozen=True, eq=False)
class DeltaBounds:
    """Upper confidence bounds of δ at every ε of the grid: (neighbour, direction, grid).

    Attributes
    ----------
    tail : of Pr[Λ > ε].
    hockey : of E[(1 − exp(ε − Λ))₊].
    supported : smallest δ that the draws support.
    """

    tail: FloatArray
    hockey: FloatArray
    supported: float


def delta_bounds(losses: FloatArray, alpha: float) -> DeltaBounds:
    """Bounds from independent losses (neighbour, direction, draw), all true together but for α."""
    neighbours, directions, trials = losses.shape
    each = alpha / (neighbours * directions * len(GRID) * _STATISTICS)
    tail = np.empty((neighbours, directions, len(GRID)))
    hockey = np.empty_like(tail)
    for column, epsilon in enumerate(GRID):
        tail[..., column] = upper_share((losses > epsilon).sum(axis=-1), trials, each)
        excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
        # The hockey stick never exceeds the tail, so the tail's bound holds for it too.
        hockey[..., column] = np.minimum(tail[..., column], upper_mean(excess.mean(axis=-1), trials, each))
    return DeltaBounds(tail, hockey, smallest_share(trials, each))


def least_epsilon(bound: FloatArray, delta: float) -> FloatArray:
    """Least ε of the grid whose bound is at most δ, +∞ where there is none: (...,) for (..., grid)."""
    holds = bound <= delta * (1.0 + 1e-12)  # δ = smallest supported δ is meant to hold
    return np.where(holds.any(axis=-1), np.asarray(GRID)[holds.argmax(axis=-1)], np.inf)


@dataclass(frozen=True)
class LineRow:
    """One line, worst of all its changes.

    Attributes
    ----------
    epsilon : (ε, δ)-indistinguishable, both directions: the hockey stick's; None where there is none.
    epsilon_tail : probabilistic DP, both directions.
    forward, reverse : ε of each direction by itself (hockey stick).
    mean, worst : of Λ over all draws, finite ones; `infinite` the share of draws with Λ = +∞.
    lower : lower confidence bound on ε from the audit, None without one.
    """

    line: str
    is_switch: bool
    epsilon: float | None
    epsilon_tail: float | None
    forward: float | None
    reverse: float | None
    mean: float
    worst: float
    infinite: float
    lower: float | None = None


@dataclass(frozen=True)
class LineEvidence:
    """Every line of one network at one x.

    All upper bounds hold together with `CONFIDENCE`.

    Attributes
    ----------
    changes : in words.
    delta : at which every ε of a day was read off; never below `supported`.
    """

    x: float
    steps: int
    changes: tuple[str, ...]
    draws: int
    delta: float
    supported: float
    rows: tuple[LineRow, ...]


def judge(losses: LineLosses, x: float, steps: int, delta: float) -> LineEvidence:
    """Evidence of a day from losses on independent draws."""
    by_direction = losses.by_direction
    bounds = delta_bounds(by_direction, 1.0 - CONFIDENCE)
    used = max(delta, bounds.supported)
    day = least_epsilon(bounds.hockey, used)
    tail = least_epsilon(bounds.tail, used)
    of_line: dict[str, list[int]] = {}
    for k, item in enumerate(losses.neighbours):
        of_line.setdefault(item.line.name, []).append(k)
    rows = []
    for name, own in of_line.items():
        values = by_direction[own]
        finite = values[np.isfinite(values)]
        rows.append(
            LineRow(
                line=name,
                is_switch=losses.neighbours[own[0]].line.is_switch,
                epsilon=_or_none(float(day[own].max())),
                epsilon_tail=_or_none(float(tail[own].max())),
                forward=_or_none(float(day[own, 0].max())),
                reverse=_or_none(float(day[own, 1].max())),
                mean=float(finite.mean()) if len(finite) else float("inf"),
                worst=float(finite.max()) if len(finite) else float("inf"),
                infinite=float(1.0 - len(finite) / values.size),
            )
        )
    changes = tuple(dict.fromkeys(item.what for item in losses.neighbours))
    return LineEvidence(x, steps, changes, by_direction.shape[-1], used, bounds.supported, tuple(rows))


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
