"""Reading a feeder's parameters from its source, and building the feeder again with others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.grid import opendss_parameters, pandapower_parameters
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.islands import without_islands
from dp_powerflow.grid.opendss_engine import DssOrigin
from dp_powerflow.grid.pandapower import PandapowerOrigin
from dp_powerflow.grid.parameters import Levels, NetworkParameters


def network_parameters(feeder: Feeder, *, relative_to_code: bool = False) -> NetworkParameters:
    """The parameters of a feeder that still knows its source.

    Parameters
    ----------
    relative_to_code : state resistance and reactance of a line that has a code as a multiple of the code's,
        so that they say nothing of which code it is.
    """
    if isinstance(feeder.origin, DssOrigin):
        return opendss_parameters.read_parameters(feeder.origin, relative_to_code=relative_to_code)
    if isinstance(feeder.origin, PandapowerOrigin):
        return pandapower_parameters.read_parameters(feeder.origin, relative_to_code=relative_to_code)
    raise FeederError("this feeder has no source to read its elements from; open it with open_feeder")


def rebuilt(
    feeder: Feeder,
    levels: Levels,
    codes: Mapping[str, str] | None = None,
    *,
    relative_to_code: bool = False,
    drop_islanded: bool = False,
) -> Feeder:
    """The feeder of the same source whose elements have these levels and its lines these codes.

    Parameters
    ----------
    levels : of all the parameters to be replaced; an element keeps what is not named.
    codes : line → entry of the catalogue.
    """

    bad = [key for key, level in levels.items() if not (np.isfinite(level) and level > 0.0)]
    if bad:
        raise FeederError(f"the {bad[0].quantity} of a rebuilt element must be positive and finite")
    if isinstance(feeder.origin, DssOrigin):
        made = opendss_parameters.rebuild(feeder, levels, codes or {}, relative_to_code=relative_to_code)
    elif isinstance(feeder.origin, PandapowerOrigin):
        made = pandapower_parameters.rebuild(feeder, levels, codes or {}, relative_to_code=relative_to_code)
    else:
        raise FeederError("this feeder has no source to be rebuilt from; open it with open_feeder")
    return without_islands(made) if drop_islanded else made
