"""One release of a composition, with the loads and the network behind its voltages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.mechanisms import solve_loads
from dp_powerflow_paper.sources import UnusableDrawError
from dp_powerflow_paper.sources.composition import Composition


@dataclass(frozen=True, eq=False)
class Released:
    """One release.

    Attributes
    ----------
    load, voltages : complex (day, step, node) [p.u.]; voltages are NaN where power flow failed.
    feeder : network that was solved on; None if the noise left none.
    """

    load: ComplexArray
    voltages: ComplexArray
    feeder: Feeder | None


def release(made: Composition, generator: np.random.Generator, days: int) -> Released:
    """The voltages of `Composition.release`, bit for bit."""
    try:
        feeder = made.network.draw(generator)
        solver = made.network.solver(feeder, made.setting)
    except UnusableDrawError:
        load = made.loads.draw(generator, days)
        return Released(load, np.full_like(load, np.nan + 1j * np.nan), None)
    load = made.loads.draw(generator, days)
    voltages = solve_loads(solver, load, made.setting.generation)
    if made.noise is not None:
        voltages = made.noise.add(voltages, generator)
    return Released(load, voltages, feeder)
