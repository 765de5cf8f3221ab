"""Levels of an OpenDSS circuit, and circuits made of a frame and other levels.

A twin is never the true circuit with figures edited: it is written anew from its frame (`Frame`), its
levels and its codes, so that it is a function of these alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import (
    NO_REGULATORS,
    TAPS_DECLARED,
    TAPS_INTERNAL,
    TAPS_NOT_FOUND,
    TAPS_SOLVED,
    CodedLine,
    Feeder,
    Levels,
    NetworkParameters,
    ParameterKey,
    Record,
    Tap,
)
from dp_powerflow.grid.opendss import engine as dss
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, Properties
from dp_powerflow.grid.opendss.operation import (
    generator_multiplier,
    inverter_curves,
    load_multiplier,
    power_factor,
)
from dp_powerflow.grid.opendss.reader import METRES, read_dss
from dp_powerflow.grid.opendss.script import class_of, split_words
from dp_powerflow.grid.operation import InverterCurve
from dp_powerflow.grid.quantities import (
    SHAPE_GRID,
    Protected,
    Quantity,
    codes_of_one_line,
    frame_rules,
    level_of,
    rounding,
    shape_of,
    significant,
    to_digits,
    to_step,
)
from dp_powerflow.grid.refusals import Problems, refusal, said, some_of
from dp_powerflow.units import FloatArray

# ----------------------------------------------------------------------------------------------------------
# The public frame: what a twin shares with its source, property by property, each rounded to a public step.
# `data/frames.toml` names what is copied as it stands; `READERS` below writes down the rest of an element.
# Nothing that a control found is ever read.


Matrix = tuple[tuple[float, ...], ...]
Rule = Callable[[Properties, str], str]
"""How a property of an element is written down for its twins."""

RATING, FIGURE, IMPEDANCE, CODE, _TUNED = 5, 3, 4, 5, 2
"""Significant digits: ratings; loads and unprotected impedances; transformers, capacitors; conductors; what a
capacitor of a protected size is tuned with."""
_KM = 1000.0
_SHARE = 1e-3
_TAP_STEP = 0.00625
_WITH_CVR, _ZIP = 4, 8
_FLAT_BEYOND = 0.1


def _rule(words: str) -> Rule:
    if words == "text":
        return Properties.text
    if words == "quoted":
        return lambda own, key: f'"{own.text(key)}"'
    if words == "whole":
        return lambda own, key: str(int(own.number(key)))
    rounded = rounding(words)
    return lambda own, key: repr(rounded(own.number(key)))


_FRAME = frame_rules("opendss", _rule)
"""Class → properties in the order in which the engine is told them, and how each is rounded."""


def _stated(own: Properties, kind: str) -> str:
    told = {key: rule(own, key) for key, rule in _FRAME[kind].items()}
    for key, value in told.items():
        if value.lstrip("-") in ("inf", "nan"):
            raise refusal("twin-not-possible.no-number", kind=kind, key=key)
    return " ".join(f"{key}={value}" for key, value in told.items())


def array(values: Sequence[float] | FloatArray) -> str:
    """Figures as the engine reads an array."""
    return "[" + " ".join(repr(float(value)) for value in values) + "]"


def matrix(values: Matrix | FloatArray) -> str:
    """Figures as the engine reads a matrix."""
    return "[" + " | ".join(" ".join(repr(float(value)) for value in row) for row in values) + "]"


def as_matrix(values: FloatArray) -> Matrix:
    return tuple(map(tuple, values.tolist()))


def tap_on_step(ratio: float, step: float) -> float:
    """A ratio on the grid of its winding's taps, counted from neutral."""
    return float(f"{1.0 + round((ratio - 1.0) / step) * step:.9f}")


