"""Feeders, loads and sun that twins are compared on: public ones, or those of a config."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from dp_powerflow import BatchSolver, Config, Feeder, Protected, TwinDesign, open_feeder
from dp_powerflow._bits.elementary import modulus
from dp_powerflow.grid.feeder import TAPS_DECLARED
from dp_powerflow.grid.ieee import BUILT_IN
from dp_powerflow.grid.sources import TapTable
from dp_powerflow.lowlevel import Rebuilder, TwinNetwork, VoltVar, surrogate_load
from dp_powerflow.pipeline.inputs import feeder_of, require_declared_taps
from dp_powerflow.units import ComplexArray, FloatArray, IntArray
from dp_powerflow_paper.datasets import ExperimentOptions, open_dataset

SIMBENCH = "simbench:1-MV-rural--0-no_sw"
SURROGATE_FEEDERS = ("ieee13", SIMBENCH)
SPREAD_DAYS, THINNED = 28, 16
"""Days over the year, of whose snapshots every 16th is solved."""


@dataclass(frozen=True, eq=False)
class Setting:
    """A feeder under loads and generation.

    Attributes
    ----------
    feeder : name of a public feeder; of the release whose `config` has it otherwise.
    load, generation : complex (snapshot, retained) [p.u.]; None without PV.
    voltvar : control of the PV systems, the same on every twin.
    compared : positions among the retained nodes of those whose voltages are compared; None for all.
    """

    feeder: str
    words: str
    load: ComplexArray
    generation: ComplexArray | None = None
    voltvar: VoltVar | None = None
    compared: IntArray | None = None
    config: Config | None = None
    network: str = ""

    @property
    def identity(self) -> str:
        """Hash of what is solved; a public network goes by its name, another by `network`."""
        words = (self.feeder, self.network, self.voltvar and self.voltvar.curves, self.own_design)
        digest = hashlib.sha256(repr(words).encode())
        for array in (self.load, self.generation, self.compared):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def own_design(self) -> TwinDesign | None:
        """That of the config, if it is about a twin."""
        network = None if self.config is None else self.config.network
        return network.design if isinstance(network, TwinNetwork) else None

    def open(self) -> Feeder:
        """Its feeder, with declared taps."""
        return public_feeder(self.feeder) if self.config is None else feeder_of(self.config)

    def rebuilder(self, feeder: Feeder, protected: Protected) -> Rebuilder:
        """The feeder's source, for twins of it."""
        islands = self.config is not None and self.config.feeder.drop_islanded
        return Rebuilder(feeder, protected, drop_islanded=islands)

    def magnitudes(self, feeder: Feeder) -> FloatArray:
        """|v| (snapshot, compared node) [p.u.] on any network; refuses snapshots without a solution."""
        solution = BatchSolver(feeder, voltvar=self.voltvar).solve(self.load, self.generation)
        solution.raise_if_failed()
        return modulus(solution.v if self.compared is None else solution.v[:, self.compared])


def settings_of(options: ExperimentOptions) -> list[Setting]:
    """IEEE 123 under the chosen profiles and two feeders under a public day; or the feeder of a config."""
    data = open_dataset(options)
    days = data.spread_days(min(SPREAD_DAYS, data.n_days))
    load = np.zeros((len(days) * data.n_steps, data.network.n), dtype=np.complex128)
    load[:, data.loaded] = data.true_load(days).reshape(len(load), -1)
    sun = None if data.generation is None else data.generation.of(days)[::THINNED]
    own = Setting(data.feeder.name, data.words, load[::THINNED], sun, data.voltvar, data.loaded)
    if options.config is None:
        return [own, *(surrogate(name) for name in SURROGATE_FEEDERS)]
    require_declared_taps(options.config, data.feeder)
    return [replace(own, feeder=data.name, config=options.config, network=data.identity)]


def public_feeder(name: str) -> Feeder:
    """A public feeder; the taps of its regulators are declared, so that all twins have the same."""
    feeder = open_feeder(name)
    if name not in BUILT_IN:  # a SimBench code is public with its taps
        return feeder
    return open_feeder(name, taps=TapTable(feeder.taps, f"{TAPS_DECLARED}the public test feeder"))


def surrogate(name: str) -> Setting:
    """A public feeder under a scattered day of public loads."""
    return Setting(name, f"{name} under a public day of loads", surrogate_load(public_feeder(name)))
