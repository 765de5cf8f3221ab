"""What to expect of a release: its cost if it is made every year, and how wrong noise makes its loads.

Nothing here sees a meter. How wrong the loads are is found out with public stand-ins: simulated homes from a
public seed, whose levels have the spread that homes of a place have. The estimator of the release is fitted
to them again and again, with the noise that is due to the public number of customers, and once without; and
customers are drawn from each model. The relative noise of an average goes with 1/(n·√ρ). So a few stand-ins
with more of a budget have the noise of many.
"""

from __future__ import annotations

import datetime as dt
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dp_powerflow._bits.elementary import exp, log1
from dp_powerflow._threads import in_order
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.history.estimate import PredictedError
from dp_powerflow.model.history.numbers import ndtri
from dp_powerflow.model.options import DayFacts, FitOptions, HistoryFacts
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.pipeline.drawing import draw_customers
from dp_powerflow.privacy.budget import Budget, PrivacyUnit, epsilon_to_rho, rho_to_epsilon
from dp_powerflow.privacy.ledger.accounts import Cap, Cost, Promised
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.units import FloatArray

YEARS = (1, 5, 10)
SPREADS = ((0.6, 0.65), (1.1, 0.4))
"""Of the log levels of stand-ins: a public range for homes, from homes of like size to homes of all kinds.
With each, where the median lies between the logs of the declared bounds: off the middle, to which the prior
of a level pulls."""
RUNS = 12
"""Fits for each spread; half as many of every class where there are several."""
CUSTOMERS, DAYS = 200, 14
"""Stand-ins for a class, and the most days of each."""
_SEED, _DELTA, _PATIENCE, _TAIL = 40, 1e-12, 2.0, 0.99
_MANY = 10**9  # customers: noise plays no part
_RHO = (1e-7, 1e5)  # budgets of stand-ins: beyond these nothing changes


@dataclass(frozen=True)
class YearlyCost:
    """What has been spent after some yearly releases, the first of which is this one.

    Attributes
    ----------
    releases : how many, of the same customers and the same network.
    customers : (ε, δ) of one record, composed; a new load model every year.
    network : of the network, if it is charged every year.
    kept_network : of the network, if what it was charged for once is used again; None where that cannot be.
    """

    releases: int
    customers: Promised
    network: Promised
    kept_network: Promised | None


def yearly_costs(
    customers: tuple[Cap, Cost], network: tuple[Cap, Cost], *, kept: bool, years: Sequence[int] = YEARS
) -> tuple[YearlyCost, ...]:
    """The cost of yearly releases.

    Parameters
    ----------
    customers, network : the arithmetic of each account, and what one release asks of it.
    kept : whether later releases can use what the network paid for once.
    """
    return tuple(
        YearlyCost(
            releases=count,
            customers=_after(*customers, count),
            network=_after(*network, count),
            kept_network=_after(*network, 1) if kept else None,
        )
        for count in years
    )


def _after(cap: Cap, cost: Any, count: int) -> Promised:
    return cap.promised([cost] * count)


