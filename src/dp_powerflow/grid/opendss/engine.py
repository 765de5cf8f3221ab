"""The OpenDSS engine, tamed: own context, no change of directory, errors as sentences.

Every circuit has its own engine context, so feeders do not disturb each other.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder, Tap
from dp_powerflow.grid.opendss.script import PROTECTION, class_of, listed
from dp_powerflow.grid.opendss.script import DssOrigin as DssOrigin
from dp_powerflow.grid.refusals import Problems, refusal
from dp_powerflow.units import ComplexArray

# Else, in a folder whose name the locale lacks, OpenDSS makes another one and moves there.
_locale = os.environ.get("LC_ALL", "")
os.environ["LC_ALL"] = "C.UTF-8"
from dss import DSS  # noqa: E402
from dss import DSSException as DSSException  # noqa: E402

os.environ["LC_ALL"] = _locale

Engine = Any
"""`dss.IDSS`; the package ships no usable types."""

REPLACED_CLASSES = ("load", "pvsystem")
"""Power conversion elements that the program models itself."""

CONTROLS_OFF = "Set ControlMode=OFF"

_NETWORK_CLASSES, CONTROLS = frozenset(listed("network")), frozenset(listed("controls"))
"""Classes of the network; controls but regulators: what they control stays as the file states it."""
_NO_INJECTIONS = CONTROLS | {"regcontrol", "energymeter", "monitor", "sensor"}
_PLAIN_VERBS, _PLAIN_OPTIONS = frozenset(listed("plain_verbs")), frozenset(listed("plain_options"))
_OPEN_ACTION = 1
_PHASES = re.compile(r"(?<![\w.%])ph(?:a(?:s(?:es?)?)?)?\s*=\s*[\"'(\[{]?\s*([^\s,\"')\]}]*)", re.IGNORECASE)
_WINDINGS = re.compile(r"\bwindings\s*=\s*[\"'(\[{]?\s*([^\s,\"')\]}]*)", re.IGNORECASE)
_NUMBERING = ("calcvoltagebases", "makebuslist", "solve")
_EDITED = re.compile(r"\s*edit\s+(?:object\s*=\s*)?[\"'(\[{]?([^\s,\"')\]}]+)", re.IGNORECASE)
_GOES_ON = re.compile(r"\s*(?:more|m|~)(?:[\s,=]|$)", re.IGNORECASE)
_OPENS = re.compile(r"\b(?:state|action|normal)\s*=\s*[\[(\"']?\s*[ot]|\bopen\b", re.IGNORECASE)


def with_declared_loads(origin: DssOrigin, powers: Mapping[str, tuple[float, float]]) -> DssOrigin:
    """The circuit with nominal loads of a declared table: name → (kW, kvar)."""
    commands = [f'Edit "Load.{name}" kW={kw!r} kvar={kvar!r}' for name, (kw, kvar) in powers.items()]
    places = tuple(origin.places) or tuple(origin.where for _ in origin.commands)
    return replace(
        origin,
        commands=(*origin.commands, "Set LoadMult=1", *commands),
        places=(*places, *["the load table"] * (1 + len(commands))),
        loads_declared=True,
    )


@lru_cache(maxsize=16)
def is_plain(origin: DssOrigin) -> bool:
    """Whether the commands leave nothing behind in an engine that is cleared."""
    for command in origin.commands:
        verb, _, rest = command.strip().lower().partition(" ")
        options = re.findall(r"([^\s=,]+)\s*=", rest) if verb == "set" else []
        if verb not in _PLAIN_VERBS and (not options or not _PLAIN_OPTIONS.issuperset(options)):
            return False
    return True


class _Spare(threading.local):
    """Engines that this thread has made; none of them compiles in two threads at once."""

    plain: Engine | None = None
    frequency: str = ""
    own: tuple[DssOrigin, Engine] | None = None


_spare = _Spare()


def engine_of(origin: DssOrigin) -> Engine:
    """An engine of this thread to compile a circuit or its twins in, until it is asked for another one.

    What `ClearAll` leaves behind is what options and variables of a file set for the whole engine. A circuit
    without any of them shares one engine with all others of its kind; any other has its own.
    """
    if not is_plain(origin):
        if _spare.own is None or _spare.own[0] != origin:
            _spare.own = origin, DSS.NewContext()
        return _spare.own[1]
    if _spare.plain is None:
        _spare.plain = DSS.NewContext()
        run(_spare.plain, "New Circuit.any", origin)
        run(_spare.plain, "Get DefaultBaseFrequency", origin)
        _spare.frequency = str(_spare.plain.Text.Result)
    run(_spare.plain, "ClearAll", origin)
    run(_spare.plain, f"Set DefaultBaseFrequency={_spare.frequency}", origin)  # a twin states its own
    return _spare.plain


def build_circuit(origin: DssOrigin, engine: Engine | None = None) -> Engine:
    """An engine with the circuit compiled, not yet solved.

    Parameters
    ----------
    engine : of `engine_of`, is cleared; None makes a fresh one. A fresh one takes longer than a small
        circuit, and dss-python never gives its memory back (about 2 MB).
    """
    try:
        if engine is not None:
            run(engine, "ClearAll", origin)
        else:
            engine = DSS.NewContext()
        engine.AllowForms = False
        engine.AllowEditor = False
        engine.AllowChangeDir = False
        engine.DataPath = _folder_of_reports()
        _run_all(engine, origin)
        if engine.NumCircuits == 0 or engine.ActiveCircuit.NumCktElements == 0:
            raise refusal("feeder-rejected.no-circuit", where=origin.where)
        _refuse_ambiguous(engine)
        sources, solved = enabled_names(engine, "vsource"), float(engine.ActiveCircuit.Solution.Frequency)
        if not sources:
            raise refusal("feeder-without-source.disabled", where=origin.where)
        for name in sources:  # at another frequency they have no voltage
            if Properties(engine, "vsource", name).number("frequency") != solved:
                raise refusal("feeder.other-frequency", solved=solved, name=name)
    except FeederError:  # an engine in which a circuit fails compiles no other one
        if engine is not None and _spare.plain is engine:
            _spare.plain = None
        if _spare.own is not None and _spare.own[1] is engine:
            _spare.own = None
        raise
    return engine


def _refuse_ambiguous(engine: Engine) -> None:
    """Refuse elements of the same name, as `AllowDuplicates` leaves them."""
    circuit = engine.ActiveCircuit
    codes = [f"linecode.{name}" for name in circuit.LineCodes.AllNames if name]
    names = Counter(name.lower() for name in (*circuit.AllElementNames, *codes))
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        others = f", and {len(twice) - 1} more such pairs" if len(twice) > 1 else ""
        raise refusal("feeder.same-name", twice=twice, others=others)


def _folder_of_reports() -> str:
    """Where the engine would write unasked: not here, and nowhere where there is no room."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.path.abspath(os.sep)  # it may not write there either, and need not


