"""Levels of the elements of a pandapower net, and the net of a twin made from its frame and other levels."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import (
    TAPS_DECLARED,
    CodedLine,
    Feeder,
    Levels,
    NetworkParameters,
    ParameterKey,
    Record,
)
from dp_powerflow.grid.pandapower import engine as pp
from dp_powerflow.grid.pandapower.circuit import LINE as ZERO_LINE
from dp_powerflow.grid.pandapower.circuit import PHASES
from dp_powerflow.grid.pandapower.reader import (
    CONTROL,
    TAPS_NEUTRAL,
    PandapowerOrigin,
    TapControls,
    changer_type,
    read_controls,
    read_pandapower,
    tap_changers,
)
from dp_powerflow.grid.quantities import (
    Protected,
    Quantity,
    codes_of_one_line,
    frame_rules,
    level_of,
    rounded,
    rounding,
    shape_of,
    to_step,
)
from dp_powerflow.grid.refusals import Problems, refusal, said, some_of
from dp_powerflow.units import FloatArray

# ----------------------------------------------------------------------------------------------------------
# The public frame of a pandapower net: what a twin shares with its source, by name and rounded.
#
# A twin's net starts empty. Tables and columns that `data/frames.toml` names are copied into it, every figure
# rounded to a public step; whatever else the source holds (results, profiles, coordinates, unknown columns)
# does not reach it. A tap control that is modelled is made anew with its rounded band, and its tap starts at
# neutral. What else could be the result of a control or of a power flow on the true lines is refused in a
# private net: taps, steps of shunts, source voltages. Figures that carry noise are filled in later, zero
# sequences as ratios to them.


Rule = Callable[[Any], Any]
_PLAIN: dict[str, Rule] = {
    "text": lambda value: value if isinstance(value, str) else None,
    "index": int,
    "flag": lambda value: bool(value) and value == value,
    "count": lambda value: int(value) if math.isfinite(value) else 1,
    "connection": lambda value: value if value in ("wye", "delta") else None,
}
"""Rules that round nothing. What is missing is no text, False, and a count of one."""


def _rule(words: str) -> Rule:
    if words in _PLAIN:
        return _PLAIN[words]
    rounded = rounding(words)
    return lambda value: rounded(float(value))


_FRAME, _ZERO_SEQUENCE = frame_rules("pandapower", _rule), frame_rules("zero-sequence", _rule)
_OPTIONS = _FRAME.pop("options")
"""Table → column → how its figures are rounded; by phases some more; options of the net."""
_VOLTS, _THREE, _FIVE = _rule("4 decimals"), _rule("3 digits"), _rule("5 digits")
ANGLE_STEP_DEG = 30.0
_SIDES = ("hv", "mv", "lv")
RATINGS = {"p_mw": _THREE, "sn_mva": _FIVE}
SHORT_CIRCUIT = {
    "trafo": ("vk_percent", "vkr_percent"),
    "trafo3w": tuple(f"vk{r}_{side}_percent" for side in _SIDES for r in ("", "r")),
}
ZERO_SHORT_CIRCUIT = ("vk0_percent", "vkr0_percent")
SHUNT = ("q_mvar", "p_mw")
_CONSTANT: dict[str, Any] = {
    **{"scaling": 1.0, "df": 1.0, "slack_weight": 1.0, "max_i_ka": 1.0},
    **{"tap_dependency_table": False, "step_dependency_table": False, "controllable": False},
    **{"q_mvar": 0.0, "current_source": True, "reactive_capability_curve": False},
}
"""Columns of a twin's tables that are the same in every net, where the frame names no rule for them."""
_SCALED = {
    "load": ("p_mw", "q_mvar"),
    "asymmetric_load": tuple(
        column for column in _FRAME["asymmetric_load"] if column.startswith(("p_", "q_"))
    ),
}
_CHARACTERISTICS = {
    "trafo": "tap_dependency_table",
    "trafo3w": "tap_dependency_table",
    "shunt": "step_dependency_table",
}
_SAME_ANGLE_DEG = 1e-6
_TURNED_DEG = 4.0
_SHIFTS = {"trafo": ("shift_degree",), "trafo3w": ("shift_mv_degree", "shift_lv_degree")}


