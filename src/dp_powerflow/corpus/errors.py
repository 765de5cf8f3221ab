"""What can go wrong with the files of a corpus, in one sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dp_powerflow.errors import DpPowerflowError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


class CorpusError(DpPowerflowError):
    """A corpus cannot be written, or what is on disk is not a corpus."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the failure of any write below `path` into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CorpusError(
                f"the disk is full or a quota is reached while writing {path}; "
                "free some space and run the same command again, parts already written are kept"
            ) from error
        if error.errno == errno.EROFS:
            raise CorpusError(
                f"{path} is on a read-only file system; choose a directory that can be written"
            ) from error
        if error.errno in _FORBIDDEN:
            raise CorpusError(
                f"no permission to write {path}; change its permissions or choose another directory"
            ) from error
        raise CorpusError(f"{path} cannot be written: {error.strerror or 'unknown reason'}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the failure of reading the Parquet file or directory `path` into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorpusError(f"{path} is missing; is this the directory of a finished release?") from error
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise CorpusError(
            f"{path} cannot be read as part of a corpus; check the release with: dp-powerflow verify"
        ) from error
