"""The linear equations of a three-phase feeder against AC power flow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow import BatchSolver, Feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Line
from dp_powerflow.studies.dispatch.dispatcher import admittance_at
from dp_powerflow.studies.dispatch.network import BusTree, LinDistFlow, P, Q, States, U
from dp_powerflow.units import ComplexArray, FloatArray


@pytest.fixture(scope="module", params=["ieee13", "ieee123"])
def feeder(request: pytest.FixtureRequest) -> Feeder:
    return dpf.open_feeder(str(request.param))


def ac(feeder: Feeder, level: float, injected: ComplexArray | None = None) -> ComplexArray:
    """Complex (1, node) voltages of the loads at a share of nominal."""
    load = -level * feeder.nominal_injection[feeder.retained][None]
    solution = BatchSolver(feeder, threads=1, tolerance=1e-11).solve(
        load, None if injected is None else injected[None], nodes="all"
    )
    solution.raise_if_failed()
    v = np.empty((1, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
    return v


def states_of(network: LinDistFlow, v: ComplexArray) -> States:
    closed = np.array([[float(bank.closed) for bank in network.tree.feeder.as_operated.capacitors]])
    return network.states(v, network.tree.ratio[None], closed.reshape(1, -1))


def injection(feeder: Feeder, size: float) -> ComplexArray:
    rng = np.random.default_rng(3)
    n = len(feeder.retained)
    # A delta load stands between phases: what is injected there must sum to no current, so follow the loads.
    return np.asarray(-feeder.nominal_injection[feeder.retained] * size * rng.uniform(0.9, 1.1, n).mean())


def right_side(network: LinDistFlow, injected: ComplexArray) -> FloatArray:
    feeder, n = network.tree.feeder, network.places
    nodal = np.zeros(len(feeder.nodes), dtype=np.complex128)
    nodal[feeder.retained] = injected
    right = np.zeros((4 * n, 1))
    right[P * n : (P + 1) * n, 0] = -nodal[network.node_of].real
    right[Q * n : (Q + 1) * n, 0] = -nodal[network.node_of].imag
    return right


def test_the_blocks_of_the_tree_make_up_the_admittances_of_the_feeder(feeder: Feeder) -> None:
    tree = BusTree.of(feeder)
    found = np.zeros((len(feeder.nodes),) * 2, dtype=np.complex128)
    closed = np.array([float(bank.closed) for bank in feeder.as_operated.capacitors])
    ratio = np.append(tree.ratio, 1.0)
    for k, parent in enumerate(tree.parent.tolist()):
        own = tree.nodes[k][tree.there[k]]
        a = np.arange(len(own))
        shunt = tree.shunt[k] + np.tensordot(closed, tree.banks[:, k], 1)
        found[np.ix_(own, own)] += shunt[np.ix_(a, a)]
        if parent < 0:
            continue
        above = tree.nodes[parent][tree.there[parent]]
        scale = 1.0 / ratio[tree.regulator[k]]
        block = tree.fixed[k] + scale[:, None, :, None] * tree.moved[k] * scale[None, :, None, :]
        ends = ((above, np.arange(len(above))), (own, a))
        for i, (row, at_row) in enumerate(ends):
            for j, (column, at_column) in enumerate(ends):
                found[np.ix_(row, column)] += block[i, j][np.ix_(at_row, at_column)]
    true = feeder.y.toarray()
    size = np.sqrt(np.abs(np.outer(true.diagonal(), true.diagonal())))
    energised = np.ix_(feeder.energised, feeder.energised)
    assert np.abs(found - true)[energised].max() < 1e-8 * size[energised].max()
    held = admittance_at(feeder, tree.ratio).toarray()
    assert np.abs(held - true)[energised].max() < 1e-9 * size[energised].max()


def test_the_tangent_at_an_ac_solution_errs_by_the_square_of_the_change(feeder: Feeder) -> None:
    network = LinDistFlow(BusTree.of(feeder))
    v = ac(feeder, 0.6)
    states = states_of(network, v)
    tangent, n = network.tangents(states)[0], network.places
    imported = network.imported(network.flows(states))[0]
    gaps, import_gaps = [], []
    for size in (0.2, 0.02):
        injected = injection(feeder, size)
        moved = ac(feeder, 0.6, injected)
        z = tangent.changes(right_side(network, injected))[:, 0]
        change = np.abs(moved[0, network.node_of]) ** 2 - np.abs(v[0, network.node_of]) ** 2
        gaps.append(np.abs(change - z[U * n : (U + 1) * n]).max() / np.abs(change).max())
        p, q = (slope @ z for slope in tangent.import_gradient())
        second = float(np.sum((tangent.loss_factor() @ z) ** 2))
        true = network.imported(network.flows(states_of(network, moved)))[0] - imported
        import_gaps.append(abs(true.real - p - second) / abs(true.real))
        assert abs(true.imag - q) < 0.2 * abs(true.imag)
    assert gaps[0] < 0.05
    assert gaps[1] < gaps[0] / 7
    assert import_gaps[0] < 1e-3
    assert import_gaps[1] < import_gaps[0]


def test_flows_balance_at_every_bus(feeder: Feeder) -> None:
    """What the sources give is what is drawn and lost, and all of the losses are in branches."""
    network = LinDistFlow(BusTree.of(feeder))
    flows = network.flows(states_of(network, ac(feeder, 0.5)))
    drawn = -0.5 * feeder.nominal_injection.sum()
    losses = network.imported(flows)[0].real - drawn.real
    assert 0.0 < losses < 0.1 * drawn.real
    in_lines = (flows.sent.sum(axis=2) - flows.received.sum(axis=2)).real.sum()
    assert in_lines == pytest.approx(losses, rel=1e-3)


def test_without_load_the_tangent_is_lindistflow(feeder: Feeder) -> None:
    """No losses, and R and X between phases turned by 120°, line by line."""
    tree = BusTree.of(feeder)
    network = LinDistFlow(tree)
    tangent, n = network.tangents(network.no_load())[0], network.places
    z = tangent.changes(right_side(network, -0.1 * feeder.nominal_injection[feeder.retained]))[:, 0]
    phasor = tree.spread(np.exp(1j * np.deg2rad(feeder.nominal_angle_deg)))
    checked = 0
    for k, parent in enumerate(tree.parent.tolist()):
        if not tree.lines[k] or parent < 0 or network.number[parent].max() < 0:
            continue
        own = network.number[k][tree.there[k]]
        at = [tree.nodes[parent].tolist().index(j) for j in _same_phases(feeder, tree, k, parent)]
        block = -np.linalg.inv(tree.fixed[k, 0, 1][np.ix_(at, np.arange(len(own)))])
        e = phasor[k][tree.there[k]]
        turned = np.conj(e)[:, None] * block * e
        p, q = z[own], z[n + own]
        drop = 2.0 * np.real(turned @ (p - 1j * q))
        change = z[2 * n + network.number[parent][at]] - z[2 * n + own]
        np.testing.assert_allclose(change, drop, atol=1e-5)
        checked += 1
    assert checked > 5


def _same_phases(feeder: Feeder, tree: BusTree, bus: int, parent: int) -> list[int]:
    phases = [feeder.nodes[node].rsplit(".", 1)[1] for node in tree.nodes[bus][tree.there[bus]]]
    above = {feeder.nodes[node].rsplit(".", 1)[1]: node for node in tree.nodes[parent][tree.there[parent]]}
    return [int(above[phase]) for phase in phases]


def test_a_meshed_feeder_is_refused_with_the_line_to_open() -> None:
    feeder = dpf.open_feeder("ieee13")
    one, other = feeder.lines[0], feeder.lines[-1]
    ends = (*one.nodes[:1], *other.nodes[-1:])
    loop = Line("loop", ends, np.array([[1.0, -1.0], [-1.0, 1.0]]) * (10 - 30j), 100.0, False)
    y = feeder.y.tolil()
    y[np.ix_(ends, ends)] = y[np.ix_(ends, ends)].toarray() + loop.primitive
    meshed = replace(feeder, y=y.tocsc(), lines=(*feeder.lines, loop), operation=None)
    with pytest.raises(FeederError, match=r"meshed.*open line '"):
        BusTree.of(meshed)


def test_parallel_lines_are_one_branch() -> None:
    feeder = dpf.open_feeder("ieee13")
    first = feeder.lines[0]
    half = replace(first, primitive=first.primitive / 2.0)
    doubled = replace(feeder, lines=(half, replace(half, name="beside"), *feeder.lines[1:]))
    one, two = BusTree.of(feeder), BusTree.of(doubled)
    np.testing.assert_allclose(one.fixed, two.fixed, rtol=0, atol=1e-9)
