"""Public PV generation in a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.devices import CATEGORY_A
from dp_powerflow.powerflow.sun import Generation, clear_sky, read_irradiance
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import said
from support.small import small_config
from support.tampering import manifest_of

STEPS = 24
CIRCUIT = """
Clear
New Circuit.c basekv=4.16 bus1=s
New Line.a bus1=s bus2=x length=0.5 units=km
New Line.b bus1=x bus2=y length=0.5 units=km
New Load.one bus1=x.1 phases=1 kv=2.4 kW=100 kvar=30
New Load.two bus1=y.1 phases=1 kv=2.4 kW=80 kvar=20
New PVSystem.roof bus1=y.1 phases=1 kv=2.4 kVA=300 Pmpp=250 %cutin=20
Set VoltageBases=[4.16]
CalcVoltageBases
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c.dss").write_text(CIRCUIT)
    day = np.clip(np.sin(np.linspace(-np.pi / 2, 1.5 * np.pi, STEPS)), 0.0, None)
    (tmp_path / "sun.csv").write_text("\n".join(f"{value:.4f}" for value in day))
    return tmp_path


def test_generation_follows_irradiance_rating_and_cut_in(folder: Path) -> None:
    state = PrivateState.open(folder / "state", insecure_seed=7)
    config = small_config(folder, feeder={"source": "c.dss"})
    assert read_network(config, state, STEPS).solar.generation is None
    section = {"irradiance": "sun.csv", "volt_var": "category B"}
    config = small_config(folder, feeder={"source": "c.dss"}, pv=section)
    inputs = read_network(config, state, STEPS)
    feeder, solar = inputs.feeder, inputs.solar
    (sun,) = read_irradiance(folder / "sun.csv", STEPS, ["roof"])[..., 0]
    node = list(feeder.retained).index(feeder.node_index["y.1"])
    assert solar.generation is not None
    assert solar.voltvar is not None
    expected = np.where(sun * 0.25 >= 0.2 * 0.3, sun * 0.25, 0.0)
    day = solar.generation.of(np.array([3]))
    assert np.allclose(day[:, node].real, expected)
    assert np.count_nonzero(day) == np.count_nonzero(expected)
    assert solar.generation.peak[node] == expected.max()


def test_every_system_has_a_series_of_its_own_over_the_horizon(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sun = rng.random((3 * STEPS, 2)).round(4)
    both = "B,a\n" + "\n".join(f"{b},{a}" for a, b in sun)
    (tmp_path / "sun.csv").write_text(both)
    (tmp_path / "folder").mkdir()
    for column, name in enumerate(("pvshape_A", "b")):
        (tmp_path / "folder" / f"{name}.csv").write_text("\n".join(map(str, sun[:, column])))
    for path in (tmp_path / "sun.csv", tmp_path / "folder"):
        assert np.array_equal(read_irradiance(path, STEPS, ["a", "b"]), sun.reshape(3, STEPS, 2))
    with pytest.raises(ConfigError, match="one file for the PV system 'c'"):
        read_irradiance(tmp_path / "folder", STEPS, ["a", "c"])
    with pytest.raises(ConfigError, match="for 'c'"):
        read_irradiance(tmp_path / "sun.csv", STEPS, ["a", "c"])
    with pytest.raises(ConfigError, match="does not exist"):
        read_irradiance(tmp_path / "none", STEPS, ["a"])


def test_days_of_a_corpus_go_round_the_horizon() -> None:
    power = np.arange(12.0).reshape(3, 2, 2).astype(complex)
    shares = sp.csr_array(np.array([[1.0, 0.0], [0.0, 0.0], [0.5, 0.5]]))
    generation = Generation(power, shares)
    found = generation.of(np.array([1, 4]))
    assert np.array_equal(found[:2], found[2:])
    assert np.array_equal(found[0], [4.0, 0.0, 4.5])
    assert np.array_equal(generation.select(np.array([1])).of(np.array([0, 7])), found)
    assert np.array_equal(generation.peak, [10.0, 0.0, 10.5])
    assert np.array_equal(generation.by_system(np.array([4])), power[1])


def test_pv_raises_the_released_voltages_at_noon(folder: Path) -> None:
    common: dict[str, Any] = {"feeder": {"source": "c.dss"}, "release": {"days": 30}}
    run_release(small_config(folder, **common), workers=1)
    sunny = {"irradiance": "sun.csv"}
    other = {"days": 30, "output": "out2", "state": "state2"}
    run_release(small_config(folder, **{**common, "release": other}, pv=sunny), workers=1)
    dark, bright = (np.abs(open_corpus(folder / name).voltages()).max(axis=2) for name in ("out", "out2"))
    assert (bright - dark)[:, STEPS // 2].mean() > 1e-3
    assert abs((bright - dark)[:, 0].mean()) < 1e-3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("1\n2\n", "must hold 24 lines"),
        ("", "must hold 24 lines"),
        ("a\n" * STEPS, "one number per line"),
        ("9\n" * STEPS, "between 0 and 1.5"),
    ],
)
def test_bad_irradiance_is_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "sun.csv").write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_irradiance(tmp_path / "sun.csv", STEPS, ["roof"])


