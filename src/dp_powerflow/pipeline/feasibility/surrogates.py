"""Public stand-ins for a private network: its frame with figures of a table, then a twin's own noise.

The frame of a network (connections, phases, base voltages, transformers, controls, nominal loads) is public
in mode 'twin-network'. Every figure that the noise covers is replaced by one that depends on the frame alone.
So whatever is found on a stand-in can be said to anybody: networks of one frame have the same stand-ins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import Feeder, Levels, NetworkParameters, ParameterKey, Protected, Quantity
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import draw_twin
from dp_powerflow.units import KW_PER_MW

SEED = 18
"""Of the noise of the stand-ins; public."""
LOW_VOLTAGE_KV = 0.6
"""Line to neutral: nodes below it are on low voltage."""
LENGTH_KM = {True: 0.02, False: 0.1}
"""Length of a line on low voltage, and above."""
R_OVER_X = {True: 1.5, False: 0.6}
"""Resistance over reactance of a line on low voltage, and above."""
TRANSFORMER_PERCENT, REGULATOR_PERCENT = 5.0, 0.1
"""Impedance of a transformer, and of one that a regulator moves."""
CAPACITOR_SHARE, PV_SHARE = 0.5, 0.2
"""All capacitors over all nominal kvar, and all PV systems over all nominal kW."""
TWINS = 2
"""Stand-ins that are looked at; one of a large network, which takes seconds to build."""
LENGTHS = (*(2.0**k for k in range(-20, 0, 2)), *(2.0**k for k in range(7)))
"""Lengths of lines that are tried, over those of the table; the short ones are for loads of transmission
systems on lines of a voltage that was never meant."""
_SHORT = LENGTHS.index(2.0**-8)
_GUESSES = 4
"""Lengths that are tried where the voltages of the one before point to; then by halves."""
DESIGNED = (0.95, 1.08)
"""Voltages [p.u.] that nobody plans a feeder to fall below at nominal load, or to pass without load."""
_LARGE = 2000
"""Nodes of a large network."""
_KEPT = 4
_known: dict[Hashable, tuple[Feeder, ...]] = {}
"""The stand-ins built last: `release` looks at those of its `plan`, a fleet at its feeders twice."""


def stand_in_twins(
    source: Rebuilder, parameters: NetworkParameters, design: TwinDesign, controls: ControlMode
) -> tuple[Feeder, ...]:
    """PUBLIC. Twins of the stand-in of a network; networks of the same frame have the same ones.

    Parameters
    ----------
    source : of the network; its frame is what is used.
    parameters : PRIVATE. Which figures there are is used, none of their levels.
    controls : whether taps and capacitors move.
    """
    feeder, acting = source.feeder, controls != "frozen"
    key = (feeder.origin, feeder.base_mva, feeder.taps, feeder.taps_from, len(feeder.nodes), design, acting)
    if key not in _known:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = tuple(_draw(source, parameters, design, acting=acting))
    return _known[key]


def _draw(
    source: Rebuilder, parameters: NetworkParameters, design: TwinDesign, *, acting: bool
) -> Iterator[Feeder]:
    large = len(source.feeder.nodes) > _LARGE
    length = _designed(source, parameters, design.protected, acting=acting, quick=large)
    public = public_parameters(source.feeder, parameters, design.protected, length)
    key = StreamKey.from_insecure_seed(SEED)
    for k in range(1 if large else TWINS):
        yield draw_twin(public, design, key.bind("stand-in", str(k))).feeder(source)


def _designed(
    source: Rebuilder, parameters: NetworkParameters, protected: Protected, *, acting: bool, quick: bool
) -> float:
    """How many times the lines of the table a network is built with: as long as nominal load allows.

    Somebody has planned the feeder, and its voltages hold at nominal load and without load. Of the lengths
    tried, the longest is taken at which those of the stand-in do.

    Parameters
    ----------
    quick : whether the lines of the table are good enough where voltages hold with them.
    """

    @cache
    def margin(length: float) -> float | None:
        """None where lines are so short that no solver tells their ends apart."""
        public = public_parameters(source.feeder, parameters, protected, length)
        codes = {line.line: line.code for line in public.coded} if protected.codes else {}
        try:
            return _margin(source.build(public.levels, codes), acting=acting)
        except PowerFlowError:
            return None

    if quick and (margin(1.0) or 0.0) >= 1.0:
        return 1.0
    few, many = 0, len(LENGTHS)  # the first is taken in any case
    guess, left = LENGTHS.index(1.0), _GUESSES
    while many - few > 1:
        middle = min(max(guess, few + 1), many - 1)
        found = margin(LENGTHS[middle])
        if found is None:
            few, left, guess = middle, 0, (middle + many) // 2
            continue
        few, many = (middle, many) if found >= 1.0 else (few, middle)
        # Voltages fall as lines get longer; of a network without solution nothing is known.
        left = left - 1 if found > 0.0 else 0
        guess = bisect_right(LENGTHS, LENGTHS[middle] * found) - 1 if left else (few + many) // 2
    # Noise may make lines shorter still: very short ones keep a distance.
    least = (k if k > _SHORT else max(k - 2, 0) for k in range(few, len(LENGTHS)))
    return LENGTHS[next(k for k, low in enumerate(least, few) if margin(LENGTHS[low]) is not None)]


def _margin(feeder: Feeder, *, acting: bool) -> float:
    """About how many times longer lines could be; at least 1 if voltages are those that somebody plans for.

    Those of nodes with load, at nominal load and without load; 0 without solution.
    """
    nominal = np.where(feeder.nominal_load.real > 0.0, feeder.nominal_load, 0.0)
    solver = OperatedSolver(feeder, controls="snapshot" if acting else "frozen")
    found = solver.solve(np.stack([nominal, np.zeros_like(nominal)]))
    if not found.converged.all():
        return 0.0
    low, high = DESIGNED
    loaded, idle = modulus(found.v[0]), modulus(found.v[1])
    room, used = float(idle.min()) - low, float(idle.min() - loaded.min())
    longer = room / used if used > 0.0 else LENGTHS[-1]
    if loaded.min() >= low and idle.max() <= high:
        return max(1.0, longer)
    return min(longer, 0.5)


def public_parameters(
    feeder: Feeder, private: NetworkParameters, protected: Protected, length: float = 1.0
) -> NetworkParameters:
    """PUBLIC. The parameters of a network with every level and drawn code replaced by a public one.

    Parameters
    ----------
    length : of lines, over that of the table.
    """
    levels = _public_levels(feeder, private.levels, protected, length)
    if not protected.codes:
        return NetworkParameters(levels, private.coded)
    coded = (replace(line, code=line.candidates[len(line.candidates) // 2]) for line in private.coded)
    return NetworkParameters(levels, tuple(coded))


def _public_levels(
    feeder: Feeder, keys: Levels, protected: Protected, length: float
) -> dict[ParameterKey, float]:
    of_lines = {line.name: _LineTable(feeder, line.nodes, protected, length) for line in feeder.lines}
    unknown = _LineTable(feeder, (), protected, length)  # on an island that is left out
    regulated = {regulator.transformer.lower() for regulator in feeder.as_operated.regulators}
    count = {quantity: sum(key.quantity is quantity for key in keys) for quantity in Quantity}
    # OpenDSS states kW and kvar, pandapower MW and Mvar.
    unit = 1.0 if _of_opendss(feeder) else 1.0 / KW_PER_MW
    kw, kvar = (sum(abs(value) for value in values) for values in _nominal(feeder))

    def capacitor(_: str) -> float:
        return max(CAPACITOR_SHARE * kvar, 1.0) * unit / count[Quantity.CAPACITOR]

    def pv(_: str) -> float:
        return math.sqrt(2.0) * max(PV_SHARE * kw, 1.0) * unit / count[Quantity.PV]

    def transformer(name: str) -> float:
        moved = name.split(".")[-1].lower() in regulated
        return REGULATOR_PERCENT if moved else TRANSFORMER_PERCENT

    def of_line(figure: Callable[[_LineTable], float]) -> Callable[[str], float]:
        return lambda name: figure(of_lines.get(name, unknown))

    tables: dict[Quantity, Callable[[str], float]] = {
        Quantity.LENGTH: of_line(lambda line: line.length_km),
        Quantity.RESISTANCE: of_line(lambda line: line.resistance),
        Quantity.REACTANCE: of_line(lambda line: line.reactance),
        Quantity.CHARGING: of_line(lambda line: line.charging),
        Quantity.TRANSFORMER: transformer,
        Quantity.CAPACITOR: capacitor,
        Quantity.PV: pv,
    }
    return {key: tables[key.quantity](key.element) for key in keys}


class _LineTable:
    """PUBLIC. Figures of a line by its voltage and its phases."""

    def __init__(self, feeder: Feeder, nodes: tuple[int, ...], protected: Protected, length: float) -> None:
        low = bool(nodes) and float(feeder.base_kv[nodes[0]]) < LOW_VOLTAGE_KV
        # A level is the norm of a matrix with a row per phase; pandapower's is that of one phase.
        phases = max(len(nodes) // 2, 1) if _of_opendss(feeder) else 1
        self.length_km = length * LENGTH_KM[low]
        self.reactance = math.sqrt(phases) * protected.x_ohm_per_km * self.length_km
        self.resistance = R_OVER_X[low] * self.reactance
        self.charging = max(math.sqrt(phases) * protected.c_nf_per_km * self.length_km, 1e-6)


def _of_opendss(feeder: Feeder) -> bool:
    return isinstance(feeder.origin, DssOrigin)


def _nominal(feeder: Feeder) -> tuple[list[float], list[float]]:
    """Nominal kW and kvar of every load."""
    return [load.kw for load in feeder.loads], [load.kvar for load in feeder.loads]
