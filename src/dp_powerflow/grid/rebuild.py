"""Reading a feeder's parameters from its source, and building the feeder again with others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from dss import DSS

from dp_powerflow.errors import FeederError
from dp_powerflow.grid import opendss_parameters, pandapower_parameters
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.islands import without_islands
from dp_powerflow.grid.opendss_engine import DssOrigin, Engine
from dp_powerflow.grid.pandapower import PandapowerOrigin
from dp_powerflow.grid.parameters import Levels, NetworkParameters


class Rebuilder:
    """A feeder that still knows its source, to be read and built again any number of times.

    Parameters
    ----------
    relative_to_code : state resistance and reactance of a line that has a code as a multiple of the code's,
        so that they say nothing of which code it is.
    drop_islanded : leave out what no source feeds, as when the feeder was opened.
    """

    def __init__(
        self, feeder: Feeder, *, relative_to_code: bool = False, drop_islanded: bool = False
    ) -> None:
        if not isinstance(feeder.origin, DssOrigin | PandapowerOrigin):
            raise FeederError("this feeder has no source to be read from; open it with open_feeder")
        self.feeder = feeder
        self._relative = relative_to_code
        self._drop_islanded = drop_islanded
        # One engine for all: it compiles the same commands every time.
        self._engine: Engine = DSS.NewContext() if isinstance(feeder.origin, DssOrigin) else None

    def parameters(self) -> NetworkParameters:
        """PRIVATE. The parameters of the feeder."""
        origin = self.feeder.origin
        if isinstance(origin, DssOrigin):
            return opendss_parameters.read_parameters(
                origin, relative_to_code=self._relative, engine=self._engine
            )
        assert isinstance(origin, PandapowerOrigin)
        return pandapower_parameters.read_parameters(origin, relative_to_code=self._relative)

    def build(self, levels: Levels, codes: Mapping[str, str] | None = None) -> Feeder:
        """The feeder of the same source whose elements have these levels and its lines these codes.

        Parameters
        ----------
        levels : of all the parameters to be replaced; an element keeps what is not named.
        codes : line → entry of the catalogue.
        """
        bad = [key for key, level in levels.items() if not (np.isfinite(level) and level > 0.0)]
        if bad:
            raise FeederError(f"the {bad[0].quantity} of a rebuilt element must be positive and finite")
        if isinstance(self.feeder.origin, DssOrigin):
            made = opendss_parameters.rebuild(
                self.feeder, levels, codes or {}, relative_to_code=self._relative, engine=self._engine
            )
        else:
            made = pandapower_parameters.rebuild(
                self.feeder, levels, codes or {}, relative_to_code=self._relative
            )
        return without_islands(made) if self._drop_islanded else made


def network_parameters(feeder: Feeder, *, relative_to_code: bool = False) -> NetworkParameters:
    """PRIVATE. The parameters of a feeder, once; see `Rebuilder`."""
    return Rebuilder(feeder, relative_to_code=relative_to_code).parameters()


def rebuilt(
    feeder: Feeder,
    levels: Levels,
    codes: Mapping[str, str] | None = None,
    *,
    relative_to_code: bool = False,
    drop_islanded: bool = False,
) -> Feeder:
    """A feeder with other levels, once; see `Rebuilder`."""
    rebuilder = Rebuilder(feeder, relative_to_code=relative_to_code, drop_islanded=drop_islanded)
    return rebuilder.build(levels, codes)
