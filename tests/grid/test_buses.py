"""Buses of a feeder: which nodes form one, what joins two of them, where it is fed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_powerflow import Feeder, open_feeder
from dp_powerflow.grid.feeder import bus_name
from dp_powerflow.lowlevel import BusGraph


def joined(graph: BusGraph, kind: str) -> set[frozenset[str]]:
    return {
        frozenset((graph.names[first], graph.names[second]))
        for (first, second), found in graph.kind_of.items()
        if found == kind
    }


def test_the_buses_of_ieee13_are_those_of_its_diagram(ieee13: Feeder) -> None:
    graph = BusGraph.of(ieee13)
    assert set(graph.names) == set(ieee13.coordinates)
    pairs = {
        *(("rg60", "632"), ("632", "670"), ("670", "671"), ("671", "680"), ("632", "633"), ("632", "645")),
        *(("645", "646"), ("692", "675"), ("671", "684"), ("684", "611"), ("684", "652")),
    }
    assert joined(graph, "line") == {frozenset(pair) for pair in pairs}
    assert joined(graph, "switch") == {frozenset(("671", "692"))}
    transformers = {("sourcebus", "650"), ("650", "rg60"), ("633", "634")}
    assert joined(graph, "transformer") == {frozenset(pair) for pair in transformers}


def test_the_source_belongs_to_the_bus_that_it_feeds_and_phases_are_those_of_names(ieee13: Feeder) -> None:
    graph = BusGraph.of(ieee13)
    assert [name for name, fed in zip(graph.names, graph.source, strict=True) if fed] == ["sourcebus"]
    assert {graph.names[bus] for bus in graph.bus_of[ieee13.slack]} == {"sourcebus"}
    # A bus of that name that has no source keeps it.
    assert (bus_name("emf(a).1"), bus_name("emf(a).1", is_source=True)) == ("emf(a)", "a")
    for node, bus, phase in zip(ieee13.nodes, graph.bus_of, graph.phase, strict=True):
        if not node.startswith("emf"):
            assert node == f"{graph.names[bus]}.{phase}"


def test_a_line_beside_a_switch_counts_as_a_line(ieee13: Feeder) -> None:
    switch = next(line for line in ieee13.lines if line.is_switch)
    both = replace(ieee13, lines=(*ieee13.lines, replace(switch, name="beside", is_switch=False)))
    assert joined(BusGraph.of(both), "switch") == set()
    assert frozenset(("671", "692")) in joined(BusGraph.of(both), "line")


def test_an_entry_that_is_zero_joins_nothing(ieee13: Feeder) -> None:
    graph = BusGraph.of(ieee13)
    first, second = (np.flatnonzero(graph.bus_of == graph.names.index(bus)) for bus in ("671", "680"))
    lil = ieee13.y.tolil()
    lil[np.ix_(first, second)] = 0.0
    lil[np.ix_(second, first)] = 0.0
    cut = BusGraph.of(replace(ieee13, y=lil.tocsc()))
    assert frozenset(("671", "680")) not in joined(cut, "line")
    assert len(cut.kind_of) == len(graph.kind_of) - 1


def test_a_balanced_net_has_one_node_per_bus() -> None:
    pytest.importorskip("simbench")
    feeder = open_feeder("simbench:1-LV-rural1--0-sw")
    graph = BusGraph.of(feeder)
    assert len(graph.names) == len(feeder.nodes)
    assert set(graph.phase.tolist()) == {1}
    assert int(graph.source.sum()) == 1
    assert len(joined(graph, "transformer")) == 1
