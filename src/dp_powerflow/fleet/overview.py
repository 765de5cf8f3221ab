"""`quality.html` of a fleet: a table of its feeders, with links to their pages.

It is a function of the manifests of the feeders and of the key figures that their pages hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.schema import VM_MAX_PU
from dp_powerflow.corpus.storage import Location, readers_of
from dp_powerflow.fleet.manifest import NETWORKS, FeederEntry
from dp_powerflow.fleet.names import partition
from dp_powerflow.page import Axis, Bars, Callout, Card, Figure, Link, Page, Section, Series, Table
from dp_powerflow.page.document import read_summary
from dp_powerflow.pipeline.manifest.model import QUALITY_FILE
from dp_powerflow.pipeline.manifest.policy import at_most
from dp_powerflow.pipeline.quality import promise_of
from dp_powerflow.quality.figures import percent

Summary = Mapping[str, Any]
MOST_BARS = 40
"""Feeders of the figure; the table has all."""
_HEADER = (
    *("feeder", "days", "nodes", "within range A", "lowest voltage", "highest voltage", "peak", "mended"),
    *("ε, customers", "ε, network"),
)


def read_summaries(place: Location, entries: Sequence[FeederEntry]) -> dict[str, Summary]:
    """Key figures of the feeders that have a page, by name."""
    names = [entry.name for entry in entries]
    found = in_order(lambda name: summary_at(place / partition(name)), names, readers_of(place))
    return {name: summary for name, summary in zip(names, found, strict=True) if summary is not None}


def summary_at(release: Location) -> Summary | None:
    """Key figures that the page of a release holds; None if it has no page."""
    try:
        return read_summary((release / QUALITY_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def fleet_page(fleet_id: str, entries: Sequence[FeederEntry], summaries: Mapping[str, Summary]) -> Page:
    """The page of a fleet.

    Parameters
    ----------
    summaries : key figures by feeder; of a feeder without any, the manifest alone is shown.
    """
    days = sum(entry.manifest.data.days for entry in entries)
    phasors = sum(entry.manifest.data.phasors for entry in entries)
    lead = (
        f"{len(entries):,} feeders with {days:,} synthetic days of voltage phasors together, made from one "
        "source of meters with differential privacy.",
        "Every feeder has a page of its own: follow its name. All figures are computed from released files.",
    )
    table = Table(
        _HEADER,
        tuple(_row(entry, summaries.get(entry.name)) for entry in entries),
        "Feeders of the fleet; – where a release does not say",
        frozenset(range(1, len(_HEADER))),
    )
    sections = (
        Section("privacy", "What is protected", (), _promises(entries)),
        Section("feeders", "Feeders", (), (*_bars(entries, summaries), table)),
    )
    inside = [(each["inside_a"], each["phasors"]) for each in summaries.values() if _whole(each)]
    cards = [Card("Feeders", f"{len(entries):,}", f"{phasors:,} phasors")]
    if inside:
        share = sum(a * n for a, n in inside) / sum(n for _, n in inside)
        lowest = min(each["lowest_pu"] for each in summaries.values() if _whole(each))
        cards += [
            Card("Within ANSI range A", percent(share), "of all voltages, 0.95 to 1.05 p.u."),
            Card("Lowest voltage", f"{lowest:.4f} p.u.", "of all feeders"),
        ]
    return Page(f"Quality of fleet {fleet_id}", None, lead, sections, tuple(cards), summary=dict(summaries))


def _whole(summary: Summary) -> bool:
    """Whether key figures that somebody may have changed can be shown."""
    most = {"inside_a": 1.0, "lowest_pu": VM_MAX_PU, "highest_pu": VM_MAX_PU, "phasors": 2.0**63}
    return (
        type(summary.get("phasors")) is int
        and all(
            type(summary.get(name)) in (int, float) and 0.0 <= summary[name] <= limit
            for name, limit in most.items()
        )
        and summary["phasors"] > 0
    )


def _row(entry: FeederEntry, summary: Summary | None) -> tuple[str | Link, ...]:
    manifest = entry.manifest
    loads, network = manifest.guarantee.loads, manifest.guarantee.network.in_words()
    name: str | Link = entry.name
    shown = ["–"] * 5
    if summary is not None and _whole(summary):
        name = Link(entry.name, f"{partition(entry.name)}/{QUALITY_FILE}")
        peak, mended = summary.get("peak_kw"), summary.get("mended")
        shown = [
            percent(summary["inside_a"]),
            f"{summary['lowest_pu']:.4f} p.u.",
            f"{summary['highest_pu']:.4f} p.u.",
            f"{peak:,.0f} kW" if type(peak) in (int, float) else "–",
            f"{mended:,}" if type(mended) is int else "–",
        ]
    figures = (at_most(loads.epsilon), network.figure.partition(" ")[2].lstrip("≤= "))
    return (name, f"{manifest.data.days:,}", f"{manifest.data.nodes:,}", *shown, *figures)


def _promises(entries: Sequence[FeederEntry]) -> tuple[Callout, ...]:
    """What the customers are promised, whose dearest model counts, and the network that is promised least."""
    dearest = max(entries, key=lambda entry: entry.manifest.guarantee.loads.rho)
    weakest = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    loads, network = promise_of(dearest.manifest).loads, promise_of(weakest.manifest).network
    warned = tuple(dict.fromkeys(text for entry in entries for text in entry.manifest.release.warnings))
    first = (Callout("Read this first", warned, "warning", wide=True),) if warned else ()
    said = (NETWORKS, f"No network has a larger epsilon than that of {weakest.name}:", *network.sentences)
    tones = ["good" if of.holds else "warning" for of in (loads, network)]
    return (*first, Callout(loads.title, loads.sentences, tones[0]), Callout("The networks", said, tones[1]))


def _bars(entries: Sequence[FeederEntry], summaries: Mapping[str, Summary]) -> tuple[Figure, ...]:
    shown = [entry.name for entry in entries if _whole(summaries.get(entry.name, {}))][:MOST_BARS]
    if not shown:
        return ()
    outside = [round(100 * (1 - summaries[name]["inside_a"]), 4) for name in shown]
    chart = Bars(Axis("outside range A", "%", decimals=2), tuple(shown), (Series("voltages", outside),))
    caption = "Share of the voltages outside ANSI C84.1 range A, 0.95 to 1.05 p.u." + (
        f" The first {MOST_BARS} feeders." if len(shown) < len(entries) else ""
    )
    return (Figure("outside", "Voltages outside range A", caption, chart),)
