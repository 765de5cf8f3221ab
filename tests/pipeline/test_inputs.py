"""What a config declares of feeder, meters, classes, customers and sun, and what is refused of it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from dp_powerflow import errors
from dp_powerflow.cli import app
from dp_powerflow.config import Config
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder, read_loads
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.pipeline.audit import verify_private
from dp_powerflow.pipeline.customers import Services, count_customers, node_plan
from dp_powerflow.pipeline.inputs import read_inputs, read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.modes.true import restate_radius
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.powerflow.devices import CATEGORY_A
from dp_powerflow.powerflow.sun import Generation, clear_sky, read_irradiance
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.manifest_releases import said
from support.small import small_config
from support.small_circuits import script
from support.sunny import ROOF, write_sunny
from support.tampering import manifest_of

DAYS = {"days": 3}
STEPS = 24
TWIN: dict[str, Any] = {"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05}
CLASSES: dict[str, Any] = {
    "bounds_of_class": {"commercial": [0.05, 3.0]},
    "power_factor_of_class": {"commercial": 0.8, "industrial": -0.9},
}
FACTORS: dict[str, Any] = {"power_factor_of_load": {"671": -0.98, "634A": 0.7}}


# --- what is refused before anything is spent -------------------------------------------------------------
REFUSED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("refused_inputs.json").read_text())


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["says"])
def test_what_config_or_feeder_decide_is_refused_before_anything_is_spent(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    """By classes, loads and factors; evidence that is impossible; what no twin could be drawn of."""
    circuit = script(case.get("circuit", "two_loads"), length=0.5, more=case.get("more", ""))
    feeder = {"source": "c.dss"} | ({"taps": "taps.csv"} if "taps" in case else {})
    write_sunny(tmp_path, circuit)
    (tmp_path / "taps.csv").write_text(case.get("taps", ""))
    loads = {"load_points": 20, "days": 2} | case["sections"].get("loads", {})
    with pytest.raises(errors.DpPowerflowError, match=case["says"]) as caught:
        run_release(
            small_config(tmp_path, **case["sections"] | {"feeder": feeder, "loads": loads}), workers=1
        )
    assert isinstance(caught.value, errors.ConfigError | errors.FeederError | errors.PowerFlowError)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()


def misread(folder: Path, network: dict[str, Any], **feeder: Any) -> Config:
    """The third load has a ground of its own: nothing feeds that node, so that the load is left out with it,
    and OpenDSS solves another circuit.
    """
    (folder / "net.dss").write_text(script("own_ground"))
    section = {"source": "net.dss", "drop_islanded": True, **feeder}
    return small_config(folder, feeder=section, network=network, release={"days": 2})


@pytest.mark.parametrize("network", [TWIN, TWIN | {"controls": "frozen"}, {}])
def test_another_circuit_than_that_of_the_file_is_refused(tmp_path: Path, network: dict[str, Any]) -> None:
    chosen = misread(tmp_path, network)
    for decide in (plan, run_release):
        with pytest.raises(errors.FeederError, match=r"voltages at x\.3, .* differ by up to 1e-0\d p\.u\."):
            decide(chosen)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    output = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.dss"), "--drop-islanded"]).output
    assert "refused: the feeder as read is not the one that OpenDSS solves" in output.replace("\n", " ")


def test_a_difference_that_is_declared_is_accepted_and_stated(tmp_path: Path) -> None:
    run_release(misread(tmp_path, TWIN, accept_difference=0.1))
    stated = manifest_of(tmp_path / "out")["declared_public"]["left_out"]
    assert stated == ["differences of up to 0.1 p.u. from OpenDSS on the file of the feeder"]


# --- classes and power factors ----------------------------------------------------------------------------
def inputs_of(config: Config) -> Any:
    inputs = read_inputs(config, PrivateState.open(config.release.state, insecure_seed=7))
    mode_of(config).check(inputs)
    return inputs


def law_of(config: Config, model: LoadModel) -> tuple[Feeder, LoadLaw]:
    inputs = inputs_of(config)
    nodes = node_plan(config, inputs.feeder, model, inputs.key)
    return inputs.feeder, nodes.law(model, inputs.feeder)


def nodes_of(feeder: Feeder, law: LoadLaw, load: str) -> np.ndarray:
    """Positions in the law of the nodes of a load."""
    number = next(k for k, item in enumerate(feeder.loads) if item.name == load)
    carries = np.abs(feeder.load_shares.tocsr()[feeder.retained][:, [number]].toarray()[:, 0]) > 0
    assert law.positions is not None
    return np.flatnonzero(carries[law.positions])


def test_classes_and_loads_have_margins_and_power_factors_of_their_own(tmp_path: Path) -> None:
    config = small_config(tmp_path, model=CLASSES, nodes=FACTORS, release=DAYS)
    result = run_release(config, workers=1)
    margins = {part.name: part.bounds for part in result.model.classes}
    assert margins == {"residential": (0.01, 2.0), "commercial": (0.05, 3.0), "industrial": (0.01, 2.0)}
    tangents = {part.name: part.reactive.tan_theta for part in result.model.classes}
    assert tangents == {
        "residential": tan_theta_of(0.95),
        "commercial": pytest.approx(0.75),
        "industrial": pytest.approx(-tan_theta_of(0.9)),
    }
    feeder, law = law_of(config, result.model)
    assert set(law.tan_theta[nodes_of(feeder, law, "671")]) == {-tan_theta_of(0.98)}
    assert set(law.tan_theta[nodes_of(feeder, law, "634a")]) == {tan_theta_of(0.7)}
    assert set(law.tan_theta[nodes_of(feeder, law, "675a")]) == {tangents["residential"]}
    declared = manifest_of(tmp_path / "out")["declared_public"]
    stated = {part["name"]: (part["bounds"], part["power_factor"]) for part in declared["classes"]}
    assert stated["commercial"] == ([0.05, 3.0], 0.8)
    assert stated["industrial"] == ([0.01, 2.0], -0.9)
    assert declared["load_power_factors"] == [
        {"power_factor": -0.98, "loads": 1},
        {"power_factor": 0.7, "loads": 1},
    ]
    assert verify_release(tmp_path / "out").verdict == "demonstration"
    # The model is not reused under other margins or factors.
    caps = {"network_epsilon_cap": 3e6, "network_delta_cap": 0.9999}
    again = {"id": "again", "output": "again", **DAYS, **caps}
    for values, named in (
        ({"bounds_of_class": {"commercial": [0.05, 2.5]}}, "model.bounds_of_class"),
        ({"bounds_of_class": {}}, "model.bounds_of_class"),
        ({"power_factor_of_class": {"commercial": 0.8}}, "model.power_factor_of_class"),
    ):
        changed = small_config(tmp_path, model={**CLASSES, "reuse": "small"} | values, release=again)
        with pytest.raises(errors.DpPowerflowError, match=f"other values of [^;]*{named}"):
            plan(changed)


# --- OpenDSS shapes ---------------------------------------------------------------------------------------
def shapes(folder: Path) -> dict[str, Any]:
    """A folder of load shapes for all loads of a feeder; what the config says of them."""
    where = folder / "shapes"
    where.mkdir(parents=True)
    rng = np.random.default_rng(1)
    day = 0.5 + 0.3 * np.sin(np.linspace(0.0, 2 * np.pi, 24, endpoint=False))
    names = [load.name for load in open_feeder("ieee13").loads]
    for name in names:
        values = np.concatenate([day * rng.lognormal(0.0, 0.1, 24) for _ in range(6)])
        (where / f"loadshape_{name}.csv").write_text("\n".join(f"{v:.5f}" for v in values))
    rows = [f"{name.upper()},{'big' if k % 2 else 'small'}" for k, name in enumerate(names)]
    (folder / "classes.csv").write_text("load,class\n" + "\n".join(rows) + "\n")
    return {"kind": "opendss-shapes", "path": "shapes", "first_day": "2024-01-01"}


NO_CLASS: dict[str, Any] = {"load_class": None, "scale_factor": 1e-3}  # solves whatever the noise
BY_DAY: dict[str, Any] = {"unit": "load-point-day", "epsilon": 100.0}


def test_load_shapes_have_the_public_classes_of_a_file(tmp_path: Path) -> None:
    loads = shapes(tmp_path) | {"classes": "classes.csv"}
    model = {"bounds_of_class": {"big": [0.02, 2.0]}, **BY_DAY}
    config = small_config(tmp_path, loads=loads, nodes=NO_CLASS, model=model, release=DAYS)
    result = run_release(config, workers=1)
    assert set(result.model.class_names) == {"big", "small"}
    assert result.model.find("big").bounds == (0.02, 2.0)
    inputs = inputs_of(config)
    classes = dict(zip(inputs.history.load_points, inputs.history.class_label, strict=True))
    nodes = node_plan(config, inputs.feeder, result.model, inputs.key)
    # A node has the class of the load that it carries, unless the config says otherwise.
    law = nodes.law(result.model, inputs.feeder)
    for load in ("671", "675a", "675b"):
        at = nodes_of(inputs.feeder, law, load)
        assert {nodes.classes[k] for k in at} == {classes[load]}
    assert verify_release(tmp_path / "out").verdict == "demonstration"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "class file .* does not exist; correct loads.classes"),
        (b"name,class\na,b\n", "class file .* has no column 'load'"),
        (b"load,class\n671,\n", "line 2: every load has one row, with a class"),
        (b"load,class\n671,a\n671,b\n", "line 3: every load has one row"),
        (b"load,class\n671,a\n", "lacks the load shape"),
        (b"all and nowhere,a", "names 'nowhere', a load without a load shape"),
        (b"load,class\n\xff\xfe,a\n", "class file .* cannot be read"),
    ],
)
def test_a_bad_class_file_is_refused_before_anything_is_spent(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    loads = shapes(tmp_path) | {"classes": "classes.csv"}
    file = tmp_path / "classes.csv"
    if content is None:
        file.unlink()
    else:
        kept = file.read_bytes() + b"nowhere,a\n"
        file.write_bytes(kept if content.startswith(b"all") else content)
    with pytest.raises(errors.LoadDataError, match=says):
        run_release(small_config(tmp_path, loads=loads, nodes=NO_CLASS), workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


# --- how many customers a load has, and who says so -------------------------------------------------------
def counts(folder: Path, feeder: Feeder, services: Services | None = None, **nodes: Any) -> dict[str, int]:
    config = small_config(folder, network=TWIN, **({"nodes": nodes} if nodes else {}))
    counted = count_customers(config, feeder, services or Services())
    names = [feeder.loads[k].name for k in counted.positions]
    return dict(zip(names, counted.customers.tolist(), strict=True))


def test_nominal_kw_stand_for_customers_at_least_one(tmp_path: Path, ieee13: Feeder) -> None:
    found = counts(tmp_path, ieee13, kw_per_customer=100.0)
    for load in ieee13.loads:
        assert found[load.name] == max(1, round(load.kw / 100.0))
    assert min(found.values()) == 1
    with pytest.raises(errors.ConfigError, match="more than 1,000,000 customers"):  # a slip of the unit
        counts(tmp_path, ieee13, kw_per_customer=1e-20)


def test_a_class_may_have_customers_of_another_size(tmp_path: Path, ieee13: Feeder) -> None:
    large = ieee13.loads[0].name
    nodes = {
        "class_of_load": {large: "industrial"},
        "kw_per_customer": 1.0,
        "kw_per_customer_of_class": {"industrial": 1e6},
    }
    found = counts(tmp_path, ieee13, Services((None,), ("residential",)), **nodes)
    assert found.pop(large) == 1
    assert min(found.values()) > 1


def test_the_service_map_counts_by_load_node_or_bus(tmp_path: Path, ieee13: Feeder) -> None:
    load = ieee13.loads[3]
    other = next(each for each in ieee13.loads if len(each.branches) == 1 and each.name != load.name)
    node = ieee13.nodes[other.branches[0][0]]
    services = Services((load.name.upper(), load.name, None, node), (None,) * 4)
    found = counts(tmp_path, ieee13, services)
    assert found[load.name] == 2
    assert found[other.name] == 1
    assert sum(found.values()) > 3  # the others go by their nominal load
    for name, says in (("nowhere", "neither a load of the feeder"), ("675", "carries .* loads; name one")):
        with pytest.raises(errors.ConfigError, match=says):
            counts(tmp_path, ieee13, Services((name,), (None,)))


def test_the_load_table_counts_before_all_others(tmp_path: Path, ieee13: Feeder) -> None:
    rows = [f"{load.name},{load.kw},{load.kvar},{k}" for k, load in enumerate(ieee13.loads)]
    (tmp_path / "loads.csv").write_text("\n".join(["name,kw,kvar,customers", *rows]))
    table = read_loads(tmp_path / "loads.csv")
    services = Services((ieee13.loads[2].name,), (None,), None, table.customers)
    found = counts(tmp_path, ieee13, services)
    assert found == {load.name: k for k, load in enumerate(ieee13.loads) if k}  # the first one has none


# --- public generation ------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sunny(tmp_path)
    return tmp_path


def solar(folder: Path, **sections: Any) -> Any:
    """The network side of a config on the feeder with PV."""
    state = PrivateState.open(folder / "state", insecure_seed=7)
    return read_network(small_config(folder, feeder={"source": "c.dss"}, **sections), state, STEPS)


def test_generation_follows_irradiance_rating_and_cut_in(folder: Path) -> None:
    assert solar(folder).solar.generation is None
    inputs = solar(folder, pv={"irradiance": "sun.csv", "volt_var": "category B"})
    feeder, found = inputs.feeder, inputs.solar
    (sun,) = read_irradiance(folder / "sun.csv", STEPS, ["roof"])[..., 0]
    node = list(feeder.retained).index(feeder.node_index["y.1"])
    assert found.voltvar is not None
    expected = np.where(sun * 0.25 >= 0.2 * 0.3, sun * 0.25, 0.0)
    day = found.generation.of(np.array([3]))
    assert np.allclose(day[:, node].real, expected)
    assert np.count_nonzero(day) == np.count_nonzero(expected)
    assert found.generation.peak[node] == expected.max()


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
    with pytest.raises(errors.ConfigError, match="one file for the PV system 'c'"):
        read_irradiance(tmp_path / "folder", STEPS, ["a", "c"])
    with pytest.raises(errors.ConfigError, match="for 'c'"):
        read_irradiance(tmp_path / "sun.csv", STEPS, ["a", "c"])
    with pytest.raises(errors.ConfigError, match="does not exist"):
        read_irradiance(tmp_path / "none", STEPS, ["a"])


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
    with pytest.raises(errors.ConfigError, match=says):
        read_irradiance(tmp_path / "sun.csv", STEPS, ["roof"])


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


def test_pv_raises_the_released_voltages_and_the_manifest_says_how_many_days_of_sun_there_are(
    folder: Path,
) -> None:
    day = (folder / "sun.csv").read_text().splitlines()
    half = [f"{float(value) / 2:.4f}" for value in day]
    (folder / "sun.csv").write_text("\n".join(["ROOF", *day, *half]))
    common: dict[str, Any] = {"feeder": {"source": "c.dss"}, "nodes": {"scale_factor": 0.01}}
    other = {"days": 3, "output": "dark", "state": "state2"}
    run_release(small_config(folder, **common, release=other), workers=1)
    run_release(small_config(folder, **common, pv={"irradiance": "sun.csv"}, release=DAYS), workers=1)
    stated = manifest_of(folder / "out")["declared_public"]["generation"]
    assert stated == {"days": 2, "per_system": False, "volt_var": "none"}
    assert verify_release(folder / "out").verdict == "demonstration"
    dark, bright = (np.abs(open_corpus(folder / name).voltages()).max(axis=2) for name in ("dark", "out"))
    noon = STEPS // 2  # the sun decides, not the draw of a load
    assert min(bright[0, noon], bright[2, noon]) > bright[1, noon]
    assert (bright - dark)[:, noon].mean() > 1e-3
    assert abs((bright - dark)[:, 0].mean()) < 1e-3


def test_a_latitude_gives_a_year_without_clouds_from_the_first_day_on(folder: Path) -> None:
    inputs = solar(folder, pv={"latitude": 40.0, "first_day_of_year": 172, "volt_var": "file"})
    assert np.array_equal(inputs.irradiance[..., 0], clear_sky(40.0, 365, STEPS, 172))
    assert inputs.sun == (365, False)
    found, days = inputs.solar, np.array([0, 183, 365])
    assert (found.voltvar, found.curve, found.use_file_curves) == (None, None, True)
    summer, winter, again = found.generation.by_system(days).reshape(3, STEPS, 1).real.sum(axis=1)
    assert summer > 2.0 * winter > 0.0
    assert again == summer
    for release, day in (({"first_day": "2023-06-21"}, 172), ({}, 1)):  # of a twin, those of the release
        twin = solar(folder, pv={"latitude": 40.0}, network=TWIN, release=release)
        assert np.array_equal(twin.irradiance[..., 0], clear_sky(40.0, 365, STEPS, day))
    for name, curve in (("none", None), ("category A", CATEGORY_A)):
        chosen = solar(folder, pv={"latitude": 40.0, "volt_var": name}).solar
        assert (chosen.curve, chosen.use_file_curves) == (curve, False)
        assert (chosen.voltvar is None) == (curve is None)


def test_curves_of_the_file_are_refused_where_controls_are_frozen(folder: Path) -> None:
    curve = (
        "New XYCurve.vv npts=4 Yarray=(1 0 0 -1) XArray=(0.9 0.98 1.02 1.1)\n"
        "New InvControl.ic mode=VOLTVAR voltage_curvex_ref=rated vvc_curve1=vv\n"
    )
    (folder / "c.dss").write_text(ROOF.replace("Set VoltageBases", curve + "Set VoltageBases"))
    with pytest.raises(errors.ConfigError, match="needs controls that act"):
        solar(folder, pv={"irradiance": "sun.csv", "volt_var": "file"})


def steep(folder: Path, **sections: Any) -> Config:
    """A long line to a large PV system, whose control answers a change of voltage with a larger one."""
    circuit = ROOF.replace("bus1=x bus2=y length=0.5", "bus1=x bus2=y length=8").replace("kVA=300", "kVA=900")
    (folder / "c.dss").write_text(circuit.replace("Pmpp=250", "Pmpp=900"))
    sunny = {"irradiance": "sun.csv", "volt_var": "category B"}
    return small_config(folder, feeder={"source": "c.dss"} | sections.pop("feeder", {}), pv=sunny, **sections)


@pytest.mark.parametrize("base_mva", [1.0, 1000.0])
def test_steep_control_is_refused_before_anything_is_spent_on_any_power_base(
    folder: Path, base_mva: float
) -> None:
    with pytest.raises(errors.ConfigError, match="volt-var control is too steep"):
        run_release(steep(folder, feeder={"base_mva": base_mva}), workers=1)
    assert not (folder / "state" / "ledger.sqlite").exists()
    plan(steep(folder, network=TWIN))  # no twin is refused for the impedances of the true network


def test_mild_control_is_not_refused_on_a_small_power_base(folder: Path) -> None:
    """The printed condition fails there, 250 kW being 25 times the base."""
    sunny = {"irradiance": "sun.csv", "volt_var": "category B"}
    config = small_config(folder, feeder={"source": "c.dss", "base_mva": 0.01}, pv=sunny, release={"days": 2})
    run_release(config, workers=1)
    assert "volt-var control is too steep for the network" in said(manifest_of(folder / "out"), "refusals")
    certificate = " ".join((folder / "out" / "certificate.html").read_text().split())
    assert "too steep for the network" in certificate


# --- a radius that the evidence does not support can be lowered -------------------------------------------
CAP = {"days": 2, "network_epsilon_cap": 300.0, "network_delta_cap": 0.9}


def about(folder: Path, name: str, radius: float, *, evidence: bool = False, **other: Any) -> Config:
    """A release of two days on the true network about changes of lines up to a radius."""
    network = {"radius": radius, "epsilon": 100.0, "delta": 0.3, "calibration_days": 200}
    return small_config(
        folder,
        network={**network, "require_evidence": evidence},
        model={} if name == "first" else {"reuse": "first"},
        release={**CAP, "id": name, "output": name, **other},
    )


def type_what_is_printed(message: str) -> None:
    """Run the command that a message shows between back quotes."""
    found = re.search("`(dp-powerflow .*)`", message)
    assert found is not None, message
    done = CliRunner().invoke(app, shlex.split(found[1])[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_a_refused_radius_is_lowered_by_what_the_messages_say(tmp_path: Path) -> None:
    with pytest.raises(errors.PrivacyError, match=r"under a new release id and with model.reuse = 'first'"):
        run_release(about(tmp_path, "first", 1e-7, evidence=True), workers=1)
    for name, radius in (("second", 1e-13), ("third", 1e-14)):
        lower = about(tmp_path, name, radius, evidence=True)
        for attempt in (plan, lambda chosen: run_release(chosen, workers=1)):
            with pytest.raises(errors.PrivacyError, match="counts in full for smaller ones") as refused:
                attempt(lower)
        type_what_is_printed(str(refused.value))
        assert run_release(lower, workers=1).evidence_met
    # All charges, that of the refused release too, count at the smallest radius, and both releases that were
    # made still say what the ledger says.
    account = Ledger.inspect(tmp_path / "state").summary().accounts[-1]
    assert account.balance.spent["epsilon"] == 300.0
    assert "r = 1e-14 p.u." in str(account.cap.unit)
    for name, words in {"second": "1e-13", "third": "1e-14"}.items():
        assert verify_private(tmp_path / name, tmp_path / "state").intact
        stated = json.loads((tmp_path / name / "manifest.json").read_text())["composition"]["network"]
        assert f"r = {words} p.u." in stated["unit"]
    assert stated["promise"]["epsilon"] == 300.0


def test_a_larger_radius_is_refused_once_something_was_charged(tmp_path: Path) -> None:
    run_release(about(tmp_path, "first", 1e-13), workers=1)
    with pytest.raises(
        errors.PrivacyError, match=r"no bound for larger ones; set network.radius = 1e-13; nothing"
    ):
        plan(about(tmp_path, "second", 1e-12))
    ledger = Ledger.inspect(tmp_path / "state")
    for name, radius, reason, says in (
        ("network-instance-1", 1e-12, "why not", "no bound for larger ones"),
        ("network-instance-1", 1e-14, " ", "needs a reason"),
        ("network-instance-1", float("nan"), "why not", "positive number"),
        ("loads-1", 1e-14, "why not", "'loads-1' is not an account of a true network"),
    ):
        with pytest.raises(errors.PrivacyError, match=says):
            restate_radius(ledger, name, radius, reason)
