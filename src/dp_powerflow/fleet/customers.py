"""The customers of a fleet: one meter source, one charge, and one load model, or one per feeder.

One model: the charge pays for one fit on all customers, and every feeder's release reuses it.

One model per feeder: a public map puts every load point on one feeder, so what one load point does changes
the records of one fit only. By parallel composition all fits together cost one load point what the dearest of
them costs. All have the same budget, and that is charged, once, to the account of all customers. The charge
is bound to the map: moving a load point to another feeder under the same fleet id is refused.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow import __version__
from dp_powerflow.config import Config
from dp_powerflow.errors import LoadDataError, PrivacyError
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.feeders import FleetFeeder, release_id_of
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.pipeline.charge import REQUEST_FILE, refuse_another_request
from dp_powerflow.pipeline.inputs import loads_chunks
from dp_powerflow.pipeline.plan import Plan, plan_release
from dp_powerflow.pipeline.run import MODEL_FILE, fitted_model
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState

_NOT_PART_OF_THE_REQUEST = {"path", "services"}


@dataclass(frozen=True, eq=False, repr=False)
class Customers:
    """PRIVATE. The meter data of a fleet, read once, and what the models cost.

    Attributes
    ----------
    history : all load points of the meter source.
    points_of : key of a feeder → its load points; None for one model of all.
    plan : cost of one model and cap of the account.
    request_sha256 : hash of everything that decides the models.
    """

    history: LoadHistory
    points_of: Mapping[str, tuple[str, ...]] | None
    plan: Plan
    request_sha256: str


def read_feeder_map(path: Path) -> dict[str, tuple[str, ...]]:
    """Key of a feeder → its load points, from the PUBLIC column `feeder` of a service map.

    Load points without a feeder belong to none. A load point on two feeders is refused: its customers would
    be in two models, and the costs would add up.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("load_point", "feeder") if name not in (reader.fieldnames or ())]
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error):
        raise LoadDataError(
            f"the service map {path} cannot be read; check the path and the encoding"
        ) from None
    if missing:
        raise LoadDataError(
            f"the service map {path} has no column '{missing[0]}', which models per feeder need; add it"
        )
    feeder_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        point, feeder = row["load_point"], row["feeder"] or ""
        if feeder_of.setdefault(point, feeder) != feeder:
            raise LoadDataError(
                f"row {number} of the service map {path} puts a load point on a second feeder; models per "
                "feeder need every load point on one feeder, or use fleet.models = 'one'"
            )
    points: dict[str, list[str]] = {}
    for point, feeder in feeder_of.items():
        if feeder:
            points.setdefault(feeder, []).append(point)
    return {feeder: tuple(members) for feeder, members in points.items()}


def plan_customers(
    config: FleetConfig, any_feeder: Config, state: PrivateState, history: LoadHistory
) -> Customers:
    """What the models will cost; looks at public sizes only and records nothing."""
    points_of = None
    if config.fleet.models == "per-feeder" and config.model.reuse is None:
        assert config.loads.services is not None
        points_of = read_feeder_map(config.loads.services)
    inputs = state.identity("inputs", _chunks(history, points_of))
    content = {
        "models": config.fleet.models,
        "model": config.model.model_dump(mode="json"),
        "loads": config.loads.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST),
        "random reactive load": config.network.random_reactive,
        "inputs": inputs,
        "version": __version__,
    }
    request = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    plan = plan_release(_fit_config(config, any_feeder, config.fleet.id), history, inputs)
    return Customers(history, points_of, plan, request)


def charge_customers(config: FleetConfig, state: PrivateState, ledger: Ledger, customers: Customers) -> None:
    """Charge the customers once for all models of the fleet, or check that an earlier charge covers them."""
    fleet = config.fleet
    if config.model.reuse is None:
        refuse_another_request(fleet.id, customers.request_sha256, state, ledger)
    account = ledger.account(
        state.identity("loads", loads_chunks(customers.history)),
        customers.plan.loads_cap,
        continues=fleet.continues_loads,
        unrelated=fleet.unrelated_loads,
    )
    if config.model.reuse is None:
        ledger.spend(account, fleet.id, customers.request_sha256, customers.plan.loads_cost)
        state.write_internal(fleet.id, REQUEST_FILE, customers.request_sha256.encode())
    elif all(spend.release_id != config.model.reuse for spend in ledger.spends(account)):
        raise PrivacyError(
            f"model.reuse names '{config.model.reuse}', which these customers were never charged for; name a "
            "fleet or release of the same meter data, or remove the key to fit anew"
        )


def keep_shared_model(
    config: FleetConfig, any_feeder: Config, state: PrivateState, customers: Customers
) -> None:
    """Fit the one model of all customers, if that is what was paid for and it is not there yet."""
    if config.fleet.models == "one" and config.model.reuse is None:
        _fit(_fit_config(config, any_feeder, config.fleet.id), state, customers.history, customers.plan)


def keep_own_model(
    config: FleetConfig, feeder: FleetFeeder, state: PrivateState, customers: Customers
) -> None:
    """With models per feeder: put this feeder's model where its release finds it."""
    if config.fleet.models == "one":
        return
    if config.model.reuse is not None:
        earlier = state.read_internal(release_id_of(config.model.reuse, feeder.name), MODEL_FILE)
        if earlier is None:
            raise PrivacyError(
                f"fleet '{config.model.reuse}' has fitted no load model of feeder '{feeder.name}'; set "
                "fleet.continues to that fleet so that names agree, or fit anew"
            )
        state.write_internal(feeder.release_id, MODEL_FILE, earlier)
        return
    assert customers.points_of is not None
    points = customers.points_of.get(feeder.key)
    if points is None:
        raise LoadDataError(
            f"no load point of the service map is on feeder '{feeder.key}'; check its column 'feeder'"
        )
    own = _fit_config(config, feeder.config, feeder.release_id)
    _fit(own, state, customers.history.select(points), customers.plan)


def _fit_config(config: FleetConfig, feeder: Config, release_id: str) -> Config:
    """The config that a model is fitted with: nothing of the feeder decides the fit."""
    release = feeder.release.model_copy(update={"id": release_id})
    return feeder.model_copy(update={"model": config.model, "release": release})


def _fit(config: Config, state: PrivateState, history: LoadHistory, plan: Plan) -> None:
    fitted_model(config, state, history, plan, state.stream_key().bind("release", config.release.id))


def _chunks(history: LoadHistory, points_of: Mapping[str, tuple[str, ...]] | None) -> Iterator[bytes]:
    yield repr(None if points_of is None else sorted(points_of.items())).encode()
    yield from loads_chunks(history)
