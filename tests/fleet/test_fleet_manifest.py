"""fleet.json: what verify finds when somebody changes it or the feeders, and which feeders a config names."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError, CorpusError
from dp_powerflow.fleet import verify as fleet_verify
from dp_powerflow.fleet.manifest import is_fleet, open_fleet, release_paths
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.manifest.model import DIGEST, FORMAT, Check, ReleaseError, canonical_json, digest_of
from dp_powerflow.manifest.verify import VerifyReport
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, on_twins, write_feeders
from support.here import Here
from support.made import ReleasedFleet
from support.tampering import leaves, with_leaf

TWO = [f"feeders/{key}.dss" for key in KEYS[:2]]


@pytest.fixture
def made(fleet_release: ReleasedFleet) -> Path:
    return fleet_release.path


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def failed(path: Path) -> set[str]:
    return {check.name for check in verify_fleet(path).failures} - {"random source"}


def seal(path: Path, manifest: dict[str, Any]) -> None:
    """Write a changed fleet.json with a digest that fits."""
    manifest = manifest | {DIGEST: digest_of(manifest)}
    (path / "fleet.json").write_bytes(canonical_json(manifest))


@pytest.fixture
def feeders_are_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The releases are looked at in other tests; here only what is said of the whole."""
    good = VerifyReport("r", "0", (Check("files", True, "All good."),), ())
    monkeypatch.setattr(fleet_verify, "verify_release", lambda _: good)


def test_the_feeders_of_a_fleet_have_connections_of_their_own(copied: Path) -> None:
    assert failed(copied) == set()
    places = sorted(copied.glob("feeder=*"))
    for place in places:
        found = open_corpus(place).connections
        assert found is not None
        assert (found.n_buses, found.kinds) == (3, ("line", "line"))
    shutil.copy(places[0] / "connections.parquet", places[1])
    assert failed(copied)


@pytest.mark.usefixtures("feeders_are_intact")
def test_every_entry_of_the_fleet_manifest_is_checked(copied: Path) -> None:
    manifest = json.loads((copied / "fleet.json").read_text())
    assert failed(copied) == set()
    paths = [path for path in leaves(manifest) if path[0] != DIGEST]
    assert len(paths) > 50
    for path in paths:
        seal(copied, with_leaf(manifest, path))
        assert failed(copied), path


@pytest.mark.usefixtures("feeders_are_intact")
@pytest.mark.parametrize("value", [None, 0, -1.0, "x", [], {}, True])
def test_values_of_any_kind_in_the_fleet_manifest_raise_nothing(copied: Path, value: Any) -> None:
    manifest = json.loads((copied / "fleet.json").read_text())
    for name in manifest.keys() - {DIGEST}:
        seal(copied, manifest | {name: value})
        assert failed(copied)
    (copied / "fleet.json").write_text("{" * 3)
    assert failed(copied) == {"fleet"}


def swap(out: Path) -> None:
    one, two = sorted(out.glob("feeder=*"))
    one.rename(out / "between")
    two.rename(one)
    (out / "between").rename(two)


def flip_a_byte_of_the_data(out: Path) -> None:
    path = next(iter(sorted(out.glob("feeder=*/data/*.parquet"))))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def take_the_model_of_another_fit(out: Path) -> None:
    path = next(iter(sorted(out.glob("feeder=*/manifest.json"))))
    manifest = json.loads(path.read_text())
    manifest["files"]["model.json"] = "0" * 64
    path.write_text(json.dumps(manifest))


def praise_the_fleet(out: Path) -> None:
    """Another page, with a hash that fits."""
    (out / "fleet.html").write_bytes(
        (out / "fleet.html").read_bytes().replace(b"feeders", b"perfect feeders")
    )
    manifest = json.loads((out / "fleet.json").read_text())
    manifest["page_sha256"] = hashlib.sha256((out / "fleet.html").read_bytes()).hexdigest()
    seal(out, manifest)


def test_tables_for_graph_models_are_taken_from_every_feeder(made: Path) -> None:
    assert release_paths(made) == sorted(made.glob("feeder=*"))
    assert release_paths(made / "feeder=feeder-0001") == [made / "feeder=feeder-0001"]


def test_the_page_of_a_fleet_links_to_the_pages_of_its_feeders(made: Path) -> None:
    page = (made / "fleet.html").read_text(encoding="utf-8")
    for path in sorted(made.glob("feeder=*")):
        assert f'href="{path.name}/quality.html"' in page
        assert (path / "quality.html").is_file()
    assert page.count("<tr><td>") == 2


