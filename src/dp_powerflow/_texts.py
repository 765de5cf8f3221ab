"""Texts that a release repeats, as types that pydantic checks: in a config, and in a manifest."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

PublicText = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00-\x09\x0b-\x1f]+$")]
"""Printable characters and line breaks."""
PublicLine = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
LicenseId = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]*$")]
"""Identifier of the SPDX list, such as CC-BY-4.0."""
WebAddress = Annotated[str, Field(max_length=500, pattern=r"^https?://[^\s\x00-\x1f\"<>\\]+$")]
