"""Regulators of an OpenDSS circuit: moved windings at inner nodes, at ratio 1.

The admittances are those of the frozen frame, with the regulating transformers taken out and put back at
ratio 1, their moved windings at inner nodes. What a control of the file asks for and the solver does not
model becomes a sentence of `Operation.refused`; the feeder can be read all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import GROUND, Tap
from dp_powerflow.grid.opendss.engine import (
    Engine,
    Properties,
    enabled_names,
    is_enabled,
    primitive,
    set_taps,
    terminal_nodes,
)
from dp_powerflow.grid.opendss.responses import coil_kv
from dp_powerflow.grid.operation import Branch, Pick, Regulator, ReverseSettings
from dp_powerflow.units import ComplexArray, FloatArray

_GANGED = 3
_PICKS = {"max": Pick.HIGHEST, "min": Pick.LOWEST, "avg": Pick.MEAN}


@dataclass(frozen=True, eq=False)
class Network:
    """The frozen frame, as far as an operation needs it.

    Attributes
    ----------
    nodes : names of the feeder's nodes, those of the circuit first.
    index : name of a node of the circuit → its index.
    y : sparse complex (node, node) [S].
    scale : (node,) what a pair of nodes' admittance is multiplied by at both ends [p.u./S]^½.
    volts : complex (circuit node,) no-load voltage [V].
    """

    nodes: tuple[str, ...]
    index: dict[str, int]
    y: sp.csc_array
    scale: FloatArray
    volts: ComplexArray

    def at(self, name: str | None) -> int:
        """Index of a node; ground where there is none."""
        return GROUND if name is None else self.index.get(name, GROUND)


class NotModelledError(Exception):
    """A setting that the solver does not model; its text ends a sentence that starts with a control."""


class Admittances:
    """Y of an operation [S] while it is being built; `inner` nodes are appended as they come."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.inner: list[str] = []
        self.scale = network.scale.tolist()
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[complex] = []

    def new_node(self, transformer: str, outer: int) -> int:
        """An inner node of a transformer, of the base of its outer one."""
        phase = self.network.nodes[outer].rsplit(".", 1)[1]
        self.inner.append(f"tap({transformer}).{phase}")
        self.scale.append(self.scale[outer])
        return len(self.scale) - 1

    def add(self, nodes: Sequence[int], block: ComplexArray) -> None:
        """Add the admittances of one element; rows and columns at ground are dropped."""
        for row, i in enumerate(nodes):
            for column, j in enumerate(nodes):
                if i != GROUND and j != GROUND and block[row, column] != 0.0:
                    self._rows.append(i)
                    self._columns.append(j)
                    self._values.append(complex(block[row, column]))

    def per_unit(self) -> sp.csc_array:
        """The sum [p.u.]."""
        size = len(self.scale)
        known = sp.coo_array(self.network.y)
        rows = np.concatenate([known.coords[0], np.array(self._rows, dtype=np.int64)])
        columns = np.concatenate([known.coords[1], np.array(self._columns, dtype=np.int64)])
        values = np.concatenate([known.data, np.array(self._values, dtype=np.complex128)])
        total = sp.csc_array((values, (rows, columns)), shape=(size, size))
        total.eliminate_zeros()
        scale = sp.diags_array(np.array(self.scale))
        return sp.csc_array(scale @ total @ scale)


# -------------------------------------------------------------------------------------- regulators


@dataclass(frozen=True)
class Moved:
    """A winding that a regulator moves, while the circuit is read.

    Attributes
    ----------
    conductors : nodes of all conductors of the transformer, by terminal; `GROUND` where there is none.
    own : positions among them of the moved winding's phases.
    regulator : with `phases` still empty.
    """

    conductors: tuple[int, ...]
    own: tuple[int, ...]
    regulator: Regulator