def _run_all(engine: Engine, origin: DssOrigin) -> None:
    """Run the commands of the origin; refuse at once everything that the engine objects to.

    A device of protection that it rejects, for want of a curve or of what it protects, is disabled; what it
    would have opened is refused. Lines that go on with a rejected one are left out: they would be about
    another element.
    """
    problems = Problems()
    rejected = numbered = False
    for k, (command, place) in enumerate(zip_longest(origin.commands, origin.places)):
        rejected = rejected and _GOES_ON.match(command) is not None
        if rejected:
            continue
        try:
            _refuse_more_phases(engine, command, place or origin.where)
            # More than two windings once the buses are numbered: the engine writes beyond its memory then.
            windings = _WINDINGS.search(command) if numbered else None
            if windings is not None and windings[1] not in ("1", "2"):
                raise refusal("feeder-script.late-windings", place=place or origin.where)
            numbered = numbered or command.strip().lower().startswith(_NUMBERING)
            run(engine, command, origin, place)
        except FeederError as error:
            device = k in origin.protective and not _OPENS.search(command)
            if not (device and _disable_device(engine)):
                problems.add(error)
                rejected = True
    problems.refuse()
    if not numbered and engine.NumCircuits:
        run(engine, "makebuslist", origin)


def _refuse_more_phases(engine: Engine, command: str, place: str) -> None:
    """Refuse to give more phases to an element that exists: the engine writes beyond its memory then."""
    verb = command.split(maxsplit=1)[0].lower() if command.strip() else "new"
    stated = None if verb == "new" else _PHASES.search(command)
    if stated is None or engine.NumCircuits == 0:
        return
    circuit = engine.ActiveCircuit
    named = _EDITED.match(command)
    if named is not None and circuit.SetActiveElement(named[1]) < 0:
        return  # which the engine says itself
    element = circuit.ActiveCktElement
    if not stated[1].isdecimal() or element is None or int(stated[1]) > int(element.NumPhases):
        raise refusal("feeder-script.more-phases", place=place)


def _disable_device(engine: Engine) -> bool:
    """Disable the active element if it is a device of protection; whether it is one."""
    element = engine.ActiveCircuit.ActiveCktElement if engine.NumCircuits else None
    if element is None or class_of(str(element.Name)) not in PROTECTION:
        return False
    element.Enabled = False
    return True


