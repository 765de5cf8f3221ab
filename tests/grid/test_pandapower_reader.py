"""pandapower nets and SimBench codes, against pandapower's own power flow."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.errors import FeederError, MissingExtraError
from dp_powerflow.grid.feeder import Line, islanded_nodes, without_islands
from dp_powerflow.grid.pandapower.reader import read_pandapower, read_pandapower_file, read_simbench
from dp_powerflow.grid.sources import check_feeder
from dp_powerflow.units import ComplexArray, FloatArray
from support.pandapower_nets import net_of, quiet
from support.tables import tables_of

TABLES = tables_of(__file__)

needs_pandapower = pytest.mark.skipif(
    importlib.util.find_spec("pandapower") is None, reason="pandapower is not installed (extra 'pandapower')"
)
needs_simbench = pytest.mark.skipif(
    importlib.util.find_spec("simbench") is None, reason="simbench is not installed (extra 'pandapower')"
)
pytestmark = needs_pandapower

SIMBENCH = ("1-MV-rural--0-sw", "1-LV-rural1--0-sw")
EXAMPLES = ("village", "cigre_mv", "oberrhein", "multivoltage")
ALL = (
    *EXAMPLES,
    pytest.param(SIMBENCH[0], marks=[needs_simbench, pytest.mark.campaign]),
    pytest.param(SIMBENCH[1], marks=needs_simbench),
)


@dataclass(frozen=True)
class Case:
    """A feeder, and pandapower's power flow of the net it was read from.

    v : complex (node,) voltages [p.u.].
    drawn, fed : complex (node,) powers of loads and of generation, from the result tables [p.u.].
    peak : (node,) active power of the generation without its scaling [p.u.].
    """

    net: Any
    feeder: Feeder
    v: ComplexArray
    drawn: ComplexArray
    fed: ComplexArray
    peak: FloatArray

    @property
    def s(self) -> ComplexArray:
        return self.fed - self.drawn


@pytest.fixture(scope="module")
def case() -> Callable[[str], Case]:
    cases: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in cases:
            cases[name] = make_case(name)
        return cases[name]

    return get


def make_case(name: str) -> Case:
    if name in SIMBENCH:
        feeder = read_simbench(name)
        return solved(feeder.origin.net, feeder)  # type: ignore[attr-defined]
    makers: dict[str, Callable[[], Any]] = {
        "village": partial(net_of, "village"),
        "cigre_mv": cigre_mv,
        "oberrhein": oberrhein,
        "multivoltage": multivoltage,
    }
    net = makers[name]()
    return solved(net, read_pandapower(net, name=name))


def solved(net: Any, feeder: Feeder) -> Case:
    net = copy.deepcopy(net)
    with quiet() as pandapower:
        pandapower.runpp(
            net,
            calculate_voltage_angles=True,
            numba=False,
            tolerance_mva=1e-9,
            max_iteration=50,
            voltage_depend_loads=False,
        )
    node_of_bus = {bus: feeder.node_index[node] for bus, node in feeder.origin.node_of_bus.items()}  # type: ignore[attr-defined]
    v = np.full(len(feeder.nodes), np.nan, dtype=complex)
    for index, line in zip(net.line.index[net.line.in_service], lines_of(feeder, net), strict=True):
        if line is not None:  # the only place that shows the voltage of an open end
            row = net.res_line.loc[index]
            ends = [phasor(row.vm_from_pu, row.va_from_degree), phasor(row.vm_to_pu, row.va_to_degree)]
            v[list(line.nodes)] = ends[: len(line.nodes)]
    for trafo in net.trafo3w.itertuples():
        star = net.res_trafo3w.loc[trafo.Index]
        v[feeder.node_index[f"star({trafo.name}).1"]] = phasor(star.vm_internal_pu, star.va_internal_degree)
    for bus, node in node_of_bus.items():
        v[node] = phasor(net.res_bus.vm_pu[bus], net.res_bus.va_degree[bus])
    drawn, fed = np.zeros((2, len(feeder.nodes)), dtype=complex)
    for kinds, total in [(("load", "asymmetric_load", "motor"), drawn), (("sgen", "gen"), fed)]:
        for kind in kinds:
            for row in net[kind][net[kind].in_service].itertuples():
                power = net[f"res_{kind}"].loc[row.Index]
                total[node_of_bus[row.bus]] += complex(power.p_mw, power.q_mvar) / feeder.base_mva
    for row in net.ward.itertuples():
        drawn[node_of_bus[row.bus]] += complex(row.ps_mw, row.qs_mvar) / feeder.base_mva
    peak = np.zeros(len(feeder.nodes))
    for row in net.sgen[net.sgen.in_service].itertuples():
        peak[node_of_bus[row.bus]] += row.p_mw / feeder.base_mva
    return Case(net, feeder, v, drawn, fed, peak)


def phasor(vm_pu: float, va_degree: float) -> complex:
    return complex(vm_pu * np.exp(1j * np.deg2rad(va_degree)))


def lines_of(feeder: Feeder, net: Any) -> list[Line | None]:
    """The record of every line in service of the net, None where it is dead."""
    named = {line.name: line for line in feeder.lines}
    in_service = net.line[net.line.in_service]
    return [
        named.get(name, named.get(f"line {k}"))
        for k, name in zip(in_service.index, in_service.name, strict=True)
    ]


# ------------------------------------------------------------------------------------------------- nets


def cigre_mv() -> Any:
    with quiet():
        return importlib.import_module("pandapower.networks").create_cigre_network_mv(with_der="pv_wind")


def oberrhein() -> Any:
    """Two external grids, 110/20 kV, open line switches; the file that pandapower ships."""
    with quiet() as pp:
        folder = Path(importlib.import_module("pandapower.networks").__file__ or "").parent
        return pp.from_json(str(folder / "mv_oberrhein.json"))


def multivoltage() -> Any:
    """380 to 0.4 kV, a three-winding transformer; extended wards are off, the generator holds no voltage."""
    with quiet() as pp:
        net = importlib.import_module("pandapower.networks").example_multivoltage()
        net.xward.in_service = False
        net.gen.in_service = False
        for gen in net.gen.itertuples():
            pp.create_sgen(net, gen.bus, p_mw=gen.p_mw, q_mvar=20.0)
    return net


# --------------------------------------------------------------------------------- network and injections


@pytest.mark.parametrize("name", ALL)
def test_currents_of_pandapowers_solution_balance_and_powers_are_its_own(
    name: str, case: Callable[[str], Case]
) -> None:
    c = case(name)
    mismatch = (c.v * np.conj(c.feeder.y @ c.v) - c.s)[c.feeder.energised]
    assert np.max(np.abs(mismatch)) < 1e-9
    kw_peak = np.array([pv.kw_peak for pv in c.feeder.pv])
    at = c.feeder.energised
    np.testing.assert_allclose(-c.feeder.nominal_injection[at], c.drawn[at], atol=1e-12)
    if len(kw_peak):
        peak = c.feeder.pv_shares @ kw_peak / (1000 * c.feeder.base_mva)
        np.testing.assert_allclose(peak[at], c.peak[at], atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_names_are_unique_and_nominal_angles_are_multiples_of_30(
    name: str, case: Callable[[str], Case]
) -> None:
    c = case(name)
    feeder, nominal = c.feeder, c.feeder.nominal_angle_deg
    check_feeder(feeder)
    for names in (feeder.nodes, [load.name for load in feeder.loads], [pv.name for pv in feeder.pv]):
        assert len(set(names)) == len(names)
    assert [name for name in feeder.nodes if name.startswith("emf(")] == list(feeder.nodes[feeder.slack[0] :])

    assert np.all(nominal % 30.0 == 0.0)
    assert np.max(np.abs(np.angle(c.v * np.exp(-1j * np.deg2rad(nominal)), deg=True))) < 25.0


def test_admittance_of_a_line_is_that_of_its_ohms() -> None:
    feeder = read_pandapower(net_of("two_buses"), name="two", base_mva=0.5)
    base_siemens = 0.5 / (20.0 / np.sqrt(3)) ** 2
    series = 1 / (2.0 * (0.3 + 0.4j)) / base_siemens
    half_shunt = 0.5j * 2 * np.pi * 50 * 2.0 * 100e-9 / base_siemens
    expected = np.array([[series + half_shunt, -series], [-series, series + half_shunt]])
    np.testing.assert_allclose(feeder.y.toarray(), expected, rtol=1e-12)
    assert feeder.nodes == ("far.1", "emf(near).1")
    assert feeder.nominal_load == pytest.approx(np.array([0.3 + 0.1j]) / 0.5)
    assert [load.kw for load in feeder.loads] == [pytest.approx(900.0)]
    np.testing.assert_allclose(feeder.base_kv, 20.0 / np.sqrt(3))
    assert feeder.v_slack == pytest.approx([1.01])


@pytest.mark.parametrize("name", ["village", "oberrhein"])
def test_a_lines_primitive_is_what_taking_it_out_of_service_removes(
    name: str, case: Callable[[str], Case]
) -> None:
    c = case(name)
    index = c.net.line.index[c.net.line.in_service]
    checked = 0
    for k, line in list(zip(index, lines_of(c.feeder, c.net), strict=True))[
        :: 1 if name == "village" else 45
    ]:
        assert line is not None
        opened = copy.deepcopy(c.net)
        opened.line.loc[k, "in_service"] = False
        without = read_pandapower(opened, name=name)
        common = [node for node in c.feeder.nodes if node in without.node_index]
        before = c.feeder.y.toarray()
        embedded = np.zeros_like(before)
        embedded[np.ix_(line.nodes, line.nodes)] = line.primitive
        rows = [c.feeder.node_index[node] for node in common]
        after = without.y.toarray()[np.ix_(*[[without.node_index[node] for node in common]] * 2)]
        np.testing.assert_allclose(
            (before - embedded)[np.ix_(rows, rows)], after, atol=1e-10 * np.abs(before).max()
        )
        assert line.length_m == pytest.approx(1000 * c.net.line.length_km[k])
        checked += 1
    assert checked >= 4


# ---------------------------------------------------------------------------------- what becomes of what


def test_village_is_translated_element_by_element(case: Callable[[str], Case]) -> None:
    feeder, village = case("village").feeder, TABLES["village"]
    assert set(feeder.nodes) == set(village["nodes"])
    assert {line.name: line.is_switch for line in feeder.lines} == village["lines"]
    assert {load.name: load.kw for load in feeder.loads} == pytest.approx(
        village["loads"] | {"motor 0": 30 / 0.92 * 0.7}
    )
    assert [pv.name for pv in feeder.pv] == list(village["pv"])
    for pv in feeder.pv:
        assert [pv.kva, pv.kw_peak] == pytest.approx(village["pv"][pv.name])
    assert [(tap.transformer, tap.winding) for tap in feeder.taps] == [("t", 1)]
    assert feeder.taps[0].ratio == pytest.approx(0.95)
    notes = "; ".join(feeder.notes)
    assert [part for part in village["notes"] if part not in notes] == []


def test_reading_leaves_the_net_as_it_is() -> None:
    net = net_of("village")
    with quiet() as pandapower:
        before = pandapower.to_json(net)
        read_pandapower(net, name="village")
        assert pandapower.to_json(net) == before


ZIP = TABLES["ZIP"]


def test_the_response_of_a_load_is_that_of_pandapower_and_counted() -> None:
    net = net_of("two_buses")
    net.load[list(ZIP)] = list(ZIP.values())
    net.load["scaling"] = 30.0
    feeder = read_pandapower(net, name="two")
    load, response = feeder.loads[0], feeder.loads[0].response
    assert response.active == pytest.approx((0.4, 0.25, 0.35))
    assert response.reactive == pytest.approx((0.1, 0.7, 0.2))
    assert (response.lowest, response.highest) == (0.0, 10.0)
    assert load.rated_kv == pytest.approx(20.0 / np.sqrt(3))
    assert "1 of 1 loads depend on the voltage; where taps are frozen they are constant power" in feeder.notes
    np.testing.assert_allclose(
        feeder.y.toarray(), read_pandapower(net_of("two_buses"), name="two").y.toarray()
    )
    with quiet() as pandapower:
        pandapower.runpp(net, numba=False, calculate_voltage_angles=True, tolerance_mva=1e-10)
    v = phasor(net.res_bus.vm_pu[1], net.res_bus.va_degree[1])
    u = abs(v) * feeder.base_kv[0] / (load.rated_kv or np.nan)
    assert u < 0.97
    active, reactive = (np.dot(part, [u**2, u, 1.0]) for part in (response.active, response.reactive))
    kva = complex(load.kw * active, load.kvar * reactive)
    voltages = np.array([v, feeder.v_slack[0]])
    drawn = -v * np.conj((feeder.y @ voltages)[0])
    assert drawn == pytest.approx(kva / 1000 / feeder.base_mva, abs=1e-9)


def test_generators_keep_their_power_and_lose_their_control() -> None:
    net = net_of("two_buses")
    with quiet() as pp:
        pp.create_gen(net, 1, p_mw=0.6, vm_pu=1.0, sn_mva=0.8)
    feeder = read_pandapower(net, name="two")
    assert [(pv.kva, pv.kw_peak) for pv in feeder.pv] == [pytest.approx((800.0, 600.0))]
    assert any("1 of 1 generating units hold a voltage" in note for note in feeder.notes)


def test_a_generator_that_is_slack_is_a_source() -> None:
    net, plain = net_of("two_buses"), net_of("two_buses")
    net.ext_grid.in_service = False
    with quiet() as pp:
        pp.create_gen(net, 0, p_mw=0.0, vm_pu=1.01, slack=True)
    feeder, reference = read_pandapower(net, name="gen"), read_pandapower(plain, name="grid")
    assert (feeder.nodes, feeder.pv) == (reference.nodes, ())
    assert feeder.v_slack == pytest.approx(reference.v_slack)
    np.testing.assert_allclose(feeder.y.toarray(), reference.y.toarray())


def test_extended_wards_keep_their_shunt_and_power() -> None:
    net, plain = net_of("two_buses"), net_of("two_buses")
    with quiet() as pp:
        pp.create_xward(net, 1, 0.1, 0.05, 0.2, -0.1, 1.0, 2.0, 1.0)
        pp.create_ward(plain, 1, 0.1, 0.05, 0.2, -0.1)
    extended, ward = read_pandapower(net, name="x"), read_pandapower(plain, name="w")
    np.testing.assert_allclose(extended.y.toarray(), ward.y.toarray(), rtol=1e-14)
    np.testing.assert_allclose(extended.nominal_injection, ward.nominal_injection, rtol=1e-14)
    assert any("1 extended wards lose" in note for note in extended.notes)


def test_a_line_bridged_by_a_switch_keeps_only_its_charging() -> None:
    net = net_of("two_buses")
    with quiet() as pp:
        end = pp.create_bus(net, vn_kv=20.0, name="end")
        pp.create_line_from_parameters(net, 1, end, 1.0, 0.3, 0.4, 100.0, 0.3, name="bridged")
        pp.create_switch(net, 1, end, et="b")
    line = read_pandapower(net, name="two").lines[1]
    base_siemens = 1.0 / (20.0 / np.sqrt(3)) ** 2
    assert line.nodes == (0,)
    np.testing.assert_allclose(line.primitive, [[2j * np.pi * 50 * 100e-9 / base_siemens]], rtol=1e-9)


def test_coordinates_are_those_of_the_net(case: Callable[[str], Case]) -> None:
    feeder = case("oberrhein").feeder
    declared = {node.rsplit(".", 1)[0] for node in feeder.origin.node_of_bus.values()}  # type: ignore[attr-defined]
    assert set(feeder.coordinates) == declared
    assert all(7.0 < x < 9.0 and 48.0 < y < 50.0 for x, y in feeder.coordinates.values())


@needs_simbench
def test_simbench_loads_carry_their_profile_as_class(case: Callable[[str], Case]) -> None:
    feeder = case("1-LV-rural1--0-sw").feeder
    net = feeder.origin.net  # type: ignore[attr-defined]
    assert [load.label for load in feeder.loads] == net.load.profile.tolist()
    assert sum(load.kw for load in feeder.loads) == pytest.approx(1000 * net.load.p_mw.sum())


def test_a_saved_net_is_the_same_feeder(tmp_path: Path) -> None:
    net = net_of("village")
    with quiet() as pandapower:
        pandapower.to_json(net, str(tmp_path / "village.json"))
    feeder = open_feeder(tmp_path / "village.json")
    direct = read_pandapower(net, name="village")
    assert (feeder.name, feeder.nodes, feeder.loads) == ("village", direct.nodes, direct.loads)
    np.testing.assert_allclose(feeder.y.toarray(), direct.y.toarray(), rtol=1e-12)


# ------------------------------------------------------------------------------------------- bad input


def test_unsupplied_buses_are_kept_for_the_check_to_name() -> None:
    net = net_of("two_buses")
    with quiet() as pp:
        lone, other = (pp.create_bus(net, vn_kv=20.0, name=name) for name in ("lone", "other"))
        pp.create_line_from_parameters(net, lone, other, 1.0, 0.3, 0.4, 100.0, 0.3, name="lost")
        loose = pp.create_line_from_parameters(net, 1, other, 1.0, 0.3, 0.4, 0.0, 0.3, name="loose")
        pp.create_switch(net, 1, loose, et="l", closed=False)
        pp.create_load(net, other, p_mw=0.1)
    feeder = read_pandapower(net, name="two")
    assert islanded_nodes(feeder) == ["lone.1", "other.1", "open(loose).1"]
    with pytest.raises(FeederError, match=r"3 nodes are islanded.*lone\.1"):
        check_feeder(feeder)
    kept = without_islands(feeder)
    assert any("with 1 loads, 0 PV systems and 2 lines on them" in note for note in kept.notes)
    np.testing.assert_allclose(kept.y.toarray(), read_pandapower(net_of("two_buses"), name="two").y.toarray())


@pytest.mark.parametrize(("change", "sentence"), TABLES["a_bad_net_is_refused_with_a_sentence"])
def test_a_bad_net_is_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    net = net_of("two_buses")
    with quiet() as pandapower:
        for kind, figures in change.get("create", {}).items():
            getattr(pandapower, f"create_{kind}")(net, **figures)
    for kind, rows in change.get("set", {}).items():
        for index, figures in rows.items():
            for column, value in figures.items():
                net[kind].loc[int(index), column] = value
    for kind in change.get("drop", ()):
        net[kind].drop(net[kind].index, inplace=True)
    with pytest.raises(FeederError, match=sentence) as refused:
        read_pandapower(net, name="two")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "sentence"), TABLES["a_file_that_is_no_net_is_refused"])
def test_a_file_that_is_no_net_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    with pytest.raises(FeederError, match=r"net\.json does not exist"):
        read_pandapower_file(path)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FeederError, match=sentence):
        read_pandapower_file(path)


@needs_simbench
def test_an_unknown_simbench_code_names_its_neighbours() -> None:
    with pytest.raises(FeederError, match=r"'1-MV-rurall--0-sw' is not a SimBench code.*1-MV-rural--0-sw"):
        read_simbench("1-MV-rurall--0-sw")


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("two_buses")
    monkeypatch.setitem(sys.modules, "pandapower", None)
    monkeypatch.setitem(sys.modules, "simbench", None)
    reads: tuple[Callable[[], Feeder], ...] = (
        lambda: read_pandapower(net, name="two"),
        lambda: read_pandapower_file(Path("net.json")),
        lambda: read_simbench("1-MV-rural--0-sw"),
    )
    for read in reads:
        with pytest.raises(MissingExtraError, match=r"pip install 'dp-powerflow\[pandapower\]'"):
            read()
