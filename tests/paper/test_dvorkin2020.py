"""Private dispatch: published costs, balance, limits, how far its guarantee reaches; LinDistFlow below it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import BatchSolver, Feeder, StreamKey
from dp_powerflow.errors import ConfigError, FeederError, PowerFlowError, PrivacyError
from dp_powerflow_paper.datasets import ExperimentOptions
from dp_powerflow_paper.dvorkin2020 import policy as policies
from dp_powerflow_paper.dvorkin2020.case import Case, Privacy, case_of, read_feeder15
from dp_powerflow_paper.dvorkin2020.experiment import TARGET_LINES
from dp_powerflow_paper.dvorkin2020.leaks import neighbours
from dp_powerflow_paper.dvorkin2020.program import Chances, Program, least_cost
from dp_powerflow_paper.dvorkin2020.release import PrivateDispatch
from dp_powerflow_paper.radial import RadialNetwork
from support.small_feeders import feeder_of

pytest.importorskip("cvxpy", reason="needs the extra opf")

DRAWS = 10_000
TARGETED = policies.TargetVariance(TARGET_LINES)
WHOLE: tuple[policies.Variant, ...] = (policies.Expected(), policies.TotalVariance(), policies.TailCost())
Solved = dict[policies.Variant, tuple[policies.Policy, policies.Dispatch]]


@pytest.fixture(scope="module")
def case(reference: Path) -> Case:
    return read_feeder15(reference)


@pytest.fixture(scope="module")
def solved(case: Case) -> Solved:
    found, meant = {}, Privacy().sigma(case)
    for variant in (*WHOLE, TARGETED):
        sigma = Privacy().sigma(case, TARGET_LINES) if variant is TARGETED else meant
        policy = Program(case, sigma, variant, target=meant).solve()
        noise = policy.noise(StreamKey.from_insecure_seed(1), DRAWS)
        found[variant] = (policy, policy.dispatch(noise))
    return found


def test_published_costs_are_met(case: Case, solved: Solved) -> None:
    expected, total, tail = (solved[variant][0] for variant in WHOLE)
    found = [least_cost(case), expected.cost, total.cost, tail.cvar(0.1)]
    assert found == pytest.approx([3.960, 4.280, 4.636, 4.342], rel=1e-3)


def test_set_points_balance_whatever_the_noise_and_pass_limits_as_seldom_as_allowed(
    case: Case, solved: Solved
) -> None:
    chances = Chances()
    for policy, dispatch in solved.values():
        assert np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max() < 1e-9
        at_root = dispatch.flow_p[:, case.network.start == 0].sum(axis=1)
        assert np.abs(dispatch.p[:, 0] - at_root).max() < 1e-9
        found = policy.violations(dispatch)
        for seen, allowed in (
            (found.generators, chances.generators),
            (found.voltages, chances.voltages),
            (found.flows, chances.flows),
        ):
            assert seen <= allowed + 3.0 * math.sqrt(allowed * (1.0 - allowed) / DRAWS)
        assert found.jointly > chances.generators, "single limits say nothing of all of them together"
    policy = solved[policies.Expected()][0]
    twice = policy.dispatch(2.0 * policy.noise(StreamKey.from_insecure_seed(1), 2000))
    assert policy.violations(twice).generators > 0.05, "made for less noise"


def test_every_flow_varies_as_meant_but_where_a_target_leaves_lines_without_noise(
    case: Case, solved: Solved
) -> None:
    meant = Privacy().sigma(case)
    for variant in WHOLE:
        policy, dispatch = solved[variant]
        assert (policy.flow_std >= meant * (1.0 - 1e-12)).all()
        assert np.allclose(dispatch.flow_p.std(axis=0), policy.flow_std, rtol=5.0 / math.sqrt(2 * DRAWS))
    policy, own = solved[TARGETED][0], np.isin(np.arange(len(meant)), TARGET_LINES)
    assert (policy.flow_std[own] >= meant[own] * (1.0 - 1e-12)).all()
    assert (policy.flow_std[~own] < meant[~own]).any()


def test_noise_of_the_cheapest_policy_cannot_hide_a_load_among_all_flows(case: Case, solved: Solved) -> None:
    sigma = Privacy().sigma(case)
    assert [solved[variant][0].rank for variant in (policies.Expected(), policies.TotalVariance())] == [5, 14]
    for found in neighbours(Program(case, sigma, policies.Expected()), Privacy(), (2, 6, 13)):
        assert found.outside > 0.1
        assert math.isinf(found.jointly)
    # Total variance fills every direction, yet all flows lose more than one.
    program = Program(case, sigma, policies.TotalVariance())
    jointly = max(each.jointly for each in neighbours(program, Privacy(), (4, 10)))
    assert 1.2 * Privacy().epsilon < jointly < math.inf


def test_flows_with_set_points_give_every_load_back(case: Case, solved: Solved) -> None:
    public = replace(case, load_p=np.zeros_like(case.load_p))
    for _, dispatch in solved.values():
        assert np.abs(policies.loads_from(public, dispatch) - case.load_p).max() < 1e-12


@pytest.mark.parametrize("variant", WHOLE[:2], ids=lambda variant: variant.name)
def test_a_feeder_of_ours_is_dispatched(ieee13: Feeder, variant: policies.Variant) -> None:
    case = case_of(ieee13)
    assert case.load_p.sum() == pytest.approx(sum(load.kw for load in ieee13.loads) / 1e3 / ieee13.base_mva)
    sigma = Privacy().sigma(case)
    policy = Program(case, sigma, variant).solve()
    dispatch = policy.dispatch(policy.noise(StreamKey.from_insecure_seed(2), 5000))
    assert np.abs(dispatch.p.sum(axis=1) - case.load_p.sum()).max() < 1e-9
    assert (policy.flow_std >= sigma * (1.0 - 1e-12)).all()
    assert policy.cost > least_cost(case)
    assert policy.violations(dispatch).generators <= 0.01 + 4.0 * math.sqrt(0.01 / 5000)


def test_claims_say_what_they_do_not_cover(case: Case, solved: Solved) -> None:
    release = PrivateDispatch(solved[policies.TotalVariance()][0], Privacy(), 3.96, "ToV", jointly=4.0)
    own, joint = release.guarantees
    assert (own.jointly, own.proved, own.composes) == (False, False, "per snapshot")
    assert (joint.jointly, joint.proved) == (True, False)
    assert len(replace(release, jointly=None).guarantees) == 1
    found = release.measure(np.random.default_rng(0))
    assert found == release.measure(np.random.default_rng(0))
    assert found["error of loads computed from the release [p.u.]"] < 1e-12


def test_what_cannot_be_dispatched_is_refused(case: Case, tmp_path: Path) -> None:
    sigma, ones = Privacy().sigma(case), np.full(3, 1e-3)
    none_below = replace(case, p_max=np.where(np.arange(15) == 14, 0.0, case.p_max))
    narrow = replace(case, u_max=np.full(15, 1.0), u_min=np.full(15, 0.9999))
    start = np.array([0, 1, 2])
    for error, sentence, refused in (
        (ConfigError, "DP_POWERFLOW_REFERENCE", lambda: read_feeder15(tmp_path)),
        (ConfigError, "--reference", lambda: ExperimentOptions(tmp_path).folder("reference")),
        (PrivacyError, "ε in", lambda: Privacy(epsilon=2.0)),
        (FeederError, "no generator below", lambda: Program(none_below, sigma, policies.Expected())),
        (PowerFlowError, "no dispatch keeps", lambda: Program(narrow, sigma, policies.Expected()).solve()),
        (ConfigError, "one figure for every node", lambda: replace(case, cost=np.zeros(3))),
        (ConfigError, "root of a case", lambda: replace(case, p_max=np.zeros(15))),
        (FeederError, "closes a loop", lambda: RadialNetwork(start, np.array([1, 2, 0]), ones, ones)),
        (FeederError, "numbered from 0", lambda: RadialNetwork(start, np.array([1, 2, 9]), ones, ones)),
        (FeederError, "one entry for every", lambda: RadialNetwork(start, start + 1, ones[:2], ones)),
    ):
        with pytest.raises(error, match=sentence):
            refused()


@pytest.mark.parametrize("root", [0, 3])
def test_the_gap_to_ac_power_flow_shrinks_with_the_square_of_the_load(root: int) -> None:
    """Two laterals; one line is listed from its far end."""
    start, end = np.array([0, 1, 3, 1, 4]), np.array([1, 2, 2, 4, 5])
    r, x = np.array([1.0, 2, 3, 4, 5]) * 1e-3, np.array([5.0, 4, 3, 2, 1]) * 1e-3
    network = RadialNetwork(start, end, r, x, root)
    s = np.array([0.3, 0.5, 0.2, 0.4, 0.6, 0.1]) + 1j * np.array([0.1, 0.2, 0.3, 0.1, 0.0, 0.2])
    s[root] = 0.0
    place = np.array([5 if node == root else node - (node > root) for node in range(6)])  # the root is last
    lines = zip(place[start].tolist(), place[end].tolist(), (r + 1j * x).tolist(), strict=True)
    loaded = [(node, 0.1 + 0.0j) for node in range(5)]
    solver = BatchSolver(feeder_of(6, list(lines), loaded), tolerance=1e-12)
    at = np.delete(np.arange(6), root)
    gaps = []
    for scale in (1.0, 0.1):
        linear = network.squared_voltages(scale * s.real, scale * s.imag)
        ac = np.abs(solver.solve(scale * s[at][None]).v[0]) ** 2
        gaps.append(np.abs(linear[at] - ac).max())
    assert gaps[0] < 1e-3
    assert gaps[1] < gaps[0] / 80
