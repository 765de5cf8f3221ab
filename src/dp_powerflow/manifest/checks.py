"""The checks of a release, one function for each; none raises but what `opened.MALFORMED` names.

Files are compared with their hashes, the manifest with its own digest and, entry by entry, with the one that
files and declared constants determine, pages with what manifest and files determine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dp_powerflow.corpus.schema import CONNECTION_FILES, DATA, DAYS_FILE
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.manifest.beside import described_days
from dp_powerflow.manifest.build import assemble, contradictions
from dp_powerflow.manifest.card import card_bytes
from dp_powerflow.manifest.croissant import croissant_bytes
from dp_powerflow.manifest.model import (
    CARD_FILE,
    CERTIFICATE_FILE,
    CROISSANT_FILE,
    DIGEST,
    MANIFEST_FILE,
    MODEL_FILE,
    QUALITY_FILE,
    REGISTRY_FILE,
    RELATIVE,
    UNREADABLE,
    Check,
    Manifest,
    ReleaseError,
    at_most,
    canonical_json,
    check,
    differences,
    digest_of,
    in_digits,
)
from dp_powerflow.manifest.opened import PAGES, Opened
from dp_powerflow.manifest.release import quality_page
from dp_powerflow.manifest.render import certificate_html, registry_bytes
from dp_powerflow.privacy.budget import QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Region, sensitivity_squared

SEED = "random source"
"""Name of the check that a demonstration fails."""


def check_manifest(opened: Opened) -> Check:
    def problems() -> Iterator[str]:
        if opened.problem:
            yield f"{opened.problem[:1].upper()}{opened.problem[1:]}."
        if canonical_json(opened.raw) != opened.content:
            yield f"{MANIFEST_FILE} is not in its canonical form, so it was changed after the release."
        if opened.raw.get(DIGEST) != digest_of(opened.raw):
            yield f"{MANIFEST_FILE} does not match its own SHA-256, so it was changed after the release."

    return check("manifest", problems(), f"{MANIFEST_FILE} is in canonical form and matches its own SHA-256.")


def check_files(opened: Opened) -> Check:
    stated = opened.raw.get("files")
    if not isinstance(stated, dict):
        return Check("files", False, "The manifest does not list the files of the release.")
    found = {name: digest for name, digest in opened.hashes.items() if name != MANIFEST_FILE}
    described = None
    if opened.manifest is not None:
        data = opened.manifest.data
        described = {DATA} if data.network_tables is None else {DATA, data.network_tables.directory}
        described |= set() if data.extras is None else set(opened.corpus.extras.layout.folders)

    def problems() -> Iterator[str]:
        for name in sorted(stated.keys() | found.keys()):
            if name not in found:
                yield f"{name} is missing."
            elif name not in stated:
                yield f"{name} is not listed in the manifest."
            elif found[name] != stated[name]:
                yield f"{name} was changed: its SHA-256 is not the one in the manifest."
            elif described is not None and "/" in name and name.split("/")[0] not in described:
                yield f"{name} is in a directory that the manifest does not describe."

    return check(
        "files", problems(), f"All {len(found)} files are present, no others, with the stated SHA-256."
    )


def check_corpus(opened: Opened) -> Check:
    report, manifest = opened.corpus, opened.manifest

    def problems() -> Iterator[str]:
        yield from (words for words in report.problems if words not in report.extras.problems)
        if (
            report.release_id is not None
            and manifest is not None
            and report.release_id != manifest.release.id
        ):
            yield "The voltages belong to another release than the manifest."
        declared = manifest is not None and manifest.data.connections is not None
        if report.nodes is not None and report.nodes.connected and not declared:
            yield "The node table says more about the nodes than the manifest declares public."
        if report.nodes is not None and report.nodes.ids != NodeTable.opaque(len(report.nodes.ids)).ids:
            yield "The names of the nodes say more than their position."

    span = report.vm_range_pu
    magnitudes = "" if span is None else f", magnitudes from {span[0]:.4f} to {span[1]:.4f} p.u."
    return check(
        "voltages", problems(), f"All {report.n_phasors:,} phasors lie on the public grid{magnitudes}"
    )


def check_extras(opened: Opened) -> Iterator[Check]:
    """Powers and states beside the voltages, where there are any or the manifest says so."""
    found = opened.corpus.extras
    stated = None if opened.manifest is None else opened.manifest.data.extras
    if not found.layout.holds and not found.problems and stated is None:
        return

    def problems() -> Iterator[str]:
        yield from found.problems
        if (
            opened.manifest is not None
            and (() if stated is None else tuple(stated.holds)) != found.layout.holds
        ):
            yield "The powers and states in the files are not those that the manifest states."

    holds = ", ".join(found.layout.holds)
    good = f"Beside the voltages there are {holds}: {found.n_powers:,} powers, all on the public grid."
    yield check("powers and states", problems(), good)


def check_days(opened: Opened) -> Iterator[Check]:
    """Dates and weather of the days, where there are any or there should be."""
    days, stated = opened.corpus.days, None if opened.manifest is None else opened.manifest.data.calendar
    dated = opened.facts is not None and opened.facts.policy.dated
    if days is None and stated is None and not dated:
        return
    problems = []
    if days is None:
        problems.append(f"{DAYS_FILE}, which has the dates of the days, is missing or cannot be read.")
    elif opened.manifest is not None and (stated is None or stated.model_dump() != described_days(days)):
        problems.append(f"The calendar in {DAYS_FILE} is not the one that the manifest states.")
    first = "" if days is None else days.calendar.first_day
    weather = "" if days is None or not days.names else f", with public weather ({', '.join(days.names)})"
    yield check("days", problems, f"The days follow one another from {first} on{weather}.")


def check_connections(opened: Opened) -> Iterator[Check]:
    """Buses and what joins them, where there are any or the manifest says so."""
    found, there = opened.corpus.connections, set(CONNECTION_FILES) & opened.hashes.keys()
    stated = None if opened.manifest is None else opened.manifest.data.connections
    if not there and stated is None:
        return
    problems = []
    if found is None:
        problems.append(
            f"{' and '.join(CONNECTION_FILES)} are missing or cannot be read, or contradict each other "
            "or the nodes."
        )
    elif opened.manifest is not None and stated is None:
        problems.append("There are connections of the network that the manifest does not state.")
    elif stated is not None and (
        (stated.buses, stated.pairs, stated.sources, stated.coordinates)
        != (found.n_buses, found.n_pairs, int(found.source.sum()), found.coordinates is not None)
    ):
        problems.append("The manifest states other connections of the network than the files hold.")
    good = ""
    if found is not None:
        places = "with" if found.coordinates is not None else "without"
        good = (
            f"All {found.n_buses:,} buses are connected to a source by {found.n_pairs:,} joined pairs, "
            f"{places} coordinates; every node has a bus and a phase."
        )
    yield check("connections", problems, good)


def costs_of(manifest: Manifest[Any]) -> tuple[QueryCost, ...]:
    """The costs of the load queries, as they are stated."""
    return tuple(QueryCost.from_dict(query.model_dump()) for query in manifest.load_queries)


def query_problems(manifest: Manifest[Any], stated: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the costs of the loads, from regions, dimensions and noise scales alone.

    Parameters
    ----------
    stated : the queries as they are in the file.
    """
    loads, costs = manifest.guarantee.loads, costs_of(manifest)
    for number, (query, cost) in enumerate(zip(stated, costs, strict=True), start=1):
        if cost.sensitivity_squared != sensitivity_squared(Region(cost.region), cost.dimension):
            yield f"The sensitivity of query {number} does not follow from its region and dimension."
        if any(differences(query, cost.to_dict())):
            yield f"The stated cost of query {number} does not follow from sensitivity and noise scale."
    rho = total_rho(costs)
    found = (("rho", loads.rho, rho), ("epsilon", loads.epsilon, rho_to_epsilon(rho, loads.delta)))
    for name, value, expected in found:
        if not math.isclose(value, expected, rel_tol=RELATIVE):
            yield f"The stated {name} of the loads is not what the queries cost."


