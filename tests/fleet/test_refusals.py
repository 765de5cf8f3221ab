"""Feeders that cannot be released: grouped, each with a remedy, and pasted remedies work."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dp_powerflow
from dp_powerflow.fleet.config import parse_fleet_config
from dp_powerflow.fleet.plan import plan_fleet
from dp_powerflow.fleet.refusals import lines_to_paste, reasons_in, refusals
from dp_powerflow.fleet.remedies import PATTERNS, remedy_of
from dp_powerflow.report.refusals import refusal_entries, refusal_lines
from dp_powerflow.report.results import render_fleet_plan
from support.fleet_mixed import circuit, raw, write_feeders
from support.here import Here

ISLANDS = (
    "{} nodes are islanded, with no path to a source ({}); leave them out with feeder.drop_islanded = true "
    "(on the command line --drop-islanded), or close a switch that feeds them"
)
CHARGING = (
    "line '{}' cannot be rebuilt from its length, R and X, as its charging is far from network.c_nf_per_km; "
    "set network.charging_epsilon, such as 0.5, for charging with a level of its own"
)


def test_equal_problems_are_one_entry_whatever_names_and_figures_they_have() -> None:
    found = refusals(
        [
            ("b3", "feeder-0002", CHARGING.format("l7")),
            ("a17", "feeder-0001", ISLANDS.format(3, "'x.1', 'y.1'")),
            ("c9", "feeder-0003", ISLANDS.format(12, "'p.1', …")),
        ]
    )
    assert [refusal.keys for refusal in found] == [("a17", "c9"), ("b3",)]
    assert found[0].sentence == ISLANDS.format(3, "'x.1', 'y.1'")
    assert found[0].feeders == (("a17", "feeder-0001"), ("c9", "feeder-0003"))


def test_several_reasons_of_one_feeder_are_several_problems() -> None:
    both = f"the feeder cannot be used for 5 reasons: (1) {CHARGING.format('a')}; (2) mend it (now)"
    told = both + "; and 3 more, which 'dp-powerflow inspect FEEDER' lists"
    assert reasons_in(told) == (CHARGING.format("a"), "mend it (now)")
    assert len(refusals([("a17", "feeder-0001", told), ("b3", "feeder-0002", CHARGING.format("b"))])) == 2
    assert reasons_in("one reason; (2) of nothing") == ("one reason; (2) of nothing",)


def test_nothing_is_refused_and_nothing_is_shown() -> None:
    assert refusals([]) == []
    assert refusal_lines([]) == []


def test_what_is_pasted_is_one_table_per_feeder() -> None:
    key = 'p1/Master "old"'
    found = refusals(
        [
            (key, "feeder-0001", ISLANDS.format(3, "'x.1'")),
            (key, "feeder-0001", CHARGING.format("l7")),
            (
                "b3",
                "feeder-0002",
                "winding 2 of transformer 't' is off neutral; declare the tap in a tap file",
            ),
            ("c9", "feeder-0003", CHARGING.format("l7")),
            ("d1", "feeder-0004", "OpenDSS rejects line 3 of d1.dss; correct it"),
        ]
    )
    assert tomllib.loads("\n".join(lines_to_paste(found)))["overrides"] == {
        key: {"feeder": {"drop_islanded": True}, "network": {"charging_epsilon": 0.5}},
        "b3": {"feeder": {"taps": "taps/b3.csv"}},
        "c9": {"network": {"charging_epsilon": 0.5}},
    }
    assert '# add to [overrides."c9"]:' in lines_to_paste(found, existing={"c9"})


def test_feeders_of_one_frame_are_one_line_of_the_fleet() -> None:
    told = (
        "it has the nodes and connections of feeder 'a'; list one of them if they are versions of one "
        'network, or else write under [fleet] same_frame = { feeders = ["a", "%s"], reason = "<why>" }'
    )
    found = refusals([(key, "feeder", told % key) for key in ("b", "c")])
    assert len(found) == 1
    pasted = tomllib.loads("\n".join(lines_to_paste(found)))
    assert pasted == {"same_frame": {"feeders": ["a", "b", "c"], "reason": "<why>"}}


def test_the_page_names_feeders_reason_and_remedy() -> None:
    problems = [(f"f{k}", f"feeder-{k:04d}", CHARGING.format(f"*{k}")) for k in range(12)]
    text = "\n".join(refusal_lines(refusals(problems)))
    assert "**12 feeders cannot be released**" in text
    assert "1. 12 feeders: line '\\*0' cannot be rebuilt" in text
    assert ": f0, f1, f2, f3, f4, f5, f6, f7 and 4 more" in text
    assert "*Remedy:* Give its charging a share of epsilon under its overrides" in text
    entries = refusal_entries(refusals(problems))
    assert entries["refusals"][0]["feeders"] == [f"f{k}" for k in range(12)]
    assert len(tomllib.loads("\n".join(entries["paste"]))["overrides"]) == 12


@pytest.mark.parametrize(
    ("told", "override"),
    [
        (
            "the feeder has no capacitor and no PV system that the twin could protect; leave out "
            'network.capacitors and leave out network.pv, or set network.protect = "if present"',
            {"remove": ["network.capacitors", "network.pv"]},
        ),
        ("no lines; set network.lines to 'impedance'", {"network": {"lines": "impedance"}}),
        ("set continues_network = 'network-twin-7' under overrides", {"continues_network": "network-twin-7"}),
        ("declare a load table in feeder.loads", {"feeder": {"loads": "loads/{key}.csv"}}),
        ("the tap file lacks winding 2 of transformer 't'", {"remove": ["feeder.taps"]}),
        ('mend that, or set network.controls = "frozen"', {"network": {"controls": "frozen"}}),
        ('mend that, or set controls to "frozen"', {"network": {"controls": "frozen"}}),
        ("or let controls act (network.controls)", {"network": {"controls": "day"}}),
        (
            'leave "connections" out of network.also_publish',
            {"network": {"also_publish": ["loads", "head", "states"]}},
        ),
        ('set network.coordinates = "private"', {"network": {"coordinates": "private"}}),
        ("the config has a [pv] section, but the feeder has no PV system; remove it", {"remove": ["pv"]}),
        ("pv.volt_var = 'file' needs controls that act", {"pv": {"volt_var": "none"}}),
        (
            "nodes.class_of_load names 's76a', a load which the feeder does not have",
            {"remove": ["nodes.class_of_load"]},
        ),
        ("set nodes.kw_per_customer = 12.5 (nodes", {"nodes": {"kw_per_customer": 12.5}}),
        ("or set network.require_evidence = false", {"network": {"require_evidence": False}}),
    ],
)
def test_every_key_that_a_sentence_names_has_its_override(told: str, override: dict[str, Any]) -> None:
    remedy = remedy_of(told)
    assert remedy is not None
    assert remedy.override == override
    assert "overrides" in remedy.words


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (
            "ask for less, or raise the cap with a recorded reason; nothing was spent",
            "fleet.network_epsilon_cap",
        ),
        ("restore those, or choose a new twin id, which is paid for anew", "network.id"),
        ("free some space, choose another release.output or release fewer days", "fleet.output"),
        ("out exists already; choose another directory or remove it first", "fleet.output"),
        ("choose a new release id, or restore the configuration", "fleet.continues"),
    ],
)
def test_keys_that_all_feeders_share_are_those_of_the_fleet(told: str, named: str) -> None:
    remedy = remedy_of(told)
    assert remedy is not None
    assert named in remedy.words
    assert not remedy.override


def test_every_remedy_is_for_a_sentence_that_the_package_has() -> None:
    sentences = set()
    package = Path(dp_powerflow.__file__).parent
    for room in ("grid", "powerflow", "pipeline", "twin", "privacy", "fleet"):
        for path in (package / room).rglob("*.py"):
            if path.name != "remedies.py":
                sentences |= {_text(node) for node in ast.walk(ast.parse(path.read_text()))}
    for pattern in PATTERNS:
        assert any(pattern.search(sentence) for sentence in sentences), pattern.pattern


def _text(node: ast.AST) -> str:
    """A string of the source, with something in the place of what is filled in later."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        filled = ast.unparse(node.value)
        return {"json.dumps(keys)": "[5.5]", "key": "nodes.x"}.get(filled, "5.5")
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# ------------------------------------------------------------------------------------- the journey

