"""The config file: every key is known, checked, and explained when wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dp_powerflow.config import Config, parse_config, read_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.report.demo import EXAMPLE

TRUE = {"mode": "true-network", "bound": "full-support", "radius": 1e-12, "epsilon": 100.0, "delta": 0.2}


def example() -> dict[str, Any]:
    """The example, on the true network."""
    return {**tomllib.loads(EXAMPLE), "network": dict(TRUE)}


def test_the_example_is_a_config() -> None:
    config = parse_config(tomllib.loads(EXAMPLE))
    assert config.network.mode == "twin-network"
    assert parse_config(example()).network.mode == "true-network"


def test_the_example_mentions_every_key() -> None:
    for section, field in Config.model_fields.items():
        assert f"[{section}]" in EXAMPLE
        annotation = field.annotation
        models = [annotation, *getattr(annotation, "__args__", ())]
        sections = [m for m in models if isinstance(m, type) and issubclass(m, BaseModel)]
        assert sections
        for key in {key for model in sections for key in model.model_fields}:
            assert f"{key} =" in EXAMPLE or f".{key}]" in EXAMPLE, f"{section}.{key}"


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [("model", "epsilom", "epsilon"), ("network", "raduis", "radius"), ("release", "out", "output")],
)
def test_an_unknown_key_names_the_nearest_one(section: str, key: str, nearest: str) -> None:
    raw = example()
    raw[section][key] = 1
    with pytest.raises(ConfigError, match=f"unknown key '{section}.{key}'; did you mean '{nearest}'"):
        parse_config(raw)


TWIN = {"mode": "twin-network", "epsilon": 4.0, "delta": 1e-5, "id": "t", "change": 0.05}


def test_the_nearest_key_is_one_of_the_mode() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'network\.capacitor'; did you mean 'capacitors'"):
        parse_config({**example(), "network": {**TWIN, "capacitor": True}})


def test_the_sections_of_the_modes_do_not_mix() -> None:
    raw = example()
    with pytest.raises(ConfigError, match=r"unknown key 'network\.released'"):
        parse_config({**raw, "network": {**raw["network"], "released": "all"}})
    with pytest.raises(ConfigError, match=r"unknown key 'network\.require_evidence'"):
        parse_config({**raw, "network": {**TWIN, "require_evidence": False}})
    with pytest.raises(ConfigError, match=r"lacks 'network\.id'"):
        parse_config({**raw, "network": {key: value for key, value in TWIN.items() if key != "id"}})


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"twin": {"id": "t", "change": 0.05}}, r"move its keys into \[network\] of mode 'twin-network'"),
        ({"nodes": {"released": "loaded"}}, "nodes.released is now network.released"),
        ({"network": {**TWIN, "bound": "paper"}}, "network.bound is of mode 'true-network'; remove it"),
        ({"network": {**TWIN, "radius": 1e-9}}, "network.radius is of mode 'true-network'; remove it"),
    ],
)
def test_keys_of_earlier_versions_say_where_they_went(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config({**example(), **sections})
    assert "\n" not in str(caught.value)


def test_the_sun_is_a_file_or_a_latitude() -> None:
    assert parse_config({**example(), "pv": {"latitude": -33.9, "first_day_of_year": 200}}).pv is not None
    for pv, says in (
        ({"latitude": 1.0, "irradiance": "sun.csv"}, "give one of the two"),
        ({"irradiance": "sun.csv", "first_day_of_year": 2}, "first_day_of_year is for a clear sky"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_config({**example(), "pv": pv})


def test_an_unknown_section_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown key 'netwrok'; did you mean 'network'"):
        parse_config({**example(), "netwrok": {}})


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("model", "epsilon", -1, "'model.epsilon' is not usable"),
        ("model", "delta", 2, "'model.delta' is not usable"),
        ("network", "mode", "guess", "'network.mode' is not usable"),
        ("network", "mode", "twin-network", "network.bound is of mode 'true-network'"),
        ("release", "id", "a/b", "'release.id' is not usable"),
        ("loads", "kind", "long", "need a path"),
        ("model", "bounds", [1.0], "'model.bounds"),
        ("nodes", "released", "all", "exact linear function of the others"),
        ("pv", "volt_var", "none", "either a file .irradiance. or a clear sky .latitude."),
        ("pv", "latitude", 91.0, "'pv.latitude' is not usable"),
    ],
)
def test_a_wrong_value_names_its_key(section: str, key: str, value: object, says: str) -> None:
    raw = example()
    raw.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config(raw)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key"), [("network", "mode"), ("network", "bound"), ("model", "epsilon")]
)
def test_mode_bound_and_budget_have_no_silent_default(section: str, key: str) -> None:
    raw = example()
    del raw[section][key]
    with pytest.raises(ConfigError, match=key):
        parse_config(raw)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(EXAMPLE)
    assert read_config(file).release.output == tmp_path / "release"


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
