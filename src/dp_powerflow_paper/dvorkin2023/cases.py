"""Grids with generators, public records of their dispatch, and the private capacities of their lines."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.dvorkin2023.restored import DispatchCase, Records
from dp_powerflow_paper.radial import RadialNetwork

_NEGLIGIBLE = 1e-9


def drawn_records(
    demand: FloatArray, most: FloatArray, *, prices: tuple[float, float], count: int, seed: int
) -> Records:
    """Public situations: prices uniform, demand and largest power within ±15 %.

    Parameters
    ----------
    demand, most : (node,) and (generator,) about which they are drawn.
    """
    generator = np.random.default_rng(seed)
    price = generator.uniform(*prices, (count, len(most)))
    return Records(
        price,
        demand * generator.uniform(0.85, 1.15, (count, len(demand))),
        most * generator.uniform(0.85, 1.15, (count, len(most))),
    )


def matpower_case(
    path: Path, *, tightened: float = 0.6, count: int = 100, seed: int = 5
) -> tuple[DispatchCase, FloatArray]:
    """A grid in MATPOWER format and the capacities of its lines, parallel lines as one.

    Parameters
    ----------
    tightened : share of the file's ratings that is taken, so that some lines bind.
    """
    if not path.is_file():
        raise FeederError(f"{path} does not exist; give the folder of the reference cases")
    text = path.read_text(encoding="utf-8")
    bus, gen, branch = (_matrix(text, name) for name in ("bus", "gen", "branch"))
    position = {int(number): k for k, number in enumerate(bus[:, 0])}
    most = np.zeros(len(bus))
    for row in gen:
        most[position[int(row[0])]] += row[8]
    joined: dict[tuple[int, int], FloatArray] = {}
    for row in branch:
        ends = sorted((position[int(row[0])], position[int(row[1])]))
        series = row[3] / (row[2] ** 2 + row[3] ** 2)
        pair = (ends[0], ends[1])
        joined[pair] = joined.get(pair, np.zeros(2)) + np.array([series, row[5]])
    susceptance, rating = np.array(list(joined.values())).T
    generators = np.flatnonzero(most > 0.0)
    records = drawn_records(bus[:, 2], most[generators], prices=(80.0, 100.0), count=count, seed=seed)
    case = DispatchCase(path.stem, _dc_flows(list(joined), susceptance, len(bus)), generators, records)
    return case, tightened * rating


def radial_case(
    network: RadialNetwork, demand: FloatArray, ders: IntArray, *, count: int = 60, seed: int = 5
) -> tuple[DispatchCase, FloatArray]:
    """A feeder with declared generators of its own, and ampacities that bind in some situations.

    The root sells at 1 to 1.25; generators of the feeder, each as large as a quarter of all demand, at the
    same prices. A line's capacity is 1.2 times what it carries at nominal demand without them, and a
    hundredth of all demand more.

    Parameters
    ----------
    demand : (node,) nominal [p.u.].
    ders : nodes with a generator.
    """
    total = float(demand.sum())
    generators = np.concatenate([[network.root], ders]).astype(np.int64)
    most = np.concatenate([[10.0 * total], np.full(len(ders), 0.25 * total)])
    records = drawn_records(demand, most, prices=(1.0, 1.25), count=count, seed=seed)
    capacity = 1.2 * network.flows(demand) + 0.01 * total
    return DispatchCase("feeder", -network.below, generators, records), capacity


def _matrix(text: str, name: str) -> FloatArray:
    found = re.search(rf"mpc\.{name}\s*=\s*\[(.*?)\];", text, re.DOTALL)
    if found is None:
        raise FeederError(f"the MATPOWER case has no matrix '{name}'; check the file")
    rows = (line.split("%")[0].strip().rstrip(";").split() for line in found.group(1).splitlines())
    return np.array([[float(entry) for entry in row] for row in rows if row])


def _dc_flows(pairs: list[tuple[int, int]], susceptance: FloatArray, nodes: int) -> FloatArray:
    """(line, node) flow per power fed in at the node and taken out at the first one."""
    incidence = np.zeros((len(pairs), nodes))
    for line, (first, second) in enumerate(pairs):
        incidence[line, first], incidence[line, second] = 1.0, -1.0
    laplacian = incidence.T @ (susceptance[:, None] * incidence)
    inverse = np.zeros((nodes, nodes))
    inverse[1:, 1:] = np.linalg.inv(laplacian[1:, 1:])
    flows = susceptance[:, None] * (incidence @ inverse)
    return np.asarray(np.where(np.abs(flows) < _NEGLIGIBLE, 0.0, flows))
