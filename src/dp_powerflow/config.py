"""One TOML file that says everything about a release; unknown keys are errors that name the nearest key.

Nothing in it is secret, and nothing in it may be tuned on the private data: what the data owner writes here
is declared public, and the manifest repeats it.
"""

from __future__ import annotations

import datetime as dt
import difflib
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from dp_powerflow._names import RELEASE_ID, TWIN_ID
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.grid.feeder import Protected
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.twin.design import TwinDesign

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
TwinId = Annotated[str, Field(pattern=TWIN_ID)]
ReleaseId = Annotated[str, Field(pattern=RELEASE_ID)]


_LEAST_POWER_FACTOR = 0.01


def _not_zero(factor: float) -> float:
    if abs(factor) < _LEAST_POWER_FACTOR:
        raise ValueError(
            f"a power factor of 0, or less than {_LEAST_POWER_FACTOR}, has no active load to speak of; give "
            "cos θ, negative where it is leading"
        )
    return factor


PowerFactor = Annotated[float, Field(ge=-1.0, le=1.0), AfterValidator(_not_zero)]
"""cos θ of a load, as OpenDSS writes it: positive where it is lagging (inductive), negative where leading."""
Margins = tuple[Positive, Positive]


class StorageUrl(str):
    """URL of a folder in an object store, such as 's3://bucket/release'; kept as it is written."""

    __slots__ = ()

    def __truediv__(self, name: str) -> StorageUrl:
        return StorageUrl(f"{self.rstrip('/')}/{name}")


def _path_or_url(value: object) -> Path | StorageUrl:
    if isinstance(value, str) and "://" in value:
        return StorageUrl(value)
    if isinstance(value, str | Path):
        return Path(value)
    raise ValueError("give a path, or a URL such as s3://bucket/release")


def _unrelated(value: object) -> Unrelated | None:
    if value is None or isinstance(value, Unrelated):  # a fleet makes its own
        return value
    try:
        return Unrelated.from_table(value)
    except PrivacyError as error:
        raise ValueError(str(error)) from None


# Not part of any request: it decides which account is charged, not what is released.
Reason = Annotated[Unrelated | None, PlainValidator(_unrelated), Field(exclude=True)]


