"""Checks the tables of a release against their own power flow and against the corpus beside them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_powerflow.corpus.gridfm.reader import GridfmData, count_scenarios, read_gridfm
from dp_powerflow.corpus.gridfm.schema import SCENARIOS_PER_PARTITION, GridfmStyle
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.units import IntArray

BALANCE_MW = 1e-5
"""Largest power that may be missing at a bus of the tables: far above rounding (1e-8), below any load."""
ADMITTANCE_SHARE = 1e-9
"""Largest difference between y_bus_data and the branches, as a share of the largest entry."""
FARTHEST_DEG = 90.0
"""Largest angle of a voltage that is turned back by its nominal angle; another phase is 120 away."""


def check_tables(
    corpus: Location, folder: str, scenarios: int, style: GridfmStyle, *, close_pu: float | None
) -> list[str]:
    """What is wrong with the tables in a folder of a corpus, one sentence each; never raises.

    Parameters
    ----------
    scenarios : how many there should be.
    style : how they should be written.
    close_pu : how near their voltages are to those of the corpus [p.u.], scenario day·steps + step; None if
        they have nothing to do with them.
    """
    try:
        beside = None if close_pu is None else (open_corpus(corpus), close_pu)
        return list(_problems(corpus / folder, scenarios, style, beside))
    except (DpPowerflowError, OSError, LookupError, TypeError, ValueError, ArithmeticError):
        return [f"The tables in {folder}/ are missing, damaged or not complete."]


def _problems(
    tables: Location, scenarios: int, style: GridfmStyle, beside: tuple[Corpus, float] | None
) -> Iterator[str]:
    folder = tables.name
    if count_scenarios(tables) != scenarios:
        yield f"The tables in {folder}/ hold another number of scenarios than the manifest says."
        return
    for partition in range(-(-scenarios // SCENARIOS_PER_PARTITION)):
        data = read_gridfm(tables, partition)
        where = f"scenarios {data.scenarios.start} to {data.scenarios.stop - 1} of {folder}/"
        # The negated form also catches what is not a number.
        if not data.mismatch_mw().max() <= BALANCE_MW:
            yield f"The powers of {where} do not balance."
        largest = abs(data.admittance()).max()
        if not data.admittance_error() <= ADMITTANCE_SHARE * largest:
            yield f"Branches and admittances of {where} are of two networks."
        if not style.turned and data.turn_deg().any():
            yield f"The voltages of {where} are turned back, and the manifest says that they are phasors."
        if style.turned and not np.abs(data.column("bus", "Va")).max() < FARTHEST_DEG:
            yield f"The voltages of {where} are not turned back as the manifest says."
        if not style.merged and _shared(data):
            yield f"Nodes of the corpus share a bus in {where}, and the manifest says that none are merged."
        if beside is not None and not _voltage_difference(data, beside[0]) <= beside[1]:
            yield f"The voltages of {where} are not those of the corpus."


def _shared(data: GridfmData) -> bool:
    """Whether two rows of the corpus have one bus."""
    return data.bus_of_row is not None and len(np.unique(data.bus_of_row)) < len(data.bus_of_row)


def _rows(data: GridfmData, corpus: Corpus) -> IntArray:
    """(row,) bus of every row of the corpus; tables that do not say it begin with those."""
    own, nodes = data.bus_of_row, corpus.layout.nodes
    return np.arange(nodes) if own is None else own[np.arange(nodes)]


def _voltage_difference(data: GridfmData, corpus: Corpus) -> float:
    """Largest difference [p.u.] between tables and corpus."""
    steps = corpus.layout.steps
    first, last = data.scenarios.start // steps, (data.scenarios.stop - 1) // steps
    released = corpus.voltages(np.arange(first, last + 1)).reshape(-1, corpus.layout.nodes)
    offset = data.scenarios.start - first * steps
    stated = data.phasor()[:, _rows(data, corpus)]
    return float(np.max(np.abs(stated - released[offset : offset + len(data.scenarios)])))
