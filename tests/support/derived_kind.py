"""A small kind of derived release: the lowest voltage and the largest load of every day."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from dp_powerflow.errors import ConfigError
from dp_powerflow.model.sample import solve_days
from dp_powerflow.page import Callout
from dp_powerflow.studies.study import Findings, Kind, Progress, Study

PLACE = "support.derived_kind:LowestVoltage"


class LowestVoltage(Kind):
    """Lowest voltage of every released node, over the days of a study.

    Attributes
    ----------
    days : how many of them are looked at.
    limit_pu : below it a node is counted [p.u.].
    fails : whether to fail in the middle.
    """

    name: ClassVar[str] = "lowest-voltage"
    template: ClassVar[str] = "Only {{ settings.days }} days were looked at.\n"

    days: Annotated[int, Field(ge=1)] = 2
    limit_pu: float = 0.95
    quantiles: tuple[float, ...] = (0.05, 0.5)
    fails: bool = False

    def check(self, study: Study) -> None:
        """Refuse a study of too few days."""
        if study.days < self.days:
            raise ConfigError(f"there are {study.days} days only; set days to less")

    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Solve the first block."""
        solver = study.make_solver(workers)
        made = solve_days(
            solver, study.source, generation=study.generation, nodes="all", scale_down=study.scales_down
        )
        at = np.searchsorted(study.feeder.energised, study.released)
        magnitude = np.abs(made.v[: self.days][:, :, at])
        if progress is not None:
            progress(1, 1)
        if self.fails:
            raise ConfigError("it was told to fail")
        lowest = magnitude.min(axis=(0, 1))
        fields = [
            pa.field("node", pa.string(), metadata={"means": "node of nodes.parquet"}),
            pa.field("lowest_pu", pa.float64(), metadata={"unit": "p.u.", "means": "lowest voltage"}),
        ]
        table = pa.table([pa.array(study.node_ids), pa.array(lowest)], schema=pa.schema(fields))
        by_step = pa.array(magnitude.min(axis=2).tolist(), pa.list_(pa.float64(), study.steps))
        by_day = pa.table({"day": pa.array(np.arange(self.days)), "lowest_pu": by_step})
        assert study.irradiance is not None
        figures = {
            "nodes below the limit": int(np.sum(lowest < self.limit_pu)),
            "lowest": {"voltage [p.u.]": round(float(lowest.min()), 6)},
            "largest irradiance": round(float(study.irradiance.max()), 6),
            "customers": None if study.customers is None else int(study.customers.sum()),
        }
        return Findings(
            {"nodes.parquet": table, "days/part-00000.parquet": by_day, "days/part-00001.parquet": by_day},
            figures,
            (Callout("Lowest", (f"{lowest.min():.4f} p.u.",)),),
        )
