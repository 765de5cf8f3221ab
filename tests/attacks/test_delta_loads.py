"""A load between two phases whose wye equivalent is negative at one of them is drawn all the same.

Before 0.3.0 the node with the negative share got no load at all, its partner more than the whole load, and
nobody was told: of 100 kW at 300 kvar between two phases 136.6 kW were drawn, all at one node.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow.grid.feeder import Feeder
from support.tiny_feeder import two_lines


def fed_by(load: str) -> Feeder:
    """A feeder whose only load at bus e is the one given."""
    line = "New Line.last phases=3 bus1=b bus2=e r1=0.2 x1=0.4 r0=0.5 x0=1.2 length=1.0 units=km"
    return two_lines(more=f"{line}\nNew Load.odd phases=1 conn=delta kv=12.47 {load}")


def drawn(feeder: Feeder) -> dict[str, float]:
    """Node → the load drawn there [kW]."""
    positions, kw = feeder.loaded_nodes()
    return {feeder.nodes[feeder.retained[k]]: float(value) for k, value in zip(positions, kw, strict=True)}


@pytest.mark.parametrize("kvar", [300, -300, 173.3])
def test_a_load_with_a_negative_share_keeps_its_total_and_both_nodes(kvar: float) -> None:
    feeder = fed_by(f"bus1=e.1.2 kw=100 kvar={kvar}")
    at = drawn(feeder)
    assert at["e.1"] == pytest.approx(50.0)
    assert at["e.2"] == pytest.approx(50.0)
    assert sum(at.values()) == pytest.approx(sum(load.kw for load in feeder.loads))
    assert sum("draw negative power at one of them" in note for note in feeder.notes) == 1
    assert replace(feeder, name="again").notes == feeder.notes
    # The power flow of the file keeps the exact equivalent.
    assert -feeder.nominal_injection[feeder.node_index["e.1"]].real != pytest.approx(0.05)


def test_a_load_with_two_positive_shares_keeps_its_wye_equivalent() -> None:
    feeder = fed_by("bus1=e.1.2 kw=100 kvar=100")
    nominal_kw = -feeder.nominal_injection.real * feeder.base_mva * 1000.0
    np.testing.assert_array_equal(feeder.nominal_kw, nominal_kw)
    assert not any("negative" in note for note in feeder.notes)
