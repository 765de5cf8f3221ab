"""Noise on every entry of the admittance matrix, tried in OpenDSS itself (Remark Y_noise_infeasible).

The paper reports that OpenDSS failed to converge at r = 1e-3 and ε = 100. Two ways put the noise into it:

- on all entries alike, in OpenDSS's own iteration on its system matrix plus the noise (`DrivenCircuit`);
- symmetric, as one reactor between any two nodes and one from every node to ground, which OpenDSS solves as
  ever, its regulators frozen or acting (`as_reactors`).

The paper does not state the unit of r, so noise in per unit and in siemens are both tried. σ is the classical
r·√(2 ln(1.25/δ))/ε of its table. There is no PV here.

A circuit of OpenDSS whose admittance matrix can be another: driven from outside, or with reactors added.

`DrivenCircuit` runs the iteration of OpenDSS on its system matrix plus any other: the currents of source and
loads, and the test of convergence, are those of OpenDSS; only the linear solve is ours. `as_reactors` writes
a symmetric matrix into the circuit, for OpenDSS to solve as ever.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import scipy.sparse as sp
from cffi import FFI
from scipy.linalg import lu_factor, lu_solve

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import (
    CONTROLS_OFF,
    DssOrigin,
    Engine,
    circuit_without_injections,
    set_taps,
    solve,
)
from dp_powerflow.grid.opendss.engine import run as command
from dp_powerflow.lowlevel import plain
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, admittance_base_siemens
from dp_powerflow_paper.datasets import ExperimentOptions, oedi_history
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.run import Written, block, write_report

FLOATING_BUS = "610."
"""Of IEEE 123, behind a delta-delta transformer: only a millionth of its rating ties it to ground."""
_WHOLE_MATRIX = 2
_COMPLEX_BYTES = 16


@dataclass(frozen=True, eq=False)
class MatrixUnit:
    """Of r and of the noise. `siemens` (node, node) is one unit in every entry of the system matrix."""

    name: str
    siemens: FloatArray


@dataclass(frozen=True)
class Loads:
    """How OpenDSS models the loads: text commands' properties, empty for those of the file."""

    name: str
    properties: str = ""


AS_IN_FILE = Loads("as in the file")
CONSTANT_POWER = Loads("constant power at any voltage", "Model=1 Vminpu=0 Vlowpu=0 Vmaxpu=10")


@dataclass(frozen=True)
class Outcome:
    """One solution.

    Attributes
    ----------
    converged : as OpenDSS judges it.
    iterations : linear solves.
    v : complex (node,) [V], in the engine's order.
    """

    converged: bool
    iterations: int
    v: ComplexArray


class DrivenCircuit:
    """A circuit of OpenDSS whose iteration is driven from outside, so that its matrix can be another."""

    def __init__(self, feeder: Feeder, loads: Loads = AS_IN_FILE) -> None:
        self.origin = _origin(feeder)
        self.engine: Engine = circuit_without_injections(self.origin, feeder.taps, but="load")
        for name in self.engine.ActiveCircuit.Loads.AllNames:
            if loads.properties:
                command(self.engine, f'Edit "Load.{name}" {loads.properties}', self.origin)
        command(self.engine, "Set Mode=Snapshot", self.origin)
        solve(self.engine, self.origin)
        self.nodes = tuple(node.lower() for node in self.engine.ActiveCircuit.YNodeOrder)
        place = {node: k for k, node in enumerate(feeder.nodes)}
        self.base_kv = np.array([feeder.base_kv[place[node]] for node in self.nodes])
        self.place = np.array([place[node] for node in self.nodes])

    def set_load(self, kw: dict[str, complex]) -> None:
        """Power of every load [kW + j kvar], by its name."""
        for loads in self.engine.ActiveCircuit.Loads:
            power = kw[loads.Name.lower()]
            loads.kW, loads.kvar = power.real, power.imag

    def solve(self) -> Outcome:
        """By OpenDSS alone."""
        done = solve(self.engine, self.origin)
        return Outcome(done, int(self.engine.ActiveCircuit.Solution.Iterations), self._view("V").copy())

    def matrix(self) -> ComplexArray:
        """Complex (node, node) system matrix at the present loads [S], their admittances in it."""
        matrices = self.engine.YMatrix
        matrices.BuildYMatrixD(_WHOLE_MATRIX, False)
        data, indices, pointers = matrices.GetCompressedYMatrix()
        return np.asarray(sp.csc_array((data, indices, pointers)).toarray())

    def solve_with(self, matrix: ComplexArray) -> Outcome:
        """The same iteration on another matrix [S], from the voltages without the loads' own currents."""
        matrices, limit = self.engine.YMatrix, int(self.engine.ActiveCircuit.Solution.MaxIterations)
        factor = lu_factor(matrix)
        v, current = self._view("V"), self._view("I")
        matrices.ZeroInjCurr()
        matrices.GetSourceInjCurrents()
        v[:] = lu_solve(factor, current)
        for iteration in range(1, limit + 1):
            matrices.ZeroInjCurr()
            matrices.GetSourceInjCurrents()
            matrices.GetPCInjCurr()
            if not np.isfinite(current).all():
                break
            v[:] = lu_solve(factor, current)
            matrices.LoadsNeedUpdating = False
            if matrices.CheckConvergence() and iteration > 1:
                return Outcome(True, iteration, v.copy())
        return Outcome(False, limit, v.copy())

    def magnitude(self, v: ComplexArray) -> FloatArray:
        """(node,) |v| [p.u.]."""
        return np.asarray(np.abs(v) / (1000.0 * self.base_kv))

    def units(self, base_mva: float) -> tuple[MatrixUnit, MatrixUnit]:
        """Per unit and siemens."""
        base = admittance_base_siemens(self.base_kv, base_mva)
        return MatrixUnit("p.u.", np.sqrt(np.outer(base, base))), MatrixUnit(
            "siemens", np.ones((len(base), len(base)))
        )

    @property
    def tied(self) -> BoolArray:
        """(node,) whether a node has a firm path to ground."""
        return np.array([not node.startswith(FLOATING_BUS) for node in self.nodes])

    def _view(self, which: str) -> ComplexArray:
        """The engine's own vector of node voltages or currents, without ground."""
        matrices = self.engine.YMatrix
        pointer = matrices.GetVPointer() if which == "V" else matrices.GetIPointer()
        memory = FFI().buffer(pointer, _COMPLEX_BYTES * (len(self.nodes) + 1))
        return np.frombuffer(memory, dtype=np.complex128)[1:]


