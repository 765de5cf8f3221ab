"""`README.md`: the card that dataset hubs show; it tells `datasets.load_dataset` which tables there are.

The front matter is YAML as the Hugging Face Hub reads it. Everything on the card is in the manifest; what the
data owner does not declare is said to be not stated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment

from dp_powerflow.manifest.model import NOT_STATED, Statement, at_most, in_digits
from dp_powerflow.manifest.published import VOLTAGES, published_tables
from dp_powerflow.page.document import environment

TITLE = "Synthetic voltage phasors of a distribution feeder"
_SIZES = (
    *(("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6)),
    ("1M<n<10M", 10**7),
    ("10M<n<100M", 10**8),
    ("100M<n<1B", 10**9),
)
_OF_THE_HUB = {
    **{"ODC-By-1.0": "odc-by", "ODbL-1.0": "odbl", "PDDL-1.0": "pddl"},
    **{
        name: name.lower()
        for name in (
            *("CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC-BY-ND-4.0", "CC-BY-NC-SA-4.0"),
            *("CC-BY-NC-ND-4.0", "CC-BY-3.0", "CC-BY-SA-3.0", "MIT", "Apache-2.0", "BSD-2-Clause"),
            *("BSD-3-Clause", "CDLA-Permissive-1.0", "CDLA-Permissive-2.0", "CDLA-Sharing-1.0"),
        )
    },
}
"""Licenses that the hub knows by a name of its own; it takes any other with its name and a link."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


def card_bytes(statement: Statement[Any]) -> bytes:
    """The card of a release; hashes do not enter."""
    head: str = yaml.safe_dump(_front_matter(statement), sort_keys=False, allow_unicode=True, width=110)
    stated, network = statement.publication, statement.guarantee.network
    shown = {
        "title": TITLE,
        "release": statement.release,
        "data": statement.data,
        "loads": statement.guarantee.loads,
        "network": network,
        "advantage": getattr(network, "advantage", None),
        "tables": list(published_tables(statement)),
        "unprotected": statement.unprotected,
        "not_claimed": statement.not_claimed,
        "publication": stated,
        "not_stated": NOT_STATED,
        "citation": stated.cited_as(statement.release.id).splitlines(),
        "software": statement.release.software,
    }
    return f"---\n{head}---\n\n{_environment().get_template('card.md').render(shown)}".encode()


def _front_matter(statement: Statement[Any]) -> dict[str, Any]:
    data, tables = statement.data, list(published_tables(statement))
    graph = data.connections is not None or data.network_tables is not None
    rows = data.days * data.nodes
    return {
        "pretty_name": f"{TITLE}, release {statement.release.id}",
        **license_of(statement),
        "tags": [
            *("power-flow", "distribution-grid", "voltage-phasors", "smart-grid", "energy"),
            *("synthetic", "differential-privacy", "dp-powerflow"),
        ],
        "task_categories": [
            *("time-series-forecasting", "tabular-regression"),
            *(("graph-ml",) if graph else ()),
        ],
        "size_categories": [next((name for name, limit in _SIZES if rows < limit), "n>1B")],
        "configs": [
            {"config_name": table.name, "data_files": table.files}
            | ({"default": True} if table.name == VOLTAGES else {})
            for table in tables
        ],
    }


def license_of(statement: Statement[Any]) -> dict[str, str]:
    """As the hub writes it: a name of its own, or `other` with name and link, or `unknown`."""
    stated = statement.publication
    if stated.license is None:
        return {"license": "unknown"}
    if stated.license in _OF_THE_HUB:
        return {"license": _OF_THE_HUB[stated.license]}
    link = {} if stated.license_url is None else {"license_link": stated.license_url}
    return {"license": "other", "license_name": stated.license.lower(), **link}


@cache
def _environment() -> Environment:
    filters: dict[str, Callable[..., Any]] = {
        "at_most": at_most,
        "in_digits": in_digits,
        "literally": literally,
    }
    return environment("dp_powerflow.manifest", "templates", html=False, filters=filters)


def literally(words: str) -> str:
    """Words of the data owner as Markdown that shows them as they are: no heading, link or HTML of his."""
    return _MARKUP.sub(r"\\\1", words)
