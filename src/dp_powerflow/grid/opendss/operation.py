"""OpenDSS circuits → `Operation`: what the controls, generators and inverters of the file do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dp_powerflow.grid.feeder import Tap
from dp_powerflow.grid.opendss.capacitors import CapacitorReader
from dp_powerflow.grid.opendss.engine import Engine, enabled_names
from dp_powerflow.grid.opendss.regulators import Admittances, Network, RegulatorReader, place_regulators
from dp_powerflow.grid.operation import Operation


@dataclass
class Declared:
    """What a circuit says before its controls and generators are disabled.

    Attributes
    ----------
    capacitor_controls : names of those that are enabled.
    left_out, refused : as in `Operation`.
    """

    capacitor_controls: tuple[str, ...] = ()
    left_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_declared(engine: Engine) -> Declared:
    """What has to be read before anything is disabled."""
    return Declared(capacitor_controls=tuple(enabled_names(engine, "capcontrol")))


def operation_of(
    engine: Engine, network: Network, declared: Declared, taps: Sequence[Tap]
) -> Operation | None:
    """The circuit with nothing frozen; None if it has nothing that moves.

    Parameters
    ----------
    engine : at the taps of the frozen frame, without loads and generation.
    """
    refused = declared.refused
    admittances = Admittances(network)
    moved = RegulatorReader(engine, network, refused).read()
    placed = place_regulators(engine, admittances, moved, taps)
    capacitors = CapacitorReader(engine, admittances, placed, refused).read(declared.capacitor_controls)
    if not (placed or capacitors or refused or declared.left_out):
        return None
    return Operation(
        nodes=(*network.nodes, *admittances.inner),
        y=admittances.per_unit(),
        regulators=tuple(each.regulator for each in placed),
        capacitors=capacitors,
        left_out=tuple(declared.left_out),
        refused=tuple(refused),
    )
