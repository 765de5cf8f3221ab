"""What a twin has in public tells nothing of the sizes that its noise covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.parameters import Frame, frame_and_parameters
from dp_powerflow.grid.quantities import Protected
from dp_powerflow.grid.sources import Rebuilder, open_feeder

KV, TUNED = 12.47, 4.7
COVERED = Protected(capacitors=True, pv=True)


def bank(folder: Path, kvar: float) -> Path:
    """A feeder with a capacitor bank that is tuned, as its R and XL say."""
    reactance = KV**2 / (kvar / 1e3) / TUNED**2
    file = folder / f"bank-{kvar}.dss"
    file.write_text(
        f"Clear\nNew Circuit.c basekv={KV} pu=1.02 r1=0.5 x1=1.5 r0=0.5 x0=1.5\n"
        "New Line.a bus1=sourcebus bus2=b r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length=1.2 units=km\n"
        f"New Capacitor.bank bus1=b kv={KV} kvar={kvar} XL={reactance!r} R={reactance / 30!r}\n"
        f"New Load.l bus1=b phases=3 kv={KV} kw=300 kvar=90\n"
        f"Set VoltageBases=[{KV}]\nCalcVoltageBases\n"
    )
    return file


def roof(folder: Path, kw: float) -> Path:
    """A feeder with a PV system of fixed reactive power."""
    file = folder / f"roof-{kw}.dss"
    file.write_text(
        f"Clear\nNew Circuit.c basekv={KV} pu=1.02 r1=0.5 x1=1.5 r0=0.5 x0=1.5\n"
        "New Line.a bus1=sourcebus bus2=b r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 length=1.2 units=km\n"
        f"New PVSystem.roof bus1=b kv={KV} pmpp={kw!r} kva={1.25 * kw!r} kvar=120\n"
        f"New Load.l bus1=b phases=3 kv={KV} kw=300 kvar=90\n"
        f"Set VoltageBases=[{KV}]\nCalcVoltageBases\n"
    )
    return file


def frame_of(file: Path) -> Frame:
    origin = open_feeder(str(file)).origin
    assert isinstance(origin, DssOrigin)
    return frame_and_parameters(origin, COVERED)[0]


def test_what_a_capacitor_is_tuned_with_does_not_give_its_protected_size_away(tmp_path: Path) -> None:
    assert frame_of(bank(tmp_path, 437.21)) == frame_of(bank(tmp_path, 611.9))


@pytest.mark.parametrize("kvar", [437.21, 611.9])
def test_a_tuned_capacitor_is_rebuilt_from_its_size(tmp_path: Path, kvar: float) -> None:
    source = Rebuilder(open_feeder(str(bank(tmp_path, kvar))), COVERED)
    source.check(source.parameters())


def test_a_fixed_reactive_power_tells_the_size_of_a_pv_system_no_better_than_its_shape(
    tmp_path: Path,
) -> None:
    """One per cent more power: the ratio to 120 kvar, to three digits, would show it."""
    assert frame_of(roof(tmp_path, 480.0)) == frame_of(roof(tmp_path, 484.8))
