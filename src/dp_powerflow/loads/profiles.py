"""Public load profiles: OpenDSS load shapes in the OEDI layout.

A folder with `loadshape_<load>.csv`, one value per line. The values are multipliers of the load's
nominal power (the OEDI files peak at 1.0), so nominal kW must be declared; OpenDSS also knows shapes of
actual kW (`useactual=yes`). A shape has no stamps: its days are taken as 24 hours each from a declared first
day, without clock changes.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from dp_powerflow._names import is_absent
from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.declared import IngestRules, ServiceMap
from dp_powerflow.loads.history import steps_per_day
from dp_powerflow.loads.report import IdFindings, IngestResult, Quantity, RawHistory, check_history
from dp_powerflow.loads.timegrid import ReadingCounts
from dp_powerflow.units import FloatArray

_PREFIX = "loadshape_"
CLASS_COLUMNS = ("load", "class")


def read_opendss_shapes(
    folder: str | Path,
    *,
    first_day: dt.date,
    nominal_kw: Mapping[str, float] | None,
    class_of: Mapping[str, str] | None = None,
    step_minutes: int = 15,
    rules: IngestRules | None = None,
) -> IngestResult:
    """Read all load shapes of a folder; every load is a load point and feeds the load of its name.

    Parameters
    ----------
    folder
        Holds `loadshape_<load>.csv`.
    first_day
        Day of the first value.
    nominal_kw
        Load → nominal power [kW], for every shape; names compare without case, as in OpenDSS. It is kept as
        the public scale. None if the values are actual kW.
    class_of
        Load → public class; names compare without case.
    step_minutes
        Time between values [min].
    rules
        Limits of the checks, in kW.
    """
    n_steps = steps_per_day(step_minutes)
    loads = _shape_files(Path(folder))
    shapes = _read_all(loads, n_steps)
    days = tuple(first_day + dt.timedelta(days=i) for i in range(shapes.shape[1]))
    kw = None if nominal_kw is None else _for_each(loads, nominal_kw)
    no_value, infinite = int(np.isnan(shapes).sum()), int(np.isinf(shapes).sum())
    counts = ReadingCounts(shapes.size - no_value - infinite, no_value, infinite)
    shapes[~np.isfinite(shapes)] = np.nan
    if kw is not None:
        shapes *= kw[:, None, None]
    quantities = (Quantity("active", shapes, counts),)
    names = tuple(loads)
    services = ServiceMap(
        load_point_of={name: name for name in names},
        node_of={name: name for name in names},
        class_of=_labels(loads, class_of or {}),
        scale_kw_of={} if kw is None else dict(zip(names, kw.tolist(), strict=True)),
    )
    no_jump = np.empty(0, dtype=np.int64)
    ids = IdFindings(in_file=len(names), listed=len(names))
    rows = shapes[0].size
    raw = RawHistory(quantities, names, services, days, step_minutes, no_jump, rows, ids)
    return check_history(raw, rules or IngestRules())


def read_load_classes(path: Path) -> dict[str, str]:
    """PUBLIC. Load, in lower case → class, of a CSV file with the columns load, class."""
    if not path.is_file():
        raise LoadDataError(f"class file {path} does not exist; correct loads.classes")
    found: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != CLASS_COLUMNS:
                raise LoadDataError(f"class file {path} must have the columns {', '.join(CLASS_COLUMNS)}")
            for row in reader:
                load, label = ((row[name] or "").strip() for name in CLASS_COLUMNS)
                plain = f"{load}{label}".isprintable()
                if not plain or is_absent(load) or is_absent(label) or load.casefold() in found:
                    raise LoadDataError(
                        f"class file {path}, line {reader.line_num}: every load has one row, with a class"
                    )
                found[load.casefold()] = label
    except (UnicodeDecodeError, csv.Error):
        raise LoadDataError(f"class file {path} is not CSV text; write it again") from None
    return found


def _labels(loads: dict[str, Path], class_of: Mapping[str, str]) -> dict[str, str]:
    declared = {name.casefold(): label for name, label in class_of.items()}
    return {name: declared[name.casefold()] for name in loads if name.casefold() in declared}


def _shape_files(folder: Path) -> dict[str, Path]:
    """Load → file, in the order of names."""
    files = sorted(folder.glob(f"{_PREFIX}*.csv"))
    if not files:
        raise LoadDataError(
            f"{folder} holds no file named {_PREFIX}<load>.csv; check the folder of the load shapes"
        )
    return {file.stem.removeprefix(_PREFIX): file for file in files}


def _read_all(loads: dict[str, Path], n_steps: int) -> FloatArray:
    """(load, day, step) values of all files."""
    series: list[FloatArray] = []
    for file in loads.values():
        values = _read_one(file)
        if values.size == 0 or values.size % n_steps != 0:
            raise LoadDataError(
                f"{file} has {values.size} values, not a whole number of days of {n_steps} steps; "
                "check the step declared"
            )
        if series and values.size != series[0].size:
            raise LoadDataError(
                f"{file} has {values.size} values where others have {series[0].size}; "
                "cut all to the same days"
            )
        series.append(values)
    return np.array(series).reshape(len(loads), -1, n_steps)


def _read_one(file: Path) -> FloatArray:
    try:
        table = pa_csv.read_csv(
            file,
            read_options=pa_csv.ReadOptions(column_names=["value"]),
            convert_options=pa_csv.ConvertOptions(column_types={"value": pa.float64()}),
        )
    except (pa.ArrowInvalid, OSError):
        # the message of Arrow would quote a value
        raise LoadDataError(
            f"{file} is not one number per line, without a header; export the load shape again"
        ) from None
    values: FloatArray = table.column(0).to_numpy()
    return values


def _for_each(loads: dict[str, Path], declared: Mapping[str, float]) -> FloatArray:
    by_name = {name.casefold(): value for name, value in declared.items()}
    missing = sum(load.casefold() not in by_name for load in loads)
    if missing:
        raise LoadDataError(
            f"{missing} of {len(loads)} load shapes have no nominal kW; declare it for every load"
        )
    return np.array([by_name[load.casefold()] for load in loads], dtype=np.float64)
