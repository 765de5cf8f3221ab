"""What a worker of a fleet does: examine a feeder, and make its release once it is paid for.

A worker opens, checks, twins, solves, writes and hashes. It has the key, the load model, what the private
state keeps of its feeder and what was paid for it; ledger, meters and the directory of the state stay with
the data owner. What a worker writes to the private state goes back to the owner with its answer. Everything
random comes from the key, so a feeder whose worker is lost is made again by another one, to the same bits.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dp_powerflow._ending import NO_MEMORY
from dp_powerflow._parallel import Threads
from dp_powerflow._threads import cores
from dp_powerflow.config import Config
from dp_powerflow.errors import DpPowerflowError, PrivacyError
from dp_powerflow.loads.history import MeterFacts
from dp_powerflow.pipeline.plan import keep_derived_model, kept_model, make_ready, refuse_another_model
from dp_powerflow.pipeline.release import Made, Paid, draw, make, place_kept, ready_writer
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import CarriedState, Files

UNEXPECTED = "unexpected"
"""Code of what is no refusal: a defect, a lost worker, a file that cannot be read."""
TRACEBACK = "traceback.txt"
"""Where the private state keeps what is known of a defect; it may quote private values."""


@dataclass(frozen=True, eq=False, repr=False)
class Examined:
    """PRIVATE. All checks of a feeder are passed.

    Attributes
    ----------
    dataset, frame : what a charge asks of the network (`NetworkFacts`).
    inputs : keyed hash of everything but the config that decides the release.
    nodes : PUBLIC. Released nodes.
    warnings : PUBLIC. What public loads do.
    """

    dataset: str
    frame: str
    inputs: str
    nodes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """PRIVATE. One feeder.

    Attributes
    ----------
    name : its public name.
    config : of its release.
    files : what the private state keeps of it.
    places : PUBLIC. Number of a load point on this feeder → its node; None where all feeders share them.
    paid : what was paid for it; None if it is only to be examined.
    only_draws : whether it is drawn and reported, and nothing published yet: at a store the private state
        keeps both before anybody sees the first part.
    """

    name: str
    config: Config
    files: Files
    places: Mapping[int, str] | None = None
    paid: Paid | None = None
    only_draws: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """PRIVATE. How far a feeder has come.

    Attributes
    ----------
    name : its public name.
    examined, made : what was found, or made.
    files : to be kept in the private state.
    error : why it failed.
    """

    name: str
    examined: Examined | None = None
    made: Made | None = None
    files: Files = field(default_factory=dict)
    error: DpPowerflowError | None = None


@dataclass(frozen=True, eq=False, repr=False)
class FeederJob:
    """PRIVATE. What all feeders of a fleet have in common.

    Attributes
    ----------
    key : secret of the private state.
    root : where the state is, for messages; no worker looks there.
    meters : PUBLIC facts of the meters.
    files : what the state keeps for all feeders: the load model, once it is fitted.
    """

    key: StreamKey
    root: Path
    meters: MeterFacts
    files: Files = field(default_factory=dict)

    def start(self, threads: int | None) -> Callable[[Task], Stage]:
        """A worker with this many threads, None for all cores."""
        return lambda task: self._stage(task, threads or cores())

    def _stage(self, task: Task, threads: int) -> Stage:
        """What is found or made, or why not: nothing is raised, for other feeders go on."""
        state = CarriedState(self.root, self.key, {**self.files, **task.files})
        try:
            stage = self._done(task, state, threads)
        except DpPowerflowError as error:
            stage = Stage(task.name, error=error)
        except OSError as error:
            stage = Stage(task.name, error=DpPowerflowError(str(error), code=UNEXPECTED))
        except MemoryError:
            stage = Stage(task.name, error=DpPowerflowError(NO_MEMORY, code=UNEXPECTED))
        except Exception:
            kept = state.write_internal(task.config.release.id, TRACEBACK, traceback.format_exc().encode())
            told = f"a defect of the program; report it, the details are in {kept}"
            stage = Stage(task.name, error=DpPowerflowError(told, code=UNEXPECTED))
        return replace(stage, files=state.taken())

    def _done(self, task: Task, state: CarriedState, threads: int) -> Stage:
        meters, places = self.meters, task.places
        if places is not None:  # the nodes of this feeder alone
            meters = replace(meters, node_of=tuple(map(places.get, range(len(meters.node_of)))))
        ready = make_ready(task.config, state, history=meters)
        inputs = ready.inputs
        refuse_another_model(inputs)
        if task.paid is None:
            facts, nodes = ready.mode.facts(inputs), ready_writer(ready).layout.nodes
            warned = ready.feasibility.warnings
            return Stage(task.name, Examined(facts.dataset, facts.frame, inputs.identity, nodes, warned))
        config, model = inputs.config, kept_model(inputs.config, state)
        if model is None:
            raise PrivacyError(
                f"release '{config.model.reuse}' has fitted no load model yet; run it first",
                code="model-reuse",
            )
        keep_derived_model(state, config.release.id, config.model.reuse, model)
        if task.only_draws:
            draw(ready, task.paid, model)
            return Stage(task.name)
        with place_kept(ready):
            made = make(ready, task.paid, draw(ready, task.paid, model), Threads(threads))
        return Stage(task.name, made=made)
