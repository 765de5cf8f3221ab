"""What a release costs, planned from public quantities before anything is spent; `charging` charges it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dp_powerflow._bits.elementary import exp, log1
from dp_powerflow._names import DRAWS, __version__
from dp_powerflow._threads import in_order
from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.loads.history import LoadHistory, MeterFacts
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.manifest.build import delta_problem
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.derive import PlannedFit, planned_queries
from dp_powerflow.model.fit import WeakBudgetWarning, fit, history_facts
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.history.estimate import PredictedError, predicted_errors
from dp_powerflow.model.history.numbers import ndtri
from dp_powerflow.model.options import DayFacts, FitOptions, FixedPowerFactor, HistoryFacts, PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.pipeline.customers import draw_customers
from dp_powerflow.pipeline.feasibility import Feasibility
from dp_powerflow.pipeline.inputs import (
    HISTORY,
    Almanac,
    ChosenEstimator,
    MeterDays,
    ReleaseInputs,
    budget_of,
    chosen_estimator,
    class_names,
    fit_options_of,
)
from dp_powerflow.pipeline.modes.base import NetworkCharge, NetworkFacts, NetworkMode, mode_of
from dp_powerflow.pipeline.ready import make_ready, open_ledger, open_state
from dp_powerflow.privacy.budget import (
    Budget,
    PrivacyUnit,
    QueryCost,
    epsilon_to_rho,
    rho_to_epsilon,
    total_rho,
)
from dp_powerflow.privacy.ledger.accounts import Cap, Cost, LoadsCap, LoadsCost, Promised
from dp_powerflow.privacy.ledger.book import ChargedData, Ledger
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import FloatArray

_NOT_PART_OF_THE_REQUEST = {
    "release": {
        *("output", "state", "epsilon_cap", "network_epsilon_cap", "network_delta_cap"),
        *("continues_loads", "continues_network"),  # which account is charged, not what is released
    },
    "feeder": {"source", "taps", "loads"},
    "loads": {"path", "services", "classes"},
    "pv": {"irradiance"},
    "calendar": {"holidays"},
    "weather": {"path"},
}


@dataclass(frozen=True)
class Plan:
    """The cost of a release.

    Attributes
    ----------
    queries : every query of the fit, with its sensitivity, noise scale and cost; of second-round queries a
        typical scale.
    epsilon, delta, rho : what they add up to.
    loads_cost, loads_cap : what the ledger is asked of the customers.
    network : what it is asked of the network.
    request_sha256 : hash of everything public that decides the outcome.
    notes : public remarks, such as a budget too small to be useful.
    estimator : of the load model, and why; None where an earlier model is taken.
    predicted : how wrong noise will make the load model, from public figures.
    """

    queries: tuple[QueryCost, ...]
    rho: float
    epsilon: float
    delta: float
    loads_cost: LoadsCost
    loads_cap: LoadsCap
    network: NetworkCharge
    request_sha256: str
    notes: tuple[str, ...]
    estimator: ChosenEstimator | None = None
    predicted: tuple[PredictedError, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """PUBLIC. Why the load model would be worth little; said before anything is spent."""
        large = [error for error in self.predicted if error.too_large]
        if not large:
            return ()
        listed = "; ".join(in_words(error) for error in large)
        return (
            "Load points are too few for this epsilon, at least in the smallest class. Noise will do this: "
            f"{listed}. Raise model.epsilon, give more load points, or pool classes.",
        )


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    """What a release would cost and what it would leave.

    Attributes
    ----------
    mode : how the network is treated.
    loads, network : both accounts of the ledger, before and after.
    yearly : what releases like this one cost if they are made every year.
    feasibility : what public loads do on public stand-ins, and INTERNAL on the network itself.
    corpus_bytes : how large the corpus would be, about.
    ingest : INTERNAL. What reading the meters found; None for simulated loads.
    """

    mode: NetworkMode[Any]
    plan: Plan
    loads: Preview
    network: Preview
    yearly: tuple[YearlyCost, ...]
    feasibility: Feasibility
    corpus_bytes: int
    ingest: IngestReport | None = None

    @property
    def affordable(self) -> bool:
        """Whether both accounts have enough left."""
        return self.loads.affordable and self.network.affordable


def plan(config: Config, say: Callable[[str], None] = lambda _: None) -> PlannedRelease:
    """Read and check all that a release is made from and look at the ledger; nothing is spent.

    That somebody has looked is kept in the private state, with the settings: see `looks`.

    Parameters
    ----------
    say : told what is being done.

    Raises
    ------
    DpPowerflowError : the release would be refused.
    """
    state = open_state(config)
    ready = make_ready(config, state, say=say)
    inputs, mode = ready.inputs, ready.mode
    refuse_another_model(inputs)
    ledger = open_ledger(state)
    facts = mode.facts(inputs)
    found = with_charge(planned(inputs, say), facts, mode, state, ledger)
    customers = ChargedData(inputs.loads_identity, found.loads_cap, config.release.continues_loads)
    loads = ledger.preview(customers, found.loads_cost, config.model.reuse or config.release.id)
    refuse_unpaid_model(config, state, paid=loads.already_charged)
    network = preview_network(ledger, config, found.network, facts.dataset)
    whole = mode.charge(found.request_sha256)
    yearly = yearly_costs(
        (found.loads_cap, found.loads_cost), (whole.cap, whole.cost), kept=mode.kept_under is not None
    )
    return PlannedRelease(
        mode, found, loads, network, yearly, ready.feasibility, ready.corpus_bytes, inputs.ingest
    )


def preview_network(ledger: Ledger, config: Config, asked: NetworkCharge, dataset: str) -> Preview:
    """What the charge of the network would do to the account of a data set."""
    data = ChargedData(dataset, asked.cap, config.release.continues_network)
    return ledger.preview(data, asked.cost, asked.paid_by)


def in_words(error: PredictedError) -> str:
    """An error in a phrase: mean load −26 to +42 % (RMS 20 to 45 %), shape of the mean day ± 5 %."""
    if error.between is None:
        return f"{error.what} ± {100.0 * error.error:.2g} %"
    low, high = (f"{100.0 * end:+.0f}".replace("-", "−") for end in error.between)
    rms = " to ".join(f"{100.0 * own:.0f}" for own in sorted(error.by_spread))
    return f"{error.what} {low} to {high} % (RMS {rms} %)"


def planned(inputs: ReleaseInputs, say: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of a release whose inputs are read."""
    return plan_release(inputs.config, inputs.history, inputs.identity, inputs.almanac, say)


