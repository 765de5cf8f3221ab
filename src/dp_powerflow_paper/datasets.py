"""What an experiment is run with: its options, and the data set they ask for."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import scipy.sparse as sp

from dp_powerflow import (
    BatchSolver,
    Config,
    Feeder,
    LoadHistory,
    MeterFormat,
    OperatedSolution,
    OperatedSolver,
    Protected,
    open_feeder,
)
from dp_powerflow.errors import ConfigError, FeederError, LoadDataError, MissingExtraError, PrivacyError
from dp_powerflow.grid.feeder import GROUND, Load, PVSystem
from dp_powerflow.grid.sources import BUILT_IN, network_parameters
from dp_powerflow.loads.declared import IngestRules, ServiceMap, WideColumns
from dp_powerflow.loads.ingest import open_table, read_opendss_shapes, read_wide
from dp_powerflow.lowlevel import (
    ClassLaw,
    Estimator,
    Generation,
    LoadLaw,
    Network,
    Plain,
    PrivacyUnit,
    Quantity,
    Rebuilder,
    Solver,
    Structured,
    VoltVar,
    nominal_law,
    simulate_load_history,
)
from dp_powerflow.powerflow.batch import Columns, Nodes, checked_pair
from dp_powerflow.powerflow.devices import CATEGORY_B
from dp_powerflow.powerflow.operated import ControlMode
from dp_powerflow.powerflow.sun import read_irradiance
from dp_powerflow.units import KW_PER_MW, ComplexArray, FloatArray, IntArray

FILE = "kwh_15min.parquet"
HOME_KW = 8.0
"""Public scale of a home [kW]: a load of the feeder draws at its nominal power when its home draws this."""
LOWEST_KW, HIGHEST_KW = 0.02, 40.0
"""Public range of a home's load [kW]; readings are cut to it."""
_FORMAT = MeterFormat(unit="kWh per interval", interval_label="start", time_zone="UTC")


def swiss_history(folder: Path) -> LoadHistory:
    """Loads of the homes [kW], cut to their public range, with their public scale."""
    path = folder / FILE
    if not path.is_file():
        raise LoadDataError(f"{folder} is not the folder of the Swiss meters; it must hold {FILE}")
    rules = IngestRules(floor_kw=LOWEST_KW, on_export="floor")
    history = read_wide(path, _FORMAT, rules=rules).history
    return replace(
        history,
        load_kw=np.clip(history.load_kw, LOWEST_KW, HIGHEST_KW),
        scale_kw=np.full(history.n_load_points, HOME_KW),
    )


# prefix of a SimBench profile's name → family; the first match counts
_FAMILIES = {
    "H0": "household",
    "HS": "high voltage",
    "HLS": "home charging",
    "APLS": "public charging",
    "Air": "heat pump",
    "Soil": "heat pump",
    "lv_": "low voltage grid",
    "mv_": "medium voltage grid",
    "hv_": "high voltage grid",
    "BL": "commercial",
    "WB": "commercial",
    "G": "commercial",
    "L": "agricultural",
}
CUSTOMER_FAMILIES = ("household", "commercial", "agricultural")
_SIMBENCH = MeterFormat(
    unit="kW", interval_label="start", time_zone="Europe/Berlin", stamp_format="%d.%m.%Y %H:%M", delimiter=";"
)


def read_simbench(families: Collection[str] | None = None) -> LoadHistory:
    """SimBench load profiles of today, relative to their nominal power; needs the extra `[pandapower]`.

    A year (2016) of 15-minute profiles, published under the Open Database License. Every one is a load point
    of 1 kW, its family the public class. The file is read where the package lies, which is not imported.

    Parameters
    ----------
    families
        Families to keep, such as `CUSTOMER_FAMILIES`; None keeps all 96 profiles.
    """
    spec = find_spec("simbench")
    if spec is None or spec.origin is None:
        raise MissingExtraError("simbench", "pandapower")
    path = Path(spec.origin).parent / "networks" / "1-complete_data-mixed-all-0-sw" / "LoadProfile.csv"
    columns = open_table(path, _SIMBENCH).columns
    names = [name.removesuffix("_pload") for name in columns if name.endswith("_pload")]
    family = {
        name: next((own for prefix, own in _FAMILIES.items() if name.startswith(prefix)), "other")
        for name in names
    }
    kept = [name for name in names if families is None or family[name] in families]
    services = ServiceMap(
        load_point_of={name: name for name in kept},
        class_of={name: family[name] for name in kept},
        scale_kw_of=dict.fromkeys(kept, 1.0),
    )
    # What the profiles of whole grids feed in is dropped.
    rules = IngestRules(on_export="floor")
    declared = WideColumns(active_suffix="_pload", ignore=tuple(n for n in columns if n.endswith("_qload")))
    return read_wide(path, _SIMBENCH, declared, services=services, rules=rules).history


