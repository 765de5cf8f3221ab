"""pandapower as the engine that builds admittances: import, checks in words of the net, the branch model."""

from __future__ import annotations

import copy
import functools
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError
from dp_powerflow.errors import require as require_extra
from dp_powerflow.grid.quantities import frame_rules
from dp_powerflow.grid.refusals import Problems, refusal

DRAWING = ("load", "asymmetric_load", "motor", "ward", "xward")
FEEDING = ("sgen", "asymmetric_sgen", "gen")
ZERO_IMPEDANCE = "an element of the feeder has zero impedance; give it a small one, such as 1e-6 ohm"

_RULES = frame_rules("pandapower", str)
_ENDS = {
    kind: tuple(column for column, rule in rules.items() if rule == "index" and column.endswith("bus"))
    for kind, rules in _RULES.items()
}
"""Table → columns of buses."""
LEFT_OUT = {"storage": "storage units", "dcline": "dc lines"}
"""Tables of elements that are modelled in no mode → what they are called."""
_NOT_LINEAR = ("svc", "tcsc", "ssc", "vsc", "vsc_stacked", "vsc_bipolar", "b2b_vsc", "bi_vsc")
# Options a net may carry that change its admittances; all others only steer pandapower's solver.
_MODEL_OPTIONS = (*_RULES["options"], "consider_line_temperature")


def require(package: str) -> Any:
    """Import pandapower or simbench, or say how to install it."""
    with third_party_warnings():
        return require_extra(package, "pandapower")


@contextmanager
def third_party_warnings() -> Iterator[None]:
    """Keep what pandapower deprecates in itself and pandas from the user, who can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


class Names:
    """Names of elements: the one the net states where it is unique, else kind and index."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._by_kind: dict[str, dict[int, str]] = {}

    def of(self, kind: str, index: int) -> str:
        """Name of one element of a table, by its index there."""
        if kind not in self._by_kind:
            self._by_kind[kind] = self._unique(kind)
        return self._by_kind[kind][index]

    def _unique(self, kind: str) -> dict[int, str]:
        table = self._net[kind]
        stated = list(table["name"]) if "name" in table else [None] * len(table)
        count = Counter(name for name in stated if isinstance(name, str) and name.strip())
        names: dict[int, str] = {}
        for index, name in zip(table.index, stated, strict=True):
            if isinstance(name, str) and count[name] == 1:
                names[int(index)] = name
                continue
            made = f"{kind} {index}"
            while made in count:
                made += "'"
            names[int(index)] = made
        return names


def in_service(net: Any, kind: str) -> list[Any]:
    """Rows of a table that are in service; their index is `Index`."""
    if not len(net.get(kind, ())):
        return []
    table = net[kind]
    serving = [k for k, serves in enumerate(table["in_service"].tolist()) if serves]
    # Named tuples would need a new class for every call, which takes longer than a small table.
    names = ["Index", *map(str, table.columns)]
    columns = [table.index.tolist(), *(column.tolist() for _, column in table.items())]
    return [
        SimpleNamespace(**{name: column[k] for name, column in zip(names, columns, strict=True)})
        for k in serving
    ]


def check_net(net: Any) -> None:
    """Refuse what cannot be represented, in words of the net: all of it at once."""
    problems = Problems(
        refusal("feeder-rejected.table", kind=kind)
        for kind, columns in {**_ENDS, "bus": ("vn_kv", "in_service")}.items()
        if columns
        if not set(columns) <= set(getattr(net.get(kind), "columns", ()))
    )
    problems.refuse()
    if not len(net.bus):
        raise refusal("feeder.no-bus")
    for found in (_wrong_ends, _not_represented):
        problems.add(*found(net))
        problems.refuse()