@dataclass(frozen=True)
class Code:
    """One entry of the catalogue of conductors, per its own unit of length (`metres`, None without one).

    Attributes
    ----------
    resistance, reactance, charging : of a line with as many phases as the entry.
    sequence : (positive, zero) of the three, by which the engine makes lines with other numbers of phases;
        None where the entry is given by matrices, which fit no others.
    """

    phases: int
    metres: float | None
    resistance: Matrix
    reactance: Matrix
    charging: Matrix
    sequence: tuple[tuple[float, float], ...] | None = None

    def fits(self, phases: int) -> bool:
        """Whether lines with this number of phases may draw it: its own number, or fewer by its sequences."""
        return phases == self.phases or (self.sequence is not None and phases < self.phases)

    def of(self, phases: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """R, X and C of a line with this number of phases: (phase, phase) each.

        A line of one phase has the positive sequence, not the self impedance.
        """
        if phases == self.phases or self.sequence is None:
            return np.array(self.resistance), np.array(self.reactance), np.array(self.charging)
        r, x, c = (
            np.array([[positive]]) if phases == 1 else (zero - positive) / 3.0 + positive * np.eye(phases)
            for positive, zero in self.sequence
        )
        return r, x, c


@dataclass(frozen=True)
class LineFrame:
    """What of a line that is no switch is public.

    Attributes
    ----------
    start : properties up to its figures.
    metres : of its unit of length, else of its code's; None if neither states one.
    by_length : whether its length is all that is protected, its figures being those of its code.
    shapes : of the quantities that have their own levels; None where the figure is zero.
    charged : whether it has any charging.
    """

    name: str
    start: str
    phases: int
    code: str = ""
    metres: float | None = None
    by_length: bool = False
    shapes: tuple[tuple[Quantity, Matrix | None], ...] = ()
    charged: bool = False


@dataclass(frozen=True)
class ElementFrame:
    """Any other element, or a switch: properties that are public, and the shape of figures with a level.

    Attributes
    ----------
    tuned : of a capacitor with a level, its series R and XL times that level.
    """

    kind: str
    name: str
    properties: str
    quantity: Quantity | None = None
    shape: tuple[float, ...] = ()
    windings: int = 0
    tuned: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def key(self) -> ParameterKey | None:
        """Its level, None without one."""
        return None if self.quantity is None else ParameterKey(self.quantity, self.name)


@dataclass(frozen=True)
class Frame:
    """All that twins of a circuit have in common, in the order in which the circuit was written.

    Attributes
    ----------
    start, end : commands before and after the elements.
    steps : (transformer, winding) → step of its tap.
    left_taps : windings off neutral that no enabled regulator moves: their taps may be solved ones.
    refused : of `Operation`, as far as a twin does not have what the sentences are about.
    """

    start: tuple[str, ...]
    elements: tuple[LineFrame | ElementFrame, ...]
    end: tuple[str, ...]
    catalogue: tuple[tuple[str, Code], ...]
    steps: tuple[tuple[tuple[str, int], float], ...]
    left_taps: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...] = ()


_REACTANCES = {2: ("XHL",), 3: ("XHL", "XHT", "XLT")}
"""Number of windings → reactances between windings; of more windings there is one array."""


def figures_of(element: ElementFrame, values: FloatArray) -> str:
    """Properties that give an element its figures.

    Of a transformer reactances between windings, then resistances [%]; of a capacitor kvar of every step;
    of a PV system peak power [kW] and rating [kVA].
    """
    if element.kind == "capacitor":
        return f"kvar={array(values)}"
    if element.kind == "pvsystem":
        return f"Pmpp={float(values[0])!r} kVA={float(values[1])!r}"
    pairs = element.windings * (element.windings - 1) // 2
    reactances = f"Xscarray={array(values[:pairs])}"
    if named := _REACTANCES.get(element.windings):
        reactances = " ".join(f"{x}={value!r}" for x, value in zip(named, values.tolist(), strict=False))
    return f"{reactances} %Rs={array(values[pairs:])}"


def _capacitor_controls(engine: Engine, refused: list[str]) -> Iterator[tuple[str, ElementFrame]]:
    """Capacitor, and the enabled control that switches it, where a twin has both and the element."""
    for name in dss.enabled_names(engine, "capcontrol"):
        own = Properties(engine, "capcontrol", name)
        capacitor, element, elsewhere = own.name("capacitor"), own.text("element"), own.text("vbus")
        words = f'element="{element}" capacitor="{capacitor}" {_stated(own, "capcontrol")}'
        known = class_of(element) in READERS.keys() - {"regcontrol"} and dss.is_enabled(engine, element)
        if not dss.is_enabled(engine, f"capacitor.{capacitor}"):
            continue
        if known and not elsewhere:
            yield capacitor, ElementFrame("capcontrol", name, words)
            continue
        refused.append(said(f"operated.twin-{'vbus' if known else 'element'}", name=name, element=element))


def _inverter_controls(curves: Mapping[str, InverterCurve]) -> Iterator[ElementFrame]:
    """One control per curve, with the curve itself before it."""
    of_curve: dict[InverterCurve, list[str]] = {}
    for pv, curve in curves.items():
        of_curve.setdefault(curve, []).append(f"pvsystem.{pv}")
    for number, (curve, systems) in enumerate(of_curve.items(), start=1):
        x, y = ([to_step(value, _SHARE) for value in part] for part in (curve.voltage, curve.reactive))
        # The engine continues the slope of an end that is not flat.
        x, y = [x[0] - _FLAT_BEYOND, *x, x[-1] + _FLAT_BEYOND], [y[0], *y, y[-1]]
        name, reference = f"voltvar{number}", "varaval" if curve.reference == "available" else "varmax"
        yield ElementFrame("xycurve", name, f"npts={len(x)} xarray={array(x)} yarray={array(y)}")
        settings = (
            f"mode=voltvar vvc_curve1={name} voltage_curvex_ref=rated refreactivepower={reference} "
            f"derlist=[{' '.join(systems)}]"
        )
        yield ElementFrame("invcontrol", name, settings)


