"""Learn from a release, test on the truth: tomorrow's voltages at every node, one value per hour.

A release on a twin of a public feeder is made from simulated meters. Forecasts are trained on the release
alone and tested on the true feeder with the true meters: both are public here. Beside them stand forecasts
that need no training, and the same models trained on the true voltages, which readers of a release lack.

The order of the nodes in a release is secret, and another feeder has other nodes. So one set of weights
serves all nodes: a node is known by its own last week and by the mean of its phase, never by its number.

The unit of privacy comes first: one record is one load point with all its days.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import dp_powerflow as dpf

HOURS, WEEK = 24, 7
KW_PER_CUSTOMER, POWER_FACTOR = 1.5, 0.97
NODES_PER_DAY = 40  # nodes of one day are much alike: a few of each day are enough to train on
PENALTY = 1e-3  # of the linear forecast, per sample
WIDTH, BATCH, RATE = 64, 4096, 3e-3
SEED = 1

CONFIG = """
[feeder]
source = "{feeder}"

[loads]
kind = "simulated"
load_points = {customers}
days = {metered_days}
step_minutes = 60

[model]
unit = "load-point"          # what one record is: all days of one service
epsilon = 1.0
delta = 1e-5
estimator = "history"        # customers persist and days follow one another: there is a tomorrow to forecast
bounds = [0.005, 1.0]
power_factor = {power_factor}

[nodes]
load_class = "residential"
kw_per_customer = {kw_per_customer}

[network]
mode = "twin-network"
id = "next-day"
change = 0.05
epsilon = 1.0
released = "all"
controls = "day"             # regulators act

