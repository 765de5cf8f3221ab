"""The public facts that a manifest is made of.

A manifest is a pure function of these facts and of the hashes of the files. `verify` reads the facts back
from a release, makes the manifest again and compares: whatever it says beyond them is caught.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from typing import Any

from dp_powerflow.config import Config
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.manifest.entries import entry, find, optional
from dp_powerflow.pipeline.manifest.policy import NetworkPolicy, TwinPolicy, policy_from_manifest
from dp_powerflow.privacy.accounting import gdp_epsilon
from dp_powerflow.privacy.budget import PrivacyUnit
from dp_powerflow.privacy.ledger.accounts import Cap, GdpCap, InstanceCap, LoadsCap, Statement
from dp_powerflow.privacy.ledger.records import Balance

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
    spent : by quantity that adds up: rho; epsilon and delta; or mu_squared.
    """

    cap: Cap
    charges: int
    spent: Mapping[str, float]

    @classmethod
    def of(cls, balance: Balance) -> AccountFacts:
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
            "cap": _cap_to_plain(self.cap),
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
        """Whether reactive load is drawn at random."""
        return self.policy.full_support


def declared_of(config: Config) -> Declared:
    """Declared-public inputs; no path, no name of a load, a file or a customer is among them."""
    spread = config.network.random_reactive
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
    declared = "declared_public"
    generation = find(manifest, f"{declared}.generation")
    policy = policy_from_manifest(manifest)
    network = _twin_account if isinstance(policy, TwinPolicy) else _instance_account
    return Facts(
        release_id=entry(manifest, "release.id", str),
        insecure_seed=entry(manifest, "release.insecure_seed", bool),
        model=model,
        layout=layout,
        policy=policy,
        declared=Declared(
            power_factor=entry(manifest, f"{declared}.power_factor", float),
            scale_factor=entry(manifest, f"{declared}.node_scales.factor", float),
            variance_floor=entry(manifest, f"{declared}.variance_floor", float),
            reactive_correlation_minutes=optional(
                manifest, f"{declared}.reactive.correlation_minutes", float
            ),
            volt_var=None if generation is None else entry(manifest, f"{declared}.generation.volt_var", str),
        ),
        loads=_loads_account(manifest),
        network=network(manifest),
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


def _instance_account(manifest: Any) -> AccountFacts:
    at = "composition.network"
    cap = InstanceCap(
        entry(manifest, f"{at}.cap.epsilon", float),
        entry(manifest, f"{at}.cap.delta", float),
        entry(manifest, f"{at}.unit", str),
    )
    spent = {name: entry(manifest, f"{at}.spent.{name}", float) for name in ("epsilon", "delta")}
    return AccountFacts(cap, entry(manifest, f"{at}.charges", int), spent)


def _twin_account(manifest: Any) -> AccountFacts:
    at = "composition.network"
    cap = GdpCap(
        entry(manifest, f"{at}.cap.mu", float),
        entry(manifest, f"{at}.cap.delta", float),
        entry(manifest, f"{at}.unit", str),
    )
    spent = {"mu_squared": entry(manifest, f"{at}.spent.mu_squared", float)}
    return AccountFacts(cap, entry(manifest, f"{at}.charges", int), spent)


def _cap_to_plain(cap: Cap) -> dict[str, float]:
    """The cap as (ε, δ); of twins also the μ that is the cap."""
    if isinstance(cap, GdpCap):
        return {"mu": cap.mu, "epsilon": gdp_epsilon(cap.mu, cap.delta), "delta": cap.delta}
    return {"epsilon": cap.epsilon, "delta": cap.delta}
