"""Everything of a release beside its voltages: tables, page, model, certificate, card, manifest."""

from __future__ import annotations

from collections.abc import Mapping

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.pipeline.manifest.card import card_bytes
from dp_powerflow.pipeline.manifest.croissant import croissant_bytes
from dp_powerflow.pipeline.manifest.documents import certificate_html, registry_bytes
from dp_powerflow.pipeline.manifest.facts import ManifestInputs, make_statement
from dp_powerflow.pipeline.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    seal,
)
from dp_powerflow.pipeline.modes.base import Progress
from dp_powerflow.pipeline.quality import quality_of


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
