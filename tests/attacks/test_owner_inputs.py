"""What an owner gives: ids in two spellings, files that are more than data, readings, customers, bounds."""

from __future__ import annotations

import csv
import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow import Feeder, Ledger, LoadHistory, PrivateState
from dp_powerflow._certify import certify_config
from dp_powerflow._names import alike
from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError, LoadDataError
from dp_powerflow.fleet.feeders import find_sources
from dp_powerflow.fleet.run import read_feeder_map, run_fleet
from dp_powerflow.grid.sources import open_feeder, read_loads
from dp_powerflow.loads.declared import MeterFormat, ServiceMap, read_service_map
from dp_powerflow.loads.ingest import read_long, read_wide
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model import sample
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.pipeline import release as pipeline
from dp_powerflow.pipeline.customers import CustomerPlan, customer_plan, declared_classes, declared_factors
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.fleet_small import KEYS, fleet_config, on_twins, write_feeders, write_meters
from support.here import Here
from support.own_config import CIRCUIT, with_keys, write_own
from support.own_meters import OwnMeters
from support.small import small_config, tree_hash

FMT = MeterFormat("kW", "start", "UTC", step_minutes=60)
SPELLINGS = ("P0", "p0\u200b", "\uff500")  # capital, zero-width space, full-width letter
BLANKS = ("p0 ", " p0", "\tp0", "p0\u00a0")


def meters(path: Path, names: tuple[str, ...]) -> Path:
    """One day of hourly readings of each customer, in a long file."""
    rows = [f"{name},{stamp},1.5" for name in names for stamp in _stamps()]
    path.write_text("\n".join(["customer,time,kwh", *rows]) + "\n")
    return path


@pytest.mark.parametrize("other", [*BLANKS, *SPELLINGS])
def test_a_load_point_is_not_on_two_feeders_under_two_spellings(tmp_path: Path, other: str) -> None:
    path = tmp_path / "services.csv"
    path.write_text(f"customer,load_point,feeder\na,p0,x\nb,{other},y\n")
    with pytest.raises(LoadDataError, match=r"second feeder|differ from another only") as refused:
        read_feeder_map(path)
    assert "p0" not in str(refused.value)


@pytest.mark.parametrize("other", [*BLANKS, *SPELLINGS])
@pytest.mark.parametrize("column", ["customer", "load_point"])
def test_a_service_map_has_one_spelling_of_every_id(tmp_path: Path, column: str, other: str) -> None:
    path = tmp_path / "services.csv"
    rows = f"p0,s1\n{other},s2" if column == "customer" else f"a,p0\nb,{other}"
    path.write_text(f"customer,load_point\n{rows}\n")
    if column == "load_point" and other in BLANKS:
        assert read_service_map(path).load_points == ("p0",)  # one service with two customers
        return
    with pytest.raises(LoadDataError, match=r"repeats a customer|differ from another only"):
        read_service_map(path)


def test_blanks_around_any_cell_of_a_map_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    head = "customer,load_point,node,class,scale_kw,feeder"
    path.write_text(f"{head}\n a , p0 , n1 , homes , 3 , x \nb,p0,,,,x\n")
    services = read_service_map(path)
    assert (services.load_point_of, services.node_of) == ({"a": "p0", "b": "p0"}, {"p0": "n1"})
    assert (services.class_of, services.scale_kw_of) == ({"p0": "homes"}, {"p0": 3.0})
    assert read_feeder_map(path) == {"x": ("p0",)}


def test_a_map_made_in_memory_is_held_to_the_same_rule() -> None:
    for ids in ({"a": "p0", "b": "p0 "}, {"a": "p0", "b": "P0"}, {"p0": "s", "P0": "t"}, {"a ": "p0"}):
        with pytest.raises(LoadDataError, match="blanks"):
            ServiceMap(ids)
    none, day = (None,) * 2, dt.date(2024, 1, 1)
    with pytest.raises(LoadDataError, match="differ from another only"):
        LoadHistory(np.ones((2, 1, 24)), None, ("p0", "P0"), (day,), 60, none, none, None)


