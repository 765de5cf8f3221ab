"""Levels of an OpenDSS circuit, and circuits made of a frame and other levels.

A twin is never the true circuit with figures edited: it is written anew from its frame (`frame.Frame`), its
levels and its codes, so that it is a function of these alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dp_powerflow.errors import FeederError, FeederScriptError, LoadTableError, NoTwinError, TapsError
from dp_powerflow.grid.buses import Problems, some_of
from dp_powerflow.grid.feeder import (
    NO_REGULATORS,
    TAPS_DECLARED,
    TAPS_INTERNAL,
    TAPS_NOT_FOUND,
    TAPS_SOLVED,
    Feeder,
    Levels,
    NetworkParameters,
    ParameterKey,
    Protected,
    Quantity,
    Tap,
    level_of,
    significant,
)
from dp_powerflow.grid.opendss.elements import ElementReader
from dp_powerflow.grid.opendss.engine import (
    CONTROLS,
    DssOrigin,
    Engine,
    build_circuit,
    engine_of,
    is_enabled,
    regulated_taps,
    run,
    settle_controls,
)
from dp_powerflow.grid.opendss.operated import read_operated
from dp_powerflow.grid.opendss.reader import (
    RATING,
    Code,
    ElementFrame,
    Frame,
    LineFrame,
    Matrix,
    array,
    figures_of,
    matrix,
    read_dss,
    rounded,
    tap_on_step,
)
from dp_powerflow.grid.opendss.script import split_words
from dp_powerflow.grid.operation import Operation
from dp_powerflow.units import FloatArray

_KM = 1000.0
_INJECTIONS = frozenset({"storage", "isource", "vccs", "indmach012", "gicsource"})
_IDLE = CONTROLS | {"energymeter", "monitor", "sensor"}
_FORBIDDEN = frozenset("\"'`")
_KEPT = 4
_known: dict[tuple[DssOrigin, Protected], tuple[Frame, NetworkParameters]] = {}
"""The circuits read last; reading a large one takes longer than building a twin of it."""


def read_parameters(
    origin: DssOrigin, protected: Protected, engine: Engine | None = None
) -> NetworkParameters:
    """PRIVATE. Every level of the circuit that is protected; refuses what a twin could not have."""
    return _read(origin, protected, engine)[1]


def frame_of(origin: DssOrigin, protected: Protected, engine: Engine | None = None) -> Frame:
    """What a twin of the circuit has beside its levels."""
    return _read(origin, protected, engine)[0]


def _read(origin: DssOrigin, protected: Protected, engine: Engine | None) -> tuple[Frame, NetworkParameters]:
    key = (origin, protected)
    if key not in _known:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = read_frame(origin, protected, engine)
    return _known[key]


def read_frame(
    origin: DssOrigin, protected: Protected, engine: Engine | None = None
) -> tuple[Frame, NetworkParameters]:
    """The frame, and PRIVATE the levels; refuses what neither of them can hold."""
    engine = build_circuit(origin, engine or engine_of(origin))
    run(engine, "makebuslist", origin)
    operated = read_operated(engine)
    controls = settle_controls(engine, origin)
    circuit = engine.ActiveCircuit
    problems = Problems()
    names = _enabled_names(engine, problems)
    problems.add(*_allocated_loads(engine, origin))
    run(engine, "makebuslist", origin)
    engine.YMatrix.BuildYMatrixD(1, 0)
    reading = ElementReader(engine, origin, protected)
    elements: dict[str, LineFrame | ElementFrame] = {}
    for kind, reader in reading.readers.items():
        for name in (name for name in names if name.startswith(f"{kind}.")):
            circuit.SetActiveElement(name)
            with problems.gather():
                elements[name] = reader(name.split(".", 1)[1])
    problems.add(*_undrawn_codes(reading.undrawn_codes))
    network = [elements[name] for name in names if name in elements]
    first = next((e for e in network if isinstance(e, ElementFrame) and e.kind == "vsource"), None)
    if first is None or first.name != "source":
        problems.add(
            NoTwinError("the circuit's own Vsource is disabled; enable it, as a twin starts with it")
        )
    bases: list[str] = []
    with problems.gather():
        bases = _voltage_bases(engine, origin)
    problems.refuse()
    assert isinstance(first, ElementFrame)
    network.remove(first)
    frame = Frame(
        start=(
            "ClearAll",
            f"Set DefaultBaseFrequency={reading.frequency!r}",
            f'New "Circuit.{circuit.Name}" {first.properties}',
        ),
        elements=(*network, *operated.elements),
        end=(*reading.opened, *bases),
        catalogue=tuple(sorted(reading.catalogue.items())),
        steps=tuple(sorted(reading.steps.items())),
        left_taps=tuple(reading.left_taps),
        notes=tuple(_notes(names, operated.without(controls), reading)),
        left_out=operated.left_out,
        refused=operated.refused,
    )
    return frame, NetworkParameters(
        {key: level for key, level in reading.levels.items() if level > 0.0},
        tuple(reading.coded),
        tuple(reading.compensating),
    )


def _enabled_names(engine: Engine, problems: Problems) -> list[str]:
    """Enabled elements in order; unknown classes and names with quotes are problems."""
    names = [name.lower() for name in engine.ActiveCircuit.AllElementNames]
    for odd in (name for name in names if set(name) & _FORBIDDEN):
        problems.add(NoTwinError(f"the name of element '{odd}' holds a quote; rename it"))
    enabled = [name for name in names if is_enabled(engine, name)]
    known = {*ElementReader.KINDS, *_INJECTIONS, *_IDLE}
    for stranger in (name for name in enabled if name.split(".", 1)[0] not in known):
        problems.add(
            NoTwinError(
                f"a twin cannot have element '{stranger}', whose figures would stay as they are; disable it"
            )
        )
    return enabled


def _allocated_loads(engine: Engine, origin: DssOrigin) -> Iterator[FeederError]:
    if origin.public or origin.loads_declared:
        return
    allocated = origin.allocates or any(
        float(loads.xfkVA) > 0.0 or float(loads.kwh) > 0.0 for loads in engine.ActiveCircuit.Loads
    )
    if allocated:
        yield LoadTableError(
            "nominal loads of the feeder are allocated (AllocateLoads, Estimate, xfkVA or kWh), so they may "
            "follow from the network; declare a load table in feeder.loads"
        )


def _undrawn_codes(lines: Sequence[str]) -> Iterator[FeederError]:
    """A code that could not be drawn would stay as it is, though codes are protected."""
    if lines:
        yield NoTwinError(
            f"{len(lines)} lines have a conductor code and no unit of length ({some_of(lines)}), so that "
            "their codes could not be drawn; give every code units=, or leave out network.code_epsilon"
        )


def _voltage_bases(engine: Engine, origin: DssOrigin) -> list[str]:
    """Commands that state base voltages, in the order of the file."""
    bases = significant(np.asarray(engine.ActiveCircuit.Settings.VoltageBases, dtype=np.float64), RATING)
    first = f"Set VoltageBases={array(bases)}"
    found = [first]
    for command in origin.commands:
        verb = command.split(maxsplit=1)[0].lower() if command.strip() else ""
        if verb in ("clear", "clearall"):
            found = [first]
        elif verb == "calcvoltagebases":
            found.append("CalcVoltageBases")
        elif verb == "setkvbase":
            words = {word.name.lower() or "bus": word.value for word in split_words(command)[1:]}
            kind = next((key for key in words if key.startswith("kv")), "")
            if not kind or "bus" not in words:
                raise FeederScriptError(
                    "SetkVBase must name bus= and kvll= or kvln=; correct the feeder file"
                )
            try:
                volts = rounded(float(words[kind]), RATING)
            except ValueError:
                raise FeederScriptError(
                    f"SetkVBase of bus '{words['bus']}' must state a plain number, no expression; correct it"
                ) from None
            found.append(f'SetkVBase bus="{words["bus"]}" {kind}={volts}')
    return found


def _notes(names: list[str], controls: Mapping[str, int], reading: ElementReader) -> Iterator[str]:
    for kind, count in sorted(controls.items()):
        yield f"{count} controls of class {kind} are left out; what they control is as the file states"
    counts: dict[str, int] = {}
    for name in names:
        kind = name.split(".", 1)[0]
        counts[kind] = counts.get(kind, 0) + 1
    for kind in sorted(_INJECTIONS & counts.keys()):
        yield f"{counts[kind]} elements of class {kind} are left out"
    if reading.own_codes:
        yield f"{len(reading.own_codes)} conductor codes belong to one line each and count as its own figures"
    if counts.get("reactor"):
        yield f"{counts['reactor']} reactors are not protected: their impedances are public, to 3 digits"
    if reading.line_drop:
        yield (
            f"{reading.line_drop} regulators have line-drop settings R, X, which often follow from line "
            "impedances; they are not protected: public, to 1 V"
        )


# ------------------------------------------------------------------------------------------ twins


def rebuild(
    feeder: Feeder,
    protected: Protected,
    levels: Levels,
    codes: Mapping[str, str],
    engine: Engine | None = None,
) -> Feeder:
    """The circuit of the feeder's frame, these levels and these codes.

    Taps are the declared ones, or solved on the new circuit; where that fails, they are neutral.
    """
    origin = feeder.origin
    if not isinstance(origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be rebuilt by it")
    frame = frame_of(origin, protected, engine)
    made = DssOrigin(tuple(_commands(frame, protected, levels, codes)), origin.path)
    taps = _taps(feeder, frame, public=origin.public)
    new = _read_twin(feeder, made, taps, engine or engine_of(origin))
    code_of = {
        element.name: codes.get(element.name, element.code)
        for element in frame.elements
        if isinstance(element, LineFrame)
    }
    operation = new.operation
    if frame.left_out or frame.refused:
        operation = operation or Operation(new.nodes, new.y)
        operation = replace(
            operation,
            left_out=tuple(dict.fromkeys((*frame.left_out, *operation.left_out))),
            refused=tuple(dict.fromkeys((*frame.refused, *operation.refused))),
        )
    return replace(
        new,
        operation=operation,
        lines=tuple(replace(line, code=code_of[line.name] or None) for line in new.lines),
        taps_from=feeder.taps_from if taps is not None else new.taps_from,
        notes=(*frame.notes, *new.notes),
    )


def _read_twin(feeder: Feeder, made: DssOrigin, taps: Sequence[Tap] | None, engine: Engine) -> Feeder:
    """The twin of a feeder, from its commands."""

    def read(given: Sequence[Tap] | None) -> Feeder:
        return read_dss(made, name=feeder.name, taps=given, base_mva=feeder.base_mva, engine=circuit)

    circuit = _compiled(made, engine)
    if taps is not None or not circuit.ActiveCircuit.RegControls.Count:
        return read(taps)
    try:
        return read(None)
    except FeederError:
        # Noise decides whether nominal load can be solved, after the twin is paid for.
        circuit = _compiled(made, circuit)
        neutral = [replace(tap, ratio=1.0) for tap in regulated_taps(circuit)]
        return replace(read(neutral), taps_from=TAPS_NOT_FOUND)


def _compiled(made: DssOrigin, engine: Engine) -> Engine:
    try:
        return build_circuit(made, engine)
    except FeederError:
        # The engine's own words would quote the figures.
        raise NoTwinError("OpenDSS cannot build a twin of the feeder; simplify names and figures") from None


def _taps(feeder: Feeder, frame: Frame, *, public: bool) -> tuple[Tap, ...] | None:
    """Taps that are given, on their steps; None where the twin solves its own."""
    given = public or feeder.taps_from not in (TAPS_SOLVED, NO_REGULATORS)
    if not public and given and not feeder.taps_from.startswith(TAPS_DECLARED):
        internal = " were solved on it" if feeder.taps_from == TAPS_INTERNAL else " may follow from it"
        raise TapsError(
            f"the taps given for the network{internal}; leave them out, so that a twin solves its own, or "
            f"give a tap file whose first line is '# {TAPS_DECLARED}' and who set them"
        )
    covered = {(tap.transformer.lower(), tap.winding) for tap in feeder.taps} if given else set()
    left = [key for key in frame.left_taps if key not in covered]
    if left and not public:
        name, winding = left[0]
        others = f", as {len(left) - 1} more windings," if len(left) > 1 else ""
        raise TapsError(
            f"winding {winding} of transformer '{name}'{others} is off neutral and no enabled regulator "
            "moves it, so that its tap may be a solved one; enable its regulator, or declare the tap in a "
            "tap file"
        )
    if not given or (public and feeder.taps_from == NO_REGULATORS):
        return None
    steps = dict(frame.steps)
    return tuple(
        replace(tap, ratio=tap_on_step(tap.ratio, steps[tap.transformer.lower(), tap.winding]))
        for tap in feeder.taps
        if (tap.transformer.lower(), tap.winding) in steps
    )


# ----------------------------------------------------------------------------------------- commands


def _commands(frame: Frame, protected: Protected, levels: Levels, codes: Mapping[str, str]) -> Iterator[str]:
    """The twin, written down."""
    record = _Record(levels)
    catalogue = dict(frame.catalogue)
    yield from frame.start
    for element in frame.elements:
        if isinstance(element, LineFrame):
            yield f'New "Line.{element.name}" {_line(element, protected, record, codes, catalogue)}'
            continue
        figures = ""
        if element.quantity is not None:
            key = element.name if element.kind != "autotrans" else f"autotrans.{element.name}"
            level = record.take(element.quantity, key)
            figures = " " + figures_of(element, level * np.array(element.shape))
        yield f'New "{element.kind}.{element.name}" {element.properties}{figures}'
    record.refuse_rest()
    yield from frame.end


class _Record:
    """Levels, each to be taken once: one that is missing is never replaced by a true figure."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._left = set(levels)

    def take(self, quantity: Quantity, element: str) -> float:
        key = ParameterKey(quantity, element)
        if key not in self._levels:
            raise FeederError(f"the record of the twin has no {quantity} of '{element}'; draw the twin again")
        self._left.discard(key)
        return self._levels[key]

    def refuse_rest(self) -> None:
        if self._left:
            key = min(self._left)
            raise FeederError(
                f"the record of the twin has a {key.quantity} of '{key.element}', which the feeder does not; "
                "draw the twin again"
            )