def run(engine: Engine, command: str, origin: DssOrigin, place: str | None = None) -> None:
    """One text command."""
    with objections("feeder-rejected.element", place or origin.where):
        engine.Text.Command = command


@contextmanager
def objections(sentence: str, where: str) -> Iterator[None]:
    """What the engine objects to becomes a `FeederError` with its message on one line, without its number."""
    try:
        yield
    except DSSException as error:
        advice = "correct what it names"
        if re.search("inversion|singular|impedance", str(error), re.IGNORECASE):
            advice = "give every element a non-zero impedance, such as 1e-6 ohm for a switch"
        message = " ".join(str(error.args[-1]).split()) if error.args else ""
        raise refusal(sentence, where=where, advice=advice, message=message) from None


def solve(engine: Engine, origin: DssOrigin) -> bool:
    """Solve the present circuit; whether it converged."""
    with objections("feeder-unsolved.circuit", origin.where):
        engine.ActiveCircuit.Solution.Solve()
    return bool(engine.ActiveCircuit.Solution.Converged)


def set_taps(engine: Engine, taps: Iterable[Tap]) -> None:
    """Put the windings on the given ratios."""
    transformers = engine.ActiveCircuit.Transformers
    known = {name.lower() for name in transformers.AllNames}
    for tap in taps:
        if tap.transformer.lower() not in known:
            raise refusal("taps.no-transformer", tap=tap)
        transformers.Name = tap.transformer
        if not 1 <= tap.winding <= transformers.NumWindings:
            raise refusal("taps.no-winding", tap=tap)
        transformers.Wdg = tap.winding
        transformers.Tap = tap.ratio


def regulated_taps(engine: Engine) -> tuple[Tap, ...]:
    """Present ratio of every winding that a regulator control moves."""
    circuit = engine.ActiveCircuit
    windings = [
        (regulators.Transformer.lower(), int(regulators.TapWinding)) for regulators in circuit.RegControls
    ]
    taps = []
    for name, winding in dict.fromkeys(windings):
        circuit.Transformers.Name = name
        circuit.Transformers.Wdg = winding
        taps.append(Tap(name, winding, float(circuit.Transformers.Tap)))
    return tuple(taps)


def disable_injections(engine: Engine, *, but: str | None = None) -> dict[str, int]:
    """Disable every load and generator (`but` one class); how many of the kinds that nothing replaces."""
    kept = _NETWORK_CLASSES | _NO_INJECTIONS | {but}
    disabled = _disable(engine, lambda kind: kind not in kept)
    return {kind: count for kind, count in disabled.items() if kind not in REPLACED_CLASSES}


def _disable(engine: Engine, chosen: Callable[[str], bool]) -> dict[str, int]:
    """Disable the elements of the chosen classes; how many of each took part."""
    disabled: Counter[str] = Counter()
    for name in engine.ActiveCircuit.AllElementNames:
        kind = class_of(name)
        if chosen(kind) and is_enabled(engine, name):
            engine.ActiveCircuit.ActiveCktElement.Enabled = False
            disabled[kind] += 1
    return dict(disabled)


def settle_controls(engine: Engine, origin: DssOrigin) -> dict[str, int]:
    """Put switches where their controls state them, disable every control but regulators; how many of a kind.

    Nothing is solved: a capacitor or a fuse stays as the file has it.
    """
    circuit = engine.ActiveCircuit
    for switches in circuit.SwtControls:
        if int(switches.Action) != int(switches.State) and not switches.IsLocked:
            verb = "Open" if int(switches.Action) == _OPEN_ACTION else "Close"
            run(engine, f'{verb} "{switches.SwitchedObj}" {int(switches.SwitchedTerm)}', origin)
    return _disable(engine, CONTROLS.__contains__)


def idle_devices(engine: Engine) -> dict[str, int]:
    """How many devices of protection of a kind are disabled; before `settle_controls`."""
    names = [name for name in engine.ActiveCircuit.AllElementNames if class_of(name) in PROTECTION]
    return dict(Counter(class_of(name) for name in names if not is_enabled(engine, name)))


def circuit_without_injections(origin: DssOrigin, taps: Iterable[Tap], *, but: str | None = None) -> Engine:
    """The network alone: taps frozen, controls off, loads and generation (`but` one class) disabled."""
    engine = build_circuit(origin)
    settle_controls(engine, origin)
    set_taps(engine, taps)
    run(engine, CONTROLS_OFF, origin)
    disable_injections(engine, but=but)
    return engine


def is_enabled(engine: Engine, name: str) -> bool:
    """Whether an element, which becomes the active one, takes part."""
    circuit = engine.ActiveCircuit
    circuit.SetActiveElement(name)
    return bool(circuit.ActiveCktElement.Enabled)


