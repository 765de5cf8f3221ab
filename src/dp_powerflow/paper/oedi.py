"""The OEDI profiles of IEEE 123: public data, so nothing here is paid for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np

from dp_powerflow.errors import LoadDataError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.loads.opendss_shapes import read_opendss_shapes
from dp_powerflow.units import FloatArray

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
) -> NodeLaw:
    """The empirical Gaussian of all load points, scaled to the nominal load of every node.

    PAPER_NOTES 15: its covariance is singular; add a floor before anything inverts it.
    """
    nominal = -feeder.nominal_injection[feeder.retained]
    mean_load = float(np.exp(log_load).mean())
    return NodeLaw(
        class_of=np.zeros(len(nominal), dtype=np.int64),
        mean=log_load.mean(axis=0)[None],
        covariance=np.cov(log_load.T)[None],
        scale=nominal.real,
        tan_theta=nominal.imag / nominal.real,
        q_sigma=q_spread * mean_load * nominal.real,
        q_covariance=q_covariance,
    )
