"""Changes of CSV files that know what a cell, a row and a column is."""

from __future__ import annotations

import random

from support.fuzz.texts import damaged, edited, nasty_text, recoded


def csv_changed(rng: random.Random, content: bytes) -> bytes:
    """A CSV file with cells, rows, columns, signs or bytes changed."""
    if rng.random() < 0.12:
        return damaged(rng, content)
    if rng.random() < 0.06:
        return recoded(rng, content)
    rows = [line.split(",") for line in content.decode("utf-8", "replace").splitlines()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, rows)
    separator = rng.choice(",;\t|") if rng.random() < 0.04 else ","
    text = "\n".join(separator.join(row) for row in rows) + rng.choice(("\n", "\n", "\n", "", "\n\n", '"'))
    return text.encode("utf-8", "surrogatepass")


def _change(rng: random.Random, rows: list[list[str]]) -> None:
    if not rows:
        rows.append([nasty_text(rng)])
        return
    where = rng.choice((0, rng.randrange(len(rows)), rng.randrange(len(rows))))
    row, choice = rows[where], rng.randrange(12)
    column = rng.randrange(len(row)) if row else 0
    if choice <= 3 and row:
        row[column] = rng.choice((nasty_text(rng), edited(rng, row[column]), _number(rng, row[column])))
    elif choice == 4:
        del rows[where]
    elif choice == 5:
        rows.insert(rng.randrange(len(rows) + 1), list(row))
    elif choice == 6:
        other = rng.randrange(len(rows))
        rows[where], rows[other] = rows[other], rows[where]
    elif choice == 7:
        _change_column(rng, rows, column)
    elif choice == 8 and row:
        row[column] = f'"{row[column]}' + rng.choice(('"', "", '""', '"x', "\n"))
    elif choice == 9:
        row.append(nasty_text(rng))
    elif choice == 10 and row:
        del row[column]
    else:
        del rows[rng.randrange(len(rows)) :]


def _change_column(rng: random.Random, rows: list[list[str]], column: int) -> None:
    choice = rng.randrange(4)
    for number, row in enumerate(rows):
        if column >= len(row):
            continue
        if choice == 0:
            del row[column]
        elif choice == 1:
            row.append(row[column])
        elif choice == 2:
            row[column], row[0] = row[0], row[column]
        elif number:
            row[column] = _number(rng, row[column]) if rng.random() < 0.9 else row[column]


def _number(rng: random.Random, cell: str) -> str:
    try:
        value = float(cell)
    except ValueError:
        return edited(rng, cell)
    return rng.choice(
        (
            f"{value * 1000:.6g}",
            f"{-value:.6g}",
            "",
            "nan",
            "inf",
            "1e300",
            f"{value:.3f}".replace(".", ","),
            "0",
        )
    )
