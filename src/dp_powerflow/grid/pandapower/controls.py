"""Tap controls of a pandapower net → regulators of a feeder as operated.

`DiscreteTapControl` moves a tap by one position per round while the voltage of its bus is outside of a band.
It is read for transformers with two windings whose positions change the turns ratio. All other controllers in
service that would move something are named in `Operation.refused`. A transformer that is moved stands behind
a node of its own, tied to its bus by next to no impedance: a source or a bus may have several of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import GROUND
from dp_powerflow.grid.operation import Branch, Operation, Pick, Regulator
from dp_powerflow.grid.pandapower.circuit import Circuit
from dp_powerflow.grid.pandapower.engine import DRAWING, FEEDING, Names, in_service
from dp_powerflow.grid.pandapower.skeleton import PHASES, Skeleton
from dp_powerflow.grid.pandapower.taps import SIDES, TapChanger, tap_changers

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
