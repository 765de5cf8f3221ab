"""What noise costs, from constants: the table of `plan`, with the floor below it.

The constants are distances on public feeders under public loads, made by `dp-powerflow experiment twin` and
checked by a test. They go by the scale of the noise in the logarithm of a figure, so they serve every ε, x
and δ; between two scales they are interpolated in logarithms. Nothing of the network is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.twin.design import CHANGE, LOG_GRID, Chain, Floor, Noise, TwinDesign, twin_guarantee
from dp_powerflow.units import ComplexArray, FloatArray

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


@dataclass(frozen=True)
class Choice:
    """One line of the table.

    Attributes
    ----------
    epsilon, large_epsilon : for one element changed by 5 % and by 50 %.
    advantage, large_advantage : of the best test, for the same changes.
    """

    noise: Noise
    epsilon: float
    large_epsilon: float
    delta: float
    advantage: float
    large_advantage: float
    predicted: tuple[Predicted, ...]


MEAN_DISTANCES: Mapping[tuple[str, Noise, Figures], tuple[tuple[float, ...], tuple[float, ...]]] = {
    ("ieee13", "laplace", "length"): (
        (0.000242, 0.000558, 0.00142, 0.00278, 0.00536, 0.00541),
        (0.000473, 0.00111, 0.00261, 0.00509, 0.0103, 0.0119),
    ),
    ("ieee13", "laplace", "impedance"): (
        (0.000457, 0.00082, 0.00161, 0.00288, 0.00396, 0.0107),
        (0.00105, 0.00172, 0.00322, 0.00519, 0.00781, 0.0212),
    ),
    ("ieee13", "laplace", "impedance and capacitors"): (
        (0.000543, 0.001, 0.00164, 0.00366, 0.00478, 0.0114),
        (0.00122, 0.00201, 0.00346, 0.00713, 0.0114, 0.0228),
    ),
    ("ieee13", "gaussian", "length"): (
        (0.00023, 0.000414, 0.000771, 0.00203, 0.00287, 0.00529),
        (0.000427, 0.00077, 0.00138, 0.00381, 0.00608, 0.0108),
    ),
    ("ieee13", "gaussian", "impedance"): (
        (0.000382, 0.00039, 0.000899, 0.00126, 0.00255, 0.00513),
        (0.0009, 0.00094, 0.00175, 0.00273, 0.00537, 0.00975),
    ),
    ("ieee13", "gaussian", "impedance and capacitors"): (
        (0.000413, 0.000451, 0.00104, 0.00155, 0.00283, 0.00479),
        (0.000978, 0.00101, 0.00202, 0.00347, 0.00612, 0.0104),
    ),
    ("ieee123", "laplace", "length"): (
        (0.000103, 0.000196, 0.000489, 0.00105, 0.00245, 0.00413),
        (0.000257, 0.000519, 0.00121, 0.00268, 0.00591, 0.012),
    ),
    ("ieee123", "laplace", "impedance"): (
        (0.000134, 0.000307, 0.000524, 0.00102, 0.00226, 0.00673),
        (0.000488, 0.000848, 0.00139, 0.00275, 0.00622, 0.0162),
    ),
    ("ieee123", "laplace", "impedance and capacitors"): (
        (0.000227, 0.000415, 0.000878, 0.00161, 0.00237, 0.00924),
        (0.000782, 0.0012, 0.00233, 0.00428, 0.00761, 0.0234),
    ),
    ("ieee123", "gaussian", "length"): (
        (8.13e-05, 0.00016, 0.000334, 0.00056, 0.0012, 0.00289),
        (0.000228, 0.000428, 0.00081, 0.00147, 0.00307, 0.00683),
    ),
    ("ieee123", "gaussian", "impedance"): (
        (0.000101, 0.000126, 0.000282, 0.000389, 0.00106, 0.0025),
        (0.000425, 0.000459, 0.000817, 0.00123, 0.00284, 0.00629),
    ),
    ("ieee123", "gaussian", "impedance and capacitors"): (
        (0.000161, 0.000198, 0.000413, 0.000736, 0.00135, 0.00361),
        (0.000549, 0.000683, 0.00134, 0.00232, 0.00437, 0.0101),
    ),
}
"""Feeder, noise, figures → mean W1 [p.u.], pooled and of the worst node, at every scale of `SCALES`."""
CHAINS: Mapping[str, Chain] = {
    "ieee13": Chain("line 650632", 1, 1.47746, 0.00108, 0.001661),
    "ieee123": Chain("line l115", 1, 1.47746, 0.0002534, 0.0004299),
}
"""Feeder → chain of its most influential line, under the same loads."""


def figures_of(protected: Protected) -> Figures:
    """The entry of the table that is nearest to what is protected."""
    if protected.lines == "length":
        return "length"
    return "impedance and capacitors" if protected.capacitors else "impedance"


def scale_of(design: TwinDesign) -> float:
    """Scale of the noise in the logarithm of a line's figures."""
    name = "length" if design.protected.lines == "length" else "impedance"
    return design.parts[name].scale * LOG_GRID


def predicted(design: TwinDesign) -> tuple[Predicted, ...]:
    """What a design costs on the public feeders."""
    figures, scale = figures_of(design.protected), scale_of(design)
    return tuple(
        Predicted(feeder, *_at(MEAN_DISTANCES[feeder, design.noise, figures], scale)) for feeder in CHAINS
    )


def _at(distances: tuple[tuple[float, ...], ...], scale: float) -> tuple[float | None, float | None]:
    """Interpolated in logarithms; below the table its first entry, which is more, above it nothing."""
    if scale > SCALES[-1]:
        return None, None
    at, known = np.log(scale), np.log(SCALES)
    pooled, worst = (float(np.exp(np.interp(at, known, np.log(row)))) for row in distances)
    return pooled, worst