def test_a_long_file_has_one_record_of_a_customer_whatever_its_blanks(tmp_path: Path) -> None:
    """Formerly two records, or a customer that the service map lists and the reader did not find."""
    path = meters(tmp_path / "meters.csv", ("p0 ", "q"))
    assert read_long(path, FMT).history.load_points == ("p0", "q")
    services = ServiceMap({"p0": "s0"})
    assert read_long(path, FMT, services=services).history.load_points == ("s0",)
    table = pa.table({"customer": ["p0 "] * 24, "time": _stamps(), "kwh": [1.0] * 24})
    pq.write_table(table, tmp_path / "meters.parquet")
    assert read_long(tmp_path / "meters.parquet", FMT).history.load_points == ("p0",)


@pytest.mark.parametrize("other", SPELLINGS)
def test_a_meter_file_with_two_spellings_of_a_customer_is_refused(tmp_path: Path, other: str) -> None:
    path = meters(tmp_path / "meters.csv", ("p0", other))
    for services in (None, ServiceMap({"p0": "s0"})):
        with pytest.raises(LoadDataError, match="differ from another only"):
            read_long(path, FMT, services=services)
    lines = [f"{stamp},1,2" for stamp in _stamps()]
    path.write_text("\n".join([f"time,p0,{other}", *lines]) + "\n")
    for services in (None, ServiceMap({"p0": "s0"})):
        with pytest.raises(LoadDataError, match="differ from another only"):
            read_wide(path, FMT, services=services)


def test_a_wide_file_with_a_customer_twice_but_for_blanks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meters.csv"
    path.write_text("\n".join(["time,p0,p0 ", *(f"{stamp},1,2" for stamp in _stamps())]) + "\n")
    with pytest.raises(LoadDataError, match="name a customer a second time"):
        read_wide(path, FMT)
    path.write_text("\n".join(["time, p0 ", *(f"{stamp},1" for stamp in _stamps())]) + "\n")
    assert read_wide(path, FMT).history.load_points == ("p0",)


