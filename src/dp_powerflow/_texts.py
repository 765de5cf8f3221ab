"""Texts of a release: types that pydantic checks in a config and a manifest, and plain-text templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from pydantic import Field

PublicText = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x09\x0b-\x1f]+$")]
"""Printable characters and line breaks."""
PublicLine = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
LicenseId = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]*$")]
"""Identifier of the SPDX list, such as CC-BY-4.0."""
WebAddress = Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s\x00-\x1f\"<>\\]+$")]


def environment(
    loader: BaseLoader, *, html: bool, filters: Mapping[str, Callable[..., object]]
) -> Environment:
    """Where templates are filled in; `html` escapes what is filled in, and `filters` they call by name."""
    made = Environment(
        loader=loader,
        autoescape=html,  # off for Markdown and JSON only # nosec B701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= filters
    return made


def filled(template: str, filters: Mapping[str, Callable[..., object]], /, **facts: object) -> str:
    """A template of `templates/` with facts in it; a name that it lacks is an error.

    Parameters
    ----------
    filters : of this template; `f` is Python's format of a figure, and what to write where there is none.
    facts : names that the template has.
    """
    known = {"f": _number, **filters}
    made = environment(PackageLoader("dp_powerflow"), html=False, filters=known)
    return made.get_template(template).render(facts)


def lines_of(template: str, filters: Mapping[str, Callable[..., object]], /, **facts: object) -> list[str]:
    """The lines of a template; parameters as of `filled`."""
    return filled(template, filters, **facts).rstrip("\n").split("\n")


def _number(value: float | None, form: str, without: str = "") -> str:
    return without if value is None else format(value, form)
