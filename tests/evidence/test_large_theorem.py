"""Theorem 1 without a dense matrix: the same figures as with one."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import Feeder, StreamKey, open_feeder
from dp_powerflow.evidence.calibration import load_box_set
from dp_powerflow.evidence.collect import Evidence, Instance, Policy, collect_evidence
from dp_powerflow.lowlevel import LoadLaw, Network, OperatingSet, network_facts
from support.laws import nominal_days
from support.synthetic import write_synthetic


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Feeder:
    """Large enough for the sparse path, small enough for the dense one."""
    return open_feeder(write_synthetic(tmp_path_factory.mktemp("feeder") / "medium.dss", 560))


def evidence_of(network: Network, law: LoadLaw) -> Evidence:
    policy = Policy(radius=1e-10, epsilon=50.0, delta=0.9, days=1, calibration_days=24)
    return collect_evidence(Instance(network, law), policy, StreamKey.from_insecure_seed(0))


def test_every_bound_pays_for_the_norms(medium: Feeder) -> None:
    network = Network(medium)
    facts = network_facts(network)
    assert facts.amplification.failure > 0.0
    found = evidence_of(network, nominal_days(medium, 2))
    for row in found.rows[1:]:
        charged = row.day.delta_parts["operating set"]
        calibrated = found.monte_carlo.operating if row.mode == "full-support" else None
        calibrated = calibrated or found.monte_carlo_truncated.operating
        assert charged == calibrated.delta + facts.amplification.failure
        assert calibrated.delta > 1.0 - 0.05 ** (1.0 / 14.0)


def test_load_box_of_a_large_feeder_covers_the_dense_formula(medium: Feeder) -> None:
    network = Network(medium)
    s_max = 2.0 * np.abs(medium.nominal_injection[medium.retained])
    z = np.linalg.inv(network.y)
    measured = OperatingSet(0.95, 1.05, 1.0, 1.0, 1e-3, "given")
    found = load_box_set(network, s_max, measured=measured)
    assert found is not None
    contraction = np.linalg.norm(z * (s_max / 0.95**2), 2)
    mu = np.linalg.norm(z, 2) / (1.0 - contraction)
    assert mu <= found.mu <= 1.02 * mu
    assert found.delta > 1e-3
    proved = load_box_set(network, s_max)
    assert proved is not None
    idle, drop = np.abs(z @ network.b), np.abs(z) @ s_max
    assert np.all(proved.v_min <= idle - drop / proved.v_min + 1e-9)
