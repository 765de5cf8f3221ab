"""Assumption 1 (i)–(iii) of the paper, checked on one feeder, each with its measured margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.evidence.calibration import ANSI_RANGE
from dp_powerflow.evidence.theorem import OperatingSet
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import Elimination, SparseJacobian, diagonal_terms, real_form
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import ComplexArray, FloatArray

_POINTS = 64


@dataclass(frozen=True)
class Assumption:
    """One condition: whether it holds, and by how much."""

    name: str
    holds: bool
    finding: str


def check_assumptions(
    network: Network,
    law: LoadLaw,
    operating: OperatingSet | None,
    *,
    box: tuple[float, float] = ANSI_RANGE,
    voltvar: VoltVar | None = None,
    generation: ComplexArray | None = None,
) -> tuple[Assumption, ...]:
    """(i) and (ii) over the paper's set S_0, (i) again over the operating set, and (iii)."""
    return (
        _nonsingular_on_box(network, box),
        _nonsingular_on_operating_set(operating),
        _loads_within_margins(network, law, box, generation),
        _volt_var_compliance(voltvar, generation),
    )


def implied_load_range(network: Network, box: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
    """(node,) smallest and largest active load that voltages of S_0 imply, exactly [p.u.].

    S_0 leaves every phase angle free, so in Re{v_k·conj((Yv)_k + b_k)} each off-diagonal product can be
    turned to either sign at full magnitude; the maximum over |v_k| of a quadratic is at an end or its vertex.
    """
    low, high = box
    diagonal = network.rows.diagonal
    conductance = np.real(diagonal)
    coupling = (network.rows.abs_sum - np.abs(diagonal)) * high + np.abs(network.b)
    ends = np.array([low, high])
    most = np.max(
        -(conductance[:, None] * ends**2) + coupling[:, None] * ends,
        axis=1,
    )
    vertex = coupling / (2.0 * np.where(conductance > 0.0, conductance, np.inf))
    inside = (vertex > low) & (vertex < high)
    most = np.where(inside, np.maximum(most, coupling * vertex / 2.0), most)
    least = np.min(-(conductance[:, None] * ends**2) - coupling[:, None] * ends, axis=1)
    return least, most


def _nonsingular_on_box(network: Network, box: tuple[float, float]) -> Assumption:
    rng = np.random.default_rng(0)
    shape = (_POINTS, network.n)
    v = rng.uniform(*box, shape) * np.exp(2j * np.pi * rng.random(shape))
    s = v * np.conj(network.apply(v.T).T + network.b)
    signs, smallest = _large_spectrum(network, v, s) if network.large else _spectrum(network, v, s)
    name = "(i) Jacobian nonsingular on S_0"
    if min(signs) < 0.0 < max(signs):
        finding = "det M̃ changes sign on S_0, which is connected: it is singular inside, and the infimum is 0"
        return Assumption(name, False, finding)
    return Assumption(
        name,
        True,
        f"det M̃ keeps its sign at {_POINTS} random points, smallest σ_min {smallest:.3g}: no proof",
    )


def _spectrum(network: Network, v: ComplexArray, s: ComplexArray) -> tuple[list[float], float]:
    """Signs of det M̃ at all points, and the smallest σ_min if they agree."""
    matrices = real_form(network.y, *diagonal_terms(v, s))
    signs = np.linalg.slogdet(matrices)[0].tolist()
    if min(signs) < 0.0 < max(signs):
        return signs, 0.0
    return signs, float(np.linalg.svd(matrices, compute_uv=False)[:, -1].min())


def _large_spectrum(network: Network, v: ComplexArray, s: ComplexArray) -> tuple[list[float], float]:
    """The same point by point on sparse factors, until both signs are seen."""
    elimination = Elimination.from_feeder(network.feeder)
    signs: list[float] = []
    smallest = np.inf
    for a, c in zip(*diagonal_terms(v, s), strict=True):
        jacobian = SparseJacobian(elimination, a, c)
        signs.append(jacobian.sign)
        if min(signs) < 0.0 < max(signs):
            break
        smallest = min(smallest, jacobian.sigma_min)
    return signs, float(smallest)


def _nonsingular_on_operating_set(operating: OperatingSet | None) -> Assumption:
    name = "(i) Jacobian nonsingular on the operating set"
    if operating is None:
        return Assumption(name, False, "no bound: the load box reaches beyond the voltage-stability limit")
    finding = (
        f"σ_min ≥ {1.0 / operating.mu:.3g} ({operating.source}, leaves it with δ = {operating.delta:.2g})"
    )
    return Assumption(name, True, finding)


def _loads_within_margins(
    network: Network, law: LoadLaw, box: tuple[float, float], generation: ComplexArray | None
) -> Assumption:
    name = "(ii) voltages of S_0 imply loads within the margins"
    least, most = implied_load_range(network, box)
    if generation is not None:
        most = most + np.abs(generation).max(axis=0)
    span = f"they span {least.min():.3g} … {most.max():.3g} p.u."
    if not law.truncated:
        return Assumption(name, False, f"{span}; the loads have no margins (untruncated)")
    low, high = law.scale * law.p_min[law.class_of], law.scale * law.p_max[law.class_of]
    holds = bool(np.all(least >= low) and np.all(most <= high))
    return Assumption(name, holds, f"{span}; the margins {low.min():.3g} … {high.max():.3g} p.u.")


def _volt_var_compliance(voltvar: VoltVar | None, generation: ComplexArray | None) -> Assumption:
    name = "(iii) volt-var slopes below 1/(γ·h_max)"
    if voltvar is None or generation is None:
        return Assumption(name, True, "no volt-var control")
    product = float((np.abs(generation).max(axis=0) * voltvar.steepest).max())
    return Assumption(name, product < 1.0, f"largest γ·h_max·|φ′| is {product:.3g}, to stay below 1")
