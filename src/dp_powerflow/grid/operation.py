"""How a feeder is operated: what moves its taps and capacitors, and how its loads answer to the voltage.

A `Feeder` by itself is a frozen frame: taps fixed, every load constant power at its node. Its `Operation` is
the same feeder with nothing frozen. Every regulating winding stands at neutral tap and ends at an extra
*inner* node; an ideal ratio leads from there to the node that the file names (v_outer = ratio·v_inner).
Capacitors that a control switches are left out of the admittances and stated one by one. All of it is
PRIVATE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import scipy.sparse as sp

from dp_powerflow.grid.refusals import counted, said

Branch = tuple[int, int]
"""Two nodes between which something is connected; the second may be `GROUND`."""
Zip = tuple[float, float, float]
"""Shares of constant impedance, constant current and constant power; they add up to 1 at rated voltage."""


@dataclass(frozen=True)
class Response:
    """How the power that an element draws follows from u, its voltage over the rated one.

    Within `lowest` ≤ u ≤ `highest` active power is p·(z·u² + i·u + c) with the shares of `active`, or p·u^a
    with the first of `exponents`; reactive power likewise. Above `highest` it is a constant impedance that
    draws at `highest` what the law says there. Below `lowest` the current falls linearly in u until at `cut`
    it is that of the constant impedance which draws p + jq at rated voltage, and it is that impedance from
    there on. An element of constant impedance alone has no such limits. `cut` is at most `lowest`; where they
    are equal the current jumps there. With `cut` 0 it is a constant impedance below `lowest`, as above
    `highest`.

    `abrupt` elements (models 3 and 4 of OpenDSS) act as constant power would outside of the limits: above
    `highest` the impedance draws p + jq at `highest`, and below `lowest` the line starts at p + jq there.
    """

    active: Zip = (0.0, 0.0, 1.0)
    reactive: Zip = (0.0, 0.0, 1.0)
    exponents: tuple[float, float] | None = None
    lowest: float = 0.0
    highest: float = 10.0
    cut: float = 0.0
    abrupt: bool = False

    @property
    def constant_power(self) -> bool:
        """Whether the power is the same at any voltage within the limits."""
        return self.exponents is None and self.active == self.reactive == (0.0, 0.0, 1.0)

    @property
    def constant_impedance(self) -> bool:
        """Whether it is a plain admittance."""
        return self.exponents is None and self.active == self.reactive == (1.0, 0.0, 0.0)


CONSTANT_POWER = Response()
CONSTANT_IMPEDANCE = Response(active=(1.0, 0.0, 0.0), reactive=(1.0, 0.0, 0.0))


@dataclass(frozen=True)
class InverterCurve:
    """Volt-var control of a PV system by a curve of the file.

    The voltage is the mean of those of its phases (to ground, in OpenDSS, also of a delta). With "rated"
    active power gives way: it is what reactive power leaves of the rating. Where there is a curve `tan_theta`
    does not count. OpenDSS itself stops within `VarChangeTolerance` of the curve, 2.5 % by default.

    Attributes
    ----------
    voltage : increasing voltages over the rated one.
    reactive : share of the reference that is injected at these.
    reference : the reactive power that 1 stands for: what the rating leaves beside the active power, or the
        rating itself.
    """

    voltage: tuple[float, ...]
    reactive: tuple[float, ...]
    reference: Literal["available", "rated"] = "available"


@dataclass(frozen=True)
class Generator:
    """A generator that runs as its file states it: constant power within its voltage limits.

    Model 7 of OpenDSS limits its current to that at `lowest`; here it is an impedance below, as model 1 is.

    Attributes
    ----------
    kw, kvar : total power injected [kW], [kvar], equal shares on every branch.
    rated_kv : voltage across a branch that `response` is relative to [kV].
    """

    name: str
    branches: tuple[Branch, ...]
    kw: float
    kvar: float
    rated_kv: float
    response: Response = CONSTANT_POWER


class Pick(StrEnum):
    """Which of several measured phases a control watches."""

    ONE = "one"
    HIGHEST = "highest"
    LOWEST = "lowest"
    MEAN = "mean"


@dataclass(frozen=True)
class ReverseSettings:
    """How a reversible regulator works while power flows backwards through its winding.

    It then holds the voltage on the far side of its taps, V over the ratio, and moves the other way.

    Attributes
    ----------
    threshold_kw : active power backwards from which it changes over, and forwards from which it changes back.
    target_v, band_v, drop_r_v, drop_x_v : as of `Regulator`.
    delay_s : after which it changes over.
    neutral_delay_s : seconds after which it goes to neutral instead; None for one that regulates.
    """

    threshold_kw: float
    target_v: float
    band_v: float
    drop_r_v: float
    drop_x_v: float
    delay_s: float
    neutral_delay_s: float | None = None


@dataclass(frozen=True)
class Regulator:
    """Tap changer of one transformer winding, with its control.

    Attributes
    ----------
    name : of the control.
    transformer, winding : what it moves, as in `Tap`.
    phases : (inner node, outer node) of every phase of the winding; all have the same ratio. Inner nodes are
        indices of `Operation.nodes`.
    measured : branches whose voltages the control sees.
    pick : which of them counts.
    compensated : phase, as an index into `phases`, whose current is measured for line-drop compensation.
        Where the highest or lowest phase is picked, it is the current of that phase: branch k of `measured`
        is phase k.
    target_v, band_v : voltage that is held and the width of its band, behind the voltage transformer [V].
    pt_ratio : of the voltage transformer.
    ct_primary_a : primary rating of the current transformer [A].
    drop_r_v, drop_x_v : line-drop compensation at rated current [V].
    winding_v : voltage before the voltage transformer that a ratio of 1 stands for [V]: the rated voltage of
        the measured winding's coil. A deviation of ΔV behind the transformer asks for ΔV·pt_ratio/winding_v.
    delay_s : time after which it acts; in one round only those with the shortest delay act.
    most_steps : tap steps that one action may take at most.
    lowest, highest : range of the ratio.
    steps : number of tap steps in the range.
    opposite : whether the winding that is moved is not the one that is measured: it moves the other way.
    limit_v : voltage behind the transformer that is never to be exceeded; None without such a limit.
    reverse : how it works while power flows backwards; None for one that is not reversible.
    """

    name: str
    transformer: str
    winding: int
    phases: tuple[Branch, ...]
    measured: tuple[Branch, ...]
    pick: Pick
    compensated: int
    target_v: float
    band_v: float
    pt_ratio: float
    ct_primary_a: float
    drop_r_v: float
    drop_x_v: float
    winding_v: float
    delay_s: float = 15.0
    most_steps: int = 16
    lowest: float = 0.9
    highest: float = 1.1
    steps: int = 32
    opposite: bool = False
    limit_v: float | None = None
    reverse: ReverseSettings | None = None

    @property
    def step(self) -> float:
        """Change of the ratio by one tap."""
        return (self.highest - self.lowest) / self.steps


@dataclass(frozen=True)
class Probe:
    """Current that a control measures in a conductor: I = Σ coefficients·v, into the element [p.u.].

    Attributes
    ----------
    node : of the terminal at which it is measured; the current times this voltage is the power that is seen.
    nodes, coefficients : one row of the element's primitive admittance [p.u.].
    """

    node: int
    nodes: tuple[int, ...]
    coefficients: tuple[complex, ...]


@dataclass(frozen=True)
class CapacitorControl:
    """What switches a capacitor, by the rules of OpenDSS's CapControl.

    Every round of controls checks the present bank; all comparisons are strict but the ones of time.

    1. With `override_v` = (low, high): an open bank closes if V < low, a closed one opens if V > high, V
       being the picked voltage over `pt_ratio`. If that asks for a change, rule 2 does not count. If it
       does not, rule 2 may undo it: the override does not lock. Kind "voltage" has no override.
    2. By its kind:

       | kind | measured | open bank closes if | closed bank opens if |
       |---|---|---|---|
       | voltage | V = picked voltage / pt_ratio | V < on | V > off |
       | kvar | Q = Σ Im(v·conj(i)) of all probes, into the element [kvar]; no ratio | Q > on | Q < off |
       | current | I = picked current / ct_ratio | I > on | I < off |
       | time, off > on | h = hour of the day | on ≤ h < off | h ≥ off or h < on |
       | time, off ≤ on | h | on ≤ h < 24 | off ≤ h < on |

       h is in (0, 24] where time goes on: 24:00 is 24, not 0; a snapshot without time has 0.
    3. Opening takes `delay_off_s`, closing `delay_on_s`; less than `dead_time_s` after it opened, closing
       takes max(delay_on_s, dead_time_s + delay_on_s − time since it opened). Within one static solution no
       time passes, so that closing again takes dead_time_s + delay_on_s. Of all controls, regulators
       included, that ask for a change in a round only those with the shortest delay act; the others are
       checked anew after the next solution.

    Attributes
    ----------
    kind : what is compared with `on` and `off`: voltage [V], reactive power [kvar] into the monitored
        element, its current [A], or the hour of the day.
    measured : branches whose voltages are seen; `pick` says which counts.
    probes : conductors of the monitored element: for kvar all of the terminal, for current those that
        `pick_current` chooses from.
    pt_ratio, ct_ratio : what voltages and currents are divided by.
    on, off : settings at which it closes and opens.
    delay_on_s, delay_off_s : after which it acts.
    override_v : voltages below which it always closes and above which it always opens [V], None without.
    dead_time_s : for so long after it opened it does not close without further delay.
    """

    kind: Literal["voltage", "kvar", "current", "time"]
    measured: tuple[Branch, ...]
    pick: Pick
    probes: tuple[Probe, ...]
    pt_ratio: float
    ct_ratio: float
    on: float
    off: float
    delay_on_s: float
    delay_off_s: float
    override_v: tuple[float, float] | None = None
    dead_time_s: float = 300.0
    pick_current: Pick = Pick.ONE


@dataclass(frozen=True)
class SwitchedCapacitor:
    """A capacitor bank that a control closes and opens as a whole.

    Attributes
    ----------
    kvar : total at rated voltage, equal shares on every branch [kvar].
    rated_kv : voltage across a branch [kV].
    closed : whether the file has it closed at the start.
    """

    name: str
    branches: tuple[Branch, ...]
    kvar: float
    rated_kv: float
    control: CapacitorControl
    closed: bool = True


@dataclass(frozen=True, eq=False)
class Operation:
    """The network with every regulator at neutral and switched capacitors left out, and what moves them.

    Attributes
    ----------
    nodes : names; the feeder's in its order, slack nodes included, then the inner nodes.
    y : sparse complex (node, node) [p.u.], without loads and generation.
    regulators, capacitors, generators : in the order of the file.
    left_out : in words, what of the file is neither modelled nor replaced by anything; it is said on the
        certificate.
    refused : sentences, each on one setting of the file that the solver of the feeder as operated does not
        model; where there are any, the feeder can only be solved with its controls frozen.
    """

    nodes: tuple[str, ...]
    y: sp.csc_array
    regulators: tuple[Regulator, ...] = ()
    capacitors: tuple[SwitchedCapacitor, ...] = ()
    generators: tuple[Generator, ...] = ()
    left_out: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def unfed_generators(count: int) -> tuple[str, ...]:
    """Generators that are left out, in words that name nothing: a manifest states them."""
    return (counted("left-out.unfed", count),) if count else ()


def without_nodes(operation: Operation, kept: Sequence[int]) -> Operation:
    """The operation without the feeder's nodes that are not `kept`, and without what stands on them."""
    alive = set(kept)
    outer = {inner: node for each in operation.regulators for inner, node in each.phases}
    first_inner = min(outer, default=len(operation.nodes))
    places = [*kept, *(k for k in range(first_inner, len(operation.nodes)) if outer.get(k, -1) in alive)]
    moved = {old: new for new, old in enumerate(places)} | {-1: -1}
    refused = list(operation.refused)

    def shifted(branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        return tuple((moved[a], moved[b]) for a, b in branches if a in moved and b in moved)

    def whole(*places: tuple[int, ...]) -> bool:
        return all(node in moved for nodes in places for node in nodes)

    regulators = []
    for each in operation.regulators:
        phases = shifted(each.phases)
        if whole(*each.phases, *each.measured):
            regulators.append(replace(each, phases=phases, measured=shifted(each.measured)))
        elif phases:
            refused.append(said("operated.islanded-regulator", each=each))
    capacitors = []
    for bank in (bank for bank in operation.capacitors if whole(*bank.branches)):
        control = bank.control
        if not whole(*control.measured, *((probe.node, *probe.nodes) for probe in control.probes)):
            refused.append(said("operated.islanded-capacitor", bank=bank))
            continue
        probes = tuple(
            replace(probe, node=moved[probe.node], nodes=tuple(moved[node] for node in probe.nodes))
            for probe in control.probes
        )
        control = replace(control, measured=shifted(control.measured), probes=probes)
        capacitors.append(replace(bank, branches=shifted(bank.branches), control=control))
    generators = [each for each in operation.generators if whole(*each.branches)]
    unfed = unfed_generators(len(operation.generators) - len(generators))
    return replace(
        operation,
        nodes=tuple(operation.nodes[k] for k in places),
        y=sp.csc_array(operation.y[places, :][:, places]),
        regulators=tuple(regulators),
        capacitors=tuple(capacitors),
        generators=tuple(replace(each, branches=shifted(each.branches)) for each in generators),
        left_out=tuple(dict.fromkeys((*operation.left_out, *unfed))),
        refused=tuple(refused),
    )
