"""Levels of a feeder's elements, and feeders rebuilt from others."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from dp_powerflow import Feeder, Protected, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import ParameterKey
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import SHAPE_GRID, level_of, shape_of
from dp_powerflow.grid.sources import network_parameters
from dp_powerflow.lowlevel import Quantity, Rebuilder
from support.tables import tables_of
from support.tiny_feeder import EVERYTHING, rebuilt, two_lines

TABLES = tables_of(__file__)

LINE_LEVELS = (Quantity.RESISTANCE, Quantity.REACTANCE, Quantity.CHARGING)
OWN = {quantity: ParameterKey(quantity, "own") for quantity in LINE_LEVELS}


def series_and_shunt(feeder: Feeder, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Series impedance and shunt admittance [p.u.] of a line, from its primitive."""
    line = next(line for line in feeder.lines if line.name == name)
    m = len(line.nodes) // 2
    series = -line.primitive[:m, m:]
    return np.linalg.inv(series), line.primitive[:m, :m] - series


@pytest.mark.parametrize("name", ["ieee13", "ieee123", "tiny"])
def test_a_feeder_rebuilt_from_its_own_levels_is_itself(name: str) -> None:
    feeder = two_lines() if name == "tiny" else open_feeder(name)
    again = rebuilt(feeder, network_parameters(feeder).levels)
    assert again.nodes == feeder.nodes
    assert [tap.ratio for tap in again.taps] == pytest.approx([tap.ratio for tap in feeder.taps])
    np.testing.assert_allclose(again.v_slack, feeder.v_slack, atol=1e-4)
    # Shapes are rounded to 2⁻⁷ of their norm; public figures to their steps.
    assert abs(again.y - feeder.y).max() <= 0.02 * abs(feeder.y).max()
    assert [line.name for line in again.lines] == [line.name for line in feeder.lines]
    assert [load.kw for load in again.loads] == pytest.approx([load.kw for load in feeder.loads], rel=5e-3)
    for one, other in zip(feeder.lines, again.lines, strict=True):
        assert (one.is_switch, one.code) == (other.is_switch, other.code)
        if one.code is not None:
            assert other.length_m == pytest.approx(one.length_m, rel=1e-3)


def test_every_element_but_switches_has_its_parameters() -> None:
    levels = network_parameters(two_lines()).levels
    found = {(key.quantity.value, key.element) for key in levels}
    lines = {(q.value, name) for q in LINE_LEVELS for name in ("coded", "own")}
    assert found == lines | {("transformer", "step"), ("capacitor", "bank"), ("pv", "roof")}
    alone = Protected(lines="length")
    by_length = Rebuilder(two_lines(), alone).parameters().levels
    lengths = {("length", "coded"), ("resistance", "own"), ("reactance", "own")}
    assert {(key.quantity.value, key.element) for key in by_length} == lengths
    assert by_length[ParameterKey(Quantity.LENGTH, "coded")] == 1.5
    assert levels[ParameterKey(Quantity.CAPACITOR, "bank")] == 60.0


