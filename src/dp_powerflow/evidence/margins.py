"""Truncating a load law to public margins, with the probability that the certificate charges for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.model.truncated import truncate
from dp_powerflow.units import ComplexArray, FloatArray

_STANDARD_ERRORS = 4.0
_REJECTION_ABOVE = 0.05


def with_margins(
    law: NodeLaw, p_min: FloatArray, p_max: FloatArray, generator: np.random.Generator
) -> NodeLaw:
    """The law of draws truncated to [p_min, p_max] (class,) of p/scale, at a fixed power factor.

    The acceptance probability is estimated (minimax tilting) and lowered by four standard errors, which errs
    on the side of a larger τ.
    """
    log_accept = np.empty(len(law.mean))
    for ell, (mean, covariance) in enumerate(zip(law.mean, law.covariance, strict=True)):
        low, high = np.full(law.steps, np.log(p_min[ell])), np.full(law.steps, np.log(p_max[ell]))
        found = truncate(mean, covariance, low, high).probability(generator)
        least = found.value - _STANDARD_ERRORS * found.standard_error
        if not least > 0.0:
            raise PrivacyError(
                f"hardly a day of class {ell + 1} stays within the margins; widen [p_min, p_max]"
            )
        log_accept[ell] = np.log(least)
    return replace(law, p_min=p_min, p_max=p_max, log_accept=log_accept, q_sigma=None, q_covariance=None)


def draw_days(law: NodeLaw, days: int, generator: np.random.Generator) -> ComplexArray:
    """Complex (day, step, node) loads [p.u.] of a law, truncated exactly where it is; for calibration."""
    return day_drawer(law, generator)(days)


def day_drawer(law: NodeLaw, generator: np.random.Generator) -> Callable[[int], ComplexArray]:
    """`draw_days` prepared once for many calls, each of which gives the next days."""
    if law.p_min is None or law.p_max is None or law.log_accept is None:
        return lambda days: law.draw(days, generator)
    classes = []
    for ell, (mean, covariance) in enumerate(zip(law.mean, law.covariance, strict=True)):
        low, high = np.full(law.steps, np.log(law.p_min[ell])), np.full(law.steps, np.log(law.p_max[ell]))
        rejection = bool(np.exp(law.log_accept[ell]) > _REJECTION_ABOVE)
        nodes = np.flatnonzero(law.class_of == ell)
        classes.append((nodes, truncate(mean, covariance, low, high), rejection))

    def draw(days: int) -> ComplexArray:
        p = np.empty((days, law.steps, law.n))
        for nodes, truncated, rejection in classes:
            drawn = truncated.draw(generator, days * len(nodes), rejection=rejection)
            p[:, :, nodes] = np.swapaxes(np.exp(drawn).reshape(days, len(nodes), law.steps), 1, 2)
        p *= law.scale
        return np.asarray(p * (1.0 + 1j * law.tan_theta))

    return draw
