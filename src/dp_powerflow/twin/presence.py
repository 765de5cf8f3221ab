"""Which of the figures that a twin is to protect a network has, and what must not pass for one without them.

What is present is part of the frame: a figure has a level exactly if it is not zero, a line has a code
exactly if its file says so, and neighbours share both. So two neighbours have the same figures present, and
whoever knows the frame knows which. The design, its noise and its ε do not depend on it: they are those of
everything that was declared, whatever of it is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.buses import BusGraph
from dp_powerflow.grid.feeder import Feeder, NetworkParameters
from dp_powerflow.grid.quantities import (
    TRANSFORMER,
    WITHOUT,
    Figure,
    Protected,
    absent_figures,
)

_KEYS: dict[Figure, str] = {
    "codes": "code_epsilon",
    "charging": "charging_epsilon",
    "transformers": "transformers",
    "capacitors": "capacitors",
    "pv": "pv",
}


def absent_from(parameters: NetworkParameters, protected: Protected) -> tuple[Figure, ...]:
    """The declared figures of which a network has none."""
    found = {key.quantity for key in parameters.levels}
    return absent_figures(protected, found, coded=bool(parameters.coded))


def refuse_absent(parameters: NetworkParameters, protected: Protected) -> None:
    """Refuse a network without a figure that is declared protected: most likely the config is mistaken.

    Lines without charging are no reason: they have none to protect.
    """
    absent = [figure for figure in absent_from(parameters, protected) if figure != "charging"]
    if not absent:
        return
    has_no = " and no ".join(WITHOUT[figure] for figure in absent)
    raise PrivacyError(
        f"the feeder has no {has_no} that the twin could protect; "
        f'{" and ".join(_without(figure) for figure in absent)}, or set network.protect = "if present"'
    )


def refuse_disguised(parameters: NetworkParameters, protected: Protected, structure: Feeder) -> None:
    """Refuse a network that has none of a protected kind, but something else that does its work.

    Nothing of that gets noise. Where a kind is there, what else there is beside it is declared public and the
    owner has seen that his files use the kind; where it is not, nobody has looked.

    Parameters
    ----------
    structure : the network, or one with its nodes and elements.
    """
    absent = absent_from(parameters, protected)
    found = [sentence for figure in absent for sentence in _disguised(figure, parameters, structure)]
    if found:
        raise PrivacyError("; ".join(found))


def _disguised(figure: Figure, parameters: NetworkParameters, structure: Feeder) -> Iterator[str]:
    if figure == "transformers" and TRANSFORMER in BusGraph.of(structure).kind_of.values():
        yield _sentence(
            figure,
            "something that is neither line nor switch joins two of its buses, as a series reactor or an "
            "impedance, and its figures would be public; model it as a transformer",
        )
    if figure == "capacitors" and parameters.compensating:
        yield _sentence(
            figure,
            f"'{parameters.compensating[0]}' feeds in reactive power as one does, and its size would be "
            "public; model it as a capacitor",
        )
    if figure == "pv" and structure.as_operated.generators:
        yield _sentence(
            figure,
            f"generator '{structure.as_operated.generators[0].name}' feeds in, and its size would be public; "
            "model it as a PV system",
        )


def _sentence(figure: Figure, what: str) -> str:
    none = f"the feeder has no {WITHOUT[figure]} that the twin could protect"
    return f"{none}, but {what}, or {_without(figure)}"


def _without(figure: Figure) -> str:
    return "set network.lines to 'impedance'" if figure == "lengths" else f"leave out network.{_KEYS[figure]}"
