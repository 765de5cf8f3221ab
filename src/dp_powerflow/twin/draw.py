"""Drawing a twin: integers in, integers out.

The log of every level is rounded to a public grid and gets exact discrete noise (`design`). The twin's level
is computed from the noisy integer alone, so no digit of it depends on anything else of the true level.

The noise of an element comes from its own stream, bound to the key, the twin, the element and a keyed
hash of its true integers. An element that is replaced therefore gets fresh noise, because the old noise on
new figures would give their difference away; one that stays keeps its figures to the bit; and a twin can be
drawn again from the key and the network alone.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dp_powerflow._bits.elementary import exp1, log
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import BusGraph, CodedLine, Feeder, Levels, NetworkParameters, ParameterKey
from dp_powerflow.grid.quantities import (
    TRANSFORMER,
    WITHOUT,
    Figure,
    Protect,
    Protected,
    Quantity,
    absent_figures,
)
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.privacy.random import (
    Stream,
    StreamKey,
    discrete_gaussian,
    discrete_laplace,
    square_laplace,
    uniform_below,
)
from dp_powerflow.twin.design import CODE, KINDS, LOG_GRID, TwinDesign
from dp_powerflow.units import FloatArray, IntArray

_KEYS: dict[Figure, str] = {"codes": "code_epsilon", "charging": "charging_epsilon"}
"""Keys of the config that are not called as their figure."""


def absent_from(parameters: NetworkParameters, protected: Protected) -> tuple[Figure, ...]:
    """The declared figures of which a network has none."""
    found = {key.quantity for key in parameters.levels}
    return absent_figures(protected, found, coded=bool(parameters.coded))


def refuse_absent(parameters: NetworkParameters, protected: Protected) -> None:
    """Refuse a network without a figure that is declared protected: most likely the config is mistaken.

    Lines without charging are no reason: they have none to protect.
    """
    absent = [figure for figure in absent_from(parameters, protected) if figure != "charging"]
    if not absent:
        return
    has_no = " and no ".join(WITHOUT[figure] for figure in absent)
    raise PrivacyError(
        f"the feeder has no {has_no} that the twin could protect; "
        f'{" and ".join(_without(figure) for figure in absent)}, or set network.protect = "if present"',
        code="twin-not-possible",
    )


def refuse_disguised(parameters: NetworkParameters, protected: Protected, structure: Feeder) -> None:
    """Refuse a network that has none of a protected kind, but something else that does its work.

    Nothing of that gets noise. Where a kind is there, everything else next to it is declared public and the
    owner has seen that his files use the kind; where it is not, no owner has checked.

    Parameters
    ----------
    structure : the network, or one with its nodes and elements.
    """
    disguises: dict[Figure, str] = {}
    if TRANSFORMER in BusGraph.of(structure).kind_of.values():
        disguises["transformers"] = (
            "something that is neither line nor switch joins two of its buses, as a series reactor or an "
            "impedance, and its figures would be public; model it as a transformer"
        )
    for name in parameters.compensating[:1]:
        disguises["capacitors"] = (
            f"'{name}' feeds in reactive power as one does, and its size would be public; model it as a "
            "capacitor"
        )
    for unit in structure.as_operated.generators[:1]:
        sentence = f"generator '{unit.name}' feeds in, and its size would be public; model it as a PV system"
        disguises["pv"] = sentence
    found = [
        f"the feeder has no {WITHOUT[figure]} that the twin could protect, but {disguises[figure]}, or "
        + _without(figure)
        for figure in absent_from(parameters, protected)
        if figure in disguises
    ]
    if found:
        raise PrivacyError("; ".join(found))


def _without(figure: Figure) -> str:
    instead = f"leave out network.{_KEYS.get(figure, figure)}"
    return "set network.lines to 'impedance'" if figure == "lengths" else instead


FORMAT = "dp-powerflow twin, version 2"
Record = Mapping[str, Any]
"""What was drawn of one element, as JSON keeps it: `positions`, and `codes` of a line whose code is drawn."""
_checked: WeakKeyDictionary[Feeder, dict[tuple[object, ...], NetworkParameters]] = WeakKeyDictionary()
"""PRIVATE. Feeders that passed `parameters_of`, which builds a network three times, and what it found."""
_RESPONSE_BITS = 53
_RESPONSE_SLACK = 16


@dataclass(frozen=True)
class Twin:
    """A drawn twin. Publishable: what the guarantee speaks of is exactly this record.

    Attributes
    ----------
    positions : noisy log level of every protected parameter [grid units].
    codes : drawn conductor code of every coded line; empty if codes are kept.
    """

    design: TwinDesign
    positions: Mapping[ParameterKey, int]
    codes: Mapping[str, str]

    @property
    def levels(self) -> Levels:
        """Levels of the twin; a public shift keeps their mean at the true level."""
        design = self.design
        shifts = {
            quantity: design.shift(design.part_of(quantity)) for quantity in _quantities(self.positions)
        }
        return {key: exp1(k * LOG_GRID + shifts[key.quantity]) for key, k in self.positions.items()}

    @property
    def absent(self) -> tuple[Figure, ...]:
        """Figures of the design of which the network, and hence its twin, has none."""
        return absent_figures(self.design.protected, _quantities(self.positions), coded=bool(self.codes))

    def feeder(self, source: Rebuilder) -> Feeder:
        """The twin's network, built by the engine that built the source's."""
        return source.build(self.levels, self.codes)

    def record_of(self, element: Element) -> Record:
        """What was drawn of one element, for `draw_twin` of a later version of the network."""
        keys = sorted(element.positions)
        line = None if element.coded is None else element.coded.line
        return {
            "positions": [[key.quantity.value, key.element, self.positions[key]] for key in keys],
            "codes": {name: code for name, code in self.codes.items() if name == line},
        }

    def to_json(self) -> str:
        """Canonical text."""
        content = {
            "format": FORMAT,
            "design": self.design.to_record(),
            "positions": [[key.quantity.value, key.element, k] for key, k in sorted(self.positions.items())],
            "codes": dict(sorted(self.codes.items())),
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Twin:
        """Inverse of `to_json`; PrivacyError if the text is no twin."""
        try:
            content = json.loads(text)
            if content.get("format") != FORMAT:
                raise PrivacyError(
                    f"the stored twin is not of the format '{FORMAT}'; use the version that drew it",
                    code="twin-damaged",
                )
            return cls(
                TwinDesign.of_record(content["design"]),
                _positions(content["positions"]),
                _codes(content["codes"]),
            )
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raise PrivacyError(
                "the stored twin is damaged; restore it from a backup of the private state; "
                "nothing was spent",
                code="twin-damaged",
            ) from None


def _positions(listed: list[tuple[str, str, int]]) -> dict[ParameterKey, int]:
    """As `to_json` lists them; ValueError or TypeError if they are no positions."""
    found = {ParameterKey(Quantity(q), element): k for q, element, k in listed}
    if len(found) < len(listed) or not all(
        type(k) is int and isinstance(key.element, str) for key, k in found.items()
    ):
        raise ValueError
    return found


def _codes(codes: dict[str, str]) -> dict[str, str]:
    if not all(isinstance(name, str) for name in codes.values()):
        raise ValueError
    return codes


@dataclass(frozen=True)
class Element:
    """PRIVATE. The record of one element.

    Attributes
    ----------
    name : kind and name, unique in a network.
    positions : its true integers [grid units].
    coded : its conductor code, if codes are drawn.
    """

    name: str
    positions: Mapping[ParameterKey, int]
    coded: CodedLine | None = None

    def __repr__(self) -> str:
        return "Element(PRIVATE)"

    def figures(self, key: StreamKey) -> str:
        """Keyed hash of the figures: the same for the same figures, and useless without the key."""
        content = [[k.quantity.value, k.element, position] for k, position in sorted(self.positions.items())]
        code = None if self.coded is None else [self.coded.code, *self.coded.candidates]
        text = json.dumps([self.name, content, code])
        return key.bind("purpose", "figures of an element").keyed_hash([text.encode()])


@dataclass(frozen=True)
class Changes:
    """PRIVATE. What a version of a network has that was never drawn.

    An element with a new name that shares a bus with one that was replaced or is gone has a past: a line
    that a new tap splits is two lines, and figures of the one line are in both. So changed and gone elements
    of one kind that share buses form a group. Where a group has an element that is really new, every changed
    element of it may hold figures of the same old element. What was joined so stays together: the parts of a
    line may all be measured again, at once or one after the other.

    Attributes
    ----------
    changed, new, gone : names with figures that were never drawn; those never drawn under any figures; those
        drawn before and not here any more.
    joined : elements of groups in which something new has a past, or which were joined before.
    times : most changed elements of such a group: how often figures of one old element can enter at once.
    """

    changed: frozenset[str]
    new: frozenset[str]
    gone: frozenset[str]
    joined: frozenset[str]
    times: int

    @classmethod
    def between(
        cls, drawn: Mapping[str, Collection[str]], now: Mapping[str, str], joined: Set[str] = frozenset()
    ) -> Changes:
        """From keyed hashes of figures and buses, of all earlier versions and of this one.

        Parameters
        ----------
        drawn, now : element → hash of its figures, then those of its buses, with blanks between; of a kind
            whose buses are not known any two elements may share one.
        joined : elements that earlier versions or twins have joined; those that share buses are one group.
        """
        before = {name: _places(name, texts) for name, texts in drawn.items()}
        here = {name: _places(name, [text]) for name, text in now.items()}
        seen = {(name, text.split()[0]) for name, texts in drawn.items() for text in texts}
        changed = {name for name, text in now.items() if (name, text.split()[0]) not in seen}
        new, gone = changed - before.keys(), before.keys() - now.keys()
        # The only new element between the buses of one that is gone is that element under another name.
        ends = Counter(here[name] for name in new)
        renamed = {n for n in new if ends[here[n]] == 1 and here[n] in {before[name] for name in gone}}
        known, present = (frozenset[str]().union(*buses.values()) for buses in (before, here))
        buses = {
            n: before.get(n, frozenset()) | here.get(n, frozenset()) for n in before.keys() | here.keys()
        }
        places: dict[str, frozenset[str]] = {}
        for name in {*changed, *gone, *(n for n in here if here[n] - before.get(n, here[n]))}:
            places[name] = buses[name]
            if (name in gone and not buses[name] & present) or (name in new and not buses[name] & known):
                places[name] |= _places(name, [])  # its buses may have other names, so it may be anywhere
        for number, parts in enumerate(_linked({n: buses[n] for n in joined if n in buses})):
            places |= {name: places.get(name, frozenset()) | {f"parts {number}"} for name in parts}
        members = changed | gone | joined  # others, whose buses have other names now, join those
        groups = [group & members for group in _linked(places)]
        past = [g for g in groups if g & changed and (g & joined or (g & new and g - new))]
        counted = [g for g in past if g & joined or g & new - renamed]
        times = max((len(group & changed) for group in counted), default=1)
        together = frozenset[str]().union(*past)
        return cls(frozenset(changed), frozenset(new), frozenset(gone), together, times)


def _linked(places: Mapping[str, frozenset[str]]) -> list[set[str]]:
    """Names in groups: two that share a place are in one."""
    groups: list[tuple[frozenset[str], set[str]]] = []
    for name, own in places.items():
        met = [group for group in groups if group[0] & own]
        groups = [group for group in groups if not group[0] & own]
        groups.append((own.union(*(g[0] for g in met)), {name}.union(*(g[1] for g in met))))
    return [names for _, names in groups]


def _places(name: str, texts: Collection[str]) -> frozenset[str]:
    """Kind of an element with each of its buses; one place for all of a kind where none is known."""
    kind = name.split()[0]
    buses = {bus for text in texts for bus in text.split()[1:]}
    return frozenset(f"{kind} {bus}" for bus in buses or {""})


def parameters_of(source: Rebuilder, design: TwinDesign, protect: Protect = "all") -> NetworkParameters:
    """PRIVATE. What a twin of this design is drawn from; refuses a feeder that it would not protect.

    Parameters
    ----------
    protect : whether the feeder must have everything that the design protects, or may lack some of it.
    """
    known = _checked.setdefault(source.feeder, {})
    choice = (design, source.choices)
    if choice not in known:
        found = source.parameters()
        source.check(found)
        _refuse_unrated(source.feeder, found, design)
        known[choice] = found
    if protect == "all":
        refuse_absent(known[choice], design.protected)
    else:
        refuse_disguised(known[choice], design.protected, source.feeder)
    return known[choice]


def _refuse_unrated(feeder: Feeder, found: NetworkParameters, design: TwinDesign) -> None:
    """Refuse a PV system whose source states no rating, if ratings are protected."""
    # pandapower's tables may share names, so its keys have the table in front.
    known = {key.element.split(":", 1)[-1] for key in found.levels if key.quantity is Quantity.PV}
    missing = [pv.name for pv in feeder.pv if design.protected.pv and pv.name not in known]
    if missing:
        raise PrivacyError(
            f"the capacity of PV system '{missing[0]}' cannot be protected: its source states no rating; "
            "state one, or leave out network.pv, which declares PV capacities public",
            code="twin-not-possible",
        )


def elements_of(parameters: NetworkParameters, design: TwinDesign) -> tuple[Element, ...]:
    """PRIVATE. The records of all elements, in the order of their names."""
    keys = sorted(parameters.levels)
    logs = log(np.array([parameters.levels[key] for key in keys], dtype=np.float64))
    integers: IntArray = np.round(logs / LOG_GRID).astype(np.int64)
    grouped: dict[str, dict[ParameterKey, int]] = {}
    for key, position in zip(keys, integers.tolist(), strict=True):
        grouped.setdefault(f"{KINDS[key.quantity]} {key.element}", {})[key] = position
    drawn = parameters.coded if design.code_epsilon is not None else ()
    coded = {f"{KINDS[Quantity.LENGTH]} {line.line}": line for line in drawn}
    names = sorted(grouped.keys() | coded.keys())
    return tuple(Element(name, grouped.get(name, {}), coded.get(name)) for name in names)


def draw_twin(
    parameters: NetworkParameters,
    design: TwinDesign,
    key: StreamKey,
    kept: Mapping[str, Record] = MappingProxyType({}),
) -> Twin:
    """Draw a twin; the same key gives the same twin, so pay once per key.

    Parameters
    ----------
    kept : by the names of elements whose figures were drawn before: what was drawn of them, which stays.
    """
    positions: dict[ParameterKey, int] = {}
    codes: dict[str, str] = {}
    for element in elements_of(parameters, design):
        if element.name in kept:
            record = kept[element.name]
            positions |= _positions(record["positions"])
            codes |= record["codes"]
            continue
        own = key.bind("element", element.name).bind("figures", element.figures(key))
        for part, keys in _by_part(element, design):
            noise = _noise(design, part, len(keys), own.stream(f"twin: {part}"))
            positions |= {item: element.positions[item] + n for item, n in zip(keys, noise, strict=True)}
        if element.coded is not None and design.code_epsilon is not None:
            stream = own.stream(f"twin: {CODE}")
            codes[element.coded.line] = respond(stream, element.coded, design.code_epsilon)
    return Twin(design, positions, codes)


def _by_part(element: Element, design: TwinDesign) -> Iterator[tuple[str, list[ParameterKey]]]:
    parts: dict[str, list[ParameterKey]] = {}
    for key in sorted(element.positions):
        parts.setdefault(design.part_of(key.quantity), []).append(key)
    yield from parts.items()


def _noise(design: TwinDesign, part: str, count: int, stream: Stream) -> list[int]:
    """Noise on `count` integers that are released together."""
    found = design.parts[part]
    if count > found.dimension:
        raise PrivacyError("an element has more figures than its noise was planned for; report this as a bug")
    if design.noise == "gaussian":
        drawn = discrete_gaussian(stream, found.scale, count)
    elif count == 2:
        drawn = square_laplace(stream, found.scale, 1)[0]
    else:
        drawn = discrete_laplace(stream, found.scale, 1)
    return [int(value) for value in drawn]


def respond(stream: Stream, line: CodedLine, epsilon: float) -> str:
    """Randomised response over the candidates of one line: the true code e^ε times as likely as another."""
    others = [code for code in line.candidates if code != line.code]
    odds = exp1(-epsilon) * len(others)
    # A few units lower than rounding could have made it: the code is never kept too often.
    threshold = math.floor(2.0**_RESPONSE_BITS / (1.0 + odds)) - _RESPONSE_SLACK
    keeps = int(uniform_below(stream, 2**_RESPONSE_BITS, 1)[0]) < threshold
    chosen = int(uniform_below(stream, max(len(others), 1), 1)[0])
    return line.code if keeps or not others else others[chosen]


def _quantities(keys: Mapping[ParameterKey, object]) -> set[Quantity]:
    return {key.quantity for key in keys}


@dataclass(frozen=True)
class VoltageDistance:
    """Distances between the magnitudes of two networks' voltages [p.u.].

    Attributes
    ----------
    pooled : W1 between all magnitudes of all retained nodes.
    worst_node : W1 between the magnitudes of the node where it is largest.
    """

    pooled: float
    worst_node: float


def voltage_distance(true: FloatArray, twin: FloatArray) -> VoltageDistance:
    """Distances between magnitudes (snapshot, node) of the same snapshots.

    The W1 distance of two samples of equal size is the mean distance of their order statistics.
    """
    by_node = np.mean(np.abs(np.sort(true, axis=0) - np.sort(twin, axis=0)), axis=0)
    return VoltageDistance(
        pooled=float(np.mean(np.abs(np.sort(true, axis=None) - np.sort(twin, axis=None)))),
        worst_node=float(np.max(by_node)),
    )
