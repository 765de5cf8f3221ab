"""OpenDSS scripts, sanitised: what defines the circuit is kept, what runs, writes or observes is left out.

A master file and all that it redirects to become one list of commands. The engine gets them one by one: it
opens no script, solves nothing on the way and writes nothing. What a solution would have left in the circuit,
such as taps, switched capacitors or allocated loads, is therefore not in it: the circuit is the one that is
written down.

Verbs and options are matched as the engine does: in full, else the first of its list with that beginning.
Both are looked up in lists of what is known. A verb that is in neither list is refused.
"""

from __future__ import annotations

import codecs
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from dp_powerflow.grid.refusals import Problems, refusal, said

_TABLES = tomllib.loads(
    resources.files("dp_powerflow.grid").joinpath("data", "opendss.toml").read_text(encoding="utf-8")
)
"""What is known of the engine: commands, options and classes, and which of them are what."""


def listed(kind: str) -> tuple[str, ...]:
    """Words of a kind, in the order of `data/opendss.toml`."""
    return tuple(_TABLES[kind].split())


def table_of(kind: str) -> dict[str, Any]:
    """A table of `data/opendss.toml`: property → what is known of it."""
    return dict(_TABLES[kind])


_VERBS, OPTIONS = listed("verbs"), listed("options")
_CONTINUING = frozenset({"more", "m", "~"})
_OF_ELEMENTS, _OF_CIRCUITS = frozenset(listed("of_elements")), frozenset(listed("of_circuits"))
_OF_FILES = frozenset({"buscoords", "latlongcoords", "giscoords"})
_READ = frozenset({"redirect", "compile"})
_SETTING = frozenset({"set", "solve"})
_ALLOCATING = frozenset({"allocateloads", "estimate"})
"""Loads that follow from the network."""
HONOURED = frozenset(listed("honoured"))
"""Options of the circuit, or of the care with which it is solved."""
LIMITED = {option: usual.split() for option, usual in table_of("limited").items()}
"""Option of the circuit → values that are as if it were not set; others are refused."""
STATED = table_of("stated")
"""Option of runs → its usual value, and what is said where the file has another one."""


_OBSERVERS = frozenset({"monitor", "energymeter", "sensor"})
PROTECTION = frozenset({"fuse", "recloser", "relay", "swtcontrol"})
"""Devices that open a line, or do not: one that the engine rejects has opened none."""
_WITHOUT_CODE = frozenset({"generator", "storage"})
"""Classes whose programs matter to elements that are left out anyway, or to dynamics."""
_CODE = ("usermodel", "dynadll", "shaftmodel")
_SHORTEST = {"usermodel": 1, "dynadll": 2, "shaftmodel": 2}
"""Signs that the engine takes for the whole name, in some class."""
_PHASES = 3
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OPEN, _CLOSE = "\"'([{", "\"')]}"
_WITHOUT_QUOTES = str.maketrans("", "", _OPEN + _CLOSE)
_BETWEEN, _EQUALS = re.compile(r"[ \t,=]*"), re.compile(r"[ \t]*=")
_PLAIN = re.compile(r"(?:[^ \t,=!/]|/(?!/))+")
_NAMES_A_FILE = re.compile(r"file[ \t]*=[ \t]*(?=[^ \t])", re.IGNORECASE)
_WOUND = frozenset({"transformer", "autotrans"})
_BY_POSITION = 3
"""Properties of other classes that may be given without their names: what comes first does neither."""
_WRITING = ("d", "s", "@")
"""How an action begins that writes a file, or does what this module cannot see."""


_CHANGING, _HARMLESS = frozenset(listed("changing")), frozenset(listed("harmless"))


