"""Levels of the elements of a pandapower net, and the net of a twin made from its frame and other levels."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
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
    Protected,
    Quantity,
    level_of,
    rounded,
    shape_of,
)
from dp_powerflow.grid.pandapower.controls import TAPS_NEUTRAL, read_controls
from dp_powerflow.grid.pandapower.engine import (
    FEEDING,
    Names,
    check_net,
    in_service,
    own_copy,
    require,
    third_party_warnings,
)
from dp_powerflow.grid.pandapower.frame import (
    RATINGS,
    SHORT_CIRCUIT,
    SHUNT,
    ZERO_SHORT_CIRCUIT,
    Rule,
    framed,
    refuse_results,
    to_digits,
    to_step,
)
from dp_powerflow.grid.pandapower.reader import PandapowerOrigin, read_pandapower
from dp_powerflow.grid.pandapower.sequences import LINE as ZERO_LINE
from dp_powerflow.grid.pandapower.skeleton import PHASES
from dp_powerflow.units import FloatArray

RATIO_STEP = 1.0 / 16.0
"""Step of the ratios between sequences and of the shares of phases, which are public."""
_COARSE_FROM = 4.0
"""Ratios beyond have larger steps."""
_PUBLIC = to_digits(5)
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
    figures : quantity → its total, of one of the parallel circuits and with its sign; PRIVATE.
    zero : r0/r, x0/x and c0/c, in public steps.
    """

    index: int
    name: str
    code: str | None
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
    charged : whether a line has charging at all.
    """

    def __init__(self, origin: PandapowerOrigin, protected: Protected) -> None:
        self.origin = origin
        self.catalogue = _catalogue(origin, protected)
        self.controls = read_controls(origin.net, by_phase=origin.by_phase)
        self.lines = tuple(_lines(origin.net, protected, self.catalogue))
        self.groups = tuple(_groups(origin))
        self.names = Names(origin.net)
        stated = zip(origin.net.line.index, origin.net.line["c_nf_per_km"], strict=True)
        self.charged = {int(index): bool(value != 0.0) for index, value in stated}
        self._framed: dict[bool, Any] = {}

    def frame(self, *, declared: bool) -> Any:
        """A net of one's own with the frame of the twins; the figures that have levels are missing.

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
            check_net(made)
            self._framed[declared] = made
        return own_copy(self._framed[declared])


_KEPT = 4
_known: dict[tuple[PandapowerOrigin, Protected], _Source] = {}
"""Of the nets read last."""


def _source_of(origin: PandapowerOrigin, protected: Protected) -> _Source:
    key = (origin, protected)
    if key not in _known:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = _Source(origin, protected)
    return _known[key]


def read_parameters(
    origin: PandapowerOrigin, protected: Protected, engine: object = None
) -> NetworkParameters:
    """Every level that noise covers; refuses what could not be rebuilt from them."""
    del engine
    # Who gave the taps is known to the feeder: `rebuild` asks.
    controls = read_controls(origin.net, by_phase=origin.by_phase)
    refuse_results(origin.net, controls, public=origin.public, taps_declared=origin.taps_given)
    source = _source_of(origin, protected)
    levels: dict[ParameterKey, float] = {}
    coded: list[CodedLine] = []
    for line in source.lines:
        if line.code is not None:
            coded.append(CodedLine(line.name, line.code, tuple(sorted(source.catalogue))))
        levels.update({ParameterKey(quantity, line.name): abs(v) for quantity, v in line.figures.items()})
    for group in source.groups:
        if _covers(protected, group.quantity):
            levels[_key(source.names, group)] = level_of(group.figures)
    compensating = tuple(
        f"{kind}:{source.names.of(kind, row.Index)}"
        for kind in ("ward", "xward")
        for row in in_service(origin.net, kind)
        if row.qs_mvar < 0.0 or row.qz_mvar < 0.0
    )
    positive = {key: level for key, level in levels.items() if level > 0.0}
    return NetworkParameters(positive, tuple(coded), compensating)


def rebuild(
    feeder: Feeder, protected: Protected, levels: Levels, codes: Mapping[str, str], engine: object = None
) -> Feeder:
    """A feeder of the source's frame and these levels alone; every parameter must have one."""
    del engine
    origin = feeder.origin
    if not isinstance(origin, PandapowerOrigin):
        raise FeederError("only a feeder read from pandapower can be rebuilt by it")
    source = _source_of(origin, protected)
    controlled = bool(source.controls.taps)
    # Without a tap file only `Rebuilder.check` says so, to compare at the taps that a control left.
    declared = feeder.taps_from.startswith(TAPS_DECLARED) and (origin.taps_given or controlled)
    made = source.frame(declared=declared)
    _fill_lines(source, made, protected, levels, codes)
    _fill_groups(source, made, protected, levels)
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


def _covers(protected: Protected, quantity: Quantity) -> bool:
    return {
        Quantity.TRANSFORMER: protected.transformers,
        Quantity.CAPACITOR: protected.capacitors,
        Quantity.PV: protected.pv,
    }[quantity]


def _level(levels: Levels, key: ParameterKey) -> float:
    if key not in levels:
        raise FeederError(
            f"the twin lacks the {key.quantity} of '{key.element}'; draw a twin of this network"
        )
    return levels[key]


# ------------------------------------------------------------------------------------------ lines


