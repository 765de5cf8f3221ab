"""The IEEE 13-node and 123-node test feeders, from tables of figures to OpenDSS commands.

The tables are in `data/<feeder>/*.csv`; `data/README.md` says where the figures come from and what
each column means. Nothing here starts an engine: the caller feeds the commands to one, in order.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from importlib import resources

from dp_powerflow.errors import FeederError

BUILT_IN = ("ieee13", "ieee123", "ieee123-pv")

_WITH_PV = "-pv"
"""Suffix of a feeder with the PV systems of its table `pv`; without it they are left out."""

_NODE_OF_PHASE = {"A": "1", "B": "2", "C": "3"}
_LOAD_MODEL = {"PQ": 1, "Z": 2, "I": 5}

# The engine takes a switch as a line of this length; its resistance per length follows from `r_ohm`.
_SWITCH_LENGTH = 0.001

# Regulators that move one tap at a time need more rounds than the engine's default of 10.
_MAX_CONTROL_ITERATIONS = 100

_Row = dict[str, str]


def dss_commands(name: str) -> list[str]:
    """Return the OpenDSS commands that build a built-in feeder, without solving it.

    Parameters
    ----------
    name
        One of `BUILT_IN`.

    Returns
    -------
    list of str
        To be sent one at a time to the engine's text interface. They start with `Clear`, need no
        file, and end with voltage bases and bus coordinates set. Regulators stand at neutral with
        their controls on.

    Raises
    ------
    FeederError
        If there is no built-in feeder of that name.
    """
    if name not in BUILT_IN:
        raise FeederError(
            f"there is no built-in feeder '{name}'; choose one of: {', '.join(BUILT_IN)}.",
            code="feeder-unknown",
        )
    with_pv = name.endswith(_WITH_PV)
    name = name.removesuffix(_WITH_PV)
    (source,) = _table(name, "source")
    return [
        "Clear",
        f"Set DefaultBaseFrequency={source['frequency_hz']}",
        _circuit(name, source),
        *map(_transformer, _table(name, "transformers")),
        *(command for row in _table(name, "regulators") for command in _regulator(row)),
        *_line_codes(_table(name, "line_codes"), float(source["frequency_hz"])),
        *map(_line, _table(name, "lines")),
        *map(_switch, _table(name, "switches")),
        *map(_capacitor, _table(name, "capacitors")),
        *map(_load, _table(name, "loads")),
        *(map(_pv_system, _table(name, "pv")) if with_pv else ()),
        f"Set VoltageBases=[{source['voltage_bases_kv']}]",
        "CalcVoltageBases",
        f"Set MaxControlIter={_MAX_CONTROL_ITERATIONS}",
        *(f"SetBusXY bus={row['bus']} x={row['x']} y={row['y']}" for row in _table(name, "coordinates")),
    ]


def _table(feeder: str, table: str) -> list[_Row]:
    # `resources`, not a path: the package may be imported from an archive.
    text = resources.files(__package__).joinpath("data", feeder, f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _bus(bus: str, phases: str) -> str:
    """Name a bus with its nodes in the order of `phases`: ("632", "CB") → "632.3.2"."""
    return ".".join([bus, *(_NODE_OF_PHASE[phase] for phase in phases)])


def _properties(**values: str) -> str:
    """Join properties, leaving out the empty cells of a table."""
    return " ".join(f"{key}={value}" for key, value in values.items() if value)


def _circuit(name: str, row: _Row) -> str:
    properties = _properties(
        basekv=row["base_kv"],
        pu=row["pu"],
        angle=row["angle_deg"],
        r1=row["r1_ohm"],
        x1=row["x1_ohm"],
        r0=row["r0_ohm"],
        x0=row["x0_ohm"],
        MVAsc3=row["mva_sc3"],
        MVAsc1=row["mva_sc1"],
    )
    return f"New Circuit.{name} phases=3 bus1={_bus(row['bus'], 'ABC')} {properties}"


def _transformer(row: _Row) -> str:
    buses = f"{_bus(row['bus1'], row['phases'])} {_bus(row['bus2'], row['phases'])}"
    return (
        f"New Transformer.{row['name']} phases={len(row['phases'])} windings=2 buses=[{buses}]"
        f" conns=[{row['connection1']} {row['connection2']}] kVs=[{row['kv1']} {row['kv2']}]"
        f" kVAs=[{row['kva']} {row['kva']}] XHL={row['x_percent']}"
        f" %Rs=[{row['r1_percent']} {row['r2_percent']}] ppm_antifloat={row['ppm_antifloat']}"
    )


def _regulator(row: _Row) -> tuple[str, str]:
    windings = {"connection1": "wye", "connection2": "wye", "kv1": row["kv"], "kv2": row["kv"]}
    control = _properties(
        vreg=row["v_set"],
        band=row["band"],
        ptratio=row["pt_ratio"],
        CTprim=row["ct_primary_a"],
        R=row["r_volt"],
        X=row["x_volt"],
        delay=row["delay_s"],
        maxtapchange=row["max_tap_change"],
    )
    return (
        _transformer(row | windings),
        f"New RegControl.{row['control']} transformer={row['name']} winding=2 {control}",
    )


def _line_codes(rows: list[_Row], frequency_hz: float) -> Iterator[str]:
    """Yield one line code for every three rows (r, x, b) of the table."""
    codes: dict[str, dict[str, _Row]] = {}
    for row in rows:
        codes.setdefault(row["line_code"], {})[row["quantity"]] = row
    # The published figure is the susceptance in microsiemens; the engine wants nanofarads.
    nanofarad_per_microsiemens = 1e3 / (2.0 * math.pi * frequency_hz)
    for name, quantity in codes.items():
        r, x, b = quantity["r"], quantity["x"], quantity["b"]
        (unit,) = {row["unit"].partition("/")[2] for row in (r, x, b)}
        phases = 3 if r["m33"] else 2 if r["m22"] else 1
        yield (
            f"New LineCode.{name} nphases={phases} basefreq={frequency_hz!r} units={unit}"
            f" rmatrix={_triangle(r, phases)} xmatrix={_triangle(x, phases)}"
            f" cmatrix={_triangle(b, phases, nanofarad_per_microsiemens)}"
        )


def _triangle(row: _Row, phases: int, scale: float = 1.0) -> str:
    """Write a symmetric matrix as the engine reads it: the lower triangle, row by row."""
    lines = (
        " ".join(repr(scale * float(row[f"m{i}{j}"])) for j in range(1, i + 1)) for i in range(1, phases + 1)
    )
    return f"[{' | '.join(lines)}]"


def _line(row: _Row) -> str:
    phases = row["phases"]
    return (
        f"New Line.{row['name']} phases={len(phases)} bus1={_bus(row['bus1'], phases)}"
        f" bus2={_bus(row['bus2'], phases)} linecode={row['line_code']}"
        f" length={row['length']} units={row['unit']}"
    )


def _switch(row: _Row) -> str:
    phases = row["phases"]
    # An open switch ends on a bus of its own, so that the voltage across the gap can be read.
    far_bus = row["bus2"] if row["state"] == "closed" else f"{row['bus2']}_open"
    r = float(row["r_ohm"]) / _SWITCH_LENGTH
    # `switch=yes` comes first because it resets the impedances.
    return (
        f"New Line.{row['name']} phases={len(phases)} bus1={_bus(row['bus1'], phases)}"
        f" bus2={_bus(far_bus, phases)} switch=yes r1={r!r} r0={r!r} x1=0 x0=0 c1=0 c0=0"
        f" length={_SWITCH_LENGTH!r}"
    )


def _capacitor(row: _Row) -> str:
    phases = row["phases"]
    return (
        f"New Capacitor.{row['name']} phases={len(phases)} bus1={_bus(row['bus'], phases)}"
        f" kV={row['kv']} kvar={row['kvar']}"
    )


def _load(row: _Row) -> str:
    phases = row["phases"]
    # Two letters on a delta load are the two ends of one phase-to-phase element.
    count = 1 if row["connection"] == "delta" and len(phases) == 2 else len(phases)
    return (
        f"New Load.{row['name']} phases={count} bus1={_bus(row['bus'], phases)} conn={row['connection']}"
        f" model={_LOAD_MODEL[row['model']]} kV={row['kv']} kW={row['kw']} kvar={row['kvar']}"
    )


def _pv_system(row: _Row) -> str:
    phases = row["phases"]
    return (
        f"New PVSystem.{row['name']} phases={len(phases)} bus1={_bus(row['bus'], phases)} kV={row['kv']}"
        f" kVA={row['kva']} Pmpp={row['kw_peak']} PF=1 irradiance=1 %Cutin={row['cut_in_percent']}"
    )
