"""Theorem 1 held against the exact loss, on the only neighbours that its adjacency covers.

Def. dual_adjacency asks for the same manifold of voltages. Those networks are row scalings and shunts of the
node's own power factor (`neighbours`). For them the exact loss Λ is known, so the share of draws with
|Λ| > ε is the δ of Def. pdp at that neighbour, and ε of the theorem can be compared with what is true. The
neighbour is the worst that a search over directions finds on other draws. For a neighbour that changes a line
the loss is infinite; how far its voltages are from the manifold is measured on one snapshot.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import beta

from dp_powerflow import BatchSolver, Feeder, StreamKey, open_feeder
from dp_powerflow.evidence.collect import printed_formula
from dp_powerflow.evidence.theorem import corrected_bound
from dp_powerflow.lowlevel import (
    DaySolver,
    LoadLaw,
    LoadSampler,
    Network,
    NetworkFacts,
    figure_bytes,
    monte_carlo,
    network_facts,
    new_figure,
    nominal_law,
    plain,
    solve_days,
)
from dp_powerflow.units import ComplexArray, FloatArray
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset
from dp_powerflow_paper.losses import Admittance, Loss, implied_load, manifold_log_density
from dp_powerflow_paper.neighbours import (
    LINE_CHANGE,
    Dimensions,
    LineCase,
    Manifold,
    Move,
    changed_lines,
    count_dimensions,
    most_informative,
    scores,
    towards_margin,
)
from dp_powerflow_paper.run import Written, block, write_report
from dp_powerflow_paper.theorem import empirical_law

RADIUS, DELTA = 1e-4, 1e-5
FLOOR = 0.1
"""Public variance added to the log loads; their covariance is singular without one (paper correction 15)."""
CONFIDENCE = 0.95
QUANTILES = (0.5, 0.99)
FEEDERS = ("ieee123", "ieee13")
_WIDER = 0.3
"""Variance of the random states at which directions are counted."""
_SOLVED_TO = 1e-12
_LEFT = 1e5
"""How far below the printed ε the figure begins."""


@dataclass(frozen=True)
class Scale:
    """Draws: days and steps with the exact loss, with the exit from the support alone, of the search."""

    days: int = 40
    steps: int = 1000
    exit_days: int = 2000
    exit_steps: int = 50_000
    pilot: int = 12
    states: int = 1200


QUICK = Scale(days=4, steps=50, exit_days=100, exit_steps=2000, pilot=3, states=350)


@dataclass(frozen=True)
class Span:
    """One step or one day of a release: its law, and what the theorem says of it.

    Attributes
    ----------
    printed, corrected : the formula with the exact κ, and repaired, whether or not they are bounds.
    claimed_delta : δ that stands beside the printed ε.
    """

    name: str
    law: LoadLaw
    printed: float
    corrected: float
    claimed_delta: float


@dataclass(frozen=True)
class Evaluation:
    """The exact loss at one neighbour.

    Attributes
    ----------
    span : "one step" or "one day".
    truncated : whether loads keep the margins, as in the paper.
    ball : which size the neighbour has.
    move : its direction.
    median, high : quantiles of |Λ|, infinite ones counted.
    largest : of the finite |Λ|, None if there is none.
    volume : largest |Term II|.
    draws : of the exact loss.
    exits, exit_draws : draws that Y′ cannot have made at all (Λ = ∞), of so many.
    delta : (low, high) of Pr(|Λ| > ε of the theorem), Clopper–Pearson.
    printed, corrected, claimed_delta : of the span.
    curve : |Λ| of all draws, ascending, finite ones only.
    """

    span: str
    truncated: bool
    ball: str
    move: str
    median: float
    high: float
    largest: float | None
    volume: float
    draws: int
    exits: int
    exit_draws: int
    delta: tuple[float, float]
    printed: float
    corrected: float
    claimed_delta: float
    curve: tuple[float, ...]

    @property
    def looseness(self) -> float | None:
        """Printed ε over the 99 % quantile of |Λ|, None where that is infinite."""
        return None if math.isinf(self.high) else self.printed / self.high


@dataclass(frozen=True)
class Result:
    """Of one feeder."""

    feeder: str
    kappa: float
    dimensions: Dimensions
    evaluations: tuple[Evaluation, ...]
    lines: LineCase | None


class _Lab:
    """A feeder with fixed power factors, and draws on it."""

    def __init__(self, feeder: Feeder, law: LoadLaw, scale: Scale, seed: int) -> None:
        self.network = Network(feeder)
        self.manifold = Manifold(self.network, law.tan_theta)
        self.scale = scale
        self._solver = BatchSolver(feeder, tolerance=_SOLVED_TO)
        self._key = StreamKey.from_insecure_seed(seed)

    def voltages(self, law: LoadLaw, days: int, name: str) -> ComplexArray:
        """Complex (day, step, node) of fresh draws; days without power flow, never released, are left out."""
        source = LoadSampler(law, self._key.bind("manifold", name), days)
        v = np.concatenate([solve_days(self._solver, source, block).v for block in range(source.n_blocks)])
        return np.asarray(v[np.isfinite(v).all(axis=(1, 2))])

    def moves(self, law: LoadLaw, metric: FloatArray, pilot: FloatArray) -> tuple[Move, ...]:
        """Unit directions to try: the one the loss varies most along, and those that leave the margins."""
        found = (most_informative(self.manifold, pilot, metric),)
        if not law.truncated:
            return found
        return (*found, *(towards_margin(self.manifold, law, metric, sign) for sign in (1.0, -1.0)))

    def exits(self, law: LoadLaw, other: Admittance, v: ComplexArray) -> int:
        """Draws whose implied load under another network is impossible."""
        p = implied_load(other, v).real
        low, high = 0.0 * law.scale, math.inf * law.scale
        if law.truncated:
            low, high = law.scale * law.p_min[law.class_of], law.scale * law.p_max[law.class_of]
        return int(np.count_nonzero(~np.all((p >= low) & (p <= high) & (p > 0.0), axis=(1, 2))))


def run_manifold(
    feeder: Feeder, law: LoadLaw, scale: Scale, options: ExperimentOptions, radius: float = RADIUS
) -> Result:
    """Every span, law, ball and direction on one feeder whose retained nodes all carry load.

    Parameters
    ----------
    law : of the loads over a day, with margins; untruncated and at fixed power factors.
    """
    lab = _Lab(feeder, law, scale, options.seed)
    facts = network_facts(lab.network)
    kappa = facts.amplification.exact
    spans = _spans(lab, facts, law, radius, options)
    evaluations: list[Evaluation] = []
    for span in spans:
        evaluations += _evaluate(lab, span, kappa, radius)
        options.progress(len(evaluations), len(evaluations) + 1)
    states = lab.voltages(law.with_floor(_WIDER).at_step(0), scale.states, "states")[:, 0]
    return Result(
        feeder=feeder.name,
        kappa=kappa,
        dimensions=count_dimensions(lab.manifold, states),
        evaluations=tuple(evaluations),
        lines=changed_lines(lab.manifold, states[0]),
    )


def _spans(
    lab: _Lab, facts: NetworkFacts, law: LoadLaw, radius: float, options: ExperimentOptions
) -> list[Span]:
    """The step with the median printed ε and the day, truncated and not."""
    cut = law.within()
    key = StreamKey.from_insecure_seed(options.seed).bind("manifold", "calibration")
    found = monte_carlo(DaySolver(lab.network), LoadSampler(cut, key, options.calibration_days))
    printed = printed_formula(facts, cut, found.operating, found.worst_mu, radius, DELTA)
    middle = int(np.argmin(np.abs(1.0 / law.std[0] ** 2 - printed.median.gamma)))
    spans = []
    for name, terms, own, of in (
        ("one step", printed.median, law.at_step(middle), cut.at_step(middle)),
        ("one day", printed.day, law, cut),
    ):
        repaired = corrected_bound(facts, of, found.operating, radius, DELTA).terms.formula
        spans += [Span(name, drawn, terms.formula, repaired, printed.delta) for drawn in (of, own)]
    return spans


def _evaluate(lab: _Lab, span: Span, kappa: float, radius: float) -> list[Evaluation]:
    scale, law, manifold = lab.scale, span.law, lab.manifold
    one = law.steps == 1
    name = f"{span.name} {law.truncated}"
    pilot = lab.voltages(law, scale.pilot * (50 if one else 1), f"pilot {name}")
    found = scores(manifold, law, pilot)
    v = lab.voltages(law, scale.steps if one else scale.days, f"exact {name}")
    many = lab.voltages(law, scale.exit_steps if one else scale.exit_days, f"exits {name}")
    ours = _log_density(law, manifold.true, v)
    balls = {"‖ΔY_full‖ = r": (radius, manifold.full_metric), "‖ΔY‖ = κr": (kappa * radius, manifold.metric)}
    rows = []
    for ball, (size, metric) in balls.items():
        for direction in lab.moves(law, metric, found):
            other = manifold.neighbour(direction.times(size))
            theirs = _log_density(law, other, v)
            loss = Loss(ours.term_i - theirs.term_i, ours.term_ii - theirs.term_ii)
            rows.append(_row(span, ball, direction.name, loss, lab.exits(law, other, many), len(many)))
    return rows


def _log_density(law: LoadLaw, network: Admittance, v: ComplexArray) -> Loss:
    """`manifold_log_density` some snapshots at a time; 2n × 2n matrices of all would not fit."""
    at_once = max(1, 96 // v.shape[1])
    parts = [manifold_log_density(law, network, v[k : k + at_once]) for k in range(0, len(v), at_once)]
    return Loss(
        np.concatenate([part.term_i for part in parts]), np.concatenate([part.term_ii for part in parts])
    )


def _row(span: Span, ball: str, move: str, loss: Loss, exits: int, exit_draws: int) -> Evaluation:
    size = np.abs(loss.total)
    finite = np.sort(size[np.isfinite(size)])
    median, high = (float(np.quantile(size, q, method="higher")) for q in QUANTILES)
    # Where ε of the theorem is beyond every finite loss, Pr(|Λ| > ε) is the probability of an exit.
    beyond, of = exits, exit_draws
    if len(finite) and finite[-1] > span.printed:
        beyond, of = int(np.count_nonzero(size > span.printed)), len(size)
    return Evaluation(
        span=span.name,
        truncated=span.law.truncated,
        ball=ball,
        move=move,
        median=median,
        high=high,
        largest=float(finite[-1]) if len(finite) else None,
        volume=float(np.abs(loss.term_ii).max()),
        draws=len(size),
        exits=exits,
        exit_draws=exit_draws,
        delta=clopper_pearson(beyond, of),
        printed=span.printed,
        corrected=span.corrected,
        claimed_delta=span.claimed_delta,
        curve=tuple(finite.tolist()),
    )


def clopper_pearson(count: int, draws: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Two-sided interval of a probability."""
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, draws - count + 1))
    high = 1.0 if count == draws else float(beta.ppf(1.0 - tail, count + 1, draws - count))
    return low, high


