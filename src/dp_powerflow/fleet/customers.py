"""The customers of a fleet: what the charge of them pays for.

One meter source, one charge, and one load model, or one per feeder. One model: the charge pays for one fit
on all customers, and every feeder's release reuses it. One model per feeder: a public map puts every load
point on one feeder, so what one load point does changes the records of one fit only. By parallel composition
all fits together cost one load point what the dearest of them costs. All have the same budget, and that is
charged, once, to the account of all customers. The charge is bound to the map: moving a load point to another
feeder under the same fleet id is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dp_powerflow._names import __version__
from dp_powerflow.config import Config
from dp_powerflow.errors import DpPowerflowError, PrivacyError, ServiceMapError
from dp_powerflow.fleet.feeders import FleetConfig, FleetFeeder, find_sources
from dp_powerflow.fleet.manifest import release_id_of
from dp_powerflow.loads.declared import read_service_rows
from dp_powerflow.loads.history import LoadHistory, refuse_alike
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.inputs import Almanac, almanac_of, loads_chunks
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import Plan, never_charged, plan_release, refuse_large_delta
from dp_powerflow.pipeline.release import fitted_model, refuse_another_request, reused_charge
from dp_powerflow.privacy.ledger.book import Charge, ChargedData, Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import PrivateState

_NOT_PART_OF_THE_REQUEST = {"path", "services", "classes"}


def read_feeder_map(path: Path) -> dict[str, tuple[str, ...]]:
    """Key of a feeder → its load points, from the PUBLIC column `feeder` of a service map.

    Load points without a feeder belong to none. A load point on two feeders is refused: its customers would
    be in two models, and the costs would add up.
    """
    rows = read_service_rows(
        path, ("load_point", "feeder"), ", which models per feeder and the column 'node' need"
    )
    feeder_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        point, feeder = row.get("load_point", ""), row.get("feeder", "")
        if feeder_of.setdefault(point, feeder) != feeder:
            raise ServiceMapError(
                f"row {number} of the service map {path} puts a load point on a second feeder; models per "
                "feeder need every load point on one feeder, or use fleet.models = 'one'"
            )
    refuse_alike(feeder_of, "load points of the service map")
    refuse_alike(set(feeder_of.values()) - {""}, "feeders of the service map")
    points: dict[str, list[str]] = {}
    for point, feeder in feeder_of.items():
        if feeder:
            points.setdefault(feeder, []).append(point)
    return {feeder: tuple(members) for feeder, members in points.items()}


def services_of(
    config: FleetConfig, feeders: Collection[FleetFeeder], history: LoadHistory
) -> dict[str, frozenset[str]] | None:
    """PUBLIC. Feeder → load points whose column `node` names a node of this very feeder.

    A feeder is given by its public name. None if the loads of the fleet are counted otherwise: no load point
    has a node, or no mode asks for it.
    """
    path, counted = config.loads.services, any(mode_of(feeder.config).counts_customers for feeder in feeders)
    if path is None or not counted or not any(history.node_of):
        return None
    points_of = read_feeder_map(path)
    return {feeder.name: frozenset(points_of.get(feeder.key, ())) for feeder in feeders}


def refuse_unfitted(config: FleetConfig, state: PrivateState) -> None:
    """With one model: refuse to reuse one that was paid for and is not there, before a network is charged."""
    reused = config.model.reuse
    if reused is None or config.fleet.models != "one" or state.read_internal(reused, MODEL_FILE) is not None:
        return
    raise PrivacyError(
        f"'{reused}' has fitted no load model of all customers; run it first, or set fleet.models = "
        "'per-feeder' if it is a fleet with models per feeder; nothing was spent",
        code="model-reuse",
    )


@dataclass(frozen=True, eq=False, repr=False)
class Customers:
    """PRIVATE. The meter data of a fleet, read once, and what the models cost; make it with `of`.

    Attributes
    ----------
    feeder : config of any feeder of the fleet.
    history : all load points of the meter source.
    identity : keyed hash of the readings.
    points_of : key of a feeder → its load points; None for one model of all.
    plan : cost of one model and cap of the account.
    request_sha256 : hash of everything that decides the models.
    almanac : PUBLIC, holidays and weather of the days of the history.
    """

    config: FleetConfig
    feeder: Config
    state: PrivateState
    history: LoadHistory
    identity: str
    points_of: Mapping[str, tuple[str, ...]] | None
    plan: Plan
    request_sha256: str
    almanac: Almanac

    @classmethod
    def of(
        cls, config: FleetConfig, feeder: Config, state: PrivateState, history: LoadHistory, identity: str
    ) -> Customers:
        """What the models will cost; public sizes decide it, and nothing is recorded."""
        points_of = None
        if config.fleet.models == "per-feeder" and config.model.reuse is None:
            assert config.loads.services is not None
            points_of = read_feeder_map(config.loads.services)
            own = [len(points_of[key]) for key in find_sources(config) if key in points_of]
            if not own:
                raise ServiceMapError(
                    "the column 'feeder' of the service map names no feeder of the fleet, so no model could "
                    "be fitted; name a feeder by its path from the first wildcard on, without the extension"
                )
            refuse_large_delta(config.model.delta, min(own))
        public = replace(almanac_of(feeder), calendar=None)  # a model knows nothing of the released days
        public.check_meters(history.days)
        map_of_points = repr(None if points_of is None else sorted(points_of.items())).encode()
        chunks = itertools.chain([map_of_points], public.chunks(), loads_chunks(history))
        inputs = state.identity("inputs", chunks)
        content = {
            "models": config.fleet.models,
            "model": config.model.model_dump(mode="json"),
            "loads": config.loads.model_dump(mode="json", exclude=_NOT_PART_OF_THE_REQUEST),
            "random reactive load": config.network.random_reactive,
            "inputs": inputs,
            "version": __version__,
        }
        request = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        plan = plan_release(_fit_config(config, feeder, config.fleet.id), history, inputs, public)
        return cls(config, feeder, state, history, identity, points_of, plan, request, public)

    def charge(self, ledger: Ledger) -> Charge | Spend:
        """What the customers are charged, once for all models of the fleet, or the charge that covers them.

        Raises
        ------
        PrivacyError : the customers cannot pay, or were charged for something else; nothing is recorded.
        """
        fleet, reused, plan = self.config.fleet, self.config.model.reuse, self.plan
        data = ChargedData(self.identity, plan.loads_cap, fleet.continues_loads, fleet.unrelated_loads)
        if reused is not None:
            earlier = reused_charge(ledger, data, reused)
            if earlier is None:
                raise never_charged(reused)
            refuse_unfitted(self.config, self.state)
            return earlier
        refuse_another_request(fleet.id, self.request_sha256, self.state, ledger)
        ledger.account(data)  # asks now how these customers relate to other accounts
        asked = Charge(data, fleet.id, self.request_sha256, plan.loads_cost)
        affordable = ledger.preview(data, plan.loads_cost, fleet.id).affordable
        return asked if affordable else ledger.charge_all([asked])[0]  # which says why not

    def keep_shared_model(self) -> None:
        """Fit the one model of all customers, if that is what was paid for and it is not there yet."""
        if self.config.fleet.models == "one" and self.config.model.reuse is None:
            self._fit(self.feeder, self.config.fleet.id, self.history)

    def keep_own_model(self, feeder: FleetFeeder) -> None:
        """With models per feeder: put this feeder's model where its release finds it."""
        if self.config.fleet.models == "one":
            return
        source = self.source_of_model(feeder)
        if isinstance(source, bytes):
            self.state.write_internal(feeder.release_id, MODEL_FILE, source)
        else:
            self._fit(feeder.config, feeder.release_id, self.history.select(source))

    def source_of_model(self, feeder: FleetFeeder) -> bytes | tuple[str, ...]:
        """The model that an earlier fleet has fitted for a feeder, or the load points for a new one.

        Raises
        ------
        DpPowerflowError : there are none; asked before the network of the feeder is charged.
        """
        reused = self.config.model.reuse
        if self.config.fleet.models == "one":
            return ()
        if reused is not None:
            earlier = self.state.read_internal(release_id_of(reused, feeder.name), MODEL_FILE)
            if earlier is None:
                raise PrivacyError(
                    f"fleet '{reused}' has fitted no load model of feeder '{feeder.name}'; set "
                    "fleet.continues to that fleet so that names agree, or fit anew",
                    code="model-reuse",
                )
            return earlier
        assert self.points_of is not None
        if feeder.key not in self.points_of:
            raise ServiceMapError(
                f"no load point of the service map is on feeder '{feeder.key}'; check its column 'feeder'"
            )
        return self.points_of[feeder.key]

    def known_before(self, feeder: FleetFeeder) -> tuple[tuple[str, ...] | None, bytes | None]:
        """PUBLIC. With models per feeder: classes that a new one will have, or an earlier one itself."""
        try:
            source = self.source_of_model(feeder)
        except DpPowerflowError:  # said where the feeder is charged
            return None, None
        if isinstance(source, bytes):
            return None, source
        own, history = frozenset(source), self.history
        labels = (
            label
            for point, label in zip(history.load_points, history.class_label, strict=True)
            if point in own and label is not None
        )
        return tuple(dict.fromkeys(labels)) if own else None, None

    def _fit(self, feeder: Config, release_id: str, history: LoadHistory) -> None:
        config, key = _fit_config(self.config, feeder, release_id), self.state.stream_key()
        fitted_model(config, self.state, history, self.plan, key.bind("release", release_id), self.almanac)


def _fit_config(config: FleetConfig, feeder: Config, release_id: str) -> Config:
    """The config that a model is fitted with: nothing of the feeder decides the fit."""
    release = feeder.release.model_copy(update={"id": release_id})
    return feeder.model_copy(update={"model": config.model, "release": release})