def test_each_level_moves_what_it_names_by_its_factor() -> None:
    feeder = two_lines()
    levels = network_parameters(feeder).levels
    z, shunt = series_and_shunt(feeder, "own")
    for quantity, expected_z in (
        (Quantity.CHARGING, z),
        (Quantity.RESISTANCE, 1.3 * z.real + 1j * z.imag),
        (Quantity.REACTANCE, z.real + 1.3j * z.imag),
    ):
        changed = rebuilt(feeder, {**levels, OWN[quantity]: 1.3 * levels[OWN[quantity]]})
        z_new, shunt_new = series_and_shunt(changed, "own")
        # Ratios between entries are coarse, the size of each part is not.
        for part, expected in ((z_new.real, expected_z.real), (z_new.imag, expected_z.imag)):
            assert np.linalg.norm(part) == pytest.approx(np.linalg.norm(expected), rel=0.01)
            np.testing.assert_allclose(part, expected, atol=0.01 * float(np.linalg.norm(expected)))
        expected = (1.3 if quantity is Quantity.CHARGING else 1.0) * shunt.imag
        np.testing.assert_allclose(shunt_new.imag, expected, atol=0.01 * float(np.linalg.norm(expected)))
        z_other, _ = series_and_shunt(changed, "coded")
        np.testing.assert_allclose(z_other, series_and_shunt(feeder, "coded")[0], rtol=0.03)
    step, bank, roof = (
        ParameterKey(quantity, name)
        for quantity, name in (
            (Quantity.TRANSFORMER, "step"), (Quantity.CAPACITOR, "bank"), (Quantity.PV, "roof"),
        )
    )  # fmt: skip
    changed = rebuilt(feeder, {**levels, step: 2 * levels[step], bank: 90.0, roof: 1.5 * levels[roof]})
    b, d = feeder.node_index["b.1"], feeder.node_index["d.1"]
    assert changed.y[d, d] == pytest.approx(feeder.y[d, d] / 2, rel=0.03)
    thirty_kvar = (changed.y - rebuilt(feeder, {**levels, step: 2 * levels[step]}).y)[b, b]
    assert thirty_kvar == pytest.approx(0.01j, rel=1e-4)  # in three phases
    assert (changed.pv[0].kw_peak, changed.pv[0].kva) == pytest.approx((60.0, 75.0), rel=0.01)


def test_a_line_whose_impedances_are_scaled_has_the_same_shape() -> None:
    """Neighbours in R, all of the matrix scaled, rebuild to the same bits from the same levels."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        matrix = rng.normal(size=(3, 3))
        factor = float(np.exp(rng.normal(scale=0.1)))
        np.testing.assert_array_equal(shape_of(matrix), shape_of(matrix * factor))
        assert level_of(matrix * factor) == pytest.approx(factor * level_of(matrix))


def test_a_length_moves_all_of_a_coded_line() -> None:
    feeder, alone = two_lines(), Protected(lines="length")
    levels = Rebuilder(feeder, alone).parameters().levels
    key = ParameterKey(Quantity.LENGTH, "coded")
    longer = rebuilt(feeder, {**levels, key: 1.3 * levels[key]}, protected=alone)
    for new, old in zip(series_and_shunt(longer, "coded"), series_and_shunt(feeder, "coded"), strict=True):
        np.testing.assert_allclose(new, 1.3 * old, rtol=1e-4, atol=1e-9)
    assert next(line for line in longer.lines if line.name == "coded").length_m == pytest.approx(1950.0)


def test_charging_follows_from_the_length_that_the_reactance_stands_for() -> None:
    """C of the code times X over the code's X per km; without a code public figures per km."""
    feeder = two_lines()
    protected = Protected(x_ohm_per_km=0.5, c_nf_per_km=12.0)
    levels = Rebuilder(feeder, protected).parameters().levels
    made = rebuilt(feeder, {key: 1.2 * level for key, level in levels.items()}, protected=protected)
    coded, own = (series_and_shunt(made, name)[1] for name in ("coded", "own"))
    np.testing.assert_allclose(coded.imag, 1.2 * series_and_shunt(feeder, "coded")[1].imag, rtol=1e-3)
    km = next(line for line in made.lines if line.name == "own").length_m / 1000.0  # type: ignore[operator]
    assert km == pytest.approx(1.2 * levels[OWN[Quantity.REACTANCE]] / (0.5 * 3**0.5), rel=1e-9)
    siemens = 0.5 * 2.0 * np.pi * 60.0 * 12e-9 * km
    base = feeder.base_mva / feeder.base_kv[0] ** 2
    np.testing.assert_allclose(own.imag, siemens / base * np.eye(3), rtol=1e-6, atol=1e-12)
    length = next(line.length_m for line in made.lines if line.name == "coded")
    assert length == pytest.approx(1800.0, rel=1e-3)