def framed(net: Any, controls: TapControls, *, keep_taps: bool, by_phase: bool) -> Any:
    """A new net with the frame of another; the figures that have levels are missing.

    Parameters
    ----------
    controls : of the net; a twin's taps are moved by the same, its bands to 1e-4 of the voltage.
    keep_taps : whether tap positions are public: declared, or of a public net. Otherwise they are neutral.
    by_phase : whether the net is read by phases, with its zero sequence.
    """
    made = copy.deepcopy(pp.empty_net())
    made["std_types"] = {}
    made["f_hz"], made["sn_mva"] = _THREE(net.f_hz), _FIVE(net.sn_mva)
    with pp.third_party_warnings():
        for kind, rules in _FRAME.items():
            if kind in net and len(net[kind]):
                zero = _ZERO_SEQUENCE.get(kind, {}) if by_phase else {}
                made[kind] = _table(net[kind], made[kind], {**rules, **zero}, _SCALED.get(kind, ()))
        for kind in (kind for kind in ("trafo", "trafo3w") if len(net[kind])):
            made[kind]["tap_pos"] = list(made[kind]["tap_neutral"])
            made[kind]["tap_changer_type"] = list(map(changer_type, net[kind]["tap_changer_type"]))
        # A voltage that is not held here is left out: it may be a computed one.
        made["gen"]["vm_pu"] = made["gen"]["vm_pu"].where(made["gen"]["slack"].astype(bool), 1.0)
    for changer in tap_changers(net) if keep_taps else ():
        made[changer.kind].at[changer.index, "tap_pos"] = float(round(changer.position))
    for control in controls.taps:
        band = _VOLTS(control.lower), _VOLTS(control.upper)
        with pp.third_party_warnings():
            made_control = getattr(pp.require("pandapower.control"), CONTROL)
            made_control(made, control.changer.index, *band, side=control.side)
    options = net.get("user_pf_options") or {}
    made["user_pf_options"] = {key: rule(options[key]) for key, rule in _OPTIONS.items() if key in options}
    return made


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


def refuse_results(net: Any, controls: TapControls, *, public: bool, taps_declared: bool) -> None:
    """Refuse a net whose twin would keep true figures, or states that were solved on it.

    Parameters
    ----------
    public : whether the net is public data, such as a SimBench code; its states are then public too.
    taps_declared : whether a tap file states the taps.
    controls : of the net that a twin has too; what they left does not reach it.
    """
    problems = Problems(_true_figures(net))
    if not public:
        problems.add(
            *_controllers(net, controls, taps_declared),
            *_taps_off_neutral(net, controls, taps_declared),
            *_standing(net),
            *_sources(net),
        )
    problems.refuse()


def _true_figures(net: Any) -> Iterator[FeederError]:
    """Characteristic tables, which override the figures that carry the noise, and tables without a rule."""
    for kind, column in _CHARACTERISTICS.items():
        if kind in net and column in net[kind] and net[kind][column].fillna(False).astype(bool).any():
            yield refusal("twin-not-possible.characteristic", kind=kind, column=column)
    for kind in net:
        if kind in _FRAME or kind == "controller" or kind.startswith(("res_", "_")):
            continue
        if (
            "in_service" in getattr(net[kind], "columns", ())
            and kind != "bus_dc"
            and pp.in_service(net, kind)
        ):
            yield refusal("twin-not-possible.unknown-table", kind=kind)


def _controllers(net: Any, controls: TapControls, taps_declared: bool) -> Iterator[FeederError]:
    for row in pp.in_service(net, "controller"):
        driven = getattr(row.object, "element", None)
        modelled = controls.taps and type(row.object).__name__ == CONTROL
        if not modelled and not (taps_declared and driven in ("trafo", "trafo3w")):
            words = f" of table '{driven}'" if isinstance(driven, str) else ""
            yield refusal("twin-not-possible.controller", words=words, declare=said("words.declare-taps"))


def _taps_off_neutral(net: Any, controls: TapControls, taps_declared: bool) -> Iterator[FeederError]:
    found: dict[str, list[str]] = {}
    for changer in tap_changers(net):
        if changer.kind == "trafo" and changer.index in controls.detached:
            continue  # a twin starts at neutral
        stated = taps_declared and changer.step is not None
        if not stated and changer.position != changer.neutral:
            how = "declare-taps" if changer.step is not None else "neutral-taps"
            found.setdefault(how, []).append(changer.name)
    for how, names in found.items():
        who = _standing_at("transformer", "tap", names)
        yield refusal("twin-not-possible.left-by-control", who=who, how=said(f"words.{how}"))


