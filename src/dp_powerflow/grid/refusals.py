"""What is said of a feeder: the sentences of `data/sentences.toml`, and several refusals as one error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import cast

from dp_powerflow.errors import (
    FeederError,
    FeederRejectedError,
    FeederScriptError,
    LoadTableError,
    NoTwinError,
    TapsError,
    printable,
)

_SENTENCES: dict[str, dict[str, str]] = tomllib.loads(
    resources.files(__package__).joinpath("data", "sentences.toml").read_text(encoding="utf-8")
)
_CLASSES: dict[str, type[FeederError]] = {
    kind.code: kind
    for kind in (FeederRejectedError, FeederScriptError, LoadTableError, NoTwinError, TapsError)
}


def said(name: str, /, **words: object) -> str:
    """The sentence of a name, "section.key", with words in its places."""
    section, _, key = name.partition(".")
    return _SENTENCES[section][key].format(**words)


def counted(name: str, count: int, /, **words: object) -> str:
    """So many of what a sentence names in the singular and, after a bar, in the plural."""
    one, several = said(name, **words).split(" | ")
    return f"{count} {one if count == 1 else several}"


def refusal(name: str, /, **words: object) -> FeederError:
    """The error of a sentence; its section is the code, which tells the class."""
    code = name.partition(".")[0]
    return _CLASSES.get(code, FeederError)(said(name, **words), code=code)


_SHOWN = 3
_NAMES_SHOWN = 3


class SeveralReasonsError(FeederError):
    """A feeder that cannot be used for several reasons; the sentence has the first few, and their number."""

    code = "feeder-several"

    def __init__(self, errors: tuple[FeederError, ...]) -> None:
        super().__init__(errors)
        self._errors = errors

    @property
    def each(self) -> tuple[FeederError, ...]:
        """One error for every reason."""
        return self._errors

    @property
    def fix(self) -> None:
        """None: every reason has its own."""

    def __str__(self) -> str:
        reasons = reasons_of(self)
        rest = len(reasons) - _SHOWN
        more = f"; and {rest} more, which 'dp-powerflow inspect FEEDER' lists" if rest > 0 else ""
        return printable(_numbered(reasons[:_SHOWN], len(reasons)) + more)


def _numbered(reasons: Sequence[str], count: int) -> str:
    if count == 1:
        return reasons[0]
    shown = "; ".join(f"({k}) {reason}" for k, reason in enumerate(reasons, start=1))
    return f"the feeder cannot be used for {count} reasons: {shown}"


def in_full(reasons: Sequence[str]) -> FeederError:
    """One error that lists all the reasons."""
    return FeederError(_numbered(reasons, len(reasons)), code=SeveralReasonsError.code)


def reasons_of(error: FeederError) -> tuple[str, ...]:
    """The reasons of an error, one by one."""
    return tuple(map(str, error.each))


class Problems:
    """Errors while they are collected; none is kept twice."""

    def __init__(self, errors: Iterable[FeederError] = ()) -> None:
        self._found: dict[str, FeederError] = {}
        self.add(*errors)

    @property
    def found(self) -> tuple[str, ...]:
        """Reasons in the order in which they came."""
        return tuple(self._found)

    @property
    def errors(self) -> tuple[FeederError, ...]:
        """The same as errors, one for every reason."""
        return tuple(self._found.values())

    def add(self, *errors: FeederError) -> None:
        for error in errors:
            for reason in error.each:
                self._found.setdefault(str(reason), cast(FeederError, reason))

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Keep what a block is refused for, and go on after it."""
        try:
            yield
        except FeederError as error:
            self.add(error)

    def refuse(self) -> None:
        """Raise what was found, if anything was."""
        if len(self._found) == 1:
            raise next(iter(self._found.values()))
        if self._found:
            raise SeveralReasonsError(self.errors)


def some_of(names: Sequence[str]) -> str:
    """The first few of several names, as they stand in a sentence."""
    return ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)
