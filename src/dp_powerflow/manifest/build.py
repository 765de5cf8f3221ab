"""The public facts that a manifest is made of, and the manifest that they determine.

A manifest is a pure function of these facts and of the hashes of the files. `verify` reads the facts back
from a release, makes the manifest again and compares: whatever it says beyond them is caught.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dp_powerflow._names import __version__
from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.tables import Connections, DayTable
from dp_powerflow.corpus.validate import CorpusReport
from dp_powerflow.grid.quantities import KINDS, Figure
from dp_powerflow.manifest.model import (
    FORMAT,
    LARGEST_DELTA,
    LARGEST_EPSILON,
    RELATIVE,
    UNDECLARED,
    AccountSection,
    Generation,
    InstanceAccount,
    NetLoads,
    NetworkPolicy,
    NodeCustomers,
    NodeScales,
    Publication,
    ReleaseError,
    Statement,
    Tables,
    TwinAccount,
    WarningCode,
    all_digits,
    in_mode,
    policy_of,
)
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import FitOptions, FixedPowerFactor, PublicSpread, tan_theta_of
from dp_powerflow.privacy.budget import ADJACENCY, Neighbours, PrivacyUnit
from dp_powerflow.privacy.ledger.accounts import Cap, Composed, InstanceCap, LoadsCap, TwinCap
from dp_powerflow.privacy.ledger.accounts import Statement as Promised
from dp_powerflow.privacy.ledger.records import Balance

if TYPE_CHECKING:
    from dp_powerflow.config import Config


@dataclass(frozen=True)
class Declared:
    """Declared-public inputs that the load model does not repeat.

    Attributes
    ----------
    power_factor : cos θ of loads whose class has none of its own; negative where it is leading.
    power_factor_of_class : by class.
    load_power_factors : factors that some loads have of their own → number of these loads.
    drawn : what is drawn for a node: one draw times a public scale, or a sum of customers.
    variance_floor : smallest eigenvalue of a released covariance of log load.
    reactive_correlation_minutes : correlation time of the reactive part [min]; None if there is none.
    generation : generators on public irradiance; None without.
    left_out : in words, elements of the feeder that the power flow is solved without.
    net_loads : what happens to loads that are not above zero; None where no meter read them.
    """

    power_factor: float
    power_factor_of_class: Mapping[str, float]
    load_power_factors: Mapping[float, int]
    drawn: NodeScales | NodeCustomers
    variance_floor: float
    reactive_correlation_minutes: float | None
    generation: Generation | None
    left_out: tuple[str, ...] = ()
    net_loads: NetLoads | None = None

    @classmethod
    def of(cls, inputs: ManifestInputs, fitted: FitOptions) -> Declared:
        """What the model was fitted with, and what of the config it does not tell; no path and no name."""
        config, factors = inputs.config, Counter(inputs.config.nodes.power_factor_of_load.values())
        nodes, loads, sun = config.nodes, config.loads, None
        if config.pv is not None:
            days, per_system = inputs.sun
            sun = Generation(days=days, per_system=per_system, volt_var=config.pv.volt_var)
        return cls(
            power_factor=config.model.power_factor,
            power_factor_of_class=config.model.power_factor_of_class,
            load_power_factors=dict(sorted(factors.items())),
            drawn=NodeCustomers(
                rule="sum of customers",
                kw_per_customer=nodes.kw_per_customer,
                kw_per_customer_of_class=nodes.kw_per_customer_of_class,
            )
            if inputs.sums_customers
            else NodeScales(rule="nominal load", factor=nodes.scale_factor),
            variance_floor=fitted.variance_floor,
            reactive_correlation_minutes=_correlation_minutes(fitted),
            generation=sun,
            left_out=inputs.left_out,
            net_loads=None
            if inputs.model.simulated
            else NetLoads(floor_kw=loads.floor_kw, most_export=loads.most_export, on_export=loads.on_export),
        )

    @classmethod
    def read(cls, statement: Statement[Any]) -> Declared:
        """What a manifest declares."""
        declared = statement.declared_public
        return cls(
            power_factor=declared.power_factor,
            power_factor_of_class={part.name: part.power_factor for part in declared.classes},
            load_power_factors={item.power_factor: item.loads for item in declared.load_power_factors},
            drawn=declared.node_scales,
            variance_floor=declared.variance_floor,
            reactive_correlation_minutes=declared.reactive.correlation_minutes,
            generation=declared.generation,
            left_out=tuple(declared.left_out),
            net_loads=declared.net_loads,
        )

    def factor_of(self, name: str) -> float:
        """cos θ of a class."""
        return self.power_factor_of_class.get(name, self.power_factor)


def _correlation_minutes(fitted: FitOptions) -> float | None:
    reactive = fitted.reactive
    return reactive.correlation_minutes if isinstance(reactive, PublicSpread) else None


@dataclass(frozen=True)
class AccountFacts:
    """An account of the ledger just after the spend of this release.

    Attributes
    ----------
    law : cap of its kind and unit, at the delta of what it promises; how large it is plays no part.
    spent : by quantity: rho; epsilon and delta; or the epsilon of the worst element of twins.
    composed : of an account of twins, everything that touched the worst element; `spent` follows from it.
    """

    law: Cap
    spent: Mapping[str, float]
    composed: Composed | None = None

    @classmethod
    def of(cls, balance: Balance) -> AccountFacts:
        cap = balance.cap
        if isinstance(cap, TwinCap) and balance.composed is not None:
            pure, mu_squared = balance.composed.pure, float(balance.composed.mu_squared)
            return cls._of_twins(cap.delta, cap.unit, pure, mu_squared)
        if isinstance(cap, InstanceCap):
            return cls(InstanceCap(1.0, 0.0, cap.unit), balance.spent)
        assert isinstance(cap, LoadsCap)
        return cls(LoadsCap(1.0, cap.delta, cap.unit), balance.spent)

    @classmethod
    def _of_twins(
        cls, delta: float, unit: Neighbours, pure: Iterable[float], mu_squared: float
    ) -> AccountFacts:
        """As a manifest can state it: sums as floating-point numbers; pure costs need no delta."""
        law = TwinCap(1.0, delta if mu_squared else 0.0, unit)
        composed = Composed(tuple(pure), Fraction(mu_squared))
        return cls(law, {"epsilon": composed.epsilon(law.delta)}, composed)

    @classmethod
    def read(cls, section: AccountSection) -> AccountFacts:
        """The account that a manifest states; what it promises is not read."""
        delta = section.promise.delta
        if isinstance(section, TwinAccount):
            if delta == 0 and section.spent.mu_squared > 0:
                raise ReleaseError("an account of twins with Gaussian noise is stated at delta 0")
            unit, spent = Neighbours(section.unit), section.spent
            return cls._of_twins(delta, unit, spent.pure_epsilons, spent.mu_squared)
        law: Cap
        if isinstance(section, InstanceAccount):
            law = InstanceCap(1.0, 0.0, Neighbours(section.unit))
        else:
            law = LoadsCap(1.0, delta, PrivacyUnit(section.unit))
        return cls(law, section.model_dump()["spent"])

    @property
    def promise(self) -> Promised:
        """What all spends together promise, computed from what was spent."""
        if isinstance(self.law, TwinCap):
            return self.law.statement(self.composed or Composed())
        return self.law.statement({name: Fraction(value) for name, value in self.spent.items()})

    def holds(self, name: str, own: float) -> bool:
        """Whether the account holds at least this release."""
        return self.spent[name] >= own * (1 - RELATIVE)

    @property
    def is_weak(self) -> bool:
        """Whether promises that are strong one by one add up to a weak one; pure costs need no delta."""
        promise, pure = self.promise, self.composed is not None and not self.composed.mu_squared
        return promise.epsilon > LARGEST_EPSILON or (not pure and promise.delta > LARGEST_DELTA)

    def entries(self) -> dict[str, Any]:
        """The section of the manifest."""
        spent: dict[str, Any] = dict(self.spent)
        if self.composed is not None:
            spent = {
                "pure_epsilons": list(self.composed.pure),
                "mu_squared": float(self.composed.mu_squared),
            }
        promise = {"epsilon": self.promise.epsilon, "delta": self.promise.delta}
        return {"unit": str(self.law.unit), "spent": spent, "promise": promise}


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything that a manifest of a release follows from.

    Attributes
    ----------
    tables : of a published twin; None without.
    mended : snapshots whose powers were lowered until they had a solution.
    days : dates and weather of the days; None where they have no dates.
    connections : buses of the nodes and what joins them; None if they are not published.
    publication : what the data owner declares of the publication.
    """

    release_id: str
    insecure_seed: bool
    model: LoadModel
    layout: CorpusLayout
    policy: NetworkPolicy
    declared: Declared
    loads: AccountFacts
    network: AccountFacts
    software: str
    commitment_sha256: str
    tables: Tables | None = None
    extras: ExtrasLayout = NOTHING
    mended: int = 0
    days: DayTable | None = None
    connections: Connections | None = None
    publication: Publication = UNDECLARED

    @property
    def warnings(self) -> list[WarningCode]:
        """Why this promises less than a reader expects, or is no release at all; the worst first."""
        model = self.model
        return codes_of(self.policy, self.network, model.delta, self.insecure_seed, model.simulated)


