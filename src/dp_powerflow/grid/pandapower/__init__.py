"""pandapower."""
