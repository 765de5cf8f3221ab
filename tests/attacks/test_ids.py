"""One service under two spellings of its id: twice in the models, one charge.

Before 0.3.0 a map with `p0` on one feeder and `p0 ` on another was read as two load points. The service was
in two models, its customers were charged for one, and the manifest said "No load point is on two feeders".
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_powerflow._names import alike
from dp_powerflow.errors import ConfigError, LoadDataError
from dp_powerflow.fleet.customers import read_feeder_map
from dp_powerflow.fleet.feeders import find_sources
from dp_powerflow.loads.declared import MeterFormat, ServiceMap, read_service_map
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.ingest import read_long, read_wide
from support.fleet_small import fleet_config, write_feeders

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
    path.write_text(
        "customer,load_point,node,class,scale_kw,feeder\n a , p0 , n1 , homes , 3 , x \nb,p0,,,,x\n"
    )
    services = read_service_map(path)
    assert (services.load_point_of, services.node_of) == ({"a": "p0", "b": "p0"}, {"p0": "n1"})
    assert (services.class_of, services.scale_kw_of) == ({"p0": "homes"}, {"p0": 3.0})
    assert read_feeder_map(path) == {"x": ("p0",)}


def test_a_map_made_in_memory_is_held_to_the_same_rule() -> None:
    for ids in ({"a": "p0", "b": "p0 "}, {"a": "p0", "b": "P0"}, {"p0": "s", "P0": "t"}, {"a ": "p0"}):
        with pytest.raises(LoadDataError, match="blanks"):
            ServiceMap(ids)
    with pytest.raises(LoadDataError, match="differ from another only"):
        LoadHistory(
            np.ones((2, 1, 24)),
            None,
            ("p0", "P0"),
            (dt.date(2024, 1, 1),),
            60,
            (None,) * 2,
            (None,) * 2,
            None,
        )


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
    with pytest.raises(ConfigError, match="differ in case only"):
        fleet_config(tmp_path, fleet={"names": {"alder-lane": "north-1", "birch-lane": "North-1"}})


def test_names_that_differ_in_what_is_seen_are_not_alike() -> None:
    assert alike(["p1", "p01", "p 1", "p-1"]) == 0
    assert alike(["p1", "P1 ", "p\u200b1", "q"]) == 3


def _stamps() -> list[str]:
    return [(dt.datetime(2024, 1, 1) + dt.timedelta(hours=h)).isoformat() for h in range(24)]
