"""‖M̃⁻¹‖ three ways, the assumptions, the levers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.evidence.calibration import (
    MonteCarlo,
    check_assumptions,
    implied_load_range,
    load_box_set,
    printed_closed_form,
    volt_var_constant,
)
from dp_powerflow.evidence.collect import BoundCase, Instance, Policy, collect_evidence, radius_in_lines
from dp_powerflow.evidence.theorem import corrected_bound, full_support_bound
from dp_powerflow.grid.reduction import kron_amplification
from dp_powerflow.lowlevel import (
    DaySolver,
    Generation,
    LoadLaw,
    Network,
    NetworkFacts,
    OperatingSet,
    VoltVar,
    monte_carlo,
)
from dp_powerflow.powerflow.devices import CATEGORY_B
from dp_powerflow_paper.losses import Admittance, implied_load, sensitivity_to_load, sensitivity_to_network
from support.laws import nominal_days, sampler
from support.random_networks import inverse_norms, solve
from support.small_feeders import one_line

GIVEN = OperatingSet(0.9, 1.1, 1.0, 3.0, 1e-3, "given")


def facts_of(feeder: Feeder) -> NetworkFacts:
    network = Network(feeder)
    return NetworkFacts(network.n, math.sqrt(3.0), network.n, kron_amplification(network))


def calibrated(network: Network, law: LoadLaw, days: int, seed: int, **public: Any) -> MonteCarlo:
    """A calibration without a release's key; `public` is generation and volt-var."""
    generation = public.pop("generation", None)
    return monte_carlo(DaySolver(network, **public), sampler(law, days, seed), generation)


def test_printed_closed_form_has_no_bound_on_ieee123(ieee123: Feeder) -> None:
    form = printed_closed_form(Network(ieee123), 0.95, 1.05, 1e-4)
    assert form.denominator < 0.0
    assert form.mu == math.inf
    assert form.sigma_m == pytest.approx(0.2 - 60.7, rel=0.02)  # paper correction 3: 60.8 against 0.199


def test_printed_closed_form_is_a_bound_where_it_applies() -> None:
    network = Network(one_line(1.0 / (400.0 - 900.0j), 0.1 + 0.03j))
    form = printed_closed_form(network, 0.99, 1.01, 0.0, c_vv=1.0)
    assert 0.0 < form.denominator < math.inf
    rng = np.random.default_rng(0)
    v = rng.uniform(0.99, 1.01, (200, 1)) * np.exp(1j * rng.uniform(-0.005, 0.005, (200, 1)))
    assert inverse_norms(network.y, network.b, v).max() <= form.mu


@pytest.mark.parametrize("loading", [1.0, 1.5])
def test_load_box_bound_covers_every_load_in_the_box(ieee13: Feeder, loading: float) -> None:
    network = Network(ieee13)
    s_max = loading * np.abs(ieee13.nominal_injection[ieee13.retained])
    rng = np.random.default_rng(0)
    shape = (200, network.n)
    load = s_max * np.sqrt(rng.random(shape)) * np.exp(2j * np.pi * rng.random(shape))
    v = solve(Admittance(network.y, network.b), load)
    proved = load_box_set(network, s_max)
    if proved is not None:
        assert proved.v_min <= np.abs(v).min()
        assert np.abs(v).max() <= proved.v_max
        assert inverse_norms(network.y, network.b, v).max() <= proved.mu
    measured = OperatingSet(float(np.abs(v).min()), float(np.abs(v).max()), 1.0, 1.0, 0.0, "draws")
    found = load_box_set(network, s_max, measured=measured)
    assert found is not None
    assert inverse_norms(network.y, network.b, v).max() <= found.mu


def test_load_box_bound_on_ieee123_is_the_figure_of_the_notes(ieee123: Feeder) -> None:
    """Paper correction 3: 6.83 at nominal load with the measured voltage range, true value 5.36."""
    network = Network(ieee123)
    s_max = np.abs(ieee123.nominal_injection[ieee123.retained])
    v = solve(Admittance(network.y, network.b), -ieee123.nominal_injection[ieee123.retained])
    measured = OperatingSet(float(np.abs(v).min()), float(np.abs(v).max()), 1.0, 1.0, 0.0, "nominal load")
    found = load_box_set(network, s_max, measured=measured)
    assert found is not None
    true = inverse_norms(network.y, network.b, v)
    assert true == pytest.approx(5.36, rel=0.02)
    # Ours is 6.58. Splitting delta loads half and half, as the notes did, gives 6.58 too; their taps (OEDI's)
    # are not here to try, so the 4 % are unexplained.
    assert found.mu == pytest.approx(6.83, rel=0.05)


def test_monte_carlo_set_holds_new_days_but_for_its_delta(ieee13: Feeder) -> None:
    network = Network(ieee13)
    law = nominal_days(ieee13, 4, 0.1)
    found = calibrated(network, law, 400, 1)
    assert found.operating.delta == pytest.approx(1 - 0.05 ** (1 / 360))
    fresh = calibrated(network, law, 2000, 2)
    beyond = np.mean(fresh.worst_mu > found.operating.mu)
    assert beyond <= 3 * found.operating.delta
    assert np.all(found.worst_mu <= found.operating.mu)


def test_days_that_do_not_solve_are_refused_in_words(ieee13: Feeder) -> None:
    with pytest.raises(PowerFlowError, match="no solution for a day"):
        calibrated(Network(ieee13), nominal_days(ieee13, 4, 3.0), 40, 0)


