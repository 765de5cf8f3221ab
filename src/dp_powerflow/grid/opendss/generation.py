"""PV systems, generators and inverter controls of an OpenDSS circuit, still by node name."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dp_powerflow._bits.elementary import unit
from dp_powerflow.grid.feeder import GROUND, PVSystem
from dp_powerflow.grid.opendss.engine import (
    Engine,
    NamedBranches,
    Properties,
    enabled_names,
    named_branches,
    refuse_open,
)
from dp_powerflow.grid.opendss.regulators import NotModelledError
from dp_powerflow.grid.opendss.responses import CONSTANT_Z_MODEL, coil_kv
from dp_powerflow.grid.operation import CONSTANT_IMPEDANCE, Generator, InverterCurve, Response
from dp_powerflow.units import FloatArray

_CONSTANT_POWER, _INVERTER = 1, 7
_HOLDS_VOLTAGE = 3
_UNLIMITED = 10.0
OTHER_SOURCES = ("storage", "isource", "vccs", "indmach012", "gicsource", "windgen")
"""Classes that are left out, in any mode."""
_OTHER_INVERTER_CONTROLS = ("expcontrol", "gendispatcher", "upfccontrol", "espvlcontrol")
_DEFAULTS = {
    "effcurve": ("", "an efficiency curve"),
    "p-tcurve": ("", "a temperature curve"),
    "balanced": ("no", "currents that are forced to be balanced"),
    "limitcurrent": ("no", "a limit on its current"),
    "%pmpp": ("100", "a limit on its active power"),
    "%pminnovars": ("0", "no reactive power at little active power"),
    "%pminkvarmax": ("0", "less reactive power at little active power"),
    "controlmode": ("gfl", "a voltage that it forms"),
}
"""Property of a PV system → its default, and in words what another value stands for."""
_PLAIN_CONTROL = {
    "combimode": ("",),
    "mode": ("voltvar",),
    "voltage_curvex_ref": ("rated",),
    "hysteresis_offset": ("0",),
    "rateofchangemode": ("inactive",),
    "monbus": ("", "[]"),
    "monvoltagecalc": ("avg",),
    "refreactivepower": ("varaval", "varmax"),
}
"""Property of an inverter control → values that are modelled."""


# ------------------------------------------------------------------------------------ PV systems


def declared_pv(engine: Engine, left_out: list[str]) -> list[tuple[PVSystem, NamedBranches]]:
    """Every PV system, without its curve; what of them is not modelled is counted in `left_out`."""
    circuit = engine.ActiveCircuit
    declared: list[tuple[PVSystem, NamedBranches]] = []
    words: Counter[str] = Counter()
    for systems in circuit.PVSystems:
        name = systems.Name.lower()
        kva, peak = float(systems.kVArated), float(systems.Pmpp)
        tangent, fixed = power_factor(engine, name)
        own = Properties(engine, "pvsystem", name)
        refuse_open(engine, f"PV system '{name}'")
        delta, phases = own.text("conn").startswith(("d", "ll")), int(own.number("phases"))
        words.update(word for key, (usual, word) in _DEFAULTS.items() if own.text(key) != usual)
        if fixed:
            words["a fixed reactive power, which follows the active power here"] += 1
        pv = PVSystem(
            name=name,
            branches=(),
            kva=kva,
            kw_peak=peak,
            cut_in_fraction=own.number("%cutin") / 100.0,
            rated_kv=coil_kv(own.number("kv"), phases, delta=delta),
            response=_source_law(own),
            tan_theta=tangent,
        )
        declared.append((pv, named_branches(engine, delta)))
    left_out += [
        f"{_counted(count, 'PV system has', 'PV systems have')} {word}" for word, count in words.items()
    ]
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


def declared_generators(engine: Engine, left_out: list[str]) -> list[tuple[Generator, NamedBranches]]:
    """Generators of constant power; all others are counted in `left_out`."""
    declared: list[tuple[Generator, NamedBranches]] = []
    words: Counter[tuple[str, str]] = Counter()
    for name in enabled_names(engine, "generator"):
        own = Properties(engine, "generator", name)
        model = int(own.number("model"))
        if model not in (_CONSTANT_POWER, _INVERTER):
            words[_of_model(model)] += 1
            continue
        if own.text("dispmode") != "default" and own.number("dispvalue") != 0.0 and not own.yes("forceon"):
            words["generator that is dispatched", "generators that are dispatched"] += 1
            continue
        refuse_open(engine, f"generator '{name}'")
        delta, phases = own.text("conn").startswith(("d", "ll")), int(own.number("phases"))
        law, multiplier = _source_law(own), generator_multiplier(engine, own)
        generator = Generator(
            name=name,
            branches=(),
            kw=own.number("kw") * multiplier,
            kvar=own.number("kvar") * multiplier,
            rated_kv=coil_kv(own.number("kv"), phases, delta=delta),
            response=law if model == _CONSTANT_POWER else replace(law, highest=_UNLIMITED),
        )
        declared.append((generator, named_branches(engine, delta)))
    left_out += [_counted(count, *word) for word, count in words.items()]
    return declared


def generator_multiplier(engine: Engine, own: Properties) -> float:
    """What the circuit multiplies the power of a generator by."""
    return 1.0 if own.text("status") == "fixed" else float(engine.ActiveCircuit.Solution.GenMult)


def _of_model(model: int) -> tuple[str, str]:
    """One and several generators of a model."""
    if model == _HOLDS_VOLTAGE:
        return "generator that holds its voltage (model 3)", "generators that hold their voltage (model 3)"
    return f"generator of model {model}", f"generators of model {model}"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def other_sources(engine: Engine) -> list[str]:
    """Storage and other sources, in words: none of them is modelled."""
    found = []
    for kind in OTHER_SOURCES:
        count = len(enabled_names(engine, kind))
        names = ("storage unit", "storage units")
        if kind != "storage":
            names = (f"element of class {kind}", f"elements of class {kind}")
        if count:
            found.append(_counted(count, *names))
    return found


# ------------------------------------------------------------------------------ inverter controls


def inverter_curves(engine: Engine, refused: list[str]) -> dict[str, InverterCurve]:
    """Volt-var curve of every PV system that has one, against the voltage that its kV states."""
    found: dict[str, InverterCurve] = {}
    for name in enabled_names(engine, "invcontrol"):
        try:
            curves = _curves(engine, name)
            if found.keys() & curves.keys():
                raise NotModelledError(
                    "acts on a PV system that another one acts on too; disable one of them"
                )
        except NotModelledError as reason:
            refused.append(f"inverter control '{name}' {reason}")
            continue
        found |= curves
    for kind in _OTHER_INVERTER_CONTROLS:
        refused += [
            f"control '{name}' of class {kind} is not modelled; disable it"
            for name in enabled_names(engine, kind)
        ]
    return found


def _curves(engine: Engine, name: str) -> dict[str, InverterCurve]:
    own = Properties(engine, "invcontrol", name)
    for key, modelled in _PLAIN_CONTROL.items():
        if own.text(key) not in modelled:
            raise NotModelledError(f"has {key}={own.text(key)}; only {modelled[0] or 'none'} is modelled")
    listed = [word.split(".") for word in own.text("derlist").strip("[]() ").replace(",", " ").split()]
    chosen = [parts[-1] for parts in listed if parts[0] != "storage"]
    available = own.text("refreactivepower") == "varaval"
    voltage, reactive = _points(engine, own.text("vvc_curve1"))
    found = {}
    for pv in enabled_names(engine, "pvsystem"):
        if listed and pv not in chosen:
            continue
        system = Properties(engine, "pvsystem", pv)
        kva = system.number("kva")
        most = (system.number("kvarmax") / kva, system.number("kvarmaxabs") / kva)
        if available and min(most) < 1.0:
            raise NotModelledError(
                "acts on a PV system whose kvarMax is below its kVA; set refreactivepower=varmax"
            )
        if not available and system.yes("wattpriority"):
            raise NotModelledError("acts on a PV system with watt priority; set refreactivepower=varaval")
        shares = tuple(y * (most[0] if y > 0.0 else most[1]) for y in reactive)
        found[pv] = InverterCurve(voltage, shares, "available" if available else "rated")
    return found


def _points(engine: Engine, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a curve; slopes at its ends go on until ±1, as the engine has them."""
    circuit = engine.ActiveCircuit
    circuit.SetActiveClass("xycurve")
    if not name or name not in [known.lower() for known in circuit.ActiveClass.AllNames]:
        raise NotModelledError("has no volt-var curve; give vvc_curve1")
    circuit.ActiveClass.Name = name
    own = Properties.of_active(engine)
    if any(
        own.number(key) != usual
        for key, usual in (("xshift", 0), ("yshift", 0), ("xscale", 1), ("yscale", 1))
    ):
        raise NotModelledError("has a curve that is shifted or scaled; state its points")
    x, y = own.numbers("xarray"), own.numbers("yarray")
    if len(x) != len(y) or len(x) < 2 or any(b <= a for a, b in pairwise(x)):
        raise NotModelledError("has a curve whose voltages do not increase; correct its points")
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
