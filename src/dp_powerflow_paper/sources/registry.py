"""Every part and other release that a comparison knows, in the order of its tables.

To add one, write its entry in the module of its class, and join the module's tuple here.
"""

from __future__ import annotations

from dp_powerflow import TwinDesign
from dp_powerflow_paper.dvorkin2020 import release as dvorkin2020
from dp_powerflow_paper.dvorkin2023 import release as dvorkin2023
from dp_powerflow_paper.fioretto2019 import feeder as fioretto2019_feeder
from dp_powerflow_paper.fioretto2019 import release as fioretto2019
from dp_powerflow_paper.learned import parts as learned
from dp_powerflow_paper.mak2019 import feeder as mak2019_feeder
from dp_powerflow_paper.mak2019 import release as mak2019
from dp_powerflow_paper.mechanisms.noise import GaussianNoise
from dp_powerflow_paper.sources import LoadMechanism, NetworkMechanism, iid, models
from dp_powerflow_paper.sources.entries import LoadEntry, NetworkEntry, Occasion, OtherEntry
from dp_powerflow_paper.sources.loads import TrueLoads
from dp_powerflow_paper.sources.networks import EntriesOfY, TrueNetwork, Twin


def _true_loads(occasion: Occasion) -> LoadMechanism:
    return TrueLoads(occasion.true_load)


def _true_network(occasion: Occasion) -> NetworkMechanism:
    return TrueNetwork(occasion.data.feeder)


def _entries_of_y(occasion: Occasion) -> NetworkMechanism:
    noise = GaussianNoise(occasion.data.radius, occasion.target.epsilon, occasion.target.delta)
    return EntriesOfY(occasion.data.feeder, noise)


def _twin(occasion: Occasion) -> NetworkMechanism:
    return Twin(occasion.data.feeder, TwinDesign(occasion.target.epsilon, protected=occasion.data.protected))


def _gaussian_twin(occasion: Occasion) -> NetworkMechanism:
    design = TwinDesign(
        occasion.target.epsilon,
        noise="gaussian",
        delta=occasion.target.delta,
        protected=occasion.data.protected,
    )
    return Twin(occasion.data.feeder, design)


_TWIN_AUDIT = "tests/audit/test_twin_audit.py"

LOADS: tuple[LoadEntry, ...] = (
    LoadEntry(key="true", title="true loads", paper="ours", make=_true_loads),
    *iid.LOADS,
    *models.LOADS,
    *learned.LOADS,
    *mak2019_feeder.LOADS,
)
NETWORKS: tuple[NetworkEntry, ...] = (
    NetworkEntry(key="true", title="true network", paper="ours", make=_true_network),
    NetworkEntry(
        key="entries-of-y", title="noise on entries of Y", paper="ours", matched=False, make=_entries_of_y
    ),
    NetworkEntry(key="twin", title="twin, Laplace", paper="ours", make=_twin, audited_by=_TWIN_AUDIT),
    NetworkEntry(
        key="gaussian-twin", title="twin, Gaussian", paper="ours", make=_gaussian_twin, audited_by=_TWIN_AUDIT
    ),
    *fioretto2019_feeder.NETWORKS,
)
OTHERS: tuple[OtherEntry, ...] = (
    *dvorkin2020.OTHERS,
    *dvorkin2023.OTHERS,
    *fioretto2019.OTHERS,
    *mak2019.OTHERS,
)
