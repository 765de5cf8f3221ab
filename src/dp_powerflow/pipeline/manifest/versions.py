"""Manifests of earlier versions in the form of this one, so that `verify` can check their figures."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from dp_powerflow.pipeline.manifest.model import CARD_FILE, FORMAT, QUALITY_FILE, SOLVERS, UNDECLARED
from dp_powerflow.pipeline.manifest.old_twin import CALLED as OLD_TWIN_THEN
from dp_powerflow.pipeline.manifest.old_twin import MODE as OLD_TWIN
from dp_powerflow.pipeline.manifest.policy import modes, registered

VERSION_2, VERSION_3, VERSION_4, VERSION_5 = (
    f"dp-powerflow manifest, version {number}" for number in (2, 3, 4, 5)
)
MAKER_OF = {VERSION_2: "0.1.0", VERSION_3: "0.2.0", VERSION_4: "0.3.0", VERSION_5: "0.4.0"}
"""Earlier versions, and the program that made releases of each."""
WITH_DAYS = (VERSION_5, FORMAT)
"""Versions whose twins have dates, and all whose load models hold noisy answers."""


_NO_FILE = "0" * 64
"""Stands where this version lists a file that earlier ones do not have; what is listed is read from them."""


def in_this_version(raw: dict[str, Any]) -> dict[str, Any]:
    """A manifest of an earlier version in the form of this version, any other as it is."""
    if raw.get("format") not in tuple(MAKER_OF):  # whatever it is, also what has no hash
        return raw
    stated = copy.deepcopy(raw) | {"format": FORMAT}
    data, software, guarantee = (stated.get(name) for name in ("data", "software", "guarantee"))
    network = guarantee.get("network") if isinstance(guarantee, dict) else None
    spread = raw["format"] in (VERSION_2, VERSION_3)  # later twins have other noise under the same name
    if isinstance(network, dict) and spread and network.get("mode") == OLD_TWIN_THEN:
        network["mode"] = OLD_TWIN
    if isinstance(data, dict) and spread and "twin_tables" in data:
        data["network_tables"] = data.pop("twin_tables")
    if isinstance(software, dict):
        software.setdefault("pyyaml", "0")  # version 2 wrote its YAML itself
    if isinstance(network, dict) and spread and network.get("mode") in tuple(modes()):
        network |= registered(network["mode"]).unknown_to_version_2()
    old = () if raw["format"] == VERSION_5 else _unknown_to_version_4(stated)
    for section, entries in (*old, *_unknown_to_version_5(stated)):
        if section.keys() & entries.keys():
            return raw  # it states what its version does not know, so nobody wrote it so
        section.update(entries)
    return stated


def _unknown_to_version_4(stated: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Sections with what they lack: one power factor, one day of irradiance, one solver, voltages alone."""
    declared, processing, data = (stated.get(name) for name in ("declared_public", "processing", "data"))
    if isinstance(stated.get("release"), dict):
        yield stated["release"], {"changed_after_internal_look": []}
    if isinstance(processing, dict):
        yield processing, {"solver": SOLVERS["batch"]}
    if isinstance(data, dict):
        yield data, {"extras": None, "calendar": None}
    guarantee = stated.get("guarantee")
    network = guarantee.get("network") if isinstance(guarantee, dict) else None
    if isinstance(network, dict) and network.get("mode") in tuple(modes()):
        yield network, registered(network["mode"]).unknown_to_version_4()
    if not isinstance(declared, dict):
        return
    yield declared, {"load_power_factors": [], "left_out": [], "net_loads": None}
    classes = declared.get("classes")
    for part in classes if isinstance(classes, list) else ():
        if isinstance(part, dict):
            yield part, {"power_factor": declared.get("power_factor")}
    if isinstance(declared.get("generation"), dict):
        yield declared["generation"], {"days": 1, "per_system": False}


def _unknown_to_version_5(stated: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Sections with what they lack: connections, how tables are written, the publication, and two pages."""
    yield stated, {"publication": UNDECLARED.model_dump()}
    if isinstance(stated.get("files"), dict):
        yield stated["files"], {QUALITY_FILE: _NO_FILE, CARD_FILE: _NO_FILE}
    data = stated.get("data")
    if isinstance(data, dict):
        yield data, {"connections": None}
        if isinstance(data.get("network_tables"), dict):
            yield data["network_tables"], {"frame": "phasors", "switches_merged": False}
    guarantee = stated.get("guarantee")
    network = guarantee.get("network") if isinstance(guarantee, dict) else None
    if isinstance(network, dict) and network.get("mode") in tuple(modes()):
        yield network, registered(network["mode"]).unknown_to_version_5()
