"""‖M̃⁻¹‖⋆ three ways: the paper's closed form, ours from the load box, and Monte Carlo; and Assumption 1.

Each way gives an `OperatingSet`, with the probability that a day leaves it, or says that it has none.
Assumption 1 (i)–(iii) of the paper is checked on one feeder, each part with its measured margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import PowerFlowError, PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.theorem import CONFIDENCE, OperatingSet
from dp_powerflow.grid.reduction import NORM_FAILURE, Network, weighted_impedance_norm
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.sample import LoadSource, SolvedDays, solve_days
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.devices import VoltVar
from dp_powerflow.powerflow.jacobian.batch import JacobianBatch
from dp_powerflow.powerflow.jacobian.matrices import Elimination, Reference, SparseJacobian, diagonal_terms
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.units import ComplexArray, FloatArray

Progress = Callable[[int, int], None]

ANSI_RANGE = (0.95, 1.05)
_PROOF_GAP = 1e-2
"""Relative gap between the proved bound on the smallest σ_min of a batch and its estimate."""
_PILOT_SHARE = 0.1
_FEWEST_DAYS = 20
_POINTS = 64
"""Random voltages at which the sign of det M̃ is checked."""


@dataclass(frozen=True)
class PrintedClosedForm:
    """Remark Mtilde_closed_form, term by term.  # Eq. sigma_M_flat, C3_def, Cvv_def"""

    sigma_m: float
    c_3: float
    c_vv: float
    deviation: float
    perturbation: float

    @property
    def denominator(self) -> float:
        """Must be positive for the remark to say anything."""
        return self.sigma_m - self.c_3 * self.deviation - self.c_vv - self.perturbation

    @property
    def mu(self) -> float:
        """‖M̃⁻¹‖⋆, infinite where the remark has no bound.  # Eq. Mtilde_inv_bound, Mtilde_eff_inv_bound"""
        return 1.0 / self.denominator if self.denominator > 0.0 else math.inf


def printed_closed_form(
    network: Network, v_min: float, v_max: float, kappa_r: float, c_vv: float = 0.0
) -> PrintedClosedForm:
    """The paper's bound, linearised at v = 1."""
    flat = np.abs(network.apply(np.ones(network.n, dtype=np.complex128)) + network.b)
    row_sum = float(network.rows.abs_sum.max())
    return PrintedClosedForm(
        sigma_m=1.0 / network.impedance_norm - float(flat.max()),
        c_3=(row_sum + float(flat.max())) / v_min,
        c_vv=c_vv,
        deviation=max(v_max - 1.0, 1.0 - v_min),
        perturbation=symbols.c_star_printed(network.n, v_min, v_max) * kappa_r,
    )


def volt_var_constant(voltvar: VoltVar | None, generation: Generation | None, v_min: float) -> float:
    """C_vv = max_k γ_k·h_max·‖φ′_k‖∞ / V_min.  # Eq. Cvv_def"""
    if voltvar is None or generation is None:
        return 0.0
    return float((generation.peak * voltvar.steepest).max()) / v_min


def load_box_set(
    network: Network,
    s_max: FloatArray,
    *,
    measured: OperatingSet | None = None,
    voltvar: VoltVar | None = None,
    generation: Generation | None = None,
) -> OperatingSet | None:
    """Operating set of all injections with |s_k| ≤ s_max_k (paper correction 3); None if there is no bound.

    Only the diagonal blocks s/v² of M̃ depend on the operating point, so with Z = Y⁻¹ and
    m_k = s_max_k/V_min² + C_vv, ‖M̃⁻¹‖ ≤ ‖Z‖/(1 − ‖Z·diag(m)‖). On a large network the two norms are Lanczos
    bounds, whose probability of failure is part of the set's δ.

    Parameters
    ----------
    s_max : (node,) [p.u.], generation included.
    measured : source of the voltage range and of its δ; None proves one from the box, which is wide:
        |v_k − w_k| ≤ Σ_j|Z_kj|·s_max_j/V_min with w the no-load voltage.
    """
    if measured is None:
        proved = _proved_range(np.abs(network.solve(network.b)), network.impedance_sums(s_max))
        if proved is None:
            return None
        (v_min, v_max), delta = proved, 0.0
    else:
        v_min, v_max, delta = measured.v_min, measured.v_max, measured.delta
    m = s_max / v_min**2 + volt_var_constant(voltvar, generation, v_min)
    contraction = weighted_impedance_norm(network, m)
    if contraction >= 1.0:
        return None
    mu = network.impedance_norm / (1.0 - contraction)
    delta += 2.0 * NORM_FAILURE if network.large else 0.0
    of_range = "proved" if measured is None else "measured"
    return OperatingSet(
        v_min,
        v_max,
        float(s_max.max()),
        mu,
        delta,
        f"closed form over the load box, voltage range {of_range}",
    )


