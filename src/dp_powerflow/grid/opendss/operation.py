"""OpenDSS circuits → `Operation`: what the controls, generators and inverters of the file do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import unit
from dp_powerflow.grid.feeder import GROUND, PVSystem, Tap
from dp_powerflow.grid.opendss import engine as dss
from dp_powerflow.grid.opendss.engine import Engine, Properties
from dp_powerflow.grid.opendss.script import table_of
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
from dp_powerflow.grid.refusals import counted, said
from dp_powerflow.units import ComplexArray, FloatArray

# ----------------------------------------------------------------------------------------------------------
# How loads, PV systems and generators of an OpenDSS circuit answer to the voltage.


_Z, _I, _P = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
_LAWS: dict[int, tuple[Zip, Zip]] = {1: (_P, _P), 3: (_P, _Z), 4: (_P, _P), 5: (_I, _I)}
"""Model of a load → shares of its active and its reactive power."""
CONSTANT_Z_MODEL, _ABRUPT, _CVR_MODEL, _ZIP_MODEL = 2, (3, 4), 4, 8
_ZIP_FIGURES = 7
_SUM_OF_SHARES = 5e-3
_LINE_TO_LINE = (2, 3)


def coil_kv(kv: float, phases: int, *, delta: bool) -> float:
    """Voltage across a phase of an element by its kV, which is line to line for 2 and 3 phases."""
    return kv / math.sqrt(3.0) if not delta and phases in _LINE_TO_LINE else kv


def connected(engine: Engine, own: Properties) -> tuple[float, dss.NamedBranches]:
    """Voltage across a branch of the active element, and its branches."""
    rated_kv = coil_kv(own.number("kv"), int(own.number("phases")), delta=own.is_delta)
    return rated_kv, dss.named_branches(engine, own.is_delta)


def load_multiplier(engine: Engine, load: Properties) -> float:
    """What the circuit multiplies the power of a load by."""
    return float(engine.ActiveCircuit.Solution.LoadMult) if load.text("status") == "variable" else 1.0


def load_response(load: Properties, name: str, refused: list[str]) -> Response:
    """Law of a load; what the solver does not model is named in `refused`."""
    model = int(load.number("model"))
    if model == CONSTANT_Z_MODEL:
        return CONSTANT_IMPEDANCE
    active, reactive = _LAWS.get(model, (_P, _P))
    if model == _ZIP_MODEL:
        z, i, c, z_q, i_q, c_q, lowest, *_ = [*load.numbers("zipv"), *[math.nan] * _ZIP_FIGURES]
        if math.isnan(lowest):
            refused.append(said("operated.zip-missing", name=name))
        else:
            active, reactive = (z, i, c), (z_q, i_q, c_q)
        if lowest > 0.0:
            refused.append(said("operated.zip-drops-out", name=name))
        if any(abs(sum(part) - 1.0) > _SUM_OF_SHARES for part in (active, reactive)):
            refused.append(said("operated.zip-sum", name=name))
    elif model not in _LAWS:
        refused.append(said("operated.load-model", name=name, model=model))
    cut = load.number("vlowpu")
    return Response(
        active,
        reactive,
        (load.number("cvrwatts"), load.number("cvrvars")) if model == _CVR_MODEL else None,
        lowest=max(load.number("vminpu"), cut),  # at or below vlowpu the engine never asks for vminpu
        highest=load.number("vmaxpu"),
        cut=cut,
        abrupt=model in _ABRUPT,
    )


# ----------------------------------------------------------------------------------------------------------
# Regulators of an OpenDSS circuit: moved windings at inner nodes, at ratio 1.
#
# The admittances are those of the frozen frame, with the regulating transformers taken out and put back at
# ratio 1, their moved windings at inner nodes. What a control of the file asks for and the solver does not
# model becomes a sentence of `Operation.refused`; the feeder can be read all the same.


_PICKS = {"max": Pick.HIGHEST, "min": Pick.LOWEST, "avg": Pick.MEAN}


class NotModelledError(Exception):
    """A setting that the solver does not model; its text ends a sentence that starts with a control."""

    def __init__(self, name: str, **words: object) -> None:
        super().__init__(said(f"control.{name}", **words))


@contextmanager
def _modelled(refused: list[str], control: str) -> Iterator[None]:
    """What of a control is not modelled becomes a sentence of `refused`."""
    try:
        yield
    except NotModelledError as reason:
        refused.append(f"{control} {reason}")


def _refuse(**reasons: bool) -> None:
    """Refuse for the first reason that holds, by the name of its sentence."""
    for name, holds in reasons.items():
        if holds:
            raise NotModelledError(name.replace("_", "-"))


def _settings(control: Properties, kind: str) -> dict[str, Any]:
    """Figures of a control by the names that they have here."""
    return {name: control.number(stated) for name, stated in table_of(kind).items()}


class OperationBuilder:
    """Y of an operation [S] while it is being built; `inner` nodes are appended as they come.

    Parameters
    ----------
    nodes : names of the feeder's nodes, the circuit's first.
    index : name of a node of the circuit → its index.
    y : sparse complex (node, node) [S], of the frozen frame.
    scale : (node,) what a pair of nodes' admittance is multiplied by at both ends [p.u./S]^½.
    """

    def __init__(
        self, nodes: tuple[str, ...], index: dict[str, int], y: sp.csc_array, scale: FloatArray
    ) -> None:
        self.nodes, self.index = nodes, index
        self.inner: list[str] = []
        self.scale = scale.tolist()
        self._frozen = y
        self._entries: list[tuple[int, int, complex]] = []

    def of(self, element: Engine) -> list[int]:
        """Nodes of all conductors of an element."""
        return self.at(dss.terminal_nodes(element))

    def at(self, names: Sequence[str | None]) -> list[int]:
        """Indices of nodes; ground where there is none."""
        return [GROUND if name is None else self.index.get(name, GROUND) for name in names]

    def new_node(self, transformer: str, outer: int) -> int:
        """An inner node of a transformer, of the base of its outer one."""
        phase = self.nodes[outer].rsplit(".", 1)[1]
        self.inner.append(f"tap({transformer}).{phase}")
        self.scale.append(self.scale[outer])
        return len(self.scale) - 1

    def add(self, nodes: Sequence[int], block: ComplexArray) -> None:
        """Add the admittances of one element; rows and columns at ground are dropped."""
        for row, i in enumerate(nodes):
            for column, j in enumerate(nodes):
                if i != GROUND and j != GROUND and block[row, column] != 0.0:
                    self._entries.append((i, j, complex(block[row, column])))

    def per_unit(self) -> sp.csc_array:
        """The sum [p.u.]."""
        size = len(self.scale)
        known = sp.coo_array(self._frozen)
        rows, columns, values = zip(*self._entries, strict=True) if self._entries else ((), (), ())
        places = [
            np.concatenate([axis, np.array(more, dtype=np.int64)])
            for axis, more in zip(known.coords, (rows, columns), strict=True)
        ]
        total = sp.csc_array(
            (np.concatenate([known.data, np.array(values, dtype=np.complex128)]), tuple(places)),
            shape=(size, size),
        )
        total.eliminate_zeros()
        scale = sp.diags_array(np.array(self.scale))
        return sp.csc_array(scale @ total @ scale)


# -------------------------------------------------------------------------------------- regulators


@dataclass(frozen=True, eq=False)
class Moved:
    """A winding that a regulator moves.

    Attributes
    ----------
    nodes : of all conductors of the transformer, by terminal; `GROUND` where there is none. Once placed,
        inner ones for the moved winding.
    own : positions among them of the moved winding's phases.
    regulator : with `phases` empty until it is placed.
    neutral : admittances at ratio 1 between these nodes [S], once placed.
    """

    nodes: tuple[int, ...]
    own: tuple[int, ...]
    regulator: Regulator
    neutral: ComplexArray | None = None

    def primitive(self, engine: Engine) -> ComplexArray:
        """Admittances of the transformer as it stands [S]."""
        engine.ActiveCircuit.SetActiveElement(f"Transformer.{self.regulator.transformer}")
        return dss.primitive(engine.ActiveCircuit.ActiveCktElement).copy()

    @property
    def two_ratios(self) -> tuple[float, float]:
        """Two ratios of the winding's range, the first one 1 where it can be."""
        low, high = self.regulator.lowest, self.regulator.highest
        first = min(max(1.0, low), high)
        return first, (low if first - low > high - first else high)


