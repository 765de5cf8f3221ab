"""Learn power flow from a released twin and perturbed copies of it, test it on the true feeder.

On one fixed network voltages are all but a linear function of the loads, and a regression needs no graph.
So the released twin is perturbed: other lines, lines out, ties, loads, PV. That is post-processing of a
release and costs nothing. It gives networks to learn from, and networks never seen. The last test is the
truth: the public feeder with its own lines and meters.

A feeder is deep, and a message goes one bus per layer. So every layer also reads the whole feeder: the means
over all buses, and over those of the same phase.

The unit of privacy comes first: one record is one load point with all its days.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing, global_mean_pool

import dp_powerflow as dpf

FEEDER, HOURS = "ieee13", 24
CUSTOMERS, METERED_DAYS = 1000, 60
KW_PER_CUSTOMER, POWER_FACTOR = 1.5, 0.97
WIDTH, LAYERS, BATCH, RATE = 48, 6, 32, 3e-3
PENALTY = 1e-6  # of the regression on the loads, relative
PER_NETWORK = 4
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
bounds = [0.005, 1.0]
power_factor = {power_factor}

[nodes]
load_class = "residential"
kw_per_customer = {kw_per_customer}

[network]
mode = "twin-network"
id = "surrogate"
change = 0.05
epsilon = 1.0
released = "all"
controls = "frozen"          # one admittance matrix for all snapshots
publish = "network and loads"

[release]
id = "surrogate"
days = {released_days}
output = "release"
state = "private-state"
insecure_seed = 1            # a demonstration; leave it out for a release
"""


@dataclass(frozen=True)
class Size:
    """How much of everything; test days and test networks are the last ones."""

    released_days: int
    test_days: int
    perturbed: int
    test_networks: int
    epochs: int


FULL = Size(28, 7, 1600, 60, 12)
QUICK = Size(4, 1, 160, 8, 3)


