"""INTERNAL. All of a release against all that is true: customers, network, attacks. Spends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.errors import LoadDataError
from dp_powerflow.fidelity.attacks.lines import attack_line
from dp_powerflow.fidelity.attacks.membership import attack_membership, attack_planted, design_of
from dp_powerflow.fidelity.drawing import quantum_of, some_customers
from dp_powerflow.fidelity.effort import Effort
from dp_powerflow.fidelity.metrics import FEWEST_DAYS, HOURS, Setting
from dp_powerflow.fidelity.network import NetworkComparison, TrueSide, compare_network
from dp_powerflow.fidelity.report import Attacks, Facts, FidelityReport
from dp_powerflow.fidelity.splits import CustomerComparison, compare_customers
from dp_powerflow.loads.history import LoadHistory
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.drawing import draw_customers
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.twin.design import TwinDesign

FEWEST_CUSTOMERS = 8
Say = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class Sides:
    """PRIVATE. A release, and what is true.

    Attributes
    ----------
    corpus, model : what was released.
    history : the meters.
    true : the true feeder; words why it is not compared, where it is not.
    promise : what the release promises of the network, in words.
    design : PUBLIC. Of its twin; None on the true network.
    """

    corpus: Corpus
    model: LoadModel
    history: LoadHistory
    true: TrueSide | str
    promise: str
    design: TwinDesign | None


@dataclass(frozen=True)
class Watch:
    """Who is told what is being done, and how much of it."""

    say: Say = lambda _: None
    progress: Progress = lambda done, total: None


def measure(sides: Sides, effort: Effort, key: StreamKey, watch: Watch | None = None) -> FidelityReport:
    """INTERNAL. Compare and attack; nothing is released, and nothing is charged.

    Parameters
    ----------
    key : secret of draws and of the noise of fits that are attacked, bound to this purpose.

    Raises
    ------
    LoadDataError : the meters are too few, too short, or not those of the release.
    """
    watch = watch or Watch()
    check_meters(sides.model, sides.history)
    customers, facts = _customers(sides, effort, key, watch)
    network: NetworkComparison | str = "not compared"
    if isinstance(sides.true, str):
        network = sides.true
    else:
        watch.say("solving the meters on the true feeder")
        network = compare_network(sides.corpus, sides.true, effort, on_split=watch.progress)
    attacks = _attacks(sides, effort, key, watch)
    return FidelityReport(facts, customers, network, attacks, effort)


def check_meters(model: LoadModel, history: LoadHistory) -> None:
    """Refuse meters that are too few or too short, or that the model cannot have been fitted to."""
    if history.n_days < FEWEST_DAYS or history.n_load_points < FEWEST_CUSTOMERS:
        raise LoadDataError(
            f"a comparison needs meters of at least {FEWEST_CUSTOMERS} customers and {FEWEST_DAYS} days; "
            "give more of them",
            code="too-few-customers",
        )
    if history.n_steps % HOURS:
        raise LoadDataError(
            "a comparison needs meter data with steps that divide an hour; give finer readings"
        )
    same = (model.n_load_points, model.n_days, model.step_minutes)
    if same != (history.n_load_points, history.n_days, history.step_minutes):
        raise LoadDataError(
            "the load model of the release was fitted to another number of load points, days or steps than "
            "these meters have; give the meters that the release was made from"
        )


def _customers(
    sides: Sides, effort: Effort, key: StreamKey, watch: Watch
) -> tuple[CustomerComparison, Facts]:
    model, history = sides.model, sides.history
    watch.say("drawing customers from the released model")
    chosen = some_customers(
        model, history, (2 * effort.customers, effort.days), key.stream("customers").generator
    )
    drawn = draw_customers(model, chosen.history, key.bind("purpose", "drawn customers"))
    quantum = quantum_of(chosen.history)
    setting = Setting(chosen.off, float(chosen.floor_kw.min()), quantum)
    watch.say("comparing customers")
    lowest = chosen.floor_kw[:, None, None]
    found = compare_customers(
        np.maximum(drawn, lowest), chosen.load_kw, setting, effort, on_split=watch.progress
    )
    facts = Facts(
        sides.corpus.release_id,
        model.estimator,
        model.is_history,
        chosen.history.n_load_points,
        chosen.history.n_days,
        history.step_minutes,
        quantum,
        history.simulated,
    )
    return found, facts


def _attacks(sides: Sides, effort: Effort, key: StreamKey, watch: Watch) -> Attacks:
    model, history, rng = sides.model, sides.history, key.stream("attacked").generator
    many = design_of(model, history, (2 * effort.customers, effort.attacked_days), rng, one_class=False)
    watch.say("attack: who was among the customers")
    membership = attack_membership(many, effort, key, watch.progress)
    few = design_of(model, history, (effort.attacked, effort.attacked_days), rng, one_class=True)
    watch.say("attack: planted customers")
    planted = attack_planted(few, effort, key, watch.progress)
    line = None if sides.design is None else attack_line(sides.design, key)
    return Attacks(many.allowed, membership, planted, line, sides.promise)