class Section(BaseModel):
    """A table of a config: unknown keys are errors, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FeederSection(Section):
    """The network; PRIVATE but for what is named in `declared public` of the manifest."""

    source: str
    taps: Path | None = None
    loads: Path | None = None
    base_mva: Positive = 1.0
    drop_islanded: bool = False


class LoadsSection(Section):
    """Where the meter data are, and the declared facts about them.

    Nothing is spent where more than a share `most_placeholders` of the load points would be placeholders for
    want of readings, where more than a share `most_clipped` has most of its loads outside `model.bounds`, or
    where readings look like another unit. `typical_kw` is the public mean load of a typical customer [kW],
    such as its yearly energy over 8,760 h: with it a factor of 4 in the whole file is seen.
    `on_suspect_unit = "keep"` only reports a suspect unit.
    """

    kind: Literal["simulated", "long", "wide", "opendss-shapes"]
    path: Path | None = None
    services: Path | None = None
    classes: Path | None = None
    unit: str = "kW"
    interval_label: str = "start"
    time_zone: str = "UTC"
    step_minutes: Annotated[int, Field(gt=0)] = 15
    first_day: dt.date | None = None
    last_day: dt.date | None = None
    customer_column: str = "customer"
    time_column: str = "time"
    active_column: str = "active"
    reactive_column: str | None = None
    most_placeholders: Share = 0.05
    most_clipped: Share = 0.05
    typical_kw: Positive | None = None
    on_suspect_unit: Literal["error", "keep"] = "error"
    load_points: Annotated[int, Field(ge=2)] = 1000
    days: Annotated[int, Field(ge=1)] = 365
    seed: int = 0

    @model_validator(mode="after")
    def _has_a_path(self) -> LoadsSection:
        if self.kind != "simulated" and self.path is None:
            raise ValueError(f"loads of kind '{self.kind}' need a path")
        if self.kind != "opendss-shapes" and self.classes is not None:
            raise ValueError(
                f"loads.classes is for loads of kind 'opendss-shapes', not '{self.kind}'; meter data have "
                "their classes in the column 'class' of loads.services, simulated loads have their own"
            )
        return self


class ModelSection(Section):
    """Budget and public choices of the load model."""

    epsilon: Positive
    delta: Probability = 1e-5
    unit: Literal["load-point", "load-point-day"] = "load-point"
    estimator: Literal["structured", "plain"] = "structured"
    private_classes: Annotated[int, Field(ge=0)] = 0
    components: Annotated[int, Field(ge=1)] = 1
    use_scale: bool = True
    bounds: Margins = (1e-3, 3.0)
    bounds_of_class: dict[str, Margins] = Field(default_factory=dict)
    variance_floor: Positive = 1e-3
    power_factor: PowerFactor = 0.95
    power_factor_of_class: dict[str, PowerFactor] = Field(default_factory=dict)
    reactive_spread: Positive = 0.15
    reactive_correlation_minutes: Positive = 120.0
    reuse: str | None = None


class NodesSection(Section):
    """Declared-public facts of the nodes: class, customers, scale and power factor of what is drawn there.

    On a twin a load is the sum of as many customers as its nominal kW holds `kw_per_customer`, unless the
    service map or the load table counts them. On the true network it is one draw times `scale_factor`.
    """

    load_class: str | None = None
    kw_per_customer: Positive = 1.5
    kw_per_customer_of_class: dict[str, Positive] = Field(default_factory=dict)
    class_of_load: dict[str, str] = Field(default_factory=dict)
    power_factor_of_load: dict[str, PowerFactor] = Field(default_factory=dict)
    scale: Literal["nominal"] = "nominal"
    scale_factor: Positive = 1.0


class PVSection(Section):
    """Public irradiance and control of the feeder's PV systems.

    The irradiance is that of a file, or of a year without clouds at a latitude [degrees].
    """

    irradiance: Path | None = None
    latitude: Annotated[float, Field(ge=-90.0, le=90.0)] | None = None
    first_day_of_year: Annotated[int, Field(ge=1, le=366)] = 1
    volt_var: Literal["none", "category A", "category B", "file"] = "none"

    @model_validator(mode="after")
    def _has_one_sun(self) -> PVSection:
        if (self.irradiance is None) == (self.latitude is None):
            raise ValueError(
                "the sun of [pv] is either a file (irradiance) or a clear sky (latitude); give one of the two"
            )
        if self.irradiance is not None and self.first_day_of_year != 1:
            raise ValueError(
                "first_day_of_year is for a clear sky; a file of irradiance starts with its first line: "
                "remove it"
            )
        return self


class NetworkSection(Section):
    """What the network is promised: the mode is named, never a default.

    Every mode has a section of its own below; `Network` is their union, told apart by `mode`.
    """

    mode: str
    epsilon: Positive
    delta: Probability

    random_reactive: ClassVar[bool] = True
    """Whether reactive load is drawn at random; without it a load has a fixed power factor."""


class TrueNetwork(NetworkSection):
    """Power flow on the true network, and internal evidence for a policy about it."""

    mode: Literal["true-network"]
    bound: Literal["paper", "corrected", "full-support"]
    radius: Positive
    calibration_days: Annotated[int, Field(ge=20)] = 1000
    line_change: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    line_draws: Annotated[int, Field(ge=0)] = 0
    require_evidence: bool = True

    @property
    def random_reactive(self) -> bool:  # type: ignore[override]
        """The paper's bound, printed or corrected, is for fixed power factors."""
        return self.bound == "full-support"


AlsoPublished = Annotated[
    tuple[Literal["loads", "head", "states"], ...],
    AfterValidator(lambda chosen: tuple(sorted(set(chosen)))),
]
"""What a release on a twin holds beside its voltages, in whatever order it is written: power drawn and
injected at the released nodes, power of the sources, taps and states of capacitors."""


