"""INTERNAL. What to do in a fleet about the sentences that refuse a feeder.

A sentence names keys of the config of a release. In a fleet most of these keys are shared, and what one
feeder needs stands under its overrides. What a remedy makes public is said: the data owner decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Remedy:
    """What to do about a refusal.

    Attributes
    ----------
    words : what to do, and what follows from it.
    override : keys for the overrides of one feeder; a text in them may hold `{key}`, its key.
    fleet : keys for the section [fleet]; lists of several feeders are joined.
    """

    words: str
    override: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)


def remedy_of(sentence: str) -> Remedy | None:
    """What to do in a fleet about a sentence that refuses one of its feeders; None: what it says itself."""
    for pattern, make in _REMEDIES:
        found = pattern.search(sentence)
        if found is not None:
            return make(found, sentence)
    return None


_Make = Callable[[re.Match[str], str], Remedy]
_KEY = re.compile(r"network\.(\w+)")


def _leave_out(found: re.Match[str], sentence: str) -> Remedy:
    """Keys of [network] that a sentence says to leave out."""
    keys = [key for key in _KEY.findall(sentence[found.start() :]) if key not in ("lines", "protect")]
    override: dict[str, Any] = {"remove": [f"network.{key}" for key in keys]} if keys else {}
    if "network.lines" in sentence:
        override["network"] = {"lines": "impedance"}
    if "network.protect" in sentence:
        words = 'Leave out network.protect = "all": what is protected is then protected on the feeders that '
        return Remedy(words + "have it. Or let this feeder go without under its overrides.", override)
    return Remedy(
        "Change the feeder's file as said. Or let it go without the key under its overrides; what the key "
        "protects is then declared public for this feeder.",
        override,
    )


def _set(words: str, **override: Any) -> _Make:
    return lambda found, sentence: Remedy(words, override)


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


def _same_frame(found: re.Match[str], sentence: str) -> Remedy:
    keys = json.loads(found["feeders"])
    return Remedy(
        "If they are versions of one network, list one of them, or let the others continue its account with "
        "continues_network under their overrides. If they are different networks, name them and say why.",
        fleet={"same_frame": {"feeders": keys, "reason": "<why>"}},
    )


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


_TAPS = "Write taps that somebody set, never solved ones, in the form of `dp-powerflow inspect FEEDER " + (
    "--save-taps FILE`, make the first line `# declared: WHO SET THESE TAPS`, and name the file under its "
    "overrides, or put it into the folder feeder.taps as <key>.csv."
)
_MAKE_FROZEN = "Change the feeder's file as said, or freeze the controls of this feeder under its overrides."
_REMEDIES: tuple[tuple[re.Pattern[str], _Make], ...] = (
    (_pattern(r"write under \[fleet\] same_frame = \{ feeders = (?P<feeders>\[.*\]), reason"), _same_frame),
    (
        _pattern(r"set continues_network = '(?P<account>[^']+)' under overrides"),
        lambda found, _: Remedy(
            "If it is a version of that network, continue its account under its overrides. If not, name both "
            "feeders in fleet.same_frame, with a reason.",
            {"continues_network": found["account"]},
        ),
    ),
    (_pattern(r"leave out network\.|set network\.lines to 'impedance'"), _leave_out),
    (
        _pattern(r"set network\.charging_epsilon, such as (?P<share>[\d.]+\d)"),
        lambda found, _: Remedy(
            "Give its charging a share of epsilon under its overrides; its R and X have less then, and get "
            "more noise.",
            {"network": {"charging_epsilon": _number(found["share"])}},
        ),
    ),
    (
        _pattern(r"feeder\.drop_islanded = true"),
        _set("Leave its islands out under its overrides.", feeder={"drop_islanded": True}),
    ),
    (
        _pattern(r"set feeder\.taps|(?:declare|give).* in a tap file|give a tap file"),
        _set(_TAPS, feeder={"taps": "taps/{key}.csv"}),
    ),
    (
        _pattern(r"tap file"),
        _set("Correct its tap file, or leave it out under its overrides.", remove=["feeder.taps"]),
    ),
    (
        _pattern(r"declare a load table in feeder\.loads"),
        _set("Declare its loads in a table under its overrides.", feeder={"loads": "loads/{key}.csv"}),
    ),
    (
        _pattern(r"load table"),
        _set(
            "Correct the table that its overrides name in feeder.loads.", feeder={"loads": "loads/{key}.csv"}
        ),
    ),
    (
        _pattern(r"set (?:network\.)?controls (?:to|=) \"frozen\""),
        _set(_MAKE_FROZEN, network={"controls": "frozen"}),
    ),
    (
        _pattern(r"let controls act \(network\.controls\)"),
        _set("Let its controls act under its overrides, or declare its taps.", network={"controls": "day"}),
    ),
    (
        _pattern(r"leave \"connections\" out of network\.also_publish"),
        _set(
            "Publish no connections of this feeder, under its overrides.",
            network={"also_publish": ["loads", "head", "states"]},
        ),
    ),
    (
        _pattern(r"set network\.coordinates = \"private\""),
        _set(
            "Add the coordinates to its file, or keep them private under its overrides.",
            network={"coordinates": "private"},
        ),
    ),
    (
        _pattern(r"has a \[pv\] section, but the feeder has no PV system"),
        _set("Let the feeder go without that section under its overrides.", remove=["pv"]),
    ),
    (
        _pattern(r"pv\.volt_var = 'file' needs controls that act"),
        _set("Choose another control of its PV systems under its overrides.", pv={"volt_var": "none"}),
    ),
    (
        _pattern(r"^(?P<name>nodes\.\w+) names"),
        lambda found, _: Remedy(
            f"Loads are those of one feeder: move {found['name']} to the overrides of the feeder that has "
            "them, and let the others go without.",
            {"remove": [found["name"]]},
        ),
    ),
    (
        _pattern(r"set nodes\.kw_per_customer = (?P<kw>[\d.e+]+\d)"),
        lambda found, _: Remedy(
            "Let a customer stand for more nominal kW under its overrides, or in [nodes] for all feeders.",
            {"nodes": {"kw_per_customer": _number(found["kw"])}},
        ),
    ),
    (
        _pattern(r"set network\.require_evidence = false"),
        _set(
            "Release this feeder without evidence under its overrides (its manifest says so), or use twins.",
            network={"require_evidence": False},
        ),
    ),
    (
        _pattern(r"raise the cap with a recorded reason"),
        _set(
            "Raise fleet.network_epsilon_cap, which all feeders share, change the cap of its account with "
            "`dp-powerflow ledger STATE --account`, or take it out of fleet.feeders.",
        ),
    ),
    (
        _pattern(r"choose a new twin id"),
        _set(
            "Restore [network] and its overrides, or set network.id, which pays for new twins of all feeders."
        ),
    ),
    (
        _pattern(r"choose another release\.output|choose another directory or remove it first"),
        _set("Free the place where fleet.output is, or choose another fleet.output; all feeders go there."),
    ),
    (
        _pattern(r"choose a new release id"),
        _set("Restore its file and overrides, or list it under another fleet id with fleet.continues."),
    ),
)
PATTERNS = tuple(pattern for pattern, _ in _REMEDIES)
"""Sentences that have a remedy."""
