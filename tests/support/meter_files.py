"""Meter files of every kind, with the standard library's clock as the oracle; diversity of a history."""

from __future__ import annotations

import csv
import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.units import FloatArray


@dataclass(frozen=True)
class Interval:
    """One interval: its true beginning and end (UTC)."""

    begin: dt.datetime
    end: dt.datetime


def intervals(zone: str, first: dt.date, last: dt.date, step_minutes: int) -> list[Interval]:
    """All intervals of some local days, by real time."""
    tz = ZoneInfo(zone)
    moment = dt.datetime.combine(first, dt.time(), tz).astimezone(dt.UTC)
    stop = dt.datetime.combine(last + dt.timedelta(days=1), dt.time(), tz).astimezone(dt.UTC)
    step = dt.timedelta(minutes=step_minutes)
    found = []
    while moment < stop:
        found.append(Interval(moment, moment + step))
        moment += step
    return found


def expected_days(
    spans: list[Interval], values: FloatArray, zone: str, first: dt.date, n_days: int, step_minutes: int
) -> FloatArray:
    """(customer, day, step) mean over the intervals that begin at that time on the clock, or NaN."""
    found = defaultdict(list)
    for i, span in enumerate(spans):
        local = span.begin.astimezone(ZoneInfo(zone))
        found[(local.date() - first).days, (60 * local.hour + local.minute) // step_minutes].append(i)
    expected = np.full((len(values), n_days, 24 * 60 // step_minutes), np.nan)
    for (day, step), members in found.items():
        expected[:, day, step] = values[:, members].mean(axis=1)
    return expected


def stamp(span: Interval, label: str, zone: str, aware: bool) -> str:
    moment = (span.begin if label == "start" else span.end).astimezone(ZoneInfo(zone))
    return moment.isoformat() if aware else moment.replace(tzinfo=None).isoformat(sep=" ")


def write_long(path: Path, stamps: list[str], values: FloatArray, names: list[str]) -> Path:
    """Time by time, so that the readings of one customer are far apart."""
    rows = [(name, text, values[j, i]) for i, text in enumerate(stamps) for j, name in enumerate(names)]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("customer", "time", "kwh"), *rows])
    else:
        customer, time, kwh = zip(*rows, strict=True)
        pq.write_table(
            pa.table({"customer": pa.array(customer), "time": _timestamps(time), "kwh": pa.array(kwh)}), path
        )
    return path


def write_wide(path: Path, stamps: list[str], values: FloatArray, names: list[str]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            rows = ((text, *values[:, i]) for i, text in enumerate(stamps))
            csv.writer(file).writerows([("time", *names), *rows])
    else:
        columns = {name: pa.array(values[j]) for j, name in enumerate(names)}
        pq.write_table(pa.table({"time": _timestamps(stamps)} | columns), path)
    return path


def _timestamps(stamps: list[str] | tuple[str, ...]) -> pa.Array:
    """Stamps as whole microseconds: once pandapower is imported, pyarrow forgets the offset of a datetime."""
    moments = [dt.datetime.fromisoformat(text) for text in stamps]
    aware = moments[0].tzinfo is not None
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if aware else None)
    counts = [(moment - epoch) // dt.timedelta(microseconds=1) for moment in moments]
    return pa.array(counts, pa.int64()).cast(pa.timestamp("us", "UTC" if aware else None))


def median_pairwise_correlation(history: LoadHistory) -> float:
    """Median over pairs of load points of the correlation of their loads over all steps."""
    series = history.load_kw.reshape(history.n_load_points, -1)
    pairs = np.triu_indices(history.n_load_points, 1)
    correlation = np.atleast_2d(np.corrcoef(series))
    return float(np.median(correlation[pairs]))