def as_reactors(nodes: tuple[str, ...], noise: ComplexArray) -> list[str]:
    """Commands that add a symmetric matrix of noise [S] to the system matrix."""
    commands = []
    for i, node in enumerate(nodes):
        commands += [
            _reactor(f"noise_{i}_{j}", f"bus1={node} bus2={nodes[j]}", -noise[i, j])
            for j in range(i + 1, len(nodes))
        ]
        commands.append(_reactor(f"noise_{i}", f"bus1={node}", noise[i].sum()))
    return commands


def _reactor(name: str, buses: str, admittance: complex) -> str:
    impedance = 1.0 / complex(admittance)
    return f"New Reactor.{name} phases=1 {buses} R={impedance.real!r} X={impedance.imag!r}"


def _origin(feeder: Feeder) -> DssOrigin:
    if not isinstance(feeder.origin, DssOrigin):
        raise FeederError("only a feeder read from OpenDSS can be solved by it; open it from a .dss file")
    return feeder.origin


EPSILON, DELTA = 100.0, 1e-5
REGULATED_LIMITS = (10, 100)
"""Rounds of the regulators: OpenDSS's default, and that of the feeder's own file."""


@dataclass(frozen=True)
class Scale:
    """Size of a run: radii, draws of the noise, snapshots of the year; the same for the reactors."""

    radii: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    draws: int = 5
    snapshots: int = 12
    reactor_radii: tuple[float, ...] = (1e-3, 1e-2)
    reactor_draws: int = 6


QUICK = Scale(radii=(1e-3, 1e-1), draws=2, snapshots=3, reactor_radii=(1e-3,), reactor_draws=1)


def sigma_of(radius: float) -> float:
    """σ of the paper's table: the classical formula at ε = 100."""
    return GaussianNoise(radius, EPSILON, DELTA, "classical").sigma


def draw_noise(size: int, draw: int, seed: int) -> ComplexArray:
    """Complex (node, node) of unit variance in real and imaginary parts."""
    pair = np.random.default_rng([seed, draw]).standard_normal((2, size, size))
    return np.asarray(pair[0] + 1j * pair[1])


@dataclass(frozen=True)
class Row:
    """Noise of one size on every entry, over all draws and snapshots.

    Attributes
    ----------
    loads, unit, radius, sigma : what was solved.
    converged : share of the solutions, as OpenDSS judges it.
    iterations : most that a converged one took.
    shift : median over the solutions of the mean change of |v| at the tied nodes [p.u.].
    largest : median of the largest such change [p.u.].
    floating : median of the largest |v| at the floating bus [p.u.], None where the feeder has none.
    """

    loads: str
    unit: str
    radius: float
    sigma: float
    converged: float
    iterations: int
    shift: float
    largest: float
    floating: float | None


