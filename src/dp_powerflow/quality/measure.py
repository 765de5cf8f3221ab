"""Everything that is found of a corpus, as one result."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.page.document import framed
from dp_powerflow.quality.figures import page_of
from dp_powerflow.quality.nodes import groups_of
from dp_powerflow.quality.operation import controls_of, mended_of, network_of, powers_of
from dp_powerflow.quality.result import (
    Controls,
    Mended,
    Network,
    Power,
    Promise,
    Unbalance,
    Voltages,
    plain,
)
from dp_powerflow.quality.tally import Pass, Progress, take
from dp_powerflow.quality.unbalance import unbalance_of
from dp_powerflow.quality.voltage import chosen_nodes, voltages_of

_SMALL = 5_000_000
"""Phasors that one thread looks at before others have started."""


@dataclass(frozen=True, eq=False)
class Quality:
    """What a corpus looks like; `dpf.quality` makes it.

    Attributes
    ----------
    release_id : name of the release.
    days, steps, nodes : shape of the corpus.
    first_date, last_date : ISO dates; None if the days have none.
    promise : both guarantees in words; None if it was not asked for.
    voltages : magnitudes.
    unbalance : None where there are no three phases.
    powers : of the feeder, where they are published.
    controls : None where they are not published.
    mended : None where it is not published.
    network : None where connections are not published.
    """

    release_id: str
    days: int
    steps: int
    nodes: int
    first_date: str | None
    last_date: str | None
    promise: Promise | None
    voltages: Voltages
    unbalance: Unbalance | None
    powers: tuple[Power, ...]
    controls: Controls | None
    mended: Mended | None
    network: Network | None

    @property
    def summary(self) -> dict[str, int | float | str | None]:
        """Key figures; the page holds them for programs."""
        power = self.powers[0] if self.powers else None
        return {
            "release_id": self.release_id,
            "days": self.days,
            "steps": self.steps,
            "nodes": self.nodes,
            "phasors": self.voltages.count,
            "inside_a": self.voltages.inside_a,
            "inside_b": self.voltages.inside_b,
            "lowest_pu": self.voltages.lowest.value_pu,
            "highest_pu": self.voltages.highest.value_pu,
            "peak_kw": None if power is None else power.largest_kw,
            "mean_kw": None if power is None else power.mean_kw,
            "mended": None if self.mended is None else self.mended.snapshots,
        }

    def to_json(self) -> str:
        """All figures as JSON; equal corpora give equal text."""
        return json.dumps(plain(self), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"

    def to_html(self) -> bytes:
        """The page `quality.html`; equal corpora give equal bytes."""
        return page_of(self).to_html()

    def _repr_html_(self) -> str:
        return framed(self.to_html())

    def __repr__(self) -> str:
        inside = 100 * self.voltages.inside_a
        return (
            f"Quality({self.release_id!r}, {self.days} days, {self.nodes} nodes, "
            f"{inside:.2f} % within ANSI range A)"
        )


def measure(
    corpus: Corpus,
    promise: Promise | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Look at every voltage of a corpus once.

    Parameters
    ----------
    promise : both guarantees in words, for the page.
    workers : threads; None for one per core, and one for a small corpus. The result does not depend on it.
    progress : told how many days of how many were looked at.

    Raises
    ------
    CorpusError : a file is missing or damaged.
    """
    layout, dates = corpus.layout, corpus.dates
    if workers is None and layout.days * layout.steps * layout.nodes <= _SMALL:
        workers = 1
    groups = groups_of(corpus)
    of = Pass(corpus, groups, chosen_nodes(corpus, groups))
    tally = take(of, workers, progress)
    return Quality(
        release_id=corpus.release_id,
        days=layout.days,
        steps=layout.steps,
        nodes=layout.nodes,
        first_date=None if dates is None else str(dates[0]),
        last_date=None if dates is None else str(dates[-1]),
        promise=promise,
        voltages=voltages_of(of, tally),
        unbalance=unbalance_of(of, workers),
        powers=powers_of(of, tally),
        controls=controls_of(of, tally),
        mended=mended_of(of, tally),
        network=network_of(of, tally),
    )
