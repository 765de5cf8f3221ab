"""What a hostile look at the first release on one's own data has found, and what held.

On the code of f75098f the following went through: loads without customers made parts of other days than the
corpus has, and load shapes with gaps were dropped, so that sizes and customers told of readings; customers
could be recounted under the same release id; bounds that no mending ends failed after everything was paid;
every feeder of a fleet got the customers of all feeders; `certify` on a twin ended in a traceback.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow._certify import certify_config
from dp_powerflow.config import Config, parse_config
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.errors import ConfigError, DpPowerflowError, FeederError, LoadDataError
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import read_loads
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model import sample
from dp_powerflow.model import sample as together
from dp_powerflow.pipeline import release as pipeline
from dp_powerflow.pipeline.customers import CustomerPlan, customer_plan
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from pipeline.test_mending import heavy
from support.fleet_small import KEYS, on_twins, write_feeders, write_meters
from support.forgery import Forger
from support.here import Here
from support.manifest_releases import make_release, twin_config
from support.own_meters import OwnMeters
from support.small import small_config, tree_hash

TWIN: dict[str, Any] = {"mode": "twin-network", "id": "t1", "epsilon": 8.0}
FIRST = dt.date(2024, 3, 4)
ANOTHER_TOWN = {"accounts": ["loads-1"], "reason": "another town"}


def nothing_spent(folder: Path) -> bool:
    return not (folder / "state" / "ledger.sqlite").exists()


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "manifest.json").read_text())
    return found


def state_of(folder: Path) -> PrivateState:
    return PrivateState.open(folder / "state", insecure_seed=7)


# ------------------------------------------------------------------------------------------- load tables


def with_table(folder: Path, feeder: Feeder, customers: list[int], **release: Any) -> Config:
    rows = [f"{load.name},{load.kw},{load.kvar},{n}" for load, n in zip(feeder.loads, customers, strict=True)]
    (folder / "loads.csv").write_text("\n".join(["name,kw,kvar,customers", *rows]) + "\n")
    return small_config(folder, feeder={"loads": "loads.csv"}, network=TWIN, release=release)


def test_loads_without_customers_are_released_in_the_parts_of_the_corpus(
    tmp_path: Path, ieee13: Feeder
) -> None:
    """The parts of a corpus are laid out before it is known which loads have customers."""
    customers = [3 * (k % 2) for k in range(len(ieee13.loads))]
    days = sample.days_per_block(len(ieee13.loads)) + 4
    run_release(with_table(tmp_path, ieee13, customers, days=days), workers=1)
    manifest = manifest_of(tmp_path)
    assert manifest["data"]["parts"] == 2
    assert verify_release(tmp_path / "out").intact


def test_other_customers_in_the_load_table_are_another_request(tmp_path: Path, ieee13: Feeder) -> None:
    """Under one release id parts of two counts would be mixed: a file that changes is refused."""
    found = []
    for count in (3, 4):
        config = with_table(tmp_path, ieee13, [count] * len(ieee13.loads), days=2)
        found.append(read_inputs(config, state_of(tmp_path)).identity)
    assert found[0] != found[1]


def test_a_number_of_customers_too_long_to_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(f"name,kw,kvar,customers\none,1,0,{'9' * 5000}\n")
    with pytest.raises(FeederError, match="whole number"):
        read_loads(tmp_path / "loads.csv")


# -------------------------------------------------------------------------------------------- readings


def shapes(folder: Path, feeder: Feeder, holes: int) -> Config:
    (folder / "shapes").mkdir()
    rng = np.random.default_rng(3)
    for k, load in enumerate(feeder.loads):
        values = 0.3 * np.exp(0.3 * rng.standard_normal(24 * 6))
        if k < holes:
            values[10:100] = np.nan
        (folder / "shapes" / f"loadshape_{load.name}.csv").write_text("\n".join(map(str, values)) + "\n")
    raw = small_config(folder, network=TWIN, release={"days": 2}).model_dump()
    own = {"kind": "opendss-shapes", "path": "shapes", "first_day": FIRST, "step_minutes": 60}
    raw |= {"loads": {**own, "most_placeholders": 0.2}, "nodes": {"kw_per_customer": 10.0}}
    return parse_config(raw, base=folder)


def test_a_load_shape_with_gaps_changes_neither_the_records_nor_the_customers(
    tmp_path: Path, ieee13: Feeder
) -> None:
    """Both are published, as declared: which meters are complete must not decide them."""
    services = []
    for holes in (0, 1):
        folder = tmp_path / str(holes)
        folder.mkdir()
        inputs = read_inputs(shapes(folder, ieee13, holes), state_of(folder))
        services.append((inputs.services.node_of, inputs.readings.n_load_points))
        assert inputs.ingest is not None
        assert inputs.ingest.n_rejected == holes
    assert services[0] == services[1]


def test_load_shapes_obey_the_declared_share_of_placeholders(tmp_path: Path, ieee13: Feeder) -> None:
    config = shapes(tmp_path, ieee13, len(ieee13.loads) // 2)
    with pytest.raises(LoadDataError, match="most_placeholders"):
        plan(config)
    assert nothing_spent(tmp_path)


def garbage(meters: OwnMeters, kind: str) -> None:
    own = meters.readings[3]
    own[...] = {"gone": np.nan, "negative": -0.2, "larger": own * 7.0, "zero": 0.0}[kind]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pipeline.ReleaseResult]:
    folder = tmp_path_factory.mktemp("own")
    return folder, run_release(OwnMeters().config(folder), workers=1)


@pytest.mark.parametrize("kind", ["gone", "negative", "larger", "zero"])
def test_readings_of_one_customer_reach_a_release_through_the_model_alone(
    own: tuple[Path, pipeline.ReleaseResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two neighbouring meter files and one model: every released byte is the same."""
    meters, (folder, released) = OwnMeters(), own
    garbage(meters, kind)
    monkeypatch.setattr(pipeline, "fitted_model", lambda *_: released.model)
    run_release(meters.config(tmp_path), workers=1)
    assert tree_hash(folder / "out") == tree_hash(tmp_path / "out")


