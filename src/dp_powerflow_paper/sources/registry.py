"""Every part and other release that a comparison knows, in the order of its tables.

To add one, write its entry in the module of its class, and join the module's tuple here.
"""

from __future__ import annotations

from dp_powerflow_paper.dvorkin2020 import release as dvorkin2020
from dp_powerflow_paper.dvorkin2023 import release as dvorkin2023
from dp_powerflow_paper.fioretto2019 import feeder as fioretto2019_feeder
from dp_powerflow_paper.fioretto2019 import release as fioretto2019
from dp_powerflow_paper.learned import parts as learned
from dp_powerflow_paper.mak2019 import feeder as mak2019_feeder
from dp_powerflow_paper.mak2019 import release as mak2019
from dp_powerflow_paper.sources import given, iid, models
from dp_powerflow_paper.sources.entries import LoadEntry, NetworkEntry, OtherEntry

LOADS: tuple[LoadEntry, ...] = (
    *given.LOADS,
    *iid.LOADS,
    *models.LOADS,
    *learned.LOADS,
    *mak2019_feeder.LOADS,
)
NETWORKS: tuple[NetworkEntry, ...] = (*given.NETWORKS, *fioretto2019_feeder.NETWORKS)
OTHERS: tuple[OtherEntry, ...] = (
    *dvorkin2020.OTHERS,
    *dvorkin2023.OTHERS,
    *fioretto2019.OTHERS,
    *mak2019.OTHERS,
)
