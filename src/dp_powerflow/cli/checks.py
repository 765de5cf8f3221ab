"""`verify`, `ledger`, `quality`, `derive`, `fidelity`, `export`: what is found of a release, and made of it.

Short commands import little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Exit, Option

import dp_powerflow as dpf
from dp_powerflow.cli.terminal import AsJson, ConfigFile, Rendered, err, escaped, out, progress, say, show
from dp_powerflow.errors import ConfigError

if TYPE_CHECKING:
    from dp_powerflow.fidelity.report import FidelityReport
    from dp_powerflow.manifest.verify import VerifyReport
    from dp_powerflow.pipeline.deriving.derived import Derived
    from dp_powerflow.privacy.ledger.accounts import Cost
    from dp_powerflow.privacy.ledger.records import LedgerSummary


MOST_FEEDERS = 20
"""Feeders that failed and are shown with their sentences; the JSON has all."""


MOST_STATEMENTS = 20
Signers = Annotated[
    list[Path] | None,
    Option("--signer", help="PEM file of a public key that must have signed; may be given several times."),
]


def verify(
    release: Annotated[
        str, Argument(help="Directory or URL of a release or fleet; folder of a derived release.")
    ],
    private: Annotated[
        Path | None, Option(help="Private state directory, to check commitment and ledger (auditors).")
    ] = None,
    config: Annotated[
        Path | None, Option(help="With --private: config of the release, to recompute its evidence.")
    ] = None,
    source: Annotated[
        Path | None,
        Option("--release", help="Of a derived release: the release it came from, to recompute it."),
    ] = None,
    signer: Signers = None,
    as_json: AsJson = False,
) -> None:
    """Recompute what a third party can check of a release; exit code 1 if it is not intact.

    Example: `dp-powerflow verify release`
    """
    opened = None if config is None else dpf.read_config(config)
    with progress("verifying") as (advance, _):
        report = dpf.verify(
            release, private=private, config=opened, source=source, signers=signer or (), on_progress=advance
        )

    rendered = render_verification(report)
    if private is not None:
        say("INTERNAL: these checks used the private state")
    if as_json:
        out.print_json(rendered.json_text)
    else:
        out.print("\n".join(rendered.lines), markup=False, highlight=False, soft_wrap=True)
    if not report.intact:
        raise Exit(1)


def sign(
    release: Annotated[Path, Argument(help="Directory of a release, fleet or derived release.")],
    key: Annotated[Path, Option(help="PEM file of your private Ed25519 key.")],
    role: Annotated[str, Option(help="Under which you answer for it, such as 'privacy officer'.")],
) -> None:
    """Sign a release: verify it, then write an Ed25519 signature of its manifest beside it.

    Example: `dp-powerflow sign release --key officer.pem --role "privacy officer"`
    """
    say(f"signed: {dpf.sign(release, key, role, password=password_of(key))}")


def password_of(key: Path) -> bytes | None:
    """Asked for where the file of a key has one."""
    if b"ENCRYPTED" not in key.read_bytes():
        return None
    password: str = typer.prompt("password of the key", hide_input=True, err=True)
    return password.encode()


def review(
    release: Annotated[str, Argument(help="Directory or URL of a release.")],
    html: Annotated[Path | None, Option(help="Write the checklist to this page.")] = None,
    signer: Signers = None,
    as_json: AsJson = False,
) -> None:
    """Print what reviewers ask (NIST SP 800-226, W3C, GDPR), with the answers for this release.

    Example: `dp-powerflow review release --html review.html`
    """
    from dp_powerflow._files import write_named

    with progress("verifying"):
        found = dpf.review(release, signers=signer or ())
    show(Rendered.of("review.md", asdict(found), {"escaped": escaped}, review=found), as_json)
    if html is not None:
        write_named(html, found.to_html())
        say(f"written: {html}")


def render_verification(report: VerifyReport) -> Rendered:
    """Every check of a release; of a fleet the checks of the whole, and its feeders together.

    Feeders that are as they should be are counted; of the others, the first have a line each.
    """
    from dp_powerflow.fleet.manifest import partition
    from dp_powerflow.manifest.model import NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS
    from dp_powerflow.manifest.verify import SEED

    weak = (NO_PROTECTION, NO_PROTECTION_OF_CUSTOMERS)
    of_a_feeder = partition("")
    return Rendered.of(
        "verify.txt",
        report.to_json(),
        {"once": _once},
        report=report,
        whole=[check for check in report.checks if not check.name.startswith(of_a_feeder)],
        of_feeders=[check for check in report.checks if check.name.startswith(of_a_feeder)],
        seed=SEED,
        most=MOST_FEEDERS,
        marks=[mark for mark in weak if any(text.startswith(mark) for text in report.warnings)],
    )


def _once(statements: Sequence[str]) -> Iterator[str]:
    """Statements that differ in a name between quotes only become one: of a fleet, every twin has its own."""
    alike: dict[str, list[str]] = {}
    for text in statements:
        alike.setdefault(re.sub(r"(?<!\w)'[^'\s]+'", "''", text), []).append(text)
    for first, *others in list(alike.values())[:MOST_STATEMENTS]:
        yield f"{first} The same holds for {len(others):,} more." if others else first
    if len(alike) > MOST_STATEMENTS:
        yield f"And {len(alike) - MOST_STATEMENTS:,} more; --json lists all."


def ledger(
    state: Annotated[Path, Argument(help="Private state directory.")],
    releases: Annotated[
        list[str] | None, Argument(help="With --witness: directories or URLs of releases or fleets.")
    ] = None,
    witness: Annotated[bool, Option("--witness", help="Compare the ledger with earlier releases.")] = False,
    accept_unanchored: Annotated[
        str | None, Option(help="Accept a ledger without its anchor; record why.", metavar="REASON")
    ] = None,
    account: Annotated[str | None, Option(help="Account whose cap to change.")] = None,
    epsilon: Annotated[float | None, Option(help="New cap on epsilon.")] = None,
    delta: Annotated[float | None, Option(help="New cap on delta.")] = None,
    radius: Annotated[
        float | None, Option(help="New radius [p.u.], for an account of a true network.")
    ] = None,
    reason: Annotated[str, Option(help="Who decided it and why; recorded for ever.")] = "",
    role: Annotated[
        list[str] | None,
        Option(help="ROLE=PUB.pem, twice: from now on both roles must approve a raised cap."),
    ] = None,
    approve: Annotated[Path | None, Option(help="Private key of your role, to approve a raised cap.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was spent (PRIVATE); --account changes a cap, --witness looks for lost charges.

    Example: `dp-powerflow ledger private-state --witness release-1 release-2`
    """
    from dp_powerflow.pipeline.modes.true import restate_radius
    from dp_powerflow.privacy.ledger.book import Ledger

    if witness is not bool(releases):
        raise ConfigError("give releases or fleets with --witness, and only with it")
    if witness:
        from dp_powerflow.fleet.verify import hear_witnesses

        found = hear_witnesses(state, releases or [])
        states = (
            "1 earlier release states" if found.releases == 1 else f"{found.releases} earlier releases state"
        )
        agreed = f"The ledger has every charge that {states}."
        lines = [f"- {sentence}" for sentence in found.contradictions] or [agreed]
        content = {"releases": found.releases, "contradictions": list(found.contradictions)}
        show(Rendered(lines, json.dumps(content)), as_json)
        if found.contradictions:
            raise Exit(1)
        return
    if accept_unanchored is not None:
        Ledger.accept_unanchored(state, accept_unanchored)

    figures = (epsilon, delta, radius)
    if account is None and (figures != (None, None, None) or reason):
        raise ConfigError("name the account to change with --account")
    opened, key, missing = Ledger.inspect(state), None, frozenset[str]()
    if role or approve is not None:
        from dp_powerflow.manifest.signatures import private_key, public_digits

        key = None if approve is None else private_key(approve, password_of(approve))
        declared = [text.partition("=") for text in role or ()]
        if declared:
            opened.declare_roles({name: public_digits(Path(path)) for name, _, path in declared})
    if account is not None and radius is not None:
        missing = restate_radius(opened, account, radius, reason, key)
    if account is not None and not missing and (radius is None or figures[:2] != (None, None)):
        missing = opened.change_figures(account, epsilon, delta, reason, key)
    if missing:
        say(f"noted, and not in force: {' and '.join(sorted(missing))} must approve the same change")
    show(render_ledger(opened.summary()), as_json)


