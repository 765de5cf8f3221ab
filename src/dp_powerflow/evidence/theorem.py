"""Theorem 1 in three modes, each with every term, its domain and its δ.

`paper` evaluates the theorem as printed. `corrected` repairs it where it is no bound on a real feeder
(paper corrections 1–3, 8, 9). `full-support` is its 2n-dimensional analogue for random reactive load
(docs/explanation/proofs.md), the only one of the three whose neighbours include a change of a line.

A result holds a number ε only where every condition of its mode holds; otherwise `epsilon` is None and
`violations` says which condition fails and by how much. Everything here is per-instance evidence
about one secret network, not differential privacy, and INTERNAL (paper correction 5).

**Hidden nodes.** Retained nodes without their own random load (PV only) are eliminated implicitly (paper
correction 12).

Only the nodes L with a random load are released. The hidden nodes P carry public generation, and a reader
of v_L finds v_P from the network he supposes. With D = Y′ − Y (rows R = L ∪ P, ‖D‖_F ≤ κr), v_L fixed and
τ ↦ v_P(τ) the solution on Y + τD, differentiating conj(v_P)∘i_P = conj(s_P) gives

    A_τ·dv_P = −D_P·v_K,   A_τ = Y_PP + τD_PP + diag(conj(s_P)/conj(v_P)²)∘conj,

a real-linear map with ‖A_τ⁻¹‖ ≤ z/(1 − η), z = ‖Y_PP⁻¹‖, η = z·(κr + s_max/V_min²) < 1. Three things follow.

1. Currents at L: |Δi_k| ≤ V_K·(a·‖D_k‖ + g·‖Φ_k‖·‖D_P‖), Φ = Y_LP·Y_PP⁻¹, g = 1/(1 − η), a = 1 + g·z·κr. By
   Cauchy–Schwarz the rows behave like one matrix of Frobenius norm κr·√(a² + g²‖Φ‖_F²): `loads`.
2. The map of v_L is the Schur complement S = M̃_LL − M̃_LP·M̃_PP⁻¹·M̃_PL, ‖S⁻¹‖ ≤ ‖M̃⁻¹‖, and
   S′ − S = Ψ_L·(M̃′ − M̃)·Ψ′_R exactly, ‖Ψ_L‖² ≤ 1 + g²‖Φ‖², ‖Ψ′_R‖² ≤ 1 + g²·(‖Y_PP⁻¹·Y_PL‖ + z·κr)²: `schur`.
3. The diagonal of M̃ at P, conj(s_P/v_P²), moves by at most 2·s_max/V_min³·‖Δv_P‖, and
   ‖Δv_P‖ ≤ g·z·κr·V_K: `turned`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.grid.reduction import Amplification, Network
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.units import FloatArray, IntArray

CONFIDENCE = 0.95
"""Of a calibration, unless another is asked for."""
Mode = Literal["paper", "corrected", "full-support"]


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


@dataclass(frozen=True)
class OperatingSet:
    """What holds at every step of a day on the true network, but for a probability `delta` over the loads.

    Attributes
    ----------
    v_min, v_max : range of |v_k| [p.u.]
    s_max : largest |s_k| [p.u.]
    mu : bound on ‖M̃(v, Y)⁻¹‖.
    source : how it was obtained.
    """

    v_min: float
    v_max: float
    s_max: float
    mu: float
    delta: float
    source: str


@dataclass(frozen=True)
class NetworkFacts:
    """What the theorem needs of the network besides its operating set.

    With volt-var control Lemma 1 of docs/explanation/proofs.md does not hold (the slope jumps at a corner of
    the curve), so no mode that needs it gives a number.

    Attributes
    ----------
    n : nodes with a random load.
    hidden : retained nodes without one, None if there are none.
    """

    n: int
    slack_norm: float
    d_max: int
    amplification: Amplification
    volt_var: bool = False
    hidden: HiddenNodes | None = None

    def v_kept(self, v_max: float) -> float:
        """Bound on ‖(v_R, v_slack)‖₂, hidden nodes included."""
        retained = self.n + (0 if self.hidden is None else self.hidden.count)
        return math.hypot(math.sqrt(retained) * v_max, self.slack_norm)


@dataclass(frozen=True)
class Terms:
    """Every term of one evaluation; `formula` adds them up whether or not they are a bound."""

    kappa: float
    d: float
    gamma: float
    psi_bar: float
    tau: float
    c_star: float
    mu_star: float
    alpha: float
    mean: float
    jacobian: float

    @property
    def tail(self) -> float:
        """ψ̄·τ(δ)."""
        return self.psi_bar * self.tau

    @property
    def quadratic(self) -> float:
        """ψ̄²/2."""
        return self.psi_bar**2 / 2.0

    @property
    def bias(self) -> float:
        """B.  # Eq. B_total"""
        return self.jacobian + self.quadratic + self.mean

    @property
    def formula(self) -> float:
        """B + ψ̄·τ(δ).  # Eq. eps_delta"""
        return self.bias + self.tail


