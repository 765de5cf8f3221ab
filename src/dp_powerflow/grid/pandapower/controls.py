"""Tap controls of a pandapower net → regulators of a feeder as operated.

`DiscreteTapControl` moves a tap by one position per round while the voltage of its bus is outside of a band.
It is read for transformers with two windings whose positions change the turns ratio. All other controllers in
service that would move something are named in `Operation.refused`. A transformer that is moved stands behind
a node of its own, tied to its bus by next to no impedance: a source or a bus may have several of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import TapsError
from dp_powerflow.grid.buses import Problems
from dp_powerflow.grid.feeder import GROUND, Tap
from dp_powerflow.grid.operation import Branch, Operation, Pick, Regulator
from dp_powerflow.grid.pandapower.circuit import Circuit
from dp_powerflow.grid.pandapower.engine import DRAWING, FEEDING, Names, in_service
from dp_powerflow.grid.pandapower.skeleton import PHASES, Skeleton

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
            raise TapsError(
                f"the tap changer of transformer '{self.name}' turns the angle, which a tap file cannot say; "
                "remove its line from the tap file"
            )
        position = self.neutral + round((ratio - 1.0) / self.step)
        if position < self.lowest or position > self.highest:
            raise TapsError(f"the tap of transformer '{self.name}' is out of range; correct the tap file")
        return position


def tap_changers(net: Any) -> Iterator[TapChanger]:
    """The changers that act; those without a type have no effect in pandapower."""
    names = Names(net)
    for kind, windings in SIDES.items():
        for index, row in net[kind].iterrows():
            side, acting = row.get("tap_side"), changer_type(row)
            percent, degree = (_number(row.get(f"tap_step_{unit}")) for unit in ("percent", "degree"))
            steps = not math.isnan(percent) and percent != 0.0, not math.isnan(degree) and degree != 0.0
            if not row["in_service"] or side not in windings or acting is None or not any(steps):
                continue
            by_ratio = acting in _BY_RATIO and not steps[1] and steps[0]
            name = names.of(kind, int(index))
            yield TapChanger(
                kind=kind,
                index=int(index),
                name=name if kind == "trafo" else f"{kind}:{name}",
                winding=windings.index(side) + 1,
                position=_number(row.get("tap_pos"), _number(row.get("tap_neutral"), 0.0)),
                neutral=_number(row.get("tap_neutral"), 0.0),
                step=percent / 100.0 if by_ratio else None,
                lowest=_number(row.get("tap_min")),
                highest=_number(row.get("tap_max")),
            )


def changer_type(row: Any) -> str | None:
    """How a row's tap changer acts, None if it does not; nets of before 3.0 say it by another column."""
    if "tap_changer_type" in row:
        stated = row["tap_changer_type"]
        return stated if stated in _ACTING else None
    if "tap_phase_shifter" in row:
        return "Ideal" if row["tap_phase_shifter"] is True else "Ratio"
    return None


def set_taps(net: Any, taps: Sequence[Tap]) -> None:
    """Put every tap changer where the taps say, at whole positions; refuse taps that do not fit the net."""
    changers = {(changer.name, changer.winding): changer for changer in tap_changers(net)}
    given = {(tap.transformer, tap.winding): tap.ratio for tap in taps}
    problems = Problems()
    for name, winding in given:
        if (name, winding) not in changers:
            problems.add(
                TapsError(
                    f"winding {winding} of transformer '{name}' has no tap changer that acts; remove it from "
                    "the tap file, or give the net its tap_side, tap_step_percent and tap_changer_type"
                )
            )
    for (name, winding), changer in changers.items():
        if changer.step is not None and (name, winding) not in given:
            problems.add(
                TapsError(
                    f"the tap file lacks winding {winding} of transformer '{name}', which has a tap changer; "
                    "'dp-powerflow inspect FEEDER --save-taps FILE' writes all of them"
                )
            )
    for key in [key for key in given if key in changers]:
        changer = changers[key]
        with problems.gather():
            net[changer.kind].at[changer.index, "tap_pos"] = changer.position_of(given[key])
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
_THREE_WINDINGS = (
    "tap controls of transformers with three windings are not modelled; take them out of service"
)


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
class Controls:
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