@dataclass(frozen=True)
class ReactorRow:
    """Symmetric noise written into the circuit; frozen regulators where `limit` is None.

    Attributes
    ----------
    limit : rounds that OpenDSS grants its regulators.
    converged : solutions that OpenDSS calls converged, of so many `draws`.
    given_up : of them, those where the regulators ran out of rounds.
    iterations, rounds : most linear solves and most rounds of the regulators.
    lowest, highest : |v| at the tied nodes [p.u.].
    """

    unit: str
    radius: float
    limit: int | None
    draws: int
    converged: int
    given_up: int
    iterations: int
    rounds: int
    lowest: float
    highest: float


@dataclass(frozen=True)
class Result:
    """What was found; `untouched` is how far the driven iteration is from `Solve` without noise [p.u.]."""

    rows: tuple[Row, ...]
    reactors: tuple[ReactorRow, ...]
    untouched: float
    scale: Scale
    seed: int


def run_noise(feeder: Feeder, relative: FloatArray, scale: Scale, options: ExperimentOptions) -> Result:
    """Both ways.

    Parameters
    ----------
    relative : (snapshot, feeder load) load over nominal load.
    """
    rows, untouched = [], 0.0
    for model in (AS_IN_FILE, CONSTANT_POWER):
        circuit = DrivenCircuit(feeder, model)
        found, difference = _driven(circuit, feeder, relative, scale, options)
        rows += [replace(row, loads=model.name) for row in found]
        untouched = max(untouched, difference)
    reactors: list[ReactorRow] = []
    for radius in scale.reactor_radii:
        for unit in ("p.u.", "siemens"):
            reactors += _with_reactors(feeder, radius, unit, scale.reactor_draws, options.seed)
            options.progress(len(reactors), len(scale.reactor_radii) * 2 * (1 + len(REGULATED_LIMITS)))
    return Result(tuple(rows), tuple(reactors), untouched, scale, options.seed)


def _driven(
    circuit: DrivenCircuit, feeder: Feeder, relative: FloatArray, scale: Scale, options: ExperimentOptions
) -> tuple[list[Row], float]:
    """Rows of one load model, and how far the iteration without noise is from OpenDSS's own [p.u.]."""
    units, tied, size = circuit.units(feeder.base_mva), circuit.tied, len(circuit.nodes)
    found: dict[tuple[str, float], list[tuple[bool, int, float, float, float]]] = {}
    noise = [draw_noise(size, draw, options.seed) for draw in range(scale.draws)]
    untouched = 0.0
    for number, multipliers in enumerate(relative):
        circuit.set_load(_powers(feeder, multipliers))
        own = circuit.solve()
        before = circuit.magnitude(own.v)
        matrix = circuit.matrix()
        alone = circuit.solve_with(matrix)
        untouched = max(untouched, float(np.abs(circuit.magnitude(alone.v) - before)[tied].max()))
        for unit in units:
            for radius in scale.radii:
                for drawn in noise:
                    made = circuit.solve_with(matrix + sigma_of(radius) * unit.siemens * drawn)
                    after = circuit.magnitude(made.v)
                    change = np.abs(after - before)[tied]
                    floating = float(after[~tied].max(initial=0.0))
                    case = (made.converged, made.iterations, change.mean(), change.max(), floating)
                    found.setdefault((unit.name, radius), []).append(case)
        options.progress(number + 1, len(relative))
    rows = [_row(unit, radius, found[unit.name, radius]) for unit in units for radius in scale.radii]
    return rows, untouched


def _row(unit: MatrixUnit, radius: float, cases: list[tuple[bool, int, float, float, float]]) -> Row:
    converged, iterations, mean, largest, floating = (np.array(column) for column in zip(*cases, strict=True))
    return Row(
        loads="",
        unit=unit.name,
        radius=radius,
        sigma=sigma_of(radius),
        converged=float(converged.mean()),
        iterations=int(iterations[converged].max(initial=0)),
        shift=float(np.median(mean)),
        largest=float(np.median(largest)),
        floating=float(np.median(floating)) if floating.any() else None,
    )


def _with_reactors(feeder: Feeder, radius: float, unit_name: str, draws: int, seed: int) -> list[ReactorRow]:
    """The regulators frozen, and acting within every limit, over the draws."""
    found: dict[int | None, list[tuple[bool, bool, int, int, float, float]]] = {}
    for draw in range(draws):
        circuit = DrivenCircuit(feeder)
        unit = next(unit for unit in circuit.units(feeder.base_mva) if unit.name == unit_name)
        drawn = draw_noise(len(circuit.nodes), draw, seed)
        symmetric = sigma_of(radius) * unit.siemens * (np.triu(drawn) + np.triu(drawn, 1).T)
        for text in as_reactors(circuit.nodes, symmetric):
            command(circuit.engine, text, circuit.origin)
        for limit in (None, *REGULATED_LIMITS):
            found.setdefault(limit, []).append(_solve_regulated(circuit, feeder, limit))
        command(circuit.engine, "ClearAll", circuit.origin)  # An engine never gives its own memory back.
    rows = []
    for limit, cases in found.items():
        converged, given_up, iterations, rounds, lowest, highest = zip(*cases, strict=True)
        rows.append(
            ReactorRow(
                *(unit_name, radius, limit, draws, sum(converged), sum(given_up)),
                *(max(iterations), max(rounds), min(lowest), max(highest)),
            )
        )
    return rows


