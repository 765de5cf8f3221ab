"""What a derived release is computed from, and what every kind of one gives back.

A study holds a twin, loads drawn from a released model, and public choices; nothing else. So whatever is
computed from it has the guarantees of the release it came from, for any function and any number of days.
"""

from __future__ import annotations

import importlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, ValidationError

from dp_powerflow._threads import in_order
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.errors import ConfigError
from dp_powerflow.page import Axis, Item, NetworkMap, environment
from dp_powerflow.units import FloatArray, IntArray

if TYPE_CHECKING:
    from dp_powerflow.grid.feeder import Feeder, Line
    from dp_powerflow.model.sample import LoadBlock, LoadSource, PlacedLaw
    from dp_powerflow.powerflow.batch import Solver
    from dp_powerflow.powerflow.sun import Generation

Progress = Callable[[int, int], None]
Result = TypeVar("Result")
_MOST_COUNT = 65_535
"""Of a figure on a map."""


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """A network to study with its drawn loads.

    Attributes
    ----------
    feeder : the twin; in experiments on public data also a true network.
    source : blocks of drawn days, the same that the release has solved.
    make_solver : solver of the feeder with a number of threads, None for all cores, as the release solves it:
        operated where its controls act (columns are loads), else of the fixed frame.
    generation : public generation of every day; None without any.
    released : indices in `feeder.nodes` of the released nodes, in the order of `nodes.parquet`.
    node_ids : name of every released node, as in `nodes.parquet`.
    connections : buses and what joins them under their public names, as in the release; None where the
        release publishes none.
    customers : (load of the feeder,) public number of customers, 0 for a load without any.
    irradiance : (day, step) public share of peak irradiance of new PV, day d modulo its days.
    scales_down : whether snapshots without solution are scaled down as in the release.
    file_names : whether settings may call buses and lines as the feeder's file does. Settings are published,
        so where these names are the owner's only public names are understood.
    """

    feeder: Feeder
    source: LoadSource
    make_solver: Callable[[int | None], Solver]
    released: IntArray
    node_ids: tuple[str, ...]
    generation: Generation | None = None
    connections: Connections | None = None
    customers: IntArray | None = None
    irradiance: FloatArray | None = None
    scales_down: bool = True
    file_names: bool = True

    @property
    def days(self) -> int:
        """Drawn days."""
        return self.source.n_days

    @property
    def steps(self) -> int:
        """T."""
        return self.source.law.steps

    @cached_property
    def public_bus(self) -> dict[int, str]:
        """Released node of the feeder → public name of its bus; none without published connections."""
        found = self.connections
        if found is None:
            return {}
        names = (found.bus_ids[bus] for bus in found.bus_of.tolist())
        return dict(zip(self.released.tolist(), names, strict=True))

    def __repr__(self) -> str:
        return f"Study({len(self.feeder.nodes)} nodes, {self.days} days of {self.steps} steps)"


def each_in_order(
    function: Callable[[int], Result], count: int, workers: int | None, progress: Progress | None
) -> Iterator[Result]:
    """Results for 0 … count − 1 in their order, from a number of threads."""
    for done, found in enumerate(in_order(function, range(count), workers), start=1):
        yield found
        if progress is not None:
            progress(done, count)


@dataclass(frozen=True)
class GivenLaw:
    """Where given loads belong; see `PlacedLaw`."""

    steps: int
    base_mva: float
    positions: IntArray | None = None
    shares: sp.csr_array | None = None


@dataclass(frozen=True, eq=False, repr=False)
class GivenDays:
    """Loads that are given, as a source of days.

    Attributes
    ----------
    law : where they belong.
    load_kw, load_kvar : (column, day, step) [kW], [kvar].
    block_days : days of a block.
    """

    law: PlacedLaw
    load_kw: FloatArray
    load_kvar: FloatArray
    block_days: int = 2

    @property
    def n_days(self) -> int:
        """Days of all blocks."""
        return int(self.load_kw.shape[1])

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_days // self.block_days)

    def block(self, index: int) -> LoadBlock:
        """Some consecutive days."""
        first = index * self.block_days
        kw, kvar = (load[:, first : first + self.block_days] for load in (self.load_kw, self.load_kvar))
        from dp_powerflow.model.sample import LoadBlock

        return LoadBlock(first, np.ascontiguousarray(kw), np.ascontiguousarray(kvar))


@dataclass(frozen=True, eq=False)
class Findings:
    """What a kind of study found. All of it is published.

    Attributes
    ----------
    tables : file name → table; large ones in parts (`dispatch/part-00000.parquet`).
    figures : plain values for manifest, page and `--json`; rounded, without timings. With the settings they
        hold what the sentences of the kind say.
    items : figures and tables of the page.
    """

    tables: Mapping[str, pa.Table]
    figures: Mapping[str, Any]
    items: Sequence[Item] = ()


