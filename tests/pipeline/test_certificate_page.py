"""The page a privacy officer reads."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import REQUIRED, Statement, seal
from dp_powerflow.manifest.render import Words, certificate_html
from support.manifest_releases import config, load_model, make_inputs, twin_config

HASHES = dict.fromkeys(REQUIRED, "0" * 64)
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags, attributes and text; refuses tags that do not nest."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.text = ""
        self.feed(content.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.text += data


def cells_of(content: bytes) -> str:
    """The text with a blank where a tag was, so that cells of a table stand apart."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", content.decode())).split())


@pytest.fixture
def plain(tmp_path: Path) -> Statement[Any]:
    return make_statement(make_inputs(tmp_path / "plain", config(), load_model())[0])


@pytest.fixture
def demonstration(tmp_path: Path) -> Statement[Any]:
    model = load_model("paper", simulated=True, insecure_seed=True)
    return make_statement(make_inputs(tmp_path / "seed", config("paper"), model, seed=5)[0])


@pytest.fixture
def twin(tmp_path: Path) -> Statement[Any]:
    chosen = twin_config(network={"controls": "frozen", "publish": "network and loads"})
    return make_statement(make_inputs(tmp_path / "twin", chosen, load_model())[0])


def test_the_page_asks_the_network_for_nothing(plain: Statement[Any]) -> None:
    content = certificate_html(plain)
    page = Page(content)
    assert page.stack == []
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "action", "background"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(rb"url\(|@import|https?://", content)
    policy = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none'")


def test_a_plain_release_has_no_banner_and_a_demonstration_has(
    plain: Statement[Any], demonstration: Statement[Any]
) -> None:
    assert b'class="banner"' not in certificate_html(plain)
    content = certificate_html(demonstration)
    assert b'class="banner"' in content
    assert "Demonstration, not a release" in Page(content).text
    assert "simulated" in Page(content).text
    assert "Not covered: any change of a line" in Page(content).text


def test_the_page_says_what_the_manifest_says(plain: Statement[Any]) -> None:
    text = " ".join(Page(certificate_html(plain)).text.split())
    parts = ("not_claimed", "unprotected", "before_noise", "after_noise", "scope", "attestation", "unit")
    for sentence in (words for part in parts for words in Words.of(plain)[part]):
        assert sentence in text
    assert "ε ≤ 4" in text
    assert "not differential privacy" in text.lower()
    assert "dp-powerflow verify RELEASE" in text


def test_the_card_of_a_twin_is_that_of_differential_privacy(
    plain: Statement[Any], twin: Statement[Any]
) -> None:
    assert b'<div class="card evidence">' in certificate_html(plain)
    content = certificate_html(twin)
    assert b'<div class="card evidence">' not in content
    assert content.count(b'<div class="kind">Differential privacy</div>') == 2
    text = " ".join(Page(content).text.split())
    assert "5 % 4 0.865 93.3 % 50 % 33.3 1 100 %" in cells_of(content)
    assert (
        "Not protected: which elements there are and how they are connected; phases, which the angles" in text
    )
    assert "not differential privacy" not in text.lower()


def test_the_page_of_a_twin_says_what_the_manifest_says(twin: Statement[Any]) -> None:
    text = " ".join(Page(certificate_html(twin)).text.split())
    parts = ("not_claimed", "unprotected", "declared", "after_noise", "composition", "neighbours", "change")
    more = ("scope", "group", "network_accounting", "attestation", "meaning", "network_guarantee")
    for sentence in (words for part in (*parts, *more) for words in Words.of(twin)[part]):
        assert sentence in text
    assert "Regulator tapsdeclared, or solved once on the twin; then frozen" in text
    assert "exact discrete Gaussian (loads) and Laplace (twin)" in text
    assert "Capacity of a PV systemNOT PROTECTED: declared public" in text
    assert "Conductor code of a lineNOT PROTECTED: declared public" in text


def test_the_first_screen_of_a_twin_shows_both_changes_with_the_advantage(tmp_path: Path) -> None:
    """At ε(5 %) = 1: 8.3 at 50 %, advantage 0.39; a Gaussian at δ = 1e-6 has 10.8 and 0.094."""
    shown = {}
    for noise, delta in (("laplace", 0.0), ("gaussian", 1e-6)):
        chosen = twin_config(network={"epsilon": 1.0, "delta": delta, "noise": noise, "change": 0.05})
        made = make_statement(make_inputs(tmp_path / noise, chosen, load_model())[0])
        text = cells_of(certificate_html(made))
        shown[noise] = text[: text.index("What this means for customers")]
    assert "5 % 1 0.394 69.7 % 50 % 8.32 0.985 99.3 %" in shown["laplace"]
    assert "Laplace noise, δ = 0, any number of days." in shown["laplace"]
    assert "0.0943 54.8 % 50 % 10.8 0.675 83.8 %" in shown["gaussian"]
    assert "Gaussian noise, ε at δ = 1e-6, any number of days." in shown["gaussian"]
    for text in shown.values():
        assert "Protected: one line (total resistance and reactance)" in text
        assert "the length of a line against a reader who has its coordinates." in text


def test_a_change_of_its_own_gets_a_row_of_its_own(tmp_path: Path) -> None:
    chosen = twin_config(network={"epsilon": 1.0, "change": 0.2})
    content = certificate_html(make_statement(make_inputs(tmp_path, chosen, load_model())[0]))
    assert re.findall(r"<tr><td>([0-9.]+) %</td>", content.decode()) == ["5", "20", "50"]


def test_hashes_and_the_commitment_do_not_enter_the_page(plain: Statement[Any]) -> None:
    sealed = seal(plain, HASHES | {"data/part-00000.parquet": "1" * 64})
    other = sealed.internal_report.model_copy(update={"sha256": "3" * 64})
    changed = sealed.model_copy(update={"internal_report": other, "manifest_sha256": "2" * 64})
    assert certificate_html(changed) == certificate_html(plain)


def test_what_the_manifest_holds_is_escaped(plain: Statement[Any]) -> None:
    release = plain.release.model_copy(update={"id": "<script>alert(1)</script>"})
    content = certificate_html(plain.model_copy(update={"release": release}))
    assert b"<script>" not in content
    assert b"&lt;script&gt;" in content