@dataclass(frozen=True, eq=False)
class ManifestInputs:
    """What a release gives to its manifest.

    Attributes
    ----------
    config : the config; its paths and the names in it are private and never copied.
    model : the released load model.
    layout : shape of the corpus.
    loads, network : balance of both accounts of the ledger just after the spend of this release.
    commitment_sha256 : salted commitment to the internal report.
    insecure_seed : whether noise and draws came from a seed.
    sun : with a section [pv]: days of irradiance, and whether every PV system has a series of its own.
    left_out : elements of the feeder that the power flow is solved without, in words.
    absent : figures that are protected if present, and are not in the network; None where all must be there.
    extras : what the corpus holds beside its voltages.
    sums_customers : whether a load is a sum of customers; otherwise a node is one draw.
    mended : snapshots whose powers were lowered until they had a solution.
    days : dates and weather of the days; None where they have no dates.
    connections : buses of the nodes and what joins them; None if they are not published.
    """

    config: Config
    model: LoadModel
    layout: CorpusLayout
    loads: Balance
    network: Balance
    commitment_sha256: str
    insecure_seed: bool
    sun: tuple[int, bool] = (1, False)
    left_out: tuple[str, ...] = ()
    absent: tuple[Figure, ...] | None = None
    extras: ExtrasLayout = NOTHING
    sums_customers: bool = False
    mended: int = 0
    days: DayTable | None = None
    connections: Connections | None = None


