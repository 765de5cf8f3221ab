"""The quality of a release, from its released files alone: figures, JSON, and a page.

docs/reference/quality.md says what the page shows.
"""

from dp_powerflow.quality.measure import Guarantee, Promise, Quality, measure

__all__ = ["Guarantee", "Promise", "Quality", "measure"]
