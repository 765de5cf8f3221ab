"""Algorithm 1 as a product, as one path.

    read and check → charge the customers → fit → network to solve → report → draw and solve → publish

What is made is `conversation`; here are ledger, meters and fit, which answer it. How the network is treated,
and when it is charged, is the mode's business (`modes/`). A run that was killed at any moment resumes to the
same bits and draws nothing twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_powerflow._files import only_process
from dp_powerflow._parallel import Runner, engine_of
from dp_powerflow._spending import true_words
from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import Location, location
from dp_powerflow.errors import PrivacyError
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.report import IngestReport
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.model.fit import WeakBudgetWarning, fit
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.almanac import Almanac
from dp_powerflow.pipeline.charging import Charged, charge_loads, charge_network
from dp_powerflow.pipeline.conversation import Ask, Conversation, Examined, Made, Maker, Paid, Solved
from dp_powerflow.pipeline.fitting import MeterDays, budget_of, fit_options_of
from dp_powerflow.pipeline.inputs import class_names
from dp_powerflow.pipeline.modes.base import NetworkMode, Progress
from dp_powerflow.pipeline.plan import Plan, kept_model
from dp_powerflow.pipeline.ready import Ready, Say, make_ready, open_state
from dp_powerflow.pipeline.receipts import is_begun, keep_derived_model
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState


@dataclass(frozen=True)
class ReleaseResult:
    """Where the release is, and what its owner may want to know (INTERNAL).

    `worst_mismatch` [p.u.] is of the parts written by this run, None if there was nothing left to write.
    `warnings` are public: why the release protects, or says, less than its owner may expect.
    `ingest` is what reading the meters found (INTERNAL), None for simulated loads.
    """

    path: Location
    model: LoadModel
    evidence_met: bool
    worst_mismatch: float | None
    internal: Path
    warnings: tuple[str, ...] = ()
    ingest: IngestReport | None = None


def run_release(
    config: Config,
    *,
    workers: int | None = None,
    engine: Runner | None = None,
    say: Say = lambda _: None,
    progress: Progress | None = None,
    history: LoadHistory | None = None,
) -> ReleaseResult:
    """Make the release, or finish one that was interrupted.

    Parameters
    ----------
    workers : parts made at once on this machine, None for one per core.
    engine : where the parts are made instead, such as a Dask cluster.
    say, progress : told what is being done, and how much of it.
    history : PRIVATE. The meter data of the config, if somebody has read them already.

    Raises
    ------
    DpPowerflowError : the release is refused, in one sentence that says what to do.
    """
    engine = engine or engine_of(workers, None)
    engine.check()  # a cluster that does not answer is found out before anything is spent
    state = open_state(config)
    begun = is_begun(state, config.release.id)
    with true_words(begun=begun), only_process(state.internal_directory(config.release.id)):
        ready = make_ready(config, state, history=history, say=say)
        owner = _Owner(ready, say)
        maker = Maker(ready, engine, say, progress)
        made = answered(maker.steps(), owner.answer)
        assert owner.model is not None
        return ReleaseResult(
            location(config.release.output),
            owner.model,
            made.met,
            made.worst_mismatch,
            state.internal_directory(config.release.id),
            (*warnings_of(ready.mode, made, ready.inputs.history.n_steps), *ready.feasibility.warnings),
            ready.inputs.ingest,
        )


def answered(conversation: Conversation, answer: Callable[[Ask], Any]) -> Made:
    """Answer a conversation to its end; what an answer raises is raised in it."""
    try:
        ask = next(conversation)
        while True:
            try:
                reply = answer(ask)
            except BaseException as error:  # whatever it is: what is of no use is removed there
                ask = conversation.throw(error)
            else:
                ask = conversation.send(reply)
    except StopIteration as end:
        made: Made = end.value
        return made


@dataclass(eq=False, repr=False)
class _Owner:
    """PRIVATE. Answers the conversation of one release: charges, fits, charges the network."""

    ready: Ready
    say: Say
    model: LoadModel | None = None
    charged: Charged | None = None
    examined: Examined | None = None

    def answer(self, ask: Ask) -> Paid | None:
        if isinstance(ask, Examined):
            self.examined = ask
            return self._pay()
        return self._paid(self._network()) if isinstance(ask, Solved) else None

    def _pay(self) -> Paid:
        inputs, mode = self.ready.inputs, self.ready.mode
        inputs.keep_ingest()
        self.charged = charge_loads(inputs, mode, self.say)
        self.say("fitting the load model")
        config, plan = inputs.config, self.charged.plan
        self.model = fitted_model(config, inputs.state, inputs.readings, plan, inputs.key, inputs.almanac)
        return self._paid(self._network() if mode.charged_first else None)

    def _network(self) -> tuple[Account, Spend]:
        assert self.charged is not None
        return charge_network(self.charged)

    def _paid(self, network: tuple[Account, Spend] | None) -> Paid:
        assert self.charged is not None
        assert self.examined is not None
        ledger, (account, spend) = self.charged.ledger, self.charged.loads
        loads = ledger.remaining(account, as_of=spend)
        paid = Paid(self.examined.dataset, self.examined.inputs, loads, model=self.model)
        if network is None:
            return paid
        return replace(paid, network=ledger.remaining(network[0], as_of=network[1]), spend=network[1])


def warnings_of(mode: NetworkMode[Any], made: Made, steps: int) -> tuple[str, ...]:
    """PUBLIC. Why a release protects, or says, less than its owner may expect; the manifest says so too."""
    return (*mode.warnings, *made.notes, *mended_words(made, mode.config.release.days * steps))


def mended_words(made: Made, snapshots: int) -> tuple[str, ...]:
    """PUBLIC. That some of so many snapshots were mended, if any were."""
    if not made.mended:
        return ()
    return (
        f"{made.mended:,} of {snapshots:,} snapshots had no power-flow solution: their loads and PV were "
        "multiplied by 0.95 until they had one, and they are marked (corpus.mended()); with a larger "
        "nodes.kw_per_customer there are fewer",
    )


def fitted_model(
    config: Config, state: PrivateState, history: LoadHistory, plan: Plan, key: StreamKey, almanac: Almanac
) -> LoadModel:
    """The load model of the release: the one already fitted, or a fresh fit kept for the next attempt.

    Parameters
    ----------
    almanac : public holidays and weather of the days of the history.
    """
    kept = kept_model(config, state)
    if kept is not None:
        keep_derived_model(state, config.release.id, config.model.reuse, kept)
        return kept
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakBudgetWarning)  # the result carries the notes of the model
        meters = MeterDays(history.days, almanac)
        options = fit_options_of(config, class_names(config, history), meters)
        model = fit(history, budget=budget_of(config), options=options, key=key)
    if model.rho > plan.loads_cost.rho * (1.0 + 1e-9):
        raise PrivacyError(
            "the fit spent more than was paid, so nothing is released; this is a bug, report it"
        )
    state.write_internal(config.release.id, MODEL_FILE, model.to_json().encode())
    return model
