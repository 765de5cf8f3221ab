"""One way to open a feeder, whatever its source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dp_powerflow.errors import FeederError
from dp_powerflow.grid import ieee
from dp_powerflow.grid.checks import check_feeder
from dp_powerflow.grid.feeder import Feeder, Tap
from dp_powerflow.grid.islands import without_islands
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss, read_dss_file

SIMBENCH = "simbench:"


def open_feeder(
    source: str | Path,
    *,
    taps: Sequence[Tap] | None = None,
    base_mva: float = 1.0,
    drop_islanded: bool = False,
) -> Feeder:
    """Feeder of a built-in name, an OpenDSS file, a pandapower JSON file or a SimBench code.

    Parameters
    ----------
    source : `ieee13`, `ieee123`, `PATH.dss`, `PATH.json` (pandapower) or `simbench:CODE`.
    taps : regulator taps (OpenDSS only); None solves them once at nominal load.
    base_mva : power base per phase [MVA].
    drop_islanded : leave out nodes that no source feeds, instead of refusing the feeder.
    """
    if not (base_mva > 0.0 and math.isfinite(base_mva)):
        raise FeederError("the power base must be positive, such as 1 MVA per phase")
    feeder = _read(str(source), taps, base_mva)
    if drop_islanded:
        feeder = without_islands(feeder)
    check_feeder(feeder)
    return feeder


def _read(source: str, taps: Sequence[Tap] | None, base_mva: float) -> Feeder:
    lowered = source.lower()
    if lowered in ieee.BUILT_IN:
        origin = DssOrigin(tuple(ieee.dss_commands(lowered)))
        return read_dss(origin, name=lowered, taps=taps, base_mva=base_mva)
    if lowered.endswith(".dss"):
        return read_dss_file(Path(source), taps=taps, base_mva=base_mva)
    if lowered.startswith(SIMBENCH) or lowered.endswith(".json"):
        from dp_powerflow.grid.pandapower.reader import read_pandapower_file, read_simbench

        if taps is not None:
            raise FeederError("a tap file is for OpenDSS feeders; set tap_pos in the pandapower net instead")
        if lowered.startswith(SIMBENCH):
            return read_simbench(source[len(SIMBENCH) :], base_mva=base_mva)
        return read_pandapower_file(Path(source), base_mva=base_mva)
    raise FeederError(
        f"'{source}' is not a feeder; use one of {', '.join(ieee.BUILT_IN)}, a .dss file, "
        "a pandapower .json file, or simbench:CODE"
    )
