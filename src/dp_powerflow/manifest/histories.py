"""What a manifest says of loads whose days follow one another, or are independent draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp_powerflow.corpus.schema import DAYS_FILE
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import DayFacts

if TYPE_CHECKING:
    from dp_powerflow.manifest.build import Facts

SHRUNK = (
    "The noisy answers are shrunk towards a public prior, made positive definite and given the declared "
    "floor of variance, which is taken out of the log mean so that the mean load does not move."
)
HISTORY_SHRUNK = (
    "The noisy answers are shrunk towards public priors and made to agree with one another and with the "
    "declared bounds."
)
_INDEPENDENT = (
    "Days of active and reactive load are drawn independently for every customer of a load from the load "
    "model; reactive load has randomness of its own, cut at four standard deviations."
)
_FOLLOWING = (
    "The customers of every load are drawn once from the load model and persist through all days: each has a "
    "level, a mean day and a spread of its own. Their days follow one another: each customer has a process "
    "that runs through all of them, and a part in a factor that the customers have in common. Days off move "
    "the mean day{weather}. On a date of the meters that factor is the released one, on others it is drawn. "
    "Reactive load has randomness of its own, cut at four standard deviations."
)


def drawn_loads(model: LoadModel) -> list[str]:
    """What happens to the noisy answers, and how the loads of a twin are drawn from them."""
    if not model.is_history:
        return [SHRUNK, _INDEPENDENT]
    weather = ", the declared weather moves the common factor" if covariates_of(model) else ""
    return [HISTORY_SHRUNK, _FOLLOWING.format(weather=weather)]


def covariates_of(model: LoadModel) -> tuple[str, ...]:
    """Names of the figures of the weather that a model was fitted with; none for independent days."""
    facts = _days_of(model)
    return () if facts is None else tuple(name for name, _ in facts.covariates)


def _days_of(model: LoadModel) -> DayFacts | None:
    return None if model.origin is None else model.origin.facts.days


def rows_in_words(facts: Facts) -> str:
    """The entry `data.rows`."""
    if facts.days is None:
        return "one row per (day, node); days are independent draws and carry no date"
    if facts.model.is_history:
        return f"one row per (day, node); days follow one another, and {DAYS_FILE} has their dates"
    return f"one row per (day, node); days are independent draws, and {DAYS_FILE} has their dates"


def public_dates(model: LoadModel) -> list[str]:
    """What every reader learns of the days of the meters; nothing where a model knows no dates."""
    facts = _days_of(model)
    if not model.is_history or facts is None:
        return []
    weather = ", and their weather" if facts.covariates else ""
    return [
        f"The dates of the {len(facts.dates)} days of the meters, from {facts.dates[0]} to "
        f"{facts.dates[-1]}, which of them are days off{weather}: declared public, in {MODEL_FILE}.",
        "What the customers had in common on each of these days: the factor that is released for every one "
        "of them shows events such as cold days on their dates. What one load point adds to it is covered "
        "by the guarantee of the loads.",
    ]


def wrong_histories(facts: Facts) -> Iterator[str]:
    """What cannot be true of loads whose days follow one another."""
    if not facts.model.is_history:
        return
    if not facts.policy.dated:
        yield "The load model draws days that follow one another, and the mode is about independent days."
    known = () if facts.days is None else facts.days.names
    if set(covariates_of(facts.model)) - set(known):
        yield "The load model was fitted with weather that the released days do not have."
