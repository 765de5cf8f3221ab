"""What a network mode decides. The pipeline asks the mode, and never asks which one it is.

A mode is a class for one section of the config's union `Network`. A new mode needs its file in this
folder and that section: the class registers itself, and so does the policy that its manifest states.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from dp_powerflow.config import Config, NetworkSection
from dp_powerflow.corpus.schema import NOTHING, ExtrasLayout
from dp_powerflow.corpus.storage import Location
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.errors import ConfigError
from dp_powerflow.evidence.collect import Evidence
from dp_powerflow.evidence.lines.collect import LineReport
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import Figure
from dp_powerflow.manifest.build import weak_delta
from dp_powerflow.manifest.model import policy_of
from dp_powerflow.manifest.render import Words, warnings_of
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import LoadSampler, LoadSource, days_per_block
from dp_powerflow.pipeline.customers import CustomerPlan, NodePlan, customer_plan, node_plan
from dp_powerflow.pipeline.feasibility import Feasibility
from dp_powerflow.pipeline.inputs import (
    Almanac,
    NetworkInputs,
    Solar,
    frame_chunks,
    network_chunks,
    require_declared_taps,
)
from dp_powerflow.pipeline.parts import GraphTables, SolverMaker
from dp_powerflow.privacy.ledger.accounts import Cap, Cost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Preview, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import IntArray

INTERNAL = "INTERNAL: computed from private data; not for publication"
POLICY_MET = "policy met"

Section = TypeVar("Section", bound=NetworkSection)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class NetworkCharge:
    """What the ledger is asked of the network.

    Attributes
    ----------
    cost, cap : of this release, and of all releases charged to the account.
    paid_by : what the charge is recorded under: the release, or a twin that several releases share.
    request_sha256 : hash of everything that decides what is paid for.
    otherwise : what to do if `paid_by` was charged for something else, where it is no release id.
    """

    cost: Cost
    cap: Cap
    paid_by: str
    request_sha256: str
    otherwise: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class NetworkFacts:
    """PRIVATE. What a charge asks of a network: keyed hashes, no figure.

    Attributes
    ----------
    dataset : of the protected network: the account that it is charged to.
    frame : of what it has in common with its near copies: structure, base voltages.
    figures : under a key, element → keyed hash of its figures; asked for later versions of a network.
    """

    dataset: str
    frame: str
    figures: Callable[[StreamKey], Mapping[str, str]]


@dataclass(frozen=True, eq=False, repr=False)
class Solvable:
    """A network that voltages are solved on.

    Attributes
    ----------
    feeder : the true network, or what stands in for it.
    solar : generation on it.
    identity : what the draws of the release are bound to: the same draws never meet two networks.
    absent : figures that are protected if present, and are not; None where all must be there.
    """

    feeder: Feeder
    solar: Solar
    identity: str
    absent: tuple[Figure, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """The network to solve, the load model at its nodes, and the public calendar and weather of its days."""

    network: Solvable
    model: LoadModel
    nodes: NodePlan | CustomerPlan
    almanac: Almanac


@dataclass(frozen=True)
class InternalReport:
    """INTERNAL. What the data owner learns; the manifest commits to its bytes.

    Attributes
    ----------
    met : whether the evidence supports the policy.
    content : canonical JSON.
    """

    met: bool
    content: bytes

    @classmethod
    def make(cls, release_id: str, met: bool, evidence: object, lines: object = None) -> InternalReport:
        """The report as canonical JSON; `lines` only where losses per line were asked for."""
        content = {"marking": INTERNAL, "release": release_id, POLICY_MET: met, "evidence": evidence}
        if lines is not None:
            content["lines"] = lines
        return cls(met, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")

    @classmethod
    def read(cls, content: bytes) -> InternalReport:
        """A report that was kept."""
        return cls(bool(json.loads(content)[POLICY_MET]), content)


class NetworkMode(ABC, Generic[Section]):
    """One way to treat the network; made from a config, it holds nothing private.

    Attributes
    ----------
    section_type : section of the config that chooses this mode.
    counts_customers : whether a load is as many draws as it has customers, and the powers of a snapshot
        without solution are lowered until it has one; otherwise a node is one draw, and such a snapshot
        aborts the release.
    """

    section_type: ClassVar[type[NetworkSection]]
    counts_customers: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config
        self.section: Section = config.network  # type: ignore[assignment]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _MODES[cls.section_type] = cls

    # ---------------------------------------------------------------------------- checked before the charge

    def check(self, inputs: NetworkInputs) -> Feeder:
        """Refuse what can be known to be wrong before anything is spent, such as taps that were solved.

        Returns
        -------
        A network with the structure of the one that will be solved: nodes, loads and controls are those.
        """
        require_declared_taps(self.config, inputs.feeder)
        self.solver(1)(inputs.feeder, inputs.solar, 1)  # refuses what the solver cannot be made for
        return inputs.feeder

    def feasibility(self, inputs: NetworkInputs, structure: Feeder) -> Feasibility:
        """What public loads do before anything is spent; by default it is not checked.

        Parameters
        ----------
        structure : what `check` has returned.

        Raises
        ------
        ConfigError : the release could not be made, or would be worth nothing.
        """
        return Feasibility()

    # -------------------------------------------------------------------------------------------- the charge

    def identity(self, inputs: NetworkInputs) -> str:
        """Keyed hash of the protected network, by default of its Y: the account that it is charged to."""
        return inputs.state.identity("network", network_chunks(inputs.feeder))

    def facts(self, inputs: NetworkInputs) -> NetworkFacts:
        """PRIVATE. What a charge asks of the network; no figures where every version costs the same."""
        frame = inputs.state.identity("frame", frame_chunks(inputs.feeder))
        return NetworkFacts(self.identity(inputs), frame, lambda _: {})

    @abstractmethod
    def charge(self, request_sha256: str) -> NetworkCharge:
        """What the ledger is asked of the network, for a release of this request."""

    def charge_of(
        self, asked: NetworkCharge, facts: NetworkFacts, state: PrivateState, ledger: Ledger
    ) -> NetworkCharge:
        """The charge for this version of the network, by what state and ledger hold of earlier ones."""
        return asked

    # -------------------------------------------------------------------------------- the network to solve

    @abstractmethod
    def network_to_solve(self, inputs: NetworkInputs, dataset: str, paid: Spend | None = None) -> Solvable:
        """The network that voltages are solved on, which is paid for.

        Parameters
        ----------
        dataset : `identity` of the network.
        paid : the charge that pays for it; None looks it up in the ledger.
        """

    @property
    def kept_under(self) -> str | None:
        """Where the private state keeps a network that later releases use at no cost; None if nowhere."""
        return None

    def kept_network(self, inputs: NetworkInputs) -> Solvable | None:
        """The network that was solved, as the private state keeps it; None if it does not. Draws nothing."""
        return None

    def make_keys(self, state: PrivateState, dataset: str) -> None:
        """Make the keys of what this mode draws, just before it is paid for; parameters as above."""

    def network_again(self, inputs: NetworkInputs) -> Solvable | None:
        """`network_to_solve` from key and true network, whatever is kept; None where the key is gone."""
        return self.network_to_solve(inputs, self.identity(inputs))

    def solver(self, steps: int) -> SolverMaker:
        """What makes the solver of the power flow; `steps` of a day."""
        return SolverMaker()

    def scene(self, inputs: NetworkInputs, network: Solvable, model: LoadModel) -> Scene:
        """A network with the load model at its nodes."""
        return Scene(network, model, self.nodes(inputs, network.feeder, model), inputs.almanac)

    def nodes(self, inputs: NetworkInputs, feeder: Feeder, model: LoadModel) -> NodePlan | CustomerPlan:
        """Whom loads are drawn for: the customers of every load, or the nodes that have one."""
        if self.counts_customers:
            key = inputs.key or inputs.own_key  # without the key of the draws nothing is drawn for a release
            return customer_plan(self.config, feeder, inputs.services, model, key)
        return node_plan(self.config, feeder, model, inputs.own_key)

    def drawn(self, feeder: Feeder) -> int:
        """How many loads are drawn for every step, with or without customers: it follows from the feeder."""
        if self.counts_customers:
            return sum(load.kw > 0.0 for load in feeder.loads)
        return len(feeder.loaded_nodes()[0])

    def source(self, scene: Scene, key: StreamKey, days: int) -> LoadSource:
        """What draws the loads of a release, with a key that is bound to the network they are solved on."""
        nodes, feeder = scene.nodes, scene.network.feeder
        if isinstance(nodes, CustomerPlan):
            # As many days as a part has: also where some loads have no customer, and are not drawn.
            block_days = days_per_block(self.drawn(feeder))
            return nodes.source(scene.model, feeder, key, days, block_days, scene.almanac)
        truncated = not self.section.random_reactive
        return LoadSampler(nodes.law(scene.model, feeder, truncated=truncated), key, days)

    # --------------------------------------------------------------------------------------- what is released

    def released_nodes(self, feeder: Feeder) -> IntArray:
        """Indices in `feeder.nodes` whose voltages are released: nodes with their own load."""
        return np.asarray(feeder.retained[feeder.loaded_nodes()[0]], dtype=np.int64)

    def extras(self, feeder: Feeder, solar: Solar) -> ExtrasLayout:
        """What the corpus holds besides its voltages; by default nothing."""
        return NOTHING

    def tables(self, root: Location, feeder: Feeder, released: IntArray) -> GraphTables | None:
        """Tables of the network that are published besides the voltages; None publishes none."""
        return None

    def connections(
        self, inputs: NetworkInputs, network: Solvable, released: IntArray, key: StreamKey
    ) -> Connections | None:
        """Buses of the network that is solved and what joins them; None publishes nothing of it.

        Parameters
        ----------
        released : indices of the released nodes, in their secret order.
        key : of the draws.
        """
        return None

    # --------------------------------------------------------------------------------- what its owner learns

    @abstractmethod
    def report(self, inputs: NetworkInputs, scene: Scene, progress: Progress | None = None) -> InternalReport:
        """What the data owner learns of the network. Releases keep it; `verify --private` makes it again."""

    def accept(self, report: InternalReport, kept: Path) -> None:
        """Refuse a release whose report does not support its policy; `kept` is where the report lies."""

    def evidence(
        self, inputs: NetworkInputs, model: LoadModel, line_draws: int | None, progress: Progress | None
    ) -> tuple[Evidence, LineReport | str | None]:
        """All the evidence about the true network, for `certify`; words where there is none on lines."""
        raise ConfigError(
            f"mode '{self.section.mode}' needs no network evidence: its guarantee holds for every network "
            "('dp-powerflow plan')"
        )

    def plan_figures(self) -> dict[str, object]:
        """What the block `plan` of the policy's template shows besides policy, section and account."""
        return {}

    def plan_lines(self, preview: Preview) -> list[str]:
        """What `plan` says of the network, in Markdown: the block `plan` of the policy's template."""
        left = partial(left_afterwards, preview)
        facts = {"neighbours": preview.after.cap.unit, "days": self.config.release.days}
        return self.said("plan", left=left, **facts, **self.plan_figures()).split("\n")

    def said(self, part: str, **figures: object) -> str:
        """A block of the policy's template; `outcome` is what `release` says when it is done (INTERNAL)."""
        policy = policy_of(self.config)
        return Words(policy.template, {"network": policy, "section": self.section, **figures}).markdown(part)