@dataclass(frozen=True)
class Bound:
    """One evaluation of the theorem.

    Attributes
    ----------
    epsilon : the bound, None unless every condition holds.
    delta : parts of δ by name; the bound holds with their sum.
    violations : conditions that fail, and by how much.
    """

    mode: Mode
    radius: float
    steps: int
    terms: Terms
    delta_parts: dict[str, float]
    violations: tuple[str, ...]

    @property
    def delta(self) -> float:
        """Total δ."""
        return sum(self.delta_parts.values())

    @property
    def epsilon(self) -> float | None:
        """ε, or None where it would not be a bound."""
        return None if self.violations else self.terms.formula


def paper_bound(
    facts: NetworkFacts,
    law: LoadLaw,
    operating: OperatingSet,
    radius: float,
    delta: float,
    failed: tuple[str, ...] = (),
) -> Bound:
    """Theorem 1 as printed, with κ of Eq. kappa_kron_def.  # Eq. eps_delta, B_total, barpsi_thm, tau_thm

    `failed` names the conditions of Assumption 1 that do not hold on this feeder.
    """
    _check(radius, delta)
    p_min = _box(law)[0]
    kappa_r = facts.amplification.paper * radius
    classes = np.unique(law.class_of)
    smallest = np.array([law.scale[law.class_of == ell].min() for ell in classes])
    d = np.array([symbols.d_ell(operating.v_max, facts.d_max, p) for p in smallest * p_min[classes]])
    gammas = _gammas(law)[classes]
    sizes = np.array([np.count_nonzero(law.class_of == ell) for ell in classes], dtype=np.float64)
    psi = symbols.psi_bar_printed(kappa_r, d, gammas)
    c = symbols.c_star_printed(facts.n, operating.v_min, operating.v_max)
    a = symbols.alpha(operating.mu, c, kappa_r)
    terms = Terms(
        kappa=facts.amplification.paper,
        d=float(d.max()),
        gamma=float(gammas.max()),
        psi_bar=psi,
        tau=symbols.tau(facts.n * law.steps, math.log(1.0 / delta)),
        c_star=c,
        mu_star=operating.mu,
        alpha=a,
        mean=symbols.mean_term_printed(kappa_r, d, gammas, sizes, _sums(law)[classes]),
        jacobian=symbols.lambda_ii(law.steps, facts.n, a),
    )
    parts = {"tail": delta, "operating set": operating.delta}
    return Bound("paper", radius, law.steps, terms, parts, _violations(terms, parts, 0.25, failed))


def corrected_bound(
    facts: NetworkFacts, law: LoadLaw, operating: OperatingSet, radius: float, delta: float
) -> Bound:
    """Theorem 1 repaired, for truncated loads and fixed power factors."""
    _check(radius, delta)
    p_min = _box(law)[0]
    reach = _Reach.of(facts, operating, radius)
    d = reach.rows(law.scale * p_min[law.class_of])
    weights = d**2 * _gammas(law)[law.class_of]
    log_inverse = math.log(1.0 / delta) - float(law.log_accept[law.class_of].sum())
    parts = {
        "tail": delta,
        "support exit": exit_probability(law, reach.shift),
        "operating set": operating.delta,
    }
    terms = reach.terms(law, weights, float(d.max()), log_inverse)
    return Bound("corrected", radius, law.steps, terms, parts, _violations(terms, parts, 0.25, reach.failed))


