"""`certificate.html`: the one page a privacy officer reads, made from the manifest alone.

The page is self-contained: no script, no font, no image, no request. Hashes and the commitment are not on it,
since they depend on the data; everything else that the page says is in the manifest.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dp_powerflow.pipeline.manifest.model import Statement
from dp_powerflow.pipeline.manifest.policy import registered
from dp_powerflow.pipeline.manifest.words import at_most, in_digits


def certificate_html(statement: Statement[Any]) -> bytes:
    """The page of a statement; the commitment does not enter."""
    loads, network = statement.guarantee.loads, statement.guarantee.network
    shown = {
        "release": statement.release,
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
        "software": statement.software,
        "per_day": loads.unit == "load-point-day",
    }
    return _environment().get_template(registered(network.mode).template).render(shown).encode()


@cache
def _environment() -> Environment:
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
        "odds": _odds,
        "percent": _percent,
        "rounded": _rounded,
        "sentence": _sentence,
    }
    return environment


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


def _sentence(words: str) -> str:
    """With a capital first letter, the rest as it is."""
    return words[:1].upper() + words[1:]