def check_queries(opened: Opened) -> Iterator[Check]:
    """Every sensitivity, ρ and ε of the loads, from regions, dimensions and noise scales."""
    if opened.manifest is None:
        raise ReleaseError(UNREADABLE)
    manifest, loads = opened.manifest, opened.manifest.guarantee.loads
    costs = costs_of(manifest)
    rho = total_rho(costs)
    epsilon = rho_to_epsilon(rho, loads.delta)

    def problems() -> Iterator[str]:
        yield from query_problems(manifest, opened.raw["load_queries"])
        if opened.model is None:
            yield f"{MODEL_FILE} is not a load model, or does not follow from the answers in it."
        elif opened.model.costs != costs:
            yield f"{MODEL_FILE} carries other costs than the manifest."
        elif opened.model.origin is None:
            yield f"{MODEL_FILE} holds no noisy answers, so its costs cannot be recomputed."

    good = (
        f"{len(costs)} queries cost rho = {at_most(rho)} together, epsilon at most {at_most(epsilon)} at "
        f"delta {in_digits(loads.delta)}, recomputed from sensitivities and noise scales; the load model "
        "carries the same."
    )
    yield check("load privacy", problems(), good)


def check_network(opened: Opened) -> Iterator[Check]:
    """What the release's mode recomputes of the network."""
    manifest, facts = opened.readable()
    yield from facts.policy.checks(manifest, facts, opened.directory, opened.hashes)


