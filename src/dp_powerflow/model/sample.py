"""Days of synthetic loads: drawn from a law, and solved. The only place where that is done.

Days are drawn in blocks. A block is a function of (key, law, block number), so workers may take blocks in
any order and a crashed run repeats the same draws. Streams are bound to the model's hash; bind the release
id and the keyed network hash to the key before it comes here, so that the same loads never meet two networks.
What is released, certified, audited and compared goes through `solve_days`, so it is one mechanism.

**Sums of customers** (`CustomerSampler`) are drawn one customer at a time, bounded, added up. Load k on a
day: p_k = Σ_i s_i·clip(exp(ξ_i)), ξ_i a day of the law of customer i's class, s_i its public scale, clipped
step by step to the margins of the class. Its reactive power is Σ_i tanθ_i·p_i and a random part with the
variance of the sum of the customers' own, at most `MOST_DEVIATIONS` standard deviations of it. A sum of many
customers is smoother than one customer scaled up, and every load is bounded: by the margins, the public
scales and the public number of customers.

**Blocks solved together** (`BlockSolver`). The solver of a feeder as operated goes through a day step by step
and takes several days at a time, one per lane. A block of a large feeder is a day or two. So the days of
several blocks are drawn and solved together. What becomes of a day depends on that day alone, so the bits are
the bits of `solve_days`, block by block.

Nothing here sees meter data: it is all post-processing of the `LoadModel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import exp
from dp_powerflow.errors import PowerFlowError, PrivacyError
from dp_powerflow.model.days import Customers, DayLaw, Days, add_customers, add_random, day_law
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import ClassLaw, LoadLaw
from dp_powerflow.powerflow.batch import Nodes, Solution, Solver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import ComplexArray, FloatArray, IntArray, kw_to_pu

if TYPE_CHECKING:
    from dp_powerflow.model.history.sample import Population

_BLOCK_CUSTOMER_DAYS = 2048  # 1.6 MB per array at T = 96; a year of 96 nodes is 18 blocks
SCALING_DOWN = 0.95
"""What the powers of a snapshot without solution are multiplied by, again and again, until it has one."""
MOST_SCALINGS = 300
"""2e-7 of the powers that were drawn."""


@dataclass(frozen=True, eq=False)
class LoadBlock:
    """Loads of some consecutive days.

    Parameters
    ----------
    first_day
        Index of the first day.
    load_kw, load_kvar
        (node, day, step) [kW], [kvar].
    """

    first_day: int
    load_kw: FloatArray
    load_kvar: FloatArray


class PlacedLaw(Protocol):
    """Where drawn loads belong; every law says it."""

    @property
    def steps(self) -> int:
        """T."""

    @property
    def base_mva(self) -> float:
        """Power base [MVA per node]."""

    @property
    def positions(self) -> IntArray | None:
        """(drawn,) positions among the columns, or among the loads to be spread; None for all in order."""

    @property
    def shares(self) -> sp.csr_array | None:
        """Complex (column, load of the feeder) by which drawn loads are spread; None where they are not."""


class LoadSource(Protocol):
    """Days of loads in numbered blocks; every sampler is one."""

    @property
    def law(self) -> PlacedLaw:
        """Whose nodes the loads are for."""

    @property
    def n_days(self) -> int:
        """Days of all blocks."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""

    def block(self, index: int) -> LoadBlock:
        """Loads of one block."""


@dataclass(frozen=True, eq=False, repr=False)
class OneDay:
    """One day of every block of a source: what of a block is solved again to compare it.

    Parameters
    ----------
    source
        The source.
    day
        Which day of a block; of a shorter block, what is left by its days.
    """

    source: LoadSource
    day: int

    @property
    def law(self) -> PlacedLaw:
        """Whose nodes the loads are for."""
        return self.source.law

    @property
    def n_days(self) -> int:
        """One per block."""
        return self.source.n_blocks

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self.source.n_blocks

    def block(self, index: int) -> LoadBlock:
        """The day of one block."""
        whole = self.source.block(index)
        day = self.day % whole.load_kw.shape[1]
        kw, kvar = (np.ascontiguousarray(load[:, day : day + 1]) for load in (whole.load_kw, whole.load_kvar))
        return LoadBlock(whole.first_day + day, kw, kvar)


