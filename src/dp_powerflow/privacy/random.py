"""The cryptographic generator, and exact discrete noise from it.

**Streams.** AES-128 in counter mode, one key per purpose and block. Noise and synthetic draws of a release
come from here. A stream is a pure function of (secret, purpose, context, block), so a result does not depend
on the number of workers and a crashed run resumes to the same bits. Two contexts (release id, model hash,
keyed network hash, keyed data hash) never share a stream: the same noise on two data sets, or the same loads
on two networks, would give the difference away.

**Noise.** The discrete Gaussian of Canonne, Kamath, Steinke (arXiv 2004.00010v4), vectorised:
P(X = x) ∝ exp(−x²/2σ²) on the integers, σ a positive integer. Every step is integer arithmetic on words of
the cryptographic generator: no floating-point number touches the noise, so its low bits say nothing about
the data (Mironov 2012). Running time depends on the noise only, but is not hidden.

Two facts keep all numbers below σ, whatever σ is (up to 2⁶²):
a Bernoulli(a·b) is a Bernoulli(a) and a Bernoulli(b); and with the Laplace proposal at scale σ the
acceptance exp(−(|y|−σ)²/2σ²) splits, for ||y|−σ| = kσ + r, into exp(−½)^(k²) · exp(−r/σ)^k · exp(−r²/2σ²).

The discrete Laplace, P(x) ∝ exp(−|x|/t), is its proposal. In two dimensions P(n) ∝ exp(−‖n‖∞/t): the radius
‖n‖∞ = N has 8N lattice points (one for N = 0), so N is the sum of two geometric numbers, P ∝ (N + 1)·q^N with
q = exp(−1/t), kept with probability N/(N + 1), or 1/8 at 0; then one of its points is chosen at random.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from randomgen import AESCounter

from dp_powerflow.errors import PrivacyError
from dp_powerflow.units import BoolArray, IntArray

SECRET_BYTES = 32
_MAX_SECRET_BYTES = 64  # what a BLAKE2b key can hold
_PERSON = b"dp-powerflow/v1"  # BLAKE2 personalisation: our keys are nobody else's keys
_AES_KEY_BYTES = 16
MAX_SIGMA = 2**48
_BATCH = 1 << 16


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
        return self.keyed_hasher()(chunks)

    def keyed_hasher(self) -> Callable[[Iterable[bytes]], str]:
        """`keyed_hash` for many messages: the key is derived once."""
        start = hashlib.blake2b(key=self._subkey("keyed hash"), digest_size=32, person=_PERSON)

        def keyed_hash(chunks: Iterable[bytes]) -> str:
            digest = start.copy()
            for chunk in chunks:
                digest.update(len(chunk).to_bytes(8, "little"))  # apart: a chunk may be large
                digest.update(chunk)
            return digest.hexdigest()

        return keyed_hash

    def stream(self, purpose: str, block: int = 0) -> Stream:
        """The stream of one purpose and block; asking twice gives the same bits twice."""
        if block < 0:
            raise PrivacyError("a stream's block is negative; number blocks from 0")
        return Stream(self._subkey("stream", purpose, str(block))[:_AES_KEY_BYTES])

    def _subkey(self, *parts: str) -> bytes:
        # Length prefixes make the encoding injective: ("ab", "c") and ("a", "bc") are different keys.
        digest = hashlib.blake2b(key=self.secret, digest_size=32, person=_PERSON)
        for part in (*self.context, "|", *parts):
            digest.update(_framed(part.encode()))
        return digest.digest()


def canonical_bytes(value: Any) -> bytes:
    """Plain values, arrays and dataclasses as bytes: other content, other bytes. For hashes.

    Never by way of the `repr` of an array, which leaves out the middle of a long one and follows NumPy's
    print options. An array is the list of its entries; lists and tuples are the same; the order of a mapping
    does not count.

    Raises
    ------
    PrivacyError
        If it holds an object whose content cannot be told.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        return _framed(b"str", value.encode())
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return _framed(kind.__name__.encode(), repr(kind(value)).encode())
    if value is None:
        return _framed(b"none")
    if is_dataclass(value) and not isinstance(value, type):
        parts = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        return _framed(b"object", type(value).__qualname__.encode(), canonical_bytes(parts))
    if isinstance(value, Mapping):
        pairs = sorted([(canonical_bytes(name), canonical_bytes(entry)) for name, entry in value.items()])
        return _framed(b"mapping", *[part for pair in pairs for part in pair])
    if isinstance(value, Sequence):
        return _framed(b"sequence", *map(canonical_bytes, value))
    raise PrivacyError(f"a {type(value).__name__} cannot be hashed by its content; use a dataclass instead")


