"""The pages of a release, made from its manifest: every sentence is in a template.

`templates/words.txt` holds the sentences, in parts; each mode fills in its parts (`true.txt`,
`twin.txt`). `Words` renders a part from the figures of a manifest. `certificate.html` is the one page a
privacy officer reads; it is self-contained: no script, font or image and no request. `README.md` is the card
of dataset hubs, whose front matter tells `datasets.load_dataset` which tables there are. `croissant.json` is
metadata in the Croissant 1.0 format of MLCommons. `registry.yaml` is the release in the field layout of the
OpenDP deployments registry, which is told of the loads; the statement about the network is additional
information there. Hashes and the commitment are on no page but `croissant.json`, since they depend on the
data. What the data owner does not declare is said to be not stated; nothing stands in for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, Template, TemplateError

from dp_powerflow._bits.elementary import exp1
from dp_powerflow.corpus import schema
from dp_powerflow.corpus.gridfm.schema import ROWS_FILE, TABLES, table_directory
from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.storage import Location, loading
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.corpus.validate import CorpusReport
from dp_powerflow.corpus.writer import CorpusWriter
from dp_powerflow.manifest import model as form
from dp_powerflow.manifest.build import ManifestInputs, make_statement
from dp_powerflow.page import environment
from dp_powerflow.privacy.budget import epsilon_to_rho
from dp_powerflow.quality import Guarantee, Promise, Quality, measure

NOT_STATED = "not stated"
TITLE = "Synthetic voltage phasors of a distribution feeder"
_EXTENDS = re.compile(r'\s*{% extends "([a-z.]+)" %}')
_ITEM = re.compile(r"^- ", re.MULTILINE)
_NOT_OF_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Words:
    """The sentences of a manifest: `words[part]` renders the items of one part of the template of its mode.

    Parameters
    ----------
    template : name of a file in `templates/`, or the text of a template that extends one.
    figures : what the part is rendered from.
    """

    def __init__(self, template: str, figures: Mapping[str, Any]) -> None:
        own, *parents = _with_parents(template)
        self._context = own.new_context({**figures, **_CONSTANTS})
        for parent in parents:
            for name, block in parent.blocks.items():
                self._context.blocks.setdefault(name, []).append(block)

    @classmethod
    def of(cls, statement: form.Statement[Any]) -> Words:
        """What a release says."""
        return cls(type(statement.guarantee.network).template, figures_of(statement))

    def __getitem__(self, part: str) -> list[str]:
        """Items of a part; ReleaseError if made-up figures do not go with the template."""
        return [" ".join(item.split()) for item in _ITEM.split(self.markdown(part)) if item.strip()]

    def markdown(self, part: str) -> str:
        """A part line by line as its template has it."""
        try:
            return "".join(self._context.blocks[part][0](self._context)).strip()
        except TemplateError:
            raise form.ReleaseError(form.UNREADABLE) from None

    def text(self, part: str) -> str:
        """A part in one piece."""
        return " ".join(self[part])


def warnings_of(
    codes: Sequence[form.WarningCode], policy: form.NetworkPolicy, loads_delta: float | None = None
) -> tuple[str, ...]:
    """Sentences of warnings that follow from constants alone, before there is a release."""
    figures = {"warnings": codes, "network": policy, "loads": {"delta": loads_delta}}
    return tuple(Words(policy.template, figures)["warnings"])


@cache
def _with_parents(name: str) -> tuple[Template, ...]:
    """A template and those that it extends, the nearest first."""
    text = _environment(html=False)
    assert text.loader is not None
    source = name if "\n" in name else text.loader.get_source(text, name)[0]
    own = text.from_string(source) if "\n" in name else text.get_template(name)
    parent = _EXTENDS.match(source)
    return (own,) if parent is None else (own, *_with_parents(parent[1]))


def figures_of(statement: form.Statement[Any]) -> dict[str, Any]:
    """What templates call the entries of a manifest."""
    loads = statement.guarantee.loads
    return {
        **{name: getattr(statement, name) for name in ("release", "composition", "data", "publication")},
        "warnings": statement.release.warnings,
        "loads": loads,
        "network": statement.guarantee.network,
        "queries": [(query, query.rho / loads.rho) for query in statement.load_queries],
        "declared": statement.declared_public,
        "per_day": loads.unit == "load-point-day",
    }


def rendered(name: str, words: Any, figures: Mapping[str, Any]) -> bytes:
    """A page: a template of that name, with the words and figures of a manifest."""
    template = _environment(html=name.endswith(".html")).get_template(name)
    try:
        return template.render({**figures, **_CONSTANTS, "words": words}).encode()
    except TemplateError:
        raise form.ReleaseError(form.UNREADABLE) from None


def certificate_html(statement: form.Statement[Any]) -> bytes:
    """The page of a statement; hashes and the commitment do not enter."""
    return rendered("certificate.html", Words.of(statement), figures_of(statement))


def registry_bytes(statement: form.Statement[Any]) -> bytes:
    """The record of a release as YAML; hashes do not enter."""
    loads = statement.guarantee.loads
    granted = epsilon_to_rho(loads.epsilon_granted, loads.delta)
    alone = math.isclose(statement.composition.loads.spent.rho, granted, rel_tol=form.RELATIVE)
    return rendered("registry.yaml", Words.of(statement), figures_of(statement) | {"alone": alone})


def card_bytes(statement: form.Statement[Any]) -> bytes:
    """The card of a release; hashes do not enter."""
    figures = _figures_for_hubs(statement) | {"title": TITLE}
    return card(_front_matter(statement), rendered("card.md", Words.of(statement), figures))


def _figures_for_hubs(statement: form.Statement[Any]) -> dict[str, Any]:
    """What templates of card and metadata call the entries of a manifest."""
    publication = statement.publication
    return figures_of(statement) | {
        "tables": list(published_tables(statement)),
        "not_stated": NOT_STATED,
        "citation": cited_as(publication, statement.release.id),
    }


def card(front_matter: Mapping[str, Any], text: bytes) -> bytes:
    """A card: its front matter is YAML as the Hugging Face Hub reads it."""
    head: str = yaml.safe_dump(dict(front_matter), sort_keys=False, allow_unicode=True, width=110)
    return f"---\n{head}---\n\n".encode() + text


def croissant_bytes(statement: form.Statement[Any], hashes: Mapping[str, str]) -> bytes:
    """The metadata of a release.

    Parameters
    ----------
    hashes : SHA-256 by relative path; of `model.json` and of the tables of nodes and, where there are
        any, of buses, connections and days are needed; of the parts the manifest tells.
    """
    figures = _figures_for_hubs(statement) | {"hubs": _hubs(), "hashes": hashes}
    dataset = json.loads(rendered("croissant.json", Words.of(statement), figures))
    return (json.dumps(dataset, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def cited_as(publication: form.Publication, release_id: str) -> str:
    """How to cite a release: as declared, else by what is known of it."""
    if publication.citation is not None:
        return publication.citation
    who = f"{publication.publisher}. " if publication.publisher is not None else ""
    when = f" ({publication.date[:4]})" if publication.date is not None else ""
    where = f" {publication.url}" if publication.url is not None else ""
    return f"{who}{TITLE}, dp-powerflow release {release_id}{when}.{where}"


# ------------------------------------------------------------------------------------- figures for people


def advantage_of(loads: form.LoadsGuarantee) -> float:
    """What the best test between two histories of one record gains over a coin; at most.

    The smaller of √(ρ/2), by Pinsker's inequality, and (e^ε − 1 + 2δ)/(e^ε + 1).
    """
    inverse = exp1(-loads.epsilon)
    by_epsilon = (1.0 - inverse + 2.0 * loads.delta * inverse) / (1.0 + inverse)
    return min(1.0, math.sqrt(loads.rho / 2.0), by_epsilon)


def _odds(epsilon: float) -> str:
    """exp(ε), rounded up; in words where the figure would say nothing."""
    return form.at_most(exp1(epsilon)) if epsilon < form.LARGEST_EPSILON else "more than 20,000"


def _number(value: float) -> str:
    """A number as a person writes it."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}"
    return form.in_digits(value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def _quoted(words: str) -> str:
    """Words between double quotes, as JSON and YAML read them; YAML takes some signs escaped only."""
    return _NOT_OF_YAML.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(words, ensure_ascii=False))


