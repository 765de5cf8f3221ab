"""A pandapower file is data: whatever it names, nothing of it is imported, made or run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandapower")

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.grid.sources import open_feeder
from support.pandapower_nets import quiet, small_net

MARKER = "a_module_that_leaves_a_trace"


@pytest.fixture(scope="module")
def saved() -> str:
    with quiet() as pp:
        text = pp.to_json(small_net())
    assert isinstance(text, str)
    return text


@pytest.fixture(scope="module")
def buses(saved: str) -> str:
    """The same net with little in it: what is refused is refused before tables are compared."""
    net = json.loads(saved)
    net["_object"] = {"bus": net["_object"]["bus"]}
    return json.dumps(net)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once a module, a class or a function of ours was touched."""
    found = tmp_path / "trace"
    lines = [
        "import pathlib",
        "from pandapower.io_utils import JSONSerializableClass",
        f"def leave(*_, **__): pathlib.Path({str(found)!r}).touch()",
        "class Control(JSONSerializableClass):",
        "    def __init__(self, *a, **b): leave()",
        "    @classmethod",
        "    def from_dict(cls, d): leave()",
        "leave()",
    ]
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{MARKER}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    return found


def with_entry(saved: str, hostile: Any) -> str:
    net = json.loads(saved)
    net["_object"]["remark"] = hostile
    return json.dumps(net)


def changed(saved: str, table: str, change: Callable[[dict[str, Any]], object]) -> str:
    """With something changed in a table, whose text pandas reads."""
    net = json.loads(saved)
    found = net["_object"][table]
    content = json.loads(found["_object"])
    change(content)
    found["dtype"] = {name: kind for name, kind in found["dtype"].items() if name in content["columns"]}
    found["_object"] = json.dumps(content)
    return json.dumps(net)


def set_cell(content: dict[str, Any], column: str, value: Any) -> None:
    content["data"][0][content["columns"].index(column)] = value


def in_a_cell(saved: str, hostile: Any) -> str:
    return changed(saved, "bus", lambda content: set_cell(content, "name", hostile))


def as_controller(saved: str, hostile: Any) -> str:
    """Within the settings of a controller of pandapower, a text within a text."""
    kind = "DiscreteTapControl"
    settings = json.dumps({"element": "trafo", "hidden": hostile})
    module = f"pandapower.control.controller.trafo.{kind}"
    return in_a_cell(saved, {"_module": module, "_class": kind, "_object": settings})


def in_a_net(saved: str, hostile: Any) -> str:
    """In a net that is kept as text, as old files have it."""
    net = {"_module": "pandapower.auxiliary", "_class": "pandapowerNet"}
    return json.dumps({**net, "_object": with_entry(saved, hostile)})


PLACES = {"entry": with_entry, "cell": in_a_cell, "controller": as_controller, "net": in_a_net}
HOSTILE = json.loads(Path(__file__).with_name("hostile_nets.json").read_bytes())
"""What no net may hold; the curve under another name is of a class that its own reader would import."""
EVERYWHERE = ("module", "function", "eval")
"""What is tried at every place; all else at one, as all places share one list."""


@pytest.mark.parametrize(
    ("kind", "place"),
    [(kind, place) for kind in HOSTILE for place in PLACES if kind in EVERYWHERE or place == "cell"],
)
def test_nothing_that_a_net_names_is_run(
    kind: str, place: str, buses: str, trace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"columns": ["a"], "index": [0], "data": [[1]]}')
    named = json.dumps(HOSTILE[kind]).replace("{trace}", str(trace)).replace("{other}", str(other))
    net = tmp_path / "net.json"
    net.write_text(PLACES[place](buses, json.loads(named)))
    before = set(sys.modules)
    with pytest.raises(FeederError, match=r"is not read: it .*, but a net may hold only data") as refused:
        open_feeder(net)
    assert "\n" not in str(refused.value)
    assert not trace.exists()
    assert MARKER not in set(sys.modules) - before


def test_what_to_json_writes_is_read_with_the_same_bits(tmp_path: Path) -> None:
    """Controllers of pandapower and their series come as settings."""
    pytest.importorskip("pandapower.control")
    import pandas as pd
    from pandapower.control import ConstControl, DiscreteTapControl
    from pandapower.timeseries import DFData

    net = small_net()
    net.trafo["tap_min"], net.trafo["tap_max"] = -9, 9
    with quiet() as pp:
        DiscreteTapControl(net, 0, 0.98, 1.02)
        ConstControl(net, "load", "p_mw", 0, data_source=DFData(pd.DataFrame({"a": [0.1]})), profile_name="a")
        pp.to_json(net, str(tmp_path / "net.json"))
    feeder = open_feeder(tmp_path / "net.json")
    assert [regulator.name for regulator in feeder.as_operated.regulators] == ["tap control of step"]
    assert feeder.y.data.tobytes() == read_pandapower(net, name="net").y.data.tobytes()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_net_in_any_unicode_is_read(encoding: str, saved: str, tmp_path: Path) -> None:
    net = tmp_path / "net.json"
    net.write_bytes(saved.replace("mill", "mühle").encode(encoding))
    assert "mühle" in {load.name for load in open_feeder(net).loads}


def without_columns(content: dict[str, Any]) -> None:
    content["data"] = [row[:-9] for row in content["data"]]
    content["columns"] = content["columns"][:-9]


BROKEN: dict[str, Callable[[str], str]] = {
    "twice": lambda saved: saved.replace('"_object": {', '"_object": {"bus": 3, ', 1),
    "not a number": lambda saved: saved.replace('"f_hz": 50', '"f_hz": NaN'),
    "infinite": lambda saved: saved.replace('"sn_mva": 1', '"sn_mva": Infinity'),
    "words for numbers": lambda saved: changed(saved, "line", lambda own: set_cell(own, "length_km", "a")),
    "columns missing": lambda saved: changed(saved, "trafo", without_columns),
    "version": lambda saved: saved.replace('"format_version": "', '"format_version": "999'),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_net_is_one_sentence(damage: str, saved: str, tmp_path: Path) -> None:
    net = tmp_path / "net.json"
    net.write_text(BROKEN[damage](saved))
    with pytest.raises(FeederError) as refused:
        open_feeder(net)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 2_000
