"""Drawing a twin: integers in, integers out.

The log of every level is rounded to a public grid and gets exact discrete Gaussian noise; the twin's level is
computed from the noisy integer alone, so no digit of it depends on anything else of the true level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from dp_powerflow._bits.elementary import exp1, log
from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.parameters import CodedLine, Levels, NetworkParameters, ParameterKey, Quantity
from dp_powerflow.grid.sources import Rebuilder
from dp_powerflow.privacy.random import Stream, StreamKey, discrete_gaussian, uniform_below
from dp_powerflow.twin.guarantee import LOG_GRID, Spread
from dp_powerflow.units import IntArray

_RESPONSE_BITS = 53
_RESPONSE_SLACK = 16
FORMAT = "dp-powerflow twin, version 1"


@dataclass(frozen=True)
class Twin:
    """A drawn twin. Publishable: what the guarantee speaks of is exactly this record.

    Attributes
    ----------
    positions : noisy log level of every protected parameter [grid units].
    codes : drawn conductor code of every coded line; empty if codes are kept.
    """

    spread: Spread
    positions: Mapping[ParameterKey, int]
    codes: Mapping[str, str]

    @property
    def levels(self) -> Levels:
        """Levels of the twin; the shift by η²/2 keeps their mean at the true level."""
        return {
            key: exp1(position * LOG_GRID - 0.5 * (self.spread.of(key.quantity) or 0.0) ** 2)
            for key, position in self.positions.items()
        }

    def feeder(self, source: Rebuilder) -> Feeder:
        """The twin's network, built by the engine that built the source's (`rebuilder_of`)."""
        return source.build(self.levels, self.codes)

    def to_json(self) -> str:
        """Canonical text."""
        content = {
            "format": FORMAT,
            "spread": asdict(self.spread),
            "positions": [[key.quantity.value, key.element, k] for key, k in sorted(self.positions.items())],
            "codes": dict(sorted(self.codes.items())),
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Twin:
        content = json.loads(text)
        if content.get("format") != FORMAT:
            raise PrivacyError(
                f"the stored twin is not of the format '{FORMAT}'; use the version that drew it"
            )
        positions = {ParameterKey(Quantity(q), element): int(k) for q, element, k in content["positions"]}
        return cls(Spread(**content["spread"]), positions, content["codes"])


def rebuilder_of(feeder: Feeder, spread: Spread, *, drop_islanded: bool = False) -> Rebuilder:
    """What reads the parameters that a spread covers, and builds twins."""
    relative = spread.code_epsilon is not None
    return Rebuilder(feeder, relative_to_code=relative, drop_islanded=drop_islanded)


def parameters_of(source: Rebuilder, spread: Spread) -> NetworkParameters:
    """PRIVATE. What a twin of this spread is drawn from; refuses a feeder that it would not protect."""
    found = source.parameters()
    source.check(found)
    for quantity, _ in spread.protected():
        if not any(key.quantity is quantity for key in found.levels):
            raise PrivacyError(
                f"the feeder has nothing whose {quantity.value} the twin could protect; leave out "
                f"network.{quantity.value}"
            )
    if spread.code_epsilon is not None and not found.coded:
        raise PrivacyError("no line of the feeder has a conductor code; leave out network.code_epsilon")
    if spread.pv is not None:
        # pandapower's tables may share names, so its keys have the table in front.
        known = {key.element.split(":", 1)[-1] for key in found.levels if key.quantity is Quantity.PV}
        missing = [system.name for system in source.feeder.pv if system.name not in known]
        if missing:
            raise PrivacyError(
                f"the capacity of PV system '{missing[0]}' cannot be protected: its source states no rating; "
                "declare PV capacities public by leaving out network.pv"
            )
    return found


def draw_twin(parameters: NetworkParameters, spread: Spread, key: StreamKey) -> Twin:
    """Draw a twin; the same key gives the same twin, so pay once per key."""
    positions: dict[ParameterKey, int] = {}
    for quantity, sigma in spread.sigmas().items():
        keys = sorted(item for item in parameters.levels if item.quantity is quantity)
        logs = log(np.array([parameters.levels[item] for item in keys], dtype=np.float64))
        true: IntArray = np.round(logs / LOG_GRID).astype(np.int64)
        noisy = true + discrete_gaussian(key.stream(f"twin: {quantity.value}"), sigma, len(keys))
        positions.update(zip(keys, noisy.tolist(), strict=True))
    codes: dict[str, str] = {}
    if spread.code_epsilon is not None:
        stream = key.stream("twin: codes")
        codes = {line.line: respond(stream, line, spread.code_epsilon) for line in parameters.coded}
    return Twin(spread, positions, codes)


def respond(stream: Stream, line: CodedLine, epsilon: float) -> str:
    """Randomised response over the candidates of one line: the true code e^ε times as likely as another."""
    others = [code for code in line.candidates if code != line.code]
    odds = exp1(-epsilon) * len(others)
    # A few units lower than rounding could have made it: the code is never kept too often.
    threshold = math.floor(2.0**_RESPONSE_BITS / (1.0 + odds)) - _RESPONSE_SLACK
    keeps = int(uniform_below(stream, 2**_RESPONSE_BITS, 1)[0]) < threshold
    chosen = int(uniform_below(stream, max(len(others), 1), 1)[0])
    return line.code if keeps or not others else others[chosen]
