"""The twin network: its noise, what it promises, how it is drawn, and how far it is from its source.

**Promise.** Gaussian differential privacy of one element. Neighbours: two networks of the same connectivity,
switch states, taps and shapes (see `grid.feeder`) whose records differ in one element, each of its protected
levels by a factor between 1/(1+x) and 1+x, and its conductor code, if codes are drawn, in any way. The twin
releases round(log level / g) + N_Z(0, σ²) of every level, so one element that changes moves a Gaussian
mechanism by at most

    μ² = Σ (Δ / σᵢ)²,   Δ = ⌈ln(1+x)/g⌉ + 2,   σᵢ = ⌈ηᵢ/g⌉,

about Σ (ln(1+x)/ηᵢ)². docs/guarantee.md has the proof, with what the discrete Gaussian differs from the
continuous one. A twin is drawn once; whatever is computed from it costs nothing more.

**Drawing.** Integers in, integers out. The log of every level is rounded to a public grid and gets exact
discrete Gaussian noise; the twin's level is computed from the noisy integer alone, so no digit of it depends
on anything else of the true level.

**Utility.** How far the voltages of a twin are from those of its source, under the same loads. On a true
network the answer is INTERNAL. On public feeders it predicts, from the spread alone, what a spread costs in
accuracy, so that it is chosen without a look at the secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from dp_powerflow._bits.elementary import exp1, log, modulus
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import (
    LINE_QUANTITIES,
    CodedLine,
    Feeder,
    Levels,
    NetworkParameters,
    ParameterKey,
    Quantity,
)
from dp_powerflow.grid.sources import Rebuilder, open_feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.budget import Neighbours, gdp_epsilon, gdp_mu
from dp_powerflow.privacy.random import Stream, StreamKey, discrete_gaussian, uniform_below
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

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
        eta: float | None = getattr(self, quantity.value, None)
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


_RESPONSE_BITS = 53
_RESPONSE_SLACK = 16
FORMAT = "dp-powerflow twin, version 1"


@dataclass(frozen=True)
class Twin:
    """A drawn twin. Publishable: what the guarantee speaks of is exactly this record.

    Attributes
    ----------
    positions : noisy log level of every protected parameter [grid units].
    codes : drawn conductor code of every coded line; empty if codes are kept.
    """

    spread: Spread
    positions: Mapping[ParameterKey, int]
    codes: Mapping[str, str]

    @property
    def levels(self) -> Levels:
        """Levels of the twin; the shift by η²/2 keeps their mean at the true level."""
        return {
            key: exp1(position * LOG_GRID - 0.5 * (self.spread.of(key.quantity) or 0.0) ** 2)
            for key, position in self.positions.items()
        }

    def feeder(self, source: Rebuilder) -> Feeder:
        """The twin's network, built by the engine that built the source's (`rebuilder_of`)."""
        return source.build(self.levels, self.codes)

    def to_json(self) -> str:
        """Canonical text."""
        content = {
            "format": FORMAT,
            "spread": asdict(self.spread),
            "positions": [[key.quantity.value, key.element, k] for key, k in sorted(self.positions.items())],
            "codes": dict(sorted(self.codes.items())),
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Twin:
        content = json.loads(text)
        if content.get("format") != FORMAT:
            raise PrivacyError(
                f"the stored twin is not of the format '{FORMAT}'; use the version that drew it"
            )
        positions = {ParameterKey(Quantity(q), element): int(k) for q, element, k in content["positions"]}
        return cls(Spread(**content["spread"]), positions, content["codes"])


def rebuilder_of(feeder: Feeder, spread: Spread, *, drop_islanded: bool = False) -> Rebuilder:
    """What reads the parameters that a spread covers, and builds twins."""
    relative = spread.code_epsilon is not None
    return Rebuilder(feeder, relative_to_code=relative, drop_islanded=drop_islanded)


def parameters_of(source: Rebuilder, spread: Spread) -> NetworkParameters:
    """PRIVATE. What a twin of this spread is drawn from; refuses a feeder that it would not protect."""
    found = source.parameters()
    source.check(found)
    for quantity, _ in spread.protected():
        if not any(key.quantity is quantity for key in found.levels):
            raise PrivacyError(
                f"the feeder has nothing whose {quantity.value} the twin could protect; leave out "
                f"network.{quantity.value}"
            )
    if spread.code_epsilon is not None and not found.coded:
        raise PrivacyError("no line of the feeder has a conductor code; leave out network.code_epsilon")
    if spread.pv is not None:
        # pandapower's tables may share names, so its keys have the table in front.
        known = {key.element.split(":", 1)[-1] for key in found.levels if key.quantity is Quantity.PV}
        missing = [system.name for system in source.feeder.pv if system.name not in known]
        if missing:
            raise PrivacyError(
                f"the capacity of PV system '{missing[0]}' cannot be protected: its source states no rating; "
                "declare PV capacities public by leaving out network.pv"
            )
    return found


def draw_twin(parameters: NetworkParameters, spread: Spread, key: StreamKey) -> Twin:
    """Draw a twin; the same key gives the same twin, so pay once per key."""
    positions: dict[ParameterKey, int] = {}
    for quantity, sigma in spread.sigmas().items():
        keys = sorted(item for item in parameters.levels if item.quantity is quantity)
        logs = log(np.array([parameters.levels[item] for item in keys], dtype=np.float64))
        true: IntArray = np.round(logs / LOG_GRID).astype(np.int64)
        noisy = true + discrete_gaussian(key.stream(f"twin: {quantity.value}"), sigma, len(keys))
        positions.update(zip(keys, noisy.tolist(), strict=True))
    codes: dict[str, str] = {}
    if spread.code_epsilon is not None:
        stream = key.stream("twin: codes")
        codes = {line.line: respond(stream, line, spread.code_epsilon) for line in parameters.coded}
    return Twin(spread, positions, codes)


def respond(stream: Stream, line: CodedLine, epsilon: float) -> str:
    """Randomised response over the candidates of one line: the true code e^ε times as likely as another."""
    others = [code for code in line.candidates if code != line.code]
    odds = exp1(-epsilon) * len(others)
    # A few units lower than rounding could have made it: the code is never kept too often.
    threshold = math.floor(2.0**_RESPONSE_BITS / (1.0 + odds)) - _RESPONSE_SLACK
    keeps = int(uniform_below(stream, 2**_RESPONSE_BITS, 1)[0]) < threshold
    chosen = int(uniform_below(stream, max(len(others), 1), 1)[0])
    return line.code if keeps or not others else others[chosen]


SURROGATES = ("ieee13", "ieee123")
"""Public feeders on which the cost of a spread in accuracy is predicted."""
_SNAPSHOTS = 96
_LOAD_SPREAD = 0.3
_SEED = 0


@dataclass(frozen=True)
class VoltageDistance:
    """Distances between the magnitudes of two networks' voltages [p.u.].

    Attributes
    ----------
    pooled : W1 between all magnitudes of all retained nodes.
    worst_node, median_node : W1 between the magnitudes of one node, over the nodes.
    rms : root mean square difference, snapshot by snapshot.
    """

    pooled: float
    worst_node: float
    median_node: float
    rms: float


@dataclass(frozen=True)
class Prediction:
    """Distances of several twins of one public feeder."""

    feeder: str
    twins: int
    median: VoltageDistance
    largest: VoltageDistance


def voltage_distance(true: FloatArray, twin: FloatArray) -> VoltageDistance:
    """Distances between magnitudes (snapshot, node) of the same snapshots.

    The W1 distance of two samples of equal size is the mean distance of their order statistics.
    """
    by_node = np.mean(np.abs(np.sort(true, axis=0) - np.sort(twin, axis=0)), axis=0)
    return VoltageDistance(
        pooled=float(np.mean(np.abs(np.sort(true, axis=None) - np.sort(twin, axis=None)))),
        worst_node=float(np.max(by_node)),
        median_node=float(np.median(by_node)),
        rms=float(np.sqrt(np.mean((true - twin) ** 2))),
    )


def magnitudes(feeder: Feeder, load: ComplexArray) -> FloatArray:
    """|v| (snapshot, retained) [p.u.] under given loads; refuses snapshots without a solution."""
    solution = BatchSolver(feeder).solve(load)
    solution.raise_if_failed()
    return modulus(solution.v)


def surrogate_load(feeder: Feeder, snapshots: int = _SNAPSHOTS) -> ComplexArray:
    """Public loads (snapshot, retained) [p.u.]: a day between 0.3 and 1 of nominal, scattered by node."""
    nominal = -feeder.nominal_injection[feeder.retained]
    day = 0.65 - 0.35 * np.cos(2.0 * np.pi * np.arange(snapshots) / snapshots)
    noise = np.random.default_rng(_SEED).normal(
        -0.5 * _LOAD_SPREAD**2, _LOAD_SPREAD, (snapshots, len(nominal))
    )
    return np.asarray(nominal * day[:, None] * np.exp(noise))


def predict(
    spread: Spread, *, twins: int = 20, surrogates: tuple[str, ...] = SURROGATES
) -> tuple[Prediction, ...]:
    """What a spread costs in accuracy on public feeders; nothing private is looked at."""
    found = []
    for name in surrogates:
        feeder = open_feeder(name)
        load = surrogate_load(feeder)
        true = magnitudes(feeder, load)
        usable = spread if feeder.pv else _without_pv(spread)
        source = rebuilder_of(feeder, usable)
        parameters = parameters_of(source, usable)
        key = StreamKey.from_insecure_seed(_SEED)
        distances = [
            voltage_distance(
                true,
                magnitudes(draw_twin(parameters, usable, key.bind("twin", str(k))).feeder(source), load),
            )
            for k in range(twins)
        ]
        found.append(Prediction(name, twins, _over(distances, 0.5), _over(distances, 1.0)))
    return tuple(found)


def _without_pv(spread: Spread) -> Spread:
    return Spread(**{**vars(spread), "pv": None})


def _over(distances: list[VoltageDistance], share: float) -> VoltageDistance:
    table = np.array([(d.pooled, d.worst_node, d.median_node, d.rms) for d in distances])
    return VoltageDistance(*(float(value) for value in np.quantile(table, share, axis=0)))
