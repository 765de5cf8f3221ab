"""OpenDSS circuits → `Operation`: what the controls, generators and inverters of the file do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import unit
from dp_powerflow.grid.feeder import GROUND, PVSystem, Tap
from dp_powerflow.grid.opendss.engine import (
    Engine,
    NamedBranches,
    Properties,
    enabled_names,
    is_enabled,
    named_branches,
    primitive,
    refuse_open,
    set_taps,
    terminal_nodes,
)
from dp_powerflow.grid.operation import (
    CONSTANT_IMPEDANCE,
    Branch,
    CapacitorControl,
    Generator,
    InverterCurve,
    Operation,
    Pick,
    Probe,
    Regulator,
    Response,
    ReverseSettings,
    SwitchedCapacitor,
    Zip,
)
from dp_powerflow.units import ComplexArray, FloatArray

# ----------------------------------------------------------------------------------------------------------
# How loads, PV systems and generators of an OpenDSS circuit answer to the voltage.


_Z, _I, _P = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
_SUM_OF_SHARES = 5e-3
_LINE_TO_LINE = (2, 3)
CONSTANT_Z_MODEL = 2


def coil_kv(kv: float, phases: int, *, delta: bool) -> float:
    """Voltage across a phase of an element by its kV, which is line to line for 2 and 3 phases."""
    return kv / math.sqrt(3.0) if not delta and phases in _LINE_TO_LINE else kv


def load_multiplier(engine: Engine, load: Properties) -> float:
    """What the circuit multiplies the power of a load by."""
    return float(engine.ActiveCircuit.Solution.LoadMult) if load.text("status") == "variable" else 1.0


def load_response(load: Properties, name: str, refused: list[str]) -> Response:
    """Law of a load; what the solver does not model is named in `refused`."""
    model = int(load.number("model"))
    lowest, highest, cut = load.number("vminpu"), load.number("vmaxpu"), load.number("vlowpu")
    # At or below vlowpu the engine never asks for vminpu.
    lowest = max(lowest, cut)

    def law(active: Zip, reactive: Zip, *, abrupt: bool = False) -> Response:
        return Response(active, reactive, None, lowest, highest, cut, abrupt)

    if model == 1:
        return law(_P, _P)
    if model == CONSTANT_Z_MODEL:
        return CONSTANT_IMPEDANCE
    if model == 3:
        return law(_P, _Z, abrupt=True)
    if model == 4:
        exponents = (load.number("cvrwatts"), load.number("cvrvars"))
        return Response(_P, _P, exponents, lowest, highest, cut, abrupt=True)
    if model == 5:
        return law(_I, _I)
    if model == 8:
        shares = load.numbers("zipv")
        if len(shares) < 7:
            refused.append(f"load '{name}' is of model 8 without ZIPV; give its seven figures")
            return law(_P, _P)
        active, reactive = (shares[0], shares[1], shares[2]), (shares[3], shares[4], shares[5])
        if shares[6] > 0.0:
            refused.append(
                f"load '{name}' drops out below a voltage (seventh figure of ZIPV); set that figure to 0"
            )
        wrong = any(abs(sum(part) - 1.0) > _SUM_OF_SHARES for part in (active, reactive))
        if wrong:
            refused.append(f"shares in ZIPV of load '{name}' do not add up to 1; correct them")
        return law(active, reactive)
    refused.append(
        f"load '{name}' is of model {model}, of fixed reactive power; use one of models 1 to 5 or 8"
    )
    return law(_P, _P)


# ----------------------------------------------------------------------------------------------------------
# Regulators of an OpenDSS circuit: moved windings at inner nodes, at ratio 1.
#
# The admittances are those of the frozen frame, with the regulating transformers taken out and put back at
# ratio 1, their moved windings at inner nodes. What a control of the file asks for and the solver does not
# model becomes a sentence of `Operation.refused`; the feeder can be read all the same.


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


# ----------------------------------------------------------------------------------------------------------
# Capacitors of an OpenDSS circuit that a control switches.


_KINDS: dict[str, Literal["voltage", "kvar", "current", "time"]] = {
    "voltage": "voltage",
    "kvar": "kvar",
    "current": "current",
    "time": "time",
}
_WITH_CURRENT = ("line", "transformer", "reactor")
"""Classes whose current follows from their admittance and their voltages."""
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class _Monitored:
    """Element that a control looks at.

    Attributes
    ----------
    nodes : of all conductors, by terminal, as the admittances have them.
    phases, per_terminal : numbers of phases and of conductors.
    offset : first conductor of the terminal.
    primitive : admittances between these nodes [S]; None where the current does not follow from them.
    """

    nodes: tuple[int, ...]
    phases: int
    per_terminal: int
    offset: int
    primitive: ComplexArray | None


def monitored_nodes(engine: Engine) -> dict[str, list[str | None]]:
    """Enabled controls → nodes of the element that each looks at; none if it is disabled.

    To be read before loads and generators are disabled.
    """
    found: dict[str, list[str | None]] = {}
    for name in enabled_names(engine, "capcontrol"):
        element = Properties(engine, "capcontrol", name).text("element")
        alive = is_enabled(engine, element)
        found[name] = terminal_nodes(engine.ActiveCircuit.ActiveCktElement) if alive else []
    return found


class CapacitorReader:
    """Reads capacitor controls one by one; what is not modelled goes to `refused`."""

    def __init__(
        self, engine: Engine, admittances: Admittances, placed: Sequence[Placed], refused: list[str]
    ) -> None:
        self._engine, self._admittances, self._refused = engine, admittances, refused
        self._placed = {each.regulator.transformer: each for each in placed}
        self._circuit = engine.ActiveCircuit
        self._network = admittances.network

    def read(self, controls: Mapping[str, list[str | None]]) -> tuple[SwitchedCapacitor, ...]:
        """The banks that controls switch; they are taken out of the admittances.

        Parameters
        ----------
        controls : what `monitored_nodes` found.
        """
        found: dict[str, SwitchedCapacitor] = {}
        for name in controls:
            capacitor = Properties(self._engine, "capcontrol", name).text("capacitor").split(".")[-1]
            if not is_enabled(self._engine, f"capacitor.{capacitor}"):
                continue
            try:
                if capacitor in found:
                    raise NotModelledError(
                        "switches a capacitor that another control switches too; disable one"
                    )
                found[capacitor] = self._bank(name, capacitor, controls[name])
            except NotModelledError as reason:
                self._refused.append(f"capacitor control '{name}' {reason}")
        for capacitor in found:
            self._circuit.SetActiveElement(f"capacitor.{capacitor}")
            element = self._circuit.ActiveCktElement
            self._admittances.add(self._nodes(element), -primitive(element))
        return tuple(found.values())

    def _nodes(self, element: Engine) -> list[int]:
        return [self._network.at(node) for node in terminal_nodes(element)]

    # ---------------------------------------------------------------------------------- the bank

    def _bank(self, control: str, capacitor: str, seen: list[str | None]) -> SwitchedCapacitor:
        properties = Properties(self._engine, "capacitor", capacitor)
        element = self._circuit.ActiveCktElement
        steps = properties.numbers("kvar")
        odd = any(value != 0.0 for key in ("r", "xl", "harm") for value in properties.numbers(key))
        if len(steps) != 1 or odd:
            raise NotModelledError(
                "switches a bank with several steps or a series impedance; state one step without R, XL, harm"
            )
        nodes, phases = self._nodes(element), int(element.NumPhases)
        delta = properties.text("conn").startswith(("d", "ll"))
        if delta:
            branches = tuple((nodes[k], nodes[(k + 1) % phases]) for k in range(phases))
        else:
            branches = tuple((nodes[k], nodes[int(element.NumConductors) + k]) for k in range(phases))
        kv = coil_kv(properties.number("kv"), phases, delta=delta)
        closed = properties.numbers("states") != [0.0] and not any(
            element.IsOpen(terminal, 0) for terminal in range(1, int(element.NumTerminals) + 1)
        )
        if closed and not _is_plain(primitive(element), nodes, branches, steps[0] / kv**2 / 1000.0):
            raise NotModelledError("switches a bank that is neither a plain wye nor delta; state it as one")
        return SwitchedCapacitor(
            name=capacitor,
            branches=branches,
            kvar=steps[0],
            rated_kv=kv,
            control=self._control(control, seen, phases, delta=delta),
            closed=closed,
        )

    # ------------------------------------------------------------------------------- its control

    def _control(self, name: str, seen: list[str | None], phases: int, *, delta: bool) -> CapacitorControl:
        control = Properties(self._engine, "capcontrol", name)
        kind = _KINDS.get(control.text("type"))
        if kind is None:
            raise NotModelledError("is of type PF or written by a user; use voltage, kvar, current or time")
        override = control.yes("voltoverride") and kind != "voltage"
        limits = (control.number("vmin"), control.number("vmax")) if override else None
        voltage_phase, current_phase = control.text("ptphase"), control.text("ctphase")
        if override and control.text("vbus"):
            raise NotModelledError("looks at the voltage of another bus; leave out vbus")
        settings = (
            control.number("ptratio"),
            control.number("ctratio"),
            control.number("onsetting"),
            control.number("offsetting"),
            control.number("delay"),
            control.number("delayoff"),
            limits,
            control.number("deadtime"),
        )
        if not seen:
            raise NotModelledError("looks at an element that is disabled; correct its element")
        monitored = self._monitored(control.text("element"), int(control.number("terminal")), seen)
        measured: tuple[Branch, ...] = ()
        if override or kind == "voltage":
            nodes = monitored.nodes[monitored.offset :][: monitored.per_terminal]
            measured = _voltages(voltage_phase, nodes, monitored.phases, phases if delta else 0)
        return CapacitorControl(
            kind,
            measured,
            _PICKS.get(voltage_phase, Pick.ONE),
            _probes(kind, current_phase, monitored, phases, self._admittances),
            *settings,
            pick_current=_PICKS.get(current_phase, Pick.ONE),
        )

    def _monitored(self, element_name: str, terminal: int, names: list[str | None]) -> _Monitored:
        self._circuit.SetActiveElement(element_name)
        element = self._circuit.ActiveCktElement
        kind, _, name = element_name.partition(".")
        nodes, block = tuple(self._network.at(node) for node in names), None
        if kind in _WITH_CURRENT:
            block = primitive(element)
        if kind == "transformer" and name in self._placed:
            nodes, block = self._placed[name].nodes, self._placed[name].neutral
        per_terminal = int(element.NumConductors)
        offset = (terminal - 1) * per_terminal
        return _Monitored(nodes, int(element.NumPhases), per_terminal, offset, block)


def _voltages(phase: str, nodes: Sequence[int], monitored: int, delta: int) -> tuple[Branch, ...]:
    """Branches that a control measures.

    Parameters
    ----------
    nodes : of the terminal.
    monitored : phases of the monitored element, which "avg", "max" and "min" look at.
    delta : phases of the capacitor if it is in delta, else 0; one phase is then measured against the next.
    """
    if phase in _PICKS:
        chosen = [(node, GROUND) for node in nodes[:monitored]]
    else:
        one = int(phase) - 1
        other = one + 1 if one + 1 < delta else 0
        last = max(one, other) if delta else one
        if last >= len(nodes):
            raise NotModelledError("measures a phase that its element does not have; correct ptphase")
        chosen = [(nodes[one], nodes[other] if delta else GROUND)]
    if any(first == second for first, second in chosen):
        raise NotModelledError("measures the voltage of ground; correct its element or ptphase")
    return tuple(chosen)


def _probes(
    kind: str, phase: str, monitored: _Monitored, capacitor_phases: int, admittances: Admittances
) -> tuple[Probe, ...]:
    """Conductors whose currents a control measures.

    The engine counts a single phase from the first terminal, whatever terminal is stated, and looks at as
    many phases as the capacitor has for "avg", "max" and "min".
    """
    if kind not in ("kvar", "current"):
        return ()
    if monitored.primitive is None:
        raise NotModelledError(
            "measures the current of neither a line, a transformer nor a reactor; correct its element"
        )
    start = monitored.offset
    if kind == "kvar":
        chosen = range(start, start + monitored.per_terminal)
    elif phase in _PICKS:
        chosen = range(start, start + min(capacitor_phases, monitored.per_terminal))
    else:
        chosen = range(int(phase) - 1, int(phase))
    if max(chosen) >= len(monitored.nodes):
        raise NotModelledError("measures a phase that its element does not have; correct ctphase")
    inner = len(admittances.network.nodes)
    if kind == "current" and any(monitored.nodes[k] >= inner for k in chosen):
        raise NotModelledError(
            "measures the current of a winding that a regulator moves; measure it in a line"
        )
    return tuple(_probe(monitored, k, admittances) for k in chosen if monitored.nodes[k] != GROUND)


def _probe(monitored: _Monitored, conductor: int, admittances: Admittances) -> Probe:
    at = monitored.nodes[conductor]
    row: dict[int, complex] = {}
    assert monitored.primitive is not None
    for k, node in enumerate(monitored.nodes):
        value = complex(monitored.primitive[conductor, k])
        if node != GROUND and value != 0.0:
            row[node] = row.get(node, 0.0) + value * admittances.scale[at] * admittances.scale[node]
    return Probe(at, tuple(row), tuple(row.values()))


def _is_plain(block: ComplexArray, nodes: Sequence[int], branches: Sequence[Branch], siemens: float) -> bool:
    """Whether the admittance of a bank [S] is that of its branches, which share `siemens`."""
    each = 1j * siemens / len(branches)
    expected = np.zeros_like(block)
    place = {node: k for k, node in reversed(list(enumerate(nodes))) if node != GROUND}
    for first, second in branches:
        for node, other in ((first, second), (second, first)):
            if node != GROUND:
                expected[place[node], place[node]] += each
                if other != GROUND:
                    expected[place[node], place[other]] -= each
    kept = sorted(place.values())
    difference = (block - expected)[np.ix_(kept, kept)]
    return bool(np.abs(difference).max() <= _SAME * siemens)


# ----------------------------------------------------------------------------------------------------------
# PV systems, generators and inverter controls of an OpenDSS circuit, still by node name.


_CONSTANT_POWER, _INVERTER = 1, 7
_HOLDS_VOLTAGE = 3
_UNLIMITED = 10.0
OTHER_SOURCES = ("storage", "isource", "vccs", "indmach012", "gicsource", "windgen")
"""Classes that are left out, in any mode."""
_OTHER_INVERTER_CONTROLS = ("expcontrol", "gendispatcher", "upfccontrol", "espvlcontrol")
_DEFAULTS = {
    "effcurve": ("", "an efficiency curve"),
    "p-tcurve": ("", "a temperature curve"),
    "balanced": ("no", "currents that are forced to be balanced"),
    "limitcurrent": ("no", "a limit on its current"),
    "%pmpp": ("100", "a limit on its active power"),
    "%pminnovars": ("0", "no reactive power at little active power"),
    "%pminkvarmax": ("0", "less reactive power at little active power"),
    "controlmode": ("gfl", "a voltage that it forms"),
}
"""Property of a PV system → its default, and in words what another value stands for."""
_PLAIN_CONTROL = {
    "combimode": ("",),
    "mode": ("voltvar",),
    "voltage_curvex_ref": ("rated",),
    "hysteresis_offset": ("0",),
    "rateofchangemode": ("inactive",),
    "monbus": ("", "[]"),
    "monvoltagecalc": ("avg",),
    "refreactivepower": ("varaval", "varmax"),
}
"""Property of an inverter control → values that are modelled."""


# ------------------------------------------------------------------------------------ PV systems


def declared_pv(engine: Engine, left_out: list[str]) -> list[tuple[PVSystem, NamedBranches]]:
    """Every PV system, without its curve; what of them is not modelled is counted in `left_out`."""
    circuit = engine.ActiveCircuit
    declared: list[tuple[PVSystem, NamedBranches]] = []
    words: Counter[str] = Counter()
    for systems in circuit.PVSystems:
        name = systems.Name.lower()
        kva, peak = float(systems.kVArated), float(systems.Pmpp)
        tangent, fixed = power_factor(engine, name)
        own = Properties(engine, "pvsystem", name)
        refuse_open(engine, f"PV system '{name}'")
        delta, phases = own.text("conn").startswith(("d", "ll")), int(own.number("phases"))
        words.update(word for key, (usual, word) in _DEFAULTS.items() if own.text(key) != usual)
        if fixed:
            words["a fixed reactive power, which follows the active power here"] += 1
        pv = PVSystem(
            name=name,
            branches=(),
            kva=kva,
            kw_peak=peak,
            cut_in_fraction=own.number("%cutin") / 100.0,
            rated_kv=coil_kv(own.number("kv"), phases, delta=delta),
            response=_source_law(own),
            tan_theta=tangent,
        )
        declared.append((pv, named_branches(engine, delta)))
    left_out += [
        f"{_counted(count, 'PV system has', 'PV systems have')} {word}" for word, count in words.items()
    ]
    return declared


def power_factor(engine: Engine, name: str) -> tuple[float, bool]:
    """Reactive over active power of a PV system, and whether it has a fixed reactive power instead."""
    own = Properties(engine, "pvsystem", name)
    before, factor = own.text("irradiance"), own.number("pf")
    largest = min(own.number("pmpp"), own.number("kva"))
    kvar = []
    for irradiance in ("1", "0.5", before):
        engine.Text.Command = f'Edit "PVSystem.{name}" irradiance={irradiance}'
        kvar.append(Properties(engine, "pvsystem", name).number("kvar"))
    if kvar[0] != 0.0 and kvar[0] == kvar[1]:
        return kvar[0] / largest, True
    return math.copysign(math.sqrt(max(factor**-2 - 1.0, 0.0)), factor), False


def _source_law(own: Properties) -> Response:
    """Constant power between vminpu and vmaxpu, constant impedance beyond; model 2 is one throughout."""
    if int(own.number("model")) == CONSTANT_Z_MODEL:
        return CONSTANT_IMPEDANCE
    return Response(lowest=own.number("vminpu"), highest=own.number("vmaxpu"))


# ------------------------------------------------------------------------------------ generators


def declared_generators(engine: Engine, left_out: list[str]) -> list[tuple[Generator, NamedBranches]]:
    """Generators of constant power; all others are counted in `left_out`."""
    declared: list[tuple[Generator, NamedBranches]] = []
    words: Counter[tuple[str, str]] = Counter()
    for name in enabled_names(engine, "generator"):
        own = Properties(engine, "generator", name)
        model = int(own.number("model"))
        if model not in (_CONSTANT_POWER, _INVERTER):
            words[_of_model(model)] += 1
            continue
        if own.text("dispmode") != "default" and own.number("dispvalue") != 0.0 and not own.yes("forceon"):
            words["generator that is dispatched", "generators that are dispatched"] += 1
            continue
        refuse_open(engine, f"generator '{name}'")
        delta, phases = own.text("conn").startswith(("d", "ll")), int(own.number("phases"))
        law, multiplier = _source_law(own), generator_multiplier(engine, own)
        generator = Generator(
            name=name,
            branches=(),
            kw=own.number("kw") * multiplier,
            kvar=own.number("kvar") * multiplier,
            rated_kv=coil_kv(own.number("kv"), phases, delta=delta),
            response=law if model == _CONSTANT_POWER else replace(law, highest=_UNLIMITED),
        )
        declared.append((generator, named_branches(engine, delta)))
    left_out += [_counted(count, *word) for word, count in words.items()]
    return declared


def generator_multiplier(engine: Engine, own: Properties) -> float:
    """What the circuit multiplies the power of a generator by."""
    return 1.0 if own.text("status") == "fixed" else float(engine.ActiveCircuit.Solution.GenMult)


def _of_model(model: int) -> tuple[str, str]:
    """One and several generators of a model."""
    if model == _HOLDS_VOLTAGE:
        return "generator that holds its voltage (model 3)", "generators that hold their voltage (model 3)"
    return f"generator of model {model}", f"generators of model {model}"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def other_sources(engine: Engine) -> list[str]:
    """Storage and other sources, in words: none of them is modelled."""
    found = []
    for kind in OTHER_SOURCES:
        count = len(enabled_names(engine, kind))
        names = ("storage unit", "storage units")
        if kind != "storage":
            names = (f"element of class {kind}", f"elements of class {kind}")
        if count:
            found.append(_counted(count, *names))
    return found


# ------------------------------------------------------------------------------ inverter controls


def inverter_curves(engine: Engine, refused: list[str]) -> dict[str, InverterCurve]:
    """Volt-var curve of every PV system that has one, against the voltage that its kV states."""
    found: dict[str, InverterCurve] = {}
    for name in enabled_names(engine, "invcontrol"):
        try:
            curves = _curves(engine, name)
            if found.keys() & curves.keys():
                raise NotModelledError(
                    "acts on a PV system that another one acts on too; disable one of them"
                )
        except NotModelledError as reason:
            refused.append(f"inverter control '{name}' {reason}")
            continue
        found |= curves
    for kind in _OTHER_INVERTER_CONTROLS:
        refused += [
            f"control '{name}' of class {kind} is not modelled; disable it"
            for name in enabled_names(engine, kind)
        ]
    return found


def _curves(engine: Engine, name: str) -> dict[str, InverterCurve]:
    own = Properties(engine, "invcontrol", name)
    for key, modelled in _PLAIN_CONTROL.items():
        if own.text(key) not in modelled:
            raise NotModelledError(f"has {key}={own.text(key)}; only {modelled[0] or 'none'} is modelled")
    listed = [word.split(".") for word in own.text("derlist").strip("[]() ").replace(",", " ").split()]
    chosen = [parts[-1] for parts in listed if parts[0] != "storage"]
    available = own.text("refreactivepower") == "varaval"
    voltage, reactive = _points(engine, own.text("vvc_curve1"))
    found = {}
    for pv in enabled_names(engine, "pvsystem"):
        if listed and pv not in chosen:
            continue
        system = Properties(engine, "pvsystem", pv)
        kva = system.number("kva")
        most = (system.number("kvarmax") / kva, system.number("kvarmaxabs") / kva)
        if available and min(most) < 1.0:
            raise NotModelledError(
                "acts on a PV system whose kvarMax is below its kVA; set refreactivepower=varmax"
            )
        if not available and system.yes("wattpriority"):
            raise NotModelledError("acts on a PV system with watt priority; set refreactivepower=varaval")
        shares = tuple(y * (most[0] if y > 0.0 else most[1]) for y in reactive)
        found[pv] = InverterCurve(voltage, shares, "available" if available else "rated")
    return found


def _points(engine: Engine, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a curve; slopes at its ends go on until ±1, as the engine has them."""
    circuit = engine.ActiveCircuit
    circuit.SetActiveClass("xycurve")
    if not name or name not in [known.lower() for known in circuit.ActiveClass.AllNames]:
        raise NotModelledError("has no volt-var curve; give vvc_curve1")
    circuit.ActiveClass.Name = name
    own = Properties.of_active(engine)
    if any(
        own.number(key) != usual
        for key, usual in (("xshift", 0), ("yshift", 0), ("xscale", 1), ("yscale", 1))
    ):
        raise NotModelledError("has a curve that is shifted or scaled; state its points")
    x, y = own.numbers("xarray"), own.numbers("yarray")
    if len(x) != len(y) or len(x) < 2 or any(b <= a for a, b in pairwise(x)):
        raise NotModelledError("has a curve whose voltages do not increase; correct its points")
    for end, next_one in ((0, 1), (-1, -2)):
        slope = (y[end] - y[next_one]) / (x[end] - x[next_one])
        if slope != 0.0 and abs(y[end]) < 1.0:
            reached = math.copysign(1.0, slope * (x[end] - x[next_one]))
            where = len(x) if end else 0
            x.insert(where, x[end] + (reached - y[end]) / slope)
            y.insert(where, reached)
    return tuple(x), tuple(y)


