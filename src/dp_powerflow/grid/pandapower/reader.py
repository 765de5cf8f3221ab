"""pandapower nets and SimBench codes → `Feeder`: phase by phase, or as a balanced single-phase equivalent.

A net with unbalanced elements and zero-sequence figures has three nodes per bus, as in `runpp_3ph`. In all
others one node stands for one bus, its three phases taken together: a load keeps its total three-phase kW,
the power base of a node is three times the base per phase, and voltages in per unit are the net's.
pandapower itself builds the admittances (switches, taps, vector groups); it is an optional dependency.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import (
    GROUND,
    NO_REGULATORS,
    TAPS_GIVEN,
    TAPS_SOLVED,
    Feeder,
    Load,
    PVSystem,
    Tap,
)
from dp_powerflow.grid.operation import CONSTANT_POWER, Branch, Operation, Pick, Regulator, Response, Zip
from dp_powerflow.grid.pandapower import engine as pp
from dp_powerflow.grid.pandapower.circuit import (
    PHASES,
    Circuit,
    Skeleton,
    balanced,
    count_unbalanced,
    lacking,
    three_phase,
)
from dp_powerflow.grid.refusals import Problems, refusal, said
from dp_powerflow.units import KW_PER_MW

# ----------------------------------------------------------------------------------------------------------
# Tap controls of a pandapower net → regulators of a feeder as operated.
#
# `DiscreteTapControl` moves a tap by one position per round while the voltage of its bus is outside of a
# band. It is read for transformers with two windings whose positions change the turns ratio. All other
# controllers in service that would move something are named in `Operation.refused`. A transformer that is
# moved stands behind its own node, tied to its bus by next to no impedance: a source or a bus may have
# several of them.


TAPS_OF_NET = "tap positions of the pandapower net"
SIDES = {"trafo": ("hv", "lv"), "trafo3w": ("hv", "mv", "lv")}
_BY_RATIO = ("Ratio", "Symmetrical")
_ACTING = (*_BY_RATIO, "Ideal")


@dataclass(frozen=True)
class TapChanger:
    """A tap changer that acts in pandapower's model, of a transformer in service.

    Attributes
    ----------
    kind, index : table of the transformer, and its index there.
    name : of the transformer in a tap file; "trafo3w:" stands in front of one with three windings.
    winding : 1 for the first winding, the high-voltage one.
    position, neutral : as the net states them.
    step : change of the turns ratio per position; None where positions turn the angle, which no tap file
        can say.
    lowest, highest : positions, nan where the net states none.
    """

    kind: str
    index: int
    name: str
    winding: int
    position: float
    neutral: float
    step: float | None
    lowest: float
    highest: float

    @property
    def tap(self) -> Tap:
        """Its turns ratio as it stands; 1 where positions turn the angle."""
        return Tap(self.name, self.winding, self.ratio_of(self.position))

    def ratio_of(self, position: float) -> float:
        """Turns ratio at a position."""
        return 1.0 + (position - self.neutral) * (self.step or 0.0)

    def position_of(self, ratio: float) -> float:
        """The whole position nearest to a turns ratio."""
        if self.step is None:
            raise refusal("taps.angle", name=self.name)
        position = self.neutral + round((ratio - 1.0) / self.step)
        if position < self.lowest or position > self.highest:
            raise refusal("taps.range", name=self.name)
        return position


def tap_changers(net: Any) -> Iterator[TapChanger]:
    """The changers that act; those without a type have no effect in pandapower."""
    names = pp.Names(net)
    for kind, windings in SIDES.items():
        for row in pp.in_service(net, kind):
            found = {
                key: _number(getattr(row, f"tap_{key}", None))
                for key in ("step_percent", "step_degree", "pos", "neutral", "min", "max")
            }
            side, acting = getattr(row, "tap_side", None), changer_type(row.tap_changer_type)
            percent, degree = (_number(found[f"step_{unit}"], 0.0) for unit in ("percent", "degree"))
            if side not in windings or acting is None or not (percent or degree):
                continue
            name = names.of(kind, row.Index)
            neutral = _number(found["neutral"], 0.0)
            yield TapChanger(
                kind=kind,
                index=row.Index,
                name=name if kind == "trafo" else f"{kind}:{name}",
                winding=windings.index(side) + 1,
                position=_number(found["pos"], neutral),
                neutral=neutral,
                step=percent / 100.0 if acting in _BY_RATIO and not degree else None,
                lowest=found["min"],
                highest=found["max"],
            )


def changer_type(stated: object) -> str | None:
    """How a tap changer acts by its `tap_changer_type`, None if it does not."""
    return str(stated) if stated in _ACTING else None


def set_taps(net: Any, taps: Sequence[Tap]) -> None:
    """Put every tap changer where the taps say, at whole positions; refuse taps that do not fit the net."""
    changers = {(changer.name, changer.winding): changer for changer in tap_changers(net)}
    given = {(tap.transformer, tap.winding): tap.ratio for tap in taps}
    problems = Problems(
        refusal("taps.no-changer", name=name, winding=winding)
        for name, winding in given
        if (name, winding) not in changers
    )
    for (name, winding), changer in changers.items():
        with problems.gather():
            if (name, winding) in given:
                position = changer.position_of(given[name, winding])
                net[changer.kind].at[changer.index, "tap_pos"] = position
            elif changer.step is not None:
                raise refusal("taps.lacks-changer", winding=winding, name=name)
    problems.refuse()


def _number(value: object, missing: float = math.nan) -> float:
    """A figure of a row, `missing` where there is none."""
    number = float(value) if isinstance(value, int | float) or hasattr(value, "__float__") else math.nan
    return missing if math.isnan(number) else number


CONTROL = "DiscreteTapControl"
TAPS_NEUTRAL = "neutral; the tap controls of the net move them"
"""`Feeder.taps_from` of a twin whose taps a control moves."""
_SECONDARY_V = 120.0
_SERIES = ("ConstControl",)


@dataclass(frozen=True)
class TapControl:
    """One transformer that a `DiscreteTapControl` moves.

    Attributes
    ----------
    changer : its tap changer.
    side : "hv" or "lv", whose bus is measured.
    lower, upper : voltages between which nothing moves [p.u. of that bus].
    """

    changer: TapChanger
    side: str
    lower: float
    upper: float

    @property
    def moved_side(self) -> str:
        """ "hv" or "lv", of the winding with the taps."""
        return SIDES["trafo"][self.changer.winding - 1]


@dataclass(frozen=True)
class TapControls:
    """What the controllers of a net do.

    Attributes
    ----------
    taps : that are modelled, in the order of the net.
    refused : sentences on the others.
    """

    taps: tuple[TapControl, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def detached(self) -> dict[int, str]:
        """Index of every transformer that is moved → side of its taps."""
        return {control.changer.index: control.moved_side for control in self.taps}


def read_controls(net: Any, *, by_phase: bool) -> TapControls:
    """The controllers of a net that are in service; time series are no matter of operation."""
    read: list[TapControl | str] = []
    levels = set()
    for row in pp.in_service(net, "controller"):
        kind, element = type(row.object).__name__, getattr(row.object, "element", None)
        if kind in _SERIES and element in (*pp.DRAWING, *pp.FEEDING, "storage"):
            continue
        if kind != CONTROL:
            read.append(said("operated.controllers", kind=kind))
        elif element != "trafo":
            read.append(said("operated.three-windings"))
        else:
            levels.add(str(row.level))
            read += _read(net, row.object)
    taps = tuple(each for each in read if isinstance(each, TapControl))
    refused = [each for each in read if isinstance(each, str)]
    reasons = {
        "two-tap-controls": len({control.changer.index for control in taps}) < len(taps),
        "levels": len(levels) > 1,
        "tap-controls-by-phase": by_phase and bool(taps),
    }
    refused += [said(f"operated.{name}") for name, holds in reasons.items() if holds]
    return TapControls(() if refused else taps, tuple(dict.fromkeys(refused)))


def _read(net: Any, control: Any) -> Iterator[TapControl | str]:
    """The transformers that a control moves, or what keeps one from being read."""
    names = pp.Names(net)
    changers = {changer.index: changer for changer in tap_changers(net) if changer.kind == "trafo"}
    sources = {row.bus for row in pp.in_service(net, "ext_grid")}
    bands = np.broadcast_arrays(control.element_index, control.vm_lower_pu, control.vm_upper_pu)
    for index, low, high in zip(*(part.ravel().tolist() for part in bands), strict=True):
        if index not in net.trafo.index or not net.trafo.at[index, "in_service"]:
            continue
        if net.trafo.at[index, f"{control.side}_bus"] in sources:
            continue
        changer = changers.get(index)
        if changer is None or changer.step is None or _by_table(net.trafo.loc[index]):
            why = "no-ratio"
        elif not changer.lowest <= changer.neutral <= changer.highest or changer.lowest == changer.highest:
            why = "no-range"
        elif not low < high:
            why = "no-band"
        else:
            yield TapControl(changer, control.side, float(low), float(high))
            continue
        yield said(f"operated.tap-control-{why}", name=names.of("trafo", index))


def _by_table(row: Any) -> bool:
    stated = row.get("tap_dependency_table")
    return bool(stated) and stated == stated


def operation_of(circuit: Circuit, skeleton: Skeleton, controls: TapControls) -> Operation:
    """The feeder as its tap controls operate it.

    Parameters
    ----------
    circuit : of the balanced net, its moved transformers at neutral tap.
    skeleton : of the feeder, with the same nodes.
    """
    rows = {index: row for row, index in circuit.rows_of("trafo")}
    acting = [control for control in controls.taps if control.changer.index in rows]
    inner = {
        (rows[control.changer.index], SIDES["trafo"].index(control.moved_side)): len(skeleton.feeder.nodes)
        + k
        for k, control in enumerate(acting)
    }
    scale = float(circuit.net.sn_mva) / skeleton.feeder.base_mva
    regulators = [
        _regulator(circuit, skeleton, control, (node, circuit.end_of(*place)))
        for control, (place, node) in zip(acting, inner.items(), strict=True)
    ]
    return Operation(
        nodes=(*skeleton.feeder.nodes, *(f"inner({control.changer.name}).1" for control in acting)),
        y=sp.csc_array(circuit.admittance(inner) * scale),
        regulators=tuple(regulators),
    )


def _regulator(circuit: Circuit, skeleton: Skeleton, control: TapControl, phase: Branch) -> Regulator:
    """A regulator without line-drop compensation, seen through a transformer to 120 V."""
    changer, row = control.changer, circuit.net.trafo.loc[control.changer.index]
    (measured,) = skeleton.nodes_of_bus[int(row[f"{control.side}_bus"])]
    ends = [changer.ratio_of(position) for position in (changer.lowest, changer.highest)]
    rated_v = float(row[f"vn_{control.side}_kv"]) * 1000.0 / math.sqrt(PHASES)
    moved_kv = float(row[f"vn_{control.moved_side}_kv"])
    return Regulator(
        name=f"tap control of {changer.name}",
        transformer=changer.name.lower(),
        winding=changer.winding,
        phases=(phase,),
        measured=((measured, GROUND),),
        pick=Pick.ONE,
        compensated=0,
        target_v=_SECONDARY_V * (control.lower + control.upper) / 2.0,
        band_v=_SECONDARY_V * (control.upper - control.lower),
        pt_ratio=float(skeleton.feeder.base_kv[measured]) * 1000.0 / _SECONDARY_V,
        ct_primary_a=float(row["sn_mva"]) * 1000.0 / (math.sqrt(PHASES) * moved_kv),
        drop_r_v=0.0,
        drop_x_v=0.0,
        winding_v=rated_v,
        most_steps=1,
        lowest=min(ends),
        highest=max(ends),
        steps=round(changer.highest - changer.lowest),
        opposite=control.moved_side != control.side,
    )


_CLOSE_CODES = 3
_BALANCED = "balanced single-phase equivalent: a node is a bus with its three phases, powers are their total"


@dataclass(frozen=True, eq=False)
class PandapowerOrigin:
    """The net a feeder was read from.

    Attributes
    ----------
    net : a copy of the pandapower net, without time series.
    node_of_bus : index of a bus in `net.bus` → name of its node; buses joined by closed switches share one.
    public : whether the net is public data, its taps and set points included.
    taps_given : whether the taps were given apart from the net.
    by_phase : whether every bus has three nodes; `node_of_bus` names the first of them.
    """

    net: Any
    node_of_bus: dict[int, str]
    public: bool = False
    taps_given: bool = False
    by_phase: bool = False

    def base_per_phase(self, feeder: Feeder) -> float:
        """The power base per phase that a feeder of this net was read with [MVA]."""
        return feeder.base_mva if self.by_phase else feeder.base_mva / PHASES


def read_simbench(code: str, *, base_mva: float = 1.0, taps: Sequence[Tap] | None = None) -> Feeder:
    """Feeder of a SimBench code, such as "1-MV-rural--0-sw"; public data."""
    simbench = pp.require("simbench")
    codes = {known.lower(): known for known in simbench.collect_all_simbench_codes()}
    known = codes.get(code.lower())
    if known is None:
        close = difflib.get_close_matches(code, codes.values(), n=_CLOSE_CODES, cutoff=0.0)
        raise refusal("feeder-unknown.simbench", code=code, names=", ".join(close))
    with pp.third_party_warnings():
        net = simbench.get_simbench_net(known)
    return read_pandapower(net, name=known, base_mva=base_mva, taps=taps, public=True)


def read_pandapower_file(path: Path, *, base_mva: float = 1.0, taps: Sequence[Tap] | None = None) -> Feeder:
    """Feeder of a net saved with `pandapower.to_json`; it is read as data, whatever classes it names."""
    net = pp.load_net(path)
    try:
        pp.check_net(net)
        return read_pandapower(net, name=path.stem, base_mva=base_mva, taps=taps, own=True)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Tables of a file may hold anything at any place, and pandapower says so in any of these.
        raise refusal("feeder-rejected.broken-table", path=path) from None


def read_pandapower(
    net: Any,
    *,
    name: str,
    base_mva: float = 1.0,
    taps: Sequence[Tap] | None = None,
    public: bool = False,
    own: bool = False,
) -> Feeder:
    """Translate a pandapower net; the net itself does not change.

    Parameters
    ----------
    net : pandapowerNet; switches are taken as they stand.
    base_mva : power base per phase [MVA]; a node that stands for three phases has three times as much.
    taps : of every tap changer, put at the nearest whole position; None takes them as they stand.
    public : whether the net is public data.
    own : whether it was checked and belongs to the caller: the feeder keeps it and sets taps in it.
    """
    pp.require("pandapower")
    if not own:
        pp.check_net(net)
    stored = net if own else copy.deepcopy(net)
    stored.pop("profiles", None)
    if taps is not None:
        set_taps(stored, taps)
    unbalanced, reason = count_unbalanced(stored), lacking(stored)
    by_phase = unbalanced > 0 and reason is None
    controls = read_controls(stored, by_phase=by_phase)
    circuit = _circuit(stored, controls)
    skeleton = (three_phase if by_phase else balanced)(circuit, base_mva)
    notes = ["three phases: a node is a phase of a bus" if by_phase else _BALANCED]
    if unbalanced and not by_phase:
        notes.append(said("note.balanced", unbalanced=unbalanced, reason=reason))
    problems = Problems()
    items = [
        item for kind in (*pp.DRAWING, *pp.FEEDING) for item in _injections(stored, kind, by_phase, problems)
    ]
    problems.refuse()
    drawing, feeding = (
        _with_effect([item for item in items if item.draws == draws], skeleton, notes)
        for draws in (True, False)
    )
    notes.extend(_replacements(stored, drawing, feeding))
    joined = len(circuit.node_of_bus) - len(set(circuit.node_of_bus.values()))
    if joined:
        notes.append(said("note.joined", joined=joined))
    feeder = skeleton.feeder
    first = {bus: feeder.nodes[nodes[0]] for bus, nodes in skeleton.nodes_of_bus.items()}
    return replace(
        feeder,
        name=name,
        loads=tuple(item.load(skeleton) for item in drawing),
        pv=tuple(item.pv_system(skeleton) for item in feeding),
        taps=tuple(changer.tap for changer in tap_changers(stored) if changer.step is not None),
        taps_from=_taps_from(stored, taps, controlled=bool(controls.taps)),
        coordinates=circuit.coordinates(),
        notes=tuple(notes),
        origin=PandapowerOrigin(stored, first, public, taps_given=taps is not None, by_phase=by_phase),
        operation=_operation(stored, skeleton, controls),
    )


def _operation(net: Any, skeleton: Skeleton, controls: TapControls) -> Operation | None:
    """The feeder as operated; None where nothing moves and nothing is left out."""
    counts = {words: len(pp.in_service(net, kind)) for kind, words in pp.LEFT_OUT.items()}
    left_out = tuple(f"{count} {words}" for words, count in counts.items() if count)
    if not controls.taps:
        plain = Operation(
            skeleton.feeder.nodes, skeleton.feeder.y, left_out=left_out, refused=controls.refused
        )
        return plain if left_out or controls.refused else None
    at_neutral = pp.own_copy(net)
    for control in controls.taps:
        at_neutral.trafo.at[control.changer.index, "tap_pos"] = control.changer.neutral
    return replace(operation_of(_circuit(at_neutral, controls), skeleton, controls), left_out=left_out)


def _circuit(net: Any, controls: TapControls) -> Circuit:
    model = (net.get("user_pf_options") or {}).get("trafo_model", "t")
    passive, names = pp.with_branch_model(net), pp.Names(net)
    return Circuit(passive, names, trafo_model=model, detached=controls.detached)


def with_declared_loads(feeder: Feeder, powers: Mapping[str, tuple[float, float]]) -> Feeder:
    """The feeder with nominal loads of a declared table: name in lower case → (kW, kvar)."""
    origin = feeder.origin
    assert isinstance(origin, PandapowerOrigin)
    net, names = copy.deepcopy(origin.net), pp.Names(origin.net)
    for index in net.load.index:
        stated = powers.get(names.of("load", index).lower())
        if stated is not None:
            net.load.loc[index, ["p_mw", "q_mvar"]] = [power / KW_PER_MW for power in stated]
            net.load.loc[index, "scaling"] = 1.0
    for row in pp.in_service(net, "asymmetric_load") if origin.by_phase else ():
        for name, phase, _ in _by_phase(names.of("asymmetric_load", row.Index), row):
            parts = "abc" if phase is None else "abc"[phase]
            kw, kvar = powers.get(name.lower(), (math.nan, math.nan))
            for part in parts:
                net.asymmetric_load.at[row.Index, f"p_{part}_mw"] = kw / KW_PER_MW / len(parts)
                net.asymmetric_load.at[row.Index, f"q_{part}_mvar"] = kvar / KW_PER_MW / len(parts)
        net.asymmetric_load.at[row.Index, "scaling"] = 1.0
    taps = feeder.taps if origin.taps_given else None
    base_mva = origin.base_per_phase(feeder)
    made = read_pandapower(net, name=feeder.name, base_mva=base_mva, taps=taps, public=origin.public)
    for load in made.loads:
        stated = powers.get(load.name.lower(), (math.nan, math.nan))
        if not np.allclose((load.kw, load.kvar), stated, rtol=1e-9, atol=1e-9):
            raise refusal("load-table.not-plain", load=load)
    return replace(made, taps_from=feeder.taps_from)


def _taps_from(net: Any, taps: Sequence[Tap] | None, *, controlled: bool) -> str:
    """Where the tap positions come from; one between two steps is what a control left."""
    standing = [changer for changer in tap_changers(net) if changer.step is not None]
    if not standing:
        return NO_REGULATORS
    if taps is not None:
        return TAPS_GIVEN
    if controlled:
        return TAPS_SOLVED
    return TAPS_OF_NET if all(changer.position % 1.0 == 0.0 for changer in standing) else TAPS_SOLVED


# ------------------------------------------------------------------------------- loads and generation


@dataclass(frozen=True)
class _Injection:
    """One element that draws or feeds in power, positive in its own direction.

    `label` is the class of a load, the type of a generating unit. `phase` is the one that it is connected to,
    None for all three. What `draws` becomes a load, the rest PV systems.
    """

    kind: str
    name: str
    bus: int
    power: complex
    rated_mva: float
    response: Response
    label: str | None
    delta: bool = False
    phase: int | None = None
    draws: bool = False

    def as_it_draws(self) -> _Injection:
        """The element as a load, if it is one or a unit that draws power, such as a pump."""
        if self.kind in pp.DRAWING:
            return replace(self, draws=True)
        if self.power.real >= 0.0:
            return self
        # Its reactive power may be a solved one, a function of the lines.
        return replace(self, draws=True, power=complex(-self.power.real), label=None)

    def load(self, skeleton: Skeleton) -> Load:
        branches = skeleton.branches(self.bus, delta=self.delta, phase=self.phase)
        return Load(
            name=self.name,
            branches=branches,
            kw=self.power.real * KW_PER_MW,
            kvar=self.power.imag * KW_PER_MW,
            connection="delta" if self.delta else "wye",
            response=self.response,
            rated_kv=None if self.response.constant_power else skeleton.branch_kv(branches[0]),
            label=self.label,
        )

    def pv_system(self, skeleton: Skeleton) -> PVSystem:
        # Without a rating it is the peak: a reactive power may be a solved one, a function of the lines.
        rated = self.rated_mva if self.rated_mva > 0.0 else self.power.real
        return PVSystem(
            name=self.name,
            branches=skeleton.branches(self.bus, delta=self.delta, phase=self.phase),
            kva=rated * KW_PER_MW,
            kw_peak=self.power.real * KW_PER_MW,
        )


def _injections(net: Any, kind: str, by_phase: bool, problems: Problems) -> Iterator[_Injection]:
    """The elements of a kind that are in service; phase by phase where they differ."""
    names = pp.Names(net)
    for row in pp.in_service(net, kind):
        if kind == "gen" and row.slack:
            continue
        name = names.of(kind, row.Index)
        power = _power(kind, row)
        if not np.isfinite(power):
            problems.add(refusal("feeder.power", kind=kind, name=name))
            continue
        if kind.endswith("ward") and power == 0.0:
            continue
        label = getattr(row, "profile" if kind in pp.DRAWING else "type", None)
        element = _Injection(
            kind=kind,
            name=name,
            bus=int(row.bus),
            power=power,
            rated_mva=float(getattr(row, "sn_mva", "nan")),
            response=_response(row) if kind == "load" else CONSTANT_POWER,
            label=label if isinstance(label, str) else None,
            delta=by_phase and getattr(row, "type", None) == "delta",
        )
        if not (by_phase and kind.startswith("asymmetric")):
            yield element.as_it_draws()
            continue
        for part_name, phase, part in _by_phase(name, row):
            share = part.real / power.real if power.real else 1.0
            part_of = replace(element, name=part_name, phase=phase, rated_mva=element.rated_mva * share)
            yield replace(part_of, power=part * _scaling(kind, row)).as_it_draws()


def _response(row: Any) -> Response:
    """How a load follows from the voltage; pandapower has no limits to that."""

    def shares(power: str) -> Zip:
        z, i = (float(getattr(row, f"const_{m}_{power}_percent", 0.0)) / 100.0 for m in "zi")
        z, i = (0.0 if math.isnan(share) else share for share in (z, i))
        return z, i, 1.0 - z - i

    return Response(active=shares("p"), reactive=shares("q"))


def _by_phase(name: str, row: Any) -> list[tuple[str, int | None, complex]]:
    """Name, phase and power [MVA] of the parts of an unbalanced element: of each phase that has a power."""
    parts = [(k, power) for k, power in enumerate(_phase_powers(row)) if power != 0.0]
    if not parts:
        return [(name, None, 0j)]
    return [(name if len(parts) == 1 else f"{name} {'abc'[k]}", k, power) for k, power in parts]


def _phase_powers(row: Any) -> list[complex]:
    return [complex(getattr(row, f"p_{p}_mw"), getattr(row, f"q_{p}_mvar")) for p in "abc"]


def _power(kind: str, row: Any) -> complex:
    """Three-phase power of one element [MVA]: of a load its nominal power, of a unit its peak."""
    if kind.startswith("asymmetric"):
        return sum(_phase_powers(row), 0j) * _scaling(kind, row)
    if kind == "motor":
        p_mw = row.pn_mech_mw / row.efficiency_percent * row.loading_percent * row.scaling
        return complex(p_mw, p_mw * np.tan(np.arccos(row.cos_phi)))
    if kind.endswith("ward"):
        return complex(row.ps_mw, row.qs_mvar)
    # The reactive power of a generator is whatever holds its voltage, which is not held here.
    q_mvar = 0.0 if kind == "gen" else row.q_mvar
    return complex(row.p_mw, q_mvar) * _scaling(kind, row)


def _scaling(kind: str, row: Any) -> float:
    # The scaling of generation is its output of the moment; a feeder has its peak.
    return 1.0 if kind in pp.FEEDING else float(row.scaling)


def _with_effect(items: Sequence[_Injection], skeleton: Skeleton, notes: list[str]) -> list[_Injection]:
    """The elements that move a voltage, under unique names."""
    idle = [item for item in items if skeleton.is_source(item.bus)]
    if idle:
        kinds = ", ".join(sorted({item.kind for item in idle}))
        notes.append(said("note.on-source", count=len(idle), kinds=kinds))
    kept = [item for item in items if not skeleton.is_source(item.bus)]
    count = Counter(item.name for item in kept)
    return [
        item if count[item.name] == 1 else replace(item, name=f"{item.kind} {item.name}") for item in kept
    ]


def _replacements(net: Any, drawing: Sequence[_Injection], feeding: Sequence[_Injection]) -> list[str]:
    """What was replaced or left out, and how many times."""
    counts = {
        "by-voltage": sum(not item.response.constant_power for item in drawing),
        "motors": sum(item.kind in ("motor", "ward", "xward") for item in drawing),
        "pumps": sum(item.kind in pp.FEEDING for item in drawing),
        "holding": sum(item.kind == "gen" for item in feeding),
        "not-called-pv": sum(not (item.label or "").lower().startswith("pv") for item in feeding),
        "reactive": sum(item.power.imag != 0.0 for item in feeding),
        "scaled": sum(row.scaling != 1.0 for kind in pp.FEEDING for row in pp.in_service(net, kind)),
        "xward": len(pp.in_service(net, "xward")),
        **{kind: len(pp.in_service(net, kind)) for kind in pp.LEFT_OUT},
        "impedance": len(pp.in_service(net, "impedance")),
    }
    words = {"loads": f"of {len(drawing)} loads", "units": f"of {len(feeding)} generating units"}
    return [said(f"note.{kind}", count=count, **words) for kind, count in counts.items() if count]
