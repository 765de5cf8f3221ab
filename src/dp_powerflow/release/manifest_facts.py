"""The public facts that a manifest is made of, and what must hold between them.

A manifest is a pure function of these facts and of the hashes of the files. `verify` reads the facts back
from a release, makes the manifest again and compares: whatever it says beyond them is caught.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from typing import Any, TypeVar

from dp_powerflow.config import Config
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.ledger_kinds import InstanceCap, LoadsCap, Statement, fits
from dp_powerflow.privacy.ledger_records import Balance

PACKAGES = (
    "dp-powerflow",
    "dp-accounting",
    "dss-python",
    "jinja2",
    "numba",
    "numpy",
    "pyarrow",
    "pydantic",
    "randomgen",
    "scipy",
)
"""Whose versions the manifest names: what computed, drew, wrote or stated anything of the release."""

RELATIVE = 1e-9
"""Figures that are computed again may differ by this share: other versions of scipy, other last digits."""

T = TypeVar("T", str, int, float, bool)


class ReleaseError(DpPowerflowError):
    """A release cannot be described, or a directory is not a release."""


@dataclass(frozen=True)
class NetworkPolicy:
    """What the network is promised; constants of the config, nothing computed from the network.

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


@dataclass(frozen=True)
class Declared:
    """Declared-public inputs that the load model does not repeat.

    Attributes
    ----------
    power_factor : cos θ of every load.
    scale_factor : public factor on the nominal load of a node.
    variance_floor : smallest eigenvalue of a released covariance of log load.
    reactive_correlation_minutes : correlation time of the reactive part [min]; None if there is none.
    volt_var : control of the generators on public irradiance, such as ``"none"``; None without generation.
    """

    power_factor: float
    scale_factor: float
    variance_floor: float
    reactive_correlation_minutes: float | None
    volt_var: str | None