_MODES: dict[type[NetworkSection], type[NetworkMode[Any]]] = {}


def mode_of(config: Config) -> NetworkMode[Any]:
    """The mode that a config chooses: the mode of its section, or of a base of the section."""
    return next(_MODES[kind] for kind in type(config.network).__mro__ if kind in _MODES)(config)


def promise_warnings(config: Config) -> tuple[str, ...]:
    """PUBLIC. Why the promise protects network or customers from nothing that matters; mostly empty."""
    policy, delta = policy_of(config), config.model.delta
    codes = [code for code in (*policy.warnings, *weak_delta(delta)) if code != "evidence-not-required"]
    return warnings_of(codes, policy, delta)


def left_out(mode: NetworkMode[Any], network: Solvable) -> tuple[str, ...]:
    """In words, elements of the feeder that the power flow is solved without; the manifest says so."""
    feeder, found = network.feeder, []
    if feeder.pv and network.solar.generation is None:
        found.append(f"{len(feeder.pv)} PV systems, for which no irradiance is declared")
    if feeder.as_operated.generators and not mode.solver(1).acts:
        found.append(f"{len(feeder.as_operated.generators)} generators")
    accepted = mode.config.feeder.accept_difference
    if accepted is not None:
        found.append(f"differences of up to {accepted:g} p.u. from OpenDSS on the file of the feeder")
    return (*found, *feeder.as_operated.left_out)


def left_afterwards(preview: Preview, what: str = "This release") -> str:
    """What of an account is left, in words."""
    if preview.already_charged:
        return f"{what} was charged already; using it again costs nothing more."
    left = preview.after.available
    if not preview.affordable:
        return f"**Not affordable**: ε = {preview.before.available.epsilon:.4g} is left."
    return f"Left afterwards: ε = {left.epsilon:.4g} at δ = {left.delta:.3g}."
