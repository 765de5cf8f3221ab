"""Reliability of a radial feeder: interruptions, their hours, and energy not served."""

from dp_powerflow.derived.reliability.kind import Reliability

__all__ = ["Reliability"]
