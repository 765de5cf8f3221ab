"""Doors of what somebody receives: releases, corpora, load models, tables of twins, fleets."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dp_powerflow as dpf
from dp_powerflow.cli.checks import render_verification
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.errors import CorpusError, DpPowerflowError
from dp_powerflow.fleet.manifest import read_entries
from dp_powerflow.fleet.overview import fleet_page, read_summaries
from dp_powerflow.fleet.verify import hear_witnesses
from dp_powerflow.page import read_summary
from support.fuzz.changes import WORDS, Mutate, damaged, json_changed, parquet_changed, words_changed
from support.fuzz.judging import Door, WrongAcceptanceError, wrong_words
from support.fuzz.world import World, swapped


def _is_told_well(report: dpf.Config | object) -> None:
    """Every sentence of a report can be shown."""
    for line in render_verification(report).lines:  # type: ignore[arg-type]
        if line and wrong_words(line):
            raise WrongAcceptanceError(f"a line of the report has a {wrong_words(line)}")


def _verified(release: Path, name: str, mutate: Mutate, private: Path | None = None) -> Door:
    """A file of a release goes through `verify`: any change of it must be found."""
    original = (release / name).read_bytes()

    def enter(content: bytes) -> None:
        with swapped(release / name, content):
            report = dpf.verify(release, private=private)
        _is_told_well(report)
        if report.intact:
            if content != original:
                raise WrongAcceptanceError(f"{name} was changed and the release is called intact")
            return
        raise CorpusError("the release is not intact")

    return Door((original,), mutate, enter)


def verified(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of a release on a twin."""
    return lambda world: _verified(world.release.path, name, mutate)


