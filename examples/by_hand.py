"""The steps of a release by hand: meters → private model → loads → power flow on a twin as it is operated.

The unit of privacy comes first: one record is one load point with all its days.
"""

import numpy as np

import dp_powerflow as dpf


def main() -> None:
    """Fit, draw a twin, sample a week and solve it."""
    budget = dpf.Budget(2.0, 1e-6, unit="load-point")
    key = dpf.StreamKey.from_insecure_seed(1)  # StreamKey.from_system() for anything but a demonstration

    history = dpf.simulate_meters(2000, days=10, step_minutes=60)
    model = dpf.fit(history, budget, key=key)
    print(f"load model: ε = {model.spent_epsilon:.3g} at δ = {model.delta:g}")

    feeder = dpf.open_feeder("ieee13")
    twin = dpf.draw_twin(feeder, dpf.TwinDesign(epsilon=1.0, change=0.05), key=key)
    print(f"twin: ε = {twin.guarantee.epsilon:.3g} for one line changed by {twin.guarantee.change:.0%}")

    loads = dpf.sample(model, twin.feeder, days=7, key=key, per="load")
    solution = dpf.solve(twin.feeder, loads, controls="day", steps=history.n_steps)  # regulators act
    magnitude = np.abs(solution.v)
    print(f"{len(loads)} snapshots, {magnitude.min():.3f} to {magnitude.max():.3f} p.u.")
    print(f"taps from {solution.taps.min()} to {solution.taps.max()} steps off neutral")


if __name__ == "__main__":
    main()
