"""Everything of a release beside its voltages: tables, model, pages, manifest; and the page of its quality.

`quality.html` is a function of the released files and of the manifest's statement, so `verify` makes it again
(`quality_page`), from files that are looked at once per process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.storage import Location, loading
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import CorpusReport
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    MALFORMED,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    UNREADABLE,
    ReleaseError,
    Statement,
    at_most,
    json_object,
    parse_manifest,
    seal,
)
from dp_powerflow.manifest.render import Words, card_bytes, certificate_html, croissant_bytes, registry_bytes
from dp_powerflow.quality import Guarantee, Promise, Quality, measure

Progress = Callable[[int, int], None]


def quality_of(
    corpus: Corpus,
    statement: Statement[Any],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Figures of a release with the promise that its manifest states; parameters as of `measure`."""
    return measure(corpus, promise_of(statement), workers=workers, progress=progress)


def quality_of_release(
    corpus: Corpus, *, workers: int | None = None, progress: Progress | None = None
) -> Quality:
    """The same of a release on disk or in a store.

    Raises
    ------
    ReleaseError : its manifest cannot be read.
    """
    path = corpus.path / MANIFEST_FILE
    with loading(path):
        content = path.read_bytes()
    try:
        statement = parse_manifest(json_object(content))
    except (ValueError, RecursionError, json.JSONDecodeError):
        raise ReleaseError(
            f"{path} is not JSON; give the directory of a finished release", code="release-not-found"
        ) from None
    return quality_of(corpus, statement, workers=workers, progress=progress)


def promise_of(statement: Statement[Any]) -> Promise:
    """Both guarantees in words."""
    words, network = Words.of(statement), statement.guarantee.network
    secret, loads = not statement.release.insecure_seed, statement.guarantee.loads
    return Promise(
        loads=Guarantee(
            "The customers",
            f"ε ≤ {at_most(loads.epsilon)}",
            words.text("customers_means"),
            tuple(words["customers"]),
            secret,
        ),
        network=Guarantee(
            "The network",
            network.figure,
            words.text("network_means"),
            tuple(words["network"]),
            network.holds and secret,
        ),
        warnings=tuple(words["warnings"]),
    )


def quality_page(
    directory: Location, corpus: CorpusReport, hashes: Mapping[str, str], statement: Statement[Any]
) -> bytes | None:
    """The page that sound files and a statement determine; None if the files cannot be read.

    Parameters
    ----------
    directory, corpus, hashes : as of `Opened`.
    """
    try:
        return _page(*_shown(directory, corpus, hashes), promise_of(statement))
    except (OSError, *MALFORMED):
        return None


def look_at(content: bytes, directory: Location, corpus: CorpusReport, hashes: Mapping[str, str]) -> None:
    """Make the page of files that are sound, given their `manifest.json`; asked for later, it is there."""
    with suppress(OSError, RecursionError, *MALFORMED):
        if corpus.ok:
            quality_page(directory, corpus, hashes, parse_manifest(json_object(content)))


def _shown(
    directory: Location, corpus: CorpusReport, hashes: Mapping[str, str]
) -> tuple[Corpus, frozenset[tuple[str, str]]]:
    """The corpus, and the hashes of its files."""
    if corpus.layout is None or corpus.nodes is None or corpus.release_id is None:
        raise ReleaseError(UNREADABLE)
    tables = frozenset((name, digest) for name, digest in hashes.items() if name.endswith(".parquet"))
    return Corpus(directory, corpus.layout, corpus.nodes, corpus.release_id), tables


@lru_cache(maxsize=16)  # feeders of a fleet are looked at at the same time
def _page(corpus: Corpus, hashes: frozenset[tuple[str, str]], promise: Promise) -> bytes:
    return replace(_measured(corpus, hashes), promise=promise).to_html()


@lru_cache(maxsize=1)
def _measured(corpus: Corpus, hashes: frozenset[tuple[str, str]]) -> Quality:
    """Figures of files with these hashes, looked at once."""
    return measure(corpus)


def publish(
    writer: CorpusWriter,
    inputs: ManifestInputs,
    written: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Write everything beside the voltages, then give the release its name.

    Parameters
    ----------
    written : SHA-256 of the files that this run has written; what an earlier run left is read once.
    progress : told how many days of how many are on the page of the quality.
    """
    write_documents(writer, inputs, written, progress)
    writer.finish()


def write_documents(
    writer: CorpusWriter,
    inputs: ManifestInputs,
    written: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Everything beside the voltages; the manifest, which lists all other files, comes last."""
    statement, nodes = make_statement(inputs), NodeTable.opaque(writer.layout.nodes)
    if inputs.connections is not None:
        nodes = inputs.connections.of_nodes(nodes)
    tables = {
        **writer.write_nodes(nodes),
        **writer.write_connections(inputs.connections),
        **writer.write_days(inputs.days),
    }
    # From the files as they are, so that anybody can make the page again.
    corpus = Corpus(writer.root, writer.layout, nodes, writer.release_id)
    page = quality_of(corpus, statement, progress=progress).to_html()
    known = {
        **written,
        **tables,
        **writer.add_file(QUALITY_FILE, page),
        **writer.add_file(MODEL_FILE, inputs.model.to_json().encode()),
        **writer.add_file(REGISTRY_FILE, registry_bytes(statement)),
        **writer.add_file(CERTIFICATE_FILE, certificate_html(statement)),
        **writer.add_file(CARD_FILE, card_bytes(statement)),
    }
    # What a killed run left of the last two files is about to be replaced.
    hashes = writer.hashes(known | {CROISSANT_FILE: "", MANIFEST_FILE: ""})
    listed = {name: digest for name, digest in hashes.items() if digest}
    listed |= writer.add_file(CROISSANT_FILE, croissant_bytes(statement, listed))
    writer.add_file(MANIFEST_FILE, seal(statement, listed).to_bytes())
