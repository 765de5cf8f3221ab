"""A fingerprint changes with everything that a kernel is compiled from, and with nothing else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import typeof
from numba.core.dispatcher import Dispatcher

import dp_powerflow
from dp_powerflow._bits.compiled import KernelCache
from dp_powerflow._bits.fingerprint import fingerprint, signature_text

FIRST = """
from numba.extending import intrinsic
from dp_powerflow._bits.compiled import kernel
LIMIT = 3.0
TABLE = (1.0, 2.0)
class Emitter:
    width = 4
    def emit(self):
        return self.helper() + 1
    def helper(self):
        return 2
def factory(sign):
    @intrinsic
    def made(typing, x):
        def code(*arguments):
            return Emitter().emit() if sign else arguments[3][0]
        return x(x), code
    return made
plus, minus = factory(True), factory(False)
@kernel
def innermost(x):
    return x * LIMIT
@kernel
def inner(x):
    return innermost(x) + TABLE[0]
"""
SECOND = """
import {first}
from {first} import inner, plus, minus
from dp_powerflow._bits.compiled import kernel
@kernel
def outer(x):
    return inner(x) + {first}.LIMIT + plus(x) - minus(x)
"""
CHANGES = {
    "a constant of another module": ("LIMIT = 3.0", "LIMIT = 3.5"),
    "a table": ("TABLE = (1.0, 2.0)", "TABLE = (1.0, 2.5)"),
    "the code of what is called": ("x * LIMIT", "x / LIMIT"),
    "the type of a number": ("LIMIT = 3.0", "LIMIT = 3"),
    "an intrinsic": ("arguments[3][0]", "arguments[3][1]"),
    "a class that an intrinsic uses": ("self.helper() + 1", "self.helper() + 2"),
    "a method that this calls": ("return 2", "return 3"),
    "an attribute of that class": ("width = 4", "width = 8"),
    "which of two closures has which name": (
        "factory(True), factory(False)",
        "factory(False), factory(True)",
    ),
}


@pytest.fixture
def outer_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The kernel of the second module, with a text for the first."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def found(text: str) -> Any:
        (tmp_path / "first_kernels.py").write_text(text)
        (tmp_path / "second_kernels.py").write_text(SECOND.format(first="first_kernels"))
        for path in tmp_path.rglob("*.pyc"):
            path.unlink()
        for name in ("first_kernels", "second_kernels"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("second_kernels").outer

    return found


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_is_compiled_changes_the_fingerprint(
    change: str, outer_of: Callable[[str], Any]
) -> None:
    before, after = CHANGES[change]
    assert FIRST.count(before) == 1
    original = fingerprint(outer_of(FIRST).py_func)
    assert fingerprint(outer_of(FIRST.replace(before, after)).py_func) != original
    assert fingerprint(outer_of(FIRST).py_func) == original


def test_comments_and_other_functions_do_not_count(outer_of: Callable[[str], Any]) -> None:
    original = fingerprint(outer_of(FIRST).py_func)
    assert fingerprint(outer_of(f"# a comment\n\n{FIRST}\ndef other(x):\n    return x\n").py_func) == original


def test_running_a_function_does_not_change_its_fingerprint(outer_of: Callable[[str], Any]) -> None:
    outer_of(FIRST)
    innermost = sys.modules["first_kernels"].innermost
    before = fingerprint(innermost.py_func)
    assert [innermost.py_func(2.0) for _ in range(100)] == [6.0] * 100
    importlib.import_module("dp_powerflow._bits.fingerprint")._part.cache_clear()
    assert fingerprint(innermost.py_func) == before


def test_an_object_whose_content_is_not_known_is_refused(outer_of: Callable[[str], Any]) -> None:
    with pytest.raises(TypeError, match="not known"):
        fingerprint(
            outer_of(
                FIRST.replace("LIMIT = 3.0", "LIMIT = Emitter()\nclass Other: ...").replace(
                    "LIMIT = Emitter()", "LIMIT = type('Unknown', (), {'__module__': 'elsewhere'})()"
                )
            ).py_func
        )


class _Pair(NamedTuple):
    a: float
    b: np.ndarray


class _Turned(NamedTuple):
    b: float
    a: np.ndarray


def test_signatures_tell_layouts_writing_and_fields_apart() -> None:
    array = np.zeros((3, 4))
    frozen = array.copy()
    frozen.flags.writeable = False
    values = [array, frozen, array.T, array[:, ::2], array[0], 1, 1.0, (1.0, array), _Pair(1.0, array)]
    values += [_Turned(1.0, array), (_Pair(1.0, array), 1.0), (_Turned(1.0, array), 1.0)]
    assert len({signature_text([typeof(value)]) for value in values}) == len(values)
    assert signature_text([typeof(array), typeof(1)]) == signature_text([typeof(np.ones((1, 1))), typeof(2)])


PACKAGE = Path(dp_powerflow.__file__).parent


def sources_with(*words: str) -> dict[str, str]:
    """Modules of the package whose text has one of these words, and the text."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            found[".".join(("dp_powerflow", *path.relative_to(PACKAGE).with_suffix("").parts))] = text
    return found


def test_only_one_module_calls_numba_to_compile() -> None:
    """Whatever else it is called by would not be found among the shipped kernels."""
    assert list(sources_with("njit", "import jit", "numba.jit", "cfunc(", "vectorize(")) == [
        "dp_powerflow._bits.compiled"
    ]


@pytest.mark.slow
def test_every_kernel_has_a_fingerprint_and_a_place_to_be_kept() -> None:
    kernels: dict[str, Any] = {}
    for module in sources_with("@kernel", "@inner", "@compiled"):
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, Dispatcher) and value.__module__ == module:
                kernels[f"{module}.{name}"] = value
    assert len(kernels) > 100
    assert [name for name, kernel in kernels.items() if not isinstance(kernel._cache, KernelCache)] == []
    different = {id(kernel): kernel for kernel in kernels.values()}.values()  # some have two names
    assert len({fingerprint(kernel.py_func) for kernel in different}) == len(different)