# ----------------------------------------------------------------------------------------------------------
# Elements of a compiled OpenDSS circuit, one by one, as a frame and levels.


class ElementReader:
    """Reads elements one by one; the element is the engine's active one meanwhile."""

    def __init__(
        self, engine: Engine, origin: DssOrigin, protected: Protected, switched: frozenset[str]
    ) -> None:
        self.engine, self.origin, self.protected, self.switched = engine, origin, protected, switched
        self.circuit = engine.ActiveCircuit
        self.frequency = float(self.circuit.Solution.Frequency)
        self.levels: dict[ParameterKey, float] = {}
        self.coded: list[CodedLine] = []
        self.compensating: list[str] = []
        self.undrawn_codes: list[str] = []
        self.opened: list[str] = []
        self.steps: dict[tuple[str, int], float] = {}
        self.left_taps: list[tuple[str, int]] = []
        self.line_drop = 0
        self.own_codes = self._codes_of_one_line()
        self.catalogue = {name: code for name, code in self._codes() if name not in self.own_codes}
        self._regulated = self._regulated_windings()

    def read(self, kind: str, name: str) -> LineFrame | ElementFrame:
        """The frame of one element; its levels are kept."""
        return READERS[kind](self, Properties(self.engine, kind, name), name)

    def _buses(self) -> str:
        """`bus1=… bus2=…`; a second terminal that is ground by default is left out."""
        buses = [str(bus).lower() for bus in self.circuit.ActiveCktElement.BusNames]
        if len(buses) > 1 and set(buses[1].split(".")[1:]) == {"0"}:
            default = buses[1].split(".", 1)[0] == buses[0].split(".", 1)[0]
            buses = buses[:1] if default and "0" not in buses[0].split(".")[1:] else buses
        return " ".join(f'bus{k}="{bus}"' for k, bus in enumerate(buses, start=1) if bus)

    def _head(self, kind: str, own: Properties) -> str:
        """Where the element is connected, and its public figures."""
        return f"{self._buses()} {_stated(own, kind)}"

    def _note_open(self, kind: str, name: str) -> None:
        """Remember the commands that open what is open of the element."""
        element = self.circuit.ActiveCktElement
        for terminal in range(1, int(element.NumTerminals) + 1):
            if element.IsOpen(terminal, 0):
                self.opened += [
                    f'Open "{kind}.{name}" {terminal} {conductor}'
                    for conductor in range(1, int(element.NumConductors) + 1)
                    if element.IsOpen(terminal, conductor)
                ]

    # ---------------------------------------------------------------------------------- lines

    def _codes_of_one_line(self) -> frozenset[str]:
        """Where codes are drawn, or the network is public, the whole catalogue is declared public."""
        if self.origin.public or self.protected.codes:
            return frozenset()
        return codes_of_one_line(
            (str(lines.LineCode).lower(), class_of(lines.Bus1), class_of(lines.Bus2))
            for lines in self.circuit.Lines
            if not lines.IsSwitch
        )

    def _codes(self) -> Iterator[tuple[str, Code]]:
        for codes in self.circuit.LineCodes:
            phases = int(codes.Phases)
            base = float(self.circuit.ActiveDSSElement.Properties("basefreq").Val)
            figures, sequence = self._matrices(codes, phases, base), None
            if codes.IsZ1Z0:
                factor = self.frequency / base
                positive = np.array([codes.R1, codes.X1 * factor, codes.C1])
                zero = np.array([codes.R0, codes.X0 * factor, codes.C0])
                if phases == 1:  # the engine knows the positive sequence alone then
                    zero, figures = positive, tuple(positive.reshape(3, 1, 1))
                sequence = tuple(zip(*(significant(z, CODE).tolist() for z in (positive, zero)), strict=True))
            r, x, c = (as_matrix(significant(values, CODE)) for values in figures)
            yield codes.Name.lower(), Code(phases, METRES.get(int(codes.Units)), r, x, c, sequence)

    def _matrices(self, source: Engine, phases: int, base: float) -> tuple[FloatArray, ...]:
        """R, X at the circuit's frequency, and C (phase, phase) of a line or a code, per unit of length."""
        r, x, c = (
            np.array(values, dtype=np.float64).reshape(phases, phases)
            for values in (source.Rmatrix, source.Xmatrix, source.Cmatrix)
        )
        return r, (x if base == self.frequency else x * (self.frequency / base)), c

    def _line(self, own: Properties, name: str) -> LineFrame | ElementFrame:
        lines = self.circuit.Lines
        lines.Name = name
        phases, length = int(lines.Phases), float(lines.Length)
        r, x, c = (part * length for part in self._matrices(lines, phases, own.number("basefreq")))
        self._note_open("Line", name)
        start = f"{self._buses()} phases={phases}"
        if lines.IsSwitch:
            # The engine knows a switch by its sequence impedances alone.
            figures = f"{start} switch=y length=1"
            for key, values in (("r", r), ("x", x), ("c", c)):
                between = float(values[0, -1]) if phases > 1 else 0.0
                positive, zero = values[0, 0] - between, values[0, 0] + 2.0 * between
                figures += f" {key}1={to_digits(positive, FIGURE)!r} {key}0={to_digits(zero, FIGURE)!r}"
            return ElementFrame("line", name, figures)
        code = lines.LineCode.lower() if lines.LineCode.lower() in self.catalogue else ""
        metres = METRES.get(int(lines.Units)) or (self.catalogue[code].metres if code else None)
        by_length = self.protected.lines == "length" and bool(code) and metres is not None
        if self.protected.codes and code and not by_length:
            self.undrawn_codes.append(name)
        if self.protected.codes and code and not self.catalogue[code].fits(phases):
            raise refusal("twin-not-possible.code-phases", name=name, code=code)
        if by_length and metres is not None:
            self.levels[ParameterKey(Quantity.LENGTH, name)] = length * metres / _KM
            fitting = sorted(key for key, entry in self.catalogue.items() if entry.fits(phases))
            unitless = any(self.catalogue[key].metres is None for key in fitting)
            if self.protected.codes and unitless and int(lines.Units) not in METRES:
                raise refusal("twin-not-possible.unit-of-code", name=name)
            self.coded.append(CodedLine(name, code, tuple(fitting)))
            return LineFrame(name, start, phases, code, metres, by_length=True, charged=True)
        levels = {Quantity.RESISTANCE: r, Quantity.REACTANCE: x}
        if self.protected.charging:
            levels[Quantity.CHARGING] = c
        for quantity, values in levels.items():
            self.levels[ParameterKey(quantity, name)] = level_of(values)
        shapes = tuple(
            (quantity, as_matrix(shape_of(values)) if np.any(values) else None)
            for quantity, values in levels.items()
        )
        return LineFrame(name, start, phases, code, metres, shapes=shapes, charged=bool(np.any(c)))

    # --------------------------------------------------------------------------- transformers

    def _regulated_windings(self) -> dict[tuple[str, int], bool]:
        """(transformer, winding) that a regulator moves → whether one of them is enabled."""
        found: dict[tuple[str, int], bool] = {}
        for name in [name for name in self.circuit.AllElementNames if name.lower().startswith("regcontrol.")]:
            own, enabled = Properties(self.engine, *name.split(".", 1)), dss.is_enabled(self.engine, name)
            key = (own.name("transformer"), int(own.number("tapwinding")))
            found[key] = found.get(key, False) or enabled
        return found

    def _transformer(self, own: Properties, name: str) -> ElementFrame:
        windings = int(own.number("windings"))
        pairs = windings * (windings - 1) // 2
        figures = np.array([*own.numbers("xscarray")[:pairs], *own.numbers("%rs")[:windings]])
        parts = [_stated(own, "transformer")]
        buses = [str(bus).lower() for bus in self.circuit.ActiveCktElement.BusNames]
        self._note_open("transformer", name)
        parts += [self._winding(own, name, k, buses[k - 1]) for k in range(1, windings + 1)]
        return self._with_level(
            ElementFrame("transformer", name, " ".join(parts), windings=windings), figures
        )

    def _winding(self, own: Properties, name: str, winding: int, bus: str) -> str:
        dss.run(self.engine, f'Edit "transformer.{name}" wdg={winding}', self.origin)
        self.circuit.SetActiveElement(f"transformer.{name}")
        low, high, count = own.number("mintap"), own.number("maxtap"), own.number("numtaps")
        step = to_step((high - low) / count, 1e-9) if count > 0 and high > low else _TAP_STEP
        tap = tap_on_step(own.number("tap"), step)
        key = (name, winding)
        self.steps[key] = step
        if not self.origin.public and tap != 1.0 and not self._regulated.get(key, False):
            # A tap that an operator set looks like one that a control left: it has to be declared.
            self.left_taps.append(key)
            tap = 1.0
        tap = 1.0 if key in self._regulated else tap
        return f'wdg={winding} bus="{bus}" {_stated(own, "winding")} tap={tap!r}'

    def _regulator(self, own: Properties, name: str) -> ElementFrame:
        transformer = own.name("transformer")
        if (transformer, 1) not in self.steps:
            raise refusal("feeder.regulator", name=name)
        stated = {key: rule(own, key) for key, rule in _FRAME["regcontrol"].items()}
        self.line_drop += any(float(stated[key]) for key in ("r", "x", "revr", "revx"))
        options = {key: rule(own, key) for key, rule in _FRAME["regcontrol-options"].items()}
        stated |= {key: value for key, value in options.items() if float(value)}
        if own.text("bus"):
            stated |= {key: rule(own, key) for key, rule in _FRAME["remote-regcontrol"].items()}
        words = " ".join(f"{key}={value}" for key, value in stated.items())
        return ElementFrame("regcontrol", name, f'transformer="{transformer}" {words}')

    # -------------------------------------------------------------------- everything else

    def _with_level(self, element: ElementFrame, figures: FloatArray) -> ElementFrame:
        """The element with its figures: rounded and public, or a level and a shape."""
        kinds = {"capacitor": Quantity.CAPACITOR, "pvsystem": Quantity.PV}
        quantity = kinds.get(element.kind, Quantity.TRANSFORMER)
        level = level_of(figures)
        if self.protected.covers(quantity) and level > 0.0:
            element = replace(element, quantity=quantity, shape=tuple(shape_of(figures).tolist()))
            assert element.key is not None
            self.levels[element.key] = level
            return element
        figured = figures_of(element, significant(figures, RATING if quantity is Quantity.PV else IMPEDANCE))
        return ElementFrame(element.kind, element.name, f"{element.properties} {figured}")

    def _source(self, own: Properties, name: str) -> ElementFrame:
        return ElementFrame("vsource", name, self._head("vsource", own))

    def _capacitor(self, own: Properties, name: str) -> ElementFrame:
        if np.any(own.numbers("harm")):
            raise refusal("twin-not-possible.tuned", name=name)
        states = own.numbers("states")
        if not self.origin.public and name in self.switched:
            states = [1.0] * len(states)
        elif not self.origin.public and not all(states):
            raise refusal("twin-not-possible.open-steps", name=name)
        self._note_open("capacitor", name)
        parts = [self._head("capacitor", own)]
        series, kvar = {key: np.array(own.numbers(key)) for key in ("r", "xl")}, np.array(own.numbers("kvar"))
        series = {key: z for key, z in series.items() if np.any(z)}
        covered = self.protected.covers(Quantity.CAPACITOR) and level_of(kvar) > 0.0
        if not covered:
            parts += [f"{key}={array(significant(z, FIGURE))}" for key, z in series.items()]
        parts.append(f"states=[{' '.join(str(int(state)) for state in states)}]")
        made = self._with_level(ElementFrame("capacitor", name, " ".join(parts)), kvar)
        if not covered:
            return made
        # A bank is tuned to its size: what it is tuned with would give the size away.
        tuned = {key: significant(z * level_of(kvar), _TUNED).tolist() for key, z in series.items()}
        return replace(made, tuned=tuple((key, tuple(z)) for key, z in tuned.items()))

    def _reactor(self, own: Properties, name: str) -> ElementFrame:
        active = self.circuit.ActiveCktElement
        self._note_open("reactor", name)
        head = f"{self._buses()} phases={own.text('phases')}"
        if own.is_delta:
            self.compensating += [f"reactor.{name}"] * (own.number("kvar") < 0.0)
            return ElementFrame("reactor", name, f"{head} conn=delta {_stated(own, 'delta-reactor')}")
        conductors = int(active.NumConductors)
        block = dss.primitive(active)[:conductors, :conductors]
        if conductors == 0 or not np.all(np.isfinite(block)) or np.linalg.matrix_rank(block) < conductors:
            raise refusal("feeder.reactor", name=name)
        z = np.linalg.inv(block)
        self.compensating += [f"reactor.{name}"] * bool(np.any(np.diag(z).imag < 0.0))
        r, x = (
            as_matrix(significant(np.where(np.abs(part) < 1e-9 * np.abs(z).max(), 0.0, part), FIGURE))
            for part in (z.real, z.imag)
        )
        return ElementFrame("reactor", name, f"{head} rmatrix={matrix(r)} xmatrix={matrix(x)}")

    def _load(self, own: Properties, name: str) -> ElementFrame:
        model = int(own.number("model"))
        parts = [self._head("load", own)]
        if model == _WITH_CVR:
            parts.append(_stated(own, "load-with-cvr"))
        if model == _ZIP:
            parts.append(f"zipv={array(np.round(own.numbers('zipv'), 3))}")
        return self._with_power("load", own, name, parts, load_multiplier(self.engine, own))

    def _generator(self, own: Properties, name: str) -> ElementFrame:
        """A generator of any model; one that is not modelled is counted and left out on the twin too."""
        parts = [self._head("generator", own)]
        if own.number("dispvalue") != 0.0:
            parts.append(_stated(own, "dispatch"))
        return self._with_power("generator", own, name, parts, generator_multiplier(self.engine, own))

    def _with_power(
        self, kind: str, own: Properties, name: str, parts: list[str], multiplier: float
    ) -> ElementFrame:
        """The element with its nominal power; the circuit multiplies it by `multiplier`."""
        parts += [f"{key}={to_digits(own.number(key) * multiplier, FIGURE)!r}" for key in ("kw", "kvar")]
        return ElementFrame(kind, name, " ".join(parts))

    def _pv(self, own: Properties, name: str) -> ElementFrame:
        tangent, fixed = power_factor(self.engine, name)
        if fixed and self.protected.pv:  # relative to a protected size: as coarse as a shape
            tangent = to_step(tangent, SHAPE_GRID)
        own = Properties(self.engine, "pvsystem", name)
        figures = np.array([own.number("pmpp"), own.number("kva")])
        properties = self._head("pvsystem", own)
        if tangent != 0.0:
            factor = float(np.copysign(1.0 / np.sqrt(1.0 + tangent**2), tangent))
            properties += f" pf={to_step(factor, _SHARE)!r}"
        return self._with_level(ElementFrame("pvsystem", name, properties), figures)


