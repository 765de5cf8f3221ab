"""What an experiment is run with: its options, and the public data sets it may be run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dp_powerflow.errors import ConfigError

DATASETS = ("oedi", "simbench", "simulated")
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class ExperimentOptions:
    """How an experiment is run; the data are public, so nothing here is paid for.

    Attributes
    ----------
    out : folder for the results; what it holds already is taken up again.
    oedi : folder of the OEDI profiles, None if there is none.
    data : one of `DATASETS`, None for the OEDI profiles where they are and simulated customers otherwise.
    quick : a small run, for a look; its figures are not those of the paper.
    calibration_days : days of a Monte Carlo calibration.
    seed : of every draw; results of an experiment are never a release.
    progress : told how much is done of how much.
    """

    out: Path
    oedi: Path | None = None
    data: str | None = None
    quick: bool = False
    calibration_days: int = 1000
    seed: int = 0
    progress: Progress = _silent

    def __post_init__(self) -> None:
        if self.data is not None and self.data not in DATASETS:
            raise ConfigError(f"there is no data set '{self.data}'; there is {', '.join(DATASETS)}")

    @property
    def dataset(self) -> str:
        """Name of the data set that is used."""
        return self.data or ("simulated" if self.oedi is None else "oedi")

    @property
    def oedi_folder(self) -> Path:
        """Folder of the OEDI profiles, for what cannot run without it."""
        if self.oedi is None:
            raise ConfigError("this experiment needs the OEDI profiles; name their folder with --oedi")
        return self.oedi