class RegulatorReader:
    """Reads regulator controls one by one; what is not modelled goes to `refused`."""

    def __init__(self, engine: Engine, network: Network, refused: list[str]) -> None:
        self._engine, self._network, self._refused = engine, network, refused
        self._circuit = engine.ActiveCircuit
        self._known = {name.lower() for name in self._circuit.Transformers.AllNames}

    def read(self) -> list[Moved]:
        """Every winding that is moved, in the order of the controls."""
        found: dict[str, Moved] = {}
        for name in enabled_names(self._engine, "regcontrol"):
            try:
                moved = self._control(name)
                if moved is not None and moved.regulator.transformer in found:
                    raise NotModelledError(
                        "moves a transformer that another control moves too; disable one of them"
                    )
            except NotModelledError as reason:
                self._refused.append(f"regulator control '{name}' {reason}")
                continue
            if moved is not None:
                found[moved.regulator.transformer] = moved
        return list(found.values())

    def _control(self, name: str) -> Moved | None:
        """What a control moves; None if it cannot move."""
        control = Properties(self._engine, "regcontrol", name)
        transformer = control.text("transformer").split(".")[-1]
        if transformer not in self._known:
            raise NotModelledError("moves no Transformer; make its AutoTrans one, or disable the control")
        if not is_enabled(self._engine, f"transformer.{transformer}"):
            raise NotModelledError("moves a disabled transformer; disable the control too")
        control = Properties(self._engine, "regcontrol", name)
        winding, own = int(control.number("winding")), int(control.number("tapwinding"))
        bus = control.text("bus")
        _refuse_settings(control, same=winding == own, remote=bool(bus))
        pick = _PICKS.get(control.text("ptphase"), Pick.ONE)
        phase = 1 if pick is not Pick.ONE else int(control.number("ptphase"))
        remote_ratio = control.number("remoteptratio")
        settings = Regulator(
            name=name,
            transformer=transformer,
            winding=own,
            phases=(),
            measured=(),
            pick=pick,
            compensated=0,
            target_v=control.number("vreg"),
            band_v=control.number("band"),
            pt_ratio=control.number("ptratio"),
            ct_primary_a=control.number("ctprim"),
            drop_r_v=0.0 if bus else control.number("r"),
            drop_x_v=0.0 if bus else control.number("x"),
            winding_v=0.0,
            delay_s=control.number("delay"),
            most_steps=int(control.number("maxtapchange")),
            opposite=winding != own,
            limit_v=control.number("vlimit") or None,
            reverse=_reverse(control) if control.yes("reversible") and not bus else None,
        )
        moved, delta = self._windings(settings, winding, phase)
        if moved.regulator.steps < 1 or moved.regulator.highest <= moved.regulator.lowest:
            return None
        if moved.regulator.most_steps < 1:
            return None
        return self._remote(moved, bus, remote_ratio, second=delta or phase != 1) if bus else moved

    def _windings(self, settings: Regulator, winding: int, phase: int) -> tuple[Moved, bool]:
        """What is moved and measured, and whether the measured winding is a delta."""
        transformers = self._circuit.Transformers
        transformers.Name = settings.transformer
        transformers.Wdg = settings.winding
        low, high, steps = float(transformers.MinTap), float(transformers.MaxTap), int(transformers.NumTaps)
        own_delta = bool(transformers.IsDelta)
        transformers.Wdg = winding
        delta, kv = bool(transformers.IsDelta), float(transformers.kV)
        element = self._circuit.ActiveCktElement
        phases, per_terminal = int(element.NumPhases), int(element.NumConductors)
        conductors = [self._network.at(node) for node in terminal_nodes(element)]
        first = (settings.winding - 1) * per_terminal
        own = tuple(range(first, first + phases))
        between = phases != _GANGED if own_delta else conductors[first + phases] != GROUND
        if between or any(conductors[k] == GROUND for k in own):
            raise NotModelledError(
                "moves a winding that stands between two nodes or has a neutral of its own; only windings "
                "with a grounded neutral and three-phase delta windings are modelled"
            )
        seen = self._winding_branches(
            conductors[(winding - 1) * per_terminal :][:per_terminal], phases, delta
        )
        phase = phase if phase <= phases else 1
        one = settings.pick is Pick.ONE
        settings = replace(
            settings,
            measured=(seen[phase - 1],) if one else seen,
            compensated=phase - 1 if one else 0,
            winding_v=1000.0 * coil_kv(kv, phases, delta=delta),
            lowest=low,
            highest=high,
            steps=steps,
        )
        return Moved(tuple(conductors), own, settings), delta

    def _remote(self, moved: Moved, bus: str, ratio: float, *, second: bool) -> Moved:
        """One that holds the voltage of another bus: the engine looks at the first node that it names."""
        settings = moved.regulator
        if second or settings.limit_v is not None:
            raise NotModelledError(
                "holds the voltage of another bus with a delta winding, a second phase or a voltage limit; "
                "let it hold that of its own winding"
            )
        parts = bus.split(".")
        node = f"{parts[0]}.{parts[1] if len(parts) > 1 else 1}"
        if node not in self._network.index:
            raise NotModelledError(
                f"holds the voltage of node {node}, which the feeder does not have; correct its bus"
            )
        # The engine turns volts into taps by the ratio of the winding's own voltage transformer.
        held = replace(
            settings,
            measured=((self._network.index[node], GROUND),),
            pick=Pick.ONE,
            compensated=0,
            pt_ratio=ratio,
            winding_v=settings.winding_v * ratio / settings.pt_ratio,
        )
        return replace(moved, regulator=held)

    def _winding_branches(self, nodes: Sequence[int], phases: int, delta: bool) -> tuple[Branch, ...]:
        """Branches whose voltages are those of the active winding's coils."""
        if not delta:
            return tuple((nodes[k], nodes[phases]) for k in range(phases))
        if phases == 1:
            return ((nodes[0], nodes[1]),)
        # The engine turns delta windings one way or the other; its own voltages tell which.
        flat = np.asarray(self._circuit.Transformers.WdgVoltages)
        seen = flat.view(np.complex128) if flat.dtype == np.float64 else flat
        for turn in (1, -1):
            branches = tuple((nodes[k], nodes[(k + turn) % phases]) for k in range(phases))
            volts = np.array([self._network.volts[a] - self._network.volts[b] for a, b in branches])
            if np.allclose(volts, seen, rtol=1e-6, atol=1e-6 * float(np.abs(volts).max())):
                return branches
        raise NotModelledError("measures a delta winding whose voltages cannot be told; measure one in wye")


