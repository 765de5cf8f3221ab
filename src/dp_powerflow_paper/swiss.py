"""The 537 Swiss homes (seven weeks, 15 minutes) as profiles for a feeder, where their file is at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dp_powerflow import LoadHistory, MeterFormat
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules
from dp_powerflow.loads.ingest import read_wide

FILE = "kwh_15min.parquet"
HOME_KW = 8.0
"""Public scale of a home [kW]: a load of the feeder draws at its nominal power when its home draws this."""
LOWEST_KW, HIGHEST_KW = 0.02, 40.0
"""Public range of a home's load [kW]; readings are cut to it."""
_FORMAT = MeterFormat(unit="kWh per interval", interval_label="start", time_zone="UTC")


def swiss_history(folder: Path) -> LoadHistory:
    """Loads of the homes [kW], cut to their public range, with their public scale."""
    path = folder / FILE
    if not path.is_file():
        raise LoadDataError(f"{folder} is not the folder of the Swiss meters; it must hold {FILE}")
    rules = IngestRules(floor_kw=LOWEST_KW, on_export="floor")
    history = read_wide(path, _FORMAT, rules=rules).history
    return replace(
        history,
        load_kw=np.clip(history.load_kw, LOWEST_KW, HIGHEST_KW),
        scale_kw=np.full(history.n_load_points, HOME_KW),
    )
