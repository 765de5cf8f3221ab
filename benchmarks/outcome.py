"""What one run of one tool on one case yields."""

from __future__ import annotations

from dataclasses import dataclass

from dp_powerflow.units import ComplexArray


@dataclass(frozen=True, eq=False)
class Outcome:
    """Time of the solves alone, and voltages to compare.

    Attributes
    ----------
    seconds : wall clock of the solves, without reading the network and the loads.
    which : numbers of the snapshots whose voltages are given.
    v : complex (len(which), retained) [p.u.].
    note : how the tool was run, and what it leaves out.
    flops : floating-point operations per snapshot, NaN if unknown.
    processor_s : processor time of the same solves, all threads together, NaN if unknown.
    """

    seconds: float
    which: list[int]
    v: ComplexArray
    note: str
    flops: float = float("nan")
    processor_s: float = float("nan")
