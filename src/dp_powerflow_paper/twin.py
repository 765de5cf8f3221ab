"""Twins of public feeders: what noise costs in accuracy, beside what no mechanism can do better.

Every figure comes from real twins: `draw_twin`, rebuilt by the engine of the feeder, taps as declared.
Feeders, loads and sun are public ones, or those of a config.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dp_powerflow import BatchSolver, Config, Feeder, Protected, StreamKey, TwinDesign, open_feeder
from dp_powerflow._bits.elementary import modulus
from dp_powerflow.config import TwinNetwork
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.grid.feeder import TAPS_DECLARED, ParameterKey
from dp_powerflow.grid.sources import BUILT_IN, TapTable
from dp_powerflow.lowlevel import (
    GAUSSIAN_DELTA,
    LOG_GRID,
    Chain,
    Levels,
    Processes,
    Quantity,
    Rebuilder,
    VoltVar,
    cores,
    draw_twin,
    figure_bytes,
    gdp_epsilon,
    new_figure,
    parameters_of,
    surrogate_load,
    twin_guarantee,
    voltage_distance,
)
from dp_powerflow.pipeline.inputs import feeder_of, require_declared_taps
from dp_powerflow.twin.choosing import LARGE_CHANGE, SCALES, Figures
from dp_powerflow.twin.design import CHANGE, STEPS, Noise, shift_of
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset
from dp_powerflow_paper.run import Written, block, store_of, write_report

SIMBENCH = "simbench:1-MV-rural--0-no_sw"
SURROGATE_FEEDERS = ("ieee13", SIMBENCH)
SPREAD_DAYS, THINNED = 28, 16
"""Days over the year, of whose snapshots every 16th is solved."""


@dataclass(frozen=True, eq=False)
class Setting:
    """A feeder under loads and generation.

    Attributes
    ----------
    feeder : name of a public feeder; of the release whose `config` has it otherwise.
    load, generation : complex (snapshot, retained) [p.u.]; None without PV.
    voltvar : control of the PV systems, the same on every twin.
    compared : positions among the retained nodes of those whose voltages are compared; None for all.
    """

    feeder: str
    words: str
    load: ComplexArray
    generation: ComplexArray | None = None
    voltvar: VoltVar | None = None
    compared: IntArray | None = None
    config: Config | None = None
    network: str = ""

    @property
    def identity(self) -> str:
        """Hash of what is solved; a public network goes by its name, another by `network`."""
        words = (self.feeder, self.network, self.voltvar and self.voltvar.curves, self.own_design)
        digest = hashlib.sha256(repr(words).encode())
        for array in (self.load, self.generation, self.compared):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def own_design(self) -> TwinDesign | None:
        """That of the config, if it is about a twin."""
        network = None if self.config is None else self.config.network
        return network.design if isinstance(network, TwinNetwork) else None

    def open(self) -> Feeder:
        """Its feeder, with declared taps."""
        return public_feeder(self.feeder) if self.config is None else feeder_of(self.config)

    def rebuilder(self, feeder: Feeder, protected: Protected) -> Rebuilder:
        """The feeder's source, for twins of it."""
        islands = self.config is not None and self.config.feeder.drop_islanded
        return Rebuilder(feeder, protected, drop_islanded=islands)

    def magnitudes(self, feeder: Feeder) -> FloatArray:
        """|v| (snapshot, compared node) [p.u.] on any network; refuses snapshots without a solution."""
        solution = BatchSolver(feeder, voltvar=self.voltvar).solve(self.load, self.generation)
        solution.raise_if_failed()
        return modulus(solution.v if self.compared is None else solution.v[:, self.compared])


def settings_of(options: ExperimentOptions) -> list[Setting]:
    """IEEE 123 under the chosen profiles and two feeders under a public day; or the feeder of a config."""
    data = open_dataset(options)
    days = data.spread_days(min(SPREAD_DAYS, data.n_days))
    load = np.zeros((len(days) * data.n_steps, data.network.n), dtype=np.complex128)
    load[:, data.loaded] = data.true_load(days).reshape(len(load), -1)
    sun = None if data.generation is None else data.generation.of(days)[::THINNED]
    own = Setting(data.feeder.name, data.words, load[::THINNED], sun, data.voltvar, data.loaded)
    if options.config is None:
        return [own, *(surrogate(name) for name in SURROGATE_FEEDERS)]
    require_declared_taps(options.config, data.feeder)
    return [replace(own, feeder=data.name, config=options.config, network=data.identity)]


