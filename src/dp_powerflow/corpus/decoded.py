"""Decoded days of a corpus in memory, as float32, within a budget of bytes.

If the days asked for fit, each is decoded once and kept: in memory that forked processes share and, on Linux,
spawned ones too. If they do not fit, every process keeps the row groups that it used last.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dp_powerflow.corpus.grid import Float32Array, turn_days
from dp_powerflow.corpus.schema import DATA, Phasors, part_name
from dp_powerflow.units import IntArray

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus

_TOKEN_BYTES = 16
_MARK_BYTES = 8


class DecodedDays(Protocol):
    """Gives decoded days."""

    def day(self, slot: int) -> Float32Array:
        """(2, step, node) magnitude [p.u.] and angle [degrees] of a day; to be copied, not changed."""
        ...


@dataclass(frozen=True, eq=False)
class Decoder:
    """Decodes row groups of a corpus.

    Attributes
    ----------
    corpus : what is read.
    days : (slot,) days, each once, ascending.
    nodes : positions of the nodes that are kept; None for all.
    marks : (part,) of the files that one of the processes has found sound (`Listed.mark`).
    """

    corpus: Corpus
    days: IntArray
    nodes: IntArray | None
    marks: _Shared = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", _Shared(_MARK_BYTES * self.corpus.layout.n_parts))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a day: (2, step, node)."""
        layout = self.corpus.layout
        return 2, layout.steps, layout.nodes if self.nodes is None else len(self.nodes)

    @property
    def day_bytes(self) -> int:
        """Of a decoded day."""
        return 4 * int(np.prod(self.shape))

    @cached_property
    def group_of(self) -> IntArray:
        """(slot,) number of the row group that holds a day, over all parts."""
        layout = self.corpus.layout
        per_part = -(-layout.days_per_part // layout.days_per_group)
        part, offset = np.divmod(self.days, layout.days_per_part)
        return np.asarray(part * per_part + offset // layout.days_per_group)

    @property
    def group_bytes(self) -> int:
        """Of the decoded days of the fullest row group."""
        return self.day_bytes * int(np.unique(self.group_of, return_counts=True)[1].max(initial=1))

    def slots_with(self, slot: int) -> range:
        """The days that lie in the same row group as this one."""
        first, stop = np.searchsorted(self.group_of, self.group_of[slot] + np.arange(2))
        return range(int(first), int(stop))

    def decode(self, slots: range, out: Float32Array) -> None:
        """Write days of one row group to an array (day, 2, step, node)."""
        layout, days = self.corpus.layout, self.days[slots.start : slots.stop]
        part, group = layout.locate(int(days[0]))
        block = self._read(part, group)
        rows = days - layout.groups_of(part)[group].start
        nodes = np.arange(layout.nodes) if self.nodes is None else self.nodes
        for k, values in enumerate((block.vm_pu, block.va_deg)):
            turn_days(values, rows, nodes, out[:, k])

    def _read(self, part: int, group: int) -> Phasors:
        """A row group; of all processes that share this decoder, one hashes its file."""
        name, files = f"{DATA}/{part_name(part)}", self.corpus.files
        marks, mark = self.marks.values.view(np.int64), files.mark(name)
        if mark and marks[part] == mark:
            files.accept(name)
        block = self.corpus.read_group(part, group)
        marks[part] = mark
        return block


def decoded_days(decoder: Decoder, budget: float) -> DecodedDays:
    """Days in memory.

    Parameters
    ----------
    budget : bytes that all processes together may keep.
    """
    if len(decoder.days) * decoder.day_bytes <= budget:
        return KeptDays(decoder)
    return RecentGroups(decoder, budget)


class RecentGroups:
    """The row groups used last, up to a budget of bytes and at least one; each process has its own."""

    def __init__(self, decoder: Decoder, budget: float) -> None:
        self._decoder = decoder
        self._budget = budget
        self._groups: OrderedDict[int, Float32Array] = OrderedDict()

    def day(self, slot: int) -> Float32Array:
        slots = self._decoder.slots_with(slot)
        found = self._groups.get(slots.start)
        if found is None:
            found = np.empty((len(slots), *self._decoder.shape), dtype=np.float32)
            self._make_room(found.nbytes)
            self._decoder.decode(slots, found)
            self._groups[slots.start] = found
        else:
            self._groups.move_to_end(slots.start)
        return np.asarray(found[slot - slots.start])

    def shared_by(self, processes: int) -> None:
        """Keep no more than the share of one of so many processes."""
        self._budget /= processes
        self._make_room(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_groups": OrderedDict()}

    def _make_room(self, wanted: int) -> None:
        held = sum(group.nbytes for group in self._groups.values())
        while self._groups and held + wanted > self._budget:
            held -= self._groups.popitem(last=False)[1].nbytes


class KeptDays:
    """All days, each decoded by whoever asks for it first.

    A day that two processes decode at the same moment is written twice, with the same bytes; it is marked as
    there once it is complete. Nothing is ever replaced, so no lock is needed.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._memory = _Shared(len(decoder.days) * (decoder.day_bytes + 1))
        self._see()

    def day(self, slot: int) -> Float32Array:
        if not self._there[slot]:
            slots = self._decoder.slots_with(slot)
            self._decoder.decode(slots, self._days[slots.start : slots.stop])
            self._there[slots.start : slots.stop] = 1
        return np.asarray(self._days[slot])

    def __getstate__(self) -> dict[str, Any]:
        return {"_decoder": self._decoder, "_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._see()

    def _see(self) -> None:
        n = len(self._decoder.days)
        stop = n * self._decoder.day_bytes
        self._days = self._memory.values[:stop].view(np.float32).reshape(n, *self._decoder.shape)
        self._there = self._memory.values[stop : stop + n]


class _Shared:
    """Zeros in memory that this process shares with those it starts.

    A forked process has it. A spawned one opens it through the file descriptor of its parent, where the
    system has such files, and makes sure by a random token that it is the same memory; else it has memory of
    its own. Pages take space when something is written to them.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._token = uuid.uuid4().bytes
        self._file = -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("dp-powerflow")
            weakref.finalize(self, os.close, self._file)
            os.ftruncate(self._file, size + _TOKEN_BYTES)
        self._map = mmap.mmap(self._file, size + _TOKEN_BYTES)
        self._map[size:] = self._token

    @property
    def values(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.frombuffer(self._map, dtype=np.uint8, count=self._size)

    def __getstate__(self) -> tuple[int, bytes, str]:
        return self._size, self._token, f"/proc/{os.getpid()}/fd/{self._file}"

    def __setstate__(self, state: tuple[int, bytes, str]) -> None:
        size, token, path = state
        try:
            file = os.open(path, os.O_RDWR)
            opened = mmap.mmap(file, size + _TOKEN_BYTES)
        except (OSError, ValueError):
            self.__init__(size)  # type: ignore[misc]
            return
        if opened[size:] != token:
            os.close(file)
            self.__init__(size)  # type: ignore[misc]
            return
        self._size, self._token, self._file, self._map = size, token, file, opened
        weakref.finalize(self, os.close, file)
