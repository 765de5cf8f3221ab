"""Public figures of customers: what a config says of loads before anybody has looked at one.

They are the same for everybody, so they tell nothing of the meters. The bounds are wide enough for almost
any customer of the kind and no wider: the noise grows with the logarithm of their ratio, and readings far
below the others widen the law upwards too. A household's mean over a quarter of an hour lies between about
0.02 kW and 15 kW, and above 10 kW for a few hours of a year. The law has a longer tail than that, and where a
node has few customers its voltage falls with every draw at the upper bound; so that is 10 kW. Below 0.05 kW
(a fridge and a router) it does not matter to a feeder what a load is, so that is the lower bound, and zeros
count as it.

A house adds about 2 kW to the peak of a feeder, and 3 to 4 kW where it is heated or cooled electrically: the
first is the figure here. Nominal loads are peaks, so a load of 40 kW stands for 20 houses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class CustomerKind:
    """What is publicly known of a kind of customers.

    Attributes
    ----------
    name : in words.
    words : begin a class label that means it.
    bounds_kw : mean load of any interval of any customer [kW].
    kw_per_customer : nominal kW of a feeder's load that stand for one: its share of the common peak.
    power_factor : cos of the angle, lagging.
    """

    name: str
    words: tuple[str, ...]
    bounds_kw: tuple[float, float]
    kw_per_customer: float
    power_factor: float

    def bounds_of_one(self, scale_kw: float) -> tuple[float, float]:
        """Bounds over a public scale of a customer that stands for all of a node, four digits."""
        most_kw = min(self.bounds_kw[1], MOST_OF_ONE * self.kw_per_customer)
        low, high = (float(f"{bound / scale_kw:.4g}") for bound in (self.bounds_kw[0], most_kw))
        return low, high


HOUSEHOLD = CustomerKind(
    "household",
    ("resid", "household", "house", "home", "domestic", "dwelling", "apartment", "flat", "res"),
    (0.05, 10.0),
    2.0,
    0.97,
)
KINDS = (
    HOUSEHOLD,
    CustomerKind(
        "business",
        ("commerc", "business", "office", "shop", "retail", "service", "school", "com"),
        (0.1, 300.0),
        10.0,
        0.93,
    ),
    CustomerKind("factory", ("industr", "factory", "manufact", "ind"), (0.5, 3000.0), 100.0, 0.9),
    CustomerKind("farm", ("farm", "agri"), (0.05, 150.0), 5.0, 0.93),
)
UNNAMED = CustomerKind("household or small business", (), (0.05, 10.0), 2.0, 0.95)
"""Of load points without a class, and of labels that no kind is called by."""

BOUNDS_OF_SCALE = (0.005, 2.0)
"""Bounds of a load over a connected or contracted power: a house of 10 kW asleep, and a fuse that holds."""
MOST_OF_ONE = 3.0
"""Upper bound of one customer that stands for all of a node, over its share of the peak: what many customers
do one after the other it would do at once. There the node draws its nominal load."""
VARIANCE_FLOOR = 0.01
DAYS = 28
FIRST_DAY_OF_YEAR = 80
"""Of a clear sky: from the equinox on, neither winter nor summer."""


def kind_of(label: str | None) -> CustomerKind:
    """The kind of customers that a public class label means."""
    words = re.findall(r"[a-z]+", (label or "").lower())
    found = (kind for kind in KINDS for word in words if word.startswith(kind.words))
    return next(found, UNNAMED)


def class_of_nodes(labels: Iterable[str]) -> str:
    """The public label that all nodes get: households, or else the one with the most load points."""
    count = Counter(labels)
    return min(count, key=lambda label: (kind_of(label) is not HOUSEHOLD, -count[label], label))


def delta_for(load_points: int) -> float:
    """A public δ well below one over the number of load points."""
    return next(
        delta for delta, most in ((1e-5, 10_000), (1e-6, 100_000), (1e-8, 10**9)) if load_points < most
    )