@dataclass(frozen=True)
class DssOrigin:
    """How to build the circuit again.

    Attributes
    ----------
    commands : text commands in order, verbs written in full, file names absolute; none of them solves,
        writes or observes.
    path : the master file they came from.
    places : where every command stands, such as "line 3 of feeder.dss"; empty where no file holds them.
    allocates : whether the file computes loads from the network.
    loads_declared : whether a declared table states the nominal loads.
    public : whether the network is public, and so everything that is solved on it.
    protective : positions of the commands about fuses, reclosers, relays and switch controls.
    notes : what was left out of the file, in words.
    """

    commands: tuple[str, ...]
    path: Path | None = None
    places: tuple[str, ...] = ()
    allocates: bool = False
    loads_declared: bool = False
    public: bool = False
    protective: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What a sentence calls it."""
        return f"feeder file {self.path}" if self.path else "the feeder"


@dataclass(frozen=True)
class Word:
    """One parameter of a command: `name=value`, or a value alone; `raw` is the value with its quotes."""

    name: str
    value: str
    raw: str
    start: int

    @property
    def property(self) -> str:
        """Name of the property, also where the name of its element comes before it."""
        return self.name.rpartition(".")[2].translate(_WITHOUT_QUOTES).strip().lower()


def read_script(path: Path) -> DssOrigin:
    """Origin of a master file: its sanitised commands."""
    if not path.is_file():
        raise refusal("feeder-not-found.file", path=path)
    reader = _Reader()
    reader.file(path.resolve())
    reader.problems.refuse()
    programs = [said("note.programs", reader=reader)] * bool(reader.programs)
    return DssOrigin(
        tuple(reader.commands),
        path,
        tuple(reader.places),
        reader.allocates,
        protective=frozenset(reader.protective),
        notes=(*programs, *reader.notes),
    )


class _Reader:
    """Walks through a script as the engine would."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.places: list[str] = []
        self.protective: list[int] = []
        self.problems = Problems()
        self.allocates = False
        self.programs = 0
        self.notes: dict[str, None] = {}
        self._kind = ""
        self._made = False
        self._folder = Path()
        self._open: list[Path] = []

    def file(self, path: Path) -> None:
        if path in self._open:
            raise refusal("feeder-script.circle", path=path)
        self._open.append(path)
        self._folder = path.parent
        text = _text(path)
        if "\0" in text:
            self.notes[f"{path.name} holds NUL bytes, which are left out"] = None
        for number, line in _lines(text.replace("\0", "")):
            place = f"line {number} of {path.name}"
            found = split_words(line, limit=2)
            if found:
                with self.problems.gather():
                    self._command(line, found, place)
        self._open.pop()

    def _command(self, line: str, words: list[Word], place: str) -> None:
        first, rest = words[0], words[1:]
        verb = None if first.name else _matched(first.value, _VERBS)
        if verb not in _CONTINUING:
            self._made = verb == "new"  # after others the active element need not be the one that they name
        if first.name:
            if first.name.lower().startswith("solution."):
                raise refusal("feeder-script.solution", place=place)
            if "." in first.name:
                self._kind = class_of(first.name)
            self._element(line.strip(), place)
            return
        text = line[first.start + len(first.raw) :].strip()
        if verb in _READ:
            self._redirect(verb, rest, place)
        elif verb in _SETTING:
            self._options(verb, split_words(line)[1:], place)
        elif verb in _OF_FILES:
            found = _existing(self._folder, rest[0].value) if rest else None
            if found is None:
                raise refusal("feeder-rejected.coordinates", place=place)
            self._add(f'{verb} "{found}"', place)
        elif verb in _OF_ELEMENTS:
            if verb not in _CONTINUING:
                self._kind = class_of(rest[0].value) if rest else ""
            self._element(f"{verb} {text}", place, given=1 if verb in _CONTINUING else 2)
        elif verb in _OF_CIRCUITS:
            self._add(f"{verb} {text}".strip(), place)
        elif verb in _ALLOCATING:
            self.allocates = True
        elif verb is None or verb in _CHANGING:
            raise refusal("feeder-script.command", place=place, first=first)

    def _element(self, text: str, place: str, *, given: int = 0) -> None:
        """Keep a command about an element, unless it only observes.

        Parameters
        ----------
        given : words at its start, verb and name, that are no properties.
        """
        if self._kind in _OBSERVERS:
            return
        harmless = self._kind in _HARMLESS and self._made and given
        words = [] if harmless else split_words(text)
        if self._kind in _WOUND:
            _refuse_wrong_windings(split_words(text)[given:], place)
        programs = [word for word in words if _loads_a_program(word)]
        _refuse_hidden(words[given:], place)
        if programs and self._kind in _WITHOUT_CODE:
            self.programs += len(programs)
            text = _joined(word for word in words if word not in programs)
        elif programs:
            raise refusal("feeder-script.program", place=place, programs=programs)
        if self._kind in PROTECTION:
            self.protective.append(len(self.commands))
            text = _joined(map(_with_states, split_words(text))) if self._kind == "fuse" else text
        self._add(_absolute(_without_traces(text), self._folder), place)

    def _options(self, verb: str, words: list[Word], place: str) -> None:
        kept, last = [], -1
        for word in words:
            option = _matched(word.name, OPTIONS) if word.name else OPTIONS[(last + 1) % len(OPTIONS)]
            if option is None:
                raise refusal("feeder-script.option", place=place, word=word)
            last = OPTIONS.index(option)  # a value without a name belongs to the next option
            if option in ("type", "class", "object", "element"):
                self._kind = ""  # of what comes next: whatever it is, every word is checked
            value = word.value.strip().lower()
            if option in LIMITED and not any(usual.startswith(value or "?") for usual in LIMITED[option]):
                raise refusal("feeder-script.limited", place=place, option=option, word=word)
            if option in STATED and not STATED[option][0].startswith(value):
                self.notes[said("note.option", option=option, value=value, means=STATED[option][1])] = None
            if option in HONOURED:
                kept.append(f"{option}={word.raw}")
        if kept:
            self._add("set " + " ".join(kept), place)
        if verb == "solve":
            # A solution also numbers the buses, which coordinates and voltage bases refer to.
            self._add("makebuslist", place)

    def _redirect(self, verb: str, words: list[Word], place: str) -> None:
        path = _existing(self._folder, words[0].value) if words else None
        if path is None:
            named = words[0].value if words else ""
            raise refusal("feeder-rejected.no-file", place=place, named=named)
        before = self._folder
        self.file(path)
        # After Compile, unlike Redirect, the engine stays in the folder of the file.
        self._folder = path.parent if verb == "compile" else before

    def _add(self, command: str, place: str) -> None:
        self.commands.append(command)
        self.places.append(place)


