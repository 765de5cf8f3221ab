"""What a config says of the network, and what it needs of feeder and customers: one class per mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.errors import ConfigError
from dp_powerflow.pipeline.customers import Services, count_customers
from dp_powerflow.pipeline.inputs import require_declared_taps
from dp_powerflow.pipeline.nodes import some_loaded_nodes
from dp_powerflow.pipeline.setup.feeder import FeederFacts, twin_problems
from dp_powerflow.pipeline.setup.public import BOUNDS_OF_SCALE, CustomerKind, kind_of
from dp_powerflow.pipeline.setup.text import PublicFacts, entry, quoted


@dataclass(frozen=True)
class TwinSetup:
    """Power flow on a twin; a load is a sum of customers.

    Attributes
    ----------
    needs_scale : whether every load point must have a public scale.
    note : what the producer must know of the mode.
    """

    acting: bool = True
    needs_scale: bool = False
    note: str | None = None

    def taps(self) -> Iterable[str]:
        return ('# taps = "taps.csv"             # regulator taps, declared public; a twin solves its own',)

    def bounds(self, facts: PublicFacts, kind: CustomerKind) -> tuple[float, float]:
        return BOUNDS_OF_SCALE if facts.scaled else kind.bounds_kw

    def nodes(self, facts: PublicFacts) -> Iterable[str]:
        """Customers of a load."""
        why = "nominal kW of a load per customer: 3 to 4 with electric heating"
        yield entry("kw_per_customer", facts.kind.kw_per_customer, why)
        if others := facts.other_labels:
            yield "[nodes.kw_per_customer_of_class]"
            yield from (entry(quoted(label), kind_of(label).kw_per_customer) for label in others)

    def network(self) -> Iterable[str]:
        """Differential privacy worth having: ε = 1 for a change of 5 % of a line."""
        return (
            "[network]",
            entry("mode", "twin-network", "power flow on a differentially private twin of the feeder"),
            entry("epsilon", 1.0, "differential privacy of one line, for any number of days"),
            entry("change", 0.05, "neighbours: R and X of one line changed by factors up to 1.05"),
            entry(
                "id", "twin-1", "the same twin serves every release; a new id is a new twin and is paid for"
            ),
            entry("noise", "laplace", "laplace: no delta | gaussian: with a delta, for many twins"),
            entry("lines", "impedance", "R and X of every line | length, where conductor codes are public"),
            entry("transformers", False, "true: their impedances are protected too; false: they are public"),
            entry("capacitors", False, "true: their sizes too"),
            entry("pv", False, "true: capacities of PV systems too"),
            entry("released", "all", "voltages of every node | loaded: of those with a load"),
            entry("controls", "day", "regulators and capacitors act through a day"),
            entry(
                "also_publish",
                ["loads", "head", "states", "connections"],
                "P and Q, head, taps, buses and what joins them",
            ),
            entry("coordinates", "private", "public: of the buses; lengths of lines are then NOT protected"),
        )

    def problems(self, config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
        """Why no twin can be drawn of the feeder, and which nodes of the service map it lacks; INTERNAL."""
        assert isinstance(config.network, TwinNetwork)
        found = twin_problems(facts, config.network.design)
        try:
            count_customers(config, facts.feeder, services)
        except ConfigError as error:
            return (*found, str(error))
        return found


@dataclass(frozen=True)
class TrueSetup:
    """Power flow on the true network, the paper's Algorithm 1; a node is one load point scaled up.

    Attributes
    ----------
    needs_scale, note : as of a twin.
    """

    acting: bool = False
    needs_scale: bool = True
    note: str | None = (
        "mode true-network is per-instance evidence, not differential privacy, and covers next to nothing"
    )

    def taps(self) -> Iterable[str]:
        return ()

    def bounds(self, facts: PublicFacts, kind: CustomerKind) -> tuple[float, float]:
        return kind.bounds_of_one(facts.any_scale_kw)

    def nodes(self, facts: PublicFacts) -> Iterable[str]:
        """The upper bound of a node is its nominal load, which feeders are built for: a public rule."""
        factor = float(f"{1.0 / self.bounds(facts, facts.kind)[1]:.2g}")
        yield entry("scale_factor", factor, "at its upper bound a node draws its nominal load, no more")
        yield "#                               # a load point of several customers has lower peaks: more load"

    def network(self) -> Iterable[str]:
        """A policy that says of itself that it protects nothing much."""
        return (
            "# The paper's Algorithm 1 as printed: fixed power factors, days cut to the bounds, r = 1e-4.",
            "# Per-instance evidence, NOT differential privacy. It covers no change of a line: one snapshot",
            "# tells a changed line from the true one. Mode twin-network protects lines.",
            "[network]",
            entry("mode", "true-network", "power flow on the true network"),
            entry("bound", "paper", "paper: formula as printed | corrected: repaired | full-support"),
            entry("radius", 1e-4, "neighbours: changes of existing lines up to this Frobenius norm [p.u.]"),
            "# The corrected variant instead: reactive load is random too and days pass the bounds, so that",
            "# changes of a line are covered, far below what anybody could measure.",
            '# bound = "full-support"',
            "# radius = 1e-12",
            entry("epsilon", 100.0, "policy for the whole corpus: no meaningful protection, and it says so"),
            entry("delta", 0.2),
            entry("calibration_days", 1000, "of the Monte Carlo calibration"),
            entry("require_evidence", False, "true: refuse a release that its evidence does not support"),
        )

    def problems(self, config: Config, facts: FeederFacts, services: Services) -> tuple[str, ...]:
        """Why the feeder cannot be solved with fixed taps; INTERNAL."""
        try:
            some_loaded_nodes(facts.feeder)
            require_declared_taps(config, facts.feeder)
        except ConfigError as error:
            return (str(error),)
        return ()


MODES: Mapping[str, TwinSetup | TrueSetup] = {"twin-network": TwinSetup(), "true-network": TrueSetup()}
DEFAULT_MODE = next(iter(MODES))


def mode_named(word: str) -> TwinSetup | TrueSetup:
    """The mode of the network that is asked for."""
    if word not in MODES:
        raise ConfigError(f"--mode is one of {', '.join(MODES)}, not '{word}'")
    return MODES[word]