def render_ledger(summary: LedgerSummary) -> Rendered:
    """All accounts with their spends."""
    from dp_powerflow.privacy.ledger.accounts import to_plain

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
    filters: dict[str, Callable[..., object]] = {"figures": _figures, "touched": _touched, "plain": to_plain}
    return Rendered.of("ledger.md", content, filters, summary=summary)


def _figures(amounts: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {float(value):.4g}" for name, value in amounts.items() if isinstance(value, float | Fraction)
    )


def _touched(cost: Cost) -> str:
    """Whom a cost is of, where that is not everybody."""
    from dp_powerflow.privacy.ledger.accounts import GdpCost, PureCost

    if not isinstance(cost, PureCost | GdpCost):
        return ""
    parts = {"replaced": cost.scope.replaced, "added": cost.scope.added, "with one past": cost.scope.joined}
    return "".join(f"; {what} {', '.join(names)}" for what, names in parts.items() if names)


def quality(
    release: Annotated[str, Argument(help="Directory or URL of a release, or of a fleet.")],
    page: Annotated[
        Path | None, Option("--out", help="Make the page again and write it to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where the quality page of a release is, make it again, or print its figures.

    Example: `dp-powerflow quality release --out quality.html`
    """
    from dp_powerflow._files import write_named
    from dp_powerflow.corpus.storage import location
    from dp_powerflow.fleet.manifest import PAGE_FILE, fleet_page, is_fleet, read_entries
    from dp_powerflow.manifest.model import QUALITY_FILE

    of_fleet = is_fleet(release)
    file = PAGE_FILE if of_fleet else QUALITY_FILE
    released = location(release) / file
    is_there = released.exists()
    if is_there and page is None and not as_json:
        say(f"the page of the {'fleet' if of_fleet else 'release'}: {released}")
        return
    with progress("measuring the corpus") as (advance, _):
        if of_fleet:
            fleet = dpf.open_fleet(release)
            content = fleet_page(str(fleet.manifest["fleet"]["id"]), read_entries(fleet.path)).to_html()
            figures = json.dumps(fleet.manifest["feeders"], indent=1) + "\n"
        else:
            found = dpf.quality(dpf.open_corpus(release), on_progress=advance)
            content, figures = found.to_html(), found.to_json()
    if as_json:
        typer.echo(figures, nl=False)
    if page is not None or not as_json:
        target = page or Path(file)
        write_named(target, content)
        say(f"written: {target}")


MOST_FIGURES = 25
"""Figures that are shown; the JSON and the page have more."""


def derive(
    kind: Annotated[str, Argument(help="opf, hosting-capacity or reliability: a wrong name lists them all.")],
    source: Annotated[
        Path, Argument(help="Directory of a release that publishes its twin; or its config (TOML).")
    ],
    settings: Annotated[Path | None, Option(help="Public settings (TOML); default: all as is.")] = None,
    output: Annotated[
        Path | None, Option("--out", help="Folder; default: RELEASE-KIND next to the release.")
    ] = None,
    workers: Annotated[int | None, Option(help="Workers; default: one per core.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Compute dispatch, hosting capacity or reliability from the twin of a release; spends nothing.

    Example: `dp-powerflow derive hosting-capacity release.toml --out hosting`
    """
    from dp_powerflow.config import read_toml

    given = {} if settings is None else read_toml(settings, "settings file", "check its path")
    opened = dpf.read_config(source) if source.is_file() else source
    with progress(kind) as (advance, describe):
        folder = output or usual_folder(opened, kind)
        found = dpf.derive(
            kind, opened, folder, settings=given, workers=workers, on_stage=describe, on_progress=advance
        )
    for warning in found.warnings:
        say(f"warning: {warning}")
    show(render_derivation(found), as_json)
    say(f"derived: {found.path}")


def render_derivation(found: Derived) -> Rendered:
    """What was found, where its tables are, and what it costs."""
    from dp_powerflow.pipeline.deriving.derived import flat, named_tables

    names = ("kind", "figures", "sentences", "tables", "warnings")
    content = {"derived": str(found.path), "release": found.release_id}
    content |= {name: getattr(found, name) for name in names}
    figures, tables = list(flat(found.figures)), list(named_tables(found.manifest.tables).values())
    return Rendered.of("derived.md", content, found=found, most=MOST_FIGURES, figures=figures, tables=tables)


def usual_folder(source: Path | dpf.Config, kind: str) -> Path:
    """Where a derived release goes by default: beside the release.

    Raises
    ------
    ConfigError : the release is at a URL, beside which there is no folder.
    """
    from dp_powerflow.corpus.storage import location

    place = location(source.release.output) if isinstance(source, dpf.Config) else source
    if not isinstance(place, Path):
        raise ConfigError("the release is at a URL; name the folder of the derived release with --out")
    place = place.absolute()
    return place.with_name(f"{place.name}-{kind}")


def fidelity(
    release: Annotated[str, Argument(help="Directory or URL of a release.")],
    config: ConfigFile,
    quick: Annotated[bool, Option("--quick", help="Fewer customers, days and fits: under a minute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a release with its true meters and feeder, and attack it (INTERNAL; spends nothing).

    Do not choose settings by it: no epsilon covers that. Exit code 1 if an attack learned more than epsilon
    allows.

    Example: `dp-powerflow fidelity release release.toml`
    """
    from dp_powerflow.corpus.storage import location, one_reading
    from dp_powerflow.fidelity.measure import fidelity_of_release
    from dp_powerflow.fidelity.report import LEAK, MARKING
    from dp_powerflow.fidelity.verdicts import FULL, QUICK

    opened = dpf.read_config(config)
    with progress("fidelity") as (advance, describe), one_reading(location(release)) as place:
        effort = QUICK if quick else FULL
        report, page = fidelity_of_release(place, opened, effort, describe, advance)
    err.print(MARKING, style="bold red")
    say(LEAK)
    show(render_fidelity(report), as_json)
    alarms = report.attacks.alarms
    for alarm in alarms:
        err.print(alarm, style="bold red", markup=False, highlight=False, soft_wrap=True)
    say(f"page: {page}")
    if alarms:
        raise Exit(1)


def render_fidelity(report: FidelityReport) -> Rendered:
    """INTERNAL. A table of figures with verdicts, the attacks, and what to trust."""
    from dp_powerflow.fidelity.report import GROUPS, MARKING, SIGNS, in_words, shown

    content = json.loads(report.to_json())
    filters: dict[str, Callable[..., object]] = {"shown": shown, "words": in_words}
    facts = {"marking": MARKING, "groups": GROUPS, "signs": SIGNS}
    return Rendered.of("fidelity.md", content, filters, report=report, attacks=report.attacks, **facts)


def export_gridfm(
    releases: Annotated[list[str], Argument(help="Releases that publish their twin, or fleets.")],
    directory: Annotated[Path, Argument(help="Folder to create.")],
    perturbed: Annotated[
        int, Option(help="Perturbed scenarios to add to every release; they cost nothing.", min=0)
    ] = 0,
    seed: Annotated[int, Option(help="Seed of the perturbations; public.", min=0)] = 0,
    per_network: Annotated[int, Option(help="Perturbed scenarios on each perturbed network.", min=1)] = 8,
    as_json: AsJson = False,
) -> None:
    """Write published twins as gridfm-graphkit reads them, with a configuration that trains on them.

    Example: `dp-powerflow export gridfm release graphs --perturbed 2000 --seed 1`
    """
    variety = dpf.GridfmVariety(perturbed, seed=seed, per_network=per_network) if perturbed else None
    with progress("exporting") as (advance, _):
        made = dpf.export_gridfm(releases, directory, variety=variety, on_progress=advance)
    networks = [asdict(network) for network in made.networks]
    content = {"path": str(made.path), "config": str(made.config), "networks": networks}
    show(Rendered.of("gridfm.md", content, made=made), as_json)
