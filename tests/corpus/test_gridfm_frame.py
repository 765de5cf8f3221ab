"""Tables turned back by nominal angles and with switches merged: the same network, easier numbers."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow.corpus.gridfm.network import (
    NodeFacts,
    PublishedNetwork,
    network_of,
    nominal_angles,
    phases_of,
)
from dp_powerflow.corpus.gridfm.schema import GridfmStyle
from dp_powerflow.corpus.gridfm.tables import GridfmData, GridfmWriter, read_gridfm
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray

FEEDERS = ("ieee13", "ieee123")
N = 12
PHASORS, TURNED, MERGED, DEFAULT = (
    GridfmStyle(turned=turned, merged=merged)
    for turned, merged in ((False, False), (True, False), (False, True), (True, True))
)


@functools.cache
def solved(name: str) -> tuple[Feeder, ComplexArray, ComplexArray]:
    """A feeder, loads of some scenarios, voltages of all nodes."""
    feeder = open_feeder(name)
    nominal = (feeder.load_shares @ feeder.nominal_load)[feeder.retained]
    load = nominal * np.linspace(0.3, 1.0, N)[:, None]
    solution = BatchSolver(feeder, threads=1, tolerance=1e-12).solve(load, nodes="all")
    solution.raise_if_failed()
    v = np.empty((N, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
    return feeder, load, v


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("frames"))


@dataclasses.dataclass
class Tables:
    folder: Path

    def __call__(self, name: str, style: GridfmStyle) -> GridfmData:
        directory = self.folder / f"{name}-{style.turned}-{style.merged}"
        if not directory.exists():
            feeder, load, v = solved(name)
            facts = NodeFacts(released=len(feeder.energised))
            writer = GridfmWriter(directory, feeder, facts=facts, style=style)
            writer.write_block(0, load, None, v, steps=4)
            writer.write_index(N)
        return read_gridfm(directory)


def largest_flow(data: GridfmData) -> float:
    ends = (("pf", "qf"), ("pt", "qt"))
    return max(float(np.hypot(data.column("branch", p), data.column("branch", q)).max()) for p, q in ends)


@pytest.mark.parametrize("name", FEEDERS)
def test_turning_back_keeps_the_power_flow_and_gives_the_phasors_back(name: str, tables: Tables) -> None:
    plain, turned = tables(name, PHASORS), tables(name, TURNED)
    assert turned.mismatch_mw().max() < 2.0 * plain.mismatch_mw().max() < 1e-7
    assert turned.admittance_error() < 1e-10
    assert np.abs(turned.phasor() - plain.phasor()).max() < 1e-15 * 4
    for power in ("Pd", "Qd", "Psgen", "Qsgen"):
        assert np.array_equal(turned.column("bus", power), plain.column("bus", power))
    assert np.abs(turned.column("bus", "Pg") - plain.column("bus", "Pg")).max() < 1e-8
    assert np.abs(turned.column("bus", "Va")).max() < 15.0
    assert np.array_equal(turned.column("bus", "turn")[0], solved(name)[0].nominal_angle_deg)
    assert not plain.column("bus", "turn").any()


@pytest.mark.parametrize("name", FEEDERS)
def test_couplings_of_phases_carry_no_power_of_their_own(name: str, tables: Tables) -> None:
    """Turned back, a branch carries what the feeder draws; as phasors, couplings hundreds of times it."""
    drawn = np.abs(solved(name)[1].sum(axis=1)).max() * solved(name)[0].base_mva
    assert largest_flow(tables(name, PHASORS)) > 100.0 * drawn
    assert largest_flow(tables(name, DEFAULT)) < 3.0 * drawn
    data = tables(name, DEFAULT)
    coupling = data.column("branch", "x")[0] == 0.0
    assert coupling.any()
    yff, yft = (data.column("branch", f"{port}_r")[0][coupling] for port in ("Yff", "Yft"))
    assert np.array_equal(yff, -yft)
    assert not data.column("branch", "shift").any()


@pytest.mark.parametrize(("name", "merged"), [("ieee13", 3), ("ieee123", 22)])
def test_switches_of_next_to_no_impedance_are_one_bus(name: str, merged: int, tables: Tables) -> None:
    apart, data = tables(name, TURNED), tables(name, DEFAULT)
    assert apart.n_buses - data.n_buses == merged
    assert data.mismatch_mw().max() < 1e-8
    largest = [
        float(np.hypot(d.column("branch", "Yft_r"), d.column("branch", "Yft_i")).max()) for d in (apart, data)
    ]
    assert largest[0] > 1e4 > 2e3 > largest[1]
    assert data.column("bus", "Pd").sum() == pytest.approx(apart.column("bus", "Pd").sum(), rel=1e-12)


@pytest.mark.parametrize("name", FEEDERS)
def test_every_row_of_the_corpus_has_a_bus_with_its_voltage(name: str, tables: Tables) -> None:
    feeder, _, v = solved(name)
    rows = len(feeder.energised)
    for style in (PHASORS, DEFAULT):
        data = tables(name, style)
        assert len(data.bus_of_row) == rows
        assert np.abs(data.phasor()[:, data.bus_of_row] - v[:, :rows]).max() < 2e-6
        row = data.column("bus", "row")[0]
        for bus in range(data.n_buses):
            own = np.flatnonzero(data.bus_of_row == bus)
            assert row[bus] == (own[0] if len(own) else -1)


@pytest.mark.parametrize("name", FEEDERS)
def test_single_precision_still_sees_the_loads_once_switches_are_merged(name: str, tables: Tables) -> None:
    def missing(data: GridfmData) -> float:
        v = data.voltage().astype(np.complex64)
        y = sp.csr_array(data.admittance().astype(np.complex64))
        balance = 100.0 * v * np.conj((y @ v.T).T)
        power = [data.column("bus", name) for name in ("Pg", "Pd", "Qg", "Qd")]
        return float(np.abs(balance - (power[0] - power[1] + 1j * (power[2] - power[3]))).max())

    assert missing(tables(name, TURNED)) > 0.5
    assert missing(tables(name, DEFAULT)) < 0.1


def test_a_frame_can_be_left_again(tables: Tables) -> None:
    nodes = network_of(open_feeder("ieee13"))
    again = nodes.turned().as_phasors()
    assert abs(again.y - nodes.y).max() < 1e-13 * abs(nodes.y).max()
    assert np.abs(again.v_reference - nodes.v_reference).max() < 1e-15 * 4
    turned = nodes.turned()
    assert turned.turned() is turned
    assert nodes.as_phasors() is nodes


def test_a_regulator_of_next_to_no_impedance_is_not_merged(ieee13: Feeder) -> None:
    """A ratio is no switch, however small the impedance."""
    nodes = network_of(ieee13)
    a, b = (ieee13.node_index[node] for node in ("671.1", "692.1"))
    y = nodes.y.tolil()
    series, ratio = -y[a, b], 1.05
    y[a, a] += series * (ratio**2 - 1.0)
    y[a, b] = y[b, a] = -series * ratio
    tapped = dataclasses.replace(nodes, y=sp.csr_array(y))
    assert tapped.groups()[a] != tapped.groups()[b]
    assert nodes.groups()[a] == nodes.groups()[b]


def test_the_solver_of_a_published_network_agrees_with_that_of_the_feeder() -> None:
    feeder, load, v = solved("ieee123")
    nodes: PublishedNetwork = network_of(feeder)
    found = nodes.solve(-load * feeder.base_mva)
    assert np.abs(found - v).max() < 1e-9


def test_phases_and_nominal_angles_follow_from_voltages() -> None:
    angle = np.array([0.0, -120.0, 120.0, 30.0, -90.0, 150.0, -30.0, -150.0, 90.0])
    assert phases_of(angle).tolist() == [1, 2, 3, 1, 2, 3, 1, 2, 3]
    v: ComplexArray = np.asarray(1.02 * np.exp(1j * np.deg2rad(angle - 4.0)), dtype=np.complex128)
    assert np.array_equal(nominal_angles(v), angle)
    assert nominal_angles(np.array([-1.0 - 0.01j])).tolist() == [180.0]
