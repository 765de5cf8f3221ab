"""The load model of a release, derived again from its published integers in a thread of its own.

That takes longer than any other step of a check and needs few modules, so it can begin before the others are
imported.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_powerflow.manifest.model import MALFORMED, MODEL_FILE
from dp_powerflow.model.gaussian import LoadModel

if TYPE_CHECKING:
    from dp_powerflow.corpus.storage import Location


def begin(directory: Location) -> bytes | None:
    """Begin to derive the model of a release; gives the bytes of its file, None if there is no plain file."""
    path = directory / MODEL_FILE
    try:
        plain = not isinstance(path, Path) or (path.is_file() and not path.is_symlink())
        content = path.read_bytes() if plain else None
    except OSError:
        return None
    if content is not None:
        _begun(content)
    return content


def model_of(content: bytes) -> LoadModel | None:
    """The load model, None if the content of `model.json` is none whose cost can be stated."""
    return _begun(content).result()


@lru_cache(maxsize=16)  # feeders of a fleet are looked at at the same time
def _begun(content: bytes) -> Future[LoadModel | None]:
    """What is derived is kept, so that it is there when all is put together; a fleet may share one model."""
    thread = ThreadPoolExecutor(1)
    found = thread.submit(_derived, content)
    thread.shutdown(wait=False)
    return found


def _derived(content: bytes) -> LoadModel | None:
    try:
        with np.errstate(all="ignore"):  # figures that somebody made up may overflow
            model = LoadModel.from_json(content.decode("utf-8"))
        return model if model.n_steps and math.isfinite(model.spent_epsilon) else None
    except (RecursionError, *MALFORMED):
        return None
