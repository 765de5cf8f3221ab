"""How loads, PV systems and generators of an OpenDSS circuit answer to the voltage."""

from __future__ import annotations

import math

from dp_powerflow.grid.opendss.engine import Engine, Properties
from dp_powerflow.grid.operation import CONSTANT_IMPEDANCE, Response, Zip

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
