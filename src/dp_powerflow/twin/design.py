"""The noise of a twin and what it promises, from public constants alone.

**Record.** Of a line ln R and ln X of its totals, or ln of its length where its conductor code is public;
where chosen also ln of its charging, and of transformers, capacitors and PV systems ln of the level. Each is
rounded to a multiple of g = 2⁻⁴⁰. Two networks are neighbours if they share the frame (what is not in
the record) and their records differ in one element, each of its figures by a factor between 1/(1 + x) and
1 + x. The integers of that element then differ by at most Δ(x) = ⌈ln(1 + x)/g⌉ + 2 each.

**Laplace** (the default). One integer gets discrete Laplace noise of scale t = ⌈Δ/ε⌉; the pair (R, X) gets
noise P(n) ∝ exp(−‖n‖∞/t) on Z². The normaliser does not depend on the record, so the ratio of the
probabilities of any outcome under neighbours is at most exp(Δ/t) ≤ e^ε: pure differential privacy, δ = 0,
and ε(x′) = Δ(x′)/t for every other x′. Several elements, and several twins: ε adds up.

**Gaussian.** Every integer of an element with d of them gets discrete Gaussian noise of scale
σ = ⌈√d·Δ/μ⌉: μ-GDP. Costs more at one change and one twin, and composes better: by √k, not k.

**Added.** A line's charging with its own noise, and a conductor code drawn by randomised response, are
further releases about the same line; their ε (or μ²) is part of the line's, so less is left for the rest.

**Advantage.** Total variation between neighbours: by how much the best test is right more often than a coin,
times two. 1 − exp(−Δ/2t) for Laplace noise, of one integer and of the pair alike (for the pair at the corner,
which is the worst shift); 2Φ(μ/2) − 1 for a Gaussian. ε and advantage are two yardsticks: at the same ε the
Laplace twin is easier to tell from its neighbour than the Gaussian one. Both are shown everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import exp1, expm11, log1
from dp_powerflow._bits.linear import log_ndtr1
from dp_powerflow.errors import DpPowerflowError, PrivacyError
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.privacy.budget import Neighbours, gdp_epsilon, gdp_mu

LOG_GRID = 2.0**-40
"""g: logarithms of levels are rounded to multiples of this."""
_ROUNDING = 2
"""Grid units: one for rounding both logarithms to the grid, one for the last digit of a logarithm."""
_LARGEST_CODE_EPSILON = 20.0
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-4, 2.0
_LARGEST_MU = 1e3
LINE = "line"
DELTA_LIMIT = 0.01
"""δ of a twin that is released is below this: one over a hundred elements. How many there are is no entry of
a manifest, so the limit is a fixed one."""
CODE = "code"
KINDS: Mapping[Quantity, str] = {
    Quantity.LENGTH: LINE,
    Quantity.RESISTANCE: LINE,
    Quantity.REACTANCE: LINE,
    Quantity.CHARGING: LINE,
    Quantity.TRANSFORMER: "transformer",
    Quantity.CAPACITOR: "capacitor",
    Quantity.PV: "pv",
}
"""Kind of element that a quantity is of."""

Noise = Literal["laplace", "gaussian"]


@dataclass(frozen=True)
class Part:
    """Integers of one element that get noise together.

    Attributes
    ----------
    kind : of the element.
    dimension : how many integers at most.
    scale : t of Laplace noise or σ of Gaussian noise [grid units].
    """

    kind: str
    dimension: int
    scale: int

    @property
    def in_logs(self) -> float:
        """The scale in the logarithm of a figure."""
        try:
            return self.scale * LOG_GRID
        except OverflowError:  # of an epsilon next to nothing
            return math.inf


@dataclass(frozen=True)
class TwinDesign:
    """Public constants of a twin: which figures get noise, and how much.

    Parameters
    ----------
    epsilon : float
        ε of one element whose figures change by factors up to 1 + `change`, all of it together.
    change : float
        x; 0.05 is five per cent.
    protected : Protected
        Figures that the noise covers.
    noise : {"laplace", "gaussian"}
    delta : float
        0 for Laplace noise, which needs none; positive for Gaussian noise.
    charging_epsilon : float, optional
        Share of ε for the charging of lines as its own figure; without it charging follows from the
        twin's length of the line and a public figure per km.
    code_epsilon : float, optional
        Share of ε for randomised response on conductor codes; without it codes are public.

    Raises
    ------
    PrivacyError
        The constants leave nothing to spend, or ask for useless noise.
    """

    epsilon: float
    change: float = 0.05
    protected: Protected = field(default_factory=Protected)
    noise: Noise = "laplace"
    delta: float = 0.0
    charging_epsilon: float | None = None
    code_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("change x", self.change)):
            if not (0.0 < value < math.inf):
                raise PrivacyError(
                    f"the {name} of a twin must be positive; 0.05 is a usual change, 1 an epsilon"
                )
        if self.noise not in ("laplace", "gaussian"):
            raise PrivacyError("the noise of a twin is laplace or gaussian")
        if not (0.0 < self.delta < 1.0 or (self.noise == "laplace" and self.delta == 0.0)):
            raise PrivacyError(
                "a twin with Gaussian noise needs a delta between 0 and 1, such as 1e-6", code="delta-limit"
            )
        if (self.charging_epsilon is not None) != self.protected.charging:
            raise PrivacyError("charging has its own noise exactly where it has its own epsilon")
        if (self.code_epsilon is not None) != self.protected.codes:
            raise PrivacyError("conductor codes are drawn exactly where they have an epsilon")
        if self.code_epsilon is not None and not 0.0 < self.code_epsilon <= _LARGEST_CODE_EPSILON:
            raise PrivacyError(
                f"the epsilon of the conductor codes must lie between 0 and {_LARGEST_CODE_EPSILON:g}"
            )
        if self.code_epsilon is not None and self.protected.lines != "length":
            raise PrivacyError("conductor codes are drawn with the lengths; set lines to length")
        for part in self.parts.values():
            if not _SMALLEST_SCALE <= part.in_logs <= _LARGEST_SCALE:
                raise PrivacyError(
                    f"noise of scale {part.in_logs:.2g} in the logarithm of a {part.kind}'s figures "
                    f"is not between {_SMALLEST_SCALE:g} and {_LARGEST_SCALE:g}; change epsilon or x"
                )

    @classmethod
    def of_record(cls, content: Mapping[str, Any]) -> TwinDesign:
        """Inverse of `to_record`."""
        return cls(**{**content, "protected": Protected(**content["protected"])})

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The noise by name: "impedance" (the pair R, X), "length", "charging", kinds of other elements."""
        chosen, first = self.protected, self._left_for_lines()
        parts = {"impedance": Part(LINE, 2, self._scale(first, 2))}
        if chosen.lines == "length":
            parts["length"] = Part(LINE, 1, self._scale(first, 1))
        if self.charging_epsilon is not None:
            parts["charging"] = Part(LINE, 1, self._scale(self._share(self.charging_epsilon), 1))
        others = {"transformer": chosen.transformers, "capacitor": chosen.capacitors, "pv": chosen.pv}
        for kind, covered in others.items():
            if covered:
                parts[kind] = Part(kind, 1, self._scale(self._share(self.epsilon), 1))
        return parts

    def part_of(self, quantity: Quantity) -> str:
        """Name of the noise that a quantity gets."""
        pair = quantity in (Quantity.RESISTANCE, Quantity.REACTANCE)
        return "impedance" if pair else quantity.value

    def shift(self, part: str) -> float:
        """Added to a noisy logarithm, so that the mean level is the true one; public.

        E exp of the noise is 1/(1 − b²) for Laplace noise of scale b, its square for one of the pair, and
        exp(η²/2) for a Gaussian. From b = 1/2 on, where that mean hangs on a few large draws, b = 1/2 counts.
        """
        found = self.parts[part]
        b = found.scale * LOG_GRID
        if self.noise == "gaussian":
            return -0.5 * b * b
        b = min(b, 0.5)
        return found.dimension * log1(1.0 - b * b)

    def _share(self, epsilon: float) -> Fraction | float:
        """What adds up: ε exactly, or μ²."""
        return Fraction(epsilon) if self.noise == "laplace" else gdp_mu(epsilon, self.delta) ** 2

    def code_share(self, epsilon: float) -> Fraction | float:
        """What a conductor code drawn with ε adds: ε, or μ²."""
        return Fraction(epsilon) if self.noise == "laplace" else code_mu(epsilon) ** 2

    def _left_for_lines(self) -> Fraction | float:
        left = self._share(self.epsilon)
        if self.charging_epsilon is not None:
            left -= self._share(self.charging_epsilon)
        if self.code_epsilon is not None:
            left -= self.code_share(self.code_epsilon)
        if left <= 0:
            raise PrivacyError(
                "charging and conductor codes take all of the epsilon of a line; raise network.epsilon, or "
                "lower network.charging_epsilon and network.code_epsilon"
            )
        return left

    def _scale(self, share: Fraction | float, dimension: int) -> int:
        moved = shift_of(self.change)
        if isinstance(share, Fraction):
            return math.ceil(moved / share)
        return math.ceil(math.sqrt(dimension) * moved / math.sqrt(share) * (1.0 + 1e-12))


