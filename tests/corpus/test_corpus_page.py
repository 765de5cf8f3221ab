"""The example of docs/reference/corpus.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dp_powerflow.corpus.schema import CorpusLayout, NodeTable
from dp_powerflow.corpus.validate import validate_corpus
from dp_powerflow.corpus.writer import CorpusWriter
from support.corpora import EXTRAS, write_parts

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "corpus.md"


def test_the_example_reads_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "xarray", "zarr", "torch"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (reading,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    layout = CorpusLayout(days=20, steps=96, nodes=85, days_per_part=50)
    writer = CorpusWriter(Path("release"), layout, release_id="a3f9", extras=EXTRAS)
    writer.prepare()
    write_parts(writer)
    writer.write_nodes(NodeTable.opaque(85))
    writer.add_file("manifest.json", "\n".join(writer.hashes()).encode())
    writer.finish()
    listed = (tmp_path / "release" / "manifest.json").read_text().splitlines()
    parts = [f"{folder}/part-00000.parquet" for folder in ("data", "feeder", "loads")]
    assert listed == [*parts, "nodes.parquet"]
    names: dict[str, Any] = {}
    exec(reading, names)
    assert names["batch"].days.stop == 20
    assert validate_corpus("release").ok
