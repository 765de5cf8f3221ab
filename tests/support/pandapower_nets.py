"""A small pandapower net with one of everything, its neighbours, and feeders compared to the last byte."""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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


def small_net(**changed: float) -> Any:
    """110/20/10 kV, a line of its own figures, a cable of the catalogue, 20/0.4 kV with a tap changer.

    Parameters
    ----------
    changed : `own`, `cable`: factors on the lengths; `vk`, `bank`, `roof`: factors on the transformers'
        impedances, the capacitor's size, the PV system's capacity.
    """
    net = copy.deepcopy(_make_small_net())
    factor = {**dict.fromkeys(("own", "cable", "vk", "bank", "roof"), 1.0), **changed}
    net.line["length_km"] *= [factor["own"], factor["cable"], 1.0]
    for table in (net.trafo, net.trafo3w):
        columns = [column for column in table if column.startswith("vk")]
        table[columns] *= factor["vk"]
    net.shunt["q_mvar"] *= factor["bank"]
    net.sgen.loc[0, ["p_mw", "sn_mva"]] *= factor["roof"]
    return net


@functools.cache
def _make_small_net() -> Any:
    with quiet() as pp:
        net = pp.create_empty_network()
        grid, bar, third, a, b, low = (
            pp.create_bus(net, vn_kv=kv, name=name)
            for kv, name in [(110, "grid"), (20, "bar"), (10, "third"), (20, "a"), (20, "b"), (0.4, "low")]
        )
        pp.create_ext_grid(net, grid, vm_pu=1.02)
        pp.create_transformer3w(net, grid, bar, third, "63/25/38 MVA 110/20/10 kV", name="star")
        net.trafo3w["tap_changer_type"] = None
        figures = {"r_ohm_per_km": 0.31, "x_ohm_per_km": 0.38, "c_nf_per_km": 9.7, "max_i_ka": 0.3}
        pp.create_line_from_parameters(net, bar, a, 3.1, **figures, g_us_per_km=0.4, name="own")
        cable = pp.create_line(net, a, b, 2.2, CABLE, parallel=2, name="cable")
        pp.create_line(net, a, b, 1.0, CABLE, name="spare", in_service=False)
        pp.create_switch(net, b, cable, et="l", closed=True)
        pp.create_transformer(net, b, low, "0.63 MVA 20/0.4 kV", name="step")
        net.trafo["tap_changer_type"] = "Ratio"
        net.trafo["tap_pos"] = 0
        pp.create_shunt(net, b, q_mvar=-0.3, p_mw=0.0, name="bank")
        pp.create_load(net, a, p_mw=2.0, q_mvar=0.6, name="mill")
        pp.create_load(net, low, p_mw=0.25, q_mvar=0.08, name="homes")
        pp.create_sgen(net, low, p_mw=0.04, sn_mva=0.05, type="PV", name="roof")
        pp.create_sgen(net, a, p_mw=0.4, q_mvar=0.1, type="WP", name="wind")
    return net


def unbalanced_net(**changed: float) -> Any:
    """20/0.4 kV with zero-sequence figures, and loads between phases, to earth and of three phases.

    Parameters
    ----------
    changed : `own`, `cable`: factors on lengths; `vk`, `roof` as in `small_net`.
    """
    net = copy.deepcopy(_make_unbalanced_net())
    factor = {**dict.fromkeys(("own", "cable", "vk", "roof"), 1.0), **changed}
    net.line["length_km"] *= [factor["own"], factor["cable"], factor["cable"], 1.0]
    net.trafo[["vk_percent", "vkr_percent", "vk0_percent", "vkr0_percent"]] *= factor["vk"]
    net.asymmetric_sgen[["p_a_mw", "p_b_mw"]] *= factor["roof"]
    return net


@functools.cache
def _make_unbalanced_net() -> Any:
    with quiet() as pp:
        net = pp.create_empty_network(sn_mva=0.1)
        grid, bar, low, house, tip = (
            pp.create_bus(net, vn_kv=kv, name=name)
            for kv, name in [(20, "grid"), (20, "bar"), (0.4, "low"), (0.4, "house"), (0.4, "tip")]
        )
        source = {"s_sc_max_mva": 200.0, "rx_max": 0.2, "x0x_max": 1.3, "r0x0_max": 0.15}
        pp.create_ext_grid(net, grid, vm_pu=1.02, **source)
        zero = {"r0_ohm_per_km": 0.93, "x0_ohm_per_km": 1.31, "c0_nf_per_km": 5.3}
        figures = {"r_ohm_per_km": 0.31, "x_ohm_per_km": 0.38, "c_nf_per_km": 9.7, "max_i_ka": 0.3}
        pp.create_line_from_parameters(net, grid, bar, 3.1, **figures, **zero, name="own")
        kind = {"r_ohm_per_km": 0.206, "x_ohm_per_km": 0.0804, "c_nf_per_km": 261.0, "max_i_ka": 0.3}
        zero = {"r0_ohm_per_km": 0.824, "x0_ohm_per_km": 0.306, "c0_nf_per_km": 120.0}
        pp.create_std_type(net, {**kind, **zero, "g_us_per_km": 0.0}, "NAYY", element="line")
        for first, second, km, name in ((low, house, 0.21, "cable"), (low, tip, 0.13, "other")):
            pp.create_line_from_parameters(net, first, second, km, **kind, **zero, name=name)
        ended = pp.create_line_from_parameters(net, house, tip, 0.17, **kind, **zero, name="open")
        net.line["std_type"] = [None, "NAYY", "NAYY", "NAYY"]
        pp.create_switch(net, tip, ended, et="l", closed=False)
        pp.create_transformer_from_parameters(
            net, bar, low, name="step", parallel=2, vector_group="Dyn", shift_degree=150,
            sn_mva=0.63, vn_hv_kv=20.5, vn_lv_kv=0.41, vkr_percent=1.2, vk_percent=6.0, pfe_kw=1.5,
            i0_percent=0.3, vk0_percent=5.5, vkr0_percent=1.3, mag0_percent=100.0, mag0_rx=0.3,
            si0_hv_partial=0.9, tap_side="hv", tap_neutral=0, tap_min=-4, tap_max=4,
            tap_step_percent=1.5, tap_pos=0, tap_changer_type="Ratio",
        )  # fmt: skip
        pp.create_load(net, house, p_mw=0.06, q_mvar=0.02, name="three", type="wye")
        pp.create_load(net, tip, p_mw=0.03, q_mvar=0.01, name="triangle", type="delta")
        wye = {"p_a_mw": 0.02, "q_a_mvar": 0.004, "p_b_mw": 0.01, "type": "wye", "scaling": 0.9}
        pp.create_asymmetric_load(net, house, **wye, name="two")
        delta = {"p_a_mw": 0.015, "q_a_mvar": 0.004, "p_b_mw": 0.007, "q_c_mvar": 0.005, "type": "delta"}
        pp.create_asymmetric_load(net, tip, **delta, name="across")
        pp.create_asymmetric_load(net, bar, p_c_mw=0.3, q_c_mvar=0.1, name="one", type="wye")
        pp.create_asymmetric_sgen(net, tip, p_a_mw=0.006, p_b_mw=0.002, name="roof", type="wye")
        pp.create_shunt(net, low, q_mvar=-0.02, p_mw=0.001, name="bank")
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
