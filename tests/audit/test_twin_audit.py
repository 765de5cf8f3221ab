"""The μ that a twin claims, audited from below by an attacker who has everything that is published.

He wants to know whether a line is (1+x) times as long. He has a year of voltages on the public grid with the
loads behind them and estimates the line's admittance by regression, or he reads it off the published network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, norm

from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin import Spread, draw_twin, parameters_of, rebuilder_of, twin_guarantee
from support.tiny_feeder import two_lines

TWINS = 300
CHANGE = 0.10
SNAPSHOTS = 365
PER_KM = complex(0.30, 0.60)
"""Positive-sequence impedance of the line `own` [ohm per km]: public."""
_ALPHA = np.exp(2j * np.pi / 3)
_POSITIVE = np.array([1.0, _ALPHA, _ALPHA**2]) / 3.0

Estimate = Callable[[Feeder], float]


def lower_bound_on_mu(low: np.ndarray, high: np.ndarray, threshold: float) -> float:
    """95 % lower confidence bound on μ from the two error rates of a threshold test (Clopper–Pearson)."""

    def upper(errors: int, n: int) -> float:
        return 1.0 if errors == n else float(beta.ppf(0.975, errors + 1, n - errors))

    false_positive = upper(int(np.sum(low > threshold)), len(low))
    false_negative = upper(int(np.sum(high <= threshold)), len(high))
    return float(-norm.ppf(false_positive) - norm.ppf(false_negative))


def estimates(feeder: Feeder, spread: Spread, estimate: Estimate, tag: str) -> np.ndarray:
    source = rebuilder_of(feeder, spread)
    parameters = parameters_of(source, spread)
    key = StreamKey.from_insecure_seed(11).bind("network", tag)
    twins = (draw_twin(parameters, spread, key.bind("twin", str(k))).feeder(source) for k in range(TWINS))
    return np.array([estimate(twin) for twin in twins])


def log_length_from_a_year_of_voltages(twin: Feeder) -> float:
    """Regression of the load current at bus a on the voltage drops around it, in positive sequence."""
    rng = np.random.default_rng(5)
    nominal = -twin.nominal_injection[twin.retained]
    load = nominal * np.exp(0.3 * rng.normal(size=(SNAPSHOTS, len(nominal))))
    solution = BatchSolver(twin, tolerance=1e-12, threads=1).solve(load, nodes="all")
    solution.raise_if_failed()
    vm, va = np.round(np.abs(solution.v), 6), np.round(np.rad2deg(np.angle(solution.v)), 5)
    v = vm * np.exp(1j * np.deg2rad(va))

    def bus(name: str) -> np.ndarray:
        columns = [
            int(np.flatnonzero(twin.energised == twin.node_index[f"{name}.{k}"])[0]) for k in (1, 2, 3)
        ]
        return v[:, columns]

    at_a = [int(np.flatnonzero(twin.retained == twin.node_index[f"a.{k}"])[0]) for k in (1, 2, 3)]
    source, a, b = (bus(name) @ _POSITIVE for name in ("sourcebus", "a", "b"))
    current = np.conj(load[:, at_a] / bus("a")) @ _POSITIVE
    y, *_ = np.linalg.lstsq(np.column_stack([source - a, b - a, a]), current, rcond=None)
    base_ohm = (twin.base_kv[twin.node_index["a.1"]] ** 2) / twin.base_mva
    return math.log(abs(1.0 / y[1]) * base_ohm / abs(PER_KM))


def log_of_all_figures_from_the_published_network(twin: Feeder) -> float:
    """Sum of the logs of length, resistance and reactance of `own`, read off the twin's admittances."""
    line = next(line for line in twin.lines if line.name == "own")
    m = len(line.nodes) // 2
    series = -line.primitive[:m, m:]
    z = np.linalg.inv(series)
    charging = float(np.linalg.norm((line.primitive[:m, :m] - series).imag))
    # Charging is public per length, so it tells the length; R and X are length times their own figure.
    return math.log(np.linalg.norm(z.real)) + math.log(np.linalg.norm(z.imag)) - math.log(charging)


CASES: list[tuple[Spread, dict[str, str], Estimate]] = [
    (Spread(length=0.1), {"length": "2.2"}, log_length_from_a_year_of_voltages),
    (
        Spread.uniform(0.15),
        # Length, R and X of the line all 1.1 times as large.
        {"length": "2.2", "r1": "0.33", "r0": "0.99", "x1": "0.66", "x0": "1.98"},
        log_of_all_figures_from_the_published_network,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "changed", "estimate"), CASES, ids=["voltages", "published twin"])
def test_what_the_best_attack_finds_is_within_the_claim_and_close_to_it(
    spread: Spread, changed: dict[str, str], estimate: Estimate
) -> None:
    true, other = two_lines(), two_lines(**changed)
    claimed = twin_guarantee(spread, CHANGE, 1e-5).mu
    low = estimates(true, spread, estimate, "true")
    high = estimates(other, spread, estimate, "other")
    threshold = float((low.mean() + high.mean()) / 2)
    found = lower_bound_on_mu(low, high, threshold)
    assert found <= claimed
    assert found > 0.5 * claimed  # the audit is not blind
    standardised = float((high.mean() - low.mean()) / math.sqrt((low.var() + high.var()) / 2))
    assert standardised == pytest.approx(claimed, abs=4 * math.sqrt(2 / TWINS) * (1 + claimed / 2))


@pytest.mark.slow
def test_noise_of_half_the_claimed_size_is_caught() -> None:
    """Planted bug: the twin is drawn with η/2 and claims η."""
    spread, changed, estimate = CASES[0]
    claimed = twin_guarantee(spread, CHANGE, 1e-5).mu
    half = Spread(length=(spread.length or 0.0) / 2)
    low = estimates(two_lines(), half, estimate, "true")
    high = estimates(two_lines(**changed), half, estimate, "other")
    assert lower_bound_on_mu(low, high, float((low.mean() + high.mean()) / 2)) > 1.2 * claimed
