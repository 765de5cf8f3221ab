"""Damaged inputs of every format: each is accepted, or refused in a sentence.

The campaign (`make fuzz`) tries many more of them for an hour. Here every format has a few, always the same
ones, and whatever the campaign found is tried again: a file each in `found/`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_powerflow._parallel import engine_of
from dp_powerflow.config import parse_config
from dp_powerflow.errors import ConfigError, CorpusError, DpPowerflowError, Lines, LoadDataError, printable
from dp_powerflow.loads.declared import MeterFormat
from support.fuzz import campaign, doors
from support.fuzz.campaign import input_of
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
    "meters, long Parquet": 40,
}
USUAL = 6


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


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    return content.getvalue()


OTHER_FILES: dict[str, Callable[[bytes], bytes]] = {
    "utf-16": lambda content: content.decode("latin-1").encode("utf-16"),
    "utf-16 without a mark": lambda content: content.decode("latin-1").encode("utf-16-le"),
    "code page": lambda content: content + "ü,ß\n".encode("cp1252"),
    "nul": lambda content: b"\0".join((content[:12], content[12:30], content[30:])),
    "one long word": lambda content: content + b'"' + b"x" * 200_000 + b'"\n',
    "gzip": gzip.compress,
    "spreadsheet": lambda _: zipped(),
    "zeros": lambda _: bytes(64),
    "half a letter": lambda _: b"\xff\xfeN",
    "empty": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "deep": lambda _: DEEP.encode(),
    "deep objects": lambda _: b'{"a":' * 100_000,
    "long number": lambda _: b'{"a": ' + b"9" * 100_000 + b"}",
}
TEXTS = (
    *("config", "fleet config", "meters, long CSV", "meters, wide CSV", "services", "weather, CSV"),
    *("holidays", "irradiance", "load classes", "taps", "loads"),
)
NO_TEXT = list(OTHER_FILES)[:9]
FEEDERS, NO_FEEDER = ("OpenDSS", "pandapower"), list(OTHER_FILES)[5:10]


# A listed file of a release is held against its hash, whatever it is.
@pytest.mark.parametrize("name", [name for name in DOORS if name != "scheduler" and ", verified" not in name])
def test_a_file_of_another_kind_is_refused_in_a_sentence(world: World, name: str) -> None:
    door = opened(world, name)
    for kind, change in OTHER_FILES.items():
        outcome = judged(door, change(door.seeds[0]))
        assert outcome.kind != "failure", (kind, outcome)
        readable = kind not in (NO_TEXT if name in TEXTS else NO_FEEDER if name in FEEDERS else ())
        assert outcome.kind == "refused" or readable, kind


@pytest.mark.parametrize("name", TEXTS)
def test_other_line_ends_and_a_mark_are_read(world: World, name: str) -> None:
    door = opened(world, name)
    lines = door.seeds[0].split(b"\n")
    ends = (b"\r\n",) if "config" in name else (b"\r\n", b"\r")  # which TOML does not know
    for content in (b"\xef\xbb\xbf" + door.seeds[0], *(end.join(lines) for end in ends)):
        assert judged(door, content).kind == "accepted", content[:20]


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
    for name in ("config", "nodes.parquet, read", "ledger"):
        door = opened(world, name)
        inputs = [input_of(door, name, 5, k) for k in range(20)]
        assert inputs == [input_of(door, name, 5, k) for k in range(20)]
        assert len(set(inputs)) > 10


def test_a_campaign_keeps_what_fails_and_goes_on_after_a_process_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = {"dying": lambda _: os._exit(3), "wrong": raising(KeyError()), "fine": bytes}
    monkeypatch.setattr(doors, "DOORS", {name: lambda _, n=name: a_door(enter[n]) for name in enter})
    counts = campaign.run_campaign(tmp_path, list(enter), minutes=0.0, seed=1)
    found = {name: [kind.partition(":")[0] for kind in kinds] for name, kinds in counts.items()}
    assert found == {"dying": ["failure"], "wrong": ["failure"], "fine": ["accepted"]}
    kept = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [(entry["format"], entry["case"]) for entry in kept] == [("dying", 0), ("wrong", 0)]


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