def test_the_command_finds_the_page_of_a_fleet_and_makes_it_again(
    made: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["quality", str(made)], catch_exceptions=False)
    assert f"the page of the fleet: {made / 'fleet.html'}" in told.stderr.replace("\n", "")
    figures = CliRunner().invoke(app, ["quality", str(made), "--json"], catch_exceptions=False)
    assert [item["name"] for item in json.loads(figures.stdout)] == list(open_fleet(made).names)
    (copied / "fleet.html").unlink()
    CliRunner().invoke(app, ["quality", str(copied)], catch_exceptions=False)
    assert (tmp_path / "fleet.html").read_bytes() == (made / "fleet.html").read_bytes()


def test_a_fleet_of_another_format_is_refused_in_one_sentence_that_names_its_reader(copied: Path) -> None:
    content = (copied / "fleet.json").read_text().replace(FORMAT, FORMAT.replace("1", "3"))
    (copied / "fleet.json").write_text(content)
    said = next(check.sentence for check in verify_fleet(copied).checks if check.name == "fleet")
    assert "dp-powerflow 0.5.0 is the last version that reads earlier formats" in said
    with pytest.raises(ReleaseError, match=r"dp-powerflow 0\.5\.0 is the last"):
        open_fleet(copied)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda out: shutil.rmtree(sorted(out.glob("feeder=*"))[0]), "feeders"),
        (lambda out: (out / "notes.txt").write_text(""), "feeders"),
        (lambda out: shutil.copytree(sorted(out.glob("feeder=*"))[0], out / "feeder=feeder-0009"), "feeders"),
        (swap, "statement"),
        (flip_a_byte_of_the_data, "feeder=feeder-0001"),
        (take_the_model_of_another_fit, "statement"),
        (lambda out: (out / "fleet.json").write_text((out / "fleet.json").read_text() + " "), "fleet"),
        (lambda out: (out / "fleet.html").unlink(), "page"),
        (praise_the_fleet, "page"),
    ],
    ids=["missing", "stray", "added", "swapped", "data", "another model", "form", "no page", "page"],
)
def test_verify_finds_what_was_done_to_a_fleet(
    copied: Path, change: Callable[[Path], object], found: str
) -> None:
    change(copied)
    assert found in failed(copied)
    assert verify_fleet(copied).verdict == "not intact"


def test_what_is_not_there_is_named_to_the_reader(made: Path, copied: Path) -> None:
    (copied / "fleet.json").unlink()
    assert is_fleet(copied)
    with pytest.raises(CorpusError, match=r"has no fleet\.json"):
        verify_fleet(copied)
    with pytest.raises(CorpusError, match=r"has no fleet\.json"):
        open_fleet(copied)
    with pytest.raises(CorpusError, match="no feeder 'feeder-0009'"):
        open_fleet(made).feeder("feeder-0009")


def test_all_feeders_have_the_days_and_the_weather_of_the_fleet(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    start = dt.date(2022, 12, 31)  # the simulated meters begin the day after
    rows = [f"{start + dt.timedelta(days=k)},{k % 20}\n" for k in range(60)]
    given: dict[str, dict[str, Any]] = {
        "fleet": {"feeders": TWO, "first_day": dt.date(2023, 2, 1)},
        "calendar": {"holidays": [dt.date(2023, 2, 2)]},
        "weather": {"path": "weather.csv"},
    }
    (tmp_path / "weather.csv").write_text("".join(["time,temperature\n", *rows[3:]]))
    with pytest.raises(ConfigError, match="lacks 2023-01-01, one of the days of the meters"):
        run_fleet(on_twins(tmp_path, **given), engine=Here())
    assert not Ledger.open(PrivateState.open(tmp_path / "state", insecure_seed=7)).spends()
    (tmp_path / "weather.csv").write_text("".join(["time,temperature\n", *rows]))
    assert not run_fleet(on_twins(tmp_path, **given), engine=Here()).failed
    assert verify_fleet(tmp_path / "out").intact
    fleet = open_fleet(tmp_path / "out")
    for name in ("feeder-0001", "feeder-0002"):
        corpus = fleet.feeder(name)
        assert corpus.dates is not None
        assert [str(day) for day in corpus.dates] == ["2023-02-01", "2023-02-02", "2023-02-03"]
        assert corpus.calendar is not None
        assert corpus.calendar.off.tolist() == [False, True, False]
        assert corpus.weather is not None
        assert corpus.weather.values[:, 0].tolist() == [12.0, 13.0, 14.0]
