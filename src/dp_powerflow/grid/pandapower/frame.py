"""The public frame of a pandapower net: what a twin shares with its source, by name and rounded.

A twin's net starts empty. Tables and columns named here are copied into it, every figure rounded to a public
step; whatever else the source holds (results, profiles, coordinates, unknown columns) does not reach it. A
tap control that is modelled is made anew with its rounded band, and its tap starts at neutral. What else
could be the result of a control or of a power flow on the true lines is refused in a private net: taps, steps
of shunts, source voltages. Figures that carry noise are filled in by `parameters`, zero sequences as ratios
to them.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError, NoTwinError, TapsError
from dp_powerflow.grid.buses import Problems, some_of
from dp_powerflow.grid.feeder import TAPS_DECLARED, significant
from dp_powerflow.grid.pandapower.controls import CONTROL, Controls, changer_type, tap_changers
from dp_powerflow.grid.pandapower.engine import Names, in_service, require, third_party_warnings
from dp_powerflow.grid.pandapower.sequences import IMPEDANCE, SOURCE

Rule = Callable[[Any], Any]


def to_digits(digits: int) -> Rule:
    """Round to so many significant digits."""
    return lambda value: float(significant(np.array([value], dtype=np.float64), digits)[0])


def to_step(step: float) -> Rule:
    def rounded(value: Any) -> float:
        number = float(value)
        return round(number / step) * step if math.isfinite(number) else number

    return rounded


def _volts(value: Any) -> float:
    """To 1e-4, as a short decimal."""
    return round(float(value), VOLTAGE_DECIMALS)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: Any) -> bool:
    """Missing is False."""
    return bool(value) and value == value


def _connection(value: Any) -> str | None:
    return value if value in ("wye", "delta") else None


def _count(value: Any) -> int:
    """Missing is one."""
    return int(value) if math.isfinite(value) else 1


VOLTAGE_DECIMALS = 4
ANGLE_STEP_DEG = 30.0
_THREE, _FIVE, _WHOLE, _ANGLE = to_digits(3), to_digits(5), to_step(1.0), to_step(ANGLE_STEP_DEG)

_NAMED: dict[str, Rule] = {"name": _text, "in_service": _flag}
_ON_BUS: dict[str, Rule] = {**_NAMED, "bus": int}
_TAP: dict[str, Rule] = {
    "tap_side": _text,
    **dict.fromkeys(("tap_neutral", "tap_min", "tap_max"), _WHOLE),
    **dict.fromkeys(("tap_step_percent", "tap_step_degree"), _THREE),
}
_LOSSES = dict.fromkeys(("pfe_kw", "i0_percent"), _THREE)
_WARD = {**_ON_BUS, **dict.fromkeys(("ps_mw", "qs_mvar", "pz_mw", "qz_mvar"), _THREE)}
_SIDES = ("hv", "mv", "lv")
RATINGS = {"p_mw": _THREE, "sn_mva": _FIVE}
SHORT_CIRCUIT = {
    "trafo": ("vk_percent", "vkr_percent"),
    "trafo3w": tuple(f"vk{r}_{side}_percent" for side in _SIDES for r in ("", "r")),
}
ZERO_SHORT_CIRCUIT = ("vk0_percent", "vkr0_percent")
SHUNT = ("q_mvar", "p_mw")

_FRAME: dict[str, dict[str, Rule]] = {
    "bus": {**_NAMED, "vn_kv": _FIVE},
    "ext_grid": {**_ON_BUS, "vm_pu": _volts, "va_degree": _ANGLE},
    "line": {**_NAMED, "from_bus": int, "to_bus": int, "parallel": _count, "std_type": _text},
    "trafo": {
        **_NAMED,
        **{"hv_bus": int, "lv_bus": int, "parallel": _count, "shift_degree": _ANGLE},
        **dict.fromkeys(("sn_mva", "vn_hv_kv", "vn_lv_kv"), _FIVE),
        **dict.fromkeys(("leakage_resistance_ratio_hv", "leakage_reactance_ratio_hv"), _THREE),
        **_LOSSES,
        **_TAP,
    },
    "trafo3w": {
        **_NAMED,
        **dict.fromkeys((f"{side}_bus" for side in _SIDES), int),
        **dict.fromkeys((f"sn_{side}_mva" for side in _SIDES), _FIVE),
        **dict.fromkeys((f"vn_{side}_kv" for side in _SIDES), _FIVE),
        **{"shift_mv_degree": _ANGLE, "shift_lv_degree": _ANGLE},
        **{"tap_at_star_point": _flag, "loss_side": _text},
        **_LOSSES,
        **_TAP,
    },
    "switch": {
        **{"name": _text, "bus": int, "element": int, "et": _text, "type": _text, "closed": _flag},
        "z_ohm": _THREE,
    },
    "shunt": {**_ON_BUS, "vn_kv": _FIVE, "step": _WHOLE, "max_step": _WHOLE},
    "impedance": {
        **_NAMED,
        **{"from_bus": int, "to_bus": int, "sn_mva": _FIVE},
        **dict.fromkeys(("rft_pu", "xft_pu", "rtf_pu", "xtf_pu", "gf_pu", "bf_pu", "gt_pu", "bt_pu"), _THREE),
    },
    "ward": _WARD,
    "xward": _WARD,
    "load": {
        **_ON_BUS,
        **dict.fromkeys(("p_mw", "q_mvar"), _THREE),
        **dict.fromkeys((f"const_{m}_{s}_percent" for m in "zi" for s in "pq"), _WHOLE),
        **{"profile": _text, "type": _connection},
    },
    "asymmetric_load": {
        **_ON_BUS,
        **dict.fromkeys((f"{s}_{p}_{u}" for s, u in (("p", "mw"), ("q", "mvar")) for p in "abc"), _THREE),
        **{"profile": _text, "type": _connection},
    },
    "motor": {
        **_ON_BUS,
        **dict.fromkeys(
            ("pn_mech_mw", "efficiency_percent", "loading_percent", "cos_phi", "scaling"), _THREE
        ),
        "profile": _text,
    },
    "sgen": {**_ON_BUS, "type": _text},
    "asymmetric_sgen": {**_ON_BUS, "type": _text},
    "gen": {**_ON_BUS, "type": _text, "slack": _flag, "vm_pu": _volts},
    "storage": _ON_BUS,
    "dcline": {**_NAMED, "from_bus": int, "to_bus": int},
}
"""Table → column → how its figures are rounded; ratings, short-circuit figures and shunts come from
`parameters`, tap positions from `framed`."""
_ZERO_SEQUENCE: dict[str, dict[str, Rule]] = {
    "ext_grid": dict.fromkeys(SOURCE, _THREE),
    "trafo": {"vector_group": _text, **dict.fromkeys(("mag0_percent", "mag0_rx", "si0_hv_partial"), _THREE)},
    "impedance": dict.fromkeys(IMPEDANCE, _THREE),
}
"""What a net that is read by phases has beside that; r0, x0, c0 and vk0 come from `parameters`."""
_CONSTANT: dict[str, Any] = {
    **{"scaling": 1.0, "df": 1.0, "slack_weight": 1.0, "max_i_ka": 1.0},
    **{"tap_dependency_table": False, "step_dependency_table": False, "controllable": False},
    **{"q_mvar": 0.0, "current_source": True, "reactive_capability_curve": False},
}
"""Columns of a twin's tables that are the same in every net, where the frame names no rule for them."""
_SCALED = {"load": ("p_mw", "q_mvar"), "asymmetric_load": tuple(_FRAME["asymmetric_load"])[3:9]}
_CHARACTERISTICS = {
    "trafo": "tap_dependency_table",
    "trafo3w": "tap_dependency_table",
    "shunt": "step_dependency_table",
}
_OPTIONS: dict[str, Rule] = {
    "trafo_model": _text,
    "trafo3w_losses": _text,
    "switch_rx_ratio": _THREE,
    "neglect_open_switch_branches": _flag,
}
_DECLARE = (
    "where somebody set them, write them with 'dp-powerflow inspect FEEDER --save-taps FILE', make the first "
    f"line '# {TAPS_DECLARED}WHO SET THESE TAPS', and set feeder.taps to FILE"
)
_SAME_ANGLE_DEG = 1e-6
_TURNED_DEG = 4.0
_SHIFTS = {"trafo": ("shift_degree",), "trafo3w": ("shift_mv_degree", "shift_lv_degree")}


