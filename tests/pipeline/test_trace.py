"""The path of a release and of `verify`: few modules, not deep, never upward. Limits are targets."""

from __future__ import annotations

from pathlib import Path

import pytest

import dp_powerflow as dpf
from journeys.twelve import done
from support.walk import walking


def written_by_init(folder: Path) -> dpf.Config:
    """The config of the example that `init` writes, on a smaller feeder, with fewer days."""
    folder.mkdir()
    done("init", folder / "release.toml")
    text = (folder / "release.toml").read_text()
    smaller = {'"ieee123"': '"ieee13"', "days = 28": "days = 3", "[release]": "[release]\ninsecure_seed = 7"}
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "release.toml").write_text(text)
    return dpf.read_config(folder / "release.toml")


@pytest.mark.slow
def test_a_release_and_its_check_are_short_walks(tmp_path: Path) -> None:
    # Once unwatched: compiling kernels under a profiler takes minutes.
    dpf.release(written_by_init(tmp_path / "first"), workers=1)
    config = written_by_init(tmp_path / "second")
    with walking() as made:
        path = str(dpf.release(config, workers=1).path)
    dpf.verify(path)
    with walking() as checked:
        dpf.verify(path)
    assert len(made.modules) <= 80, "\n".join(made.modules)
    assert made.depth <= 16
    assert len(checked.modules) <= 40, "\n".join(checked.modules)
    assert not [*made.upward, *checked.upward]