# ------------------------------------------------------------------------------------------ text


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are no comment, with their numbers."""
    inside = False
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        inside = inside or line.lstrip().startswith("/*")
        if not inside:
            yield number, line
        inside = inside and "*/" not in line


def _text(path: Path) -> str:
    """UTF-8, UTF-16 that says so, or else a code page of Western Europe."""
    content = path.read_bytes()
    try:
        return content.decode("utf-16" if content.startswith(_UTF16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def split_words(line: str, limit: int = 0) -> list[Word]:
    """Parameters of a command line as the engine separates them, at most `limit`; comments end it."""
    words: list[Word] = []
    name, named_at, position = "", 0, 0
    while not limit or len(words) < limit:
        position = _BETWEEN.match(line, position).end()  # type: ignore[union-attr]
        if position == len(line) or line[position] == "!" or line.startswith("//", position):
            break
        start = position
        value, position = _token(line, position)
        equals = _EQUALS.match(line, position)
        if equals is not None and not name:
            name, named_at, position = value, start, equals.end()
            continue
        words.append(Word(name, value, line[start:position], start if not name else named_at))
        name = ""
    if name:
        words.append(Word(name, "", "", named_at))
    return words


def _token(line: str, start: int) -> tuple[str, int]:
    """One token from a position on, and where it ends."""
    if line[start] in _OPEN:
        closing = _CLOSE[_OPEN.index(line[start])]
        stop = line.find(closing, start + 1)
        stop = len(line) if stop < 0 else stop
        return line[start + 1 : stop], min(stop + 1, len(line))
    found = _PLAIN.match(line, start)
    position = found.end() if found else start + 1
    return line[start:position], position


def _matched(text: str, known: tuple[str, ...]) -> str | None:
    lowered = text.lower()
    if lowered in known:
        return lowered
    return next((name for name in known if lowered and name.startswith(lowered)), None)


def class_of(element: str) -> str:
    """Class of an element by its name, "class.name", quoted or not."""
    return element.strip("\"'([{ ").split(".", 1)[0].lower()


def _loads_a_program(word: Word) -> bool:
    name = word.property
    return bool(word.value) and any(len(name) >= _SHORTEST[code] and code.startswith(name) for code in _CODE)


def _refuse_hidden(words: list[Word], place: str) -> None:
    """Refuse what writes a file, and properties that cannot be told from here."""
    for k, word in enumerate(words):
        if word.property and "action".startswith(word.property) and word.value.lower().startswith(_WRITING):
            raise refusal("feeder-script.writes", place=place, word=word)
        if word.name.startswith("@"):
            raise refusal("feeder-script.variable", place=place)
        unnamed = not word.name and (k >= _BY_POSITION or any(before.name for before in words[:k]))
        if unnamed:
            raise refusal("feeder-script.unnamed", place=place, word=word)


def _refuse_wrong_windings(words: list[Word], place: str) -> None:
    """Refuse a winding whose number is none: the engine reads beyond its memory for it."""
    for word in words:
        chosen = word.property.startswith("wd") and "wdg".startswith(word.property)
        if (chosen or not word.name) and not word.value.strip().isdecimal():
            raise refusal("feeder-script.winding", place=place, word=word)


def _with_states(word: Word) -> Word:
    """`action` of a fuse as the `state` of its phases: the engine frees memory twice after the former."""
    name = word.name.lower()
    if not name or not "action".startswith(name):
        return word
    return replace(word, name="state", raw=f"({','.join([word.value] * _PHASES)})")


def _joined(words: Iterable[Word]) -> str:
    return " ".join(f"{word.name}={word.raw}" if word.name else word.raw for word in words)


def _without_traces(text: str) -> str:
    """The command without `debugtrace`, which makes an element write a file."""
    if "de" not in text.lower():
        return text
    return _joined(word for word in split_words(text) if not _traces(word))


def _traces(word: Word) -> bool:
    """Whether a word is `debugtrace`; `de` is that too, or the delay of a control in seconds."""
    if word.property == "de":
        return word.value.lower().startswith(("y", "t", "@"))
    return word.property.startswith("deb") and "debugtrace".startswith(word.property)


def _absolute(text: str, folder: Path) -> str:
    """The command with every file that it names given by its full path."""
    at = 0
    while named := _NAMES_A_FILE.search(text, at):
        at = named.end()
        name, stop = _file_name(text, at)
        found = _existing(folder, name)
        if found is not None:
            text = f'{text[:at]}"{found}"{text[stop:]}'
            at += len(str(found))
    return text


def _file_name(text: str, start: int) -> tuple[str, int]:
    if text[start] in _OPEN:
        return _token(text, start)
    stop = start
    while stop < len(text) and text[stop] not in " \t,)]}!":
        stop += 1
    return text[start:stop], stop


def _existing(folder: Path, named: str) -> Path | None:
    """The file that a script names, relative to its folder; upper and lower case are the same."""
    path = Path(named.strip().replace("\\", "/"))
    candidates = (path, path.with_name(path.name + ".dss") if path.name else path)
    return next(filter(None, (_any_case(folder, candidate) for candidate in candidates)), None)


def _any_case(folder: Path, path: Path) -> Path | None:
    place = Path(path.anchor) if path.is_absolute() else folder
    for part in path.parts[1:] if path.is_absolute() else path.parts:
        step = place / part
        if part != ".." and not step.exists():
            if not place.is_dir():
                return None
            same = [entry for entry in sorted(place.iterdir()) if entry.name.lower() == part.lower()]
            if not same:
                return None
            step = same[0]
        place = step
    return place.resolve() if place.is_file() else None
