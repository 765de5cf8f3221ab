from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dp_powerflow import LoadModel, StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import GaussianComponent, LoadSampler
from dp_powerflow.model.law import ClassModel, LoadNodes, ReactiveModel
from support.laws import days_of, load_model

T = 8
KEY = StreamKey.from_insecure_seed(1).bind("release", "test")


def covariance(variance: float) -> np.ndarray:
    lag = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    return variance * (0.8 * 0.9**lag + 0.2 * np.eye(T))


def part(name: str, level: float, weight: float, spread: float = 0.0) -> ClassModel:
    component = GaussianComponent(1.0, np.full(T, level), covariance(0.09))
    reactive = ReactiveModel(0.3, spread, float(np.exp(level)), np.eye(T) if spread else None)
    return ClassModel(name, weight, (component,), (float(np.exp(level)) / 2, 50.0), reactive)


def model(*classes: ClassModel, scaled: bool = False) -> LoadModel:
    return load_model(*classes, steps=T, scaled=scaled)


TWO = model(part("home", 0.0, 0.75), part("shop", 2.0, 0.25))


def test_draws_have_the_released_mean_and_covariance() -> None:
    sampler = LoadSampler(TWO.at(LoadNodes(("home", "shop", "home"))), KEY, 6000)
    loads, _ = days_of(sampler)
    assert loads.shape == (3, 6000, T)
    for node, level in ((0, 0.0), (1, 2.0), (2, 0.0)):
        log_load = np.log(loads[node])
        assert np.allclose(log_load.mean(axis=0), level, atol=0.02)
        assert np.allclose(np.cov(log_load.T), covariance(0.09), atol=0.01)
    assert abs(np.corrcoef(np.log(loads[0, :, 0]), np.log(loads[2, :, 0]))[0, 1]) < 0.05


@pytest.mark.parametrize(
    "other",
    [
        {"key": KEY.bind("network", "other")},
        {"law": dataclasses.replace(TWO, n_days=11).at(LoadNodes(("home",)))},
    ],
)
def test_another_network_or_model_never_meets_the_same_draws(other: Any) -> None:
    sampler = LoadSampler(TWO.at(LoadNodes(("home",))), KEY, 10)
    changed = dataclasses.replace(sampler, **other)
    assert not np.array_equal(sampler.block(0).load_kw, changed.block(0).load_kw)


def test_truncated_draws_keep_the_margins_and_report_the_acceptance() -> None:
    sampler = LoadSampler(TWO.at(LoadNodes(("home",) * 4), truncated=True), KEY, 2000)
    loads = days_of(sampler)[0]
    assert loads.min() >= 0.5
    (of_class,) = sampler.law.classes
    assert of_class.name == "home"
    (acceptance,) = of_class.acceptance
    free = days_of(LoadSampler(TWO.at(LoadNodes(("home",) * 4)), KEY, 2000))[0]
    share = float((free >= 0.5).all(axis=2).mean())
    assert acceptance.value == pytest.approx(share, abs=0.01)
    assert 0 < acceptance.standard_error < 0.01


def test_narrow_margins_switch_to_tilting_and_stay_exact() -> None:
    narrow = dataclasses.replace(TWO.days[0], bounds=(0.95, 1.05))
    sampler = LoadSampler(model(narrow).at(LoadNodes(("home",)), truncated=True), KEY, 300)
    loads = days_of(sampler)[0]
    assert not sampler.law.classes[0].acceptance[0].rejection
    assert loads.min() >= 0.95 * (1 - 1e-12)
    assert loads.max() <= 1.05 * (1 + 1e-12)


def test_reactive_spread_is_independent_of_active_load_and_keeps_its_mean() -> None:
    spread = model(part("home", 0.0, 1.0, spread=0.2))
    load_kw, load_kvar = days_of(LoadSampler(spread.at(LoadNodes(("home",))), KEY, 20_000))
    residual = (load_kvar - 0.3 * load_kw)[0]
    assert abs(residual.mean()) < 0.002
    assert residual.std() == pytest.approx(0.2, rel=0.02)
    assert abs(np.corrcoef(residual[:, 0], load_kw[0, :, 0])[0, 1]) < 0.03
    law = model(part("home", 0.0, 1.0)).at(LoadNodes(("home",)))
    assert days_of(LoadSampler(law, KEY, 10))[0].shape == (1, 10, T)


def test_mixture_weights_are_respected() -> None:
    both = (
        GaussianComponent(0.8, np.full(T, -3.0), covariance(0.04)),
        GaussianComponent(0.2, np.full(T, 3.0), covariance(0.04)),
    )
    mixed = model(dataclasses.replace(TWO.days[0], components=both))
    loads = days_of(LoadSampler(mixed.at(LoadNodes(("home",))), KEY, 5000))[0]
    assert float((loads[0, :, 0] > 1).mean()) == pytest.approx(0.2, abs=0.03)


def test_bad_requests_are_refused() -> None:
    law = TWO.at(LoadNodes(("home",)))
    with pytest.raises(PrivacyError, match="has no class"):
        TWO.at(LoadNodes(("home", "nobody")))
    with pytest.raises(PrivacyError, match="at least one node"):
        TWO.at(LoadNodes(()))
    with pytest.raises(PrivacyError, match="public scale"):
        TWO.at(LoadNodes(("home",), np.ones(1)))
    with pytest.raises(PrivacyError, match="at least one day"):
        LoadSampler(law, KEY, 0)
    with pytest.raises(PrivacyError, match="no block"):
        LoadSampler(law, KEY, 3).block(7)
