"""Windows of a corpus for PyTorch, read as they are asked for. It needs torch: import it only then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_powerflow.corpus.decoded import Decoder, RecentGroups, decoded_days
from dp_powerflow.errors import CorpusError, require

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus, Days, Nodes


torch: Any = require("torch", "ml")
_data: Any = require("torch.utils.data", "ml")


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


class TorchWindows(_data.Dataset):  # type: ignore[misc]
    """`torch.utils.data.Dataset` whose items are a `Window` of float32 tensors (step, node).

    A `DataLoader` collates them to tensors (window, step, node) and integer tensors of days and first steps;
    it takes whole batches at once. Windows of one day follow each other.

    Days are decoded when they are asked for and kept as float32, up to `cache_mb` megabytes for all workers
    of a loader together. If the chosen days and nodes fit, any order is as fast as any other. If they do not
    fit, `sampler` shuffles so that every row group is still decoded once in a pass.
    """

    def __init__(
        self, corpus: Corpus, length: int, stride: int, *, days: Days, nodes: Nodes, cache_mb: float
    ) -> None:
        steps = corpus.layout.steps
        if not 1 <= length <= steps:
            raise CorpusError(f"a window lies within one day and has 1 to {steps} steps, not {length}")
        if stride < 1:
            raise CorpusError("the stride of windows is at least one step")
        self._length = length
        self._stride = stride
        self._days = corpus.day_numbers(days)
        self._per_day = (steps - length) // stride + 1
        self._budget = cache_mb * 1e6
        each, self._slots = np.unique(self._days, return_inverse=True)
        self._decoder = Decoder(corpus, each, None if nodes is None else corpus.node_numbers(nodes))
        self._decoded = decoded_days(self._decoder, self._budget)
        self._in_worker = False

    def __len__(self) -> int:
        return len(self._days) * self._per_day

    def __getitem__(self, index: int) -> Window:
        window: Window = self.__getitems__([index])[0]
        return window

    def __getitems__(self, indices: Sequence[int]) -> list[Window]:
        """Several windows; those of one row group are read together, whatever their order."""
        wanted = np.asarray(indices, dtype=np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if np.any((wanted < 0) | (wanted >= len(self))):
            raise IndexError("window index out of range")
        self._notice_worker()
        positions, numbers = np.divmod(wanted, self._per_day)
        slots, starts = self._slots[positions], numbers * self._stride
        values = np.empty((len(wanted), 2, self._length, self._decoder.shape[2]), dtype=np.float32)
        for k in np.argsort(slots, kind="stable").tolist():
            start = starts[k]
            values[k] = self._decoded.day(int(slots[k]))[:, start : start + self._length]
        pairs = torch.from_numpy(values).unbind()
        facts = zip(pairs, self._days[positions].tolist(), starts.tolist(), strict=True)
        return [Window(pair[0], pair[1], day, start) for pair, day, start in facts]

    def sampler(
        self, *, workers: int = 0, batch_size: int | None = None, generator: Any = None
    ) -> BlockShuffle:
        """A random order for `DataLoader(windows, sampler=...)` that suits the cache.

        Row groups are dealt at random into blocks that the cache holds, and the windows of a block are
        shuffled; with a cache that holds all days this is a plain shuffle. Every worker of the loader gets
        batches from row groups of its own.

        Parameters
        ----------
        workers, batch_size : of the loader; the second is needed with two workers or more.
        generator : `torch.Generator`; by default torch's own. Every pass draws a new order from it.

        Raises
        ------
        CorpusError : there are several workers, and no size of their batches.
        """
        if not isinstance(self._decoded, RecentGroups):
            whole = np.zeros(len(self._days), dtype=np.int64)
            return BlockShuffle(whole, self._per_day, 1, (1, 1), generator)
        if workers > 1 and batch_size is None:
            raise CorpusError("a sampler for several workers needs the batch_size of their loader too")
        streams = max(1, workers)
        fitting = max(1, int(self._budget / streams // self._decoder.group_bytes))
        groups = self._decoder.group_of[self._slots]
        return BlockShuffle(groups, self._per_day, fitting, (streams, batch_size or 1), generator)

    def _notice_worker(self) -> None:
        """In a worker of a loader, keep no more than its share of a cache that workers do not share."""
        if self._in_worker:
            return
        info = _data.get_worker_info()
        if info is not None:
            self._in_worker = True
            if isinstance(self._decoded, RecentGroups):
                self._decoded.shared_by(info.num_workers)


class BlockShuffle(_data.Sampler):  # type: ignore[misc]
    """Random order of windows, some row groups at a time; `TorchWindows.sampler` makes it.

    Parameters
    ----------
    group_of : (day,) row group of every day.
    per_day : windows of a day.
    groups_per_block : row groups whose windows are shuffled together.
    dealt : streams of row groups, one per worker, and the windows of a batch; batches come from the streams
        in turn, as a loader deals them to its workers.
    generator : of torch.
    """

    def __init__(
        self, group_of: Any, per_day: int, groups_per_block: int, dealt: tuple[int, int], generator: Any
    ) -> None:
        self._days = [np.flatnonzero(group_of == group) for group in np.unique(group_of)]
        self._per_day = per_day
        self._groups_per_block = groups_per_block
        self._streams, self._batch = dealt
        self._generator = generator

    def __len__(self) -> int:
        return sum(map(len, self._days)) * self._per_day

    def __iter__(self) -> Iterator[int]:
        order = self._permutation(len(self._days)).tolist()
        streams = [self._shuffled(order[k :: self._streams]) for k in range(self._streams)]
        rest: list[int] = []
        while streams:
            # A stream that ends is followed by the others; what fills no batch comes last.
            for stream in tuple(streams):
                batch = list(itertools.islice(stream, self._batch))
                if len(batch) == self._batch:
                    yield from batch
                else:
                    rest += batch
                    streams.remove(stream)
        yield from rest

    def _shuffled(self, groups: list[int]) -> Iterator[int]:
        """Windows of row groups, block by block."""
        for first in range(0, len(groups), self._groups_per_block):
            days = np.concatenate([self._days[k] for k in groups[first : first + self._groups_per_block]])
            windows = (days[:, None] * self._per_day + np.arange(self._per_day)).ravel()
            yield from windows[self._permutation(len(windows))].tolist()

    def _permutation(self, n: int) -> Any:
        return torch.randperm(n, generator=self._generator).numpy()
