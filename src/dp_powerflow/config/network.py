"""The section [network]: one class per mode."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from dp_powerflow.config.mistakes import Section
from dp_powerflow.config.values import Count, Positive, Probability, TwinId
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Protect, Protected
from dp_powerflow.twin.design import TwinDesign


class NetworkSection(Section):
    """What the network is promised: the mode is named, never a default.

    Every mode has a section of its own below; `Network` is their union, told apart by `mode`.
    """

    mode: str
    epsilon: Positive
    delta: Probability

    random_reactive: ClassVar[bool] = True
    """Whether reactive load is drawn at random; without it a load has a fixed power factor."""
    dated: ClassVar[bool] = False
    """Whether the days of a release follow one another on a calendar."""


class TrueNetwork(NetworkSection):
    """Power flow on the true network, and internal evidence for a policy about it: not differential privacy.

    Attributes
    ----------
    mode : the paper's Algorithm 1.
    epsilon : ε of the policy for the whole corpus.
    delta : δ of the policy for the whole corpus.
    bound : form of Theorem 1 that the evidence is by.
    radius : neighbours are changes of existing lines up to this Frobenius norm [p.u.].
    calibration_days : days of the Monte Carlo calibration.
    line_change : exact losses per line are for one line's admittance times 1 ± this.
    line_draws : days drawn for these losses (INTERNAL); 0: none, 300 or more to say anything.
    require_evidence : refuse the release where the evidence does not support the policy.
    """

    mode: Literal["true-network"]
    bound: Literal["paper", "corrected", "full-support"]
    radius: Positive
    calibration_days: Annotated[int, Field(ge=20, le=10_000_000)] = 1000
    line_change: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    line_draws: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    require_evidence: bool = True

    @property
    def random_reactive(self) -> bool:  # type: ignore[override]
        """The paper's bound, printed or corrected, is for fixed power factors."""
        return self.bound == "full-support"


AlsoPublished = Annotated[
    tuple[Literal["loads", "head", "states", "connections"], ...],
    AfterValidator(lambda chosen: tuple(sorted(set(chosen)))),
]
"""What a release on a twin holds beside its voltages, in whatever order it is written: power drawn and
injected at the released nodes, power of the sources, taps and states of capacitors, buses and what joins
them."""


def _tables_hold_one_network(network: TwinNetwork) -> str | None:
    if network.publish == "voltages" or network.controls == "frozen":
        return None
    return (
        "tables for graph models hold one admittance matrix, and taps that act change it from step "
        'to step; set network.controls = "frozen", or network.publish = "voltages"'
    )


def _coordinates_of_published_buses(network: TwinNetwork) -> str | None:
    if network.coordinates == "private" or "connections" in network.also_publish:
        return None
    return (
        'coordinates are those of published buses; add "connections" to network.also_publish, or set '
        'network.coordinates = "private"'
    )


def _can_be_drawn(network: TwinNetwork) -> str | None:
    try:
        _ = network.design
    except PrivacyError as error:
        return str(error)
    return None


class TwinNetwork(NetworkSection):
    """Power flow on a differentially private twin: what its noise covers, and what of it is published.

    Figures that the noise does not cover are declared public.

    Attributes
    ----------
    mode : power flow on a twin.
    epsilon : ε of one element of the network, for any number of days.
    delta : δ of one element; Laplace noise needs none.
    id : name of the twin. The same twin serves every release; a new id is a new twin and is paid for.
    change : neighbours differ in one element, its figures changed by factors up to 1 + this.
    noise : `laplace`, or `gaussian` with a delta: for many twins or many changed lines.
    lines : what of every line is protected: R and X, or its length where conductor codes are public.
    transformers : whether impedances of transformers are protected too.
    capacitors : whether sizes of capacitors are protected too.
    pv : whether capacities of PV systems are protected too.
    protect : `all`: a network without what is protected above is refused; `if present`: it is protected where
        the network has it, and the manifest says which the network has not. The default of a fleet.
    charging_epsilon : share of epsilon for a line's charging; without it charging follows the length.
    code_epsilon : share of epsilon for conductor codes, with `lines` = `length`; without it they are public.
    x_ohm_per_km : public reactance of lines without a conductor code [Ω/km].
    c_nf_per_km : public charging of lines without a conductor code [nF/km].
    publish : what is published of the network: nothing, or tables for graph models in `twin/`.
    graph_days : days of the corpus in those tables; without it all.
    graph_frame : `rotated`: voltages in those tables turned back by their nominal angles, all near 1;
        `phasors`: as they are.
    graph_merges_switches : nodes joined by a switch of next to no impedance are one bus of those tables.
    released : nodes whose voltages are released: those with a load of their own, or all.
    controls : `day`: regulators and capacitors act through a day; `snapshot`: each step for itself; `frozen`:
        fixed taps, every load constant power at its node.
    also_publish : what is released beside the voltages: P and Q per node, power of the source, taps and
        states of capacitors, connections: buses, phases and what joins them.
    coordinates : `public`: coordinates of the buses are released too, and lengths of lines NOT protected.
    """

    dated: ClassVar[bool] = True

    mode: Literal["twin-network"]
    id: TwinId
    change: Positive = 0.05
    delta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    noise: Literal["laplace", "gaussian"] = "laplace"
    lines: Literal["impedance", "length"] = "impedance"
    transformers: bool = False
    capacitors: bool = False
    pv: bool = False
    protect: Protect = "all"
    charging_epsilon: Positive | None = None
    code_epsilon: Positive | None = None
    x_ohm_per_km: Positive = 0.4
    c_nf_per_km: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 10.0
    publish: Literal["voltages", "network", "network and loads"] = "voltages"
    graph_days: Count | None = None
    graph_frame: Literal["rotated", "phasors"] = "rotated"
    graph_merges_switches: bool = True
    released: Literal["loaded", "all"] = "loaded"
    controls: Literal["frozen", "snapshot", "day"] = "day"
    also_publish: AlsoPublished = ("loads", "head", "states", "connections")
    coordinates: Literal["private", "public"] = "private"

    rules = (_tables_hold_one_network, _coordinates_of_published_buses, _can_be_drawn)

    @property
    def protected(self) -> Protected:
        """The figures that the noise covers."""
        return Protected(
            lines=self.lines,
            transformers=self.transformers,
            capacitors=self.capacitors,
            pv=self.pv,
            charging=self.charging_epsilon is not None,
            codes=self.code_epsilon is not None,
            x_ohm_per_km=self.x_ohm_per_km,
            c_nf_per_km=self.c_nf_per_km,
        )

    @cached_property
    def design(self) -> TwinDesign:
        """The public constants of the twin."""
        return TwinDesign(
            epsilon=self.epsilon,
            change=self.change,
            protected=self.protected,
            noise=self.noise,
            delta=self.delta,
            charging_epsilon=self.charging_epsilon,
            code_epsilon=self.code_epsilon,
        )


Network = Annotated[TrueNetwork | TwinNetwork, Field(discriminator="mode")]
"""The modes of a release. A new mode is a section here and a file in `pipeline/modes/`."""
