"""The public facts that a manifest is made of, and the manifest that they determine.

A manifest is a pure function of these facts and of the hashes of the files. `verify` reads the facts back
from a release, makes the manifest again and compares: whatever it says beyond them is caught.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from dp_powerflow._names import __version__
from dp_powerflow.corpus.schema import NOTHING, CorpusLayout, ExtrasLayout
from dp_powerflow.corpus.tables import Connections, DayTable
from dp_powerflow.corpus.validate import CorpusReport
from dp_powerflow.grid.quantities import KINDS, Figure
from dp_powerflow.manifest import model as form
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.options import FitOptions, FixedPowerFactor, PublicSpread, tan_theta_of
from dp_powerflow.privacy.budget import ADJACENCY
from dp_powerflow.privacy.ledger.accounts import Balance, InstanceCap

if TYPE_CHECKING:
    from dp_powerflow.config import Config


@dataclass(frozen=True, eq=False, kw_only=True)
class Contents:
    """What a release holds, as its files tell it.

    Attributes
    ----------
    insecure_seed : whether noise and draws came from a seed.
    keys : whether the keys of noise and draws still exist.
    commitment_sha256 : salted commitment to the internal report.
    tables : of a published twin; None without.
    extras : what there is besides the voltages.
    scaled_down : snapshots whose powers were lowered until they had a solution.
    days : dates and weather of the days; None where they have no dates.
    connections : buses of the nodes and what joins them; None if they are not published.
    """

    model: LoadModel
    layout: CorpusLayout
    insecure_seed: bool
    keys: Literal["destroyed", "kept"]
    commitment_sha256: str
    tables: form.Tables | None = None
    extras: ExtrasLayout = NOTHING
    scaled_down: int = 0
    days: DayTable | None = None
    connections: Connections | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Facts(Contents):
    """Everything that a manifest of a release follows from.

    Attributes
    ----------
    declared : what the data owner declared public; what the model tells is read from the model.
    loads, network : the accounts just after the charge of this release; promises follow from what was spent.
    publication : what the data owner declares of the publication.
    """

    release_id: str
    software: str
    policy: form.NetworkPolicy
    declared: form.DeclaredPublic
    loads: form.AccountSection
    network: form.AccountSection
    publication: form.Publication = form.UNDECLARED


@dataclass(frozen=True, eq=False, kw_only=True)
class ManifestInputs(Contents):
    """What a release gives to its manifest.

    Attributes
    ----------
    config : the config; its paths and the names in it are private and never copied.
    loads, network : balance of both accounts of the ledger just after the spend of this release.
    sun : with a section [pv]: days of irradiance, and whether every PV system has another series.
    left_out : elements of the feeder that the power flow is solved without, in words.
    absent : figures that are protected if present, and are not in the network; None where all must be there.
    sums_customers : whether a load is a sum of customers; otherwise a node is one draw.
    """

    config: Config
    loads: Balance
    network: Balance
    sun: tuple[int, bool] = (1, False)
    left_out: tuple[str, ...] = ()
    absent: tuple[Figure, ...] | None = None
    sums_customers: bool = False


def account_of(balance: Balance) -> form.AccountSection:
    """An account of the ledger as a manifest states it, whatever its cap."""
    cap, spent = balance.cap, dict[str, Any](balance.spent)
    made, delta = form.ACCOUNTS[cap.kind], 0.0 if isinstance(cap, InstanceCap) else cap.delta
    if balance.composed is not None:
        pure, mu_squared = balance.composed.pure, float(balance.composed.mu_squared)
        spent = {"pure_epsilons": list(pure), "mu_squared": mu_squared}
    stated = {"unit": str(cap.unit), "spent": spent, "promise": {"epsilon": 0.0, "delta": delta}}
    return made.model_validate(stated).recomputed()


def make_statement(inputs: ManifestInputs) -> form.Statement[Any]:
    """What a release says; `model.seal` adds the hashes of its files.

    Raises
    ------
    ReleaseError : inputs contradict each other, for instance an account that holds less than this release.
    """
    config, model = inputs.config, inputs.model
    declared = declared_by(config, model, inputs.left_out, inputs.sun, sums_customers=inputs.sums_customers)
    facts = Facts(
        **{field.name: getattr(inputs, field.name) for field in fields(Contents)},
        release_id=config.release.id,
        software=f"dp-powerflow {__version__}",
        policy=form.policy_of(config, inputs.absent),
        declared=declared,
        loads=account_of(inputs.loads),
        network=account_of(inputs.network),
        publication=form.Publication(**config.publication.model_dump(mode="json")),
    )
    problems = contradictions(facts)
    if inputs.layout.days != config.release.days:
        problems.append("The corpus has another number of days than the config.")
    if problems:
        raise form.ReleaseError(
            f"the manifest would contradict itself, so nothing is published: {problems[0]}"
        )
    return assemble(facts)


def read_facts(statement: form.Statement[Any], model: LoadModel, corpus: CorpusReport) -> Facts:
    """The facts of a release: shape and load model from its files, declared constants from its manifest.

    Raises
    ------
    ReleaseError : the files do not tell the shape.
    """
    if corpus.layout is None:
        raise form.ReleaseError("the shape of the corpus cannot be read")
    tables, layout = statement.data.network_tables, corpus.layout
    if tables is not None:
        tables = tables.model_copy(update={"scenarios": max(tables.days * layout.steps, 1)})
    policy: form.NetworkPolicy = statement.guarantee.network
    return Facts(
        release_id=statement.release.id,
        insecure_seed=statement.release.insecure_seed,
        keys=statement.release.keys,
        model=model,
        layout=layout,
        policy=policy.recomputed(),
        declared=statement.declared_public,
        loads=statement.composition.loads,
        network=statement.composition.network,
        software=statement.release.software,
        commitment_sha256=statement.internal_report.sha256,
        tables=tables,
        extras=corpus.extras,
        scaled_down=corpus.n_scaled_down,
        publication=statement.publication,
        days=corpus.days,
        connections=corpus.connections,
    )


def assemble(facts: Facts) -> form.Statement[Any]:
    """The statement that these facts determine, whether or not they agree."""
    model, loads, network = facts.model, facts.loads.recomputed(), facts.network.recomputed()
    seed, simulated, declared = facts.insecure_seed, model.simulated, facts.declared
    own = {part.name: part.power_factor for part in declared.classes}
    minutes = declared.reactive.correlation_minutes
    stated: form.Statement[Any] = form.in_mode(form.Statement, type(facts.policy)).model_validate(
        {
            "format": form.FORMAT,
            "kind": "release",
            "release": {
                "id": facts.release_id,
                "software": facts.software,
                "insecure_seed": seed,
                "keys": facts.keys,
                "simulated_loads": simulated,
                "warnings": codes_of(facts.policy, network, model.delta, seed, simulated),
            },
            "guarantee": {"loads": loads_guarantee(model), "network": facts.policy},
            "composition": {"loads": loads, "network": network},
            "load_queries": [cost.to_dict() for cost in model.costs],
            "declared_public": dict(declared) | _told(model, declared.power_factor, own, minutes),
            "data": _data(facts),
            "publication": facts.publication,
            "internal_report": {"sha256": facts.commitment_sha256},
        }
    )
    return stated


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


def declared_by(
    config: Config, model: LoadModel, left_out: Sequence[str], sun: tuple[int, bool], *, sums_customers: bool
) -> form.DeclaredPublic:
    """What the model was fitted with, and what of the config it does not tell; no path and no name.

    Parameters
    ----------
    left_out, sun, sums_customers : as of `ManifestInputs`.
    """
    if model.origin is None:
        raise form.ReleaseError(
            "the load model holds no noisy answers, so nobody could check it; fit it anew"
        )
    fitted = model.origin.options
    nodes, loads, factors = config.nodes, config.loads, Counter(config.nodes.power_factor_of_load.values())
    declared: dict[str, Any] = {
        "power_factor": config.model.power_factor,
        "load_power_factors": [{"power_factor": own, "loads": n} for own, n in sorted(factors.items())],
        "node_scales": {"rule": "nominal load", "factor": nodes.scale_factor},
        "variance_floor": fitted.variance_floor,
        "generation": None,
        "left_out": list(left_out),
        "net_loads": None,
    }
    if sums_customers:
        kw = {name: getattr(nodes, name) for name in ("kw_per_customer", "kw_per_customer_of_class")}
        declared["node_scales"] = {"rule": "sum of customers", **kw}
    if config.pv is not None:
        days, per_system = sun
        declared["generation"] = {"days": days, "per_system": per_system, "volt_var": config.pv.volt_var}
    if not model.simulated:
        declared["net_loads"] = {
            name: getattr(loads, name) for name in ("floor_kw", "most_export", "on_export")
        }
    of_class, minutes = config.model.power_factor_of_class, _correlation_minutes(fitted)
    told = _told(model, config.model.power_factor, of_class, minutes)
    return form.DeclaredPublic.model_validate(declared | told)


def _told(
    model: LoadModel, power_factor: float, classes: Mapping[str, float], minutes: float | None
) -> dict[str, Any]:
    """Entries of what is declared that follow from the load model, given power factors and correlation."""
    parts = ((part.name, list(part.bounds)) for part in model.classes)
    return {
        "load_points": model.n_load_points,
        "days": model.n_days,
        "step_minutes": model.step_minutes,
        "reactive": {"spread": model.classes[0].reactive.spread, "correlation_minutes": minutes},
        "load_scales": "public scale" if model.scaled else "kW",
        "node_classes": "declared" if model.public_labels else "drawn",
        "classes": [
            {"name": name, "bounds": bounds, "power_factor": classes.get(name, power_factor)}
            for name, bounds in parts
        ],
        "estimator": model.estimator,
        "meters": _meters(model),
    }


def _correlation_minutes(fitted: FitOptions) -> float | None:
    reactive = fitted.reactive
    return reactive.correlation_minutes if isinstance(reactive, PublicSpread) else None


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
    layout, extras, days, found = facts.layout, facts.extras, facts.days, facts.connections
    told: dict[str, Any] = dict.fromkeys(("extras", "calendar", "connections"))
    if extras.holds:
        lowered = facts.scaled_down if extras.scaled_down else None
        told["extras"] = {"holds": list(extras.holds), **extras.counts, "scaled_down_snapshots": lowered}
    if days is not None:
        first, holidays = days.calendar.first_day.isoformat(), days.calendar.holidays_within
        dates = {"first_day": first, "holidays": [day.isoformat() for day in holidays]}
        told["calendar"] = {**dates, "weather": list(days.names)}
    if found is not None:
        sizes = {"buses": found.n_buses, "sources": int(found.source.sum()), "pairs": found.n_pairs}
        kinds, placed = [kind for kind in KINDS if kind in found.kinds], found.coordinates is not None
        told["connections"] = {**sizes, "kinds": kinds, "coordinates": placed}
    return told | {
        "days": layout.days,
        "steps_per_day": layout.steps,
        "step_minutes": facts.model.step_minutes,
        "nodes": layout.nodes,
        "phasors": layout.n_phasors,
        "days_per_part": layout.days_per_part,
        "parts": layout.n_parts,
        "network_tables": facts.tables,
    }


def delta_problem(delta: float, load_points: int) -> str | None:
    """Why no release may state this δ of its customers; None if it may.

    At δ = 1/n a release that publishes one load point whole, taken at random, would keep the promise. The
    number n of load points is public: neighbours replace one and never add one.
    """
    if delta * load_points < 1.0:
        return None
    return (
        f"delta = {form.all_digits(delta)} of the customers is not below one over the number of load points, "
        f"{load_points}: publishing one of them whole would keep such a promise"
    )


def codes_of(
    policy: form.NetworkPolicy, network: form.AccountSection, delta: float, seeded: bool, simulated: bool
) -> list[form.WarningCode]:
    """Warnings that follow from figures; the worst first."""
    found = {*policy.warnings, *weak_delta(delta)}
    if "network" not in found and network.is_weak:
        found.add("network-sum")
    if seeded:
        found.add("insecure-seed")
    if simulated:
        found.add("simulated-loads")
    return [code for code in get_args(form.WarningCode) if code in found]


def weak_delta(delta: float) -> list[form.WarningCode]:
    """What must be said of a large δ of the customers."""
    return ["customers"] if delta > form.LARGEST_DELTA else []


def contradictions(facts: Facts) -> list[str]:
    """What cannot be true of a release, one sentence each; empty if the facts agree."""
    own = _model_contradictions, _account_contradictions, _wrong_files
    return [text for find in (*own, facts.policy.contradictions) for text in find(facts)]


def _model_contradictions(facts: Facts) -> Iterator[str]:
    model, declared, full_support = facts.model, facts.declared, facts.policy.full_support
    if model.insecure_seed != facts.insecure_seed:
        yield "The load model and the release disagree on whether the noise came from a seed."
    if model.n_steps != facts.layout.steps or model.n_steps * model.step_minutes != 24 * 60:
        yield "The steps of the corpus are not those of the load model's day."
    problem = delta_problem(model.delta, model.n_load_points)
    if problem is not None:
        yield f"{problem[:1].upper()}{problem[1:]}."
    if model.spent_epsilon > model.epsilon * (1 + form.RELATIVE):
        yield "The queries cost more than the budget that was granted."
    own = {part.name: part.power_factor for part in declared.classes}
    factors = ((own.get(part.name, declared.power_factor), part.reactive.tan_theta) for part in model.classes)
    if not all(_same_factor(*pair) for pair in factors):
        yield "The load model's power factor is not the declared one."
    spreads, minutes = {part.reactive.spread for part in model.classes}, declared.reactive.correlation_minutes
    if len(spreads) != 1 or (min(spreads) > 0) != full_support:
        yield "The load model's reactive spread does not go with the bound of the network policy."
    if (minutes is not None) != full_support:
        yield "The declared reactive correlation does not go with the bound of the network policy."
    if model.origin is None:
        return
    fitted = model.origin.options
    if not _same_factor(declared.power_factor, _power_factor(fitted).default):
        yield "The declared power factor is not the one that the load model was fitted with."
    if declared.variance_floor != fitted.variance_floor:
        yield "The declared floor of variance is not the one that the load model was fitted with."
    if minutes != _correlation_minutes(fitted):
        yield "The declared reactive correlation is not the one that the load model was fitted with."


def _power_factor(fitted: FitOptions) -> FixedPowerFactor:
    reactive = fitted.reactive
    if isinstance(reactive, PublicSpread):
        return reactive.power_factor
    return reactive if isinstance(reactive, FixedPowerFactor) else FixedPowerFactor()


def _same_factor(power_factor: float, tan_theta: float) -> bool:
    declared = math.inf if power_factor == 0.0 else tan_theta_of(power_factor)
    return math.isclose(declared, tan_theta, rel_tol=form.RELATIVE, abs_tol=form.RELATIVE)


def _account_contradictions(facts: Facts) -> Iterator[str]:
    model, loads = facts.model, facts.loads
    if not isinstance(loads, form.LoadsAccount) or loads.unit != model.unit:
        yield "The account of the loads is about another unit than the load model."
        return
    if loads.promise.delta != model.delta:
        yield "The account of the loads is stated at another delta than the load model."
    if loads.spent.rho < model.rho * (1 - form.RELATIVE):
        yield "The account of the loads holds less than the queries of this release cost."


def _wrong_files(facts: Facts) -> Iterator[str]:
    """What cannot be true of the files besides the voltages."""
    policy, days = facts.policy, facts.days
    if facts.extras.holds and not policy.derivable:
        yield "The release holds more than voltages, which its mode does not publish."
    if facts.extras.scaled_down != isinstance(facts.declared.node_scales, form.NodeCustomers):
        yield "Sums of customers and scaled-down snapshots go together; the release has one of the two."
    if days is not None and not policy.dated:
        yield "The release states dates of its days, and its mode draws days that have none."
    if days is None and policy.dated:
        yield "The days have dates in this mode, and none are given."
    if days is not None and days.calendar.n_days != facts.layout.days:
        yield "The release states dates of another number of days than it has."
    if facts.connections is not None and not policy.derivable:
        yield "The release holds connections of its network, which its mode does not publish."
    if facts.connections is not None and len(facts.connections.bus_of) != facts.layout.nodes:
        yield "The release states buses of another number of nodes than it has."
    if facts.model.is_history and not policy.dated:
        yield "The load model draws days that follow one another, and the mode is about independent days."
    meters = _meters(facts.model)
    if meters is not None and set(meters["weather"]) - set(() if days is None else days.names):
        yield "The load model was fitted with weather that the released days do not have."