def _framed(*parts: bytes) -> bytes:
    """Each part with its length before it: no two lists of parts give the same bytes."""
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


class Stream:
    """One AES-128 counter stream: exact integers for noise, a NumPy generator for synthetic draws."""

    def __init__(self, aes_key: bytes) -> None:
        self._aes_key = aes_key

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """`count` independent uniform 64-bit words."""
        words: np.ndarray[tuple[int], np.dtype[np.uint64]] = self._bits.random_raw(count)
        return words

    @cached_property
    def generator(self) -> np.random.Generator:
        """Floating-point draws. For synthetic data only; noise that buys privacy uses `words`."""
        return np.random.Generator(self._bits)

    @cached_property
    def round_keys(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        """(22,) for kernels that take the blocks of the stream by number; see `_bits.aes`.

        The caller uses no counter twice, and neither `words` nor `generator` of the same stream.
        """
        from dp_powerflow._bits.aes import round_keys  # numba: only for those who draw

        return round_keys(self._aes_key)

    @cached_property
    def _bits(self) -> AESCounter:
        return AESCounter(key=int.from_bytes(self._aes_key, "little"))

    def __repr__(self) -> str:
        return "Stream(AES-128 counter mode)"


def discrete_gaussian(stream: Stream, sigma: int, size: int) -> IntArray:
    """`size` independent draws of the discrete Gaussian N_Z(0, σ²).

    Parameters
    ----------
    sigma
        Scale on the grid, an integer in [1, 2⁴⁸] so that no draw can overflow 64 bits.

    Returns
    -------
    array (size,) of int64
    """

    parts = _nothing(sigma)
    while size > 0:
        # About 0.6 of the proposals survive; a batch more than needed saves rounds, a cap saves memory.
        proposals = _discrete_laplace(stream, sigma, min(2 * size + 16, _BATCH))
        distance = np.abs(np.abs(proposals) - sigma)  # kept with probability exp(−distance²/2σ²)
        whole, rest = distance // sigma, distance % sigma
        kept = _bernoulli_exp(stream, rest, sigma, squared_half=True)
        _thin(stream, kept, rest, sigma, times=whole)
        _thin(stream, kept, np.ones_like(rest), 2, times=whole * whole)
        parts.append(proposals[kept][:size])
        size -= parts[-1].size
    return np.concatenate(parts)


def discrete_laplace(stream: Stream, scale: int, size: int) -> IntArray:
    """Draws of P(x) ∝ exp(−|x|/scale) on the integers."""
    parts = _nothing(scale)
    while size > 0:
        parts.append(_discrete_laplace(stream, scale, min(2 * size + 4, _BATCH))[:size])
        size -= parts[-1].size
    return np.concatenate(parts)


def square_laplace(stream: Stream, scale: int, size: int) -> IntArray:
    """Draws (size, 2) of P(n) ∝ exp(−‖n‖∞/scale) on Z²."""
    parts = _nothing(scale)
    while size > 0:
        batch = 2 * min(2 * size + 4, _BATCH)
        first, second = _geometric_of(stream, scale, batch), _geometric_of(stream, scale, batch)
        count = min(first.size, second.size)
        radius = first[:count] + second[:count]
        at_zero = radius == 0
        drawn = uniform_below(stream, np.where(at_zero, 8, radius + 1), count)
        parts.append(radius[drawn < np.where(at_zero, 1, radius)][:size])
        size -= parts[-1].size
    radius = np.concatenate(parts)
    place = uniform_below(stream, np.maximum(8 * radius, 1), radius.size)
    side, along = np.divmod(place, np.maximum(2 * radius, 1))
    forward, back = along - radius, radius - along
    x = np.choose(side, [radius, back, -radius, forward])
    y = np.choose(side, [forward, radius, back, -radius])
    return np.stack([x, y], axis=1)


def _nothing(scale: int) -> list[IntArray]:
    """No draws yet, of a scale that no draw can overflow."""
    if not 1 <= scale <= MAX_SIGMA:
        raise PrivacyError(f"the noise scale must be an integer between 1 and {MAX_SIGMA} grid units")
    return [np.empty(0, dtype=np.int64)]


def uniform_below(stream: Stream, bound: int | IntArray, size: int) -> IntArray:
    """Independent uniform integers in [0, bound), by masking and rejection: exactly uniform.

    Parameters
    ----------
    bound
        Of all, or (size,) of each.
    """
    bounds = np.broadcast_to(np.asarray(bound, dtype=np.int64), size)
    _, bits = np.frexp((bounds - 1).astype(np.float64))  # never too few: rounding can only go up to 2^k
    masks = (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)
    out = np.empty(size, dtype=np.int64)
    todo = np.arange(size)
    while todo.size:
        words = (stream.words(todo.size) & masks[todo]).astype(np.int64)
        fits = words < bounds[todo]
        out[todo[fits]] = words[fits]
        todo = todo[~fits]
    return out


def _discrete_laplace(stream: Stream, scale: int, size: int) -> IntArray:
    """Draws of P(x) ∝ exp(−|x|/scale) by Algorithm 2 of CKS; fewer than `size` are returned."""
    magnitude = _geometric_of(stream, scale, size)
    negative = uniform_below(stream, 2, magnitude.size) == 1
    signed = np.where(negative, -magnitude, magnitude)
    kept: IntArray = signed[~(negative & (magnitude == 0))]  # else zero would be counted twice
    return kept


def _geometric_of(stream: Stream, scale: int, size: int) -> IntArray:
    """Draws of P(x) ∝ exp(−x/scale) on 0, 1, …; fewer than `size` are returned.

    An offset below the scale, and as many scales as Bernoulli(exp(−1)) succeeds before its first failure.
    """
    offset = uniform_below(stream, scale, size)
    offset = offset[_bernoulli_exp(stream, offset, scale)]
    count = np.zeros(offset.size, dtype=np.int64)
    alive = np.arange(offset.size)
    while alive.size:
        alive = alive[_bernoulli_exp(stream, np.ones(alive.size, dtype=np.int64), 1)]
        count[alive] += 1
    return offset + scale * count


def _thin(
    stream: Stream, accepted: BoolArray, numerator: IntArray, denominator: int, times: IntArray
) -> None:
    """Multiply the acceptance by exp(−numerator/denominator)^times, in place."""
    done = 0
    while True:
        alive = np.flatnonzero(accepted & (times > done))
        if not alive.size:
            return
        accepted[alive] = _bernoulli_exp(stream, numerator[alive], denominator)
        done += 1


def _bernoulli_exp(
    stream: Stream, numerator: IntArray, denominator: int, *, squared_half: bool = False
) -> BoolArray:
    """Bernoulli(exp(−γ)) with γ = a/b ≤ 1, or γ = a²/2b² (`squared_half`), by von Neumann's series.

    The first k at which Bernoulli(γ/k) fails is odd with probability exp(−γ).
    """
    result = np.zeros(numerator.size, dtype=np.bool_)
    alive = np.arange(numerator.size)
    k = 1
    while alive.size:
        a = numerator[alive]
        success = uniform_below(stream, denominator, a.size) < a
        if squared_half:
            success &= uniform_below(stream, denominator, a.size) < a
            success &= uniform_below(stream, 2, a.size) == 0
        if k > 1:
            success &= uniform_below(stream, k, a.size) == 0
        result[alive[~success]] = k % 2 == 1
        alive = alive[success]
        k += 1
    return result