@dataclass(frozen=True)
class Network:
    """A network without its loads, in the frame that is turned back by the nominal angles.

    Attributes
    ----------
    y : complex (bus, bus) admittances [p.u.].
    reference : (bus,) whether the bus is a source.
    v_reference : complex (source,) [p.u.].
    phase : (bus,) number of the phase.
    """

    y: np.ndarray
    reference: np.ndarray
    v_reference: np.ndarray
    phase: np.ndarray

    def without_load(self) -> tuple[np.ndarray, np.ndarray]:
        """Complex (bus,) voltages without any load, and (bus, bus) what they lose per current drawn."""
        free, fed = np.flatnonzero(~self.reference), np.flatnonzero(self.reference)
        z = np.zeros_like(self.y)
        z[np.ix_(free, free)] = np.linalg.inv(self.y[np.ix_(free, free)])
        v = np.zeros(len(self.y), dtype=complex)
        v[fed] = self.v_reference
        return v - z @ self.y[:, fed] @ self.v_reference, z


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of one network: complex demand (snapshot, bus) [p.u.] and voltage (snapshot, bus) [p.u.]."""

    network: Network
    demand: np.ndarray
    v: np.ndarray


# --- the data ----------------------------------------------------------------------------------------------
def released_snapshots(size: Size, folder: Path) -> dict[str, list[Snapshots]]:
    """Release, perturb and read: snapshots to train on, and new days and new networks to test on."""
    values = {"feeder": FEEDER, "customers": CUSTOMERS, "metered_days": METERED_DAYS}
    values |= {"power_factor": POWER_FACTOR, "kw_per_customer": KW_PER_CUSTOMER}
    text = CONFIG.format(released_days=size.released_days, **values)
    (folder / "release.toml").write_text(text, encoding="utf-8")
    release = dpf.release(dpf.read_config(folder / "release.toml")).path
    variety = dpf.GridfmVariety(scenarios=size.perturbed, per_network=PER_NETWORK, seed=SEED)
    made = dpf.export_gridfm(release, folder / "graphs", variety=variety)
    tables = dpf.read_gridfm(made.path / made.networks[0].name / "raw")

    networks = _networks(tables)
    day = tables.column("bus", "load_scenario_idx")[:, 0]
    own = np.arange(len(day)) < made.networks[0].released
    new_network = networks >= networks.max() + 1 - size.test_networks
    new_day = day >= size.released_days - size.test_days
    return {
        "train": _grouped(tables, networks, ~new_day & ~new_network),
        "new days": _grouped(tables, networks, new_day & own),
        "new networks": _grouped(tables, networks, new_network),
    }


def _networks(tables: Any) -> np.ndarray:
    """(scenario,) number of the network, in the order in which they come; the twin itself is 0."""
    seen: dict[bytes, int] = {}
    entries = np.column_stack([tables.y_bus[name] for name in ("index1", "index2", "G", "B")])
    ends = np.cumsum(np.bincount(tables.y_bus["scenario"]))
    return np.array([seen.setdefault(part.tobytes(), len(seen)) for part in np.split(entries, ends[:-1])])


def _grouped(tables: Any, networks: np.ndarray, chosen: np.ndarray) -> list[Snapshots]:
    demand, v = tables.column("bus", "Pd") + 1j * tables.column("bus", "Qd"), tables.voltage()
    reference, phase = tables.column("bus", "REF")[0] > 0, tables.column("bus", "phase")[0]
    groups = []
    for number in np.unique(networks[chosen]):
        rows = np.flatnonzero(chosen & (networks == number))
        y = tables.admittance(int(rows[0])).toarray()
        network = Network(y, reference, v[rows[0], reference], phase)
        groups.append(Snapshots(network, demand[rows] / 100, v[rows]))  # the tables are on 100 MVA
    return groups


def true_snapshots(days: int) -> list[Snapshots]:
    """The last days of the true meters on the true feeder. PRIVATE, were both not public here."""
    meters = dpf.simulate_meters(CUSTOMERS, days=METERED_DAYS, step_minutes=60)
    homes = [k for k, label in enumerate(meters.class_label) if label == "residential"]
    feeder = dpf.open_feeder(FEEDER)
    count = [max(1, round(load.kw / KW_PER_CUSTOMER)) for load in feeder.loads]
    customers = np.resize(homes, sum(count))
    load_kw = np.add.reduceat(meters.load_kw[customers][:, -days:], np.cumsum(count) - count)
    load = load_kw.reshape(len(count), -1) * (1 + 1j * np.tan(np.arccos(POWER_FACTOR))) / 1000
    demand = (feeder.load_shares @ load).T / feeder.base_mva
    v = np.empty(demand.shape, dtype=complex)
    v[:, feeder.slack] = feeder.v_slack
    v[:, feeder.energised] = dpf.solve(feeder, demand[:, feeder.retained], all_nodes=True).v
    turn = np.exp(-1j * np.deg2rad(feeder.nominal_angle_deg))  # the frame of the tables
    whole = Network(
        turn[:, None] * feeder.y.toarray() * turn.conj() * feeder.base_mva / 100,  # their base
        np.isin(np.arange(len(feeder.nodes)), feeder.slack),
        feeder.v_slack * turn[feeder.slack],
        np.array([int(name.rsplit(".", 1)[1]) for name in feeder.nodes]),
    )
    switches = [line.nodes for line in feeder.lines if line.is_switch]
    return [_merged(Snapshots(whole, demand * feeder.base_mva / 100, v * turn), switches)]


def _merged(group: Snapshots, switches: list[tuple[int, ...]]) -> Snapshots:
    """The two ends of a closed switch as one bus, as in the tables."""
    bus = np.arange(len(group.network.y))
    for nodes in switches:
        for kept, gone in zip(nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :], strict=True):
            bus[bus == bus[gone]] = bus[kept]
    first, number = np.unique(bus, return_inverse=True)
    joined = np.eye(len(first))[number]  # (node, bus)
    network = group.network
    merged = Network(
        joined.T @ network.y @ joined, network.reference[first], network.v_reference, network.phase[first]
    )
    return Snapshots(merged, group.demand @ joined, group.v[:, first])


# --- voltages without learning -----------------------------------------------------------------------------
Method = Callable[[Snapshots], np.ndarray]
"""Snapshots, whose voltages it does not look at → complex (snapshot, bus) [p.u.]."""


def no_load(group: Snapshots) -> np.ndarray:
    """Voltages without any load."""
    return np.broadcast_to(group.network.without_load()[0], group.v.shape)


def linearised(group: Snapshots) -> np.ndarray:
    """Linearised power flow: the currents that the loads draw at the voltage without load."""
    w, z = group.network.without_load()
    with_source = np.where(group.network.reference, 1.0, w)
    return w - np.conj(group.demand / with_source) @ z.T


class Mean:
    """Mean voltage of every bus of one network. Buses go by their numbers, which no other feeder shares."""

    def __init__(self, group: Snapshots) -> None:
        self.middle = group.v.mean(axis=0)

    def __call__(self, group: Snapshots) -> np.ndarray:
        """Complex (snapshot, bus) [p.u.]."""
        return np.broadcast_to(self.middle, group.v.shape)


class Regression(Mean):
    """Ridge regression of the voltages of one network on all its loads."""

    def __init__(self, group: Snapshots) -> None:
        super().__init__(group)
        self.usual = group.demand.mean(axis=0)
        x = self._features(group)
        penalty = PENALTY * np.trace(x.T @ x) * np.eye(x.shape[1])
        self.weights = np.linalg.solve(x.T @ x + penalty, x.T @ (group.v - self.middle))

    def __call__(self, group: Snapshots) -> np.ndarray:
        """Complex (snapshot, bus) [p.u.]."""
        return self.middle + self._features(group) @ self.weights

    def _features(self, group: Snapshots) -> np.ndarray:
        drawn = group.demand - self.usual
        return np.hstack([drawn.real, drawn.imag])


# --- the graph network -------------------------------------------------------------------------------------
def graphs_of(group: Snapshots, start: Method) -> list[Data]:
    """Snapshots as graphs; the target is the voltage less that of `start` [%], real and imaginary."""
    network, (w, z) = group.network, group.network.without_load()
    ends = np.array(np.nonzero(network.y * (1 - np.eye(len(w)))))
    y = network.y[ends[0], ends[1]]
    same = network.phase[ends[0]] == network.phase[ends[1]]
    edge = np.column_stack([np.log10(np.abs(y)), y.real / np.abs(y), y.imag / np.abs(y), same])
    own = np.diag(z)  # impedance to the source: how deep a bus is, whatever lies between
    fixed = np.column_stack([own.real, own.imag, w.real - 1, w.imag, network.reference])
    fixed = np.column_stack([fixed, network.phase[:, None] == np.array([1, 2, 3])])
    first = start(group)
    drop, target = 100 * (first - w), 100 * (group.v - first)
    return [
        Data(
            x=_float(np.column_stack([100 * s.real, 100 * s.imag, d.real, d.imag, fixed])),
            y=_float(np.column_stack([u.real, u.imag])),
            edge_index=torch.from_numpy(ends),
            edge_attr=_float(edge),
            phase=torch.from_numpy(network.phase),
        )
        for s, d, u in zip(group.demand, drop, target, strict=True)
    ]


def _float(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def perceptron(inputs: int, outputs: int) -> torch.nn.Sequential:
    """Two layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, WIDTH), torch.nn.SiLU(), torch.nn.Linear(WIDTH, outputs)
    )