def verified_true(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of a release on the true network."""
    return lambda world: _verified(world.true_release.path, name, mutate)


def audited(world: World) -> Door:
    """The manifest, looked at with the private state."""
    return _verified(world.release.path, "manifest.json", json_changed, world.release.state)


def _read_all(corpus: Corpus) -> None:
    """Everything that a corpus can be asked for."""
    found = [corpus.voltages(), *(getattr(corpus, name)() for name in corpus.extras.holds)]
    if not all(np.isfinite(values).all() for values in found):
        raise WrongAcceptanceError("a corpus holds values that are no numbers")
    _ = corpus.connections, corpus.calendar, corpus.weather, corpus.times(), corpus.to_pandas(days=[0])
    corpus.hashes()


def read(name: str) -> Callable[[World], Door]:
    """A file of a corpus, read as a user reads it."""

    def make(world: World) -> Door:
        release = world.release.path

        def enter(content: bytes) -> None:
            with swapped(release / name, content):
                _read_all(dpf.open_corpus(release))

        return Door(((release / name).read_bytes(),), parquet_changed, enter)

    return make


def quality(world: World) -> Door:
    """A part, looked at for the page of quality."""
    release = world.release.path
    name = "data/part-00000.parquet"

    def enter(content: bytes) -> None:
        with swapped(release / name, content):
            dpf.quality(dpf.open_corpus(release), workers=1).to_json()

    return Door(((release / name).read_bytes(),), parquet_changed, enter)


def load_model(world: World) -> Door:
    """A load model that somebody gives."""
    texts = tuple((made.path / "model.json").read_bytes() for made in (world.release, world.true_release))
    path = world.folder("model") / "model.json"
    spent = min(dpf.LoadModel.from_json(text.decode()).spent_epsilon for text in texts)

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        model = dpf.LoadModel.load(path)
        if not 0.0 < model.spent_epsilon < np.inf:
            raise WrongAcceptanceError("a load model without a cost is accepted")
        if model.origin is not None and content not in texts and model.spent_epsilon < spent * 0.999999:
            _check_costs(model)

    return Door(texts, json_changed, enter)


def _check_costs(model: dpf.LoadModel) -> None:
    """A cheaper model must have answers with more noise, by its own words."""
    if any(not cost.rho > 0.0 for cost in model.costs):
        raise WrongAcceptanceError("a load model with a query that costs nothing is accepted")


def twin_record(world: World) -> Door:
    """A twin that is kept in the private state."""
    from dp_powerflow.twin.draw import Twin

    def enter(content: bytes) -> None:
        Twin.from_json(content.decode(errors="replace"))

    return Door((world.twin_record,), json_changed, enter)


def fleet_file(world: World) -> Door:
    """`fleet.json`, through `verify`."""
    return _verified(world.fleet, "fleet.json", json_changed)


def fleet_opened(world: World) -> Door:
    """`fleet.json`, opened and read."""
    place = world.fleet

    def enter(content: bytes) -> None:
        with swapped(place / "fleet.json", content):
            fleet = dpf.open_fleet(place)
            for name in fleet.names:
                fleet.feeder(name).voltages(days=[0])

    return Door(((place / "fleet.json").read_bytes(),), json_changed, enter)


def fleet_entry(world: World) -> Door:
    """The manifest of a feeder of a fleet, as the page of the fleet reads it."""
    place = world.fleet
    name = "feeder=feeder-0001/manifest.json"

    def enter(content: bytes) -> None:
        with swapped(place / name, content):
            entries = read_entries(place)
            fleet_page("north", entries, read_summaries(place, entries)).to_html()

    return Door(((place / name).read_bytes(),), json_changed, enter)


def fleet_quality(world: World) -> Door:
    """The page of a feeder, whose figures the page of the fleet shows."""
    place = world.fleet
    name = "feeder=feeder-0001/quality.html"
    page = (place / name).read_bytes()
    marked = page.find(b'id="summary">')

    def mutate(rng: random.Random, content: bytes) -> bytes:
        end = content.find(b"</script>", marked)
        begin = marked + len(b'id="summary">')
        if rng.random() < 0.2:
            return damaged(rng, content)
        return content[:begin] + json_changed(rng, content[begin:end]) + content[end:]

    def enter(content: bytes) -> None:
        read_summary(content)
        with swapped(place / name, content):
            entries = read_entries(place)
            fleet_page("north", entries, read_summaries(place, entries)).to_html()

    return Door((page,), mutate, enter)


def witness(world: World) -> Door:
    """The manifest of an earlier release, heard against a ledger."""
    path = world.folder("witness") / "manifest.json"
    seed = (world.release.path / "manifest.json").read_bytes()

    def enter(content: bytes) -> None:
        path.write_bytes(content)
        for sentence in hear_witnesses(world.state, [str(path.parent)]).contradictions:
            if wrong_words(sentence):
                raise WrongAcceptanceError(f"a sentence of a witness has a {wrong_words(sentence)}")

    return Door((seed,), json_changed, enter)


def gridfm(name: str, mutate: Mutate) -> Callable[[World], Door]:
    """A file of the tables of a published twin."""

    def make(world: World) -> Door:
        directory = world.gridfm
        [path, *_] = sorted(found for found in directory.rglob(name) if found.is_file())

        def enter(content: bytes) -> None:
            with swapped(path, content):
                data = dpf.read_gridfm(directory)
                with np.errstate(all="ignore"):
                    data.mismatch_mw()
                    data.voltage()

        return Door((path.read_bytes(),), mutate, enter)

    return make


def location(world: World) -> Door:
    """Where a release is said to be, in words of a user."""
    seeds = [
        str(world.release.path),
        str(world.fleet),
        world.release.path.as_uri(),
        "memory://bucket/release",
    ]
    seeds += [
        "release",
        "s3a:/x",
        f"file://localhost{world.release.path}",
        "simplecache::memory://x",
        "zip://a::memory://b",
    ]

    def enter(content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")
        if text.lower().startswith(
            ("s3", "http", "ftp", "sftp", "ssh", "gs", "gcs", "az", "abfs", "hdfs", "git", "smb")
        ):
            raise CorpusError("stores beyond this machine are not asked")
        try:
            dpf.open_corpus(text)
        except DpPowerflowError:
            dpf.verify(text)

    return Door(
        tuple(text.encode() for text in seeds),
        words_changed(("://", "/", "..", "file:", "memory:", "::", "?a", "#b")),
        enter,
    )


DOORS: dict[str, Callable[[World], Door]] = {
    "manifest": verified("manifest.json", json_changed),
    "manifest, true network": verified_true("manifest.json", json_changed),
    "manifest, audited": audited,
    "model.json of a release": verified("model.json", json_changed),
    "croissant": verified("croissant.json", json_changed),
    "registry": verified("registry.yaml", words_changed(WORDS["YAML"])),
    "certificate": verified("certificate.html", words_changed(WORDS["pages"])),
    "quality page": verified("quality.html", words_changed(WORDS["pages"])),
    "card": verified("README.md", words_changed(WORDS["YAML"])),
    "part, verified": verified("data/part-00001.parquet", parquet_changed),
    "nodes, verified": verified("nodes.parquet", parquet_changed),
    "part, read": read("data/part-00000.parquet"),
    "nodes, read": read("nodes.parquet"),
    "loads, read": read("loads/part-00000.parquet"),
    "states, read": read("feeder/part-00000.parquet"),
    "buses, read": read("buses.parquet"),
    "days, read": read("days.parquet"),
    "connections, read": read("connections.parquet"),
    "part, quality": quality,
    "load model": load_model,
    "kept twin": twin_record,
    "fleet.json": fleet_file,
    "fleet.json, opened": fleet_opened,
    "fleet entry": fleet_entry,
    "fleet quality": fleet_quality,
    "witness": witness,
    "gridfm table": gridfm("*.parquet", parquet_changed),
    "gridfm count": gridfm("*.txt", damaged),
    "location": location,
}
