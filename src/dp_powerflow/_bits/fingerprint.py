"""What a kernel is compiled from, as one hash: its code, all that it calls, every constant that it reads.

Two kernels with the same fingerprint and the same types of arguments compile to the same instructions. Dates,
folders and comments do not count, so a fingerprint is the same in a checkout and in an installed wheel. Code
of Python, NumPy, numba and llvmlite counts by name; whoever keeps compiled code adds their versions.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_OUTSIDE = sys.stdlib_module_names | {"numba", "numpy", "llvmlite", "builtins"}
_PLAIN = (int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, range, slice)


def fingerprint(function: Any) -> str:
    """SHA-256 of all that a Python function is compiled from.

    Raises
    ------
    TypeError
        If the function reads an object whose content is not known here.
    """
    parts: set[str] = set()
    todo = [function]
    while todo:
        text, used = _part(todo.pop())
        if text not in parts:
            parts.add(text)
            todo.extend(used)
    return hashlib.sha256("\n".join([_part(function)[0], *sorted(parts)]).encode()).hexdigest()


def signature_text(arguments: Iterable[Any]) -> str:
    """Types of arguments as text: named tuples with their fields, since the code depends on these."""
    return ", ".join(map(_type_text, arguments))


def _type_text(kind: Any) -> str:
    name = f"{type(kind).__name__} {kind}"
    inner = getattr(kind, "types", None)
    if not isinstance(inner, tuple):
        return name
    made = getattr(kind, "instance_class", None)
    fields = "" if made is None else f"{made.__module__}.{made.__qualname__}{made._fields}"
    return f"{type(kind).__name__} {fields}({signature_text(inner)})"


@functools.cache
def _part(thing: Any) -> tuple[str, tuple[Any, ...]]:
    """One function or class as text, and the functions and classes that it uses."""
    used: list[Any] = []
    if isinstance(thing, FunctionType):
        text = "".join(_function_text(thing, used))
    else:
        text = "".join(_class_text(thing, used))
    return text, tuple(used)


def _function_text(function: FunctionType, used: list[Any]) -> Iterator[str]:
    yield f"function {function.__module__}.{function.__qualname__}\n"
    yield _value_text(function.__defaults__, used)
    yield _value_text(function.__kwdefaults__, used)
    yield from _code_text(function.__code__, function.__globals__, used)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"{name}={_value_text(cell.cell_contents, used)}\n"


def _code_text(code: CodeType, names: dict[str, Any], used: list[Any]) -> Iterator[str]:
    yield f"{code.co_name}{code.co_varnames}{code.co_freevars}{code.co_cellvars}{code.co_names}"
    yield f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_code.hex()}\n"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_text(constant, names, used)
        else:
            yield _value_text(constant, used) + "\n"
    for name in code.co_names:
        if name in names:
            yield f"{name}={_value_text(names[name], used, code.co_names)}\n"


def _class_text(made: type, used: list[Any]) -> Iterator[str]:
    yield f"class {made.__module__}.{made.__qualname__}{getattr(made, '_fields', '')}\n"
    for base in made.__bases__:
        yield _value_text(base, used)
    for name, value in sorted(vars(made).items()):
        inner = (
            getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        )
        if isinstance(inner, FunctionType) or (
            isinstance(inner, (*_PLAIN, tuple)) and not name.startswith("__")
        ):
            yield f"{name}={_value_text(inner, used)}\n"


def _value_text(value: Any, used: list[Any], attributes: tuple[str, ...] = ()) -> str:
    """A value as text; what is code of its own is named here and added to `used`."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__qualname__}({','.join(_value_text(item, used) for item in value)})"
    if isinstance(value, (set, frozenset)):
        return f"set({','.join(sorted(_value_text(item, used) for item in value))})"
    if isinstance(value, dict):
        return f"dict({','.join(f'{_value_text(k, used)}:{_value_text(v, used)}' for k, v in value.items())})"
    return _code_value_text(value, used, attributes)


def _code_value_text(value: Any, used: list[Any], attributes: tuple[str, ...]) -> str:
    if isinstance(value, ModuleType):
        if _is_outside(value.__name__):
            return f"module {value.__name__}"
        found = [name for name in attributes if name in vars(value)]
        return f"module({','.join(_value_text(vars(value)[name], used, attributes) for name in found)})"
    source = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    module = getattr(source, "__module__", None) or ""
    if isinstance(source, (FunctionType, type)) and not _is_outside(module):
        used.append(source)
        options = sorted(getattr(value, "targetoptions", {}).items())
        return f"{module}.{source.__qualname__}{_closure_text(source)} {options}"
    if not _is_outside(module or type(value).__module__):
        raise TypeError(f"a kernel reads {value!r}, and what that is made of is not known")
    return f"{module}.{getattr(source, '__qualname__', None) or f'{type(value).__qualname__} {value}'}"


def _closure_text(source: Any) -> str:
    """Tells functions apart that one factory made."""
    cells = [cell.cell_contents for cell in getattr(source, "__closure__", None) or ()]
    return str(
        [repr(cell) if isinstance(cell, _PLAIN) else getattr(cell, "__qualname__", "") for cell in cells]
    )


def _is_outside(module: str) -> bool:
    return module.partition(".")[0] in _OUTSIDE
