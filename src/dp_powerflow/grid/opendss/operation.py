"""OpenDSS circuits → `Operation`: what the controls, generators and inverters of the file do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dp_powerflow.grid.feeder import PVSystem, Tap
from dp_powerflow.grid.opendss.capacitors import CapacitorReader, monitored_nodes
from dp_powerflow.grid.opendss.engine import Engine, NamedBranches
from dp_powerflow.grid.opendss.generation import (
    declared_generators,
    declared_pv,
    inverter_curves,
    other_sources,
)
from dp_powerflow.grid.opendss.regulators import Admittances, Network, RegulatorReader, place_regulators
from dp_powerflow.grid.operation import Generator, Operation


@dataclass
class Declared:
    """What a circuit says before its controls and generators are disabled.

    Attributes
    ----------
    capacitor_controls : enabled ones → names of the nodes of the element that each looks at.
    pv, generators : with the names of their nodes.
    left_out, refused : as in `Operation`.
    """

    capacitor_controls: dict[str, list[str | None]] = field(default_factory=dict)
    pv: list[tuple[PVSystem, NamedBranches]] = field(default_factory=list)
    generators: list[tuple[Generator, NamedBranches]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_declared(engine: Engine) -> Declared:
    """What has to be read before anything is disabled."""
    found = Declared(capacitor_controls=monitored_nodes(engine))
    curves = inverter_curves(engine, found.refused)
    found.generators = declared_generators(engine, found.left_out)
    found.left_out += other_sources(engine)
    found.pv = [
        (replace(pv, curve=curves.get(pv.name)), names) for pv, names in declared_pv(engine, found.left_out)
    ]
    return found


def operation_of(
    engine: Engine,
    network: Network,
    declared: Declared,
    generators: tuple[Generator, ...],
    taps: Sequence[Tap],
) -> Operation | None:
    """The circuit with nothing frozen; None if it has nothing that moves.

    Parameters
    ----------
    engine : at the taps of the frozen frame, without loads and generation.
    generators : those of `declared` at their nodes.
    taps : of the frozen frame.
    """
    refused = declared.refused
    admittances = Admittances(network)
    moved = RegulatorReader(engine, network, refused).read()
    placed = place_regulators(engine, admittances, moved, taps)
    capacitors = CapacitorReader(engine, admittances, placed, refused).read(declared.capacitor_controls)
    if not (placed or capacitors or generators or refused or declared.left_out):
        return None
    return Operation(
        nodes=(*network.nodes, *admittances.inner),
        y=admittances.per_unit(),
        regulators=tuple(each.regulator for each in placed),
        capacitors=capacitors,
        generators=generators,
        left_out=tuple(declared.left_out),
        refused=tuple(refused),
    )
