"""Power records: sensitivities are bounds, the noise is what they need, the repair sees nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.lowlevel import clear_sky
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.dvorkin2023.records import PowerRecords, RecordMechanism, solar_records, wind_records
from dp_powerflow_paper.dvorkin2023.restored import restore_records
from support.auditing import epsilon_lower_bound

RUNS = 5
DRAWS = 200


@pytest.fixture(scope="module")
def sunny() -> PowerRecords:
    """A PV system over two weeks of clear sky, by quarter hours."""
    return solar_records(clear_sky(40.0, 14, 96))


def losses(records: PowerRecords, change: float, runs: int = RUNS) -> FloatArray:
    """Loss of restored records over that of the true ones, run by run."""
    mechanism, regression = RecordMechanism(1.0, change), records.regression
    made = [mechanism.release(records, np.random.default_rng(run)) for run in range(runs)]
    return np.array([regression.loss(power) for power in made]) / regression.loss(records.power)


@pytest.mark.parametrize("change", [0.05, 0.15, 0.25])
def test_restored_records_have_about_the_loss_of_the_true_ones(turbine: PowerRecords, change: float) -> None:
    assert abs(losses(turbine, change).mean() - 1.0) < 0.15


def test_laplace_noise_alone_ruins_the_regression(turbine: PowerRecords) -> None:
    mechanism, regression = RecordMechanism(1.0, 0.15), turbine.regression
    made = [mechanism.laplace(turbine, np.random.default_rng(run)) for run in range(DRAWS)]
    ratio = np.mean([regression.loss(power) for power in made]) / regression.loss(turbine.power)
    assert ratio > 4.0  # 4.03 with a standard error of 0.02


def test_records_of_a_pv_system_keep_their_regression_too(sunny: PowerRecords) -> None:
    mechanism, regression = RecordMechanism(1.0, 0.15), sunny.regression
    plain = [regression.loss(mechanism.laplace(sunny, np.random.default_rng(run))) for run in range(RUNS)]
    # A clear sky leaves hardly any loss: it is the noise on the loss that is left, far below that on records.
    restored = losses(sunny, 0.15, runs=20) - 1.0
    ratio = np.mean(plain) / regression.loss(sunny.power)
    assert np.abs(restored).mean() < 0.1 * (ratio - 1.0)


def test_the_loss_changes_by_at_most_its_sensitivity(turbine: PowerRecords) -> None:
    """Over random data sets, the true one, and the worst that the bound allows; every record in turn."""
    regression, change = turbine.regression, 0.15
    generator = np.random.default_rng(3)
    worst_record = int(np.argmax(np.maximum(regression.curvature, 0.0).sum(axis=0)))
    worst = (regression.curvature[worst_record] > 0.0).astype(float)
    found = []
    for power in (turbine.power, generator.uniform(0.0, 1.0, len(turbine.power)), worst):
        slope, own = regression.curvature @ power, np.diag(regression.curvature)
        for moved in (np.minimum(power + change, 1.0), np.maximum(power - change, 0.0)):
            step = moved - power
            found.append(np.abs(2.0 * step * slope + step**2 * own).max())
    bound = regression.loss_sensitivity(change)
    assert max(found) <= bound
    assert max(found) > 0.5 * bound  # the bound is not vacuous


def test_the_published_code_takes_a_sensitivity_that_is_no_bound(turbine: PowerRecords) -> None:
    """Some neighbour of the true records changes the loss by more than the code's figure."""
    regression, change = turbine.regression, 0.15
    slope, own = regression.curvature @ turbine.power, np.diag(regression.curvature)
    step = np.where(turbine.power > 0.5, -change, change)
    moved = np.abs(2.0 * step * slope + step**2 * own).max()
    assert regression.published_loss_sensitivity(change) == pytest.approx(0.0224, abs=1e-4)
    assert regression.loss_sensitivity(change) == pytest.approx(0.473, abs=1e-3)
    assert moved > 2.0 * regression.published_loss_sensitivity(change)


def test_one_laplace_number_for_all_weights_protects_none(turbine: PowerRecords) -> None:
    """As in the published code: differences of noisy weights are those of the true ones, exactly."""
    regression = turbine.regression
    true = regression.weights(turbine.power)
    shared = true + np.random.default_rng(0).laplace(0.0, 1.0)
    assert np.allclose(np.diff(shared), np.diff(true), atol=1e-12)
    own = RecordMechanism(1.0, 0.15).noisy(turbine, np.random.default_rng(0)).weights
    assert np.abs(np.diff(own) - np.diff(true)).min() > 1e-6


def test_weights_move_by_at_most_their_sensitivity(turbine: PowerRecords) -> None:
    regression = turbine.regression
    moved = np.abs(regression.weights(np.eye(len(turbine.power))[:50].T * 0.15)).sum(axis=0)
    assert moved.max() <= regression.weight_sensitivity(0.15) * (1.0 + 1e-12)


def test_the_shares_of_epsilon_are_what_the_noise_pays_for(turbine: PowerRecords) -> None:
    mechanism, regression = RecordMechanism(0.6, 0.1), turbine.regression
    sizes = (0.1, regression.weight_sensitivity(0.1), regression.loss_sensitivity(0.1))
    spent = [size / scale for size, scale in zip(sizes, mechanism.scales(regression), strict=True)]
    assert sum(spent) == pytest.approx(mechanism.guarantee.epsilon)


@pytest.mark.parametrize(("noise", "holds"), [(1.0, True), (0.5, False)])
def test_an_audit_finds_no_more_than_is_claimed_and_catches_half_of_the_noise(
    noise: float, holds: bool
) -> None:
    """Two data sets of ten records; the attacker sums the exact loss of every noisy query."""
    generator = np.random.default_rng(5)
    mechanism = RecordMechanism(1.0, 0.2)
    regression = PowerRecords(np.linspace(3.0, 12.0, 10), np.zeros(10)).regression
    record = int(np.argmax(np.maximum(regression.curvature, 0.0).sum(axis=0)))
    power = (regression.curvature[record] > 0.0).astype(float)  # whose loss moves most
    power[record] -= mechanism.change
    other = power.copy()
    other[record] += mechanism.change
    scales = mechanism.scales(regression)

    def answers(values: FloatArray) -> FloatArray:
        return np.concatenate([values, regression.weights(values), [regression.loss(values)]])

    scale = np.repeat(np.array(scales), [10, len(regression.gram), 1])
    first, second = answers(power), answers(other)

    def scores(centre: FloatArray) -> FloatArray:
        drawn = centre + generator.laplace(0.0, noise * scale, (20_000, len(centre)))
        return np.asarray(((np.abs(drawn - second) - np.abs(drawn - first)) / scale).sum(axis=1))

    found = epsilon_lower_bound(scores(first), scores(second), 0.0)
    assert (found <= mechanism.guarantee.epsilon) is holds


def test_the_repair_sees_only_what_was_released(turbine: PowerRecords) -> None:
    """Other true records with the same noisy figures: the same bytes."""
    mechanism, regression = RecordMechanism(1.0, 0.15), turbine.regression
    noisy = mechanism.noisy(turbine, np.random.default_rng(1))
    first = restore_records(noisy, regression.features, regression.ridge)
    again = restore_records(noisy, regression.features.copy(), regression.ridge)
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() == mechanism.release(turbine, np.random.default_rng(1)).tobytes()


def test_records_beyond_the_rating_are_refused() -> None:
    with pytest.raises(PrivacyError, match="clip them"):
        PowerRecords(np.arange(10.0), np.full(10, 1.5))


def test_a_missing_power_curve_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadDataError, match="reference cases"):
        wind_records(tmp_path)
