"""Pairs of normals from words: Box and Muller's formula in both precisions, at every edge of the words.

Their law is tested where it is drawn, in tests/model/test_law_of_draws.py.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dp_powerflow._bits import normal_pairs

RNG = np.random.default_rng(7)


def words(bits: int) -> list[tuple[int, int]]:
    """At random, and all pairs of edges: none, all, one bit, all but one, and their neighbours."""
    most = 2**bits - 1
    edges = sorted(
        {0, 1, 2, most, most - 1, 2 ** (bits - 1), 2 ** (bits - 2), *(1 << k for k in range(0, bits, 5))}
    )
    edges = sorted({*edges, *(most - edge for edge in edges)})
    drawn = RNG.integers(0, most, (2000, 2), dtype=np.uint64, endpoint=True).tolist()
    return [*((a, b) for a in edges for b in edges), *((int(a), int(b)) for a, b in drawn)]


def exact(first: int, second: int, bits: int, used: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """By the definition: `used` bits of the first word, the second after its first two."""
    u = (mpmath.mpf(first >> (bits - used)) + mpmath.mpf(0.5)) / 2**used
    radius = mpmath.sqrt(-2 * mpmath.log(u))
    place = mpmath.mpf((second << 2) % 2**bits) / 2**bits
    if bits == 64:
        place = (mpmath.mpf(((second << 2) % 2**64) >> 12) + mpmath.mpf(0.5)) / 2**52 - mpmath.mpf(0.5)
    else:
        place = place - 1 if place >= 0.5 else place  # a number with sign
    sine, cosine = mpmath.sin(place * mpmath.pi / 2), mpmath.cos(place * mpmath.pi / 2)
    signed = -radius if second >> (bits - 1) else radius
    swapped = (second >> (bits - 2)) & 1
    return (signed * sine, signed * cosine) if swapped else (signed * cosine, signed * sine)


def test_pairs_follow_the_formula() -> None:
    for first, second in words(64):
        found, wanted = normal_pairs.pair1(np.uint64(first), np.uint64(second)), exact(first, second, 64, 52)
        assert max(abs(float(f - w)) for f, w in zip(found, wanted, strict=True)) < 4e-15
        assert max(np.abs(found)) < 8.58


def test_short_pairs_follow_the_formula_to_2e_6_but_where_the_radius_is_lost() -> None:
    """u is rounded to 24 bits: next to 1, where the radius is short, it is off by up to 3.5e-4."""
    for first, second in words(32):
        found = normal_pairs.short_pair1(np.uint32(first), np.uint32(second))
        wanted = exact(first, second, 32, 31)
        radius = float(mpmath.sqrt(wanted[0] ** 2 + wanted[1] ** 2))
        limit = 2e-6 if radius > 0.05 else 3.5e-4
        assert max(abs(float(f) - float(w)) for f, w in zip(found, wanted, strict=True)) < limit
        assert max(np.abs(found)) < 6.67


@pytest.mark.parametrize("bits", [32, 64])
def test_every_quarter_of_the_plane_is_met_by_a_quarter_of_the_words(bits: int) -> None:
    angles = [int((k + 0.5) * 2.0 ** (bits - 6)) for k in range(64)]
    if bits == 64:
        found = np.array([normal_pairs.pair1(np.uint64(2**62), np.uint64(angle)) for angle in angles])
    else:
        found = np.array([normal_pairs.short_pair1(np.uint32(2**30), np.uint32(angle)) for angle in angles])
    turn = np.sort(np.arctan2(found[:, 1], found[:, 0]))
    assert np.allclose(np.diff(turn), 2 * np.pi / 64, atol=1e-5)
    assert np.allclose(np.hypot(*found.T), np.hypot(*found[0]), rtol=1e-6)
