"""Everything that is asked before anything is spent, in one path that `plan` and `release` share.

    state → feeder, sun, days, weather → controls → disk, permissions → the feeder's own file
          → power flow on public loads → meters

What takes long comes last. Whatever `plan` would refuse, `release` refuses with the same sentence, before it
touches the ledger.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.storage import RemotePath, in_time, location
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.errors import CorpusError, OutputTakenError, PrivacyError, PrivateStateError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory, MeterFacts, steps_per_day
from dp_powerflow.manifest.model import MODEL_FILE
from dp_powerflow.manifest.twin import version_of
from dp_powerflow.manifest.verify import release_at
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.customers import Services
from dp_powerflow.pipeline.feasibility import Feasibility
from dp_powerflow.pipeline.inputs import (
    NetworkInputs,
    ReleaseInputs,
    Solar,
    check_declared,
    declared_days,
    declared_services,
    read_inputs,
    read_network,
)
from dp_powerflow.pipeline.modes.base import NetworkMode, mode_of
from dp_powerflow.pipeline.parts import layout_of
from dp_powerflow.powerflow.comparison import check_reading
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import RECEIPT, PrivateState

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


REQUEST_FILE = "request.sha256"
REPORT_FILE = "report.json"
COMMITMENT = "internal report"
"""What the manifest commits to, as the commitment names it."""
_PREFIX, _SUFFIX = RECEIPT, ".json"
_TWIN_DIGITS = 16
_TWIN_FILE = re.compile(rf"twin-([0-9a-f]{{{_TWIN_DIGITS}}})\.json")
_DERIVED_FILE = re.compile(r"model-from-(.+)\.json")


def open_ledger(state: PrivateState, *, only: str | None = None) -> Ledger:
    """The ledger, to plan or make a release with: every charge that a release remembers must be in it.

    Parameters
    ----------
    only : look at this release alone; a feeder of a fleet, which has looked at all of them once.

    Raises
    ------
    PrivacyError : the ledger does not pass its own check, or lacks a charge.
    """
    ledger = Ledger.open(state)
    charges = _Charges(ledger, all_at_once=only is None)
    for release_id, names in state.internal_files(only):
        _check(state, release_id, names, charges)
    return ledger


def is_begun(state: PrivateState, release_id: str) -> bool:
    """Whether this private state has begun a release, and paid for its load model."""
    return state.read_internal(release_id, REQUEST_FILE) is not None


def committed(state: PrivateState, release_id: str) -> str | None:
    """What the manifest of a release made with this private state commits to; None if it has no report."""
    report = state.read_internal(release_id, REPORT_FILE)
    return None if report is None else state.commit(release_id, COMMITMENT, report)


def keep_receipt(state: PrivateState, release_id: str, spend: Spend) -> None:
    """Remember, under a release, an entry of the ledger that paid for it."""
    content = {
        "account": spend.account,
        "charged under": spend.release_id,
        "request": spend.request_sha256,
    }
    name = f"{_PREFIX}{spend.entry}{_SUFFIX}"
    state.write_internal(release_id, name, json.dumps(content, sort_keys=True).encode() + b"\n")


def is_receipt(name: str) -> bool:
    """Whether an internal file of this name is a receipt."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