def test_codes_are_replaceable() -> None:
    feeder = two_lines()
    drawn = Protected(lines="length", codes=True)
    parameters = Rebuilder(feeder, drawn).parameters()
    (coded,) = parameters.coded
    assert (coded.line, coded.code, coded.candidates) == ("coded", "thin", ("thick", "thin"))
    assert ParameterKey(Quantity.RESISTANCE, "coded") not in parameters.levels
    z_thin, z_thick = (
        series_and_shunt(rebuilt(feeder, parameters.levels, {"coded": code}, protected=drawn), "coded")[0]
        for code in ("thin", "thick")
    )
    np.testing.assert_allclose(z_thin, series_and_shunt(feeder, "coded")[0], rtol=1e-4)
    ratio = (2 * 0.1 + 0.5) / (2 * 0.3 + 0.8)
    assert z_thick[0, 0].real / z_thin[0, 0].real == pytest.approx(ratio, rel=1e-4)


@pytest.mark.slow
def test_a_rebuilt_feeder_of_pandapower_follows_its_levels() -> None:
    pytest.importorskip("pandapower")
    from dp_powerflow.grid.pandapower.reader import read_pandapower
    from support.pandapower_nets import differing

    feeder = open_feeder("simbench:1-LV-rural1--0-sw")
    parameters = network_parameters(feeder)
    again = rebuilt(feeder, parameters.levels)
    assert again.taps == feeder.taps
    assert abs(again.y - feeder.y).max() <= 0.02 * abs(feeder.y).max()
    kinds = {key.quantity for key in parameters.levels}
    assert kinds == set(Quantity) - {Quantity.LENGTH, Quantity.CAPACITOR}
    assert {key.element for key in parameters.levels if key.quantity is Quantity.PV} >= {
        f"sgen:{system.name}" for system in feeder.pv
    }
    # By lengths: twice as long, half the admittance, on neighbouring nets to the last byte.
    protected = Protected(lines="length", codes=True)
    rebuilder = Rebuilder(feeder, protected)
    parameters = rebuilder.parameters()
    rebuilder.check(parameters)
    codes = {line.line: line.code for line in parameters.coded}
    key = next(iter(parameters.levels))
    longer = rebuilder.build({**parameters.levels, key: 2.0 * parameters.levels[key]}, codes)
    line = next(line for line in feeder.lines if line.name == key.element)
    other = next(line for line in longer.lines if line.name == key.element)
    assert other.primitive[0, 1] == pytest.approx(line.primitive[0, 1] / 2, rel=1e-6)
    assert other.length_m == pytest.approx(2 * (line.length_m or 0.0))
    net = copy.deepcopy(feeder.origin.net)  # type: ignore[attr-defined]
    net.line["length_km"] *= np.exp(np.random.default_rng(1).normal(0.0, 0.3, len(net.line)))
    neighbour = Rebuilder(read_pandapower(net, name=feeder.name, public=True), protected)
    drawn = {line.line: line.candidates[7] for line in parameters.coded}
    twins = [each.build(parameters.levels, drawn) for each in (rebuilder, neighbour)]
    assert differing(*twins) == []


def test_a_feeder_without_source_or_a_level_out_of_range_is_refused() -> None:
    from dataclasses import replace

    feeder = two_lines()
    with pytest.raises(FeederError, match="no source"):
        network_parameters(replace(feeder, origin=None))
    with pytest.raises(FeederError, match="positive"):
        rebuilt(feeder, {OWN[Quantity.REACTANCE]: -1.0})


def test_a_rebuilt_feeder_is_what_its_own_commands_compile_to() -> None:
    feeder = two_lines()
    levels = {key: 1.1 * level for key, level in network_parameters(feeder).levels.items()}
    made = rebuilt(feeder, levels)
    assert isinstance(made.origin, DssOrigin)
    afresh = read_dss(made.origin, name="afresh", taps=made.taps or None)
    np.testing.assert_array_equal(afresh.y.toarray(), made.y.toarray())