def shift_of(change: float) -> int:
    """Δ(x): by how many grid units an integer moves at most."""
    if not (0.0 < change < math.inf):
        raise PrivacyError("the change x that a twin protects must be positive; 0.05 is five per cent")
    return math.ceil(math.log1p(change) / LOG_GRID) + _ROUNDING


@dataclass(frozen=True)
class TwinGuarantee:
    """What a twin promises if one element, or some, change by a factor up to 1 + x.

    Attributes
    ----------
    change, elements : x, and how many elements change.
    epsilon, delta : differential privacy of the worst kind of element; δ = 0 for Laplace noise.
    advantage : bound on the total variation between neighbours, in [0, 1].
    mu : of Gaussian DP; None for Laplace noise.
    epsilon_of : ε by kind of element; kinds without noise are left out.
    """

    change: float
    elements: int
    epsilon: float
    delta: float
    advantage: float
    mu: float | None
    epsilon_of: Mapping[str, float]


def twin_guarantee(design: TwinDesign, change: float | None = None, *, elements: int = 1) -> TwinGuarantee:
    """What a twin of this design promises.

    Parameters
    ----------
    change : another x than the design's.
    elements : how many elements change at once.
    """
    if elements < 1:
        raise PrivacyError("a guarantee is for one changed element or more")
    x = design.change if change is None else change
    losses = element_losses(design, x)
    if design.noise == "laplace":
        pure = {kind: elements * float(loss) for kind, loss in losses.items()}
        advantage = 1.0 - (1.0 - max(_pure_advantage(design, x, kind) for kind in losses)) ** elements
        return TwinGuarantee(x, elements, max(pure.values()), 0.0, _up(advantage), None, pure)
    mus = {kind: math.sqrt(elements * float(loss)) for kind, loss in losses.items()}
    mu = max(mus.values())
    if mu > _LARGEST_MU:
        raise PrivacyError("the noise of the twin says nothing any more about a change this large")
    by_kind = {kind: gdp_epsilon(value, design.delta) for kind, value in mus.items()}
    epsilon = gdp_epsilon(mu, design.delta)
    return TwinGuarantee(x, elements, epsilon, design.delta, _up(_erf(mu)), mu, by_kind)


