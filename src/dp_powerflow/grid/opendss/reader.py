"""OpenDSS circuits → `Feeder`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dp_powerflow._bits.elementary import degrees, joined, modulus
from dp_powerflow._bits.elementary import solve as small_solve
from dp_powerflow.errors import FeederError, TapsError
from dp_powerflow.grid.buses import Problems
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
)
from dp_powerflow.grid.opendss.engine import (
    CONTROLS_OFF,
    DssOrigin,
    Engine,
    NamedBranches,
    Properties,
    build_circuit,
    disable_injections,
    engine_of,
    idle_devices,
    named_branches,
    objections,
    primitive,
    refuse_open,
    regulated_taps,
    run,
    set_taps,
    settle_controls,
    solve,
    terminal_nodes,
)
from dp_powerflow.grid.opendss.operation import (
    OTHER_SOURCES,
    Declared,
    Network,
    as_branches_see,
    coil_kv,
    load_multiplier,
    load_response,
    operation_of,
    read_declared,
)
from dp_powerflow.grid.operation import Generator, unfed_generators
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
    engine : has run the commands of the origin already; None compiles them in that of `engine_of`.

    Raises
    ------
    FeederError : OpenDSS objects to something, or the circuit cannot be represented.
    """
    engine = build_circuit(origin, engine_of(origin)) if engine is None else engine
    with objections(origin):
        return _translated(engine, origin, name, taps, base_mva)


def _translated(
    engine: Engine, origin: DssOrigin, name: str, taps: Sequence[Tap] | None, base_mva: float
) -> Feeder:
    notes: list[str] = list(origin.notes)
    problems = Problems()
    notes += [
        f"{count} controls of class {kind} are disabled, or OpenDSS rejects them; they open nothing"
        for kind, count in sorted(idle_devices(engine).items())
    ]
    declared = read_declared(engine)
    for kind, count in sorted(settle_controls(engine, origin).items()):
        acts = kind in ("capcontrol", "invcontrol")
        left_out = "do not act where controls are frozen" if acts else "are left out"
        notes.append(f"{count} controls of class {kind} {left_out}; what they control is as the file states")
    if origin.allocates and not origin.loads_declared:
        notes.append("the file allocates loads, which is not done; they are as the file states them")
    named_loads = _declared_loads(engine, notes, declared.refused)
    for kind, count in sorted(disable_injections(engine, but="load").items()):
        if kind == "generator":
            notes.append(f"{count} generators are left out where controls are frozen")
        elif kind not in OTHER_SOURCES:  # which the operation says
            problems.add(
                FeederError(
                    f"elements of class {kind} are not modelled ({count}); disable them",
                    code="feeder-not-modelled",
                )
            )
    taps_from, frozen = _freeze_taps(engine, origin, taps)
    disable_injections(engine)
    if not solve(engine, origin):
        raise FeederError(
            "OpenDSS cannot solve the feeder without load; check its sources and impedances",
            code="feeder-unsolved",
        )

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
    neutral = _neutral_nodes(bus_nodes, magnitude, _fed(y_siemens, len(emf_nodes)))
    _note_wrong_bases(bus_nodes, magnitude, neutral, notes)
    factors = 1.0 / np.sqrt(admittance_base_siemens(all_kv, base_mva))
    scale = sp.diags_array(factors)
    nodes = (
        *bus_nodes,
        *(f"emf({node.rsplit('.', 1)[0]}).{node.rsplit('.', 1)[1]}" for node in emf_nodes),
    )
    angles = _ANGLE_STEP_DEG * np.round(degrees(phasor) / _ANGLE_STEP_DEG)
    generators = _fed_generators(declared, index, neutral)
    loads: list[Load] = []
    pv: list[PVSystem] = []
    for load, names in named_loads:
        with problems.gather():
            loads.append(replace(load, branches=_indexed(f"load '{load.name}'", names, index, neutral)))
    for unit, names in declared.pv:
        with problems.gather():
            pv.append(replace(unit, branches=_indexed(f"PV system '{unit.name}'", names, index, neutral)))
    problems.refuse()
    between = sum(any(neutral & set(pair) for pair in load.branches) for load in loads)
    if between:
        notes.append(f"{between} loads stand on a neutral node; where controls are frozen they are grounded")
    declared.refused += [
        f"PV system '{system.name}' has a volt-var curve and stands on a neutral node; ground it"
        for system in pv
        if system.curve is not None and any(neutral & set(pair) for pair in system.branches)
    ]
    return Feeder(
        name=name,
        nodes=nodes,
        base_kv=all_kv,
        base_mva=base_mva,
        y=sp.csc_array(scale @ y_siemens @ scale),
        slack=np.arange(len(bus_nodes), len(bus_nodes) + len(emf_nodes)),
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
            Network(nodes, index, y_siemens, factors, volts),
            declared,
            generators,
            regulated_taps(engine),
        ),
    )


