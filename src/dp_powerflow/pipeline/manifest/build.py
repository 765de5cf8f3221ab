"""`manifest.json`: the machine-readable certificate of a release.

It holds policy constants, declared-public inputs, the costs of the load queries and, of a twin, the guarantee
that follows from its public noise; nothing that was computed from the network or from the meter data without
being paid for. It names no path, host, user or time, so that a release that was interrupted comes out bit by
bit as it would have.

docs/manifest.md describes every entry and docs/manifest.schema.json the form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.gridfm.schema import TABLES
from dp_powerflow.corpus.phasors import VM_MAX_PU
from dp_powerflow.corpus.schema import DATA, NODES_FILE, VA_GRID, VM_GRID, CorpusLayout
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest import words as text
from dp_powerflow.pipeline.manifest.agreement import contradictions
from dp_powerflow.pipeline.manifest.entries import ReleaseError
from dp_powerflow.pipeline.manifest.facts import AccountFacts, Facts, declared_of, installed_versions
from dp_powerflow.pipeline.manifest.policy import VOLTAGES, TwinPolicy, policy_of
from dp_powerflow.pipeline.manifest.words_true import true_words
from dp_powerflow.pipeline.manifest.words_twin import twin_words
from dp_powerflow.privacy.budget import ADJACENCY
from dp_powerflow.privacy.ledger.records import Balance

FORMAT = "dp-powerflow manifest, version 2"
"""Fixes form and wording: any change of either is another version."""
MANIFEST_FILE = "manifest.json"
MODEL_FILE = "model.json"
CERTIFICATE_FILE = "certificate.html"
CROISSANT_FILE = "croissant.json"
REGISTRY_FILE = "registry.yaml"
TWIN = "twin"
"""Directory of the published twin."""
DIGEST = "manifest_sha256"


@dataclass(frozen=True, eq=False)
class ManifestInputs:
    """What a manifest is made of.

    Attributes
    ----------
    release_id : public name of the release.
    config : the config; its paths and the names in it are private and never copied.
    model : the released load model.
    layout : shape of the corpus.
    loads, network : balance of both accounts of the ledger just after the spend of this release.
    commitment_sha256 : salted commitment to the internal report.
    insecure_seed : whether noise and draws came from a seed.
    """

    release_id: str
    config: Config
    model: LoadModel
    layout: CorpusLayout
    loads: Balance
    network: Balance
    commitment_sha256: str
    insecure_seed: bool


def build_manifest(inputs: ManifestInputs, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a release.

    Parameters
    ----------
    hashes : SHA-256 of every released file by relative path; that of the manifest itself is left out.

    Raises
    ------
    ReleaseError : inputs contradict each other, for instance an account that holds less than this release.
    """
    facts = Facts(
        release_id=inputs.release_id,
        insecure_seed=inputs.insecure_seed,
        model=inputs.model,
        layout=inputs.layout,
        policy=policy_of(inputs.config),
        declared=declared_of(inputs.config),
        loads=AccountFacts.of(inputs.loads),
        network=AccountFacts.of(inputs.network),
        versions=installed_versions(),
        commitment_sha256=inputs.commitment_sha256,
    )
    problems = contradictions(facts)
    if inputs.layout.days != inputs.config.release.days:
        problems.append("The corpus has another number of days than the config.")
    if problems:
        raise ReleaseError(f"the manifest would contradict itself, so nothing is published: {problems[0]}")
    return assemble(facts, hashes)


