"""The version of a build; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "src"))

from dp_powerflow._version import source_version  # noqa: E402  # found by the line above

setup(version=source_version(ROOT))