READERS: Mapping[str, Callable[[ElementReader, Properties, str], LineFrame | ElementFrame]] = {
    "vsource": ElementReader._source,
    "line": ElementReader._line,
    "transformer": ElementReader._transformer,
    "capacitor": ElementReader._capacitor,
    "reactor": ElementReader._reactor,
    "load": ElementReader._load,
    "pvsystem": ElementReader._pv,
    "regcontrol": ElementReader._regulator,
    "generator": ElementReader._generator,
}
"""Classes that a twin has, in the order in which they are read."""


_INJECTIONS = frozenset({"storage", "isource", "vccs", "indmach012", "gicsource"})
_IDLE = dss.CONTROLS | {"energymeter", "monitor", "sensor"}
_FORBIDDEN = frozenset("\"'`")


def read_parameters(origin: DssOrigin, protected: Protected) -> NetworkParameters:
    """PRIVATE. Every level of the circuit that is protected; refuses what a twin could not have."""
    return frame_and_parameters(origin, protected)[1]


@lru_cache(maxsize=4)  # reading a large circuit takes longer than building a twin of it
def frame_and_parameters(origin: DssOrigin, protected: Protected) -> tuple[Frame, NetworkParameters]:
    """What a twin has besides its levels, and PRIVATE the levels; refuses what neither can hold."""
    engine = dss.build_circuit(origin, dss.engine_of(origin))
    dss.run(engine, "makebuslist", origin)
    refused: list[str] = []
    # While the controls are enabled.
    switched = list(_capacitor_controls(engine, refused))
    operated = [control for _, control in switched]
    operated += _inverter_controls(inverter_curves(engine, refused))
    controls = dss.settle_controls(engine, origin)
    circuit = engine.ActiveCircuit
    problems = Problems()
    names = _enabled_names(engine, problems)
    problems.add(*_allocated_loads(engine, origin))
    dss.run(engine, "makebuslist", origin)
    engine.YMatrix.BuildYMatrixD(1, 0)
    reading = ElementReader(engine, origin, protected, frozenset(dict(switched)))
    elements: dict[str, LineFrame | ElementFrame] = {}
    for kind, read in READERS.items():
        for name in (name for name in names if name.startswith(f"{kind}.")):
            with problems.gather():
                own = name.split(".", 1)[1]
                elements[name] = read(reading, Properties(engine, kind, own), own)
    if undrawn := reading.undrawn_codes:  # they would stay as they are, though codes are protected
        problems.add(refusal("twin-not-possible.undrawn", count=len(undrawn), names=some_of(undrawn)))
    network = [elements[name] for name in names if name in elements]
    first = next((e for e in network if isinstance(e, ElementFrame) and e.kind == "vsource"), None)
    if first is None or first.name != "source":
        problems.add(refusal("twin-not-possible.own-source"))
    bases: list[str] = []
    with problems.gather():
        bases = _voltage_bases(engine, origin)
    problems.refuse()
    assert isinstance(first, ElementFrame)
    network.remove(first)
    start = f"Set DefaultBaseFrequency={reading.frequency!r}"
    frame = Frame(
        start=("ClearAll", start, f'New "Circuit.{circuit.Name}" {first.properties}'),
        elements=(*network, *operated),
        end=(*reading.opened, *bases),
        catalogue=tuple(sorted(reading.catalogue.items())),
        steps=tuple(sorted(reading.steps.items())),
        left_taps=tuple(reading.left_taps),
        notes=tuple(_notes(names, controls, operated, reading)),
        refused=tuple(refused),
    )
    levels = {key: level for key, level in reading.levels.items() if level > 0.0}
    return frame, NetworkParameters(levels, tuple(reading.coded), tuple(reading.compensating))


