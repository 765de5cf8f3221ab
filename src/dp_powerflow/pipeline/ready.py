"""Everything that is asked before anything is spent, in one path that `plan` and `release` share.

    state → feeder, sun, days, weather → controls → disk, permissions → the feeder's own file
          → power flow on public loads → meters

What takes long comes last. Whatever `plan` would refuse, `release` refuses with the same sentence, before it
touches the ledger.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import RemotePath, in_time, location
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, OutputTakenError, PrivateStateError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory, MeterFacts, steps_per_day
from dp_powerflow.manifest.verify import release_at
from dp_powerflow.pipeline.almanac import declared_days
from dp_powerflow.pipeline.customers import Services
from dp_powerflow.pipeline.feasibility import Feasibility
from dp_powerflow.pipeline.inputs import (
    NetworkInputs,
    ReleaseInputs,
    Solar,
    check_declared,
    declared_services,
    read_inputs,
    read_network,
)
from dp_powerflow.pipeline.modes.base import NetworkMode, mode_of
from dp_powerflow.pipeline.parts import layout_of
from dp_powerflow.pipeline.receipts import committed, is_begun
from dp_powerflow.powerflow.comparison import check_reading
from dp_powerflow.privacy.state import PrivateState

BYTES_PER_PHASOR = 5
"""Of a voltage in the files of a corpus; a power takes about as much."""
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False, repr=False)
class Ready:
    """PRIVATE. A release that nothing speaks against but its price.

    Attributes
    ----------
    mode : how the network is treated.
    structure : has the nodes, loads and controls of the network that will be solved.
    feasibility : what public loads do on it; nobody looks once the release is begun and paid for.
    corpus_bytes : PUBLIC. How large the corpus will be, about.
    """

    inputs: ReleaseInputs
    mode: NetworkMode[Any]
    structure: Feeder
    feasibility: Feasibility
    corpus_bytes: int


def open_state(config: Config) -> PrivateState:
    """The private state directory of a config; refused if this user cannot write there."""
    state = PrivateState.open(config.release.state, insecure_seed=config.release.insecure_seed)
    if not os.access(state.root, os.W_OK | os.X_OK):
        raise PrivateStateError(
            f"the private state directory {state.root} cannot be written by this user, and a release keeps "
            "its ledger there; run as its owner, or correct its permissions; nothing was spent"
        )
    return state


def make_ready(
    config: Config,
    state: PrivateState,
    *,
    history: LoadHistory | MeterFacts | None = None,
    feeder: Feeder | None = None,
    say: Say = lambda _: None,
) -> Ready:
    """Read and check all that a release is made from; nothing is spent, and nothing is written.

    Parameters
    ----------
    history : PRIVATE. The meter data of the config, or their facts, if somebody has read them already.
    feeder : PRIVATE. The network of the config, if somebody has read it already.
    say : told what is being done.

    Raises
    ------
    DpPowerflowError : the release would be refused.
    """
    mode = mode_of(config)
    say("reading the feeder")
    declared = declared_services(config) if history is None else Services.of(config, history)
    network = read_network(config, state, steps_per_day(config.loads.step_minutes), declared, feeder)
    say("checking feeder, controls and sun")
    network.almanac.check_meters(declared_days(config))
    if declared is not None:
        check_declared(config, network.feeder, declared)
    structure = mode.check(network)
    size = check_room(mode, network, structure)
    feasibility = Feasibility()
    if not is_begun(state, config.release.id):  # what is paid for is finished
        say("comparing the feeder with its file")
        check_reading(network.feeder, config.feeder.accept_difference, acting=mode.solver(1).acts)
        say("power flow on public loads")
        feasibility = mode.feasibility(network, structure)
    inputs = read_inputs(config, state, network=network, history=history, say=say)
    if declared is None:
        structure = mode.check(inputs)  # now that it is known which loads the meter data are of
    return Ready(inputs, mode, structure, feasibility, size)


def check_room(mode: NetworkMode[Any], inputs: NetworkInputs, structure: Feeder) -> int:
    """Bytes of the corpus, about; refuses a place that cannot hold it. Nothing stays there.

    Raises
    ------
    CorpusError : the output exists, cannot be made there, or would not fit on the disk; or the store does
        not answer.
    """
    release = inputs.config.release
    steps = steps_per_day(inputs.config.loads.step_minutes)
    writer = writer_of(mode, structure, inputs.solar_on(structure), steps)
    layout, extras, target = writer.layout, writer.extras, writer.target
    per_node = BYTES_PER_PHASOR * (1 + extras.loads + extras.generation)
    per_day = layout.steps * layout.nodes * per_node
    if isinstance(target, RemotePath):  # a store has no size
        in_time(partial(_check_store, writer, inputs.state), target)
        return release.days * per_day
    if seems_made(writer, inputs.state):
        return release.days * per_day
    if os.path.lexists(target):
        raise OutputTakenError(f"{target} exists already; choose another directory or remove it first")
    for stage in writer.stages():  # one, or it is refused once it is known which is one's own
        if not is_begun(inputs.state, release.id):
            writer.refuse_other_stages()
        writer = replace(writer, stage=stage)
    place = _nearest(target.parent)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise CorpusError(
            f"{target} cannot be made: this user cannot write to {place}; correct its permissions, or choose "
            "another release.output; nothing was spent",
            code="output-unwritable",
        )
    needed = sum(len(layout.days_of(part)) for part in writer.missing_parts()) * per_day
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CorpusError(
            f"the corpus takes about {needed / 1e6:,.1f} MB and the disk of {target} has "
            f"{free / 1e6:,.1f} MB left; free some space, choose another release.output or release fewer "
            "days; nothing was spent",
            code="disk-full",
        )
    return release.days * per_day


def writer_of(mode: NetworkMode[Any], feeder: Feeder, solar: Solar, steps: int) -> CorpusWriter:
    """Where the corpus of a release goes, and its shape.

    Parameters
    ----------
    feeder : has the nodes, loads and controls of the network that is solved.
    steps : of a day.
    """
    release = mode.config.release
    layout = layout_of(release.days, steps, len(mode.released_nodes(feeder)), mode.drawn(feeder))
    return CorpusWriter(location(release.output), layout, release.id, mode.extras(feeder, solar))


def is_made(writer: CorpusWriter, state: PrivateState) -> bool:
    """Whether this very release is finished: its manifest commits to the report that the state keeps."""
    own = writer.release_id, committed(state, writer.release_id)
    return writer.finished and release_at(writer.target) == own


def seems_made(writer: CorpusWriter, state: PrivateState) -> bool:
    """Whether this very release is finished, or one of its id that was begun here and left no report.

    In a fleet a worker finishes a release, and its report is kept afterwards: who is killed in between finds
    both again. Whether they agree is known once the report is made again (`make`).
    """
    if is_made(writer, state):
        return True
    unreported = committed(state, writer.release_id) is None and is_begun(state, writer.release_id)
    if not (unreported and writer.finished):
        return False
    found = release_at(writer.target)
    return found is not None and found[0] == writer.release_id


def _check_store(writer: CorpusWriter, state: PrivateState) -> None:
    """Refuse a URL at which a release cannot be made, unless it is made already."""
    if writer.remote is not None and not seems_made(writer, state):
        writer.remote.check(begun=is_begun(state, writer.release_id))


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))
