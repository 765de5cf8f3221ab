"""The customers of a fleet with a model per feeder, and fleets that go on from earlier ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.errors import ConfigError, LoadDataError, PrivacyError
from dp_powerflow.fleet.customers import read_feeder_map
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.ledger.accounts import AccountKind
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from support.fleet_small import (
    KEYS,
    circuit,
    fleet_config,
    on_twins,
    write_feeders,
    write_meters,
    write_services,
)
from support.here import Here

THREE = [f"feeders/{key}.dss" for key in (KEYS[0], KEYS[1], KEYS[3])]
POINTS = 96


def own_models(folder: Path, loads: dict[str, Any], **fleet: Any) -> Any:
    sections = {"fleet": {"models": "per-feeder", "feeders": THREE, **fleet}}
    return on_twins(folder, loads={**loads, "load_points": None, "days": None}, **sections)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("own-models")
    write_feeders(folder)
    loads = write_meters(folder, points=POINTS)
    assert not run_fleet(own_models(folder, loads), engine=Here()).failed
    return folder, loads


@pytest.fixture
def copied(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return Path(shutil.copytree(made[0], tmp_path / "copy")), made[1]


def spends(folder: Path, kind: AccountKind) -> list[Spend]:
    ledger = Ledger.inspect(folder / "state")
    return [spend for spend in ledger.spends() if spend.kind is kind]


def test_a_model_per_feeder_costs_a_customer_the_dearest_and_is_charged_once(
    made: tuple[Path, dict[str, Any]],
) -> None:
    folder = made[0]
    models = [LoadModel.load(path) for path in sorted((folder / "out").glob("feeder=*/model.json"))]
    assert len({model.to_json() for model in models}) == 3
    assert [model.n_load_points for model in models] == [POINTS // len(KEYS)] * 3
    [spend] = spends(folder, AccountKind.LOADS)
    assert spend.release_id == "north"
    manifest = json.loads((folder / "out" / "fleet.json").read_text())
    customers = manifest["customers"]
    assert customers["models"] == "per-feeder"
    report = verify_fleet(folder / "out", folder / "state")
    assert any("the dearest model costs (parallel composition)" in text for text in report.attested)
    assert customers["rho"] == max(model.rho for model in models)
    assert customers["rho"] <= spend.cost.amounts()["rho"]
    assert customers["load_points"] == POINTS // 2
    assert report.verdict == "demonstration"


def test_a_model_is_fitted_from_the_readings_of_its_own_feeder_alone(
    made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Readings of a load point change the model of its feeder and no other: what the composition rests on."""
    folder, loads = made
    shutil.copytree(folder / "feeders", tmp_path / "feeders")
    shutil.copy(folder / "services.csv", tmp_path)
    rows = (folder / "meters.csv").read_text().splitlines()
    changed = [",".join([*row.split(",")[:2], "1.9"]) if row.startswith("c0,") else row for row in rows]
    assert changed != rows
    (tmp_path / "meters.csv").write_text("\n".join(changed) + "\n")
    run_fleet(own_models(tmp_path, loads), engine=Here())
    register = json.loads((folder / "state" / "internal" / "north" / "feeders.json").read_text())

    def model(base: Path, key: str) -> bytes:
        return (base / "out" / f"feeder={register[key]['name']}" / "model.json").read_bytes()

    first, *others = (KEYS[0], KEYS[1], KEYS[3])  # load point 0 is on the first feeder
    assert model(folder, first) != model(tmp_path, first)
    for key in others:
        assert model(folder, key) == model(tmp_path, key)


def test_a_load_point_on_two_feeders_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    loads = write_meters(tmp_path, points=12)
    with (tmp_path / "services.csv").open("a") as file:
        file.write(f"second-customer,p0,residential,3.0,{KEYS[3]}\n")
    with pytest.raises(LoadDataError, match="puts a load point on a second feeder"):
        run_fleet(own_models(tmp_path, {**loads, "most_placeholders": 0.1}), engine=Here())
    assert spends(tmp_path, AccountKind.LOADS) == []


def test_moving_a_load_point_to_another_feeder_under_the_same_fleet_id_is_refused(
    copied: tuple[Path, dict[str, Any]],
) -> None:
    folder, loads = copied
    feeders = [KEYS[i % len(KEYS)] for i in range(POINTS)]
    write_services(folder, [KEYS[4], *feeders[1:]])
    more = [*THREE, f"feeders/{KEYS[4]}.dss"]
    with pytest.raises(PrivacyError, match="another request or other data"):
        run_fleet(own_models(folder, loads, feeders=more), engine=Here())


