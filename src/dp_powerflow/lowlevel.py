"""What experiments, benchmarks and tests may use below the public API. It may change with any version.

| subject | names |
|---|---|
| networks | `BusGraph`, `Levels`, `Network`, `Quantity`, `Rebuilder` |
| load models | `ClassLaw`, `Estimator`, `GaussianComponent`, `LoadLaw`, `LoadSampler`, `ONE_CLASS`, `Plain`, `PublicSpread`, `Structured`, `WeakBudgetWarning`, `nominal_law`, `placed_load`, `simulate_load_history`, `solve_days`, `truncate` |
| power flow | `Generation`, `Solver`, `VoltVar`, `clear_sky` |
| privacy | `PrivacyUnit`, `discrete_gaussian`, `discrete_laplace`, `epsilon_to_rho`, `gdp_delta`, `gdp_epsilon`, `gdp_mu` |
| evidence | `DaySolver`, `NetworkFacts`, `OperatingSet`, `lower_share`, `monte_carlo`, `network_facts`, `plain`, `scaled`, `upper_share`, `with_change` |
| twins | `Chain`, `GAUSSIAN_DELTA`, `LOG_GRID`, `draw_twin`, `parameters_of`, `surrogate_load`, `twin_guarantee`, `twin_neighbours`, `voltage_distance` |
| studies | `Study` |
| running and drawing | `Processes`, `cores`, `INTERNAL`, `figure_bytes`, `marked_figures`, `new_figure`, `run_on_pool`, `write_private` |

None of them charges a ledger. A name loads what it needs when it is first used; type checkers read
`lowlevel.pyi`. Nothing of the product imports this module.
"""  # noqa: E501

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "dp_powerflow._files": "write_private",
    "dp_powerflow._parallel": "Processes run_on_pool",
    "dp_powerflow._threads": "cores",
    "dp_powerflow.evidence.calibration": "DaySolver monte_carlo",
    "dp_powerflow.evidence.collect": "network_facts plain",
    "dp_powerflow.evidence.lines.evidence": "lower_share scaled upper_share with_change",
    "dp_powerflow.evidence.theorem": "NetworkFacts OperatingSet",
    "dp_powerflow.grid.feeder": "BusGraph Levels",
    "dp_powerflow.grid.quantities": "Quantity",
    "dp_powerflow.grid.reduction": "Network",
    "dp_powerflow.grid.sources": "Rebuilder",
    "dp_powerflow.loads.simulate": "simulate_load_history",
    "dp_powerflow.model.estimators": "Estimator",
    "dp_powerflow.model.single_days": "Plain Structured",
    "dp_powerflow.model.fit": "ONE_CLASS WeakBudgetWarning",
    "dp_powerflow.model.law": "ClassLaw GaussianComponent LoadLaw nominal_law truncate",
    "dp_powerflow.model.options": "PublicSpread",
    "dp_powerflow.model.sample": "LoadSampler placed_load solve_days",
    "dp_powerflow.pipeline.modes.base": "INTERNAL",
    "dp_powerflow.powerflow.batch": "Solver",
    "dp_powerflow.powerflow.devices": "VoltVar",
    "dp_powerflow.powerflow.sun": "Generation clear_sky",
    "dp_powerflow.privacy.budget": "PrivacyUnit epsilon_to_rho gdp_delta gdp_epsilon gdp_mu",
    "dp_powerflow.privacy.random": "discrete_gaussian discrete_laplace",
    "dp_powerflow._certify": "figure_bytes marked_figures new_figure",
    "dp_powerflow.studies.study": "Study",
    "dp_powerflow.twin.choosing": "GAUSSIAN_DELTA surrogate_load",
    "dp_powerflow.twin.design": "LOG_GRID Chain twin_guarantee twin_neighbours",
    "dp_powerflow.twin.draw": "draw_twin parameters_of voltage_distance",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dp_powerflow.lowlevel' has no name {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return found
