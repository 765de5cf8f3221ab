"""A release as a conversation: held twice, away from ledger and meters, it makes the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow._parallel import Threads
from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.worker import FeederJob, Refused, Stage, Step
from dp_powerflow.pipeline.conversation import Drawn, Examined, Made, Maker, Paid, Solved
from dp_powerflow.pipeline.inputs import loads_chunks, read_inputs
from dp_powerflow.pipeline.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.ready import make_ready, open_state
from dp_powerflow.pipeline.receipts import REQUEST_FILE
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import CarriedState, PrivateState
from support.small import small_config, tree_hash

TWIN = {"mode": "twin-network", "epsilon": 4.0, "delta": 1e-5, "id": "twin", "change": 0.05}


def config_of(folder: Path, mode: str) -> Config:
    sections: dict[str, Any] = {"network": TWIN} if mode == "twin" else {}
    return small_config(folder, **sections)


class Script:
    """Answers a worker as the owner of a release that is paid for already."""

    def __init__(self, config: Config) -> None:
        self.state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
        inputs = read_inputs(config, self.state)
        self.inputs = inputs.identity
        self.facts = inputs.readings.facts(self.state.identity("loads", loads_chunks(inputs.readings)))
        ledger = Ledger.open(self.state)
        self.balances = {}
        for account in ledger.summary().accounts:
            spend = account.spends[0]
            self.balances[account.kind.stem] = (ledger, account, spend)
        model = self.state.read_internal(config.release.id, MODEL_FILE)
        assert model is not None
        self.job = FeederJob(
            self.state.stream_key(), self.state.root, self.facts, {(config.release.id, MODEL_FILE): model}
        )

    def paid(self, *, network: bool) -> Paid:
        from dp_powerflow.privacy.ledger.records import Account

        found = {}
        for stem, (ledger, account, spend) in self.balances.items():
            known = Account(account.name, spend.dataset, account.cap)
            found[stem] = (ledger.remaining(known, as_of=spend), spend)
        loads = found.pop("loads")
        [(balance, spend)] = found.values()
        paid = Paid(spend.dataset, self.inputs, loads[0])
        return replace(paid, network=balance, spend=spend) if network else paid


@pytest.mark.parametrize("mode", ["twin", "true"])
def test_a_worker_without_ledger_and_meters_makes_the_same_bytes_also_from_the_middle(
    tmp_path: Path, mode: str
) -> None:
    whole = config_of(tmp_path / "whole", mode)
    run_release(whole, workers=1)
    owner = Script(whole)
    output = tmp_path / "again"
    config = whole.model_copy(update={"release": whole.release.model_copy(update={"output": output})})
    first, second = owner.job.start(1), owner.job.start(1)

    def ask(worker: Any, answers: tuple[Any, ...]) -> Stage:
        # Once it is paid for, the state keeps the request: only then may a stage of the release lie there.
        kept = {(config.release.id, REQUEST_FILE): b"0" * 64} if answers else {}
        stage: Stage = worker(Step(config, kept, answers=answers), lambda _: None)
        assert stage.problem is None
        return stage

    assert isinstance(ask(first, ()).said, Examined)
    paid = owner.paid(network=mode == "twin")
    drawn = ask(first, (paid,))
    assert isinstance(drawn.said, Drawn)
    assert drawn.files  # to be kept before anything is published
    answers: tuple[Any, ...] = (paid, None)
    if mode == "true":
        assert isinstance(ask(first, answers).said, Solved)
        answers = (*answers, owner.paid(network=True))
    # The first worker is gone: another one holds the whole conversation again.
    assert isinstance(ask(second, answers).said, Made)
    assert tree_hash(output) == tree_hash(tmp_path / "whole" / "out")


def test_a_refusal_ends_the_conversation_and_leaves_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, "true")
    run_release(config, workers=1)
    owner = Script(config)
    output = tmp_path / "again"
    config = config.model_copy(update={"release": config.release.model_copy(update={"output": output})})
    worker = owner.job.start(1)
    worker(Step(config, {}), lambda _: None)
    stage = worker(Step(config, {}, answers=(Refused("not today"),)), lambda _: None)
    assert (stage.said, stage.problem) == (None, "not today")
    assert not list(tmp_path.glob("again*"))


def test_a_worker_has_no_ledger(tmp_path: Path) -> None:
    config = config_of(tmp_path, "twin")
    state = open_state(config)
    carried = CarriedState(state.root, state.stream_key())
    with pytest.raises(PrivacyError, match="no ledger"):
        Ledger.open(carried)
    ready = make_ready(config, carried)
    conversation = Maker(ready, Threads(1), lambda _: None, None).steps()
    assert isinstance(next(conversation), Examined)
    assert not (state.root / "ledger.sqlite").exists()
    conversation.close()