def element_losses(design: TwinDesign, change: float) -> dict[str, Fraction | float]:
    """What adds up, by kind of element: ε exactly for Laplace noise, μ² for Gaussian."""
    moved = shift_of(change)

    def loss(part: Part) -> Fraction | float:
        if design.noise == "laplace":
            return Fraction(moved, part.scale)
        return part.dimension * (moved / part.scale) ** 2

    parts = dict(design.parts)
    # A line has either its R and X in the record or its length.
    losses = {LINE: max(loss(parts.pop(name)) for name in ("impedance", "length") if name in parts)}
    for part in parts.values():
        losses[part.kind] = losses.get(part.kind, 0) + loss(part)
    if design.code_epsilon is not None:
        losses[LINE] += design.code_share(design.code_epsilon)
    return losses


def _pure_advantage(design: TwinDesign, change: float, kind: str) -> float:
    """Independent releases about one element: their total variations add up like probabilities."""
    moved = shift_of(change)
    parts = {name: part for name, part in design.parts.items() if part.kind == kind}
    if "length" in parts:  # or R and X, with noise of the same scale
        parts.pop("impedance")
    kept = 1.0
    for part in parts.values():
        kept *= exp1(-0.5 * moved / part.scale)
    if kind == LINE and design.code_epsilon is not None:
        kept *= 1.0 + expm11(-design.code_epsilon) / (1.0 + exp1(-design.code_epsilon))
    return 1.0 - kept


def _erf(mu: float) -> float:
    """2Φ(μ/2) − 1."""
    return -expm11(log1(2.0) + log_ndtr1(-0.5 * mu))


def _up(advantage: float) -> float:
    return min(1.0, advantage * (1.0 + 1e-9))


