"""The public facts that a manifest is made of: from a release, and from its manifest.

A manifest is a pure function of these facts and of the hashes of the files. `verify` reads the facts back
from a release, makes the manifest again and compares: whatever it says beyond them is caught.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dp_powerflow._names import __version__
from dp_powerflow.corpus.grid import VM_MAX_PU
from dp_powerflow.corpus.schema import (
    NOTHING,
    VA_GRID,
    VM_GRID,
    CorpusLayout,
    ExtrasLayout,
    released_columns,
)
from dp_powerflow.corpus.tables import Connections, DayTable
from dp_powerflow.corpus.validate import CorpusReport
from dp_powerflow.grid.feeder import Figure
from dp_powerflow.manifest import policy as text
from dp_powerflow.manifest.beside import (
    ScaledNodes as ScaledNodes,
)
from dp_powerflow.manifest.beside import (
    SummedCustomers as SummedCustomers,
)
from dp_powerflow.manifest.beside import (
    described_days,
    described_extras,
    drawn_nodes,
    wrong_days,
    wrong_extras,
)
from dp_powerflow.manifest.connected import (
    described_connections,
    wrong_connections,
)
from dp_powerflow.manifest.histories import rows_in_words, wrong_histories
from dp_powerflow.manifest.model import (
    FORMAT,
    RELATIVE,
    SOLVERS,
    UNDECLARED,
    AccountSection,
    InstanceAccount,
    NetLoads,
    Publication,
    ReleaseError,
    Statement,
    TwinAccount,
    in_mode,
)
from dp_powerflow.manifest.policy import NetworkPolicy, NetworkWords, policy_of, registered
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
    solver : of the power flow, as the config names it.
    left_out : in words, elements of the feeder that the power flow is solved without.
    net_loads : what happens to loads that are not above zero; None where no meter read them.
    """

    power_factor: float
    power_factor_of_class: Mapping[str, float]
    load_power_factors: Mapping[float, int]
    drawn: ScaledNodes | SummedCustomers
    variance_floor: float
    reactive_correlation_minutes: float | None
    generation: DeclaredSun | None
    solver: str
    left_out: tuple[str, ...] = ()
    net_loads: NetLoads | None = None

    @classmethod
    def of(cls, inputs: ManifestInputs, fitted: FitOptions) -> Declared:
        """What the model was fitted with, and what of the config it does not tell; no path and no name."""
        config, factors = inputs.config, Counter(inputs.config.nodes.power_factor_of_load.values())
        return cls(
            power_factor=config.model.power_factor,
            power_factor_of_class=config.model.power_factor_of_class,
            load_power_factors=dict(sorted(factors.items())),
            drawn=_drawn(inputs),
            variance_floor=fitted.variance_floor,
            reactive_correlation_minutes=_correlation_minutes(fitted),
            generation=None if config.pv is None else DeclaredSun(*inputs.sun, config.pv.volt_var),
            solver="batch",
            left_out=inputs.left_out,
            net_loads=_net_loads(inputs),
        )

    @classmethod
    def read(cls, statement: Statement[Any]) -> Declared:
        """What a manifest declares."""
        declared, sun = statement.declared_public, statement.declared_public.generation
        return cls(
            power_factor=declared.power_factor,
            power_factor_of_class={part.name: part.power_factor for part in declared.classes},
            load_power_factors={item.power_factor: item.loads for item in declared.load_power_factors},
            drawn=drawn_nodes(declared.node_scales),
            variance_floor=declared.variance_floor,
            reactive_correlation_minutes=declared.reactive.correlation_minutes,
            generation=None if sun is None else DeclaredSun(sun.days, sun.per_system, sun.volt_var),
            solver=next(name for name, words in SOLVERS.items() if words == statement.processing.solver),
            left_out=tuple(declared.left_out),
            net_loads=declared.net_loads,
        )

    def factor_of(self, name: str) -> float:
        """cos θ of a class."""
        return self.power_factor_of_class.get(name, self.power_factor)


