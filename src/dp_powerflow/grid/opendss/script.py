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

from dp_powerflow.errors import FeederError, FeederRejectedError, FeederScriptError
from dp_powerflow.grid.buses import Problems

_CONTINUING = frozenset({"more", "m", "~"})
_OF_ELEMENTS = _CONTINUING | {"new", "edit", "select", "enable", "disable", "open", "close", "batchedit"}
_OF_CIRCUITS = frozenset(
    {"clear", "clearall", "calcvoltagebases", "setkvbase", "setbusxy", "makebuslist", "reprocessbuses", "var"}
)
_OF_FILES = frozenset({"buscoords", "latlongcoords", "giscoords"})
_READ = frozenset({"redirect", "compile"})
_SETTING = frozenset({"set", "solve"})
_ALLOCATING = frozenset({"allocateloads", "estimate"})
"""Loads that follow from the network."""

_WORDS = {
    kind: tuple(words.split())
    for kind, words in tomllib.loads(
        resources.files("dp_powerflow.grid").joinpath("data", "opendss.toml").read_text(encoding="utf-8")
    ).items()
}
"""Commands, options and classes of the engine, and which of them are what."""
_VERBS, OPTIONS = _WORDS["verbs"], _WORDS["options"]
HONOURED = frozenset(_WORDS["honoured"])
"""Options of the circuit, or of the care with which it is solved."""
LIMITED = {
    "loadmodel": ("powerflow",),
    "cktmodel": ("multiphase",),
    "year": ("0", "1"),
    "circuit": (),
    "activeactor": ("1",),
}
"""Option of the circuit → values that are as if it were not set; others are refused."""
STATED = {
    "mode": ("snapshot", "loads are those of a snapshot, without load shapes, growth or faults"),
    "controlmode": ("static", "controls act as in a snapshot, unless a release freezes them"),
}
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
_WOUND = frozenset({"transformer", "autotrans"})
_BY_POSITION = 3
"""Properties of other classes that may be given without their names: what comes first does neither."""
_WRITING = ("d", "s", "@")
"""How an action begins that writes a file, or that nobody sees from here."""


@dataclass(frozen=True)
class Script:
    """The commands that define a circuit.

    Attributes
    ----------
    commands : in order; every verb written in full, every file name absolute.
    places : of every command, "line 3 of feeder.dss".
    allocates : whether the file computes loads from the network.
    protective : positions of the commands about devices of protection.
    notes : what was left out of the commands, in words.
    """

    commands: tuple[str, ...]
    places: tuple[str, ...]
    allocates: bool
    protective: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


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


