"""Tables of the Wasserstein experiment: the Markdown of the docs.

Figures of the Wasserstein experiment: W1 against ε in every unit, and two birds with one stone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.collect import radius_in_lines, with_exact_kappa
from dp_powerflow.evidence.theorem import paper_bound
from dp_powerflow.lowlevel import figure_bytes, gdp_epsilon, gdp_mu, new_figure
from dp_powerflow_paper.mechanisms.dp_powerflow import DpPowerflow
from dp_powerflow_paper.mechanisms.noise import DAY, PAPER_DAY, STEP, UNITS, GaussianNoise, NoiseUnit
from dp_powerflow_paper.run import table
from dp_powerflow_paper.sources.models import CLASSES
from dp_powerflow_paper.wasserstein.evaluation import BEST, MEDIAN, WORST, Outcome, best, mean_and_error
from dp_powerflow_paper.wasserstein.lab import DELTA_LOAD, DELTA_TAIL, Lab
from dp_powerflow_paper.wasserstein.search import VARIANTS

WARNING = (
    "ε of DP-Powerflow is the paper's formula for one step with the exact κ and a Monte Carlo calibration. "
    "It is NOT a proved bound on this feeder (docs/results/network.md). The paper's variant speaks only of "
    "networks with the same manifold of voltages, which no change of a line has."
)
_PAPER_SIGMA = (
    "With the paper's σ the claimed δ does not hold: the figure in brackets is the δ that σ really gives "
    "at the ε it was made for."
)


def of_voltages(values: dict[str, float]) -> float | None:
    """Of the noise on voltages, among those of one mechanism."""
    return values.get("voltage_noise", values.get("noise"))


def to_markdown(lab: Lab, references: dict[str, float], outcomes: Sequence[Outcome]) -> str:
    """The tables of docs/results/experiments.md."""
    scale, bound = lab.scale, lab.proved
    proved = "none" if bound is None else f"network {bound.network:.4g}, load {bound.load:.4g} p.u."
    share = radius_in_lines(lab.data.feeder, lab.data.radius).median
    lines = [
        f"{lab.data.words}. {scale.runs} runs of {scale.days} days, every run with fits of its own; pooled "
        "W1 in 10⁻³ p.u., mean ± standard error over the runs. "
        f"r = {lab.data.radius:g} ({share or math.nan:.2g} of the median line), common δ = {lab.delta:.3g}, "
        f"δ of the loads {DELTA_LOAD:g}. Sensitivities proved over the load box: {proved}.",
        "",
        WARNING,
        "",
        f"Noise-free: {1e3 * references['noise-free']:.3g}. Other true days against these: "
        f"{1e3 * references['other true days']:.3g}.",
    ]
    parts: list[tuple[str, Iterable[str]]] = [
        (f"Noise covers {unit.title}", _table(scale.epsilons, outcomes, unit)) for unit in UNITS
    ]
    parts += [
        ("Sensitivities and noise of the paper's table, on this feeder", _sensitivities(lab)),
        ("The literal recipe, ε of the network for one step", _literal(outcomes)),
        ("Configurations chosen (one step, analytic σ)", _choices(scale.epsilons, outcomes, STEP)),
        ("Configurations chosen (the paper's table)", _choices(scale.epsilons, outcomes, PAPER_DAY)),
        (f"The same for a day of {lab.setting.steps} steps", _days(lab, outcomes)),
        ("Noise on the entries of Y", _y_noise(outcomes)),
        ("The twin network", _twins(outcomes)),
        ("Gaussian calibration per unit of sensitivity", _calibrations(lab)),
    ]
    for title, lines_of in parts:
        lines += ["", f"**{title}**", "", *lines_of]
    return "\n".join(lines) + "\n"


def _table(epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: NoiseUnit) -> list[str]:
    rows = []
    for mechanism, variant in VARIANTS.items():
        chosen = [best(outcomes, mechanism, epsilon, variant.own(unit)) for epsilon in epsilons]
        rows.append([variant.label, *(_cell(outcome) for outcome in chosen)])
    note = [_PAPER_SIGMA, ""] if unit.calibration == "classical" else []
    return note + table(["mechanism", *(f"ε = {e:g}" for e in epsilons)], rows)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "—"
    mean, error = outcome.pooled
    failed = f" ({100 * outcome.failed:.2g} % failed)" if outcome.failed > 0.0 else ""
    delta = of_voltages(outcome.true_delta)
    if outcome.configuration.unit.calibration == "classical" and delta is not None:
        failed = f" [{_share(delta)}]{failed}"
    return f"{1e3 * mean:.2f} ± {1e3 * error:.2f}{failed}"


def _share(delta: float) -> str:
    """A δ in words; one that rounds to 1 is not called 1."""
    return f"{delta:.2g}" if delta < 0.99 else "> 0.99"


@dataclass(frozen=True)
class _Sensitivity:
    """A row of the paper's table of sensitivities.

    Attributes
    ----------
    value : Δ₂ of one sample [p.u.].
    covered : samples that the table's σ covers together.
    budgets, delta : (ε, δ) at which σ is shown.
    """

    mechanism: str
    target: str
    symbol: str
    value: float
    covered: int
    budgets: tuple[float, ...]
    delta: float
    protects: str

    @property
    def row(self) -> list[str]:
        """Δ₂, σ as printed and σ that holds, and the δ of the printed one."""
        reach = math.sqrt(self.covered) * self.value
        printed = [GaussianNoise(reach, epsilon, self.delta, "classical") for epsilon in self.budgets]
        analytic = [GaussianNoise(reach, epsilon, self.delta) for epsilon in self.budgets]
        return [
            self.mechanism,
            self.target,
            f"{self.symbol} = {self.value:.4g}",
            str(self.covered),
            " / ".join(f"{noise.sigma:.3g}" for noise in printed),
            " / ".join(f"{noise.sigma:.3g}" for noise in analytic),
            " / ".join(_share(noise.true_delta) for noise in printed),
            self.protects,
        ]


def _sensitivities(lab: Lab) -> list[str]:
    """Table III of the paper with the numbers of this feeder."""
    steps, n_loads = lab.setting.steps, lab.setting.n_loads
    network, load = lab.sensitivities.network, lab.sensitivities.load
    epsilons, delta = lab.scale.epsilons, lab.delta
    day, both = DAY.covered(steps), "Y and loads"

    def of_network(mechanism: str, protects: str) -> _Sensitivity:
        return _Sensitivity(mechanism, "voltages", "Δ₂^(Y)", network, day, epsilons, delta, protects)

    rows = [
        of_network("Gaussian on voltages", "Y"),
        _Sensitivity("Gaussian on Y", "entries of Y", "r", lab.data.radius, 1, epsilons, delta, "Y"),
        _Sensitivity(
            "joint voltage noise",
            "voltages",
            "max(Δ₂^(Y), Δ₂^(load→v))",
            max(network, load),
            day,
            epsilons,
            delta,
            both,
        ),
        of_network("DP-GMM + Gaussian on voltages", both),
        _Sensitivity(
            "noisy loads + Gaussian on voltages",
            "loads",
            "Δ_load",
            lab.setting.load_range,
            DAY.covered_loads(steps, n_loads),
            lab.scale.epsilons_load,
            DELTA_LOAD,
            both,
        ),
        of_network("the same", both),
    ]
    header = ["mechanism", "noise on", "Δ₂ of a sample [p.u.]", "samples covered"]
    header += ["σ, the paper's", "σ, analytic", "true δ of the paper's σ", "protects"]
    words = [
        f"σ at ε = {' / '.join(f'{e:g}' for e in epsilons)} and δ = {delta:.3g}; of the noise on loads at "
        f"ε_load = {' / '.join(f'{e:g}' for e in lab.scale.epsilons_load)} and δ = {DELTA_LOAD:g}. The "
        f"noise is for √(samples covered)·Δ₂. Δ₂^(load→v) = {load:.4g}. DP-GMM → PF adds no noise and has "
        "no Δ₂. With one sample covered, σ is that divided by the root.",
        "",
    ]
    return words + table(header, (row.row for row in rows))


def _literal(outcomes: Sequence[Outcome]) -> list[str]:
    classes = {"literal": 1, "literal-classes": CLASSES.n_classes}
    literal = [outcome for outcome in outcomes if outcome.configuration.mechanism in classes]
    rows = []
    for outcome in sorted(literal, key=lambda o: (o.configuration.bounds, o.configuration.p_max)):
        config = outcome.configuration
        cells = [f"{config.bounds:g}, {config.p_max:g}", str(classes[config.mechanism])]
        cells.append(f"{config.epsilon_load:g}")
        if outcome.refused is None:
            cells += [f"{mean_and_error(outcome.runs[name])[0]:.1f}" for name in (BEST, MEDIAN, WORST)]
            rows.append([*cells, f"{outcome.epsilon:.1f}", _cell(outcome)])
        else:
            rows.append([*cells, *["—"] * 4, outcome.refused])
    words = [
        "p_max: factors on the largest profile value, as declared to the fit and as draws are cut to. ε: "
        "mean over the runs at the best, median and worst step of the day; last the largest of any run at "
        "its worst step, which decides what a target admits.",
        "",
    ]
    header = ["p_max: fit, draws", "classes", "ε_load", "ε best step", "ε median step", "ε worst step"]
    header += ["largest ε", "W1"]
    return words + table(header, rows)


def _choices(epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: NoiseUnit) -> list[str]:
    rows = []
    for mechanism, variant in VARIANTS.items():
        for epsilon in epsilons:
            chosen = best(outcomes, mechanism, epsilon, variant.own(unit))
            if chosen is None or (unit is not STEP and variant.own(unit) is STEP):
                continue
            config = chosen.configuration
            bounds = config.bounds if variant.fitted else None
            values = (chosen.epsilon, config.epsilon_load, bounds, config.p_max, chosen.floor)
            cells = ["—" if value is None else f"{value:.3g}" for value in values]
            cells.append(f"{1e3 * chosen.per_node[0]:.2f} ± {1e3 * chosen.per_node[1]:.2f}")
            sigma, delta = of_voltages(chosen.noise), of_voltages(chosen.true_delta)
            cells.append("—" if sigma is None else f"{sigma:.3g}")
            cells.append("—" if delta is None else _share(delta))
            rows.append([variant.label, f"{epsilon:g}", *cells])
    header = ["mechanism", "target ε", "its ε", "ε_load", "p_max of fit", "p_max of draws", "floor"]
    return table([*header, "W1 per node", "σ of voltages", "true δ"], rows)


def _days(lab: Lab, outcomes: Sequence[Outcome]) -> list[str]:
    """What a claim for one step comes to over a day, for the configurations chosen."""
    rows = []
    for epsilon in lab.scale.epsilons:
        day = gdp_epsilon(math.sqrt(lab.setting.steps) * gdp_mu(epsilon, lab.delta), lab.delta)
        ours = [_day_formula(lab, best(outcomes, name, epsilon)) for name in ("literal", "dp-powerflow")]
        rows.append([f"{epsilon:g}", *ours, f"{day:.4g}"])
    header = ["target ε of one step", "DP-Powerflow (literal)", "DP-Powerflow (ours)", "Gaussian noise"]
    return table(header, rows)


def _day_formula(lab: Lab, chosen: Outcome | None) -> str:
    """The paper's formula of a whole day for the first run's law."""
    if chosen is None:
        return "—"
    mechanism = chosen.configuration.variant.build(lab, chosen.configuration, 0)
    assert isinstance(mechanism, DpPowerflow)
    facts = with_exact_kappa(lab.facts)
    bound = paper_bound(facts, mechanism.law, lab.operating, lab.data.radius, DELTA_TAIL)
    return f"{bound.terms.formula:.4g}"


def _y_noise(outcomes: Sequence[Outcome]) -> list[str]:
    rows = []
    for outcome in outcomes:
        config = outcome.configuration
        if config.mechanism == "y-noise":
            mean, error = outcome.pooled
            rows.append(
                [
                    "of the table" if config.radius is None else f"{config.radius:g}",
                    f"{config.target:g}",
                    config.unit.calibration,
                    f"{outcome.noise.get('noise', math.nan):.3g}",
                    _share(outcome.true_delta.get("noise", math.nan)),
                    f"{100 * outcome.failed:.3g} %",
                    f"{1e3 * mean:.3g} ± {1e3 * error:.2g}",
                ]
            )
    header = ["r", "ε", "calibration", "σ of an entry", "true δ", "snapshots failed", "W1 of the rest"]
    return table(header, rows)


def _twins(outcomes: Sequence[Outcome]) -> list[str]:
    rows = []
    for outcome in outcomes:
        if outcome.configuration.mechanism == "twin-network":
            (eta,) = outcome.noise.values()
            node = f"{1e3 * outcome.per_node[0]:.2f} ± {1e3 * outcome.per_node[1]:.2f}"
            rows.append([f"{outcome.configuration.target:g}", f"{eta:.3g}", _cell(outcome), node])
    return table(["ε (any number of days)", "σ of the log of a line's figure", "W1", "W1 per node"], rows)


def _calibrations(lab: Lab) -> list[str]:
    rows = []
    for delta in (lab.delta, 1e-5):
        for epsilon in lab.scale.epsilons:
            classical = GaussianNoise(1.0, epsilon, delta, "classical")
            try:
                exact = f"{GaussianNoise(1.0, epsilon, delta).sigma:.4g}"
            except PrivacyError:
                exact = "—"
            cells = [f"{epsilon:g}", f"{delta:.2g}", exact]
            rows.append([*cells, f"{classical.sigma:.4g}", _share(classical.true_delta)])
    return table(["ε", "δ", "σ analytic", "σ classical", "true δ of the classical"], rows)


Curves = dict[str, list[tuple[float, float, float]]]
"""Label → (ε, mean, standard error)."""

_STYLES = ("D-", "o--", "o:", "s-", "s--", "D:", "h-", "*-", "d-", "P-", "^-", "v-", "x:", "+:")


def curves_of(epsilons: Sequence[float], outcomes: Sequence[Outcome], unit: NoiseUnit) -> Curves:
    """The best of every mechanism at every ε in one unit."""
    curves = {}
    for mechanism, variant in VARIANTS.items():
        found = [(epsilon, best(outcomes, mechanism, epsilon, variant.own(unit))) for epsilon in epsilons]
        curves[variant.label] = [
            (epsilon, *outcome.pooled) for epsilon, outcome in found if outcome is not None
        ]
    return curves


def draw_wasserstein(lab: Lab, outcomes: Sequence[Outcome], other_days: float, form: str) -> bytes:
    """W1 against ε, one panel per unit of the noise, as the bytes of an SVG or PNG file."""
    figure = new_figure((11.0, 9.0))
    panels: Any = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, unit in zip(panels.T.ravel(), UNITS, strict=True):
        for style, (label, points) in zip(
            _STYLES, curves_of(lab.scale.epsilons, outcomes, unit).items(), strict=True
        ):
            epsilon, mean, error = zip(*points, strict=True) if points else ((), (), ())
            axes.errorbar(epsilon, mean, yerr=error, fmt=style, markersize=4, capsize=2, label=label)
        axes.axhline(other_days, color="0.6", linewidth=0.8, linestyle=":", label="other true days")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(lab.scale.epsilons, [f"{tick:g}" for tick in lab.scale.epsilons])
        axes.minorticks_off()
        axes.set_title(f"noise covers {unit.title}", fontsize=10)
        axes.grid(True, which="major", color="0.92")
    for axes in panels[1]:
        axes.set_xlabel("ε, target for the network")
    for axes in panels[:, 0]:
        axes.set_ylabel("W1 of voltage magnitudes, pooled [p.u.]")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7)
    note = (
        f"{lab.data.words}. Mean ± standard error. DP-Powerflow's ε is the paper's formula for one step, "
        "not a proved bound. Its curves and that of the twin are the same in all panels. The twin's "
        "neighbours differ by 5 % of a line, those of all others by r. With the paper's σ the δ that "
        "is claimed does not hold; the tables print the true one."
    )
    return _finished(figure, note, form)


def draw_two_birds(lab: Lab, outcomes: Sequence[Outcome], form: str) -> bytes:
    """Network ε and W1 of the literal recipe against ε_load, one curve per choice of margins."""
    figure = new_figure((7.5, 7.5))
    panels: Any = figure.subplots(2, 1, sharex=True)
    literal = [outcome for outcome in outcomes if outcome.configuration.mechanism == "literal"]
    margins = sorted({(o.configuration.bounds, o.configuration.p_max) for o in literal}, key=str)
    for number, chosen in enumerate(margins):
        points = [o for o in literal if (o.configuration.bounds, o.configuration.p_max) == chosen]
        points = [o for o in points if o.refused is None]
        loads = [o.configuration.epsilon_load for o in points]
        worst, least = ([mean_and_error(o.runs[name])[0] for o in points] for name in (WORST, BEST))
        label = "p_max × {1:g} in the draws, × {0:g} declared to the fit".format(*chosen)
        panels[0].plot(loads, worst, "o-", color=f"C{number}", markersize=4, label=label)
        panels[0].fill_between(loads, least, worst, color=f"C{number}", alpha=0.15, linewidth=0)
        means, errors = ([o.pooled[k] for o in points] for k in (0, 1))
        panels[1].errorbar(loads, means, yerr=errors, fmt="o-", color=f"C{number}", markersize=4, capsize=2)
    for target in lab.scale.epsilons:
        panels[0].axhline(target, color="0.7", linewidth=0.8, linestyle=":")
    for axes, words in zip(
        panels, ("ε of the network, one step", "W1 of voltage magnitudes, pooled [p.u.]"), strict=True
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylabel(words)
        axes.grid(True, which="major", color="0.92")
    panels[0].set_yticks(lab.scale.epsilons, [f"{tick:g}" for tick in lab.scale.epsilons])
    panels[0].minorticks_off()
    panels[1].set_xlabel("ε_load of the fit")
    panels[0].legend(fontsize=7, frameon=False)
    note = (
        f"{lab.data.words}. DP-Powerflow as the paper writes it: a noisier fit (smaller ε_load) is wider, "
        "which makes the network's ε smaller. Line: worst step of the day, mean over the runs; band: down "
        "to the best step; dotted: the paper's targets. ε is the paper's formula, not a proved bound."
    )
    return _finished(figure, note, form)


def _finished(figure: Any, note: str, form: str) -> bytes:
    width = int(13.5 * figure.get_figwidth())
    figure.supxlabel("\n".join(textwrap.wrap(note, width)), fontsize=7, color="0.35")
    return figure_bytes(figure, form)
