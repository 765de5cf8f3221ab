"""Faults at every system call: kills, full disks and wrong clocks, and what must hold after each."""
