"""`registry.yaml`: the release in the field layout of the OpenDP deployments registry.

The registry records deployments of differential privacy with one unit, so it is told of the loads; the
statement about the network, be it evidence or the guarantee of a twin, is additional information. What only
the data owner knows (his name, the date, the region) is left for him to fill in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dp_powerflow.pipeline.manifest.build import ManifestInputs, build_manifest
from dp_powerflow.pipeline.manifest.policy import TWIN_NETWORK
from dp_powerflow.pipeline.manifest.words import at_most, in_digits
from dp_powerflow.privacy.budget import PrivacyUnit

_TO_FILL_IN = "To be filled in by the data owner"
_HEADER = (
    "# Record for the OpenDP deployments registry, made by dp-powerflow from manifest.json.\n"
    "# Fill in before submitting: data_curators, data_product_region, publication_date, registry_authors.\n"
)


def registry_bytes(inputs: ManifestInputs) -> bytes:
    """The record of a release as YAML."""
    return render_registry(build_manifest(inputs, {}))


def render_registry(manifest: Mapping[str, Any]) -> bytes:
    """The record that a manifest determines; hashes do not enter."""
    record = {
        "url_slug": f"dp-powerflow-{manifest['release']['id']}".lower(),
        "deployment": {
            "basic": _basic(manifest),
            "dp_variant": _variant(manifest),
            "privacy_loss": _privacy_loss(manifest),
            "deployment_model": _model(manifest),
            "implementation": _implementation(manifest),
            "administrative": {"status": "Draft", "registry_authors": [_TO_FILL_IN], "tier": 3},
        },
    }
    return (_HEADER + "\n".join(_yaml(record)) + "\n").encode()


def _basic(manifest: Mapping[str, Any]) -> dict[str, Any]:
    data = manifest["data"]
    return {
        "name": f"Synthetic voltage phasors of a distribution feeder, release {manifest['release']['id']}",
        "data_curators": [{"data_curator_name": _TO_FILL_IN, "data_curator_type": "Industry"}],
        "description": (
            f"{data['days']} synthetic days of voltage phasors at {data['nodes']} nodes, every "
            f"{data['step_minutes']} minutes, that obey AC power flow; loads drawn from a differentially "
            "private load model. " + " ".join(manifest["release"]["warnings"])
        ).strip(),
        "intended_use": "Research on distribution grids: state estimation, anomaly detection, forecasting.",
        "data_product_type": "Synthetic data",
        "data_product_region": _TO_FILL_IN,
        "data_product_sector": "Energy",
        "publication_date": "1900-01-01",
    }


def _variant(manifest: Mapping[str, Any]) -> dict[str, Any]:
    declared = manifest["declared_public"]
    return {
        "variant_name": "Approximate DP",
        "data_domain": (
            f"Histories of active load of {declared['load_points']} load points over {declared['days']} days "
            f"in steps of {declared['step_minutes']} minutes."
        ),
        "unprotected_quantities": _bullets(manifest["unprotected"]),
    }


def _privacy_loss(manifest: Mapping[str, Any]) -> dict[str, Any]:
    loads = manifest["guarantee"]["loads"]
    promise = manifest["composition"]["loads"]["promise"]
    return {
        "privacy_unit": "Load point" if loads["unit"] == PrivacyUnit.LOAD_POINT else "Load point and day",
        "privacy_unit_details": f"{loads['unit_in_words']} Neighbours: {loads['adjacency']}.",
        "number_of_privacy_units": 1,
        "privacy_parameters": {"epsilon": loads["epsilon"], "delta": loads["delta"], "rho": loads["rho"]},
        "privacy_parameters_details": (
            f"{loads['accounting']}. With all earlier releases from the same customers: epsilon at most "
            f"{at_most(promise['epsilon'])} at delta {in_digits(promise['delta'])}."
        ),
    }


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    charges = manifest["composition"]["loads"]["charges"]
    return {
        "model_name": "Central",
        "trust_assumptions": "The data owner sees the readings, runs the release and keeps the key secret.",
        "actors": (
            "The data owner, the customers behind the load points, the readers of the corpus. An attacker is "
            "assumed to know the load model, power factors, generation and taps."
        ),
        "release_type": "One release" if charges == 1 else "Many releases",
        "release_type_details": "A ledger caps what all releases from the same customers add up to.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _implementation(manifest: Mapping[str, Any]) -> dict[str, Any]:
    network, random = manifest["guarantee"]["network"], manifest["random_source"]
    return {
        "preprocessing_and_hyperparameter_tuning": _bullets(manifest["processing"]["before_noise"]),
        "mechanisms": (
            f"Noise: {random['noise']}. Generator: {random['generator']}; key: {random['key']}. "
            f"{len(manifest['load_queries'])} queries, each with sensitivity and noise scale in "
            f"manifest.json. dp-powerflow {manifest['software']['dp-powerflow']}."
        ),
        "composition": manifest["guarantee"]["loads"]["accounting"],
        "post_processing": _bullets(manifest["processing"]["after_noise"]),
        "justification": "Every figure can be recomputed from the release: dp-powerflow verify RELEASE.",
        "additional_information": (
            f"{_network(network)}\n\nNot claimed:\n{_bullets(manifest['not_claimed'])}"
        ),
    }


def _network(network: Mapping[str, Any]) -> str:
    if network["mode"] != TWIN_NETWORK:
        return (
            f"The network is not covered by differential privacy. Policy ({network['kind']}): neighbours are "
            f"{network['neighbours']}; epsilon {in_digits(network['epsilon'])} and delta "
            f"{in_digits(network['delta'])} for {network['days']} days. {network['scope']}"
        )
    return (
        "A second guarantee of differential privacy covers the network, whose twin all was solved on. "
        f"Unit: {network['neighbours']}. mu = {at_most(network['mu'])} of Gaussian differential privacy, "
        f"epsilon at most {at_most(network['epsilon'])} at delta {in_digits(network['delta'])}, for "
        f"{network['days']} of days: {network['accounting']}. {network['group_in_words']} "
        f"{network['scope']}"
    )


def _bullets(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Lines of block YAML for dictionaries, lists, strings and numbers."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, Mapping | list):
                yield f"{indent}{name}:"
                yield from _yaml(item, indent + "  ")
            elif isinstance(item, str) and "\n" in item:
                yield f"{indent}{name}: |-"
                yield from (f"{indent}  {line}" if line else "" for line in item.split("\n"))
            else:
                yield f"{indent}{name}: {_scalar(item)}"
        return
    for item in value:
        if isinstance(item, Mapping):
            first, *rest = _yaml(item, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(item)}"


def _scalar(value: str | int | float) -> str:
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        # YAML 1.1 takes 1e-05 for a string: a number needs its point.
        return mantissa + ("" if "." in mantissa else ".0") + exponent + power
    return json.dumps(value, ensure_ascii=False)