Law = TypeVar("Law", bound="LoadLaw | CustomerLaw | Population")


@dataclass(frozen=True, eq=False)
class Sampler(ABC, Generic[Law]):
    """Draws days of a law in blocks; a block is a function of (key, law, number).

    Parameters
    ----------
    law
        Whose loads are drawn.
    key
        Secret streams.
    n_days
        Days to draw.
    block_days
        Days of one block; None for what `days_per_block` says. Draws of single days depend on it.
    """

    law: Law
    key: StreamKey
    n_days: int
    block_days: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.n_days < 1 or (self.block_days is not None and self.block_days < 1):
            raise PrivacyError("nothing to sample: name at least one day")

    @property
    def days_per_block(self) -> int:
        """Days of one block: a function of the public number of loads alone."""
        return days_per_block(self.law.n) if self.block_days is None else self.block_days

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_days // self.days_per_block)

    def block(self, index: int) -> LoadBlock:
        """One block; a pure function of the sampler and the number."""
        if not 0 <= index < self.n_blocks:
            raise PrivacyError(f"there is no block {index}; blocks are numbered 0 to {self.n_blocks - 1}")
        first = index * self.days_per_block
        days = min(self.days_per_block, self.n_days - first)
        active, reactive = (np.zeros((self.law.n, days, self.law.steps)) for _ in range(2))
        self._draw(index, first, (active, reactive))
        return LoadBlock(first, active, reactive)

    @abstractmethod
    def _draw(self, block: int, first: int, loads: tuple[FloatArray, FloatArray]) -> None:
        """Write p and q of the days from `first` on into zeros (load, day, step) [kW], [kvar]."""

    @cached_property
    def _key(self) -> StreamKey:
        return self.key.bind("model", self.law.identity)

    def _gaussian_days(
        self, purpose: str, block: int, part: ClassLaw, places: IntArray
    ) -> Iterator[tuple[DayLaw, Days]]:
        """Days of the log load of a class by components, for kernels; `places` (day,) is what each is for."""
        of = _components(part, self._key.stream(purpose, block).generator, places.size)
        keys = self._key.stream(f"days/{purpose}", block).round_keys
        for index, component in enumerate(part.components):
            own = places if of is None else places[of == index]
            yield day_law(component.mean, component.factor), Days(keys, index, own)

    def _add_random(
        self, part: ClassLaw, block: int, loads: IntArray, size: FloatArray, most: float, out: FloatArray
    ) -> None:
        """Add the random part of q of a class to some loads, cut at `most` deviations, times `size`."""
        if part.q_factor is None or part.q_covariance is None or not loads.size:
            return
        keys = self._key.stream(f"days/reactive/{part.name}/None", block).round_keys
        cut = most * np.sqrt(np.diag(part.q_covariance))
        add_random(day_law(None, part.q_factor), Days(keys, 0, _places(loads, out)), size, cut, out)


