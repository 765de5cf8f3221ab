"""INTERNAL. Drawn load histories against real ones: marginals, memory, coincidence, classifier, forecast.

All functions take loads (customer, day, step) [kW], positive: readings of zero are raised to a declared floor
before. Days follow one another, and a customer is the same one through all of them. Everything that is drawn
at random here comes from the seed of the `Setting`, so a result is a function of its arguments.

The results are computed from real meters without noise. They may not be released.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import mannwhitneyu, wasserstein_distance

from dp_powerflow.units import BoolArray, FloatArray, IntArray

LAG_MINUTES = (15, 30, 60, 120, 240, 480, 960, 1440, 2880, 4320, 10080)
"""Lags of the autocorrelation [min], to seven days; those shorter than a step count as one step."""
COINCIDENT = 50
"""Customers whose coincidence factor is measured."""
FEEDER = 40
"""Customers of a small feeder, for classifier and forecast."""
FEWEST_DAYS = 14
HOURS = 24
_GROUPS = 30  # groups of customers, for the coincidence factor
_MINUTES = 1440


@dataclass(frozen=True, eq=False)
class Setting:
    """INTERNAL. What two sets of histories are compared under.

    Parameters
    ----------
    weekend
        (day,) whether the day is a Saturday, a Sunday or a holiday; the same days on both sides.
    floor_kw
        Declared floor of the loads [kW].
    quantum_kw
        Resolution of the meters [kW], None where they have none to speak of. A classifier would see it at
        once, so it is shown both sides rounded to it and dithered over it.
    seed
        Of groups, samples and dither.
    """

    weekend: BoolArray
    floor_kw: float
    quantum_kw: float | None = None
    seed: int = 0


Figures = dict[str, float]
"""INTERNAL. Figures by their names in `metrics.csv`."""


@dataclass(frozen=True)
class Fidelity:
    """INTERNAL. Drawn histories against real ones.

    Parameters
    ----------
    between
        Figures of both sides: distances, ``auc_day``, ``auc_week`` and ``auc_feeder`` of a classifier
        (`classifier_auc`), ``next_day`` and ``next_day_feeder`` of a forecast (`next_day_error`).
    drawn, real
        Traits of each side; each drawn one should be near its real one.
    """

    between: Figures
    drawn: Figures
    real: Figures


def compare(drawn: FloatArray, real: FloatArray, setting: Setting) -> Fidelity:
    """INTERNAL. All figures of `Fidelity`.

    Parameters
    ----------
    drawn, real
        Loads (customer, day, step) [kW] on the same days and steps.
    setting
        Calendar, resolution of the meters and seed.
    """
    areas = classifier_auc(drawn, real, setting)
    errors = next_day_error(drawn, real, setting)
    between = {
        "w1_percent": w1_percent(drawn, real),
        "autocorrelation_error": autocorrelation_error(drawn, real),
        "changes_w1": changes_w1_percent(drawn, real),
        "nearest": nearest_distance(drawn, real),
        **dict(zip(("auc_day", "auc_week", "auc_feeder"), areas, strict=True)),
        **dict(zip(("next_day", "next_day_feeder"), errors, strict=True)),
    }
    return Fidelity(between, traits(drawn), traits(real))


def traits(load: FloatArray) -> Figures:
    """INTERNAL. What histories are like by themselves; all without unit."""
    of = (
        *(day_to_day, between_customers, pairwise, coincidence),
        *(peak_over_mean, feeder_daily_sd, midnight_step, high_ramp),
    )
    return {trait.__name__: trait(load) for trait in of}


def w1_percent(drawn: FloatArray, real: FloatArray) -> float:
    """INTERNAL. W1 of the loads at one time of day, mean over times [% of the real mean load]."""
    steps = range(real.shape[2])
    each = [wasserstein_distance(drawn[:, :, t].ravel(), real[:, :, t].ravel()) for t in steps]
    return 100 * float(np.mean(each)) / float(real.mean())


def lags(n_steps: int) -> IntArray:
    """`LAG_MINUTES` in steps of a day of `n_steps`, ascending, none twice."""
    return np.unique(np.maximum(1, np.array(LAG_MINUTES) * n_steps // _MINUTES))


def autocorrelation(load: FloatArray) -> FloatArray:
    """INTERNAL. (lag,) autocorrelation of log load at `lags`, mean over customers that are not constant."""
    series = np.log(load).reshape(len(load), -1)
    series = series - series.mean(axis=1, keepdims=True)
    variance = np.mean(series**2, axis=1)
    series, variance = series[variance > 0], variance[variance > 0]
    if not len(series):
        return np.zeros(lags(load.shape[2]).size)
    each = [np.mean(series[:, k:] * series[:, :-k], axis=1) / variance for k in lags(load.shape[2])]
    return np.asarray(np.mean(each, axis=1))


def autocorrelation_error(drawn: FloatArray, real: FloatArray) -> float:
    """INTERNAL. Mean difference of the two autocorrelations."""
    return float(np.mean(np.abs(autocorrelation(drawn) - autocorrelation(real))))


def day_to_day(load: FloatArray) -> float:
    """INTERNAL. Correlation of the log energy of a customer's day with its next day's, about its own mean.

    0 where no customer's energy varies.
    """
    about = _log_energy(load)
    about = about - about.mean(axis=1, keepdims=True)
    return _ratio(float(np.mean(about[:, 1:] * about[:, :-1])), float(np.mean(about**2)))


def between_customers(load: FloatArray) -> float:
    """INTERNAL. Share of the variance of the log energy of days between customers; 0 of equal energies."""
    energy = _log_energy(load)
    return _ratio(float(energy.mean(axis=1).var()), float(energy.var()))


def pairwise(load: FloatArray) -> float:
    """INTERNAL. Mean correlation of the daily energies of two customers; 0 where none varies."""
    energy = load.mean(axis=2)
    energy = energy - energy.mean(axis=1, keepdims=True)
    spread = energy.std(axis=1)
    unit = energy[spread > 0] / spread[spread > 0, None]
    count = len(unit)
    # Σ_ij corr_ij = mean over days of (Σ_i unit_i)², of which the diagonal is `count`
    together = float(np.mean(unit.sum(axis=0) ** 2))
    return (together - count) / (count * (count - 1)) if count > 1 else 0.0


def coincidence(load: FloatArray) -> float:
    """INTERNAL. Peak of the sum of `COINCIDENT` customers over the sum of their peaks; mean of 30 groups."""
    series = load.reshape(len(load), -1)
    peak, rng = series.max(axis=1), np.random.default_rng(0)
    size = min(COINCIDENT, len(load))
    groups = [rng.permutation(len(load))[:size] for _ in range(_GROUPS)]
    return float(np.mean([series[own].sum(axis=0).max() / peak[own].sum() for own in groups]))


def peak_over_mean(load: FloatArray) -> float:
    """INTERNAL. Peak of a customer over its mean load; median over customers."""
    series = load.reshape(len(load), -1)
    return float(np.median(series.max(axis=1) / series.mean(axis=1)))


def feeder_daily_sd(load: FloatArray) -> float:
    """INTERNAL. Standard deviation of the daily energy of all customers together, over its mean."""
    energy = load.mean(axis=(0, 2))
    return float(energy.std() / energy.mean())


def midnight_step(load: FloatArray) -> float:
    """INTERNAL. Mean change of all customers together from a day's last step to the next, over their mean."""
    feeder = load.sum(axis=0)
    return float(np.mean(np.abs(feeder[1:, 0] - feeder[:-1, -1])) / feeder.mean())


