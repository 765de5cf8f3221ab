"""pandapower nets and SimBench codes → `Feeder`, as a balanced single-phase equivalent.

One node stands for one bus, its three phases taken together: a load keeps its total three-phase kW, the
power base of a node is three times the base per phase, and voltages in per unit are those of the net.
pandapower itself builds the admittances (switches, taps, vector groups); it is an optional dependency.
Parameters of the elements are read from the net, and replaced in a copy of its tables.
"""

from __future__ import annotations

import copy
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import (
    GROUND,
    CodedLine,
    Feeder,
    Levels,
    Load,
    NetworkParameters,
    ParameterKey,
    Protected,
    PVSystem,
    Quantity,
    level_of,
    shape_of,
)
from dp_powerflow.grid.pandapower.circuit import Circuit
from dp_powerflow.grid.pandapower.engine import (
    DRAWING,
    FEEDING,
    Names,
    check_net,
    in_service,
    require,
    third_party_warnings,
    with_branch_model,
)
from dp_powerflow.units import KW_PER_MW, FloatArray

PHASES = 3

_ANGLE_STEP_DEG = 30.0
_CLOSE_CODES = 3

_PER_LENGTH = ("r_ohm_per_km", "x_ohm_per_km", "c_nf_per_km")
_SHORT_CIRCUIT = {
    "trafo": ("vk_percent", "vkr_percent"),
    "trafo3w": tuple(f"vk{r}_{side}_percent" for side in ("hv", "mv", "lv") for r in ("", "r")),
}
_RATINGS = ("p_mw", "q_mvar", "sn_mva")
_TABLES = {
    "trafo": "tap_dependency_table",
    "trafo3w": "tap_dependency_table",
    "shunt": "step_dependency_table",
}


@dataclass(frozen=True, eq=False)
class PandapowerOrigin:
    """The net a feeder was read from.

    Attributes
    ----------
    net : a copy of the pandapower net, without time series.
    node_of_bus : index of a bus in `net.bus` → name of its node; buses joined by closed switches share one.
    """

    net: Any
    node_of_bus: dict[int, str]


def read_simbench(code: str, *, base_mva: float = 1.0) -> Feeder:
    """Feeder of a SimBench code, such as "1-MV-rural--0-sw"."""
    simbench = require("simbench")
    codes = {known.lower(): known for known in simbench.collect_all_simbench_codes()}
    known = codes.get(code.lower())
    if known is None:
        close = difflib.get_close_matches(code, codes.values(), n=_CLOSE_CODES, cutoff=0.0)
        raise FeederError(f"'{code}' is not a SimBench code; the nearest are {', '.join(close)}")
    with third_party_warnings():
        net = simbench.get_simbench_net(known)
    return read_pandapower(net, name=known, base_mva=base_mva)


def read_pandapower_file(path: Path, *, base_mva: float = 1.0) -> Feeder:
    """Feeder of a net saved with `pandapower.to_json`.

    pandapower imports the modules such a file names, so open only files you trust.
    """
    pandapower = require("pandapower")
    if not path.is_file():
        raise FeederError(f"there is no file {path}; check the path")
    try:
        with third_party_warnings():
            net = pandapower.from_json(str(path))
    except (UserWarning, ValueError, TypeError, KeyError, AttributeError, ImportError, OSError):
        net = None
    if not isinstance(net, pandapower.pandapowerNet):
        raise FeederError(f"{path} is not a pandapower net; save it again with pandapower.to_json")
    return read_pandapower(net, name=path.stem, base_mva=base_mva)


