"""pandapower's branch model of a net → nodes, admittance matrix and lines."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.elementary import degrees, divide, joined, multiply, unit
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import GROUND, Feeder, Line
from dp_powerflow.grid.operation import Branch
from dp_powerflow.grid.pandapower.engine import ZERO_IMPEDANCE, Names, in_service
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Zero-sequence figures of a pandapower net: whether it has them, and the branches that they make.
#
# The models are as in `pandapower.runpp_3ph`: phases to earth, a source that is ideal in the positive
# sequence and has the short-circuit impedance of its external grid in the others, transformers of the
# vector groups YNyn, Dyn and Yzn or of groups that pass no zero-sequence current. Two figures are taken as
# their ohms say, where `runpp_3ph` (3.5) mixes bases: bus-bus switches, and Yzn where net.sn_mva is not 1.


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
"""R, X, G, B [p.u.]; G and B are twice the figures of one end."""


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


# Columns and bus types of the MATPOWER case format, which pandapower fills.
_BUS_TYPE, _GS, _BS, _VM, _VA, _BASE_KV = 1, 4, 5, 7, 8, 9
_FROM, _TO, _TAP, _SHIFT, _STATUS = 0, 1, 8, 9, 10
_LOAD, _SLACK = 1, 3
_NEGATIVE = 2
_NEXT_TO_NOTHING = 2.0**-28
"""Reactance of a tie [p.u. of the transformer's rating]."""

TwoPorts = tuple[ComplexArray, ComplexArray, ComplexArray, ComplexArray]
"""Ytt, Yff, Yft and Ytf of several branches."""


class Circuit:
    """Nodes and branches of a net: its buses, then open ends and star points, then the slack.

    Everything is in per unit on the net's own three-phase base.

    Attributes
    ----------
    nodes : names, "bus.1" and "emf(bus).1".
    buses : the same without phase and "emf".
    is_slack : (node,)
    base_kv : (node,) line-to-line base voltage [kV].
    v_slack : complex (slack,) voltages of the sources.
    node_of_bus : index of a bus in service in the net → its node.

    Parameters
    ----------
    trafo_model : "t" or "pi", the equivalent circuit of a transformer.
    detached : index of a transformer → side, "hv" or "lv", at which it gets its own node, "tap(name)",
        tied to its bus by next to no impedance.

    Admittances have the same bits on every processor but for tap changers with a phase angle, whose sine is
    NumPy's, inside pandapower.
    """

    def __init__(
        self, net: Any, names: Names, *, trafo_model: str, detached: Mapping[int, str] | None = None
    ) -> None:
        self.net = net
        self._names = names
        self._bus: FloatArray = np.asarray(net._ppc["bus"]).real
        self._branch: FloatArray = np.asarray(net._ppc["branch"]).real
        self._tied: dict[int, str] = {}
        for index, side in (detached or {}).items():
            self._detach(index, side)
        self._gamma: FloatArray = self._branch.copy()
        if trafo_model == "t":
            self._to_pi()
        row_of_bus = np.asarray(net._pd2ppc_lookups["bus"], dtype=np.int64)
        buses = net.bus.index[net.bus.in_service.astype(bool)]
        alive = row_of_bus[buses]
        rows = _connected(self._bus, self._branch, alive, row_of_bus[net.bus.index])
        slack: BoolArray = self._bus[rows, _BUS_TYPE] == _SLACK
        kept: IntArray = np.concatenate([rows[~slack], rows[slack]])
        self.is_slack: BoolArray = np.sort(slack)
        self.base_kv: FloatArray = self._bus[kept, _BASE_KV]
        vm, va = self._bus[kept[self.is_slack]][:, [_VM, _VA]].T
        self.v_slack: ComplexArray = vm * unit(va)
        self._kept = kept
        self._node_of_row = {int(row): node for node, row in enumerate(kept)}
        self.node_of_bus = {
            int(bus): self._node_of_row[int(row)] for bus, row in zip(buses, alive, strict=True)
        }
        self._active = [
            row
            for row, (status, *ends) in enumerate(self._branch[:, [_STATUS, _FROM, _TO]])
            if status == 1 and all(end in self._node_of_row for end in ends)
        ]
        self.buses: tuple[str, ...] = tuple(self._named())
        self.nodes: tuple[str, ...] = tuple(
            f"emf({bus}).1" if slack else f"{bus}.1"
            for bus, slack in zip(self.buses, self.is_slack, strict=True)
        )

    def _detach(self, index: int, side: str) -> None:
        first, _ = self.net._pd2ppc_lookups["branch"]["trafo"]
        row = int(first) + self.net.trafo.index.get_loc(index)
        end = _TO if side == "lv" else _FROM
        bus = self._bus[int(self._branch[row, end])].copy()
        tie = np.zeros(self._branch.shape[1])
        tie[[_FROM, _TO, _STATUS]] = self._branch[row, end], len(self._bus), self._branch[row, _STATUS]
        rated, parallel = (float(self.net.trafo.at[index, column]) for column in ("sn_mva", "parallel"))
        tie[column_of("BR_X")] = _NEXT_TO_NOTHING * float(self.net.sn_mva) / (rated * parallel)
        bus[[_BUS_TYPE, _GS, _BS]] = _LOAD, 0.0, 0.0
        self._tied[len(self._bus)] = f"tap({self._names.of('trafo', index)})"
        self._branch[row, end] = len(self._bus)
        self._bus = np.vstack([self._bus, bus])
        self._branch = np.vstack([self._branch, tie])

    def admittance(self, moved: Mapping[tuple[int, int], int] | None = None) -> sp.csr_matrix:
        """Y: complex (node, node).

        Parameters
        ----------
        moved : (row of the table of branches, 0 or 1 for its end) → node that this end has instead of its
            own; nodes from len(nodes) on are new ones.
        """
        ends = self.ends.copy()
        position = {row: k for k, row in enumerate(self._active)}
        for (row, end), node in (moved or {}).items():
            ends[position[row], end] = node
        n = max(len(self.nodes), int(ends.max(initial=-1)) + 1)
        y = sp.csr_matrix(self.entries(self.two_ports(), ends), shape=(n, n))
        y.sum_duplicates()
        y.eliminate_zeros()
        return y

    def entries(self, ports: TwoPorts, ends: IntArray) -> tuple[ComplexArray, tuple[IntArray, IntArray]]:
        """Values, rows and columns that add up to Y; the shunts of the buses are the last of them."""
        tt, ff, ft, tf = ports
        first, second, own = ends[:, 0], ends[:, 1], np.arange(len(self.nodes))
        shunt = self._bus[self._kept][:, [_GS, _BS]] / float(self.net.sn_mva)
        values = np.concatenate([ff, ft, tf, tt, joined(shunt[:, 0], shunt[:, 1])])
        rows = np.concatenate([first, first, second, second, own])
        columns = np.concatenate([first, second, first, second, own])
        return values, (rows, columns)

    @cached_property
    def ends(self) -> IntArray:
        """(active branch, 2) nodes."""
        return np.array([self._ends(row) for row in self._active], dtype=np.int64).reshape(-1, 2)

    def two_ports(self, sequence: int = 1) -> TwoPorts:
        """Ytt, Yff, Yft and Ytf of every active branch, as `pandapower.pypower.makeYbus` defines them.

        Parameters
        ----------
        sequence : 1, or 2 for the negative one, where angles turn the other way, or 0 for the zero one.
        """
        table = self._branch
        if sequence == 0:
            table = zero_sequence(self.net, self._bus[:, _BASE_KV], self._branch, self._gamma)
        return self._two_ports(table[self._active], -1.0 if sequence == _NEGATIVE else 1.0)

    def _two_ports(self, branch: FloatArray, turn: float) -> TwoPorts:
        def column(name: str) -> FloatArray:
            return np.asarray(branch[:, column_of(name)])

        if np.any((column("BR_R") == 0.0) & (column("BR_X") == 0.0)):
            raise FeederError(ZERO_IMPEDANCE, code="feeder-zero-impedance")
        one = np.ones(len(branch), dtype=np.complex128)
        r, x, g, b = (column(name) for name in SERIES_AND_SHUNT)
        r_far, x_far, g_far, b_far = (column(f"{name}_ASYM") for name in SERIES_AND_SHUNT)
        from_side = divide(one, joined(r, x))
        to_side = divide(one, joined(r + r_far, x + x_far))
        charging = joined(g / 2, b / 2)
        far_charging = joined((g + g_far) / 2, (b + b_far) / 2)
        ratio = np.where(branch[:, _TAP] == 0.0, 1.0, branch[:, _TAP])
        tap = ratio * unit(turn * branch[:, _SHIFT])
        near = from_side + charging
        return (
            to_side + far_charging,
            joined(near.real / (ratio * ratio), near.imag / (ratio * ratio)),
            -divide(from_side, np.conj(tap)),
            -divide(to_side, tap),
        )

    def _to_pi(self) -> None:
        """The T of every transformer with a shunt branch → a π, in the table of branches."""
        for kind in ("trafo", "trafo3w"):
            first, end = (int(k) for k in self.net._pd2ppc_lookups["branch"].get(kind, (0, 0)))
            table, rows = self.net[kind], self._branch[first:end]
            r, x, g, b = (rows[:, column_of(name)].copy() for name in SERIES_AND_SHUNT)
            shunted = (g != 0.0) | (b != 0.0)
            if not shunted.any():
                continue
            ratios = [
                np.resize(np.asarray(table[name], dtype=np.float64), len(rows))
                if kind == "trafo" and name in table
                else np.full(len(rows), 0.5)
                for name in ("leakage_resistance_ratio_hv", "leakage_reactance_ratio_hv")
            ]
            high = joined(r * ratios[0], x * ratios[1])[shunted]
            low = joined(r * (1 - ratios[0]), x * (1 - ratios[1]))[shunted]
            across = joined(g, b)[shunted]
            # With z = z_h + z_l + z_h·z_l·y: series z, shunts z_l·y/z and z_h·y/z.
            series = high + low + multiply(multiply(high, low), across)
            near = divide(multiply(low, across), series)
            far = divide(multiply(high, across), series)
            for name, values in (
                ("BR_R", series.real),
                ("BR_X", series.imag),
                # makeYbus halves charging.
                ("BR_G", 2 * near.real),
                ("BR_B", 2 * near.imag),
                ("BR_G_ASYM", 2 * far.real - 2 * near.real),
                ("BR_B_ASYM", 2 * far.imag - 2 * near.imag),
            ):
                rows[shunted, column_of(name)] = values

    def angle_deg(self) -> FloatArray:
        """(node,) angle of the sources plus the vector groups on the way from them [°]; 0 on islands."""
        across: dict[int, list[tuple[int, float]]] = {}
        for row in self._active:
            first, second = self._ends(row)
            shift = float(self._branch[row, _SHIFT])
            across.setdefault(first, []).append((second, -shift))
            across.setdefault(second, []).append((first, shift))
        angle = dict(zip(np.flatnonzero(self.is_slack).tolist(), degrees(self.v_slack).tolist(), strict=True))
        queue = deque(angle)
        while queue:
            node = queue.popleft()
            for other, shift in across.get(node, ()):
                if other not in angle:
                    angle[other] = angle[node] + shift
                    queue.append(other)
        return np.array([angle.get(node, 0.0) for node in range(len(self.nodes))])

    def lines(self, primitives: ComplexArray) -> tuple[Line, ...]:
        """Lines, and bus-bus switches that have an impedance.

        Parameters
        ----------
        primitives : complex (active branch, 2·m, 2·m) on the feeder's base, of m phases; node k of the
            circuit is then nodes m·k to m·k + m − 1.
        """
        m = primitives.shape[1] // 2
        position = {row: k for k, row in enumerate(self._active)}
        lines: list[Line] = []
        for kind in ("line", "switch"):
            table = self.net[kind]
            codes = dict(zip(table.index, table["std_type"], strict=True)) if "std_type" in table else {}
            km = dict(zip(table.index, table["length_km"], strict=True)) if kind == "line" else {}
            for row, index in self.rows_of(kind):
                primitive = primitives[position[row]]
                first, second = (tuple(range(m * end, m * end + m)) for end in self._ends(row))
                nodes = first + second
                if first == second:
                    # Bridged by a closed switch: its series part carries no current.
                    nodes = first
                    primitive = primitive[:m, :m] + primitive[:m, m:] + primitive[m:, :m] + primitive[m:, m:]
                code = codes.get(index)
                lines.append(
                    Line(
                        name=self._names.of(kind, index),
                        nodes=nodes,
                        primitive=primitive,
                        length_m=float(km[index]) * 1000.0 if kind == "line" else None,
                        is_switch=kind == "switch",
                        code=code if isinstance(code, str) else None,
                    )
                )
        return tuple(lines)

    def coordinates(self) -> dict[str, tuple[float, float]]:
        """Bus part of a node's name → x and y, where the net states them."""
        places: dict[str, tuple[float, float]] = {}
        for bus, node in self.node_of_bus.items():
            point = self.net.bus["geo"].get(bus) if "geo" in self.net.bus else None
            if isinstance(point, str) and point:
                x, y = json.loads(point)["coordinates"][:2]
                places.setdefault(self.nodes[node].rsplit(".", 1)[0], (float(x), float(y)))
        return places

    def end_of(self, row: int, end: int) -> int:
        """Node of one end, 0 or 1, of a branch."""
        return self._ends(row)[end]

    def _ends(self, row: int) -> tuple[int, int]:
        first, second = self._branch[row, [_FROM, _TO]]
        return self._node_of_row[int(first)], self._node_of_row[int(second)]

    def rows_of(self, kind: str) -> Iterator[tuple[int, int]]:
        """Pairs (row of the branch table, index in the net) of the energised elements of a kind."""
        first, end = self.net._pd2ppc_lookups["branch"].get(kind, (0, 0))
        table = self.net[kind]
        if kind == "switch":
            table = table[np.asarray(self.net._impedance_bb_switches, dtype=np.bool_)]
        active = set(self._active)
        for row in range(int(first), int(end)):
            if row in active:
                # A three-winding transformer has three rows: all high, all medium, all low sides.
                yield row, int(table.index[(row - int(first)) % len(table)])

    def _named(self) -> list[str]:
        """Bus name of every node: of its first bus, or of the branch whose open end or star point it is."""
        named: dict[int, str] = {}
        sources = [row.bus for kind in ("ext_grid", "gen") for row in in_service(self.net, kind)]
        for bus in [bus for bus in sources if bus in self.node_of_bus] + list(self.node_of_bus):
            named.setdefault(self.node_of_bus[bus], self._names.of("bus", bus))
        stars = self.net._pd2ppc_lookups.get("aux", {}).get("trafo3w", ())
        for star, index in zip(stars, self.net.trafo3w.index, strict=False):
            row = int(self.net._pd2ppc_lookups["bus"][star])
            if row in self._node_of_row:
                named[self._node_of_row[row]] = f"star({self._names.of('trafo3w', index)})"
        named |= {
            self._node_of_row[row]: name for row, name in self._tied.items() if row in self._node_of_row
        }
        for kind in ("line", "trafo", "trafo3w"):
            for row, index in self.rows_of(kind):
                for node in self._ends(row):
                    named.setdefault(node, f"open({self._names.of(kind, index)})")
        count = Counter(named.values())
        return [named[k] if count[named[k]] == 1 else f"{named[k]} {k}" for k in range(len(self._kept))]


def _connected(bus: FloatArray, branch: FloatArray, alive: IntArray, declared: IntArray) -> IntArray:
    """Rows of the buses in service and of the open ends and star points that hang on them.

    pandapower marks what no source reaches as dead; here it stays, so that islands are reported.
    """
    usable = np.ones(len(bus), dtype=np.bool_)
    usable[declared] = False
    usable[alive] = True
    ends = branch[branch[:, _STATUS] == 1][:, [_FROM, _TO]].astype(np.int64)
    ends = ends[usable[ends].all(axis=1)]
    graph = sp.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(bus), len(bus)))
    _, part = connected_components(graph, directed=False)
    hanging = np.flatnonzero(usable & np.isin(part, part[alive]))
    return np.array(list(dict.fromkeys([*alive.tolist(), *hanging.tolist()])), dtype=np.int64)


