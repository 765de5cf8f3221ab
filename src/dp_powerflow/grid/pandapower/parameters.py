"""Parameters of the elements of a pandapower net, read and replaced in a copy of its tables."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.pandapower.engine import FEEDING, Names
from dp_powerflow.grid.pandapower.reader import PHASES, PandapowerOrigin, read_pandapower
from dp_powerflow.grid.parameters import (
    CodedLine,
    Levels,
    NetworkParameters,
    ParameterKey,
    Quantity,
    level_of,
    shape_of,
)
from dp_powerflow.units import FloatArray

_LINE_COLUMNS = {
    Quantity.LENGTH: "length_km",
    Quantity.RESISTANCE: "r_ohm_per_km",
    Quantity.REACTANCE: "x_ohm_per_km",
}
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


def read_parameters(origin: PandapowerOrigin, *, relative_to_code: bool) -> NetworkParameters:
    """Every level of the net."""
    net, names = origin.net, Names(origin.net)
    _refuse_tables(net)
    levels: dict[ParameterKey, float] = {}
    catalogue = _catalogue(net)
    coded: list[CodedLine] = []
    for index, row in net.line.iterrows():
        name = names.of("line", index)
        code = row.get("std_type")
        if code in catalogue:
            coded.append(CodedLine(name, str(code), tuple(sorted(catalogue))))
        for quantity, column in _LINE_COLUMNS.items():
            level = float(row[column])
            relative = relative_to_code and code in catalogue and quantity is not Quantity.LENGTH
            if relative:
                standard = catalogue[code][column]
                # Always a level: its absence would tell a type without resistance.
                level = level / standard if standard > 0.0 and level > 0.0 else 1.0
            levels[ParameterKey(quantity, name)] = level
    for quantity, kind, index, columns in _grouped(net):
        key = ParameterKey(quantity, _named(names, kind, index))
        levels[key] = level_of(_figures(net, kind, index, columns))
    return NetworkParameters({key: level for key, level in levels.items() if level > 0.0}, tuple(coded))


def rebuild(feeder: Feeder, levels: Levels, codes: Mapping[str, str], *, relative_to_code: bool) -> Feeder:
    """The net again with other levels; taps and switches stay as they stand."""
    origin = feeder.origin
    if not isinstance(origin, PandapowerOrigin):
        raise FeederError("only a feeder read from pandapower can be rebuilt by it")
    net = copy.deepcopy(origin.net)
    names = Names(net)
    catalogue = _catalogue(net)
    for index in net.line.index:
        name = names.of("line", index)
        standard = catalogue.get(codes.get(name, net.line.at[index, "std_type"]))
        if name in codes and standard is not None:
            for column in _PER_LENGTH:
                net.line.at[index, column] = standard[column]
            net.line.at[index, "std_type"] = codes[name]
        for quantity, column in _LINE_COLUMNS.items():
            level = levels.get(ParameterKey(quantity, name))
            if level is None:
                continue
            relative = relative_to_code and standard is not None and quantity is not Quantity.LENGTH
            net.line.at[index, column] = level * standard[column] if relative and standard else level
    for quantity, kind, index, columns in list(_grouped(net)):
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


def _grouped(net: Any) -> Iterator[tuple[Quantity, str, int, tuple[str, ...]]]:
    """Elements with one level for several columns: (quantity, table, index, columns)."""
    for kind, columns in _SHORT_CIRCUIT.items():
        for index in net[kind].index:
            yield Quantity.TRANSFORMER, kind, int(index), columns
    for index in net.shunt.index:
        yield Quantity.CAPACITOR, "shunt", int(index), ("q_mvar", "p_mw")
    for kind in FEEDING:
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
