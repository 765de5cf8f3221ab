"""pandapower's branch model of a net → nodes, admittance matrix and lines."""

from __future__ import annotations

import importlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.elementary import degrees, divide, joined, multiply, unit
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder, Line
from dp_powerflow.grid.pandapower.engine import ZERO_IMPEDANCE, Names, in_service
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, IntArray

SERIES_AND_SHUNT = ("BR_R", "BR_X", "BR_G", "BR_B")


def column_of(name: str) -> int:
    """Number of a column of pandapower's table of branches."""
    return int(getattr(importlib.import_module("pandapower.pypower.idx_brch"), name))


# Columns and bus types of the MATPOWER case format, which pandapower fills.
_BUS_TYPE, _GS, _BS, _VM, _VA, _BASE_KV = 1, 4, 5, 7, 8, 9
_FROM, _TO, _TAP, _SHIFT, _STATUS = 0, 1, 8, 9, 10
_LOAD, _SLACK = 1, 3
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
    detached : index of a transformer → side, "hv" or "lv", at which it gets a node of its own, "tap(name)",
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
        ends = np.array([self._ends(row) for row in self._active], dtype=np.int64).reshape(-1, 2)
        position = {row: k for k, row in enumerate(self._active)}
        for (row, end), node in (moved or {}).items():
            ends[position[row], end] = node
        n = max(len(self.nodes), int(ends.max(initial=-1)) + 1)
        tt, ff, ft, tf = self._two_ports()
        first, second, own = ends[:, 0], ends[:, 1], np.arange(len(self.nodes))
        shunt = self._bus[self._kept][:, [_GS, _BS]] / float(self.net.sn_mva)
        values = np.concatenate([ff, ft, tf, tt, joined(shunt[:, 0], shunt[:, 1])])
        rows = np.concatenate([first, first, second, second, own])
        columns = np.concatenate([first, second, first, second, own])
        y = sp.csr_matrix((values, (rows, columns)), shape=(n, n))
        y.sum_duplicates()
        y.eliminate_zeros()
        return y

    def _two_ports(self) -> TwoPorts:
        """Ytt, Yff, Yft and Ytf of every active branch, as `pandapower.pypower.makeYbus` defines them."""
        branch = self._branch[self._active]

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
        tap = ratio * unit(branch[:, _SHIFT])
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

    def lines(self, scale: float) -> tuple[Line, ...]:
        """Lines, and bus-bus switches that have an impedance.

        Parameters
        ----------
        scale : what brings admittances to the feeder's base.
        """
        tt, ff, ft, tf = (part * scale for part in self._two_ports())
        primitives = np.stack([np.stack([ff, ft], axis=1), np.stack([tf, tt], axis=1)], axis=1)
        position = {row: k for k, row in enumerate(self._active)}
        lines: list[Line] = []
        for kind in ("line", "switch"):
            table = self.net[kind]
            codes = dict(zip(table.index, table["std_type"], strict=True)) if "std_type" in table else {}
            km = dict(zip(table.index, table["length_km"], strict=True)) if kind == "line" else {}
            for row, index in self.rows_of(kind):
                primitive, nodes = primitives[position[row]], self._ends(row)
                bridged = nodes[0] == nodes[1]  # by a closed switch: its series part carries no current
                code = codes.get(index)
                lines.append(
                    Line(
                        name=self._names.of(kind, index),
                        nodes=nodes[:1] if bridged else nodes,
                        primitive=primitive.sum(keepdims=True) if bridged else primitive,
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


PHASES = 3
"""Of a bus, which one node stands for."""
_ANGLE_STEP_DEG = 30.0


def balanced(circuit: Circuit, base_mva: float) -> Feeder:
    """A feeder without what is connected to it: one node per bus stands for its three phases.

    Parameters
    ----------
    base_mva : power base per phase [MVA].
    """
    scale = float(circuit.net.sn_mva) / (PHASES * base_mva)
    steps = np.round(circuit.angle_deg() / _ANGLE_STEP_DEG)
    return Feeder(
        name="",
        nodes=circuit.nodes,
        base_kv=circuit.base_kv / np.sqrt(PHASES),
        base_mva=PHASES * base_mva,
        y=sp.csc_array(circuit.admittance() * scale),
        slack=np.flatnonzero(circuit.is_slack),
        v_slack=circuit.v_slack,
        # The nearest multiples of 30°, in (−180°, 180°].
        nominal_angle_deg=180.0 - np.mod(180.0 - steps * _ANGLE_STEP_DEG, 360.0),
        lines=circuit.lines(scale),
        loads=(),
        pv=(),
    )
