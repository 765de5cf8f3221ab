"""Optimal dispatch as a derived release: placing, tables, counts, and the same bits for any workers."""

from __future__ import annotations

import functools
import json

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

import dp_powerflow as dpf
from dp_powerflow.corpus.gridfm.schema import schema_of
from dp_powerflow.errors import ConfigError
from dp_powerflow.lowlevel import Study
from dp_powerflow.page.charts import chart_data
from dp_powerflow.page.document import Figure
from dp_powerflow.studies.dispatch import DeclaredUnit, OptimalDispatch
from dp_powerflow.studies.study import Findings, sentences_of
from support.studies import drawn_study


@functools.cache
def small() -> Study:
    """IEEE 13 in the fixed frame: two days of six steps."""
    return drawn_study(dpf.open_feeder("ieee13"), level=0.7)


WIDE = OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.15, gridfm=True)


@functools.cache
def found() -> Findings:
    return WIDE.find(small(), workers=1)


def lists(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table.column(name).to_pylist(), dtype=np.float64)


def test_the_bits_do_not_depend_on_the_workers() -> None:
    one, two = found(), WIDE.find(small(), workers=2)
    assert list(one.tables) == list(two.tables)
    assert all(table.equals(two.tables[name]) for name, table in one.tables.items())
    assert one.figures == two.figures
    assert one.files == two.files


def test_every_snapshot_is_a_row_and_every_list_has_its_steps() -> None:
    study, tables = small(), found().tables
    snapshots = tables["snapshots.parquet"]
    assert snapshots.num_rows == study.days * study.steps
    assert set(snapshots.column("status").to_pylist()) == {"solved"}
    for folder, rows in (("dispatch", 8), ("voltages", 41), ("loads", 41), ("duals", 41)):
        table = tables[f"{folder}/part-00000.parquet"]
        assert table.num_rows == study.days * rows
        for name in table.schema.names[2:]:
            assert set(map(len, table.column(name).to_pylist())) == {study.steps}
    assert json.loads(json.dumps(found().figures)) == found().figures


def test_published_powers_balance_with_the_published_import() -> None:
    """Import is load less dispatch plus losses, and losses are small and not negative."""
    tables = found().tables
    snapshots = tables["snapshots.parquet"]
    drawn = lists(tables["loads/part-00000.parquet"], "p_kw").reshape(2, -1, 6).sum(axis=1).ravel()
    given = lists(tables["dispatch/part-00000.parquet"], "p_kw").reshape(2, -1, 6).sum(axis=1).ravel()
    imported = snapshots.column("import_kw").to_numpy()
    losses = imported - (drawn - given)
    assert (losses > 0.0).all()
    assert (losses < 0.06 * drawn).all()
    np.testing.assert_allclose(given, snapshots.column("units_kw").to_numpy(), atol=0.01)
    linear, checked = (snapshots.column(name).to_numpy() for name in ("linear_cost_per_h", "cost_per_h"))
    np.testing.assert_allclose(linear, checked, rtol=1e-3)
    assert (checked < snapshots.column("cost_without_units_per_h").to_numpy()).all()


def test_voltages_beyond_limits_are_counted_by_size() -> None:
    """A limit that no dispatch can keep: nothing is hidden."""
    kind = OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.0)
    result = kind.find(small(), workers=1)
    total = small().days * small().steps
    assert result.figures["by_status"] == {"infeasible": total}
    assert result.figures["snapshots_beyond_voltage"]["0.01"] == total
    assert any(
        f"{total} snapshots have no dispatch" in text for text in sentences_of(kind, result.figures, 2)
    )
    table = result.tables["snapshots.parquet"]
    assert table.num_rows == total
    assert min(table.column("voltages_beyond").to_pylist()) > 0
    worst = table.column("worst_voltage_pu").to_numpy()
    np.testing.assert_allclose(worst, table.column("vm_max_pu").to_numpy() - 1.0, atol=2e-6)
    dispatch = result.tables["dispatch/part-00000.parquet"]
    assert dispatch.column("p_kw").to_pylist()[0] == [None] * small().steps


def test_a_dispatch_that_breaks_a_limit_in_ac_power_flow_is_counted() -> None:
    """Without correction the linear voltages err: some snapshot passes a limit that binds in the program."""
    study = drawn_study(dpf.open_feeder("ieee13"), level=0.7)
    kind = OptimalDispatch(unit_share=1.0, unit_size=2.5, v_min_pu=0.85, v_max_pu=1.06, corrections=0)
    result = kind.find(study, workers=1)
    counted = result.figures["snapshots_beyond_voltage"]["0"]
    table = result.tables["snapshots.parquet"]
    solved = np.array(table.column("status").to_pylist()) == "solved"
    assert solved.any()
    beyond = np.array(table.column("voltages_beyond").to_pylist()) > 0
    assert (solved & beyond).any()
    assert counted == beyond.sum()
    assert any(
        f"{counted:,} snapshots have a voltage beyond" in text
        for text in sentences_of(kind, result.figures, 2)
    )


def test_days_and_steps_can_be_chosen() -> None:
    kind = OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.15, days=1, every=3)
    table = kind.find(small(), workers=1).tables["snapshots.parquet"]
    assert table.column("day").to_pylist() == [0, 0]
    assert table.column("step").to_pylist() == [0, 3]
    whole = found().tables["snapshots.parquet"].take([0, 3])
    assert table.column("cost_per_h").to_pylist() == whole.column("cost_per_h").to_pylist()