def framed(net: Any, controls: Controls, *, keep_taps: bool, by_phase: bool) -> Any:
    """A new net with the frame of another; the figures that have levels are missing.

    Parameters
    ----------
    controls : of the net; a twin's taps are moved by the same, its bands to 1e-4 of the voltage.
    keep_taps : whether tap positions are public: declared, or of a public net. Otherwise they are neutral.
    by_phase : whether the net is read by phases, with its zero sequence.
    """
    made = copy.deepcopy(_empty_net())
    made["f_hz"], made["sn_mva"] = _THREE(net.f_hz), _FIVE(net.sn_mva)
    with third_party_warnings():
        for kind, rules in _FRAME.items():
            if kind in net and len(net[kind]):
                zero = _ZERO_SEQUENCE.get(kind, {}) if by_phase else {}
                made[kind] = _table(net[kind], made[kind], {**rules, **zero}, _SCALED.get(kind, ()))
        for kind in (kind for kind in ("trafo", "trafo3w") if len(net[kind])):
            made[kind]["tap_pos"] = list(made[kind]["tap_neutral"])
            made[kind]["tap_changer_type"] = [changer_type(row) for _, row in net[kind].iterrows()]
        # A voltage that is not held here is left out: it may be a computed one.
        made["gen"]["vm_pu"] = made["gen"]["vm_pu"].where(made["gen"]["slack"].astype(bool), 1.0)
    for changer in tap_changers(net) if keep_taps else ():
        made[changer.kind].at[changer.index, "tap_pos"] = float(round(changer.position))
    for control in controls.taps:
        band = _volts(control.lower), _volts(control.upper)
        with third_party_warnings():
            made_control = getattr(require("pandapower.control"), CONTROL)
            made_control(made, control.changer.index, *band, side=control.side)
    options = net.get("user_pf_options") or {}
    made["user_pf_options"] = {key: rule(options[key]) for key, rule in _OPTIONS.items() if key in options}
    return made