def make_statement(inputs: ManifestInputs) -> Statement[Any]:
    """What a release says; `model.seal` adds the hashes of its files.

    Raises
    ------
    ReleaseError : inputs contradict each other, for instance an account that holds less than this release.
    """
    policy = policy_of(inputs.config).on_network(inputs.absent)
    if inputs.model.origin is None:
        raise ReleaseError("the load model holds no noisy answers, so nobody could check it; fit it anew")
    facts = Facts(
        release_id=inputs.config.release.id,
        insecure_seed=inputs.insecure_seed,
        model=inputs.model,
        layout=inputs.layout,
        policy=policy,
        declared=Declared.of(inputs, inputs.model.origin.options),
        loads=AccountFacts.of(inputs.loads),
        network=AccountFacts.of(inputs.network),
        software=f"dp-powerflow {__version__}",
        commitment_sha256=inputs.commitment_sha256,
        tables=_tables(type(policy).tables_of(inputs.config), inputs.layout),
        extras=inputs.extras,
        mended=inputs.mended,
        publication=Publication(**inputs.config.publication.model_dump(mode="json")),
        days=inputs.days,
        connections=inputs.connections,
    )
    problems = contradictions(facts)
    if inputs.layout.days != inputs.config.release.days:
        problems.append("The corpus has another number of days than the config.")
    if problems:
        raise ReleaseError(f"the manifest would contradict itself, so nothing is published: {problems[0]}")
    return assemble(facts)