def to_markdown(results: tuple[Result, ...]) -> str:
    """The tables of docs/results/network.md."""
    lines: list[str] = []
    for result in results:
        d = result.dimensions
        row = f"{d.fewest}" if d.fewest == d.most else f"{d.fewest} … {d.most}"
        lines += block(
            f"{result.feeder}: κ = {result.kappa:.4g}. Directions that keep the manifold: {row} per row of "
            f"(Y, b), {d.symmetric} in all for symmetric Y; the paper counts n² − n = {d.claimed}. (SVD over "
            f"{d.states} states; the smallest constraint is {d.smallest_kept:.1e} of the largest, what is "
            f"left at most {d.largest_dropped:.1e}.)",
            "release | loads | size | direction | \\|Λ\\|: median | 99 % | largest finite | Term II | "
            "Pr(Λ = ∞) | Pr(\\|Λ\\| > printed ε), 95 % | printed ε | claimed δ | repaired formula | "
            "printed ε over 99 %",
            map(_line, result.evaluations),
        )
        if result.lines is not None:
            case = result.lines
            lines += [
                f"One line changed by {100 * LINE_CHANGE:g} %: Λ is infinite. One snapshot leaves the "
                f"manifold by {case.least:.2g} / {case.middle:.2g} / {case.most:.2g} kvar (least, median, "
                f"most of {case.lines} lines), under the true network by {case.own:.1g} kvar. One snapshot, "
                f"rounded to 1e-6 p.u. and 1e-5°, does not rule out {case.hidden} of the lines for certain.",
                "",
            ]
    return "\n".join(lines)


