"""Theorem 1 in three modes, each with every term, its domain and its δ.

`paper` evaluates the theorem as printed. `corrected` repairs it where it is no bound on a real feeder
(paper corrections 1–3, 8, 9). `full-support` is its 2n-dimensional analogue for random reactive load
(docs/explanation/proofs.md), the only one of the three whose neighbours include a change of a line.

A result holds a number ε only where every condition of its mode holds; otherwise `epsilon` is None and
`violations` says which condition fails and by how much. Everything here is per-instance evidence
about one secret network, not differential privacy, and INTERNAL (paper correction 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv

from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.evidence import theorem as symbols
from dp_powerflow.evidence.hidden import NOTHING_HIDDEN, HiddenNodes, HiddenReach
from dp_powerflow.evidence.scope import SCOPE, Mode
from dp_powerflow.grid.norms import Amplification
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.powerflow.jacobian.matrices import dg, diagonal_terms, injection, log_volume, real_form
from dp_powerflow.units import ComplexArray, FloatArray


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
    n : nodes with a random load of their own.
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
    tail: float
    quadratic: float
    mean: float
    jacobian: float

    @property
    def bias(self) -> float:
        """B.  # Eq. B_total"""
        return self.jacobian + self.quadratic + self.mean

    @property
    def floor(self) -> float:
        """What no noise on the loads can cross: the Jacobian term."""
        return self.jacobian

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

    @property
    def scope(self) -> str:
        """In plain words, whom the bound speaks of."""
        return SCOPE[self.mode]


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
    t = symbols.tau(facts.n * law.steps, math.log(1.0 / delta))
    terms = Terms(
        kappa=facts.amplification.paper,
        d=float(d.max()),
        gamma=float(gammas.max()),
        psi_bar=psi,
        tau=t,
        c_star=c,
        mu_star=operating.mu,
        alpha=a,
        tail=psi * t,
        quadratic=psi**2 / 2.0,
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
        """κr of the implied loads: hidden nodes pass changes of their own rows on."""
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
        t = symbols.tau((2 if full else 1) * law.n * law.steps, log_inverse_delta)
        a = symbols.alpha(self.inside.mu, c, self.kappa_r)
        jacobian = symbols.lambda_ii_full if full else symbols.lambda_ii
        return Terms(
            kappa=self.kappa,
            d=d,
            gamma=float(_gammas(law)[np.unique(law.class_of)].max()),
            psi_bar=psi,
            tau=t,
            c_star=c,
            mu_star=self.inside.mu,
            alpha=a,
            tail=psi * t,
            quadratic=psi**2 / 2.0,
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
        raise PrivacyError("the radius r must be positive")
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


NOT_A_BOUND = "formula as printed, not a bound here"
_PILOT_SHARE = 0.1
_FEWEST_PILOTS = 10
_HEADROOM = 2.0
"""μ₀′ lies this many times as far above the pilot's median as the pilot's largest value does."""


@dataclass(frozen=True)
class RemarkCalibration:
    """Remark mc_calibration: a threshold μ₀ for the formula, and δ_M counted on days of the load law.

    Attributes
    ----------
    mu_0 : what stands in the formula in place of ‖M̃⁻¹‖⋆; infinite where κr leaves no such μ₀.
    mu_prime : μ₀′ = μ₀/(1 + μ₀·C⋆·κr), the threshold that days on the true network are counted against.
    exceeding, days : days above μ₀′, of so many.
    delta : δ_M, upper end of the Clopper–Pearson interval at `confidence`.
    """

    mu_0: float
    mu_prime: float
    exceeding: int
    days: int
    confidence: float
    delta: float


def remark_calibration(
    worst_mu: FloatArray, c_star: float, kappa_r: float, confidence: float
) -> RemarkCalibration:
    """Set μ₀′ by a pilot, a tenth of the days, and count the other days above it.

    The remark leaves the choice of μ₀ open. Here μ₀′ is the pilot's median plus twice the distance from there
    to its largest value, so that few of the other days exceed it; they had no part in the choice.

    Parameters
    ----------
    worst_mu : (day,) largest ‖M̃⁻¹‖ of independent days on the true network.
    """
    pilot = max(_FEWEST_PILOTS, int(_PILOT_SHARE * len(worst_mu)))
    centre = float(np.median(worst_mu[:pilot]))
    mu_prime = centre + _HEADROOM * (float(worst_mu[:pilot].max()) - centre)
    spread = mu_prime * c_star * kappa_r
    mu_0 = mu_prime / (1.0 - spread) if spread < 1.0 else math.inf
    return counted(worst_mu[pilot:], mu_0, mu_prime, confidence)


def exceedance(
    worst_mu: FloatArray, mu_0: float, c_star: float, kappa_r: float, confidence: float
) -> RemarkCalibration:
    """δ_M of a threshold μ₀ that was chosen beforehand."""
    return counted(worst_mu, mu_0, mu_0 / (1.0 + mu_0 * c_star * kappa_r), confidence)


def counted(worst_mu: FloatArray, mu_0: float, mu_prime: float, confidence: float) -> RemarkCalibration:
    """Days above μ₀′, with the upper Clopper–Pearson bound of their probability."""
    exceeding, days = int(np.count_nonzero(worst_mu > mu_prime)), len(worst_mu)
    delta = 1.0 if exceeding == days else float(betaincinv(exceeding + 1, days - exceeding, confidence))
    return RemarkCalibration(mu_0, mu_prime, exceeding, days, confidence, delta)


@dataclass(frozen=True)
class PrintedSamples:
    """The printed formula with one κ: the smallest, median and largest sample of a day, and the day.

    Attributes
    ----------
    kappa : "exact" or "as printed".
    least, median, most : one step, T = 1.
    day : all steps.
    tail_delta : δ of τ; δ_M of the calibration is added to it.
    """

    kappa: str
    calibration: RemarkCalibration
    least: Terms
    median: Terms
    most: Terms
    day: Terms
    tail_delta: float

    @property
    def delta(self) -> float:
        """δ + δ_M, at most 1."""
        return min(1.0, self.tail_delta + self.calibration.delta)


@dataclass(frozen=True)
class PrintedFormula:
    """Theorem 1 as printed, with the exact κ and with the printed one; `label` says what it is."""

    exact: PrintedSamples
    as_printed: PrintedSamples
    label: str = NOT_A_BOUND


def printed_formula(
    facts: NetworkFacts,
    law: LoadLaw,
    operating: OperatingSet,
    worst_mu: FloatArray,
    asked: tuple[float, float, float],
) -> PrintedFormula:
    """Evaluate Theorem 1 as the paper does.

    Parameters
    ----------
    law : truncated to the margins.
    operating : source of the measured V_min and V_max; its ‖M̃⁻¹‖ is not used.
    worst_mu : (day,) as of `remark_calibration`.
    asked : r, δ of the tail, confidence of the calibration.
    """
    radius, delta, confidence = asked
    steps = [law.at_step(t) for t in range(law.steps)]

    def samples(name: str, of: NetworkFacts) -> PrintedSamples:
        at, found = _calibrated(of, operating, radius, worst_mu, confidence)
        ordered = sorted(
            (paper_bound(of, step, at, radius, delta).terms for step in steps),
            key=lambda terms: terms.formula,
        )
        day = paper_bound(of, law, at, radius, delta).terms
        return PrintedSamples(name, found, ordered[0], _middle(ordered), ordered[-1], day, delta)

    return PrintedFormula(samples("exact", with_exact_kappa(facts)), samples("as printed", facts))


@dataclass(frozen=True, eq=False)
class ConfirmedPaperBound:
    """The printed formula with the exact κ as a bound: a number only where nothing speaks against it.

    That is where Assumption 1 holds in every part and the repaired theorem has a number that is no larger.

    Attributes
    ----------
    worst_mu, confidence : as of `remark_calibration`.
    failed : conditions of Assumption 1 that fail.
    """

    worst_mu: FloatArray
    confidence: float
    failed: tuple[str, ...]

    def __call__(
        self, facts: NetworkFacts, law: LoadLaw, operating: OperatingSet, radius: float, delta: float
    ) -> Bound:
        """Of one day at r."""
        at, _ = _calibrated(with_exact_kappa(facts), operating, radius, self.worst_mu, self.confidence)
        found = paper_bound(with_exact_kappa(facts), law, at, radius, delta, self.failed)
        repaired = corrected_bound(facts, law, operating, radius, delta)
        if repaired.epsilon is None:
            told = "the repaired theorem has no number here"
        elif repaired.epsilon > found.terms.formula or repaired.delta > found.delta:
            told = f"the repaired theorem gives more, ε = {repaired.epsilon:.4g} at δ = {repaired.delta:.2g}"
        else:
            return found
        return replace(found, violations=(*found.violations, told))


def _calibrated(
    facts: NetworkFacts, operating: OperatingSet, radius: float, worst_mu: FloatArray, confidence: float
) -> tuple[OperatingSet, RemarkCalibration]:
    """The measured voltage range with μ₀ and δ_M of the remark at r."""
    c = symbols.c_star_printed(facts.n, operating.v_min, operating.v_max)
    found = remark_calibration(worst_mu, c, facts.amplification.paper * radius, confidence)
    return replace(operating, mu=found.mu_0, delta=found.delta, source="Remark mc_calibration"), found


def with_exact_kappa(facts: NetworkFacts) -> NetworkFacts:
    """Facts whose printed κ is replaced by the exact one."""
    exact = facts.amplification.exact
    return replace(facts, amplification=replace(facts.amplification, paper=exact))


def _middle(ordered: Sequence[Terms]) -> Terms:
    return ordered[len(ordered) // 2]