def _enabled_names(engine: Engine, problems: Problems) -> list[str]:
    """Enabled elements in order; unknown classes and names with quotes are problems."""
    names = [name.lower() for name in engine.ActiveCircuit.AllElementNames]
    odd = [name for name in names if set(name) & _FORBIDDEN]
    problems.add(*(refusal("twin-not-possible.quote", odd=name) for name in odd))
    enabled = [name for name in names if dss.is_enabled(engine, name)]
    strangers = [name for name in enabled if class_of(name) not in {*READERS, *_INJECTIONS, *_IDLE}]
    problems.add(*(refusal("twin-not-possible.stranger", stranger=name) for name in strangers))
    return enabled


def _allocated_loads(engine: Engine, origin: DssOrigin) -> Iterator[FeederError]:
    if origin.public or origin.loads_declared:
        return
    loads = engine.ActiveCircuit.Loads
    stated = [load.Name for load in loads if float(load.xfkVA) > 0.0 or float(load.kwh) > 0.0]
    if origin.allocates or stated:
        such = f", such as that of '{stated[0]}'," if stated else ""
        yield refusal("load-table.allocated", such=such)


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
                raise refusal("feeder-script.setkvbase")
            try:
                volts = to_digits(float(words[kind]), RATING)
            except ValueError:
                raise refusal("feeder-script.setkvbase-number", bus=words["bus"]) from None
            found.append(f'SetkVBase bus="{words["bus"]}" {kind}={volts!r}')
    return found


