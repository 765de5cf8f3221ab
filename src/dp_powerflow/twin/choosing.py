"""What noise costs, from constants: the table of `plan`, with the floor below it.

The constants are distances on public feeders under public loads, made by `dp-powerflow experiment twin` and
checked by a test. They go by the scale of the noise in the logarithm of a figure, so they serve every ε, x
and δ; between two scales they are interpolated in logarithms. Nothing of the network is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import numpy as np

from dp_powerflow._texts import filled
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.twin.design import CHANGE, LOG_GRID, Chain, Noise, TwinDesign, twin_guarantee
from dp_powerflow.units import ComplexArray

SHOWN_EPSILONS = (0.5, 1.0, 2.0, 4.0)
LARGE_CHANGE = 0.5
GAUSSIAN_DELTA = 1e-6
"""δ of the Gaussian rows where the design has none."""
SCALES = (0.0122, 0.0244, 0.0488, 0.0976, 0.1952, 0.3904)
"""Scales of the noise in the logarithm: of Laplace noise at ε = 4, 2, 1, 0.5, 0.25, 0.125 for 5 %."""
Figures = Literal["length", "impedance", "impedance and capacitors"]


@dataclass(frozen=True)
class Predicted:
    """Expected W1 of voltage magnitudes on a public feeder [p.u.]; None beyond the table."""

    feeder: str
    pooled: float | None
    worst_node: float | None


Table = Mapping[tuple[str, str, str], tuple[tuple[float, ...], tuple[float, ...]]]


@cache
def mean_distances() -> Table:
    """Feeder, noise, figures → mean W1 [p.u.], pooled and of the worst node, at every scale of `SCALES`."""
    text = files("dp_powerflow.twin").joinpath("distances.json").read_text()
    return {
        (feeder, noise, figures): (tuple(pooled), tuple(worst))
        for feeder, by_noise in json.loads(text).items()
        for noise, by_figures in by_noise.items()
        for figures, (pooled, worst) in by_figures.items()
    }


CHAINS: Mapping[str, Chain] = {
    "ieee13": Chain("line 650632", 1, 1.47746, 0.00108, 0.001661),
    "ieee123": Chain("line l115", 1, 1.47746, 0.0002534, 0.0004299),
}
"""Feeder → chain of its most influential line, under the same loads."""


def figures_of(protected: Protected) -> Figures:
    """The entry of the table that is nearest to what is protected."""
    both = protected.capacitors and protected.lines != "length"
    return "impedance and capacitors" if both else protected.lines


def scale_of(design: TwinDesign) -> float:
    """Scale of the noise in the logarithm of a line's figures."""
    return design.parts[design.protected.lines].scale * LOG_GRID


def predicted(design: TwinDesign) -> tuple[Predicted, ...]:
    """What a design costs on the public feeders."""
    figures, scale = figures_of(design.protected), scale_of(design)
    return tuple(
        Predicted(feeder, *_at(mean_distances()[feeder, design.noise, figures], scale)) for feeder in CHAINS
    )


def _at(distances: tuple[tuple[float, ...], ...], scale: float) -> tuple[float | None, float | None]:
    """Interpolated in logarithms; below the table its first entry, which is more, above it nothing."""
    if scale > SCALES[-1]:
        return None, None
    at, known = np.log(scale), np.log(SCALES)
    pooled, worst = (float(np.exp(np.interp(at, known, np.log(row)))) for row in distances)
    return pooled, worst


def _row(design: TwinDesign) -> dict[str, Any]:
    """A design in the table: what it promises for 5 % and for 50 %, and what it costs."""
    return {
        "design": design,
        "small": twin_guarantee(design, CHANGE),
        "large": twin_guarantee(design, LARGE_CHANGE),
        "predicted": predicted(design),
    }


def _rows(design: TwinDesign) -> Iterator[dict[str, Any]]:
    """The design, then both kinds of noise at several ε for 5 %, for what it protects of lines."""
    yield _row(design)
    plain = Protected(lines=design.protected.lines, capacitors=design.protected.capacitors)
    for noise, delta in (("laplace", 0.0), ("gaussian", design.delta or GAUSSIAN_DELTA)):
        for epsilon in SHOWN_EPSILONS:
            with suppress(PrivacyError):  # useless noise
                yield _row(TwinDesign(epsilon, CHANGE, plain, cast("Noise", noise), delta))


def choosing_lines(design: TwinDesign) -> list[str]:
    """The table in Markdown, the design first, and what no mechanism can do better."""
    protected, promised = design.protected, twin_guarantee(design, CHANGE)
    beyond = {
        "transformers": protected.transformers,
        "capacitors": protected.capacitors and protected.lines == "length",
        "charging": protected.charging,
        "conductor codes": protected.codes,
        "PV systems": protected.pv,
    }
    text = filled(
        "choosing.md",
        {},
        feeders=tuple(CHAINS),
        rows=tuple(_rows(design)),
        beyond=", ".join(name for name, covered in beyond.items() if covered),
        floors={name: chain.floor(promised.epsilon, promised.delta) for name, chain in CHAINS.items()},
    )
    return text.rstrip("\n").split("\n")


_SNAPSHOTS = 96
_LOAD_SPREAD = 0.3
_SEED = 0


def surrogate_load(feeder: Feeder, snapshots: int = _SNAPSHOTS) -> ComplexArray:
    """Public loads (snapshot, retained) [p.u.]: a day between 0.3 and 1 of nominal, scattered by node."""
    nominal = -feeder.nominal_injection[feeder.retained]
    day = 0.65 - 0.35 * np.cos(2.0 * np.pi * np.arange(snapshots) / snapshots)
    noise = np.random.default_rng(_SEED).normal(
        -0.5 * _LOAD_SPREAD**2, _LOAD_SPREAD, (snapshots, len(nominal))
    )
    return np.asarray(nominal * day[:, None] * np.exp(noise))
