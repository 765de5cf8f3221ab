"""Everything that keeps a feeder from being used is said at once; devices of protection are understood."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest

from dp_powerflow import open_feeder
from dp_powerflow.errors import FeederError
from dp_powerflow.grid import refusals
from dp_powerflow.grid.refusals import Problems, SeveralReasonsError, in_full, reasons_of
from dp_powerflow.grid.sources import feeder_problems
from dp_powerflow.lowlevel import Rebuilder
from support.pandapower_nets import net_of, quiet
from support.tables import tables_of

TABLES = tables_of(__file__)

CIRCUIT = TABLES["CIRCUIT"]
TAIL = "Set VoltageBases=[12.47]\nCalcVoltageBases\n"


def write(folder: Path, more: str = "") -> Path:
    path = folder / "f.dss"
    path.write_text(CIRCUIT + more + "\n" + TAIL)
    return path


def works_as_a_twin(path: Path, *, drop_islanded: bool = False) -> Any:
    feeder = open_feeder(path, drop_islanded=drop_islanded)
    rebuilder = Rebuilder(feeder, drop_islanded=drop_islanded)
    parameters = rebuilder.parameters()
    rebuilder.check(parameters)
    assert rebuilder.build(parameters.levels).nodes == feeder.nodes
    return feeder


# ---------------------------------------------------------------------------- devices of protection


@pytest.mark.parametrize("device", TABLES["a_device_of_protection_that_is_closed_changes_nothing"])
def test_a_device_of_protection_that_is_closed_changes_nothing(tmp_path: Path, device: str) -> None:
    """Also one that the engine rejects for want of a curve or of its line."""
    plain = open_feeder(write(tmp_path))
    feeder = works_as_a_twin(write(tmp_path, device))
    assert feeder.nodes == plain.nodes
    assert abs(feeder.y - plain.y).max() == 0.0
    assert any(word in note for note in feeder.notes for word in ("fuse", "recloser", "relay", "swtcontrol"))


@pytest.mark.parametrize(("device", "islanded"), TABLES["an_open_device_makes_an_island"])
def test_an_open_device_makes_an_island_that_can_be_left_out(
    tmp_path: Path, device: str, islanded: int
) -> None:
    path = write(tmp_path, device)
    (reason,) = feeder_problems(path)
    assert reason.startswith(f"{islanded} nodes are islanded")
    assert "feeder.drop_islanded = true" in reason
    with pytest.raises(FeederError, match="nodes are islanded"):
        open_feeder(path)
    assert feeder_problems(path, drop_islanded=True) == ()
    feeder = works_as_a_twin(path, drop_islanded=True)
    assert [load.name for load in feeder.loads] == ["near"]


def test_an_open_device_that_the_engine_rejects_is_not_taken_as_closed(tmp_path: Path) -> None:
    path = write(tmp_path, "New SwtControl.s switchedobj=Line.gone action=open")
    with pytest.raises(FeederError, match="OpenDSS rejects line 8"):
        open_feeder(path)


def test_a_rejected_device_never_disables_anything_else(tmp_path: Path) -> None:
    plain = open_feeder(write(tmp_path))
    more = "New Fuse.f monitoredobj=Line.b\nSelect Line.b\nEdit Fuse.none delay=3"
    assert abs(open_feeder(write(tmp_path, more)).y - plain.y).max() == 0.0


def test_the_program_of_a_generator_is_never_loaded_and_the_generator_left_out(tmp_path: Path) -> None:
    motor = (
        "New Generator.m bus1=z kv=12.47 kw=-18 conn=delta model=6 Usermodel=evil.so\n~ UserData=(rs=0.03)"
    )
    feeder = open_feeder(write(tmp_path, motor))
    assert isinstance(feeder.as_operated.left_out, tuple)
    assert "1 generator of model 6" in feeder.as_operated.left_out
    assert any("1 programs" in note for note in feeder.notes)
    assert not any("evil" in command for command in getattr(feeder.origin, "commands", ()))


# -------------------------------------------------------------------------------------- all at once


def test_all_that_is_wrong_with_a_script_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "Frobnicate\nReduce\nSet nonsense=3\nRedirect gone.dss\nSolution.mode=daily")
    reasons = feeder_problems(path)
    places = [reason.split(":")[0].split(";")[0] for reason in reasons]
    assert places == [f"{'OpenDSS rejects ' * (k == 11)}line {k} of f.dss" for k in range(8, 13)]


def test_all_that_the_engine_rejects_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "Open Line.p 1\nNew Lnie.q\nOpen Line.r 1\nNew Line.s linecode=gone")
    assert len(feeder_problems(path)) == 4
    with pytest.raises(
        SeveralReasonsError, match=r"4 reasons: \(1\).*\(3\).*and 1 more, which 'dp-powerflow"
    ):
        open_feeder(path)


def test_all_elements_on_nodes_that_are_not_there_are_said_at_once(tmp_path: Path) -> None:
    more = "\n".join(f"New Load.m{k} bus1=gone{k}.1 phases=1 kv=7.2 kW=10" for k in range(5))
    reasons = feeder_problems(write(tmp_path, more + "\nNew PVSystem.p bus1=lost.1 phases=1 kv=7.2"))
    assert len(reasons) == 6
    assert all("no line or transformer reaches" in reason for reason in reasons)


def test_all_that_a_twin_cannot_have_is_said_at_once_islands_too(tmp_path: Path) -> None:
    more, all_words = TABLES["all_that_a_twin_cannot_have"]
    reasons = feeder_problems(write(tmp_path, more))
    for words in all_words:
        assert sum(words in reason for reason in reasons) == 1, words
    assert not any("fault" in reason for reason in feeder_problems(write(tmp_path, more), twin=None))


def test_inspect_lists_every_reason_in_one_line(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(f"Open Line.gone{k} 1" for k in range(7)))
    command = [sys.executable, "-c", "from dp_powerflow.cli import main; main()", "inspect", "f.dss"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: the feeder cannot be used for 7 reasons: (1)")
    assert "(7)" in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_reason_is_the_error_itself_and_several_survive_a_pipe() -> None:
    one, other = FeederError("a; do this"), FeederError("b; do that")
    problems = Problems([one, FeederError("a; do this")])
    with pytest.raises(FeederError) as caught:
        problems.refuse()
    assert caught.value is one
    problems.add(other)
    with pytest.raises(SeveralReasonsError) as several:
        problems.refuse()
    again = pickle.loads(pickle.dumps(several.value))
    assert reasons_of(again) == problems.found == ("a; do this", "b; do that")
    assert str(again) == str(in_full(problems.found))
    Problems().refuse()


def names_in_code() -> dict[str, set[str]]:
    """Names of sentences that the code gives as they stand → words that it fills in."""
    found: dict[str, set[str]] = {}
    for path in Path(refusals.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            start = {"refusal": "", "said": "", "counted": "", "NotModelledError": "control."}.get(
                node.func.id
            )
            if start is not None and isinstance(node.args[0], ast.Constant):
                found[start + str(node.args[0].value)] = {str(word.arg or "**") for word in node.keywords}
            elif node.func.id == "_refuse":
                found |= {f"control.{str(word.arg).replace('_', '-')}": set() for word in node.keywords}
    return found


def test_every_sentence_that_the_code_names_is_there_with_its_words() -> None:
    stated = {
        f"{section}.{key}": text for section, of in refusals._SENTENCES.items() for key, text in of.items()
    }
    named = names_in_code()
    assert len(named) > 150
    for name, words in named.items():
        places = {
            str(field).split(".")[0].split("[")[0]
            for _, field, *_ in Formatter().parse(stated[name])
            if field
        }
        assert words == places or ("**" in words and words - {"**"} <= places), name


# -------------------------------------------------------------------------------- nets of pandapower


def saved(folder: Path, net: Any) -> Path:
    with quiet() as pp:
        pp.to_json(net, str(folder / "net.json"))
    return folder / "net.json"


def test_all_that_is_wrong_with_a_net_is_said_at_once(tmp_path: Path) -> None:
    net = net_of("four_buses")
    with quiet() as pp:
        pp.create_load(net, 1, p_mw=np.nan, name="no figure")
        pp.create_sgen(net, 2, p_mw=np.nan, name="nor this")
    reasons = feeder_problems(saved(tmp_path, net))
    assert [reason.split(" has ")[0] for reason in reasons] == ["load 'no figure'", "sgen 'nor this'"]


def test_states_of_a_private_net_are_refused_at_once_with_what_comes_after_them(tmp_path: Path) -> None:
    net = net_of("four_buses")
    with quiet() as pp:
        low = pp.create_bus(net, vn_kv=0.4)
        pp.create_transformer(net, 3, low, "0.4 MVA 20/0.4 kV", tap_pos=2, name="t")
        pp.create_load(net, low, p_mw=0.05)
        pp.create_shunt(net, 2, q_mvar=-0.1, step=1, max_step=3, name="bank")
        pp.create_line_from_parameters(net, 2, 3, 1.0, 1.0, 5.0, 5e6, 1.0, name="capacitive")
    net.ext_grid["vm_pu"] = 1.01234567
    reasons = feeder_problems(saved(tmp_path, net))
    for words in ("transformer 't' stands at a tap", "shunt 'bank' stands", "more than 4 decimals"):
        assert sum(words in reason for reason in reasons) == 1, words
    assert sum("line 'capacitive' cannot be rebuilt" in reason for reason in reasons) == 1


def test_a_unit_that_draws_power_is_a_load_and_storage_and_dc_lines_are_left_out(tmp_path: Path) -> None:
    net = net_of("four_buses")
    with quiet() as pp:
        pp.create_sgen(net, 2, p_mw=-0.3, q_mvar=0.1, name="pump")
        pp.create_dcline(net, 1, 2, 0.1, 1.0, 0.0, 1.0, 1.0)
        pp.create_storage(net, 1, p_mw=0.1, max_e_mwh=1.0)
    path = saved(tmp_path, net)
    assert feeder_problems(path) == ()
    feeder = works_as_a_twin(path)
    pump = next(load for load in feeder.loads if load.name == "pump")
    assert (pump.kw, pump.kvar) == (300.0, 0.0)
    assert feeder.as_operated.left_out == ("1 storage units", "1 dc lines")
    assert any("generating units in the net, which draw power" in note for note in feeder.notes)
    assert any("1 dc lines are left out" in note for note in feeder.notes)
