"""The page `quality.html`: what it says, in what order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp_powerflow.page import Callout, Card, Item, Page, Section
from dp_powerflow.quality import figures
from dp_powerflow.quality.figures import Dated, percent
from dp_powerflow.quality.result import RANGE_A, RANGE_B, Extreme, Guarantee, Promise

if TYPE_CHECKING:
    from dp_powerflow.quality.measure import Quality

_GOOD = 0.99


def page_of(found: Quality) -> Page:
    """The page of a corpus."""
    minutes = 1440 // found.steps
    dates = f" from {found.first_date} to {found.last_date}" if found.first_date else ""
    lead = (
        f"{found.days:,} synthetic days{dates} of voltage phasors at {found.nodes:,} nodes of a distribution "
        f"feeder, every {minutes} minutes: {found.voltages.count:,} phasors that obey AC power flow.",
        "Everything on this page is computed from the released files and from nothing else. Whoever has them "
        "can make it again, bit by bit: dp-powerflow quality RELEASE.",
    )
    footer = (
        f"Release {found.release_id}. The figures follow from what is released, so they cost no privacy. "
        "They describe the synthetic corpus, not the feeder that it was made for.",
    )
    sections = tuple(section for section in _sections(found) if section.items)
    title, cards = f"Quality of release {found.release_id}", tuple(_cards(found))
    return Page(title, None, lead, sections, cards, footer, found.summary)


def _cards(found: Quality) -> Iterator[Card]:
    """Figures that are read first."""
    voltages, dated = found.voltages, Dated(found.first_date)
    if found.promise is not None:
        for title, kept in (("Customers", found.promise.loads), ("Network", found.promise.network)):
            yield Card(f"{title}: privacy", kept.figure, kept.figure_means, _tone(kept.holds))
    for name, ends, share in (("A", RANGE_A, voltages.inside_a), ("B", RANGE_B, voltages.inside_b)):
        words = f"of the voltages, {ends[0]:g} to {ends[1]:g} p.u."
        yield Card(f"Within ANSI range {name}", percent(share), words, _tone(share >= _GOOD))

    def place(of: Extreme) -> str:
        clock = of.step * 1440 // found.steps
        return f"node {of.node}, {dated.day(of.day)} at {clock // 60:02d}:{clock % 60:02d}"

    for label, of in (("Lowest voltage", voltages.lowest), ("Highest voltage", voltages.highest)):
        inside = RANGE_B[0] <= of.value_pu <= RANGE_B[1]
        yield Card(label, f"{of.value_pu:.4f} p.u.", place(of), _tone(inside))
    if found.powers:
        power = found.powers[0]
        yield Card(f"Peak, {power.name}", f"{power.largest_kw:,.0f} kW", f"mean {power.mean_kw:,.0f} kW")
    if found.unbalance is not None:
        top = float(found.unbalance.band_percent[-1].max())
        yield Card("Unbalance", f"{top:.2f} %", "99 % quantile at the worst time of day", _tone(top <= 2.0))
    if found.mended is not None:
        words = f"of {found.days * found.steps:,} snapshots, for lack of a power-flow solution"
        yield Card("Mended", f"{found.mended.snapshots:,}", words, _tone(not found.mended.snapshots))


def _tone(good: bool) -> str:
    return "good" if good else "warning"


def _sections(found: Quality) -> Iterator[Section]:
    dated, voltages = Dated(found.first_date), found.voltages
    if found.promise is not None:
        yield _privacy(found.promise)
    items: list[Item] = [
        figures.histogram(voltages),
        figures.daily_band(voltages),
        figures.sample_days(voltages, found.steps, dated),
        figures.every_node(voltages),
        figures.worst_nodes(voltages),
    ]
    yield Section("voltages", "Voltages", _about_groups(found), tuple(items))
    drawn = () if found.network is None else (figures.network_map(found.network, dated),)
    yield Section("network", "Network", (), drawn)
    items = [figures.correlation(voltages)]
    if found.unbalance is not None:
        items.append(figures.unbalance(found.unbalance, voltages.slots_minutes))
    yield Section("structure", "Structure", (), tuple(items))
    if found.powers:
        at = voltages.slots_minutes
        yield Section(
            "power",
            "Power",
            ("Powers of the feeder as they were solved, on the released network.",),
            (
                figures.power_over_day(found.powers, at),
                figures.duration(found.powers),
                figures.power_over_days(found.powers, found.days, dated),
                figures.carpet(found.powers, dated),
            ),
        )
    if found.controls is not None:
        yield _controls(found)


def _privacy(promise: Promise) -> Section:
    def framed(of: Guarantee) -> Callout:
        return Callout(of.title, of.sentences, "good" if of.holds else "warning")

    items: list[Item] = [framed(promise.loads), framed(promise.network)]
    if promise.warnings:
        items.insert(0, Callout("Read this first", promise.warnings, "warning", wide=True))
    words = "certificate.html beside this page says it in full, manifest.json so that a program can check it."
    return Section("privacy", "What is protected", (words,), tuple(items))


def _about_groups(found: Quality) -> tuple[str, ...]:
    voltages = found.voltages
    if len(voltages.groups) == 1:
        return ()
    if voltages.grouped_by == "phase":
        return ()
    return (
        "The release does not say the phases of its nodes, or too many of them. They are grouped by the "
        "angle of their first voltage, to the nearest multiple of 30°.",
    )


def _controls(found: Quality) -> Section:
    controls = found.controls
    assert controls is not None
    items: list[Item] = []
    if len(controls.taps):
        items.append(figures.taps(controls, found.voltages.slots_minutes))
    if len(controls.closed):
        items.append(figures.capacitors(controls))
    locked = "No control hunted, so none was locked."
    if controls.locked:
        locked = f"In {percent(controls.locked)} of the snapshots a control was locked because it hunted."
    return Section("controls", "Controls", (locked,), tuple(items))
