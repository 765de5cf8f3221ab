"""`demo`: the whole job twice on the built-in feeder and simulated customers, a twin and the paper's release.

Both draw from one load model, which the customers pay for once. Feeder and customers are public here, so both
releases are compared with the true voltages. On private data that comparison is INTERNAL.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.config import Config, parse_config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.pipeline.inputs import ReleaseInputs, read_inputs
from dp_powerflow.pipeline.manifest.model import CERTIFICATE_FILE, Manifest
from dp_powerflow.pipeline.manifest.policy import NO_PROTECTION, at_most, in_digits
from dp_powerflow.pipeline.metered import metered_magnitudes
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import kept_model
from dp_powerflow.pipeline.run import REPORT_FILE
from dp_powerflow.pipeline.verify import read_manifest
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.report import Rendered
from dp_powerflow.report.sidebyside import Fidelity, Side, render_sides, sides_html

SEED = 1
TWIN, PAPER, STATE, PAGE = "twin", "paper", "private-state", "index.html"
Raw = dict[str, dict[str, Any]]

SHARED: Raw = {
    "feeder": {"source": "ieee123"},
    "loads": {"kind": "simulated", "load_points": 1000, "days": 120, "step_minutes": 15},
    "model": {
        "epsilon": 1.0,
        "delta": 1e-5,
        # One model for both: the true network can only certify independent days.
        "estimator": "structured",
        "bounds": [0.005, 1.0],
        "variance_floor": 1e-2,
        "power_factor": 0.97,
    },
}
TWIN_RAW: Raw = {
    **SHARED,
    "nodes": {"load_class": "residential", "kw_per_customer": 1.5},
    "network": {
        "mode": "twin-network",
        "epsilon": 1.0,
        "change": 0.05,
        "id": "twin-1",
        "released": "all",
    },
    "release": {"id": TWIN, "days": 28, "output": TWIN, "state": STATE, "insecure_seed": SEED},
}
"""The twin: ε = 1 for a line whose R and X change by up to 5 %."""
PAPER_RAW: Raw = {
    **SHARED,
    "model": {**SHARED["model"], "reuse": TWIN},
    "nodes": {"load_class": "residential", "scale_factor": 0.2},
    "network": {
        "mode": "true-network",
        "bound": "paper",
        "radius": 1e-4,
        "epsilon": 100.0,
        "delta": 0.01,
        "calibration_days": 300,
        "require_evidence": False,
    },
    "release": {"id": PAPER, "days": 28, "output": PAPER, "state": STATE, "insecure_seed": SEED},
}
"""Algorithm 1 of the paper at its r. The policy is a target: the evidence does not support it.

