"""The version, and the names that a data owner gives: one rule, for configs, file names and the ledger."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

__version__ = "0.4.0"

RELEASE_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
TWIN_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$"
"""Shorter: with a prefix it names a directory under the rule of release ids."""
PUBLIC_NAME = r"^[A-Za-z0-9][A-Za-z0-9-]{0,22}$"
"""Of a fleet or a feeder. No underscore: it joins the two, so that no two releases share an id."""
RELEASE_ID_RULE = "a release id is 1 to 64 letters, digits, '-' or '_' and begins with a letter or digit"


def alike(names: Iterable[str]) -> int:
    """How many of different names differ from another only in blanks, case or signs that are not seen.

    Such names mean the same thing to whoever wrote them, and would be two secrets with a budget each.
    """
    count = Counter(spelling(name) for name in set(names))
    return sum(number for number in count.values() if number > 1)


def spelling(name: str, *, fold: bool = True) -> str:
    """A name without signs that are not seen and with single blanks; without case too, unless told not to."""
    text = unicodedata.normalize("NFKC", name)
    seen = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")
    plain = " ".join(seen.split())
    return plain.casefold() if fold else plain