@dataclass(frozen=True)
class DeclaredSun:
    """Generators on public irradiance.

    Attributes
    ----------
    days : of irradiance, which the days of the corpus take in turn.
    per_system : whether every PV system has a series of its own.
    volt_var : control of the generators, such as ``"none"``.
    """

    days: int
    per_system: bool
    volt_var: str


def _net_loads(inputs: ManifestInputs) -> NetLoads | None:
    if inputs.model.simulated:
        return None
    loads = inputs.config.loads
    return NetLoads(floor_kw=loads.floor_kw, most_export=loads.most_export, on_export=loads.on_export)


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

    def entries(self) -> dict[str, Any]:
        """The section of the manifest."""
        promise = self.promise
        return {
            "unit": str(self.law.unit),
            "spent": dict(self.spent)
            if self.composed is None
            else {
                "pure_epsilons": list(self.composed.pure),
                "mu_squared": float(self.composed.mu_squared),
            },
            "promise": {"epsilon": promise.epsilon, "delta": promise.delta, "definition": promise.definition},
        }


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything a manifest says, but for the sentences.

    Attributes
    ----------
    mended : snapshots whose powers were lowered until they had a solution.
    publication : what he declares of the publication.
    days : dates and weather of the days; None where they have no dates.
    connections : buses of the nodes and what joins them; None if they are not published.
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
    extras: ExtrasLayout = NOTHING
    mended: int = 0
    days: DayTable | None = None
    connections: Connections | None = None
    publication: Publication = UNDECLARED


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


def _drawn(inputs: ManifestInputs) -> ScaledNodes | SummedCustomers:
    nodes = inputs.config.nodes
    if not inputs.sums_customers:
        return ScaledNodes(nodes.scale_factor)
    return SummedCustomers(nodes.kw_per_customer, nodes.kw_per_customer_of_class)


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
        extras=inputs.extras,
        mended=inputs.mended,
        publication=Publication(**inputs.config.publication.model_dump(mode="json")),
        days=inputs.days,
        connections=inputs.connections,
    )
    problems = contradictions(facts)
    if inputs.layout.days != inputs.config.release.days:
        problems.append("The corpus has another number of days than the config.")
    if policy.dated and inputs.days is None:
        problems.append("The days have dates in this mode, and none are given.")
    if problems:
        raise ReleaseError(f"the manifest would contradict itself, so nothing is published: {problems[0]}")
    return assemble(facts)


def read_facts(
    statement: Statement[Any],
    model: LoadModel,
    corpus: CorpusReport,
) -> Facts:
    """The facts of a release: shape and load model from its files, declared constants from its manifest.

    Raises
    ------
    ReleaseError : the files do not tell the shape.
    """
    if corpus.layout is None:
        raise ReleaseError("the shape of the corpus cannot be read")
    return Facts(
        release_id=statement.release.id,
        insecure_seed=statement.release.insecure_seed,
        model=model,
        layout=corpus.layout,
        policy=registered(statement.guarantee.network.mode).read(statement),
        declared=Declared.read(statement),
        loads=AccountFacts.read(statement.composition.loads),
        network=AccountFacts.read(statement.composition.network),
        software=statement.release.software,
        commitment_sha256=statement.internal_report.sha256,
        extras=corpus.extras.layout,
        mended=corpus.extras.n_mended,
        publication=statement.publication,
        days=corpus.days,
        connections=corpus.connections,
    )


def assemble(facts: Facts) -> Statement[Any]:
    """The statement that these facts determine, whether or not they agree."""
    words = facts.policy.words(facts)
    return in_mode(Statement, facts.policy.section).model_validate(
        {
            "format": FORMAT,
            "release": {
                "id": facts.release_id,
                "software": facts.software,
                "insecure_seed": facts.insecure_seed,
                "simulated_loads": facts.model.simulated,
                "warnings": words.warnings,
            },
            "guarantee": {"loads": loads_guarantee(facts.model), "network": words.section},
            "composition": {
                "statement": words.composition,
                "loads": facts.loads.entries(),
                "network": facts.network.entries(),
            },
            "load_queries": [cost.to_dict() for cost in facts.model.costs],
            "declared_public": _declared(facts, words),
            "processing": {
                "solver": SOLVERS[facts.declared.solver],
                "before_noise": text.before_noise(facts),
                "after_noise": [*words.after_noise, text.SHOWN],
            },
            "random_source": text.random_source(facts, words),
            "unprotected": words.unprotected,
            "not_claimed": words.not_claimed,
            "data": _data(facts),
            "publication": facts.publication,
            "internal_report": {"commitment": words.commitment, "sha256": facts.commitment_sha256},
        }
    )


