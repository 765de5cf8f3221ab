"""The ingest report is complete, shown as INTERNAL, and kept before anything is charged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow import MeterFormat
from dp_powerflow.cli import main
from dp_powerflow.errors import DpPowerflowError, LoadDataError
from dp_powerflow.loads.declared import ServiceMap
from dp_powerflow.loads.ingest import read_wide
from dp_powerflow.loads.report import MARKING
from dp_powerflow.pipeline import plan as planning
from dp_powerflow.pipeline.inputs import INGEST_FILE, meters_of
from dp_powerflow.pipeline.release import run_release
from support.own_config import SCALE_KW
from support.own_meters import CUSTOMERS, DAYS, STEPS, TWIN, OwnMeters
from support.small import write_toml


def planted() -> OwnMeters:
    """A little of everything that is counted and let pass."""
    meters = OwnMeters()
    meters.in_file = [f" {name} " if i < 40 else name for i, name in enumerate(meters.in_file)]
    meters.readings[0, 0, :3] = -0.4
    meters.readings[1, 0, :2] = 0.0
    meters.readings[2, 0, 5] = np.nan  # a short gap
    meters.readings[3] = np.nan  # listed, and not in the file
    meters.readings[4] *= 80.0
    meters.listed[99] = "secret-other"
    return meters


def test_the_report_counts_every_kind_of_finding(tmp_path: Path) -> None:
    meters = planted()
    config = meters.config(tmp_path)
    with (tmp_path / "meters.csv").open("a") as file:
        file.write("secret-150,2024-03-04T00:00,0.5\n")  # a duplicate
        file.write("secret-150,2024-03-04T00:17,0.5\n")  # off the grid
        file.write("secret-150,2030-03-04T00:00,0.5\n")  # outside the days
        file.write("secret-150,2024-03-04T01:00,\n")  # without value
    found = meters_of(config, None).ingest
    assert found is not None
    assert found.rows == (CUSTOMERS - 1) * DAYS * STEPS - 1 + 4
    assert (found.ids.in_file, found.ids.listed, found.ids.unlisted, found.ids.absent) == (99, 100, 1, 2)
    assert found.n_rejected == 2
    column = found.columns[0]
    assert (column.negative, column.zero, column.floored) == (3, 2, 5)
    assert column.filled.linear_short == 1
    readings = column.readings
    assert (readings.duplicated, readings.off_grid, readings.outside_days, readings.no_value) == (1, 1, 1, 1)
    clipped = found.clipped
    assert clipped is not None
    assert clipped.load_points == CUSTOMERS - 2
    assert clipped.above == np.count_nonzero(meters.readings[4] > 3.0 * SCALE_KW)
    assert (clipped.mostly, clipped.mostly_above) == (1, 1)
    for text in (repr(found), json.dumps(found.to_json()), *found.summary()):
        assert "secret" not in text
    for line in (
        "active: left out 1 outside the days, 1 off the step grid, 1 without value",
        "active: averaged 1 duplicates",
        "active: filled 1 linearly",
        "active: 3 negative and 2 zero readings",
    ):
        assert line in found.summary()


def test_the_report_is_kept_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "state" / "internal" / "own" / INGEST_FILE
    seen = []

    def refuse(*_: object) -> None:
        seen.append(json.loads(kept.read_text()))
        raise DpPowerflowError("stopped before the charge")

    monkeypatch.setattr(planning, "open_ledger", refuse)
    with pytest.raises(DpPowerflowError, match="stopped"):
        run_release(planted().config(tmp_path), workers=1)
    assert seen[0]["marking"] == MARKING
    assert seen[0]["n_rejected"] == 2
    assert "secret" not in kept.read_text()
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


Command = Callable[..., tuple[str, str, object]]
"""Arguments → what a command printed on stdout and stderr, and its exit code."""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[str, str, object]:
        monkeypatch.setattr(sys, "argv", ["dp-powerflow", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return printed.out, printed.err, ended.value.code

    return run


def write_config(folder: Path, meters: OwnMeters) -> None:
    config = meters.config(folder)
    assert config.loads.first_day is not None
    assert config.loads.last_day is not None
    loads = {
        **{"kind": "long", "path": "meters.csv", "services": "services.csv", "step_minutes": 60},
        **{"first_day": config.loads.first_day, "last_day": config.loads.last_day},
    }
    release = {"id": "own", "days": 2, "output": "out", "state": "state", "insecure_seed": 7}
    raw: dict[str, dict[str, Any]] = {
        "feeder": {"source": "net.dss"},
        "loads": loads,
        "model": {"epsilon": 4.0},
        "network": TWIN,
        "release": release,
    }
    write_toml(folder / "own.toml", raw)


@pytest.mark.slow
def test_plan_and_release_show_the_report_on_stderr_marked_internal(tmp_path: Path, command: Command) -> None:
    write_config(tmp_path, planted())
    own = str(tmp_path / "own.toml")  # the engine of OpenDSS changes the folder
    planned, said_of_plan, code = command("plan", own, "--json")
    assert code == 0, said_of_plan
    assert json.loads(planned)["ingest"]["marking"] == MARKING
    assert json.loads(planned)["ingest"]["n_rejected"] == 2
    released, said_of_release, code = command("release", own, "--workers", "1")
    assert code == 0, said_of_release
    for shown in (said_of_plan, said_of_release):
        assert MARKING in shown
        assert "meters: 2 load points rejected for too many missing readings and replaced" in shown
        assert "secret" not in shown
    assert MARKING not in released
    published = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"n_rejected" not in published


def test_columns_of_a_wide_file_that_nearly_match_are_said(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    hours = [f"2024-03-04T{hour:02d}:00,0.5,0.6" for hour in range(24)]
    path.write_text("\n".join(["time,0071,0072", *hours]))
    fmt = MeterFormat("kW", "start", "UTC", step_minutes=60)
    with pytest.raises(LoadDataError, match=r"no column .* write each id alike .* zeros"):
        read_wide(path, fmt, services=ServiceMap({"71": "a", "72": "b"}))
    report = read_wide(path, fmt, services=ServiceMap({"0071": "a"})).report
    assert (report.rows, report.ids.unlisted) == (24, 1)
