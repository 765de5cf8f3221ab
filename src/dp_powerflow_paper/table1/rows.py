"""The rows of the table: every entry of the registry, what is composed of them, and what is not built yet.

An entry for loads is a row of loads; their voltages are solved on the true network to compare them, which is
no part of the release. An entry for a network is a row of voltages of the true loads on it. A cited system
without an entry has a row that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from dp_powerflow import TwinDesign
from dp_powerflow_paper.mechanisms import Target
from dp_powerflow_paper.mechanisms.dp_powerflow import on_twin, paper_variant
from dp_powerflow_paper.mechanisms.gaussian import NetworkTarget, printed_sensitivities, voltage_noise
from dp_powerflow_paper.sources import OtherRelease
from dp_powerflow_paper.sources.composition import Composition
from dp_powerflow_paper.sources.entries import Entry, LoadEntry, NetworkEntry, OtherEntry
from dp_powerflow_paper.sources.loads import LawLoads, TrueLoads
from dp_powerflow_paper.sources.networks import TrueNetwork
from dp_powerflow_paper.sources.registry import LOADS, NETWORKS, OTHERS
from dp_powerflow_paper.table1.bench import LINE_CHANGE, MATCHED, NETWORK_TARGET, P_MAX, Bench
from dp_powerflow_paper.table1.printed import PRINTED
from dp_powerflow_paper.wasserstein.lab import DELTA_TAIL
from dp_powerflow_paper.wasserstein.search import Configuration, class_mechanism

Made = Composition | OtherRelease
Make = Callable[[Bench, int], Made]
"""Makes the system of a row for one of several fits."""


class Gives(Enum):
    """What a system gives away."""

    LOADS = "loads"
    VOLTAGES = "voltages"
    OTHER = "something else"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    key : in names of files; unique.
    title : in tables.
    printed : key of the paper's row; None where the paper has none.
    matched : whether it is at the matched units (customer-day, one line ±5 %), not in its paper's own.
    make : the system, for one of several fits; None if it is not built.
    extra : pip extra that it needs; models of such rows are trained, which takes long.
    family : of rows that share fits, and so are measured by one process; empty for a row by itself.
    audited_by : test file with its audit, where the table makes none of its own.
    """

    key: str
    title: str
    printed: str | None
    kind: Gives
    matched: bool = True
    make: Make | None = None
    extra: str | None = None
    audited_by: str | None = None
    family: str = ""


def all_rows() -> tuple[Row, ...]:
    """Every row, in the order of the paper's table; the true data first, ours last."""
    found = [*_of_loads(LOADS), *_of_networks(NETWORKS), *_of_others(OTHERS), *_composed(), *_not_built()]
    order = [None, *PRINTED]
    return tuple(sorted(found, key=lambda row: order.index(row.printed)))


_OWN_ROWS = {"entries-of-y": "y-noise"} | dict.fromkeys(
    ("gmm-structured", "gmm-classes", "gmm-mixture"), "dp-gmm"
)
"""Entries of ours that are variants of a system of the paper's table."""
_IMPLEMENTS = {"gmm-plain": "liu2025differentially"}
"""Entries that are a cited system although their `paper` says "ours"."""


def printed_row(entry: Entry) -> str | None:
    """Key of the paper's row whose citations an entry's `paper` names."""
    for key, row in PRINTED.items():
        if any(_is(entry, cited) for cited in row.cited):
            return key
    return _OWN_ROWS.get(entry.key)


def _is(entry: Entry, cited: str) -> bool:
    """Whether an entry is a cited system: its `paper` is the citation, or begins it ("eibl2017")."""
    paper = _IMPLEMENTS.get(entry.key, entry.paper).lower()
    return any(cited.lower().startswith(word) for word in re.findall(r"[a-z]+[0-9a-z]{4,}", paper))


# ------------------------------------------------------------------------------- from the registry


def _row(kind: Gives, key: str, title: str, entry: Entry, make: Make) -> Row:
    return Row(
        key=f"{key}-{entry.key}",
        title=title,
        printed=printed_row(entry),
        kind=kind,
        matched=entry.matched,
        make=make,
        extra=entry.extra,
        audited_by=entry.audited_by,
    )


def _of_loads(entries: Iterable[LoadEntry]) -> Iterator[Row]:
    for entry in entries:
        yield _row(Gives.LOADS, "loads", entry.title, entry, partial(_on_true_network, entry))


def _of_networks(entries: Iterable[NetworkEntry]) -> Iterator[Row]:
    for entry in entries:
        if entry.key == "true":
            continue
        title = f"true loads on: {entry.title}"
        row = _row(Gives.VOLTAGES, "network", title, entry, partial(_under_true_loads, entry))
        yield row
        if entry.key == "entries-of-y":
            # Its sensitivity is r itself, so that of one line is all it takes to match the unit.
            make = partial(_under_true_loads, entry, line=True)
            title = f"{row.title}, r of one line ±5 %"
            yield replace(row, key=f"{row.key}-line", title=title, matched=True, make=make)


def _of_others(entries: Iterable[OtherEntry]) -> Iterator[Row]:
    for entry in entries:
        yield _row(Gives.OTHER, "other", entry.title, entry, partial(_other, entry))