def read_pandapower(net: Any, *, name: str, base_mva: float = 1.0) -> Feeder:
    """Translate a pandapower net; the net itself is left as it is.

    Parameters
    ----------
    net : pandapowerNet; tap positions and switches are taken as they stand.
    base_mva : power base per phase [MVA]; a node has three, so `Feeder.base_mva` is three times as much.
    """
    require("pandapower")
    check_net(net)
    stored = copy.deepcopy(net)
    stored.pop("profiles", None)
    model = (stored.get("user_pf_options") or {}).get("trafo_model", "t")
    circuit = Circuit(with_branch_model(stored), Names(stored), trafo_model=model)
    notes = [
        "balanced single-phase equivalent: a node is a bus with its three phases, powers are their total"
    ]
    drawing = _with_effect([item for kind in DRAWING for item in _injections(stored, kind)], circuit, notes)
    feeding = _with_effect([item for kind in FEEDING for item in _injections(stored, kind)], circuit, notes)
    notes.extend(_replacements(stored, drawing, feeding, circuit))
    scale = float(stored.sn_mva) / (PHASES * base_mva)
    taps = circuit.taps()
    return Feeder(
        name=name,
        nodes=circuit.nodes,
        base_kv=circuit.base_kv / np.sqrt(PHASES),
        base_mva=PHASES * base_mva,
        y=sp.csc_array(circuit.admittance() * scale),
        slack=np.flatnonzero(circuit.is_slack),
        v_slack=circuit.v_slack,
        nominal_angle_deg=_nominal(circuit.angle_deg()),
        loads=tuple(item.load(circuit) for item in drawing),
        pv=tuple(item.pv_system(circuit) for item in feeding),
        lines=circuit.lines(scale),
        taps=taps,
        taps_from="tap positions of the pandapower net" if taps else "no regulators",
        coordinates=circuit.coordinates(),
        notes=tuple(notes),
        origin=PandapowerOrigin(stored, {bus: circuit.nodes[k] for bus, k in circuit.node_of_bus.items()}),
    )


def _nominal(angle_deg: FloatArray) -> FloatArray:
    """The nearest multiples of 30°, in (−180°, 180°]."""
    steps = np.round(angle_deg / _ANGLE_STEP_DEG)
    return np.asarray(180.0 - np.mod(180.0 - steps * _ANGLE_STEP_DEG, 360.0))


# ------------------------------------------------------------------------------- loads and generation


@dataclass(frozen=True)
class _Injection:
    """One element that draws or feeds in power; of all three phases, positive in its own direction.

    `label` is the class of a load, the type of a generating unit.
    """

    kind: str
    name: str
    bus: int
    p_mw: float
    q_mvar: float
    rated_mva: float
    constant_power: bool
    label: str | None

    def load(self, circuit: Circuit) -> Load:
        return Load(
            name=self.name,
            branches=((circuit.node_of_bus[self.bus], GROUND),),
            kw=self.p_mw * KW_PER_MW,
            kvar=self.q_mvar * KW_PER_MW,
            connection="wye",
            constant_power=self.constant_power,
            label=self.label,
        )

    def pv_system(self, circuit: Circuit) -> PVSystem:
        rated = self.rated_mva if self.rated_mva > 0.0 else abs(complex(self.p_mw, self.q_mvar))
        return PVSystem(
            name=self.name,
            branches=((circuit.node_of_bus[self.bus], GROUND),),
            kva=rated * KW_PER_MW,
            kw_peak=self.p_mw * KW_PER_MW,
        )


def _injections(net: Any, kind: str) -> Iterator[_Injection]:
    """The elements of a kind that are in service."""
    names = Names(net)
    not_constant = [column for column in net[kind].columns if column.startswith(("const_z", "const_i"))]
    for row in in_service(net, kind):
        if kind == "gen" and row.slack:
            continue
        name = names.of(kind, row.Index)
        power = _power(kind, row)
        if not np.isfinite(power):
            raise FeederError(f"{kind} '{name}' has no finite power; state it in the net")
        if kind in FEEDING and power.real < 0.0:
            raise FeederError(f"{kind} '{name}' draws power; make it a load")
        if kind.endswith("ward") and power == 0.0:
            continue
        label = getattr(row, "profile" if kind in DRAWING else "type", None)
        yield _Injection(
            kind=kind,
            name=name,
            bus=int(row.bus),
            p_mw=power.real,
            q_mvar=power.imag,
            rated_mva=float(getattr(row, "sn_mva", "nan")),
            constant_power=not any(getattr(row, column) > 0.0 for column in not_constant),
            label=label if isinstance(label, str) else None,
        )


