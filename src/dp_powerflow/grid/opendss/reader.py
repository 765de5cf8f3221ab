"""OpenDSS circuits → `Feeder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from dp_powerflow._bits.elementary import degrees, joined, modulus
from dp_powerflow._bits.elementary import solve as small_solve
from dp_powerflow.grid.feeder import (
    GROUND,
    NO_REGULATORS,
    TAPS_GIVEN,
    TAPS_SOLVED,
    Feeder,
    Line,
    Load,
    PVSystem,
    Tap,
    fed_nodes,
)
from dp_powerflow.grid.opendss import engine as dss
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine, Properties
from dp_powerflow.grid.opendss.operation import (
    OTHER_SOURCES,
    OperationBuilder,
    as_branches_see,
    coil_kv,
    load_multiplier,
    load_response,
    operation_of,
    read_declared,
)
from dp_powerflow.grid.operation import Generator, unfed_generators
from dp_powerflow.grid.refusals import Problems, refusal, said
from dp_powerflow.units import BoolArray, ComplexArray, FloatArray, admittance_base_siemens

METRES = {1: 1609.344, 2: 304.8, 3: 1000.0, 4: 1.0, 5: 0.3048, 6: 0.0254, 7: 0.01, 8: 0.001}
"""Number of a unit of length in the engine → metres; a unit that is missing has none."""
_NEUTRAL_BELOW = 0.2
_GROUNDED_BELOW_PU = 1e-3
_PLAUSIBLE_PU = (0.6, 1.6)
_ANGLE_STEP_DEG = 30.0


def read_dss(
    origin: DssOrigin,
    *,
    name: str,
    taps: Sequence[Tap] | None = None,
    base_mva: float = 1.0,
    engine: Engine | None = None,
) -> Feeder:
    """Compile a circuit and translate it.

    Parameters
    ----------
    taps : ratios of the regulators; None solves them once at nominal load, without generation, and freezes
        them.
    base_mva : power base per phase [MVA].
    engine : has run the commands of the origin already; None compiles them in the one of `engine_of`.

    Raises
    ------
    FeederError : OpenDSS objects to something, or the circuit cannot be represented.
    """
    engine = dss.build_circuit(origin, dss.engine_of(origin)) if engine is None else engine
    with dss.objections("feeder-rejected.cannot-say", origin.where):
        return _translated(engine, origin, name, taps, base_mva)


def _translated(
    engine: Engine, origin: DssOrigin, name: str, taps: Sequence[Tap] | None, base_mva: float
) -> Feeder:
    notes: list[str] = list(origin.notes)
    problems = Problems()
    idle = sorted(dss.idle_devices(engine).items())
    notes += [said("note.idle", count=count, kind=kind) for kind, count in idle]
    declared = read_declared(engine)
    for kind, count in sorted(dss.settle_controls(engine, origin).items()):
        acts = kind in ("capcontrol", "invcontrol")
        left_out = "do not act where controls are frozen" if acts else "are left out"
        notes.append(said("note.controls", count=count, kind=kind, left_out=left_out))
    if origin.allocates and not origin.loads_declared:
        notes.append(said("note.allocates"))
    named_loads = _declared_loads(engine, notes, declared.refused)
    for kind, count in sorted(dss.disable_injections(engine, but="load").items()):
        if kind == "generator":
            notes.append(f"{count} generators are left out where controls are frozen")
        elif kind not in OTHER_SOURCES:  # which the operation says
            problems.add(refusal("feeder-not-modelled.class", kind=kind, count=count))
    taps_from, frozen = _freeze_taps(engine, origin, taps)
    dss.disable_injections(engine)
    if not dss.solve(engine, origin):
        raise refusal("feeder-unsolved.no-load")

    circuit = engine.ActiveCircuit
    bus_nodes = [node.lower() for node in circuit.YNodeOrder]
    index = {node: k for k, node in enumerate(bus_nodes)}
    volts = np.asarray(engine.YMatrix.getV()).view(np.complex128)[1:]
    base_kv = _base_kv(engine, bus_nodes, modulus(volts), notes)
    y_siemens = _system_admittance(engine, len(bus_nodes))
    y_siemens, emf_nodes, emf_volts = _with_emf_nodes(engine, y_siemens, bus_nodes, index)

    source_kv = base_kv[[index[node] for node in emf_nodes]]
    all_kv = np.concatenate([base_kv, source_kv])
    all_volts = np.concatenate([volts, emf_volts])
    phasor = joined(all_volts.real / all_kv / 1000.0, all_volts.imag / all_kv / 1000.0)
    magnitude = modulus(phasor[: len(bus_nodes)])
    behind = (node.rsplit(".", 1) for node in emf_nodes)
    nodes = (*bus_nodes, *(f"emf({bus}).{phase}" for bus, phase in behind))
    sources = np.arange(len(bus_nodes), len(nodes))
    neutral = _neutral_nodes(bus_nodes, magnitude, fed_nodes(y_siemens, sources))
    _note_wrong_bases(bus_nodes, magnitude, neutral, notes)
    factors = 1.0 / np.sqrt(admittance_base_siemens(all_kv, base_mva))
    scale = sp.diags_array(factors)
    angles = _ANGLE_STEP_DEG * np.round(degrees(phasor) / _ANGLE_STEP_DEG)
    at = _Places({**index, None: GROUND}, neutral)
    loads = list(at.placed("load", named_loads, problems))
    pv = list(at.placed("PV system", declared.pv, problems))
    generators = list(at.placed("generator", declared.generators, Problems()))
    declared.left_out += unfed_generators(len(declared.generators) - len(generators))
    problems.refuse()
    between = sum(any(neutral & set(pair) for pair in load.branches) for load in loads)
    if between:
        notes.append(said("note.neutral-loads", between=between))
    declared.refused += [
        said("operated.pv-neutral", system=system)
        for system in pv
        if system.curve is not None and any(neutral & set(pair) for pair in system.branches)
    ]
    return Feeder(
        name=name,
        nodes=nodes,
        base_kv=all_kv,
        base_mva=base_mva,
        y=sp.csc_array(scale @ y_siemens @ scale),
        slack=sources,
        v_slack=phasor[len(bus_nodes) :],
        nominal_angle_deg=angles,
        loads=tuple(loads),
        pv=tuple(as_branches_see(system, angles) for system in pv),
        lines=_lines(engine, index, all_kv, base_mva),
        taps=frozen,
        taps_from=taps_from,
        coordinates=_coordinates(engine),
        notes=tuple(notes),
        neutral=np.array(sorted(neutral), dtype=np.int64),
        origin=origin,
        operation=operation_of(
            engine,
            OperationBuilder(nodes, index, y_siemens, factors),
            declared,
            tuple(generators),
            dss.regulated_taps(engine),
        ),
    )


def _freeze_taps(
    engine: Engine, origin: DssOrigin, taps: Sequence[Tap] | None
) -> tuple[str, tuple[Tap, ...]]:
    """Settle the regulators, switch all controls off; where the taps come from, and the taps."""
    if taps is not None:
        dss.set_taps(engine, taps)
        _refuse_missing_taps(engine, taps)
        dss.run(engine, dss.CONTROLS_OFF, origin)
        return TAPS_GIVEN, tuple(taps)
    regulators = engine.ActiveCircuit.RegControls.Count
    if regulators:
        dss.run(engine, "Set Mode=Snapshot ControlMode=STATIC MaxControlIter=100 MaxIterations=500", origin)
        if not dss.solve(engine, origin):
            raise refusal("taps.not-found")
    frozen = dss.regulated_taps(engine)
    dss.run(engine, dss.CONTROLS_OFF, origin)
    return (TAPS_SOLVED if regulators else NO_REGULATORS), frozen


def _refuse_missing_taps(engine: Engine, taps: Sequence[Tap]) -> None:
    """A regulated winding that is not listed would keep what the file's own solution left: a private tap."""
    given = {(tap.transformer.lower(), tap.winding) for tap in taps}
    missing = [tap for tap in dss.regulated_taps(engine) if (tap.transformer, tap.winding) not in given]
    Problems(refusal("taps.lacks-regulated", tap=tap) for tap in missing).refuse()