def test_feeders_of_a_fleet_have_names_that_tell_them_apart(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    source = tmp_path / "feeders" / "alder-lane.dss"
    (tmp_path / "feeders" / "Alder-Lane.dss").write_text(source.read_text())
    with pytest.raises(ConfigError, match="differ only in blanks or case"):
        find_sources(fleet_config(tmp_path))


def test_names_that_differ_in_what_is_seen_are_not_alike() -> None:
    assert alike(["p1", "p01", "p 1", "p-1"]) == 0
    assert alike(["p1", "P1 ", "p\u200b1", "q"]) == 3


def _stamps() -> list[str]:
    return [(dt.datetime(2024, 1, 1) + dt.timedelta(hours=h)).isoformat() for h in range(24)]


def test_no_power_factor_is_so_small_that_it_turns_into_none() -> None:
    """tan θ of 5e-324 is infinite, and was taken for a load without a factor of its own."""
    for factor in (5e-324, -1e-200, 1e-3):
        of_load = {"nodes": {"power_factor_of_load": {"671": factor}}}
        for section in ({"model": {"power_factor": factor}}, of_load):
            with pytest.raises(ConfigError, match="power factor of 0, or less than"):
                small_config(Path(), **section)
    assert np.isfinite(tan_theta_of(-0.01))


def test_a_load_under_two_spellings_is_refused() -> None:
    feeder = open_feeder("ieee13")
    nodes = feeder.loaded_nodes()[0]
    config = small_config(Path(), nodes={"power_factor_of_load": {"634A": 0.9, "634a": 0.8}})
    with pytest.raises(ConfigError, match="power_factor_of_load names a load twice"):
        declared_factors(config, feeder, nodes)
    config = small_config(Path(), nodes={"class_of_load": {"634A": "residential", "634a": "commercial"}})
    with pytest.raises(ConfigError, match="class_of_load names a load twice"):
        declared_classes(config, feeder, nodes, "residential")


def test_the_sun_of_two_systems_exchanged_is_another_request(tmp_path: Path) -> None:
    """The same path, the same figures, in other columns: a release that was begun is not taken up with it."""
    write_own(tmp_path)
    shed = "New PVSystem.shed bus1=a.1 phases=1 kv=7.2 kva=20 pmpp=15 irradiance=1\n"
    (tmp_path / "net.dss").write_text(CIRCUIT.replace("Set VoltageBases", shed + "Set VoltageBases"))
    raw = with_keys(pv={"irradiance": "sun.csv", "volt_var": "none"}, network={"require_evidence": False})
    config = parse_config(raw, base=tmp_path)
    rows = [f"0.{k},0.{9 - k}" for k in range(6)]
    asked = []
    one, other = "roof,shed", "shed,roof"
    for header, lines in ((one, rows), (other, rows), (one, rows * 2), (other, rows)):
        (tmp_path / "sun.csv").write_text("\n".join([header, *lines]))
        asked.append(plan(config).plan.request_sha256)
    assert len(set(asked)) == 3
    assert asked[1] == asked[3]
    single = config.model_copy(update={"pv": None})
    assert plan(single).plan.request_sha256 not in asked


TWIN: dict[str, Any] = {"mode": "twin-network", "id": "t1", "epsilon": 8.0}
FIRST = dt.date(2024, 3, 4)


def nothing_spent(folder: Path) -> bool:
    return not (folder / "state" / "ledger.sqlite").exists()


def state_of(folder: Path) -> PrivateState:
    return PrivateState.open(folder / "state", insecure_seed=7)


# ------------------------------------------------------------------------------------------- load tables


def with_table(folder: Path, feeder: Feeder, customers: list[int], **release: Any) -> Config:
    rows = [f"{load.name},{load.kw},{load.kvar},{n}" for load, n in zip(feeder.loads, customers, strict=True)]
    (folder / "loads.csv").write_text("\n".join(["name,kw,kvar,customers", *rows]) + "\n")
    return small_config(folder, feeder={"loads": "loads.csv"}, network=TWIN, release=release)


def test_loads_without_customers_are_released_in_the_parts_of_the_corpus(
    tmp_path: Path, ieee13: Feeder
) -> None:
    """The parts of a corpus are laid out before it is known which loads have customers."""
    customers = [3 * (k % 2) for k in range(len(ieee13.loads))]
    days = sample.days_per_block(len(ieee13.loads)) + 4
    run_release(with_table(tmp_path, ieee13, customers, days=days), workers=1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["data"]["parts"] == 2
    assert verify_release(tmp_path / "out").intact


def test_other_customers_in_the_load_table_are_another_request(tmp_path: Path, ieee13: Feeder) -> None:
    """Under one release id parts of two counts would be mixed: a file that changes is refused."""
    found = []
    for count in (3, 4):
        config = with_table(tmp_path, ieee13, [count] * len(ieee13.loads), days=2)
        found.append(read_inputs(config, state_of(tmp_path)).identity)
    assert found[0] != found[1]


def test_a_number_of_customers_too_long_to_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(f"name,kw,kvar,customers\none,1,0,{'9' * 5000}\n")
    with pytest.raises(FeederError, match="whole number"):
        read_loads(tmp_path / "loads.csv")


# -------------------------------------------------------------------------------------------- readings


def shapes(folder: Path, feeder: Feeder, holes: int) -> Config:
    (folder / "shapes").mkdir()
    rng = np.random.default_rng(3)
    for k, load in enumerate(feeder.loads):
        values = 0.3 * np.exp(0.3 * rng.standard_normal(24 * 6))
        if k < holes:
            values[10:100] = np.nan
        (folder / "shapes" / f"loadshape_{load.name}.csv").write_text("\n".join(map(str, values)) + "\n")
    raw = small_config(folder, network=TWIN, release={"days": 2}).model_dump()
    own = {"kind": "opendss-shapes", "path": "shapes", "first_day": FIRST, "step_minutes": 60}
    raw |= {"loads": {**own, "most_placeholders": 0.2}, "nodes": {"kw_per_customer": 10.0}}
    return parse_config(raw, base=folder)


def test_a_load_shape_with_gaps_changes_neither_the_records_nor_the_customers(
    tmp_path: Path, ieee13: Feeder
) -> None:
    """Both are published, as declared: which meters are complete must not decide them."""
    services = []
    for holes in (0, 1):
        folder = tmp_path / str(holes)
        folder.mkdir()
        inputs = read_inputs(shapes(folder, ieee13, holes), state_of(folder))
        services.append((inputs.services.node_of, inputs.readings.n_load_points))
        assert inputs.ingest is not None
        assert inputs.ingest.n_rejected == holes
    assert services[0] == services[1]


def test_load_shapes_obey_the_declared_share_of_placeholders(tmp_path: Path, ieee13: Feeder) -> None:
    config = shapes(tmp_path, ieee13, len(ieee13.loads) // 2)
    with pytest.raises(LoadDataError, match="most_placeholders"):
        plan(config)
    assert nothing_spent(tmp_path)


def garbage(meters: OwnMeters, kind: str) -> None:
    own = meters.readings[3]
    own[...] = {"gone": np.nan, "negative": -0.2, "larger": own * 7.0, "zero": 0.0}[kind]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pipeline.ReleaseResult]:
    folder = tmp_path_factory.mktemp("own")
    return folder, run_release(OwnMeters().config(folder), workers=1)


@pytest.mark.parametrize("kind", ["gone", "negative", "larger", "zero"])
def test_readings_of_one_customer_reach_a_release_through_the_model_alone(
    own: tuple[Path, pipeline.ReleaseResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two neighbouring meter files and one model: every released byte is the same."""
    meters, (folder, released) = OwnMeters(), own
    garbage(meters, kind)
    monkeypatch.setattr(pipeline, "fitted_model", lambda *_: released.model)
    run_release(meters.config(tmp_path), workers=1)
    assert tree_hash(folder / "out") == tree_hash(tmp_path / "out")


# --------------------------------------------------------------------------------------------- physics


@pytest.mark.parametrize("upper", [1e13, 1e15])
def test_bounds_that_no_scaling_down_ends_are_refused_before_anything_is_spent(
    tmp_path: Path, upper: float
) -> None:
    config = small_config(tmp_path, network=TWIN, model={"bounds": [0.01, upper]}, release={"days": 2})
    for action in (plan, lambda own: run_release(own, workers=1)):
        with pytest.raises(ConfigError, match=r"upper bound of model\.bounds"):
            action(config)
    assert nothing_spent(tmp_path)


def test_certify_on_a_twin_says_that_there_is_nothing_to_certify(
    own: tuple[Path, pipeline.ReleaseResult],
) -> None:
    with pytest.raises(ConfigError, match="needs no network evidence"):
        certify_config(OwnMeters().config(own[0]), None)


# ---------------------------------------------------------------------------------------------- fleets


def give_nodes(folder: Path, *, feeders: bool = True) -> None:
    """The loads of a feeder in turn, for every load point; all feeders have loads of the same names."""
    with (folder / "services.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for k, row in enumerate(rows):
        row["node"] = ("la", "lb")[k % 2]
        if not feeders:
            del row["feeder"]
    with (folder / "services.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def fleet_of_three(folder: Path, *, feeders: bool = True) -> Any:
    write_feeders(folder)
    loads = write_meters(folder)
    give_nodes(folder, feeders=feeders)
    three = [f"feeders/{key}.dss" for key in (KEYS[0], KEYS[1], KEYS[3])]
    return on_twins(folder, fleet={"feeders": three}, loads={**loads, "load_points": None, "days": None})


def test_a_feeder_of_a_fleet_has_its_own_customers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(*given: Any) -> CustomerPlan:
        found = customer_plan(*given)
        counts.append(len(found.load_of))
        return found

    monkeypatch.setattr("dp_powerflow.pipeline.modes.base.customer_plan", counted)
    assert not run_fleet(fleet_of_three(tmp_path), engine=Here()).failed
    # 96 load points, dealt out to six feeders; la and lb by turns, so that a feeder has customers on one.
    assert len(counts) == 2 * 3  # a worker checks a feeder before it is paid for, and makes it afterwards
    assert max(counts) < 96 / 2


def test_nodes_without_feeders_are_refused_in_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(DpPowerflowError, match="no column 'feeder'"):
        run_fleet(fleet_of_three(tmp_path, feeders=False), engine=Here())
    assert not list(Ledger.inspect(tmp_path / "state").spends())