@functools.cache
def _empty_net() -> Any:
    with third_party_warnings():
        return require("pandapower").create_empty_network(add_stdtypes=False)


def _table(source: Any, empty: Any, rules: Mapping[str, Rule], scaled: tuple[str, ...]) -> Any:
    """Rows of one table, of whitelisted columns alone."""
    table = empty.reindex(source.index)
    scaling = [float(value) for value in source["scaling"]] if scaled else []
    for column in table.columns:
        if column not in rules and column in _CONSTANT:
            table[column] = [_CONSTANT[column]] * len(source)
    for column, rule in rules.items():
        if column not in source:
            continue
        values = list(source[column])
        if column in scaled:
            values = [float(value) * factor for value, factor in zip(values, scaling, strict=True)]
        table[column] = [rule(value) for value in values]
    return table


# ------------------------------------------------------------------- what may be a result of the true lines


def refuse_results(net: Any, controls: Controls, *, public: bool, taps_declared: bool) -> None:
    """Refuse a net whose twin would keep true figures, or states that were solved on it.

    Parameters
    ----------
    public : whether the net is public data, such as a SimBench code; its states are then public too.
    taps_declared : whether a tap file states the taps.
    controls : of the net that a twin has too; what they left does not reach it.
    """
    problems = Problems([*_characteristics(net), *_unknown_tables(net)])
    if not public:
        problems.add(
            *_controllers(net, controls, taps_declared),
            *_taps_off_neutral(net, controls, taps_declared),
            *_second_changers(net),
            *_shifts(net),
            *_open_steps(net),
            *_sources(net),
        )
    problems.refuse()


def _characteristics(net: Any) -> Iterator[FeederError]:
    """Characteristic tables override the figures that carry the noise."""
    for kind, column in _CHARACTERISTICS.items():
        if kind in net and column in net[kind] and net[kind][column].fillna(False).astype(bool).any():
            yield NoTwinError(
                f"a {kind} of the net takes its figures from a characteristic table, which a twin cannot "
                f"protect; set its {column} to False"
            )


def _unknown_tables(net: Any) -> Iterator[FeederError]:
    for kind in net:
        columns = getattr(net[kind], "columns", ())
        if kind in _FRAME or kind == "controller" or kind.startswith(("res_", "_")):
            continue
        if "in_service" in columns and kind != "bus_dc" and in_service(net, kind):
            yield NoTwinError(
                f"the net has elements of kind {kind} in service, which a twin does not know; replace them, "
                "or take them out of service"
            )


