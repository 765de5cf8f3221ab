"""The public version, and names that a data owner gives: one rule for configs, file names and the ledger."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dp_powerflow.errors import UNSEEN

__version__ = "0.6.0"
"""The version, stated here alone. It is part of what is paid for and of released bytes, so it is the same for
every commit up to the next version."""
LAST_READER = "0.5.0"
"""The last version that reads what versions before the first stable formats wrote."""
DRAWS = 2
"""Which days a key gives: one more whenever the same key and law give other days. It is part of what is paid
for. On the true network other days of a release are another release, whatever its id; 1 was up to 0.5.0 with
sums over the levels of a history."""

RELEASE_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
TWIN_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$"
"""Shorter: with a prefix it names a directory under the rule of release ids."""
PUBLIC_NAME = r"^[A-Za-z0-9][A-Za-z0-9-]{0,22}$"
"""Of a fleet or a feeder. No underscore: it joins the two, so that no two releases share an id."""
RELEASE_ID_RULE = "a release id is 1 to 64 letters, digits, '-' or '_' and begins with a letter or digit"


@dataclass(frozen=True)
class NameRule:
    """What a name may be, and the sentence that says so.

    A dot is refused: ids are names of directories and begin names of files, where a dot starts an ending.

    Attributes
    ----------
    pattern : regular expression of the whole name.
    words : the rule in words.
    longest : signs of the longest name.
    """

    pattern: str
    words: str
    longest: int

    def problem(self, name: str) -> str | None:
        """Why a name is refused, with one that would do where there is one; None if it is fine."""
        if re.fullmatch(self.pattern, name):
            return None
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        kept = re.sub(r"[^A-Za-z0-9_-]+", "-", plain)
        for other in (kept, kept.replace("_", "-")):
            near = other.strip("-_")[: self.longest].strip("-_")
            if near and re.fullmatch(self.pattern, near):
                return f"{self.words}; '{near}' would do"
        return f"{self.words}; choose another"


RELEASE_RULE = NameRule(RELEASE_ID, RELEASE_ID_RULE, 64)
TWIN_RULE = NameRule(
    TWIN_ID, "the id of a twin is 1 to 48 letters, digits, '-' or '_' and begins with a letter or digit", 48
)
PUBLIC_RULE = NameRule(
    PUBLIC_NAME,
    "the public name of a fleet or a feeder is 1 to 23 letters, digits or '-' and begins with a letter or "
    "digit",
    23,
)


def refuse_unusable(name: str | os.PathLike[str], error: type[Exception]) -> None:
    """Refuse a text that can neither name a file nor stand in one, here."""
    text, problem = os.fspath(name), None
    try:
        os.fsencode(text.encode().decode())
    except UnicodeEncodeError:
        problem = "the encoding of this system lacks some of its characters; set LC_ALL=C.UTF-8, or use ASCII"
    if any(unicodedata.category(sign) == "Cc" and sign not in "\t\r\n" for sign in text):
        problem = "it holds a control character, such as NUL; remove it"
    if problem is not None:
        raise error(f"the name {text!a} is not usable: {problem}")


LONGEST_ID = 200
_ABSENT = frozenset({"", "nan", "nat", "none", "null", "n/a", "<na>", "#n/a"})


def is_absent(cell: object) -> bool:
    """Whether a cell of a table has no text, but at most what programs write where there is none."""
    return not isinstance(cell, str) or cell.strip() == "NA" or cell.strip().casefold() in _ABSENT


def odd(names: Iterable[str]) -> int:
    """How many names hold signs that are not seen, or are longer than any id."""
    return sum(len(name) > LONGEST_ID or (not name.isprintable() and _hides(name)) for name in names)


def _hides(name: str) -> bool:
    return any(unicodedata.category(sign) in UNSEEN for sign in name)


def alike(names: Iterable[str]) -> int:
    """How many of different names differ from another only in blanks, case or signs that are not seen.

    Such names mean the same thing to their writer, and would be two secrets with a budget each.
    """
    count = Counter(spelling(name) for name in set(names))
    return sum(number for number in count.values() if number > 1)


def spelling(name: str) -> str:
    """A name without case and signs that are not seen, and with single blanks."""
    text = unicodedata.normalize("NFKC", name)
    seen = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")
    return " ".join(seen.split()).casefold()
