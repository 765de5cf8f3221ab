"""Damaged inputs of every format: each is accepted, or refused in a sentence; what must be refused, is.

The campaign (`make fuzz`) tries many more of them for an hour. Here every format has a few, always the same
ones, and whatever the campaign found is tried again: a file each in `found/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_powerflow._parallel import engine_of
from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError, Lines, LoadDataError, printable
from dp_powerflow.loads.declared import MeterFormat
from support.fuzz.campaign import Tally, added_up, input_of, smaller
from support.fuzz.changes import damaged
from support.fuzz.doors import DOORS
from support.fuzz.judging import Door, Outcome, judged, wrong_words
from support.fuzz.planted import KINDS, run_planted
from support.fuzz.world import World, without_warnings
from support.small import RAW

FOUND = Path(__file__).parent / "found"
SEED = 1
CASES = {
    "scheduler": 2,  # each waits for nobody to answer
    "pandapower": 3,
    **dict.fromkeys(("command line", "OpenDSS", "OpenDSS, all problems", "gridfm table"), 6),
}
USUAL = 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


_OPENED: dict[str, Door] = {}


def door_of(world: World, name: str) -> Door:
    if name not in _OPENED:
        with without_warnings():
            _OPENED[name] = DOORS[name](world)
    return _OPENED[name]


@pytest.fixture(scope="module", autouse=True)
def _closed_again() -> Iterator[None]:
    yield
    _OPENED.clear()


@pytest.mark.parametrize("name", DOORS)
def test_a_damaged_input_is_accepted_or_refused_in_a_sentence(world: World, name: str) -> None:
    door = door_of(world, name)
    assert judged(door, door.seeds[0]).kind == ("refused" if name == "scheduler" else "accepted")
    for case in range(CASES.get(name, USUAL)):
        outcome = judged(door, input_of(door, name, SEED, case))
        assert outcome.kind != "failure", f"--format '{name}' --seed {SEED} --case {case}: {outcome}"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_the_campaign_found_is_mended(world: World, path: Path) -> None:
    found = json.loads(path.read_text())
    outcome = judged(door_of(world, found["format"]), bytes.fromhex(found["input"]))
    assert outcome.kind == found["now"], outcome


DEEP = b"[" * 100_000
DSS = "Clear\nNew Circuit.c basekv=12.47\nNew Line.a bus1=sourcebus bus2=d\nNew Load.l bus1=d kv=12.47 kw=5\n"
BY_HAND = [
    *(("config", b"a = " + DEEP), ("fleet config", b"a = " + DEEP), ("config", b"a = " + b"9" * 5000)),
    *(("secret key", DEEP), ("receipt", DEEP), ("kept model", b"\xff"), ("load model", b"\xff\xfe")),
    *(
        ("fleet register", b"[]"),
        ("fleet register", b'{"a": 1}'),
        ("fleet register", b"{"),
        ("fleet register", DEEP),
    ),
    *(("kept twin", b"{}"), ("kept twin", b"[]"), ("kept twin", DEEP), ("kept twin", b"\xff")),
    *(("manifest, audited", b"{"), ("manifest, audited", b"\xff"), ("manifest, audited", b'{"a": 1e999}')),
    *(
        ("witness", DEEP),
        ("witness", b"{"),
        ("fleet.json", b'{"a": "\\udfff"}'),
        ("manifest", b'{"a": "\\ud800"}'),
    ),
    *(("gridfm count", b"9" * 30), ("gridfm count", b"0"), ("services", b"\xff"), ("location", b"x" * 5000)),
    ("OpenDSS", f"{DSS}New Load.m bus1=d.1.2 phases=1 kv=12.47 kw=5\nEdit Load.m phases=3\n".encode()),
    ("OpenDSS", f"{DSS}New Transformer.t windings=3 wdg=x bus=d\n".encode()),
    ("fleet.json", b'{"a": 1e999}'),
    ("OpenDSS", f"{DSS}CalcVoltageBases\nNew Transformer.t windings=3\n".encode()),
    (
        "OpenDSS",
        f"{DSS}New Line.b phases=1 bus1=d.1 bus2=e.2\nNew Load.m bus1=d.1 bus2=e\nphases=4\n".encode(),
    ),
]


@pytest.mark.parametrize(("name", "content"), BY_HAND, ids=lambda value: str(value[:24]))
def test_what_stopped_the_program_once_is_refused(world: World, name: str, content: bytes) -> None:
    assert judged(door_of(world, name), content).kind == "refused"


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b'{"failed": [1]}',
        b"\xff",
        b'{"failed": [{"feeder": "a", "name": []}]}',
        DEEP,
    ],
    ids=lambda value: str(value[:24]),
)
def test_what_failed_in_the_last_run_decides_nothing_and_is_passed_over_if_damaged(
    world: World, content: bytes
) -> None:
    """It stopped the program once."""
    outcome = judged(door_of(world, "fleet failures"), content)
    assert outcome.kind == "accepted", outcome


@pytest.mark.parametrize("stamps", ["", "abc", "%H:%M", "%d.%m", "%Y-%m %%d", "%j", "%"])
def test_a_format_of_stamps_without_a_day_is_refused(stamps: str) -> None:
    """Before: Arrow made up the rest of the date, and the process died of an empty format now and then."""
    with pytest.raises(LoadDataError, match="must name year, month and day"):
        MeterFormat("kW", "start", "UTC", 60, stamp_format=stamps)


@pytest.mark.parametrize("stamps", ["%d.%m.%Y %H:%M", "%Y%m%d", "%F %T", "%D %R", "%e %b %y", "%Y %j", "%s"])
def test_a_format_of_stamps_with_a_day_is_taken(stamps: str) -> None:
    assert MeterFormat("kW", "start", "UTC", 60, stamp_format=stamps).stamp_format == stamps


@pytest.mark.parametrize(
    ("name", "seed", "case"),
    [
        ("load model", 3033, 3),
        ("fleet quality", 3033, 171),
        ("manifest, audited", 21, 12),
        ("fleet.json", 2026, 161),
    ],
)
def test_what_is_too_large_to_be_kept_is_mended(world: World, name: str, seed: int, case: int) -> None:
    door = door_of(world, name)
    assert judged(door, input_of(door, name, seed, case)).kind != "failure"


def test_a_key_that_is_called_like_a_mode_is_a_mistake(tmp_path: Path) -> None:
    """Before: its name was taken for the mode, the key was never found, and the search went on for ever."""
    with pytest.raises(ConfigError, match=r"unknown key 'network\.twin-network'"):
        parse_config({**RAW, "network": {"mode": "twin-network", "twin-network": 1.0}}, tmp_path)


@pytest.mark.slow
def test_planted_inputs_are_refused() -> None:
    planted = run_planted(SEED, most=8)
    assert set(planted.counts) == set(KINDS)
    assert all(count for count, _ in planted.counts.values())
    assert planted.missed == []


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
    for name in ("config", "part, read", "ledger", "command line"):
        door = door_of(world, name)
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
    for outcome in (Outcome("accepted"), Outcome("refused"), Outcome("failure", "a")):
        one.count(outcome)
    other.count(Outcome("failure", "a"))
    total = added_up([{"config": one}, {"config": other}])["config"]
    assert (total.inputs, total.accepted, total.refused, total.failed) == (4, 1, 1, 2)
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
