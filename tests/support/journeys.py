"""A new user's first hour: own meters in a file as utilities have them, and the commands as typed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from typer.testing import CliRunner, Result

import dp_powerflow as dpf
from dp_powerflow.cli import app
from dp_powerflow.fidelity.metered import metered_days
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import make_ready, open_state
from dp_powerflow.units import FloatArray

ZONE = "Europe/Zurich"
FIRST_DAY, DAYS = dt.date(2024, 3, 25), 10
"""The clock changes on 31 March."""
READ = ("--first-day", FIRST_DAY, "--last-day", FIRST_DAY + dt.timedelta(days=DAYS - 1))
"""What `init` is told of the readings."""
STEP_MINUTES = 30
HOMES = 1000


def write_meters(path: Path, *, homes: int = HOMES, seed: int = 11) -> Path:
    """A long CSV file of kWh per half hour, wall-clock stamps, with gaps, zeros, negatives and duplicates."""
    history = simulate_load_history(2 * homes, n_days=DAYS, step_minutes=STEP_MINUTES, seed=seed)
    residential = [k for k, label in enumerate(history.class_label) if label == "residential"][:homes]
    kwh = history.load_kw[residential].reshape(homes, -1) * STEP_MINUTES / 60.0
    begin = dt.datetime.combine(FIRST_DAY, dt.time(), ZoneInfo(ZONE)).astimezone(dt.UTC)
    step = dt.timedelta(minutes=STEP_MINUTES)
    stamps = [f"{(begin + k * step).astimezone(ZoneInfo(ZONE)):%Y-%m-%d %H:%M}" for k in range(kwh.shape[1])]
    rng = np.random.default_rng(seed)
    kwh[rng.random(kwh.shape) < 0.002] = 0.0  # a meter that rounds down
    kwh[:20][rng.random((20, kwh.shape[1])) < 0.01] = -0.2  # roofs that feed in for a while
    there = rng.random(kwh.shape) > 0.01
    there[3, 100:140] = False  # a day's gap
    lines = ["meter_id,timestamp,consumption_kwh"]
    for home in range(homes):
        own = [f"CH{home:05d},{stamps[k]},{kwh[home, k]:.3f}" for k in np.flatnonzero(there[home])]
        lines += own if home % 50 else [*own, own[0]]  # a row exported twice
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def typed(*words: object) -> Result:
    """A command as it is typed."""
    return CliRunner().invoke(app, [str(word) for word in words])


@dataclass(frozen=True)
class Voltages:
    """Magnitudes of a corpus, or of the meters themselves.

    Attributes
    ----------
    lowest, highest : [p.u.].
    swing : mean over days of highest less lowest voltage of a day, at the node where it is largest [p.u.].
    """

    lowest: float
    highest: float
    swing: float

    @classmethod
    def of(cls, magnitude: FloatArray) -> Voltages:
        """From |v| (day, step, node)."""
        daily = magnitude.max(axis=1) - magnitude.min(axis=1)
        return cls(float(magnitude.min()), float(magnitude.max()), float(daily.mean(axis=0).max()))


def released_voltages(release: Path) -> Voltages:
    """Of the corpus."""
    return Voltages.of(np.abs(dpf.open_corpus(release).voltages()))


def metered_voltages(config_file: Path) -> Voltages:
    """Of the same feeder solved with the meters themselves; the data are simulated, so this is no secret."""
    config = dpf.read_config(config_file)
    ready = make_ready(config, open_state(config))
    model = LoadModel.load(Path(config.release.output) / "model.json")
    return Voltages.of(metered_days(ready.inputs, mode_of(config), model, DAYS).magnitude)