def public_feeder(name: str) -> Feeder:
    """A public feeder; the taps of its regulators are declared, so that all twins have the same."""
    feeder = open_feeder(name)
    if name not in BUILT_IN:  # a SimBench code is public with its taps
        return feeder
    return open_feeder(name, taps=TapTable(feeder.taps, f"{TAPS_DECLARED}the public test feeder"))


def surrogate(name: str) -> Setting:
    """A public feeder under a scattered day of public loads."""
    return Setting(name, f"{name} under a public day of loads", surrogate_load(public_feeder(name)))


FLOOR_EPSILONS = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class DesignRow:
    """One design on one feeder: what it promises for 5 % and 50 %, and W1 over its draws [p.u.].

    Attributes
    ----------
    draws, failed : twins drawn, and how many of them had a snapshot without power flow.
    pooled, worst_node : mean over draws, each with its standard error.
    """

    kind: str
    epsilon: float
    large_epsilon: float
    delta: float
    advantage: float
    large_advantage: float
    draws: int
    failed: int
    pooled: tuple[float, float]
    worst_node: tuple[float, float]


_Tables = dict[Setting, list[DesignRow]]
_Floors = dict[Setting, list[Chain]]


def to_markdown(tables: _Tables, chains: _Floors, tried: int | None) -> str:
    """The tables of docs/explanation/twin.md."""
    few = f"A quick run: {tried} elements were tried for the floor, which can be far too low."
    lines = [
        *([few, ""] if tried is not None else []),
        "W1 of voltage magnitudes [p.u.], mean ± standard error over twins. ε and advantage (total variation",
        "of the best test) for one element changed by 5 % / 50 %. Taps as declared, the same on every twin.",
        "",
    ]
    for setting, rows in tables.items():
        lines += block(
            f"**{setting.words}** ({len(setting.load)} snapshots, {rows[0].draws} twins each)",
            "noise | ε | δ | advantage | W1 pooled | W1 of the worst node | without power flow",
            map(_row, rows),
        )
        lines += block(
            "The floor: no mechanism with this ε for 5 % does better on all networks of the chain.",
            "chain | ε | δ | pooled | worst node",
            (_floor_row(chain, epsilon) for chain in chains[setting] for epsilon in FLOOR_EPSILONS),
        )
    return "\n".join(lines)


def _row(row: DesignRow) -> str:
    pooled, worst = (f"{mean:.5f} ± {error:.5f}" for mean, error in (row.pooled, row.worst_node))
    return (
        f"{row.kind} | {row.epsilon:.3g} / {row.large_epsilon:.3g} | {row.delta:g} | "
        f"{row.advantage:.3f} / {row.large_advantage:.3f} | {pooled} | {worst} | {row.failed}"
    )


def _floor_row(chain: Chain, epsilon: float) -> str:
    floor = chain.floor(epsilon, GAUSSIAN_DELTA)
    return f"{floor.words} | {epsilon:g} | {floor.delta:g} | {floor.pooled:.5f} | {floor.worst_node:.5f}"