def _standing_at(kind: str, place: str, names: list[str]) -> str:
    """Which elements stand at places that a control may have left."""
    if len(names) == 1:
        return f"{kind} '{names[0]}' stands at a {place}"
    return f"{len(names)} {kind}s ({some_of(names)}) stand at {place}s"


def _standing(net: Any) -> Iterator[FeederError]:
    """Second tap changers, phase shifters and steps of shunts as a control may have left them.

    A twin has vector groups alone. Small angles are dropped: they change less than the coarseness with which
    a twin is compared.
    """
    names = pp.Names(net)
    for row in pp.in_service(net, "trafo"):
        second = getattr(row, "tap2_side", None) in ("hv", "lv")
        if second and getattr(row, "tap2_pos", None) != getattr(row, "tap2_neutral", None):
            yield refusal("taps.second-changer", name=names.of("trafo", row.Index))
    turned = [
        names.of(kind, row.Index)
        for kind, columns in _SHIFTS.items()
        for row in pp.in_service(net, kind)
        if any(abs(math.remainder(_angle(row, column), ANGLE_STEP_DEG)) > _TURNED_DEG for column in columns)
    ]
    if turned:
        yield refusal("twin-not-possible.shift", names=some_of(turned))
    shunts = [
        names.of("shunt", row.Index)
        for row in pp.in_service(net, "shunt")
        if float(row.step) != float(getattr(row, "max_step", row.step))
    ]
    if shunts:
        yield refusal("twin-not-possible.shunt-steps", who=_standing_at("shunt", "step", shunts))


def _angle(row: Any, column: str) -> float:
    degrees = float(getattr(row, column, 0.0) or 0.0)
    return 0.0 if math.isnan(degrees) else degrees


def _sources(net: Any) -> Iterator[FeederError]:
    """Set points are short decimals; sources may differ in angle by multiples of 30° only."""
    names = pp.Names(net)
    sources = [(kind, row) for kind in ("ext_grid", "gen") for row in pp.in_service(net, kind)]
    sources = [(kind, row) for kind, row in sources if kind == "ext_grid" or row.slack]
    for kind, row in sources:
        if float(row.vm_pu) != _VOLTS(row.vm_pu):
            yield refusal("twin-not-possible.source-decimals", name=names.of(kind, row.Index))
    turned = [math.remainder(_angle(row, "va_degree"), ANGLE_STEP_DEG) for _, row in sources]
    if turned and max(turned) - min(turned) > _SAME_ANGLE_DEG:
        yield refusal("twin-not-possible.source-angles")


RATIO_STEP = 1.0 / 16.0
"""Step of the ratios between sequences and of the shares of phases, which are public."""
_COARSE_FROM = 4.0
"""Ratios beyond have larger steps."""
_PUBLIC = _FIVE
_PER_LENGTH = ("r_ohm_per_km", "x_ohm_per_km", "c_nf_per_km", "g_us_per_km")
_ALPHA_PER_K, _REFERENCE_C = 4e-3, 20.0


