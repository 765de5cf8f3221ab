"""The exact privacy loss of released days between a network and its neighbours, line by line, in bulk.

Λ = log p(v|own) − log p(v|other) of a day's voltages: Term I from the loads they imply on either network,
Term II from the volume of the map (Eq. llr_decomp). Forward: days drawn and solved on the true network;
reverse: the same loads solved on the neighbour. INTERNAL: a function of the secret network (paper
correction 5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.lines.neighbours import Neighbour, with_change
from dp_powerflow.evidence.lines.side import Seen, Side
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.norms import DENSE_UP_TO
from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

Draw = Callable[[int], ComplexArray]
Progress = Callable[[int, int], None]

DIRECTIONS = ("true network", "neighbour")
"""Where the days are drawn: forward, reverse."""
_NO_CHANGE = 1e-13
"""Row sum [p.u.] of Y′ − Y below which a node's implied load is the same: 1e-13 p.u. of power."""
_SNAPSHOTS_AT_A_TIME = 2688
_VALUES_IN_MEMORY = 2**23
"""Loads, and voltages, kept at once: 128 MB each."""


class LoadDensity:
    """log f_pq node by node, up to constants: log p ~ N(μ, Σ) and q given p, over the steps of a day."""

    def __init__(self, law: NodeLaw) -> None:
        if law.q_sigma is None or law.q_covariance is None:
            raise PrivacyError(
                "with a fixed power factor one snapshot tells every change of a line, almost surely; losses "
                "per line exist for random reactive load only (network.bound = 'full-support')"
            )
        if law.p_min is not None:
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
    forward : (neighbour, day), days drawn on the true network, log p(v|Y) − log p(v|Y′).
    reverse : (neighbour, day), days drawn on the neighbour, log p(v|Y′) − log p(v|Y).
    """

    neighbours: tuple[Neighbour, ...]
    forward: FloatArray
    reverse: FloatArray

    @property
    def by_direction(self) -> FloatArray:
        """(neighbour, direction, day)."""
        return np.stack([self.forward, self.reverse], axis=1)


@dataclass(frozen=True, eq=False)
class _Days:
    """A block of days on the true network, shared by all neighbours."""

    load: ComplexArray  # (day, step, released)
    density: FloatArray  # (day, released)
    v: ComplexArray  # (day, step, retained)
    solved: BoolArray  # (day,)
    volume: FloatArray  # (day,)


class LineLoss:
    """Losses against neighbours of one feeder.

    Parameters
    ----------
    law : law of the loads of the released nodes, in their order.
    released : positions of these among the retained nodes; None for all of them.
    generation : complex (step, retained) [p.u.], public and constant over days.
    threads : None for one per core.
    dense_up_to : retained nodes up to which matrices of the network may be dense.
    """

    def __init__(
        self,
        feeder: Feeder,
        law: NodeLaw,
        *,
        released: IntArray | None = None,
        generation: ComplexArray | None = None,
        threads: int | None = None,
        dense_up_to: int = DENSE_UP_TO,
    ) -> None:
        n = len(feeder.retained)
        self._dense_up_to = dense_up_to
        self.feeder, self.law = feeder, law
        self.released: IntArray = np.arange(n) if released is None else released
        if law.n != len(self.released):
            raise PrivacyError(
                f"the load law is of {law.n} nodes, but {len(self.released)} are released; give every node "
                "that carries generation but no load a place among the hidden ones"
            )
        self.density = LoadDensity(law)
        self.generation = np.zeros((law.steps, n), dtype=np.complex128) if generation is None else generation
        self.true = Side(feeder, self.released, dense_up_to=dense_up_to)
        self._network = Network(feeder)
        self._threads = threads or len(os.sched_getaffinity(0))

    def losses(
        self, neighbours: Sequence[Neighbour], draw: Draw, days: int, progress: Progress | None = None
    ) -> LineLosses:
        """Both directions on so many days.

        Parameters
        ----------
        draw : gives the loads of the next days, complex (day, step, released) [p.u.], from a key that no
            release uses. All neighbours see the same loads; days are independent of each other.
        """
        if days < 1 or not neighbours:
            raise PrivacyError("losses need at least one neighbour and one day")
        found = np.empty((len(neighbours), 2, days))
        per_block = max(1, _VALUES_IN_MEMORY // (self.law.steps * len(self.feeder.retained)))
        done = 0
        for start in range(0, days, per_block):
            stop = min(days, start + per_block)
            block = self._on_true_network(draw(stop - start))
            with ThreadPoolExecutor(self._threads) as pool:
                rows = pool.map(lambda item, block=block: self._both(item, block), neighbours)
                for index, row in enumerate(rows):
                    found[index, :, start:stop] = row
                    done += stop - start
                    if progress is not None:
                        progress(done, days * len(neighbours))
        return LineLosses(tuple(neighbours), found[:, 0], found[:, 1])

    def _on_true_network(self, load: ComplexArray) -> _Days:
        days, steps, _ = load.shape
        every = np.arange(self.law.n)
        v = np.empty((days, steps, len(self.feeder.retained)), dtype=np.complex128)
        density, volume = np.empty((days, self.law.n)), np.empty(days)
        solved = np.empty(days, dtype=np.bool_)
        for rows in self._pieces(days):
            seen = self.true.solve(*self._injections(load[rows]))
            v[rows] = seen.v.reshape(v[rows].shape)
            solved[rows] = _all_steps(seen.on_branch, steps)
            volume[rows] = self.true.log_volume(seen).reshape(-1, steps).sum(axis=1)
            density[rows] = self.density(load[rows], every)
        return _Days(load, density, v, solved, volume)

    def _both(self, neighbour: Neighbour, block: _Days) -> FloatArray:
        """(direction, day)."""
        changed = with_change(self.feeder, neighbour)
        other = Side(changed, self.released, dense_up_to=self._dense_up_to)
        moved = _Moved.of(self._network, neighbour, self.released)
        out = np.empty((2, len(block.load)))
        steps, n = self.law.steps, len(self.feeder.retained)
        for rows in self._pieces(len(block.load)):
            load, density = block.load[rows], block.density[rows]
            out[0, rows] = self._loss(
                *(load, density, block.v[rows].reshape(-1, n), block.volume[rows], block.solved[rows]),
                *(other, moved, -1.0),
            )
            seen = other.solve(*self._injections(load))
            volume = other.log_volume(seen).reshape(-1, steps).sum(axis=1)
            solved = _all_steps(seen.on_branch, steps)
            out[1, rows] = self._loss(load, density, seen.v, volume, solved, self.true, moved, 1.0)
        return out

    def _loss(
        self,
        load: ComplexArray,
        density: FloatArray,
        v: ComplexArray,
        volume: FloatArray,
        solved: BoolArray,
        against: Side,
        moved: _Moved,
        sign: float,
    ) -> FloatArray:
        """Λ (day,) of days solved on one network against the other; `sign` is −1 from Y to Y′."""
        days, steps, _ = load.shape
        if not solved.all():
            v = np.where(np.repeat(solved, steps)[:, None], v, 1.0)  # any voltage: the day's loss is +∞
        generation = np.tile(self.generation, (days, 1))
        if len(against.hidden):
            nodes = np.arange(self.law.n)
            seen = against.explain(v, generation)
            implied = (generation - seen.s)[:, self.released].reshape(days, steps, -1)
        else:
            nodes = moved.nodes
            flow = moved.power(v, against.v_slack)
            implied = load[:, :, nodes] + sign * flow.reshape(days, steps, -1)
            s = generation.copy()
            s[:, self.released] -= load.reshape(days * steps, -1)
            s[:, self.released[nodes]] -= sign * flow
            seen = Seen(v, s, against.on_branch(v, s, generation))
        term_i = (density[:, nodes] - self.density(implied, nodes)).sum(axis=1)
        other_volume = against.log_volume(seen).reshape(days, steps).sum(axis=1)
        total = term_i + volume - other_volume
        certified = solved & _all_steps(seen.on_branch, steps) & ~np.isnan(total)
        return np.where(certified, total, np.inf)

    def _injections(self, load: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        """Load and generation of every retained node: complex (snapshot, retained) each."""
        days, steps, _ = load.shape
        everywhere = np.zeros((days * steps, len(self.feeder.retained)), dtype=np.complex128)
        everywhere[:, self.released] = load.reshape(days * steps, -1)
        return everywhere, np.tile(self.generation, (days, 1))

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
