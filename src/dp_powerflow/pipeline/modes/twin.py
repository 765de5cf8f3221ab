"""Mode 'twin-network': power flow on a differentially private twin, paid for once, drawn once, kept.

The cost follows from public constants. Everything after the twin is post-processing of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from dp_powerflow._bits.elementary import modulus
from dp_powerflow.config import TwinNetwork
from dp_powerflow.corpus.gridfm.writer import GridfmWriter
from dp_powerflow.corpus.storage import Location
from dp_powerflow.errors import ConfigError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import network_parameters
from dp_powerflow.model.sample import LoadSampler, solve_days
from dp_powerflow.pipeline.inputs import NetworkInputs, Solar, network_chunks
from dp_powerflow.pipeline.modes.base import (
    InternalReport,
    NetworkCharge,
    NetworkMode,
    Progress,
    Scene,
    Solvable,
    left_afterwards,
)
from dp_powerflow.pipeline.parts import GraphTables
from dp_powerflow.powerflow.batch import BatchSolver
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import GdpCap, GdpCost
from dp_powerflow.privacy.ledger.records import Preview
from dp_powerflow.twin import (
    FORMAT,
    LOG_GRID,
    Twin,
    TwinGuarantee,
    draw_twin,
    largest_change,
    parameters_of,
    predict,
    rebuilder_of,
    twin_guarantee,
    twin_neighbours,
    voltage_distance,
)
from dp_powerflow.units import FloatArray, IntArray

TABLES = "twin"
"""Folder of the published twin."""
COMPARED_DAYS = 8
COMPARISON = "comparison of the twin"


class TwinMode(NetworkMode[TwinNetwork]):
    """Power flow on a twin."""

    section_type = TwinNetwork
    charged_first = True

    @property
    def neighbours(self) -> Neighbours:
        """Networks that differ in one element."""
        return twin_neighbours(self.section.spread, self.section.change)

    @property
    def guarantee(self) -> TwinGuarantee:
        """What the twin promises; refused if that is more than the policy of the network allows."""
        section = self.section
        promised = twin_guarantee(section.spread, section.change, section.delta)
        if promised.epsilon > section.epsilon:
            raise ConfigError(
                f"the twin's spread gives ε = {promised.epsilon:.4g} at δ = {section.delta:g} for a change "
                f"by a factor of {1.0 + section.change:g}, above network.epsilon = {section.epsilon:g}; "
                "raise the spreads, or the policy"
            )
        return promised

    def charge(self, request_sha256: str) -> NetworkCharge:
        """The cost of the twin, under its own id."""
        section, neighbours = self.section, self.neighbours
        epsilon = self.config.release.network_epsilon_cap or section.epsilon
        return NetworkCharge(
            GdpCost(self.guarantee.mu, neighbours),
            GdpCap.from_epsilon(epsilon, section.delta, neighbours),
            self.paid_by,
            self._request,
        )

    def charged_otherwise(self) -> str:
        """A twin id stands for one twin."""
        return (
            f"twin '{self.paid_by}' of this network was drawn with other spreads, for another change or from "
            "another version of the network; restore those, or choose a new twin id, which is paid for anew; "
            "nothing was spent"
        )

    def check(self, inputs: NetworkInputs) -> None:
        """What the twin would not protect is refused, and so is a guarantee beyond the policy."""
        spread = self.section.spread
        parameters_of(rebuilder_of(inputs.feeder, spread), spread)
        self.charge("")

    def identity_chunks(self, inputs: NetworkInputs) -> Iterator[bytes]:
        """The network and the parameters that twins are drawn from, whatever the spread."""
        yield from network_chunks(inputs.feeder)
        absolute = network_parameters(inputs.feeder)
        for key, level in sorted(absolute.levels.items()):
            yield repr((key.quantity.value, key.element, level)).encode()
        yield repr(absolute.coded).encode()

    def network_to_solve(self, inputs: NetworkInputs, dataset: str) -> Solvable:
        """The twin that is kept for this network, or a fresh draw that is kept from now on."""
        twin = self._kept(inputs, dataset)
        if twin is None:
            twin = self._draw(inputs, dataset)
            content = twin.to_json().encode()
            inputs.state.write_internal(self._directory, _file(dataset), content)
        return self._built(inputs, twin)

    def network_again(self, inputs: NetworkInputs) -> Solvable:
        """The twin drawn anew."""
        return self._built(inputs, self._draw(inputs, self.identity(inputs)))

    def kept_is_the_one(self, inputs: NetworkInputs) -> bool | None:
        """Whether key and true network give the twin that all was solved on."""
        dataset = self.identity(inputs)
        kept = self._kept(inputs, dataset)
        return kept is not None and kept.to_json() == self._draw(inputs, dataset).to_json()

    def released_nodes(self, feeder: Feeder) -> IntArray:
        """Nodes with a load, or all but the sources: a twin has nothing to hide at the others."""
        if self.section.released == "all":
            return np.asarray(feeder.energised, dtype=np.int64)
        return super().released_nodes(feeder)

    def tables(self, root: Location, feeder: Feeder, released: IntArray) -> GraphTables | None:
        """The twin as tables for graph models, with the loads of some days where they are published."""
        section, days = self.section, self.config.release.days
        if section.publish == "voltages":
            return None
        order = np.concatenate([released, np.setdiff1d(np.arange(len(feeder.nodes)), released)])
        with_loads = section.publish == "network and loads"
        count = min(section.graph_days or days, days) if with_loads else 0
        return GraphTables(TABLES, GridfmWriter(root / TABLES, feeder, order=order), count)

    def report(self, inputs: NetworkInputs, scene: Scene, progress: Progress | None = None) -> InternalReport:
        """Guarantee of the twin, and its voltages against the true ones under loads that no release uses."""
        law = scene.nodes.law(scene.model, inputs.feeder)
        sampler = LoadSampler(law, inputs.key.bind("purpose", COMPARISON), COMPARED_DAYS)
        distance: Any
        try:
            on_true = _magnitudes(inputs.feeder, inputs.solar, sampler)
            on_twin = _magnitudes(scene.network.feeder, scene.network.solar, sampler)
            distance = asdict(voltage_distance(on_true, on_twin))
        except PowerFlowError as error:
            distance = f"none: {error}"
        found = {
            "guarantee": asdict(self.guarantee),
            "days compared": min(COMPARED_DAYS, sampler.days_per_block),
            "distance to the true network [p.u.]": distance,
        }
        return InternalReport.make(self.config.release.id, True, found)

    def plan_lines(self, preview: Preview) -> list[str]:
        """The guarantee, and what the spread costs on public feeders."""
        section, promised = self.section, self.guarantee
        covered = largest_change(section.spread, section.epsilon, section.delta)
        return [
            f"Network: twin **{section.id}**, ε = {promised.epsilon:.4g} at δ = {section.delta:g} of "
            f"differential privacy (μ = {promised.mu:.4g}), for any number of days, for "
            f"{self.neighbours}. " + left_afterwards(preview, "This twin"),
            "",
            "| kind of element | μ |",
            "|---|---|",
            *(f"| {kind} | {mu:.4g} |" for kind, mu in promised.mu_of.items()),
            "",
            f"The policy ε = {section.epsilon:g} would cover factors up to {1.0 + covered:.4g}.",
            "",
            "What this spread costs on public feeders (nothing of the network is looked at): distance W1 of",
            "the voltage magnitudes [p.u.], median and largest of several twins:",
            "",
            "| feeder | twins | pooled | worst node |",
            "|---|---|---|---|",
            *(
                f"| {row.feeder} | {row.twins} | {row.median.pooled:.2g}, {row.largest.pooled:.2g} | "
                f"{row.median.worst_node:.2g}, {row.largest.worst_node:.2g} |"
                for row in predict(section.spread)
            ),
        ]

    def outcome(self, met: bool) -> str:
        """Where to find how far the twin is from the true network."""
        return f"solved on twin '{self.section.id}', whose distance to the true network is in the report"

    @property
    def _request(self) -> str:
        """Hash of all the public choices that decide the twin; a twin id with others is refused."""
        content = {
            "format": FORMAT,
            "id": self.section.id,
            "change": self.section.change,
            "delta": self.section.delta,
            "spread": asdict(self.section.spread),
            "grid": LOG_GRID,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def _directory(self) -> str:
        return f"twin-{self.section.id}"

    def _draw(self, inputs: NetworkInputs, dataset: str) -> Twin:
        """A draw bound to the twin, to the network and to every public choice: pay once per network."""
        spread = self.section.spread
        key = inputs.state.stream_key().bind("twin", self.section.id).bind("network", dataset)
        parameters = parameters_of(rebuilder_of(inputs.feeder, spread), spread)
        return draw_twin(parameters, spread, key.bind("request", self._request))

    def _kept(self, inputs: NetworkInputs, dataset: str) -> Twin | None:
        stored = inputs.state.read_internal(self._directory, _file(dataset))
        twin = None if stored is None else Twin.from_json(stored.decode())
        if twin is not None and twin.spread != self.section.spread:
            raise PrivacyError(
                f"the kept twin '{self.section.id}' has other spreads than the config; restore them, or "
                "choose a new twin id"
            )
        return twin

    def _built(self, inputs: NetworkInputs, twin: Twin) -> Solvable:
        dropped = self.config.feeder.drop_islanded
        feeder = twin.feeder(rebuilder_of(inputs.feeder, twin.spread, drop_islanded=dropped))
        identity = hashlib.sha256(twin.to_json().encode()).hexdigest()
        return Solvable(feeder, inputs.solar_on(feeder), identity)


def _file(dataset: str) -> str:
    return f"twin-{dataset[:16]}.json"


def _magnitudes(feeder: Feeder, solar: Solar, sampler: LoadSampler) -> FloatArray:
    solver = BatchSolver(feeder, voltvar=solar.voltvar)
    solution = solve_days(solver, sampler, generation=solar.generation).solution
    solution.raise_if_failed()
    return modulus(solution.v)
