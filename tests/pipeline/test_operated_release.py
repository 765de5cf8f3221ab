"""Releases on a twin as operated: controls act, loads answer to their voltage, states are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError, DpPowerflowError
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline import inputs as assembly
from dp_powerflow.pipeline.inputs import Solar
from dp_powerflow.pipeline.modes.twin import TwinMode
from dp_powerflow.pipeline.parts import OperatedMaker
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.twin.draw import Twin
from pipeline.test_twin_release import longer_line
from support.made import Released, operated_config
from support.manifest_releases import said
from support.small import small_config, tree_hash

TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 1.0, "id": "t1", "released": "all"}
DAYS = 8


@pytest.fixture(scope="module")
def released(operated_release: Released) -> Path:
    return operated_release.folder


def test_a_twin_is_solved_as_operated_by_default_and_says_so(released: Path) -> None:
    manifest = json.loads((released / "out" / "manifest.json").read_text())
    assert manifest["guarantee"]["network"]["controls"] == "day"
    assert said(manifest, "taps").startswith("as operated")
    report = verify_release(released / "out")
    assert {check.name for check in report.checks if not check.ok} == {"random source"}


def test_voltages_stay_where_regulators_hold_them(released: Path) -> None:
    magnitude = np.abs(open_corpus(released / "out").voltages())
    assert np.mean((magnitude >= 0.95) & (magnitude <= 1.05)) >= 0.99


def test_taps_move_and_powers_balance(released: Path) -> None:
    corpus = open_corpus(released / "out")
    assert corpus.holds == ("voltages", "loads", "head", "taps", "locked", "mended")
    taps = corpus.taps()
    assert taps.shape == (DAYS, corpus.layout.steps, 3)
    assert len(np.unique(taps)) > 1
    losses = (corpus.head().sum(axis=-1) - corpus.loads().sum(axis=-1)).real
    assert losses.min() > 0.0
    assert losses.max() < 0.1 * corpus.loads().sum(axis=-1).real.max()


def test_another_true_network_with_the_same_twin_gives_the_same_bytes(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = next((released / "state/internal/twin-t1").glob("twin-*.json"))
    original = assembly.feeder_of
    monkeypatch.setattr(assembly, "feeder_of", lambda config, *_: longer_line(original(config)))
    monkeypatch.setattr(TwinMode, "_draw", lambda *_: Twin.from_json(kept.read_text()))
    run_release(operated_config(tmp_path), workers=1)
    assert tree_hash(released / "out") == tree_hash(tmp_path / "out")
    assert "quality.html" in tree_hash(tmp_path / "out")


def test_curves_of_the_file_and_a_clear_sky_are_stated(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        feeder={"source": "ieee123-pv"},
        pv={"latitude": 37.0, "volt_var": "file"},
        network=TWIN,
        release={"days": 2},
    )
    run_release(config, workers=1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["declared_public"]["generation"]["volt_var"] == "file"
    assert manifest["declared_public"]["generation"]["days"] == 365
    report = verify_release(tmp_path / "out")
    assert {check.name for check in report.checks if not check.ok} == {"random source"}


def test_every_snapshot_for_itself_is_another_release(released: Path, tmp_path: Path) -> None:
    run_release(operated_config(tmp_path, network={"controls": "snapshot"}), workers=1)
    mine, other = open_corpus(released / "out"), open_corpus(tmp_path / "out")
    assert (mine.taps() != other.taps()).any()
    assert verify_release(tmp_path / "out").checks[0].ok


@pytest.mark.parametrize(
    ("network", "release", "words"),
    [
        ({"publish": "network"}, {}, r"controls = .frozen."),
        ({}, {"solver": "opendss"}, "release.solver no longer exists"),
        ({"controls": "off"}, {}, "controls"),
    ],
)
def test_what_acting_controls_cannot_do_is_refused_in_one_sentence(
    tmp_path: Path, network: dict[str, Any], release: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        small_config(tmp_path, network=TWIN | network, release=release)


OPEN_DELTA = """\
New Circuit.c bus1=src basekv=4.16 pu=1.0 r1=0.01 x1=0.1 r0=0.01 x0=0.1
New Transformer.r phases=1 windings=2 buses=[src.1.2 b.1.2] conns=[delta delta] kvs=[4.16 4.16]
~ kvas=[500 500] xhl=1
New Transformer.s phases=1 windings=2 buses=[src.3.2 b.3.2] conns=[delta delta] kvs=[4.16 4.16]
~ kvas=[500 500] xhl=1
New RegControl.r transformer=r winding=2 vreg=122 band=2 ptratio=34.67
New Line.l bus1=b bus2=d phases=3 r1=0.1 x1=0.2 r0=0.3 x0=0.6 c1=0 c0=0 length=1
New Load.d bus1=d phases=3 conn=delta kv=4.16 kw=30 kvar=10
New Load.e bus1=d.1.2 phases=1 conn=delta kv=4.16 kw=30 kvar=10
Set VoltageBases=[4.16]
CalcVoltageBases
"""


def test_settings_that_the_solver_does_not_know_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    (tmp_path / "open.dss").write_text(OPEN_DELTA)
    config = small_config(tmp_path, feeder={"source": "open.dss"}, network=TWIN, release={"days": 2})
    with pytest.raises(DpPowerflowError, match="'r'"):
        run_release(config, workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


def test_the_solver_of_a_release_is_that_of_the_config() -> None:
    feeder = open_feeder("ieee13")
    solver = OperatedMaker("day", 24)(feeder, Solar(), 1)
    assert solver.columns == "elements"
