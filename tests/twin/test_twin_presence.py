"""Figures that are protected if present: what may be missing, what passes for it, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from dp_powerflow import Feeder, Protected, StreamKey, TwinDesign
from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.grid.quantities import absent_figures, declared_figures
from dp_powerflow.lowlevel import Quantity, Rebuilder, draw_twin, parameters_of, twin_guarantee
from dp_powerflow.twin.draw import Twin, absent_from
from support.pandapower_nets import net_of, quiet, small_net
from support.tiny_feeder import two_lines

KEY = StreamKey.from_insecure_seed(3)
ALL = Protected(transformers=True, capacitors=True, pv=True)
BARE = "Disable Capacitor.bank\nDisable Transformer.step\nDisable PVSystem.roof\nDisable Load.ld"


def drawn(feeder: Feeder, protected: Protected = ALL, **design: Any) -> Twin:
    chosen = TwinDesign(1.0, protected=protected, **design)
    source = Rebuilder(feeder, protected, drop_islanded=True)
    return draw_twin(parameters_of(source, chosen, "if present"), chosen, KEY)


def refused(feeder: Feeder, protected: Protected = ALL, **design: Any) -> str:
    with pytest.raises((PrivacyError, FeederError)) as error:
        drawn(feeder, protected, **design)
    return str(error.value)


def test_what_a_network_lacks_gets_no_noise_and_the_rest_gets_the_same() -> None:
    whole = drawn(two_lines())
    lacking = drawn(two_lines(more="Disable Capacitor.bank"))
    assert whole.absent == ()
    assert lacking.absent == ("capacitors",)
    kept = {key: at for key, at in whole.positions.items() if key.quantity is not Quantity.CAPACITOR}
    assert lacking.positions == kept
    assert lacking.design == whole.design
    assert twin_guarantee(lacking.design).epsilon_of.keys() == {"line", "transformer", "capacitor", "pv"}


def test_a_network_with_lines_alone_is_drawn() -> None:
    assert drawn(two_lines(more=BARE)).absent == ("transformers", "capacitors", "pv")


def test_without_codes_lengths_are_resistance_and_reactance_and_get_noise() -> None:
    plain = "New Line.coded bus1=sourcebus bus2=a r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length=1.5 units=km"
    feeder = two_lines(more=plain.replace("New", "Edit"))
    twin = drawn(feeder, Protected(lines="length", codes=True), code_epsilon=0.3)
    assert twin.absent == ("lengths", "codes")
    quantities = {key.quantity for key in twin.positions}
    assert quantities == {Quantity.RESISTANCE, Quantity.REACTANCE}
    assert twin.codes == {}


@pytest.mark.parametrize(
    "changed",
    [{"coded": "1.575"}, {"r1": "0.315", "r0": "0.945"}, {"xhl": "4.2", "rs": "0.63"}, {"kvar": "57.15"}],
)
@pytest.mark.parametrize("more", ["", "Disable Capacitor.bank", BARE])
def test_neighbours_have_the_same_figures(changed: dict[str, str], more: str) -> None:
    everything = Protected(
        lines="length", codes=True, charging=True, transformers=True, capacitors=True, pv=True
    )
    found = [
        Rebuilder(two_lines(more=more, **values), everything, drop_islanded=True).parameters()
        for values in ({}, changed)
    ]
    assert absent_from(found[0], everything) == absent_from(found[1], everything)
    assert found[0].levels.keys() == found[1].levels.keys()


def test_in_a_single_release_all_that_is_missing_is_named_at_once() -> None:
    design = TwinDesign(1.0, protected=ALL)
    source = Rebuilder(two_lines(more=BARE), ALL, drop_islanded=True)
    with pytest.raises(PrivacyError) as error:
        parameters_of(source, design)
    assert "no transformer and no capacitor and no PV system" in str(error.value)
    for key in ("transformers", "capacitors", "pv"):
        assert f"leave out network.{key}" in str(error.value)
    assert 'network.protect = "if present"' in str(error.value)


# -------------------------------------------------------- what must not pass for a network without


def test_a_series_reactor_in_place_of_the_transformer_is_refused() -> None:
    series = "Disable Transformer.step\nDisable PVSystem.roof\nEdit Load.ld kv=12.47\n"
    series += "New Reactor.limiter phases=3 bus1=c bus2=d r=0.1 x=0.5"
    told = refused(two_lines(more=series))
    assert "neither line nor switch" in told
    assert "leave out network.transformers" in told


@pytest.mark.parametrize("reactor", ["r=0 x=-2000", "kv=12.47 kvar=-60 conn=delta"])
def test_a_capacitive_reactor_in_place_of_the_capacitor_is_refused(reactor: str) -> None:
    more = f"Disable Capacitor.bank\nNew Reactor.comp phases=3 bus1=b {reactor}"
    assert "'reactor.comp' feeds in reactive power" in refused(two_lines(more=more))


def test_an_inductive_reactor_is_no_capacitor() -> None:
    more = "Disable Capacitor.bank\nNew Reactor.coil phases=3 bus1=b r=0 x=2000"
    assert drawn(two_lines(more=more)).absent == ("capacitors",)


def test_a_generator_in_place_of_the_pv_system_is_refused() -> None:
    more = "Disable PVSystem.roof\nNew Generator.sun bus1=d phases=3 kv=0.48 kw=40 kvar=0 model=1"
    told = refused(two_lines(more=more))
    assert "generator 'sun' feeds in" in told
    assert "leave out network.pv" in told


def test_codes_that_could_not_be_drawn_are_refused_where_codes_are_protected() -> None:
    more = "Edit Linecode.thin units=none\nEdit Line.coded linecode=thin units=none"
    told = refused(two_lines(more=more), Protected(lines="length", codes=True), code_epsilon=0.3)
    assert "no unit of length ('coded')" in told
    assert "leave out network.code_epsilon" in told


def test_a_net_of_pandapower_without_any_is_drawn_and_one_with_disguises_is_not() -> None:
    net = net_of("bare")
    assert drawn(read_pandapower(net, name="bare")).absent == ("transformers", "capacitors", "pv")
    with quiet() as pp:
        ward = net_of("bare")
        pp.create_ward(ward, 1, ps_mw=0.0, qs_mvar=0.0, pz_mw=0.0, qz_mvar=-0.2, name="comp")
        impedance = net_of("bare")
        low = pp.create_bus(impedance, vn_kv=0.4, name="low")
        pp.create_impedance(impedance, 1, low, rft_pu=0.01, xft_pu=0.05, sn_mva=0.4, name="trafo")
        pp.create_load(impedance, low, p_mw=0.05, q_mvar=0.0, name="house")
    assert "'ward:comp' feeds in reactive power" in refused(read_pandapower(ward, name="ward"))
    assert "neither line nor switch" in refused(read_pandapower(impedance, name="impedance"))


def test_a_net_with_everything_lacks_nothing() -> None:
    declared = declared_figures(ALL)
    assert declared == ("transformers", "capacitors", "pv")
    feeder = read_pandapower(small_net(), name="small", public=True)
    assert absent_from(Rebuilder(feeder, ALL).parameters(), ALL) == ()
    assert absent_figures(ALL, (), coded=False) == declared
