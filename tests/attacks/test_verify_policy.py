"""A policy about the true network that protects nothing says so, everywhere and first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.cli.checks import render_verification
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.build import assemble, contradictions, make_statement
from dp_powerflow.manifest.model import NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS, Statement, policy_of
from dp_powerflow.manifest.render import (
    card_bytes,
    certificate_html,
    croissant_bytes,
    registry_bytes,
    warnings_of,
)
from dp_powerflow.manifest.true import SURROGATE_LINE_PU, TruePolicy, account_neighbours
from dp_powerflow.manifest.verify import VerifyReport, manifest_content, open_release, verify_release
from dp_powerflow.pipeline.modes.base import mode_of, promise_warnings
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import config, load_model, make_inputs, said, twin_config, write_release
from support.small import small_config

STRONG = TruePolicy(
    mode="true-network",
    kind="per-instance evidence",
    bound="full-support",
    radius=0.5,
    base_mva=1.0,
    days=5,
    epsilon=10.0,
    delta=1e-3,
    evidence_required=True,
    weak=[],
)
WEAK = [
    ({"epsilon": 10.5}, "epsilon* = 10.5 is above 10."),
    ({"delta": 0.002}, "delta* = 0.002 is above 0.001."),
    ({"radius": 0.459}, "r = 0.459 p.u. is below 1% of the weakest line"),
    ({"radius": 1e-13}, "r = 1e-13 p.u. is below"),
    ({"base_mva": 0.9}, "r = 0.5 p.u. is below"),
]


def changed(policy: TruePolicy, **change: float) -> TruePolicy:
    return policy.model_copy(update=change).recomputed()


@pytest.mark.parametrize(("change", "reason"), WEAK, ids=[str(change) for change, _ in WEAK])
def test_each_weak_constant_is_named(change: dict[str, float], reason: str) -> None:
    assert STRONG.recomputed().weak == []
    weak = changed(STRONG, **change)
    (found,) = warnings_of(list(weak.warnings), weak)
    assert reason in found
    assert changed(STRONG, radius=0.2, base_mva=2.5).weak == []  # the same change on another base


@pytest.mark.parametrize(("name", "weakest"), [("ieee123", SURROGATE_LINE_PU), ("ieee13", 52.99)])
def test_the_yardstick_is_the_weakest_line_of_the_public_feeder(name: str, weakest: float) -> None:
    for base_mva in (1.0, 2.5):
        lines = [line for line in open_feeder(name, base_mva=base_mva).lines if not line.is_switch]
        norms = [float(np.linalg.norm(line.primitive)) for line in lines]
        assert weakest * (1 - 2e-4) < min(norms) * base_mva <= weakest


def statement(folder: Path, **network: Any) -> Statement[Any]:
    return make_statement(make_inputs(folder, config(network=network), load_model())[0])


def test_the_page_says_it_on_its_first_line_and_every_document_says_it(tmp_path: Path) -> None:
    """On the code of ffefb60 ε* = 1e6, δ* = 0.999 and r = 1e-13 got a page without any warning."""
    weak = statement(tmp_path / "weak", radius=1e-13)
    page = certificate_html(weak).decode()
    body = page[page.index("<main>") + len("<main>") :]
    assert body.strip().startswith('<p class="first" role="alert"><strong>' + NO_PROTECTION)
    section = weak.guarantee.network
    assert section.weak == ["radius"]
    assert "r = 1e-13 p.u. is below 1% of the weakest line of the public IEEE 123" in said(weak, "warnings")
    assert weak.release.warnings == ["network"]
    assert said(weak, "warnings").startswith(NO_PROTECTION)
    hashes = {"nodes.parquet": "0" * 64, "model.json": "0" * 64}
    for document in (registry_bytes(weak), croissant_bytes(weak, hashes), card_bytes(weak)):
        assert NO_PROTECTION in document.decode()
    strong = statement(tmp_path / "strong")
    assert NO_PROTECTION not in certificate_html(strong).decode() + str(strong.model_dump())
    assert strong.guarantee.network.weak == []


def test_verify_says_it(tmp_path: Path) -> None:
    chosen = config(network={"radius": 1e-7})
    assert promise_warnings(chosen)[0].startswith(NO_PROTECTION)
    inputs, _ = make_inputs(tmp_path, chosen, load_model())
    path = write_release(tmp_path / "release", inputs)
    report = verify_release(path)
    assert report.verdict == "release"
    assert report.warnings[0].startswith(NO_PROTECTION)
    rendered = render_verification(report)
    assert rendered.lines[0].startswith(f"WARNING  {NO_PROTECTION}")
    assert rendered.lines[-1] == f"verdict: release; {NO_PROTECTION}"
    assert json.loads(rendered.json_text)["warnings"][0].startswith(NO_PROTECTION)


@pytest.mark.parametrize("delta", [0.999999999, 1 / 400])
def test_a_delta_of_one_over_the_customers_is_refused_before_anything_is_spent(
    tmp_path: Path, delta: float
) -> None:
    """delta = 0.999999999 planned, was released and verified with "epsilon at most 1" and no warning."""
    chosen = small_config(tmp_path, model={"delta": delta})
    for make in (plan, run_release):
        with pytest.raises(PrivacyError, match="is not below one over the number of load points, 400"):
            make(chosen)
    assert not (tmp_path / "out").exists()
    assert not list(Ledger.open(PrivateState.open(tmp_path / "state", insecure_seed=7)).spends())


def test_a_large_delta_of_the_customers_is_marked_wherever_a_large_epsilon_is(tmp_path: Path) -> None:
    chosen = twin_config(model={"delta": 0.002})
    mark = f"{NO_PROTECTION_OF_CUSTOMERS}: delta = 0.002 is above 0.001."
    assert promise_warnings(chosen) == (mark,)
    inputs, _ = make_inputs(tmp_path, twin_config(), load_model())
    path = write_release(tmp_path / "release", inputs)
    facts = open_release(path, manifest_content(path)).readable()[1]
    weak = assemble(replace(facts, model=replace(facts.model, delta=0.002)))
    assert weak.release.warnings == ["customers"]
    assert said(weak, "warnings") == mark
    assert NO_PROTECTION_OF_CUSTOMERS in certificate_html(weak).decode()
    rendered = render_verification(VerifyReport("r", None, (), (), (mark,)))
    assert rendered.lines[-1] == f"verdict: release; {NO_PROTECTION_OF_CUSTOMERS}"
    assert assemble(replace(facts, model=replace(facts.model, delta=1e-3))).release.warnings == []
    refused = replace(facts, model=replace(facts.model, delta=1 / facts.model.n_load_points))
    assert any("not below one over the number of load points" in words for words in contradictions(refused))


def test_neighbours_keep_every_digit() -> None:
    """On the code of ffefb60 r = 1.2345678 and r = 1.2345712 were the same neighbours, r = 1.23457."""
    one, other = account_neighbours(1.2345678, 1.0), account_neighbours(1.2345712, 1.0)
    assert "1.2345678" in str(one)
    assert one != other
    assert account_neighbours(1.5, 1.0) != account_neighbours(1.5, 2.5)
    assert str(account_neighbours(1e-7, 1.0)).endswith("r = 1e-07 p.u.")  # as ever: it had all its digits


def test_a_twin_that_hides_nothing_says_so_too(tmp_path: Path) -> None:
    """ε(5 %) above 10 is certainty for the best test, whatever change its policy names."""
    for number, (network, reason) in enumerate(
        [
            ({"epsilon": 12.0}, "epsilon = 12 for one element changed by 5% is above 10."),
            ({"epsilon": 3.0, "change": 0.01}, "epsilon = 14.8 for one element changed by 5% is above 10."),
            ({"epsilon": 1.0, "noise": "gaussian", "delta": 0.005}, "delta = 0.005 is above 0.001."),
        ]
    ):
        chosen = twin_config(network=network)
        made = make_statement(make_inputs(tmp_path / str(number), chosen, load_model())[0])
        assert said(made, "warnings") == f"{NO_PROTECTION}: {reason}" == " ".join(promise_warnings(chosen))
        assert f"<strong>{NO_PROTECTION}</strong>{reason}" in certificate_html(made).decode()
    assert promise_warnings(twin_config(network={"epsilon": 10.0})) == ()
    with pytest.raises(PrivacyError, match=r"delta of a twin must be below 0\.01"):
        mode_of(twin_config(network={"epsilon": 1.0, "noise": "gaussian", "delta": 0.01})).charge("0" * 64)


@pytest.mark.parametrize("chosen", [config, twin_config])
def test_strong_promises_that_add_up_to_a_weak_one_say_so(tmp_path: Path, chosen: Any) -> None:
    """Three releases within ε = 10 each; before, nothing was said of their sum."""
    strong = {"radius": 0.5 * SURROGATE_LINE_PU} if chosen is config else {}
    made = chosen(network=strong)
    assert not policy_of(made).warnings
    for earlier, weak in ((0, False), (2, True)):
        inputs, _ = make_inputs(tmp_path / f"{earlier}", made, load_model(), earlier=earlier)
        assert said(make_statement(inputs), "warnings").startswith(NO_PROTECTION) == weak