# --------------------------------------------------------------------------------------------- physics


@pytest.mark.parametrize("upper", [1e13, 1e15])
def test_bounds_that_no_mending_ends_are_refused_before_anything_is_spent(
    tmp_path: Path, upper: float
) -> None:
    config = small_config(tmp_path, network=TWIN, model={"bounds": [0.01, upper]}, release={"days": 2})
    for action in (plan, lambda own: run_release(own, workers=1)):
        with pytest.raises(ConfigError, match=r"upper bound of model\.bounds"):
            action(config)
    assert nothing_spent(tmp_path)


class Killed(BaseException):
    """Ends a run between two parts."""


def kill(done: int, total: int) -> None:
    if done == 2:
        raise Killed


@pytest.mark.slow
def test_mended_snapshots_of_parts_from_before_an_interruption_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_BLOCK_CUSTOMER_DAYS", 5)
    monkeypatch.setattr(together, "MOST_PHASORS", 1)  # part by part
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    whole, resumed = (heavy(folder) for folder in folders)
    run_release(whole, workers=1)
    with pytest.raises(Killed):
        run_release(resumed, workers=1, progress=kill)
    run_release(resumed, workers=1)
    assert manifest_of(folders[0])["data"]["parts"] == 6
    assert manifest_of(folders[0])["data"]["extras"]["mended_snapshots"] > 0
    assert tree_hash(folders[0] / "out") == tree_hash(folders[1] / "out")


def test_certify_on_a_twin_says_that_there_is_nothing_to_certify(
    own: tuple[Path, pipeline.ReleaseResult],
) -> None:
    with pytest.raises(ConfigError, match="needs no network evidence"):
        certify_config(OwnMeters().config(own[0]), None)


# -------------------------------------------------------------------------------------------- forgeries


def test_mended_snapshots_are_counted_again(tmp_path: Path) -> None:
    forger = Forger.of(make_release(tmp_path, twin_config(), extras=ExtrasLayout(mended=True)).path)
    facts = forger.opened.facts
    assert facts is not None
    assert not forger.found_of(facts)
    assert forger.found_of(replace(facts, mended=facts.mended + 1))


# ---------------------------------------------------------------------------------------------- fleets


def give_nodes(folder: Path, *, feeders: bool = True) -> None:
    """The loads of a feeder in turn, for every load point; all feeders have loads of the same names."""
    with (folder / "services.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for k, row in enumerate(rows):
        row["node"] = ("la", "lb")[k % 2]
        if not feeders:
            del row["feeder"]
    with (folder / "services.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def fleet_of_three(folder: Path, *, feeders: bool = True) -> Any:
    write_feeders(folder)
    loads = write_meters(folder)
    give_nodes(folder, feeders=feeders)
    three = [f"feeders/{key}.dss" for key in (KEYS[0], KEYS[1], KEYS[3])]
    return on_twins(folder, fleet={"feeders": three}, loads={**loads, "load_points": None, "days": None})


def test_a_feeder_of_a_fleet_has_its_own_customers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(*given: Any) -> CustomerPlan:
        found = customer_plan(*given)
        counts.append(found.customers)
        return found

    monkeypatch.setattr("dp_powerflow.pipeline.modes.base.customer_plan", counted)
    assert not run_fleet(fleet_of_three(tmp_path), engine=Here()).failed
    # 96 load points, dealt out to six feeders; la and lb by turns, so that a feeder has customers on one.
    assert len(counts) == 2 * 3  # a worker checks a feeder before it is paid for, and makes it afterwards
    assert max(counts) < 96 / 2


def test_nodes_without_feeders_are_refused_in_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(DpPowerflowError, match="no column 'feeder'"):
        run_fleet(fleet_of_three(tmp_path, feeders=False), engine=Here())
    assert not list(Ledger.inspect(tmp_path / "state").spends())
