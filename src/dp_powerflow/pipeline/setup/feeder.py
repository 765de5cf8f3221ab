"""What `init` takes from a feeder: whether parts are islanded, whether it has PV. No figure of a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dp_powerflow.errors import DpPowerflowError, FeederError
from dp_powerflow.grid import sources as grid
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import Rebuilder, feeder_problems, open_feeder, read_taps
from dp_powerflow.twin.design import TwinDesign
from dp_powerflow.twin.draw import parameters_of


@dataclass(frozen=True, eq=False, repr=False)
class FeederFacts:
    """PRIVATE but for what is structure: that nodes are islanded, that there are PV systems and curves.

    Attributes
    ----------
    feeder : the network, to be checked; nothing of it is written.
    islanded : whether nodes are left out that no source feeds.
    pv : whether there are PV systems.
    curves : whether one of them has a volt-var curve of its own.
    """

    feeder: Feeder
    islanded: bool

    @property
    def pv(self) -> bool:
        return bool(self.feeder.pv)

    @property
    def curves(self) -> bool:
        return any(system.curve is not None for system in self.feeder.pv)


def feeder_facts(source: str, taps: Path | None) -> FeederFacts:
    """Open a feeder, without its islands if it has some.

    Raises
    ------
    FeederError
        If the feeder cannot be used at all; INTERNAL, all reasons at once.
    """
    table = None if taps is None else read_taps(taps)
    for islanded in (False, True):
        try:
            return FeederFacts(open_feeder(source, taps=table, drop_islanded=islanded), islanded)
        except FeederError as error:
            refused = error
    problems = feeder_problems(source, taps=table, drop_islanded=True, twin=None)
    raise FeederError(internal_list(problems or (str(refused),)))


def twin_problems(facts: FeederFacts, design: TwinDesign) -> tuple[str, ...]:
    """Every reason why no twin of this design can be drawn of the feeder; INTERNAL."""
    found = grid.twin_problems(facts.feeder, design.protected, drop_islanded=facts.islanded)
    if found:
        return tuple(str(error) for error in found)
    try:
        parameters_of(Rebuilder(facts.feeder, design.protected, drop_islanded=facts.islanded), design)
    except DpPowerflowError as error:
        return (str(error),)
    return ()


def internal_list(problems: list[str] | tuple[str, ...]) -> str:
    """What is unsupported in a feeder, marked INTERNAL: it describes the secret."""
    if len(problems) == 1:
        return f"INTERNAL: {problems[0]}"
    lines = (f"\n  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    return f"INTERNAL: {len(problems)} things in the feeder are not supported:" + "".join(lines)