def read_script(path: Path) -> Script:
    """The sanitised commands of a master file."""
    if not path.is_file():
        raise FeederError(
            f"feeder file {path} does not exist; give the path of an OpenDSS master file",
            code="feeder-not-found",
        )
    reader = _Reader()
    reader.file(path.resolve())
    reader.problems.refuse()
    programs = f"{reader.programs} programs (user-written models) are left out"
    return Script(
        tuple(reader.commands),
        tuple(reader.places),
        reader.allocates,
        frozenset(reader.protective),
        (*[programs] * bool(reader.programs), *reader.notes),
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
            raise FeederScriptError(f"feeder file {path} redirects to itself; remove the circle")
        self._open.append(path)
        self._folder = path.parent
        text = _text(path)
        if "\0" in text:
            self.notes[f"{path.name} holds NUL bytes, which are left out"] = None
        for number, line in _lines(text.replace("\0", "")):
            place = f"line {number} of {path.name}"
            words = split_words(line, limit=2)
            if words:
                with self.problems.gather():
                    self._command(line, words, place)
        self._open.pop()

    def _command(self, line: str, words: list[Word], place: str) -> None:
        first, rest = words[0], words[1:]
        verb = None if first.name else _matched(first.value, _VERBS)
        if verb not in _CONTINUING:
            self._made = verb == "new"  # after others the active element need not be the one that they name
        if first.name:
            if first.name.lower().startswith("solution."):
                raise FeederScriptError(f"{place}: a script cannot edit the solution; remove the command")
            if "." in first.name:
                self._kind = _class_of(first.name)
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
                raise FeederRejectedError(
                    f"{place}: OpenDSS rejects the file of coordinates, which does not exist"
                )
            self._add(f'{verb} "{found}"', place)
        elif verb in _OF_ELEMENTS:
            if verb not in _CONTINUING:
                self._kind = _class_of(rest[0].value) if rest else ""
            self._element(f"{verb} {text}", place, given=1 if verb in _CONTINUING else 2)
        elif verb in _OF_CIRCUITS:
            self._add(f"{verb} {text}".strip(), place)
        elif verb in _ALLOCATING:
            self.allocates = True
        elif verb is None or verb in _WORDS["changing"]:
            raise FeederScriptError(
                f"{place}: the command '{first.value}' does not describe a circuit; remove it, or write down "
                "what it does"
            )

    def _element(self, text: str, place: str, *, given: int = 0) -> None:
        """Keep a command about an element, unless it only observes.

        Parameters
        ----------
        given : words at its start, verb and name, that are no properties.
        """
        if self._kind in _OBSERVERS:
            return
        harmless = self._kind in _WORDS["harmless"] and self._made and given
        words = [] if harmless else split_words(text)
        if self._kind in _WOUND:
            _refuse_wrong_windings(split_words(text)[given:], place)
        programs = [word for word in words if _loads_a_program(word)]
        _refuse_hidden(words[given:], place)
        if programs and self._kind in _WITHOUT_CODE:
            self.programs += len(programs)
            text = _joined(word for word in words if word not in programs)
        elif programs:
            raise FeederScriptError(f"{place}: {programs[0].property} loads a program; remove it")
        if self._kind in PROTECTION:
            self.protective.append(len(self.commands))
            text = _joined(map(_with_states, split_words(text))) if self._kind == "fuse" else text
        self._add(_absolute(_without_traces(text), self._folder), place)

    def _options(self, verb: str, words: list[Word], place: str) -> None:
        kept, last = [], -1
        for word in words:
            option = _matched(word.name, OPTIONS) if word.name else OPTIONS[(last + 1) % len(OPTIONS)]
            if option is None:
                raise FeederScriptError(f"{place}: '{word.name}' is not an option of OpenDSS; correct it")
            last = OPTIONS.index(option)  # a value without a name is that of the next option
            if option in ("type", "class", "object", "element"):
                self._kind = ""  # of what comes next; whatever it is, all of it is looked at
            value = word.value.strip().lower()
            if option in LIMITED and not any(usual.startswith(value or "?") for usual in LIMITED[option]):
                raise FeederScriptError(
                    f"{place}: Set {option}={word.value} is not modelled; remove it, and state the circuit "
                    "that it stands for"
                )
            if option in STATED and not STATED[option][0].startswith(value):
                self.notes[f"the file has {option}={value}, which is left out: {STATED[option][1]}"] = None
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
            raise FeederRejectedError(
                f"OpenDSS rejects {place}; the file '{named}' does not exist, correct its path"
            )
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


def _class_of(element: str) -> str:
    return element.strip("\"'([{ ").split(".", 1)[0].lower()


def _loads_a_program(word: Word) -> bool:
    name = word.property
    return bool(word.value) and any(len(name) >= _SHORTEST[code] and code.startswith(name) for code in _CODE)


def _refuse_hidden(words: list[Word], place: str) -> None:
    """Refuse what writes a file, and properties that cannot be told from here."""
    for k, word in enumerate(words):
        if word.property and "action".startswith(word.property) and word.value.lower().startswith(_WRITING):
            raise FeederScriptError(f"{place}: action={word.value} writes a file; remove it")
        if word.name.startswith("@"):
            raise FeederScriptError(f"{place}: the name of a property is a variable; write it out")
        unnamed = not word.name and (k >= _BY_POSITION or any(before.name for before in words[:k]))
        if unnamed:
            raise FeederScriptError(f"{place}: '{word.value}' is a value without a name; write name=value")


def _refuse_wrong_windings(words: list[Word], place: str) -> None:
    """Refuse a winding whose number is none: the engine reads beyond its memory for it."""
    for word in words:
        chosen = word.property.startswith("wd") and "wdg".startswith(word.property)
        if (chosen or not word.name) and not word.value.strip().isdecimal():
            raise FeederScriptError(
                f"{place}: '{word.value}' is not a winding number; write wdg=1, and name=value"
            )


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
    lowered = text.lower()
    at = lowered.find("file")
    while at >= 0:
        value = at + len("file")
        while value < len(text) and text[value] in " \t":
            value += 1
        if value < len(text) and text[value] == "=":
            value += 1
            while value < len(text) and text[value] in " \t":
                value += 1
            if value < len(text):
                named, stop = _file_name(text, value)
                found = _existing(folder, named)
                if found is not None:
                    text = f'{text[:value]}"{found}"{text[stop:]}'
                    lowered, value = text.lower(), value + len(str(found))
        at = lowered.find("file", max(value, at + 1))
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
    for candidate in (path, path.with_name(path.name + ".dss") if path.name else path):
        whole = folder / candidate
        if whole.is_file():
            return whole.resolve()
        found = _any_case(folder, candidate)
        if found is not None:
            return found
    return None


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
