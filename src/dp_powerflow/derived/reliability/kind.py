"""The kind of derived release: settings, checks, and what is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dp_powerflow.derived.reliability.names import bus_numbers, in_public_order
from dp_powerflow.derived.reliability.settings import ReliabilitySettings
from dp_powerflow.derived.reliability.simulation import ClosedForm, Simulated, closed_form, simulate
from dp_powerflow.derived.reliability.tree import (
    Points,
    Sections,
    Tree,
    load_buses,
    points_of,
    require_customers,
    sections_of,
    tree_of,
)
from dp_powerflow.derived.study import Findings, Progress, Study
from dp_powerflow.units import FloatArray, IntArray


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


class Reliability(ReliabilitySettings):
    """SAIFI, SAIDI, CAIDI, ASAI and energy not served of a radial feeder.

    Settings are those of `ReliabilitySettings`.

    Examples
    --------
    >>> Reliability(overhead_per_km_year=0.1, lateral_fuses="none").name
    'reliability'
    """

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
        from dp_powerflow.derived.reliability.findings import findings_of  # pages are for whoever asks

        return findings_of(study, self, self.compute(study, workers=workers, progress=progress))

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
