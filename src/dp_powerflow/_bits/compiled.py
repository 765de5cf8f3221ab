"""How kernels are compiled and where numba keeps them: the only module that calls `njit`.

Numba compiles a kernel when it is first called and keeps the code in a folder of this user. The folder's name
is a hash of every source that kernels are made of and of Python, numba and llvmlite; inside it numba tells
signatures and processors apart. So a change of one kernel compiles all of them again, and stale code is never
found.

The folder is the first of these that this user alone can write: below `NUMBA_CACHE_DIR`,
`__pycache__` of the package, the user's cache folder. Code in it is run, so a folder of another user is never
taken. If there is none, the code goes to a temporary folder for this run, if there is one, and one warning
says so.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite  # type: ignore[import-untyped]
import numba
from numba import njit
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PACKAGE = Path(__file__).resolve().parents[1]
_HAS_KERNELS = re.compile(rb"^from dp_powerflow\._bits\.", re.M)
_IMPORTS = re.compile(rb"^from (dp_powerflow[\w.]*) import", re.M)
_FORGOTTEN_AFTER_S = 30 * 24 * 3600
_ONLY_USER = 0o700


class KernelsNotKeptWarning(UserWarning):
    """Kernels were compiled and cannot be kept: the next run compiles them again."""


def kernel(function: _Function) -> _Function:
    """Compile without any licence to reorder, contract or approximate."""
    return compiled(function)


def compiled(function: _Function, **options: Any) -> _Function:
    """Compile with further options of `numba.njit`; all kernels release the GIL."""
    dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher._cache = KernelCache(function)
    return cast(_Function, dispatcher)


class KernelCache:
    """What numba asks of the cache of a kernel, in our folder; that is looked for when a kernel is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def _kept(self) -> Any:
        return NullCache() if kernel_folder() is None else _Kept(self._function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Compiled code for one signature; None if there is none, or it is damaged."""
        try:
            found = self._kept.load_overload(sig, target_context)
        except Exception:  # damaged: unpickling it may raise anything
            self._kept.flush()
            found = None
        if found is None:
            _tell_once()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled now, one process after the other: numba numbers files by its index."""
        with suppress(OSError), _alone(kernel_folder()):  # a full disk: compiled again next time
            self._kept.save_overload(sig, data)


class _Place(_CacheLocator):  # type: ignore[misc]
    """Our folder, where functions are told apart by module and line."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__}-{function.__code__.co_firstlineno}"

    def get_cache_path(self) -> str:
        return str(kernel_folder())

    def get_source_stamp(self) -> str:
        return ""  # the folder's name has it

    def get_disambiguator(self) -> str:
        return self._name

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Place:
        return cls(py_func)


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Place,)


class _Kept(FunctionCache):  # type: ignore[misc]
    _impl_class = _Files


@functools.cache
def _tell_once() -> None:
    logging.getLogger("dp_powerflow").info("compiling for this processor, once: a minute or two")


@functools.cache
def kernel_folder() -> Path | None:
    """Where the code of this process is kept; None where no file can be written."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [Path(config.CACHE_DIR) / "dp_powerflow"] if config.CACHE_DIR else []
    places += [_PACKAGE / "__pycache__" / "kernels", Path(cache) / "dp_powerflow" / "kernels"]
    name = _sources_hash()
    for place in places:
        if _only_user_writes(place) and _only_user_writes(place / name):
            _forget_old(place)
            return place / name
    warnings.warn(
        "compiled kernels cannot be kept, so every run compiles them again; set NUMBA_CACHE_DIR to a folder "
        "that only this user can write",
        KernelsNotKeptWarning,
        stacklevel=2,
    )
    try:
        made = tempfile.mkdtemp(prefix="dp_powerflow-kernels-")
    except OSError:
        return None
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = made  # for the processes that this one starts
    return Path(made)


def _hashed_sources() -> dict[Path, bytes]:
    """All modules with kernels and the modules that they import from, where their constants stand."""
    texts = {path: path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py"))}
    chosen = {path for path, text in texts.items() if _HAS_KERNELS.search(text)}
    for module in {name.decode() for path in chosen for name in _IMPORTS.findall(texts[path])}:
        found = _PACKAGE.parent.joinpath(*module.split("."))
        chosen |= {found.with_suffix(".py"), found / "__init__.py"} & texts.keys()
    return {path: texts[path] for path in sorted(chosen)}


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for text in _hashed_sources().values():
        digest.update(hashlib.sha256(text).digest())
    versions = (numba.__version__, llvmlite.__version__, config.OPT, config.BOUNDSCHECK)
    digest.update(repr(versions).encode())
    return f"{sys.implementation.cache_tag}-{digest.hexdigest()[:24]}"


def _only_user_writes(folder: Path) -> bool:
    """Whether a folder, made if there is none, can be written by this user alone."""
    try:
        folder.mkdir(_ONLY_USER, parents=True, exist_ok=True)
        found = folder.lstat()  # the folder itself: a link may belong to another user
    except OSError:
        return False
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or (
        hasattr(os, "geteuid") and found.st_uid != os.geteuid()
    )
    return stat.S_ISDIR(found.st_mode) and not shared and os.access(folder, os.W_OK | os.X_OK)


def _forget_old(place: Path) -> None:
    """Remove folders of other sources that no process has used for a month."""
    with suppress(OSError):
        os.utime(place / _sources_hash())
        for folder in place.iterdir():
            if time.time() - folder.stat().st_mtime > _FORGOTTEN_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a folder; Windows has no such locks."""
    if folder is None or sys.platform == "win32":
        yield
        return
    import fcntl

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ----------------------------------------------------------------------------------------------------------
# How the kernels of the solver as operated are compiled.
#
# They take many arrays in named tuples. Where an array is handed on, numba counts references to it, which
# costs more than the arithmetic of a small function, and it makes every function callable from Python,
# which takes longer to compile than the function itself. Kernels make no arrays, so they need no counts;
# inner functions do without both.


def entry(function: _Function) -> _Function:
    """Called from Python."""
    return compiled(function, no_cfunc_wrapper=True, _nrt=False)


def inner(function: _Function) -> _Function:
    """Called by kernels only."""
    return compiled(function, no_cfunc_wrapper=True, _nrt=False, no_cpython_wrapper=True)
