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
from dp_powerflow.fleet.feeders import FleetFeeder, feeders_of, find_sources
from dp_powerflow.fleet.manifest import is_fleet, open_fleet, release_paths
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.fleet.verify import verify_fleet
from dp_powerflow.manifest.model import DIGEST, FORMAT, Check, ReleaseError, canonical_json, digest_of
from dp_powerflow.manifest.verify import VerifyReport
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support.fleet_small import KEYS, circuit, fleet_config, on_twins, write_feeders
from support.here import Here
from support.tampering import leaves, with_leaf

TWO = [f"feeders/{key}.dss" for key in KEYS[:2]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    write_feeders(folder)
    assert not run_fleet(on_twins(folder, fleet={"feeders": TWO}), engine=Here()).failed
    return folder / "out"


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
    assert set(json.loads(figures.stdout)) == set(open_fleet(made).names)
    # Feeders without a page are looked at.
    for path in (copied / "fleet.html", *copied.glob("feeder=*/quality.html")):
        path.unlink()
    CliRunner().invoke(app, ["quality", str(copied)], catch_exceptions=False)
    assert (tmp_path / "fleet.html").read_bytes() == (made / "fleet.html").read_bytes()


def test_a_fleet_of_another_format_is_refused_in_one_sentence_that_names_its_reader(copied: Path) -> None:
    content = (copied / "fleet.json").read_text().replace(FORMAT, FORMAT.replace("1", "3"))
    (copied / "fleet.json").write_text(content)
    said = next(check.sentence for check in verify_fleet(copied).checks if check.name == "fleet")
    assert "dp-powerflow 0.5.0 is the last version that reads earlier formats" in said
    with pytest.raises(CorpusError, match=r"dp-powerflow 0\.5\.0 is the last"):
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
    with pytest.raises(ReleaseError, match=r"has no fleet\.json"):
        verify_fleet(copied)
    with pytest.raises(CorpusError, match=r"has no fleet\.json"):
        open_fleet(copied)
    with pytest.raises(CorpusError, match="no feeder 'feeder-0009'"):
        open_fleet(made).feeder("feeder-0009")


def feeders(folder: Path, **sections: Any) -> list[FleetFeeder]:
    config = fleet_config(folder, **sections)
    state = PrivateState.open(config.fleet.state, insecure_seed=7)
    return list(feeders_of(config, state, Ledger.open(state)))


def test_a_feeder_is_called_by_its_path_from_the_first_wildcard_on(tmp_path: Path) -> None:
    for name in ("a/x/Master.dss", "a/y/Master.dss", "b/one.dss", "b/net.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    patterns = ["a/*/Master.dss", "b/one.dss", "b/*.json", "ieee13", "simbench:1-LV-rural1--0-sw"]
    config = fleet_config(tmp_path, fleet={"feeders": patterns})
    assert find_sources(config) == {
        "x/Master": str(tmp_path / "a/x/Master.dss"),
        "y/Master": str(tmp_path / "a/y/Master.dss"),
        "one": str(tmp_path / "b/one.dss"),
        "net": str(tmp_path / "b/net.json"),
        "ieee13": "ieee13",
        "simbench:1-LV-rural1--0-sw": "simbench:1-LV-rural1--0-sw",
    }


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"fleet": {"feeders": ["nowhere/*.dss"]}}, "no file matches"),
        ({"fleet": {"feeders": ["feeders/*"]}}, "end in .dss or .json"),
        ({"fleet": {"feeders": ["feeders/*.dss", "more/*.dss"]}}, "two feeders of the fleet are called"),
        ({"fleet": {"names": {"gone": "one"}}}, "fleet.names names the feeder 'gone'"),
        ({"overrides": {"gone": {}}}, "overrides names the feeder 'gone'"),
        ({"overrides": {KEYS[0]: {"network": {"bound": "paper"}}}}, "belong to the fleet"),
        ({"overrides": {KEYS[0]: {"nodes": {"clas": "x"}}}}, "unknown key 'nodes.clas'"),
        ({"fleet": {"names": {KEYS[0]: "same", KEYS[1]: "same"}}}, "the same public name"),
        ({"fleet": {"names": {KEYS[0]: "under_score"}}}, "fleet.names"),
        ({"fleet": {"state": "s3://bucket/state"}}, "name a directory of this machine"),
        ({"fleet": {"models": "per-feeder"}}, "needs loads.services"),
        ({"loads": {"kind": "opendss-shapes", "path": "shapes"}}, "belongs to one feeder"),
    ],
)
def test_a_config_that_is_not_usable_is_refused_with_its_reason(
    tmp_path: Path, sections: dict[str, Any], says: str
) -> None:
    write_feeders(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / f"{KEYS[0]}.dss").write_text(circuit(1.0))
    with pytest.raises(ConfigError) as refused:
        feeders(tmp_path, **sections)
    assert says in str(refused.value)


def test_overrides_taps_and_declared_names_reach_the_release_of_their_feeder(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    (tmp_path / "taps").mkdir()
    (tmp_path / "taps" / f"{KEYS[1]}.csv").write_text("")
    found = {
        feeder.key: feeder
        for feeder in feeders(
            tmp_path,
            fleet={"names": {KEYS[2]: "rural-1"}},
            feeder={"taps": "taps"},
            overrides={KEYS[0]: {"nodes": {"scale_factor": 2.5}, "feeder": {"taps": "own.csv"}}},
        )
    }
    assert found[KEYS[0]].config.nodes.scale_factor == 2.5
    assert found[KEYS[0]].config.feeder.taps == tmp_path / "own.csv"
    assert found[KEYS[1]].config.feeder.taps == tmp_path / "taps" / f"{KEYS[1]}.csv"
    assert found[KEYS[3]].config.feeder.taps is None
    assert found[KEYS[3]].config.nodes.scale_factor == 0.05
    assert found[KEYS[2]].release_id == "north_rural-1"
    assert found[KEYS[2]].config.model.reuse == "north"


def test_a_feeder_has_its_own_sun_instead_of_that_of_the_fleet(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    own = {"pv": {"latitude": -33.9, "first_day_of_year": 100}}
    shared = {"irradiance": "sun.csv", "volt_var": "category B"}
    found = {each.key: each.config.pv for each in feeders(tmp_path, pv=shared, overrides={KEYS[0]: own})}
    mine, others = found[KEYS[0]], found[KEYS[1]]
    assert mine is not None
    assert (mine.irradiance, mine.latitude, mine.volt_var) == (None, -33.9, "category B")
    assert others is not None
    assert (others.irradiance, others.latitude) == (tmp_path / "sun.csv", None)


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


def test_a_folder_whose_name_would_be_taken_for_a_glob_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a wildcard in its name"):
        fleet_config(tmp_path / "fleet[1]")