# ---------------------------------------------------------------- loads and PV, still by node name


def _declared_loads(
    engine: Engine, notes: list[str], refused: list[str]
) -> list[tuple[Load, dss.NamedBranches]]:
    circuit = engine.ActiveCircuit
    declared: list[tuple[Load, dss.NamedBranches]] = []
    for loads in circuit.Loads:
        delta, name = bool(loads.IsDelta), loads.Name.lower()
        dss.refuse_open(engine, f"load '{name}'")
        phases, own = int(circuit.ActiveCktElement.NumPhases), Properties(engine, "load", name)
        multiplier = load_multiplier(engine, own)
        load = Load(
            name=name,
            branches=(),
            kw=float(loads.kW) * multiplier,
            kvar=float(loads.kvar) * multiplier,
            connection="delta" if delta else "wye",
            label=str(loads.Class) if int(loads.Class) > 1 else None,
            rated_kv=coil_kv(float(loads.kV), phases, delta=delta),
            response=load_response(own, name, refused),
        )
        branches = dss.named_branches(engine, delta)
        if not delta and branches[0][1] is not None and own.number("rneut") >= 0.0:
            refused.append(said("operated.rneut", name=name))
        declared.append((load, branches))
    replaced = sum(not load.constant_power for load, _ in declared)
    if replaced:
        notes.append(said("note.not-constant", replaced=replaced, count=len(declared)))
    if circuit.Solution.LoadMult != 1.0:
        notes.append(said("note.multiplier", circuit=circuit))
    return declared