def loads_guarantee(model: LoadModel) -> dict[str, Any]:
    """What a release states of its customers, given its load model."""
    return {
        "definition": text.DEFINITION,
        "unit": str(model.unit),
        "unit_in_words": text.unit_in_words(model.unit),
        "adjacency": ADJACENCY,
        "epsilon": model.spent_epsilon,
        "delta": model.delta,
        "rho": model.rho,
        "epsilon_granted": model.epsilon,
        "accounting": text.LOADS_ACCOUNTING,
    }


def _declared(facts: Facts, words: NetworkWords) -> dict[str, Any]:
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
        "load_scales": "public scale of every load point" if model.scaled else "none, loads are in kW",
        "node_scales": declared.drawn.entries(),
        "node_classes": "declared" if model.public_labels else "drawn from the released weights",
        "classes": [
            {
                "name": part.name,
                "day_type": part.day_type,
                "bounds": list(part.bounds),
                "bounds_unit": "per public scale" if model.scaled else "kW",
                "power_factor": declared.factor_of(part.name),
            }
            for part in model.classes
        ],
        "variance_floor": declared.variance_floor,
        "estimator": model.estimator,
        "generation": None
        if declared.generation is None
        else {"irradiance": "declared public", **asdict(declared.generation)},
        "regulator_taps": words.taps,
        "left_out": list(declared.left_out),
        "net_loads": declared.net_loads,
        "network": words.declared,
    }


def _data(facts: Facts) -> dict[str, Any]:
    layout = facts.layout
    columns = released_columns(
        layout,
        facts.extras,
        weather=None if facts.days is None else facts.days.names,
        coordinates=None if facts.connections is None else facts.connections.coordinates is not None,
    )
    return {
        "days": layout.days,
        "steps_per_day": layout.steps,
        "step_minutes": facts.model.step_minutes,
        "nodes": layout.nodes,
        "phasors": layout.n_phasors,
        "days_per_part": layout.days_per_part,
        "parts": layout.n_parts,
        "rows": rows_in_words(facts),
        "columns": [
            {name: getattr(column, name) for name in ("file", "name", "type", "unit", "means")}
            for column in columns
        ],
        "grid": {"vm_pu": VM_GRID, "va_deg": VA_GRID},
        "ranges": {"vm_pu": [0.0, VM_MAX_PU], "va_deg": [-180.0, 180.0]},
        "network_tables": facts.policy.tables(facts),
        "extras": described_extras(facts),
        "calendar": described_days(facts.days),
        "connections": described_connections(facts),
    }


def contradictions(facts: Facts) -> list[str]:
    """What cannot be true of a release, one sentence each; empty if the facts agree."""
    return [
        *_model_contradictions(facts),
        *_account_contradictions(facts),
        *wrong_extras(facts),
        *wrong_days(facts),
        *wrong_connections(facts),
        *wrong_histories(facts),
        *facts.policy.contradictions(facts),
    ]


def _model_contradictions(facts: Facts) -> Iterator[str]:
    model, declared, full_support = facts.model, facts.declared, facts.policy.full_support
    if model.insecure_seed != facts.insecure_seed:
        yield "The load model and the release disagree on whether the noise came from a seed."
    if model.n_steps != facts.layout.steps or model.n_steps * model.step_minutes != 24 * 60:
        yield "The steps of the corpus are not those of the load model's day."
    problem = text.delta_problem(model.delta, model.n_load_points)
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
