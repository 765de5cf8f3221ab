"""Budget, accounting, noise and the cryptographic generator."""

from dp_powerflow.privacy.accounting import epsilon_to_rho, gaussian_epsilon, rho_to_epsilon, total_rho
from dp_powerflow.privacy.budget import PrivacyBudget, PrivacyUnit, QueryCost
from dp_powerflow.privacy.contributions import NoisySum, Query, Region, release_sum
from dp_powerflow.privacy.noise import discrete_gaussian
from dp_powerflow.privacy.random import Stream, StreamKey

__all__ = [
    "NoisySum",
    "PrivacyBudget",
    "PrivacyUnit",
    "Query",
    "QueryCost",
    "Region",
    "Stream",
    "StreamKey",
    "discrete_gaussian",
    "epsilon_to_rho",
    "gaussian_epsilon",
    "release_sum",
    "rho_to_epsilon",
    "total_rho",
]