def classifier_auc(drawn: FloatArray, real: FloatArray, setting: Setting) -> tuple[float, float, float]:
    """INTERNAL. Area under the curve: day of a customer, week of a customer, day of a feeder."""
    shown = [_dithered(load, setting, side) for side, load in enumerate((drawn, real))]
    day, week, feeder = (
        told_apart(
            *(of(load, np.random.default_rng([setting.seed, side])) for side, load in enumerate(shown)),
            seed=setting.seed,
        )
        for of in (_some_days, _some_weeks, _some_feeder_days)
    )
    return day, week, feeder


def next_day_error(drawn: FloatArray, real: FloatArray, setting: Setting) -> tuple[float, float]:
    """INTERNAL. Error of the forecast of the next day, trained on drawn, tested on real: customer, feeder."""
    sides = [np.random.default_rng([setting.seed, 2 + side]) for side in range(2)]
    hours = [hourly(load) for load in (drawn, real)]
    feeders = [_feeders(load, 60, rng) for load, rng in zip(hours, sides, strict=True)]
    customers = [day_rows(np.log(load), setting.weekend, rng) for load, rng in zip(hours, sides, strict=True)]
    of_feeders = [day_rows(np.log(load), setting.weekend) for load in feeders]
    return forecast_error(*customers), forecast_error(*of_feeders)


def hourly(load: FloatArray) -> FloatArray:
    """(customer, day, hour) mean loads [kW]."""
    return np.asarray(load.reshape(*load.shape[:2], HOURS, -1).mean(axis=3))