def literally(words: str) -> str:
    """Words of the data owner as Markdown shows them unchanged: they make no heading, link or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$])", r"\\\1", words)


_FILTERS: dict[str, Callable[..., Any]] = {
    "advantage": advantage_of,
    "all_digits": form.all_digits,
    "at_least": form.at_least,
    "at_most": form.at_most,
    "bullets": lambda sentences: "\n".join(f"- {sentence}" for sentence in sentences),
    "cell": lambda words: literally(" ".join(words.split())),
    "figure": lambda value: "no figure" if value is None else form.at_most(value),
    "float_of_yaml": lambda value: yaml.safe_dump(value).split("\n")[0],
    "in_digits": form.in_digits,
    "literally": literally,
    "number": _number,
    "odds": _odds,
    "percent": _percent,
    "percents": lambda share: form.in_digits(round(100.0 * share, 2)),
    "quoted": _quoted,
    "right": lambda advantage: form.at_most(50 * (1 + advantage)),
    "sentence": lambda words: words[:1].upper() + words[1:],
    "share": lambda change: f"{form.in_digits(round(100 * change, 10))} %",
    "text": lambda words: " ".join(_ITEM.sub("", words).split()),
}
"""What templates call to show a figure; `right` is how often the best test between two networks is right, in
percent, if either is as likely."""
_OF_FORM = ("LARGEST_DELTA", "LARGEST_EPSILON", "NO_PROTECTION", "NO_PROTECTION_OF_CUSTOMERS")
_CONSTANTS = {
    **{name: getattr(form, name) for name in _OF_FORM},
    **{name: getattr(schema, name) for name in ("POWER_GRID", "VA_GRID", "VM_GRID")},
    "EXTRAS": {array.name: array.means for array in schema.EXTRAS},
}


@cache
def _environment(*, html: bool) -> Environment:
    return environment("dp_powerflow.manifest", "templates", html=html, filters=_FILTERS)


# --------------------------------------------------------------------------------------- tables and hubs


@cache
def _hubs() -> dict[str, Any]:
    """What hubs are told of any release."""
    text = files("dp_powerflow.manifest").joinpath("templates", "hubs.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@dataclass(frozen=True)
class PublishedTable:
    """A table of a release, as dataset hubs see it.

    Attributes
    ----------
    name : as hubs call it.
    node : name of its files in Croissant.
    files : relative path, or a pattern of several.
    rows, means : what a row is, and what the table holds.
    columns : in their order.
    """

    name: str
    node: str
    files: str
    rows: str
    means: str
    columns: tuple[schema.Column, ...]

    @property
    def in_parts(self) -> bool:
        """Whether `files` is a pattern."""
        return "*" in self.files


def published_tables(statement: form.Statement[Any]) -> Iterator[PublishedTable]:
    """All tables that a release holds, voltages first."""
    data = statement.data
    found: dict[str, list[schema.Column]] = {}
    layout = schema.CorpusLayout(data.days, data.steps_per_day, data.nodes, data.days_per_part)
    held = data.extras
    extras = schema.NOTHING if held is None else schema.ExtrasLayout.of(held.holds, dict(held))
    weather = None if data.calendar is None else tuple(data.calendar.weather)
    placed = None if data.connections is None else data.connections.coordinates
    for column in schema.released_columns(layout, extras, weather=weather, coordinates=placed):
        found.setdefault(column.file, []).append(column)
    for table in _hubs()["tables"]:
        if table["files"] in found:
            yield PublishedTable(**table, columns=tuple(found[table["files"]]))
    if data.network_tables is not None:
        yield from _twin_tables("network and loads" if data.network_tables.days else "network")


def _twin_tables(holds: str) -> Iterator[PublishedTable]:
    rows = f"twin/{ROWS_FILE}"
    numbered = (
        schema.Column(rows, "row", "int64", f"row of {schema.NODES_FILE}"),
        schema.Column(rows, "bus", "int64", "bus of the tables in twin/"),
    )
    means = "the bus of every node in the tables of twin/"
    yield PublishedTable("twin_rows", "twin-rows", rows, "One row per node.", means, numbered)
    for table in sorted(TABLES):
        files = f"twin/{table_directory(table)}/*/*.parquet"
        name, each = f"twin_{table.removesuffix('_data')}", "One row per scenario and row of the table."
        means = f"{table} of the twin ({holds}), in the layout of gridfm-datakit"
        columns = tuple(
            schema.Column(files, column, kind, f"{column} of {table} in the gridfm-datakit layout")
            for column, kind in TABLES[table].items()
        )
        yield PublishedTable(name, f"twin-{table}", files, each, means, columns)


def _front_matter(statement: form.Statement[Any]) -> dict[str, Any]:
    data = statement.data
    graph = data.connections is not None or data.network_tables is not None
    rows, hubs = data.days * data.nodes, _hubs()
    return {
        "pretty_name": f"{TITLE}, release {statement.release.id}",
        **license_of(statement.publication),
        "tags": hubs["tags"],
        "task_categories": [*hubs["tasks"], *(["graph-ml"] if graph else [])],
        "size_categories": [next((name for name, limit in hubs["sizes"].items() if rows < limit), "n>1B")],
        "configs": [
            {"config_name": table.name, "data_files": table.files}
            | ({"default": True} if number == 0 else {})
            for number, table in enumerate(published_tables(statement))
        ],
    }


def license_of(publication: form.Publication) -> dict[str, str]:
    """As the hub writes it: the name that it uses, or `other` with name and link, or `unknown`."""
    if publication.license is None:
        return {"license": "unknown"}
    if publication.license in _hubs()["licenses"]:
        return {"license": _hubs()["licenses"][publication.license]}
    link = {} if publication.license_url is None else {"license_link": publication.license_url}
    return {"license": "other", "license_name": publication.license.lower(), **link}


Progress = Callable[[int, int], None]


def quality_of_release(
    corpus: Corpus, *, workers: int | None = None, progress: Progress | None = None
) -> Quality:
    """Figures of a release with the promise that its manifest states; parameters as of `measure`.

    Raises
    ------
    ReleaseError : its manifest cannot be read.
    """
    path = corpus.path / form.MANIFEST_FILE
    with loading(path):
        content = path.read_bytes()
    try:
        statement = form.parse_manifest(form.json_object(content))
    except (ValueError, RecursionError, json.JSONDecodeError):
        raise form.ReleaseError(
            f"{path} is not JSON; give the directory of a finished release", code="release-not-found"
        ) from None
    return measure(corpus, promise_of(statement), workers=workers, progress=progress)


def promise_of(statement: form.Statement[Any]) -> Promise:
    """Both guarantees in words."""
    words, network = Words.of(statement), statement.guarantee.network
    secret, loads = not statement.release.insecure_seed, statement.guarantee.loads

    def promised(whom: str, figure: str, holds: bool) -> Guarantee:
        means, sentences = words.text(f"{whom}_means"), tuple(words[whom])
        return Guarantee(f"The {whom}", figure, means, sentences, holds and secret)

    customers = promised("customers", f"ε ≤ {form.at_most(loads.epsilon)}", True)
    return Promise(customers, promised("network", network.figure, network.holds), tuple(words["warnings"]))


def quality_page(
    directory: Location, corpus: CorpusReport, hashes: Mapping[str, str], statement: form.Statement[Any]
) -> bytes | None:
    """The page that sound files and a statement determine; None if the files cannot be read.

    Parameters
    ----------
    directory, corpus, hashes : as of `Opened`.
    """
    try:
        return _page(*_shown(directory, corpus, hashes), promise_of(statement))
    except (OSError, *form.MALFORMED):
        return None


def look_at(content: bytes, directory: Location, corpus: CorpusReport, hashes: Mapping[str, str]) -> None:
    """Make the page of files that are sound, given their `manifest.json`; asked for later, it is there."""
    with suppress(OSError, RecursionError, *form.MALFORMED):
        if corpus.ok:
            quality_page(directory, corpus, hashes, form.parse_manifest(form.json_object(content)))


def _shown(
    directory: Location, corpus: CorpusReport, hashes: Mapping[str, str]
) -> tuple[Corpus, frozenset[tuple[str, str]]]:
    """The corpus, and the hashes of its files."""
    if corpus.layout is None or corpus.nodes is None or corpus.release_id is None:
        raise form.ReleaseError(form.UNREADABLE)
    tables = frozenset((name, digest) for name, digest in hashes.items() if name.endswith(".parquet"))
    return Corpus(directory, corpus.layout, corpus.nodes, corpus.release_id), tables


@lru_cache(maxsize=16)  # feeders of a fleet are checked at the same time
def _page(corpus: Corpus, hashes: frozenset[tuple[str, str]], promise: Promise) -> bytes:
    return replace(_measured(corpus, hashes), promise=promise).to_html()


@lru_cache(maxsize=1)
def _measured(corpus: Corpus, hashes: frozenset[tuple[str, str]]) -> Quality:
    """Figures of files with these hashes, measured once."""
    return measure(corpus)


def write_documents(
    writer: CorpusWriter, inputs: ManifestInputs, written: Mapping[str, str], progress: Progress | None = None
) -> str:
    """Write everything besides the voltages; the manifest, which lists all other files, comes last.

    Parameters
    ----------
    written : SHA-256 of the files that this run has written; what an earlier run left is read once.
    progress : told how many days of how many are on the page of the quality.

    Returns
    -------
    SHA-256 of the manifest.
    """
    statement, nodes = make_statement(inputs), NodeTable.opaque(writer.layout.nodes)
    if inputs.connections is not None:
        nodes = inputs.connections.of_nodes(nodes)
    tables = writer.write_nodes(nodes) | writer.write_connections(inputs.connections)
    tables |= writer.write_days(inputs.days)
    # From the written files, so that anybody can make the page again.
    corpus = Corpus(writer.root, writer.layout, nodes, writer.release_id)
    page = measure(corpus, promise_of(statement), progress=progress).to_html()
    known = {
        **written,
        **tables,
        **writer.add_file(form.QUALITY_FILE, page),
        **writer.add_file(form.MODEL_FILE, inputs.model.to_json().encode()),
        **writer.add_file(form.REGISTRY_FILE, registry_bytes(statement)),
        **writer.add_file(form.CERTIFICATE_FILE, certificate_html(statement)),
        **writer.add_file(form.CARD_FILE, card_bytes(statement)),
    }
    # What a killed run left of the last two files is about to be replaced.
    hashes = writer.hashes(known | {form.CROISSANT_FILE: "", form.MANIFEST_FILE: ""})
    listed = {name: digest for name, digest in hashes.items() if digest}
    listed |= writer.add_file(form.CROISSANT_FILE, croissant_bytes(statement, listed))
    return writer.add_file(form.MANIFEST_FILE, form.seal(statement, listed).to_bytes())[form.MANIFEST_FILE]