@dataclass(frozen=True)
class AccountFacts:
    """An account of the ledger just after the spend of this release.

    Attributes
    ----------
    cap : the most that may ever be spent.
    charges : spends so far, this one included.
    spent : by quantity that adds up: rho; or epsilon and delta.
    """

    cap: LoadsCap | InstanceCap
    charges: int
    spent: Mapping[str, float]

    @classmethod
    def of(cls, balance: Balance) -> AccountFacts:
        if not isinstance(balance.cap, LoadsCap | InstanceCap):
            raise ReleaseError(
                f"a manifest of a true-network release cannot state an account of the kind {balance.cap.kind}"
            )
        return cls(balance.cap, balance.n_spends, balance.spent)

    @property
    def promise(self) -> Statement:
        """What all spends together promise, computed from what was spent."""
        return self.cap.statement({name: Fraction(value) for name, value in self.spent.items()})

    def to_plain(self) -> dict[str, Any]:
        promise = self.promise
        return {
            "charges": self.charges,
            "unit": str(self.cap.unit),
            "cap": {"epsilon": self.cap.epsilon, "delta": self.cap.delta},
            "spent": dict(self.spent),
            "promise": {
                "epsilon": promise.epsilon,
                "delta": promise.delta,
                "definition": promise.definition,
            },
        }


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything a manifest says, but for the sentences."""

    release_id: str
    insecure_seed: bool
    model: LoadModel
    layout: CorpusLayout
    policy: NetworkPolicy
    declared: Declared
    loads: AccountFacts
    network: AccountFacts
    versions: Mapping[str, str]
    commitment_sha256: str

    @property
    def full_support(self) -> bool:
        """Whether reactive load is drawn at random, so that a change of a line can be covered."""
        return self.policy.bound == "full-support"


def policy_of(config: Config) -> NetworkPolicy:
    """Constants of the network section."""
    section = config.network
    if section.bound is None:
        raise ReleaseError("the manifest needs the network bound; set network.bound in the config")
    return NetworkPolicy(
        section.bound, section.radius, section.epsilon, section.delta, section.require_evidence
    )


def declared_of(config: Config) -> Declared:
    """Declared-public inputs; no path, no name of a load, a file or a customer is among them."""
    spread = config.network.bound == "full-support"
    return Declared(
        power_factor=config.model.power_factor,
        scale_factor=config.nodes.scale_factor,
        variance_floor=config.model.variance_floor,
        reactive_correlation_minutes=config.model.reactive_correlation_minutes if spread else None,
        volt_var=None if config.pv is None else config.pv.volt_var,
    )


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages named in `PACKAGES`."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def facts_from_manifest(manifest: Any, model: LoadModel, layout: CorpusLayout) -> Facts:
    """The facts of a release: shape and load model from its files, declared constants from its manifest."""
    network = "guarantee.network"
    declared = "declared_public"
    correlation = find(manifest, f"{declared}.reactive.correlation_minutes")
    generation = find(manifest, f"{declared}.generation")
    return Facts(
        release_id=entry(manifest, "release.id", str),
        insecure_seed=entry(manifest, "release.insecure_seed", bool),
        model=model,
        layout=layout,
        policy=NetworkPolicy(
            bound=entry(manifest, f"{network}.bound", str),
            radius=entry(manifest, f"{network}.radius", float),
            epsilon=entry(manifest, f"{network}.epsilon", float),
            delta=entry(manifest, f"{network}.delta", float),
            evidence_required=entry(manifest, f"{network}.evidence_required", bool),
        ),
        declared=Declared(
            power_factor=entry(manifest, f"{declared}.power_factor", float),
            scale_factor=entry(manifest, f"{declared}.node_scales.factor", float),
            variance_floor=entry(manifest, f"{declared}.variance_floor", float),
            reactive_correlation_minutes=None
            if correlation is None
            else entry(manifest, f"{declared}.reactive.correlation_minutes", float),
            volt_var=None if generation is None else entry(manifest, f"{declared}.generation.volt_var", str),
        ),
        loads=_loads_account(manifest),
        network=_network_account(manifest),
        versions={name: entry(manifest["software"], name, str) for name in ("python", *PACKAGES)},
        commitment_sha256=entry(manifest, "internal_report.sha256", str),
    )


def _loads_account(manifest: Any) -> AccountFacts:
    at = "composition.loads"
    cap = LoadsCap(
        entry(manifest, f"{at}.cap.epsilon", float),
        entry(manifest, f"{at}.cap.delta", float),
        PrivacyUnit(entry(manifest, f"{at}.unit", str)),
    )
    spent = {"rho": entry(manifest, f"{at}.spent.rho", float)}
    return AccountFacts(cap, entry(manifest, f"{at}.charges", int), spent)


def _network_account(manifest: Any) -> AccountFacts:
    at = "composition.network"
    cap = InstanceCap(
        entry(manifest, f"{at}.cap.epsilon", float),
        entry(manifest, f"{at}.cap.delta", float),
        entry(manifest, f"{at}.unit", str),
    )
    spent = {name: entry(manifest, f"{at}.spent.{name}", float) for name in ("epsilon", "delta")}
    return AccountFacts(cap, entry(manifest, f"{at}.charges", int), spent)


def find(manifest: Any, path: str) -> Any:
    """What is at a path such as ``"release.id"``."""
    found = manifest
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ReleaseError(f"the manifest has no entry {path}")
        found = found[name]
    return found


def entry(manifest: Any, path: str, kind: type[T]) -> T:
    """The value at a path, or an error if it is of another type; a truth value is not a number."""
    found = find(manifest, path)
    if type(found) is not kind:
        raise ReleaseError(f"the manifest's {path} is not of the type {kind.__name__}")
    return found


def contradictions(facts: Facts) -> list[str]:
    """What cannot be true of a release, one sentence each; empty if the facts agree."""
    return [*_model_contradictions(facts), *_account_contradictions(facts)]


def _model_contradictions(facts: Facts) -> list[str]:
    model, layout = facts.model, facts.layout
    problems = []
    if model.insecure_seed != facts.insecure_seed:
        problems.append("The load model and the release disagree on whether the noise came from a seed.")
    if model.n_steps != layout.steps or model.n_steps * model.step_minutes != 24 * 60:
        problems.append("The steps of the corpus are not those of the load model's day.")
    if model.spent_epsilon > model.epsilon * (1 + RELATIVE):
        problems.append("The queries cost more than the budget that was granted.")
    tan_theta = math.tan(math.acos(facts.declared.power_factor))
    for part in model.classes:
        if not math.isclose(part.reactive.tan_theta, tan_theta, rel_tol=RELATIVE, abs_tol=RELATIVE):
            problems.append("The load model's power factor is not the declared one.")
            break
    spreads = {part.reactive.spread for part in model.classes}
    if len(spreads) != 1 or (min(spreads) > 0) != facts.full_support:
        problems.append("The load model's reactive spread does not go with the bound of the network policy.")
    if (facts.declared.reactive_correlation_minutes is not None) != facts.full_support:
        problems.append("The declared reactive correlation does not go with the bound of the network policy.")
    return problems


def _account_contradictions(facts: Facts) -> list[str]:
    model, loads, network, policy = facts.model, facts.loads, facts.network, facts.policy
    problems = []
    if not isinstance(loads.cap, LoadsCap) or loads.cap.unit is not model.unit:
        problems.append("The account of the loads is about another unit than the load model.")
    if loads.charges < 1 or network.charges < 1:
        problems.append("An account of the composition does not count this release.")
    if loads.spent["rho"] < model.rho * (1 - RELATIVE):
        problems.append("The account of the loads holds less than the queries of this release cost.")
    for name, own in (("epsilon", policy.epsilon), ("delta", policy.delta)):
        spent = network.spent[name]
        alone = network.charges == 1
        if spent < own * (1 - RELATIVE) or (alone and not math.isclose(spent, own, rel_tol=RELATIVE)):
            problems.append(f"The account of the network does not hold this release's {name}.")
    for account, what in ((loads, "loads"), (network, "network")):
        amounts = {name: Fraction(value) for name, value in account.spent.items()}
        limits = {name: value * (1 + Fraction(RELATIVE)) for name, value in account.cap.limits().items()}
        if not fits(amounts, limits):
            problems.append(f"The account of the {what} has passed its cap.")
    return problems
