"""Power flow of public loads on some networks: what has a solution, and at which voltages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, PowerFlowError
from dp_powerflow.grid.feeder import Feeder, Levels, NetworkParameters, ParameterKey
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.loads.history import steps_per_day
from dp_powerflow.loads.simulate import DEMO_CLASSES, simulate_load_history
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.model.sample import MOST_SCALINGS, SCALING_DOWN
from dp_powerflow.pipeline.customers import (
    Services,
    count_customers,
    declared_classes,
    declared_factors,
    declared_labels,
    factors_by_load,
    some_loaded_nodes,
)
from dp_powerflow.pipeline.inputs import NetworkInputs
from dp_powerflow.pipeline.parts import SolverMaker
from dp_powerflow.powerflow.batch import Solver
from dp_powerflow.powerflow.operated import ControlMode, OperatedSolver
from dp_powerflow.powerflow.sun import Generation
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.quality.tally import RANGE_A
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import draw_twin
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray, kw_to_pu

SEED = 18
"""Of the noise of the stand-ins; public."""
LOW_VOLTAGE_KV = 0.6
"""Line to neutral: nodes below it are on low voltage."""
LENGTH_KM = {True: 0.02, False: 0.1}
"""Length of a line on low voltage, and above."""
R_OVER_X = {True: 1.5, False: 0.6}
"""Resistance over reactance of a line on low voltage, and above."""
TRANSFORMER_PERCENT, REGULATOR_PERCENT = 5.0, 0.1
"""Impedance of a transformer, and of one that a regulator moves."""
CAPACITOR_SHARE, PV_SHARE = 0.5, 0.2
"""All capacitors over all nominal kvar, and all PV systems over all nominal kW."""
TWINS = 2
"""Stand-ins that are solved; one of a large network, which takes seconds to build."""
LENGTHS = (*(2.0**k for k in range(-20, 0, 2)), *(2.0**k for k in range(7)))
"""Lengths of lines that are tried, over the table's lengths; the short ones are for loads of transmission
systems on lines of a voltage that was never meant."""
_SHORT = LENGTHS.index(2.0**-8)
DESIGNED = (0.95, 1.08)
"""Voltages [p.u.] that nobody plans a feeder to fall below at nominal load, or to pass without load."""
_LARGE = 2000
"""Nodes of a large network."""
_KEPT = 4
_known: dict[Hashable, tuple[Feeder, ...]] = {}
"""The stand-ins built last: `release` checks what `plan` built, a fleet checks its feeders twice."""


def stand_in_twins(
    source: Rebuilder, parameters: NetworkParameters, design: TwinDesign, controls: ControlMode
) -> tuple[Feeder, ...]:
    """PUBLIC. Twins of the stand-in of a network; networks of the same frame have the same ones.

    Parameters
    ----------
    source : of the network; its frame is what is used.
    parameters : PRIVATE. Which figures there are is used, none of their levels.
    controls : whether taps and capacitors move.
    """
    feeder, acting = source.feeder, controls != "frozen"
    key = (feeder.origin, feeder.base_mva, feeder.taps, feeder.taps_from, len(feeder.nodes), design, acting)
    if key not in _known:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        large, drawn = len(feeder.nodes) > _LARGE, StreamKey.from_insecure_seed(SEED)
        length = _designed(source, parameters, design.protected, acting=acting, quick=large)
        public = public_parameters(feeder, parameters, design.protected, length)
        keys = [drawn.bind("stand-in", str(k)) for k in range(1 if large else TWINS)]
        _known[key] = tuple([draw_twin(public, design, own).feeder(source) for own in keys])
    return _known[key]


def _designed(
    source: Rebuilder, parameters: NetworkParameters, protected: Protected, *, acting: bool, quick: bool
) -> float:
    """How many times the lines of the table a network is built with: as long as nominal load allows.

    Feeders are planned so that voltages hold at nominal load and without load. Of the lengths tried, the
    longest is taken at which the voltages of the stand-in hold.

    Parameters
    ----------
    quick : whether the lines of the table are good enough where voltages hold with them.
    """
    unsolved: list[PowerFlowError] = []
    holds = cache(partial(_holds, source, parameters, protected, unsolved, acting))
    if quick and holds(1.0):
        return 1.0
    few, many, middle = 0, len(LENGTHS), LENGTHS.index(1.0)  # the first is taken in any case
    while many - few > 1:  # voltages fall as lines get longer
        few, many = (few, middle) if holds(LENGTHS[middle]) is False else (middle, many)
        middle = (few + many) // 2
    # Noise may make lines shorter still: very short ones keep a distance.
    for k in range(few, len(LENGTHS)):
        if holds(LENGTHS[k if k > _SHORT else max(k - 2, 0)]) is not None:
            return LENGTHS[k]
    raise unsolved[-1]


def _holds(
    source: Rebuilder,
    parameters: NetworkParameters,
    protected: Protected,
    unsolved: list[PowerFlowError],
    acting: bool,
    length: float,
) -> bool | None:
    """Whether nodes with load have the voltages of a planned feeder, at nominal load and without load.

    None where lines are so short that no solver tells their ends apart: why is then in `unsolved`.
    """
    public = public_parameters(source.feeder, parameters, protected, length)
    codes = {line.line: line.code for line in public.coded} if protected.codes else {}
    try:
        feeder = source.build(public.levels, codes)
        nominal = np.where(feeder.nominal_load.real > 0.0, feeder.nominal_load, 0.0)
        # With frozen controls no control counts, nor that one could not be modelled.
        shown = feeder if acting else replace(feeder, operation=None)
        solver = OperatedSolver(shown, controls="snapshot" if acting else "frozen")
        found = solver.solve(np.stack([nominal, np.zeros_like(nominal)]))
    except PowerFlowError as error:
        unsolved.append(error)
        return None
    v = modulus(found.v)
    return bool(found.converged.all() and v[0].min() >= DESIGNED[0] and v[1].max() <= DESIGNED[1])


def public_parameters(
    feeder: Feeder, private: NetworkParameters, protected: Protected, length: float = 1.0
) -> NetworkParameters:
    """PUBLIC. The parameters of a network with every level and drawn code replaced by a public one.

    Parameters
    ----------
    length : of lines, over the length of the table.
    """
    levels = _public_levels(feeder, private.levels, protected, length)
    if not protected.codes:
        return NetworkParameters(levels, private.coded)
    coded = (replace(line, code=line.candidates[len(line.candidates) // 2]) for line in private.coded)
    return NetworkParameters(levels, tuple(coded))


def _public_levels(
    feeder: Feeder, keys: Levels, protected: Protected, length: float
) -> dict[ParameterKey, float]:
    of_lines = {line.name: _line_levels(feeder, line.nodes, protected, length) for line in feeder.lines}
    unknown = _line_levels(feeder, (), protected, length)  # on an island that is left out
    regulated = {regulator.transformer.lower() for regulator in feeder.as_operated.regulators}
    count = Counter(key.quantity for key in keys)
    # OpenDSS states kW and kvar, pandapower MW and Mvar.
    unit = 1.0 if _of_opendss(feeder) else 1.0 / KW_PER_MW
    kw = sum(abs(load.kw) for load in feeder.loads)
    kvar = sum(abs(load.kvar) for load in feeder.loads)

    def level(key: ParameterKey) -> float:
        if key.quantity is Quantity.TRANSFORMER:
            moved = key.element.split(".")[-1].lower() in regulated
            return REGULATOR_PERCENT if moved else TRANSFORMER_PERCENT
        if key.quantity is Quantity.CAPACITOR:
            return max(CAPACITOR_SHARE * kvar, 1.0) * unit / count[key.quantity]
        if key.quantity is Quantity.PV:
            return math.sqrt(2.0) * max(PV_SHARE * kw, 1.0) * unit / count[key.quantity]
        return of_lines.get(key.element, unknown)[key.quantity]

    return {key: level(key) for key in keys}


def _line_levels(
    feeder: Feeder, nodes: tuple[int, ...], protected: Protected, length: float
) -> dict[Quantity, float]:
    """PUBLIC. Figures of a line by its voltage and its phases."""
    low = bool(nodes) and float(feeder.base_kv[nodes[0]]) < LOW_VOLTAGE_KV
    # A level is the norm of a matrix with a row per phase; pandapower's is of one phase.
    phases = max(len(nodes) // 2, 1) if _of_opendss(feeder) else 1
    km = length * LENGTH_KM[low]
    reactance = math.sqrt(phases) * protected.x_ohm_per_km * km
    return {
        Quantity.LENGTH: km,
        Quantity.REACTANCE: reactance,
        Quantity.RESISTANCE: R_OVER_X[low] * reactance,
        Quantity.CHARGING: max(math.sqrt(phases) * protected.c_nf_per_km * km, 1e-6),
    }


def _of_opendss(feeder: Feeder) -> bool:
    return isinstance(feeder.origin, DssOrigin)


DAYS = 2
"""A weekend and a working day of winter."""
_MOST_STEPS = 24
_POOL = 200
"""Simulated customers of a class; a load has some of them, again and again if need be."""
_SEED = 18


@dataclass(frozen=True)
class Course:
    """The steps of a day that are solved: at most one an hour.

    Attributes
    ----------
    stride : steps of the release from one to the next.
    steps : how many there are.
    """

    stride: int
    steps: int

    @classmethod
    def of(cls, config: Config) -> Course:
        """Of the steps that a config declares."""
        steps = steps_per_day(config.loads.step_minutes)
        stride = steps // _MOST_STEPS if steps % _MOST_STEPS == 0 else 1
        return cls(stride, steps // stride)


@dataclass(frozen=True, eq=False)
class PublicLoads:
    """PUBLIC. Power that the loads of a feeder draw.

    Attributes
    ----------
    drawn : complex (snapshot, load) [p.u.], `DAYS` whole days.
    upper : complex (load,) with every customer at the upper bound [p.u.].
    """

    drawn: ComplexArray
    upper: ComplexArray


def summed_customers(config: Config, feeder: Feeder, services: Services) -> PublicLoads:
    """PUBLIC. Loads that are sums of customers, as on a twin."""
    sizes = count_customers(config, feeder, services).of_all(feeder)
    return _public_loads(config, feeder, services, sizes)


def refuse_endless(config: Config, feeder: Feeder, services: Services) -> None:
    """Refuse bounds so wide that scaling down could not lower the loads they allow to the nominal ones.

    Raises
    ------
    ConfigError : it would fail once everything is paid for. Nothing was spent.
    """
    scales = services.scale_kw if config.model.use_scale and services.scale_kw is not None else np.ones(1)
    bounds = (config.model.bounds, *config.model.bounds_of_class.values())
    customers = count_customers(config, feeder, services).total
    most = customers * max(high for _, high in bounds) * float(scales.max())
    if most * SCALING_DOWN**MOST_SCALINGS > max(sum(max(load.kw, 0.0) for load in feeder.loads), 1.0):
        raise ConfigError(
            f"with every customer at the upper bound the feeder has a load of {most:.3g} kW, from which no "
            "snapshot could be lowered to a load that has a power-flow solution; lower the upper bound of "
            "model.bounds or the public scales; nothing was spent",
            code="no-power-flow",
        )


def scaled_draws(config: Config, feeder: Feeder, services: Services) -> PublicLoads:
    """PUBLIC. Loads that are one customer each, times their nominal size, as on the true network."""
    sizes = np.array([int(load.kw > 0.0) for load in feeder.loads], dtype=np.int64)
    nominal = np.array([max(load.kw, 0.0) for load in feeder.loads]) * config.nodes.scale_factor
    return _public_loads(config, feeder, services, sizes, nominal)


def corner_loads(config: Config, feeder: Feeder, services: Services) -> ComplexArray:
    """PUBLIC. Complex (corner, retained) [p.u.]: each phase at the upper bounds of its nodes, or the lower.

    On the true network, a node draws its scale times a figure within the bounds of its class. Classes that
    are drawn after the fit may be any, so their nodes have the widest bounds and the lowest power factor.
    """
    model, (nodes, nominal_kw) = config.model, some_loaded_nodes(feeder)
    if model.private_classes:
        labels = [("", *model.bounds_of_class, *model.power_factor_of_class)] * len(nodes)
    else:
        first = next((label for label in services.class_of if label is not None), ONE_CLASS)
        labels = [(label,) for label in declared_classes(config, feeder, nodes, first)]
    pairs = [[model.bounds_of_class.get(label, model.bounds) for label in own] for own in labels]
    factors = [
        [model.power_factor_of_class.get(label, model.power_factor) for label in own] for own in labels
    ]
    own, tangent = declared_factors(config, feeder, nodes), [max(map(tan_theta_of, each)) for each in factors]
    scale = nominal_kw * config.nodes.scale_factor if model.use_scale else np.ones(len(nodes))
    low, high = (
        kw_to_pu(scale * [best(pair[end] for pair in each) for each in pairs], feeder.base_mva)
        for end, best in enumerate((min, max))
    )
    # Multiples of 30 degrees, each well inside a third of the circle.
    phase = ((feeder.nominal_angle_deg[feeder.retained[nodes]] + 45.0) % 360.0 // 120.0).astype(np.int64)
    up = (np.arange(8)[:, None] >> phase) & 1
    loads = np.zeros((len(up), len(feeder.retained)), dtype=np.complex128)
    loads[:, nodes] = np.where(up, high, low) * (1.0 + 1j * np.where(np.isfinite(own), own, tangent))
    return loads


def _public_loads(
    config: Config, feeder: Feeder, services: Services, sizes: IntArray, nominal_kw: FloatArray | None = None
) -> PublicLoads:
    """Loads of `sizes` customers; `nominal_kw`, where given, is their scale if the model has scales."""
    first = DEMO_CLASSES[0].name  # classes that are drawn count as the first one
    labels = [label or first for label in declared_labels(config, feeder, services)]
    scaled = config.model.use_scale and services.scale_kw is not None
    course, generator = Course.of(config), np.random.default_rng(_SEED)
    kw, upper = np.zeros((DAYS * course.steps, len(sizes))), np.zeros(len(sizes))
    for label in sorted(set(labels)):
        chosen = np.array([k for k, own in enumerate(labels) if own == label and sizes[k]], dtype=np.int64)
        low, high = config.model.bounds_of_class.get(label, config.model.bounds)
        each, own_kw = _pool(label, course)
        scale = np.ones(_POOL)
        if scaled:
            each = each / own_kw[:, None]
            scale = _declared_scales(services, label, generator) if nominal_kw is None else scale
        pool = scale[:, None] * np.clip(each, low, high)
        size = nominal_kw[chosen] if scaled and nominal_kw is not None else np.ones(len(chosen))
        picked = generator.multinomial(sizes[chosen], np.full(_POOL, 1.0 / _POOL))
        kw[:, chosen] = (picked @ pool).T * size
        upper[chosen] = (picked @ scale) * high * size
    tangent = _tangents(config, feeder, labels)
    drawn, most = (kw_to_pu(power, feeder.base_mva) * (1.0 + 1j * tangent) for power in (kw, upper))
    return PublicLoads(drawn, most)


@lru_cache(maxsize=8)
def _pool(label: str, course: Course) -> tuple[FloatArray, FloatArray]:
    """(customer, snapshot) [kW] of simulated customers, and their scales [kW]."""
    own = next((kind for kind in DEMO_CLASSES if kind.name == label), DEMO_CLASSES[0])
    history = simulate_load_history(
        _POOL, n_days=DAYS, step_minutes=24 * 60 // course.steps, seed=_SEED, classes=(own,)
    )
    assert history.scale_kw is not None
    each, scale_kw = np.asarray(history.load_kw).reshape(_POOL, -1), history.scale_kw
    for kept in (each, scale_kw):  # for all feeders
        kept.flags.writeable = False
    return each, scale_kw


def _declared_scales(services: Services, label: str, generator: np.random.Generator) -> FloatArray:
    """(customer,) scales [kW] drawn from those that are declared for a class, or for all."""
    assert services.scale_kw is not None
    of_class = np.array([own == label for own in services.class_of], dtype=bool)
    declared = services.scale_kw[of_class] if of_class.any() else services.scale_kw
    return np.asarray(generator.choice(np.sort(declared), size=_POOL))


def _tangents(config: Config, feeder: Feeder, labels: Sequence[str]) -> FloatArray:
    """(load,) tan θ that the config declares."""
    section, own = config.model, factors_by_load(config, feeder)
    of_class = [
        tan_theta_of(section.power_factor_of_class.get(label, section.power_factor)) for label in labels
    ]
    return np.where(np.isfinite(own), own, of_class)


USUAL, ENDURED = (0.9, 1.1), (0.8, 1.2)
"""Voltages that a corpus is expected to have, and outside which no feeder is operated [p.u.]."""


@dataclass(frozen=True)
class Look:
    """What public loads do on some networks.

    Attributes
    ----------
    networks, snapshots : how many were solved, snapshots of all networks together.
    unsolved : snapshots without solution.
    unusual, strained : solved snapshots with a voltage outside `USUAL`, or `ENDURED`, somewhere.
    lowest, highest : voltage of any node with a load [p.u.], None where nothing is solved.
    within : share of voltages in ANSI range A, of the snapshots with a solution.
    idle : whether every network has a solution without load.
    """

    networks: int
    snapshots: int
    unsolved: int
    unusual: int
    strained: int
    lowest: float | None
    highest: float | None
    within: float | None
    idle: bool = True

    @property
    def unsolved_share(self) -> float:
        """Share of snapshots without solution."""
        return self.unsolved / max(self.snapshots, 1)

    @property
    def unusual_share(self) -> float:
        """Share of snapshots without solution, or with unusual voltages."""
        return (self.unsolved + self.unusual) / max(self.snapshots, 1)

    @property
    def bad_share(self) -> float:
        """Share of snapshots without solution, or with voltages that no feeder is operated at."""
        return (self.unsolved + self.strained) / max(self.snapshots, 1)


@dataclass(frozen=True, eq=False)
class _Solved:
    """Snapshots of one network.

    Attributes
    ----------
    snapshots, unsolved : how many, and how many of them without solution.
    v : (solved snapshot, node with load) magnitudes [p.u.].
    """

    snapshots: int
    unsolved: int
    v: FloatArray

    def outside(self, limits: tuple[float, float]) -> int:
        """Solved snapshots with a voltage outside these limits somewhere."""
        return int(np.sum((self.v < limits[0]).any(axis=1) | (self.v > limits[1]).any(axis=1)))


def _solved(solver: Solver, generation: Generation | None, load: ComplexArray) -> _Solved:
    feeder, by_element = solver.feeder, solver.columns == "elements"
    if not by_element:
        shares = feeder.load_shares.tocsr()[feeder.retained]
        load = np.asarray((shares @ load.T).T)
    injected = None
    if generation is not None:
        days = np.arange(DAYS)
        injected = generation.by_system(days) if by_element else generation.of(days)
    solution = solver.solve(np.ascontiguousarray(load), injected)
    solved = solution.converged
    return _Solved(len(solved), int(np.sum(~solved)), modulus(solution.v[solved]))


WARNED, REFUSED = 0.01, 0.10
"""Share of unusual snapshots on stand-ins above which a release is warned of, of bad ones above which it is
refused."""
_DOUBLINGS = 20
_DIGITS = 2
_HALVINGS = 12


@dataclass(frozen=True)
class Feasibility:
    """Whether power flow works with public loads.

    Attributes
    ----------
    public : on public stand-ins; None in a mode that has none.
    internal : INTERNAL, on the network itself; None where it is not checked.
    kw_per_customer : PUBLIC. What to set nodes.kw_per_customer to so that less than 1 % of the snapshots on
        stand-ins are unusual; None where nothing is to be changed, or where it does not help.
    """

    public: Look | None = None
    internal: Look | None = None
    kw_per_customer: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """PUBLIC. What the owner should know before the release is made."""
        if self.public is None or self.public.unusual_share <= WARNED:
            return ()
        return (f"{_found(self.public)}; {_advice(self.kw_per_customer)}",)


@dataclass(frozen=True, eq=False)
class Trial:
    """How a release would be solved, with public loads in place of drawn ones.

    Attributes
    ----------
    inputs : PRIVATE. Of the release.
    maker : of a mode, steps of a day → what makes the solver.
    loads : of a config: its public loads.
    """

    inputs: NetworkInputs
    maker: Callable[[int], SolverMaker]
    loads: Callable[[Config], PublicLoads]

    def look(self, networks: Iterable[Feeder], config: Config | None = None) -> Look:
        """Solve days and corners of the loads of the config, or of another one, on every network.

        Parameters
        ----------
        networks : have the same loads in the same order.
        """
        loads, course = self.loads(config or self.inputs.config), Course.of(self.inputs.config)
        sun = self.inputs.irradiance
        if sun is not None:
            # From the whole year: one day in its first half, one in its second.
            sampled = [len(sun) // (2 * DAYS) + k * len(sun) // DAYS for k in range(DAYS)]
            sun = sun[sampled][:, :: course.stride]
        inputs = replace(self.inputs, irradiance=sun)
        days: list[_Solved] = []
        idle = True
        for feeder in networks:
            solar = inputs.solar_on(feeder)
            solver = self.maker(course.steps)(feeder, solar, None)
            days.append(_solved(solver, solar.generation, loads.drawn))
            # A whole day of it, as controls that remember want whole days; at night, without sun.
            idle &= not _solved(solver, None, np.zeros_like(loads.drawn[: course.steps])).unsolved
        v = np.concatenate([one.v.ravel() for one in days])
        return Look(
            networks=len(days),
            snapshots=sum(one.snapshots for one in days),
            unsolved=sum(one.unsolved for one in days),
            unusual=sum(one.outside(USUAL) for one in days),
            strained=sum(one.outside(ENDURED) for one in days),
            lowest=float(v.min()) if v.size else None,
            highest=float(v.max()) if v.size else None,
            within=float(np.mean((v >= RANGE_A[0]) & (v <= RANGE_A[1]))) if v.size else None,
            idle=idle,
        )


def on_twins(trial: Trial, twins: tuple[Feeder, ...], structure: Feeder) -> Feasibility:
    """Solve public stand-ins and the network itself; refuse what could not be released.

    Parameters
    ----------
    twins : PUBLIC. Of a stand-in.
    structure : the network itself, rounded as a twin is.

    Raises
    ------
    ConfigError : more than a tenth of the snapshots on stand-ins are bad, or the network has no solution
        without load. Nothing was spent.
    """
    public = trial.look(twins)
    found = Feasibility(public)
    if public.unusual_share > WARNED:
        found = Feasibility(public, kw_per_customer=_enough(trial, twins))
    if public.bad_share > REFUSED:
        raise ConfigError(
            f"{_found(public)}; {_advice(found.kw_per_customer)}; nothing was spent", code="no-power-flow"
        )
    internal = trial.look([structure])
    if not internal.idle:
        raise ConfigError(
            "the network has no power-flow solution without load; check sources, transformers and "
            "capacitors with 'dp-powerflow inspect'; nothing was spent",
            code="no-power-flow",
        )
    return replace(found, internal=internal)


def refuse_unsolved_corners(
    config: Config, solver: Solver, loads: ComplexArray, sun: FloatArray | None
) -> None:
    """Refuse loads within declared bounds that have no solution on a network where nothing is scaled down.

    Parameters
    ----------
    loads : (corner, retained) [p.u.].
    sun : (retained,) most that PV produces [p.u.]; None without PV. Every corner has all of it, and none.

    Raises
    ------
    ConfigError : INTERNAL, as it names the largest scale that has solutions. Nothing was spent.
    """
    both = None if sun is None else np.repeat([np.zeros_like(sun), sun], len(loads), axis=0) + 0j
    corners = loads if both is None else np.concatenate([loads, loads])

    def solved(share: float) -> bool:
        return bool(solver.solve(share * corners, both).converged.all())

    if solved(1.0):
        return
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if solved(middle) else (low, middle)
    scaled = config.model.use_scale
    key, size = ("nodes.scale_factor", config.nodes.scale_factor) if scaled else ("loads", 1.0)
    largest = f"the largest {key} at which all have one is {low * size:.3g}"
    found = largest if low else "nor have far lower loads"
    raise ConfigError(
        "INTERNAL: with the loads of some phases at their upper bounds, the others at their lower ones and "
        "PV at none or all of its power, the network has no power-flow solution, so that a release could be "
        f"refused after it is paid; {found}, which follows from the network; lower "
        "nodes.scale_factor, model.bounds or PV on public grounds; nothing was spent",
        code="no-power-flow",
    )


def _enough(trial: Trial, twins: tuple[Feeder, ...]) -> float | None:
    """PUBLIC. The first doubling of nodes.kw_per_customer at which stand-ins are hardly ever unusual."""
    config = trial.inputs.config
    before = trial.loads(config).upper.sum()
    for k in range(1, _DOUBLINGS + 1):
        per = float(f"{config.nodes.kw_per_customer * 2.0**k:.{_DIGITS}g}")
        factor = per / config.nodes.kw_per_customer
        of_class = {name: value * factor for name, value in config.nodes.kw_per_customer_of_class.items()}
        nodes = config.nodes.model_copy(update={"kw_per_customer": per, "kw_per_customer_of_class": of_class})
        other = config.model_copy(update={"nodes": nodes})
        now = trial.loads(other).upper.sum()
        if now == before:  # one customer everywhere, or customers are counted and not derived
            return None
        if trial.look(twins, other).unusual_share <= WARNED:
            return per
        before = now
    return None


def _found(look: Look) -> str:
    shares = [100.0 * count / look.snapshots for count in (look.unsolved, look.unusual)]
    return (
        f"with public customers on public networks of this structure, {shares[0]:.0f} % of the snapshots "
        f"have no power-flow solution, so that their loads would be lowered, and {shares[1]:.0f} % have "
        f"voltages outside {USUAL[0]:g} to {USUAL[1]:g} p.u."
    )


def _advice(kw_per_customer: float | None) -> str:
    if kw_per_customer is not None:
        return (
            f"set nodes.kw_per_customer = {kw_per_customer:g} (nodes.kw_per_customer_of_class alike), at "
            f"which {100.0 * WARNED:g} % or less are of either kind"
        )
    return (
        "lower model.bounds or the customers of the load table and the service map, or, if it is too much "
        "voltage, look at PV systems and regulators"
    )