def _on_true_network(entry: LoadEntry, bench: Bench, fit: int) -> Made:
    make = entry.quick if bench.scale.quick and entry.quick is not None else entry.make
    return Composition(bench.setting, make(bench.occasion(fit)), TrueNetwork(bench.data.feeder))


def _under_true_loads(entry: NetworkEntry, bench: Bench, fit: int, line: bool = False) -> Made:
    of = bench.with_line_radius() if line else bench
    return Composition(bench.setting, TrueLoads(bench.truth.load), entry.make(of.occasion(fit)))


def _other(entry: OtherEntry, bench: Bench, fit: int) -> Made:
    return entry.make(bench.occasion(fit))


# --------------------------------------------------------------------- composed, and not built yet


def _variant(point: Configuration, bench: Bench, fit: int) -> Made:
    return point.variant.build(bench.lab, point, fit)


_literal = partial(_variant, Configuration("literal", None, MATCHED.epsilon, P_MAX, bounds=P_MAX))
_full_support = partial(_variant, Configuration("full-support", NETWORK_TARGET, MATCHED.epsilon))


def _literal_classes(bench: Bench, fit: int) -> Made:
    return class_mechanism(bench.lab, MATCHED.epsilon, fit)


def _with_floor(bench: Bench, fit: int) -> Made:
    lab = bench.lab
    return paper_variant(
        lab.setting,
        lab.facts,
        lab.loads(MATCHED.epsilon, fit, P_MAX),
        lab.margins(P_MAX),
        Target(NETWORK_TARGET, DELTA_TAIL),
        lab.generator("table I, mean", fit),
    )


def _on_twin(design: TwinDesign, bench: Bench, fit: int) -> Made:
    fitted = bench.lab.restored_loads(MATCHED.epsilon, P_MAX, fit, P_MAX)
    drawn = LawLoads(fitted.law, fitted.claim)
    return on_twin(bench.setting, replace(design, protected=bench.data.protected), drawn)


_twin = partial(_on_twin, TwinDesign(MATCHED.epsilon, LINE_CHANGE))
_gaussian_twin = partial(
    _on_twin, TwinDesign(MATCHED.epsilon, LINE_CHANGE, noise="gaussian", delta=MATCHED.delta)
)


def _voltage_noise(bench: Bench, fit: int) -> Made:
    lab = bench.lab
    return voltage_noise(lab.setting, NetworkTarget(lab.sensitivities, MATCHED.epsilon, MATCHED.delta))


def _voltage_noise_of_a_line(bench: Bench, fit: int) -> Made:
    setting = replace(bench.setting, radius=bench.line_radius)
    sensitivities = printed_sensitivities(setting, bench.lab.facts)
    return voltage_noise(setting, NetworkTarget(sensitivities, MATCHED.epsilon, MATCHED.delta))


def _composed() -> Iterator[Row]:
    formula = f"formula at ε = {NETWORK_TARGET:g} a step"
    yield Row(
        "voltage-noise",
        "Gaussian on voltages, r of the data set",
        None,
        Gives.VOLTAGES,
        False,
        _voltage_noise,
    )
    yield Row(
        "voltage-noise-line",
        "Gaussian on voltages, r of one line ±5 %",
        None,
        Gives.VOLTAGES,
        make=_voltage_noise_of_a_line,
    )
    ours: dict[str, tuple[str, Make]] = {
        "literal": ("DP-Powerflow as printed, true network", _literal),
        "classes": ("DP-Powerflow as printed, 4 private classes, true network", _literal_classes),
        "floor": (f"DP-Powerflow, {formula}, true network", _with_floor),
        "full-support": (f"DP-Powerflow, full support, {formula}, true network", _full_support),
        "twin": ("DP-Powerflow on a twin, Laplace", _twin),
        "gaussian-twin": ("DP-Powerflow on a twin, Gaussian", _gaussian_twin),
    }
    for key, (title, make) in ours.items():
        name = "dp-powerflow"
        # On the true network its neighbours are never one line ±5 %; the loads are at the matched unit.
        on_twin = key in ("twin", "gaussian-twin")
        yield Row(f"{name}-{key}", title, name, Gives.VOLTAGES, matched=on_twin, make=make, family=name)


_NAMES = {
    "gergelyDream": "DREAM: divisible Laplace noise",
    "eibl2017differential": "point-wise sensitivity",
    "barbosa2014lightweight": "zero-mean noise",
    "fernandez2022privacy": "DP federated learning",
    "huang2022dpwgan": "DPWGAN",
    "fioretto2019differential": "noise on lines with restoration",
    "smith2021realistic": "noise on lines with restoration, after smith2021",
    "dvorkin2020differentially": "noise on OPF outputs",
    "mak2019privacy": "bilevel obfuscation",
    "ravi2022differentially": "DP K-means",
    "liu2025differentially": "DP-GMM",
    "dvorkin2023differentially": "DP synthetic grid datasets",
}


def _not_built() -> Iterator[Row]:
    entries: list[Entry] = [*LOADS, *NETWORKS, *OTHERS]
    for key, row in PRINTED.items():
        for cited in row.cited:
            if not any(_is(entry, cited) for entry in entries):
                yield Row(f"not-built-{cited}", _NAMES[cited], key, Gives.OTHER)