def draw_figure(tables: _Tables, chains: _Floors, form: str) -> bytes:
    """W1 against ε, one panel per feeder, as the bytes of an SVG or PNG file."""
    figure = new_figure((11.0, 4.2))
    panels: Any = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, (setting, rows) in zip(panels, tables.items(), strict=True):
        for number, kind in enumerate(dict.fromkeys(row.kind for row in rows)):
            own = [row for row in rows if row.kind == kind]
            for which, style in (("pooled", "o-"), ("worst_node", "s--")):
                means, errors = zip(*(getattr(row, which) for row in own), strict=True)
                label = kind if which == "pooled" else None
                at = [row.epsilon for row in own]
                axes.errorbar(at, means, errors, fmt=style, color=f"C{number}", label=label, markersize=4)
        epsilons = np.linspace(0.9, 2.2, 7)
        floors = [chains[setting][0].floor(float(epsilon), GAUSSIAN_DELTA) for epsilon in epsilons]
        axes.plot(epsilons, [floor.pooled for floor in floors], "k-", linewidth=0.8, label="floor, one line")
        axes.plot(epsilons, [floor.worst_node for floor in floors], "k--", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_xlabel("ε for one element changed by 5 %")
        axes.set_title(setting.feeder, fontsize=9)
        axes.grid(True, color="0.92")
    panels[0].set_ylabel("W1 [p.u.]: pooled (solid), worst node (dashed)")
    panels[0].legend(fontsize=7, frameon=False)
    return figure_bytes(figure, form)


@dataclass(frozen=True)
class TwinKind:
    """One kind of twin: its noise and what it is on."""

    words: str
    noise: Noise
    figures: Figures

    def design(self, epsilon: float) -> TwinDesign:
        """At ε for a change of 5 %."""
        delta = 0.0 if self.noise == "laplace" else GAUSSIAN_DELTA
        return TwinDesign(epsilon, CHANGE, self.protected, self.noise, delta)

    @property
    def protected(self) -> Protected:
        """Figures that get noise."""
        if self.figures == "length":
            return Protected(lines="length")
        return Protected(lines="impedance", capacitors=self.figures == "impedance and capacitors")


KINDS: dict[TwinKind, tuple[float, ...]] = {
    TwinKind("Gaussian on lengths", "gaussian", "length"): (1.0,),
    TwinKind("Gaussian on R and X", "gaussian", "impedance"): (1.0,),
    TwinKind("Laplace on lengths", "laplace", "length"): (1.0, 1.5, 2.0),
    TwinKind("K-norm on (R, X)", "laplace", "impedance"): (1.0, 1.6, 2.0),
    TwinKind("K-norm on (R, X), capacitors", "laplace", "impedance and capacitors"): (1.0,),
}
"""Rows of the table: kind → ε for a change of 5 %."""


@dataclass(frozen=True)
class _Size:
    """Draws of a row, draws behind a constant of `plan` (0: none), elements tried for the floor."""

    draws: int
    constants: int
    tried: int | None


CONSTANT_DRAWS = 16
_FULL, _QUICK = _Size(200, CONSTANT_DRAWS, None), _Size(3, 0, 4)


@dataclass(frozen=True)
class Draws:
    """The job of the workers: twins of some designs, numbered through."""

    setting: Setting
    designs: tuple[TwinDesign, ...]
    each: int
    seed: int

    def start(self, threads: int | None) -> Callable[[int], tuple[int, float, float]]:
        """The function that draws one twin: (design, pooled, worst node), NaN where power flow failed."""
        feeder = self.setting.open()
        true = self.setting.magnitudes(feeder)
        of_kind = {design.protected: design for design in self.designs}
        sources = {protected: self.setting.rebuilder(feeder, protected) for protected in of_kind}
        levels = {protected: parameters_of(sources[protected], of_kind[protected]) for protected in of_kind}

        def draw(task: int) -> tuple[int, float, float]:
            index, number = divmod(task, self.each)
            key = StreamKey.from_insecure_seed(self.seed).bind("twin", str(number))
            design = self.designs[index]
            source = sources[design.protected]
            twin = draw_twin(levels[design.protected], design, key).feeder(source)
            try:
                found = voltage_distance(true, self.setting.magnitudes(twin))
            except PowerFlowError:
                return index, float("nan"), float("nan")
            return index, found.pooled, found.worst_node

        return draw


def run(options: ExperimentOptions) -> Written:
    """All tables."""
    size = _QUICK if options.quick else _FULL
    settings = settings_of(options)
    identities = [setting.identity for setting in settings]
    store = store_of(options, "twin", size=asdict(size), version=2, settings=identities)
    tables, chains = {}, {}
    for setting in settings:
        kinds = {kind: epsilons for kind, epsilons in KINDS.items() if _fits(setting, kind)}
        table = store.get_or(f"table-{_file(setting)}", partial(_table, setting, kinds, size, options))
        tables[setting] = [DesignRow(**row) for row in table["rows"]]
        found = store.get_or(f"floor-{_file(setting)}", partial(_chains, setting, size.tried))
        chains[setting] = [Chain(**chain) for chain in found["chains"]]
    public = size.constants and options.config is None
    constants = store.get_or("constants", partial(_constants, size, options)) if public else None
    content = {
        "rows": {s.feeder: [asdict(row) for row in rows] for s, rows in tables.items()},
        "floors": {s.feeder: [asdict(chain) for chain in found] for s, found in chains.items()},
        "constants of plan": constants,
    }
    text = to_markdown(tables, chains, size.tried)
    figures = {"twin": partial(draw_figure, tables, chains)}
    return write_report(options.out, "twin", text, content, figures)


def _file(setting: Setting) -> str:
    return setting.feeder.split(":")[-1]


def _fits(setting: Setting, kind: TwinKind) -> bool:
    """Whether the feeder has all that the kind puts noise on."""
    if not kind.protected.capacitors:
        return True
    found = setting.rebuilder(setting.open(), kind.protected).parameters().levels
    return any(key.quantity is Quantity.CAPACITOR for key in found)


def _table(
    setting: Setting, kinds: dict[TwinKind, tuple[float, ...]], size: _Size, options: ExperimentOptions
) -> dict[str, Any]:
    named = [(kind.words, kind.design(epsilon)) for kind, epsilons in kinds.items() for epsilon in epsilons]
    named += [] if setting.own_design is None else [("as in the config", setting.own_design)]
    job = Draws(setting, tuple(design for _, design in named), size.draws, options.seed)
    found = drawn(job, options)
    rows = [_summary(words, design, found[i]) for i, (words, design) in enumerate(named)]
    return {"rows": [asdict(row) for row in rows]}


def drawn(job: Draws, options: ExperimentOptions) -> FloatArray:
    """W1 (design, draw, 2): pooled and of the worst node; NaN where power flow failed."""
    total = len(job.designs) * job.each
    found: dict[int, list[tuple[float, float]]] = {index: [] for index in range(len(job.designs))}
    done = 0

    def note(result: tuple[int, float, float]) -> None:
        nonlocal done
        done += 1
        found[result[0]].append(result[1:])
        options.progress(done, total)

    Processes(cores()).map(job, range(total), note)
    return np.array([sorted(found[index]) for index in range(len(job.designs))])


def _summary(words: str, design: TwinDesign, found: FloatArray) -> DesignRow:
    small, large = twin_guarantee(design, CHANGE), twin_guarantee(design, LARGE_CHANGE)
    solved = found[~np.isnan(found[:, 0])]
    if not len(solved):
        raise PowerFlowError(f"no twin of '{words}' has power flow on this feeder; lower the loads")
    mean = solved.mean(axis=0)
    error = solved.std(axis=0, ddof=1) / np.sqrt(len(solved))
    return DesignRow(
        kind=words,
        epsilon=small.epsilon,
        large_epsilon=large.epsilon,
        delta=design.delta,
        advantage=small.advantage,
        large_advantage=large.advantage,
        draws=len(found),
        failed=len(found) - len(solved),
        pooled=(float(mean[0]), float(error[0])),
        worst_node=(float(mean[1]), float(error[1])),
    )


# ------------------------------------------------------------------------------------- the floor


def _chains(setting: Setting, tried: int | None) -> dict[str, Any]:
    """Chains of the most influential line, and of the most influential capacitor where there is one."""
    protected = Protected(lines="length", capacitors=True)
    source = setting.rebuilder(setting.open(), protected)
    levels = source.parameters().levels
    of: dict[str, list[str]] = {"line": [], "capacitor": []}
    for key in sorted(levels, key=lambda key: key.element):
        kind = "capacitor" if key.quantity is Quantity.CAPACITOR else "line"
        if key.element not in of[kind]:
            of[kind].append(key.element)

    def changed(kind: str, element: str, factor: float) -> FloatArray:
        return setting.magnitudes(source.build(_scaled(levels, kind, element, factor)))

    true = setting.magnitudes(source.build(levels))
    chains = []
    for kind, elements in of.items():
        some = elements if tried is None else elements[:: max(1, len(elements) // tried)]
        moved = {}
        for element in some:
            distance = voltage_distance(true, changed(kind, element, 1.0 + CHANGE))
            moved[element] = distance.pooled if kind == "line" else distance.worst_node
        if moved:
            most = max(moved, key=lambda element: moved[element])
            chains.append(_chain(f"{kind} {most}", partial(changed, kind, most)))
    return {"chains": [asdict(chain) for chain in chains]}


def chain_of(element: str, magnitudes: Callable[[float], FloatArray], *, down: bool = False) -> Chain:
    """The chain of one element.

    Parameters
    ----------
    magnitudes : factor on the element → voltage magnitudes (snapshot, node) [p.u.].
    down : steps towards smaller figures, where larger ones have no power flow.
    """
    factors = (1.0 + CHANGE) ** ((-1.0 if down else 1.0) * np.arange(STEPS + 1))
    ordered = [np.sort(magnitudes(float(factor)), axis=0) for factor in factors]
    pooled = [np.sort(values, axis=None) for values in ordered]
    away = np.mean(np.abs(ordered[-1] - ordered[0]), axis=0)
    node = int(np.argmax(away))
    return Chain(
        element=element,
        smallest=float(factors.min()),
        largest=float(factors.max()),
        pooled=_least_step(pooled),
        node=_least_step([values[:, node] for values in ordered]),
    )


def _least_step(ordered: list[FloatArray]) -> float:
    """Least step of the distance to the first, which bounds every distance from below; 0 if it ever falls."""
    from_first = np.array([np.mean(np.abs(values - ordered[0])) for values in ordered])
    return max(0.0, float(np.diff(from_first).min()))


def _chain(name: str, at: Callable[[float], FloatArray]) -> Chain:
    try:
        return chain_of(name, at)
    except PowerFlowError:
        return chain_of(name, at, down=True)


def _scaled(levels: Levels, kind: str, element: str, factor: float) -> Levels:
    """One element times a factor, all its figures together."""

    def own(key: ParameterKey) -> bool:
        return key.element == element and (key.quantity is Quantity.CAPACITOR) == (kind == "capacitor")

    return {key: level * factor if own(key) else level for key, level in levels.items()}


# -------------------------------------------------------------------------- the constants of `plan`


def _constants(size: _Size, options: ExperimentOptions) -> dict[str, Any]:
    """`MEAN_DISTANCES` and `CHAINS` of `twin/choosing.py`."""
    distances, chains = {}, {}
    for name in ("ieee13", "ieee123"):
        setting = surrogate(name)
        kinds = [(noise, figures) for noise in _NOISES for figures in _FIGURES]
        designs = [design_of_scale(noise, figures, scale) for noise, figures in kinds for scale in SCALES]
        found = drawn(Draws(setting, tuple(designs), size.constants, 0), options)
        means = np.nanmean(found, axis=1).reshape(len(kinds), len(SCALES), 2)
        for (noise, figures), rows in zip(kinds, means.transpose(0, 2, 1).tolist(), strict=True):
            distances[f"{name}, {noise}, {figures}"] = [[float(f"{v:.3g}") for v in row] for row in rows]
        chains[name] = _chains(setting, size.tried)["chains"][0]
    return {"mean distances": distances, "chains": chains, "scales": SCALES, "draws": size.constants}


_NOISES: tuple[Noise, ...] = ("laplace", "gaussian")
_FIGURES: tuple[Figures, ...] = ("length", "impedance", "impedance and capacitors")


def design_of_scale(noise: Noise, figures: Figures, scale: float) -> TwinDesign:
    """A design whose noise has this scale in the logarithm of a line's figures."""
    kind = TwinKind("", noise, figures)
    moved = shift_of(CHANGE) * LOG_GRID
    if noise == "laplace":
        return kind.design(moved / scale)
    dimension = 1 if figures == "length" else 2
    return kind.design(gdp_epsilon(np.sqrt(dimension) * moved / scale, GAUSSIAN_DELTA))
