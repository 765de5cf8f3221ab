"""The demonstration as a page: both releases in figures beside the truth, and what each protects."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.cli.terminal import Rendered
from dp_powerflow.config import Config, read_config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.model import (
    CERTIFICATE_FILE,
    NO_PROTECTION,
    QUALITY_FILE,
    Manifest,
    at_most,
    in_digits,
)
from dp_powerflow.manifest.verify import read_manifest
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.page import (
    Axis,
    Band,
    Card,
    Figure,
    Histogram,
    Limit,
    Link,
    Page,
    Quantiles,
    Section,
    Series,
    Table,
)
from dp_powerflow.page.charts import CLOCK
from dp_powerflow.pipeline.inputs import Meters, ReleaseInputs, meters_of, read_inputs
from dp_powerflow.pipeline.metered import metered_days
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.ready import REPORT_FILE
from dp_powerflow.pipeline.release import ReleaseResult, run_release
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import FloatArray

ANSI_A = (0.95, 1.05)
"""Range A of ANSI C84.1 [p.u.]."""


@dataclass(frozen=True)
class Fidelity:
    """Voltage magnitudes of a release against the true ones.

    Attributes
    ----------
    w1 : Wasserstein distance of all magnitudes, pooled [p.u.].
    within, true_within : share of the released, and of the true, magnitudes in range A.
    """

    w1: float
    within: float
    true_within: float

    @classmethod
    def of(cls, released: FloatArray, true: FloatArray) -> Fidelity:
        """Of as many released magnitudes as true ones [p.u.]."""
        ours, theirs = np.sort(released, axis=None), np.sort(true, axis=None)
        return cls(float(np.mean(np.abs(ours - theirs))), _within(released), _within(true))


def _within(magnitude: FloatArray) -> float:
    return float(np.mean((magnitude >= ANSI_A[0]) & (magnitude <= ANSI_A[1])))


@dataclass(frozen=True)
class Loading:
    """Load of the feeder on the true days, over its nominal load."""

    mean: float
    peak: float


@dataclass(frozen=True)
class Side:
    """One release, in the words of the table."""

    name: str
    customers: str
    protected: str
    unit: str
    epsilon: str
    delta: str
    advantage: str
    proved: str
    days: str
    loading: Loading
    fidelity: Fidelity
    open: str


ROWS = {
    "customers": "customers",
    "protected": "network: protected",
    "unit": "network: unit",
    "epsilon": "network: ε",
    "delta": "network: δ",
    "advantage": "network: advantage of the best test",
    "proved": "network: proved?",
    "days": "network: days covered",
}


def render_sides(sides: Sequence[Side], notes: Sequence[str]) -> Rendered:
    """The table for a terminal, and as JSON."""
    names = [side.name for side in sides]
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(sides)) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows_of(sides)]
    content = {"sides": [asdict(side) for side in sides], "notes": list(notes)}
    return Rendered([*lines, "", *(line for note in notes for line in (note, ""))], json.dumps(content))


def rows_of(sides: Sequence[Side]) -> list[list[str]]:
    """The table: name of the row, then one cell for each side."""
    rows = [[label, *(str(getattr(side, name)) for side in sides)] for name, label in ROWS.items()]
    found = [side.fidelity for side in sides]
    low, high = ANSI_A
    return [
        *rows,
        [
            "load of the feeder, of its nominal load",
            *(f"{side.loading.mean:.0%} on average, {side.loading.peak:.0%} at most" for side in sides),
        ],
        ["W1 of voltage magnitudes to the true ones [p.u.]", *(f"{item.w1:.4f}" for item in found)],
        [
            f"within {low:g} to {high:g} p.u. (ANSI range A)",
            *(f"{item.within:.2%}; of the true ones {item.true_within:.2%}" for item in found),
        ],
        ["open", *(side.open for side in sides)],
    ]


_LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)
_BIN_PU = 0.002
_RELEASED, _TRUE = "released", "true"
_VOLTAGE = Axis("voltage magnitude", "p.u.", decimals=4)
_LIMITS = tuple(Limit(value, "range A") for value in ANSI_A)


@dataclass(frozen=True, eq=False)
class Look:
    """What the figures of one release are made of.

    Attributes
    ----------
    released, true : |v| (day, step, node) [p.u.].
    released_kw, true_kw : (day, step) load of the feeder [kW]; None where no load is released.
    quality : address of the quality page of the release.
    """

    released: FloatArray
    true: FloatArray
    released_kw: FloatArray | None
    true_kw: FloatArray
    quality: str


def demo_page(sides: Sequence[Side], looks: Sequence[Look], notes: Sequence[str]) -> bytes:
    """The page, as bytes."""
    figures = [figure for side, look in zip(sides, looks, strict=True) for figure in _figures(side, look)]
    sections = (
        Section("pages", "Open", items=(_links(sides, looks),)),
        Section("beside", "Released beside true", items=tuple(figures)),
        Section("table", "What each protects, and what it costs", items=(_table(sides),)),
    )
    lead = (
        "Two releases of the same feeder (IEEE 123) and the same simulated homes: on a twin of the network, "
        "as this program does it, and on the true network, as the paper does.",
        *notes,
    )
    return Page("dp-powerflow demo", None, lead, sections, cards=tuple(_cards(sides))).to_html()


def _cards(sides: Sequence[Side]) -> list[Card]:
    return [
        card
        for side in sides
        for card in (
            Card(f"W1 of voltages, {side.name}", f"{side.fidelity.w1:.4f} p.u.", "to the true voltages"),
            Card(
                f"within range A, {side.name}",
                f"{side.fidelity.within:.1%}",
                f"of the true voltages {side.fidelity.true_within:.1%}",
            ),
        )
    ]


def _links(sides: Sequence[Side], looks: Sequence[Look]) -> Table:
    rows = tuple(
        (side.name, Link(look.quality, look.quality), Link(side.open, side.open))
        for side, look in zip(sides, looks, strict=True)
    )
    return Table(("release", "its data in figures", "its guarantees"), rows)


def _table(sides: Sequence[Side]) -> Table:
    rows = [tuple(row) for row in rows_of(sides) if row[0] != "open"]
    return Table(("", *(side.name for side in sides)), tuple(rows))


def _figures(side: Side, look: Look) -> list[Figure]:
    """Histogram and daily band of the voltages; of the load too where it is released."""
    name = "twin" if look.released_kw is not None else "paper"
    figures = [
        Figure(
            f"{name}-voltages",
            f"Voltages, {side.name}",
            "Share of all magnitudes of all nodes and days in bins of 0.002 p.u.",
            _histogram(look),
            wide=False,
        ),
        Figure(
            f"{name}-day",
            f"Voltages over a day, {side.name}",
            "Quantiles (5, 25, 50, 75, 95 %) over all nodes and days.",
            _band(look.released, look.true, _VOLTAGE, _LIMITS),
            wide=False,
        ),
    ]
    if look.released_kw is not None:
        figures.append(
            Figure(
                f"{name}-load",
                f"Load of the feeder over a day, {side.name}",
                "Quantiles (5, 25, 50, 75, 95 %) over the days: drawn customers beside the simulated homes.",
                _band(look.released_kw, look.true_kw, Axis("load of the feeder", "kW", decimals=0)),
            )
        )
    return figures


def _histogram(look: Look) -> Histogram:
    low = np.floor(min(look.released.min(), look.true.min()) / _BIN_PU)
    high = np.ceil(max(look.released.max(), look.true.max()) / _BIN_PU) + 1
    edges = np.arange(low, high) * _BIN_PU
    shares = [100 * np.histogram(values, edges)[0] / values.size for values in (look.released, look.true)]
    series = (Series(_RELEASED, shares[0].round(4)), Series(_TRUE, shares[1].round(4)))
    return Histogram(_VOLTAGE, Axis("share", "%"), edges.round(4), series, _LIMITS)


def _band(released: FloatArray, true: FloatArray, axis: Axis, limits: tuple[Limit, ...] = ()) -> Band:
    steps = released.shape[1]
    bands = tuple(
        Quantiles(name, _LEVELS, _by_step(values).round(5))
        for name, values in ((_RELEASED, released), (_TRUE, true))
    )
    return Band(CLOCK, axis, np.arange(steps) * (1440 // steps), bands, limits)


def _by_step(values: FloatArray) -> FloatArray:
    """(level, step) quantiles over days, and nodes if there are any."""
    rows = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
    quantiles: FloatArray = np.quantile(rows, np.array(_LEVELS) / 100, axis=0)
    return quantiles


TWIN, PAPER, STATE, PAGE = "release", "paper", "private-state", "index.html"
FILES = "release.toml", "paper.toml", "taps.csv"


@dataclass(frozen=True)
class Demo:
    """Both releases of the demonstration.

    Attributes
    ----------
    folder : where everything is, as the user wrote it.
    models : load models by release, of those that were made here.
    """

    folder: Path
    models: dict[str, LoadModel] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder: Path) -> Demo:
        """Make the folder, with both configs in it."""
        if folder.exists():
            raise ConfigError(
                f"{folder} exists already; name another folder with --out, or remove it", code="output-taken"
            )
        folder.mkdir(parents=True)
        for name in FILES:
            content = files("dp_powerflow.cli").joinpath("demo_files", name).read_bytes()
            (folder / name).write_bytes(content)
        return cls(folder)

    @cached_property
    def twin(self) -> Config:
        """The release on a twin."""
        return read_config(self.folder / "release.toml")

    @cached_property
    def paper(self) -> Config:
        """The paper's release."""
        return read_config(self.folder / "paper.toml")

    @cached_property
    def meters(self) -> dict[str, Meters]:
        """The simulated homes as the load points of each release, which the comparison takes too."""
        return {config.release.id: meters_of(config, None) for config in (self.twin, self.paper)}

    def release(
        self, config: Config, say: Callable[[str], None], progress: Callable[[int, int], None]
    ) -> ReleaseResult:
        """Make one of the two."""
        result = run_release(
            config, say=say, progress=progress, history=self.meters[config.release.id].history
        )
        self.models[config.release.id] = result.model
        return result

    def compare(self, say: Callable[[str], None] = lambda _: None) -> tuple[Side, Side]:
        """Both releases in the words of the table, and how close they are to the true voltages."""
        state = PrivateState.open(self.twin.release.state, insecure_seed=self.twin.release.insecure_seed)
        say("solving the simulated meters themselves")
        on_twin, on_true = (
            read_inputs(own, state, history=self.meters[own.release.id].history)
            for own in (self.twin, self.paper)
        )
        looks = self._look(on_twin), self._look(on_true)
        sides = self._twin_side(on_twin, looks[0]), self._paper_side(on_true, looks[1])
        (self.folder / PAGE).write_bytes(demo_page(sides, looks, NOTES))
        return sides

    def _look(self, inputs: ReleaseInputs) -> Look:
        """A release, and the same number of metered days."""
        config = inputs.config
        model = self.models.get(config.release.id) or kept_model(config, inputs.state)
        assert model is not None  # the release is made
        folder = Path(str(config.release.output))
        corpus = open_corpus(folder)
        true = metered_days(inputs, mode_of(config), model, config.release.days)
        return Look(
            released=corpus.phasors().vm_pu.astype(np.float64),
            true=true.magnitude,
            released_kw=corpus.loads().real.sum(axis=2) if "loads" in corpus.holds else None,
            true_kw=true.feeder_kw,
            quality=f"{folder.name}/{QUALITY_FILE}",
        )

    def _manifest(self, name: str) -> Manifest[Any]:
        return read_manifest(self.folder / name)[0]

    def _twin_side(self, inputs: ReleaseInputs, look: Look) -> Side:
        manifest = self._manifest(TWIN)
        network, rows = manifest.guarantee.network, manifest.guarantee.network.shown_changes
        epsilon, advantage = (
            "; ".join(f"{at_most(getattr(row, name))} for {row.change:.0%}" for row in rows)
            for name in ("epsilon", "advantage")
        )
        return Side(
            name="twin network",
            customers=_customers(manifest, "service"),
            protected="R and X of every line",
            unit="one line, both figures changed by up to the factor that is named",
            epsilon=epsilon,
            delta=in_digits(network.delta),
            advantage=advantage,
            proved="yes, for every network",
            days="any number",
            loading=_loading(inputs, look),
            fidelity=Fidelity.of(look.released, look.true),
            open=f"{TWIN}/{CERTIFICATE_FILE}",
        )

    def _paper_side(self, inputs: ReleaseInputs, look: Look) -> Side:
        """The paper's release; its ε is that of the printed formula, labelled as what it is."""
        report = json.loads(inputs.state.read_internal(PAPER, REPORT_FILE) or b"{}")
        manifest, (epsilon, delta) = self._manifest(PAPER), _printed(report["evidence"])
        network = manifest.guarantee.network
        return Side(
            name="DP-Powerflow (the paper)",
            customers=_customers(
                manifest, f"load point, a sum of {inputs.config.loads.homes_per_point} homes"
            ),
            protected=f"{NO_PROTECTION}: no change of a line is covered, because power factors are fixed",
            unit=f"the network, its matrix changed by up to r = {in_digits(network.radius)} p.u. and with "
            "the same possible voltages",
            epsilon=epsilon,
            delta=delta,
            advantage="1: one snapshot rules a changed line out",
            proved=f"no; the policy (ε* = {in_digits(network.epsilon)}) is a target that is not met",
            days=f"none; the formula adds up over the {network.days} days",
            loading=_loading(inputs, look),
            fidelity=Fidelity.of(look.released, look.true),
            open=f"{PAPER}/{CERTIFICATE_FILE}",
        )

    def table(self, sides: tuple[Side, Side]) -> Rendered:
        """Both releases side by side."""
        return render_sides(sides, NOTES)

    def closing_words(self, sides: tuple[Side, Side]) -> str:
        """What to open, and what to type next: lines for a shell, the words behind them are remarks."""
        quality = f"{TWIN}/{QUALITY_FILE}"
        pages = [f"  {self.folder / page}" for page in (quality, PAGE, *(side.open for side in sides))]
        commands = {what: shlex.join(["dp-powerflow", *words]) for what, words in self.commands().items()}
        widest = max(map(len, commands.values()))
        typed = [f"  {command:{widest}}  # {what}" for what, command in commands.items()]
        return "\n".join(["Open", *pages, "", "Try next", *typed])

    def commands(self) -> dict[str, list[str]]:
        """What to try next, in words and as arguments of `dp-powerflow`."""
        folder = self.folder
        return {
            "recompute what a third party can": ["verify", str(folder / TWIN)],
            "the same of the paper's release": ["verify", str(folder / PAPER)],
            "what has been spent": ["ledger", str(folder / STATE)],
            "what a release costs, before it is made": ["plan", str(folder / f"{TWIN}.toml")],
            "a config for your own feeder and meters": ["init", "--help"],
        }


