"""Tap changers of a pandapower net: where they stand, and where a tap file puts them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.buses import Problems
from dp_powerflow.grid.feeder import Tap
from dp_powerflow.grid.pandapower.engine import Names

TAPS_OF_NET = "tap positions of the pandapower net"
SIDES = {"trafo": ("hv", "lv"), "trafo3w": ("hv", "mv", "lv")}
_BY_RATIO = ("Ratio", "Symmetrical")
_ACTING = (*_BY_RATIO, "Ideal")


@dataclass(frozen=True)
class TapChanger:
    """A tap changer that acts in pandapower's model, of a transformer in service.

    Attributes
    ----------
    kind, index : table of the transformer, and its index there.
    name : of the transformer in a tap file; "trafo3w:" stands in front of one with three windings.
    winding : 1 for the first winding, the high-voltage one.
    position, neutral : as the net states them.
    step : change of the turns ratio per position; None where positions turn the angle, which no tap file
        can say.
    lowest, highest : positions, nan where the net states none.
    """

    kind: str
    index: int
    name: str
    winding: int
    position: float
    neutral: float
    step: float | None
    lowest: float
    highest: float

    @property
    def tap(self) -> Tap:
        """Its turns ratio as it stands; 1 where positions turn the angle."""
        return Tap(self.name, self.winding, self.ratio_of(self.position))

    def ratio_of(self, position: float) -> float:
        """Turns ratio at a position."""
        return 1.0 + (position - self.neutral) * (self.step or 0.0)

    def position_of(self, ratio: float) -> float:
        """The whole position nearest to a turns ratio."""
        if self.step is None:
            raise FeederError(
                f"the tap changer of transformer '{self.name}' turns the angle, which a tap file cannot say; "
                "remove its line from the tap file"
            )
        position = self.neutral + round((ratio - 1.0) / self.step)
        if position < self.lowest or position > self.highest:
            raise FeederError(f"the tap of transformer '{self.name}' is out of range; correct the tap file")
        return position


def tap_changers(net: Any) -> Iterator[TapChanger]:
    """The changers that act; those without a type have no effect in pandapower."""
    names = Names(net)
    for kind, windings in SIDES.items():
        for index, row in net[kind].iterrows():
            side, acting = row.get("tap_side"), changer_type(row)
            percent, degree = (_number(row.get(f"tap_step_{unit}")) for unit in ("percent", "degree"))
            steps = not math.isnan(percent) and percent != 0.0, not math.isnan(degree) and degree != 0.0
            if not row["in_service"] or side not in windings or acting is None or not any(steps):
                continue
            by_ratio = acting in _BY_RATIO and not steps[1] and steps[0]
            name = names.of(kind, int(index))
            yield TapChanger(
                kind=kind,
                index=int(index),
                name=name if kind == "trafo" else f"{kind}:{name}",
                winding=windings.index(side) + 1,
                position=_number(row.get("tap_pos"), _number(row.get("tap_neutral"), 0.0)),
                neutral=_number(row.get("tap_neutral"), 0.0),
                step=percent / 100.0 if by_ratio else None,
                lowest=_number(row.get("tap_min")),
                highest=_number(row.get("tap_max")),
            )


def changer_type(row: Any) -> str | None:
    """How a row's tap changer acts, None if it does not; nets of before 3.0 say it by another column."""
    if "tap_changer_type" in row:
        stated = row["tap_changer_type"]
        return stated if stated in _ACTING else None
    if "tap_phase_shifter" in row:
        return "Ideal" if row["tap_phase_shifter"] is True else "Ratio"
    return None


def set_taps(net: Any, taps: Sequence[Tap]) -> None:
    """Put every tap changer where the taps say, at whole positions; refuse taps that do not fit the net."""
    changers = {(changer.name, changer.winding): changer for changer in tap_changers(net)}
    given = {(tap.transformer, tap.winding): tap.ratio for tap in taps}
    problems = Problems()
    for name, winding in given:
        if (name, winding) not in changers:
            problems.add(
                FeederError(
                    f"winding {winding} of transformer '{name}' has no tap changer that acts; remove it from "
                    "the tap file, or give the net its tap_side, tap_step_percent and tap_changer_type"
                )
            )
    for (name, winding), changer in changers.items():
        if changer.step is not None and (name, winding) not in given:
            problems.add(
                FeederError(
                    f"the tap file lacks winding {winding} of transformer '{name}', which has a tap changer; "
                    "'dp-powerflow inspect FEEDER --save-taps FILE' writes all of them"
                )
            )
    for key in [key for key in given if key in changers]:
        changer = changers[key]
        with problems.gather():
            net[changer.kind].at[changer.index, "tap_pos"] = changer.position_of(given[key])
    problems.refuse()


def _number(value: object, missing: float = math.nan) -> float:
    """A figure of a row, `missing` where there is none."""
    number = float(value) if isinstance(value, int | float) or hasattr(value, "__float__") else math.nan
    return missing if math.isnan(number) else number
