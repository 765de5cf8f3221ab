"""The notebooks run from the first cell to the last and print what is stored in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
FIGURES = {"producer": 2, "consumer": 2}
MOST_BYTES = 200_000


def printed(notebook: Any) -> list[str]:
    """What the cells print, cell by cell."""
    return ["".join(out.get("text", "") for out in cell.get("outputs", [])) for cell in notebook.cells]


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of the kernel's client
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_runs_and_prints_what_is_stored_in_it(name: str, tmp_path: Path) -> None:
    nbformat: Any = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient: Any = pytest.importorskip("nbclient", reason="nbclient is not installed")
    for package in ("ipykernel", "pandas", "sklearn"):
        pytest.importorskip(package)
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    run = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(run, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert printed(run) == printed(stored)
    outputs = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == FIGURES[name]


@pytest.mark.parametrize("name", FIGURES)
def test_a_stored_notebook_is_small_and_names_no_machine(name: str) -> None:
    content = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(content) < MOST_BYTES
    assert "/tmp" not in content
    assert "/home" not in content
