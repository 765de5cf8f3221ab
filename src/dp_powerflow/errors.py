"""Errors a user can act on.

Every message is one sentence that says what is wrong, where, and what to do. It never prints a
private value. The command line turns any `DpPowerflowError` into that sentence and exit code 2.
"""

from __future__ import annotations

import importlib
import unicodedata
from typing import Any

_MOST_SHOWN = 20_000
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode that a terminal obeys or does not show: controls, formats, surrogates, separators."""


def printable(text: str, *, lines: bool = False) -> str:
    """A text as a terminal may show it: signs that it would obey, or not show, are escaped.

    Parameters
    ----------
    lines : keep line ends and tabs. Without it, of a text without end the beginning and the end are shown.
    """
    if len(text) > _MOST_SHOWN and not lines:
        text = f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 4 :]}"
    if text.isprintable():
        return text
    return "".join(
        sign.encode("unicode_escape").decode()
        if unicodedata.category(sign) in UNSEEN and not (lines and sign in "\n\t")
        else sign
        for sign in text
    )


class Lines(str):
    """Several sentences, a line each; their maker makes each `printable`."""


class DpPowerflowError(Exception):
    """Base of all errors that are the input's fault, not the program's.

    Parameters
    ----------
    problem : one sentence: what is wrong and where, and after the last semicolon what to do.
    fix : what to do, where the sentence does not end with it.
    code : the kind of refusal; without it the code of the class.

    Attributes
    ----------
    code : short and stable, for programs; sentences may change.
    """

    code = "refused"

    def __init__(self, problem: object = "", *, fix: str | None = None, code: str | None = None) -> None:
        super().__init__(problem if fix is None else f"{problem}; {fix}")
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        text = self.args[0]
        return text if isinstance(text, Lines) else printable(str(text))

    @property
    def fix(self) -> str | None:
        """What to do about it; None where the sentence does not say."""
        if isinstance(self.args[0], Lines):
            return None
        _, *rest = str(self).split("; ")
        return next((part for part in reversed(rest) if "spent" not in part), None)

    @property
    def each(self) -> tuple[DpPowerflowError, ...]:
        """The errors that this one joins, each with a code and a fix; itself if it is one."""
        return (self,)

    def to_dict(self) -> dict[str, str | None]:
        """The error for JSON."""
        return {"error": str(self), "code": self.code, "fix": self.fix}


class FeederError(DpPowerflowError):
    """The feeder cannot be read or is not a feeder we can represent."""

    code = "feeder"


class FeederRejectedError(FeederError):
    """OpenDSS or pandapower does not take the file."""

    code = "feeder-rejected"


class FeederScriptError(FeederError):
    """The file has a command that does not describe a circuit."""

    code = "feeder-script"


class TapsError(FeederError):
    """Regulator taps are missing, wrong or not declared public."""

    code = "taps"


class LoadTableError(FeederError):
    """The table of nominal loads cannot be used."""

    code = "load-table"


class NoTwinError(FeederError):
    """No twin of the feeder can be made that leaves nothing of the true network unprotected."""

    code = "twin-not-possible"


class LoadDataError(DpPowerflowError):
    """The meter data cannot be read or violates a declared property."""

    code = "meters"


class ServiceMapError(LoadDataError):
    """The public list of customers cannot be used."""

    code = "service-map"


class PrivacyError(DpPowerflowError):
    """A privacy parameter is out of range, or a guarantee cannot be given."""

    code = "privacy"


class PrivateStateError(PrivacyError):
    """The private state directory cannot be used."""

    code = "private-state"


class ChangedRequestError(PrivacyError):
    """A release id was begun with another config or other data, and cannot go on with these."""

    code = "request-changed"


class PowerFlowError(DpPowerflowError):
    """The power flow was asked something it cannot answer."""

    code = "power-flow"


class CorpusError(DpPowerflowError):
    """A corpus cannot be written, or what is on disk is not a corpus."""

    code = "corpus"


class OutputTakenError(CorpusError):
    """Something is there already where a result would be written."""

    code = "output-taken"


class ConfigError(DpPowerflowError):
    """The config file cannot be read or says something that is not possible."""

    code = "config"


class WeatherError(ConfigError):
    """The weather file or the covariates made from it cannot be used."""

    code = "weather"


class MissingExtraError(DpPowerflowError):
    """An optional dependency is not installed."""

    code = "missing-extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package '{package}', which is not installed; "
            f"install it with: pip install 'dp-powerflow[{extra}]'"
        )
        self._made_of = package, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return MissingExtraError, self._made_of


def require(package: str, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # A package that is there but lacks one of its dependencies is another problem: show that one.
        missing = package.partition(".")[0]
        if error.name not in (package, missing):
            raise
        raise MissingExtraError(missing, extra) from None
