"""The anchor: a small file beside the ledger that says where its chain of entries stood last."""

from __future__ import annotations

import contextlib
import hmac
from dataclasses import dataclass

from dp_powerflow._files import is_temporary, read_private, write_private
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.state import PrivateState

_FORMAT = "dp-powerflow-anchor-2"


@dataclass(frozen=True)
class Anchor:
    """Where the chain stood: number and keyed hash of an entry; `tag` is its own, None up to format 1.

    The number only grows, so that a tag of its own, over number and hash, needs no further counter.
    """

    number: int
    mac: str
    tag: str | None


class AnchorFile:
    """The anchor of one private state directory."""

    def __init__(self, state: PrivateState) -> None:
        self._path = state.anchor_path
        self._key = state.stream_key().bind("ledger", "anchor, format 2")

    def read(self) -> Anchor | None:
        """The anchor as it lies there, genuine or not; None if there is none."""
        content = read_private(self._path)
        if content is None:
            return None
        words = content.decode(errors="replace").split()
        signed = words[:1] == [_FORMAT]
        number, mac, tag = [*words[signed:], "", "", ""][:3]
        if not (number.isascii() and number.isdigit()) or len(words) != (4 if signed else 2):
            raise PrivacyError(
                f"the ledger has a damaged anchor; restore {self._path} from the newest backup; nothing was "
                "spent"
            )
        return Anchor(int(number), mac, tag if signed else None)

    def is_genuine(self, anchor: Anchor) -> bool:
        """Whether it was written with the key; one without a tag cannot tell."""
        right = self._tag(anchor.number, anchor.mac)
        return anchor.tag is None or hmac.compare_digest(anchor.tag.encode(), right.encode())

    def write(self, number: int, mac: str) -> None:
        """Replace the anchor; whoever calls holds the lock of the ledger."""
        write_private(self._path, f"{_FORMAT} {number} {mac} {self._tag(number, mac)}\n".encode())
        # Under the lock any other temporary anchor is of a process that was killed.
        for stale in self._path.parent.glob(f"{self._path.name}*"):
            if is_temporary(stale.name):
                with contextlib.suppress(OSError):
                    stale.unlink()

    def _tag(self, number: int, mac: str) -> str:
        return self._key.keyed_hash([str(number).encode(), b" ", mac.encode()])