def _line(item: Evaluation) -> str:
    low, high = item.delta
    looseness = "—" if item.looseness is None else f"{item.looseness:.2g}"
    largest = "none" if item.largest is None else f"{item.largest:.2g}"
    return (
        f"{item.span} | {'truncated' if item.truncated else 'untruncated'} | {item.ball} | {item.move} | "
        f"{_figure(item.median)} | {_figure(item.high)} | {largest} | {item.volume:.1g} | "
        f"{item.exits / item.exit_draws:.2g} | {low:.2g} … {high:.2g} | {item.printed:.4g} | "
        f"{item.claimed_delta:.2g} | {item.corrected:.3g} | {looseness}"
    )


def _figure(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


def draw(result: Result, form: str) -> bytes:
    """Share of draws with |Λ| > ε against ε, beside the printed ε; an exit from the support stays."""
    figure = new_figure((10.0, 5.0))
    panels: Any = figure.subplots(1, 2, sharey=True)
    colours: dict[str, str] = {}
    for axes, span in zip(panels, ("one step", "one day"), strict=True):
        own = [item for item in result.evaluations if item.span == span]
        for item in own:
            label = f"{'truncated' if item.truncated else 'untruncated'}, {item.ball}, {item.move}"
            colour = colours.setdefault(label, f"C{len(colours)}")
            exits, finite = item.exits / item.exit_draws, len(item.curve)
            beyond = exits + (1.0 - exits) * (1.0 - np.arange(1, finite + 1) / max(finite, 1))
            at = [item.printed / _LEFT, *item.curve, 3.0 * item.printed]
            axes.step(at, [1.0, *beyond, exits], where="post", label=label, color=colour)
        for item in own[:1]:
            axes.axvline(item.printed, color="k", linestyle=":", label="ε of the printed formula")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(5e-4, 1.5)
        axes.set_xlabel("ε")
        axes.set_title(f"{result.feeder}, {span}", fontsize=10)
        axes.grid(True, color="0.92")
    panels[0].set_ylabel("Pr(|Λ| > ε) at the worst neighbour found")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, frameon=False, loc="outside lower center", ncols=3)
    return figure_bytes(figure, form)


def run(options: ExperimentOptions) -> Written:
    """The experiment of the command line: tables and a figure."""
    data = open_dataset(replace(options, data=options.data or "oedi", pv=False))
    of_class = empirical_law(data).with_floor(FLOOR).classes[0]
    results = []
    for name in FEEDERS:
        feeder = open_feeder(name)
        law = nominal_law(-feeder.nominal_injection[feeder.retained], of_class)
        results.append(run_manifold(feeder, law, QUICK if options.quick else Scale(), options))
    content = [plain(asdict(result)) for result in results]
    figures = {"manifold": partial(draw, results[0])}
    return write_report(options.out, "manifold", to_markdown(tuple(results)), content, figures=figures)