def _line(
    line: LineFrame,
    protected: Protected,
    record: _Record,
    codes: Mapping[str, str],
    catalogue: Mapping[str, Code],
) -> str:
    """Properties of a line; its matrices are per km where a length is known, else totals."""
    if line.switch:
        return line.start
    if line.by_length:
        length = record.take(Quantity.LENGTH, line.name)
        if protected.codes and codes.get(line.name) not in catalogue:
            raise FeederError(
                f"the record of the twin has no code of line '{line.name}'; draw the twin again"
            )
        code = catalogue[codes.get(line.name, line.code)]
        unit = (code.metres or line.metres or _KM) / _KM
        r, x, c = (np.array(part) / unit for part in (code.resistance, code.reactance, code.charging))
        return f"{line.start} {_per_km(r, x, c, length)}"
    if line.name in codes:
        raise FeederError(f"the record of the twin has a code of line '{line.name}', whose code is not drawn")
    r, x = (
        _scaled(shape, quantity, line, record)
        for shape, quantity in ((line.resistance, Quantity.RESISTANCE), (line.reactance, Quantity.REACTANCE))
    )
    entry = catalogue.get(line.code)
    units = _units_of_length(line, protected, entry, r, x)
    if line.charging is not None:
        c = _scaled(line.charging, Quantity.CHARGING, line, record)
    elif not line.charged:
        c = np.zeros_like(r)
    elif entry is not None:
        c = units * np.array(entry.charging)
    else:
        c = units * protected.c_nf_per_km * np.eye(line.phases)
    metres = None if entry is not None and line.metres is None else _KM
    if entry is not None and line.metres is not None:
        metres = entry.metres or line.metres
    if metres is None:
        return f"{line.start} length=1 {_matrices(r, x, c)}"
    length = units * metres / _KM
    return f"{line.start} {_per_km(r / length, x / length, c / length, length)}"


