"""`fleet.html`: the feeders of a fleet in one table, with links to their pages, and figures over all of them.

It is PUBLIC, a function of the manifests of the feeders and of the key figures that their pages hold. Five
thousand feeders have a row of about 150 bytes each; nothing is in the page that it does not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.grid import VM_MAX_PU
from dp_powerflow.corpus.storage import Location, readers_of
from dp_powerflow.fleet.manifest import ONE_MODEL, FeederEntry, fleet_words, partition
from dp_powerflow.manifest.model import QUALITY_FILE, at_most
from dp_powerflow.manifest.render import Words, promise_of
from dp_powerflow.page import (
    Axis,
    Bars,
    Callout,
    Card,
    Figure,
    Histogram,
    Limit,
    Link,
    Page,
    Section,
    Series,
    Table,
    read_summary,
)
from dp_powerflow.quality.figures import VOLTAGE, percent
from dp_powerflow.quality.tally import RANGE_A

Summary = Mapping[str, Any]
MOST_BARS = 20
"""Feeders that a figure of bars shows."""
MOST_BINS = 40
MOST_WARNINGS = 10
_ABSURD = 2.0**63
"""No figure of a page is as large; somebody wrote it."""
FEWEST_FOR_A_DISTRIBUTION = 12
"""Of fewer feeders, the table says all that a distribution would."""
FEEDERS = Axis("feeders", decimals=0)
_HEADER = (
    *("feeder", "days", "nodes", "lowest voltage [p.u.]", "highest voltage [p.u.]", "within range A [%]"),
    *("peak [kW]", "snapshots mended", "ε, customers"),
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


@dataclass(frozen=True)
class _Seen:
    """Key figures of a feeder's page that can be shown."""

    lowest: float
    highest: float
    inside_a: float
    phasors: int


def fleet_page(fleet_id: str, entries: Sequence[FeederEntry], summaries: Mapping[str, Summary]) -> Page:
    """The page of a fleet.

    Parameters
    ----------
    summaries : key figures by feeder; of a feeder without any, the manifest alone is shown.
    """
    seen = {entry.name: found for entry in entries if (found := _seen(summaries.get(entry.name)))}
    days = sum(entry.manifest.data.days for entry in entries)
    lead = (
        f"{_feeders(len(entries))} with {days:,} synthetic days of voltage phasors together, made from one "
        "source of meters with differential privacy.",
        "Every feeder has a page of its own: follow its name. All figures are computed from released files.",
    )
    figures = (*_voltages(seen), *_outside(seen))
    sections = (
        *_warnings(entries),
        Section("feeders", "Feeders", (), (_table(entries, summaries, seen),)),
        *((Section("all", "Over all feeders", (), figures),) if figures else ()),
        Section("privacy", "What is protected", (), _promises(entries)),
    )
    return Page(
        f"Fleet {fleet_id}",
        None,
        lead,
        sections,
        _cards(entries, seen),
        summary={"fleet": fleet_id, "feeders": len(entries), "feeder_days": days, **_extremes(seen)},
    )


def _feeders(count: int) -> str:
    return f"{count:,} feeders" if count != 1 else "One feeder"


def _seen(summary: Summary | None) -> _Seen | None:
    """Key figures that somebody may have changed; None if they cannot be."""
    most = {"inside_a": 1.0, "lowest_pu": VM_MAX_PU, "highest_pu": VM_MAX_PU, "phasors": 2.0**63}
    if summary is None or type(summary.get("phasors")) is not int or summary["phasors"] <= 0:
        return None
    if not all(
        type(summary.get(name)) in (int, float) and 0.0 <= summary[name] <= limit
        for name, limit in most.items()
    ):
        return None
    return _Seen(summary["lowest_pu"], summary["highest_pu"], summary["inside_a"], summary["phasors"])


