"""Why data are not those of accounts that the ledger has: a statement that names the accounts it speaks of.

    not network-gdp-1, network-gdp-4 to network-gdp-9: another town

A reason without names would go on speaking: left in a config, it would also speak for the account of the
very data it was given for, and the next correction of these would start with a full budget.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_powerflow.errors import PrivacyError

_NAME = r"[a-z]+(?:-[a-z]+)*-[0-9]{1,6}"
_ITEM = rf"{_NAME}(?: to {_NAME})?"
_FORM = re.compile(rf"\s*not ({_ITEM}(?:, {_ITEM})*): (.*\S.*)", re.DOTALL)


@dataclass(frozen=True)
class Unrelated:
    """That data share nothing with those of some accounts of their kind.

    Attributes
    ----------
    reason : what the ledger records, in full.
    accounts : names of the accounts it speaks of; all must be in the ledger.
    fleet : id of a fleet whose list of feeders says that they are different networks: accounts that were
        opened for feeders of this fleet need no name. A config file of one release cannot set it.
    """

    reason: str
    accounts: frozenset[str] = frozenset()
    fleet: str | None = None

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise PrivacyError("that data are unrelated needs a reason; say why, the ledger records it")
        if not all(re.fullmatch(_NAME, name) for name in self.accounts):
            raise PrivacyError("a reason why data are unrelated names accounts such as loads-1; correct it")

    @classmethod
    def parse(cls, text: str) -> Unrelated:
        """Read 'not <accounts>: <why>'; accounts are names with commas between, or 'first to last'."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise PrivacyError(
                "a reason why data are unrelated names the accounts it speaks of, as in "
                "'not loads-1, loads-3 to loads-5: another town'"
            )
        names: set[str] = set()
        for item in found[1].split(", "):
            names |= _range(*item.split(" to "))
        return cls(text.strip(), frozenset(names))

    def silent_on(self, accounts: Mapping[str, str | None]) -> set[str]:
        """Of the accounts, given with the fleets that opened them, those it says nothing about."""
        own = {name for name, fleet in accounts.items() if self.fleet is not None and fleet == self.fleet}
        return accounts.keys() - self.accounts - own


def spelled(names: Iterable[str]) -> str:
    """Names of accounts as `Unrelated.parse` reads them, in order, with 'to' for three or more in a row."""
    parts = []
    ordered = sorted(_split(name) for name in names)
    # Along a row of successive numbers, number and position grow alike.
    for _, row in itertools.groupby(enumerate(ordered), key=lambda item: (item[1][0], item[1][1] - item[0])):
        members = [f"{stem}-{number}" for _, (stem, number) in row]
        parts += [f"{members[0]} to {members[-1]}"] if len(members) > 2 else members
    return ", ".join(parts)


def _split(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return stem, int(number)


def _range(first: str, last: str | None = None) -> set[str]:
    stem, start = _split(first)
    other, end = _split(last or first)
    if other != stem or end < start:
        raise PrivacyError(
            f"'{first} to {last}' is not a range of accounts; write it as 'loads-3 to loads-5'"
        )
    return {f"{stem}-{number}" for number in range(start, end + 1)}
