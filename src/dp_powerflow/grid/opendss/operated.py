"""Frames of what acts on a feeder: loads, generators, and controls of capacitors and inverters.

All of it is what the file states, rounded to public steps. Nothing that a control found is ever read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow.grid.opendss.engine import Engine, Properties, enabled_names, is_enabled
from dp_powerflow.grid.opendss.generation import declared_pv, inverter_curves, other_sources
from dp_powerflow.grid.opendss.reader import FIGURE, RATING, ElementFrame, array, nearest, rounded
from dp_powerflow.grid.operation import InverterCurve

SETTING = 4
"""Significant digits of the settings of a capacitor control."""
_SHARE = 1e-3
_WITH_CVR, _ZIP = 4, 8
_VLOWPU = 0.5
_FLAT_BEYOND = 0.1
_BUSES = (
    *("line", "transformer", "autotrans", "reactor", "capacitor", "load", "vsource"),
    *("pvsystem", "generator"),
)
"""Classes whose terminals a control of a twin may look at."""


@dataclass(frozen=True)
class Operated:
    """What a frame has for the feeder as operated.

    Attributes
    ----------
    elements : controls, and the curves that they name.
    left_out, refused : of `Operation`, as far as a twin does not have what they are about.
    """

    elements: tuple[ElementFrame, ...]
    left_out: tuple[str, ...]
    refused: tuple[str, ...]

    def without(self, controls: Mapping[str, int]) -> dict[str, int]:
        """How many controls of a class a twin does not have."""
        kept = Counter(element.kind for element in self.elements)
        return {kind: count - kept[kind] for kind, count in controls.items() if count > kept[kind]}


def read_operated(engine: Engine) -> Operated:
    """Controls that a twin has, while they are enabled; buses must have their nodes."""
    refused: list[str] = []
    left_out = other_sources(engine)
    declared_pv(engine, left_out)
    capacitors = tuple(_capacitor_controls(engine, refused))
    inverters = tuple(_inverter_controls(inverter_curves(engine, refused)))
    return Operated((*capacitors, *inverters), tuple(left_out), tuple(refused))


def load_frame(own: Properties, name: str, buses: str, multiplier: float) -> ElementFrame:
    """A load with its law; `multiplier` is that of the circuit for it."""
    model = int(own.number("model"))
    kw, kvar = (rounded(own.number(key) * multiplier, FIGURE) for key in ("kw", "kvar"))
    parts = [f"{buses} phases={own.text('phases')} conn={own.text('conn')} model={model}"]
    parts += [f"class={int(own.number('class'))} kv={rounded(own.number('kv'), RATING)}"]
    parts += [f"{key}={nearest(own.number(key), _SHARE)!r}" for key in ("vminpu", "vmaxpu")]
    lowest = nearest(own.number("vlowpu"), _SHARE)
    if lowest != _VLOWPU:
        parts.append(f"vlowpu={lowest!r}")
    if model == _WITH_CVR:
        parts += [f"{key}={nearest(own.number(key), _SHARE)!r}" for key in ("cvrwatts", "cvrvars")]
    if model == _ZIP:
        parts.append(f"zipv={array(np.round(own.numbers('zipv'), 3))}")
    return ElementFrame("load", name, " ".join([*parts, f"kw={kw} kvar={kvar}"]))


def generator_frame(own: Properties, name: str, buses: str, multiplier: float) -> ElementFrame:
    """A generator of any model; one that is not modelled is counted and left out on the twin too."""
    model = int(own.number("model"))
    parts = [f"{buses} phases={own.text('phases')} conn={own.text('conn')} model={model}"]
    parts += [f"kv={rounded(own.number('kv'), RATING)}"]
    parts += [f"{key}={nearest(own.number(key), _SHARE)!r}" for key in ("vminpu", "vmaxpu")]
    if own.number("dispvalue") != 0.0:
        parts += [f"dispmode={own.text('dispmode')} dispvalue={rounded(own.number('dispvalue'), FIGURE)}"]
        parts += [f"forceon={own.text('forceon')}"]
    parts += [f"{key}={rounded(own.number(key) * multiplier, FIGURE)}" for key in ("kw", "kvar")]
    return ElementFrame("generator", name, " ".join(parts))


def pv_behaviour(own: Properties, tan_theta: float) -> str:
    """How a PV system answers, where it is not as the engine has it by default."""
    usual = {"vminpu": 0.9, "vmaxpu": 1.1, "model": 1.0}
    stated = {key: nearest(own.number(key), _SHARE) for key in usual}
    parts = [f" {key}={value:g}" for key, value in stated.items() if value != usual[key]]
    factor = nearest(float(np.copysign(1.0 / np.sqrt(1.0 + tan_theta**2), tan_theta)), _SHARE)
    return "".join(parts) + (f" pf={factor!r}" if tan_theta != 0.0 else "")


def _capacitor_controls(engine: Engine, refused: list[str]) -> Iterator[ElementFrame]:
    """The enabled controls whose capacitor and element a twin has."""
    for name in enabled_names(engine, "capcontrol"):
        own = Properties(engine, "capcontrol", name)
        capacitor, element = own.text("capacitor").split(".")[-1], own.text("element")
        elsewhere = bool(own.text("vbus"))
        if not is_enabled(engine, f"capacitor.{capacitor}"):
            continue
        if element.split(".", 1)[0] not in _BUSES or not is_enabled(engine, element):
            refused.append(
                f"capacitor control '{name}' looks at element '{element}', which a twin does not have"
            )
            continue
        if elsewhere:
            refused.append(f"capacitor control '{name}' looks at the voltage of another bus; leave out vbus")
            continue
        yield _capacitor_control(Properties(engine, "capcontrol", name), name)


def _capacitor_control(own: Properties, name: str) -> ElementFrame:
    parts = [
        f'element="{own.text("element")}" terminal={own.text("terminal")}',
        f'capacitor="{own.text("capacitor").split(".")[-1]}" type={own.text("type")}',
        f"ptratio={rounded(own.number('ptratio'), RATING)} ctratio={rounded(own.number('ctratio'), RATING)}",
        *(
            f"{key}={rounded(own.number(key), SETTING)}"
            for key in ("onsetting", "offsetting", "vmin", "vmax")
        ),
        *(f"{key}={nearest(own.number(key), 1.0)!r}" for key in ("delay", "delayoff", "deadtime")),
        *(f"{key}={own.text(key)}" for key in ("voltoverride", "ctphase", "ptphase")),
    ]
    return ElementFrame("capcontrol", name, " ".join(parts))


def _inverter_controls(curves: Mapping[str, InverterCurve]) -> Iterator[ElementFrame]:
    """One control per curve, with the curve itself before it."""
    of_curve: dict[InverterCurve, list[str]] = {}
    for pv, curve in curves.items():
        of_curve.setdefault(curve, []).append(f"pvsystem.{pv}")
    for number, (curve, systems) in enumerate(of_curve.items(), start=1):
        x = [nearest(value, _SHARE) for value in curve.voltage]
        y = [nearest(value, _SHARE) for value in curve.reactive]
        # The engine continues the slope of an end that is not flat.
        x = [x[0] - _FLAT_BEYOND, *x, x[-1] + _FLAT_BEYOND]
        y = [y[0], *y, y[-1]]
        points = f"npts={len(x)} xarray={array(np.array(x))} yarray={array(np.array(y))}"
        reference = "varaval" if curve.reference == "available" else "varmax"
        yield ElementFrame("xycurve", f"voltvar{number}", points)
        yield ElementFrame(
            "invcontrol",
            f"voltvar{number}",
            f"mode=voltvar vvc_curve1=voltvar{number} voltage_curvex_ref=rated refreactivepower={reference} "
            f"derlist=[{' '.join(systems)}]",
        )
