"""The quantities of Propositions 1 and 2 and Theorem 1, one small function each.

Names follow the paper's symbols; a comment names the equation by its label. The corrected forms stand beside
the printed ones, and docs/explanation/paper-corrections.md says why they differ.
"""

from __future__ import annotations

import math

import numpy as np

from dp_powerflow.units import FloatArray


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
