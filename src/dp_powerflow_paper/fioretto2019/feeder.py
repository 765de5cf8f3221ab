"""The feeder form: Laplace noise on the inverse length of every line, kept within a band of the noisy mean.

Neighbours differ in the inverse length of one line by at most α. A line of at least the shortest length
whose length changes by a share c changes its inverse by at most c/(1 − c)/shortest, and that is α: so the
claim is for any change of ±c of any line. Lines shorter than that count as that short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dp_powerflow import Feeder, Protected, StreamKey, TwinDesign
from dp_powerflow.errors import FeederError, PowerFlowError, PrivacyError
from dp_powerflow.lowlevel import Quantity, Rebuilder, Solver, discrete_laplace, parameters_of
from dp_powerflow.units import FloatArray
from dp_powerflow_paper.fioretto2019.acopf import NoisyLengths
from dp_powerflow_paper.fioretto2019.restoration import WIDTH, restore_lengths
from dp_powerflow_paper.mechanisms import Setting, key_from
from dp_powerflow_paper.sources import ANY_NUMBER_OF_DAYS, Guarantee, UnusableDrawError
from dp_powerflow_paper.sources.entries import NetworkEntry, Occasion

GRID = 2**20
"""Grid units in α."""
_LENGTHS = Protected(lines="length")
_CLAIM = "networks of the same lines and conductor codes in which one line has another length, by at most {}"


@dataclass(frozen=True)
class LengthPrivacy:
    """How much of one line is hidden.

    Attributes
    ----------
    epsilon : half for every line's own figure, half for their mean.
    change : c, share of a length that is hidden.
    shortest_km : public length below which a line counts as that long.
    """

    epsilon: float = 1.0
    change: float = 0.05
    shortest_km: float = 0.03

    def __post_init__(self) -> None:
        if not (self.epsilon > 0.0 and 0.0 < self.change < 1.0 and self.shortest_km > 0.0):
            raise PrivacyError("noise on lengths needs a positive ε and length, and a change between 0 and 1")

    @property
    def alpha(self) -> float:
        """Change of an inverse length [1/km]."""
        return self.change / (1.0 - self.change) / self.shortest_km

    @property
    def scale(self) -> int:
        """Of the noise [grid units of α]; an integer moves by one unit more than its figure."""
        return math.ceil(2.0 * (GRID + 1) / self.epsilon)


def obfuscate_lengths(lengths_km: FloatArray, privacy: LengthPrivacy, key: StreamKey) -> NoisyLengths:
    """Noisy inverse lengths; exact integer noise."""
    unit = privacy.alpha / GRID
    true = np.rint(1.0 / np.maximum(lengths_km, privacy.shortest_km) / unit).astype(np.int64)
    noisy = true + discrete_laplace(key.stream("inverse lengths"), privacy.scale, len(true))
    total = int(true.sum()) + int(discrete_laplace(key.stream("sum of inverse lengths"), privacy.scale, 1)[0])
    return NoisyLengths(
        unit * noisy.astype(np.float64), unit * total / len(true), unit * privacy.scale / len(true)
    )


@dataclass(frozen=True, eq=False)
class NoisyLines:
    """A network whose line lengths have noise and are restored to a band; a `NetworkMechanism`."""

    feeder: Feeder
    privacy: LengthPrivacy
    width: float = WIDTH
    name: str = "noise on 1/length, restored"
    uses_true_network: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """One restored network serves any number of days."""
        share = f"±{100.0 * self.privacy.change:g} %"
        shortest = f"{1000.0 * self.privacy.shortest_km:g} m"
        return Guarantee(
            self.privacy.epsilon,
            0.0,
            ANY_NUMBER_OF_DAYS,
            _CLAIM.format(share),
            proved=True,
            metric=f"1/length by {self.privacy.alpha:.3g} per km: {share} of {shortest}",
        )

    @property
    def noise_std(self) -> Mapping[str, float]:
        """Of an inverse length [1/km]."""
        return {"inverse_length": math.sqrt(2.0) * self.privacy.scale * self.privacy.alpha / GRID}

    def draw(self, generator: np.random.Generator) -> Feeder:
        """One network, its noise from AES streams whose key the generator gives."""
        source = Rebuilder(self.feeder, _LENGTHS)
        levels = parameters_of(source, TwinDesign(1.0, protected=_LENGTHS)).levels
        lines = sorted(levels)
        if any(line.quantity is not Quantity.LENGTH for line in lines):
            raise FeederError("noise on lengths needs a conductor code and a length for every line")
        true = np.array([levels[line] for line in lines])
        restored = restore_lengths(obfuscate_lengths(true, self.privacy, key_from(generator)), self.width)
        return source.build(dict(zip(lines, restored.tolist(), strict=True)))

    def solver(self, feeder: Feeder, setting: Setting) -> Solver:
        """That of another network."""
        try:
            return setting.solver_of(feeder)
        except (FeederError, PowerFlowError) as error:
            raise UnusableDrawError(str(error)) from None


def _make(occasion: Occasion) -> NoisyLines:
    return NoisyLines(occasion.data.feeder, LengthPrivacy(occasion.target.epsilon))


NETWORKS = (
    NetworkEntry(
        key="noisy-lengths",
        title="noise on 1/length, restored (PLO)",
        paper="fioretto2019differential, after smith2021realistic",
        audited_by="tests/audit/test_branch_noise_audit.py",
        make=_make,
    ),
)