class RegulatorReader:
    """Reads regulator controls one by one; what is not modelled goes to `refused`."""

    def __init__(self, engine: Engine, admittances: OperationBuilder, refused: list[str]) -> None:
        self._engine, self._admittances, self._refused = engine, admittances, refused
        self._circuit = engine.ActiveCircuit
        self._known = {name.lower() for name in self._circuit.Transformers.AllNames}

    def read(self) -> list[Moved]:
        """Every winding that is moved, in the order of the controls."""
        found: dict[str, Moved] = {}
        for name in dss.enabled_names(self._engine, "regcontrol"):
            with _modelled(self._refused, f"regulator control '{name}'"):
                moved = self._control(name)
                if moved is not None:
                    _refuse(two_regulators=moved.regulator.transformer in found)
                    found[moved.regulator.transformer] = moved
        return list(found.values())

    def _control(self, name: str) -> Moved | None:
        """What a control moves; None if it cannot move."""
        transformer = Properties(self._engine, "regcontrol", name).name("transformer")
        _refuse(no_transformer=transformer not in self._known)
        _refuse(disabled_transformer=not dss.is_enabled(self._engine, f"transformer.{transformer}"))
        control = Properties(self._engine, "regcontrol", name)
        winding, own = int(control.number("winding")), int(control.number("tapwinding"))
        stated, bus = _settings(control, "regulator"), control.text("bus")
        if bus:  # what a control of another bus leaves alone
            stated |= {"drop_r_v": 0.0, "drop_x_v": 0.0}
        _refuse(
            ldc_z=control.number("ldc_z") > 0.0 and not bus,
            cogen=control.yes("cogen"),
            inverse_time=control.yes("inversetime"),
            other_drop=winding != own and any(stated[drop] != 0.0 for drop in ("drop_r_v", "drop_x_v")),
        )
        neutral_delay_s = control.number("tapdelay") if control.yes("revneutral") else None
        backwards = ReverseSettings(**_settings(control, "reverse"), neutral_delay_s=neutral_delay_s)
        pick = _PICKS.get(control.text("ptphase"), Pick.ONE)
        phase = 1 if pick is not Pick.ONE else int(control.number("ptphase"))
        settings = Regulator(
            name=name,
            transformer=transformer,
            winding=own,
            phases=(),
            measured=(),
            pick=pick,
            compensated=0,
            **stated,
            winding_v=0.0,
            most_steps=int(control.number("maxtapchange")),
            opposite=winding != own,
            limit_v=control.number("vlimit") or None,
            reverse=backwards if control.yes("reversible") and not bus else None,
        )
        ratio = control.number("remoteptratio")
        moved = self._windings(settings, winding, phase)
        found = moved.regulator
        if found.steps < 1 or found.highest <= found.lowest or found.most_steps < 1:
            return None
        if not bus:
            return moved
        delta = bool(self._circuit.Transformers.IsDelta)
        _refuse(remote_kind=delta or phase != 1 or found.limit_v is not None)
        # The engine looks at the first node that is named, and turns volts into taps by the ratio of the
        # winding's own voltage transformer.
        name, *named = bus.split(".")
        node = f"{name}.{named[0] if named else 1}"
        if node not in self._admittances.index:
            raise NotModelledError("remote-node", node=node)
        measured, winding_v = (
            (self._admittances.index[node], GROUND),
            found.winding_v * ratio / found.pt_ratio,
        )
        found = replace(found, measured=(measured,), pick=Pick.ONE, compensated=0, pt_ratio=ratio)
        return replace(moved, regulator=replace(found, winding_v=winding_v))

    def _windings(self, settings: Regulator, winding: int, phase: int) -> Moved:
        """What is moved and measured."""
        transformers = self._circuit.Transformers
        transformers.Name = settings.transformer
        transformers.Wdg = settings.winding
        low, high, steps = float(transformers.MinTap), float(transformers.MaxTap), int(transformers.NumTaps)
        transformers.Wdg = winding
        kv, element = float(transformers.kV), self._circuit.ActiveCktElement
        phases, per_terminal = int(element.NumPhases), int(element.NumConductors)
        conductors = self._admittances.of(element)
        first = (settings.winding - 1) * per_terminal
        # A coil between two nodes is moved by moving both: what counts is the voltage across it.
        own = tuple(k for k in range(first, first + per_terminal) if conductors[k] != GROUND)
        grounded = conductors[first] == GROUND or own != tuple(range(first, first + len(own)))
        _refuse(grounded_first=grounded, delta_winding=bool(transformers.IsDelta) and phases > 1)
        at = conductors[(winding - 1) * per_terminal :][:per_terminal]
        seen = tuple((at[k], at[phases]) for k in range(phases))
        phase = phase if phase <= phases else 1
        one = settings.pick is Pick.ONE
        settings = replace(
            settings,
            measured=(seen[phase - 1],) if one else seen,
            compensated=phase - 1 if one else 0,
            winding_v=1000.0 * coil_kv(kv, phases, delta=False),
            lowest=low,
            highest=high,
            steps=steps,
        )
        return Moved(tuple(conductors), own, settings)