def _notes(
    names: list[str], controls: Mapping[str, int], operated: list[ElementFrame], reading: ElementReader
) -> Iterator[str]:
    """What a twin does not have, or has in public."""
    lost = Counter(controls) - Counter(element.kind for element in operated)
    for kind, count in sorted(lost.items()):
        yield said("note.controls", count=count, kind=kind, left_out="are left out")
    counts = Counter(map(class_of, names))
    for kind in sorted(_INJECTIONS & counts.keys()):
        yield f"{counts[kind]} elements of class {kind} are left out"
    for note, count in (
        ("own-codes", len(reading.own_codes)),
        ("start-closed", 0 if reading.origin.public else len(reading.switched)),
        ("reactors", counts["reactor"]),
        ("line-drop", reading.line_drop),
    ):
        if count:
            yield said(f"note.{note}", count=count)


# ------------------------------------------------------------------------------------------ twins


def rebuild(feeder: Feeder, protected: Protected, levels: Levels, codes: Mapping[str, str]) -> Feeder:
    """The circuit of the feeder's frame, these levels and these codes.

    Taps are the declared ones, or solved on the new circuit; where that fails, they are neutral.
    """
    origin = feeder.origin
    assert isinstance(origin, DssOrigin)
    frame, _ = frame_and_parameters(origin, protected)
    commands = tuple(_commands(frame, protected, levels, codes))
    made = DssOrigin(commands, origin.path, tuple(map(_place, commands)))
    taps = _taps(feeder, frame, public=origin.public)
    read = partial(read_dss, made, name=feeder.name, base_mva=feeder.base_mva)
    circuit = _compiled(made, dss.engine_of(origin))
    may_fail = taps is None and circuit.ActiveCircuit.RegControls.Count
    try:
        new = read(taps=taps, engine=circuit)
    except FeederError:
        if not may_fail:
            raise
        # Noise decides whether nominal load can be solved, after the twin is paid for.
        circuit = _compiled(made, circuit)
        neutral = [replace(tap, ratio=1.0) for tap in dss.regulated_taps(circuit)]
        new = replace(read(taps=neutral, engine=circuit), taps_from=TAPS_NOT_FOUND)
    lines = (element for element in frame.elements if isinstance(element, LineFrame))
    code_of = {line.name: codes.get(line.name, line.code) or None for line in lines}
    operation, left_out = new.operation, feeder.as_operated.left_out
    if left_out or frame.refused:
        operation = replace(
            new.as_operated,
            left_out=tuple(dict.fromkeys((*left_out, *new.as_operated.left_out))),
            refused=tuple(dict.fromkeys((*frame.refused, *new.as_operated.refused))),
        )
    return replace(
        new,
        operation=operation,
        lines=tuple(replace(line, code=code_of.get(line.name)) for line in new.lines),
        taps_from=feeder.taps_from if taps is not None else new.taps_from,
        notes=(*frame.notes, *new.notes),
    )