Element = TypeVar("Element", Load, PVSystem, Generator)


@dataclass(frozen=True)
class _Places:
    """Where nodes of the circuit are, by name (None is ground), and which of them are neutral."""

    index: dict[str | None, int]
    neutral: frozenset[int]

    def placed(
        self, what: str, named: Iterable[tuple[Element, dss.NamedBranches]], problems: Problems
    ) -> Iterator[Element]:
        """The elements at their nodes; what of them cannot be placed is a problem."""
        for element, names in named:
            with problems.gather():
                yield replace(element, branches=self.branches(f"{what} '{element.name}'", names))

    def branches(self, what: str, names: dss.NamedBranches) -> tuple[tuple[int, int], ...]:
        """The branches of an element, by the indices of their nodes."""
        unknown = [name for pair in names for name in pair if name not in self.index]
        if unknown:
            raise refusal("feeder-unknown-bus.node", what=what, name=unknown[0])
        branches = tuple((self.index[first], self.index[second]) for first, second in names)
        grounded = self.neutral | {GROUND}
        if any(i == j or {i, j} <= grounded for i, j in branches):
            raise refusal("feeder.connection", what=what)
        return branches


# ---------------------------------------------------------------------------- network


def _system_admittance(engine: Engine, n: int) -> sp.csc_array:
    """Y of the whole circuit [S], sources as Norton equivalents."""
    data, indices, pointers = engine.YMatrix.GetCompressedYMatrix()
    y = sp.csc_array((np.asarray(data), np.asarray(indices), np.asarray(pointers)), shape=(n, n))
    if not np.all(np.isfinite(y.data)):
        raise refusal("feeder-zero-impedance.element")
    return y


def _with_emf_nodes(
    engine: Engine, y: sp.csc_array, nodes: list[str], index: dict[str, int]
) -> tuple[sp.csc_array, list[str], ComplexArray]:
    """Append one ideal node per source conductor, behind the source's own impedance.

    Returns Y [S], the bus nodes behind which the EMFs stand, and the EMFs [V].
    """
    circuit = engine.ActiveCircuit
    source = sp.lil_array((len(nodes), len(nodes)), dtype=np.complex128)
    for sources in circuit.Vsources:
        element = circuit.ActiveCktElement
        conductors = int(element.NumConductors)
        terminal = dss.terminal_nodes(element)
        if any(node is not None for node in terminal[conductors:]):
            raise refusal("feeder.source-between", sources=sources)
        at = [index[node] for node in terminal[:conductors] if node is not None]
        block = dss.primitive(element)[:conductors, :conductors]
        for row, i in enumerate(at):
            for column, j in enumerate(at):
                source[i, j] += block[row, column]
    rows = np.unique(source.nonzero()[0])
    coupling = source.tocsc()[:, rows]
    inner = coupling[rows, :]
    currents = np.asarray(engine.YMatrix.getI()).view(np.complex128)[1:]
    emf = small_solve(inner.toarray(), currents[rows])
    extended = sp.block_array([[y, -coupling], [-coupling.T, inner]], format="csc")
    return sp.csc_array(extended), [nodes[k] for k in rows], emf


