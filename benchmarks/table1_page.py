"""Put the output of `dp-powerflow experiment comparison` into docs/results/table1.md, between its markers.

    python benchmarks/table1_page.py results/table1.md

The prose of the page stays; whatever stands between the markers is replaced. The figure beside the output is
copied to docs/figures/.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

BEGIN, END = "<!-- table1:begin -->", "<!-- table1:end -->"
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "results" / "table1.md"
FIGURE = DOCS / "figures" / "table1.png"


def with_output(page: str, output: str) -> str:
    """The page with the output between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{output.strip()}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="table1.md that the experiment wrote")
    output: Path = parser.parse_args().output
    PAGE.write_text(
        with_output(PAGE.read_text(encoding="utf-8"), output.read_text(encoding="utf-8")), "utf-8"
    )
    figure = output.with_suffix(".png")
    if figure.is_file():
        shutil.copyfile(figure, FIGURE)


if __name__ == "__main__":
    main()
