"""All that Theorem 1 says of one network under one load law: every mode, every calibration, every margin.

INTERNAL: per-instance evidence computed from the secret network (paper correction 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.assumptions import Assumption, check_assumptions
from dp_powerflow.evidence.calibration import (
    ANSI_RANGE,
    DaySolver,
    MonteCarlo,
    PrintedClosedForm,
    Progress,
    load_box_set,
    monte_carlo,
    printed_closed_form,
    volt_var_constant,
)
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.evidence.levers import (
    Composed,
    Evaluate,
    RadiusInLines,
    largest_radius,
    over_days,
    per_step,
    radius_in_lines,
)
from dp_powerflow.evidence.margins import day_drawer, with_margins
from dp_powerflow.evidence.theorem import (
    Bound,
    Mode,
    NetworkFacts,
    OperatingSet,
    corrected_bound,
    full_support_bound,
    paper_bound,
)
from dp_powerflow.grid.norms import Amplification, kron_amplification
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow.voltvar import VoltVar
from dp_powerflow.units import ComplexArray, FloatArray

FLOORS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
CURVE_RADII = tuple(float(r) for r in np.logspace(-14, -4, 31))
_CURVE_DAYS = 200


@dataclass(frozen=True)
class Policy:
    """What the evidence is asked about; public constants.

    Attributes
    ----------
    radius : r [p.u.]
    epsilon, delta : target for the whole corpus.
    days : days of the corpus.
    calibration_days : N_cal.
    """

    radius: float
    epsilon: float
    delta: float
    days: int
    calibration_days: int = 1000


@dataclass(frozen=True)
class Row:
    """One mode at the policy's r: a step, a day, and the whole corpus.

    `largest_r` is the largest r whose corpus stays within the policy's ε, None if there is none.
    """

    mode: Mode
    step: Bound
    day: Bound
    corpus: Composed
    largest_r: float | None


@dataclass(frozen=True)
class Curve:
    """ε of one day against r, for a public floor added to the covariance; None where there is no bound.

    Every floor has a calibration of its own, of fewer days than the rows of the table; `delta` is the total.
    """

    mode: Mode
    floor: float
    radius: tuple[float, ...]
    epsilon: tuple[float | None, ...]
    delta: tuple[float, ...]


@dataclass(frozen=True)
class Evidence:
    """Everything; `load_box` is None where the closed form has no bound."""

    policy: Policy
    n: int
    steps: int
    amplification: Amplification
    norm_b: float
    printed: PrintedClosedForm
    load_box: OperatingSet | None
    monte_carlo: MonteCarlo
    monte_carlo_truncated: MonteCarlo
    assumptions: tuple[Assumption, ...]
    lines: RadiusInLines
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]


def network_facts(network: Network, *, volt_var: bool = False) -> NetworkFacts:
    """What the theorem needs of the network."""
    return NetworkFacts(
        n=network.n,
        slack_norm=float(np.linalg.norm(network.feeder.v_slack)),
        d_max=network.rows.d_max,
        amplification=kron_amplification(network),
        volt_var=volt_var,
    )


def collect_evidence(
    network: Network,
    law: NodeLaw,
    margins: tuple[FloatArray, FloatArray],
    policy: Policy,
    generator: np.random.Generator,
    *,
    generation: ComplexArray | None = None,
    voltvar: VoltVar | None = None,
    progress: Progress | None = None,
    curves: bool = True,
) -> Evidence:
    """Evaluate the theorem in every mode that the load law allows.

    Parameters
    ----------
    law : untruncated law of the loads; with random q the full-support mode is evaluated too.
    margins : p_min, p_max (class,) of p/scale for the modes with truncated loads.
    generator : draws of the calibration, from a key that no release uses.
    generation : complex (step, node) [p.u.], public.
    """
    if law.n != network.n:
        raise PrivacyError(
            f"{network.n - law.n} nodes carry generation but no random load of their own; Theorem 1 does not "
            "cover them"
        )
    facts = network_facts(network, volt_var=voltvar is not None)
    truncated = with_margins(law, *margins, generator)

    solver = DaySolver(network, generation, voltvar)

    def calibrate(of: NodeLaw, days: int, report: Progress | None = None) -> MonteCarlo:
        return monte_carlo(
            network,
            day_drawer(of, generator),
            days,
            progress=report,
            solver=solver,
        )

    found = calibrate(law, policy.calibration_days, progress)
    cut = calibrate(truncated, policy.calibration_days, progress)
    high = law.scale * margins[1][law.class_of] * np.sqrt(1.0 + law.tan_theta**2)
    if generation is not None:
        high = high + np.abs(generation).max(axis=0)
    kappa_r = facts.amplification.paper * policy.radius
    c_vv = volt_var_constant(voltvar, generation, ANSI_RANGE[0])
    printed = printed_closed_form(network, *ANSI_RANGE, kappa_r, c_vv)
    assumptions = check_assumptions(network, truncated, cut.operating, voltvar=voltvar, generation=generation)
    failure = facts.amplification.failure
    modes = _modes(law, truncated, _charged(found, failure), _charged(cut, failure), printed, assumptions)
    return Evidence(
        policy=policy,
        n=network.n,
        steps=law.steps,
        amplification=facts.amplification,
        norm_b=float(np.linalg.norm(network.b)),
        printed=printed,
        load_box=load_box_set(network, high, measured=cut.operating, voltvar=voltvar, generation=generation),
        monte_carlo=found,
        monte_carlo_truncated=cut,
        assumptions=assumptions,
        lines=radius_in_lines(network.feeder, policy.radius),
        rows=tuple(_row(*mode, facts, policy) for mode in modes),
        curves=_curves(law, margins, facts, policy, generator, calibrate) if curves else (),
    )


def _charged(calibration: MonteCarlo, failure: float) -> OperatingSet:
    """The operating set with κ's probability of failure in its δ, so that every bound pays for it."""
    return replace(calibration.operating, delta=calibration.operating.delta + failure)