# ----------------------------------------------------------------------------------------------------------
# Nodes and admittances of a pandapower net: a node per bus, or one for each of its three phases.


PHASES = 3

_ANGLE_STEP_DEG = 30.0
_PHASE_ANGLES_DEG = (0.0, -120.0, 120.0)
_NEAR_IDEAL = 2.0**-20
"""Positive-sequence impedance of a source over its negative one; in `runpp_3ph` it is 0."""
_SEQUENCES = (0, 1, 2)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A feeder without what is connected to it.

    Attributes
    ----------
    nodes_of_bus : index of a bus of the net → its node, or the nodes of its three phases.
    """

    feeder: Feeder
    nodes_of_bus: Mapping[int, tuple[int, ...]]

    def is_source(self, bus: int) -> bool:
        """Whether the bus itself is an ideal source."""
        return self.nodes_of_bus[bus][0] in self.feeder.slack

    def branches(self, bus: int, *, delta: bool, phase: int | None = None) -> tuple[Branch, ...]:
        """Where an element is connected: to all phases of a bus, or to one of them.

        In a delta phase 0 is from the first phase to the second, 1 from the second to the third.
        """
        nodes = self.nodes_of_bus[bus]
        if len(nodes) == 1:
            return ((nodes[0], GROUND),)
        pairs = [(node, nodes[(k + 1) % PHASES] if delta else GROUND) for k, node in enumerate(nodes)]
        return tuple(pairs) if phase is None else (pairs[phase],)

    def branch_kv(self, branch: Branch) -> float:
        """Rated voltage between the two ends of a branch [kV]."""
        line_to_neutral = float(self.feeder.base_kv[branch[0]])
        return line_to_neutral if branch[1] == GROUND else line_to_neutral * float(np.sqrt(PHASES))


def balanced(circuit: Circuit, base_mva: float) -> Skeleton:
    """One node per bus stands for its three phases.

    Parameters
    ----------
    base_mva : power base per phase [MVA].
    """
    scale = float(circuit.net.sn_mva) / (PHASES * base_mva)
    tt, ff, ft, tf = (part * scale for part in circuit.two_ports())
    primitives = np.stack([np.stack([ff, ft], axis=1), np.stack([tf, tt], axis=1)], axis=1)
    feeder = Feeder(
        name="",
        nodes=circuit.nodes,
        base_kv=circuit.base_kv / np.sqrt(PHASES),
        base_mva=PHASES * base_mva,
        y=sp.csc_array(circuit.admittance() * scale),
        slack=np.flatnonzero(circuit.is_slack),
        v_slack=circuit.v_slack,
        nominal_angle_deg=_nominal(circuit.angle_deg()),
        lines=circuit.lines(primitives),
        loads=(),
        pv=(),
    )
    nodes_of_bus = {bus: (node,) for bus, node in circuit.node_of_bus.items()}
    return Skeleton(feeder, nodes_of_bus)


def three_phase(circuit: Circuit, base_mva: float) -> Skeleton:
    """A node per phase and bus; the sources are three nodes each, behind their impedances.

    Parameters
    ----------
    base_mva : power base per phase [MVA].
    """
    scale = float(circuit.net.sn_mva) / (PHASES * base_mva)
    ports = [circuit.two_ports(sequence) for sequence in _SEQUENCES]
    n, sources = len(circuit.nodes), np.flatnonzero(circuit.is_slack)
    behind = n + np.arange(len(sources))
    sequences = [circuit.entries(each, circuit.ends) for each in ports]
    rows, columns = sequences[0][1]
    blocks = _in_phases(*(values * scale for values, _ in sequences))
    tie = _source_ties(circuit, base_mva, sources)
    y = _spread(
        np.concatenate([blocks, tie, -tie, -tie, tie]),
        np.concatenate([rows, sources, sources, behind, behind]),
        np.concatenate([columns, sources, behind, sources, behind]),
        n + len(sources),
    )
    names = [*circuit.buses, *(f"emf({circuit.buses[k]})" for k in sources)]
    angles = np.concatenate([circuit.angle_deg(), circuit.angle_deg()[sources]])
    base_kv = np.concatenate([circuit.base_kv, circuit.base_kv[sources]]) / np.sqrt(PHASES)
    turn = unit(np.array(_PHASE_ANGLES_DEG))
    feeder = Feeder(
        name="",
        nodes=tuple(f"{name}.{phase + 1}" for name in names for phase in range(PHASES)),
        base_kv=np.repeat(base_kv, PHASES),
        base_mva=base_mva,
        y=y,
        slack=np.arange(PHASES * n, PHASES * (n + len(sources))),
        v_slack=np.concatenate([multiply(np.full(PHASES, v), turn) for v in circuit.v_slack]),
        nominal_angle_deg=_nominal(np.add.outer(angles, np.array(_PHASE_ANGLES_DEG)).ravel()),
        lines=circuit.lines(_primitives(ports, scale)),
        loads=(),
        pv=(),
    )
    nodes_of_bus = {
        bus: tuple(range(PHASES * node, PHASES * (node + 1))) for bus, node in circuit.node_of_bus.items()
    }
    return Skeleton(feeder, nodes_of_bus)


def _in_phases(y0: ComplexArray, y1: ComplexArray, y2: ComplexArray) -> ComplexArray:
    """Complex (k, 3, 3) admittances between phases of k admittances in sequences, T·diag(y)·T⁻¹."""
    forward, backward = (np.full(len(y0), phasor) for phasor in unit(np.array(_PHASE_ANGLES_DEG))[1:])
    own = (y0 + y1 + y2) / PHASES
    after = (y0 + multiply(y1, forward) + multiply(y2, backward)) / PHASES
    before = (y0 + multiply(y1, backward) + multiply(y2, forward)) / PHASES
    rows = ((own, before, after), (after, own, before), (before, after, own))
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def _primitives(ports: list[TwoPorts], scale: float) -> ComplexArray:
    """Complex (branch, 6, 6) of branches given by their two-ports in the three sequences."""
    tt, ff, ft, tf = (_in_phases(*(each[k] * scale for each in ports)) for k in range(4))
    return np.concatenate([np.concatenate([ff, ft], axis=2), np.concatenate([tf, tt], axis=2)], axis=1)


def _source_ties(circuit: Circuit, base_mva: float, sources: IntArray) -> ComplexArray:
    """Complex (source, 3, 3) admittance between every source and its bus."""
    position = {int(node): k for k, node in enumerate(sources)}
    y0, y1, y2 = np.zeros((3, len(sources)), dtype=np.complex128)
    for bus, z0, z2 in source_impedances(circuit.net, base_mva):
        k = position[circuit.node_of_bus[bus]]
        zero, negative = divide(np.ones(2, dtype=np.complex128), np.array([z0, z2]))
        y0[k] += zero
        y1[k] += negative / _NEAR_IDEAL
        y2[k] += negative
    return _in_phases(y0, y1, y2)


def _spread(blocks: ComplexArray, rows: IntArray, columns: IntArray, size: int) -> sp.csc_array:
    """Sum of blocks, each at its row and column of blocks; entries that are zero are left out."""
    phase = np.arange(PHASES)
    at = np.broadcast_to(PHASES * rows[:, None, None] + phase[:, None], blocks.shape)
    to = np.broadcast_to(PHASES * columns[:, None, None] + phase, blocks.shape)
    y = sp.csr_matrix((blocks.ravel(), (at.ravel(), to.ravel())), shape=(PHASES * size,) * 2)
    y.sum_duplicates()
    y.eliminate_zeros()
    return sp.csc_array(y)


def _nominal(angle_deg: FloatArray) -> FloatArray:
    """The nearest multiples of 30°, in (−180°, 180°]."""
    steps = np.round(angle_deg / _ANGLE_STEP_DEG)
    return np.asarray(180.0 - np.mod(180.0 - steps * _ANGLE_STEP_DEG, 360.0))
