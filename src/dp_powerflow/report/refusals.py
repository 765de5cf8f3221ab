"""INTERNAL. The feeders of a fleet that cannot be released, as `fleet --plan` shows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dp_powerflow.fleet.refusals import Refusal, lines_to_paste

_KEYS_SHOWN = 8
_LINES_SHOWN = 60


def refusal_lines(found: Sequence[Refusal], existing: Collection[str] = ()) -> list[str]:
    """Markdown: every reason with its feeders and its remedy, then what to paste; nothing if there is none.

    Parameters
    ----------
    existing : keys of feeders that have overrides already.
    """
    if not found:
        return []
    feeders = {key for refusal in found for key in refusal.keys}
    count = f"{len(feeders)} feeder{'s' * (len(feeders) > 1)}"
    lines = ["", f"**{count} cannot be released**, all else could:", ""]
    for number, refusal in enumerate(found, start=1):
        lines += [f"{number}. {_in_words(refusal)}"]
        if refusal.remedy is not None:
            lines += ["", f"   *Remedy:* {_plain(refusal.remedy.words)}"]
        lines += [""]
    return [*lines, *_to_paste(lines_to_paste(found, existing))]


def refusal_entries(found: Sequence[Refusal], existing: Collection[str] = ()) -> dict[str, Any]:
    """The same for JSON, with all feeders and all that can be pasted."""
    return {
        "refusals": [
            {
                "sentence": refusal.sentence,
                "feeders": list(refusal.keys),
                "remedy": None if refusal.remedy is None else refusal.remedy.words,
            }
            for refusal in found
        ],
        "paste": lines_to_paste(found, existing),
    }


def _in_words(refusal: Refusal) -> str:
    keys, more = refusal.keys[:_KEYS_SHOWN], len(refusal.keys) - _KEYS_SHOWN
    listed = ", ".join(keys) + (f" and {more} more" if more > 0 else "")
    count = f"{len(refusal.keys)} feeder{'s' * (len(refusal.keys) > 1)}"
    return f"{count}: {_plain(refusal.sentence)}: {_plain(listed)}"


def _to_paste(lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = len(lines) - _LINES_SHOWN
    rest = [f"# and {more} lines more: dp-powerflow fleet FILE --plan --json"] if more > 0 else []
    return [
        "To paste into the config, as far as you want it:",
        "",
        "```toml",
        *lines[:_LINES_SHOWN],
        *rest,
        "```",
    ]


def _plain(text: str) -> str:
    """A sentence in Markdown whose stars are stars, on one line."""
    return text.replace("*", "\\*").replace("\n", " ")
