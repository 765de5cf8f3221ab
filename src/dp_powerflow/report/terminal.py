"""Text on any terminal: what inputs hold is shown and never obeyed, whatever the terminal can write.

Names in files may hold escape sequences, signs that turn the direction of a line, or bytes that are no text.
A terminal of an old code page cannot write ε. Both are shown as escapes, such as `\x1b` and `\u03b5`.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from dp_powerflow._names import UNSEEN
from dp_powerflow.config import Config
from dp_powerflow.corpus.gridfm.export import ExportedNetwork, GridfmExport
from dp_powerflow.corpus.storage import location
from dp_powerflow.errors import ConfigError
from dp_powerflow.fleet.checked import FleetReport
from dp_powerflow.fleet.names import partition
from dp_powerflow.fleet.witness import Testimony
from dp_powerflow.manifest.model import NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS, Check
from dp_powerflow.manifest.verify import SEED, VerifyReport
from dp_powerflow.pipeline.deriving.make import Derived
from dp_powerflow.pipeline.deriving.pages import flat, named_tables
from dp_powerflow.privacy.ledger.accounts import Cost, GdpCost, PureCost, to_plain
from dp_powerflow.privacy.ledger.records import AccountSummary, Change, LedgerSummary
from dp_powerflow.report import Rendered

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """The text with signs that are not seen, or that steer a terminal, as escapes; lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(sign if _is_shown(sign) else _escape(sign) for sign in text)


def _is_shown(sign: str) -> bool:
    return sign in _KEPT or unicodedata.category(sign) not in UNSEEN


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Terminal(Console):
    """A console whose texts are `printable`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As of `Console`."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """As of `Console`, in ASCII: JSON has escapes of its own."""
        super().print_json(json, **{"ensure_ascii": True} | options)


def write_what_can_be() -> None:
    """Let stdout and stderr write signs that their encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Ingest(Protocol):
    """Counts and sentences of an ingest report; a renderer needs no more of the meters."""

    @property
    def marking(self) -> str:
        """Says that all of it is INTERNAL."""

    def summary(self) -> tuple[str, ...]:
        """Sentences, totals only."""

    def to_json(self) -> dict[str, Any]:
        """Counts by their names, with the marking."""


def render_ingest(found: Ingest) -> Rendered:
    """The marking, then a line for every finding."""
    return Rendered([found.marking, *found.summary()], json.dumps(found.to_json()))


def render_export(made: GridfmExport) -> Rendered:
    """The networks of a folder for gridfm-graphkit, and how to train on it."""
    lines = [
        "| network | buses | nodes merged | released scenarios | perturbed | networks | drawn again |",
        "|---|---|---|---|---|---|---|",
        *(_row(network) for network in made.networks),
        "",
        f"Train on it: `gridfm_graphkit train --config {made.config} --data_path {made.path}`",
    ]
    content = {
        "path": str(made.path),
        "config": str(made.config),
        "networks": [asdict(network) for network in made.networks],
    }
    return Rendered(lines, json.dumps(content))


