"""Bytes and texts that programs stumble over, and ways to damage a file without knowing what it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Mutate = Callable[[random.Random, bytes], bytes]
"""Another input made from a valid one; the same generator gives the same input."""

NASTY_TEXTS: tuple[str, ...] = (
    *("", " ", "\t", "\x00", "a\x00b", "a\nb", "a\r\nb", "\x1b[2Jgone", "\x07", "\x7f", "\x85", "\x9b31m"),
    *(
        "\u202egnp.exe",
        "\u2066x\u2069",
        "\u200bx",
        "\ufeffx",
        "\u2028",
        "\ud800",
        "\udfff",
        "e\u0301",
        "é",
        "ß",
        "İ",
    ),
    *("𝔘", "😀", "\U0010ffff", "ｎａｎ", "\u0663", "²", "½", "１２"),
    *(
        "..",
        "../../../outside",
        "/dev/null",
        "/dev/zero",
        "~",
        "~root",
        "$HOME",
        "%s%n",
        "{0}",
        "{x.__class__}",
    ),
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "1e999",
        "-1",
        "0",
        "1_000",
        "0x10",
        "1,5",
        "1.5.2",
        "true",
        "null",
    ),
    *(
        "None",
        "undefined",
        "' OR 1=1 --",
        '"',
        "'",
        "`",
        "\\",
        "\\\\",
        "#",
        ";",
        ",",
        "|",
        "=",
        "[",
        "]",
        "(",
        "}",
    ),
    *("9" * 400, "9" * 5000, "-" + "9" * 30, "1e-400", "0." + "0" * 400 + "1", "a" * 300, "a" * 70_000),
    *(
        "file:///outside",
        "s3://",
        "memory://x/../y",
        "con",
        "aux.txt",
        "a/b",
        "a\\b",
        "C:\\x",
        "//x",
        ".",
        "-",
        "--",
    ),
    *("2024-02-30", "0000-00-00", "9999-12-31", "0001-01-01", "2024-03-31 02:30", "2024-W01-1", "24:00"),
    *("Europe/Berlin", "../../etc/localtime", "UTC+99", "kWh", "kW", "long", "wide", "twin-network"),
)
NASTY_BYTES: tuple[bytes, ...] = (
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\xfe\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf5\x80",
    ),
    *(
        b"\x80" * 8,
        b"\x00" * 64,
        b"\xff" * 64,
        b"PAR1",
        b"PK\x03\x04",
        b"SQLite format 3\x00",
        b"\x1f\x8b\x08",
    ),
    *(
        b"<script>",
        b"-->",
        b"]]>",
        b"\r",
        b"\n",
        b"\r\n\r\n",
        b"{" * 3000,
        b"[" * 100_000,
        b'"',
        b"'",
        b"\\u0000",
    ),
)


def nasty_text(rng: random.Random) -> str:
    """A text that some program stumbles over."""
    return rng.choice(NASTY_TEXTS)


def edited(rng: random.Random, text: str) -> str:
    """A text with a small change: a sign more, less or other, case, blanks, or another text in it."""
    where = rng.randrange(len(text) + 1)
    choice = rng.randrange(8)
    if choice == 0:
        return text[:where] + nasty_text(rng)[:200] + text[where:]
    if choice == 1:
        return text[:where] + text[where + 1 :]
    if choice == 2:
        return (
            text[:where]
            + chr(rng.choice((0, 9, 10, 27, 32, 34, 39, 44, 46, 59, 0x202E, 0xD800)))
            + text[where:]
        )
    if choice == 3:
        return text.swapcase()
    if choice == 4:
        return f" {text} "
    if choice == 5:
        return text[::-1]
    if choice == 6:
        return text * rng.choice((0, 2, 50))
    return nasty_text(rng)


def damaged(rng: random.Random, content: bytes) -> bytes:
    """A file with some bytes changed, cut out, doubled, moved or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _damage(rng, data)
    return bytes(data)


def _damage(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data) + 1)
    if len(data) > 40 and rng.random() < 0.3:  # ends of files hold their directories
        start = rng.choice((rng.randrange(20), len(data) - 1 - rng.randrange(20)))
    stop = min(len(data), start + rng.choice((1, 2, 4, 16, 200)))
    choice = rng.randrange(9)
    if choice == 0 and start < len(data):
        data[start] ^= 1 << rng.randrange(8)
    elif choice == 1 and start < len(data):
        data[start] = rng.choice((0, 1, 9, 10, 13, 34, 44, 127, 128, 255, rng.randrange(256)))
    elif choice == 2:
        del data[start:]
    elif choice == 3:
        del data[start:stop]
    elif choice == 4:
        data[start:start] = data[start:stop]
    elif choice == 5:
        data[start:start] = rng.choice(NASTY_BYTES)
    elif choice == 6:
        other = rng.randrange(len(data) + 1)
        data[start:stop] = data[other : other + stop - start]
    elif choice == 7:
        data[start:stop] = rng.randbytes(stop - start)
    else:
        data[start:stop] = nasty_text(rng).encode("utf-8", "surrogatepass")[:5000]


def recoded(rng: random.Random, content: bytes) -> bytes:
    """A text file in another encoding, or with other ends of lines."""
    text = content.decode("utf-8", "replace")
    choice = rng.randrange(6)
    if choice == 0:
        return text.encode("utf-16")
    if choice == 1:
        return b"\xef\xbb\xbf" + content
    if choice == 2:
        return text.encode("latin-1", "replace") + b"\xe9\n"
    if choice == 3:
        return content.replace(b"\n", b"\r\n")
    if choice == 4:
        return content.replace(b"\n", b"\r")
    return text.encode("utf-32")


def words_changed(tokens: Sequence[str]) -> Mutate:
    """A way to change a text of words: lines and words moved, doubled or replaced, by `tokens` too."""

    def mutate(rng: random.Random, content: bytes) -> bytes:
        if rng.random() < 0.15:
            return damaged(rng, content)
        if rng.random() < 0.03:
            return recoded(rng, content)
        lines = content.decode("utf-8", "replace").split("\n")
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            _change_line(rng, lines, tokens)
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    return mutate


def _change_line(rng: random.Random, lines: list[str], tokens: Sequence[str]) -> None:
    where = rng.randrange(len(lines)) if lines else 0
    choice = rng.randrange(7)
    if not lines or choice == 0:
        lines.insert(where, rng.choice(tokens))
    elif choice == 1:
        del lines[where]
    elif choice == 2:
        lines.insert(rng.randrange(len(lines)), lines[where])
    elif choice == 3:
        other = rng.randrange(len(lines))
        lines[where], lines[other] = lines[other], lines[where]
    else:
        words = lines[where].split(" ")
        spot = rng.randrange(len(words))
        name, sign, value = words[spot].partition("=")
        given = rng.choice((rng.choice(tokens), nasty_text(rng)[:400], edited(rng, value or name)))
        words[spot] = f"{name}{sign}{given}" if sign and rng.random() < 0.7 else given
        if rng.random() < 0.2:
            words.insert(rng.randrange(len(words) + 1), rng.choice(tokens))
        lines[where] = " ".join(words)
