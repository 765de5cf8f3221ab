"""How a feeder is operated: what moves its taps and capacitors, and how its loads answer to the voltage.

A `Feeder` by itself is a frozen frame: taps fixed, every load constant power at its node. Its `Operation` is the
same feeder with nothing frozen. Every regulating winding stands at neutral tap and ends at an extra *inner* node;
an ideal ratio leads from there to the node that the file names (v_outer = ratio·v_inner). Capacitors that a
control switches are left out of the admittances and stated one by one. All of it is PRIVATE.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import scipy.sparse as sp

Branch = tuple[int, int]
"""Two nodes between which something is connected; the second may be `GROUND`."""
Zip = tuple[float, float, float]
"""Shares of constant impedance, constant current and constant power; they add up to 1 at rated voltage."""


@dataclass(frozen=True)
class Response:
    """How the power that an element draws follows from u, its voltage over the rated one.

    Within `lowest` ≤ u ≤ `highest` active power is p·(z·u² + i·u + c) with the shares of `active`, or p·u^a with
    the first of `exponents`; reactive power likewise. Above `highest` it is a constant impedance that draws at
    `highest` what the law says there. Below `lowest` the current falls linearly in u until at `cut` it is that of
    the constant impedance which draws p + jq at rated voltage, and it is that impedance from there on. An element
    of constant impedance alone has no such limits.
    """

    active: Zip = (0.0, 0.0, 1.0)
    reactive: Zip = (0.0, 0.0, 1.0)
    exponents: tuple[float, float] | None = None
    lowest: float = 0.0
    highest: float = 10.0
    cut: float = 0.0

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
    """Which of several measured phases a control looks at."""

    ONE = "one"
    HIGHEST = "highest"
    LOWEST = "lowest"
    MEAN = "mean"


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
    target_v, band_v : voltage that is held and the width of its band, behind the voltage transformer [V].
    pt_ratio : of the voltage transformer.
    ct_primary_a : primary rating of the current transformer [A].
    drop_r_v, drop_x_v : line-drop compensation at rated current [V].
    winding_v : rated voltage of the winding's coil [V], which ratios are relative to.
    delay_s : time after which it acts; in one round only those with the shortest delay act.
    most_steps : tap steps that one action may take at most.
    lowest, highest : range of the ratio.
    steps : number of tap steps in the range.
    opposite : whether the winding that is moved is not the one that is measured: it moves the other way.
    limit_v : voltage behind the transformer that is never to be exceeded; None without such a limit.
    reverse_kw : active power backwards through the winding beyond which a reversible control would act by
        other settings [kW], None for one that is not reversible. The solver does not switch; it marks such
        snapshots.
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
    reverse_kw: float | None = None

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
    """What switches a capacitor.

    Attributes
    ----------
    kind : what is compared with `on` and `off`: voltage [V], reactive power [kvar] into the monitored element,
        its current [A], or the hour of the day.
    measured : branches whose voltages are seen; `pick` says which counts.
    probes : conductors of the monitored element, for kvar and current.
    pt_ratio, ct_ratio : what voltages and currents are divided by.
    on, off : settings at which it closes and opens.
    delay_on_s, delay_off_s : after which it acts.
    override_v : voltages below which it always closes and above which it always opens [V], None without.
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
    nodes : names; those of the feeder in its order, slack nodes included, then the inner nodes.
    y : sparse complex (node, node) [p.u.], without loads and generation.
    regulators, capacitors, generators : in the order of the file.
    left_out : in words, what of the file is neither modelled nor replaced by anything; it is said on the
        certificate.
    """

    nodes: tuple[str, ...]
    y: sp.csc_array
    regulators: tuple[Regulator, ...] = ()
    capacitors: tuple[SwitchedCapacitor, ...] = ()
    generators: tuple[Generator, ...] = ()
    left_out: tuple[str, ...] = ()