def _row(network: ExportedNetwork) -> str:
    cells = (
        network.name,
        network.buses,
        network.merged,
        network.released,
        network.perturbed,
        network.networks,
        network.refused,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def render_ledger(summary: LedgerSummary) -> Rendered:
    """All accounts with their spends."""
    lines = [
        "The ledger was made with an insecure seed: a demo or a test." if summary.insecure_seed else "",
        *(
            f"**Its anchor was lost** before entry {lost.entry} ({lost.at}): {lost.reason}. Only earlier "
            "releases can tell whether entries are missing: `ledger --witness`."
            for lost in summary.lost_anchors
        ),
        "",
    ]
    for account in summary.accounts:
        lines += _account_lines(account)
    if not summary.accounts:
        lines.append("Nothing has been spent.")
    content = {
        "insecure_seed": summary.insecure_seed,
        "entries": summary.entries,
        "lost_anchors": [asdict(lost) for lost in summary.lost_anchors],
        "accounts": [
            {
                "name": account.name,
                "kind": str(account.kind),
                "cap": to_plain(account.cap),
                "spent": account.balance.spent,
                "left": account.balance.left,
                "spends": [{"release": s.release_id, "at": s.at, **to_plain(s.cost)} for s in account.spends],
                "changes": [
                    {"what": c.what, "at": c.at, "reason": c.reason, "cap": to_plain(c.cap)}
                    for c in account.changes
                ],
            }
            for account in summary.accounts
        ],
    }
    return Rendered(lines, json.dumps(content))


def render_testimony(found: Testimony) -> Rendered:
    """What earlier releases say of the ledger."""
    stated = "1 earlier release states" if found.releases == 1 else f"{found.releases} earlier releases state"
    agreed = f"The ledger has every charge that {stated}."
    lines = [f"- {sentence}" for sentence in found.contradictions] or [agreed]
    content = {"releases": found.releases, "contradictions": list(found.contradictions)}
    return Rendered(lines, json.dumps(content))


def _account_lines(account: AccountSummary) -> list[str]:
    promise, left = account.balance.promise, account.balance.available
    return [
        f"**{account.name}** ({account.kind}; {promise.definition}), unit: {promise.unit}",
        "",
        f"spent ε = {promise.epsilon:.4g} at δ = {promise.delta:.3g}; left ε = {left.epsilon:.4g} "
        f"at δ = {left.delta:.3g}",
        "",
        "| release | when (UTC) | amount |",
        "|---|---|---|",
        *(
            f"| {spend.release_id} | {spend.at} | "
            + ", ".join(f"{name} {float(value):.4g}" for name, value in spend.cost.amounts().items())
            + f"{_touched(spend.cost)} |"
            for spend in account.spends
        ),
        "",
        *(_change_line(change) for change in account.changes if change.reason),
        "",
    ]


def _change_line(change: Change) -> str:
    """What somebody decided about an account, and why."""
    figures = ", ".join(
        f"{name} {value:.4g}" for name, value in to_plain(change.cap).items() if isinstance(value, float)
    )
    return f"- {change.what} {change.at}, cap from then on: {figures}. Reason: {change.reason}"


def _touched(cost: Cost) -> str:
    """Whom a cost is of, where that is not everybody."""
    if not isinstance(cost, PureCost | GdpCost):
        return ""
    parts = {"replaced": cost.scope.replaced, "added": cost.scope.added, "with one past": cost.scope.joined}
    return "".join(f"; {what} {', '.join(names)}" for what, names in parts.items() if names)


MOST_FIGURES = 25
"""Figures that are shown; the JSON and the page have more."""


def render_derivation(found: Derived) -> Rendered:
    """What was found, where its tables are, and what it costs."""
    figures = list(flat(found.figures))
    more = len(figures) - MOST_FIGURES
    lines = [
        f"**{found.kind}** of release **{found.release_id}**; it spends {found.manifest.cost.spends}.",
        "",
        *(["| figure | value |", "|---|---|"] if figures else []),
        *(f"| {name} | {value} |" for name, value in figures[:MOST_FIGURES]),
        *([f"| {more} more | see derived.html |"] if more > 0 else []),
        "",
        *(f"- {words}" for words in found.sentences),
        "",
        *(f"- `{table.files}`: {table.rows:,} rows" for table in named_tables(found.manifest.tables)),
    ]
    content = {
        "derived": str(found.path),
        "kind": found.kind,
        "release": found.release_id,
        "figures": dict(found.figures),
        "sentences": list(found.sentences),
        "tables": list(found.tables),
        "warnings": list(found.manifest.derived.warnings),
    }
    return Rendered(lines, json.dumps(content))


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file.

    Raises
    ------
    ConfigError : there is no such file, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"settings file {path} does not exist; check its path", code="config-not-found"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not TOML: {error}") from None


def usual_folder(source: Path | Config, kind: str) -> Path:
    """Where a derived release goes unless somebody says otherwise: beside the release.

    Raises
    ------
    ConfigError : the release is at a URL, beside which there is no folder.
    """
    place = location(source.release.output) if isinstance(source, Config) else source
    if not isinstance(place, Path):
        raise ConfigError("the release is at a URL; name the folder of the derived release with --out")
    place = place.absolute()
    return place.with_name(f"{place.name}-{kind}")


MOST_FEEDERS = 20
"""Feeders that failed and are shown with their sentences; the JSON has all."""
MOST_STATEMENTS = 20


def render_verification(report: VerifyReport) -> Rendered:
    """Every check of a release; of a fleet those of the whole, and its feeders together.

    Feeders that are as they should be are counted; of the others, the first have a line each.
    """
    checks = (f"{_mark(check, report)}  {check.name}: {check.sentence}" for check in _of_the_whole(report))
    feeders = _feeder_lines(report) if isinstance(report, FleetReport) else ()
    attested = (f"attested, not checked  {statement}" for statement in _once(report.attested))
    warnings = (f"WARNING  {warning}" for warning in _once(report.warnings))
    marks = (NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS)
    weak = "".join(f"; {mark}" for mark in marks if any(text.startswith(mark) for text in report.warnings))
    found = f"{report.verdict}: intact" if report.verdict == "demonstration" else report.verdict
    lines = [*warnings, *checks, *feeders, *attested, f"verdict: {found}{weak}"]
    return Rendered(lines, json.dumps(report.to_json()))


def _once(statements: Sequence[str]) -> Iterator[str]:
    """Statements that differ in a name between quotes only become one: of a fleet, every twin has its own."""
    alike: dict[str, list[str]] = {}
    for text in statements:
        alike.setdefault(re.sub(r"(?<!\w)'[^'\s]+'", "''", text), []).append(text)
    for first, *others in list(alike.values())[:MOST_STATEMENTS]:
        yield f"{first} The same holds for {len(others):,} more." if others else first
    if len(alike) > MOST_STATEMENTS:
        yield f"And {len(alike) - MOST_STATEMENTS:,} more; --json lists all."


def _is_of_a_feeder(check: Check) -> bool:
    return check.name.startswith(partition(""))


def _of_the_whole(report: VerifyReport) -> Iterator[Check]:
    return (check for check in report.checks if not _is_of_a_feeder(check))


def _feeder_lines(report: FleetReport) -> Iterator[str]:
    """How many feeders are intact; which kinds of checks failed, how often, and where."""
    feeders = [check for check in report.checks if _is_of_a_feeder(check)]
    failed = [check for check in feeders if not check.ok]
    if not feeders:
        return
    if not failed:
        yield f"ok    releases: {_feeders(len(feeders))} intact: {_checks_each(report)} each."
        return
    yield f"FAIL  releases: {len(feeders) - len(failed):,} of {_feeders(len(feeders))} intact."
    good = [kind for kind in report.feeder_checks if not kind.failed]
    for kind in report.feeder_checks:
        if kind.failed:
            yield f"FAIL    {kind.name}: fails in {kind.failed:,} of {_feeders(kind.feeders)}."
    if good:
        yield f"ok      {', '.join(kind.name for kind in good)}: no feeder fails."
    for check in failed[:MOST_FEEDERS]:
        yield f"FAIL  {check.name}: {check.sentence}"
    if len(failed) > MOST_FEEDERS:
        yield f"FAIL  and {len(failed) - MOST_FEEDERS:,} more feeders; --json lists all."


def _feeders(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "1 feeder"


def _checks_each(report: FleetReport) -> str:
    """So many checks of a feeder; a span where some have more, such as those of dates."""
    counts = [kind.feeders for kind in report.feeder_checks]
    everywhere = sum(count == max(counts) for count in counts)
    return f"{everywhere} checks" if everywhere == len(counts) else f"{everywhere} to {len(counts)} checks"


def _mark(check: Check, report: VerifyReport) -> str:
    """Of a demonstration that is intact, the seed is no failure but what makes it one."""
    if check.name == SEED and not check.ok and report.intact:
        return "demo"
    return "ok  " if check.ok else "FAIL"
