"""What a released node that carries little tells of the lines around it, by the size of its load.

On the true network the current into a node k is Σ_j Y_kj·v_j. Where the node's own load is next to nothing,
so is that current: the released voltages of k and of its neighbours obey a linear relation whose coefficients
are the lines' admittances. Two attackers, both with the released voltages alone:

- *regression*: v_k on the voltages of its neighbours, nothing else known; the error is that of the
  strongest coefficient, which is a ratio of line admittances;
- *one line unknown*: every other line and the mean loads are known; the error is that of the unknown line's
  admittance, of the line that node k alone gives away best.

One node at a time gets a load of a share of the feeder's middle load (half of the feeder's load is at nodes
of that size or larger); all others keep theirs. Feeders are public, so the table may be shown:

    python benchmarks/light_nodes.py > light_nodes.md
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow import BatchSolver, Feeder, StreamKey, open_feeder
from dp_powerflow.grid.feeder import Line
from dp_powerflow.lowlevel import (
    ClassLaw,
    LoadLaw,
    LoadSampler,
    Network,
    PublicSpread,
    nominal_law,
    solve_days,
)
from dp_powerflow.pipeline.modes.true import middle_load_kw
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.lines import SPREAD_P, SPREAD_Q

FEEDERS = {
    "ieee13": 0.6,
    "ieee123": 1.0,
    "simbench:1-MV-rural--0-no_sw": 1.0,
    "simbench:1-LV-rural1--0-no_sw": 1.0,
}
"""Public feeders, with a factor on nominal load at which every draw has a power flow."""
SHARES = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
STEPS, DAYS, TRIALS = 24, 30, 4
_MOST_LINES = 6
_PROBE = 1e-4
_SWITCH = 1e-3
"""A coefficient this close to 1 belongs to a closed switch, whose ends have one voltage."""


@dataclass(frozen=True, eq=False)
class Case:
    """A public feeder with a law of its loads.

    Attributes
    ----------
    rows : line → complex (loaded, retained + slack): change of the reduced Y per share of its admittance.
    """

    feeder: Feeder
    network: Network
    law: LoadLaw
    rows: dict[str, ComplexArray]

    @classmethod
    def of(cls, name: str, factor: float) -> Case:
        feeder = open_feeder(name)
        network, (positions, _) = Network(feeder), feeder.loaded_nodes()
        nominal = -feeder.nominal_injection[feeder.retained][positions] * factor
        correlation = PublicSpread().covariance(STEPS, 24 * 60 // STEPS)
        of_class = ClassLaw.gaussian(
            np.full(STEPS, -(SPREAD_P**2) / 2.0), SPREAD_P**2 * correlation, q_covariance=correlation
        )
        law = replace(nominal_law(nominal, of_class, SPREAD_Q), positions=positions)
        lines = [line for line in feeder.lines if not line.is_switch]
        return cls(feeder, network, law, {line.name: _row(network, line, positions) for line in lines})

    def voltages(self, law: LoadLaw) -> ComplexArray:
        """Complex (day, step, retained) of all trials."""
        sampler = LoadSampler(law, StreamKey.from_insecure_seed(3), DAYS * TRIALS, block_days=DAYS * TRIALS)
        made = solve_days(BatchSolver(self.feeder), sampler)
        made.solution.raise_if_failed()
        return made.v

    def with_load(self, node: int, scale: float) -> LoadLaw:
        """The law with another load at one node [p.u.]."""
        scales = self.law.scale_kw.copy()
        scales[node] = scale
        return replace(self.law, scale_kw=scales)


def _row(network: Network, line: Line, positions: IntArray) -> ComplexArray:
    change = network.line_change(line, _PROBE * line.primitive)
    return np.asarray((change.left[positions] @ change.core) @ change.right / _PROBE)


def regression(case: Case, v: ComplexArray, node: int) -> float:
    """Relative error of the strongest coefficient of v_k on its neighbours, root mean square over trials.

    Coefficients of closed switches are left out: they are 1, and known from the switch.
    """
    k = int(case.law.positions[node]) if case.law.positions is not None else node
    row = case.network.y[k]
    size = np.abs(row)
    others = [j for j in np.argsort(-size) if j != k and size[j] > 1e-6 * size[k]]
    truth = -row[others] / row[k]
    judged = int(np.argmax(np.abs(1.0 - truth) > _SWITCH))  # the strongest that is not a closed switch
    errors = []
    for trial in v.reshape(TRIALS, DAYS * STEPS, -1):
        known = np.concatenate([trial[:, others], np.ones((len(trial), 1))], axis=1)
        found = np.linalg.lstsq(known, trial[:, k], rcond=None)[0]
        errors.append(abs(found[judged] - truth[judged]) / abs(truth[judged]))
    return float(np.sqrt(np.mean(np.square(errors))))


def one_line(case: Case, law: LoadLaw, v: ComplexArray, nodes: IntArray, line: str) -> float:
    """Error of one line's admittance from the implied loads of some nodes, every other line known."""
    rows, n = case.rows[line][nodes], case.network.n
    positions = np.arange(n) if law.positions is None else law.positions
    at = positions[nodes]
    through = v @ rows[:, :n].T + rows[:, n:] @ case.feeder.v_slack
    slope = v[..., at] * np.conj(through)
    implied = -v[..., at] * np.conj(v @ case.network.y[at].T + case.network.b[at])
    away = implied - law.mean_load[:, nodes]
    spread = law.mean_load.real[:, nodes] * SPREAD_P, np.full(len(nodes), SPREAD_Q) * law.scale[nodes]
    top = slope.real * away.real / spread[0] ** 2 + slope.imag * away.imag / spread[1] ** 2
    bottom = (slope.real / spread[0]) ** 2 + (slope.imag / spread[1]) ** 2
    found = _by_trial(top) / _by_trial(bottom)
    return float(np.sqrt(np.mean(found**2)))