def check_statement(opened: Opened) -> Iterator[Check]:
    """The manifest against the one that files and declared constants determine, entry by entry."""
    facts = opened.readable()[1]
    expected = assemble(facts).model_dump()
    stated = {key: value for key, value in opened.raw.items() if key not in (DIGEST, "files")}
    problems = [f"The manifest's {where} is wrong." for where in differences(stated, expected)]
    good = (
        "Every entry of the manifest follows from the files and the declared constants, and what was spent "
        "on this and earlier releases adds up within the caps."
    )
    yield check("statement", problems + contradictions(facts), good)


def check_pages(opened: Opened) -> Iterator[Check]:
    """Certificate, registry record, card and metadata, made again from the manifest; quality from files."""
    manifest = opened.readable()[0]
    made = {
        CERTIFICATE_FILE: certificate_html(manifest),
        CROISSANT_FILE: croissant_bytes(manifest, manifest.files),
        REGISTRY_FILE: registry_bytes(manifest),
        CARD_FILE: card_bytes(manifest),
    }
    wrong = [name for name in PAGES if opened.small.get(name) != made[name]]
    problems = [f"{name} does not say what the manifest says." for name in wrong]
    shown = opened.small.get(QUALITY_FILE)
    # What is wrong with the voltages is found by another check; then they are not looked at again.
    sound = opened.corpus.ok
    if sound and (
        shown is None or shown != quality_page(opened.directory, opened.corpus, opened.hashes, manifest)
    ):
        problems.append(f"{QUALITY_FILE} does not show what is in the files of the release.")
    good = f"{', '.join(PAGES)} say what the manifest says, {QUALITY_FILE} shows what is in the files."
    yield check("pages", problems, good)


def check_seed(opened: Opened) -> Check:
    if opened.manifest is not None and not opened.manifest.release.insecure_seed:
        return Check(SEED, True, "The noise is stated to come from a secret key of the operating system.")
    sentence = "The noise came from an insecure seed: this is a demonstration, not a release."
    return Check(SEED, False, sentence)
