"""What the feeders of a fleet cost: planned when they are examined, charged in one transaction per batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from dp_powerflow.errors import ChangedRequestError, DpPowerflowError, PrivacyError
from dp_powerflow.fleet.attempts import Again, changed_words, next_attempt
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.worker import Refused
from dp_powerflow.loads.history import MeterFacts
from dp_powerflow.manifest.model import registered
from dp_powerflow.pipeline.charging import keep_begun, network_charge, network_data, refuse_unpayable
from dp_powerflow.pipeline.conversation import CHANGED_MEANWHILE, Examined, Paid
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.modes.base import NetworkFacts, NetworkMode, mode_of
from dp_powerflow.pipeline.plan import Plan, kept_model, plan_release, with_charge
from dp_powerflow.pipeline.receipts import keep_derived_model, keep_receipt
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Balance, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState

Done = TypeVar("Done")


@dataclass(frozen=True, eq=False, repr=False)
class _Bill:
    """PRIVATE. What one feeder is to be charged."""

    feeder: FleetFeeder
    mode: NetworkMode[Any]
    plan: Plan
    facts: NetworkFacts
    examined: Examined


@dataclass(frozen=True, eq=False, repr=False)
class Payer:
    """PRIVATE. Charges the networks of a fleet whose customers are charged.

    Attributes
    ----------
    meters : public facts of the meters.
    loads : the account of the customers, and the charge that pays for all feeders.
    retried : keys of the feeders that may begin a new attempt.
    """

    state: PrivateState
    ledger: Ledger
    meters: MeterFacts
    loads: tuple[Account, Spend]
    retried: Collection[str] = ()

    def pay(self, examined: Sequence[tuple[FleetFeeder, Examined]]) -> list[Paid | Refused | Again]:
        """Charge feeders that have passed all checks, in this order, or prepare that they are charged later.

        A feeder that is refused costs nothing and does not keep the others from being charged. Of the feeders
        that share an account, each is planned when those before it are charged: its price may follow from
        what they were charged for.
        """
        answers: list[Paid | Refused | Again] = []
        together: list[tuple[FleetFeeder, Examined]] = []
        accounts: set[str | None] = set()
        for feeder, found in examined:
            account = self._account_of(feeder, found)
            if account in accounts:
                answers += self._pay_together(together)
                together, accounts = [], set()
            together.append((feeder, found))
            accounts |= {account} - {None}
        return answers + self._pay_together(together)

    def _account_of(self, feeder: FleetFeeder, examined: Examined) -> str | None:
        """Name of the account of a network; None if one is opened for it."""
        kind = registered(feeder.config.network.mode).account_kind
        account = self.ledger.find(kind, examined.dataset)
        return feeder.config.release.continues_network if account is None else account.name

    def _pay_together(self, examined: Sequence[tuple[FleetFeeder, Examined]]) -> list[Paid | Refused | Again]:
        """Charge feeders that share no account."""
        bills = [_refusal(partial(self._bill_or_again, *pair)) for pair in examined]
        due = [bill for bill in bills if isinstance(bill, _Bill)]
        charged = dict(zip(due, self._charge_all(due), strict=True))
        return [charged[bill] if isinstance(bill, _Bill) else bill for bill in bills]

    def charge(self, feeder: FleetFeeder, examined: Examined) -> Paid | Refused:
        """Charge the network of a feeder that is solved."""

        def charge() -> Paid:
            bill = self._bill(feeder, examined)
            (spend,) = self.ledger.charge_all([network_charge(self._account(bill), bill.plan)])
            return self._paid(bill, spend)

        return _refusal(charge)

    def _bill_or_again(self, feeder: FleetFeeder, examined: Examined) -> _Bill | Again:
        """What a feeder is charged; another attempt at it, where it was begun otherwise and may have one."""
        try:
            return self._bill(feeder, examined)
        except ChangedRequestError:
            if feeder.key not in self.retried:
                raise ChangedRequestError(changed_words(feeder)) from None
            return Again(next_attempt(feeder, self.state, self.ledger))

    def _bill(self, feeder: FleetFeeder, examined: Examined) -> _Bill:
        mode = mode_of(feeder.config)
        plan, facts = plan_feeder(feeder, examined, self.meters, self.state, self.ledger)
        refuse_unpayable(plan, facts, mode, self.state, self.ledger)
        return _Bill(feeder, mode, plan, facts, examined)

    def _charge_all(self, bills: Sequence[_Bill]) -> list[Paid | Refused]:
        """In one transaction; if that is refused, one by one, to find out whom it is about."""
        try:
            return self._charged(bills)
        except PrivacyError as error:
            if len(bills) == 1:
                return [Refused(str(error))]
        return [paid for bill in bills for paid in self._charge_all([bill])]

    def _charged(self, bills: Sequence[_Bill]) -> list[Paid | Refused]:
        first = [bill for bill in bills if bill.mode.charged_first]
        data = [network_data(bill.feeder.config, bill.plan, bill.facts) for bill in first]
        charges = [network_charge(each, bill.plan) for each, bill in zip(data, first, strict=True)]
        spends = dict(zip(first, self.ledger.charge_all(charges) if charges else (), strict=True))
        for bill in bills:
            # Opened now: what the ledger asks of a new network is asked before.
            network = spends[bill].account if bill in spends else self._account(bill).name
            keep_begun(self.state, bill.feeder.release_id, bill.plan, self.loads[1], network)
            self._keep_derived_model(bill.feeder)
        return [self._paid(bill, spends.get(bill)) for bill in bills]

    def _account(self, bill: _Bill) -> Account:
        data = network_data(bill.feeder.config, bill.plan, bill.facts)
        return self.ledger.account(
            data.dataset, data.cap, continues=data.continues, unrelated=data.unrelated, frame=data.frame
        )

    def _paid(self, bill: _Bill, spend: Spend | None) -> Paid:
        paid = Paid(bill.examined.dataset, bill.examined.inputs, self.loads_balance)
        if spend is None:
            return paid
        keep_receipt(self.state, bill.feeder.release_id, spend)
        account = Account(spend.account, spend.dataset, bill.plan.network.cap)
        return replace(paid, network=self.ledger.remaining(account, as_of=spend), spend=spend)

    @cached_property
    def loads_balance(self) -> Balance:
        """How the account of the customers stood just after the charge."""
        account, spend = self.loads
        return self.ledger.remaining(account, as_of=spend)

    def _keep_derived_model(self, feeder: FleetFeeder) -> None:
        model = kept_model(feeder.config, self.state)
        if model is not None:
            keep_derived_model(self.state, feeder.release_id, feeder.config.model.reuse, model)


def plan_feeder(
    feeder: FleetFeeder, examined: Examined, meters: MeterFacts, state: PrivateState, ledger: Ledger
) -> tuple[Plan, NetworkFacts]:
    """What a feeder that has passed all checks costs, and what the ledger is asked about."""
    config, mode = feeder.config, mode_of(feeder.config)

    def figures(key: StreamKey) -> Mapping[str, str]:
        """Of a later version of a network, which is opened here once more: there are few of them."""
        network = read_network(config, state, meters.n_steps)
        if mode.identity(network) != examined.dataset:
            raise PrivacyError(CHANGED_MEANWHILE)
        return mode.figures(network, key)

    facts = NetworkFacts(examined.dataset, examined.frame, figures)
    plan = plan_release(config, meters, examined.inputs)
    return with_charge(plan, facts, mode, state, ledger), facts


def _refusal(action: Callable[[], Done]) -> Done | Refused:
    """What an action gives, or why it is refused."""
    try:
        return action()
    except (DpPowerflowError, OSError) as error:
        return Refused(str(error))
