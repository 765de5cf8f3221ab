"""The inputs of Algorithm 1 that a config declares: margins, power factors and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.config import Config
from dp_powerflow.errors import ConfigError, DpPowerflowError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.pipeline.customers import node_plan
from dp_powerflow.pipeline.inputs import read_inputs
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.state import PrivateState
from support.small import small_config
from support.tampering import manifest_of

DAYS = {"days": 3}
CLASSES: dict[str, Any] = {
    "bounds_of_class": {"commercial": [0.05, 3.0]},
    "power_factor_of_class": {"commercial": 0.8, "industrial": -0.9},
}
FACTORS: dict[str, Any] = {"power_factor_of_load": {"671": -0.98, "634A": 0.7}}


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
    release = Path(str(result.path))
    declared = manifest_of(release)["declared_public"]
    stated = {part["name"]: (part["bounds"], part["power_factor"]) for part in declared["classes"]}
    assert stated["commercial"] == ([0.05, 3.0], 0.8)
    assert stated["industrial"] == ([0.01, 2.0], -0.9)
    assert declared["load_power_factors"] == [
        {"power_factor": -0.98, "loads": 1},
        {"power_factor": 0.7, "loads": 1},
    ]
    assert verify_release(release).verdict == "demonstration"


def test_a_model_is_not_reused_under_other_margins_or_factors(tmp_path: Path) -> None:
    run_release(small_config(tmp_path, model=CLASSES, release=DAYS), workers=1)
    again = {
        "id": "again",
        "output": "again",
        **DAYS,
        "network_epsilon_cap": 3e6,
        "network_delta_cap": 0.9999,
    }
    changes: list[tuple[dict[str, Any], str]] = [
        ({"bounds_of_class": {"commercial": [0.05, 2.5]}}, "model.bounds_of_class"),
        ({"bounds_of_class": {}}, "model.bounds_of_class"),
        ({"power_factor_of_class": {"commercial": 0.8}}, "model.power_factor_of_class"),
    ]
    for values, named in changes:
        changed = small_config(tmp_path, model={**CLASSES, "reuse": "small"} | values, release=again)
        with pytest.raises(DpPowerflowError, match=f"other values of [^;]*{named}"):
            plan(changed)


def test_a_power_factor_of_a_load_is_part_of_the_request(tmp_path: Path) -> None:
    asked = [
        plan(small_config(tmp_path, nodes=nodes)).plan.request_sha256
        for nodes in ({}, FACTORS, {"power_factor_of_load": {"671": 0.98}})
    ]
    assert len(set(asked)) == 3


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"bounds_of_class": {"farms": [0.1, 1.0]}}}, "class 'farms' in model.bounds_of_class"),
        ({"model": {"power_factor_of_class": {"farms": 0.9}}}, "'farms' in model.power_factor_of_class"),
        ({"model": {"bounds_of_class": {"commercial": [2.0, 1.0]}}}, "0 < p_min < p_max"),
        ({"model": {"power_factor_of_class": {"commercial": 0.0}}}, "power factor of 0"),
        ({"model": {"power_factor": -1.2}}, "'model.power_factor' is not usable"),
        ({"model": {"bounds_of_class": {"commercial": [1.0]}}}, "'model.bounds_of_class.commercial"),
        ({"nodes": {"power_factor_of_load": {"nowhere": 0.9}}}, "names 'nowhere', a load that the feeder"),
        ({"nodes": {"power_factor_of_load": {"671": "lagging"}}}, "'nodes.power_factor_of_load.671'"),
        ({"loads": {"classes": "classes.csv"}}, "loads.classes is for loads of kind 'opendss-shapes'"),
    ],
)
def test_what_is_declared_wrongly_is_refused_before_anything_is_spent(
    tmp_path: Path, sections: dict[str, Any], says: str
) -> None:
    with pytest.raises(DpPowerflowError, match=says):
        run_release(small_config(tmp_path, **sections), workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()


# ------------------------------------------------------------------------------------------ OpenDSS shapes


def shapes(folder: Path, feeder: str = "ieee13") -> dict[str, Any]:
    """A folder of load shapes for all loads of a feeder; what the config says of them."""
    where = folder / "shapes"
    where.mkdir(parents=True)
    rng = np.random.default_rng(1)
    day = 0.5 + 0.3 * np.sin(np.linspace(0.0, 2 * np.pi, 24, endpoint=False))
    names = [load.name for load in open_feeder(feeder).loads]
    for name in names:
        values = np.concatenate([day * rng.lognormal(0.0, 0.1, 24) for _ in range(6)])
        (where / f"loadshape_{name}.csv").write_text("\n".join(f"{v:.5f}" for v in values))
    rows = [f"{name.upper()},{'big' if k % 2 else 'small'}" for k, name in enumerate(names)]
    (folder / "classes.csv").write_text("load,class\n" + "\n".join(rows) + "\n")
    return {"kind": "opendss-shapes", "path": "shapes", "first_day": "2024-01-01"}


NO_CLASS: dict[str, Any] = {"load_class": None, "scale_factor": 1e-3}  # solves whatever the noise


def test_load_shapes_have_the_public_classes_of_a_file(tmp_path: Path) -> None:
    loads = shapes(tmp_path) | {"classes": "classes.csv"}
    model = {"bounds_of_class": {"big": [0.02, 2.0]}, "unit": "load-point-day", "epsilon": 100.0}
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
    assert verify_release(Path(str(result.path))).verdict == "demonstration"


def test_load_shapes_are_partitioned_privately(tmp_path: Path) -> None:
    model = {
        "private_classes": 2,
        "bounds_of_class": {"class 1": [0.01, 0.8]},
        "power_factor_of_class": {"class 2": -0.99},
        "unit": "load-point-day",
        "epsilon": 100.0,
    }
    loads = shapes(tmp_path)
    config = small_config(tmp_path, loads=loads, nodes=NO_CLASS, model=model, release=DAYS)
    result = run_release(config, workers=1)
    assert result.model.class_names == ("class 1", "class 2")
    assert not result.model.public_labels
    assert [part.bounds for part in result.model.classes] == [(0.01, 0.8), (0.01, 2.0)]
    assert verify_release(Path(str(result.path))).verdict == "demonstration"
    both = {"kind": "opendss-shapes", **loads, "classes": "classes.csv"}
    with pytest.raises(ConfigError, match="remove one of the two"):
        small_config(tmp_path, loads=both, nodes=NO_CLASS, model=model)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "class file .* does not exist; correct loads.classes"),
        ("name,class\na,b\n", "must have the columns load, class"),
        ("load,class\n671,\n", "line 2: every load has one row, with a class"),
        ("load,class\n671,a\n671,b\n", "line 3: every load has one row"),
        ("load,class\n671,a\n", "lacks the load shape"),
        ("all and nowhere,a", "names 'nowhere', a load without a load shape"),
        (b"load,class\n\xff\xfe,a\n", "is not CSV text"),
    ],
)
def test_a_bad_class_file_is_refused_before_anything_is_spent(
    tmp_path: Path, content: str | bytes | None, says: str
) -> None:
    loads = shapes(tmp_path) | {"classes": "classes.csv"}
    file = tmp_path / "classes.csv"
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    elif content.startswith("all"):
        file.write_text(file.read_text() + "nowhere,a\n")
    else:
        file.write_text(content)
    with pytest.raises(DpPowerflowError, match=says):
        run_release(small_config(tmp_path, loads=loads, nodes=NO_CLASS), workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
