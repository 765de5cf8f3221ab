"""Windows for training: what they hold, how much memory they keep, and in which order they come."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dp_powerflow.corpus.grid import Phasors, round_to_grid
from dp_powerflow.corpus.reader import Corpus, open_corpus
from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.tables import NodeTable
from dp_powerflow.errors import CorpusError
from support.corpora import LAYOUT, voltages, write_corpus

torch: Any = pytest.importorskip("torch")

WIDE = CorpusLayout(days=12, steps=96, nodes=500, days_per_part=6)
"""Six row groups of two days."""
GROUP_MB = WIDE.days_per_group * 96 * 500 * 8 / 1e6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    nodes = NodeTable(("e", "c", "a", "f", "b", "d", "g"))
    return open_corpus(write_corpus(tmp_path_factory.mktemp("windows") / "release", nodes=nodes))


@pytest.fixture(scope="module")
def written() -> Phasors:
    return round_to_grid(voltages(LAYOUT, range(LAYOUT.days)))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return open_corpus(write_corpus(tmp_path_factory.mktemp("wide") / "release", WIDE))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Row groups that this process decodes."""
    found: list[tuple[int, int]] = []
    read_group = Corpus.read_group

    def counted(self: Corpus, part: int, group: int) -> Phasors:
        found.append((part, group))
        return read_group(self, part, group)

    monkeypatch.setattr(Corpus, "read_group", counted)
    return found


def test_windows_are_tensors_within_one_day(corpus: Corpus, written: Phasors) -> None:
    windows = corpus.windows(8, 5)
    assert isinstance(windows, torch.utils.data.Dataset)
    assert len(windows) == 11 * 4
    window = windows[4 * 6 + 2]
    assert (window.day, window.start) == (6, 10)
    assert window.vm_pu.dtype == torch.float32
    np.testing.assert_array_equal(window.vm_pu.numpy(), written.vm_pu[6, 10:18])
    np.testing.assert_array_equal(window.va_deg.numpy(), written.va_deg[6, 10:18])
    np.testing.assert_array_equal(windows[-1].va_deg.numpy(), written.va_deg[10, 15:23])
    with pytest.raises(IndexError):
        windows[len(windows)]
    window.vm_pu.zero_()  # what is kept does not change
    np.testing.assert_array_equal(windows[4 * 6 + 2].vm_pu.numpy(), written.vm_pu[6, 10:18])


def test_windows_keep_no_more_than_the_cache_and_travel_without_it(
    wide: Corpus, reads: list[tuple[int, int]]
) -> None:
    roomy, tight = wide.windows(96, cache_mb=6.1 * GROUP_MB), wide.windows(96, cache_mb=1.5 * GROUP_MB)
    for windows, expected in ((roomy, 6), (tight, 12)):
        reads.clear()
        for _ in range(2):
            for index in range(len(windows)):
                windows[index]
        assert len(reads) == expected
        assert len(pickle.dumps(windows)) < 20_000


def test_the_bytes_of_chosen_days_and_nodes_alone_count(wide: Corpus, reads: list[tuple[int, int]]) -> None:
    windows = wide.windows(96, days=[0, 5, 5, 11], nodes=range(50), cache_mb=3 * 96 * 50 * 8 / 1e6)
    for index in (0, 1, 2, 3, 0, 3, 1):
        windows[index]
    assert len(reads) == 3


def test_a_batch_reads_every_row_group_once(wide: Corpus, reads: list[tuple[int, int]]) -> None:
    windows = wide.windows(48, 48, cache_mb=GROUP_MB)
    order = np.random.default_rng(0).permutation(len(windows)).tolist()
    batch = windows.__getitems__(order)
    assert len(reads) == 6
    assert [(window.day, window.start) for window in batch] == [(k // 2, k % 2 * 48) for k in order]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_give_the_same_windows(corpus: Corpus, written: Phasors, start: str) -> None:
    windows = corpus.windows(12, 12)
    loader = torch.utils.data.DataLoader(windows, batch_size=4, num_workers=1, multiprocessing_context=start)
    batches = [zip(batch.day, batch.start, batch.vm_pu, strict=True) for batch in loader]
    given = [item for batch in batches for item in batch]
    assert len(given) == len(windows)
    for day, first, vm_pu in given:
        np.testing.assert_array_equal(vm_pu.numpy(), written.vm_pu[int(day), int(first) : int(first) + 12])


@pytest.mark.parametrize("cache_mb", [2 * GROUP_MB, 7 * GROUP_MB], ids=["a third of it", "all"])
def test_the_sampler_gives_every_window_once_and_decodes_every_group_once(
    wide: Corpus, reads: list[tuple[int, int]], cache_mb: float
) -> None:
    windows = wide.windows(24, 24, days=[*range(11), 3], cache_mb=cache_mb)
    sampler = windows.sampler(generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(windows, batch_size=1, sampler=sampler)
    seen = [(int(batch.day), int(batch.start)) for batch in loader]
    assert sorted(seen) == sorted((day, start) for day in [*range(11), 3] for start in (0, 24, 48, 72))
    assert len(reads) == 6
    again = [(window.day, window.start) for window in map(windows.__getitem__, sampler)]
    assert sorted(again) == sorted(seen)
    assert again != seen
    same = list(windows.sampler(generator=torch.Generator().manual_seed(1)))
    assert same == list(windows.sampler(generator=torch.Generator().manual_seed(1)))
    assert len(sampler) == len(windows) == len(same)


def test_every_worker_gets_batches_from_row_groups_of_its_own(wide: Corpus) -> None:
    """Else each of them would decode everything; a loader deals batches in turn."""
    windows = wide.windows(24, 24, cache_mb=2 * GROUP_MB)
    order = list(windows.sampler(workers=2, batch_size=4))
    assert sorted(order) == list(range(len(windows)))
    groups = [{windows[index].day // 2 for index in order[first : first + 4]} for first in range(0, 48, 4)]
    mine, other = (set().union(*groups[k::2]) for k in (0, 1))
    assert (len(mine), len(other), mine & other) == (3, 3, set())
    with pytest.raises(CorpusError, match="batch_size"):
        windows.sampler(workers=2)


@pytest.mark.parametrize(("length", "stride"), [(0, 1), (25, 1), (4, 0)])
def test_windows_that_do_not_fit_a_day_are_refused(corpus: Corpus, length: int, stride: int) -> None:
    with pytest.raises(CorpusError, match=r"a window lies within one day|stride of windows"):
        corpus.windows(length, stride)
