"""Power flow of a feeder as operated: regulators and capacitors act, loads answer to their voltage.

Same interface as `BatchSolver`, but loads come one by one and not summed per node. The equations, the order
of the controls and what "converged" means are in `docs/explanation/power-flow.md`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.grid.operation import Branch, InverterCurve, Pick, Regulator, SwitchedCapacitor
from dp_powerflow.powerflow._kernels import control
from dp_powerflow.powerflow._kernels import devices as branch
from dp_powerflow.powerflow._kernels import operated as kernels
from dp_powerflow.powerflow._kernels.simd import LANES
from dp_powerflow.powerflow._kernels.solve import Check
from dp_powerflow.powerflow.batch import (
    TYPICAL_LOAD,
    Columns,
    Nodes,
    Solution,
    Solver,
    check_of,
    checked_output,
    checked_power,
    in_threads,
    refuse_bad_power,
)
from dp_powerflow.powerflow.devices import Device, VoltVarCurve, branch_arrays, devices_of
from dp_powerflow.powerflow.factor import TerminalFactors, factorise_terminals, sweeps
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

# ----------------------------------------------------------------------------------------------------------
# Arrays of the solver for a feeder as operated: factors with fixed slopes, branches, controls.


TYPICAL_STEEPNESS = 0.5
"""Share of its largest slope with which a volt-var curve is linearised: the iteration then contracts where
the curve is flat and where it is steep, however steep that is."""
_ROUGH = 1e-8
_NEVER = 1e300
_PICKS = {pick: number for number, pick in enumerate(Pick)}
_KINDS = {kind: number for number, kind in enumerate(("voltage", "kvar", "current", "time"))}
"""Numbers of the kernels, whose PICK_… and CAP_… have the same order."""


@dataclass(frozen=True, eq=False)
class OperatedArrays:
    """Everything the kernels need.

    Attributes
    ----------
    plan, branches, controls, slow : of the network, the devices with their fixed slopes, the controls, and of
        Newton's method.
    plain : the branches without slopes.
    fixed : complex (device,) power of devices that no input gives; 0 for the others [p.u.].
    rows : rows of the injected currents.
    position : (operation node,) position in the order of the factors.
    core_check, full_check : rows against which the mismatch is measured.
    slack_v : error of a measured voltage [V] per p.u. of power mismatch, at most.
    """

    plan: kernels.OperatedPlan
    branches: branch.Branches
    plain: branch.Branches
    controls: control.Controls
    slow: kernels.Slow
    fixed: ComplexArray
    rows: int
    position: IntArray
    core_check: Check
    full_check: Check
    slack_v: float


_known: WeakKeyDictionary[Feeder, dict[tuple[object, ...], OperatedArrays]] = WeakKeyDictionary()
"""Feeders that live, and what they were prepared with: a release solves its network more than once."""


def prepare_operated(
    feeder: Feeder, volt_var: VoltVarCurve | None, tolerance: float, *, file_curves: bool = True
) -> OperatedArrays:
    """Factorise a feeder as operated and lay out all arrays, which must not be changed."""
    known, choice = _known.setdefault(feeder, {}), (volt_var, tolerance, file_curves)
    if choice in known:
        return known[choice]
    if refused := feeder.as_operated.refused:
        raise PowerFlowError(
            f"the feeder cannot be solved as operated: {'; '.join(refused)}; correct that, or set "
            'controls to "frozen"',
            code="controls-not-modelled",
        )
    devices = devices_of(feeder, volt_var, file_curves=file_curves)
    pairs = {pair for device in devices for pair in device.branches}
    connected = np.array(sorted({node for pair in pairs for node in pair} - {GROUND}), dtype=np.int64)
    if np.isin(connected, feeder.slack).any():
        raise PowerFlowError("a load or generator sits on an ideal source; connect it behind an impedance")
    kept = np.union1d(connected, _measured(feeder)).astype(np.int64)
    factors = factorise_terminals(feeder, kept, sorted(pair for pair in pairs if GROUND not in pair))
    rows = np.sort(factors.position[connected])
    plain = branch_arrays(devices, factors.position, rows)
    slow = _slow(factors, plain)
    nominal = np.array([device.nominal for device in devices], dtype=np.complex128)
    fixed = nominal.copy()
    fixed[: len(feeder.loads)] = 0.0
    # The plan before it has factors.
    plan = _plan(feeder, factors, rows, slow.values, np.zeros(factors.n_core, dtype=np.complex128))
    controls = _controls(feeder, factors, devices)
    start = _nominal_deviation(plan, plain, controls, slow, nominal)
    slopes = _slopes(plan, plain, nominal, start) + _curve_slopes(plan, plain, devices)
    branches = plain._replace(constant=np.concatenate([plain.constant[:, : branch.S_0], slopes], axis=1))
    extra = slow.sign[:, None] * slopes[slow.branch]
    values = factors.factorised(slow.slots, np.ascontiguousarray(extra))
    plan = _plan(feeder, factors, rows, values, start)._replace(
        jumps=bool(_jumping(plain).any()), sags=bool((plain.constant[:, branch.LOW2] > 0.0).any())
    )
    controls = controls._replace(schur=factors.schur(values))
    core_check, full_check = [
        _check(feeder, factors, measured, rows, tolerance) for measured in (factors.core, factors.full)
    ]
    known[choice] = OperatedArrays(
        plan,
        branches,
        plain,
        controls,
        slow,
        fixed,
        len(rows),
        factors.position,
        core_check,
        full_check,
        _slack(controls, nominal, start),
    )
    return known[choice]


def _measured(feeder: Feeder) -> IntArray:
    """Nodes whose voltages some control sees."""
    operation = feeder.as_operated
    found: set[int] = set()
    for regulator in operation.regulators:
        found |= {node for pair in regulator.measured for node in pair}
    for bank in operation.capacitors:
        found |= {node for pair in bank.control.measured for node in pair}
        for probe in bank.control.probes:
            found |= {probe.node, *probe.nodes}
    return np.array(sorted(found - {GROUND} - set(feeder.slack.tolist())), dtype=np.int64)


def _check(
    feeder: Feeder, factors: TerminalFactors, measured: sp.csr_array, rows: IntArray, tolerance: float
) -> Check:
    n, r = factors.interior, factors.phases
    held = np.zeros(measured.shape[0], dtype=np.bool_)
    held[rows], held[n : n + 2 * r] = True, True
    at = np.argsort(factors.position)[np.sum(factors.position < 0) :]
    names = [feeder.as_operated.nodes[k] for k in at]
    return check_of(feeder, measured, factors.w, held, names, tolerance, paired=(n, r))


def _plan(
    feeder: Feeder, factors: TerminalFactors, rows: IntArray, values: FloatArray, start: ComplexArray
) -> kernels.OperatedPlan:
    source = np.full(factors.n_core, -1, dtype=np.int64)
    source[rows] = np.arange(len(rows))
    nominal = feeder.nominal_load
    size = max(float(np.sum(modulus(nominal) ** 2)), np.finfo(np.float64).tiny)
    return kernels.OperatedPlan(
        **sweeps(factors, values, factors.interior),
        interior=factors.interior,
        phases=factors.phases,
        source=source,
        start=start,
        weight=nominal / size,
        strict=np.array([1.0 if load.kw >= 0.0 else 0.0 for load in feeder.loads]),
        jumps=False,
        sags=False,
    )


def _slow(factors: TerminalFactors, branches: branch.Branches) -> kernels.Slow:
    slots: list[tuple[int, int, float]] = []
    for k, (a, b) in enumerate(branches.table[:, [branch.A, branch.B]].tolist()):
        ends = [(a, 1.0)] if b < 0 else [(a, 1.0), (b, -1.0)]
        slots += [(factors.slot(i, j), k, x * y) for i, x in ends for j, y in ends]
    r, core, count = factors.phases, factors.n_core, len(branches.table)
    return kernels.Slow(
        blocks=factors.blocks,
        slots=np.array([slot for slot, _, _ in slots], dtype=np.int64),
        branch=np.array([of for _, of, _ in slots], dtype=np.int64),
        sign=np.array([sign for _, _, sign in slots], dtype=np.float64),
        x=np.zeros(core, dtype=np.complex128),
        right=np.zeros(core, dtype=np.complex128),
        aim=np.zeros(count, dtype=np.complex128),
        slope=np.zeros((count, 4)),
        extra=np.zeros((len(slots), 4)),
        values=np.zeros((len(factors.blocks.col), 4)),
        place=np.zeros(core, dtype=np.int64),
        schur=np.zeros((2 * r, 2 * r, 4)),
        ratio=np.zeros(r),
        factors=np.zeros((r * r, 4)),
        constant=np.zeros((r, 2)),
    )


def _nominal_deviation(
    plan: kernels.OperatedPlan,
    branches: branch.Branches,
    controls: control.Controls,
    slow: kernels.Slow,
    nominal: ComplexArray,
) -> ComplexArray:
    """Deviation from no load at nominal load and neutral taps, zero if the feeder does not bear it."""
    rows = int(branches.table[:, [branch.ROW_A, branch.ROW_B]].max(initial=-1)) + 1
    work = branch.new_work(len(plan.w_re), plan.phases, rows, len(branches.table), len(nominal))
    work.a[work.s_re : work.s_im, 0], work.a[work.s_im : work.i_re, 0] = nominal.real, nominal.imag
    work.a[work.t : work.k_re] = 1.0
    core = plan.interior + 2 * plan.phases
    if not kernels.newton_at_taps((plan, branches, controls.outflow, slow), work, 0, _ROUGH):
        return np.zeros(core, dtype=np.complex128)
    found = np.empty(core, dtype=np.complex128)
    found.real, found.imag = work.a[work.x_re :][:core, 0], work.a[work.x_im :][:core, 0]
    return found


def _slopes(
    plan: kernels.OperatedPlan, branches: branch.Branches, nominal: ComplexArray, start: ComplexArray
) -> FloatArray:
    """−∂i/∂V of every branch at a typical load."""
    slopes = np.zeros((len(branches.table), 4))
    if not start.any():
        return slopes
    v = plan.w_re[: len(start)] + 1j * plan.w_im[: len(start)] + TYPICAL_LOAD * start
    jumping, table = _jumping(branches), branches.table.copy()
    table[jumping, branch.KIND] = branch.IMPEDANCE
    level, branches = np.where(jumping, 1.0, TYPICAL_LOAD), branches._replace(table=table)
    for k, (a, b, device) in enumerate(table[:, [branch.A, branch.B, branch.OF]].tolist()):
        across = v[a] - (v[b] if b >= 0 else 0.0)
        branch.branch_slope(branches, k, complex(level[k] * nominal[device]), complex(across), 1.0, slopes)
    return slopes


def _jumping(branches: branch.Branches) -> BoolArray:
    """Branches whose current jumps at a limit of voltage."""
    kind, marks = branches.table[:, branch.KIND], branches.constant[:, branch.POWERS]
    return np.asarray((kind == branch.GENERAL) & (marks >= branch.ABRUPT))


def _curve_slopes(
    plan: kernels.OperatedPlan, branches: branch.Branches, devices: tuple[Device, ...]
) -> FloatArray:
    """−∂i/∂V that volt-var adds to its branches, at the no-load voltage and a typical steepness."""
    slopes = np.zeros((len(branches.table), 4))
    steepest = np.abs(branches.slopes).max(axis=1, initial=0.0) * TYPICAL_STEEPNESS
    straight = branches._replace(
        knots=np.repeat([[0.0, 2.0]], len(steepest), axis=0), base=steepest, slopes=-steepest[:, None]
    )
    v = plan.w_re + 1j * plan.w_im
    for k, (a, b, of, kind) in enumerate(
        branches.table[:, [branch.A, branch.B, branch.OF, branch.KIND]].tolist()
    ):
        if kind not in (branch.TURNED, branch.ADDED):
            continue
        across = complex(v[a] - (v[b] if b >= 0 else 0.0))
        across /= abs(across) * float(np.sqrt(branches.constant[k, branch.SCALE]))
        power = complex(0.0, devices[of].rating) if kind == branch.ADDED else complex(devices[of].rating)
        branch.branch_slope(straight, k, power, across, 1.0, slopes)
    return slopes


def _slack(controls: control.Controls, nominal: ComplexArray, start: ComplexArray) -> float:
    """How far a measured voltage may be off [V] per p.u. of mismatch, were it the same at every branch.

    The nominal load moves the voltages by `start`; mismatches move them in proportion.
    """
    if not len(controls.regulator):
        return 0.0
    total = float(np.sum(modulus(nominal)))
    spread = len(nominal) / max(total, np.finfo(np.float64).tiny)
    moved = float(modulus(start).max(initial=0.0)) * spread
    drop = np.sqrt(controls.regulator[:, 4] ** 2 + controls.regulator[:, 5] ** 2)
    per_control = controls.regulator[:, 2] * moved + drop * controls.regulator[:, 3] * len(nominal)
    return float(per_control.max())


# ------------------------------------------------------------------------------- controls


def _controls(feeder: Feeder, factors: TerminalFactors, devices: tuple[Device, ...]) -> control.Controls:
    operation, position = feeder.as_operated, factors.position
    regulators, banks = operation.regulators, operation.capacitors
    seen = [item.measured for item in regulators] + [bank.control.measured for bank in banks]
    ends = [_oriented(pair) for pairs in seen for pair in pairs]
    picks = [item.pick for item in regulators] + [bank.control.pick for bank in banks]
    first_bank = len(devices) - len(banks)
    first_phase = np.cumsum([0, *(len(item.phases) for item in regulators)])
    rows = [
        [*_regulator(feeder, item), float(first_phase[k] + item.compensated)]
        for k, item in enumerate(regulators)
    ]
    bank_rows = [
        [*_capacitor(feeder, bank), float(first_bank + k), devices[first_bank + k].nominal.imag]
        for k, bank in enumerate(banks)
    ]
    return control.Controls(
        regulator=np.array(rows, dtype=np.float64).reshape(-1, control.REGULATOR_COLUMNS),
        capacitor=np.array(bank_rows, dtype=np.float64).reshape(-1, control.CAPACITOR_COLUMNS),
        control_of=_integers([k for k, item in enumerate(regulators) for _ in item.phases]),
        pick=_integers([_PICKS[pick] for pick in picks]),
        seen_ptr=_integers(np.cumsum([0, *(len(pairs) for pairs in seen)])),
        seen=_integers([[position[a], position[b] if b != GROUND else -1] for a, b in ends]).reshape(-1, 2),
        probe_ptr=_integers(np.cumsum([0, *(len(bank.control.probes) for bank in banks)])),
        **_probes(feeder, factors),
        schur=np.zeros((2 * factors.phases, 2 * factors.phases, 4)),
        outflow=factors.outflow,
        interior=factors.interior,
    )


def _integers(values: ArrayLike) -> IntArray:
    return np.array(values, dtype=np.int64)


def _probes(feeder: Feeder, factors: TerminalFactors) -> dict[str, Any]:
    """Measured conductors (node, first entry, last entry), their currents at no load, and their entries."""
    operation, position = feeder.as_operated, factors.position
    v = np.zeros(len(operation.nodes), dtype=np.clongdouble)
    v[position >= 0] = factors.w[position[position >= 0]]
    v[feeder.slack] = feeder.v_slack
    table, no_load, entries, at = [], [], [], list[int]()
    for probe in (probe for bank in operation.capacitors for probe in bank.control.probes):
        first, current = len(at), np.clongdouble(0.0)
        for node, value in zip(probe.nodes, probe.coefficients, strict=True):
            current += np.clongdouble(value) * v[node]
            if position[node] >= 0:
                at.append(int(position[node]))
                entries.append((value.real, value.imag))
        table.append((position[probe.node], first, len(at)))
        no_load.append((float(current.real), float(current.imag)))
    return {
        "probe": _integers(table).reshape(-1, 3),
        "no_load": np.array(no_load, dtype=np.float64).reshape(-1, 2),
        "entry_at": _integers(at),
        "entry": np.array(entries, dtype=np.float64).reshape(-1, 2),
    }


def _oriented(pair: Branch) -> Branch:
    return pair if pair[0] != GROUND else (pair[1], GROUND)


def _amperes(feeder: Feeder, node: int, ratio: float) -> float:
    """Measured amperes of a current of 1 p.u. at a node."""
    return feeder.base_mva * KW_PER_MW / float(feeder.base_kv[node]) / ratio


def _regulator(feeder: Feeder, regulator: Regulator) -> list[float]:
    """A row of `Controls.regulator`; the columns from `REVERSE` on are for power that flows backwards."""
    seen, outer = _oriented(regulator.measured[0])[0], regulator.phases[regulator.compensated][1]
    back = regulator.reverse
    backwards = [np.inf, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    if back is not None:
        threshold = back.threshold_kw / (feeder.base_mva * KW_PER_MW)
        neutral = -1.0 if back.neutral_delay_s is None else back.neutral_delay_s
        drop = (back.drop_r_v, back.drop_x_v)
        backwards = [threshold, back.target_v, back.band_v / 2.0, *drop, back.delay_s, neutral]
    return [
        regulator.target_v,
        regulator.band_v / 2.0,
        float(feeder.base_kv[seen]) * 1000.0 / regulator.pt_ratio,
        _amperes(feeder, outer, regulator.ct_primary_a),
        regulator.drop_r_v,
        regulator.drop_x_v,
        regulator.delay_s,
        regulator.step,
        regulator.winding_v / regulator.pt_ratio * regulator.step,
        float(round((regulator.highest - 1.0) / regulator.step)),
        float(round((1.0 - regulator.lowest) / regulator.step)),
        float(regulator.most_steps),
        -1.0 if regulator.opposite else 1.0,
        _NEVER if regulator.limit_v is None else regulator.limit_v,
        *backwards,
    ]


def _capacitor(feeder: Feeder, bank: SwitchedCapacitor) -> list[float]:
    """A row of `Controls.capacitor`."""
    own = bank.control
    seen = _oriented(own.measured[0])[0] if own.measured else bank.branches[0][0]
    return [
        own.on,
        own.off,
        own.delay_on_s,
        own.delay_off_s,
        float(feeder.base_kv[seen]) * 1000.0 / own.pt_ratio,
        _amperes(feeder, own.probes[0].node if own.probes else seen, own.ct_ratio),
        *(own.override_v or (-_NEVER, _NEVER)),
        feeder.base_mva * KW_PER_MW,
        float(_KINDS[own.kind]),
        float(_PICKS[own.pick_current]),
        own.dead_time_s,
    ]


def frozen_ratios(feeder: Feeder) -> FloatArray:
    """(regulator,) ratios at which the taps of a feeder stand."""
    given = {(tap.transformer.lower(), tap.winding): tap.ratio for tap in feeder.taps}
    regulators = feeder.as_operated.regulators
    found = [given.get((each.transformer.lower(), each.winding), 1.0) for each in regulators]
    return np.array(found, dtype=np.float64)


ControlMode = Literal["frozen", "snapshot", "day"]
"""Taps stay where the feeder has them; every snapshot starts from the table of taps; every day does, and
keeps its taps from step to step."""


def days_at_once(controls: ControlMode) -> int:
    """Days that cost hardly more than one, as they are solved side by side; 1 where days are no unit."""
    return LANES if controls == "day" else 1


NodalPower = tuple[IntArray, ComplexArray]
"""Nodes in ascending order, and complex (snapshot, node) power [p.u.]."""
LEVELS, PER_NOMINAL = 25, kernels.PER_NOMINAL
"""Load levels of the table of taps, and those between no load and nominal load."""
_FORECAST = 1e-2
"""Square of the share of the tolerance that the foretold mismatch may have for a sweep to be the last."""
_TASK, _MOST_DAYS = 512, 8 * LANES
"""Snapshots of one task of a thread, and days if those are more."""


@dataclass(frozen=True, eq=False)
class OperatedSolution(Solution):
    """Voltages of a batch of snapshots, and what the controls did.

    Attributes
    ----------
    taps : (snapshot, regulator) steps away from neutral.
    capacitors : (snapshot, bank) 1 closed, 0 open.
    rounds : (snapshot,) times that controls moved.
    locked : (snapshot,) whether a control hunted and was locked.
    reversed : (snapshot,) whether a reversible regulator worked by its settings for power backwards.
    """

    taps: IntArray
    capacitors: IntArray
    rounds: IntArray
    locked: BoolArray
    reversed: BoolArray


class OperatedSolver(Solver):
    """Solves batches of snapshots, or of days, of one feeder as operated, on all cores.

    Parameters
    ----------
    feeder : with its `operation`; without one, nothing moves and loads still answer to the voltage.
    controls : whether taps and capacitors move, and what they start from.
    steps : snapshots of one day; with "day" a batch is a whole number of days.
    tolerance : largest power mismatch [p.u.] of a converged snapshot; where rounding hides more, 0.1 W at
        most.
    threads : None for one per core.
    volt_var : curve of every PV system, instead of the file's.
    file_curves : whether PV systems follow the curves of the file where `volt_var` names none.

    Attributes
    ----------
    first_states : (level, control) table that taps and capacitors start from, regulators first.
    """

    columns: Columns = "elements"

    def __init__(
        self,
        feeder: Feeder,
        *,
        controls: ControlMode = "snapshot",
        steps: int = 1,
        tolerance: float = 1e-8,
        threads: int | None = None,
        volt_var: VoltVarCurve | None = None,
        file_curves: bool = True,
    ) -> None:
        super().__init__(
            feeder,
            tolerance,
            threads,
            controls=controls,
            steps=steps,
            volt_var=volt_var,
            file_curves=file_curves,
        )
        if controls not in ("frozen", "snapshot", "day"):
            raise PowerFlowError(f"controls must be 'frozen', 'snapshot' or 'day', not {controls!r}")
        if steps < 1:
            raise PowerFlowError("a day has at least one step")
        self.controls, self._steps = controls, steps
        self.volt_var, self._file_curves = volt_var, file_curves
        self._arrays = prepare_operated(feeder, volt_var, self._tolerance, file_curves=file_curves)
        self._memory = threading.local()
        self.first_states = self._frozen_states() if controls == "frozen" else self._table()

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> OperatedSolution:
        """Voltages of every snapshot.

        Parameters
        ----------
        load : complex (snapshot, load) power drawn at rated voltage [p.u.], in the order of `feeder.loads`.
        generation : complex (snapshot, PV system) power injected before any volt-var [p.u.]; of systems with
            a curve the active part counts.
        nodes : "retained", or "all" for every energised node; then the mismatch is measured at all of them.
        out : complex (snapshot, node) to write into.
        """
        steps = self._steps if self.controls == "day" else 1
        if len(load) % steps:
            raise PowerFlowError(f"{len(load)} snapshots are no whole number of days of {steps} steps")
        return self._run(load, generation, nodes, out, self.first_states, steps)

    def solve_from(
        self,
        states: IntArray,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
    ) -> ComplexArray:
        """Voltages of snapshots with controls that start from the given states; "frozen" ones stay there.

        Parameters
        ----------
        states : integer (snapshot, control) taps of regulators, then states of capacitors. Rows that follow
            each other and are equal are solved together, so sort them.
        load, generation, nodes : as of `solve`.

        Returns
        -------
        Complex (snapshot, node) [p.u.], NaN where there is no solution.
        """
        v = np.empty((len(load), len(self._asked(nodes))), dtype=np.complex128)
        new = np.flatnonzero((states[1:] != states[:-1]).any(axis=1)) + 1
        edges = [0, *new.tolist(), len(load)] if len(load) else [0]
        for first, last in pairwise(edges):
            rows = slice(first, last)
            injected = None if generation is None else generation[rows]
            self._run(load[rows], injected, nodes, v[rows], np.ascontiguousarray(states[first:last][:1]), 1)
        return v

    def device_powers(
        self, load: ComplexArray, generation: ComplexArray | None, solution: OperatedSolution
    ) -> tuple[NodalPower, NodalPower]:
        """Power that loads draw, and that PV systems and generators inject, at the nodes that have any.

        Parameters
        ----------
        load, generation : as given to `solve`.
        solution : of all nodes, at whose voltages the powers are [p.u.].
        """
        feeder, a, n = self._feeder, self._arrays, len(load)
        if solution.v.shape[1] != len(feeder.energised):
            raise PowerFlowError('powers need the voltages of all nodes; solve with nodes="all"')
        injected = self._injected(generation, n)
        last, device = len(a.fixed) - len(feeder.as_operated.capacitors), a.plain.table[:, branch.OF]
        loads, at = np.asarray(load).shape[1], a.position[feeder.energised]
        columns = np.full((3, len(a.position)), -1, dtype=np.int64)
        columns[0, at] = np.arange(len(at))
        nodes = []
        for of, column in (device < loads, columns[1]), ((device >= loads) & (device < last), columns[2]):
            nodes.append(feeder.energised[np.isin(at, a.plain.table[of][:, [branch.A, branch.B]])])
            column[a.position[nodes[-1]]] = np.arange(len(nodes[-1]))
        drawn, fed = (np.zeros((n, len(each)), dtype=np.complex128) for each in nodes)
        given = (np.asarray(load), injected if len(injected) else np.empty((n, 0), dtype=np.complex128))
        branch.nodal_powers(
            a.plain, (columns[0], columns[1], columns[2]), (*given, a.fixed), solution.v, (drawn, fed), last
        )
        return (nodes[0], drawn), (nodes[1], fed)

    # ---------------------------------------------------------------------------------- inside

    def _run(
        self,
        load: ComplexArray,
        generation: ComplexArray | None,
        nodes: Nodes,
        out: ComplexArray | None,
        first: IntArray,
        steps: int,
    ) -> OperatedSolution:
        feeder, arrays, acting = self._feeder, self._arrays, self.controls != "frozen"
        load = checked_power(load, len(feeder.loads), "load", "load of the feeder")
        n = len(load)
        injected = self._injected(generation, n)
        wanted = self._asked(nodes)
        v = checked_output((n, len(wanted)), out)
        regulators = len(feeder.as_operated.regulators)
        count = regulators + len(feeder.as_operated.capacitors)
        jobs = kernels.Jobs(
            load=load.view(np.float64),
            generation=injected.view(np.float64),
            fixed=arrays.fixed,
            out=v.view(np.float64),
            targets=arrays.position[wanted],
            states=np.zeros((n, count), dtype=np.int64),
            result=np.zeros((n, kernels.RESULT_COLUMNS), dtype=np.int64),
            mismatch=np.full(n, np.nan),
            first_states=first,
            steps=steps,
            acting=acting and count > 0,
            tolerance=self._tolerance,
            slack_v=arrays.slack_v,
            forecast=_FORECAST,
        )
        check = arrays.core_check if nodes == "retained" else arrays.full_check
        self._share(jobs, check, np.arange(n // steps))
        # Where the last sweep was foretold too kindly, the job is done again without foretelling.
        unsure = (jobs.result[:, kernels.CONVERGED] == 0) & (jobs.result[:, kernels.GIVEN_UP] == 0)
        again = np.unique(np.flatnonzero(unsure) // steps)
        if len(again):
            jobs.result[:, kernels.ROUNDS].reshape(-1, steps)[again] = 0
            self._share(jobs._replace(forecast=0.0), check, again)
        result = jobs.result
        refuse_bad_power(result[:, kernels.STATUS])
        return OperatedSolution(
            v,
            result[:, kernels.CONVERGED] == 1,
            result[:, kernels.ITERATIONS],
            jobs.mismatch,
            jobs.states[:, :regulators],
            jobs.states[:, regulators:],
            result[:, kernels.ROUNDS],
            result[:, kernels.LOCKED] == 1,
            result[:, kernels.REVERSED] == 1,
        )

    def _share(self, jobs: kernels.Jobs, check: Check, chosen: IntArray) -> None:
        """Solve the chosen jobs on threads."""
        a = self._arrays
        network = (a.plan, a.branches, a.plain, a.controls, check)
        # Lanes of a task go idle one after the other at its end: as long a task as keeps all threads busy.
        share = -(-len(chosen) // self._threads)
        task = max(_TASK // jobs.steps, min(share, _MOST_DAYS))
        in_threads(
            lambda first: kernels.run_jobs(chosen[first : first + task], network, self._own_memory(), jobs),
            range(0, len(chosen), task),
            self._threads,
        )

    def _own_memory(self) -> kernels.Memory:
        found: kernels.Memory | None = getattr(self._memory, "arrays", None)
        if found is None:
            a = self._arrays
            count = len(a.controls.regulator) + len(a.controls.capacitor)
            size = (len(a.plan.w_re), a.plan.phases, a.rows, len(a.branches.table), len(a.fixed))
            tap, way, turns, want, back, flip = np.zeros((6, count, LANES), dtype=np.int64)
            found = (
                branch.new_work(*size),
                branch.new_work(*size),
                control.States(tap, way, turns, want, back, flip, np.zeros((count, LANES))),
                kernels.new_cache(a.plan, a.controls),
                kernels.Lanes(*np.zeros((8, LANES), dtype=np.int64)),
                a.slow.for_thread(),
            )
            self._memory.arrays = found
        return found

    def _injected(self, generation: ComplexArray | None, n: int) -> ComplexArray:
        """Active power of every PV system, and what its control makes reactive power of."""
        systems = self._feeder.pv
        if generation is None or not systems:
            return np.empty((0, 0), dtype=np.complex128)
        of = "PV system of the feeder"
        power = checked_power(generation, len(systems), "generation", of).copy()
        if len(power) != n:
            raise PowerFlowError(f"generation has {len(power)} snapshots but load has {n}")
        if self.volt_var is not None:
            power.imag = 0.0
            return power
        base_kva = self._feeder.base_mva * 1000.0
        for k, pv in enumerate(systems):
            active = power[:, k].real
            rated = pv.kva / base_kva
            if self._file_curves and isinstance(pv.curve, InverterCurve):
                room = np.sqrt(np.maximum(rated * rated - active * active, 0.0))
                power[:, k].imag = room if pv.curve.reference == "available" else rated
        return power

    def _frozen_states(self) -> IntArray:
        """Taps where the feeder has them, capacitors as the file has them."""
        operation = self._feeder.as_operated
        at = zip(operation.regulators, frozen_ratios(self._feeder).tolist(), strict=True)
        states = [round((ratio - 1.0) / regulator.step) for regulator, ratio in at]
        states += [int(bank.closed) for bank in operation.capacitors]
        return np.array([states], dtype=np.int64).reshape(1, -1)

    def _table(self) -> IntArray:
        """Where controls settle at multiples of the nominal load, from neutral taps."""
        operation = self._feeder.as_operated
        neutral = [0] * len(operation.regulators) + [int(bank.closed) for bank in operation.capacitors]
        start = np.array([neutral], dtype=np.int64).reshape(1, -1)
        if not neutral:
            return start
        level = (np.arange(LEVELS) + 0.5) / PER_NOMINAL
        load = level[:, None] * self._feeder.nominal_load[None, :]
        found = self._run(np.ascontiguousarray(load), None, "retained", None, start, 1)
        states = np.concatenate([found.taps, found.capacitors], axis=1)
        for k in range(LEVELS):
            if not found.converged[k]:
                states[k] = states[k - 1] if k else start[0]
        return np.ascontiguousarray(states)