def _tables(stated: tuple[int, Any, bool] | None, layout: CorpusLayout) -> Tables | None:
    if stated is None:
        return None
    days, frame, merged = stated
    return Tables(days=days, scenarios=max(days * layout.steps, 1), frame=frame, switches_merged=merged)


def read_facts(statement: Statement[Any], model: LoadModel, corpus: CorpusReport) -> Facts:
    """The facts of a release: shape and load model from its files, declared constants from its manifest.

    Raises
    ------
    ReleaseError : the files do not tell the shape.
    """
    if corpus.layout is None:
        raise ReleaseError("the shape of the corpus cannot be read")
    tables = statement.data.network_tables
    stated = None if tables is None else (tables.days, tables.frame, tables.switches_merged)
    policy: NetworkPolicy = statement.guarantee.network
    return Facts(
        release_id=statement.release.id,
        insecure_seed=statement.release.insecure_seed,
        model=model,
        layout=corpus.layout,
        policy=policy.recomputed(),
        declared=Declared.read(statement),
        loads=AccountFacts.read(statement.composition.loads),
        network=AccountFacts.read(statement.composition.network),
        software=statement.release.software,
        commitment_sha256=statement.internal_report.sha256,
        tables=_tables(stated, corpus.layout),
        extras=corpus.extras.layout,
        mended=corpus.extras.n_mended,
        publication=statement.publication,
        days=corpus.days,
        connections=corpus.connections,
    )


def assemble(facts: Facts) -> Statement[Any]:
    """The statement that these facts determine, whether or not they agree."""
    return in_mode(Statement, type(facts.policy)).model_validate(
        {
            "format": FORMAT,
            "kind": "release",
            "release": {
                "id": facts.release_id,
                "software": facts.software,
                "insecure_seed": facts.insecure_seed,
                "simulated_loads": facts.model.simulated,
                "warnings": facts.warnings,
            },
            "guarantee": {"loads": loads_guarantee(facts.model), "network": facts.policy},
            "composition": {"loads": facts.loads.entries(), "network": facts.network.entries()},
            "load_queries": [cost.to_dict() for cost in facts.model.costs],
            "declared_public": _declared(facts),
            "data": _data(facts),
            "publication": facts.publication,
            "internal_report": {"sha256": facts.commitment_sha256},
        }
    )


def loads_guarantee(model: LoadModel) -> dict[str, Any]:
    """What a release states of its customers, given its load model."""
    return {
        "definition": "(epsilon, delta)-differential privacy",
        "unit": str(model.unit),
        "adjacency": ADJACENCY,
        "epsilon": model.spent_epsilon,
        "delta": model.delta,
        "rho": model.rho,
        "epsilon_granted": model.epsilon,
    }


