"""A practical attack that knows less than the guarantee allows for: regression of one line's admittance.

The attacker has the released voltages, the published load model's mean loads and every line but one, whose
admittance he believes to be off by a factor 1 + x. Loads implied by the voltages are linear in x to first
order, so he fits x by weighted least squares against the mean loads: no density, no covariance over time,
no determinant. INTERNAL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.grid.feeder import Line
from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import ComplexArray, FloatArray

_PROBE = 1e-4


@dataclass(frozen=True, eq=False)
class Attack:
    """Estimates of x of one line, which is 0 in truth.

    Attributes
    ----------
    estimates : (trial,) from `days` released days each.
    with_loads : the same when the loads behind the voltages are published: (trial,).
    """

    days: int
    estimates: FloatArray
    with_loads: FloatArray

    @property
    def error(self) -> float:
        """Root mean square error of x."""
        return float(np.sqrt(np.mean(self.estimates**2)))

    @property
    def error_with_loads(self) -> float:
        """The same when paired loads are published."""
        return float(np.sqrt(np.mean(self.with_loads**2)))


def mean_load(law: NodeLaw) -> ComplexArray:
    """Complex (step, node): expected load, from the published model."""
    variance = np.diagonal(law.covariance, axis1=1, axis2=2)
    p = law.scale * np.exp(law.mean + variance / 2.0)[law.class_of].T
    return np.asarray(p * (1.0 + 1j * law.tan_theta))


def regress_line(
    network: Network, law: NodeLaw, line: Line, v: ComplexArray, load: ComplexArray, days: int
) -> Attack:
    """Attack one line with voltages, complex (day, step, node), in groups of so many days.

    Parameters
    ----------
    load : the loads behind the voltages, used only for the variant where they are published.
    """
    if law.q_sigma is None:
        raise PrivacyError("the attack's weights need random reactive load")
    trials = len(v) // days
    if trials < 1:
        raise PrivacyError("the attack needs at least as many released days as it regresses on")
    change = network.line_change(line, _PROBE * line.primitive)
    through = v @ change.right[:, : network.n].T + change.right[:, network.n :] @ network.feeder.v_slack
    current = through @ (change.left @ change.core).T / _PROBE
    slope = v * np.conj(current)  # implied load falls by x·slope
    implied = -v * np.conj(v @ network.y.T + network.b)
    expected = mean_load(law)
    variance = np.diagonal(law.covariance, axis1=1, axis2=2)
    weight_p = 1.0 / (expected.real**2 * np.expm1(variance)[law.class_of].T)
    weight_q = np.broadcast_to(1.0 / law.q_sigma**2, weight_p.shape)

    def fit(target: ComplexArray) -> FloatArray:
        away = implied - target
        top = (weight_p * slope.real * away.real + weight_q * slope.imag * away.imag).sum(axis=(1, 2))
        bottom = (weight_p * slope.real**2 + weight_q * slope.imag**2).sum(axis=(1, 2))
        groups = trials * days
        numerator = top[:groups].reshape(trials, days).sum(axis=1)
        denominator = bottom[:groups].reshape(trials, days).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(denominator > 0.0, numerator / denominator, np.inf)

    return Attack(days, fit(expected), fit(load))
