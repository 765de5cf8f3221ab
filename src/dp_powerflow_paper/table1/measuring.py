"""One row on one data set: fits, releases, figures, and the columns that are tested.

Columns that are tested, not declared: unlimited samples, and whether the true network is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dp_powerflow import Feeder
from dp_powerflow.errors import DpPowerflowError, FeederError, MissingExtraError, PrivacyError
from dp_powerflow.lowlevel import plain
from dp_powerflow.units import ComplexArray
from dp_powerflow_paper.sources import Guarantee, OtherRelease
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.table1.bench import TEST_CHANGE, Bench, release
from dp_powerflow_paper.table1.measures import FIGURES
from dp_powerflow_paper.table1.results import NOT_TESTED, Claim, Measured, Probe, summary
from dp_powerflow_paper.table1.rows import Gives, Made, Row

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


FITS_OF_A_CHUNK = 5
"""Of a row whose model is fitted anew in every run."""


@dataclass(frozen=True)
class Chunk:
    """Some of a row's runs, stored together.

    Attributes
    ----------
    number : from 0; the first one tests the columns that are tested.
    fits : numbers of the models that are fitted.
    runs : releases of each of them.
    """

    number: int
    fits: tuple[int, ...]
    runs: int


def chunks_of(row: Row, bench_runs: int, trainings: int) -> tuple[Chunk, ...]:
    """A model for every run; where it is trained, a few models that share the runs."""
    if row.make is None:
        return ()
    if row.extra is None:
        starts = range(0, bench_runs, FITS_OF_A_CHUNK)
        groups = [tuple(range(first, min(first + FITS_OF_A_CHUNK, bench_runs))) for first in starts]
        return tuple(Chunk(number, fits, 1) for number, fits in enumerate(groups))
    models = min(trainings, bench_runs)
    return tuple(Chunk(number, (number,), bench_runs // models) for number in range(models))


def measure_chunk(bench: Bench, row: Row, chunk: Chunk) -> dict[str, Any]:
    """Figures of every run of a chunk, claims of every fit, times; plain values.

    A system that refuses the data set gives `absent` with its reason.
    """
    assert row.make is not None
    start = time.process_time()
    found: dict[str, Any] = {"runs": [], "claims": [], "fit_seconds": [], "day_seconds": []}
    for fit in chunk.fits:
        begin = time.process_time()
        try:
            made = row.make(bench, fit)
        except MissingExtraError:
            raise
        except DpPowerflowError as error:
            return {"absent": str(error)}
        found["fit_seconds"].append(time.process_time() - begin)
        found["claims"].append(_claims(made))
        begin = time.process_time()
        for run in range(chunk.runs):
            found["runs"].append(_one_run(bench, row, made, chunk.runs * fit + run))
        days = chunk.runs * len(bench.truth.days)
        found["day_seconds"].append((time.process_time() - begin) / days)
        if chunk.number == 0 and fit == chunk.fits[0]:
            found["probes"] = _probes(bench, row, made)
            found["noisy_voltages"] = isinstance(made, Composition) and made.noise is not None
    found["cpu_seconds"] = time.process_time() - start
    result: dict[str, Any] = plain(found)
    return result


def _one_run(bench: Bench, row: Row, made: Made, run: int) -> dict[str, float | None]:
    generator = bench.generator(row.key, run)
    if not isinstance(made, Composition):
        return dict(made.measure(generator))
    released = release(made, generator, len(bench.truth.days))
    return asdict(bench.truth.measure(released.load, released.voltages))


def _claims(made: Made) -> dict[str, Any]:
    if not isinstance(made, Composition):
        return {"others": [asdict(claim) for claim in made.guarantees]}
    cost = made.cost()
    return {
        secret: None if claim is None else asdict(claim)
        for secret, claim in (("loads", cost.loads), ("network", cost.network))
    }


def _probes(bench: Bench, row: Row, made: Made) -> dict[str, Any]:
    if row.make is None or not isinstance(made, Composition):
        return {}
    unlimited = probe_days(made, bench)
    true_y = probe_network(bench, row.make, made, only_loads=row.kind is Gives.LOADS)
    return {"unlimited": asdict(unlimited), "true_y": asdict(true_y)}


# --------------------------------------------------------------------------------- put together


def put_together(bench: Bench, row: Row, chunks: list[dict[str, Any]], audit: Mapping[str, Any]) -> Measured:
    """A row from its stored chunks; the claim is the weakest of all fits."""
    for chunk in chunks:
        if "absent" in chunk:
            return Measured(row.key, bench.data.name, absent=str(chunk["absent"]))
    runs = [run for chunk in chunks for run in chunk["runs"]]
    claims = [claim for chunk in chunks for claim in chunk["claims"]]
    probes = chunks[0].get("probes", {})
    figures = summary(runs)
    voltages = row.kind is not Gives.OTHER
    return Measured(
        row.key,
        bench.data.name,
        loads=_weakest(claims, "loads", audit),
        network=_weakest(claims, "network", audit),
        figures=figures if voltages else {},
        true=_true(bench) if voltages else {},
        other={} if voltages else figures,
        unlimited=_probe(probes, "unlimited"),
        true_y=_probe(probes, "true_y"),
        noisy_voltages=bool(chunks[0].get("noisy_voltages", False)),
        runs=len(runs),
        fits=len(claims),
        fit_seconds=_mean(chunks, "fit_seconds"),
        day_seconds=_mean(chunks, "day_seconds"),
    )


def absent(row: Row, data: str, reason: str) -> Measured:
    """A row without figures."""
    return Measured(row.key, data, absent=reason)


def _true(bench: Bench) -> dict[str, float]:
    figures = bench.truth.figures
    return {name: value for name in FIGURES if (value := getattr(figures, name)) is not None}


def _weakest(claims: list[dict[str, Any]], secret: str, audit: Mapping[str, Any]) -> Claim | None:
    """The claim with the largest ε of all fits, one for the whole release before one for single numbers."""
    # JSON has no infinity: a claim without a finite ε is stored without one.
    stated = [
        Guarantee(**own | {"epsilon": math.inf if own["epsilon"] is None else own["epsilon"]})
        for own in _own(claims, secret)
    ]
    if not stated:
        return None
    return Claim(max(stated, key=lambda claim: (claim.jointly, claim.epsilon)), audit.get(secret))


def _own(claims: list[dict[str, Any]], secret: str) -> Iterator[dict[str, Any]]:
    for claim in claims:
        if claim.get(secret) is not None:
            yield claim[secret]
        elif "others" in claim:
            yield from (other for other in claim["others"] if _secret(other["adjacency"]) == secret)


def _secret(adjacency: str) -> str | None:
    """Whose claim it is in a release of something else: the first words of an adjacency name what changes."""
    words = adjacency.lower()
    if words.startswith(("histories", "one load", "one customer", "one demand", "loads", "demands")):
        return "loads"
    return "network" if words.startswith("network") else None


def _probe(probes: Mapping[str, Any], name: str) -> Probe:
    return Probe(**probes[name]) if name in probes else NOT_TESTED


def _mean(chunks: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([value for chunk in chunks for value in chunk[name]]))