def _reverse(control: Properties) -> ReverseSettings:
    """Settings for power that flows backwards; a control of a remote bus has none."""
    return ReverseSettings(
        threshold_kw=control.number("revthreshold"),
        target_v=control.number("revvreg"),
        band_v=control.number("revband"),
        drop_r_v=control.number("revr"),
        drop_x_v=control.number("revx"),
        delay_s=control.number("revdelay"),
        neutral_delay_s=control.number("tapdelay") if control.yes("revneutral") else None,
    )


def _refuse_settings(control: Properties, *, same: bool, remote: bool) -> None:
    """Refuse settings that are not modelled.

    Parameters
    ----------
    same : whether the winding that is moved is the one that is measured.
    remote : whether the voltage of another bus is held.
    """
    if control.number("ldc_z") > 0.0 and not remote:
        raise NotModelledError("compensates by LDC_Z; give R and X instead")
    if control.yes("cogen"):
        raise NotModelledError("has a cogeneration mode; set cogen=no")
    if control.yes("inversetime"):
        raise NotModelledError("has a delay that depends on the voltage; set inversetime=no")
    drop = control.number("r") != 0.0 or control.number("x") != 0.0
    if drop and not same and not remote:
        raise NotModelledError(
            "compensates the drop of another winding than it moves; set tapwinding as winding"
        )


@dataclass(frozen=True, eq=False)
class Placed:
    """A regulator with its inner nodes.

    Attributes
    ----------
    nodes : of all conductors of the transformer, inner ones for the moved winding.
    neutral : its admittances at ratio 1 between these nodes [S].
    """

    regulator: Regulator
    nodes: tuple[int, ...]
    neutral: ComplexArray


def place_regulators(
    engine: Engine, admittances: Admittances, moved: Sequence[Moved], taps: Sequence[Tap]
) -> list[Placed]:
    """Move regulating transformers to their inner nodes; the engine ends at the given taps again."""
    if not moved:
        return []
    present = [_primitive_of(engine, each) for each in moved]
    ends = [_two_ratios(each.regulator) for each in moved]
    at_ends = []
    for end in (0, 1):
        windings = [(each.regulator.transformer, each.regulator.winding) for each in moved]
        set_taps(engine, [Tap(*key, pair[end]) for key, pair in zip(windings, ends, strict=True)])
        engine.YMatrix.BuildYMatrixD(1, 0)
        at_ends.append([_primitive_of(engine, each) for each in moved])
    set_taps(engine, taps)
    placed = []
    for each, now, ratios, one, other in zip(moved, present, ends, *at_ends, strict=True):
        outer = [each.conductors[k] for k in each.own]
        inner = [admittances.new_node(each.regulator.transformer, node) for node in outer]
        neutral, fixed = _at_neutral(one, other, ratios, each.own)
        nodes = list(each.conductors)
        admittances.add(nodes, -now)
        admittances.add(outer, fixed)
        for k, node in zip(each.own, inner, strict=True):
            nodes[k] = node
        admittances.add(nodes, neutral)
        phases = tuple(zip(inner, outer, strict=True))
        placed.append(Placed(replace(each.regulator, phases=phases), tuple(nodes), neutral))
    return placed


def _primitive_of(engine: Engine, moved: Moved) -> ComplexArray:
    engine.ActiveCircuit.SetActiveElement(f"Transformer.{moved.regulator.transformer}")
    return primitive(engine.ActiveCircuit.ActiveCktElement).copy()


def _two_ratios(regulator: Regulator) -> tuple[float, float]:
    """Two ratios of the winding's range, the first one 1 where it can be."""
    low, high = regulator.lowest, regulator.highest
    first = min(max(1.0, low), high)
    return first, (low if first - low > high - first else high)


def _at_neutral(
    one: ComplexArray, other: ComplexArray, ratios: tuple[float, float], own: tuple[int, ...]
) -> tuple[ComplexArray, ComplexArray]:
    """Admittances of a transformer at ratio 1, and what at its moved winding does not follow the ratio.

    The diagonal at the moved winding is a/t² + b; b is the small shunt by which the engine keeps a winding
    from floating.
    """
    t, s = ratios
    neutral = one.copy()
    at = list(own)
    neutral[at, :] *= t
    neutral[:, at] *= t
    follows = (np.diag(one)[at] - np.diag(other)[at]) / (t**-2 - s**-2)
    fixed = np.diag(np.diag(one)[at] - follows / t**2)
    neutral[np.ix_(at, at)] -= t**2 * fixed
    return neutral, fixed