def _freeze_taps(
    engine: Engine, origin: DssOrigin, taps: Sequence[Tap] | None
) -> tuple[str, tuple[Tap, ...]]:
    """Settle the regulators, switch all controls off; where the taps come from, and the taps."""
    if taps is not None:
        set_taps(engine, taps)
        _refuse_missing_taps(engine, taps)
        run(engine, CONTROLS_OFF, origin)
        return TAPS_GIVEN, tuple(taps)
    regulators = engine.ActiveCircuit.RegControls.Count
    if regulators:
        run(engine, "Set Mode=Snapshot ControlMode=STATIC MaxControlIter=100 MaxIterations=500", origin)
        if not solve(engine, origin):
            raise TapsError(
                "OpenDSS finds no tap positions at nominal load; give them in a tap file (--taps FILE)"
            )
    frozen = regulated_taps(engine)
    run(engine, CONTROLS_OFF, origin)
    return (TAPS_SOLVED if regulators else NO_REGULATORS), frozen


def _refuse_missing_taps(engine: Engine, taps: Sequence[Tap]) -> None:
    """A regulated winding that is not listed would keep what the file's own solution left: a private tap."""
    given = {(tap.transformer.lower(), tap.winding) for tap in taps}
    problems = Problems()
    for tap in regulated_taps(engine):
        if (tap.transformer, tap.winding) not in given:
            problems.add(
                TapsError(
                    f"the tap file lacks winding {tap.winding} of transformer '{tap.transformer}', which a "
                    "regulator moves; 'dp-powerflow inspect FEEDER --save-taps FILE' writes all of them"
                )
            )
    problems.refuse()


# ---------------------------------------------------------------- loads and PV, still by node name


def _declared_loads(engine: Engine, notes: list[str], refused: list[str]) -> list[tuple[Load, NamedBranches]]:
    circuit = engine.ActiveCircuit
    declared: list[tuple[Load, NamedBranches]] = []
    for loads in circuit.Loads:
        delta, name = bool(loads.IsDelta), loads.Name.lower()
        refuse_open(engine, f"load '{name}'")
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
        branches = named_branches(engine, delta)
        if not delta and branches[0][1] is not None and own.number("rneut") >= 0.0:
            refused.append(f"load '{name}' has Rneut beside a neutral node; make it a Reactor there")
        declared.append((load, branches))
    replaced = sum(not load.constant_power for load, _ in declared)
    if replaced:
        notes.append(
            f"{replaced} of {len(declared)} loads are not constant power; where controls are frozen they are"
        )
    if circuit.Solution.LoadMult != 1.0:
        notes.append(f"nominal loads include the circuit's load multiplier {circuit.Solution.LoadMult:g}")
    return declared


def _fed_generators(
    declared: Declared, index: dict[str, int], neutral: frozenset[int]
) -> tuple[Generator, ...]:
    """Generators at their nodes; those that nothing feeds are left out."""
    found, unfed = [], 0
    for each, names in declared.generators:
        try:
            found.append(replace(each, branches=_indexed(f"generator '{each.name}'", names, index, neutral)))
        except FeederError:
            unfed += 1
    declared.left_out += unfed_generators(unfed)
    return tuple(found)


def _indexed(
    what: str, names: NamedBranches, index: dict[str, int], neutral: frozenset[int]
) -> tuple[tuple[int, int], ...]:
    def resolve(name: str | None) -> int:
        if name is None:
            return GROUND
        if name not in index:
            raise FeederError(
                f"{what} is on node {name}, which no line or transformer reaches; "
                "correct its bus, or remove it",
                code="feeder-unknown-bus",
            )
        return index[name]

    branches = tuple((resolve(first), resolve(second)) for first, second in names)
    grounded = neutral | {GROUND}
    if any(i == j or {i, j} <= grounded for i, j in branches):
        raise FeederError(
            f"{what} is connected from a node to itself or to ground only, or to a phase that an open switch "
            "or fuse leaves without voltage; correct its bus, close the switch, or disable it"
        )
    return branches


