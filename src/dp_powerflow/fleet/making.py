"""What a worker of a fleet does: examine a feeder, and make its release once it is paid for.

A worker opens, checks, twins, solves, writes and hashes. It has the key, the load model, what the private
state keeps of its feeder and what was paid for it; ledger, meters and the directory of the state stay with
the data owner. What a worker writes to the private state goes back to the owner with its answer. Everything
random comes from the key, so a feeder whose worker is lost is made again by another one, to the same bits.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dp_powerflow._ending import NO_MEMORY
from dp_powerflow._parallel import Threads
from dp_powerflow._threads import cores
from dp_powerflow.config import Config
from dp_powerflow.errors import DpPowerflowError, PrivacyError
from dp_powerflow.grid.sources import SIMBENCH
from dp_powerflow.loads.history import MeterFacts
from dp_powerflow.pipeline.customers import count_customers
from dp_powerflow.pipeline.plan import Ready, keep_derived_model, kept_model, make_ready, refuse_another_model
from dp_powerflow.pipeline.release import Made, Paid, draw, make, place_kept, ready_writer
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import CarriedState, Files

UNEXPECTED = "unexpected"
"""Code of what is no refusal: a defect, a lost worker, a file that cannot be read."""


@dataclass(frozen=True, eq=False, repr=False)
class Examined:
    """PRIVATE. All checks of a feeder are passed.

    Attributes
    ----------
    dataset, frame : what a charge asks of the network (`NetworkFacts`).
    inputs : keyed hash of everything but the config that decides the release.
    nodes : PUBLIC. Released nodes.
    corpus_bytes : PUBLIC. How large the corpus will be, about.
    warnings : PUBLIC. What public loads do.
    draws : PUBLIC. What is drawn for every step: nodes, or customers.
    feeder : the network, pickled, where reading its file takes long: it is then read once. Else None.
    """

    dataset: str
    frame: str
    inputs: str
    nodes: int
    corpus_bytes: int
    warnings: tuple[str, ...]
    draws: int = 0
    feeder: bytes | None = None


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
    feeder : the network, as `Examined` has it.
    only_draws : whether it is drawn and reported, and nothing published yet: at a store the private state
        keeps both before anybody sees the first part.
    """

    name: str
    config: Config
    files: Files
    places: Mapping[int, str] | None = None
    paid: Paid | None = None
    feeder: bytes | None = None
    only_draws: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """PRIVATE. How far a feeder has come.

    Attributes
    ----------
    name : its public name.
    said : what was found or made; None if it failed, or only draws.
    files : to be kept in the private state.
    problem, code : why it failed, in a sentence, and the kind of refusal.
    defect : what is known of a defect of the program.
    """

    name: str
    said: Examined | Made | None = None
    files: Files = field(default_factory=dict)
    problem: str | None = None
    code: str = UNEXPECTED
    defect: str | None = None


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
        state = CarriedState(self.root, self.key, {**self.files, **task.files})
        stage = self._attempt(task, state, threads)
        return replace(stage, files=state.taken())

    def _attempt(self, task: Task, state: CarriedState, threads: int) -> Stage:
        """What is found or made, or why not: nothing is raised, for other feeders go on."""
        try:
            # Pickled by a worker of this run, kept by the data owner meanwhile.
            feeder = None if task.feeder is None else pickle.loads(task.feeder)  # nosec B301
            meters, places = self.meters, task.places
            if places is not None:  # the nodes of this feeder alone
                meters = replace(meters, node_of=tuple(map(places.get, range(len(meters.node_of)))))
            ready = make_ready(task.config, state, history=meters, feeder=feeder)
            if task.paid is None:
                return Stage(task.name, _examined(ready))
            return Stage(task.name, _made(ready, task.paid, threads, only_draws=task.only_draws))
        except DpPowerflowError as error:
            return Stage(task.name, problem=str(error), code=error.code)
        except OSError as error:
            return Stage(task.name, problem=str(error))
        except MemoryError:
            return Stage(task.name, problem=NO_MEMORY)
        except Exception:
            return Stage(task.name, defect=traceback.format_exc())


def _examined(ready: Ready) -> Examined:
    inputs, mode, writer = ready.inputs, ready.mode, ready_writer(ready)
    refuse_another_model(inputs)
    facts, draws = mode.facts(inputs), mode.drawn(ready.structure)
    source = inputs.config.feeder.source.lower()
    takes_long = source.endswith(".json") or source.startswith(SIMBENCH)
    if mode.counts_customers:
        draws = count_customers(inputs.config, ready.structure, inputs.services).total
    return Examined(
        facts.dataset,
        facts.frame,
        inputs.identity,
        writer.layout.nodes,
        ready.corpus_bytes,
        ready.feasibility.warnings,
        draws,
        pickle.dumps(inputs.feeder) if takes_long else None,
    )


def _made(ready: Ready, paid: Paid, threads: int, *, only_draws: bool) -> Made | None:
    inputs = ready.inputs
    refuse_another_model(inputs)
    config, model = inputs.config, kept_model(inputs.config, inputs.state)
    if model is None:
        raise PrivacyError(
            f"release '{config.model.reuse}' has fitted no load model yet; run it first", code="model-reuse"
        )
    keep_derived_model(inputs.state, config.release.id, config.model.reuse, model)
    if only_draws:
        draw(ready, paid, model)
        return None
    with place_kept(ready):
        return make(ready, paid, draw(ready, paid, model), Threads(threads))
