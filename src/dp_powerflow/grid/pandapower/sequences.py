"""Zero-sequence figures of a pandapower net: whether it has them, and the branches that they make.

The models are those of `pandapower.runpp_3ph`: phases to earth, a source that is ideal in the positive
sequence and has the short-circuit impedance of its external grid in the others, transformers of the vector
groups YNyn, Dyn and Yzn or of groups that pass no zero-sequence current. Two figures are taken as their ohms
say, where `runpp_3ph` (3.5) mixes bases: bus-bus switches, and Yzn where net.sn_mva is not 1.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dp_powerflow._bits.elementary import divide, joined, multiply
from dp_powerflow.grid.pandapower.engine import in_service
from dp_powerflow.units import ComplexArray, FloatArray

SERIES_AND_SHUNT = ("BR_R", "BR_X", "BR_G", "BR_B")
SOURCE = ("s_sc_max_mva", "rx_max", "x0x_max", "r0x0_max")
LINE = ("r0_ohm_per_km", "x0_ohm_per_km", "c0_nf_per_km")
TRANSFORMER = ("vk0_percent", "vkr0_percent", "mag0_percent", "mag0_rx", "si0_hv_partial")
IMPEDANCE = ("rft0_pu", "xft0_pu", "rtf0_pu", "xtf0_pu", "gf0_pu", "bf0_pu", "gt0_pu", "bt0_pu")

_FIGURES = {"ext_grid": SOURCE, "line": LINE, "impedance": IMPEDANCE}
_BLOCKING = ("yy", "yd", "dy", "dd")
_EARTHED = ("ynyn", "dyn", "yzn")
_OPEN = 1e20
_YZN = 1.1547  # 2/√3 as pandapower has it
_VOLTAGE_FACTOR = 1.1
_NO_FIGURE = 1e-8
_FROM = 0


def column_of(name: str) -> int:
    """Number of a column of pandapower's table of branches."""
    return int(getattr(importlib.import_module("pandapower.pypower.idx_brch"), name))


def count_unbalanced(net: Any) -> int:
    """Number of elements in service that state powers phase by phase."""
    return sum(len(in_service(net, kind)) for kind in ("asymmetric_load", "asymmetric_sgen"))


def lacking(net: Any) -> str | None:
    """What to do before a net can be read phase by phase; None if nothing."""
    for kind, columns in _FIGURES.items():
        for row in in_service(net, kind):
            for column in columns:
                if not math.isfinite(_figure(row, column)):
                    return f"fill column {column} of table '{kind}'"
    for row in in_service(net, "trafo"):
        group = str(getattr(row, "vector_group", "")).lower()
        if group not in (*_BLOCKING, *_EARTHED):
            return "give every transformer a vector_group out of YNyn, Dyn, Yzn, Yy, Yd, Dy and Dd"
        needed = () if group in _BLOCKING else TRANSFORMER
        for column in needed:
            if not math.isfinite(_figure(row, column)):
                return f"fill column {column} of table 'trafo'"
        if any(_figure(row, column, 0.0) != 0.0 for column in ("xn_ohm", "rn_ohm")):
            return "earth the neutrals of transformers without impedance (xn_ohm, rn_ohm)"
    if in_service(net, "trafo3w"):
        return "replace transformers with three windings"
    if any(row.slack for row in in_service(net, "gen")):
        return "make the source an external grid, not a generator"
    return None


def source_impedances(net: Any, base_mva: float) -> Iterator[tuple[int, complex, complex]]:
    """Bus, Z0 and Z2 of every external grid in service [p.u. of a base per phase]."""
    for row in in_service(net, "ext_grid"):
        s_sc, rx, x0x, r0x0 = (_figure(row, column) for column in SOURCE)
        z = 3.0 * base_mva * _VOLTAGE_FACTOR / s_sc
        x = z / math.sqrt(rx * rx + 1.0)
        yield int(row.bus), complex(r0x0 * x0x * x, x0x * x), complex(rx * x, x)


