"""Checks a release without anything private: what it says is recomputed, what cannot be is named as attested.

Any byte and any figure that is changed by itself is found: files against their hashes, the manifest against
its own digest and, entry by entry, against the manifest that the files and the declared constants determine;
the certificate and the two metadata files against what the manifest determines. A forger who makes all of it
anew makes another release. That it is the data owner's is known from the digest of the manifest, given by
another way, or from an auditor (`verify_private`).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dp_powerflow.corpus.phasors import VM_MAX_PU
from dp_powerflow.corpus.reader import read_nodes
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.pipeline.manifest.agreement import contradictions
from dp_powerflow.pipeline.manifest.build import (
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    DIGEST,
    FORMAT,
    MANIFEST_FILE,
    MODEL_FILE,
    REGISTRY_FILE,
    assemble,
    manifest_bytes,
    manifest_digest,
    network_words,
)
from dp_powerflow.pipeline.manifest.croissant import render_croissant
from dp_powerflow.pipeline.manifest.entries import RELATIVE, ReleaseError, differences, entry, find
from dp_powerflow.pipeline.manifest.facts import Facts, facts_from_manifest
from dp_powerflow.pipeline.manifest.page import certificate_html
from dp_powerflow.pipeline.manifest.registry import render_registry
from dp_powerflow.pipeline.manifest.words import at_most, in_digits
from dp_powerflow.pipeline.verify.files import (
    MALFORMED,
    Opened,
    hash_files,
    manifest_content,
    parse_manifest,
    read_layout,
    read_model,
)
from dp_powerflow.pipeline.verify.network import network_checks
from dp_powerflow.pipeline.verify.report import SEED, Check, VerifyReport, check
from dp_powerflow.privacy.accounting import rho_to_epsilon, total_rho
from dp_powerflow.privacy.budget import QueryCost


def verify_release(path: str | os.PathLike[str]) -> VerifyReport:
    """Check a release; needs nothing private.

    Raises
    ------
    ReleaseError : there is no directory, or no `manifest.json` in it.
    """
    directory = Path(path)
    content = manifest_content(directory)
    digest = hashlib.sha256(content).hexdigest()
    try:
        manifest = parse_manifest(content)
    except (ValueError, RecursionError):
        broken = Check("manifest", False, f"{MANIFEST_FILE} is not JSON.")
        return VerifyReport(None, digest, (broken,), ())
    opened = Opened(
        directory, content, manifest, hash_files(directory), read_model(directory), read_layout(directory)
    )
    facts = _facts(opened)
    checks = (
        _check_manifest(opened),
        _check_files(opened),
        _check_corpus(opened),
        _check_queries(opened),
        *network_checks(opened, facts),
        _check_statement(opened, facts),
        _check_companions(opened, facts),
        _check_seed(opened),
    )
    release_id = None if facts is None else facts.release_id
    return VerifyReport(release_id, digest, checks, () if facts is None else network_words(facts).attested)


def _facts(opened: Opened) -> Facts | None:
    """The facts of the release, None if the manifest or a file does not tell them or no sum can be stated."""
    if opened.model is None or opened.layout is None or opened.manifest.get("format") != FORMAT:
        return None
    try:
        facts = facts_from_manifest(opened.manifest, opened.model, opened.layout)
        network_words(facts)  # raises if its constants promise nothing that can be stated
        return facts if facts.loads.promise and facts.network.promise else None
    except MALFORMED:
        return None


def _check_manifest(opened: Opened) -> Check:
    def problems() -> Iterator[str]:
        stated = opened.manifest.get("format")
        if stated != FORMAT:
            yield f"{MANIFEST_FILE} has another format than '{FORMAT}'; use the program that made it."
        if manifest_bytes(opened.manifest) != opened.content:
            yield f"{MANIFEST_FILE} is not in its canonical form, so it was changed after the release."
        if opened.manifest.get(DIGEST) != manifest_digest(opened.manifest):
            yield f"{MANIFEST_FILE} does not match its own SHA-256, so it was changed after the release."

    return check("manifest", problems(), f"{MANIFEST_FILE} is in canonical form and matches its own SHA-256.")


def _check_files(opened: Opened) -> Check:
    stated = opened.manifest.get("files")
    if not isinstance(stated, dict):
        return Check("files", False, "The manifest does not list the files of the release.")
    found = {name: digest for name, digest in opened.hashes.items() if name != MANIFEST_FILE}

    def problems() -> Iterator[str]:
        for name in sorted(stated.keys() | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in stated:
                yield f"{name} is not listed in the manifest."
            elif found[name] != stated[name]:
                yield f"{name} was changed: its SHA-256 is not the one in the manifest."

    return check("files", problems(), f"All {len(found)} files are there, no other, with the stated SHA-256.")


def _check_corpus(opened: Opened) -> Check:
    stated = opened.manifest.get("files")
    listed = stated if isinstance(stated, dict) else {}
    report = validate_corpus(
        opened.directory, other_files={*listed, MANIFEST_FILE}, vm_range_pu=(0.0, VM_MAX_PU)
    )

    def problems() -> Iterator[str]:
        yield from report.problems
        if report.release_id is not None and report.release_id != _value(opened, "release.id"):
            yield "The voltages belong to another release than the manifest."
        if report.layout is not None and read_nodes(opened.directory)[2].public_columns():
            yield "The node table says more of the nodes than the manifest declares public."

    span = report.vm_range_pu
    magnitudes = "" if span is None else f", magnitudes from {span[0]:.4f} to {span[1]:.4f} p.u."
    return check(
        "voltages", problems(), f"All {report.n_phasors:,} phasors lie on the public grid{magnitudes}"
    )


def _value(opened: Opened, path: str) -> Any:
    """An entry of the manifest, None if it is not there."""
    try:
        return find(opened.manifest, path)
    except ReleaseError:
        return None


def _check_queries(opened: Opened) -> Check:
    """Every ρ and ε of the loads, from the recorded sensitivities and scales."""
    try:
        stated = opened.manifest["load_queries"]
        costs = tuple(QueryCost.from_dict(query) for query in stated)
        rho = total_rho(costs)
        delta = entry(opened.manifest, "guarantee.loads.delta", float)
        epsilon = rho_to_epsilon(rho, delta)
        problems = list(_query_problems(opened, stated, costs, rho, epsilon))
    except MALFORMED:
        return Check("load privacy", False, "The costs of the load queries cannot be read.")
    good = (
        f"{len(costs)} queries cost rho = {at_most(rho)} together, epsilon at most {at_most(epsilon)} at "
        f"delta {in_digits(delta)}, recomputed from sensitivities and noise scales; the load model "
        "carries the same."
    )
    return check("load privacy", problems, good)


def _query_problems(
    opened: Opened, stated: list[Any], costs: tuple[QueryCost, ...], rho: float, epsilon: float
) -> Iterator[str]:
    if not costs:
        yield "No load query is recorded."
    for number, (query, cost) in enumerate(zip(stated, costs, strict=True), start=1):
        if any(differences(query, cost.to_dict())):
            yield f"The stated cost of query {number} does not follow from its sensitivity and noise scale."
    for name, value in (("rho", rho), ("epsilon", epsilon)):
        if not math.isclose(
            entry(opened.manifest, f"guarantee.loads.{name}", float), value, rel_tol=RELATIVE
        ):
            yield f"The stated {name} of the loads is not what the queries cost."
    if opened.model is None:
        yield f"{MODEL_FILE} is not a load model."
    elif opened.model.costs != costs:
        yield f"{MODEL_FILE} carries other costs than the manifest."


def _check_statement(opened: Opened, facts: Facts | None) -> Check:
    """The manifest against the one that files and declared constants determine, entry by entry."""
    name = "statement"
    if facts is None:
        return Check(name, False, "The entries of the manifest cannot be read together with the files.")
    try:
        expected = assemble(facts, opened.hashes)
        del expected[DIGEST]
        stated = {key: value for key, value in opened.manifest.items() if key != DIGEST}
        problems = [f"The manifest's {where} is wrong." for where in differences(stated, expected)]
        problems += contradictions(facts)
    except MALFORMED:
        return Check(name, False, "The constants of the manifest are out of range.")
    good = (
        "Every entry of the manifest follows from the files and the declared constants, and what was spent "
        "on this and earlier releases adds up within the caps."
    )
    return check(name, problems, good)


def _check_companions(opened: Opened, facts: Facts | None) -> Check:
    """Certificate, registry record and hub metadata, made again from the manifest."""
    makers: dict[str, Callable[[dict[str, Any]], bytes]] = {
        CERTIFICATE_FILE: certificate_html,
        CROISSANT_FILE: render_croissant,
        REGISTRY_FILE: render_registry,
    }

    def problems() -> Iterator[str]:
        for name, make in makers.items():
            try:
                same = facts is not None and (opened.directory / name).read_bytes() == make(opened.manifest)
            except (OSError, *MALFORMED):
                same = False
            if not same:
                yield f"{name} does not say what the manifest says."

    return check("pages", problems(), f"{', '.join(makers)} say what the manifest says.")


def _check_seed(opened: Opened) -> Check:
    if _value(opened, "release.insecure_seed") is False:
        return Check(SEED, True, "The noise is stated to come from a secret key of the operating system.")
    sentence = "The noise came from an insecure seed: this is a demonstration, not a release."
    return Check(SEED, False, sentence)