def _log_energy(load: FloatArray) -> FloatArray:
    """(customer, day) log of the mean load."""
    return np.asarray(np.log(load.mean(axis=2)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 1e-20 else 0.0


def _dithered(load: FloatArray, setting: Setting, side: int) -> FloatArray:
    """Rounded to the resolution of the meters and spread evenly over it; unchanged where there is none."""
    q = setting.quantum_kw
    if q is None:
        return load
    rng = np.random.default_rng([setting.seed, 4, side])
    return np.maximum(q * (np.round(load / q) + rng.random(load.shape) - 0.5), setting.floor_kw)


def _repeats(n_customers: int, fewest: int, most: int) -> int:
    """Rows per customer: about two thousand in all, where the history is long enough."""
    return min(max(fewest, 2000 // n_customers), most)


def _some_days(load: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Log loads of some days of every customer, and whose they are."""
    n, days, _ = load.shape
    of = np.repeat(np.arange(n), _repeats(n, 8, days))
    return np.log(load[of, rng.integers(0, days, of.size)]), of


def _some_weeks(load: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Hourly log loads of some weeks of every customer with what a week shows as a whole: spread of its
    days' energies and about its mean day, midnight steps, likeness of its days."""
    n, days, _ = load.shape
    of = np.repeat(np.arange(n), min(3, _repeats(n, 3, days // 7)))
    first = 7 * rng.integers(0, days // 7, of.size)
    weeks = np.log(hourly(load))[of[:, None], first[:, None] + np.arange(7)]
    about = weeks - weeks.mean(axis=2, keepdims=True)
    unit = about / np.maximum(np.sqrt(np.sum(about**2, axis=2, keepdims=True)), 1e-12)
    whole = [
        weeks.mean(axis=2).std(axis=1),
        (weeks - weeks.mean(axis=1, keepdims=True)).std(axis=(1, 2)),
        np.abs(weeks[:, 1:, 0] - weeks[:, :-1, -1]).mean(axis=1),
        (np.sum(unit.sum(axis=1) ** 2, axis=1) - 7) / 42,
    ]
    return np.column_stack([weeks.reshape(len(of), -1), *whole]), of


def _some_feeder_days(load: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Hourly loads, over their mean, of some days of small feeders, and of which feeder."""
    feeders = _feeders(hourly(load), 40, rng)
    chosen = [own[rng.permutation(own.shape[0])[:20]] for own in feeders]
    return np.concatenate(chosen), np.repeat(np.arange(len(chosen)), [len(own) for own in chosen])


def _feeders(load: FloatArray, count: int, rng: np.random.Generator) -> FloatArray:
    """(feeder, day, step) sums of some customers each, over the mean of the feeder."""
    size = min(FEEDER, max(2, len(load) // 2))
    sums = np.stack([load[rng.permutation(len(load))[:size]].sum(axis=0) for _ in range(count)])
    return np.asarray(sums / sums.mean(axis=(1, 2), keepdims=True))


# --- the next day -----------------------------------------------------------------------------------------
# INTERNAL. A forecast of the next day, trained on drawn histories and tested on real ones.
# Ridge regression of the 24 hourly log loads of a day on those of the day before, of the same day of the week
# before, the mean of the seven days before, and whether it and the day before are weekends.


WEEK = 7
_PENALTY = 10.0
_MOST_ROWS = 6000

Rows = tuple[FloatArray, FloatArray]
"""(row, feature) and (row, hour)."""


def day_rows(log_load: FloatArray, weekend: BoolArray, rng: np.random.Generator | None = None) -> Rows:
    """All days of customers or feeders, or 6,000 drawn at random; `log_load` is (customer, day, hour)."""
    n, days, _ = log_load.shape
    who, when = (axis.ravel() for axis in np.meshgrid(np.arange(n), np.arange(WEEK, days), indexing="ij"))
    chosen = np.arange(who.size) if rng is None else rng.permutation(who.size)[:_MOST_ROWS]
    who, when = who[chosen], when[chosen]
    before = log_load[who[:, None], when[:, None] - np.arange(1, WEEK + 1)]
    calendar = np.column_stack([weekend[when], weekend[when - 1]]).astype(np.float64)
    return np.hstack([before[:, 0], before[:, -1], before.mean(axis=1), calendar]), log_load[who, when]


def forecast_error(trained: Rows, tested: Rows) -> float:
    """Root mean square error on `tested` of the forecast that `trained` gives."""
    features, target = trained
    centre, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    unit, middle = (features - centre) / spread, target.mean(axis=0)
    gram = unit.T @ unit + _PENALTY * np.eye(unit.shape[1])
    weights = np.linalg.solve(gram, unit.T @ (target - middle))
    forecast = (tested[0] - centre) / spread @ weights + middle
    return float(np.sqrt(np.mean((forecast - tested[1]) ** 2)))


# --- step changes -----------------------------------------------------------------------------------------


HIGH = 0.99


def changes(load: FloatArray) -> FloatArray:
    """(customer, change) from step to step, midnights too, over the mean load of the customer [1].

    Parameters
    ----------
    load
        (customer, day, step) [kW].
    """
    series = load.reshape(len(load), -1)
    return np.asarray(np.diff(series, axis=1) / series.mean(axis=1, keepdims=True))


def changes_w1_percent(drawn: FloatArray, real: FloatArray) -> float:
    """INTERNAL. W1 of the relative step changes of all customers together [% of the mean load]."""
    return 100 * float(wasserstein_distance(changes(drawn).ravel(), changes(real).ravel()))


def high_ramp(load: FloatArray) -> float:
    """INTERNAL. 99th percentile of the size of relative step changes [1]."""
    return float(np.quantile(np.abs(changes(load)), HIGH))


# --- customers as points ----------------------------------------------------------------------------------


HARMONICS = 3
"""Of the mean day, each with two features."""
NEAR = 0.1
"""Quantile over customers of their distance to the nearest real one."""


def traits_of(load: FloatArray) -> FloatArray:
    """(customer, feature): log level, spread of days, peak over mean, spread of log loads, mean day.

    Parameters
    ----------
    load
        (customer, day, step) [kW], positive.
    """
    log_load, series = np.log(load), load.reshape(len(load), -1)
    energy, mean_day = np.log(load.mean(axis=2)), log_load.mean(axis=1)
    about = mean_day - mean_day.mean(axis=1, keepdims=True)
    shape = np.fft.rfft(about, axis=1)[:, 1 : 1 + HARMONICS] / load.shape[2]
    return np.column_stack(
        [
            np.log(series.mean(axis=1)),
            np.log(energy.std(axis=1) + 0.05),
            np.log(series.max(axis=1) / series.mean(axis=1)),
            log_load.std(axis=(1, 2)),
            shape.real,
            shape.imag,
        ]
    )


def distances(points: FloatArray, others: FloatArray, scale: FloatArray) -> FloatArray:
    """(point, other) Euclidean distances, features over their scale."""
    return np.asarray(cdist(*(features / np.maximum(scale, 1e-9) for features in (points, others))))


def nearest_distance(side: FloatArray, real: FloatArray) -> float:
    """INTERNAL. Distance of a customer to the real one nearest to it [standard deviations of traits].

    The tenth percentile over customers, so that it is small where some of them are copies.

    Parameters
    ----------
    side, real
        Loads (customer, day, step) [kW].
    """
    points, others = traits_of(side), traits_of(real)
    return float(np.quantile(distances(points, others, others.std(axis=0)).min(axis=1), NEAR))


# --- classifier -------------------------------------------------------------------------------------------
# INTERNAL. A classifier that tells drawn from real: scikit-learn's gradient-boosted trees on histograms.


TREES = 120
_LEAVES = 15
_TESTED = 0.4  # share of the customers that the classifier is tested on

Sample = tuple[FloatArray, IntArray]
"""(row, feature), and whose row it is."""


def told_apart(drawn: Sample, real: Sample, *, seed: int = 0) -> float:
    """Area under the curve on customers, drawn and real, that the classifier was not trained on."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # optional, and slow to import

    features = np.concatenate([drawn[0], real[0]])
    is_real = np.repeat([False, True], [len(drawn[0]), len(real[0])])
    rng = np.random.default_rng([seed, 9])
    tested = np.concatenate([_held_out(of, rng) for _, of in (drawn, real)])
    trees = HistGradientBoostingClassifier(max_iter=TREES, max_leaf_nodes=_LEAVES, random_state=seed)
    score = trees.fit(features[~tested], is_real[~tested]).decision_function(features[tested])
    return area_under_curve(score, is_real[tested])


def area_under_curve(score: FloatArray, positive: BoolArray) -> float:
    """Probability that a positive row scores above a negative one; ties count half."""
    own, others = score[positive], score[~positive]
    return float(mannwhitneyu(own, others, method="asymptotic").statistic) / (own.size * others.size)


def _held_out(of: IntArray, rng: np.random.Generator) -> BoolArray:
    """(row,) whether its owner is held out; at least one owner is, and one is not."""
    owners = rng.permutation(np.unique(of))
    held = owners[: min(max(1, round(_TESTED * owners.size)), owners.size - 1)]
    return np.isin(of, held)