def _solve_regulated(
    circuit: DrivenCircuit, feeder: Feeder, limit: int | None
) -> tuple[bool, bool, int, int, float, float]:
    """OpenDSS's own solution: converged, out of rounds, iterations, rounds, lowest and highest |v|."""
    engine, origin = circuit.engine, circuit.origin
    set_taps(engine, feeder.taps)
    mode = CONTROLS_OFF if limit is None else f"Set ControlMode=STATIC MaxControlIter={limit}"
    command(engine, mode, origin)
    engine.YMatrix.SolutionInitialized = False
    given_up = False
    try:
        done = solve(engine, origin)
    except FeederError:  # OpenDSS raises where the regulators run out of rounds.
        done, given_up = bool(engine.ActiveCircuit.Solution.Converged), True
    solution = engine.ActiveCircuit.Solution
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    by_name = dict(zip((node.lower() for node in engine.ActiveCircuit.YNodeOrder), volts, strict=True))
    magnitude = circuit.magnitude(np.array([by_name[node] for node in circuit.nodes]))[circuit.tied]
    return (
        done,
        given_up,
        int(solution.Iterations),
        int(solution.ControlIterations),
        float(magnitude.min()),
        float(magnitude.max()),
    )


def _powers(feeder: Feeder, multipliers: FloatArray) -> dict[str, complex]:
    """Load name → kW + j kvar."""
    return {
        load.name.lower(): complex(load.kw, load.kvar) * float(factor)
        for load, factor in zip(feeder.loads, multipliers, strict=True)
    }


def year_sample(options: ExperimentOptions, feeder: Feeder, snapshots: int) -> FloatArray:
    """(snapshot, feeder load) load over nominal load at times spread over the OEDI year."""
    history = oedi_history(options.folder("oedi"), feeder)
    rows = {point.lower(): row for row, point in enumerate(history.load_points)}
    times = np.arange(snapshots) * math.prod(history.load_kw.shape[1:]) // snapshots
    chosen = history.load_kw.reshape(len(history.load_kw), -1)[:, times + 7 * np.arange(snapshots)]
    return np.array([chosen[rows[load.name.lower()]] / load.kw for load in feeder.loads]).T


def to_markdown(result: Result) -> str:
    """The tables of docs/results/experiments.md."""
    scale = result.scale

    def noisy(row: Row) -> str:
        floating = "—" if row.floating is None else f"{row.floating:.3g}"
        return (
            f"{row.loads} | {row.radius:g} {row.unit} | {row.sigma:.2g} | {100 * row.converged:.4g} % | "
            f"{row.iterations} | {row.shift:.2g} | {row.largest:.2g} | {floating}"
        )

    def reactors(row: ReactorRow) -> str:
        what = "frozen" if row.limit is None else f"acting, at most {row.limit} rounds"
        return (
            f"{row.radius:g} {row.unit} | {what} | {row.converged} of {row.draws} | {row.given_up} | "
            f"{row.iterations} | {row.rounds} | {row.lowest:.3g} … {row.highest:.3g}"
        )

    lines = block(
        f"Noise on every entry of OpenDSS's system matrix, ε = {EPSILON:g}, δ = {DELTA:g} (classical σ);\n"
        f"{scale.draws} draws × {scale.snapshots} snapshots of the year. Without noise the driven iteration\n"
        f"differs from OpenDSS's own by {result.untouched:.1e} p.u. at most.",
        "loads | r | σ | OpenDSS converged | iterations, most | mean shift of \\|v\\| [p.u.] | "
        "largest shift | bus 610",
        map(noisy, result.rows),
    )
    lines += block(
        "Symmetric noise as reactors between all nodes, solved by OpenDSS alone at the file's own loads:",
        "r | regulators | converged | out of rounds | iterations, most | rounds, most | \\|v\\| [p.u.]",
        map(reactors, result.reactors),
    )
    return "\n".join(lines)


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables."""
    feeder, scale = open_feeder("ieee123"), QUICK if options.quick else Scale()
    result = run_noise(feeder, year_sample(options, feeder, scale.snapshots), scale, options)
    return write_report(options.out, "y-noise", to_markdown(result), plain(asdict(result)))
