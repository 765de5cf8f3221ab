"""Errors a user can act on.

Every message is one sentence that says what is wrong, where, and what to do. It never prints a
private value. The command line turns any `DpPowerflowError` into that sentence and exit code 2.
"""

from __future__ import annotations

import importlib
import unicodedata
from typing import Any

_MOST_SHOWN = 20_000
_NOT_SHOWN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """A text on one line, as a terminal may show it: what it would obey, or turn round, is escaped.

    Of a text without end, the beginning and the end are shown.
    """
    if len(text) > _MOST_SHOWN:
        text = f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 4 :]}"
    if text.isprintable():
        return text
    return "".join(
        sign.encode("unicode_escape").decode()
        if sign in _TURNING or unicodedata.category(sign) in _NOT_SHOWN
        else sign
        for sign in text
    )


class Lines(str):
    """Several sentences, a line each. Whoever makes them makes each `printable`."""


class DpPowerflowError(Exception):
    """Base of all errors that are the input's fault, not the program's."""

    def __str__(self) -> str:
        text = self.args[0] if len(self.args) == 1 else None
        return text if isinstance(text, Lines) else printable(super().__str__())


class FeederError(DpPowerflowError):
    """The feeder cannot be read or is not a feeder we can represent."""


class LoadDataError(DpPowerflowError):
    """The meter data cannot be read or violates a declared property."""


class PrivacyError(DpPowerflowError):
    """A privacy parameter is out of range, or a guarantee cannot be given."""


class ChangedRequestError(PrivacyError):
    """A release id was begun with another config or other data, and cannot go on with these."""


class PowerFlowError(DpPowerflowError):
    """The power flow was asked something it cannot answer."""


class CorpusError(DpPowerflowError):
    """A corpus cannot be written, or what is on disk is not a corpus."""


class ConfigError(DpPowerflowError):
    """The config file cannot be read or says something that is not possible."""


class MissingExtraError(DpPowerflowError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package '{package}', which is not installed; "
            f"install it with: pip install 'dp-powerflow[{extra}]'"
        )


def require(package: str, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # A package that is there but lacks one of its own dependencies is another problem: show that one.
        if error.name != package:
            raise
        raise MissingExtraError(package, extra) from None