Loads are light: homes are on or off, the tail of a Gaussian of their log load is long, and the evidence draws
from it without bounds. At a factor of 0.5 some of its 300 days have no power flow.
"""


def demo_config(folder: Path, raw: Raw = TWIN_RAW) -> Config:
    """The config of a release of the demonstration in a folder."""
    return parse_config(raw, base=folder.resolve())


@dataclass(frozen=True)
class Demo:
    """Both releases of the demonstration.

    Attributes
    ----------
    folder : where everything is, as the user wrote it.
    twin, paper : their configs; the second takes the load model of the first.
    """

    folder: Path
    twin: Config
    paper: Config

    @classmethod
    def begin(cls, folder: Path) -> Demo:
        """Make the folder, with both configs in it."""
        if folder.exists():
            raise ConfigError(f"{folder} exists already; name another folder with --out, or remove it")
        folder.mkdir(parents=True)
        for name, raw in {TWIN: TWIN_RAW, PAPER: PAPER_RAW}.items():
            (folder / f"{name}.toml").write_text(as_toml(raw), encoding="utf-8")
        return cls(folder, demo_config(folder), demo_config(folder, PAPER_RAW))

    def compare(self, say: Callable[[str], None] = lambda _: None) -> tuple[Side, Side]:
        """Both releases in the words of the table, and how close they are to the true voltages."""
        state = PrivateState.open(self.twin.release.state, insecure_seed=SEED)
        say("solving the simulated meters themselves")
        on_twin = read_inputs(self.twin, state)
        on_true = read_inputs(self.paper, state, history=on_twin.history)
        sides = _twin_side(self._manifest(TWIN), _fidelity(on_twin)), self._paper_side(state, on_true)
        page = sides_html("dp-powerflow demo", sides, NOTES)
        (self.folder / PAGE).write_text(page, encoding="utf-8")
        return sides

    def _manifest(self, name: str) -> Manifest[Any]:
        return read_manifest(self.folder / name)[0]

    def _paper_side(self, state: PrivateState, inputs: ReleaseInputs) -> Side:
        """The paper's release; its ε is that of the printed formula, labelled as what it is."""
        report = json.loads(state.read_internal(PAPER, REPORT_FILE) or b"{}")
        evidence, network = report["evidence"], self._manifest(PAPER).guarantee.network
        epsilon, delta = _printed(evidence)
        return Side(
            name="DP-Powerflow (the paper)",
            customers="the same load model: nothing more is charged",
            protected=f"{NO_PROTECTION}: no change of a line is covered, because power factors are fixed",
            unit=f"the network, its matrix changed by up to r = {in_digits(network.radius)} p.u. and with "
            "the same possible voltages",
            epsilon=epsilon,
            delta=delta,
            advantage="1: one snapshot rules a changed line out",
            proved=f"no; the policy (ε* = {in_digits(network.epsilon)}) is a target that is not met",
            days=f"none; the formula adds up over the {network.days} days",
            fidelity=_fidelity(inputs),
            open=f"{PAPER}/{CERTIFICATE_FILE}",
        )

    def table(self, sides: tuple[Side, Side]) -> Rendered:
        """Both releases side by side."""
        return render_sides(sides, NOTES)

    def closing_words(self, sides: tuple[Side, Side]) -> str:
        """What to open, and what to type next: lines for a shell, the words behind them are remarks."""
        pages = [f"  {self.folder / page}" for page in (PAGE, *(side.open for side in sides))]
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
            "what has been spent: the customers once": ["ledger", str(folder / STATE)],
            "what a release costs, before it is made": ["plan", str(folder / f"{TWIN}.toml")],
            "a config for your own feeder and meters": ["init", "--help"],
        }


NOTES = (
    "Customers are simulated and noise comes from a seed: this is a demonstration, not a release. True "
    "voltages: the simulated meters themselves on the true feeder, solved as the release is (the "
    "twin as operated, regulators acting; the paper's with fixed taps).",
    "Whoever has both releases has what the weaker one gives away. Publish one of them.",
)


def _printed(evidence: Any) -> tuple[str, str]:
    """ε and δ of the paper's formula, labelled as what they are; why there is none where there is none."""
    if isinstance(evidence, str):
        return evidence, "none"
    printed = evidence["printed_formula"]
    step, day = (printed["exact"][name]["formula"] for name in ("most", "day"))
    epsilon = f"{printed['label']}: {at_most(step)} a step at most, {at_most(day)} a day"
    return epsilon, f"{at_most(printed['exact']['delta'])} a day"


def _twin_side(manifest: Manifest[Any], fidelity: Fidelity) -> Side:
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    rows = network.shown_changes()
    epsilon, advantage = (
        "; ".join(f"{at_most(getattr(row, name))} for {row.change:.0%}" for row in rows)
        for name in ("epsilon", "advantage")
    )
    return Side(
        name="twin network",
        customers=f"ε = {at_most(loads.epsilon)} at δ = {in_digits(loads.delta)}, proved; all days of one "
        "service",
        protected="R and X of every line",
        unit="one line, both figures changed by up to the factor that is named",
        epsilon=epsilon,
        delta=in_digits(network.delta),
        advantage=advantage,
        proved="yes, for every network",
        days=network.days,
        fidelity=fidelity,
        open=f"{TWIN}/{CERTIFICATE_FILE}",
    )


def _fidelity(inputs: ReleaseInputs) -> Fidelity:
    """A release against the same number of metered days."""
    config = inputs.config
    model = kept_model(config, inputs.state)
    assert model is not None  # the release is made
    released = np.abs(open_corpus(Path(str(config.release.output))).voltages())
    return Fidelity.of(released, metered_magnitudes(inputs, mode_of(config), model, config.release.days))


def as_toml(raw: Raw) -> str:
    """A config as a file: sections of numbers, words and lists."""
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for name, values in raw.items()
    )
    return "\n\n".join(sections) + "\n"