def network_map(connections: Connections, axis: Axis, views: Mapping[str, FloatArray]) -> NetworkMap:
    """A chart of the public buses.

    Parameters
    ----------
    views : name → (bus,) figure of every bus, not negative; NaN for none.
    """
    known, digits = connections.coordinates, axis.decimals
    every = np.concatenate([values[np.isfinite(values)] for values in views.values()])
    most = max(round(float(every.max()), digits), 10.0**-digits)
    least = round(float(every.min()), digits)
    least = least if least < most else 0.0
    middle = round(float(np.median(every)), digits)
    per_unit = max(1, min(_MOST_COUNT, int(_MOST_COUNT // most)))
    counts = {
        name: np.where(np.isfinite(values), np.maximum(1, np.nan_to_num(values) * per_unit), 0)
        for name, values in views.items()
    }
    return NetworkMap(
        value=axis,
        buses=connections.bus_ids,
        pairs=connections.pairs,
        kinds=connections.kinds,
        source=connections.source.tolist(),
        at=[0],
        views={name: values.astype(np.int64)[None] for name, values in counts.items()},
        per_unit=per_unit,
        domain=(least, most),
        middle=middle if least < middle < most else (least + most) / 2.0,
        coordinates=None if known is None else np.round(known, 6).tolist(),
    )


def ampacities_of(study: Study, default_a: float | None, own_a: Mapping[str, float]) -> dict[int, float]:
    """Line → ampacity [A].

    Parameters
    ----------
    default_a : of every other line; None for no limit.
    own_a : by the two public buses of a line, "a-b"; where the study knows it, also by the line's name or the
        buses' names in the file.

    Raises
    ------
    ConfigError
        If a key is no line of the network.
    """
    from dp_powerflow.grid.feeder import bus_name  # a verification needs no feeder

    public = {bus_name(study.feeder.nodes[node]): name for node, name in study.public_bus.items()}
    lines_of: dict[str, list[int]] = {}
    for k, line in enumerate(study.feeder.lines):
        for name in dict.fromkeys(_names(study.feeder, line, public, file_names=study.file_names)):
            lines_of.setdefault(name, []).append(k)
    found = {} if default_a is None else dict.fromkeys(range(len(study.feeder.lines)), default_a)
    for key, ampacity in own_a.items():
        if key.lower() not in lines_of:
            raise ConfigError(
                f"ampacities_a names '{key}', which is no line of the network; name two buses of "
                "buses.parquet that a line joins, as in 'b003-b017'"
            )
        found |= dict.fromkeys(lines_of[key.lower()], ampacity)
    return found


def _names(feeder: Feeder, line: Line, public_bus: Mapping[str, str], *, file_names: bool) -> Iterator[str]:
    from dp_powerflow.grid.feeder import bus_name  # a verification needs no feeder

    if file_names:
        yield line.name.lower()
    slack = set(feeder.slack.tolist())
    buses = list(dict.fromkeys(bus_name(feeder.nodes[k], is_source=k in slack) for k in line.nodes))
    if len(buses) == 2:
        known = [public_bus.get(bus, bus) for bus in buses if file_names or bus in public_bus]
        for one, other in ([buses] if file_names else []) + ([known] if len(known) == 2 else []):
            yield f"{one}-{other}".lower()
            yield f"{other}-{one}".lower()


class Kind(BaseModel):
    """One kind of derived release: a frozen object of public settings, every key with a default.

    A module of this package has a subclass of it, with units in the names of the settings, and functions of
    arrays that know nothing of files.

    Attributes
    ----------
    name : as in `dp-powerflow derive NAME`.
    template : what a reader must know, one sentence a line, from settings, figures and the number of days:
        the name of a file in `templates/`, or the text of such a template.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    name: ClassVar[str]
    template: ClassVar[str]

    @abstractmethod
    def check(self, study: Study) -> None:
        """Refuse, in one sentence that says what to do, a study that this kind cannot be computed from."""

    @abstractmethod
    def find(self, study: Study, *, workers: int | None = None, progress: Progress | None = None) -> Findings:
        """Compute; the same bits for any number of workers."""


KINDS: dict[str, str] = {
    "opf": "dp_powerflow.studies.dispatch:OptimalDispatch",
    "hosting-capacity": "dp_powerflow.studies.hosting:HostingCapacity",
    "reliability": "dp_powerflow.studies.reliability:Reliability",
}
"""Name of a kind → module and class of its settings."""


def kind_of(name: str, settings: Mapping[str, Any]) -> Kind:
    """The kind of a name with public settings; what is not set has its default.

    Raises
    ------
    ConfigError : there is no such kind, or a setting is unknown or cannot be used; it is named.
    """
    if name not in KINDS:
        raise ConfigError(f"there is no derived release '{name}'; choose one of {', '.join(KINDS)}")
    module, _, settings_class = KINDS[name].partition(":")
    model: type[Kind] = getattr(importlib.import_module(module), settings_class)
    try:
        # As JSON: a list of a file is a tuple of the settings, and nothing else is converted.
        return model.model_validate_json(json.dumps(dict(settings), allow_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of them together"
        known = ", ".join(model.model_fields) or "none"
        hint = f" (settings: {known})" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"setting {where} of '{name}' cannot be used: {first['msg']}{hint}") from None
    except (TypeError, ValueError):
        raise ConfigError(
            f"the settings of '{name}' must be numbers, texts, lists and tables; write dates as texts"
        ) from None


def sentences_of(kind: Kind, figures: Mapping[str, Any], days: int) -> list[str]:
    """What a reader must know: what was left out, how many snapshots violate a limit.

    Raises
    ------
    ConfigError : the figures belong to another kind.
    """
    templates = environment("dp_powerflow.studies", "templates", html=False, filters={})
    named = "\n" not in kind.template
    try:
        template = templates.get_template(kind.template) if named else templates.from_string(kind.template)
        text = template.render(settings=kind.model_dump(mode="json"), figures=figures, days=days)
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"the figures are not those that '{kind.name}' finds; derive them again") from None
    return text.splitlines()