def _modes(
    law: NodeLaw,
    truncated: NodeLaw,
    operating: OperatingSet,
    operating_truncated: OperatingSet,
    printed: PrintedClosedForm,
    assumptions: tuple[Assumption, ...],
) -> list[tuple[Mode, Evaluate, NodeLaw, OperatingSet]]:
    """What each mode is evaluated with; the paper's takes its set S_0 and every assumption that fails."""
    failed = tuple(f"Assumption 1 fails: {item.name}" for item in assumptions if not item.holds)
    box = OperatingSet(*ANSI_RANGE, operating.s_max, printed.mu, 0.0, "closed form of the paper")
    modes: list[tuple[Mode, Evaluate, NodeLaw, OperatingSet]] = [
        ("paper", partial(paper_bound, failed=failed), truncated, box),
        ("corrected", corrected_bound, truncated, operating_truncated),
    ]
    if law.q_sigma is not None:
        modes.append(("full-support", full_support_bound, law, operating))
    return modes


def _row(
    mode: Mode, evaluate: Evaluate, law: NodeLaw, operating: OperatingSet, facts: NetworkFacts, policy: Policy
) -> Row:
    delta = _tail_share(policy, operating)
    day = evaluate(facts, law, operating, policy.radius, delta)
    return Row(
        mode=mode,
        step=per_step(evaluate, facts, law, operating, policy.radius, delta),
        day=day,
        corpus=over_days(day, policy.days),
        largest_r=largest_radius(
            evaluate,
            facts,
            law,
            operating,
            policy.epsilon / policy.days,
            delta,
            policy.delta / policy.days,
        ),
    )


def _tail_share(policy: Policy, operating: OperatingSet) -> float:
    """δ of one day's tail: half of what the operating set leaves of the policy's δ per day.

    The other half is for loads that leave the margins. Where the operating set leaves nothing, the bound is
    evaluated all the same, and its total says by how much it passes the policy.
    """
    per_day = policy.delta / policy.days
    return (per_day - operating.delta if per_day > operating.delta else per_day) / 2.0


def _curves(
    law: NodeLaw,
    margins: tuple[FloatArray, FloatArray],
    facts: NetworkFacts,
    policy: Policy,
    generator: np.random.Generator,
    calibrate: Callable[[NodeLaw, int], MonteCarlo],
) -> tuple[Curve, ...]:
    delta = policy.delta / policy.days
    days = min(policy.calibration_days, _CURVE_DAYS)
    found = []
    for floor in FLOORS:
        wide = law.with_floor(floor)
        modes: list[tuple[Mode, Evaluate, NodeLaw]] = [
            ("corrected", corrected_bound, with_margins(wide, *margins, generator))
        ]
        if law.q_sigma is not None:
            modes.append(("full-support", full_support_bound, wide))
        for mode, evaluate, chosen in modes:
            operating = _charged(calibrate(chosen, days), facts.amplification.failure)
            bounds = [evaluate(facts, chosen, operating, r, delta) for r in CURVE_RADII]
            values = tuple(bound.epsilon for bound in bounds)
            found.append(Curve(mode, floor, CURVE_RADII, values, tuple(bound.delta for bound in bounds)))
    return tuple(found)
