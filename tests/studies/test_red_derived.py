"""Attacks on derived releases that once worked: names and order of the file, changed configs, settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dp_powerflow as dpf
from dp_powerflow import BatchSolver, Config, Feeder, StreamKey
from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import ConfigError
from dp_powerflow.lowlevel import Study
from dp_powerflow.manifest.model import DIGEST, ReleaseError, canonical_json, digest_of
from dp_powerflow.pipeline.deriving.derived import card_bytes, open_files, parse
from dp_powerflow.pipeline.modes.twin import released_connections
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.studies.dispatch import OptimalDispatch
from dp_powerflow.studies.dispatch.network import AcStates, BusTree, LinDistFlow
from dp_powerflow.studies.hosting import HostingCapacity
from dp_powerflow.studies.reliability import Reliability
from dp_powerflow.studies.study import Kind
from support.small import small_config
from support.studies import random_days, study_of

CASES = json.loads(Path(__file__).with_name("settings.json").read_bytes())
TWIN: dict[str, Any] = {
    "mode": "twin-network",
    "id": "t1",
    "epsilon": 1.0,
    "change": 0.05,
    "controls": "frozen",
    "publish": "network and loads",
    "graph_days": 2,
    "released": "all",
}
BARE = TWIN | {"also_publish": [], "publish": "voltages"}
BARE.pop("graph_days")
WIDE = {"v_min_pu": 0.85, "v_max_pu": 1.15, "days": 1, "every": 8}


def config_of(folder: Path, network: dict[str, Any], days: int = 2) -> Config:
    return small_config(folder, network=network, release={"days": days})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that publishes all of its twin."""
    folder = tmp_path_factory.mktemp("published")
    run_release(config_of(folder, TWIN), workers=1)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of voltages alone: no connections, no coordinates."""
    folder = tmp_path_factory.mktemp("bare")
    run_release(config_of(folder, BARE), workers=1)
    return folder


# --- what the release does not publish ----------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "days"), CASES["published more"])
def test_a_config_that_publishes_more_than_the_release_did_is_refused(
    bare: Path, tmp_path: Path, changed: dict[str, Any], days: int
) -> None:
    """Coordinates that are declared public afterwards would be in a folder whose guarantee denies them."""
    with pytest.raises(ReleaseError, match="restore"):
        dpf.derive("reliability", config_of(bare, BARE | changed, days), tmp_path / "a", workers=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("which", ["loads", "network"])
def test_a_guarantee_that_was_made_smaller_is_not_copied(
    bare: Path, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may write to the folder of the release, not to the private state."""
    place = bare / "out" / "manifest.json"
    content = place.read_bytes()
    raw = json.loads(content)
    raw["guarantee"][which]["epsilon"] /= 100.0
    try:
        place.write_bytes(canonical_json(raw))
        with pytest.raises(ReleaseError, match="was changed"):
            dpf.derive("reliability", config_of(bare, BARE), tmp_path / "a", workers=1)
        place.write_bytes(canonical_json(raw | {DIGEST: digest_of(raw)}))
        with pytest.raises(ReleaseError, match="restore both"):
            dpf.derive("reliability", config_of(bare, BARE), tmp_path / "a", workers=1)
    finally:
        place.write_bytes(content)


