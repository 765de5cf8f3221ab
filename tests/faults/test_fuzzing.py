"""Damaged inputs of every format: each is accepted, or refused in a sentence.

The campaign (`make fuzz`) tries many more of them for an hour. Here every format has a few, always the same
ones, and whatever the campaign found is tried again: a file each in `found/`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dp_powerflow._parallel import engine_of
from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError, Lines, LoadDataError, printable
from dp_powerflow.loads.declared import MeterFormat
from support.fuzz.campaign import Tally, input_of, smaller
from support.fuzz.changes import damaged
from support.fuzz.doors import DOORS, opened
from support.fuzz.judging import Door, judged, wrong_words
from support.fuzz.world import World
from support.small import RAW

FOUND = Path(__file__).parent / "found"
SEED = 1
CASES = {
    "scheduler": 2,  # each waits for nobody to answer
    "pandapower": 3,
    **dict.fromkeys(("OpenDSS", "OpenDSS, all problems", "gridfm table"), 6),
}
USUAL = 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", DOORS)
def test_a_damaged_input_is_accepted_or_refused_in_a_sentence(world: World, name: str) -> None:
    door = opened(world, name)
    assert judged(door, door.seeds[0]).kind == ("refused" if name == "scheduler" else "accepted")
    for case in range(CASES.get(name, USUAL)):
        outcome = judged(door, input_of(door, name, SEED, case))
        assert outcome.kind != "failure", f"--format '{name}' --seed {SEED} --case {case}: {outcome}"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_the_campaign_found_is_corrected(world: World, path: Path) -> None:
    found = json.loads(path.read_text())
    outcome = judged(opened(world, found["format"]), bytes.fromhex(found["input"]))
    assert outcome.kind == found["now"], outcome


DEEP = "[" * 100_000
DSS = "Clear\nNew Circuit.c basekv=12.47\nNew Line.a bus1=sourcebus bus2=d\nNew Load.l bus1=d kv=12.47 kw=5\n"
BY_HAND = json.loads(Path(__file__).with_name("by_hand.json").read_bytes())
"""Format, what becomes of the input, and the input; failures of the last run of a fleet decide nothing."""


@pytest.mark.parametrize(("name", "kind", "content"), BY_HAND, ids=lambda value: str(value[:24]))
def test_what_stopped_the_program_once_does_not(world: World, name: str, kind: str, content: str) -> None:
    text = content.replace("DEEP", DEEP).replace("LONG", "9" * 5000).replace("DSS", DSS)
    assert judged(opened(world, name), text.encode("latin-1")).kind == kind


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("load model", rb'"variance_floor":[^,}]+', b'"variance_floor":Infinity'),
        ("manifest, audited", rb'"epsilon": 4.0', b'"epsilon": 1.'),
        ("fleet.json", rb'"feeders": \[', b'"feeders": [[{"delta": 1e-05}, 5, "feeder-0001"],'),
    ],
)
def test_what_stopped_the_program_once_within_a_long_input_does_not(
    world: World, name: str, old: bytes, new: bytes
) -> None:
    door = opened(world, name)
    content, found = re.subn(old, new, door.seeds[0], count=1)
    assert found
    assert judged(door, content).kind != "failure"


@pytest.mark.parametrize("stamps", ["", "abc", "%H:%M", "%d.%m", "%Y-%m %%d", "%j", "%"])
def test_a_format_of_stamps_without_a_day_is_refused(stamps: str) -> None:
    """Before: Arrow made up the rest of the date, and the process died of an empty format now and then."""
    with pytest.raises(LoadDataError, match="must name year, month and day"):
        MeterFormat("kW", "start", "UTC", 60, stamp_format=stamps)


@pytest.mark.parametrize("stamps", ["%d.%m.%Y %H:%M", "%Y%m%d", "%F %T", "%D %R", "%e %b %y", "%Y %j", "%s"])
def test_a_format_of_stamps_with_a_day_is_taken(stamps: str) -> None:
    assert MeterFormat("kW", "start", "UTC", 60, stamp_format=stamps).stamp_format == stamps


def test_a_key_that_is_called_like_a_mode_is_a_mistake(tmp_path: Path) -> None:
    """Before: its name was taken for the mode, the key was never found, and the search went on for ever."""
    with pytest.raises(ConfigError, match=r"unknown key 'network\.twin-network'"):
        parse_config({**RAW, "network": {"mode": "twin-network", "twin-network": 1.0}}, tmp_path)


# ---------------------------------------------------------------------------- the judge finds what is wrong
def a_door(enter: object, **more: object) -> Door:
    return Door((b"good",), damaged, enter, **more)  # type: ignore[arg-type]


def raising(error: BaseException) -> object:
    def enter(content: bytes) -> None:
        raise error

    return enter


@pytest.mark.parametrize("message", ["", "a\x1b[2J", "one\ntwo", "\u202egnp", "half \ud800", "a" * 200_000])
def test_a_message_that_is_no_sentence_is_a_failure(message: str) -> None:
    class RawError(DpPowerflowError):
        def __str__(self) -> str:
            return message

    assert judged(a_door(raising(RawError())), b"").kind == "failure"


def test_what_else_the_judge_calls_a_failure(tmp_path: Path) -> None:
    def writes(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)

    def starts(content: bytes) -> None:
        os.system("true")

    assert judged(a_door(raising(ConfigError("do this"))), b"").kind == "refused"
    assert judged(a_door(raising(ConfigError("it is 4711")), secrets=("4711",)), b"").kind == "failure"
    for error in (KeyError("a"), RecursionError(), MemoryError(), SystemExit(3), OSError(2, "no")):
        outcome = judged(a_door(raising(error)), b"")
        assert (outcome.kind, outcome.signature.split()[0]) == ("failure", type(error).__name__)
    assert judged(a_door(writes, closed=(tmp_path,)), b"").signature == "wrote a file"
    assert judged(a_door(starts), b"").kind == "failure"
    assert list(tmp_path.iterdir()) == []


def test_the_same_number_is_the_same_input(world: World) -> None:
    for name in ("config", "part, read", "ledger"):
        door = opened(world, name)
        assert [input_of(door, name, 5, k) for k in range(20)] == [
            input_of(door, name, 5, k) for k in range(20)
        ]
        assert len({input_of(door, name, 5, k) for k in range(20)}) > 10


def test_an_input_that_fails_is_made_smaller() -> None:
    def enter(content: bytes) -> None:
        if b"bad" in content:
            raise KeyError

    door = a_door(enter)
    long = b"x" * 500 + b"bad" + b"y" * 300
    assert smaller(door, long, judged(door, long).signature) == b"bad"


def test_tallies_add_up() -> None:
    one, other = Tally(), Tally()
    for kind in ("accepted", "refused", "failure"):
        one.count(kind, "a")
    other.count("failure", "a")
    total = one + other
    assert total.kinds == {"accepted": 1, "refused": 1, "failure": 2}
    assert total.signatures == {"a": 2}


# ------------------------------------------------------------------------- messages, and what else is shown
def test_what_is_no_address_begins_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: Dask began one, and wrote a traceback when Python ended."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("began a client"))
    for address in ("gibberish", "no-port", "foo://x:1", "inproc://x", "ß", "tcp://x", "tls://", ""):
        with pytest.raises(ConfigError, match="no Dask scheduler answers"):
            engine_of(None, address).check()


def test_messages_of_errors_can_be_shown() -> None:
    assert str(CorpusError("é 😀 ε")) == "é 😀 ε"
    assert str(CorpusError("a\nb\x1b[2J\u202e\ud800\x00")) == "a\\nb\\x1b[2J\\u202e\\ud800\\x00"
    assert str(ConfigError(Lines("two mistakes:\n  1. a\n  2. b"))) == "two mistakes:\n  1. a\n  2. b"
    assert len(printable("a" * 10**6)) < 20_000
    assert not wrong_words(str(CorpusError("\u2066\x85\u2028" * 9)))
