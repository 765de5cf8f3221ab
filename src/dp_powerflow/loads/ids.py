"""Customers of a meter file against those of the service map: who is missing, and who is nearly there.

Two lists of the same customers are seldom typed alike: one has leading zeros, another a prefix, a third went
through a spreadsheet that made numbers of them. What is found is said as a kind of difference and a count,
never as an id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from dp_powerflow._names import spelling
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.history import refuse_alike

MOST_COMPARED = 100_000
"""Ids of one side that are compared with the other; a hint needs no more."""
_LEAST_WITH_AFFIX = 2
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")

BLANKS = "blanks or invisible characters"
CASE = "upper or lower case"
_SPELLING = (BLANKS, CASE)


@dataclass(frozen=True)
class NearMatches:
    """INTERNAL. So many ids of the file differ from one of the service map by one kind of difference."""

    difference: str
    count: int


@dataclass(frozen=True)
class IdFindings:
    """INTERNAL. Customers of the file and of the service map, as counts.

    Parameters
    ----------
    in_file, listed
        Customers of the file, and of the service map.
    unlisted
        Customers of the file that the service map does not list; they are left out.
    absent
        Customers of the service map that the file does not have.
    with_blanks
        Ids of the file with blanks around them, which mean nothing.
    near
        Unlisted ids that are nearly an absent one.
    """

    in_file: int = 0
    listed: int = 0
    unlisted: int = 0
    absent: int = 0
    with_blanks: int = 0
    near: tuple[NearMatches, ...] = ()

    @property
    def hint(self) -> str:
        """What the near matches suggest, as a clause; empty without one."""
        if not self.near:
            return ""
        kinds = " and ".join(f"{found.count} ids by {found.difference}" for found in self.near)
        return f"meter file and service map differ in {kinds}: write each id alike in both"

    def sentences(self) -> tuple[str, ...]:
        """What there is to say, one sentence per finding."""
        found = [
            f"{self.in_file} customers in the file, {self.listed} in the service map; {self.unlisted} are "
            f"unlisted and left out, {self.absent} are listed but not in the file"
        ]
        if self.with_blanks:
            found.append(f"{self.with_blanks} ids of the file have blanks around them, which are ignored")
        return (*found, self.hint) if self.near else tuple(found)


def compare_ids(in_file: Collection[str], listed: Collection[str], with_blanks: int = 0) -> IdFindings:
    """Compare the customers of a file with those of the service map.

    Raises
    ------
    LoadDataError
        Ids differ only in blanks, case or invisible characters: one service would be two records.
    """
    strangers, absent = sorted(set(in_file) - set(listed)), sorted(set(listed) - set(in_file))
    near = _near_matches(strangers[:MOST_COMPARED], absent[:MOST_COMPARED])
    found = IdFindings(len(in_file), len(listed), len(strangers), len(absent), with_blanks, near)
    if any(match.difference in _SPELLING for match in near):
        raise LoadDataError(
            f"{found.hint}, since ids that differ only in blanks, case or invisible characters would be two "
            "records of one service",
            code="customer-ids",
        )
    refuse_alike({*in_file, *listed}, "customers of the meter file and the service map")
    return found


def _near_matches(strangers: list[str], absent: list[str]) -> tuple[NearMatches, ...]:
    """Pair ids by one kind of difference after the other; a pair is counted once."""
    found = []
    for difference, pairs_of in _DIFFERENCES:
        if not strangers or not absent:
            break
        pairs = dict(pairs_of(strangers, absent))
        if pairs:
            found.append(NearMatches(difference, len(pairs)))
            strangers = [name for name in strangers if name not in pairs]
            taken = set(pairs.values())
            absent = [name for name in absent if name not in taken]
    return tuple(found)


Pairs = Iterator[tuple[str, str]]
"""Id of the file, id of the service map; every id in one pair at most."""


def _with_same(key: Callable[[str], str]) -> Callable[[list[str], list[str]], Pairs]:
    """Pairs whose keys are equal, where the key belongs to one id on either side."""

    def pairs(strangers: list[str], absent: list[str]) -> Pairs:
        theirs, ours = _by_key(strangers, key), _by_key(absent, key)
        yield from ((theirs[word], ours[word]) for word in theirs if word in ours)

    return pairs


def _by_key(names: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Key → the one id that has it; ids without a key are left out."""
    keys = {name: key(name) for name in names}
    count = Counter(keys.values())
    return {word: name for name, word in keys.items() if word and count[word] == 1}


def _without_zeros(name: str) -> str:
    return _LEADING_ZEROS.sub("", name)


def _without_decimals(name: str) -> str:
    return re.sub(r"[.,]0+$", "", name)


def _number(name: str) -> str:
    return "".join(re.findall(r"\d", name)).lstrip("0")


def _with_affix(strangers: list[str], absent: list[str]) -> Pairs:
    """Ids that one side writes with the same prefix or suffix before or after all of them."""
    found: Counter[tuple[str, str, bool]] = Counter()
    for longer, shorter, of_file in ((strangers, set(absent), True), (absent, set(strangers), False)):
        for name in longer:
            cuts = range(1, len(name))
            found.update((name[:k], "", of_file) for k in cuts if name[k:] in shorter)
            found.update(("", name[k:], of_file) for k in cuts if name[:k] in shorter)
    if not found:
        return
    (prefix, suffix, of_file), count = max(found.items(), key=lambda item: (item[1], item[0]))
    if count < _LEAST_WITH_AFFIX:
        return
    longer, others = (strangers, set(absent)) if of_file else (absent, set(strangers))
    for name in longer:
        rest = name[len(prefix) : len(name) - len(suffix)]
        if name.startswith(prefix) and name.endswith(suffix) and rest in others:
            yield (name, rest) if of_file else (rest, name)


def _one_sign_apart(strangers: list[str], absent: list[str]) -> Pairs:
    """Ids at an edit distance of 1: one sign too many, too few, or another one."""
    whole = set(absent)
    shortened: dict[str | tuple[int, str], list[str]] = {}
    for name in absent:
        for place, rest in _without_one_sign(name):
            shortened.setdefault(rest, []).append(name)
            shortened.setdefault((place, rest), []).append(name)
    taken: set[str] = set()
    for name in strangers:
        near = {*shortened.get(name, ())}
        for place, rest in _without_one_sign(name):
            near.update(shortened.get((place, rest), ()))
            near.update({rest} & whole)
        free = near - taken
        if free:
            taken.add(min(free))
            yield name, min(free)


def _without_one_sign(name: str) -> Iterator[tuple[int, str]]:
    return ((place, name[:place] + name[place + 1 :]) for place in range(len(name)))


_DIFFERENCES: tuple[tuple[str, Callable[[list[str], list[str]], Pairs]], ...] = (
    (BLANKS, _with_same(lambda name: spelling(name, fold=False))),
    (CASE, _with_same(spelling)),
    ("leading zeros", _with_same(_without_zeros)),
    ("decimals of a number (12 and 12.0)", _with_same(_without_decimals)),
    ("a prefix or suffix that they share", _with_affix),
    ("what stands around the same number", _with_same(_number)),
    ("one character", _one_sign_apart),
)
"""In the order in which they are tried: what is surely meant first."""
