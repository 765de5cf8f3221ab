"""How much noise every parameter of a twin carries: public, chosen without looking at the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.parameters import LINE_QUANTITIES, Quantity

LOG_GRID = 2.0**-40
"""Logarithms of levels are rounded to multiples of this."""
_SMALLEST, _LARGEST = 1e-4, 4.0
_LARGEST_CODE_EPSILON = 20.0


@dataclass(frozen=True)
class Spread:
    """η of every quantity: standard deviation of the log of its level in the twin.

    None leaves a quantity as it is: it is then declared public, and no change of it is covered.

    Attributes
    ----------
    code_epsilon : ε of the randomised response by which a line's conductor code is replaced by one of the
        file's catalogue; None keeps the codes, which are then declared public.
    """

    length: float | None = None
    resistance: float | None = None
    reactance: float | None = None
    transformer: float | None = None
    capacitor: float | None = None
    pv: float | None = None
    code_epsilon: float | None = None

    def __post_init__(self) -> None:
        for quantity, eta in self.protected():
            if not _SMALLEST <= eta <= _LARGEST:
                raise PrivacyError(
                    f"the spread of the {quantity} of a twin must lie between {_SMALLEST:g} and "
                    f"{_LARGEST:g}; 0.1 is about ten per cent"
                )
        if self.code_epsilon is not None and not (0.0 < self.code_epsilon <= _LARGEST_CODE_EPSILON):
            raise PrivacyError(
                f"the epsilon of the conductor codes must lie between 0 and {_LARGEST_CODE_EPSILON:g}"
            )
        if not any(True for _ in self.protected()) and self.code_epsilon is None:
            raise PrivacyError("a twin without any spread is the true network; give at least one spread")

    @classmethod
    def uniform(cls, eta: float, *, pv: bool = False) -> Spread:
        """The same spread on everything."""
        return cls(eta, eta, eta, eta, eta, eta if pv else None)

    def of(self, quantity: Quantity) -> float | None:
        """η as asked for."""
        eta: float | None = getattr(self, quantity.value)
        return eta

    def protected(self) -> Iterator[tuple[Quantity, float]]:
        """Quantities that get noise, with their η."""
        for quantity in Quantity:
            eta = self.of(quantity)
            if eta is not None:
                yield quantity, eta

    def sigma(self, quantity: Quantity) -> int | None:
        """Scale of the noise in grid units, rounded up."""
        eta = self.of(quantity)
        return None if eta is None else math.ceil(eta / LOG_GRID)

    @property
    def covers_lines(self) -> bool:
        """Whether any figure of a line gets noise."""
        return any(self.of(quantity) is not None for quantity in LINE_QUANTITIES)