FIRST_DAY = dt.date(2019, 1, 1)
VARIANCE_FLOOR = 1e-4
"""Of every fit; the profiles' day covariance is singular without one (paper correction 15)."""
_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
"""Its multiples, modulo 1, fill the unit interval evenly from the first on."""


def oedi_sun(folder: Path, feeder: Feeder, steps: int) -> Generation:
    """A year of what the PV systems produce.

    The data set's temperature has no effect: its PV systems have no curve of power against temperature.
    """
    profiles = folder / "profiles" / "pv_profiles"
    systems = [system.name for system in feeder.pv]
    return Generation.from_irradiance(feeder, read_irradiance(profiles, steps, systems))


def oedi_history(folder: Path, feeder: Feeder) -> LoadHistory:
    """A year of the 91 loads [kW]; the profiles are multipliers of the feeder's nominal loads."""
    profiles = folder / "profiles" / "load_profiles"
    if not profiles.is_dir():
        raise LoadDataError(f"{folder} is not the OEDI folder; it must hold profiles/load_profiles")
    nominal = {load.name: load.kw for load in feeder.loads}
    return read_opendss_shapes(profiles, first_day=FIRST_DAY, nominal_kw=nominal).history


Progress = Callable[[int, int], None]
_FOLDERS = {"oedi": "the OEDI profiles", "reference": "the reference cases", "swiss": "the Swiss meters"}


