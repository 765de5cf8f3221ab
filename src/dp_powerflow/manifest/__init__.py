"""The documents of a release: `manifest.json` and what is made from it. Importing it registers the modes."""

from dp_powerflow.manifest import true, twin

__all__ = ["true", "twin"]