@pytest.mark.parametrize(("kind", "settings"), CASES["names of the file"])
def test_settings_which_are_published_name_nothing_of_the_file(
    bare: Path, published: Path, tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    for folder, network in ((bare, BARE), (published, TWIN)):
        with pytest.raises(ConfigError, match=r"buses\.parquet"):
            dpf.derive(kind, config_of(folder, network), tmp_path / "a", settings=settings, workers=1)


def test_public_names_place_units_and_limits(published: Path, tmp_path: Path) -> None:
    config = config_of(published, TWIN)
    known = open_corpus(published / "out").connections
    assert known is not None
    ends = known.pairs[known.kinds.index("line")].tolist()
    first = {"from_bus": known.bus_ids[ends[0]], "to_bus": known.bus_ids[ends[1]]}
    pair = f"{first['from_bus']}-{first['to_bus']}"
    units = [{"bus": first["to_bus"], "kw": 10.0}]
    found = dpf.derive(
        "opf",
        config,
        tmp_path / "b",
        settings=WIDE | {"units": units, "ampacities_a": {pair: 5e3}},
        workers=1,
    )
    limited = [row for row in found.table("branches").to_pylist() if row["ampacity_a"] is not None]
    assert {row["ampacity_a"] for row in limited} == {5e3}
    assert {row["from_bus"] for row in limited} | {row["to_bus"] for row in limited} == set(first.values())
    assert len(found.table("units").to_pylist()[0]["nodes"]) >= 1
    rows = found.table("branches").to_pylist()
    keys = [(*sorted((row["from_bus"], row["to_bus"])), row["phase"]) for row in rows]
    assert keys == sorted(keys), "branches follow the public names, not the file"
    assert len(keys) > 20
    dpf.derive("hosting-capacity", config, tmp_path / "c", settings={"ampacities_a": {pair: 5e3}}, workers=1)


# --- nothing of the order of the file -----------------------------------------------------------------------


def turned_round(study: Study) -> Study:
    """The same study of a file that lists its lines and loads the other way round."""
    feeder = study.feeder
    source: Any = study.source
    return replace(
        study,
        feeder=replace(feeder, lines=feeder.lines[::-1], loads=feeder.loads[::-1]),
        source=replace(source, load_kw=source.load_kw[::-1], load_kvar=source.load_kvar[::-1]),
        customers=None if study.customers is None else study.customers[::-1],
    )


@pytest.mark.parametrize(
    "kind",
    [
        Reliability(years=300),
        OptimalDispatch(unit_share=0.5, v_min_pu=0.85, v_max_pu=1.15, every=6, corrections=0),
        HostingCapacity(grid_kw=10.0),
    ],
    ids=lambda kind: kind.name,
)
def test_the_order_of_the_feeders_file_leaves_no_trace(kind: Kind) -> None:
    feeder = dpf.open_feeder("ieee13")
    study = study_of(feeder, random_days(feeder, 1, 12, 0.4))
    order = np.random.default_rng(3).permutation(len(study.released))  # as the secret order of a release
    key = StreamKey.from_insecure_seed(3)
    released = study.released[order]
    study = replace(study, released=released, connections=released_connections(feeder, released, key))

    def make(feeder: Feeder) -> Any:
        def solver(threads: int | None) -> Any:
            found: Any = study.make_solver(threads)
            return found.on(feeder)

        return solver

    other = turned_round(study)
    other = replace(other, make_solver=make(other.feeder))
    one, two = kind.find(study, workers=1), kind.find(other, workers=1)
    assert list(one.tables) == list(two.tables)
    for name in (
        "elements.parquet",
        "branches.parquet",
        "units.parquet",
        "distribution.parquet",
        "hosting.parquet",
    ):
        if name in one.tables:
            assert one.tables[name].equals(two.tables[name]), name


# --- cards ------------------------------------------------------------------------------


def test_a_sentence_makes_no_heading_and_no_script_of_its_own(published: Path, tmp_path: Path) -> None:
    dpf.derive("opf", published / "out", tmp_path / "a", settings=WIDE, workers=1)
    opened = open_files(tmp_path / "a")
    assert opened.source is not None
    words = "Fine.\n\n## Epsilon is 0\n\n<script>alert(1)</script>"
    forged = opened.raw | {"figures": opened.raw["figures"] | {"fine": words}}
    card = card_bytes(parse(forged), opened.source).decode()
    assert "\n## Epsilon" not in card
    assert "<script>" not in card


# --- figures ----------------------------------------------------------------------------------------------


def test_import_through_a_transformer_that_turns_phases_is_that_of_y(tmp_path: Path) -> None:
    """A balanced net of pandapower with a vector group: its admittances are not symmetric."""
    pandapower = pytest.importorskip("pandapower")
    net = pandapower.create_empty_network()
    buses = [pandapower.create_bus(net, vn_kv=kv) for kv in (20.0, 0.4, 0.4)]
    pandapower.create_ext_grid(net, buses[0], vm_pu=1.0)
    pandapower.create_transformer(net, buses[0], buses[1], std_type="0.4 MVA 20/0.4 kV")
    pandapower.create_line(net, buses[1], buses[2], length_km=0.2, std_type="NAYY 4x150 SE")
    pandapower.create_load(net, buses[2], p_mw=0.05, q_mvar=0.01)
    pandapower.to_json(net, str(tmp_path / "net.json"))
    feeder = dpf.open_feeder(tmp_path / "net.json")
    assert abs(feeder.y - feeder.y.T).max() > 1e-3
    solver = BatchSolver(feeder, tolerance=1e-12)
    load = -feeder.nominal_injection[feeder.retained][None]
    v = np.empty((1, len(feeder.nodes)), dtype=np.complex128)
    v[:, feeder.energised], v[:, feeder.slack] = solver.solve(load, None, nodes="all").v, feeder.v_slack
    network = LinDistFlow(BusTree.of(feeder))
    none = np.zeros((1, 0))
    found = network.imported(network.flows(AcStates(v, none, none, np.ones(1, dtype=np.bool_))))
    at_sources = (v[0] * np.conj(feeder.y @ v[0]))[feeder.slack].sum()
    np.testing.assert_allclose(found, [at_sources], rtol=1e-9)


def test_an_hour_of_free_import_has_no_relative_error() -> None:
    feeder = dpf.open_feeder("ieee13")
    study = study_of(feeder, random_days(feeder, 1, 4, 0.4))
    kind = OptimalDispatch(price_per_kwh=(0.0,), unit_cost_per_kwh=0.0, unit_cost_per_kw2h=0.0, **LIMITS)
    figures = kind.find(study, workers=1).figures
    json.dumps(figures, allow_nan=False)
    assert figures["mean_cost_per_h"] == 0.0


LIMITS: dict[str, Any] = {"v_min_pu": 0.85, "v_max_pu": 1.15, "corrections": 0}


@pytest.mark.parametrize("settings", CASES["beyond reason"])
def test_settings_beyond_all_reason_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"less than or equal|one phase"):
        OptimalDispatch.model_validate_json(json.dumps(settings))


def test_cables_that_no_code_tells_are_refused() -> None:
    """On a twin whose R and X are protected every cable was taken for an overhead line, in silence."""
    feeder = dpf.open_feeder("ieee13")
    coded = study_of(feeder, random_days(feeder, 1, 2, 0.4))
    kind = Reliability(underground_codes=("mtx606",), years=100)
    kind.check(coded)
    lines = tuple(replace(line, code=None) for line in feeder.lines)
    with pytest.raises(ConfigError, match="underground_codes"):
        kind.check(replace(coded, feeder=replace(feeder, lines=lines)))
