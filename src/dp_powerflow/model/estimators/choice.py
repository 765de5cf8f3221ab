"""The estimators a fit can use, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dp_powerflow.model.estimators.estimate import GaussianEstimate
from dp_powerflow.model.estimators.plain import PlainPlan, estimate_plain
from dp_powerflow.model.estimators.structured import estimate_structured
from dp_powerflow.model.estimators.structured_plan import StructuredPlan
from dp_powerflow.model.records import Records
from dp_powerflow.privacy.session import QuerySession


@dataclass(frozen=True)
class PublicFacts:
    """What an estimator may know before it asks: records per class, T, ρ and the bounds of log load."""

    records: float
    n_steps: int
    rho: float
    log_low: float
    log_high: float


class Estimator(Protocol):
    """Fits one Gaussian per group of records within a budget."""

    @property
    def name(self) -> str:
        """Stated in the model."""

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: QuerySession
    ) -> list[GaussianEstimate]:
        """One Gaussian per group; spends at most `facts.rho` of the session."""

    def prior_would_do(self, facts: PublicFacts) -> bool:
        """Whether, by public figures alone, the budget is too small for the data to matter."""


@dataclass(frozen=True)
class Structured:
    """Two rounds in a smooth basis (default); `block` overrides K."""

    block: int | None = None
    name: str = "structured"

    def _plan(self, facts: PublicFacts) -> StructuredPlan:
        return StructuredPlan(
            facts.records, facts.n_steps, facts.rho, facts.log_low, facts.log_high, self.block
        )

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: QuerySession
    ) -> list[GaussianEstimate]:
        return estimate_structured(groups, self._plan(facts), session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return self._plan(facts).prior_would_do


@dataclass(frozen=True)
class Plain:
    """Noise on every entry of mean and covariance: the paper's, for reference and short horizons."""

    name: str = "plain"

    def _plan(self, facts: PublicFacts) -> PlainPlan:
        return PlainPlan(facts.records, facts.n_steps, facts.rho, facts.log_low, facts.log_high)

    def estimate(
        self, groups: Sequence[Records], facts: PublicFacts, session: QuerySession
    ) -> list[GaussianEstimate]:
        return estimate_plain(groups, self._plan(facts), session)

    def prior_would_do(self, facts: PublicFacts) -> bool:
        return self._plan(facts).prior_would_do