class _Charges:
    """What the ledger has, to look things up in.

    Parameters
    ----------
    all_at_once : whether everything will be asked about, or little.
    """

    def __init__(self, ledger: Ledger, *, all_at_once: bool) -> None:
        self._ledger = ledger
        self._all = all_at_once
        self._of: dict[str, list[Spend]] = {}
        for spend in ledger.spends() if all_at_once else ():
            self._of.setdefault(spend.release_id, []).append(spend)

    def of(self, charged: str) -> Sequence[Spend]:
        """The charges under an id."""
        return self._of.get(charged, ()) if self._all else self._ledger.spends(release_id=charged)

    def has(self, receipt: tuple[str, int, str, str]) -> bool:
        """Whether there is a charge with this account, number, id that was charged, and request."""
        return receipt in {(s.account, s.entry, s.release_id, s.request_sha256) for s in self.of(receipt[2])}

    def has_request(self, release_id: str, request: str) -> bool:
        """Whether an id was charged for a request."""
        return any(spend.request_sha256 == request for spend in self.of(release_id))

    def has_twin(self, twin_id: str, dataset: str) -> bool:
        """Whether some version of a twin was charged for data whose identity begins like this."""
        return any(version_of(charged, twin_id) for charged in self._charged_for.get(dataset, ()))

    @cached_property
    def _charged_for(self) -> dict[str, set[str]]:
        """First digits of the identity of data → ids that were charged for them."""
        found: dict[str, set[str]] = {}
        for spend in self._ledger.spends():
            found.setdefault(spend.dataset[:_TWIN_DIGITS], set()).add(spend.release_id)
        return found


def _check(state: PrivateState, release_id: str, names: Set[str], charges: _Charges) -> None:
    for receipt in _receipts(state, release_id, names):
        if not charges.has(receipt):
            raise _lacks(release_id, f"entry {receipt[1]}, which paid for it from account {receipt[0]}")
    # Below: what versions without receipts left, too.
    if {REQUEST_FILE, MODEL_FILE} <= names and "_" not in release_id:  # a fleet pays for models of feeders
        begun = (state.read_internal(release_id, REQUEST_FILE) or b"").decode(errors="replace")
        if not charges.has_request(release_id, begun):
            raise _lacks(release_id, "the one that paid for its load model")
    twin_id = release_id.removeprefix("twin-")
    for kept in (found[1] for found in map(_TWIN_FILE.fullmatch, sorted(names)) if found):
        if not charges.has_twin(twin_id, kept):
            raise _lacks(twin_id, "the one that paid for the twin")


def _receipts(state: PrivateState, release_id: str, names: Set[str]) -> Iterator[tuple[str, int, str, str]]:
    """Account, entry, id that was charged, and request, of every receipt of a release."""
    for name in filter(is_receipt, sorted(names)):
        fields = _fields(state, release_id, name)
        entry = int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        yield str(fields["account"]), entry, str(fields["charged under"]), str(fields["request"])


def _fields(state: PrivateState, release_id: str, name: str) -> dict[str, Any]:
    """What a receipt says, all of it."""
    try:
        fields = json.loads(state.read_internal(release_id, name) or b"")
        int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        if {"account", "charged under", "request"} <= fields.keys():
            return dict(fields)
    except (ValueError, AttributeError, RecursionError):
        pass
    raise PrivacyError(
        f"the receipt {name} of release '{release_id}' in the private state is damaged; restore it from a "
        "backup; nothing was spent",
        code="ledger-damaged",
    )


def keep_derived_model(state: PrivateState, release_id: str, reused: str | None, model: LoadModel) -> None:
    """Remember, under a release, a model that it draws from and that is not the one another release keeps.

    Parameters
    ----------
    reused : the release whose noisy answers it is derived from, and which has paid for them.
    """
    content = model.to_json().encode()
    if reused is not None and content != state.read_internal(reused, MODEL_FILE):
        state.write_internal(release_id, f"model-from-{reused}.json", content)


def kept_models(state: PrivateState) -> Iterator[tuple[str, bytes]]:
    """Release that paid, and content, of every load model that is kept."""
    for release_id, names in state.internal_files():
        for name in sorted(names):
            derived = _DERIVED_FILE.fullmatch(name)
            if name == MODEL_FILE or derived:
                paid_by = derived[1] if derived else release_id
                yield paid_by, state.read_internal(release_id, name) or b""


def _lacks(release_id: str, what: str) -> PrivacyError:
    return PrivacyError(
        f"the ledger lacks a charge of release '{release_id}' ({what}), so an older copy of the ledger was "
        "put back; restore the newest backup of the private state directory; nothing was spent",
        code="ledger-damaged",
    )
