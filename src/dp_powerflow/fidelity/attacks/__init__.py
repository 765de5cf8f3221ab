"""INTERNAL. Attacks on the load model's own design: what an attacker gets, beside what ε allows.

Fits here are of the real meters with the noise of the release's budget and options. They are never released,
and nothing is charged: like everything in `fidelity` their results stay with the owner.
"""
