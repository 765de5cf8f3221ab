"""The gridfm-datakit layout: what is written is the network and its power flow; the real validator agrees.

Voltages are turned back by nominal angles and switches of next to no impedance are merged; what is expected
is computed from the admittances of the feeder.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import multiprocessing
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dp_powerflow.corpus.gridfm.network import network_of, phases_of
from dp_powerflow.corpus.gridfm.schema import TABLES
from dp_powerflow.corpus.gridfm.tables import GridfmData, GridfmWriter, read_gridfm
from dp_powerflow.corpus.storage import file_hashes
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray, IntArray
from support.datakit import datakit_validate

CASES = ("ieee13", "ieee123", "cigre_mv", "multivoltage")
N = 210  # more than one partition
BLOCK = 96
STEPS = 48


@dataclass(frozen=True, eq=False)
class Case:
    feeder: Feeder
    load: ComplexArray
    generation: ComplexArray | None
    v: ComplexArray
    order: IntArray

    def writer(self, directory: Path) -> GridfmWriter:
        return GridfmWriter(directory, self.feeder, self.order, released=len(self.order))

    def admittance(self, data: GridfmData) -> ComplexArray:
        """Y of the feeder, its nodes merged as the tables say and its voltages turned back."""
        feeder, angle = self.feeder, np.deg2rad(self.feeder.nominal_angle_deg[self.order])
        y = feeder.y.toarray()[np.ix_(self.order, self.order)] * (feeder.base_mva / 100.0)
        turned = y * np.exp(1j * (angle[None, :] - angle[:, None]))
        merges = np.eye(data.n_buses)[data.bus_of_row]
        return np.asarray(merges.T @ turned @ merges)

    def write(self, directory: Path, *, reverse: bool = False) -> GridfmWriter:
        writer = self.writer(directory)
        starts = range(0, N, BLOCK)
        for first in reversed(starts) if reverse else starts:
            writer.write_block(first, *self.block(first), steps=STEPS)
        writer.write_index(N)
        return writer

    def block(self, first: int) -> tuple[ComplexArray, ComplexArray | None, ComplexArray]:
        part = slice(first, first + BLOCK)
        return self.load[part], None if self.generation is None else self.generation[part], self.v[part]


@functools.cache
def case(name: str) -> Case:
    """A feeder with its nominal loads scaled at random, its PV if any, and the voltages."""
    feeder = open_feeder(name) if name.startswith("ieee") else from_pandapower(name)
    rng = np.random.default_rng(7)
    nominal = (feeder.load_shares @ feeder.nominal_load)[feeder.retained]
    load = nominal * rng.uniform(0.3, 1.0, (N, 1))
    generation = None
    if feeder.pv:
        peak = np.array([pv.kw_peak / (1000.0 * feeder.base_mva) for pv in feeder.pv])
        generation = (feeder.pv_shares @ peak)[feeder.retained] * rng.uniform(0.0, 0.5, (N, 1)).astype(
            complex
        )
    solution = BatchSolver(feeder, threads=1).solve(load, generation, nodes="all")
    solution.raise_if_failed()
    v = np.empty((N, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solution.v, feeder.v_slack
    return Case(feeder, load, generation, v, rng.permutation(len(feeder.nodes)))


def from_pandapower(name: str) -> Feeder:
    if importlib.util.find_spec("pandapower") is None:
        pytest.skip("pandapower is not installed (extra 'pandapower')")
    reader = importlib.import_module("dp_powerflow.grid.pandapower.reader")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandapower's own
        networks = importlib.import_module("pandapower.networks")
        net = (
            networks.create_cigre_network_mv(with_der="pv_wind")
            if name == "cigre_mv"
            else networks.example_multivoltage()
        )
        feeder: Feeder = reader.read_pandapower(net, name=name)
        return feeder


Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    @functools.cache
    def get(name: str) -> Path:
        directory = tmp_path_factory.mktemp(name) / "gridfm"
        case(name).write(directory)
        return directory

    return get


def columns(directory: Path, table: str) -> dict[str, np.ndarray]:
    """Columns as any Hive-aware reader sees them, (scenario, row)."""
    dataset = ds.dataset(directory / f"{table}.parquet", partitioning="hive")
    rows = dataset.to_table().sort_by("scenario")
    return {name: rows[name].to_numpy().reshape(N, -1) for name in rows.column_names}


def both(table: dict[str, np.ndarray], real: str, imaginary: str) -> np.ndarray:
    return table[real] + 1j * table[imaginary]


@pytest.mark.parametrize("name", CASES)
def test_branches_and_shunts_add_up_to_the_admittances_of_the_feeder(name: str, written: Written) -> None:
    data = read_gridfm(written(name))
    expected, bound = case(name).admittance(data), 1e-8
    assert data.admittance_error() < bound  # branches and shunts against what is listed
    for scenario in (0, N - 1):
        found = data.admittance(scenario).toarray()
        assert np.allclose(found, expected, rtol=0.0, atol=1e-9 * abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_branch_parameters_give_the_two_port_admittances(name: str, written: Written) -> None:
    branch = {column: values[0] for column, values in columns(written(name), "branch_data").items()}
    coupling = (branch["r"] == 0.0) & (branch["x"] == 0.0)
    assert np.array_equal(branch["Yff_r"][coupling], -branch["Yft_r"][coupling])  # no line, so no power
    series = 1.0 / np.where(coupling, 1.0, branch["r"] + 1j * branch["x"])
    t = branch["tap"] * np.exp(1j * np.deg2rad(branch["shift"]))
    expected = {"Yff": series / abs(t) ** 2, "Yft": -series / np.conj(t), "Ytf": -series / t, "Ytt": series}
    for key, value in expected.items():
        assert abs(both(branch, f"{key}_r", f"{key}_i") - value)[~coupling].max() < 1e-9
    assert not branch["b"].any()


@pytest.mark.parametrize("name", CASES)
def test_loads_generation_and_voltages_come_back(name: str, written: Written) -> None:
    given, data = case(name), read_gridfm(written(name))
    feeder, bus_of_node = given.feeder, data.bus_of_row[np.argsort(given.order)]
    assert data.mismatch_mw().max() < 1e-6
    net, static = data.powers()
    expected = np.zeros((2, N, data.n_buses), dtype=complex)
    generation = np.zeros_like(given.load) if given.generation is None else given.generation
    for k, power in enumerate((given.load, generation)):
        np.add.at(expected[k].T, bus_of_node[feeder.retained], power.T * feeder.base_mva)
    assert np.allclose(net + static, expected[0], rtol=0.0, atol=1e-14)
    assert np.allclose(static, expected[1], rtol=0.0, atol=1e-15)
    assert abs(data.phasor()[:, bus_of_node] - given.v).max() < 2e-6  # the drop across a switch
    angle = np.zeros(data.n_buses)
    angle[bus_of_node] = feeder.nominal_angle_deg
    assert np.array_equal(data.column("bus", "turn")[N - 1], angle)
    assert np.abs(data.column("bus", "Va")).max() < 20.0
    assert (data.column("bus", "vn_kv") == 1.0).all()
    row = data.column("bus", "row")[0]
    assert [int(row[bus]) for bus in range(data.n_buses)] == [
        int(np.flatnonzero(data.bus_of_row == bus)[0]) for bus in range(data.n_buses)
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_slack_node_is_a_reference_bus_with_a_source(name: str, written: Written) -> None:
    given, data = case(name), read_gridfm(written(name))
    slack = np.sort(data.bus_of_row[np.argsort(given.order)[given.feeder.slack]])
    assert np.array_equal(np.flatnonzero(data.column("bus", "REF")[0]), slack)
    assert np.array_equal(data.column("gen", "bus")[0], slack)
    assert np.array_equal(data.column("gen", "p_mw"), data.column("bus", "Pg")[:, slack])
    # The sources cover the demand and what the network dissipates.
    lost = data.column("gen", "p_mw").sum(axis=1) - data.column("bus", "Pd").sum(axis=1)
    assert (lost > 0.0).all()
    assert (lost < 0.2 * np.abs(given.load.real).sum(axis=1) * given.feeder.base_mva).all()


@pytest.mark.parametrize(("name", "merged"), [("ieee13", 3), ("ieee123", 22)])
def test_switches_are_one_bus_so_that_single_precision_still_sees_the_loads(
    name: str, merged: int, written: Written
) -> None:
    given, data = case(name), read_gridfm(written(name))
    assert len(given.order) - data.n_buses == merged
    drawn = np.abs(given.load.sum(axis=1)).max() * given.feeder.base_mva
    ends = (("pf", "qf"), ("pt", "qt"))
    for end in ends:
        assert np.hypot(*(data.column("branch", power) for power in end)).max() < 3 * drawn
    v, y = data.voltage().astype(np.complex64), sp.csr_array(data.admittance().astype(np.complex64))
    p, q = (data.column("bus", f"{power}g") - data.column("bus", f"{power}d") for power in "PQ")
    assert np.abs(100.0 * v * np.conj((y @ v.T).T) - (p + 1j * q)).max() < 0.1


def test_a_frame_can_be_left_again_and_the_solver_agrees_with_that_of_the_feeder() -> None:
    given = case("ieee123")
    nodes = network_of(given.feeder)
    angle = np.array([0.0, -120.0, 120.0, 30.0, -90.0, 150.0, -30.0, -150.0, 90.0])
    assert phases_of(angle).tolist() == [1, 2, 3, 1, 2, 3, 1, 2, 3]
    again = nodes.turned().as_phasors()
    assert abs(again.y - nodes.y).max() < 1e-13 * abs(nodes.y).max()
    assert np.abs(again.v_reference - nodes.v_reference).max() < 1e-15 * 4
    assert np.abs(nodes.solve(-given.load * given.feeder.base_mva) - given.v).max() < 1e-6


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


def test_a_pair_coupled_more_in_one_direction_becomes_two_parallel_branches(ieee13: Feeder) -> None:
    y = ieee13.y.toarray()
    i, j = (int(k[0]) for k in np.nonzero(np.triu(y, 1)))
    y[i, j] *= 1.7 - 0.4j
    feeder = dataclasses.replace(ieee13, y=sp.csc_array(y))
    tables, plain = network_of(feeder), network_of(ieee13)
    pair = (tables.branches.from_bus == i) & (tables.branches.to_bus == j)
    assert np.array_equal(np.sort(abs(tables.branches.shift_deg[pair])), [0.0, 90.0])
    assert len(tables.branches.r) == len(plain.branches.r) + 1
    branches, summed = tables.branches, np.diag(tables.shunt)
    ends = {"f": branches.from_bus, "t": branches.to_bus}
    for a, b in ("ff", "ft", "tf", "tt"):
        np.add.at(summed, (ends[a], ends[b]), getattr(branches, f"y{a}{b}"))
    expected = y * (feeder.base_mva / 100.0)
    assert np.allclose(summed, expected, rtol=0.0, atol=1e-12 * abs(expected).max())


def test_phase_shifts_of_transformers_are_found_with_a_positive_reactance() -> None:
    branches = network_of(case("multivoltage").feeder).branches
    shifted = abs(branches.shift_deg) > 1.0
    assert set(abs(branches.shift_deg[shifted]).round(9)) == {30.0, 150.0}
    assert (branches.x[shifted] > 0.0).all()


def test_regulators_get_their_taps_and_not_huge_shunts(ieee123: Feeder) -> None:
    tables = network_of(ieee123)
    taps = np.unique(np.maximum(tables.branches.tap, 1.0 / tables.branches.tap).round(5))
    declared = {round(tap.ratio, 5) for tap in ieee123.taps if tap.ratio != 1.0}
    assert declared <= set(taps)
    # The largest shunt left is a capacitor of 200 kvar per phase.
    assert abs(tables.shunt).max() == pytest.approx(0.2 / 100.0, rel=1e-4)


def test_lines_loads_and_names_of_the_feeder_do_not_reach_the_tables(ieee13: Feeder, tmp_path: Path) -> None:
    given = case("ieee13")
    changed = dataclasses.replace(
        ieee13,
        name="other",
        nodes=tuple(f"n{k}" for k in range(len(ieee13.nodes))),
        lines=(),
        taps=(),
        coordinates={},
        base_kv=2.0 * ieee13.base_kv,
        loads=tuple(dataclasses.replace(load, kw=2.0 * load.kw) for load in ieee13.loads),
    )
    for directory, feeder in (("a", ieee13), ("b", changed)):
        GridfmWriter(tmp_path / directory, feeder).write_block(0, *given.block(0))
    assert file_hashes(tmp_path / "a") == file_hashes(tmp_path / "b")


def test_bytes_do_not_depend_on_the_processes_or_the_order_of_blocks(
    written: Written, tmp_path: Path
) -> None:
    given = case("ieee13")
    assert len(list(written("ieee13").rglob("*.parquet"))) > len(TABLES)
    given.write(tmp_path / "reversed", reverse=True)
    writer = given.writer(tmp_path / "parallel")
    writer.network.solve(np.zeros((1, len(writer.network.loaded)), complex))  # a solver is not sent along
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(writer.write_block, first, *given.block(first), STEPS) for first in range(0, N, BLOCK)
        ]
        names = [name for job in jobs for name in job.result()]
    names += writer.write_index(N)
    expected = file_hashes(written("ieee13"))
    assert file_hashes(tmp_path / "reversed") == expected
    assert file_hashes(tmp_path / "parallel") == expected
    assert sorted(names) == list(expected)


def test_scenarios_are_in_the_partition_of_their_number_and_files_hold_their_columns_alone(
    written: Written,
) -> None:
    directory = written("ieee13")
    for table in TABLES:
        found = columns(directory, table)
        assert np.array_equal(found["scenario"] // 200, found["scenario_partition"])
        assert np.array_equal(found["scenario"][:, 0], np.arange(N))
        assert np.array_equal(found["load_scenario_idx"], found["scenario"] // STEPS)
        for path in (directory / f"{table}.parquet").rglob("from-*.parquet"):
            file = pq.ParquetFile(path)
            assert file.metadata.metadata is None
            assert {f.name: str(f.type) for f in file.schema_arrow} == dict(TABLES[table])


def test_one_partition_can_be_read_by_itself(written: Written) -> None:
    whole, last = read_gridfm(written("ieee13")), read_gridfm(written("ieee13"), partition=1)
    assert last.scenarios == range(200, N)
    for table in ("bus", "gen", "branch", "y_bus"):
        rows = getattr(whole, table).num_rows // N
        assert getattr(last, table).equals(getattr(whole, table).slice(200 * rows))
    with pytest.raises(CorpusError, match="there is no 2"):
        read_gridfm(written("ieee13"), partition=2)


def test_a_load_wrong_by_a_watt_shows_in_the_power_balance(written: Written) -> None:
    data = read_gridfm(written("ieee13"), partition=1)
    assert with_column(data, "bus", "Pd", 1e-6).mismatch_mw().max() > 0.9e-6
    assert with_column(data, "branch", "pt", 1e-6).mismatch_mw().max() > 0.9e-6


def test_tables_that_disagree_on_the_admittances_show(written: Written) -> None:
    data = read_gridfm(written("ieee13"), partition=1)
    assert data.admittance_error() < 1e-10
    # The second entry is off the diagonal, which gridfm-datakit does not look at.
    assert data.column("y_bus", "index1")[0, 1] != data.column("y_bus", "index2")[0, 1]
    assert with_column(data, "y_bus", "B", 1e-6, row=1).admittance_error() > 0.9e-6
    assert with_column(data, "bus", "BS", 1e-6).admittance_error() > 0.9e-6
    last = data.bus.num_rows - 1
    assert with_column(data, "bus", "BS", 1e-6, row=last).admittance_error() > 0.9e-6
    assert np.isnan(with_column(data, "bus", "BS", np.nan, row=last).admittance_error())


def with_entry(rows: pa.Table, name: str, change: float, row: int = 0) -> pa.Table:
    """A table with one entry of a column changed."""
    values = rows[name].to_numpy().copy()
    values[row] += change
    position = rows.column_names.index(name)
    return rows.set_column(position, rows.schema.field(position), pa.array(values))


def with_column(data: GridfmData, table: str, name: str, change: float, row: int = 0) -> GridfmData:
    return dataclasses.replace(data, **{table: with_entry(getattr(data, table), name, change, row)})


def test_reader_refuses_missing_and_repeated_scenarios_and_buses_that_are_not_there(
    written: Written, tmp_path: Path
) -> None:
    directory = tmp_path / "gridfm"
    shutil.copytree(written("ieee13"), directory)
    first = directory / "gen_data.parquet" / "scenario_partition=0" / "from-000000000.parquet"
    shutil.copy(first, first.with_name("from-000000001.parquet"))
    with pytest.raises(CorpusError, match=r"gen_data.parquet does not hold the scenarios 0 to 209 once each"):
        read_gridfm(directory)
    first.with_name("from-000000001.parquet").unlink()
    read_gridfm(directory)
    spoilt = first.parents[2] / "y_bus_data.parquet" / "scenario_partition=0" / first.name
    pq.write_table(with_entry(pq.ParquetFile(spoilt).read(), "index2", 1000), spoilt)
    with pytest.raises(CorpusError, match="must be numbered from 0"):
        read_gridfm(directory)
    first.unlink()
    with pytest.raises(CorpusError, match=r"gen_data.parquet does not hold"):
        read_gridfm(directory)
    (directory / "n_scenarios.txt").unlink()
    with pytest.raises(CorpusError, match=r"n_scenarios.txt is missing"):
        read_gridfm(directory)


def test_input_that_is_no_block_of_scenarios_is_refused(ieee13: Feeder, tmp_path: Path) -> None:
    writer = GridfmWriter(tmp_path, ieee13)
    load, _, v = case("ieee13").block(0)
    v = v.copy()
    v[3, 4] = np.nan
    with pytest.raises(CorpusError, match="is NaN or infinite"):
        writer.write_block(0, load, None, v)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CorpusError, match="at least one scenario"):
        writer.write_index(0)


def test_a_network_that_cannot_be_written_is_refused(ieee13: Feeder) -> None:
    with pytest.raises(CorpusError, match="permutation"):
        network_of(ieee13, np.zeros(len(ieee13.nodes), dtype=np.int64))
    alone = dataclasses.replace(ieee13, y=sp.csc_array(sp.diags_array(ieee13.y.diagonal())))
    with pytest.raises(CorpusError, match="no two nodes that are coupled"):
        _ = network_of(alone).branches


@pytest.fixture(scope="module")
def validate() -> Callable[[Path], tuple[int, str]]:
    return datakit_validate()


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_gridfm_datakit_accepts_the_tables(
    name: str, written: Written, validate: Callable[[Path], tuple[int, str]]
) -> None:
    directory = written(name)
    code, output = validate(directory)
    assert code == 0, output
    assert "All validation tests passed!" in output
    energised = read_gridfm(directory).n_buses - len(case(name).feeder.slack)
    assert f"validated 0 PV, {N * energised} PQ" in output
