"""A producer's day: plan, release and verify a small corpus on the built-in IEEE 13 feeder.

The unit of privacy comes first: one record is one load point with all its days.
"""

from pathlib import Path

import dp_powerflow as dpf

CONFIG = """
[feeder]
source = "ieee13"

[loads]                      # simulated customers; `kind = "long"` reads your own meters
kind = "simulated"
load_points = 400
days = 20
step_minutes = 60

[model]
unit = "load-point"          # what one record is: all days of one service
epsilon = 1.0
delta = 1e-6
bounds = [0.01, 2.0]

[nodes]
load_class = "residential"
kw_per_customer = 1.5        # a load of 150 kW is the sum of 100 customers

[network]                    # differential privacy of R and X of every line, any number of days
mode = "twin-network"
id = "first-twin"
change = 0.05                # one line changed by five per cent: epsilon 1; by half: 8.3
epsilon = 1.0
released = "all"
controls = "day"             # regulators act, step after step through a day

[release]
id = "first"
days = 14
output = "release"
state = "private-state"
insecure_seed = 1            # a demonstration; leave it out for a release
"""


def main() -> None:
    """Make the release in the current directory."""
    Path("release.toml").write_text(CONFIG, encoding="utf-8")
    config = dpf.read_config("release.toml")

    cost = dpf.plan(config).plan
    print(f"customers: ε = {cost.epsilon:.3g} at δ = {cost.delta:g}, {len(cost.queries)} queries")

    result = dpf.release(config)
    report = dpf.verify(result.path)
    print(f"{result.path.name}: {report.verdict}")
    for check in report.checks:
        print(f"  {'ok ' if check.ok else 'NOT'} {check.name}")

    corpus = dpf.open_corpus(result.path)
    taps, head = corpus.taps(), corpus.head()
    print(f"taps from {taps.min()} to {taps.max()} steps off neutral")
    print(f"feeder head: {head.sum(axis=-1).real.max():.0f} kW at most")


if __name__ == "__main__":
    main()
