"""Nets saved with `pandapower.to_json`, read as data: whatever a file names, nothing of it is run.

pandapower's own reader imports every module that a file names, and makes objects of the classes in it. Here
only tables, numbers, lists and pandapower's own settings (controllers, curves) are made, of modules that are
loaded anyway. Anything else is refused, before it is looked up.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from dp_powerflow.errors import FeederError, FeederRejectedError
from dp_powerflow.grid.pandapower.engine import own_copy, require, third_party_warnings

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
        raise FeederError(f"{path} is a folder; give the file of a net", code="feeder-not-found")
    if not path.is_file():
        raise FeederError(f"{path} does not exist; check the path", code="feeder-not-found")
    try:
        with third_party_warnings():
            net = _up_to_date(_decoded(_without_ballast(_text(path.read_bytes()))))
    except NotDataError as error:
        raise FeederRejectedError(
            f"{path} is not read: it {error}, but a net may hold only data; remove that from the net "
            "and save it again with pandapower.to_json"
        ) from None
    except Exception:  # pandapower and pandas may raise anything on a file that no program of theirs wrote
        net = None
    if not isinstance(net, pandapower.pandapowerNet):
        raise FeederRejectedError(f"{path} is not a pandapower net; save it again with pandapower.to_json")
    return net


def _text(content: bytes) -> str:
    """Text in any encoding of Unicode, with or without a mark at its start."""
    return content.decode(json.detect_encoding(content))


def _up_to_date(net: Any) -> Any:
    """The net in the format of today; of an old file without types, made from its plain tables."""
    file_io, convert = require("pandapower.file_io"), require("pandapower.convert_format")
    if isinstance(net, dict) and "bus" in net and not isinstance(net, require("pandapower").pandapowerNet):
        net = file_io.from_json_dict(net)
    return convert.convert_format(net)


@functools.cache
def _empty_net() -> Any:
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
    empty = _empty_net()
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


def _decoded(text: str) -> Any:
    return _decode(text, own_copy(_empty_net()))


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
            elif module == "numpy" and name == "array":
                _check_kind(self.obj, list, name)
            elif module == "numpy" and _NUMBERS.fullmatch(name):
                _check_kind(self.obj, (int, float, str), name)
            elif (module == "pandas" and name in _INDEXES) or (module == "builtins" and name in _LISTS):
                _check_kind(self.obj, list, name)
            elif (module, name) == ("builtins", "complex"):
                _check_kind(self.obj, str, name)
            else:
                kind = _own_class(module, name)
                if name not in _CURVES or (name, module) not in made.registry:
                    return _settings(kind, self.obj, f"{module}.{name}")
            return made.__get__(self, type(self))()

    def _hook(entry: Any, **options: Any) -> Any:
        return hook(entry, registry_class=DataOnly, **options)

    return DataOnly


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


def _check_kind(content: Any, kind: type | tuple[type, ...], name: str) -> None:
    if not isinstance(content, kind):
        raise NotDataError(f"has a {name} that is not one")