class LoadSampler(Sampler[LoadLaw]):
    """Draws days of the loads at the nodes, of the law `model.at(nodes)`."""

    def _draw(self, block: int, first: int, loads: tuple[FloatArray, FloatArray]) -> None:
        law = self.law
        who = Customers(np.arange(law.n), law.scale_kw, law.tan_theta, (0.0, np.inf))
        for ell, part in enumerate(law.classes):
            nodes = np.flatnonzero(law.class_of == ell)
            places, purpose = _places(nodes, loads[0]), f"active/{part.name}/None"
            if law.truncated:
                self._fill_truncated(part, purpose, block, places, loads)
            else:
                for each, drawn in self._gaussian_days(purpose, block, part, places):
                    add_customers(each, drawn, who, loads)
            if law.q_size is not None:
                self._add_random(part, block, nodes, law.q_size * law.scale_kw, np.inf, loads[1])

    def _fill_truncated(
        self, part: ClassLaw, purpose: str, block: int, places: IntArray, loads: tuple[FloatArray, FloatArray]
    ) -> None:
        """Draw the loads of some places within margins [kW], and their reactive loads [kvar]."""
        law, node, size = self.law, places // loads[0].shape[1], places.size
        generator = self._key.stream(purpose, block).generator
        of = _components(part, generator, size)
        log_load = np.empty((size, law.steps))
        for index, (truncation, accepted) in enumerate(zip(part.truncations, part.acceptance, strict=True)):
            rows = np.arange(size) if of is None else np.flatnonzero(of == index)
            log_load[rows] = truncation.draw(generator, rows.size, rejection=accepted.rejection)
        active = exp(log_load, out=log_load)
        for load, value in zip(loads, (active, law.tan_theta[node, None] * active), strict=True):
            load.reshape(-1, law.steps)[places] = value * law.scale_kw[node, None]


def _places(loads: IntArray, out: FloatArray) -> IntArray:
    """Places of all days of some loads in an array (load, day, step)."""
    return np.asarray((loads[:, None] * out.shape[1] + np.arange(out.shape[1])).reshape(-1))


def _components(part: ClassLaw, generator: np.random.Generator, size: int) -> IntArray | None:
    """(day,) components of the mixture; None where there is one."""
    weights = np.array([each.weight for each in part.components])
    if weights.size == 1:
        return None
    return np.asarray(generator.choice(weights.size, size=size, p=weights / weights.sum()), dtype=np.int64)


