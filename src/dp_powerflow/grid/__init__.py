"""Feeders from real sources, and the reduced network."""
