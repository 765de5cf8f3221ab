"""Jacobians of the power flow on the reduced network: M̃, J, DG, with and without volt-var.

Everything rests on one real-linear map. With s = v∘conj(Yv + b) and a generation s^g(|v|),

    δ(s − s^g) = v∘conj(L δv),    L x = Y x + a∘x + c∘conj(x),
    c = conj(s/v²) − w∘v,  a = −w∘conj(v),  w = conj(g)∘v/(2|v|³),  g = ds^g/d|v|,

so M̃ of Eq. Mtilde_def is the complexification of L (rows exchanged) and has its singular values, and
|det J| = Π|v_k|²·|det M̃|. Functions take leading batch axes and are dense, for small networks and as the
reference of `JacobianBatch`. See docs/jacobian.md.
"""

from __future__ import annotations

import numpy as np

from dp_powerflow.units import ComplexArray, FloatArray


def injection(y: ComplexArray, b: ComplexArray, v: ComplexArray) -> ComplexArray:
    """s = v∘conj(Yv + b), complex (..., retained) [p.u.] (Eq. powerflow)."""
    return np.asarray(v * np.conj(v @ y.T + b))


def diagonal_terms(
    v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
) -> tuple[ComplexArray, ComplexArray]:
    """a and c of L x = Yx + a∘x + c∘conj(x), complex (..., retained) [p.u.].

    Parameters
    ----------
    v, s : voltage and total injection, generation included [p.u.].
    generation_slope : g = ds^g/d|v|; under a volt-var curve φ it is jφ′(|v|)·s^g (Eq. voltvar).
    """
    c = np.conj(s / v**2)
    if generation_slope is None:
        return np.zeros_like(c), c
    w = np.conj(generation_slope) * v / (2.0 * np.abs(v) ** 3)
    return np.asarray(-w * np.conj(v)), np.asarray(c - w * v)


def mtilde(
    y: ComplexArray, v: ComplexArray, s: ComplexArray, generation_slope: ComplexArray | None = None
) -> ComplexArray:
    """M̃ (Eq. Mtilde_def), or with volt-var M̃_eff = M̃ − D(v)⁻¹J_Γh: complex (..., 2n, 2n)."""
    a, c = diagonal_terms(v, s, generation_slope)
    n = y.shape[0]
    full = np.zeros((*v.shape[:-1], 2 * n, 2 * n), dtype=np.complex128)
    k = np.arange(n)
    full[..., :n, n:] = np.conj(y)
    full[..., n:, :n] = y
    full[..., k, n + k] += np.conj(a)
    full[..., n + k, k] += a
    full[..., k, k] = np.conj(c)
    full[..., n + k, n + k] = c
    return full


def real_form(y: ComplexArray, a: ComplexArray, c: ComplexArray) -> FloatArray:
    """L as a real matrix on (Re x, Im x): (..., 2n, 2n), with the singular values of M̃."""
    n = y.shape[0]
    full = np.empty((*c.shape[:-1], 2 * n, 2 * n))
    k = np.arange(n)
    full[..., :n, :n] = full[..., n:, n:] = y.real
    full[..., n:, :n] = y.imag
    full[..., :n, n:] = -y.imag
    full[..., k, k] += a.real + c.real
    full[..., k, n + k] += c.imag - a.imag
    full[..., n + k, k] += c.imag + a.imag
    full[..., n + k, n + k] += a.real - c.real
    return full


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
    """½·log det(DGᵀDG): (...,). The density of the voltages carries its *negative* (PAPER_NOTES 7)."""
    sign, value = np.linalg.slogdet(np.swapaxes(derivative, -1, -2) @ derivative)
    return np.asarray(np.where(sign > 0.0, 0.5 * value, -np.inf))


def _times_voltage(v: ComplexArray, matrix: FloatArray) -> FloatArray:
    """Real form of x ↦ v∘conj(matrix·x)."""
    n = v.shape[-1]
    real, imag = matrix[..., :n, :], matrix[..., n:, :]
    re, im = v.real[..., :, None], v.imag[..., :, None]
    return np.concatenate([re * real + im * imag, im * real - re * imag], axis=-2)