def zero_sequence(net: Any, base_kv: FloatArray, branch: FloatArray, gamma: FloatArray) -> FloatArray:
    """The table of branches with figures of the zero sequence; switches keep theirs.

    Parameters
    ----------
    base_kv : (row of the table of buses,) [kV].
    branch, gamma : of the positive sequence, with every transformer as a π, and as pandapower's Γ.
    """
    made = branch.copy()
    for kind, fill in (("line", _lines), ("impedance", _impedances), ("trafo", _transformers)):
        first, end = (int(k) for k in net._pd2ppc_lookups["branch"].get(kind, (0, 0)))
        if first == end:
            continue
        rows = made[first:end]
        for name in SERIES_AND_SHUNT:
            rows[:, column_of(f"{name}_ASYM")] = 0.0
        from_kv = base_kv[rows[:, _FROM].astype(np.int64)]
        near, far = fill(net, from_kv * from_kv / float(net.sn_mva), gamma[first:end])
        for name, values in zip(SERIES_AND_SHUNT, near, strict=True):
            rows[:, column_of(name)] = values
        for name, values, known in zip(SERIES_AND_SHUNT, far, near, strict=True):
            rows[:, column_of(f"{name}_ASYM")] = values - known
    return made


_Figures = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""R, X, G, B [p.u.]; G and B twice those of one end."""


def _lines(net: Any, base_ohm: FloatArray, _: FloatArray) -> tuple[_Figures, _Figures]:
    r, x, c = (_column(net.line, name) for name in LINE)
    length, parallel = _column(net.line, "length_km"), _column(net.line, "parallel")
    b = 2 * math.pi * float(net.f_hz) * c * 1e-9 * base_ohm * length * parallel
    ohm = base_ohm * parallel
    near = (r * length / ohm, x * length / ohm, np.zeros_like(b), b)
    return near, near


def _impedances(net: Any, _: FloatArray, __: FloatArray) -> tuple[_Figures, _Figures]:
    r, x, r_far, x_far, g, b, g_far, b_far = (_column(net.impedance, name) for name in IMPEDANCE)
    size = _column(net.impedance, "sn_mva") / float(net.sn_mva)
    return (
        (r / size, x / size, 2 * g * size, 2 * b * size),
        (r_far / size, x_far / size, 2 * g_far * size, 2 * b_far * size),
    )


def _transformers(net: Any, _: FloatArray, gamma: FloatArray) -> tuple[_Figures, _Figures]:
    """T of leakage on both sides of the magnetising impedance; what earths a side is a shunt there."""
    r, x = (gamma[:, column_of(name)] for name in ("BR_R", "BR_X"))
    vk = _column(net.trafo, "vk_percent")
    vk0, vkr0, mag0, mag0_rx, share = (_column(net.trafo, name) for name in TRANSFORMER)
    vk0 = np.where(vk0 > _NO_FIGURE, vk0, vk)
    vkr0 = np.where(vkr0 > _NO_FIGURE, vkr0, _column(net.trafo, "vkr_percent"))
    per_percent = np.sqrt(r * r + x * x) / vk
    z, r0 = vk0 * per_percent, vkr0 * per_percent
    leakage = joined(r0, np.sqrt(np.maximum(z * z - r0 * r0, 0.0)))
    x_mag = z * mag0 / 100.0 / np.sqrt(mag0_rx * mag0_rx + 1.0)
    mag = joined(x_mag * mag0_rx, x_mag)
    high, low = leakage * share, leakage * (1.0 - share)
    both = multiply(high, low) + multiply(low, mag) + multiply(high, mag)
    groups = np.array([str(group).lower() for group in net.trafo["vector_group"]])
    opened = np.full(len(z), _OPEN, dtype=np.complex128)
    nothing = np.zeros(len(z), dtype=np.complex128)
    at_low = divide(high, both)
    through = divide(multiply(low, mag), multiply(both, low + mag))
    series = np.where(groups == "ynyn", divide(both, mag), opened)
    near = np.where(groups == "ynyn", divide(low, both), nothing)
    far = np.where(groups == "ynyn", at_low, nothing)
    far = np.where(groups == "dyn", divide(mag + high, both), far)
    far = np.where(groups == "yzn", _YZN * (through + at_low), far)
    return _figures(series, near), _figures(series, far)


def _figures(series: ComplexArray, shunt: ComplexArray) -> _Figures:
    return series.real, series.imag, 2 * shunt.real, 2 * shunt.imag


def _column(table: Any, name: str) -> FloatArray:
    """Figures of a column, 1 where an element that is out of service has none."""
    if name not in table:
        return np.ones(len(table))
    values = np.array([_number(value) for value in table[name]], dtype=np.float64)
    return np.where(np.isfinite(values), values, 1.0)


def _figure(row: Any, column: str, missing: float = math.nan) -> float:
    value = _number(getattr(row, column, missing))
    return missing if math.isnan(value) else value


def _number(value: object) -> float:
    return float(value) if hasattr(value, "__float__") else math.nan