def as_branches_see(pv: PVSystem, angle_deg: FloatArray) -> PVSystem:
    """The PV system with the voltages of its curve as those across its branches.

    The engine looks at the voltage to ground even where one phase stands between two nodes.
    """
    first, second = pv.branches[0]
    if pv.curve is None or len(pv.branches) > 1 or GROUND in (first, second):
        return pv
    across = float(np.abs(np.subtract(*unit(angle_deg[[first, second]]))))
    return replace(pv, curve=replace(pv.curve, voltage=tuple(u * across for u in pv.curve.voltage)))


@dataclass
class Declared:
    """What a circuit says before its controls and generators are disabled.

    Attributes
    ----------
    capacitor_controls : enabled ones → names of the nodes of the element that each looks at.
    pv, generators : with the names of their nodes.
    left_out, refused : as in `Operation`.
    """

    capacitor_controls: dict[str, list[str | None]] = field(default_factory=dict)
    pv: list[tuple[PVSystem, NamedBranches]] = field(default_factory=list)
    generators: list[tuple[Generator, NamedBranches]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_declared(engine: Engine) -> Declared:
    """What has to be read before anything is disabled."""
    found = Declared(capacitor_controls=monitored_nodes(engine))
    curves = inverter_curves(engine, found.refused)
    found.generators = declared_generators(engine, found.left_out)
    found.left_out += other_sources(engine)
    found.pv = [
        (replace(pv, curve=curves.get(pv.name)), names) for pv, names in declared_pv(engine, found.left_out)
    ]
    return found


def operation_of(
    engine: Engine,
    network: Network,
    declared: Declared,
    generators: tuple[Generator, ...],
    taps: Sequence[Tap],
) -> Operation | None:
    """The circuit with nothing frozen; None if it has nothing that moves.

    Parameters
    ----------
    engine : at the taps of the frozen frame, without loads and generation.
    generators : those of `declared` at their nodes.
    taps : of the frozen frame.
    """
    refused = declared.refused
    admittances = Admittances(network)
    moved = RegulatorReader(engine, network, refused).read()
    placed = place_regulators(engine, admittances, moved, taps)
    capacitors = CapacitorReader(engine, admittances, placed, refused).read(declared.capacitor_controls)
    if not (placed or capacitors or generators or refused or declared.left_out):
        return None
    return Operation(
        nodes=(*network.nodes, *admittances.inner),
        y=admittances.per_unit(),
        regulators=tuple(each.regulator for each in placed),
        capacitors=capacitors,
        generators=generators,
        left_out=tuple(declared.left_out),
        refused=tuple(refused),
    )
