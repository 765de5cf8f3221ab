"""Windows of a corpus for PyTorch, read as they are asked for. It needs torch: import it only then."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_powerflow.corpus.schema import Phasors
from dp_powerflow.errors import CorpusError, require

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus, Days, Nodes


torch: Any = require("torch", "ml")
_Dataset: Any = require("torch.utils.data", "ml").Dataset


class Window(NamedTuple):
    """Consecutive steps of one day.

    Attributes
    ----------
    vm_pu, va_deg : float32 tensors (step, node).
    day : day of the corpus.
    start : first step of the window in its day.
    """

    vm_pu: Any
    va_deg: Any
    day: int
    start: int


class TorchWindows(_Dataset):  # type: ignore[misc]
    """`torch.utils.data.Dataset` whose items are a `Window` of float32 tensors (step, node).

    A `DataLoader` collates them to tensors (window, step, node) and integer tensors of days and first steps.
    Windows of one day follow each other. The row groups used last are kept, up to `cache_mb` megabytes; in
    random order over a corpus larger than that nearly every item decodes a row group (about 1 MB).
    """

    def __init__(
        self, corpus: Corpus, length: int, stride: int, *, days: Days, nodes: Nodes, cache_mb: float
    ) -> None:
        steps = corpus.layout.steps
        if not 1 <= length <= steps:
            raise CorpusError(f"a window lies within one day and has 1 to {steps} steps, not {length}")
        if stride < 1:
            raise CorpusError("the stride of windows is at least one step")
        self._corpus = corpus
        self._length = length
        self._stride = stride
        self._days = corpus.day_numbers(days)
        # All nodes as a slice: no copy of the block for the common case.
        self._nodes = slice(None) if nodes is None else corpus.node_numbers(nodes)
        self._per_day = (steps - length) // stride + 1
        self._cache_bytes = cache_mb * 1e6
        self._cache: OrderedDict[tuple[int, int], Phasors] = OrderedDict()

    def __len__(self) -> int:
        return len(self._days) * self._per_day

    def __getitem__(self, index: int) -> Window:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError("window index out of range")
        position, number = divmod(index, self._per_day)
        day, start = int(self._days[position]), number * self._stride
        part, group = self._corpus.layout.locate(day)
        block = self._group(part, group)
        row = day - self._corpus.layout.groups_of(part)[group].start
        steps = slice(start, start + self._length)
        return Window(
            torch.from_numpy(np.ascontiguousarray(block.vm_pu[row, self._nodes, steps].T)),
            torch.from_numpy(np.ascontiguousarray(block.va_deg[row, self._nodes, steps].T)),
            day,
            start,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes fill a cache of their own.
        return self.__dict__ | {"_cache": OrderedDict()}

    def _group(self, part: int, group: int) -> Phasors:
        key = (part, group)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        block = self._corpus.read_group(part, group)
        size = block.vm_pu.nbytes + block.va_deg.nbytes
        self._cache[key] = block
        while len(self._cache) > 1 and len(self._cache) * size > self._cache_bytes:
            self._cache.popitem(last=False)
        return block
