"""A data set of one's own: feeder, meters, sun and public choices of the config of a release.

PRIVATE unless `datasets.is_public` says otherwise. Rules, all public:

- A load point feeds the load or node that its service map names, or the load of its own name. Several at one
  load add up. Loads without a load point have those that feed nothing, or else all, in turn, scaled to their
  nominal power times `nodes.scale_factor`.
- Reactive load is what the meters read; without such readings it follows the declared power factor.
- All load points are one class with one Gaussian, as in the paper's experiments, whatever classes a release
  has; readings are cut to the widest declared margins before a logarithm is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dp_powerflow import Config, Feeder, LoadHistory
from dp_powerflow.config import TrueNetwork
from dp_powerflow.errors import LoadDataError
from dp_powerflow.lowlevel import Network, Plain, PrivacyUnit, Structured
from dp_powerflow.model.options import tan_theta_of
from dp_powerflow.pipeline.customers import declared_classes, declared_factors
from dp_powerflow.pipeline.inputs import (
    class_names,
    feeder_of,
    fit_options_of,
    irradiance_of,
    meters_of,
    solar_of,
)
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, kw_to_pu
from dp_powerflow_paper.datasets import Dataset, ExperimentOptions, pv_words

RADIUS = 1e-6
"""r where a config has none: with diverse loads the paper's 1e-4 meets no ε of its grid."""
CALIBRATION_FLOOR = 0.1
_ONE_KW = 1.0


def open_own(config: Config, options: ExperimentOptions) -> Dataset:
    """The data set of a config.

    Raises
    ------
    DpPowerflowError : a file cannot be used, or the load points have no public scale although the model is
        relative to one.
    """
    feeder = feeder_of(config)
    history = meters_of(config, feeder).history
    loaded, nominal_kw = feeder.loaded_nodes()
    if not len(loaded):
        raise LoadDataError(
            "no node of the feeder has a nominal active load; an experiment has nothing to draw"
        )
    scale_kw = _scales(config, history)
    node_kw = (
        nominal_kw * config.nodes.scale_factor if config.model.use_scale else np.full(len(loaded), _ONE_KW)
    )
    tangent = _tangents(config, feeder, history)
    relative = history.load_kw / scale_kw[:, None, None]
    places = place(feeder, history, scale_kw, config)
    shares = places.shares(feeder, len(scale_kw), tangent if history.load_kvar is None else None)
    irradiance = irradiance_of(config, feeder, history.n_steps) if options.pv else None
    solar = solar_of(config, feeder, irradiance)
    sun = None if solar.generation is None else solar.generation.select(np.arange(history.n_days))
    control = solar.voltvar if options.volt_var else None
    pv = "without PV" if sun is None else pv_words(feeder, control)
    network = config.network
    return Dataset(
        name=options.label,
        feeder=feeder,
        network=Network(feeder),
        history=_one_class(history, relative),
        relative=relative if history.load_kvar is None else _complex(relative, history, scale_kw),
        shares=shares,
        nominal=np.asarray(kw_to_pu(node_kw, feeder.base_mva) * (1.0 + 1j * tangent), dtype=np.complex128),
        margins=_margins(config, history),
        radius=network.radius if isinstance(network, TrueNetwork) else RADIUS,
        estimator=Plain() if config.model.estimator == "plain" else Structured(),
        calibration_floor=CALIBRATION_FLOOR,
        words=f"{history.n_load_points} load points, {history.n_days} days of {history.n_steps} steps, on "
        f"the feeder of the config {pv}; {places.words}",
        generation=sun,
        voltvar=None if sun is None else control,
        unit=PrivacyUnit(config.model.unit),
        variance_floor=config.model.variance_floor,
        controls=options.controls,
    )


@dataclass(frozen=True)
class Places:
    """Which load point feeds what.

    Attributes
    ----------
    at_load : (load point, load, kW that a relative load of 1 stands for).
    at_node : (load point, node, the same).
    metered, loads : loads that have load points of their own, and all.
    """

    at_load: tuple[tuple[int, int, float], ...]
    at_node: tuple[tuple[int, int, float], ...]
    metered: int
    loads: int

    @property
    def words(self) -> str:
        """How the loads got theirs."""
        if self.metered == self.loads:
            return f"all {self.loads} loads have meters of their own"
        return (
            f"{self.metered} of {self.loads} loads have meters of their own, the others load points in turn"
        )

    def shares(self, feeder: Feeder, points: int, tangent: FloatArray | None) -> sp.csr_array:
        """Complex (loaded node, load point) [p.u. per relative load]; tangents of the nodes add q."""
        columns = feeder.load_shares.tocsc()
        entries = [(node, point, complex(kw)) for point, node, kw in self.at_node]
        for point, load, kw in self.at_load:
            first, last = columns.indptr[load : load + 2]
            found = zip(columns.indices[first:last], columns.data[first:last], strict=True)
            entries += [(int(node), point, complex(share * kw)) for node, share in found]
        rows, of, values = zip(*entries, strict=True)
        powers = np.array(values) / (feeder.base_mva * KW_PER_MW)
        everywhere = sp.csr_array((powers, (rows, of)), shape=(len(feeder.nodes), points))
        found = everywhere[feeder.retained[feeder.loaded_nodes()[0]]]
        return sp.csr_array(found if tangent is None else sp.diags_array(1.0 + 1j * tangent) @ found)


