"""What the load model is fitted with: the budget, the estimator and every other public choice of a config."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from dp_powerflow.config import FEWEST_DAYS, LONGEST_STEP_MINUTES, Config, history_obstacle
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.options import (
    DayFacts,
    FitOptions,
    FixedPowerFactor,
    PublicSpread,
    ReactiveChoice,
    tan_theta_of,
)
from dp_powerflow.model.partition import PrivateClasses, PublicLabels
from dp_powerflow.model.plain import Plain
from dp_powerflow.model.structured import Structured
from dp_powerflow.pipeline.almanac import Almanac
from dp_powerflow.privacy.budget import Budget, PrivacyUnit

HISTORY, STRUCTURED, PLAIN = "history", "structured", "plain"


@dataclass(frozen=True)
class ChosenEstimator:
    """PUBLIC. The estimator of a load model, and why it is that one.

    Attributes
    ----------
    name : as the config would state it.
    why : what decided, in words.
    """

    name: str
    why: str


@dataclass(frozen=True, eq=False)
class MeterDays:
    """PUBLIC. The days of the meters, and what is known of them.

    Attributes
    ----------
    days : local days, in order.
    almanac : holidays and weather, which covers them.
    """

    days: tuple[dt.date, ...]
    almanac: Almanac

    @property
    def facts(self) -> DayFacts:
        """Dates, days off and weather, as a model of histories publishes them."""
        return self.almanac.facts_of(self.days)


def chosen_estimator(config: Config, n_days: int | None = None) -> ChosenEstimator:
    """The estimator that a config names, or the one it gets where it names none.

    Parameters
    ----------
    n_days : public number of days of the meters; None for what the config declares.
    """
    if config.model.estimator is not None:
        return ChosenEstimator(config.model.estimator, "model.estimator says so")
    days = config.loads.declared_days if n_days is None else n_days
    obstacle = _no_histories(config, days)
    if obstacle is not None:
        return ChosenEstimator(STRUCTURED, f"days are independent draws, because {obstacle}")
    return ChosenEstimator(HISTORY, f"the meters have {days} days, {FEWEST_DAYS} or more")


def _no_histories(config: Config, days: int | None) -> str | None:
    """Why the estimator 'history' is not chosen, in words; None if it is."""
    if not config.network.dated:
        return f"the evidence of mode '{config.network.mode}' is about such days"
    if config.model.unit != "load-point":
        return f"model.unit is '{config.model.unit}', and a history is no single day"
    if config.model.components > 1:
        return f"model.components is {config.model.components}, which 'history' does not have"
    if days is None:
        return "the config does not declare how many days the meters have"
    return None if history_obstacle(config, days) is None else _too_coarse(config, days)


def _too_coarse(config: Config, days: int) -> str:
    return (
        f"the meters have {days} days and steps of {config.loads.step_minutes} min, and 'history' needs "
        f"{FEWEST_DAYS} days and steps of {LONGEST_STEP_MINUTES} min or less"
    )


def refuse_short_history(config: Config, n_days: int) -> None:
    """Refuse histories that are too short, where only reading them tells how long they are.

    Raises
    ------
    ConfigError : before anything is spent.
    """
    obstacle = None if config.model.estimator != HISTORY else history_obstacle(config, n_days)
    if obstacle is not None:
        raise ConfigError(obstacle)


def budget_of(config: Config) -> Budget:
    """What the fit may spend of the customers' privacy."""
    return Budget(config.model.epsilon, config.model.delta, PrivacyUnit(config.model.unit))


def estimator_of_days(config: Config) -> Estimator:
    """The estimator of single days that is nearest to what a config says."""
    return Plain() if config.model.estimator == PLAIN else Structured()


def fit_options_of(
    config: Config,
    classes: Iterable[str] = (),
    meters: MeterDays | None = None,
    estimator: str | None = None,
) -> FitOptions:
    """Public choices of the fit.

    Parameters
    ----------
    classes : names of all classes; needed where some have margins of their own.
    meters : the days of the meters; without them only what the config declares of days is known.
    estimator : name of the estimator, where it is not the config that decides.
    """
    section, own = config.model, config.model.bounds_of_class
    factor = FixedPowerFactor(
        {name: tan_theta_of(factor) for name, factor in sorted(section.power_factor_of_class.items())},
        tan_theta_of(section.power_factor),
    )
    reactive: ReactiveChoice = factor
    if config.network.random_reactive:
        reactive = PublicSpread(factor, section.reactive_spread, section.reactive_correlation_minutes)
    name = estimator or chosen_estimator(config, None if meters is None else len(meters.days)).name
    whole = name == HISTORY
    return FitOptions(
        bounds={name: own.get(name, section.bounds) for name in classes} if own else section.bounds,
        estimator=History() if whole else Plain() if name == PLAIN else Structured(),
        classes=PrivateClasses(section.private_classes) if section.private_classes else PublicLabels(),
        use_scale=section.use_scale,
        n_components=section.components,
        reactive=reactive,
        variance_floor=section.variance_floor,
        days=meters.facts if whole and meters is not None else None,
    )
