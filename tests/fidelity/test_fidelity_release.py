"""`fidelity RELEASE CONFIG` and `dpf.fidelity(release, config)`: from a release to its INTERNAL page."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import dp_powerflow as dpf
from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, DpPowerflowError, LoadDataError
from dp_powerflow.fidelity import metrics, verdicts
from dp_powerflow.fidelity.comparison import compare_network
from dp_powerflow.fidelity.measure import JSON_FILE, PAGE_FILE, fidelity_of_release, true_side
from dp_powerflow.fidelity.report import FORMAT, LEAK, MARKING, FidelityReport
from dp_powerflow.fidelity.verdicts import Effort
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy import queries
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.small import raw_config, small_config, tree_hash, write_toml

pytestmark = pytest.mark.slow

TINY = Effort(**raw_config("tiny-effort"))
SECTIONS = raw_config("fidelity")


def config_in(folder: Path, **sections: dict[str, Any]) -> Config:
    given = {name: {**values, **sections.pop(name, {})} for name, values in SECTIONS.items()}
    return small_config(folder, **given, **sections)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    run_release(config_in(folder), workers=1)
    return folder


@pytest.fixture(scope="module")
def found(released: Path) -> FidelityReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "TREES", 10)
        patch.setattr(verdicts, "QUICK", TINY)
        return dpf.fidelity(released / "out", config_in(released), quick=True)


def toml(folder: Path) -> Path:
    return write_toml(folder / "release.toml", config_in(folder).model_dump(mode="json", exclude_unset=True))


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


# ------------------------------------------------------------------------------------- what comes out
def test_every_group_has_figures_and_every_figure_a_floor_and_a_verdict(found: FidelityReport) -> None:
    groups = {one.group for one in found.findings}
    assert groups == {"customers", "use", "feeder", "voltages"}
    assert len({one.name for one in found.findings}) == len(found.findings) == 31
    assert all(one.floor > 0 and one.verdict for one in found.findings)
    assert "figures are close to the real ones" in found.summary


def test_it_is_marked_and_its_json_holds_what_its_page_shows(found: FidelityReport) -> None:
    content = json.loads(found.to_json())
    page = found.to_html().decode()
    assert (content["format"], content["marking"]) == (FORMAT, MARKING)
    assert len(content["figures"]) == 31
    assert content["attacks"]["allowed"]["epsilon"] == 4.0
    assert {game["name"]: game["guesses"]["tried"] for game in content["attacks"]["games"]}[
        "planted: all kinds"
    ] == 18
    assert MARKING in page
    assert page.index(MARKING) < page.index("<main")  # its first words
    assert "It may not steer the release" in page
    assert all(one.title in page for one in found.findings if "'" not in one.title)
    assert "srcdoc" in found._repr_html_()
    assert "INTERNAL" in repr(found)


@pytest.mark.usefixtures("found")
def test_files_are_private_nothing_is_charged_and_the_release_is_left_as_it_was(released: Path) -> None:
    folder = released / "state" / "internal" / "small"
    for name in (PAGE_FILE, JSON_FILE):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert not [name for name in tree_hash(released / "out") if "fidelity" in name]
    assert [check.name for check in dpf.verify(released / "out").checks if not check.ok] == ["random source"]
    state = PrivateState.inspect(released / "state")
    assert len(Ledger.open(state, create=False).spends()) == 2  # the customers once, the twin once


def test_the_secret_order_matches_nodes_and_any_other_does_not(released: Path) -> None:
    """With the key every node is compared with itself: its worst distance is far below a wrong order's."""
    config, state = config_in(released), PrivateState.inspect(released / "state")
    corpus, model = dpf.open_corpus(released / "out"), LoadModel.load(released / "out" / "model.json")
    true = true_side(corpus, read_inputs(config, state), mode_of(config), model)
    right = {one.name: one for one in compare_network(corpus, true, TINY).findings}
    wrong_order = replace(true.ground, nodes=np.roll(true.ground.nodes, 7))
    wrong = {
        one.name: one for one in compare_network(corpus, replace(true, ground=wrong_order), TINY).findings
    }
    assert right["v_w1"].distance == pytest.approx(wrong["v_w1"].distance)
    assert right["v_worst"].distance < 0.6 * wrong["v_worst"].distance
    assert right["node_mean"].distance < wrong["node_mean"].distance


# ------------------------------------------------------------------------------------ the command line
def test_the_command_prints_verdicts_and_where_the_page_is(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "QUICK", TINY)
    monkeypatch.setattr(metrics, "TREES", 10)
    result = command("fidelity", released / "out", toml(released), "--quick", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["facts"]["release_id"] == "small"
    assert MARKING in result.stderr
    assert LEAK.split(":")[0] in result.stderr.replace("\n", " ")
    assert f"page: {released}" in result.stderr.replace("\n", "")


def test_an_attack_that_gets_too_much_ends_with_exit_code_1(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of the fits is off: the panel says so in red."""
    monkeypatch.setattr(verdicts, "QUICK", replace(TINY, fits_per_kind=70))
    monkeypatch.setattr(metrics, "TREES", 10)
    monkeypatch.setattr(queries, "add_noise", lambda total, sigma, stream: total + stream.words(1)[0] % 3)
    result = command("fidelity", released / "out", toml(released), "--quick")
    assert result.exit_code == 1
    assert "The stated guarantee does not hold" in result.stderr.replace("\n", " ")
    assert "More than ε allows" in (released / "state" / "internal" / "small" / PAGE_FILE).read_text()


@pytest.mark.parametrize(
    ("sections", "said", "error"),
    [
        ({"release": {"id": "another"}}, "not the one that this config makes", ConfigError),
        ({"loads": {"load_points": 61}}, "fitted to another number of load points", LoadDataError),
        ({"network": {"released": "loaded"}}, "has other nodes than this config", ConfigError),
        ({"loads": {"days": 13}}, "at least 8 customers and 14 days", LoadDataError),
        ({"loads": {"load_points": 7}}, "at least 8 customers and 14 days", LoadDataError),
    ],
)
def test_a_release_of_another_config_is_refused(
    released: Path, sections: dict[str, dict[str, Any]], said: str, error: type[DpPowerflowError]
) -> None:
    with pytest.raises(error, match=said):
        fidelity_of_release(released / "out", config_in(released, **sections), TINY)
