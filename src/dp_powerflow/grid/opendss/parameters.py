"""Parameters of the elements of an OpenDSS circuit, read and replaced through the engine itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import (
    NO_REGULATORS,
    CodedLine,
    Feeder,
    Levels,
    NetworkParameters,
    ParameterKey,
    Protected,
    Quantity,
    level_of,
    rounded,
    shape_of,
)
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, build_circuit, is_enabled, run
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.units import FloatArray

_REACTANCES = {2: ("XHL",), 3: ("XHL", "XHT", "XLT")}
"""Number of windings → properties of the reactances between them; of more windings there is one array."""
_FORBIDDEN = frozenset("\"'`")
_KM = {1: 1.609344, 2: 0.3048, 3: 1.0, 4: 1e-3, 5: 3.048e-4, 6: 2.54e-5, 7: 1e-5}
"""Kilometres of OpenDSS's units of length, by their numbers."""
_STATE_CONTROLS = frozenset({"capcontrol", "swtcontrol", "recloser", "relay", "fuse"})


@dataclass(frozen=True, eq=False)
class _Line:
    """One line as the engine has it: figures per unit of length, (phase, phase); `code` is "" without one."""

    name: str
    length: float
    resistance: FloatArray
    reactance: FloatArray
    capacitance: FloatArray
    units: int
    code: str

    @property
    def km(self) -> float:
        """Its length [km]; as stated where there is no unit."""
        return self.length * _KM.get(self.units, 1.0)

    def coded(self, catalogue: Mapping[str, int]) -> bool:
        """Whether its figures per length are those of an entry of the catalogue."""
        return self.code in catalogue and self.units in _KM


def read_parameters(
    origin: DssOrigin, protected: Protected, *, engine: Engine | None = None
) -> NetworkParameters:
    """Every protected level of the circuit; refuses what could not be rebuilt from them."""
    engine = build_circuit(origin, engine)
    _refuse_what_keeps_its_figures(engine)
    levels: dict[ParameterKey, float] = {}
    catalogue = _catalogue(engine)
    coded: list[CodedLine] = []
    for line in _lines(engine):
        if line.coded(catalogue):
            fitting = sorted(name for name, phases in catalogue.items() if phases == len(line.resistance))
            coded.append(CodedLine(line.name, line.code, tuple(fitting)))
        if protected.lines == "length" and line.coded(catalogue):
            levels[ParameterKey(Quantity.LENGTH, line.name)] = line.km
        else:
            levels[ParameterKey(Quantity.RESISTANCE, line.name)] = level_of(line.resistance) * line.length
            levels[ParameterKey(Quantity.REACTANCE, line.name)] = level_of(line.reactance) * line.length
        if protected.charging:
            levels[ParameterKey(Quantity.CHARGING, line.name)] = level_of(line.capacitance) * line.length
    for quantity, name, figures in _other_figures(engine, protected):
        levels[ParameterKey(quantity, name)] = level_of(figures)
    return NetworkParameters({key: level for key, level in levels.items() if level > 0.0}, tuple(coded))


def rebuild(
    feeder: Feeder,
    protected: Protected,
    levels: Levels,
    codes: Mapping[str, str],
    *,
    engine: Engine | None = None,
) -> Feeder:
    """The circuit again with other levels; taps stay as they were given."""
    origin = feeder.origin
    if not isinstance(origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be rebuilt by it")
    engine = build_circuit(origin, engine)
    edits = [*_line_edits(engine, origin, protected, levels, codes), *_other_edits(engine, protected, levels)]
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
        if kind in _STATE_CONTROLS and is_enabled(engine, name):
            raise FeederError(
                f"the state that control '{name}' left is a function of the network; disable the control in "
                "the file and state what it controls"
            )
    for capacitors in circuit.Capacitors:
        if any(_numbers(circuit.ActiveCktElement.Properties("harm").Val)):
            raise FeederError(
                f"capacitor '{capacitors.Name}' is tuned by harm, which keeps its true size; give "
                "its R and XL instead"
            )


def _named(kind: str, name: str) -> str:
    return f'"{kind}.{name}"'


# ------------------------------------------------------------------------------------------ lines


def _lines(engine: Engine) -> Iterator[_Line]:
    """Every enabled line that is no switch."""
    return (_line(lines) for lines in engine.ActiveCircuit.Lines if not lines.IsSwitch)


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
        code=lines.LineCode.lower(),
    )


def _catalogue(engine: Engine) -> dict[str, int]:
    """Every line code of the circuit, used or not, and its phases."""
    return {codes.Name.lower(): int(codes.Phases) for codes in engine.ActiveCircuit.LineCodes}


