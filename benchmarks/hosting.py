"""Hosting capacity of IEEE 123 over a year, against bisection node by node; and the attack.

The network is the public feeder, as operated, with synthetic days of 96 steps of a model fitted to simulated
meters, under a clear sky. Times are wall-clock and processor seconds.

    python benchmarks/hosting.py [--days 365] [--workers 2] [--sample 6]
    python benchmarks/hosting.py --attack
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hosting_attack import SeenCapacities, path_impedances, true_impedances

import dp_powerflow as dpf
from dp_powerflow import Feeder, OperatedSolution, OperatedSolver
from dp_powerflow.grid.feeder import GROUND, PVSystem
from dp_powerflow.lowlevel import LoadSampler, Study, clear_sky, solve_days
from dp_powerflow.model.law import LoadNodes
from dp_powerflow.studies.hosting import Hosted, HostingCapacity, findings_of

STEPS, LATITUDE = 96, 40.0
TOLERANCE = 1e-12
USUAL, LIGHT = 0.5, 0.1
"""Scale of the loads, as a share of the nominal ones: of the year, and for the attack."""
LIMITS = (1.05, 1.06, 1.07, 1.08, 1.10)


def study_of(feeder: Feeder, days: int, scale: float) -> Study:
    """Synthetic days of a feeder."""
    key = dpf.StreamKey.from_insecure_seed(1)
    history = dpf.simulate_meters(2000, days=5, step_minutes=24 * 60 // STEPS)
    model = dpf.fit(history, dpf.Budget(2.0, 1e-6, unit="load-point"), key=key)
    positions, nominal_kw = feeder.drawn_loads()
    classes = (model.class_names[0],) * len(positions)
    law = model.at(LoadNodes(classes, scale * nominal_kw, feeder.base_mva, positions))

    def make(threads: int | None) -> OperatedSolver:
        return OperatedSolver(feeder, controls="day", steps=STEPS, tolerance=TOLERANCE, threads=threads)

    return Study(
        feeder,
        LoadSampler(law, key, days),
        make,
        released=feeder.energised,
        node_ids=tuple(feeder.nodes[k] for k in feeder.energised.tolist()),
        irradiance=clear_sky(LATITUDE, 365, STEPS),
    )


def timed(do: Callable[[], Hosted]) -> tuple[Hosted, float, float]:
    """What is found, with wall-clock and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    found = do()
    return found, time.perf_counter() - wall, time.process_time() - processor


def by_hand(study: Study, node: int, kind: HostingCapacity) -> list[int]:
    """Capacity of one node on every day of the first block: a bisection with the plain solver for each.

    Every look solves all steps with sun, each run of equal taps by itself.
    """
    solved = solve_days(study.make_solver(1), study.source, 0, nodes="all")
    assert isinstance(solved.solution, OperatedSolution)
    assert study.irradiance is not None
    wider = replace(study.feeder, pv=(PVSystem("new", ((node, GROUND),), kind.most_kw, kind.most_kw),))
    solver = OperatedSolver(wider, controls="frozen", steps=STEPS, tolerance=TOLERANCE, threads=1)
    states = np.concatenate([solved.solution.taps, solved.solution.capacitors], axis=1)
    found = []
    for day in range(solved.days):
        sun = study.irradiance[day % len(study.irradiance)]
        rows = day * STEPS + np.flatnonzero(sun > 0.0)
        before = np.abs(solved.solution.v[rows])
        broken = ((before > kind.v_max_pu) | (before < kind.v_min_pu)).any(axis=1)[:, None]
        high = np.where(broken, np.maximum(kind.v_max_pu, before + kind.worsening_pu), kind.v_max_pu)
        low = np.where(broken, np.minimum(kind.v_min_pu, before - kind.worsening_pu), kind.v_min_pu)
        good, bad = 0, kind.top + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            power = middle * kind.grid_kw / 1000.0 / study.feeder.base_mva * sun[rows % STEPS]
            v = solver.solve_from(
                states[rows], solved.load[rows], power[:, None].astype(complex), nodes="all"
            )
            fits = bool(((np.abs(v) <= high) & (np.abs(v) >= low)).all())
            good, bad = (middle, bad) if fits else (good, middle)
        found.append(good)
    return found


