"""What a feeder looks like, for its owner's eyes: everything here describes the secret network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, get_origin, get_type_hints

import numpy as np

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.operation import Response
from dp_powerflow.grid.reduction import Network, kron_amplification
from dp_powerflow.grid.sources import twin_problems
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.powerflow.comparison import compare

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
    vm_min_pu, vm_max_pu : voltage range with the nominal loads in the frozen frame, None where no solution
        was found.
    operated_error_pu, frozen_error_pu : largest |Δv| between this program and the one that the file was
        written for, with the file's own models and controls; None if not measured.
    same_states : in how many of the compared snapshots taps and capacitors are the same, "5 of 5".
    same_states_error_pu : largest |Δv| of the feeder as operated in these.
    compared : what was compared, or why nothing was.
    modelled : what of the file the feeder as operated has, in words.
    left_out : what of the file is modelled in no mode.
    refused : settings for which the feeder can be solved with frozen controls only, and a difference from
        its OpenDSS file that nothing explains.
    no_twin : why no twin of it can be made, all reasons at once; none if one can.
    notes : on the frozen frame, the fixed network of mode true-network and of controls = "frozen", where they
        say so; else on both.
    """

    marking: str
    feeder: Annotated[str, "feeder"]
    nodes: Annotated[int, "nodes"]
    slack_nodes: Annotated[int, "slack nodes (EMFs)"]
    retained: Annotated[int, "retained nodes (load or generation)"]
    zero_injection: Annotated[int, "zero-injection nodes"]
    loads: Annotated[int, "loads"]
    load_kw: Annotated[float, "nominal load [kW]"]
    load_kvar: Annotated[float, "nominal reactive load [kvar]"]
    delta_loads: Annotated[int, "delta loads"]
    pv_systems: Annotated[int, "PV systems"]
    pv_kva: Annotated[float, "PV rating [kVA]"]
    lines: Annotated[int, "lines and switches"]
    switches: Annotated[int, "of these switches"]
    line_length_m: Annotated[float, "line length [m]"]
    taps_from: Annotated[str, "regulator taps"]
    taps: Annotated[dict[str, float], "tap ratios"]
    base_mva: Annotated[float, "power base per node [MVA]"]
    sigma_min_y: Annotated[float, "σ_min(Y), reduced [p.u.]"]
    kappa_kron: Annotated[float, "κ_Kron, exact for small changes of lines"]
    kappa_kron_paper: Annotated[float, "κ_Kron as printed in the paper"]
    kappa_radius: Annotated[float, "changes of lines covered up to [p.u.]"]
    norm_b: Annotated[float, "‖b‖₂ [p.u.]"]
    vm_min_no_load_pu: Annotated[float, "lowest voltage without load [p.u.]"]
    vm_max_no_load_pu: Annotated[float, "highest voltage without load [p.u.]"]
    vm_min_pu: Annotated[float | None, "lowest voltage, nominal load, frozen [p.u.]"]
    vm_max_pu: Annotated[float | None, "highest voltage, nominal load, frozen [p.u.]"]
    operated_error_pu: Annotated[float | None, "difference from the file, as operated [p.u.]"]
    same_states: Annotated[str | None, "snapshots with the file's own taps"]
    same_states_error_pu: Annotated[float | None, "difference where taps are the same [p.u.]"]
    frozen_error_pu: Annotated[float | None, "difference from the file, frozen [p.u.]"]
    compared: Annotated[str, "compared with"]
    modelled: tuple[str, ...]
    left_out: tuple[str, ...]
    refused: tuple[str, ...]
    no_twin: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """A dictionary of plain values."""
        return asdict(self)


LABELS = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Inspection, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""What each figure is called for a reader."""


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
    found = compare(feeder)
    different = found.refused() if isinstance(feeder.origin, DssOrigin) else None
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
        sigma_min_y=1.0 / network.impedance_norm,
        kappa_kron=amplification.exact,
        kappa_kron_paper=amplification.paper,
        kappa_radius=amplification.largest_radius,
        norm_b=float(np.linalg.norm(network.b)),
        vm_min_no_load_pu=float(np.abs(no_load[live]).min()),
        vm_max_no_load_pu=float(np.abs(no_load[live]).max()),
        vm_min_pu=None if loaded is None else float(np.abs(loaded[live]).min()),
        vm_max_pu=None if loaded is None else float(np.abs(loaded[live]).max()),
        operated_error_pu=found.operated_pu,
        same_states=None if found.same_states is None else f"{found.same_states} of {found.snapshots}",
        same_states_error_pu=found.same_states_pu,
        frozen_error_pu=found.frozen_pu,
        compared=found.against,
        modelled=tuple(_modelled(feeder)),
        left_out=tuple(_left_out(feeder)),
        refused=(*feeder.as_operated.refused, *filter(None, [different])),
        # Reasons beyond those that keep the controls from acting.
        no_twin=tuple(map(str, twin_problems(replace(feeder, operation=None), drop_islanded=True))),
        notes=notes,
    )


def _modelled(feeder: Feeder) -> Iterable[str]:
    """What the feeder as operated has of its file, with counts."""
    operation = feeder.as_operated
    if feeder.loads:
        laws = _counts(_law(load.response) for load in feeder.loads)
        connections = _counts(load.connection for load in feeder.loads)
        yield f"loads one by one: {laws}; {connections}"
    if operation.regulators:
        drops = sum(bool(each.drop_r_v or each.drop_x_v) for each in operation.regulators)
        back = sum(each.reverse is not None for each in operation.regulators)
        yield (
            f"regulator controls: {len(operation.regulators)}, {drops} of them with line-drop compensation"
            + f", {back} reversible" * bool(back)
        )
    if operation.capacitors:
        kinds = _counts(bank.control.kind for bank in operation.capacitors)
        yield f"capacitors switched by a control: {kinds}"
    if feeder.pv:
        curves = sum(pv.curve is not None for pv in feeder.pv)
        factors = sum(pv.curve is None and pv.tan_theta != 0.0 for pv in feeder.pv)
        yield (
            f"PV systems: {len(feeder.pv)}, {curves} with a volt-var curve and {factors} with a power factor "
            "of the file"
        )
    if operation.generators:
        yield f"generators of constant power: {len(operation.generators)}"


def _left_out(feeder: Feeder) -> Iterable[str]:
    yield from feeder.as_operated.left_out
    if feeder.pv:
        yield (
            f"{len(feeder.pv)} PV systems, unless a release has a section [pv] with irradiance or latitude, "
            "or solve is given their generation"
        )


_LAWS = {
    (0.0, 0.0, 1.0): "constant power",
    (0.0, 1.0, 0.0): "constant current",
    (1.0, 0.0, 0.0): "constant impedance",
}


def _law(response: Response) -> str:
    if response.exponents is not None:
        return "powers of the voltage (CVR)"
    if response.active == response.reactive and response.active in _LAWS:
        return _LAWS[response.active]
    return "mixed (ZIP)"


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))
