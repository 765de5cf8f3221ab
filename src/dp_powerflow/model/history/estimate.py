"""The queries of the history model in their order, and the law that follows from their answers.

Classes are asked in lockstep, each query of all of them for one charge. A contribution is a function of one
customer, with all its days, and of answers before it; sensitivities are those of `privacy.queries`. Whatever
is made of the answers is free: posterior means under public priors, and calibration by a public key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dp_powerflow._bits.elementary import exp1, log1
from dp_powerflow._bits.linear import product
from dp_powerflow.model.estimators import Records
from dp_powerflow.model.history import plan
from dp_powerflow.model.history.asking import (
    Asker,
    MeanDays,
    OwnProcess,
    Seen,
    Setting,
    Traits,
    ask_contrast,
    ask_marginal,
    ask_mean_days,
    ask_process,
    ask_sizes,
    ask_traits,
    positive,
    shrunk,
)
from dp_powerflow.model.history.calibrate import (
    RANK_FUNCTIONS,
    TIME_HARMONICS,
    Calibrated,
    mean_of,
    times_of_day,
)
from dp_powerflow.model.history.contributions import Frame
from dp_powerflow.model.history.law import SCORES, HistoryLaw
from dp_powerflow.model.history.numbers import fourier, harmonic_of
from dp_powerflow.privacy.queries import Region, Session
from dp_powerflow.units import FloatArray


def estimate_histories(groups: Sequence[Records], setting: Setting, session: Session) -> list[HistoryLaw]:
    """The law of every class; spends the budget of the setting.

    Parameters
    ----------
    groups
        PRIVATE. Customers of each class with all their days; each customer is in exactly one.
    """
    asker = Asker(groups, setting, session)
    traits = ask_traits(asker)
    shares, scores = ask_marginal(asker)
    days = ask_mean_days(asker, scores)
    frames = ask_contrast(asker, scores)
    sizes, correlations = ask_sizes(asker, frames, traits)
    processes = ask_process(asker, frames)
    laws = []
    for index in range(len(groups)):
        law = _assembled(
            setting, traits[index], sizes[index], correlations[index], days[index], frames[index],
            processes[index],
        )  # fmt: skip
        laws.append(Calibrated(law, shares[index], setting.off_weight, setting.log_bounds))
    return _ask_ranks(asker, laws)


def _assembled(
    setting: Setting,
    traits: Traits,
    size: tuple[float, float],
    correlation: FloatArray,
    days: MeanDays,
    frame: Frame,
    process: OwnProcess,
) -> HistoryLaw:
    """The law, but for its maps: a customer's mean over its days is not its mean day, so the spread of
    mean days is that of the averages less what the process leaves in them."""
    mean, std = traits.mean.copy(), traits.std.copy()
    mean[2], std[2] = size
    left = _left_in_averages(setting, process.amplitudes) * exp1(2 * size[0] + 2 * size[1] * size[1])
    block = len(days.block)
    return HistoryLaw(
        mean_day=days.mean_day,
        shape_block=positive(days.block - np.diag(left[:block])),
        shape_variance=np.maximum(days.variance - left[block:], 1e-7),
        level_edges=traits.level_edges,
        level_shares=traits.level_shares,
        trait_mean=mean,
        trait_std=std,
        trait_correlation=correlation,
        contrast=frame.contrast,
        off_share=setting.off_share,
        profile=process.profile,
        factor=process.factor.values,
        factor_variance=process.factor.variance,
        factor_memory=process.factor.memory,
        covariates=process.factor.covariates,
        loading_std=process.loading_std,
        amplitudes=process.amplitudes,
        score_map=np.zeros(SCORES),
        quantiles=np.zeros((times_of_day(setting.n_steps), 1)),
        corrected=np.zeros((times_of_day(setting.n_steps), 1)),
    )


def _left_in_averages(setting: Setting, amplitudes: FloatArray) -> FloatArray:
    """(coefficient,) variance of the Fourier coefficients of the process averaged over all days."""
    n_steps, n_days = setting.n_steps, setting.n_days
    covariance = setting.ladder.covariance(amplitudes, n_steps * n_days)
    day = np.arange(1, n_days)
    weight = (n_days - day) / (n_days * n_days)
    lag = np.arange(n_steps)[:, None]
    later, earlier = covariance[day * n_steps + lag], covariance[day * n_steps - lag]
    average = covariance[:n_steps] / n_days + np.sum(weight * (later + earlier), axis=1)
    toeplitz = average[np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps)))]
    basis = fourier(n_steps, setting.coefficients // 2)[1:]
    result: FloatArray = np.sum(product(basis, toeplitz) * basis, axis=1) / (n_steps * n_steps)
    return result


def _ask_ranks(asker: Asker, laws: Sequence[Calibrated]) -> list[HistoryLaw]:
    """The last correction: where real loads lie among those of the law, by time of day.

    A plan wants no law, and calibration takes longer than all of its queries; it is left out there.
    """
    times = 1 + 2 * TIME_HARMONICS
    seen = asker.ask("ranks", RANK_FUNCTIONS * times, Region.BALL, [own.features for own in laws])
    if asker.session.lists_only:
        return [own.assembled for own in laws]
    found = []
    for calibrated, one in zip(laws, seen, strict=True):
        law, own = calibrated.law, calibrated.ranks
        scale = own.radius / own.kept
        density = Seen((one.value - own.clipped_mean) * scale, one.noise * scale)
        order = np.arange(RANK_FUNCTIONS)[:, None] + 1.0
        harmonic = np.concatenate([[1.0], 1.0 + harmonic_of(times - 1)])
        found_density = shrunk(density, (plan.PRIOR_RANKS / np.sqrt(order * harmonic)).reshape(-1))
        corrected = own.corrected(found_density.reshape(RANK_FUNCTIONS, times))
        # Levels were asked for with less noise than ranks leave in the mean load.
        corrected = corrected + log1(mean_of(own.tables) / mean_of(corrected))
        found.append(replace(law, quantiles=own.tables, corrected=corrected))
    return found
