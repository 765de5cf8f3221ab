"""The promise in words, and the page of releases."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path

import pytest
from scipy import stats

import dp_powerflow as dpf
from dp_powerflow.errors import CorpusError
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import LoadsGuarantee
from dp_powerflow.manifest.render import advantage_of, promise_of
from support.manifest_releases import Made, config, load_model, make_inputs, make_release, said, twin_config
from support.tampering import failed, manifest_of, rewrite


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_release(tmp_path_factory.mktemp("made"))


def guarantee(epsilon: float, delta: float, rho: float) -> LoadsGuarantee:
    return LoadsGuarantee.model_construct(epsilon=epsilon, delta=delta, rho=rho)


@pytest.mark.parametrize("mu", [0.01, 0.1, 1.0, 3.0, 10.0])
def test_the_advantage_bounds_that_of_the_gaussian_mechanism(mu: float) -> None:
    """Of noise with sensitivity over scale μ: ρ = μ²/2, the advantage is 2Φ(μ/2) − 1."""
    exact, delta = 2 * stats.norm.cdf(mu / 2) - 1, 1e-6
    epsilon = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    stated = advantage_of(guarantee(epsilon, delta, mu**2 / 2))
    assert exact <= stated <= 1.0
    assert stated <= mu / 2 + 1e-12


def test_the_advantage_of_a_small_epsilon_is_that_of_randomised_response() -> None:
    assert advantage_of(guarantee(0.1, 0.0, 10.0)) == pytest.approx(math.tanh(0.05))
    assert advantage_of(guarantee(1e4, 1e-6, 1e6)) == 1.0


def test_both_guarantees_are_in_words_with_their_figures(tmp_path: Path) -> None:
    statement = make_statement(make_inputs(tmp_path, twin_config(), load_model())[0])
    promise = promise_of(statement)
    loads, network = statement.guarantee.loads, statement.guarantee.network
    assert promise.loads.holds
    assert promise.network.holds
    assert promise.network.figure.startswith("ε ≤ ")
    words = " ".join((*promise.loads.sentences, *promise.network.sentences))
    assert f"delta {loads.delta:g}".replace("e-0", "e-") in words
    assert "advantage" in words
    assert "Changed by 5 %" in words
    assert "Changed by 50 %" in words
    assert str(network.neighbours) in words
    assert f"Not protected: {said(statement, 'not_protected')}." in words


def test_evidence_on_the_true_network_is_not_called_a_guarantee(tmp_path: Path) -> None:
    promise = promise_of(make_statement(make_inputs(tmp_path, config(), load_model())[0]))
    assert promise.loads.holds
    assert not promise.network.holds
    assert "Evidence, not differential privacy" in " ".join(promise.network.sentences)


def test_the_released_page_is_what_anybody_makes_again(made: Made) -> None:
    page = (made.path / "quality.html").read_bytes()
    assert dpf.quality(dpf.open_corpus(made.path), workers=1).to_html() == page
    listed = manifest_of(made.path)["files"]["quality.html"]
    assert listed == hashlib.sha256(page).hexdigest()


def test_another_page_with_a_fitting_hash_is_found(made: Made, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made.path, tmp_path / "copied"))
    page = (path / "quality.html").read_bytes().replace(b"synthetic days", b"excellent days")
    (path / "quality.html").write_bytes(page)
    manifest = manifest_of(path)
    manifest["files"]["quality.html"] = hashlib.sha256(page).hexdigest()
    rewrite(path, manifest, sealed=True)
    assert failed(path) == {"pages"}


def test_a_package_of_the_same_name_does_not_hide_the_function(made: Made) -> None:
    import dp_powerflow.quality

    assert callable(dpf.quality)
    assert callable(dp_powerflow.quality)


def test_a_corpus_without_a_manifest_that_can_be_read_is_refused(made: Made, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made.path, tmp_path / "copied"))
    (path / "manifest.json").write_text("{")
    with pytest.raises(CorpusError, match="is damaged; fetch it again"):
        dpf.quality(dpf.open_corpus(path))