def days_per_block(n_nodes: int) -> int:
    """Days of one block: a function of the public number of nodes alone."""
    return max(1, _BLOCK_CUSTOMER_DAYS // n_nodes)


def draw_node_classes(model: LoadModel, n_nodes: int, key: StreamKey) -> tuple[str, ...]:
    """A class for every node, drawn from the released weights: no node's own data are involved."""
    parts = model.classes
    weights = np.array([part.weight for part in parts])
    generator = key.bind("model", model.sha256).stream("node classes").generator
    drawn = generator.choice(len(parts), size=n_nodes, p=weights / weights.sum())
    return tuple(parts[k].name for k in drawn)


@dataclass(frozen=True, eq=False)
class SolvedDays:
    """Consecutive days of loads and their power flow.

    Parameters
    ----------
    first_day
        Index of the first day.
    steps
        Steps of a day.
    positions
        (node,) columns with their own random load.
    load
        Complex (snapshot, column) drawn [p.u.]; columns as in the solver, retained nodes or loads of the
        feeder; 0 where none is drawn.
    generation
        Complex (snapshot, retained or PV system) injected before volt-var [p.u.], None without any.
    solution
        Power flow of every snapshot; whether all are solved is for the caller to ask.
    scaled_down
        (snapshot,) how many times all powers were multiplied by `SCALING_DOWN`; `load` and `generation` are
        the powers after that.
    """

    first_day: int
    steps: int
    positions: IntArray
    load: ComplexArray
    generation: ComplexArray | None
    solution: Solution
    scaled_down: IntArray

    @property
    def days(self) -> int:
        """Number of days."""
        return len(self.load) // self.steps

    @property
    def drawn(self) -> ComplexArray:
        """Complex (day, step, node) loads of the nodes of the law [p.u.]."""
        return np.asarray(self.load[:, self.positions].reshape(self.days, self.steps, -1))

    @property
    def v(self) -> ComplexArray:
        """Complex (day, step, solved node) voltages [p.u.], NaN where power flow failed."""
        return np.asarray(self.solution.v.reshape(self.days, self.steps, -1))


def solve_days(
    solver: Solver,
    source: LoadSource,
    block: int = 0,
    *,
    generation: Generation | None = None,
    nodes: Nodes = "retained",
    scale_down: bool = False,
) -> SolvedDays:
    """Draw one block of days and solve its power flow.

    Parameters
    ----------
    solver : Solver
        Of the feeder to solve on: the true one, a twin or a neighbour; it holds the volt-var control.
    source : LoadSource
        Where the loads come from: a `LoadSampler` of the law.
    block : int
        Number of the block. The loads are a function of the source and this number, not of the feeder.
    generation : Generation, optional
        Public generation of every day before volt-var.
    nodes : "retained" or "all"
        Whose voltages to give: nodes with load or generation, or every energised node.
    scale_down : bool
        Whether the powers of a snapshot without solution are lowered until it has one. The rule is public and
        reads nothing but the network that is solved and the loads: free on a twin, not on the true network,
        where what it does tells of the lines.

    Returns
    -------
    SolvedDays
        Loads and solution; failed snapshots stay in it, marked.

    Raises
    ------
    PrivacyError
        If the law is for other nodes than the feeder has.
    PowerFlowError
        If a snapshot has no solution with next to no power either.
    """
    return BlockSolver(solver, source, generation, nodes, scale_down).run([block])[0]


def columns_of(solver: Solver, law: PlacedLaw) -> int:
    """Columns of the loads that a solver takes."""
    if law.shares is not None:
        return int(law.shares.shape[0])
    feeder = solver.feeder
    return len(feeder.loads) if solver.columns == "elements" else len(feeder.retained)


def placed_load(
    law: PlacedLaw, drawn: LoadBlock, width: int, out: ComplexArray | None = None
) -> ComplexArray:
    """Drawn loads in their places: complex (snapshot, column) [p.u.], 0 at those that the law is not for.

    Parameters
    ----------
    width : number of columns: retained nodes, or loads of the feeder.
    out : complex (snapshot, column) to write into.

    Raises
    ------
    PrivacyError
        If the law is for other nodes than the feeder has.
    """
    count, days, steps = drawn.load_kw.shape
    inner = width if law.shares is None else law.shares.shape[1]
    if count > inner or (law.positions is None and count != inner):
        raise PrivacyError(
            f"the load law is of {count} nodes, but the feeder has {inner} with load or generation; say "
            "which of them the law is for"
        )
    own = out is None or law.shares is not None
    load = np.empty((days * steps, inner), dtype=np.complex128) if own or out is None else out
    if count < inner:
        load[:] = 0.0
    positions = slice(None) if law.positions is None else law.positions
    for part, power in (load.real, drawn.load_kw), (load.imag, drawn.load_kvar):
        per_unit = kw_to_pu(power, law.base_mva)
        per_unit += 0.0  # no zero has a sign
        part[:, positions] = per_unit.reshape(count, days * steps).T
    if law.shares is None:
        return load
    shared = np.ascontiguousarray((law.shares @ load.T).T)
    if out is None:
        return shared
    out[:] = shared
    return out


MOST_DEVIATIONS = 4.0
"""Where the random part of a reactive load is cut, in standard deviations."""


@dataclass(frozen=True, eq=False)
class CustomerLaw:
    """Law of loads that are sums of customers.

    Parameters
    ----------
    each
        Law of every customer by itself; margins must be stated.
    load_of
        (customer,) number of the load that the customer is part of, ascending, none left out.
    positions
        (load,) positions among the loads of the feeder.
    shares
        Complex (retained node, load of the feeder) nodal power per unit of load power, where power flow is
        solved node by node; None where it is solved load by load.
    """

    each: LoadLaw
    load_of: IntArray
    positions: IntArray
    shares: sp.csr_array | None = None

    @property
    def n(self) -> int:
        """Number of loads."""
        return len(self.positions)

    @property
    def steps(self) -> int:
        """T."""
        return self.each.steps

    @property
    def base_mva(self) -> float:
        """Power base [MVA per node]."""
        return self.each.base_mva

    @property
    def identity(self) -> str:
        """Hash of the model the law comes from."""
        return self.each.identity

    @cached_property
    def most_kw(self) -> FloatArray:
        """(load,) [kW] that no draw passes."""
        highest = self.each.p_max[self.each.class_of] * self.each.scale_kw
        return np.asarray(np.bincount(self.load_of, highest, minlength=self.n), dtype=np.float64)

    @cached_property
    def reactive_kvar(self) -> FloatArray:
        """(class, load) standard deviation of the random part of q [kvar], 0 at a fixed power factor."""
        law = self.each
        size = np.zeros(law.n) if law.q_size is None else law.scale_kw * law.q_size
        return random_kvar(size, law.class_of, self.load_of, len(law.classes))


def random_kvar(size: FloatArray, class_of: IntArray, load_of: IntArray, classes: int) -> FloatArray:
    """(class, load) standard deviation of the sum of the customers' random parts, of size (customer,)."""
    own = [np.where(class_of == ell, size * size, 0.0) for ell in range(classes)]
    return np.sqrt([np.bincount(load_of, each, minlength=int(load_of[-1]) + 1) for each in own])


class CustomerSampler(Sampler[CustomerLaw]):
    """Draws days of loads that are sums of customers."""

    def _draw(self, block: int, first: int, loads: tuple[FloatArray, FloatArray]) -> None:
        each, load_of = self.law.each, self.law.load_of
        for ell, part in enumerate(each.classes):
            own = np.flatnonzero(each.class_of == ell)
            who = Customers(load_of[own], each.scale_kw[own], each.tan_theta[own], part.p_min_max)
            places = np.arange(own.size * loads[0].shape[1])
            for law, days in self._gaussian_days(f"customers/{part.name}/None", block, part, places):
                add_customers(law, days, who, loads)
            size = self.law.reactive_kvar[ell]
            self._add_random(part, block, np.flatnonzero(size > 0.0), size, MOST_DEVIATIONS, loads[1])


MOST_PHASORS = 1 << 24
"""Voltages that are solved together: 256 MiB."""


@dataclass(eq=False)
class BlockSolver:
    """Solves runs of blocks, one run after the other in the same memory.

    Memory that is new to a process costs more than what is written into it: at 10,000 nodes a third of the
    time of drawing and solving. So loads and voltages of a run take the place of the last run's.
    For one thread.

    Parameters
    ----------
    solver, source, generation, nodes, scale_down : as of `solve_days`.
    """

    solver: Solver
    source: LoadSource
    generation: Generation | None = None
    nodes: Nodes = "retained"
    scale_down: bool = False
    _load: ComplexArray = field(default_factory=lambda: _memory(0), init=False)
    _voltages: ComplexArray = field(default_factory=lambda: _memory(0), init=False)

    def run(self, blocks: Sequence[int]) -> list[SolvedDays]:
        """Blocks that follow one another, each as `solve_days` gives it, solved together.

        The next call writes over what this one gives.
        """
        law, feeder = self.source.law, self.solver.feeder
        width, ends = columns_of(self.solver, law), [0]
        wanted = len(feeder.retained if self.nodes == "retained" else feeder.energised)
        first_day, load = 0, self._load
        for number in blocks:
            drawn = self.source.block(number)
            _, days, steps = drawn.load_kw.shape
            if ends == [0]:
                first_day = drawn.first_day
                most = len(blocks) * days * steps  # the last block may be shorter, no other
                self._load = _at_least(self._load, most * width)
                self._voltages = _at_least(self._voltages, most * wanted)
                load = self._load[: most * width].reshape(most, width)
            rows = slice(ends[-1] * steps, (ends[-1] + days) * steps)
            placed_load(law, drawn, width, load[rows])
            ends.append(ends[-1] + days)
        rows = slice(0, ends[-1] * law.steps)
        voltages = self._voltages[: rows.stop * wanted].reshape(rows.stop, wanted)
        made = self.solve_placed(first_day, load[rows], voltages)
        return [_days(made, first, last) for first, last in pairwise(ends)]

    def solve_placed(
        self, first_day: int, load: ComplexArray, voltages: ComplexArray | None = None
    ) -> SolvedDays:
        """Solve days whose loads are in their places.

        Parameters
        ----------
        first_day : index of the first day.
        load : complex (snapshot, column) drawn [p.u.].
        voltages : complex (snapshot, node) that the voltages are written into; None for new memory.
        """
        law, injected = self.source.law, None
        if self.generation is not None:
            days = np.arange(first_day, first_day + len(load) // law.steps)
            by_element = self.solver.columns == "elements"
            injected = self.generation.by_system(days) if by_element else self.generation.of(days)
        solution = self.solver.solve(load, injected, nodes=self.nodes, out=voltages)
        every = np.arange(load.shape[1])
        positions: IntArray = every if law.positions is None or law.shares is not None else law.positions
        scaled_down = np.zeros(len(load), dtype=np.int64)
        solved = SolvedDays(first_day, law.steps, positions, load, injected, solution, scaled_down)
        return self._scaled_down(solved) if self.scale_down and solution.n_failed else solved

    def _scaled_down(self, solved: SolvedDays) -> SolvedDays:
        """The same days with all powers of snapshots without solution lowered until every one has one.

        A day with such a snapshot is solved again as a whole, since controls remember the steps before. So
        what becomes of a day depends on that day alone.
        """
        steps, scaled_down = solved.steps, solved.scaled_down.copy()
        load, solution = solved.load.copy(), solved.solution
        generation = None if solved.generation is None else solved.generation.copy()
        found = {field.name: getattr(solution, field.name).copy() for field in fields(solution)}
        while not found["converged"].all():
            failed = np.flatnonzero(~found["converged"])
            scaled_down[failed] += 1
            if scaled_down.max() > MOST_SCALINGS:
                raise PowerFlowError(
                    "a snapshot has no power-flow solution with next to no power either; check the feeder "
                    "with 'dp-powerflow inspect'",
                    code="no-power-flow",
                )
            for power in (load,) if generation is None else (load, generation):
                power.view(np.float64)[failed] *= SCALING_DOWN
            rows = (np.unique(failed // steps)[:, None] * steps + np.arange(steps)).reshape(-1)
            injected = None if generation is None else generation[rows]
            again = self.solver.solve(load[rows], injected, nodes=self.nodes)
            for name, values in found.items():
                values[rows] = getattr(again, name)
        again = type(solution)(**found)
        return replace(solved, load=load, generation=generation, solution=again, scaled_down=scaled_down)


def blocks_at_once(source: LoadSource, nodes: int, days_at_once: int) -> int:
    """How many blocks to solve together.

    Parameters
    ----------
    nodes : whose voltages are wanted.
    days_at_once : days that cost the solver hardly more than one.
    """
    days = -(-source.n_days // source.n_blocks)
    room = MOST_PHASORS // (days * source.law.steps * nodes)
    return max(1, min(days_at_once // days, room, source.n_blocks))


def _memory(size: int) -> ComplexArray:
    return np.empty(size, dtype=np.complex128)


def _at_least(memory: ComplexArray, size: int) -> ComplexArray:
    """The same memory, or new where it is too small."""
    return memory if memory.size >= size else _memory(size)


def _days(made: SolvedDays, first: int, last: int) -> SolvedDays:
    """Some of the days."""
    rows = slice(first * made.steps, last * made.steps)
    solution = made.solution
    parts = {each.name: getattr(solution, each.name)[rows] for each in fields(solution)}
    return replace(
        made,
        first_day=made.first_day + first,
        load=made.load[rows],
        generation=None if made.generation is None else made.generation[rows],
        solution=replace(solution, **parts),
        scaled_down=made.scaled_down[rows],
    )
