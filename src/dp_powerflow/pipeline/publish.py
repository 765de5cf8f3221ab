"""The last step: everything beside the data, and the directory gets its name."""

from __future__ import annotations

from collections.abc import Mapping

from dp_powerflow.corpus.encode import NodeTable
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.charge import Charged
from dp_powerflow.pipeline.inputs import ReleaseInputs
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
from dp_powerflow.pipeline.modes.base import InternalReport
from dp_powerflow.privacy.ledger.records import Account, Spend

COMMITMENT = "internal report"


def manifest_inputs(
    inputs: ReleaseInputs,
    model: LoadModel,
    writer: CorpusWriter,
    report: InternalReport,
    charges: tuple[Charged, tuple[Account, Spend]],
) -> ManifestInputs:
    """What the manifest is made of: balances just after the charges of this release, commitment, shape."""
    charged, network = charges
    return ManifestInputs(
        config=inputs.config,
        model=model,
        layout=writer.layout,
        loads=charged.ledger.remaining(charged.loads[0], as_of=charged.loads[1]),
        network=charged.ledger.remaining(network[0], as_of=network[1]),
        commitment_sha256=inputs.state.commit(inputs.config.release.id, COMMITMENT, report.content).sha256,
        insecure_seed=inputs.state.insecure_seed,
    )


def publish(writer: CorpusWriter, inputs: ManifestInputs, written: Mapping[str, str]) -> None:
    """Write everything beside the voltages, then give the release its name.

    Parameters
    ----------
    written : SHA-256 of the files that this run has written; what an earlier run left is read once.
    """
    write_documents(writer, inputs, written)
    writer.finish()


def write_documents(writer: CorpusWriter, inputs: ManifestInputs, written: Mapping[str, str]) -> None:
    """Everything beside the voltages; the manifest, which lists all other files, comes last."""
    statement = make_statement(inputs)
    known = {
        **written,
        **writer.write_nodes(NodeTable.opaque(writer.layout.nodes)),
        **writer.add_file(MODEL_FILE, inputs.model.to_json().encode()),
        **writer.add_file(REGISTRY_FILE, registry_bytes(statement)),
        **writer.add_file(CERTIFICATE_FILE, certificate_html(statement)),
    }
    # What a killed run left of the last two files is about to be replaced.
    hashes = writer.hashes(known | {CROISSANT_FILE: "", MANIFEST_FILE: ""})
    listed = {name: digest for name, digest in hashes.items() if digest}
    listed |= writer.add_file(CROISSANT_FILE, croissant_bytes(statement, listed))
    writer.add_file(MANIFEST_FILE, seal(statement, listed).to_bytes())
