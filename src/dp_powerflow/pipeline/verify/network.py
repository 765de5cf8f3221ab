"""What `verify` recomputes of a release on a twin: the network's ε, and the tables of a published twin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_powerflow.corpus.errors import CorpusError
from dp_powerflow.corpus.gridfm.reader import GridfmData, count_scenarios, read_gridfm
from dp_powerflow.corpus.gridfm.schema import SCENARIOS_PER_PARTITION
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.pipeline.manifest.build import TWIN, twin_scenarios
from dp_powerflow.pipeline.manifest.entries import differences, find
from dp_powerflow.pipeline.manifest.facts import Facts
from dp_powerflow.pipeline.manifest.policy import TWIN_NETWORK, VOLTAGES, TwinPolicy, policy_from_manifest
from dp_powerflow.pipeline.manifest.words import at_most, in_digits
from dp_powerflow.pipeline.verify.files import MALFORMED, Opened
from dp_powerflow.pipeline.verify.report import Check, check

BALANCE_MW = 1e-4
"""Largest power that may be missing at a bus of the tables: far above rounding, far below any load."""
ADMITTANCE_SHARE = 1e-9
"""Largest difference between y_bus_data and the branches, as a share of the largest entry."""
CLOSE_PU = 1e-6
"""The tables are not rounded, the corpus is: half a step of its grid in magnitude and in angle stay below."""


def network_checks(opened: Opened, facts: Facts | None) -> list[Check]:
    """The checks of mode 'twin-network'; none of another release."""
    try:
        mode = find(opened.manifest, "guarantee.network.mode")
    except MALFORMED:
        return []
    if mode != TWIN_NETWORK:
        return []
    return [_check_privacy(opened), *_check_tables(opened, facts)]


def _check_privacy(opened: Opened) -> Check:
    """Every μ and ε of the network, from spreads and x alone."""
    name = "network privacy"
    try:
        policy = policy_from_manifest(opened.manifest)
        assert isinstance(policy, TwinPolicy)
        stated = find(opened.manifest, "guarantee.network")
        figures = policy.figures()
        wrong = list(differences({key: stated.get(key) for key in figures}, figures))
    except MALFORMED:
        return Check(name, False, "The spreads of the twin cannot be read.")
    good = (
        f"The twin costs mu = {at_most(figures['mu'])}, epsilon at most {at_most(figures['epsilon'])} at "
        f"delta {in_digits(policy.delta)}, for {policy.neighbours}; recomputed from the spreads and x."
    )
    problems = [f"The stated {where} of the network does not follow from spreads and x." for where in wrong]
    return check(name, problems, good)


def _check_tables(opened: Opened, facts: Facts | None) -> Iterator[Check]:
    """The tables of the twin: there if and only if they are published, whole, and of one power flow."""
    name = "twin tables"
    if facts is None or not isinstance(facts.policy, TwinPolicy):
        return
    if facts.policy.published == VOLTAGES:
        if any(file.startswith(f"{TWIN}/") for file in opened.hashes):
            yield Check(name, False, f"There are files in {TWIN}/ though no twin is published.")
        return
    scenarios = twin_scenarios(facts, facts.policy)
    good = (
        f"The twin's tables hold {scenarios:,} scenario{'s' * (scenarios > 1)} of power flow on their own "
        f"network{', with the voltages of the corpus' if facts.policy.table_days else ''}."
    )
    try:
        yield check(name, _table_problems(opened, facts.policy, scenarios), good)
    except (CorpusError, OSError, *MALFORMED):
        yield Check(name, False, f"The tables in {TWIN}/ are missing, damaged or not complete.")


def _table_problems(opened: Opened, policy: TwinPolicy, scenarios: int) -> Iterator[str]:
    directory = opened.directory / TWIN
    if count_scenarios(directory) != scenarios:
        yield "The twin's tables hold another number of scenarios than the manifest says."
        return
    corpus = open_corpus(opened.directory)
    for partition in range(-(-scenarios // SCENARIOS_PER_PARTITION)):
        data = read_gridfm(directory, partition)
        where = f"scenarios {data.scenarios.start} to {data.scenarios.stop - 1} of the twin"
        # The negated form also catches what is not a number.
        if not data.mismatch_mw().max() <= BALANCE_MW:
            yield f"The powers of {where} do not balance."
        largest = abs(data.admittance()).max()
        if not data.admittance_error() <= ADMITTANCE_SHARE * largest:
            yield f"Branches and admittances of {where} are of two networks."
        if policy.table_days and not _voltage_difference(data, corpus) <= CLOSE_PU:
            yield f"The voltages of {where} are not those of the corpus."


def _voltage_difference(data: GridfmData, corpus: Corpus) -> float:
    """Largest difference [p.u.] between tables and corpus: bus k is node k, scenario day·steps + step."""
    steps = corpus.layout.steps
    first, last = data.scenarios.start // steps, (data.scenarios.stop - 1) // steps
    released = corpus.voltages(np.arange(first, last + 1)).reshape(-1, corpus.layout.nodes)
    offset = data.scenarios.start - first * steps
    stated = data.phasor()[:, : corpus.layout.nodes]
    return float(np.max(np.abs(stated - released[offset : offset + len(data.scenarios)])))
