"""Entries of the registry: parts and other releases by name, and what they are made from.

A module of parts has its own tuple of entries; `registry` joins them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np

from dp_powerflow.units import ComplexArray, IntArray
from dp_powerflow_paper.datasets import Dataset
from dp_powerflow_paper.mechanisms import Target
from dp_powerflow_paper.sources import LoadMechanism, NetworkMechanism, OtherRelease


@dataclass(frozen=True, eq=False)
class Occasion:
    """What a part is made from: public data, the days that are compared, and a target.

    Attributes
    ----------
    data : feeder, history, public margins.
    days : positions in the history of the days that are compared; fits use the whole history.
    target : (ε, δ) of the part, in the unit that its entry says.
    seed : of fits and of all else that is made once; draws have a generator of their own.
    """

    data: Dataset
    days: IntArray
    target: Target
    seed: int = 0

    @cached_property
    def true_load(self) -> ComplexArray:
        """Complex (day, step, loaded node) of the days [p.u.]."""
        return self.data.true_load(self.days)

    def generator(self, name: str) -> np.random.Generator:
        """A stream of its own for every name."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(crc32(name.encode()),)))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What every entry says.

    Attributes
    ----------
    key : in names of files; unique.
    title : in tables.
    paper : whose system it is: key of the paper's bibliography, or "ours".
    matched : whether its unit is that of the comparison (one customer-day, one line ±5 %), not its paper's.
    extra : pip extra that it needs, None for none.
    audited_by : test file with its audit from below, where it is a fit that the contract tests cannot repeat
        thousands of times; None where they audit its draws.
    """

    key: str
    title: str
    paper: str
    matched: bool = True
    extra: str | None = None
    audited_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoadEntry(Entry):
    """A load mechanism; making it may fit a model.

    Attributes
    ----------
    quick : the same with less training, for a look and for tests; None where `make` takes seconds.
    """

    make: Callable[[Occasion], LoadMechanism]
    quick: Callable[[Occasion], LoadMechanism] | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkEntry(Entry):
    """A network mechanism."""

    make: Callable[[Occasion], NetworkMechanism]


@dataclass(frozen=True, kw_only=True)
class OtherEntry(Entry):
    """A release of something else than voltages."""

    matched: bool = False
    make: Callable[[Occasion], OtherRelease]
