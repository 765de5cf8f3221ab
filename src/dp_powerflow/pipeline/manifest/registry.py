"""`registry.yaml`: the release in the field layout of the OpenDP deployments registry.

The registry records deployments of differential privacy with one unit, so it is told of the loads; the
statement about the network, be it evidence or the guarantee of a twin, is additional information. What only
the data owner knows (his name, the date, the region) is left for him to fill in.
"""

from __future__ import annotations

from typing import Any

import yaml

from dp_powerflow.pipeline.manifest.model import Statement
from dp_powerflow.pipeline.manifest.words import at_most, in_digits

_TO_FILL_IN = "To be filled in by the data owner"
_HEADER = (
    "# Record for the OpenDP deployments registry, made by dp-powerflow from manifest.json.\n"
    "# Fill in before submitting: data_curators, data_product_region, publication_date, registry_authors.\n"
)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """As `yaml.safe_dump`, with texts of several lines as blocks."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


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
    data, release = statement.data, statement.release
    return {
        "name": f"Synthetic voltage phasors of a distribution feeder, release {release.id}",
        "data_curators": [{"data_curator_name": _TO_FILL_IN, "data_curator_type": "Industry"}],
        "description": (
            f"{data.days} synthetic days of voltage phasors at {data.nodes} nodes, every "
            f"{data.step_minutes} minutes, that obey AC power flow; loads drawn from a differentially "
            "private load model. " + " ".join(release.warnings)
        ).strip(),
        "intended_use": "Research on distribution grids: state estimation, anomaly detection, forecasting.",
        "data_product_type": "Synthetic data",
        "data_product_region": _TO_FILL_IN,
        "data_product_sector": "Energy",
        "publication_date": "1900-01-01",
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
    return {
        "model_name": "Central",
        "trust_assumptions": "The data owner sees the readings, runs the release and keeps the key secret.",
        "actors": (
            "The data owner, the customers behind the load points, the readers of the corpus. An attacker is "
            "assumed to know the load model, power factors, generation and taps."
        ),
        "release_type": "One release" if statement.composition.loads.charges == 1 else "Many releases",
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
            f"manifest.json. dp-powerflow {statement.software['dp-powerflow']}."
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
