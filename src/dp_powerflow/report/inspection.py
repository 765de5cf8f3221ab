"""What a feeder looks like, for its owner's eyes: everything here describes the secret network."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.grid.norms import kron_amplification, sigma_min
from dp_powerflow.grid.opendss.engine import DssOrigin, declared_voltages
from dp_powerflow.grid.reduction import Network
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.units import ComplexArray

LABELS = {
    "feeder": "feeder",
    "nodes": "nodes",
    "slack_nodes": "slack nodes (EMFs)",
    "retained": "retained nodes (load or generation)",
    "zero_injection": "zero-injection nodes",
    "loads": "loads",
    "load_kw": "nominal load [kW]",
    "load_kvar": "nominal reactive load [kvar]",
    "delta_loads": "delta loads, as wye equivalents",
    "pv_systems": "PV systems",
    "pv_kva": "PV rating [kVA]",
    "lines": "lines and switches",
    "switches": "of these switches",
    "line_length_m": "line length [m]",
    "taps_from": "regulator taps",
    "taps": "tap ratios",
    "base_mva": "power base per node [MVA]",
    "sigma_min_y": "σ_min(Y), reduced [p.u.]",
    "kappa_kron": "κ_Kron, exact for small changes of lines",
    "kappa_kron_paper": "κ_Kron as printed in the paper",
    "kappa_radius": "changes of lines covered up to [p.u.]",
    "norm_b": "‖b‖₂ [p.u.]",
    "vm_min_no_load_pu": "lowest voltage without load [p.u.]",
    "vm_max_no_load_pu": "highest voltage without load [p.u.]",
    "vm_min_pu": "lowest voltage, nominal load [p.u.]",
    "vm_max_pu": "highest voltage, nominal load [p.u.]",
    "wye_error_pu": "error of the wye equivalents [p.u.]",
}
"""What each figure is called for a reader."""

INTERNAL = "INTERNAL: computed from the private network; not for publication"


@dataclass(frozen=True)
class Inspection:
    """Summary of a feeder; powers in kW, voltages and admittances in p.u. on `base_mva` per node.

    Attributes
    ----------
    nodes : energised nodes (the slack's EMF nodes are not counted).
    kappa_kron, kappa_kron_paper : exact form (limit of small changes of lines) and as printed.
    kappa_radius : radius of ‖ΔY_full‖ below which the exact form has a bound.
    norm_b : ‖b‖₂, the current of the slack into the retained nodes.
    vm_min_pu, vm_max_pu : voltage range with the nominal loads, None where no solution was found.
    wye_error_pu : largest |Δv| that nodal wye equivalents of the loads make, None if not known.
    """

    marking: str
    feeder: str
    nodes: int
    slack_nodes: int
    retained: int
    zero_injection: int
    loads: int
    load_kw: float
    load_kvar: float
    delta_loads: int
    pv_systems: int
    pv_kva: float
    lines: int
    switches: int
    line_length_m: float
    taps_from: str
    taps: dict[str, float]
    base_mva: float
    sigma_min_y: float
    kappa_kron: float
    kappa_kron_paper: float
    kappa_radius: float
    norm_b: float
    vm_min_no_load_pu: float
    vm_max_no_load_pu: float
    vm_min_pu: float | None
    vm_max_pu: float | None
    wye_error_pu: float | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """A dictionary of plain values."""
        return asdict(self)


def inspect_feeder(feeder: Feeder) -> Inspection:
    """Everything `dp-powerflow inspect` prints."""
    network = Network(feeder)
    amplification = kron_amplification(network)
    solver = BatchSolver(feeder)
    idle = np.zeros((1, network.n), dtype=np.complex128)
    no_load = solver.solve(idle, nodes="all").v[0]
    live = ~np.isin(feeder.energised, feeder.neutral)
    solution = solver.solve(-feeder.nominal_injection[None, feeder.retained], nodes="all")
    loaded = solution.v[0] if solution.converged[0] else None
    notes = feeder.notes
    if loaded is None:
        notes = (
            *notes,
            "power flow finds no solution at nominal load; reduce the loads, or give an ungrounded winding "
            "that carries load a reference to ground",
        )
    wye_error, reason = _wye_error(feeder, loaded)
    return Inspection(
        marking=INTERNAL,
        feeder=feeder.name,
        nodes=len(feeder.energised),
        slack_nodes=len(feeder.slack),
        retained=network.n,
        zero_injection=len(network.zero_injection),
        loads=len(feeder.loads),
        load_kw=sum(load.kw for load in feeder.loads),
        load_kvar=sum(load.kvar for load in feeder.loads),
        delta_loads=sum(load.connection == "delta" for load in feeder.loads),
        pv_systems=len(feeder.pv),
        pv_kva=sum(pv.kva for pv in feeder.pv),
        lines=len(feeder.lines),
        switches=sum(line.is_switch for line in feeder.lines),
        line_length_m=sum(line.length_m or 0.0 for line in feeder.lines),
        taps_from=feeder.taps_from,
        taps={f"{tap.transformer}.{tap.winding}": tap.ratio for tap in feeder.taps},
        base_mva=feeder.base_mva,
        sigma_min_y=sigma_min(network),
        kappa_kron=amplification.exact,
        kappa_kron_paper=amplification.paper,
        kappa_radius=amplification.largest_radius,
        norm_b=float(np.linalg.norm(network.b)),
        vm_min_no_load_pu=float(np.abs(no_load[live]).min()),
        vm_max_no_load_pu=float(np.abs(no_load[live]).max()),
        vm_min_pu=None if loaded is None else float(np.abs(loaded[live]).min()),
        vm_max_pu=None if loaded is None else float(np.abs(loaded[live]).max()),
        wye_error_pu=wye_error,
        notes=(*notes, *reason),
    )


def _wye_error(feeder: Feeder, loaded: ComplexArray | None) -> tuple[float | None, tuple[str, ...]]:
    """Largest |Δv| against OpenDSS's own connections, and why there is none."""
    if not any(GROUND not in branch for load in feeder.loads for branch in load.branches):
        return 0.0, ()
    if loaded is None or not isinstance(feeder.origin, DssOrigin):
        return None, ()
    try:
        declared = declared_voltages(feeder)
    except FeederError as error:
        return None, (f"the error of the wye equivalents is not known: {error}",)
    return float(np.abs(declared[feeder.energised] - loaded).max()), ()