def full_support_bound(
    facts: NetworkFacts, law: LoadLaw, operating: OperatingSet, radius: float, delta: float
) -> Bound:
    """The 2n-dimensional analogue for random reactive load and untruncated active load.

    The proof is in docs/explanation/proofs.md. Half of `delta` goes to the χ² tail, half to loads so small
    that their logarithm is not Lipschitz enough.
    """
    _check(radius, delta)
    if law.q_sigma is None or law.q_covariance is None:
        raise PrivacyError("full support needs random reactive load; give the load law a spread of q")
    reach = _Reach.of(facts, operating, radius)
    failed = reach.failed
    smallest = law.lowest_load(delta / 2.0)
    room = smallest - reach.shift
    if not np.all(room > 0.0):
        failed = (
            *failed,
            f"r can move a load by {reach.shift:.3g} p.u., which must stay below the day's smallest load, "
            f"{float(smallest.min()):.3g} p.u.",
        )
        room = np.full(law.n, math.nan)
    d_p = reach.rows(room)
    cosine = 1.0 / np.sqrt(1.0 + law.tan_theta**2)
    d_q = reach.rows(cosine * law.q_sigma)
    weights = d_p**2 * _gammas(law)[law.class_of] + d_q**2 * symbols.gamma(law.q_covariance)
    parts = {"tail": delta / 2.0, "small loads": delta / 2.0, "operating set": operating.delta}
    terms = reach.terms(law, weights, float(np.max(d_p)), math.log(2.0 / delta))
    return Bound("full-support", radius, law.steps, terms, parts, _violations(terms, parts, 1.0, failed))


@dataclass(frozen=True)
class _Reach:
    """How far r reaches on one network: κ, the operating set of every neighbour, and the hidden nodes.

    Attributes
    ----------
    inside : the operating set over all neighbours.
    through : what the hidden nodes add.
    failed : conditions on the network that fail.
    """

    facts: NetworkFacts
    inside: OperatingSet
    through: HiddenReach
    kappa: float
    kappa_r: float
    failed: tuple[str, ...]

    @classmethod
    def of(cls, facts: NetworkFacts, operating: OperatingSet, radius: float) -> _Reach:
        kappa, failed = _kappa(facts, radius)
        kappa_r = kappa * radius
        inside, through = over_neighbours(facts, operating, kappa_r), NOTHING_HIDDEN
        if facts.hidden is not None and math.isfinite(inside.mu):
            found = facts.hidden.reach(kappa_r, inside.v_min, facts.v_kept(inside.v_max))
            if found is None:
                failed = (*failed, f"r = {radius:g} is too large for a bound on nodes with generation alone")
            through = found or NOTHING_HIDDEN
        return cls(facts, inside, through, kappa, kappa_r, failed)

    @property
    def v_kept(self) -> float:
        """Bound on ‖(v_R, v_slack)‖₂ under any neighbour, wherever the hidden voltages move."""
        return self.facts.v_kept(self.inside.v_max) + self.through.moved

    @property
    def loads_r(self) -> float:
        """κr of the implied loads: hidden nodes pass on changes of their rows."""
        return self.through.loads * self.kappa_r

    @property
    def c_star(self) -> float:
        """C⋆ with hidden nodes: ‖ΔS‖_F ≤ C⋆·κr for the Jacobian S of the released voltages."""
        relative = self.v_kept / self.inside.v_min
        own = symbols.c_star(math.hypot(self.through.loads * relative, self.through.turned), 1.0)
        return self.through.schur * own

    @property
    def shift(self) -> float:
        """By how much r can move the implied loads [p.u.]."""
        return self.inside.v_max * self.v_kept * self.loads_r

    def rows(self, floor: FloatArray) -> FloatArray:
        """d of every node whose load is at least `floor` [1/p.u.]."""
        return symbols.d_rows(self.inside.v_max, self.v_kept, floor)

    def terms(self, law: LoadLaw, weights: FloatArray, d: float, log_inverse_delta: float) -> Terms:
        """Every term of the repaired theorem; with random q in 2n dimensions."""
        full = law.q_sigma is not None
        c = self.c_star
        psi = symbols.psi_bar(self.loads_r, weights)
        a = symbols.alpha(self.inside.mu, c, self.kappa_r)
        jacobian = symbols.lambda_ii_full if full else symbols.lambda_ii
        return Terms(
            kappa=self.kappa,
            d=d,
            gamma=float(_gammas(law)[np.unique(law.class_of)].max()),
            psi_bar=psi,
            tau=symbols.tau((2 if full else 1) * law.n * law.steps, log_inverse_delta),
            c_star=c,
            mu_star=self.inside.mu,
            alpha=a,
            mean=symbols.mean_term(psi, _sums(law)[law.class_of]),
            jacobian=jacobian(law.steps, self.facts.n, a),
        )


