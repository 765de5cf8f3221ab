"""Arrays of the solver for a feeder as operated: factors with fixed slopes, branches, controls."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import GROUND, Feeder
from dp_powerflow.grid.operation import Branch, Pick, Regulator, ReverseSettings, SwitchedCapacitor
from dp_powerflow.powerflow._kernels.control import (
    CAP_CURRENT,
    CAP_KVAR,
    CAP_TIME,
    CAP_VOLTAGE,
    CAPACITOR_COLUMNS,
    PICK_HIGHEST,
    PICK_LOWEST,
    PICK_MEAN,
    PICK_ONE,
    REGULATOR_COLUMNS,
    Controls,
)
from dp_powerflow.powerflow._kernels.devices import (
    ABRUPT,
    ADDED,
    GENERAL,
    IMPEDANCE,
    KIND,
    LOW2,
    OF,
    POWERS,
    ROW_A,
    ROW_B,
    S_0,
    SCALE,
    TURNED,
    A,
    B,
    Branches,
    OperatedPlan,
    new_work,
)
from dp_powerflow.powerflow._kernels.newton_operated import Slow, branch_slope, newton_at_taps
from dp_powerflow.powerflow._kernels.solve import Check
from dp_powerflow.powerflow.devices import (
    Device,
    Layout,
    VoltVarCurve,
    branch_arrays,
    coupled_nodes,
    device_nodes,
    devices_of,
    nominal_powers,
)
from dp_powerflow.powerflow.factor import Rows, measured_rows
from dp_powerflow.powerflow.terminals import TerminalFactors, factorise_terminals
from dp_powerflow.units import KW_PER_MW, BoolArray, ComplexArray, FloatArray, IntArray

TYPICAL_LOAD = 0.6
"""Share of the nominal load at which the loads are linearised."""
TYPICAL_STEEPNESS = 0.5
"""Share of its largest slope with which a volt-var curve is linearised: the iteration then contracts where
the curve is flat and where it is steep, however steep that is."""
_ROUGH = 1e-8
_NEVER = 1e300
_PICKS = {Pick.ONE: PICK_ONE, Pick.HIGHEST: PICK_HIGHEST, Pick.LOWEST: PICK_LOWEST, Pick.MEAN: PICK_MEAN}
_KINDS = {"voltage": CAP_VOLTAGE, "kvar": CAP_KVAR, "current": CAP_CURRENT, "time": CAP_TIME}


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

    plan: OperatedPlan
    branches: Branches
    plain: Branches
    controls: Controls
    slow: Slow
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
    """Factorise a feeder as operated and lay out all arrays, which nobody may change."""
    known, choice = _known.setdefault(feeder, {}), (volt_var, tolerance, file_curves)
    if choice not in known:
        known[choice] = _prepared(feeder, volt_var, tolerance, file_curves=file_curves)
    return known[choice]


def _prepared(
    feeder: Feeder, volt_var: VoltVarCurve | None, tolerance: float, *, file_curves: bool
) -> OperatedArrays:
    operation = feeder.as_operated
    if operation.refused:
        raise PowerFlowError(
            f"the feeder cannot be solved as operated: {'; '.join(operation.refused)}; mend that, or set "
            'controls to "frozen"',
            code="controls-not-modelled",
        )
    devices = devices_of(feeder, volt_var, file_curves=file_curves)
    connected = device_nodes(devices)
    if np.isin(connected, feeder.slack).any():
        raise PowerFlowError("a load or generator sits on an ideal source; connect it behind an impedance")
    kept = np.union1d(connected, _measured(feeder)).astype(np.int64)
    factors = factorise_terminals(feeder, kept, coupled_nodes(devices))
    layout = Layout(factors.position, np.sort(factors.position[connected]))
    plain = branch_arrays(devices, layout)
    slow = _slow(factors, plain)
    nominal = nominal_powers(devices)
    fixed = nominal.copy()
    fixed[: len(feeder.loads)] = 0.0
    plan = _plan(feeder, factors, layout)
    controls = _controls(feeder, factors, devices)
    start = _nominal_deviation(plan, plain, controls, slow, nominal)
    slopes = _slopes(plan, plain, nominal, start) + _curve_slopes(plan, plain, devices)
    branches = plain._replace(constant=np.concatenate([plain.constant[:, :S_0], slopes], axis=1))
    extra = slow.sign[:, None] * slopes[slow.branch]
    values = factors.factorised(slow.slots, np.ascontiguousarray(extra))
    plan = _with_factors(plan, factors, values)._replace(
        start=start, jumps=bool(_jumping(plain).any()), sags=bool((plain.constant[:, LOW2] > 0.0).any())
    )
    controls = controls._replace(schur=factors.schur(values))
    return OperatedArrays(
        plan,
        branches,
        plain,
        controls,
        slow,
        fixed,
        len(layout.rows),
        factors.position,
        _check(feeder, factors, factors.core, layout, tolerance),
        _check(feeder, factors, factors.full, layout, tolerance),
        _slack(controls, nominal, start),
    )


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


def _check(feeder: Feeder, factors: TerminalFactors, rows: Rows, layout: Layout, tolerance: float) -> Check:
    n, r, size = factors.interior, factors.phases, len(rows.ptr) - 1
    held = np.zeros(size, dtype=np.bool_)
    held[layout.rows], held[n : n + 2 * r] = True, True
    at = np.argsort(factors.position)[np.sum(factors.position < 0) :]
    names = [feeder.as_operated.nodes[k] for k in at]
    rows, floor = measured_rows(feeder, rows, factors.w[:size], held, names)
    floor[n + r : n + 2 * r] += floor[n : n + r]
    return Check(rows.ptr, rows.col, rows.re, rows.im, 1.0 / np.maximum(tolerance, floor) ** 2)


def _plan(feeder: Feeder, factors: TerminalFactors, layout: Layout) -> OperatedPlan:
    """The plan before it has factors."""
    none, empty = np.zeros(1, dtype=np.int64), np.zeros((0, 4))
    source = np.full(factors.n_core, -1, dtype=np.int64)
    source[layout.rows] = np.arange(len(layout.rows))
    nominal = feeder.nominal_load
    size = max(float(np.sum(modulus(nominal) ** 2)), np.finfo(np.float64).tiny)
    return OperatedPlan(
        interior=factors.interior,
        phases=factors.phases,
        lower_ptr=none,
        lower_col=none,
        lower=empty,
        upper_ptr=none,
        upper_col=none,
        upper=empty,
        pivot=empty,
        w_re=factors.w.real.copy(),
        w_im=factors.w.imag.copy(),
        source=source,
        start=np.zeros(factors.n_core, dtype=np.complex128),
        weight=nominal / size,
        strict=np.array([1.0 if load.kw >= 0.0 else 0.0 for load in feeder.loads]),
        jumps=False,
        sags=False,
    )


def _with_factors(plan: OperatedPlan, factors: TerminalFactors, values: FloatArray) -> OperatedPlan:
    blocks, n, n_core = factors.blocks, factors.interior, factors.n_core
    row = np.repeat(np.arange(n_core), np.diff(blocks.ptr))
    below = (blocks.col < row) & (blocks.col < n)
    above = (blocks.col > row) & (row < n)
    recover, begin = factors.recover, int(factors.recover.ptr[n_core])
    own = np.stack([recover.re, -recover.im, recover.im, recover.re], axis=1)[begin:]
    lower_ptr = _pointers(row[below], n_core)
    return plan._replace(
        lower_ptr=np.concatenate([lower_ptr, lower_ptr[-1] + recover.ptr[n_core + 1 :] - begin]),
        lower_col=np.concatenate([blocks.col[below], recover.col[begin:]]),
        lower=np.concatenate([values[below], own]),
        upper_ptr=_pointers(row[above], n),
        upper_col=blocks.col[above],
        upper=np.ascontiguousarray(values[above]),
        pivot=np.ascontiguousarray(values[blocks.diagonal[:n]]),
    )


def _pointers(row: IntArray, n: int) -> IntArray:
    counts = np.bincount(row, minlength=n) if len(row) else np.zeros(n, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _slow(factors: TerminalFactors, branches: Branches) -> Slow:
    slots: list[tuple[int, int, float]] = []
    for k, (a, b) in enumerate(branches.table[:, [A, B]].tolist()):
        slots.append((factors.slot(a, a), k, 1.0))
        if b >= 0:
            slots += [
                (factors.slot(b, b), k, 1.0),
                (factors.slot(a, b), k, -1.0),
                (factors.slot(b, a), k, -1.0),
            ]
    r, core, count = factors.phases, factors.n_core, len(branches.table)
    return Slow(
        blocks=factors.blocks,
        slots=np.array([slot for slot, _, _ in slots], dtype=np.int64),
        branch=np.array([branch for _, branch, _ in slots], dtype=np.int64),
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
        factors=np.zeros((1, 4 * r * r)),
        constant=np.zeros((r, 2)),
    )


def _nominal_deviation(
    plan: OperatedPlan, branches: Branches, controls: Controls, slow: Slow, nominal: ComplexArray
) -> ComplexArray:
    """Deviation from no load at nominal load and neutral taps, zero if the feeder does not bear it."""
    rows = int(branches.table[:, [ROW_A, ROW_B]].max(initial=-1)) + 1
    work = new_work(len(plan.w_re), plan.phases, rows, len(branches.table), len(nominal))
    work.a[work.s_re : work.s_im, 0], work.a[work.s_im : work.i_re, 0] = nominal.real, nominal.imag
    work.a[work.t : work.k_re] = 1.0
    core = plan.interior + 2 * plan.phases
    if not newton_at_taps((plan, branches, controls.outflow, slow), work, 0, _ROUGH):
        return np.zeros(core, dtype=np.complex128)
    found = np.empty(core, dtype=np.complex128)
    found.real, found.imag = work.a[work.x_re :][:core, 0], work.a[work.x_im :][:core, 0]
    return found


def _slopes(plan: OperatedPlan, branches: Branches, nominal: ComplexArray, start: ComplexArray) -> FloatArray:
    """−∂i/∂V of every branch at a typical load."""
    slopes = np.zeros((len(branches.table), 4))
    if not start.any():
        return slopes
    v = plan.w_re[: len(start)] + 1j * plan.w_im[: len(start)] + TYPICAL_LOAD * start
    jumping, table = _jumping(branches), branches.table.copy()
    table[jumping, KIND] = IMPEDANCE
    level, branches = np.where(jumping, 1.0, TYPICAL_LOAD), branches._replace(table=table)
    for k, (a, b, device) in enumerate(table[:, [A, B, OF]].tolist()):
        across = v[a] - (v[b] if b >= 0 else 0.0)
        branch_slope(branches, k, complex(level[k] * nominal[device]), complex(across), 1.0, slopes)
    return slopes


def _jumping(branches: Branches) -> BoolArray:
    """Branches whose current jumps at a limit of voltage."""
    kind, marks = branches.table[:, KIND], branches.constant[:, POWERS]
    return np.asarray((kind == GENERAL) & (marks >= ABRUPT))


def _curve_slopes(plan: OperatedPlan, branches: Branches, devices: tuple[Device, ...]) -> FloatArray:
    """−∂i/∂V that volt-var adds to its branches, at the no-load voltage and a typical steepness."""
    slopes = np.zeros((len(branches.table), 4))
    steepest = np.abs(branches.slopes).max(axis=1, initial=0.0) * TYPICAL_STEEPNESS
    straight = branches._replace(
        knots=np.repeat([[0.0, 2.0]], len(steepest), axis=0), base=steepest, slopes=-steepest[:, None]
    )
    v = plan.w_re + 1j * plan.w_im
    for k, (a, b, of, kind) in enumerate(branches.table[:, [A, B, OF, KIND]].tolist()):
        if kind not in (TURNED, ADDED):
            continue
        across = complex(v[a] - (v[b] if b >= 0 else 0.0))
        across /= abs(across) * float(np.sqrt(branches.constant[k, SCALE]))
        power = complex(0.0, devices[of].rating) if kind == ADDED else complex(devices[of].rating)
        branch_slope(straight, k, power, across, 1.0, slopes)
    return slopes


def _slack(controls: Controls, nominal: ComplexArray, start: ComplexArray) -> float:
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


def _controls(feeder: Feeder, factors: TerminalFactors, devices: tuple[Device, ...]) -> Controls:
    operation, position = feeder.as_operated, factors.position
    seen = [regulator.measured for regulator in operation.regulators]
    seen += [bank.control.measured for bank in operation.capacitors]
    ends = [_oriented(pair) for pairs in seen for pair in pairs]
    picks = [_PICKS[regulator.pick] for regulator in operation.regulators]
    picks += [_PICKS[bank.control.pick] for bank in operation.capacitors]
    probes = _probes(feeder, factors)
    first_bank = len(devices) - len(operation.capacitors)
    first_phase = np.cumsum([0, *(len(regulator.phases) for regulator in operation.regulators)])
    return Controls(
        regulator=np.array(
            [
                [*_regulator(feeder, item), float(first_phase[k] + item.compensated)]
                for k, item in enumerate(operation.regulators)
            ]
        ).reshape(-1, REGULATOR_COLUMNS),
        capacitor=np.array(
            [
                [*_capacitor(feeder, bank), float(first_bank + k), devices[first_bank + k].nominal.imag]
                for k, bank in enumerate(operation.capacitors)
            ]
        ).reshape(-1, CAPACITOR_COLUMNS),
        control_of=np.array(
            [k for k, regulator in enumerate(operation.regulators) for _ in regulator.phases], dtype=np.int64
        ),
        pick=np.array(picks, dtype=np.int64),
        seen_ptr=np.cumsum([0, *(len(pairs) for pairs in seen)]).astype(np.int64),
        seen=np.array(
            [[position[a], position[b] if b != GROUND else -1] for a, b in ends], dtype=np.int64
        ).reshape(-1, 2),
        probe_ptr=np.cumsum([0, *(len(bank.control.probes) for bank in operation.capacitors)]).astype(
            np.int64
        ),
        probe=probes[0],
        no_load=probes[1],
        entry_at=probes[2],
        entry=probes[3],
        schur=np.zeros((2 * factors.phases, 2 * factors.phases, 4)),
        outflow=factors.outflow,
        interior=factors.interior,
    )


def _probes(feeder: Feeder, factors: TerminalFactors) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    """Measured conductors (node, first entry, last entry), their currents at no load, and their entries."""
    operation, position = feeder.as_operated, factors.position
    v = np.zeros(len(operation.nodes), dtype=np.clongdouble)
    v[position >= 0] = factors.w[position[position >= 0]]
    v[feeder.slack] = feeder.v_slack
    table, no_load, entries = [], [], []
    at: list[int] = []
    for bank in operation.capacitors:
        for probe in bank.control.probes:
            first, current = len(at), np.clongdouble(0.0)
            for node, value in zip(probe.nodes, probe.coefficients, strict=True):
                current += np.clongdouble(value) * v[node]
                if position[node] >= 0:
                    at.append(int(position[node]))
                    entries.append((value.real, value.imag))
            table.append((int(position[probe.node]), first, len(at)))
            no_load.append((float(current.real), float(current.imag)))
    return (
        np.array(table, dtype=np.int64).reshape(-1, 3),
        np.array(no_load, dtype=np.float64).reshape(-1, 2),
        np.array(at, dtype=np.int64),
        np.array(entries, dtype=np.float64).reshape(-1, 2),
    )


def _oriented(pair: Branch) -> Branch:
    return pair if pair[0] != GROUND else (pair[1], GROUND)


def _regulator(feeder: Feeder, regulator: Regulator) -> list[float]:
    """A row of `Controls.regulator`."""
    seen, outer = _oriented(regulator.measured[0])[0], regulator.phases[regulator.compensated][1]
    amperes = feeder.base_mva * KW_PER_MW / float(feeder.base_kv[outer])
    return [
        regulator.target_v,
        regulator.band_v / 2.0,
        float(feeder.base_kv[seen]) * 1000.0 / regulator.pt_ratio,
        amperes / regulator.ct_primary_a,
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
        *_reverse(feeder, regulator.reverse),
    ]


def _reverse(feeder: Feeder, settings: ReverseSettings | None) -> list[float]:
    """Columns of a regulator for power that flows backwards."""
    if settings is None:
        return [np.inf, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    return [
        settings.threshold_kw / (feeder.base_mva * KW_PER_MW),
        settings.target_v,
        settings.band_v / 2.0,
        settings.drop_r_v,
        settings.drop_x_v,
        settings.delay_s,
        -1.0 if settings.neutral_delay_s is None else settings.neutral_delay_s,
    ]


def _capacitor(feeder: Feeder, bank: SwitchedCapacitor) -> list[float]:
    """A row of `Controls.capacitor`."""
    control = bank.control
    seen = _oriented(control.measured[0])[0] if control.measured else bank.branches[0][0]
    kv = float(feeder.base_kv[seen])
    low, high = control.override_v or (-_NEVER, _NEVER)
    at = control.probes[0].node if control.probes else seen
    amperes = feeder.base_mva * KW_PER_MW / float(feeder.base_kv[at])
    return [
        control.on,
        control.off,
        control.delay_on_s,
        control.delay_off_s,
        kv * 1000.0 / control.pt_ratio,
        amperes / control.ct_ratio,
        low,
        high,
        feeder.base_mva * KW_PER_MW,
        float(_KINDS[control.kind]),
        float(_PICKS[control.pick_current]),
        control.dead_time_s,
    ]
