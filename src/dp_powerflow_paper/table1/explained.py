"""Why a measured mark is not the paper's: the words that no rule can generate."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dp_powerflow_paper.table1.printed import Column, Mark

NO_MEASUREMENT = "The paper gives no measurement behind this cell; ours follows from the rule of its column."

EXPLAINED: Mapping[tuple[str, Column, Mark], str] = MappingProxyType(
    {
        ("iid-noise", Column.LOAD_DP, Mark.NO): (
            "Noise of bounded size has no finite ε: a reading outside its reach rules a customer out for "
            "sure. Laplace noise of the same mean on a clipped range does have one."
        ),
        ("iid-noise", Column.FIDELITY, Mark.YES): (
            "Where only the total of all meters is released, its noise is that of a single meter and "
            "hardly shows in the voltages, if the profiles are near copies of each other. The total says "
            "nothing of how customers differ."
        ),
        ("federated", Column.UNLIMITED, Mark.YES): (
            "The paper takes the trained forecaster for the release. Rolled forward from a public day it "
            "gives any number of days, and that is post-processing."
        ),
        ("federated", Column.LOAD_DP, Mark.NO): (
            "The guarantee of the published system needs thousands of customers; one feeder has too few."
        ),
        ("dpwgan", Column.UNLIMITED, Mark.NO): "The days that were drawn are not all different.",
        ("y-noise", Column.FIDELITY, Mark.YES): (
            "Noise for the paper's r is far too small to hide a line: its voltages are nearly the true "
            "ones. The row with the r of one line ±5 % shows what it costs to hide one."
        ),
        ("y-noise", Column.TOPOLOGY_DP, Mark.NO): (
            "The published mechanisms leave branches without noise or spend a private optimum for "
            "nothing; see the remark of the claim."
        ),
        ("k-means", Column.FIDELITY, Mark.YES): (
            "Centres of customer-days with the noise of ε = 1 are near enough for the voltages here. They "
            "say little about single customers: look at the W1 of the loads."
        ),
        ("dp-gmm", Column.FIDELITY, Mark.NO): (
            "The fit is private for a customer-day at ε = 1 from the customers of one feeder. Its noise, "
            "or its few Gaussians for all customers, moves the loads or breaks their course in time "
            "by more than the rule allows."
        ),
        ("opf-noise", Column.TRUE_Y, Mark.NOT_APPLICABLE): (
            "It releases a dispatch and flows of linear equations, which are set up on the true network; no "
            "voltage of a power flow is in it."
        ),
        ("bilevel", Column.LOAD_DP, Mark.NO): (
            "The published form takes the least cost of the true loads as public. It is a function of them: "
            "with it and all other loads the last one comes back. The feeder form pays for its total."
        ),
        ("bilevel", Column.TRUE_Y, Mark.NOT_APPLICABLE): (
            "It releases loads. The true network enters through the optimum that they must cost; power flow "
            "is the user's own."
        ),
        ("grid-datasets", Column.FIDELITY, Mark.NOT_APPLICABLE): (
            "It releases no voltages. Its own figures stand in its row."
        ),
        ("dp-powerflow", Column.TOPOLOGY_DP, Mark.NO): (
            "On the true network the paper's ε is a formula for one step with a Monte Carlo calibration, "
            "and no proved bound on this feeder (docs/results/theorem.md). Voltages at fixed power "
            "factors lie on a surface that a changed line moves, so no randomness of the loads hides the "
            "line (docs/results/manifold.md). A twin has a proved guarantee."
        ),
        ("dp-powerflow", Column.TRUE_Y, Mark.NO): (
            "The twin replaces the true network: that is what its proved guarantee is bought with. No row "
            "has both marks."
        ),
        ("dp-powerflow", Column.FIDELITY, Mark.NO): (
            "Three causes add up: few Gaussians for all customers, the noise of ε = 1 from one feeder's "
            "customers, and what hides the network: a floor on the variance, random reactive load, or the "
            "twin."
        ),
    }
)


def why(printed: str, column: Column, mark: Mark) -> str:
    """One or two sentences."""
    return EXPLAINED.get((printed, column, mark), NO_MEASUREMENT)
