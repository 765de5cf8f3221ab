"""Many fits of one public history: what they share is summed once, the noise of each is its own.

An experiment fits the same data hundreds of times, at other ε_load and with other noise. Contributions of the
plain estimator depend on public constants alone, so their exact sums are the same in all fits with the same
declared bounds. The result is that of `model.fit.fit`, bit for bit. The sums stay in memory: they are
as private as the history is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.derive import derive
from dp_powerflow.model.fit import MeterSource, data_key, history_facts
from dp_powerflow.model.law import GaussianComponent
from dp_powerflow.model.options import Bounds, FitOptions
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.queries import Blocks, Query, QuerySession, Session, add_noise, exact_sum
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray, IntArray

_Sums = dict[tuple[object, ...], IntArray]
_Logs = dict[tuple[str | None, str | None, Bounds], FloatArray]


@dataclass(frozen=True, eq=False)
class SharedFits:
    """Fits of one class and one Gaussian with the plain estimator.

    Attributes
    ----------
    history : that all are fitted to.
    """

    history: LoadHistory
    _sums: dict[Bounds, _Sums] = field(default_factory=dict)
    _logs: _Logs = field(default_factory=dict)

    def fit(self, budget: Budget, options: FitOptions, key: StreamKey) -> GaussianComponent:
        """The Gaussian that `model.fit.fit` finds with the same key."""
        assert isinstance(options.bounds, tuple)
        facts = history_facts(self.history, options, budget.unit)
        bound = data_key(self.history, options, budget, key)
        sums = self._sums.setdefault(options.bounds, {})
        source = _SharedSource(facts, self.history, options, budget.unit, bound, sums, self._logs)
        (found,) = derive(source, options, budget).classes
        return found.components[0]


@dataclass(frozen=True, eq=False, repr=False)
class _SharedSource(MeterSource):
    sums: _Sums
    logs: _Logs

    def session(self, stage: tuple[str, str], cohort: str | None, rho: float) -> Session:
        return _SharedSession(self.key.bind(*stage), self.unit, cohort, rho, self.sums)

    def log_load(self, name: str | None, day_type: str | None, bounds: Bounds) -> FloatArray:
        chosen = (name, day_type, bounds)
        if chosen not in self.logs:
            self.logs[chosen] = super().log_load(*chosen)
        return self.logs[chosen]


class _SharedSession(QuerySession):
    def __init__(
        self, key: StreamKey, unit: PrivacyUnit, cohort: str | None, rho: float, sums: _Sums
    ) -> None:
        super().__init__(key, unit, cohort, rho)
        self._sums = sums

    def _answer(self, query: Query, cost: QueryCost, blocks: Blocks) -> IntArray:
        answers = []
        for block, chunks in enumerate(blocks):
            asked = (query.name, query.dimension, query.radius, query.region, self._cohort, block)
            if asked not in self._sums:
                self._sums[asked] = exact_sum(chunks, query)
            answers.append(add_noise(self._sums[asked], cost.sigma, self._noise(query, block)))
        return np.array(answers)
