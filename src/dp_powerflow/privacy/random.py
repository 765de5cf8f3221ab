"""The cryptographic generator: AES-128 in counter mode, one key per purpose and block.

Noise and synthetic draws of a release come from here. A stream is a pure function of (secret, purpose,
context, block), so a result does not depend on the number of workers and a crashed run resumes to the same
bits. Two contexts (release id, model hash, keyed network hash, keyed data hash) never share a stream: the
same noise on two data sets, or the same loads on two networks, would give the difference away.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from randomgen import AESCounter

from dp_powerflow.errors import PrivacyError

SECRET_BYTES = 32
_MAX_SECRET_BYTES = 64  # what a BLAKE2b key can hold
_PERSON = b"dp-powerflow/v1"  # BLAKE2 personalisation: our keys are nobody else's keys
_AES_KEY_BYTES = 16


@dataclass(frozen=True)
class StreamKey:
    """A secret and the context its streams are bound to.

    Parameters
    ----------
    secret
        32 to 64 bytes from the operating system. Kept in the private state directory, never released;
        not shown by `repr`.
    context
        Public or keyed facts the streams depend on, such as ``("release", "2024-q1")``.
    insecure_seed
        True when the secret came from a seed. Whatever is produced with it says so, and is not a release.
    """

    secret: bytes = field(repr=False)
    context: tuple[str, ...] = ()
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        if not SECRET_BYTES <= len(self.secret) <= _MAX_SECRET_BYTES:
            raise PrivacyError(
                f"the secret of the generator must have {SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes; "
                "create it with StreamKey.from_system()"
            )

    @classmethod
    def from_system(cls) -> StreamKey:
        """A fresh secret from the operating system's generator."""
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_insecure_seed(cls, seed: int) -> StreamKey:
        """A reproducible key for tests, demos and experiments; marks all results `insecure_seed`."""
        material = hashlib.blake2b(f"insecure seed {seed}".encode(), digest_size=SECRET_BYTES, person=_PERSON)
        return cls(material.digest(), insecure_seed=True)

    def bind(self, name: str, value: str) -> StreamKey:
        """The key of a narrower context; order matters, and nothing bound can be unbound."""
        return replace(self, context=(*self.context, name, value))

    def keyed_hash(self, chunks: Iterable[bytes]) -> str:
        """Hex digest of private bytes under the secret; safe to bind, useless without the secret."""
        digest = hashlib.blake2b(key=self._subkey("keyed hash"), digest_size=32, person=_PERSON)
        for chunk in chunks:
            digest.update(len(chunk).to_bytes(8, "little"))
            digest.update(chunk)
        return digest.hexdigest()

    def stream(self, purpose: str, block: int = 0) -> Stream:
        """The stream of one purpose and block; asking twice gives the same bits twice."""
        if block < 0:
            raise PrivacyError("a stream's block is negative; number blocks from 0")
        return Stream(self._subkey("stream", purpose, str(block))[:_AES_KEY_BYTES])

    def _subkey(self, *parts: str) -> bytes:
        # Length prefixes make the encoding injective: ("ab", "c") and ("a", "bc") are different keys.
        digest = hashlib.blake2b(key=self.secret, digest_size=32, person=_PERSON)
        for part in (*self.context, "|", *parts):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.digest()


class Stream:
    """One AES-128 counter stream: exact integers for noise, a NumPy generator for synthetic draws."""

    def __init__(self, aes_key: bytes) -> None:
        self._bits = AESCounter(key=int.from_bytes(aes_key, "little"))
        self._generator = np.random.Generator(self._bits)

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """`count` independent uniform 64-bit words."""
        words: np.ndarray[tuple[int], np.dtype[np.uint64]] = self._bits.random_raw(count)
        return words

    @property
    def generator(self) -> np.random.Generator:
        """Floating-point draws. For synthetic data only; noise that buys privacy uses `words`."""
        return self._generator

    def __repr__(self) -> str:
        return "Stream(AES-128 counter mode)"