def _units_of_length(
    line: LineFrame, protected: Protected, entry: Code | None, r: FloatArray, x: FloatArray
) -> float:
    """Length that the line's reactance (its resistance, if it has none) stands for.

    In units of its code; in km without one.
    """
    own = (line.phases**0.5) * protected.x_ohm_per_km
    for total, public in ((x, entry and entry.reactance), (r, entry and entry.resistance)):
        size = level_of(total)
        if size > 0.0:
            return size / ((level_of(np.array(public)) if public else 0.0) or own)
    raise FeederError(f"line '{line.name}' has neither resistance nor reactance; declare it a switch")


def _scaled(shape: Matrix | None, quantity: Quantity, line: LineFrame, record: _Record) -> FloatArray:
    if shape is None:
        return np.zeros((line.phases, line.phases))
    return record.take(quantity, line.name) * np.array(shape)


def _per_km(r: FloatArray, x: FloatArray, c: FloatArray, length: float) -> str:
    # Matrices after a unit would make the engine forget it.
    return f"{_matrices(r, x, c)} length={float(length)!r} units=km"


def _matrices(r: FloatArray, x: FloatArray, c: FloatArray) -> str:
    return f"rmatrix={matrix(r)} xmatrix={matrix(x)} cmatrix={matrix(c)}"