def _proved_range(idle: FloatArray, drop: FloatArray) -> tuple[float, float] | None:
    """Voltage range of every load in the box: the largest V with V ≤ |w_k| − drop_k/V at every node.

    The fixed point maps {|v_k| ≥ V} into itself for such a V, so the solution it reaches lies there.
    """
    radicand = idle**2 - 4.0 * drop
    if np.any(radicand < 0.0):
        return None
    # V²−|w_k|V+drop_k ≤ 0 holds between the two roots of every node: the intersection of intervals.
    highest = float(((idle + np.sqrt(radicand)) / 2.0).min())
    lowest = float(((idle - np.sqrt(radicand)) / 2.0).max())
    if lowest > highest:
        return None
    return highest, float((idle + drop / highest).max())


@dataclass(frozen=True)
class MonteCarlo:
    """Days drawn from the load model, solved on the true network.

    Attributes
    ----------
    operating : the set no day but a share `operating.delta` leaves, with the stated confidence.
    worst_mu : (day,) proved bound on ‖M̃⁻¹‖ of every day.
    outside_ansi : share of snapshots with some voltage outside [0.95, 1.05].
    """

    operating: OperatingSet
    worst_mu: FloatArray
    days: int
    outside_ansi: float


def calibration_delta(days: int) -> float:
    """δ that a calibration of that many days leaves at best, whatever it finds."""
    return float(1.0 - (1.0 - CONFIDENCE) ** (1.0 / (days - _pilot(days))))


def _pilot(days: int) -> int:
    return max(10, int(_PILOT_SHARE * days))


def monte_carlo(
    solver: DaySolver,
    days: LoadSource,
    generation: Generation | None = None,
    *,
    progress: Progress | None = None,
) -> MonteCarlo:
    """N_cal days, and the set that holds all of them: Remark mc_calibration improved.

    The remark counts exceedances of one threshold on ‖M̃⁻¹‖ (`collect.remark_calibration`). This is the
    calibration of the rows that are bounds: it covers V_min, V_max and the injections as well.

    The first tenth of the days is a pilot that sets the shape of the set; its size is the largest score of
    the other N days, so a new day exceeds it with probability at most 1 − (1 − confidence)^{1/N}, with
    the stated confidence (order statistic of N independent days, no distribution assumed).

    Parameters
    ----------
    days : draws of the load law; never with a release's key.
    generation : public, before volt-var; day d of a calibration takes day d modulo its horizon.
    """
    count = days.n_days
    if count < _FEWEST_DAYS:
        raise PrivacyError(f"a calibration needs at least {_FEWEST_DAYS} days")
    extremes, outside = solver.extremes(days, generation, progress)
    pilot = _pilot(count)
    centre = np.median(extremes[:pilot], axis=0)
    spread = np.maximum(extremes[:pilot].max(axis=0) - centre, 1e-9)
    score = float(((extremes[pilot:] - centre) / spread).max())
    limit = centre + score * spread
    operating = OperatingSet(
        v_min=-float(limit[0]),
        v_max=float(limit[1]),
        s_max=float(limit[2]),
        mu=float(limit[3]),
        delta=calibration_delta(count) + solver.failure,
        source=f"Monte Carlo, {count} days, confidence {CONFIDENCE:g}",
    )
    if operating.v_min <= 0.0:
        raise PrivacyError("the calibration's voltage range reaches zero; draw more days")
    return MonteCarlo(operating, extremes[:, 3], count, outside)


class DaySolver:
    """Solves days on the true network and bounds ‖M̃⁻¹‖; prepared once for any number of calibrations."""

    def __init__(self, network: Network, voltvar: VoltVar | None = None) -> None:
        self._solver = BatchSolver(network.feeder, voltvar=voltvar)
        self._jacobian = JacobianBatch(network.feeder, factors=self._solver.plans.factors)
        self._voltvar = voltvar
        # A reference of a large network costs seconds and serves all days; a small one fits its own best.
        self._references: list[Reference] | None = [] if self._jacobian.large else None

    @property
    def failure(self) -> float:
        """Probability that a norm behind the bounds on ‖M̃⁻¹‖ so far is too small."""
        return self._jacobian.failure(len(self._references or ()))

    def extremes(
        self, days: LoadSource, generation: Generation | None, progress: Progress | None
    ) -> tuple[FloatArray, float]:
        """(day, 4): −min|v|, max|v|, max|s|, max‖M̃⁻¹‖ of every day; and the share outside ANSI's range."""
        extremes, outside = [], []
        low, high = ANSI_RANGE
        for block in range(days.n_blocks):
            made = solve_days(self._solver, days, block, generation=generation)
            per_step = self._of_steps(made)
            extremes.append(per_step.reshape(made.days, made.steps, 4).max(axis=1))
            outside.append((per_step[:, 0] > -low) | (per_step[:, 1] > high))
            if progress is not None:
                progress(made.first_day + made.days, days.n_days)
        return np.concatenate(extremes), float(np.mean(np.concatenate(outside)))

    def _of_steps(self, made: SolvedDays) -> FloatArray:
        """(snapshot, 4) of solved days."""
        solution, injected = made.solution, made.generation
        if solution.n_failed:
            raise PowerFlowError(
                "power flow finds no solution for a day drawn from the load model; lower nodes.scale_factor "
                "under a new release id and take the model already paid for with model.reuse",
                code="no-power-flow",
            )
        v = solution.v
        magnitude = np.abs(v)
        s, slope = -made.load, None
        if injected is not None:
            voltvar = self._voltvar
            produced = injected if voltvar is None else injected * voltvar.rotation(magnitude)
            s = s + produced
            if voltvar is not None:
                slope = 1j * voltvar.slope(magnitude) * produced
        bound = self._jacobian.sigma_min_lower_bound(v, s, slope, gap=_PROOF_GAP, references=self._references)
        return np.stack(
            [-magnitude.min(axis=1), magnitude.max(axis=1), np.abs(s).max(axis=1), 1.0 / bound], axis=1
        )


