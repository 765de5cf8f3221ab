"""`init`: a config that fits a feeder and its meters, and tells nothing of what they hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.config import TrueNetwork, read_config
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError, LoadDataError
from dp_powerflow.loads.declared import read_service_map
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.setup import (
    HOUSEHOLD,
    UNNAMED,
    DeclaredFormat,
    MeterFileFacts,
    SetupRequest,
    Written,
    kind_of,
    meter_facts,
    set_up,
    unit_in,
)
from support.meter_files import intervals, stamp, write_long, write_wide
from support.small_circuits import script

BERLIN = "Europe/Berlin"
FIRST, LAST = dt.date(2024, 3, 29), dt.date(2024, 4, 2)  # the clock changes on the 31st
NAMES = [f"house {k}" for k in range(6)]
ROOF = "New PVSystem.roof bus1=b phases=3 kv=12.47 kva=150 pmpp=120 irradiance=1\n"
ISLAND = "New Line.far bus1=p bus2=q linecode=thin length=1 units=km\n"
REGULATOR = (
    "New Transformer.reg phases=3 windings=2 buses=[b r] conns=[wye wye] kvs=[12.47 12.47] kvas=[900 900]\n"
    "New RegControl.creg transformer=reg winding=2 vreg=122 band=2 ptratio=60\n"
    "New Load.lr bus1=r.1 phases=1 kv=7.2 kw=30 kvar=10\n"
)


def circuit(folder: Path, *, length: float = 1.5, more: str = "") -> Path:
    path = folder / "net.dss"
    path.write_text(script("to_set_up", length=length, more=more))
    return path


def readings(seed: int, steps: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.exp(0.4 * np.random.default_rng(seed).standard_normal((len(NAMES), steps)))


def meters(
    folder: Path, *, seed: int = 0, name: str = "meters.csv", label: str = "start", aware: bool = False
) -> Path:
    """A long file of hours in Berlin, through a clock change."""
    spans = intervals(BERLIN, FIRST, LAST, 60)
    stamps = [stamp(span, label, BERLIN, aware) for span in spans]
    return write_long(folder / name, stamps, readings(seed, len(stamps)), NAMES)


def written(folder: Path, **asked: object) -> Written:
    request = {
        "config": folder / "release.toml",
        "feeder": str(folder / "net.dss"),
        "meters": folder / "meters.csv",
        "declared": DeclaredFormat(time_zone=BERLIN, days=(FIRST, LAST)),
    }
    return set_up(SetupRequest(**{**request, **asked}))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path) -> None:
    """A feeder and its meters, in the folder of every test."""
    circuit(tmp_path)
    meters(tmp_path)


# ------------------------------------------------------------------------------------------------ facts


def facts_of(path: Path, **declared: Any) -> MeterFileFacts:
    known = {"time_zone": BERLIN, "days": (FIRST, LAST), **declared}
    return meter_facts(path, DeclaredFormat(**known))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("label", ["start", "end"])
@pytest.mark.parametrize("aware", [True, False], ids=["offset", "wall clock"])
def test_stamps_tell_the_step_through_a_clock_change(
    tmp_path: Path, suffix: str, label: str, aware: bool
) -> None:
    path = meters(tmp_path, name=f"m.{suffix}", label=label, aware=aware)
    facts = facts_of(path, interval_label=label)
    assert (facts.columns.kind, facts.unit, facts.step_minutes) == ("long", "kWh per interval", 60)
    assert (facts.first_day, facts.last_day) == (FIRST, LAST)
    assert facts.customers == tuple(sorted(NAMES))
    assert facts.notes == ()


def test_a_customer_with_many_rows_does_not_decide_the_step(tmp_path: Path) -> None:
    """Rows were counted, so a customer whose stamps are there often was half of all customers."""
    path = meters(tmp_path)
    header, *rows = path.read_text().splitlines()
    stamps = (
        f"2024-03-{day} {hour:02}:{minute:02}:00"
        for day in (29, 30)
        for hour in range(24)
        for minute in range(60)
    )
    own = [f"{NAMES[0]},{stamp},1.0" for stamp in stamps] * len(NAMES)
    path.write_text("\n".join([header, *rows, *own]) + "\n")
    assert facts_of(path).step_minutes == 60


def test_a_wide_file_has_a_column_per_customer(tmp_path: Path) -> None:
    spans = intervals(BERLIN, FIRST, LAST, 60)
    stamps = [stamp(span, "start", BERLIN, aware=False) for span in spans]
    path = write_wide(tmp_path / "m.csv", stamps, readings(0, len(stamps)), NAMES)
    facts = facts_of(path, unit="kW")
    assert (facts.columns.kind, facts.columns.time, facts.customers) == ("wide", "time", tuple(sorted(NAMES)))


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = meters(tmp_path)
    path.write_text(path.read_text().replace("customer,time,kwh", "who,when,what", 1))
    declared = DeclaredFormat("kWh", BERLIN, None, "who", "when", "what", (FIRST, LAST))
    facts = meter_facts(path, declared)
    assert (facts.columns.customer, facts.columns.active) == ("who", "what")
    assert facts.unit == "kWh per interval"


def test_stamps_from_the_first_interval_to_midnight_are_pointed_out(tmp_path: Path) -> None:
    facts = facts_of(meters(tmp_path, label="end"))
    assert facts.interval_label == "start"
    assert "--interval-label end" in facts.notes[0]


def test_a_column_can_say_that_stamps_name_the_end(tmp_path: Path) -> None:
    path = meters(tmp_path, label="end")
    path.write_text(path.read_text().replace("customer,time,kwh", "customer,interval_end,kwh"))
    facts = facts_of(path)
    assert (facts.interval_label, facts.first_day, facts.last_day) == ("end", FIRST, LAST)


@pytest.mark.parametrize(
    ("header", "declared", "says"),
    [
        ("customer,time,value", {}, "give it with --unit"),
        ("customer,time,kwh", {"unit": "MWh"}, "--unit 'MWh' is not known"),
        ("customer,time,kwh", {"days": None}, "--first-day 2024-01-01 --last-day 2024-12-31"),
        ("customer,time,kwh", {"days": (LAST, FIRST)}, "--last-day is before --first-day"),
        ("customer,time,kwh", {"time_zone": None}, "give their time zone with --time-zone"),
        ("customer,time,kwh", {"time_zone": "Berlin"}, "not in the IANA database"),
        ("customer,time,kwh", {"interval_label": "middle"}, "--interval-label 'middle' is not known"),
        ("customer,when,kwh", {}, "--time-column"),
        ("who,time,kwh", {}, "--customer-column"),
        ("customer,kwh,time", {}, "do not follow ISO 8601"),
        ("customer;time;kwh", {}, "separate its columns by commas"),
    ],
)
def test_what_no_file_says_is_asked_for_in_one_sentence(
    tmp_path: Path, header: str, declared: dict[str, Any], says: str
) -> None:
    path = meters(tmp_path)
    path.write_text(path.read_text().replace("customer,time,kwh", header, 1))
    with pytest.raises(LoadDataError, match=says) as caught:
        facts_of(path, **declared)
    assert "\n" not in str(caught.value)


UNIT_OF = {
    **dict.fromkeys(("kwh", "consumption_kwh", "KWH/hh (per half hour)", "energyKWh"), "kWh per interval"),
    **{"active (Wh)": "Wh per interval", "P_kW": "kW", "power W": "W", "growth": None, "value": None},
}


def test_a_unit_is_taken_from_the_name_of_a_column() -> None:
    assert {name: unit_in(name) for name in UNIT_OF} == UNIT_OF


# ----------------------------------------------------------------------------------- what is not told


def assert_same_bytes(
    tmp_path: Path, *makes: Callable[[Path], object], net: str = "net.dss", **asked: Any
) -> None:
    """What `init` writes after each has changed the files of a folder."""
    found = []
    for number, make in enumerate(makes):
        folder = tmp_path / str(number)
        folder.mkdir()
        circuit(folder)
        meters(folder)
        make(folder)
        made = written(folder, feeder=str(folder / net), **asked)
        assert made.services is not None
        found.append((made.config.read_bytes(), made.services.read_bytes()))
    assert found[0] == found[1]


def other_rows(change: Callable[[int, str], list[str]]) -> Callable[[Path], object]:
    """Other rows of one customer, by their number."""

    def make(folder: Path) -> None:
        path = folder / "meters.csv"
        header, *rows = path.read_text().splitlines()
        own = (change(k, row) if row.startswith(NAMES[2]) else [row] for k, row in enumerate(rows))
        path.write_text("\n".join([header, *(row for many in own for row in many)]) + "\n")

    return make


def nothing(_: Path) -> None:
    """As it is."""


@pytest.mark.parametrize("mode", ["twin-network", "true-network"])
def test_other_readings_give_the_same_bytes(tmp_path: Path, mode: str) -> None:
    wild = other_rows(lambda k, row: [row.rsplit(",", 1)[0] + "," + ("", "0", "-5", "1e6")[k % 4]])
    assert_same_bytes(tmp_path, nothing, lambda folder: (meters(folder, seed=1), wild(folder)), mode=mode)


OTHER_STAMPS: dict[str, Callable[[str], list[str]]] = {
    "a day more at the end": lambda row: [row, row.replace("2024-04-02", "2024-04-03")],
    "a day more at the beginning": lambda row: [row.replace("2024-03-29", "2024-03-28"), row],
    "a day less": lambda row: [] if "2024-04-02" in row else [row],
    "years away": lambda row: [row.replace("2024-", "1999-")],
    "every five minutes": lambda row: [row.replace(":00:00", f":{k:02}:00") for k in range(0, 60, 5)],
}


@pytest.mark.parametrize("kind", OTHER_STAMPS)
def test_the_stamps_of_one_customer_do_not_change_the_config(tmp_path: Path, kind: str) -> None:
    """The first and the last stamp of all decided the published days: 14 or 15, by one customer."""
    assert_same_bytes(tmp_path, nothing, other_rows(lambda _, row: OTHER_STAMPS[kind](row)))


def test_another_length_of_a_line_gives_the_same_bytes(tmp_path: Path) -> None:
    more = ROOF + ISLAND + REGULATOR
    lengths = (partial(circuit, length=km, more=more) for km in (1.5, 0.2))
    assert_same_bytes(tmp_path, *lengths, latitude=52.5)


def test_another_length_in_a_pandapower_net_gives_the_same_bytes(tmp_path: Path) -> None:
    pandapower = pytest.importorskip("pandapower")
    networks = pytest.importorskip("pandapower.networks")

    def shortened(folder: Path, factor: float) -> None:
        net = networks.create_kerber_dorfnetz()
        net.line.loc[3, "length_km"] *= factor
        pandapower.to_json(net, str(folder / "net.json"))

    lengths = (partial(shortened, factor=factor) for factor in (1.0, 0.3))
    assert_same_bytes(tmp_path, *lengths, net="net.json")


# ------------------------------------------------------------------------------------- what is written


def test_a_config_reads_back_and_its_inputs_fit(tmp_path: Path) -> None:
    circuit(tmp_path, more=ROOF + REGULATOR)
    result = written(tmp_path, latitude=52.5, days=3, release_id="first")
    config = read_config(result.config)
    assert config.network.mode == "twin-network"
    assert (config.network.epsilon, config.network.delta) == (1.0, 0.0)
    assert (config.release.id, config.release.days) == ("first", 3)
    assert (config.loads.unit, config.loads.step_minutes) == ("kWh per interval", 60)
    assert config.pv is not None
    assert config.feeder.taps is None  # a twin solves its own; none are written from a solution
    state = PrivateState.open(tmp_path / "state", create=True, insecure_seed=1)
    inputs = read_inputs(config, state)
    assert inputs.readings.load_kw.shape == (len(NAMES), 5, 24)
    assert read_service_map(tmp_path / "release-services.csv").load_points == tuple(sorted(NAMES))


def test_every_choice_has_a_comment(tmp_path: Path) -> None:
    lines = written(tmp_path).config.read_text().splitlines()
    bare = [line.split(" =")[0] for line in lines if " = " in line and "#" not in line]
    assert set(bare) <= {"last_day", "time_column", "customer_column", "active_column"}


def test_islands_are_left_out_pv_without_a_latitude_is_idle_and_both_are_said(tmp_path: Path) -> None:
    circuit(tmp_path, more=ROOF + ISLAND)
    result = written(tmp_path)
    config = read_config(result.config)
    assert (config.feeder.drop_islanded, config.pv) == (True, None)
    for words in ("no source feeds", "idle unless --latitude"):
        assert any(words in note for note in result.notes)


def services(folder: Path, columns: str, rows: Callable[[int, str], str]) -> Path:
    path = folder / "services.csv"
    path.write_text("\n".join([columns, *(rows(k, name) for k, name in enumerate(NAMES))]) + "\n")
    return path


def test_declared_classes_have_their_own_public_bounds(tmp_path: Path) -> None:
    labels = ["residential", "shop"]
    path = services(tmp_path, "customer,load_point,class", lambda k, name: f"{name},p{k},{labels[k % 2]}")
    result = written(tmp_path, services=path)
    config = read_config(result.config)
    assert config.nodes.load_class == "residential"
    assert config.model.bounds == HOUSEHOLD.bounds_kw
    assert config.model.bounds_of_class == {"shop": kind_of("shop").bounds_kw}
    assert result.services is None
    assert not (tmp_path / "release-services.csv").exists()


def test_on_the_true_network_customers_have_a_public_scale(tmp_path: Path) -> None:
    """A node is one customer scaled up: without a scale it would carry the load of one house."""
    path = services(tmp_path, "customer,load_point", lambda k, name: f"{name},p{k}")
    result = written(tmp_path, services=path, mode="true-network")
    config = read_config(result.config)
    assert config.model.use_scale
    scales = read_service_map(config.loads.services or "").scale_kw_of
    assert set(scales.values()) == {UNNAMED.kw_per_customer}
    assert config.model.bounds[1] * config.nodes.scale_factor == pytest.approx(1.0, abs=0.02)
    assert isinstance(config.network, TrueNetwork)
    assert (config.network.bound, config.network.radius) == ("paper", 1e-4)  # Algorithm 1 as printed
    assert "NOT differential privacy" in result.config.read_text()
    assert '# bound = "full-support"' in result.config.read_text()
    assert any("not differential privacy" in note for note in result.notes)


# ------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("taken", ["release.toml", "release-services.csv"])
def test_nothing_is_overwritten_and_nothing_else_is_written(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=f"{taken} exists already"):
        written(tmp_path)
    assert (tmp_path / taken).read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("more", "asked", "says"),
    [
        ("New Lnie.b bus1=x bus2=y\n", {}, "OpenDSS rejects"),
        ("New Fault.f bus1=b.3 phases=1 r=1000\n", {}, "whose figures would stay"),
        (REGULATOR, {"mode": "true-network"}, "takes as declared public"),
    ],
)
def test_what_is_unsupported_in_the_feeder_is_internal_and_nothing_is_written(
    tmp_path: Path, more: str, asked: dict[str, object], says: str
) -> None:
    circuit(tmp_path, more=more)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FeederError, match=f"INTERNAL: .*{says}"):
        written(tmp_path, **asked)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"mode": "twin"}, "--mode is one of twin-network, true-network"),
        ({"feeder": "gone.dss"}, "check the path of --feeder"),
        ({"feeder": "ieee14"}, "is not a feeder"),
        ({"meters": Path("gone.csv")}, "check the path of the meter data"),
        ({"services": Path("gone.csv")}, "service map gone.csv cannot be read"),
        ({"taps": Path("gone.csv")}, "tap file gone.csv does not exist"),
        ({"release_id": "2026.1"}, "'2026-1' would do"),
        ({"config": Path("no/such/release.toml")}, "does not exist; make it first"),
    ],
)
def test_a_wrong_request_is_one_sentence(tmp_path: Path, asked: dict[str, object], says: str) -> None:
    with pytest.raises(DpPowerflowError, match=says) as caught:
        written(tmp_path, **asked)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "release.toml").exists()


def test_a_service_map_that_a_killed_run_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    first = written(tmp_path)
    assert first.services is not None
    content = first.config.read_text(), first.services.read_text()
    first.config.unlink()  # killed before it was written
    assert written(tmp_path) == first
    assert (first.config.read_text(), first.services.read_text()) == content
    first.config.unlink()
    first.services.write_text("customer,load_point\nsomebody,else\n")
    with pytest.raises(ConfigError, match="exists already"):
        written(tmp_path)
