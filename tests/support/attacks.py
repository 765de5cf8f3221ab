"""What an attacker sees of a twin, to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dp_powerflow.grid.feeder import Feeder, Levels, ParameterKey
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.parameters import read_parameters, rebuild
from dp_powerflow.grid.quantities import Protected

EVERYTHING = Protected(transformers=True, capacitors=True, pv=True)
NOTHING = np.zeros(0, dtype=np.complex128)


def bits_of(feeder: Feeder) -> dict[str, str]:
    """Hashes of all that a feeder is, by part."""

    def digest(*parts: object) -> str:
        total = hashlib.sha256()
        for part in parts:
            total.update(
                np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
            )
        return total.hexdigest()

    known, lines = feeder.as_operated, feeder.lines
    return {
        "nodes": digest(feeder.nodes, feeder.base_kv, feeder.nominal_angle_deg, feeder.neutral),
        "y": digest(feeder.y.data, feeder.y.indices, feeder.y.indptr),
        "source": digest(feeder.slack, feeder.v_slack),
        "loads": digest(feeder.loads, feeder.nominal_injection),
        "pv": digest(feeder.pv),
        "taps": digest(feeder.taps, feeder.taps_from),
        "lines": digest(*(replace(line, primitive=NOTHING) for line in lines), *(x.primitive for x in lines)),
        "operation": digest(
            *(known.nodes, known.y.data, known.y.indices, known.y.indptr),
            *(known.regulators, known.capacitors, known.generators, known.left_out, known.refused),
        ),
        "rest": digest(feeder.coordinates, feeder.notes, feeder.base_mva),
    }


def twin_of(
    feeder: Feeder, levels: Levels, protected: Protected = EVERYTHING, codes: Mapping[str, str] | None = None
) -> Feeder:
    """The twin of a feeder with a given record."""
    return rebuild(feeder, protected, levels, codes or {})


def record_of(feeder: Feeder, protected: Protected = EVERYTHING) -> dict[ParameterKey, float]:
    """Some record that a twin of this feeder may have: its levels, each changed by some per cent."""
    assert isinstance(feeder.origin, DssOrigin)
    levels = sorted(read_parameters(feeder.origin, protected).levels.items())
    return {key: float(level * (1.0 + 0.1 * np.sin(k))) for k, (key, level) in enumerate(levels)}


def assert_twins_agree(one: Feeder, other: Feeder, protected: Protected = EVERYTHING) -> Feeder:
    """Neighbours with the same record have the same twin; returned for a look at it."""
    assert bits_of(one) != bits_of(other)
    record, codes = record_of(one, protected), {}
    if protected.codes:
        assert isinstance(one.origin, DssOrigin)
        codes = {line.line: line.code for line in read_parameters(one.origin, protected).coded}
    first, second = (twin_of(feeder, record, protected, codes) for feeder in (one, other))
    assert bits_of(first) == bits_of(second)
    return first
