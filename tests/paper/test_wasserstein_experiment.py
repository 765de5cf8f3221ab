"""The Wasserstein experiment: its distance on known cases, its search, its resumption, its words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, open_dataset
from dp_powerflow_paper.mechanisms.noise import DAY, PAPER_DAY, PAPER_STEP, STEP, UNITS
from dp_powerflow_paper.wasserstein import evaluation
from dp_powerflow_paper.wasserstein.evaluation import BEST, MEDIAN, WORST, Outcome, best, distance, evaluate
from dp_powerflow_paper.wasserstein.experiment import references, run_missing, scale_of, write_all
from dp_powerflow_paper.wasserstein.lab import Lab, Scale
from dp_powerflow_paper.wasserstein.search import VARIANTS, Configuration, configurations
from dp_powerflow_paper.wasserstein.tables import of_voltages
from support.tables import tables_of

TABLES = tables_of(__file__)

TINY = Scale(2, 2, (50.0, 200.0), (10.0,), (1.0,), (), 20, (0.1, 10.0))
SLOW = TABLES["SLOW"]
"""Mechanisms whose every configuration solves again; one ε of each will do."""
PLAN = tuple(
    config
    for config in configurations(TINY)
    if SLOW.get(config.mechanism, config.epsilon) == config.epsilon
    and (config.mechanism != "noisy-loads" or config.unit in (STEP, PAPER_DAY))
    and (config.mechanism != "y-noise" or config.unit is PAPER_STEP)
)


def snapshots(magnitude: np.ndarray) -> np.ndarray:
    """Complex (1, snapshot, node) with these magnitudes (snapshot, node) at some angle."""
    return np.asarray(magnitude[None] * np.exp(0.3j))


def test_pooled_distance_ignores_which_node_a_voltage_is_of_and_per_node_does_not() -> None:
    one, two = np.tile([0.98, 1.02], (10, 1)), np.tile([1.02, 0.98], (10, 1))
    found = distance(snapshots(one), snapshots(two))
    assert found.pooled == pytest.approx(0.0, abs=1e-15)
    assert found.per_node == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize("broken", [0, 7])
def test_distance_agrees_with_scipy_for_samples_of_equal_and_of_unequal_size(broken: int) -> None:
    rng = np.random.default_rng(1)
    true, other = rng.normal(1.0, 0.02, (300, 4)), rng.gamma(50.0, 0.02, (300, 4))
    released, kept = snapshots(other), other[broken:]
    released[0, :broken, 2] = np.nan
    found = distance(released, snapshots(true))
    assert found.pooled == pytest.approx(wasserstein_distance(kept.ravel(), true.ravel()), rel=1e-9)
    assert found.per_node == pytest.approx(
        [wasserstein_distance(kept[:, k], true[:, k]) for k in range(4)], rel=1e-9
    )
    assert found.failed == pytest.approx(broken / 300)
    nothing = distance(np.full_like(released, np.nan), snapshots(true))
    assert math.isnan(nothing.pooled)
    assert nothing.failed == 1.0


def outcome(mechanism: str, epsilon: float | None, pooled: float, **more: Any) -> Outcome:
    runs = more.pop("runs", {})
    config = Configuration(mechanism, epsilon, 1.0, **more)
    return Outcome(config, (pooled, 0.0), (pooled, 0.0), 0.0, None, {}, {}, None, None, runs)


def test_best_takes_the_smallest_distance_within_the_target_and_never_beyond_it() -> None:
    found = (
        outcome("gmm-noise", 25.0, 3.0),
        outcome("gmm-noise", 50.0, 4.0),
        outcome("gmm-noise", 100.0, 1.0),
        outcome("gmm-noise", 50.0, 0.1, unit=PAPER_DAY),
        outcome("gmm-noise", 25.0, 0.2, radius=1e-3),
        outcome("gmm-noise", 25.0, math.nan),
        outcome("joint-noise", 25.0, 0.01),
    )
    chosen = [best(found, "gmm-noise", target) for target in (20.0, 25.0, 50.0, 100.0)]
    assert chosen == [None, found[0], found[0], found[2]]
    assert best(found, "gmm-noise", 50.0, PAPER_DAY) is found[3]
    # The literal recipe is within a target if the worst step of every run is.
    literal = (
        outcome("literal", None, 1.0, runs={WORST: [40.0, 60.0]}),
        outcome("literal", None, 2.0, runs={WORST: [20.0, 30.0]}),
        outcome("literal", None, 0.1, runs={WORST: []}),
    )
    chosen = [best(literal, "literal", target) for target in (25.0, 30.0, 50.0, 60.0)]
    assert chosen == [None, literal[1], literal[1], literal[0]]


def test_every_configuration_has_a_file_of_its_own_and_the_paper_grid_is_covered(tmp_path: Path) -> None:
    scale = scale_of(ExperimentOptions(out=tmp_path))
    plan = configurations(scale)
    assert len({config.name for config in plan}) == len(plan)
    assert (scale.runs, scale.epsilons) == (20, (25.0, 30.0, 50.0, 100.0, 200.0))
    assert {config.mechanism for config in plan} == set(VARIANTS)
    for name, variant in VARIANTS.items():
        of_mechanism = [config for config in plan if config.mechanism == name]
        assert {config.unit for config in of_mechanism} == set(variant.units)
        if not name.startswith("literal"):
            made_for = {(config.unit, config.epsilon) for config in of_mechanism}
            assert made_for >= {(unit, epsilon) for unit in variant.units for epsilon in scale.epsilons}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ExperimentOptions:
    return ExperimentOptions(out=tmp_path_factory.mktemp("wasserstein"), data="simulated")


@pytest.fixture(scope="module")
def data(options: ExperimentOptions) -> Dataset:
    """Simulated customers, a fortnight of them, so that a fit takes no time."""
    full = open_dataset(options)
    few = full.history.select(days=full.history.days[:14])
    return replace(full, history=few, relative=full.relative[:, :14])


@pytest.fixture(scope="module")
def lab(options: ExperimentOptions, data: Dataset) -> Lab:
    made = evaluation.new_lab(options, TINY, data)
    run_missing(options, made, PLAN, workers=1)
    return made


@pytest.fixture(scope="module")
def outcomes(lab: Lab) -> tuple[Outcome, ...]:
    return tuple(evaluate(lab, config) for config in PLAN)


def test_a_second_run_computes_nothing_again_but_what_is_lost(
    options: ExperimentOptions, data: Dataset, outcomes: tuple[Outcome, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_compute", lambda *_: pytest.fail("computed again"))
    again = evaluation.new_lab(options, TINY, data)
    run_missing(options, again, PLAN, workers=1)
    found = tuple(evaluate(again, config) for config in PLAN)
    np.testing.assert_array_equal([o.pooled for o in found], [o.pooled for o in outcomes])
    lost = again.store.folder / f"{PLAN[0].name}.json"
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        run_missing(options, again, PLAN, workers=1)
    lost.write_bytes(content)


def test_every_run_of_every_configuration_is_reported(outcomes: tuple[Outcome, ...]) -> None:
    for found in outcomes:
        if found.refused is None:
            assert len(found.runs["pooled"]) == TINY.runs
            assert found.claim is not None
        else:
            assert found.configuration.mechanism in ("dp-powerflow", "full-support")
        if found.configuration.unit.calibration == "classical":
            true = of_voltages(found.true_delta)
            assert true is not None
            assert true > 0.01, "the paper's σ never gives the δ that is claimed"


def test_the_literal_recipe_reports_the_formula_of_every_fit_and_noise_is_added_to_its_voltages(
    lab: Lab, outcomes: tuple[Outcome, ...]
) -> None:
    literal = [found for found in outcomes if found.configuration.mechanism == "literal"]
    assert {found.configuration.epsilon_load for found in literal} == set(TINY.literal_loads)
    for found in literal:
        worst, median, least = (np.array(found.runs[name]) for name in (WORST, MEDIAN, BEST))
        assert np.all((worst >= median) & (median >= least))
        assert found.claim is not None
        assert (found.epsilon, found.floor) == (worst.max(), 0.0)
        assert found.claim["network"]["epsilon"] == worst[0]
    # One set of voltages serves every ε and unit, so hardly any noise leaves the literal recipe's W1.
    own = literal[0].configuration
    config = replace(own, mechanism="literal-noise", epsilon=1e4, unit=PAPER_STEP)
    assert config.voltages_name == own.voltages_name
    assert evaluate(lab, config).pooled[0] == pytest.approx(literal[0].pooled[0], rel=1e-2)


def test_results_say_that_the_papers_number_is_not_proved(
    options: ExperimentOptions, lab: Lab, outcomes: tuple[Outcome, ...]
) -> None:
    written = write_all(options, lab, references(lab), outcomes)
    for words in (*TABLES["WORDS"], *(f"**Noise covers {unit.title}**" for unit in UNITS)):
        assert words in written.text
    assert f"Δ₂^(Y) = {lab.sensitivities.network:.4g}" in written.text
    assert any("two-birds" in path.name for path in written.files)
    assert {path.suffix for path in written.files} == {".json", ".md", ".png", ".svg"}
    assert all(path.stat().st_size > 500 for path in written.files)
    stored = json.loads(next(path for path in written.files if path.suffix == ".json").read_text("utf-8"))
    assert stored["insecure_seed"] is True
    assert len(stored["outcomes"]) == len(outcomes)
    for outcome in stored["outcomes"]:
        claim = (outcome["claim"] or {}).get("network")
        if outcome["configuration"]["mechanism"] in ("literal", "dp-powerflow", "full-support") and claim:
            assert claim["proved"] is False
            assert "not a proved bound" in claim["remark"]


def test_gaussian_noise_is_closer_for_a_larger_epsilon_and_a_shorter_unit(
    outcomes: tuple[Outcome, ...],
) -> None:
    of = {
        (o.configuration.epsilon, o.configuration.unit): o.pooled[0]
        for o in outcomes
        if o.configuration.mechanism == "joint-noise"
    }
    assert of[200.0, STEP] < of[50.0, STEP] < of[50.0, DAY]
    assert of[50.0, PAPER_STEP] < of[50.0, STEP]
    assert of[50.0, PAPER_DAY] < of[50.0, DAY]