def _power(kind: str, row: Any) -> complex:
    """Three-phase power of one element [MVA]: of a load its nominal power, of a unit its peak."""
    if kind.startswith("asymmetric"):
        phases = [complex(getattr(row, f"p_{p}_mw"), getattr(row, f"q_{p}_mvar")) for p in "abc"]
        return sum(phases, 0j) * _scaling(kind, row)
    if kind == "motor":
        p_mw = row.pn_mech_mw / row.efficiency_percent * row.loading_percent * row.scaling
        return complex(p_mw, p_mw * np.tan(np.arccos(row.cos_phi)))
    if kind.endswith("ward"):
        return complex(row.ps_mw, row.qs_mvar)
    # The reactive power of a generator is whatever holds its voltage, which is not held here.
    q_mvar = 0.0 if kind == "gen" else row.q_mvar
    return complex(row.p_mw, q_mvar) * _scaling(kind, row)


def _scaling(kind: str, row: Any) -> float:
    # The scaling of generation is its output of the moment; what is wanted is its peak.
    return 1.0 if kind in FEEDING else float(row.scaling)


def _with_effect(items: Sequence[_Injection], circuit: Circuit, notes: list[str]) -> list[_Injection]:
    """Those that move a voltage, under names of their own."""
    idle = [item for item in items if circuit.is_slack[circuit.node_of_bus[item.bus]]]
    if idle:
        kinds = ", ".join(sorted({item.kind for item in idle}))
        notes.append(
            f"{len(idle)} elements ({kinds}) stand on the bus of a source and are left out, "
            "as they move no voltage"
        )
    kept = [item for item in items if not circuit.is_slack[circuit.node_of_bus[item.bus]]]
    count = Counter(item.name for item in kept)
    return [
        item if count[item.name] == 1 else replace(item, name=f"{item.kind} {item.name}") for item in kept
    ]


def _replacements(
    net: Any, drawing: Sequence[_Injection], feeding: Sequence[_Injection], circuit: Circuit
) -> list[str]:
    """What was replaced, left out or joined, and how many times."""
    loads, units = f"of {len(drawing)} loads", f"of {len(feeding)} generating units"
    changed = sum(not item.constant_power for item in drawing)
    made = sum(item.kind in ("motor", "ward", "xward") for item in drawing)
    unbalanced = sum(item.kind.startswith("asymmetric") for item in (*drawing, *feeding))
    controlled = sum(item.kind == "gen" for item in feeding)
    other = sum(not (item.label or "").lower().startswith("pv") for item in feeding)
    reactive = sum(item.q_mvar != 0.0 for item in feeding)
    scaled = sum(row.scaling != 1.0 for kind in FEEDING for row in in_service(net, kind))
    joined = len(circuit.node_of_bus) - len(set(circuit.node_of_bus.values()))
    remarks = (
        (changed, f"{loads} are not constant power in the net and became so"),
        (made, f"{loads} are motors or wards in the net"),
        (unbalanced, "unbalanced elements became balanced"),
        (controlled, f"{units} hold a voltage in the net; they keep their power, the control is dropped"),
        (other, f"{units} are not called PV in the net and are taken as PV systems"),
        (reactive, f"{units} state a reactive power, which is left out"),
        (scaled, f"{units} have a scaling, which is left out: their peak is the unscaled power"),
        (len(in_service(net, "xward")), "extended wards lose the voltage source behind their impedance"),
        (len(in_service(net, "storage")), "storage units are left out"),
        (joined, "buses are joined to another one by closed switches and share its node"),
    )
    return [f"{count} {remark}" for count, remark in remarks if count]


# ------------------------------------------------------------------------------------------ parameters


def read_parameters(origin: PandapowerOrigin, protected: Protected) -> NetworkParameters:
    """Every protected level of the net."""
    net, names = origin.net, Names(origin.net)
    _refuse_tables(net)
    levels: dict[ParameterKey, float] = {}
    catalogue = _catalogue(net)
    coded: list[CodedLine] = []
    for index, row in net.line.iterrows():
        name, code, km = names.of("line", index), row.get("std_type"), float(row["length_km"])
        if code in catalogue:
            coded.append(CodedLine(name, str(code), tuple(sorted(catalogue))))
        if protected.lines == "length" and code in catalogue:
            levels[ParameterKey(Quantity.LENGTH, name)] = km
        else:
            levels[ParameterKey(Quantity.RESISTANCE, name)] = float(row["r_ohm_per_km"]) * km
            levels[ParameterKey(Quantity.REACTANCE, name)] = float(row["x_ohm_per_km"]) * km
        if protected.charging:
            levels[ParameterKey(Quantity.CHARGING, name)] = float(row["c_nf_per_km"]) * km
    for quantity, kind, index, columns in _grouped(net, protected):
        key = ParameterKey(quantity, _named(names, kind, index))
        levels[key] = level_of(_figures(net, kind, index, columns))
    return NetworkParameters({key: level for key, level in levels.items() if level > 0.0}, tuple(coded))


