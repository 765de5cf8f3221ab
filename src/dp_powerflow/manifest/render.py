"""What is made from the manifest beside it: a page for people and a record for a registry.

`certificate.html` is the one page a privacy officer reads. It is self-contained: no script, font or image and
no request. Hashes and the commitment are not on it, since they depend on the data; everything else that it
says is in the manifest.

`registry.yaml` is the release in the field layout of the OpenDP deployments registry. The registry records
deployments of differential privacy with one unit, so it is told of the loads; the statement about the
network, be it evidence or the guarantee of a twin, is additional information. What only the data owner knows
(his name, the date, the region) is left for him to fill in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment

from dp_powerflow.manifest.card import card_bytes as card_bytes
from dp_powerflow.manifest.card import license_of as license_of
from dp_powerflow.manifest.card import literally as literally
from dp_powerflow.manifest.croissant import CONFORMS_TO as CONFORMS_TO
from dp_powerflow.manifest.croissant import croissant_bytes as croissant_bytes
from dp_powerflow.manifest.model import RELATIVE, Statement, at_most, in_digits
from dp_powerflow.manifest.policy import NO_PROTECTION, registered
from dp_powerflow.page.document import environment
from dp_powerflow.privacy.budget import epsilon_to_rho

_TO_FILL_IN = "To be filled in by the data owner"
_HEADER = (
    "# Record for the OpenDP deployments registry, made by dp-powerflow from manifest.json.\n"
    "# Fill in before submitting: data_curators, data_product_region, publication_date, registry_authors.\n"
)


def certificate_html(statement: Statement[Any]) -> bytes:
    """The page of a statement; the commitment does not enter."""
    loads, network = statement.guarantee.loads, statement.guarantee.network
    warnings = statement.release.warnings
    weak = [words.split(": ", 1) for words in warnings if words.startswith(f"{NO_PROTECTION}: ")]
    shown = {
        "release": statement.release,
        "alarm": weak[0] if weak else None,
        "banner": [words for words in warnings if not words.startswith(f"{NO_PROTECTION}: ")],
        "loads": loads,
        "network": network,
        "composition": statement.composition,
        "account": statement.composition.network,
        "queries": [(query, query.rho / loads.rho) for query in statement.load_queries],
        "declared": statement.declared_public,
        "processing": statement.processing,
        "random": statement.random_source,
        "unprotected": statement.unprotected,
        "not_claimed": statement.not_claimed,
        "data": statement.data,
        "software": statement.release.software,
        "per_day": loads.unit == "load-point-day",
    }
    return _environment().get_template(registered(network.mode).template).render(shown).encode()


@cache
def _environment() -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "at_most": at_most,
        "number": _number,
        "odds": _odds,
        "percent": _percent,
        "right": _right,
        "rounded": _rounded,
        "sentence": _sentence,
        "share": _share,
    }
    return environment("dp_powerflow.manifest", "templates", html=True, filters=filters)


def _odds(epsilon: float) -> str:
    """exp(ε), rounded up; in words where the figure would say nothing."""
    return at_most(math.exp(epsilon)) if epsilon < 10 else "more than 20,000"


def _number(value: float) -> str:
    """A number as a person writes it."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    return in_digits(value)


def _rounded(value: float) -> str:
    """A measured size, such as that of the noise."""
    return f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def _share(change: float) -> str:
    """A declared share in percent, with the digits that it has."""
    return f"{in_digits(round(100 * change, 10))} %"


def _right(advantage: float) -> str:
    """How often the best test between two networks is right, if either is as likely: (1 + advantage)/2."""
    return f"{at_most(50 * (1 + advantage))} %"


def _sentence(words: str) -> str:
    """With a capital first letter, the rest as it is."""
    return words[:1].upper() + words[1:]


