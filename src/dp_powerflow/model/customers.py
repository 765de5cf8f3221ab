"""Loads that are sums of customers: drawn one customer at a time, bounded, added up.

Load k on a day: p_k = Σ_i s_i·clip(exp(ξ_i)), ξ_i a day of the law of customer i's class, s_i its public
scale, clipped step by step to the margins of the class. Its reactive power is Σ_i tanθ_i·p_i and a random
part with the variance of the sum of the customers' own, at most `MOST_DEVIATIONS` standard deviations of it.

A sum of many customers is smoother than one customer scaled up, and every load is bounded: by the margins,
the public scales and the public number of customers.

Nothing here sees meter data: it is all post-processing of the `LoadModel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.gaussian import Customers, Days, add_customers, add_random, day_law
from dp_powerflow.model.law import ClassLaw, LoadLaw
from dp_powerflow.model.sample import LoadBlock, days_per_block, gaussian_days
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

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
        (load,) positions of the loads among those of the feeder.
    shares
        Complex (retained node, load of the feeder) nodal power per unit of load power, where power flow is
        solved node by node; None where it is solved load by load.
    """

    each: LoadLaw
    load_of: IntArray
    positions: IntArray
    shares: sp.csr_array | None = None

    def __post_init__(self) -> None:
        numbers = np.unique(self.load_of)
        ascending = len(self.load_of) == self.each.n and bool(np.all(np.diff(self.load_of) >= 0))
        if not ascending or not np.array_equal(numbers, np.arange(len(self.positions))):
            raise PrivacyError("a sum of customers needs the load of every customer, in ascending order")
        if any(part.margins is None for part in self.each.classes):
            raise PrivacyError("a sum of customers is bounded by the margins of its classes; state them")

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
        if law.q_size is None:
            return np.zeros((len(law.classes), self.n))
        variance = (law.scale_kw * law.q_size) ** 2
        own = [np.where(law.class_of == ell, variance, 0.0) for ell in range(len(law.classes))]
        return np.sqrt([np.bincount(self.load_of, each, minlength=self.n) for each in own])


@dataclass(frozen=True, eq=False)
class CustomerSampler:
    """Draws days of loads that are sums of customers; a block is a function of (key, law, number).

    Parameters
    ----------
    law
        Law of the sums.
    key
        Secret streams.
    n_days
        Days to draw.
    block_days
        Days of one block; None for what `days_per_block` says. Draws depend on it.
    """

    law: CustomerLaw
    key: StreamKey
    n_days: int
    block_days: int | None = None

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
        for ell, part in enumerate(self.law.each.classes):
            self._add_customers(part, np.flatnonzero(self.law.each.class_of == ell), index, active, reactive)
            self._add_random_part(part, self.law.reactive_kvar[ell], index, reactive)
        return LoadBlock(first, active, reactive)

    @cached_property
    def _key(self) -> StreamKey:
        return self.key.bind("model", self.law.identity)

    def _add_customers(
        self, part: ClassLaw, customers: IntArray, block: int, active: FloatArray, reactive: FloatArray
    ) -> None:
        """Add the customers of one class, in ascending order."""
        law = self.law.each
        who = Customers(
            self.law.load_of[customers], law.scale_kw[customers], law.tan_theta[customers], part.p_min_max
        )
        purpose, places = (
            f"customers/{part.name}/{part.day_type}",
            np.arange(len(customers) * active.shape[1]),
        )
        for each, days in gaussian_days(self._key, purpose, block, part, places):
            add_customers(each, days, who, (active, reactive))

    def _add_random_part(
        self, part: ClassLaw, size_kvar: FloatArray, block: int, reactive: FloatArray
    ) -> None:
        """Add the random part of q of the customers of one class."""
        loads = np.flatnonzero(size_kvar > 0.0)
        if part.q_factor is None or part.q_covariance is None or not loads.size:
            return
        stream = self._key.stream(f"days/reactive/{part.name}/{part.day_type}", block)
        places = (loads[:, None] * reactive.shape[1] + np.arange(reactive.shape[1])).reshape(-1)
        most = MOST_DEVIATIONS * np.sqrt(np.diag(part.q_covariance))
        add_random(
            day_law(None, part.q_factor), Days(stream.round_keys, 0, places), size_kvar, most, reactive
        )
