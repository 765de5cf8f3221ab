"""Windows of a corpus for PyTorch. Nothing else here needs torch, so it is imported only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dp_powerflow.corpus.windows import Window, Windows
from dp_powerflow.errors import require

if TYPE_CHECKING:
    from dp_powerflow.corpus.reader import Corpus, Days, Nodes

torch: Any = require("torch", "ml")
_Dataset: Any = require("torch.utils.data", "ml").Dataset


class TorchWindows(_Dataset):  # type: ignore[misc]
    """`torch.utils.data.Dataset` whose items are a `Window` of float32 tensors (step, node).

    A `DataLoader` collates them to tensors (window, step, node) and integer tensors of days and first steps.
    """

    def __init__(
        self, corpus: Corpus, length: int, stride: int, *, days: Days, nodes: Nodes, cache_mb: float
    ) -> None:
        self._windows = Windows(corpus, length, stride, days=days, nodes=nodes, cache_mb=cache_mb)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Window:
        window = self._windows[index]
        return window._replace(vm_pu=torch.from_numpy(window.vm_pu), va_deg=torch.from_numpy(window.va_deg))
