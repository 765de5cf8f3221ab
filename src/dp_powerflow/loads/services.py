"""Which customer is behind which service: the PUBLIC list of records of a release.

The guarantee takes the number of load points as public, so it should come from a list that does not
depend on the readings; a `ServiceMap` is that list.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.units import FloatArray


@dataclass(frozen=True, repr=False)
class ServiceMap:
    """Customers, the load points they are behind, and what is public about those.

    Parameters
    ----------
    load_point_of
        Customer → load point; several customers may share one.
    node_of
        Load point → feeder node or load; load points left out are not on this feeder.
    class_of
        Load point → public class.
    scale_kw_of
        Load point → public scale [kW] (connected kVA, contracted power): for all load points or none.
    """

    load_point_of: Mapping[str, str]
    node_of: Mapping[str, str] = field(default_factory=dict)
    class_of: Mapping[str, str] = field(default_factory=dict)
    scale_kw_of: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.load_point_of:
            raise LoadDataError("the service map has no customer; list at least one")
        points = set(self.load_points)
        for name in ("node_of", "class_of", "scale_kw_of"):
            strangers = sum(point not in points for point in getattr(self, name))
            if strangers:
                raise LoadDataError(
                    f"{name} lists {strangers} load points without a customer; add or remove them"
                )
        if self.scale_kw_of and len(self.scale_kw_of) != len(points):
            raise LoadDataError(
                f"{len(points) - len(self.scale_kw_of)} of {len(points)} load points have no public scale; "
                "give one for all of them or for none"
            )
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scale_kw_of.values()):
            raise LoadDataError(
                "the public scale of a load point must be a positive number of kW; correct the map"
            )

    def __repr__(self) -> str:
        # who is behind which service is public to the guarantee, but no business of a log
        return f"ServiceMap({len(self.load_point_of)} customers, {len(self.load_points)} load points)"

    @property
    def customers(self) -> tuple[str, ...]:
        return tuple(self.load_point_of)

    @property
    def load_points(self) -> tuple[str, ...]:
        """In the order of first mention."""
        return tuple(dict.fromkeys(self.load_point_of.values()))

    def scale_kw(self, load_points: Iterable[str]) -> FloatArray | None:
        """(load point,) public scale [kW], or None if none was declared."""
        if not self.scale_kw_of:
            return None
        return np.array([self.scale_kw_of[point] for point in load_points])


def one_service_each(customers: Iterable[str]) -> ServiceMap:
    """Every customer is a load point of its own, and nothing else is public about it."""
    return ServiceMap({customer: customer for customer in customers})


def read_service_map(path: str | Path) -> ServiceMap:
    """Read a service map: CSV, one row per customer.

    Columns: `customer`, `load_point`; optional `node`, `class`, `scale_kw`, which every customer of a
    load point repeats or leaves empty.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("customer", "load_point") if name not in (reader.fieldnames or ())]
            if missing:
                raise LoadDataError(f"the service map {path} has no column '{missing[0]}'; add it")
            rows = list(reader)
    except (OSError, UnicodeDecodeError):
        raise LoadDataError(
            f"the service map {path} cannot be read; check the path and the encoding"
        ) from None
    load_point_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        customer, point = row["customer"], row["load_point"]
        if not customer or not point:
            raise LoadDataError(
                f"row {number} of the service map {path} lacks a customer or a load point; fill it in"
            )
        if customer in load_point_of:
            raise LoadDataError(
                f"row {number} of the service map {path} repeats a customer; keep one row for each"
            )
        load_point_of[customer] = point
    scales = {point: _scale(text, path) for point, text in _attribute(rows, "scale_kw", path).items()}
    return ServiceMap(load_point_of, _attribute(rows, "node", path), _attribute(rows, "class", path), scales)


def _attribute(rows: list[dict[str, str]], name: str, path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        text = row.get(name)
        if not text:
            continue
        if found.setdefault(row["load_point"], text) != text:
            raise LoadDataError(
                f"row {number} of the service map {path} contradicts an earlier '{name}'; make them equal"
            )
    return found


def _scale(text: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise LoadDataError(f"a 'scale_kw' of the service map {path} is not a number; correct it") from None
