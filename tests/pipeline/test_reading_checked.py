"""A feeder that is not the one of its file is refused before anything is spent, unless that is declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.errors import FeederError
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.small import small_config

OTHER = """Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x r1=0.1 x1=0.2 r0=0.2 x0=0.4 c1=0 c0=0 length=0.5 units=km
New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30 vminpu=.8
New Load.two bus1=x.2 phases=1 kv=2.4 kW=80 kvar=20 vminpu=.8
New Load.three bus1=x.3.5 phases=1 kv=2.4 kW=80 kvar=20 vminpu=.8
New Reactor.rod bus1=x.5 phases=1 r=10 x=0
Set VoltageBases=[4.16]
CalcVoltageBases
"""
"""The third load has a ground of its own, through which alone its current returns: nothing feeds that node,
so that the load is left out with it, and OpenDSS solves another circuit."""
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}


def config(folder: Path, network: dict[str, Any], **feeder: Any) -> Config:
    (folder / "net.dss").write_text(OTHER)
    section = {"source": "net.dss", "drop_islanded": True, **feeder}
    return small_config(folder, feeder=section, network=network, release={"days": 2})


@pytest.mark.parametrize("network", [TWIN, TWIN | {"controls": "frozen"}, {}])
def test_another_circuit_than_that_of_the_file_is_refused(tmp_path: Path, network: dict[str, Any]) -> None:
    chosen = config(tmp_path, network)
    for decide in (plan, run_release):
        with pytest.raises(FeederError, match=r"voltages at x\.3, .* differ by up to 1e-0\d p\.u\."):
            decide(chosen)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


def test_a_difference_that_is_declared_is_accepted_and_stated(tmp_path: Path) -> None:
    chosen = config(tmp_path, TWIN, accept_difference=0.1)
    run_release(chosen)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    stated = manifest["declared_public"]["left_out"]
    assert stated == ["differences of up to 0.1 p.u. from OpenDSS on the file of the feeder"]


def test_inspect_says_what_a_release_would_refuse(tmp_path: Path) -> None:
    config(tmp_path, {})
    output = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.dss"), "--drop-islanded"]).output
    assert "refused: the feeder as read is not the one that OpenDSS solves" in output.replace("\n", " ")
