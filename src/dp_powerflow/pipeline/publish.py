"""The last step: everything beside the data, and the directory gets its name."""

from __future__ import annotations

from dp_powerflow.config import Config
from dp_powerflow.corpus.encode import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.build import ManifestInputs, build_manifest, manifest_bytes
from dp_powerflow.pipeline.manifest.croissant import croissant_bytes
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
        release_id=config.release.id,
        config=config,
        model=model,
        layout=writer.layout,
        loads=ledger.remaining(loads[0], as_of=loads[1]),
        network=ledger.remaining(network[0], as_of=network[1]),
        commitment_sha256=state.commit(config.release.id, COMMITMENT, report).sha256,
        insecure_seed=state.insecure_seed,
    )
    writer.write_nodes(NodeTable.opaque(writer.layout.nodes))
    writer.add_file("model.json", model.to_json().encode())
    writer.add_file("registry.yaml", registry_bytes(inputs))
    writer.add_file("croissant.json", croissant_bytes(inputs, _hashes(writer)))
    manifest = build_manifest(inputs, _hashes(writer))
    writer.add_file("certificate.html", certificate_html(manifest))
    manifest = build_manifest(inputs, _hashes(writer))
    writer.add_file("manifest.json", manifest_bytes(manifest))
    writer.finish()


def _hashes(writer: CorpusWriter) -> dict[str, str]:
    """Of all files but the manifest itself, which a killed run may have left."""
    return {name: digest for name, digest in writer.hashes().items() if name != "manifest.json"}