def _shifts(net: Any) -> Iterator[FeederError]:
    """A twin has vector groups alone; another angle is the state of a phase shifter.

    Small angles are dropped: they change less than the coarseness with which a twin is compared.
    """
    names = Names(net)
    found = [
        names.of(kind, row.Index)
        for kind, columns in _SHIFTS.items()
        for row in in_service(net, kind)
        if any(abs(math.remainder(_angle(row, column), ANGLE_STEP_DEG)) > _TURNED_DEG for column in columns)
    ]
    if found:
        yield NoTwinError(
            f"transformer {some_of(found)} turns the angle by what is no vector group, as a phase shifter "
            f"that a control may have left; set its shift_degree to a multiple of {ANGLE_STEP_DEG:g}"
        )


def _angle(row: Any, column: str) -> float:
    degrees = float(getattr(row, column, 0.0))
    return 0.0 if math.isnan(degrees) else degrees


def _controllers(net: Any, controls: Controls, taps_declared: bool) -> Iterator[FeederError]:
    for row in in_service(net, "controller"):
        driven = getattr(row.object, "element", None)
        if controls.taps and type(row.object).__name__ == CONTROL:
            continue
        if taps_declared and driven in ("trafo", "trafo3w"):
            continue
        words = f" of table '{driven}'" if isinstance(driven, str) else ""
        yield NoTwinError(
            f"the net has a controller{words} in service, and the state it leaves follows from the lines; "
            f"take it out of service and state what it drives (for taps, {_DECLARE})"
        )


def _taps_off_neutral(net: Any, controls: Controls, taps_declared: bool) -> Iterator[FeederError]:
    found: dict[str, list[str]] = {}
    for changer in tap_changers(net):
        if changer.kind == "trafo" and changer.index in controls.detached:
            continue  # a twin starts at neutral
        stated = taps_declared and changer.step is not None
        if not stated and changer.position != changer.neutral:
            how = _DECLARE if changer.step is not None else "set its tap_pos to tap_neutral"
            found.setdefault(how, []).append(changer.name)
    for how, names in found.items():
        who = f"transformer {some_of(names)} stands at a tap"
        if len(names) > 1:
            who = f"{len(names)} transformers ({some_of(names)}) stand at taps"
        yield NoTwinError(f"{who} that a control may have left, which is then a function of the lines; {how}")


def _second_changers(net: Any) -> Iterator[FeederError]:
    names = Names(net)
    for index, row in net.trafo.iterrows():
        if row["in_service"] and row.get("tap2_side") in ("hv", "lv"):
            if row.get("tap2_pos") == row.get("tap2_neutral"):
                continue
            yield TapsError(
                f"transformer '{names.of('trafo', int(index))}' has a second tap changer away from neutral, "
                "which no tap file can declare; set its tap2_pos to tap2_neutral"
            )


def _open_steps(net: Any) -> Iterator[FeederError]:
    names = Names(net)
    found = [
        names.of("shunt", row.Index)
        for row in in_service(net, "shunt")
        if float(row.step) != float(getattr(row, "max_step", row.step))
    ]
    if found:
        who = f"shunt {some_of(found)} stands at a step"
        if len(found) > 1:
            who = f"{len(found)} shunts ({some_of(found)}) stand at steps"
        yield NoTwinError(
            f"{who} that a control may have left, as a function of the lines; state the bank you declare "
            "with step = max_step, or take it out of service"
        )


def _sources(net: Any) -> Iterator[FeederError]:
    """Set points are short decimals; sources may differ in angle by multiples of 30° only."""
    names = Names(net)
    turned = []
    for kind in ("ext_grid", "gen"):
        for row in in_service(net, kind):
            if kind == "gen" and not row.slack:
                continue
            name = names.of(kind, row.Index)
            if float(row.vm_pu) != _volts(row.vm_pu):
                yield NoTwinError(
                    f"the voltage of source '{name}' has more than {VOLTAGE_DECIMALS} decimals, as computed "
                    "ones have; state its set point vm_pu"
                )
            turned.append(math.remainder(float(getattr(row, "va_degree", 0.0) or 0.0), ANGLE_STEP_DEG))
    if turned and max(turned) - min(turned) > _SAME_ANGLE_DEG:
        yield NoTwinError(
            "the sources of the net differ in angle by more than vector groups do, as computed angles do; "
            "state va_degree as multiples of 30"
        )
