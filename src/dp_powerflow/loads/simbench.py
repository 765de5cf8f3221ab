"""Load profiles of the SimBench package (extra `[pandapower]`): public data with real diversity.

A year (2016, Europe/Berlin, clock changes included) of 15-minute profiles relative to their nominal
power. The file is read where the package lies; neither simbench nor pandapower is imported. The
profiles are published under the Open Database License.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dp_powerflow.errors import LoadDataError, MissingExtraError
from dp_powerflow.loads.checks import IngestResult, IngestRules
from dp_powerflow.loads.declared import MeterFormat, ServiceMap, WideColumns
from dp_powerflow.loads.ingest import read_wide
from dp_powerflow.loads.tables import open_table

# prefix of a profile's name → family; the first match counts
_FAMILIES = (
    ("H0", "household"),
    ("HS", "high voltage"),
    ("HLS", "home charging"),
    ("APLS", "public charging"),
    ("Air", "heat pump"),
    ("Soil", "heat pump"),
    ("lv_", "low voltage grid"),
    ("mv_", "medium voltage grid"),
    ("hv_", "high voltage grid"),
    ("BL", "commercial"),
    ("WB", "commercial"),
    ("G", "commercial"),
    ("L", "agricultural"),
)
CUSTOMER_FAMILIES = ("household", "commercial", "agricultural")

# reactive profiles are relative to the nominal reactive power: 0.395 of the active one in SimBench's loads
_NOMINAL_KVAR_PER_KW = 0.395
_FORMAT = MeterFormat(
    unit="kW",
    interval_label="start",
    time_zone="Europe/Berlin",
    step_minutes=15,
    stamp_format="%d.%m.%Y %H:%M",
    delimiter=";",
)


def read_simbench(
    *,
    scenario: int = 0,
    families: Collection[str] | None = None,
    nominal_kw: float = 1.0,
    rules: IngestRules | None = None,
    file: str | Path | None = None,
) -> IngestResult:
    """Read SimBench load profiles; every profile is a load point with its family as public class.

    Parameters
    ----------
    scenario
        0 (today), 1 or 2 (future).
    families
        Families to keep, such as `CUSTOMER_FAMILIES`; None keeps all 96 profiles of scenario 0.
    nominal_kw
        Nominal power of every profile [kW], kept as the public scale.
    rules
        Limits of the checks, in kW.
    file
        A `LoadProfile.csv` elsewhere; by default that of the installed package.
    """
    if not nominal_kw > 0:
        raise LoadDataError("the nominal power of a profile must be positive; correct nominal_kw")
    path = _profile_file(scenario) if file is None else Path(file)
    columns = WideColumns(time="time", active_suffix="_pload", reactive_suffix="_qload")
    names = [
        name.removesuffix("_pload") for name in open_table(path, _FORMAT).columns if name.endswith("_pload")
    ]
    family = {name: _family(name) for name in names}
    unknown = set(families or ()) - {own for _, own in _FAMILIES}
    if unknown:
        raise LoadDataError(
            f"SimBench has no family '{min(unknown)}'; choose from "
            + ", ".join(sorted(set(dict(_FAMILIES).values())))
        )
    kept = [name for name in names if families is None or family[name] in families]
    if not kept:
        raise LoadDataError(f"{path} holds no profile of the families asked for; ask for others")
    services = ServiceMap(
        load_point_of={name: name for name in kept},
        class_of={name: family[name] for name in kept},
        scale_kw_of=dict.fromkeys(kept, 1.0),
    )
    rules = rules or IngestRules()
    relative = replace(rules, floor_kw=rules.floor_kw / nominal_kw)
    result = read_wide(path, _FORMAT, columns, services=services, rules=relative)
    history = result.history
    kvar = history.load_kvar
    scaled = replace(
        history,
        load_kw=history.load_kw * nominal_kw,
        load_kvar=None if kvar is None else kvar * (nominal_kw * _NOMINAL_KVAR_PER_KW),
        scale_kw=np.full(history.n_load_points, nominal_kw),
    )
    return IngestResult(scaled, replace(result.report, floor_kw=rules.floor_kw))


def _profile_file(scenario: int) -> Path:
    spec = find_spec("simbench")
    if spec is None or spec.origin is None:
        raise MissingExtraError("simbench", "pandapower")
    path = (
        Path(spec.origin).parent / "networks" / f"1-complete_data-mixed-all-{scenario}-sw" / "LoadProfile.csv"
    )
    if not path.exists():
        raise LoadDataError(f"SimBench has no scenario {scenario} at {path}; use 0, 1 or 2")
    return path


def _family(name: str) -> str:
    return next((family for prefix, family in _FAMILIES if name.startswith(prefix)), "other")
