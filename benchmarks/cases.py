"""Feeders of the benchmark, built once and handed to every tool in the same figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dp_powerflow.grid.feeder import GROUND, Feeder, Line, Load
from dp_powerflow.grid.sources import open_feeder
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
        Load(f"l{k}", ((k, GROUND),), float(s.real), float(s.imag), "wye") for k, s in enumerate(tree.load_kva)
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


def open_case(case: str) -> Feeder:
    """Feeder of a case: ieee123, simbench, radial1000, radial3000."""
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


def nodal_load(feeder: Feeder, factors: FloatArray) -> ComplexArray:
    """Complex (snapshot, retained) load drawn [p.u.]."""
    shares = sp.csr_array(feeder.load_shares)[feeder.retained]
    return np.ascontiguousarray((shares @ (factors * feeder.nominal_load).T).T)