def read_controls(net: Any, *, by_phase: bool) -> Controls:
    """The controllers of a net that are in service; those of time series are no matter of operation."""
    found: list[TapControl] = []
    refused: list[str] = []
    levels = set()
    for row in in_service(net, "controller"):
        kind, element = type(row.object).__name__, getattr(row.object, "element", None)
        if kind in _SERIES and element in (*DRAWING, *FEEDING, "storage"):
            continue
        if kind != CONTROL:
            refused.append(f"controllers of kind {kind} are not modelled; take them out of service")
        elif element != "trafo":
            refused.append(_THREE_WINDINGS)
        else:
            levels.add(str(row.level))
            for read in _read(net, row.object):
                if isinstance(read, str):
                    refused.append(read)
                else:
                    found.append(read)
    if len({control.changer.index for control in found}) < len(found):
        refused.append("a transformer has two tap controls; keep one of them")
    if len(levels) > 1:
        refused.append("tap controls of different levels are not modelled; give all of them one level")
    if by_phase and found:
        refused.append("tap controls of unbalanced nets are not modelled; take them out of service")
    return Controls(() if refused else tuple(found), tuple(dict.fromkeys(refused)))


def _read(net: Any, control: Any) -> Iterator[TapControl | str]:
    """The transformers that a control moves, or what keeps one from being read."""
    names = Names(net)
    changers = {changer.index: changer for changer in tap_changers(net) if changer.kind == "trafo"}
    sources = {row.bus for row in in_service(net, "ext_grid")}
    indices, lower, upper = np.broadcast_arrays(
        control.element_index, control.vm_lower_pu, control.vm_upper_pu
    )
    for index, low, high in zip(indices.ravel().tolist(), lower.ravel(), upper.ravel(), strict=True):
        if index not in net.trafo.index or not net.trafo.at[index, "in_service"]:
            continue
        if net.trafo.at[index, f"{control.side}_bus"] in sources:
            continue
        what = f"the tap control of transformer '{names.of('trafo', index)}'"
        changer = changers.get(index)
        if changer is None or changer.step is None or _by_table(net.trafo.loc[index]):
            yield f"{what} does not move a plain turns ratio; set its tap_changer_type to 'Ratio'"
        elif not changer.lowest <= changer.neutral <= changer.highest or changer.lowest == changer.highest:
            yield f"{what} has no range; state tap_min, tap_neutral and tap_max"
        elif not float(low) < float(high):
            yield f"{what} has no band; state vm_lower_pu below vm_upper_pu"
        else:
            yield TapControl(changer, control.side, float(low), float(high))


def _by_table(row: Any) -> bool:
    stated = row.get("tap_dependency_table")
    return bool(stated) and stated == stated


def operation_of(circuit: Circuit, skeleton: Skeleton, controls: Controls) -> Operation:
    """The feeder as its tap controls operate it.

    Parameters
    ----------
    circuit : of the balanced net, its moved transformers at neutral tap.
    skeleton : of the feeder, with the same nodes.
    """
    rows = {index: row for row, index in circuit.rows_of("trafo")}
    acting = [control for control in controls.taps if control.changer.index in rows]
    inner = {
        (rows[control.changer.index], SIDES["trafo"].index(control.moved_side)): len(skeleton.nodes) + k
        for k, control in enumerate(acting)
    }
    scale = float(circuit.net.sn_mva) / skeleton.base_mva
    regulators = [
        _regulator(circuit, skeleton, control, (node, circuit.end_of(*place)))
        for control, (place, node) in zip(acting, inner.items(), strict=True)
    ]
    return Operation(
        nodes=(*skeleton.nodes, *(f"inner({control.changer.name}).1" for control in acting)),
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
        pt_ratio=float(skeleton.base_kv[measured]) * 1000.0 / _SECONDARY_V,
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