def year(days: int, workers: int, sample: int, kind: HostingCapacity) -> None:
    """Time a year, and a sample of it by hand."""
    study = study_of(dpf.open_feeder("ieee123"), days, USUAL)
    kind.capacities(study_of(study.feeder, 1, USUAL), workers=1)  # kernels are loaded once
    hosted, wall, processor = timed(lambda: kind.capacities(study, workers=workers))
    figures = findings_of(hosted).figures
    print(f"{figures['nodes']} nodes, {days} days, {workers} workers")
    print(f"{wall:.1f} s of wall clock, {processor:.1f} s of processor")
    for name in ("quantiles_kw", "median_by_node_kw", "binds_percent", "days_broken_before"):
        print(f"{name}: {figures[name]}")
    if not sample:
        return
    chosen = np.linspace(0, len(hosted.places) - 1, sample).astype(int)
    block = len(hosted.blocks[0].steps)
    start, differ = time.process_time(), 0
    for k in chosen.tolist():
        naive = by_hand(study, int(study.released[hosted.places[k]]), kind)
        differ += int(np.count_nonzero(np.array(naive) != hosted.steps[:block, k]))
    each = (time.process_time() - start) / (sample * block)
    all_at_once = processor / hosted.steps.size
    print(
        f"by hand {1000 * each:.1f} ms per node and day, all at once {1000 * all_at_once:.2f} ms: "
        f"{each / all_at_once:.0f} times as fast; {differ} of {sample * block} capacities differ"
    )


def attack() -> None:
    """How near the attack comes to the resistances of true networks and of twins, at light load."""
    designs = {"true": None, "twin ±5 %": 0.05, "twin ±20 %": 0.2}
    print("feeder   network     v_max  within 5 %  median error  error to the true network  twin to the true")
    for name in ("ieee13", "ieee123"):
        feeder = dpf.open_feeder(name)
        _, true = _attacked(feeder, V_CHOSEN)
        for label, change in designs.items():
            drawn = feeder
            if change is not None:
                design = dpf.TwinDesign(epsilon=1.0, change=change)
                drawn = dpf.draw_twin(feeder, design, key=dpf.StreamKey.from_insecure_seed(4)).feeder
            for v_max in LIMITS if change is None else (V_CHOSEN,):
                found, own = _attacked(drawn, v_max)
                error, far, noise = (_errors(*pair) for pair in ((found, own), (found, true), (own, true)))
                print(
                    f"{name:8s} {label:11s} {v_max:.2f}  {100 * np.mean(error <= 0.05):8.0f} %"
                    f"  {100 * np.median(error):10.1f} %  {100 * np.median(far):23.1f} %"
                    f"  {100 * np.median(noise):14.1f} %"
                )


V_CHOSEN = 1.08


def _errors(found: np.ndarray, of: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(found), np.inf, np.abs(found / of - 1.0))


def _attacked(feeder: Feeder, v_max: float) -> tuple[np.ndarray, np.ndarray]:
    study = study_of(feeder, 4, LIGHT)
    solved = solve_days(study.make_solver(1), study.source, 0, nodes="all")
    assert isinstance(solved.solution, OperatedSolution)
    seen = []
    for factor in (1.0, 0.9):
        kind = HostingCapacity(v_max_pu=v_max, v_min_pu=0.7, power_factor=factor, reactive="injected")
        hosted = kind.capacities(study)
        seen.append(SeenCapacities.of(hosted, solved.solution.v))
    noon = solved.solution.taps[STEPS // 2]
    own = true_impedances(feeder, noon, study.released[hosted.places])
    return path_impedances(seen[0], seen[1], v_max).real, own.real


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=6, help="nodes that are also done by hand")
    parser.add_argument("--attack", action="store_true")
    chosen = parser.parse_args()
    if chosen.attack:
        attack()
    else:
        year(chosen.days, chosen.workers, chosen.sample, HostingCapacity())


if __name__ == "__main__":
    main()
