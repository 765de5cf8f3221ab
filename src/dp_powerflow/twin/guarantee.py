"""How much noise a twin carries, and what it promises: Gaussian differential privacy of one element.

Neighbours: two networks of the same connectivity, switch states, taps and shapes (see `grid.parameters`)
whose records differ in one element, each of its protected levels by a factor between 1/(1+x) and 1+x, and
its conductor code, if codes are drawn, in any way. The twin releases round(log level / g) + N_Z(0, σ²) of
every level, so one element that changes moves a Gaussian mechanism by at most

    μ² = Σ (Δ / σᵢ)²,   Δ = ⌈ln(1+x)/g⌉ + 2,   σᵢ = ⌈ηᵢ/g⌉,

about Σ (ln(1+x)/ηᵢ)². docs/guarantee.md has the proof, with what the discrete Gaussian differs from the
continuous one. A twin is drawn once; whatever is computed from it costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import ndtri

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.parameters import LINE_QUANTITIES, Quantity
from dp_powerflow.privacy.budget import Neighbours, gdp_epsilon, gdp_mu

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

    def sigmas(self) -> dict[Quantity, int]:
        """Scale of the noise on every protected quantity, in grid units, rounded up."""
        return {quantity: math.ceil(eta / LOG_GRID) for quantity, eta in self.protected()}


LINE = "line"
_ROUNDING = 2
"""Grid units: one for rounding both logarithms to the grid, one for the last digit of a logarithm."""


@dataclass(frozen=True)
class TwinGuarantee:
    """(ε, δ)-differential privacy of one element, and the μ that composes.

    Attributes
    ----------
    change : x: levels change by factors up to 1 + x.
    mu : of the worst kind of element.
    mu_of : by kind of element: line, transformer, capacitor, pv; kinds without noise are left out.
    """

    change: float
    mu: float
    mu_of: Mapping[str, float]
    epsilon: float
    delta: float


def twin_guarantee(spread: Spread, change: float, delta: float, *, elements: int = 1) -> TwinGuarantee:
    """What a twin of this spread promises when up to `elements` elements change at once."""
    if elements < 1:
        raise PrivacyError("a guarantee is for one changed element or more")
    mu_of = {kind: mu * math.sqrt(elements) for kind, mu in element_mu(spread, change).items()}
    mu = max(mu_of.values())
    return TwinGuarantee(change, mu, mu_of, gdp_epsilon(mu, delta), delta)


def element_mu(spread: Spread, change: float) -> dict[str, float]:
    """μ of one changed element, by kind."""
    if not (0.0 < change < math.inf):
        raise PrivacyError("the change x that a twin protects must be positive; 0.05 is five per cent")
    shift = math.ceil(math.log1p(change) / LOG_GRID) + _ROUNDING
    squared: dict[str, float] = {}
    for quantity, sigma in spread.sigmas().items():
        kind = LINE if quantity in LINE_QUANTITIES else quantity.value
        squared[kind] = squared.get(kind, 0.0) + (shift / sigma) ** 2
    if spread.code_epsilon is not None:
        squared[LINE] = squared.get(LINE, 0.0) + code_mu(spread.code_epsilon) ** 2
    return {kind: math.sqrt(value) for kind, value in squared.items()}


def code_mu(epsilon: float) -> float:
    """The μ-GDP that ε-DP implies: Φ(−μ/2) = 1/(1 + e^ε).

    The trade-off of ε-DP is the chords from (0, 1) and (1, 0) to the point where both errors are 1/(1 + e^ε);
    that of μ-GDP is convex through the same three points, hence below.
    """
    return -2.0 * float(ndtri(1.0 / (1.0 + math.exp(min(epsilon, 700.0)))))


def largest_change(spread: Spread, epsilon: float, delta: float, *, elements: int = 1) -> float:
    """The largest x that this twin covers at (ε, δ), rounded down; 0 if there is none.

    Only kinds with noise count; `elements` of them may change at once.
    """
    allowed = gdp_mu(epsilon, delta) / math.sqrt(elements)

    def excess(log_change: float) -> float:
        return max(element_mu(spread, math.expm1(log_change)).values()) - allowed

    low, high = 1e-9, 50.0
    if excess(low) > 0.0:
        return 0.0
    if excess(high) < 0.0:
        return math.expm1(high)
    # μ goes up in steps of the grid, so the root is found to a step and the answer lies two below.
    root = float(brentq(excess, low, high, xtol=LOG_GRID))
    return max(0.0, math.expm1(root * (1.0 - 1e-9) - 2.0 * LOG_GRID))


def spread_for(change: float, epsilon: float, delta: float, *, pv: bool = False) -> Spread:
    """The smallest spread, the same on every quantity, whose twin covers x at (ε, δ)."""
    allowed = gdp_mu(epsilon, delta)
    eta = math.sqrt(len(LINE_QUANTITIES)) * math.log1p(change) / allowed
    return Spread.uniform(eta * (1.0 + 1e-9) + 8 * LOG_GRID, pv=pv)


def twin_neighbours(spread: Spread, change: float) -> Neighbours:
    """The neighbours, from public constants only."""
    lines = [quantity.value for quantity in LINE_QUANTITIES if spread.of(quantity) is not None]
    kinds = [f"line ({', '.join(lines)})"] if lines else []
    named = {Quantity.TRANSFORMER: "transformer (impedance)", Quantity.CAPACITOR: "capacitor (size)"}
    named[Quantity.PV] = "PV system (capacity)"
    kinds += [words for quantity, words in named.items() if spread.of(quantity) is not None]
    code = "; the conductor code of a line in any way" * (spread.code_epsilon is not None)
    listed = " or ".join([", ".join(kinds[:-1]), kinds[-1]]) if len(kinds) > 1 else "".join(kinds) or "line"
    return Neighbours(f"one {listed}: each figure named changed by a factor up to {1.0 + change:.12g}{code}")
