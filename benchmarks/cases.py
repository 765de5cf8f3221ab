"""Feeders of the benchmark, built once and handed to every tool in the same figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.grid.feeder import GROUND, Line, Load
from dp_powerflow.grid.operation import Operation, Pick, Regulator
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

SIMBENCH_CODE = "1-MV-urban--0-sw"


@dataclass(frozen=True, eq=False)
class Tree:
    """A radial feeder by its branches, balanced, one node per bus; bus 0 is the source.

    Attributes
    ----------
    parent : (bus − 1,) bus that feeds bus k + 1.
    z_ohm : complex (bus − 1,) series impedance of the branch to bus k + 1 [Ω].
    kv : line-to-neutral voltage [kV].
    """

    parent: IntArray
    z_ohm: ComplexArray
    kv: float
    load_kva: ComplexArray


def radial_tree(n: int) -> Tree:
    """A random radial feeder of n loaded buses with a drop of a few per cent, the same for every call."""
    rng = np.random.default_rng(n)
    parent = np.empty(n, dtype=np.int64)
    for k in range(n):
        # Mostly chains with short laterals, as feeders are.
        parent[k] = k if rng.random() < 0.8 else rng.integers(0, k + 1)
    z = (0.3 + 0.2 * rng.random(n)) * np.exp(1j * rng.uniform(0.6, 1.1, n))
    kva = rng.uniform(0.5, 1.5, n) * np.exp(1j * rng.uniform(0.2, 0.4, n))
    depth_drop = _largest_drop(parent, z, kva)
    kv = 7.2
    # Scale the impedances so that nominal load drops the voltage by 6 %.
    return Tree(parent, z * (0.06 * kv**2 * 1e3 / depth_drop), kv, kva)


def _largest_drop(parent: IntArray, z: ComplexArray, kva: ComplexArray) -> float:
    """Largest sum of |z·S| along a path, S the power of all buses behind the branch."""
    n = len(parent)
    behind = kva.copy()
    for k in range(n - 1, -1, -1):
        if parent[k] > 0:
            behind[parent[k] - 1] += behind[k]
    drop = np.zeros(n + 1)
    for k in range(n):
        drop[k + 1] = drop[parent[k]] + abs(z[k] * behind[k])
    return float(drop.max())


def tree_feeder(tree: Tree, name: str) -> Feeder:
    """The tree as a feeder; its source is ideal."""
    n = len(tree.parent)
    base_mva = 1.0
    y_branch = (tree.kv**2 / base_mva) / tree.z_ohm
    # Bus 0, the slack, comes last.
    child, parent = np.arange(n), np.where(tree.parent == 0, n, tree.parent - 1)
    rows = np.concatenate([child, parent, child, parent])
    cols = np.concatenate([child, parent, parent, child])
    y = sp.csc_array((np.concatenate([y_branch, y_branch, -y_branch, -y_branch]), (rows, cols)))
    names = (*(f"b{k}.1" for k in range(1, n + 1)), "emf(b0).1")
    loads = tuple(
        Load(f"l{k}", ((k, GROUND),), float(s.real), float(s.imag), "wye")
        for k, s in enumerate(tree.load_kva)
    )
    lines = tuple(
        Line(f"line{k}", (int(parent[k]), k), y_branch[k] * np.array([[1, -1], [-1, 1]]), None, False)
        for k in range(n)
    )
    return Feeder(
        name=name,
        nodes=names,
        base_kv=np.full(n + 1, tree.kv),
        base_mva=base_mva,
        y=y,
        slack=np.array([n]),
        v_slack=np.array([1.0 + 0.0j]),
        nominal_angle_deg=np.zeros(n + 1),
        loads=loads,
        pv=(),
        lines=lines,
    )


REGULATED = "-regulated"
"""End of the name of a radial case with regulators."""
TARGET_V, BAND_V, PT_RATIO = 122.0, 2.0, 60.0


def regulated_branches(tree: Tree) -> list[int]:
    """Branches of a tree with a regulator at their end: behind the source and half way along the trunk."""
    return [0, len(tree.parent) // 2]


def with_regulators(feeder: Feeder, tree: Tree) -> Feeder:
    """The tree with a regulator at the end of some branches, ±10 % in 32 steps, 122 V held within 2 V."""
    count, y = len(feeder.nodes), sp.lil_array(feeder.y)
    chosen = regulated_branches(tree)
    y.resize((count + len(chosen), count + len(chosen)))
    names, regulators = list(feeder.nodes), []
    for number, k in enumerate(chosen):
        inner, parent = count + number, count - 1 if tree.parent[k] == 0 else int(tree.parent[k]) - 1
        own = -complex(y[k, parent])
        y[k, k] -= own
        y[inner, inner] += own
        y[k, parent] = y[parent, k] = 0.0
        y[inner, parent] = y[parent, inner] = -own
        names.append(f"inner{k}.1")
        regulators.append(
            Regulator(
                name=f"r{k}",
                transformer=f"r{k}",
                winding=2,
                phases=((inner, k),),
                measured=((k, GROUND),),
                pick=Pick.ONE,
                compensated=0,
                target_v=TARGET_V,
                band_v=BAND_V,
                pt_ratio=PT_RATIO,
                ct_primary_a=1.0,
                drop_r_v=0.0,
                drop_x_v=0.0,
                winding_v=1e3 * tree.kv,
            )
        )
    return replace(feeder, operation=Operation(tuple(names), sp.csc_array(y), tuple(regulators)))


def open_case(case: str) -> Feeder:
    """Feeder of a case: ieee123, ieee123-neutral, simbench, radial1000, radial3000, radial1000-regulated."""
    if case.endswith(REGULATED):
        tree = radial_tree(int(case.removeprefix("radial").removesuffix(REGULATED)))
        return with_regulators(tree_feeder(tree, case), tree)
    if case == "ieee123-neutral":
        return three_phase_case()[0]
    if case.startswith("radial"):
        return tree_feeder(radial_tree(int(case.removeprefix("radial"))), case)
    if case == "simbench":
        return open_feeder(f"simbench:{SIMBENCH_CODE}")
    return open_feeder(case)


def load_factors(n_loads: int, n_snapshots: int) -> FloatArray:
    """(snapshot, load) multipliers of nominal load: a daily course shared by all, and an own deviation."""
    rng = np.random.default_rng(2024)
    course = 0.65 - 0.3 * np.cos(2.0 * np.pi * np.arange(n_snapshots) / 96.0)
    own = rng.lognormal(-0.045, 0.3, (n_snapshots, n_loads))
    return np.asarray(np.round(course[:, None] * own, 6))


def daily_factors(n_loads: int, n_snapshots: int) -> FloatArray:
    """(snapshot, load) multipliers of nominal load that go on from step to step, as those of meters do.

    Taps then move somewhat more often than with OEDI's profiles: 0.3 times per step instead of 0.2.
    """
    rng = np.random.default_rng(2025)
    course = 0.55 - 0.25 * np.cos(2.0 * np.pi * np.arange(n_snapshots) / 96.0)
    own = np.empty((n_snapshots, n_loads))
    memory, state = 0.98, rng.standard_normal(n_loads)
    for k in range(n_snapshots):
        own[k] = state
        state = memory * state + np.sqrt(1.0 - memory**2) * rng.standard_normal(n_loads)
    return np.asarray(np.round(course[:, None] * np.exp(0.3 * own - 0.045), 6))


def nodal_load(feeder: Feeder, factors: FloatArray) -> ComplexArray:
    """Complex (snapshot, retained) load drawn [p.u.]."""
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    return np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)


@dataclass(frozen=True, eq=False)
class Branches:
    """A feeder as series branches and shunts, for tools that take no admittance matrix.

    Buses have one phase (balanced cases) or three. Per unit of 1 MVA and 10 kV on every phase.

    Attributes
    ----------
    ends : (branch, 2) buses.
    z : complex (branch, phase, phase) series impedance [p.u.].
    shunt : complex (bus, phase) admittance to ground [p.u.].
    place : (retained, 2) bus and phase of each retained node.
    turn : complex (retained,) factor from the voltage of this model to that of the feeder.
    """

    ends: IntArray
    z: ComplexArray
    shunt: ComplexArray
    source: int
    v_source: complex
    place: IntArray
    turn: ComplexArray

    @property
    def n_bus(self) -> int:
        return len(self.shunt)


KV = 10.0
Z_BASE = KV**2
"""Impedance base [Ω] of the rewritten feeders: 10 kV to neutral and 1 MVA on each phase."""


def balanced_branches(feeder: Feeder) -> Branches:
    """Branches of a one-phase feeder, read off its Y once transformer shifts are turned away."""
    turn = np.exp(1j * np.deg2rad(feeder.nominal_angle_deg - feeder.nominal_angle_deg[feeder.slack[0]]))
    y = sp.diags_array(np.conj(turn)) @ sp.csr_array(feeder.y) @ sp.diags_array(turn)
    if abs(y - y.T).max() > 1e-9 * abs(y).max():
        raise ValueError("only feeders that are symmetric up to vector groups can be rewritten")
    upper = sp.coo_array(sp.triu(y, 1))
    ends = np.stack(upper.coords, axis=1)
    shunt = np.asarray(y.sum(axis=1)).ravel()
    source = int(feeder.slack[0])
    place = np.stack([feeder.retained, np.zeros_like(feeder.retained)], axis=1)
    return Branches(
        ends,
        (-1.0 / upper.data)[:, None, None],
        shunt[:, None],
        source,
        complex(feeder.v_slack[0]),
        place,
        turn[feeder.retained],
    )


def three_phase_case() -> tuple[Feeder, Branches]:
    """IEEE 123 as far as power-grid-model can hold it, and its branches.

    Neutral taps (one tap per phase is not possible there), no floating delta secondary, shunts of a phase to
    ground only. Single-phase laterals get the missing phases as unloaded dummies, which changes nothing.
    """
    declared = open_feeder("ieee123")
    feeder = open_feeder("ieee123", taps=[replace(tap, ratio=1.0) for tap in declared.taps])
    kept = [k for k, name in enumerate(feeder.nodes) if not name.startswith("610.")]
    names = [feeder.nodes[k] for k in kept]
    y = feeder.y.toarray()[np.ix_(kept, kept)]
    buses = sorted({name.rsplit(".", 1)[0] for name in names})
    bus_of = np.array([buses.index(name.rsplit(".", 1)[0]) for name in names])
    phase_of = np.array([int(name.rsplit(".", 1)[1]) - 1 for name in names])
    series, ends, z = np.zeros_like(y), [], []
    for a, b in sorted({(min(p), max(p)) for p in zip(*(bus_of[k] for k in np.nonzero(y)), strict=True)}):
        if a == b:
            continue
        at_a, at_b = ({phase_of[k]: k for k in np.flatnonzero(bus_of == bus)} for bus in (a, b))
        phases = [p for p in range(3) if p in at_a and p in at_b and y[at_a[p], at_b[p]] != 0.0]
        i, j = [at_a[p] for p in phases], [at_b[p] for p in phases]
        block = -y[np.ix_(i, j)]
        series[np.ix_(i, i)] += block
        series[np.ix_(j, j)] += block
        series[np.ix_(i, j)] -= block
        series[np.ix_(j, i)] -= block
        full = np.eye(3, dtype=np.complex128)
        full[np.ix_(phases, phases)] = np.linalg.inv(block)
        ends.append((int(a), int(b)))
        z.append(full)
    leftover = np.diag(y - series)
    shunt = np.zeros((len(buses), 3), dtype=np.complex128)
    shunt[bus_of, phase_of] = leftover
    kept_index = {k: m for m, k in enumerate(kept)}
    variant = _without_nodes(feeder, kept, sp.csc_array(series + np.diag(leftover)))
    at = np.array([kept_index[k] for k in feeder.retained])
    source = int(bus_of[kept_index[int(feeder.slack[0])]])
    place = np.stack([bus_of[at], phase_of[at]], axis=1)
    return variant, Branches(
        np.array(ends), np.array(z), shunt, source, 1.0 + 0.0j, place, np.ones(len(at), dtype=np.complex128)
    )


def _without_nodes(feeder: Feeder, kept: list[int], y: sp.csc_array) -> Feeder:
    """The feeder on fewer nodes and with another Y; its loads stay."""
    new = {k: m for m, k in enumerate(kept)} | {GROUND: GROUND}
    loads = tuple(
        replace(load, branches=tuple((new[i], new[j]) for i, j in load.branches)) for load in feeder.loads
    )
    return replace(
        feeder,
        name="ieee123-neutral",
        nodes=tuple(feeder.nodes[k] for k in kept),
        base_kv=feeder.base_kv[kept],
        y=y,
        slack=np.array([new[int(k)] for k in feeder.slack]),
        nominal_angle_deg=feeder.nominal_angle_deg[kept],
        loads=loads,
        lines=(),
        origin=None,
    )
