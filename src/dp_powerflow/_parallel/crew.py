"""A crew: workers that answer requests one by one and may keep what they have begun.

A job and its requests are PRIVATE. What a worker answers may be, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dp_powerflow._memory import NO_MEMORY
from dp_powerflow.errors import DpPowerflowError

DEFECTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a defect of the program, or of a library, raises; a run of many things goes on with the next one."""

Tell = Callable[[object], None]
Work = Callable[[Any, Tell], Any]
"""Answers one request, and may tell things meanwhile."""
OnTold = Callable[[int, Any], None]
"""Gets what was told, with the number of the request."""


class CrewJob(Protocol):
    """What the requests have in common; PRIVATE. It is pickled to workers."""

    def start(self, threads: int | None) -> Work:
        """Prepare a worker of so many threads, None for all cores; the function that answers a request.

        One thread at a time calls the function. It may keep things from one request to the next.
        """


@dataclass(frozen=True)
class Answer:
    """What became of one request; exactly one of `value`, `problem`, `defect` and `lost` is meant.

    Attributes
    ----------
    number : of the request, as given to `submit`.
    where : the worker that answered, for `near`; says nothing else.
    value : PRIVATE. What was answered.
    problem : a sentence for the data owner, instead of a value.
    defect : PRIVATE. What is known of a defect of the program, instead of a value.
    lost : the worker ended while it did this, or what it needed was lost; ask again, or give up.
    """

    number: int
    where: str
    value: Any = None
    problem: str | None = None
    defect: str | None = None
    lost: bool = False

    def __repr__(self) -> str:
        return f"Answer({self.number}, PRIVATE)"


class Crew(Protocol):
    """Workers of one run."""

    @property
    def at_once(self) -> int:
        """Requests worth having under way: what the workers there are can do at once.

        Some more keep workers from waiting for the next request, and leave a choice: a worker without
        anything else to do takes a request that is near another one.
        """

    def give(self, job: CrewJob) -> None:
        """Say what the requests have in common; before the first one, and whenever it changes."""

    def submit(self, number: int, request: Any, *, near: str | None = None) -> None:
        """Ask for one thing.

        Parameters
        ----------
        near : the worker that answered about this piece of work before (`Answer.where`). It is preferred, but
            any worker may get it. None begins a new piece of work.
        """

    def answers(self) -> Iterator[Answer]:
        """Answers as they come, until nothing is under way; meanwhile `submit` may be called."""


def attempted(number: int, where: str, do: Callable[[], Any], defect: Callable[[Exception], str]) -> Answer:
    """Answer one request on a worker, where what is raised has a way to go; `defect` describes a defect."""
    try:
        return Answer(number, where, do())
    except (DpPowerflowError, OSError) as error:
        return Answer(number, where, problem=str(error))
    except MemoryError:
        return Answer(number, where, problem=NO_MEMORY)
    except Exception as error:
        return Answer(number, where, defect=defect(error))
