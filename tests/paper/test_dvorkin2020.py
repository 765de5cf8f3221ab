"""Private dispatch: published costs, balance, limits, how far its guarantee reaches; LinDistFlow below it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey
from dp_powerflow.errors import ConfigError, FeederError, PowerFlowError, PrivacyError
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.dvorkin2020 import experiment
from dp_powerflow_paper.dvorkin2020.case import Case, Privacy, case_of, read_feeder15
from dp_powerflow_paper.dvorkin2020.leaks import neighbours
from dp_powerflow_paper.dvorkin2020.policy import (
    Dispatch,
    Expected,
    Policy,
    TailCost,
    TargetVariance,
    TotalVariance,
    Variant,
    loads_from,
)
from dp_powerflow_paper.dvorkin2020.program import Chances, Program, least_cost
from dp_powerflow_paper.dvorkin2020.release import PrivateDispatch
from dp_powerflow_paper.radial import RadialNetwork

pytest.importorskip("cvxpy", reason="needs the extra opf")

DRAWS = 10_000
VARIANTS: tuple[Variant, ...] = (
    Expected(),
    TotalVariance(),
    TargetVariance(experiment.TARGET_LINES),
    TailCost(),
)
WHOLE = [variant for variant in VARIANTS if not isinstance(variant, TargetVariance)]


@pytest.fixture(scope="session")
def case(reference: Path) -> Case:
    return read_feeder15(reference)


@cache
def _solved(case: Case, name: str) -> Policy:
    variant = next(each for each in VARIANTS if each.name == name)
    meant = Privacy().sigma(case)
    sigma = Privacy().sigma(case, variant.lines) if isinstance(variant, TargetVariance) else meant
    return Program(case, sigma, variant, target=meant).solve()


def solved(case: Case, variant: Variant) -> Policy:
    return _solved(case, variant.name)


@cache
def _drawn(case: Case, name: str) -> Dispatch:
    policy = _solved(case, name)
    return policy.dispatch(policy.noise(StreamKey.from_insecure_seed(1), DRAWS))


def drawn(case: Case, variant: Variant) -> Dispatch:
    return _drawn(case, variant.name)


def test_published_costs_are_met(case: Case) -> None:
    assert least_cost(case) == pytest.approx(3.960, rel=1e-3)
    assert solved(case, Expected()).cost == pytest.approx(4.280, rel=1e-3)
    assert solved(case, TotalVariance()).cost == pytest.approx(4.636, rel=1e-3)
    assert solved(case, TailCost()).cvar(0.1) == pytest.approx(4.342, rel=1e-3)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_set_points_balance_whatever_the_noise(case: Case, variant: Variant) -> None:
    dispatch = drawn(case, variant)
    assert np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max() < 1e-9
    at_root = dispatch.flow_p[:, case.network.start == 0].sum(axis=1)
    assert np.abs(dispatch.p[:, 0] - at_root).max() < 1e-9


@pytest.mark.parametrize("variant", WHOLE, ids=lambda variant: variant.name)
def test_every_flow_varies_at_least_as_much_as_is_meant(case: Case, variant: Variant) -> None:
    policy = solved(case, variant)
    meant = Privacy().sigma(case)
    assert (policy.flow_std >= meant * (1.0 - 1e-12)).all()
    seen = drawn(case, variant).flow_p.std(axis=0)
    assert np.allclose(seen, policy.flow_std, rtol=5.0 / math.sqrt(2 * DRAWS))


def test_target_variance_leaves_lines_without_noise_of_their_own_short(case: Case) -> None:
    policy, meant = solved(case, VARIANTS[2]), Privacy().sigma(case)
    own = np.isin(np.arange(len(meant)), experiment.TARGET_LINES)
    assert (policy.flow_std[own] >= meant[own] * (1.0 - 1e-12)).all()
    assert (policy.flow_std[~own] < meant[~own]).any()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_single_limits_are_passed_as_seldom_as_allowed(case: Case, variant: Variant) -> None:
    found, chances = solved(case, variant).violations(drawn(case, variant)), Chances()
    for seen, allowed in (
        (found.generators, chances.generators),
        (found.voltages, chances.voltages),
        (found.flows, chances.flows),
    ):
        assert seen <= allowed + 3.0 * math.sqrt(allowed * (1.0 - allowed) / DRAWS)
    assert found.jointly > chances.generators, "single limits say nothing of all of them together"


def test_a_policy_made_for_less_noise_passes_its_limits(case: Case) -> None:
    policy = solved(case, Expected())
    twice = policy.dispatch(2.0 * policy.noise(StreamKey.from_insecure_seed(1), 2000))
    assert policy.violations(twice).generators > 0.05


def test_noise_of_the_cheapest_policy_cannot_hide_a_load_among_all_flows(case: Case) -> None:
    policy = solved(case, Expected())
    assert policy.rank == 5
    program = Program(case, Privacy().sigma(case), Expected())
    for found in neighbours(program, Privacy(), (2, 6, 13)):
        assert found.outside > 0.1
        assert math.isinf(found.jointly)


def test_total_variance_fills_every_direction_yet_all_flows_lose_more_than_one(case: Case) -> None:
    assert solved(case, TotalVariance()).rank == 14
    program = Program(case, Privacy().sigma(case), TotalVariance())
    found = [each.jointly for each in neighbours(program, Privacy(), (4, 10))]
    assert max(found) > 1.2 * Privacy().epsilon
    assert math.isfinite(max(found))


def test_flows_with_set_points_give_every_load_back(case: Case) -> None:
    for variant in VARIANTS:
        found = loads_from(case, drawn(case, variant))
        assert np.abs(found - case.load_p).max() < 1e-12
    public = replace(case, load_p=np.zeros_like(case.load_p))
    assert np.array_equal(
        loads_from(public, drawn(case, VARIANTS[0])), loads_from(case, drawn(case, VARIANTS[0]))
    )


@pytest.mark.parametrize("variant", [Expected(), TotalVariance()], ids=lambda variant: variant.name)
def test_a_feeder_of_ours_is_dispatched(ieee13: Feeder, variant: Variant) -> None:
    case = case_of(ieee13)
    assert case.load_p.sum() == pytest.approx(sum(load.kw for load in ieee13.loads) / 1e3 / ieee13.base_mva)
    sigma = Privacy().sigma(case)
    policy = Program(case, sigma, variant).solve()
    dispatch = policy.dispatch(policy.noise(StreamKey.from_insecure_seed(2), 5000))
    assert np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max() < 1e-9
    assert (policy.flow_std >= sigma * (1.0 - 1e-12)).all()
    assert policy.cost > least_cost(case)
    assert policy.violations(dispatch).generators <= 0.01 + 4.0 * math.sqrt(0.01 / 5000)


def test_claims_say_what_they_do_not_cover(case: Case) -> None:
    release = PrivateDispatch(solved(case, TotalVariance()), Privacy(), 3.96, "ToV", jointly=4.0)
    own, joint = release.guarantees
    assert not own.jointly
    assert not own.proved
    assert own.composes == "per snapshot"
    assert joint.jointly
    assert not joint.proved
    assert len(replace(release, jointly=None).guarantees) == 1
    found = release.measure(np.random.default_rng(0))
    assert found == release.measure(np.random.default_rng(0))
    assert found["error of loads computed from the release [p.u.]"] < 1e-12


@pytest.mark.slow
def test_experiment_resumes_and_shows_published_beside_ours(reference: Path, tmp_path: Path) -> None:
    scale = experiment.Scale(draws=500, feeders=("ieee13",), customers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "QUICK", scale)
        options = ExperimentOptions(tmp_path, reference=reference, quick=True)
        first = experiment.run(options)
        patch.setattr(experiment, "measure", None)
        again = experiment.run(options)
    assert first.text == again.text
    assert "| feeder15 | ToV | 4.636 | 4.636 | +17.1 % |" in first.text
    found = json.loads((tmp_path / "dvorkin2020.json").read_text())
    assert len(found["rows"]) == 6


def test_what_cannot_be_dispatched_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DP_POWERFLOW_REFERENCE"):
        read_feeder15(tmp_path)
    with pytest.raises(ConfigError, match="--reference"):
        _ = ExperimentOptions(tmp_path).reference_folder
    with pytest.raises(PrivacyError, match="ε in"):
        Privacy(epsilon=2.0)
    none_below = replace(case, p_max=np.where(np.arange(15) == 14, 0.0, case.p_max))
    with pytest.raises(FeederError, match="no generator below"):
        Program(none_below, Privacy().sigma(case), Expected())
    narrow = replace(case, u_max=np.full(15, 1.0), u_min=np.full(15, 0.9999))
    with pytest.raises(PowerFlowError, match="no dispatch keeps the limits"):
        Program(narrow, Privacy().sigma(case), Expected()).solve()
    with pytest.raises(ConfigError, match="one figure for every node"):
        replace(case, cost=np.zeros(3))
    with pytest.raises(ConfigError, match="root of a case"):
        replace(case, p_max=np.zeros(15))
    loose = RadialNetwork(np.array([0]), np.array([1]), np.array([0.1]), np.array([0.1]))
    assert loose.nodes == 2


def branched(root: int = 0) -> RadialNetwork:
    """Two laterals; one line is listed from its far end."""
    start, end = np.array([0, 1, 3, 1, 4]), np.array([1, 2, 2, 4, 5])
    return RadialNetwork(
        start, end, np.array([1.0, 2, 3, 4, 5]) * 1e-3, np.array([5.0, 4, 3, 2, 1]) * 1e-3, root
    )


def ac_voltages(network: RadialNetwork, s: ComplexArray) -> FloatArray:
    """Squared magnitudes by sweeps over the tree."""
    v = np.ones(network.nodes, dtype=complex)
    for _ in range(60):
        current = np.conj(s / v)
        for node in network.order[:0:-1]:
            current[network.parent[node]] += current[node]
        for node in network.order[1:]:
            line = network.line_above[node]
            v[node] = v[network.parent[node]] - (network.r[line] + 1j * network.x[line]) * current[node]
    return np.asarray(np.abs(v) ** 2)


@pytest.mark.parametrize("root", [0, 3])
def test_the_gap_to_ac_power_flow_shrinks_with_the_square_of_the_load(root: int) -> None:
    network = branched(root)
    s = np.array([0.3, 0.5, 0.2, 0.4, 0.6, 0.1]) + 1j * np.array([0.1, 0.2, 0.3, 0.1, 0.0, 0.2])
    s[root] = 0.0
    gaps = []
    for scale in (1.0, 0.1):
        linear = network.squared_voltages(scale * s.real, scale * s.imag)
        gaps.append(np.abs(linear - ac_voltages(network, scale * s)).max())
    assert gaps[0] < 1e-3
    assert gaps[1] < gaps[0] / 80


def test_loops_islands_and_wrong_shapes_are_refused() -> None:
    ones = np.full(3, 1e-3)
    with pytest.raises(FeederError, match="open the line that closes a loop"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 0]), ones, ones)
    with pytest.raises(FeederError, match="numbered from 0"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 9]), ones, ones)
    with pytest.raises(FeederError, match="one entry for every line"):
        RadialNetwork(np.array([0, 1, 2]), np.array([1, 2, 3]), ones[:2], ones)
