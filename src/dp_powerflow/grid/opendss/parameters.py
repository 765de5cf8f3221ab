"""Parameters of the elements of an OpenDSS circuit, read and replaced through the engine itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import NO_REGULATORS, Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, build_circuit, run
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.parameters import (
    CodedLine,
    Levels,
    NetworkParameters,
    ParameterKey,
    Quantity,
    level_of,
    rounded,
    shape_of,
)
from dp_powerflow.units import FloatArray

_TWO_WINDINGS, _THREE_WINDINGS = 2, 3
_FORBIDDEN = frozenset("\"'`")
_STATE_CONTROLS = frozenset({"capcontrol", "swtcontrol", "recloser", "relay", "fuse"})


@dataclass(frozen=True, eq=False)
class _Line:
    """One line as the engine has it: figures per unit of length, (phase, phase)."""

    name: str
    length: float
    resistance: FloatArray
    reactance: FloatArray
    capacitance: FloatArray
    units: int
    code: str | None


def read_parameters(
    origin: DssOrigin, *, relative_to_code: bool, engine: Engine | None = None
) -> NetworkParameters:
    """Every level of the circuit; refuses what could not be rebuilt from them."""
    engine = build_circuit(origin, engine)
    _refuse_what_keeps_its_figures(engine)
    levels: dict[ParameterKey, float] = {}
    catalogue = _catalogue(engine)
    coded: list[CodedLine] = []
    for line in _lines(engine):
        levels[ParameterKey(Quantity.LENGTH, line.name)] = line.length
        has_code = line.code in catalogue
        if has_code and line.code is not None:
            fitting = tuple(
                sorted(name for name, phases in catalogue.items() if phases == len(line.resistance))
            )
            coded.append(CodedLine(line.name, line.code, fitting))
        relative = relative_to_code and has_code
        for quantity, matrix in (
            (Quantity.RESISTANCE, line.resistance),
            (Quantity.REACTANCE, line.reactance),
        ):
            # Relative to a code there is always a level: its absence would tell a code without resistance.
            levels[ParameterKey(quantity, line.name)] = 1.0 if relative else level_of(matrix)
    for name, figures in _transformers(engine):
        levels[ParameterKey(Quantity.TRANSFORMER, name)] = level_of(figures)
    for name, figures in _capacitors(engine):
        levels[ParameterKey(Quantity.CAPACITOR, name)] = level_of(figures)
    for name, figures in _pv_systems(engine):
        levels[ParameterKey(Quantity.PV, name)] = level_of(figures)
    return NetworkParameters({key: level for key, level in levels.items() if level > 0.0}, tuple(coded))


def rebuild(
    feeder: Feeder,
    levels: Levels,
    codes: Mapping[str, str],
    *,
    relative_to_code: bool,
    engine: Engine | None = None,
) -> Feeder:
    """The circuit again with other levels; taps stay as they were given."""
    origin = feeder.origin
    if not isinstance(origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be rebuilt by it")
    engine = build_circuit(origin, engine)
    catalogue = _catalogue(engine)
    edits = [
        *_line_edits(engine, origin, levels, codes, catalogue, relative_to_code),
        *_transformer_edits(engine, levels),
        *(
            (_named("Capacitor", name), f"kvar={_array(level * shape_of(figures))}")
            for name, figures in _capacitors(engine)
            if (level := levels.get(ParameterKey(Quantity.CAPACITOR, name))) is not None
        ),
        *_pv_edits(engine, levels),
    ]
    commands = tuple(f"Edit {element} {figures}" for element, figures in edits)
    made = DssOrigin((*origin.commands, *commands), origin.path)
    for (element, _), command in zip(edits, commands, strict=True):
        try:
            run(engine, command, made)
        except FeederError:
            # The engine's own words would quote the figures.
            raise FeederError(f"OpenDSS cannot change the figures of {element}; rename it") from None
    taps = None if feeder.taps_from == NO_REGULATORS else feeder.taps
    return read_dss(made, name=feeder.name, taps=taps, base_mva=feeder.base_mva, engine=engine)


def _refuse_what_keeps_its_figures(engine: Engine) -> None:
    """Elements whose true figures would survive in a rebuilt circuit, or states that were solved on it."""
    circuit = engine.ActiveCircuit
    names = [name.lower() for name in circuit.AllElementNames]
    twice = sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ())
    if twice:
        raise FeederError(f"the feeder has two elements '{twice[0]}'; give every element a name of its own")
    odd = [name for name in names if set(name) & _FORBIDDEN]
    if odd:
        raise FeederError(f"the name of element '{odd[0]}' holds a quote; rename it")
    for name in names:
        kind = name.split(".", 1)[0]
        if kind in _STATE_CONTROLS and _is_enabled(engine, name):
            raise FeederError(
                f"the state that control '{name}' left is a function of the network; disable the control in "
                "the file and state what it controls"
            )
    more = circuit.Capacitors.First
    while more:
        harmonics = _numbers(circuit.ActiveCktElement.Properties("harm").Val)
        if any(harmonics):
            raise FeederError(
                f"capacitor '{circuit.Capacitors.Name}' is tuned by harm, which keeps its true size; give "
                "its R and XL instead"
            )
        more = circuit.Capacitors.Next


def _is_enabled(engine: Engine, name: str) -> bool:
    engine.ActiveCircuit.SetActiveElement(name)
    return bool(engine.ActiveCircuit.ActiveCktElement.Enabled)


def _named(kind: str, name: str) -> str:
    return f'"{kind}.{name}"'


# ------------------------------------------------------------------------------------------ lines


def _lines(engine: Engine) -> Iterator[_Line]:
    """Every enabled line that is no switch."""
    lines = engine.ActiveCircuit.Lines
    more = lines.First
    while more:
        if not lines.IsSwitch:
            yield _line(lines)
        more = lines.Next


def _line(lines: Engine) -> _Line:
    phases = int(lines.Phases)

    def matrix(values: object) -> FloatArray:
        return np.array(values, dtype=np.float64).reshape(phases, phases)

    return _Line(
        name=lines.Name.lower(),
        length=float(lines.Length),
        resistance=matrix(lines.Rmatrix),
        reactance=matrix(lines.Xmatrix),
        capacitance=matrix(lines.Cmatrix),
        units=int(lines.Units),
        code=lines.LineCode.lower() or None,
    )


def _catalogue(engine: Engine) -> dict[str, int]:
    """Every line code of the circuit, used or not, and its phases."""
    codes = engine.ActiveCircuit.LineCodes
    found: dict[str, int] = {}
    more = codes.First
    while more:
        found[codes.Name.lower()] = int(codes.Phases)
        more = codes.Next
    return found


def _line_edits(
    engine: Engine,
    origin: DssOrigin,
    levels: Levels,
    codes: Mapping[str, str],
    catalogue: Mapping[str, int],
    relative_to_code: bool,
) -> Iterator[tuple[str, str]]:
    for line in list(_lines(engine)):
        own = line
        if line.name in codes:
            run(
                engine,
                f"Edit {_named('Line', line.name)} linecode={codes[line.name]} units={_unit(line.units)}",
                origin,
            )
            engine.ActiveCircuit.Lines.Name = line.name
            own = _line(engine.ActiveCircuit.Lines)
        relative = relative_to_code and line.code in catalogue

        def scaled(
            quantity: Quantity, matrix: FloatArray, name: str = line.name, relative: bool = relative
        ) -> FloatArray:
            level = levels.get(ParameterKey(quantity, name))
            if level is None:
                return rounded(matrix)
            return level * (rounded(matrix) if relative else shape_of(matrix))

        length = levels.get(ParameterKey(Quantity.LENGTH, line.name), line.length)
        yield (
            _named("Line", line.name),
            f"rmatrix={_matrix(scaled(Quantity.RESISTANCE, own.resistance))} "
            f"xmatrix={_matrix(scaled(Quantity.REACTANCE, own.reactance))} "
            f"cmatrix={_matrix(rounded(own.capacitance))} length={length!r}",
        )


def _unit(units: int) -> str:
    return ("none", "mi", "kft", "km", "m", "ft", "in", "cm", "mm")[units]


# ---------------------------------------------------------------------------- everything else


def _transformers(engine: Engine) -> Iterator[tuple[str, FloatArray]]:
    """Short-circuit figures of every transformer: reactances between windings, then resistances [%]."""
    circuit = engine.ActiveCircuit
    more = circuit.Transformers.First
    while more:
        name, windings = circuit.Transformers.Name.lower(), int(circuit.Transformers.NumWindings)
        element = circuit.ActiveCktElement
        between = _numbers(element.Properties("Xscarray").Val)[: windings * (windings - 1) // 2]
        resistances = _numbers(element.Properties("%Rs").Val)
        yield name, np.array([*between, *resistances])
        more = circuit.Transformers.Next


def _transformer_edits(engine: Engine, levels: Levels) -> Iterator[tuple[str, str]]:
    for name, figures in _transformers(engine):
        level = levels.get(ParameterKey(Quantity.TRANSFORMER, name))
        if level is None:
            continue
        engine.ActiveCircuit.Transformers.Name = name
        windings = int(engine.ActiveCircuit.Transformers.NumWindings)
        new = level * shape_of(figures)
        pairs = windings * (windings - 1) // 2
        if windings == _TWO_WINDINGS:
            reactance = f"XHL={float(new[0])!r}"
        elif windings == _THREE_WINDINGS:
            reactance = f"XHL={float(new[0])!r} XHT={float(new[1])!r} XLT={float(new[2])!r}"
        else:
            reactance = f"Xscarray={_array(new[:pairs])}"
        yield _named("Transformer", name), f"{reactance} %Rs={_array(new[pairs:])}"


def _capacitors(engine: Engine) -> Iterator[tuple[str, FloatArray]]:
    """kvar of every step of every capacitor."""
    circuit = engine.ActiveCircuit
    more = circuit.Capacitors.First
    while more:
        name = circuit.Capacitors.Name.lower()
        figures = np.array(_numbers(circuit.ActiveCktElement.Properties("kvar").Val))
        yield name, figures
        more = circuit.Capacitors.Next


def _pv_systems(engine: Engine) -> Iterator[tuple[str, FloatArray]]:
    """Peak power [kW] and rating [kVA] of every PV system."""
    circuit = engine.ActiveCircuit
    more = circuit.PVSystems.First
    while more:
        systems = circuit.PVSystems
        yield systems.Name.lower(), np.array([float(systems.Pmpp), float(systems.kVArated)])
        more = systems.Next


def _pv_edits(engine: Engine, levels: Levels) -> Iterator[tuple[str, str]]:
    for name, figures in _pv_systems(engine):
        level = levels.get(ParameterKey(Quantity.PV, name))
        if level is not None:
            peak, rating = (float(value) for value in level * shape_of(figures))
            yield _named("PVSystem", name), f"Pmpp={peak!r} kVA={rating!r}"


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.strip("[]() ").replace(",", " ").split()]


def _array(values: FloatArray) -> str:
    return "[" + " ".join(repr(float(value)) for value in values) + "]"


def _matrix(values: FloatArray) -> str:
    return "[" + " | ".join(" ".join(repr(float(value)) for value in row) for row in values) + "]"
