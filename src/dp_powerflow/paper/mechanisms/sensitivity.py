"""How far one voltage vector moves between neighbours, as printed and proved."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.collect import network_facts
from dp_powerflow.evidence.theorem import NetworkFacts, over_neighbours
from dp_powerflow.paper.mechanisms.interface import Setting


@dataclass(frozen=True)
class Sensitivities:
    """Δ₂ of the voltages of one step [p.u.], real and imaginary parts together.

    Attributes
    ----------
    network : Δ₂^(Y), over networks within r.
    load : Δ₂^(load→v), over one load point's load within its range.
    proved : whether both are bounds; if not, `source` says where they come from.
    """

    network: float
    load: float
    proved: bool
    source: str


def printed_sensitivities(setting: Setting, facts: NetworkFacts | None = None) -> Sensitivities:
    """Eq. sens_voltage_Y, sens_voltage_load with the exact κ; the printed κ is 1e29 on IEEE 123.

    Their V_min, V_max and ‖M̃⁻¹‖ are those of the setting, in the paper a Monte Carlo calibration on draws of
    the load model: no bound for true loads, which need not look like draws.
    """
    facts = facts or network_facts(setting.network)
    inside = setting.operating
    kappa_r = facts.amplification.exact * setting.radius
    return Sensitivities(
        symbols.sensitivity_to_network(inside.v_min, inside.v_max, facts.n, kappa_r, inside.mu),
        symbols.sensitivity_to_load(inside.v_min, setting.load_range, inside.mu),
        proved=False,
        source=f"the paper's formulae with the exact κ; {inside.source}",
    )


def proved_sensitivities(
    setting: Setting, tan_theta: float, facts: NetworkFacts | None = None
) -> Sensitivities:
    """Bounds over every load in the box and every network within r on existing lines.

    With M̃·(dv, d̄v) = −(conj(ΔY_K v_K), ΔY_K v_K), ‖dv‖ ≤ μ⋆·κr·‖v_K‖ with the slack columns in v_K; with
    M̃·(dv, d̄v) = (ds/v, conj(ds/v)), ‖dv‖ ≤ μ·|ds|/V_min and |ds| = Δ_load·√(1 + tan²θ).

    Parameters
    ----------
    tan_theta : largest tangent of a power-factor angle, in modulus.
    """
    facts = facts or network_facts(setting.network)
    if setting.operating.delta > 0.0:
        raise PrivacyError(
            "a proved sensitivity needs an operating set that every load in the box stays in, such as "
            "calibration.load_box_set without a measured range"
        )
    kappa_r = facts.amplification.bound(setting.radius) * setting.radius
    reached = over_neighbours(facts, setting.operating, kappa_r)
    if not math.isfinite(reached.mu):
        raise PrivacyError("r is too large for a bound on ‖M̃⁻¹‖ over the neighbours; lower the radius")
    power = setting.load_range * math.hypot(1.0, tan_theta)
    return Sensitivities(
        reached.mu * kappa_r * facts.v_kept(reached.v_max),
        setting.operating.mu * power / setting.operating.v_min,
        proved=True,
        source="proved over the load box",
    )


def with_exact_kappa(facts: NetworkFacts) -> NetworkFacts:
    """Facts whose printed κ is replaced by the exact one."""
    exact = facts.amplification.exact
    return replace(facts, amplification=replace(facts.amplification, paper=exact))