def assemble(facts: Facts, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The manifest that these facts and hashes determine, whether or not they agree."""
    words = network_words(facts)
    manifest = {
        "format": FORMAT,
        "release": _release(facts, words),
        "guarantee": {"loads": _loads_guarantee(facts), "network": words.guarantee},
        "composition": {
            "statement": words.composition,
            "loads": facts.loads.to_plain(),
            "network": facts.network.to_plain(),
        },
        "load_queries": [cost.to_dict() for cost in facts.model.costs],
        "declared_public": _declared(facts, words),
        "processing": {"before_noise": text.before_noise(facts), "after_noise": words.after_noise},
        "random_source": text.random_source(facts, words),
        "unprotected": words.unprotected,
        "not_claimed": words.not_claimed,
        "data": _data(facts),
        "software": dict(facts.versions),
        "internal_report": {"commitment": words.commitment, "sha256": facts.commitment_sha256},
        "files": {name: digest for name, digest in sorted(hashes.items()) if name != MANIFEST_FILE},
    }
    return manifest | {DIGEST: manifest_digest(manifest)}


def network_words(facts: Facts) -> text.NetworkWords:
    """All that is said of the network, in the words of the release's mode."""
    policy = facts.policy
    return twin_words(facts, policy) if isinstance(policy, TwinPolicy) else true_words(facts, policy)


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Canonical JSON: equal manifests, equal bytes."""
    return (
        json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    ).encode()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON without the entry that holds it.

    It finds accidents and careless edits. It is no signature: who wants to be sure of the author compares the
    digest with one the data owner gave him by another way.
    """
    rest = {name: value for name, value in manifest.items() if name != DIGEST}
    return hashlib.sha256(manifest_bytes(rest)).hexdigest()


def _release(facts: Facts, words: text.NetworkWords) -> dict[str, Any]:
    return {
        "id": facts.release_id,
        "software": "dp-powerflow",
        "insecure_seed": facts.insecure_seed,
        "simulated_loads": facts.model.simulated,
        "warnings": words.warnings,
    }


def _loads_guarantee(facts: Facts) -> dict[str, Any]:
    model = facts.model
    return {
        "definition": text.LOADS_DEFINITION,
        "unit": str(model.unit),
        "unit_in_words": text.unit_in_words(model.unit),
        "adjacency": ADJACENCY,
        "epsilon": model.spent_epsilon,
        "delta": model.delta,
        "rho": model.rho,
        "epsilon_granted": model.epsilon,
        "accounting": text.LOADS_ACCOUNTING,
    }


def _declared(facts: Facts, words: text.NetworkWords) -> dict[str, Any]:
    model = facts.model
    return {
        "load_points": model.n_load_points,
        "days": model.n_days,
        "step_minutes": model.step_minutes,
        "power_factor": facts.declared.power_factor,
        "reactive": {
            "spread": model.classes[0].reactive.spread,
            "correlation_minutes": facts.declared.reactive_correlation_minutes,
        },
        "load_scales": "public scale of every load point" if model.scaled else "none, loads are in kW",
        "node_scales": {"rule": "nominal load of the node's loads", "factor": facts.declared.scale_factor},
        "node_classes": "declared" if model.public_labels else "drawn from the released weights",
        "classes": [
            {
                "name": part.name,
                "day_type": part.day_type,
                "bounds": list(part.bounds),
                "bounds_unit": "per public scale" if model.scaled else "kW",
            }
            for part in model.classes
        ],
        "variance_floor": facts.declared.variance_floor,
        "estimator": model.estimator,
        "generation": None
        if facts.declared.volt_var is None
        else {"irradiance": "declared public", "volt_var": facts.declared.volt_var},
        "regulator_taps": "frozen: an input, the same for every network compared",
        "network": words.declared,
    }


def _data(facts: Facts) -> dict[str, Any]:
    layout = facts.layout

    def column(file: str, name: str, kind: str, unit: str | None, means: str) -> dict[str, Any]:
        return {"file": file, "name": name, "type": kind, "unit": unit, "means": means}

    parts, series = f"{DATA}/part-*.parquet", f"list of {layout.steps} float32"
    return {
        "days": layout.days,
        "steps_per_day": layout.steps,
        "step_minutes": facts.model.step_minutes,
        "nodes": layout.nodes,
        "phasors": layout.n_phasors,
        "days_per_part": layout.days_per_part,
        "parts": layout.n_parts,
        "rows": "one row per (day, node); days are independent draws and carry no date",
        "columns": [
            column(parts, "day", "int32", None, "number of the day, from 0"),
            column(parts, "node", "int32", None, f"row of {NODES_FILE}"),
            column(parts, "vm_pu", series, "p.u.", "voltage magnitude at every step of the day"),
            column(parts, "va_deg", series, "degree", "voltage angle at every step of the day"),
            column(NODES_FILE, "node", "int32", None, "number of the node, from 0"),
            column(NODES_FILE, "id", "string", None, "opaque name of the node"),
        ],
        "grid": {"vm_pu": VM_GRID, "va_deg": VA_GRID},
        "ranges": {"vm_pu": [0.0, VM_MAX_PU], "va_deg": [-180.0, 180.0]},
        "twin_tables": _twin_tables(facts),
    }


def _twin_tables(facts: Facts) -> dict[str, Any] | None:
    """Where the published twin is; None if only voltages are released."""
    policy = facts.policy
    if not isinstance(policy, TwinPolicy) or policy.published == VOLTAGES:
        return None
    return {
        "directory": TWIN,
        "layout": "gridfm-datakit: Parquet tables, one directory per table and partition of scenarios",
        "tables": sorted(TABLES),
        "holds": policy.published,
        "days": policy.table_days,
        "scenarios": twin_scenarios(facts, policy),
        "order": (
            "bus k is node k of the corpus, further buses follow; scenario = day * steps_per_day + step"
            if policy.table_days
            else "bus k is node k of the corpus, further buses follow; one scenario without load"
        ),
    }


def twin_scenarios(facts: Facts, policy: TwinPolicy) -> int:
    """Snapshots in the tables of a published twin; one without load if the loads are not published."""
    return max(policy.table_days * facts.layout.steps, 1)
