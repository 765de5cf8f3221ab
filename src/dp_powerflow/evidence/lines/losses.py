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
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.lines.networks import Neighbour, Seen, Side, with_change
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.norms import DENSE_UP_TO
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSampler, LoadSource, SolvedDays, solve_days
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

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
    """Days solved on one network."""

    load: ComplexArray  # (day, step, released)
    density: FloatArray  # (day, released)
    v: ComplexArray  # (day, step, retained)
    solved: BoolArray  # (day,)
    volume: FloatArray  # (day,)

    def some(self, rows: slice) -> _Days:
        """Part of the days."""
        return _Days(self.load[rows], self.density[rows], self.v[rows], self.solved[rows], self.volume[rows])


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
        if not neighbours:
            raise PrivacyError("losses need at least one neighbour")
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
        return LineLosses(tuple(neighbours), found[:, 0], found[:, 1])

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
            days = block.some(rows)
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
