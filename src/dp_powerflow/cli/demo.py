"""The demonstration as a page: both releases in figures next to the truth, and what each protects."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow import page
from dp_powerflow._texts import filled
from dp_powerflow.cli.terminal import Rendered
from dp_powerflow.config import Config, read_config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.fidelity.metered import metered_days
from dp_powerflow.manifest.model import CERTIFICATE_FILE, NO_PROTECTION, QUALITY_FILE, at_most, in_digits
from dp_powerflow.manifest.verify import read_manifest
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import Meters, meters_of, read_inputs
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import REPORT_FILE, kept_model
from dp_powerflow.pipeline.release import ReleaseResult, run_release
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.quality.tally import RANGE_A as ANSI_A
from dp_powerflow.units import FloatArray


def _within(magnitude: FloatArray) -> float:
    return float(np.mean((magnitude >= ANSI_A[0]) & (magnitude <= ANSI_A[1])))


@dataclass(frozen=True, eq=False)
class Side:
    """One release next to the truth.

    Attributes
    ----------
    words : by the keys of `ROWS`, and the name of the release.
    folder : name of its folder.
    nominal_kw : load of the feeder.
    released, true : |v| (day, step, node) [p.u.], as many released as true ones.
    released_kw, true_kw : (day, step) load of the feeder [kW]; None where no load is released.
    """

    words: dict[str, str]
    folder: str
    nominal_kw: float
    released: FloatArray
    true: FloatArray
    released_kw: FloatArray | None
    true_kw: FloatArray

    @property
    def open(self) -> str:
        """Address of its certificate."""
        return f"{self.folder}/{CERTIFICATE_FILE}"

    @property
    def loading(self) -> dict[str, float]:
        """Load of the feeder on the true days, over its nominal load."""
        share = self.true_kw / self.nominal_kw
        return {"mean": float(share.mean()), "peak": float(share.max())}

    @property
    def fidelity(self) -> dict[str, float]:
        """Wasserstein distance of all magnitudes [p.u.], and the shares of both in range A."""
        ours, theirs = np.sort(self.released, axis=None), np.sort(self.true, axis=None)
        shares = {"within": _within(self.released), "true_within": _within(self.true)}
        return {"w1": float(np.mean(np.abs(ours - theirs))), **shares}


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
FIGURES = (
    "load of the feeder, of its nominal load",
    "W1 of voltage magnitudes to the true ones [p.u.]",
    f"within {ANSI_A[0]:g} to {ANSI_A[1]:g} p.u. (ANSI range A)",
)


def notes() -> list[str]:
    """What a reader of the comparison must know, a paragraph each."""
    return filled("demo-notes.txt", {}).splitlines()


def render_sides(sides: Sequence[Side]) -> Rendered:
    """The table for a terminal, and as JSON."""
    names = (side.words["name"] for side in sides)
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(sides)) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows_of(sides)]
    found = [
        side.words | {"loading": side.loading, "fidelity": side.fidelity, "open": side.open} for side in sides
    ]
    told = [line for note in notes() for line in (note, "")]
    return Rendered([*lines, "", *told], json.dumps({"sides": found, "notes": notes()}))


def rows_of(sides: Sequence[Side]) -> list[list[str]]:
    """The table: name of the row, then one cell for each side."""
    cells = [[side.words[name] for name in ROWS] for side in sides]
    for own, side in zip(cells, sides, strict=True):
        load, found = side.loading, side.fidelity
        own += [
            f"{load['mean']:.0%} on average, {load['peak']:.0%} at most",
            f"{found['w1']:.4f}",
            f"{found['within']:.2%}; of the true ones {found['true_within']:.2%}",
            side.open,
        ]
    labels = (*ROWS.values(), *FIGURES, "open")
    return [[label, *row] for label, *row in zip(labels, *cells, strict=True)]


_LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)
_BIN_PU = 0.002
_VOLTAGE = page.Axis("voltage magnitude", "p.u.", decimals=4)
_LIMITS = tuple(page.Limit(value, "range A") for value in ANSI_A)


def demo_page(sides: Sequence[Side]) -> bytes:
    """The page, as bytes."""
    *rows, _ = map(tuple, rows_of(sides))
    pages = [(side.words["name"], f"{side.folder}/{QUALITY_FILE}", side.open) for side in sides]
    links = [(name, page.Link(data, data), page.Link(promise, promise)) for name, data, promise in pages]
    to_open = page.Table(("release", "its data in figures", "its guarantees"), tuple(links))
    table = page.Table(("", *(side.words["name"] for side in sides)), tuple(rows))
    sections = (
        page.Section("pages", "Open", items=(to_open,)),
        page.Section("beside", "Released and true", items=tuple(f for side in sides for f in _figures(side))),
        page.Section("table", "What each protects, and what it costs", items=(table,)),
    )
    lead = (
        "Two releases of the same feeder (IEEE 123) and the same simulated homes: on a twin of the network, "
        "as this program does it, and on the true network, as the paper does.",
        *notes(),
    )
    return page.Page("dp-powerflow demo", None, lead, sections).to_html()


def _figures(side: Side) -> Iterator[page.Figure]:
    """Histogram and daily band of the voltages; of the load too where it is released."""
    name, of = ("paper" if side.released_kw is None else "twin"), side.words["name"]
    pair = (("released", side.released), ("true", side.true))
    low = np.floor(min(side.released.min(), side.true.min()) / _BIN_PU)
    high = np.ceil(max(side.released.max(), side.true.max()) / _BIN_PU) + 1
    edges = np.arange(low, high) * _BIN_PU
    shares = [
        page.Series(kind, (100 * np.histogram(values, edges)[0] / values.size).round(4))
        for kind, values in pair
    ]
    yield page.Figure(
        f"{name}-voltages",
        f"Voltages, {of}",
        "Share of all magnitudes of all nodes and days in bins of 0.002 p.u.",
        page.Histogram(_VOLTAGE, page.Axis("share", "%"), edges.round(4), tuple(shares), _LIMITS),
        wide=False,
    )
    yield page.Figure(
        f"{name}-day",
        f"Voltages over a day, {of}",
        "Quantiles (5, 25, 50, 75, 95 %) over all nodes and days.",
        _band(pair, _VOLTAGE, _LIMITS),
        wide=False,
    )
    if side.released_kw is not None:
        power = (("released", side.released_kw), ("true", side.true_kw))
        yield page.Figure(
            f"{name}-load",
            f"Load of the feeder over a day, {of}",
            "Quantiles (5, 25, 50, 75, 95 %) over the days: drawn customers and the simulated homes.",
            _band(power, page.Axis("load of the feeder", "kW", decimals=0)),
        )


def _band(
    pair: Iterable[tuple[str, FloatArray]], axis: page.Axis, limits: tuple[page.Limit, ...] = ()
) -> page.Band:
    """Quantiles at every step over days, and nodes if there are any."""
    bands = []
    for name, values in pair:
        rows = np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])
        quantiles = np.quantile(rows, np.array(_LEVELS) / 100, axis=0).round(5)
        bands.append(page.Quantiles(name, _LEVELS, quantiles))
    steps = values.shape[1]
    return page.Band(page.CLOCK, axis, np.arange(steps) * (1440 // steps), tuple(bands), limits)


TWIN, PAPER, PAGE = "release", "paper", "index.html"
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
        report = json.loads(state.read_internal(PAPER, REPORT_FILE) or b"{}")["evidence"]
        text = filled(
            "demo.toml",
            {"at_most": at_most, "digits": in_digits, "customers": _customers},
            **{name: read_manifest(self.folder / name)[0].guarantee for name in (TWIN, PAPER)},
            homes=self.paper.loads.homes_per_point,
            no_protection=NO_PROTECTION,
            evidence=report,
            printed=None if isinstance(report, str) else report["printed_formula"],
        )
        words = tomllib.loads(text)
        sides = self._side(self.twin, state, words[TWIN]), self._side(self.paper, state, words[PAPER])
        (self.folder / PAGE).write_bytes(demo_page(sides))
        return sides

    def _side(self, config: Config, state: PrivateState, words: dict[str, str]) -> Side:
        """A release, and the same number of metered days."""
        inputs = read_inputs(config, state, history=self.meters[config.release.id].history)
        model = self.models.get(config.release.id) or kept_model(config, state)
        assert model is not None  # the release is made
        folder = Path(str(config.release.output))
        corpus = open_corpus(folder)
        true = metered_days(inputs, mode_of(config), model, config.release.days)
        return Side(
            words,
            folder.name,
            nominal_kw=sum(load.kw for load in inputs.feeder.loads),
            released=corpus.phasors().vm_pu.astype(np.float64),
            true=true.magnitude,
            released_kw=corpus.loads().real.sum(axis=2) if "loads" in corpus.holds else None,
            true_kw=true.feeder_kw,
        )

    def closing_words(self, sides: tuple[Side, Side]) -> str:
        """What to open, and what to type next: lines for a shell, the words behind them are remarks."""
        pages = (f"{TWIN}/{QUALITY_FILE}", PAGE, *(side.open for side in sides))
        return filled("demo-next.txt", {"quoted": shlex.quote}, folder=str(self.folder), pages=pages).rstrip()


def _customers(guarantee: Any) -> str:
    loads = guarantee.loads
    return f"ε = {at_most(loads.epsilon)} at δ = {in_digits(loads.delta)}, proved"
