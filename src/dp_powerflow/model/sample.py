"""Synthetic loads from the released model: bounded memory, the same bits for any number of workers.

Days are drawn in blocks. A block is a function of (key, model, block number), so workers may take blocks in
any order and a crashed run repeats the same draws. Streams are bound to the model's hash; bind the release
id and the keyed network hash to the key before it comes here, so that the same loads never meet two networks.

Nothing here sees meter data: it is all post-processing of the `LoadModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.gaussian import ClassModel, GaussianComponent, LoadModel
from dp_powerflow.model.truncated import REJECTION_ABOVE, BoxProbability, TruncatedGaussian, truncate
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

_BLOCK_CUSTOMER_DAYS = 2048  # 1.6 MB per array at T = 96; a year of 96 nodes is 18 blocks


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


@dataclass(frozen=True)
class Acceptance:
    """How much of a component lies within its class's margins; the certificate needs it.

    Parameters
    ----------
    class_name, day_type, component
        Which Gaussian.
    probability
        P(day within [p_min, p_max]^T), with its standard error.
    rejection
        True if draws are by plain rejection, False if by minimax tilting; both are exact.
    """

    class_name: str
    day_type: str | None
    component: int
    probability: BoxProbability
    rejection: bool


@dataclass(frozen=True, eq=False)
class LoadSampler:
    """Draws days for the nodes of a feeder.

    Parameters
    ----------
    model
        The released model.
    node_classes
        Class of every node: public, or from `draw_node_classes`; never from that node's meter.
    key
        Secret streams.
    n_days
        Days to draw.
    scale_kw
        Public scale (node,) [kW] if the model is relative to one.
    day_types
        Public type of every day, if the model has day types.
    truncated
        True: exact draws within the class's margins (mode `paper`; each component is truncated on its own
        and keeps its weight). False: untruncated (full-support and twin modes).
    """

    model: LoadModel
    node_classes: tuple[str, ...]
    key: StreamKey
    n_days: int
    scale_kw: FloatArray | None = None
    day_types: tuple[str, ...] | None = None
    truncated: bool = False

    def __post_init__(self) -> None:
        if not self.node_classes or self.n_days < 1:
            raise PrivacyError("nothing to sample: name at least one node and one day")
        if self.model.scaled != (self.scale_kw is not None):
            raise PrivacyError("give a public scale for every node if, and only if, the model is scaled")
        if self.scale_kw is not None and np.shape(self.scale_kw) != (len(self.node_classes),):
            raise PrivacyError("the public scales must be one per node")
        if self.day_types is not None and len(self.day_types) != self.n_days:
            raise PrivacyError("the day types must be one per day")
        for name in set(self.node_classes):
            for day_type in set(self.day_types or (None,)):
                self.model.find(name, day_type)

    @property
    def days_per_block(self) -> int:
        return days_per_block(len(self.node_classes))

    @property
    def n_blocks(self) -> int:
        return -(-self.n_days // self.days_per_block)

    def blocks(self) -> Iterator[LoadBlock]:
        """All blocks in order."""
        return (self.block(index) for index in range(self.n_blocks))

    def block(self, index: int) -> LoadBlock:
        """One block; a pure function of the sampler and the number."""
        if not 0 <= index < self.n_blocks:
            raise PrivacyError(f"there is no block {index}; blocks are numbered 0 to {self.n_blocks - 1}")
        first = index * self.days_per_block
        days = np.arange(first, min(first + self.days_per_block, self.n_days))
        nodes_of = self._nodes_of
        load = np.empty((len(self.node_classes), days.size, self.model.n_steps))
        reactive = np.empty_like(load)
        for part in self.model.classes:
            nodes = nodes_of.get(part.name)
            chosen = self._days_of(part, days)
            if nodes is None or not chosen.size:
                continue
            cell = np.ix_(nodes, chosen - first)
            name = f"{part.name}/{part.day_type}"
            p = self._draw_active(part, f"active/{name}", index, nodes.size * chosen.size)
            q = self._draw_reactive(part, f"reactive/{name}", index, p)
            shape = (nodes.size, chosen.size, self.model.n_steps)
            load[cell], reactive[cell] = p.reshape(shape), q.reshape(shape)
        if self.scale_kw is not None:
            load *= self.scale_kw[:, None, None]
            reactive *= self.scale_kw[:, None, None]
        return LoadBlock(first, load, reactive)

    @cached_property
    def acceptance(self) -> tuple[Acceptance, ...]:
        """Probability of the margins for every component, from the released model alone."""
        found = []
        for (name, day_type, index), prepared in self._truncations.items():
            stream = self._key.stream(f"acceptance/{name}/{day_type}/{index}")
            probability = prepared.probability(stream.generator)
            found.append(Acceptance(name, day_type, index, probability, probability.value >= REJECTION_ABOVE))
        return tuple(found)

    @cached_property
    def _key(self) -> StreamKey:
        return self.key.bind("model", self.model.sha256)

    @cached_property
    def _nodes_of(self) -> dict[str, IntArray]:
        classes = np.array(self.node_classes)
        return {name: np.flatnonzero(classes == name) for name in dict.fromkeys(self.node_classes)}

    @cached_property
    def _truncations(self) -> dict[tuple[str, str | None, int], TruncatedGaussian]:
        return {
            (part.name, part.day_type, index): _truncated(part, component)
            for part in self.model.classes
            if part.name in self._nodes_of
            for index, component in enumerate(part.components)
        }

    @cached_property
    def _rejection(self) -> dict[tuple[str, str | None, int], bool]:
        return {(a.class_name, a.day_type, a.component): a.rejection for a in self.acceptance}

    def _days_of(self, part: ClassModel, days: IntArray) -> IntArray:
        if self.day_types is None:
            return days if part.day_type is None else days[:0]
        types = np.array(self.day_types)[days]
        chosen: IntArray = days[types == part.day_type]
        return chosen

    def _draw_active(self, part: ClassModel, purpose: str, block: int, size: int) -> FloatArray:
        """Active loads (size, step) [kW, or per public scale]."""
        generator = self._key.stream(purpose, block).generator
        weights = np.array([component.weight for component in part.components])
        of = (
            generator.choice(weights.size, size=size, p=weights / weights.sum()) if weights.size > 1 else None
        )
        log_load = np.empty((size, self.model.n_steps))
        for index, component in enumerate(part.components):
            rows = slice(None) if of is None else np.flatnonzero(of == index)
            count = size if of is None else int(np.sum(of == index))
            if self.truncated:
                place = (part.name, part.day_type, index)
                log_load[rows] = self._truncations[place].draw(
                    generator, count, rejection=self._rejection[place]
                )
            else:
                normal = generator.standard_normal((count, self.model.n_steps))
                log_load[rows] = component.mean + normal @ component.factor.T
        return np.exp(log_load, out=log_load)

    def _draw_reactive(self, part: ClassModel, purpose: str, block: int, active: FloatArray) -> FloatArray:
        """Reactive loads (size, step) [kvar, or per public scale]: q = p·tan θ + c·p̄·ξ."""
        law = part.reactive
        reactive = law.tan_theta * active
        if law.factor is not None:
            generator = self._key.stream(purpose, block).generator
            reactive += law.spread * law.reference * (generator.standard_normal(active.shape) @ law.factor.T)
        return reactive


def days_per_block(n_nodes: int) -> int:
    """Days of one block: a function of the public number of nodes alone."""
    return max(1, _BLOCK_CUSTOMER_DAYS // n_nodes)


def draw_node_classes(model: LoadModel, n_nodes: int, key: StreamKey) -> tuple[str, ...]:
    """A class for every node, drawn from the released weights: no node's own data are involved."""
    first_type = model.classes[0].day_type
    parts = [part for part in model.classes if part.day_type == first_type]
    weights = np.array([part.weight for part in parts])
    generator = key.bind("model", model.sha256).stream("node classes").generator
    drawn = generator.choice(len(parts), size=n_nodes, p=weights / weights.sum())
    return tuple(parts[k].name for k in drawn)


def _truncated(part: ClassModel, component: GaussianComponent) -> TruncatedGaussian:
    low, high = (np.full(component.mean.size, np.log(bound)) for bound in part.bounds)
    return truncate(component.mean, component.covariance, low, high)


def concatenate_days(blocks: Sequence[LoadBlock]) -> LoadBlock:
    """Blocks of consecutive days as one."""
    return LoadBlock(
        blocks[0].first_day,
        np.concatenate([block.load_kw for block in blocks], axis=1),
        np.concatenate([block.load_kvar for block in blocks], axis=1),
    )
