"""Theorem 1 as printed: the remark's calibration, the labelled row, and when it may be called a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from dp_powerflow import Feeder
from dp_powerflow.errors import ConfigError
from dp_powerflow.evidence import symbols
from dp_powerflow.evidence.collect import (
    confirmed_paper_bound,
    over_days,
    printed_formula,
    remark_calibration,
    why_no_number,
    with_exact_kappa,
)
from dp_powerflow.evidence.theorem import Bound, Terms, corrected_bound, paper_bound
from dp_powerflow.grid.reduction import Amplification
from dp_powerflow.lowlevel import LoadLaw, Network, NetworkFacts, OperatingSet
from dp_powerflow.pipeline.release import run_release
from support.random_networks import small_law
from support.small import small_config

FACTS = NetworkFacts(6, 1.0, 6, Amplification(paper=5.0, exact=2.0, growth=0.0, reach=0.0))
OPERATING = OperatingSet(0.95, 1.05, 0.1, 4.0, 1e-3, "measured")
WORST = np.linspace(3.0, 3.5, 1000)[np.random.default_rng(0).permutation(1000)]


@pytest.fixture
def law(rng: np.random.Generator) -> LoadLaw:
    return small_law(6, 4, rng, random_q=False).within((0.3, 2.0))


def test_the_remark_puts_mu_0_into_the_formula_not_mu_prime() -> None:
    c, kappa_r = 20.0, 1e-3
    found = remark_calibration(WORST, c, kappa_r)
    assert found.mu_prime == pytest.approx(found.mu_0 / (1.0 + found.mu_0 * c * kappa_r))
    assert found.mu_0 > found.mu_prime >= WORST[:100].max()
    assert found.days == 900
    assert found.exceeding == np.count_nonzero(WORST[100:] > found.mu_prime)
    assert found.delta == beta.ppf(0.95, found.exceeding + 1, 900 - found.exceeding)
    assert remark_calibration(WORST, c, 1.0).mu_0 == math.inf


def test_printed_samples_are_the_formula_of_single_steps_with_the_exact_kappa(law: LoadLaw) -> None:
    found = printed_formula(FACTS, law, OPERATING, WORST, 1e-4, 1e-5)
    facts, at = with_exact_kappa(FACTS), replace(OPERATING, mu=found.calibration.mu_0)
    steps = sorted(paper_bound(facts, law.at_step(t), at, 1e-4, 1e-5).terms.formula for t in range(law.steps))
    samples = [found.least.formula, found.median.formula, found.most.formula]
    assert samples == [steps[0], steps[len(steps) // 2], steps[-1]]
    assert found.day == paper_bound(facts, law, at, 1e-4, 1e-5).terms
    assert found.delta == 1e-5 + found.calibration.delta
    c = symbols.c_star_printed(6, 0.95, 1.05)
    assert found.day.alpha == pytest.approx(found.calibration.mu_0 * c * FACTS.amplification.exact * 1e-4)
    assert found.day.formula < paper_bound(FACTS, law, at, 1e-4, 1e-5).terms.formula


def test_the_printed_formula_is_a_bound_only_where_nothing_speaks_against_it(law: LoadLaw) -> None:
    asked = (FACTS, law, OPERATING, 1e-9, 1e-5)
    failing = confirmed_paper_bound(WORST, ("Assumption 1 fails: (i)",))(*asked)
    assert failing.epsilon is None
    assert failing.violations[0] == "Assumption 1 fails: (i)"
    found, repaired = confirmed_paper_bound(WORST, ())(*asked), corrected_bound(*asked)
    assert repaired.epsilon is not None
    smaller = found.terms.formula < repaired.epsilon or found.delta < repaired.delta
    assert (found.epsilon is None) is smaller
    assert any("the repaired theorem" in text for text in found.violations) is smaller
    far = confirmed_paper_bound(WORST, ())(FACTS, law, OPERATING, 1.0, 1e-5)
    assert far.epsilon is None
    assert any("has no number here" in text for text in far.violations)


def test_what_no_load_model_can_mend_is_told_beforehand(ieee123: Feeder) -> None:
    network = Network(ieee123)
    nodes, load_kw = ieee123.loaded_nodes()
    load = load_kw / 1000.0
    margins = (nodes, 0.5 * load, 1.5 * load)
    assert why_no_number(network, "full-support", 1e-4, margins) is None
    assert why_no_number(network, "corrected", 1e-4, margins) is None
    assert "Assumption 1 (i)" in (why_no_number(network, "paper", 1e-12, margins) or "")
    assert "too large for a bound on κ" in (why_no_number(network, "corrected", 1e3, margins) or "")
    assert "volt-var" in (why_no_number(network, "full-support", 1e-12, margins, volt_var=True) or "")


def test_a_policy_that_cannot_be_supported_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    config = small_config(tmp_path, network={"bound": "paper", "require_evidence": True})
    with pytest.raises(ConfigError, match=r"Assumption 1 .* fails on this network, so bound 'paper' has no"):
        run_release(config, workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()


def test_a_bound_adds_up_over_the_days_until_delta_reaches_one() -> None:
    day = Bound("corrected", 1e-4, 1, Terms(*[1.0] * 10), {"tail": 0.1}, ())
    assert (over_days(day, 3).epsilon, over_days(day, 3).delta) == pytest.approx((10.5, 0.3))
    assert (over_days(day, 10).epsilon, over_days(day, 10).delta) == (None, 1.0)
