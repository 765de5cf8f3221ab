"""Retained nodes without a random load of their own (PV only): eliminated implicitly (paper correction 12).

Only the nodes L with a random load are released. The hidden nodes P carry public generation, and whoever
holds v_L finds v_P from the network he supposes. With D = Y′ − Y (rows R = L ∪ P, ‖D‖_F ≤ κr), v_L fixed and
τ ↦ v_P(τ) the solution on Y + τD, differentiating conj(v_P)∘i_P = conj(s_P) gives

    A_τ·dv_P = −D_P·v_K,   A_τ = Y_PP + τD_PP + diag(conj(s_P)/conj(v_P)²)∘conj,

a real-linear map with ‖A_τ⁻¹‖ ≤ z/(1 − η), z = ‖Y_PP⁻¹‖, η = z·(κr + s_max/V_min²) < 1. Three things follow.

1. Currents at L: |Δi_k| ≤ V_K·(a·‖D_k‖ + g·‖Φ_k‖·‖D_P‖), Φ = Y_LP·Y_PP⁻¹, g = 1/(1 − η), a = 1 + g·z·κr. By
   Cauchy–Schwarz the rows behave as those of one matrix of Frobenius norm κr·√(a² + g²‖Φ‖_F²): `loads`.
2. The map of v_L is the Schur complement S = M̃_LL − M̃_LP·M̃_PP⁻¹·M̃_PL, ‖S⁻¹‖ ≤ ‖M̃⁻¹‖, and
   S′ − S = Ψ_L·(M̃′ − M̃)·Ψ′_R exactly, ‖Ψ_L‖² ≤ 1 + g²‖Φ‖², ‖Ψ′_R‖² ≤ 1 + g²·(‖Y_PP⁻¹·Y_PL‖ + z·κr)²: `schur`.
3. The diagonal of M̃ at P, conj(s_P/v_P²), moves by at most 2·s_max/V_min³·‖Δv_P‖, and
   ‖Δv_P‖ ≤ g·z·κr·V_K: `turned`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow.grid.reduction import Network
from dp_powerflow.units import FloatArray, IntArray


@dataclass(frozen=True)
class HiddenNodes:
    """What the theorem needs of the hidden nodes.

    Attributes
    ----------
    count : |P|.
    z : ‖Y_PP⁻¹‖₂ [p.u.].
    phi_left, phi_right : ‖Y_LP·Y_PP⁻¹‖_F and ‖Y_PP⁻¹·Y_PL‖_F.
    s_max : largest generation of a hidden node over the horizon [p.u.].
    """

    count: int
    z: float
    phi_left: float
    phi_right: float
    s_max: float

    def reach(self, kappa_r: float, v_min: float, v_kept: float) -> HiddenReach | None:
        """How far a change of norm κr reaches through the hidden nodes; None where nothing bounds it.

        Parameters
        ----------
        v_min, v_kept : of all retained nodes, and ‖(v_R, v_slack)‖₂, before v_P moves.
        """
        moved = 0.0
        for _ in range(200):
            low, kept = v_min - moved, v_kept + moved
            eta = self.z * (kappa_r + self.s_max / low**2) if low > 0.0 else math.inf
            if not eta < 1.0:
                return None
            gain = 1.0 / (1.0 - eta)
            previous, moved = moved, gain * self.z * kappa_r * kept
            if moved - previous <= 1e-14 * moved:
                break
        else:
            return None
        loads = math.hypot(1.0 + gain * self.z * kappa_r, gain * self.phi_left)
        right = math.hypot(1.0, gain * (self.phi_right + self.z * kappa_r))
        schur = math.hypot(1.0, gain * self.phi_left) * right
        turned = 2.0 * self.s_max / low**3 * gain * self.z * kept
        safe = 1.0 + 1e-12
        return HiddenReach(loads * safe, schur * safe, turned * safe, moved * safe)


@dataclass(frozen=True)
class HiddenReach:
    """Factors on κr: of the implied loads, of the Jacobian, of its diagonal at P; and how far v_P moves."""

    loads: float
    schur: float
    turned: float
    moved: float


NOTHING_HIDDEN = HiddenReach(1.0, 1.0, 0.0, 0.0)


def hidden_nodes(network: Network, released: IntArray, peak: FloatArray | None) -> HiddenNodes | None:
    """The hidden nodes of a network, None if every retained node is released.

    Parameters
    ----------
    released : positions among the retained nodes of those with a random load.
    peak : (retained,) largest generation [p.u.]; None without any.
    """
    hidden = np.setdiff1d(np.arange(network.n), released)
    if not len(hidden):
        return None
    # The nodes without injection go with the hidden ones: one sparse factor serves all three norms.
    y = sp.csr_array(network.feeder.y)
    inside = np.concatenate([network.retained[hidden], network.zero_injection])
    outside = network.retained[released]
    factor = splu(sp.csc_array(y[inside, :][:, inside]))
    unit = np.zeros((len(inside), len(hidden)), dtype=np.complex128)
    unit[np.arange(len(hidden)), np.arange(len(hidden))] = 1.0
    columns = factor.solve(unit)
    rows = factor.solve(unit, trans="T")
    return HiddenNodes(
        count=len(hidden),
        z=float(np.linalg.norm(columns[: len(hidden)], 2)),
        phi_left=float(np.linalg.norm(y[outside, :][:, inside] @ columns)),
        phi_right=float(np.linalg.norm(sp.csr_array(y[inside, :][:, outside].T) @ rows)),
        s_max=0.0 if peak is None else float(peak[hidden].max()),
    )