def _line_edits(
    engine: Engine, origin: DssOrigin, protected: Protected, levels: Levels, codes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    catalogue = _catalogue(engine)
    for line in list(_lines(engine)):
        own, element = line, _named("Line", line.name)
        if line.coded(catalogue):
            chosen = codes.get(line.name, line.code)
            run(engine, f"Edit {element} linecode={chosen} length=1 units=km", origin)
            engine.ActiveCircuit.Lines.Name = line.name
            own = _line(engine.ActiveCircuit.Lines)  # per km, of the catalogue
        phases = len(line.resistance)
        public_x = own.reactance if line.coded(catalogue) else protected.x_ohm_per_km * np.eye(phases)
        public_c = own.capacitance if line.coded(catalogue) else protected.c_nf_per_km * np.eye(phases)
        length = levels.get(ParameterKey(Quantity.LENGTH, line.name))
        x = levels.get(ParameterKey(Quantity.REACTANCE, line.name), 0.0)
        r = levels.get(ParameterKey(Quantity.RESISTANCE, line.name), 0.0)
        charging = levels.get(ParameterKey(Quantity.CHARGING, line.name), 0.0)
        if length is not None:
            km, resistance, reactance = length, rounded(own.resistance), rounded(own.reactance)
        else:
            km = x / level_of(public_x) if x > 0.0 else 1.0
            resistance, reactance = r / km * shape_of(line.resistance), x / km * shape_of(line.reactance)
        capacitance = charging / km * shape_of(line.capacitance) if protected.charging else rounded(public_c)
        yield (
            element,
            f"rmatrix={_matrix(resistance)} xmatrix={_matrix(reactance)} cmatrix={_matrix(capacitance)} "
            f"length={km!r} units=km",
        )


# ---------------------------------------------------------------------------- everything else


def _other_figures(engine: Engine, protected: Protected) -> Iterator[tuple[Quantity, str, FloatArray]]:
    """Figures that change together, element by element; the element is the active one meanwhile.

    Of a transformer the reactances between windings, then resistances [%]; of a capacitor kvar of every step;
    of a PV system the peak power [kW] and the rating [kVA].
    """
    circuit = engine.ActiveCircuit
    for transformers in circuit.Transformers if protected.transformers else ():
        element, pairs = circuit.ActiveCktElement, _pairs(transformers)
        between = _numbers(element.Properties("Xscarray").Val)[:pairs]
        resistances = _numbers(element.Properties("%Rs").Val)
        yield Quantity.TRANSFORMER, transformers.Name.lower(), np.array([*between, *resistances])
    for capacitors in circuit.Capacitors if protected.capacitors else ():
        name = capacitors.Name.lower()
        yield Quantity.CAPACITOR, name, np.array(_numbers(circuit.ActiveCktElement.Properties("kvar").Val))
    for systems in circuit.PVSystems if protected.pv else ():
        figures = np.array([float(systems.Pmpp), float(systems.kVArated)])
        yield Quantity.PV, systems.Name.lower(), figures


def _other_edits(engine: Engine, protected: Protected, levels: Levels) -> Iterator[tuple[str, str]]:
    transformers = engine.ActiveCircuit.Transformers
    for quantity, name, figures in _other_figures(engine, protected):
        level = levels.get(ParameterKey(quantity, name))
        if level is None:
            continue
        new = level * shape_of(figures)
        if quantity is Quantity.TRANSFORMER:
            pairs, named = _pairs(transformers), _REACTANCES.get(int(transformers.NumWindings))
            reactances = f"Xscarray={_array(new[:pairs])}"
            if named is not None:
                reactances = " ".join(f"{x}={float(new[k])!r}" for k, x in enumerate(named))
            yield _named("Transformer", name), f"{reactances} %Rs={_array(new[pairs:])}"
        elif quantity is Quantity.CAPACITOR:
            yield _named("Capacitor", name), f"kvar={_array(new)}"
        else:
            yield _named("PVSystem", name), f"Pmpp={float(new[0])!r} kVA={float(new[1])!r}"


def _pairs(transformers: Engine) -> int:
    """Pairs of windings of the active transformer."""
    windings = int(transformers.NumWindings)
    return windings * (windings - 1) // 2


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.strip("[]() ").replace(",", " ").split()]


def _array(values: FloatArray) -> str:
    return "[" + " ".join(repr(float(value)) for value in values) + "]"


def _matrix(values: FloatArray) -> str:
    return "[" + " | ".join(" ".join(repr(float(value)) for value in row) for row in values) + "]"
