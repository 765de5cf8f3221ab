"""Results of the true lines that a pandapower net carries, and twins that must not depend on them.

Every attack takes two neighbouring nets, one line 5 % longer, with whatever a control, a power flow or a
planner leaves in them recomputed, and forces the same levels on both. On commit ffefb60 the two twins
differed, by what each test says; now they are the same to the last byte, or the net is refused.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandapower")

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import TAPS_INTERNAL, TAPS_SOLVED, Feeder, ParameterKey, Tap
from dp_powerflow.grid.pandapower.reader import TAPS_NEUTRAL, read_pandapower
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.grid.sources import Rebuilder, open_feeder, read_taps, write_taps
from support.pandapower_nets import (
    CABLE,
    CODES,
    DECLARED,
    EVERYTHING,
    LENGTHS,
    differing,
    feeder_of,
    levels_of,
    quiet,
    small_net,
    twin_of,
    unbalanced_net,
)

NOTHING_MORE = Protected()
Taps = tuple[Tap, ...] | None
LONGER = 1.05
LOWEST = 1.02845
"""Voltage between those of the two nets at tap −1 [p.u.]: a stepwise control leaves different taps."""


def controlled(kind: str, *, keep: bool = False, **changed: float) -> Any:
    """The small net as a tap controller leaves it, the controller taken out unless it is to `keep`."""
    net = small_net(**changed)
    net.trafo["tap_pos"] = -1
    with quiet() as pp:
        import pandapower.control as control

        if kind == "continuous":
            control.ContinuousTapControl(net, 0, LOWEST + 0.01)
        else:
            control.DiscreteTapControl(net, 0, LOWEST, LOWEST + 0.04)
        pp.runpp(net, run_control=True, numba=False)
        if not keep:
            net.controller = net.controller.iloc[:0]
    return net


def rebuilt(net: Any, protected: Protected = NOTHING_MORE, taps: Taps = None) -> Feeder:
    """A twin of a net, with some levels."""
    feeder = feeder_of(net, taps=taps)
    return twin_of(feeder, protected, levels_of(feeder, protected))


def refused(net: Any, says: str, taps: Taps = None, protected: Protected = NOTHING_MORE) -> str:
    with pytest.raises(FeederError, match=says) as caught:
        Rebuilder(feeder_of(net, taps=taps), protected).parameters()
    return str(caught.value)


def check_is_passed(net: Any, protected: Protected = NOTHING_MORE) -> Feeder:
    feeder = read_pandapower(net, name="small")
    rebuilder = Rebuilder(feeder, protected)
    rebuilder.check(rebuilder.parameters())
    return feeder


def one_twin(one: Any, other: Any, protected: Protected, taps: Taps = None) -> list[str]:
    """Parts in which twins of two nets differ under the same levels."""
    first, second = (feeder_of(net, taps=taps) for net in (one, other))
    levels = levels_of(first, protected)
    return differing(twin_of(first, protected, levels), twin_of(second, protected, levels))


# ------------------------------------------------------------------------------------------- taps


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_tap_that_a_controller_left_does_not_reach_a_twin(kind: str) -> None:
    """On ffefb60 tap_pos passed into Y and taps: of a continuous control, a smooth function of every line."""
    one, other = controlled(kind), controlled(kind, own=LONGER)
    assert one.trafo.tap_pos[0] != other.trafo.tap_pos[0]
    for net in (one, other):
        assert feeder_of(net).taps[0].ratio != 1.0
        refused(net, r"'step' stands at a tap .* '# declared: WHO SET THESE TAPS'")
    declared = (Tap("step", 1, 0.95),)
    assert one_twin(one, other, Protected(), declared) == []
    twin = rebuilt(one, taps=declared)
    assert twin.taps == (Tap("step", 1, pytest.approx(0.95)),)  # type: ignore[arg-type]
    assert twin.origin.net.trafo.tap_pos.tolist() == [-2.0]  # type: ignore[attr-defined]


def test_a_tap_that_the_control_of_a_twin_left_does_not_reach_it() -> None:
    """The twin has the control and starts at neutral, wherever the true lines have led the tap."""
    one, other = controlled("discrete", keep=True), controlled("discrete", keep=True, own=LONGER)
    assert one.trafo.tap_pos[0] != other.trafo.tap_pos[0]
    feeder = check_is_passed(one)
    assert feeder.taps_from == TAPS_SOLVED  # a release on the true network asks for a tap file then
    assert one_twin(one, other, Protected()) == []
    twin = rebuilt(one)
    assert (twin.taps, twin.taps_from) == ((Tap("step", 1, 1.0),), TAPS_NEUTRAL)
    assert twin.origin.net.trafo.tap_pos.tolist() == [0.0]  # type: ignore[attr-defined]
    (regulator,) = twin.as_operated.regulators
    assert regulator.target_v == pytest.approx(120 * (LOWEST + 0.02), abs=0.012)  # rounded to 1e-4
    assert regulator.target_v != feeder.as_operated.regulators[0].target_v
    declared = (Tap("step", 1, 0.95),)
    assert one_twin(one, other, Protected(), declared) == []
    twin = rebuilt(one, taps=declared)
    assert twin.taps == (Tap("step", 1, pytest.approx(0.95)),)  # type: ignore[arg-type]
    assert len(twin.as_operated.regulators) == 1


def test_taps_written_by_inspect_are_internal_and_no_declaration(tmp_path: Path) -> None:
    """On ffefb60 a pandapower net took no tap file at all, and its own positions passed."""
    net = controlled("continuous")
    with quiet() as pp:
        pp.to_json(net, str(tmp_path / "net.json"))
    opened = open_feeder(tmp_path / "net.json")
    assert opened.taps_from == TAPS_SOLVED  # a release on the true network asks for a tap file then
    write_taps(tmp_path / "taps.csv", opened.taps, origin=TAPS_INTERNAL)
    again = open_feeder(tmp_path / "net.json", taps=read_taps(tmp_path / "taps.csv"))
    assert again.taps[0].ratio == pytest.approx(opened.taps[0].ratio, abs=0.0125)
    assert again.origin.net.trafo.tap_pos[0] % 1 == 0.0  # type: ignore[attr-defined]
    with pytest.raises(FeederError, match="stands at a tap"):
        Rebuilder(again).build(Rebuilder(again).parameters().levels)
    write_taps(tmp_path / "taps.csv", opened.taps, origin=DECLARED)
    stated = open_feeder(tmp_path / "net.json", taps=read_taps(tmp_path / "taps.csv"))
    rebuilder = Rebuilder(stated)
    assert rebuilder.build(rebuilder.parameters().levels).taps == stated.taps


@pytest.mark.parametrize(
    ("taps", "says"),
    [
        ((), "lacks winding 1 of transformer 'step'"),
        ((Tap("step", 1, 0.95), Tap("step", 2, 1.0)), "winding 2 of transformer 'step' has no tap changer"),
        ((Tap("step", 1, 1.4),), "'step' is out of range"),
    ],
)
def test_a_tap_file_that_does_not_fit_is_refused(taps: tuple[Tap, ...], says: str) -> None:
    with pytest.raises(FeederError, match=says):
        feeder_of(small_net(), taps=taps)


def test_a_changer_of_three_windings_is_declared_under_its_table() -> None:
    net = small_net()
    net.trafo3w["tap_changer_type"] = "Ratio"
    net.trafo3w["tap_pos"] = 3
    taps = feeder_of(net).taps
    assert [(tap.transformer, tap.winding) for tap in taps] == [("step", 1), ("trafo3w:star", 1)]
    refused(net, "'trafo3w:star' stands at a tap")
    neutral = feeder_of(net, taps=(Tap("step", 1, 1.0), Tap("trafo3w:star", 1, 1.0)))
    assert neutral.origin.net.trafo3w.tap_pos.tolist() == [0.0]  # type: ignore[attr-defined]


def test_a_position_that_turns_the_angle_cannot_be_declared() -> None:
    net = small_net()
    net.trafo["tap_changer_type"], net.trafo["tap_step_degree"] = "Ideal", 1.2
    net.trafo["tap_step_percent"] = math.nan
    assert feeder_of(net).taps == ()
    Rebuilder(feeder_of(net)).parameters()
    net.trafo["tap_pos"] = 2
    refused(net, "set its tap_pos to tap_neutral", taps=())
    net.trafo["tap_pos"], net.trafo["tap2_side"] = 0, "lv"
    net.trafo["tap2_pos"], net.trafo["tap2_neutral"] = 1, 0
    refused(net, "second tap changer")


# ---------------------------------------------------------------- other states that a control may leave


def test_a_controller_in_service_is_refused_unless_what_it_drives_is_declared() -> None:
    net = small_net()
    with quiet():
        import pandapower.control as control

        control.ContinuousTapControl(net, 0, 1.0)
    refused(net, "a controller of table 'trafo' in service")
    Rebuilder(feeder_of(net, taps=(Tap("step", 1, 1.0),))).parameters()
    with quiet():
        control.ConstControl(net, "load", "p_mw", 0)
    refused(net, "a controller of table 'load' in service", taps=(Tap("step", 1, 1.0),))


def test_a_state_that_looks_computed_is_refused() -> None:
    """On ffefb60 all of these passed into the twin with every digit."""
    for table, column, value, says in (
        ("shunt", "step", 0.6317, "'bank' stands at a step"),
        ("shunt", "step", 0.0, "'bank' stands at a step"),
        ("ext_grid", "vm_pu", 1.0234567, "more than 4 decimals"),
    ):
        net = small_net()
        net[table][column] = value
        assert str(value) not in refused(net, says)


def test_angles_between_sources_are_those_of_vector_groups() -> None:
    net = small_net()
    net.ext_grid["va_degree"] = 3.217  # one source: a rotation of everything
    twin = rebuilt(net)
    assert twin.v_slack.tolist() == [1.02 + 0j]
    with quiet() as pp:
        pp.create_ext_grid(net, 2, vm_pu=1.0, va_degree=2.9)
    refused(net, "differ in angle")


# ----------------------------------------------------------------------------------------- charging


def five_lines(lengths: tuple[float, ...], *, code: str | None = None) -> Any:
    """Lines of length 1 whose figures are totals: charging C·l and conductance G·l give the length back."""
    net = small_net()
    with quiet() as pp:
        at = 3
        for k, km in enumerate(lengths):
            end = pp.create_bus(net, vn_kv=20, name=f"n{k}")
            figures = {"r_ohm_per_km": 0.3 * km, "x_ohm_per_km": 0.4 * km}
            charging = {"c_nf_per_km": 9.7 * km, "g_us_per_km": 0.2 * km}
            own = {**figures, **charging, "max_i_ka": 0.2, "name": f"l{k}"}
            pp.create_line_from_parameters(net, at, end, 1.0, **own)
            pp.create_load(net, end, p_mw=0.1, q_mvar=0.03)
            at = end
        net.line["std_type"] = net.line["std_type"].where(net.line.index < 3, code)
    return net


TRUE_KM = (0.7312, 1.1946, 0.3518, 2.0457, 0.9183)


@pytest.mark.parametrize("protected", [Protected(), LENGTHS, EVERYTHING, Protected(c_nf_per_km=250.0)])
def test_charging_gives_no_length_away(protected: Protected) -> None:
    """On ffefb60 c_nf_per_km and g_us_per_km of length 1 passed: five lengths came back to 1e-15."""
    other = tuple(LONGER * km for km in TRUE_KM)
    assert one_twin(five_lines(TRUE_KM), five_lines(other), protected) == []


def test_charging_follows_from_the_twins_length_and_public_figures() -> None:
    feeder = feeder_of(five_lines(TRUE_KM))
    protected = Protected(x_ohm_per_km=0.35, c_nf_per_km=12.0)
    levels = levels_of(feeder, protected)
    lines = twin_of(feeder, protected, levels).origin.net.line.set_index("name")  # type: ignore[attr-defined]
    x = levels[ParameterKey(Quantity.REACTANCE, "l0")]
    assert lines.length_km["l0"] == pytest.approx(x / 0.35)
    assert lines.x_ohm_per_km["l0"] == pytest.approx(0.35)
    assert (lines.c_nf_per_km["l0"], lines.g_us_per_km["l0"]) == (12.0, 0.0)
    standard = feeder.origin.net.std_types["line"][CABLE]  # type: ignore[attr-defined]
    x = levels[ParameterKey(Quantity.REACTANCE, "cable")]
    assert lines.length_km["cable"] == pytest.approx(x / standard["x_ohm_per_km"])
    assert (lines.c_nf_per_km["cable"], lines.parallel["cable"]) == (standard["c_nf_per_km"], 2)
    charged = Protected(charging=True)
    levels = levels_of(feeder, charged)
    lines = twin_of(feeder, charged, levels).origin.net.line.set_index("name")  # type: ignore[attr-defined]
    total = lines.c_nf_per_km * lines.length_km
    assert total["l0"] == pytest.approx(levels[ParameterKey(Quantity.CHARGING, "l0")])


# ------------------------------------------------------------------------------------- zero sequence

PER_KM = ["r_ohm_per_km", "x_ohm_per_km", "c_nf_per_km", "r0_ohm_per_km", "x0_ohm_per_km", "c0_nf_per_km"]


@pytest.mark.parametrize("protected", [Protected(), EVERYTHING])
def test_totals_of_the_zero_sequence_give_no_length_away(protected: Protected) -> None:
    """A line of length 1 whose r0 is a total: r0 itself would be the length times a known figure."""

    def totals(km: float) -> Any:
        net = unbalanced_net()
        net.line.loc[0, PER_KM] = [float(value) * km for value in net.line.loc[0, PER_KM]]
        net.line.loc[0, "length_km"] = 1.0
        return net

    assert one_twin(totals(0.7312), totals(0.7312 * LONGER), protected) == []


def test_a_drawn_code_brings_all_its_figures() -> None:
    """On ffefb60 g_us_per_km stayed that of the true code."""
    columns = [*PER_KM, "g_us_per_km"]

    def net_of(code: str) -> Any:
        net = unbalanced_net()
        types = net.std_types["line"]
        types["thick"] = dict(zip(columns, (0.1, 0.08, 300.0, 0.35, 0.29, 150.0, 0.25), strict=True))
        types["thick"]["max_i_ka"] = 0.4
        net.line.loc[1:, "g_us_per_km"] = types["NAYY"]["g_us_per_km"] = 1.75
        net.line.loc[1, columns] = [types[code][column] for column in columns]
        net.line.loc[1, "std_type"] = code
        return net

    feeders = [feeder_of(net_of(code)) for code in ("NAYY", "thick")]
    levels = levels_of(feeders[0], CODES)
    twins = [twin_of(feeder, CODES, levels, "thick") for feeder in feeders]
    assert differing(*twins) == []
    line = twins[0].origin.net.line.loc[1]  # type: ignore[attr-defined]
    figures = line.r0_ohm_per_km, line.c0_nf_per_km, line.g_us_per_km
    assert figures == pytest.approx((0.35, 150.0, 0.25))
    with pytest.raises(FeederError, match="no code of line 'cable'"):
        Rebuilder(feeders[0], CODES).build(levels)


# ------------------------------------------------------------------------------- loads, generation, the rest


def test_a_rating_is_not_made_of_a_reactive_power() -> None:
    """On ffefb60 a unit without sn_mva got |p + jq| of a solved q, in the twin and in the true network."""
    one, other = small_net(), small_net(own=LONGER)
    for net in (one, other):
        with quiet() as pp:
            pp.runpp(net, numba=False)
        net.sgen.loc[1, "q_mvar"] = net.res_line.q_from_mvar[0] / 10  # what a volt-var control leaves
    assert one.sgen.q_mvar[1] != other.sgen.q_mvar[1]
    assert feeder_of(one).pv[1].kva == feeder_of(one).pv[1].kw_peak == pytest.approx(400.0)
    for protected in (Protected(), Protected(pv=True)):
        assert one_twin(one, other, protected) == []


def marked(**changed: float) -> Any:
    """The small net with what surveys, planners and power flows add to it, as functions of its lines."""
    net = small_net(**changed)
    with quiet() as pp:
        pp.runpp(net, numba=False)
        length = float(net.line.length_km.sum())
        current = net.res_line.i_ka.fillna(0.0)
        net.line["df"], net.line["max_i_ka"] = 1.0 / length, 0.2 + current
        net.line["alpha"], net.line["temperature_degree_celsius"] = 0.00403, 20.0 + 50.0 * current
        net.line["max_loading_percent"], net.line["endtemp_degree"] = 100.0 * current, length
        net.bus["geo"] = [f'{{"coordinates": [{length * k}, 0], "type": "Point"}}' for k in net.bus.index]
        net.bus["min_vm_pu"], net.load["sn_mva"] = net.res_bus.vm_pu, length
        net.sgen["scaling"], net.sgen["max_q_mvar"] = length / 10, length
        net.load["p_mw"], net.load["scaling"] = net.load.p_mw / length, length  # what a profile may leave
        net.load["q_mvar"] = net.load.q_mvar / length
        net.bus["vn_kv"] *= 1.0 + 1e-8 * length  # below the public steps
        net.trafo["shift_degree"] += length / 10
        net.ext_grid["va_degree"] = 1e-10 * length
        pp.create_storage(net, 3, p_mw=length / 100, max_e_mwh=1.0, soc_percent=length)
        pp.create_measurement(net, "v", "bus", float(net.res_bus.vm_pu[3]), 0.01, 3)
        pp.create_poly_cost(net, 0, "ext_grid", cp1_eur_per_mw=length)
        net["survey"] = net.res_bus.copy()
        net["profiles"] = {"load": net.res_line.copy()}
        net["user_pf_options"] = {
            **{"init_vm_pu": net.res_bus.vm_pu.tolist(), "tolerance_mva": length, "trafo_model": "t"},
            **{"consider_line_temperature": True, "max_iteration": 7},
        }
    return net


@pytest.mark.parametrize("protected", [Protected(), LENGTHS, EVERYTHING])
def test_what_a_net_carries_beside_its_frame_is_left_behind(protected: Protected) -> None:
    """On ffefb60 the twins differed in Y and lines (temperatures), coordinates and the tables of the net."""
    assert one_twin(marked(), marked(own=LONGER), protected) == []


def test_the_resistance_that_a_temperature_makes_has_a_level() -> None:
    net = small_net()
    net.line["alpha"], net.line["temperature_degree_celsius"] = 0.004, 70.0
    cold = Rebuilder(feeder_of(net)).parameters().levels
    net["user_pf_options"] = {"consider_line_temperature": True}
    feeder = feeder_of(net)
    warm = Rebuilder(feeder).parameters().levels
    key = ParameterKey(Quantity.RESISTANCE, "own")
    assert warm[key] == pytest.approx(1.2 * cold[key])
    Rebuilder(feeder).check(Rebuilder(feeder).parameters())


def test_every_level_is_needed() -> None:
    feeder = feeder_of(small_net())
    levels = levels_of(feeder, EVERYTHING)
    for key in levels:
        rest = {other: level for other, level in levels.items() if other != key}
        with pytest.raises(FeederError, match=f"has no {key.quantity} of '{key.element}'"):
            twin_of(feeder, EVERYTHING, rest)
    with pytest.raises(FeederError, match="a length of 'own', which the feeder does not"):
        twin_of(feeder, EVERYTHING, {**levels, ParameterKey(Quantity.LENGTH, "own"): 1.0})


def test_figures_of_the_frame_are_short() -> None:
    net = small_net()
    net.load.loc[0, ["p_mw", "q_mvar"]] = [2.0123456, 0.6012345]
    net.trafo.loc[0, ["sn_mva", "pfe_kw"]] = [0.630004321, 1.18012345]
    twin = rebuilt(net)
    assert [twin.loads[0].kw, twin.loads[0].kvar] == pytest.approx([2010.0, 601.0])
    made = twin.origin.net  # type: ignore[attr-defined]
    assert made.trafo.loc[0, ["sn_mva", "pfe_kw"]].tolist() == [0.63, 1.18]


def test_a_line_that_is_not_its_code_is_found() -> None:
    """By lengths alone R and X are those of the catalogue, so a line with other figures is refused."""
    net = small_net()
    check_is_passed(net, Protected(lines="length"))
    net.line.loc[1, "r_ohm_per_km"] *= 3.0
    check_is_passed(net, Protected())
    with pytest.raises(FeederError, match="line 'cable' cannot be rebuilt"):
        check_is_passed(net, Protected(lines="length"))


# --------------------------------------------------------------------------------------------- all together


@pytest.mark.parametrize("make", [small_net, unbalanced_net])
@pytest.mark.parametrize("protected", [Protected(), EVERYTHING, LENGTHS, CODES, Protected(transformers=True)])
def test_twins_of_neighbours_are_the_same_to_the_last_byte(make: Any, protected: Protected) -> None:
    """Without results and totals this held on ffefb60 as well; it must hold for every choice of figures."""
    changes: dict[str, float] = {"own": LONGER, "cable": LONGER}
    changes |= {"vk": LONGER} if protected.transformers else {}
    changes |= (
        {"bank": LONGER} if protected.transformers and protected.capacitors and make is small_net else {}
    )
    changes |= {"roof": LONGER} if protected.pv else {}
    nets = make(), make(**changes)  # all at once: neighbours of neighbours are the same too
    with quiet() as pp:
        for net in nets if make is unbalanced_net else ():
            pp.runpp_3ph(net, numba=False)
    first, second = map(feeder_of, nets)
    levels, code = levels_of(first, protected), CABLE if make is small_net else "NAYY"
    assert differing(first, second)
    one, other = (twin_of(feeder, protected, levels, code) for feeder in (first, second))
    assert differing(one, other) == []
