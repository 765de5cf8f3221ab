"""AES of counters in kernels: the words of randomgen's generator, by either way of computing them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from randomgen import AESCounter

from dp_powerflow._bits import aes
from dp_powerflow.privacy.random import StreamKey

WAYS = [aes.table_words, *([aes.hardware_words] if aes.HARDWARE else [])]


@pytest.mark.parametrize("words", WAYS)
def test_words_are_those_of_randomgen_for_any_key_counter_and_length(words: Callable[..., None]) -> None:
    rng = np.random.default_rng(0)
    for case in range(200):
        key, blocks = rng.bytes(16), int(rng.integers(1, 40))
        low, high = (int(rng.integers(0, 2**62, endpoint=True)) >> int(rng.integers(0, 62)) for _ in range(2))
        if case < 2:
            low, high, blocks = 0, 0, 17 + case
        found = np.zeros(2 * blocks + 3, dtype=np.uint64)
        words(aes.round_keys(key), low, high, blocks, found, 1)
        other = AESCounter(key=int.from_bytes(key, "little"), counter=(high << 64) + low)
        assert np.array_equal(found[1:-2], other.random_raw(2 * blocks)), case
        assert not found[0]
        assert not found[-2:].any()


def test_the_vector_of_the_standard_is_met() -> None:
    """FIPS 197, appendix B: one block; the input as a counter."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    text = bytes.fromhex("3243f6a8885a308d313198a2e0370734")
    low, high = np.frombuffer(text, dtype=np.int64).tolist()
    for words in WAYS:
        found = np.empty(2, dtype=np.uint64)
        words(aes.round_keys(key), low, high, 1, found, 0)
        assert found.tobytes().hex() == "3925841d02dc09fbdc118597196a0b32"


def test_a_stream_and_its_round_keys_give_the_same_words() -> None:
    key = StreamKey.from_insecure_seed(4)
    found = np.empty(64, dtype=np.uint64)
    aes.counter_words(key.stream("test", 3).round_keys, 0, 0, 32, found, 0)
    assert np.array_equal(found, key.stream("test", 3).words(64))
