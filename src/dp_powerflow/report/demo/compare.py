"""Both releases of the demonstration, made and compared.

Feeder and customers are public here, so both releases are compared with the true voltages. On private data
that comparison is INTERNAL.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import Meters, ReleaseInputs, meters_of, read_inputs
from dp_powerflow.pipeline.manifest.model import CERTIFICATE_FILE, QUALITY_FILE, Manifest
from dp_powerflow.pipeline.manifest.policy import NO_PROTECTION, at_most, in_digits
from dp_powerflow.pipeline.metered import metered_days
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.opened import read_manifest
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.receipts import REPORT_FILE
from dp_powerflow.pipeline.run import ReleaseResult, run_release
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report import Rendered
from dp_powerflow.report.demo.configs import (
    HOMES_PER_POINT,
    PAGE,
    PAPER,
    PAPER_RAW,
    SEED,
    STATE,
    TAPS,
    TAPS_TEXT,
    TWIN,
    TWIN_RAW,
    as_toml,
    demo_config,
)
from dp_powerflow.report.demo.page import Look, demo_page
from dp_powerflow.report.demo.sides import Fidelity, Loading, Side, render_sides


@dataclass(frozen=True)
class Demo:
    """Both releases of the demonstration.

    Attributes
    ----------
    folder : where everything is, as the user wrote it.
    twin, paper : their configs.
    models : load models by release, of those that were made here.
    """

    folder: Path
    twin: Config
    paper: Config
    models: dict[str, LoadModel] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder: Path) -> Demo:
        """Make the folder, with both configs in it."""
        if folder.exists():
            raise ConfigError(f"{folder} exists already; name another folder with --out, or remove it")
        folder.mkdir(parents=True)
        for name, raw in {TWIN: TWIN_RAW, PAPER: PAPER_RAW}.items():
            (folder / f"{name}.toml").write_text(as_toml(raw), encoding="utf-8")
        (folder / TAPS).write_text(TAPS_TEXT, encoding="utf-8")
        return cls(folder, demo_config(folder), demo_config(folder, PAPER_RAW))

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
        state = PrivateState.open(self.twin.release.state, insecure_seed=SEED)
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
        network, rows = manifest.guarantee.network, manifest.guarantee.network.shown_changes()
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
            days=network.days,
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
            customers=_customers(manifest, f"load point, a sum of {HOMES_PER_POINT} homes"),
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
    f"draw, fitted to sums of {HOMES_PER_POINT} of these homes. Its load is the twin's on average, and the "
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