def place_regulators(
    engine: Engine, admittances: OperationBuilder, moved: Sequence[Moved], taps: Sequence[Tap]
) -> list[Moved]:
    """Move regulating transformers to their inner nodes; the engine ends at the given taps again."""
    if not moved:
        return []
    present = [each.primitive(engine) for each in moved]
    at_ends = []
    for end in (0, 1):
        ratios = [(each.regulator, each.two_ratios[end]) for each in moved]
        dss.set_taps(engine, [Tap(each.transformer, each.winding, ratio) for each, ratio in ratios])
        engine.YMatrix.BuildYMatrixD(1, 0)
        at_ends.append([each.primitive(engine) for each in moved])
    dss.set_taps(engine, taps)
    placed = []
    for each, now, one, other in zip(moved, present, *at_ends, strict=True):
        outer = [each.nodes[k] for k in each.own]
        inner = [admittances.new_node(each.regulator.transformer, node) for node in outer]
        neutral, fixed = _at_neutral(one, other, each.two_ratios, each.own)
        nodes = list(each.nodes)
        admittances.add(nodes, -now)
        admittances.add(outer, fixed)
        for k, node in zip(each.own, inner, strict=True):
            nodes[k] = node
        admittances.add(nodes, neutral)
        regulator = replace(each.regulator, phases=tuple(zip(inner, outer, strict=True)))
        placed.append(Moved(tuple(nodes), each.own, regulator, neutral))
    return placed


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