@dataclass(frozen=True)
class _Entry:
    """One standard type of line, rounded: ohm/km, nF/km, µS/km.

    `zero` are the ratios r0/r, x0/x and c0/c, None where the type states no zero sequence.
    """

    r: float
    x: float
    c: float
    g: float
    zero: tuple[float, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class _Line:
    """One line in service.

    Attributes
    ----------
    charged : whether it has charging at all.
    figures : quantity → its total, of one of the parallel circuits and with its sign; PRIVATE.
    zero : r0/r, x0/x and c0/c, in public steps.
    """

    index: int
    name: str
    code: str | None
    charged: bool
    figures: Mapping[Quantity, float]
    zero: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class _Group:
    """Columns of one row that share a level.

    Attributes
    ----------
    figures : in the order of the columns; PRIVATE.
    rules : how each is rounded where it is public.
    """

    quantity: Quantity
    kind: str
    index: int
    columns: tuple[str, ...]
    figures: FloatArray
    rules: tuple[Rule, ...]


class _Source:
    """PRIVATE. What twins of a net are made from, read once.

    Attributes
    ----------
    catalogue : standard line types that are public.
    lines, groups : elements with levels, in the order of the tables.
    """

    def __init__(self, origin: PandapowerOrigin, protected: Protected) -> None:
        self.origin = origin
        self.catalogue = _catalogue(origin, protected)
        self.controls = read_controls(origin.net, by_phase=origin.by_phase)
        self.lines = tuple(_lines(origin.net, protected, self.catalogue))
        self.groups = tuple(_groups(origin))
        self.names = pp.Names(origin.net)
        self._framed: dict[bool, Any] = {}

    def frame(self, *, declared: bool) -> Any:
        """A new net with the frame of the twins; the figures that have levels are missing.

        Parameters
        ----------
        declared : whether taps are declared, and kept.
        """
        origin = self.origin
        if declared not in self._framed:
            refuse_results(origin.net, self.controls, public=origin.public, taps_declared=declared)
            made = framed(
                origin.net, self.controls, keep_taps=origin.public or declared, by_phase=origin.by_phase
            )
            made["std_types"]["line"] = {
                name: dict(zip(_PER_LENGTH, (entry.r, entry.x, entry.c, entry.g), strict=True))
                for name, entry in self.catalogue.items()
            }
            pp.check_net(made)
            self._framed[declared] = made
        return pp.own_copy(self._framed[declared])


@functools.lru_cache(maxsize=4)
def _source_of(origin: PandapowerOrigin, protected: Protected) -> _Source:
    return _Source(origin, protected)


@functools.lru_cache(maxsize=4)
def read_parameters(origin: PandapowerOrigin, protected: Protected) -> NetworkParameters:
    """Every level that noise covers; refuses what could not be rebuilt from them."""
    source = _source_of(origin, protected)
    # Who gave the taps is known to the feeder: `rebuild` asks.
    refuse_results(origin.net, source.controls, public=origin.public, taps_declared=origin.taps_given)
    levels: dict[ParameterKey, float] = {}
    coded: list[CodedLine] = []
    for line in source.lines:
        if line.code is not None:
            coded.append(CodedLine(line.name, line.code, tuple(sorted(source.catalogue))))
        levels.update({ParameterKey(quantity, line.name): abs(v) for quantity, v in line.figures.items()})
    for group in source.groups:
        if protected.covers(group.quantity):
            levels[_key(source.names, group)] = level_of(group.figures)
    compensating = tuple(
        f"{kind}:{source.names.of(kind, row.Index)}"
        for kind in ("ward", "xward")
        for row in pp.in_service(origin.net, kind)
        if row.qs_mvar < 0.0 or row.qz_mvar < 0.0
    )
    positive = {key: level for key, level in levels.items() if level > 0.0}
    return NetworkParameters(positive, tuple(coded), compensating)


def rebuild(feeder: Feeder, protected: Protected, levels: Levels, codes: Mapping[str, str]) -> Feeder:
    """A feeder of the source's frame and these levels alone; every parameter must have one."""
    origin = feeder.origin
    assert isinstance(origin, PandapowerOrigin)
    source = _source_of(origin, protected)
    controlled = bool(source.controls.taps)
    # Without a tap file only `Rebuilder.check` says so, to compare at the taps that a control left.
    declared = feeder.taps_from.startswith(TAPS_DECLARED) and (origin.taps_given or controlled)
    made = source.frame(declared=declared)
    record = Record(levels)
    _fill_lines(source, made, protected, record, codes)
    _fill_groups(source, made, protected, record)
    record.refuse_rest()
    twin = read_pandapower(
        made,
        name=feeder.name,
        base_mva=origin.base_per_phase(feeder),
        taps=feeder.taps if declared else None,
        public=origin.public,
        own=True,
    )
    neutral = controlled and not (declared or origin.public)
    return replace(twin, taps_from=TAPS_NEUTRAL if neutral else feeder.taps_from)


# ------------------------------------------------------------------------------------------ lines


def _catalogue(origin: PandapowerOrigin, protected: Protected) -> dict[str, _Entry]:
    """The standard line types of the net that are public.

    A type of the owner's that one line alone has is none, unless every type is declared public. Where a line
    is its length and its type, a net that is read by phases has no use for types without a zero sequence.
    """
    net = origin.net
    entries = _entries(net.std_types.get("line", {}) if "std_types" in net else {})
    if origin.by_phase and protected.lines == "length":
        entries = {name: entry for name, entry in entries.items() if entry.zero is not None}
    if origin.public or protected.codes:
        return entries
    lone = codes_of_one_line((row.std_type, row.from_bus, row.to_bus) for row in pp.in_service(net, "line"))
    library = _entries(pp.empty_net().std_types["line"])  # pandapower's own types, which every net may have
    return {name: entry for name, entry in entries.items() if name not in lone or library.get(name) == entry}


def _entries(types: Mapping[str, Mapping[str, float]]) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for name, entry in types.items():
        r, x, c, g = (_PUBLIC(entry.get(column, math.nan)) for column in _PER_LENGTH)
        if all(map(math.isfinite, (r, x, c))) and x > 0.0:
            zero = tuple(
                _PUBLIC(entry.get(column, math.nan)) / known if known else 0.0
                for column, known in zip(ZERO_LINE, (r, x, c), strict=True)
            )
            stated = zero if all(map(math.isfinite, zero)) else None
            entries[str(name)] = _Entry(r, x, c, 0.0 if math.isnan(g) else g, stated)
    return entries


def _lines(net: Any, protected: Protected, catalogue: Mapping[str, _Entry]) -> Iterator[_Line]:
    names = pp.Names(net)
    warm = bool((net.get("user_pf_options") or {}).get("consider_line_temperature"))
    for index, row in net.line.iterrows():
        if not row["in_service"]:
            continue
        stated = row.get("std_type")
        code = stated if stated in catalogue else None
        length = float(row["length_km"])
        r, x, c = (float(row[column]) * length for column in _PER_LENGTH[:3])
        if warm:
            alpha = float(row.get("alpha", _ALPHA_PER_K))
            r *= 1.0 + alpha * (float(row["temperature_degree_celsius"]) - _REFERENCE_C)
        figures = {Quantity.RESISTANCE: r, Quantity.REACTANCE: x}
        if protected.lines == "length" and code is not None:
            figures = {Quantity.LENGTH: length}
        if protected.charging:
            figures[Quantity.CHARGING] = c
        yield _Line(int(index), names.of("line", int(index)), code, bool(c), figures, _zero_ratios(row))


def _zero_ratios(row: Any) -> tuple[float, ...]:
    """r0/r, x0/x and c0/c of a line, in steps: a true r0 would give the level away."""
    zero, own = (
        np.array([float(row.get(column, 0.0)) for column in columns])
        for columns in (ZERO_LINE, _PER_LENGTH[:3])
    )
    return _in_steps(np.divide(zero, own, out=np.zeros(len(own)), where=own != 0.0))


def _in_steps(ratios: FloatArray) -> tuple[float, ...]:
    """Public ratios: whole steps, at least one where there is anything.

    Steps double with the ratio, so that none has more than six bits: where a zero sequence is a known figure,
    a ratio of 100 in sixteenths would state R to 0.03 %, whatever its noise.
    """
    found = []
    for ratio in rounded(ratios):
        step = RATIO_STEP * 2.0 ** max(math.ceil(math.log2(ratio / _COARSE_FROM)) if ratio > 0.0 else 0, 0)
        found.append(max(to_step(ratio, step), step * float(ratio > 0.0)))
    return tuple(found)


def _fill_lines(
    source: _Source, made: Any, protected: Protected, record: Record, codes: Mapping[str, str]
) -> None:
    """Length and figures per km of every line; those out of service get figures that mean nothing.

    Parameters
    ----------
    made : the net that is made.
    """
    zero_columns = ZERO_LINE if source.origin.by_phase else ()
    empty = dict.fromkeys(("length_km", "r_ohm_per_km", "x_ohm_per_km"), 1.0)
    empty |= dict.fromkeys(("c_nf_per_km", "g_us_per_km", *zero_columns), 0.0)
    rows: dict[int, dict[str, Any]] = {
        int(index): {**empty, "std_type": stated} for index, stated in made.line["std_type"].items()
    }
    for line in source.lines:
        totals = {
            quantity: math.copysign(record.take(ParameterKey(quantity, line.name)), figure)
            for quantity, figure in line.figures.items()
            if figure != 0.0
        }
        if not set(totals) - {Quantity.CHARGING}:
            continue
        code = codes.get(line.name) if protected.codes and line.code is not None else line.code
        if line.code is not None and code not in source.catalogue:
            raise refusal("feeder.record-code", line=line)
        entry = None if code is None else source.catalogue[code]
        values = _per_km(totals, entry, protected, line.charged)
        ratios = line.zero
        if entry is not None and entry.zero is not None and protected.lines == "length":
            ratios = entry.zero
        row = rows[line.index]
        row.update(zip(("length_km", *_PER_LENGTH), values, strict=True), std_type=code)
        row.update({column: values[k + 1] * ratios[k] for k, column in enumerate(zero_columns)})
    for column in (*empty, "std_type"):
        made.line[column] = [row[column] for row in rows.values()]


def _per_km(
    totals: Mapping[Quantity, float], entry: _Entry | None, protected: Protected, charged: bool
) -> tuple[float, float, float, float, float]:
    """Length [km], R, X [ohm/km], C [nF/km] and G [µS/km] of a twin's line, from levels and public figures.

    Parameters
    ----------
    charged : whether a line without a code has charging at all.
    """
    r, x = totals.get(Quantity.RESISTANCE, 0.0), totals.get(Quantity.REACTANCE, 0.0)
    length = totals.get(Quantity.LENGTH)
    if length is None:
        # A line without reactance is as long as its resistance says.
        length = abs(x or r) / (protected.x_ohm_per_km if entry is None else entry.x)
        r, x = r / length, x / length
    elif entry is not None:
        r, x = entry.r, entry.x
    c = (protected.c_nf_per_km if charged else 0.0) if entry is None else entry.c
    if protected.charging:
        c = totals.get(Quantity.CHARGING, 0.0) / length
    return length, r, x, c, 0.0 if entry is None else entry.g


# ---------------------------------------------------------------------------- everything else


def _groups(origin: PandapowerOrigin) -> Iterator[_Group]:
    """Elements with one level for several columns."""
    net = origin.net

    for kind, columns in {**SHORT_CIRCUIT, "shunt": SHUNT}.items():
        if origin.by_phase and kind == "trafo":
            columns += tuple(column for column in ZERO_SHORT_CIRCUIT if column in net[kind])
        quantity = Quantity.CAPACITOR if kind == "shunt" else Quantity.TRANSFORMER
        for index in net[kind].index:
            values = np.array([net[kind].at[index, column] for column in columns], dtype=np.float64)
            rules = (_PUBLIC,) * len(columns)
            yield _Group(quantity, kind, int(index), columns, np.nan_to_num(values), rules)
    for kind in (kind for kind in pp.FEEDING if kind in net):
        for index, row in net[kind].iterrows():
            figures = _ratings(row) if row["in_service"] and not row.get("slack") else np.zeros(2)
            yield _Group(Quantity.PV, kind, int(index), tuple(RATINGS), figures, tuple(RATINGS.values()))


def _ratings(row: Any) -> FloatArray:
    """Peak power [MW] and rating [MVA]; without a rating, the power, never a reactive power of the moment."""
    phases = [f"p_{phase}_mw" for phase in "abc"]
    p = float(row["p_mw"]) if "p_mw" in row else sum(float(row[column]) for column in phases)
    stated = float(row.get("sn_mva", math.nan))
    return np.array([p, stated if stated > 0.0 else p])


def _fill_groups(source: _Source, made: Any, protected: Protected, record: Record) -> None:
    origin, names = source.origin, source.names
    for group in source.groups:
        if not protected.covers(group.quantity):
            values = [rule(value) for rule, value in zip(group.rules, group.figures, strict=True)]
        elif level_of(group.figures) > 0.0:
            values = list(record.take(_key(names, group)) * shape_of(group.figures))
        else:
            values = [0.0] * len(group.columns)
        for column, value in zip(group.columns, values, strict=True):
            if group.kind == "asymmetric_sgen" and column == "p_mw":
                for phase, share in zip("abc", _phase_shares(origin, group.index), strict=True):
                    made[group.kind].at[group.index, f"p_{phase}_mw"] = float(value) * share
                    made[group.kind].at[group.index, f"q_{phase}_mvar"] = 0.0
            else:
                made[group.kind].at[group.index, column] = float(value)


def _phase_shares(origin: PandapowerOrigin, index: int) -> list[float]:
    """How an unbalanced unit's power is spread over the phases, in steps; equally in a balanced net."""
    row = origin.net.asymmetric_sgen.loc[index]
    powers = [float(row[f"p_{phase}_mw"]) for phase in "abc"]
    total = sum(powers)
    if not origin.by_phase or not row["in_service"] or total <= 0.0:
        return [1.0 / PHASES] * PHASES
    steps = _in_steps(np.array(powers) / total)
    return [step / sum(steps) for step in steps]


def _key(names: pp.Names, group: _Group) -> ParameterKey:
    """Tables may share names, so theirs stands in front."""
    return ParameterKey(group.quantity, f"{group.kind}:{names.of(group.kind, group.index)}")
