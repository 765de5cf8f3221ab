"""What regulators and capacitor controls want to do at the present voltages, one lane at a time.

The rules are those of OpenDSS's static control mode: in a round only the controls with the shortest delay
act; a regulator takes 70 % of the tap steps that it lacks, at least one and at most its own limit. The rules
of capacitors are in `grid.operation.CapacitorControl`. A control that has turned round `MOST_TURNS` times
within a snapshot hunts; it is locked where it is, and the snapshot says so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_powerflow._bits.compiled import inner
from dp_powerflow.powerflow._kernels.devices import Pair, Work, lane_voltage
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

MOST_TURNS = 20
"""Changes of direction within one snapshot after which a control is locked; on large feeders with many
regulators in a row some turn round a dozen times and come to rest."""
UNDECIDED = -1
PICK_ONE, PICK_HIGHEST, PICK_LOWEST, PICK_MEAN = range(4)
CAP_VOLTAGE, CAP_KVAR, CAP_CURRENT, CAP_TIME = range(4)
_NEVER = 1e300
_ALLOWED = 0.7
"""Share of the wanted tap steps that one action takes."""

(
    TARGET, HALF_BAND, VOLTS, AMPERES, DROP_R, DROP_X, DELAY, STEP,
    VOLTS_PER_TAP, TOP, BOTTOM, MOST, SIGN, LIMIT, REVERSE, REV_TARGET, REV_HALF_BAND, REV_R, REV_X,
    REV_DELAY, REV_NEUTRAL, COMPENSATED,
) = range(22)  # fmt: skip
"""Columns of `Controls.regulator`; the last is the phase, numbered through, whose current is measured."""
REGULATOR_COLUMNS = 22
(
    ON, OFF, DELAY_ON, DELAY_OFF, CAP_VOLTS, CAP_AMPERES, OVER_LOW, OVER_HIGH, KVAR, CAP_KIND, CAP_PICK,
    DEAD_TIME, BANK, BANK_Q,
) = range(14)  # fmt: skip
"""Columns of `Controls.capacitor`; the last two are device and reactive power when closed."""
CAPACITOR_COLUMNS = 14
_HOUR_S, _DAY_H = 3600.0, 24.0


class Controls(NamedTuple):
    """Settings of all controls; positions as in the plan.

    `control_of` is the regulator of every phase. `pick` is how a control chooses among the branches that it
    sees: `seen` (branch, 2) from `seen_ptr[k]` on, regulators first. Conductors of capacitor k are
    `probe_ptr[k]` …; `probe` (conductor, 3) has the node where it is measured and its first and last entry,
    `entry_at` and `entry` (entry, 2); `no_load` (conductor, 2) is its current at no load. `schur` and
    `outflow` are of the terminals.
    """

    regulator: FloatArray
    capacitor: FloatArray
    control_of: IntArray
    pick: IntArray
    seen_ptr: IntArray
    seen: IntArray
    probe_ptr: IntArray
    probe: IntArray
    no_load: FloatArray
    entry_at: IntArray
    entry: FloatArray
    schur: FloatArray
    outflow: ComplexArray
    interior: int


class States(NamedTuple):
    """Positions of all controls of every lane: (control, LANES), regulators first.

    `tap` counts steps from neutral, or is 1 for a closed capacitor; `way` is the direction of the last move,
    `turns` how often it changed, `want` what is asked for now, `opened` when a capacitor opened [s]. `back`
    is 1 while a reversible regulator works backwards, `flip` 1 where it asks to change over.
    """

    tap: IntArray
    way: IntArray
    turns: IntArray
    want: IntArray
    back: IntArray
    flip: IntArray
    opened: FloatArray


@inner
def _seen(controls: Controls, w: Pair, work: Work, lane: int, k: int) -> tuple[float, float, int]:
    """Voltage that control k looks at [p.u.] as a phasor, and which branch that is; a mean is real."""
    first, last = controls.seen_ptr[k], controls.seen_ptr[k + 1]
    best_re, best_im, best, chosen = 0.0, 0.0, -1.0, 0
    total = 0.0
    for p in range(first, last):
        u, v = lane_voltage(w, work, lane, controls.seen[p, 0], controls.seen[p, 1])
        size = u * u + v * v
        total += np.sqrt(size)
        better = size > best if controls.pick[k] == PICK_HIGHEST else size < best
        if best < 0.0 or better:
            best, best_re, best_im, chosen = size, u, v, p - first
    if controls.pick[k] == PICK_MEAN:
        return total / (last - first), 0.0, 0
    return best_re, best_im, chosen


@inner
def outflow(controls: Controls, work: Work, lane: int, phase: int) -> tuple[float, float]:
    """Current that leaves an outer node into the network [p.u.]."""
    flow = controls.outflow[phase]
    return flow.real + work.a[work.j_re + phase, lane], flow.imag + work.a[work.j_im + phase, lane]


@inner
def forward_power(controls: Controls, w: Pair, work: Work, lane: int, k: int) -> float:
    """Active power that regulator k passes on, all its phases together [p.u.]."""
    total, phases = 0.0, controls.outflow.size
    for phase in range(phases):
        if controls.control_of[phase] == k:
            re, im = outflow(controls, work, lane, phase)
            u, v = lane_voltage(w, work, lane, controls.interior + phases + phase, -1)
            total += u * re + v * im
    return total


@inner
def steps_taken(wanted: int, step: float) -> int:
    """Tap steps that one action takes, rounded as OpenDSS does it."""
    return max(int(_ALLOWED * abs(wanted * step) / step), 1)


@inner
def wanted_taps(
    controls: Controls, w: Pair, work: Work, states: States, lane: int, k: int
) -> tuple[int, float]:
    """Tap steps that regulator k lacks, and how far [V] the voltage is from where the answer would change."""
    c, back, tap = controls.regulator[k], states.back[k, lane] == 1, states.tap[k, lane]
    if back and c[REV_NEUTRAL] >= 0.0:
        return -tap, _NEVER
    drop_r, drop_x = (c[REV_R], c[REV_X]) if back else (c[DROP_R], c[DROP_X])
    target, half_band = (c[REV_TARGET], c[REV_HALF_BAND]) if back else (c[TARGET], c[HALF_BAND])
    u, v, chosen = _seen(controls, w, work, lane, k)
    u *= c[VOLTS]
    v *= c[VOLTS]
    local = np.sqrt(u * u + v * v)
    if drop_r != 0.0 or drop_x != 0.0:
        re, im = outflow(controls, work, lane, int(c[COMPENSATED]) + chosen)
        re *= c[AMPERES]
        im *= c[AMPERES]
        u -= drop_r * re - drop_x * im
        v -= drop_r * im + drop_x * re
    held = np.sqrt(u * u + v * v)
    lacking = target - (held / (1.0 + tap * c[STEP]) if back else held)
    margin = abs(abs(lacking) - half_band)
    outside = abs(lacking) > half_band
    if c[LIMIT] < _NEVER:
        margin = min(margin, abs(local - c[LIMIT]))
        if local > c[LIMIT]:
            lacking, outside = c[LIMIT] - local, True
    if not outside:
        return 0, margin
    taps = lacking / c[VOLTS_PER_TAP]
    wanted = int(np.rint(taps))
    taken = steps_taken(wanted, c[STEP])
    # The step that is taken changes only where 70 % of the rounded number passes a whole one.
    size = abs(taps)
    above = np.ceil((taken + 1) / _ALLOWED - 1e-9) - 0.5
    margin = min(margin, (above - size) * c[VOLTS_PER_TAP])
    if taken > 1:
        below = np.ceil(taken / _ALLOWED - 1e-9) - 0.5
        margin = min(margin, (size - below) * c[VOLTS_PER_TAP])
    elif wanted == 0 or size < 1.5:
        margin = min(margin, abs(size - 0.5) * c[VOLTS_PER_TAP])
    return -wanted if back else int(c[SIGN]) * wanted, margin


@inner
def wanted_state(controls: Controls, w: Pair, work: Work, lane: int, k: int, now_s: float, on: int) -> int:
    """State that capacitor k wants, 1 closed or 0 open, from its present one."""
    c, seen = controls.capacitor[k], controls.regulator.shape[0] + k
    kind, volts = int(c[CAP_KIND]), 0.0
    if controls.seen_ptr[seen + 1] > controls.seen_ptr[seen]:
        u, v, _ = _seen(controls, w, work, lane, seen)
        volts = np.sqrt(u * u + v * v) * c[CAP_VOLTS]
    # An override that asks for no change leaves the decision to the kind.
    if (on == 0 and volts < c[OVER_LOW]) or (on == 1 and volts > c[OVER_HIGH]):
        return 1 - on
    if kind == CAP_TIME:
        return int(_by_time(c[ON], c[OFF], now_s / _HOUR_S, on))
    if kind == CAP_VOLTAGE:
        closes, opens = volts < c[ON], volts > c[OFF]
    else:
        value = _monitored(controls, w, work, lane, k)
        closes, opens = value > c[ON], value < c[OFF]
    return 1 - on if (closes if on == 0 else opens) else on


@inner
def _by_time(begin: float, end: float, hour: float, on: int) -> int:
    """State that a control by time wants."""
    if end > begin:
        return 1 if begin <= hour < end else 0
    if begin <= hour < _DAY_H:
        return 1
    return 0 if end <= hour < begin else on


@inner
def _monitored(controls: Controls, w: Pair, work: Work, lane: int, k: int) -> float:
    """Reactive power [kvar] into the monitored element, or the picked current [A] of its conductors."""
    c, total, picked = controls.capacitor[k], 0.0, -1.0
    first, last = controls.probe_ptr[k], controls.probe_ptr[k + 1]
    for p in range(first, last):
        re, im = controls.no_load[p, 0], controls.no_load[p, 1]
        for q in range(controls.probe[p, 1], controls.probe[p, 2]):
            at = controls.entry_at[q]
            x, y = work.a[work.x_re + at, lane], work.a[work.x_im + at, lane]
            re += controls.entry[q, 0] * x - controls.entry[q, 1] * y
            im += controls.entry[q, 0] * y + controls.entry[q, 1] * x
        if int(c[CAP_KIND]) == CAP_CURRENT:
            size = np.sqrt(re * re + im * im) * c[CAP_AMPERES]
            better = size < picked if int(c[CAP_PICK]) == PICK_LOWEST else size > picked
            picked = size if picked < 0.0 or better else picked
            total += size
        else:
            u, v = lane_voltage(w, work, lane, controls.probe[p, 0], -1)
            total += (v * re - u * im) * c[KVAR]
    if int(c[CAP_KIND]) == CAP_CURRENT:
        return total / (last - first) if int(c[CAP_PICK]) == PICK_MEAN else picked
    return total


@inner
def _delay(controls: Controls, states: States, lane: int, k: int, now_s: float) -> float:
    """Time after which capacitor k does what it wants [s]; soon after it opened it waits longer to close."""
    c, at = controls.capacitor[k], controls.regulator.shape[0] + k
    if states.want[at, lane] < 0:
        return float(c[DELAY_OFF])
    waiting = max(c[DEAD_TIME] - (now_s - states.opened[at, lane]), 0.0)
    return float(c[DELAY_ON] + waiting)


@inner
def _tap_delay(controls: Controls, states: States, lane: int, k: int) -> float:
    """Time after which regulator k moves its taps [s]."""
    neutral = controls.regulator[k, REV_NEUTRAL]
    back = states.back[k, lane] == 1 and neutral >= 0.0
    return float(neutral if back else controls.regulator[k, DELAY])


@inner
def act(
    controls: Controls, w: Pair, work: Work, states: States, lane: int, slack_v: float, now_s: float
) -> int:
    """One round: how many controls moved, or `UNDECIDED` where the voltages are not settled enough.

    Parameters
    ----------
    slack_v : largest error that the measured voltages may still have [V]; 0 once they are settled.
    now_s : time since the day began [s].
    """
    regulators = controls.regulator.shape[0]
    nearest = _NEVER
    for k in range(regulators):
        states.want[k, lane], states.flip[k, lane] = 0, 0
        if states.turns[k, lane] >= MOST_TURNS:
            continue
        limit = controls.regulator[k, REVERSE]
        if limit < np.inf:
            if slack_v > 0.0:
                return UNDECIDED
            power = forward_power(controls, w, work, lane, k)
            if (power > limit) if states.back[k, lane] == 1 else (power < -limit):
                states.flip[k, lane] = 1
                nearest = min(nearest, controls.regulator[k, REV_DELAY])
        wanted, margin = wanted_taps(controls, w, work, states, lane, k)
        # Settled voltages always decide: a margin is below 0 where 70 % is rounded down from a whole number.
        if slack_v > 0.0 and margin < slack_v:
            return UNDECIDED
        tap = states.tap[k, lane]
        possible = (wanted > 0 and tap < controls.regulator[k, TOP]) or (
            wanted < 0 and tap > -controls.regulator[k, BOTTOM]
        )
        if possible:
            states.want[k, lane] = wanted
            nearest = min(nearest, _tap_delay(controls, states, lane, k))
    for k in range(controls.capacitor.shape[0]):
        at = regulators + k
        states.want[at, lane] = 0
        if states.turns[at, lane] >= MOST_TURNS:
            continue
        on = states.tap[at, lane]
        wanted = wanted_state(controls, w, work, lane, k, now_s, on)
        if wanted != on:
            states.want[at, lane] = wanted - on
            nearest = min(nearest, _delay(controls, states, lane, k, now_s))
    if nearest == _NEVER:
        return 0
    return int(_move(controls, work, states, lane, nearest, now_s))


@inner
def _move(controls: Controls, work: Work, states: States, lane: int, nearest: float, now_s: float) -> int:
    """Move the controls with the shortest delay."""
    regulators, moved = controls.regulator.shape[0], 0
    for k in range(states.tap.shape[0]):
        want = states.want[k, lane]
        if k < regulators and states.flip[k, lane] == 1 and controls.regulator[k, REV_DELAY] == nearest:
            states.turns[k, lane] += states.back[k, lane]
            states.back[k, lane] = 1 - states.back[k, lane]
            moved += 1
        if want == 0:
            continue
        before = states.tap[k, lane]
        if k < regulators:
            c = controls.regulator[k]
            if _tap_delay(controls, states, lane, k) != nearest:
                continue
            count = min(steps_taken(want, c[STEP]), int(c[MOST]))
            after = before + (count if want > 0 else -count)
            after = min(max(after, -int(c[BOTTOM])), int(c[TOP]))
        else:
            bank = k - regulators
            if _delay(controls, states, lane, bank, now_s) != nearest:
                continue
            after = before + want
            if want < 0:
                states.opened[k, lane] = now_s
            device = int(controls.capacitor[bank, BANK])
            work.a[work.s_im + device, lane] = controls.capacitor[bank, BANK_Q] * after
        if after != before:
            way = 1 if after > before else -1
            if states.way[k, lane] == -way:
                states.turns[k, lane] += 1
            states.way[k, lane] = way
            states.tap[k, lane] = after
            moved += 1
    return moved