_KINDS = ("voltage", "kvar", "current", "time")
_WITH_CURRENT = ("line", "transformer", "reactor")
"""Classes whose current follows from their admittance and their voltages."""
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class _Monitored:
    """Element that a control watches.

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
    """Enabled controls → nodes of the element that each watches; none if it is disabled.

    To be read before loads and generators are disabled.
    """
    found: dict[str, list[str | None]] = {}
    for name in dss.enabled_names(engine, "capcontrol"):
        element = Properties(engine, "capcontrol", name).text("element")
        alive = dss.is_enabled(engine, element)
        found[name] = dss.terminal_nodes(engine.ActiveCircuit.ActiveCktElement) if alive else []
    return found


class CapacitorReader:
    """Reads capacitor controls one by one; what is not modelled goes to `refused`."""

    def __init__(
        self, engine: Engine, admittances: OperationBuilder, placed: Sequence[Moved], refused: list[str]
    ) -> None:
        self._engine, self._admittances, self._refused = engine, admittances, refused
        self._placed = {each.regulator.transformer: each for each in placed}
        self._circuit = engine.ActiveCircuit

    def read(self, controls: Mapping[str, list[str | None]]) -> tuple[SwitchedCapacitor, ...]:
        """The banks that controls switch; they are taken out of the admittances.

        Parameters
        ----------
        controls : what `monitored_nodes` found.
        """
        found: dict[str, SwitchedCapacitor] = {}
        for name, seen in controls.items():
            capacitor = Properties(self._engine, "capcontrol", name).name("capacitor")
            if dss.is_enabled(self._engine, f"capacitor.{capacitor}"):
                with _modelled(self._refused, f"capacitor control '{name}'"):
                    _refuse(two_on_a_capacitor=capacitor in found)
                    found[capacitor] = self._bank(name, capacitor, seen)
        for capacitor in found:
            self._circuit.SetActiveElement(f"capacitor.{capacitor}")
            element = self._circuit.ActiveCktElement
            self._admittances.add(self._admittances.of(element), -dss.primitive(element))
        return tuple(found.values())

    def _bank(self, control: str, capacitor: str, seen: list[str | None]) -> SwitchedCapacitor:
        properties = Properties(self._engine, "capacitor", capacitor)
        element = self._circuit.ActiveCktElement
        steps = properties.numbers("kvar")
        odd = any(value != 0.0 for key in ("r", "xl", "harm") for value in properties.numbers(key))
        _refuse(several_steps=len(steps) != 1 or odd)
        nodes, phases, delta = self._admittances.of(element), int(element.NumPhases), properties.is_delta
        others = [(k + 1) % phases if delta else int(element.NumConductors) + k for k in range(phases)]
        branches = tuple((nodes[k], nodes[other]) for k, other in enumerate(others))
        kv = coil_kv(properties.number("kv"), phases, delta=delta)
        closed = properties.numbers("states") != [0.0] and not any(
            element.IsOpen(terminal, 0) for terminal in range(1, int(element.NumTerminals) + 1)
        )
        siemens = steps[0] / kv**2 / 1000.0
        _refuse(no_plain_bank=closed and not _is_plain(dss.primitive(element), nodes, branches, siemens))
        return SwitchedCapacitor(
            name=capacitor,
            branches=branches,
            kvar=steps[0],
            rated_kv=kv,
            control=self._control(control, seen, phases, delta=delta),
            closed=closed,
        )

    def _control(self, name: str, seen: list[str | None], phases: int, *, delta: bool) -> CapacitorControl:
        control = Properties(self._engine, "capcontrol", name)
        kind: Any = control.text("type")
        _refuse(type=kind not in _KINDS)
        override = control.yes("voltoverride") and kind != "voltage"
        voltage_phase, current_phase = control.text("ptphase"), control.text("ctphase")
        _refuse(vbus=override and bool(control.text("vbus")), disabled_element=not seen)
        limits = (control.number("vmin"), control.number("vmax")) if override else None
        settings = _settings(control, "capacitor_control")
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
            **settings,
            override_v=limits,
            pick_current=_PICKS.get(current_phase, Pick.ONE),
        )

    def _monitored(self, element_name: str, terminal: int, names: list[str | None]) -> _Monitored:
        self._circuit.SetActiveElement(element_name)
        element = self._circuit.ActiveCktElement
        kind, _, name = element_name.partition(".")
        nodes = tuple(self._admittances.at(names))
        block = dss.primitive(element) if kind in _WITH_CURRENT else None
        if kind == "transformer" and name in self._placed:
            nodes, block = self._placed[name].nodes, self._placed[name].neutral
        per_terminal = int(element.NumConductors)
        return _Monitored(nodes, int(element.NumPhases), per_terminal, (terminal - 1) * per_terminal, block)


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
        _refuse(ptphase=(max(one, other) if delta else one) >= len(nodes))
        chosen = [(nodes[one], nodes[other] if delta else GROUND)]
    _refuse(ground=any(first == second for first, second in chosen))
    return tuple(chosen)


def _probes(
    kind: str, phase: str, monitored: _Monitored, capacitor_phases: int, admittances: OperationBuilder
) -> tuple[Probe, ...]:
    """Conductors whose currents a control measures.

    The engine counts a single phase from the first terminal, whatever terminal is stated, and looks at as
    many phases as the capacitor has for "avg", "max" and "min".
    """
    if kind not in ("kvar", "current"):
        return ()
    _refuse(no_current=monitored.primitive is None)
    start = monitored.offset
    if kind == "kvar":
        chosen = range(start, start + monitored.per_terminal)
    elif phase in _PICKS:
        chosen = range(start, start + min(capacitor_phases, monitored.per_terminal))
    else:
        chosen = range(int(phase) - 1, int(phase))
    _refuse(ctphase=max(chosen) >= len(monitored.nodes))
    inner = len(admittances.nodes)
    _refuse(moved_current=kind == "current" and any(monitored.nodes[k] >= inner for k in chosen))
    return tuple(_probe(monitored, k, admittances) for k in chosen if monitored.nodes[k] != GROUND)


def _probe(monitored: _Monitored, conductor: int, admittances: OperationBuilder) -> Probe:
    at = monitored.nodes[conductor]
    row: dict[int, complex] = {}
    assert monitored.primitive is not None
    for k, node in enumerate(monitored.nodes):
        value = complex(monitored.primitive[conductor, k])
        if node != GROUND and value != 0.0:
            row[node] = row.get(node, 0.0) + value * admittances.scale[at] * admittances.scale[node]
    return Probe(at, tuple(row), tuple(row.values()))


def _is_plain(block: ComplexArray, nodes: Sequence[int], branches: Sequence[Branch], siemens: float) -> bool:
    """Whether the branches alone, which share `siemens`, make the admittance of a bank [S]."""
    known = [node for node in dict.fromkeys(nodes) if node != GROUND]
    kept = [nodes.index(node) for node in known]
    incidence = np.array([[(node == one) - (node == other) for node in known] for one, other in branches])
    difference = block[np.ix_(kept, kept)] - 1j * siemens / len(branches) * incidence.T @ incidence
    return bool(np.abs(difference).max() <= _SAME * siemens)


# ----------------------------------------------------------------------------------------------------------
# PV systems, generators and inverter controls of an OpenDSS circuit, still by node name.


_CONSTANT_POWER, _INVERTER = 1, 7
_HOLDS_VOLTAGE = 3
_UNLIMITED = 10.0
OTHER_SOURCES = ("storage", "isource", "vccs", "indmach012", "gicsource", "windgen")
"""Classes that are left out, in any mode."""
_OTHER_INVERTER_CONTROLS = ("expcontrol", "gendispatcher", "upfccontrol", "espvlcontrol")
_DEFAULTS, _PLAIN_CONTROL = table_of("pv_defaults"), table_of("inverter_control")
"""Property of a PV system → its default, and what others stand for; of a control → what is modelled."""


# ------------------------------------------------------------------------------------ PV systems


def declared_pv(engine: Engine, left_out: list[str]) -> list[tuple[PVSystem, dss.NamedBranches]]:
    """Every PV system, without its curve; what of them is not modelled is counted in `left_out`."""
    circuit = engine.ActiveCircuit
    declared: list[tuple[PVSystem, dss.NamedBranches]] = []
    words: Counter[str] = Counter()
    for systems in circuit.PVSystems:
        name = systems.Name.lower()
        kva, peak = float(systems.kVArated), float(systems.Pmpp)
        tangent, fixed = power_factor(engine, name)
        own = Properties(engine, "pvsystem", name)
        dss.refuse_open(engine, f"PV system '{name}'")
        rated_kv, branches = connected(engine, own)
        words.update(word for key, (usual, word) in _DEFAULTS.items() if own.text(key) != usual)
        if fixed:
            words["a fixed reactive power, which follows the active power here"] += 1
        pv = PVSystem(
            name=name,
            branches=(),
            kva=kva,
            kw_peak=peak,
            cut_in_fraction=own.number("%cutin") / 100.0,
            rated_kv=rated_kv,
            response=_source_law(own),
            tan_theta=tangent,
        )
        declared.append((pv, branches))
    left_out += [counted("left-out.pv", count, what=word) for word, count in words.items()]
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


def declared_generators(engine: Engine, left_out: list[str]) -> list[tuple[Generator, dss.NamedBranches]]:
    """Generators of constant power; all others are counted in `left_out`."""
    declared: list[tuple[Generator, dss.NamedBranches]] = []
    lost: Counter[tuple[str, int]] = Counter()
    for name in dss.enabled_names(engine, "generator"):
        own = Properties(engine, "generator", name)
        model = int(own.number("model"))
        dispatched = own.text("dispmode") != "default" and own.number("dispvalue") != 0.0
        if model not in (_CONSTANT_POWER, _INVERTER):
            lost["holds-voltage" if model == _HOLDS_VOLTAGE else "model", model] += 1
            continue
        if dispatched and not own.yes("forceon"):
            lost["dispatched", 0] += 1
            continue
        dss.refuse_open(engine, f"generator '{name}'")
        rated_kv, branches = connected(engine, own)
        law, multiplier = _source_law(own), generator_multiplier(engine, own)
        generator = Generator(
            name=name,
            branches=(),
            kw=own.number("kw") * multiplier,
            kvar=own.number("kvar") * multiplier,
            rated_kv=rated_kv,
            response=law if model == _CONSTANT_POWER else replace(law, highest=_UNLIMITED),
        )
        declared.append((generator, branches))
    left_out += [counted(f"left-out.{why}", n, model=model) for (why, model), n in lost.items()]
    return declared


def generator_multiplier(engine: Engine, own: Properties) -> float:
    """What the circuit multiplies the power of a generator by."""
    return 1.0 if own.text("status") == "fixed" else float(engine.ActiveCircuit.Solution.GenMult)


def other_sources(engine: Engine) -> list[str]:
    """Storage and other sources, in words: none of them is modelled."""
    counts = {kind: len(dss.enabled_names(engine, kind)) for kind in OTHER_SOURCES}
    return [
        counted("left-out.storage" if kind == "storage" else "left-out.class", count, kind=kind)
        for kind, count in counts.items()
        if count
    ]


# ------------------------------------------------------------------------------ inverter controls


def inverter_curves(engine: Engine, refused: list[str]) -> dict[str, InverterCurve]:
    """Volt-var curve of every PV system that has one, against the voltage that its kV states."""
    found: dict[str, InverterCurve] = {}
    for name in dss.enabled_names(engine, "invcontrol"):
        with _modelled(refused, f"inverter control '{name}'"):
            curves = _curves(engine, name)
            _refuse(two_on_a_pv=bool(found.keys() & curves.keys()))
            found |= curves
    for kind in _OTHER_INVERTER_CONTROLS:
        names = dss.enabled_names(engine, kind)
        refused += [said("operated.other-control", name=name, kind=kind) for name in names]
    return found


def _curves(engine: Engine, name: str) -> dict[str, InverterCurve]:
    own = Properties(engine, "invcontrol", name)
    for key, modelled in _PLAIN_CONTROL.items():
        if own.text(key) not in modelled:
            raise NotModelledError(
                "inverter-setting", key=key, stated=own.text(key), usual=modelled[0] or "none"
            )
    listed = [word.split(".") for word in own.words("derlist")]
    chosen = [parts[-1] for parts in listed if parts[0] != "storage"]
    available = own.text("refreactivepower") == "varaval"
    voltage, reactive = _points(engine, own.text("vvc_curve1"))
    found = {}
    for pv in dss.enabled_names(engine, "pvsystem"):
        if listed and pv not in chosen:
            continue
        system = Properties(engine, "pvsystem", pv)
        kva = system.number("kva")
        most = (system.number("kvarmax") / kva, system.number("kvarmaxabs") / kva)
        _refuse(
            kvarmax=available and min(most) < 1.0, watt_priority=not available and system.yes("wattpriority")
        )
        shares = tuple(y * (most[0] if y > 0.0 else most[1]) for y in reactive)
        found[pv] = InverterCurve(voltage, shares, "available" if available else "rated")
    return found


def _points(engine: Engine, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a curve; slopes at its ends go on until ±1, as the engine has them."""
    circuit = engine.ActiveCircuit
    circuit.SetActiveClass("xycurve")
    _refuse(no_curve=not name or name not in [known.lower() for known in circuit.ActiveClass.AllNames])
    circuit.ActiveClass.Name = name
    own = Properties(engine)
    plain = {"xshift": 0.0, "yshift": 0.0, "xscale": 1.0, "yscale": 1.0}
    _refuse(shifted_curve=any(own.number(key) != usual for key, usual in plain.items()))
    x, y = own.numbers("xarray"), own.numbers("yarray")
    _refuse(falling_curve=len(x) != len(y) or len(x) < 2 or any(b <= a for a, b in pairwise(x)))
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
    capacitor_controls : enabled ones → names of the nodes of the element that each watches.
    pv, generators : with the names of their nodes.
    left_out, refused : as in `Operation`.
    """

    capacitor_controls: dict[str, list[str | None]]
    pv: list[tuple[PVSystem, dss.NamedBranches]]
    generators: list[tuple[Generator, dss.NamedBranches]]
    left_out: list[str]
    refused: list[str]


def read_declared(engine: Engine) -> Declared:
    """What has to be read before anything is disabled."""
    refused: list[str] = []
    left_out: list[str] = []
    controls, curves = monitored_nodes(engine), inverter_curves(engine, refused)
    generators = declared_generators(engine, left_out)
    left_out += other_sources(engine)
    systems = declared_pv(engine, left_out)
    pv = [(replace(system, curve=curves.get(system.name)), names) for system, names in systems]
    return Declared(controls, pv, generators, left_out, refused)


def operation_of(
    engine: Engine,
    admittances: OperationBuilder,
    declared: Declared,
    generators: tuple[Generator, ...],
    taps: Sequence[Tap],
) -> Operation | None:
    """The circuit with nothing frozen; None if it has nothing that moves.

    Parameters
    ----------
    engine : at the taps of the frozen frame, without loads and generation.
    generators : the declared ones at their nodes.
    taps : of the frozen frame.
    """
    refused = declared.refused
    moved = RegulatorReader(engine, admittances, refused).read()
    placed = place_regulators(engine, admittances, moved, taps)
    capacitors = CapacitorReader(engine, admittances, placed, refused).read(declared.capacitor_controls)
    if not (placed or capacitors or generators or refused or declared.left_out):
        return None
    return Operation(
        nodes=(*admittances.nodes, *admittances.inner),
        y=admittances.per_unit(),
        regulators=tuple(each.regulator for each in placed),
        capacitors=capacitors,
        generators=generators,
        left_out=tuple(declared.left_out),
        refused=tuple(refused),
    )
