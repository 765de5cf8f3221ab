"""Scenarios as the four tables of the gridfm-datakit layout: from powers and voltages to columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dp_powerflow._bits.elementary import degrees, modulus, multiply, unit
from dp_powerflow.corpus.gridfm.network import GridfmBranches, PublishedNetwork
from dp_powerflow.corpus.gridfm.schema import Column, ScenarioKeys, table_of
from dp_powerflow.units import ComplexArray, FloatArray

MIN_VM_PU, MAX_VM_PU = 0.9, 1.1
"""Voltage limits written for every bus: constants, since a feeder states none."""
GENERATOR_LIMIT_MW = 1e4
"""Limit written for the sources, which have none."""
ANGLE_LIMIT_DEG = 360.0
"""Angle limit written for the branches: none."""


@dataclass(frozen=True, eq=False)
class BusStates:
    """Powers and voltages, all complex (scenario, bus).

    Attributes
    ----------
    demand : load less generation of inverters [MW + j·Mvar].
    static : that generation [MW + j·Mvar].
    v : voltages [p.u.], in the frame of the network.
    """

    demand: ComplexArray
    static: ComplexArray
    v: ComplexArray

    def __getitem__(self, part: slice) -> BusStates:
        return BusStates(self.demand[part], self.static[part], self.v[part])


def scenario_tables(
    network: PublishedNetwork,
    keys: ScenarioKeys,
    states: BusStates,
    opened: GridfmBranches | None = None,
) -> dict[str, pa.Table]:
    """The four tables of some scenarios on one network.

    Parameters
    ----------
    opened : branches that are out of service; they are listed with `br_status` 0 and no admittance.
    """
    vm, va = modulus(states.v), degrees(states.v)
    flows = _flows(network, states.demand, vm, va)
    generated = np.zeros_like(states.demand)
    generated[:, network.reference] = flows.source
    is_reference = np.zeros(network.n, dtype=np.int8)
    is_reference[network.reference] = 1
    bus: dict[str, Column] = {
        "bus": np.arange(network.n),
        **_parts("Pd", "Qd", states.demand),
        **_parts("Pg", "Qg", generated),
        "Vm": vm,
        "Va": va,
        "PQ": 1 - is_reference,
        "PV": 0,
        "REF": is_reference,
        "vn_kv": network.vn_kv,
        "min_vm_pu": MIN_VM_PU,
        "max_vm_pu": MAX_VM_PU,
        **_parts("GS", "BS", network.shunt),
        **_parts("Psgen", "Qsgen", states.static),
        "phase": network.phase,
        "row": network.row,
        "turn": network.turn_deg,
    }
    gen: dict[str, Column] = {
        "idx": np.arange(len(network.reference)),
        "bus": network.reference,
        **_parts("p_mw", "q_mvar", flows.source),
        **dict.fromkeys(("min_p_mw", "min_q_mvar"), -GENERATOR_LIMIT_MW),
        **dict.fromkeys(("max_p_mw", "max_q_mvar"), GENERATOR_LIMIT_MW),
        **dict.fromkeys(("cp0_eur", "cp1_eur_per_mw", "cp2_eur_per_mw2"), 0.0),
        **dict.fromkeys(("in_service", "is_slack_gen"), 1),
    }
    rows = np.repeat(np.arange(network.n), np.diff(network.y.indptr))
    y_bus: dict[str, Column] = {
        "index1": rows,
        "index2": network.y.indices,
        **_parts("G", "B", network.y.data),
    }
    branch, count = _branch_columns(network.branches, flows, opened)
    return {
        "bus_data": table_of("bus_data", keys, network.n, bus),
        "gen_data": table_of("gen_data", keys, len(network.reference), gen),
        "branch_data": table_of("branch_data", keys, count, branch),
        "y_bus_data": table_of("y_bus_data", keys, len(rows), y_bus),
    }


@dataclass(frozen=True, eq=False)
class _Flows:
    """Powers that follow from the voltages as written [MW + j·Mvar], complex (scenario, branch or source)."""

    at_from: ComplexArray
    at_to: ComplexArray
    source: ComplexArray


def _flows(network: PublishedNetwork, demand: ComplexArray, vm: FloatArray, va_deg: FloatArray) -> _Flows:
    # From magnitudes and angles, not from v: a consumer who computes them again gets the same.
    v = vm * unit(va_deg)
    branches = network.branches
    v_from, v_to = v[:, branches.from_bus], v[:, branches.to_bus]
    i_from = multiply(branches.yff, v_from) + multiply(branches.yft, v_to)
    i_to = multiply(branches.ytf, v_from) + multiply(branches.ytt, v_to)
    i_source = np.asarray((network.y[network.reference, :] @ v.T).T)
    pairs = ((v_from, i_from), (v_to, i_to), (v[:, network.reference], i_source))
    at_from, at_to, injected = (network.sn_mva * multiply(u, np.conj(i)) for u, i in pairs)
    return _Flows(at_from, at_to, injected + demand[:, network.reference])


def _branch_columns(
    branches: GridfmBranches, flows: _Flows, opened: GridfmBranches | None
) -> tuple[dict[str, Column], int]:
    """Columns of the branches, those out of service last, and how many there are."""
    out = 0 if opened is None else opened.count
    count = branches.count + out

    def also(name: str) -> Column:
        values = getattr(branches, name)
        return values if opened is None else np.concatenate([values, getattr(opened, name)])

    def none_through(values: ComplexArray) -> ComplexArray:
        return np.concatenate([values, np.zeros((*values.shape[:-1], out), values.dtype)], axis=-1)

    columns: dict[str, Column] = {
        "idx": np.arange(count),
        "from_bus": also("from_bus"),
        "to_bus": also("to_bus"),
        **_parts("pf", "qf", none_through(flows.at_from)),
        **_parts("pt", "qt", none_through(flows.at_to)),
        "r": also("r"),
        "x": also("x"),
        "b": 0.0,
        **_parts("Yff_r", "Yff_i", none_through(branches.yff)),
        **_parts("Yft_r", "Yft_i", none_through(branches.yft)),
        **_parts("Ytf_r", "Ytf_i", none_through(branches.ytf)),
        **_parts("Ytt_r", "Ytt_i", none_through(branches.ytt)),
        "tap": also("tap"),
        "shift": also("shift_deg"),
        "ang_min": -ANGLE_LIMIT_DEG,
        "ang_max": ANGLE_LIMIT_DEG,
        "rate_a": 0.0,
        "br_status": np.where(np.arange(count) < branches.count, 1, 0),
    }
    return columns, count


def _parts(real: str, imaginary: str, values: ComplexArray) -> dict[str, Column]:
    return {real: values.real, imaginary: values.imag}