[release]
id = "next-day"
days = {released_days}       # more days than were metered cost nothing more
output = "release"
state = "private-state"
insecure_seed = 1            # a demonstration; leave it out for a release
"""


@dataclass(frozen=True)
class Size:
    """How much of everything; `test_days` are the last ones of the meters."""

    feeder: str
    customers: int
    metered_days: int
    released_days: int
    test_days: int
    training_steps: int


FULL = Size("ieee123", 1000, 365, 3 * 365, 90, 300)
QUICK = Size("ieee13", 1000, 84, 168, 28, 150)


@dataclass(frozen=True)
class Voltages:
    """Magnitudes (day, hour, node) [p.u.], days off (day,), and the phase of every node (node,)."""

    magnitude: np.ndarray
    off: np.ndarray
    phase: np.ndarray


@dataclass(frozen=True)
class Samples:
    """What is known of every node at midnight, x (day, hour, node, feature), and y (day, hour, node) [%].

    Voltages are in per cent of nominal and relative to the mean of the node's last week at that hour.
    """

    x: np.ndarray
    y: np.ndarray


Forecast = Callable[[np.ndarray], np.ndarray]
YESTERDAY = 0  # feature


def released_voltages(size: Size, folder: Path) -> Voltages:
    """Make the release and read it: all that training sees."""
    text = CONFIG.format(power_factor=POWER_FACTOR, kw_per_customer=KW_PER_CUSTOMER, **vars(size))
    (folder / "release.toml").write_text(text, encoding="utf-8")
    corpus = dpf.open_corpus(dpf.release(dpf.read_config(folder / "release.toml")).path)
    days = torch.stack([day.vm_pu for day in corpus.windows(length=HOURS)])  # a window a day
    return Voltages(days.numpy(), corpus.calendar.off, corpus.connections.phase)


def true_voltages(size: Size) -> Voltages:
    """The true meters on the true feeder. PRIVATE, were they not simulated and the feeder public."""
    meters = dpf.simulate_meters(size.customers, days=size.metered_days, step_minutes=60)
    homes = [k for k, label in enumerate(meters.class_label) if label == "residential"]
    feeder = dpf.open_feeder(size.feeder)
    count = [max(1, round(load.kw / KW_PER_CUSTOMER)) for load in feeder.loads]
    customers = np.resize(homes, sum(count))  # from the first one again where there are too few
    load_kw = np.add.reduceat(meters.load_kw[customers], np.cumsum(count) - count).reshape(len(count), -1)
    load = load_kw.T * (1 + 1j * np.tan(np.arccos(POWER_FACTOR))) / (1000 * feeder.base_mva)
    solution = dpf.solve(feeder, load, controls="day", steps=HOURS, all_nodes=True)
    return Voltages(
        np.abs(solution.v).astype(np.float32).reshape(size.metered_days, HOURS, -1),
        np.array([day.weekday() >= 5 for day in meters.days]),
        np.array([int(feeder.nodes[k].rsplit(".", 1)[1]) for k in feeder.energised]),
    )


def samples(voltages: Voltages, days: range, nodes_per_day: int | None = None) -> Samples:
    """The chosen days; of each a few random nodes, or all."""
    rng = np.random.default_rng(SEED)
    per_cent = 100 * voltages.magnitude
    x, y = [], []
    for day in days:
        nodes = per_cent.shape[2]
        kept = np.arange(nodes) if nodes_per_day is None else rng.choice(nodes, min(nodes, nodes_per_day))
        known, target = _known(per_cent[day - WEEK : day], voltages, day), per_cent[day]
        x.append(known[:, kept])
        y.append((target - per_cent[day - WEEK : day].mean(axis=0))[:, kept])
    return Samples(np.array(x, dtype=np.float32), np.array(y))


def _known(week: np.ndarray, voltages: Voltages, day: int) -> np.ndarray:
    """(hour, node, feature) from the week before a day, and what the calendar says of the day."""
    mean, off = week.mean(axis=0), voltages.off
    alike = week[off[day - WEEK : day] == off[day]].mean(axis=0)  # days of the same kind: there always are
    yesterday = week[-1] - mean
    own = [yesterday, week[-2] - mean, week[0] - mean, alike - mean]
    own += [
        np.broadcast_to(yesterday[part].mean(axis=0), mean.shape) for part in (slice(None), slice(-6, None))
    ]
    of_phase = [_phase_mean(values, voltages.phase) for values in (*own, mean - 100)]
    calendar = [np.full(mean.shape, float(flag)) for flag in (off[day], off[day - 1])]
    return np.stack([*own, mean - 100, week.std(axis=0), *of_phase, *calendar], axis=-1)


def _phase_mean(values: np.ndarray, phase: np.ndarray) -> np.ndarray:
    """(hour, node) mean over all nodes of the same phase: the state of the feeder, whatever the order."""
    means = np.empty_like(values)
    for number in np.unique(phase):
        means[:, phase == number] = values[:, phase == number].mean(axis=1, keepdims=True)
    return means


def linear(train: Samples) -> Forecast:
    """Ridge regression, one for each hour."""
    spread = train.x.std(axis=(0, 1, 2)) + 1e-6
    weights = []
    for hour in range(HOURS):
        x = _with_one(train.x[:, hour] / spread).reshape(-1, len(spread) + 1)
        penalty = PENALTY * len(x) * np.eye(x.shape[1])
        weights.append(np.linalg.solve(x.T @ x + penalty, x.T @ train.y[:, hour].ravel()))
    return lambda x: np.einsum("dhnf,hf->dhn", _with_one(x / spread), np.array(weights))


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1, dtype=np.float64)


def network(train: Samples, steps: int) -> Forecast:
    """A small neural network, one for all nodes and hours; it is told the hour."""
    torch.manual_seed(SEED)
    middle, spread, scale = train.x.mean(axis=(0, 1, 2)), train.x.std(axis=(0, 1, 2)) + 1e-6, train.y.std()
    angle = 2 * np.pi * np.arange(HOURS) / HOURS
    clock = np.stack([wave(k * angle) for k in (1, 2) for wave in (np.sin, np.cos)], axis=-1)

    def scaled(x: np.ndarray) -> torch.Tensor:
        hour = np.broadcast_to(clock[None, :, None], (*x.shape[:-1], clock.shape[1]))
        return torch.from_numpy(np.concatenate([(x - middle) / spread, hour], axis=-1, dtype=np.float32))

    x, y = scaled(train.x).flatten(0, 2), torch.from_numpy(train.y / scale).float().flatten()
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], WIDTH),
        torch.nn.SiLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.SiLU(),
        torch.nn.Linear(WIDTH, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(len(x), (BATCH,))
        loss = torch.nn.functional.mse_loss(model(x[batch])[:, 0], y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    @torch.no_grad()
    def forecast(x: np.ndarray) -> np.ndarray:
        return model(scaled(x))[..., 0].numpy() * scale

    return forecast


def main() -> None:
    """Train, test and print the table."""
    parser = argparse.ArgumentParser(description="Forecast tomorrow's voltages, learned from a release.")
    parser.add_argument("--quick", action="store_true", help="a small feeder and few days: seconds")
    size = QUICK if parser.parse_args().quick else FULL
    torch.set_num_threads(1)  # tensors are small: more threads only wait for one another
    with tempfile.TemporaryDirectory() as folder:
        released = released_voltages(size, Path(folder))
    true = true_voltages(size)
    first_test_day = size.metered_days - size.test_days
    test = samples(true, range(first_test_day, size.metered_days))
    sources = {
        "the release": samples(released, range(WEEK, size.released_days), NODES_PER_DAY),
        "the true meters": samples(true, range(WEEK, first_test_day), NODES_PER_DAY),
    }

    def error(forecast: Forecast) -> str:
        return f"{np.sqrt(np.mean((forecast(test.x) - test.y) ** 2)) / 100:.5f}"  # per cent to p.u.

    rows = {
        "yesterday again": [error(lambda x: x[..., YESTERDAY])] * 2,
        "mean of the last week": [error(lambda x: np.zeros(x.shape[:-1]))] * 2,
        "linear": [error(linear(train)) for train in sources.values()],
        "neural network": [error(network(train, size.training_steps)) for train in sources.values()],
    }
    print(f"Tomorrow's voltages on the true {size.feeder}, {size.test_days} days: RMSE [p.u.], trained on")
    print(f"{'':24}" + "".join(f"{name:>18}" for name in sources))
    for name, errors in rows.items():
        print(f"{name:24}" + "".join(f"{value:>18}" for value in errors))


if __name__ == "__main__":
    main()
