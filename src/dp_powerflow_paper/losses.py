"""The exact privacy loss of given voltages between two networks, dense and plain.

Λ = log p(v|Y) − log p(v|Y′) = Term I (likelihood of the implied loads) + Term II (volume of the map); Eq.
llr_decomp. It checks the bounds of Theorem 1; losses per line, in bulk, are those of `evidence.lines`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import diagonal_terms, real_form
from dp_powerflow.units import ComplexArray, FloatArray


def injection(y: ComplexArray, b: ComplexArray, v: ComplexArray) -> ComplexArray:
    """s = v∘conj(Yv + b), complex (..., retained) [p.u.] (Eq. powerflow)."""
    return np.asarray(v * np.conj(v @ y.T + b))


def jacobian_real(
    y: ComplexArray, b: ComplexArray, v: ComplexArray, generation_slope: ComplexArray | None = None
) -> FloatArray:
    """J of F̃ on (Re v, Im v) → (Re s, Im s) (Eq. real_rep), or J_eff of F̃ − s^g: (..., 2n, 2n)."""
    a, c = diagonal_terms(v, injection(y, b, v), generation_slope)
    return _times_voltage(v, real_form(y, a, c))


def dg(
    y: ComplexArray,
    b: ComplexArray,
    v: ComplexArray,
    tan_theta: FloatArray,
    generation_slope: ComplexArray | None = None,
) -> FloatArray:
    """DG = −J_eff⁻¹·R, R = (I; tan Θ): (..., 2n, n), ∂(Re v, Im v)/∂ active load (Eq. DG_ift).

    Parameters
    ----------
    tan_theta : (retained,) reactive over active power of every load.
    """
    right = np.concatenate([np.eye(len(tan_theta)), np.diag(tan_theta)])
    jacobian = jacobian_real(y, b, v, generation_slope)
    return np.asarray(-np.linalg.solve(jacobian, np.broadcast_to(right, (*v.shape[:-1], *right.shape))))


def log_volume(derivative: FloatArray) -> FloatArray:
    """½·log det(DGᵀDG): (...,). The density of the voltages carries its *negative* (paper correction 7)."""
    sign, value = np.linalg.slogdet(np.swapaxes(derivative, -1, -2) @ derivative)
    return np.asarray(np.where(sign > 0.0, 0.5 * value, -np.inf))


def _times_voltage(v: ComplexArray, matrix: FloatArray) -> FloatArray:
    """Real form of x ↦ v∘conj(matrix·x)."""
    n = v.shape[-1]
    real, imag = matrix[..., :n, :], matrix[..., n:, :]
    re, im = v.real[..., :, None], v.imag[..., :, None]
    return np.concatenate([re * real + im * imag, im * real - re * imag], axis=-2)


def sensitivity_to_network(v_min: float, v_max: float, n: int, kappa_r: float, mu_star: float) -> float:
    """Δ₂^(Y) = V_max²·√n·κr·‖M̃⁻¹‖⋆/V_min of one voltage vector.  # Eq. sens_voltage_Y, Jinv_Mtilde"""
    return v_max**2 * math.sqrt(n) * kappa_r * mu_star / v_min


def sensitivity_to_load(v_min: float, load_range: float, mu_star: float) -> float:
    """Δ₂^(load→v) = √2·Δ_load·‖M̃⁻¹‖⋆/V_min of one voltage vector.  # Eq. sens_voltage_load"""
    return math.sqrt(2.0) * load_range * mu_star / v_min


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
    """Λ when q = tanθ·p exactly; both networks must have the same manifold of voltages."""
    ours, theirs = manifold_log_density(law, true, v), manifold_log_density(law, other, v)
    return Loss(ours.term_i - theirs.term_i, ours.term_ii - theirs.term_ii)


def manifold_log_density(law: LoadLaw, network: Admittance, v: ComplexArray) -> Loss:
    """log p(v|Y) on the manifold up to a constant, both terms (day,); Λ is the difference of two.

    The density carries 1/√det(DGᵀDG) (paper correction 7).
    """
    volume = log_volume(dg(network.y, network.b, v, law.tan_theta))
    active = log_density_of_active(law, implied_load(network, v).real)
    return Loss(active, np.asarray(-volume.sum(axis=1)))


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
