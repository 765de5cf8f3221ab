"""A page is a function of what it says; nothing in it can break out of its data."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode

import numpy as np
import pytest

from dp_powerflow.page import (
    Axis,
    Callout,
    Figure,
    Histogram,
    Lines,
    Link,
    NetworkMap,
    Page,
    Section,
    Series,
    Table,
    framed,
)

NASTY = "</script><script>alert(1)</script>\u2028 & \u2029"


def page_of(name: str = "node", marking: str | None = None) -> Page:
    volts = Axis("voltage", "p.u.", decimals=4)
    lines = Lines(Axis("time", form="clock"), volts, (0, 60), (Series(name, (1.0, None)),))
    network = NetworkMap(
        volts,
        ("a", "b"),
        ((0, 1),),
        ("line",),
        (True, False),
        (0,),
        {"A": np.array([[1, 65535]])},
        1000,
        (0.9, 1.1),
        1.0,
    )
    counted = Histogram(volts, Axis("share", "%"), (0.9, 1.0, 1.1), (Series(name, np.array([1.5, 2.5])),))
    figures = (
        Figure("lines", "Lines", name, lines),
        Figure("counted", "Counted", "", counted, wide=False),
        Figure("network", "Network", "", network, wide=False),
    )
    table = Table(("feeder",), ((Link(name, "a/quality.html"),),))
    section = Section("first", "First", ("words",), (*figures, table, Callout(name, (name,))))
    return Page("Title", marking, (name,), (section,))


def embedded(html: bytes) -> dict[str, object]:
    found = re.search(rb'<script type="application/json" id="figures">(.*?)</script>', html, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def test_equal_pages_have_equal_bytes() -> None:
    assert page_of().to_html() == page_of().to_html()
    assert page_of().to_html() != page_of("other").to_html()
    (section,) = page_of().sections
    assert [len(block) for block in section.blocks] == [1, 2, 1, 1]  # figures that are not wide share a row


def test_hostile_text_stays_text() -> None:
    html = page_of(NASTY, marking="INTERNAL").to_html()
    body = html.decode().split("<body>")[1]
    assert body.index("INTERNAL") < body.index("<h1>")
    assert framed(html).count("<") == 2
    assert b"<script>alert" not in html
    assert "\u2028" not in re.sub(
        r"<pre>.*?</pre>", "", html.decode().split('id="figures">')[1].split("</script>")[0]
    )
    assert embedded(html)["lines"]["series"][0]["name"] == NASTY  # type: ignore[index]


def test_the_policy_allows_exactly_the_scripts_of_the_page() -> None:
    html = page_of().to_html().decode()
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    allowed = re.findall(r"'sha256-([^']+)'|&#39;sha256-(.+?)&#39;", html.split("</head>")[0])
    digests = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert [first or second for first, second in allowed] == digests
    assert "default-src &#39;none&#39;" in html
    assert not re.search("https?://", re.sub(r"<script>.*?</script>", "", html, flags=re.S))


def test_counts_of_a_map_are_packed_without_loss() -> None:
    data = embedded(page_of().to_html())["network"]
    assert isinstance(data, dict)
    assert np.frombuffer(b64decode(data["views"]["A"]), "<u2").tolist() == [1, 65535]


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    chart = Histogram(Axis("x"), Axis("y"), (0.0, 1.0), (Series("nan", (float("nan"),)),))
    with pytest.raises(ValueError, match="JSON"):
        Page("t", None, (), (Section("s", "S", (), (Figure("f", "F", "", chart),)),)).to_html()


def test_the_licences_of_the_vendored_scripts_are_in_the_page() -> None:
    html = page_of().to_html().decode()
    for owner in ("Mike Bostock", "Observable, Inc."):
        assert f"{owner}\n\nPermission to use, copy, modify" in html


def test_a_number_is_not_parted_from_its_unit() -> None:
    html = page_of("99.5 % at 1.02 p.u. or 3 kW of 7 km and 8 stones").to_html().decode()
    assert "99.5\u00a0% at 1.02\u00a0p.u. or 3\u00a0kW of 7 km and 8 stones" in html


def test_a_page_without_a_sortable_table_has_neither_its_script_nor_its_style() -> None:
    """So the bytes of quality pages do not depend on them."""
    table = Table(("feeder", "nodes"), (("a", "1"),), "Feeders", frozenset({1}), sortable=True)
    html = Page("t", None, (), (Section("s", "S", (), (table,)),)).to_html()
    for asset in (b".sheet.data", b'querySelectorAll(".sheet.data")'):
        assert asset in html
        assert asset not in page_of().to_html()
    assert b'<table class="n2 told">' not in html
    assert b'<table class="n2 ">' in html