def _lines(engine: Engine, index: dict[str, int], base_kv: FloatArray, base_mva: float) -> tuple[Line, ...]:
    circuit = engine.ActiveCircuit
    lines: list[Line] = []
    for own in circuit.Lines:
        element = circuit.ActiveCktElement
        conductors = [
            (k, index[node]) for k, node in enumerate(dss.terminal_nodes(element)) if node is not None
        ]
        kept = [k for k, _ in conductors]
        nodes = tuple(node for _, node in conductors)
        scale = 1.0 / np.sqrt(admittance_base_siemens(base_kv[list(nodes)], base_mva))
        metres = METRES.get(int(own.Units))
        lines.append(
            Line(
                name=own.Name.lower(),
                nodes=nodes,
                primitive=dss.primitive(element)[np.ix_(kept, kept)] * np.outer(scale, scale),
                length_m=float(own.Length) * metres if metres else None,
                is_switch=bool(own.IsSwitch),
                code=own.LineCode.lower() or None,
            )
        )
    return tuple(lines)


def _base_kv(engine: Engine, nodes: list[str], volts: FloatArray, notes: list[str]) -> FloatArray:
    """Line-to-neutral base voltage of every node [kV]."""
    circuit = engine.ActiveCircuit
    declared = {bus.Name.lower(): float(bus.kVBase) for bus in circuit.ActiveBus}
    buses = [node.rsplit(".", 1)[0] for node in nodes]
    base_kv = np.array([declared[bus] for bus in buses])
    missing = base_kv <= 0.0
    if missing.any():
        base_kv = np.where(missing, _highest_of_bus(nodes, volts / 1000.0), base_kv)
        notes.append(said("note.no-base", count=int(missing.sum())))
    return np.where(base_kv > 0.0, base_kv, 1.0)  # what nothing feeds has no voltage at all


def _highest_of_bus(nodes: list[str], values: FloatArray) -> FloatArray:
    """(node,) the highest value at the bus of every node."""
    buses, highest = [node.rsplit(".", 1)[0] for node in nodes], dict[str, float]()
    for bus, value in zip(buses, values.tolist(), strict=True):
        highest[bus] = max(highest.get(bus, 0.0), value)
    return np.array([highest[bus] for bus in buses])


def _neutral_nodes(nodes: list[str], magnitude: FloatArray, fed: BoolArray) -> frozenset[int]:
    """Nodes near ground potential without load: far below the other nodes of their bus, or at zero.

    Nodes that nothing feeds are at zero too; they are islands, not neutral.
    """
    low = np.maximum(_NEUTRAL_BELOW * _highest_of_bus(nodes, magnitude), _GROUNDED_BELOW_PU)
    return frozenset(np.flatnonzero(fed[: len(nodes)] & (magnitude < low)).tolist())


def _note_wrong_bases(
    nodes: list[str], magnitude: FloatArray, neutral: frozenset[int], notes: list[str]
) -> None:
    low, high = _PLAUSIBLE_PU
    odd = [k for k in range(len(nodes)) if k not in neutral and not low <= magnitude[k] <= high]
    if odd:
        notes.append(said("note.wrong-base", count=len(odd), node=nodes[odd[0]]))


def _coordinates(engine: Engine) -> dict[str, tuple[float, float]]:
    return {
        bus.Name.lower(): (float(bus.x), float(bus.y))
        for bus in engine.ActiveCircuit.ActiveBus
        if bus.Coorddefined
    }
