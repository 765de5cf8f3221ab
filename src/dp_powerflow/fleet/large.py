"""A feeder of a fleet that is larger than a worker's share: its days are made by all workers of a cluster."""

from __future__ import annotations

import traceback
from typing import Any

from dp_powerflow._parallel import DEFECTS, Engine
from dp_powerflow.errors import DpPowerflowError, PrivacyError
from dp_powerflow.fleet.dispatch import Progressing
from dp_powerflow.fleet.events import FeederEvent, OnEvent
from dp_powerflow.fleet.owner import FleetOwner
from dp_powerflow.fleet.worker import Refused, meters_of_step
from dp_powerflow.pipeline.conversation import Ask, Examined, Maker, Solved
from dp_powerflow.pipeline.ready import make_ready
from dp_powerflow.pipeline.run import answered


def make_here(way: Progressing, owner: FleetOwner, engine: Engine, on_event: OnEvent) -> None:
    """Hold the conversation of a feeder that is paid in this process, and have its days made elsewhere."""
    feeder, step = way.feeder, owner.step(way.feeder)

    def progress(done: int, total: int) -> None:
        on_event(FeederEvent(feeder.name, "solving", done, total))

    def answer(ask: Ask) -> Any:
        if isinstance(ask, Examined):
            return _accepted(way.answers[0])
        if not isinstance(ask, Solved):
            return None
        assert way.examined is not None
        way.paid = _accepted(owner.charge(feeder, way.examined))
        return way.paid

    try:
        ready = make_ready(feeder.config, owner.state, history=meters_of_step(owner.meters, step))
        maker = Maker(ready, engine, lambda _: None, progress)
        way.made = answered(maker.steps(), answer)
    except (DpPowerflowError, OSError) as error:
        way.problem = str(error)
    except DEFECTS:
        way.problem = owner.keep_defect(feeder, traceback.format_exc())
    owner.finish(way)
    on_event(FeederEvent(feeder.name, "released" if way.problem is None else "failed"))


def _accepted(answer: Any) -> Any:
    if isinstance(answer, Refused):
        raise PrivacyError(answer.sentence)
    return answer