def rebuild(feeder: Feeder, protected: Protected, levels: Levels, codes: Mapping[str, str]) -> Feeder:
    """The net again with other levels; taps and switches stay as they stand."""
    origin = feeder.origin
    if not isinstance(origin, PandapowerOrigin):
        raise FeederError("only a feeder read from pandapower can be rebuilt by it")
    net = copy.deepcopy(origin.net)
    names = Names(net)
    catalogue = _catalogue(net)
    for index in net.line.index:
        name = names.of("line", index)
        code = codes.get(name, net.line.at[index, "std_type"])
        standard = catalogue.get(code)
        public_x = standard["x_ohm_per_km"] if standard else protected.x_ohm_per_km
        length = levels.get(ParameterKey(Quantity.LENGTH, name))
        x = levels.get(ParameterKey(Quantity.REACTANCE, name), 0.0)
        r = levels.get(ParameterKey(Quantity.RESISTANCE, name), 0.0)
        charging = levels.get(ParameterKey(Quantity.CHARGING, name), 0.0)
        km = length if length is not None else x / public_x if x > 0.0 else 1.0
        figures = {"r_ohm_per_km": r / km, "x_ohm_per_km": x / km, "c_nf_per_km": protected.c_nf_per_km}
        if standard is not None:
            figures["c_nf_per_km"] = standard["c_nf_per_km"]
            if length is not None:
                figures = dict(standard)
        if protected.charging:
            figures["c_nf_per_km"] = charging / km
        for column, value in ({"length_km": km, "g_us_per_km": 0.0} | figures).items():
            net.line.at[index, column] = value
        net.line.at[index, "std_type"] = code
    for quantity, kind, index, columns in list(_grouped(net, protected)):
        level = levels.get(ParameterKey(quantity, _named(names, kind, index)))
        if level is not None:
            values = level * shape_of(_figures(net, kind, index, columns))
            for column, value in zip(columns, values, strict=True):
                net[kind].at[index, column] = float(value)
    return read_pandapower(net, name=feeder.name, base_mva=feeder.base_mva / PHASES)


def _refuse_tables(net: Any) -> None:
    """Characteristic tables override the figures that carry the noise."""
    for kind, column in _TABLES.items():
        if kind in net and column in net[kind] and net[kind][column].fillna(False).astype(bool).any():
            raise FeederError(
                f"a {kind} of the net takes its figures from a characteristic table, which a twin cannot "
                f"protect; set its {column} to False"
            )


def _named(names: Names, kind: str, index: int) -> str:
    """Tables may share names."""
    return f"{kind}:{names.of(kind, index)}"


def _grouped(net: Any, protected: Protected) -> Iterator[tuple[Quantity, str, int, tuple[str, ...]]]:
    """Elements with one level for several columns: (quantity, table, index, columns)."""
    for kind, columns in _SHORT_CIRCUIT.items() if protected.transformers else ():
        for index in net[kind].index:
            yield Quantity.TRANSFORMER, kind, int(index), columns
    for index in net.shunt.index if protected.capacitors else ():
        yield Quantity.CAPACITOR, "shunt", int(index), ("q_mvar", "p_mw")
    for kind in FEEDING if protected.pv else ():
        if kind in net and set(_RATINGS) <= set(net[kind].columns):
            for index in net[kind].index:
                yield Quantity.PV, kind, int(index), _RATINGS


def _figures(net: Any, kind: str, index: int, columns: tuple[str, ...]) -> FloatArray:
    values = np.array([net[kind].at[index, column] for column in columns], dtype=np.float64)
    return np.nan_to_num(values)


def _catalogue(net: Any) -> dict[str, dict[str, float]]:
    """Every standard line type of the net, used or not."""
    types = net.std_types.get("line", {}) if "std_types" in net else {}
    return {
        str(name): {column: float(entry[column]) for column in _PER_LENGTH}
        for name, entry in types.items()
        if all(column in entry for column in _PER_LENGTH)
    }
