"""What is true of charges when something ends before its time.

The ledger notes charges here. Code that runs something that charges (`true_words`), and the command line
when it is interrupted (`charges_begun`), then say what is true, wherever a sentence was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dp_powerflow.errors import DpPowerflowError, Lines

NOTHING_SPENT = "nothing was spent"
RESUME = "run the same command again to resume, which never charges twice"
STAYS_SPENT = f"what was spent stays spent; {RESUME}"
_begun = _done = 0


def charge_begins() -> None:
    """A charge is about to be committed, or was found to be there already."""
    global _begun
    _begun += 1


def charge_is_done() -> None:
    """A charge is committed."""
    global _done
    _done += 1


def charges_begun() -> int:
    """How many charges this process has begun; it may have made as many."""
    return _begun


@contextmanager
def true_words(*, begun: bool) -> Iterator[None]:
    """A sentence that is raised in this block says that nothing was spent only if that is so.

    Parameters
    ----------
    begun : whether an earlier run was charged: a user who is told that nothing was spent would begin anew,
        and pay twice.
    """
    before = _done
    try:
        yield
    except DpPowerflowError as error:
        if (begun or _done > before) and error.args:
            said = str(error.args[0])
            kind = Lines if isinstance(error.args[0], Lines) else str
            error.args = (kind(said.replace(NOTHING_SPENT, STAYS_SPENT)), *error.args[1:])
        raise


def of_one_feeder(sentence: str, *, paid: bool) -> str:
    """A sentence about a feeder of a fleet, whose customers and other feeders are charged too.

    Parameters
    ----------
    paid : whether its network was charged, in this run or before; or may have been.
    """
    return sentence.replace(NOTHING_SPENT, STAYS_SPENT if paid else "nothing was spent on its network")