class Layer(MessagePassing):
    """What the branches bring, and what the whole feeder and the own phase look like."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.of_branch = perceptron(3 * WIDTH, WIDTH)
        self.of_feeder = torch.nn.Linear(WIDTH, WIDTH)
        self.combine = perceptron(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, h: torch.Tensor, edge: torch.Tensor, data: Data) -> torch.Tensor:
        """(bus, width) after one more exchange."""
        h_scaled, phase = self.norm(h), 4 * data.batch + data.phase
        near = self.propagate(data.edge_index, h=h_scaled, edge=edge)
        said = self.of_feeder(h_scaled)
        whole = global_mean_pool(said, data.batch)[data.batch]
        alike = global_mean_pool(said, phase)[phase]
        return h + self.combine(torch.cat([h_scaled, near, whole, alike], dim=1))

    def message(self, h_i: torch.Tensor, h_j: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        """(edge, width)."""
        return self.of_branch(torch.cat([h_i, h_j, edge], dim=1))


class Surrogate(torch.nn.Module):
    """From loads and network to voltages; scales are those of the training graphs."""

    def __init__(self, train: list[Data]) -> None:
        super().__init__()
        x, edge, y = (torch.cat([graph[name] for graph in train]) for name in ("x", "edge_attr", "y"))
        self.scales = [(values.mean(dim=0), values.std(dim=0) + 1e-3) for values in (x, edge)]
        self.spread = y.std()
        self.of_bus, self.of_edge = perceptron(x.shape[1], WIDTH), perceptron(edge.shape[1], WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = perceptron(WIDTH, 2)

    def forward(self, data: Data) -> torch.Tensor:
        """(bus, 2) target over its spread."""
        scaled = zip((data.x, data.edge_attr), self.scales, strict=True)
        x, edge = ((values - middle) / spread for values, (middle, spread) in scaled)
        h, edge = self.of_bus(x), self.of_edge(edge)
        for layer in self.layers:
            h = layer(h, edge, data)
        return self.out(h)


def learned(train: list[Snapshots], start: Method, epochs: int) -> Method:
    """A graph network that corrects what it starts from."""
    torch.manual_seed(SEED)
    graphs = [graph for group in train for graph in graphs_of(group, start)]
    model = Surrogate(graphs)
    loader = DataLoader(graphs, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch), batch.y / model.spread)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    @torch.no_grad()
    def method(group: Snapshots) -> np.ndarray:
        loader = DataLoader(graphs_of(group, start), batch_size=BATCH)
        found = (torch.cat([model(batch) for batch in loader]) * model.spread).double().numpy() / 100
        return start(group) + (found @ np.array([1, 1j])).reshape(group.v.shape)

    return method


def error(method: Method, groups: list[Snapshots]) -> float:
    """Root mean square of |V − V of the method| [p.u.] over snapshots and buses without a source."""
    wrong = [(method(group) - group.v)[:, ~group.network.reference].ravel() for group in groups]
    return float(np.sqrt(np.mean(np.abs(np.concatenate(wrong)) ** 2)))


def main() -> None:
    """Train, test and print the table."""
    parser = argparse.ArgumentParser(
        description="Learn power flow from a release, test it on the true feeder."
    )
    parser.add_argument("--quick", action="store_true", help="few networks and days: seconds")
    size = QUICK if parser.parse_args().quick else FULL
    torch.set_num_threads(1)  # tensors are small: more threads only wait for one another
    with tempfile.TemporaryDirectory() as folder:
        tests = released_snapshots(size, Path(folder))
    train = tests.pop("train")
    tests["true feeder"] = true_snapshots(size.test_days)
    methods = {
        "no load at all": no_load,
        "mean of the twin": Mean(train[0]),
        "regression on the loads": Regression(train[0]),
        "linearised power flow": linearised,
        "graph network": learned(train, no_load, size.epochs),
        "linearised, then graph network": learned(train, linearised, size.epochs),
    }
    print(f"Voltage phasors of {FEEDER}: RMSE [p.u.], trained on a twin and {len(train) - 1} perturbed ones")
    print(f"{'':32}" + "".join(f"{name:>14}" for name in tests))
    for name, method in methods.items():
        untold = {"true feeder"} if isinstance(method, Mean) else set()  # the order of its buses is secret
        cells = ["-" if test in untold else f"{error(method, groups):.6f}" for test, groups in tests.items()]
        print(f"{name:32}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