def _extremes(seen: Mapping[str, _Seen]) -> dict[str, float]:
    if not seen:
        return {}
    phasors = sum(each.phasors for each in seen.values())
    return {
        "inside_a": sum(each.inside_a * each.phasors for each in seen.values()) / phasors,
        "lowest_pu": min(each.lowest for each in seen.values()),
        "highest_pu": max(each.highest for each in seen.values()),
    }


def _cards(entries: Sequence[FeederEntry], seen: Mapping[str, _Seen]) -> tuple[Card, ...]:
    phasors = sum(entry.manifest.data.phasors for entry in entries)
    nodes = sum(entry.manifest.data.nodes for entry in entries)
    cards = [Card("Feeders", f"{len(entries):,}", f"{nodes:,} nodes, {phasors:,} phasors")]
    if seen:
        all_of = _extremes(seen)
        highest = f"of all feeders; the highest is {all_of['highest_pu']:.4f} p.u."
        cards += [
            Card("Lowest voltage", f"{all_of['lowest_pu']:.4f} p.u.", highest),
            Card("Within ANSI range A", percent(all_of["inside_a"]), "of all voltages, 0.95 to 1.05 p.u."),
        ]
    loads = max(entry.manifest.guarantee.loads.epsilon for entry in entries)
    network = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    return (
        *cards,
        Card("The customers", f"ε ≤ {at_most(loads)}", "all feeders together"),
        Card("Every network", network.manifest.guarantee.network.figure, "by itself, at most"),
    )


def _table(
    entries: Sequence[FeederEntry], summaries: Mapping[str, Summary], seen: Mapping[str, _Seen]
) -> Table:
    header = (*_HEADER, f"{_sign(entries)}, network")
    return Table(
        header,
        tuple(_row(entry, summaries.get(entry.name, {}), seen.get(entry.name)) for entry in entries),
        "One row per feeder; – where a release does not say. A click on a column sorts by it. Range A of "
        "ANSI C84.1 is 0.95 to 1.05 p.u.; a mended snapshot had no solution until its powers were lowered.",
        frozenset(range(1, len(header))),
        sortable=True,
    )


def _sign(entries: Sequence[FeederEntry]) -> str:
    """ε, or ε* where no differential privacy is promised of some network."""
    return " or ".join(sorted({entry.manifest.guarantee.network.sign for entry in entries}))


def _row(entry: FeederEntry, summary: Summary, seen: _Seen | None) -> tuple[str | Link, ...]:
    manifest = entry.manifest
    loads, network = manifest.guarantee.loads, manifest.guarantee.network
    name: str | Link = entry.name
    shown = ["–"] * 5
    if seen is not None:
        name = Link(entry.name, f"{partition(entry.name)}/{QUALITY_FILE}")
        peak, mended = summary.get("peak_kw"), summary.get("mended")
        shown = [
            f"{seen.lowest:.4f}",
            f"{seen.highest:.4f}",
            percent(seen.inside_a).removesuffix(" %"),
            f"{peak:,.0f}" if _is_a_figure(peak, int, float) else "–",
            f"{mended:,}" if _is_a_figure(mended, int) else "–",
        ]
    figures = (at_most(loads.epsilon), network.figure.partition(" ")[2].lstrip("≤= "))
    return (name, f"{manifest.data.days:,}", f"{manifest.data.nodes:,}", *shown, *figures)


def _is_a_figure(value: Any, *kinds: type) -> bool:
    return type(value) in kinds and abs(value) < _ABSURD


def _promises(entries: Sequence[FeederEntry]) -> tuple[Callout, ...]:
    """What the customers are promised, whose dearest model counts, and the network that is promised least."""
    dearest = max(entries, key=lambda entry: entry.manifest.guarantee.loads.rho)
    weakest = max(entries, key=lambda entry: entry.manifest.guarantee.network.epsilon)
    loads, network = promise_of(dearest.manifest).loads, promise_of(weakest.manifest).network
    words, largest = fleet_words(ONE_MODEL), f"No network has a larger epsilon than that of {weakest.name}:"
    tones = ["good" if of.holds else "warning" for of in (loads, network)]
    return (
        Callout(loads.title, loads.sentences, tones[0]),
        Callout("The networks", (*words["networks"], largest, *network.sentences), tones[1]),
        Callout("Every reader learns", tuple(words["unprotected"]), wide=True),
    )


