"""Public settings of a reliability study: rates, times, protection, customers, simulation.

Rates and times of lines and transformers are those of the distribution feeders of the Roy Billinton Test
System (R. N. Allan, R. Billinton, I. Sjarief, L. Goel, K. S. So, "A reliability test system for educational
purposes: basic distribution system data and results", IEEE Transactions on Power Systems 6(2), 1991): 11 kV
lines, cables, and transformers that are replaced by a spare. All others are assumptions. A utility states its
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dp_powerflow.studies.reliability.feeder import (
    Points,
    Sections,
    Tree,
    bus_numbers,
    in_public_order,
    load_buses,
    points_of,
    require_customers,
    sections_of,
    tree_of,
)
from dp_powerflow.studies.reliability.indices import ClosedForm, Simulated, closed_form, simulate
from dp_powerflow.studies.study import Findings, Progress, Study
from dp_powerflow.units import FloatArray, IntArray

Rate = Annotated[float, Field(ge=0.0, le=1000.0)]
Hours = Annotated[float, Field(gt=0.0, le=8760.0)]
BusPair = Annotated[tuple[str, str], Field(strict=False)]


def _two_buses(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    if any(one == other for one, other in pairs):
        raise ValueError("a pair of buses names one bus twice; name the two buses that the element joins")
    return pairs


BusPairs = Annotated[tuple[BusPair, ...], Field(strict=False), AfterValidator(_two_buses)]


@dataclass(frozen=True, eq=False)
class Found:
    """All that a study of reliability has computed.

    Attributes
    ----------
    load_kw : (section, step) mean drawn load [kW].
    customers : (section,) customers.
    """

    tree: Tree
    sections: Sections
    points: Points
    customers: IntArray
    load_kw: FloatArray
    expected: ClosedForm
    simulated: Simulated


class Reliability(BaseModel):
    """SAIFI, SAIDI, CAIDI, ASAI and energy not served of a radial feeder; settings are public.

    Attributes
    ----------
    overhead_per_km_year, underground_per_km_year : permanent faults of a line per km and year.
    switch_per_year, transformer_per_year, regulator_per_year : permanent faults of an element per year. What
        joins two buses of one base voltage and is neither line nor switch is a regulator.
    overhead_repair_hours, underground_repair_hours, switch_repair_hours, transformer_repair_hours,
        regulator_repair_hours : mean time to repair or replace [h].
    underground_codes : conductor codes of cables; all other lines are overhead.
    repair_law : law of a repair time about its mean.
    repair_spread : standard deviation of the logarithm of a lognormal repair time.
    lateral_fuses : which laterals have a fuse at their head: "single-phase" those that leave a bus of more
        phases with one, "fewer-phases" those that leave with fewer, "none" none.
    transformer_fuses : whether every transformer has a fuse before it.
    devices : pairs of buses between which a recloser or fuse stands, at the end towards the source.
    sectionalise : whether normally closed switches isolate a fault.
    ties : whether normally open switches of the feeder restore load.
    more_ties : pairs of buses that a further normally open switch joins, with the phases that both have.
    switching_hours : time after which switches have isolated a fault and restored what they can [h].
    kw_per_customer : nominal load of one customer, where no numbers of customers are declared [kW]: a load
        has as many as it takes, and at least one.
    years : simulated years.
    seed : of the simulation; nothing private is in it.
    load : "time-of-day": the energy of a simulated interruption follows the drawn mean day; "mean": it does
        not.

    Examples
    --------
    >>> Reliability(overhead_per_km_year=0.1, lateral_fuses="none").name
    'reliability'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    template: ClassVar[str] = "reliability.txt"

    overhead_per_km_year: Rate = 0.065
    underground_per_km_year: Rate = 0.04
    switch_per_year: Rate = 0.006
    transformer_per_year: Rate = 0.015
    regulator_per_year: Rate = 0.015
    overhead_repair_hours: Hours = 5.0
    underground_repair_hours: Hours = 30.0
    switch_repair_hours: Hours = 4.0
    transformer_repair_hours: Hours = 10.0
    regulator_repair_hours: Hours = 10.0
    underground_codes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    repair_law: Literal["exponential", "lognormal", "fixed"] = "exponential"
    repair_spread: Annotated[float, Field(gt=0.0, le=3.0)] = 0.8
    lateral_fuses: Literal["none", "single-phase", "fewer-phases"] = "single-phase"
    transformer_fuses: bool = True
    devices: BusPairs = ()
    sectionalise: bool = True
    ties: bool = True
    more_ties: BusPairs = ()
    switching_hours: Hours = 1.0
    kw_per_customer: Annotated[float, Field(gt=0.0, le=1e6)] = 5.0
    years: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    seed: Annotated[int, Field(ge=0)] = 0
    load: Literal["time-of-day", "mean"] = "time-of-day"

    @property
    def name(self) -> str:
        """As in `dp-powerflow derive NAME`."""
        return "reliability"

    def check(self, study: Study) -> None:
        """Refuse a study without lengths or customers, a feeder that is not radial, and unknown buses.

        Raises
        ------
        FeederError : a line has no length, or lines form a loop.
        ConfigError : no customers, or a setting names a bus that is none.
        """
        require_customers(study)
        tree = tree_of(study.feeder, self)
        sections_of(tree, self, bus_numbers(study, tree.graph))

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Compute the indices; the same bits for any number of workers."""
        from dp_powerflow.studies.reliability.tables import findings_of  # pages are for whoever asks

        return findings_of(study, self.compute(study, workers=workers, progress=progress))

    def compute(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Found:
        """The figures behind the tables, as arrays that nobody has rounded."""
        self.check(study)
        tree = in_public_order(study, tree_of(study.feeder, self))
        sections = sections_of(tree, self, bus_numbers(study, tree.graph))
        points = points_of(study, self, workers, progress)
        at_load = sections.of_bus[load_buses(study.feeder, tree.graph)]
        customers = np.bincount(at_load, weights=points.customers, minlength=sections.count).astype(np.int64)
        load_kw = np.zeros((sections.count, study.steps))
        np.add.at(load_kw, sections.of_bus[tree.graph.bus_of], points.node_kw)
        expected = closed_form(tree, sections, self, customers, load_kw.mean(axis=1))
        simulated = simulate(tree, sections, self, customers, load_kw)
        return Found(tree, sections, points, customers, load_kw, expected, simulated)
