"""The released load model: frozen, serialisable, publishable.

Nothing in it was computed from the meter data without being paid for: every number is a public constant or
post-processing of noisy sums whose costs are listed beside it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.model.law import ClassLaw, GaussianComponent, LoadLaw, LoadNodes
from dp_powerflow.privacy.accounting import rho_to_epsilon, total_rho
from dp_powerflow.privacy.budget import ADJACENCY, PrivacyUnit, QueryCost
from dp_powerflow.units import FloatArray

FORMAT = "dp-powerflow load model, version 1"


@dataclass(frozen=True, eq=False)
class ReactiveModel:
    """Reactive load of a class: q = p·tan θ + c·p̄·ξ, ξ ~ N(0, Σ_ξ) over the day.

    Parameters
    ----------
    tan_theta
        tan θ of the class, public or fitted under differential privacy.
    spread
        c; 0 keeps the power factor fixed (the paper's mode).
    reference
        p̄ [kW, or per public scale], the released mean load of the class.
    covariance
        Σ_ξ (step, step), or None if the power factor is fixed.
    """

    tan_theta: float
    spread: float = 0.0
    reference: float = 0.0
    covariance: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class ClassModel:
    """The loads of one class, on days of one type.

    Parameters
    ----------
    name
        Class: a public label, or "class 1", … if the partition was private.
    day_type
        Public type of day, or None if all days are alike.
    weight
        Share of the load points: public, or released under differential privacy.
    components
        The mixture; one Gaussian by default.
    bounds
        Declared public (p_min, p_max) [kW, or per public scale].
    reactive
        Law of the reactive load.
    """

    name: str
    day_type: str | None
    weight: float
    components: tuple[GaussianComponent, ...]
    bounds: tuple[float, float]
    reactive: ReactiveModel

    @cached_property
    def law(self) -> ClassLaw:
        """Law of the class's loads over a day, whatever node draws from it."""
        return ClassLaw(self.name, self.components, self.bounds, self.reactive.covariance, self.day_type)

    @property
    def mean_load(self) -> FloatArray:
        """Expected load (step,) [kW, or per public scale]."""
        load = np.zeros_like(self.components[0].mean)
        for part in self.components:
            load += part.weight * part.mean_load
        return load


@dataclass(frozen=True, eq=False)
class LoadModel:
    """What is released about the customers' loads.

    Parameters
    ----------
    classes
        One entry per class, or per class and day type.
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
    """

    classes: tuple[ClassModel, ...]
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

    @property
    def n_steps(self) -> int:
        return int(self.classes[0].components[0].mean.size)

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
        """Classes, without day types, in order of first mention."""
        return tuple(dict.fromkeys(part.name for part in self.classes))

    def find(self, name: str, day_type: str | None = None) -> ClassModel:
        """The model of a class on days of a type."""
        for part in self.classes:
            if part.name == name and part.day_type == day_type:
                return part
        of_days = "" if day_type is None else f" on days of type '{day_type}'"
        raise PrivacyError(
            f"the load model has no class '{name}'{of_days}; it has {', '.join(self.class_names)}"
        )

    def at(self, nodes: LoadNodes, *, truncated: bool = False, day_type: str | None = None) -> LoadLaw:
        """The law of the loads at the nodes of a feeder.

        Parameters
        ----------
        nodes
            Class, public scale and place of every node.
        truncated
            True: days within the class's bounds (mode `paper`). False: untruncated.
        day_type
            Public type of day, if the model has day types.

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
        wanted = {name: self.find(name, day_type) for name in dict.fromkeys(nodes.classes)}
        names = [name for name in self.class_names if name in wanted]
        reactive = [wanted[name].reactive for name in nodes.classes]
        count = len(nodes.classes)
        return LoadLaw(
            classes=tuple(wanted[name].law for name in names),
            class_of=np.array([names.index(name) for name in nodes.classes], dtype=np.int64),
            scale_kw=np.ones(count) if nodes.scale_kw is None else np.asarray(nodes.scale_kw, np.float64),
            tan_theta=np.array([of.tan_theta for of in reactive]),
            q_size=None
            if all(of.covariance is None for of in reactive)
            else np.array([of.spread * of.reference for of in reactive]),
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
        return json.dumps(_to_plain(self), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LoadModel:
        """Inverse of `to_json`."""
        try:
            fields = json.loads(text)
            return _from_plain(fields)
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(
                "this is not a load model of dp-powerflow version 1; use the model.json of a release"
            ) from error

    def save(self, path: Path) -> None:
        """Write the canonical JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> LoadModel:
        """Read what `save` wrote."""
        return cls.from_json(path.read_text(encoding="utf-8"))


def _to_plain(model: LoadModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "adjacency": ADJACENCY,
        "classes": [_class_to_plain(part) for part in model.classes],
        "costs": [cost.to_dict() for cost in model.costs],
        "unit": str(model.unit),
        "rho": model.rho,
        "spent_epsilon": model.spent_epsilon,
        "notes": list(model.notes),
    } | {name: getattr(model, name) for name in _SIMPLE_FIELDS}


_SIMPLE_FIELDS = (
    "step_minutes",
    "scaled",
    "epsilon",
    "delta",
    "n_load_points",
    "n_days",
    "public_labels",
    "estimator",
    "insecure_seed",
    "simulated",
)


def _class_to_plain(part: ClassModel) -> dict[str, Any]:
    reactive = part.reactive
    return {
        "name": part.name,
        "day_type": part.day_type,
        "weight": part.weight,
        "bounds": list(part.bounds),
        "components": [
            {"weight": c.weight, "mean": c.mean.tolist(), "covariance": c.covariance.tolist()}
            for c in part.components
        ],
        "reactive": {
            "tan_theta": reactive.tan_theta,
            "spread": reactive.spread,
            "reference": reactive.reference,
            "covariance": None if reactive.covariance is None else reactive.covariance.tolist(),
        },
    }


def _from_plain(fields: dict[str, Any]) -> LoadModel:
    if fields["format"] != FORMAT:
        raise ValueError("unknown format")
    return LoadModel(
        classes=tuple(_class_from_plain(part) for part in fields["classes"]),
        costs=tuple(QueryCost.from_dict(cost) for cost in fields["costs"]),
        unit=PrivacyUnit(fields["unit"]),
        notes=tuple(fields["notes"]),
        **{name: fields[name] for name in _SIMPLE_FIELDS},
    )


def _class_from_plain(part: dict[str, Any]) -> ClassModel:
    reactive = part["reactive"]
    spread = reactive["covariance"]
    return ClassModel(
        name=part["name"],
        day_type=part["day_type"],
        weight=part["weight"],
        components=tuple(
            GaussianComponent(c["weight"], np.array(c["mean"]), np.array(c["covariance"]))
            for c in part["components"]
        ),
        bounds=(part["bounds"][0], part["bounds"][1]),
        reactive=ReactiveModel(
            reactive["tan_theta"],
            reactive["spread"],
            reactive["reference"],
            None if spread is None else np.array(spread),
        ),
    )