def _declared(facts: Facts) -> dict[str, Any]:
    model, declared = facts.model, facts.declared
    return {
        "load_points": model.n_load_points,
        "days": model.n_days,
        "step_minutes": model.step_minutes,
        "power_factor": declared.power_factor,
        "load_power_factors": [
            {"power_factor": factor, "loads": count} for factor, count in declared.load_power_factors.items()
        ],
        "reactive": {
            "spread": model.classes[0].reactive.spread,
            "correlation_minutes": declared.reactive_correlation_minutes,
        },
        "load_scales": "public scale" if model.scaled else "kW",
        "node_scales": declared.drawn,
        "node_classes": "declared" if model.public_labels else "drawn",
        "classes": [
            {
                "name": part.name,
                "bounds": list(part.bounds),
                "power_factor": declared.factor_of(part.name),
            }
            for part in model.classes
        ],
        "variance_floor": declared.variance_floor,
        "estimator": model.estimator,
        "generation": declared.generation,
        "left_out": list(declared.left_out),
        "net_loads": declared.net_loads,
        "meters": _meters(model),
    }


def _meters(model: LoadModel) -> dict[str, Any] | None:
    """Dates of the days of the meters, which the load model publishes if its days follow one another."""
    days = None if model.origin is None else model.origin.facts.days
    if not model.is_history or days is None:
        return None
    return {
        "days": len(days.dates),
        "first_day": days.dates[0],
        "last_day": days.dates[-1],
        "weather": [name for name, _ in days.covariates],
    }


def _data(facts: Facts) -> dict[str, Any]:
    layout, extras, found = facts.layout, facts.extras, facts.connections
    return {
        "days": layout.days,
        "steps_per_day": layout.steps,
        "step_minutes": facts.model.step_minutes,
        "nodes": layout.nodes,
        "phasors": layout.n_phasors,
        "days_per_part": layout.days_per_part,
        "parts": layout.n_parts,
        "network_tables": facts.tables,
        "extras": {
            "holds": list(extras.holds),
            "source_phases": extras.sources,
            "regulators": extras.regulators,
            "capacitors": extras.capacitors,
            "mended_snapshots": facts.mended if extras.mended else None,
        }
        if extras.holds
        else None,
        "calendar": None
        if facts.days is None
        else {
            "first_day": facts.days.calendar.first_day.isoformat(),
            "holidays": [day.isoformat() for day in facts.days.calendar.holidays_within],
            "weather": list(facts.days.names),
        },
        "connections": None
        if found is None
        else {
            "buses": found.n_buses,
            "sources": int(found.source.sum()),
            "pairs": found.n_pairs,
            "kinds": [kind for kind in KINDS if kind in found.kinds],
            "coordinates": found.coordinates is not None,
        },
    }


def delta_problem(delta: float, load_points: int) -> str | None:
    """Why no release may state this δ of its customers; None if it may.

    At δ = 1/n a release that publishes one load point whole, taken at random, would keep the promise. The
    number n of load points is public: neighbours replace one and never add one.
    """
    if delta * load_points < 1.0:
        return None
    return (
        f"delta = {all_digits(delta)} of the customers is not below one over the number of load points, "
        f"{load_points}: publishing one of them whole would keep such a promise"
    )


def codes_of(
    policy: NetworkPolicy, network: AccountFacts, delta: float, insecure_seed: bool, simulated: bool
) -> list[WarningCode]:
    """Warnings that follow from figures; the worst first."""
    found: list[WarningCode] = list(policy.warnings)
    if "network" not in found and network.is_weak:
        found.insert(0, "network-sum")
    found += weak_delta(delta)
    if insecure_seed:
        found.append("insecure-seed")
    if simulated:
        found.append("simulated-loads")
    return [*found, *policy.after_warnings]


def weak_delta(delta: float) -> list[WarningCode]:
    """What must be said of a large δ of the customers."""
    return ["customers"] if delta > LARGEST_DELTA else []


def contradictions(facts: Facts) -> list[str]:
    """What cannot be true of a release, one sentence each; empty if the facts agree."""
    return [
        *_model_contradictions(facts),
        *_account_contradictions(facts),
        *_wrong_files(facts),
        *facts.policy.contradictions(facts),
    ]


