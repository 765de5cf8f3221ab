"""Scenarios of a published twin in the gridfm-datakit layout, for graph models (`docs/gridfm.md`).

For twin mode only. The tables hold the whole network and, in float64 so that the published power balances,
the loads beside the voltages that they cause. On a published twin all of it is post-processing, low-order
bits included. On a true network it would be the secret itself: never use it there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow._bits.elementary import degrees, modulus, multiply, unit
from dp_powerflow.corpus.gridfm.schema import (
    COUNT_FILE,
    SETTINGS,
    SETTINGS_FILE,
    SN_MVA,
    TABLES,
    Column,
    GridfmTables,
    encode_table,
    file_name,
    pieces,
    tables_of,
)
from dp_powerflow.corpus.storage import Location, location, put, storing
from dp_powerflow.errors import CorpusError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

MIN_VM_PU, MAX_VM_PU = 0.9, 1.1
"""Voltage limits written for every bus: constants, since a feeder states none."""
GENERATOR_LIMIT_MW = 1e4
"""Limit written for the sources, which have none."""
ANGLE_LIMIT_DEG = 360.0
"""Angle limit written for the branches: none."""


class GridfmWriter:
    """Writes blocks of scenarios, one file per table, block and partition; for twin mode only.

    It holds no open file and can be sent to worker processes. Blocks may be written in any order by any
    process: the bytes of a file depend on the scenarios in it and on the network alone.

    Parameters
    ----------
    directory : where the tables go; made when needed.
    feeder : the published twin, never a true network.
    order : (node,) bus k is node order[k] of the feeder; None keeps the order of the feeder.
    sn_mva : power base of the tables [MVA]; other than 100 has to be told to every tool of gridfm-datakit.
    vn_kv : (node,) base voltages to publish [kV], in the order of the feeder; None writes ones.
    """

    def __init__(
        self,
        directory: Location,
        feeder: Feeder,
        *,
        order: IntArray | None = None,
        sn_mva: float = SN_MVA,
        vn_kv: FloatArray | None = None,
    ) -> None:
        self.directory = location(directory)
        self.tables: GridfmTables = tables_of(feeder, order=order, sn_mva=sn_mva, vn_kv=vn_kv)

    def write_block(
        self, first_scenario: int, load: ComplexArray, generation: ComplexArray | None, v: ComplexArray
    ) -> dict[str, str]:
        """Write scenarios `first_scenario` and following; relative names of their files and their SHA-256.

        Parameters
        ----------
        load : complex (scenario, retained) power drawn [p.u. of the feeder].
        generation : complex (scenario, retained) power injected by inverters [p.u.], after volt-var.
        v : complex (scenario, node) voltages of all nodes, slack included [p.u.], in the order of the feeder.
        """
        demand, static = self._checked(first_scenario, load, generation, v)
        voltages = np.asarray(v, dtype=np.complex128)[:, self.tables.order]
        written = {}
        for piece in pieces(first_scenario, len(voltages)):
            part = slice(piece.start - first_scenario, piece.stop - first_scenario)
            for table, content in _encoded(self.tables, piece, demand[part], static[part], voltages[part]):
                name = file_name(table, piece)
                with storing(self.directory):
                    written[name] = put(self.directory / name, content, make_folder=True)
        return written

    def write_index(self, n_scenarios: int) -> dict[str, str]:
        """Write the number of scenarios and the mode (power flow), once all blocks are there."""
        if n_scenarios < 1:
            raise CorpusError("a gridfm directory needs at least one scenario")
        with storing(self.directory):
            return {
                name: put(self.directory / name, content, make_folder=True)
                for name, content in ((COUNT_FILE, str(n_scenarios).encode()), (SETTINGS_FILE, SETTINGS))
            }

    def has_block(self, first_scenario: int, count: int) -> bool:
        """Whether a block is there: a file has its name only once it is whole."""
        return all((self.directory / name).exists() for name in self.block_names(first_scenario, count))

    @staticmethod
    def block_names(first_scenario: int, count: int) -> tuple[str, ...]:
        """Relative names of the files of a block."""
        return tuple(file_name(table, piece) for piece in pieces(first_scenario, count) for table in TABLES)

    @staticmethod
    def names(n_scenarios: int, block: int) -> tuple[str, ...]:
        """Relative names, sorted, of all files of `n_scenarios` written in blocks of `block` scenarios."""
        if n_scenarios < 1 or block < 1:
            raise CorpusError(
                "the numbers of scenarios of a gridfm directory and of a block must be positive"
            )
        blocks = [(first, min(block, n_scenarios - first)) for first in range(0, n_scenarios, block)]
        files = [name for first, count in blocks for name in GridfmWriter.block_names(first, count)]
        return tuple(sorted([*files, COUNT_FILE, SETTINGS_FILE]))

    def _checked(
        self, first_scenario: int, load: ComplexArray, generation: ComplexArray | None, v: ComplexArray
    ) -> tuple[ComplexArray, ComplexArray]:
        """Complex (scenario, bus) net demand and static generation [MW + j·Mvar]."""
        retained, n_bus = len(self.tables.retained), self.tables.n_bus
        if first_scenario < 0:
            raise CorpusError("scenarios of a gridfm directory are numbered from 0")
        given = {"load": (load, retained), "v": (v, n_bus)}
        if generation is not None:
            given["generation"] = (generation, retained)
        for name, (array, width) in given.items():
            if array.shape != (len(load), width) or len(load) == 0:
                raise CorpusError(
                    f"{name} has shape {array.shape}; a block of scenarios needs "
                    f"({len(load) or 'at least 1'}, {width})"
                )
            if not np.isfinite(array).all():
                raise CorpusError(
                    f"{name} holds NaN or infinite values; a scenario without solution is no data"
                )
        static = np.zeros((len(load), n_bus), dtype=np.complex128)
        if generation is not None:
            static[:, self.tables.retained] = generation * self.tables.base_mva
        demand = 0.0 - static  # not -static: there is one zero
        demand[:, self.tables.retained] += load * self.tables.base_mva
        return demand, static


@dataclass(frozen=True, eq=False)
class _Flows:
    """Powers that follow from the voltages as written [MW + j·Mvar], complex (scenario, branch or source)."""

    at_from: ComplexArray
    at_to: ComplexArray
    source: ComplexArray


def _flows(tables: GridfmTables, demand: ComplexArray, vm: FloatArray, va_deg: FloatArray) -> _Flows:
    # From magnitudes and angles, not from v: a consumer who computes them again gets the same.
    v = vm * unit(va_deg)
    branches = tables.branches
    v_from, v_to = v[:, branches.from_bus], v[:, branches.to_bus]
    i_from = multiply(branches.yff, v_from) + multiply(branches.yft, v_to)
    i_to = multiply(branches.ytf, v_from) + multiply(branches.ytt, v_to)
    i_source = np.asarray((tables.y[tables.reference, :] @ v.T).T)
    pairs = ((v_from, i_from), (v_to, i_to), (v[:, tables.reference], i_source))
    at_from, at_to, injected = (tables.sn_mva * multiply(u, np.conj(i)) for u, i in pairs)
    return _Flows(at_from, at_to, injected + demand[:, tables.reference])


def _encoded(
    tables: GridfmTables, piece: range, demand: ComplexArray, static: ComplexArray, v: ComplexArray
) -> list[tuple[str, bytes]]:
    """Name and bytes of the four tables for the scenarios of one piece; arrays (scenario, bus)."""
    vm, va = modulus(v), degrees(v)
    flows = _flows(tables, demand, vm, va)
    generated = np.zeros_like(demand)
    generated[:, tables.reference] = flows.source
    is_reference = np.zeros(tables.n_bus, dtype=np.int8)
    is_reference[tables.reference] = 1
    bus: dict[str, Column] = {
        "bus": np.arange(tables.n_bus),
        **_parts("Pd", "Qd", demand),
        **_parts("Pg", "Qg", generated),
        "Vm": vm,
        "Va": va,
        "PQ": 1 - is_reference,
        "PV": 0,
        "REF": is_reference,
        "vn_kv": tables.vn_kv,
        "min_vm_pu": MIN_VM_PU,
        "max_vm_pu": MAX_VM_PU,
        **_parts("GS", "BS", tables.shunt),
        **_parts("Psgen", "Qsgen", static),
    }
    gen: dict[str, Column] = {
        "idx": np.arange(len(tables.reference)),
        "bus": tables.reference,
        **_parts("p_mw", "q_mvar", flows.source),
        **dict.fromkeys(("min_p_mw", "min_q_mvar"), -GENERATOR_LIMIT_MW),
        **dict.fromkeys(("max_p_mw", "max_q_mvar"), GENERATOR_LIMIT_MW),
        **dict.fromkeys(("cp0_eur", "cp1_eur_per_mw", "cp2_eur_per_mw2"), 0.0),
        **dict.fromkeys(("in_service", "is_slack_gen"), 1),
    }
    rows = np.repeat(np.arange(tables.n_bus), np.diff(tables.y.indptr))
    y_bus: dict[str, Column] = {"index1": rows, "index2": tables.y.indices, **_parts("G", "B", tables.y.data)}
    branch = _branch_columns(tables, flows)
    return [
        ("bus_data", encode_table("bus_data", piece, tables.n_bus, bus)),
        ("gen_data", encode_table("gen_data", piece, len(tables.reference), gen)),
        ("branch_data", encode_table("branch_data", piece, len(tables.branches.r), branch)),
        ("y_bus_data", encode_table("y_bus_data", piece, len(rows), y_bus)),
    ]


def _branch_columns(tables: GridfmTables, flows: _Flows) -> dict[str, Column]:
    branches = tables.branches
    return {
        "idx": np.arange(len(branches.r)),
        "from_bus": branches.from_bus,
        "to_bus": branches.to_bus,
        **_parts("pf", "qf", flows.at_from),
        **_parts("pt", "qt", flows.at_to),
        "r": branches.r,
        "x": branches.x,
        "b": 0.0,
        **_parts("Yff_r", "Yff_i", branches.yff),
        **_parts("Yft_r", "Yft_i", branches.yft),
        **_parts("Ytf_r", "Ytf_i", branches.ytf),
        **_parts("Ytt_r", "Ytt_i", branches.ytt),
        "tap": branches.tap,
        "shift": branches.shift_deg,
        "ang_min": -ANGLE_LIMIT_DEG,
        "ang_max": ANGLE_LIMIT_DEG,
        "rate_a": 0.0,
        "br_status": 1,
    }


def _parts(real: str, imaginary: str, values: ComplexArray) -> dict[str, FloatArray]:
    return {real: values.real, imaginary: values.imag}
