"""Checks tables for graph models against their own power flow and against the corpus beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dp_powerflow.corpus.gridfm.reader import GridfmData, count_scenarios, read_gridfm
from dp_powerflow.corpus.gridfm.schema import SCENARIOS_PER_PARTITION
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.errors import DpPowerflowError

BALANCE_MW = 1e-5
"""Largest power that may be missing at a bus of the tables: far above rounding (1e-8), below any load."""
ADMITTANCE_SHARE = 1e-9
"""Largest difference between y_bus_data and the branches, as a share of the largest entry."""
CLOSE_PU = 1e-6
"""The tables are not rounded, the corpus is: half a step of its grid in magnitude and in angle stay below."""


def check_tables(corpus: Path, folder: str, scenarios: int, *, same_voltages: bool) -> list[str]:
    """What is wrong with the tables in a folder of a corpus, one sentence each; never raises.

    Parameters
    ----------
    scenarios : how many there should be.
    same_voltages : whether bus k is node k and scenario day·steps + step that of the corpus.
    """
    try:
        return list(_problems(corpus, folder, scenarios, same_voltages))
    except (DpPowerflowError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        return [f"The tables in {folder}/ are missing, damaged or not complete."]


def _problems(corpus: Path, folder: str, scenarios: int, same_voltages: bool) -> Iterator[str]:
    if count_scenarios(corpus / folder) != scenarios:
        yield f"The tables in {folder}/ hold another number of scenarios than the manifest says."
        return
    voltages = open_corpus(corpus) if same_voltages else None
    for partition in range(-(-scenarios // SCENARIOS_PER_PARTITION)):
        data = read_gridfm(corpus / folder, partition)
        where = f"scenarios {data.scenarios.start} to {data.scenarios.stop - 1} of {folder}/"
        # The negated form also catches what is not a number.
        if not data.mismatch_mw().max() <= BALANCE_MW:
            yield f"The powers of {where} do not balance."
        largest = abs(data.admittance()).max()
        if not data.admittance_error() <= ADMITTANCE_SHARE * largest:
            yield f"Branches and admittances of {where} are of two networks."
        if voltages is not None and not _voltage_difference(data, voltages) <= CLOSE_PU:
            yield f"The voltages of {where} are not those of the corpus."


def _voltage_difference(data: GridfmData, corpus: Corpus) -> float:
    """Largest difference [p.u.] between tables and corpus."""
    steps = corpus.layout.steps
    first, last = data.scenarios.start // steps, (data.scenarios.stop - 1) // steps
    released = corpus.voltages(np.arange(first, last + 1)).reshape(-1, corpus.layout.nodes)
    offset = data.scenarios.start - first * steps
    stated = data.phasor()[:, : corpus.layout.nodes]
    return float(np.max(np.abs(stated - released[offset : offset + len(data.scenarios)])))
