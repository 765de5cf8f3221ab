"""MATPOWER cases as pandapower has them: what is public of them, and what is private (extra `pandapower`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_powerflow.errors import ConfigError
from dp_powerflow.grid.pandapower.engine import require, third_party_warnings
from dp_powerflow.units import FloatArray, IntArray
from dp_powerflow_paper.fioretto2019.acopf import Admittances, Branches, Generators, PublicGrid

CASES = ("case14", "case39", "case118")
_UNLIMITED_MVA = 9000.0
_LOSSLESS_BELOW = 1e-9
_POLYNOMIAL = 2
_REFERENCE_BUS = 3


@dataclass(frozen=True, eq=False)
class TrueCase:
    """A network with its true branches.

    Attributes
    ----------
    public : everything else.
    true : PRIVATE series admittances.
    """

    public: PublicGrid
    true: Admittances


def read_case(name: str) -> TrueCase:
    """One of `CASES`.

    Raises
    ------
    ConfigError : there is no such case.
    MissingExtraError : pandapower is not installed.
    """
    if name not in CASES:
        raise ConfigError(f"there is no case '{name}'; choose from {', '.join(CASES)}")
    require("pandapower")
    networks, convert = require("pandapower.networks"), require("pandapower.converter.pypower.to_ppc")
    with _quiet():
        return _split(name, convert.to_ppc(getattr(networks, name)(), init="flat", mode="opf"))


def reference_cost(name: str) -> float:
    """Least cost as pandapower's own solver finds it."""
    pandapower, networks = require("pandapower"), require("pandapower.networks")
    with _quiet():
        net = getattr(networks, name)()
        pandapower.runopp(net)
    return float(net.res_cost)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without pandapower's remarks on the limits of its own cases."""
    logger = logging.getLogger("pandapower")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with third_party_warnings():
            yield
    finally:
        logger.setLevel(before)


def _split(name: str, ppc: dict[str, Any]) -> TrueCase:
    bus, base = np.real(ppc["bus"]), float(ppc["baseMVA"])
    on = np.real(ppc["gen"])[:, 7] > 0
    generator, cost = np.real(ppc["gen"])[on], np.real(ppc["gencost"])[: len(on)][on]
    branch = np.real(ppc["branch"])
    branch = branch[branch[:, 10] > 0]
    number = {int(each): k for k, each in enumerate(bus[:, 0])}
    start, end, at = (_numbers(number, column) for column in (branch[:, 0], branch[:, 1], generator[:, 0]))
    series = 1.0 / (branch[:, 2] + 1j * branch[:, 3])
    lossless = np.abs(series.real) < _LOSSLESS_BELOW
    ratio = np.where(branch[:, 8] == 0.0, 1.0, branch[:, 8])
    transformer = (branch[:, 8] != 0.0) | (bus[start, 9] != bus[end, 9])
    groups = np.stack([np.where(transformer, -1.0, bus[start, 9]), lossless], axis=1)
    branches = Branches(
        start=start,
        end=end,
        charging=branch[:, 4],
        ratio=ratio,
        shift=np.deg2rad(branch[:, 9]),
        rating=np.where((branch[:, 5] == 0.0) | (branch[:, 5] > _UNLIMITED_MVA), np.inf, branch[:, 5] / base),
        level=np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1),
        lossless=lossless,
    )
    public = PublicGrid(
        name=name,
        base_mva=base,
        load_p=bus[:, 2] / base,
        load_q=bus[:, 3] / base,
        shunt_g=bus[:, 4] / base,
        shunt_b=bus[:, 5] / base,
        v_min=bus[:, 12],
        v_max=bus[:, 11],
        reference=int(np.flatnonzero(bus[:, 1] == _REFERENCE_BUS)[0]),
        generators=Generators(
            bus=at,
            p_min=generator[:, 9] / base,
            p_max=generator[:, 8] / base,
            q_min=generator[:, 4] / base,
            q_max=generator[:, 3] / base,
            cost=np.array([_polynomial(row) for row in cost]),
        ),
        branches=branches,
    )
    return TrueCase(public, Admittances(np.where(lossless, 0.0, series.real), series.imag))


def _numbers(number: dict[int, int], buses: FloatArray) -> IntArray:
    return np.array([number[int(each)] for each in buses], dtype=np.int64)


def _polynomial(row: FloatArray) -> FloatArray:
    """Square, linear and constant term; a piecewise linear cost must be one piece."""
    terms, count = np.zeros(3), int(row[3])
    if row[0] == _POLYNOMIAL:
        terms[3 - count :] = row[4 : 4 + count]
        return terms
    if count != 2:
        raise ConfigError("a piecewise linear cost of several pieces is not a polynomial; state it as one")
    x0, y0, x1, y1 = row[4:8]
    terms[1] = (y1 - y0) / (x1 - x0)
    terms[2] = y0 - terms[1] * x0
    return terms
