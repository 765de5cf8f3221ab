"""Why a feeder cannot be used: all reasons at once, not one for every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from dp_powerflow.errors import FeederError, printable

_SHOWN = 3
_NAMES_SHOWN = 3


class SeveralReasonsError(FeederError):
    """A feeder that cannot be used for several reasons; the sentence has the first few, and their number.

    Attributes
    ----------
    reasons : all of them, each a sentence that says what to do.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        rest = len(self.reasons) - _SHOWN
        more = f"; and {rest} more, which 'dp-powerflow inspect FEEDER' lists" if rest > 0 else ""
        return printable(_numbered(self.reasons[:_SHOWN], len(self.reasons)) + more)


def _numbered(reasons: Sequence[str], count: int) -> str:
    if count == 1:
        return reasons[0]
    shown = "; ".join(f"({k}) {reason}" for k, reason in enumerate(reasons, start=1))
    return f"the feeder cannot be used for {count} reasons: {shown}"


def in_full(reasons: Sequence[str]) -> FeederError:
    """One error that lists all the reasons."""
    return FeederError(_numbered(reasons, len(reasons)))


def reasons_of(error: FeederError) -> tuple[str, ...]:
    """The reasons of an error, one by one."""
    return error.reasons if isinstance(error, SeveralReasonsError) else (str(error),)


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
            several = isinstance(error, SeveralReasonsError)
            for reason in reasons_of(error):
                self._found.setdefault(reason, FeederError(reason) if several else error)

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
            raise SeveralReasonsError(self.found)


def some_of(names: Sequence[str]) -> str:
    """The first few of several names, as they stand in a sentence."""
    return ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN)