def over_neighbours(facts: NetworkFacts, operating: OperatingSet, kappa_r: float) -> OperatingSet:
    """The operating set that holds for the same loads solved on any neighbour, ‖ΔY_K‖_F ≤ κr.

    Along the straight path from Y to Y′, M̃·(dv, d̄v) = −(conj(ΔY_K v_K), ΔY_K v_K), so ‖dv‖ ≤ μ⋆·κr·‖v_K‖,
    and with the loads fixed ‖M̃_τ − M̃_0‖ ≤ κr + 2·s_max·‖v_τ − v_0‖/V_min³. While μ⋆ solves
    μ⋆ = μ/(1 − μ·(that)), the path cannot leave it (continuity). Where no such μ⋆ exists it is infinite.
    """
    mu, low, high = operating.mu, operating.v_min, operating.v_max
    for _ in range(200):
        moved = mu * kappa_r * facts.v_kept(high)
        low = operating.v_min - moved
        if not low > 0.0:
            break
        change = kappa_r + 2.0 * operating.s_max * moved / low**3
        if not operating.mu * change < 1.0:
            break
        previous, mu, high = mu, operating.mu / (1.0 - operating.mu * change), operating.v_max + moved
        if mu - previous <= 1e-14 * mu:
            return replace(operating, v_min=low, v_max=high, mu=mu * (1.0 + 1e-12))
    return replace(operating, mu=math.inf)


def exit_probability(law: LoadLaw, shift: float) -> float:
    """Bound on the probability that an implied load under Y′ leaves the box, at most 1 (paper correction 9).

    A load moves by at most s_k = shift·‖row_k‖/(κr), Σ_k s_k² ≤ shift². The probability of lying within s
    of a margin is at most s times the largest density there, so by Cauchy–Schwarz the sum over nodes is
    at most shift·√(Σ_k density_k²).
    """
    p_min, p_max = _box(law)
    low, high = law.scale * p_min[law.class_of], law.scale * p_max[law.class_of]
    at_low = _largest_density(law, low, np.minimum(low + shift, high))
    at_high = _largest_density(law, np.maximum(high - shift, low), high)
    density = (at_low + at_high) / np.exp(law.log_accept[law.class_of])
    return min(1.0, shift * float(np.linalg.norm(density)))


def _largest_density(law: LoadLaw, low: FloatArray, high: FloatArray) -> FloatArray:
    """(node,) Σ_t max over [low_k, high_k] of the log-normal density of the node's load [1/p.u.]."""
    mean = law.mean[law.class_of] + np.log(law.scale)[:, None]
    std = law.std[law.class_of]
    mode = np.exp(mean - std**2)
    at = np.clip(mode, low[:, None], high[:, None])
    z = (np.log(at) - mean) / std
    return np.asarray(np.sum(np.exp(-0.5 * z**2) / (math.sqrt(2.0 * math.pi) * at * std), axis=1))


def _violations(
    terms: Terms, parts: dict[str, float], largest_alpha: float, failed: tuple[str, ...]
) -> tuple[str, ...]:
    """The conditions that fail, those known beforehand first."""
    violations = list(failed)
    if not terms.alpha < largest_alpha:
        violations.append(f"α = {terms.alpha:.3g} must stay below {largest_alpha:g}")
    total = sum(parts.values())
    if not total < 1.0:
        worst = max(parts, key=lambda name: parts[name])
        violations.append(f"δ adds up to {total:.3g}, most of it from '{worst}': nothing is bounded")
    if not math.isfinite(terms.gamma):
        violations.append("the covariance of the loads is singular, so γ is infinite; give it a floor")
    if not violations and not math.isfinite(terms.formula):
        violations.append("a term of the bound is not finite")
    return tuple(violations)


def _kappa(facts: NetworkFacts, radius: float) -> tuple[float, tuple[str, ...]]:
    """κ at r, and the conditions on the network that fail."""
    failed = ("volt-var control is not covered by the bound over neighbours",) if facts.volt_var else ()
    try:
        return facts.amplification.bound(radius), failed
    except FeederError:
        limit = facts.amplification.largest_radius
        return math.nan, (*failed, f"r = {radius:g} must stay below {limit:.3g} for a bound on κ")


def _check(radius: float, delta: float) -> None:
    if not radius > 0.0:
        raise PrivacyError("the radius r must be positive", code="radius")
    if not 0.0 < delta < 1.0:
        raise PrivacyError("δ must lie between 0 and 1")


def _box(law: LoadLaw) -> tuple[FloatArray, FloatArray]:
    if not law.truncated:
        raise PrivacyError(
            "this mode is for loads truncated to [p_min, p_max]; state the margins of every class"
        )
    return law.p_min, law.p_max


def _gammas(law: LoadLaw) -> FloatArray:
    return np.array([symbols.gamma(covariance) for covariance in law.covariance])


def _sums(law: LoadLaw) -> FloatArray:
    return np.array([symbols.sum_of_covariance(covariance) for covariance in law.covariance])
