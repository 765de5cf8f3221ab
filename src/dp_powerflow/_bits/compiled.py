"""How kernels are compiled and where compiled ones are kept: the only module that calls `njit`.

A kernel is compiled once for each signature. Code is looked for in three places:

1. in the file shipped with the package, compiled ahead for one of `TARGETS`
   (`python -m dp_powerflow._compile` makes it);
2. in the folder of this user, compiled for this processor: `NUMBA_CACHE_DIR`, else `__pycache__` beside the
   package, else the user's cache folder, the first that this user can write and nobody else;
3. nowhere: it is compiled now, and kept in that folder. If no folder can be written, one warning says so.

Whoever reads a release does not compile: inside `without_compiling`, where nothing was found, a kernel's
counterpart in NumPy takes its place (`_bits._numpy`). It is slower and has the same bits.

Code is found by content (`fingerprint`), never by date: stale code has another name. Everything here goes
through the dispatcher of each kernel; numba's settings for other code of the process stay as they are.

`DP_POWERFLOW_KERNELS=compile` leaves out what is shipped. So does `NUMBA_CPU_NAME` or `NUMBA_CPU_FEATURES`,
unless they name one of `TARGETS`: what is shipped for it is what would be compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import pickle
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import llvmlite  # type: ignore[import-untyped]
import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba import njit
from numba.core import config, serialize, sigutils
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.environment import Environment, _rebuild_env, lookup_environment
from numba.core.runtime import rtsys

from dp_powerflow._bits.fingerprint import fingerprint, signature_text
from dp_powerflow._bits.kept import Folder, shipped_archive

_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiles: ContextVar[bool] = ContextVar("compiles", default=True)
_ahead = False

_HASWELL = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "pclmul", "sse4.2", "aes")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Target:
    """A kind of processor that code is compiled for ahead.

    Attributes
    ----------
    name, features : what `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` say for it
    needed : what a processor must have beyond any x86-64, as LLVM names it
    """

    name: str
    features: str
    needed: tuple[str, ...]

    @property
    def runs_here(self) -> bool:
        """Whether this processor can run such code."""
        has = llvmlite.binding.get_host_cpu_features()
        return bool(config.ENABLE_AVX) and all(has.get(name, False) for name in self.needed)


TARGETS = (
    Target("x86-64-v4", "+aes,-prefer-256-bit", _HASWELL + _AVX512),
    Target("haswell", "+aes", _HASWELL),
)
"""The fastest first. Wide vectors are worth a target of their own: some kernels are several times faster."""


def kernel(function: _Function) -> _Function:
    """Compile without any licence to reorder, contract or approximate."""
    return compiled(function)


def compiled(function: _Function, **options: Any) -> _Function:
    """Compile with further options of `numba.njit`; all kernels release the GIL."""
    dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher._cache = KernelCache(dispatcher)
    # Numba asks here for what to call, if nothing is loaded yet that fits the arguments.
    dispatcher._compile_for_args = functools.partial(_to_call, dispatcher, dispatcher._compile_for_args)
    return cast(_Function, dispatcher)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Read with compiled kernels that are there, and with counterparts in NumPy for the others.

    A kernel without a counterpart is compiled all the same. Threads do as those who started them, if they
    are those of `_threads`.
    """
    token = _compiles.set(False)
    try:
        yield
    finally:
        _compiles.reset(token)


def compile_ahead() -> None:
    """From now on everything is compiled that this process runs, for readers too: others are to find it."""
    global _ahead
    _ahead = True


