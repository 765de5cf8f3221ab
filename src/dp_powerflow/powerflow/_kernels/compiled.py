"""How the kernels of the solver as operated are compiled.

They take many arrays in named tuples. Where an array is handed on, numba counts references to it, which costs
more than the arithmetic of a small function, and it makes every function callable from Python, which takes
longer to compile than the function itself. Kernels make no arrays, so they need no counts; inner functions do
without both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
_ALL: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(function: Function) -> Function:
    """Called from Python."""
    compiled: Function = njit(**_ALL, _nrt=False)(function)
    return compiled


def inner(function: Function) -> Function:
    """Called by kernels only."""
    compiled: Function = njit(**_ALL, _nrt=False, no_cpython_wrapper=True)(function)
    return compiled