def test_a_feeder_without_customers_fails_alone(copied: tuple[Path, dict[str, Any]]) -> None:
    folder, loads = copied
    (folder / "feeders" / "nobody.dss").write_text(circuit(0.7))
    result = run_fleet(own_models(folder, loads, feeders=[*THREE, "feeders/nobody.dss"]), engine=Here())
    assert [outcome.key for outcome in result.failed] == ["nobody"]
    assert "no load point" in str(result.failed[0].problem)


def test_a_later_fleet_on_the_same_twins_and_models_costs_nobody_anything(
    copied: tuple[Path, dict[str, Any]],
) -> None:
    folder, loads = copied
    before = [*spends(folder, AccountKind.LOADS), *spends(folder, AccountKind.NETWORK_TWIN)]
    config = own_models(folder, loads, id="north-2", output="out-2", continues="north")
    config = config.model_copy(
        update={
            "model": config.model.model_copy(update={"reuse": "north"}),
            "network": config.network.model_copy(update={"id": "north"}),
        }
    )
    assert not run_fleet(config, engine=Here()).failed
    after = [*spends(folder, AccountKind.LOADS), *spends(folder, AccountKind.NETWORK_TWIN)]
    assert after == before
    assert verify_fleet(folder / "out-2", folder / "state").verdict == "demonstration"
    for path in (folder / "out").glob("feeder=*/model.json"):
        assert (folder / "out-2" / path.parent.name / path.name).read_bytes() == path.read_bytes()


def test_feeders_of_a_fleet_that_continues_another_are_charged_to_the_accounts_they_have(
    tmp_path: Path,
) -> None:
    write_feeders(tmp_path)
    policy = {"epsilon": 1e5, "delta": 0.2}
    caps = {"network_epsilon_cap": 3e5, "network_delta_cap": 0.9, "feeders": THREE[:1]}
    run_fleet(fleet_config(tmp_path, network=policy, fleet=caps), engine=Here())
    (tmp_path / "feeders" / f"{KEYS[0]}.dss").write_text(circuit(1.01))  # a correction of the network
    later = {**caps, "id": "later", "output": "later"}
    model = {"reuse": "north"}
    with pytest.raises(PrivacyError, match=r"set fleet\.continues"):
        run_fleet(fleet_config(tmp_path, network=policy, fleet=later, model=model), engine=Here())
    continued = fleet_config(tmp_path, network=policy, fleet={**later, "continues": "north"}, model=model)
    assert not run_fleet(continued, engine=Here()).failed
    first, second = spends(tmp_path, AccountKind.NETWORK_INSTANCE)
    assert first.account == second.account
    assert first.dataset != second.dataset
    assert len(spends(tmp_path, AccountKind.LOADS)) == 1


def test_a_fleet_that_continues_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    with pytest.raises(ConfigError, match="does not know"):
        run_fleet(fleet_config(tmp_path, fleet={"continues": "south"}), engine=Here())


def test_the_map_of_customers_to_feeders_is_read_by_load_point(tmp_path: Path) -> None:
    path = tmp_path / "services.csv"
    path.write_text("customer,load_point,feeder\na,p1,x\nb,p1,x\nc,p2,y\nd,p3,\n")
    assert read_feeder_map(path) == {"x": ("p1",), "y": ("p2",)}
    path.write_text("customer,load_point\na,p1\n")
    with pytest.raises(LoadDataError, match="no column 'feeder'"):
        read_feeder_map(path)


def test_a_map_that_names_no_feeder_of_the_fleet_is_refused_before_anybody_is_charged(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    loads = write_meters(tmp_path, points=POINTS)
    services = tmp_path / loads["services"]
    rows = [row.rsplit(",", 1) for row in services.read_text().splitlines()]
    services.write_text("\n".join([",".join(rows[0]), *(f"{row[0]},elsewhere" for row in rows[1:])]) + "\n")
    assert rows[0][-1] == "feeder"
    with pytest.raises(LoadDataError, match="names no feeder of the fleet"):
        run_fleet(own_models(tmp_path, loads), engine=Here())
    assert not spends(tmp_path, AccountKind.LOADS)
