"""Noise on loads: its law, missing shares, what one share protects, and how many meters a total needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.sources.iid import NIGHT_SHARE, DivisibleLaplace, LaplaceLoads, night_envelope
from dp_powerflow_paper.sources.meters import DAY, SLOT, Meters
from support.auditing import epsilon_lower_bound
from support.shares import delta_of_part, mass_up_to, pure_epsilon

LOW, HIGH = 0.0, 1.0


def meters(relative: np.ndarray) -> Meters:
    """Meters (meter, day, step) of nominal load 1, all at one node."""
    steps = relative.shape[2]
    shares = sp.csr_array(np.ones((1, len(relative)), dtype=np.complex128))
    return Meters(relative, shares, np.full(steps, LOW), np.full(steps, HIGH))


def idle(count: int, days: int, steps: int = 1) -> Meters:
    return meters(np.full((count, days, steps), LOW))


def noise_of_total(mechanism: DivisibleLaplace, days: int, seed: int) -> FloatArray:
    """(day × step,) noise of the total over λ."""
    total = mechanism.total(np.random.default_rng(seed), days)
    true = np.tensordot(mechanism.meters.nominal, mechanism.meters.first_days(days), axes=1)
    return np.asarray((total - true) / mechanism.scale).ravel()


@dataclass(frozen=True, eq=False)
class HalfTheNoise(DivisibleLaplace):
    """The planted bug: λ/2."""

    @property
    def scale(self) -> FloatArray:
        return super().scale / 2.0


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_shares_of_all_meters_add_up_to_laplace(count: int) -> None:
    mechanism = DivisibleLaplace(idle(count, 40, 100), 1.0)
    assert stats.kstest(noise_of_total(mechanism, 40, count), stats.laplace().cdf).pvalue > 0.001


@pytest.mark.parametrize(("part", "expected"), [(0.9, 0.04), (0.7, 0.15), (0.5, 0.31)])
def test_missing_shares_without_compensation_cost_delta(part: float, expected: float) -> None:
    assert delta_of_part(part, 1.0) == pytest.approx(expected, abs=0.01)
    mechanism = DivisibleLaplace(idle(100, 400, 100), 1.0, taking_part=part)
    assert not mechanism.guarantee.proved
    # The same by counting: no event has more than δ, and the best one has nearly as much.
    noise = noise_of_total(mechanism, 400, 5)
    events = [
        np.mean(noise < edge) - math.e * np.mean(noise + 1.0 < edge) for edge in np.linspace(0, 0.5, 51)
    ]
    assert max(events) == pytest.approx(delta_of_part(part, 1.0), abs=0.015)


def test_all_shares_cost_no_delta_and_half_of_them_have_no_pure_epsilon() -> None:
    assert delta_of_part(1.0, 1.0) == 0.0
    assert pure_epsilon(1.0) == pytest.approx(1.0)
    assert 1.0 < pure_epsilon(0.9) < pure_epsilon(0.7) < math.inf
    assert pure_epsilon(0.5) == math.inf
    assert delta_of_part(1.0, 0.0) == pytest.approx(1.0 - math.exp(-0.5))  # total variation of Laplace
    with pytest.raises(PrivacyError):
        delta_of_part(1.2, 1.0)


def test_one_share_of_the_noise_protects_nothing() -> None:
    """Of 100 meters, three shares in four are smaller than a millionth of λ."""
    mechanism = DivisibleLaplace(idle(100, 1), 1.0)
    own = mechanism.shares_of_noise(np.random.default_rng(6), (1000,))
    tiny = 2.0 * mass_up_to(1e-6, 1.0 / 100)
    assert tiny == pytest.approx(0.77, abs=0.01)
    assert np.mean(np.abs(own) < 1e-6) == pytest.approx(tiny, abs=0.01)
    # Who sees what one meter sends tells a load from another, far beyond the ε of the total.
    sent = mechanism.shares_of_noise(np.random.default_rng(7), (20_000,))[:2]
    assert epsilon_lower_bound(sent[1] + HIGH, sent[0] + LOW, 0.0) > 3.0


def audited_total(kind: type[DivisibleLaplace], honest_share: float, runs: int = 20_000) -> float:
    """ε from below of the total of 20 meters, one of which is at its lowest or highest load."""
    found = []
    for seed, level in enumerate((LOW, HIGH)):
        readings = np.full((20, 200, runs // 200), 0.4)
        readings[0] = level
        mechanism = kind(meters(readings), 1.0, SLOT, honest_share, honest_share)
        found.append(mechanism.total(np.random.default_rng([seed, 8]), 200).ravel())
    return epsilon_lower_bound(found[1], found[0], 0.0)


@pytest.mark.parametrize("honest_share", [1.0, 0.7])
def test_audit_of_the_total_is_within_the_claim_and_above_half_of_it(honest_share: float) -> None:
    assert 0.5 <= audited_total(DivisibleLaplace, honest_share) <= 1.0


def test_half_of_the_noise_of_the_total_is_caught() -> None:
    assert audited_total(HalfTheNoise, 1.0) > 1.0


def test_the_envelope_makes_noise_smaller_where_it_is_narrower_and_cuts_what_is_above() -> None:
    wide = meters(np.full((5, 2, 24), 0.9))
    narrow = night_envelope(wide)
    assert narrow.high[0] == pytest.approx(NIGHT_SHARE)
    assert narrow.high[12] == HIGH
    assert narrow.first_days(1)[:, :, 0].max() == pytest.approx(NIGHT_SHARE)
    flat, shaped = (DivisibleLaplace(each, 1.0, DAY) for each in (wide, narrow))
    assert shaped.scale[0] == pytest.approx(NIGHT_SHARE * flat.scale[0])
    assert shaped.scale[12] == flat.scale[12]
    # The readings of a day spend ε together: Σ_t Δ_t/λ_t.
    slot, day = (LaplaceLoads(narrow, 1.0, unit) for unit in (SLOT, DAY))
    for mechanism in (flat, shaped, day):
        assert np.sum(mechanism.meters.width / mechanism.scale) == pytest.approx(1.0)
    assert day.scale == pytest.approx(24.0 * slot.scale)
    assert (slot.guarantee.unit, slot.guarantee.composes) == ("step", "per snapshot")
    assert (day.guarantee.unit, day.guarantee.composes) == ("day", "per day")
