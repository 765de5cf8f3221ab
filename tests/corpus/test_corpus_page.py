"""The examples of docs/corpus.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.corpus.schema import CorpusLayout
from dp_powerflow.corpus.validate import validate_corpus
from support.corpora import voltages

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"


def test_the_examples_write_and_read_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "xarray", "zarr", "torch"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    writing, reading = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert "days=365" in writing
    shape = CorpusLayout(days=20, steps=96, nodes=85, days_per_part=50)
    names: dict[str, Any] = {
        "solve": lambda days: voltages(shape, days),
        "manifest": lambda hashes: "\n".join(hashes).encode(),
    }
    exec(writing.replace("days=365", "days=20"), names)
    assert (tmp_path / "release" / "manifest.json").read_text() == "data/part-00000.parquet\nnodes.parquet"
    exec(reading, names)
    assert names["batch"].days.stop == 20
    assert validate_corpus("release").ok
