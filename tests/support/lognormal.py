"""Customers whose log load is nearly Gaussian, as the day model assumes: for tests of the estimators.

The homes of `loads.simulate` are on or off and no Gaussian fits them; what is tested with these here is
whether an estimator finds a law of its own class.
"""

from __future__ import annotations

from dp_powerflow.loads.simulate import DEMO_CLASSES, Business, CustomerClass

# fmt: off
LOGNORMAL_HOMES = CustomerClass(
    name="residential", share=0.8, scales_kw=(9.0, 12.0, 17.0),
    kind=Business(
        load_factor=0.045, level_std=0.4,
        working_day=(0.55, 0.48, 0.44, 0.43, 0.45, 0.55, 0.85, 1.05, 0.95, 0.85, 0.82, 0.85,
                     0.92, 0.88, 0.82, 0.85, 1.00, 1.30, 1.60, 1.75, 1.65, 1.40, 1.05, 0.75),
        weekend=(0.65, 0.55, 0.48, 0.45, 0.45, 0.48, 0.58, 0.80, 1.05, 1.20, 1.25, 1.30,
                 1.32, 1.20, 1.10, 1.10, 1.20, 1.40, 1.60, 1.68, 1.55, 1.30, 1.05, 0.80),
        shape_std=0.25, shift_hours=1.5, season=0.15, weather=0.05, day_std=0.15,
        residual_std=0.45, residual_hours=1.5, white_std=0.25,
    ),
)
# fmt: on
LOGNORMAL_CLASSES = (LOGNORMAL_HOMES, *DEMO_CLASSES[1:])
