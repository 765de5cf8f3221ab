"""The sentences of `fleet.json`; any change of one is another version of its format."""

from __future__ import annotations

ONE_MODEL, PER_FEEDER = "one", "per-feeder"

CUSTOMERS = {
    ONE_MODEL: (
        "One load model was fitted from all customers and paid for once; every feeder's corpus is drawn from "
        "it, so all feeders together cost a load point what the one model costs. No customer needs to be on "
        "one feeder only for this. That it is one model can be checked: its file has one SHA-256."
    ),
    PER_FEEDER: (
        "Every feeder has a load model of its own, fitted from the load points that a public map puts on "
        "this feeder. No load point is on two feeders, so what one load point does changes one model only, "
        "and all feeders together cost it what the dearest model costs (parallel composition). The program "
        "refuses a map with a load point on two feeders; that the map does not depend on the readings is "
        "attested by the data owner. A person behind load points on several feeders is several records."
    ),
}
"""What all feeders together cost one load point, by the models that the fleet has."""

NETWORKS = (
    "Every feeder's network is a secret of its own with an account of its own, and its own manifest says "
    "what is promised of it. For an element that is modelled in one feeder the figures of that feeder count; "
    "those of different feeders do not add up. For an element that is modelled in several feeders, such as a "
    "transformer of their substation, the figures of these feeders have to be added up."
)

UNPROTECTED = (
    "Which feeders are here. A feeder is absent if nobody asked for it or if it could not be released, and "
    "the latter may depend on its network: neither presence nor absence, nor a gap in the numbers of the "
    "feeders, is protected.",
    "How many feeders, and how many nodes of each, are released.",
)

NAMES = (
    "The public names of the feeders are numbers in an order drawn from the data owner's secret key, or "
    "names that the data owner declared public."
)
