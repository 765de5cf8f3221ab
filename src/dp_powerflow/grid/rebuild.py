"""Reading a feeder's parameters from its source, and building the feeder again with others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
from dss import DSS

from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.opendss import parameters as opendss_parameters
from dp_powerflow.grid.opendss.engine import DssOrigin, Engine
from dp_powerflow.grid.pandapower import parameters as pandapower_parameters
from dp_powerflow.grid.pandapower.reader import PandapowerOrigin
from dp_powerflow.grid.parameters import Levels, NetworkParameters, Quantity
from dp_powerflow.grid.sources import without_islands
from dp_powerflow.units import ComplexArray

_STRETCH = 1.5
_COARSE, _FLOOR = 0.08, 1e-6
_TWO_ENDS = 2


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

    def check(self, parameters: NetworkParameters) -> None:
        """Refuse a feeder that its levels do not give back, or a line that does not move with them.

        A source can hold figures that override those that are replaced; they would stay true in the result.
        """
        levels = parameters.levels
        codes = {line.line: line.code for line in parameters.coded} if self._relative else {}
        same = self.build(levels, codes)
        other = self.build({key: _STRETCH * level for key, level in levels.items()}, codes)
        if same.nodes != self.feeder.nodes or other.nodes != self.feeder.nodes:
            raise FeederError("the feeder cannot be rebuilt from its figures: it has other nodes then")
        lines = zip(self.feeder.lines, same.lines, other.lines, strict=True)
        for line, again, stretched in lines:
            fixed = line.is_switch or len(line.nodes) < _TWO_ENDS
            if not fixed and not _close(line.primitive, again.primitive):
                raise FeederError(f"line '{line.name}' cannot be rebuilt from its length, R and X")
            if not fixed and _close(again.primitive, stretched.primitive):
                raise FeederError(
                    f"line '{line.name}' keeps its figures when its length, R and X are replaced"
                )
        rest, again_rest, stretched_rest = (_without_lines(f) for f in (self.feeder, same, other))
        if not _close(rest, again_rest):
            raise FeederError(
                "a transformer, capacitor or shunt of the feeder cannot be rebuilt from its figures, as a "
                "capacitor given by cuf or cmatrix; give it by kvar"
            )
        shunts = {key for key in levels if key.quantity in (Quantity.TRANSFORMER, Quantity.CAPACITOR)}
        if shunts and abs(again_rest - stretched_rest).max() == 0.0:
            raise FeederError("transformers and capacitors keep their figures when these are replaced")

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


def _without_lines(feeder: Feeder) -> sp.csc_array:
    """What of Y is not of lines: transformers, capacitors, sources."""
    rest = feeder.y.tolil()
    for line in feeder.lines:
        rest[np.ix_(line.nodes, line.nodes)] -= line.primitive
    return sp.csc_array(rest)


def _close(one: ComplexArray | sp.csc_array, other: ComplexArray | sp.csc_array) -> bool:
    """Whether admittances agree to the coarseness of shapes, each beside those of its row and column."""
    first, second = sp.csr_array(one), sp.csr_array(other)
    difference = abs(first - second).tocoo()
    size = np.asarray(abs(first).max(axis=1).todense()).ravel()
    scale = np.sqrt(size[difference.row] * size[difference.col])
    return bool(np.all(difference.data <= _COARSE * scale + _FLOOR))


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