def code_mu(epsilon: float) -> float:
    """The μ-GDP that ε-DP implies: Φ(−μ/2) = 1/(1 + e^ε).

    The trade-off of ε-DP is the chords from (0, 1) and (1, 0) to the point where both errors are 1/(1 + e^ε);
    that of μ-GDP is convex through the same three points, hence below.
    """
    from scipy.special import ndtri  # slow to import

    return -2.0 * float(ndtri(1.0 / (1.0 + math.exp(min(epsilon, 700.0)))))


def twin_neighbours(protected: Protected, change: float) -> Neighbours:
    """The neighbours, from public constants only; the same words whatever the noise: twins compose."""
    figures = {"impedance": "total resistance and reactance", "length": "length"}[protected.lines]
    if protected.lines == "length":
        figures += "; total resistance and reactance where it has no conductor code"
    kinds = [f"line ({figures}{', charging' * protected.charging})"]
    named = (
        (protected.transformers, "transformer (impedance)"),
        (protected.capacitors, "capacitor (size)"),
        (protected.pv, "PV system (capacity)"),
    )
    kinds += [words for covered, words in named if covered]
    listed = " or ".join([", ".join(kinds[:-1]), kinds[-1]]) if len(kinds) > 1 else kinds[0]
    code = "; the conductor code of a line in any way" * protected.codes
    return Neighbours(f"one {listed}: each figure named changed by a factor up to {1.0 + change:.12g}{code}")


STEPS = 8
CHANGE = 0.05


@dataclass(frozen=True)
class Chain:
    """Networks that differ in one element by steps of 5 %.

    Attributes
    ----------
    element : which one.
    smallest, largest : factors on the element's figures at the ends of the chain.
    pooled, node : D, least step of W1 between voltage magnitudes [p.u.], of all nodes together and of the
        node that moves most.
    """

    element: str
    smallest: float
    largest: float
    pooled: float
    node: float

    def floor(self, epsilon: float, delta: float) -> Floor:
        """What no (ε, δ) mechanism can do better on all networks of the chain."""
        least = least_error(STEPS, epsilon, delta)
        return Floor(self, epsilon, delta, least * self.pooled, least * self.node)


@dataclass(frozen=True)
class Floor:
    """Expected W1 that every (ε, δ) mechanism reaches or passes on some network of the chain [p.u.].

    Attributes
    ----------
    pooled : of all nodes together.
    worst_node : of the worst node.
    """

    chain: Chain
    epsilon: float
    delta: float
    pooled: float
    worst_node: float

    @property
    def words(self) -> str:
        """Element and range, without which the figures mean nothing."""
        chain = self.chain
        return f"{chain.element} between {chain.smallest:.3g} and {chain.largest:.3g} times its size"


@lru_cache(maxsize=64)
def least_error(steps: int, epsilon: float, delta: float) -> float:
    """Least worst-case expected |output − truth| over all (ε, δ) mechanisms on the numbers 0 … steps.

    Variables: P(output j | truth i), the excess of each pair of neighbours, and the error.
    """
    n = steps + 1
    away = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    pairs = [(i, k) for i in range(n) for k in (i - 1, i + 1) if 0 <= k < n]
    count, each = len(pairs), sp.eye_array(n)
    apart = np.zeros((count, n))
    for number, (i, k) in enumerate(pairs):
        apart[number, [i, k]] = 1.0, -np.exp(epsilon)
    expected = sp.block_diag([row[None, :] for row in away])
    rows: list[list[Any]] = [
        [expected, None, -np.ones((n, 1))],
        [sp.kron(apart, each), -sp.eye_array(count * n), None],
        [None, sp.kron(sp.eye_array(count), np.ones((1, n))), None],
    ]
    goal = np.append(np.zeros(n * n + count * n), 1.0)
    sums = sp.hstack([sp.kron(each, np.ones((1, n))), sp.csr_array((n, count * n + 1))])
    from scipy.optimize import linprog  # slow to import; a release asks for no floor

    found = linprog(
        goal,
        A_ub=sp.block_array(rows).tocsr(),
        b_ub=np.concatenate([np.zeros(n + count * n), np.full(count, delta)]),
        A_eq=sums.tocsr(),
        b_eq=np.ones(n),
        bounds=(0.0, None),
        method="highs",
    )
    if not found.success:
        raise DpPowerflowError("the linear program of the floor was not solved; report it")
    return float(found.fun)
