"""`certificate.html`: the one page a privacy officer reads, made from the manifest alone.

The page is self-contained: no script, no font, no image, no request. Hashes and the commitment are not on it,
since they depend on the data; everything else that the page says is in the manifest.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, UndefinedError

from dp_powerflow.grid.parameters import Quantity
from dp_powerflow.pipeline.manifest.entries import ReleaseError
from dp_powerflow.pipeline.manifest.policy import TWIN_NETWORK
from dp_powerflow.pipeline.manifest.words import at_most, in_digits
from dp_powerflow.privacy.budget import PrivacyUnit

TEMPLATE = "certificate.html"
FIGURES = {
    Quantity.LENGTH: "length of a line",
    Quantity.RESISTANCE: "resistance of a line per length",
    Quantity.REACTANCE: "reactance of a line per length",
    Quantity.TRANSFORMER: "impedance of a transformer",
    Quantity.CAPACITOR: "size of a capacitor",
    Quantity.PV: "capacity of a PV system",
}
"""What the figures of a twin are called on the page."""


def certificate_html(manifest: dict[str, Any]) -> bytes:
    """The page of a manifest; its file hashes, its digest and the commitment do not enter."""
    loads, network = manifest["guarantee"]["loads"], manifest["guarantee"]["network"]
    twin = network["mode"] == TWIN_NETWORK
    shown = {
        "release": manifest["release"],
        "loads": loads,
        "network": network,
        "twin": twin,
        "spreads": [(words, network["spread"][name]) for name, words in FIGURES.items()] if twin else [],
        "network_odds": _odds(network["epsilon"]),
        "composition": manifest["composition"],
        "queries": _queries(manifest),
        "declared": manifest["declared_public"],
        "processing": manifest["processing"],
        "random": manifest["random_source"],
        "unprotected": manifest["unprotected"],
        "not_claimed": manifest["not_claimed"],
        "data": manifest["data"],
        "software": manifest["software"],
        "odds": _odds(loads["epsilon"]),
        "per_day": loads["unit"] == PrivacyUnit.LOAD_POINT_DAY,
    }
    try:
        return _template().render(shown).encode()
    except UndefinedError as error:
        raise ReleaseError("the manifest lacks an entry that the certificate shows") from error


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("dp_powerflow.pipeline.manifest"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "at_most": at_most,
        "number": _number,
        "percent": _percent,
        "rounded": _rounded,
        "sentence": _sentence,
    }
    return environment.get_template(TEMPLATE)


def _odds(epsilon: float) -> str:
    """exp(ε), rounded up; in words where the figure would say nothing."""
    return at_most(math.exp(epsilon)) if epsilon < 10 else "more than 20,000"


def _queries(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Every query with its share of the release's ρ."""
    rho = manifest["guarantee"]["loads"]["rho"]
    return [query | {"share": query["rho"] / rho if rho else 0.0} for query in manifest["load_queries"]]


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


def _sentence(words: str) -> str:
    """With a capital first letter, the rest as it is."""
    return words[:1].upper() + words[1:]
