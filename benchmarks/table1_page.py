"""Put a short form of what `dp-powerflow experiment comparison` wrote into docs/results/comparison.md.

    python benchmarks/table1_page.py results/table1.md

One row per system: its ticks, and W1 of the voltages on every data set. It replaces what stands between the
markers of the page; the prose stays. The figure beside the output is copied to docs/figures/.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- table1:begin -->", "<!-- table1:end -->"
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "results" / "comparison.md"
FIGURE = DOCS / "figures" / "table1.png"
TICKS = "Ticks: measured (the paper's)"
W1 = "W1 \\|v\\| pooled, 10⁻³"
MARKS = "loads private | lines private | voltages kept | any number of days | true Y"
NAMES = {"oedi": "OEDI", "simbench": "SimBench", "swiss": "Swiss"}


def short(output: str) -> str:
    """One table: the paper's rows with its ticks, and below each the systems that stand for it, measured.

    A tick that differs from the paper's is bold.
    """
    tables = {title: list(rows_of(output, title)) for title in (TICKS, *NAMES) if f"**{title}**" in output}
    (_, *ticks), data = tables.pop(TICKS), tables
    found = {
        name: {tuple(row[:2]): row[table[0].index(W1)] for row in table[1:]} for name, table in data.items()
    }
    lines = [
        f"| system | unit | {MARKS} | {' | '.join(f'W1 {NAMES[name]}' for name in found)} |",
        "|---|---" + "|:-:" * 5 + "|--:" * len(found) + "|",
    ]
    group = ""
    for title, unit, row_of_paper, *marks in ticks:
        pairs = [mark.rstrip(")").split(" (") for mark in marks]
        if row_of_paper != group:
            group = row_of_paper
            printed = [f"*{pair[1]}*" if len(pair) == 2 else "" for pair in pairs]
            heading = ("not in the table", "") if group == "—" else (group, "*paper*")
            lines.append(row(f"*{heading[0]}*", heading[1], *printed, *[""] * len(found)))
        measured = [pair[0] if len({*pair}) == 1 else f"**{pair[0]}**" for pair in pairs]
        lines.append(row(title, unit, *measured, *(mean(column[title, unit]) for column in found.values())))
    return "\n".join(lines)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def rows_of(output: str, title: str) -> Iterator[list[str]]:
    """Cells of the table below a bold title, its head first."""
    table = output.split(f"**{title}**\n\n")[1].split("\n\n")[0]
    for line in table.splitlines():
        if not re.fullmatch(r"[|:-]+", line):
            yield re.split(r" (?<!\\)\| ", line.strip("| "))


def mean(cell: str) -> str:
    """A mean without its standard error; a dash for a release without voltages."""
    return "—" if cell.startswith("not ") else cell.split(" ± ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="table1.md that the experiment wrote")
    output: Path = parser.parse_args().output
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    table = short(output.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    figure = output.with_suffix(".png")
    if figure.is_file():
        shutil.copyfile(figure, FIGURE)


if __name__ == "__main__":
    main()