def steep(folder: Path, **sections: Any) -> Config:
    """A long line to a large PV system, whose control answers a change of voltage with a larger one."""
    circuit = CIRCUIT.replace("bus1=x bus2=y length=0.5", "bus1=x bus2=y length=8").replace(
        "kVA=300", "kVA=900"
    )
    (folder / "c.dss").write_text(circuit.replace("Pmpp=250", "Pmpp=900"))
    sunny = {"irradiance": "sun.csv", "volt_var": "category B"}
    return small_config(folder, feeder={"source": "c.dss"} | sections.pop("feeder", {}), pv=sunny, **sections)


def test_a_latitude_gives_a_year_without_clouds(folder: Path) -> None:
    state = PrivateState.open(folder / "state", insecure_seed=7)
    section = {"latitude": 40.0, "first_day_of_year": 172, "volt_var": "file"}
    inputs = read_network(small_config(folder, feeder={"source": "c.dss"}, pv=section), state, STEPS)
    assert inputs.irradiance is not None
    assert np.array_equal(inputs.irradiance[..., 0], clear_sky(40.0, 365, STEPS, 172))
    assert inputs.sun == (365, False)
    solar, days = inputs.solar, np.array([0, 183, 365])
    assert (solar.voltvar, solar.curve, solar.use_file_curves) == (None, None, True)
    assert solar.generation is not None
    summer, winter, again = solar.generation.by_system(days).reshape(3, STEPS, 1).real.sum(axis=1)
    assert summer > 2.0 * winter > 0.0
    assert again == summer


def test_the_clear_sky_of_a_twin_starts_on_the_first_day_of_the_release(folder: Path) -> None:
    state = PrivateState.open(folder / "state", insecure_seed=7)
    twin = {"mode": "twin-network", "epsilon": 8.0, "id": "t1"}
    for release, day in (({"first_day": "2023-06-21"}, 172), ({}, 1)):
        given: dict[str, dict[str, Any]] = {"pv": {"latitude": 40.0}, "network": twin, "release": release}
        inputs = read_network(small_config(folder, feeder={"source": "c.dss"}, **given), state, STEPS)
        assert inputs.irradiance is not None
        assert np.array_equal(inputs.irradiance[..., 0], clear_sky(40.0, 365, STEPS, day))


def test_curves_are_those_that_the_config_names(folder: Path) -> None:
    state = PrivateState.open(folder / "state", insecure_seed=7)
    for name, curve in (("none", None), ("category A", CATEGORY_A)):
        section = {"latitude": 40.0, "volt_var": name}
        solar = read_network(small_config(folder, feeder={"source": "c.dss"}, pv=section), state, STEPS).solar
        assert (solar.curve, solar.use_file_curves) == (curve, False)
        assert (solar.voltvar is None) == (curve is None)


def test_curves_of_the_file_are_refused_where_controls_are_frozen(folder: Path) -> None:
    curve = (
        "New XYCurve.vv npts=4 Yarray=(1 0 0 -1) XArray=(0.9 0.98 1.02 1.1)\n"
        "New InvControl.ic mode=VOLTVAR voltage_curvex_ref=rated vvc_curve1=vv\n"
    )
    (folder / "c.dss").write_text(CIRCUIT.replace("Set VoltageBases", curve + "Set VoltageBases"))
    config = small_config(
        folder, feeder={"source": "c.dss"}, pv={"irradiance": "sun.csv", "volt_var": "file"}
    )
    with pytest.raises(ConfigError, match="needs controls that act"):
        read_network(config, PrivateState.open(folder / "state", insecure_seed=7), STEPS)


@pytest.mark.parametrize("base_mva", [1.0, 1000.0])
def test_steep_control_is_refused_before_anything_is_spent_on_any_power_base(
    folder: Path, base_mva: float
) -> None:
    with pytest.raises(ConfigError, match="volt-var control is too steep"):
        run_release(steep(folder, feeder={"base_mva": base_mva}), workers=1)
    assert not (folder / "state" / "ledger.sqlite").exists()


def test_mild_control_is_not_refused_on_a_small_power_base(folder: Path) -> None:
    """The printed condition fails there, 250 kW being 25 times the base."""
    sunny = {"irradiance": "sun.csv", "volt_var": "category B"}
    config = small_config(folder, feeder={"source": "c.dss", "base_mva": 0.01}, pv=sunny, release={"days": 2})
    run_release(config, workers=1)
    assert "volt-var control is too steep for the network" in said(manifest_of(folder / "out"), "refusals")
    certificate = " ".join((folder / "out" / "certificate.html").read_text().split())
    assert "too steep for the network" in certificate


def test_a_twin_is_not_refused_for_the_impedances_of_the_true_network(folder: Path) -> None:
    twin = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
    plan(steep(folder, network=twin))


def test_the_manifest_says_how_many_days_of_sun_there_are(folder: Path) -> None:
    day = (folder / "sun.csv").read_text().splitlines()
    half = [f"{float(value) / 2:.4f}" for value in day]
    (folder / "sun.csv").write_text("\n".join(["ROOF", *day, *half]))
    config = small_config(
        folder,
        feeder={"source": "c.dss"},
        pv={"irradiance": "sun.csv"},
        nodes={"scale_factor": 0.01},  # the sun decides, not the draw of a load
        release={"days": 3},
    )
    run_release(config, workers=1)
    stated = manifest_of(folder / "out")["declared_public"]["generation"]
    assert stated == {"days": 2, "per_system": False, "volt_var": "none"}
    assert verify_release(folder / "out").verdict == "demonstration"
    first, second, third = np.abs(open_corpus(folder / "out").voltages())[:, STEPS // 2].max(axis=1)
    assert min(first, third) > second