def _wrong_ends(net: Any) -> Iterator[FeederError]:
    """Elements on buses that the net does not have."""
    names, known = Names(net), set(net.bus.index)
    ends = [(kind, net[kind][column]) for kind, columns in _ENDS.items() for column in columns]
    for kind, buses in (*ends, ("switch", net.switch.element[net.switch.et == "b"])):
        for element, bus in buses.items():
            if bus not in known:
                yield refusal("feeder-unknown-bus.none", kind=kind, name=names.of(kind, element), bus=bus)


def _not_represented(net: Any) -> Iterator[FeederError]:
    names = Names(net)
    for kind in _NOT_LINEAR:
        if count := len(in_service(net, kind)):
            yield refusal("feeder-not-modelled.not-linear", count=count, kind=kind)
    alive = set(net.bus.index[net.bus.in_service.astype(bool)])
    slack_gens = [row for row in in_service(net, "gen") if row.slack]
    if not any(row.bus in alive for row in [*in_service(net, "ext_grid"), *slack_gens]):
        yield refusal("feeder-without-source.grid")
    for kind in (*DRAWING, *FEEDING):
        for row in in_service(net, kind):
            if row.bus not in alive:
                name, bus = names.of(kind, row.Index), names.of("bus", row.bus)
                yield refusal("feeder-unknown-bus.dead", kind=kind, name=name, bus=bus)