def _compiled(made: DssOrigin, engine: Engine) -> Engine:
    try:
        return dss.build_circuit(made, engine)
    except FeederError as error:
        # The engine's own words would quote the figures.
        named = re.findall(r"OpenDSS rejects element '([^']*)'", " ".join(str(each) for each in error.each))
        where = f" of {some_of(named)}" if named else ""
        raise refusal("twin-not-possible.not-built", where=where) from None


def _place(command: str) -> str:
    """The element that a command of a twin makes, in words."""
    return f"element '{command.split(chr(34))[1]}'" if command.startswith("New ") else "a setting"


def _taps(feeder: Feeder, frame: Frame, *, public: bool) -> tuple[Tap, ...] | None:
    """Taps that are given, on their steps; None where the twin solves its own."""
    given = public or feeder.taps_from not in (TAPS_SOLVED, NO_REGULATORS)
    if not public and given and not feeder.taps_from.startswith(TAPS_DECLARED):
        internal = " were solved on it" if feeder.taps_from == TAPS_INTERNAL else " may follow from it"
        raise refusal("taps.not-public", internal=internal)
    taps = {(tap.transformer.lower(), tap.winding): tap for tap in feeder.taps} if given else {}
    left = [key for key in frame.left_taps if key not in taps]
    if left and not public:
        name, winding = left[0]
        others = f", as {len(left) - 1} more windings," if len(left) > 1 else ""
        raise refusal("taps.off-neutral", winding=winding, name=name, others=others)
    if not given or (public and feeder.taps_from == NO_REGULATORS):
        return None
    steps = dict(frame.steps)
    return tuple(
        replace(tap, ratio=tap_on_step(tap.ratio, steps[key])) for key, tap in taps.items() if key in steps
    )


