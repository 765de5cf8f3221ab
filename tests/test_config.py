"""The config file: every key is known, checked, and explained when wrong."""

from __future__ import annotations

import datetime as dt
import json
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
REFUSED: dict[str, Any] = json.loads(Path(__file__).with_name("refused_configs.json").read_text())
"""`tables`: an example, what differs in it, what is said of it; `values`: what no key can have."""
AT_ONCE = REFUSED["at once"]


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


@pytest.mark.parametrize(("kind", "sections", "says"), REFUSED["tables"])
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
    found = mistakes(raw_of("twin", AT_ONCE["sections"]))
    for said in AT_ONCE["said"]:
        assert sum(said in sentence for sentence in found) == 1, said
    assert len(found) == len(AT_ONCE["said"])


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


@pytest.mark.parametrize(("section", "key", "value", "says"), REFUSED["values"])
def test_no_key_has_a_figure_a_day_or_a_text_that_nothing_can_be_done_with(
    section: str, key: str, value: Any, says: str
) -> None:
    raw = example()
    raw[section] = {**raw.get(section, {}), key: value}
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        parse_config(raw)
    assert f"'{section}.{key}" in str(caught.value)
