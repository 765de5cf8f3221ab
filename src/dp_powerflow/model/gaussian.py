"""The released load model: frozen, serialisable, publishable.

Nothing in it was computed from the meter data without being paid for: every number is a public constant or
post-processing of noisy integers, which are published with their costs. Reading a model derives its
parameters again from them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from dp_powerflow._names import LAST_READER
from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.derive import replay
from dp_powerflow.model.history.estimate import History
from dp_powerflow.model.history.law import HistoryClass
from dp_powerflow.model.law import ClassModel, LoadLaw, LoadNodes
from dp_powerflow.model.options import Estimators, FitOptions, FixedPowerFactor, HistoryFacts, PublicSpread
from dp_powerflow.model.partition import PrivateClasses
from dp_powerflow.model.single_days import Plain, Structured
from dp_powerflow.privacy.budget import ADJACENCY, Budget, PrivacyUnit, QueryCost, rho_to_epsilon, total_rho
from dp_powerflow.privacy.queries import Answer
from dp_powerflow.units import IntArray

FORMAT = "dp-powerflow load model, version 4"
ESTIMATORS: Estimators = {"structured": Structured, "plain": Plain, "history": History}
_TOLERANCE = 1e-9  # between stated and derived parameters, relative to the largest of them


@dataclass(frozen=True, eq=False)
class Origin:
    """What the parameters of a model are derived from, by anyone.

    Parameters
    ----------
    facts
        Public size of the history.
    options
        Public choices of the fit.
    integers
        Noisy sums (block, dimension) of every query [grid units], in the order of the model's costs.
    """

    facts: HistoryFacts
    options: FitOptions
    integers: tuple[IntArray, ...]


@dataclass(frozen=True, eq=False)
class LoadModel:
    """What is released about the customers' loads.

    Parameters
    ----------
    classes
        One entry per class.
    step_minutes
        Length of a step [min].
    scaled
        True if loads are relative to a public scale per load point.
    unit
        The record the guarantee is about.
    epsilon, delta
        The budget that was granted; `spent_epsilon` says what was used of it.
    costs
        One record per query.
    n_load_points, n_days
        Public size of the history.
    public_labels
        True if classes are public labels of load points.
    estimator
        Name of the estimator.
    insecure_seed
        True if the noise came from a seed: a demonstration, not a release.
    simulated
        True if no meter ever read the loads.
    notes
        Public remarks, such as a budget too small to be useful.
    origin
        What the classes are derived from; None for a model made by hand, which cannot be read again.
    """

    classes: tuple[ClassModel, ...] | tuple[HistoryClass, ...]
    step_minutes: int
    scaled: bool
    unit: PrivacyUnit
    epsilon: float
    delta: float
    costs: tuple[QueryCost, ...]
    n_load_points: int
    n_days: int
    public_labels: bool
    estimator: str
    insecure_seed: bool
    simulated: bool
    notes: tuple[str, ...] = ()
    origin: Origin | None = None

    @property
    def n_steps(self) -> int:
        """T, steps per day."""
        first = self.classes[0]
        return first.law.n_steps if isinstance(first, HistoryClass) else int(first.components[0].mean.size)

    @property
    def is_history(self) -> bool:
        """Whether its classes are laws of whole histories; otherwise of single days."""
        return isinstance(self.classes[0], HistoryClass)

    @property
    def histories(self) -> tuple[HistoryClass, ...]:
        """Its classes, of a model of histories."""
        found = tuple(part for part in self.classes if isinstance(part, HistoryClass))
        if not found:
            raise PrivacyError("this load model is one of single days; it has no histories")
        return found

    @property
    def days(self) -> tuple[ClassModel, ...]:
        """Its classes, of a model of single days."""
        found = tuple(part for part in self.classes if isinstance(part, ClassModel))
        if not found:
            raise PrivacyError("this load model is one of whole histories; it has no law of single days")
        return found

    @property
    def rho(self) -> float:
        """ρ (zCDP) of all queries together."""
        return total_rho(self.costs)

    @property
    def spent_epsilon(self) -> float:
        """ε at `delta`, recomputed from the costs."""
        return rho_to_epsilon(self.rho, self.delta)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(part.name for part in self.classes)

    def find(self, name: str) -> ClassModel | HistoryClass:
        """The class of a name."""
        for part in self.classes:
            if part.name == name:
                return part
        raise PrivacyError(f"the load model has no class '{name}'; it has {', '.join(self.class_names)}")

    def at(self, nodes: LoadNodes, *, truncated: bool = False) -> LoadLaw:
        """The law of the loads at the nodes of a feeder.

        Parameters
        ----------
        nodes
            Class, public scale and place of every node.
        truncated
            True: days within the class's bounds (mode `paper`). False: untruncated.

        Returns
        -------
        LoadLaw
            What `LoadSampler` draws from and what the evidence is about.

        Raises
        ------
        PrivacyError
            If a class is unknown, or scales are missing or not wanted.
        """
        if self.scaled != (nodes.scale_kw is not None):
            raise PrivacyError("give a public scale for every node if, and only if, the model is scaled")
        known = {part.name: part for part in self.days}
        wanted = {name: known[self.find(name).name] for name in dict.fromkeys(nodes.classes)}
        names = [name for name in self.class_names if name in wanted]
        reactive = [wanted[name].reactive for name in nodes.classes]
        count, random = len(nodes.classes), np.array([of.spread * of.reference for of in reactive])
        return LoadLaw(
            classes=tuple(wanted[name].law for name in names),
            class_of=np.array([names.index(name) for name in nodes.classes], dtype=np.int64),
            scale_kw=np.ones(count) if nodes.scale_kw is None else np.asarray(nodes.scale_kw, np.float64),
            tan_theta=np.array([of.tan_theta for of in reactive]),
            q_size=random if any(of.covariance is not None for of in reactive) else None,
            base_mva=nodes.base_mva,
            positions=nodes.positions,
            truncated=truncated,
            identity=self.sha256,
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON; binds the synthetic draws to this model."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Canonical JSON; floats survive the round trip bit by bit."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return _canonical(_to_plain(self))  # once for all feeders of a fleet

    @classmethod
    def from_json(cls, text: str) -> LoadModel:
        """Inverse of `to_json`; derives the parameters again from the published integers.

        Raises
        ------
        PrivacyError
            If the text is no load model, or its parameters are not those that its integers give.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise PrivacyError(
                    f"this is not a load model of the format '{FORMAT}'; dp-powerflow {LAST_READER} is the "
                    "last version that reads earlier ones",
                    code="format-not-read",
                )
            with np.errstate(all="ignore"):  # made-up figures may overflow
                model = _from_plain(fields)
            # A key that is there twice, or a number that is none, would read otherwise elsewhere.
            same = _canonical(fields) == text and _close(fields, json.loads(model.to_json()))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise PrivacyError(
                "this is not a load model of dp-powerflow; use the model.json of a release"
            ) from error
        if not same:
            raise PrivacyError(
                "the parameters of this load model are not those that its published integers give; "
                "the file was changed, get it again"
            )
        return model

    def with_reactive(self, choice: FixedPowerFactor | PublicSpread) -> LoadModel:
        """The model with another public law of reactive load, derived again from the same noisy answers.

        Neither law asks a query, so a fit with either has the same answers, and what they cost
        stays the same.

        Parameters
        ----------
        choice
            Fixed power factors, or a public spread around them.

        Raises
        ------
        PrivacyError
            If the model has no noisy answers.
        """
        if self.origin is None:
            raise PrivacyError("this model was made by hand, so its reactive load cannot be chosen anew")
        options = replace(self.origin.options, reactive=choice)
        return _derived_again(replace(self, origin=replace(self.origin, options=options)))

    def save(self, path: Path) -> None:
        """Write the canonical JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> LoadModel:
        """Read what `save` wrote; raises as `from_json`."""
        return cls.from_json(path.read_text(encoding="utf-8", errors="replace"))


def _derived_again(stated: LoadModel) -> LoadModel:
    """The model that the published integers, facts and options give; only their own words are taken."""
    origin = stated.origin
    assert origin is not None
    facts, options = origin.facts, origin.options
    answers = tuple(Answer(*pair) for pair in zip(stated.costs, origin.integers, strict=True))
    derived = replay(facts, options, Budget(stated.epsilon, stated.delta, stated.unit), answers)
    return replace(stated, classes=derived.classes, notes=derived.notes, **words_of(facts, options))


def words_of(facts: HistoryFacts, options: FitOptions) -> dict[str, Any]:
    """What facts and options say of a model."""
    return {
        "step_minutes": facts.step_minutes,
        "scaled": options.use_scale,
        "n_load_points": facts.n_load_points,
        "n_days": facts.n_days,
        "public_labels": not isinstance(options.classes, PrivateClasses),
        "estimator": options.estimator.name,
    }


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _close(stated: Any, derived: Any) -> bool:
    """Equal structures of the same types, floating-point numbers up to the tolerance."""
    if isinstance(stated, dict) and isinstance(derived, dict):
        return stated.keys() == derived.keys() and all(_close(stated[k], derived[k]) for k in stated)
    if _floats(derived):
        first, second = np.asarray(stated), np.asarray(derived)
        return (
            _floats(stated)
            and first.shape == second.shape
            and bool(np.abs(first - second).max() <= _TOLERANCE * np.abs(second).max())
        )
    if isinstance(stated, list) and isinstance(derived, list):
        return len(stated) == len(derived) and all(map(_close, stated, derived))
    return type(stated) is type(derived) and bool(stated == derived)


def _floats(value: Any) -> bool:
    """Whether it is a number with a fraction, or lists of nothing else."""
    if isinstance(value, list):
        return bool(value) and all(map(_floats, value))
    return type(value) is float


def _to_plain(model: LoadModel) -> dict[str, Any]:
    costs, origin = [cost.to_dict() for cost in model.costs], model.origin
    asked: dict[str, Any] = {"costs": costs}
    if origin is not None:
        queries = [
            cost | {"integers": integers.tolist()}
            for cost, integers in zip(costs, origin.integers, strict=True)
        ]
        facts, options = origin.facts.to_dict(), origin.options.to_dict()
        asked = {"format": FORMAT, "facts": facts, "options": options, "queries": queries}
    classes = [_class_to_plain(part) for part in model.classes]
    said = {"adjacency": ADJACENCY, "classes": classes, "unit": str(model.unit), "notes": list(model.notes)}
    return asked | {name: getattr(model, name) for name in _OWN_WORDS} | said


_OWN_WORDS = (
    *("epsilon", "delta", "rho", "spent_epsilon", "insecure_seed", "simulated"),
    *("step_minutes", "scaled", "n_load_points", "n_days", "public_labels", "estimator"),
)


def _class_to_plain(part: ClassModel | HistoryClass) -> dict[str, Any]:
    fields: dict[str, Any] = to_jsonable_python(part, fallback=np.ndarray.tolist)
    if isinstance(part, HistoryClass):
        fields["reactive"]["tan_std"] = 0.0  # angles were fitted once
        return fields | {"kind": "history"}
    return fields | {"day_type": None}  # classes were split by types of day once


def _from_plain(fields: dict[str, Any]) -> LoadModel:
    """The model of published integers; what else the fields state must follow from them.

    Values are converted, so that one of another type differs from what the model says of itself.
    """
    queries = fields["queries"]
    facts = HistoryFacts.from_dict(fields["facts"])
    options = FitOptions.from_dict(fields["options"], ESTIMATORS)
    integers = tuple(np.array(query["integers"], dtype=np.int64) for query in queries)
    stated = LoadModel(
        origin=Origin(facts, options, integers),
        classes=(),
        costs=tuple(QueryCost.from_dict(query) for query in queries),
        unit=PrivacyUnit(fields["unit"]),
        epsilon=float(fields["epsilon"]),
        delta=float(fields["delta"]),
        insecure_seed=bool(fields["insecure_seed"]),
        simulated=bool(fields["simulated"]),
        **words_of(facts, options),
    )
    return _derived_again(stated)
