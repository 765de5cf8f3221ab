"""The config file: every key is known, checked, and explained when wrong."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dp_powerflow.config import FEWEST_DAYS, LONGEST_STEP_MINUTES, Config, parse_config, read_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.model.history import estimate as plan
from dp_powerflow.setup import example as example_text

EXAMPLE = example_text()
TRUE_EXAMPLE = example_text("true-network")


def example() -> dict[str, Any]:
    """The example, on the true network."""
    return tomllib.loads(TRUE_EXAMPLE)


def twin_example() -> dict[str, Any]:
    """The example, on a twin."""
    return tomllib.loads(EXAMPLE)


def test_the_example_mentions_every_key() -> None:
    for text, section, field in (
        (text, section, field)
        for text in (EXAMPLE, TRUE_EXAMPLE)
        for section, field in Config.model_fields.items()
    ):
        assert f"[{section}]" in text
        annotation = field.annotation
        models = [annotation, *getattr(annotation, "__args__", ())]
        sections = [m for m in models if isinstance(m, type) and issubclass(m, BaseModel)]
        assert sections
        for key in {key for model in sections for key in model.model_fields}:
            assert f"{key} =" in text or f".{key}]" in text, f"{section}.{key}"


TWIN = {"mode": "twin-network", "epsilon": 4.0, "delta": 1e-5, "id": "t", "change": 0.05}


HISTORY = {"loads": {"days": 14, "step_minutes": 180}, "model": {"estimator": "history"}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # ---- keys, sections and values
    (
        "twin",
        {"network": {"capacitor": True}},
        r"unknown key 'network\.capacitor'; did you mean 'capacitors'",
    ),
    ("true", {"network": {"released": "all"}}, "network.released belongs to mode 'twin-network'; remove it"),
    ("twin", {"network": {"id": None}}, r"lacks 'network\.id'"),
    ("twin", {"network": {"bound": "paper"}}, "network.bound belongs to mode 'true-network'; remove it"),
    ("twin", {"network": {"noise": "gaussian", "delta": 0.0}}, "delta"),
    ("twin", {"network": {"change": -0.1}}, "'network.*change' is not usable"),
    ("true", {"model": {"epsilon": -1}}, "greater than 0"),
    ("true", {"model": {"delta": 2}}, "less than 1"),
    ("true", {"model": {"power_factor": 0.0}}, "no active load to speak of"),
    ("true", {"model": {"variance_floor": 1e3}}, "less than or equal to 100"),
    ("true", {"model": {"private_classes": 10**20}}, "less than or equal to 1000"),
    ("true", {"release": {"days": 0}}, "greater than or equal to 1"),
    ("true", {"release": {"days": 1.5}}, "valid integer"),
    ("true", {"loads": {"time_zone": "Berlin"}}, "use a name such as 'Europe/Berlin'"),
    ("true", {"loads": {"step_minutes": 7}}, "do not divide a day"),
    ("true", {"loads": {"first_day": dt.date(2024, 5, 2), "last_day": dt.date(2024, 5, 1)}}, "swap them"),
    ("true", {"nodes": {"kw_per_customer": 2.0}}, "belongs to mode 'twin-network'"),
    ("twin", {"network": {"publish": "network"}}, 'set network.controls = "frozen"'),
    ("twin", {"release": {"state": "release/state"}}, "its state must not be its output"),
    ("true", {"release": {"unrelated_loads": "another town"}}, "names the accounts"),
    ("true", {"network": {"mode": "guess"}}, "'network.mode' is not usable"),
    # ---- no silent default of mode, bound and budget
    ("true", {"network": {"mode": None}}, r"network\.mode"),
    ("true", {"network": {"bound": None}}, r"network\.true-network\.bound|network\.bound"),
    ("true", {"model": {"epsilon": None}}, r"model\.epsilon"),
    # ---- sun, calendar and weather
    ("true", {"pv": {"latitude": 1.0, "irradiance": "sun.csv"}}, "give one of the two"),
    (
        *("true", {"pv": {"irradiance": "sun.csv", "first_day_of_year": 2}}),
        "first_day_of_year is for a clear sky",
    ),
    ("true", {"pv": {"volt_var": "none"}}, "either a file .irradiance. or a clear sky .latitude."),
    ("true", {"pv": {"latitude": 91.0}}, "'pv.latitude' is not usable"),
    ("twin", {"release": {"first_day": "July"}}, r"'release\.first_day' is not usable"),
    ("twin", {"calendar": {"holidays": ["25.12.2024"]}}, "'25.12.2024' is not a date; write dates such as"),
    ("twin", {"calendar": {"holidays": [20241225]}}, "'20241225' is not a date"),
    ("twin", {"calendar": {"holidays": 5}}, "give a list of dates"),
    ("twin", {"calendar": {"holiday": []}}, r"unknown key 'calendar\.holiday'; did you mean 'holidays'"),
    ("twin", {"weather": {}}, r"lacks 'weather\.path'"),
    ("twin", {"weather": {"path": "w.csv", "temp": "t"}}, r"unknown key 'weather\.temp'"),
    ("twin", {"weather": {"path": "w.csv", "time_zone": "Berlin"}}, "not in the IANA database"),
    ("twin", {"weather": "w.csv"}, r"write \[weather\]"),
    # ---- days of the true network have no dates
    ("true", {"calendar": {"holidays": []}}, r"\[calendar\] belongs to mode 'twin-network'; .* independent"),
    ("true", {"weather": {"path": "w.csv"}}, r"\[weather\] belongs to mode 'twin-network'; .* independent"),
    (
        *("true", {"release": {"first_day": dt.date(2024, 1, 1)}}),
        r"release\.first_day belongs to mode 'twin-network'; .* independent draws",
    ),
    # ---- what no history can be fitted to
    (
        *("true", {"model": {"estimator": "history"}}),
        "the evidence of mode 'true-network' is about independent nodes and days",
    ),
    ("history", {"model": {"unit": "load-point-day"}}, "set model.unit to 'load-point'"),
    ("history", {"loads": {"days": 13}}, "needs 14 days of meters or more, but there are 13"),
    ("history", {"loads": {"step_minutes": 240}}, "needs steps of 180 minutes or less"),
]


def raw_of(kind: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """An example with some keys replaced; None removes one."""
    raw = example() if kind == "true" else {**twin_example(), "network": dict(TWIN)}
    for sections in (HISTORY if kind == "history" else {}, *changes):
        for section, values in sections.items():
            if isinstance(values, dict):
                values = {**raw.get(section, {}), **values}
                values = {key: value for key, value in values.items() if value is not None}
            raw[section] = values
    return raw


@pytest.mark.parametrize(("kind", "sections", "says"), REFUSED)
def test_a_wrong_config_is_refused_in_one_sentence(kind: str, sections: dict[str, Any], says: str) -> None:
    parse_config(raw_of(kind))
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config(raw_of(kind, sections))
    assert "\n" not in str(caught.value)
    if kind == "history":
        parse_config(raw_of(kind, sections, {"model": {"estimator": "structured"}}))


def test_days_have_a_first_day_that_is_not_taken_from_the_meters() -> None:
    raw = twin_example()
    raw["loads"] |= {"first_day": dt.date(2019, 5, 1)}
    assert parse_config(raw).first_day == dt.date(2023, 1, 1)
    raw["release"]["first_day"] = dt.date(2024, 7, 1)
    config = parse_config(raw)
    assert (config.first_day, config.first_day_of_sun) == (dt.date(2024, 7, 1), 183)
    assert parse_config(example()).first_day is None
    assert parse_config(example()).first_day_of_sun == 1


def test_sun_and_calendar_have_one_first_day() -> None:
    raw = {**twin_example(), "pv": {"latitude": 40.0, "first_day_of_year": 80}}
    assert parse_config(raw).first_day == dt.date(2023, 3, 21)
    assert parse_config(raw).first_day_of_sun == 80
    raw["release"] = {**raw["release"], "first_day": dt.date(2024, 3, 20)}
    assert parse_config(raw).first_day == dt.date(2024, 3, 20)  # day 80 of a leap year
    raw["release"] = {**raw["release"], "first_day": dt.date(2024, 3, 21)}
    with pytest.raises(ConfigError, match=r"is day 81 of its year, .* remove pv\.first_day_of_year"):
        parse_config(raw)


def test_holidays_are_dates_or_a_file(tmp_path: Path) -> None:
    raw = twin_example()
    christmas = (dt.date(2024, 12, 25), dt.date(2024, 12, 26))
    for written in ([*christmas[::-1]], ["2024-12-26", "2024-12-25", "2024-12-25"]):
        assert parse_config({**raw, "calendar": {"holidays": written}}).calendar.holidays == christmas
    by_file = parse_config({**raw, "calendar": {"holidays": "days.txt"}}, base=tmp_path)
    assert by_file.calendar.holidays == tmp_path / "days.txt"
    with pytest.raises(ConfigError, match=r"'calendar\.holidays' is .*, which does not exist"):
        parse_config({**raw, "calendar": {"holidays": "days.txt"}}, tmp_path, files_must_exist=True)


def test_the_config_and_the_estimator_agree_on_what_a_history_needs() -> None:
    assert FEWEST_DAYS == plan.FEWEST_DAYS
    assert LONGEST_STEP_MINUTES * plan.FEWEST_STEPS == 24 * 60


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(EXAMPLE)
    assert read_config(file).release.output == tmp_path / "release"


def mistakes(raw: dict[str, Any]) -> list[str]:
    """The sentences of a refused config; the first line says how many there are."""
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    first, *lines = str(caught.value).split("\n")
    if not lines:
        return [first]
    assert first == f"the config has {len(lines)} mistakes:"
    assert [line.split(". ")[0].strip() for line in lines] == [str(k + 1) for k in range(len(lines))]
    return [line.split(". ", 1)[1] for line in lines]


def test_all_independent_mistakes_are_reported_at_once() -> None:
    raw = twin_example()
    raw["feeder"] = {"sorce": "ieee13"}
    raw["loads"] |= {"kind": "long", "unit": "kWh", "classes": "c.csv", "homes_per_point": 3}
    raw["model"] |= {"epsilon": -1, "bounds": [2.0, 1.0]}
    raw["nodes"]["scale_factor"] = 2.0
    raw["network"] |= {"publish": "network", "radius": 1.0}
    raw["release"] |= {"id": "2026.1", "state": "release/state"}
    del raw["release"]["days"]
    found = mistakes(raw)
    for said in (
        "unknown key 'feeder.sorce'; did you mean 'source'",
        "'loads.unit' is not usable",
        "loads of kind 'long' need a path",
        "loads.classes is for loads of kind 'opendss-shapes'",
        "loads.homes_per_point is about homes",
        "'model.epsilon' is not usable",
        "0 < p_min < p_max",
        "nodes.scale_factor belongs to mode 'true-network'",
        "tables for graph models hold one admittance matrix",
        "network.radius belongs to mode 'true-network'",
        "'release.id' is not usable",
        "lacks 'release.days'",
        "its state must not be its output",
    ):
        assert sum(said in sentence for sentence in found) == 1, said
    assert len(found) == 13


def test_a_misspelt_key_is_not_also_missing_and_is_read_under_its_right_name() -> None:
    raw = twin_example()
    raw["netwrok"] = {("mdoe" if key == "mode" else key): value for key, value in raw.pop("network").items()}
    raw["netwrok"]["epsilom"] = raw["netwrok"].pop("epsilon")
    raw["netwrok"]["change"] = -1
    assert [sentence.split(":")[0] for sentence in mistakes(raw)] == [
        "the config has an unknown key 'netwrok'; did you mean 'network'?",
        "the config has an unknown key 'network.mdoe'; did you mean 'mode'?",
        "the config has an unknown key 'network.epsilom'; did you mean 'epsilon'?",
        "the config's 'network.change' is not usable",
    ]


def test_a_rule_that_reads_an_unusable_key_says_nothing() -> None:
    """Whether 'classes' may be there depends on the kind, and the kind is not known."""
    raw = twin_example()
    raw["loads"] |= {"kind": "lnog", "classes": "c.csv"}
    (found,) = mistakes(raw)
    assert "'loads.kind' is not usable" in found


def test_a_file_that_does_not_exist_is_one_of_the_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    text = EXAMPLE.replace('source = "ieee123"', 'source = "gone.dss"').replace(
        "epsilon = 1.0  ", "epsilon = 0"
    )
    file.write_text(text)
    with pytest.raises(
        ConfigError, match=r"(?s)3 mistakes.*'feeder.source' is .*gone.dss, which does not exist"
    ):
        read_config(file)


def test_an_id_with_a_dot_is_refused_with_one_that_would_do() -> None:
    others = {"2026.1": "2026-1", "v1.0.2": "v1-0-2", "März 2026": "Marz-2026", "_a": "a", "x" * 70: "x" * 64}
    for written, suggested in others.items():
        raw = twin_example()
        raw["release"]["id"] = written
        (found,) = mistakes(raw)
        assert "letters, digits, '-' or '_'" in found
        assert found.endswith(f"'{suggested}' would do")
        raw["release"]["id"] = suggested
        parse_config(raw)


def test_an_id_without_quotes_is_told_to_have_some() -> None:
    raw = twin_example()
    raw["release"]["id"] = 2026.1
    assert mistakes(raw) == ["the config's 'release.id' is not usable: it is text; write it in quotes"]


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("model", "epsilon", 1e308, "between 0.001 and"),
        ("model", "epsilon", 1e-320, "between 0.001 and"),
        ("model", "delta", 5e-324, "between 1e-30 and"),
        ("network", "epsilon", 1e308, "between 1e-30 and"),
        ("network", "radius", 1e-320, "between 1e-30 and"),
        ("network", "calibration_days", 10**30, "less than or equal to"),
        ("nodes", "scale_factor", 1e308, "between 1e-30 and"),
        ("feeder", "base_mva", 1e-320, "between 1e-30 and"),
        ("loads", "seed", -1, "greater than or equal to 0"),
        ("loads", "load_points", 10**20, "less than or equal to"),
        ("loads", "first_day", dt.date.min, "years 1900 and 2199"),
        ("loads", "last_day", dt.date.max, "years 1900 and 2199"),
        ("loads", "first_day", dt.date(1899, 12, 31), "years 1900 and 2199"),
        ("publication", "date", dt.date(2200, 1, 1), "years 1900 and 2199"),
        *(
            (*place.split("."), "a\0b", "control character")
            for place in [
                *("feeder.source", "feeder.taps", "feeder.loads", "loads.path", "loads.services"),
                *("loads.classes", "loads.time_column", "release.state", "release.output"),
                "calendar.holidays",
            ]
        ),
        ("release", "output", "s3://bucket/a\0b", "control character"),
        ("release", "state", "a\udcff", "set LC_ALL=C.UTF-8"),
        ("release", "continues_loads", "loads\x07", "control character"),
        ("nodes", "class_of_load", {"a\0": "home"}, "control character"),
        ("publication", "publisher", "\udc80", "unicode string"),
    ],
)
def test_no_key_has_a_figure_a_day_or_a_text_that_nothing_can_be_done_with(
    section: str, key: str, value: Any, says: str
) -> None:
    raw = example()
    raw[section] = {**raw.get(section, {}), key: value}
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        parse_config(raw)
    assert f"'{section}.{key}" in str(caught.value)
