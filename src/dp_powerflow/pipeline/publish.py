"""The last step: everything beside the data, and the directory gets its name."""

from __future__ import annotations

import hashlib

from dp_powerflow.config import Config
from dp_powerflow.corpus.encode import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.croissant import croissant_bytes
from dp_powerflow.pipeline.manifest.facts import ManifestInputs, make_statement
from dp_powerflow.pipeline.manifest.model import (
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    REGISTRY_FILE,
    seal,
)
from dp_powerflow.pipeline.manifest.page import certificate_html
from dp_powerflow.pipeline.manifest.registry import registry_bytes
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.state import PrivateState

COMMITMENT = "internal report"


def publish(
    config: Config,
    state: PrivateState,
    writer: CorpusWriter,
    model: LoadModel,
    ledger: Ledger,
    loads: tuple[Account, Spend],
    network: tuple[Account, Spend],
    report: bytes,
) -> None:
    """Write node table, model, manifest and certificate, then give the release its name."""
    inputs = ManifestInputs(
        config=config,
        model=model,
        layout=writer.layout,
        loads=ledger.remaining(loads[0], as_of=loads[1]),
        network=ledger.remaining(network[0], as_of=network[1]),
        commitment_sha256=state.commit(config.release.id, COMMITMENT, report).sha256,
        insecure_seed=state.insecure_seed,
    )
    write_documents(writer, inputs)
    writer.finish()


def write_documents(writer: CorpusWriter, inputs: ManifestInputs) -> None:
    """Everything beside the voltages; the manifest, which lists all other files, comes last."""
    statement = make_statement(inputs)
    writer.write_nodes(NodeTable.opaque(writer.layout.nodes))
    writer.add_file(MODEL_FILE, inputs.model.to_json().encode())
    writer.add_file(REGISTRY_FILE, registry_bytes(statement))
    writer.add_file(CERTIFICATE_FILE, certificate_html(statement))
    hashes = writer.hashes()
    croissant = croissant_bytes(statement, hashes)
    writer.add_file(CROISSANT_FILE, croissant)
    hashes[CROISSANT_FILE] = hashlib.sha256(croissant).hexdigest()
    writer.add_file(MANIFEST_FILE, seal(statement, hashes).to_bytes())
