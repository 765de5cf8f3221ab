"""Meter data: everything in this package is PRIVATE."""