_MOST_ANALYSED = 512
_ANALYSED: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """As `yaml.safe_dump`, with texts of several lines as blocks."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    def analyze_scalar(self, scalar: str) -> Any:
        """Character by character; most texts are those of the release before."""
        known = _ANALYSED.get(scalar)
        if known is None:
            if len(_ANALYSED) >= _MOST_ANALYSED:
                _ANALYSED.clear()
            known = _ANALYSED[scalar] = super().analyze_scalar(scalar)
        return known


_Dumper.add_representer(str, _Dumper.represent_str)


def registry_bytes(statement: Statement[Any]) -> bytes:
    """The record of a release as YAML; hashes do not enter."""
    record = {
        "url_slug": f"dp-powerflow-{statement.release.id}".lower(),
        "deployment": {
            "basic": _basic(statement),
            "dp_variant": _variant(statement),
            "privacy_loss": _privacy_loss(statement),
            "deployment_model": _model(statement),
            "implementation": _implementation(statement),
            "administrative": {"status": "Draft", "registry_authors": [_TO_FILL_IN], "tier": 3},
        },
    }
    text: str = yaml.dump(record, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return (_HEADER + text).encode()


def _basic(statement: Statement[Any]) -> dict[str, Any]:
    data, release, stated = statement.data, statement.release, statement.publication
    return {
        "name": f"Synthetic voltage phasors of a distribution feeder, release {release.id}",
        "data_curators": [
            {"data_curator_name": stated.publisher or _TO_FILL_IN, "data_curator_type": "Industry"}
        ],
        "description": (
            f"{data.days} synthetic days of voltage phasors at {data.nodes} nodes, every "
            f"{data.step_minutes} minutes, that obey AC power flow; loads drawn from a differentially "
            "private load model. " + " ".join(release.warnings)
        ).strip(),
        "intended_use": "Research on distribution grids: state estimation, anomaly detection, forecasting.",
        "data_product_type": "Synthetic data",
        "data_product_region": _TO_FILL_IN,
        "data_product_sector": "Energy",
        "publication_date": stated.date or "1900-01-01",
    }


def _variant(statement: Statement[Any]) -> dict[str, Any]:
    declared = statement.declared_public
    return {
        "variant_name": "Approximate DP",
        "data_domain": (
            f"Histories of active load of {declared.load_points} load points over {declared.days} days "
            f"in steps of {declared.step_minutes} minutes."
        ),
        "unprotected_quantities": _bullets(statement.unprotected),
    }


def _privacy_loss(statement: Statement[Any]) -> dict[str, Any]:
    loads, promise = statement.guarantee.loads, statement.composition.loads.promise
    return {
        "privacy_unit": "Load point" if loads.unit == "load-point" else "Load point and day",
        "privacy_unit_details": f"{loads.unit_in_words} Neighbours: {loads.adjacency}.",
        "number_of_privacy_units": 1,
        "privacy_parameters": {"epsilon": loads.epsilon, "delta": loads.delta, "rho": loads.rho},
        "privacy_parameters_details": (
            f"{loads.accounting}. With all earlier releases from the same customers: epsilon at most "
            f"{at_most(promise.epsilon)} at delta {in_digits(promise.delta)}."
        ),
    }


def _model(statement: Statement[Any]) -> dict[str, Any]:
    loads = statement.guarantee.loads
    granted = epsilon_to_rho(loads.epsilon_granted, loads.delta)
    alone = math.isclose(statement.composition.loads.spent.rho, granted, rel_tol=RELATIVE)
    return {
        "model_name": "Central",
        "trust_assumptions": "The data owner sees the readings, runs the release and keeps the key secret.",
        "actors": (
            "The data owner, the customers behind the load points, the readers of the corpus. An attacker is "
            "assumed to know the load model, power factors, generation and taps."
        ),
        "release_type": "One release" if alone else "Many releases",
        "release_type_details": "A ledger caps what all releases from the same customers add up to.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _implementation(statement: Statement[Any]) -> dict[str, Any]:
    random, guarantee = statement.random_source, statement.guarantee
    return {
        "preprocessing_and_hyperparameter_tuning": _bullets(statement.processing.before_noise),
        "mechanisms": (
            f"Noise: {random.noise}. Generator: {random.generator}; key: {random.key}. "
            f"{len(statement.load_queries)} queries, each with sensitivity and noise scale in "
            f"manifest.json. {statement.release.software}."
        ),
        "composition": guarantee.loads.accounting,
        "post_processing": _bullets(statement.processing.after_noise),
        "justification": "Every figure can be recomputed from the release: dp-powerflow verify RELEASE.",
        "additional_information": (
            f"{guarantee.network.in_full()}\n\nNot claimed:\n{_bullets(statement.not_claimed)}"
        ),
    }


def _bullets(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
