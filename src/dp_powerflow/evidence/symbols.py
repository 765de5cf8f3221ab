"""The quantities of Propositions 1 and 2 and Theorem 1, one small function each; the exact loss.

Names follow the paper's symbols; a comment names the equation by its label. The corrected forms stand beside
the printed ones, and docs/explanation/paper-corrections.md says why they differ.

The exact privacy loss of given voltages between two networks is dense and plain: Λ = log p(v|Y) − log p(v|Y′)
= Term I (likelihood of the implied loads) + Term II (volume of the map). It checks the bounds; the losses per
line, in bulk, are those of `evidence.lines`.  # Eq. llr_decomp
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import dg, diagonal_terms, injection, log_volume, real_form
from dp_powerflow.units import ComplexArray, FloatArray


def d_ell(v_max: float, d_max: float, p_min: float) -> float:
    """d_ℓ = V_max²·√d_max / p_min [1/p.u. admittance].  # Eq. dl_def"""
    return v_max**2 * math.sqrt(d_max) / p_min


def d_rows(v_max: float, v_kept: float, p_floor: FloatArray) -> FloatArray:
    """V_max·‖v_K‖ / p_floor per node: every retained and slack column may change (paper correction 8).

    |Re{v_k·conj((ΔY_K v_K)_k)}| ≤ |v_k|·‖row_k‖₂·‖v_K‖₂ by Cauchy–Schwarz.
    """
    return np.asarray(v_max * v_kept / p_floor)


def gamma(covariance: FloatArray) -> float:
    """γ = 1ᵀ|Σ⁻¹|1; infinite for a singular Σ.  # Eq. gamma_def"""
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return math.inf
    half = np.linalg.solve(factor, np.eye(len(covariance)))
    return float(np.abs(half.T @ half).sum())


def sum_of_covariance(covariance: FloatArray) -> float:
    """1ᵀΣ1 = ‖β‖², β = Σ^{1/2}·1."""
    return float(covariance.sum())


def psi_bar_printed(kappa_r: float, d: FloatArray, gammas: FloatArray) -> float:
    """ψ̄ = κ·r·√(Σ_ℓ d_ℓ²·γ⁽ˡ⁾).  # Eq. barpsi_def"""
    return kappa_r * math.sqrt(float(np.sum(d**2 * gammas)))


def psi_bar(kappa_r: float, weights: FloatArray) -> float:
    """ψ̄ = κ·r·√(max_k w_k): the rows share one Frobenius budget (paper correction 8).

    Parameters
    ----------
    weights : (node,) w_k with ‖ψ_k‖² ≤ w_k·‖row_k(ΔY)‖².
    """
    return kappa_r * math.sqrt(float(np.max(weights)))


def tau(dimension: int, log_inverse_delta: float) -> float:
    """√(m + 2√(m·x) + 2x), x = log(1/δ): tail of a χ²_m (Laurent–Massart).  # Eq. tau_def"""
    x = log_inverse_delta
    return math.sqrt(dimension + 2.0 * math.sqrt(dimension * x) + 2.0 * x)


def c_star_printed(n: int, v_min: float, v_max: float) -> float:
    """C⋆ = √2·(1 + √n·V_max/V_min)."""
    return math.sqrt(2.0) * (1.0 + math.sqrt(n) * v_max / v_min)


def c_star(v_kept: float, v_min: float) -> float:
    """C⋆ = √2·√(1 + (‖v_K‖/V_min)²): slack columns counted, blocks of ΔM̃ orthogonal.

    ‖ΔM̃‖_F² = 2·(‖ΔY‖_F² + Σ_k|(ΔY_K v_K)_k/v_k|²) ≤ 2·(1 + ‖v_K‖²/V_min²)·‖ΔY_K‖_F².
    """
    return math.sqrt(2.0) * math.hypot(1.0, v_kept / v_min)


def alpha(mu_star: float, c: float, kappa_r: float) -> float:
    """α = ‖M̃⁻¹‖⋆·C⋆·κ·r.  # Eq. alpha_def"""
    return mu_star * c * kappa_r


def lambda_ii(steps: int, n: int, a: float) -> float:
    """Λ̄_II = T·√n·α(2+α) / (2(1−4α)), infinite unless α < 1/4.  # Eq. termII_trajectory"""
    if not 0.0 <= a < 0.25:
        return math.inf
    return steps * math.sqrt(n) * a * (2.0 + a) / (2.0 * (1.0 - 4.0 * a))


def lambda_ii_full(steps: int, n: int, a: float) -> float:
    """T·(√(2n)·α − log(1−α) − α) bounds Σ_t|log|det(I + K_t)|| for ‖K_t‖_F ≤ α < 1 (full support).

    |tr K| ≤ √(2n)·‖K‖_F and |tr Kʲ| ≤ ‖K‖_Fʲ for j ≥ 2, summed in the series of log det.
    """
    if not 0.0 <= a < 1.0:
        return math.inf
    return steps * (math.sqrt(2.0 * n) * a - math.log1p(-a) - a)


def mean_term_printed(
    kappa_r: float, d: FloatArray, gammas: FloatArray, sizes: FloatArray, sums: FloatArray
) -> float:
    """κ·r·Σ_ℓ d_ℓ·√(γ⁽ˡ⁾|C_ℓ|)·√(1ᵀΣ⁽ˡ⁾1).  # Eq. termI_bound, last term"""
    return kappa_r * float(np.sum(d * np.sqrt(gammas * sizes) * np.sqrt(sums)))


def mean_term(psi: float, sums_of_nodes: FloatArray) -> float:
    """ψ̄·√(Σ_k 1ᵀΣ⁽ˡ⁾1) bounds Σ_k|ψ_kᵀβ_k| (Cauchy–Schwarz over all nodes at once)."""
    return psi * math.sqrt(float(np.sum(sums_of_nodes)))


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