class TwinNetwork(NetworkSection):
    """Power flow on a differentially private twin: what its noise covers, and what of it is published.

    Figures that the noise does not cover are declared public.
    """

    mode: Literal["twin-network"]
    id: TwinId
    change: Positive = 0.05
    delta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    noise: Literal["laplace", "gaussian"] = "laplace"
    lines: Literal["impedance", "length"] = "impedance"
    transformers: bool = False
    capacitors: bool = False
    pv: bool = False
    charging_epsilon: Positive | None = None
    code_epsilon: Positive | None = None
    x_ohm_per_km: Positive = 0.4
    c_nf_per_km: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 10.0
    publish: Literal["voltages", "network", "network and loads"] = "voltages"
    graph_days: Annotated[int, Field(ge=1)] | None = None
    released: Literal["loaded", "all"] = "loaded"
    controls: Literal["frozen", "snapshot", "day"] = "day"
    also_publish: AlsoPublished = ("loads", "head", "states")

    @property
    def protected(self) -> Protected:
        """The figures that the noise covers."""
        return Protected(
            lines=self.lines,
            transformers=self.transformers,
            capacitors=self.capacitors,
            pv=self.pv,
            charging=self.charging_epsilon is not None,
            codes=self.code_epsilon is not None,
            x_ohm_per_km=self.x_ohm_per_km,
            c_nf_per_km=self.c_nf_per_km,
        )

    @cached_property
    def design(self) -> TwinDesign:
        """The public constants of the twin."""
        return TwinDesign(
            epsilon=self.epsilon,
            change=self.change,
            protected=self.protected,
            noise=self.noise,
            delta=self.delta,
            charging_epsilon=self.charging_epsilon,
            code_epsilon=self.code_epsilon,
        )

    @model_validator(mode="after")
    def _has_one_network(self) -> TwinNetwork:
        if self.publish != "voltages" and self.controls != "frozen":
            raise ValueError(
                "tables for graph models hold one admittance matrix, and taps that act change it from step "
                'to step; set network.controls = "frozen", or network.publish = "voltages"'
            )
        return self

    @model_validator(mode="after")
    def _can_be_drawn(self) -> TwinNetwork:
        try:
            _ = self.design
        except PrivacyError as error:
            raise ValueError(str(error)) from None
        return self


Network = Annotated[TrueNetwork | TwinNetwork, Field(discriminator="mode")]
"""The modes of a release. A new mode is a section here and a file in `pipeline/modes/`."""


class ReleaseSection(Section):
    """What is written, and where."""

    id: ReleaseId
    days: Annotated[int, Field(ge=1)]
    output: Annotated[Path | StorageUrl, PlainValidator(_path_or_url)]
    state: Path
    solver: Literal["batch", "opendss"] = "batch"
    epsilon_cap: Positive | None = None
    network_epsilon_cap: Positive | None = None
    network_delta_cap: Probability | None = None
    continues_loads: str | None = None
    continues_network: str | None = None
    unrelated_loads: Reason = None
    unrelated_network: Reason = None
    insecure_seed: int | None = None


class Config(Section):
    """Everything about one release."""

    feeder: FeederSection
    loads: LoadsSection
    model: ModelSection
    nodes: NodesSection = NodesSection()
    pv: PVSection | None = None
    network: Network
    release: ReleaseSection

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_keys(cls, raw: Any) -> Any:
        return refuse_old_keys(raw)

    @model_validator(mode="after")
    def _has_a_solver(self) -> Config:
        acting = isinstance(self.network, TwinNetwork) and self.network.controls != "frozen"
        if acting and self.release.solver != "batch":
            raise ValueError(
                f"release.solver = '{self.release.solver}' solves with fixed taps; set network.controls = "
                '"frozen" beside it, or leave release.solver out'
            )
        return self

    @model_validator(mode="after")
    def _has_nodes_of_its_mode(self) -> Config:
        stated, twin = self.nodes.model_fields_set, isinstance(self.network, TwinNetwork)
        if twin and "scale_factor" in stated:
            raise ValueError(
                "nodes.scale_factor is of mode 'true-network'; on a twin a load is a sum of customers: "
                "remove it, and set nodes.kw_per_customer, the nominal kW of a load that stand for one"
            )
        strangers = sorted(stated & {"kw_per_customer", "kw_per_customer_of_class"})
        if not twin and strangers:
            raise ValueError(
                f"nodes.{strangers[0]} is of mode 'twin-network'; on the true network a node is one draw "
                "times its nominal load and nodes.scale_factor: remove it"
            )
        return self

    @model_validator(mode="after")
    def _has_one_partition(self) -> Config:
        if self.loads.classes is not None and self.model.private_classes:
            raise ValueError(
                "loads.classes declares the classes public, and model.private_classes finds them privately; "
                "remove one of the two"
            )
        return self


_SPREADS = ("length", "resistance", "reactance", "transformer", "capacitor", "pv")


