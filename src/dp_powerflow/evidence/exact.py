"""The exact privacy loss of given voltages between two networks, dense and plain.

Λ = log p(v|Y) − log p(v|Y′) = Term I (likelihood of the implied loads) + Term II (volume of the map).
Used to check the bounds; the bulk evaluation per line is another matter.  # Eq. llr_decomp
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import dg, diagonal_terms, injection, log_volume, real_form
from dp_powerflow.units import ComplexArray, FloatArray


@dataclass(frozen=True, eq=False)
class Admittance:
    """Reduced network: Y complex (node, node) and b complex (node,) [p.u.]."""

    y: ComplexArray
    b: ComplexArray


@dataclass(frozen=True, eq=False)
class Loss:
    """Both terms of Λ, (day,) each; +∞ where an implied load under Y′ is impossible."""

    term_i: FloatArray
    term_ii: FloatArray

    @property
    def total(self) -> FloatArray:
        """Λ: (day,)."""
        return np.asarray(self.term_i + self.term_ii)


def implied_load(network: Admittance, v: ComplexArray) -> ComplexArray:
    """Complex (..., node) load that the voltages imply without generation.  # Eq. Ginv_closed_form"""
    return -injection(network.y, network.b, v)


def log_density_of_active(law: LoadLaw, p: FloatArray) -> FloatArray:
    """log f_p up to a constant: (day,) for p (day, step, node); −∞ outside the support."""
    possible = np.all(p > 0.0, axis=(1, 2))
    if law.truncated:
        low, high = law.scale * law.p_min[law.class_of], law.scale * law.p_max[law.class_of]
        possible &= np.all((p >= low) & (p <= high), axis=(1, 2))
    xi = np.log(np.where(p > 0.0, p, 1.0) / law.scale)
    value = -np.sum(xi, axis=(1, 2))
    for ell, (mean, covariance) in enumerate(zip(law.mean, law.covariance, strict=True)):
        value -= 0.5 * _quadratic(xi[:, :, law.class_of == ell] - mean[:, None], covariance)
    return np.where(possible, value, -np.inf)


def log_density_of_reactive(law: LoadLaw, p: FloatArray, q: FloatArray) -> FloatArray:
    """log f(q|p) up to a constant: (day,)."""
    if law.q_sigma is None or law.q_covariance is None:
        raise PrivacyError("the reactive load of this law is not random; it has no density")
    return -0.5 * _quadratic((q - law.tan_theta * p) / law.q_sigma, law.q_covariance)


def full_support_loss(law: LoadLaw, true: Admittance, other: Admittance, v: ComplexArray) -> Loss:
    """Λ of days of voltages, complex (day, step, node), when p and q are both random."""
    parts = []
    for network in (true, other):
        load = implied_load(network, v)
        density = log_density_of_active(law, load.real)
        parts.append(density + log_density_of_reactive(law, load.real, load.imag))
    with np.errstate(invalid="ignore"):
        term_i = parts[0] - parts[1]
    return Loss(term_i, log_abs_det(true, v).sum(axis=1) - log_abs_det(other, v).sum(axis=1))


def manifold_loss(law: LoadLaw, true: Admittance, other: Admittance, v: ComplexArray) -> Loss:
    """Λ when q = tanθ·p exactly; both networks must have the same manifold of voltages.

    The density on the manifold carries 1/√det(DGᵀDG) (paper correction 7).
    """
    term_i = log_density_of_active(law, implied_load(true, v).real) - log_density_of_active(
        law, implied_load(other, v).real
    )
    volume = [log_volume(dg(network.y, network.b, v, law.tan_theta)) for network in (true, other)]
    return Loss(term_i, np.asarray((volume[1] - volume[0]).sum(axis=1)))


def log_abs_det(network: Admittance, v: ComplexArray) -> FloatArray:
    """log|det M̃(v, Y)|: (day, step)."""
    a, c = diagonal_terms(v, injection(network.y, network.b, v))
    return np.asarray(np.linalg.slogdet(real_form(network.y, a, c))[1])


def _quadratic(deviation: FloatArray, covariance: FloatArray) -> FloatArray:
    """Σ_k x_kᵀΣ⁻¹x_k: (day,) for x (day, step, node)."""
    days, steps, nodes = deviation.shape
    columns = np.moveaxis(deviation, 1, 0).reshape(steps, days * nodes)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), columns)
    return np.asarray((whitened**2).sum(axis=0).reshape(days, nodes).sum(axis=1))