def test_building_again_and_again_gives_what_building_once_gives() -> None:
    feeder = open_feeder("ieee13")
    rebuilder = Rebuilder(feeder, EVERYTHING)
    levels = rebuilder.parameters().levels
    other = {key: 1.2 * level for key, level in levels.items()}
    rebuilder.build(other)
    np.testing.assert_array_equal(rebuilder.build(levels).y.toarray(), rebuilt(feeder, levels).y.toarray())
    np.testing.assert_array_equal(rebuilder.build(other).y.toarray(), rebuilt(feeder, other).y.toarray())


SHORT_DECIMALS = (
    "New Line.own phases=3 bus1=a bus2=b rmatrix=[.3477|.1560 .3375|.1580 .1535 .3414] "
    "xmatrix=[1.0179|.5017 1.0478|.4236 .3849 1.0348] cmatrix=[9|-1 9|-1 -1 9] length=1.7312 units=km"
)


def multiples_of_a_decimal(values: np.ndarray, tolerance: float) -> np.ndarray:
    """First entries, in units of 1e-4, that make all entries proportional to `values` 4 decimals."""
    n = np.arange(1, 60000)
    others = np.outer(n, values[1:] / values[0])
    return np.asarray(n[np.abs(others - np.round(others)).max(axis=1) < tolerance * n])


def test_short_decimals_of_the_file_cannot_be_fitted_to_a_rebuilt_line() -> None:
    """Ratios known to nine digits give a file's decimals back, level and all; coarse ones give thousands."""
    feeder = two_lines(own=SHORT_DECIMALS)
    levels = network_parameters(feeder).levels
    twin = rebuilt(feeder, {key: 1.0731 * level for key, level in levels.items()})
    z, true = series_and_shunt(twin, "own")[0], series_and_shunt(feeder, "own")[0]
    upper = np.triu_indices(3)
    for part, exact in ((z.real[upper], true.real[upper]), (z.imag[upper], true.imag[upper])):
        assert len(multiples_of_a_decimal(exact, 2e-8)) < 20  # the true ratios give it away
        assert len(multiples_of_a_decimal(part, float(SHAPE_GRID))) > 1000


@pytest.mark.parametrize(("more", "message"), TABLES["what_would_keep_its_true_figures_is_refused"])
def test_what_would_keep_its_true_figures_is_refused(more: str, message: str) -> None:
    with pytest.raises(FeederError, match=message):
        network_parameters(two_lines(more=more))


@pytest.mark.parametrize("figures", ["cuf=[30 30 30]", "cmatrix=[30 | 0 30 | 0 0 30]"])
def test_a_feeder_that_its_levels_do_not_give_back_is_refused(figures: str) -> None:
    rebuilder = Rebuilder(two_lines(more=f"New Capacitor.odd bus1=b phases=3 kv=12.47 {figures}"))
    with pytest.raises(FeederError, match="cannot be rebuilt"):
        rebuilder.check(rebuilder.parameters())


@pytest.mark.parametrize("name", ["my line", "x//1", "x!1", "x=1", "x,1"])
def test_names_with_odd_characters_are_rebuilt_like_others(name: str) -> None:
    more = f'New "Line.{name}" phases=3 bus1=b bus2=e r1=0.2 x1=0.4 r0=0.5 x0=1.2 length=1.0 units=km'
    rebuilder = Rebuilder(two_lines(more=more))
    rebuilder.check(rebuilder.parameters())
    longer = two_lines(more=more.replace("length=1.0", "length=1.1"))
    levels = rebuilder.parameters().levels
    np.testing.assert_array_equal(
        rebuilder.build(levels).y.toarray(), Rebuilder(longer).build(levels).y.toarray()
    )


def test_a_net_whose_figures_come_from_a_table_is_refused() -> None:
    pytest.importorskip("pandapower")
    from support.pandapower_nets import feeder_of, small_net

    net = small_net()
    feeder = feeder_of(net)
    feeder.origin.net.trafo["tap_dependency_table"] = True  # type: ignore[attr-defined]
    with pytest.raises(FeederError, match="characteristic table"):
        network_parameters(feeder)
