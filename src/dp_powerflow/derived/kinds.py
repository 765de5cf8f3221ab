"""The kinds of derived releases by name. A kind is imported when it is asked for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from dp_powerflow.derived.study import Kind
from dp_powerflow.errors import ConfigError

KINDS: dict[str, str] = {
    "opf": "dp_powerflow.derived.dispatch:OptimalDispatch",
    "hosting-capacity": "dp_powerflow.derived.hosting:HostingCapacity",
    "reliability": "dp_powerflow.derived.reliability:Reliability",
}
"""Name of a kind → module and class of its settings."""


def kind_of(name: str, settings: Mapping[str, Any]) -> Kind:
    """The kind of a name with public settings; what is not set has its default.

    Raises
    ------
    ConfigError : there is no such kind, or a setting is unknown or cannot be used; it is named.
    """
    if name not in KINDS:
        raise ConfigError(f"there is no derived release '{name}'; choose one of {', '.join(KINDS)}")
    module, _, settings_class = KINDS[name].partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(module), settings_class)
    try:
        # As JSON: a list of a file is a tuple of the settings, and nothing else is converted.
        found = model.model_validate_json(json.dumps(dict(settings), allow_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of them together"
        known = ", ".join(model.model_fields) or "none"
        hint = f" (settings: {known})" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"setting {where} of '{name}' cannot be used: {first['msg']}{hint}") from None
    except (TypeError, ValueError):
        raise ConfigError(
            f"the settings of '{name}' must be numbers, texts, lists and tables; write dates as texts"
        ) from None
    return cast("Kind", found)


def settings_of(kind: Kind) -> dict[str, Any]:
    """All settings of a kind as plain values, those with their default too."""
    found: dict[str, Any] = cast("BaseModel", kind).model_dump(mode="json")
    return found