def choice(design: TwinDesign) -> Choice:
    """A design in the table."""
    small, large = twin_guarantee(design, CHANGE), twin_guarantee(design, LARGE_CHANGE)
    return Choice(
        design.noise,
        small.epsilon,
        large.epsilon,
        design.delta,
        small.advantage,
        large.advantage,
        predicted(design),
    )


def choices(design: TwinDesign) -> tuple[Choice, ...]:
    """Both kinds of noise at several ε for a change of 5 %, for what a design protects of lines."""
    plain = Protected(lines=design.protected.lines, capacitors=design.protected.capacitors)
    found = []
    for noise in ("laplace", "gaussian"):
        delta = 0.0 if noise == "laplace" else design.delta or GAUSSIAN_DELTA
        for epsilon in SHOWN_EPSILONS:
            try:
                other = TwinDesign(epsilon, CHANGE, plain, noise, delta)
                found.append(choice(other))
            except PrivacyError:  # noise that nobody could use
                continue
    return tuple(found)


def floors(design: TwinDesign) -> tuple[Floor, ...]:
    """What no mechanism can do better at the design's ε and δ for 5 %, on the public feeders."""
    promised = twin_guarantee(design, CHANGE)
    return tuple(chain.floor(promised.epsilon, promised.delta) for chain in CHAINS.values())


def choosing_lines(design: TwinDesign) -> list[str]:
    """The table in Markdown, the design first, and the floor."""
    rows = [(True, choice(design)), *((False, row) for row in choices(design))]
    feeders = " | ".join(f"{feeder}: pooled / worst node" for feeder in CHAINS)
    beyond = _beyond(design.protected)
    return [
        "What noise costs on public feeders (nothing of the network is looked at): expected distance W1 of",
        "the voltage magnitudes [p.u.]. Your design is in bold.",
        "",
        f"| noise | ε for 5 % | ε for 50 % | advantage for 5 % / 50 % | {feeders} |",
        "|---|---|---|---|" + "---|" * len(CHAINS),
        *(_row(row, bold=bold) for bold, row in rows),
        "",
        *([f"Noise on {beyond} comes on top.", ""] if beyond else []),
        "ε and advantage are two yardsticks. At the same ε a Laplace twin is more exact than a Gaussian one,",
        "and easier to tell from its neighbour.",
        "",
        *(_floor_line(feeder, floor) for feeder, floor in zip(CHAINS, floors(design), strict=True)),
    ]


def _beyond(protected: Protected) -> str:
    named = {
        "transformers": protected.transformers,
        "capacitors": protected.capacitors and protected.lines == "length",
        "charging": protected.charging,
        "conductor codes": protected.codes,
        "PV systems": protected.pv,
    }
    return ", ".join(name for name, covered in named.items() if covered)


def _row(row: Choice, *, bold: bool) -> str:
    mark = "**" if bold else ""
    at = f" (δ = {row.delta:g})" if row.delta else ""
    cells = [
        f"{mark}{row.noise}{mark}",
        f"{row.epsilon:.3g}{at}",
        f"{row.large_epsilon:.3g}",
        f"{row.advantage:.2g} / {row.large_advantage:.2g}",
        *(_distances(found) for found in row.predicted),
    ]
    return f"| {' | '.join(cells)} |"


def _distances(found: Predicted) -> str:
    if found.pooled is None or found.worst_node is None:
        return "beyond the table"
    return f"{found.pooled:.2g} / {found.worst_node:.2g}"


def _floor_line(feeder: str, floor: Floor) -> str:
    return (
        f"Floor on {feeder}: no mechanism with ε = {floor.epsilon:.3g} for 5 % does better than "
        f"{floor.pooled:.2g} / {floor.worst_node:.2g} on all networks with {floor.words}."
    )


_SNAPSHOTS = 96
_LOAD_SPREAD = 0.3
_SEED = 0


@dataclass(frozen=True)
class VoltageDistance:
    """Distances between the magnitudes of two networks' voltages [p.u.].

    Attributes
    ----------
    pooled : W1 between all magnitudes of all retained nodes.
    worst_node, median_node : W1 between the magnitudes of one node, over the nodes.
    rms : root mean square difference, snapshot by snapshot.
    """

    pooled: float
    worst_node: float
    median_node: float
    rms: float


def voltage_distance(true: FloatArray, twin: FloatArray) -> VoltageDistance:
    """Distances between magnitudes (snapshot, node) of the same snapshots.

    The W1 distance of two samples of equal size is the mean distance of their order statistics.
    """
    by_node = np.mean(np.abs(np.sort(true, axis=0) - np.sort(twin, axis=0)), axis=0)
    return VoltageDistance(
        pooled=float(np.mean(np.abs(np.sort(true, axis=None) - np.sort(twin, axis=None)))),
        worst_node=float(np.max(by_node)),
        median_node=float(np.median(by_node)),
        rms=float(np.sqrt(np.mean((true - twin) ** 2))),
    )


def surrogate_load(feeder: Feeder, snapshots: int = _SNAPSHOTS) -> ComplexArray:
    """Public loads (snapshot, retained) [p.u.]: a day between 0.3 and 1 of nominal, scattered by node."""
    nominal = -feeder.nominal_injection[feeder.retained]
    day = 0.65 - 0.35 * np.cos(2.0 * np.pi * np.arange(snapshots) / snapshots)
    noise = np.random.default_rng(_SEED).normal(
        -0.5 * _LOAD_SPREAD**2, _LOAD_SPREAD, (snapshots, len(nominal))
    )
    return np.asarray(nominal * day[:, None] * np.exp(noise))
