"""The gridfm-datakit layout: what is written is the network and its power flow; the real validator agrees."""

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
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dp_powerflow.corpus.gridfm.network import NodeFacts, network_of
from dp_powerflow.corpus.gridfm.schema import TABLES, GridfmStyle
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
PHASORS, TURNED, DEFAULT = GridfmStyle(turned=False, merged=False), GridfmStyle(merged=False), GridfmStyle()


@dataclass(frozen=True, eq=False)
class Case:
    feeder: Feeder
    load: ComplexArray
    generation: ComplexArray | None
    v: ComplexArray
    order: IntArray

    def facts(self) -> NodeFacts:
        return NodeFacts(order=self.order, released=len(self.order) // 2)

    def write(self, directory: Path, style: GridfmStyle, *, reverse: bool = False) -> GridfmWriter:
        writer = GridfmWriter(directory, self.feeder, facts=self.facts(), style=style)
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


class Written(Protocol):
    def __call__(self, name: str, style: GridfmStyle = PHASORS) -> Path: ...


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    @functools.cache
    def get(name: str, style: GridfmStyle = PHASORS) -> Path:
        directory = tmp_path_factory.mktemp(name) / "gridfm"
        case(name).write(directory, style)
        return directory

    return get


def columns(directory: Path, table: str) -> dict[str, np.ndarray]:
    """Columns as any Hive-aware reader sees them, (scenario, row)."""
    dataset = ds.dataset(directory / f"{table}.parquet", partitioning="hive")
    rows = dataset.to_table().sort_by("scenario")
    return {name: rows[name].to_numpy().reshape(N, -1) for name in rows.column_names}


def both(table: dict[str, np.ndarray], real: str, imaginary: str) -> np.ndarray:
    return table[real] + 1j * table[imaginary]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_branches_and_shunts_add_up_to_the_admittances_of_the_feeder(name: str, written: Written) -> None:
    bus, branch, y_bus = (columns(written(name), t) for t in ("bus_data", "branch_data", "y_bus_data"))
    feeder, order = case(name).feeder, case(name).order
    n = len(order)
    expected = feeder.y.toarray()[np.ix_(order, order)] * (feeder.base_mva / 100.0)
    for scenario in (0, N - 1):
        summed = np.diag(both(bus, "GS", "BS")[scenario])
        i, j = branch["from_bus"][scenario], branch["to_bus"][scenario]
        for rows, cols, key in ((i, i, "Yff"), (i, j, "Yft"), (j, i, "Ytf"), (j, j, "Ytt")):
            np.add.at(summed, (rows, cols), both(branch, f"{key}_r", f"{key}_i")[scenario])
        listed = np.zeros((n, n), dtype=complex)
        listed[y_bus["index1"][scenario], y_bus["index2"][scenario]] = both(y_bus, "G", "B")[scenario]
        assert np.allclose(listed, expected, rtol=1e-15, atol=0.0)
        assert np.allclose(summed, expected, rtol=0.0, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_branch_parameters_give_the_two_port_admittances(name: str, written: Written) -> None:
    branch = columns(written(name), "branch_data")
    series = 1.0 / (branch["r"] + 1j * branch["x"])
    charging = 0.5j * branch["b"]
    t = branch["tap"] * np.exp(1j * np.deg2rad(branch["shift"]))
    expected = {
        "Yff": (series + charging) / abs(t) ** 2,
        "Yft": -series / np.conj(t),
        "Ytf": -series / t,
        "Ytt": series + charging,
    }
    for key, value in expected.items():
        assert abs(both(branch, f"{key}_r", f"{key}_i") - value).max() < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_power_balances_in_the_written_tables(name: str, written: Written) -> None:
    bus, branch = columns(written(name), "bus_data"), columns(written(name), "branch_data")
    v = bus["Vm"] * np.exp(1j * np.deg2rad(bus["Va"]))
    left = both(bus, "Pg", "Qg") - both(bus, "Pd", "Qd")
    left = left - 100.0 * abs(v) ** 2 * np.conj(both(bus, "GS", "BS"))
    for scenario in range(N):
        np.subtract.at(left[scenario], branch["from_bus"][scenario], both(branch, "pf", "qf")[scenario])
        np.subtract.at(left[scenario], branch["to_bus"][scenario], both(branch, "pt", "qt")[scenario])
    assert abs(left).max() < 1e-6
    assert read_gridfm(written(name)).mismatch_mw().max() < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_loads_generation_and_voltages_come_back(name: str, written: Written) -> None:
    given, data = case(name), read_gridfm(written(name))
    feeder, bus_of_node = given.feeder, np.argsort(given.order)
    static = data.column("bus", "Psgen") + 1j * data.column("bus", "Qsgen")
    net = data.column("bus", "Pd") + 1j * data.column("bus", "Qd")
    generation = 0.0 if given.generation is None else given.generation
    retained = bus_of_node[feeder.retained]
    assert np.allclose((net + static)[:, retained], given.load * feeder.base_mva, rtol=0.0, atol=1e-14)
    assert np.array_equal(
        static[:, retained], np.broadcast_to(generation * feeder.base_mva, given.load.shape)
    )
    others = np.setdiff1d(np.arange(len(feeder.nodes)), retained)
    assert not net[:, others].any()
    assert np.allclose(data.phasor(), given.v[:, given.order], rtol=0.0, atol=1e-14)
    assert abs(data.admittance(N - 1) - network_of(feeder, given.facts()).y).max() == 0.0


@pytest.mark.parametrize("name", CASES)
def test_every_slack_node_is_a_reference_bus_with_a_source(name: str, written: Written) -> None:
    given, data = case(name), read_gridfm(written(name))
    slack = np.sort(np.argsort(given.order)[given.feeder.slack])
    assert np.array_equal(np.flatnonzero(data.column("bus", "REF")[0]), slack)
    assert np.array_equal(data.column("gen", "bus")[0], slack)
    assert (data.column("bus", "PQ") + data.column("bus", "REF") == 1).all()
    assert np.array_equal(data.column("gen", "p_mw"), data.column("bus", "Pg")[:, slack])
    # The sources cover the demand and what the network dissipates.
    lost = data.column("gen", "p_mw").sum(axis=1) - data.column("bus", "Pd").sum(axis=1)
    assert (lost > 0.0).all()
    assert (lost < 0.2 * np.abs(given.load.real).sum(axis=1) * given.feeder.base_mva).all()


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


def test_phase_shifts_of_transformers_are_found_with_a_positive_reactance(
    written: Written,
) -> None:
    branch = columns(written("multivoltage"), "branch_data")
    shifted = abs(branch["shift"][0]) > 1.0
    assert set(abs(branch["shift"][0][shifted]).round(9)) == {30.0, 150.0}
    assert (branch["x"][0][shifted] > 0.0).all()


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


def test_base_voltages_are_written_only_when_given(ieee13: Feeder, tmp_path: Path) -> None:
    given = case("ieee13")
    for directory, vn_kv in (("without", None), ("with", ieee13.base_kv)):
        facts = NodeFacts(order=given.order, vn_kv=vn_kv)
        writer = GridfmWriter(tmp_path / directory, ieee13, facts=facts, style=PHASORS)
        writer.write_block(0, *given.block(0))
        writer.write_index(BLOCK)
    assert (read_gridfm(tmp_path / "without").column("bus", "vn_kv") == 1.0).all()
    assert np.array_equal(
        read_gridfm(tmp_path / "with").column("bus", "vn_kv")[0], ieee13.base_kv[given.order]
    )


def test_bytes_do_not_depend_on_the_processes_or_the_order_of_blocks(
    written: Written, tmp_path: Path
) -> None:
    given = case("ieee13")
    assert len(list(written("ieee13").rglob("*.parquet"))) > len(TABLES)
    given.write(tmp_path / "reversed", DEFAULT, reverse=True)
    writer = GridfmWriter(tmp_path / "parallel", given.feeder, facts=given.facts())
    writer.network.solve(np.zeros((1, len(writer.network.loaded)), complex))  # a solver is not sent along
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(writer.write_block, first, *given.block(first), STEPS) for first in range(0, N, BLOCK)
        ]
        names = [name for job in jobs for name in job.result()]
    names += writer.write_index(N)
    expected = file_hashes(written("ieee13", DEFAULT))
    assert file_hashes(tmp_path / "reversed") == expected
    assert file_hashes(tmp_path / "parallel") == expected
    assert sorted(names) == list(expected)


def test_scenarios_are_in_the_partition_of_their_number(written: Written) -> None:
    for table in TABLES:
        found = columns(written("ieee123"), table)
        assert np.array_equal(found["scenario"] // 200, found["scenario_partition"])
        assert np.array_equal(found["scenario"][:, 0], np.arange(N))
        assert np.array_equal(found["load_scenario_idx"], found["scenario"] // STEPS)


def test_files_have_no_metadata_but_their_columns(written: Written) -> None:
    for path in written("ieee13").rglob("from-*.parquet"):
        file = pq.ParquetFile(path)
        assert file.metadata.metadata is None
        table = path.relative_to(written("ieee13")).parts[0].removesuffix(".parquet")
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


def with_column(data: GridfmData, table: str, name: str, change: float, row: int = 0) -> GridfmData:
    """The data with one entry of a column changed."""
    rows = getattr(data, table)
    values = rows[name].to_numpy().copy()
    values[row] += change
    position = rows.column_names.index(name)
    return dataclasses.replace(
        data, **{table: rows.set_column(position, rows.schema.field(position), pa.array(values))}
    )


def test_reader_refuses_missing_and_repeated_scenarios(written: Written, tmp_path: Path) -> None:
    directory = tmp_path / "gridfm"
    shutil.copytree(written("ieee13"), directory)
    first = directory / "gen_data.parquet" / "scenario_partition=0" / "from-000000000.parquet"
    shutil.copy(first, first.with_name("from-000000001.parquet"))
    with pytest.raises(CorpusError, match=r"gen_data.parquet does not hold the scenarios 0 to 209 once each"):
        read_gridfm(directory)
    first.with_name("from-000000001.parquet").unlink()
    read_gridfm(directory)
    first.unlink()
    with pytest.raises(CorpusError, match=r"gen_data.parquet does not hold"):
        read_gridfm(directory)
    (directory / "n_scenarios.txt").unlink()
    with pytest.raises(CorpusError, match=r"n_scenarios.txt is missing"):
        read_gridfm(directory)


@pytest.mark.parametrize(
    ("table", "column"), [("bus_data", "bus"), ("gen_data", "bus"), ("y_bus_data", "index2")]
)
def test_reader_refuses_buses_that_are_not_there(
    table: str, column: str, written: Written, tmp_path: Path
) -> None:
    directory = tmp_path / "gridfm"
    shutil.copytree(written("ieee13"), directory)
    spoil(directory, table, column, 1000)
    with pytest.raises(CorpusError, match="must be numbered from 0"):
        read_gridfm(directory)


def spoil(directory: Path, table: str, column: str, change: float) -> None:
    """Change the first entry of a column on disk."""
    path = directory / f"{table}.parquet" / "scenario_partition=0" / "from-000000000.parquet"
    rows = pq.ParquetFile(path).read()
    values = rows[column].to_numpy().copy()
    values[0] += change
    pq.write_table(rows.set_column(rows.column_names.index(column), column, pa.array(values)), path)


def test_input_that_is_no_block_of_scenarios_is_refused(ieee13: Feeder, tmp_path: Path) -> None:
    writer = GridfmWriter(tmp_path, ieee13)
    load, _, v = case("ieee13").block(0)
    holed = v.copy()
    holed[3, 4] = np.nan
    for arguments, message in (
        ((-1, load, None, v), "numbered from 0"),
        ((0, load[:, :-1], None, v), "load has shape"),
        ((0, load, load[:-1], v), "generation has shape"),
        ((0, load, None, v[:, 3:]), "v has shape"),
        ((0, load[:0], None, v[:0]), "at least 1"),
        ((0, load, None, holed), "v holds NaN"),
    ):
        with pytest.raises(CorpusError, match=message):
            writer.write_block(*arguments)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CorpusError, match="at least one scenario"):
        writer.write_index(0)


def test_a_network_that_cannot_be_written_is_refused(ieee13: Feeder) -> None:
    n = len(ieee13.nodes)
    for facts, message in (
        (NodeFacts(order=np.zeros(n, dtype=np.int64)), "permutation"),
        (NodeFacts(vn_kv=np.zeros(n)), "positive base voltage"),
    ):
        with pytest.raises(CorpusError, match=message):
            network_of(ieee13, facts)
    alone = dataclasses.replace(ieee13, y=sp.csc_array(sp.diags_array(ieee13.y.diagonal())))
    with pytest.raises(CorpusError, match="no two nodes that are coupled"):
        _ = network_of(alone).branches


@pytest.fixture(scope="module")
def validate() -> Callable[[Path], tuple[int, str]]:
    return datakit_validate()


@pytest.mark.campaign
@pytest.mark.parametrize("style", [PHASORS, DEFAULT], ids=["phasors", "turned and merged"])
@pytest.mark.parametrize("name", CASES)
def test_gridfm_datakit_accepts_the_tables(
    name: str, style: GridfmStyle, written: Written, validate: Callable[[Path], tuple[int, str]]
) -> None:
    directory = written(name, style)
    code, output = validate(directory)
    assert code == 0, output
    assert "All validation tests passed!" in output
    energised = read_gridfm(directory).n_buses - len(case(name).feeder.slack)
    assert f"validated 0 PV, {N * energised} PQ" in output


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("table", "column", "change", "message"),
    [
        ("branch_data", "x", 1e-6, "Admittance calculations"),
        ("bus_data", "GS", 1e-4, "Y-bus diagonal"),
        ("bus_data", "Pd", 0.1, "Power balance"),
        ("gen_data", "p_mw", 0.1, "Bus generation consistency"),
    ],
)
def test_gridfm_datakit_refuses_a_planted_error(
    table: str,
    column: str,
    change: float,
    message: str,
    written: Written,
    validate: Callable[[Path], tuple[int, str]],
    tmp_path: Path,
) -> None:
    directory = tmp_path / "gridfm"
    shutil.copytree(written("ieee13"), directory)
    spoil(directory, table, column, change)
    code, output = validate(directory)
    assert code == 1
    assert f"ERROR: Validation failed: {message}" in output
