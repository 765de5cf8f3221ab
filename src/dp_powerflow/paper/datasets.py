"""What an experiment is run with: its options, and the public data sets it may be run on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dp_powerflow.errors import ConfigError, LoadDataError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.profiles import CUSTOMER_FAMILIES, read_opendss_shapes, read_simbench
from dp_powerflow.loads.simulate import simulate_load_history
from dp_powerflow.model.estimators import Estimator
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured
from dp_powerflow.model.law import ClassLaw, LoadLaw, nominal_law
from dp_powerflow.units import ComplexArray, FloatArray, IntArray

FIRST_DAY = dt.date(2019, 1, 1)


def oedi_history(folder: Path, feeder: Feeder) -> LoadHistory:
    """A year of the 91 loads [kW]; the profiles are multipliers of the feeder's nominal loads."""
    profiles = folder / "profiles" / "load_profiles"
    if not profiles.is_dir():
        raise LoadDataError(f"{folder} is not the OEDI folder; it must hold profiles/load_profiles")
    nominal = {load.name: load.kw for load in feeder.loads}
    return read_opendss_shapes(profiles, first_day=FIRST_DAY, nominal_kw=nominal).history


def relative_log_load(history: LoadHistory) -> FloatArray:
    """(load point × day, step) log of load over nominal load."""
    if history.scale_kw is None:
        raise LoadDataError("the history has no public scale to be relative to")
    return np.asarray(np.log(history.load_kw / history.scale_kw[:, None, None]).reshape(-1, history.n_steps))


def one_class_law(
    log_load: FloatArray, feeder: Feeder, *, q_spread: float, q_covariance: FloatArray
) -> LoadLaw:
    """The empirical Gaussian of all load points, scaled to the nominal load of every node.

    Its covariance is singular; add a floor before anything inverts it (paper correction 15).
    """
    nominal = -feeder.nominal_injection[feeder.retained]
    mean_load = float(np.exp(log_load).mean())
    margins = (float(np.exp(log_load.min())), float(np.exp(log_load.max())))
    of_class = ClassLaw.gaussian(
        log_load.mean(axis=0), np.cov(log_load.T), margins=margins, q_covariance=q_covariance
    )
    return nominal_law(nominal, of_class, q_spread * mean_load)


Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
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
    progress: Progress = silent

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


@dataclass(frozen=True, eq=False)
class Dataset:
    """A feeder and a year of public load for each of its load points.

    Attributes
    ----------
    relative : (feeder load, day, step) load over nominal load.
    margins : p_min, p_max of the relative load; public, because the data are.
    radius : r of the comparison [p.u.]; the paper's 1e-4 where the loads allow its formula to be met.
    estimator : of the load model.
    calibration_floor : variance added to the log loads where a calibration needs a law wider than all others.
    words : one sentence for the results.
    """

    name: str
    feeder: Feeder
    network: Network
    history: LoadHistory
    relative: FloatArray
    margins: tuple[float, float]
    radius: float
    estimator: Estimator
    calibration_floor: float
    words: str

    @property
    def n_days(self) -> int:
        """Days of the history."""
        return int(self.relative.shape[1])

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.relative.shape[2])

    @cached_property
    def nominal(self) -> ComplexArray:
        """Complex (node,) nominal load of the retained nodes [p.u.]."""
        return np.asarray(-self.feeder.nominal_injection[self.feeder.retained])

    @cached_property
    def load_range(self) -> tuple[float, float]:
        """p_min, p_max over all nodes [p.u.]."""
        scale = self.nominal.real
        return float(self.margins[0] * scale.min()), float(self.margins[1] * scale.max())

    def true_load(self, days: IntArray) -> ComplexArray:
        """Complex (day, step, node) nodal loads of some days [p.u.], at the nominal power factors."""
        shares = self.feeder.load_shares.tocsr()[self.feeder.retained]
        chosen = self.relative[:, days].reshape(len(self.relative), -1)
        nodal = (shares @ (self.feeder.nominal_load[:, None] * chosen)).T
        return np.ascontiguousarray(nodal).reshape(len(days), self.n_steps, -1)

    def spread_days(self, count: int) -> IntArray:
        """So many days, evenly spread over the year."""
        if not 1 <= count <= self.n_days:
            raise LoadDataError(f"{count} days were asked of a history of {self.n_days}; ask for fewer")
        return (np.arange(count) * self.n_days // count).astype(np.int64)


SIMULATED_LOAD_FACTOR = 4.0
"""Simulated customers draw a small part of their connection; times this they load the feeder by day."""
_LOWEST_SHARE = 0.01
"""Quantile of diverse loads taken as p_min: their smallest load would ask for an r next to nothing."""


@dataclass(frozen=True)
class Profiles:
    """A public source of load profiles, and what the comparison on them uses.

    Attributes
    ----------
    read : history of the options' profiles for a feeder.
    words : one sentence for the results; `{n}` is the number of load points.
    factor : on every load.
    lowest : quantile of the loads taken as p_min.
    radius, estimator, calibration_floor : as of `Dataset`; the defaults are for diverse loads.
    """

    read: Callable[[ExperimentOptions, Feeder], LoadHistory]
    words: str
    factor: float = 1.0
    lowest: float = _LOWEST_SHARE
    radius: float = 1e-6
    estimator: Estimator = field(default_factory=Structured)
    calibration_floor: float = 0.1

    def on(self, feeder: Feeder, options: ExperimentOptions) -> Dataset:
        """Relative loads in the order of the feeder's loads: by name where the names agree, else in turn."""
        history = self.read(options, feeder)
        if history.scale_kw is None:
            raise LoadDataError("the profiles of an experiment need a public scale to be relative to")
        of_point = self.factor * history.load_kw / history.scale_kw[:, None, None]
        position = {point.lower(): row for row, point in enumerate(history.load_points)}
        rows = [position.get(load.name, k % len(of_point)) for k, load in enumerate(feeder.loads)]
        unlabelled = replace(
            history,
            load_kw=of_point,
            load_kvar=None,
            scale_kw=np.ones(len(of_point)),
            class_label=(None,) * len(of_point),
        )
        return Dataset(
            name=options.dataset,
            feeder=feeder,
            network=Network(feeder),
            history=unlabelled,
            relative=of_point[rows],
            margins=(float(np.quantile(of_point, self.lowest)), float(of_point.max())),
            radius=self.radius,
            estimator=self.estimator,
            calibration_floor=self.calibration_floor,
            words=self.words.format(n=history.n_load_points),
        )


DATASETS: Mapping[str, Profiles] = MappingProxyType(
    {
        "oedi": Profiles(
            lambda options, feeder: oedi_history(options.oedi_folder, feeder),
            "OEDI profiles (91 load points, one year, 15 minutes) on IEEE 123 without PV",
            lowest=0.0,
            radius=1e-4,
            # On 91 nearly equal profiles the structured estimator's variances are ten times too wide.
            estimator=Plain(),
            calibration_floor=1.0,
        ),
        "simbench": Profiles(
            lambda options, feeder: read_simbench(families=CUSTOMER_FAMILIES).history,
            "{n} SimBench customer profiles, in turn, on IEEE 123",
        ),
        "simulated": Profiles(
            lambda options, feeder: simulate_load_history(len(feeder.loads), n_days=365, seed=options.seed),
            "{n} simulated customers on IEEE 123",
            factor=SIMULATED_LOAD_FACTOR,
        ),
    }
)


def open_dataset(options: ExperimentOptions) -> Dataset:
    """The data set of the options, on IEEE 123."""
    return DATASETS[options.dataset].on(open_feeder("ieee123"), options)