def test_units_stand_where_they_are_declared() -> None:
    study = small()
    kind = OptimalDispatch(
        units=(
            DeclaredUnit(node="n003", kw=30.0),
            DeclaredUnit(bus="671", phases=(1, 3), kw=60.0, kva=80.0, kw_min=-20.0),
            DeclaredUnit(bus="675", kw=90.0, sun=True),
        ),
        v_min_pu=0.85,
        v_max_pu=1.15,
        price_per_kwh=(0.05, 0.05, 0.05, 0.2, 0.2, 0.2),
    )
    result = kind.find(study, workers=1)
    units = result.tables["units.parquet"].to_pylist()
    assert units[0]["nodes"] == ["n003"]
    assert len(units[1]["nodes"]) == 2
    assert len(units[2]["nodes"]) == 3
    p = lists(result.tables["dispatch/part-00000.parquet"], "p_kw").reshape(2, 3, 6)
    assert (p[:, 0, :3] < 1.0).all()
    assert (p[:, 0, 3:] > 29.0).all()
    assert p[:, 1].min() < -15.0
    irradiance = study.irradiance
    assert irradiance is not None
    assert (p[:, 2] <= 90.0 * irradiance + 0.001).all()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OptimalDispatch(units=(DeclaredUnit(node="x", kw=1.0),)), "no released node 'x'"),
        (OptimalDispatch(units=(DeclaredUnit(bus="x", kw=1.0),)), "no bus 'x'"),
        (OptimalDispatch(units=(DeclaredUnit(bus="645", phases=(1,), kw=1.0),)), "lacks a phase"),
        (OptimalDispatch(price_per_kwh=(0.1, 0.2)), "2 figures"),
        (OptimalDispatch(ampacities_a={"nothing": 10.0}), "no branch is called 'nothing'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind: OptimalDispatch, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind.check(small())


def test_impossible_settings_are_refused_when_made() -> None:
    for settings in (
        {"v_min_pu": 1.1},
        {"price_per_kwh": ()},
        {"nonsense": 1},
        {"units": ({"kw": 1.0},)},
    ):
        with pytest.raises(ValidationError):
            OptimalDispatch.model_validate(settings)


def test_gridfm_tables_balance_and_have_the_units_as_generators() -> None:
    study, tables = small(), found().tables
    name = "gridfm/{}.parquet/scenario_partition=0/from-000000000.parquet"
    bus, gen, y_bus = (tables[name.format(table)] for table in ("bus_data", "gen_data", "y_bus_data"))
    assert all(
        tables[name.format(table)].schema.equals(schema_of(table)) for table in ("bus_data", "gen_data")
    )
    count = study.days * study.steps
    v = (bus.column("Vm").to_numpy() * np.exp(1j * np.deg2rad(bus.column("Va").to_numpy()))).reshape(
        count, -1
    )
    net = {k: bus.column(k).to_numpy().reshape(count, -1) for k in ("Pd", "Qd", "Pg", "Qg")}
    size, rows = v.shape[1], y_bus.num_rows // count
    index = [y_bus.column(k).to_numpy()[:rows] for k in ("index1", "index2")]
    y = np.zeros((size, size), dtype=np.complex128)
    y[index[0], index[1]] = y_bus.column("G").to_numpy()[:rows] + 1j * y_bus.column("B").to_numpy()[:rows]
    injected = 100.0 * v * np.conj(v @ y.T)
    wanted = (net["Pg"] - net["Pd"]) + 1j * (net["Qg"] - net["Qd"])
    assert np.abs(injected - wanted).max() < 1e-5
    per_bus = np.zeros((count, size))
    np.add.at(
        per_bus,
        (np.arange(count)[:, None], gen.column("bus").to_numpy().reshape(count, -1)),
        gen.column("p_mw").to_numpy().reshape(count, -1),
    )
    np.testing.assert_allclose(per_bus, net["Pg"], atol=1e-9)
    units = gen.filter(pa.compute.equal(gen.column("is_slack_gen"), 0))
    assert (units.column("p_mw").to_numpy() <= units.column("max_p_mw").to_numpy() + 1e-6).all()
    assert b"mode: opf" in found().files["gridfm/args.log"]
    assert found().files["gridfm/n_scenarios.txt"] == str(count).encode()


@pytest.mark.slow
def test_the_feeder_as_operated_is_dispatched_with_its_controls() -> None:
    study = drawn_study(dpf.open_feeder("ieee123"), days=1, operated=True)
    kind = OptimalDispatch(ampacity_a=500.0, unit_share=0.3)
    result = kind.find(study, workers=1)
    assert result.figures["by_status"] == {"solved": 6}
    assert result.figures["largest_cost_error_percent"] < 1.0
    flows = result.tables["flows/part-00000.parquet"]
    assert flows.num_rows == result.tables["branches.parquet"].num_rows > 200
    with pytest.raises(ConfigError, match="one network for all snapshots"):
        OptimalDispatch(gridfm=True).check(study)


def test_the_page_has_charts_that_are_plain_data() -> None:
    items = found().items
    assert [item.id for item in items if isinstance(item, Figure)] == ["cost", "dispatch", "voltages"]
    for item in items:
        assert isinstance(item, Figure)
        json.dumps(item.chart, default=chart_data, allow_nan=False)
