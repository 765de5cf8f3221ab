"""INTERNAL. The design of a release's load model on some customers, to be fitted again and attacked."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fidelity.attacks.chances import Allowed
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.day_facts import DayFacts
from dp_powerflow.model.fit import ONE_CLASS, WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import FitOptions
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.privacy.budget import Budget, PrivacyUnit
from dp_powerflow.privacy.random import StreamKey

HOUR = 60
"""Longest step of an attacked fit [min]."""


@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """PRIVATE. Budget, options and meters of a fit.

    Attributes
    ----------
    history : PRIVATE. Some customers and days, in steps of an hour.
    options, budget : those of the release, but for the facts of fewer days.
    allowed : what the release states.
    """

    history: LoadHistory
    options: FitOptions
    budget: Budget
    allowed: Allowed

    @property
    def allowed_of_customer(self) -> Allowed:
        """What the release states of a whole customer: all its days together, where a record is one day."""
        by_day = self.budget.unit is PrivacyUnit.LOAD_POINT_DAY
        return self.allowed.of_group(self.history.n_days) if by_day else self.allowed

    def bounds_kw(self, customer: int) -> tuple[float, float]:
        """Lowest and highest load [kW] that the model knows of a customer."""
        options, history = self.options, self.history
        label = history.class_label[customer] or ONE_CLASS
        private = options.classes
        low, high = (
            options.widest(private.names) if isinstance(private, PrivateClasses) else options.bounds_of(label)
        )
        scaled = options.use_scale and history.scale_kw is not None
        scale = float(history.scale_kw[customer]) if scaled and history.scale_kw is not None else 1.0
        return low * scale, high * scale

    def fitted(self, members: np.ndarray, key: StreamKey) -> LoadModel:
        """INTERNAL. The model of some customers, with the noise that is due; never released."""
        part = self.history.select([self.history.load_points[k] for k in members])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakBudgetWarning)
            return fit(part, budget=self.budget, options=self.options, key=key)


def design_of(
    model: LoadModel,
    history: LoadHistory,
    most: tuple[int, int],
    rng: np.random.Generator,
    *,
    one_class: bool,
) -> Design:
    """PRIVATE. The design of a release on at most so many customers and days, in steps of an hour.

    Parameters
    ----------
    most : customers and days.
    one_class : only customers of the class that has most of them.

    Raises
    ------
    PrivacyError
        The model does not say how it was fitted.
    """
    if model.origin is None:
        raise PrivacyError(
            "the load model of the release does not say how it was fitted, so its design cannot be attacked; "
            "make the release with this version"
        )
    labels = np.array([label or "" for label in history.class_label])
    chosen = np.arange(history.n_load_points)
    if one_class:
        names, counts = np.unique(labels, return_counts=True)
        chosen = np.flatnonzero(labels == names[np.argmax(counts)])
    chosen = rng.permutation(chosen)[: most[0]]
    part = history.select([history.load_points[k] for k in chosen], history.days[: most[1]])
    if part.step_minutes < HOUR and HOUR % part.step_minutes == 0:
        part = part.coarsen(HOUR)
    own = model.origin.options
    options = replace(
        own,
        days=None if own.days is None else _first(own.days, part.n_days),
        day_types=None if own.day_types is None else tuple(own.day_types[: part.n_days]),
    )
    budget = Budget(model.epsilon, model.delta, model.unit)
    return Design(part, options, budget, Allowed(model.epsilon, model.delta, model.rho))


def _first(facts: DayFacts, days: int) -> DayFacts:
    """The facts of the first days; a covariate that does not vary on them is left out."""
    kept = tuple((name, values[:days]) for name, values in facts.covariates if np.ptp(values[:days]) > 0.0)
    return DayFacts(facts.dates[:days], facts.off[:days], kept)
