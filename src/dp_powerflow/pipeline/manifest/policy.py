"""What a release promises of the network: constants of the config, in either mode.

Nothing here is computed from the network. A policy on the true network is a target that internal evidence
supports; that of a twin is a guarantee, and follows from its constants alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, Context
from functools import cached_property
from typing import Any

from dp_powerflow.config import Config, TwinNetwork
from dp_powerflow.grid.parameters import Quantity
from dp_powerflow.pipeline.manifest.entries import ReleaseError, entry, find, optional
from dp_powerflow.pipeline.twin import spread_of, twin_section
from dp_powerflow.privacy.accounting import gdp_epsilon
from dp_powerflow.twin.guarantee import TwinGuarantee, largest_change, neighbours_in_words, twin_guarantee
from dp_powerflow.twin.spread import Spread

TRUE_NETWORK, TWIN_NETWORK = "true-network", "twin-network"
VOLTAGES, NETWORK, WITH_LOADS = PUBLISHED = ("voltages", "network", "network and loads")
"""What of a twin can be released."""
GROUPS = (2, 10)
"""Numbers of elements changed together that the guarantee of a twin is also stated for."""
_AT = "guarantee.network"
_LARGEST_STATED_MU = 1e3
"""Where a guarantee says nothing at all any more, and the exact conversion ends."""


@dataclass(frozen=True)
class TruePolicy:
    """The policy of a release on the true network.

    Attributes
    ----------
    bound : `paper` or `full-support`.
    radius : r [p.u.], largest Frobenius norm of the change of the full admittance matrix.
    epsilon, delta : ε*, δ* for all days of the release together.
    evidence_required : whether the release would have been refused without supporting evidence.
    """

    bound: str
    radius: float
    epsilon: float
    delta: float
    evidence_required: bool

    @property
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random, so that a change of a line can be covered."""
        return self.bound == "full-support"


@dataclass(frozen=True)
class Group:
    """What a twin promises if several elements change together; no ε where none can be stated."""

    elements: int
    mu: float
    epsilon: float | None


@dataclass(frozen=True)
class TwinPolicy:
    """The policy of a release on a twin.

    Attributes
    ----------
    twin_id : public name of the twin, the same in every release made on it.
    spread : public noise of the twin.
    change : x: figures change by factors up to 1 + x.
    epsilon : ε*, the most that the twin was allowed to cost at δ.
    delta : where the guarantee is stated.
    published : what is released of the twin: `voltages`, `network`, or `network and loads`.
    all_nodes : whether every node is released, or those with a load of their own.
    table_days : days whose loads are published beside the voltages, in the tables of the twin.
    """

    twin_id: str
    spread: Spread
    change: float
    epsilon: float
    delta: float
    published: str
    all_nodes: bool
    table_days: int

    @property
    def full_support(self) -> bool:
        """Reactive load is drawn at random: the loads of a twin are those of the full-support bound."""
        return True

    @property
    def neighbours(self) -> str:
        """Whom the twin hides the difference of, in words."""
        return neighbours_in_words(self.spread, self.change)

    @cached_property
    def guarantee(self) -> TwinGuarantee:
        """The guarantee for one element, recomputed from the constants."""
        return twin_guarantee(self.spread, self.change, self.delta)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The guarantee for several elements changed together."""
        found = []
        for elements in GROUPS:
            mu = self.guarantee.mu * math.sqrt(elements)
            epsilon = gdp_epsilon(mu, self.delta) if mu <= _LARGEST_STATED_MU else None
            found.append(Group(elements, mu, epsilon))
        return tuple(found)

    @property
    def public_quantities(self) -> tuple[Quantity, ...]:
        """Quantities without noise."""
        return tuple(quantity for quantity in Quantity if self.spread.of(quantity) is None)

    def figures(self) -> dict[str, Any]:
        """Every figure that follows from spreads, x and δ; `verify` makes them again."""
        promised = self.guarantee
        spread = asdict(self.spread)
        return {
            "change": self.change,
            "code_epsilon": spread.pop("code_epsilon"),
            "spread": spread,
            "mu": promised.mu,
            "mu_by_element": dict(promised.mu_of),
            "epsilon": promised.epsilon,
            "delta": self.delta,
            "epsilon_granted": self.epsilon,
            "largest_change_at_epsilon_granted": self._largest_change,
            "groups": [asdict(group) for group in self.groups],
        }

    @cached_property
    def _largest_change(self) -> float | None:
        """Largest x at ε*, rounded down; None if only codes are protected, which change in any way."""
        if not any(True for _ in self.spread.protected()):
            return None
        # A step function of the noise's grid: rounded, so that another scipy finds the same.
        found = largest_change(self.spread, self.epsilon, self.delta)
        return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(repr(found)))


NetworkPolicy = TruePolicy | TwinPolicy


def policy_of(config: Config) -> NetworkPolicy:
    """Constants of the sections on the network and its twin."""
    section = config.network
    if isinstance(section, TwinNetwork):
        twin = section
        return TwinPolicy(
            twin_id=twin.id,
            spread=spread_of(config),
            change=twin.change,
            epsilon=section.epsilon,
            delta=section.delta,
            published=twin.publish,
            all_nodes=twin.released == "all",
            table_days=_table_days(config),
        )
    return TruePolicy(section.bound, section.radius, section.epsilon, section.delta, section.require_evidence)


def policy_from_manifest(manifest: Any) -> NetworkPolicy:
    """The constants that a manifest states; what it computes from them is not read."""
    mode = find(manifest, f"{_AT}.mode")
    if mode == TRUE_NETWORK:
        return TruePolicy(
            bound=entry(manifest, f"{_AT}.bound", str),
            radius=entry(manifest, f"{_AT}.radius", float),
            epsilon=entry(manifest, f"{_AT}.epsilon", float),
            delta=entry(manifest, f"{_AT}.delta", float),
            evidence_required=entry(manifest, f"{_AT}.evidence_required", bool),
        )
    if mode != TWIN_NETWORK:
        raise ReleaseError(f"the manifest's {_AT}.mode is unknown")
    tables = find(manifest, "data.twin_tables")
    etas = {quantity.value: optional(manifest, f"{_AT}.spread.{quantity}", float) for quantity in Quantity}
    return TwinPolicy(
        twin_id=entry(manifest, f"{_AT}.twin", str),
        spread=Spread(code_epsilon=optional(manifest, f"{_AT}.code_epsilon", float), **etas),
        change=entry(manifest, f"{_AT}.change", float),
        epsilon=entry(manifest, f"{_AT}.epsilon_granted", float),
        delta=entry(manifest, f"{_AT}.delta", float),
        published=entry(manifest, f"{_AT}.published", str),
        all_nodes=entry(manifest, f"{_AT}.all_nodes", bool),
        table_days=0 if tables is None else entry(manifest, "data.twin_tables.days", int),
    )


def _table_days(config: Config) -> int:
    twin, days = twin_section(config), config.release.days
    return min(twin.graph_days or days, days) if twin.publish == WITH_LOADS else 0
