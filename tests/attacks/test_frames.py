"""What a twin has in public tells nothing of the sizes that its noise covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.parameters import Frame, frame_and_parameters
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder, open_feeder
from support.small_circuits import script

KV, TUNED = 12.47, 4.7
COVERED = Protected(capacitors=True, pv=True)


def written(folder: Path, element: str) -> Path:
    """A feeder of a line, an element and a load."""
    file = folder / f"feeder-{len(list(folder.iterdir()))}.dss"
    file.write_text(script("one_line", element=element))
    return file


def bank(folder: Path, kvar: float) -> Path:
    """A capacitor bank that is tuned, as its R and XL say."""
    reactance = KV**2 / (kvar / 1e3) / TUNED**2
    tuned = f"kvar={kvar} XL={reactance!r} R={reactance / 30!r}"
    return written(folder, f"New Capacitor.bank bus1=b kv={KV} {tuned}")


def roof(folder: Path, kw: float) -> Path:
    """A PV system of fixed reactive power."""
    return written(folder, f"New PVSystem.roof bus1=b kv={KV} pmpp={kw!r} kva={1.25 * kw!r} kvar=120")


def frame_of(file: Path) -> Frame:
    origin = open_feeder(str(file)).origin
    assert isinstance(origin, DssOrigin)
    return frame_and_parameters(origin, COVERED)[0]


def test_what_a_capacitor_is_tuned_with_does_not_give_its_protected_size_away(tmp_path: Path) -> None:
    """It is rebuilt from its size."""
    assert frame_of(bank(tmp_path, 437.21)) == frame_of(bank(tmp_path, 611.9))
    source = Rebuilder(open_feeder(str(bank(tmp_path, 437.21))), COVERED)
    source.check(source.parameters())


def test_a_fixed_reactive_power_tells_the_size_of_a_pv_system_no_better_than_its_shape(
    tmp_path: Path,
) -> None:
    """One per cent more power: the ratio to 120 kvar, to three digits, would show it."""
    assert frame_of(roof(tmp_path, 480.0)) == frame_of(roof(tmp_path, 484.8))


def test_a_setting_that_is_no_finite_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeederError, match="states vminpu that is no finite number"):
        frame_of(written(tmp_path, f"New Load.odd bus1=b kv={KV} kw=10 kvar=1 vminpu=1e400"))
