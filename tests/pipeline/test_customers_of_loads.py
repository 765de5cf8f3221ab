"""How many customers a load has, who says so, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import read_loads
from dp_powerflow.pipeline.customers import Services, count_customers
from support.small import small_config

TWIN = {"mode": "twin-network", "id": "t1", "epsilon": 8.0}


def config(folder: Path, **sections: Any) -> Config:
    return small_config(folder, network=TWIN, **sections)


def counts(found: Config, feeder: Feeder, services: Services | None = None) -> dict[str, int]:
    counted = count_customers(found, feeder, services or Services())
    names = [feeder.loads[k].name for k in counted.positions]
    return dict(zip(names, counted.customers.tolist(), strict=True))


def test_nominal_kw_stand_for_customers_at_least_one(tmp_path: Path, ieee13: Feeder) -> None:
    found = counts(config(tmp_path, nodes={"kw_per_customer": 100.0}), ieee13)
    for load in ieee13.loads:
        assert found[load.name] == max(1, round(load.kw / 100.0))
    assert min(found.values()) == 1


def test_a_class_may_have_customers_of_another_size(tmp_path: Path, ieee13: Feeder) -> None:
    large = ieee13.loads[0].name
    nodes = {
        "class_of_load": {large: "industrial"},
        "kw_per_customer": 1.0,
        "kw_per_customer_of_class": {"industrial": 1e6},
    }
    found = counts(config(tmp_path, nodes=nodes), ieee13, Services((None,), ("residential",)))
    assert found.pop(large) == 1
    assert min(found.values()) > 1


def test_the_service_map_counts_by_load_node_or_bus(tmp_path: Path, ieee13: Feeder) -> None:
    load = ieee13.loads[3]
    other = next(each for each in ieee13.loads if len(each.branches) == 1 and each.name != load.name)
    node = ieee13.nodes[other.branches[0][0]]
    services = Services((load.name.upper(), load.name, None, node), (None,) * 4)
    found = counts(config(tmp_path), ieee13, services)
    assert found[load.name] == 2
    assert found[other.name] == 1
    assert sum(found.values()) > 3  # the others go by their nominal load


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere", "neither a load of the feeder"), ("671", "carries .* loads; name one of them")],
)
def test_a_node_that_the_feeder_does_not_have_is_an_error(
    tmp_path: Path, ieee13: Feeder, name: str, says: str
) -> None:
    if name == "671":
        shares = ieee13.load_shares.tocoo()
        buses: dict[str, set[int]] = {}
        for node, load in zip(*shares.coords, strict=True):
            buses.setdefault(ieee13.nodes[node].rsplit(".", 1)[0], set()).add(int(load))
        name = next(bus for bus, loads in buses.items() if len(loads) > 1)
    with pytest.raises(ConfigError, match=says):
        counts(config(tmp_path), ieee13, Services((name,), (None,)))


def test_the_load_table_counts_before_all_others(tmp_path: Path, ieee13: Feeder) -> None:
    rows = [f"{load.name},{load.kw},{load.kvar},{k}" for k, load in enumerate(ieee13.loads)]
    (tmp_path / "loads.csv").write_text("\n".join(["name,kw,kvar,customers", *rows]))
    table = read_loads(tmp_path / "loads.csv")
    services = Services((ieee13.loads[2].name,), (None,), None, table.customers)
    found = counts(config(tmp_path), ieee13, services)
    assert found == {load.name: k for k, load in enumerate(ieee13.loads) if k}  # the first one has none


def test_a_slip_of_the_unit_is_found_before_memory_is(tmp_path: Path, ieee13: Feeder) -> None:
    with pytest.raises(ConfigError, match="more than 1,000,000 customers"):
        counts(config(tmp_path, nodes={"kw_per_customer": 1e-20}), ieee13)
    assert np.isfinite(sum(counts(config(tmp_path), ieee13).values()))
