"""Hosting capacities of a true network give back its resistances; those of a twin give back the twin's."""

from __future__ import annotations

import numpy as np
import pytest

from dp_powerflow import StreamKey, TwinDesign, draw_twin, open_feeder
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.quantities import Quantity
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.model.sample import solve_days
from dp_powerflow.powerflow.operated import OperatedSolution
from dp_powerflow.studies.hosting import HostingCapacity
from dp_powerflow.twin.draw import draw_twin as draw_record
from dp_powerflow.twin.draw import parameters_of
from support.hosting_attack import SeenCapacities, path_impedances, true_impedances
from support.studies import random_days, study_of

STEPS, LIGHT, V_MAX = 24, 0.1, 1.08
NEAR = 0.05
DESIGN = TwinDesign(epsilon=1.0, change=0.05)
COARSE = TwinDesign(epsilon=1.0, change=0.2)


def attacked(feeder: Feeder) -> tuple[np.ndarray, np.ndarray]:
    """(node,) resistances that the attack finds, and those of the network, at light load [p.u.]."""
    study = study_of(feeder, random_days(feeder, 4, STEPS, LIGHT))
    solved = [solve_days(study.make_solver(1), study.source, block, nodes="all") for block in range(2)]
    v = np.concatenate([each.solution.v for each in solved])
    seen = []
    for factor in (1.0, 0.9):
        kind = HostingCapacity(v_max_pu=V_MAX, v_min_pu=0.7, power_factor=factor, reactive="injected")
        hosted = kind.capacities(study, workers=1)
        seen.append(SeenCapacities.of(hosted, v))
    noon = solved[0].solution
    assert isinstance(noon, OperatedSolution)
    true = true_impedances(feeder, noon.taps[STEPS // 2], study.released[hosted.places])
    return path_impedances(seen[0], seen[1], V_MAX).real, true.real


def errors(found: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Relative errors; what the attack cannot say is wrong."""
    return np.where(np.isnan(found), np.inf, np.abs(found / of - 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
def test_capacities_of_the_true_network_give_back_most_path_resistances(name: str) -> None:
    found = errors(*attacked(open_feeder(name)))
    assert np.mean(found <= NEAR) > 0.5
    assert np.median(found) <= NEAR


@pytest.mark.slow
def test_capacities_of_a_twin_tell_no_more_of_the_true_network_than_the_twin() -> None:
    feeder = open_feeder("ieee123")
    twin = draw_twin(feeder, COARSE, key=StreamKey.from_insecure_seed(4)).feeder
    found, of_twin = attacked(twin)
    _, true = attacked(feeder)
    assert np.median(errors(found, of_twin)) <= NEAR
    noise = errors(of_twin, true)
    good = errors(found, of_twin) <= NEAR
    # Where the attack works, it is as far from the truth as the twin, which is published anyway.
    assert np.median(noise[good]) > 0.02
    assert np.median(errors(found, true)[good]) >= 0.8 * np.median(noise[good])


def circuit(metres: float) -> Feeder:
    commands = (
        "Clear",
        "New Circuit.small basekv=12.47 bus1=source pu=1.0 r1=0.5 x1=1.5 r0=0.5 x0=1.5",
        "New Linecode.own nphases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 units=km",
        f"New Line.secret bus1=source bus2=a linecode=own length={metres!r} units=m",
        "New Line.b bus1=a bus2=b linecode=own length=2000 units=m",
        "New Load.one bus1=b phases=3 kv=12.47 kw=900 kvar=300",
        "New Load.two bus1=a.1 phases=1 kv=7.2 kw=200 kvar=60",
        "Set VoltageBases=[12.47]",
        "CalcVoltageBases",
    )
    return read_dss(DssOrigin(commands, public=True), name="small")


def test_two_true_networks_with_one_twin_record_have_the_same_findings() -> None:
    one, other = circuit(3000.0), circuit(3150.0)
    record = draw_record(
        parameters_of(Rebuilder(one, DESIGN.protected), DESIGN), DESIGN, StreamKey.from_insecure_seed(5)
    )
    assert sum(key.quantity is Quantity.RESISTANCE for key in record.positions) == 2
    twins = [record.feeder(Rebuilder(true, DESIGN.protected)) for true in (one, other)]
    kind = HostingCapacity(per_day=True)
    true, changed, *found = (
        kind.find(study_of(feeder, random_days(one, 2, STEPS, 0.3)), workers=1)
        for feeder in (one, other, *twins)
    )
    assert true.figures != changed.figures
    assert found[0].figures == found[1].figures
    assert found[0].tables.keys() == found[1].tables.keys()
    for name, table in found[0].tables.items():
        assert table.equals(found[1].tables[name])
