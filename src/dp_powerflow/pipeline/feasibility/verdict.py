"""What a look says about a release: whether it is refused, warned of, or fine, before anything is spent.

Looks on public stand-ins are public, and so are all suggestions. A look on the network itself is INTERNAL: it
is shown to the data owner. It decides whether the network can be solved at all: of a twin's without load, of
the true network at the corners of the declared bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.pipeline.feasibility.loads import DAYS, Course, PublicLoads
from dp_powerflow.pipeline.feasibility.look import NO_LOAD, USUAL, Look, Opened, look_at
from dp_powerflow.pipeline.inputs import NetworkInputs
from dp_powerflow.pipeline.parts import SolverMaker
from dp_powerflow.powerflow.batch import Solver
from dp_powerflow.units import ComplexArray, FloatArray

WARNED, REFUSED = 0.01, 0.10
"""Share of unusual snapshots on stand-ins above which a release is warned of, of bad ones above which it is
refused."""
_DOUBLINGS = 20
_DIGITS = 2
_HALVINGS = 12


@dataclass(frozen=True)
class Feasibility:
    """Whether power flow works with public loads.

    Attributes
    ----------
    public : on public stand-ins; None in a mode that has none.
    internal : INTERNAL, on the network itself; None where nobody looks.
    kw_per_customer : PUBLIC. What to set nodes.kw_per_customer to so that less than 1 % of the snapshots on
        stand-ins are unusual; None where nothing is to be changed, or where it does not help.
    """

    public: Look | None = None
    internal: Look | None = None
    kw_per_customer: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """PUBLIC. What the owner should know before the release is made."""
        if self.public is None or self.public.unusual_share <= WARNED:
            return ()
        return (f"{_found(self.public)}; {_advice(self.kw_per_customer)}",)


@dataclass(frozen=True, eq=False)
class Trial:
    """How a release would be solved, with public loads in place of drawn ones.

    Attributes
    ----------
    inputs : PRIVATE. Of the release.
    maker : of a mode, steps of a day → what makes the solver.
    loads : of a config: its public loads.
    """

    inputs: NetworkInputs
    maker: Callable[[int], SolverMaker]
    loads: Callable[[Config], PublicLoads]

    def opened(self) -> Opened:
        """What solves a network on the steps that are looked at."""
        course, sun = Course.of(self.inputs.config), self.inputs.irradiance
        if sun is not None:
            # From the whole year: one day in its first half, one in its second.
            days = [len(sun) // (2 * DAYS) + k * len(sun) // DAYS for k in range(DAYS)]
            sun = sun[days][:, :: course.stride]
        inputs = replace(self.inputs, irradiance=sun)

        def open_one(feeder: Feeder) -> Any:
            solar = inputs.solar_on(feeder)
            return self.maker(course.steps)(feeder, solar, None), solar.generation

        return open_one

    def look(self, networks: Iterable[Feeder], config: Config | None = None) -> Look:
        """Solve the loads of the config, or of another one, on some networks."""
        return look_at(networks, self.opened(), self.loads(config or self.inputs.config))


def on_twins(trial: Trial, twins: tuple[Feeder, ...], structure: Feeder) -> Feasibility:
    """Look at public stand-ins and at the network itself; refuse what could not be released.

    Parameters
    ----------
    twins : PUBLIC. Of a stand-in.
    structure : the network itself, rounded as a twin is.

    Raises
    ------
    ConfigError : more than a tenth of the snapshots on stand-ins are bad, or the network has no solution
        without load. Nothing was spent.
    """
    public = trial.look(twins)
    found = Feasibility(public)
    if public.unusual_share > WARNED:
        found = Feasibility(public, kw_per_customer=_enough(trial, twins))
    if public.bad_share > REFUSED:
        raise ConfigError(f"{_found(public)}; {_advice(found.kw_per_customer)}; nothing was spent")
    internal = trial.look([structure])
    if not internal.corners[NO_LOAD].solved:
        raise ConfigError(
            "the network has no power-flow solution without load; check sources, transformers and "
            "capacitors with 'dp-powerflow inspect'; nothing was spent"
        )
    return replace(found, internal=internal)


def refuse_unsolved_corners(
    config: Config, solver: Solver, loads: ComplexArray, sun: FloatArray | None
) -> None:
    """Refuse loads within declared bounds that have no solution on the network itself, where nothing mends.

    Parameters
    ----------
    loads : (corner, retained) [p.u.].
    sun : (retained,) most that PV produces [p.u.]; None without PV. Every corner has all of it, and none.

    Raises
    ------
    ConfigError : INTERNAL, as it names the largest scale that has solutions. Nothing was spent.
    """
    both = None if sun is None else np.repeat([np.zeros_like(sun), sun], len(loads), axis=0) + 0j
    corners = loads if both is None else np.concatenate([loads, loads])

    def solved(share: float) -> bool:
        return bool(solver.solve(share * corners, both).converged.all())

    if solved(1.0):
        return
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if solved(middle) else (low, middle)
    key, size = (
        ("nodes.scale_factor", config.nodes.scale_factor) if config.model.use_scale else ("loads", 1.0)
    )
    found = (
        f"the largest {key} at which all have one is {low * size:.3g}" if low else "nor have far lower loads"
    )
    raise ConfigError(
        "INTERNAL: with the loads of some phases at their upper bounds, the others at their lower ones and "
        "PV at none or all of its power, the network has no power-flow solution, so that a release could be "
        f"refused after the customers have paid; {found}, which follows from the network; lower "
        "nodes.scale_factor, model.bounds or PV on public grounds; nothing was spent"
    )


def _enough(trial: Trial, twins: tuple[Feeder, ...]) -> float | None:
    """PUBLIC. The first doubling of nodes.kw_per_customer at which stand-ins are hardly ever unusual."""
    config = trial.inputs.config
    before = trial.loads(config).upper.sum()
    for k in range(1, _DOUBLINGS + 1):
        per = float(f"{config.nodes.kw_per_customer * 2.0**k:.{_DIGITS}g}")
        factor = per / config.nodes.kw_per_customer
        of_class = {name: value * factor for name, value in config.nodes.kw_per_customer_of_class.items()}
        nodes = config.nodes.model_copy(update={"kw_per_customer": per, "kw_per_customer_of_class": of_class})
        other = config.model_copy(update={"nodes": nodes})
        now = trial.loads(other).upper.sum()
        if now == before:  # one customer everywhere, or customers are counted and not derived
            return None
        if trial.look(twins, other).unusual_share <= WARNED:
            return per
        before = now
    return None


def _found(look: Look) -> str:
    shares = [100.0 * count / look.snapshots for count in (look.unsolved, look.unusual)]
    return (
        f"with public customers on public networks of this structure, {shares[0]:.0f} % of the snapshots "
        f"have no power-flow solution, so that their loads would be lowered, and {shares[1]:.0f} % have "
        f"voltages outside {USUAL[0]:g} to {USUAL[1]:g} p.u."
    )


def _advice(kw_per_customer: float | None) -> str:
    if kw_per_customer is not None:
        return (
            f"set nodes.kw_per_customer = {kw_per_customer:g} (nodes.kw_per_customer_of_class alike), at "
            f"which {100.0 * WARNED:g} % or less are of either kind"
        )
    return (
        "lower model.bounds or the customers of the load table and the service map, or, if it is too much "
        "voltage, look at PV systems and regulators"
    )