def place(feeder: Feeder, history: LoadHistory, scale_kw: FloatArray, config: Config) -> Places:
    """Load points to loads and nodes, by the rules of this module."""
    loads = {load.name.lower(): k for k, load in enumerate(feeder.loads)}
    loaded = feeder.retained[feeder.loaded_nodes()[0]].tolist()
    nodes = {feeder.nodes[k].lower(): k for k in loaded}
    at_load, at_node = [], []
    for point, (own, named) in enumerate(zip(history.load_points, history.node_of, strict=True)):
        name = (own if named is None else named).lower()
        if name in loads:
            at_load.append((point, loads[name], float(scale_kw[point])))
        elif name in nodes:
            at_node.append((point, nodes[name], float(scale_kw[point])))
    used = {point for point, _, _ in (*at_load, *at_node)}
    free = [point for point in range(history.n_load_points) if point not in used]
    pool = free or list(range(history.n_load_points))
    fed = {node for _, node, _ in at_node}
    metered = {load for _, load, _ in at_load} | {k for k in range(len(loads)) if fed & _nodes_of(feeder, k)}
    count = len(metered)
    without = [k for k, load in enumerate(feeder.loads) if k not in metered and load.kw > 0.0]
    if config.model.use_scale:
        factor = config.nodes.scale_factor
        at_load += [(pool[i % len(pool)], k, feeder.loads[k].kw * factor) for i, k in enumerate(without)]
    else:  # a release draws a load point for every node then, whatever its nominal load
        fed |= {node for k in metered for node in _nodes_of(feeder, k)}
        left = [node for node in loaded if node not in fed]
        at_node += [(pool[i % len(pool)], node, _ONE_KW) for i, node in enumerate(left)]
    return Places(tuple(at_load), tuple(at_node), count, len(feeder.loads))


def _nodes_of(feeder: Feeder, load: int) -> set[int]:
    shares = feeder.load_shares
    return set(shares.indices[shares.indptr[load] : shares.indptr[load + 1]].tolist())


def _scales(config: Config, history: LoadHistory) -> FloatArray:
    """(load point,) public scale [kW]; 1 kW where the model is not relative to one."""
    if not config.model.use_scale:
        return np.full(history.n_load_points, _ONE_KW)
    if history.scale_kw is None:
        raise LoadDataError(
            "the load points have no public scale; add the column scale_kw to loads.services, or set "
            "model.use_scale to false and model.bounds in kW"
        )
    return history.scale_kw


def _one_class(history: LoadHistory, relative: FloatArray) -> LoadHistory:
    """The history that models are fitted to: relative loads without labels."""
    count = history.n_load_points
    return replace(
        history, load_kw=relative, load_kvar=None, scale_kw=np.ones(count), class_label=(None,) * count
    )


def _complex(relative: FloatArray, history: LoadHistory, scale_kw: FloatArray) -> ComplexArray:
    assert history.load_kvar is not None
    return relative + 1j * history.load_kvar / scale_kw[:, None, None]


def _margins(config: Config, history: LoadHistory) -> tuple[float, float]:
    """The widest declared margins of the relative load."""
    names = class_names(config, history.class_label)
    return fit_options_of(config, names).widest(names)


def _tangents(config: Config, feeder: Feeder, history: LoadHistory) -> FloatArray:
    """(loaded,) tan θ as declared: of the load, of its class, of all."""
    section, loaded = config.model, feeder.loaded_nodes()[0]
    own = declared_factors(config, feeder, loaded)
    of_class = section.power_factor_of_class
    if section.private_classes or not of_class:
        return np.where(np.isfinite(own), own, tan_theta_of(section.power_factor))
    classes = declared_classes(config, feeder, loaded, class_names(config, history.class_label)[0])
    others = [tan_theta_of(of_class.get(name, section.power_factor)) for name in classes]
    return np.where(np.isfinite(own), own, others)
