"""Elements of a compiled OpenDSS circuit, one by one, as a frame and levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from dp_powerflow.errors import FeederError, NoTwinError, TapsError
from dp_powerflow.grid.feeder import (
    CodedLine,
    ParameterKey,
    Protected,
    Quantity,
    level_of,
    shape_of,
    significant,
)
from dp_powerflow.grid.opendss.engine import (
    DssOrigin,
    Engine,
    Properties,
    is_enabled,
    primitive,
    run,
)
from dp_powerflow.grid.opendss.generation import generator_multiplier, power_factor
from dp_powerflow.grid.opendss.operated import generator_frame, load_frame, pv_behaviour
from dp_powerflow.grid.opendss.reader import (
    CODE,
    FIGURE,
    IMPEDANCE,
    RATING,
    Code,
    ElementFrame,
    LineFrame,
    array,
    as_matrix,
    as_shape,
    figures_of,
    matrix,
    nearest,
    rounded,
    tap_on_step,
)
from dp_powerflow.grid.opendss.responses import load_multiplier
from dp_powerflow.units import FloatArray

METRES = {1: 1609.344, 2: 304.8, 3: 1000.0, 4: 1.0, 5: 0.3048, 6: 0.0254, 7: 0.01, 8: 0.001}
"""Number of a unit of length in the engine → metres; a unit that is missing has none."""
_KM = 1000.0
_TAP_STEP = 0.00625


class ElementReader:
    """Reads elements one by one; the element is the engine's active one meanwhile."""

    KINDS = (
        *("vsource", "line", "transformer", "autotrans", "capacitor", "reactor", "load", "pvsystem"),
        *("regcontrol", "generator"),
    )

    def __init__(self, engine: Engine, origin: DssOrigin, protected: Protected) -> None:
        self.engine, self.origin, self.protected = engine, origin, protected
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
        self.readers: dict[str, Callable[[str], LineFrame | ElementFrame]] = {
            "vsource": self._source,
            "line": self._line,
            "transformer": self._transformer,
            "autotrans": self._transformer,
            "capacitor": self._capacitor,
            "reactor": self._reactor,
            "load": self._load,
            "pvsystem": self._pv,
            "regcontrol": self._regulator,
            "generator": self._generator,
        }

    # ---------------------------------------------------------------- what elements have in common

    def _text(self, name: str) -> str:
        return str(self.circuit.ActiveCktElement.Properties(name).Val)

    def _number(self, name: str) -> float:
        return float(self._text(name))

    def _numbers(self, name: str) -> FloatArray:
        words = self._text(name).strip("[]() ").replace(",", " ").split()
        return np.array([float(word) for word in words])

    def _buses(self) -> str:
        """`bus1=… bus2=…`; a second terminal that is ground by default is left out."""
        buses = [str(bus).lower() for bus in self.circuit.ActiveCktElement.BusNames]
        if len(buses) > 1 and set(buses[1].split(".")[1:]) == {"0"}:
            default = buses[1].split(".", 1)[0] == buses[0].split(".", 1)[0]
            buses = buses[:1] if default and "0" not in buses[0].split(".")[1:] else buses
        return " ".join(f'bus{k}="{bus}"' for k, bus in enumerate(buses, start=1) if bus)

    def _base_frequency(self) -> str:
        stated = self._number("basefreq")
        return "" if stated == self.frequency else f" basefreq={rounded(stated, RATING)}"

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
        """Codes that one line alone uses: they state its own figures, and are no entries of a catalogue.

        Lines between the same two buses count as one: parallel circuits share their totals too. Where codes
        are drawn, or the network is public, the whole catalogue is declared public.
        """
        if self.origin.public or self.protected.codes:
            return frozenset()
        spans = {
            (
                str(lines.LineCode).lower(),
                frozenset(str(bus).split(".", 1)[0].lower() for bus in (lines.Bus1, lines.Bus2)),
            )
            for lines in self.circuit.Lines
            if not lines.IsSwitch
        }
        used = Counter(code for code, _ in spans)
        return frozenset(code for code, count in used.items() if code and count == 1)

    def _codes(self) -> Iterator[tuple[str, Code]]:
        for codes in self.circuit.LineCodes:
            phases = int(codes.Phases)
            base = float(self.circuit.ActiveDSSElement.Properties("basefreq").Val)
            figures = self._matrices(codes, phases, base)
            if phases == 1 and codes.IsZ1Z0:
                # The engine gives a line of one phase the code's positive sequence, not its self impedance.
                sequence = (codes.R1, codes.X1 * self.frequency / base, codes.C1)
                figures = tuple(np.array([[float(value)]]) for value in sequence)
            r, x, c = (as_matrix(significant(values, CODE)) for values in figures)
            yield codes.Name.lower(), Code(phases, METRES.get(int(codes.Units)), r, x, c)

    def _matrices(self, source: Engine, phases: int, base: float) -> tuple[FloatArray, ...]:
        """R, X at the circuit's frequency, and C (phase, phase) of a line or a code, per unit of length."""
        r, x, c = (
            np.array(values, dtype=np.float64).reshape(phases, phases)
            for values in (source.Rmatrix, source.Xmatrix, source.Cmatrix)
        )
        return r, (x if base == self.frequency else x * (self.frequency / base)), c

    def _line(self, name: str) -> LineFrame:
        lines = self.circuit.Lines
        lines.Name = name
        phases, length = int(lines.Phases), float(lines.Length)
        r, x, c = (part * length for part in self._matrices(lines, phases, self._number("basefreq")))
        self._note_open("Line", name)
        start = f"{self._buses()} phases={phases}"
        if lines.IsSwitch:
            # The engine knows a switch by its sequence impedances alone.
            figures = " ".join(
                f"{key}1={rounded(values[0, 0] - between, FIGURE)} "
                f"{key}0={rounded(values[0, 0] + 2.0 * between, FIGURE)}"
                for key, values in (("r", r), ("x", x), ("c", c))
                for between in [float(values[0, -1]) if phases > 1 else 0.0]
            )
            return LineFrame(name, f"{start} switch=y length=1 {figures}", phases, switch=True)
        code = lines.LineCode.lower() if lines.LineCode.lower() in self.catalogue else ""
        metres = METRES.get(int(lines.Units)) or (self.catalogue[code].metres if code else None)
        by_length = self.protected.lines == "length" and bool(code) and metres is not None
        if self.protected.codes and code and not by_length:
            self.undrawn_codes.append(name)
        if by_length and metres is not None:
            self.levels[ParameterKey(Quantity.LENGTH, name)] = length * metres / _KM
            fitting = sorted(key for key, entry in self.catalogue.items() if entry.phases == phases)
            unitless = any(self.catalogue[key].metres is None for key in fitting)
            if self.protected.codes and unitless and int(lines.Units) not in METRES:
                raise NoTwinError(
                    f"line '{name}' and some conductor code have no unit of length, so that its code would "
                    "state that of another one; give every code units= where codes are drawn"
                )
            self.coded.append(CodedLine(name, code, tuple(fitting)))
            return LineFrame(name, start, phases, code, metres, by_length=True, charged=True)
        levels = {Quantity.RESISTANCE: r, Quantity.REACTANCE: x}
        if self.protected.charging:
            levels[Quantity.CHARGING] = c
        for quantity, values in levels.items():
            self.levels[ParameterKey(quantity, name)] = level_of(values)
        shapes = {quantity: as_shape(values) for quantity, values in levels.items()}
        return LineFrame(
            name,
            start,
            phases,
            code,
            metres,
            resistance=shapes[Quantity.RESISTANCE],
            reactance=shapes[Quantity.REACTANCE],
            charging=shapes.get(Quantity.CHARGING),
            charged=bool(np.any(c)),
        )

    # --------------------------------------------------------------------------- transformers

    def _regulated_windings(self) -> dict[tuple[str, int], bool]:
        """(transformer, winding) that a regulator moves → whether one of them is enabled."""
        found: dict[tuple[str, int], bool] = {}
        for name in [name for name in self.circuit.AllElementNames if name.lower().startswith("regcontrol.")]:
            enabled = is_enabled(self.engine, name)
            key = (self._text("transformer").lower().split(".")[-1], int(self._text("tapwinding")))
            found[key] = found.get(key, False) or enabled
        return found

    def _transformer(self, name: str) -> ElementFrame:
        kind = str(self.circuit.ActiveCktElement.Name).split(".", 1)[0].lower()
        windings = int(self._text("windings"))
        pairs = windings * (windings - 1) // 2
        figures = np.concatenate([self._numbers("XSCArray")[:pairs], self._numbers("%Rs")[:windings]])
        magnetising = " ".join(
            f"{key}={rounded(self._number(key), FIGURE)}" for key in ("%noloadloss", "%imag", "ppm_antifloat")
        )
        head = (
            f"phases={self._text('phases')} windings={windings} {magnetising} leadlag={self._text('leadlag')}"
        )
        head += self._base_frequency()
        buses = [str(bus).lower() for bus in self.circuit.ActiveCktElement.BusNames]
        self._note_open(kind, name)
        of_windings = [
            self._winding(kind, name, winding, buses[winding - 1]) for winding in range(1, windings + 1)
        ]
        properties = " ".join([head, *of_windings])
        return self._with_level(ElementFrame(kind, name, properties, windings=windings), figures)

    def _winding(self, kind: str, name: str, winding: int, bus: str) -> str:
        run(self.engine, f'Edit "{kind}.{name}" wdg={winding}', self.origin)
        self.circuit.SetActiveElement(f"{kind}.{name}")
        low, high, count = self._number("mintap"), self._number("maxtap"), self._number("numtaps")
        step = nearest((high - low) / count, 1e-9) if count > 0 and high > low else _TAP_STEP
        tap = tap_on_step(self._number("tap"), step)
        key = (name, winding)
        if kind == "transformer":
            self.steps[key] = step
        if not self.origin.public and tap != 1.0 and not self._regulated.get(key, False):
            # Nobody can tell a tap that somebody set from one that a control left: it has to be declared.
            if kind != "transformer":
                raise TapsError(
                    f"AutoTrans '{name}' is off neutral, so that its tap may be a solved one, and no tap "
                    "file can declare it; set its taps to 1, or make it a Transformer"
                )
            self.left_taps.append(key)
            tap = 1.0
        if key in self._regulated:
            tap = 1.0
        neutral = ""
        if kind == "transformer":
            neutral = "".join(f" {key}={rounded(self._number(key), FIGURE)}" for key in ("rneut", "xneut"))
        return (
            f'wdg={winding} bus="{bus}" conn={self._text("conn")} kv={rounded(self._number("kv"), RATING)} '
            f"kva={rounded(self._number('kva'), RATING)}{neutral} mintap={nearest(low, 1e-4)!r} "
            f"maxtap={nearest(high, 1e-4)!r} numtaps={int(count)} tap={tap!r}"
        )

    def _regulator(self, name: str) -> ElementFrame:
        transformer = self._text("transformer").lower().split(".")[-1]
        if (transformer, 1) not in self.steps:
            raise FeederError(f"RegControl '{name}' moves no enabled transformer; disable it")
        volts = {key: nearest(self._number(key), 0.1) for key in ("vreg", "band", "revvreg", "revband")}
        drop = {key: nearest(self._number(key), 1.0) for key in ("r", "x", "revr", "revx")}
        self.line_drop += any(drop.values())
        optional = {
            "vlimit": nearest(self._number("vlimit"), 0.1),
            "ldc_z": nearest(self._number("ldc_z"), 1.0),
            "rev_z": nearest(self._number("rev_z"), 1.0),
        }
        seconds = {key: nearest(self._number(key), 1.0) for key in ("delay", "tapdelay", "revdelay")}
        plain = (
            "winding",
            "tapwinding",
            "ptphase",
            "maxtapchange",
            "reversible",
            "revneutral",
            "inversetime",
        )
        parts = [f'transformer="{transformer}"']
        parts += [f"{key}={self._text(key)}" for key in (*plain, "cogen")]
        parts += [f"ptratio={rounded(self._number('ptratio'), RATING)}"]
        parts += [f"ctprim={rounded(self._number('ctprim'), FIGURE)}"]
        parts += [f"revthreshold={rounded(self._number('revthreshold'), FIGURE)}"]
        parts += [f"{key}={value!r}" for key, value in (volts | drop | seconds).items()]
        parts += [f"{key}={value!r}" for key, value in optional.items() if value]
        if self._text("bus").strip():
            remote = rounded(self._number("remoteptratio"), RATING)
            parts += [f'bus="{self._text("bus").lower()}" remoteptratio={remote}']
        return ElementFrame("regcontrol", name, " ".join(parts))

    # -------------------------------------------------------------------- everything else

    def _with_level(self, element: ElementFrame, figures: FloatArray) -> ElementFrame:
        """The element with its figures: rounded and public, or a level and a shape."""
        quantity = {"capacitor": Quantity.CAPACITOR, "pvsystem": Quantity.PV}.get(
            element.kind, Quantity.TRANSFORMER
        )
        covered = {
            Quantity.TRANSFORMER: self.protected.transformers,
            Quantity.CAPACITOR: self.protected.capacitors,
            Quantity.PV: self.protected.pv,
        }[quantity]
        level = level_of(figures)
        if covered and level > 0.0:
            # Two classes of transformers may share a name.
            key = element.name if element.kind != "autotrans" else f"autotrans.{element.name}"
            self.levels[ParameterKey(quantity, key)] = level
            shape = tuple(float(value) for value in shape_of(figures))
            return ElementFrame(
                element.kind, element.name, element.properties, quantity, shape, element.windings
            )
        digits = RATING if quantity is Quantity.PV else IMPEDANCE
        figured = figures_of(element, significant(figures, digits))
        return ElementFrame(element.kind, element.name, f"{element.properties} {figured}")

    def _source(self, name: str) -> ElementFrame:
        impedance = " ".join(
            f"{key}={rounded(self._number(key), FIGURE)}" for key in ("r1", "x1", "r0", "x0")
        )
        properties = (
            f"{self._buses()} phases={self._text('phases')} "
            f"basekv={rounded(self._number('basekv'), RATING)} "
            f"pu={nearest(self._number('pu'), 1e-4)!r} angle={nearest(self._number('angle'), 0.01)!r} "
            f"sequence={self._text('sequence')} {impedance}{self._base_frequency()}"
        )
        return ElementFrame("vsource", name, properties)

    def _capacitor(self, name: str) -> ElementFrame:
        if np.any(self._numbers("harm")):
            raise NoTwinError(
                f"capacitor '{name}' is tuned by harm, which keeps its true size; give its R and XL instead"
            )
        states = self._numbers("states")
        if not self.origin.public and not np.all(states):
            raise NoTwinError(
                f"capacitor '{name}' has open steps, which a control may have left as a function of the "
                "lines; state the steps that you declare as a bank with all of them closed, or disable it"
            )
        steps = int(self._text("numsteps"))
        self._note_open("capacitor", name)
        parts = [f"{self._buses()} phases={self._text('phases')} conn={self._text('conn')} numsteps={steps}"]
        parts += [f"kv={rounded(self._number('kv'), RATING)}"]
        for key in ("r", "xl"):
            values = self._numbers(key)
            if np.any(values):
                parts.append(f"{key}={array(significant(values, FIGURE))}")
        parts.append("states=[" + " ".join(str(int(state)) for state in states) + "]")
        element = ElementFrame("capacitor", name, " ".join(parts) + self._base_frequency())
        return self._with_level(element, self._numbers("kvar"))

    def _reactor(self, name: str) -> ElementFrame:
        active = self.circuit.ActiveCktElement
        self._note_open("reactor", name)
        head = f"{self._buses()} phases={self._text('phases')}"
        if self._text("conn").lower().startswith(("d", "ll")):
            self._note_compensating(name, self._number("kvar") < 0.0)
            size = f"kv={rounded(self._number('kv'), RATING)} kvar={rounded(self._number('kvar'), FIGURE)}"
            return ElementFrame("reactor", name, f"{head} conn=delta {size}{self._base_frequency()}")
        conductors = int(active.NumConductors)
        block = primitive(active)[:conductors, :conductors]
        if conductors == 0 or not np.all(np.isfinite(block)) or np.linalg.matrix_rank(block) < conductors:
            raise FeederError(
                f"reactor '{name}' has no impedance matrix; give it by R and X, or by kvar and kV"
            )
        z = np.linalg.inv(block)
        self._note_compensating(name, bool(np.any(np.diag(z).imag < 0.0)))
        r, x = (
            as_matrix(significant(np.where(np.abs(part) < 1e-9 * np.abs(z).max(), 0.0, part), FIGURE))
            for part in (z.real, z.imag)
        )
        return ElementFrame("reactor", name, f"{head} rmatrix={matrix(r)} xmatrix={matrix(x)}")

    def _note_compensating(self, name: str, capacitive: bool) -> None:
        if capacitive:
            self.compensating.append(f"reactor.{name}")

    def _load(self, name: str) -> ElementFrame:
        own = Properties(self.engine, "load", name)
        return load_frame(own, name, self._buses(), load_multiplier(self.engine, own))

    def _pv(self, name: str) -> ElementFrame:
        properties = (
            f"{self._buses()} phases={self._text('phases')} conn={self._text('conn')} "
            f"kv={rounded(self._number('kv'), RATING)} %cutin={rounded(self._number('%cutin'), FIGURE)}"
        )
        figures = np.array([self._number("pmpp"), self._number("kva")])
        tangent, _ = power_factor(self.engine, name)
        properties += pv_behaviour(Properties(self.engine, "pvsystem", name), tangent)
        return self._with_level(ElementFrame("pvsystem", name, properties), figures)

    def _generator(self, name: str) -> ElementFrame:
        own = Properties(self.engine, "generator", name)
        return generator_frame(own, name, self._buses(), generator_multiplier(self.engine, own))
