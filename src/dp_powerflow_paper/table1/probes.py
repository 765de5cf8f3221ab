"""Columns that are tested, not declared: unlimited samples, and whether the true network is used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.errors import FeederError, PrivacyError
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.sources import Guarantee, OtherRelease
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.table1.bench import TEST_CHANGE, Bench
from dp_powerflow_paper.table1.releasing import release
from dp_powerflow_paper.table1.results import Probe

TIMES = 10
"""Days that are asked of a load mechanism, over those of the comparison."""
Make = Callable[[Bench, int], Composition | OtherRelease]


def epsilon_after(claim: Guarantee, days: int, steps: int) -> float:
    """ε of so many released days by basic composition, if each of them uses the whole secret again."""
    times = {"once": 1, "per day": days, "per snapshot": days * steps}[claim.composes]
    return times * claim.epsilon


def probe_days(made: Composition, bench: Bench) -> Probe:
    """Ask for ten times the days: are they given, all different, at the same ε?"""
    days = len(bench.truth.days)
    try:
        load = made.loads.draw(bench.generator("ten times the days", 0), TIMES * days)
    except PrivacyError:
        return Probe(False, f"it reads a true day for every day that it gives, and has {days}")
    distinct = len(np.unique(load.reshape(len(load), -1), axis=0))
    if len(load) != TIMES * days or not np.isfinite(load).all() or distinct < len(load):
        return Probe(False, f"of {TIMES * days} days that were asked for {distinct} are different")
    claim = made.loads.guarantee
    if claim is None:
        return Probe(True, f"{TIMES * days} different days were drawn; nothing is claimed for the loads")
    before, after = (epsilon_after(claim, count, bench.data.n_steps) for count in (days, TIMES * days))
    words = f"{TIMES * days} different days were drawn; ε {before:.3g} → {after:.3g}"
    return Probe(after == before, words)


def probe_network(bench: Bench, make: Make, made: Composition, *, only_loads: bool) -> Probe:
    """Change one line of the true network: does what is released change, and was it solved on that network?

    Parameters
    ----------
    made : on the network as it is.
    only_loads : the loads are the release; no power flow belongs to it.
    """
    line = f"line {bench.tested_line} × {TEST_CHANGE:g}"
    same, changed = (bench.on(feeder) for feeder in bench.rebuilt)
    other = _composition(make(changed, 0))
    if only_loads:
        before, after = (_loads(one, bench) for one in (made, other))
        if np.array_equal(before, after):
            return Probe(None, f"{line}: the loads stay bit for bit; power flow is the user's own")
        return Probe(True, f"{line}: the loads change")
    base = _composition(make(same, 0))
    try:
        first, second = (release(one, bench.generator("one day", 0), 1) for one in (base, other))
    except (FeederError, PrivacyError):  # its figures are in no file
        return _on_the_network_as_it_is(bench, made)
    if first.feeder is None or second.feeder is None:
        return Probe(False, f"{line}: the noise leaves no network that power flow can be set up on")
    if np.array_equal(first.voltages, second.voltages, equal_nan=True):
        return Probe(False, f"{line}: the voltages stay bit for bit")
    own = _same(second.feeder, changed.data.feeder)
    where = "the true network" if own else "a network with noise"
    return Probe(own, f"{line}: the voltages change, and are solved on {where}")


def _on_the_network_as_it_is(bench: Bench, made: Composition) -> Probe:
    """For a system that cannot be made on a network with other figures: what is solved on, as it is."""
    drawn = release(made, bench.generator("one day", 0), 1).feeder
    own = drawn is not None and _same(drawn, bench.data.feeder)
    where = "the true network" if own else "another network"
    return Probe(own, f"it needs the feeder's own file, so no line could be changed; it solves on {where}")


def _composition(made: Composition | OtherRelease) -> Composition:
    assert isinstance(made, Composition)
    return made


def _loads(made: Composition, bench: Bench) -> ComplexArray:
    return made.loads.draw(bench.generator("one day", 0), 1)


def _same(one: Feeder, other: Feeder) -> bool:
    """Whether two networks are equal in every entry."""
    return one.y.shape == other.y.shape and bool((one.y != other.y).nnz == 0)
