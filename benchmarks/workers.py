"""Throughput of two workers over one: a year of IEEE 123, as a ratio.

    python benchmarks/workers.py [--repetitions 7] [--days 365] [--command]

Both clusters are there before the clock starts, every worker has one thread, and the runs alternate, so that
whatever else the machine does falls on both alike. `--command` also times the whole command, which includes
the start of the interpreters, reading, fitting and certifying: work that is done once whatever the days.

On a machine that others use as well, wall time says little. So the same ratio is printed in processor time:
of the one worker over the busier of the two. It is what an idle machine with a core per worker would give,
but for the time that workers wait for the scheduler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

TOML = """
[feeder]
source = "ieee123"
[loads]
kind = "simulated"
load_points = 1000
days = 60
[model]
epsilon = 4.0
[nodes]
load_class = "residential"
[network]
mode = "true-network"
bound = "full-support"
radius = 1e-7
epsilon = 5.0
delta = 1e-3
calibration_days = 20
require_evidence = false
[release]
id = "bench"
days = {days}
output = "out"
state = "state"
insecure_seed = 1
"""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def job_of(folder: Path, days: int) -> Any:
    """The job of a release, as the pipeline makes it, without spending anything."""
    from dp_powerflow.config import parse_config
    from dp_powerflow.corpus.writer import CorpusWriter
    from dp_powerflow.model.fit import fit
    from dp_powerflow.pipeline.inputs import budget_of, fit_options_of, read_inputs
    from dp_powerflow.pipeline.modes.base import mode_of
    from dp_powerflow.pipeline.nodes import loaded_nodes
    from dp_powerflow.pipeline.parts import layout_of
    from dp_powerflow.pipeline.run import draw_key, part_job
    from dp_powerflow.privacy.state import PrivateState

    config = parse_config(tomllib.loads(TOML.format(days=days)), base=folder)
    state = PrivateState.open(folder / "state", insecure_seed=1)
    inputs, mode = read_inputs(config, state), mode_of(config)
    feeder, history = inputs.feeder, inputs.history
    model = fit(history, budget=budget_of(config), options=fit_options_of(config), key=inputs.key)
    scene = mode.scene(inputs, mode.network_to_solve(inputs, mode.identity(inputs)), model)
    layout = layout_of(days, history.n_steps, len(mode.released_nodes(feeder)), len(loaded_nodes(feeder)[0]))
    writer = CorpusWriter(folder / "out", layout, config.release.id)
    return part_job(mode, scene, draw_key(inputs, scene), writer)


def seconds(client: Any, job: Any, folder: Path) -> tuple[float, float]:
    """Time to make all parts in a fresh directory, and processor time of the busiest worker."""
    from dp_powerflow._parallel import run_on

    writer = replace(job.writer, target=folder)
    writer.prepare()
    before = client.run(time.process_time)
    began = time.perf_counter()
    run_on(client, replace(job, writer=writer), writer.missing_parts(), lambda _: None)
    took = time.perf_counter() - began
    after = client.run(time.process_time)
    writer.discard()
    return took, max(after[worker] - before[worker] for worker in after)


def part_making(days: int, repetitions: int, root: Path) -> None:
    import distributed

    job = job_of(root, days)
    parts = job.writer.layout.n_parts
    print(f"{days} days of IEEE 123: {parts} parts of {job.writer.layout.days_per_part} days")
    times: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        clients = {}
        for workers in times:
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    host="127.0.0.1",
                    scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                    silence_logs=50,
                )
            )
            clients[workers] = stack.enter_context(distributed.Client(cluster, set_as_default=False))
            seconds(clients[workers], job, root / f"warm-{workers}")  # compiles
        for k in range(repetitions):
            for workers in (1, 2) if k % 2 else (2, 1):
                wall, busiest = seconds(clients[workers], job, root / f"run-{workers}-{k}")
                times[workers].append(wall)
                processor[workers].append(busiest)
    report("making the parts", times)
    report("making the parts, processor time of the busiest worker", processor)


def whole_command(days: int, repetitions: int, root: Path) -> None:
    times: dict[int, list[float]] = {1: [], 2: []}
    core = min(os.sched_getaffinity(0))
    for k in range(repetitions):
        for workers in (1, 2) if k % 2 else (2, 1):
            folder = root / f"command-{workers}-{k}"
            folder.mkdir()
            (folder / "release.toml").write_text(TOML.format(days=days))
            program = "from dp_powerflow.cli import main; main()"
            command = [sys.executable, "-c", program, "release", "release.toml", "--workers", str(workers)]
            # One worker works in the process itself, with all cores that it may use: give it one.
            pin = (lambda: os.sched_setaffinity(0, {core})) if workers == 1 else None
            began = time.perf_counter()
            subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **ONE_THREAD},
                preexec_fn=pin,
                check=True,
                capture_output=True,
            )
            times[workers].append(time.perf_counter() - began)
            shutil.rmtree(folder)
    report("the whole command", times)


def report(what: str, times: dict[int, list[float]]) -> None:
    ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
    for workers, found in times.items():
        print(
            f"{what}, {workers} worker(s): median {statistics.median(found):.2f} s, best {min(found):.2f} s"
        )
    print(
        f"{what}: two workers are {statistics.median(ratios):.2f} times as fast as one "
        f"(median of {len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f}; "
        f"best against best {min(times[1]) / min(times[2]):.2f})"
    )
    load = os.getloadavg()[0]
    print(f"cores: {len(os.sched_getaffinity(0))}; load of the machine meanwhile: {load:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--command", action="store_true", help="time the whole command as well")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        part_making(asked.days, asked.repetitions, Path(folder))
        if asked.command:
            whole_command(asked.days, asked.repetitions, Path(folder))


if __name__ == "__main__":
    os.environ.update(ONE_THREAD)
    main()