# ------------------------------------------------------------------------------------ Assumption 1


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
    voltvar: VoltVar | None = None,
    generation: Generation | None = None,
) -> tuple[Assumption, ...]:
    """(i) and (ii) over the paper's set S_0, (i) again over the operating set, and (iii)."""
    return (
        nonsingular_on_box(network),
        _nonsingular_on_operating_set(operating),
        _loads_within_margins(network, law, generation),
        _volt_var_compliance(network, voltvar, generation),
    )


def implied_load_range(network: Network) -> tuple[FloatArray, FloatArray]:
    """(node,) smallest and largest active load that voltages of S_0 imply, exactly [p.u.].

    S_0 leaves every phase angle free, so in Re{v_k·conj((Yv)_k + b_k)} each off-diagonal product can be
    turned to either sign at full magnitude; the maximum over |v_k| of a quadratic is at an end or its vertex.
    """
    low, high = ANSI_RANGE
    diagonal = network.rows.diagonal
    conductance = np.real(diagonal)
    coupling = (network.rows.abs_sum - np.abs(diagonal)) * high + np.abs(network.b)
    ends = np.array([low, high])
    most = np.max(-(conductance[:, None] * ends**2) + coupling[:, None] * ends, axis=1)
    vertex = coupling / (2.0 * np.where(conductance > 0.0, conductance, np.inf))
    inside = (vertex > low) & (vertex < high)
    most = np.where(inside, np.maximum(most, coupling * vertex / 2.0), most)
    least = np.min(-(conductance[:, None] * ends**2) - coupling[:, None] * ends, axis=1)
    return least, most


def nonsingular_on_box(network: Network) -> Assumption:
    """Assumption 1 (i) over the paper's set S_0: refuted by two signs of det M̃, never proved."""
    rng = np.random.default_rng(0)
    shape = (_POINTS, network.n)
    v = rng.uniform(*ANSI_RANGE, shape) * np.exp(2j * np.pi * rng.random(shape))
    s = v * np.conj(network.apply(v.T).T + network.b)
    signs, smallest = _spectrum(network, v, s)
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
    """Signs of det M̃ point by point until both are seen, and the smallest σ_min so far."""
    elimination = Elimination(network.feeder)
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


def _loads_within_margins(network: Network, law: LoadLaw, generation: Generation | None) -> Assumption:
    name = "(ii) voltages of S_0 imply loads within the margins"
    least, most = implied_load_range(network)
    if generation is not None:
        most = most + generation.peak
    if law.positions is not None:
        least, most = least[law.positions], most[law.positions]
    span = f"they span {least.min():.3g} … {most.max():.3g} p.u."
    if not law.truncated:
        return Assumption(name, False, f"{span}; the loads have no margins (untruncated)")
    low, high = law.scale * law.p_min[law.class_of], law.scale * law.p_max[law.class_of]
    holds = bool(np.all(least >= low) and np.all(most <= high))
    return Assumption(name, holds, f"{span}; the margins {low.min():.3g} … {high.max():.3g} p.u.")


def _volt_var_compliance(
    network: Network, voltvar: VoltVar | None, generation: Generation | None
) -> Assumption:
    """As printed: its two sides have different units, so it depends on the power base, which is said."""
    name = "(iii) volt-var slopes below 1/(γ·h_max)"
    if voltvar is None or generation is None:
        return Assumption(name, True, "no volt-var control")
    product = float((generation.peak * voltvar.steepest).max())
    found = (
        f"largest γ·h_max·|φ′| is {product:.3g} on a base of {network.feeder.base_mva:g} MVA, to stay below "
        f"1; the loop gain of the control, on any base, is {voltvar.gain(network, generation.peak):.3g}"
    )
    return Assumption(name, product < 1.0, found)