def _to_call(dispatcher: Any, load_or_compile: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Compiled code for some arguments; the counterpart, if there is none and nothing may be compiled."""
    cache: KernelCache = dispatcher._cache
    if not _compiles.get() and not _ahead and cache.counterpart is not None:
        kinds = tuple(map(dispatcher.typeof_pyval, arguments))
        if kinds in cache.missing or not cache.holds(kinds, dispatcher.targetctx):
            cache.missing.add(kinds)
            return cache.counterpart
    found: Callable[..., Any] = load_or_compile(*arguments)
    return found


class KernelCache(_Cache):  # type: ignore[misc]
    """Where numba looks for compiled code of one kernel."""

    def __init__(self, dispatcher: Any) -> None:
        self._function = dispatcher.py_func
        self._options = str(sorted(dispatcher.targetoptions.items()))
        self._enabled = True
        self.missing: set[tuple[Any, ...]] = set()

    @property
    def cache_path(self) -> str:
        """The user's folder."""
        return str(Folder.of_user().path or "")

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """Compiled code for one signature, or None."""
        found = self._found(sig, target_context) if self._enabled else None
        if found is None:
            return None
        # What numba registers beyond this is for compiling; code that is compiled runs without.
        rtsys.initialize(target_context)
        return CompileResult._rebuild(target_context, *_Unpickler(io.BytesIO(found)).load())

    @functools.cached_property
    def counterpart(self) -> Callable[..., Any] | None:
        """The same in NumPy, as `_bits._numpy` says; None if there is no such function."""
        package, _, module = self._function.__module__.rpartition(".")
        try:
            counterparts = importlib.import_module(f"{package}._numpy.{module}")
        except ModuleNotFoundError:
            return None
        found = vars(counterparts).get(self._function.__name__)
        return None if found is None else np.errstate(all="ignore")(found)

    def holds(self, sig: Any, target_context: Any) -> bool:
        """Whether there is compiled code for one signature."""
        return self._found(sig, target_context) is not None

    def _found(self, sig: Any, target_context: Any) -> bytes | None:
        source = self._source(sig)
        keys = [self._key(source, target.name, target.features) for target in shipped_targets()]
        found = next(filter(None, map(shipped_archive().find, keys)), None)
        if found is not None:
            return found
        return Folder.of_user().find(self._key(source, *_target(target_context.codegen())))

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Keep what was compiled now."""
        if not self._enabled or data.lifted or data.library.has_dynamic_globals:
            return
        key = self._key(self._source(sig), *_target(data.codegen))
        Folder.of_user().keep(key, serialize.dumps(data._reduce()))

    def _source(self, sig: Any) -> str:
        arguments, _ = sigutils.normalize_signature(sig)
        return f"{fingerprint(self._function)}\n{self._options}\n{signature_text(arguments)}\n{_compiler()}"

    def _key(self, source: str, processor: str, features: str) -> str:
        content = f"{source}\n{processor} {features}"
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:40]}"

    def enable(self) -> None:
        """Look for compiled code and keep it."""
        self._enabled = True

    def disable(self) -> None:
        """Compile every time."""
        self._enabled = False

    def flush(self) -> None:
        """Nothing: what is stale is never found."""


class _Unpickler(pickle.Unpickler):
    """Reads compiled code without importing the modules that it was compiled from.

    Numba imports the module of every function that a kernel is made of; those of its own bring in SciPy.
    Names of that module matter to Python code only, and a kernel has none.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_rebuild_env.__module__, _rebuild_env.__name__):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: list[Any], name: str) -> Environment:
    """As numba's own, for a module that need not be there."""
    if module in sys.modules:
        return _rebuild_env(module, constants, name)
    found = lookup_environment(name)
    if found is None:
        found = Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
        Environment._memo[name] = found
    return found


@functools.cache
def shipped_targets() -> tuple[Target, ...]:
    """What shipped code this process may run, the fastest first; none if it has to compile."""
    named = (config.CPU_NAME, config.CPU_FEATURES)
    return tuple(
        target
        for target in TARGETS
        if target.runs_here and named in ((None, None), (target.name, target.features))
    )


@functools.cache
def _compiler() -> str:
    """Everything besides source and target that code depends on."""
    settings = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT)
    versions = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, platform.system())
    return f"{versions} {' '.join(map(str, settings))} {llvmlite.binding.get_default_triple()}"


def _target(codegen: Any) -> tuple[str, str]:
    _, name, features = codegen.magic_tuple()
    return name, features
