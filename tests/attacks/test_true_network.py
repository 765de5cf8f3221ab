"""The true network: lines read from light nodes, and numbers about another law."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow import BatchSolver, PrivateState, StreamKey
from dp_powerflow._certify import evidence_lines
from dp_powerflow.errors import ConfigError
from dp_powerflow.evidence.collect import Evidence, Instance, Policy, collect_evidence, plain
from dp_powerflow.grid.feeder import GROUND, Feeder, Load
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.lowlevel import ClassLaw, LoadSampler, Network, nominal_law, solve_days
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.render import certificate_html
from dp_powerflow.manifest.true import LEAST_SHARE
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.modes.true import TrueMode, light_nodes, middle_load_kw
from support.line_feeders import SERIES, chain
from support.manifest_releases import LAYOUT, config, load_model, make_inputs
from support.small import small_config
from support.small_circuits import script

NODES = 7
LIGHT = 2
STEPS, DAYS = 24, 20


def with_loads(kw: dict[int, tuple[float, ...]]) -> Feeder:
    """A chain of loads of 20 kW, some nodes with other loads."""
    loads = [
        Load(f"load{k}.{j}", ((k, GROUND),), size, 0.4 * size, "wye")
        for k in range(NODES)
        for j, size in enumerate(kw.get(k, (20.0,)))
    ]
    return replace(chain(NODES), loads=tuple(loads))


def true_mode(folder: Path) -> TrueMode:
    mode = mode_of(small_config(folder))
    assert isinstance(mode, TrueMode)
    return mode


def attack(mode: TrueMode, feeder: Feeder) -> float:
    """Least relative error of a ratio of two lines that meet, from regressions on released voltages."""
    positions, nominal_kw = feeder.loaded_nodes()
    correlation = 0.5 * np.eye(STEPS) + 0.5
    of_class = ClassLaw.gaussian(np.zeros(STEPS), 0.09 * correlation, q_covariance=correlation)
    nominal = (nominal_kw * (0.001 + 0.0004j)).astype(np.complex128)
    law = replace(nominal_law(nominal, of_class, 0.15), positions=positions)
    sampler = LoadSampler(law, StreamKey.from_insecure_seed(1), DAYS, block_days=DAYS)
    made = solve_days(BatchSolver(feeder), sampler)
    made.solution.raise_if_failed()
    released = set(mode.released_nodes(feeder).tolist())
    v = made.solution.v
    errors = []
    for node in range(1, NODES - 1):
        if not {node - 1, node, node + 1} <= released:
            continue
        known = np.column_stack([v[:, node - 1], v[:, node + 1], np.ones(len(v))])
        back, on, _ = np.linalg.lstsq(known, v[:, node], rcond=None)[0]
        truth = SERIES[node % len(SERIES)] / SERIES[(node + 1) % len(SERIES)]
        errors.append(abs(back / on - truth) / abs(truth))
    return min(errors, default=np.inf)


@pytest.mark.parametrize(
    "light", [(0.001,), (100.0, -99.999), (0.5,)], ids=["dummy load", "loads that cancel", "half a kilowatt"]
)
def test_a_line_beside_a_node_without_load_cannot_be_read(tmp_path: Path, light: tuple[float, ...]) -> None:
    """At ffefb60 the ratio of two lines came back to 7e-6 from 20 days (dummy), 4e-3 (half a kilowatt)."""
    mode, ordinary = true_mode(tmp_path), attack(true_mode(tmp_path), with_loads({}))
    feeder = with_loads({LIGHT: light})
    found = attack(mode, feeder)
    assert found > 0.3 * ordinary > 0.003
    released = mode.released_nodes(feeder)
    assert feeder.retained[LIGHT] not in released
    assert len(released) == NODES - 1
    assert LIGHT in feeder.loaded_nodes()[0]  # it keeps its load


def test_dummy_loads_in_the_majority_do_not_lower_the_minimum() -> None:
    """A relative: with most nodes at 1 W a plain median would be 1 W, and all of them be released."""
    feeder = with_loads({0: (0.001,), LIGHT: (0.001,), 4: (0.001,), 5: (0.001,)})
    assert light_nodes(feeder).tolist() == [0, LIGHT, 4, 5]
    assert middle_load_kw(np.array([1e-3] * 99 + [50.0])) == 50.0


def test_a_delta_load_that_leaves_one_of_its_nodes_empty_does_not_release_it(tmp_path: Path) -> None:
    """At ffefb60 node b.1 carried 1.7e-7 kW of load and was released."""
    feeder = read_dss(DssOrigin(tuple(script("empty_delta").splitlines())), name="c")
    nodes, kw = feeder.loaded_nodes()
    names = [feeder.nodes[k] for k in feeder.retained[nodes]]
    assert min(kw) < 1e-5
    released = [feeder.nodes[k] for k in true_mode(tmp_path).released_nodes(feeder)]
    assert set(names) - set(released) == {names[int(np.argmin(kw))]}


@pytest.mark.parametrize("name", ["ieee13", "ieee123"])
def test_the_public_feeders_keep_all_their_nodes(name: str) -> None:
    assert len(light_nodes(open_feeder(name))) == 0


def test_required_evidence_that_cannot_cover_a_light_node_is_refused_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    """A relative: nodes with generation alone were refused only after the customers had paid for the fit."""
    (tmp_path / "c.dss").write_text(script("light_node"))
    chosen = small_config(tmp_path, feeder={"source": "c.dss"}, network={"require_evidence": True})
    inputs = read_inputs(chosen, PrivateState.open(tmp_path / "state", insecure_seed=7))
    with pytest.raises(ConfigError, match="1 nodes carry less load than the public minimum"):
        mode_of(chosen).check(inputs)


def test_the_manifest_states_the_minimum_and_how_many_nodes_are_released(tmp_path: Path) -> None:
    statement = make_statement(make_inputs(tmp_path, config(), load_model())[0])
    page = " ".join(html.unescape(certificate_html(statement).decode()).split())
    assert f"least nominal load of a released node: {100 * LEAST_SHARE:g} % of the feeder's middle" in page
    assert f"{LAYOUT.nodes} nodes of the feeder carry a load" in page


MARK = "not this release"


def evidence(*, random_q: bool) -> Evidence:
    of_class = ClassLaw.gaussian(
        np.zeros(2), 0.09 * np.eye(2), margins=(0.1, 10.0), q_covariance=np.eye(2) if random_q else None
    )
    law = nominal_law(np.full(3, 0.02 + 0.01j), of_class, 0.15 if random_q else None)
    policy = Policy(radius=1e-9, epsilon=50.0, delta=0.9, days=1, calibration_days=20)
    key = StreamKey.from_insecure_seed(0)
    return collect_evidence(Instance(Network(chain(3)), law), policy, key)


@pytest.mark.parametrize("random_q", [True, False])
def test_rows_about_another_law_are_marked_in_text_and_json(random_q: bool) -> None:
    """At ffefb60 `certify` printed ε of the corrected mode beside a release that draws untruncated loads."""
    found = evidence(random_q=random_q)
    lines = evidence_lines(found)
    rows = {row["mode"]: row["law"] for row in plain(found)["rows"]}
    other = {"paper", "corrected"} if random_q else set()
    assert {mode for mode, law in rows.items() if law == MARK} == other
    first = lines.index(next(line for line in lines if line.startswith("| row ")))
    table = {line.split("|")[1].strip() for line in lines[first + 2 : lines.index("", first)]}
    bounds = {f"{mode} ({MARK})" if mode in other else mode for mode in rows}
    assert bounds < table
    assert len(table - bounds) == 1
    for printed in table - bounds:
        assert printed.startswith("formula as printed, not a bound here")
        assert (MARK in printed) is random_q