def refuse_old_keys(raw: Any) -> Any:
    """Say where keys of earlier versions have moved, of a config that is not checked yet."""
    sections = raw if isinstance(raw, dict) else {}
    nodes, network = (_mapping(sections.get(name)) for name in ("nodes", "network"))
    if "twin" in sections:
        raise ValueError(
            "there is no section [twin] any more; move its keys into [network] of mode 'twin-network', or "
            "remove it on the true network"
        )
    if "released" in nodes:
        raise ValueError(
            "nodes.released is now network.released of mode 'twin-network'; move it there, or remove it on "
            "the true network, which releases nodes with a load only: the voltage of a node without a random "
            "load is an exact linear function of the others, and its coefficients are the network"
        )
    spreads = [name for name in _SPREADS if isinstance(network.get(name), float)]
    if network.get("mode") == "twin-network" and spreads:
        raise ValueError(
            f"network.{spreads[0]} was a spread of version 0.2; a twin now takes its noise from "
            "network.epsilon and network.change: set network.lines to 'impedance' or 'length', and "
            "transformers, capacitors or pv to true where they are to be protected"
        )
    strangers = [name for name in ("bound", "radius") if name in network]
    if network.get("mode") == "twin-network" and strangers:
        raise ValueError(f"network.{strangers[0]} is of mode 'true-network'; remove it from [network]")
    return raw


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_config(path: Path) -> Config:
    """Read a TOML file; paths in it are relative to it."""
    raw = read_toml(path, "config file", "write one with 'dp-powerflow init'")
    return parse_config(raw, base=path.resolve().parent)


def read_toml(path: Path, what: str, otherwise: str) -> dict[str, Any]:
    """The content of a TOML file; `what` it is and what to do `otherwise`, for the errors."""
    if not path.is_file():
        raise ConfigError(f"{what} {path} does not exist; {otherwise}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {path} is not valid TOML: {error}") from None


def parse_config(raw: dict[str, Any], base: Path = Path()) -> Config:
    """Check a config given as a dictionary."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(sentence_of(error)) from None
    return _with_absolute_paths(config, base)


def _with_absolute_paths(config: Config, base: Path) -> Config:
    sections = absolute_sections(config, base)
    source = config.feeder.source
    if source.lower().endswith((".dss", ".json")):
        sections["feeder"] = sections["feeder"].model_copy(update={"source": str(base / source)})
    return config.model_copy(update=sections)


def absolute_sections(config: Section, base: Path) -> dict[str, Section]:
    """The sections of a config, by their names; paths in them are relative to `base` no more."""
    return {
        name: section.model_copy(update={key: base / path for key, path in section if isinstance(path, Path)})
        for name, section in config
        if isinstance(section, Section)
    }


def sentence_of(error: ValidationError, model: type[BaseModel] = Config) -> str:
    """The first problem of a config of the given kind, as one sentence that says what to do."""
    found = error.errors()
    # A misspelt key also shows as a missing one; the spelling is what to say.
    first = next((item for item in found if item["type"] == "extra_forbidden"), found[0])
    where, known = _place(first["loc"], model)
    name = ".".join(where)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.0)
        return (
            f"the config has an unknown key '{name}'; did you mean '{near[0]}'?"
            if near
            else f"unknown key '{name}'"
        )
    if first["type"] == "union_tag_not_found":
        first, name = {**first, "type": "missing"}, f"{name}.mode"
    if first["type"] == "missing":
        return f"the config lacks '{name}'; add it ('dp-powerflow init' writes an example with every key)"
    detail = first["msg"].removeprefix("Value error, ")
    if first["type"] == "union_tag_invalid":
        name, detail = f"{name}.mode", f"it is one of {first['ctx']['expected_tags']}"
    return f"the config's '{name}' is not usable: {detail}" if name else f"the config is not usable: {detail}"


def _place(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The key that an error is about, part by part, and the keys that its section knows."""
    path: list[str] = []
    sections: list[type[BaseModel]] = [model]
    known: list[str] = []
    for part in map(str, location):
        tagged = [section for section in sections if part in _tags(section)]
        if tagged:  # the errors of a union name its member by the mode, which is no key
            sections = tagged
            continue
        path.append(part)
        known = [key for section in sections for key in section.model_fields]
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [found for field in fields for found in _sections_in(field.annotation)]
    return path, known


def _tags(section: type[BaseModel]) -> tuple[Any, ...]:
    mode = section.model_fields.get("mode")
    return () if mode is None else get_args(mode.annotation)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold: X, X | None, or X | Y."""
    choices = get_args(annotation) or (annotation,)
    return [item for item in choices if isinstance(item, type) and issubclass(item, BaseModel)]
