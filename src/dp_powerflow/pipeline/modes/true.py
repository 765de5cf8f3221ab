"""Mode 'true-network', the paper's Algorithm 1: power flow on the true network, evidence for its owner.

What is promised is a policy. Theorem 1 says, per instance, whether the true network and the released load
model support it; what it finds is INTERNAL.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow.config import Config, TrueNetwork
from dp_powerflow.errors import ConfigError, FeederError, PowerFlowError, PrivacyError
from dp_powerflow.evidence.calibration import DaySolver, calibration_delta
from dp_powerflow.evidence.collect import Evidence, Instance, Policy, collect_evidence, plain, why_no_number
from dp_powerflow.evidence.lines.collect import LineReport, LineRequest, collect_lines
from dp_powerflow.evidence.lines.evidence import LineLoss
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.manifest.true import LEAST_SHARE, account_neighbours
from dp_powerflow.model.fit import ONE_CLASS
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.law import LoadLaw
from dp_powerflow.pipeline.customers import NodePlan, declared_classes, declared_factors, some_loaded_nodes
from dp_powerflow.pipeline.feasibility import (
    Feasibility,
    Trial,
    corner_loads,
    refuse_unsolved_corners,
    scaled_draws,
)
from dp_powerflow.pipeline.inputs import NetworkInputs
from dp_powerflow.pipeline.modes import base
from dp_powerflow.pipeline.modes.base import InternalReport, NetworkMode
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import Cap, InstanceCap, InstanceCost
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.units import FloatArray, IntArray, kw_to_pu

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CALIBRATION = "calibration of the certificate"


class TrueMode(NetworkMode[TrueNetwork]):
    """Power flow on the true network."""

    section_type = TrueNetwork

    @property
    def neighbours(self) -> Neighbours:
        """Changes within the radius."""
        return account_neighbours(self.section.radius, self.config.feeder.base_mva)

    def charge(self, request_sha256: str) -> base.NetworkCharge:
        """The policy of this release, under its own id."""
        section, release = self.section, self.config.release
        epsilon = release.network_epsilon_cap or section.epsilon
        cap = InstanceCap(epsilon, release.network_delta_cap or section.delta, self.neighbours)
        cost = InstanceCost(section.epsilon, section.delta, self.neighbours)
        return base.NetworkCharge(cost, cap, release.id, request_sha256)

    def charge_of(
        self, asked: base.NetworkCharge, facts: base.NetworkFacts, state: PrivateState, ledger: Ledger
    ) -> base.NetworkCharge:
        """The same for every version; an account about another radius is refused with the way out."""
        assert isinstance(asked.cap, InstanceCap)
        refuse_another_radius(ledger, self.config, facts.dataset, asked.cap)
        return asked

    def check(self, inputs: NetworkInputs) -> Feeder:
        """Taps must be declared, control must settle, and the evidence that is required must be possible."""
        checked = super().check(inputs)
        self._check_nodes(inputs)
        refuse_steep_control(inputs)
        DaySolver(Network(inputs.feeder), voltvar=inputs.solar.voltvar)  # the evidence can be solved for
        for sentence in self._why_no_evidence(inputs) if self.section.require_evidence else ():
            raise ConfigError(sentence, code="evidence-not-met")
        return checked

    def feasibility(self, inputs: NetworkInputs, structure: Feeder) -> Feasibility:
        """INTERNAL. Loads at their declared bounds must have solutions; what public loads do is shown."""
        solar, corners = inputs.solar, corner_loads(self.config, structure, inputs.services)
        sun = None if solar.generation is None else solar.generation.peak
        refuse_unsolved_corners(self.config, self.solver(1)(structure, solar, None), corners, sun)
        loads = scaled_draws(self.config, structure, inputs.services)
        return Feasibility(internal=Trial(inputs, self.solver, lambda _: loads).look([structure]))

    def _check_nodes(self, inputs: NetworkInputs) -> None:
        """Refuse classes and power factors that contradict each other at a node, and places of customers."""
        config, feeder = self.config, inputs.feeder
        if config.loads.services is not None and any(inputs.services.node_of):
            raise ConfigError(
                "the service map has a column 'node', which mode 'true-network' does not use: a node there "
                "is one draw times its nominal load; remove the column, or use a twin",
                code="service-map",
            )
        nodes = some_loaded_nodes(feeder)[0]
        if not config.model.private_classes:
            labels = [label for label in inputs.services.class_of if label is not None]
            declared_classes(config, feeder, nodes, labels[0] if labels else ONE_CLASS)
        declared_factors(config, feeder, nodes)

    def _why_no_evidence(self, inputs: NetworkInputs) -> Iterator[str]:
        """Why the release would be refused after it is paid, whatever the load model will be."""
        section, days, feeder = self.section, self.config.release.days, inputs.feeder
        uncovered = _uncovered(feeder)
        if uncovered is not None:
            yield f"{uncovered}; set network.require_evidence = false (the manifest says so), or use a twin"
        nodes, nominal_kw = feeder.loaded_nodes()
        scale = nominal_kw * self.config.nodes.scale_factor if self.config.model.use_scale else 1.0
        pairs = [self.config.model.bounds, *self.config.model.bounds_of_class.values()]
        low, high = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        per_unit = np.asarray(kw_to_pu(np.broadcast_to(scale, nominal_kw.shape), feeder.base_mva))
        loads, acting = (nodes, low * per_unit, high * per_unit), inputs.solar.voltvar is not None
        reason = why_no_number(Network(feeder), section.bound, section.radius, loads, volt_var=acting)
        if reason is not None:
            yield (
                f"{reason}, so bound '{section.bound}' has no number and the release would be refused after "
                "it is paid; choose another network.bound, lower network.radius, set "
                "network.require_evidence = false (the manifest says so), or use a twin"
            )
        if calibration_delta(section.calibration_days) * days >= section.delta:
            yield (
                f"a calibration of {section.calibration_days} days leaves more than δ* = {section.delta:g} "
                f"over {days} days, so the release would be refused after it is paid; raise "
                "network.calibration_days or network.delta, or set network.require_evidence = false (the "
                "manifest says so)"
            )

    def released_nodes(self, feeder: Feeder) -> IntArray:
        """Nodes with their own load above the public minimum; lighter ones keep theirs, unseen."""
        seen = np.setdiff1d(feeder.loaded_nodes()[0], light_nodes(feeder))
        return np.asarray(feeder.retained[seen], dtype=np.int64)

    def network_to_solve(
        self, inputs: NetworkInputs, dataset: str, paid: Spend | None = None
    ) -> base.Solvable:
        """The true network."""
        return base.Solvable(inputs.feeder, inputs.solar, dataset)

    def report(
        self, inputs: NetworkInputs, scene: base.Scene, progress: base.Progress | None = None
    ) -> InternalReport:
        """Theorem 1 at the policy, and losses per line where they are asked for."""
        evidence: Evidence | str
        try:
            evidence = self.theorem(inputs, scene, progress)
        except (PrivacyError, FeederError, PowerFlowError) as error:
            if self.section.require_evidence:
                raise
            evidence = f"none: {error}"
        met = isinstance(evidence, Evidence) and self._supported(evidence)
        lines = self.lines(inputs, scene, progress)
        told = None if lines is None else plain(lines)
        return InternalReport.make(self.config.release.id, met, plain(evidence), told)

    def accept(self, report: InternalReport, kept: Path) -> None:
        """Refuse a policy without support where evidence is required."""
        if not report.met and self.section.require_evidence:
            raise PrivacyError(
                "the network evidence does not support the policy, so nothing was released, and what was "
                f"charged stays spent; read {kept}, then lower the radius or the days, or set "
                "network.require_evidence = false (the manifest says so), under a new release id and with "
                "model.reuse = "
                f"'{self.config.model.reuse or self.config.release.id}', whose load model is paid for",
                code="evidence-not-met",
            )

    def evidence(
        self, inputs: NetworkInputs, model: LoadModel, line_draws: int | None, progress: base.Progress | None
    ) -> tuple[Evidence, LineReport | str | None]:
        """Theorem 1; of the lines also the audit."""
        scene = self.scene(inputs, base.Solvable(inputs.feeder, inputs.solar, ""), model)
        found = self.theorem(inputs, scene, progress)
        count = self.section.line_draws if line_draws is None else line_draws
        return found, self.lines(inputs, scene, progress, self.line_request(count, whole=True))

    def theorem(
        self, inputs: NetworkInputs, scene: base.Scene, progress: base.Progress | None = None
    ) -> Evidence:
        """Theorem 1 in every mode, on draws from a stream that no release uses."""
        feeder = scene.network.feeder
        uncovered = _uncovered(feeder)
        if uncovered is not None:
            raise PrivacyError(uncovered)
        solar, section, days = scene.network.solar, self.section, self.config.release.days
        instance = Instance(Network(feeder), _law(scene), solar.generation, solar.voltvar)
        policy = Policy(section.radius, section.epsilon, section.delta, days, section.calibration_days)
        key = inputs.own_key.bind("purpose", CALIBRATION)
        return collect_evidence(instance, policy, key, progress=progress)

    def lines(
        self,
        inputs: NetworkInputs,
        scene: base.Scene,
        progress: base.Progress | None = None,
        request: LineRequest | None = None,
    ) -> LineReport | str | None:
        """Exact losses per line, words where there are none, None where nobody asks for them.

        Parameters
        ----------
        request : what is asked; by default the losses alone, as the config says.
        """
        request = request or self.line_request(self.section.line_draws)
        if request.draws == 0:
            return None
        if not self.section.random_reactive:
            return "none: with fixed power factors one snapshot tells every change of a line, almost surely"
        if scene.network.solar.voltvar is not None:
            return "none: losses per line are not evaluated under volt-var control"
        sun = scene.network.solar.generation
        if sun is not None and sun.n_days > 1:
            return "none: losses per line are evaluated where every day has the same generation"
        try:
            law = _law(scene)
            daily = None if sun is None else sun.of(np.zeros(1, dtype=np.int64))
            loss = LineLoss(scene.network.feeder, law, generation=daily)
            return collect_lines(loss, request, inputs.own_key, progress)
        except (PrivacyError, FeederError) as error:
            return f"none: {error}"

    def line_request(self, draws: int, *, whole: bool = False) -> LineRequest:
        """What is asked about the lines: δ of one day is the policy's, shared by the days.

        Parameters
        ----------
        whole : the audit as well, not the losses alone.
        """
        days = self.config.release.days
        return LineRequest(
            x=self.section.line_change,
            delta=self.section.delta / days,
            draws=draws,
            audit_days=max(20, draws // 3) if whole else 0,
        )

    def plan_figures(self) -> dict[str, object]:
        """How much of δ* the calibration takes, whatever it finds."""
        used = calibration_delta(self.section.calibration_days) * self.config.release.days
        return {"used": f"{100.0 * used / self.section.delta:.2g}"}

    def _supported(self, evidence: Evidence) -> bool:
        """Whether the bound that the config names holds for the whole corpus within the policy."""
        corpus = next(row for row in evidence.rows if row.mode == self.section.bound).corpus
        within = corpus.epsilon is not None and corpus.epsilon <= self.section.epsilon
        return within and corpus.delta <= self.section.delta


def _law(scene: base.Scene) -> LoadLaw:
    """The law of the loads that the evidence is about, untruncated."""
    assert isinstance(scene.nodes, NodePlan)
    return scene.nodes.law(scene.model, scene.network.feeder)


def refuse_steep_control(inputs: NetworkInputs) -> None:
    """Refuse volt-var control that would answer a change of voltage with a larger one.

    A twin is not asked: its impedances are drawn when it is paid for, and whether the true network's would do
    must not decide over a release on it.
    """
    solar = inputs.solar
    if solar.voltvar is None or solar.generation is None:
        return
    if solar.voltvar.gain(Network(inputs.feeder), solar.generation.peak) >= 1.0:
        raise ConfigError(
            "volt-var control is too steep for the PV systems on this network: its answer to a change of "
            "voltage would change the voltage by more; set pv.volt_var to 'none' or to a flatter category, "
            "or correct the ratings of the PV systems",
            code="volt-var",
        )


def _uncovered(feeder: Feeder) -> str | None:
    """Why the closed-form certificate is not for a feeder, None where it is; scales and PV are public."""
    light = len(light_nodes(feeder))
    carry = "nodes carry less load than the public minimum of a released node"
    return f"{light} {carry}; the closed-form certificate does not cover them" if light else None


def middle_load_kw(load_kw: FloatArray) -> float:
    """The load of a node in the middle: half of all load is at nodes of this size or larger.

    A plain median would follow dummy loads once they are the majority.

    Parameters
    ----------
    load_kw : (node,) positive loads, in any unit.
    """
    ordered = np.sort(load_kw)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2.0)])


def light_nodes(feeder: Feeder) -> IntArray:
    """Positions among `feeder.retained` of the nodes with a load below the public minimum.

    The net nominal load of a node counts, so loads that cancel make a light node. Its voltage is nearly a
    linear function of its neighbours', whose coefficients are the admittances of the lines between them.
    """
    nodes, nominal_kw = feeder.loaded_nodes()
    if not len(nodes):
        return nodes
    return np.asarray(nodes[nominal_kw < LEAST_SHARE * middle_load_kw(nominal_kw)], dtype=np.int64)


# ------------------------------------------------------------------------- the radius of an account
#
# An account adds up figures about changes up to one r. What was charged for changes up to r also covers every
# smaller change, so an account may be restated for a smaller r: its charges count there in full. It may not
# be restated for a larger one, unless nothing was charged yet.

_UNIT = re.compile(r".* at most r = (?P<radius>\S+) p\.u\.(?: on a base of (?P<base>\S+) MVA)?")


def restate_radius(
    ledger: Ledger, name: str, radius: float, reason: str, key: Ed25519PrivateKey | None = None
) -> frozenset[str]:
    """Make an account of a true network one about changes up to another r; what was spent stays spent.

    Parameters and result are as of `Ledger.change_cap`.

    Raises
    ------
    PrivacyError : the account is of another kind, r is larger and something was charged, or there is no
        reason.
    """
    account = ledger.named(name)
    stated = None if account is None else _radius_in(account.cap)
    if account is None or stated is None:
        raise PrivacyError(
            f"'{name}' is not an account of a true network, so it has no radius; list the accounts with "
            "'dp-powerflow ledger'"
        )
    own, base_mva = stated
    if not 0.0 < radius < float("inf"):
        raise PrivacyError("a radius is a positive number in per unit; give one with --radius", code="radius")
    if account.spends and radius > own:
        raise PrivacyError(_larger(account, own), code="radius")
    assert isinstance(account.cap, InstanceCap)
    cap = replace(account.cap, unit=account_neighbours(radius, base_mva))
    return ledger.change_cap(name, cap, reason, restated=True, key=key)


def refuse_another_radius(ledger: Ledger, config: Config, dataset: str, cap: InstanceCap) -> None:
    """Say how to go on where the account of a network is about changes up to another r than the config."""
    named = config.release.continues_network
    known = (ledger.find(InstanceCap.kind, dataset), None if named is None else ledger.named(named))
    for account in sorted(filter(None, known), key=lambda item: item.changes[0].entry):
        stated = _radius_in(account.cap)
        if stated is None:
            continue
        asked = _radius_in(cap)
        if account.cap.unit == cap.unit or asked is None or asked[1] != stated[1]:
            return  # the same, or another power base: the ledger has words for that
        if account.spends and asked[0] > stated[0]:
            raise PrivacyError(f"{_larger(account, stated[0])}; nothing was spent", code="radius")
        charged = "what was charged for the larger changes counts in full for smaller ones"
        command = ["dp-powerflow", "ledger", str(config.release.state), "--account", account.name]
        command += ["--radius", repr(asked[0]), "--reason", f"radius restated as {asked[0]!r}"]
        raise PrivacyError(
            f"account {account.name} of this network adds up changes of lines up to r = {stated[0]!r} p.u., "
            f"and this release is about r = {asked[0]!r} p.u.; "
            f"{charged if account.spends else 'nothing was charged to it yet'}, so restate it with "
            f"`{shlex.join(command)}` and run this again; nothing was spent",
            code="radius",
        )


def _larger(account: Account, radius: float) -> str:
    return (
        f"account {account.name} was charged for changes of lines up to r = {radius!r} p.u., and what was "
        f"released then has no bound for larger ones; set network.radius = {radius!r}"
    )


def _radius_in(cap: Cap) -> tuple[float, float] | None:
    """Radius [p.u.] and power base [MVA] in the unit of a cap (`account_neighbours`); None of other kinds."""
    found = _UNIT.fullmatch(str(cap.unit)) if isinstance(cap, InstanceCap) else None
    return None if found is None else (float(found["radius"]), float(found["base"] or 1.0))
