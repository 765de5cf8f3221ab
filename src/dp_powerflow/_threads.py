"""Threads over work that leaves Python's lock: compiled kernels and large array operations.

They have the context variables of the thread that started them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import pairwise
from typing import TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """Results in the order of the items, from a number of threads, None for one per core; few are waiting."""
    threads = workers or cores()
    if threads == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(copy_context().run, function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def ahead(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """The same items, of which some are made in another thread while one is used."""
    end = object()

    def following() -> Item | object:
        return next(items, end)

    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(copy_context().run, following) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(copy_context().run, following))
                yield cast(Item, item)
        finally:
            for future in waiting:
                future.cancel()


def slices(size: int, parts: int | None = None) -> list[slice]:
    """At most this many slices that make up a whole; one per core by default."""
    count = max(1, min(size, cores() if parts is None else parts))
    edges = [size * k // count for k in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def in_slices(do: Callable[[slice], None], size: int) -> None:
    """Do something for every place of an array, in two slices for each core; it runs compiled code."""
    for _ in in_order(do, slices(size, 2 * cores())):
        pass