def enabled_names(engine: Engine, kind: str) -> list[str]:
    """Elements of a class that take part, in the order of the file, without the name of the class."""
    start = f"{kind}."
    found = [name.lower() for name in engine.ActiveCircuit.AllElementNames]
    return [name[len(start) :] for name in found if name.startswith(start) and is_enabled(engine, name)]


class Properties:
    """Properties of one element, which becomes the active one; without a kind, of the active object."""

    def __init__(self, engine: Engine, kind: str = "", name: str = "") -> None:
        circuit = engine.ActiveCircuit
        if kind:
            circuit.SetActiveElement(f"{kind}.{name}")
        self._of = (circuit.ActiveCktElement if kind else circuit.ActiveDSSElement).Properties

    def text(self, name: str) -> str:
        return str(self._of(name).Val).strip().lower()

    def number(self, name: str) -> float:
        return float(self._of(name).Val)

    def numbers(self, name: str) -> list[float]:
        return list(map(float, self.words(name)))

    def words(self, name: str) -> list[str]:
        return self.text(name).strip("[]() ").replace(",", " ").split()

    def name(self, name: str) -> str:
        """Name of another element, without its class."""
        return self.text(name).split(".")[-1]

    @property
    def is_delta(self) -> bool:
        return self.text("conn").startswith(("d", "ll"))

    def yes(self, name: str) -> bool:
        return self.text(name).startswith(("y", "t"))


NamedBranches = tuple[tuple[str | None, str | None], ...]
"""Branches by the names of their nodes; None for ground."""


def named_branches(engine: Engine, delta: bool) -> NamedBranches:
    """Pairs of node names between which the active element's phases are connected."""
    element = engine.ActiveCircuit.ActiveCktElement
    nodes = terminal_nodes(element)
    phases = int(element.NumPhases)
    if delta and phases > 1:
        return tuple((nodes[k], nodes[(k + 1) % len(nodes)]) for k in range(phases))
    neutral = nodes[phases] if len(nodes) > phases else None
    return tuple((nodes[k], neutral) for k in range(phases))


def refuse_open(engine: Engine, what: str) -> None:
    """Refuse the active element, which draws or feeds in power, if a conductor of it is open."""
    if engine.ActiveCircuit.ActiveCktElement.IsOpen(1, 0):
        raise refusal("feeder.open-terminal", what=what)


def terminal_nodes(element: Engine) -> list[str | None]:
    """Node name of every conductor of every terminal of an element; None for ground."""
    buses = [bus.split(".", 1)[0].lower() for bus in element.BusNames]
    per_terminal = int(element.NumConductors)
    return [
        f"{buses[k // per_terminal]}.{int(node)}" if node else None
        for k, node in enumerate(element.NodeOrder)
    ]


def primitive(element: Engine) -> ComplexArray:
    """Primitive admittance of an element [S]."""
    flat = np.asarray(element.Yprim)
    flat = flat.view(np.complex128) if flat.dtype == np.float64 else flat
    size = int(element.NumConductors) * int(element.NumTerminals)
    return flat.reshape(size, size, order="F")


SOLVER_TOLERANCE, _ROUGH_TOLERANCE = 1e-10, 1e-7


def declared_voltages(feeder: Feeder) -> ComplexArray:
    """Complex (node,) [p.u.] at nominal load: constant power, connections as declared, taps frozen.

    Slack nodes carry their EMF.
    """
    origin = feeder.origin
    if not isinstance(origin, DssOrigin):
        raise refusal("feeder.not-opendss")
    engine = circuit_without_injections(origin, feeder.taps, but="load")
    for loads in engine.ActiveCircuit.Loads:
        loads.Model = 1
        loads.Vminpu = 0.0
        loads.Vmaxpu = 10.0
        run(engine, f'Edit "Load.{loads.Name}" Vlowpu=0', origin)
    for tolerance in (SOLVER_TOLERANCE, _ROUGH_TOLERANCE):  # windings that float are never that exact
        run(engine, f"Set Mode=Snapshot Tolerance={tolerance} MaxIterations=500", origin)
        if solve(engine, origin):
            break
    else:
        raise refusal("feeder-unsolved.nominal")
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    by_name = dict(zip((n.lower() for n in engine.ActiveCircuit.YNodeOrder), volts, strict=True))
    v = np.empty(len(feeder.nodes), dtype=np.complex128)
    for k in feeder.energised:
        v[k] = by_name[feeder.nodes[k]] / (1000.0 * feeder.base_kv[k])
    v[feeder.slack] = feeder.v_slack
    return v