def _warnings(entries: Sequence[FeederEntry]) -> tuple[Section, ...]:
    """Each once, with how many feeders it is about unless it is about all; the most common first."""
    counted, known = Counter[str](), dict[str, list[str]]()
    for entry in entries:
        if entry.manifest.release.warnings:
            stated = entry.manifest
            same = repr((stated.release.warnings, stated.guarantee, stated.composition))
            known[same] = known.get(same) or Words.of(stated)["warnings"]
            counted.update(set(known[same]))
    shown = [
        text if count == len(entries) else f"{count:,} of {_feeders(len(entries))}: {text}"
        for text, count in counted.most_common(MOST_WARNINGS)
    ]
    if len(counted) > len(shown):
        shown.append(f"And {len(counted) - len(shown):,} more, on the pages of the feeders.")
    told = Callout("Warnings", tuple(shown), "warning", wide=True)
    return (Section("warnings", "Read this first", (), (told,)),) if shown else ()


def _voltages(seen: Mapping[str, _Seen]) -> tuple[Figure, ...]:
    """How the extreme voltages are distributed over the feeders."""
    if len(seen) < FEWEST_FOR_A_DISTRIBUTION:
        return ()
    lowest, highest = ([getattr(each, name) for each in seen.values()] for name in ("lowest", "highest"))
    edges = _edges(min(lowest), max(highest))
    series = (Series("lowest", _counts(lowest, edges)), Series("highest", _counts(highest, edges)))
    limits = tuple(Limit(end, f"A {end:g}") for end in RANGE_A if edges[0] <= end <= edges[-1])
    caption = (
        f"Lowest and highest voltage of every feeder: feeders in bins of {edges[1] - edges[0]:.4g} p.u. "
        "Dashed lines are the ends of ANSI C84.1 range A."
    )
    chart = Histogram(VOLTAGE, FEEDERS, edges, series, limits)
    return (Figure("voltages", "Lowest and highest voltages of the feeders", caption, chart),)


def _edges(low: float, high: float) -> list[float]:
    """Ends of at most `MOST_BINS` bins whose width is 1, 2 or 5 times a power of ten [p.u.]."""
    steps = (float(f"{factor}e{power}") for power in range(-4, 309) for factor in (1, 2, 5))
    width = next(step for step in steps if high / step - low / step < MOST_BINS - 2)
    first, last = int(low / width), int(high / width) + 1
    return [round(k * width, 6) for k in range(first, last + 1)]


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """Values in each bin, the lower end included."""
    width, last = (edges[-1] - edges[0]) / (len(edges) - 1), len(edges) - 2
    counted = Counter(min(max(int((value - edges[0]) / width), 0), last) for value in values)
    return [counted[k] for k in range(last + 1)]


def _outside(seen: Mapping[str, _Seen]) -> tuple[Figure, ...]:
    """The feeders whose voltages are least within range A."""
    worst = sorted(seen, key=lambda name: (seen[name].inside_a, name))[:MOST_BARS]
    if not worst:
        return ()
    outside = [round(100 * (1 - seen[name].inside_a), 4) for name in worst]
    if len(seen) > MOST_BARS and not any(outside):
        return ()
    chart = Bars(Axis("outside range A", "%", decimals=2), tuple(worst), (Series("voltages", outside),))
    caption = "Share of the voltages outside ANSI C84.1 range A, 0.95 to 1.05 p.u." + (
        f" The {MOST_BARS} feeders with the largest share." if len(worst) < len(seen) else ""
    )
    return (Figure("outside", "Voltages outside range A", caption, chart),)