def stand_in_errors(
    facts: HistoryFacts, options: FitOptions, budget: Budget, say: Callable[[str], None] = lambda _: None
) -> tuple[PredictedError, ...]:
    """Of mean load, energy and upper tail, by fits to public stand-ins; `plan` and `release` warn by it.

    Mean load and upper tail are of the class that is worst off, the energy is of all classes together.

    Parameters
    ----------
    facts : public size of the history.
    options, budget : of the fit.
    say : told how far it is, if it takes long.
    """
    classes = facts.load_points_of_class
    people = [(*_stand_ins(facts, options, name, place), n) for place in SPREADS for name, n in classes]
    runs = 1 + (RUNS if len(classes) == 1 else RUNS // 2)  # the last one without noise
    jobs = range(runs * len(people))

    def drawn(job: int) -> FloatArray:
        key, (history, own, n) = StreamKey.from_insecure_seed(job), people[job % len(people)]
        count = n if job < jobs.stop - len(people) else _MANY
        model = fit(history, budget=_as_noisy(budget, count, facts.n_days, history), options=own, key=key)
        return _figures(draw_customers(model, history, key))

    found, said = [], time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # how weak it is, these fits find out
        for figures in in_order(drawn, jobs):
            found.append(figures)
            if time.monotonic() - said > _PATIENCE:
                said = time.monotonic()
                say(f"public stand-ins for the customers: {len(found)} of {len(jobs)} fits are made")
    kw = np.array(found).reshape(runs, len(SPREADS), len(classes), 2)
    real = np.array([_figures(history.load_kw) for history, *_ in people]).reshape(kw.shape[1:])
    count = np.array([n for _, n in classes])
    energy = np.sum(kw[..., 0] * count, axis=2) / np.sum(real[..., 0] * count, axis=1) - 1.0
    off = kw / real - 1.0
    mean, tail = (off[:, :, np.argmax(np.mean(off[..., k] ** 2, axis=(0, 1))), k] for k in range(2))
    return (
        _error("mean load of a customer", mean, 0.2),
        _error("energy of all customers", energy, 0.2),
        _error("99th percentile of the loads", tail, 0.4),
    )


def _figures(load_kw: FloatArray) -> FloatArray:
    return np.array([load_kw.mean(), np.quantile(load_kw, _TAIL)])


def _error(what: str, off: FloatArray, usual: float) -> PredictedError:
    """Of relative errors (run, spread), the last run without noise. Few runs: their logs count as normal."""
    (*_, calm), off, runs = off, off[:-1], len(off) - 1
    noise, rms = (np.sqrt(np.mean(part * part, axis=0)) for part in (off - calm, off))
    logs = np.log1p(off)
    reach = stdtrit(runs - 1, 0.9) * np.sqrt(1 + 1 / runs) * np.std(logs, axis=0, ddof=1)
    low, high = np.expm1(logs.mean(axis=0) - reach), np.expm1(logs.mean(axis=0) + reach)
    between = float(low.min()), float(high.max())
    return PredictedError(what, float(noise.max()), usual, between, tuple(rms.tolist()))


def _as_noisy(budget: Budget, n: int, n_days: int, stand_ins: LoadHistory) -> Budget:
    """The budget that leaves as much noise in averages over stand-ins as averages over n customers have."""
    more = n / stand_ins.n_load_points
    if budget.unit is PrivacyUnit.LOAD_POINT_DAY:
        more *= n_days / stand_ins.n_days
    rho = epsilon_to_rho(budget.epsilon, budget.delta) * more * more
    return replace(budget, epsilon=rho_to_epsilon(min(max(rho, _RHO[0]), _RHO[1]), _DELTA), delta=_DELTA)


def _stand_ins(
    facts: HistoryFacts, options: FitOptions, name: str, place: tuple[float, float]
) -> tuple[LoadHistory, FitOptions]:
    """Homes with levels of a spread in the place of a class, on its first days, and how they are fitted."""
    choice, of_days, n_days = options.classes, facts.days, min(DAYS, facts.n_days)
    bounds = options.widest(choice.names) if isinstance(choice, PrivateClasses) else options.bounds_of(name)
    low, high = (log1(bound) for bound in bounds)
    homes = simulate_load_history(
        CUSTOMERS, n_days=n_days, step_minutes=facts.step_minutes, seed=_SEED, classes=DEMO_CLASSES[:1]
    )
    rank = (np.random.default_rng(_SEED).permutation(CUSTOMERS) + 0.5) / CUSTOMERS
    level = exp(low + place[1] * (high - low) + place[0] * ndtri(rank))[:, None, None]
    load_kw = np.clip(level * homes.load_kw / homes.load_kw.mean(axis=(1, 2), keepdims=True), *bounds)
    if of_days is not None:
        covariates = tuple((key, values[:n_days]) for key, values in of_days.covariates)
        of_days = DayFacts(of_days.dates[:n_days], of_days.off[:n_days], covariates)
        homes = replace(homes, days=tuple(dt.date.fromisoformat(date) for date in of_days.dates))
    labels, one = (name,) * CUSTOMERS, np.ones(CUSTOMERS)
    history = replace(homes, load_kw=load_kw, load_kvar=load_kw, class_label=labels, scale_kw=one)
    return history, replace(options, days=of_days)
