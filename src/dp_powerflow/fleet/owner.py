"""The data owner's side of a fleet: meters, ledger, private state, and how a feeder gets into the corpus."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.fleet.accounts import (
    Customers,
    charge_customers,
    keep_own_model,
    keep_shared_model,
    plan_customers,
    services_of,
)
from dp_powerflow.fleet.attempts import Again
from dp_powerflow.fleet.config import FleetConfig
from dp_powerflow.fleet.dispatch import Progressing
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.internal_page import AccountRecord, FeederRecord
from dp_powerflow.fleet.names import attempt_of, first_id_of
from dp_powerflow.fleet.paying import Payer, plan_feeder
from dp_powerflow.fleet.publishing import Shelf
from dp_powerflow.fleet.worker import FeederJob, Refused, Stage, Step
from dp_powerflow.loads.history import LoadHistory, MeterFacts
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.conversation import Examined, Paid
from dp_powerflow.pipeline.inputs import loads_chunks
from dp_powerflow.pipeline.modes.base import NetworkFacts, mode_of
from dp_powerflow.pipeline.plan import Plan
from dp_powerflow.pipeline.receipts import REQUEST_FILE, is_receipt
from dp_powerflow.privacy.ledger.book import Ledger, price
from dp_powerflow.privacy.ledger.records import Balance, Spend
from dp_powerflow.privacy.state import PrivateState

Say = Callable[[str], None]


@dataclass(eq=False, repr=False)
class FleetOwner:
    """PRIVATE. Answers the conversations of a fleet's feeders.

    Attributes
    ----------
    history : the meter data.
    feeders : that are to be made.
    on_end : told of every feeder that is released, or failed.
    retried : keys of the feeders that may begin a new attempt.
    payer : charges networks; None until the customers are charged.
    warned : PUBLIC. Remarks on the load model.
    on_model : told once when the load model is there.
    """

    config: FleetConfig
    state: PrivateState
    ledger: Ledger
    shelf: Shelf
    history: LoadHistory
    feeders: Sequence[FleetFeeder]
    say: Say
    on_end: Callable[[Progressing], None]
    retried: Collection[str] = ()
    payer: Payer | None = None
    warned: list[str] = field(default_factory=list)
    on_model: Callable[[], None] = lambda: None

    @cached_property
    def meters(self) -> MeterFacts:
        """PUBLIC facts of the meters, under the keyed hash of the readings."""
        return self.history.facts(self.state.identity("loads", loads_chunks(self.history)))

    @property
    def paid_before(self) -> bool:
        """Whether an earlier run, or an earlier fleet, has charged the customers."""
        if self.config.model.reuse is not None:
            return True
        return self.state.read_internal(self.config.fleet.id, REQUEST_FILE) is not None

    def job(self, *, elsewhere: bool) -> FeederJob:
        """What all workers get; the load model once it is there.

        Parameters
        ----------
        elsewhere : whether workers may be on other machines.
        """
        where = self.config.charged_under
        model = self.state.read_internal(where, MODEL_FILE)
        files = {} if model is None else {(where, MODEL_FILE): model}
        return FeederJob(self.state.stream_key(), self.state.root, self.meters, files, self._run)

    def usable(self) -> None:
        """A feeder has passed all checks: charge the customers, once for all feeders, and begin to fit.

        Feeders are examined meanwhile; `pay` waits for the model.
        """
        if self._fitted is not None:
            return
        self.say("fitting the load model" if self.config.fleet.models == "one" else "charging the customers")
        some = self.feeders[0].config
        customers = plan_customers(self.config, some, self.state, self.history)
        for warning in customers.plan.warnings:
            self.say(warning)
        loads = charge_customers(self.config, self.state, self.ledger, customers)
        self.warned.extend((*customers.plan.warnings, *customers.plan.notes))
        self._customers = customers
        self.payer = Payer(self.state, self.ledger, self.meters, loads, self.retried)
        thread = ThreadPoolExecutor(1)
        self._fitted = thread.submit(keep_shared_model, self.config, some, self.state, customers)
        thread.shutdown(wait=False)

    def account_record(self) -> AccountRecord | None:
        """INTERNAL. The account of the customers, if they were charged."""
        if self.payer is None:
            return None
        return _account_record(self.payer.loads[1], self.payer.loads_balance)

    def step(self, feeder: FleetFeeder) -> Step:
        """What a worker needs to begin with a feeder, or to go on."""
        return Step(feeder.config, self._files(feeder), self._places(feeder))

    def keep(self, stage: Stage) -> None:
        """Keep what a worker wrote, in the order in which it wrote it."""
        for (where, name), content in stage.files.items():
            self.state.write_internal(where, name, content)

    def keep_defect(self, feeder: FleetFeeder, details: str) -> str:
        """The text of a defect may quote private values; the file does not leave the data owner."""
        kept = self.state.write_internal(
            self.config.fleet.id, f"{feeder.name}-traceback.txt", details.encode()
        )
        return f"a defect of the program; report it, the details are in {kept}"

    def pay(self, examined: Sequence[tuple[FleetFeeder, Examined]]) -> Sequence[Paid | Refused | Again]:
        """Charge feeders that have passed all checks; a model of their own is fitted before."""
        assert self.payer is not None
        self._wait_for_the_model()
        refused: dict[str, Refused] = {}
        for feeder, _ in examined:
            try:
                keep_own_model(self.config, feeder, self.state, self._customers)
            except DpPowerflowError as error:
                refused[feeder.name] = Refused(str(error))
        good = [(feeder, found) for feeder, found in examined if feeder.name not in refused]
        paid = {feeder.name: answer for (feeder, _), answer in zip(good, self.payer.pay(good), strict=True)}
        for feeder, _ in good:
            if isinstance(paid[feeder.name], Again):
                self.shelf.forget(feeder.name, feeder.release_id)
        return [refused.get(feeder.name) or paid[feeder.name] for feeder, _ in examined]

    def _wait_for_the_model(self) -> None:
        """Raises what the fit has raised; nobody's network is charged then."""
        assert self._fitted is not None
        if not self._told:
            self._fitted.result()
            self._told = True
            self.on_model()

    def charge(self, feeder: FleetFeeder, examined: Examined) -> Paid | Refused:
        """Charge the network of a feeder that is solved."""
        assert self.payer is not None
        return self.payer.charge(feeder, examined)

    def finish(self, way: Progressing) -> None:
        """Put a feeder that is made into the corpus; of one that failed, leave nothing for others to read."""
        name = way.feeder.name
        try:
            if way.problem is None:
                self.shelf.publish(name)
            else:
                self.shelf.abandon(name, way.feeder.release_id)
        except DpPowerflowError as error:
            before = "" if way.problem is None else f"{way.problem}; and what it left cannot be removed: "
            way.problem = f"{before}{error}"
        self.on_end(way)

    def planned(self, feeder: FleetFeeder, examined: Examined) -> tuple[Plan, NetworkFacts]:
        """What a feeder that has passed all checks costs."""
        return plan_feeder(feeder, examined, self.meters, self.state, self.ledger)

    def _files(self, feeder: FleetFeeder) -> dict[tuple[str, str], bytes]:
        """What the private state keeps of a feeder, but for what only its owner needs."""
        found: dict[tuple[str, str], bytes] = {}
        for where in (feeder.release_id, *mode_of(feeder.config).kept_under):
            for _, names in self.state.internal_files(where):
                for name in names:
                    content = None if is_receipt(name) else self.state.read_internal(where, name)
                    if content is not None:
                        found[where, name] = content
        return found

    @cached_property
    def _services(self) -> Mapping[str, frozenset[str]] | None:
        return services_of(self.config, self.feeders, self.history)

    def _places(self, feeder: FleetFeeder) -> dict[int, str] | None:
        """The nodes of this feeder's load points alone: others may have nodes of the same name."""
        if self._services is None:
            return None
        own, history = self._services[first_id_of(feeder.release_id)], self.history
        placed = enumerate(zip(history.load_points, history.node_of, strict=True))
        return {k: node for k, (point, node) in placed if node is not None and point in own}

    _customers: Customers = field(init=False)
    _fitted: Future[None] | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)
    _run: str = field(default_factory=lambda: secrets.token_hex(8), init=False)


def record_of(way: Progressing, owner: bytes | None) -> FeederRecord:
    """INTERNAL. One feeder at its end, for the page of the data owner.

    Parameters
    ----------
    owner : content of its file `owner.json`.
    """
    feeder, examined, paid = way.feeder, way.examined, way.paid
    charged = None if paid is None or paid.spend is None or paid.network is None else paid
    return FeederRecord(
        feeder.key,
        feeder.name,
        "released" if way.problem is None else "failed",
        problem=way.problem,
        attempt=attempt_of(feeder.release_id, feeder.release_id.partition("_")[0], feeder.name),
        release_id=feeder.release_id,
        seconds=way.seconds,
        worker=way.where,
        network=None if charged is None else _account_record(charged.spend, charged.network),
        nodes=None if examined is None else examined.nodes,
        days=feeder.config.release.days,
        corpus_bytes=None if examined is None else examined.corpus_bytes,
        owner=owner,
        warnings=() if examined is None else examined.warnings,
    )


def _account_record(spend: Spend | None, balance: Balance | None) -> AccountRecord:
    assert spend is not None
    assert balance is not None
    cost = price(balance.cap, spend.cost)
    return AccountRecord(spend.account, cost.epsilon, cost.delta, balance.available.epsilon)
