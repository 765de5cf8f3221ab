"""INTERNAL. A release against the truth: drawn customers, node loads and voltages against real ones; attacks.

Everything here reads real meters without noise, so its results are INTERNAL: they are for the owner of the
meters and for public benchmarks. They may not be released, and no choice of a release may follow them.
"""
