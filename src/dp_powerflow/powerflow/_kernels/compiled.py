"""How the kernels of the solver as operated are compiled.

They take many arrays in named tuples. Where an array is handed on, numba counts references to it, which costs
more than the arithmetic of a small function, and it makes every function callable from Python, which takes
longer to compile than the function itself. Kernels make no arrays, so they need no counts; inner functions do
without both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dp_powerflow._bits.compiled import compiled

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Called from Python."""
    return compiled(function, no_cfunc_wrapper=True, _nrt=False)


def inner(function: Function) -> Function:
    """Called by kernels only."""
    return compiled(function, no_cfunc_wrapper=True, _nrt=False, no_cpython_wrapper=True)
