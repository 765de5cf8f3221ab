"""Differentially private synthetic voltage phasors for distribution grids."""

__version__ = "0.1.0"
