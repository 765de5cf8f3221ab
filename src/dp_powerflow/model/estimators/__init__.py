"""The estimators a fit can use, behind one small interface."""

from dp_powerflow.model.estimators.base import Estimator, GaussianEstimate, PublicFacts
from dp_powerflow.model.estimators.plain import Plain
from dp_powerflow.model.estimators.structured import Structured

__all__ = ["Estimator", "GaussianEstimate", "Plain", "PublicFacts", "Structured"]