NOTES = (
    "Customers are simulated and noise comes from a seed: this is a demonstration, not a release. True "
    "voltages: the simulated meters themselves on the true feeder, solved as the release is (the "
    "twin as operated, regulators acting; the paper's with fixed taps). A node of the paper's release is one "
    "draw, fitted to sums of 20 of these homes. Its load is the twin's on average, and the "
    "taps are those of that load: too high where load is light, as nothing moves them.",
    "Each release has a load model of its own, which the customers pay for (the ledger adds them up). "
    "Whoever has both has what the weaker one gives away. Publish one of them.",
)


def _printed(evidence: Any) -> tuple[str, str]:
    """ε and δ of the paper's formula, labelled as what they are; why there is none where there is none."""
    if isinstance(evidence, str):
        return evidence, "none"
    printed = evidence["printed_formula"]
    step, day = (printed["exact"][name]["formula"] for name in ("most", "day"))
    epsilon = f"{printed['label']}: {at_most(step)} a step at most, {at_most(day)} a day"
    return epsilon, f"{at_most(printed['exact']['delta'])} a day"


def _customers(manifest: Manifest[Any], one: str) -> str:
    loads = manifest.guarantee.loads
    return f"ε = {at_most(loads.epsilon)} at δ = {in_digits(loads.delta)}, proved; all days of one {one}"


def _loading(inputs: ReleaseInputs, look: Look) -> Loading:
    nominal_kw = sum(load.kw for load in inputs.feeder.loads)
    return Loading(float(look.true_kw.mean()) / nominal_kw, float(look.true_kw.max()) / nominal_kw)