def test_volt_var_enters_the_calibration(ieee13: Feeder) -> None:
    network = Network(ieee13)
    steps = 4
    generation = Generation.every_day(np.full((steps, network.n), 0.02 + 0.0j))
    voltvar = VoltVar((CATEGORY_B,), np.zeros(network.n, dtype=np.int64))
    law = nominal_days(ieee13, steps, 0.1)
    plain = calibrated(network, law, 40, 3, generation=generation)
    controlled = calibrated(network, law, 40, 3, generation=generation, voltvar=voltvar)
    assert controlled.operating.mu != plain.operating.mu
    expected = 0.02 * CATEGORY_B.steepest / 0.9
    assert volt_var_constant(voltvar, generation, 0.9) == pytest.approx(expected)
    found = check_assumptions(network, law, None, voltvar=voltvar, generation=generation)
    assert found[-1].holds
    much = Generation.every_day(np.full((steps, network.n), 0.4 + 0.0j))
    assert not check_assumptions(network, law, None, voltvar=voltvar, generation=much)[-1].holds


def test_implied_loads_over_s0_are_attained(ieee13: Feeder) -> None:
    """The closed form is a supremum: build the voltages that reach it."""
    network = Network(ieee13)
    least, most = implied_load_range(network)
    for k in (0, network.n // 2):
        for extreme, sign in ((most, 1.0), (least, -1.0)):
            best = -math.inf
            for size in np.linspace(0.95, 1.05, 201):
                # v_k turned so that the slack's part is right, the others turned one by one.
                v_k = size * np.exp(1j * np.angle(-sign * network.b[k]))
                v = 1.05 * np.exp(1j * (np.angle(-sign * v_k) - np.angle(network.y[k])))
                v[k] = v_k
                load = implied_load(Admittance(network.y, network.b), v).real[k]
                best = max(best, sign * load)
            assert best == pytest.approx(sign * extreme[k], rel=1e-4)


def test_assumptions_fail_on_ieee123_and_say_by_how_much(ieee123: Feeder) -> None:
    network = Network(ieee123)
    law = nominal_days(ieee123, 2, 0.3)
    box = law.within((0.3, 3.0))
    singular, no_set, loads, voltvar = check_assumptions(network, box, None)
    assert not singular.holds
    assert "changes sign" in singular.finding
    assert not no_set.holds
    assert not loads.holds
    assert "p.u." in loads.finding
    assert voltvar.holds


def test_sensitivities_bound_small_changes_of_the_voltages(ieee13: Feeder) -> None:
    network = Network(ieee13)
    true = Admittance(network.y, network.b)
    load = -ieee13.nominal_injection[ieee13.retained]
    v = solve(true, load)
    mu = float(inverse_norms(network.y, network.b, v))
    low, high = float(np.abs(v).min()), float(np.abs(v).max())
    rng = np.random.default_rng(0)
    for _ in range(20):
        change = rng.normal(size=network.y.shape) + 1j * rng.normal(size=network.y.shape)
        change *= 1e-5 / np.linalg.norm(change)
        moved = solve(Admittance(network.y + change, network.b), load)
        limit = sensitivity_to_network(low, high, network.n, 1e-5, mu)
        assert np.linalg.norm(moved - v) <= 1.01 * limit
    heavier = load.copy()
    heavier[3] += 1e-5 * (1 + 1j)
    assert np.linalg.norm(solve(true, heavier) - v) <= 1.01 * sensitivity_to_load(low, 1e-5, mu)


def test_largest_radius_is_where_the_bound_meets_the_target(ieee13: Feeder) -> None:
    law = nominal_days(ieee13, 4, 0.2)
    operating = calibrated(Network(ieee13), law, 40, 0).operating
    case = BoundCase(full_support_bound, facts_of(ieee13), law, operating)
    radius = case.largest_radius(5.0, 1e-5)
    assert radius is not None
    at, beyond = (case.bound(radius * f, 1e-5).epsilon for f in (1.0, 1.01))
    assert at == pytest.approx(5.0, rel=1e-6)
    assert beyond is not None
    assert beyond > 5.0
    assert case.largest_radius(1e-12, 1e-5) is None
    cut = BoundCase(corrected_bound, case.facts, law.within((0.3, 3.0)), GIVEN)
    loose, strict = (cut.largest_radius(1e3, 1e-5, *most) for most in ((), (2e-3,)))
    assert loose is not None
    assert strict is not None
    assert strict < loose
    assert cut.bound(strict, 1e-5).delta <= 2e-3
    step = case.per_step(radius, 1e-5)
    assert step is not None
    assert step.steps == 1
    assert step.epsilon is not None
    assert step.epsilon < 5.0


def test_radius_is_told_as_a_share_of_lines(ieee123: Feeder) -> None:
    told = radius_in_lines(ieee123, 1e-4)
    assert told.weakest is not None
    assert told.median is not None
    assert told.strongest is not None
    assert told.strongest < told.median < told.weakest
    assert told.median == pytest.approx(2e-6, rel=1.0)  # paper correction 16
    assert told.median_metres is not None


def test_no_number_is_given_where_volt_var_breaks_the_lemma(ieee13: Feeder) -> None:
    """The slope of a volt-var curve jumps at its corners, so M̃ may too under a tiny change of a line."""
    network = Network(ieee13)
    generation = Generation.every_day(np.full((4, network.n), 0.01 + 0.0j))
    voltvar = VoltVar((CATEGORY_B,), np.zeros(network.n, dtype=np.int64))
    policy = Policy(radius=1e-12, epsilon=1.0, delta=0.9, days=1, calibration_days=20)
    law = nominal_days(ieee13, 4, 0.2)
    for control, expected in ((None, False), (voltvar, True)):
        evidence = collect_evidence(
            Instance(network, law, generation, control), policy, StreamKey.from_insecure_seed(0)
        )
        for row in evidence.rows[1:]:
            assert any("volt-var" in text for text in row.day.violations) is expected