# ---------------------------------------------------------------------------- network


def _system_admittance(engine: Engine, n: int) -> sp.csc_array:
    """Y of the whole circuit [S], sources as Norton equivalents."""
    data, indices, pointers = engine.YMatrix.GetCompressedYMatrix()
    y = sp.csc_array((np.asarray(data), np.asarray(indices), np.asarray(pointers)), shape=(n, n))
    if not np.all(np.isfinite(y.data)):
        raise FeederError(
            "an element of the feeder has zero impedance; give it a small one, such as 1e-6 ohm",
            code="feeder-zero-impedance",
        )
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
        terminal = terminal_nodes(element)
        if any(node is not None for node in terminal[conductors:]):
            raise FeederError(
                f"voltage source '{sources.Name}' stands between two buses; ground its second terminal"
            )
        at = [index[node] for node in terminal[:conductors] if node is not None]
        block = primitive(element)[:conductors, :conductors]
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
        conductors = [(k, index[node]) for k, node in enumerate(terminal_nodes(element)) if node is not None]
        kept = [k for k, _ in conductors]
        nodes = tuple(node for _, node in conductors)
        scale = 1.0 / np.sqrt(admittance_base_siemens(base_kv[list(nodes)], base_mva))
        metres = METRES.get(int(own.Units))
        lines.append(
            Line(
                name=own.Name.lower(),
                nodes=nodes,
                primitive=primitive(element)[np.ix_(kept, kept)] * np.outer(scale, scale),
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
        highest: dict[str, float] = {}
        for bus, volt in zip(buses, volts, strict=True):
            highest[bus] = max(highest.get(bus, 0.0), float(volt) / 1000.0)
        base_kv = np.where(missing, [highest[bus] for bus in buses], base_kv)
        notes.append(
            f"{int(missing.sum())} nodes have no base voltage in the file; their no-load voltage is the base "
            "(add 'Set VoltageBases' and 'CalcVoltageBases' to state it)"
        )
    return np.where(base_kv > 0.0, base_kv, 1.0)  # what nothing feeds has no voltage at all


def _fed(y: sp.csc_array, sources: int) -> BoolArray:
    """(node,) whether a chain of admittances leads from one of the last nodes, the sources, to it."""
    _, component = connected_components(sp.csr_array(y != 0), directed=False)
    return np.isin(component, component[len(component) - sources :])


def _neutral_nodes(nodes: list[str], magnitude: FloatArray, fed: BoolArray) -> frozenset[int]:
    """Nodes near ground potential without load: far below the other nodes of their bus, or at zero.

    Nodes that nothing feeds are at zero too; they are islands, not neutral.
    """
    highest: dict[str, float] = {}
    for node, value in zip(nodes, magnitude, strict=True):
        bus = node.rsplit(".", 1)[0]
        highest[bus] = max(highest.get(bus, 0.0), float(value))
    return frozenset(
        k
        for k, (node, value) in enumerate(zip(nodes, magnitude, strict=True))
        if fed[k] and value < max(_NEUTRAL_BELOW * highest[node.rsplit(".", 1)[0]], _GROUNDED_BELOW_PU)
    )


def _note_wrong_bases(
    nodes: list[str], magnitude: FloatArray, neutral: frozenset[int], notes: list[str]
) -> None:
    low, high = _PLAUSIBLE_PU
    odd = [k for k in range(len(nodes)) if k not in neutral and not low <= magnitude[k] <= high]
    if odd:
        notes.append(
            f"{len(odd)} nodes stand far from 1 p.u. without load (such as {nodes[odd[0]]}): "
            "their base voltage in the file is probably wrong"
        )


def _coordinates(engine: Engine) -> dict[str, tuple[float, float]]:
    return {
        bus.Name.lower(): (float(bus.x), float(bus.y))
        for bus in engine.ActiveCircuit.ActiveBus
        if bus.Coorddefined
    }
