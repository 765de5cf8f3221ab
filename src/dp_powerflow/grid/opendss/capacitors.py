"""Capacitors of an OpenDSS circuit that a control switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dp_powerflow.grid.feeder import GROUND
from dp_powerflow.grid.opendss.engine import (
    Engine,
    Properties,
    enabled_names,
    is_enabled,
    primitive,
    terminal_nodes,
)
from dp_powerflow.grid.opendss.regulators import Admittances, NotModelledError, Placed
from dp_powerflow.grid.opendss.responses import coil_kv
from dp_powerflow.grid.operation import Branch, CapacitorControl, Pick, Probe, SwitchedCapacitor
from dp_powerflow.units import ComplexArray

_KINDS: dict[str, Literal["voltage", "kvar", "current", "time"]] = {
    "voltage": "voltage",
    "kvar": "kvar",
    "current": "current",
    "time": "time",
}
_PICKS = {"max": Pick.HIGHEST, "min": Pick.LOWEST, "avg": Pick.MEAN}
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
