"""INTERNAL. Why feeders of a fleet cannot be released, grouped, with a remedy for each reason.

Feeders with the same problem are one entry, whatever names and figures their sentences have. What remedies
say to write in the config can be pasted (`lines_to_paste`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import Lines, printable
from dp_powerflow.fleet.remedies import Remedy, remedy_of

Problem = tuple[str, str, str]
"""Key and public name of a feeder, and the sentence that refuses it."""

_KEYS_SHOWN = 5
_NUMBERED = re.compile(r"^the feeder cannot be used for \d+ reasons: \(1\) ")
_NEXT = re.compile(r"; \(\d+\) |; and \d+ more, which 'dp-powerflow inspect FEEDER' lists$")
_OWN = (
    (re.compile(r"(?<![A-Za-z])'[^']*'(?![A-Za-z])"), "'…'"),
    (re.compile(r"'…'(?:, (?:'…'|…))+"), "'…'"),
    (re.compile(r"\[[^\]]*\]"), "[…]"),
    (re.compile(r"(?<!\w)/\S+"), "/…"),
    (re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?"), "N"),
)
"""What differs between two feeders with the same problem: names, lists, paths, figures."""


@dataclass(frozen=True)
class Refusal:
    """One reason, and the feeders that it holds for.

    Attributes
    ----------
    sentence : that refuses the first of them; the others' may name other elements and figures.
    feeders : key and public name of each.
    remedies : of each feeder, in their order; None where the sentence itself says what to do.
    """

    sentence: str
    feeders: tuple[tuple[str, str], ...]
    remedies: tuple[Remedy | None, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the feeders."""
        return tuple(key for key, _ in self.feeders)

    @property
    def remedy(self) -> Remedy | None:
        """That of the first feeder, which stands for all."""
        return self.remedies[0]


def refusals(problems: Sequence[Problem]) -> list[Refusal]:
    """Group problems that are the same but for names and figures, those of most feeders first.

    Parameters
    ----------
    problems : key, public name and sentence of every feeder that cannot be released; a sentence with several
        reasons counts as several problems.
    """
    groups: dict[str, dict[str, Problem]] = {}
    for key, name, told in problems:
        for sentence in reasons_in(told):
            groups.setdefault(_kind_of(sentence), {}).setdefault(key, (key, name, sentence))
    found = [
        Refusal(
            sentence=next(iter(group.values()))[2],
            feeders=tuple((key, name) for key, name, _ in group.values()),
            remedies=tuple(remedy_of(sentence) for _, _, sentence in group.values()),
        )
        for group in groups.values()
    ]
    return sorted(found, key=lambda refusal: -len(refusal.feeders))


def in_one_message(problems: Sequence[Problem]) -> str:
    """Problems of several feeders in one message: a sentence, or a numbered list with the feeders of each."""
    found = refusals(problems)
    if len(problems) == 1:
        return Lines(problems[0][2])
    lines = (
        f"\n  {number}. {_feeders(refusal)}: {refusal.sentence}"
        for number, refusal in enumerate(found, start=1)
    )
    count = len({key for key, _, _ in problems})
    return Lines(f"{count} feeders have no usable config:" + "".join(lines))


def _feeders(refusal: Refusal) -> str:
    some = printable(", ".join(refusal.keys[:_KEYS_SHOWN])) + ", …" * (len(refusal.keys) > _KEYS_SHOWN)
    return f"{len(refusal.keys)} feeder{'s' * (len(refusal.keys) > 1)} ({some})"


def reasons_in(sentence: str) -> tuple[str, ...]:
    """The reasons of a feeder one by one: sentences of feeder files list several."""
    if not _NUMBERED.match(sentence):
        return (sentence,)
    return tuple(reason for reason in _NEXT.split(_NUMBERED.sub("", sentence)) if reason)


def _kind_of(sentence: str) -> str:
    for pattern, stand_in in _OWN:
        sentence = pattern.sub(stand_in, sentence)
    return sentence


# ----------------------------------------------------------------------------- what to write in the file


def lines_to_paste(found: Iterable[Refusal], existing: Collection[str] = ()) -> list[str]:
    """TOML for the config of the fleet: what the remedies say, one table per feeder.

    Parameters
    ----------
    existing : keys of feeders that have overrides already: a second table is an error in TOML.
    """
    fleet: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for refusal in found:
        for key, remedy in zip(refusal.keys, refusal.remedies, strict=True):
            if remedy is not None:
                _merge(fleet, remedy.fleet)
                _merge(own.setdefault(key, {}), _of_feeder(remedy.override, key))
    lines = ["# under [fleet]:", *_assignments(fleet)] if fleet else []
    for key, override in sorted(own.items()):
        if override:
            table = f"[overrides.{_toml(key)}]"
            lines += [f"# add to {table}:" if key in existing else table, *_assignments(override)]
    return lines


def _of_feeder(override: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {
        name: {inner: v.replace("{key}", key) if isinstance(v, str) else v for inner, v in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in override.items()
    }


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Tables and lists are joined; of two values the first stays."""
    for name, value in more.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        elif isinstance(value, list):
            into[name] = list(dict.fromkeys([*into.get(name, []), *value]))
        else:
            into.setdefault(name, value)


def _assignments(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name} = {_toml(value)}" for name, value in values.items())


def _toml(value: Any) -> str:
    """JSON spells text, numbers, truth and lists as TOML does."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