def plan_release(
    config: Config,
    history: LoadHistory | MeterFacts,
    inputs: str,
    almanac: Almanac | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan from the public facts of the history: its size, labels and scales; no reading is looked at.

    Which queries are asked and what they cost in ρ is public; the natural scale of second-round queries
    follows the released answers of the first round, so those scales are typical ones. The ledger is charged
    all that the budget allows.

    Parameters
    ----------
    inputs : keyed hash of everything else that decides the outcome (`ReleaseInputs.identity`).
    almanac : public holidays and weather of the days of the history; not needed for a model that is reused.
    say : told how far the fits to public stand-ins are, if they take long.
    """
    refuse_large_delta(config.model.delta, len(history.node_of))
    asked, chosen = PlannedFit((), ()), None
    predicted: tuple[PredictedError, ...] = ()
    if config.model.reuse is None:  # else a model that is paid for: nothing is asked of the customers
        assert isinstance(history, LoadHistory)
        assert almanac is not None
        chosen = chosen_estimator(config, history.n_days)
        asked, predicted = _planned_fit(config, history, MeterDays(history.days, almanac), say)
    rho = total_rho(asked.queries)
    request = request_of(config, inputs)
    loads_cap = LoadsCap(
        config.release.epsilon_cap or config.model.epsilon, config.model.delta, budget_of(config).unit
    )
    return Plan(
        queries=asked.queries,
        rho=rho,
        epsilon=rho_to_epsilon(rho, config.model.delta),
        delta=config.model.delta,
        loads_cost=LoadsCost.reserve(budget_of(config)),
        loads_cap=loads_cap,
        network=mode_of(config).charge(request),
        request_sha256=request,
        notes=asked.notes,
        estimator=chosen,
        predicted=predicted,
    )


def refuse_large_delta(delta: float, load_points: int) -> None:
    """Refuse a δ that no release may state, before anything is spent (`delta_problem`)."""
    problem = delta_problem(delta, load_points)
    if problem is not None:
        raise PrivacyError(
            f"{problem}; choose model.delta well below it; nothing was spent", code="delta-limit"
        )


def kept_model(config: Config, state: PrivateState) -> LoadModel | None:
    """The load model already fitted for this release, or for the one whose model it reuses; None if none.

    Whether reactive load is random is public and asks the customers nothing, so a model that is reused in
    another network mode is derived again from its noisy answers, as that mode draws it.
    """
    stored = state.read_internal(config.release.id, MODEL_FILE)
    if stored is None and config.model.reuse is not None:
        stored = state.read_internal(config.model.reuse, MODEL_FILE)
    section = config.model
    spread = (section.reactive_spread, section.reactive_correlation_minutes)
    return None if stored is None else _parsed(stored, spread if config.network.random_reactive else None)


@lru_cache(maxsize=2)
def _parsed(content: bytes, spread: tuple[float, float] | None) -> LoadModel:
    """A model, with its own power factors; deriving it from its noisy answers takes time.

    Parameters
    ----------
    spread : of random reactive load, its size and correlation [min], where the model has none; None fixes it.
    """
    model = LoadModel.from_json(content.decode(errors="replace"))  # what is no text is no model
    fitted = None if model.origin is None else model.origin.options.reactive
    if isinstance(fitted, FixedPowerFactor) and spread is not None:
        return model.with_reactive(PublicSpread(fitted, *spread))
    if isinstance(fitted, PublicSpread) and spread is None:
        return model.with_reactive(fitted.power_factor)
    return model


def refuse_unpaid_model(config: Config, state: PrivateState, *, paid: bool) -> None:
    """Refuse to reuse a load model that these customers never paid for, or that was never fitted."""
    if config.model.reuse is None:
        return
    if not paid:
        raise never_charged(config.model.reuse)
    if kept_model(config, state) is None:
        raise PrivacyError(
            f"release '{config.model.reuse}' has fitted no load model yet; run it first", code="model-reuse"
        )


def never_charged(reused: str) -> PrivacyError:
    """What is wrong with the name of an earlier release or fleet that is not one of these customers."""
    return PrivacyError(
        f"model.reuse names '{reused}', which these customers were never charged for; name a release or "
        "fleet of the same meter data, or remove the key to fit anew",
        code="model-reuse",
    )


def refuse_another_model(inputs: ReleaseInputs) -> LoadModel | None:
    """The model that a release would reuse; refused if the config says anything of it that is not so.

    The manifest states the constants of the model that the loads are drawn from. A config that names others
    is a mistake that would otherwise be published.
    """
    config = inputs.config
    model = None if config.model.reuse is None else kept_model(config, inputs.state)
    if model is None:
        return None
    if model.origin is None:
        raise PrivacyError(
            f"the load model of release '{config.model.reuse}' was made by version 0.1.0 and holds no noisy "
            "answers, so nobody could check it; remove model.reuse to fit anew, which is charged",
            code="model-reuse",
        )
    if model.is_history and not config.network.dated:
        raise PrivacyError(
            f"the load model of release '{config.model.reuse}' draws days that follow one another, which "
            f"mode '{config.network.mode}' cannot certify; reuse a model of the estimator 'structured', or "
            "remove model.reuse to fit anew, which is charged",
            code="model-reuse",
        )
    # A config that names no estimator takes the one of the model.
    options = fit_options_of(
        config, model.class_names, inputs.meter_days, config.model.estimator or model.estimator
    )
    budget = Budget(model.epsilon, model.delta, model.unit)
    asked = _choices(options, budget_of(config), inputs.history.step_minutes) | _days_of(options.days)
    fitted = _choices(model.origin.options, budget, model.step_minutes) | _days_of(model.origin.facts.days)
    other = [name for name, value in asked.items() if fitted[name] != value]
    if other:
        raise PrivacyError(
            f"model.reuse takes the load model of release '{config.model.reuse}', which was fitted with "
            f"other values of {', '.join(other)}; state the same, or remove model.reuse to fit anew, which "
            "is charged",
            code="model-reuse",
        )
    mode_of(config).nodes(inputs, inputs.feeder, model)  # it knows the classes of the nodes, or says so
    return model


def _choices(options: FitOptions, budget: Budget, step_minutes: int) -> dict[str, Any]:
    """What decides a load model, by the keys of the config that state it."""
    fields = options.to_dict()
    reactive = fields["reactive"]
    random = reactive.pop("kind") == PublicSpread.__name__
    return {
        "model.epsilon": budget.epsilon,
        "model.delta": budget.delta,
        "model.unit": budget.unit,
        "model.estimator": fields["estimator"],
        "model.private_classes": fields["private_classes"],
        "model.components": fields["n_components"],
        "model.use_scale": fields["use_scale"],
        "model.bounds or model.bounds_of_class": fields["bounds"],
        "model.variance_floor": fields["variance_floor"],
        "model.power_factor or model.power_factor_of_class": reactive["power_factor"] if random else reactive,
        "model.reactive_spread": reactive["spread"] if random else None,
        "model.reactive_correlation_minutes": reactive["correlation_minutes"] if random else None,
        "network.mode or network.bound, which say whether reactive load is random": random,
        "loads.step_minutes": step_minutes,
    }


def _days_of(facts: DayFacts | None) -> dict[str, Any]:
    """What a model of histories knows of its days, by the keys that state it."""
    return {
        "loads.first_day or loads.last_day": None if facts is None else facts.dates,
        "calendar.holidays": None if facts is None else facts.off,
        "[weather], of the days of the meters": None if facts is None else facts.covariates,
    }


def with_charge(
    plan: Plan, facts: NetworkFacts, mode: NetworkMode[Any], state: PrivateState, ledger: Ledger
) -> Plan:
    """The plan with what this version of the network costs."""
    return replace(plan, network=mode.charge_of(plan.network, facts, state, ledger))


def _planned_fit(
    config: Config, history: LoadHistory, meters: MeterDays, say: Callable[[str], None]
) -> tuple[PlannedFit, tuple[PredictedError, ...]]:
    """What the fit would ask, and how wrong its answers would be."""
    options, budget = fit_options_of(config, class_names(config, history), meters), budget_of(config)
    facts = history_facts(history, options, budget.unit)
    asked = planned_queries(facts, options, budget)  # refuses what cannot be fitted
    of_days = predicted_errors(facts, options, budget) if options.estimator.name == HISTORY else ()
    return asked, (*stand_in_errors(facts, options, budget, say), *of_days)


def request_of(config: Config, inputs: str) -> str:
    """Hash of all that decides a release; `inputs` as of `plan_release`."""
    public = config.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST)
    content = {"config": public, "inputs": inputs, "version": __version__, "draws": DRAWS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