def silent(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class ExperimentOptions:
    """How an experiment is run; nothing here is paid for, and nothing of private data leaves the state.

    Attributes
    ----------
    out : folder for the results; what it holds already is taken up again.
    oedi, swiss : folders of the OEDI profiles and of the Swiss meters, None if there is none.
    reference : folder of the reference cases of other systems, None if there is none.
    data : one of `DATASETS`, None for the OEDI profiles where they are and simulated customers otherwise.
    config : a release whose feeder, meters and sun are taken instead of a data set.
    pv : whether the PV systems of the data set are there, if it has any.
    volt_var : whether they follow the volt-var curve of category B; otherwise they keep unit power factor.
    controls : whether regulators act; "frozen" keeps the taps of the nominal load.
    quick : a small run, for a look; its figures are not those of the paper.
    calibration_days : days of a Monte Carlo calibration.
    seed : of every draw; results of an experiment are never a release.
    progress : told how much is done of how much.
    """

    out: Path
    oedi: Path | None = None
    reference: Path | None = None
    swiss: Path | None = None
    data: str | None = None
    config: Config | None = None
    pv: bool = True
    volt_var: bool = True
    controls: ControlMode = "frozen"
    quick: bool = False
    calibration_days: int = 1000
    seed: int = 0
    progress: Progress = silent

    def __post_init__(self) -> None:
        if self.data is not None and self.data not in DATASETS:
            raise ConfigError(f"there is no data set '{self.data}'; choose from {', '.join(DATASETS)}")
        if self.controls not in get_args(ControlMode):
            raise ConfigError(
                f"--controls is one of {', '.join(get_args(ControlMode))}, not '{self.controls}'"
            )
        if self.data is not None and self.config is not None:
            raise ConfigError("a config brings its own data; remove --data, or the config")

    @property
    def dataset(self) -> str:
        """Name of the data set that is used: that of the release of a config."""
        if self.config is not None:
            return self.config.release.id
        return self.data or ("simulated" if self.oedi is None else "oedi")

    @property
    def is_private(self) -> bool:
        """Whether the results are INTERNAL: all but data sets and configs made of public figures alone."""
        return self.config is not None and not is_public(self.config)

    @property
    def label(self) -> str:
        """Name of the data set with what was left out of it, for files."""
        acting = "" if self.controls == "frozen" else f"-controls-{self.controls}"
        if self.config is None and not DATASETS[self.dataset].has_pv:
            return self.dataset + acting
        without = "-no-pv" if not self.pv else "-no-volt-var" if not self.volt_var else ""
        return self.dataset + without + acting

    def folder(self, name: Literal["oedi", "reference", "swiss"]) -> Path:
        """One of the folders, for what cannot run without it."""
        found = {"oedi": self.oedi, "reference": self.reference, "swiss": self.swiss}[name]
        if found is None:
            raise ConfigError(f"this needs {_FOLDERS[name]}; name their folder with --{name}")
        return found


def is_public(config: Config) -> bool:
    """Whether a config names a public feeder and simulated loads, and no file about either."""
    source = config.feeder.source.lower()
    files = (config.feeder.taps, config.feeder.loads)
    public = source in BUILT_IN or source.startswith("simbench:")
    return public and config.loads.kind == "simulated" and files == (None, None)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A feeder, a history of load for its loads, and public generation of its PV systems for the same days.

    Only nodes with a load of their own have random loads and released voltages ("loaded nodes"); the others
    with PV are solved with them.

    Attributes
    ----------
    relative : (source, day, step) load over nominal load; complex where reactive load was read too.
    shares : sparse complex (loaded node, source): nodal load per unit of relative load [p.u.].
    nominal : complex (loaded node,) nominal load [p.u.].
    margins : p_min, p_max of the relative load; public.
    radius : r of the comparison [p.u.]; the paper's 1e-4 where the loads allow its formula to be met.
    estimator : of the load model.
    calibration_floor : variance added to the log loads where a calibration needs a law wider than all others.
    words : one sentence for the results.
    generation : public, its horizon the days of the history; None without PV.
    voltvar : control of the PV systems, None for unit power factor.
    unit, variance_floor : of every fit of the load model.
    controls : whether regulators act.
    """

    name: str
    feeder: Feeder
    network: Network
    history: LoadHistory
    relative: FloatArray | ComplexArray
    shares: sp.csr_array
    nominal: ComplexArray
    margins: tuple[float, float]
    radius: float
    estimator: Estimator
    calibration_floor: float
    words: str
    generation: Generation | None = None
    voltvar: VoltVar | None = None
    unit: PrivacyUnit = PrivacyUnit.LOAD_POINT_DAY
    variance_floor: float = VARIANCE_FLOOR
    controls: ControlMode = "frozen"

    def __post_init__(self) -> None:
        if self.shares.shape != (len(self.loaded), len(self.relative)) or len(self.nominal) != len(
            self.loaded
        ):
            raise LoadDataError("a data set needs the shares and nominal loads of exactly the loaded nodes")
        sun = self.generation
        if sun is not None and (sun.n_days, sun.steps) != (self.n_days, self.n_steps):
            raise LoadDataError(
                f"the irradiance has {sun.n_days} days of {sun.steps} steps and the load {self.n_days} of "
                f"{self.n_steps}; give both for the same days"
            )

    def solver(self, feeder: Feeder | None = None) -> Solver:
        """Solver of the feeder, or of a twin of it, with the controls of the data set."""
        network = self.feeder if feeder is None else feeder
        if self.controls == "frozen":
            return BatchSolver(network, voltvar=self.voltvar)
        return ActingSolver(network, controls=self.controls, steps=self.n_steps, voltvar=self.voltvar)

    @property
    def n_days(self) -> int:
        """Days of the history."""
        return int(self.relative.shape[1])

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.relative.shape[2])

    @cached_property
    def loaded(self) -> IntArray:
        """Positions among `feeder.retained` of the nodes with nominal load."""
        return self.feeder.loaded_nodes()[0]

    @cached_property
    def load_range(self) -> tuple[float, float]:
        """p_min, p_max over all loaded nodes [p.u.]."""
        scale = self.nominal.real
        return float(self.margins[0] * scale.min()), float(self.margins[1] * scale.max())

    @cached_property
    def identity(self) -> str:
        """Hash of network, loads, sun and control: results of another data set are never taken up."""
        digest = hashlib.sha256(repr((self.feeder.nodes, self.margins, self.radius)).encode())
        choices = (self.estimator, self.calibration_floor, self.unit, self.variance_floor)
        digest.update(repr((choices, self.history.days)).encode())
        y, sun = self.feeder.y, self.generation
        arrays = [y.data, y.indices, y.indptr, self.feeder.v_slack, self.relative, self.history.load_kw]
        arrays += [self.shares.toarray(), self.nominal]
        arrays += [] if sun is None else [sun.power, sun.shares.toarray()]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        control = self.voltvar
        digest.update(repr(None if control is None else (control.curves, control.curve_of.tolist())).encode())
        digest.update(b"" if self.controls == "frozen" else self.controls.encode())
        return digest.hexdigest()

    @cached_property
    def protected(self) -> Protected:
        """Impedances of lines, and transformers and capacitors where the feeder has them: all of a twin.

        Raises
        ------
        PrivacyError : no twin can be drawn of the feeder.
        """
        try:
            found = {key.quantity for key in network_parameters(self.feeder).levels}
            protected = Protected(
                transformers=Quantity.TRANSFORMER in found, capacitors=Quantity.CAPACITOR in found
            )
            source = Rebuilder(self.feeder, protected)
            source.check(source.parameters())
        except FeederError as error:
            raise PrivacyError(f"no twin can be drawn of this feeder: {error}") from None
        return protected

    def true_load(self, days: IntArray) -> ComplexArray:
        """Complex (day, step, loaded node) loads of some days [p.u.], at the nominal power factors."""
        chosen = self.relative[:, days].reshape(len(self.relative), -1)
        return np.ascontiguousarray((self.shares @ chosen).T).reshape(len(days), self.n_steps, -1)

    def sun(self, days: IntArray) -> Generation | None:
        """Generation of some days, in this order."""
        return None if self.generation is None else self.generation.select(days)

    def law(self, of_class: ClassLaw, q_size: float | None = None) -> LoadLaw:
        """One class at the loaded nodes, with their nominal loads and power factors."""
        return replace(nominal_law(self.nominal, of_class, q_size), positions=self.loaded)

    def of_days(self, days: IntArray) -> Dataset:
        """The same with some days only, in their order."""
        history = self.history.select(days=[self.history.days[day] for day in days])
        return replace(self, history=history, relative=self.relative[:, days], generation=self.sun(days))

    def spread_days(self, count: int) -> IntArray:
        """So many days, evenly spread over the year, in an order whose first few are spread as well."""
        if not 1 <= count <= self.n_days:
            raise LoadDataError(f"{count} days were asked of a history of {self.n_days}; ask for fewer")
        order = np.argsort(np.argsort(np.arange(count) * _GOLDEN % 1.0))
        return (order * self.n_days // count).astype(np.int64)


SIMULATED_LOAD_FACTOR = 4.0
"""Simulated customers draw a small part of their connection; times this they load the feeder by day."""
_LOWEST_SHARE = 0.01
"""Quantile of diverse loads taken as p_min: their smallest load would ask for an r next to nothing."""


@dataclass(frozen=True)
class Profiles:
    """A public source of load profiles, and what the comparison on them uses.

    Attributes
    ----------
    read : history of the options' profiles for a feeder.
    words : one sentence for the results; `{n}` is the number of load points.
    sun : generation of the feeder's PV systems for so many steps a day; None where there is no public one.
    factor : on every load.
    lowest : quantile of the loads taken as p_min.
    radius, estimator, calibration_floor : as of `Dataset`; the defaults are for diverse loads.
    """

    read: Callable[[ExperimentOptions, Feeder], LoadHistory]
    words: str
    sun: Callable[[ExperimentOptions, Feeder, int], Generation] | None = None
    factor: float = 1.0
    lowest: float = _LOWEST_SHARE
    radius: float = 1e-6
    estimator: Estimator = field(default_factory=Structured)
    calibration_floor: float = 0.1

    @property
    def has_pv(self) -> bool:
        """Whether there is a public irradiance to go with the loads."""
        return self.sun is not None

    def open(self, options: ExperimentOptions) -> Dataset:
        """Loads on IEEE 123, relative ones in the order of the feeder's: by name where names agree, else in
        turn."""
        has_pv = self.has_pv and options.pv
        feeder = open_feeder("ieee123-pv" if has_pv else "ieee123")
        history = self.read(options, feeder)
        if history.scale_kw is None:
            raise LoadDataError("the profiles of an experiment need a public scale to be relative to")
        of_point = self.factor * history.load_kw / history.scale_kw[:, None, None]
        position = {point.lower(): row for row, point in enumerate(history.load_points)}
        rows = [position.get(load.name, k % len(of_point)) for k, load in enumerate(feeder.loads)]
        unlabelled = replace(
            history,
            load_kw=of_point,
            load_kvar=None,
            scale_kw=np.ones(len(of_point)),
            class_label=(None,) * len(of_point),
        )
        loaded = feeder.retained[feeder.loaded_nodes()[0]]
        sun = self.sun(options, feeder, history.n_steps) if self.sun and has_pv else None
        voltvar = VoltVar.for_feeder(feeder, CATEGORY_B) if has_pv and options.volt_var else None
        return Dataset(
            name=options.label,
            feeder=feeder,
            network=Network(feeder),
            history=unlabelled,
            relative=of_point[rows],
            shares=sp.csr_array(feeder.load_shares.tocsr()[loaded] * feeder.nominal_load[None, :]),
            nominal=np.asarray(-feeder.nominal_injection[loaded]),
            margins=(float(np.quantile(of_point, self.lowest)), float(of_point.max())),
            radius=self.radius,
            estimator=self.estimator,
            calibration_floor=self.calibration_floor,
            words=f"{self.words.format(n=history.n_load_points)} {pv_words(feeder, voltvar)}",
            generation=sun,
            voltvar=voltvar,
            controls=options.controls,
        )


def pv_words(feeder: Feeder, voltvar: VoltVar | None) -> str:
    """What the feeder's PV systems do."""
    if not feeder.pv:
        return "without PV"
    control = "at unit power factor" if voltvar is None else "under volt-var control"
    return f"with {len(feeder.pv)} PV system{'s' * (len(feeder.pv) > 1)} {control}"


DATASETS: Mapping[str, Profiles] = MappingProxyType(
    {
        "oedi": Profiles(
            lambda options, feeder: oedi_history(options.folder("oedi"), feeder),
            "OEDI profiles (91 load points, one year, 15 minutes) on IEEE 123",
            sun=lambda options, feeder, steps: oedi_sun(options.folder("oedi"), feeder, steps),
            lowest=0.0,
            radius=1e-4,
            # The paper's own. The structured one had ten times the variance here, up to model format 2.
            estimator=Plain(),
            calibration_floor=1.0,
        ),
        "simbench": Profiles(
            lambda options, feeder: read_simbench(CUSTOMER_FAMILIES),
            "{n} SimBench customer profiles, in turn, on IEEE 123",
        ),
        "swiss": Profiles(
            lambda options, feeder: swiss_history(options.folder("swiss")),
            "{n} Swiss homes (seven weeks, 15 minutes), in turn, on IEEE 123",
        ),
        "simulated": Profiles(
            lambda options, feeder: simulate_load_history(len(feeder.loads), n_days=365, seed=options.seed),
            "{n} simulated customers on IEEE 123",
            factor=SIMULATED_LOAD_FACTOR,
        ),
    }
)
"""By name; those without a public irradiance that goes with their loads have no PV."""


def open_dataset(options: ExperimentOptions) -> Dataset:
    """The data set of the options: a public one, or one's own."""
    if options.config is not None:
        from dp_powerflow_paper.owndata import open_own  # it makes a `Dataset`

        return open_own(options.config, options)
    return DATASETS[options.dataset].open(options)


class ActingSolver(OperatedSolver):
    """Solves nodal loads of constant power with acting controls.

    Parameters
    ----------
    feeder : with its `operation`.
    controls, steps, threads : as of `OperatedSolver`.
    voltvar : one curve at every node with PV, or None.
    """

    columns: Columns = "nodes"

    def __init__(
        self,
        feeder: Feeder,
        *,
        controls: ControlMode = "day",
        steps: int = 1,
        threads: int | None = None,
        voltvar: VoltVar | None = None,
    ) -> None:
        self._of = feeder
        self._fed = np.flatnonzero(np.isin(feeder.retained, feeder.pv_shares.indices))
        curve = None if voltvar is None else voltvar.curves[0]
        nodal = _nodal(feeder, self._fed.tolist())
        super().__init__(nodal, controls=controls, steps=steps, threads=threads, volt_var=curve)
        self._settings = {"controls": controls, "steps": steps, "voltvar": voltvar}

    @property
    def feeder(self) -> Feeder:
        """The network that is solved."""
        return self._of

    def solve(
        self,
        load: ComplexArray,
        generation: ComplexArray | None = None,
        *,
        nodes: Nodes = "retained",
        out: ComplexArray | None = None,
    ) -> OperatedSolution:
        """Voltages of every snapshot; parameters as of `BatchSolver.solve`."""
        load, injected = checked_pair(self._of, load, generation)
        fed = np.ascontiguousarray(injected[:, self._fed]) if len(injected) else None
        return super().solve(load, fed, nodes=nodes, out=out)


def _nodal(feeder: Feeder, fed: list[int]) -> Feeder:
    """The feeder with one load of constant power at every retained node, and a PV system where it has any."""
    kw = -feeder.nominal_injection[feeder.retained] * feeder.base_mva * KW_PER_MW
    nodes = [feeder.nodes[k] for k in feeder.retained]
    loads = [
        Load(name, ((int(at), GROUND),), float(power.real), float(power.imag), "wye")
        for name, at, power in zip(nodes, feeder.retained, kw, strict=True)
    ]
    pv = [PVSystem(nodes[k], ((int(feeder.retained[k]), GROUND),), 0.0, 0.0) for k in fed]
    return replace(feeder, loads=tuple(loads), pv=tuple(pv))