def _by_trial(values: FloatArray) -> FloatArray:
    return np.asarray(values.reshape(TRIALS, -1).sum(axis=1))


def best_line(case: Case, law: LoadLaw, v: ComplexArray, node: int) -> float:
    """The least error of a line that one node gives away."""
    size = {name: float(np.linalg.norm(rows[node])) for name, rows in case.rows.items()}
    near = sorted(size, key=lambda name: -size[name])[:_MOST_LINES]
    nodes = np.array([node])
    return min(one_line(case, law, v, nodes, name) for name in near if size[name] > 0.0)


def table(name: str, factor: float, nodes: int) -> list[str]:
    """Markdown: errors of a feeder by share."""
    case = Case.of(name, factor)
    law = case.law
    scale = law.scale
    middle = middle_load_kw(scale)
    v = case.voltages(law)
    every = np.arange(law.n)
    whole = [one_line(case, law, v, every, line) for line in case.rows]
    own = np.array([regression(case, v, node) for node in every])
    lines = [
        f"**{name}**: {law.n} loaded nodes, the lightest at {scale.min() / middle:.2g} of the middle load. "
        f"With the loads as they are, the best-known line has an error of {min(whole):.1e} (median "
        f"{np.median(whole):.1e}) for who knows all others; regression: {own.min():.1e} (median "
        f"{np.median(own):.1e}).",
        "",
        "| share | regression: best node | median node | one line unknown: best node | median node |",
        "|---|---|---|---|---|",
    ]
    chosen = np.unique(np.linspace(0, law.n - 1, min(law.n, nodes)).astype(int))
    for share in SHARES:
        found = []
        for node in chosen:
            light = case.with_load(int(node), share * middle)
            v = case.voltages(light)
            found.append((regression(case, v, int(node)), best_line(case, light, v, int(node))))
        by, with_others = np.array(found).T
        lines.append(
            f"| {share:g} | {by.min():.1e} | {np.median(by):.1e} | {with_others.min():.1e} | "
            f"{np.median(with_others):.1e} |"
        )
    return [*lines, ""]


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10, help="nodes that are made light, one at a time")
    parser.add_argument("--feeder", action="append", choices=sorted(FEEDERS), help="default: all")
    chosen = parser.parse_args()
    for name in chosen.feeder or FEEDERS:
        for line in table(name, FEEDERS[name], chosen.nodes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