def _model_contradictions(facts: Facts) -> Iterator[str]:
    model, declared, full_support = facts.model, facts.declared, facts.policy.full_support
    if model.insecure_seed != facts.insecure_seed:
        yield "The load model and the release disagree on whether the noise came from a seed."
    if model.n_steps != facts.layout.steps or model.n_steps * model.step_minutes != 24 * 60:
        yield "The steps of the corpus are not those of the load model's day."
    problem = delta_problem(model.delta, model.n_load_points)
    if problem is not None:
        yield f"{problem[:1].upper()}{problem[1:]}."
    if model.spent_epsilon > model.epsilon * (1 + RELATIVE):
        yield "The queries cost more than the budget that was granted."
    if not all(
        _same_factor(declared.factor_of(part.name), part.reactive.tan_theta) for part in model.classes
    ):
        yield "The load model's power factor is not the declared one."
    spreads = {part.reactive.spread for part in model.classes}
    if len(spreads) != 1 or (min(spreads) > 0) != full_support:
        yield "The load model's reactive spread does not go with the bound of the network policy."
    if (declared.reactive_correlation_minutes is not None) != full_support:
        yield "The declared reactive correlation does not go with the bound of the network policy."
    fitted = None if model.origin is None else model.origin.options
    if fitted is not None and not _same_factor(declared.power_factor, _power_factor(fitted).default):
        yield "The declared power factor is not the one that the load model was fitted with."
    if fitted is not None and declared.variance_floor != fitted.variance_floor:
        yield "The declared floor of variance is not the one that the load model was fitted with."
    if fitted is not None and declared.reactive_correlation_minutes != _correlation_minutes(fitted):
        yield "The declared reactive correlation is not the one that the load model was fitted with."


def _power_factor(fitted: FitOptions) -> FixedPowerFactor:
    reactive = fitted.reactive
    if isinstance(reactive, PublicSpread):
        return reactive.power_factor
    return reactive if isinstance(reactive, FixedPowerFactor) else FixedPowerFactor()


def _same_factor(power_factor: float, tan_theta: float) -> bool:
    declared = math.inf if power_factor == 0.0 else tan_theta_of(power_factor)
    return math.isclose(declared, tan_theta, rel_tol=RELATIVE, abs_tol=RELATIVE)


def _account_contradictions(facts: Facts) -> Iterator[str]:
    model, loads = facts.model, facts.loads
    if not isinstance(loads.law, LoadsCap) or loads.law.unit is not model.unit:
        yield "The account of the loads is about another unit than the load model."
    elif loads.law.delta != model.delta:
        yield "The account of the loads is stated at another delta than the load model."
    if not loads.holds("rho", model.rho):
        yield "The account of the loads holds less than the queries of this release cost."


def _wrong_files(facts: Facts) -> Iterator[str]:
    """What cannot be true of the files beside the voltages."""
    policy, days = facts.policy, facts.days
    if facts.extras.holds and not policy.publishes_beside:
        yield "The release holds more than voltages, which its mode does not publish."
    if facts.extras.mended != isinstance(facts.declared.drawn, NodeCustomers):
        yield "Sums of customers, and snapshots that are mended, go together; the release has one of the two."
    if days is not None and not policy.dated:
        yield "The release states dates of its days, and its mode draws days that have none."
    if days is None and policy.dated:
        yield "The days have dates in this mode, and none are given."
    if days is not None and days.calendar.n_days != facts.layout.days:
        yield "The release states dates of another number of days than it has."
    if facts.connections is not None and not policy.publishes_connections:
        yield "The release holds connections of its network, which its mode does not publish."
    if facts.connections is not None and len(facts.connections.bus_of) != facts.layout.nodes:
        yield "The release states buses of another number of nodes than it has."
    if facts.model.is_history and not policy.dated:
        yield "The load model draws days that follow one another, and the mode is about independent days."
    meters = _meters(facts.model)
    if meters is not None and set(meters["weather"]) - set(() if days is None else days.names):
        yield "The load model was fitted with weather that the released days do not have."