def with_branch_model(net: Any) -> Any:
    """Copy of the net with sources, branches and shunts alone, its branch model in `_ppc`.

    Transformers are left as pandapower's Γ of series and shunt figures, before they become a π: `Circuit`
    does that.
    """
    pandapower = require("pandapower")
    passive = _passive(net)
    try:
        # No iteration: pandapower sets up everything wanted before the first one.
        with third_party_warnings(), np.errstate(divide="ignore", invalid="ignore"):
            options = {"calculate_voltage_angles": True, "numba": False, "lightsim2grid": False}
            pandapower.runpp(passive, init="flat", max_iteration=0, **options)
    except pandapower.LoadflowNotConverged:
        pass
    except ArithmeticError:
        raise FeederError(ZERO_IMPEDANCE, code="feeder-zero-impedance") from None
    except (UserWarning, ValueError, KeyError, IndexError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise refusal("feeder-rejected.net", reason=reason) from None
    return passive


def own_copy(net: Any) -> Any:
    """A net whose tables may change without changing another net's, as long as no rows are added.

    Empty tables and the library of types are shared: a deep copy of a small net takes longer than to solve
    it.
    """
    copied = net.__class__.__new__(net.__class__)
    copied._setattr("_allow_invalid_attributes", net._allow_invalid_attributes)
    for name, value in net.items():
        if hasattr(value, "columns"):
            copied[name] = value.copy() if len(value) else value
        else:
            copied[name] = value if name == "std_types" else copy.deepcopy(value)
    return copied


def _passive(net: Any) -> Any:
    passive = own_copy(net)
    for kind in ("load", "sgen", "asymmetric_load", "asymmetric_sgen", "motor", "xward", *LEFT_OUT):
        passive[kind] = passive[kind].iloc[:0]
    passive["gen"] = passive["gen"][passive["gen"]["slack"].astype(bool)]
    passive["ward"] = passive["ward"].assign(ps_mw=0.0, qs_mvar=0.0)
    with third_party_warnings():
        for row in in_service(net, "xward"):
            require("pandapower").create_ward(passive, row.bus, 0.0, 0.0, row.pz_mw, row.qz_mvar)
    options = passive.get("user_pf_options") or {}
    kept = {key: options[key] for key in _MODEL_OPTIONS if key in options}
    passive["user_pf_options"] = kept | {"trafo_model": "pi"}
    return passive


# ----------------------------------------------------------------------------------------------------------
# Nets saved with `pandapower.to_json`, read as data: whatever a file names, nothing of it is run.
#
# pandapower's own reader imports every module that a file names, and makes objects of the classes in it.
# Here only tables, numbers, lists and pandapower's own settings (controllers, curves) are made, of modules
# that are loaded anyway. Anything else is refused, before it is looked up.


_PANDAS = ("pandas", "pandas.core.frame", "pandas.core.series")
_OWN_PACKAGES = ("pandapower", "pandapower.control", "pandapower.timeseries", "pandapower.io_utils")
_CURVES = ("SplineCharacteristic", "LogSplineCharacteristic")
_NUMBERS = re.compile(r"(u?int|float)(8|16|32|64)|bool_?|complex(64|128)|int_|float_|longlong|intc")
_INDEXES = frozenset({"Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index"})
_LISTS = frozenset({"tuple", "set", "frozenset"})
_TABLE_WORDS = frozenset(
    {
        *("orient", "dtype", "typ", "index_name", "index_names", "column_name", "column_names"),
        *("is_multiindex", "is_multicolumn"),
    }
)
_TYPES = re.compile(
    r"(u?int|float|complex|UInt|Int|Float)(8|16|32|64|128)|bool|boolean|object|string|str|category|"
    r"(datetime|timedelta)64\[[A-Za-z, /_]{1,60}\]"
)
_NAME = re.compile(r"[\w.]{1,80}", re.ASCII)


class NotDataError(Exception):
    """A file names something that is more than data; says what."""


def load_net(path: Path) -> Any:
    """The net of a file, brought up to the format of today, without its time series.

    Raises
    ------
    FeederError : it is not a net, or would make more than data.
    """
    pandapower = require("pandapower")
    if path.is_dir():
        raise refusal("feeder-not-found.folder", path=path)
    if not path.is_file():
        raise refusal("feeder-not-found.path", path=path)
    try:
        with third_party_warnings():
            content = path.read_bytes()  # in any encoding of Unicode, with or without a mark at its start
            net = _up_to_date(
                _decode(
                    _without_ballast(content.decode(json.detect_encoding(content))), own_copy(empty_net())
                )
            )
    except NotDataError as error:
        raise refusal("feeder-rejected.not-data", path=path, error=error) from None
    except Exception:  # pandapower and pandas may raise anything on a file that no program of theirs wrote
        net = None
    if not isinstance(net, pandapower.pandapowerNet):
        raise refusal("feeder-rejected.not-a-net", path=path)
    return net


def _up_to_date(net: Any) -> Any:
    """The net in the format of today; of an old file without types, made from its plain tables."""
    file_io, convert = require("pandapower.file_io"), require("pandapower.convert_format")
    if isinstance(net, dict) and "bus" in net and not isinstance(net, require("pandapower").pandapowerNet):
        net = file_io.from_json_dict(net)
    return convert.convert_format(net)


@functools.cache
def empty_net() -> Any:
    """A new net, which must not be changed."""
    with third_party_warnings():
        return require("pandapower").create_empty_network()


def _without_ballast(text: str) -> str:
    """A saved net without time series, and without tables that any new net has: they take longest to read.

    Tables are dropped from a file of the present format only, where old ones are not brought up to date.
    """
    saved = json.loads(text, object_pairs_hook=_stated_once)
    tables = saved.get("_object") if isinstance(saved, dict) else None
    if not isinstance(tables, dict):
        return text
    tables.pop("profiles", None)
    empty = empty_net()
    if tables.get("format_version") == empty["format_version"]:
        for name in [name for name, table in tables.items() if _says_nothing(table, empty.get(name))]:
            del tables[name]
    return json.dumps(saved)


def _stated_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    stated = list(pairs)
    found = dict(stated)
    if len(found) < len(stated):
        raise NotDataError("states an entry twice")
    return found


def _says_nothing(table: Any, new: Any) -> bool:
    """Whether a saved table has no rows, and all the columns that it has in a new net."""
    content = table.get("_object") if isinstance(table, dict) and table.get("_class") == "DataFrame" else None
    if not isinstance(content, str) or not hasattr(new, "columns"):
        return False
    found = json.loads(content)
    return not found.get("data", True) and set(new.columns) <= set(found.get("columns", ()))


# ------------------------------------------------------------------------------------------ what is made


def _decode(text: str, net: Any = None) -> Any:
    """What pandapower's decoder makes of a text, with our list of what it may make."""
    decoder = require("pandapower.io_utils").PPJSONDecoder
    return json.loads(text, cls=decoder, registry_class=_data_only(), empty_dict_like_object=net)


@functools.cache
def _data_only() -> Any:
    """pandapower's registry of what entries with a module and a class become, all but data refused."""
    for name in _OWN_PACKAGES:
        require(name)  # so that what they hold is loaded; nothing is imported for a file
    io_utils = require("pandapower.io_utils")
    hook, made = io_utils.pp_hook, io_utils.FromSerializableRegistry.from_serializable

    class DataOnly(io_utils.FromSerializableRegistry):  # type: ignore[misc, name-defined]  # has no types
        """One entry of a file; `from_serializable` makes what it stands for."""

        def __init__(self, obj: Any, d: dict[str, Any], _: Any, *others: Any, **options: Any) -> None:
            super().__init__(obj, d, _hook, *others, **options)

        def from_serializable(self) -> Any:
            module, name = str(self.module_name), str(self.class_name)
            if module in _PANDAS and name in ("DataFrame", "Series"):
                _check_table(self.obj, self.d)
            elif (module, name) == ("pandapower.auxiliary", "pandapowerNet"):
                if isinstance(self.obj, str):
                    return _decode(self.obj)
            elif (plain := _plain_kind(module, name)) is not None:
                if not isinstance(self.obj, plain):
                    raise NotDataError(f"has a {name} that is not one")
            else:
                kind = _own_class(module, name)
                if name not in _CURVES or (name, module) not in made.registry:
                    return _settings(kind, self.obj, f"{module}.{name}")
            return made.__get__(self, type(self))()

    def _hook(entry: Any, **options: Any) -> Any:
        return hook(entry, registry_class=DataOnly, **options)

    return DataOnly


def _plain_kind(module: str, name: str) -> tuple[type, ...] | None:
    """What an entry for a number, an array, an index or a list has to hold; None of any other class."""
    if (module, name) == ("numpy", "array") or (module == "pandas" and name in _INDEXES):
        return (list,)
    if module == "numpy" and _NUMBERS.fullmatch(name):
        return int, float, str
    if module == "builtins" and name in _LISTS:
        return (list,)
    return (str,) if (module, name) == ("builtins", "complex") else None


def _own_class(module: str, name: str) -> Any:
    """A class of pandapower whose module is loaded; None of any other."""
    if not (module == "pandapower" or module.startswith("pandapower.")) or "test" in module.split("."):
        return None
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and found.__module__.startswith("pandapower.") else None


def _settings(kind: Any, content: Any, name: str) -> Any:
    """An object of pandapower with the settings of a file; its constructor is not called."""
    io_utils = require("pandapower.io_utils")
    if kind is not None and issubclass(kind, Enum):
        return kind(content)
    if kind is None or not issubclass(kind, io_utils.JSONSerializableClass):
        shown = f"the class {name}" if _NAME.fullmatch(name) else "a class with a strange name"
        raise NotDataError(f"names {shown}")
    stated = _decode(content) if isinstance(content, str) else content
    if not isinstance(stated, dict):
        raise NotDataError(f"has settings of {name} that are not a table")
    return kind.from_dict({key: value for key, value in stated.items() if key != "net"})


def _check_table(content: Any, words: dict[str, Any]) -> None:
    """A table is in the file itself, and described in the words of `to_json`."""
    if not isinstance(content, str) or not content.lstrip().startswith(("{", "[")):
        raise NotDataError("names a table that is not in it")
    if not _TABLE_WORDS.issuperset(words):
        raise NotDataError("describes a table in unknown words")
    types = words.get("dtype", {})
    for stated in types.values() if isinstance(types, dict) else (types,):
        if not (isinstance(stated, str) and _TYPES.fullmatch(stated)):
            raise NotDataError("has a table with columns of an unknown type")