def _catalogue(origin: PandapowerOrigin, protected: Protected) -> dict[str, _Entry]:
    """The standard line types of the net that are public.

    A type of the owner's that one line alone has, or parallel ones, states that line's own figures: with a
    length of 1 its totals. It is no entry, unless every type is declared public. Where a line is its length
    and its type, a net that is read by phases has no use for types without a zero sequence.
    """
    net = origin.net
    entries = _entries(net.std_types.get("line", {}) if "std_types" in net else {})
    if origin.by_phase and protected.lines == "length":
        entries = {name: entry for name, entry in entries.items() if entry.zero is not None}
    if origin.public or protected.codes:
        return entries
    spans = {
        (row.std_type, frozenset((int(row.from_bus), int(row.to_bus)))) for row in in_service(net, "line")
    }
    used = Counter(stated for stated, _ in spans)
    library = _library()
    return {name: entry for name, entry in entries.items() if used[name] != 1 or library.get(name) == entry}


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


@functools.cache
def _library() -> dict[str, _Entry]:
    """pandapower's own types, which every net may have."""
    with third_party_warnings():
        return _entries(require("pandapower").create_empty_network().std_types["line"])


def _lines(net: Any, protected: Protected, catalogue: Mapping[str, _Entry]) -> Iterator[_Line]:
    names = Names(net)
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
        yield _Line(int(index), names.of("line", int(index)), code, figures, _zero_ratios(row))


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
        found.append(max(to_step(step)(ratio), step * float(ratio > 0.0)))
    return tuple(found)


def _fill_lines(
    source: _Source, made: Any, protected: Protected, levels: Levels, codes: Mapping[str, str]
) -> None:
    """Length and figures per km of every line; those out of service get figures that mean nothing.

    Parameters
    ----------
    made : the net that is made.
    """
    table, by_phase = made.line, source.origin.by_phase
    columns = {
        **{column: [1.0] * len(table) for column in ("length_km", "r_ohm_per_km", "x_ohm_per_km")},
        **{column: [0.0] * len(table) for column in ("c_nf_per_km", "g_us_per_km")},
        **{column: [0.0] * len(table) for column in (ZERO_LINE if by_phase else ())},
        "std_type": list(table["std_type"]) if len(table) else [],
    }
    place = {int(index): k for k, index in enumerate(table.index)}
    for line in source.lines:
        totals = {
            quantity: math.copysign(_level(levels, ParameterKey(quantity, line.name)), figure)
            for quantity, figure in line.figures.items()
            if figure != 0.0
        }
        if not set(totals) - {Quantity.CHARGING}:
            continue
        code = line.code
        if code is not None and protected.codes:
            code = codes.get(line.name)
            if code not in source.catalogue:
                raise FeederError(
                    f"the twin lacks the code of line '{line.name}'; draw a twin of this network"
                )
        entry = None if code is None else source.catalogue[code]
        values = _per_km(totals, entry, protected, source.charged[line.index])
        k = place[line.index]
        for column, value in zip(("length_km", *_PER_LENGTH), values, strict=True):
            columns[column][k] = value
        if by_phase:
            by_code = entry is not None and protected.lines == "length"
            ratios = entry.zero if by_code and entry is not None and entry.zero is not None else line.zero
            for column, value, ratio in zip(ZERO_LINE, values[1:4], ratios, strict=True):
                columns[column][k] = value * ratio
        columns["std_type"][k] = code
    for column, figures in columns.items():
        table[column] = figures


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

    def of(quantity: Quantity, kind: str, index: int, columns: tuple[str, ...]) -> _Group:
        values = np.array([net[kind].at[index, column] for column in columns], dtype=np.float64)
        return _Group(quantity, kind, index, columns, np.nan_to_num(values), (_PUBLIC,) * len(columns))

    for kind, columns in SHORT_CIRCUIT.items():
        more = ZERO_SHORT_CIRCUIT if origin.by_phase and kind == "trafo" else ()
        known = tuple(column for column in more if column in net[kind])
        for index in net[kind].index:
            yield of(Quantity.TRANSFORMER, kind, int(index), columns + known)
    for index in net.shunt.index:
        yield of(Quantity.CAPACITOR, "shunt", int(index), SHUNT)
    for kind in FEEDING:
        if kind in net:
            for index, row in net[kind].iterrows():
                figures = _ratings(row) if row["in_service"] and not row.get("slack") else np.zeros(2)
                yield _Group(Quantity.PV, kind, int(index), tuple(RATINGS), figures, tuple(RATINGS.values()))


def _ratings(row: Any) -> FloatArray:
    """Peak power [MW] and rating [MVA]; without a rating, the power, never a reactive power of the moment."""
    phases = [f"p_{phase}_mw" for phase in "abc"]
    p = float(row["p_mw"]) if "p_mw" in row else sum(float(row[column]) for column in phases)
    stated = float(row.get("sn_mva", math.nan))
    return np.array([p, stated if stated > 0.0 else p])


def _fill_groups(source: _Source, made: Any, protected: Protected, levels: Levels) -> None:
    origin, names = source.origin, source.names
    for group in source.groups:
        if not _covers(protected, group.quantity):
            values = [rule(value) for rule, value in zip(group.rules, group.figures, strict=True)]
        elif level_of(group.figures) > 0.0:
            values = list(_level(levels, _key(names, group)) * shape_of(group.figures))
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


def _key(names: Names, group: _Group) -> ParameterKey:
    """Tables may share names, so theirs stands in front."""
    return ParameterKey(group.quantity, f"{group.kind}:{names.of(group.kind, group.index)}")
