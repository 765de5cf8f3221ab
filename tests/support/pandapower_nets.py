"""A small pandapower net with one of everything, its neighbours, and feeders compared to the last byte."""

from __future__ import annotations

import copy
import functools
import importlib
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.grid.feeder import TAPS_DECLARED, Feeder, Levels, Tap
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder
from support.attacks import bits_of

DECLARED = f"{TAPS_DECLARED}the operator"
EVERYTHING = Protected(transformers=True, capacitors=True, pv=True, charging=True)
LENGTHS = Protected(lines="length", pv=True, charging=False)
CODES = Protected(lines="length", codes=True)
CABLE = "NA2XS2Y 1x95 RM/25 12/20 kV"


@contextmanager
def quiet() -> Iterator[Any]:
    """pandapower, without what it deprecates in itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield importlib.import_module("pandapower")


@functools.cache
def _made(name: str) -> Any:
    stated = tomllib.loads(Path(__file__).with_name("circuits").joinpath("nets.toml").read_text("utf-8"))[
        name
    ]
    with quiet() as pp:
        net = pp.create_empty_network(**stated.get("net", {}))
        for kind, figures in stated["create"]:
            getattr(pp, f"create_{kind}")(net, **figures)
        net.trafo3w["tap_changer_type"] = None
        for kind, columns in stated.get("set", {}).items():
            for column, value in columns.items():
                net[kind][column] = value
    return net


def net_of(name: str) -> Any:
    """A new copy of a net of the file `circuits/nets.toml`."""
    return copy.deepcopy(_made(name))


def small_net(**changed: float) -> Any:
    """110/20/10 kV, a line of its own figures, a cable of the catalogue, 20/0.4 kV with a tap changer.

    Parameters
    ----------
    changed : `own`, `cable`: factors on the lengths; `vk`, `bank`, `roof`: factors on the transformers'
        impedances, the capacitor's size, the PV system's capacity.
    """
    net = net_of("small")
    factor = {**dict.fromkeys(("own", "cable", "vk", "bank", "roof"), 1.0), **changed}
    net.line["length_km"] *= [factor["own"], factor["cable"], 1.0]
    for table in (net.trafo, net.trafo3w):
        columns = [column for column in table if column.startswith("vk")]
        table[columns] *= factor["vk"]
    net.shunt["q_mvar"] *= factor["bank"]
    net.sgen.loc[0, ["p_mw", "sn_mva"]] *= factor["roof"]
    return net


def unbalanced_net(**changed: float) -> Any:
    """20/0.4 kV with zero-sequence figures, and loads between phases, to earth and of three phases.

    Parameters
    ----------
    changed : `own`, `cable`: factors on lengths; `vk`, `roof` as in `small_net`.
    """
    net = net_of("unbalanced")
    factor = {**dict.fromkeys(("own", "cable", "vk", "roof"), 1.0), **changed}
    net.line["length_km"] *= [factor["own"], factor["cable"], factor["cable"], 1.0]
    net.trafo[["vk_percent", "vkr_percent", "vk0_percent", "vkr0_percent"]] *= factor["vk"]
    net.asymmetric_sgen[["p_a_mw", "p_b_mw"]] *= factor["roof"]
    return net


def feeder_of(net: Any, *, taps: tuple[Tap, ...] | None = None) -> Feeder:
    """A private feeder; taps are declared where they are given."""
    feeder = read_pandapower(net, name="small", taps=taps)
    return feeder if taps is None else replace(feeder, taps_from=DECLARED)


def levels_of(feeder: Feeder, protected: Protected, scale: float = 1.1) -> Levels:
    """Some levels for a twin of this feeder and of its neighbours."""
    levels = sorted(Rebuilder(feeder, protected).parameters().levels.items())
    return {key: scale * (1 + 0.1 * np.sin(k)) * level for k, (key, level) in enumerate(levels)}


def twin_of(feeder: Feeder, protected: Protected, levels: Levels, code: str = CABLE) -> Feeder:
    """The feeder with these levels; with drawn codes, all lines of one."""
    rebuilder = Rebuilder(feeder, protected)
    codes = {line.line: code for line in rebuilder.parameters().coded} if protected.codes else {}
    return rebuilder.build(levels, codes)


def differing(one: Feeder, other: Feeder) -> list[str]:
    """The parts of two feeders, their nets included, that are not the same to the last bit."""
    nets: list[Any] = [feeder.origin for feeder in (one, other)]
    first, second = (
        bits_of(feeder) | {"net": net_content(origin.net)}
        for feeder, origin in zip((one, other), nets, strict=True)
    )
    return [name for name in first if first[name] != second[name]]


def net_content(net: Any) -> str:
    """All tables and settings of a net."""
    tables = {kind: part.to_dict("list") if hasattr(part, "columns") else part for kind, part in net.items()}
    return repr(tables)