LOST = "New Line.lost bus1=x bus2=y length=1 phases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 units=km\n"
SERIES = (
    "New Reactor.limiter phases=3 bus1=b bus2=z r=0.1 x=0.5\n"
    "New Load.lz bus1=z phases=3 kv=12.47 kw=50 kvar=10\n"
)
GENERATOR = "New Generator.sun bus1=b phases=3 kv=12.47 kw=40 kvar=0 model=1\n"
CABLE = (
    "New Line.cable phases=3 bus1=b bus2=k r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=3000 c0=900 length=20 units=km\n"
    "New Load.lk bus1=k phases=3 kv=12.47 kw=10 kvar=2\n"
)
FEEDERS = {
    "lost": circuit(("pv",), more=LOST, laterals=1),
    "series": circuit(("pv",), more=SERIES, laterals=2),
    "generator": circuit((), more=GENERATOR, laterals=3),
    "cable": circuit(("pv",), more=CABLE, laterals=4),
    "tapped": circuit(("pv", "transformer"), more="Edit Transformer.step wdg=2 tap=1.05\n", laterals=5),
    "copy-1": circuit(("pv",), laterals=6),
    "copy-2": circuit(("pv",), laterals=6).replace("length=1.5", "length=1.6"),
}


def pasted(content: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    """The config with what the remedies say, as its owner would write it."""
    tables = "\n".join(re.sub(r"^# add to (\[.*\]):$", r"\1", line) for line in lines)
    new = tomllib.loads(tables.replace("# under [fleet]:", "[fleet]").replace("<why>", "two streets"))
    merged = {**content, "fleet": {**content["fleet"], **new.get("fleet", {})}}
    overrides = {key: dict(value) for key, value in content.get("overrides", {}).items()}
    for key, own in new.get("overrides", {}).items():
        known = overrides.setdefault(key, {})
        for name, value in own.items():
            if isinstance(value, dict):
                known[name] = {**known.get(name, {}), **value}
            else:
                known[name] = [*known.get(name, []), *value] if isinstance(value, list) else value
    return {**merged, "overrides": overrides}


@pytest.mark.slow
def test_a_fleet_whose_owner_pastes_what_plan_says_can_be_released(tmp_path: Path) -> None:
    write_feeders(tmp_path, FEEDERS)
    (tmp_path / "taps").mkdir()
    declared = "# declared: the operator\ntransformer,winding,tap\nstep,2,1.05\n"
    (tmp_path / "taps" / "tapped.csv").write_text(declared)
    content = raw(pv={"latitude": 46.5})
    told: set[str] = set()
    for _ in range(3):
        planned = plan_fleet(parse_fleet_config(content, base=tmp_path), engine=Here())
        found = refusals([(p.key, p.name, p.problem) for p in planned.feeders if p.problem is not None])
        if not found:
            break
        told |= {refusal.sentence for refusal in found}
        content = pasted(content, lines_to_paste(found, content.get("overrides", {})))
    assert not found
    for words in (
        "islanded",
        "neither line nor switch",
        "charging is far",
        "tap file",
        "nodes and connections",
    ):
        assert any(words in sentence for sentence in told), words
    assert any("[pv] section" in sentence for sentence in told)
    assert content["overrides"]["generator"] == {"remove": ["pv", "network.pv"]}
    assert not {"copy-1", "copy-2"} & content["overrides"].keys()


def test_the_plan_of_a_fleet_ends_with_its_refusals(tmp_path: Path) -> None:
    write_feeders(tmp_path, {key: FEEDERS[key] for key in ("lost", "generator")})
    config = parse_fleet_config(raw(overrides={"lost": {"remove": ["network.pv"]}}), base=tmp_path)
    shown = render_fleet_plan(plan_fleet(config, engine=Here()))
    text = "\n".join(shown.lines)
    assert "**2 feeders cannot be released**" in text
    assert '# add to [overrides."lost"]:\nfeeder = { drop_islanded = true }' in text
    assert '[overrides."generator"]\nremove = ["network.pv"]' in text
    entries = json.loads(shown.json_text)["refusals"]
    assert sorted(entry["feeders"] for entry in entries) == [["generator"], ["lost"]]