# ----------------------------------------------------------------------------------------- commands


def _commands(frame: Frame, protected: Protected, levels: Levels, codes: Mapping[str, str]) -> Iterator[str]:
    """The twin, written down."""
    record = Record(levels)
    catalogue = dict(frame.catalogue)
    yield from frame.start
    for element in frame.elements:
        if isinstance(element, LineFrame):
            yield f'New "Line.{element.name}" {_line(element, protected, record, codes, catalogue)}'
            continue
        words = element.properties
        if element.key is not None:
            level = record.take(element.key)
            words += f" {figures_of(element, level * np.array(element.shape))}"
            words += "".join(f" {key}={array(np.array(z) / level)}" for key, z in element.tuned)
        yield f'New "{element.kind}.{element.name}" {words}'
    record.refuse_rest()
    yield from frame.end


def _line(
    line: LineFrame,
    protected: Protected,
    record: Record,
    codes: Mapping[str, str],
    catalogue: Mapping[str, Code],
) -> str:
    """Properties of a line; its matrices are per km where a length is known, else totals."""
    if line.by_length:
        length = record.take(ParameterKey(Quantity.LENGTH, line.name))
        if protected.codes and codes.get(line.name) not in catalogue:
            raise refusal("feeder.record-code", line=line)
        code = catalogue[codes.get(line.name, line.code)]
        unit = (code.metres or line.metres or _KM) / _KM
        r, x, c = (part / unit for part in code.of(line.phases))
        return f"{line.start} {_figures(r, x, c, length)}"
    if line.name in codes:
        raise refusal("feeder.record-code-undrawn", line=line)
    zero = np.zeros((line.phases, line.phases))
    totals = {
        quantity: zero if shape is None else record.take(ParameterKey(quantity, line.name)) * np.array(shape)
        for quantity, shape in line.shapes
    }
    r, x = totals[Quantity.RESISTANCE], totals[Quantity.REACTANCE]
    entry = catalogue.get(line.code)
    units = _units_of_length(line, protected, entry, r, x)
    if dict(line.shapes).get(Quantity.CHARGING) is not None:
        c = totals[Quantity.CHARGING]
    elif not line.charged:
        c = zero
    else:
        c = units * (entry.of(line.phases)[2] if entry else protected.c_nf_per_km * np.eye(line.phases))
    metres = _KM
    if entry is not None:
        if line.metres is None:
            return f"{line.start} {_figures(r, x, c)}"
        metres = entry.metres or line.metres
    length = units * metres / _KM
    return f"{line.start} {_figures(r / length, x / length, c / length, length)}"


def _units_of_length(
    line: LineFrame, protected: Protected, entry: Code | None, r: FloatArray, x: FloatArray
) -> float:
    """Length that the line's reactance (its resistance, if it has none) stands for.

    In units of its code; in km without one.
    """
    own = (line.phases**0.5) * protected.x_ohm_per_km
    public = [level_of(part) for part in entry.of(line.phases)[:2]] if entry else [0.0, 0.0]
    for total, size in ((x, public[1]), (r, public[0])):
        if level_of(total) > 0.0:
            return level_of(total) / (size or own)
    raise refusal("feeder.no-impedance", line=line)


def _figures(r: FloatArray, x: FloatArray, c: FloatArray, length: float | None = None) -> str:
    """Matrices of a line, per km or totals; the engine would forget a unit that stands before them."""
    matrices = f"rmatrix={matrix(r)} xmatrix={matrix(x)} cmatrix={matrix(c)}"
    return f"length=1 {matrices}" if length is None else f"{matrices} length={float(length)!r} units=km"
